//! The location journal on a disk that fails and loses power, beside a model: saves, refusals,
//! folding, crashes in the middle of anything, starts. What was answered is there afterwards, what
//! was refused is not.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use sip_backend::location::parts::{Answered, Folder, Writer, open};
use sip_backend::location::{LocalSocket, Options, Save};
use sip_core::id::{ListenerId, QueryId};
use sip_core::location::{AorRecord, Binding, codec};
use sip_core::time::{Instant, Now};
use sip_core::transport::{Flow, Transport};
use sip_sim::disk::{Faults, SimDisk, SimTable};
use sip_sim::rng::Rng;

const CASES: u64 = 6_000;
const EPOCH_MS: u64 = 1_700_000_000_000;
const SECOND: u64 = 1_000_000;
const USERS: u64 = 4;

/// What an address-of-record holds: the version at which its binding was made; `None`: nothing.
type Content = Option<u64>;

fn binding(made: u64) -> Binding {
    // Some records are larger than a sector.
    let contact = format!("sip:c{made}@x;{}", "p".repeat((made % 7 * 130) as usize));
    let received = Flow::udp(([198, 51, 100, 7], 5060).into());
    Binding::plain(contact.into_bytes(), received, EPOCH_MS / 1_000 + 1_000_000)
}

fn content(record: &AorRecord) -> Content {
    let contact = &record.bindings.first()?.contact;
    let text = std::str::from_utf8(contact).ok()?;
    text.strip_prefix("sip:c")?.split('@').next()?.parse().ok()
}

fn options() -> Options {
    let listener: LocalSocket = (Transport::Udp, SocketAddr::from(([192, 0, 2, 1], 5060)));
    Options {
        segment_bytes: 3_000,
        fold_every: Duration::from_secs(5),
        fold_bytes: 6_000,
        journal_bytes: 30_000,
        ..Options::new("/location.db", vec![listener])
    }
}

/// What may be found of an address-of-record.
#[derive(Clone, Debug, Default)]
struct Known {
    /// What it certainly holds, unless it is one of the others.
    certain: Content,
    /// What it may hold as well, since nothing was answered.
    others: BTreeSet<Content>,
    version: u64,
}

struct Case {
    seed: u64,
    rng: Rng,
    disk: SimDisk,
    table: SimTable,
    store: Option<(Writer<SimDisk>, Folder<SimDisk, SimTable>)>,
    known: BTreeMap<u64, Known>,
    now_us: u64,
    log: Vec<String>,
    next_id: u32,
}

impl Case {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let disk = SimDisk::new(rng.fork());
        Self {
            seed,
            disk: disk.clone(),
            table: SimTable::new(disk),
            rng,
            store: None,
            known: (0..USERS).map(|user| (user, Known::default())).collect(),
            now_us: SECOND,
            log: Vec::new(),
            next_id: 0,
        }
    }

    fn now(&self) -> Now {
        Now {
            instant: Instant::from_micros(self.now_us),
            unix_ms: EPOCH_MS + self.now_us / 1_000,
        }
    }

    fn note(&mut self, what: String) {
        self.log.push(format!("{:>12} {what}", self.now_us));
    }

    fn fail(&self, what: &str) -> ! {
        panic!("seed {}: {what}\n{}", self.seed, self.log.join("\n"));
    }

    /// Starts, as often as it takes; some starts are cut short.
    fn start(&mut self) {
        for attempt in 0.. {
            if attempt == 8 {
                self.disk.set_faults(Faults::default());
            }
            let stops = attempt < 4 && self.rng.chance(150);
            if stops {
                let after = self.rng.between(0, 6) as u32;
                self.disk.stop_after(after);
            }
            let found = Mutex::new(BTreeMap::new());
            let load = |aor: Box<[u8]>, record: AorRecord| {
                found.lock().expect("nobody panicked").insert(aor, record);
            };
            let find = |_, _| Some(ListenerId(0));
            let opened = open(
                self.now(),
                self.disk.clone(),
                self.table.clone(),
                &options(),
                &find,
                &load,
            );
            match opened {
                Ok(opened) if !stops => {
                    self.store = Some((opened.writer, opened.folder));
                    let found = found.into_inner().expect("nobody panicked");
                    self.note(format!("started: {:?}", opened.loaded));
                    return self.started(&found, opened.loaded.newest_version);
                }
                Ok(_) => self.crash(),
                Err(error) => {
                    self.note(format!("cannot start: {error}"));
                    self.crash();
                    // What a start could not write anew is in the cache at best, and the next start
                    // may not know: a second fault before the first is mended.
                    if self.disk.faults() != Faults::default() {
                        self.disk.crash(true);
                    }
                    self.now_us += SECOND;
                }
            }
        }
    }

    fn crash(&mut self) {
        let power = self.rng.chance(500);
        self.note(format!("crash, power lost: {power}"));
        self.store = None;
        self.disk.crash(power);
    }

    /// Look-ups give the result that a start finds, so that result is certain from then on.
    fn started(&mut self, found: &BTreeMap<Box<[u8]>, AorRecord>, newest: u64) {
        for user in 0..USERS {
            let record = found.get(aor(user).as_slice());
            let has = record.and_then(content);
            let known = &self.known[&user];
            if has != known.certain && !known.others.contains(&has) {
                self.fail(&format!("user {user} has {has:?}, and should have {known:?}"));
            }
            let version = newest.max(known.version);
            // A start on a full disk writes nothing anew, as to start is worth more: what a failed sync
            // lost before may be read now and gone later.
            let mut others = BTreeSet::new();
            if self.disk.faults().room.is_some() {
                others.clone_from(&known.others);
                others.insert(known.certain);
            }
            let known = Known {
                certain: has,
                others,
                version,
            };
            self.known.insert(user, known);
        }
    }

    /// A few saves at once, as workers make them.
    fn saves(&mut self) -> Vec<(u64, Content, Save)> {
        let count = self.rng.between(1, 4);
        (0..count)
            .map(|_| {
                let user = self.rng.between(0, USERS - 1);
                let version = (self.known[&user].version + 1).max(self.now().unix_ms);
                let holds = self.rng.chance(700).then_some(version);
                let wanted = self.rng.chance(700);
                self.save(user, version, holds, wanted)
            })
            .collect()
    }

    fn save(&mut self, user: u64, version: u64, holds: Content, wanted: bool) -> (u64, Content, Save) {
        let record = AorRecord {
            bindings: holds.map(binding).into_iter().collect(),
            version,
            ..AorRecord::default()
        };
        let mut bytes = Vec::new();
        codec::encode(&record, &mut bytes);
        self.next_id += 1;
        let id = QueryId {
            slot: self.next_id,
            generation: 1,
        };
        if let Some(known) = self.known.get_mut(&user) {
            known.version = version;
        }
        let save = Save {
            origin: 0,
            id: wanted.then_some(id),
            aor: aor(user).into(),
            record: bytes.into(),
            version,
        };
        (user, holds, save)
    }

    fn commit(&mut self) {
        let saves = self.saves();
        let undone = self.give(saves);
        // What was refused the cores take back at once, and they do not ask whether that worked.
        if self.store.is_some() && !undone.is_empty() {
            self.give(undone);
        }
    }

    /// Has these saved. What is to be taken back comes out.
    fn give(&mut self, saves: Vec<(u64, Content, Save)>) -> Vec<(u64, Content, Save)> {
        let stops = self.rng.chance(60);
        if stops {
            let after = self.rng.between(0, 8) as u32;
            self.disk.stop_after(after);
        }
        let cuts = self.disk.refused_cuts();
        let now = self.now();
        let given = |(_, _, save): &(u64, Content, Save)| {
            let save = Save {
                origin: 0,
                id: save.id,
                aor: save.aor.clone(),
                record: save.record.clone(),
                version: save.version,
            };
            (save, now.instant)
        };
        let mut batch: Vec<_> = saves.iter().map(given).collect();
        let mut answered = Vec::new();
        let Some((writer, _)) = &mut self.store else {
            return Vec::new();
        };
        writer.commit(now, &mut batch, &mut answered);
        writer.handle_timeout(now);
        if stops {
            for (user, holds, save) in saves {
                self.note(format!("u{user} v{} {holds:?} under way", save.version));
                self.may(user, holds);
            }
            self.crash();
            return Vec::new();
        }
        let uncut = self.disk.refused_cuts() > cuts;
        let mut undone = Vec::new();
        for ((user, holds, save), answer) in saves.into_iter().zip(answered) {
            self.note(format!("u{user} v{} {holds:?} {answer:?}", save.version));
            self.answered(user, holds, &answer, uncut);
            if answer.id.is_some() && answer.saved.is_err() {
                undone.push(user);
            }
        }
        let mut again = Vec::new();
        for user in undone {
            let Known { certain, version, .. } = self.known[&user].clone();
            let version = (version + 1).max(self.now().unix_ms);
            again.push(self.save(user, version, certain, false));
        }
        again
    }

    fn may(&mut self, user: u64, holds: Content) {
        if let Some(known) = self.known.get_mut(&user) {
            known.others.insert(holds);
        }
    }

    fn answered(&mut self, user: u64, holds: Content, answer: &Answered, uncut: bool) {
        let Some(known) = self.known.get_mut(&user) else {
            return;
        };
        match (answer.saved, answer.id) {
            (Ok(()), _) => {
                known.certain = holds;
                known.others.clear();
            }
            // No result leaves; the writer must see to it.
            (Err(_), None) => {
                known.others.insert(known.certain);
                known.certain = holds;
            }
            // The disk took it, and does not let go of it.
            (Err(_), Some(_)) if uncut => {
                known.others.insert(holds);
            }
            (Err(_), Some(_)) => {}
        }
    }

    fn wait(&mut self, most: u64) {
        let until = self.now_us + self.rng.between(0, most);
        for _ in 0..200 {
            let now = self.now();
            let Some((writer, folder)) = &mut self.store else {
                return;
            };
            let due = [writer.poll_timeout(), folder.poll_timeout(now.instant)];
            let next = due.into_iter().flatten().map(Instant::as_micros).min();
            match next {
                Some(at) if at <= until => self.now_us = self.now_us.max(at),
                Some(_) | None => break,
            }
            if self.timeout() {
                return;
            }
        }
        self.now_us = self.now_us.max(until);
    }

    /// Whether it ended in a crash.
    fn timeout(&mut self) -> bool {
        let stops = self.rng.chance(40);
        if stops {
            let after = self.rng.between(0, 5) as u32;
            self.disk.stop_after(after);
        }
        let now = self.now();
        let Some((writer, folder)) = &mut self.store else {
            return true;
        };
        if writer.poll_timeout().is_some_and(|at| at <= now.instant) {
            writer.handle_timeout(now);
        }
        if folder
            .poll_timeout(now.instant)
            .is_some_and(|at| at <= now.instant)
        {
            folder.handle_timeout(now);
        }
        if stops {
            self.crash();
        }
        stops
    }

    /// Nothing is wrong with the disk for a while: whatever was owed to it is on it.
    fn heal(&mut self) {
        self.disk.set_faults(Faults::default());
        self.note("healed".to_owned());
        self.wait(0);
        self.now_us += 2 * SECOND;
        self.wait(0);
        if self.store.is_some() {
            for known in self.known.values_mut() {
                known.others.clear();
            }
        }
    }

    fn shut_down(&mut self) {
        let now = self.now();
        let Some((mut writer, mut folder)) = self.store.take() else {
            return;
        };
        let clean = writer.finish(now);
        if clean {
            for known in self.known.values_mut() {
                known.others.clear();
            }
        }
        for _ in 0..20 {
            if folder
                .poll_timeout(now.instant)
                .is_some_and(|at| at <= now.instant)
            {
                folder.handle_timeout(now);
            }
        }
        self.note(format!("shut down, clean: {clean}"));
        let power = self.rng.chance(300);
        self.disk.crash(power);
    }

    fn trouble(&mut self) {
        let often = self.rng.pick(&[0, 300, 1_000]);
        let faults = match self.rng.between(0, 3) {
            0 => Faults {
                room: Some(self.rng.between(0, 1_500)),
                ..Faults::default()
            },
            1 => Faults {
                syncs: often,
                ..Faults::default()
            },
            2 => Faults {
                changes: often,
                ..Faults::default()
            },
            _ => Faults {
                syncs: often,
                changes: often / 2,
                reads: often / 2,
                room: None,
            },
        };
        self.note(format!("{faults:?}"));
        self.disk.set_faults(faults);
    }

    fn run(mut self) {
        self.start();
        for _ in 0..self.rng.between(5, 40) {
            if self.store.is_none() {
                self.start();
            }
            match self.rng.between(0, 99) {
                0..55 => self.commit(),
                55..75 => {
                    let most = self
                        .rng
                        .pick(&[SECOND / 5, 3 * SECOND, 10 * SECOND, 700 * SECOND]);
                    self.wait(most);
                }
                75..82 => self.trouble(),
                82..92 => self.heal(),
                92..96 => self.crash(),
                _ => self.shut_down(),
            }
        }
        self.disk.set_faults(Faults::default());
        self.store = None;
        self.disk.crash(true);
        self.start();
    }
}

fn aor(user: u64) -> Vec<u8> {
    format!("u{user}@example.com").into_bytes()
}

#[test]
fn what_is_answered_is_there_and_what_is_refused_is_not() {
    let only = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok());
    let seeds = only.map_or(0..CASES, |seed: u64| seed..seed + 1);
    let journal = Path::new("/location.db.journal");
    let mut segments = 0;
    for seed in seeds {
        let case = Case::new(seed);
        let disk = case.disk.clone();
        case.run();
        segments += disk.files(journal).len();
    }
    assert!(only.is_some() || segments > 0, "no journal was left to be read");
}

/// Killed again and again before anything is folded: each start leaves what it found, and leaves it once.
#[test]
fn starts_do_not_make_the_journal_longer() {
    let mut case = Case::new(1);
    for round in 0..30 {
        let load = |_: Box<[u8]>, _: AorRecord| {};
        let find = |_, _| Some(ListenerId(0));
        let (disk, table) = (case.disk.clone(), case.table.clone());
        let opened = open(case.now(), disk, table, &options(), &find, &load).expect("it starts");
        assert_eq!(opened.loaded.replayed, round, "one for each save");
        let mut writer = opened.writer;
        let (_, _, save) = case.save(0, round + 1, Some(round + 1), true);
        let mut answered = Vec::new();
        writer.commit(case.now(), &mut vec![(save, case.now().instant)], &mut answered);
        assert!(answered.iter().all(|answer| answer.saved.is_ok()), "{answered:?}");
        drop(writer);
        case.disk.crash(round % 2 == 0);
        case.now_us += SECOND;
    }
}

/// A full disk takes half of what a start writes anew: it leaves nothing of that.
#[test]
fn a_start_on_a_full_disk_leaves_no_half_segment() {
    let mut case = Case::new(2);
    let load = |_: Box<[u8]>, _: AorRecord| {};
    let find = |_, _| Some(ListenerId(0));
    let start = |case: &Case| {
        let (disk, table) = (case.disk.clone(), case.table.clone());
        open(case.now(), disk, table, &options(), &find, &load).expect("it starts")
    };
    let mut writer = start(&case).writer;
    for version in 1..4 {
        let (_, _, save) = case.save(0, version, Some(version), true);
        let mut answered = Vec::new();
        writer.commit(case.now(), &mut vec![(save, case.now().instant)], &mut answered);
        assert!(answered.iter().all(|answer| answer.saved.is_ok()), "{answered:?}");
    }
    drop(writer);
    case.disk.crash(false);
    let journal = Path::new("/location.db.journal");
    let before = case.disk.files(journal);
    case.disk.set_faults(Faults {
        room: Some(100),
        ..Faults::default()
    });
    assert_eq!(start(&case).loaded.replayed, 3);
    assert_eq!(case.disk.files(journal), before);
}

/// A balancer sends nothing to a server that cannot save, so the server tries the disk by itself.
#[test]
fn a_disk_that_failed_is_tried_without_anything_to_be_saved() {
    let mut case = Case::new(4);
    let load = |_: Box<[u8]>, _: AorRecord| {};
    let find = |_, _| Some(ListenerId(0));
    let (disk, table) = (case.disk.clone(), case.table.clone());
    let opened = open(case.now(), disk, table, &options(), &find, &load).expect("it starts");
    let mut writer = opened.writer;
    let mut version = 0;
    let mut save = |case: &mut Case, writer: &mut Writer<_>| {
        version += 1;
        let (_, _, save) = case.save(0, version, Some(version), true);
        let mut answered = Vec::new();
        writer.commit(case.now(), &mut vec![(save, case.now().instant)], &mut answered);
        answered.iter().all(|answer| answer.saved.is_ok())
    };
    // Calls the writer when its `poll_timeout` says, as its thread does.
    let pass = |case: &mut Case, writer: &mut Writer<_>, seconds: u64| {
        let end = case.now_us + seconds * SECOND;
        while let Some(at) = writer.poll_timeout().filter(|at| at.as_micros() <= end) {
            case.now_us = case.now_us.max(at.as_micros() + 1);
            writer.handle_timeout(case.now());
        }
        case.now_us = end;
    };
    assert!(save(&mut case, &mut writer) && !writer.is_failing());
    let full = Faults {
        room: Some(0),
        ..Faults::default()
    };
    case.disk.set_faults(full);
    assert!(!save(&mut case, &mut writer) && writer.is_failing());
    pass(&mut case, &mut writer, 60);
    assert!(writer.is_failing());
    case.disk.set_faults(Faults::default());
    pass(&mut case, &mut writer, 6);
    assert!(!writer.is_failing());
    assert!(save(&mut case, &mut writer));
}

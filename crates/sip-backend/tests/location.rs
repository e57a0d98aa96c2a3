//! The location store on disk.

use crate::battery;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use battery::location::{Harness, LATER, Records, binding, listeners, record, save, unlocked};
use battery::{Answers, PATIENCE};
use parking_lot::Mutex;
use sip_backend::ResultSink;
use sip_backend::location::{
    DiskStore, Loaded, LocalSocket, LocationError, LocationStore as _, Options, Save,
};
use sip_core::id::{ListenerId, QueryId};
use sip_core::location::AorRecord;
use sip_core::query::{QueryResult, Unavailable};
use sip_core::transport::Transport;

/// Opens with these options, once nothing has it locked; records by address-of-record.
fn open(options: Options, sink: Arc<dyn ResultSink>) -> Result<(DiskStore, Records, Loaded), LocationError> {
    unlocked(|| open_once(options.clone(), sink.clone()))
}

#[track_caller]
fn open_once(
    options: Options,
    sink: Arc<dyn ResultSink>,
) -> Result<(DiskStore, Records, Loaded), LocationError> {
    let table = options.listeners.clone();
    let find = move |transport: Transport, address: SocketAddr| {
        let at = table.iter().position(|socket| *socket == (transport, address))?;
        Some(ListenerId(u16::try_from(at).unwrap()))
    };
    let records = Mutex::new(Records::new());
    let load = |aor: Box<[u8]>, record: AorRecord| {
        assert!(
            records.lock().insert(aor.into(), record).is_none(),
            "handed over twice"
        );
    };
    let (store, loaded) = DiskStore::open(options, sink, &find, &load)?;
    let records = records.into_inner();
    assert_eq!(loaded.aors, records.len() as u64);
    Ok((store, records, loaded))
}

struct OnDisk {
    dir: tempfile::TempDir,
    /// Small: many segments, folded all the time.
    small: bool,
}

#[track_caller]
fn on_disk(small: bool) -> OnDisk {
    OnDisk {
        dir: tempfile::tempdir().unwrap(),
        small,
    }
}

impl OnDisk {
    fn options(&self, listeners: &[LocalSocket]) -> Options {
        let mut options = Options::new(self.dir.path().join("location.db"), listeners.to_vec());
        if self.small {
            options.segment_bytes = 2_000;
            options.fold_every = Duration::from_millis(5);
        }
        options
    }
}

impl Harness for OnDisk {
    type Store = DiskStore;

    fn open(&mut self, listeners: &[LocalSocket], answers: Arc<Answers>) -> (DiskStore, Records) {
        let (store, records, _) = open(self.options(listeners), answers).unwrap();
        (store, records)
    }
}

mod defaults {
    crate::location_battery!(super::on_disk(false));
}

mod small_segments {
    crate::location_battery!(super::on_disk(true));
}

/// Copies the data directory as a power failure would leave it, with the store still running.
fn snapshot(from: &Path) -> tempfile::TempDir {
    let to = tempfile::tempdir().unwrap();
    let mut dirs = vec![PathBuf::new()];
    while let Some(dir) = dirs.pop() {
        fs::create_dir_all(to.path().join(&dir)).unwrap();
        for entry in fs::read_dir(from.join(&dir)).unwrap() {
            let entry = entry.unwrap();
            let name = dir.join(entry.file_name());
            if entry.file_type().unwrap().is_dir() {
                dirs.push(name);
            } else {
                fs::copy(entry.path(), to.path().join(&name)).unwrap();
            }
        }
    }
    to
}

#[test]
fn an_answered_save_is_on_disk_while_the_store_still_runs() {
    let harness = on_disk(false);
    let answers = Arc::new(Answers::default());
    let (store, _, _) = open(harness.options(&listeners()), answers.clone()).unwrap();
    store.save(vec![save(Some(1), b"alice@example.com", &record(7))]);
    assert!(matches!(answers.wait(3, 1), QueryResult::Saved(Ok(()))));
    let copy = OnDisk {
        dir: snapshot(harness.dir.path()),
        small: false,
    };
    let (_copy, records, loaded) = open(copy.options(&listeners()), answers).unwrap();
    assert_eq!(
        records,
        Records::from([(b"alice@example.com".to_vec(), record(7))])
    );
    assert_eq!(
        (loaded.replayed, loaded.torn_bytes, loaded.newest_version),
        (1, 0, 7)
    );
}

#[test]
fn a_torn_tail_is_cut_off_and_the_rest_kept() {
    let harness = on_disk(false);
    let answers = Arc::new(Answers::default());
    let (store, _, _) = open(harness.options(&listeners()), answers.clone()).unwrap();
    for n in 1..=3 {
        store.save(vec![save(
            Some(n),
            format!("u{n}@x").as_bytes(),
            &record(u64::from(n)),
        )]);
        assert!(matches!(answers.wait(3, n), QueryResult::Saved(Ok(()))));
    }
    let copy = OnDisk {
        dir: snapshot(harness.dir.path()),
        small: false,
    };
    let journal = copy.dir.path().join("location.db.journal");
    let segment = fs::read_dir(&journal).unwrap().next().unwrap().unwrap().path();
    let length = fs::metadata(&segment).unwrap().len();
    fs::OpenOptions::new()
        .write(true)
        .open(&segment)
        .unwrap()
        .set_len(length - 5)
        .unwrap();
    // The header of the next was not even finished.
    fs::write(journal.join("0000000000000099.segment"), b"TZL").unwrap();
    let (store, records, loaded) = open(copy.options(&listeners()), answers.clone()).unwrap();
    assert_eq!(records.into_keys().collect::<Vec<_>>(), [b"u1@x", b"u2@x"]);
    assert!(loaded.torn_bytes > 5);
    assert!(store.fold_now(PATIENCE));
    store.shutdown();
    let (_store, records, loaded) = open(copy.options(&listeners()), answers).unwrap();
    assert_eq!((records.len(), loaded.torn_bytes), (2, 0));
}

#[test]
fn folding_leaves_one_row_for_each_binding_and_no_journal() {
    let harness = on_disk(false);
    let answers = Arc::new(Answers::default());
    let (store, _, _) = open(harness.options(&listeners()), answers.clone()).unwrap();
    for version in 1..=500 {
        let mut two = record(version);
        two.bindings.push(binding("sip:b@198.51.100.8", LATER));
        two.bindings[1].q_milli = 700;
        store.save(vec![save(None, b"alice@example.com", &two)]);
    }
    assert!(store.fold_now(PATIENCE));
    assert_eq!(
        fs::read_dir(harness.dir.path().join("location.db.journal"))
            .unwrap()
            .count(),
        0
    );
    let db = rusqlite::Connection::open(harness.dir.path().join("location.db")).unwrap();
    let rows: Vec<(String, String, String, String, String, i64, f64)> = db
        .prepare("SELECT username, domain, contact, received, socket, cseq, q FROM location ORDER BY slot")
        .unwrap()
        .query_map([], |row| {
            Ok((
                row.get(0)?,
                row.get(1)?,
                row.get(2)?,
                row.get(3)?,
                row.get(4)?,
                row.get(5)?,
                row.get(6)?,
            ))
        })
        .unwrap()
        .map(Result::unwrap)
        .collect();
    let row = |contact: &str, cseq, q| {
        let received = "sip:198.51.100.7:40404;transport=udp".to_owned();
        let socket = "udp:192.0.2.1:5060".to_owned();
        (
            "alice".to_owned(),
            "example.com".to_owned(),
            contact.to_owned(),
            received,
            socket,
            cseq,
            q,
        )
    };
    assert_eq!(
        rows,
        [
            row("sip:a@198.51.100.7", 500, 1.0),
            row("sip:b@198.51.100.8", 1, 0.7)
        ]
    );
    let folded = store
        .metrics()
        .into_iter()
        .find(|sample| sample.name == "location_folded")
        .unwrap();
    assert!(
        matches!(folded.value, sip_backend::metrics::Value::Counter(1..500)),
        "coalesced: {folded:?}"
    );
}

#[test]
fn a_second_opening_is_refused_with_a_reason() {
    let harness = on_disk(false);
    let sink = Arc::new(Answers::default());
    let (store, _, _) = open(harness.options(&listeners()), sink.clone()).unwrap();
    let error = open_once(harness.options(&listeners()), sink.clone())
        .err()
        .unwrap();
    assert!(matches!(error, LocationError::Locked { .. }));
    assert!(error.to_string().contains("in use by another process"), "{error}");
    store.shutdown();
    drop(store);
    open(harness.options(&listeners()), sink).unwrap();
}

/// Answers nothing while it is held.
#[derive(Default)]
struct Held {
    gate: Mutex<()>,
    results: Mutex<Vec<(u32, Result<(), Unavailable>)>>,
}

impl ResultSink for Held {
    fn deliver(&self, _origin: u16, id: QueryId, result: QueryResult) {
        let QueryResult::Saved(result) = result else {
            panic!("{result:?}")
        };
        if result.is_ok() {
            drop(self.gate.lock());
        }
        self.results.lock().push((id.slot, result));
    }
}

#[test]
fn a_full_queue_refuses_at_once() {
    let harness = on_disk(false);
    let mut options = harness.options(&listeners());
    options.queue_items = 10;
    let held = Arc::new(Held::default());
    let (store, _, _) = open(options, held.clone()).unwrap();
    let gate = held.gate.lock();
    store.save(vec![save(Some(0), b"first@x", &record(1))]);
    // The writer takes the first and waits at the gate; then ten fit.
    let deadline = Instant::now() + PATIENCE;
    while store
        .metrics()
        .iter()
        .any(|s| s.name == "location_queue" && s.value != sip_backend::metrics::Value::Gauge(0))
    {
        assert!(Instant::now() < deadline, "the writer takes nothing");
        std::thread::sleep(Duration::from_millis(1));
    }
    store.save(
        (1..=15)
            .map(|n| save(Some(n), b"more@x", &record(u64::from(n))))
            .collect(),
    );
    let refused: Vec<_> = held
        .results
        .lock()
        .iter()
        .map(|(slot, result)| (*slot, result.is_err()))
        .collect();
    assert_eq!(
        refused,
        [(11, true), (12, true), (13, true), (14, true), (15, true)]
    );
    drop(gate);
    store.shutdown();
    assert_eq!(held.results.lock().len(), 16);
}

#[test]
fn a_full_journal_refuses_until_it_is_folded() {
    let harness = on_disk(false);
    let mut options = harness.options(&listeners());
    options.journal_bytes = 600;
    let answers = Arc::new(Answers::default());
    let (store, _, _) = open(options, answers.clone()).unwrap();
    let mut number = 0_u32;
    let mut is_saved = || {
        number += 1;
        let aor = format!("u{number}@x");
        store.save(vec![save(Some(number), aor.as_bytes(), &record(number.into()))]);
        match answers.wait(3, number) {
            QueryResult::Saved(result) => result == Ok(()),
            other @ (QueryResult::Credentials(_) | QueryResult::Resolved(_)) => panic!("{other:?}"),
        }
    };
    let mut good = 0;
    for time in 1..=3 {
        while is_saved() {
            good += 1;
            assert!(good < 200, "the bound was never reached for the {time}. time");
        }
        let deadline = Instant::now() + PATIENCE;
        while !is_saved() {
            assert!(Instant::now() < deadline, "folding made no room");
            std::thread::sleep(Duration::from_millis(1));
        }
        good += 1;
    }
    store.shutdown();
    let (_store, records, _) = open(harness.options(&listeners()), answers).unwrap();
    assert_eq!(records.len(), good);
}

/// The operation of version `v`: its address-of-record, and whether it deletes.
fn operation(v: u64) -> (String, bool) {
    let mixed = v.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (
        format!("user{}@example.com", (mixed >> 40) % 150),
        (mixed >> 20).is_multiple_of(7),
    )
}

const CRASH_DIR: &str = "TRAPEZOID_TEST_CRASH_DIR";
const CRASH_CHILD: &str = "location::crash_child";
const UNANSWERED: u64 = 200;

/// Prints each answered version.
#[derive(Default)]
struct Printer(AtomicU64);

impl ResultSink for Printer {
    fn deliver(&self, origin: u16, id: QueryId, result: QueryResult) {
        assert!(matches!(result, QueryResult::Saved(Ok(()))), "{result:?}");
        let version = u64::from(origin) << 32 | u64::from(id.slot);
        let line = format!("saved {version}\n");
        std::io::stdout().write_all(line.as_bytes()).unwrap();
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn flush(&self) {
        std::io::stdout().flush().unwrap();
    }
}

/// Run by the test below in a process of its own, until it is killed.
#[test]
#[ignore = "the child of answered_saves_survive_kill_9"]
fn crash_child() {
    let Some(dir) = std::env::var_os(CRASH_DIR) else {
        return;
    };
    let mut options = Options::new(Path::new(&dir).join("location.db"), listeners());
    options.segment_bytes = 20_000;
    options.fold_every = Duration::from_millis(20);
    let sink = Arc::new(Printer::default());
    let (store, _, loaded) = open(options, sink.clone()).unwrap();
    for (asked, version) in (0..).zip(loaded.newest_version + 1..) {
        while asked - sink.0.load(Ordering::Relaxed) >= UNANSWERED {
            std::thread::yield_now();
        }
        let (aor, delete) = operation(version);
        let new = if delete {
            AorRecord {
                bindings: vec![],
                version,
                ..AorRecord::default()
            }
        } else {
            record(version)
        };
        let mut save = save(Some((version & 0xffff_ffff) as u32), aor.as_bytes(), &new);
        save.origin = u16::try_from(version >> 32).unwrap();
        store.save(vec![save]);
    }
}

/// Saves until killed, some time after the first answer; the versions that were answered.
fn run_until_killed(dir: &Path, after: Duration) -> Vec<u64> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", CRASH_CHILD, "--ignored", "--nocapture", "--quiet"])
        .env(CRASH_DIR, dir)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    let (first, answered) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        let mut versions = Vec::new();
        for line in output.split(b'\n').map_while(Result::ok) {
            let version: Option<u64> = line
                .strip_prefix(b"saved ")
                .and_then(|n| std::str::from_utf8(n).ok()?.parse().ok());
            versions.extend(version);
            if versions.len() == 1 {
                let _ = first.send(());
            }
        }
        versions
    });
    let has_begun = answered.recv_timeout(PATIENCE);
    if has_begun.is_ok() {
        std::thread::sleep(after);
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let versions = reader.join().unwrap();
    assert!(has_begun.is_ok(), "the child answered nothing");
    versions
}

#[test]
fn answered_saves_survive_kill_9() {
    let harness = on_disk(false);
    let mut answered: BTreeMap<String, u64> = BTreeMap::new();
    for round in 0..10u64 {
        let noise = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap()
            .subsec_nanos();
        let versions = run_until_killed(harness.dir.path(), Duration::from_millis(u64::from(noise % 400)));
        for version in versions {
            let (aor, _) = operation(version);
            let held = answered.entry(aor).or_default();
            *held = version.max(*held);
        }
        let (store, records, loaded) =
            open(harness.options(&listeners()), Arc::new(Answers::default())).unwrap();
        for (aor, &version) in &answered {
            // What was asked but not answered may or may not be there, in this round and in those before.
            let (_, deleted) = operation(version);
            match records.get(aor.as_bytes()) {
                Some(found) => {
                    assert!(
                        found.version >= version,
                        "round {round}: {aor} is older than answered"
                    );
                    assert!(
                        found.version > version || !deleted,
                        "round {round}: {aor} came back"
                    );
                    assert_eq!(*found, record(found.version));
                }
                None => {
                    let later = (version + 1..=loaded.newest_version)
                        .map(operation)
                        .any(|(other, deletes)| deletes && other == *aor);
                    assert!(deleted || later, "round {round}: {aor} is lost");
                }
            }
        }
        store.shutdown();
    }
}

/// All rows of the table: user, slot, end.
#[track_caller]
fn rows(dir: &Path) -> Vec<(String, i64, u64)> {
    let db = rusqlite::Connection::open(dir.join("location.db")).unwrap();
    let read = |row: &rusqlite::Row<'_>| {
        let end: i64 = row.get(2)?;
        Ok((row.get(0)?, row.get(1)?, end.cast_unsigned()))
    };
    db.prepare("SELECT username, slot, expires FROM location ORDER BY username, slot")
        .unwrap()
        .query_map([], read)
        .unwrap()
        .map(Result::unwrap)
        .collect()
}

/// Waits until the table holds what `done` wants.
#[track_caller]
fn until_rows(dir: &Path, done: impl Fn(&[(String, i64, u64)]) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done(&rows(dir)) {
        assert!(Instant::now() < deadline, "{:?}", rows(dir));
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Bindings that had ended before the start are deleted from the table without any request; a record that is
/// left with a gap is written whole again.
#[test]
fn what_ended_while_nothing_ran_leaves_the_table() {
    let harness = on_disk(false);
    let answers = Arc::new(Answers::default());
    let (store, _, _) = open(harness.options(&listeners()), answers.clone()).unwrap();
    let saves = (0..2_500u64).map(|n| {
        let mut two = record(n + 1);
        let other = binding("sip:b@198.51.100.8", LATER + n);
        two.bindings.push(other);
        // The first of two has ended, or both, or none.
        let ended = [&[0][..], &[0, 1], &[]][(n % 3) as usize];
        ended
            .iter()
            .for_each(|at| two.bindings[*at].expires_unix_s = 1_000);
        save(None, format!("u{n:05}@example.com").as_bytes(), &two)
    });
    store.save(saves.collect());
    store.shutdown();
    drop(store);
    assert_eq!(rows(harness.dir.path()).len(), 5_000);

    let (store, records, loaded) = open(harness.options(&listeners()), answers.clone()).unwrap();
    let ended = (0..2_500u64).map(|n| [1, 2, 0][(n % 3) as usize]).sum::<u64>();
    assert_eq!((loaded.expired, loaded.bindings), (ended, 5_000 - ended));
    assert_eq!(records.len() as u64, loaded.aors);
    until_rows(harness.dir.path(), |rows| rows.len() as u64 == 5_000 - ended);
    assert!(rows(harness.dir.path()).iter().all(|(_, _, end)| *end > 1_000));

    // u00000 has its second row only, in slot 1: one binding more in slot 0 takes its place.
    store.save(vec![save(Some(1), b"u00000@example.com", &record(9_000))]);
    assert!(matches!(answers.wait(3, 1), QueryResult::Saved(Ok(()))));
    assert!(store.fold_now(PATIENCE));
    let left = rows(harness.dir.path());
    assert_eq!(left[0], ("u00000".into(), 0, LATER));
    assert_eq!(left[1].0, "u00002");
}

/// What ends while the server runs: the sweep's saves take it off the disk, by name.
#[test]
fn what_ends_leaves_memory_and_disk() {
    use sip_backend::shared::Shared;
    use sip_backend::subscribers::CredentialCache;
    use sip_core::shared::SharedState as _;

    let harness = on_disk(false);
    let answers = Arc::new(Answers::default());
    let (store, _, _) = open(harness.options(&listeners()), answers).unwrap();
    let backend = sip_backend::Backend::new(Arc::new(Answers::default())).with_location(store);
    let cache = CredentialCache::new(0, Duration::ZERO, Duration::ZERO);
    let now = LATER * 1000;
    let shared = Shared::new((1, 2), 10, now, Arc::new(cache));
    for n in 0..300u64 {
        let aor = format!("u{n:03}@example.com");
        shared.update_bindings(aor.as_bytes(), &mut |held| {
            held.put(binding("sip:a@198.51.100.7", LATER + 3_600 * (1 + n % 2)));
            if n % 3 == 0 {
                held.put(binding("sip:b@198.51.100.8", LATER + 9_000));
            }
            held.changed(now);
            store_save(&backend, aor.as_bytes(), held);
        });
    }
    let mut saves = vec![];
    let swept = shared.sweep_saves(now + 3_700_000, usize::MAX, &mut saves);
    assert!(swept.finished);
    assert_eq!((swept.bindings, saves.len()), (150, 150));
    backend.submit(0, saves);
    backend.shutdown();
    let left = rows(harness.dir.path());
    // 150 end later, 50 of them and 50 of the others have a second binding.
    assert_eq!(left.len(), 250);
    assert!(left.iter().all(|(_, _, end)| *end > LATER + 3_600));
}

fn store_save(backend: &sip_backend::Backend, aor: &[u8], record: &AorRecord) {
    let Save {
        aor, record, version, ..
    } = save(None, aor, record);
    let kind = sip_core::query::QueryKind::SaveBindings { aor, record, version };
    backend.submit(0, [sip_core::query::Query { id: None, kind }]);
}

/// Large tables are read by several threads: nothing is missed, nothing handed over twice.
#[test]
fn a_large_table_is_read_in_parts() {
    let harness = on_disk(false);
    let answers = Arc::new(Answers::default());
    let (store, _, _) = open(harness.options(&listeners()), answers.clone()).unwrap();
    let mut model = Records::new();
    for n in 0..40_000u64 {
        let mut new = record(n + 1);
        if n % 7 == 0 {
            new.bindings.push(binding("sip:b@198.51.100.8", LATER));
        }
        let domain = ["a.example", "b.example", "b.example"][(n % 3) as usize];
        model.insert(format!("u{}@{domain}", n / 2).into_bytes(), new);
    }
    let saves = model.iter().map(|(aor, record)| save(None, aor, record));
    store.save(saves.collect());
    store.shutdown();
    drop(store);
    let pages = fs::metadata(harness.dir.path().join("location.db"))
        .unwrap()
        .len()
        / 4096;
    assert!(pages > 1_000, "too small to be split: {pages} pages");
    // A journal that knows better of some.
    let (store, records, _) = open(harness.options(&listeners()), answers.clone()).unwrap();
    assert!(records == model);
    for (at, aor) in [(100_001, &b"u5@a.example"[..]), (100_002, b"u16000@b.example")] {
        store.save(vec![save(Some(at), aor, &record(at.into()))]);
        assert!(matches!(answers.wait(3, at), QueryResult::Saved(Ok(()))));
        model.insert(aor.to_vec(), record(at.into()));
    }
    let copy = OnDisk {
        dir: snapshot(harness.dir.path()),
        small: false,
    };
    let (_copy, records, loaded) = open(copy.options(&listeners()), answers).unwrap();
    assert!(records == model);
    assert_eq!((loaded.replayed, loaded.newest_version), (2, 100_002));
}

/// A table made before there was a column `updated` gets one.
#[test]
fn an_older_table_is_read() {
    let harness = on_disk(false);
    let answers = Arc::new(Answers::default());
    let (store, _, _) = open(harness.options(&listeners()), answers.clone()).unwrap();
    store.save(vec![save(None, b"alice@example.com", &record(7))]);
    store.shutdown();
    drop(store);
    let db = rusqlite::Connection::open(harness.dir.path().join("location.db")).unwrap();
    db.execute_batch("ALTER TABLE location DROP COLUMN updated")
        .unwrap();
    drop(db);
    let (_store, records, _) = open(harness.options(&listeners()), answers).unwrap();
    assert_eq!(records[&b"alice@example.com"[..]], record(7));
}

/// Only the owner of the files can read where users are reachable.
#[test]
fn files_are_the_owners_alone() {
    use std::os::unix::fs::PermissionsExt as _;

    let harness = on_disk(false);
    let answers = Arc::new(Answers::default());
    let (store, _, _) = open(harness.options(&listeners()), answers.clone()).unwrap();
    store.save(vec![save(Some(1), b"alice@example.com", &record(7))]);
    assert!(matches!(answers.wait(3, 1), QueryResult::Saved(Ok(()))));
    let mut seen = vec![];
    for dir in ["", "location.db.journal"] {
        for entry in fs::read_dir(harness.dir.path().join(dir)).unwrap() {
            let entry = entry.unwrap();
            let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
            let expected = if entry.file_type().unwrap().is_dir() {
                0o700
            } else {
                0o600
            };
            assert_eq!(mode, expected, "{:?}", entry.path());
            seen.push(entry.file_name().into_string().unwrap());
        }
    }
    assert!(seen.iter().any(|name| name == "location.db-wal"), "{seen:?}");
    assert!(seen.iter().any(|name| name.ends_with(".segment")), "{seen:?}");
}

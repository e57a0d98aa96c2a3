//! Figures of the location store as it is: saves per second and CPU per save, folding, opening.
//!
//! ```text
//! cargo run --release -p sip-backend --example location_figures -- DIR [RECORDS] [REFRESHES]
//! ```

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sip_backend::AnswerSink;
use sip_backend::location::{DiskStore, LocationStore as _, Options, Save};
use sip_core::id::{ListenerId, QueryId};
use sip_core::location::{AorRecord, Binding, codec};
use sip_core::query::Answer;
use sip_core::transport::{Flow, Proof, Transport};

/// The server's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

type Any = Result<(), Box<dyn std::error::Error>>;

/// Saves that wait for their answer at the most, as the transactions of a busy server would.
const UNANSWERED: u64 = 4_096;
/// Saves submitted at once.
const BATCH: u64 = 32;

#[derive(Default)]
struct Count {
    saved: AtomicU64,
    failed: AtomicU64,
}

impl AnswerSink for Count {
    fn answer(&self, _origin: u16, _id: QueryId, answer: Answer) {
        let good = matches!(answer, Answer::Saved(Ok(())));
        if good { &self.saved } else { &self.failed }.fetch_add(1, Ordering::Relaxed);
    }
}

impl Count {
    fn answered(&self) -> u64 {
        self.saved.load(Ordering::Relaxed) + self.failed.load(Ordering::Relaxed)
    }
}

fn record(user: u64, version: u64) -> AorRecord {
    let binding = Binding {
        contact: format!("sip:user{user:07}@192.0.2.7:5060;transport=udp")
            .into_bytes()
            .into(),
        received: Flow {
            transport: Transport::Udp,
            listener: ListenerId(0),
            remote: SocketAddr::from(([198, 51, 100, 7], 40_404)),
            conn: None,
            proof: Proof::None,
        },
        path: [].into(),
        instance: b"urn:uuid:f81d4fae-7dec-11d0-a765-00a0c91e6bf6"[..].into(),
        reg_id: 0,
        call_id: format!("{user:032x}@192.0.2.7").into_bytes().into(),
        cseq: u32::try_from(version % 1_000_000).unwrap_or(0),
        q_milli: 1000,
        expires_unix_s: 4_000_000_000,
        user_agent: b"figures/1.0 phone"[..].into(),
        updated: version,
    };
    AorRecord {
        bindings: vec![binding],
        version,
        ..AorRecord::default()
    }
}

/// CPU of the thread named `name`, nanoseconds.
fn cpu_of(name: &str) -> u64 {
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else {
        return 0;
    };
    tasks
        .flatten()
        .filter(|task| {
            std::fs::read_to_string(task.path().join("comm")).is_ok_and(|comm| comm.trim() == name)
        })
        .filter_map(|task| {
            let stat = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
            stat.split(' ').next()?.parse::<u64>().ok()
        })
        .sum()
}

/// CPU of this process so far, all threads, seconds.
fn cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // Behind the name in brackets: user and system time, in hundredths of a second.
    let fields = stat.rsplit(')').next().unwrap_or_default().split(' ').skip(12);
    fields.take(2).filter_map(|n| n.parse::<f64>().ok()).sum::<f64>() / 100.0
}

fn run(store: &DiskStore, count: &Count, what: &str, saves: impl ExactSizeIterator<Item = (u64, u64)>) {
    let total = saves.len() as u64;
    let before = count.answered();
    let (wall, cpu) = (Instant::now(), cpu_of("location-write"));
    let mut asked = 0;
    let mut batch = Vec::new();
    for (user, version) in saves {
        let mut bytes = Vec::new();
        codec::encode(&record(user, version), &mut bytes);
        let id = Some(QueryId {
            slot: 0,
            generation: 0,
        });
        let aor = format!("user{user:07}@example.com").into_bytes().into();
        batch.push(Save {
            origin: 0,
            id,
            aor,
            record: bytes.into(),
            version,
        });
        asked += 1;
        if asked % BATCH == 0 || asked == total {
            while asked - (count.answered() - before) > UNANSWERED {
                std::thread::sleep(Duration::from_micros(200));
            }
            store.save(std::mem::take(&mut batch));
        }
    }
    while count.answered() - before < total {
        std::thread::sleep(Duration::from_micros(200));
    }
    let seconds = wall.elapsed().as_secs_f64();
    let cpu = (cpu_of("location-write") - cpu) as f64 / 1000.0 / total as f64;
    say(&format!(
        "{what}: {:.0} saves/s, {cpu:.2} us CPU each",
        total as f64 / seconds
    ));
}

fn say(text: &str) {
    #[expect(clippy::print_stdout, reason = "the figures are this program's output")]
    {
        println!("{text}");
    }
}

fn open(dir: &Path, count: &Arc<Count>) -> Result<DiskStore, Box<dyn std::error::Error>> {
    let local = "203.0.113.1:5060".parse()?;
    let options = Options::new(dir.join("location.db"), vec![(Transport::Udp, local)]);
    let shared = sip_backend::shared::Shared::new(
        (1, 2),
        1,
        0,
        Arc::new(sip_backend::subscribers::CredentialCache::new(
            0,
            Duration::ZERO,
            Duration::ZERO,
        )),
    );
    let load = |aor: Box<[u8]>, record| shared.load(&aor, record);
    let before = cpu();
    let (store, loaded) = DiskStore::open(options, count.clone(), &|_, _| Some(ListenerId(0)), &load)?;
    say(&format!(
        "open: {} bindings, {} of them or their elders from the journal, in {:?}, {:.2} s CPU",
        loaded.bindings,
        loaded.replayed,
        loaded.took,
        cpu() - before
    ));
    Ok(store)
}

fn main() -> Any {
    let mut args = std::env::args().skip(1);
    let dir = args
        .next()
        .ok_or("usage: location_figures DIR [RECORDS] [REFRESHES]")?;
    let records: u64 = args.next().map_or(Ok(200_000), |n| n.parse())?;
    let refreshes: u64 = args.next().map_or(Ok(400_000), |n| n.parse())?;
    let dir = Path::new(&dir);
    std::fs::create_dir_all(dir)?;
    let count = Arc::new(Count::default());
    let store = open(dir, &count)?;
    run(
        &store,
        &count,
        "register",
        (0..records as u32).map(|n| (u64::from(n), u64::from(n) + 1)),
    );
    store.shutdown();
    drop(store);
    let store = open(dir, &count)?;
    let user = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) % records;
    run(
        &store,
        &count,
        "refresh",
        (0..refreshes as u32).map(|n| (user(n.into()), records + u64::from(n) + 1)),
    );
    let (wall, cpu) = (Instant::now(), cpu_of("location-fold"));
    store.fold_now(Duration::from_secs(600));
    let cpu = (cpu_of("location-fold") - cpu) as f64 / 1000.0 / refreshes as f64;
    say(&format!("fold: {:?}, {cpu:.2} us CPU a save", wall.elapsed()));
    store.shutdown();
    drop(store);
    open(dir, &count)?.shutdown();
    say(&format!("failed: {}", count.failed.load(Ordering::Relaxed)));
    Ok(())
}

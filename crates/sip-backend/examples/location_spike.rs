//! Which way of writing registrations to disk costs least: SQLite transactions as group commit
//! makes them, or an append-only journal that is folded into SQLite behind it?
//!
//! ```text
//! cargo run --release -p sip-backend --example location_spike -- DIR [SAVES]
//! ```
//!
//! Every line: how, address-of-records, batch, saves per second, CPU microseconds per save of the
//! thread that answers, and (journal) of the thread that folds. The figures and the decision are
//! in `docs/spikes/location-store.md`.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::time::Instant;

use rusqlite::{Connection, params};

type Any = Result<(), Box<dyn std::error::Error>>;

/// CPU time of this thread, nanoseconds (`Documentation/scheduler/sched-stats.rst`).
fn thread_cpu_ns() -> u64 {
    fs::read_to_string("/proc/thread-self/schedstat")
        .ok()
        .and_then(|text| text.split(' ').next()?.parse().ok())
        .unwrap_or(0)
}

/// xorshift64*: the same refreshes in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: i64) -> i64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0
            .wrapping_mul(0x2545_F491_4F6C_DD1D)
            .cast_signed()
            .rem_euclid(n)
    }
}

const SCHEMA: &str = "
CREATE TABLE location (
  domain TEXT NOT NULL, username TEXT NOT NULL, slot INTEGER NOT NULL,
  contact TEXT NOT NULL, received TEXT NOT NULL, path TEXT NOT NULL, expires INTEGER NOT NULL,
  q REAL NOT NULL, callid TEXT NOT NULL, cseq INTEGER NOT NULL, socket TEXT NOT NULL,
  instance TEXT NOT NULL, reg_id INTEGER NOT NULL, user_agent TEXT NOT NULL,
  last_modified INTEGER NOT NULL, version INTEGER NOT NULL,
  PRIMARY KEY (domain, username, slot)) WITHOUT ROWID;";

fn open(dir: &Path, synchronous: &str) -> rusqlite::Result<Connection> {
    let db = Connection::open(dir.join("spike.db"))?;
    db.pragma_update(None, "journal_mode", "WAL")?;
    db.pragma_update(None, "synchronous", synchronous)?;
    db.pragma_update(None, "cache_size", -65_536)?;
    Ok(db)
}

/// Writes one transaction of (address-of-record, version) pairs.
fn write_rows(db: &mut Connection, rows: &[(i64, i64)]) -> rusqlite::Result<()> {
    let tx = db.transaction()?;
    {
        let mut put =
            tx.prepare_cached("INSERT OR REPLACE INTO location VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)")?;
        let mut cut = tx.prepare_cached("DELETE FROM location WHERE domain=? AND username=? AND slot>=?")?;
        for &(user, version) in rows {
            let name = format!("user{user:06}");
            put.execute(params![
                "example.com",
                name,
                0,
                format!("sip:{name}@192.0.2.7:5060;transport=udp"),
                "sip:198.51.100.7:40404;transport=udp",
                "",
                1_800_000_000i64 + version,
                1.0,
                format!("{user:032x}@192.0.2.7"),
                version,
                "udp:203.0.113.1:5060",
                "",
                0,
                "spike/1.0 phone",
                1_800_000_000i64,
                version
            ])?;
            cut.execute(params!["example.com", name, 1])?;
        }
    }
    tx.commit()
}

fn fill(dir: &Path, aors: i64) -> Any {
    let _ = fs::remove_dir_all(dir);
    fs::create_dir_all(dir)?;
    let mut db = open(dir, "OFF")?;
    db.execute_batch(SCHEMA)?;
    let rows: Vec<_> = (0..aors).map(|user| (user, 1)).collect();
    write_rows(&mut db, &rows)?;
    db.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)")?;
    Ok(())
}

fn sqlite(dir: &Path, aors: i64, batch: i64, saves: i64, synchronous: &str) -> Any {
    fill(dir, aors)?;
    let mut db = open(dir, synchronous)?;
    let mut random = Random(7);
    let (wall, cpu) = (Instant::now(), thread_cpu_ns());
    let mut done = 0;
    while done < saves {
        let rows: Vec<_> = (0..batch).map(|i| (random.below(aors), 2 + done + i)).collect();
        write_rows(&mut db, &rows)?;
        done += batch;
    }
    report(
        &format!("sqlite-{synchronous}"),
        aors,
        batch,
        done,
        wall,
        thread_cpu_ns() - cpu,
        0,
    );
    Ok(())
}

fn journal(dir: &Path, aors: i64, batch: i64, saves: i64, preallocate: bool) -> Any {
    fill(dir, aors)?;
    let mut file: File = OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .open(dir.join("spike.journal"))?;
    if preallocate {
        let zeros = vec![0u8; 1 << 20];
        for _ in 0..(saves * 420) >> 20 {
            file.write_all(&zeros)?;
        }
        file.sync_all()?;
        file = OpenOptions::new().write(true).open(dir.join("spike.journal"))?;
    }
    let mut random = Random(7);
    let mut out = Vec::new();
    let mut written = Vec::new();
    let (wall, cpu) = (Instant::now(), thread_cpu_ns());
    let mut done = 0;
    while done < saves {
        out.clear();
        for i in 0..batch {
            let (user, version) = (random.below(aors), 2 + done + i);
            let body = format!("user{user:06}@example.com {version:020} {:>300}", user);
            out.extend_from_slice(&u32::try_from(body.len())?.to_le_bytes());
            out.extend_from_slice(&crc32fast::hash(body.as_bytes()).to_le_bytes());
            out.extend_from_slice(body.as_bytes());
            written.push((user, version));
        }
        file.write_all(&out)?;
        file.sync_data()?;
        done += batch;
    }
    let answering = thread_cpu_ns() - cpu;
    let elapsed = wall.elapsed();
    let fold = thread_cpu_ns();
    let mut newest: HashMap<i64, i64> = HashMap::new();
    for &(user, version) in &written {
        newest.insert(user, version);
    }
    let mut rows: Vec<_> = newest.into_iter().collect();
    rows.sort_unstable();
    let mut db = open(dir, "FULL")?;
    for part in rows.chunks(10_000) {
        write_rows(&mut db, part)?;
    }
    let name = if preallocate {
        "journal-prealloc"
    } else {
        "journal"
    };
    report(
        name,
        aors,
        batch,
        done,
        Instant::now() - elapsed,
        answering,
        thread_cpu_ns() - fold,
    );
    Ok(())
}

fn report(how: &str, aors: i64, batch: i64, saves: i64, start: Instant, cpu: u64, fold: u64) {
    let per = |ns: u64| ns as f64 / 1000.0 / saves as f64;
    #[expect(clippy::print_stdout, reason = "the figures are this program's output")]
    {
        println!(
            "{how:18} {aors:>7} {batch:>5} {:>9.0}/s {:>7.2} us {:>7.2} us",
            saves as f64 / start.elapsed().as_secs_f64(),
            per(cpu),
            per(fold)
        );
    }
}

fn main() -> Any {
    let mut args = std::env::args().skip(1);
    let dir = args.next().ok_or("usage: location_spike DIR [SAVES]")?;
    let saves: i64 = args.next().map_or(Ok(200_000), |n| n.parse())?;
    let dir = Path::new(&dir);
    for aors in [10_000, 100_000] {
        for batch in [16, 128, 1024] {
            let saves = saves.min(batch * 4000);
            sqlite(dir, aors, batch, saves, "FULL")?;
            sqlite(dir, aors, batch, saves, "NORMAL")?;
            journal(dir, aors, batch, saves, false)?;
            journal(dir, aors, batch, saves, true)?;
        }
    }
    fs::remove_dir_all(dir)?;
    Ok(())
}

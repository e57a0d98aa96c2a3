//! Opening: lock, read the table, then what the journal holds beyond it.

use std::collections::HashMap;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::Write as _;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rusqlite::Connection;
use sip_core::id::ListenerId;
use sip_core::location::{AorRecord, codec};
use sip_core::transport::Transport;

use super::fold::{Backlog, Deleted, Folder, Walks};
use super::journal::{self, Closed, Disk, Journal, OsDisk, Segment};
use super::socket::Mapper;
use super::writer::{Writer, unix_s};
use super::{DiskStore, LocationError, Options, Stats, table};
use crate::AnswerSink;
use crate::queue::Queue;
use crate::quiet::Quiet;
use crate::sqlite;

/// Takes loaded records; called from several threads at once.
pub type Load<'a> = dyn Fn(Box<[u8]>, AorRecord) + Sync + 'a;

/// Finds the listener that has this local socket now.
pub type FindListener<'a> = dyn Fn(Transport, SocketAddr) -> Option<ListenerId> + Sync + 'a;

/// What a start found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// Addresses-of-record handed over.
    pub aors: u64,
    /// Their bindings.
    pub bindings: u64,
    /// Bindings that had ended while nothing ran.
    pub expired: u64,
    /// Bindings left out because their listener is gone (they stay in the table until they end).
    pub unmapped: u64,
    /// Journal entries read.
    pub replayed: u64,
    /// Bytes of unfinished entries cut off the journal: what a crash interrupted before it was
    /// answered.
    pub torn_bytes: u64,
    /// Journal entries that this version of the program cannot read.
    pub undecodable: u64,
    /// Highest version seen: whatever is saved from now on must have a higher one.
    pub newest_version: u64,
    /// How long it took.
    pub took: Duration,
}

/// Threads that load, at most.
const MAX_THREADS: usize = 8;
/// Fewer records of the journal are not worth another thread.
const MIN_SHARE: usize = 10_000;

/// The newest that the journal says of one address-of-record.
struct Pending {
    version: u64,
    record: Box<[u8]>,
    listeners: Arc<[Box<[u8]>]>,
}

impl DiskStore {
    /// Opens the store, hands every live record to `load`, and starts its threads. Bindings whose
    /// local socket `find_listener` does not know are left out; connections are forgotten.
    ///
    /// # Errors
    /// The database is in use, or the file system or SQLite refuses.
    pub fn open(
        options: Options,
        sink: Arc<dyn AnswerSink>,
        find_listener: &FindListener<'_>,
        load: &Load<'_>,
    ) -> Result<(Self, Loaded), LocationError> {
        Self::open_on(Box::new(OsDisk), options, sink, find_listener, load)
    }

    fn open_on(
        disk: Box<dyn Disk>,
        options: Options,
        sink: Arc<dyn AnswerSink>,
        find_listener: &FindListener<'_>,
        load: &Load<'_>,
    ) -> Result<(Self, Loaded), LocationError> {
        let start = Instant::now();
        if let Some(parent) = options.path.parent() {
            fs::create_dir_all(parent).map_err(LocationError::io(parent))?;
        }
        let lock = lock(&options)?;
        let dir = options.beside(".journal");
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&dir)
            .map_err(LocationError::io(&dir))?;
        sqlite::create(&options.path).map_err(LocationError::io(&options.path))?;
        let db = table::open(&options.path).map_err(LocationError::database(&options.path))?;
        let mut loaded = Loaded::default();
        let (segments, next) = journal::list(&dir).map_err(LocationError::io(&dir))?;
        let (segments, pending) = replay(segments, &mut loaded)?;
        let loading = Loading {
            path: &options.path,
            find_listener,
            load,
            now: unix_s(),
        };
        let (deleted, walks) = loading
            .all(&db, pending, &mut loaded)
            .map_err(LocationError::database(&options.path))?;
        loaded.took = start.elapsed();
        tracing::info!(
            aors = loaded.aors,
            bindings = loaded.bindings,
            expired = loaded.expired,
            unmapped = loaded.unmapped,
            replayed = loaded.replayed,
            torn_bytes = loaded.torn_bytes,
            took_ms = u64::try_from(loaded.took.as_millis()).unwrap_or(u64::MAX),
            "location store opened"
        );
        let journal = Journal::new(&dir, disk, next, &options.listeners);
        let store = Self::start(Parts {
            options,
            sink,
            db,
            journal,
            segments,
            deleted,
            walks,
            lock,
        })?;
        Ok((store, loaded))
    }

    fn start(parts: Parts) -> Result<Self, LocationError> {
        let Parts {
            options,
            sink,
            db,
            journal,
            segments,
            deleted,
            walks,
            lock,
        } = parts;
        let queue = Arc::new(Queue::new(options.queue_items, options.queue_bytes));
        let backlog = Arc::new(Backlog::default());
        let stats = Arc::new(Stats::new());
        backlog.add(segments, true);
        let every = Duration::from_secs(5);
        let writer = Writer {
            queue: queue.clone(),
            backlog: backlog.clone(),
            stats: stats.clone(),
            sink: sink.clone(),
            journal,
            options: options.clone(),
            failed_at: None,
            log: Quiet::new(every),
        };
        let path = options.path.clone();
        let folder = Folder {
            db,
            backlog: backlog.clone(),
            stats: stats.clone(),
            options,
            deleted,
            walks,
            log: Quiet::new(every),
        };
        let spawn = |name: &str, run: Box<dyn FnOnce() + Send>| {
            thread::Builder::new()
                .name(name.to_owned())
                .spawn(run)
                .map_err(LocationError::io(&path))
        };
        let writer = spawn("location-write", Box::new(move || writer.run()))?;
        let folder = spawn(
            "location-fold",
            Box::new(move || {
                folder.run();
                // The last to touch the files.
                drop(lock);
            }),
        )?;
        let threads = parking_lot::Mutex::new(vec![writer, folder]);
        Ok(Self {
            queue,
            backlog,
            stats,
            sink,
            threads,
        })
    }
}

struct Parts {
    options: Options,
    sink: Arc<dyn AnswerSink>,
    db: Connection,
    journal: Journal,
    segments: Vec<Closed>,
    deleted: Deleted,
    walks: Walks,
    lock: File,
}

/// Takes the lock that keeps a second process out; the kernel gives it back when this one ends,
/// however it ends.
fn lock(options: &Options) -> Result<File, LocationError> {
    let path = options.beside(".lock");
    let mut file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(&path)
        .map_err(LocationError::io(&path))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            return Err(LocationError::Locked {
                path: options.path.clone(),
                lock: path,
            });
        }
        Err(TryLockError::Error(source)) => return Err(LocationError::Io { path, source }),
    }
    // For people only; the lock is what counts.
    let _ = file
        .set_len(0)
        .and_then(|()| writeln!(file, "{}", std::process::id()));
    Ok(file)
}

type Newest = HashMap<Box<[u8]>, Pending>;

/// Reads the segments in order; cuts off what a crash left unfinished. Returns the segments that
/// are to be folded and the newest version of each address-of-record in them.
fn replay(segments: Vec<Closed>, loaded: &mut Loaded) -> Result<(Vec<Closed>, Newest), LocationError> {
    let mut newest = Newest::new();
    let mut kept = Vec::with_capacity(segments.len());
    for mut closed in segments {
        let Some(segment) = Segment::read(&closed.path).map_err(LocationError::io(&closed.path))? else {
            loaded.torn_bytes += closed.bytes;
            tracing::warn!(path = %closed.path.display(), bytes = closed.bytes, "location journal: segment without a whole header removed");
            fs::remove_file(&closed.path).map_err(LocationError::io(&closed.path))?;
            continue;
        };
        let listeners: Arc<[Box<[u8]>]> = segment.listeners.clone().into();
        let mut entries = segment.entries();
        for entry in entries.by_ref() {
            loaded.replayed += 1;
            loaded.newest_version = loaded.newest_version.max(entry.version);
            let pending = || Pending {
                version: entry.version,
                record: entry.record.into(),
                listeners: listeners.clone(),
            };
            match newest.get_mut(entry.aor) {
                Some(held) if held.version > entry.version => {}
                Some(held) => *held = pending(),
                None => {
                    newest.insert(entry.aor.into(), pending());
                }
            }
        }
        let torn = entries.rest().len();
        if torn > 0 {
            loaded.torn_bytes += torn as u64;
            closed.bytes = (segment.len() - torn) as u64;
            tracing::warn!(path = %closed.path.display(), bytes = torn, "location journal: unfinished entry cut off");
            truncate(&closed.path, closed.bytes)?;
        }
        kept.push(closed);
    }
    Ok((kept, newest))
}

fn truncate(path: &Path, bytes: u64) -> Result<(), LocationError> {
    OpenOptions::new()
        .write(true)
        .open(path)
        .and_then(|file| file.set_len(bytes))
        .map_err(LocationError::io(path))
}

/// What loading needs to know.
struct Loading<'a> {
    path: &'a Path,
    find_listener: &'a FindListener<'a>,
    load: &'a Load<'a>,
    now: u64,
}

/// What one thread has loaded.
#[derive(Default)]
struct Tally {
    aors: u64,
    bindings: u64,
    expired: u64,
    undecodable: u64,
    scan: table::Scan,
    /// Addresses-of-record of which the journal knows nothing newer.
    superseded: Vec<Box<[u8]>>,
}

impl Loading<'_> {
    /// Hands over the table's records that the journal does not supersede, then the journal's; by
    /// as many threads as there are cores, each its part.
    fn all(
        &self,
        db: &Connection,
        mut pending: Newest,
        loaded: &mut Loaded,
    ) -> rusqlite::Result<(Deleted, Walks)> {
        let mut deleted = Deleted::new();
        table::deletions(db, &mut |aor, version, at| {
            loaded.newest_version = loaded.newest_version.max(version);
            if pending.get(&aor).is_some_and(|newer| newer.version <= version) {
                pending.remove(&aor);
            }
            deleted.insert(aor, (version, at));
        })?;
        let threads = thread::available_parallelism()
            .map_or(1, usize::from)
            .min(MAX_THREADS);
        let keys = table::split(db, threads)?;
        let mut tallies = self.scan(db, &keys, &pending)?;
        for aor in tallies.iter_mut().flat_map(|tally| tally.superseded.drain(..)) {
            pending.remove(&aor);
        }
        let pending: Vec<_> = pending.into_iter().collect();
        let share = pending.len().div_ceil(threads).max(MIN_SHARE);
        tallies.extend(each_by_a_thread(pending.chunks(share), |part| self.journal(part)));
        let mut walks = Walks::default();
        for tally in tallies {
            loaded.aors += tally.aors;
            loaded.bindings += tally.bindings;
            loaded.expired += tally.expired;
            loaded.undecodable += tally.undecodable;
            loaded.unmapped += tally.scan.unmapped;
            loaded.newest_version = loaded.newest_version.max(tally.scan.newest);
            if tally.scan.unmapped > 0 {
                walks.add(tally.scan.unmapped_until);
            }
        }
        if loaded.expired > 0 {
            walks.add(self.now);
        }
        Ok((deleted, walks))
    }

    /// Reads the table, split at `keys`.
    fn scan(
        &self,
        db: &Connection,
        keys: &[table::AorKey],
        pending: &Newest,
    ) -> rusqlite::Result<Vec<Tally>> {
        if keys.is_empty() {
            return Ok(vec![self.scan_part(db, (None, None), pending)?]);
        }
        let bounds = (0..=keys.len()).map(|n| (n.checked_sub(1).and_then(|n| keys.get(n)), keys.get(n)));
        each_by_a_thread(bounds, |bounds| {
            let db = sqlite::connect(self.path)?;
            self.scan_part(&db, bounds, pending)
        })
        .into_iter()
        .collect()
    }

    fn scan_part(
        &self,
        db: &Connection,
        bounds: table::Bounds<'_>,
        pending: &Newest,
    ) -> rusqlite::Result<Tally> {
        let mut tally = Tally::default();
        let mut superseded = Vec::new();
        let mut wanted = |aor: &[u8], version: u64| match pending.get(aor) {
            Some(newer) if newer.version > version => false,
            Some(_) => {
                superseded.push(aor.into());
                true
            }
            None => true,
        };
        let mut mapper = Mapper::new(self.find_listener);
        let mut each = |aor, record| self.hand_over(aor, record, &mut tally);
        let scan = table::scan(db, bounds, &mut mapper, &mut wanted, &mut each)?;
        Ok(Tally {
            scan,
            superseded,
            ..tally
        })
    }

    /// Hands over what the journal knows better.
    fn journal(&self, part: &[(Box<[u8]>, Pending)]) -> Tally {
        let mut tally = Tally::default();
        let mut mapper = Mapper::new(self.find_listener);
        for (aor, newest) in part {
            let Ok(mut record) = codec::decode(&newest.record) else {
                tally.undecodable += 1;
                tracing::error!("location journal: a record cannot be read");
                continue;
            };
            record.version = newest.version;
            let scan = &mut tally.scan;
            record.bindings.retain_mut(|binding| {
                let flow = &mut binding.received;
                flow.conn = None;
                let socket = newest.listeners.get(usize::from(flow.listener.0));
                let listener = socket.and_then(|socket| mapper.listener(socket));
                flow.listener = listener.unwrap_or(flow.listener);
                if listener.is_none() {
                    scan.unmapped += 1;
                    scan.unmapped_until = scan.unmapped_until.max(binding.expires_unix_s);
                }
                listener.is_some()
            });
            self.hand_over(aor.clone(), record, &mut tally);
        }
        tally
    }

    fn hand_over(&self, aor: Box<[u8]>, mut record: AorRecord, tally: &mut Tally) {
        tally.expired += record.remove_expired(self.now) as u64;
        if !record.bindings.is_empty() {
            tally.aors += 1;
            tally.bindings += record.bindings.len() as u64;
            (self.load)(aor, record);
        }
    }
}

/// Does `work` on each item in a thread of its own; the results in the order of the items.
fn each_by_a_thread<T: Send, R: Send>(
    items: impl Iterator<Item = T>,
    work: impl Fn(T) -> R + Sync,
) -> Vec<R> {
    let work = &work;
    thread::scope(|scope| {
        let threads: Vec<_> = items.map(|item| scope.spawn(move || work(item))).collect();
        let ends = threads.into_iter().map(thread::ScopedJoinHandle::join);
        ends.map(|end| end.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

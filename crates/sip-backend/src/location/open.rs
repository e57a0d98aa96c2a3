//! Opening the store: reads the table, then the newer records of the journal.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use sip_core::id::ListenerId;
use sip_core::location::{AorRecord, codec};
use sip_core::time::Now;
use sip_core::transport::Transport;

use super::backlog::Backlog;
use super::deleted::Deleted;
use super::disk::{Disk, SegmentFile as _};
use super::fold::{Folder, Parts, Walks};
use super::journal::{self, Closed, Journal};
use super::segment::Segment;
use super::socket::{LocalSocket, Mapper};
use super::table::{Part, Scan, Table};
use super::writer::Writer;
use super::{Options, Stats};
use crate::throttle::LogThrottle;

/// Receives loaded records; called from several threads at once.
pub type Load<'a> = dyn Fn(Box<[u8]>, AorRecord) + Sync + 'a;

/// Finds the present listener of a local socket.
pub type FindListener<'a> = dyn Fn(Transport, SocketAddr) -> Option<ListenerId> + Sync + 'a;

/// The results of reading the store at a start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// Number of addresses-of-record loaded.
    pub aors: u64,
    /// Number of bindings loaded.
    pub bindings: u64,
    /// Number of bindings that had expired while the server was not running.
    pub expired: u64,
    /// Number of bindings left out because their listener is gone (they stay in the table until they expire).
    pub unmapped: u64,
    /// Number of journal entries read.
    pub replayed: u64,
    /// Bytes of unfinished entries cut off the journal. A crash interrupted their writing before a result was
    /// delivered.
    pub torn_bytes: u64,
    /// Number of damaged places in the journal whose content is lost: entries and headers of segments. If a
    /// header is lost, the segment's listener ids are taken to mean the present listeners.
    pub damaged: u64,
    /// Number of journal entries that this version of the program cannot decode.
    pub undecodable: u64,
    /// Highest version found. All later saves must have higher ones.
    pub newest_version: u64,
    /// Duration of the start.
    pub took: Duration,
}

/// Error of reading the journal or the table.
#[derive(Debug, thiserror::Error)]
pub enum OpenError<E: std::error::Error + 'static> {
    /// An error of the file system.
    #[error("{}: {source}", path.display())]
    Io {
        /// The path of the operation.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// An error of the table.
    #[error(transparent)]
    Table(E),
}

impl<E: std::error::Error> OpenError<E> {
    fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io {
            path: path.to_owned(),
            source,
        }
    }
}

/// An open store, whose parts the caller drives.
#[derive(Debug)]
pub struct Opened<D: Disk, T: Table> {
    /// The writing end.
    pub writer: Writer<D>,
    /// The folding end.
    pub folder: Folder<D, T>,
    /// The backlog between the two.
    pub(super) backlog: Arc<Backlog>,
    pub(super) stats: Arc<Stats>,
    /// The results of reading the store.
    pub loaded: Loaded,
}

/// Most threads that load.
const MAX_THREADS: usize = 8;
/// Least number of journal records for which another thread is worth its cost.
const MIN_SHARE: usize = 10_000;
/// Number of segments that the last process may have left partly unsynced: the segment that it was writing,
/// and the segment before, if that had to be abandoned. No further segment is begun before both are synced or
/// cut ([`Journal::append`]).
const UNSURE: usize = 2;
/// Shortest interval between log messages of a recurring failure.
const LOG_EVERY: Duration = Duration::from_secs(5);

/// The newest journal entry of one address-of-record.
struct Pending {
    version: u64,
    record: Box<[u8]>,
    listeners: Arc<[Box<[u8]>]>,
}

/// Reads everything, passes every live record to `load`, and prepares the store for saves.
///
/// # Errors
/// Those of the file system or the table.
pub fn open<D: Disk + Clone, T: Table>(
    now: Now,
    disk: D,
    table: T,
    options: &Options,
    find_listener: &FindListener<'_>,
    load: &Load<'_>,
) -> Result<Opened<D, T>, OpenError<T::Error>> {
    let dir = options.journal_dir();
    disk.make_dir(&dir).map_err(OpenError::io(&dir))?;
    // If a directory's own name is lost, it takes its files with it, however well they were synced.
    let parent = dir.parent().filter(|parent| *parent != Path::new(""));
    let parent = parent.unwrap_or(Path::new("."));
    disk.sync_dir(parent).map_err(OpenError::io(parent))?;
    let mut loaded = Loaded::default();
    let Replay {
        next,
        newest: pending,
        kept: segments,
        ..
    } = Replay::of(&disk, &dir, &options.listeners, &mut loaded)?;
    let loading = Loading {
        find_listener,
        load,
        now: now.unix_s(),
    };
    let (deleted, walks) = loading
        .all(&table, pending, &mut loaded)
        .map_err(OpenError::Table)?;
    let backlog = Arc::new(Backlog::default());
    let stats = Arc::new(Stats::new());
    backlog.add(now.instant, segments, true);
    let journal = Journal::new(&dir, disk.clone(), next, &options.listeners);
    let writer = Writer::new(
        backlog.clone(),
        stats.clone(),
        journal,
        options.clone(),
        LogThrottle::new(LOG_EVERY),
    );
    let parts = Parts {
        disk,
        table,
        backlog: backlog.clone(),
        stats: stats.clone(),
        options: options.clone(),
        deleted,
        walks,
        log: LogThrottle::new(LOG_EVERY),
    };
    Ok(Opened {
        writer,
        folder: Folder::new(now, parts),
        backlog,
        stats,
        loaded,
    })
}

type Newest = HashMap<Box<[u8]>, Pending>;

/// The records and segments of the journal, as read at a start.
struct Replay<'a, D> {
    disk: &'a D,
    dir: &'a Path,
    listeners: &'a [LocalSocket],
    /// Number of the next segment.
    next: u64,
    newest: Newest,
    kept: Vec<Closed>,
    /// Segments with a synced copy.
    copied: Vec<Closed>,
}

impl<'a, D: Disk> Replay<'a, D> {
    /// Reads all segments. Afterwards each segment's content is on stable storage, once.
    fn of<E: std::error::Error>(
        disk: &'a D,
        dir: &'a Path,
        listeners: &'a [LocalSocket],
        loaded: &mut Loaded,
    ) -> Result<Self, OpenError<E>> {
        let (segments, next) = journal::list(disk, dir).map_err(OpenError::io(dir))?;
        let mut replay = Self {
            disk,
            dir,
            listeners,
            next,
            newest: Newest::new(),
            kept: Vec::with_capacity(segments.len()),
            copied: Vec::new(),
        };
        let sure = segments.len().saturating_sub(UNSURE);
        for (place, segment) in segments.into_iter().enumerate() {
            replay.read(segment, place >= sure, loaded)?;
        }
        // The names must be synced, too.
        disk.sync_dir(dir).map_err(OpenError::io(dir))?;
        replay.forget_copied()?;
        Ok(replay)
    }

    /// Removes copied segments, once the names of the copies are on disk. If a server is killed again and
    /// again before it folds anything, each start would otherwise leave another copy of all that it read.
    fn forget_copied<E: std::error::Error>(&self) -> Result<(), OpenError<E>> {
        for closed in &self.copied {
            self.disk
                .remove(&closed.path)
                .map_err(OpenError::io(&closed.path))?;
        }
        if self.copied.is_empty() {
            return Ok(());
        }
        // A segment that reappeared after a loss of power would outlive the memory of later deletions.
        self.disk.sync_dir(self.dir).map_err(OpenError::io(self.dir))
    }

    /// Reads a segment, and cuts off an entry that a crash left unfinished.
    fn read<E: std::error::Error>(
        &mut self,
        mut closed: Closed,
        unsure: bool,
        loaded: &mut Loaded,
    ) -> Result<(), OpenError<E>> {
        let bytes = self
            .disk
            .read(&closed.path)
            .map_err(OpenError::io(&closed.path))?;
        let Some(segment) = Segment::from_bytes(bytes, self.listeners) else {
            loaded.torn_bytes += closed.bytes;
            tracing::warn!(
                path = closed.path.display().to_string(),
                bytes = closed.bytes,
                "location journal: segment without a whole header removed"
            );
            return self
                .disk
                .remove(&closed.path)
                .map_err(OpenError::io(&closed.path));
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
            match self.newest.get_mut(entry.aor) {
                Some(held) if held.version > entry.version => {}
                Some(held) => *held = pending(),
                None => {
                    self.newest.insert(entry.aor.into(), pending());
                }
            }
        }
        if entries.damaged() > 0 {
            loaded.damaged += entries.damaged();
            tracing::error!(
                path = closed.path.display().to_string(),
                damaged = entries.damaged(),
                "location journal: segment is damaged; what is whole in it is used"
            );
        }
        let torn = entries.rest().len();
        closed.bytes = (segment.len() - torn) as u64;
        if torn > 0 {
            loaded.torn_bytes += torn as u64;
            tracing::warn!(
                path = closed.path.display().to_string(),
                bytes = torn,
                "location journal: unfinished entry cut off"
            );
        }
        self.settle(closed, segment.bytes(), unsure)
    }

    /// Puts the content of a segment on stable storage, because its records are served from now on. A killed
    /// process may have written it without a sync. If a sync had failed before, the lost pages can still be
    /// read, and the next sync succeeds without them. That is possible in the last segments only
    /// ([`UNSURE`]), so these are copied.
    fn settle<E: std::error::Error>(
        &mut self,
        closed: Closed,
        bytes: &[u8],
        unsure: bool,
    ) -> Result<(), OpenError<E>> {
        let whole = usize::try_from(closed.bytes)
            .ok()
            .and_then(|len| bytes.get(..len));
        let mut copied = false;
        if unsure {
            match self.copy(whole.unwrap_or_default()) {
                Ok(copy) => {
                    self.kept.push(copy);
                    copied = true;
                }
                // If the disk is full, starting is worth more than certainty about what an earlier failure
                // may have lost.
                Err(error) if error.kind() == io::ErrorKind::StorageFull => {
                    tracing::warn!(
                        path = closed.path.display().to_string(),
                        error = error.to_string(),
                        "location journal: segment not written anew"
                    );
                }
                Err(error) => return Err(OpenError::io(&closed.path)(error)),
            }
        }
        let settled = if bytes.len() as u64 > closed.bytes {
            self.disk.truncate(&closed.path, closed.bytes)
        } else {
            self.disk.sync(&closed.path)
        };
        settled.map_err(OpenError::io(&closed.path))?;
        if copied {
            self.copied.push(closed);
        } else {
            self.kept.push(closed);
        }
        Ok(())
    }

    /// Writes a new segment with this content. If that fails, no segment is left.
    fn copy(&mut self, content: &[u8]) -> io::Result<Closed> {
        let path = journal::segment_path(self.dir, self.next);
        self.next += 1;
        let write = || {
            let mut file = self.disk.create(&path)?;
            file.append(content)?;
            file.sync()
        };
        let Err(error) = write() else {
            let bytes = content.len() as u64;
            return Ok(Closed { path, bytes });
        };
        // A half-written copy must never be folded: if a later start read it, it would restore deleted
        // bindings after their deletion is forgotten.
        match self.disk.remove(&path) {
            Err(left) if left.kind() != io::ErrorKind::NotFound => Err(io::Error::other(left)),
            Ok(()) | Err(_) => Err(error),
        }
    }
}

/// Arguments that all loading threads share.
struct Loading<'a> {
    find_listener: &'a FindListener<'a>,
    load: &'a Load<'a>,
    now: u64,
}

/// The results of one loading thread.
#[derive(Default)]
struct Tally {
    aors: u64,
    bindings: u64,
    expired: u64,
    undecodable: u64,
    scan: Scan,
    /// Addresses-of-record whose journal entry is no newer than the table's record.
    superseded: Vec<Box<[u8]>>,
}

impl Loading<'_> {
    /// Loads the table's records, unless the journal supersedes them, then the journal's. There are as many
    /// threads as cores, each with its part.
    fn all<T: Table>(
        &self,
        table: &T,
        mut pending: Newest,
        loaded: &mut Loaded,
    ) -> Result<(Deleted, Walks<T::Place>), T::Error> {
        let mut deleted = Deleted::default();
        table.deletions(&mut |aor, version, at| {
            loaded.newest_version = loaded.newest_version.max(version);
            if pending.get(&aor).is_some_and(|newer| newer.version <= version) {
                pending.remove(&aor);
            }
            deleted.insert(&aor, version, at);
        })?;
        let threads = thread::available_parallelism()
            .map_or(1, usize::from)
            .min(MAX_THREADS);
        let parts = table.parts(threads)?.into_iter();
        let tallies = each_by_a_thread(parts, |part| self.scan(&part, &pending));
        let mut tallies = tallies.into_iter().collect::<Result<Vec<_>, _>>()?;
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

    /// Loads a part of the table.
    fn scan<P: Part>(&self, part: &P, pending: &Newest) -> Result<Tally, P::Error> {
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
        let scan = part.scan(&mut mapper, &mut wanted, &mut each)?;
        Ok(Tally {
            scan,
            superseded,
            ..tally
        })
    }

    /// Loads the records that the journal has newer.
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
            tally
                .scan
                .map_bindings(&mut record, &newest.listeners, &mut mapper);
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

/// Does `work` on each item in a thread of its own, unless there is only one. Returns the results in the
/// order of the items.
fn each_by_a_thread<T: Send, R: Send>(
    items: impl ExactSizeIterator<Item = T>,
    work: impl Fn(T) -> R + Sync,
) -> Vec<R> {
    if items.len() < 2 {
        return items.map(work).collect();
    }
    let work = &work;
    thread::scope(|scope| {
        let threads: Vec<_> = items.map(|item| scope.spawn(move || work(item))).collect();
        let ends = threads.into_iter().map(thread::ScopedJoinHandle::join);
        ends.map(|end| end.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

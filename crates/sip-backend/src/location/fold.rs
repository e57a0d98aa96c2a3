//! The thread behind: ended journal segments into the table.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rusqlite::Connection;
use sip_core::location::codec;

use super::journal::{Closed, Segment};
use super::table::{self, Write};
use super::writer::unix_s;
use super::{Options, Stats};
use crate::quiet::Quiet;

/// Addresses-of-record written in one transaction.
const CHUNK: usize = 2_000;
/// A deletion is remembered at least this long after it was folded, in case an older version of
/// the same address-of-record arrives behind it (workers race to the queue by microseconds).
const REMEMBER_DELETED_S: u64 = 600;
/// Deletions that need no longer be remembered are dropped this often, and it is seen whether the
/// table is to be walked through ([`Walks`]).
const PURGE_EVERY: Duration = Duration::from_secs(600);
/// Rows looked at in one step of a walk.
const WALK_ROWS: u32 = 10_000;
/// Wait after a failed round.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Somebody waits for everything saved so far to be in the table.
#[derive(Debug, Default)]
pub(super) struct FoldRequest {
    done: Mutex<bool>,
    wake: Condvar,
}

impl FoldRequest {
    /// Waits until `deadline`; whether it is done.
    pub(super) fn wait(&self, deadline: Instant) -> bool {
        let mut done = self.done.lock();
        while !*done {
            if self.wake.wait_until(&mut done, deadline).timed_out() {
                break;
            }
        }
        *done
    }

    fn finish(&self) {
        *self.done.lock() = true;
        self.wake.notify_all();
    }
}

/// Segments that wait to be folded. Their number is bounded by [`Options::journal_bytes`].
#[derive(Debug, Default)]
pub(super) struct Backlog {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct State {
    segments: Vec<Closed>,
    bytes: u64,
    oldest: Option<Instant>,
    urgent: bool,
    stop: bool,
    lost: bool,
    requests: Vec<Arc<FoldRequest>>,
}

impl Backlog {
    /// Adds segments; `urgent`: fold them now.
    pub(super) fn add(&self, segments: Vec<Closed>, urgent: bool) {
        let mut state = self.state.lock();
        if !segments.is_empty() {
            state.oldest.get_or_insert_with(Instant::now);
            state.bytes += segments.iter().map(|segment| segment.bytes).sum::<u64>();
            state.segments.extend(segments);
        }
        state.urgent |= urgent;
        self.wake.notify_one();
    }

    /// Answers `request` once everything added so far is folded.
    pub(super) fn request(&self, request: Arc<FoldRequest>) {
        let mut state = self.state.lock();
        state.requests.push(request);
        state.urgent = true;
        self.wake.notify_one();
    }

    /// Bytes that wait.
    pub(super) fn bytes(&self) -> u64 {
        self.state.lock().bytes
    }

    /// Saves could not be taken: rows may stand in the table that nobody will delete by name.
    pub(super) fn note_lost(&self) {
        self.state.lock().lost = true;
    }

    fn take_lost(&self) -> bool {
        std::mem::take(&mut self.state.lock().lost)
    }

    /// Ends the thread once it has done what it can in a short time.
    pub(super) fn stop(&self) {
        self.state.lock().stop = true;
        self.wake.notify_one();
    }

    fn stopping(&self) -> bool {
        self.state.lock().stop
    }

    /// Waits for a round's worth: the oldest segments, up to `options.fold_bytes` together.
    fn next(&self, options: &Options, purge_at: Instant) -> Next {
        let mut state = self.state.lock();
        loop {
            let due = state.oldest.map(|oldest| oldest + options.fold_every);
            let ready = state.urgent || state.stop || state.bytes >= options.fold_bytes;
            if state.segments.is_empty() {
                state.urgent = false;
                for request in state.requests.drain(..) {
                    request.finish();
                }
                if state.stop {
                    return Next::Stop;
                }
            } else if ready || due.is_some_and(|due| due <= Instant::now()) {
                let mut bytes = 0;
                let fits = |segment: &&Closed| {
                    bytes += segment.bytes;
                    bytes <= options.fold_bytes
                };
                let count = state.segments.iter().take_while(fits).count().max(1);
                return Next::Fold(state.segments.iter().take(count).cloned().collect());
            }
            let now = Instant::now();
            if purge_at <= now {
                return Next::Purge;
            }
            self.wake
                .wait_until(&mut state, due.map_or(purge_at, |due| due.min(purge_at)));
        }
    }

    fn done(&self, count: usize) {
        let mut state = self.state.lock();
        let bytes: u64 = state.segments.drain(..count).map(|segment| segment.bytes).sum();
        state.bytes = state.bytes.saturating_sub(bytes);
        state.oldest = (!state.segments.is_empty()).then(Instant::now);
    }

    /// Waits after a failure; whether the thread should end instead.
    fn wait_after_failure(&self) -> bool {
        let mut state = self.state.lock();
        if !state.stop {
            self.wake.wait_for(&mut state, RETRY_AFTER);
        }
        state.stop
    }
}

enum Next {
    Fold(Vec<Closed>),
    Purge,
    Stop,
}

/// Deletions noted lately, by address-of-record: version and when.
pub(super) type Deleted = HashMap<Box<[u8]>, (u64, u64)>;

/// When the whole table is to be walked through for bindings that have ended. While the server
/// runs, what ends is deleted by name: the sweep of the bindings in memory saves what is left of
/// each record. A walk is for rows of which memory knows nothing: those that had ended before the
/// start, those whose listener is gone, and those whose deletion was refused.
#[derive(Debug, Default)]
pub(super) struct Walks {
    /// Unix seconds, few.
    due: Vec<u64>,
    /// A walk is under way: its last key.
    at: Option<Option<table::Key>>,
}

impl Walks {
    /// Wants a walk at this second, or as soon as it has passed.
    pub(super) fn add(&mut self, unix_s: u64) {
        self.due.push(unix_s);
    }

    /// Begins one that is due.
    fn begin(&mut self, now_unix_s: u64) {
        let before = self.due.len();
        self.due.retain(|due| *due > now_unix_s);
        if self.due.len() < before {
            self.at = Some(None);
        }
    }
}

#[derive(Debug)]
pub(super) struct Folder {
    pub(super) db: Connection,
    pub(super) backlog: Arc<Backlog>,
    pub(super) stats: Arc<Stats>,
    pub(super) options: Options,
    pub(super) deleted: Deleted,
    pub(super) walks: Walks,
    pub(super) log: Quiet,
}

#[derive(Debug, thiserror::Error)]
enum FoldError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Database(#[from] rusqlite::Error),
}

impl Folder {
    /// Runs until [`Backlog::stop`].
    pub(super) fn run(mut self) {
        self.walks.begin(unix_s());
        let mut purge_at = Instant::now() + self.until_purge();
        loop {
            let (result, folded) = match self.backlog.next(&self.options, purge_at) {
                Next::Stop => break,
                Next::Purge => {
                    let start = Instant::now();
                    let result = self.purge();
                    // A walk leaves most of the time to others.
                    purge_at = Instant::now() + self.until_purge().max(start.elapsed());
                    (result, 0)
                }
                Next::Fold(segments) => (self.fold(&segments), segments.len()),
            };
            match result {
                Ok(()) => self.backlog.done(folded),
                Err(error) => {
                    self.stats.fold_errors.inc();
                    if let Some(more) = self.log.allow() {
                        tracing::error!(%error, more, "location journal cannot be folded into SQLite");
                    }
                    // What is left in the journal is read at the next start.
                    if self.backlog.wait_after_failure() {
                        break;
                    }
                }
            }
        }
        let checkpoint = self
            .db
            .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
        if let Err(error) = checkpoint {
            tracing::warn!(%error, "location database: no checkpoint at the end");
        }
    }

    /// Writes the newest version of everything in `segments`, then deletes them.
    fn fold(&mut self, segments: &[Closed]) -> Result<(), FoldError> {
        let mut read = Vec::with_capacity(segments.len());
        for closed in segments {
            match Segment::read(&closed.path) {
                Ok(segment) => read.extend(segment),
                // A round that failed after it had deleted some.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error.into()),
            }
        }
        let mut newest = HashMap::new();
        for segment in &read {
            for entry in segment.entries() {
                let held = newest.entry(entry.aor).or_insert((entry, &segment.listeners));
                if entry.version >= held.0.version {
                    *held = (entry, &segment.listeners);
                }
            }
        }
        let mut newest: Vec<_> = newest.into_values().collect();
        // In the table's order, so that neighbours share pages.
        newest.sort_unstable_by_key(|(entry, _)| {
            let (user, domain) = table::split_aor(entry.aor);
            (domain, user)
        });
        for chunk in newest.chunks(CHUNK) {
            let start = Instant::now();
            self.write(chunk)?;
            self.pace(start.elapsed());
        }
        for closed in segments {
            match fs::remove_file(&closed.path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
                Ok(()) | Err(_) => {}
            }
        }
        Ok(())
    }

    /// Leaves half of the time to others, unless the journal grows towards its bound.
    fn pace(&self, took: Duration) {
        if self.backlog.bytes() < self.options.journal_bytes / 4 && !self.backlog.stopping() {
            std::thread::sleep(took.min(Duration::from_millis(100)));
        }
    }

    fn write(
        &mut self,
        chunk: &[(super::journal::Entry<'_>, &Vec<Box<[u8]>>)],
    ) -> Result<(), rusqlite::Error> {
        let mut deletions = Vec::new();
        let mut folded = 0;
        let tx = self.db.unchecked_transaction()?;
        {
            let mut writer = table::Writer::new(&tx)?;
            for (entry, listeners) in chunk {
                let Ok(record) = codec::decode(entry.record) else {
                    self.stats.undecodable.inc();
                    continue;
                };
                let deleted = self.deleted.get(entry.aor).map(|(version, _)| *version);
                let written = writer.write(&Write {
                    aor: entry.aor,
                    record: &record,
                    version: entry.version,
                    saved_unix_s: entry.saved_unix_s,
                    listeners,
                    deleted,
                })?;
                if written {
                    folded += 1;
                    deletions.push((entry, record.bindings.is_empty()));
                }
            }
        }
        tx.commit()?;
        self.stats.folded.add(folded);
        for (entry, gone) in deletions {
            if gone {
                self.deleted
                    .insert(entry.aor.into(), (entry.version, entry.saved_unix_s));
            } else {
                self.deleted.remove(entry.aor);
            }
        }
        Ok(())
    }

    fn until_purge(&self) -> Duration {
        if self.walks.at.is_some() {
            Duration::ZERO
        } else {
            PURGE_EVERY
        }
    }

    /// One step of the walk under way; else what is done every now and then.
    fn purge(&mut self) -> Result<(), FoldError> {
        let now = unix_s();
        if let Some(after) = &self.walks.at {
            let (removed, next) = table::purge_step(&self.db, after.as_ref(), now, WALK_ROWS)?;
            self.stats.purged.add(removed as u64);
            self.walks.at = next.map(Some);
            return Ok(());
        }
        let forget = now.saturating_sub(REMEMBER_DELETED_S);
        table::purge_deletions(&self.db, forget)?;
        self.deleted.retain(|_, (_, at)| *at >= forget);
        if self.backlog.take_lost() {
            self.walks.add(now);
        }
        self.walks.begin(now);
        Ok(())
    }
}

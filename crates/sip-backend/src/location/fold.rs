//! The folder, which writes ended journal segments into the table.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sip_core::location::codec;
use sip_core::time::{Instant, Now};

use super::backlog::{Backlog, Due, Next};
use super::clock::{Clock, after};
use super::deleted::Deleted;
use super::disk::Disk;
use super::journal::Closed;
use super::segment::{Entry, Segment};
use super::table::{Table, Write, split_aor};
use super::{Options, Stats};
use crate::throttle::LogThrottle;

/// Most addresses-of-record written in one transaction.
const CHUNK: usize = 2_000;
/// Least time for which a deletion is remembered after it was folded. An older version of the same
/// address-of-record may arrive after it, because workers race to the queue by microseconds.
const REMEMBER_DELETED_S: u64 = 600;
/// Interval of dropping deletions that need no longer be remembered, and of checking whether a walk of the
/// table is due ([`Walks`]).
const TIDY_EVERY: Duration = Duration::from_secs(600);
/// Pause after a failed round.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The due times of walks of the whole table for expired bindings. While the server runs, expired bindings
/// are deleted by name: the sweep of the bindings in memory saves the rest of each record. A walk deletes
/// rows that memory does not have: rows that had expired before the start, rows of a listener that is gone,
/// and rows whose deletion was refused.
#[derive(Debug)]
pub(super) struct Walks<P> {
    /// Due times in Unix seconds; there are few.
    due: Vec<u64>,
    /// `Some` during a walk: where it continues, or `None` at its beginning.
    at: Option<Option<P>>,
}

impl<P> Default for Walks<P> {
    fn default() -> Self {
        Self {
            due: Vec::new(),
            at: None,
        }
    }
}

impl<P> Walks<P> {
    /// Adds a walk that is due at this second.
    pub(super) fn add(&mut self, unix_s: u64) {
        self.due.push(unix_s);
    }

    /// Begins a walk, if one is due.
    fn begin(&mut self, now_unix_s: u64) {
        let before = self.due.len();
        self.due.retain(|due| *due > now_unix_s);
        if self.due.len() < before {
            self.at = Some(None);
        }
    }
}

/// The folding end of the store, without threads or clock.
#[derive(Debug)]
pub struct Folder<D: Disk, T: Table> {
    disk: D,
    /// Directory of the journal.
    dir: PathBuf,
    table: T,
    backlog: Arc<Backlog>,
    stats: Arc<Stats>,
    options: Options,
    deleted: Deleted,
    walks: Walks<T::Place>,
    due: Due,
    log: LogThrottle,
}

#[derive(Debug, thiserror::Error)]
enum FoldError<E: std::error::Error> {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("{0}")]
    Table(E),
}

/// The parts of a folder.
pub(super) struct Parts<D, T: Table> {
    pub(super) disk: D,
    pub(super) table: T,
    pub(super) backlog: Arc<Backlog>,
    pub(super) stats: Arc<Stats>,
    pub(super) options: Options,
    pub(super) deleted: Deleted,
    pub(super) walks: Walks<T::Place>,
    pub(super) log: LogThrottle,
}

impl<D: Disk, T: Table> Folder<D, T> {
    pub(super) fn new(now: Now, parts: Parts<D, T>) -> Self {
        let mut folder = Self {
            disk: parts.disk,
            dir: parts.options.journal_dir(),
            table: parts.table,
            backlog: parts.backlog,
            stats: parts.stats,
            options: parts.options,
            deleted: parts.deleted,
            walks: parts.walks,
            due: Due {
                tidy_at: now.instant,
                retry_at: None,
            },
            log: parts.log,
        };
        folder.walks.begin(now.unix_s());
        folder.due.tidy_at = after(now.instant, folder.until_tidy());
        folder
    }

    /// The time at which [`Folder::handle_timeout`] is due, unless something is added before; `None` if the
    /// folder has stopped.
    pub fn poll_timeout(&self, now: Instant) -> Option<Instant> {
        match self.backlog.next(now, &self.options, self.due) {
            Next::Fold(_) | Next::Tidy => Some(now),
            Next::Wait(until) => Some(until),
            Next::Stop => None,
        }
    }

    /// Whether no segment waits.
    pub fn is_idle(&self) -> bool {
        self.backlog.bytes() == 0
    }

    /// Does the tasks that are due.
    pub fn handle_timeout(&mut self, now: Now) {
        let next = self.backlog.next(now.instant, &self.options, self.due);
        self.work(now, next, &mut || {});
    }

    /// Runs until [`Backlog::stop`].
    pub(super) fn run(mut self, clock: Clock) {
        loop {
            let next = self.backlog.wait(clock, &self.options, self.due);
            let now = clock.now();
            match &next {
                Next::Stop => break,
                Next::Tidy => {
                    self.work(now, next, &mut || {});
                    // A walk leaves most of the time to other work.
                    let rested = after(clock.instant(), clock.since(now.instant));
                    self.due.tidy_at = self.due.tidy_at.max(rested);
                }
                Next::Fold(_) | Next::Wait(_) => {
                    let (backlog, most) = (Arc::clone(&self.backlog), self.options.journal_bytes / 4);
                    let mut began = now.instant;
                    self.work(now, next, &mut || {
                        // Half of the time is left to other work, unless the journal grows towards its bound.
                        if backlog.bytes() < most && !backlog.stopping() {
                            std::thread::sleep(clock.since(began).min(Duration::from_millis(100)));
                        }
                        began = clock.instant();
                    });
                }
            }
        }
        if let Err(error) = self.table.finish() {
            tracing::warn!(
                error = error.to_string(),
                "location database: no checkpoint at the end"
            );
        }
    }

    /// Does the task `next`. Calls `between` after each transaction.
    fn work(&mut self, now: Now, next: Next, between: &mut dyn FnMut()) {
        let result = match &next {
            Next::Stop | Next::Wait(_) => return,
            Next::Tidy => self.tidy(now.unix_s()).map(|()| {
                self.due.tidy_at = after(now.instant, self.until_tidy());
                0
            }),
            Next::Fold(segments) => self.fold(segments, between).map(|()| segments.len()),
        };
        match result {
            Ok(folded) => {
                if self.due.retry_at.take().is_some() {
                    tracing::info!("location journal is folded into the table again");
                }
                // A step of a walk must not delay waiting segments.
                if folded > 0 {
                    self.backlog.done(now.instant, folded);
                }
            }
            // Segments left in the journal are read at the next start.
            Err(error) => {
                self.due.retry_at = Some(after(now.instant, RETRY_AFTER));
                self.stats.fold_errors.inc();
                if let Some(more) = self.log.allow() {
                    tracing::error!(
                        error = error.to_string(),
                        more,
                        "location journal cannot be folded into the table"
                    );
                }
            }
        }
    }

    /// Writes the newest version of each record in `segments`, then deletes the segments.
    fn fold(&mut self, segments: &[Closed], between: &mut dyn FnMut()) -> Result<(), FoldError<T::Error>> {
        let mut read = Vec::with_capacity(segments.len());
        for closed in segments {
            match self.disk.read(&closed.path) {
                Ok(bytes) => read.extend(Segment::from_bytes(bytes, &self.options.listeners)),
                // An earlier round failed after it had deleted some segments.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error.into()),
            }
        }
        let mut newest = HashMap::new();
        let mut damaged = 0;
        for segment in &read {
            let mut entries = segment.entries();
            for entry in entries.by_ref() {
                let held = newest.entry(entry.aor).or_insert((entry, &segment.listeners));
                if entry.version >= held.0.version {
                    *held = (entry, &segment.listeners);
                }
            }
            damaged += entries.damaged();
        }
        let mut newest: Vec<_> = newest.into_values().collect();
        // Sorted in the table's order, so that neighbours share pages.
        newest.sort_unstable_by_key(|(entry, _)| {
            let (user, domain) = split_aor(entry.aor);
            (domain, user)
        });
        for chunk in newest.chunks(CHUNK) {
            self.write(chunk).map_err(FoldError::Table)?;
            between();
        }
        for closed in segments {
            match self.disk.remove(&closed.path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
                Ok(()) | Err(_) => {}
            }
        }
        if damaged > 0 {
            self.stats.damaged.add(damaged);
            tracing::error!(damaged, "location journal: damaged entries were left out");
        }
        // A segment that reappeared after a loss of power would outlive the memory of later deletions.
        self.disk.sync_dir(&self.dir)?;
        Ok(())
    }

    fn write(&mut self, chunk: &[(Entry<'_>, &Vec<Box<[u8]>>)]) -> Result<(), T::Error> {
        let mut writes = Vec::with_capacity(chunk.len());
        for (entry, listeners) in chunk {
            let Ok(record) = codec::decode(entry.record) else {
                self.stats.undecodable.inc();
                continue;
            };
            writes.push(Write {
                aor: entry.aor,
                record,
                version: entry.version,
                saved_unix_s: entry.saved_unix_s,
                listeners,
                deleted: self.deleted.version(entry.aor),
            });
        }
        let written = self.table.write(&writes)?;
        for (write, _) in writes.iter().zip(written).filter(|(_, written)| *written) {
            self.stats.folded.inc();
            if write.record.bindings.is_empty() {
                self.deleted.insert(write.aor, write.version, write.saved_unix_s);
            } else {
                self.deleted.remove(write.aor);
            }
        }
        Ok(())
    }

    fn until_tidy(&self) -> Duration {
        if self.walks.at.is_some() {
            Duration::ZERO
        } else {
            TIDY_EVERY
        }
    }

    /// Does one step of the walk under way. If there is none, does the periodic work.
    fn tidy(&mut self, now_unix_s: u64) -> Result<(), FoldError<T::Error>> {
        if let Some(after) = &self.walks.at {
            let (removed, next) = self
                .table
                .purge_step(after.as_ref(), now_unix_s)
                .map_err(FoldError::Table)?;
            self.stats.purged.add(removed);
            self.walks.at = next.map(Some);
            return Ok(());
        }
        let forget = now_unix_s.saturating_sub(REMEMBER_DELETED_S);
        self.table.purge_deletions(forget).map_err(FoldError::Table)?;
        self.deleted.forget(forget);
        if self.backlog.take_lost() {
            self.walks.add(now_unix_s);
        }
        self.walks.begin(now_unix_s);
        Ok(())
    }
}

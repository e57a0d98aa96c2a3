//! The writer: all queued saves go to disk in one write and one sync, then get their results.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use sip_core::id::QueryId;
use sip_core::query::Unavailable;
use sip_core::time::{Instant, Now};

use super::backlog::Backlog;
use super::clock::after;
use super::disk::Disk;
use super::journal::Journal;
use super::segment::Entry;
use super::socket::LocalSocket;
use super::{Options, Save, Stats};
use crate::metrics::Counter;
use crate::throttle::LogThrottle;

/// Pause after a failed write, so that a full disk costs no CPU.
const RETRY_AFTER: Duration = Duration::from_millis(100);
/// Time after a failed write at which the disk is tried, even if there is nothing to save. A balancer sends
/// nothing to a server that cannot save, and must learn when it can again.
const PROBE_AFTER: Duration = Duration::from_secs(5);
/// Weight of an entry besides its address-of-record and record, bytes.
const ENTRY_WEIGHT: usize = 128;
/// Largest write buffer that is kept for reuse.
const KEEP_BUFFER: usize = 8 * 1024 * 1024;

/// The result of a save.
#[derive(Debug)]
pub struct Answered {
    /// The worker of the save.
    pub origin: u16,
    /// The query's id; `None`: no result is wanted.
    pub id: Option<QueryId>,
    /// Whether the record is on stable storage.
    pub saved: Result<(), Unavailable>,
    /// The time at which the save was queued.
    pub asked: Instant,
}

/// A version and its record.
type Versioned = (u64, Box<[u8]>);

/// Refused saves that no caller repeats: the rollback of a refused change, a registration whose response did
/// not wait for the save, an expired binding. The newest of each address-of-record is kept until the disk
/// accepts it.
#[derive(Debug, Default)]
struct Owed {
    /// Version and record by address-of-record.
    saves: BTreeMap<Box<[u8]>, Versioned>,
    bytes: usize,
}

impl Owed {
    /// Keeps a save. Returns `false` if there is no room.
    fn put(&mut self, save: Save, options: &Options) -> bool {
        let held = self.saves.get(&save.aor);
        if held.is_some_and(|(version, _)| *version >= save.version) {
            return true;
        }
        let weight = |record: &[u8]| record.len() + save.aor.len() + ENTRY_WEIGHT;
        let before = held.map_or(0, |(_, record)| weight(record));
        let bytes = self.bytes - before + weight(&save.record);
        // All of them form one batch, for which the journal must have room.
        let journal = usize::try_from(options.journal_bytes).unwrap_or(usize::MAX);
        if bytes > options.queue_bytes.min(journal) / 4 {
            return false;
        }
        self.bytes = bytes;
        self.saves.insert(save.aor, (save.version, save.record));
        true
    }
}

/// The writing end of the store, without threads or clock.
#[derive(Debug)]
pub struct Writer<D: Disk> {
    backlog: Arc<Backlog>,
    stats: Arc<Stats>,
    journal: Journal<D>,
    options: Options,
    failed_at: Option<Instant>,
    owed: Owed,
    /// The time at which owed saves are tried again, if there is nothing else to be saved.
    retry_at: Option<Instant>,
    buffer: Vec<u8>,
    log: LogThrottle,
}

impl<D: Disk> Writer<D> {
    pub(super) fn new(
        backlog: Arc<Backlog>,
        stats: Arc<Stats>,
        journal: Journal<D>,
        options: Options,
        log: LogThrottle,
    ) -> Self {
        Self {
            backlog,
            stats,
            journal,
            options,
            failed_at: None,
            owed: Owed::default(),
            retry_at: None,
            buffer: Vec::new(),
            log,
        }
    }

    /// Writes all of `saves`, each with the time at which it was queued. Appends their results to `answered`.
    pub fn commit(&mut self, now: Now, saves: &mut Vec<(Save, Instant)>, answered: &mut Vec<Answered>) {
        if saves.is_empty() {
            return;
        }
        let result = self.save(now, saves.iter().map(|(save, _)| save));
        for (save, asked) in saves.drain(..) {
            let saved = if Entry::fits(&save.aor, &save.record) {
                result
            } else {
                self.stats.refused_size.inc();
                Err(Unavailable)
            };
            answered.push(Answered {
                origin: save.origin,
                id: save.id,
                saved,
                asked,
            });
            if result.is_err() && save.id.is_none() && Entry::fits(&save.aor, &save.record) {
                self.owe(now.instant, save);
            }
        }
    }

    /// Keeps a refused save for a later attempt.
    fn owe(&mut self, now: Instant, save: Save) {
        self.retry_at = Some(after(now, RETRY_AFTER));
        if !self.owed.put(save, &self.options) {
            self.backlog.note_lost();
        }
    }

    /// Writes these saves, and the owed ones.
    fn save<'a>(
        &mut self,
        now: Now,
        saves: impl Iterator<Item = &'a Save> + Clone,
    ) -> Result<(), Unavailable> {
        if self
            .failed_at
            .is_some_and(|at| now.instant < after(at, RETRY_AFTER))
        {
            self.stats.failed_write.add(saves.count() as u64);
            self.backlog.note_lost();
            return Err(Unavailable);
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        let mut count = 0;
        let owed = self.owed.saves.iter();
        let owed = owed.map(|(aor, (version, record))| (*version, aor, record));
        let saves = saves.map(|save| (save.version, &save.aor, &save.record));
        for (version, aor, record) in owed.chain(saves) {
            if Entry::fits(aor, record) {
                Entry {
                    version,
                    saved_unix_s: now.unix_s(),
                    aor,
                    record,
                }
                .write(&mut buffer);
                count += 1;
            }
        }
        let result = self.write(now.instant, &buffer, count);
        if result.is_ok() {
            self.owed = Owed::default();
            self.retry_at = None;
        }
        if self.journal.is_spoilt() {
            self.retry_at = Some(after(now.instant, RETRY_AFTER));
        }
        if buffer.capacity() <= KEEP_BUFFER {
            self.buffer = buffer;
        }
        result
    }

    fn write(&mut self, now: Instant, entries: &[u8], count: u64) -> Result<(), Unavailable> {
        if count == 0 {
            return Ok(());
        }
        let backlog = Arc::clone(&self.backlog);
        let owed = self.owed.saves.len() as u64;
        let refuse = |counter: &Counter| {
            // Owed saves were counted before.
            counter.add(count - owed);
            backlog.note_lost();
            Err(Unavailable)
        };
        let held = self.backlog.bytes() + self.journal.active().map_or(0, |(bytes, _)| bytes);
        self.stats.journal_bytes.set(held);
        if held.saturating_add(entries.len() as u64) > self.options.journal_bytes {
            if let Some(more) = self.log.allow() {
                tracing::error!(
                    held,
                    more,
                    "location journal is full: registrations are refused until it is folded"
                );
            }
            self.end_segment(now, true);
            return refuse(&self.stats.refused_journal);
        }
        let result = self.journal.append(now, entries);
        self.stats.batch.observe(count, 1);
        match result {
            Ok(()) => {
                self.works();
                self.stats.saved.add(count);
                Ok(())
            }
            Err(error) => {
                self.fails(now, &error);
                refuse(&self.stats.failed_write)
            }
        }
    }

    fn works(&mut self) {
        if self.failed_at.take().is_some() {
            self.stats.failing.set(0);
            tracing::info!("location journal: writing works again");
        }
    }

    fn fails(&mut self, now: Instant, error: &std::io::Error) {
        self.failed_at = Some(now);
        self.stats.failing.set(1);
        self.stats.write_errors.inc();
        if let Some(more) = self.log.allow() {
            tracing::error!(
                error = error.to_string(),
                more,
                "location journal: registrations cannot be saved"
            );
        }
    }

    /// Whether the last save, or the last attempt to write, failed.
    pub fn is_failing(&self) -> bool {
        self.failed_at.is_some()
    }

    /// The time at which a failed disk is tried again; `None` if the disk works.
    fn probe_at(&self) -> Option<Instant> {
        self.failed_at.map(|at| after(at, PROBE_AFTER))
    }

    /// Tries the disk by appending nothing.
    fn probe(&mut self, now: Instant) {
        match self.journal.append(now, &[]) {
            Ok(()) => self.works(),
            Err(error) => {
                self.fails(now, &error);
                if self.journal.is_spoilt() {
                    self.retry_at.get_or_insert(after(now, RETRY_AFTER));
                }
            }
        }
    }

    /// The time at which [`Writer::handle_timeout`] is due; `None` until something is saved.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let active = self.journal.active();
        let ends = active.map(|(_, since)| after(since, self.options.fold_every));
        ends.into_iter().chain(self.retry_at).chain(self.probe_at()).min()
    }

    /// Ends the segment if it is old or large enough, and repeats what failed. To be called after each batch,
    /// too.
    pub fn handle_timeout(&mut self, now: Now) {
        if self.retry_at.is_some_and(|at| at <= now.instant) {
            self.retry_at = Some(after(now.instant, RETRY_AFTER));
            self.try_again(now);
        }
        if self.probe_at().is_some_and(|at| at <= now.instant) {
            self.probe(now.instant);
        }
        if let Some((bytes, since)) = self.journal.active() {
            let old = now.instant >= after(since, self.options.fold_every);
            if old || bytes >= self.options.segment_bytes {
                self.end_segment(now.instant, old);
            }
        }
    }

    /// Cuts off refused bytes, and writes the owed saves. Returns whether nothing of either is left.
    fn try_again(&mut self, now: Now) -> bool {
        let mended = match self.journal.mend() {
            Ok(()) => true,
            Err(error) => {
                if let Some(more) = self.log.allow() {
                    tracing::error!(
                        error = error.to_string(),
                        more,
                        "location journal: refused entries cannot be cut off"
                    );
                }
                false
            }
        };
        // Does nothing if no save is owed.
        let done = mended && self.save(now, std::iter::empty()).is_ok();
        if done {
            self.retry_at = None;
        }
        done
    }

    /// Ends the writer, and gives everything to the folder. Returns `false` if files still hold refused bytes
    /// or lack owed saves. The call should then be repeated after a while.
    pub fn finish(&mut self, now: Now) -> bool {
        self.failed_at = None;
        let done = self.try_again(now);
        self.end_segment(now.instant, true);
        done
    }

    /// Ends the segment, and gives it to the folder. If `urgent`, it is folded at once.
    pub fn end_segment(&mut self, now: Instant, urgent: bool) {
        self.journal.roll();
        self.backlog.add(now, self.journal.take_closed(), urgent);
    }

    /// Sets the sockets that listener ids mean from here on.
    pub fn set_listeners(&mut self, listeners: &[LocalSocket]) {
        self.journal.set_listeners(listeners);
    }
}

//! What answers: everything queued, one write, one sync.

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
use crate::quiet::Quiet;

/// After a failed write nothing is tried for this long, so that a full disk costs no CPU.
const RETRY_AFTER: Duration = Duration::from_millis(100);
/// Write buffers larger than this are given back.
const KEEP_BUFFER: usize = 8 * 1024 * 1024;

/// What became of a save.
#[derive(Debug)]
pub struct Answered {
    /// The worker that wants the answer,
    pub origin: u16,
    /// and its question; `None`: no answer is wanted.
    pub id: Option<QueryId>,
    /// Whether it is on stable storage.
    pub saved: Result<(), Unavailable>,
    /// When it was asked.
    pub asked: Instant,
}

/// The writing end of the store, without thread or clock.
#[derive(Debug)]
pub struct Writer<D: Disk> {
    backlog: Arc<Backlog>,
    stats: Arc<Stats>,
    journal: Journal<D>,
    options: Options,
    failed_at: Option<Instant>,
    buffer: Vec<u8>,
    log: Quiet,
}

impl<D: Disk> Writer<D> {
    pub(super) fn new(
        backlog: Arc<Backlog>,
        stats: Arc<Stats>,
        journal: Journal<D>,
        options: Options,
        log: Quiet,
    ) -> Self {
        Self {
            backlog,
            stats,
            journal,
            options,
            failed_at: None,
            buffer: Vec::new(),
            log,
        }
    }

    /// Writes all of `saves`, each with when it was asked; says in `answered` what became of them.
    pub fn commit(&mut self, now: Now, saves: &mut Vec<(Save, Instant)>, answered: &mut Vec<Answered>) {
        if saves.is_empty() {
            return;
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        let mut count = 0;
        for (save, _) in saves.iter() {
            if Entry::fits(&save.aor, &save.record) {
                Entry {
                    version: save.version,
                    saved_unix_s: now.unix_s(),
                    aor: &save.aor,
                    record: &save.record,
                }
                .write(&mut buffer);
                count += 1;
            }
        }
        let result = self.write(now.instant, &buffer, count);
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
        }
        if buffer.capacity() <= KEEP_BUFFER {
            self.buffer = buffer;
        }
    }

    fn write(&mut self, now: Instant, entries: &[u8], count: u64) -> Result<(), Unavailable> {
        if count == 0 {
            return Ok(());
        }
        let backlog = Arc::clone(&self.backlog);
        let refuse = |counter: &Counter| {
            counter.add(count);
            backlog.note_lost();
            Err(Unavailable)
        };
        if self.failed_at.is_some_and(|at| now < after(at, RETRY_AFTER)) {
            return refuse(&self.stats.failed_write);
        }
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
                if self.failed_at.take().is_some() {
                    tracing::info!("location journal: writing works again");
                }
                self.stats.saved.add(count);
                Ok(())
            }
            Err(error) => {
                self.failed_at = Some(now);
                self.stats.write_errors.inc();
                if let Some(more) = self.log.allow() {
                    tracing::error!(%error, more, "location journal: registrations cannot be saved");
                }
                refuse(&self.stats.failed_write)
            }
        }
    }

    /// When [`Writer::handle_timeout`] is to be called; `None`: not before something is saved.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let (_, since) = self.journal.active()?;
        Some(after(since, self.options.fold_every))
    }

    /// Ends the segment where it is old or large enough. To be called after each batch too.
    pub fn handle_timeout(&mut self, now: Instant) {
        if let Some((bytes, since)) = self.journal.active() {
            let old = now >= after(since, self.options.fold_every);
            if old || bytes >= self.options.segment_bytes {
                self.end_segment(now, old);
            }
        }
    }

    /// Ends the segment, and gives it to the folder; `urgent`: it is to be folded at once.
    pub fn end_segment(&mut self, now: Instant, urgent: bool) {
        self.journal.roll();
        self.backlog.add(now, self.journal.take_closed(), urgent);
    }

    /// Listener ids mean these sockets from here on.
    pub fn set_listeners(&mut self, listeners: &[LocalSocket]) {
        self.journal.set_listeners(listeners);
    }
}

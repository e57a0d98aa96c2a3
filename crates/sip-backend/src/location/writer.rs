//! The thread that answers: everything queued, one write, one sync.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use sip_core::query::{Answer, Unavailable};

use super::fold::{Backlog, FoldRequest};
use super::journal::{Entry, Journal};
use super::socket::LocalSocket;
use super::{Options, Save, Stats};
use crate::AnswerSink;
use crate::metrics::Counter;
use crate::queue::{Queue, Taken};
use crate::quiet::Quiet;

/// After a failed write nothing is tried for this long, so that a full disk costs no CPU.
const RETRY_AFTER: Duration = Duration::from_millis(100);
/// Write buffers larger than this are given back.
const KEEP_BUFFER: usize = 8 * 1024 * 1024;

/// What the writer is given.
#[derive(Debug)]
pub(super) enum Item {
    /// Write this; asked at that time.
    Save(Save, Instant),
    /// Listener ids mean these sockets from here on.
    Listeners(Vec<LocalSocket>),
    /// End the segment and fold at once.
    Fold(Arc<FoldRequest>),
}

impl Item {
    /// Bytes held.
    pub(super) fn weight(&self) -> usize {
        match self {
            Self::Save(save, _) => save.aor.len() + save.record.len() + size_of::<Self>(),
            Self::Listeners(_) | Self::Fold(_) => 0,
        }
    }
}

/// Seconds since 1970; 0 where the clock is before that.
pub(super) fn unix_s() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

#[derive(Debug)]
pub(super) struct Writer {
    pub(super) queue: Arc<Queue<Item>>,
    pub(super) backlog: Arc<Backlog>,
    pub(super) stats: Arc<Stats>,
    pub(super) sink: Arc<dyn AnswerSink>,
    pub(super) journal: Journal,
    pub(super) options: Options,
    pub(super) failed_at: Option<Instant>,
    pub(super) log: Quiet,
}

impl Writer {
    /// Runs until the queue is closed and empty.
    pub(super) fn run(mut self) {
        let mut items = Vec::new();
        let mut saves = Vec::new();
        let mut buffer = Vec::new();
        loop {
            let taken = self.queue.take(&mut items, self.until_roll());
            for item in items.drain(..) {
                match item {
                    Item::Save(save, asked) => saves.push((save, asked)),
                    Item::Listeners(listeners) => {
                        self.commit(&mut saves, &mut buffer);
                        self.journal.set_listeners(&listeners);
                    }
                    Item::Fold(request) => {
                        self.commit(&mut saves, &mut buffer);
                        self.journal.roll();
                        self.hand_over(true);
                        self.backlog.request(request);
                    }
                }
            }
            self.commit(&mut saves, &mut buffer);
            self.roll_if_due();
            if taken == Taken::Closed {
                break;
            }
        }
        self.journal.roll();
        self.hand_over(true);
    }

    /// How long the active segment may still grow.
    fn until_roll(&self) -> Duration {
        let longest = self.options.fold_every.max(Duration::from_millis(10));
        self.journal
            .active()
            .map_or(longest, |(_, since)| longest.saturating_sub(since.elapsed()))
    }

    fn roll_if_due(&mut self) {
        if let Some((bytes, since)) = self.journal.active() {
            let old = since.elapsed() >= self.options.fold_every;
            if old || bytes >= self.options.segment_bytes {
                self.journal.roll();
                self.hand_over(old);
            }
        }
    }

    /// Gives ended segments to the folding thread.
    fn hand_over(&mut self, urgent: bool) {
        self.backlog.add(self.journal.take_closed(), urgent);
    }

    /// Writes and answers all of `saves`.
    fn commit(&mut self, saves: &mut Vec<(Save, Instant)>, buffer: &mut Vec<u8>) {
        if saves.is_empty() {
            return;
        }
        buffer.clear();
        let now = unix_s();
        let mut written = 0;
        for (
            Save {
                aor, record, version, ..
            },
            _,
        ) in saves.iter()
        {
            if Entry::fits(aor, record) {
                Entry {
                    version: *version,
                    saved_unix_s: now,
                    aor,
                    record,
                }
                .write(buffer);
                written += 1;
            }
        }
        let result = self.write(buffer, written);
        for (save, asked) in saves.drain(..) {
            let saved = if Entry::fits(&save.aor, &save.record) {
                result
            } else {
                self.stats.refused_size.inc();
                Err(Unavailable)
            };
            self.stats.latency.observe_duration(asked.elapsed(), 1);
            if let Some(id) = save.id {
                self.sink.answer(save.origin, id, Answer::Saved(saved));
            }
        }
        self.sink.flush();
        if buffer.capacity() > KEEP_BUFFER {
            *buffer = Vec::new();
        }
    }

    fn write(&mut self, entries: &[u8], count: u64) -> Result<(), Unavailable> {
        if count == 0 {
            return Ok(());
        }
        let backlog = Arc::clone(&self.backlog);
        let refuse = |counter: &Counter| {
            counter.add(count);
            backlog.note_lost();
            Err(Unavailable)
        };
        if self.failed_at.is_some_and(|at| at.elapsed() < RETRY_AFTER) {
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
            self.journal.roll();
            self.hand_over(true);
            return refuse(&self.stats.refused_journal);
        }
        let start = Instant::now();
        let result = self.journal.append(entries);
        self.stats.sync.observe_duration(start.elapsed(), 1);
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
                self.failed_at = Some(Instant::now());
                self.stats.write_errors.inc();
                if let Some(more) = self.log.allow() {
                    tracing::error!(%error, more, "location journal: registrations cannot be saved");
                }
                refuse(&self.stats.failed_write)
            }
        }
    }
}

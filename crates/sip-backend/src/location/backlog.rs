//! The backlog between writer and folder: ended segments.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use sip_core::time::Instant;

use super::Options;
use super::clock::{Clock, after};
use super::journal::Closed;

/// A request to fold everything saved so far into the table; its caller waits.
#[derive(Debug, Default)]
pub(super) struct FoldRequest {
    done: Mutex<bool>,
    wake: Condvar,
}

impl FoldRequest {
    /// Waits until `deadline`. Returns whether the request is done.
    pub(super) fn wait(&self, deadline: std::time::Instant) -> bool {
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

/// Segments that wait to be folded. [`Options::journal_bytes`] bounds their number.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct State {
    segments: Vec<Closed>,
    bytes: u64,
    /// Most bytes of a round, doubled by each completed round. After a start a round is one segment, so that
    /// a server that is killed again and again folds some of its journal each time.
    round: u64,
    oldest: Option<Instant>,
    urgent: bool,
    stop: bool,
    lost: bool,
    requests: Vec<Arc<FoldRequest>>,
}

/// The next task of the folder.
#[derive(Debug)]
pub(super) enum Next {
    /// Fold these segments.
    Fold(Vec<Closed>),
    /// Tidy the table.
    Tidy,
    /// Nothing is due before this instant, unless something is added.
    Wait(Instant),
    /// Stop.
    Stop,
}

/// Due times that the folder itself has set.
#[derive(Clone, Copy, Debug)]
pub(super) struct Due {
    /// The time at which the table is to be tidied.
    pub(super) tidy_at: Instant,
    /// Earliest time of the next attempt, if the last round failed.
    pub(super) retry_at: Option<Instant>,
}

impl State {
    /// The next task. A round has the oldest segments, up to `options.fold_bytes` together, and fewer at
    /// first.
    fn next(&mut self, now: Instant, options: &Options, due: Due) -> Next {
        if let Some(at) = due.retry_at {
            if self.stop {
                return Next::Stop;
            }
            if at > now {
                return Next::Wait(at);
            }
        }
        let fold_at = self.oldest.map(|oldest| after(oldest, options.fold_every));
        let ready = self.urgent || self.stop || self.bytes >= options.fold_bytes;
        if self.segments.is_empty() {
            self.urgent = false;
            for request in self.requests.drain(..) {
                request.finish();
            }
            if self.stop {
                return Next::Stop;
            }
        } else if ready || fold_at.is_some_and(|at| at <= now) {
            let mut bytes = 0;
            let most = self.round.min(options.fold_bytes);
            let fits = |segment: &&Closed| {
                bytes += segment.bytes;
                bytes <= most
            };
            let count = self.segments.iter().take_while(fits).count().max(1);
            return Next::Fold(self.segments.iter().take(count).cloned().collect());
        }
        if due.tidy_at <= now {
            return Next::Tidy;
        }
        Next::Wait(fold_at.map_or(due.tidy_at, |at| at.min(due.tidy_at)))
    }
}

impl Backlog {
    /// Adds segments. If `urgent`, they are folded now.
    pub(super) fn add(&self, now: Instant, segments: Vec<Closed>, urgent: bool) {
        let mut state = self.state.lock();
        if !segments.is_empty() {
            state.oldest.get_or_insert(now);
            state.bytes += segments.iter().map(|segment| segment.bytes).sum::<u64>();
            state.segments.extend(segments);
        }
        state.urgent |= urgent;
        self.wake.notify_one();
    }

    /// Completes `request` once everything added so far is folded.
    pub(super) fn request(&self, request: Arc<FoldRequest>) {
        let mut state = self.state.lock();
        state.requests.push(request);
        state.urgent = true;
        self.wake.notify_one();
    }

    /// Bytes of the waiting segments.
    pub(super) fn bytes(&self) -> u64 {
        self.state.lock().bytes
    }

    /// Notes lost saves: the table may keep rows that no later save deletes by name.
    pub(super) fn note_lost(&self) {
        self.state.lock().lost = true;
    }

    pub(super) fn take_lost(&self) -> bool {
        std::mem::take(&mut self.state.lock().lost)
    }

    /// Stops the folder once it has done what is possible in a short time.
    pub(super) fn stop(&self) {
        self.state.lock().stop = true;
        self.wake.notify_one();
    }

    pub(super) fn stopping(&self) -> bool {
        self.state.lock().stop
    }

    /// The task that is due now.
    pub(super) fn next(&self, now: Instant, options: &Options, due: Due) -> Next {
        self.state.lock().next(now, options, due)
    }

    /// Waits until a task is due.
    pub(super) fn wait(&self, clock: Clock, options: &Options, due: Due) -> Next {
        let mut state = self.state.lock();
        loop {
            let now = clock.instant();
            match state.next(now, options, due) {
                Next::Wait(until) => {
                    let wait = Duration::from_micros(until.micros_since(now));
                    self.wake.wait_for(&mut state, wait);
                }
                next @ (Next::Fold(_) | Next::Tidy | Next::Stop) => return next,
            }
        }
    }

    /// Removes the first `count` segments, which are folded.
    pub(super) fn done(&self, now: Instant, count: usize) {
        let mut state = self.state.lock();
        let bytes: u64 = state.segments.drain(..count).map(|segment| segment.bytes).sum();
        state.bytes = state.bytes.saturating_sub(bytes);
        state.round = state.round.max(bytes).saturating_mul(2);
        state.oldest = (!state.segments.is_empty()).then_some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers of segments that the rounds fold, if nothing is added.
    fn rounds(backlog: &Backlog, options: &Options) -> Vec<usize> {
        let (now, due) = (
            Instant::default(),
            Due {
                tidy_at: after(Instant::default(), Duration::from_secs(1)),
                retry_at: None,
            },
        );
        let mut found = Vec::new();
        while let Next::Fold(segments) = backlog.next(now, options, due) {
            found.push(segments.len());
            backlog.done(now, segments.len());
        }
        found
    }

    #[test]
    fn rounds_are_small_at_first_and_bounded_then() {
        let mut options = Options::new("unused", Vec::new());
        options.fold_bytes = 100;
        let segments = |count: usize, bytes: u64| {
            let segment = |n: usize| Closed {
                path: n.to_string().into(),
                bytes,
            };
            (0..count).map(segment).collect::<Vec<_>>()
        };
        let backlog = Backlog::default();
        backlog.add(Instant::default(), segments(30, 10), true);
        assert_eq!(rounds(&backlog, &options), [1, 2, 4, 8, 10, 5]);
        // The size of rounds remains as it was.
        backlog.add(Instant::default(), segments(20, 10), true);
        assert_eq!(rounds(&backlog, &options), [10, 10]);
        // At least one segment is folded, whatever its size.
        backlog.add(Instant::default(), segments(2, 1_000), true);
        assert_eq!(rounds(&backlog, &options), [1, 1]);
    }
}

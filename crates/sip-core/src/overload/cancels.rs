//! CANCELs that may have overtaken their INVITEs.

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use super::Schedule;
use crate::time::{Instant, Millis, Now};
use crate::transport::Flow;

/// CANCELs that are held, their bytes, and those of one. Beyond them, a CANCEL is handled at once.
const MOST: usize = 512;
const MOST_BYTES: usize = 128 << 10;
const LONGEST: usize = 4 << 10;

/// The CANCELs of one listener that are held for calls, in the order in which they came.
#[derive(Debug)]
pub struct Cancels {
    held: VecDeque<Held>,
    bytes: usize,
    most_wait: Millis,
}

#[derive(Debug)]
struct Held {
    /// The number of calls read from which on all has been read that came before.
    due: u64,
    /// When it is handled in any case.
    until: Instant,
    cancel: Cancel,
}

/// A CANCEL that was held.
#[derive(Debug)]
pub struct Cancel {
    /// The flow that it came by.
    pub flow: Flow,
    /// Whether another worker handed it over.
    pub is_handed_over: bool,
    /// The message.
    pub bytes: Box<[u8]>,
}

/// Whether a message is a CANCEL. Methods are case-sensitive (RFC 3261 §7.1).
pub fn is_cancel(bytes: &[u8]) -> bool {
    bytes.starts_with(b"CANCEL ")
}

impl Cancels {
    /// None yet. None will be held for longer than `most_wait`, which is less than until its sender repeats it.
    pub const fn new(most_wait: Millis) -> Self {
        Self {
            held: VecDeque::new(),
            bytes: 0,
            most_wait,
        }
    }

    /// Whether none is held.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Holds a CANCEL whose INVITE is not known until the calls that wait have been read. `false`: there is no room for
    /// it, and it is to be handled now.
    pub fn try_hold(
        &mut self,
        calls: &mut Schedule,
        now: Now,
        flow: Flow,
        is_handed_over: bool,
        bytes: &[u8],
    ) -> bool {
        let fits = bytes.len() <= LONGEST && self.held.len() < MOST && self.bytes + bytes.len() <= MOST_BYTES;
        if !fits {
            return false;
        }
        self.bytes += bytes.len();
        self.held.push_back(Held {
            due: calls.read() + calls.most_waiting(),
            until: now.instant + self.most_wait,
            cancel: Cancel {
                flow,
                is_handed_over,
                bytes: bytes.into(),
            },
        });
        // The kernel may not have said yet that there is something.
        calls.note_ready();
        true
    }

    /// The next one that need not wait any longer. `is_empty`: a batch of calls was empty since it came. (A short batch
    /// says nothing: an error may have ended it.)
    pub fn next(&mut self, calls: &Schedule, now: Now, is_empty: bool) -> Option<Cancel> {
        let read = calls.read();
        let ends = |held: &mut Held| is_empty || held.due <= read || held.until <= now.instant;
        let Held { cancel, .. } = self.held.pop_front_if(ends)?;
        self.bytes -= cancel.bytes.len();
        Some(cancel)
    }
}

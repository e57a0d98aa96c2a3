//! Look-ups that no request waits for: of records that have ended and serve meanwhile, and of records that a
//! request will need next.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::query::RecordKind;
use crate::time::{Instant, Millis};

/// The most look-ups under way that no request waits for, for one cache. At the limit another look-up is left
/// out and counted; the next request for the name tries again.
pub const MAX_REFRESHES: usize = 64;
/// Milliseconds after which a look-up without a stored result makes room for another.
const FORGOTTEN_AFTER: Millis = Millis(15_000);

/// The counts of a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounters {
    /// Times that a record set served after its time to live.
    pub stale: u64,
    /// Look-ups made without a request that waits for them.
    pub refreshes: u64,
    /// Look-ups left out, because too many were under way.
    pub refreshes_refused: u64,
    /// Record sets that left before their end, to make room.
    pub evicted: u64,
}

#[derive(Debug)]
struct Wanted {
    name: Box<[u8]>,
    kind: RecordKind,
    since: Instant,
    asked: bool,
}

#[derive(Debug, Default)]
pub(super) struct Refreshes {
    wanted: Vec<Wanted>,
    /// The number of them that have not been queried yet.
    unasked: usize,
    pub(super) counters: CacheCounters,
}

impl Refreshes {
    /// Notes that this record set is wanted, unless it is noted already.
    pub(super) fn want(&mut self, now: Instant, name: &[u8], kind: RecordKind) {
        if self.wanted.iter().any(|w| w.kind == kind && *w.name == *name) {
            return;
        }
        if self.wanted.len() >= MAX_REFRESHES {
            self.wanted.retain(|w| w.since + FORGOTTEN_AFTER > now);
            self.unasked = self.wanted.iter().filter(|w| !w.asked).count();
        }
        if self.wanted.len() >= MAX_REFRESHES {
            self.counters.refreshes_refused += 1;
            return;
        }
        self.wanted.push(Wanted {
            name: Box::from(name),
            kind,
            since: now,
            asked: false,
        });
        self.unasked += 1;
    }

    /// The next record set to query.
    pub(super) fn poll(&mut self) -> Option<(Box<[u8]>, RecordKind)> {
        if self.unasked == 0 {
            return None;
        }
        let wanted = self.wanted.iter_mut().find(|w| !w.asked)?;
        wanted.asked = true;
        self.unasked -= 1;
        self.counters.refreshes += 1;
        Some((wanted.name.clone(), wanted.kind))
    }

    /// Notes that a result came, for any look-up.
    pub(super) fn answered(&mut self, name: &[u8], kind: RecordKind) {
        if let Some(at) = self
            .wanted
            .iter()
            .position(|w| w.kind == kind && *w.name == *name)
        {
            let wanted = self.wanted.remove(at);
            self.unasked -= usize::from(!wanted.asked);
        }
    }
}

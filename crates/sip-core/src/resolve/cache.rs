//! Record sets by name and type, each with the times of its life.
//!
//! ```text
//!   stored            TTL over            + STALE          + MAX_STALE
//!     │  as it is        │  once more while  │  only if the     │
//!     └──────────────────┴─ it is asked for ─┴─ look-up fails ──┴──► gone
//! ```
//!
//! So a name service that is slow or dead stops no request to a name that was known before (RFC 8767
//! in kind). A change of records is seen by the first request after the new result.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::RefCell;

use smallvec::SmallVec;

use super::refresh::{CacheCounters, Refreshes};
use super::services;
use crate::query::{Record, RecordKind, Records, Unavailable};
use crate::time::{Instant, Millis};

/// The shortest time that a result is kept, seconds. A result with a TTL of 0 still serves the request that
/// asked, while it waits for the next one.
const MIN_TTL_S: u32 = 5;
/// The longest time that a result is kept, even if its TTL is longer, seconds.
const MAX_TTL_S: u32 = 86_400;
/// Seconds for which an expired result serves while it is queried again, counted from its expiry, or from the
/// last failed look-up if there was one.
pub(super) const STALE_S: u32 = 60;
/// Seconds after its end for which a result serves at all, however often its look-up fails.
pub(super) const MAX_STALE_S: u32 = 3_600;
/// Seconds for which a failed look-up is not repeated: long enough to serve the requests that wait, short
/// enough to recover at once.
pub(super) const UNAVAILABLE_S: u32 = 1;
/// Seconds for which requests pass by a failed look-up, while it is repeated, if another way was found. This
/// is longer than the three look-ups one after another that a name takes.
pub(super) const FAILED_S: u32 = 30;
/// The most records of one set that are kept, the most preferred of them.
pub(super) const MAX_RECORDS: usize = 64;

const KINDS: usize = 4;

const fn seconds(s: u32) -> Millis {
    Millis(s * 1000)
}

#[derive(Clone, Debug)]
struct Entry {
    /// The last result; `None`: there was none, or it is too old.
    records: Option<Vec<Record>>,
    /// The time until which the result is as good as new.
    fresh_until: Instant,
    /// The time until which the result serves while it is queried anew.
    stale_until: Instant,
    /// The time at which the latest look-up failed, if it did.
    failed_at: Option<Instant>,
    /// The place of the entry in [`Cache::leaving`].
    leaves: Leaves,
}

/// The order in which entries leave if there is no room. Names that do not exist push out others of that kind
/// before names that do exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Leaves {
    has_records: bool,
    at: Instant,
}

/// A bounded cache of record sets, one per worker. The maps of the cache are ordered, so that equal inputs
/// give equal results.
#[derive(Debug)]
pub struct Cache {
    entries: [BTreeMap<Arc<[u8]>, Entry>; KINDS],
    leaving: BTreeSet<(Leaves, u8, Arc<[u8]>)>,
    limit: usize,
    /// The look-ups that [`Cache::locate`] wants.
    refreshes: RefCell<Refreshes>,
}

const fn kind_index(kind: RecordKind) -> u8 {
    match kind {
        RecordKind::A => 0,
        RecordKind::Aaaa => 1,
        RecordKind::Srv => 2,
        RecordKind::Naptr => 3,
    }
}

/// The state of a record set in the cache.
#[derive(Clone, Copy, Debug)]
pub(super) enum Found<'a> {
    /// The record set is fresh.
    Fresh(&'a [Record]),
    /// The record set has ended; `tried`: a new look-up failed just now.
    Stale { records: &'a [Record], tried: bool },
    /// The look-up failed; `tried`: just now.
    Failed { tried: bool },
    /// The record set must be queried.
    Missing,
}

impl Cache {
    /// An empty cache for at most `limit` record sets.
    pub fn new(limit: usize) -> Self {
        Self {
            entries: [const { BTreeMap::new() }; KINDS],
            leaving: BTreeSet::new(),
            limit: limit.max(1),
            refreshes: RefCell::default(),
        }
    }

    /// The number of record sets held.
    pub fn len(&self) -> usize {
        self.leaving.len()
    }

    /// Whether the cache is empty.
    pub fn is_empty(&self) -> bool {
        self.leaving.is_empty()
    }

    /// The counts so far.
    pub fn counters(&self) -> CacheCounters {
        self.refreshes
            .try_borrow()
            .map(|r| r.counters)
            .unwrap_or_default()
    }

    /// The next record set that is to be queried, although no request waits for it. At most
    /// [`super::MAX_REFRESHES`] are under way until their results come by [`Cache::store`], failures
    /// included. If this method is not called, requests wait unnecessarily.
    #[must_use]
    pub fn poll_refresh(&mut self) -> Option<(Box<[u8]>, RecordKind)> {
        self.refreshes.get_mut().poll()
    }

    /// Keeps a result for its TTL. A failure leaves the last result in place for some time.
    pub fn store(
        &mut self,
        now: Instant,
        name: &[u8],
        kind: RecordKind,
        answer: Result<Records, Unavailable>,
    ) {
        let name: Arc<[u8]> = name.to_ascii_lowercase().into();
        self.refreshes.get_mut().answered(&name, kind);
        let old = self.remove(&name, kind);
        let mut entry = match answer {
            Ok(answer) => answered(now, kind, answer),
            Err(Unavailable) => failed(now, old),
        };
        while self.len() >= self.limit {
            self.make_room(now);
        }
        entry.leaves = leaves(&entry);
        let index = kind_index(kind);
        self.leaving.insert((entry.leaves, index, name.clone()));
        if let Some(entries) = self.entries.get_mut(usize::from(index)) {
            entries.insert(name, entry);
        }
    }

    fn remove(&mut self, name: &Arc<[u8]>, kind: RecordKind) -> Option<Entry> {
        let index = kind_index(kind);
        let entry = self.entries.get_mut(usize::from(index))?.remove(&**name)?;
        self.leaving.remove(&(entry.leaves, index, name.clone()));
        Some(entry)
    }

    /// Removes one record set, in this order: a set that is too old to serve; the name without records that
    /// leaves first; the set that leaves first.
    fn make_room(&mut self, now: Instant) {
        let with_records = Leaves {
            has_records: true,
            at: Instant::ORIGIN,
        };
        let from = (with_records, 0, Arc::from(&[][..]));
        let dead = self
            .leaving
            .range(from..)
            .next()
            .filter(|(l, ..)| l.at <= now)
            .cloned();
        let Some(out) = dead.or_else(|| self.leaving.first().cloned()) else {
            return;
        };
        self.leaving.remove(&out);
        let (leaves, index, name) = out;
        if let Some(entries) = self.entries.get_mut(usize::from(index)) {
            entries.remove(&name);
        }
        if leaves.at > now {
            self.refreshes.get_mut().counters.evicted += 1;
        }
    }

    /// The state of the records of `name`, which is in lower case.
    pub(super) fn find(&self, now: Instant, name: &[u8], kind: RecordKind) -> Found<'_> {
        let entry = self
            .entries
            .get(usize::from(kind_index(kind)))
            .and_then(|entries| entries.get(name));
        let Some(entry) = entry else {
            return Found::Missing;
        };
        let tried = entry
            .failed_at
            .is_some_and(|at| now < at + seconds(UNAVAILABLE_S));
        match &entry.records {
            Some(records) if now < entry.fresh_until => Found::Fresh(records),
            Some(records) if now < entry.stale_until => Found::Stale { records, tried },
            _ if entry.failed_at.is_some_and(|at| now < at + seconds(FAILED_S)) => Found::Failed { tried },
            _ => Found::Missing,
        }
    }

    /// Notes a record set that is to be queried by [`Cache::poll_refresh`].
    pub(super) fn want(&self, now: Instant, name: &[u8], kind: RecordKind) {
        if let Ok(mut refreshes) = self.refreshes.try_borrow_mut() {
            refreshes.want(now, name, kind);
        }
    }

    pub(super) fn count_stale(&self) {
        if let Ok(mut refreshes) = self.refreshes.try_borrow_mut() {
            refreshes.counters.stale += 1;
        }
    }
}

fn answered(now: Instant, kind: RecordKind, answer: Records) -> Entry {
    let fresh_until = now + seconds(answer.ttl_s.clamp(MIN_TTL_S, MAX_TTL_S));
    Entry {
        records: Some(usable(kind, answer.values)),
        fresh_until,
        stale_until: fresh_until + seconds(STALE_S),
        failed_at: None,
        leaves: Leaves {
            has_records: false,
            at: now,
        },
    }
}

/// The entry after a failure: the old result serves on for a while after each.
fn failed(now: Instant, old: Option<Entry>) -> Entry {
    let kept = old.filter(|e| e.records.is_some() && now < e.fresh_until + seconds(MAX_STALE_S));
    match kept {
        Some(entry) => Entry {
            stale_until: (now + seconds(STALE_S))
                .min(entry.fresh_until + seconds(MAX_STALE_S))
                .max(entry.stale_until),
            failed_at: Some(now),
            ..entry
        },
        None => Entry {
            records: None,
            fresh_until: now,
            stale_until: now,
            failed_at: Some(now),
            leaves: Leaves {
                has_records: false,
                at: now,
            },
        },
    }
}

fn leaves(entry: &Entry) -> Leaves {
    let after_failure = entry
        .failed_at
        .map_or(entry.stale_until, |at| at + seconds(FAILED_S));
    match &entry.records {
        Some(records) if !records.is_empty() => Leaves {
            has_records: true,
            at: entry.fresh_until + seconds(MAX_STALE_S),
        },
        _ => Leaves {
            has_records: false,
            at: entry.stale_until.max(after_failure),
        },
    }
}

/// The records of a result that can serve a query for `kind`: the most preferred first, if they have
/// a preference, and not too many.
fn usable(kind: RecordKind, values: Vec<Record>) -> Vec<Record> {
    let mut records: Vec<Record> = values
        .into_iter()
        .filter(|record| match (kind, record) {
            (RecordKind::A, Record::Address(ip)) => ip.is_ipv4() && services::is_host(*ip),
            (RecordKind::Aaaa, Record::Address(ip)) => ip.is_ipv6() && services::is_host(*ip),
            (RecordKind::Srv, Record::Service { .. }) => true,
            (RecordKind::Naptr, Record::Naptr { .. }) => services::pointer(record).is_some(),
            (_, Record::Address(_) | Record::Service { .. } | Record::Naptr { .. }) => false,
        })
        .collect();
    let rank: fn(&Record) -> (u16, u16) = |record| match record {
        Record::Address(_) => (0, 0),
        Record::Service { priority, .. } => (*priority, 0),
        Record::Naptr {
            order, preference, ..
        } => (*order, *preference),
    };
    // The sort is stable: addresses stay as they came.
    records.sort_by_key(rank);
    records.truncate(MAX_RECORDS);
    records.shrink_to_fit();
    records
}

/// `name` in lower case, on the stack unless it is very long.
pub(super) fn lower(name: &[u8]) -> SmallVec<[u8; 128]> {
    name.iter().map(u8::to_ascii_lowercase).collect()
}

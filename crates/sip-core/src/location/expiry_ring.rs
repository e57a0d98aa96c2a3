//! The times at which records are due for a look because a binding ends. It is a ring of buckets, each a list
//! of slot numbers that end within the same seconds.
//!
//! Filing a slot, removing one and finding a due one cost O(1); slots that are not due are not looked at. The
//! lists are linked both ways by slot number. So a slot stands in one bucket at most and is removed without a
//! search: no garbage, regardless of what peers register and remove.
//!
//! A refresh moves nothing: a filed slot stays where it is when its end moves further away. At its old end
//! the slot is looked at once and filed at the new one. So each look that finds nothing to remove is paid by
//! at least one refresh (or by an end beyond the ring's horizon, once each 8,192 s). A phone that refreshes
//! at half its time is looked at once in two refreshes.

use alloc::vec::Vec;

/// Seconds of one bucket. An ended binding is in memory this much longer, at most (no look-up finds it).
const BUCKET_S: u64 = 16;
/// The number of buckets. The horizon is 8,192 s: beyond the longest registration that is granted by default.
const BUCKETS: usize = 512;
/// No slot.
const NONE: u32 = u32::MAX;

/// A slot's place in its list.
#[derive(Clone, Copy, Debug)]
struct Link {
    next: u32,
    prev: u32,
    /// The bucket, counted from 1970; `NONE`: not filed.
    bucket: u32,
}

const UNFILED: Link = Link {
    next: NONE,
    prev: NONE,
    bucket: NONE,
};

/// The ring. The caller numbers the slots, from 0.
#[derive(Debug)]
pub(super) struct ExpiryRing {
    /// The first slot of each bucket; empty until a slot is filed.
    heads: Vec<u32>,
    links: Vec<Link>,
    /// The bucket that is due next: all filed slots lie in it or in the `BUCKETS - 1` after it.
    at: u32,
}

/// The bucket of a wall clock second.
const fn bucket_of(unix_s: u64) -> u32 {
    // All sums stay below `NONE`; from the year 4147 on all ends land in the last bucket.
    const LAST: u32 = NONE - 2 * BUCKETS as u32;
    let bucket = unix_s / BUCKET_S;
    if bucket < LAST as u64 { bucket as u32 } else { LAST }
}

const fn place(bucket: u32) -> usize {
    bucket as usize % BUCKETS
}

impl ExpiryRing {
    /// An empty ring at this time. A wrong time costs one later look at all slots.
    pub(super) const fn new(now_unix_s: u64) -> Self {
        Self {
            heads: Vec::new(),
            links: Vec::new(),
            at: bucket_of(now_unix_s),
        }
    }

    /// Files `slot` so that it comes up shortly after `end_unix_s` (or the horizon) at the latest.
    pub(super) fn file(&mut self, slot: u32, end_unix_s: u64) {
        let bucket = bucket_of(end_unix_s).clamp(self.at, self.at + BUCKETS as u32 - 1);
        if self.links.len() <= slot as usize {
            self.links.resize(slot as usize + 1, UNFILED);
        }
        let filed = self.link(slot).bucket;
        if filed != NONE {
            if filed <= bucket {
                return;
            }
            self.remove(slot);
        }
        self.push(slot, bucket);
    }

    /// Removes `slot`, wherever it is.
    pub(super) fn remove(&mut self, slot: u32) {
        let link = self.link(slot);
        if link.bucket == NONE {
            return;
        }
        if link.prev == NONE {
            self.set_head(link.bucket, link.next);
        } else {
            self.change(link.prev, |prev| prev.next = link.next);
        }
        self.change(link.next, |next| next.prev = link.prev);
        self.change(slot, |link| *link = UNFILED);
    }

    /// Removes a slot whose bucket lies wholly before now, and returns it.
    pub(super) fn take_due(&mut self, now_unix_s: u64) -> Option<u32> {
        let now = bucket_of(now_unix_s);
        // If the clock was set by hours, or back, all slots are looked at once, and filed anew.
        if now > self.at + BUCKETS as u32 {
            self.file_all(now - 1);
        } else if now + 1 < self.at {
            self.file_all(now);
        }
        while self.at < now {
            let first = self.heads.get(place(self.at)).copied().unwrap_or(NONE);
            if first != NONE {
                self.remove(first);
                return Some(first);
            }
            self.at += 1;
        }
        None
    }

    /// Moves all slots to `bucket`, which becomes the next that is due.
    fn file_all(&mut self, bucket: u32) {
        self.heads.fill(NONE);
        self.at = bucket;
        for slot in 0..self.links.len() as u32 {
            if self.link(slot).bucket != NONE {
                self.push(slot, bucket);
            }
        }
    }

    fn push(&mut self, slot: u32, bucket: u32) {
        if self.heads.is_empty() {
            self.heads.resize(BUCKETS, NONE);
        }
        let next = self.heads.get(place(bucket)).copied().unwrap_or(NONE);
        self.change(next, |next| next.prev = slot);
        self.change(slot, |link| {
            *link = Link {
                next,
                prev: NONE,
                bucket,
            };
        });
        self.set_head(bucket, slot);
    }

    fn link(&self, slot: u32) -> Link {
        self.links.get(slot as usize).copied().unwrap_or(UNFILED)
    }

    /// Changes the link of `slot`; nothing for `NONE`.
    fn change(&mut self, slot: u32, change: impl FnOnce(&mut Link)) {
        if let Some(link) = self.links.get_mut(slot as usize) {
            change(link);
        }
    }

    fn set_head(&mut self, bucket: u32, slot: u32) {
        if let Some(head) = self.heads.get_mut(place(bucket)) {
            *head = slot;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;
    use alloc::vec;
    use proptest::prelude::*;

    fn due(ends: &mut ExpiryRing, now: u64) -> Vec<u32> {
        let mut all: Vec<_> = core::iter::from_fn(|| ends.take_due(now)).collect();
        all.sort_unstable();
        all
    }

    #[test]
    fn only_what_is_due_comes_up() {
        let mut ends = ExpiryRing::new(1_000_000);
        for slot in 0..100 {
            ends.file(slot, 1_000_000 + u64::from(slot) * 60);
        }
        assert_eq!(due(&mut ends, 1_000_000), [0; 0]);
        assert_eq!(due(&mut ends, 1_000_000 + 16), [0]);
        assert_eq!(due(&mut ends, 1_000_000 + 5 * 60 + 15), [1, 2, 3, 4, 5]);
        // If the end moves further away, the slot comes up at the old end; if it moves nearer, at the new
        // one.
        ends.file(6, 1_005_000);
        ends.file(99, 1_000_000 + 6 * 60);
        ends.remove(7);
        assert_eq!(due(&mut ends, 1_000_000 + 8 * 60 + 16), [6, 8, 99]);
        ends.file(6, 1_005_000);
        assert_eq!(due(&mut ends, 1_004_990).len(), 74);
        assert_eq!(due(&mut ends, 1_000_000 + 5_015), [6, 83]);
    }

    #[test]
    fn beyond_the_horizon_it_comes_up_there() {
        let mut ends = ExpiryRing::new(0);
        ends.file(3, u64::MAX);
        assert_eq!(due(&mut ends, BUCKET_S * (BUCKETS as u64 - 1)), [0; 0]);
        assert_eq!(due(&mut ends, BUCKET_S * BUCKETS as u64), [3]);
    }

    #[test]
    fn a_clock_that_is_set_loses_nothing() {
        for started in [0, 1_700_000_000, 1_900_000_000] {
            let mut ends = ExpiryRing::new(started);
            ends.file(1, 1_700_000_100);
            ends.file(2, 1_700_000_200);
            let mut looks = 0;
            for now in (1_700_000_000..1_700_000_300).step_by(4) {
                for slot in due(&mut ends, now) {
                    looks += 1;
                    let end = 1_700_000_000 + 100 * u64::from(slot);
                    assert!(looks <= 2 || now >= end);
                    if now < end {
                        ends.file(slot, end);
                    }
                }
            }
            assert!((2..=4).contains(&looks), "{looks} after a start at {started}");
            assert!(ends.links.iter().all(|link| link.bucket == NONE));
        }
    }

    proptest! {
        /// Compared with a map: no slot that has ended stays, and no slot that is not filed comes up.
        #[test]
        fn behaves_as_a_map(steps in prop::collection::vec((0u8..4, 0u32..20, 0u64..20_000), 0..200)) {
            let mut now = 500_000;
            let mut ends = ExpiryRing::new(now);
            let mut model = BTreeMap::new();
            for (what, slot, time) in steps {
                match what {
                    0 | 1 => {
                        ends.file(slot, now + time);
                        model.insert(slot, now + time);
                    }
                    2 => {
                        ends.remove(slot);
                        model.remove(&slot);
                    }
                    _ => {
                        now += time / 20;
                        for slot in due(&mut ends, now) {
                            let end = model.remove(&slot);
                            prop_assert!(end.is_some());
                            if let Some(end) = end.filter(|end| *end > now) {
                                ends.file(slot, end);
                                model.insert(slot, end);
                            }
                        }
                        prop_assert!(model.values().all(|end| end + BUCKET_S > now));
                    }
                }
            }
            let filed: Vec<_> = (0..20).filter(|slot| ends.link(*slot).bucket != NONE).collect();
            prop_assert_eq!(filed, model.into_keys().collect::<Vec<_>>());
            let mut listed = vec![];
            for head in &ends.heads {
                let mut slot = *head;
                while slot != NONE {
                    listed.push(slot);
                    slot = ends.link(slot).next;
                }
            }
            listed.sort_unstable();
            listed.dedup();
            prop_assert_eq!(listed.len(), ends.links.iter().filter(|link| link.bucket != NONE).count());
        }
    }
}

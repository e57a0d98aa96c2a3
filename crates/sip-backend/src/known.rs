//! Source addresses with a recent registration. One address may be that of an office, and its other users
//! must not suffer from one wrong password.
//!
//! The table has a fixed size, and all workers share it. A registration looks its source up, and writes at
//! most once a minute for it. If none of its places is free, the source replaces the one with the oldest
//! registration.
//!
//! There are no locks: a place is one number, which is written only if it still has the value that was read.
//! A worker that finds it changed looks again. So neither of two workers takes a place that the other has
//! just taken, and no time is set back.

use std::hash::{BuildHasher, RandomState};

use sip_core::admission::Source;

use crate::sync::atomic::{AtomicU64, Ordering};

/// Places that one address may use.
const WAYS: usize = if cfg!(loom) { 2 } else { 4 };
/// Number of sets of places, a power of two. The table takes 1 MiB.
const SETS: usize = if cfg!(loom) { 1 } else { 32_768 };

/// Attempts of one registration to write its place. After these it is not noted; the next one tries again.
const TRIES: usize = 8;

/// Minutes for which an address is known: as long as registrations last by default.
const KNOWN_MIN: u32 = 120;

/// The table of recent sources.
#[derive(Debug)]
pub struct Known {
    hasher: RandomState,
    /// In the upper half, bits of the address's hash; in the lower half, the minute of the last registration.
    /// 0: free.
    places: Box<[[AtomicU64; WAYS]]>,
}

impl Default for Known {
    fn default() -> Self {
        let empty = || std::array::from_fn(|_| AtomicU64::new(0));
        Self {
            hasher: RandomState::new(),
            places: (0..SETS).map(|_| empty()).collect(),
        }
    }
}

impl Known {
    /// Notes a registration from `source` at this time (Unix milliseconds).
    pub fn note(&self, now_ms: u64, source: Source) {
        let (set, tag) = self.place(source);
        let minute = minute(now_ms);
        let value = tag | u64::from(minute);
        for _ in 0..TRIES {
            let held = set.each_ref().map(|place| (place, place.load(Ordering::Relaxed)));
            let own = held
                .into_iter()
                .find(|(_, value)| *value & TAG == tag && *value != 0);
            let place = own.or_else(|| held.into_iter().min_by_key(|(_, value)| *value & !TAG));
            let Some((place, before)) = place else {
                return;
            };
            if own.is_some_and(|(_, own)| own >= value) {
                return;
            }
            // No other memory is read because of this number, so no ordering beyond the number's own matters.
            let put = place.compare_exchange(before, value, Ordering::Relaxed, Ordering::Relaxed);
            if put.is_ok() {
                return;
            }
        }
    }

    /// Whether `source` has a recent registration.
    pub fn has(&self, now_ms: u64, source: Source) -> bool {
        let (set, tag) = self.place(source);
        let now = minute(now_ms);
        set.iter()
            .map(|place| place.load(Ordering::Relaxed))
            .any(|value| {
                value != 0 && value & TAG == tag && now.saturating_sub((value & !TAG) as u32) < KNOWN_MIN
            })
    }

    fn place(&self, source: Source) -> (&[AtomicU64; WAYS], u64) {
        let hash = self.hasher.hash_one(source);
        // `SETS` is the number of sets.
        (&self.places[hash as usize % SETS], hash & TAG)
    }
}

const TAG: u64 = 0xffff_ffff << 32;

fn minute(now_ms: u64) -> u32 {
    u32::try_from(now_ms / 60_000).unwrap_or(u32::MAX)
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_800_000_000_000;

    fn number(n: u32) -> Source {
        Source::of(std::net::Ipv4Addr::from_bits(n).into())
    }

    #[test]
    fn an_address_is_known_for_a_while() {
        let known = Known::default();
        assert!(!known.has(NOW, number(1)));
        known.note(NOW, number(1));
        let minutes = |n: u64| NOW + n * 60_000;
        for (at, is) in [(0, true), (119, true), (120, false)] {
            assert_eq!(known.has(minutes(at), number(1)), is, "{at}");
        }
        assert!(!known.has(NOW, number(2)));
        known.note(minutes(100), number(1));
        assert!(known.has(minutes(219), number(1)));
    }

    #[test]
    fn the_newest_stay_when_there_are_too_many() {
        let known = Known::default();
        let many = (SETS * WAYS) as u32;
        for n in 0..many * 2 {
            known.note(NOW + u64::from(n / many) * 600_000, number(n));
        }
        let later = NOW + 600_000;
        let count = |range: std::ops::Range<u32>| range.filter(|n| known.has(later, number(*n))).count();
        let (old, new) = (count(0..many), count(many..many * 2));
        assert!(new > many as usize / 2 && old < new / 2, "{old} {new}");
    }
}

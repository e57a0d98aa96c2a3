//! Addresses that somebody has registered from lately: an office, whose other users must not pay for one
//! wrong password.
//!
//! A table of fixed size that all workers share: a registration looks there, and writes at most once a minute
//! for its address. Where there are more addresses than it has places, those that registered first are
//! forgotten.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use sip_core::admission::Source;

/// Places that one address may have.
const WAYS: usize = 4;
/// Sets of places; a power of two. 1 MiB in all.
const SETS: usize = 32_768;

/// Minutes for which an address is known: as long as registrations last by default.
const KNOWN_MIN: u32 = 120;

/// The table.
#[derive(Debug)]
pub(super) struct Known {
    hasher: RandomState,
    /// Upper half: of the address's hash; lower half: minute of the last registration. 0: nobody.
    places: Box<[[AtomicU64; WAYS]]>,
}

impl Default for Known {
    fn default() -> Self {
        Self {
            hasher: RandomState::new(),
            places: (0..SETS).map(|_| [const { AtomicU64::new(0) }; WAYS]).collect(),
        }
    }
}

impl Known {
    /// Somebody has registered from there.
    pub(super) fn note(&self, now_ms: u64, source: Source) {
        let (set, tag) = self.place(source);
        let minute = minute(now_ms);
        let value = tag | u64::from(minute);
        let held = || set.iter().map(|place| (place, place.load(Ordering::Relaxed)));
        let own = held().find(|(_, value)| *value & TAG == tag && *value != 0);
        // Of two workers that write at once one is forgotten, until its next registration.
        let place = own.or_else(|| held().min_by_key(|(_, value)| *value & !TAG));
        if let Some((place, before)) = place
            && before != value
        {
            place.store(value, Ordering::Relaxed);
        }
    }

    /// Whether somebody has lately.
    pub(super) fn has(&self, now_ms: u64, source: Source) -> bool {
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
        // `SETS` is the number of them.
        (&self.places[hash as usize % SETS], hash & TAG)
    }
}

const TAG: u64 = 0xffff_ffff << 32;

fn minute(now_ms: u64) -> u32 {
    u32::try_from(now_ms / 60_000).unwrap_or(u32::MAX)
}

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

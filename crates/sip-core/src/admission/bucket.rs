//! Token buckets of many sources in a table of fixed size.
//!
//! A bucket is one number: the time at which it will be full again. A message costs one interval (a second by
//! the rate); it passes if the bucket lacks at most `burst - 1` of them. That is a token bucket with its
//! tokens counted from the other side (GCRA, ITU-T I.371).
//!
//! The table is set-associative: the keyed hash of a source names a set of [`WAYS`] places, and no other
//! place is searched. A new source without a place takes that of the fullest bucket of its set. A full bucket
//! holds no information and may go. A bucket that lacks little loses little, and its loss is counted.
//!
//! The bucket of a source that is being refused is never given away. If all buckets of a set are such, the
//! new source passes uncounted, and that is counted, too. So forged sources, however many, free no source
//! that is refused. No source can choose its neighbours, since the hash is keyed.

use alloc::boxed::Box;
use alloc::vec;

use crate::time::Instant;

/// Places of a set: their keys are one line of cache.
const WAYS: usize = 8;

/// The value of a place without a source.
const NOBODY: u64 = u64::MAX;

/// A set, which takes two lines of cache.
#[derive(Clone, Debug)]
#[repr(align(64))]
struct Set {
    sources: [u64; WAYS],
    /// The time at which each bucket is full, nanoseconds.
    full_ns: [u64; WAYS],
}

const EMPTY: Set = Set {
    sources: [NOBODY; WAYS],
    full_ns: [0; WAYS],
};

/// The buckets of one worker.
#[derive(Debug)]
pub(crate) struct Buckets {
    sets: Box<[Set]>,
    /// One less than the number of sets, which is a power of two.
    mask: usize,
    /// The cost of a message, nanoseconds.
    interval_ns: u64,
    /// The most that a bucket may lack for one more message to pass, nanoseconds.
    slack_ns: u64,
}

/// The outcome of taking a message out of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// The message passes.
    Passed,
    /// The message passes, and another source's bucket was forgotten for it.
    Evicted,
    /// The message passes uncounted: there was no place.
    Untracked,
    /// The message is more than the source may send.
    Refused,
}

impl Buckets {
    /// Buckets of `burst` messages that fill at `rate` a second, each at least 1, with room for
    /// `sources` (rounded up to sets and to a power of two).
    pub(crate) fn new(rate: u32, burst: u32, sources: usize) -> Self {
        Self::with_interval(1_000_000_000 / u64::from(rate.max(1)), burst, sources)
    }

    /// Buckets of `burst` messages that get one message back in each interval, nanoseconds.
    pub(crate) fn with_interval(interval_ns: u64, burst: u32, sources: usize) -> Self {
        let sets = sources.div_ceil(WAYS).max(1).next_power_of_two();
        Self {
            sets: vec![EMPTY; sets].into_boxed_slice(),
            mask: sets - 1,
            interval_ns,
            slack_ns: interval_ns.saturating_mul(u64::from(burst.max(1) - 1)),
        }
    }

    /// Whether the bucket of this source holds `count` messages now. This takes none.
    pub(crate) fn may_take(&self, now: Instant, source: u64, hash: u64, count: u32) -> bool {
        let now_ns = now.as_micros().saturating_mul(1000);
        let set = self.sets.get(hash as usize & self.mask);
        let held = set.and_then(|set| {
            let way = set.sources.iter().position(|held| *held == source)?;
            set.full_ns.get(way).copied()
        });
        let more = self
            .interval_ns
            .saturating_mul(u64::from(count.saturating_sub(1)));
        let last_ns = held.unwrap_or(0).max(now_ns).saturating_add(more);
        last_ns <= now_ns.saturating_add(self.slack_ns)
    }

    /// Takes one message out of the bucket of the source with this number and this keyed hash.
    pub(crate) fn take(&mut self, now: Instant, source: u64, hash: u64) -> Taken {
        let now_ns = now.as_micros().saturating_mul(1000);
        let (interval_ns, most_ns) = (self.interval_ns, now_ns.saturating_add(self.slack_ns));
        let Some(set) = self.sets.get_mut(hash as usize & self.mask) else {
            return Taken::Untracked;
        };
        if let Some(way) = set.sources.iter().position(|held| *held == source) {
            let Some(full_ns) = set.full_ns.get_mut(way) else {
                return Taken::Untracked;
            };
            if *full_ns > most_ns {
                return Taken::Refused;
            }
            *full_ns = (*full_ns).max(now_ns).saturating_add(interval_ns);
            return Taken::Passed;
        }
        set.enter(source, now_ns, interval_ns, most_ns)
    }

    /// The number of buckets that are not full, for operators: all of the table is searched.
    pub(crate) fn in_use(&self, now: Instant) -> usize {
        let now_ns = now.as_micros().saturating_mul(1000);
        let places = self.sets.iter().flat_map(|set| &set.full_ns);
        places.filter(|full_ns| **full_ns > now_ns).count()
    }
}

impl Set {
    /// Gives a new source the place of the fullest bucket.
    #[cold]
    fn enter(&mut self, source: u64, now_ns: u64, interval_ns: u64, most_ns: u64) -> Taken {
        let places = self.sources.iter_mut().zip(&mut self.full_ns);
        let Some((held, full_ns)) = places.min_by_key(|(_, full_ns)| **full_ns) else {
            return Taken::Untracked;
        };
        if *full_ns > most_ns {
            return Taken::Untracked;
        }
        let forgets = *full_ns > now_ns;
        *held = source;
        *full_ns = now_ns.saturating_add(interval_ns);
        if forgets { Taken::Evicted } else { Taken::Passed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::source::Source;
    use alloc::collections::BTreeMap;
    use proptest::prelude::*;

    fn source(number: u32) -> u64 {
        Source::of(core::net::Ipv4Addr::from_bits(number).into()).bits()
    }

    /// Spreads numbers over sets as a keyed hash would.
    fn hash(number: u32) -> u64 {
        (u64::from(number) + 1)
            .wrapping_mul(0x9E37_79B9_7F4A_7C15)
            .rotate_left(29)
    }

    fn take(buckets: &mut Buckets, now_us: u64, number: u32) -> Taken {
        buckets.take(Instant::from_micros(now_us), source(number), hash(number))
    }

    #[test]
    fn a_burst_passes_and_then_the_rate() {
        let mut buckets = Buckets::new(10, 5, 100);
        let mut passed = |now_us: u64, times: u32| {
            let all = (0..times).map(|_| take(&mut buckets, now_us, 1));
            all.filter(|taken| *taken == Taken::Passed).count()
        };
        let table = [
            // Microseconds, messages, passed.
            (1_000_000, 7, 5),
            (1_099_999, 3, 0),
            (1_100_000, 3, 1),
            (1_300_000, 3, 2),
            // Never more than the burst passes, however long no message came.
            (9_000_000, 50, 5),
            // A clock that stands still, or goes back, gives nothing.
            (8_000_000, 5, 0),
        ];
        for (now_us, messages, expected) in table {
            assert_eq!(passed(now_us, messages), expected, "at {now_us}");
        }
        assert_eq!(buckets.in_use(Instant::from_micros(9_000_000)), 1);
        assert_eq!(buckets.in_use(Instant::from_micros(9_500_000)), 0);
    }

    #[test]
    fn one_source_does_not_take_anothers() {
        let mut buckets = Buckets::new(1, 1, 64);
        assert_eq!(take(&mut buckets, 0, 1), Taken::Passed);
        assert_eq!(take(&mut buckets, 0, 1), Taken::Refused);
        assert_eq!(take(&mut buckets, 0, 2), Taken::Passed);
    }

    #[test]
    fn a_flood_of_new_sources_frees_no_refused_source() {
        let mut buckets = Buckets::new(10, 20, 1024);
        for _ in 0..20 {
            assert_eq!(take(&mut buckets, 1_000_000, 7), Taken::Passed);
        }
        assert_eq!(take(&mut buckets, 1_000_000, 7), Taken::Refused);
        let (mut evicted, mut untracked) = (0, 0);
        for number in 1_000..200_000 {
            match take(&mut buckets, 1_000_000, number) {
                Taken::Evicted => evicted += 1,
                Taken::Untracked => untracked += 1,
                Taken::Passed => {}
                Taken::Refused => panic!("one message each"),
            }
        }
        assert!(evicted > 190_000, "{evicted}");
        assert_eq!(untracked, 0);
        assert_eq!(take(&mut buckets, 1_000_000, 7), Taken::Refused);
    }

    #[test]
    fn where_all_are_refused_a_newcomer_passes_uncounted() {
        let mut buckets = Buckets::new(1, 1, WAYS);
        for number in 0..WAYS as u32 {
            assert_eq!(take(&mut buckets, 0, number), Taken::Passed);
        }
        for _ in 0..3 {
            assert_eq!(take(&mut buckets, 0, 100), Taken::Untracked);
        }
        for number in 0..WAYS as u32 {
            assert_eq!(take(&mut buckets, 0, number), Taken::Refused);
        }
        // A bucket that is full again is forgotten without loss.
        assert_eq!(take(&mut buckets, 1_000_000, 100), Taken::Passed);
    }

    /// A bucket as the textbooks have it, in nanoseconds of credit.
    struct Naive {
        credit_ns: u64,
        at_ns: u64,
    }

    proptest! {
        /// In a table with room for all, each source has the bucket of the textbook.
        #[test]
        fn buckets_are_those_of_a_naive_model(
            rate in 1u32..2_000,
            burst in 1u32..50,
            steps in prop::collection::vec((0u64..200_000, 0u32..6), 1..400),
        ) {
            let mut buckets = Buckets::new(rate, burst, 4096);
            let interval_ns = 1_000_000_000 / u64::from(rate);
            let most_ns = interval_ns * u64::from(burst);
            let mut model: BTreeMap<u32, Naive> = BTreeMap::new();
            let mut now_us = 5_000_000;
            for (wait_us, number) in steps {
                now_us += wait_us;
                let now_ns = now_us * 1000;
                let bucket = model.entry(number).or_insert(Naive { credit_ns: most_ns, at_ns: now_ns });
                bucket.credit_ns = most_ns.min(bucket.credit_ns + now_ns - bucket.at_ns);
                bucket.at_ns = now_ns;
                let passes = bucket.credit_ns >= interval_ns;
                if passes {
                    bucket.credit_ns -= interval_ns;
                }
                let expected = if passes { Taken::Passed } else { Taken::Refused };
                prop_assert_eq!(take(&mut buckets, now_us, number), expected);
            }
        }
    }
}

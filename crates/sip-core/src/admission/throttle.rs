//! A throttle for the log: the first event of a source, then one line an interval.

use alloc::boxed::Box;
use alloc::vec;

use super::source::Source;
use crate::time::Instant;

/// Sources remembered at a time.
const SOURCES: usize = 1024;

/// Time between two lines about one source, microseconds.
const INTERVAL_US: u64 = 60_000_000;

#[derive(Clone, Copy, Debug)]
struct Line {
    source: u64,
    /// The time of the last line.
    at: Instant,
    /// Events since that line.
    since: u32,
}

/// The time of each source's last line. Direct-mapped: a colliding source evicts the older entry, which is
/// then logged again. The log's own bound limits the lines of many sources.
#[derive(Debug, Default)]
pub(crate) struct LogThrottle(Box<[Line]>);

impl LogThrottle {
    /// Notes an event of a source. `Some`: log it, with the number of events since the last that was
    /// logged, this one included.
    pub(crate) fn note(&mut self, now: Instant, source: Source, hash: u64) -> Option<u32> {
        if self.0.is_empty() {
            let line = Line {
                source: u64::MAX,
                at: now,
                since: 0,
            };
            self.0 = vec![line; SOURCES].into_boxed_slice();
        }
        // The buckets use the low bits of the hash.
        let line = self.0.get_mut((hash >> 40) as usize % SOURCES)?;
        if line.source != source.bits() {
            *line = Line {
                source: source.bits(),
                at: now,
                since: 0,
            };
            return Some(1);
        }
        line.since = line.since.saturating_add(1);
        if now.micros_since(line.at) < INTERVAL_US {
            return None;
        }
        line.at = now;
        Some(core::mem::take(&mut line.since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_logged_once_an_interval() {
        let mut told = LogThrottle::default();
        let one = Source::of([192, 0, 2, 1].into());
        let other = Source::of([192, 0, 2, 2].into());
        let mut note = |s: u64, source, hash| told.note(Instant::from_micros(s * 1_000_000), source, hash);
        assert_eq!(note(1, one, 0), Some(1));
        for s in 1..61 {
            assert_eq!(note(s, one, 0), None, "{s}");
        }
        assert_eq!(note(61, one, 0), Some(61));
        assert_eq!(note(61, other, 1 << 40), Some(1), "another has a line of its own");
        assert_eq!(note(62, one, 0), None);
        // Sources at the same place evict each other, and are logged again.
        assert_eq!(note(63, other, 0), Some(1));
        assert_eq!(note(63, one, 0), Some(1));
    }
}

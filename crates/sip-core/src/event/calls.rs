//! Statistics of the calls of one worker: final responses to INVITEs by code, and the waiting times of
//! callers.

/// Upper bounds of the classes of [`Times`], microseconds, inclusive.
pub const BOUNDS_US: [u64; 15] = [
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    20_000_000,
    30_000_000,
    60_000_000,
    120_000_000,
];

/// A histogram of times, with their sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// The number of times in each class; the last class is for times above all bounds.
    pub counts: [u64; BOUNDS_US.len() + 1],
    /// The sum of all times, microseconds.
    pub sum_us: u64,
}

impl Times {
    fn note(&mut self, us: u64) {
        let class = BOUNDS_US.partition_point(|bound| *bound < us);
        if let Some(count) = self.counts.get_mut(class) {
            *count += 1;
        }
        self.sum_us = self.sum_us.saturating_add(us);
    }

    /// Adds the times of another worker.
    pub fn add(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            *count += more;
        }
        self.sum_us = self.sum_us.saturating_add(other.sum_us);
    }
}

/// Status codes that have a count of their own, in ascending order. Others are counted by their class.
const CODES: [u16; 24] = [
    200, 302, 400, 401, 403, 404, 407, 408, 480, 481, 484, 486, 487, 488, 500, 501, 502, 503, 504, 600, 603,
    604, 607, 608,
];
/// Labels of the classes.
const OTHERS: [&str; 5] = ["2xx", "3xx", "4xx", "5xx", "6xx"];

/// Counts of INVITEs without a To tag: those for which this worker held state, and those that it refused
/// without state. Each copy of the latter counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Calls {
    responses: [u64; CODES.len() + OTHERS.len()],
    /// Times from the INVITE to its first response other than 100, if that is 1xx or 2xx (RFC 6076 §4.3, session
    /// request delay).
    pub setup: Times,
    /// Times from the first provisional response other than 100 to the 2xx.
    pub ring: Times,
}

impl Default for Calls {
    fn default() -> Self {
        Self {
            responses: [0; CODES.len() + OTHERS.len()],
            setup: Times::default(),
            ring: Times::default(),
        }
    }
}

impl Calls {
    /// Counts the first provisional response other than 100 of an INVITE.
    pub(crate) fn alerted(&mut self, after_us: u64) {
        self.setup.note(after_us);
    }

    /// Counts a final response. `after_us` is the time since the INVITE; `rang_us` is the time since the first
    /// provisional response other than 100, if there was one.
    pub(crate) fn completed(&mut self, status: u16, after_us: u64, rang_us: Option<u64>) {
        let at = match CODES.binary_search(&status) {
            Ok(at) => at,
            Err(_) => CODES.len() + usize::from(status / 100).saturating_sub(2).min(OTHERS.len() - 1),
        };
        if let Some(count) = self.responses.get_mut(at) {
            *count += 1;
        }
        match rang_us {
            _ if status >= 300 => {}
            Some(rang_us) => self.ring.note(rang_us),
            None => self.setup.note(after_us),
        }
    }

    /// Adds the counts of another worker.
    pub fn add(&mut self, other: &Self) {
        for (count, more) in self.responses.iter_mut().zip(other.responses) {
            *count += more;
        }
        self.setup.add(&other.setup);
        self.ring.add(&other.ring);
    }

    /// Number of final responses by status code, and by class for codes without a count of their own.
    pub fn responses(&self) -> impl Iterator<Item = (Code, u64)> {
        let codes = CODES.iter().map(|code| Code::One(*code));
        let labels = codes.chain(OTHERS.iter().map(|class| Code::Others(class)));
        labels.zip(self.responses)
    }
}

/// The status code, or codes, that one count is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// This status code.
    One(u16),
    /// All other codes of a class, as `4xx`.
    Others(&'static str),
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use alloc::vec::Vec;

    #[test]
    fn answers_are_counted_by_code_or_class() {
        assert!(CODES.is_sorted());
        let mut calls = Calls::default();
        for status in [200, 200, 202, 302, 305, 486, 499, 503, 599, 603, 699] {
            calls.completed(status, 0, None);
        }
        let mut both = calls;
        both.add(&calls);
        let of = |calls: &Calls, code| calls.responses().find(|(c, _)| *c == code).map(|(_, n)| n);
        for (code, count) in [
            (Code::One(200), 2),
            (Code::Others("2xx"), 1),
            (Code::One(302), 1),
            (Code::Others("3xx"), 1),
            (Code::One(486), 1),
            (Code::Others("4xx"), 1),
            (Code::One(503), 1),
            (Code::Others("5xx"), 1),
            (Code::One(603), 1),
            (Code::Others("6xx"), 1),
            (Code::One(404), 0),
        ] {
            assert_eq!(of(&calls, code), Some(count), "{code:?}");
            assert_eq!(of(&both, code), Some(2 * count), "{code:?}");
        }
    }

    #[test]
    fn times_are_of_calls_that_come_to_something() {
        let mut calls = Calls::default();
        calls.alerted(30_000);
        calls.completed(200, 4_030_000, Some(4_000_000));
        // A call that is accepted without ringing, one that is busy, and one that rings in vain.
        calls.completed(200, 5_000, None);
        calls.completed(486, 90_000, None);
        calls.alerted(1_000_000_000);
        calls.completed(487, 1_002_000_000, Some(2_000_000));
        let of = |times: &Times| -> Vec<(usize, u64)> {
            let counts = times.counts.iter().copied().enumerate();
            counts.filter(|(_, count)| *count > 0).collect()
        };
        assert_eq!(of(&calls.setup), [(0, 1), (3, 1), (15, 1)]);
        assert_eq!(calls.setup.sum_us, 1_000_035_000);
        assert_eq!((of(&calls.ring), calls.ring.sum_us), (vec![(9, 1)], 4_000_000));
    }
}

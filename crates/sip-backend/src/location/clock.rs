//! The clock of the store's threads. The code that they run gets the time as an argument.

use std::time::{Duration, Instant as StdInstant, SystemTime, UNIX_EPOCH};

use sip_core::time::{Instant, Now};

/// Reads both clocks, from an origin of its own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    origin: StdInstant,
}

impl Clock {
    /// A clock that begins now.
    pub(super) fn new() -> Self {
        Self {
            origin: StdInstant::now(),
        }
    }

    /// The monotonic clock.
    pub(super) fn instant(self) -> Instant {
        after(Instant::ORIGIN, self.origin.elapsed())
    }

    /// The time of both clocks; a wall clock before 1970 reads as 0.
    pub(super) fn now(self) -> Now {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH);
        Now {
            instant: self.instant(),
            unix_ms: unix.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX)),
        }
    }

    /// The time from `at` until now.
    pub(super) fn since(self, at: Instant) -> Duration {
        Duration::from_micros(self.instant().micros_since(at))
    }
}

/// The instant this much after `at`.
pub(super) fn after(at: Instant, wait: Duration) -> Instant {
    let wait = u64::try_from(wait.as_micros()).unwrap_or(u64::MAX);
    Instant::from_micros(at.as_micros().saturating_add(wait))
}

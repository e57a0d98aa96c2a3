//! The worker's clock: read once a turn.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use sip_core::time::{Instant as CoreInstant, Now, SteadyWall};

/// Microseconds for which a reading of the wall clock is used.
const WALL_READ_INTERVAL_US: u64 = 100_000;

/// The monotonic clock, with an occasional reading of the wall clock. [`SteadyWall`] moves towards the wall
/// clock, so that a step of the wall clock is no step here.
#[derive(Clone, Debug)]
pub struct Clock {
    origin: Instant,
    wall: SteadyWall,
    wall_read_us: u64,
}

impl Clock {
    /// A clock that counts from `origin`. The workers of one process share the origin, so that their instants
    /// mean the same.
    pub fn new(origin: Instant) -> Self {
        let wall_read_us = micros_since(origin);
        Self {
            origin,
            wall: SteadyWall::new(CoreInstant::from_micros(wall_read_us), wall_ms()),
            wall_read_us,
        }
    }

    /// Reads both clocks. The instant is at least `origin` plus one second: instants near the core's own
    /// origin are left free, so that "long ago" can be written.
    pub fn read(&mut self) -> Now {
        let us = micros_since(self.origin);
        let instant = CoreInstant::from_micros(us);
        let unix_ms = if us.saturating_sub(self.wall_read_us) >= WALL_READ_INTERVAL_US {
            self.wall_read_us = us;
            self.wall.read(instant, wall_ms())
        } else {
            self.wall.at(instant)
        };
        Now { instant, unix_ms }
    }
}

fn micros_since(origin: Instant) -> u64 {
    const HEAD_START_US: u64 = 1_000_000;
    u64::try_from(origin.elapsed().as_micros())
        .unwrap_or(u64::MAX)
        .saturating_add(HEAD_START_US)
}

fn wall_ms() -> u64 {
    // A wall clock before 1970 reads as 1970.
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_does_not_run_backwards_and_the_wall_clock_is_the_systems() {
        let begin = wall_ms();
        let mut clock = Clock::new(Instant::now());
        let mut last = clock.read();
        assert!(last.instant.as_micros() >= 1_000_000);
        for _ in 0..1000 {
            let now = clock.read();
            assert!(now.instant >= last.instant);
            last = now;
        }
        // True however long this thread was kept from running in between.
        assert!((begin..wall_ms() + 1000).contains(&(last.unix_ms + 500)));
    }
}

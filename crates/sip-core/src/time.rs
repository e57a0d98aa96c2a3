//! Time as a value: the core never reads a clock.

use core::ops::Add;

/// A point on a monotonic clock, in microseconds since an origin that the shell chose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// The clock's origin.
    pub const ORIGIN: Self = Self(0);

    /// An instant this many microseconds after the origin.
    pub const fn from_micros(us: u64) -> Self {
        Self(us)
    }

    /// Microseconds since the origin.
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Whole milliseconds since the origin.
    pub const fn as_millis(self) -> u64 {
        self.0 / 1000
    }

    /// Microseconds from `earlier` to `self`; 0 if `earlier` is later.
    pub const fn micros_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// Adds milliseconds (saturating).
impl Add<Millis> for Instant {
    type Output = Self;
    #[expect(clippy::suspicious_arithmetic_impl, reason = "milliseconds to microseconds")]
    fn add(self, ms: Millis) -> Self {
        Self(self.0.saturating_add(u64::from(ms.0) * 1000))
    }
}

/// A duration in milliseconds; every protocol timer fits (RFC 3261 Table 4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Millis(pub u32);

/// One reading of both clocks, taken once per turn of the worker's loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// The monotonic clock, on which timers run.
    pub instant: Instant,
    /// Wall clock, milliseconds since 1970-01-01 UTC. By it registrations and nonces survive a restart.
    pub unix_ms: u64,
}

impl Now {
    /// Wall clock in whole seconds.
    pub const fn unix_s(self) -> u64 {
        self.unix_ms / 1000
    }
}

/// The wall clock of registrations, nonces and marks of next hops. It never jumps: if the system's clock is
/// set, by an hour or by a leap second, registrations must not end early or late. This clock approaches the
/// system's by at most one part in [`SteadyWall::SLEW`] of the time that passes. User agents refresh long
/// before the last twentieth of their time.
#[derive(Clone, Copy, Debug)]
pub struct SteadyWall {
    unix_us: u64,
    read_at: Instant,
}

impl SteadyWall {
    /// The part of passing time by which the clock is corrected.
    pub const SLEW: u64 = 20;

    /// A clock that begins with the system's time.
    pub const fn new(now: Instant, wall_unix_ms: u64) -> Self {
        Self {
            unix_us: wall_unix_ms.saturating_mul(1000),
            read_at: now,
        }
    }

    /// Milliseconds since 1970 at `now`, at which the system's clock says `wall_unix_ms`.
    pub fn read(&mut self, now: Instant, wall_unix_ms: u64) -> u64 {
        let passed = now.micros_since(self.read_at);
        let unix_us = self.unix_us.saturating_add(passed);
        let wall_us = wall_unix_ms.saturating_mul(1000);
        let most = passed / Self::SLEW;
        self.unix_us = if wall_us > unix_us {
            unix_us.saturating_add(most.min(wall_us - unix_us))
        } else {
            unix_us.saturating_sub(most.min(unix_us - wall_us))
        };
        self.read_at = self.read_at.max(now);
        self.unix_us / 1000
    }

    /// Milliseconds since 1970 at `now`, without a look at the system's clock.
    pub const fn at(&self, now: Instant) -> u64 {
        self.unix_us.saturating_add(now.micros_since(self.read_at)) / 1000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOON: u64 = 1_800_000_000_000;
    const HOUR_MS: u64 = 3_600_000;

    fn after_ms(ms: u64) -> Instant {
        Instant::from_micros(ms * 1000)
    }

    /// Reads once a second for `seconds`; the system's clock is off by `step_ms`.
    fn run(step_ms: i64, seconds: u64) -> alloc::vec::Vec<u64> {
        let mut clock = SteadyWall::new(after_ms(0), NOON);
        (1..=seconds)
            .map(|s| {
                clock.read(
                    after_ms(s * 1000),
                    (NOON + s * 1000).saturating_add_signed(step_ms),
                )
            })
            .collect()
    }

    #[test]
    fn it_says_the_time_of_day() {
        assert_eq!(run(0, 100)[99], NOON + 100_000);
        let mut clock = SteadyWall::new(after_ms(5), NOON);
        assert_eq!(clock.at(after_ms(1_005)), NOON + 1_000);
        assert_eq!(clock.read(after_ms(1_005), NOON + 1_000), NOON + 1_000);
        // Instants of two readers may be swapped.
        assert_eq!(clock.at(after_ms(900)), NOON + 1_000);
    }

    #[test]
    fn a_step_is_made_up_for_slowly() {
        for step in [HOUR_MS as i64, -(HOUR_MS as i64)] {
            let times = run(step, 60);
            let last = times[59];
            assert_eq!(
                last.abs_diff(NOON + 60_000),
                3_000,
                "a twentieth of a minute, {step}"
            );
            assert!(
                times
                    .windows(2)
                    .all(|pair| pair[1] - pair[0] == if step > 0 { 1_050 } else { 950 })
            );
        }
        // Thirty seconds are made up for within ten minutes, and then it is right.
        assert_eq!(run(30_000, 601)[600], NOON + 601_000 + 30_000);
        assert_eq!(run(-30_000, 601)[600], NOON + 601_000 - 30_000);
    }
}

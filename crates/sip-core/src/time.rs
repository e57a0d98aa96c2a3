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
    /// Monotonic: timers run on it.
    pub instant: Instant,
    /// Wall clock, milliseconds since 1970-01-01 UTC: registrations and nonces survive a restart by it.
    pub unix_ms: u64,
}

impl Now {
    /// Wall clock in whole seconds.
    pub const fn unix_s(self) -> u64 {
        self.unix_ms / 1000
    }
}

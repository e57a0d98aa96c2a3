//! The circuit breaker, which stops questions to a database that fails.
//!
//! ```text
//!             enough failures in a row          a session, and OPEN_FOR is over
//!   Closed ─────────────────────────────▶ Open ─────────────────────────────────▶ HalfOpen
//!     ▲                                    ▲                                         │ │
//!     │                 the probe succeeds │ the probe fails                         │ │
//!     └────────────────────────────────────┼─────────────────────────────────────────┘ │
//!                                          └───────────────────────────────────────────┘
//! ```

use std::time::{Duration, Instant};

/// Weight of failures in a row that opens the breaker.
const TRIP: u32 = 6;
/// The shortest time for which the breaker stays open.
const OPEN_FOR: Duration = Duration::from_millis(500);

/// A failure, by its weight as evidence against the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// A batch was refused, or got no response in time.
    Batch,
    /// A connection could not be opened, and none is up. `begun`: when the attempt began. Simultaneous
    /// attempts count once.
    Connect { begun: Instant },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Questions go to the database.
    Closed,
    /// Questions get results without the database.
    Open { until: Instant },
    /// One batch tests whether the database responds again.
    HalfOpen,
}

/// The circuit breaker of a database.
#[derive(Debug)]
pub(super) struct Breaker {
    state: State,
    failures: u32,
    /// Time of the last counted failure to connect.
    refused: Option<Instant>,
    opened: u64,
}

impl Breaker {
    pub(super) const fn new() -> Self {
        Self {
            state: State::Closed,
            failures: 0,
            refused: None,
            opened: 0,
        }
    }

    pub(super) const fn state(&self) -> State {
        self.state
    }

    /// The time from which on the breaker may half-open; `None` if the breaker is not open.
    pub(super) fn rests_until(&self, now: Instant) -> Option<Instant> {
        match self.state {
            State::Open { until } if now < until => Some(until),
            State::Open { .. } | State::Closed | State::HalfOpen => None,
        }
    }

    /// Number of times that the breaker opened.
    pub(super) const fn opened(&self) -> u64 {
        self.opened
    }

    /// Whether a question may wait for the database. `sessions`: number of connections that are up.
    pub(super) fn admits(&mut self, now: Instant, sessions: usize) -> bool {
        match self.state {
            State::Closed | State::HalfOpen => true,
            State::Open { until } if now >= until && sessions > 0 => {
                self.state = State::HalfOpen;
                true
            }
            State::Open { .. } => false,
        }
    }

    /// Notes the result of a batch.
    pub(super) fn succeeded(&mut self) {
        self.state = State::Closed;
        self.failures = 0;
    }

    /// Notes a failure. Returns whether the breaker opened by it: waiting questions then need results at
    /// once.
    #[must_use]
    pub(super) fn failed(&mut self, now: Instant, failure: Failure) -> bool {
        self.failures += match failure {
            Failure::Batch => 1,
            Failure::Connect { begun } if self.refused.is_some_and(|at| begun <= at) => 0,
            Failure::Connect { .. } => {
                self.refused = Some(now);
                TRIP / 2
            }
        };
        let trips = match self.state {
            State::Closed => self.failures >= TRIP,
            State::HalfOpen => true,
            State::Open { .. } => false,
        };
        if trips {
            self.state = State::Open {
                until: now + OPEN_FOR,
            };
            self.failures = 0;
            self.opened += 1;
        }
        trips
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An event, whether the breaker opens by it, and whether a question is admitted: after `OPEN_FOR` with a
    /// session, and at once without one.
    #[test]
    fn it_goes_round_as_drawn() {
        let start = Instant::now();
        let mut breaker = Breaker::new();
        for _ in 0..TRIP - 1 {
            assert!(!breaker.failed(start, Failure::Batch));
        }
        assert!(breaker.admits(start, 0), "few failures are none");
        breaker.succeeded();
        for _ in 0..TRIP - 1 {
            assert!(
                !breaker.failed(start, Failure::Batch),
                "only those in a row count"
            );
        }
        assert!(breaker.failed(start, Failure::Batch));
        assert!(!breaker.failed(start, Failure::Batch), "it is open already");
        assert!(!breaker.admits(start, 1), "not so soon");
        assert_eq!(breaker.rests_until(start), Some(start + OPEN_FOR));
        assert_eq!(breaker.rests_until(start + OPEN_FOR), None);
        let later = start + OPEN_FOR;
        assert!(!breaker.admits(later, 0), "there is nothing to ask");
        assert!(breaker.admits(later, 1));
        assert_eq!(breaker.state(), State::HalfOpen);
        assert!(breaker.failed(later, Failure::Batch), "the probe failed");
        assert!(breaker.admits(later + OPEN_FOR, 1));
        breaker.succeeded();
        assert_eq!((breaker.state(), breaker.opened()), (State::Closed, 2));
    }

    #[test]
    fn a_database_that_refuses_connections_is_soon_given_up() {
        let now = Instant::now();
        let mut breaker = Breaker::new();
        let ms = Duration::from_millis(1);
        let first = Failure::Connect { begun: now };
        assert!(!breaker.failed(now + ms, first), "it may be restarting");
        assert!(
            !breaker.failed(now + ms, first),
            "as another connection has found"
        );
        let second = Failure::Connect { begun: now + 2 * ms };
        assert!(breaker.failed(now + 3 * ms, second));
    }
}

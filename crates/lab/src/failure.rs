//! Why an experiment ended early, and the wish to end it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Why something was not done.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// A signal asked for the end.
    #[error("ended by a signal, and so has everything that was started")]
    Interrupted,
    /// It was tried and did not work.
    #[error("{0}")]
    Failed(String),
    /// It cannot be done on this machine, or was asked for in a wrong way.
    #[error("{0}")]
    Usage(String),
    /// It was measured, and the shape of the figures is not what it must be.
    #[error("{0}")]
    Shape(String),
}

impl Failure {
    /// A failure: what was tried, and the cause.
    pub fn failed(what: impl fmt::Display, cause: impl fmt::Display) -> Self {
        Self::Failed(format!("{what}: {cause}"))
    }
}

/// What most of this crate returns.
pub type Outcome<T> = Result<T, Failure>;

/// The wish to end, which a signal's handler may utter at any time. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Asks everything to end.
    pub fn ask(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// Whether the end was asked for.
    pub fn is_asked(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    /// [`Failure::Interrupted`] once the end was asked for.
    pub fn check(&self) -> Outcome<()> {
        if self.is_asked() {
            Err(Failure::Interrupted)
        } else {
            Ok(())
        }
    }

    /// Sleeps, but not beyond the wish to end.
    pub fn sleep(&self, time: Duration) -> Outcome<()> {
        self.sleep_until(Instant::now() + time)
    }

    /// Sleeps until `deadline`, but not beyond the wish to end.
    pub fn sleep_until(&self, deadline: Instant) -> Outcome<()> {
        const STEP: Duration = Duration::from_millis(50);
        loop {
            self.check()?;
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(STEP));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wish_ends_a_long_sleep() {
        let stop = Stop::default();
        let other = stop.clone();
        let thread = std::thread::spawn(move || other.sleep(Duration::from_secs(600)));
        stop.ask();
        assert!(matches!(thread.join().unwrap(), Err(Failure::Interrupted)));
        assert!(stop.check().is_err());
        assert!(Stop::default().sleep(Duration::ZERO).is_ok());
    }
}

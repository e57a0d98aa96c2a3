//! A throttle for the log messages of a recurring failure.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Lets one message of a cause pass per interval, and counts the suppressed ones.
#[derive(Debug)]
pub(crate) struct LogThrottle {
    every: Duration,
    state: Mutex<(Option<Instant>, u64)>,
}

impl LogThrottle {
    /// A throttle that lets at most one message pass per `every`.
    pub(crate) const fn new(every: Duration) -> Self {
        Self {
            every,
            state: Mutex::new((None, 0)),
        }
    }

    /// Returns the number of messages suppressed since the last one, if a message may be logged now.
    pub(crate) fn allow(&self) -> Option<u64> {
        self.allow_if(false)
    }

    /// The same as [`LogThrottle::allow`], except that a message of a new cause (`is_new`) may be logged at
    /// any time.
    pub(crate) fn allow_if(&self, is_new: bool) -> Option<u64> {
        let mut state = self.state.lock();
        let now = Instant::now();
        if !is_new && state.0.is_some_and(|last| now.duration_since(last) < self.every) {
            state.1 += 1;
            return None;
        }
        state.0 = Some(now);
        Some(std::mem::take(&mut state.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_message_per_interval_with_the_number_held_back() {
        let throttle = LogThrottle::new(Duration::from_secs(3600));
        assert_eq!(throttle.allow(), Some(0));
        assert_eq!(throttle.allow(), None);
        assert_eq!(throttle.allow(), None);
        assert_eq!(throttle.allow_if(true), Some(2));
        assert_eq!(throttle.allow(), None);
        let eager = LogThrottle::new(Duration::ZERO);
        assert_eq!((eager.allow(), eager.allow()), (Some(0), Some(0)));
    }
}

//! Timers of a few fixed intervals. Each interval has a queue, in the order of starting, which is also the
//! order in which they are due. Starting is a push, and timers are never stopped: the code that a timer wakes
//! checks whether it still matters (a generation, a transaction's number).

use std::collections::VecDeque;

use crate::Micros;

/// Purpose of a timer: its slot, and its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wake<K> {
    /// The slot, and below its generation when the timer was started.
    pub(crate) slot: u32,
    pub(crate) generation: u32,
    pub(crate) kind: K,
}

#[derive(Debug)]
struct Interval<K> {
    length: Micros,
    waiting: VecDeque<(Micros, Wake<K>)>,
}

#[derive(Debug)]
pub(crate) struct Timers<K> {
    intervals: Vec<Interval<K>>,
}

impl<K: Copy> Timers<K> {
    pub(crate) fn new() -> Self {
        Self {
            intervals: Vec::new(),
        }
    }

    /// Starts a timer: [`Self::due`] returns `wake` once `length` has passed.
    pub(crate) fn start(&mut self, now: Micros, length: Micros, wake: Wake<K>) {
        let due = now.saturating_add(length);
        match self.intervals.iter_mut().find(|i| i.length == length) {
            Some(interval) => interval.waiting.push_back((due, wake)),
            None => self.intervals.push(Interval {
                length,
                waiting: VecDeque::from([(due, wake)]),
            }),
        }
    }

    /// The next timer that is due at `now`.
    pub(crate) fn due(&mut self, now: Micros) -> Option<Wake<K>> {
        self.intervals.iter_mut().find_map(|interval| {
            interval
                .waiting
                .pop_front_if(|(due, _)| *due <= now)
                .map(|(_, wake)| wake)
        })
    }

    /// When the first of all timers is due.
    pub(crate) fn next(&self) -> Option<Micros> {
        let heads = self.intervals.iter().filter_map(|i| i.waiting.front());
        heads.map(|(due, _)| *due).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_comes_at_its_time_and_once() {
        let mut timers = Timers::new();
        let wake = |slot| Wake {
            slot,
            generation: 0,
            kind: (),
        };
        assert_eq!((timers.next(), timers.due(u64::MAX)), (None, None));
        timers.start(0, 500, wake(1));
        timers.start(0, 100, wake(2));
        timers.start(50, 500, wake(3));
        assert_eq!(timers.next(), Some(100));
        assert_eq!(timers.due(99), None);
        assert_eq!(timers.due(100), Some(wake(2)));
        assert_eq!(timers.due(499), None);
        assert_eq!(timers.due(600), Some(wake(1)));
        assert_eq!(timers.next(), Some(550));
        assert_eq!(timers.due(600), Some(wake(3)));
        assert_eq!((timers.next(), timers.due(u64::MAX)), (None, None));
    }
}

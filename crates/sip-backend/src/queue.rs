//! A bounded queue whose consumer takes everything at once, as group commit and batched look-ups need it.

use std::time::Duration;

use crate::sync::{Condvar, Mutex};

/// A queue for many producers and one consumer.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    state: Mutex<State<T>>,
    wake: Condvar,
    max_items: usize,
    max_weight: usize,
}

#[derive(Debug)]
struct State<T> {
    items: Vec<T>,
    weight: usize,
    closed: bool,
    sleeping: bool,
}

/// Result of [`Queue::take`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// At least one item.
    Items,
    /// No item arrived in time.
    TimedOut,
    /// The queue is closed and empty.
    Closed,
}

impl<T> Queue<T> {
    /// A queue with room for `max_items`, which together weigh at most `max_weight`. A single item may weigh
    /// more.
    pub(crate) fn new(max_items: usize, max_weight: usize) -> Self {
        let state = State {
            items: Vec::new(),
            weight: 0,
            closed: false,
            sleeping: false,
        };
        Self {
            state: Mutex::new(state),
            wake: Condvar::new(),
            max_items,
            max_weight,
        }
    }

    /// Appends as many items as fit, under one lock. The others end up in `refused`; if the queue is closed,
    /// all of them do.
    pub(crate) fn push_all(
        &self,
        items: impl IntoIterator<Item = T>,
        weight: impl Fn(&T) -> usize,
        refused: &mut Vec<T>,
    ) {
        let mut state = self.state.lock();
        for item in items {
            let weighs = weight(&item);
            let heavy = !state.items.is_empty() && state.weight.saturating_add(weighs) > self.max_weight;
            if state.closed || heavy || state.items.len() >= self.max_items {
                refused.push(item);
            } else {
                state.weight = state.weight.saturating_add(weighs);
                state.items.push(item);
            }
        }
        if state.sleeping && !state.items.is_empty() {
            state.sleeping = false;
            self.wake.notify_one();
        }
    }

    /// Appends an item without regard to the bounds (for the few that no peer can cause). Returns whether it
    /// was appended, which fails only if the queue is closed.
    pub(crate) fn push_control(&self, item: T) -> bool {
        let mut state = self.state.lock();
        if state.closed {
            return false;
        }
        state.items.push(item);
        self.wake.notify_one();
        true
    }

    /// Moves everything into `into`, which must be empty because the buffers are swapped. Waits up to
    /// `timeout` for the first item.
    pub(crate) fn take(&self, into: &mut Vec<T>, timeout: Duration) -> Taken {
        debug_assert!(into.is_empty());
        let mut state = self.state.lock();
        if state.items.is_empty() && !state.closed {
            state.sleeping = true;
            self.wake.wait_for(&mut state, timeout);
            state.sleeping = false;
        }
        if !state.items.is_empty() {
            std::mem::swap(&mut state.items, into);
            state.weight = 0;
            Taken::Items
        } else if state.closed {
            Taken::Closed
        } else {
            Taken::TimedOut
        }
    }

    /// Refuses further items; queued ones can still be taken.
    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
        self.wake.notify_all();
    }

    /// Number of waiting items.
    pub(crate) fn len(&self) -> usize {
        self.state.lock().items.len()
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_hold_by_number_and_by_weight() {
        let queue = Queue::new(3, 10);
        let mut refused = Vec::new();
        queue.push_all([20], |n| *n, &mut refused);
        assert!(refused.is_empty(), "one heavy item may pass alone");
        queue.push_all([1], |n| *n, &mut refused);
        assert_eq!(refused, [1]);
        let mut out = Vec::new();
        assert_eq!(queue.take(&mut out, Duration::ZERO), Taken::Items);
        assert_eq!(out, [20]);
        refused.clear();
        queue.push_all([1, 2, 3, 4], |n| *n, &mut refused);
        assert_eq!(refused, [4]);
        assert_eq!(queue.len(), 3);
    }

    #[test]
    fn a_closed_queue_gives_what_it_holds_and_takes_nothing() {
        let queue = Queue::new(8, 8);
        let mut refused = Vec::new();
        queue.push_all([1], |_| 1, &mut refused);
        queue.close();
        queue.push_all([2], |_| 1, &mut refused);
        assert_eq!(refused, [2]);
        let mut out = Vec::new();
        assert_eq!(queue.take(&mut out, Duration::from_secs(60)), Taken::Items);
        out.clear();
        assert_eq!(queue.take(&mut out, Duration::from_secs(60)), Taken::Closed);
    }

    #[test]
    fn a_sleeping_consumer_is_woken() {
        let queue = std::sync::Arc::new(Queue::new(8, 8));
        let consumer = std::thread::spawn({
            let queue = queue.clone();
            move || {
                let mut out = Vec::new();
                while queue.take(&mut out, Duration::from_secs(60)) != Taken::Items {}
                out
            }
        });
        queue.push_all([7], |_| 1, &mut Vec::new());
        assert_eq!(consumer.join().unwrap(), [7]);
    }
}

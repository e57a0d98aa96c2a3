//! Virtual time: a queue of future events. Of events at the same time, the one put in first comes first.

use std::collections::BTreeMap;

/// Microseconds since the start of the run.
pub type Micros = u64;

/// One millisecond.
pub const MS: Micros = 1_000;
/// One second.
pub const SECOND: Micros = 1_000_000;

/// Future events in order.
#[derive(Debug)]
pub struct Queue<E> {
    entries: BTreeMap<(Micros, u64), E>,
    serial: u64,
}

impl<E> Default for Queue<E> {
    fn default() -> Self {
        Self {
            entries: BTreeMap::new(),
            serial: 0,
        }
    }
}

impl<E> Queue<E> {
    /// Adds `event`, which happens at `at`.
    pub fn put(&mut self, at: Micros, event: E) {
        self.serial += 1;
        self.entries.insert((at, self.serial), event);
    }

    /// Time of the next event.
    pub fn next_at(&self) -> Option<Micros> {
        self.entries.first_key_value().map(|(key, _)| key.0)
    }

    /// The next event, if it is due at `now`.
    pub fn pop_due(&mut self, now: Micros) -> Option<E> {
        if self.next_at()? > now {
            return None;
        }
        self.entries.pop_first().map(|(_, event)| event)
    }

    /// Whether there is no event.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equals_keep_their_order() {
        let mut queue = Queue::default();
        for (at, name) in [(5, 'b'), (3, 'a'), (5, 'c')] {
            queue.put(at, name);
        }
        assert_eq!(queue.pop_due(2), None);
        let order: Vec<char> = std::iter::from_fn(|| queue.pop_due(9)).collect();
        assert_eq!(order, ['a', 'b', 'c']);
        assert!(queue.is_empty());
    }
}

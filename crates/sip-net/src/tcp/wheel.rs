//! The times at which connections are examined: a wheel of coarse ticks.
//!
//! Every message moves a connection's idle deadline. The connection keeps its old place, and moves when that
//! place comes up: once for each time-out, not for each message. A deadline that moves earlier gets a second
//! place; the first is then ignored.

use sip_core::id::ConnId;

/// Milliseconds of one tick.
pub(super) const TICK_MS: u64 = 100;

/// Ticks of one round (409.6 s). A deadline further off is examined once a round.
const SLOTS: u64 = 4096;

/// "No place in the wheel."
pub(super) const NEVER: u64 = u64::MAX;

#[derive(Debug)]
pub(super) struct Wheel {
    slots: Vec<Vec<ConnId>>,
    /// The next tick to be examined.
    tick: u64,
    /// The first tick with a place taken; [`NEVER`] if no place is.
    first: u64,
}

impl Wheel {
    pub(super) fn new(now_ms: u64) -> Self {
        Self {
            slots: (0..SLOTS).map(|_| Vec::new()).collect(),
            tick: now_ms / TICK_MS,
            first: NEVER,
        }
    }

    /// Has `id` examined once `deadline_ms` has passed, or earlier. `placed` is the tick at which it is to be
    /// examined already ([`NEVER`] for a new one). The caller keeps the returned tick with the connection.
    pub(super) fn place(&mut self, id: ConnId, deadline_ms: u64, placed: u64) -> u64 {
        let tick = (deadline_ms / TICK_MS + 1).clamp(self.tick, self.tick + SLOTS - 1);
        if placed <= tick {
            return placed;
        }
        if let Some(slot) = self.slots.get_mut((tick % SLOTS) as usize) {
            slot.push(id);
        }
        self.first = self.first.min(tick);
        tick
    }

    /// Moves the connections of ticks that have passed to `due`, each with its tick.
    pub(super) fn advance(&mut self, now_ms: u64, due: &mut Vec<(ConnId, u64)>) {
        let now = now_ms / TICK_MS;
        if now < self.first {
            self.tick = self.tick.max(now);
            return;
        }
        // Nothing is placed before `first`, or more than a round ahead of `tick`.
        let mut tick = self.first;
        while tick <= now && tick < self.tick + SLOTS {
            if let Some(slot) = self.slots.get_mut((tick % SLOTS) as usize) {
                due.extend(slot.drain(..).map(|id| (id, tick)));
                if slot.capacity() > 64 {
                    *slot = Vec::new();
                }
            }
            tick += 1;
        }
        self.tick = self.tick.max(now + 1);
        self.first = (0..SLOTS)
            .map(|ahead| self.tick + ahead)
            .find(|tick| {
                self.slots
                    .get((tick % SLOTS) as usize)
                    .is_some_and(|slot| !slot.is_empty())
            })
            .unwrap_or(NEVER);
    }

    /// The time at which [`Wheel::advance`] may find something due, milliseconds.
    pub(super) fn next_ms(&self) -> Option<u64> {
        (self.first != NEVER).then(|| self.first * TICK_MS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sip_core::id::WorkerId;

    fn id(slot: u32) -> ConnId {
        ConnId {
            worker: WorkerId(0),
            slot,
            generation: 1,
        }
    }

    fn due(wheel: &mut Wheel, now_ms: u64) -> Vec<u32> {
        let mut due = Vec::new();
        wheel.advance(now_ms, &mut due);
        due.into_iter().map(|(id, _)| id.slot).collect()
    }

    #[test]
    fn a_place_comes_up_after_its_deadline_and_not_before() {
        let mut wheel = Wheel::new(1_000);
        let placed = wheel.place(id(1), 5_050, NEVER);
        wheel.place(id(2), 2_000, NEVER);
        assert_eq!(wheel.next_ms(), Some(2_100));
        assert_eq!(due(&mut wheel, 2_099), Vec::<u32>::new());
        assert_eq!(due(&mut wheel, 2_100), vec![2]);
        assert_eq!(
            wheel.place(id(1), 9_000, placed),
            placed,
            "a later deadline waits for the earlier place"
        );
        assert_eq!(due(&mut wheel, 5_050), Vec::<u32>::new());
        assert_eq!(due(&mut wheel, 5_100), vec![1]);
        assert_eq!(wheel.next_ms(), None);
    }

    #[test]
    fn an_earlier_deadline_gets_a_place_of_its_own() {
        let mut wheel = Wheel::new(0);
        let late = wheel.place(id(1), 60_000, NEVER);
        let early = wheel.place(id(1), 1_000, late);
        assert!(early < late);
        assert_eq!(due(&mut wheel, 1_100), vec![1]);
        assert_eq!(wheel.next_ms(), Some(late * TICK_MS));
    }

    #[test]
    fn a_far_deadline_is_looked_at_within_a_round() {
        let mut wheel = Wheel::new(0);
        let placed = wheel.place(id(1), u64::MAX / 2, NEVER);
        assert_eq!(placed, SLOTS - 1);
        assert_eq!(due(&mut wheel, SLOTS * TICK_MS), vec![1]);
    }

    #[test]
    fn a_long_pause_loses_nothing() {
        let mut wheel = Wheel::new(0);
        for slot in 0..100 {
            wheel.place(id(slot), u64::from(slot) * 3_000, NEVER);
        }
        assert_eq!(due(&mut wheel, 10_000_000).len(), 100);
        assert_eq!(due(&mut wheel, 10_000_000), Vec::<u32>::new());
        wheel.place(id(7), 10_000_500, NEVER);
        assert_eq!(due(&mut wheel, 10_000_700), vec![7]);
    }
}

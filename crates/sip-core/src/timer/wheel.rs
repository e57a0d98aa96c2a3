//! A hierarchical timing wheel: O(1) start and cancel, deterministic, no allocation per timer.
//!
//! ```text
//! near    8,192 slots of one tick (33.5 s)       every transaction timer starts here
//! far[0]     64 slots of 8,192 ticks  (36 min)   timer C, for instance
//! far[1]     64 slots of 2^19 ticks   (38 h)
//! far[2]     64 slots of 2^25 ticks   (101 days; 2^32 ms are less than half)
//! ```
//!
//! A timer goes into the finest ring that reaches its deadline, and moves to a finer one when the wheel
//! arrives at the start of its slot. The near ring is long so that the timers of each transaction (64·T1 = 32
//! s and shorter) are never moved. The work of moving would come in lumps of a whole slot, and such a lump is
//! a stall of all signalling.
//!
//! Bitmaps show which slots hold timers. So advancing costs the timers that fire and the slots that move,
//! however long the jump.
//!
//! **Order.** Timers fire in the order of their deadline's tick; of equals, the one started first fires
//! first. That holds across the rings: of two timers with the same tick in different rings, the one in the
//! coarser was started earlier (the wheel only goes forward). So timers that move to a finer ring are put
//! before those that are there.

use crate::slab::{Key, Slab};
use crate::time::{Instant, Millis};
use alloc::boxed::Box;
use alloc::vec;

/// Length of a tick, microseconds. A timer fires at most this much late, given that
/// [`Wheel::advance`] is called when [`Wheel::next_deadline`] says.
pub const TICK_US: u64 = 1 << TICK_BITS;

const TICK_BITS: u32 = 12;
const LAST_TICK: u64 = u64::MAX >> TICK_BITS;

const NEAR_BITS: u32 = 13;
const NEAR_SLOTS: usize = 1 << NEAR_BITS;
const NEAR_WORDS: usize = NEAR_SLOTS / 64;
const FAR_BITS: u32 = 6;
const FAR_SLOTS: usize = 1 << FAR_BITS;
const FAR_RINGS: usize = 3;

/// The ticks that the wheel may be behind when a timer is started; if it is further behind, it is first
/// brought to the present. So a deadline is always less than `2 * MAX_LAG_TICKS`, the reach of the last ring,
/// ahead.
const MAX_LAG_TICKS: u64 = 1 << (NEAR_BITS + FAR_BITS * FAR_RINGS as u32 - 1);

/// The longest duration, 2^32 - 1 ms, in ticks, rounded up.
const LONGEST_TICKS: u64 = (u32::MAX as u64 * 1000).div_ceil(TICK_US);
const _: () = assert!(LONGEST_TICKS < MAX_LAG_TICKS);
const _: () = assert!(NEAR_WORDS == u128::BITS as usize);

/// No node: end of a list.
const NIL: u32 = u32::MAX;

/// The identifier of a started timer. If the timer fired or was cancelled, its identifier does nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TimerId(Key);

/// A timer. The list that holds it follows from `deadline`, `ring` and the wheel's time:
/// the due list once the deadline's tick has been reached, else a slot of its ring.
#[derive(Clone, Copy, Debug)]
struct Node<K> {
    /// Tick in the upper bits, ring (0: near, 1 + n: far\[n\]) in the lower two.
    deadline_and_ring: u64,
    prev: u32,
    next: u32,
    key: K,
}

impl<K> Node<K> {
    fn deadline(&self) -> u64 {
        self.deadline_and_ring >> 2
    }

    fn ring(&self) -> usize {
        (self.deadline_and_ring & 3) as usize
    }
}

#[derive(Clone, Copy, Debug)]
struct List {
    head: u32,
    tail: u32,
}

impl List {
    const EMPTY: Self = Self { head: NIL, tail: NIL };

    fn is_empty(self) -> bool {
        self.head == NIL
    }
}

/// The end of a list that a timer joins.
#[derive(Clone, Copy)]
enum End {
    Front,
    Back,
}

#[derive(Clone, Debug)]
struct FarRing {
    slots: [List; FAR_SLOTS],
    /// Bit n: slot n is not empty.
    occupied: u64,
}

impl FarRing {
    /// Start of the first slot that holds timers after tick `at`; `shift`: log2 of a slot's ticks.
    /// The slot of `at` itself holds those of the next turn.
    fn next_start(&self, at: u64, shift: u32) -> Option<u64> {
        if self.occupied == 0 {
            return None;
        }
        let here = at >> shift;
        let from_next = self.occupied.rotate_right(((here + 1) % FAR_SLOTS as u64) as u32);
        Some((here + 1 + u64::from(from_next.trailing_zeros())) << shift)
    }
}

/// Log2 of the ticks in one slot of far ring `ring`.
const fn far_shift(ring: usize) -> u32 {
    NEAR_BITS + FAR_BITS * ring as u32
}

/// The wheel; `K` is the value that [`Wheel::pop_due`] gives back when a timer fires.
#[derive(Clone, Debug)]
pub struct Wheel<K> {
    nodes: Slab<Node<K>>,
    /// The tick up to which (inclusive) all timers have been moved to `due`.
    now: u64,
    due: List,
    near: Box<[List]>,
    /// One bit per near slot: whether it holds timers.
    near_occupied: [u64; NEAR_WORDS],
    /// One bit per word of `near_occupied`: whether the word is not zero.
    near_words: u128,
    far: Box<[FarRing; FAR_RINGS]>,
}

impl<K: Copy> Default for Wheel<K> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Copy> Wheel<K> {
    /// An empty wheel at the clock's origin.
    pub fn new() -> Self {
        Self {
            nodes: Slab::default(),
            now: 0,
            due: List::EMPTY,
            near: vec![List::EMPTY; NEAR_SLOTS].into_boxed_slice(),
            near_occupied: [0; NEAR_WORDS],
            near_words: 0,
            far: Box::new(
                [const {
                    FarRing {
                        slots: [List::EMPTY; FAR_SLOTS],
                        occupied: 0,
                    }
                }; FAR_RINGS],
            ),
        }
    }

    /// Starts a timer that fires `after` from `now`, rounded up to the next tick.
    ///
    /// If `after` is zero, or the deadline has passed, the timer fires at the next call of [`Wheel::advance`]
    /// or at once, in turn. Instants in the last tick of the clock's range count as its start.
    pub fn start(&mut self, now: Instant, after: Millis, key: K) -> TimerId {
        let now_tick = now.as_micros() >> TICK_BITS;
        if now_tick.saturating_sub(self.now) >= MAX_LAG_TICKS {
            self.advance(now);
        }
        let deadline = (now + after).as_micros().div_ceil(TICK_US).min(LAST_TICK);
        // Fewer than 2^32 nodes: the tables that own the timers are bounded.
        let id = self.nodes.insert(Node {
            deadline_and_ring: 0,
            prev: NIL,
            next: NIL,
            key,
        });
        debug_assert_ne!(id.slot, NIL);
        self.place(id.slot, deadline, End::Back);
        TimerId(id)
    }

    /// Stops a timer. Returns whether the timer was still to fire, as due timers are until they are popped.
    pub fn cancel(&mut self, id: TimerId) -> bool {
        let TimerId(id) = id;
        if self.nodes.get(id).is_none() {
            return false;
        }
        self.unlink(id.slot);
        self.nodes.remove(id);
        true
    }

    /// Moves time forward to `now` (never back) and makes the timers that have come due available to
    /// [`Wheel::pop_due`].
    pub fn advance(&mut self, now: Instant) {
        let target = now.as_micros() >> TICK_BITS;
        if target <= self.now {
            return;
        }
        while let Some(next) = self.next_tick().filter(|next| *next <= target) {
            self.now = next;
            self.turn_far_rings();
            self.fire_near_slot();
        }
        self.now = target;
    }

    /// Removes the next timer that has fired, and returns its value.
    #[must_use]
    pub fn pop_due(&mut self) -> Option<K> {
        let (id, node) = self.nodes.at(self.due.head)?;
        let key = node.key;
        self.unlink(id.slot);
        self.nodes.remove(id);
        Some(key)
    }

    /// The time to call [`Wheel::advance`] next: never later than a timer's tick, and earlier if a far slot
    /// has to be spread first. `None`: no timer runs.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let tick = if self.due.is_empty() {
            self.next_tick()?
        } else {
            self.now
        };
        Some(Instant::from_micros(tick << TICK_BITS))
    }

    /// Timers that run or wait to be popped.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether no timer runs or waits to be popped.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The first tick after `self.now` at which a slot has to be dealt with.
    fn next_tick(&self) -> Option<u64> {
        let mut first = self.next_near_tick();
        for (ring, far) in self.far.iter().enumerate() {
            if let Some(start) = far.next_start(self.now, far_shift(ring)) {
                first = Some(first.map_or(start, |f| f.min(start)));
            }
        }
        first
    }

    /// The first tick after `self.now` with timers in its near slot.
    fn next_near_tick(&self) -> Option<u64> {
        if self.near_words == 0 {
            return None;
        }
        let here = (self.now as usize) % NEAR_SLOTS;
        let (word, bit) = (here / 64, here % 64);
        // Bits above `bit`; the shift by 64 of the last bit must give none.
        let rest = self.near_occupied[word] & (u64::MAX << bit << 1);
        let slot = if rest != 0 {
            word * 64 + rest.trailing_zeros() as usize
        } else {
            let turn = (word as u32 + 1) % u128::BITS;
            let ahead = self.near_words.rotate_right(turn).trailing_zeros();
            let found = ((turn + ahead) % u128::BITS) as usize;
            found * 64 + self.near_occupied[found].trailing_zeros() as usize
        };
        let distance = (slot + NEAR_SLOTS - here) % NEAR_SLOTS;
        debug_assert_ne!(distance, 0, "the slot of the present is empty between advances");
        Some(self.now + distance as u64)
    }

    /// Spreads the far slots that start at the present tick. The finer ring comes first, so that timers from
    /// the coarser (started earlier) end up in front.
    fn turn_far_rings(&mut self) {
        for ring in 0..FAR_RINGS {
            let shift = far_shift(ring);
            if self.now & ((1 << shift) - 1) != 0 {
                break;
            }
            let index = (self.now >> shift) as usize % FAR_SLOTS;
            let far = &mut self.far[ring];
            let list = core::mem::replace(&mut far.slots[index], List::EMPTY);
            far.occupied &= !(1 << index);
            // From the back, each to the front: the order stays.
            let mut slot = list.tail;
            while slot != NIL {
                let Some((_, node)) = self.nodes.at(slot) else {
                    break;
                };
                let (deadline, prev) = (node.deadline(), node.prev);
                self.place_ahead(slot, deadline, End::Front);
                slot = prev;
            }
        }
    }

    /// Appends the near slot of the present tick to the due list.
    fn fire_near_slot(&mut self) {
        let index = (self.now as usize) % NEAR_SLOTS;
        let list = core::mem::replace(&mut self.near[index], List::EMPTY);
        if list.is_empty() {
            return;
        }
        self.mark_near_empty(index);
        if self.due.is_empty() {
            self.due = list;
        } else {
            if let Some(last) = self.nodes.at_mut(self.due.tail) {
                last.next = list.head;
            }
            if let Some(first) = self.nodes.at_mut(list.head) {
                first.prev = self.due.tail;
            }
            self.due.tail = list.tail;
        }
    }

    /// Links an unlinked node where its deadline belongs.
    fn place(&mut self, slot: u32, deadline: u64, end: End) {
        if deadline <= self.now {
            // Due timers are in order of their tick: this one counts as due at the present tick.
            if let Some(node) = self.nodes.at_mut(slot) {
                node.deadline_and_ring = self.now << 2;
            }
            Self::link(&mut self.nodes, &mut self.due, slot, end);
        } else {
            self.place_ahead(slot, deadline, end);
        }
    }

    /// Links an unlinked node into a ring; `deadline` is not before the present tick.
    fn place_ahead(&mut self, slot: u32, deadline: u64, end: End) {
        let ahead = deadline - self.now;
        if ahead < NEAR_SLOTS as u64 {
            if let Some(node) = self.nodes.at_mut(slot) {
                node.deadline_and_ring = deadline << 2;
            }
            let index = (deadline as usize) % NEAR_SLOTS;
            Self::link(&mut self.nodes, &mut self.near[index], slot, end);
            self.near_occupied[index / 64] |= 1 << (index % 64);
            self.near_words |= 1 << (index / 64);
            return;
        }
        let ring = (1..FAR_RINGS)
            .find(|ring| ahead < 1 << far_shift(*ring))
            .unwrap_or(FAR_RINGS)
            - 1;
        if let Some(node) = self.nodes.at_mut(slot) {
            node.deadline_and_ring = deadline << 2 | (ring as u64 + 1);
        }
        let index = (deadline >> far_shift(ring)) as usize % FAR_SLOTS;
        let far = &mut self.far[ring];
        Self::link(&mut self.nodes, &mut far.slots[index], slot, end);
        far.occupied |= 1 << index;
    }

    fn link(nodes: &mut Slab<Node<K>>, list: &mut List, slot: u32, end: End) {
        let (prev, next) = match end {
            End::Front => (NIL, list.head),
            End::Back => (list.tail, NIL),
        };
        if let Some(node) = nodes.at_mut(slot) {
            node.prev = prev;
            node.next = next;
        }
        match nodes.at_mut(prev) {
            Some(before) => before.next = slot,
            None => list.head = slot,
        }
        match nodes.at_mut(next) {
            Some(after) => after.prev = slot,
            None => list.tail = slot,
        }
    }

    /// Removes a node from the list that holds it.
    fn unlink(&mut self, slot: u32) {
        let Some((_, &node)) = self.nodes.at(slot) else {
            return;
        };
        let (prev, next) = (node.prev, node.next);
        if let Some(before) = self.nodes.at_mut(prev) {
            before.next = next;
        }
        if let Some(after) = self.nodes.at_mut(next) {
            after.prev = prev;
        }
        if prev != NIL && next != NIL {
            return;
        }
        let (deadline, ring) = (node.deadline(), node.ring());
        let near_index = (deadline as usize) % NEAR_SLOTS;
        let far_index = ring
            .checked_sub(1)
            .map(|r| (r, (deadline >> far_shift(r)) as usize % FAR_SLOTS));
        let is_due = deadline <= self.now;
        let list = match far_index {
            _ if is_due => &mut self.due,
            None => &mut self.near[near_index],
            Some((r, index)) => &mut self.far[r].slots[index],
        };
        if prev == NIL {
            list.head = next;
        }
        if next == NIL {
            list.tail = prev;
        }
        if is_due || !list.is_empty() {
            return;
        }
        match far_index {
            None => self.mark_near_empty(near_index),
            Some((r, index)) => self.far[r].occupied &= !(1 << index),
        }
    }

    fn mark_near_empty(&mut self, index: usize) {
        let word = &mut self.near_occupied[index / 64];
        *word &= !(1 << (index % 64));
        if *word == 0 {
            self.near_words &= !(1 << (index / 64));
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use alloc::vec::Vec;

    fn at_tick(tick: u64) -> Instant {
        Instant::from_micros(tick << TICK_BITS)
    }

    fn drain(wheel: &mut Wheel<u32>) -> Vec<u32> {
        core::iter::from_fn(|| wheel.pop_due()).collect()
    }

    /// The specification of the wheel, written plainly: timers by (tick, order of start).
    #[derive(Default)]
    struct Model {
        now: u64,
        started: u64,
        timers: BTreeMap<(u64, u64), u32>,
    }

    impl Model {
        fn start(&mut self, now: Instant, after: Millis, key: u32) -> (u64, u64) {
            let deadline = (now + after).as_micros().div_ceil(TICK_US).min(LAST_TICK);
            let now_tick = now.as_micros() / TICK_US;
            if now_tick.saturating_sub(self.now) >= MAX_LAG_TICKS {
                self.now = now_tick;
            }
            self.started += 1;
            let place = (deadline.max(self.now), self.started);
            self.timers.insert(place, key);
            place
        }

        fn pop(&mut self) -> Option<u32> {
            let entry = self.timers.first_entry()?;
            (entry.key().0 <= self.now).then(|| entry.remove())
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Start { ahead_us: u64, after_ms: u32 },
        Cancel(prop::sample::Index),
        Advance { us: u64 },
        ToNextDeadline,
        Pop,
    }

    fn micros() -> impl Strategy<Value = u64> {
        prop_oneof![
            5 => 0..20_000u64,
            5 => 0..40_000_000u64,
            2 => 0..10_000_000_000u64,
            1 => 0..5_000_000_000_000u64,
            1 => any::<u64>().prop_map(|us| us >> 8),
        ]
    }

    fn millis() -> impl Strategy<Value = u32> {
        prop_oneof![
            4 => prop::sample::select(vec![0, 1, 4, 200, 500, 1000, 4000, 32_000, 64_000, 180_000]),
            4 => 0..40_000u32,
            2 => 0..3_000_000u32,
            1 => any::<u32>(),
            1 => Just(u32::MAX),
        ]
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            8 => (prop_oneof![3 => Just(0), 1 => micros()], millis())
                .prop_map(|(ahead_us, after_ms)| Step::Start { ahead_us, after_ms }),
            3 => any::<prop::sample::Index>().prop_map(Step::Cancel),
            3 => micros().prop_map(|us| Step::Advance { us }),
            3 => Just(Step::ToNextDeadline),
            4 => Just(Step::Pop),
        ]
    }

    /// Runs the steps on wheel and model, from `origin`; they must agree on everything.
    fn run_beside_the_model(origin: u64, steps: Vec<Step>) {
        let mut wheel = Wheel::new();
        let mut model = Model::default();
        let mut clock = origin;
        let mut ids = Vec::new();
        for (key, step) in (0u32..).zip(steps) {
            match step {
                Step::Start { ahead_us, after_ms } => {
                    let now = Instant::from_micros(clock.saturating_add(ahead_us));
                    let place = model.start(now, Millis(after_ms), key);
                    ids.push((wheel.start(now, Millis(after_ms), key), place));
                }
                Step::Cancel(index) if !ids.is_empty() => {
                    let (id, place) = *index.get(&ids);
                    assert_eq!(wheel.cancel(id), model.timers.remove(&place).is_some());
                }
                Step::Cancel(_) => {}
                Step::Advance { us } => {
                    clock = clock.saturating_add(us);
                    wheel.advance(Instant::from_micros(clock));
                    model.now = model.now.max(clock / TICK_US);
                }
                Step::ToNextDeadline => {
                    let Some(next) = wheel.next_deadline() else {
                        continue;
                    };
                    clock = clock.max(next.as_micros());
                    wheel.advance(Instant::from_micros(clock));
                    model.now = model.now.max(clock / TICK_US);
                }
                Step::Pop => assert_eq!(wheel.pop_due(), model.pop()),
            }
            assert_eq!(wheel.len(), model.timers.len());
            let first = model.timers.keys().next().map(|(tick, _)| *tick);
            match (wheel.next_deadline(), first) {
                (None, None) => {}
                (Some(next), Some(tick)) => assert!(next <= at_tick(tick.max(model.now)), "late"),
                (next, tick) => panic!("next deadline {next:?} beside {tick:?}"),
            }
        }
        while !model.timers.is_empty() {
            let next = wheel.next_deadline().unwrap();
            wheel.advance(next);
            model.now = model.now.max(next.as_micros() / TICK_US);
            while let Some(key) = model.pop() {
                assert_eq!(wheel.pop_due(), Some(key));
            }
            assert_eq!(wheel.pop_due(), None);
        }
        assert!(wheel.is_empty() && wheel.next_deadline().is_none());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        #[test]
        fn behaves_as_the_model(
            origin in prop_oneof![Just(0), any::<u64>(), (0..64u64).prop_map(|b| u64::MAX << b)],
            steps in prop::collection::vec(step(), 0..200),
        ) {
            run_beside_the_model(origin, steps);
        }

        /// A timer never fires early, and at most a tick late if woken as asked, whatever its ring.
        #[test]
        fn fires_within_a_tick(start_us in any::<u64>().prop_map(|us| us >> 4), after_ms in any::<u32>()) {
            let mut wheel = Wheel::new();
            let now = Instant::from_micros(start_us);
            wheel.advance(now);
            wheel.start(now, Millis(after_ms), 7u32);
            let mut wakes = 0;
            loop {
                let next = wheel.next_deadline().unwrap();
                wheel.advance(next);
                if let Some(key) = wheel.pop_due() {
                    prop_assert_eq!(key, 7);
                    let late = next.as_micros() as i128 - (now + Millis(after_ms)).as_micros() as i128;
                    prop_assert!((0..TICK_US as i128).contains(&late), "{late} µs late");
                    break;
                }
                wakes += 1;
                prop_assert!(wakes <= FAR_RINGS, "one wake-up per ring at most");
            }
        }
    }

    #[test]
    fn equal_deadlines_fire_in_order_of_start_across_rings() {
        let mut wheel = Wheel::new();
        let deadline = at_tick(3 << 19);
        // Started further and further on: each lands in a finer ring.
        for (key, back) in [
            (0u32, 3 << 19),
            (1, 1 << 19),
            (2, 5 << 13),
            (3, 1 << 13),
            (4, 100),
            (5, 1),
        ] {
            let now = at_tick((3 << 19) - back);
            wheel.advance(now);
            let after = (deadline.as_micros() - now.as_micros()).div_ceil(1000);
            // Whole milliseconds: aim at the tick from just before it.
            wheel.start(now, Millis(after as u32 - 1), key);
        }
        wheel.advance(at_tick((3 << 19) - 1));
        assert_eq!(drain(&mut wheel), [0u32; 0]);
        wheel.advance(deadline);
        assert_eq!(drain(&mut wheel), [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn a_periodic_timer_does_not_drift() {
        let mut wheel = Wheel::new();
        let mut deadline = Instant::from_micros(1_234_567);
        wheel.start(deadline, Millis(0), 0u32);
        for _ in 0..100_000 {
            let next = wheel.next_deadline().unwrap();
            wheel.advance(next);
            if wheel.pop_due().is_some() {
                assert!(next.micros_since(deadline) < TICK_US);
                deadline = deadline + Millis(20);
                wheel.start(deadline, Millis(0), 0);
            }
        }
    }

    #[test]
    fn a_cancelled_or_fired_timer_is_named_no_more() {
        let mut wheel = Wheel::new();
        let first = wheel.start(Instant::ORIGIN, Millis(10), 1u32);
        assert!(wheel.cancel(first));
        assert!(!wheel.cancel(first));
        let second = wheel.start(Instant::ORIGIN, Millis(10), 2);
        assert_eq!(second.0.slot, first.0.slot, "the slot is used again");
        assert!(!wheel.cancel(first), "but not by its old name");
        wheel.advance(at_tick(10));
        assert_eq!(wheel.pop_due(), Some(2));
        assert!(!wheel.cancel(second));
    }

    #[test]
    fn a_due_timer_can_be_cancelled_before_it_is_popped() {
        let mut wheel = Wheel::new();
        let ids: Vec<_> = (0u32..4)
            .map(|key| wheel.start(Instant::ORIGIN, Millis(10), key))
            .collect();
        wheel.advance(at_tick(10));
        assert!(wheel.cancel(ids[0]) && wheel.cancel(ids[2]) && wheel.cancel(ids[3]));
        assert_eq!(drain(&mut wheel), [1]);
        assert!(wheel.is_empty());
    }

    #[test]
    fn memory_is_used_again() {
        let mut wheel = Wheel::new();
        let mut now = Instant::ORIGIN;
        for round in 0..1000 {
            let ids: Vec<_> = (0u32..100)
                .map(|key| wheel.start(now, Millis(32_000), key))
                .collect();
            for id in &ids[..50] {
                assert!(wheel.cancel(*id));
            }
            now = now + Millis(40_000);
            wheel.advance(now);
            assert!(ids.iter().all(|id| id.0.slot < 100), "round {round}");
            assert_eq!(drain(&mut wheel).len(), 50, "round {round}");
        }
        assert!(wheel.nodes.is_empty());
    }

    #[test]
    fn a_long_jump_costs_what_fires() {
        // The whole range of the clock in one step: this ends only because ticks are skipped.
        let mut wheel = Wheel::new();
        wheel.start(Instant::ORIGIN, Millis(u32::MAX), 1u32);
        wheel.start(Instant::ORIGIN, Millis(1), 2);
        wheel.advance(Instant::from_micros(u64::MAX));
        assert_eq!(drain(&mut wheel), [2, 1]);
        wheel.start(Instant::from_micros(u64::MAX), Millis(500), 3);
        assert_eq!(drain(&mut wheel), [3], "nothing lies beyond the last tick");
    }

    #[test]
    fn ids_and_nodes_are_small() {
        assert_eq!(size_of::<Option<TimerId>>(), 8);
        assert!(size_of::<Node<[u32; 3]>>() <= 32);
    }
}

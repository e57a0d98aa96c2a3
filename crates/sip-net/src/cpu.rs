//! The CPU time of a worker, split by component.
//!
//! If the split is off, nothing is measured. If it is on, the worker measures one turn of its loop in
//! [`EVERY`], chosen at random. In such a turn the protocol engine and the loop report each change of
//! component ([`Activity`]), and the clock is read at each change. In the other turns no observer is
//! attached. A few times a second the thread's CPU time since the last division is divided in the proportions
//! of the turns measured meanwhile. The thread's own clock gives that time to the nanosecond, so the parts
//! add up to the CPU time that the thread has used.

use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sip_core::activity::{Activity, Component, Observer};

use crate::sys::thread_cpu_ns;

/// One turn in this many is measured. A measured change of component costs some 40 ns, and each of the three
/// readings of the thread's clock 600 ns. With one turn in 16 that is at most 1 % of the CPU time. The most
/// is reached at low load, if each turn has one message only.
pub const EVERY: u32 = 16;

/// Number of measured turns that suffices for a division.
const ENOUGH_TURNS: u64 = 8;

/// Time after which fewer turns suffice, because there is little CPU time to divide.
const AT_MOST: Duration = Duration::from_secs(1);

/// A turn counts as interrupted if the clock exceeds the thread's CPU time by more than this: another thread,
/// or another virtual machine, ran meanwhile.
const INTERRUPTED_NS: u64 = 5_000;

/// CPU time by component.
pub type Nanoseconds = [u64; Component::COUNT];

/// CPU time of one worker since splitting was last switched on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuSplit {
    /// Whether the split is on.
    pub on: bool,
    /// CPU time in the order of [`Component::ALL`]. The sum is what the thread has used, except for the last
    /// fraction of a second.
    pub ns: Nanoseconds,
    /// Number of measured turns.
    pub turns: u64,
}

impl CpuSplit {
    /// CPU time of a component, nanoseconds.
    pub fn of(&self, component: Component) -> u64 {
        self.ns.get(component as usize).copied().unwrap_or(0)
    }

    /// CPU time of all components, nanoseconds.
    pub fn total(&self) -> u64 {
        self.ns.iter().sum()
    }
}

/// A measured turn, with the time spent in each component.
#[derive(Clone, Debug)]
struct Turn {
    current: Component,
    since_ns: u64,
    spent: Nanoseconds,
    /// The longest time without a change, nanoseconds, and its component.
    longest: (u64, Component),
    changes: u64,
    /// The cost of measuring one change, nanoseconds, which counts for no component.
    change_ns: u64,
}

impl Turn {
    fn new(change_ns: u64) -> Self {
        Self {
            current: Component::Other,
            since_ns: 0,
            spent: [0; Component::COUNT],
            longest: (0, Component::Other),
            changes: 0,
            change_ns,
        }
    }

    fn begin(&mut self, now_ns: u64) {
        *self = Self {
            since_ns: now_ns,
            ..Self::new(self.change_ns)
        };
    }

    fn enter(&mut self, component: Component, now_ns: u64) -> Component {
        let passed = now_ns.saturating_sub(self.since_ns);
        let ns = passed.saturating_sub(self.change_ns);
        add(&mut self.spent, self.current, ns);
        if ns > self.longest.0 {
            self.longest = (ns, self.current);
        }
        self.since_ns = now_ns;
        self.changes += 1;
        mem::replace(&mut self.current, component)
    }

    /// Ends the turn, for which the thread had `cpu_ns`. Time in which the thread did not run is deducted
    /// from the longest interval between changes: the interruption most likely lies in it.
    fn end(&mut self, now_ns: u64, cpu_ns: u64) -> Nanoseconds {
        self.enter(Component::Other, now_ns);
        let worked = cpu_ns.saturating_sub(self.changes * self.change_ns);
        let excess = self.spent.iter().sum::<u64>().saturating_sub(worked);
        if excess > INTERRUPTED_NS {
            let (length, component) = self.longest;
            if let Some(ns) = self.spent.get_mut(component as usize) {
                *ns = ns.saturating_sub(excess.min(length));
            }
        }
        self.spent
    }
}

fn add(to: &mut Nanoseconds, component: Component, ns: u64) {
    if let Some(sum) = to.get_mut(component as usize) {
        *sum += ns;
    }
}

/// Divides the thread's CPU time in the proportions of the measured turns.
#[derive(Clone, Debug, Default)]
struct Division {
    /// Sum of the turns measured since the last division.
    measured: Nanoseconds,
    turns: u64,
    /// The thread's CPU time at the last division.
    divided_ns: u64,
    split: CpuSplit,
}

impl Division {
    fn measured(&mut self, turn: &Nanoseconds) {
        for (sum, ns) in self.measured.iter_mut().zip(turn) {
            *sum += ns;
        }
        self.turns += 1;
        self.split.turns += 1;
    }

    /// Divides the thread's CPU time up to `cpu_ns`. If nothing was measured, the next call divides it.
    fn divide(&mut self, cpu_ns: u64) {
        let measured: u64 = self.measured.iter().sum();
        if measured == 0 {
            return;
        }
        let used = cpu_ns.saturating_sub(self.divided_ns);
        let mut left = used;
        for (total, part) in self.split.ns.iter_mut().zip(&self.measured) {
            let ns = (u128::from(used) * u128::from(*part) / u128::from(measured)) as u64;
            *total += ns;
            left -= ns;
        }
        // Fractions of nanoseconds: fewer nanoseconds than there are components.
        add(&mut self.split.ns, Component::Other, left);
        self.divided_ns = cpu_ns;
        self.measured = [0; Component::COUNT];
        self.turns = 0;
    }

    /// Ends the division. Time without a measured turn counts as other.
    fn close(&mut self, cpu_ns: u64) {
        self.divide(cpu_ns);
        add(
            &mut self.split.ns,
            Component::Other,
            cpu_ns.saturating_sub(self.divided_ns),
        );
        self.divided_ns = cpu_ns;
        self.split.on = false;
    }
}

/// The observer of the turn under way. Only its worker's thread uses it.
#[derive(Debug)]
struct Watch {
    origin: Instant,
    turn: Mutex<Turn>,
}

impl Watch {
    fn now_ns(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

impl Observer for Watch {
    fn enter(&self, component: Component) -> Component {
        self.turn.lock().enter(component, self.now_ns())
    }
}

/// The meter of a worker, on the worker's thread.
#[derive(Debug)]
pub(crate) struct Meter {
    watch: Arc<Watch>,
    division: Division,
    /// State of the generator that chooses turns.
    dice: u32,
    /// The cost of reading the thread's clock, nanoseconds.
    reading_ns: u64,
    /// The thread's CPU time at the beginning and the end of the wait before the turn, if the turn is
    /// measured.
    wait: Option<(u64, u64)>,
    divided_at: Instant,
}

impl Meter {
    /// A meter that is off. `seed` chooses the turns.
    pub(crate) fn new(seed: u32) -> Self {
        Self {
            watch: Arc::new(Watch {
                origin: Instant::now(),
                turn: Mutex::new(Turn::new(0)),
            }),
            division: Division::default(),
            dice: seed | 1,
            reading_ns: 0,
            wait: None,
            divided_at: Instant::now(),
        }
    }

    /// Switches the meter on or off. The split remains until the meter is switched on again.
    pub(crate) fn switch(&mut self, on: bool) {
        if on == self.division.split.on {
            return;
        }
        if on {
            self.calibrate();
            self.division = Division {
                divided_ns: thread_cpu_ns(),
                ..Division::default()
            };
            self.division.split.on = true;
            self.divided_at = Instant::now();
        } else {
            self.wait = None;
            self.division.close(thread_cpu_ns());
        }
    }

    /// Finds the cost of measuring on this machine, the best of several rounds: that cost must count for no
    /// component.
    fn calibrate(&mut self) {
        const ROUNDS: u32 = 8;
        const CHANGES: u64 = 64;
        *self.watch.turn.lock() = Turn::new(0);
        let activity = Activity::observed(Arc::<Watch>::clone(&self.watch));
        let change = (0..ROUNDS).map(|_| {
            let begun = self.watch.now_ns();
            for _ in 0..CHANGES {
                activity.enter(Component::Other);
            }
            self.watch.now_ns().saturating_sub(begun) / CHANGES
        });
        let change_ns = change.min().unwrap_or(0);
        let reading = (0..ROUNDS).map(|_| {
            let before = thread_cpu_ns();
            thread_cpu_ns().saturating_sub(before)
        });
        self.reading_ns = reading.min().unwrap_or(0);
        *self.watch.turn.lock() = Turn::new(change_ns);
    }

    /// Begins a wait. Returns whether the wait and the turn after it are measured.
    pub(crate) fn begin_wait(&mut self) -> bool {
        if !self.division.split.on {
            return false;
        }
        // Marsaglia's xorshift. Its lowest bits alone have so short a period that loops could be in step with
        // them.
        self.dice ^= self.dice << 13;
        self.dice ^= self.dice >> 17;
        self.dice ^= self.dice << 5;
        if !(self.dice >> 8).is_multiple_of(EVERY) {
            return false;
        }
        let cpu_ns = thread_cpu_ns();
        self.wait = Some((cpu_ns, cpu_ns));
        true
    }

    /// Ends the wait and begins the turn. Returns the observer of the turn's changes.
    pub(crate) fn begin_turn(&mut self) -> Activity {
        if let Some((_, end)) = &mut self.wait {
            *end = thread_cpu_ns();
        }
        self.watch.turn.lock().begin(self.watch.now_ns());
        Activity::observed(Arc::<Watch>::clone(&self.watch))
    }

    /// Ends the turn.
    pub(crate) fn end_turn(&mut self) {
        // The meter may have been switched off in this turn.
        let Some((before, after)) = self.wait.take() else {
            return;
        };
        let now_ns = self.watch.now_ns();
        let used = thread_cpu_ns().saturating_sub(after + self.reading_ns);
        let mut turn = self.watch.turn.lock().end(now_ns, used);
        let waited = after.saturating_sub(before + self.reading_ns);
        add(&mut turn, Component::Wait, waited);
        self.division.measured(&turn);
    }

    /// Whether measured turns wait for a division. If so, [`Meter::read`] must be called again even if
    /// nothing else happens.
    pub(crate) fn has_more(&self) -> bool {
        self.division.split.on && self.division.turns > 0
    }

    /// The split to be published. Divides first, if enough turns were measured.
    pub(crate) fn read(&mut self) -> CpuSplit {
        let division = &mut self.division;
        if division.split.on
            && (division.turns >= ENOUGH_TURNS || division.turns > 0 && self.divided_at.elapsed() >= AT_MOST)
        {
            division.divide(thread_cpu_ns());
            self.divided_at = Instant::now();
        }
        division.split
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn component() -> impl Strategy<Value = Component> {
        (0..Component::COUNT).prop_map(|place| Component::ALL[place])
    }

    fn sum(of: &Nanoseconds) -> u64 {
        of.iter().sum()
    }

    /// Uses made-up times, and compares the nanoseconds of each component.
    #[test]
    fn a_turn_is_divided_where_its_changes_are() {
        let mut turn = Turn::new(10);
        turn.begin(1_000);
        let shell = turn.enter(Component::Parse, 1_110);
        assert_eq!(shell, Component::Other);
        let before = turn.enter(Component::Auth, 1_320);
        assert_eq!(before, Component::Parse);
        assert_eq!(turn.enter(before, 11_330), Component::Auth);
        turn.enter(Component::Send, 11_540);
        // A time shorter than the cost of measuring counts as zero, not as less.
        turn.enter(Component::Tls, 11_545);
        let spent = turn.end(11_645, 10_645);
        let mut expected = [0; Component::COUNT];
        for (component, ns) in [
            (Component::Other, 100),
            (Component::Parse, 200 + 200),
            (Component::Auth, 10_000),
            (Component::Tls, 90),
        ] {
            expected[component as usize] = ns;
        }
        assert_eq!(spent, expected);
        turn.begin(20_000);
        assert_eq!(
            sum(&turn.end(20_110, 110)),
            100,
            "nothing is left of the turn before"
        );
    }

    #[test]
    fn time_without_the_processor_is_no_work() {
        let mut turn = Turn::new(0);
        turn.begin(0);
        turn.enter(Component::Parse, 1_000);
        turn.enter(Component::Send, 4_000);
        // Another thread ran for 2 ms while this one was sending.
        turn.enter(Component::Route, 2_010_000);
        let spent = turn.end(2_011_000, 11_000);
        let of = |component| spent[component as usize];
        assert_eq!(
            (
                of(Component::Other),
                of(Component::Parse),
                of(Component::Send),
                of(Component::Route)
            ),
            (1_000, 3_000, 6_000, 1_000)
        );
    }

    #[test]
    fn parts_follow_the_measured_turns() {
        let mut division = Division {
            divided_ns: 500,
            ..Division::default()
        };
        // If nothing was measured, nothing is divided and nothing is lost.
        division.divide(1_500);
        assert_eq!(division.split.total(), 0);
        let mut turn = [0; Component::COUNT];
        (turn[Component::Auth as usize], turn[Component::Parse as usize]) = (90, 10);
        division.measured(&turn);
        division.divide(2_500);
        let split = division.split;
        assert_eq!(
            (split.of(Component::Auth), split.of(Component::Parse)),
            (1_800, 200)
        );
        assert_eq!((split.total(), split.turns), (2_000, 1));
        division.close(2_600);
        assert_eq!(
            (
                division.split.of(Component::Other),
                division.split.total(),
                division.split.on
            ),
            (100, 2_100, false)
        );
    }

    proptest! {
        /// For any measured turns, the parts add up to what the thread has used, and no part ever shrinks.
        #[test]
        fn parts_add_up(
            steps in proptest::collection::vec(
                (proptest::collection::vec((component(), 0u64..1 << 40), 0..8), 0u64..1 << 40, 0u64..1 << 40),
                1..20,
            ),
            change_ns in 0u64..100,
        ) {
            let (mut turn, mut division, mut cpu) = (Turn::new(change_ns), Division::default(), 0);
            for (changes, worked, unmeasured) in steps {
                let mut now = 0;
                turn.begin(now);
                for (component, after) in changes {
                    now += after;
                    turn.enter(component, now);
                }
                let spent = turn.end(now, worked);
                prop_assert!(sum(&spent) <= now);
                division.measured(&spent);
                cpu += worked + unmeasured;
                let before = division.split;
                division.divide(cpu);
                prop_assert!(before.ns.iter().zip(&division.split.ns).all(|(was, is)| was <= is));
                prop_assert!(division.split.total() == division.divided_ns);
            }
            division.close(cpu);
            prop_assert_eq!(division.split.total(), cpu);
        }

        /// An uninterrupted turn is attributed completely, apart from the cost of changes.
        #[test]
        fn all_parts_of_an_undisturbed_turn_are_reported(
            changes in proptest::collection::vec((component(), 100u64..1_000_000), 1..50),
            change_ns in 0u64..100,
        ) {
            let mut turn = Turn::new(change_ns);
            turn.begin(7);
            let (mut now, mut expected, mut current) = (7, [0; Component::COUNT], Component::Other);
            for (component, ns) in &changes {
                now += ns;
                expected[current as usize] += ns - change_ns;
                current = *component;
                turn.enter(*component, now);
            }
            prop_assert_eq!(turn.end(now + change_ns, now - 7 + change_ns), expected);
        }
    }

    /// Number of times that this thread has lost the processor to another.
    fn interruptions() -> u64 {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("nonvoluntary_ctxt_switches:"));
        line.unwrap().trim().parse().unwrap()
    }

    /// Measures turns that spend 90 µs of 100 on credentials. Returns the split, and the CPU time of these
    /// turns.
    fn measured(meter: &mut Meter) -> (CpuSplit, u64) {
        fn work(ns: u64) {
            let begun = thread_cpu_ns();
            while thread_cpu_ns() - begun < ns {
                std::hint::spin_loop();
            }
        }
        meter.switch(true);
        let begun = thread_cpu_ns();
        let mut turns = 0;
        while turns < 64 {
            if !meter.begin_wait() {
                continue;
            }
            let activity = meter.begin_turn();
            let before = activity.enter(Component::Auth);
            work(90_000);
            activity.enter(before);
            work(10_000);
            meter.end_turn();
            turns += 1;
        }
        let used = thread_cpu_ns() - begun;
        assert!(meter.has_more());
        let split = meter.read();
        assert!(!meter.has_more());
        assert_eq!((split.on, split.turns), (true, 64));
        (split, used)
    }

    /// With the clocks of this machine, the component in which the worker nearly always was has nearly all
    /// the time. If other threads run between, a turn may be interrupted in two places, of which one is
    /// found. The measurement is then repeated, until the thread was left alone for long enough.
    #[test]
    fn a_meter_finds_where_the_work_is() {
        const PATIENCE: Duration = Duration::from_secs(30);
        let mut meter = Meter::new(7);
        assert!(!meter.begin_wait(), "it is off");
        assert_eq!(meter.read(), CpuSplit::default());
        let begin = Instant::now();
        // Interruptions by the host of a virtual machine are not visible here; a few unexplained results may
        // be due to them.
        let mut unexplained = 0;
        let split = loop {
            let before = interruptions();
            let (split, used) = measured(&mut meter);
            let percent = |ns: u64| ns * 100 / split.total();
            if percent(used).abs_diff(100) <= 2 && percent(split.of(Component::Auth)).abs_diff(90) <= 5 {
                break split;
            }
            unexplained += u32::from(interruptions() <= before + 1);
            let goes_on = unexplained <= 3 && begin.elapsed() < PATIENCE;
            assert!(goes_on, "{used} {split:?}");
            meter.switch(false);
        };
        meter.switch(false);
        assert!(!meter.begin_wait());
        let ended = meter.read();
        assert!(!ended.on && ended.total() >= split.total());
        // Switching the meter on again clears the split.
        meter.switch(true);
        assert_eq!(meter.read().total(), 0);
    }
}

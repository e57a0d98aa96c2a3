//! Tests that every machine takes: its table, and that it keeps its timers in order.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::fmt::Debug;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::{Effect, MachineContext, Sink, Timer};
use crate::time::Millis;

pub(crate) use On::{Both, Reliable, Unreliable};

impl Sink for Vec<Effect> {
    fn effect(&mut self, effect: Effect) {
        self.push(effect);
    }
}

/// Transports for which a row holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum On {
    Reliable,
    Unreliable,
    Both,
}

/// State, event, transports, next state, effects.
pub(crate) type Row<S, E> = (S, E, On, S, &'static [Effect]);

const ALL_TIMERS: &[Timer] = &[
    Timer::A,
    Timer::B,
    Timer::C,
    Timer::D,
    Timer::E,
    Timer::F,
    Timer::G,
    Timer::H,
    Timer::I,
    Timer::J,
    Timer::K,
    Timer::L,
    Timer::M,
    Timer::Trying,
];

/// The common interface of the four machines.
pub(crate) trait Machine: Copy + Debug {
    type State: Copy + Debug + PartialEq + 'static;
    type Event: Copy + Debug + PartialEq + 'static;
    const TIMERS: &'static [Timer];
    const STATES: &'static [Self::State];
    /// All but the timers.
    const EVENTS: &'static [Self::Event];

    fn start(ctx: &MachineContext, sink: &mut impl Sink) -> Self;
    fn in_state(state: Self::State) -> Self;
    fn timer(timer: Timer) -> Self::Event;
    fn take(&mut self, event: Self::Event, ctx: &MachineContext, sink: &mut impl Sink);
    fn at(&self) -> Self::State;
    fn over(&self) -> bool;
}

fn ctx(on: On) -> MachineContext {
    MachineContext {
        t1: Millis(500),
        t2: Millis(4000),
        t4: Millis(5000),
        reliable: on == Reliable,
        source_unverified: false,
    }
}

/// The context of a server transaction with a source that may be spoofed.
pub(crate) fn source_unverified() -> MachineContext {
    MachineContext {
        source_unverified: true,
        ..ctx(Unreliable)
    }
}

/// Checks that a machine does what its table says. The table has one row for every state but the last
/// (Terminated), event and kind of transport. Other machines' timers, and all events after the end, do
/// nothing.
#[track_caller]
pub(crate) fn check_table<M: Machine>(table: &[Row<M::State, M::Event>]) {
    let (terminated, states) = M::STATES.split_last().unwrap();
    let own = M::TIMERS.iter().map(|timer| M::timer(*timer));
    let events: Vec<M::Event> = own.chain(M::EVENTS.iter().copied()).collect();
    for on in [Reliable, Unreliable] {
        for state in states {
            for event in &events {
                let mut rows = table
                    .iter()
                    .filter(|row| row.0 == *state && row.1 == *event && [on, Both].contains(&row.2));
                let row = rows
                    .next()
                    .unwrap_or_else(|| panic!("no row for {state:?} {event:?} {on:?}"));
                assert!(rows.next().is_none(), "two rows for {state:?} {event:?} {on:?}");
                check_row::<M>(*state, *event, on, row.3, row.4);
            }
            for timer in ALL_TIMERS.iter().filter(|timer| !M::TIMERS.contains(timer)) {
                check_row::<M>(*state, M::timer(*timer), on, *state, &[]);
            }
        }
        for event in &events {
            check_row::<M>(*terminated, *event, on, *terminated, &[]);
        }
    }
    assert!(
        table
            .iter()
            .all(|row| states.contains(&row.0) && events.contains(&row.1))
    );
}

#[track_caller]
fn check_row<M: Machine>(state: M::State, event: M::Event, on: On, next: M::State, effects: &[Effect]) {
    let mut machine = M::in_state(state);
    let mut seen = Vec::new();
    machine.take(event, &ctx(on), &mut seen);
    assert_eq!(
        (machine.at(), seen.as_slice()),
        (next, effects),
        "{state:?} {event:?} {on:?}"
    );
    assert_eq!(machine.over(), Some(&next) == M::STATES.last());
}

#[track_caller]
pub(crate) fn check_start<M: Machine>(on: On, state: M::State, effects: &[Effect]) {
    let mut seen = Vec::new();
    let machine = M::start(&ctx(on), &mut seen);
    assert_eq!((machine.at(), seen.as_slice()), (state, effects));
}

/// The timers of one machine, as its owner keeps them.
#[derive(Default)]
struct Running {
    timers: BTreeMap<u8, (Timer, u32)>,
    over: bool,
}

impl Running {
    #[track_caller]
    fn apply(&mut self, effects: &[Effect]) {
        for effect in effects {
            assert!(!self.over, "{effect:?} after the end");
            match effect {
                Effect::Start(timer, Millis(ms)) => {
                    assert_ne!(*ms, 0, "a timer of zero is not started");
                    let before = self.timers.insert(*timer as u8, (*timer, *ms));
                    assert!(before.is_none(), "{timer:?} runs already");
                }
                Effect::Stop(timer) => {
                    assert!(
                        self.timers.remove(&(*timer as u8)).is_some(),
                        "{timer:?} does not run"
                    );
                }
                Effect::Terminated => {
                    assert!(
                        self.timers.is_empty(),
                        "{:?} outlive the transaction",
                        self.timers
                    );
                    self.over = true;
                }
                Effect::SendRequest
                | Effect::ResendRequest
                | Effect::SendAck
                | Effect::SendResponse
                | Effect::SendTrying
                | Effect::ResendResponse
                | Effect::PassToUser(_) => {}
            }
        }
    }
}

/// Checks any run of events and of timers that run: no timer is started twice, stopped in vain or left
/// behind, and Terminated comes once and last.
#[track_caller]
pub(crate) fn check_timers<M: Machine>() {
    let runs = (
        any::<bool>(),
        prop::collection::vec(any::<prop::sample::Index>(), 0..40),
    );
    TestRunner::deterministic()
        .run(&runs, |(reliable, picks)| {
            let ctx = ctx(if reliable { Reliable } else { Unreliable });
            let (mut running, mut seen) = (Running::default(), Vec::new());
            let mut machine = M::start(&ctx, &mut seen);
            running.apply(&seen);
            for pick in picks {
                let n = pick.index(M::EVENTS.len() + running.timers.len());
                let event = match M::EVENTS.get(n) {
                    Some(event) => *event,
                    None => {
                        let key = *running.timers.keys().nth(n - M::EVENTS.len()).unwrap();
                        M::timer(running.timers.remove(&key).unwrap().0)
                    }
                };
                seen.clear();
                machine.take(event, &ctx, &mut seen);
                running.apply(&seen);
                assert_eq!(machine.over(), running.over);
            }
            Ok(())
        })
        .unwrap();
}

/// Runs a machine on an unreliable transport with its timers alone, until it is over or no timer runs.
/// Returns the times, in milliseconds, of its `effects`.
pub(crate) fn times_of<M: Machine>(effects: &[Effect]) -> Vec<u32> {
    times_from(M::start, effects)
}

/// As [`times_of`], from what `start` makes.
pub(crate) fn times_from<M: Machine>(
    start: impl FnOnce(&MachineContext, &mut Vec<Effect>) -> M,
    effects: &[Effect],
) -> Vec<u32> {
    let ctx = ctx(Unreliable);
    let (mut now, mut times, mut seen, mut running) = (0, Vec::new(), Vec::new(), Running::default());
    let mut machine = start(&ctx, &mut seen);
    loop {
        times.extend(seen.iter().filter(|effect| effects.contains(effect)).map(|_| now));
        running.apply(&seen);
        seen.clear();
        let Some((key, (timer, ms))) = running.timers.iter().min_by_key(|(_, (_, ms))| *ms) else {
            break;
        };
        let (key, timer, ms) = (*key, *timer, *ms);
        running.timers.remove(&key);
        running.timers.values_mut().for_each(|(_, left)| *left -= ms);
        now += ms;
        machine.take(M::timer(timer), &ctx, &mut seen);
    }
    times
}

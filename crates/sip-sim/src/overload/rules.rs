//! What must hold whatever a server is offered.

use super::{AFTER, Outcome, Phase, Plan, Stage, play};
use crate::clock::{MS, Micros, SECOND};
use crate::network::check::Violation;

/// The names of the rules.
pub const NAMES: [&str; 8] = [
    "goodput",
    "accepted and lost",
    "said again",
    "established call dropped",
    "cancelled and rings",
    "waits too long",
    "dropped in vain",
    "starved",
];

/// Microseconds of a server at its usual speed for a REGISTER and its response, and for a response that belongs to
/// nothing.
pub(super) const SERVICE_OF_REGISTER: f64 = 9.0;
pub(super) const SERVICE_OF_STRAY: f64 = 4.0;

/// Time after the begin of a phase in which the last one still shows.
const SETTLES: Micros = 700 * MS;
/// The longest wait in the queue of calls of a server whose speed does not change: [`LONGEST_QUEUE`] thrice, or as long as
/// twice the shortest queue takes.
///
/// [`LONGEST_QUEUE`]: sip_core::overload::LONGEST_QUEUE
const LONGEST_WAIT: Micros = 300 * MS;
const LONGEST_WAIT_CALLS: f64 = 256.0;
/// What is left of the peak beyond it.
const LEFT: f64 = 0.9;
/// Time for which goodput is counted at least: in less, chance has too large a part.
const LEAST_WINDOW: Micros = SECOND;
/// Phases shorter than that are bursts.
const BURST: Micros = 50 * MS;
/// Time that a call takes, with some to spare.
const LASTS: Micros = SECOND;
/// Time in which a queue that has something has its share.
const SHARE_WITHIN: Micros = 60 * MS;

/// Microseconds of a server at its usual speed for a call.
pub fn service_of_call(is_stateful: bool) -> f64 {
    let alone = Plan {
        seed: 1,
        is_stateful,
        has_queues: true,
        phases: vec![Phase {
            from: 0,
            calls: 50,
            registers: 0,
            strays: 0,
            slowness: 100,
        }],
        length: SECOND,
        cancelling: 0,
    };
    let outcome = play(&alone);
    outcome.busy as f64 / outcome.completed.len().max(1) as f64
}

/// The rules that a run broke.
pub fn broken(plan: &Plan, outcome: &Outcome) -> Vec<Violation> {
    let mut found = Vec::new();
    let service = service_of_call(plan.is_stateful);
    for (number, phase) in plan.phases.iter().enumerate() {
        let to = plan.phases.get(number + 1).map_or(plan.length, |next| next.from);
        let carried = 1e6 / (service * f64::from(phase.slowness) / 100.0);
        in_phase(plan, outcome, (phase, to, carried), &mut found);
    }
    let has_strays = plan.phases.iter().any(|phase| phase.strays > 0);
    if !has_strays {
        of_the_accepted(plan, outcome, &mut found);
    }
    // A flood of strays may drop a CANCEL as well.
    if let Some(call) = outcome.ringing_on.first().filter(|_| !has_strays) {
        let count = outcome.ringing_on.len();
        let text = format!("{count} calls were cancelled at once and rang on");
        found.push(Violation::new("cancelled and rings", Some(*call), text));
    }
    found
}

/// What was let in is served, and nothing of it waits for new work.
fn of_the_accepted(plan: &Plan, outcome: &Outcome, found: &mut Vec<Violation>) {
    let end = plan.length + AFTER;
    let is_lost = |(_, call): &(usize, &super::Call)| {
        let is_over = matches!(call.stage, Stage::Completed | Stage::Refused(_));
        !call.is_cancelled && !is_over && call.accepted.is_some_and(|at| at + LASTS < end)
    };
    let lost: Vec<_> = outcome.calls.iter().enumerate().filter(is_lost).collect();
    if let Some((number, call)) = lost.first() {
        let text = format!(
            "{} calls were let in and not completed; the first is {call:?}",
            lost.len()
        );
        found.push(Violation::new("accepted and lost", Some(*number as u32), text));
    }
    if outcome.repeated > 0 {
        let text = format!("the callee sent {} responses again", outcome.repeated);
        found.push(Violation::new("said again", None, text));
    }
    let [first, ..] = &outcome.dropped;
    if let Some(at) = first.first() {
        let text = format!(
            "{} datagrams of accepted calls were dropped, the first at {at}",
            first.len()
        );
        found.push(Violation::new("established call dropped", None, text));
    }
}

fn in_phase(
    plan: &Plan,
    outcome: &Outcome,
    (phase, to, carried): (&Phase, Micros, f64),
    found: &mut Vec<Violation>,
) {
    found.extend(dropped_in_vain(plan, outcome, (phase, to, carried)));
    if phase.strays > 0 {
        let reads = outcome.waited.iter().map(|(at, _)| *at);
        let reads = reads.filter(|at| (phase.from..to).contains(at));
        let mut last = phase.from;
        for at in reads.chain([to]) {
            if at > last + SHARE_WITHIN {
                let text = format!("no call was read from {last} to {at}");
                found.push(Violation::new("starved", None, text));
                return;
            }
            last = at;
        }
        return;
    }
    let settled = phase.from + SETTLES;
    if to < settled + LEAST_WINDOW {
        return;
    }
    let (offered, goodput) = (f64::from(phase.calls), outcome.goodput(settled, to));
    let part = 1.0 - f64::from(plan.cancelling) / 1_000.0;
    // Calls come before registrations, however many of these there are.
    if goodput < LEFT * carried.min(offered) * part {
        let text = format!(
            "{goodput:.0}/s of {offered:.0}/s offered and {carried:.0}/s carried, from {settled} to {to}"
        );
        found.push(Violation::new("goodput", None, text));
    }
    let is_within = |at: &Micros| (settled..to).contains(at);
    if phase.registers > 0 && !outcome.registered.iter().any(is_within) {
        let text = format!("no REGISTER was answered from {settled} to {to}");
        found.push(Violation::new("starved", None, text));
    }
    let longest = LONGEST_WAIT.max((LONGEST_WAIT_CALLS * SECOND as f64 / carried) as Micros);
    let waits = outcome.waited.iter().filter(|(at, _)| is_within(at));
    let wait = waits.max_by_key(|(_, wait)| *wait);
    if let Some((at, wait)) = wait.filter(|(_, wait)| *wait > longest) {
        let text = format!("a call read at {at} had waited for {wait} µs");
        found.push(Violation::new("waits too long", None, text));
    }
}

/// Calls that were dropped in a burst, or in a first phase below the peak.
fn dropped_in_vain(
    plan: &Plan,
    outcome: &Outcome,
    (phase, to, carried): (&Phase, Micros, f64),
) -> Option<Violation> {
    let is_burst = to - phase.from < BURST;
    let is_below = phase.from == 0 && phase.strays == 0 && f64::from(phase.calls) < 0.8 * carried;
    let until = if is_burst { phase.from + 2 * BURST } else { to };
    if !is_burst && !is_below {
        return None;
    }
    let [_, calls, _] = &outcome.dropped;
    let dropped = calls
        .iter()
        .filter(|at| (phase.from..until).contains(*at))
        .count();
    let text = format!(
        "{dropped} calls from {} to {until}, of {}/s offered and {carried:.0}/s carried (cancelled: {} ‰)",
        phase.from, phase.calls, plan.cancelling
    );
    (dropped > 0).then(|| Violation::new("dropped in vain", None, text))
}

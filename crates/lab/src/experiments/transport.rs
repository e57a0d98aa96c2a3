//! `transport`: what each way of relaying carries and costs (Nahum and others, 2007).

use super::{Scale, Session, Turn};
use crate::case::{Case, Purpose, Server, Setup, State};
use crate::failure::Outcome;
use crate::load::{Criterion, Operation, Transport};
use crate::statistics::Limits;

/// The paper's eight, then registration and redirection.
pub(crate) const CASES: [Case; 13] = [
    Case::call(State::Stateless, false, Transport::Udp),
    Case::call(State::Transaction, false, Transport::Udp),
    Case::call(State::Stateless, true, Transport::Udp),
    Case::call(State::Transaction, true, Transport::Udp),
    Case::call(State::Stateless, false, Transport::Tcp),
    Case::call(State::Transaction, false, Transport::Tcp),
    Case::call(State::Stateless, true, Transport::Tcp),
    Case::call(State::Transaction, true, Transport::Tcp),
    Case::register(false, false),
    Case::register(false, true),
    Case::register(true, false),
    Case::redirect(false),
    Case::redirect(true),
];

/// Rounds of what differs by little, and of what differs by much.
pub(super) const ROUNDS: u32 = 5;
const FEWER_ROUNDS: u32 = 3;
/// Operations a second; every machine carries that. What state costs, and what the floor's user time is, shows at the
/// higher rate: at the lower one most of the CPU goes into waking up.
pub(super) const FAST: f64 = 6_000.0;
const SLOW: f64 = 2_000.0;
/// Cases that take turns, with their rounds and rates: neighbours are compared. The floor of the fast ones comes behind
/// them.
const TURNS: [(Case, u32, f64); 6] = [
    (Case::call(State::Stateless, false, Transport::Udp), ROUNDS, FAST),
    (
        Case::call(State::Transaction, false, Transport::Udp),
        ROUNDS,
        FAST,
    ),
    (
        Case::call(State::Transaction, false, Transport::Udp),
        FEWER_ROUNDS,
        SLOW,
    ),
    (
        Case::call(State::Transaction, true, Transport::Udp),
        FEWER_ROUNDS,
        SLOW,
    ),
    (
        Case::call(State::Transaction, false, Transport::Tcp),
        FEWER_ROUNDS,
        SLOW,
    ),
    // Compared with nothing: it is to succeed.
    (Case::register(false, false), 2, SLOW),
];

/// Parts of a case's peak at which CPU for each operation is measured.
const FIXED: [f64; 3] = [0.25, 0.5, 0.75];
/// Parts of the peak at which the curve and the response times are measured.
const CURVE: [f64; 7] = [0.25, 0.5, 0.75, 0.9, 1.1, 1.3, 1.6];

/// Where a search begins and ends: what a modest machine carries, and what a generator on one CPU may offer.
fn limits(case: &Case, scale: &Scale) -> Limits {
    let (first, most) = match case.operation {
        Operation::Call => (2_000.0, 150_000.0),
        Operation::Register | Operation::Redirect => (6_000.0, 300_000.0),
    };
    Limits {
        first,
        least: 50.0,
        most,
        grow: 2.0,
        precision: 0.04,
        looks: scale.looks,
    }
}

/// Around a peak that is known.
fn near(peak: f64, limits: &Limits) -> Limits {
    Limits {
        first: peak,
        grow: 1.08,
        looks: limits.looks.min(9),
        ..*limits
    }
}

/// The floor of a case, where there is one: it knows nothing of credentials and state, so that one case of each kind
/// and transport is enough.
fn floor(case: &Case) -> Option<Setup> {
    let has_one = match case.operation {
        Operation::Call => *case == Case::call(State::Stateless, false, case.transport),
        Operation::Register => *case == Case::register(false, false),
        Operation::Redirect => false,
    };
    has_one.then_some(Setup::of(Server::Floor, *case))
}

/// Measures all cases.
pub(crate) fn run(session: &mut Session<'_>) -> Outcome<()> {
    if session.scale.quick {
        return quick(session);
    }
    let scale = session.scale;
    let cases = scale.wanted(&CASES, Case::text)?;
    let seconds: f64 = cases.iter().map(|case| expected(case, scale)).sum();
    session.bench.progress().expect(seconds);
    for case in cases {
        session.bench.progress().doing(&case.text());
        one(session, &Setup::of(Server::Trapezoid, case))?;
    }
    // What the shapes are judged by: cases are measured hours apart, each at rates of its own.
    let compared =
        |(case, ..): &&(Case, u32, f64)| case.operation == Operation::Call && scale.wants(&case.text());
    let turns: Vec<(Case, u32, f64)> = TURNS.iter().filter(compared).copied().collect();
    in_turn(session, &turns)
}

/// Seconds of a case, about.
fn expected(case: &Case, scale: &Scale) -> f64 {
    let limits = limits(case, scale);
    let again = near(1.0, &limits).looks as f64 * f64::from(scale.repeats.saturating_sub(1));
    let fixed = FIXED.len() as f64 * f64::from(scale.repeats);
    // What is too much is followed by a drain and a fresh server.
    let after_too_much = 8.0;
    let too_much = 3.0 * f64::from(scale.repeats) + 3.0;
    let setups = 1.0 + f64::from(u8::from(floor(case).is_some()));
    // Most searches need two thirds of the looks that they may make.
    0.66 * scale.seconds(Purpose::Look) * (limits.looks as f64 + again)
        + scale.seconds(Purpose::Fixed) * (setups * fixed + CURVE.len() as f64)
        + after_too_much * too_much
}

fn one(session: &mut Session<'_>, setup: &Setup) -> Outcome<()> {
    let limits = limits(&setup.case, session.scale);
    let mut last = None;
    for round in 1..=session.scale.repeats {
        let limits = last.map_or(limits, |peak| near(peak, &limits));
        last = session.peak(setup, round, &limits, Criterion::PAPERS)?.or(last);
    }
    let Some(peak) = session.results.peak(setup) else {
        return Ok(());
    };
    let floor = floor(&setup.case);
    for part in FIXED {
        for round in 1..=session.scale.repeats {
            for setup in std::iter::once(setup).chain(&floor) {
                let run = session.scale.run(Purpose::Fixed, round, part * peak);
                session.run(setup, &run)?;
            }
        }
    }
    for part in CURVE {
        session.run(setup, &session.scale.run(Purpose::Curve, 1, part * peak))?;
    }
    Ok(())
}

/// The quick form: nothing but turns.
fn quick(session: &mut Session<'_>) -> Outcome<()> {
    let cases = session.scale.wanted(&TURNS, |(case, ..)| case.text())?;
    in_turn(session, &cases)
}

/// Cases in turn, and the floor of the fast ones behind these.
fn in_turn(session: &mut Session<'_>, cases: &[(Case, u32, f64)]) -> Outcome<()> {
    let ours =
        |(case, rounds, rate): &(Case, u32, f64)| (Setup::of(Server::Trapezoid, *case), *rounds, *rate);
    let mut turns: Vec<Turn> = cases.iter().map(ours).collect();
    let mut fast = cases.iter().filter(|(.., rate)| *rate >= FAST);
    let floor = fast.find_map(|(case, rounds, rate)| Some((floor(case)?, *rounds, *rate)));
    let behind = turns.iter().filter(|(.., rate)| *rate >= FAST).count();
    turns.splice(behind..behind, floor);
    let setups: Vec<Setup> = turns.iter().map(|(setup, ..)| *setup).collect();
    let present = session.present(&setups);
    turns.retain(|(setup, ..)| present.contains(setup));
    let seconds = session.scale.seconds_in_turn(&turns);
    session.bench.progress().expect(seconds);
    session.in_turn(&turns)
}

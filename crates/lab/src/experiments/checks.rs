//! The shapes that figures must have, whatever the machine: ratios of one run, never absolute times. Pure.
//!
//! What is compared took turns, and is judged by the interval of its pairs; what must succeed is judged by most of its
//! repetitions ([`crate::statistics::Judgement`]).

use std::collections::BTreeMap;

use crate::case::{Case, Mode, Purpose, Server, Setup, State};
use crate::load::Transport;
use crate::report::number;
use crate::results::{Check, Results, Row};
use crate::statistics::{Bound, Judgement, Verdict, judge, median};

/// Adaptive mode carries at least this part of what the best fixed setting carries.
const ADAPTIVE: f64 = 0.90;
/// Twice the batch carries at least so many times as much.
const TWICE_THE_BATCH: f64 = 1.2;
/// Not the paper's shape, in which TCP always carries less: messages of one connection share system calls here.
const TCP: &str = "TCP on one connection costs at most twice what UDP does";
const TCP_TIMES: f64 = 2.0;
/// The floor's user time: it reads nothing. What the kernel does for it is no less than for a proxy below the peak: the
/// sooner a process has done with a message, the more often it is woken for a single one.
const FLOOR: &str = "the floor takes less user time than any proxy";
const STATE: &str = "a stateless call costs less than a stateful one";
const PEER: &str = "a stateful call costs Trapezoid less than Kamailio";
/// Operations that succeed below the peak.
const SUCCESS: f64 = 0.99;

/// The checks of an experiment.
pub(crate) fn of(results: &Results) -> Vec<Check> {
    match results.experiment.as_str() {
        "transport" => transport(results),
        "peers" => peers(results),
        "batching" => batching(results),
        "overload" => super::overload::checks(results),
        "connections" => super::connections::checks::of(results),
        "memory" => super::memory::checks(results),
        "workers" => super::workers::checks(results),
        "split" => super::split::checks(results),
        "pings" => super::pings::checks(results),
        _ => Vec::new(),
    }
}

pub(super) fn check(name: &str, judgement: Judgement, figures: String) -> Check {
    Check {
        name: name.to_owned(),
        judgement,
        figures,
    }
}

/// Of something that is counted: it decides by itself.
pub(super) fn held(is_so: bool) -> Judgement {
    if is_so { Judgement::Held } else { Judgement::Lost }
}

/// Something that was not measured cannot have kept its shape.
pub(super) fn unmeasured(name: &str) -> Check {
    check(name, Judgement::Unmeasured, "no run".to_owned())
}

/// What a row says of the CPU for an operation.
type Figure = fn(&Row) -> f64;

/// Judges the ratio of a first figure to a second by pairs of them.
pub(super) fn compared(name: &str, pairs: &[(f64, f64)], bound: Bound, unit: &str) -> Check {
    if pairs.len() < 2 {
        // One pair has no interval. Whatever does not take turns any more must not pass for undecided.
        return check(
            name,
            Judgement::Unmeasured,
            "no runs in turn at one rate".to_owned(),
        );
    }
    let judged = judge(pairs, bound);
    let middle = |of: fn(&(f64, f64)) -> f64| median(&pairs.iter().map(of).collect::<Vec<_>>());
    let figures = match (middle(|pair| pair.0), middle(|pair| pair.1)) {
        (Some(first), Some(second)) => format!(
            "medians {} and {} {unit}; of the pairs {}",
            number(first),
            number(second),
            judged.text
        ),
        _ => judged.text,
    };
    check(name, judged.judgement, figures)
}

/// `less` costs less than `more`, for each operation.
fn cheaper(results: &Results, name: &str, less: &Setup, more: &Setup) -> Check {
    at_most(results, name, less, 1.0, more, Row::server_us)
}

/// `less` costs less than `times` what `more` does, for each operation.
fn at_most(results: &Results, name: &str, less: &Setup, times: f64, more: &Setup, figure: Figure) -> Check {
    if results.steady(less).is_empty() || results.steady(more).is_empty() {
        return unmeasured(name);
    }
    let pairs = results.pairs(less, more, figure);
    compared(name, &pairs, Bound::Below(times), "µs for each operation")
}

/// Whatever was measured at equal rates, which lie below the peaks, succeeded.
fn succeeds(results: &Results) -> Check {
    const NAME: &str = "below the peak at least 99 % of the operations succeed";
    let rows = results.rows.iter();
    let rows: Vec<&Row> = rows
        .filter(|row| row.is_steady() && row.setup.server == Server::Trapezoid)
        .collect();
    let Some(worst) = rows.iter().min_by(|a, b| part(a).total_cmp(&part(b))) else {
        return unmeasured(NAME);
    };
    let gravest = rows.iter().map(|row| {
        let same = rows.iter().filter(|other| is_repetition(other, row));
        Judgement::of_runs(same.map(|row| part(row) >= SUCCESS))
    });
    let text = format!(
        "worst of {} runs: {:.2} % ({} at {:.0}/s)",
        rows.len(),
        100.0 * part(worst),
        worst.setup.text(),
        worst.run.rate
    );
    check(NAME, gravest.max().unwrap_or_default(), text)
}

fn is_repetition(one: &Row, other: &Row) -> bool {
    one.setup == other.setup && one.run.rate.total_cmp(&other.run.rate).is_eq()
}

fn part(row: &Row) -> f64 {
    crate::cpu::ratio(row.load.succeeded as f64, row.load.offered as f64)
}

fn transport(results: &Results) -> Vec<Check> {
    let ours = |state, auth, transport| Setup::of(Server::Trapezoid, Case::call(state, auth, transport));
    let stateless = ours(State::Stateless, false, Transport::Udp);
    let stateful = ours(State::Transaction, false, Transport::Udp);
    let digest = ours(State::Transaction, true, Transport::Udp);
    let tcp = ours(State::Transaction, false, Transport::Tcp);
    let floor = Setup {
        server: Server::Floor,
        ..stateless
    };
    vec![
        cheaper(results, STATE, &stateless, &stateful),
        at_most(results, TCP, &tcp, TCP_TIMES, &stateful, Row::server_us),
        cheaper(
            results,
            "no authentication costs less than digest",
            &stateful,
            &digest,
        ),
        at_most(results, FLOOR, &floor, 1.0, &stateless, Row::user_us),
        succeeds(results),
    ]
}

/// What needs a program that is not installed is no shape, and the report says what is missing.
fn peers(results: &Results) -> Vec<Check> {
    let of = |server, state| Setup::of(server, Case::call(state, false, Transport::Udp));
    let stateless = of(Server::Trapezoid, State::Stateless);
    let stateful = of(Server::Trapezoid, State::Transaction);
    let relay = of(Server::BareRelay, State::Stateless);
    let theirs = of(Server::Kamailio, State::Transaction);
    let mut checks = vec![cheaper(results, STATE, &stateless, &stateful)];
    if !is_left_out(results, &theirs) {
        checks.push(cheaper(results, PEER, &stateful, &theirs));
    }
    if !is_left_out(results, &relay) {
        checks.push(at_most(results, FLOOR, &relay, 1.0, &stateless, Row::user_us));
    }
    checks.push(succeeds(results));
    checks
}

/// Whether a setup was not measured since something is missing on the machine.
fn is_left_out(results: &Results, setup: &Setup) -> bool {
    let name = setup.text();
    results.steady(setup).is_empty() && results.absent.iter().any(|absent| absent.what == name)
}

fn batching(results: &Results) -> Vec<Check> {
    vec![
        adaptive_beside_fixed(results),
        bytes(results),
        larger_batches(results),
    ]
}

/// Settings of look-ups that were measured for what they carry, ours only.
fn settings(results: &Results, is_wanted: impl Fn(&Setup) -> bool) -> Vec<Setup> {
    let searched = results.peaks.iter().map(|found| found.setup);
    let mut found: Vec<Setup> = Vec::new();
    for setup in searched.chain(results.setups(Purpose::Beyond)) {
        if setup.server == Server::Trapezoid && is_wanted(&setup) && !found.contains(&setup) {
            found.push(setup);
        }
    }
    found
}

/// What a setting carried in each round in which it took turns: when it was offered more than that or, where it
/// never was, by its searches after the first. What carried nothing carries 0.
fn rounds(results: &Results, setup: &Setup) -> BTreeMap<u32, f64> {
    let rows = results.of(setup, Purpose::Beyond).into_iter();
    let beyond: BTreeMap<u32, f64> = rows.map(|row| (row.run.round, row.load.goodput)).collect();
    if !beyond.is_empty() {
        return beyond;
    }
    let again = results.peaks.iter();
    let again = again.filter(|found| found.setup == *setup && found.round > 1);
    let peak = |found: &crate::results::Found| found.peak.as_ref().map_or(0.0, |peak| peak.rate);
    again.map(|found| (found.round, peak(found))).collect()
}

/// What two settings carried, in the rounds of both.
fn carried(results: &Results, first: &Setup, second: &Setup) -> Vec<(f64, f64)> {
    let (firsts, seconds) = (rounds(results, first), rounds(results, second));
    let pair = |(round, first): (&u32, &f64)| Some((*first, *seconds.get(round)?));
    firsts.iter().filter_map(pair).collect()
}

/// The setting of a mode that carries most, of those that took turns. The greatest of many single searches is as much
/// luck as merit: it counts where nothing took turns.
fn best(results: &Results, mode: Mode) -> Option<Setup> {
    let all = settings(results, |setup| setup.look_ups.is_some_and(|of| of.mode == mode));
    let in_turn = |setup: &Setup| median(&rounds(results, setup).into_values().collect::<Vec<_>>());
    let turns: Vec<(Setup, f64)> = all
        .iter()
        .filter_map(|setup| Some((*setup, in_turn(setup)?)))
        .collect();
    let searched = all
        .iter()
        .map(|setup| (*setup, results.peak(setup).unwrap_or(0.0)));
    let from = if turns.is_empty() {
        searched.collect()
    } else {
        turns
    };
    let most = from.into_iter().max_by(|a, b| a.1.total_cmp(&b.1));
    most.map(|(setup, _)| setup)
}

fn adaptive_beside_fixed(results: &Results) -> Check {
    const NAME: &str = "adaptive mode carries at least 90 % of the best fixed setting";
    let (Some(adaptive), Some(fixed)) = (best(results, Mode::Adaptive), best(results, Mode::Fixed)) else {
        return unmeasured(NAME);
    };
    let pairs = carried(results, &adaptive, &fixed);
    let unit = format!("calls/s, {} and {}", adaptive.text(), fixed.text());
    compared(NAME, &pairs, Bound::Above(ADAPTIVE), &unit)
}

/// Runs of a setting near or beyond its peak, in which batches are as large as they become.
fn full<'a>(results: &'a Results, setup: &Setup) -> Vec<&'a Row> {
    let beyond = results.of(setup, Purpose::Beyond);
    if !beyond.is_empty() {
        return beyond;
    }
    let rows = results.rows.iter();
    let carried = rows.filter(|row| row.setup == *setup && row.verdict == Verdict::Carried);
    carried
        .max_by(|a, b| a.run.rate.total_cmp(&b.run.rate))
        .into_iter()
        .collect()
}

/// Counted, not timed: runs of different moments compare.
fn bytes(results: &Results) -> Check {
    const NAME: &str = "a call takes fewer bytes to and from the database in batches than single";
    let both = |row: &Row| row.wire_bytes_each().map(|(to, from)| to + from);
    let figure = |rows: &[&Row]| {
        let rows = rows.iter().filter(|row| row.load.goodput > 0.0);
        median(&rows.filter_map(|row| both(row)).collect::<Vec<_>>())
    };
    let rows = results.rows.iter();
    let single: Vec<&Row> = rows
        .filter(|row| {
            let look_ups = row.setup.look_ups;
            row.setup.server == Server::Trapezoid && look_ups.is_some_and(|l| l.mode == Mode::Single)
        })
        .collect();
    let Some(adaptive) = best(results, Mode::Adaptive).filter(|_| !single.is_empty()) else {
        return unmeasured(NAME);
    };
    match (figure(&single), figure(&full(results, &adaptive))) {
        (Some(single), Some(batched)) => {
            let text = format!(
                "{batched:.0} and {single:.0} bytes on the wire: {:.0} % less",
                100.0 * (1.0 - crate::cpu::ratio(batched, single))
            );
            let is_less = batched > 0.0 && batched < single;
            let judgement = if is_less { Judgement::Held } else { Judgement::Lost };
            check(NAME, judgement, text)
        }
        _ => check(
            NAME,
            Judgement::Undecided,
            "no run in which calls succeeded".to_owned(),
        ),
    }
}

fn larger_batches(results: &Results) -> Check {
    const NAME: &str = "on the same connections twice the batch carries more";
    let of = |max_batch: u32| {
        let fixed = settings(results, |setup| {
            setup
                .look_ups
                .is_some_and(|l| (l.mode, l.connections, l.max_batch) == (Mode::Fixed, 2, max_batch))
        });
        fixed.into_iter().next()
    };
    let (Some(less), Some(more)) = (of(8), of(16)) else {
        return unmeasured(NAME);
    };
    let pairs = carried(results, &more, &less);
    compared(
        NAME,
        &pairs,
        Bound::Above(TWICE_THE_BATCH),
        "calls/s, 2×16 and 2×8",
    )
}

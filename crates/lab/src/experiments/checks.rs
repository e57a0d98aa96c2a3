//! The shapes that figures must have, whatever the machine: ratios of one run, never absolute times. Pure.

use crate::case::{Case, Mode, Purpose, Server, Setup, State};
use crate::load::Transport;
use crate::results::{Check, Results, Row};
use crate::statistics::{Verdict, median};

/// What two figures that should differ may be off by, on a machine that others use, too.
const NOISE: f64 = 1.05;
/// Adaptive mode carries at least this part of what the best fixed setting carries.
const ADAPTIVE: f64 = 0.90;
/// Not the paper's shape, in which TCP always carries less: messages of one connection share system calls here.
const TCP: &str = "TCP on one connection costs at most twice what UDP does";
const TCP_TIMES: f64 = 2.0;
/// The floor's user time: it reads nothing. What the kernel does for it is no less than for a proxy below the peak: the
/// sooner a process has done with a message, the more often it is woken for a single one.
const FLOOR: &str = "the floor takes less user time than any proxy";
/// Operations that succeed below the peak.
const SUCCESS: f64 = 0.99;
/// Past the peak, goodput is less than what is offered.
const COLLAPSE: f64 = 0.98;

/// The checks of an experiment.
pub(crate) fn of(results: &Results) -> Vec<Check> {
    match results.experiment.as_str() {
        "transport" | "peers" => transport(results),
        "batching" => batching(results),
        "overload" => overload(results),
        _ => Vec::new(),
    }
}

fn check(name: &str, holds: bool, figures: String) -> Check {
    Check {
        name: name.to_owned(),
        holds,
        figures,
    }
}

/// Something that was not measured cannot have kept its shape.
fn unmeasured(name: &str) -> Check {
    check(name, false, "not measured".to_owned())
}

/// What a row says of the CPU for an operation.
type Figure = fn(&Row) -> f64;

/// The least CPU for each operation at a rate: others on the machine only ever add to it.
fn cost(results: &Results, setup: &Setup, rate: f64, figure: Figure) -> Option<f64> {
    let rows = results.of(setup, Purpose::Fixed).into_iter();
    let at = rows.filter(|row| row.run.rate.total_cmp(&rate).is_eq() && row.is_sound());
    let costs = at.map(figure).filter(|us| *us > 0.0);
    costs.min_by(f64::total_cmp)
}

/// Those of two setups at the highest rate at which both were measured; else at the highest of each: what is offered
/// in a case follows from its own peak.
fn costs(results: &Results, one: &Setup, other: &Setup, figure: Figure) -> Option<(f64, f64)> {
    let rates = |setup: &Setup| -> Vec<f64> {
        let rows = results.of(setup, Purpose::Fixed);
        rows.iter().map(|row| row.run.rate).collect()
    };
    let (ones, others) = (rates(one), rates(other));
    let highest = |rates: &[f64]| rates.iter().copied().max_by(f64::total_cmp);
    let both: Vec<f64> = ones
        .iter()
        .copied()
        .filter(|rate| others.contains(rate))
        .collect();
    let (at_one, at_other) = match highest(&both) {
        Some(rate) => (rate, rate),
        None => (highest(&ones)?, highest(&others)?),
    };
    Some((
        cost(results, one, at_one, figure)?,
        cost(results, other, at_other, figure)?,
    ))
}

/// `less` costs less than `more`, for each operation.
fn cheaper(results: &Results, name: &str, less: &Setup, more: &Setup) -> Check {
    at_most(results, name, less, NOISE, more, Row::server_us)
}

/// `less` costs less than `times` what `more` does, for each operation.
fn at_most(results: &Results, name: &str, less: &Setup, times: f64, more: &Setup, figure: Figure) -> Check {
    match costs(results, less, more, figure) {
        Some((less, more)) => check(
            name,
            less < times * more,
            format!(
                "{less:.1} µs and {more:.1} µs of CPU for each operation: {:.2} ×",
                more / less
            ),
        ),
        None => unmeasured(name),
    }
}

/// Whatever was measured at fixed rates, which lie below the peaks, succeeded.
fn succeeds(results: &Results) -> Check {
    const NAME: &str = "below the peak at least 99 % of the operations succeed";
    let rows = results.rows.iter();
    let rows: Vec<&Row> = rows
        .filter(|row| row.run.purpose == Purpose::Fixed && row.setup.server == Server::Trapezoid)
        .collect();
    let worst = rows.iter().min_by(|a, b| part(a).total_cmp(&part(b)));
    worst.map_or_else(
        || unmeasured(NAME),
        |row| {
            let text = format!(
                "worst of {} runs: {:.2} % ({} at {:.0}/s)",
                rows.len(),
                100.0 * part(row),
                row.setup.text(),
                row.run.rate
            );
            check(NAME, part(row) >= SUCCESS, text)
        },
    )
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
        cheaper(
            results,
            "a stateless call costs less than a stateful one",
            &stateless,
            &stateful,
        ),
        at_most(results, TCP, &tcp, TCP_TIMES, &stateful, Row::server_us),
        cheaper(
            results,
            "no authentication costs less than digest",
            &stateful,
            &digest,
        ),
        at_most(results, FLOOR, &floor, NOISE, &stateless, Row::user_us),
        succeeds(results),
    ]
}

fn batching(results: &Results) -> Vec<Check> {
    vec![
        adaptive_beside_fixed(results),
        bytes(results),
        larger_batches(results),
    ]
}

/// Median peaks of the settings of a mode, ours only.
fn peaks(results: &Results, mode: Mode) -> Vec<(Setup, f64)> {
    let mut found: Vec<(Setup, f64)> = Vec::new();
    for at in &results.peaks {
        let is_of = at.setup.server == Server::Trapezoid && at.setup.look_ups.is_some_and(|l| l.mode == mode);
        if is_of && !found.iter().any(|(setup, _)| *setup == at.setup) {
            // A setting that carried nothing carries 0.
            found.push((at.setup, results.peak(&at.setup).unwrap_or(0.0)));
        }
    }
    found
}

/// The setting that carries most: of those that were measured again in turn, if any were, by their medians. The
/// greatest of many single searches is as much luck as merit.
fn best(results: &Results, mode: Mode) -> Option<(Setup, f64)> {
    let all = peaks(results, mode);
    let again = |setup: &Setup| {
        let mut found = results.peaks.iter();
        found.any(|found| found.setup == *setup && found.round > 1)
    };
    let duelled: Vec<_> = all.iter().filter(|(setup, _)| again(setup)).copied().collect();
    let from = if duelled.is_empty() { all } else { duelled };
    from.into_iter().max_by(|a, b| a.1.total_cmp(&b.1))
}

fn adaptive_beside_fixed(results: &Results) -> Check {
    const NAME: &str = "adaptive mode carries at least 90 % of the best fixed setting";
    let (Some((adaptive, mine)), Some((fixed, theirs))) =
        (best(results, Mode::Adaptive), best(results, Mode::Fixed))
    else {
        return unmeasured(NAME);
    };
    let text = format!(
        "{}: {mine:.0}/s, {}: {theirs:.0}/s: {:.0} %",
        adaptive.text(),
        fixed.text(),
        100.0 * crate::cpu::ratio(mine, theirs)
    );
    check(NAME, mine > 0.0 && mine >= ADAPTIVE * theirs, text)
}

/// The run nearest its peak that was carried.
fn at_peak<'a>(results: &'a Results, setup: &Setup) -> Option<&'a Row> {
    let rows = results
        .rows
        .iter()
        .filter(|row| row.setup == *setup && row.verdict == Verdict::Carried);
    rows.max_by(|a, b| a.run.rate.total_cmp(&b.run.rate))
}

fn bytes(results: &Results) -> Check {
    const NAME: &str = "a call takes fewer bytes to and from the database in batches than single";
    let both = |row: &Row| row.wire_bytes_each().map(|(to, from)| to + from);
    let single = results.rows.iter().filter(|row| {
        let look_ups = row.setup.look_ups;
        row.setup.server == Server::Trapezoid && look_ups.is_some_and(|l| l.mode == Mode::Single)
    });
    let single: Vec<f64> = single
        .filter(|row| row.verdict == Verdict::Carried)
        .filter_map(both)
        .collect();
    let batched = best(results, Mode::Adaptive).and_then(|(setup, _)| both(at_peak(results, &setup)?));
    match (median(&single), batched) {
        (Some(single), Some(batched)) if single > 0.0 => {
            let text = format!(
                "{batched:.0} and {single:.0} bytes on the wire: {:.0} % less",
                100.0 * (1.0 - batched / single)
            );
            check(NAME, batched > 0.0 && batched < single, text)
        }
        _ => unmeasured(NAME),
    }
}

fn larger_batches(results: &Results) -> Check {
    const NAME: &str = "on the same connections twice the batch carries more";
    let fixed = peaks(results, Mode::Fixed);
    let at = |connections: u32, max_batch: u32| {
        let mut found = fixed.iter().filter(|(setup, _)| {
            setup
                .look_ups
                .is_some_and(|l| l.connections == connections && l.max_batch == max_batch)
        });
        found.next().map(|(_, peak)| *peak)
    };
    match (at(2, 8), at(2, 16)) {
        (Some(less), Some(more)) => check(
            NAME,
            less > 0.0 && more > 1.2 * less,
            format!(
                "2×8: {less:.0}/s, 2×16: {more:.0}/s: {:.2} ×",
                crate::cpu::ratio(more, less)
            ),
        ),
        _ => unmeasured(NAME),
    }
}

fn overload(results: &Results) -> Vec<Check> {
    const BELOW: &str = "at half the peak what is offered is carried";
    const BEYOND: &str = "what is offered beyond the peak is not all carried, and the peak is one";
    let mut checks = Vec::new();
    for setup in results.setups(Purpose::Curve) {
        let Some(peak) = results.peak(&setup) else {
            continue;
        };
        let name = |what: &str| format!("{}: {what}", setup.case.text());
        for row in results.of(&setup, Purpose::Curve) {
            let carried = crate::cpu::ratio(row.load.goodput, row.load.offered_rate());
            let times = row.run.rate / peak;
            let text = format!(
                "{:.0} % of {:.0}/s, {times:.1} × the peak",
                100.0 * carried,
                row.run.rate
            );
            if times < 0.6 {
                checks.push(check(&name(BELOW), carried >= COLLAPSE, text));
            } else if (1.9..2.1).contains(&times) && !row.load.generator.saturated {
                checks.push(check(&name(BEYOND), carried < COLLAPSE, text));
            }
        }
    }
    if checks.is_empty() {
        checks.push(unmeasured(BELOW));
    }
    checks
}

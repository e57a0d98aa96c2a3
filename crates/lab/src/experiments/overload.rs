//! `overload`: goodput against offered load, to ten times the peak: with queues of new work, with one queue, and
//! Kamailio's.

use super::Session;
use super::checks::{check, compared, unmeasured};
use crate::case::{Case, Purpose, Run, Server, Setup, State};
use crate::cpu::ratio;
use crate::failure::Outcome;
use crate::load::{Criterion, Transport};
use crate::results::{Check, Results, Row};
use crate::statistics::{Bound, Judgement, Limits};

/// Part of a CPU that the server gets, so that one generator can offer ten times what it carries.
pub(crate) const QUOTA: f64 = 0.15;
/// Multiples of the peak.
const PARTS: [f64; 6] = [0.8, 1.2, 2.0, 3.0, 5.0, 10.0];
/// Those of the quick form.
const QUICK_PARTS: [f64; 2] = [0.5, 2.0];
/// Rounds of ours, at most; Kamailio has one.
const ROUNDS: u32 = 2;
/// Seconds after which what has not ended was not carried.
const DRAIN_S: f64 = 4.0;

const CASES: [Case; 3] = [
    Case::call(State::Stateless, false, Transport::Udp),
    Case::call(State::Transaction, false, Transport::Udp),
    Case::call(State::Transaction, true, Transport::Udp),
];

/// What is offered below the peak and carried.
const CARRIED: f64 = 0.98;
/// The part of the peak that is left beyond it.
const LEFT: f64 = 0.9;

/// Measures all cases, with a quota where one can be given.
pub(crate) fn run(session: &mut Session<'_>, quota: Option<f64>) -> Outcome<()> {
    let scale = session.scale;
    let (parts, cases): (&[f64], &[Case]) = if scale.quick {
        (&QUICK_PARTS, &CASES[1..2])
    } else {
        (&PARTS, &CASES)
    };
    let rounds = scale.repeats.min(ROUNDS);
    let cases = scale.wanted(cases, Case::text)?;
    let kamailio = if scale.quick { 0.0 } else { 1.0 };
    let curves = 2.0 * f64::from(rounds) + kamailio;
    let each = scale.seconds(Purpose::Look) * scale.looks as f64 * (1.0 + kamailio)
        + scale.seconds(Purpose::Curve) * parts.len() as f64 * curves;
    session.bench.progress().expect(each * cases.len() as f64);
    for case in cases {
        session.bench.progress().doing(&case.text());
        let ours = Setup {
            quota,
            ..Setup::of(Server::Trapezoid, case)
        };
        let one_queue = Setup {
            one_queue: true,
            ..ours
        };
        let mut turns = Vec::new();
        if let Some(peak) = search(session, &ours)? {
            turns.extend([(ours, rounds, peak), (one_queue, rounds, peak)]);
        }
        if !scale.quick {
            let theirs = Setup {
                server: Server::Kamailio,
                ..ours
            };
            for theirs in session.present(&[theirs]) {
                turns.extend(search(session, &theirs)?.map(|peak| (theirs, 1, peak)));
            }
        }
        for round in 1..=rounds {
            for part in parts {
                for (setup, _, peak) in turns.iter().filter(|(_, rounds, _)| round <= *rounds) {
                    let run = Run {
                        drain_s: DRAIN_S,
                        ..scale.run(Purpose::Curve, round, part * peak)
                    };
                    session.run(setup, &run)?;
                }
            }
        }
    }
    Ok(())
}

fn search(session: &mut Session<'_>, setup: &Setup) -> Outcome<Option<f64>> {
    let scale = session.scale;
    let limits = Limits {
        first: 8_000.0 * setup.quota.unwrap_or(1.0),
        least: 20.0,
        most: 150_000.0,
        grow: 2.0,
        precision: 0.05,
        looks: if scale.quick { 6 } else { scale.looks },
    };
    session.peak(setup, 1, &limits, Criterion::PAPERS)
}

/// The peak that a setup's load is a multiple of: with one queue it is the same server's with queues of new work.
pub(crate) fn peak(results: &Results, setup: &Setup) -> Option<f64> {
    results.peak(&Setup {
        one_queue: false,
        ..*setup
    })
}

/// The rates of these rows, each once, in order.
pub(crate) fn rates(rows: &[&Row]) -> Vec<f64> {
    let mut rates: Vec<f64> = rows.iter().map(|row| row.run.rate).collect();
    rates.sort_by(f64::total_cmp);
    rates.dedup();
    rates
}

/// The rows of one rate.
pub(crate) fn at<'a>(rows: &[&'a Row], rate: f64) -> Vec<&'a Row> {
    let of_rate = |row: &&&Row| row.run.rate.total_cmp(&rate).is_eq();
    rows.iter().filter(of_rate).copied().collect()
}

/// The shapes.
pub(super) fn checks(results: &Results) -> Vec<Check> {
    const NAME: &str = "beyond the peak at least nine tenths of it are completed";
    let mut checks = Vec::new();
    for setup in results.setups(Purpose::Curve) {
        let Some(peak) = peak(results, &setup) else {
            continue;
        };
        if setup.server != Server::Trapezoid || setup.one_queue {
            continue;
        }
        // What a full generator does not complete, no server could.
        let rows = results.of(&setup, Purpose::Curve);
        let rows: Vec<&Row> = rows
            .into_iter()
            .filter(|row| !row.load.generator.saturated)
            .collect();
        let parts = |least: f64, most: f64| -> Vec<&Row> {
            let times = |row: &&&Row| (least..most).contains(&(row.run.rate / peak));
            rows.iter().filter(times).copied().collect()
        };
        let case = setup.case.text();
        checks.push(each_keeps(
            &format!("{case}: below the peak what is offered is carried"),
            &parts(0.0, 0.9),
            |row| ratio(row.load.goodput, row.load.offered_rate()),
            CARRIED,
            peak,
        ));
        checks.push(each_keeps(
            &format!("{case}: {NAME}"),
            &parts(1.1, f64::INFINITY),
            |row| row.load.goodput / peak,
            LEFT,
            peak,
        ));
        checks.push(more_than_one_queue(results, &setup, &parts(1.9, f64::INFINITY)));
    }
    if checks.is_empty() {
        checks.push(unmeasured(NAME));
    }
    checks
}

/// Whether a part is kept at each rate, by most of its repetitions.
fn each_keeps(name: &str, rows: &[&Row], part: impl Fn(&Row) -> f64, least: f64, peak: f64) -> Check {
    let mut gravest = None;
    let mut texts = Vec::new();
    for rate in rates(rows) {
        let parts: Vec<f64> = at(rows, rate).into_iter().map(&part).collect();
        gravest = gravest.max(Some(Judgement::of_runs(parts.iter().map(|part| *part >= least))));
        let each: Vec<String> = parts
            .iter()
            .map(|part| format!("{:.0} %", 100.0 * part))
            .collect();
        texts.push(format!("{} at {:.1} ×", each.join(", "), rate / peak));
    }
    match gravest {
        Some(judgement) => check(name, judgement, texts.join("; ")),
        None => unmeasured(name),
    }
}

/// Whether more is completed than with one queue, at the same rates in the same rounds.
fn more_than_one_queue(results: &Results, setup: &Setup, rows: &[&Row]) -> Check {
    let one_queue = Setup {
        one_queue: true,
        ..*setup
    };
    let others = results.of(&one_queue, Purpose::Curve);
    let pairs = rows.iter().filter_map(|row| {
        let is_pair = |other: &&&Row| {
            other.run.round == row.run.round && other.run.rate.total_cmp(&row.run.rate).is_eq()
        };
        // With one queue more is sent again, which fills the generator sooner.
        let other = others.iter().find(is_pair)?;
        if other.load.generator.saturated {
            return None;
        }
        Some((row.load.goodput, other.load.goodput))
    });
    let name = format!(
        "{}: beyond the peak more is completed than with one queue",
        setup.case.text()
    );
    compared(&name, &pairs.collect::<Vec<_>>(), Bound::Above(1.0), "calls/s")
}

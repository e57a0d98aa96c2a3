//! `memory`: bytes of what a server holds. Transactions that come and go, calls that ring, contacts.

use super::checks::{check, held, unmeasured};
use super::{Scale, Session, steps};
use crate::case::Server;
use crate::failure::Outcome;
use crate::report::number;
use crate::results::{Check, Results};
use crate::steps::{Measured, Step};

/// Calls a second that the goal is for.
const RATE: u32 = 12_000;
/// Bytes of the process at that rate, at most.
const CALLS_GOAL: f64 = 512.0 * 1024.0 * 1024.0;
/// Bytes of a registered contact, at most.
const CONTACT_GOAL: f64 = 500.0;
/// Seconds in which every timer of RFC 3261 has fired, and what that needs besides.
const QUIET: u32 = 37;

/// All steps, in order.
pub(crate) fn plan(scale: &Scale) -> Vec<Step> {
    if scale.quick {
        let server = Server::Trapezoid;
        return vec![
            Step::Transactions {
                server,
                rate: 500,
                seconds: 3,
                quiet: 34,
            },
            Step::Ringing {
                server,
                calls: 500,
                quiet: 0,
            },
            Step::Contacts {
                server,
                contacts: 20_000,
            },
        ];
    }
    let servers = [Server::Trapezoid, Server::Kamailio].into_iter();
    let of = |server| {
        [
            Step::Transactions {
                server,
                rate: RATE,
                seconds: 40,
                quiet: QUIET,
            },
            Step::Ringing {
                server,
                calls: 20_000,
                quiet: QUIET,
            },
            Step::Contacts {
                server,
                contacts: 100_000,
            },
        ]
    };
    servers.flat_map(of).collect()
}

/// Makes all steps that the results do not have yet.
pub(crate) fn run(session: &mut Session<'_>) -> Outcome<()> {
    let plan = plan(session.scale);
    steps::run(session, &plan)
}

/// The shapes.
pub(crate) fn checks(results: &Results) -> Vec<Check> {
    let steps = results.steps.iter();
    let ours: Vec<&Measured> = steps
        .filter(|one| one.step.server() == Server::Trapezoid)
        .collect();
    vec![calls(&ours), contacts(&ours), quiet(&ours)]
}

fn calls(ours: &[&Measured]) -> Check {
    const NAME: &str = "stateful calls hold at most 512 MiB, at up to 12,000 a second";
    let is_it = |one: &&&Measured| matches!(one.step, Step::Transactions { rate, .. } if rate <= RATE);
    let found = ours.iter().find(is_it).and_then(|one| one.held());
    found.map_or_else(
        || unmeasured(NAME),
        |found| {
            let mebibytes = found.most as f64 / f64::from(1 << 20);
            let text = format!("{mebibytes:.1} MiB at most");
            check(NAME, held(found.most as f64 <= CALLS_GOAL), text)
        },
    )
}

fn contacts(ours: &[&Measured]) -> Check {
    const NAME: &str = "a registered contact holds at most 500 bytes";
    let is_it = |one: &&&Measured| matches!(one.step, Step::Contacts { .. });
    let found = ours.iter().find(is_it).and_then(|one| one.held());
    let Some((each, things)) = found.and_then(|held| held.bytes_each().zip(held.things)) else {
        return unmeasured(NAME);
    };
    let (judgement, doubt) = steps::counted(each, things, CONTACT_GOAL);
    let text = format!(
        "{} bytes, give or take {}, {} contacts",
        number(each),
        number(doubt),
        number(things)
    );
    check(NAME, judgement, text)
}

fn quiet(ours: &[&Measured]) -> Check {
    const NAME: &str = "nothing is left of calls when all timers have fired";
    let looked: Vec<String> = ours
        .iter()
        .filter_map(|one| one.held()?.left.as_ref())
        .map(|left| {
            let each = left.iter().map(|(name, value)| format!("{value:.0} {name}"));
            each.collect::<Vec<_>>().join(", ")
        })
        .collect();
    if looked.is_empty() {
        return unmeasured(NAME);
    }
    let left: Vec<&str> = looked
        .iter()
        .map(String::as_str)
        .filter(|text| !text.is_empty())
        .collect();
    let text = if left.is_empty() {
        format!("nothing, {} times", looked.len())
    } else {
        left.join("; ")
    };
    check(NAME, held(left.is_empty()), text)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::synthetic::Synthetic;
    use super::super::tests::run_with;
    use super::*;
    use crate::statistics::Judgement;
    use crate::steps::Figures;

    fn seconds(scale: &Scale) -> f64 {
        let pace = steps::pace(scale);
        plan(scale).iter().map(|step| steps::expected(step, &pace)).sum()
    }

    #[test]
    fn the_plan_fits_into_its_time() {
        let full = seconds(&Scale::full());
        assert!((300.0..900.0).contains(&full), "{full}");
        let quick = seconds(&Scale::quick());
        assert!(quick < 60.0, "{quick}");
    }

    #[test]
    fn the_checks_hold_and_can_each_fail() {
        for scale in [Scale::quick(), Scale::full()] {
            let results = run_with("memory", &mut Synthetic::new(), &scale).unwrap();
            assert_eq!(results.steps.len(), plan(&scale).len());
            assert_eq!(results.checks.len(), 3);
            let held = |check: &Check| check.judgement == Judgement::Held;
            assert!(results.checks.iter().all(held), "{:?}", results.checks);
        }
        let mut results = run_with("memory", &mut Synthetic::new(), &Scale::full()).unwrap();
        for measured in &mut results.steps {
            if let Figures::Held(held) = &mut measured.figures {
                held.most += 1 << 30;
                held.left = held
                    .left
                    .as_ref()
                    .map(|_| BTreeMap::from([("timers".to_owned(), 2.0)]));
            }
        }
        let lost = checks(&results);
        assert!(
            lost.iter().all(|check| check.judgement == Judgement::Lost),
            "{lost:?}"
        );
        assert!(lost[2].figures.starts_with("2 timers"), "{}", lost[2].figures);
        let none = checks(&Results::new("memory", true));
        assert!(none.iter().all(|check| check.judgement == Judgement::Unmeasured));
    }
}

//! `split`: what the split of CPU time says, whether its parts add up, and what it costs.

use super::checks::{check, held, unmeasured};
use super::steps::COMPLETED;
use super::{Scale, Session, steps};
use crate::case::{CallScenario, Server, Setup};
use crate::failure::Outcome;
use crate::results::{Check, Results};
use crate::station::settle_s;
use crate::statistics::{Bound, Judgement, judge};
use crate::steps::{Measured, SplitTime, Step};

/// Calls a second that keep one worker busy for about half of its time.
const RATES: [(CallScenario, u32); 5] = [
    (CallScenario::Stateless, 9_000),
    (CallScenario::Transaction, 6_000),
    (CallScenario::Digest, 5_000),
    (CallScenario::Tcp, 7_000),
    (CallScenario::Tls, 5_500),
];
/// The quick form offers this part, in so many scenarios: any machine carries it.
const QUICK: u32 = 8;
const QUICK_SCENARIOS: usize = 2;
/// Where the sum of the parts lies, beside the CPU time of the thread.
const ACCOUNTED: std::ops::RangeInclusive<f64> = 0.95..=1.02;
/// What the worker uses with the split on, beside what it uses with it off.
const COST: f64 = 1.05;

/// All steps, in order.
pub(crate) fn plan(scale: &Scale) -> Vec<Step> {
    let quick = |(scenario, rate): (CallScenario, u32)| Step::Split {
        scenario,
        rate: rate / QUICK,
        warm: 1,
        turns: 4,
        // The figures are some tenths of a second old.
        seconds: 10,
    };
    let full = |(scenario, rate): (CallScenario, u32)| Step::Split {
        scenario,
        rate,
        warm: settle_s(&Setup::of(Server::Trapezoid, scenario.case())) as u32,
        turns: 40,
        seconds: 20,
    };
    if scale.quick {
        return RATES.into_iter().take(QUICK_SCENARIOS).map(quick).collect();
    }
    RATES.into_iter().map(full).collect()
}

/// Makes all steps that the results do not have yet.
pub(crate) fn run(session: &mut Session<'_>) -> Outcome<()> {
    let plan = plan(session.scale);
    steps::run(session, &plan)
}

/// What was measured of a scenario at so many calls a second.
pub(crate) type Found<'a> = (CallScenario, u32, &'a SplitTime);

/// What was measured.
pub(crate) fn splits(measured: &[Measured]) -> Vec<Found<'_>> {
    let mut found = Vec::new();
    for one in measured {
        if let (Step::Split { scenario, rate, .. }, Some(split)) = (one.step, one.split()) {
            found.push((scenario, rate, split));
        }
    }
    found
}

/// The shapes. Half-seconds differ by more than the split costs, and the quick form has too few of them.
pub(crate) fn checks(results: &Results) -> Vec<Check> {
    let splits = splits(&results.steps);
    let mut checks = vec![accounted(&splits), completed(&splits)];
    if !results.quick {
        checks.extend(costs(&splits));
    }
    checks
}

/// A figure of all scenarios that must keep to a bound, by itself in each.
fn each(name: &str, splits: &[Found<'_>], figure: fn(&SplitTime) -> f64, keeps: fn(f64) -> bool) -> Check {
    if splits.is_empty() {
        return unmeasured(name);
    }
    let figures = splits
        .iter()
        .map(|(scenario, _, split)| (scenario.name(), figure(split)));
    let texts: Vec<String> = figures
        .clone()
        .map(|(scenario, figure)| format!("{figure:.3} {scenario}"))
        .collect();
    let all_keep = figures.map(|(_, figure)| figure).all(keeps);
    check(name, held(all_keep), texts.join(", "))
}

fn accounted(splits: &[Found<'_>]) -> Check {
    each(
        "the parts add up to 95 to 102 % of the CPU time of the worker's thread",
        splits,
        SplitTime::accounted,
        |part| ACCOUNTED.contains(&part),
    )
}

fn completed(splits: &[Found<'_>]) -> Check {
    each(
        "at least 99 % of the calls are completed",
        splits,
        |split| split.load.succeeded_part(),
        |part| part >= COMPLETED,
    )
}

fn costs(splits: &[Found<'_>]) -> Vec<Check> {
    const NAME: &str = "the split takes less than 5 % of the worker's CPU";
    if splits.is_empty() {
        return vec![unmeasured(NAME)];
    }
    let each = splits.iter().map(|(scenario, _, split)| {
        let name = format!("{}: {NAME}", scenario.name());
        let turns: Vec<(f64, f64)> = split.turns.iter().map(|(off, on)| (*on, *off)).collect();
        if turns.len() < 2 {
            return check(&name, Judgement::Unmeasured, "fewer than two turns".to_owned());
        }
        let judged = judge(&turns, Bound::Below(COST));
        check(&name, judged.judgement, format!("on beside off {}", judged.text))
    });
    each.collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::synthetic::Synthetic;
    use super::super::tests::run_with;
    use super::*;
    use crate::load::Report;
    use crate::steps::{Figures, Part};

    /// The worker is busy for about half of its time, and for 1 % more with the split.
    pub(crate) fn made_up(turns: u32, seconds: u32) -> SplitTime {
        let thread_s = 0.5 * f64::from(seconds);
        let part = |component: &str, share: f64| Part {
            component: component.to_owned(),
            cpu_seconds: share * thread_s,
        };
        SplitTime {
            load: Report {
                duration_s: 1.0,
                offered: 1_000,
                succeeded: 1_000,
                goodput: 1_000.0,
                ..Report::default()
            },
            turns: (0..turns)
                .map(|turn| {
                    let noise = [0.01, -0.01, 0.02, -0.02][turn as usize % 4];
                    (0.5, 0.505 * (1.0 + noise))
                })
                .collect(),
            thread_s,
            parts: vec![part("wait", 0.1), part("send", 0.6), part("parse", 0.292)],
            measured: 5_000,
        }
    }

    fn seconds(scale: &Scale) -> f64 {
        let pace = steps::pace(scale);
        plan(scale).iter().map(|step| steps::expected(step, &pace)).sum()
    }

    #[test]
    fn the_plan_fits_into_its_time() {
        let full = seconds(&Scale::full());
        assert!((300.0..=600.0).contains(&full), "{full}");
        let quick = seconds(&Scale::quick());
        assert!(quick <= 60.0, "{quick}");
    }

    #[test]
    fn a_scenario_with_state_is_warm_when_its_first_transactions_have_ended() {
        for step in plan(&Scale::full()) {
            let Step::Split { scenario, warm, .. } = step else {
                panic!("{step:?}")
            };
            let has_state = scenario != CallScenario::Stateless;
            assert_eq!(warm > 32, has_state, "{step:?}");
        }
    }

    /// The names of the checks that are lost after a change of the figures.
    fn lost(quick: bool, change: fn(&mut SplitTime)) -> Vec<String> {
        let scale = if quick { Scale::quick() } else { Scale::full() };
        let mut results = run_with("split", &mut Synthetic::new(), &scale).unwrap();
        for measured in &mut results.steps {
            if let Figures::Split(split) = &mut measured.figures {
                change(split);
            }
        }
        let lost = checks(&results).into_iter();
        let lost = lost.filter(|check| check.judgement == Judgement::Lost);
        lost.map(|check| check.name).collect()
    }

    #[test]
    fn the_checks_hold_and_can_each_fail() {
        for (scale, count) in [(Scale::quick(), 2), (Scale::full(), 7)] {
            let results = run_with("split", &mut Synthetic::new(), &scale).unwrap();
            assert_eq!(results.steps.len(), plan(&scale).len());
            assert_eq!(results.checks.len(), count);
            let held = |check: &Check| check.judgement == Judgement::Held;
            assert!(results.checks.iter().all(held), "{:?}", results.checks);
        }
        for quick in [true, false] {
            for change in [(|split| split.thread_s *= 1.1) as fn(&mut SplitTime), |split| {
                split.thread_s *= 0.95
            }] {
                assert_eq!(
                    lost(quick, change),
                    ["the parts add up to 95 to 102 % of the CPU time of the worker's thread"]
                );
            }
            let calls = lost(quick, |split| split.load.succeeded = 980);
            assert_eq!(calls, ["at least 99 % of the calls are completed"]);
        }
        let dear = lost(false, |split| {
            for (_, on) in &mut split.turns {
                *on *= 1.1;
            }
        });
        assert_eq!(dear.len(), 5, "{dear:?}");
        assert_eq!(
            dear[0],
            "stateless: the split takes less than 5 % of the worker's CPU"
        );
        let none = checks(&Results::new("split", false));
        assert_eq!(none.len(), 3);
        assert!(none.iter().all(|check| check.judgement == Judgement::Unmeasured));
    }

    #[test]
    fn one_scenario_that_does_not_add_up_is_enough() {
        let mut results = run_with("split", &mut Synthetic::new(), &Scale::full()).unwrap();
        if let Figures::Split(split) = &mut results.steps[3].figures {
            split.parts.pop();
        }
        let found = &checks(&results)[0];
        assert_eq!(found.judgement, Judgement::Lost);
        assert!(found.figures.contains("0.700 tcp"), "{}", found.figures);
    }
}

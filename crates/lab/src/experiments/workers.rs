//! `workers`: what a second worker brings, and how the calls of one source port spread over both.

use super::checks::{check, unmeasured};
use super::steps::COMPLETED;
use super::{Scale, Session, steps};
use crate::case::CallScenario;
use crate::failure::Outcome;
use crate::load::Transport;
use crate::report::number;
use crate::results::{Check, Results};
use crate::statistics::{Bound, Judgement, judge, median};
use crate::steps::{Measured, Spread, Step, shares};

/// Calls a second that keep one worker busy for three quarters of its time or more. Two at the rate of one are half as
/// busy, and wake up more often for fewer messages: that is in the figure.
const RATES: [(CallScenario, u32); 4] = [
    (CallScenario::Stateless, 15_000),
    (CallScenario::Transaction, 11_500),
    (CallScenario::Digest, 6_000),
    (CallScenario::Tcp, 20_000),
];
/// Of which so many are measured if none is asked for.
const UNASKED: usize = 2;
/// The quick form offers this part: any machine carries it.
const QUICK: u32 = 8;
/// What two workers do, beside one.
const GAIN: f64 = 1.8;
/// Per cent of the requests that each of two workers gets.
const EVEN: std::ops::RangeInclusive<f64> = 30.0..=70.0;

/// All steps, in order: one worker and two in turn, forwards in one round and backwards in the next.
pub(crate) fn plan(scale: &Scale) -> Vec<Step> {
    let asked = if scale.only.is_empty() {
        UNASKED
    } else {
        RATES.len()
    };
    let mut steps = Vec::new();
    for round in 1..=scale.worker_rounds {
        for (scenario, rate) in RATES.into_iter().take(asked) {
            let rate = if scale.quick { rate / QUICK } else { rate };
            let order = if round % 2 == 1 { [1, 2] } else { [2, 1] };
            steps.extend(order.map(|workers| Step::Workers {
                scenario,
                workers,
                rate,
                round,
            }));
        }
    }
    steps
}

/// Makes all steps that the results do not have yet.
pub(crate) fn run(session: &mut Session<'_>) -> Outcome<()> {
    let plan = plan(session.scale);
    steps::run(session, &plan)
}

/// One scenario, with its calls on one worker and on two, each with its round.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Compared<'a> {
    pub(crate) scenario: CallScenario,
    /// Calls a second.
    pub(crate) rate: u32,
    pub(crate) one: Vec<(u32, &'a Spread)>,
    pub(crate) two: Vec<(u32, &'a Spread)>,
}

impl Compared<'_> {
    /// Twice the CPU for a call of one worker, and that of two, of each round in which calls succeeded.
    pub(crate) fn pairs(&self) -> Vec<(f64, f64)> {
        let is_sound = |spread: &Spread| spread.completed() > 0.95;
        let pair = |(round, one): &(u32, &Spread)| {
            let (_, two) = self.two.iter().find(|(other, _)| other == round)?;
            (is_sound(one) && is_sound(two)).then(|| (2.0 * one.us(), two.us()))
        };
        self.one.iter().filter_map(pair).collect()
    }
}

/// The scenarios that were measured, in the order of their first steps.
pub(crate) fn compared(measured: &[Measured]) -> Vec<Compared<'_>> {
    let mut found: Vec<Compared<'_>> = Vec::new();
    for one in measured {
        let (
            Step::Workers {
                scenario,
                workers,
                rate,
                round,
            },
            Some(spread),
        ) = (one.step, one.spread())
        else {
            continue;
        };
        let at = found.iter().position(|of| of.scenario == scenario);
        let at = at.unwrap_or_else(|| {
            found.push(Compared {
                scenario,
                rate,
                one: Vec::new(),
                two: Vec::new(),
            });
            found.len() - 1
        });
        if let Some(of) = found.get_mut(at) {
            let runs = if workers == 1 { &mut of.one } else { &mut of.two };
            runs.push((round, spread));
        }
    }
    found
}

/// The shapes. The gain shows only at rates that fill a worker, and in more rounds than the quick form has.
pub(crate) fn checks(results: &Results) -> Vec<Check> {
    let compared = compared(&results.steps);
    let mut checks = vec![completed(&compared), spread(&compared)];
    if !results.quick {
        checks.extend(gains(&compared));
    }
    checks
}

fn completed(compared: &[Compared<'_>]) -> Check {
    const NAME: &str = "at least 99 % of the calls are completed";
    // Runs of one kind are repetitions.
    let kinds = compared.iter().flat_map(|of| [(of, &of.one), (of, &of.two)]);
    let kinds: Vec<_> = kinds.filter(|(_, runs)| !runs.is_empty()).collect();
    let each = kinds.iter().flat_map(|(of, runs)| {
        let scenario = of.scenario.name();
        runs.iter().map(move |(_, run)| (scenario, run.completed()))
    });
    let each: Vec<(&str, f64)> = each.collect();
    let Some((scenario, worst)) = each.iter().min_by(|a, b| a.1.total_cmp(&b.1)) else {
        return unmeasured(NAME);
    };
    let of_kind = |runs: &[(u32, &Spread)]| {
        Judgement::of_runs(runs.iter().map(|(_, run)| run.completed() >= COMPLETED))
    };
    let gravest = kinds.iter().map(|(_, runs)| of_kind(runs)).max();
    let text = format!(
        "worst of {} runs: {:.2} % ({scenario})",
        each.len(),
        100.0 * worst
    );
    check(NAME, gravest.unwrap_or_default(), text)
}

/// Of calls by UDP: a TCP connection belongs to one worker.
fn spread(compared: &[Compared<'_>]) -> Check {
    const NAME: &str = "each of two workers gets 30 to 70 % of the requests";
    let by_udp = compared
        .iter()
        .filter(|of| of.scenario.case().transport == Transport::Udp && !of.two.is_empty());
    let shares: Vec<Vec<Vec<f64>>> = by_udp
        .map(|of| of.two.iter().map(|(_, run)| shares(&run.requests)).collect())
        .collect();
    let is_even = |shares: &Vec<f64>| shares.len() == 2 && shares.iter().all(|share| EVEN.contains(share));
    let gravest = shares
        .iter()
        .map(|runs| Judgement::of_runs(runs.iter().map(is_even)))
        .max();
    let Some(judgement) = gravest else {
        return unmeasured(NAME);
    };
    let all: Vec<f64> = shares.iter().flatten().flatten().copied().collect();
    let least = all.iter().copied().fold(100.0, f64::min);
    let most = all.iter().copied().fold(0.0, f64::max);
    let runs: usize = shares.iter().map(Vec::len).sum();
    check(
        NAME,
        judgement,
        format!("{least:.0} to {most:.0} % in {runs} runs"),
    )
}

fn gains(compared: &[Compared<'_>]) -> Vec<Check> {
    const NAME: &str = "two workers do at least 1.8 times the work of one";
    if compared.is_empty() {
        return vec![unmeasured(NAME)];
    }
    compared.iter().map(|of| gain(of, NAME)).collect()
}

fn gain(of: &Compared<'_>, name: &str) -> Check {
    let name = format!("{}: {name}", of.scenario.name());
    let pairs = of.pairs();
    if pairs.len() < 2 {
        let text = "no runs in turn in which calls succeeded".to_owned();
        return check(&name, Judgement::Unmeasured, text);
    }
    let judged = judge(&pairs, Bound::Above(GAIN));
    let middle = |figure: fn(&(f64, f64)) -> f64| {
        number(median(&pairs.iter().map(figure).collect::<Vec<_>>()).unwrap_or(0.0))
    };
    let text = format!(
        "{} µs for a call by one, {} by two; gain {}",
        middle(|pair| pair.0 / 2.0),
        middle(|pair| pair.1),
        judged.text
    );
    check(&name, judged.judgement, text)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeMap;

    use super::super::synthetic::Synthetic;
    use super::super::tests::run_with;
    use super::*;
    use crate::cpu::Used;
    use crate::load::Report;
    use crate::steps::Figures;

    /// A call costs 60 µs, and with two workers 62.
    pub(crate) fn made_up(workers: u32, round: u32) -> Spread {
        let each = if workers == 1 { 60.0 } else { 62.0 };
        let seconds = (each + 0.1 * f64::from(round)) / 1e3;
        let of_workers = |all: f64| (0..workers).map(|_| all / f64::from(workers)).collect();
        let threads = (0..workers).map(|n| (format!("worker-{n}"), seconds / f64::from(workers)));
        Spread {
            load: Report {
                duration_s: 1.0,
                offered: 1_000,
                succeeded: 1_000,
                goodput: 1_000.0,
                ..Report::default()
            },
            server: Used {
                wall_s: 1.0,
                total_s: seconds,
                threads: threads.collect(),
                ..Used::default()
            },
            requests: of_workers(3_000.0),
            responses: of_workers(3_000.0),
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
    fn one_worker_and_two_take_turns_forwards_and_backwards() {
        let workers = |step: &Step| {
            let Step::Workers { workers, .. } = step else {
                panic!("{step:?}")
            };
            *workers
        };
        let steps = plan(&Scale::full());
        assert_eq!(steps.len(), 7 * 2 * 2);
        let first: Vec<u32> = steps.iter().take(8).map(workers).collect();
        assert_eq!(first, [1, 2, 1, 2, 2, 1, 2, 1]);
        for (index, step) in steps.iter().enumerate() {
            assert!(!steps[..index].contains(step), "{} twice", step.text());
        }
    }

    #[test]
    fn digest_and_tcp_are_measured_if_they_are_asked_for() {
        for (word, steps) in [("tcp", 14), ("digest", 14), ("2 workers", 28)] {
            let scale = Scale {
                only: vec![word.to_owned()],
                ..Scale::full()
            };
            let results = run_with("workers", &mut Synthetic::new(), &scale).unwrap();
            assert_eq!(results.steps.len(), steps, "{word}");
            let is_asked = |measured: &Measured| measured.step.text().contains(word);
            assert!(results.steps.iter().all(is_asked), "{word}");
        }
    }

    /// The names of the checks that are lost after a change of the figures of steps with two workers.
    fn lost(quick: bool, change: fn(&mut Spread)) -> Vec<String> {
        let scale = if quick { Scale::quick() } else { Scale::full() };
        let mut results = run_with("workers", &mut Synthetic::new(), &scale).unwrap();
        for measured in &mut results.steps {
            if let (Step::Workers { workers: 2, .. }, Figures::Workers(spread)) =
                (measured.step, &mut measured.figures)
            {
                change(spread);
            }
        }
        let checks = checks(&results).into_iter();
        let lost = checks.filter(|check| check.judgement == Judgement::Lost);
        lost.map(|check| check.name).collect()
    }

    #[test]
    fn the_checks_hold_and_can_each_fail() {
        for (scale, count) in [(Scale::quick(), 2), (Scale::full(), 4)] {
            let results = run_with("workers", &mut Synthetic::new(), &scale).unwrap();
            assert_eq!(results.steps.len(), plan(&scale).len());
            assert_eq!(results.checks.len(), count);
            let held = |check: &Check| check.judgement == Judgement::Held;
            assert!(results.checks.iter().all(held), "{:?}", results.checks);
        }
        for quick in [true, false] {
            let calls = lost(quick, |spread| {
                (spread.load.succeeded, spread.load.failed) = (980, 20);
            });
            assert_eq!(calls, ["at least 99 % of the calls are completed"]);
            let uneven = lost(quick, |spread| spread.requests = vec![1_000.0, 0.0]);
            assert_eq!(uneven, ["each of two workers gets 30 to 70 % of the requests"]);
        }
        let dear = lost(false, |spread| spread.server.total_s *= 1.2);
        assert_eq!(
            dear,
            [
                "stateless: two workers do at least 1.8 times the work of one",
                "transaction: two workers do at least 1.8 times the work of one"
            ]
        );
        let none = checks(&Results::new("workers", false));
        assert_eq!(none.len(), 3);
        assert!(none.iter().all(|check| check.judgement == Judgement::Unmeasured));
    }

    #[test]
    fn the_gain_is_that_of_runs_in_which_calls_succeeded() {
        let results = run_with("workers", &mut Synthetic::new(), &Scale::full()).unwrap();
        let all = compared(&results.steps);
        assert_eq!(all.len(), 2);
        assert_eq!((all[0].scenario, all[0].rate), (CallScenario::Stateless, 15_000));
        let pairs = all[0].pairs();
        assert_eq!(pairs.len(), 7);
        let (twice, two) = pairs[0];
        assert!(
            (twice - 120.2).abs() < 1e-6 && (two - 62.1).abs() < 1e-6,
            "{pairs:?}"
        );
        let mut broken = made_up(2, 1);
        broken.load.succeeded = 900;
        let mut half = all[0].clone();
        half.two[0].1 = &broken;
        assert_eq!(half.pairs().len(), 6);
        let text = &results.checks[2].figures;
        assert!(
            text.starts_with("60.4 µs for a call by one, 62.4 by two; gain 1.94"),
            "{text}"
        );
    }

    #[test]
    fn a_stall_in_one_run_loses_no_shape() {
        let mut results = run_with("workers", &mut Synthetic::new(), &Scale::quick()).unwrap();
        if let Figures::Workers(spread) = &mut results.steps[0].figures {
            spread.load.succeeded = 100;
        }
        let checks = checks(&results);
        assert_eq!(checks[0].judgement, Judgement::Undecided, "{checks:?}");
    }

    #[test]
    fn no_thread_of_a_worker_is_missed() {
        let threads: BTreeMap<String, f64> = made_up(2, 1).server.threads;
        assert_eq!(threads.len(), 2);
        assert_eq!(shares(&made_up(2, 1).cpu()), [50.0, 50.0]);
    }
}

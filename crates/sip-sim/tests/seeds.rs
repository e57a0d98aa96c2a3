//! The fixed seeds, and any other by `SEED=n` (with its ladder; `CALL=n`: of one call) or
//! `SEEDS=a..b`.

use std::panic::{AssertUnwindSafe, catch_unwind};

use sip_sim::world::{Outcome, run};

/// What is run where nobody asks for more.
const FIXED: std::ops::Range<u64> = 0..200;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.trim()
            .parse()
            .unwrap_or_else(|_| panic!("{name} is no number: {text}")),
    )
}

fn seeds() -> std::ops::Range<u64> {
    if let Some(seed) = number("SEED") {
        return seed..seed + 1;
    }
    let Ok(text) = std::env::var("SEEDS") else {
        return FIXED;
    };
    let range = text
        .split_once("..")
        .and_then(|(a, b)| Some(a.parse().ok()?..b.parse().ok()?));
    range.unwrap_or_else(|| panic!("SEEDS is no a..b: {text}"))
}

/// Everything wrong with a seed; a panic among it.
fn faults(seed: u64) -> (Option<Outcome>, Vec<String>) {
    match catch_unwind(AssertUnwindSafe(|| run(seed))) {
        Ok(outcome) => {
            let mut faults: Vec<String> = outcome.violations.iter().map(ToString::to_string).collect();
            if !faults.is_empty() {
                faults.insert(0, outcome.scenario.summary());
            }
            (Some(outcome), faults)
        }
        Err(_) => (None, vec![format!("seed {seed}: panic")]),
    }
}

#[test]
fn every_seed_holds() {
    let mut all = Vec::new();
    let mut messages = 0;
    for seed in seeds() {
        let (outcome, faults) = faults(seed);
        messages += outcome.as_ref().map_or(0, |o| o.log.sent.len());
        if let (Some(outcome), Some(_)) = (&outcome, number("SEED")) {
            let call = number("CALL").map(|c| c as u32);
            println!("{}\n{}", outcome.scenario.summary(), outcome.ladder(call));
            for plan in outcome
                .scenario
                .calls
                .iter()
                .filter(|p| call.is_none_or(|c| c == p.call))
            {
                println!("{plan:?}");
            }
            for report in outcome
                .reports
                .iter()
                .filter(|r| call.is_none_or(|c| c == r.call))
            {
                println!("{report:?}");
            }
        }
        all.extend(faults);
    }
    println!("{messages} messages");
    let count = all.len();
    all.truncate(100);
    assert!(count == 0, "{count} lines of faults\n{}", all.join("\n"));
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    for seed in [0, 1, 17, 101] {
        let (a, b) = (run(seed), run(seed));
        assert_eq!(a.ladder(None), b.ladder(None));
        let bytes = |o: &Outcome| o.log.sent.iter().map(|s| s.text.clone()).collect::<Vec<_>>();
        assert_eq!(bytes(&a), bytes(&b));
    }
    assert_ne!(run(1).ladder(None), run(2).ladder(None));
}

/// The seeds reach what they are meant to reach: a change of the scenarios that loses a path
/// shows here.
#[test]
fn the_fixed_seeds_reach_the_paths_that_matter() {
    use sip_sim::report::{RequestEnd, Side};
    let (mut ends, mut cancelled, mut crossed, mut unacknowledged, mut lost) =
        (std::collections::BTreeMap::<u16, u32>::new(), 0, 0, 0, 0);
    for seed in FIXED.step_by(2) {
        let outcome = run(seed);
        lost += outcome.log.sent.iter().filter(|s| !s.arrived()).count();
        for report in &outcome.reports {
            if report.side == Side::Callee {
                unacknowledged += u32::from(report.acknowledged == Some(false));
                continue;
            }
            let end = match report.invite {
                RequestEnd::Answered(status) => status,
                RequestEnd::TimedOut(_) => 0,
                RequestEnd::NotSent | RequestEnd::Pending => panic!("{report:?}"),
            };
            *ends.entry(end).or_default() += 1;
            cancelled += u32::from(report.cancel != RequestEnd::NotSent);
            crossed += u32::from(report.cancel != RequestEnd::NotSent && end == 200);
        }
    }
    println!("{ends:?} cancelled {cancelled} crossed {crossed} unacknowledged {unacknowledged} lost {lost}");
    for status in [0, 200, 407, 408, 486, 487, 503] {
        assert!(ends.contains_key(&status), "no call ends in {status}: {ends:?}");
    }
    assert!(cancelled > 50 && crossed > 3 && unacknowledged > 3 && lost > 500);
}

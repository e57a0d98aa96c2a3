//! The fixed seeds, and any other by `SEED=n` (with its ladder; `CALL=n`: of one call) or
//! `SEEDS=a..b`.

use sip_sim::runner::{FIXED, Outcome, every_seed_holds as hold};
use sip_sim::scenario::Scenario;
use sip_sim::world::run;

#[test]
fn every_seed_holds() {
    hold(run);
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    for seed in [0, 1, 17, 101] {
        let (a, b) = (run(seed), run(seed));
        assert_eq!(a.ladder(None), b.ladder(None));
        let bytes = |o: &Outcome<Scenario>| o.log.sent.iter().map(|s| s.text.clone()).collect::<Vec<_>>();
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

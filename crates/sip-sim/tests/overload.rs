//! A server that is offered more than it carries. `make sim` plays other seeds.

use sip_sim::clock::{MS, SECOND};
use sip_sim::overload::rules::{broken, service_of_call};
use sip_sim::overload::{Outcome, Phase, Plan, play};

/// Plays these seeds.
fn hold(seeds: core::ops::Range<u64>) {
    for seed in seeds {
        let plan = Plan::of(seed);
        let outcome = play(&plan);
        let broken: Vec<String> = broken(&plan, &outcome).iter().map(ToString::to_string).collect();
        assert!(broken.is_empty(), "{plan:#?}\n{}", broken.join("\n"));
        assert!(
            outcome.completed.len() > 500,
            "seed {seed}: {}",
            outcome.completed.len()
        );
    }
}

#[test]
fn seeds_0_to_6_hold() {
    hold(0..6);
}

#[test]
fn seeds_6_to_12_hold() {
    hold(6..12);
}

/// A server with this many times what it carries, from the first moment on.
fn offered(times: f64, has_queues: bool, is_stateful: bool) -> (Plan, Outcome, f64) {
    let carried = 1e6 / (8.0 * service_of_call(is_stateful));
    let plan = Plan {
        seed: 7,
        is_stateful,
        has_queues,
        phases: vec![Phase {
            from: 0,
            calls: (times * carried) as u32,
            registers: 0,
            strays: 0,
            slowness: 800,
        }],
        length: 4 * SECOND,
        cancelling: 0,
    };
    let outcome = play(&plan);
    (plan, outcome, carried)
}

/// The model has the disease that the queues are for: with one queue, a server beyond its peak completes a part of
/// it, and callees repeat what they have said.
#[test]
fn with_one_queue_goodput_falls() {
    for is_stateful in [false, true] {
        let (_, one, carried) = offered(3.0, false, is_stateful);
        let (_, three, _) = offered(3.0, true, is_stateful);
        let goodput = |outcome: &Outcome| outcome.goodput(2 * SECOND, 4 * SECOND) / carried;
        assert!(goodput(&one) < 0.7, "{}", goodput(&one));
        assert!(goodput(&three) > 0.9, "{}", goodput(&three));
        assert!(one.repeated > 100 && three.repeated == 0, "{}", one.repeated);
    }
}

/// The same seed gives the same run.
#[test]
fn a_run_can_be_repeated() {
    let [one, other] = [(), ()].map(|()| offered(2.0, true, true).1);
    assert_eq!(one.calls, other.calls);
    assert_eq!(one.waited, other.waited);
}

/// Below its peak, a server with queues of new work does what one without does.
#[test]
fn below_the_peak_nothing_differs() {
    let [one, three] = [false, true].map(|has_queues| offered(0.7, has_queues, true).1);
    let ends = |outcome: &Outcome| {
        (
            outcome.calls.len(),
            outcome.completed.len(),
            outcome.dropped.concat().len(),
        )
    };
    assert_eq!(ends(&one), ends(&three));
    assert_eq!(ends(&three).2, 0);
    let slow = three.waited.iter().filter(|(_, wait)| *wait > 100 * MS);
    assert_eq!(slow.count(), 0);
}

//! The checkers catch what they are there for: each known fault in one of the proxies is seen in
//! some of the fixed seeds.

use sip_sim::mutant::{Fault, Mutant};
use sip_sim::runner::{Outcome, every_fault_is_caught, every_seed_holds};
use sip_sim::scenario::{PROXY_A, PROXY_B, Scenario};
use sip_sim::world::run_with;

/// The rule that is there for this fault; others may fire beside it.
fn rule_for(fault: Fault) -> &'static str {
    match fault {
        Fault::DropsCancel | Fault::SendsNoCancel | Fault::DropsByeAnswer => "unexplained time-out",
        Fault::DoublesFinals => "final too often",
        Fault::SendsSecondFailure => "two finals",
        Fault::ChangesBranch => "second INVITE",
        Fault::ForgetsToAbsorb => "not absorbed",
        Fault::NeverRepeatsInvite => "gave up early",
        Fault::DropsAck => "ACK lost",
        Fault::ForwardsFailureAck => "stray ACK",
        Fault::IgnoresFailureAck => "final after ACK",
        Fault::KeepsMaxForwards => "Max-Forwards",
        Fault::DropsSuccess => "conservation",
        Fault::SendsToStranger => "stranger",
        Fault::StopsClock => "leftovers",
        Fault::SendsNoTrying => "no 100",
        Fault::LeaksCredentials => "credentials",
        Fault::MisdirectsAnswers => "stray response",
    }
}

/// `seed` with `fault` in A or in B.
fn run_faulty(seed: u64, fault: Fault) -> Outcome<Scenario> {
    let victim = if seed.is_multiple_of(2) { PROXY_A } else { PROXY_B };
    run_with(seed, &|id, node| {
        if id == victim {
            Box::new(Mutant::new(node, fault))
        } else {
            node
        }
    })
}

#[test]
fn every_known_fault_is_caught() {
    every_fault_is_caught(Fault::ALL, rule_for, run_faulty);
}

#[test]
#[should_panic(expected = "lines of faults")]
fn a_run_with_a_fault_fails() {
    every_seed_holds(|seed| run_faulty(seed, Fault::DropsAck));
}

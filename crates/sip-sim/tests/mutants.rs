//! The checkers catch what they are there for: each known fault in one of the proxies is seen in
//! some of the fixed seeds.

use sip_sim::mutant::{Fault, Mutant};
use sip_sim::scenario::{PROXY_A, PROXY_B};
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

/// The first of the fixed seeds in which `fault`, in A or in B, breaks its rule.
fn caught(fault: Fault) -> Option<u64> {
    (0..200).find(|seed| {
        let victim = if seed % 2 == 0 { PROXY_A } else { PROXY_B };
        let outcome = run_with(*seed, &|id, node| {
            if id == victim {
                Box::new(Mutant::new(node, fault))
            } else {
                node
            }
        });
        outcome.violations.iter().any(|v| v.rule == rule_for(fault))
    })
}

#[test]
fn every_known_fault_is_caught() {
    let missed: Vec<Fault> = Fault::ALL
        .into_iter()
        .filter(|fault| match caught(*fault) {
            Some(seed) => {
                println!("{fault:?}: {} in seed {seed}", rule_for(*fault));
                false
            }
            None => true,
        })
        .collect();
    assert!(missed.is_empty(), "not caught: {missed:?}");
}

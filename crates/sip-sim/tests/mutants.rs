//! The checkers catch what they are there for: each known fault in one of the proxies is seen in
//! some of the fixed seeds.

use sip_sim::mutant::{Fault, Mutant};
use sip_sim::scenario::{PROXY_A, PROXY_B};
use sip_sim::world::run_with;

/// Rules that fire for `fault`, and the first seed.
fn caught(fault: Fault) -> Option<(u64, Vec<&'static str>)> {
    (0..200).find_map(|seed| {
        let victim = if seed % 2 == 0 { PROXY_A } else { PROXY_B };
        let outcome = run_with(seed, &|id, node| {
            if id == victim {
                Box::new(Mutant::new(node, fault))
            } else {
                node
            }
        });
        let mut rules: Vec<&str> = outcome.violations.iter().map(|v| v.rule).collect();
        rules.sort_unstable();
        rules.dedup();
        (!rules.is_empty()).then_some((seed, rules))
    })
}

#[test]
fn every_known_fault_is_caught() {
    let mut missed = Vec::new();
    for fault in Fault::ALL {
        match caught(fault) {
            Some((seed, rules)) => println!("{fault:?}: seed {seed} {rules:?}"),
            None => missed.push(fault),
        }
    }
    assert!(missed.is_empty(), "not caught: {missed:?}");
}

//! Calls that fork, by fixed seeds, and any other by `SEED=n` (with its ladder; `CALL=n`: of one
//! call) or `SEEDS=a..b`; and the faults that the rules must see.

use std::collections::BTreeMap;

use sip_sim::fork::mutant::{ForkFault, ForkMutant};
use sip_sim::fork::scenario::PROXY;
use sip_sim::fork::{run, run_with};
use sip_sim::runner::{FIXED, every_fault_is_caught, every_seed_holds};

#[test]
fn every_forked_call_holds() {
    every_seed_holds(run);
}

/// How calls end in the fixed seeds: a change of the scenarios that loses a path is seen here.
#[test]
fn the_fixed_seeds_fork_in_every_way() {
    let mut ends: BTreeMap<u16, u32> = BTreeMap::new();
    let (mut several, mut both) = (0, 0);
    for seed in FIXED {
        let outcome = run(seed);
        for call in &outcome.scenario.calls {
            let mut told: Vec<(u16, &str)> = outcome
                .log
                .sent
                .iter()
                .filter(|s| s.from == PROXY && s.to == Some(0) && s.facts.call == Some(call.plan.call))
                .filter(|s| s.facts.is_final_to("INVITE"))
                .map(|s| (s.facts.status.unwrap_or(0), s.facts.to_tag.as_str()))
                .collect();
            told.sort_unstable();
            told.dedup();
            let successes = told.iter().filter(|t| t.0 == 200).count();
            several += u32::from(successes > 1);
            both += u32::from(successes > 0 && successes < told.len());
            for (status, _) in told {
                *ends.entry(status).or_default() += 1;
            }
        }
    }
    println!("{ends:?}, several 2xx {several}, 2xx after a failure {both}");
    for status in [200, 302, 401, 404, 408, 480, 486, 487, 500, 603] {
        assert!(ends.contains_key(&status), "no call ends in {status}: {ends:?}");
    }
    assert!(several > 5);
}

/// The rule that is there for this fault; others may fire beside it.
fn rule_for(fault: ForkFault) -> &'static str {
    match fault {
        ForkFault::CancelsNobody | ForkFault::ForgetsCancel => "rings on",
        ForkFault::LastInsteadOfBest => "not the best",
        ForkFault::StopsEarly => "stops early",
        ForkFault::DropsLateSuccess => "2xx lost",
        ForkFault::CancelsTheSilent => "stray CANCEL",
        ForkFault::TellsEveryFailure => "two finals",
    }
}

#[test]
fn every_fault_of_forking_is_caught() {
    every_fault_is_caught(ForkFault::ALL, rule_for, |seed, fault| {
        run_with(seed, &|id, node| {
            if id == PROXY {
                let caller = "192.0.2.10:5060".parse().expect("an address");
                Box::new(ForkMutant::new(node, fault, caller))
            } else {
                node
            }
        })
    });
}

//! Calls that fork, by fixed seeds, and any other by `SEED=n` (with its ladder; `CALL=n`: of one
//! call) or `SEEDS=a..b`; and the faults that the rules must see.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use sip_sim::fork::mutant::{ForkFault, ForkMutant};
use sip_sim::fork::scenario::PROXY;
use sip_sim::fork::{Outcome, run, run_with};

const FIXED: std::ops::Range<u64> = 0..200;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| {
        text.trim()
            .parse()
            .unwrap_or_else(|_| panic!("{name} is no number: {text}"))
    })
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

#[test]
fn every_forked_call_holds() {
    let mut all: Vec<String> = Vec::new();
    let mut messages = 0;
    for seed in seeds() {
        let Ok(outcome) = catch_unwind(AssertUnwindSafe(|| run(seed))) else {
            all.push(format!("seed {seed}: panic"));
            continue;
        };
        messages += outcome.log.sent.len();
        if number("SEED").is_some() {
            let call = number("CALL").map(|c| c as u32);
            println!(
                "{}\n{}",
                outcome.scenario.summary(),
                outcome.log.ladder(&outcome.stations, call)
            );
            for found in outcome
                .scenario
                .calls
                .iter()
                .filter(|c| call.is_none_or(|n| n == c.plan.call))
            {
                println!("{found:#?}");
            }
        }
        if !outcome.violations.is_empty() {
            all.push(outcome.scenario.summary());
            all.extend(outcome.violations.iter().map(ToString::to_string));
        }
    }
    println!("{messages} messages");
    let count = all.len();
    all.truncate(100);
    assert!(count == 0, "{count} lines of faults\n{}", all.join("\n"));
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

fn caught(fault: ForkFault) -> Option<u64> {
    FIXED.into_iter().find(|seed| {
        let outcome: Outcome = run_with(*seed, &|id, node| {
            if id == PROXY {
                Box::new(ForkMutant::new(
                    node,
                    fault,
                    "192.0.2.10:5060".parse().expect("an address"),
                ))
            } else {
                node
            }
        });
        outcome.violations.iter().any(|v| v.rule == rule_for(fault))
    })
}

#[test]
fn every_fault_of_forking_is_caught() {
    let missed: Vec<ForkFault> = ForkFault::ALL
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

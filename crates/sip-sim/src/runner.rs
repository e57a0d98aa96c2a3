//! Runs of many seeds: the fixed ones, or those that the environment names.

#![expect(clippy::print_stdout, reason = "for who runs a seed by hand")]

use std::fmt::Debug;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::checker::Violation;
use crate::report::CallReport;
use crate::trace::{Log, Station};

/// What is run where nobody asks for more.
pub const FIXED: Range<u64> = 0..200;

/// Lines of faults that a failure prints.
const MOST_LINES: usize = 100;

/// What a seed stands for.
pub trait Plan {
    /// In one line.
    fn summary(&self) -> String;
    /// The plan of one call, or of all, a line each.
    fn calls(&self, call: Option<u32>) -> Vec<String>;
}

/// What came of a run.
#[derive(Debug)]
pub struct Outcome<S> {
    /// What the seed stands for.
    pub scenario: S,
    /// Who is who.
    pub stations: Vec<Station>,
    /// Everything sent.
    pub log: Log,
    /// What the user agents say.
    pub reports: Vec<CallReport>,
    /// What is wrong; empty: nothing.
    pub violations: Vec<Violation>,
}

impl<S: Plan> Outcome<S> {
    /// The ladder of one call, or of all.
    pub fn ladder(&self, call: Option<u32>) -> String {
        self.log.ladder(&self.stations, call)
    }

    fn breaks(&self, rule: &str) -> bool {
        self.violations.iter().any(|v| v.rule == rule)
    }

    fn print(&self, call: Option<u32>) {
        println!("{}\n{}", self.scenario.summary(), self.ladder(call));
        for plan in self.scenario.calls(call) {
            println!("{plan}");
        }
        for report in self.reports.iter().filter(|r| call.is_none_or(|c| c == r.call)) {
            println!("{report:?}");
        }
    }
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.trim()
            .parse()
            .unwrap_or_else(|_| panic!("{name} is no number: {text}")),
    )
}

fn wanted() -> Range<u64> {
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

/// Runs the fixed seeds, `SEEDS=a..b`, or `SEED=n` with its ladder (`CALL=n`: of one call).
///
/// # Panics
/// With what is wrong, where a rule is broken or a run panics.
pub fn every_seed_holds<S: Plan>(run: impl Fn(u64) -> Outcome<S>) {
    let mut faults = Vec::new();
    let mut messages = 0;
    for seed in wanted() {
        let Ok(outcome) = catch_unwind(AssertUnwindSafe(|| run(seed))) else {
            faults.push(format!("seed {seed}: panic"));
            continue;
        };
        messages += outcome.log.sent.len();
        if number("SEED").is_some() {
            outcome.print(number("CALL").map(|c| c as u32));
        }
        if !outcome.violations.is_empty() {
            faults.push(outcome.scenario.summary());
            faults.extend(outcome.violations.iter().map(ToString::to_string));
        }
    }
    println!("{messages} messages");
    let count = faults.len();
    faults.truncate(MOST_LINES);
    assert!(count == 0, "{count} lines of faults\n{}", faults.join("\n"));
}

/// Each of `faults` breaks the rule that is there for it in one of the fixed seeds; others may be
/// broken beside it.
///
/// # Panics
/// With the faults that no seed shows.
pub fn every_fault_is_caught<F: Copy + Debug, S: Plan>(
    faults: impl IntoIterator<Item = F>,
    rule_for: impl Fn(F) -> &'static str,
    run: impl Fn(u64, F) -> Outcome<S>,
) {
    let mut missed = Vec::new();
    for fault in faults {
        let rule = rule_for(fault);
        match FIXED.into_iter().find(|seed| run(*seed, fault).breaks(rule)) {
            Some(seed) => println!("{fault:?}: {rule} in seed {seed}"),
            None => missed.push(fault),
        }
    }
    assert!(missed.is_empty(), "not caught: {missed:?}");
}

//! `make sim`: many seeds, on all cores, until one breaks a rule or they are through.
//!
//! `SEEDS=FROM..TO` names the seeds, `MINUTES=N` limits the time (from a seed chosen by the clock). `SEED=N`
//! runs one seed and prints its ladder, `SCENARIO=FILE` a scenario from a file. The first failing seed is
//! printed last, made smaller, with the command that repeats it.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program for a terminal"
)]

use std::collections::BTreeMap;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use counting_allocator::Counting;
use sip_sim::network::check::Violation;
use sip_sim::network::scenario::Scenario;
use sip_sim::network::{Outcome, play, shrink::shrink};
use sip_sim::overload::{self, Plan};

/// An allocator that counts, so that memory of servers when everything is over is known to the byte.
#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Seeds that are run by default.
const SEEDS: Range<u64> = 0..500;
/// Of the seeds, each of so many also names a plan of overload, which takes longer.
const OVERLOAD_EACH: u64 = 50;
/// Most runs for making a failure smaller.
const SHRINK_RUNS: usize = 600;
/// Number of failing seeds after which the search stops.
const MOST_FAILURES: usize = 20;

/// The seeds to be run.
struct Wanted {
    seeds: Range<u64>,
    until: Option<Instant>,
    /// The rule whose violation counts. If it is given, the first failing seed is enough.
    rule: Option<String>,
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|text| !text.trim().is_empty())
}

fn number(name: &str) -> Result<Option<u64>, String> {
    let Some(text) = variable(name) else {
        return Ok(None);
    };
    let parsed = text.trim().parse();
    parsed
        .map(Some)
        .map_err(|_| format!("{name} is no number: {text}"))
}

fn wanted() -> Result<Wanted, String> {
    let rule = variable("RULE");
    if let Some(minutes) = number("MINUTES")? {
        let clock = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |t| t.as_secs());
        let start = clock << 20;
        return Ok(Wanted {
            seeds: start..u64::MAX,
            until: Some(Instant::now() + Duration::from_secs(60 * minutes)),
            rule,
        });
    }
    let Some(text) = variable("SEEDS") else {
        return Ok(Wanted {
            seeds: SEEDS,
            until: None,
            rule,
        });
    };
    let range = text
        .split_once("..")
        .and_then(|(from, to)| Some(from.trim().parse().ok()?..to.trim().parse().ok()?));
    range
        .map(|seeds| Wanted {
            seeds,
            until: None,
            rule,
        })
        .ok_or(format!("SEEDS is no FROM..TO: {text}"))
}

/// Runs a scenario; a panic counts as a broken rule.
fn judge(scenario: Scenario) -> Result<Outcome, Violation> {
    catch_unwind(AssertUnwindSafe(|| play(scenario))).map_err(|panic| {
        let text = panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Violation::new("panic", None, text.unwrap_or_default())
    })
}

/// Runs the plan of overload of a seed; a panic counts as a broken rule.
fn judge_overload(seed: u64) -> Vec<Violation> {
    let run = || {
        let plan = Plan::of(seed);
        overload::rules::broken(&plan, &overload::play(&plan))
    };
    catch_unwind(run).unwrap_or_else(|_| vec![Violation::new("panic", None, "in a plan of overload")])
}

/// Whether a rule is one of those about overload. Without a rule, all are meant.
fn is_of_overload(rule: Option<&str>) -> Option<bool> {
    rule.map(|rule| overload::rules::NAMES.contains(&rule))
}

fn violations(scenario: Scenario) -> Vec<Violation> {
    match judge(scenario) {
        Ok(outcome) => outcome.violations,
        Err(panic) => vec![panic],
    }
}

/// Runs the seeds on all cores. Returns the failures by seed, and the number of runs.
fn run_all(wanted: &Wanted) -> (BTreeMap<u64, Vec<Violation>>, u64, u64) {
    let next = AtomicU64::new(wanted.seeds.start);
    let (runs, messages) = (AtomicU64::new(0), AtomicU64::new(0));
    let failed: Mutex<BTreeMap<u64, Vec<Violation>>> = Mutex::default();
    let most = if wanted.rule.is_some() { 1 } else { MOST_FAILURES };
    let counts = |found: &[Violation]| match &wanted.rule {
        Some(rule) => found.iter().any(|violation| violation.rule == rule),
        None => !found.is_empty(),
    };
    let work = || {
        loop {
            let over = wanted.until.is_some_and(|until| Instant::now() >= until);
            let enough = failed.lock().is_ok_and(|failed| failed.len() >= most);
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if over || enough || seed >= wanted.seeds.end {
                return;
            }
            let of_overload = is_of_overload(wanted.rule.as_deref());
            let mut found = Vec::new();
            if of_overload != Some(true) {
                match judge(Scenario::of(seed)) {
                    Ok(outcome) => {
                        messages.fetch_add(outcome.log.sent.len() as u64, Ordering::Relaxed);
                        found = outcome.violations;
                    }
                    Err(panic) => found.push(panic),
                }
            }
            if of_overload == Some(true) || (of_overload.is_none() && seed.is_multiple_of(OVERLOAD_EACH)) {
                found.extend(judge_overload(seed));
            }
            runs.fetch_add(1, Ordering::Relaxed);
            if counts(&found)
                && let Ok(mut failed) = failed.lock()
            {
                failed.insert(seed, found);
            }
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    let failed = failed.into_inner().unwrap_or_default();
    (failed, runs.into_inner(), messages.into_inner())
}

fn print(outcome: &Outcome) {
    println!("{}", outcome.scenario.summary());
    println!("{}", outcome.log.ladder(&outcome.stations, None));
    for report in &outcome.reports {
        println!("{report:?}");
    }
    for violation in &outcome.violations {
        println!("{violation}");
    }
}

fn replay(scenario: Scenario) -> ExitCode {
    match judge(scenario) {
        Ok(outcome) => {
            print(&outcome);
            ExitCode::from(u8::from(!outcome.violations.is_empty()))
        }
        Err(panic) => {
            println!("{panic}");
            ExitCode::FAILURE
        }
    }
}

fn replay_overload(seed: u64) -> ExitCode {
    let plan = Plan::of(seed);
    println!("{plan:#?}");
    let found = judge_overload(seed);
    found.iter().for_each(|violation| println!("{violation}"));
    ExitCode::from(u8::from(!found.is_empty()))
}

/// Makes the failure of `seed` smaller, prints its ladder and writes it to a file.
fn explain(seed: u64, rule: &str, dir: &Path) -> Option<PathBuf> {
    println!("making seed {seed} smaller ({rule})");
    let breaks = |scenario: &Scenario| violations(scenario.clone()).iter().any(|v| v.rule == rule);
    let smallest = shrink(Scenario::of(seed), SHRINK_RUNS, breaks);
    if let Ok(outcome) = judge(smallest.clone()) {
        print(&outcome);
    }
    let path = dir.join(format!("{seed}.json"));
    let text = serde_json::to_string_pretty(&smallest).ok()?;
    std::fs::create_dir_all(dir).ok()?;
    std::fs::write(&path, text).ok()?;
    Some(path)
}

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("sim: {error}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<ExitCode, String> {
    if let Some(path) = variable("SCENARIO") {
        let text = std::fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
        let scenario = serde_json::from_str(&text).map_err(|error| format!("{path}: {error}"))?;
        return Ok(replay(scenario));
    }
    if let Some(seed) = number("SEED")? {
        if variable("OVERLOAD").is_some() {
            return Ok(replay_overload(seed));
        }
        return Ok(replay(Scenario::of(seed)));
    }
    let wanted = wanted()?;
    println!("seeds from {}", wanted.seeds.start);
    // Panics are reported with their seed, at the end.
    std::panic::set_hook(Box::new(|_| {}));
    let start = Instant::now();
    let (failed, runs, messages) = run_all(&wanted);
    let took = start.elapsed();
    let each = took.as_secs_f64() * 1e3 / runs.max(1) as f64;
    println!(
        "{runs} seeds, {messages} messages, {:.1} s ({each:.1} ms each)",
        took.as_secs_f64()
    );
    let Some((first, found)) = failed.first_key_value() else {
        return Ok(ExitCode::SUCCESS);
    };
    for (seed, found) in failed.iter().rev() {
        println!("seed {seed}: {} faults", found.len());
        found
            .iter()
            .take(3)
            .for_each(|violation| println!("  {violation}"));
    }
    if let Some(rule) = wanted.rule {
        println!("caught: `{rule}` in seed {first}");
        return Ok(ExitCode::FAILURE);
    }
    let rule = found.first().map_or("", |violation| violation.rule);
    if is_of_overload(Some(rule)) == Some(true) {
        println!("again: make sim OVERLOAD=1 SEED={first}");
        return Ok(ExitCode::FAILURE);
    }
    let written = explain(*first, rule, Path::new("target/sim"));
    if let Some(path) = written {
        println!("smaller: make sim SCENARIO={}", path.display());
    }
    let commit = option_env!("SIM_COMMIT").unwrap_or("unknown commit");
    println!("first failing seed: {first} ({commit}); again: make sim SEED={first}");
    Ok(ExitCode::FAILURE)
}

//! `cargo xtask repeat`: the tests again and again, also beside a busy loop on each core, to find those
//! that fail by themselves.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::{Ran, build, run_forgiving};
use crate::steps::{Outcome, has_subcommand};

const USAGE: &str = "usage: repeat [--busy] TIMES [FILTER…]";

#[derive(Debug, PartialEq, Eq)]
struct Options {
    busy: bool,
    times: u32,
    filter: Vec<String>,
}

fn options(args: &[String]) -> Result<Options, String> {
    let (busy, rest) = match args.split_first() {
        Some((first, rest)) if first == "--busy" => (true, rest),
        _ => (false, args),
    };
    let (times, filter) = rest.split_first().ok_or(USAGE)?;
    let times = times.parse().ok().filter(|times| *times > 0);
    let times = times.ok_or_else(|| format!("TIMES is a number above 0; {USAGE}"))?;
    Ok(Options {
        busy,
        times,
        filter: filter.to_vec(),
    })
}

/// Runs the tests so many times. No test is run again alone; what failed is said at the end.
pub(crate) fn repeat(args: &[String]) -> Outcome {
    let options = options(args)?;
    if !has_subcommand("nextest") {
        return Err("this needs cargo-nextest".into());
    }
    build()?;
    let loops = options.busy.then(BusyLoops::start);
    let mut runs = Vec::new();
    for round in 1..=options.times {
        let began = Instant::now();
        let ran = run_forgiving(&options.filter, false)?.ok_or("nextest has gone")?;
        let took = began.elapsed();
        eprintln!("── run {round} of {}: {}", options.times, line(&ran, took));
        runs.push((ran, took));
    }
    drop(loops);
    let beside = if options.busy {
        "beside busy loops"
    } else {
        "alone"
    };
    eprintln!("── {} runs {beside}", runs.len());
    for (round, (ran, took)) in runs.iter().enumerate() {
        eprintln!("{:>4}  {}", round + 1, line(ran, *took));
    }
    let failures = failures(runs.iter().map(|(ran, _)| ran));
    for (test, times) in &failures {
        eprintln!("failed {times} times: {test}");
    }
    if failures.is_empty() {
        Ok(())
    } else {
        Err(format!("{} tests failed in some runs", failures.len()))
    }
}

fn line(ran: &Ran, took: Duration) -> String {
    let failed: Vec<String> = ran.broken.iter().map(ToString::to_string).collect();
    format!(
        "{:.0} s, {} passed, {} failed {}",
        took.as_secs_f64(),
        ran.passed,
        failed.len(),
        failed.join(", ")
    )
}

/// How often each test failed.
fn failures<'a>(runs: impl Iterator<Item = &'a Ran>) -> BTreeMap<String, u32> {
    let mut failures = BTreeMap::new();
    for case in runs.flat_map(|ran| &ran.broken) {
        *failures.entry(case.to_string()).or_default() += 1;
    }
    failures
}

/// A thread for each core that does nothing, all the time.
#[derive(Debug)]
struct BusyLoops {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl BusyLoops {
    fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = (0..cores).map(|_| {
            let stop = Arc::clone(&stop);
            std::thread::spawn(move || while !stop.load(Ordering::Relaxed) {})
        });
        Self {
            threads: threads.collect(),
            stop,
        }
    }
}

impl Drop for BusyLoops {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::Case;
    use super::*;

    #[test]
    fn arguments_are_a_number_and_names() {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let wanted = |busy, times, filter: &str| {
            Ok(Options {
                busy,
                times,
                filter: words(filter),
            })
        };
        assert_eq!(options(&words("--busy 20")), wanted(true, 20, ""));
        assert_eq!(options(&words("3 forking tls")), wanted(false, 3, "forking tls"));
        assert!(options(&words("--busy")).is_err());
        assert!(options(&words("often")).is_err());
        assert!(options(&words("0")).is_err());
    }

    #[test]
    fn failures_are_counted_by_test() {
        let case = |test: &str| Case {
            program: "sip-net::suite".into(),
            test: test.into(),
            took: Duration::ZERO,
            passed: false,
        };
        let ran = |broken: &[&str]| Ran {
            broken: broken.iter().map(|test| case(test)).collect(),
            ..Ran::default()
        };
        let runs = [ran(&["a"]), ran(&[]), ran(&["b", "a"])];
        let found: Vec<_> = failures(runs.iter()).into_iter().collect();
        let named = |test: &str, times| (format!("sip-net::suite {test}"), times);
        assert_eq!(found, [named("a", 2), named("b", 1)]);
    }
}

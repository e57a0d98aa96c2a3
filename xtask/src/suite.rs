//! The test programs: built, run, and their outcomes.
//!
//! Locally a test that fails has failed. In CI ([`is_ci`]) it is run once more, alone: if it passes
//! then, it is *unsteady*, which the run says loudly and forgives up to [`MAX_UNSTEADY`] times.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::setup::find_program;
use crate::steps::{Outcome, cargo, has_subcommand, root, run_own, run_step, target_dir};

mod databases;
mod repeat;
mod report;
mod scratch;

use databases::Databases;
pub(crate) use repeat::repeat;
use report::{Case, Report};
use scratch::Scratch;

/// Unsteady tests that a run in CI may have.
const MAX_UNSTEADY: usize = 3;

/// nextest's exit code where all tests ran and some failed.
const TESTS_FAILED: i32 = 100;

/// A test that takes longer than this is slow, and has its reason in [`SLOW_TESTS`].
const SLOW: Duration = Duration::from_secs(5);

/// The tests that are slow on a quiet machine: `PROGRAM TEST REASON` a line.
const SLOW_TESTS: &str = "xtask/slow-tests.txt";

/// What has tests: the libraries, the programs, and what is under `tests/`.
const KINDS: [&str; 3] = ["--lib", "--bins", "--tests"];

/// Whether this is a run of `.ci/run`.
pub(crate) fn is_ci() -> bool {
    std::env::var_os("CI").is_some()
}

/// Compiles our crates with Clippy.
const DRIVER: &str = "clippy-driver";

/// Whether the tests are compiled with Clippy: one pass over our crates lints and builds them.
pub(crate) fn is_linted() -> bool {
    find_program(DRIVER).is_some()
}

/// Has our crates compiled with Clippy, as each build of the tests must that is to use what another built.
pub(crate) fn lint(command: &mut Command) {
    if is_linted() {
        command
            .env("RUSTC_WORKSPACE_WRAPPER", DRIVER)
            // As `cargo clippy -- -D warnings` says it.
            .env("CLIPPY_ARGS", "-D__CLIPPY_HACKERY__warnings");
    }
}

/// Builds every test program, and with them the server that they start; and what else Clippy is to see.
pub(crate) fn build() -> Outcome {
    let mut runner = runner();
    runner.arg("--no-run");
    run_step("build the server and the tests", &mut runner)?;
    let mut others = cargo();
    others.args(["build", "--workspace", "--examples", "--benches"]);
    lint(&mut others);
    run_step("build examples and benchmarks", &mut others)
}

/// The outcome of the tests.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Ran {
    passed: usize,
    broken: Vec<Case>,
    /// Failed among the others, passed alone.
    unsteady: Vec<Case>,
    /// What is wrong with [`SLOW_TESTS`].
    list: Option<String>,
}

/// Runs the tests: all, or those with a word of `filter` in their names. `None`: Cargo ran them and they
/// passed; it has said how many.
pub(crate) fn run(filter: &[String]) -> Result<Option<Ran>, String> {
    run_forgiving(filter, is_ci())
}

/// The same; whether what fails is run once more, alone.
fn run_forgiving(filter: &[String], forgives: bool) -> Result<Option<Ran>, String> {
    let debug = target_dir()?.join("debug");
    // nextest's store is there wherever Cargo builds (`store.dir`).
    let junit = root().join("target/nextest").join(profile()).join("junit.xml");
    // What an earlier run left must not be taken for this one's.
    let _ = std::fs::remove_file(&junit);
    let scratch = Scratch::new();
    let mut environment = scratch.variables();
    let databases = Databases::start(&debug.join("test-databases"), &environment)?;
    environment.extend(databases.variables.iter().cloned());
    environment.push((
        "TRAPEZOID_BIN".into(),
        debug.join("trapezoid").display().to_string(),
    ));
    let mut first = runner();
    if !has_subcommand("nextest") {
        // Cargo itself takes only one.
        first.arg("--");
    }
    first.args(filter).envs(environment.clone());
    let mut code = None;
    let outcome = run_own("tests", || {
        let status = first
            .current_dir(root())
            .status()
            .map_err(|error| error.to_string())?;
        code = status.code();
        if status.success() {
            Ok(())
        } else {
            Err(status.to_string())
        }
    });
    if !has_subcommand("nextest") {
        return outcome.map(|()| None);
    }
    if outcome.is_err() && code != Some(TESTS_FAILED) {
        // The runner itself ended before its tests did, or had none to run.
        return outcome.map(|()| None);
    }
    let report = Report::read(&junit)?;
    let list = if filter.is_empty() {
        mention_slow(&report).err()
    } else {
        None
    };
    let failed = report.failed();
    let unsteady = if forgives && may_be_forgiven(failed.len()) {
        alone(&failed, &environment)
    } else {
        Vec::new()
    };
    if outcome.is_err() && failed.is_empty() {
        return Err("the runner says that a test failed, and its report has none".into());
    }
    Ok(Some(Ran {
        list,
        ..Ran::of(&report, unsteady)
    }))
}

impl Ran {
    fn of(report: &Report, unsteady: Vec<Case>) -> Self {
        let failed = report.failed().into_iter();
        let broken: Vec<Case> = failed.filter(|case| !unsteady.contains(case)).cloned().collect();
        Self {
            passed: report.cases.len() - broken.len(),
            broken,
            unsteady,
            list: None,
        }
    }

    /// Says it, and last `tests: N passed, N failed`; fails if a test has failed and is not forgiven.
    pub(crate) fn verdict(&self) -> Outcome {
        let Self {
            passed,
            broken,
            unsteady,
            list,
        } = self;
        for case in broken {
            eprintln!("FAILED: {case}");
        }
        if !unsteady.is_empty() {
            eprintln!(
                "\n!!! UNSTEADY: failed among the others, passed alone. Each is a defect, of test or code:"
            );
            for case in unsteady {
                eprintln!("!!!   {case}");
            }
            eprintln!();
        }
        eprintln!("tests: {passed} passed, {} failed", broken.len());
        if broken.is_empty() {
            list.clone().map_or(Ok(()), Err)
        } else {
            Err(format!("{} tests failed", broken.len()))
        }
    }
}

/// Whether so many failures are few enough to be tried again.
fn may_be_forgiven(failed: usize) -> bool {
    (1..=MAX_UNSTEADY).contains(&failed)
}

/// Conformance tests, with a server of another build: what libtest is given chooses them.
pub(crate) fn conformance(server: &Path, words: &[&str]) -> Command {
    let mut tests = cargo();
    tests
        .args(["test", "--package", "conformance", "--test", "suite", "--"])
        .args(words)
        .env("TRAPEZOID_BIN", server);
    lint(&mut tests);
    tests
}

/// Runs each once more, by itself; those that pass.
fn alone(failed: &[&Case], environment: &[(String, String)]) -> Vec<Case> {
    let passes = |case: &&&Case| {
        let mut again = runner();
        again
            .args(["--test-threads", "1", "-E", &case.filter()])
            .envs(environment.iter().cloned());
        run_step(&format!("once more, alone: {case}"), &mut again).is_ok()
    };
    failed.iter().filter(passes).map(|case| (*case).clone()).collect()
}

/// nextest where it is installed, which runs each test in a process of its own; else Cargo.
fn runner() -> Command {
    let mut runner = cargo();
    if has_subcommand("nextest") {
        runner.args(["nextest", "run", "--workspace", "--profile", profile()]);
    } else {
        runner.args(["test", "--workspace", "--no-fail-fast"]);
    }
    runner.args(KINDS);
    lint(&mut runner);
    runner
}

/// The profile of `.config/nextest.toml`.
fn profile() -> &'static str {
    if is_ci() { "ci" } else { "default" }
}

/// Names the tests that were slow and are not listed. It is no failure: another program on this
/// machine may be the reason.
fn mention_slow(report: &Report) -> Outcome {
    let path = root().join(SLOW_TESTS);
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{SLOW_TESTS}: {error}"))?;
    let known = slow_tests(&text)?;
    let stale = known
        .iter()
        .find(|key| !report.cases.iter().any(|case| is_meant(key, case)));
    if let Some((program, test)) = stale {
        return Err(format!(
            "{SLOW_TESTS} names a test that did not run: {program} {test}"
        ));
    }
    let slow: Vec<&Case> = report.cases.iter().filter(|case| case.took > SLOW).collect();
    let has_reason = |case: &Case| known.iter().any(|key| is_meant(key, case));
    let unknown: Vec<&&Case> = slow.iter().filter(|case| !has_reason(case)).collect();
    eprintln!("── {} tests took more than {} s", slow.len(), SLOW.as_secs());
    if !unknown.is_empty() {
        eprintln!("── of these, {SLOW_TESTS} does not say why (it is a notice; the machine may be busy):");
        for case in unknown {
            eprintln!("{:>7.1}  {case}", case.took.as_secs_f64());
        }
    }
    Ok(())
}

/// Whether a line of the list is about this test: its name, or `*` after what it begins with.
fn is_meant(key: &(&str, &str), case: &Case) -> bool {
    let (program, test) = *key;
    let is_same = match test.strip_suffix('*') {
        Some(beginning) => case.test.starts_with(beginning),
        None => case.test == test,
    };
    case.program == program && is_same
}

fn slow_tests(text: &str) -> Result<BTreeSet<(&str, &str)>, String> {
    let lines = text
        .lines()
        .filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    let keys = lines.map(|line| {
        let mut words = line.splitn(3, ' ');
        match (words.next(), words.next(), words.next()) {
            (Some(program), Some(test), Some(_reason)) => Ok((program, test)),
            _ => Err(format!("{SLOW_TESTS}: `{line}` is not PROGRAM TEST REASON")),
        }
    });
    keys.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(test: &str, passed: bool) -> Case {
        Case {
            program: "sip-core::suite".into(),
            test: test.into(),
            took: Duration::from_secs(1),
            passed,
        }
    }

    #[test]
    fn what_passes_alone_is_forgiven_and_what_fails_is_not() {
        let report = Report {
            cases: vec![case("a", true), case("b", false), case("c", false)],
        };
        let verdict = |unsteady: &[Case]| Ran::of(&report, unsteady.to_vec());
        let all = verdict(&report.cases[1..]);
        assert!(all.verdict().is_ok() && (all.passed, all.broken.len()) == (3, 0));
        let one = verdict(&report.cases[1..2]);
        assert!(one.verdict().is_err() && one.broken == report.cases[2..]);
        assert!(verdict(&[]).verdict().is_err());
    }

    #[test]
    fn more_than_three_failures_are_not_tried_again() {
        let forgiven: Vec<usize> = (0..6).filter(|failed| may_be_forgiven(*failed)).collect();
        assert_eq!(forgiven, [1, 2, 3]);
    }

    #[test]
    fn a_slow_test_has_a_reason() {
        let text = "# a comment\n\nconformance::suite crash::x many rounds\n";
        let known = slow_tests(text).expect("a list");
        assert_eq!(known, BTreeSet::from([("conformance::suite", "crash::x")]));
        assert!(slow_tests("conformance::suite crash::x\n").is_err());
        let case = case("forking::two", true);
        for (test, meant) in [
            ("forking::two", true),
            ("forking::*", true),
            ("forking::", false),
            ("tls::*", false),
        ] {
            assert_eq!(is_meant(&("sip-core::suite", test), &case), meant, "{test}");
        }
    }

    #[test]
    fn the_list_of_slow_tests_can_be_read() {
        let known = slow_tests(include_str!("../slow-tests.txt"));
        assert!(known.is_ok(), "{known:?}");
    }
}

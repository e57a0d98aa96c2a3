//! The make targets: which programs run, in which order.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::fuzz;
use crate::instructions;
use crate::ledger;
use crate::nightly;
use crate::setup::{self, find_program};
use crate::sim;
use crate::suite;
use crate::tidy;

/// Done, or the message for the user; empty: the failed step has printed its own.
pub(crate) type Outcome = Result<(), String>;

/// The workspace's root.
pub(crate) fn root() -> PathBuf {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask).to_path_buf()
}

/// Runs a program to its end, in the root, with a line before it and the seconds after it.
pub(crate) fn run_step(what: &str, command: &mut Command) -> Outcome {
    run_own(what, || {
        let status = command
            .current_dir(root())
            .status()
            .map_err(|error| format!("cannot start {:?}: {error}", command.get_program()))?;
        if status.success() {
            Ok(())
        } else {
            Err(status.to_string())
        }
    })
}

/// The same for tests that a filter chooses: it must have chosen some.
pub(crate) fn run_tests(what: &str, command: &mut Command) -> Outcome {
    run_own(what, || {
        let mut child = command
            .current_dir(root())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("cannot start {:?}: {error}", command.get_program()))?;
        let mut tests = 0;
        for line in BufReader::new(child.stdout.take().ok_or("no output")?).lines() {
            let line = line.map_err(|error| error.to_string())?;
            tests += tests_in(&line);
            eprintln!("{line}");
        }
        let status = child.wait().map_err(|error| error.to_string())?;
        match (status.success(), tests) {
            (false, _) => Err(status.to_string()),
            (true, 0) => Err("no test of these names ran".into()),
            (true, _) => Ok(()),
        }
    })
}

/// How many tests libtest says in this line that it runs.
fn tests_in(line: &str) -> u32 {
    let count = line
        .strip_prefix("running ")
        .and_then(|rest| rest.split_once(" test"));
    count.and_then(|(count, _)| count.parse().ok()).unwrap_or(0)
}

/// The same for what this program does itself.
pub(crate) fn run_own(what: &str, step: impl FnOnce() -> Outcome) -> Outcome {
    eprintln!("── {what}");
    let began = Instant::now();
    let outcome = step();
    let took = began.elapsed();
    ledger::note(what, took);
    match outcome {
        Ok(()) => {
            eprintln!("── {what}: ok, {} s", took.as_secs());
            Ok(())
        }
        Err(error) => Err(format!("{what} failed after {} s ({error})", took.as_secs())),
    }
}

pub(crate) fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

pub(crate) fn has_subcommand(name: &str) -> bool {
    find_program(&format!("cargo-{name}")).is_some()
        || cargo()
            .args([name, "--version"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
}

/// Everything: what is needed is installed, the gates are passed, every test runs. In CI one of the
/// long forms of [`nightly`] runs, too. The tests come last, so that their summary is the last thing
/// seen; before it stands where the time went.
pub(crate) fn test(filter: &[String]) -> Outcome {
    let began = Instant::now();
    let outcome = gates().and_then(|()| {
        let turn = if suite::is_ci() { nightly::turn() } else { Ok(()) };
        // What the long form says does not keep the tests from running.
        Ok((suite::run(filter)?, turn))
    });
    ledger::print(began.elapsed());
    let (ran, turn) = outcome?;
    ran.map_or(Ok(()), |ran| ran.verdict()).and(turn)
}

/// All that `test` does before the tests. Packages are installed while the first steps compile.
fn gates() -> Outcome {
    let packages = std::thread::spawn(|| setup::run(&[]));
    // Where Clippy's driver compiles the tests, it says of them what `clippy` would.
    let checked = own_rules().and_then(|()| {
        if !suite::is_linted() {
            clippy()?;
        }
        if suite::is_ci() {
            compiled_otherwise()
        } else {
            eprintln!("── documentation, and the server by itself: left to `make check`");
            Ok(())
        }
    });
    let installed = packages.join().map_err(|_panic| "setup panicked")?;
    checked.and(installed)?;
    suite::build()?;
    instructions::run(&[])?;
    lab(&target_dir()?.join("debug").join("trapezoid"))
}

/// The quick forms of two experiments: whether the shapes hold.
fn lab(server: &Path) -> Outcome {
    let out = target_dir()?.join("lab");
    for name in ["transport", "batching"] {
        let words = ["lab", name, "--quick", "--out"];
        let mut command = Command::new(server);
        run_step(
            &format!("lab {name} --quick"),
            command.args(words).arg(out.join(name)),
        )?;
    }
    Ok(())
}

/// The quick gate.
pub(crate) fn check() -> Outcome {
    own_rules()?;
    clippy()?;
    compiled_otherwise()
}

/// What compiles nothing.
fn own_rules() -> Outcome {
    run_step("formatting", cargo().args(["fmt", "--all", "--check"]))?;
    fuzz_lock_file()?;
    run_own("tidy", || tidy::run(&root()))?;
    run_own("mutants apply", sim::check_mutants)
}

/// What needs all crates that we use compiled in a way that no test does: minutes from a fresh clone.
fn compiled_otherwise() -> Outcome {
    product()?;
    run_step(
        "documentation",
        cargo()
            .args([
                "doc",
                "--workspace",
                "--no-deps",
                "--document-private-items",
                "--quiet",
            ])
            // Private items are documented too, so links to them lead somewhere.
            .env("RUSTDOCFLAGS", "-D warnings -A rustdoc::private_intra_doc_links"),
    )
}

/// The server with no features but its own: beside the rest of the workspace, a dependency has those
/// that any crate asks for.
fn product() -> Outcome {
    run_step(
        "the server by itself",
        cargo().args(["check", "--package", "trapezoid", "--bins", "--quiet"]),
    )
}

/// The fuzz targets are a workspace of their own, and no other step looks at its lock file: a dependency that
/// one of our crates gains has to be noted there too.
fn fuzz_lock_file() -> Outcome {
    run_step(
        "the fuzz targets' lock file",
        cargo()
            .args(["metadata", "--locked", "--format-version", "1"])
            .args(["--manifest-path", fuzz::MANIFEST])
            .stdout(Stdio::null()),
    )
    .map_err(|error| {
        format!(
            "{error}; `cargo update --workspace --manifest-path {}` brings it up to date",
            fuzz::MANIFEST
        )
    })
}

fn clippy() -> Outcome {
    run_step(
        "clippy",
        cargo().args([
            "clippy",
            "--workspace",
            "--all-targets",
            "--quiet",
            "--",
            "-D",
            "warnings",
        ]),
    )
}

/// Where cargo puts what it builds.
pub(crate) fn target_dir() -> Result<PathBuf, String> {
    let metadata = metadata(&["--no-deps"])?;
    metadata["target_directory"]
        .as_str()
        .map(PathBuf::from)
        .ok_or_else(|| "cargo metadata: no target directory".into())
}

/// `cargo metadata` of the workspace.
pub(crate) fn metadata(args: &[&str]) -> Result<serde_json::Value, String> {
    let out = cargo()
        .args(["metadata", "--format-version", "1"])
        .args(args)
        .current_dir(root())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cargo metadata: {error}"))?;
    if !out.status.success() {
        return Err(format!("cargo metadata: {}, see above", out.status));
    }
    serde_json::from_slice(&out.stdout).map_err(|error| format!("cargo metadata: {error}"))
}

pub(crate) fn host_triple() -> Result<String, String> {
    rustc_field("host: ")
}

/// A line of `rustc -vV`, without the name before it.
pub(crate) fn rustc_field(name: &str) -> Result<String, String> {
    let out = Command::new("rustc")
        .arg("-vV")
        .output()
        .map_err(|error| format!("rustc: {error}"))?;
    let text = String::from_utf8_lossy(&out.stdout);
    let value = text.lines().find_map(|line| line.strip_prefix(name));
    value
        .map(str::to_owned)
        .ok_or_else(|| format!("rustc -vV says no `{name}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_that_run_are_counted() {
        assert_eq!(tests_in("running 12 tests"), 12);
        assert_eq!(tests_in("running 1 test"), 1);
        assert_eq!(tests_in("running 0 tests"), 0);
        assert_eq!(tests_in("test result: ok. 3 passed; 0 failed"), 0);
    }
}

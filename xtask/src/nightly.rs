//! The long forms of the proof: each alone, all of them by `cargo xtask nightly`, and in CI one in
//! turn, shorter, by [`turn`].

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use crate::setup::find_program;
use crate::steps::{Outcome, cargo, root, run_step, run_tests, target_dir};
use crate::suite::{conformance, lint};
use crate::{fuzz, models, sanitizer, sim};

/// Minutes of the simulator where `MINUTES` does not say.
const SIM_MINUTES: &str = "60";
/// Seconds of each fuzz target.
const FUZZ_SECONDS: &str = "600";
/// More orders than the tests look at, within minutes.
const PREEMPTIONS: &str = "5";
/// What fits into a run of CI: some minutes each.
const TURN_SEEDS: &str = "0..20000";
const TURN_CRASH: [&str; 2] = ["40", "200000"];
const TURN_PREEMPTIONS: &str = "4";
/// The cargo-deny that is installed where there is none.
const CARGO_DENY: &str = "=0.20.2";
/// Times that the server is killed, and how many registrations are on disk meanwhile.
const CRASHES: u32 = 200;
const BINDINGS: u32 = 1_000_000;

const CRASH_USAGE: &str = "usage: crash [CRASHES] [BINDINGS]";

/// The release server is killed under registration load, again and again.
pub(crate) fn crash(args: &[String]) -> Outcome {
    let (crashes, bindings) = crash_arguments(args)?;
    run_step(
        "build the server",
        cargo().args(["build", "--release", "--package", "trapezoid"]),
    )?;
    let server = target_dir()?.join("release").join("trapezoid");
    run_tests(
        &format!("{crashes} crashes with {bindings} registrations on disk"),
        conformance(&server, &["--nocapture", "crash::"])
            .env("CRASHES", crashes.to_string())
            .env("BINDINGS", bindings.to_string()),
    )
}

/// Phones behind NATs that close their ports soon, in five minutes of silence.
pub(crate) fn nat() -> Outcome {
    // The server that the tests build, which most often is there.
    let mut server = cargo();
    server.args(["build", "--package", "trapezoid"]);
    lint(&mut server);
    run_step("build the server", &mut server)?;
    let server = target_dir()?.join("debug").join("trapezoid");
    run_tests(
        "five minutes of silence behind NATs",
        &mut conformance(&server, &["--ignored", "--nocapture", "nat::"]),
    )
}

fn crash_arguments(args: &[String]) -> Result<(u32, u32), String> {
    if args.len() > 2 {
        return Err(CRASH_USAGE.into());
    }
    let number = |place: usize, default: u32| {
        args.get(place).map_or(Ok(default), |text| {
            let number = text.replace('_', "").parse();
            number.map_err(|_| format!("{text} is no number; {CRASH_USAGE}"))
        })
    };
    Ok((number(0, CRASHES)?, number(1, BINDINGS)?))
}

/// A proof that takes longer than `make test` may.
struct Form {
    name: &'static str,
    /// At night: as long as it is worth.
    long: fn() -> Outcome,
    /// In CI, in turn with the others: minutes, from fixed seeds.
    turn: fn() -> Outcome,
}

const FORMS: &[Form] = &[
    Form {
        name: "sim",
        long: || {
            let minutes = std::env::var("MINUTES").unwrap_or_else(|_| SIM_MINUTES.into());
            sim::run_with(&[("MINUTES", &minutes)])
        },
        turn: || sim::run_with(&[("SEEDS", TURN_SEEDS)]),
    },
    Form {
        name: "mutants",
        long: || sim::run_mutants(&[]),
        turn: || sim::run_mutants(&[]),
    },
    Form {
        name: "fuzz",
        long: || fuzz::run(&words(&["--seconds", FUZZ_SECONDS])),
        turn: fuzz::short,
    },
    Form {
        name: "crash",
        long: || crash(&[]),
        turn: || crash(&words(&TURN_CRASH)),
    },
    Form {
        name: "nat",
        long: nat,
        turn: nat,
    },
    Form {
        name: "loom",
        long: || models::run(&words(&["--preemptions", PREEMPTIONS])),
        turn: || models::run(&words(&["--preemptions", TURN_PREEMPTIONS])),
    },
    Form {
        name: "asan",
        long: || sanitizer::run(&words(&["--server"])),
        turn: || sanitizer::run(&words(&["--server"])),
    },
    Form {
        name: "deny",
        long: deny,
        turn: deny,
    },
];

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

/// Runs every long form, one after the other, also after one has failed; the failures are listed last.
/// `--turn`: runs only the form that is due in CI at this commit.
pub(crate) fn run(args: &[String]) -> Outcome {
    match args {
        [] => {}
        [option] if option == "--turn" => return turn(),
        _ => return Err("usage: nightly [--turn]; MINUTES=N is how long the simulator runs".into()),
    }
    let mut failed = Vec::new();
    for Form { name, long, .. } in FORMS {
        let began = Instant::now();
        let outcome = long();
        let minutes = began.elapsed().as_secs() / 60;
        match outcome {
            Ok(()) => eprintln!("── nightly: {name} passed, {minutes} min"),
            Err(error) => {
                eprintln!("── nightly: {name} FAILED, {minutes} min: {error}");
                failed.push(format!("{name} ({error})"));
            }
        }
    }
    if failed.is_empty() {
        Ok(())
    } else {
        Err(format!("failed: {}", failed.join("; ")))
    }
}

/// The form that is due: the commit's hash chooses, so that a commit has the same one always and many commits
/// have them all.
pub(crate) fn turn() -> Outcome {
    let commit = sim::head().ok_or("git says no commit, from which follows which long form is due")?;
    let form = &FORMS[place(&commit, FORMS.len())];
    eprintln!("── {} is the long form whose turn it is at {commit}", form.name);
    (form.turn)().map_err(|error| {
        let error = format!("{}: {error} (`cargo xtask nightly --turn` repeats it)", form.name);
        eprintln!("── {error}");
        error
    })
}

/// The commit's hash as a number, modulo `of`.
fn place(commit: &str, of: usize) -> usize {
    let digits = commit.get(..8).unwrap_or(commit);
    let number = u32::from_str_radix(digits, 16).unwrap_or_default();
    usize::try_from(number).unwrap_or_default() % of.max(1)
}

/// Whether this is the cargo-deny that we mean.
fn is_pinned(program: &Path) -> bool {
    let said = Command::new(program).arg("--version").output();
    said.is_ok_and(|out| {
        let said = String::from_utf8_lossy(&out.stdout).into_owned();
        said.trim() == format!("cargo-deny {}", CARGO_DENY.trim_start_matches('='))
    })
}

/// cargo-deny on `deny.toml`, which tidy checks as well. Where there is none it is installed under
/// the target directory. Its database of advisories is not asked: a gate must give the same answer
/// tomorrow.
pub(crate) fn deny() -> Outcome {
    let tools = target_dir()?.join("tools");
    let installed = tools.join("bin").join("cargo-deny");
    let program = find_program("cargo-deny").filter(|program| is_pinned(program));
    let program = program.unwrap_or_else(|| installed.clone());
    if !is_pinned(&program) {
        run_step(
            &format!("install cargo-deny {CARGO_DENY}"),
            cargo()
                .args([
                    "install",
                    "cargo-deny",
                    "--locked",
                    "--quiet",
                    "--version",
                    CARGO_DENY,
                ])
                // Quick to build; it runs for seconds.
                .args(["--profile", "dev", "--root"])
                .arg(&tools),
        )?;
    }
    for manifest in ["Cargo.toml", fuzz::MANIFEST] {
        run_step(
            &format!("cargo-deny, {manifest}"),
            Command::new(&program)
                .args(["--manifest-path", manifest, "--config"])
                .arg(root().join("deny.toml"))
                .args(["check", "bans", "licenses", "sources"]),
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_has_its_turn() {
        let turns: Vec<usize> = (0..FORMS.len())
            .map(|n| place(&format!("{n:08x}ffff"), FORMS.len()))
            .collect();
        assert_eq!(turns, (0..FORMS.len()).collect::<Vec<_>>());
        assert_eq!(place("c46b1bd2", 7), 0xc46b_1bd2 % 7);
    }

    #[test]
    fn a_crash_run_takes_two_numbers() {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(crash_arguments(&[]), Ok((CRASHES, BINDINGS)));
        assert_eq!(crash_arguments(&words("10")), Ok((10, BINDINGS)));
        assert_eq!(crash_arguments(&words("10 5_000")), Ok((10, 5_000)));
        assert!(crash_arguments(&words("ten")).is_err());
        assert!(crash_arguments(&words("1 2 3")).is_err());
    }
}

//! The long forms of the proof: `cargo xtask crash`, and all of them by `cargo xtask nightly`.

use std::time::Instant;

use crate::steps::{Outcome, cargo, run_step, target_dir};
use crate::{fuzz, models, sanitizer, sim};

/// Minutes of the simulator where `MINUTES` does not say.
const SIM_MINUTES: &str = "60";
/// Seconds of each fuzz target.
const FUZZ_SECONDS: &str = "600";
/// More orders than the short form looks at, within minutes.
const PREEMPTIONS: &str = "5";
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
    run_step(
        &format!("{crashes} crashes with {bindings} registrations on disk"),
        cargo()
            .args([
                "test",
                "--package",
                "conformance",
                "--test",
                "crash",
                "--",
                "--nocapture",
            ])
            .env("TRAPEZOID_BIN", server)
            .env("CRASHES", crashes.to_string())
            .env("BINDINGS", bindings.to_string()),
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

/// Every long form, one after the other, each whether or not the one before it passed; what failed
/// is said last.
pub(crate) fn run(args: &[String]) -> Outcome {
    if !args.is_empty() {
        return Err("it takes no arguments; MINUTES=N is how long the simulator runs".into());
    }
    let minutes = std::env::var("MINUTES").unwrap_or_else(|_| SIM_MINUTES.into());
    let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
    let forms: [(&str, &dyn Fn() -> Outcome); 6] = [
        ("sim", &|| sim::run_with(&[("MINUTES", &minutes)])),
        ("mutants", &|| sim::run_mutants(&[])),
        ("fuzz", &|| fuzz::run(&words(&["--seconds", FUZZ_SECONDS]))),
        ("crash", &|| crash(&[])),
        ("loom", &|| models::run(&words(&["--preemptions", PREEMPTIONS]))),
        ("asan", &|| sanitizer::run(&words(&["--server"]))),
    ];
    let mut failed = Vec::new();
    for (name, form) in forms {
        let began = Instant::now();
        let outcome = form();
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

#[cfg(test)]
mod tests {
    use super::*;

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

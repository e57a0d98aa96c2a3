//! `cargo xtask loom`: every model of what threads share, under the model checker.

use std::process::Command;

use crate::steps::{Outcome, cargo, run_step, target_dir};

/// Times that a model's threads are interrupted where they need not wait, at most: most faults of
/// order need two. All orders without such a bound are out of reach.
const PREEMPTIONS: u32 = 3;

/// A model that explores more than this many steps in one run hangs, or is too large.
const BRANCHES: u32 = 10_000;

/// The crates with models, and where those are.
const MODELS: &[(&str, &[&str])] = &[
    ("sip-net", &["--lib"]),
    ("sip-backend", &["--lib"]),
    ("sip-core", &["--test", "loom"]),
];

/// Builds the models and runs those whose names contain a filter (default: all).
pub(crate) fn run(args: &[String]) -> Outcome {
    let (preemptions, filter) = arguments(args)?;
    for (package, place) in MODELS {
        let mut command = cargo_for_models()?;
        command
            .args(["--package", package])
            .args(*place)
            // One after the other: a model is one thread's work, and prints what it found at once.
            .args(["--", "--test-threads", "1"])
            .args(&filter)
            .env("LOOM_MAX_PREEMPTIONS", preemptions.to_string())
            .env("LOOM_MAX_BRANCHES", BRANCHES.to_string());
        run_step(
            &format!("models of {package}, {preemptions} preemptions"),
            &mut command,
        )?;
    }
    Ok(())
}

/// Whether the models still compile: cheap, and part of `check`, as no other step looks at them.
pub(crate) fn check() -> Outcome {
    for (package, place) in MODELS {
        let mut command = cargo_for_models()?;
        command.arg("--no-run").args(["--package", package]).args(*place);
        run_step(&format!("models of {package} compile"), &mut command)?;
    }
    Ok(())
}

fn cargo_for_models() -> Result<Command, String> {
    let mut command = cargo();
    command
        .args(["test", "--quiet", "--profile", "models"])
        // A target directory of its own: with this flag everything is another build.
        .arg("--target-dir")
        .arg(target_dir()?.join("loom"))
        .env("RUSTFLAGS", "--cfg loom -D warnings");
    Ok(command)
}

fn arguments(args: &[String]) -> Result<(u32, Vec<String>), String> {
    let (mut preemptions, mut filter) = (PREEMPTIONS, Vec::new());
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        if arg == "--preemptions" {
            let number = args.next().and_then(|n| n.parse().ok());
            preemptions = number.ok_or("--preemptions needs a number")?;
        } else if arg.starts_with('-') {
            return Err(format!(
                "unknown option {arg}; usage: loom [--preemptions N] [FILTER…]"
            ));
        } else {
            filter.push(arg.clone());
        }
    }
    Ok((preemptions, filter))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_a_number_and_names() {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(
            arguments(&words("--preemptions 5 mailbox")),
            Ok((5, words("mailbox")))
        );
        assert_eq!(arguments(&[]), Ok((PREEMPTIONS, vec![])));
        assert!(arguments(&words("--preemptions")).is_err());
        assert!(arguments(&words("--preemption 5")).is_err());
    }
}

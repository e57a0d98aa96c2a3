//! `cargo xtask loom`: the models of `crates/loom-models`, which are ordinary tests, further than
//! those look.

use crate::steps::{Outcome, cargo, run_tests};

/// Times that a model's threads are interrupted where they need not wait, at most: as in the tests.
const PREEMPTIONS: u32 = 3;

/// Runs the models whose names contain a filter (default: all).
pub(crate) fn run(args: &[String]) -> Outcome {
    let (preemptions, filter) = arguments(args)?;
    let mut command = cargo();
    command
        .args(["test", "--package", "loom-models", "--tests", "--"])
        .args(&filter)
        .env("LOOM_MAX_PREEMPTIONS", preemptions.to_string());
    run_tests(&format!("models, {preemptions} preemptions"), &mut command)
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

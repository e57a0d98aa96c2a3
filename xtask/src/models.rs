//! `cargo xtask loom`: the models of `crates/loom-models`, which are ordinary tests, further than
//! those look.

use crate::steps::{Outcome, cargo, run_tests};
use crate::suite::lint;

/// Runs the models that have a filter in their names (default: all).
pub(crate) fn run(args: &[String]) -> Outcome {
    let (preemptions, filter) = arguments(args)?;
    let mut command = cargo();
    command
        .args(["test", "--package", "loom-models", "--tests", "--"])
        .args(&filter);
    lint(&mut command);
    let Some(preemptions) = preemptions else {
        return run_tests("models, as the tests run them", &mut command);
    };
    command.env("LOOM_MAX_PREEMPTIONS", preemptions.to_string());
    run_tests(&format!("models, {preemptions} preemptions"), &mut command)
}

/// How often a model's threads are interrupted where they need not wait, at most, and the filters.
fn arguments(args: &[String]) -> Result<(Option<u32>, Vec<String>), String> {
    let (mut preemptions, mut filter) = (None, Vec::new());
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        if arg == "--preemptions" {
            let number = args.next().and_then(|n| n.parse().ok());
            preemptions = Some(number.ok_or("--preemptions needs a number")?);
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
            Ok((Some(5), words("mailbox")))
        );
        assert_eq!(arguments(&[]), Ok((None, vec![])));
        assert!(arguments(&words("--preemptions")).is_err());
        assert!(arguments(&words("--preemption 5")).is_err());
    }
}

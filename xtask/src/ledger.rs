//! Where the time of a command went: each step that [`crate::steps::run_step`] ran, with its seconds.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

static STEPS: Mutex<Vec<(String, Duration)>> = Mutex::new(Vec::new());

/// Adds a step that has ended.
pub(crate) fn note(what: &str, took: Duration) {
    let mut steps = STEPS.lock().unwrap_or_else(PoisonError::into_inner);
    steps.push((what.to_owned(), took));
}

/// Prints every step so far, longest first, and the time that all of them and what lay between them
/// took. Steps of one name, such as the builds of mutants, are one line.
pub(crate) fn print(all: Duration) {
    let steps = STEPS.lock().unwrap_or_else(PoisonError::into_inner);
    eprint!("{}", table(&steps, all));
}

fn table(steps: &[(String, Duration)], all: Duration) -> String {
    let mut by_name: BTreeMap<&str, (u32, Duration)> = BTreeMap::new();
    for (what, took) in steps {
        let (times, sum) = by_name.entry(what).or_default();
        *times += 1;
        *sum += *took;
    }
    let mut sorted: Vec<_> = by_name.into_iter().collect();
    sorted.sort_by_key(|(_, (_, took))| std::cmp::Reverse(*took));
    let mut text = String::from("── where the time went, seconds\n");
    let mut line = |what: &str, took: Duration| {
        let _ = writeln!(text, "{:>7.0}  {what}", took.as_secs_f64());
    };
    let (long, short): (Vec<_>, Vec<_>) = sorted.into_iter().partition(|(_, (_, took))| took.as_secs() >= 1);
    for (what, (times, took)) in long {
        match times {
            1 => line(what, took),
            _ => line(&format!("{what} ({times} times)"), took),
        }
    }
    let rest = all.saturating_sub(steps.iter().map(|(_, took)| *took).sum());
    let short: Duration = short.iter().map(|(_, (_, took))| *took).sum();
    line("all that took less than one, and what lay between", short + rest);
    line("together", all);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_comes_first_and_the_sum_last() {
        let step = |what: &str, ms| (what.to_owned(), Duration::from_millis(ms));
        let steps = [
            step("clippy", 61_000),
            step("formatting", 400),
            step("tests", 120_000),
            step("build a mutant", 700),
            step("build a mutant", 5_300),
        ];
        let text = table(&steps, Duration::from_secs(190));
        let lines: Vec<&str> = text.lines().skip(1).map(str::trim).collect();
        assert_eq!(lines[0], "120  tests");
        assert_eq!(lines[1], "61  clippy");
        assert_eq!(lines[2], "6  build a mutant (2 times)");
        assert_eq!(lines[3], "3  all that took less than one, and what lay between");
        assert_eq!(lines[4], "190  together");
    }
}

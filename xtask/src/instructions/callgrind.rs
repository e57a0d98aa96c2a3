//! Callgrind's output file: <https://valgrind.org/docs/manual/cl-format.html>, names and positions
//! uncompressed, positions by line.

use std::collections::HashMap;

/// Instructions of each function, with those of everything that it called.
#[derive(Debug, Default)]
pub(super) struct Counts(HashMap<String, u64>);

impl Counts {
    pub(super) fn parse(text: &str) -> Self {
        let mut counts = Self::default();
        let mut function = "";
        for line in text.lines() {
            if let Some(name) = line.strip_prefix("fn=") {
                // `crate::module::function`, or `…::h0123456789abcdef` where it is mangled the old way.
                let path = name.split("::h").next().unwrap_or(name);
                function = path.rsplit("::").next().unwrap_or(path);
            } else if line.starts_with(|c: char| c.is_ascii_digit() || c == '+' || c == '-' || c == '*') {
                // "LINE COST": of the function's own, or (after a line `calls=`) of what it called.
                let cost = line.split_ascii_whitespace().nth(1).and_then(|n| n.parse().ok());
                *counts.0.entry(function.to_owned()).or_default() += cost.unwrap_or(0);
            }
        }
        counts
    }

    /// # Errors
    /// The function is not there: renamed, or inlined into its caller.
    pub(super) fn of(&self, function: &str) -> Result<u64, String> {
        let count = self.0.get(function).copied();
        count.ok_or_else(|| format!("callgrind saw no function `{function}` in bench/instructions"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
# callgrind format
version: 1
positions: line
events: Ir
summary: 1130

fl=desk.rs
fn=instructions::desk::Desk::give
20 400
cfn=malloc
calls=2 0
21 300

fl=main.rs
fn=instructions::counted_invite
48 10
fi=hint.rs
491 20
fe=main.rs
cfi=desk.rs
cfn=instructions::desk::Desk::give
calls=10 15
51 700

totals: 1130
";

    #[test]
    fn a_function_counts_with_what_it_calls() {
        let counts = Counts::parse(OUTPUT);
        assert_eq!(counts.of("counted_invite"), Ok(730));
        assert_eq!(counts.of("give"), Ok(700));
        assert!(counts.of("counted_ack").is_err());
    }
}

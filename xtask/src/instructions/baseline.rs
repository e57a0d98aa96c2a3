//! The checked-in figures: TOML of the simplest kind, written and read here only.

use std::fmt::Write;

const HEAD: &str = "\
# Instructions of the core for each message, counted by `cargo xtask instructions`, which fails
# when one rises by more than 5 %. Written by `cargo xtask instructions --accept`.
";

/// What `bench/instructions.toml` says.
#[derive(Debug, PartialEq)]
pub(super) struct Baseline {
    /// Version of rustc that compiled what was counted.
    pub(super) compiler: String,
    figures: Vec<(String, u64)>,
}

impl Baseline {
    /// The file's text.
    pub(super) fn text(compiler: &str, figures: &[(&str, u64)]) -> String {
        let mut text = format!("{HEAD}rustc = \"{compiler}\"\n\n[instructions]\n");
        for (name, value) in figures {
            let _ = writeln!(text, "\"{name}\" = {value}");
        }
        text
    }

    /// Reads what [`Baseline::text`] writes.
    ///
    /// # Errors
    /// The number of a line that is none of it, or that the compiler is missing.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let (mut compiler, mut figures) = (None, Vec::new());
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with(['#', '[']) {
                continue;
            }
            let wrong = || format!("line {}: not `\"name\" = number`", index + 1);
            let (name, value) = line.split_once(" = ").ok_or_else(wrong)?;
            if name == "rustc" {
                compiler = Some(value.trim_matches('"').to_owned());
            } else {
                let value = value.parse().map_err(|_| wrong())?;
                figures.push((name.trim_matches('"').to_owned(), value));
            }
        }
        Ok(Self {
            compiler: compiler.ok_or("no `rustc = \"VERSION\"`")?,
            figures,
        })
    }

    pub(super) fn figure(&self, name: &str) -> Option<u64> {
        let found = self.figures.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| *value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_writes() {
        let text = Baseline::text("1.95.0", &[("stateless INVITE", 12_345), ("parse INVITE", 3)]);
        let read = Baseline::parse(&text).expect("it is well formed");
        assert_eq!(read.compiler, "1.95.0");
        assert_eq!(read.figure("stateless INVITE"), Some(12_345));
        assert_eq!(read.figure("parse"), None);
    }

    #[test]
    fn says_which_line_is_wrong() {
        let error = Baseline::parse("rustc = \"1\"\n\"a\" = many\n").expect_err("not a number");
        assert!(error.starts_with("line 2"), "{error}");
        assert!(Baseline::parse("\"a\" = 1\n").is_err(), "no compiler");
    }
}

//! The command line: a mode, then options with or without a value.

use std::collections::HashMap;
use std::str::FromStr;

use super::Outcome;

const FLAGS: &[&str] = &["tls12", "resume", "fresh"];
const VALUES: &[&str] = &[
    "target",
    "transport",
    "name",
    "ca",
    "sources",
    "threads",
    "count",
    "every",
    "rate",
    "seconds",
    "certificates",
    "timeout",
    "backoff",
    "give-up",
    "port",
];

/// What was asked for.
#[derive(Debug)]
pub(crate) struct Arguments {
    pub(crate) mode: String,
    values: HashMap<String, String>,
}

impl Arguments {
    pub(crate) fn parse(words: &[String]) -> Outcome<Self> {
        let mut words = words.iter();
        let mode = words.next().map_or("help", String::as_str).to_owned();
        let mut values = HashMap::new();
        while let Some(word) = words.next() {
            let name = word.strip_prefix("--").unwrap_or_default();
            let value = match name {
                _ if FLAGS.contains(&name) => String::new(),
                _ if VALUES.contains(&name) => words.next().ok_or(format!("{word} needs a value"))?.clone(),
                _ => return Err(format!("unknown option {word}; see `trapezoid lab-crowd help`").into()),
            };
            values.insert(name.to_owned(), value);
        }
        Ok(Self { mode, values })
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.values.contains_key(name)
    }

    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    /// The value of an option, or `default` where it is not given.
    pub(crate) fn get<T: FromStr>(&self, name: &str, default: T) -> Outcome<T> {
        match self.text(name) {
            None => Ok(default),
            Some(text) => text
                .parse()
                .map_err(|_| format!("--{name}: {text:?} will not do").into()),
        }
    }
}

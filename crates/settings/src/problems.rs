//! Problems of a configuration file, each with its place and its remedy.

use std::fmt;
use std::ops::Range;

/// One problem of a configuration file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Line in the file, from 1; 0 if the problem is of the file as a whole.
    pub line: usize,
    /// `table[index].key`, indices from 0; empty if the problem is not of a key.
    pub path: String,
    /// The problem in words.
    pub what: String,
    /// The remedy in words.
    pub remedy: String,
}

/// All problems of one file, in the order of its lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problems {
    file: String,
    line_starts: Vec<usize>,
    /// Texts that must not be shown: values of environment variables.
    secrets: Vec<String>,
    list: Vec<Problem>,
}

/// Most problems reported of one file; a longer list is of no use.
const MAX_PROBLEMS: usize = 100;

impl Problems {
    /// An empty list for `file`, which has this text.
    pub fn new(file: &str, text: &str) -> Self {
        let line_starts = std::iter::once(0)
            .chain(text.match_indices('\n').map(|(at, _)| at + 1))
            .collect();
        Self {
            file: file.to_owned(),
            line_starts,
            secrets: Vec::new(),
            list: Vec::new(),
        }
    }

    /// Hides `value` from all messages from now on, whatever they are about: the value of one key is often
    /// the default of another, or a part of it.
    pub(crate) fn hide(&mut self, value: &str) {
        if !value.is_empty() && !self.secrets.iter().any(|known| known == value) {
            self.secrets.push(value.to_owned());
            self.secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        }
    }

    fn without_secrets(&self, mut message: String) -> String {
        for secret in &self.secrets {
            let quoted = secret.escape_debug().to_string();
            if message.contains(secret) || message.contains(&quoted) {
                message = message.replace(secret, "…").replace(&quoted, "…");
            }
        }
        message
    }

    /// Adds a problem at byte range `span` of the text.
    pub fn add(
        &mut self,
        span: &Range<usize>,
        path: &str,
        what: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        let line = self.line_starts.partition_point(|&start| start <= span.start);
        self.add_at(line, path, what, remedy);
    }

    /// Adds a problem of the file as a whole.
    pub fn add_whole(&mut self, what: impl Into<String>, remedy: impl Into<String>) {
        self.add_at(0, "", what, remedy);
    }

    fn add_at(&mut self, line: usize, path: &str, what: impl Into<String>, remedy: impl Into<String>) {
        if self.list.len() < MAX_PROBLEMS {
            let problem = Problem {
                line,
                path: path.to_owned(),
                what: one_line(self.without_secrets(what.into())),
                remedy: one_line(self.without_secrets(remedy.into())),
            };
            let at = self.list.partition_point(|other| other.line <= line);
            self.list.insert(at, problem);
        }
    }

    /// Prefix of later messages about the key at `path`: `FILE:LINE: path`.
    pub fn place(&self, span: &Range<usize>, path: &str) -> String {
        let line = self.line_starts.partition_point(|&start| start <= span.start);
        format!("{}:{line}: {path}", self.file)
    }

    /// Whether there is a problem of the key at `path`, or below it.
    pub fn has(&self, path: &str) -> bool {
        let below = |rest: &str| rest.is_empty() || rest.starts_with(['.', '[']);
        self.list
            .iter()
            .any(|problem| problem.path.strip_prefix(path).is_some_and(below))
    }

    /// Whether there is no problem.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// All problems in the order of their lines; at most 100.
    pub fn list(&self) -> &[Problem] {
        &self.list
    }

    /// One line for each problem: `FILE:LINE: key.path: what is wrong; what would be right`.
    pub fn lines(&self) -> Vec<String> {
        self.list.iter().map(|problem| self.line(problem)).collect()
    }

    fn line(&self, problem: &Problem) -> String {
        let Problem {
            line,
            path,
            what,
            remedy,
        } = problem;
        let mut out = self.file.clone();
        if *line > 0 {
            out.push_str(&format!(":{line}"));
        }
        if !path.is_empty() {
            out.push_str(&format!(": {path}"));
        }
        out.push_str(&format!(": {what}"));
        if !remedy.is_empty() {
            out.push_str(&format!("; {remedy}"));
        }
        out
    }
}

/// A message with control characters escaped: text of a file must not act on the terminal, nor begin a line
/// in a log.
fn one_line(message: String) -> String {
    if !message.contains(char::is_control) {
        return message;
    }
    let mut out = String::with_capacity(message.len() + 8);
    for c in message.chars() {
        if c.is_control() {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.lines().join("\n"))
    }
}

impl std::error::Error for Problems {}

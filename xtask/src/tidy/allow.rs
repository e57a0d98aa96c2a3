//! `xtask/tidy-allow.txt`: exceptions to the length rules, each with its reason.

use super::{File, Violation};

/// Where the exceptions stand.
pub(super) const PATH: &str = "xtask/tidy-allow.txt";

/// One exception: `path` or `path::function`, the length that it may have, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Exception {
    pub(super) name: String,
    pub(super) limit: usize,
    pub(super) line: usize,
}

/// Lines of `NAME LIMIT REASON…`; `#` begins a comment.
pub(super) fn parse(files: &[File]) -> (Vec<Exception>, Vec<Violation>) {
    let (mut exceptions, mut violations) = (Vec::new(), Vec::new());
    let Some(file) = files.iter().find(|f| f.path == PATH) else {
        return (exceptions, violations);
    };
    for (index, line) in file.text.lines().enumerate() {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        let mut fields = line.splitn(3, ' ');
        let name = fields.next().unwrap_or_default();
        let limit = fields.next().and_then(|n| n.parse().ok());
        let reason = fields.next().map(str::trim).unwrap_or_default();
        match limit {
            Some(limit) if reason.split_whitespace().count() >= 3 => {
                exceptions.push(Exception {
                    name: name.to_owned(),
                    limit,
                    line: index + 1,
                });
            }
            Some(_) | None => violations.push(Violation::new(
                format!("{PATH}:{}", index + 1),
                "want `NAME LIMIT REASON`, the reason in some words",
            )),
        }
    }
    (exceptions, violations)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::file;

    #[test]
    fn an_exception_needs_a_reason() {
        let text = "# why\na.rs 900 one table of the standard\nb.rs 900\nc.rs many a b c\n";
        let (exceptions, violations) = parse(&[file(PATH, text)]);
        assert_eq!(
            exceptions,
            [Exception {
                name: "a.rs".into(),
                limit: 900,
                line: 2
            }]
        );
        assert_eq!(violations.len(), 2);
    }
}

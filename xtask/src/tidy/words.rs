//! Text that means something on one machine only.

use super::{File, Violation};

/// Each in two parts, so that this file does not hold what it looks for.
const FORBIDDEN: &[(&str, &str, &str)] = &[
    ("/wo", "rk/", "a path of one machine"),
    ("/ro", "ot/", "a path of one machine"),
    ("/ho", "me/", "a path of one machine"),
    (
        "index.crates",
        ".io",
        "a registry's host: cargo's configuration names it",
    ),
    (
        "static.crates",
        ".io",
        "a registry's host: cargo's configuration names it",
    ),
    (
        "registry.npm",
        "js",
        "a registry's host: npm's configuration names it",
    ),
    (
        "files.python",
        "hosted",
        "a registry's host: pip's configuration names it",
    ),
    (
        "deb.deb",
        "ian.org",
        "a registry's host: apt's configuration names it",
    ),
];

/// Checks every text file.
pub(super) fn check(files: &[File]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for file in files {
        for (head, tail, what) in FORBIDDEN {
            let word = format!("{head}{tail}");
            for (index, _) in file
                .text
                .lines()
                .enumerate()
                .filter(|(_, line)| line.contains(&word))
            {
                violations.push(Violation::new(
                    format!("{}:{}", file.path, index + 1),
                    format!("`{word}`: {what}"),
                ));
            }
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::file;

    #[test]
    fn paths_relative_to_the_project_pass() {
        assert_eq!(
            check(&[file("a.md", "see docs/a.md, framework/x, /var/lib/trapezoid")]),
            []
        );
    }

    #[test]
    fn every_forbidden_word_fails_where_it_stands() {
        for (head, tail, _) in FORBIDDEN {
            let found = check(&[file("a.toml", &format!("x\ny = \"{head}{tail}\"\n"))]);
            assert_eq!(found.len(), 1);
            assert_eq!(found[0].place, "a.toml:2");
        }
    }
}

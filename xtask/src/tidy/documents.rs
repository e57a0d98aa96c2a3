//! Documents name files that exist; the changelog has a place for what comes next.

use super::{File, NOT_OURS, Violation};

const EXTENSIONS: &[&str] = &[
    ".rs", ".md", ".toml", ".sh", ".py", ".xml", ".cfg", ".yml", ".yaml", ".txt", ".c", ".lock", ".sql",
    ".service",
];

/// Names without a directory are looked up only where they can hardly be an example.
const BARE_EXTENSIONS: &[&str] = &[".rs", ".md", ".sh", ".py"];

/// `paths`: every file of the project, text or not.
pub(super) fn check(paths: &[String], files: &[File]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for file in files.iter().filter(|f| f.path.ends_with(".md")) {
        let mut fenced = false;
        for (index, line) in file.text.lines().enumerate() {
            if line.trim_start().starts_with("```") {
                fenced = !fenced;
            } else if !fenced {
                let quoted = line.split('`').skip(1).step_by(2);
                let missing = quoted
                    .filter(|name| is_missing(paths, &file.path, name))
                    .chain(links(line).filter(|target| !exists(paths, &file.path, target)));
                for name in missing {
                    let place = format!("{}:{}", file.path, index + 1);
                    violations.push(Violation::new(
                        place,
                        format!("names `{name}`, which does not exist"),
                    ));
                }
            }
        }
    }
    violations.extend(changelog(files));
    violations
}

fn changelog(files: &[File]) -> Option<Violation> {
    let unreleased = |f: &File| {
        f.text
            .lines()
            .any(|l| l.trim_end() == "## Unreleased" || l.trim_end() == "## [Unreleased]")
    };
    let there = files
        .iter()
        .find(|f| f.path == "CHANGELOG.md")
        .is_some_and(unreleased);
    (!there).then(|| Violation::new("CHANGELOG.md", "wants a section `## Unreleased`"))
}

/// Targets of links that stay inside the project.
fn links(line: &str) -> impl Iterator<Item = &str> {
    line.split("](")
        .skip(1)
        .filter_map(|rest| rest.split([')', ' ']).next())
        .filter_map(|target| {
            let target = target.split('#').next().unwrap_or_default();
            (!target.is_empty() && !target.contains(':')).then_some(target)
        })
}

/// Whether a quoted word reads like a file of ours and is none.
fn is_missing(paths: &[String], document: &str, quoted: &str) -> bool {
    let name = quoted.split(':').next().unwrap_or_default(); // `file.rs:12`
    // What a run leaves behind, and places named by a stand-in such as `seeds/NAME/`.
    let made = NOT_OURS
        .iter()
        .any(|dir| name == *dir || name.starts_with(&format!("{dir}/")));
    let stand_in = name
        .split('/')
        .any(|part| !part.is_empty() && part.chars().all(|c| c.is_ascii_uppercase()));
    if made || stand_in && name.contains('/') {
        return false;
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || "_./-*".contains(c);
    if name.is_empty()
        || !name.chars().all(plain)
        || name.starts_with(['/', '.', '-']) && !name.starts_with(".c")
    {
        return false;
    }
    match name.split_once('/') {
        Some((first, _)) => {
            let ours = paths
                .iter()
                .any(|p| p.split_once('/').is_some_and(|(top, _)| top == first));
            let crates = paths.iter().any(|p| p.starts_with(&format!("crates/{first}/")));
            let rust = name.ends_with(".rs");
            let file = name.ends_with('/') || EXTENSIONS.iter().any(|e| name.ends_with(e)) || ours || crates;
            file && (ours || crates || rust) && !exists(paths, document, name)
        }
        None => BARE_EXTENSIONS.iter().any(|e| name.ends_with(e)) && !exists(paths, document, name),
    }
}

/// As a path from the root, from the document, from `crates/`, or as the end of some path.
fn exists(paths: &[String], document: &str, name: &str) -> bool {
    let name = name
        .split('*')
        .next()
        .unwrap_or_default()
        .trim_start_matches("./");
    let directory = document.rsplit_once('/').map_or("", |(directory, _)| directory);
    let (mut base, mut rest) = (directory, name);
    while let Some(up) = rest.strip_prefix("../") {
        base = base.rsplit_once('/').map_or("", |(parent, _)| parent);
        rest = up;
    }
    let beside = if base.is_empty() {
        rest.to_owned()
    } else {
        format!("{base}/{rest}")
    };
    let beneath = |full: &str| {
        let full = full.trim_end_matches('/');
        full.is_empty()
            || paths
                .iter()
                .any(|p| p == full || p.starts_with(&format!("{full}/")))
    };
    let partial = name.ends_with(".rs") || !name.contains('/');
    beneath(name)
        || beneath(&beside)
        || beneath(&format!("crates/{name}"))
        || partial && paths.iter().any(|p| p.ends_with(&format!("/{name}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::file;

    fn found(document: &str, text: &str) -> Vec<String> {
        let paths: Vec<String> = [
            "crates/sip-core/src/auth/mod.rs",
            "docs/a.md",
            "Makefile",
            "CHANGELOG.md",
            ".ci/run",
        ]
        .map(str::to_owned)
        .to_vec();
        let files = [file("CHANGELOG.md", "## Unreleased\n"), file(document, text)];
        check(&paths, &files).into_iter().map(|v| v.message).collect()
    }

    #[test]
    fn what_exists_passes() {
        let text = "`crates/sip-core/src/auth/mod.rs:12` `auth/mod.rs` `sip-core/src/` `docs/*.md` `.ci/run`\n\
                    [x](../Makefile) [y](https://example.com/z.md) [z](#part) `a.md`\n\
                    ```\n`docs/none.md`\n```\n";
        assert_eq!(found("docs/b.md", text), [""; 0]);
    }

    #[test]
    fn what_is_no_file_of_ours_passes() {
        assert_eq!(
            found(
                "README.md",
                "`INVITE` `text/plain` `application/sdp` `sip:a@b` `location.db` `/etc/x.toml` `a.b()` `docs/T/` `target/x/`"
            ),
            [""; 0]
        );
    }

    #[test]
    fn what_does_not_exist_fails() {
        for text in [
            "`docs/none.md`",
            "`crates/sip-core/src/gone.rs`",
            "`auth/gone.rs`",
            "`gone.sh`",
            "[x](gone.md)",
            "`docs/old/`",
        ] {
            assert_eq!(found("README.md", text).len(), 1, "{text}");
        }
    }

    #[test]
    fn a_changelog_without_its_section_fails() {
        assert_eq!(check(&[], &[file("CHANGELOG.md", "## 1.0\n")]).len(), 1);
        assert_eq!(check(&[], &[]).len(), 1);
        assert_eq!(check(&[], &[file("CHANGELOG.md", "## [Unreleased]\n")]), []);
    }
}

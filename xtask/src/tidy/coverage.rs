//! No test is left out by mistake: a file under `tests/` that no test program names, an example in
//! the documentation that nothing compiles.

use super::{File, Violation};

pub(super) fn check(files: &[File]) -> Vec<Violation> {
    let mut violations: Vec<Violation> = files.iter().flat_map(examples).collect();
    for manifest in files.iter().filter(|f| f.path.ends_with("Cargo.toml")) {
        violations.extend(left_out(files, manifest));
    }
    violations
}

/// Where a crate names its test programs itself (`autotests = false`), each file is one of them, or a
/// module of `suite.rs`.
fn left_out(files: &[File], manifest: &File) -> Vec<Violation> {
    if !manifest.text.contains("\nautotests = false\n") {
        return Vec::new();
    }
    let directory = manifest.path.trim_end_matches("Cargo.toml");
    let suite = format!("{directory}tests/suite.rs");
    let suite = files.iter().find(|f| f.path == suite).map_or("", |f| &f.text);
    let mut violations = Vec::new();
    for file in files {
        let name = file
            .path
            .strip_prefix(directory)
            .and_then(|rest| rest.strip_prefix("tests/"));
        let Some(name) = name.and_then(|rest| rest.strip_suffix(".rs")) else {
            continue;
        };
        let names_it = |text: &str, name: &str| {
            let modules = text.lines().map(str::trim_start);
            let mut modules = modules.map(|line| line.strip_prefix("pub ").unwrap_or(line));
            modules.any(|line| line == format!("mod {name};"))
        };
        let is_found = match name.rsplit_once('/') {
            None => {
                manifest.text.contains(&format!("[[test]]\nname = \"{name}\"\n")) || names_it(suite, name)
            }
            // A module of another file of the same crate's tests, or of a program in a directory.
            Some((_, "mod" | "main")) => true,
            Some((_, stem)) => files.iter().any(|f| {
                f.path.starts_with(&format!("{directory}tests/"))
                    && (names_it(&f.text, stem) || f.text.contains(&format!("{stem}.rs\"]")))
            }),
        };
        if !is_found {
            violations.push(Violation::new(
                file.path.clone(),
                "no test program has it: name it in tests/suite.rs of its crate",
            ));
        }
    }
    violations
}

/// Code blocks in documentation that rustdoc would compile and run.
fn examples(file: &File) -> Vec<Violation> {
    let mut violations = Vec::new();
    if !file.path.ends_with(".rs") {
        return violations;
    }
    let mut inside = false;
    for (index, line) in file.text.lines().enumerate() {
        let line = line.trim_start();
        let Some(doc) = line.strip_prefix("///").or_else(|| line.strip_prefix("//!")) else {
            continue;
        };
        let doc = doc.trim_start();
        let Some(language) = doc.strip_prefix("```").or_else(|| doc.strip_prefix("~~~")) else {
            continue;
        };
        if !inside && !["text", "sh", "toml"].contains(&language.trim()) {
            violations.push(Violation::new(
                format!("{}:{}", file.path, index + 1),
                "no step runs examples in documentation: make it a test and name that, or say ```text",
            ));
        }
        inside = !inside;
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::super::file;
    use super::*;

    #[test]
    fn a_file_that_no_program_has_is_found() {
        let manifest =
            "[package]\nautotests = false\n\n[[test]]\nname = \"suite\"\n\n[[test]]\nname = \"alone\"\n";
        let files = [
            file("crates/a/Cargo.toml", manifest),
            file("crates/a/tests/suite.rs", "mod forking;\n"),
            file("crates/a/tests/forking.rs", ""),
            file("crates/a/tests/alone.rs", ""),
            file("crates/a/tests/common/mod.rs", "pub mod used;\n"),
            file("crates/a/tests/forgotten.rs", ""),
            file("crates/a/tests/common/forgotten.rs", ""),
            file("crates/a/tests/common/used.rs", ""),
            file("crates/b/Cargo.toml", "[package]\n"),
            file("crates/b/tests/found_by_cargo.rs", ""),
        ];
        let places: Vec<_> = check(&files).into_iter().map(|v| v.place).collect();
        assert_eq!(
            places,
            [
                "crates/a/tests/forgotten.rs",
                "crates/a/tests/common/forgotten.rs"
            ]
        );
    }

    #[test]
    fn an_example_that_would_have_to_be_compiled_is_found() {
        let fine = file(
            "a.rs",
            "/// ```text\n/// a picture\n/// ```\nfn a() {}\n//! ```sh\n//! ls\n//! ```\n",
        );
        assert_eq!(check(&[fine]), []);
        for fence in ["```", "```no_run", "~~~rust", "``` ignore"] {
            let text = format!("//! {fence}\n//! let x = 1;\n//! ```\n");
            let found = check(&[file("a.rs", &text)]);
            assert_eq!(found.len(), 1, "{fence}");
            assert_eq!(found[0].place, "a.rs:1");
        }
    }
}

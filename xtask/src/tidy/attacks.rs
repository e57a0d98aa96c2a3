//! Each row of `docs/attacks.md` names a test, and the test is there.

use super::{File, Violation};

const DOCUMENT: &str = "docs/attacks.md";

pub(super) fn check(files: &[File]) -> Vec<Violation> {
    let Some(document) = files.iter().find(|f| f.path == DOCUMENT) else {
        return vec![Violation::new(DOCUMENT, "is missing")];
    };
    let mut violations = Vec::new();
    let mut rows = 0;
    for (index, line) in document.text.lines().enumerate() {
        let Some(cell) = tests_of(line) else { continue };
        rows += 1;
        let place = || format!("{DOCUMENT}:{}", index + 1);
        let mut named = 0;
        for (path, name) in names(cell) {
            named += 1;
            if !is_there(files, path, name) {
                violations.push(Violation::new(place(), format!("{path} has no test {name}")));
            }
        }
        if named == 0 {
            violations.push(Violation::new(
                place(),
                "names no test: `path.rs` and its function",
            ));
        }
    }
    if rows == 0 {
        violations.push(Violation::new(DOCUMENT, "has no rows"));
    }
    violations
}

/// The last cell of a row of a table; not of its head.
fn tests_of(line: &str) -> Option<&str> {
    let row = line.trim().strip_prefix('|')?.strip_suffix('|')?;
    let cell = row.rsplit('|').next()?.trim();
    let head = cell == "test" || cell.chars().all(|c| matches!(c, '-' | ':'));
    (!head).then_some(cell)
}

/// Files and functions of a cell such as `` `a.rs` one, two; `b.rs` three ``.
fn names(cell: &str) -> impl Iterator<Item = (&str, &str)> {
    cell.split(';').flat_map(|part| {
        let mut pieces = part.trim().split('`');
        let (_, path, rest) = (pieces.next(), pieces.next(), pieces.next());
        let functions = rest.unwrap_or_default().split(',').map(str::trim);
        functions.filter_map(move |name| Some((path?, name)).filter(|_| !name.is_empty()))
    })
}

fn is_there(files: &[File], path: &str, name: &str) -> bool {
    let full = [path.to_owned(), format!("crates/{path}")];
    let text = files.iter().find(|f| full.contains(&f.path)).map(|f| &f.text);
    let head = format!("fn {name}(");
    // The function, and the attribute that makes it a test above it.
    text.is_some_and(|text| {
        let mut is_test = false;
        text.lines().any(|line| {
            let line = line.trim_start();
            is_test |= line.starts_with("#[test]");
            let found = is_test && line.starts_with(&head);
            is_test &= line.starts_with("#[") || line.starts_with("//");
            found
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::file;

    const HEAD: &str = "text\n| attack | does | bound | test |\n| --- | --- | --- | --- |\n";

    fn found(rows: &str) -> Vec<String> {
        let tests =
            "#[test]\nfn one() {}\n\n/// Why.\n#[test]\n#[ignore = \"x\"]\nfn two() {}\n\nfn helper() {}\n";
        let files = [
            file("crates/sip-core/tests/a.rs", tests),
            file("conformance/tests/b.rs", "#[test]\nfn three() {}\n"),
            file(DOCUMENT, &format!("{HEAD}{rows}")),
        ];
        check(&files).into_iter().map(|v| v.message).collect()
    }

    #[test]
    fn rows_with_tests_pass() {
        let rows = "| a `x.rs` | b | c | `sip-core/tests/a.rs` one, two; `conformance/tests/b.rs` three |\n\
                    | a | b | c | `crates/sip-core/tests/a.rs` two |\n";
        assert_eq!(found(rows), [""; 0]);
    }

    #[test]
    fn rows_without_one_fail() {
        for row in [
            "| a | b | c | |\n",
            "| a | b | c | later |\n",
            "| a | b | c | `sip-core/tests/a.rs` |\n",
            "| a | b | c | `sip-core/tests/a.rs` four |\n",
            "| a | b | c | `sip-core/tests/a.rs` helper |\n",
            "| a | b | c | `sip-core/tests/a.rs` on |\n",
            "| a | b | c | `sip-core/tests/c.rs` one |\n",
            "| a | b | c | `sip-core/tests/a.rs` one, three |\n",
            "",
        ] {
            assert_eq!(found(row).len(), 1, "{row:?}");
        }
        assert_eq!(check(&[]).len(), 1);
    }
}

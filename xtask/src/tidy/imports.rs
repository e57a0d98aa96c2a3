//! Inside sip-core imports point down: the order of its modules stands in its `lib.rs`.

use super::source::{identifier, inline_depth, line_of, mask, test_modules, without_tests, words};
use super::{File, Violation};

const SOURCE: &str = "crates/sip-core/src/";
const LIB: &str = "crates/sip-core/src/lib.rs";

/// Checks every file of sip-core that is not a test.
pub(super) fn check(files: &[File]) -> Vec<Violation> {
    let Some(order) = order_of(files) else {
        return Vec::new();
    };
    if order.is_empty() {
        return vec![Violation::new(
            LIB,
            "the doc comment must say `in this order:` and name the modules",
        )];
    }
    let mut violations = Vec::new();
    for file in sources(files) {
        check_file(file, &order, &mut violations);
    }
    violations
}

/// Modules of sip-core from the top down, as its `lib.rs` names them; `None` without a `lib.rs`.
pub(super) fn order_of(files: &[File]) -> Option<Vec<String>> {
    let root = files.iter().find(|f| f.path == LIB)?;
    Some(order(&root.text))
}

/// Files of sip-core that hold code of its modules, tests left out.
pub(super) fn sources(files: &[File]) -> impl Iterator<Item = &File> {
    let tests = test_files(files, SOURCE);
    files
        .iter()
        .filter(|f| f.path.starts_with(SOURCE) && f.path.ends_with(".rs") && f.path != LIB)
        .filter(move |f| !tests.contains(&f.path))
}

fn check_file(file: &File, order: &[String], violations: &mut Vec<Violation>) {
    let own = module_of(file);
    let Some(own_rank) = rank(order, &own) else {
        violations.push(Violation::new(
            &file.path,
            format!("module `{own}` is not in the order of lib.rs"),
        ));
        return;
    };
    let code = without_tests(&mask(&file.text));
    let depth = own.split("::").count();
    let mut paths = Vec::new();
    for at in words(&code, "crate::") {
        for path in spelled_paths(&code[at + "crate::".len()..]) {
            paths.push((at, path));
        }
    }
    for (at, climbed, rest) in climbs(&code) {
        if climbed >= depth + inline_depth(&code, at) {
            paths.extend(spelled_paths(rest).into_iter().map(|path| (at, path)));
        }
    }
    for (at, path) in paths {
        let place = format!("{}:{}", file.path, line_of(&code, at));
        match rank(order, &path) {
            Some(rank) if rank < own_rank => violations.push(Violation::new(
                place,
                format!(
                    "imports `{path}`, which stands above `{}` in the order of lib.rs",
                    order[own_rank]
                ),
            )),
            Some(_) => {}
            None => violations.push(Violation::new(
                place,
                format!("`crate::{path}` is in no module of the order"),
            )),
        }
    }
}

/// Module names in backticks after the words "in this order:", up to the sentence's end.
fn order(lib: &str) -> Vec<String> {
    let docs: String = lib
        .lines()
        .filter_map(|l| l.strip_prefix("//!"))
        .collect::<Vec<_>>()
        .join("\n");
    let Some((_, list)) = docs.split_once("in this order:") else {
        return Vec::new();
    };
    let list = list.split_once('.').map_or(list, |(sentence, _)| sentence);
    list.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Place of the longest entry that is `path` or a parent of it.
pub(super) fn rank(order: &[String], path: &str) -> Option<usize> {
    let holds = |entry: &str| {
        path == entry
            || path
                .strip_prefix(entry)
                .is_some_and(|rest| rest.starts_with("::"))
    };
    let found = order.iter().enumerate().filter(|(_, entry)| holds(entry));
    found.max_by_key(|(_, entry)| entry.len()).map(|(index, _)| index)
}

/// Path of the module that a file of sip-core holds: that of `transaction/table.rs` is `transaction::table`.
pub(super) fn module_of(file: &File) -> String {
    let stem = file.path[SOURCE.len()..].trim_end_matches(".rs");
    stem.trim_end_matches("/mod").replace('/', "::")
}

/// The paths spelled at the start of `text`: `a::b`, or all of `{a::b, c::{d, e}}`.
fn spelled_paths(text: &str) -> Vec<String> {
    let mut paths = Vec::new();
    spell(text, "", &mut paths);
    paths
}

/// Returns how many bytes it read.
fn spell(text: &str, parent: &str, paths: &mut Vec<String>) -> usize {
    let mut read = text.len() - text.trim_start().len();
    if text[read..].starts_with('{') {
        read += 1;
        loop {
            read += text[read..].len()
                - text[read..]
                    .trim_start_matches(|c: char| c.is_whitespace() || c == ',')
                    .len();
            if read >= text.len() || text[read..].starts_with('}') {
                return (read + 1).min(text.len());
            }
            let step = spell(&text[read..], parent, paths);
            if step == 0 {
                return text.len(); // no list of names: not an import
            }
            read += step;
        }
    }
    let name = identifier(&text[read..]);
    if name.is_empty() && !text[read..].starts_with('*') {
        return 0;
    }
    read += name.len().max(1);
    let path = match parent {
        "" => name.to_owned(),
        _ if name.is_empty() || name == "self" => parent.to_owned(),
        _ => format!("{parent}::{name}"),
    };
    if let Some(rest) = text[read..].strip_prefix("::") {
        let step = spell(rest, &path, paths);
        if step == 0 {
            paths.push(path); // generic arguments follow
        }
        return read + 2 + step;
    }
    if let Some(rest) = text[read..].trim_start().strip_prefix("as ") {
        read = text.len() - rest.len() + identifier(rest).len() + (rest.len() - rest.trim_start().len());
    }
    paths.push(path);
    read
}

/// Chains of `super::`: where, how many, and what follows.
fn climbs(code: &str) -> Vec<(usize, usize, &str)> {
    let mut chains = Vec::new();
    let mut behind = 0;
    for at in words(code, "super::") {
        if at < behind {
            continue;
        }
        let mut rest = &code[at..];
        let mut count = 0;
        while let Some(next) = rest.strip_prefix("super::") {
            rest = next;
            count += 1;
        }
        behind = code.len() - rest.len();
        chains.push((at, count, rest));
    }
    chains
}

/// Files of modules that exist only under `cfg(test)`.
pub(super) fn test_files(files: &[File], source: &str) -> Vec<String> {
    let mut tests = Vec::new();
    for file in files
        .iter()
        .filter(|f| f.path.starts_with(source) && f.path.ends_with(".rs"))
    {
        let stem = file.path.trim_end_matches(".rs");
        let directory = ["/mod", "/lib", "/main"]
            .iter()
            .find_map(|name| stem.strip_suffix(name))
            .unwrap_or(stem);
        for name in test_modules(&mask(&file.text)) {
            let inside = format!("{directory}/{name}/");
            tests.extend(
                files
                    .iter()
                    .filter(|f| f.path.starts_with(&inside))
                    .map(|f| f.path.clone()),
            );
            tests.push(format!("{directory}/{name}.rs"));
        }
    }
    tests
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::file;

    const ROOT: &str =
        "//! Down only, in this order:\n//! `proxy`, `auth`, `timer`, `auth::window`, `id`.\n//! `other`\n";

    fn found(path: &str, text: &str) -> Vec<String> {
        let files = [file(LIB, ROOT), file(path, text)];
        check(&files)
            .into_iter()
            .map(|v| format!("{} {}", v.place, v.message))
            .collect()
    }

    #[test]
    fn the_order_is_read_from_the_docs() {
        assert_eq!(order(ROOT), ["proxy", "auth", "timer", "auth::window", "id"]);
        assert_eq!(check(&[file(LIB, "//! Nothing.\n")]).len(), 1);
    }

    #[test]
    fn imports_that_point_down_pass() {
        let text = "use crate::{timer::{Wheel, Timer}, id};\n/// [`crate::proxy::Fork`]\nfn f(x: crate::id::Id) {}\n";
        assert_eq!(found("crates/sip-core/src/auth/mod.rs", text), [""; 0]);
        assert_eq!(
            found(
                "crates/sip-core/src/timer/mod.rs",
                "use crate::auth::window::Window;\n"
            ),
            [""; 0]
        );
    }

    #[test]
    fn imports_that_point_up_fail() {
        for text in [
            "use crate::proxy::Fork;\n",
            "use crate::{id::Id, proxy::{self, Fork as F}};\n",
            "fn f(x: crate::auth::Digest) {}\n",
            "use super::proxy;\n",
            "mod inner { use super::super::proxy::Fork; }\n",
            "use crate::nowhere::X;\n",
        ] {
            assert!(!found("crates/sip-core/src/timer.rs", text).is_empty(), "{text}");
        }
        let nested = "use super::super::proxy::Fork;\n";
        let message = "crates/sip-core/src/auth/digest.rs:1 imports `proxy::Fork`, which stands above `auth` in the order of lib.rs";
        assert_eq!(found("crates/sip-core/src/auth/digest.rs", nested), [message]);
    }

    #[test]
    fn modules_outside_the_order_fail() {
        assert_eq!(found("crates/sip-core/src/stray.rs", "").len(), 1);
    }

    #[test]
    fn tests_may_look_up() {
        let text = "#[cfg(test)]\nmod tests { use crate::proxy::Fork; }\n#[cfg(test)]\nmod table;\n";
        let files = [
            file(LIB, ROOT),
            file("crates/sip-core/src/timer/mod.rs", text),
            file("crates/sip-core/src/timer/table.rs", "use crate::proxy::Fork;"),
        ];
        assert_eq!(check(&files), []);
        assert!(!check(&[files[0].clone(), files[2].clone()]).is_empty());
    }

    #[test]
    fn groups_are_spelled_out() {
        assert_eq!(
            spelled_paths("{a::b, c::{d as e, self, *}, f} rest"),
            ["a::b", "c::d", "c", "c", "f"]
        );
        assert_eq!(spelled_paths("a::b::<T>()"), ["a::b"]);
    }
}

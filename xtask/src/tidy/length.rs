//! Files of at most 800 lines, functions of at most 70.

use super::allow::{self, Exception};
use super::source::{closing_brace, identifier, line_of, mask, words};
use super::{File, Violation};

const FILE_LINES: usize = 800;
const FUNCTION_LINES: usize = 70;
const EXTENSIONS: &[&str] = &[".rs", ".py", ".sh", ".c", ".ts", ".tsx"];

/// A function and how many lines it takes, from `fn` to its closing brace.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Function<'a> {
    name: &'a str,
    line: usize,
    lines: usize,
}

pub(super) fn check(files: &[File]) -> Vec<Violation> {
    let (exceptions, mut violations) = allow::parse(files);
    let mut used = vec![false; exceptions.len()];
    for file in files
        .iter()
        .filter(|f| EXTENSIONS.iter().any(|e| f.path.ends_with(e)))
    {
        let lines = file.text.lines().count();
        if lines > FILE_LINES && !excepted(&exceptions, &mut used, &file.path, lines) {
            violations.push(Violation::new(
                &file.path,
                format!("{lines} lines; at most {FILE_LINES}: split it"),
            ));
        }
        if !file.path.ends_with(".rs") {
            continue;
        }
        let code = mask(&file.text);
        for function in functions(&code).into_iter().filter(|f| f.lines > FUNCTION_LINES) {
            let name = format!("{}::{}", file.path, function.name);
            if !excepted(&exceptions, &mut used, &name, function.lines) {
                violations.push(Violation::new(
                    format!("{}:{}", file.path, function.line),
                    format!(
                        "`{}` has {} lines; at most {FUNCTION_LINES}",
                        function.name, function.lines
                    ),
                ));
            }
        }
    }
    let unused = exceptions.iter().zip(&used).filter(|(_, used)| !**used);
    violations.extend(unused.map(|(exception, _)| {
        let place = format!("{}:{}", allow::PATH, exception.line);
        Violation::new(place, format!("`{}` needs no exception any more", exception.name))
    }));
    violations
}

fn excepted(exceptions: &[Exception], used: &mut [bool], name: &str, lines: usize) -> bool {
    match exceptions.iter().position(|e| e.name == name && lines <= e.limit) {
        Some(index) => {
            used[index] = true;
            true
        }
        None => false,
    }
}

fn functions(code: &str) -> Vec<Function<'_>> {
    words(code, "fn")
        .filter_map(|at| {
            let name = identifier(&code[at + 2..]);
            let open = body(code, at)?;
            let (first, last) = (line_of(code, at), line_of(code, closing_brace(code, open)));
            (!name.is_empty()).then_some(Function {
                name,
                line: first,
                lines: last - first + 1,
            })
        })
        .collect()
}

/// The opening brace of the function at `at`; `None` for a declaration without a body.
fn body(code: &str, at: usize) -> Option<usize> {
    let mut depth = 0i32;
    for (index, byte) in code.bytes().enumerate().skip(at) {
        match byte {
            b'(' | b'[' => depth += 1,
            b')' | b']' => depth -= 1,
            b';' | b'}' if depth <= 0 => return None,
            b'{' if depth <= 0 => return Some(index),
            _ => {}
        }
        if depth < 0 {
            return None; // a function pointer among arguments
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::file;

    fn function_of(lines: usize) -> String {
        format!(
            "fn long(x: [u8; 4]) -> u8 {{\n{}}}\n",
            "    x;\n".repeat(lines - 2)
        )
    }

    #[test]
    fn lengths_at_the_limit_pass() {
        let files = [
            file("a.rs", &function_of(70)),
            file("b.rs", &"//\n".repeat(800)),
            file("c.md", &"x\n".repeat(900)),
        ];
        assert_eq!(check(&files), []);
    }

    #[test]
    fn one_line_more_fails() {
        let found = check(&[file("a.rs", &function_of(71)), file("b.py", &"#\n".repeat(801))]);
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!(found[0].place, "a.rs:1");
        assert!(found[0].message.contains("`long` has 71 lines"));
        assert_eq!(found[1].place, "b.py");
    }

    #[test]
    fn an_exception_holds_up_to_its_limit_and_while_it_is_needed() {
        let list = |limit: usize| {
            file(
                allow::PATH,
                &format!("a.rs::long {limit} the standard's own table"),
            )
        };
        assert_eq!(check(&[list(80), file("a.rs", &function_of(80))]), []);
        assert_eq!(check(&[list(80), file("a.rs", &function_of(81))]).len(), 2);
        assert_eq!(check(&[list(80), file("a.rs", &function_of(20))]).len(), 1);
    }

    #[test]
    fn declarations_pointers_and_closures_are_no_functions() {
        let code = "trait T { fn a(&self); fn b(&self) { } } type F = fn(u8) -> u8; fn c(f: fn()) {}";
        let names: Vec<_> = functions(code).into_iter().map(|f| f.name).collect();
        assert_eq!(names, ["b", "c"]);
    }
}

//! Inside sip-core calls point down, too, where no import shows them: a method may stand in a module above that of
//! its type, as most methods of `Engine` do.
//!
//! The receiver's type follows from the text: `self` in an `impl` block, a name that is declared with its type, or
//! the type's own name in lower case (`engine`, `self.engine`). A binding of another name without a type is not
//! followed, nor is what a function returns.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::imports::{module_of, order_of, rank, sources};
use super::source::{closing_brace, identifier, line_of, mask, without_tests, words};
use super::{File, Violation};

/// A file of the core.
struct Source<'a> {
    path: &'a str,
    /// Place of its module in the order.
    rank: usize,
    /// Its code, without tests.
    code: String,
    blocks: Vec<Block>,
}

/// An `impl` block.
#[derive(Debug)]
struct Block {
    /// The last name of the type's path.
    name: String,
    /// It implements no trait.
    inherent: bool,
    /// From the opening brace to the closing one.
    body: Range<usize>,
}

/// A type: its name, and the place of the module that declares it. Two modules may use one name.
type Type = (String, Option<usize>);

/// Where a method stands.
struct Definition {
    rank: usize,
    /// Path and line.
    place: String,
}

/// The types of the core.
#[derive(Default)]
struct Types {
    /// Places of the modules that declare a type of this name.
    homes: BTreeMap<String, BTreeSet<usize>>,
    methods: BTreeMap<Type, BTreeMap<String, Definition>>,
    /// Types that have a method of this name, be it a trait's.
    owners: BTreeMap<String, BTreeSet<Type>>,
}

/// A call of a method on a receiver that may be of the type at hand.
struct Call<'a> {
    method: &'a str,
    /// The text says that the receiver is of this type.
    certain: bool,
}

/// Checks every file of sip-core that is not a test.
pub(super) fn check(files: &[File]) -> Vec<Violation> {
    let Some(order) = order_of(files) else {
        return Vec::new();
    };
    let sources: Vec<Source<'_>> = sources(files)
        .filter_map(|file| {
            let code = without_tests(&mask(&file.text));
            Some(Source {
                path: &file.path,
                rank: rank(&order, &module_of(file))?,
                blocks: blocks(&code),
                code,
            })
        })
        .collect();
    let types = Types::of(&sources);
    let mut violations = Vec::new();
    for source in &sources {
        check_source(source, &types, &order, &mut violations);
    }
    violations
}

fn check_source(source: &Source<'_>, types: &Types, order: &[String], violations: &mut Vec<Violation>) {
    for (kind, methods) in &types.methods {
        let stands_above = |method: &Definition| method.rank < source.rank;
        if !methods.values().any(stands_above) || *kind != types.seen(&kind.0, source.rank) {
            continue;
        }
        for (at, call) in calls(source, &kind.0) {
            let Some(definition) = methods.get(call.method).filter(|m| stands_above(m)) else {
                continue;
            };
            if call.certain || types.owners[call.method].len() == 1 {
                violations.push(Violation::new(
                    format!("{}:{}", source.path, line_of(&source.code, at)),
                    format!(
                        "calls `{}::{}`, which stands in {}: `{}` is above `{}` in the order of lib.rs",
                        kind.0, call.method, definition.place, order[definition.rank], order[source.rank]
                    ),
                ));
            }
        }
    }
}

impl Types {
    fn of(sources: &[Source<'_>]) -> Self {
        let mut types = Self::default();
        for source in sources {
            for keyword in ["struct", "enum"] {
                for at in words(&source.code, keyword) {
                    let name = identifier(&source.code[at + keyword.len()..]).to_owned();
                    types.homes.entry(name).or_default().insert(source.rank);
                }
            }
        }
        for source in sources {
            for block in &source.blocks {
                types.add(source, block);
            }
        }
        types
    }

    fn add(&mut self, source: &Source<'_>, block: &Block) {
        let kind = self.seen(&block.name, source.rank);
        for (at, name) in functions(&source.code, block) {
            let owners = self.owners.entry(name.to_owned()).or_default();
            owners.insert(kind.clone());
            if block.inherent && kind.1.is_some() {
                let definition = Definition {
                    rank: source.rank,
                    place: format!("{}:{}", source.path, line_of(&source.code, at)),
                };
                let methods = self.methods.entry(kind.clone()).or_default();
                methods.insert(name.to_owned(), definition);
            }
        }
    }

    /// The type that a name means in a module: its own, or the next below, since imports point down.
    fn seen(&self, name: &str, rank: usize) -> Type {
        let homes = self.homes.get(name);
        let home = homes.and_then(|homes| homes.range(rank..).next().copied());
        (name.to_owned(), home)
    }
}

fn blocks(code: &str) -> Vec<Block> {
    words(code, "impl")
        .filter(|&at| {
            let before = code[..at].trim_end().bytes().last();
            matches!(before, None | Some(b'{' | b'}' | b';' | b']')) // else it is an `impl Trait`
        })
        .filter_map(|at| {
            let open = at + code[at..].find('{')?;
            let header = without_arguments(&code[at + "impl".len()..open]);
            let header = words(&header, "where")
                .next()
                .map_or(&*header, |end| &header[..end]);
            let of_trait = words(header, "for").next();
            let path = of_trait.map_or(header, |at| &header[at + "for".len()..]);
            let name = path.rsplit("::").next().map_or("", identifier);
            (!name.is_empty()).then(|| Block {
                name: name.to_owned(),
                inherent: of_trait.is_none(),
                body: open..closing_brace(code, open),
            })
        })
        .collect()
}

/// The same header with blanks in place of all that angle brackets hold.
fn without_arguments(header: &str) -> String {
    let mut depth = 0usize;
    let mut last = ' ';
    let blanked = header.chars().map(|c| {
        let opens = c == '<';
        let closes = c == '>' && last != '-';
        last = c;
        depth += usize::from(opens);
        let inside = depth > 0;
        depth = depth.saturating_sub(usize::from(closes));
        if inside { ' ' } else { c }
    });
    blanked.collect()
}

/// Functions of a block: where, and their names.
fn functions<'a>(code: &'a str, block: &Block) -> impl Iterator<Item = (usize, &'a str)> {
    let body = block.body.clone();
    words(code, "fn")
        .filter(move |at| body.contains(at) && depth(&code[body.start..*at]) == 1)
        .map(|at| (at, identifier(&code[at + "fn".len()..])))
        .filter(|(_, name)| !name.is_empty())
}

/// How many braces are open at the end of `code`.
fn depth(code: &str) -> usize {
    code.bytes().fold(0, |depth, byte| match byte {
        b'{' => depth + 1,
        b'}' => depth.saturating_sub(1),
        _ => depth,
    })
}

/// Calls on values that are, or may be, of type `name`; the key is where the method's name stands.
fn calls<'a>(source: &'a Source<'_>, name: &str) -> BTreeMap<usize, Call<'a>> {
    let code = &source.code;
    let mut calls = BTreeMap::new();
    let mut add = |within: Range<usize>, receiver: &str, joint: &str, certain: bool| {
        for (at, method) in called(&code[within.clone()], receiver, joint) {
            calls.insert(within.start + at, Call { method, certain });
        }
    };
    add(0..code.len(), &lower_case(name), ".", false);
    for value in declared(code, name) {
        add(0..code.len(), value, ".", true);
    }
    add(0..code.len(), name, "::", true);
    for block in source.blocks.iter().filter(|block| block.name == name) {
        add(block.body.clone(), "self", ".", true);
        add(block.body.clone(), "Self", "::", true);
    }
    calls
}

/// Methods that are named behind `receiver` and `joint`: where, and their names.
fn called<'a>(code: &'a str, receiver: &str, joint: &str) -> Vec<(usize, &'a str)> {
    words(code, receiver)
        .filter_map(|at| {
            let behind = code[at + receiver.len()..].trim_start();
            let rest = behind.strip_prefix(joint)?.trim_start();
            let method = identifier(rest);
            let arguments = rest[method.len()..].trim_start();
            let is_call = joint == "::" || arguments.starts_with('(') || arguments.starts_with("::");
            is_call.then_some((code.len() - rest.len(), method))
        })
        .collect()
}

/// Fields, parameters and bindings that are declared as a `name`, or as a reference to one.
fn declared<'a>(code: &'a str, name: &str) -> BTreeSet<&'a str> {
    let not_in_name = |c: char| !c.is_alphanumeric() && c != '_';
    let last = |text: &'a str| text.trim_end().rsplit(not_in_name).next();
    code.match_indices(':')
        .filter(|&(at, _)| !code[at + 1..].starts_with(':')) // else it is a path
        .filter_map(|(at, _)| {
            let kind = code[at + 1..]
                .split(['<', '(', ')', ',', ';', '=', '|', '{', '}'])
                .next()?;
            (last(kind) == Some(name)).then(|| last(&code[..at]))?
        })
        .filter(|value| !value.is_empty())
        .collect()
}

/// `AorRecord` is `aor_record`.
fn lower_case(name: &str) -> String {
    let mut value = String::new();
    for (at, c) in name.char_indices() {
        if c.is_uppercase() && at > 0 {
            value.push('_');
        }
        value.extend(c.to_lowercase());
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::file;

    const LIB: &str = "//! Down only, in this order:\n//! `door`, `path`, `proxy`, `engine`, `timer`.\n";
    const ENGINE: &str =
        "pub(crate) struct Engine { live: usize }\nimpl Engine { pub(crate) fn send(&self) {} }\n";
    const PATH: &str =
        "use crate::engine::Engine;\nimpl Engine {\n    pub(crate) fn begin<T>(&mut self) {}\n}\n";

    /// What is found in modules of these names and texts, beside `engine` and `path`.
    fn found(modules: &[(&str, &str)]) -> Vec<String> {
        let place = |module: &str| format!("crates/sip-core/src/{module}.rs");
        let mut files = vec![
            file(&place("lib"), LIB),
            file(&place("engine"), ENGINE),
            file(&place("path/begin"), PATH),
        ];
        files.extend(modules.iter().map(|(module, text)| file(&place(module), text)));
        check(&files)
            .into_iter()
            .map(|v| format!("{} {}", v.place, v.message))
            .collect()
    }

    /// Lines of `proxy/fork.rs` with a violation.
    fn lines(text: &str, others: &[(&str, &str)]) -> Vec<String> {
        let modules = [&[("proxy/fork", text)], others].concat();
        let found = found(&modules);
        let place = |v: &String| {
            let (place, _) = v.split_once(' ').unwrap();
            place
                .strip_prefix("crates/sip-core/src/proxy/fork.rs:")
                .unwrap()
                .to_owned()
        };
        found.iter().map(place).collect()
    }

    #[test]
    fn calls_that_point_down_pass() {
        let proxy = "impl Engine { fn fork(&mut self) { self.send(); self.fork(); Self::send(self); } }\n";
        let door = "struct Endpoint { engine: Engine }\nimpl Endpoint { fn handle(&mut self) {\n\
                    let engine = &mut self.engine; engine.begin::<u8>(); self.engine.fork(); } }\n";
        let path = "impl Engine { fn route(&mut self) { self.begin::<u8>(); self.fork(); } }\n";
        assert_eq!(
            found(&[("proxy/fork", proxy), ("door", door), ("path/route", path)]),
            [""; 0]
        );
    }

    #[test]
    fn a_call_that_points_up_is_reported_with_both_places() {
        let text = "impl Engine {\n    fn fork(&mut self) {\n        self.begin(); // up\n    }\n}\n";
        let message = "crates/sip-core/src/proxy/fork.rs:3 calls `Engine::begin`, which stands in \
                       crates/sip-core/src/path/begin.rs:3: `path` is above `proxy` in the order of lib.rs";
        assert_eq!(found(&[("proxy/fork", text)]), [message]);
    }

    #[test]
    fn every_receiver_that_is_an_engine_counts() {
        for call in [
            "impl Engine { fn f(&mut self) { self.begin() } }",
            "impl Engine { fn f(&mut self) { self.begin::<u8>() } }",
            "impl Engine { fn f(&mut self) { Self::begin(self) } }",
            "impl crate::engine::Engine { fn f(&mut self) { || self.begin() } }",
            "impl From<u8> for Engine { fn from(_: u8) { self.begin() } }",
            "fn f(engine: &mut Engine) { engine.begin() }",
            "fn f(e: &'a mut crate::engine::Engine) { e.begin() }",
            "fn f() { run(|e: &mut Engine| e.begin()) }",
            "fn f() { let engine = take(); engine.begin() }",
            "impl<'a> Fork<'a> { fn f(&mut self) { self.engine.begin() } }",
            "fn f() { each(Engine::begin) }",
        ] {
            assert_eq!(lines(call, &[]), ["1"], "{call}");
        }
    }

    #[test]
    fn the_line_is_that_of_the_method() {
        let text = "fn f(x: &Fork) {\n    x.engine\n        .begin();\n    x.engine.send()\n}\n";
        assert_eq!(lines(text, &[]), ["3"]);
    }

    #[test]
    fn what_is_no_call_of_that_method_passes() {
        for text in [
            "impl Fork { fn f(&self) { self.begin() } }",
            "impl Engine { fn f(&self) { self.begin; self.list.begin(); begin(); } }",
            "impl Engine { fn f(&self) { /* self.begin() */ say(\"self.begin()\") } }",
            "fn f(engines: &Fork) { engines.begin() }",
            "fn f(Some(x): Engine, fork: &Fork) { fork.begin() }",
            "fn f(fork: &Fork) -> impl Engine { self.begin() }",
        ] {
            assert_eq!(lines(text, &[]), [""; 0], "{text}");
        }
    }

    #[test]
    fn a_name_that_other_types_have_too_needs_a_certain_receiver() {
        let timer = (
            "timer",
            "struct Wheel;\nimpl Start for Wheel { fn begin(&self) {} }\n",
        );
        let unsure = "use crate::engine::Engine;\nfn f() { let engine = take(); engine.begin() }\n";
        let certain = "fn f(engine: &mut Engine) { engine.begin() }\n";
        assert_eq!(lines(unsure, &[timer]), [""; 0]);
        assert_eq!(lines(certain, &[timer]), ["1"]);
        assert_eq!(
            lines("impl Engine { fn f(&self) { self.begin() } }", &[timer]),
            ["1"]
        );
    }

    #[test]
    fn tests_may_call_up() {
        let inside = "#[cfg(test)]\nmod tests { fn f(engine: &mut Engine) { engine.begin() } }\n\
                      #[cfg(test)]\nmod table;\n";
        let table = (
            "proxy/fork/table",
            "fn f(engine: &mut Engine) { engine.begin() }\n",
        );
        assert_eq!(lines(inside, &[table]), [""; 0]);
        assert_eq!(found(&[table]).len(), 1);
    }

    #[test]
    fn a_method_that_only_tests_have_is_none() {
        let test = "#[cfg(test)]\nimpl Engine { fn peek(&self) {} }\n";
        let text = "impl Engine { fn f(&self) { self.peek() } }\n";
        assert_eq!(lines(text, &[("path/peek", test)]), [""; 0]);
    }

    #[test]
    fn other_types_with_methods_above_them_count() {
        let types = ("timer", "struct NextTurn<'a>(&'a u8);\n");
        let methods = (
            "path/turn",
            "impl<'a> NextTurn<'a>\nwhere\n    for<'b> F: Fn(&'b u8) -> u8,\n{ fn of(&self) {} }\n",
        );
        let text = "fn f(turn: NextTurn<'_>) {\n turn.of();\n next_turn.of();\n NextTurn::of(&turn) }\n";
        assert_eq!(lines(text, &[types, methods]), ["2", "3", "4"]);
    }

    #[test]
    fn methods_of_traits_are_left_to_the_imports() {
        let above = (
            "path/turn",
            "impl From<u8> for Turn { fn from(_: u8) -> Self { Turn } }\n",
        );
        assert_eq!(
            lines(
                "fn f() { Turn::from(1) }\n",
                &[("timer", "struct Turn;\n"), above]
            ),
            [""; 0]
        );
    }

    #[test]
    fn types_of_one_name_are_kept_apart() {
        let upper = (
            "path/keys",
            "struct Keys;\nimpl Keys { fn of() {} }\nfn f() { Keys::of() }\n",
        );
        let lower = (
            "timer",
            "struct Keys;\nimpl Keys { fn derive() { Keys::of(); Self::of() } }\n",
        );
        assert_eq!(lines("fn f(keys: Keys) { keys.of() }", &[upper, lower]), [""; 0]);
        let above = ("door", "fn f() { Keys::of() }\n");
        assert_eq!(found(&[upper, lower, above]), [""; 0]);
        let methods = ("engine/keys", "impl Keys { fn more(&self) {} }\n");
        let caller = ("timer/wheel", "fn f(keys: Keys) {\n keys.more() }\n");
        assert_eq!(found(&[upper, lower, methods, caller]).len(), 1);
    }

    #[test]
    fn functions_of_a_block_are_those_of_its_first_level() {
        let code =
            "impl<T: Fn(u8) -> u8> Fork<T> { const F: fn() = x; fn a() { fn b() {} } fn c() {} } fn d() {}";
        let [block] = <[Block; 1]>::try_from(blocks(code)).unwrap();
        assert_eq!(block.name, "Fork");
        let names: Vec<_> = functions(code, &block).map(|(_, name)| name).collect();
        assert_eq!(names, ["a", "c"]);
    }

    #[test]
    fn type_names_become_value_names() {
        assert_eq!(lower_case("Engine"), "engine");
        assert_eq!(lower_case("AorRecord"), "aor_record");
    }
}

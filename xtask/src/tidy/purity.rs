//! The parser and the core know no clock, no socket, no randomness, no operating system; and
//! `unsafe` stays in the one crate that needs it.

use super::imports::test_files;
use super::source::{line_of, mask, without_tests, words};
use super::{File, Violation};

const PURE: &[&str] = &["crates/sip-message/src/", "crates/sip-core/src/"];

/// Names that cannot stand in pure code, and what to do instead.
const IMPURE: &[(&str, &str)] = &[
    ("std::", "use core:: or alloc::"),
    ("extern crate std", "the crate is no_std"),
    ("SystemTime", "time comes in as `Now`"),
    ("Instant::now", "time comes in as `Now`"),
    ("UdpSocket", "bytes go out through `poll_transmit`"),
    ("TcpStream", "bytes go out through `poll_transmit`"),
    ("TcpListener", "the shell listens"),
    ("getrandom", "randomness comes in as seeds"),
    ("rand::", "randomness comes in as seeds"),
    ("thread_rng", "randomness comes in as seeds"),
    ("OsRng", "randomness comes in as seeds"),
    ("RandomState", "hash seeds come in as values"),
    ("thread::", "the shell owns threads"),
    ("thread_local", "the shell owns threads"),
    ("println", "the core logs nothing; events tell"),
    ("eprintln", "the core logs nothing; events tell"),
    ("async fn", "the core never waits"),
    (".await", "the core never waits"),
    ("static mut", "no global state"),
];

/// Where `unsafe` may stand: the socket layer, the allocator that counts, and what libFuzzer calls.
const UNSAFE: &[&str] = &["crates/sip-net/", "crates/counting-allocator/", "fuzz/"];

/// Checks all Rust files.
pub(super) fn check(files: &[File]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for source in PURE {
        let tests = test_files(files, source);
        let sources = files
            .iter()
            .filter(|f| f.path.starts_with(source) && f.path.ends_with(".rs"));
        for file in sources.filter(|f| !tests.contains(&f.path)) {
            check_pure(file, &mut violations);
        }
        violations.extend(check_root(files, source));
    }
    for file in files.iter().filter(|f| f.path.ends_with(".rs")) {
        if !UNSAFE.iter().any(|place| file.path.contains(place)) {
            let code = mask(&file.text);
            violations.extend(words(&code, "unsafe").map(|at| {
                Violation::new(
                    format!("{}:{}", file.path, line_of(&code, at)),
                    "`unsafe` belongs in sip-net",
                )
            }));
        }
    }
    violations
}

fn check_pure(file: &File, violations: &mut Vec<Violation>) {
    let code = without_tests(&mask(&file.text));
    for (name, instead) in IMPURE {
        for at in words(&code, name) {
            let place = format!("{}:{}", file.path, line_of(&code, at));
            violations.push(Violation::new(place, format!("`{name}` in pure code: {instead}")));
        }
    }
}

fn check_root(files: &[File], source: &str) -> Option<Violation> {
    let lib = format!("{source}lib.rs");
    let root = files.iter().find(|f| f.path == lib)?;
    let no_std = root.text.contains("#![no_std]") || root.text.contains("#![cfg_attr(not(test), no_std)]");
    let complete = no_std && root.text.contains("#![forbid(unsafe_code)]");
    (!complete).then(|| Violation::new(lib, "must say `#![no_std]` and `#![forbid(unsafe_code)]`"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::file;

    const CORE: &str = "crates/sip-core/src/timer/mod.rs";

    #[test]
    fn pure_code_passes() {
        let text = "use core::net::IpAddr; // std::time\nfn f() { let s = \"SystemTime\"; }\n\
                    #[cfg(test)]\nmod tests { use std::time::Instant; }\n";
        assert_eq!(check(&[file(CORE, text)]), []);
        assert_eq!(
            check(&[file("crates/trapezoid/src/main.rs", "use std::time::SystemTime;")]),
            []
        );
        let root = "#![no_std]\n#![forbid(unsafe_code)]\n";
        assert_eq!(check(&[file("crates/sip-core/src/lib.rs", root)]), []);
    }

    #[test]
    fn every_impure_name_fails() {
        for (name, _) in IMPURE {
            for path in [CORE, "crates/sip-message/src/uri.rs"] {
                let found = check(&[file(path, &format!("fn f() {{\n {name} x }}"))]);
                assert!(!found.is_empty(), "{name} in {path}");
                assert_eq!(found[0].place, format!("{path}:2"));
            }
        }
    }

    #[test]
    fn a_root_with_std_fails() {
        assert_eq!(
            check(&[file("crates/sip-message/src/lib.rs", "#![forbid(unsafe_code)]")]).len(),
            1
        );
        assert_eq!(
            check(&[file("crates/sip-message/src/lib.rs", "#![no_std]")]).len(),
            1
        );
    }

    #[test]
    fn unsafe_stays_in_its_crate() {
        let code = "fn f() { unsafe { g() } }";
        assert_eq!(check(&[file("crates/trapezoid/src/main.rs", code)]).len(), 1);
        assert_eq!(check(&[file("crates/sip-net/src/udp.rs", code)]), []);
        assert_eq!(check(&[file("crates/counting-allocator/src/lib.rs", code)]), []);
        assert_eq!(
            check(&[file("crates/sip-backend/src/lib.rs", "#![deny(unsafe_code)]")]),
            []
        );
    }
}

//! Every kept input through its target: seeds, among them whatever once was a finding, and the
//! minimised corpora. What fails names the input; `FUZZ_INPUT=FILE` replays one file instead.

use std::panic::catch_unwind;
use std::path::Path;

use fuzz::{TARGETS, Target, for_all_targets, kept, target};
use sip_core::endpoint::{Strip, claims};

fn replay(name: &str) {
    let target = target(name);
    let mut failed = Vec::new();
    for (from, input) in kept::inputs(target) {
        if catch_unwind(|| (target.run)(&input)).is_err() {
            failed.push(from);
        }
    }
    assert!(failed.is_empty(), "{name} failed on {failed:#?}");
}

/// `input` with `from` in any case made `to`.
fn replaced(input: &[u8], from: &[u8], to: &[u8]) -> Option<Vec<u8>> {
    let (mut out, mut at, mut found) = (Vec::new(), 0, false);
    while let Some(rest) = input.get(at..).filter(|rest| !rest.is_empty()) {
        match rest.get(..from.len()) {
            Some(here) if here.eq_ignore_ascii_case(from) => {
                out.extend_from_slice(to);
                at += from.len();
                found = true;
            }
            Some(_) | None => {
                out.push(rest[0]);
                at += 1;
            }
        }
    }
    found.then_some(out)
}

/// Each spelling of one claim that is kept is tried for all the others.
#[test]
fn smuggle_with_every_claim() {
    let target = target("smuggle");
    let (mut failed, mut tried) = (Vec::new(), 0);
    for (from, input) in kept::inputs(target) {
        for (name, strip) in claims() {
            let Some(other) = replaced(&input, b"P-Asserted-Identity", name) else {
                continue;
            };
            let other = match strip {
                Strip::Always => Some(other),
                Strip::NetworkProvided => {
                    replaced(&other, b"<sip:president@example.com>", b"a ; network-provided")
                }
            };
            let Some(other) = other else { continue };
            tried += 1;
            if catch_unwind(|| (target.run)(&other)).is_err() {
                failed.push(format!("{from} with {}", name.escape_ascii()));
            }
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
    assert!(tried > 16 * 30, "{tried}");
}

/// The fuzzer knows each claim.
#[test]
fn the_dictionary_has_every_claim() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("dictionaries/smuggle.dict");
    let words = std::fs::read(&file).expect("a dictionary");
    for (name, _) in claims() {
        let known = words
            .windows(name.len())
            .any(|word| word.eq_ignore_ascii_case(name));
        assert!(known, "{}", name.escape_ascii());
    }
}

/// libFuzzer has a program for each target, and each program has words.
#[test]
fn every_target_has_its_program() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("libfuzzer");
    let manifest = std::fs::read_to_string(here.join("Cargo.toml")).expect("a manifest");
    let programs = manifest.lines().filter(|line| *line == "[[bin]]").count();
    assert_eq!(programs, TARGETS.len());
    for Target { name, .. } in TARGETS {
        assert!(
            manifest.contains(&format!("name = \"{name}\"\npath = \"src/{name}.rs\"\n")),
            "{name}"
        );
        assert!(
            manifest.contains(&format!("\n{name} = [\"")),
            "{name} has no dictionary"
        );
        let source = std::fs::read_to_string(here.join(format!("src/{name}.rs"))).expect("a source");
        assert!(source.contains(&format!("{name}::run(")), "{source}");
    }
}

/// A test each, so that they run side by side.
macro_rules! replays {
    ($($name:ident),+ $(,)?) => {
        $(
            #[test]
            fn $name() {
                replay(stringify!($name));
            }
        )+
    };
}

for_all_targets!(replays);

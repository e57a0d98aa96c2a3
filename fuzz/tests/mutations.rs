//! Kept inputs, damaged in ways that follow from a fixed number: the same inputs on every machine. It
//! finds less than libFuzzer, which sees what an input reaches, but needs no build of its own.

use std::panic::catch_unwind;

use fuzz::{for_all_targets, kept, target};

/// Inputs that are tried for each target, and those of targets that take much longer for one.
const TRIED: usize = 4_000;
const SLOW: &[(&str, usize)] = &[("configuration", 200), ("endpoint", 1_500), ("smuggle", 1_500)];

/// As for libFuzzer.
const MAX_LEN: usize = 4096;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Less than `bound`; 0 for 0.
    fn below(&mut self, bound: usize) -> usize {
        (self.next() % (bound.max(1) as u64)) as usize
    }
}

/// Changes `input` in one place, or takes a piece of `other` into it.
fn damage(random: &mut Random, input: &mut Vec<u8>, other: &[u8]) {
    const WORDS: &[&[u8]] = &[
        b"\r\n",
        b"\0",
        b";",
        b",",
        b"<",
        b"\"",
        b"\\",
        b"%00",
        b"4294967296",
        b"-1",
        b" ",
    ];
    let at = random.below(input.len() + 1);
    let end = (at + 1 + random.below(24)).min(input.len());
    match random.below(6) {
        0 if at < input.len() => input[at] ^= 1 << random.below(8),
        1 if at < input.len() => input[at] = random.below(256) as u8,
        2 => drop(input.drain(at..end)),
        3 => {
            let piece = input[at..end].to_vec();
            input.splice(at..at, piece);
        }
        4 => {
            let from = random.below(other.len() + 1);
            let to = (from + random.below(64)).min(other.len());
            input.splice(at..at, other[from..to].iter().copied());
        }
        _ => {
            let word = WORDS[random.below(WORDS.len())];
            input.splice(at..at, word.iter().copied());
        }
    }
    input.truncate(MAX_LEN);
}

fn survives(name: &str) {
    let target = target(name);
    let inputs = kept::inputs(target);
    let tried = SLOW
        .iter()
        .find(|(slow, _)| *slow == name)
        .map_or(TRIED, |(_, tried)| *tried);
    let mut random = Random(1);
    for round in 0..tried {
        let (from, input) = &inputs[random.below(inputs.len())];
        let (_, other) = &inputs[random.below(inputs.len())];
        let mut damaged = input.clone();
        for _ in 0..=random.below(4) {
            damage(&mut random, &mut damaged, other);
        }
        assert!(
            catch_unwind(|| (target.run)(&damaged)).is_ok(),
            "{name} failed in round {round} on a damaged {from}: keep it in fuzz/seeds/{name}\n{}",
            damaged.escape_ascii()
        );
    }
}

macro_rules! survive {
    ($($name:ident),+ $(,)?) => {
        $(
            #[test]
            fn $name() {
                survives(stringify!($name));
            }
        )+
    };
}

for_all_targets!(survive);

//! Check whether the pattern of a rule can match at all: its automaton runs beside that of all Request-URIs.

use std::collections::HashSet;
use std::sync::LazyLock;

use regex_automata::dfa::dense::{Builder, Config, DFA};
use regex_automata::dfa::{Automaton as _, StartKind};
use regex_automata::nfa::thompson;
use regex_automata::util::primitives::StateID;
use regex_automata::util::{start, syntax};
use regex_automata::{Anchored, MatchKind};
use sip_core::spelling::spellings;

/// Most bytes of one automaton, and of its construction.
const MOST_BYTES: usize = 1024 * 1024;
/// Most pairs of states that are examined.
const MOST_PAIRS: usize = 100_000;

type Automaton = DFA<Vec<u32>>;

static SPELLINGS: LazyLock<Option<Automaton>> =
    LazyLock::new(|| automaton(&spellings(&[]), StartKind::Anchored));

fn automaton(pattern: &str, start: StartKind) -> Option<Automaton> {
    let config = Config::new()
        .start_kind(start)
        // The order of several matches does not matter.
        .match_kind(MatchKind::All)
        .accelerate(false)
        .dfa_size_limit(Some(MOST_BYTES))
        .determinize_size_limit(Some(MOST_BYTES));
    Builder::new()
        .configure(config)
        .syntax(syntax::Config::new().unicode(false).utf8(false))
        .thompson(thompson::Config::new().nfa_size_limit(Some(MOST_BYTES)))
        .build(pattern)
        .ok()
}

/// State of the pattern (`None`: it has matched), and state of the spellings.
type Pair = (Option<StateID>, StateID);

/// Whether this pattern matches any Request-URI, as rules see it. Also `true` if its automaton is too large
/// to decide.
pub(super) fn can_match(pattern: &str) -> bool {
    meets(pattern, SPELLINGS.as_ref())
}

/// Whether this pattern matches a URI with a host of `names`, which must not be IP addresses, or with
/// `maddr`.
pub(super) fn can_match_at(pattern: &str, names: &[&str]) -> bool {
    meets(
        pattern,
        automaton(&spellings(names), StartKind::Anchored).as_ref(),
    )
}

fn meets(pattern: &str, spellings: Option<&Automaton>) -> bool {
    match (automaton(pattern, StartKind::Unanchored), spellings) {
        (Some(pattern), Some(spellings)) => meet(&pattern, spellings).unwrap_or(true),
        _ => true,
    }
}

/// Whether any text is a spelling and the pattern matches somewhere in it. `None` if that would take too long
/// to decide.
fn meet(pattern: &Automaton, spellings: &Automaton) -> Option<bool> {
    let start = |automaton: &Automaton, anchored| {
        let config = start::Config::new().anchored(anchored);
        automaton.start_state(&config).ok()
    };
    let bytes = representatives(pattern, spellings);
    let first: Pair = (
        Some(start(pattern, Anchored::No)?),
        start(spellings, Anchored::Yes)?,
    );
    let mut seen = HashSet::from([first]);
    let mut open = vec![first];
    while let Some((at, spelling)) = open.pop() {
        // The automaton reports a match one byte later.
        let is_matched = at.is_none_or(|at| pattern.is_match_state(pattern.next_eoi_state(at)));
        if is_matched && spellings.is_match_state(spellings.next_eoi_state(spelling)) {
            return Some(true);
        }
        for byte in &bytes {
            let next = at.map(|at| pattern.next_state(at, *byte));
            let pair: Pair = (
                next.filter(|next| !pattern.is_match_state(*next)),
                spellings.next_state(spelling, *byte),
            );
            let is_over = |automaton: &Automaton, state| automaton.is_dead_state(state);
            let ends = is_over(spellings, pair.1) || pair.0.is_some_and(|next| is_over(pattern, next));
            if !ends && seen.insert(pair) {
                open.push(pair);
            }
        }
        if seen.len() > MOST_PAIRS {
            return None;
        }
    }
    Some(false)
}

/// One byte of each class that the two automata distinguish.
fn representatives(a: &Automaton, b: &Automaton) -> Vec<u8> {
    let mut seen = HashSet::new();
    let class = |byte: &u8| (a.byte_classes().get(*byte), b.byte_classes().get(*byte));
    (0..=255).filter(|byte| seen.insert(class(byte))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_that_hold_for_some_request_and_for_none() {
        for pattern in [
            "",
            "^sip:",
            "^sip:bob@example\\.com$",
            "(?i)^SIP:BOB@",
            "^sips?:\\+?[0-9]{3,}@",
            "^tel:\\+1900",
            "^sip:[^@]*@192\\.0\\.2\\.20(:5060)?(;|$)",
            "1-900",
            "^sip:Al\\.ice-b@",
            "^sip:a-1@",
            "%40",
            ";user=PHONE",
            "^urn:service:sos",
            "^(sip|SIP):0019",
            "\\bsales\\b",
            "[^\\x00-\\x7f]",
            "sip:.*@.*;x=a-b",
        ] {
            assert!(can_match(pattern), "{pattern}");
        }
        for pattern in [
            "^\\+?[0-9]+@",
            "^SIP:0019",
            "^sip:1-900[0-9]*@",
            "^sip:%30%3019",
            "^sip:%2B1900",
            "@GW\\.example",
            "^tel:1-900$",
            "^tel:\\(900\\)$",
            "^bob$",
            "x^sip:",
            "sip:bob@a@b",
            "$^",
            "[0-9&&[a-z]]",
        ] {
            assert!(!can_match(pattern), "{pattern}");
        }
    }

    #[test]
    fn patterns_that_hold_at_some_hosts_and_at_none_of_them() {
        let names = ["Example.com", "sip.example.com"];
        for pattern in [
            "",
            "^sip:bob@",
            "^sip:bob@example\\.com$",
            "@sip\\.example\\.com:5070",
            "^sips:[^@]*@example\\.com\\.?(;|$)",
            "example.org",
            ";maddr=",
            "^sip:bob@other\\.example;",
        ] {
            assert!(can_match_at(pattern, &names), "{pattern}");
        }
        for pattern in [
            "^sip:bob@example\\.org$",
            "@sip2\\.[^;]*$",
            "@exampleXcom$",
            "^tel:",
            "^urn:service:sos",
            "@Example",
        ] {
            assert!(!can_match_at(pattern, &names), "{pattern}");
        }
    }

    #[test]
    fn one_that_is_too_large_may_match() {
        assert!(can_match("^x(a|b)*a(a|b){18}$"));
    }
}

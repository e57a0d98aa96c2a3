//! Checks of the patterns of rules: whether one can match at all, and whether one matches all that another does.
//! Their automata run beside that of all Request-URIs.

use std::collections::{HashMap, HashSet};
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
/// Most combinations of states that are examined for one pattern.
const MOST_EXAMINED: usize = 100_000;
/// Most combinations that [`Hidden`] examines in all, so that a start with thousands of rules takes a second longer at
/// most.
const MOST_COMPARED: usize = 200_000;
/// Most of them for one pair of patterns, so that a pair that is hard to decide leaves some to the others.
const MOST_OF_A_PAIR: usize = 20_000;
/// Bytes of automata beyond which [`Hidden`] makes no more of them.
const MOST_KEPT: usize = 32 * 1024 * 1024;

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

/// State of the pattern (`None`: it has matched), state of the pattern that must not match (`None`: there is none), and
/// state of the spellings.
type Place = (Option<StateID>, Option<StateID>, StateID);

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
        (Some(pattern), Some(spellings)) => {
            let mut left = MOST_EXAMINED;
            meet(&pattern, None, spellings, &mut left).unwrap_or(true)
        }
        _ => true,
    }
}

/// The search for patterns that earlier ones hide. What takes too long to decide counts as not hidden.
pub(super) struct Hidden {
    known: HashMap<String, Option<Automaton>>,
    /// Bytes of the automata that are known.
    kept: usize,
    /// Combinations of states that may yet be examined.
    left: usize,
}

impl Hidden {
    pub(super) fn new() -> Self {
        Self {
            known: HashMap::new(),
            kept: 0,
            left: MOST_COMPARED,
        }
    }

    /// Whether `earlier` matches each Request-URI that `later` matches.
    pub(super) fn hides(&mut self, earlier: &str, later: &str) -> bool {
        if earlier == later {
            return true;
        }
        if self.left == 0 {
            return false;
        }
        for pattern in [earlier, later] {
            if !self.known.contains_key(pattern) && self.kept < MOST_KEPT {
                let automaton = automaton(pattern, StartKind::Unanchored);
                self.kept += automaton.as_ref().map_or(0, Automaton::memory_usage);
                self.known.insert(pattern.to_owned(), automaton);
            }
        }
        let of = |pattern| self.known.get(pattern).and_then(Option::as_ref);
        match (of(earlier), of(later), SPELLINGS.as_ref()) {
            (Some(earlier), Some(later), Some(spellings)) => {
                let most = self.left.min(MOST_OF_A_PAIR);
                let mut left = most;
                let met = meet(later, Some(earlier), spellings, &mut left);
                self.left -= most - left;
                met == Some(false)
            }
            _ => false,
        }
    }
}

/// Whether any text is a spelling, the pattern matches somewhere in it, and `other` does not. `None` if that takes
/// more than `left` combinations to decide.
fn meet(
    pattern: &Automaton,
    other: Option<&Automaton>,
    spellings: &Automaton,
    left: &mut usize,
) -> Option<bool> {
    let start = |automaton: &Automaton, anchored| {
        let config = start::Config::new().anchored(anchored);
        automaton.start_state(&config).ok()
    };
    let bytes = representatives(&[Some(pattern), other, Some(spellings)]);
    let first: Place = (
        Some(start(pattern, Anchored::No)?),
        match other {
            Some(other) => Some(start(other, Anchored::No)?),
            None => None,
        },
        start(spellings, Anchored::Yes)?,
    );
    // The automaton reports a match one byte later.
    let matches = |automaton: &Automaton, at| automaton.is_match_state(automaton.next_eoi_state(at));
    let matches_other = |at: Option<StateID>| other.zip(at).is_some_and(|(other, at)| matches(other, at));
    let is_dead = |automaton: &Automaton, at| automaton.is_dead_state(at);
    let mut seen = HashSet::from([first]);
    let mut open = vec![first];
    while let Some((at, beside, spelling)) = open.pop() {
        let is_matched = at.is_none_or(|at| matches(pattern, at));
        if is_matched && matches(spellings, spelling) && !matches_other(beside) {
            return Some(true);
        }
        for byte in &bytes {
            let next = at.map(|at| pattern.next_state(at, *byte));
            let beside = other.zip(beside).map(|(other, at)| other.next_state(at, *byte));
            let spelling = spellings.next_state(spelling, *byte);
            let is_other = other
                .zip(beside)
                .is_some_and(|(other, at)| other.is_match_state(at));
            let ends =
                is_dead(spellings, spelling) || next.is_some_and(|at| is_dead(pattern, at)) || is_other;
            let place = (next.filter(|at| !pattern.is_match_state(*at)), beside, spelling);
            if !ends && seen.insert(place) {
                *left = left.checked_sub(1)?;
                open.push(place);
            }
        }
    }
    Some(false)
}

/// One byte of each class that the automata distinguish.
fn representatives(automata: &[Option<&Automaton>; 3]) -> Vec<u8> {
    let mut seen = HashSet::new();
    let class = |byte: &u8| automata.map(|one| one.map(|one| one.byte_classes().get(*byte)));
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
    fn a_pattern_hides_those_that_match_nothing_more() {
        let mut hidden = Hidden::new();
        for (earlier, later) in [
            ("^sip:0", "^sip:00"),
            ("^sips?:0", "^sip:0[0-9]+@example\\.com$"),
            ("", "^sip:bob@"),
            ("@example\\.com", "^sip:bob@example\\.com$"),
            ("^sip:\\+?[0-9]+@", "^sip:\\+49[0-9]{3,12}@"),
            ("(a|b)c", "bc"),
            // Rules see user parts without white space and schemes in lower case.
            ("^sip:", "(?i)^sip:bob@"),
        ] {
            assert!(hidden.hides(earlier, later), "{earlier} {later}");
        }
        for (earlier, later) in [
            ("^sip:00", "^sip:0"),
            ("^sip:0$", "^sip:00"),
            ("^sip:[0-9]+@", "^sip:\\+?[0-9]+@"),
            ("^sip:bob@example\\.com$", "^sip:bob@example\\.com"),
            ("^sip:", "^sips:"),
            ("x", ""),
        ] {
            assert!(!hidden.hides(earlier, later), "{earlier} {later}");
        }
        hidden.left = 1;
        assert!(!hidden.hides("^sip:1", "^sip:12"), "too long to decide");
        assert!(hidden.hides("^sip:1", "^sip:1"));
    }

    #[test]
    fn one_that_is_too_large_may_match() {
        assert!(can_match("^x(a|b)*a(a|b){18}$"));
    }
}

//! Any order of events on a forked INVITE: what must hold of all of them.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use crate::common;
use crate::forks;

use common::*;
use forks::*;
use proptest::prelude::*;
use sip_core::config::Config;
use sip_core::dispatcher::Distribution;
use sip_core::location::Binding;
use sip_core::query::{Query, QueryResult, Records, Unavailable};

/// Timers B, F, H and the patience after a CANCEL, microseconds.
const TIME_OUT_US: u64 = 32_000_000;
/// The wheel's tick, and then some.
const SLACK_US: u64 = 200_000;

const STATUSES: [&str; 12] = [
    "100 Trying",
    "180 Ringing",
    "183 Session Progress",
    "200 OK",
    "302 Moved Temporarily",
    "401 Unauthorized",
    "408 Request Timeout",
    "430 Flow Failed",
    "486 Busy Here",
    "487 Request Terminated",
    "503 Service Unavailable",
    "603 Decline",
];

#[derive(Clone, Copy, Debug)]
enum Step {
    /// A branch, counted around, responds; one that has a final response repeats it.
    Respond {
        branch: usize,
        status: usize,
    },
    Pass {
        ms: u64,
    },
    Cancel,
    InviteAgain,
    Undelivered {
        branch: usize,
    },
    /// Name service gives the result of the query that has waited longest.
    Name {
        found: bool,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..8usize, 0..STATUSES.len()).prop_map(|(branch, status)| Step::Respond { branch, status }),
        3 => (0..8usize).prop_map(|branch| Step::Respond { branch, status: 1 }),
        4 => prop::sample::select(vec![10, 600, 2_100, 5_100, 33_000, 181_000]).prop_map(|ms| Step::Pass { ms }),
        1 => Just(Step::Cancel),
        1 => Just(Step::InviteAgain),
        1 => (0..8usize).prop_map(|branch| Step::Undelivered { branch }),
        3 => any::<bool>().prop_map(|found| Step::Name { found }),
    ]
}

/// A contact: whether its address is known, its q, whether it is of the common instance.
type Contact = (bool, u16, bool);

#[derive(Clone, Debug)]
struct Case {
    contacts: Vec<Contact>,
    grouped: bool,
    recurse: bool,
    timeout_s: Option<u32>,
    acknowledges: bool,
    steps: Vec<Step>,
}

fn case() -> impl Strategy<Value = Case> {
    let contact = (
        prop::bool::weighted(0.7),
        prop::sample::select(vec![1000, 500]),
        prop::bool::weighted(0.3),
    );
    (
        prop::collection::vec(contact, 1..5),
        prop::bool::weighted(0.3),
        any::<bool>(),
        prop::sample::select(vec![None, Some(4), Some(40)]),
        any::<bool>(),
        prop::collection::vec(step(), 0..40),
    )
        .prop_map(
            |(contacts, grouped, recurse, timeout_s, acknowledges, steps)| Case {
                contacts,
                grouped,
                recurse,
                timeout_s,
                acknowledges,
                steps,
            },
        )
}

impl Case {
    fn config(&self) -> Config {
        let edit = |relay: &mut sip_core::config::Relay| {
            relay.recurse = self.recurse;
            relay.timeout_s = self.timeout_s;
        };
        if self.grouped {
            let count = u8::try_from(self.contacts.len()).unwrap();
            grouped_with(group(Distribution::RoundRobin, count), edit)
        } else {
            location_with(edit)
        }
    }

    fn phones(&self) -> Vec<Binding> {
        let mut phones: Vec<Binding> = (1..)
            .zip(&self.contacts)
            .map(|(n, (known, q, common))| Binding {
                path: match known {
                    true => Box::default(),
                    false => format!("<sip:edge{n}.example.net:5060;lr>").into_bytes().into(),
                },
                instance: if *common { b"x"[..].into() } else { Box::default() },
                ..with_q(n, *q)
            })
            .collect();
        phones.sort_by_key(|p| std::cmp::Reverse(p.q_milli));
        phones
    }
}

/// The state of a branch.
#[derive(Debug)]
struct Branch {
    invite: Sent,
    sent_us: u64,
    rang: bool,
    answered: Option<&'static str>,
    /// When its CANCEL left.
    cancelled_us: Option<u64>,
    unreachable: bool,
}

impl Branch {
    /// Whether its client transaction lives; `None`: hard to say.
    fn lives(&self, now_us: u64) -> Option<bool> {
        let end = match (self.rang, self.cancelled_us) {
            _ if self.unreachable => return Some(false),
            (true, None) => return Some(true),
            (true, Some(at)) => at + TIME_OUT_US,
            (false, _) => self.sent_us + TIME_OUT_US,
        };
        (now_us.abs_diff(end) > SLACK_US).then_some(now_us < end)
    }
}

/// The table, and what was seen there.
struct Watch {
    b: Bench,
    acknowledges: bool,
    branches: Vec<Branch>,
    questions: Vec<Query>,
    /// Failures and successes that the caller got, by tag.
    failures: Vec<String>,
    successes: Vec<String>,
    cancelled: bool,
    refused_by_all: bool,
}

impl Watch {
    fn new(case: &Case) -> Self {
        let b = registered(&case.config(), &case.phones());
        let mut watch = Self {
            b,
            acknowledges: case.acknowledges,
            branches: vec![],
            questions: vec![],
            failures: vec![],
            successes: vec![],
            cancelled: false,
            refused_by_all: false,
        };
        let out = watch.b.udp(CALLER, &invite());
        watch.see(out);
        watch
    }

    fn ended(&self) -> bool {
        self.cancelled || self.refused_by_all || !self.failures.is_empty() || !self.successes.is_empty()
    }

    /// Takes what left.
    #[track_caller]
    fn see(&mut self, out: Vec<Sent>) {
        for sent in out {
            let what = brief(std::slice::from_ref(&sent)).remove(0);
            let via = sent.header("Via").to_string();
            let known = self.branches.iter().position(|b| b.invite.header("Via") == via);
            match (what.split_once(' ').unwrap(), known) {
                (("caller", status), _) => self.told(&sent, status.parse().unwrap()),
                ((_, "INVITE"), Some(at)) => {
                    let branch = &self.branches[at];
                    assert!(!branch.rang && branch.answered.is_none(), "{what} again");
                    assert_eq!(sent.text, branch.invite.text);
                }
                ((_, "INVITE"), None) => {
                    assert!(!self.ended(), "{what} after the end");
                    self.branches.push(Branch {
                        invite: sent,
                        sent_us: self.b.now_us,
                        rang: false,
                        answered: None,
                        cancelled_us: None,
                        unreachable: false,
                    });
                }
                ((_, "CANCEL"), Some(at)) => {
                    let now = self.b.now_us;
                    let branch = &mut self.branches[at];
                    if branch.cancelled_us.is_none() {
                        assert!(branch.rang && branch.answered.is_none(), "{what}: {branch:?}");
                        branch.cancelled_us = Some(now);
                    }
                }
                ((_, "ACK"), Some(at)) => {
                    let answered = self.branches[at].answered;
                    assert!(answered.is_some_and(|s| s >= "300"), "{what}: {answered:?}");
                }
                (_, _) => panic!("{what} of no branch"),
            }
        }
        while let Some(query) = self.b.endpoint.poll_query() {
            self.questions.push(query);
        }
    }

    /// The caller gets a response.
    fn told(&mut self, sent: &Sent, status: u16) {
        let tag = format!("{status} {}", sent.header("To"));
        if sent.header("CSeq").ends_with("CANCEL") {
            assert_eq!(status, 200);
            return;
        }
        match status {
            100 => {}
            101..200 => assert!(
                self.successes.is_empty() && self.failures.is_empty(),
                "{tag} after the end"
            ),
            200..300 => {
                if !self.successes.contains(&tag) {
                    self.successes.push(tag);
                }
            }
            _ => {
                // One that came before a late 2xx is repeated until its ACK.
                if !self.failures.contains(&tag) {
                    assert!(self.successes.is_empty(), "{tag} after a 2xx");
                    self.failures.push(tag);
                    if self.acknowledges {
                        ack(&mut self.b, sent);
                    }
                }
                assert_eq!(self.failures.len(), 1, "{:?}", self.failures);
            }
        }
    }

    fn respond(&mut self, at: usize, status: usize) {
        let count = self.branches.len();
        let Some(branch) = self.branches.get_mut(at % count.max(1)) else {
            return;
        };
        if branch.unreachable {
            return;
        }
        // A branch that has responded repeats its response.
        let status = branch.answered.unwrap_or(STATUSES[status]);
        let lives = branch.lives(self.b.now_us);
        let first = branch.answered.is_none();
        if status < "200" {
            // What comes when the transaction is over is ignored.
            branch.rang |= lives == Some(true);
            if lives.is_none() {
                return;
            }
        } else {
            branch.answered = Some(status);
        }
        if status >= "600" && first && lives == Some(true) && self.successes.is_empty() {
            // Of a branch that was given up it does not count.
            let awaited = branch.rang || self.b.now_us - branch.sent_us < 1_900_000;
            self.refused_by_all |= awaited && branch.cancelled_us.is_none() && self.failures.is_empty();
        }
        let invite = branch.invite.clone();
        let before = self.successes.len();
        let extra = if status.starts_with("302") {
            "Contact: <sip:x@192.0.2.38>, <sip:y@192.0.2.39>;q=0.1\n"
        } else {
            ""
        };
        let refused = self.refused_by_all;
        // Others may be begun by this very response, but not by a 6xx.
        let out = answer_with(&mut self.b, &invite, status, extra);
        self.refused_by_all = refused;
        self.see(out);
        if status == "200 OK" && first && lives == Some(true) {
            assert_eq!(self.successes.len(), before + 1, "a 2xx was lost");
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Respond { branch, status } => self.respond(branch, status),
            Step::Pass { ms } => {
                // In small steps, so that each thing is seen at its time.
                for _ in 0..ms / 100 {
                    let out = self.b.pass(100);
                    self.see(out);
                    self.check();
                }
                let out = self.b.pass(ms % 100);
                self.see(out);
            }
            Step::Cancel => {
                let held = self.b.endpoint.gauges().server_transactions > 0;
                if held {
                    self.cancelled |= self.successes.is_empty() && self.failures.is_empty();
                    let out = self.b.udp(CALLER, &cancel());
                    self.see(out);
                }
            }
            Step::InviteAgain => {
                // Once everything is forgotten it would be another call.
                if self.successes.is_empty() && self.failures.is_empty() {
                    let out = self.b.udp(CALLER, &invite());
                    self.see(out);
                }
            }
            Step::Undelivered { branch: at } => {
                let count = self.branches.len();
                let Some(branch) = self.branches.get_mut(at % count.max(1)) else {
                    return;
                };
                // An error after a response concerns a copy that no longer matters.
                if branch.answered.is_none() {
                    branch.unreachable |= !branch.rang;
                    let invite = branch.invite.clone();
                    let out = self.b.undelivered(&invite);
                    self.see(out);
                }
            }
            Step::Name { found } => {
                if !self.questions.is_empty() {
                    let query = self.questions.remove(0);
                    // Each edge has an address of its own: tags are made of addresses, and show which
                    // edge responds.
                    let name = Bench::resolve_kind(&query);
                    let edge = name.trim_start_matches("edge").chars().next().unwrap();
                    let values = vec![address(&format!("192.0.2.3{edge}"))];
                    let answer = match found {
                        true => Ok(Records { ttl_s: 60, values }),
                        false => Err(Unavailable),
                    };
                    let out = self.b.answer(&query, QueryResult::Resolved(answer));
                    self.see(out);
                }
            }
        }
    }

    /// Once the call has an end, whatever rings is being cancelled.
    fn check(&self) {
        if !self.ended() {
            return;
        }
        for branch in &self.branches {
            if branch.rang && branch.answered.is_none() && !branch.unreachable {
                assert!(branch.cancelled_us.is_some(), "rings on: {branch:?}");
            }
        }
    }

    fn finish(mut self) {
        self.step(Step::Pass { ms: 250_000 });
        self.step(Step::Pass { ms: 250_000 });
        self.b.assert_idle();
        let (failures, successes) = (self.failures.len(), self.successes.len());
        assert!(failures + successes > 0, "no end");
        assert!(failures <= 1);
        for branch in &self.branches {
            assert!(
                !branch.rang || branch.answered.is_some() || branch.cancelled_us.is_some(),
                "{branch:?}"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn every_forked_invite_ends_once_and_leaves_nothing(case in case()) {
        let mut watch = Watch::new(&case);
        for step in &case.steps {
            watch.step(*step);
            watch.check();
        }
        watch.finish();
    }
}

//! Several workers: state lives where its Call-ID belongs, and every worker sends there what it
//! gets of it.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use crate::common;

use std::sync::Arc;

use common::*;
use sip_core::config::{Config, StateMode};
use sip_core::endpoint::Handled;
use sip_core::id::WorkerId;
use sip_core::query::{QueryResult, Records};

struct Two {
    workers: [Bench; 2],
}

impl Two {
    fn new(state: StateMode) -> Self {
        let config = Config {
            workers: 2,
            state,
            ..config()
        };
        let shared = Arc::new(Shared::default());
        Self {
            workers: [0, 1].map(|n| Bench::worker(&config, n, shared.clone())),
        }
    }

    /// Gives a message to worker `at`; where it ended, and what left there.
    #[track_caller]
    fn give(&mut self, at: usize, from: &str, text: &str) -> (usize, Vec<Sent>) {
        let at = match self.workers[at].handle(udp_flow(from), text) {
            Handled::HandOver(WorkerId(owner)) => {
                let owner = usize::from(owner);
                assert_ne!(owner, at);
                assert!(self.workers[at].drain().is_empty());
                assert_eq!(self.workers[owner].handle(udp_flow(from), text), Handled::Here);
                owner
            }
            Handled::Here => at,
            Handled::Close => panic!("{text}"),
        };
        (at, self.workers[at].drain())
    }
}

#[test]
fn all_of_a_call_meets_at_its_owner() {
    let mut owners = [0; 2];
    for n in 0..40 {
        let mut two = Two::new(StateMode::Transaction);
        let id = |text: String| text.replace("c1@", &format!("c{n}@"));
        let invite = id(request("INVITE", "sip:bob@example.com", "a1", ""));
        let (owner, out) = two.give(n % 2, CALLER, &invite);
        owners[owner] += 1;
        assert_eq!(out.len(), 2);
        let sent = out[1].clone();
        // Whichever worker gets it: retransmission, CANCEL, responses, ACK.
        for at in [0, 1] {
            assert_eq!(two.give(at, CALLER, &invite), (owner, vec![out[0].clone()]));
        }
        for at in [0, 1] {
            let (where_, out) = two.give(at, CALLEE, &response(&sent, "180 Ringing", ""));
            assert_eq!((where_, out.len()), (owner, 1));
        }
        let cancel = id(request("CANCEL", "sip:bob@example.com", "a1", ""));
        let (where_, out) = two.give((owner + 1) % 2, CALLER, &cancel);
        assert_eq!((where_, out.len()), (owner, 2));
        assert!(
            two.give((owner + 1) % 2, CALLEE, &response(&out[1], "200 OK", ""))
                .1
                .is_empty()
        );
        let (where_, out) = two.give(
            (owner + 1) % 2,
            CALLEE,
            &response(&sent, "487 Request Terminated", ""),
        );
        assert_eq!((where_, out.len()), (owner, 2));
        let ack = id(request("ACK", "sip:bob@example.com", "a1", ""))
            .replace("bob@example.com>", "bob@example.com>;tag=t1");
        assert_eq!(two.give((owner + 1) % 2, CALLER, &ack), (owner, vec![]));
        two.workers[owner].pass(40_000);
        two.workers.iter().for_each(Bench::assert_idle);
        assert_eq!(two.workers[(owner + 1) % 2].counters().requests_invite, 0);
    }
    assert!(owners.iter().all(|n| *n > 5), "{owners:?}");
}

#[test]
fn what_needs_no_state_stays_where_it_came() {
    let mut two = Two::new(StateMode::Stateless);
    for n in 0..20 {
        let text = request("INVITE", "sip:bob@example.com", "a1", "").replace("c1@", &format!("c{n}@"));
        let (first, out) = two.give(0, CALLER, &text);
        let (second, same) = two.give(1, CALLER, &text);
        // The branch does not depend on the worker, nor do marks and tags.
        assert_eq!((first, second), (0, 1));
        assert_eq!(out, same);
        let (at, relayed) = two.give(1, CALLEE, &response(&out[0], "200 OK", ""));
        assert_eq!((at, relayed.len()), (1, 1));
        let refused = text.replace("sip:bob@", "mailto:bob@");
        assert_eq!(two.give(0, CALLER, &refused).1, two.give(1, CALLER, &refused).1);
    }
    // REGISTER needs none in any mode.
    let mut two = Two::new(StateMode::Transaction);
    for n in 0..20 {
        let text = request(
            "REGISTER",
            "sip:example.com",
            "a1",
            "Contact: <sip:bob@192.0.2.20>\n",
        )
        .replace("c1@", &format!("c{n}@"));
        assert_eq!(two.give(n % 2, CALLER, &text).0, n % 2);
    }
    // What is registered at one is called from both.
    let mut config = Config {
        workers: 2,
        state: StateMode::Stateless,
        ..config()
    };
    config.routes.clear();
    let shared = Arc::new(Shared::default());
    let mut workers = [0, 1].map(|n| Bench::worker(&config, n, shared.clone()));
    workers[0].udp(
        CALLEE,
        &request(
            "REGISTER",
            "sip:example.com",
            "a1",
            "Contact: <sip:bob@192.0.2.20>\n",
        ),
    );
    for b in &mut workers {
        assert_eq!(
            one(b.udp(CALLER, &request("INVITE", "sip:bob@example.com", "a1", ""))).address(),
            CALLEE
        );
    }
}

/// A late response without a transaction goes to the owner, which knows that, and no further (RFC
/// 6026 §6).
#[test]
fn what_outlived_its_transaction_is_dropped_by_the_owner() {
    let mut two = Two::new(StateMode::Transaction);
    let (owner, out) = two.give(0, CALLER, &request("INVITE", "sip:bob@example.com", "a1", ""));
    let ok = response(&out[1], "200 OK", "");
    two.workers[owner].pass(100_000);
    two.workers[owner].assert_idle();
    let (at, out) = two.give((owner + 1) % 2, CALLEE, &ok);
    assert_eq!((at, lines(&out)), (owner, vec![]));
    assert_eq!(two.workers[owner].counters().dropped_stray_response, 1);
}

/// What is relayed without state waits for name service without state as well: its response is
/// relayed by any worker that gets it.
#[test]
fn without_state_a_name_is_waited_for_without_state() {
    let config = Config {
        workers: 2,
        state: StateMode::Stateless,
        routes: vec![relay("sip:gw.example.net:5060")],
        ..config()
    };
    let shared = Arc::new(Shared::default());
    let mut workers = [0, 1].map(|n| Bench::worker(&config, n, shared.clone()));
    let invite = request("INVITE", "sip:bob@example.com", "a1", "");
    for at in [0, 1] {
        assert!(workers[at].udp(CALLER, &invite).is_empty());
        assert_eq!(workers[at].endpoint.gauges().server_transactions, 0);
        let query = workers[at].query();
        let records = Records {
            ttl_s: 60,
            values: vec![address("192.0.2.20")],
        };
        let out = workers[at].answer(&query, QueryResult::Resolved(Ok(records)));
        assert_eq!(
            lines(&out),
            [format!("{CALLEE} INVITE sip:bob@example.com SIP/2.0")]
        );
        let sent = out[0].clone();
        for other in &mut workers {
            let out = other.udp(CALLEE, &response(&sent, "486 Busy Here", ""));
            assert_eq!(lines(&out), [format!("{CALLER} SIP/2.0 486 Busy Here")]);
        }
    }
}

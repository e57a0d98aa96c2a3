//! A new configuration does not change requests that are under way.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use crate::common;
use crate::forks::{answer_with, call_with, group, grouped, location, register, who, with_q};

use common::*;
use sip_core::config::{Action, Config, Network, Relay, RelayTarget};
use sip_core::dispatcher::Distribution;

const CLAIM: &str = "P-Asserted-Identity: <sip:carol@example.com>\n";

/// The caller becomes a trusted source, and no rule is left.
fn trusting() -> Config {
    Config {
        routes: vec![],
        groups: vec![],
        trust: vec![Network {
            address: "192.0.2.10".parse().unwrap(),
            prefix_len: 32,
        }],
        ..config()
    }
}

/// The second address of a next hop gets the request as the first got it, whatever has been loaded in between: other
/// rules, and other trust.
#[test]
fn a_reload_between_two_addresses_changes_nothing_of_a_request() {
    let by = |uri: &str, prefix: &[u8]| {
        let mut config = config();
        config.routes[0].action = Action::Relay(Relay {
            prefix: prefix.into(),
            rewrite_host: true,
            ..Relay::to(RelayTarget::Uri(hop(uri)))
        });
        config
    };
    let before = by("sip:gw.example.net:5070", b"00");
    let elsewhere = by("sip:192.0.2.99", b"11");
    let mut rejecting = before.clone();
    rejecting.routes[0].action = Action::Reject {
        status: 603,
        reason: b"Not Today"[..].into(),
    };
    let mut asking = before.clone();
    asking.routes[0].auth = Some(true);
    for after in [&before, &elsewhere, &rejecting, &asking, &trusting()] {
        let mut b = Bench::new(&before);
        b.udp(CALLER, &request("INVITE", "sip:bob@example.com", "a1", CLAIM));
        let addresses = ["198.51.100.1", "198.51.100.2"].map(address).to_vec();
        let (_, sent) = b.serve(&[("gw.example.net A", addresses)]);
        let first = one(sent);
        b.endpoint.reconfigure(after);
        let second = one(b.undelivered(&first));
        assert_eq!(
            [&first, &second].map(|s| s.address()),
            ["198.51.100.1:5070", "198.51.100.2:5070"]
        );
        assert_eq!(
            second.first_line(),
            "INVITE sip:00bob@gw.example.net:5070 SIP/2.0"
        );
        let but_branch = |s: &Sent| unmarked(&s.text).replace(s.header("Via"), "");
        assert_eq!(but_branch(&second), but_branch(&first));
    }
}

/// So do the next member of a group, and a phone of lower q.
#[test]
fn a_reload_between_two_targets_changes_nothing_of_a_request() {
    for (before, first, second) in [
        (grouped(group(Distribution::RoundRobin, 2)), "g1", "g2"),
        (location(), "1", "2"),
    ] {
        let mut b = Bench::new(&before);
        register(&b, "bob@example.com", &[with_q(1, 1000), with_q(2, 500)]);
        let sent = call_with(&mut b, &request("INVITE", "sip:bob@example.com", "a1", CLAIM)).remove(0);
        assert_eq!(
            (who(&sent).as_str(), sent.header("P-Asserted-Identity")),
            (first, "")
        );
        b.endpoint.reconfigure(&trusting());
        let mut out = answer_with(&mut b, &sent, "503 Service Unavailable", "");
        out.retain(|s| s.text.starts_with("INVITE"));
        let next = one(out);
        assert_eq!(
            (who(&next).as_str(), next.header("P-Asserted-Identity")),
            (second, "")
        );
        assert_eq!(
            unmarked(next.header("Record-Route")),
            unmarked(sent.header("Record-Route"))
        );
    }
}

/// A request that is let in without credentials, and waits for name service, goes by the rules that hold when it goes on.
#[test]
fn a_request_that_waits_is_asked_if_the_new_rules_ask() {
    for (auth, answer) in [(None, "INVITE "), (Some(true), "SIP/2.0 407 ")] {
        let mut before = config();
        before.routes = vec![relay("sip:gw.example.net:5070")];
        let mut after = before.clone();
        after.routes[0].auth = auth;
        let mut b = Bench::new(&before);
        b.udp(CALLER, &request("INVITE", "sip:bob@example.com", "a1", ""));
        b.endpoint.reconfigure(&after);
        let (_, sent) = b.serve(&[("gw.example.net A", vec![address("198.51.100.1")])]);
        assert!(one(sent).first_line().starts_with(answer), "{auth:?}");
    }
}

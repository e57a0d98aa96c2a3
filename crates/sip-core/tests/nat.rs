//! Phones behind NATs that come by UDP: which are recognized, and how requests of their dialogs find them.

use crate::common;

use common::*;
use sip_core::config::{Config, Nat, Network, StateMode};
use sip_core::shared::SharedState;

/// Both phones have this address, each behind a NAT of its own.
const INSIDE: &str = "192.168.1.2:5060";
/// Where alice's requests come from, and bob's.
const ALICE: &str = "203.0.113.7:40001";
const BOB: &str = "203.0.113.8:40002";

fn located(state: StateMode) -> Config {
    let mut config = config();
    config.routes.clear();
    config.state = state;
    config
}

/// A request from the inside of a NAT, with a Contact there.
fn from_inside(method: &str, uri: &str, branch: &str, contact: &str) -> String {
    let text = request(method, uri, branch, &format!("Contact: <{contact}>\n"));
    text.replace(
        "SIP/2.0/UDP 192.0.2.10:5060;",
        &format!("SIP/2.0/UDP {INSIDE};rport;"),
    )
}

fn contact(user: &str) -> String {
    format!("sip:{user}@{INSIDE}")
}

/// The user registers from there.
fn register(b: &mut Bench, user: &str, source: &str, call_id: &str, cseq: u32) {
    let text = from_inside(
        "REGISTER",
        "sip:example.com",
        &format!("{call_id}{cseq}"),
        &contact(user),
    )
    .replace("sip:alice@example.com", &format!("sip:{user}@example.com"))
    .replace("sip:bob@example.com", &format!("sip:{user}@example.com"))
    .replace("c1@192.0.2.10", call_id)
    .replace("CSeq: 1 ", &format!("CSeq: {cseq} "));
    assert_eq!(b.udp(source, &text)[0].first_line(), "SIP/2.0 200 OK");
}

fn without_100(mut sent: Vec<Sent>) -> Vec<Sent> {
    sent.retain(|s| s.first_line() != "SIP/2.0 100 Trying");
    sent
}

/// A request in the dialog, by this route, to this remote target.
fn in_dialog(method: &str, uri: &str, from_caller: bool, route: &[impl AsRef<str>]) -> String {
    let (from, to) = match from_caller {
        true => ("<sip:alice@example.com>;tag=f1", "<sip:bob@example.com>;tag=t1"),
        false => ("<sip:bob@example.com>;tag=t1", "<sip:alice@example.com>;tag=f1"),
    };
    let route: String = route.iter().map(|r| format!("Route: {}\n", r.as_ref())).collect();
    request(method, uri, &format!("d{method}{from_caller}"), &route)
        .replace("From: <sip:alice@example.com>;tag=f1", &format!("From: {from}"))
        .replace("To: <sip:bob@example.com>", &format!("To: {to}"))
}

/// Alice calls bob, and bob accepts: the routes of both, each as its owner sends it.
fn call(b: &mut Bench, caller: &str, caller_contact: &str, callee: &str) -> (Vec<String>, Vec<String>) {
    let text = from_inside("INVITE", "sip:bob@example.com", "a1", caller_contact);
    let invite = one(without_100(b.udp(caller, &text)));
    assert_eq!(invite.address(), callee);
    let of_callee = invite.headers("Record-Route");
    let of_callee: Vec<String> = of_callee.iter().map(ToString::to_string).collect();
    (route_of_caller(b, udp_flow(callee), &invite), of_callee)
}

const METHODS: [&str; 7] = ["ACK", "INVITE", "UPDATE", "INFO", "NOTIFY", "MESSAGE", "BYE"];

/// Every method of the dialog from `from`, to the remote target `uri`, arrives at `to`.
#[track_caller]
fn reaches(b: &mut Bench, (from, from_caller): (&str, bool), uri: &str, route: &[String], to: &str) {
    for method in METHODS {
        let text = in_dialog(method, uri, from_caller, route);
        let sent = one(without_100(b.udp(from, &text)));
        assert_eq!(sent.address(), to, "{method} from {from}");
        assert!(sent.first_line().starts_with(&format!("{method} {uri} ")));
        assert!(sent.headers("Route").is_empty(), "{method}");
    }
}

#[test]
fn both_sides_behind_nats_reach_each_other_by_every_method() {
    for state in [StateMode::Stateless, StateMode::Transaction] {
        let mut b = Bench::new(&located(state));
        register(&mut b, "bob", BOB, "r1", 1);
        let (of_caller, of_callee) = call(&mut b, ALICE, &contact("alice"), BOB);
        reaches(&mut b, (ALICE, true), &contact("bob"), &of_caller, BOB);
        reaches(&mut b, (BOB, false), &contact("alice"), &of_callee, ALICE);
        // Nothing of it is kept in memory: a server that was restarted knows the same ways.
        let mut again = Bench::new(&located(state));
        reaches(&mut again, (ALICE, true), &contact("bob"), &of_caller, BOB);
        reaches(&mut again, (BOB, false), &contact("alice"), &of_callee, ALICE);
        b.no_query();
    }
}

#[test]
fn one_side_behind_a_nat_is_enough() {
    for state in [StateMode::Stateless, StateMode::Transaction] {
        // The callee.
        let mut b = Bench::new(&located(state));
        register(&mut b, "bob", BOB, "r1", 1);
        let (of_caller, of_callee) = call(&mut b, CALLER, "sip:alice@192.0.2.10", BOB);
        reaches(&mut b, (CALLER, true), &contact("bob"), &of_caller, BOB);
        reaches(&mut b, (BOB, false), "sip:alice@192.0.2.10", &of_callee, CALLER);
        // The caller.
        let mut config = config();
        config.state = state;
        let mut b = Bench::new(&config);
        let (of_caller, of_callee) = call(&mut b, ALICE, &contact("alice"), CALLEE);
        reaches(&mut b, (ALICE, true), "sip:bob@192.0.2.20", &of_caller, CALLEE);
        reaches(&mut b, (CALLEE, false), &contact("alice"), &of_callee, ALICE);
    }
}

/// Whether the Record-Route of a call has a token, for the caller's source, Contact and Via.
fn has_token(config: &Config, source: &str, contact: &str, rport: bool) -> bool {
    let mut b = Bench::new(config);
    let mut text = from_inside("INVITE", "sip:bob@example.com", "a1", contact);
    if !rport {
        text = text.replace(";rport;", ";");
    }
    let invite = one(without_100(b.udp(source, &text)));
    invite
        .headers("Record-Route")
        .iter()
        .any(|mark| mark.contains('@'))
}

#[test]
fn a_caller_behind_a_nat_is_known_by_its_contact() {
    for (source, contact, rport, auto) in [
        (ALICE, "sip:a@192.168.1.2:5060", true, true),
        // The private address says it all.
        (ALICE, "sip:a@192.168.1.2:5060", false, true),
        (ALICE, "sip:a@100.64.3.4", true, true),
        // The phone has asked a STUN server, and its NAT has another port for us.
        (ALICE, "sip:a@203.0.113.7:5060", true, true),
        // Perhaps it listens at that port only.
        (ALICE, "sip:a@203.0.113.7:5060", false, false),
        (ALICE, "sip:a@203.0.113.7:40001", true, false),
        // A peer that sends from one of its addresses, and is reached at another.
        (ALICE, "sip:a@198.51.100.9", true, false),
        (ALICE, "sip:a@sbc.example.net", true, false),
        // An office with several networks.
        ("10.1.2.3:5060", "sip:a@10.9.9.9", false, false),
        ("10.1.2.3:5060", "sip:a@10.9.9.9", true, true),
    ] {
        for (nat, expected) in [(Nat::Auto, auto), (Nat::Always, true), (Nat::Never, false)] {
            let mut config = config();
            config.listeners[0].nat = nat;
            let found = has_token(&config, source, contact, rport);
            assert_eq!(found, expected, "{nat:?}: {contact} from {source}, rport {rport}");
        }
    }
}

/// Peers of the configuration are where their Contact says.
#[test]
fn no_peer_of_the_configuration_is_behind_a_nat() {
    let network = Network {
        address: [203, 0, 113, 7].into(),
        prefix_len: 32,
    };
    let mut trusted = config();
    trusted.trust = vec![network];
    let mut by_rule = config();
    by_rule.routes[0].when.source = vec![network];
    let mut next_hop = config();
    next_hop.routes.push(relay("sip:203.0.113.7"));
    for config in [&mut trusted, &mut by_rule, &mut next_hop] {
        for nat in [Nat::Auto, Nat::Always] {
            config.listeners[0].nat = nat;
            assert!(!has_token(config, ALICE, &contact("alice"), true), "{nat:?}");
        }
    }
}

/// RFC 3261 §12.2: a new Contact is the new remote target. One behind the NAT is still behind it.
#[test]
fn a_phone_that_moves_to_a_public_address_is_reached_there() {
    let mut b = Bench::new(&located(StateMode::Transaction));
    register(&mut b, "bob", BOB, "r1", 1);
    let (of_caller, _) = call(&mut b, ALICE, &contact("alice"), BOB);
    for (uri, to) in [
        ("sip:bob@192.168.1.99:5090", BOB),
        ("sip:bob@203.0.113.8:5061", BOB),
        ("sip:bob@198.51.100.4:5070", "198.51.100.4:5070"),
    ] {
        let mut b = Bench::new(&located(StateMode::Transaction));
        reaches(&mut b, (ALICE, true), uri, &of_caller, to);
    }
}

/// The sources of the bindings of bob.
fn sources(b: &Bench) -> Vec<String> {
    let mut found = vec![];
    b.shared.read_bindings(b"bob@example.com", &mut |record| {
        let bindings = record.bindings().filter_map(Result::ok);
        found = bindings
            .map(|binding| binding.received.remote.to_string())
            .collect();
    });
    found.sort();
    found
}

#[test]
fn two_phones_with_one_private_contact_are_two() {
    let mut b = Bench::new(&located(StateMode::Transaction));
    register(&mut b, "bob", BOB, "r1", 1);
    register(&mut b, "bob", "203.0.113.9:5060", "r2", 1);
    assert_eq!(sources(&b), [BOB, "203.0.113.9:5060"]);
    let text = from_inside("INVITE", "sip:bob@example.com", "a1", &contact("alice"));
    let mut called: Vec<String> = without_100(b.udp(ALICE, &text))
        .iter()
        .map(Sent::address)
        .collect();
    called.sort();
    assert_eq!(called, [BOB, "203.0.113.9:5060"]);
    // Another port of the NAT; the phone started anew; the phone behind another NAT with its Call-ID.
    register(&mut b, "bob", "203.0.113.8:41111", "r1", 2);
    register(&mut b, "bob", "203.0.113.8:41112", "r3", 1);
    assert_eq!(sources(&b), ["203.0.113.8:41112", "203.0.113.9:5060"]);
    register(&mut b, "bob", "203.0.113.50:5060", "r2", 2);
    assert_eq!(sources(&b), ["203.0.113.50:5060", "203.0.113.8:41112"]);
}

#[test]
fn an_instance_decides_which_phone_it_is() {
    let mut b = Bench::new(&located(StateMode::Transaction));
    let register = |b: &mut Bench, source: &str, call_id: &str, instance: &str| {
        let text = from_inside("REGISTER", "sip:example.com", call_id, &contact("bob"))
            .replace("From: <sip:alice@", "From: <sip:bob@")
            .replace("c1@192.0.2.10", call_id)
            .replace(
                &format!("<{}>", contact("bob")),
                &format!("<{}>;+sip.instance=\"<urn:uuid:{instance}>\"", contact("bob")),
            );
        assert_eq!(b.udp(source, &text)[0].first_line(), "SIP/2.0 200 OK");
    };
    register(&mut b, BOB, "r1", "1");
    // It has moved to another network and was started anew.
    register(&mut b, "203.0.113.9:5060", "r2", "1");
    assert_eq!(sources(&b), ["203.0.113.9:5060"]);
    register(&mut b, BOB, "r3", "2");
    assert_eq!(sources(&b), [BOB, "203.0.113.9:5060"]);
}

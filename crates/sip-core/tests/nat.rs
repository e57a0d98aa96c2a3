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

/// A REGISTER of the user from behind a NAT.
fn register_text(user: &str, call_id: &str, cseq: u32) -> String {
    from_inside(
        "REGISTER",
        "sip:example.com",
        &format!("{call_id}{cseq}"),
        &contact(user),
    )
    .replace("sip:alice@example.com", &format!("sip:{user}@example.com"))
    .replace("sip:bob@example.com", &format!("sip:{user}@example.com"))
    .replace("c1@192.0.2.10", call_id)
    .replace("CSeq: 1 ", &format!("CSeq: {cseq} "))
}

/// The user registers from there. Returns the response.
#[track_caller]
fn register(b: &mut Bench, user: &str, source: &str, call_id: &str, cseq: u32) -> Sent {
    let ok = one(b.udp(source, &register_text(user, call_id, cseq)));
    assert_eq!(ok.first_line(), "SIP/2.0 200 OK");
    ok
}

/// The same, of a phone that goes.
#[track_caller]
fn unregister(b: &mut Bench, user: &str, source: &str, call_id: &str, cseq: u32) -> Sent {
    let text = register_text(user, call_id, cseq).replace("Content-Length", "Expires: 0\r\nContent-Length");
    let ok = one(b.udp(source, &text));
    assert_eq!(ok.first_line(), "SIP/2.0 200 OK");
    ok
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
        ("[2001:db8::7]:5060", "sip:a@[fd00::2]", true, true),
        ("[2001:db8::7]:5060", "sip:a@[2001:db8::7]", true, false),
        ("[2001:db8::7]:5062", "sip:a@[2001:db8::7]", true, true),
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

/// A private address may be that of a gateway here, too. The token leads to the phone all the same.
#[test]
fn a_private_contact_may_equal_an_address_of_the_configuration() {
    let mut config = located(StateMode::Transaction);
    let mut gateway = relay(&format!("sip:{INSIDE}"));
    gateway.when.domain = Some(b"gateway.example"[..].into());
    config.routes.push(gateway);
    let mut b = Bench::new(&config);
    register(&mut b, "bob", BOB, "r1", 1);
    let (of_caller, of_callee) = call(&mut b, ALICE, &contact("alice"), BOB);
    reaches(&mut b, (ALICE, true), &contact("bob"), &of_caller, BOB);
    reaches(&mut b, (BOB, false), &contact("alice"), &of_callee, ALICE);
}

/// With `always` the source is right, whatever the Contact says.
#[test]
fn always_means_the_source() {
    let mut config = located(StateMode::Transaction);
    config.listeners[0].nat = Nat::Always;
    let mut b = Bench::new(&config);
    register(&mut b, "bob", BOB, "r1", 1);
    let public = "sip:alice@198.51.100.4:5070";
    let (_, of_callee) = call(&mut b, ALICE, public, BOB);
    reaches(&mut b, (BOB, false), public, &of_callee, ALICE);
}

/// A phone behind another proxy is reached through that proxy.
#[test]
fn only_a_first_hop_gets_a_token() {
    let mut b = Bench::new(&config());
    let text = from_inside("INVITE", "sip:bob@example.com", "a1", &contact("alice"));
    let text = text.replacen(
        "Max-Forwards",
        "Via: SIP/2.0/UDP 10.0.0.9:5060;branch=z9hG4bKfirst\r\nMax-Forwards",
        1,
    );
    let invite = one(without_100(b.udp(ALICE, &text)));
    assert!(
        invite
            .headers("Record-Route")
            .iter()
            .all(|mark| !mark.contains('@')),
        "{}",
        invite.text
    );
}

/// A source that must be proved, and one that is this server, get no token: it may not be theirs.
#[test]
fn a_source_that_may_be_anothers_gets_no_token() {
    let mut denied = config();
    denied.destinations.deny = vec![Network {
        address: [203, 0, 113, 0].into(),
        prefix_len: 24,
    }];
    assert!(!has_token(&denied, ALICE, &contact("alice"), true));
    assert!(has_token(&config(), ALICE, &contact("alice"), true));
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

/// A phone that was started anew at another public address looks like a second one. It must not be kept out for that.
#[test]
fn the_earliest_of_equal_contacts_gives_way_at_the_limit() {
    let mut config = located(StateMode::Transaction);
    config.limits.contacts_per_aor = 2;
    let mut b = Bench::new(&config);
    for (n, source) in [
        "203.0.113.1:5060",
        "203.0.113.2:5060",
        "203.0.113.3:5060",
        "203.0.113.4:5060",
    ]
    .into_iter()
    .enumerate()
    {
        b.pass(1_000);
        register(&mut b, "bob", source, &format!("r{n}"), 1);
    }
    assert_eq!(sources(&b), ["203.0.113.3:5060", "203.0.113.4:5060"]);
    // A late copy of what gave way.
    let late = register_text("bob", "r1", 1).replace("z9hG4bKr11", "z9hG4bKlate");
    assert_eq!(
        one(b.udp("203.0.113.2:5060", &late)).first_line(),
        "SIP/2.0 500 CSeq Out Of Order"
    );
    // Contacts with other URIs give way to none.
    let other = register_text("bob", "r9", 1).replace(&contact("bob"), "sip:bob@192.168.1.3:5060");
    assert_eq!(
        one(b.udp("203.0.113.5:5060", &other)).first_line(),
        "SIP/2.0 403 Too Many Contacts"
    );
}

/// A public address in a Contact is that of one phone, wherever its REGISTER comes from.
#[test]
fn equal_public_contacts_are_one() {
    let mut b = Bench::new(&located(StateMode::Transaction));
    for (n, source) in ["203.0.113.1:5060", "198.51.100.1:5060"].into_iter().enumerate() {
        let text = register_text("bob", &format!("r{n}"), 1).replace(&contact("bob"), "sip:bob@198.51.100.1");
        assert_eq!(one(b.udp(source, &text)).first_line(), "SIP/2.0 200 OK");
    }
    assert_eq!(sources(&b), ["198.51.100.1:5060"]);
}

/// A phone reads the expiration of its own Contact, of which there is one.
#[test]
fn the_200_has_no_equal_contact_of_another_phone() {
    let mut b = Bench::new(&located(StateMode::Transaction));
    register(&mut b, "bob", BOB, "r1", 1);
    b.pass(100_000);
    let ok = register(&mut b, "bob", "203.0.113.9:5060", "r2", 1);
    assert_eq!(ok.headers("Contact"), ["<sip:bob@192.168.1.2:5060>;expires=3600"]);
    // The other one refreshes, and reads its own.
    b.pass(100_000);
    let ok = register(&mut b, "bob", BOB, "r1", 2);
    assert_eq!(ok.headers("Contact"), ["<sip:bob@192.168.1.2:5060>;expires=3600"]);
    assert_eq!(sources(&b), [BOB, "203.0.113.9:5060"]);
}

#[test]
fn a_phone_unregisters_itself_and_no_other() {
    let mut b = Bench::new(&located(StateMode::Transaction));
    register(&mut b, "bob", BOB, "r1", 1);
    register(&mut b, "bob", "203.0.113.9:5060", "r2", 1);
    // A third, which is none of both.
    unregister(&mut b, "bob", "203.0.113.77:5060", "r3", 1);
    assert_eq!(sources(&b), [BOB, "203.0.113.9:5060"]);
    unregister(&mut b, "bob", BOB, "r1", 2);
    assert_eq!(sources(&b), ["203.0.113.9:5060"]);
    // A copy of it, after its transaction, and another attempt.
    b.pass(33_000);
    unregister(&mut b, "bob", BOB, "r1", 2);
    unregister(&mut b, "bob", BOB, "r1", 3);
    assert_eq!(sources(&b), ["203.0.113.9:5060"]);
    // The only contact of its URI can be removed by any REGISTER of the user (RFC 3261 §10.3 step 7).
    unregister(&mut b, "bob", "203.0.113.77:5060", "r3", 2);
    assert_eq!(sources(&b), [""; 0]);
}

/// Call-ID of the one, source of the other: the Call-ID tells which phone it is.
#[test]
fn a_phone_between_two_is_that_of_its_call_id() {
    let mut b = Bench::new(&located(StateMode::Transaction));
    register(&mut b, "bob", BOB, "r1", 1);
    register(&mut b, "bob", "203.0.113.9:5060", "r2", 1);
    register(&mut b, "bob", "203.0.113.9:41000", "r1", 2);
    assert_eq!(sources(&b), ["203.0.113.9:41000", "203.0.113.9:5060"]);
    register(&mut b, "bob", "203.0.113.9:5060", "r2", 2);
    assert_eq!(sources(&b), ["203.0.113.9:41000", "203.0.113.9:5060"]);
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

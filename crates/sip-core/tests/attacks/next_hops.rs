//! Contacts and redirects that lead to the next hop of a rule, which no group has: past the rule, and
//! past the callers that it lets through.

use sip_core::config::{Config, Route, When};

use crate::common::{Bench, CALLER, Sent, one, relay, request, tcp_flow, udp_flow};
use crate::destinations::{
    CONTACT, GATEWAY, STRANGER, called, lost, moved, names, reached, register_request, registrar,
};
use crate::forks::{location, location_with, phone, registered};

/// With a rule that sends calls of one domain to `uri`.
fn with_next_hop(mut config: Config, uri: &str) -> Config {
    let rule = Route {
        when: When {
            domain: Some(b"gateway.example"[..].into()),
            ..When::default()
        },
        auth: Some(false),
        ..relay(uri)
    };
    config.routes.insert(0, rule);
    config
}

/// A next hop by its address and one by its name, and the contacts that lead there.
const BY_ADDRESS: (&str, &[&str]) = (
    "sip:198.51.100.1:5080;transport=tcp",
    &[
        "sip:+1900@198.51.100.1:5080;transport=tcp",
        "sip:+1900@198.51.100.1",
        "sip:+1900@192.0.2.70;maddr=198.51.100.1",
        "sip:+1900@gateway.example:5060",
    ],
);
const BY_NAME: (&str, &[&str]) = (
    "sip:gateway.example:5060",
    &[
        "sip:+1900@gateway.example:5060",
        "sip:+1900@GATEWAY.example.:5070",
        "sip:+1900@192.0.2.70;maddr=gateway.example",
        "sip:+1900@198.51.100.1",
        "sip:+1900@192.0.2.70;maddr=198.51.100.1",
    ],
);

/// A call by the rule teaches where its next hop is.
fn call_by_rule(bench: &mut Bench) {
    let text = request("INVITE", "sip:1@gateway.example", "rule", "").replace("c1@", "by-rule@");
    let mut sent = bench.udp(CALLER, &text);
    sent.extend(bench.serve(&names()).1);
    let to = reached(&sent);
    assert!(to.len() == 1 && to[0].starts_with(GATEWAY), "{to:?}");
}

fn denied(sent: &[Sent], contact: &str) {
    assert!(reached(sent).is_empty(), "{contact}: {:?}", reached(sent));
    let last = sent.last().map(Sent::first_line);
    assert_eq!(last, Some("SIP/2.0 480 Contact Denied"), "{contact}");
}

#[test]
fn a_contact_leads_to_no_next_hop_of_a_rule() {
    for (next_hop, contacts) in [BY_ADDRESS, BY_NAME] {
        for contact in contacts {
            let binding = lost(1, contact, STRANGER);
            let config = with_next_hop(location(), next_hop);
            let mut bench = registered(&config, std::slice::from_ref(&binding));
            call_by_rule(&mut bench);
            denied(&called(&mut bench), contact);
            assert_eq!(bench.counters().destinations_denied, 1, "{contact}");
            // Without the rule, or where next hops are no denied destinations, it does.
            let mut open = config.clone();
            open.destinations.groups = false;
            for config in [location(), open] {
                let mut bench = registered(&config, std::slice::from_ref(&binding));
                let to = reached(&called(&mut bench));
                assert!(to.len() == 1 && to[0].starts_with(GATEWAY), "{contact}: {to:?}");
            }
        }
    }
}

/// Of the addresses of another name, the others are left.
#[test]
fn a_name_leads_past_the_next_hop_of_a_rule() {
    for (next_hop, _) in [BY_ADDRESS, BY_NAME] {
        let config = with_next_hop(location(), next_hop);
        let mut bench = registered(&config, &[lost(1, "sip:x@both.example:5060", STRANGER)]);
        call_by_rule(&mut bench);
        assert_eq!(reached(&called(&mut bench)), ["192.0.2.77:5060"], "{next_hop}");
        assert_eq!(bench.counters().destinations_denied, 1, "{next_hop}");
    }
}

#[test]
fn a_redirect_leads_to_no_next_hop_of_a_rule() {
    for (next_hop, contacts) in [BY_ADDRESS, BY_NAME] {
        for contact in contacts {
            let config = with_next_hop(location_with(|relay| relay.recurse = true), next_hop);
            let mut bench = registered(&config, &[phone(1)]);
            call_by_rule(&mut bench);
            denied(&moved(&mut bench, &format!("Contact: <{contact}>\n")), contact);
        }
    }
}

/// A PBX to which a rule leads may have users that register. Another address is another source.
#[test]
fn the_next_hop_of_a_rule_is_reached_where_it_registers_from() {
    for (next_hop, contacts) in [BY_ADDRESS, BY_NAME] {
        for contact in contacts {
            for (from, reaches) in [
                ("198.51.100.1:40000", true),
                ("198.51.100.2:40000", false),
                ("127.0.0.1:40000", false),
            ] {
                let config = with_next_hop(location(), next_hop);
                let mut bench = registered(&config, &[lost(1, contact, from)]);
                call_by_rule(&mut bench);
                let sent = called(&mut bench);
                if reaches {
                    let to = reached(&sent);
                    assert!(to.len() == 1 && to[0].starts_with(GATEWAY), "{contact}: {to:?}");
                } else {
                    denied(&sent, contact);
                }
            }
        }
    }
}

/// Registrations from the address of a next hop need a source that is certain, as the exception is made for it.
#[test]
fn a_forged_source_registers_no_next_hop_of_a_rule() {
    // `registrar` has a rule that leads to 192.0.2.20.
    for (from, status) in [
        (udp_flow("192.0.2.20:5060"), "SIP/2.0 403 Source Not Proved"),
        (udp_flow("192.0.2.20:9"), "SIP/2.0 403 Source Not Proved"),
        (tcp_flow("192.0.2.20:5060", 3), "SIP/2.0 200 OK"),
        (udp_flow("192.0.2.21:5060"), "SIP/2.0 200 OK"),
    ] {
        let mut bench = registrar(false);
        let sent = one(bench.receive(from, &register_request("a", "c1@", CONTACT)));
        assert_eq!(sent.first_line(), status, "{from:?}");
    }
}

//! This server as an edge before another registrar (RFC 3327 §5.2, RFC 3608, RFC 5626 §5.1): REGISTER with our Path, what
//! is kept of its 200, and the Service-Route.
#![allow(
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "helpers of tests"
)]

use crate::behind;
use crate::common;

use std::sync::Arc;

use behind::*;
use common::*;
use sip_core::config::{Action, Config, Durability, Route, StateMode, When};
use sip_core::endpoint::Handled;
use sip_core::event::Event;
use sip_core::id::WorkerId;
use sip_core::query::QueryKind;
use sip_core::transport::Transport;

#[test]
fn a_register_goes_to_the_registrar_with_our_path() {
    let mut b = Bench::new(&edge());
    let sent = relayed(&mut b, udp_flow(PHONE), &plain(1));
    let path = sent.headers("Path");
    assert!(path.len() == 1 && path[0].starts_with("<sip:path."), "{path:?}");
    assert!(path[0].ends_with("@192.0.2.1:5060;lr>"), "{path:?}");
    assert_eq!(sent.headers("Via").len(), 2);
    assert!(sent.headers("Record-Route").is_empty());
    assert_eq!(sent.header("Max-Forwards"), "69");
    // The registrar asks for credentials, and the phone gives them.
    let challenge = "WWW-Authenticate: Digest realm=\"far.example\", nonce=\"n\"\n";
    let asked = one(b.udp(REGISTRAR, &response(&sent, "401 Unauthorized", challenge)));
    assert_eq!(
        (asked.address().as_str(), asked.first_line()),
        (PHONE, "SIP/2.0 401 Unauthorized")
    );
    assert_eq!(asked.headers("WWW-Authenticate").len(), 1);
    assert!(bindings(&b).is_empty());
    let credentials = "Authorization: Digest username=\"bob\", response=\"x\"\n";
    let text = register(2, &format!("<{CONTACT}>"), credentials);
    let extra = format!(
        "Contact: <{CONTACT}>;expires=600\nService-Route: <sip:198.51.100.5;lr>\nPath: {}\n",
        path[0]
    );
    let (again, ok) = accepted(&mut b, &text, &extra);
    assert_eq!(again.headers("Authorization").len(), 1);
    assert_eq!(ok.headers("Service-Route"), ["<sip:198.51.100.5;lr>"]);
    assert_eq!(ok.headers("Path"), path);
    assert_eq!(b.counters().registrations_relayed, 2);
    b.no_query();
}

/// RFC 5626 §5.1: `ob` for a phone that registers a flow.
#[test]
fn a_phone_that_registers_a_flow_gets_ob() {
    for (contact, flow, expected) in [
        (
            format!("<{CONTACT}>;reg-id=1;+sip.instance=\"<urn:uuid:1>\""),
            udp_flow(PHONE),
            true,
        ),
        (format!("<{CONTACT}>;reg-id=1"), udp_flow(PHONE), false),
        (
            format!("<{CONTACT}>;+sip.instance=\"<urn:uuid:1>\""),
            udp_flow(PHONE),
            false,
        ),
        (format!("<{CONTACT};ob>"), udp_flow(PHONE), false),
        (
            "<sip:bob@x.invalid;transport=ws>".to_owned(),
            over(Transport::Wss, PHONE, 4),
            false,
        ),
    ] {
        let mut b = Bench::new(&edge());
        let sent = relayed(&mut b, flow, &register(1, &contact, ""));
        assert_eq!(sent.header("Path").ends_with(";lr;ob>"), expected, "{contact}");
    }
}

/// A phone behind another proxy is reached by that proxy.
#[test]
fn only_the_first_hop_gets_a_path() {
    let second_via = "Via: SIP/2.0/UDP 10.0.0.9;branch=z9hG4bKp\n";
    let own = "Path: <sip:203.0.113.7:40001;lr>\n";
    let foreign = "Path: <sip:203.0.113.50;lr>\n";
    let both = format!("{second_via}{own}");
    for (extra, expected) in [
        (second_via, Some(vec![])),
        (own, Some(vec!["<sip:203.0.113.7:40001;lr>"])),
        (&both, Some(vec!["<sip:203.0.113.7:40001;lr>"])),
        // RFC 3327 §6: no phone may lead the registrar's requests elsewhere.
        (foreign, None),
    ] {
        let mut b = Bench::new(&edge());
        let text = register(1, &format!("<{CONTACT}>"), extra);
        let sent = one(b.udp(PHONE, &text));
        match expected {
            Some(paths) => assert_eq!(
                (sent.address().as_str(), sent.headers("Path")),
                (REGISTRAR, paths)
            ),
            None => assert_eq!(sent.first_line(), "SIP/2.0 403 Path Not Trusted"),
        }
    }
}

#[test]
fn only_rules_that_name_register_take_one() {
    let mut config = edge();
    config.routes.remove(0);
    config.routes.push(relay("sip:198.51.100.6"));
    let mut b = Bench::new(&config);
    let sent = one(b.udp(PHONE, &plain(1)));
    assert_eq!(sent.first_line(), "SIP/2.0 403 Forbidden");
    // Nor does a rule for REGISTER take anything else.
    config.routes = vec![for_methods(&["REGISTER"], "far.example", "sip:198.51.100.5")];
    let mut b = Bench::new(&config);
    let sent = one(b.udp(PHONE, &request("MESSAGE", "sip:bob@far.example", "m1", "")));
    assert_eq!(sent.first_line(), "SIP/2.0 403 Forbidden");
    config.routes[0].action = Action::Reject {
        status: 480,
        reason: b"Moved"[..].into(),
    };
    let mut b = Bench::new(&config);
    assert_eq!(one(b.udp(PHONE, &plain(1))).first_line(), "SIP/2.0 480 Moved");
}

/// Nothing that concerns a user of ours goes on.
#[test]
fn users_of_our_own_domain_register_here() {
    let mut config = edge();
    config.routes[0].when.domain = None;
    for (uri, to, expected) in [
        ("sip:example.com", "bob@example.com", "SIP/2.0 200 OK"),
        ("sip:far.example", "bob@example.com", "SIP/2.0 403 Forbidden"),
        ("sip:example.com:5099", "bob@example.com", "SIP/2.0 403 Forbidden"),
        ("sip:example.com:5099", "bob@far.example", "SIP/2.0 403 Forbidden"),
        ("sip:example.com", "bob@far.example", "SIP/2.0 404 Not Found"),
    ] {
        let mut b = Bench::new(&config);
        let text = plain(1)
            .replacen("sip:far.example", uri, 1)
            .replace("To: <sip:bob@FAR.example>", &format!("To: <sip:{to}>"));
        let sent = one(b.udp(PHONE, &text));
        assert_eq!(
            (sent.address().as_str(), sent.first_line()),
            (PHONE, expected),
            "{uri} {to}"
        );
    }
}

#[test]
fn the_edge_keeps_what_the_200_grants() {
    let mut b = Bench::new(&edge());
    let extra = "User-Agent: Phone 1\nExpires: 3600\n";
    let text = register(1, &format!("<{CONTACT}>;+sip.instance=\"<urn:uuid:1>\""), extra);
    let granted = format!("Contact: <sip:x@192.0.2.9>;expires=9, <{CONTACT}>;expires=300;q=0.5\n");
    accepted(&mut b, &text, &granted);
    assert_eq!(held(&b), [(CONTACT.to_owned(), 300)]);
    let kept = &bindings(&b)[0];
    assert_eq!(kept.received.remote.to_string(), PHONE);
    assert_eq!((&*kept.call_id, kept.cseq), (&b"r1@192.168.1.2"[..], 1));
    assert_eq!(
        (&*kept.instance, &*kept.user_agent),
        (&b"<urn:uuid:1>"[..], &b"Phone 1"[..])
    );
    let events: Vec<Event> = std::iter::from_fn(|| b.endpoint.poll_event()).collect();
    assert_eq!(
        events,
        [Event::Registered {
            aor: b"bob@far.example"[..].into(),
            source: PHONE.parse().unwrap(),
            contacts: 1
        }]
    );
    // No call goes by it: the domain is the registrar's.
    let sent = b.udp(CALLER, &request("INVITE", "sip:bob@far.example", "a1", ""));
    assert!(sent.iter().all(|s| s.address() != PHONE), "{:?}", lines(&sent));
    // A refresh, with the Expires of the 200 for all.
    b.pass(100_000);
    accepted(
        &mut b,
        &plain(2),
        &format!("Expires: 120\nContact: <{CONTACT}>\n"),
    );
    assert_eq!(held(&b), [(CONTACT.to_owned(), 120)]);
    // The registrar has removed it by itself.
    accepted(&mut b, &plain(3), "");
    assert!(held(&b).is_empty());
    accepted(&mut b, &plain(4), &format!("Contact: <{CONTACT}>;expires=300\n"));
    assert_eq!(held(&b).len(), 1);
    // A refusal changes nothing.
    let at_registrar = relayed(&mut b, udp_flow(PHONE), &plain(5));
    b.udp(REGISTRAR, &response(&at_registrar, "423 Interval Too Brief", ""));
    assert_eq!(held(&b).len(), 1);
    // The phone goes.
    let text = register(6, &format!("<{CONTACT}>;expires=0"), "");
    accepted(&mut b, &text, "");
    assert!(held(&b).is_empty());
    accepted(&mut b, &plain(7), &format!("Contact: <{CONTACT}>;expires=300\n"));
    let text = register(8, "*", "Expires: 0\n");
    accepted(&mut b, &text, "");
    assert!(held(&b).is_empty());
    let counters = b.counters();
    assert_eq!((counters.relayed_kept, counters.relayed_not_kept), (7, 0));
    b.no_query();
}

/// The 200 goes to the phone at once.
#[test]
fn what_is_kept_goes_to_the_store_without_a_wait() {
    for (durability, is_stored) in [
        (Durability::Commit, true),
        (Durability::Async, true),
        (Durability::Memory, false),
    ] {
        let mut config = edge();
        config.registrar.durability = durability;
        let mut b = Bench::new(&config);
        accepted(&mut b, &plain(1), &format!("Contact: <{CONTACT}>;expires=300\n"));
        assert_eq!(held(&b).len(), 1);
        let query = b.endpoint.poll_query();
        assert_eq!(query.is_some(), is_stored, "{durability:?}");
        if let Some(query) = query {
            assert_eq!(query.id, None);
            let QueryKind::SaveBindings { aor, record, .. } = query.kind else {
                panic!("{query:?}");
            };
            assert_eq!(&*aor, b"bob@far.example");
            assert!(!record.is_empty());
        }
        b.no_query();
    }
}

/// Beyond the limits the REGISTER is relayed, and nothing is kept.
#[test]
fn what_is_kept_has_the_limits_of_registrations() {
    let mut config = edge();
    config.limits.contacts_per_aor = 1;
    let mut b = Bench::new(&config);
    accepted(&mut b, &plain(1), &format!("Contact: <{CONTACT}>;expires=300\n"));
    let other = "sip:bob@192.168.1.3:5060";
    let granted = format!("Contact: <{CONTACT}>;expires=300, <{other}>;expires=300\n");
    accepted(&mut b, &register(2, &format!("<{other}>"), ""), &granted);
    assert_eq!(held(&b), [(CONTACT.to_owned(), 300)]);
    assert_eq!((b.counters().relayed_kept, b.counters().relayed_not_kept), (1, 1));
    let mut config = edge();
    config.limits.location_bytes = 0;
    let mut b = Bench::new(&config);
    accepted(&mut b, &plain(1), &format!("Contact: <{CONTACT}>;expires=300\n"));
    assert!(held(&b).is_empty());
    assert_eq!(
        (b.counters().relayed_not_kept, b.counters().limited_location),
        (1, 1)
    );
}

/// The Path has the connection: nothing of the connection is kept here, which may have closed before the 200 came.
#[test]
fn a_kept_binding_has_no_connection() {
    let phone = tcp_flow(PHONE, 4);
    let mut b = Bench::new(&edge());
    let text = plain(1).replace("SIP/2.0/UDP", "SIP/2.0/TCP");
    let at_registrar = relayed(&mut b, phone, &text);
    let granted = format!("Contact: <{CONTACT}>;expires=300\n");
    b.udp(REGISTRAR, &response(&at_registrar, "200 OK", &granted));
    let received = bindings(&b)[0].received;
    assert_eq!(
        (received.remote, received.transport, received.conn),
        (phone.remote, phone.transport, None)
    );
    assert_eq!(b.endpoint.gauges().flows_registered, 0);
    // No transaction outlives the response over TCP.
    b.pass(40_000);
    b.assert_idle();
}

/// An INVITE of bob's phone with these Routes.
fn invite_of_phone(branch: &str, uri: &str, route: &str) -> String {
    crlf(&format!(
        "INVITE {uri} SIP/2.0\nVia: SIP/2.0/UDP 192.168.1.2:5060;branch=z9hG4bK{branch};rport\nMax-Forwards: 70\n\
         Route: {route}\nFrom: <sip:bob@far.example>;tag=f1\nTo: <{uri}>\nCall-ID: {branch}@192.168.1.2\n\
         CSeq: 1 INVITE\nContact: <{CONTACT}>\nContent-Length: 0\n\n"
    ))
}

/// The edge with a rule against premium numbers.
fn edge_without_premium() -> Config {
    let mut config = edge();
    let reject = Action::Reject {
        status: 403,
        reason: b"Premium"[..].into(),
    };
    config.routes.insert(
        1,
        Route {
            when: When {
                uri: Some(regex::bytes::Regex::new("^sip:0900").unwrap()),
                ..When::default()
            },
            action: reject,
            ..relay("sip:198.51.100.5")
        },
    );
    config
}

/// RFC 3608 §6.1: the phone's requests go by the Service-Route of the registrar. The rules decide all the same.
#[test]
fn a_service_route_leads_to_the_registrar_by_the_rules() {
    let config = edge_without_premium();
    let service = "<sip:198.51.100.5;lr>";
    let alice = "sip:alice@far.example";
    for (number, (uri, route, expected)) in [
        (alice, "<sip:192.0.2.1:5060;lr>", Ok(vec![])),
        (alice, service, Ok(vec![service])),
        (
            alice,
            "<sip:192.0.2.1:5060;lr>, <sip:198.51.100.5;lr>",
            Ok(vec![service]),
        ),
        // Another port of it is its own business; the request goes where the rule says.
        (
            alice,
            "<sip:orig@198.51.100.5:9;lr>",
            Ok(vec!["<sip:orig@198.51.100.5:9;lr>"]),
        ),
        (alice, "<sip:198.51.100.6;lr>", Err("SIP/2.0 403 Forbidden")),
        (
            alice,
            "<sip:198.51.100.5;maddr=198.51.100.6;lr>",
            Err("SIP/2.0 403 Forbidden"),
        ),
        (alice, "<sip:198.51.100.5>", Err("SIP/2.0 403 Forbidden")),
        (
            alice,
            "<sip:198.51.100.5;lr>, <sip:198.51.100.6;lr>",
            Err("SIP/2.0 403 Forbidden"),
        ),
        ("sip:0900123@far.example", service, Err("SIP/2.0 403 Premium")),
        (
            "sip:alice@elsewhere.example",
            service,
            Err("SIP/2.0 403 Forbidden"),
        ),
        ("sip:bob@example.com", service, Err("SIP/2.0 403 Forbidden")),
    ]
    .into_iter()
    .enumerate()
    {
        let mut b = Bench::new(&config);
        let sent = one(without_100(
            b.udp(PHONE, &invite_of_phone(&format!("v{number}"), uri, route)),
        ));
        match expected {
            Ok(routes) => assert_eq!(
                (sent.address().as_str(), sent.headers("Route")),
                (REGISTRAR, routes),
                "{route}"
            ),
            Err(refused) => assert_eq!(
                (sent.address().as_str(), sent.first_line()),
                (PHONE, refused),
                "{uri} {route}"
            ),
        }
    }
}

/// The registrar would take it for a request of a dialog, and follow its Request-URI.
#[test]
fn a_service_route_is_for_new_requests() {
    let mut b = Bench::new(&edge());
    let text = invite_of_phone("d1", "sip:alice@far.example", "<sip:198.51.100.5;lr>");
    let text = text.replace(
        "To: <sip:alice@far.example>",
        "To: <sip:alice@far.example>;tag=t1",
    );
    let sent = one(without_100(b.udp(PHONE, &text)));
    assert_eq!(
        (sent.address().as_str(), sent.first_line()),
        (PHONE, "SIP/2.0 403 Forbidden")
    );
}

/// A REGISTER by UDP from the address of a gateway would have calls sent there past the rules.
#[test]
fn a_source_that_may_be_spoofed_is_no_denied_destination() {
    let mut config = edge();
    config.routes.push(relay("sip:192.0.2.77"));
    let mut b = Bench::new(&config);
    let refused = one(b.udp("192.0.2.77:5060", &plain(1)));
    assert_eq!(refused.first_line(), "SIP/2.0 403 Source Not Proved");
    assert_eq!(b.counters().contacts_unproved, 1);
}

/// The 200 finds the transaction, whatever worker the REGISTER and the 200 come to.
#[test]
fn a_relayed_register_is_at_home_on_the_worker_of_its_call_id() {
    let mut config = edge();
    config.workers = 2;
    config.state = StateMode::Stateless;
    let shared = Arc::new(Shared::default());
    let mut workers = [0, 1].map(|n| Bench::worker(&config, n, shared.clone()));
    let give = |workers: &mut [Bench; 2], at: usize, from: &str, text: &str| match workers[at]
        .handle(udp_flow(from), text)
    {
        Handled::HandOver(WorkerId(owner)) => {
            let owner = usize::from(owner);
            assert_eq!(workers[owner].handle(udp_flow(from), text), Handled::Here);
            one(workers[owner].drain())
        }
        _ => one(workers[at].drain()),
    };
    for n in 0..20u32 {
        let at = n as usize % 2;
        let text = plain(1)
            .replace("r1@", &format!("r{n}@"))
            .replace("bKr1;", &format!("bKr{n}w;"));
        let sent = give(&mut workers, at, PHONE, &text);
        assert_eq!(sent.address(), REGISTRAR);
        let ok = response(&sent, "200 OK", &format!("Contact: <{CONTACT}>;expires=300\n"));
        let back = give(&mut workers, 1 - at, REGISTRAR, &ok);
        assert_eq!(
            (back.address().as_str(), back.first_line()),
            (PHONE, "SIP/2.0 200 OK")
        );
    }
    let kept = workers.iter().map(|b| b.counters().relayed_kept);
    assert_eq!(kept.sum::<u64>(), 20);
}

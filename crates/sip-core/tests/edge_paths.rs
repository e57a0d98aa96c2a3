//! Requests that a registrar sends back along our Path (RFC 3327 §5.3, RFC 5626 §5.3): from whom they are accepted, and
//! where they lead.
#![allow(
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "helpers of tests"
)]

use crate::behind;
use crate::common;

use behind::*;
use common::*;
use sip_core::config::{Network, StateMode};
use sip_core::event::{Event, RefusalCause};

/// A request in the dialog of alice, behind the registrar, and bob; by this route.
fn in_dialog(method: &str, from_caller: bool, route: &[String]) -> String {
    let route: String = route.iter().map(|r| format!("Route: {r}\n")).collect();
    let (uri, via, from, to) = match from_caller {
        true => (
            CONTACT,
            REGISTRAR,
            "alice@far.example>;tag=f1",
            "bob@far.example>;tag=t1",
        ),
        false => (
            "sip:alice@192.0.2.10",
            "192.168.1.2:5060",
            "bob@far.example>;tag=t1",
            "alice@far.example>;tag=f1",
        ),
    };
    crlf(&format!(
        "{method} {uri} SIP/2.0\nVia: SIP/2.0/UDP {via};branch=z9hG4bKd{method}{from_caller};rport\nMax-Forwards: 70\n\
         From: <sip:{from}\nTo: <sip:{to}\nCall-ID: c1@192.0.2.10\nCSeq: 2 {method}\n{route}Content-Length: 0\n\n"
    ))
}

#[test]
fn a_call_comes_back_along_the_path_and_its_dialog_finds_the_phone() {
    for state in [StateMode::Stateless, StateMode::Transaction] {
        let mut config = edge();
        config.state = state;
        let path = path(&mut Bench::new(&config));
        // Nothing of it is kept in memory: a server that was restarted knows the same way.
        let mut b = Bench::new(&config);
        let text = from_registrar("INVITE", "i1", "", &path);
        let invite = one(without_100(b.udp(REGISTRAR, &text)));
        assert_eq!(
            (invite.address().as_str(), invite.headers("Route")),
            (PHONE, vec![])
        );
        assert_eq!(invite.first_line(), format!("INVITE {CONTACT} SIP/2.0"));
        let marks: Vec<String> = invite
            .headers("Record-Route")
            .iter()
            .map(ToString::to_string)
            .collect();
        assert!(
            marks.len() == 2 && marks[0].contains('@') && !marks[0].contains("path."),
            "{marks:?}"
        );
        let route = route_of_caller(&mut b, udp_flow(PHONE), &invite);
        assert_eq!(route[0], "<sip:198.51.100.5;lr>");
        for method in ["ACK", "INFO", "BYE"] {
            let text = in_dialog(method, true, &route[1..]);
            let sent = one(without_100(b.udp(REGISTRAR, &text)));
            assert_eq!(
                (sent.address().as_str(), sent.headers("Route")),
                (PHONE, vec![]),
                "{method}"
            );
        }
        for method in ["INFO", "INVITE", "BYE"] {
            let text = in_dialog(method, false, &marks);
            let sent = one(without_100(b.udp(PHONE, &text)));
            assert_eq!(
                (sent.address().as_str(), sent.headers("Route")),
                (REGISTRAR, vec!["<sip:198.51.100.5;lr>"]),
                "{method}"
            );
        }
        b.no_query();
    }
}

/// RFC 5626 §5.3: also requests with a To tag, and of a method of any kind.
#[test]
fn all_methods_come_back_along_the_path() {
    for (method, to_tag) in [
        ("MESSAGE", ""),
        ("OPTIONS", ""),
        ("NOTIFY", ";tag=t1"),
        ("INVITE", ";tag=t1"),
        ("X", ""),
    ] {
        let mut b = Bench::new(&edge());
        let path = path(&mut b);
        for route in [path.clone(), format!("<sip:192.0.2.1:5060;lr>, {path}")] {
            let mut again = Bench::new(&edge());
            let text = from_registrar(method, "m1", to_tag, &route);
            let sent = one(without_100(again.udp(REGISTRAR, &text)));
            assert_eq!(
                (sent.address().as_str(), sent.headers("Route")),
                (PHONE, vec![]),
                "{method}"
            );
        }
    }
}

/// The source's response; nothing goes anywhere else.
#[track_caller]
fn refusal(b: &mut Bench, source: &str, text: &str) -> String {
    let sent = one(b.udp(source, text));
    assert_eq!(sent.address(), source, "{}", sent.text);
    sent.first_line().to_owned()
}

fn causes(b: &mut Bench) -> Vec<Option<RefusalCause>> {
    std::iter::from_fn(|| b.endpoint.poll_event())
        .filter_map(|event| match event {
            Event::Refused { cause, .. } => Some(cause),
            _ => None,
        })
        .collect()
}

#[test]
fn a_path_token_is_good_from_its_registrar_only() {
    let mut b = Bench::new(&edge());
    let path = path(&mut b);
    let text = |branch: &str| from_registrar("INVITE", branch, "", &path);
    // A stranger, and the phone itself, which may see the token in a 200.
    for (number, source) in [STRANGER, PHONE, "203.0.113.7:5060"].into_iter().enumerate() {
        let refused = refusal(&mut b, source, &text(&format!("s{number}")));
        assert_eq!(refused, "SIP/2.0 403 Forbidden", "{source}");
    }
    assert_eq!(b.counters().path_tokens_foreign, 3);
    assert_eq!(causes(&mut b), [Some(RefusalCause::ForeignPath); 3]);
    // Another port of the registrar is the registrar.
    let sent = one(without_100(b.udp("198.51.100.5:5099", &text("p1"))));
    assert_eq!(sent.address(), PHONE);
    // A trusted peer.
    let mut config = edge();
    config.trust = vec![Network {
        address: [203, 0, 113, 99].into(),
        prefix_len: 32,
    }];
    let mut b = Bench::new(&config);
    assert_eq!(one(without_100(b.udp(STRANGER, &text("t1")))).address(), PHONE);
    // No rule relays REGISTER there any more.
    let mut config = edge();
    config.routes.remove(0);
    let mut b = Bench::new(&config);
    assert_eq!(refusal(&mut b, REGISTRAR, &text("r1")), "SIP/2.0 403 Forbidden");
}

/// Each of two registrars reaches the phones that register there.
#[test]
fn no_registrar_uses_the_path_of_another() {
    let mut config = edge();
    config
        .routes
        .push(for_methods(&["REGISTER"], "other.example", "sip:198.51.100.6"));
    let mut b = Bench::new(&config);
    let path = path(&mut b);
    let text = from_registrar("MESSAGE", "m1", "", &path);
    assert_eq!(
        refusal(&mut b, "198.51.100.6:5060", &text),
        "SIP/2.0 403 Forbidden"
    );
    assert_eq!(one(b.udp(REGISTRAR, &text.replace("m1", "m2"))).address(), PHONE);
}

#[test]
fn a_forged_path_token_leads_nowhere() {
    let mut b = Bench::new(&edge());
    let path = path(&mut b);
    let (from, to) = (path.find("path.").unwrap() + 5, path.find('@').unwrap());
    for at in from..to {
        for with in ["A", "B", "-", ""] {
            if path.get(at..=at) == Some(with) {
                continue;
            }
            let forged = format!("{}{with}{}", &path[..at], &path[at + 1..]);
            let text = from_registrar("MESSAGE", &format!("f{at}{with}"), "", &forged);
            assert_eq!(
                refusal(&mut b, REGISTRAR, &text),
                "SIP/2.0 403 Forbidden",
                "{forged}"
            );
        }
    }
    assert!(b.counters().path_tokens_forged > 80);
    // The token of a dialog is none, and neither is the token of another domain's key.
    let invite = one(without_100(
        b.udp(REGISTRAR, &from_registrar("INVITE", "i1", "", &path)),
    ));
    let token = invite.header("Record-Route");
    let token = &token[token.find("sip:").unwrap() + 4..token.find('@').unwrap()];
    let text = from_registrar(
        "MESSAGE",
        "t1",
        "",
        &format!("<sip:path.{token}@192.0.2.1:5060;lr>"),
    );
    assert_eq!(refusal(&mut b, REGISTRAR, &text), "SIP/2.0 403 Forbidden");
    // And a path token is no flow token: the mark's dialog does not have it.
    let with_mark = invite.header("Record-Route").replace(token, &path[from - 5..to]);
    let text = in_dialog("INFO", false, &[with_mark]);
    assert_eq!(refusal(&mut b, STRANGER, &text), "SIP/2.0 403 Forbidden");
}

/// The flow is the end of the way.
#[test]
fn nothing_leads_past_the_phone() {
    let mut b = Bench::new(&edge());
    let path = path(&mut b);
    for (number, behind) in ["<sip:203.0.113.50;lr>", "<sip:192.0.2.1:5060;lr>", &path]
        .into_iter()
        .enumerate()
    {
        let text = from_registrar("MESSAGE", &format!("n{number}"), "", &format!("{path}, {behind}"));
        assert_eq!(
            refusal(&mut b, REGISTRAR, &text),
            "SIP/2.0 403 Forbidden",
            "{behind}"
        );
    }
    // Nor does a REGISTER come along a Path.
    let text = register(7, &format!("<{CONTACT}>"), &format!("Route: {path}\n"));
    assert_eq!(refusal(&mut b, REGISTRAR, &text), "SIP/2.0 403 Forbidden");
    // The Request-URI does not matter: a phone that says it has moved is reached where it registered.
    let text = from_registrar("MESSAGE", "u1", "", &path).replacen(CONTACT, "sip:bob@198.51.100.77", 1);
    assert_eq!(one(b.udp(REGISTRAR, &text)).address(), PHONE);
}

/// RFC 5626 §5.3: 430, by which the registrar tries another flow.
#[test]
fn a_connection_that_has_closed_is_430() {
    let phone = tcp_flow(PHONE, 4);
    let mut b = Bench::new(&edge());
    let text = plain(1).replace("SIP/2.0/UDP", "SIP/2.0/TCP");
    let path = relayed(&mut b, phone, &text).header("Path").to_owned();
    let invite = from_registrar("INVITE", "i1", "", &path);
    let sent = one(without_100(b.udp(REGISTRAR, &invite)));
    assert_eq!((sent.to.conn, sent.pinned), (phone.conn, true));
    let told = without_100(b.undelivered(&sent));
    let refused = one(told);
    assert_eq!(
        (refused.address().as_str(), refused.first_line()),
        (REGISTRAR, "SIP/2.0 430 Flow Failed")
    );
    // The listener has gone.
    let mut config = edge();
    config.listeners.truncate(1);
    let mut b = Bench::new(&config);
    assert_eq!(refusal(&mut b, REGISTRAR, &invite), "SIP/2.0 430 Flow Failed");
    // The flow is another node's.
    let mut config = edge();
    config.node_id = 2;
    let mut b = Bench::new(&config);
    assert_eq!(refusal(&mut b, REGISTRAR, &invite), "SIP/2.0 430 Flow Failed");
}

/// The registrar judges what it means that a phone is silent.
#[test]
fn a_silent_phone_is_408() {
    let path = path(&mut Bench::new(&edge()));
    let mut b = Bench::new(&edge());
    let invite = from_registrar("INVITE", "i1", "", &path);
    assert_eq!(one(without_100(b.udp(REGISTRAR, &invite))).address(), PHONE);
    let sent = b.pass(40_000);
    let ends: Vec<&str> = sent
        .iter()
        .filter(|s| s.address() == REGISTRAR)
        .map(Sent::first_line)
        .collect();
    assert_eq!(ends.first(), Some(&"SIP/2.0 408 Request Timeout"), "{ends:?}");
}

/// By name, the registrar is known at the start: it may send requests before a REGISTER has gone there.
#[test]
fn a_named_registrar_is_known_by_its_addresses() {
    // Copies of a configuration share the addresses that are known.
    let named = || {
        let mut config = edge();
        for rule in &mut config.routes {
            rule.action = relay("sip:registrar.far.example:5060").action;
        }
        config
    };
    let zone = [("registrar.far.example A", vec![address("198.51.100.5")])];
    let mut b = Bench::new(&named());
    assert!(b.udp(PHONE, &plain(1)).is_empty());
    let (_, sent) = b.serve(&zone);
    let path = one(sent).header("Path").to_owned();
    let text = from_registrar("MESSAGE", "m1", "", &path);
    assert_eq!(one(b.udp(REGISTRAR, &text)).address(), PHONE);
    assert_eq!(
        refusal(&mut b, STRANGER, &text.replace("m1", "m2")),
        "SIP/2.0 403 Forbidden"
    );
    // Another start, by which nothing has been asked yet.
    let mut again = Bench::new(&named());
    let early = refusal(&mut again, REGISTRAR, &text.replace("m1", "m4"));
    assert_eq!(early, "SIP/2.0 403 Forbidden");
    again.pass(100);
    again.serve(&zone);
    again.pass(5_000);
    assert_eq!(
        one(again.udp(REGISTRAR, &text.replace("m1", "m3"))).address(),
        PHONE
    );
}

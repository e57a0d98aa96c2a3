//! Registering, and calls to what registered (RFC 3261 §10, §16.5, RFC 3327).
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use crate::agent;
use crate::common;

use agent::*;
use common::*;
use sip_core::auth::digest;
use sip_core::config::{Config, Durability, Network, StateMode};
use sip_core::event::Event;
use sip_core::location::{AorRecord, codec};
use sip_core::query::{Query, QueryKind, QueryResult, Unavailable};
use sip_core::shared::SharedState as _;

const PHONE: &str = "192.0.2.30:40000";
const UNAVAILABLE: &str = "SIP/2.0 480 Temporarily Unavailable";

/// Everything to our domain goes to the registered contact.
fn registrar(durability: Durability) -> Config {
    let mut config = config();
    config.routes.clear();
    config.state = StateMode::Stateless;
    config.registrar.durability = durability;
    config.domains[0].aliases = vec![b"alias.example"[..].into()];
    config
}

/// A REGISTER of bob; CSeq number `n`.
fn register(n: u32, contact: &str, extra: &str) -> String {
    let contact = if contact.is_empty() {
        String::new()
    } else {
        format!("Contact: {contact}\n")
    };
    request(
        "REGISTER",
        "sip:example.com",
        &format!("r{n}"),
        &format!("{contact}{extra}"),
    )
    .replace("From: <sip:alice@", "From: <sip:bob@")
    .replace("CSeq: 1 ", &format!("CSeq: {n} "))
    .replace("UDP 192.0.2.10:5060", "UDP 10.0.0.30:5060;rport")
}

fn call(b: &mut Bench, uri: &str) -> Vec<Sent> {
    b.udp(CALLER, &request("INVITE", uri, "i1", ""))
}

/// It comes twice, and both wait for the disk.
fn twice(b: &mut Bench, text: &str) -> [Query; 2] {
    [(); 2].map(|()| {
        assert!(b.udp(PHONE, text).is_empty());
        b.query()
    })
}

fn contacts(sent: &Sent) -> Vec<&str> {
    sent.headers("Contact")
}

#[test]
fn a_call_goes_the_way_that_the_registration_came() {
    let mut b = Bench::new(&registrar(Durability::Memory));
    let out = one(b.udp(PHONE, &register(1, "<sip:bob@10.0.0.30:5060;ob>", "")));
    assert_eq!(
        (out.first_line(), out.address().as_str()),
        ("SIP/2.0 200 OK", PHONE)
    );
    assert_eq!(contacts(&out), ["<sip:bob@10.0.0.30:5060;ob>;expires=3600"]);
    b.no_query();
    assert_eq!(
        b.endpoint.poll_event(),
        Some(Event::Registered {
            aor: b"bob@example.com"[..].into(),
            source: PHONE.parse().unwrap(),
            contacts: 1
        })
    );
    for uri in [
        "sip:bob@example.com",
        "sip:%62ob@ALIAS.example;user=phone",
        "sip:bob:pw@example.com",
    ] {
        let out = call(&mut b, uri);
        assert_eq!(
            lines(&out),
            [format!("{PHONE} INVITE sip:bob@10.0.0.30:5060;ob SIP/2.0")],
            "{uri}"
        );
        assert!(out[0].headers("Route").is_empty());
    }
    for uri in [
        "sip:Bob@example.com",
        "sip:alice@example.com",
        "sip:bob@example.com.:5060",
    ] {
        let out = one(call(&mut b, uri));
        let expected = if uri.contains("com.") {
            "INVITE sip:bob@10.0.0.30:5060;ob SIP/2.0"
        } else {
            UNAVAILABLE
        };
        assert_eq!(out.first_line(), expected, "{uri}");
    }
    // It ends: for calls, and for queries of the bindings.
    b.pass(3_600_000);
    assert_eq!(one(call(&mut b, "sip:bob@example.com")).first_line(), UNAVAILABLE);
    assert!(contacts(&one(b.udp(PHONE, &register(2, "", "")))).is_empty());
}

/// A domain's names are one: a user that registers by one of them is found by all, and has one
/// record.
#[test]
fn an_alias_names_the_same_address_of_record() {
    let mut b = Bench::new(&registrar(Durability::Memory));
    let by_alias = |n: u32, contact: &str| {
        register(n, contact, "")
            .replace("REGISTER sip:example.com", "REGISTER sip:ALIAS.example")
            .replace("To: <sip:bob@example.com>", "To: <sip:bob@alias.example>")
    };
    let out = one(b.udp(PHONE, &by_alias(1, "<sip:bob@10.0.0.30>")));
    assert_eq!(contacts(&out), ["<sip:bob@10.0.0.30>;expires=3600"]);
    for uri in ["sip:bob@example.com", "sip:bob@alias.example"] {
        let out = one(call(&mut b, uri));
        assert_eq!(out.first_line(), "INVITE sip:bob@10.0.0.30 SIP/2.0", "{uri}");
    }
    // The same record by its proper name: one binding more, and the response has both.
    let out = one(b.udp(PHONE, &register(2, "<sip:bob@10.0.0.31>", "")));
    assert_eq!(contacts(&out).len(), 2);
    let out = one(b.udp(PHONE, &by_alias(3, "<sip:bob@10.0.0.30>;expires=0")));
    assert_eq!(contacts(&out), ["<sip:bob@10.0.0.31>;expires=3600"]);
    let out = one(call(&mut b, "sip:bob@alias.example"));
    assert_eq!(out.first_line(), "INVITE sip:bob@10.0.0.31 SIP/2.0");
}

/// RFC 3261 §19.1.1 Table 1: what may stand in a Contact may not all stand in a Request-URI.
#[test]
fn a_contact_becomes_a_request_uri() {
    for (contact, uri) in [
        (
            "<sip:bob@10.0.0.30?Subject=x&Route=%3Csip:evil%3E>",
            "sip:bob@10.0.0.30",
        ),
        ("<sip:bob@10.0.0.30;method=BYE;x>", "sip:bob@10.0.0.30;x"),
        (
            "<sip:bob@10.0.0.30:5062;transport=udp;METHOD=REGISTER;y=z?a=b>",
            "sip:bob@10.0.0.30:5062;transport=udp;y=z",
        ),
        (
            "<sip:bob@10.0.0.30;meth%6Fd=BYE;x=[1/2:3]>",
            "sip:bob@10.0.0.30;x=[1/2:3]",
        ),
        ("sip:bob@10.0.0.30;q=0.5", "sip:bob@10.0.0.30"),
    ] {
        let mut b = Bench::new(&registrar(Durability::Memory));
        assert_eq!(
            one(b.udp(PHONE, &register(1, contact, ""))).first_line(),
            "SIP/2.0 200 OK"
        );
        assert_eq!(
            lines(&call(&mut b, "sip:bob@example.com")),
            [format!("{PHONE} INVITE {uri} SIP/2.0")],
            "{contact}"
        );
    }
}

#[test]
fn the_best_q_is_called_and_of_equals_the_newest() {
    let mut b = Bench::new(&registrar(Durability::Memory));
    let text = register(
        1,
        "<sip:a@10.0.0.1>;q=0.5, <sip:b@10.0.0.2>;q=0.9, <sip:c@10.0.0.3>;q=0.9;expires=60",
        "",
    );
    let out = one(b.udp(PHONE, &text));
    assert_eq!(
        contacts(&out),
        [
            "<sip:c@10.0.0.3>;q=0.900;expires=60",
            "<sip:b@10.0.0.2>;q=0.900;expires=3600",
            "<sip:a@10.0.0.1>;q=0.500;expires=3600"
        ]
    );
    let called = |b: &mut Bench| one(call(b, "sip:bob@example.com")).first_line().to_string();
    assert_eq!(called(&mut b), "INVITE sip:c@10.0.0.3 SIP/2.0");
    b.pass(61_000);
    assert_eq!(called(&mut b), "INVITE sip:b@10.0.0.2 SIP/2.0");
    b.udp(PHONE, &register(2, "<sip:b@10.0.0.2>;expires=0", ""));
    assert_eq!(called(&mut b), "INVITE sip:a@10.0.0.1 SIP/2.0");
    let out = one(b.udp(PHONE, &register(3, "*", "Expires: 0\n")));
    assert_eq!((out.first_line(), contacts(&out).len()), ("SIP/2.0 200 OK", 0));
    assert_eq!(called(&mut b), UNAVAILABLE);
}

#[test]
fn a_path_becomes_route() {
    let mut config = registrar(Durability::Memory);
    config.trust = vec![Network {
        address: [192, 0, 2, 30].into(),
        prefix_len: 32,
    }];
    let mut b = Bench::new(&config);
    let paths = "Path: <sip:198.51.100.7;lr>\nPath: \"e, f\" <sip:edge.example;lr>\nSupported: path\n";
    let out = one(b.udp(PHONE, &register(1, "<sip:bob@10.0.0.30>", paths)));
    assert_eq!(
        out.header("Path"),
        "<sip:198.51.100.7;lr>, \"e, f\" <sip:edge.example;lr>"
    );
    let out = one(call(&mut b, "sip:bob@example.com"));
    assert_eq!(
        lines(std::slice::from_ref(&out)),
        ["198.51.100.7:5060 INVITE sip:bob@10.0.0.30 SIP/2.0"]
    );
    assert_eq!(
        out.headers("Route"),
        ["<sip:198.51.100.7;lr>, \"e, f\" <sip:edge.example;lr>"]
    );
}

#[test]
fn refusals_have_their_status() {
    let mut config = registrar(Durability::Commit);
    config.limits.contacts_per_aor = 2;
    for (text, first_line, header) in [
        (
            register(1, "<sip:b@10.0.0.1>;expires=30", ""),
            "423 Interval Too Brief",
            "Min-Expires: 60",
        ),
        (register(1, "*", ""), "400 Contact * Without Expires 0", ""),
        (
            register(1, "*, <sip:b@10.0.0.1>", "Expires: 0\n"),
            "400 Contact * Beside Other Values",
            "",
        ),
        (
            register(1, "<mailto:b@c>", ""),
            "400 Contact Is Not A SIP URI",
            "",
        ),
        (
            register(1, "<sip:b@10.0.0.1>", "Require: path, gruu\n"),
            "420 Bad Extension",
            "Unsupported: gruu",
        ),
        (
            register(1, "<sip:a@1.1.1.1>, <sip:a@1.1.1.2>, <sip:a@1.1.1.3>", ""),
            "403 Too Many Contacts",
            "",
        ),
        (
            register(1, "<sip:b@10.0.0.1>", "")
                .replace("To: <sip:bob@example.com>", "To: <sip:bob@other.example>"),
            "404 Not Found",
            "",
        ),
        (
            register(1, "<sip:b@10.0.0.1>", "").replace("To: <sip:bob@example.com>", "To: <sip:example.com>"),
            "404 Not Found",
            "",
        ),
        (
            register(1, "<sip:b@10.0.0.1>", "")
                .replace("REGISTER sip:example.com", "REGISTER sip:other.example"),
            "403 Forbidden",
            "",
        ),
    ] {
        let mut b = Bench::new(&config);
        let out = one(b.udp(PHONE, &text));
        assert_eq!(out.first_line(), format!("SIP/2.0 {first_line}"), "{text}");
        assert!(
            header.is_empty() || out.text.contains(&format!("\r\n{header}\r\n")),
            "{}",
            out.text
        );
        b.no_query();
        assert_eq!(one(call(&mut b, "sip:bob@example.com")).first_line(), UNAVAILABLE);
        b.assert_idle();
    }
}

#[test]
fn no_user_registers_for_another() {
    let mut config = registrar(Durability::Memory);
    config.domains[0].auth.methods = vec![b"REGISTER"[..].into()];
    let mut b = Bench::new(&config);
    let secrets = digest::secrets(b"alice", b"example.com", PASSWORD.as_bytes());
    b.shared
        .cached
        .lock()
        .unwrap()
        .insert((b"alice".to_vec(), b"example.com".to_vec()), Some(secrets));
    let nonce = nonce_of(&one(b.udp(PHONE, &register(1, "<sip:x@10.0.0.30>", ""))));
    let credentials = login("REGISTER", "sip:example.com").line(&nonce);
    let out = one(b.udp(PHONE, &register(2, "<sip:x@10.0.0.30>", &credentials)));
    assert_eq!(out.first_line(), "SIP/2.0 403 Forbidden");
    let next = Login {
        count: 2,
        ..login("REGISTER", "sip:example.com")
    }
    .line(&nonce);
    let own = register(3, "<sip:x@10.0.0.30>", &next).replace("To: <sip:bob@", "To: <sip:alice@");
    let out = one(b.udp(PHONE, &own));
    assert_eq!((out.first_line(), contacts(&out).len()), ("SIP/2.0 200 OK", 1));
    // A retransmission gets the same response as the first.
    assert_eq!(one(b.udp(PHONE, &own)).text, out.text);
}

#[test]
fn commit_answers_once_it_is_on_disk() {
    let mut b = Bench::new(&registrar(Durability::Commit));
    assert!(b.udp(PHONE, &register(1, "<sip:bob@10.0.0.30>", "")).is_empty());
    let query = b.query();
    let QueryKind::SaveBindings { aor, record, .. } = &query.kind else {
        panic!("{query:?}")
    };
    assert_eq!(**aor, *b"bob@example.com");
    assert_eq!(
        *codec::decode(record).unwrap().bindings[0].contact,
        *b"sip:bob@10.0.0.30"
    );
    assert_eq!(b.endpoint.gauges().parked_requests, 1);
    let out = one(b.answer(&query, QueryResult::Saved(Ok(()))));
    assert_eq!(
        (out.first_line(), out.address().as_str()),
        ("SIP/2.0 200 OK", PHONE)
    );
    assert_eq!(contacts(&out), ["<sip:bob@10.0.0.30>;expires=3600"]);
    b.assert_idle();
    assert_eq!(b.counters().registrations, 1);
    // Asking needs no disk; removing does, and writes an empty record.
    assert_eq!(
        one(b.udp(PHONE, &register(2, "", ""))).first_line(),
        "SIP/2.0 200 OK"
    );
    b.no_query();
    assert!(b.udp(PHONE, &register(3, "*", "Expires: 0\n")).is_empty());
    let query = b.query();
    let QueryKind::SaveBindings { record, .. } = &query.kind else {
        panic!("{query:?}")
    };
    assert!(codec::decode(record).unwrap().bindings.is_empty());
    assert_eq!(
        one(b.answer(&query, QueryResult::Saved(Ok(())))).first_line(),
        "SIP/2.0 200 OK"
    );
}

#[test]
fn what_could_not_be_stored_is_undone() {
    for says_so in [true, false] {
        let mut b = Bench::new(&registrar(Durability::Commit));
        b.udp(PHONE, &register(1, "<sip:old@10.0.0.30>", ""));
        let query = b.query();
        b.answer(&query, QueryResult::Saved(Ok(())));
        b.udp(PHONE, &register(2, "<sip:new@10.0.0.30>", ""));
        let query = b.query();
        let out = if says_so {
            b.answer(&query, QueryResult::Saved(Err(Unavailable)))
        } else {
            b.pass(5_020)
        };
        assert_eq!(one(out).first_line(), "SIP/2.0 500 Server Internal Error");
        assert_eq!(b.counters().registrations_failed, 1);
        assert_eq!(
            one(call(&mut b, "sip:bob@example.com")).first_line(),
            "INVITE sip:old@10.0.0.30 SIP/2.0"
        );
        assert_eq!(contacts(&one(b.udp(PHONE, &register(9, "", "")))).len(), 1);
        // The first of all is undone to nothing.
        let mut b = Bench::new(&registrar(Durability::Commit));
        b.udp(PHONE, &register(1, "<sip:old@10.0.0.30>", ""));
        let query = b.query();
        b.answer(&query, QueryResult::Saved(Err(Unavailable)));
        assert_eq!(one(call(&mut b, "sip:bob@example.com")).first_line(), UNAVAILABLE);
    }
}

/// Of two changes each is taken back for itself, whichever fails first. The last response has the
/// bindings that there are then (RFC 3261 §10.3).
#[test]
fn what_could_not_be_stored_is_undone_beside_what_others_did() {
    // What two phones ask; and the bindings that are left without the first, without the second, with
    // both.
    for (what, first, second, left) in [
        (
            "adds",
            "<sip:c@10.0.0.30>",
            "<sip:d@10.0.0.31>",
            ["abd", "abc", "abcd"],
        ),
        (
            "removes",
            "<sip:a@10.0.0.30>;expires=0",
            "<sip:b@10.0.0.31>;expires=0",
            ["a", "b", ""],
        ),
        ("refreshes", OF_A, OF_B, ["ab"; 3]),
        (
            "removes all",
            "*\nExpires: 0",
            "<sip:d@10.0.0.31>",
            ["abd", "", "d"],
        ),
    ] {
        for (stored, left) in [
            ([true, true], left[2]),
            ([false, true], left[0]),
            ([true, false], left[1]),
            ([false, false], "ab"),
        ] {
            for order in [[0, 1], [1, 0]] {
                let case = format!("{what}: stored {stored:?}, answered {order:?}");
                two_changes([first, second], stored, order, left, &case);
            }
        }
    }
}

const OF_A: &str = "<sip:a@10.0.0.30>;q=0.5";
const OF_B: &str = "<sip:b@10.0.0.31>;q=0.1";

/// Of phones a and b, which are bound, each asks for a change; which are stored, which gets its
/// response first, and which phones are bound then.
fn two_changes(asked: [&str; 2], stored: [bool; 2], order: [usize; 2], left: &str, case: &str) {
    let names = |out: &Sent| {
        let mut found: Vec<char> = contacts(out)
            .iter()
            .map(|c| char::from(c.as_bytes()[5]))
            .collect();
        found.sort_unstable();
        found.into_iter().collect::<String>()
    };
    let mut b = Bench::new(&registrar(Durability::Commit));
    let other = |cseq, contact| register(cseq, contact, "").replace("Call-ID: ", "Call-ID: other-");
    for text in [register(1, OF_A, ""), other(11, OF_B)] {
        b.udp(PHONE, &text);
        let query = b.query();
        b.answer(&query, QueryResult::Saved(Ok(())));
    }
    b.udp(PHONE, &register(2, asked[0], ""));
    b.udp(PHONE, &other(12, asked[1]));
    let queries = [b.query(), b.query()];
    for which in order {
        let (result, line) = match stored[which] {
            true => (Ok(()), "SIP/2.0 200 OK"),
            false => (Err(Unavailable), "SIP/2.0 500 Server Internal Error"),
        };
        let out = one(b.answer(&queries[which], QueryResult::Saved(result)));
        assert_eq!(out.first_line(), line, "{case}");
        if which == order[1] && stored[which] {
            assert_eq!(names(&out), left, "{case}");
        }
    }
    let out = one(b.udp(PHONE, &register(9, "", "")));
    assert_eq!(names(&out), left, "{case}");
    let told = std::iter::from_fn(|| b.endpoint.poll_query()).last();
    assert_eq!(
        told.is_some(),
        stored != [true, true],
        "{case}: the store is told"
    );
    if let Some(QueryKind::SaveBindings { record, .. }) = told.map(|query| query.kind) {
        let record = codec::decode(&record).unwrap();
        assert_eq!(record.bindings.len(), left.len(), "{case}");
    }
}

/// What ends, or is bound by another, while a change is on its way to the disk, does not keep it.
#[test]
fn what_ended_meanwhile_does_not_keep_what_could_not_be_stored() {
    let mut b = Bench::new(&registrar(Durability::Commit));
    b.udp(PHONE, &register(1, "<sip:old@10.0.0.30>;expires=60", ""));
    let query = b.query();
    b.answer(&query, QueryResult::Saved(Ok(())));
    b.pass(59_000);
    b.udp(PHONE, &register(2, "<sip:new@10.0.0.30>", ""));
    let query = b.query();
    b.pass(2_000);
    let now = b.now();
    b.shared.update_bindings(b"bob@example.com", &mut |record| {
        assert_eq!(record.remove_expired(now.unix_s()), 1);
        record.changed(now.unix_ms);
    });
    b.answer(&query, QueryResult::Saved(Err(Unavailable)));
    assert_eq!(one(call(&mut b, "sip:bob@example.com")).first_line(), UNAVAILABLE);
}

/// A copy of a REGISTER that is stored already changes nothing, and nothing is taken back where its own
/// storing fails.
#[test]
fn a_copy_that_could_not_be_stored_undoes_nothing() {
    let mut b = Bench::new(&registrar(Durability::Commit));
    let [first, second] = twice(&mut b, &register(1, "<sip:new@10.0.0.30>", ""));
    let out = b.answer(&second, QueryResult::Saved(Err(Unavailable)));
    assert_eq!(one(out).first_line(), "SIP/2.0 500 Server Internal Error");
    b.no_query();
    assert_eq!(
        one(b.answer(&first, QueryResult::Saved(Ok(())))).first_line(),
        "SIP/2.0 200 OK"
    );
    assert_eq!(
        one(call(&mut b, "sip:bob@example.com")).first_line(),
        "INVITE sip:new@10.0.0.30 SIP/2.0"
    );
}

/// A refresh that could not be stored leaves everything where it was.
#[test]
fn undoing_leaves_the_order() {
    for gone_meanwhile in [false, true] {
        let mut b = Bench::new(&registrar(Durability::Commit));
        for n in 1..=3 {
            let text = register(n, &format!("<sip:{n}@10.0.0.30>"), "");
            b.udp(PHONE, &text.replace("Call-ID: ", &format!("Call-ID: {n}-")));
            let query = b.query();
            b.answer(&query, QueryResult::Saved(Ok(())));
        }
        let text = register(4, "<sip:2@10.0.0.30>", "");
        b.udp(PHONE, &text.replace("Call-ID: ", "Call-ID: 2-"));
        let query = b.query();
        if gone_meanwhile {
            let text = register(5, "<sip:3@10.0.0.30>;expires=0", "");
            b.udp(PHONE, &text.replace("Call-ID: ", "Call-ID: 3-"));
            let removal = b.query();
            b.answer(&removal, QueryResult::Saved(Ok(())));
        }
        b.answer(&query, QueryResult::Saved(Err(Unavailable)));
        let out = one(b.udp(PHONE, &register(9, "", "")));
        let order: Vec<&str> = contacts(&out).iter().map(|c| &c[5..6]).collect();
        let expected: &[&str] = if gone_meanwhile {
            &["2", "1"]
        } else {
            &["3", "2", "1"]
        };
        assert_eq!(order, expected);
    }
}

/// What comes back has the connection that it had, unless that closed meanwhile: then it has none.
#[test]
fn undoing_brings_no_closed_connection_back() {
    for (what, lines) in [
        ("its refresh", "<sip:bob@10.0.0.30;transport=tcp>"),
        ("its removal", "<sip:bob@10.0.0.30;transport=tcp>;expires=0"),
        ("all are removed", "*\nExpires: 0"),
        ("another phone", "<sip:other@10.0.0.31>"),
    ] {
        for closes in [false, true] {
            let mut b = Bench::new(&registrar(Durability::Commit));
            let flow = tcp_flow("192.0.2.30:40001", 5);
            let over_tcp = |text: String| text.replace("SIP/2.0/UDP", "SIP/2.0/TCP");
            b.receive(
                flow,
                &over_tcp(register(1, "<sip:bob@10.0.0.30;transport=tcp>", "")),
            );
            let query = b.query();
            b.answer(&query, QueryResult::Saved(Ok(())));
            b.receive(flow, &over_tcp(register(2, lines, "")));
            let query = b.query();
            if closes {
                b.endpoint.handle_flow_closed(b.now(), flow.conn.unwrap());
            }
            b.answer(&query, QueryResult::Saved(Err(Unavailable)));
            let mut found = Vec::new();
            b.shared.update_bindings(b"bob@example.com", &mut |record| {
                found = record.bindings.iter().map(|b| b.received.conn).collect();
            });
            assert_eq!(found, [flow.conn.filter(|_| !closes)], "{what}, closes: {closes}");
        }
    }
}

/// A removal that is taken back may leave more than are allowed: they may be refreshed, and no more added.
#[test]
fn what_is_over_the_limit_may_be_refreshed() {
    let mut config = registrar(Durability::Commit);
    config.limits.contacts_per_aor = 2;
    let mut b = Bench::new(&config);
    let ask = |b: &mut Bench, cseq, contact: &str, result: Result<(), Unavailable>| {
        b.udp(PHONE, &register(cseq, contact, ""));
        let query = b.query();
        one(b.answer(&query, QueryResult::Saved(result)))
            .first_line()
            .to_owned()
    };
    let ok = "SIP/2.0 200 OK";
    assert_eq!(ask(&mut b, 1, "<sip:a@10.0.0.30>", Ok(())), ok);
    assert_eq!(ask(&mut b, 2, "<sip:b@10.0.0.30>", Ok(())), ok);
    b.udp(PHONE, &register(3, "<sip:a@10.0.0.30>;expires=0", ""));
    let removal = b.query();
    assert_eq!(ask(&mut b, 4, "<sip:c@10.0.0.30>", Ok(())), ok);
    b.answer(&removal, QueryResult::Saved(Err(Unavailable)));
    b.query();
    for (cseq, contact) in [(5, "a"), (6, "b"), (7, "c")] {
        let contact = format!("<sip:{contact}@10.0.0.30>");
        assert_eq!(ask(&mut b, cseq, &contact, Ok(())), ok);
    }
    let out = one(b.udp(PHONE, &register(8, "<sip:d@10.0.0.30>", "")));
    assert_eq!(out.first_line(), "SIP/2.0 403 Too Many Contacts");
    assert_eq!(contacts(&one(b.udp(PHONE, &register(9, "", "")))).len(), 3);
}

/// A copy of a REGISTER that was taken back has no binding, also where there is room for none any
/// more.
#[test]
fn a_copy_without_room_is_not_answered_for_the_first() {
    let mut config = registrar(Durability::Commit);
    config.limits.contacts_per_aor = 1;
    let mut b = Bench::new(&config);
    let [first, second] = twice(&mut b, &register(1, "<sip:a@10.0.0.30>", ""));
    b.answer(&first, QueryResult::Saved(Err(Unavailable)));
    b.query();
    b.udp(PHONE, &register(2, "<sip:b@10.0.0.30>", ""));
    let query = b.query();
    let out = one(b.answer(&query, QueryResult::Saved(Ok(()))));
    assert_eq!((out.first_line(), contacts(&out).len()), ("SIP/2.0 200 OK", 1));
    let out = one(b.answer(&second, QueryResult::Saved(Ok(()))));
    assert_eq!(out.first_line(), "SIP/2.0 500 Server Internal Error");
}

/// Two Call-IDs, one contact (a phone that was started anew, say): both hold, whichever is the later.
#[test]
fn a_registration_overtaken_by_another_call_id_is_answered_too() {
    for (first, second) in [
        ("<sip:bob@10.0.0.30>", "<sip:bob@10.0.0.30>"),
        ("<sip:bob@10.0.0.30>;expires=0", "<sip:bob@10.0.0.30>"),
        ("*\nExpires: 0", "<sip:bob@10.0.0.30>"),
    ] {
        let mut b = Bench::new(&registrar(Durability::Commit));
        b.udp(PHONE, &register(1, "<sip:bob@10.0.0.30>", ""));
        let query = b.query();
        b.answer(&query, QueryResult::Saved(Ok(())));
        b.udp(PHONE, &register(2, first, ""));
        let other = register(1, second, "").replace("Call-ID: ", "Call-ID: other-");
        b.udp(PHONE, &other.replace("branch=", "branch=z9hG4bKother"));
        let queries = [b.query(), b.query()];
        for query in queries {
            assert_eq!(
                one(b.answer(&query, QueryResult::Saved(Ok(())))).first_line(),
                "SIP/2.0 200 OK",
                "{first}"
            );
        }
    }
}

#[test]
fn async_answers_at_once_and_writes_after() {
    let mut b = Bench::new(&registrar(Durability::Async));
    assert_eq!(
        one(b.udp(PHONE, &register(1, "<sip:bob@10.0.0.30>", ""))).first_line(),
        "SIP/2.0 200 OK"
    );
    let query = b.query();
    assert!(query.id.is_none());
    assert!(matches!(query.kind, QueryKind::SaveBindings { .. }));
    b.no_query();
    b.assert_idle();
}

#[test]
fn a_phone_on_a_connection_is_called_there() {
    let mut b = Bench::new(&registrar(Durability::Memory));
    let flow = tcp_flow("192.0.2.30:40001", 5);
    let text = register(1, "<sip:bob@10.0.0.30;transport=tcp>", "").replace("SIP/2.0/UDP", "SIP/2.0/TCP");
    let out = one(b.receive(flow, &text));
    assert_eq!((out.first_line(), out.to.conn), ("SIP/2.0 200 OK", flow.conn));
    let out = one(call(&mut b, "sip:bob@example.com"));
    assert_eq!(out.to, flow);
    assert!(out.header("Via").starts_with("SIP/2.0/TCP 192.0.2.1:5060;"));
    assert_eq!(out.headers("Record-Route").len(), 2);
}

/// A copy of a REGISTER gets no 200 for a binding of the first copy that could not be stored and was
/// taken back. And the store is asked to take it back, too.
#[test]
fn a_copy_does_not_outlive_the_undoing_of_the_first() {
    let mut b = Bench::new(&registrar(Durability::Commit));
    let [first, second] = twice(&mut b, &register(1, "<sip:new@10.0.0.30>", ""));
    let out = b.answer(&first, QueryResult::Saved(Err(Unavailable)));
    assert_eq!(one(out).first_line(), "SIP/2.0 500 Server Internal Error");
    let undone = b.query();
    let QueryKind::SaveBindings { record, version, .. } = &undone.kind else {
        panic!("{undone:?}")
    };
    let record = codec::decode(record).unwrap();
    assert!(undone.id.is_none() && record.bindings.is_empty() && record.version == *version);
    let out = b.answer(&second, QueryResult::Saved(Ok(())));
    assert_eq!(one(out).first_line(), "SIP/2.0 500 Server Internal Error");
    assert_eq!(one(call(&mut b, "sip:bob@example.com")).first_line(), UNAVAILABLE);
    // Two copies that are both stored both get a response.
    for query in twice(&mut b, &register(2, "<sip:new@10.0.0.30>", "")) {
        assert_eq!(
            one(b.answer(&query, QueryResult::Saved(Ok(())))).first_line(),
            "SIP/2.0 200 OK"
        );
    }
}

/// At the limit of requests that wait, a REGISTER is refused, changes nothing, and gives the store
/// no work.
#[test]
fn a_register_that_may_not_wait_leaves_no_trace() {
    let mut config = registrar(Durability::Commit);
    config.limits.parked_requests = 1;
    let mut b = Bench::new(&config);
    b.udp(PHONE, &register(1, "<sip:bob@10.0.0.30>", ""));
    let first = b.query();
    let out = one(b.udp(PHONE, &register(2, "<sip:new@10.0.0.31>", "")));
    assert_eq!(out.first_line(), "SIP/2.0 503 Service Unavailable");
    b.no_query();
    // Unless another worker had the record stored with it in the meantime.
    *b.shared.before.lock().unwrap() = [
        None,
        Some(
            (|record: &mut AorRecord| {
                record.bindings[1].cseq += 1;
                record.changed(0);
            }) as fn(&mut AorRecord),
        ),
    ]
    .into();
    let out = one(b.udp(PHONE, &register(3, "<sip:new@10.0.0.31>", "")));
    assert_eq!(out.first_line(), "SIP/2.0 503 Service Unavailable");
    let query = b.query();
    assert!(query.id.is_none(), "nobody waits for it");
    let QueryKind::SaveBindings { record, version, .. } = query.kind else {
        panic!("{:?}", query.kind)
    };
    let stored = codec::decode(&record).unwrap();
    assert_eq!(*stored.bindings[0].contact, *b"sip:bob@10.0.0.30");
    assert_eq!((stored.bindings.len(), stored.version), (1, version));
    b.answer(&first, QueryResult::Saved(Ok(())));
    let out = one(call(&mut b, "sip:bob@example.com"));
    assert_eq!(out.first_line(), "INVITE sip:bob@10.0.0.30 SIP/2.0");
}

//! Responses with flaws: what can be mended goes on, and what cannot ends its branch
//! (RFC 3261 §16.7, §17.1.1.2, §17.1.3).
#![allow(
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "helpers of tests"
)]

use crate::common;
use crate::forks::{BOB, location, phone, register};

use common::*;
use sip_core::config::StateMode;
use sip_core::event::Event;
use sip_core::transport::{Flow, Transport};

const TO: &str = "sip:bob@example.com";

fn below(line: &str) -> String {
    format!("{CALLEE} {line}")
}

fn above(status: &str) -> String {
    format!("{CALLER} SIP/2.0 {status}")
}

/// A request under way, and as it left.
#[track_caller]
fn begun(method: &str, state: StateMode) -> (Bench, Sent) {
    let mut config = config();
    config.state = state;
    let mut b = Bench::new(&config);
    let sent = b.udp(CALLER, &request(method, TO, "a1", "")).pop().unwrap();
    assert_eq!(sent.address(), CALLEE);
    (b, sent)
}

fn events(b: &mut Bench) -> Vec<(&'static str, bool)> {
    let all = std::iter::from_fn(|| b.endpoint.poll_event());
    all.filter_map(|event| match event {
        Event::ResponseFlawed { flaw, mended, .. } => Some((flaw, mended)),
        _ => None,
    })
    .collect()
}

/// What to replace in a good response, by what, and how the result reads where it goes on.
const HARMLESS: [(&str, &str, &str); 11] = [
    (";tag=t1", ";tag=t1;tag=t1", ";tag=t1"),
    (";tag=t1", ";tag=t1;tag=t2", ";tag=t1"),
    (";tag=t1", ";tag=", ""),
    (
        "Content-Length: 0\r\n",
        "Content-Length: 0\r\nContent-Length: 0\r\n",
        "Content-Length: 0\r\n",
    ),
    ("X: a\r\n", "X: a\r\nno colon here\r\n", "X: a\r\n"),
    ("X: a\r\n", "X: a\n b\r\n", "X: a b\r\n"),
    ("X: a\r\n", "X: a\r\n\tb\n c\r\n", "X: a b c\r\n"),
    ("X: a\r\n", "X: a\nY: b\r\n", "X: a\r\nY: b\r\n"),
    (" O", " \u{1}O", " O"),
    ("SIP/2.0 ", "SIP/2.0  ", "SIP/2.0 "),
    ("SIP/2.0 ", "SIP/2.0\t ", "SIP/2.0 "),
];

const ANSWERS: [(&str, &str); 5] = [
    ("INVITE", "180 Oh"),
    ("INVITE", "200 OK"),
    ("INVITE", "486 Occupied"),
    ("MESSAGE", "200 OK"),
    ("MESSAGE", "404 Off"),
];

#[test]
fn harmless_flaws_are_mended_and_the_response_goes_on() {
    for state in [StateMode::Transaction, StateMode::Stateless] {
        for (method, status) in ANSWERS {
            for (what, by, mended) in HARMLESS {
                let good = |b: &mut Bench, sent: &Sent, by: &str| {
                    let text = response(sent, status, "X: a\n").replacen(what, by, 1);
                    let mut out = b.udp(CALLEE, &text);
                    out.retain(|s| s.address() == CALLER);
                    (one(out), b.counters().responses_mended)
                };
                let (mut b, sent) = begun(method, state);
                let (flawed, counted) = good(&mut b, &sent, by);
                let (mut b, sent) = begun(method, state);
                let (expected, none) = good(&mut b, &sent, mended);
                assert_eq!(flawed.text, expected.text, "{state:?} {method} {status} {by:?}");
                assert_eq!((counted, none), (1, 0));
            }
        }
    }
}

#[test]
fn a_mended_response_is_reported() {
    let (mut b, sent) = begun("INVITE", StateMode::Transaction);
    b.udp(
        CALLEE,
        &response(&sent, "180 Ringing", "").replace(";tag=t1", ";tag=t1;tag=t2"),
    );
    assert_eq!(events(&mut b), [("Malformed To", true)]);
}

/// Flaws that leave a doubt: what to replace, and by what.
const GRAVE: [(&str, &str); 8] = [
    ("X: a\r\n", "X: a\0\r\n"),
    ("X: a\r\n", "Call-ID: another\r\n"),
    ("X: a\r\n", "To: <sip:eve@example.com>;tag=t9\r\n"),
    ("Content-Length: 0", "Content-Length: 10"),
    ("Content-Length: 0", "Content-Length: none"),
    ("From: ", "Not-From: "),
    ("Call-ID: c1@192.0.2.10\r\n", ""),
    ("\r\n\r\n", "\r\n"),
];

const CONTACT: &str = "Contact: <sip:bob@192.0.2.21:5070;transport=udp>\nX: a\n";

#[test]
fn other_flaws_end_a_call_that_was_refused() {
    for (what, by) in GRAVE {
        let (mut b, sent) = begun("INVITE", StateMode::Transaction);
        let busy = response(&sent, "486 Busy Here", "X: a\n").replacen(what, by, 1);
        let out = b.udp(CALLEE, &busy);
        assert_eq!(
            lines(&out),
            [below("ACK sip:bob@example.com SIP/2.0"), above("502 Bad Gateway")],
            "{by:?}"
        );
        assert_eq!(out[0].header("Via"), sent.header("Via"));
        assert_eq!(events(&mut b).len(), 1);
        // A copy is acknowledged, too, and nothing goes up.
        let out = b.udp(CALLEE, &busy);
        assert_eq!(lines(&out), [below("ACK sip:bob@example.com SIP/2.0")], "{by:?}");
        assert_eq!(b.counters().dropped_malformed, 0);
        b.pass(64_000);
        b.assert_idle();
    }
}

#[test]
fn other_flaws_of_a_provisional_response_stop_the_retransmissions() {
    for (what, by) in GRAVE {
        let (mut b, sent) = begun("INVITE", StateMode::Transaction);
        let ringing = response(&sent, "180 Ringing", "X: a\n").replacen(what, by, 1);
        assert_eq!(lines(&b.udp(CALLEE, &ringing)), [""; 0], "{by:?}");
        assert_eq!(lines(&b.pass(30_000)), [""; 0]);
        let ok = b.udp(CALLEE, &response(&sent, "200 OK", ""));
        assert_eq!(lines(&ok), [above("200 OK")]);
    }
}

#[test]
fn a_callee_whose_2xx_cannot_be_passed_on_is_hung_up() {
    for (what, by) in GRAVE {
        let (mut b, sent) = begun("INVITE", StateMode::Transaction);
        let ok = response(&sent, "200 OK", CONTACT).replacen(what, by, 1);
        let out = b.udp(CALLEE, &ok);
        assert_eq!(
            lines(&out),
            [
                below("ACK sip:bob@192.0.2.21:5070;transport=udp SIP/2.0"),
                below("BYE sip:bob@192.0.2.21:5070;transport=udp SIP/2.0"),
                above("502 Bad Gateway")
            ],
            "{by:?}"
        );
        let [ack, bye, _] = out.try_into().unwrap();
        assert_eq!((ack.header("CSeq"), bye.header("CSeq")), ("1 ACK", "65537 BYE"));
        for request in [&ack, &bye] {
            for name in ["From", "Call-ID"] {
                assert_eq!(request.header(name), sent.header(name));
            }
            assert_eq!(request.header("To"), "<sip:bob@example.com>;tag=t1");
            assert_eq!(request.headers("Via").len(), 1);
            assert_ne!(request.header("Via"), sent.header("Via"));
            assert_eq!(request.headers("Route").len(), 0);
        }
        assert_ne!(ack.header("Via"), bye.header("Via"));
        // The ACK was lost: it goes again, the BYE by its own timer.
        let out = b.udp(CALLEE, &ok);
        assert_eq!(lines(&out).len(), 1, "{:?}", lines(&out));
        assert_eq!(out[0].text, ack.text);
        let resent = b.pass(600);
        assert!(resent.contains(&bye), "{:?}", lines(&resent));
        assert!(resent.iter().all(|s| *s == bye || s.address() == CALLER));
        assert_eq!(lines(&b.udp(CALLEE, &response(&bye, "200 OK", ""))), [""; 0]);
        b.pass(64_000);
        b.assert_idle();
    }
}

#[test]
fn a_2xx_that_says_not_where_its_callee_is_gets_no_bye() {
    for (what, by) in [
        (";tag=t1", ";tag=t1;\0"),
        ("Contact: <sip:bob@192.0.2.21:5070;transport=udp>", "X: y"),
        ("Contact: <sip:bob@192.0.2.21:5070;transport=udp>", "Contact: *"),
        ("Contact: <sip:", "Contact: <\0sip:"),
    ] {
        let (mut b, sent) = begun("INVITE", StateMode::Transaction);
        let ok = response(&sent, "200 OK", CONTACT).replacen(what, by, 1);
        let ok = ok.replace("X: a\r\n", "X: a\0\r\n");
        assert_eq!(lines(&b.udp(CALLEE, &ok)), [above("502 Bad Gateway")], "{by:?}");
        b.pass(64_000);
        b.assert_idle();
    }
}

/// RFC 3261 §12.1.2: what the callee's side recorded, in reverse; what lies behind us is not on the way.
#[test]
fn the_bye_goes_by_the_proxies_ahead() {
    let (mut b, sent) = begun("INVITE", StateMode::Transaction);
    let ours = sent.header("Record-Route").to_string();
    assert!(!ours.is_empty());
    let ok = response(&sent, "200 OK", CONTACT).replacen(
        "Record-Route: ",
        "Record-Route: <sip:far.example.net;lr>, <sip:near.example.net;lr>\r\nRecord-Route: ",
        1,
    );
    let out = b.udp(CALLEE, &ok.replace("X: a\r\n", "X: a\0\r\n"));
    assert_eq!(out.len(), 3);
    for request in &out[..2] {
        assert_eq!(
            request.headers("Route"),
            ["<sip:near.example.net;lr>", "<sip:far.example.net;lr>"]
        );
    }
}

/// After a delivered MESSAGE, a 502 would make its sender send another.
#[test]
fn other_flaws_of_answers_to_other_methods_mean_no_answer() {
    for (what, by) in GRAVE {
        for status in ["200 OK", "404 Not Found"] {
            let (mut b, sent) = begun("MESSAGE", StateMode::Transaction);
            let answer = response(&sent, status, "X: a\n").replacen(what, by, 1);
            assert_eq!(lines(&b.udp(CALLEE, &answer)), [""; 0], "{by:?}");
            // Its transactions are there: the caller's copies go nowhere, and ours end.
            assert_eq!(lines(&b.udp(CALLER, &request("MESSAGE", TO, "a1", ""))), [""; 0]);
            assert_eq!(lines(&b.pass(64_000)), [""; 0], "{by:?}");
            b.assert_idle();
        }
    }
}

fn only_our_via(response: &str) -> String {
    let mut vias = 0;
    let lines = response.split_inclusive("\r\n").filter(|line| {
        vias += usize::from(line.starts_with("Via:"));
        !line.starts_with("Via:") || vias == 1
    });
    lines.collect()
}

#[test]
fn a_response_with_only_our_via_ends_what_it_answers() {
    let answered = |method: &str, status: &str| {
        let (mut b, sent) = begun(method, StateMode::Transaction);
        let text = only_our_via(&response(&sent, status, CONTACT));
        let out = lines(&b.udp(CALLEE, &text));
        assert_eq!(b.counters().dropped_stray_response, 0);
        let resent = b.pass(20_000).into_iter().filter(|s| s.address() == CALLEE);
        let resent = resent.filter(|s| !s.first_line().starts_with("BYE")).count();
        assert_eq!(resent, 0, "{method} {status}");
        out
    };
    let ack = below("ACK sip:bob@example.com SIP/2.0");
    for status in ["486 Busy Here", "603 No Thanks", "502 Own Words"] {
        assert_eq!(answered("INVITE", status), [ack.clone(), above(status)]);
    }
    // These say nothing without what they ask for, nor does a 302 without its contacts.
    for status in ["401 Unauthorized", "407 X", "420 Bad Extension", "302 Moved"] {
        assert_eq!(
            answered("INVITE", status),
            [ack.clone(), above("502 Bad Gateway")]
        );
    }
    assert_eq!(
        answered("INVITE", "503 Overloaded"),
        [ack, above("500 Server Internal Error")]
    );
    assert_eq!(answered("INVITE", "180 Ringing"), [""; 0]);
    assert_eq!(answered("MESSAGE", "200 OK"), [above("200 OK")]);
    assert_eq!(answered("MESSAGE", "404 Not Found"), [above("404 Not Found")]);
    assert_eq!(answered("MESSAGE", "407 X"), [""; 0]);
    assert_eq!(answered("INVITE", "200 OK").len(), 3);
    assert_eq!(answered("INVITE", "200 OK")[2], above("502 Bad Gateway"));
}

/// A line of empty values before our Via, as long as it, goes with it; one behind it is no Via of the caller.
#[test]
fn empty_values_are_no_via() {
    let (mut b, sent) = begun("INVITE", StateMode::Transaction);
    let text = response(&sent, "486 Busy Here", "");
    let commas = ",".repeat(sent.headers("Via")[0].len());
    let out = b.udp(
        CALLEE,
        &text.replacen("Via: ", &format!("Via: {commas}\r\nVia: "), 1),
    );
    let back = out.iter().find(|s| s.address() == CALLER).unwrap();
    assert_eq!(back.headers("Via"), sent.headers("Via")[1..], "{}", back.text);
    let (mut b, sent) = begun("INVITE", StateMode::Transaction);
    let text = only_our_via(&response(&sent, "486 Busy Here", ""));
    let out = b.udp(
        CALLEE,
        &text.replacen("Record-Route: ", "Via: ,\r\nRecord-Route: ", 1),
    );
    let back = out.iter().find(|s| s.address() == CALLER).unwrap();
    assert_eq!(back.headers("Via"), sent.headers("Via")[1..], "{}", back.text);
}

#[test]
fn a_cancelled_call_ends_with_487_whatever_its_flaw() {
    for flaw in [false, true] {
        let (mut b, sent) = begun("INVITE", StateMode::Transaction);
        b.udp(CALLEE, &response(&sent, "180 Ringing", ""));
        b.udp(CALLER, &request("CANCEL", TO, "a1", ""));
        let mut text = only_our_via(&response(&sent, "487 Request Terminated", "X: a\n"));
        if flaw {
            text = text.replace("X: a", "X: \0");
        }
        assert_eq!(
            lines(&b.udp(CALLEE, &text)),
            [
                below("ACK sip:bob@example.com SIP/2.0"),
                above("487 Request Terminated")
            ]
        );
    }
}

/// Without state there is nothing that could end.
#[test]
fn without_state_what_cannot_be_mended_is_dropped() {
    for (what, by) in GRAVE {
        let (mut b, sent) = begun("INVITE", StateMode::Stateless);
        let text = response(&sent, "486 Busy Here", "X: a\n").replacen(what, by, 1);
        assert_eq!(lines(&b.udp(CALLEE, &text)), [""; 0], "{by:?}");
        assert_eq!(b.counters().dropped_malformed, 1);
    }
}

#[test]
fn what_belongs_to_nothing_is_dropped() {
    let (mut b, sent) = begun("INVITE", StateMode::Transaction);
    let busy = response(&sent, "486 Busy Here", "X: a\n").replace("X: a", "X: \0");
    for (what, by) in [
        ("z9hG4bK", "z9hG4bL"),
        ("1 INVITE", "1 BYE"),
        ("Via: SIP/2.0/UDP 192.0.2.1", "Via: SIP/2.0/UDP 192.0.2.2"),
        ("CSeq: 1 INVITE", "CSeq: one"),
    ] {
        assert_eq!(
            lines(&b.udp(CALLEE, &busy.replacen(what, by, 1))),
            [""; 0],
            "{by}"
        );
    }
    assert_eq!(b.counters().dropped_malformed, 4);
    assert_eq!(b.counters().responses_flawed, 0);
}

/// The other phone goes on ringing; if none accepts, a better response than 502 goes to the caller.
#[test]
fn one_flawed_branch_does_not_end_the_others() {
    for grave in [true, false] {
        let mut b = Bench::new(&location());
        register(&b, "bob@example.com", &[phone(1), phone(2)]);
        let mut sent = b.udp(CALLER, &request("INVITE", BOB, "a1", ""));
        sent.retain(|s| s.first_line().starts_with("INVITE"));
        let [first, second] = sent.try_into().unwrap();
        let busy = only_our_via(&response(&first, "486 Busy Here", "X: a\n"));
        let busy = if grave {
            busy.replace("X: a", "X: \0")
        } else {
            busy
        };
        let out = b.udp(&first.address(), &busy);
        assert_eq!(out.len(), 1);
        assert!(out[0].first_line().starts_with("ACK"));
        let out = b.udp(&second.address(), &response(&second, "404 Not Found", ""));
        let status = if grave { "404 Not Found" } else { "486 Busy Here" };
        assert_eq!(out[1].first_line(), format!("SIP/2.0 {status}"));
    }
}

/// A session stands as it was after a 502 to a re-INVITE (§14.1), at both sides.
#[test]
fn a_flawed_2xx_in_a_dialog_is_acknowledged_and_ends_nothing() {
    let (mut b, sent) = begun("INVITE", StateMode::Transaction);
    let ok = b.udp(CALLEE, &response(&sent, "200 OK", CONTACT));
    let route = ok[0].header("Record-Route").to_string();
    let again = request(
        "INVITE",
        "sip:bob@192.0.2.20:5060",
        "a2",
        &format!("Route: {route}\nRoute: <sip:192.0.2.20:5060;lr>\n"),
    )
    .replace("To: <sip:bob@example.com>", "To: <sip:bob@example.com>;tag=t1")
    .replace("1 INVITE", "2 INVITE");
    let sent = b.udp(CALLER, &again).pop().unwrap();
    let ok = response(&sent, "200 OK", CONTACT).replace("X: a", "X: \0");
    let out = b.udp(CALLEE, &ok);
    assert_eq!(
        lines(&out),
        [
            below("ACK sip:bob@192.0.2.21:5070;transport=udp SIP/2.0"),
            above("502 Bad Gateway")
        ]
    );
    assert_eq!(out[0].headers("Route"), sent.headers("Route"));
    assert_eq!(
        (out[0].header("To"), out[0].header("CSeq")),
        (sent.header("To"), "2 ACK")
    );
}

/// Of two phones that get a MESSAGE, one's flawed response does not hide the other's. If it was a
/// 2xx, no refusal goes on: the sender would send another.
#[test]
fn one_flawed_answer_to_a_message_does_not_hide_the_other() {
    for (flawed, other, expected) in [
        ("404 Not Found", "200 OK", Some("200 OK")),
        ("200 OK", "200 OK", Some("200 OK")),
        ("200 OK", "404 Not Found", None),
    ] {
        let mut b = Bench::new(&location());
        register(&b, "bob@example.com", &[phone(1), phone(2)]);
        let sent = b.udp(CALLER, &request("MESSAGE", BOB, "a1", ""));
        let [first, second] = sent.try_into().unwrap();
        let text = response(&first, flawed, "X: a\n").replace("X: a", "X: \0");
        assert_eq!(lines(&b.udp(&first.address(), &text)), [""; 0]);
        let out = b.udp(&second.address(), &response(&second, other, ""));
        let expected: Vec<String> = expected.map(above).into_iter().collect();
        assert_eq!(lines(&out), expected, "{flawed} {other}");
        b.pass(64_000);
        b.assert_idle();
    }
}

/// A clean copy comes after the 502: the callee has got its BYE, and the caller has its response.
#[test]
fn a_clean_copy_of_a_flawed_2xx_comes_too_late() {
    let (mut b, sent) = begun("INVITE", StateMode::Transaction);
    let ok = response(&sent, "200 OK", CONTACT);
    assert_eq!(b.udp(CALLEE, &ok.replace("X: a", "X: \0")).len(), 3);
    let out = lines(&b.udp(CALLEE, &ok));
    assert_eq!(out, [below("ACK sip:bob@192.0.2.21:5070;transport=udp SIP/2.0")]);
}

/// A copy that was damaged on its way, of a response that the caller has.
#[test]
fn a_flawed_copy_of_a_good_2xx_ends_nothing() {
    let (mut b, sent) = begun("INVITE", StateMode::Transaction);
    let ok = response(&sent, "200 OK", CONTACT);
    assert_eq!(lines(&b.udp(CALLEE, &ok)), [above("200 OK")]);
    assert_eq!(lines(&b.udp(CALLEE, &ok.replace("X: a", "X: \0"))), [""; 0]);
    assert_eq!(lines(&b.udp(CALLEE, &ok)), [above("200 OK")]);
}

/// A 2xx of a member is the end of it: another member would ring once more.
#[test]
fn what_a_member_accepted_is_not_tried_at_the_next() {
    use crate::forks::{brief, group, grouped};
    use sip_core::dispatcher::Distribution;
    for (method, flaw, expected) in [
        ("INVITE", "200 OK", &["g1 ACK", "g1 BYE", "caller 502"][..]),
        ("MESSAGE", "200 OK", &[]),
    ] {
        let mut b = Bench::new(&grouped(group(Distribution::RoundRobin, 2)));
        let mut sent = b.udp(CALLER, &request(method, BOB, "a1", ""));
        sent.retain(|s| s.first_line().starts_with(method));
        let text = response(&sent[0], flaw, "Contact: <sip:b@198.51.100.1>\nX: a\n").replace("X: a", "X: \0");
        assert_eq!(brief(&b.udp(&sent[0].address(), &text)), expected);
        let later = b.pass(64_000);
        assert!(
            brief(&later).iter().all(|s| !s.starts_with("g2")),
            "{:?}",
            brief(&later)
        );
    }
    // A refusal with only our Via is the member's word, as one that can be passed on.
    let mut b = Bench::new(&grouped(group(Distribution::RoundRobin, 2)));
    let mut sent = b.udp(CALLER, &request("INVITE", BOB, "a1", ""));
    sent.retain(|s| s.first_line().starts_with("INVITE"));
    let busy = only_our_via(&response(&sent[0], "486 Busy Here", ""));
    assert_eq!(brief(&b.udp(&sent[0].address(), &busy)), ["g1 ACK", "caller 486"]);
    // And a 503 has the next one tried.
    let mut b = Bench::new(&grouped(group(Distribution::RoundRobin, 2)));
    let mut sent = b.udp(CALLER, &request("INVITE", BOB, "a1", ""));
    sent.retain(|s| s.first_line().starts_with("INVITE"));
    let away = only_our_via(&response(&sent[0], "503 Away", ""));
    assert_eq!(brief(&b.udp(&sent[0].address(), &away)), ["g1 ACK", "g2 INVITE"]);
}

/// An empty tag goes, and the call of a callee without one (§12.1.2) is acknowledged and ends.
#[test]
fn a_call_without_a_tag_can_be_ended() {
    let mut config = config();
    config.domains[0].auth.methods = vec![b"INVITE"[..].into(), b"*"[..].into()];
    config.routes[0].auth = Some(false);
    let mut b = Bench::new(&config);
    let sent = b.udp(CALLER, &request("INVITE", TO, "a1", "")).pop().unwrap();
    let ok = b.udp(
        CALLEE,
        &response(&sent, "200 OK", CONTACT).replace(";tag=t1", ";tag="),
    );
    assert_eq!(ok[0].header("To"), "<sip:bob@example.com>");
    let route = format!("Route: {}\n", ok[0].header("Record-Route"));
    config.routes.clear();
    b.endpoint.reconfigure(&config);
    for (method, passes) in [("ACK", true), ("BYE", true), ("INFO", false), ("INVITE", false)] {
        let text = request(method, "sip:bob@192.0.2.20:5060", method, &route);
        let out = b.udp(CALLER, &text);
        assert_eq!(out.iter().any(|s| s.address() == CALLEE), passes, "{method}");
    }
}

/// The connection is here, and the call on another worker.
#[test]
fn what_breaks_a_stream_is_handed_to_the_worker_of_its_call() {
    use sip_core::id::WorkerId;
    use sip_core::transport::framing::{FramingError, FramingFault};
    use std::sync::Arc;
    let mut config = config();
    config.workers = 2;
    config.routes = vec![relay("sip:192.0.2.20:5060;transport=tcp")];
    let text = request("INVITE", TO, "a1", "");
    let first = Bench::new(&config);
    let owner = first.endpoint.worker_of(text.as_bytes()).unwrap_or(WorkerId(0));
    let shared = Arc::clone(&first.shared);
    let mut owning = Bench::worker(&config, owner.0, Arc::clone(&shared));
    let mut other = Bench::worker(&config, 1 - owner.0, shared);
    let sent = owning.udp(CALLER, &text).pop().unwrap();
    let head = response(&sent, "486 Busy Here", "").replace("Content-Length: 0\r\n", "");
    let error = FramingError {
        fault: FramingFault::MissingContentLength,
        head: head.as_bytes(),
    };
    let (now, flow) = (other.now(), tcp_flow(CALLEE, 3));
    let (worker, bytes) = other.endpoint.handle_framing_error(now, flow, error).unwrap();
    assert_eq!(worker, owner);
    let _ = owning.endpoint.handle_message(now, flow, &bytes);
    assert_eq!(
        lines(&owning.drain()),
        [below("ACK sip:bob@example.com SIP/2.0"), above("502 Bad Gateway")]
    );
}

/// An INVITE or another request under way to a callee that is reached by TCP.
#[track_caller]
fn begun_over_tcp(method: &str) -> (Bench, Sent) {
    let mut config = config();
    config.routes = vec![relay("sip:192.0.2.20:5060;transport=tcp")];
    let mut b = Bench::new(&config);
    let sent = b.udp(CALLER, &request(method, TO, "a1", "")).pop().unwrap();
    assert_eq!(
        (sent.address().as_str(), sent.to.transport),
        (CALLEE, Transport::Tcp)
    );
    (b, sent)
}

/// The callee's connection.
fn connection() -> Flow {
    tcp_flow(CALLEE, 3)
}

/// On a stream a bare LF is no harmless flaw.
fn can_be_framed(by: &str) -> bool {
    !by.replace("\r\n", "").contains('\n')
}

#[test]
fn harmless_flaws_on_a_stream_are_mended() {
    let mut tried = 0;
    for (method, status) in ANSWERS {
        for (what, by, mended) in HARMLESS.into_iter().filter(|(_, by, _)| can_be_framed(by)) {
            let answered = |by: &str| {
                let (mut b, sent) = begun_over_tcp(method);
                let text = response(&sent, status, "X: a\n").replacen(what, by, 1);
                let is_closed = b.stream(connection(), text.as_bytes());
                let mut out = b.drain();
                out.retain(|s| s.address() == CALLER);
                (one(out).text, is_closed, b.counters().responses_mended)
            };
            let (expected, ..) = answered(mended);
            assert_eq!(answered(by), (expected, false, 1), "{method} {status} {by:?}");
            tried += 1;
        }
    }
    assert_eq!(tried, 5 * 8, "all but three have no bare LF");
}

/// What keeps a stream from being followed: what to replace, by what, and what the log says of it.
const UNFRAMED: [(&str, &str, &str); 9] = [
    ("X: a\r\n", "X: a\n b\r\n", "Line End Is Not CRLF"),
    ("X: a\r\n", "X: a\nY: b\r\n", "Line End Is Not CRLF"),
    ("X: a\r\n", "X: a\rY: b\r\n", "Line End Is Not CRLF"),
    ("Content-Length: 0\r\n", "", "Missing Content-Length"),
    ("Content-Length: 0", "Content-Length: none", "Bad Content-Length"),
    ("Content-Length: 0", "Content-Length: -1", "Bad Content-Length"),
    ("Content-Length: 0", "Content-Length: 0 0", "Bad Content-Length"),
    (
        "Content-Length: 0",
        "Content-Length: 0\r\nContent-Length: 10",
        "Repeated Content-Length",
    ),
    (
        "Content-Length: 0",
        "Content-Length: 2147483647",
        "Request Entity Too Large",
    ),
];

/// Grave flaws on a stream, and whether they close the connection.
fn grave_on_a_stream() -> impl Iterator<Item = (&'static str, &'static str, bool)> {
    // With these the message goes on, in what comes next.
    let is_whole = |(what, by): &(&str, &str)| *by != "Content-Length: 10" && *what != "\r\n\r\n";
    let framed = GRAVE.into_iter().filter(is_whole);
    let framed = framed.map(|(what, by)| (what, by, by.starts_with("Content-Length")));
    framed.chain(UNFRAMED.map(|(what, by, _)| (what, by, true)))
}

/// Gives the callee's flawed response to the endpoint, and closes its connection where that follows. What is sent then.
#[track_caller]
fn answered_on_a_stream(b: &mut Bench, text: &str, closes: bool) -> Vec<String> {
    let is_closed = b.stream(connection(), text.as_bytes());
    assert_eq!(is_closed, closes, "{text}");
    if is_closed {
        let now = b.now();
        b.endpoint.handle_flow_closed(now, connection().conn.unwrap());
    }
    lines(&b.drain())
}

#[test]
fn a_response_that_breaks_its_stream_ends_its_branch() {
    let ack = below("ACK sip:bob@example.com SIP/2.0");
    for (what, by, closes) in grave_on_a_stream() {
        let (mut b, sent) = begun_over_tcp("INVITE");
        let busy = response(&sent, "486 Busy Here", "X: a\n").replacen(what, by, 1);
        assert_eq!(
            answered_on_a_stream(&mut b, &busy, closes),
            [ack.clone(), above("502 Bad Gateway")],
            "{by:?}"
        );
        b.pass(64_000);
        b.assert_idle();
    }
    for (what, by, reason) in UNFRAMED {
        let (mut b, sent) = begun_over_tcp("INVITE");
        let busy = response(&sent, "486 Busy Here", "X: a\n").replacen(what, by, 1);
        assert!(b.stream(connection(), busy.as_bytes()), "{by:?}");
        assert_eq!(events(&mut b), [(reason, false)], "{by:?}");
        assert_eq!(b.counters().responses_flawed, 1);
    }
}

#[test]
fn a_callee_whose_2xx_breaks_its_stream_is_hung_up() {
    for (what, by, closes) in grave_on_a_stream() {
        let (mut b, sent) = begun_over_tcp("INVITE");
        let ok = response(&sent, "200 OK", CONTACT).replacen(what, by, 1);
        assert_eq!(
            answered_on_a_stream(&mut b, &ok, closes),
            [
                below("ACK sip:bob@192.0.2.21:5070;transport=udp SIP/2.0"),
                below("BYE sip:bob@192.0.2.21:5070;transport=udp SIP/2.0"),
                above("502 Bad Gateway")
            ],
            "{by:?}"
        );
    }
}

/// The callee rings, and responds on another connection.
#[test]
fn a_provisional_response_that_breaks_its_stream_ends_nothing() {
    for (what, by, closes) in grave_on_a_stream() {
        let (mut b, sent) = begun_over_tcp("INVITE");
        let ringing = response(&sent, "180 Ringing", "X: a\n").replacen(what, by, 1);
        assert_eq!(answered_on_a_stream(&mut b, &ringing, closes), [""; 0], "{by:?}");
        assert_eq!(lines(&b.pass(60_000)), [""; 0], "{by:?}");
        let ok = b.receive(tcp_flow(CALLEE, 4), &response(&sent, "200 OK", ""));
        assert_eq!(lines(&ok), [above("200 OK")], "{by:?}");
    }
}

/// What its Content-Length does not count is the next message: one that is none closes the connection. What it counts
/// and never comes makes it no response: its request has none.
#[test]
fn a_length_that_is_wrong_on_a_stream_is_believed() {
    let (mut b, sent) = begun_over_tcp("INVITE");
    let text = response(&sent, "486 Busy Here", "") + "v=0\r\no=bob\r\n\r\n";
    assert!(b.stream(connection(), text.as_bytes()));
    assert_eq!(
        lines(&b.drain()),
        [below("ACK sip:bob@example.com SIP/2.0"), above("486 Busy Here")]
    );
    assert_eq!(b.counters().dropped_not_sip, 1);
    for (what, by) in [("Content-Length: 0", "Content-Length: 10"), ("\r\n\r\n", "\r\n")] {
        let (mut b, sent) = begun_over_tcp("INVITE");
        let text = response(&sent, "486 Busy Here", "").replacen(what, by, 1);
        assert_eq!(answered_on_a_stream(&mut b, &text, false), [""; 0], "{by:?}");
        let late = b.pass(33_000);
        assert_eq!(lines(&late[..1]), [above("408 Request Timeout")], "{by:?}");
        b.pass(64_000);
        b.assert_idle();
    }
}

/// A callee that accepts one INVITE with ever new tags makes few requests of ours, and at a limit none.
#[test]
fn dialogs_of_one_invite_that_are_hung_up_are_few() {
    for (limit, expected) in [(usize::MAX, 8), (0, 0)] {
        let mut config = config();
        let (mut b, sent) = begun("INVITE", StateMode::Transaction);
        if limit == 0 {
            config.limits.held_transactions = 2;
            b.endpoint.reconfigure(&config);
        }
        let ok = response(&sent, "200 OK", CONTACT);
        let mut out = vec![];
        for tag in 0..1_000 {
            // After the first one, clean ones are hung up as well.
            let flaw = if tag % 2 == 0 { "X: \0" } else { "X: a" };
            let ok = ok
                .replace("X: a", flaw)
                .replace(";tag=t1", &format!(";tag=x{tag}"));
            out.extend(b.udp(CALLEE, &ok));
        }
        let count = |method: &str| out.iter().filter(|s| s.text.starts_with(method)).count();
        assert_eq!((count("ACK "), count("BYE ")), (1_000, expected), "{limit}");
        assert_eq!(b.counters().limited_transactions as usize, 1_000 - expected);
        assert_eq!(b.endpoint.gauges().client_transactions as usize, 1 + expected);
        b.pass(100_000);
        b.assert_idle();
    }
}

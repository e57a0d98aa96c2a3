//! Messages that are refused, that are dropped, and that never get a response (RFC 3261 §8.2, §16.3,
//! §18.1.2).
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use crate::common;

use common::*;
use sip_core::config::StateMode;
use sip_core::endpoint::Handled;
use sip_core::transport::Transport;

/// The whole response to `request`, with `received` where the source is not sent-by.
fn answer_to(request: &str, status: &str, tag: &str, extra: &str) -> String {
    let mut text = format!("SIP/2.0 {status}\r\n");
    for name in ["Via", "From", "To", "Call-ID", "CSeq"] {
        for line in request
            .split("\r\n")
            .filter(|l| l.starts_with(&format!("{name}:")))
        {
            text += line;
            if name == "To" {
                text += tag;
            }
            text += "\r\n";
        }
    }
    text + &crlf(extra) + "Content-Length: 0\r\n\r\n"
}

fn tag_of(sent: &Sent) -> String {
    let to = sent.header("To");
    to.find(";tag=tz")
        .map(|at| to[at..].to_string())
        .unwrap_or_default()
}

#[test]
fn a_refusal_is_made_of_the_request_and_its_tag_is_always_the_same() {
    let mut b = Bench::new(&config());
    let text = request("OPTIONS", "http://example.com", "a1", "");
    let out = one(b.udp(CALLER, &text));
    let tag = tag_of(&out);
    assert_eq!(tag.len(), ";tag=tz".len() + 16);
    assert_eq!(out.text, answer_to(&text, "416 Unsupported URI Scheme", &tag, ""));
    assert_eq!(out.to, udp_flow(CALLER));
    assert_eq!(tag_of(&one(b.udp(CALLER, &text))), tag);
    // Another call, another tag.
    let other = text.replace("c1@", "c2@");
    assert_ne!(tag_of(&one(b.udp(CALLER, &other))), tag);
    b.assert_idle();
}

#[test]
fn faults_are_refused_with_their_reason() {
    let good = request("OPTIONS", "sip:bob@example.com", "a1", "");
    let cases: &[(&str, &str, &str)] = &[
        // What becomes what, and the response.
        (
            "CSeq: 1 OPTIONS",
            "CSeq: 1 INVITE",
            "400 CSeq Method Does Not Match",
        ),
        ("CSeq: 1 OPTIONS", "CSeq: 1", "400 Missing Or Malformed CSeq"),
        (
            "CSeq: 1 OPTIONS",
            "CSeq: 2147483648 OPTIONS",
            "400 Missing Or Malformed CSeq",
        ),
        (
            "CSeq: 1 OPTIONS",
            "CSeq: x OPTIONS",
            "400 Missing Or Malformed CSeq",
        ),
        (
            "From: <sip:alice@example.com>",
            "From: <sip:alice@example.com",
            "400 Missing Or Malformed From",
        ),
        (";tag=f1", ";tag=\"f 1\"", "400 Missing Or Malformed From"),
        (
            "To: <sip:bob@example.com>",
            "To: \"Bob <sip:bob@example.com>",
            "400 Missing Or Malformed To",
        ),
        (
            "Call-ID: c1@192.0.2.10",
            "Call-ID: c1 192.0.2.10",
            "400 Missing Or Malformed Call-ID",
        ),
        (
            "Max-Forwards: 70",
            "Max-Forwards: 256",
            "400 Malformed Max-Forwards",
        ),
        (
            "Max-Forwards: 70",
            "Max-Forwards: x",
            "400 Malformed Max-Forwards",
        ),
        (
            "Max-Forwards: 70",
            "Max-Forwards: 70\r\nMax-Forwards: 70",
            "400 Repeated Header Field",
        ),
        (
            "Call-ID: c1",
            "Call-ID: c0\r\nCall-ID: c1",
            "400 Repeated Header Field",
        ),
        (
            "From: ",
            "f: <sip:x@example.com>;tag=1\r\nFrom: ",
            "400 Repeated Header Field",
        ),
        (
            "Content-Length: 0",
            "Content-Length: 1",
            "400 Body Shorter Than Content-Length",
        ),
        (
            "Content-Length: 0",
            "Content-Length: -1",
            "400 Bad Content-Length",
        ),
        (
            "Content-Length: 0",
            "Content-Length: 0\r\nl: 0",
            "400 Repeated Header Field",
        ),
        (
            "Content-Length: 0",
            "Subject x\r\nContent-Length: 0",
            "400 Malformed Header Line",
        ),
        (
            "Content-Length: 0\r\n\r\n",
            "Content-Length: 0\r\n",
            "400 No Empty Line After Headers",
        ),
        (
            "Content-Length: 0\r\n",
            "Content-Length: 0\n",
            "400 Line End Is Not CRLF",
        ),
        (
            "sip:bob@example.com SIP",
            "sip:bob @example.com SIP",
            "400 Malformed Request-Line",
        ),
        (
            "sip:bob@example.com SIP",
            "<sip:bob@example.com> SIP",
            "400 Malformed Request-URI",
        ),
        (
            "sip:bob@example.com SIP",
            "sip:bob@example.com:0 SIP",
            "400 Malformed Request-URI",
        ),
        (
            "sip:bob@example.com SIP",
            "sip:bob@example.com?a=b SIP",
            "400 Headers In Request-URI",
        ),
        (
            "sip:bob@example.com SIP",
            "urn:service:sos SIP",
            "416 Unsupported URI Scheme",
        ),
        (
            "SIP/2.0\r\nVia: SIP/2.0",
            "SIP/3.0\r\nVia: SIP/2.0",
            "505 Version Not Supported",
        ),
        (
            "Content-Length: 0",
            "Route: <sip:x\r\nContent-Length: 0",
            "400 Malformed Route",
        ),
        (
            "Content-Length: 0",
            "Route: <sip:x@>\r\nContent-Length: 0",
            "400 Malformed Route",
        ),
        ("Max-Forwards: 70", "Max-Forwards: 0", "483 Too Many Hops"),
    ];
    for (from, to, answer) in cases {
        let text = good.replacen(from, to, 1);
        assert_ne!(text, good, "{from}");
        let mut b = Bench::new(&config());
        let out = one(b.udp(CALLER, &text));
        assert_eq!(out.first_line(), format!("SIP/2.0 {answer}"), "{from} -> {to}");
        assert_eq!(out.to, udp_flow(CALLER));
        b.assert_idle();
        // The same in an ACK gets no response.
        let ack = text.replace("OPTIONS", "ACK").replace("1 INVITE", "1 BYE");
        let mut b = Bench::new(&config());
        assert_eq!(
            lines(&b.udp(CALLER, &ack)),
            Vec::<String>::new(),
            "{from} -> {to}"
        );
    }
}

#[test]
fn what_cannot_be_answered_is_dropped_and_counted() {
    let good = request("OPTIONS", "sip:bob@example.com", "a1", "");
    for header in ["Via", "From", "To", "Call-ID", "CSeq"] {
        let line = good.split("\r\n").find(|l| l.starts_with(header)).unwrap();
        for to in ["".to_string(), format!("{header}:\r\n")] {
            let mut b = Bench::new(&config());
            let text = good.replace(&format!("{line}\r\n"), &to);
            assert_eq!(lines(&b.udp(CALLER, &text)), Vec::<String>::new(), "{header}");
            assert_eq!(b.counters().dropped_malformed, 1, "{header}");
        }
    }
    let mut b = Bench::new(&config());
    let text = good.replace("Via: SIP/2.0/UDP 192.0.2.10:5060", "Via: SIP/2.0/UDP [::1:5060");
    assert!(b.udp(CALLER, &text).is_empty());
    assert_eq!(b.counters().dropped_malformed, 1);
}

#[test]
fn what_is_no_sip_is_counted_and_keep_alives_are_not() {
    let mut b = Bench::new(&config());
    for text in ["", "\r\n", "\r\n\r\n", "\0\0\0\0", "\r\n\r\n\0"] {
        assert!(b.udp(CALLER, text).is_empty());
    }
    assert_eq!(b.counters().dropped_not_sip, 0);
    for (n, text) in [
        "GET / HTTP/1.1\r\n\r\n",
        "x",
        "SIP/2.0 99 No\r\n\r\n",
        "INV{ITE sip:a@b SIP/2.0\r\n\r\n",
    ]
    .into_iter()
    .enumerate()
    {
        assert!(b.udp(CALLER, text).is_empty());
        assert_eq!(b.counters().dropped_not_sip, n as u64 + 1, "{text}");
    }
}

#[test]
fn proxy_require_and_require() {
    let mut b = Bench::new(&config());
    let text = request(
        "MESSAGE",
        "sip:bob@example.com",
        "a1",
        "Proxy-Require: foo, path\nProxy-Require: bar\n",
    );
    let out = one(b.udp(CALLER, &text));
    assert_eq!(
        out.text,
        answer_to(
            &text,
            "420 Bad Extension",
            &tag_of(&out),
            "Unsupported: foo, bar\n"
        )
    );
    // §20.29: in ACK and CANCEL it is ignored; what an end requires is its own business (§16.3).
    let mut stateless = config();
    stateless.state = StateMode::Stateless;
    let mut b = Bench::new(&stateless);
    for method in ["ACK", "CANCEL"] {
        let text = request(method, "sip:bob@example.com", "a2", "Proxy-Require: foo\n");
        assert_eq!(
            lines(&b.udp(CALLER, &text)),
            [format!("{CALLEE} {method} sip:bob@example.com SIP/2.0")]
        );
    }
    let text = request(
        "MESSAGE",
        "sip:bob@example.com",
        "a3",
        "Require: foo\nProxy-Require: PATH\n",
    );
    assert_eq!(
        lines(&b.udp(CALLER, &text)),
        [format!("{CALLEE} MESSAGE sip:bob@example.com SIP/2.0")]
    );
    let text = request("OPTIONS", "sip:example.com", "a4", "Require: foo\n");
    let out = one(b.udp(CALLER, &text));
    assert_eq!(
        (out.first_line(), out.header("Unsupported")),
        ("SIP/2.0 420 Bad Extension", "foo")
    );
}

/// RFC 3261 §11.2, §16.3 step 3: Max-Forwards concerns only what is to be forwarded.
#[test]
fn requests_to_this_server_are_answered_here() {
    for (method, uri, answer) in [
        ("OPTIONS", "sip:example.com", "200 OK"),
        ("OPTIONS", "sip:EXAMPLE.com:5060;transport=udp", "200 OK"),
        ("OPTIONS", "sip:proxy.example.com", "200 OK"),
        ("OPTIONS", "sip:192.0.2.1", "200 OK"),
        ("OPTIONS", "sip:192.0.2.1:5060", "200 OK"),
        ("REGISTER", "sip:example.com", "200 OK"),
        ("REGISTER", "sip:192.0.2.1", "403 Forbidden"),
        ("REGISTER", "sip:elsewhere.example", "403 Forbidden"),
        ("INVITE", "sip:example.com", "405 Method Not Allowed"),
        ("OPTIONS", "sips:example.com", "416 Unsupported URI Scheme"),
        ("BYE", "sip:192.0.2.1", "405 Method Not Allowed"),
        ("CANCEL", "sip:192.0.2.1", "481 Call/Transaction Does Not Exist"),
    ] {
        let mut b = Bench::new(&config());
        let text = request(method, uri, "a1", "")
            .replace("Max-Forwards: 70", "Max-Forwards: 0")
            .replace("To: <sip:bob@", "To: <sip:alice@");
        let out = one(b.udp(CALLER, &text));
        assert_eq!(out.first_line(), format!("SIP/2.0 {answer}"), "{method} {uri}");
        b.assert_idle();
    }
    let mut b = Bench::new(&config());
    assert!(
        b.udp(CALLER, &request("ACK", "sip:192.0.2.1", "a1", ""))
            .is_empty()
    );
    assert_eq!(b.counters().dropped_stray_ack, 1);
    // Another port is another server.
    let out = b.udp(CALLER, &request("OPTIONS", "sip:192.0.2.1:5080", "a2", ""));
    assert_eq!(
        lines(&out),
        [format!("{CALLEE} OPTIONS sip:192.0.2.1:5080 SIP/2.0")]
    );
    // In a dialog that is not known: RFC 3261 §12.2.2.
    let text =
        request("BYE", "sip:192.0.2.1", "a3", "").replace("bob@example.com>", "bob@example.com>;tag=x");
    assert_eq!(
        one(b.udp(CALLER, &text)).first_line(),
        "SIP/2.0 481 Call/Transaction Does Not Exist"
    );
}

#[test]
fn the_ack_to_a_stateless_refusal_is_absorbed_and_other_acks_are_not() {
    let mut config = config();
    config.state = StateMode::Stateless;
    let mut b = Bench::new(&config);
    for (from_tag, name) in [(";tag=f1", "with a From tag"), ("", "without")] {
        let invite = request("INVITE", "sip:bob@example.com", "a1", "Proxy-Require: foo\n")
            .replace(";tag=f1", from_tag);
        let refused = one(b.udp(CALLER, &invite));
        let ack = request("ACK", "sip:bob@example.com", "a1", "")
            .replace(";tag=f1", from_tag)
            .replace(
                "To: <sip:bob@example.com>",
                &format!("To: {}", refused.header("To")),
            );
        assert!(b.udp(CALLER, &ack).is_empty(), "{name}");
        // With a tag that is not of ours, or of another call, it goes on.
        for strange in [ack.replace(";tag=tz", ";tag=tx"), ack.replace("c1@", "c2@")] {
            let out = b.udp(CALLER, &strange);
            assert_eq!(
                lines(&out),
                [format!("{CALLEE} ACK sip:bob@example.com SIP/2.0")],
                "{name}"
            );
        }
    }
}

#[test]
fn strange_responses_are_dropped() {
    for state in [StateMode::Stateless, StateMode::Transaction] {
        let mut config = config();
        config.state = state;
        let mut b = Bench::new(&config);
        let out = b.udp(CALLER, &request("INVITE", "sip:bob@example.com", "a1", ""));
        let ok = response(out.last().unwrap(), "180 Ringing", "");
        let own_via = out.last().unwrap().header("Via").to_string();
        let branch = own_via
            .split("branch=")
            .nth(1)
            .unwrap()
            .split(';')
            .next()
            .unwrap();
        let callers_via = format!("Via: {}\r\n", out.last().unwrap().headers("Via")[1]);
        let flip = |c: char| if c == '0' { '1' } else { '0' };
        let forged: String = branch
            .chars()
            .enumerate()
            .map(|(i, c)| if i == 20 { flip(c) } else { c })
            .collect();
        let target: String = format!("{}01", &branch[..branch.len() - 2]);
        let mut strays = vec![
            ("foreign branch", ok.replace(branch, "z9hG4bKxyz")),
            ("no branch", ok.replace(&format!(";branch={branch}"), "")),
            ("forged branch", ok.replace(branch, &forged)),
            ("longer branch", ok.replace(branch, &format!("{branch}0"))),
            ("upper case branch", ok.replace(branch, &branch.to_uppercase())),
            (
                "sent-by of another",
                ok.replacen("192.0.2.1:5060", "192.0.2.2:5060", 1),
            ),
            (
                "sent-by port of another",
                ok.replacen("192.0.2.1:5060", "192.0.2.1:5080", 1),
            ),
        ];
        if state == StateMode::Stateless {
            strays.extend([
                ("our Via alone", ok.replace(&callers_via, "")),
                ("other target", ok.replace(branch, &target)),
                ("another Call-ID", ok.replace("c1@", "c2@")),
                ("another CSeq", ok.replace("1 INVITE", "2 INVITE")),
                ("another From tag", ok.replace("tag=f1", "tag=f2")),
                (
                    "another caller",
                    ok.replace("192.0.2.10:5060;", "192.0.2.11:5060;"),
                ),
                (
                    "sent to a name",
                    ok.replace("192.0.2.10:5060;", "host.example:5060;"),
                ),
                (
                    "sent elsewhere",
                    ok.replace("z9hG4bKa1", "z9hG4bKa1;received=192.0.2.99"),
                ),
            ]);
        }
        for (n, (what, text)) in strays.iter().enumerate() {
            assert_ne!(*text, ok, "{what}");
            assert_eq!(
                lines(&b.udp(CALLEE, text)),
                Vec::<String>::new(),
                "{state:?}: {what}"
            );
            assert_eq!(
                b.counters().dropped_stray_response,
                n as u64 + 1,
                "{state:?}: {what}"
            );
        }
        let malformed = [
            ok.replace("CSeq: 1 INVITE", "CSeq: INVITE"),
            ok.replace("Call-ID: c1@192.0.2.10\r\n", ""),
            ok.replace("From: <", "From: "),
            ok.replace("Content-Length: 0", "Content-Length: 10"),
            ok.replacen("SIP/2.0/UDP", "SIP/3.0/UDP", 1),
        ];
        for (n, text) in malformed.iter().enumerate() {
            assert_ne!(*text, ok);
            assert_eq!(lines(&b.udp(CALLEE, text)), Vec::<String>::new(), "{text}");
            // With state, what can be known again counts for its transaction (`flawed.rs`).
            let counters = b.counters();
            assert_eq!(
                counters.dropped_malformed + counters.responses_flawed,
                n as u64 + 1
            );
        }
        // After all that the right one still passes.
        assert_eq!(
            lines(&b.udp(CALLEE, &ok)),
            [format!("{CALLER} SIP/2.0 180 Ringing")]
        );
    }
}

/// Only what makes the end of a message doubtful costs the peer its connection.
#[test]
fn a_connection_is_closed_for_faults_of_framing_only() {
    let good = request("OPTIONS", "sip:example.com", "a1", "").replace("UDP", "TCP");
    let flow = tcp_flow("192.0.2.10:40000", 1);
    for (from, to, close) in [
        ("Content-Length: 0", "Content-Length: 0", false),
        ("CSeq: 1 OPTIONS", "CSeq: 1 INVITE", false),
        ("Max-Forwards: 70", "Max-Forwards: 70\r\nMax-Forwards: 70", false),
        ("sip:example.com SIP", "sip:exam ple.com SIP", false),
        ("SIP/2.0\r\nVia: SIP/2.0", "SIP/3.0\r\nVia: SIP/2.0", false),
        ("Content-Length: 0", "Content-Length: 9", true),
        ("Content-Length: 0", "Content-Length: x", true),
        ("Content-Length: 0", "Content-Length: 0\r\nl: 0", true),
        ("Content-Length: 0", "Subject\r\nContent-Length: 0", true),
        ("Content-Length: 0\r\n", "Content-Length: 0\n", true),
        ("Content-Length: 0\r\n\r\n", "Content-Length: 0\r\n", true),
    ] {
        let mut b = Bench::new(&config());
        let text = good.replacen(from, to, 1);
        let expected = if close { Handled::Close } else { Handled::Here };
        assert_eq!(b.handle(flow, &text), expected, "{from} -> {to}");
        // It gets its response all the same, on its connection.
        assert_eq!(one(b.drain()).to.conn, flow.conn);
        // A WebSocket's messages end with their frames (RFC 7118 §5).
        let (mut b, flow) = (
            Bench::new(&all_transports()),
            over(Transport::Ws, "192.0.2.10:40000", 1),
        );
        assert_eq!(b.handle(flow, &text), Handled::Here, "{from} -> {to}");
        assert_eq!(
            Bench::new(&config()).handle(udp_flow(CALLER), &text),
            Handled::Here
        );
    }
}

/// RFC 4475 §3.1.2.16: a client that speaks another version writes it into Via, too.
#[test]
fn another_version_in_via_can_be_answered() {
    let good = request("OPTIONS", "sip:bob@example.com", "a1", "");
    for (versions, answer) in [
        ("SIP/7.0\r\nVia: SIP/7.0", "505 Version Not Supported"),
        ("SIP/2.0\r\nVia: SIP/7.0", "400 Missing Or Malformed Via"),
    ] {
        let text = good.replacen("SIP/2.0\r\nVia: SIP/2.0", versions, 1);
        let mut b = Bench::new(&config());
        let out = one(b.udp(CALLER, &text));
        assert_eq!(out.first_line(), format!("SIP/2.0 {answer}"), "{versions}");
        assert_eq!(out.to, udp_flow(CALLER));
        assert!(out.header("Via").starts_with("SIP/7.0/UDP 192.0.2.10:5060"));
        b.assert_idle();
    }
}

/// RFC 3261 §10.2: a client that registers something else than a SIP URI has misread the protocol,
/// and gets 400, whatever the domain.
#[test]
fn only_sip_addresses_are_registered() {
    for (to, answer) in [
        ("<sip:bob@example.com>", "200 OK"),
        ("<sip:bob@elsewhere.example>", "404 Not Found"),
        ("<isbn:2983792873>", "400 To Is Not A SIP URI"),
        ("<tel:+19725552222>", "400 To Is Not A SIP URI"),
    ] {
        let register = request(
            "REGISTER",
            "sip:example.com",
            "a1",
            "Contact: <sip:bob@192.0.2.10>\n",
        )
        .replace("To: <sip:bob@example.com>", &format!("To: {to}"));
        let mut b = Bench::new(&config());
        assert_eq!(
            one(b.udp(CALLER, &register)).first_line(),
            format!("SIP/2.0 {answer}"),
            "{to}"
        );
    }
}

/// RFC 3261 §17.2.3: a branch without the cookie is one of RFC 2543, and so is an empty one.
#[test]
fn an_empty_branch_is_none() {
    for empty in ["branch=", "branch", "branch=;rport", "x=y"] {
        let mut b = Bench::new(&config());
        let text = request("INVITE", "sip:bob@example.com", "a1", "").replace("branch=z9hG4bKa1", empty);
        let sent = b.udp(CALLER, &text);
        assert_eq!(sent.len(), 2, "{empty}: {:?}", lines(&sent));
        assert_eq!(sent[1].address(), CALLEE);
        // A copy is known, and the response finds its way.
        assert_eq!(
            lines(&b.udp(CALLER, &text)),
            [format!("{CALLER} SIP/2.0 100 Trying")]
        );
        let out = b.udp(CALLEE, &response(&sent[1], "180 Ringing", ""));
        assert_eq!(lines(&out), [format!("{CALLER} SIP/2.0 180 Ringing")], "{empty}");
    }
}

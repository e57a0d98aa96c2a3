//! A forwarded message has the known edits, and not another changed byte (RFC 3261 §16.6, §16.7 step 3, §18,
//! RFC 3581).
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use crate::common;

use common::*;
use sip_core::config::{Config, StateMode};
use sip_core::transport::Transport;

fn stateless() -> Config {
    let mut config = config();
    config.state = StateMode::Stateless;
    config.routes[0].record_route = false;
    config
}

/// Forwards `text` through `config` and gives the message without our Via line.
#[track_caller]
fn forwarded(config: &Config, text: &str) -> String {
    let mut b = Bench::new(config);
    let out = one(b.udp(CALLER, text));
    let via = own_via(&out.text);
    assert_eq!(out.text.matches(&via).count(), 1);
    out.text.replace(&via, "")
}

/// The line that we put on top.
fn own_via(text: &str) -> String {
    let from = text.find("\r\n").unwrap() + 2;
    let line = &text[from..from + text[from..].find("\r\n").unwrap() + 2];
    assert!(
        line.starts_with("Via: SIP/2.0/UDP 192.0.2.1:5060;branch=z9hG4bK"),
        "{line}"
    );
    assert!(line.ends_with(";rport;tz=0\r\n"), "{line}");
    line.to_string()
}

#[test]
fn only_what_must_change_changes() {
    let odd = "MESSAGE sip:bob@example.com SIP/2.0\n\
        s:   odd spacing\t \n\
        v :SIP / 2.0 / UDP\n\t192.0.2.10:5060 ;branch=z9hG4bKa1;x=\"a,b;c\"\n\
        X-Unknown:\n\
        MAX-FORWARDS:  0070 \n\
        f: \"A, B\" <sip:alice@example.com>;tag=f1\n\
        t: sip:bob@example.com\n\
        i: c1@192.0.2.10\n\
        CSeq: 0001\n  MESSAGE\n\
        Subject: folded\n over\n\tlines\n\
        l: 12\n\n\
        body\n\n\0\x01\n";
    let text = crlf(odd);
    let body_at = text.find("\r\n\r\n").unwrap() + 4;
    let length = text.len() - body_at;
    let text = text.replace("l: 12", &format!("l: {length}"));
    // A value on several lines leaves on one, which means the same (§7.3.1): no server behind us
    // finds a header in the middle of it.
    let on_one_line = text
        .replace("UDP\r\n\t192", "UDP 192")
        .replace("0001\r\n  MESSAGE", "0001 MESSAGE")
        .replace("folded\r\n over\r\n\tlines", "folded over lines");
    assert_eq!(forwarded(&stateless(), &text), on_one_line.replace("0070", "69"));
}

#[test]
fn each_odd_via_and_max_forwards_is_mended_alone() {
    let good = request("MESSAGE", "sip:bob@example.com", "a1", "");
    let via = "Via: SIP/2.0/UDP 192.0.2.10:5060;branch=z9hG4bKa1";
    for (name, from, to, becomes) in [
        ("hops", "Max-Forwards: 70", "Max-Forwards: 1", "Max-Forwards: 0"),
        ("no hops", "Max-Forwards: 70\r\n", "", ""),
        (
            "another sent-by",
            via,
            "Via: SIP/2.0/UDP 10.0.0.1:5062;branch=z9hG4bKa1",
            "Via: SIP/2.0/UDP 10.0.0.1:5062;branch=z9hG4bKa1;received=192.0.2.10",
        ),
        (
            "a name",
            via,
            "Via: SIP/2.0/UDP pc.example;branch=z9hG4bKa1",
            "Via: SIP/2.0/UDP pc.example;branch=z9hG4bKa1;received=192.0.2.10",
        ),
        (
            "rport",
            via,
            "Via: SIP/2.0/UDP 192.0.2.10:5060;rport;branch=z9hG4bKa1",
            "Via: SIP/2.0/UDP 192.0.2.10:5060;branch=z9hG4bKa1;received=192.0.2.10;rport=5060",
        ),
        (
            "rport with a lie",
            via,
            "Via: SIP/2.0/UDP 192.0.2.10:5060;RPORT=9;branch=z9hG4bKa1;received=1.2.3.4",
            "Via: SIP/2.0/UDP 192.0.2.10:5060;branch=z9hG4bKa1;received=192.0.2.10;rport=5060",
        ),
        (
            "received, a lie",
            via,
            "Via: SIP/2.0/UDP 192.0.2.10:5060;branch=z9hG4bKa1;received=1.2.3.4",
            "Via: SIP/2.0/UDP 192.0.2.10:5060;branch=z9hG4bKa1",
        ),
        (
            "several values",
            via,
            "Via: SIP/2.0/UDP a.example;branch=z9hG4bKa1 , SIP/2.0/TCP b.example;branch=x\r\nv: SIP/2.0/UDP c",
            "Via: SIP/2.0/UDP a.example;branch=z9hG4bKa1;received=192.0.2.10 , SIP/2.0/TCP b.example;branch=x\r\nv: SIP/2.0/UDP c",
        ),
    ] {
        let text = good.replace(from, to);
        let mut expected = good.replace("Max-Forwards: 70", "Max-Forwards: 69");
        let from = from.replace("Max-Forwards: 70", "Max-Forwards: 69");
        expected = expected.replace(&from, becomes);
        if name == "no hops" {
            expected = expected.replacen("Via:", "Max-Forwards: 70\r\nVia:", 1);
        }
        assert_eq!(forwarded(&stateless(), &text), expected, "{name}");
    }
}

#[test]
fn what_follows_the_body_is_no_part_of_the_message() {
    let text =
        request("MESSAGE", "sip:bob@example.com", "a1", "").replace("Content-Length: 0", "Content-Length: 4");
    let expected = text.replace(": 70", ": 69") + "body";
    assert_eq!(
        forwarded(&stateless(), &(format!("\r\n\r\n{text}body and more"))),
        expected
    );
    // Without a Content-Length, a datagram is its body's end.
    let text = text.replace("Content-Length: 4\r\n", "");
    assert_eq!(
        forwarded(&stateless(), &format!("{text}body and more")),
        text.replace(": 70", ": 69") + "body and more"
    );
}

#[test]
fn a_stream_gets_a_content_length() {
    for state in [StateMode::Stateless, StateMode::Transaction] {
        let mut config = stateless();
        config.state = state;
        config.routes = vec![relay("sip:192.0.2.20:5060;transport=tcp")];
        config.routes[0].record_route = false;
        let text =
            request("MESSAGE", "sip:bob@example.com", "a1", "").replace("Content-Length: 0\r\n", "") + "four";
        let out = one(Bench::new(&config).udp(CALLER, &text));
        assert_eq!((out.to.transport, out.to.conn), (Transport::Tcp, None));
        assert!(
            out.text
                .ends_with("CSeq: 1 MESSAGE\r\nContent-Length: 4\r\n\r\nfour"),
            "{}",
            out.text
        );
        let via = out.header("Via");
        assert!(
            via.starts_with("SIP/2.0/TCP 192.0.2.1:5060;branch=z9hG4bK") && !via.contains("rport"),
            "{via}"
        );
        // Compact, it is there.
        let out = one(Bench::new(&config).udp(CALLER, &text.replace("\r\n\r\n", "\r\nl: 4\r\n\r\n")));
        assert!(out.text.ends_with("CSeq: 1 MESSAGE\r\nl: 4\r\n\r\nfour"));
    }
}

#[test]
fn record_route_goes_above_those_that_are_there() {
    let mut config = stateless();
    config.routes = vec![relay("sip:192.0.2.20:5060")];
    for method in ["INVITE", "SUBSCRIBE", "REFER"] {
        let text = request(
            method,
            "sip:bob@example.com",
            "a1",
            "Record-Route: <sip:192.0.2.8;lr>, <sip:192.0.2.9;lr>\n",
        );
        let out = one(Bench::new(&config).udp(CALLER, &text));
        let routes = out.headers("Record-Route");
        assert_eq!(routes.len(), 2, "{method}");
        assert!(
            routes[0].starts_with("<sip:192.0.2.1:5060;lr;tz=")
                && routes[0].len() == "<sip:192.0.2.1:5060;lr;tz=>".len() + 32
        );
        assert_eq!(routes[1], "<sip:192.0.2.8;lr>, <sip:192.0.2.9;lr>");
    }
    // Where none is there, and for what begins no dialog, and within one.
    let out = one(Bench::new(&config).udp(CALLER, &request("INVITE", "sip:bob@example.com", "a1", "")));
    assert_eq!(out.headers("Record-Route").len(), 1);
    for method in ["MESSAGE", "OPTIONS", "PUBLISH", "ACK", "CANCEL", "BYE"] {
        let out = one(Bench::new(&config).udp(CALLER, &request(method, "sip:bob@example.com", "a1", "")));
        assert!(out.headers("Record-Route").is_empty(), "{method}");
    }
    let within = request("INVITE", "sip:bob@example.com", "a1", "")
        .replace("bob@example.com>", "bob@example.com>;tag=x");
    assert!(
        one(Bench::new(&config).udp(CALLER, &within))
            .headers("Record-Route")
            .is_empty()
    );
}

#[test]
fn record_route_is_double_where_transport_or_listener_changes() {
    let mut config = stateless();
    config.routes = vec![relay("sip:192.0.2.20:5060;transport=tcp")];
    let invite = request("INVITE", "sip:bob@example.com", "a1", "");
    let routes = |out: &Sent| {
        out.headers("Record-Route")
            .iter()
            .map(|r| r.split(";tz=").next().unwrap().to_string())
            .collect::<Vec<_>>()
    };
    let out = one(Bench::new(&config).udp(CALLER, &invite));
    assert_eq!(
        routes(&out),
        [
            "<sip:192.0.2.1:5060;transport=tcp;lr;r2=on",
            "<sip:192.0.2.1:5060;lr;r2=on"
        ]
    );
    // Another network: another listener.
    config
        .listeners
        .push(listener(Transport::Udp, "198.51.100.1:5062"));
    config.routes = vec![relay("sip:198.51.100.20")];
    let out = one(Bench::new(&config).udp(CALLER, &invite));
    assert_eq!(
        routes(&out),
        ["<sip:198.51.100.1:5062;lr;r2=on", "<sip:192.0.2.1:5060;lr;r2=on"]
    );
    assert!(
        out.header("Via")
            .starts_with("SIP/2.0/UDP 198.51.100.1:5062;branch=")
    );
}

#[test]
fn responses_lose_our_via_and_nothing_else() {
    for state in [StateMode::Stateless, StateMode::Transaction] {
        let mut config = config();
        config.state = state;
        let via = "Via: SIP/2.0/UDP 192.0.2.10:5060;branch=z9hG4bKa1";
        let text = request("INVITE", "sip:bob@example.com", "a1", "").replace(
            via,
            &format!("{via}, SIP/2.0/UDP 192.0.2.11:5060;branch=z9hG4bKb\r\nVia: SIP/2.0/UDP 192.0.2.12"),
        );
        let mut b = Bench::new(&config);
        let sent = b.udp(CALLER, &text).pop().unwrap();
        let ours = sent.header("Via").to_string();
        let theirs =
            format!("{via}, SIP/2.0/UDP 192.0.2.11:5060;branch=z9hG4bKb\r\nVia: SIP/2.0/UDP 192.0.2.12\r\n");
        let ok = response(&sent, "180 Ringing", "x-odd :  y \nm: <sip:bob@192.0.2.20>\n") + "body after";
        for how in [
            ok.clone(),
            // Our Via with others on its line, in compact form, with folding and empty elements.
            ok.replace(&format!("Via: {ours}\r\nVia: "), &format!("v: {ours} ,\r\n  ")),
            ok.replace(&format!("Via: {ours}\r\nVia: "), &format!("VIA:, {ours},, ")),
        ] {
            let out = one(b.udp(CALLEE, &how));
            assert_eq!(out.to, udp_flow(CALLER));
            let rest = |text: &str| text.split("\r\nRecord-Route").nth(1).unwrap().to_string();
            assert_eq!(
                rest(&unmarked(&out.text)),
                rest(&unmarked(&ok)).replace("body after", ""),
                "{how}"
            );
            let vias: Vec<String> = out
                .headers("v")
                .into_iter()
                .chain(out.headers("Via"))
                .map(str::to_string)
                .collect();
            let line = vias.join("\r\nVia: ") + "\r\n";
            assert_eq!(
                format!("Via: {line}").replace("Via: , ", "Via: "),
                theirs,
                "{how}"
            );
        }
    }
}

/// RFC 3261 §18.2.2, RFC 3581 §4.
#[test]
fn responses_go_where_via_says() {
    for state in [StateMode::Stateless, StateMode::Transaction] {
        let mut config = config();
        config.state = state;
        for (via, to) in [
            ("192.0.2.10:5070", "192.0.2.10:5070"),
            ("192.0.2.10", "192.0.2.10:5060"),
            ("10.0.0.1:5070", "192.0.2.10:5070"),
            ("pc.example", "192.0.2.10:5060"),
            ("10.0.0.1:5070;rport", "192.0.2.10:40000"),
            ("192.0.2.10:5070;rport=1", "192.0.2.10:40000"),
            ("10.0.0.1:5070;received=8.8.8.8", "192.0.2.10:5070"),
        ] {
            let mut b = Bench::new(&config);
            let text = request("MESSAGE", "sip:bob@example.com", "a1", "")
                .replace("192.0.2.10:5060;branch", &format!("{via};branch"));
            let sent = b.udp("192.0.2.10:40000", &text).pop().unwrap();
            let out = one(b.udp(CALLEE, &response(&sent, "200 OK", "")));
            assert_eq!(out.address(), to, "{state:?} {via}");
            // Our own responses go there, too.
            let out = one(b.udp(
                "192.0.2.10:40000",
                &text
                    .replace("sip:bob@", "mailto:bob@")
                    .replace("z9hG4bKa1", "z9hG4bKa2"),
            ));
            assert_eq!(
                (out.first_line(), out.address()),
                ("SIP/2.0 416 Unsupported URI Scheme", to.to_string())
            );
        }
    }
}

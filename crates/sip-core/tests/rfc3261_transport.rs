//! Rules of RFC 3261 §18 and of RFC 3581 and RFC 5658, where no other file of tests has them.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use crate::common;

use common::*;
use sip_core::config::{Config, StateMode};
use sip_core::transport::{Flow, Transport};

const BOB: &str = "sip:bob@example.com";

fn stateless() -> Config {
    let mut config = config();
    config.state = StateMode::Stateless;
    config
}

/// §18.1.1: messages of nearly 65,535 bytes are handled; nothing of them is lost.
#[test]
fn a_datagram_of_the_greatest_length_passes() {
    let body = "v=0\r\n".repeat(13_000);
    for state in [StateMode::Stateless, StateMode::Transaction] {
        let mut config = Config { state, ..config() };
        config.limits.udp_mtu = 0;
        let length = format!("Content-Length: {}", body.len());
        let text = request("MESSAGE", BOB, "a1", "").replace("Content-Length: 0", &length) + &body;
        assert!((65_000..65_507).contains(&text.len()));
        let out = one(Bench::new(&config).udp(CALLER, &text));
        assert!(out.text.ends_with(&body) && out.header("Content-Length") == body.len().to_string());
    }
}

/// §18.2.2: `maddr` of Via moves no response (against the rule: see the list of those), made here or
/// relayed, with state or without.
#[test]
fn maddr_of_via_moves_no_answer() {
    for state in [StateMode::Stateless, StateMode::Transaction] {
        let config = Config { state, ..config() };
        let text = request("MESSAGE", BOB, "a1", "")
            .replace(";branch=z9hG4bKa1", ";maddr=198.51.100.66;ttl=1;branch=z9hG4bKa1");
        let mut b = Bench::new(&config);
        let sent = one(b.udp(CALLER, &text));
        assert_eq!(
            one(b.udp(CALLEE, &response(&sent, "200 OK", ""))).address(),
            CALLER
        );
        let own = text.replace(BOB, "urn:x").replace("z9hG4bKa1", "z9hG4bKa2");
        assert_eq!(one(b.udp(CALLER, &own)).address(), CALLER);
    }
}

/// §18.2.1, RFC 3581 §4: `received` is there where sent-by is a name or another address, and on
/// streams as well; a response has it as the request left with it.
#[test]
fn received_is_added_on_every_transport() {
    for (sent_by, received) in [
        ("192.0.2.10", false),
        ("192.0.2.10:5099", false),
        ("192.0.2.11", true),
        ("pc.example", true),
        ("[2001:db8::1]", true),
    ] {
        for transport in ["UDP", "TCP"] {
            let flow = match transport {
                "UDP" => udp_flow(CALLER),
                _ => tcp_flow("192.0.2.10:40000", 3),
            };
            let text = request("MESSAGE", BOB, "a1", "")
                .replace("UDP 192.0.2.10:5060", &format!("{transport} {sent_by}"));
            let mut b = Bench::new(&stateless());
            let sent = one(b.receive(flow, &text));
            let expected = format!("SIP/2.0/{transport} {sent_by};branch=z9hG4bKa1");
            let expected = if received {
                expected + ";received=192.0.2.10"
            } else {
                expected
            };
            assert_eq!(sent.headers("Via")[1], expected);
            let own = one(b.receive(flow, &text.replace(BOB, "urn:x")));
            assert_eq!(own.header("Via"), expected);
        }
    }
}

/// RFC 3581 §4: `rport` is filled in and `received` is there even where both say nothing new; the
/// response goes to that port, from the listener that the request came to.
#[test]
fn rport_brings_the_answer_to_the_port_of_the_source() {
    let mut config = stateless();
    config.listeners.push(listener(Transport::Udp, "192.0.2.1:5070"));
    for (listener, from) in [(0, CALLER), (0, "192.0.2.10:40000"), (2, "192.0.2.10:40000")] {
        let flow = Flow {
            listener: sip_core::id::ListenerId(listener),
            ..udp_flow(from)
        };
        let text = request("MESSAGE", BOB, "a1", "").replace(";branch", ";rport;branch");
        let mut b = Bench::new(&config);
        let sent = one(b.receive(flow, &text));
        let port = flow.remote.port();
        let via = format!("SIP/2.0/UDP 192.0.2.10:5060;branch=z9hG4bKa1;received=192.0.2.10;rport={port}");
        assert_eq!(sent.headers("Via")[1], via);
        assert_eq!(one(b.udp(CALLEE, &response(&sent, "200 OK", ""))).to, flow);
        let own = one(b.receive(flow, &text.replace(BOB, "urn:x")));
        assert_eq!((own.to, own.header("Via")), (flow, via.as_str()));
    }
}

/// RFC 3581 §3: `rport` without a value in what is sent over UDP, none on streams.
#[test]
fn requests_ask_for_rport_on_udp_only() {
    for (to, there) in [
        ("sip:192.0.2.20:5060", true),
        ("sip:192.0.2.20:5060;transport=tcp", false),
    ] {
        let mut config = stateless();
        config.routes = vec![relay(to)];
        let out = one(Bench::new(&config).udp(CALLER, &request("MESSAGE", BOB, "a1", "")));
        let via = out.header("Via");
        assert_eq!(via.split(';').any(|p| p == "rport"), there, "{via}");
        assert!(!via.contains("rport="));
    }
}

/// RFC 5658 §5: of two Record-Routes each side uses the one on its side, both come off, and each
/// leg keeps its transport.
#[test]
fn a_dialog_across_transports_keeps_both() {
    for state in [StateMode::Stateless, StateMode::Transaction] {
        let mut config = Config { state, ..config() };
        config.routes = vec![relay("sip:192.0.2.20:5060;transport=tcp")];
        let mut b = Bench::new(&config);
        let sent = b.udp(CALLER, &request("INVITE", BOB, "a1", "")).pop().unwrap();
        assert_eq!(sent.to.transport, Transport::Tcp);
        let marks = sent.headers("Record-Route");
        let [tcp, udp] = marks[..] else {
            panic!("{marks:?}");
        };
        assert!(tcp.contains(";transport=tcp;lr;r2=on;") && !udp.contains("transport"));
        // The caller's route set is the reverse of what the response brings (§12.1.2).
        let bye = |uri: &str, routes: [&str; 2], branch: &str| {
            request(
                "BYE",
                uri,
                branch,
                &format!("Route: {}\nRoute: {}\n", routes[0], routes[1]),
            )
            .replace("bob@example.com>", "bob@example.com>;tag=t1")
        };
        let out = one(b.udp(CALLER, &bye("sip:bob@192.0.2.20;transport=tcp", [udp, tcp], "a2")));
        assert_eq!(
            (out.to.transport, out.headers("Route").len()),
            (Transport::Tcp, 0)
        );
        assert!(out.header("Via").starts_with("SIP/2.0/TCP 192.0.2.1:5060;"));
        let from_callee = bye("sip:alice@192.0.2.10", [tcp, udp], "b2")
            .replace("UDP 192.0.2.10", "TCP 192.0.2.20")
            .replace(
                "From: <sip:alice@example.com>;tag=f1",
                "From: <sip:bob@example.com>;tag=t1",
            )
            .replace(
                "To: <sip:bob@example.com>;tag=t1",
                "To: <sip:alice@example.com>;tag=f1",
            );
        let out = one(b.receive(tcp_flow("192.0.2.20:40000", 4), &from_callee));
        assert_eq!(
            lines(std::slice::from_ref(&out)),
            ["192.0.2.10:5060 BYE sip:alice@192.0.2.10 SIP/2.0"]
        );
        assert_eq!(
            (out.to.transport, out.headers("Route").len()),
            (Transport::Udp, 0)
        );
    }
}

/// §18.4, §8.1.3.1: an error of the transport for a request fails its transaction, for a datagram and
/// a connection alike.
#[test]
fn a_next_hop_that_the_transport_cannot_reach_is_a_500() {
    for to in ["sip:192.0.2.20:5060", "sip:192.0.2.20:5060;transport=tcp"] {
        let mut config = config();
        config.routes = vec![relay(to)];
        let mut b = Bench::new(&config);
        let sent = one(b.udp(CALLER, &request("MESSAGE", BOB, "a1", "")));
        let out = b.undelivered(&sent);
        assert_eq!(
            lines(&out),
            [format!("{CALLER} SIP/2.0 500 Server Internal Error")],
            "{to}"
        );
    }
}

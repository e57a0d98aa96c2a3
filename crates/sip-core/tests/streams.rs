//! Responses to what came on a connection leave on it, with and without state (RFC 3261 §18.2.2).

use crate::common;

use common::*;
use sip_core::config::{Config, StateMode};
use sip_core::id::{ConnId, ListenerId, WorkerId};
use sip_core::transport::{Flow, Proof, Transport};

fn stateless() -> Config {
    Config {
        state: StateMode::Stateless,
        ..config()
    }
}

fn invite() -> String {
    request("INVITE", "sip:bob@example.com", "a1", "")
        .replace("UDP 192.0.2.10:5060", "TCP 192.0.2.10:5062;rport")
}

#[test]
fn a_token_brings_stateless_responses_to_their_connection() {
    let mut b = Bench::new(&stateless());
    let flow = tcp_flow("192.0.2.10:40000", 12);
    let sent = one(b.receive(flow, &invite()));
    assert_eq!(
        (sent.to.transport, sent.address().as_str()),
        (Transport::Udp, CALLEE)
    );
    let via = via_without_seed(&sent);
    assert!(via.ends_with(";rport;tz=1.0.12.7"), "{via}");
    let ok = response(&sent, "200 OK", "");
    let out = one(b.udp(CALLEE, &ok));
    assert_eq!(out.to.conn, flow.conn);
    // Should the connection be gone: to the address that the request came from, at the port of
    // sent-by.
    assert_eq!(
        (out.to.transport, out.address().as_str()),
        (Transport::Tcp, "192.0.2.10:5062")
    );
    // The token is not under the MAC: a wrong one costs at most the connection, and one that
    // cannot be is none. (That a connection is its peer's, the shell checks by the address.)
    let written = sent.header("Via").split_once(";rport").expect("it has one").1;
    let token = |text: &str| ok.replace(written, text);
    // Without one it is no Via of a message without state (RFC 6026 §6).
    assert!(b.udp(CALLEE, &token("")).is_empty());
    for text in [
        ";tz",
        ";tz=1",
        ";tz=x",
        ";tz=0.0.12.7",
        ";tz=9.0.12.7",
        ";tz=1.0.12",
        ";tz=1.0.12.7.8",
        ";tz=1..12.7",
        ";tz=-1.0.12.7",
        ";tz=1.99999999999.1.1",
    ] {
        let out = one(b.udp(CALLEE, &token(text)));
        assert_eq!(
            (out.to.transport, out.address().as_str(), out.to.conn),
            (Transport::Tcp, "192.0.2.10:5062", None),
            "{text}"
        );
    }
    let other = one(b.udp(CALLEE, &token(";tz=1.3.4.5")));
    assert_eq!(
        other.to.conn,
        Some(ConnId {
            worker: WorkerId(3),
            slot: 4,
            generation: 5
        })
    );
    assert_eq!(other.address(), "192.0.2.10:5062");
}

#[test]
fn a_token_names_no_listener_of_another_kind() {
    let mut config = stateless();
    config
        .listeners
        .push(listener(Transport::Udp, "[2001:db8::1]:5060"));
    config.listeners.push(listener(Transport::Udp, "192.0.2.2:5060"));
    let mut b = Bench::new(&config);
    let mut flow = udp_flow(CALLER);
    flow.listener = ListenerId(3);
    let sent = one(b.receive(flow, &request("INVITE", "sip:bob@example.com", "a1", "")));
    // Two listeners of a kind: the Via must name the one that it came to.
    assert!(via_without_seed(&sent).ends_with(";rport;tz=3"));
    let ok = response(&sent, "200 OK", "");
    assert_eq!(one(b.udp(CALLEE, &ok)).to.listener, ListenerId(3));
    for (token, listener) in [(";tz=0", 0), (";tz=1", 0), (";tz=2", 0), (";tz=7", 0)] {
        let out = one(b.udp(CALLEE, &ok.replace(";tz=3", token)));
        assert_eq!(out.to.listener, ListenerId(listener), "{token}");
    }
}

#[test]
fn answers_made_here_leave_on_the_connection() {
    for state in [StateMode::Stateless, StateMode::Transaction] {
        let mut b = Bench::new(&Config { state, ..config() });
        let flow = tcp_flow("192.0.2.10:40000", 1);
        let out = one(b.receive(flow, &invite().replace("sip:bob@", "mailto:bob@")));
        assert_eq!(
            (out.first_line(), out.to.conn),
            ("SIP/2.0 416 Unsupported URI Scheme", flow.conn)
        );
        assert_eq!(
            out.header("Via"),
            "SIP/2.0/TCP 192.0.2.10:5062;branch=z9hG4bKa1;received=192.0.2.10;rport=40000"
        );
        // §18.2.2: if it is gone, the port of sent-by.
        assert_eq!(out.address(), "192.0.2.10:5062");
    }
}

#[test]
fn with_state_everything_of_the_call_goes_back_there() {
    let mut b = Bench::new(&config());
    let flow = tcp_flow("192.0.2.10:40000", 1);
    let out = b.receive(flow, &invite());
    assert_eq!(
        (out[0].first_line(), out[0].to.conn),
        ("SIP/2.0 100 Trying", flow.conn)
    );
    assert!(!out[1].header("Via").contains("tz="));
    for status in ["180 Ringing", "200 OK"] {
        assert_eq!(
            one(b.udp(CALLEE, &response(&out[1], status, ""))).to.conn,
            flow.conn
        );
    }
}

/// A registered phone with a closed connection is tried at its contact's own address.
#[test]
fn a_contact_is_behind_its_connection() {
    let mut config = config();
    config.routes.clear();
    let mut b = Bench::new(&config);
    let flow = Flow {
        transport: Transport::Tcp,
        listener: ListenerId(1),
        remote: "192.0.2.30:40000".parse().unwrap(),
        conn: Some(ConnId {
            worker: WorkerId(0),
            slot: 4,
            generation: 2,
        }),
        proof: Proof::None,
    };
    let register = request(
        "REGISTER",
        "sip:example.com",
        "r1",
        "Contact: <sip:bob@192.0.2.30:5062;transport=tcp>\n",
    )
    .replace("From: <sip:alice@", "From: <sip:bob@");
    assert_eq!(b.receive(flow, &register)[0].first_line(), "SIP/2.0 200 OK");
    let out = b.udp(CALLER, &request("INVITE", "sip:bob@example.com", "a1", ""));
    assert_eq!(out[1].to.conn, flow.conn);
    let now = b.now();
    let to = out[1].to;
    b.endpoint.handle_undelivered(now, to, out[1].text.as_bytes());
    let out = b.drain();
    assert_eq!(out[0].address(), "192.0.2.30:5062");
    assert_eq!(out[0].to.transport, Transport::Tcp);
    let to = out[0].to;
    b.endpoint.handle_undelivered(now, to, out[0].text.as_bytes());
    assert_eq!(b.drain()[0].first_line(), "SIP/2.0 480 Temporarily Unavailable");
}

/// RFC 3261 §18.2.2 and RFC 3263 §5: the caller's connection is gone, and its address takes no other.
#[test]
fn a_response_goes_where_sent_by_leads_when_its_connection_is_gone() {
    let mut b = Bench::new(&config());
    let flow = tcp_flow("192.0.2.10:40000", 12);
    let text = request("INVITE", "sip:bob@example.com", "a1", "");
    let text = text.replace("SIP/2.0/UDP 192.0.2.10:5060", "SIP/2.0/TCP pbx.example.net");
    let out = b.receive(flow, &text);
    assert_eq!(
        (out[0].first_line(), out[0].to.conn),
        ("SIP/2.0 100 Trying", flow.conn)
    );
    // Nothing is known of the name yet: this one is lost, and the name is asked for.
    assert!(b.undelivered(&out[0]).is_empty());
    let zone: Zone<'_> = &[
        (
            "_sip._tcp.pbx.example.net Srv",
            vec![
                service(1, 0, 5070, "a.example.net"),
                service(2, 0, 5080, "b.example.net"),
            ],
        ),
        ("a.example.net A", vec![address("192.0.2.41")]),
        ("b.example.net A", vec![address("192.0.2.42")]),
    ];
    b.serve(zone);
    let mut ringing = b.udp(CALLEE, &response(&out[1], "180 Ringing", ""));
    assert_eq!(ringing[0].to.conn, flow.conn);
    // The addresses of the services were not asked for by the first.
    assert!(b.undelivered(&ringing[0]).is_empty());
    b.serve(zone);
    let mut places = vec![];
    while let Some(sent) = ringing.pop() {
        assert_eq!(sent.first_line(), "SIP/2.0 180 Ringing");
        ringing = b.undelivered(&sent);
        places.extend(ringing.iter().map(|s| (s.to.transport, s.address(), s.to.conn)));
    }
    let place = |at: &str| (Transport::Tcp, at.to_string(), None);
    assert_eq!(places, [place("192.0.2.41:5070"), place("192.0.2.42:5080")]);
}

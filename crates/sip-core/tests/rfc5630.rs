//! SIPS URIs, TLS and WebSocket as transports (RFC 5630, RFC 3261 §26.2.2, RFC 7118).

use crate::common;

use common::*;
use sip_core::config::{Config, StateMode};
use sip_core::transport::{Flow, Proof, Transport};

const SIPS_BOB: &str = "sips:bob@example.com";
const PHONE: &str = "192.0.2.30:40000";

fn location() -> Config {
    let mut config = all_transports();
    config.routes.clear();
    config
}

/// A connection of a peer with a certificate that we know.
fn known(transport: Transport, from: &str, slot: u32) -> Flow {
    Flow {
        proof: Proof::Certificate,
        ..over(transport, from, slot)
    }
}

/// bob registers `contact` over `transport`.
#[track_caller]
fn registered(config: &Config, transport: Transport, contact: &str) -> Bench {
    let mut b = Bench::new(config);
    let register = request(
        "REGISTER",
        "sip:example.com",
        "r1",
        &format!("Contact: <{contact}>\n"),
    )
    .replace("From: <sip:alice@", "From: <sip:bob@");
    let flow = over(transport, PHONE, 4);
    assert_eq!(b.receive(flow, &register)[0].first_line(), "SIP/2.0 200 OK");
    b
}

/// The only message that alice's INVITE over `transport` leads to, the 100 left out.
fn called(b: &mut Bench, transport: Transport, uri: &str) -> Sent {
    let mut out = b.receive(known(transport, CALLER, 9), &request("INVITE", uri, "a1", ""));
    out.retain(|s| s.first_line() != "SIP/2.0 100 Trying");
    one(out)
}

const UNAVAILABLE: &str = "SIP/2.0 480 Temporarily Unavailable";

#[test]
fn a_sips_request_goes_on_to_sips_contacts_by_tls_only() {
    let mut b = registered(&location(), Transport::Tls, "sips:bob@192.0.2.30:5061");
    let sent = called(&mut b, Transport::Tls, SIPS_BOB);
    assert_eq!(sent.first_line(), "INVITE sips:bob@192.0.2.30:5061 SIP/2.0");
    assert_eq!(
        (sent.to.transport, sent.address().as_str()),
        (Transport::Tls, PHONE)
    );
    assert!(
        sent.header("Via")
            .starts_with("SIP/2.0/TLS 192.0.2.1:5061;branch=")
    );
    // A SIP contact is none for it, however it was registered.
    for transport in [Transport::Udp, Transport::Tcp, Transport::Tls, Transport::Wss] {
        let mut b = registered(&location(), transport, "sip:bob@192.0.2.30:5061;transport=tls");
        assert_eq!(called(&mut b, Transport::Tls, SIPS_BOB).first_line(), UNAVAILABLE);
    }
    // Nor is a flow that is none: the contact's own address is tried by TLS.
    let mut b = registered(&location(), Transport::Udp, "sips:bob@192.0.2.30");
    let sent = called(&mut b, Transport::Tls, SIPS_BOB);
    assert_eq!(
        (sent.to.transport, sent.address().as_str()),
        (Transport::Tls, "192.0.2.30:5061")
    );
}

/// RFC 5630 §5.3: "MUST replace that SIPS scheme with a SIP scheme", and "MUST use TLS".
#[test]
fn a_sip_request_reaches_a_sips_contact_as_sip_by_tls() {
    let mut b = registered(&location(), Transport::Tls, "sips:bob@192.0.2.30:5061;x=1");
    let sent = called(&mut b, Transport::Udp, "sip:bob@example.com");
    assert_eq!(sent.first_line(), "INVITE sip:bob@192.0.2.30:5061;x=1 SIP/2.0");
    assert_eq!(
        (sent.to.transport, sent.address().as_str()),
        (Transport::Tls, PHONE)
    );
    // Its connection is gone: to the contact's own address, by TLS as well.
    let sent = one(b.undelivered(&sent));
    assert_eq!(sent.first_line(), "INVITE sip:bob@192.0.2.30:5061;x=1 SIP/2.0");
    let place = (sent.to.transport, sent.address(), sent.to.conn);
    assert_eq!(place, (Transport::Tls, "192.0.2.30:5061".into(), None));
}

#[test]
fn several_contacts_keep_their_scheme_rules() {
    let mut b = registered(&location(), Transport::Tls, "sips:bob@192.0.2.30:5061");
    let second = request(
        "REGISTER",
        "sip:example.com",
        "r2",
        "Contact: <sip:bob@192.0.2.31>\n",
    )
    .replace("From: <sip:alice@", "From: <sip:bob@")
    .replace("c1@", "c2@");
    b.udp("192.0.2.31:5060", &second);
    let mut out = b.udp(CALLER, &request("INVITE", "sip:bob@example.com", "a1", ""));
    out.retain(|s| s.first_line().starts_with("INVITE"));
    let mut places: Vec<_> = out
        .iter()
        .map(|s| (s.to.transport, s.first_line().to_string()))
        .collect();
    places.sort_by_key(|p| p.1.clone());
    assert_eq!(
        places,
        [
            (
                Transport::Tls,
                "INVITE sip:bob@192.0.2.30:5061 SIP/2.0".to_string()
            ),
            (Transport::Udp, "INVITE sip:bob@192.0.2.31 SIP/2.0".to_string()),
        ]
    );
}

/// RFC 3261 §16.6 step 4.
#[test]
fn record_route_is_sips_where_the_request_uri_is() {
    let mut b = registered(&location(), Transport::Tls, "sips:bob@192.0.2.30:5061");
    let sent = called(&mut b, Transport::Tls, SIPS_BOB);
    let marks = sent.headers("Record-Route");
    assert!(
        marks.len() == 1 && marks[0].starts_with("<sips:") && marks[0].contains("@192.0.2.1:5061;lr;tz="),
        "{marks:?}"
    );
    // To SIP it is SIP, though both sides speak TLS.
    let mut b = registered(&location(), Transport::Tls, "sips:bob@192.0.2.30:5061");
    let sent = called(&mut b, Transport::Tls, "sip:bob@example.com");
    let marks = sent.headers("Record-Route");
    assert!(
        marks[0].starts_with("<sip:") && marks[0].contains("@192.0.2.1:5061;transport=tls;lr;"),
        "{marks:?}"
    );
}

/// §26.2.2: no caller can ask for TLS on each hop without using it.
#[test]
fn a_sips_request_that_came_without_tls_ends_here() {
    for transport in [Transport::Udp, Transport::Tcp, Transport::Ws] {
        let mut b = registered(&location(), Transport::Tls, "sips:bob@192.0.2.30:5061");
        let sent = called(&mut b, transport, SIPS_BOB);
        assert_eq!(sent.first_line(), UNAVAILABLE, "{transport}");
        assert!(
            sent.header("Warning").ends_with("\"SIPS Not Allowed\""),
            "{}",
            sent.text
        );
    }
    let mut trusting = location();
    trusting.trust = vec![sip_core::config::Network {
        address: "192.0.2.10".parse().unwrap(),
        prefix_len: 32,
    }];
    let mut b = registered(&trusting, Transport::Tls, "sips:bob@192.0.2.30:5061");
    let sent = called(&mut b, Transport::Tcp, SIPS_BOB);
    assert_eq!(sent.to.transport, Transport::Tls);
    // The trusted peer did not use TLS, so the Record-Route of its side is no SIPS URI.
    let marks = sent.headers("Record-Route");
    assert!(
        marks.len() == 2
            && marks[0].starts_with("<sips:")
            && marks[0].contains("@192.0.2.1:5061;lr;")
            && marks[1].starts_with("<sip:192.0.2.1:5060;transport=tcp;lr;"),
        "{marks:?}"
    );
    // Without a listener that speaks TLS nothing of SIPS is understood.
    let plain = config();
    let out = one(Bench::new(&plain).udp(CALLER, &request("INVITE", SIPS_BOB, "a1", "")));
    assert_eq!(out.first_line(), "SIP/2.0 416 Unsupported URI Scheme");
}

/// A next hop that means another transport is none for SIPS; one that says nothing is reached by TLS.
#[test]
fn next_hops_of_a_rule_are_reached_by_tls_for_sips() {
    for (hop, expected) in [
        ("sip:192.0.2.20", Some("192.0.2.20:5061")),
        ("sip:192.0.2.20:5071;transport=tls", Some("192.0.2.20:5071")),
        ("sips:192.0.2.20:5071", Some("192.0.2.20:5071")),
        ("sip:192.0.2.20:5060", None),
        ("sip:192.0.2.20;transport=tcp", None),
        ("sip:192.0.2.20;transport=udp", None),
    ] {
        for state in [StateMode::Stateless, StateMode::Transaction] {
            let mut config = all_transports();
            config.state = state;
            config.routes = vec![relay(hop)];
            let sent = called(&mut Bench::new(&config), Transport::Tls, SIPS_BOB);
            match expected {
                Some(place) => {
                    assert_eq!(
                        (sent.to.transport, sent.address().as_str()),
                        (Transport::Tls, place),
                        "{hop}"
                    );
                    assert!(sent.first_line().starts_with("INVITE sips:"));
                }
                None => assert_eq!(sent.first_line(), UNAVAILABLE, "{hop}"),
            }
        }
    }
}

/// `transport=tls` in a SIP URI is deprecated (RFC 5630 §3.1.4), and what most phones write.
#[test]
fn transport_tls_of_a_sip_uri_is_understood() {
    let mut config = all_transports();
    config.routes = vec![relay("sip:192.0.2.20;transport=tls")];
    let sent = called(&mut Bench::new(&config), Transport::Udp, "sip:bob@example.com");
    assert_eq!(
        (sent.to.transport, sent.address().as_str()),
        (Transport::Tls, "192.0.2.20:5061")
    );
    let marks = sent.headers("Record-Route");
    assert!(
        marks.len() == 2 && marks[0].starts_with("<sip:192.0.2.1:5061;transport=tls;lr;r2=on;tz="),
        "{marks:?}"
    );
    let mut b = registered(
        &location(),
        Transport::Tls,
        "sip:bob@192.0.2.30:5061;transport=tls",
    );
    let sent = called(&mut b, Transport::Udp, "sip:bob@example.com");
    assert_eq!(
        (sent.to.transport, sent.to.conn.map(|c| c.slot)),
        (Transport::Tls, Some(4))
    );
}

/// RFC 7118 §5: no WebSocket can be opened to a user agent; its flow is all there is.
#[test]
fn no_websocket_is_opened() {
    for uri in [
        "sip:192.0.2.20:80;transport=ws",
        "sip:x@df7jal23ls0d.invalid;transport=ws",
    ] {
        let mut config = all_transports();
        config.routes = vec![relay(uri)];
        let mut b = Bench::new(&config);
        let out = called(&mut b, Transport::Udp, "sip:bob@example.com");
        assert_eq!(out.first_line(), "SIP/2.0 500 Next Hop Not Found");
        b.no_query();
    }
}

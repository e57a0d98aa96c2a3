//! The certificate that a next hop must show (RFC 5922 §4): that of the host as it stood in the URI,
//! whatever name service made of it.

use crate::common;

use common::*;
use sip_core::config::{Config, StateMode};
use sip_core::query::Record;
use sip_core::transport::{Flow, Proof, Transport};

const BOB: &str = "sip:bob@example.com";

fn zone() -> Vec<(&'static str, Vec<Record>)> {
    vec![
        (
            "_sips._tcp.gw.example.net Srv",
            vec![
                service(1, 0, 5081, "a.example.org"),
                service(2, 0, 5082, "b.example.org"),
            ],
        ),
        ("a.example.org A", vec![address("192.0.2.41")]),
        ("b.example.org A", vec![address("192.0.2.42")]),
    ]
}

fn routed(hop: &str) -> Config {
    let mut config = all_transports();
    config.routes = vec![relay(hop)];
    config
}

/// What alice's request leads to, once all names are known; the 100 left out.
fn sent(b: &mut Bench, method: &str) -> Sent {
    let mut out = b.udp(CALLER, &request(method, BOB, "a1", ""));
    out.extend(b.serve(&zone()).1);
    out.retain(|s| s.first_line() != "SIP/2.0 100 Trying");
    one(out)
}

fn place(sent: &Sent) -> (Transport, String, Option<&str>) {
    (sent.to.transport, sent.address(), sent.peer.as_deref())
}

#[test]
fn the_name_is_that_of_the_uri_and_not_of_its_services() {
    for state in [StateMode::Stateless, StateMode::Transaction] {
        for hop in ["sips:GW.example.net", "sip:gw.example.net.;transport=tls"] {
            let mut config = routed(hop);
            config.state = state;
            let sent = sent(&mut Bench::new(&config), "MESSAGE");
            assert_eq!(
                place(&sent),
                (Transport::Tls, "192.0.2.41:5081".into(), Some("gw.example.net")),
                "{hop}"
            );
        }
    }
}

#[test]
fn every_message_of_a_transaction_has_it() {
    let mut b = Bench::new(&routed("sips:gw.example.net"));
    let first = sent(&mut b, "INVITE");
    // The next address of the same name.
    let invite = one(b.undelivered(&first));
    assert_eq!(
        place(&invite),
        (Transport::Tls, "192.0.2.42:5082".into(), Some("gw.example.net"))
    );
    let back = over(Transport::Tls, "192.0.2.42:5082", 7);
    let ringing = b.receive(back, &response(&invite, "180 Ringing", ""));
    assert_eq!(one(ringing).peer, None);
    let mut out = b.udp(CALLER, &request("CANCEL", BOB, "a1", ""));
    out.retain(|s| s.first_line().starts_with("CANCEL "));
    assert_eq!(place(&one(out)), place(&invite));
    let mut out = b.receive(back, &response(&invite, "487 Request Terminated", ""));
    out.retain(|s| s.first_line().starts_with("ACK "));
    assert_eq!(place(&one(out)), place(&invite));
}

#[test]
fn addresses_flows_and_other_transports_have_none() {
    for hop in [
        "sips:192.0.2.41",
        "sip:192.0.2.41;transport=tls",
        "sip:192.0.2.41",
        "sip:192.0.2.41;transport=tcp",
    ] {
        assert_eq!(sent(&mut Bench::new(&routed(hop)), "MESSAGE").peer, None, "{hop}");
    }
    let mut b = Bench::new(&routed("sip:a.example.org;transport=tcp"));
    assert_eq!(
        place(&sent(&mut b, "MESSAGE")),
        (Transport::Tcp, "192.0.2.41:5060".into(), None)
    );
}

/// RFC 3263 §5: a response with a closed connection looks for the host of sent-by.
#[test]
fn an_answer_that_must_connect_has_the_name_of_sent_by() {
    let mut b = Bench::new(&routed("sip:192.0.2.20"));
    let flow = over(Transport::Tls, "192.0.2.41:40000", 5);
    let options = request("OPTIONS", "sip:192.0.2.1", "a1", "")
        .replace("UDP 192.0.2.10:5060", "TLS a.example.org:5061");
    let ok = one(b.receive(flow, &options));
    assert_eq!((ok.to.conn, ok.peer.as_deref()), (flow.conn, None));
    assert!(b.undelivered(&ok).is_empty());
    b.serve(&zone());
    // Its own address is tried again, this time by that name.
    let again = one(b.undelivered(&ok));
    assert_eq!(
        place(&again),
        (Transport::Tls, "192.0.2.41:5061".into(), Some("a.example.org"))
    );
    assert!(b.undelivered(&again).is_empty());
}

/// RFC 5923 §8.1: only by TLS, and only for a peer that has proved its identity.
#[test]
fn a_connection_is_offered_only_with_a_certificate() {
    let options = |alias: &str| {
        request("OPTIONS", "sip:192.0.2.1", "a1", "")
            .replace("UDP 192.0.2.10:5060;", &format!("TLS a.example.org:5071;{alias}"))
    };
    let offered = |transport, proof, alias| {
        let mut b = Bench::new(&all_transports());
        let flow = Flow {
            proof,
            ..over(transport, "192.0.2.41:40000", 5)
        };
        assert_eq!(b.receive(flow, &options(alias)).len(), 1);
        let first = b.endpoint.poll_alias();
        assert_eq!(b.endpoint.poll_alias(), None);
        first.map(|(conn, address)| {
            assert_eq!(Some(conn), flow.conn);
            address.to_string()
        })
    };
    let there = Some("192.0.2.41:5071".to_owned());
    assert_eq!(offered(Transport::Tls, Proof::Certificate, "alias;"), there);
    assert_eq!(offered(Transport::Tls, Proof::Trusted, "alias;"), there);
    assert_eq!(offered(Transport::Tls, Proof::Certificate, ""), None);
    assert_eq!(offered(Transport::Tls, Proof::None, "alias;"), None);
    assert_eq!(offered(Transport::Wss, Proof::Certificate, "alias;"), None);
    // Aliases that have not been taken yet are bounded, and what is beyond is counted.
    let mut b = Bench::new(&all_transports());
    for slot in 0..300 {
        let flow = Flow {
            proof: Proof::Certificate,
            ..over(Transport::Tls, "192.0.2.41:40000", slot)
        };
        b.receive(flow, &options("alias;"));
    }
    let taken = std::iter::from_fn(|| b.endpoint.poll_alias()).count();
    assert_eq!((taken, b.counters().limited_aliases), (256, 44));
    // We offer ours too.
    let sent = sent(&mut Bench::new(&routed("sips:192.0.2.41")), "MESSAGE");
    assert!(sent.header("Via").ends_with(";alias"), "{}", sent.text);
}

//! Many requests, and then the connection is closed: nothing is left of it, and no other peer is
//! troubled.

use sip_core::config::{Config, Network};
use sip_core::id::ConnId;
use sip_core::transport::{Flow, Transport};

use crate::common::{Bench, CALLEE, Sent, all_transports, over, relay, request};

const SLOT: u32 = 5;
const FROM: &str = "192.0.2.10:40000";

fn open() -> Config {
    let mut config = all_transports();
    config.limits.transactions = 300;
    config.limits.held_transactions = 1000;
    config
}

/// The INVITE that says to have come from there.
fn invite(transport: Transport, number: usize, sent_by: &str) -> String {
    let name = match transport {
        Transport::Udp => "UDP",
        Transport::Tcp => "TCP",
        Transport::Tls => "TLS",
        Transport::Ws => "WS",
        Transport::Wss => "WSS",
    };
    request("INVITE", "sip:bob@example.com", &format!("b{number}"), "")
        .replace("UDP 192.0.2.10:5060", &format!("{name} {sent_by}"))
        .replace("c1@", &format!("c{number}@"))
}

/// Sends so many from one connection, each with another sent-by; the responses, which go back on it.
#[track_caller]
fn burst(bench: &mut Bench, flow: Flow, count: usize, sent_by: impl Fn(usize) -> String) -> Vec<Sent> {
    let mut answers = vec![];
    for number in 0..count {
        let text = invite(flow.transport, number, &sent_by(number));
        for sent in bench.receive(flow, &text) {
            if is_response(&sent) {
                answers.push(sent);
            } else {
                assert_eq!(sent.address(), CALLEE, "{}", sent.text);
            }
        }
        let gauges = bench.endpoint.gauges();
        assert!(gauges.server_transactions + gauges.client_transactions <= 1000);
    }
    assert!(!answers.is_empty());
    assert!(answers.iter().all(|s| s.to.conn == flow.conn));
    answers
}

fn is_response(sent: &Sent) -> bool {
    sent.first_line().starts_with("SIP/2.0 ")
}

#[track_caller]
fn close(bench: &mut Bench, flow: Flow) -> Vec<Sent> {
    let conn: ConnId = flow.conn.expect("a connection");
    let now = bench.now();
    bench.endpoint.handle_flow_closed(now, conn);
    bench.drain()
}

#[test]
fn a_burst_and_its_connection_leave_nothing() {
    for transport in [Transport::Tcp, Transport::Tls, Transport::Ws, Transport::Wss] {
        let mut bench = Bench::new(&open());
        let flow = over(transport, FROM, SLOT);
        let answers = burst(&mut bench, flow, 2000, |n| {
            format!("198.51.100.{}:{}", n % 250, 1024 + n)
        });
        assert!(bench.counters().limited_transactions > 0, "{transport:?}");
        assert!(answers.iter().any(|s| s.first_line().starts_with("SIP/2.0 503")));
        close(&mut bench, flow);
        for answer in &answers {
            let _ = bench.undelivered(answer);
        }
        // What was relayed before is given up at its next hop, and responses to the caller that has
        // left go nowhere.
        for sent in bench.pass(400_000) {
            if sent.to.conn.is_some() {
                assert_eq!(sent.to.conn, flow.conn);
                let _ = bench.undelivered(&sent);
            }
        }
        while bench.endpoint.poll_query().is_some() {}
        bench.assert_idle();
        assert_eq!(bench.endpoint.gauges().flows, 0, "{transport:?}");
    }
}

/// What comes to nothing on the connection goes where sent-by says (RFC 3261 §18.2.2): a few times.
#[test]
fn answers_to_a_burst_go_to_few_of_the_places_that_it_names() {
    for transport in [Transport::Tcp, Transport::Tls] {
        let mut bench = Bench::new(&open());
        let flow = over(transport, FROM, SLOT);
        let strangers = |n: usize| format!("198.51.100.{}:{}", n % 250, 1024 + n);
        let answers = burst(&mut bench, flow, 2000, strangers);
        close(&mut bench, flow);
        let mut elsewhere = vec![];
        for answer in &answers {
            elsewhere.extend(bench.undelivered(answer));
        }
        assert!((1..=64).contains(&elsewhere.len()), "{}", elsewhere.len());
        let dropped = bench.counters().limited_response_failover as usize;
        assert_eq!(dropped + elsewhere.len(), answers.len());
        // Nor is more asked of name service.
        let mut bench = Bench::new(&open());
        let answers = burst(&mut bench, flow, 2000, |n| format!("host{n}.example.net"));
        close(&mut bench, flow);
        for answer in &answers {
            assert!(bench.undelivered(answer).is_empty());
        }
        let asked = std::iter::from_fn(|| bench.endpoint.poll_query()).count();
        assert!((1..=64).contains(&asked), "{asked}");
    }
}

/// No WebSocket is opened to a user agent (RFC 7118 §5): what its connection does not take is lost.
#[test]
fn nothing_is_opened_for_a_burst_over_websockets() {
    for transport in [Transport::Ws, Transport::Wss] {
        for sent_by in ["198.51.100.1:5066", "198.51.100.1", "host.example.net"] {
            let mut bench = Bench::new(&open());
            let flow = over(transport, FROM, SLOT);
            let answers = burst(&mut bench, flow, 300, |_| sent_by.to_owned());
            let mut lost = answers.len();
            assert!(
                answers.iter().all(|s| s.pinned),
                "for the shell, which opens none"
            );
            assert!(close(&mut bench, flow).iter().all(|s| s.address() == CALLEE));
            for answer in &answers {
                assert_eq!(bench.undelivered(answer), []);
                bench.no_query();
            }
            // And what is sent later, when calls are given up.
            for sent in bench.pass(400_000) {
                if is_response(&sent) {
                    lost += 1;
                    assert!(sent.to.conn == flow.conn && sent.pinned, "{sent:?}");
                    assert_eq!(bench.undelivered(&sent), []);
                } else {
                    assert_eq!(sent.address(), CALLEE, "{}", sent.text);
                }
                bench.no_query();
            }
            assert!(lost > answers.len(), "the calls were given up");
            bench.assert_idle();
        }
    }
}

/// A neighbour that fails has many calls, and another address for them (RFC 3263 §5).
#[test]
fn answers_to_a_trusted_neighbour_all_go_on() {
    let mut config = open();
    config.trust = vec![Network {
        address: [192, 0, 2, 10].into(),
        prefix_len: 32,
    }];
    let mut bench = Bench::new(&config);
    let flow = over(Transport::Tcp, FROM, SLOT);
    let answers = burst(&mut bench, flow, 200, |n| format!("198.51.100.1:{}", 1024 + n));
    close(&mut bench, flow);
    let mut elsewhere = 0;
    for answer in &answers {
        elsewhere += bench.undelivered(answer).len();
    }
    assert_eq!(
        (elsewhere, bench.counters().limited_response_failover),
        (answers.len(), 0)
    );
}

/// A sent-by leads to no destination that a contact must not lead to: its writer has proved nothing yet.
#[test]
fn a_sent_by_leads_to_no_denied_destination() {
    for (sent_by, passes) in [
        ("198.51.100.9:5060", true),
        ("127.0.0.1:8080", false),
        ("192.0.2.50:5060", false),
        ("192.0.2.1:5060", false),
        ("192.0.2.2:9060", false),
    ] {
        let mut config = open();
        config.destinations.own_sockets = vec!["192.0.2.2:9060".parse().expect("an address")];
        config.routes.push(relay("sip:192.0.2.50:5060"));
        let mut bench = Bench::new(&config);
        let flow = over(Transport::Tcp, FROM, SLOT);
        let answers = burst(&mut bench, flow, 1, |_| sent_by.to_owned());
        close(&mut bench, flow);
        let sent = bench.undelivered(&answers[0]);
        assert_eq!(!sent.is_empty(), passes, "{sent_by}: {sent:?}");
        assert_eq!(
            bench.counters().destinations_denied,
            u64::from(!passes),
            "{sent_by}"
        );
    }
}

//! The torture messages of RFC 4475 and RFC 5118 through the whole core, by the table that the
//! end-to-end tests use too. Skipped, with a notice, where the messages are not there.

use crate::common;
#[path = "../../../conformance/src/torture/mod.rs"]
#[allow(
    dead_code,
    unused_imports,
    unreachable_pub,
    reason = "the end-to-end tests use the rest"
)]
mod messages;

use common::{Bench, CALLEE, PROXY, config, listener, relay, tcp_flow, udp_flow};
use messages::{Outcome, RFC4475, RFC5118, Row};
use sip_core::config::{Config, OwnHost, When};
use sip_core::endpoint::Handled;
use sip_core::event::Counters;
use sip_core::transport::{Flow, TransmitBatch, Transport};

/// What the table asks for, towards the callee over `transport`.
fn table_config(transport: Transport) -> Config {
    let mut config = config();
    let mut other = listener(Transport::Udp, PROXY);
    other.address.set_port(messages::OTHER_PORT);
    config.listeners.push(other);
    let (host, port) = messages::OWN_ROUTE.split_once(':').expect("host and port");
    config.own_hosts.push(OwnHost {
        host: host.as_bytes().into(),
        port: Some(port.parse().expect("a port")),
    });
    config.domains[0].aliases = messages::ALIASES.map(|name| name.as_bytes().into()).to_vec();
    let to = format!("sip:{CALLEE};transport={}", transport.uri_name());
    let rule = |when: When| sip_core::config::Route { when, ..relay(&to) };
    let domain = |name: &str| {
        rule(When {
            domain: Some(name.as_bytes().into()),
            ..When::default()
        })
    };
    config.routes = std::iter::once("example.com")
        .chain(messages::RELAYED)
        .map(domain)
        .collect();
    config.routes.push(rule(When {
        uri: Some(regex::bytes::Regex::new(messages::RELAYED_PATTERN).expect("a pattern")),
        ..When::default()
    }));
    config
}

/// The source of the messages: no address that stands in one of their Vias.
const SOURCE: &str = "198.51.100.7:5060";

/// A message that left.
struct Left {
    to: Flow,
    bytes: Vec<u8>,
}

/// The messages of the endpoint, for the callee and for others, without 100s.
#[derive(Default)]
struct Out {
    to_callee: Vec<Left>,
    to_sender: Vec<Left>,
}

impl Out {
    fn take(&mut self, bench: &mut Bench) {
        let mut batch = TransmitBatch::new();
        while bench.endpoint.poll_transmit(&mut batch) {
            for item in batch.items() {
                let left = Left {
                    to: item.to,
                    bytes: batch.message(item).to_vec(),
                };
                if left.to.remote.to_string() == CALLEE {
                    self.to_callee.push(left);
                } else if !left.bytes.starts_with(b"SIP/2.0 100") {
                    self.to_sender.push(left);
                }
            }
        }
    }
}

/// Gives `bytes` to the endpoint as the shell would; whether the connection is closed then.
fn give(bench: &mut Bench, flow: Flow, bytes: &[u8], out: &mut Out) -> bool {
    let now = bench.now();
    if flow.transport == Transport::Udp {
        assert_eq!(bench.endpoint.handle_message(now, flow, bytes), Handled::Here);
        out.take(bench);
        return false;
    }
    let closed = bench.stream(flow, bytes);
    out.take(bench);
    closed
}

/// Dropped messages counted under `cause`.
fn dropped(counters: &Counters, cause: &str) -> u64 {
    let label = format!("cause=\"{cause}\"");
    let all = Counters::INFO.iter().zip(counters.values());
    let ours = all.filter(|(info, _)| info.name == "dropped" && (cause.is_empty() || info.labels == label));
    ours.map(|(_, value)| value).sum()
}

/// Checks that this left for the sender of `sent`.
fn assert_returns(flow: Flow, sent: &[u8], left: &Left) {
    assert_eq!(left.to.transport, flow.transport);
    assert_eq!((left.to.listener, left.to.conn), (flow.listener, flow.conn));
    if flow.transport == Transport::Udp {
        let port = messages::answer_port(sent, flow.remote);
        assert_eq!(
            (left.to.remote.ip(), Some(left.to.remote.port())),
            (flow.remote.ip(), port)
        );
    }
}

/// One message, by the table.
fn check(bench: &mut Bench, flow: Flow, sent: &[u8], expected: Outcome, out: &mut Out, status_line: &[u8]) {
    match expected {
        Outcome::Forwarded(values) => {
            let arrived = out.to_callee.remove(0);
            messages::assert_forwarded(sent, &arrived.bytes, flow.remote, values);
            let answer = messages::answer_of_callee(&arrived.bytes, status_line);
            let back = if arrived.to.transport == Transport::Udp {
                udp_flow(CALLEE)
            } else {
                tcp_flow(CALLEE, 9)
            };
            assert!(!give(bench, back, &answer, out));
            let relayed = out.to_sender.remove(0);
            assert_returns(flow, sent, &relayed);
            messages::assert_relayed(&answer, &relayed.bytes);
        }
        Outcome::Answered(..) | Outcome::Registered(_) => {
            let answer = out.to_sender.remove(0);
            assert_returns(flow, sent, &answer);
            messages::assert_answer(sent, &answer.bytes, flow.remote);
            messages::assert_own(expected, &answer.bytes);
        }
        Outcome::Dropped(_) | Outcome::Incomplete => {}
    }
}

/// Every message in turn; `changed` says what the table does not.
fn run(config: &Config, transport: Transport, changed: impl Fn(Outcome) -> Outcome) {
    let Some(folder) = messages::folder() else { return };
    let status_line = messages::status_line(&folder);
    let mut bench = Bench::new(config);
    for (slot, row) in (100..).zip(RFC4475.iter().chain(&RFC5118)) {
        eprintln!("{} ({}): {}", row.file, row.section, row.says);
        let (flow, outcomes, closes) = way_of(row, transport, slot);
        let bytes = messages::read(&folder, row);
        let before = bench.counters();
        let mut out = Out::default();
        assert_eq!(give(&mut bench, flow, &bytes, &mut out), closes, "closed");
        let mut expected_drops = u64::from(outcomes.len() > 1);
        for (sent, outcome) in messages::split(&bytes, outcomes.len()).into_iter().zip(outcomes) {
            let outcome = changed(outcome);
            check(&mut bench, flow, sent, outcome, &mut out, &status_line);
            if let Outcome::Dropped(cause) = outcome {
                expected_drops += 1;
                assert_eq!(
                    dropped(&bench.counters(), cause) - dropped(&before, cause),
                    1,
                    "{cause}"
                );
            }
        }
        assert!(
            out.to_callee.is_empty() && out.to_sender.is_empty(),
            "more than was expected"
        );
        assert_eq!(
            dropped(&bench.counters(), "") - dropped(&before, ""),
            expected_drops
        );
    }
    let late = bench.pass(600_000);
    assert!(late.is_empty(), "{:?}", common::lines(&late));
    bench.assert_idle();
}

fn way_of(row: &Row, transport: Transport, slot: u32) -> (Flow, Vec<Outcome>, bool) {
    if transport == Transport::Udp {
        (udp_flow(SOURCE), vec![row.datagram], false)
    } else {
        let (outcomes, closes) = row.on_stream();
        (tcp_flow("198.51.100.7:40000", slot), outcomes, closes)
    }
}

#[test]
fn every_message_as_a_datagram_has_its_outcome() {
    run(&table_config(Transport::Udp), Transport::Udp, |outcome| outcome);
}

#[test]
fn every_message_on_a_stream_has_its_outcome() {
    run(&table_config(Transport::Tcp), Transport::Tcp, |outcome| outcome);
}

/// RFC 4475 §3.3.7 among them: credentials of an unknown scheme are none.
#[test]
fn where_registrations_need_credentials_they_are_asked_for() {
    let mut config = table_config(Transport::Udp);
    config.domains[0].auth.methods = vec![b"REGISTER"[..].into()];
    // A client that is challenged first does not learn of a bad Contact.
    let changed = |outcome| {
        let asked = matches!(
            outcome,
            Outcome::Registered(_) | Outcome::Answered(400, "Malformed Contact", _)
        );
        if asked {
            Outcome::Answered(401, "Unauthorized", &[])
        } else {
            outcome
        }
    };
    run(&config, Transport::Udp, changed);
}

//! Finding the next hop, and the next address when one fails (RFC 3263, RFC 3261 §16.7, §16.9).
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use crate::common;

use common::*;
use sip_core::config::{Config, StateMode};
use sip_core::query::{QueryKind, QueryResult, Record, Records, Unavailable};
use sip_core::transport::Transport;

const TRYING: &str = "192.0.2.10:5060 SIP/2.0 100 Trying";

fn to(uri: &str) -> Config {
    let mut config = config();
    config.routes = vec![relay(uri)];
    config
}

fn invite() -> String {
    request("INVITE", "sip:bob@example.com", "a1", "")
}

fn invite_to(address: &str) -> String {
    format!("{address} INVITE sip:bob@example.com SIP/2.0")
}

/// Another call than that of [`invite`].
fn call(n: usize) -> String {
    invite()
        .replace("c1@", &format!("c{n}@"))
        .replace("z9hG4bKa1", &format!("z9hG4bKn{n}"))
}

fn pointer(order: u16, service: &str, replacement: &str) -> Record {
    Record::Naptr {
        order,
        preference: 0,
        flags: b"s"[..].into(),
        service: service.as_bytes().into(),
        regexp: Box::default(),
        replacement: replacement.as_bytes().into(),
    }
}

fn addresses(ttl_s: u32, ips: &[&str]) -> QueryResult {
    let values = ips.iter().map(|ip| address(ip)).collect();
    QueryResult::Resolved(Ok(Records { ttl_s, values }))
}

/// Two addresses of one name, port given.
#[track_caller]
fn two() -> (Bench, Vec<Sent>) {
    let mut b = Bench::new(&to("sip:gw.example.net:5070"));
    assert_eq!(lines(&b.udp(CALLER, &invite())), [TRYING]);
    let (asked, out) = b.serve(&[(
        "gw.example.net A",
        vec![address("198.51.100.1"), address("198.51.100.2")],
    )]);
    assert_eq!(asked, ["gw.example.net A"]);
    assert_eq!(lines(&out), [invite_to("198.51.100.1:5070")]);
    (b, out)
}

#[test]
fn services_then_addresses_then_the_request() {
    let mut b = Bench::new(&to("sip:GW.example.net."));
    assert_eq!(lines(&b.udp(CALLER, &invite())), [TRYING]);
    assert_eq!(b.endpoint.gauges().parked_requests, 1);
    let zone = [
        (
            "_sip._udp.gw.example.net Srv",
            vec![
                service(20, 0, 5062, "b.example.net"),
                service(10, 0, 5061, "a.example.net"),
            ],
        ),
        ("a.example.net A", vec![address("198.51.100.1")]),
        ("b.example.net A", vec![address("198.51.100.2")]),
    ];
    let (asked, out) = b.serve(&zone);
    assert_eq!(
        asked,
        [
            "gw.example.net Naptr",
            "_sip._udp.gw.example.net Srv",
            "_sip._tcp.gw.example.net Srv",
            "a.example.net A",
            "b.example.net A"
        ]
    );
    assert_eq!(lines(&out), [invite_to("198.51.100.1:5061")]);
    assert_eq!(b.endpoint.gauges().parked_requests, 0);
    assert_eq!(b.endpoint.gauges().parked_bytes, 0);
    // From the cache, as long as it lasts.
    let out = b.udp(CALLER, &request("MESSAGE", "sip:bob@example.com", "a2", ""));
    assert_eq!(
        lines(&out),
        ["198.51.100.1:5061 MESSAGE sip:bob@example.com SIP/2.0"]
    );
    b.no_query();
    // Then for a minute more, while they are asked for anew; and, as no result comes, for another
    // from when that is known.
    b.pass(61_000);
    let out = b.udp(CALLER, &request("MESSAGE", "sip:bob@example.com", "a3", ""));
    assert!(
        lines(&out).contains(&"198.51.100.1:5061 MESSAGE sip:bob@example.com SIP/2.0".to_string()),
        "{:?}",
        lines(&out)
    );
    assert_eq!(Bench::resolve_kind(&b.query()), "gw.example.net Naptr");
    b.pass(66_000);
    let out = b.udp(CALLER, &request("OPTIONS", "sip:bob@example.com", "a4", ""));
    assert!(out.is_empty(), "{:?}", lines(&out));
}

#[test]
fn no_services_of_any_transport_leave_the_addresses() {
    let mut b = Bench::new(&to("sip:gw.example.net"));
    b.udp(CALLER, &invite());
    let (asked, out) = b.serve(&[("gw.example.net A", vec![address("198.51.100.1")])]);
    assert_eq!(
        asked,
        [
            "gw.example.net Naptr",
            "_sip._udp.gw.example.net Srv",
            "_sip._tcp.gw.example.net Srv",
            "gw.example.net A"
        ]
    );
    assert_eq!(lines(&out), [invite_to("198.51.100.1:5060")]);
}

#[test]
fn services_of_tcp_are_reached_by_tcp() {
    let mut b = Bench::new(&to("sip:gw.example.net"));
    b.udp(CALLER, &invite());
    let (_, out) = b.serve(&[
        (
            "_sip._tcp.gw.example.net Srv",
            vec![service(1, 1, 5090, "a.example.net")],
        ),
        ("a.example.net A", vec![address("198.51.100.1")]),
    ]);
    assert_eq!(lines(&out), [invite_to("198.51.100.1:5090")]);
    assert_eq!(out[0].to.transport, Transport::Tcp);
    assert!(
        out[0]
            .header("Via")
            .starts_with("SIP/2.0/TCP 192.0.2.1:5060;branch=")
    );
}

#[test]
fn both_address_families_are_asked_where_both_can_be_sent_from() {
    let mut config = to("sip:gw.example.net:5070");
    config
        .listeners
        .push(listener(Transport::Udp, "[2001:db8::1]:5060"));
    config.listeners[2].prefix_len = 64;
    let mut b = Bench::new(&config);
    b.udp(CALLER, &invite());
    let (asked, out) = b.serve(&[
        ("gw.example.net AAAA", vec![]),
        ("gw.example.net Aaaa", vec![address("2001:db8::9")]),
    ]);
    assert_eq!(asked, ["gw.example.net A", "gw.example.net Aaaa"]);
    assert_eq!(lines(&out), [invite_to("[2001:db8::9]:5070")]);
    assert!(
        out[0]
            .header("Via")
            .starts_with("SIP/2.0/UDP [2001:db8::1]:5060;branch=")
    );
    // Listener changes, so there are two Record-Routes, the egress one on top.
    let routes = out[0].headers("Record-Route");
    assert_eq!(routes.len(), 2);
    assert!(routes[0].starts_with("<sip:[2001:db8::1]:5060;lr;r2=on;tz="));
    assert!(routes[1].starts_with("<sip:192.0.2.1:5060;lr;r2=on;tz="));
}

#[test]
fn weights_share_calls_and_a_call_stays_with_its_choice() {
    let mut config = to("sip:gw.example.net");
    config.state = StateMode::Stateless;
    let mut b = Bench::new(&config);
    let zone = [
        (
            "_sip._udp.gw.example.net Srv",
            vec![
                service(1, 3, 5060, "a.example.net"),
                service(1, 1, 5060, "b.example.net"),
            ],
        ),
        ("a.example.net A", vec![address("198.51.100.1")]),
        ("b.example.net A", vec![address("198.51.100.2")]),
    ];
    b.udp(CALLER, &invite());
    b.serve(&zone);
    let mut first = 0;
    for n in 0..1000 {
        let text = call(n);
        let out = one(b.udp(CALLER, &text));
        // Its CANCEL follows it.
        let cancel = one(b.udp(CALLER, &text.replace("INVITE", "CANCEL")));
        assert_eq!(
            (cancel.to, via_without_seed(&cancel)),
            (out.to, via_without_seed(&out))
        );
        first += u32::from(out.address() == "198.51.100.1:5060");
    }
    assert!((650..850).contains(&first), "{first}");
}

#[test]
fn equal_questions_are_asked_once() {
    let mut b = Bench::new(&to("sip:gw.example.net:5070"));
    for n in 1..=3 {
        let text = call(n);
        assert_eq!(lines(&b.udp(CALLER, &text)), [TRYING]);
        // A retransmission does not wait a second time.
        assert_eq!(lines(&b.udp(CALLER, &text)), [TRYING]);
    }
    assert_eq!(b.endpoint.gauges().parked_requests, 3);
    let query = b.query();
    b.no_query();
    let records = Records {
        ttl_s: 60,
        values: vec![address("198.51.100.1")],
    };
    let out = b.answer(&query, QueryResult::Resolved(Ok(records)));
    assert_eq!(lines(&out), vec![invite_to("198.51.100.1:5070"); 3]);
    assert_eq!(b.endpoint.gauges().parked_requests, 0);
    // A late second result changes nothing.
    assert!(
        b.answer(&query, QueryResult::Resolved(Err(Unavailable)))
            .is_empty()
    );
}

#[test]
fn without_an_address_the_answer_is_500() {
    // None exists; the service failed; it said nothing.
    for answer in [
        Some(Ok(Records {
            ttl_s: 30,
            values: vec![],
        })),
        Some(Err(Unavailable)),
        None,
    ] {
        let mut b = Bench::new(&to("sip:gw.example.net:5070"));
        b.udp(CALLER, &invite());
        let query = b.query();
        let out = match answer {
            Some(answer) => b.answer(&query, QueryResult::Resolved(answer)),
            None => {
                assert!(b.pass(4_990).is_empty());
                let out = b.pass(20);
                assert_eq!(b.counters().queries_expired, 1);
                out
            }
        };
        assert_eq!(lines(&out), [format!("{CALLER} SIP/2.0 500 Next Hop Not Found")]);
        // It is remembered, a failure but briefly.
        let again = request("MESSAGE", "sip:bob@example.com", "a2", "");
        assert_eq!(
            one(b.udp(CALLER, &again)).first_line(),
            "SIP/2.0 500 Next Hop Not Found"
        );
        b.no_query();
        b.pass(31_000);
        b.udp(CALLER, &request("MESSAGE", "sip:bob@example.com", "a3", ""));
        assert!(matches!(b.query().kind, QueryKind::Resolve { .. }));
    }
}

/// However fast its records end, and however slow the results, a request does not ask for ever.
#[test]
fn records_that_end_at_once_and_slow_answers_end() {
    let mut b = Bench::new(&to("sip:gw.example.net"));
    b.udp(CALLER, &invite());
    let mut out = vec![];
    for round in 0.. {
        assert!(round < 10, "still asking");
        let queries: Vec<_> = core::iter::from_fn(|| b.endpoint.poll_query()).collect();
        out.extend(b.pass(4_000));
        for query in queries {
            let values = match Bench::resolve_kind(&query).as_str() {
                "gw.example.net Naptr" | "_sip._tcp.gw.example.net Srv" => vec![],
                "_sip._udp.gw.example.net Srv" => vec![service(1, 1, 5070, "a.example.net")],
                "a.example.net A" => vec![address("198.51.100.1")],
                other => panic!("{other}"),
            };
            out.extend(b.answer(&query, QueryResult::Resolved(Ok(Records { ttl_s: 0, values }))));
        }
        if !out.is_empty() {
            break;
        }
    }
    assert_eq!(lines(&out), [invite_to("198.51.100.1:5070")]);
}

#[test]
fn what_does_not_answer_is_followed_by_the_next_address() {
    let (mut b, first) = two();
    let out = b.pass(32_010);
    let (last, resent) = out.split_last().unwrap();
    assert!(resent.iter().all(|s| s.text == first[0].text));
    assert_eq!(
        lines(std::slice::from_ref(last)),
        [invite_to("198.51.100.2:5070")]
    );
    // The same but for the branch.
    let branch = |s: &Sent| {
        s.header("Via")
            .split("branch=")
            .nth(1)
            .unwrap()
            .split(';')
            .next()
            .unwrap()
            .to_string()
    };
    assert_ne!(branch(last), branch(&first[0]));
    assert_eq!(
        last.text.replace(&branch(last), ""),
        first[0].text.replace(&branch(&first[0]), "")
    );
    assert_eq!(b.counters().failovers, 1);
    let ok = b.udp("198.51.100.2:5070", &response(last, "200 OK", ""));
    assert_eq!(lines(&ok), [format!("{CALLER} SIP/2.0 200 OK")]);
    b.pass(70_000);
    b.assert_idle();
}

#[test]
fn when_no_address_answers_the_caller_gets_408() {
    let (mut b, _) = two();
    let out = b.pass(64_100);
    assert_eq!(
        lines(&out[out.len() - 1..]),
        [format!("{CALLER} SIP/2.0 408 Request Timeout")]
    );
    assert_eq!(out.iter().filter(|s| s.address() == CALLER).count(), 1);
    b.pass(70_000);
    b.assert_idle();
}

#[test]
fn a_503_and_an_undelivered_request_go_on_to_the_next_address() {
    for by_503 in [true, false] {
        let (mut b, first) = two();
        let fail = |b: &mut Bench, sent: &Sent| match by_503 {
            true => b.udp(
                &sent.address(),
                &response(sent, "503 Service Unavailable", "Retry-After: 30\n"),
            ),
            false => b.undelivered(sent),
        };
        let out = fail(&mut b, &first[0]);
        let ack = by_503.then_some("198.51.100.1:5070 ACK sip:bob@example.com SIP/2.0".to_string());
        assert_eq!(
            lines(&out),
            ack.into_iter()
                .chain([invite_to("198.51.100.2:5070")])
                .collect::<Vec<_>>()
        );
        let second = out.last().unwrap().clone();
        // Nothing is left then: §16.7 step 6, a 503 does not go on.
        let out = fail(&mut b, &second);
        assert_eq!(
            lines(&out[out.len() - 1..]),
            [format!("{CALLER} SIP/2.0 500 Server Internal Error")]
        );
        b.pass(70_000);
        b.assert_idle();
    }
}

#[test]
fn a_503_of_the_only_address_goes_on_as_500() {
    let mut b = Bench::new(&config());
    for (branch, method) in [("a1", "INVITE"), ("a2", "MESSAGE")] {
        let out = b.udp(CALLER, &request(method, "sip:bob@example.com", branch, ""));
        let out = b.udp(
            CALLEE,
            &response(out.last().unwrap(), "503 Service Unavailable", ""),
        );
        assert_eq!(
            lines(&out[out.len() - 1..]),
            [format!("{CALLER} SIP/2.0 500 Server Internal Error")]
        );
    }
    // No other response is touched, and no other address tried.
    let (mut b, first) = two();
    let out = b.udp("198.51.100.1:5070", &response(&first[0], "500 Oops", ""));
    assert_eq!(lines(&out[1..]), [format!("{CALLER} SIP/2.0 500 Oops")]);
}

#[test]
fn a_cancelled_request_tries_no_other_address() {
    for answered in [false, true] {
        let (mut b, first) = two();
        if answered {
            b.udp("198.51.100.1:5070", &response(&first[0], "180 Ringing", ""));
        }
        let out = b.udp(CALLER, &request("CANCEL", "sip:bob@example.com", "a1", ""));
        assert_eq!(out[0].first_line(), "SIP/2.0 200 OK");
        let out = b.pass(65_000);
        let last = out.last().unwrap();
        assert!(
            out.iter().all(|s| s.address() != "198.51.100.2:5070"),
            "{:?}",
            lines(&out)
        );
        assert!(
            out.iter()
                .any(|s| s.address() == CALLER && s.first_line() == "SIP/2.0 487 Request Terminated"),
            "{last:?}"
        );
        b.pass(70_000);
        b.assert_idle();
    }
}

/// The first address said 503 and is done with: a CANCEL goes to the second only.
#[test]
fn a_cancel_goes_to_the_address_that_is_being_tried() {
    let (mut b, first) = two();
    b.udp("198.51.100.1:5070", &response(&first[0], "180 Ringing", ""));
    let out = b.udp("198.51.100.1:5070", &response(&first[0], "503 No", ""));
    let second = out.last().unwrap().clone();
    b.udp("198.51.100.2:5070", &response(&second, "180 Ringing", ""));
    let out = b.udp(CALLER, &request("CANCEL", "sip:bob@example.com", "a1", ""));
    assert_eq!(
        lines(&out),
        [
            format!("{CALLER} SIP/2.0 200 OK"),
            "198.51.100.2:5070 CANCEL sip:bob@example.com SIP/2.0".to_string()
        ]
    );
    assert_eq!(out[1].header("Via"), second.header("Via"));
}

#[test]
fn a_transport_without_a_listener_asks_no_question() {
    let mut b = Bench::new(&to("sip:gw.example.net;transport=tls"));
    let out = b.udp(CALLER, &invite());
    b.no_query();
    assert_eq!(lines(&out), [format!("{CALLER} SIP/2.0 500 Next Hop Not Found")]);
}

/// A stateless INVITE that has to wait gets a transaction, and what belongs to it finds that; an
/// ACK to a name waits too.
#[test]
fn stateless_requests_wait_for_names() {
    let mut config = to("sip:gw.example.net:5070");
    config.state = StateMode::Stateless;
    let mut b = Bench::new(&config);
    assert!(b.udp(CALLER, &invite()).is_empty());
    let zone = [("gw.example.net A", vec![address("198.51.100.1")])];
    assert_eq!(lines(&b.serve(&zone).1), [invite_to("198.51.100.1:5070")]);
    b.assert_idle();
    let ack = request("ACK", "sip:bob@example.com", "a9", "");
    let mut b = Bench::new(&config);
    assert!(b.udp(CALLER, &ack).is_empty());
    assert_eq!(
        lines(&b.serve(&zone).1),
        ["198.51.100.1:5070 ACK sip:bob@example.com SIP/2.0"]
    );
    assert_eq!(b.counters().dropped_no_route, 0);
    b.assert_idle();
    // To a name that does not exist: no response.
    let mut b = Bench::new(&config);
    assert!(b.udp(CALLER, &ack).is_empty());
    assert!(b.serve(&[]).1.is_empty());
    assert_eq!(b.counters().dropped_no_route, 1);
    b.assert_idle();
}

#[test]
fn a_cancel_reaches_a_request_that_waits() {
    let mut b = Bench::new(&to("sip:gw.example.net:5070"));
    b.udp(CALLER, &invite());
    let out = b.udp(CALLER, &request("CANCEL", "sip:bob@example.com", "a1", ""));
    assert_eq!(
        lines(&out),
        [
            format!("{CALLER} SIP/2.0 200 OK"),
            format!("{CALLER} SIP/2.0 487 Request Terminated")
        ]
    );
    assert_eq!(out[0].header("To"), out[1].header("To"));
    assert!(
        b.serve(&[("gw.example.net A", vec![address("198.51.100.1")])])
            .1
            .is_empty()
    );
    let ack = request("ACK", "sip:bob@example.com", "a1", "").replace(
        "To: <sip:bob@example.com>",
        &format!("To: {}", out[1].header("To")),
    );
    assert!(b.udp(CALLER, &ack).is_empty());
    b.pass(6_000);
    b.assert_idle();
}

#[test]
fn what_may_wait_is_bounded() {
    let mut config = to("sip:gw.example.net:5070");
    config.limits.parked_requests = 1;
    let mut b = Bench::new(&config);
    b.udp(CALLER, &invite());
    let other = request("INVITE", "sip:bob@example.com", "b1", "");
    assert_eq!(
        lines(&b.udp(CALLER, &other)),
        [format!("{CALLER} SIP/2.0 503 Service Unavailable")]
    );
    assert_eq!(b.counters().limited_parked, 1);
    config.limits.parked_requests = 10;
    config.limits.parked_bytes = 100;
    let mut b = Bench::new(&config);
    assert_eq!(
        lines(&b.udp(CALLER, &invite())),
        [format!("{CALLER} SIP/2.0 503 Service Unavailable")]
    );
    b.assert_idle();
    b.no_query();
}

#[test]
fn naptr_chooses_the_transport_and_the_others_are_next() {
    let mut b = Bench::new(&to("sip:gw.example.net"));
    b.udp(CALLER, &invite());
    let zone = [
        (
            "gw.example.net Naptr",
            vec![
                pointer(20, "SIP+D2U", "_sip._udp.other.example"),
                pointer(10, "SIP+D2T", "_sip._tcp.gw.example.net"),
                pointer(5, "SIPS+D2T", "_sips._tcp.gw.example.net"),
            ],
        ),
        (
            "_sip._tcp.gw.example.net Srv",
            vec![service(1, 1, 5090, "a.example.net")],
        ),
        (
            "_sip._udp.other.example Srv",
            vec![service(1, 1, 5091, "a.example.net")],
        ),
        ("a.example.net A", vec![address("198.51.100.1")]),
    ];
    let (asked, out) = b.serve(&zone);
    assert_eq!(
        asked,
        [
            "gw.example.net Naptr",
            "_sip._tcp.gw.example.net Srv",
            "_sip._udp.other.example Srv",
            "a.example.net A"
        ]
    );
    assert_eq!(lines(&out), [invite_to("198.51.100.1:5090")]);
    assert_eq!(out[0].to.transport, Transport::Tcp);
    let out = b.undelivered(&out[0]);
    assert_eq!(lines(&out), [invite_to("198.51.100.1:5091")]);
    assert_eq!(out[0].to.transport, Transport::Udp);
}

/// What one call found out about an address is not held against the next.
#[test]
fn an_address_that_failed_one_call_is_the_first_of_the_next() {
    let fail: [fn(&mut Bench, &Sent) -> Vec<Sent>; 3] = [
        |b, sent| b.udp(&sent.address(), &response(sent, "503 Full", "Retry-After: 300\n")),
        |b, sent| b.undelivered(sent),
        |b, _| b.pass(32_010),
    ];
    for fail in fail {
        let (mut b, first) = two();
        let out = fail(&mut b, &first[0]);
        assert_eq!(
            lines(&out[out.len() - 1..]),
            [invite_to("198.51.100.2:5070")],
            "this call goes on"
        );
        for n in 2..10 {
            let out = b.udp(CALLER, &call(n));
            assert_eq!(lines(&out), [TRYING.to_string(), invite_to("198.51.100.1:5070")]);
        }
        b.no_query();
    }
}

#[test]
fn a_new_answer_serves_the_next_call_and_one_under_way_keeps_its_list() {
    let mut b = Bench::new(&to("sip:gw.example.net:5070"));
    b.udp(CALLER, &call(1));
    let query = b.query();
    let first = b.answer(&query, addresses(10, &["198.51.100.1", "198.51.100.2"]));
    assert_eq!(lines(&first), [invite_to("198.51.100.1:5070")]);
    b.udp("198.51.100.1:5070", &response(&first[0], "180 Ringing", ""));
    b.pass(10_001);
    // Over: it serves once more, and is asked for beside.
    let second = b.udp(CALLER, &call(2));
    assert_eq!(
        lines(&second),
        [TRYING.to_string(), invite_to("198.51.100.1:5070")]
    );
    let query = b.query();
    assert!(b.answer(&query, addresses(5, &["198.51.100.3"])).is_empty());
    let third = b.udp(CALLER, &call(3));
    assert_eq!(
        lines(&third),
        [TRYING.to_string(), invite_to("198.51.100.3:5070")]
    );
    // Both that began with the old list go on with it.
    for sent in [&first[0], &second[1]] {
        let out = b.udp("198.51.100.1:5070", &response(sent, "503 Gone", ""));
        assert_eq!(
            lines(&out[1..]),
            [invite_to("198.51.100.2:5070")],
            "after its ACK"
        );
    }
    // The new result's own time counts.
    b.no_query();
    b.pass(5_001);
    b.udp(CALLER, &call(4));
    assert_eq!(Bench::resolve_kind(&b.query()), "gw.example.net A");
}

/// A request every 20 ms for a minute; records live 5 s; the name service takes 200 ms. In the
/// middle the address changes. Nothing waits, nothing is lost, and the change is seen in time.
#[test]
fn answers_change_under_load() {
    const CHANGE_MS: u64 = 30_000;
    let mut b = Bench::new(&to("sip:gw.example.net:5070"));
    let (mut open, mut asked, mut last_old) = (vec![], 0, 0);
    let mut seen = [0, 0];
    for n in 0..3_000u64 {
        let at_ms = n * 20;
        let text = call(n as usize).replace("INVITE", "MESSAGE");
        let mut out = b.udp(CALLER, &text);
        if n > 10 {
            assert_eq!(out.len(), 1, "{at_ms}: it does not wait: {:?}", lines(&out));
        }
        while let Some(query) = b.endpoint.poll_query() {
            open.push((at_ms + 200, query));
        }
        assert!(open.len() <= 1, "one look-up at a time");
        if open.first().is_some_and(|(due, _)| *due <= at_ms) {
            let (_, query) = open.remove(0);
            let ip = ["198.51.100.1", "198.51.100.2"][usize::from(at_ms >= CHANGE_MS)];
            asked += 1;
            out.extend(b.answer(&query, addresses(5, &[ip])));
        }
        for sent in out {
            let new = sent.address() == "198.51.100.2:5070";
            seen[usize::from(new)] += 1;
            if !new {
                last_old = at_ms;
            }
            let ok = b.udp(&sent.address(), &response(&sent, "200 OK", ""));
            assert_eq!(one(ok).first_line(), "SIP/2.0 200 OK");
        }
        b.pass(20);
    }
    assert_eq!(seen.iter().sum::<u32>(), 3_000);
    assert!(
        (CHANGE_MS - 1..CHANGE_MS + 5_400).contains(&last_old),
        "the last to the old address at {last_old} ms"
    );
    assert!((11..=13).contains(&asked), "{asked} look-ups");
    b.pass(70_000);
    b.assert_idle();
}

/// The name service responds no more. Calls to names that were known go on, at once. Those to others
/// fail in time, and hold up no other call.
#[test]
fn a_dead_name_service_stops_no_call_to_a_known_name() {
    let mut config = to("sip:gw.example.net");
    config.routes.insert(0, relay("sip:unknown.example.net"));
    config.routes[0].when.methods = vec![b"MESSAGE"[..].into()];
    let mut b = Bench::new(&config);
    b.udp(CALLER, &call(0));
    let zone = [
        (
            "_sip._udp.gw.example.net Srv",
            vec![service(1, 1, 5061, "a.example.net")],
        ),
        ("a.example.net A", vec![address("198.51.100.1")]),
    ];
    assert_eq!(lines(&b.serve(&zone).1), [invite_to("198.51.100.1:5061")]);
    let mut refused = 0;
    for n in 1..300 {
        let out = b.udp(CALLER, &call(n));
        assert_eq!(
            lines(&out),
            [TRYING.to_string(), invite_to("198.51.100.1:5061")],
            "call {n}"
        );
        b.udp("198.51.100.1:5061", &response(&out[1], "486 Busy", ""));
        if n % 10 == 0 {
            assert!(
                b.udp(CALLER, &call(1_000 + n).replace("INVITE", "MESSAGE"))
                    .is_empty()
            );
        }
        // Into the void.
        while b.endpoint.poll_query().is_some() {}
        let out = b.pass(2_000);
        let told = |s: &&Sent| s.first_line() == "SIP/2.0 500 Next Hop Not Found";
        refused += out.iter().filter(told).count();
    }
    assert!(b.counters().queries_expired > 100);
    assert!(refused > 20, "{refused}");
    // It is back, with another address: the next call but one is there.
    b.pass(40_000);
    let zone = [
        zone[0].clone(),
        ("a.example.net A", vec![address("198.51.100.9")]),
    ];
    b.udp(CALLER, &call(5_000));
    b.serve(&zone);
    let out = b.udp(CALLER, &call(5_001));
    assert_eq!(lines(&out)[1..], [invite_to("198.51.100.9:5061")]);
}

/// Another address of a MESSAGE after timer F would be in vain: its client gave up by then.
#[test]
fn a_message_is_tried_nowhere_else_once_its_sender_gave_up() {
    let mut b = Bench::new(&to("sip:gw.example.net:5070"));
    b.udp(CALLER, &request("MESSAGE", "sip:bob@example.com", "a1", ""));
    let (_, out) = b.serve(&[(
        "gw.example.net A",
        vec![address("198.51.100.1"), address("198.51.100.2")],
    )]);
    assert_eq!(one(out).address(), "198.51.100.1:5070");
    let out = b.pass(100_000);
    let elsewhere: Vec<_> = out
        .iter()
        .filter(|s| s.address() == "198.51.100.2:5070")
        .collect();
    assert!(elsewhere.is_empty(), "{elsewhere:?}");
    assert_eq!(b.counters().failovers, 0);
    b.assert_idle();
}

/// A reload may lower a limit; what waits was within the one of its arrival.
#[test]
fn a_request_that_waits_is_held_to_the_limits_of_its_arrival() {
    let vias: String = (0..20)
        .map(|n| format!("Via: SIP/2.0/UDP 192.0.2.77;branch=z9hG4bKx{n}\n"))
        .collect();
    let config = to("sip:gw.example.net:5070");
    let mut b = Bench::new(&config);
    b.udp(CALLER, &request("INVITE", "sip:bob@example.com", "a1", &vias));
    let mut less = config.clone();
    less.limits.via_values = 10;
    less.limits.headers = 12;
    b.endpoint.reconfigure(&less);
    let (_, out) = b.serve(&[("gw.example.net A", vec![address("198.51.100.1")])]);
    assert_eq!(one(out).address(), "198.51.100.1:5070");
    // New ones are held to the new limits.
    let out = b.udp(CALLER, &request("INVITE", "sip:bob@example.com", "a2", &vias));
    assert!(one(out).first_line().starts_with("SIP/2.0 400 "));
}

/// However many wait for one name, what else arrives is not kept waiting for all of them.
#[test]
fn many_that_waited_for_one_name_go_on_in_turns() {
    let mut config = to("sip:gw.example.net:5070");
    config.state = StateMode::Stateless;
    let mut b = Bench::new(&config);
    for n in 0..150 {
        assert!(b.udp(CALLER, &call(n)).is_empty());
    }
    let query = b.query();
    let first = b.answer(&query, addresses(60, &["198.51.100.1"]));
    assert_eq!(first.len(), 64);
    assert_eq!(b.endpoint.gauges().parked_requests, 150 - 64);
    assert!(!b.endpoint.is_idle());
    assert_eq!(b.udp(CALLER, &call(1000)).len(), 1);
    let rest = b.pass(0);
    assert_eq!(rest.len(), 150 - 64);
    let sent = first.iter().chain(&rest).map(|s| s.header("Call-ID"));
    let expected: Vec<String> = (0..150).map(|n| format!("c{n}@")).collect();
    assert!(
        sent.zip(&expected)
            .all(|(id, expected)| id.starts_with(expected.as_str()))
    );
    assert_eq!(b.endpoint.gauges().parked_bytes, 0);
    assert!(b.endpoint.is_idle());
}

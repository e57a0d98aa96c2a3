//! Admission: floods, banned sources and scanners get no response; and what counts towards a ban of a
//! source.
#![allow(
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "helpers of tests"
)]

use crate::agent;
use crate::common;

use std::sync::Arc;

use agent::*;
use common::*;
use regex::bytes::RegexBuilder;
use sip_core::admission::{Source, SourceLists};
use sip_core::auth::digest;
use sip_core::config::{Abuse, Config, Network, Scanners};
use sip_core::dispatcher::{Distribution, Group, Local, MarkPolicy, Member};
use sip_core::event::{Event, ScanSign};
use sip_core::id::WorkerId;
use sip_core::transport::{Flow, Proof, Transport};

const FLOODER: &str = "198.51.100.7:5060";
const BOB: &str = "sip:bob@example.com";

fn limited(rate: u32, burst: u32) -> Config {
    let mut config = config();
    config.abuse = Abuse {
        rate,
        burst,
        sources: 1024,
        ..Abuse::default()
    };
    config
}

/// How many of `count` messages are heard.
fn heard(b: &mut Bench, flow: Flow, count: usize) -> usize {
    let now = b.now();
    (0..count).filter(|_| b.endpoint.admit(now, &flow)).count()
}

fn events(b: &mut Bench) -> Vec<Event> {
    std::iter::from_fn(|| b.endpoint.poll_event()).collect()
}

#[track_caller]
fn stand(b: &mut Bench, banned: &[&str], peers: &[&str]) {
    let sources = |list: &[&str]| list.iter().map(|ip| ip.parse::<Source>().unwrap()).collect();
    b.endpoint.set_source_lists(Arc::new(SourceLists {
        banned: sources(banned),
        peers: sources(peers),
    }));
}

#[track_caller]
fn network(text: &str) -> Network {
    let (address, len) = text.split_once('/').unwrap();
    Network {
        address: address.parse().unwrap(),
        prefix_len: len.parse().unwrap(),
    }
}

#[test]
fn without_limits_everything_is_heard() {
    let mut b = Bench::new(&config());
    assert_eq!(heard(&mut b, udp_flow(FLOODER), 10_000), 10_000);
    assert_eq!(b.endpoint.gauges().sources, 0);
}

#[test]
fn a_flood_is_cut_to_the_rate_and_others_are_heard() {
    let mut b = Bench::new(&limited(100, 20));
    assert_eq!(heard(&mut b, udp_flow(FLOODER), 1_000), 20);
    assert_eq!(heard(&mut b, udp_flow(CALLER), 10), 10);
    // Whatever port, whatever transport: it is the same source.
    assert_eq!(heard(&mut b, udp_flow("198.51.100.7:9"), 5), 0);
    assert_eq!(heard(&mut b, tcp_flow("198.51.100.7:9", 1), 5), 0);
    b.now_us += 100_000;
    assert_eq!(heard(&mut b, udp_flow(FLOODER), 1_000), 10);
    assert_eq!(b.counters().dropped_rate, 980 + 5 + 5 + 990);
    assert_eq!(b.endpoint.gauges().sources, 1, "the other's bucket is full again");
    // Reported once, not for each message.
    assert_eq!(
        events(&mut b),
        [Event::SourceLimited {
            source: FLOODER.parse().unwrap(),
            dropped: 1
        }]
    );
    b.now_us += 60_000_000;
    assert_eq!(heard(&mut b, udp_flow(FLOODER), 30), 20);
    let told = events(&mut b);
    assert!(
        matches!(told[..], [Event::SourceLimited { dropped: 1_980, .. }]),
        "{told:?}"
    );
}

#[test]
fn of_ipv6_a_network_of_64_bits_is_one_source() {
    let mut b = Bench::new(&limited(1, 5));
    for host in 1..=5 {
        assert_eq!(heard(&mut b, udp_flow(&format!("[2001:db8::{host}]:5060")), 1), 1);
    }
    assert_eq!(heard(&mut b, udp_flow("[2001:db8::77:1]:5060"), 5), 0);
    assert_eq!(heard(&mut b, udp_flow("[2001:db8:0:1::1]:5060"), 5), 5);
}

#[test]
fn a_reload_keeps_buckets_whose_limits_stay() {
    let mut config = limited(1, 5);
    let mut b = Bench::new(&config);
    assert_eq!(heard(&mut b, udp_flow(FLOODER), 9), 5);
    config.routes.clear();
    b.endpoint.reconfigure(&config);
    assert_eq!(heard(&mut b, udp_flow(FLOODER), 9), 0);
    config.abuse.burst = 7;
    b.endpoint.reconfigure(&config);
    assert_eq!(heard(&mut b, udp_flow(FLOODER), 9), 7);
    config.abuse.rate = 0;
    b.endpoint.reconfigure(&config);
    assert_eq!(heard(&mut b, udp_flow(FLOODER), 9), 9);
}

/// A group with one member at an address and one with a name.
fn trusting() -> Config {
    let mut config = limited(1, 2);
    config.trust = vec![network("203.0.113.0/24")];
    config.abuse.exempt = vec![network("2001:db8:5::/48")];
    let member = |uri: &str| Member::new(hop(uri), 1, 0);
    config.groups = vec![Group {
        name: b"carriers"[..].into(),
        algorithm: Distribution::Priority,
        members: vec![member("sip:gw.example.net:5070"), member("sip:192.0.2.44")],
        probe_ms: None,
        marks: MarkPolicy {
            fail_after: 1,
            recover_after: 1,
            hold_ms: Some(60_000),
        },
        reply_timeout_ms: 2000,
        failover_on: vec![503],
        cursor: Local::default(),
    }];
    config
}

#[test]
fn the_trust_domain_is_neither_limited_nor_banned() {
    let mut b = Bench::new(&trusting());
    let proven = Flow {
        proof: Proof::Trusted,
        transport: Transport::Tls,
        ..tcp_flow("198.51.100.8:1", 1)
    };
    let exempt = [
        udp_flow("203.0.113.9:5060"),
        udp_flow("[2001:db8:5:77::1]:5060"),
        udp_flow(CALLEE), // the next hop of the only rule
        udp_flow("192.0.2.44:7"),
        proven,
    ];
    stand(
        &mut b,
        &["203.0.113.9", CALLEE.split(':').next().unwrap(), "198.51.100.8"],
        &[],
    );
    for flow in exempt {
        assert_eq!(heard(&mut b, flow, 100), 100, "{flow:?}");
    }
    assert_eq!(
        heard(&mut b, udp_flow("198.51.100.8:1"), 100),
        0,
        "without the certificate"
    );
}

#[test]
fn addresses_of_named_next_hops_are_learnt_and_announced() {
    let mut config = trusting();
    config.routes = vec![relay("sip:gw.example.net:5070")];
    let mut b = Bench::new(&config);
    assert!(b.udp(CALLER, &request("OPTIONS", BOB, "a1", "")).is_empty());
    let zone: Zone<'_> = &[("gw.example.net A", vec![address("192.0.2.99")])];
    let (_, sent) = b.serve(zone);
    assert_eq!(one(sent).address(), "192.0.2.99:5070");
    let met = Event::PeerMet {
        address: "192.0.2.99".parse().unwrap(),
    };
    assert_eq!(events(&mut b), std::slice::from_ref(&met));
    b.udp(CALLER, &request("OPTIONS", BOB, "a2", ""));
    assert_eq!(events(&mut b), [], "not each time");
    b.pass(601_000);
    b.udp(CALLER, &request("OPTIONS", BOB, "a3", ""));
    b.serve(zone);
    assert!(events(&mut b).contains(&met), "but now and then");
    // The process informs every worker.
    let gateway = udp_flow("192.0.2.99:5070");
    assert!(heard(&mut b, gateway, 10) < 10);
    stand(&mut b, &["192.0.2.99"], &["192.0.2.99"]);
    assert_eq!(heard(&mut b, gateway, 100), 100);
    // What a stranger's request names is no next hop of ours.
    config.routes = vec![];
    let mut b = Bench::new(&config);
    b.udp(CALLER, &request("OPTIONS", "sip:x@gw.example.net", "b1", ""));
    b.serve(zone);
    assert!(!events(&mut b).contains(&met));
}

/// The number of reports in this time that a peer is at `ip`, while nothing is sent.
#[track_caller]
fn told_of(b: &mut Bench, ms: u64, zone: Zone<'_>, ip: &str) -> usize {
    let met = Event::PeerMet {
        address: ip.parse().unwrap(),
    };
    let steps = (0..ms / 250).map(|_| {
        b.pass(250);
        b.serve(zone);
        events(b).iter().filter(|event| **event == met).count()
    });
    steps.sum()
}

/// A trunk may only call in, and at night.
#[test]
fn next_hops_with_names_are_known_although_nothing_is_sent_there() {
    const HOUR_MS: u64 = 3_600_000;
    let mut b = Bench::new(&trusting());
    let zone: Zone<'_> = &[("gw.example.net A", vec![address("192.0.2.99")])];
    assert_eq!(told_of(&mut b, 1_000, zone, "192.0.2.99"), 1, "at once");
    let times = told_of(&mut b, 2 * HOUR_MS, zone, "192.0.2.99");
    assert!((11..=12).contains(&times), "and again and again: {times}");
    // Where it moves to is known as soon.
    let moved: Zone<'_> = &[("gw.example.net A", vec![address("192.0.2.100")])];
    assert_eq!(told_of(&mut b, 310_000, moved, "192.0.2.100"), 1);
    // Name service may come late.
    let mut b = Bench::new(&trusting());
    b.pass(60_000);
    assert!(told_of(&mut b, 30_000, zone, "192.0.2.99") >= 1);
    // A reload may bring another, and the first is none any more.
    let mut config = trusting();
    config.groups.clear();
    config.routes = vec![relay("sip:gw2.example.net:5070")];
    b.endpoint.reconfigure(&config);
    let zone2: Zone<'_> = &[("gw2.example.net A", vec![address("192.0.2.98")])];
    assert_eq!(told_of(&mut b, 1_000, zone2, "192.0.2.98"), 1);
    assert_eq!(told_of(&mut b, HOUR_MS, zone, "192.0.2.99"), 0);
    // One worker asks, and none if no source is ever refused.
    let mut off = trusting();
    off.abuse.rate = 0;
    let mut two = trusting();
    two.workers = 2;
    let mut others = [
        Bench::new(&off),
        Bench::worker(&two, 1, Arc::new(Shared::default())),
    ];
    for other in &mut others {
        assert_eq!(told_of(other, HOUR_MS, zone, "192.0.2.99"), 0);
        assert_eq!(other.counters().queries_resolve, 0);
    }
}

#[test]
fn a_peer_without_room_in_the_queue_of_events_is_announced_later() {
    let mut config = trusting();
    config.routes = vec![relay("sip:gw.example.net:5070")];
    config.limits.events = 1;
    let mut b = Bench::new(&config);
    let zone: Zone<'_> = &[("gw.example.net A", vec![address("192.0.2.99")])];
    assert!(heard(&mut b, udp_flow(FLOODER), 10) < 10);
    b.udp(CALLER, &request("OPTIONS", BOB, "a1", ""));
    b.serve(zone);
    assert_eq!(b.counters().dropped_event, 1);
    assert!(matches!(events(&mut b)[..], [Event::SourceLimited { .. }]));
    b.udp(CALLER, &request("OPTIONS", BOB, "a2", ""));
    let met = Event::PeerMet {
        address: "192.0.2.99".parse().unwrap(),
    };
    assert_eq!(events(&mut b), [met]);
}

#[test]
fn behind_a_translator_each_address_of_ipv4_is_a_source() {
    let mut config = limited(1, 5);
    config.abuse.exempt = vec![network("198.51.100.0/24"), network("64:ff9b::203.0.113.0/120")];
    let mut b = Bench::new(&config);
    let by = |ip: &str| udp_flow(&format!("[64:ff9b::{ip}]:5060"));
    assert_eq!(heard(&mut b, by("192.0.2.1"), 9), 5);
    assert_eq!(heard(&mut b, by("192.0.2.2"), 9), 5);
    for exempt in ["198.51.100.9", "203.0.113.9"] {
        assert_eq!(heard(&mut b, by(exempt), 9), 9, "{exempt}");
    }
    stand(&mut b, &["192.0.2.3"], &[]);
    assert_eq!(heard(&mut b, by("192.0.2.3"), 1), 0);
    assert_eq!(heard(&mut b, by("192.0.2.4"), 1), 1);
}

#[test]
fn a_banned_source_is_not_heard() {
    let mut b = Bench::new(&config());
    stand(&mut b, &["198.51.100.7", "2001:db8::/64"], &[]);
    assert_eq!(heard(&mut b, udp_flow(FLOODER), 3), 0);
    assert_eq!(heard(&mut b, tcp_flow("[2001:db8::9]:1", 1), 3), 0);
    assert_eq!(heard(&mut b, udp_flow(CALLER), 3), 3);
    assert_eq!(b.counters().dropped_banned, 6);
    assert_eq!(events(&mut b), []);
    stand(&mut b, &[], &[]);
    assert_eq!(heard(&mut b, udp_flow(FLOODER), 3), 3);
}

#[test]
fn a_message_that_is_handed_over_is_counted_where_it_came() {
    let mut config = limited(1, 1);
    config.workers = 2;
    let shared = Arc::new(Shared::default());
    let mut workers = [0, 1].map(|n| Bench::worker(&config, n, shared.clone()));
    let text = request("INVITE", BOB, "a1", "");
    let (came, owner) = match workers[0].endpoint.worker_of(text.as_bytes()) {
        Some(WorkerId(owner)) => (0, usize::from(owner)),
        None => (1, 0),
    };
    assert_eq!(heard(&mut workers[came], udp_flow(FLOODER), 1), 1);
    assert!(!workers[owner].receive(udp_flow(FLOODER), &text).is_empty());
    assert_eq!(heard(&mut workers[owner], udp_flow(FLOODER), 1), 1);
}

/// All users but bob and the trusted must authenticate; alice's password is known.
#[track_caller]
fn guarded() -> Bench {
    let mut config = trusting();
    config.abuse.rate = 0;
    config.abuse.bans = true;
    config.domains[0].auth.methods = vec![b"REGISTER"[..].into(), b"MESSAGE"[..].into()];
    let pattern = |text| RegexBuilder::new_bytes(text);
    config.abuse.scanners = Scanners {
        user_agent: Some(pattern("friendly-scanner|sipcli")),
        from_user: Some(pattern("^sipvicious$")),
        to_user: Some(pattern("^[0-9]{10,}$")),
        uri_user: Some(pattern("^(1000|test)$")),
    };
    let b = Bench::new(&config);
    let mut cache = b.shared.cached.lock().unwrap();
    let domain = b"example.com".to_vec();
    let secrets = digest::secrets(b"alice", b"example.com", PASSWORD.as_bytes());
    cache.insert((b"alice".to_vec(), domain.clone()), Some(secrets));
    cache.insert((b"nobody".to_vec(), domain), None);
    drop(cache);
    b
}

trait NewBytes {
    fn new_bytes(text: &str) -> regex::bytes::Regex;
}

impl NewBytes for RegexBuilder {
    fn new_bytes(text: &str) -> regex::bytes::Regex {
        Self::new(text)
            .unicode(false)
            .case_insensitive(true)
            .build()
            .unwrap()
    }
}

fn register(branch: &str, extra: &str) -> String {
    request("REGISTER", "sip:example.com", branch, extra)
}

/// Whether a guess by `flow`, with a nonce that was sent to `asked`, counts towards a ban. `None`: it
/// is not reported, but challenged anew.
#[track_caller]
fn guess(b: &mut Bench, asked: Flow, flow: Flow, user: &str) -> Option<bool> {
    let challenge = one(b.receive(asked, &register("n1", "")));
    let wrong = Login {
        user: user.into(),
        password: "guess".into(),
        ..login("REGISTER", "sip:example.com")
    };
    let answer = one(b.receive(flow, &register("n2", &wrong.line(&nonce_of(&challenge)))));
    assert_eq!(answer.first_line(), "SIP/2.0 401 Unauthorized");
    let counts: Vec<bool> = events(b)
        .iter()
        .filter_map(|event| match event {
            Event::AuthFailed { counts, .. } => Some(*counts),
            _ => None,
        })
        .collect();
    let stale = answer.header("WWW-Authenticate").ends_with(", stale=true");
    assert_eq!(counts.len(), usize::from(!stale));
    counts.first().copied()
}

#[test]
fn a_guess_by_datagram_counts_only_where_the_nonce_was_sent() {
    let mut b = guarded();
    let (here, there) = (udp_flow(FLOODER), udp_flow("198.51.100.8:5060"));
    for user in ["alice", "nobody"] {
        assert_eq!(guess(&mut b, here, here, user), Some(true));
        // Another port is the same host.
        assert_eq!(
            guess(&mut b, here, udp_flow("198.51.100.7:999"), user),
            Some(true)
        );
        // An attacker that writes another address has not read what was sent there.
        assert_eq!(guess(&mut b, here, there, user), None);
        // Connections are what they are.
        assert_eq!(
            guess(&mut b, here, tcp_flow("198.51.100.8:5060", 1), user),
            Some(true)
        );
        // Nothing counts against the trust domain.
        for trusted in [
            "203.0.113.9:5060",
            "[2001:db8:5::1]:5060",
            CALLEE,
            "192.0.2.44:5060",
        ] {
            let flow = udp_flow(trusted);
            assert_eq!(guess(&mut b, flow, flow, user), Some(false), "{trusted}");
        }
    }
    let proven = Flow {
        proof: Proof::Trusted,
        ..tcp_flow("198.51.100.8:5060", 1)
    };
    assert_eq!(guess(&mut b, proven, proven, "alice"), Some(false));
}

/// By datagram they prove nothing there, and are challenged anew. On a connection the source address
/// cannot be spoofed.
#[test]
fn good_credentials_serve_at_another_address_on_a_connection() {
    let mut b = guarded();
    let challenge = one(b.udp(FLOODER, &register("n1", "")));
    let line = login("REGISTER", "sip:example.com").line(&nonce_of(&challenge));
    let text = register("n2", &line).replace("To: <sip:bob@", "To: <sip:alice@");
    let there = "198.51.100.8:5060";
    let asked = one(b.udp(there, &text));
    assert_eq!(asked.first_line(), "SIP/2.0 401 Unauthorized");
    assert!(asked.header("WWW-Authenticate").ends_with(", stale=true"));
    assert!(events(&mut b).is_empty(), "nothing failed");
    let served = one(b.receive(tcp_flow(there, 1), &text));
    assert_eq!(served.first_line(), "SIP/2.0 200 OK");
}

/// A request with these header values, of a scanner or not.
fn scan(uri: &str, from: &str, to: &str, agent: &str) -> String {
    crlf(&format!(
        "OPTIONS {uri} SIP/2.0\nVia: SIP/2.0/UDP 192.0.2.10:5060;branch=z9hG4bKs\nMax-Forwards: 70\n\
         From: <{from}>;tag=f1\nTo: <{to}>\nCall-ID: s\nCSeq: 1 OPTIONS\nUser-Agent: {agent}\nContent-Length: 0\n\n"
    ))
}

#[test]
fn scanners_get_no_answer() {
    let mut b = guarded();
    let plain = "sip:a@example.com";
    let table = [
        (
            scan("sip:b@x", plain, plain, "friendly-scanner"),
            Some(ScanSign::UserAgent),
        ),
        (
            scan("sip:b@x", plain, plain, "SIPCLI/v1.8"),
            Some(ScanSign::UserAgent),
        ),
        (
            scan("sip:b@x", "sip:sipvicious@x", plain, "a"),
            Some(ScanSign::FromUser),
        ),
        (
            scan("sip:b@x", plain, "sip:00442012345@x", "a"),
            Some(ScanSign::ToUser),
        ),
        (scan("sip:1000@x", plain, plain, "a"), Some(ScanSign::UriUser)),
        (
            scan("sip:10001@x", "sip:sipvicious2@x", "sip:12@x", "phone"),
            None,
        ),
        // What cannot be read is known by what can.
        (
            scan("sip:b@x", plain, plain, "friendly-scanner").replace("CSeq: 1", "CSeq: x"),
            Some(ScanSign::UserAgent),
        ),
    ];
    for (text, expected) in table {
        let before = b.counters().dropped_scanner;
        let sent = b.receive(tcp_flow(FLOODER, 1), &text);
        let signs: Vec<_> = events(&mut b)
            .iter()
            .filter_map(|event| match event {
                Event::Scanned { sign, counts, .. } => Some((*sign, *counts)),
                _ => None,
            })
            .collect();
        assert_eq!(signs, Vec::from_iter(expected.map(|sign| (sign, true))), "{text}");
        assert_eq!(sent.is_empty(), expected.is_some(), "{text}");
        let dropped = b.counters().dropped_scanner - before;
        assert_eq!(dropped, u64::from(expected.is_some()), "{text}");
    }
    // A trusted peer may carry calls of any caller.
    let text = scan("sip:b@x", plain, plain, "friendly-scanner").replace("z9hG4bKs", "z9hG4bKt");
    assert!(!b.udp("203.0.113.9:5060", &text).is_empty());
}

#[test]
fn a_scan_by_datagram_is_logged_now_and_then_and_counts_where_the_source_is_verified() {
    let mut b = guarded();
    let text = scan("sip:b@x", "sip:a@example.com", "sip:a@example.com", "sipcli");
    for _ in 0..10 {
        assert!(b.udp(FLOODER, &text).is_empty());
    }
    let told = events(&mut b);
    let expected = Event::Scanned {
        source: FLOODER.parse().unwrap(),
        sign: ScanSign::UserAgent,
        counts: false,
        unreported: Some(1),
    };
    assert_eq!(told, [expected]);
    assert_eq!(b.counters().dropped_scanner, 10);
    // It uses the nonce of a challenge that went there.
    let challenge = one(b.udp(FLOODER, &register("n1", "")));
    let line = login("REGISTER", "sip:example.com").line(&nonce_of(&challenge));
    let scanned = |from: &str, b: &mut Bench| {
        let text = register("n2", &format!("{line}User-Agent: sipcli\n"));
        assert!(b.udp(from, &text).is_empty());
        events(b)
            .iter()
            .any(|event| matches!(event, Event::Scanned { counts: true, .. }))
    };
    assert!(scanned(FLOODER, &mut b));
    assert!(!scanned("198.51.100.8:5060", &mut b));
}

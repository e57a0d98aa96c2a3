//! What this server says of requests that fail: by its answers, and to its operator.
#![allow(
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "helpers of tests"
)]

use crate::agent::{Login, login, nonce_of};
use crate::common;
use crate::forks::{BOB, call, invite, location, location_with, phone, registered, with_contact};

use common::*;
use sip_core::config::{Action, Config};
use sip_core::event::Event;
use sip_core::query::{Answer, Records, Unavailable};

const GONE: &str = "SIP;cause=503;text=\"Contact Unreachable\"";

/// A phone that is gone is no fault of this server: 480 says so, and a 500 that something is wrong here.
#[test]
fn a_phone_that_cannot_be_reached_is_unavailable() {
    let mut b = registered(&location(), &[phone(1)]);
    let sent = call(&mut b).remove(0);
    let answer = one(b.undelivered(&sent));
    assert_eq!(answer.first_line(), "SIP/2.0 480 Temporarily Unavailable");
    assert_eq!(answer.header("Reason"), GONE);
    // Of several the last one decides.
    let mut b = registered(&location(), &[phone(1), phone(2)]);
    let sent = call(&mut b);
    assert!(b.undelivered(&sent[0]).is_empty());
    let answer = one(b.undelivered(&sent[1]));
    assert_eq!(answer.first_line(), "SIP/2.0 480 Temporarily Unavailable");
    assert_eq!(answer.header("Reason"), GONE);
    // One that was reached says more.
    let mut b = registered(&location(), &[phone(1), phone(2)]);
    let sent = call(&mut b);
    assert!(b.undelivered(&sent[0]).is_empty());
    let out = b.udp(&sent[1].address(), &response(&sent[1], "486 Busy Here", ""));
    assert_eq!(out[1].first_line(), "SIP/2.0 486 Busy Here");
    // Cancelled meanwhile, it ends as any other.
    let mut b = registered(&location(), &[phone(1)]);
    let sent = call(&mut b).remove(0);
    b.udp(CALLER, &request("CANCEL", BOB, "a1", ""));
    let answer = one(b.undelivered(&sent));
    assert_eq!(
        (answer.first_line(), answer.header("Reason")),
        ("SIP/2.0 487 Request Terminated", "")
    );
}

/// The host of its Contact has no address. That name service does not answer is another matter: 500.
#[test]
fn a_phone_whose_host_has_no_address_is_unavailable() {
    let lost = |n| {
        let mut binding = with_contact(n, &format!("sip:bob@phone{n}.example"));
        binding.received = tcp_flow("192.0.2.66:40000", 1);
        binding.received.conn = None;
        binding
    };
    for phones in [&[lost(1)][..], &[lost(1), lost(2)]] {
        for (answer, status, reason) in [
            (Ok(Records::default()), "480 Temporarily Unavailable", GONE),
            (Err(Unavailable), "500", ""),
        ] {
            let mut b = registered(&location(), phones);
            let mut sent = b.udp(CALLER, &invite());
            while let Some(query) = b.endpoint.poll_query() {
                sent.extend(b.answer(&query, Answer::Resolved(answer.clone())));
            }
            let last = sent.last().unwrap();
            assert!(
                last.first_line().starts_with(&format!("SIP/2.0 {status}")),
                "{sent:?}"
            );
            assert_eq!((last.address().as_str(), last.header("Reason")), (CALLER, reason));
            assert!(b.counters().dropped_no_route > 0);
        }
    }
}

/// Nor is a phone that says nothing at all, as one whose NAT has forgotten it. One that rang and then timed out
/// was there: 408.
#[test]
fn a_silent_phone_is_unavailable() {
    const SILENT: &str = "SIP;cause=408;text=\"Contact Silent\"";
    let end_of = |b: &mut Bench| {
        let ends = b.pass(181_000 + 33_000);
        let to_caller = |sent: &&Sent| sent.address() == CALLER;
        let end = ends.iter().find(to_caller).unwrap();
        (end.first_line().to_string(), end.header("Reason").to_string())
    };
    let unavailable = (
        "SIP/2.0 480 Temporarily Unavailable".to_string(),
        SILENT.to_string(),
    );
    for phones in [&[phone(1)][..], &[phone(1), phone(2)]] {
        let mut b = registered(&location(), phones);
        call(&mut b);
        assert_eq!(end_of(&mut b), unavailable);
    }
    // So it is where a rule ends it before timer B does.
    let short = location_with(|relay| relay.timeout_s = Some(5));
    let mut b = registered(&short, &[phone(1)]);
    call(&mut b);
    assert_eq!(end_of(&mut b), unavailable);
    let mut b = registered(&location(), &[phone(1)]);
    let sent = call(&mut b).remove(0);
    b.udp(&sent.address(), &response(&sent, "180 Ringing", ""));
    assert_eq!(
        end_of(&mut b),
        ("SIP/2.0 408 Request Timeout".to_string(), String::new())
    );
}

/// A next hop of the configuration that is away is one.
#[test]
fn a_next_hop_that_cannot_be_reached_is_a_500() {
    let mut b = Bench::new(&config());
    let sent = b.udp(CALLER, &request("INVITE", BOB, "a1", "")).remove(1);
    let answer = one(b.undelivered(&sent));
    assert_eq!(answer.first_line(), "SIP/2.0 500 Server Internal Error");
    assert_eq!(answer.header("Reason"), "");
}

fn refused(b: &mut Bench) -> Vec<Event> {
    let all = std::iter::from_fn(|| b.endpoint.poll_event());
    all.filter(|event| matches!(event, Event::Refused { .. }))
        .collect()
}

fn rejecting() -> Config {
    let mut config = config();
    let mut rule = relay("sip:192.0.2.20:5060");
    rule.when.methods = vec![b"MESSAGE"[..].into()];
    let mut reject = relay("sip:192.0.2.20:5060");
    reject.action = Action::Reject {
        status: 603,
        reason: b"Not Today"[..].into(),
    };
    config.routes = vec![rule, reject];
    config
}

#[test]
fn each_refused_request_is_reported() {
    let mut b = Bench::new(&rejecting());
    b.udp(CALLER, &request("INVITE", BOB, "a1", ""));
    let event = Event::Refused {
        source: CALLER.parse().unwrap(),
        method: b"INVITE"[..].into(),
        uri: BOB.as_bytes().into(),
        call_id: b"c1@192.0.2.10"[..].into(),
        from: b"sip:alice@example.com"[..].into(),
        to: b"sip:bob@example.com"[..].into(),
        digest_uri: Box::default(),
        rule: Some(1),
        status: 603,
        reason: "Not Today".into(),
        unreported: 0,
    };
    assert_eq!(refused(&mut b), [event]);
    // A request that cannot be read; a request that times out.
    let reported = |b: &mut Bench, text: &str| {
        b.udp(CALLER, text);
        let status = |event: &Event| match event {
            Event::Refused { status, rule, .. } => (*status, *rule),
            other => panic!("{other:?}"),
        };
        refused(b).iter().map(status).collect::<Vec<_>>()
    };
    let broken = request("INVITE", BOB, "a2", "").replace("CSeq: 1 INVITE", "CSeq: 1 BYE");
    assert_eq!(reported(&mut b, &broken), [(400, None)]);
    assert_eq!(reported(&mut b, &request("MESSAGE", BOB, "a3", "")), []);
    let mut b = Bench::new(&config());
    assert_eq!(reported(&mut b, &request("INVITE", BOB, "a4", "")), []);
    b.pass(33_000);
    assert!(matches!(
        refused(&mut b)[..],
        [Event::Refused {
            status: 408,
            rule: None,
            ..
        }]
    ));
    // Nor is a challenge a refusal, nor what a callee refuses.
    let mut guarded = config();
    guarded.domains[0].auth.methods = vec![b"*"[..].into()];
    let mut b = Bench::new(&guarded);
    assert_eq!(reported(&mut b, &request("INVITE", BOB, "a5", "")), []);
    let (mut b, text) = (Bench::new(&config()), request("INVITE", BOB, "a6", ""));
    let sent = b.udp(CALLER, &text).remove(1);
    b.udp(CALLEE, &response(&sent, "486 Busy Here", ""));
    assert_eq!(refused(&mut b), []);
}

/// What was refused for the `uri` of its credentials is reported with it: the phone, or a proxy before this server,
/// has another idea of the Request-URI.
#[test]
fn a_refused_digest_uri_is_reported() {
    let mut guarded = config();
    guarded.domains[0].auth.methods = vec![b"*"[..].into()];
    let mut b = Bench::new(&guarded);
    let challenge = one(b.udp(CALLER, &request("MESSAGE", BOB, "a1", "")));
    let line = Login {
        uri: "sip:carol@example.com".into(),
        ..login("MESSAGE", BOB)
    }
    .line(&nonce_of(&challenge));
    b.udp(CALLER, &request("MESSAGE", BOB, "a2", &line));
    let [
        Event::Refused {
            status, digest_uri, ..
        },
    ] = &refused(&mut b)[..]
    else {
        panic!("one request was refused");
    };
    assert_eq!((*status, &digest_uri[..]), (400, &b"sip:carol@example.com"[..]));
}

/// Of a flood the first refusals are reported, and then the count; another source has reports of its own.
#[test]
fn a_flood_of_refusals_is_bounded() {
    let mut b = Bench::new(&rejecting());
    for second in 0..600 {
        for n in 0..20 {
            b.udp(CALLER, &request("INVITE", BOB, &format!("b{second}x{n}"), ""));
        }
        b.pass(100);
    }
    let reported = refused(&mut b);
    assert_eq!(reported.len(), 60, "thirty in each of two minutes");
    b.udp("192.0.2.11:5060", &request("INVITE", BOB, "c1", ""));
    assert_eq!(refused(&mut b).len(), 1);
    b.pass(60_000);
    b.udp(CALLER, &request("INVITE", BOB, "c2", ""));
    let all: usize = reported
        .iter()
        .chain(&refused(&mut b))
        .map(|event| match event {
            Event::Refused { unreported, .. } => 1 + *unreported as usize,
            _ => 0,
        })
        .sum();
    assert_eq!(all, 600 * 20 + 1);
}

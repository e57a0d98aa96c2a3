//! Requests that fail: what responses reveal of them, and what the operator learns.
#![allow(
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "helpers of tests"
)]

use crate::agent::{Login, login, nonce_of};
use crate::common;
use crate::forks::{
    BOB, ack, answer_with, brief, call, cancel, end, group, grouped, invite, location, location_with, phone,
    registered, with_contact,
};

use common::*;
use sip_core::config::{Action, Config};
use sip_core::dispatcher::Distribution;
use sip_core::event::RefusalCause::{
    ContactSilent, ContactUnreachable, Draining, FlawedResponse, ForeignDomain, ForeignRoute, NextHopSilent,
    NextHopUnavailable, NextHopUnreachable, NoDomain, NoRule, NotRegistered, NotSecure, TransactionLimit,
};
use sip_core::event::{Event, RefusalCause};
use sip_core::location::Binding;
use sip_core::query::{QueryResult, Records, Unavailable};

const GONE: &str = "SIP;cause=503;text=\"Contact Unreachable\"";
const SILENT: &str = "SIP;cause=408;text=\"Contact Silent\"";

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

/// A registration whose connection has gone, with a Contact that names a host.
fn lost(n: u8) -> Binding {
    let mut binding = with_contact(n, &format!("sip:bob@phone{n}.example"));
    binding.received = tcp_flow("192.0.2.66:40000", 1);
    binding.received.conn = None;
    binding
}

/// A registration through an edge proxy.
fn behind(n: u8) -> Binding {
    Binding {
        path: format!("<sip:edge{n}.example:5060;lr>").into_bytes().into(),
        ..phone(n)
    }
}

/// Answers all questions for name service like this; what left then.
fn served(b: &mut Bench, answer: &Result<Records, Unavailable>) -> Vec<Sent> {
    let mut sent = vec![];
    while let Some(query) = b.endpoint.poll_query() {
        sent.extend(b.answer(&query, QueryResult::Resolved(answer.clone())));
    }
    sent
}

/// The host of its Contact has no address. That name service does not answer is another matter: 500.
#[test]
fn a_phone_whose_host_has_no_address_is_unavailable() {
    for phones in [&[lost(1)][..], &[lost(1), lost(2)]] {
        for (answer, status, reason) in [
            (Ok(Records::default()), "480 Temporarily Unavailable", GONE),
            (Err(Unavailable), "500", ""),
        ] {
            let mut b = registered(&location(), phones);
            let mut sent = b.udp(CALLER, &invite());
            sent.extend(served(&mut b, &answer));
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

/// The host of its Path has no address: that is an edge proxy of this network, and none of the phone's doing. Beside a
/// phone that is lost it says less (§16.7 step 6), in either order.
#[test]
fn a_path_whose_host_has_no_address_is_a_500() {
    for (phones, status, reason) in [
        (vec![behind(1)], "500 Next Hop Not Found", ""),
        (vec![behind(1), behind(2)], "500 Server Internal Error", ""),
        (vec![behind(1), lost(2)], "480 Temporarily Unavailable", GONE),
        (vec![lost(1), behind(2)], "480 Temporarily Unavailable", GONE),
    ] {
        let mut b = registered(&location(), &phones);
        let mut sent = b.udp(CALLER, &invite());
        sent.extend(served(&mut b, &Ok(Records::default())));
        let last = sent.pop().unwrap();
        assert_eq!(last.first_line(), format!("SIP/2.0 {status}"));
        assert_eq!((last.address().as_str(), last.header("Reason")), (CALLER, reason));
        assert_eq!(b.counters().dropped_no_route, phones.len() as u64);
        ack(&mut b, &last);
        end(&mut b);
    }
}

/// How the other phone is lost.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Loss {
    /// Its host has no address.
    NoAddress,
    /// Nor has that of its Path.
    NoEdge,
    /// Its transport fails.
    Unreachable,
    /// It says nothing until timer B fires.
    Silent,
}

/// A call to phone 1, which answers with this status and this header line, and to phone 2, which is lost before or after
/// that. What the caller gets: the status line without the version, and Reason.
fn answer_beside(loss: Loss, is_lost_first: bool, status: &str, extra: &str) -> (String, String) {
    let other = match loss {
        Loss::NoAddress => lost(2),
        Loss::NoEdge => behind(2),
        Loss::Unreachable | Loss::Silent => phone(2),
    };
    let mut b = registered(&location(), &[phone(1), other]);
    let sent = call(&mut b);
    let lose = |b: &mut Bench| match loss {
        Loss::NoAddress | Loss::NoEdge => served(b, &Ok(Records::default())),
        Loss::Unreachable => b.undelivered(&sent[1]),
        Loss::Silent => b.pass(32_100),
    };
    let mut out = vec![];
    if is_lost_first {
        // It rings, or its own timer B would end it, too.
        answer_with(&mut b, &sent[0], "180 Ringing", "");
        out.extend(lose(&mut b));
    }
    out.extend(answer_with(&mut b, &sent[0], status, extra));
    if !is_lost_first {
        out.extend(lose(&mut b));
    }
    let is_final = |sent: &&Sent| sent.address() == CALLER && !sent.first_line().starts_with("SIP/2.0 1");
    let mut told = out.iter().filter(is_final);
    let last = told.next().unwrap_or_else(|| panic!("{:?}", brief(&out)));
    assert_eq!(told.count(), 0, "{:?}", brief(&out));
    ack(&mut b, last);
    end(&mut b);
    let line = last.first_line().replacen("SIP/2.0 ", "", 1);
    (line, last.header("Reason").to_owned())
}

/// §16.7 step 6: a phone's response goes to the caller with the phone's own Reason. The lost phone is
/// reported only if that response says no more than that this server, or the phone, failed.
#[test]
fn of_a_phone_that_answers_and_a_lost_one_the_caller_hears_of_the_first() {
    const BUSY: &str = "Q.850;cause=17;text=\"User busy\"";
    for loss in [Loss::NoAddress, Loss::NoEdge, Loss::Unreachable, Loss::Silent] {
        let gone = match loss {
            Loss::NoAddress | Loss::Unreachable => Some(GONE),
            Loss::Silent => Some(SILENT),
            Loss::NoEdge => None,
        };
        for is_lost_first in [true, false] {
            for (status, reason) in [
                ("486 Busy Here", BUSY),
                ("486 Busy Here", ""),
                ("480 Temporarily Unavailable", BUSY),
                ("404 Not Found", ""),
                ("603 Decline", BUSY),
                ("302 Moved Temporarily", ""),
            ] {
                let extra = match reason {
                    "" => String::new(),
                    _ => format!("Reason: {reason}\n"),
                };
                let told = answer_beside(loss, is_lost_first, status, &extra);
                let expected = (status.to_owned(), reason.to_owned());
                assert_eq!(told, expected, "{loss:?}, first: {is_lost_first}");
            }
            for status in ["500 Server Internal Error", "503 Service Unavailable"] {
                let told = answer_beside(loss, is_lost_first, status, &format!("Reason: {BUSY}\n"));
                let expected = match (gone, status) {
                    (Some(gone), _) => ("480 Temporarily Unavailable", gone),
                    (None, "500 Server Internal Error") => (status, BUSY),
                    // A 503 would say that this server can serve nothing.
                    (None, _) => ("500 Server Internal Error", ""),
                };
                let expected = (expected.0.to_owned(), expected.1.to_owned());
                assert_eq!(told, expected, "{loss:?}, first: {is_lost_first}, {status}");
            }
        }
    }
}

/// Nor is a phone that says nothing at all, as one whose NAT has forgotten it. One that rang and then timed out
/// was there: 408.
#[test]
fn a_silent_phone_is_unavailable() {
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

/// Phones come and go: no event says that one which was silent is back.
#[test]
fn the_return_of_a_phone_is_no_event() {
    let mut b = registered(&location(), &[phone(1)]);
    call(&mut b);
    // Until its transaction is forgotten, too.
    b.pass(90_000);
    let sent = call(&mut b).remove(0);
    b.udp(&sent.address(), &response(&sent, "180 Ringing", ""));
    let all = std::iter::from_fn(|| b.endpoint.poll_event());
    let (failed, returned): (Vec<_>, Vec<_>) = all
        .filter(|event| matches!(event, Event::NextHopFailed { .. } | Event::NextHopReturned { .. }))
        .partition(|event| matches!(event, Event::NextHopFailed { is_contact: true, .. }));
    assert_eq!((failed.len(), returned), (1, vec![]));
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
        cause: Some(RefusalCause::RuleRejects),
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
            rule: Some(0),
            ..
        }]
    ));
    // A request that times out without a response (RFC 4320 §4.2) as well.
    assert_eq!(reported(&mut b, &request("MESSAGE", BOB, "a6", "")), []);
    let sent = b.pass(33_000);
    let is_final = |s: &&Sent| s.header("CSeq") == "1 MESSAGE" && s.first_line().starts_with("SIP/2.0 4");
    assert_eq!(sent.iter().filter(is_final).count(), 0);
    assert!(matches!(
        refused(&mut b)[..],
        [Event::Refused {
            status: 408,
            rule: Some(0),
            cause: Some(RefusalCause::NextHopSilent),
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

/// The reports of refused requests: status, number of the rule, cause.
#[track_caller]
fn causes(b: &mut Bench) -> Vec<(u16, Option<u16>, Option<RefusalCause>)> {
    let said = |event: &Event| match event {
        Event::Refused {
            status, rule, cause, ..
        } => (*status, *rule, *cause),
        other => panic!("{other:?}"),
    };
    refused(b).iter().map(said).collect()
}

/// A request that was routed keeps its rule: what ends it later is reported with that, and with what ended it.
#[test]
fn a_request_that_fails_later_is_reported_with_its_rule_and_cause() {
    type Ends = fn(&mut Bench, Vec<Sent>);
    let silent: Ends = |b, _| {
        b.pass(214_000);
    };
    let unreachable: Ends = |b, sent| {
        for sent in sent {
            b.undelivered(&sent);
        }
    };
    let unavailable: Ends = |b, mut sent| {
        // Each member that is tried in place of another, too.
        while let Some(next) = sent.pop() {
            let more = b.receive(next.to, &response(&next, "503 Service Unavailable", ""));
            sent.extend(more.into_iter().filter(|s| s.text.starts_with("INVITE")));
        }
    };
    let flawed: Ends = |b, sent| {
        for sent in sent {
            let text = response(&sent, "486 Busy Here", "").replace("From: ", "Not-From: ");
            b.receive(sent.to, &text);
        }
    };
    let cancelled: Ends = |b, _| {
        b.udp(CALLER, &cancel());
        b.pass(214_000);
    };
    let one_hop = config();
    let members = grouped(group(Distribution::RoundRobin, 2));
    for (config, phones, ends, reported) in [
        (&one_hop, 0, silent, Some((408, NextHopSilent))),
        (&one_hop, 0, unreachable, Some((500, NextHopUnreachable))),
        (&one_hop, 0, unavailable, Some((500, NextHopUnavailable))),
        (&one_hop, 0, flawed, Some((502, FlawedResponse))),
        (&one_hop, 0, cancelled, None),
        (&members, 0, unavailable, Some((500, NextHopUnavailable))),
        (&location(), 1, silent, Some((480, ContactSilent))),
        (&location(), 1, unreachable, Some((480, ContactUnreachable))),
        (&location(), 2, silent, Some((480, ContactSilent))),
        (&location(), 2, unreachable, Some((480, ContactUnreachable))),
        (&location(), 2, unavailable, Some((500, NextHopUnavailable))),
        (&location(), 2, flawed, Some((502, FlawedResponse))),
        (&location(), 2, cancelled, None),
    ] {
        let phones: Vec<_> = (1..=phones).map(phone).collect();
        // Behind a rule that does not match, so that the number is not that of a default.
        let mut config = config.clone();
        let mut other = relay("sip:192.0.2.30:5060");
        other.when.methods = vec![b"MESSAGE"[..].into()];
        config.routes.insert(0, other);
        let mut b = match phones.is_empty() {
            true => Bench::new(&config),
            false => registered(&config, &phones),
        };
        let sent = call(&mut b);
        assert_eq!(causes(&mut b), []);
        ends(&mut b, sent);
        let expected: Vec<_> = reported
            .map(|(status, cause)| (status, Some(1), Some(cause)))
            .into_iter()
            .collect();
        assert_eq!(causes(&mut b), expected, "{} phones", phones.len());
    }
}

/// Where one status and reason phrase have several causes, the report names the cause. The response does not.
#[test]
fn a_refusal_is_reported_with_its_cause() {
    let open = Config {
        routes: vec![],
        ..config()
    };
    let secure = Config {
        routes: vec![],
        ..all_transports()
    };
    let mut full = config();
    full.limits.transactions = 0;
    let mut strangers = config();
    strangers.routes[0].auth = Some(true);
    let invite = |uri: &str, extra: &str| request("INVITE", uri, "a1", extra);
    let foreign = "sip:bob@elsewhere.example";
    let route = "Route: <sip:192.0.2.77;lr>\n";
    for (config, text, status, cause) in [
        (&open, invite(foreign, ""), 403, NoRule),
        (&open, invite(BOB, ""), 480, NotRegistered),
        (&open, invite(BOB, route), 403, ForeignRoute),
        (&secure, invite("sips:bob@example.com", ""), 480, NotSecure),
        (
            &open,
            request("REGISTER", "sip:elsewhere.example", "a1", ""),
            403,
            ForeignDomain,
        ),
        (
            &strangers,
            invite(foreign, "").replace("alice@example.com", "alice@elsewhere.example"),
            403,
            NoDomain,
        ),
        (&full, invite(BOB, ""), 503, TransactionLimit),
    ] {
        let mut b = Bench::new(config);
        let answer = one(b.udp(CALLER, &text));
        assert!(
            answer.first_line().starts_with(&format!("SIP/2.0 {status} ")),
            "{answer:?}"
        );
        assert!(!answer.text.contains(cause.as_str()));
        let rule = (cause == NoDomain || cause == TransactionLimit).then_some(0);
        assert_eq!(causes(&mut b), [(status, rule, Some(cause))], "{text}");
    }
    let mut b = Bench::new(&open);
    b.endpoint.drain();
    b.udp(CALLER, &invite(BOB, ""));
    assert_eq!(causes(&mut b), [(503, None, Some(Draining))]);
}

/// A 487 that a rule gives is a refusal; that of a cancelled call is none.
#[test]
fn a_rule_that_rejects_with_487_is_reported() {
    let mut config = config();
    config.routes[0].action = Action::Reject {
        status: 487,
        reason: b"Request Terminated"[..].into(),
    };
    let mut b = Bench::new(&config);
    b.udp(CALLER, &invite());
    assert_eq!(causes(&mut b), [(487, Some(0), Some(RefusalCause::RuleRejects))]);
}

/// A request that waited goes by the rules as they are when it goes on, and its report says so.
#[test]
fn a_request_that_waited_is_reported_with_the_rule_that_it_goes_by() {
    let mut before = config();
    before.routes = vec![relay("sip:gw.example.net:5070")];
    let after = Config {
        routes: vec![],
        ..before.clone()
    };
    let mut b = Bench::new(&before);
    b.udp(CALLER, &request("INVITE", "sip:bob@elsewhere.example", "a1", ""));
    b.endpoint.reconfigure(&after);
    b.serve(&[("gw.example.net A", vec![address("198.51.100.1")])]);
    assert_eq!(causes(&mut b), [(403, None, Some(NoRule))]);
}

/// Causes have bounds of their own: a flood of one hides no other of the same status.
#[test]
fn each_cause_has_a_bound_of_its_own() {
    let open = Config {
        routes: vec![],
        ..config()
    };
    let mut b = Bench::new(&open);
    for n in 0..100 {
        b.udp(
            CALLER,
            &request("INVITE", "sip:bob@elsewhere.example", &format!("a{n}"), ""),
        );
        b.pass(30);
    }
    assert_eq!(causes(&mut b).len(), 30);
    b.udp(
        CALLER,
        &request("INVITE", BOB, "b1", "Route: <sip:192.0.2.77;lr>\n"),
    );
    assert_eq!(causes(&mut b), [(403, None, Some(ForeignRoute))]);
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

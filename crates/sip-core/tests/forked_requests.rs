//! Requests other than INVITE to users with several contacts (RFC 3261 §16.7), above all SUBSCRIBE: each fork makes a
//! dialog of its own by its NOTIFY (RFC 6665 §4.4.1).
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use crate::common;
use crate::forks;

use common::*;
use forks::*;
use sip_core::config::StateMode;

/// Methods that fork like MESSAGE, SUBSCRIBE first.
const METHODS: [&str; 6] = ["SUBSCRIBE", "OPTIONS", "REFER", "PUBLISH", "INFO", "KDMQ"];

fn subscribe() -> String {
    let extra = "Event: presence\nContact: <sip:alice@192.0.2.10:5060>\n";
    request("SUBSCRIBE", BOB, "a1", extra)
}

/// The Record-Route of a request as the Route of the side that received it.
fn as_called(request: &Sent) -> String {
    let values = request.headers("Record-Route").into_iter();
    values.map(|value| format!("Route: {value}\n")).collect()
}

/// The NOTIFY of the phone that got this SUBSCRIBE.
fn notify(subscribe: &Sent, branch: &str) -> String {
    let n = who(subscribe);
    let extra = format!(
        "{}Event: presence\nSubscription-State: active\nContact: <sip:bob@192.0.2.3{n}>\n",
        as_called(subscribe)
    );
    request("NOTIFY", "sip:alice@192.0.2.10:5060", branch, &extra)
        .replace("UDP 192.0.2.10:5060", &format!("UDP 192.0.2.3{n}:5060"))
        .replace(
            "From: <sip:alice@example.com>;tag=f1",
            &format!("From: <sip:bob@example.com>;tag=t{n}"),
        )
        .replace("To: <sip:bob@example.com>", "To: <sip:alice@example.com>;tag=f1")
}

/// A phone's NOTIFY reaches the subscriber, and the subscriber's 200 the phone. Returns the NOTIFY as it arrived.
#[track_caller]
fn notified(b: &mut Bench, subscribe: &Sent, branch: &str) -> Sent {
    let n = who(subscribe);
    let arrived = one(b.receive(subscribe.to, &notify(subscribe, branch)));
    assert_eq!(brief(std::slice::from_ref(&arrived)), ["caller NOTIFY"]);
    assert!(arrived.header("From").ends_with(&format!(";tag=t{n}")));
    assert_eq!(arrived.headers("Record-Route").len(), 1, "{}", arrived.text);
    let ok = one(b.udp(CALLER, &response(&arrived, "200 OK", "")));
    assert_eq!(brief(std::slice::from_ref(&ok)), [format!("{n} 200")]);
    arrived
}

/// The subscriber refreshes its dialog with phone `n`, and only that phone gets the SUBSCRIBE.
#[track_caller]
fn refreshed(b: &mut Bench, n: &str, branch: &str, route: &str) {
    let text = request(
        "SUBSCRIBE",
        &format!("sip:bob@192.0.2.3{n}"),
        branch,
        &format!("{route}Event: presence\n"),
    )
    .replace(
        "To: <sip:bob@example.com>",
        &format!("To: <sip:bob@example.com>;tag=t{n}"),
    )
    .replace("CSeq: 1", "CSeq: 2");
    let sent = one(b.udp(CALLER, &text));
    assert_eq!(brief(std::slice::from_ref(&sent)), [format!("{n} SUBSCRIBE")]);
    assert_eq!(brief(&answer(b, &sent, "200 OK")), ["caller 200"]);
}

/// The NOTIFY of either fork, before the 200 of the first and after it, reaches the subscriber. The subscriber gets one
/// 200, and has a dialog with each phone.
#[test]
fn each_fork_of_a_subscription_makes_its_dialog() {
    let mut b = registered(&location(), &[phone(1), phone(2)]);
    let sent = b.udp(CALLER, &subscribe());
    assert_eq!(brief(&sent), ["1 SUBSCRIBE", "2 SUBSCRIBE"]);
    for s in &sent {
        assert_eq!(s.headers("Record-Route").len(), 1, "{}", s.text);
    }
    assert_ne!(sent[0].header("Via"), sent[1].header("Via"));
    // RFC 6665 §4.4.1: a NOTIFY may come before the 200, and be all that the subscriber hears of a fork.
    let early = notified(&mut b, &sent[1], "n1");
    let ok = one(answer(&mut b, &sent[0], "200 OK"));
    assert_eq!(brief(std::slice::from_ref(&ok)), ["caller 200"]);
    assert!(ok.header("To").ends_with(";tag=t1"));
    // §16.7 step 5: of a request other than INVITE the first 2xx goes on, and no other.
    assert!(answer(&mut b, &sent[1], "200 OK").is_empty());
    let late = notified(&mut b, &sent[1], "n2");
    let first = notified(&mut b, &sent[0], "n3");
    // The route set of a dialog comes from its NOTIFY, or from the 200.
    refreshed(&mut b, "2", "s1", &as_called(&early));
    refreshed(&mut b, "2", "s2", &as_called(&late));
    refreshed(&mut b, "1", "s3", &as_called(&first));
    refreshed(&mut b, "1", "s4", &as_called(&ok));
    assert!(end(&mut b).is_empty());
}

/// A copy of the SUBSCRIBE gets the 200 once more, and no phone gets it again.
#[test]
fn a_copy_of_a_forked_subscription_goes_nowhere() {
    let mut b = registered(&location(), &[phone(1), phone(2)]);
    let sent = b.udp(CALLER, &subscribe());
    assert!(b.udp(CALLER, &subscribe()).is_empty());
    let ok = answer(&mut b, &sent[1], "200 OK");
    assert_eq!(b.udp(CALLER, &subscribe()), ok);
    answer(&mut b, &sent[0], "200 OK");
    end(&mut b);
}

/// Without state a request goes to the best contact alone: no answer could be chosen.
#[test]
fn without_state_a_subscription_goes_to_one_phone() {
    let mut config = location();
    config.state = StateMode::Stateless;
    let mut b = registered(&config, &[phone(2), with_q(1, 500)]);
    let sent = b.udp(CALLER, &subscribe());
    assert_eq!(brief(&sent), ["2 SUBSCRIBE"]);
    let ok = answer(&mut b, &sent[0], "200 OK");
    assert_eq!(brief(&ok), ["caller 200"]);
    notified(&mut b, &sent[0], "n1");
    refreshed(&mut b, "2", "s1", &as_called(&ok[0]));
}

/// §16.7: the first 2xx at once, no other after it, and no phone of lower q. None is cancelled: only an INVITE can be.
#[test]
fn the_first_2xx_goes_on_and_no_other() {
    for method in METHODS {
        let mut b = registered(&location(), &[phone(1), phone(2), with_q(3, 500)]);
        let sent = b.udp(CALLER, &request(method, BOB, "a1", ""));
        assert_eq!(brief(&sent), [format!("1 {method}"), format!("2 {method}")]);
        assert!(answer(&mut b, &sent[0], "404 Not Found").is_empty(), "{method}");
        let ok = one(answer(&mut b, &sent[1], "202 Accepted"));
        assert_eq!(brief(std::slice::from_ref(&ok)), ["caller 202"], "{method}");
        assert!(ok.header("To").ends_with(";tag=t2"), "{method}");
        assert!(answer(&mut b, &sent[0], "200 OK").is_empty(), "{method}");
        assert!(end(&mut b).is_empty(), "{method}");
    }
}

/// §16.7 step 6: where all refuse the best answer goes on, once the last has come. 489 and 481 are 4xx like others.
#[test]
fn the_best_refusal_goes_on() {
    for method in METHODS {
        for (first, second, best) in [
            ("489 Bad Event", "404 Not Found", 489),
            ("404 Not Found", "489 Bad Event", 404),
            ("503 Service Unavailable", "489 Bad Event", 489),
            ("489 Bad Event", "401 Unauthorized", 401),
            ("500 Server Internal Error", "480 Temporarily Unavailable", 480),
            ("404 Not Found", "603 Decline", 603),
            ("603 Decline", "404 Not Found", 603),
        ] {
            let mut b = registered(&location(), &[phone(1), phone(2)]);
            let sent = b.udp(CALLER, &request(method, BOB, "a1", ""));
            assert!(answer(&mut b, &sent[0], first).is_empty(), "{method} {first}");
            let told = one(answer(&mut b, &sent[1], second));
            let expected = [format!("caller {best}")];
            assert_eq!(brief(std::slice::from_ref(&told)), expected, "{method} {first}");
            assert!(end(&mut b).is_empty(), "{method} {first}");
        }
    }
}

/// §16.7 step 5: after a 6xx no phone of lower q is tried. A 2xx that is still under way wins all the same.
#[test]
fn a_6xx_ends_the_search_and_gives_way_to_a_2xx() {
    for method in METHODS {
        for (second, told) in [("200 OK", 200), ("404 Not Found", 600)] {
            let mut b = registered(&location(), &[phone(1), phone(2), with_q(3, 500)]);
            let sent = b.udp(CALLER, &request(method, BOB, "a1", ""));
            assert!(
                answer(&mut b, &sent[0], "600 Busy Everywhere").is_empty(),
                "{method}"
            );
            let out = answer(&mut b, &sent[1], second);
            assert_eq!(brief(&out), [format!("caller {told}")], "{method} {second}");
            assert!(end(&mut b).is_empty(), "{method} {second}");
        }
    }
}

/// One phone has refused, and the other says nothing. The refusal waits for timer F of the silent one, and a NOTIFY of
/// that one passes all the while.
#[test]
fn a_silent_fork_delays_a_refusal_and_may_notify() {
    let mut b = registered(&location(), &[phone(1), phone(2)]);
    let sent = b.udp(CALLER, &subscribe());
    assert!(answer(&mut b, &sent[0], "404 Not Found").is_empty());
    notified(&mut b, &sent[1], "n1");
    let told = |out: &[Sent]| {
        let mut told = brief(out);
        told.retain(|line| line.starts_with("caller"));
        told
    };
    // RFC 4320 §4.1.
    assert_eq!(told(&b.pass(31_900)), ["caller 100"]);
    assert_eq!(told(&b.pass(200)), ["caller 404"]);
    let late = notified(&mut b, &sent[1], "n2");
    refreshed(&mut b, "2", "s1", &as_called(&late));
    assert!(end(&mut b).is_empty());
}

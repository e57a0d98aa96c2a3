//! Calls through one proxy core.

use crate::common;

use common::*;
use sip_core::config::StateMode;

#[test]
fn a_stateless_call_goes_through_and_keeps_its_bytes() {
    let mut config = config();
    config.state = StateMode::Stateless;
    let mut b = Bench::new(&config);
    let invite = request(
        "INVITE",
        "sip:bob@example.com",
        "a1",
        "Contact: <sip:alice@192.0.2.10>\n",
    );
    let out = b.udp(CALLER, &invite);
    assert_eq!(
        lines(&out),
        [format!("{CALLEE} INVITE sip:bob@example.com SIP/2.0")]
    );
    assert_eq!(out[0].headers("Via").len(), 2);
    assert_eq!(out[0].header("Max-Forwards"), "69");
    assert!(
        out[0]
            .header("Record-Route")
            .starts_with("<sip:192.0.2.1:5060;lr;tz=")
    );
    // The same again leaves the same.
    let again = b.udp(CALLER, &invite);
    assert_eq!(again[0].text, out[0].text);
    let ringing = b.udp(CALLEE, &response(&out[0], "180 Ringing", ""));
    assert_eq!(lines(&ringing), [format!("{CALLER} SIP/2.0 180 Ringing")]);
    assert_eq!(ringing[0].headers("Via").len(), 1);
    let ok = b.udp(
        CALLEE,
        &response(&out[0], "200 OK", "Contact: <sip:bob@192.0.2.20>\n"),
    );
    let route = ok[0].header("Record-Route").to_string();
    let ack = request("ACK", "sip:bob@192.0.2.20", "a2", &format!("Route: {route}\n"))
        .replace("bob@example.com>", "bob@example.com>;tag=t1");
    let out = b.udp(CALLER, &ack);
    assert_eq!(lines(&out), [format!("{CALLEE} ACK sip:bob@192.0.2.20 SIP/2.0")]);
    assert!(out[0].headers("Route").is_empty());
    let bye = request("BYE", "sip:bob@192.0.2.20", "a3", &format!("Route: {route}\n"))
        .replace("bob@example.com>", "bob@example.com>;tag=t1");
    let out = b.udp(CALLER, &bye);
    assert_eq!(lines(&out), [format!("{CALLEE} BYE sip:bob@192.0.2.20 SIP/2.0")]);
    let ok = b.udp(CALLEE, &response(&out[0], "200 OK", ""));
    assert_eq!(lines(&ok), [format!("{CALLER} SIP/2.0 200 OK")]);
    assert_eq!(b.endpoint.gauges().server_transactions, 0);
    assert_eq!(b.endpoint.gauges().timers, 0);
}

#[test]
fn a_stateful_call_absorbs_retransmissions_and_frees_everything() {
    let mut b = Bench::new(&config());
    let invite = request("INVITE", "sip:bob@example.com", "a1", "");
    let out = b.udp(CALLER, &invite);
    assert_eq!(
        lines(&out),
        [
            format!("{CALLER} SIP/2.0 100 Trying"),
            format!("{CALLEE} INVITE sip:bob@example.com SIP/2.0")
        ]
    );
    let sent = out[1].clone();
    assert_eq!(
        lines(&b.udp(CALLER, &invite)),
        [format!("{CALLER} SIP/2.0 100 Trying")]
    );
    assert_eq!(
        lines(&b.pass(510)),
        [format!("{CALLEE} INVITE sip:bob@example.com SIP/2.0")]
    );
    let out = b.udp(CALLEE, &response(&sent, "180 Ringing", ""));
    assert_eq!(lines(&out), [format!("{CALLER} SIP/2.0 180 Ringing")]);
    assert!(b.pass(4000).is_empty());
    assert_eq!(
        lines(&b.udp(CALLER, &invite)),
        [format!("{CALLER} SIP/2.0 180 Ringing")]
    );
    let out = b.udp(CALLEE, &response(&sent, "200 OK", ""));
    assert_eq!(lines(&out), [format!("{CALLER} SIP/2.0 200 OK")]);
    assert!(b.udp(CALLER, &invite).is_empty());
    let out = b.udp(CALLEE, &response(&sent, "200 OK", ""));
    assert_eq!(lines(&out), [format!("{CALLER} SIP/2.0 200 OK")]);
    b.pass(40_000);
    let g = b.endpoint.gauges();
    assert_eq!(
        (g.server_transactions, g.client_transactions, g.timers),
        (0, 0, 0)
    );
    assert!(b.endpoint.is_idle());
}

#[test]
fn a_busy_callee_is_acknowledged_hop_by_hop() {
    let mut b = Bench::new(&config());
    let out = b.udp(CALLER, &request("INVITE", "sip:bob@example.com", "a1", ""));
    let out = b.udp(CALLEE, &response(&out[1], "486 Busy Here", ""));
    assert_eq!(
        lines(&out),
        [
            format!("{CALLEE} ACK sip:bob@example.com SIP/2.0"),
            format!("{CALLER} SIP/2.0 486 Busy Here")
        ]
    );
    // Sent again until the ACK comes.
    assert_eq!(lines(&b.pass(510)), [format!("{CALLER} SIP/2.0 486 Busy Here")]);
    let ack = request("ACK", "sip:bob@example.com", "a1", "")
        .replace("bob@example.com>", "bob@example.com>;tag=t1");
    assert!(b.udp(CALLER, &ack).is_empty());
    assert!(b.pass(4000).is_empty());
    b.pass(40_000);
    assert_eq!(b.endpoint.gauges().timers, 0);
    assert_eq!(b.endpoint.gauges().client_transactions, 0);
}

#[test]
fn a_cancel_waits_for_the_provisional() {
    let mut b = Bench::new(&config());
    let out = b.udp(CALLER, &request("INVITE", "sip:bob@example.com", "a1", ""));
    let sent = out[1].clone();
    let out = b.udp(CALLER, &request("CANCEL", "sip:bob@example.com", "a1", ""));
    assert_eq!(lines(&out), [format!("{CALLER} SIP/2.0 200 OK")]);
    let out = b.udp(CALLEE, &response(&sent, "180 Ringing", ""));
    assert_eq!(
        lines(&out),
        [
            format!("{CALLEE} CANCEL sip:bob@example.com SIP/2.0"),
            format!("{CALLER} SIP/2.0 180 Ringing")
        ]
    );
    assert_eq!(out[0].header("Via"), sent.header("Via"));
    assert!(b.udp(CALLEE, &response(&out[0], "200 OK", "")).is_empty());
    let out = b.udp(CALLEE, &response(&sent, "487 Request Terminated", ""));
    assert_eq!(
        lines(&out),
        [
            format!("{CALLEE} ACK sip:bob@example.com SIP/2.0"),
            format!("{CALLER} SIP/2.0 487 Request Terminated")
        ]
    );
}

#[test]
fn an_unanswered_invite_ends_with_408() {
    let mut b = Bench::new(&config());
    b.udp(CALLER, &request("INVITE", "sip:bob@example.com", "a1", ""));
    let out = b.pass(32_100);
    assert_eq!(
        lines(&out[out.len() - 1..]),
        [format!("{CALLER} SIP/2.0 408 Request Timeout")]
    );
    b.pass(70_000);
    assert_eq!(b.endpoint.gauges().timers, 0);
}

/// An ICMP error quotes the first half kilobyte or so of the datagram (RFC 1812 §4.3.2.3).
#[test]
fn a_next_hop_that_cannot_be_reached_is_known_from_the_start_of_the_request() {
    let mut b = Bench::new(&config());
    let out = b.udp(
        CALLER,
        &request("INVITE", "sip:bob@example.com", "a1", "Subject: something long\n"),
    );
    let sent = &out[1];
    let quoted = &sent.text.as_bytes()[..sent.text.find("From:").unwrap() + 12];
    let now = b.now();
    b.endpoint.handle_undelivered(now, sent.to, quoted);
    assert_eq!(
        lines(&b.drain()),
        [format!("{CALLER} SIP/2.0 500 Server Internal Error")]
    );
}

/// RFC 6026 §6: a response that matches no transaction of a stateful proxy goes nowhere.
#[test]
fn an_answer_that_comes_after_ours_goes_nowhere() {
    let mut b = Bench::new(&config());
    let out = b.udp(CALLER, &request("INVITE", "sip:bob@example.com", "a1", ""));
    let sent = out[1].clone();
    let out = b.pass(32_100);
    assert_eq!(out[out.len() - 1].first_line(), "SIP/2.0 408 Request Timeout");
    assert!(
        b.udp(CALLEE, &response(&sent, "480 Temporarily Unavailable", ""))
            .is_empty()
    );
    assert_eq!(b.endpoint.counters().dropped_stray_response, 1);
}

//! Transactions and the response context through the endpoint (RFC 3261 §9, §16.7 to §16.10, §17,
//! RFC 4320, RFC 6026).
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use crate::common;

use common::*;
use sip_core::config::{Action, Config, StateMode};
use sip_core::event::Event;
use sip_core::transport::Transport;

fn invite() -> String {
    request("INVITE", "sip:bob@example.com", "a1", "")
}

fn cancel() -> String {
    request("CANCEL", "sip:bob@example.com", "a1", "")
}

fn ack(answer: &Sent) -> String {
    request("ACK", "sip:bob@example.com", "a1", "").replace(
        "To: <sip:bob@example.com>",
        &format!("To: {}", answer.header("To")),
    )
}

const ACK_BELOW: &str = "192.0.2.20:5060 ACK sip:bob@example.com SIP/2.0";
const CANCEL_BELOW: &str = "192.0.2.20:5060 CANCEL sip:bob@example.com SIP/2.0";
const INVITE_BELOW: &str = "192.0.2.20:5060 INVITE sip:bob@example.com SIP/2.0";

fn above(status: &str) -> String {
    format!("{CALLER} SIP/2.0 {status}")
}

/// An INVITE under way, as it left.
#[track_caller]
fn calling(config: &Config) -> (Bench, Sent) {
    let mut b = Bench::new(config);
    let out = b.udp(CALLER, &invite());
    assert_eq!(lines(&out), [above("100 Trying"), INVITE_BELOW.to_string()]);
    (b, out[1].clone())
}

fn timeout(seconds: u32) -> Config {
    let mut config = config();
    if let Action::Relay(relay) = &mut config.routes[0].action {
        relay.timeout_s = Some(seconds);
    }
    config
}

/// Milliseconds after which each message leaves, of what leaves within `ms`.
fn schedule(b: &mut Bench, ms: u64) -> Vec<(u64, String)> {
    let start = b.now_us;
    let mut out = vec![];
    for _ in 0..ms / 10 {
        for line in lines(&b.pass(10)) {
            out.push(((b.now_us - start) / 1000 / 10 * 10, line));
        }
    }
    out
}

/// Roughly: the wheel's tick and the step of [`schedule`] may each add a little.
#[track_caller]
fn assert_schedule(found: &[(u64, String)], expected: &[(u64, &str)]) {
    assert_eq!(found.len(), expected.len(), "{found:?}");
    for ((at, line), (due, text)) in found.iter().zip(expected) {
        assert_eq!(line, text);
        assert!((*due..=due + 40).contains(at), "{line} at {at}, not {due}");
    }
}

#[test]
fn an_invite_is_sent_again_doubling_until_it_times_out() {
    let (mut b, sent) = calling(&config());
    let again = |at| (at, INVITE_BELOW);
    let timed_out = above("408 Request Timeout");
    let out = schedule(&mut b, 32_200);
    let mut expected: Vec<_> = [500, 1500, 3500, 7500, 15_500, 31_500].map(again).into();
    expected.push((32_000, &timed_out));
    // 408, then sent again by timer G.
    assert_schedule(&out, &expected);
    let mut b2 = calling(&config()).0;
    assert!(b2.pass(5_000).iter().all(|s| s.text == sent.text));
    assert_eq!(b.counters().transactions_timed_out, 1);
    assert_eq!(
        b.endpoint.poll_event(),
        Some(Event::NextHopFailed {
            destination: CALLEE.parse().unwrap(),
            timed_out: true,
            is_contact: false,
        })
    );
}

/// A next hop that failed is reported when it gives a response again: once, and not if it never failed.
#[test]
fn the_return_of_a_next_hop_is_an_event_once_after_its_failure() {
    let mut b = Bench::new(&config());
    let message = |branch: &str| request("MESSAGE", "sip:bob@example.com", branch, "");
    let returns = |b: &mut Bench| {
        let destination = CALLEE.parse().unwrap();
        let all = core::iter::from_fn(|| b.endpoint.poll_event());
        all.filter(|event| *event == Event::NextHopReturned { destination })
            .count()
    };
    let answered = |b: &mut Bench, branch: &str| {
        let sent = one(b.udp(CALLER, &message(branch)));
        b.udp(CALLEE, &response(&sent, "200 OK", ""));
        returns(b)
    };
    assert_eq!(answered(&mut b, "r1"), 0);
    let sent = one(b.udp(CALLER, &message("r2")));
    b.undelivered(&sent);
    one(b.udp(CALLER, &message("r3")));
    b.pass(33_000);
    assert_eq!(b.counters().transactions_unreachable, 1);
    assert_eq!(b.counters().transactions_timed_out, 1);
    assert_eq!(returns(&mut b), 0);
    // Another address is another next hop.
    let sent = one(b.udp(CALLER, &message("r4")));
    b.udp("192.0.2.21:5060", &response(&sent, "100 Trying", ""));
    assert_eq!(returns(&mut b), 0);
    b.udp(CALLEE, &response(&sent, "100 Trying", ""));
    assert_eq!(returns(&mut b), 1);
    b.udp(CALLEE, &response(&sent, "200 OK", ""));
    assert_eq!((returns(&mut b), answered(&mut b, "r5")), (0, 0));
    // Another worker met the failure.
    b.endpoint.handle_failed_hop(CALLEE.parse().unwrap());
    assert_eq!((answered(&mut b, "r6"), answered(&mut b, "r7")), (1, 0));
}

#[test]
fn an_unanswered_non_invite_is_sent_again_up_to_t2_and_ends_in_silence() {
    let mut b = Bench::new(&config());
    let text = request("MESSAGE", "sip:bob@example.com", "a1", "");
    assert_eq!(b.udp(CALLER, &text).len(), 1);
    assert!(b.udp(CALLER, &text).is_empty());
    let again = "192.0.2.20:5060 MESSAGE sip:bob@example.com SIP/2.0";
    let late = above("100 Trying");
    let mut expected = vec![(500, again), (1500, again), (3500, late.as_str()), (3500, again)];
    expected.extend((0..7).map(|n| (7_500 + n * 4_000, again)));
    let mut found = schedule(&mut b, 40_000);
    found.sort();
    expected.sort();
    // RFC 4320 §4.1: 100 once timer E has come to T2; §4.2: no 408.
    assert_schedule(&found, &expected);
    // What comes again now is not sent on a second time, for as long as copies may come.
    assert!(b.udp(CALLER, &text).is_empty());
    b.pass(32_000);
    b.assert_idle();
}

#[test]
fn a_provisional_for_a_non_invite_slows_down_and_does_not_go_on() {
    let mut b = Bench::new(&config());
    let text = request("MESSAGE", "sip:bob@example.com", "a1", "");
    let sent = one(b.udp(CALLER, &text));
    for status in ["100 Trying", "183 Progress"] {
        assert!(b.udp(CALLEE, &response(&sent, status, "")).is_empty());
    }
    let out = lines(&b.pass(3_400));
    assert_eq!(out.len(), 1, "{out:?}");
    let ok = b.udp(CALLEE, &response(&sent, "200 OK", ""));
    assert_eq!(lines(&ok), [above("200 OK")]);
    // Retransmissions: of the response absorbed, of the request with the response again.
    assert!(b.udp(CALLEE, &response(&sent, "200 OK", "")).is_empty());
    assert_eq!(b.udp(CALLER, &text)[0].text, ok[0].text);
    b.pass(33_000);
    b.assert_idle();
}

#[test]
fn a_408_to_a_non_invite_does_not_go_on_and_to_an_invite_it_does() {
    let mut b = Bench::new(&config());
    let sent = one(b.udp(CALLER, &request("MESSAGE", "sip:bob@example.com", "a2", "")));
    // RFC 4320 §4.2: neither made nor relayed.
    assert_eq!(
        lines(&b.udp(CALLEE, &response(&sent, "408 Request Timeout", ""))),
        Vec::<String>::new()
    );
    let text = request("MESSAGE", "sip:bob@example.com", "a2", "");
    for _ in 0..2 {
        b.pass(4_000);
        assert!(b.udp(CALLER, &text).is_empty(), "a copy was sent on");
    }
    b.pass(40_000);
    b.assert_idle();
    let (mut b, sent) = calling(&config());
    let out = b.udp(CALLEE, &response(&sent, "408 Request Timeout", ""));
    assert_eq!(lines(&out), [ACK_BELOW.to_string(), above("408 Request Timeout")]);
}

#[test]
fn streams_have_no_retransmissions_and_no_waiting() {
    let mut config = config();
    config.routes = vec![relay("sip:192.0.2.20:5060;transport=tcp")];
    let flow = tcp_flow("192.0.2.10:40000", 3);
    let mut b = Bench::new(&config);
    let text = invite().replace("UDP", "TCP");
    let out = b.receive(flow, &text);
    assert_eq!(
        (out[0].to.conn, out[1].to.transport, out[1].to.conn),
        (flow.conn, Transport::Tcp, None)
    );
    assert!(b.pass(31_900).is_empty());
    assert_eq!(b.pass(200)[0].first_line(), "SIP/2.0 408 Request Timeout");
    // A final response waits for its ACK only.
    let mut b = Bench::new(&config);
    let sent = b.receive(flow, &text).remove(1);
    let out = b.udp(CALLEE, &response(&sent, "486 Busy Here", ""));
    assert_eq!(
        (out[1].first_line(), out[1].to.conn),
        ("SIP/2.0 486 Busy Here", flow.conn)
    );
    assert!(b.pass(5_000).is_empty());
    assert!(b.receive(flow, &ack(&out[1]).replace("UDP", "TCP")).is_empty());
    b.assert_idle();
    let sent = one(b.receive(
        flow,
        &request("MESSAGE", "sip:bob@example.com", "a2", "").replace("UDP", "TCP"),
    ));
    assert_eq!(
        b.udp(CALLEE, &response(&sent, "200 OK", ""))[0].to.conn,
        flow.conn
    );
    b.assert_idle();
}

#[test]
fn timer_c_cancels_what_rings_and_gives_up_what_does_not() {
    // Nothing came: as 408.
    let (mut b, _) = calling(&timeout(5));
    assert_eq!(lines(&b.pass(5_020)).last(), Some(&above("408 Request Timeout")));
    // It rings: CANCEL, and its 487 goes on.
    let (mut b, sent) = calling(&timeout(5));
    b.udp(CALLEE, &response(&sent, "180 Ringing", ""));
    b.pass(4_000);
    // Each provisional but 100 starts it anew (§16.7 step 2).
    b.udp(CALLEE, &response(&sent, "100 Trying", ""));
    b.udp(CALLEE, &response(&sent, "180 Ringing", ""));
    assert!(b.pass(4_900).is_empty());
    let out = b.pass(200);
    assert_eq!(lines(&out), [CANCEL_BELOW]);
    b.udp(CALLEE, &response(&out[0], "200 OK", ""));
    let out = b.udp(CALLEE, &response(&sent, "487 Request Terminated", ""));
    assert_eq!(
        lines(&out),
        [ACK_BELOW.to_string(), above("487 Request Terminated")]
    );
    // It rings and does not hear the CANCEL: 64·T1, however often it rings meanwhile.
    let (mut b, sent) = calling(&timeout(5));
    b.udp(CALLEE, &response(&sent, "180 Ringing", ""));
    b.pass(5_100);
    b.pass(20_000);
    b.udp(CALLEE, &response(&sent, "180 Ringing", ""));
    let out = lines(&b.pass(12_100));
    assert_eq!(out.iter().filter(|l| l.starts_with(CALLER)).count(), 1, "{out:?}");
    assert!(out.contains(&above("408 Request Timeout")), "{out:?}");
    b.pass(70_000);
    b.assert_idle();
}

#[test]
fn a_cancel_before_any_response_waits_and_is_not_sent_to_the_deaf() {
    let (mut b, _) = calling(&config());
    assert_eq!(lines(&b.udp(CALLER, &cancel())), [above("200 OK")]);
    assert_eq!(lines(&b.udp(CALLER, &cancel())), [above("200 OK")]);
    let out = lines(&b.pass(32_100));
    assert!(!out.contains(&CANCEL_BELOW.to_string()), "{out:?}");
    assert_eq!(out.last(), Some(&above("487 Request Terminated")));
    b.pass(70_000);
    b.assert_idle();
}

#[test]
fn a_cancel_after_a_provisional_goes_on_at_once_and_once() {
    for status in ["100 Trying", "180 Ringing"] {
        let (mut b, sent) = calling(&config());
        b.udp(CALLEE, &response(&sent, status, ""));
        let out = b.udp(CALLER, &cancel());
        assert_eq!(lines(&out), [above("200 OK"), CANCEL_BELOW.to_string()]);
        let expected = format!(
            "CANCEL sip:bob@example.com SIP/2.0\nVia: {}\nMax-Forwards: 70\nFrom: <sip:alice@example.com>;tag=f1\n\
             To: <sip:bob@example.com>\nCall-ID: c1@192.0.2.10\nCSeq: 1 CANCEL\nContent-Length: 0\n\n",
            sent.header("Via")
        );
        assert_eq!(out[1].text, crlf(&expected));
        assert_eq!(lines(&b.udp(CALLER, &cancel())), [above("200 OK")]);
        // Its own retransmissions end with its response.
        assert_eq!(lines(&b.pass(600)), [CANCEL_BELOW]);
        assert!(b.udp(CALLEE, &response(&out[1], "200 OK", "")).is_empty());
        assert!(b.pass(10_000).is_empty());
        // 64·T1 without a final response to the INVITE: it counts as cancelled (§9.1).
        let out = b.pass(22_000);
        assert_eq!(lines(&out)[0], above("487 Request Terminated"));
        assert!(b.udp(CALLER, &ack(&out[0])).is_empty());
        b.pass(40_000);
        b.assert_idle();
    }
}

#[test]
fn a_cancel_that_crosses_a_final_answer_changes_nothing() {
    // 200 crosses the CANCEL: the call stands.
    let (mut b, sent) = calling(&config());
    b.udp(CALLEE, &response(&sent, "180 Ringing", ""));
    b.udp(CALLER, &cancel());
    assert_eq!(
        lines(&b.udp(CALLEE, &response(&sent, "200 OK", ""))),
        [above("200 OK")]
    );
    assert_eq!(lines(&b.udp(CALLER, &cancel())), [above("200 OK")]);
    // After the final response: 200, and nothing else (§9.2).
    for status in ["200 OK", "486 Busy Here"] {
        let (mut b, sent) = calling(&config());
        b.udp(CALLEE, &response(&sent, status, ""));
        assert_eq!(lines(&b.udp(CALLER, &cancel())), [above("200 OK")]);
    }
    // Of nothing that is known.
    let mut b = Bench::new(&config());
    assert_eq!(
        lines(&b.udp(CALLER, &cancel())),
        [above("481 Call/Transaction Does Not Exist")]
    );
    // Another branch is another request.
    let (mut b, _) = calling(&config());
    assert_eq!(
        lines(&b.udp(CALLER, &cancel().replace("z9hG4bKa1", "z9hG4bKa2"))),
        [above("481 Call/Transaction Does Not Exist")]
    );
}

/// RFC 6026 §7, §8: every 2xx goes on, the server transaction absorbs the INVITE meanwhile, and
/// nothing is left in the end.
#[test]
fn all_2xx_go_on_and_failures_after_one_do_not() {
    let (mut b, sent) = calling(&config());
    let ok = response(&sent, "200 OK", "");
    let other = ok.replace("tag=t1", "tag=t2");
    assert_eq!(lines(&b.udp(CALLEE, &ok)), [above("200 OK")]);
    assert_eq!(
        one(b.udp(CALLEE, &other)).header("To"),
        "<sip:bob@example.com>;tag=t2"
    );
    assert!(b.udp(CALLEE, &response(&sent, "486 Busy Here", "")).is_empty());
    assert!(b.udp(CALLEE, &response(&sent, "180 Ringing", "")).is_empty());
    assert!(b.udp(CALLER, &invite()).is_empty());
    b.pass(31_000);
    assert_eq!(lines(&b.udp(CALLEE, &ok)), [above("200 OK")]);
    b.pass(1_100);
    b.assert_idle();
    // Later still there is no transaction, and nothing goes on (RFC 6026 §6).
    assert!(b.udp(CALLEE, &ok).is_empty());
    let calls: Vec<_> = core::iter::from_fn(|| b.endpoint.poll_event()).collect();
    assert_eq!(
        calls,
        [Event::InviteCompleted {
            call_id: b"c1@192.0.2.10"[..].into(),
            status: 200,
            after_us: 0
        }]
    );
}

#[test]
fn an_ack_to_a_2xx_goes_on_even_with_the_branch_of_its_invite() {
    let (mut b, sent) = calling(&config());
    let ok = one(b.udp(CALLEE, &response(&sent, "200 OK", "")));
    let out = b.udp(CALLER, &ack(&ok));
    assert_eq!(lines(&out), [ACK_BELOW]);
    // One to a failure does not.
    let (mut b, sent) = calling(&config());
    let busy = b.udp(CALLEE, &response(&sent, "486 Busy Here", "")).remove(1);
    assert!(b.udp(CALLER, &ack(&busy)).is_empty());
    assert!(b.udp(CALLER, &ack(&busy)).is_empty());
    assert!(b.udp(CALLER, &invite()).is_empty());
    // The callee's copies are acknowledged again, hop by hop, with its To.
    let again = b.udp(CALLEE, &response(&sent, "486 Busy Here", ""));
    assert_eq!(lines(&again), [ACK_BELOW]);
    assert_eq!(
        (again[0].header("To"), again[0].header("CSeq")),
        ("<sip:bob@example.com>;tag=t1", "1 ACK")
    );
    assert_eq!(again[0].headers("Via"), [sent.header("Via")]);
    b.pass(33_000);
    b.assert_idle();
}

#[test]
fn no_challenge_from_below_is_answered_here() {
    for (status, header) in [
        ("401 Unauthorized", "WWW-Authenticate"),
        ("407 Proxy Authentication Required", "Proxy-Authenticate"),
    ] {
        let (mut b, sent) = calling(&config());
        let line = format!("{header}: Digest realm=\"x\", nonce=\"y\"\n");
        let out = b.udp(CALLEE, &response(&sent, status, &line));
        assert_eq!(lines(&out), [ACK_BELOW.to_string(), above(status)]);
        assert_eq!(out[1].header(header), "Digest realm=\"x\", nonce=\"y\"");
    }
}

#[test]
fn the_limit_of_transactions_is_answered_503_and_freed_by_answers() {
    let mut config = config();
    config.limits.transactions = 1;
    let (mut b, sent) = calling(&config);
    let second = invite().replace("z9hG4bKa1", "z9hG4bKa2").replace("c1@", "c2@");
    let out = one(b.udp(CALLER, &second));
    assert_eq!(out.first_line(), "SIP/2.0 503 Service Unavailable");
    assert_eq!(b.counters().limited_transactions, 1);
    assert_eq!(b.endpoint.gauges().server_transactions, 1);
    // Its ACK is absorbed although nothing was kept.
    assert!(
        b.udp(
            CALLER,
            &ack(&out).replace("z9hG4bKa1", "z9hG4bKa2").replace("c1@", "c2@")
        )
        .is_empty()
    );
    b.udp(CALLEE, &response(&sent, "200 OK", ""));
    assert_eq!(b.udp(CALLER, &second).len(), 2);
}

#[test]
fn what_cannot_be_delivered_is_answered() {
    for method in ["INVITE", "MESSAGE"] {
        let mut b = Bench::new(&config());
        let sent = b
            .udp(CALLER, &request(method, "sip:bob@example.com", "a1", ""))
            .pop()
            .unwrap();
        // Another host's address, and what was never sent, are not believed.
        let mut elsewhere = sent.clone();
        elsewhere.to.remote = "192.0.2.21:5060".parse().unwrap();
        assert!(b.undelivered(&elsewhere).is_empty());
        let mut forged = sent.clone();
        forged.text = forged.text.replacen("branch=z9hG4bK", "branch=z9hG4bK0", 1);
        assert!(b.undelivered(&forged).is_empty());
        assert_eq!(lines(&b.undelivered(&sent)), [above("500 Server Internal Error")]);
        assert!(b.undelivered(&sent).is_empty());
        assert_eq!(b.counters().transactions_unreachable, 1);
        b.pass(70_000);
        b.assert_idle();
    }
    // Once it rings, the peer is there whatever the transport says.
    let (mut b, sent) = calling(&config());
    b.udp(CALLEE, &response(&sent, "180 Ringing", ""));
    assert!(b.undelivered(&sent).is_empty());
    // A response that did not arrive stays (RFC 6026 §8).
    let ok = one(b.udp(CALLEE, &response(&sent, "200 OK", "")));
    assert!(b.undelivered(&ok).is_empty());
}

#[test]
fn draining_refuses_what_is_new_and_finishes_what_is_not() {
    let (mut b, sent) = calling(&config());
    b.endpoint.drain();
    assert!(!b.endpoint.is_idle());
    let new = invite().replace("z9hG4bKa1", "z9hG4bKa2").replace("c1@", "c2@");
    assert_eq!(lines(&b.udp(CALLER, &new)), [above("503 Service Unavailable")]);
    let ok = one(b.udp(CALLEE, &response(&sent, "200 OK", "")));
    let route = format!("Route: {}\n", ok.header("Record-Route"));
    let bye = request("BYE", "sip:bob@192.0.2.20", "a3", &route)
        .replace("bob@example.com>", "bob@example.com>;tag=t1");
    let sent = one(b.udp(CALLER, &bye));
    assert_eq!(
        lines(&b.udp(CALLEE, &response(&sent, "200 OK", ""))),
        [above("200 OK")]
    );
    assert!(b.endpoint.is_idle());
}

/// RFC 2543 peers: no magic cookie in the branch, or no branch.
#[test]
fn old_peers_are_matched_by_what_their_time_had() {
    for via in [";branch=1", ""] {
        let old = |text: &str| text.replace(";branch=z9hG4bKa1", via);
        let mut b = Bench::new(&config());
        let sent = b.udp(CALLER, &old(&invite())).remove(1);
        assert_eq!(lines(&b.udp(CALLER, &old(&invite()))), [above("100 Trying")]);
        // Another call with the same Via is another transaction.
        assert_eq!(b.udp(CALLER, &old(&invite()).replace("c1@", "c2@")).len(), 2);
        b.udp(CALLEE, &response(&sent, "180 Ringing", ""));
        let out = b.udp(CALLER, &old(&cancel()));
        assert_eq!(lines(&out), [above("200 OK"), CANCEL_BELOW.to_string()]);
        let out = b.udp(CALLEE, &response(&sent, "487 Request Terminated", ""));
        assert!(b.udp(CALLER, &old(&ack(&out[1]))).is_empty());
        assert!(b.pass(400).iter().all(|s| !s.first_line().contains("487")));
    }
}

/// Operators see of calls: final responses by code, how long callers waited, and how many calls are being set up.
#[test]
fn calls_are_counted_and_timed() {
    use sip_core::event::Code;
    let (mut b, sent) = calling(&config());
    assert_eq!(b.endpoint.gauges().live_invites, 1);
    b.pass(300);
    b.udp(CALLEE, &response(&sent, "180 Ringing", ""));
    b.pass(50);
    b.udp(CALLEE, &response(&sent, "183 Session Progress", ""));
    b.pass(2_000);
    let ok = one(b.udp(CALLEE, &response(&sent, "200 OK", "")));
    assert_eq!(b.endpoint.gauges().live_invites, 0);
    let times = |b: &Bench| {
        let calls = b.endpoint.calls();
        let of = |times: &sip_core::event::Times| (times.counts.iter().sum::<u64>(), times.sum_us);
        let answers: Vec<_> = calls.responses().filter(|(_, count)| *count > 0).collect();
        (answers, of(&calls.setup), of(&calls.ring))
    };
    let expected = (vec![(Code::One(200), 1)], (1, 300_000), (1, 2_050_000));
    assert_eq!(times(&b), expected);
    b.udp(CALLER, &ack(&ok));
    // An INVITE that refreshes a session does not count as a call.
    let again = request("INVITE", "sip:bob@192.0.2.20", "r1", "")
        .replace("To: <sip:bob@example.com>", &format!("To: {}", ok.header("To")))
        .replace("CSeq: 1 ", "CSeq: 2 ");
    let relayed = b.udp(CALLER, &again);
    assert!(relayed.iter().any(|s| s.first_line().starts_with("SIP/2.0 100")));
    for sent in relayed.iter().filter(|s| s.first_line().starts_with("INVITE")) {
        b.receive(sent.to, &response(sent, "200 OK", ""));
    }
    assert_eq!(times(&b), expected);
    b.pass(60_000);
    assert_eq!(b.endpoint.gauges().live_invites, 0);
}

/// What is refused before there is a transaction is a failed call to its caller all the same.
#[test]
fn calls_that_are_refused_without_state_are_counted() {
    use sip_core::event::Code;
    let mut config = config();
    config.routes.insert(0, relay("sip:192.0.2.20"));
    config.routes[0].action = Action::Reject {
        status: 603,
        reason: b"Declined"[..].into(),
    };
    let mut b = Bench::new(&config);
    let of_call = |method: &str| request(method, "sip:bob@example.com", "a1", "");
    let in_dialog =
        of_call("INVITE").replace("To: <sip:bob@example.com>", "To: <sip:bob@example.com>;tag=t1");
    for text in [of_call("MESSAGE"), in_dialog, of_call("INVITE"), of_call("ACK")] {
        b.udp(CALLER, &text);
    }
    let calls = b.endpoint.calls();
    let answers: Vec<_> = calls.responses().filter(|(_, count)| *count > 0).collect();
    assert_eq!(answers, [(Code::One(603), 1)]);
    assert_eq!((calls.setup.sum_us, calls.ring.sum_us), (0, 0));
    assert_eq!(b.counters().replies_603, 3);
}

/// The loop asks so before it lets a CANCEL wait for its INVITE.
#[test]
fn the_invite_of_a_cancel_is_known_while_it_is_under_way() {
    let knows = |b: &mut Bench, text: &str| b.endpoint.knows_invite_of(udp_flow(CALLER), text.as_bytes());
    let mut b = Bench::new(&config());
    assert!(!knows(&mut b, &cancel()), "it has not come");
    b.udp(CALLER, &invite());
    assert!(knows(&mut b, &cancel()));
    for other in [
        cancel().replace("a1", "a2"),
        cancel().replacen("Via: ", "Via : SIP/2.0/UDP 192.0.2.77\r\nVia: ", 1),
        "CANCEL sip:bob@example.com SIP/2.0\r\n\r\n".to_owned(),
        "CANCEL ".to_owned(),
        "CANCEL \u{0}".to_owned(),
    ] {
        assert!(!knows(&mut b, &other), "{other}");
    }
    let mut stateless = Bench::new(&Config {
        state: StateMode::Stateless,
        ..config()
    });
    stateless.udp(CALLER, &invite());
    assert!(!knows(&mut stateless, &cancel()));
}

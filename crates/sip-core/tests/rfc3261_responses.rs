//! Rules of RFC 3261 for responses and transactions, paragraph by paragraph (§16.7 to §16.11, §17),
//! with RFC 4320 and RFC 6026, where no other file of tests has them.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use crate::common;

use common::*;
use sip_core::config::StateMode;

const BOB: &str = "sip:bob@example.com";
const INVITE_BELOW: &str = "192.0.2.20:5060 INVITE sip:bob@example.com SIP/2.0";
const CANCEL_BELOW: &str = "192.0.2.20:5060 CANCEL sip:bob@example.com SIP/2.0";
const ACK_BELOW: &str = "192.0.2.20:5060 ACK sip:bob@example.com SIP/2.0";

fn above(status: &str) -> String {
    format!("{CALLER} SIP/2.0 {status}")
}

fn invite() -> String {
    request("INVITE", BOB, "a1", "")
}

fn ack_of(answer: &Sent) -> String {
    request("ACK", BOB, "a1", "").replace(
        "To: <sip:bob@example.com>",
        &format!("To: {}", answer.header("To")),
    )
}

/// A call under way, and its INVITE as it left.
fn calling() -> (Bench, Sent) {
    let mut b = Bench::new(&config());
    let sent = b.udp(CALLER, &invite()).remove(1);
    (b, sent)
}

/// §16.7 step 5: 101 to 199 go on at once, each of them; 100 never does. The same in a 1xx to
/// another method goes nowhere (RFC 4320 §4.1).
#[test]
fn provisional_responses_go_on_but_for_100() {
    let (mut b, sent) = calling();
    for status in [
        "100 Trying",
        "101 A",
        "180 Ringing",
        "180 Ringing",
        "183 Progress",
        "199 Early",
    ] {
        let out = lines(&b.udp(CALLEE, &response(&sent, status, "")));
        if status.starts_with("100") {
            assert_eq!(out, Vec::<String>::new());
        } else {
            assert_eq!(out, [above(status)]);
        }
    }
    // §17.2.1: a retransmission gets the most recent of them.
    assert_eq!(lines(&b.udp(CALLER, &invite())), [above("199 Early")]);
}

/// §16.7 step 6: no To tag is put in, taken out or changed, in whatever response; step 9: body,
/// order and all else stay, `received` of the next Via too.
#[test]
fn tags_and_all_else_of_a_response_stay() {
    for state in [StateMode::Stateless, StateMode::Transaction] {
        for status in [
            "183 Progress",
            "200 OK",
            "302 Moved",
            "486 Busy Here",
            "603 Decline",
        ] {
            let mut config = config();
            config.state = state;
            let mut b = Bench::new(&config);
            let text = invite().replace("192.0.2.10:5060;branch", "10.0.0.1:5060;branch");
            let sent = b.udp(CALLER, &text).pop().unwrap();
            let extra = "X: 2\nContact: <sip:b@c>\nx: 1\nWWW-Authenticate: Digest realm=\"r\"\nServer: s\n";
            for tag in ["", ";tag=T%1"] {
                let answer = response(&sent, status, extra).replace(";tag=t1", tag);
                let answer = answer.replace("Content-Length: 0", "Content-Length: 4") + "body";
                let mut b = Bench::new(&config);
                b.udp(CALLER, &text);
                let out = b.udp(CALLEE, &answer).pop().unwrap();
                let via = format!("Via: {}\r\n", sent.headers("Via")[0]);
                let expected = unmarked(&answer.replace(&via, ""));
                assert_eq!(unmarked(&out.text), expected, "{state:?} {status} {tag}");
                assert!(out.header("Via").ends_with(";received=192.0.2.10"));
            }
        }
    }
}

/// §16.6 step 11: timer C is more than three minutes; §16.7 step 2: 101 to 199 start it anew, and
/// a 100 among them does not.
#[test]
fn timer_c_is_longer_than_three_minutes() {
    let (mut b, sent) = calling();
    b.udp(CALLEE, &response(&sent, "180 Ringing", ""));
    assert!(b.pass(180_500).is_empty());
    assert_eq!(lines(&b.pass(1_000)), [CANCEL_BELOW]);
    let (mut b, sent) = calling();
    b.udp(CALLEE, &response(&sent, "180 Ringing", ""));
    b.pass(100_000);
    b.udp(CALLEE, &response(&sent, "183 Progress", ""));
    b.pass(100_000);
    b.udp(CALLEE, &response(&sent, "100 Trying", ""));
    assert!(b.pass(80_500).is_empty());
    assert_eq!(lines(&b.pass(1_000)), [CANCEL_BELOW]);
}

/// §16.9: a response that cannot be delivered is dropped; what is under way goes on.
#[test]
fn an_error_of_a_response_cancels_nothing() {
    let (mut b, sent) = calling();
    let ringing = one(b.udp(CALLEE, &response(&sent, "180 Ringing", "")));
    assert!(b.undelivered(&ringing).is_empty());
    assert!(b.pass(60_000).is_empty());
    let ok = b.udp(CALLEE, &response(&sent, "200 OK", ""));
    assert_eq!(lines(&ok), [above("200 OK")]);
    assert_eq!(b.counters().transactions_unreachable, 0);
}

/// §17.1.3: a response belongs to the request with its branch and the method of its CSeq.
#[test]
fn the_method_of_cseq_counts() {
    let (mut b, sent) = calling();
    let ok = response(&sent, "200 OK", "");
    for method in ["CANCEL", "MESSAGE", "ACK", "invite"] {
        let other = ok.replace("1 INVITE", &format!("1 {method}"));
        assert!(b.udp(CALLEE, &other).is_empty(), "{method}");
    }
    // That of our CANCEL is none to the INVITE, nor the INVITE's to the CANCEL.
    b.udp(CALLEE, &response(&sent, "180 Ringing", ""));
    let cancel = b.udp(CALLER, &request("CANCEL", BOB, "a1", "")).remove(1);
    assert!(b.udp(CALLEE, &response(&cancel, "200 OK", "")).is_empty());
    assert_eq!(lines(&b.udp(CALLER, &invite())), [above("180 Ringing")]);
    assert!(b.pass(600).is_empty());
    assert_eq!(lines(&b.udp(CALLEE, &ok)), [above("200 OK")]);
}

/// §17.2.3: branch, sent-by and method make a transaction; any other is a new one.
#[test]
fn branch_sent_by_and_method_make_a_transaction() {
    let first = request("MESSAGE", BOB, "a1", "");
    for other in [
        first.replace("z9hG4bKa1", "z9hG4bKA1"),
        first.replace("192.0.2.10:5060;", "192.0.2.11:5060;"),
        first.replace("192.0.2.10:5060;", "192.0.2.10:5061;"),
        first.replace("192.0.2.10:5060;", "192.0.2.10;"),
        first.replace("MESSAGE", "INFO"),
    ] {
        let mut b = Bench::new(&config());
        assert_eq!(b.udp(CALLER, &first).len(), 1);
        assert!(b.udp(CALLER, &first).is_empty());
        assert_eq!(b.udp(CALLER, &other).len(), 1, "{other}");
    }
    // Where it comes from is no part of it, nor is anything else.
    let mut b = Bench::new(&config());
    b.udp(CALLER, &first);
    let same = first
        .replace("c1@", "c2@")
        .replace("tag=f1", "tag=f2")
        .replace("CSeq: 1 ", "CSeq: 2 ");
    assert!(b.udp("192.0.2.11:5060", &same).is_empty());
}

/// §17.2.2: in Completed a retransmission gets the final response again, and others "MUST be
/// discarded".
#[test]
fn the_first_final_answer_of_a_non_invite_is_the_only_one() {
    let mut b = Bench::new(&config());
    let text = request("MESSAGE", BOB, "a1", "");
    let sent = one(b.udp(CALLER, &text));
    let ok = one(b.udp(CALLEE, &response(&sent, "200 OK", "")));
    for status in ["200 OK", "486 Busy Here", "603 Decline", "202 Accepted"] {
        assert!(b.udp(CALLEE, &response(&sent, status, "")).is_empty(), "{status}");
    }
    b.pass(31_000);
    assert_eq!(one(b.udp(CALLER, &text)).text, ok.text);
    b.pass(1_500);
    b.assert_idle();
}

/// §17.2.1: in Completed a retransmission gets the failure, in Confirmed nothing; timer H ends it
/// without an ACK, and says nothing on the wire.
#[test]
fn a_failure_is_repeated_until_its_ack() {
    let (mut b, sent) = calling();
    let busy = b.udp(CALLEE, &response(&sent, "486 Busy Here", "")).remove(1);
    assert_eq!(one(b.udp(CALLER, &invite())).text, busy.text);
    assert!(b.udp(CALLER, &ack_of(&busy)).is_empty());
    assert!(b.udp(CALLER, &invite()).is_empty());
    assert!(b.pass(4_900).is_empty());
    // Timer I: a copy that comes still later is a new call.
    b.pass(200);
    assert_eq!(
        lines(&b.udp(CALLER, &invite())),
        [above("100 Trying"), INVITE_BELOW.to_string()]
    );
    let (mut b, sent) = calling();
    b.udp(CALLEE, &response(&sent, "486 Busy Here", ""));
    assert!(
        b.pass(33_000)
            .iter()
            .all(|s| s.first_line() == "SIP/2.0 486 Busy Here")
    );
    assert!(b.pass(60_000).is_empty());
    b.assert_idle();
}

/// §17.1.1.2: each copy of a failure is acknowledged, for 32 s, and none goes up; after that it
/// belongs to nothing.
#[test]
fn copies_of_a_failure_are_acknowledged_for_timer_d() {
    let (mut b, sent) = calling();
    let busy = response(&sent, "486 Busy Here", "");
    let out = b.udp(CALLEE, &busy);
    b.udp(CALLER, &ack_of(&out[1]));
    b.pass(31_500);
    assert_eq!(lines(&b.udp(CALLEE, &busy)), [ACK_BELOW]);
    // Another failure is none of ours to pass up any more.
    assert_eq!(
        lines(&b.udp(CALLEE, &response(&sent, "603 Decline", ""))),
        [ACK_BELOW]
    );
    b.pass(1_000);
    assert!(b.udp(CALLEE, &busy).is_empty());
    b.assert_idle();
}

/// RFC 4320 §4.2: no response goes on once the transaction has ended; one that comes before does.
#[test]
fn a_late_answer_to_a_non_invite_goes_nowhere() {
    for (ms, goes_on) in [(31_000, true), (33_000, false)] {
        let mut b = Bench::new(&config());
        let sent = one(b.udp(CALLER, &request("MESSAGE", BOB, "a1", "")));
        b.pass(ms);
        let out = b.udp(CALLEE, &response(&sent, "200 OK", ""));
        assert_eq!(out.len(), usize::from(goes_on), "{ms}");
        assert_eq!(b.counters().dropped_stray_response, u64::from(!goes_on));
    }
}

/// RFC 4320 §4.1: "without regard to transport" a 100 is sent once timer E has come to T2.
#[test]
fn a_late_100_is_sent_on_streams_too() {
    let mut b = Bench::new(&config());
    let flow = tcp_flow("192.0.2.10:40000", 3);
    let text = request("MESSAGE", BOB, "a1", "").replace("UDP", "TCP");
    b.receive(flow, &text);
    let trying = |out: &[Sent]| {
        out.iter()
            .filter(|s| s.first_line() == "SIP/2.0 100 Trying")
            .count()
    };
    assert_eq!(trying(&b.pass(3_400)), 0);
    let out = b.pass(200);
    assert_eq!(trying(&out), 1);
    let sent = out
        .iter()
        .find(|s| s.first_line() == "SIP/2.0 100 Trying")
        .unwrap();
    assert_eq!(sent.to.conn, flow.conn);
    assert_eq!(trying(&b.pass(20_000)), 0);
}

/// RFC 6026 §7.1: in Accepted copies of the INVITE are absorbed for 64·T1, and the transaction's
/// ACK goes on to the callee each time.
#[test]
fn accepted_lasts_for_timer_l() {
    let (mut b, sent) = calling();
    let ok = one(b.udp(CALLEE, &response(&sent, "200 OK", "")));
    for _ in 0..3 {
        assert!(b.udp(CALLER, &invite()).is_empty());
        assert_eq!(lines(&b.udp(CALLER, &ack_of(&ok))), [ACK_BELOW]);
        assert!(b.pass(10_000).is_empty());
    }
    b.pass(2_100);
    b.assert_idle();
    assert_eq!(
        lines(&b.udp(CALLER, &invite())),
        [above("100 Trying"), INVITE_BELOW.to_string()]
    );
}

//! CANCEL of requests with several branches (RFC 3261 §9, §16.10), in every order of events.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use crate::common;
use crate::forks;

use common::*;
use forks::*;
use sip_core::location::Binding;

/// Two phones that ring.
#[track_caller]
fn ringing() -> (Bench, Vec<Sent>) {
    let mut b = registered(&location(), &[phone(1), phone(2)]);
    let sent = call(&mut b);
    for s in &sent {
        assert_eq!(brief(&answer(&mut b, s, "180 Ringing")), ["caller 180"]);
    }
    (b, sent)
}

/// The final response to the caller among what left.
fn told(sent: &[Sent]) -> Vec<String> {
    let mut told: Vec<String> = brief(sent)
        .into_iter()
        .filter(|s| s.starts_with("caller"))
        .collect();
    told.dedup();
    told
}

#[test]
fn all_that_ring_are_cancelled_and_the_caller_gets_one_487() {
    let (mut b, sent) = ringing();
    let out = b.udp(CALLER, &cancel());
    assert_eq!(sorted(&out), ["1 CANCEL", "2 CANCEL", "caller 200"]);
    for s in &sent {
        let cancel = to(&out, &who(s));
        // §9.1: the same Via, Request-URI, Call-ID, To and From; the same CSeq number.
        assert_eq!(cancel.headers("Via"), [s.header("Via")]);
        assert_eq!(cancel.header("CSeq"), "1 CANCEL");
        assert_eq!(cancel.header("To"), s.header("To"));
        assert_eq!(cancel.first_line(), s.first_line().replace("INVITE", "CANCEL"));
        assert!(answer(&mut b, &cancel, "200 OK").is_empty());
    }
    assert_eq!(
        brief(&answer(&mut b, &sent[0], "487 Request Terminated")),
        ["1 ACK"]
    );
    let out = answer(&mut b, &sent[1], "487 Request Terminated");
    assert_eq!(brief(&out), ["2 ACK", "caller 487"]);
    ack(&mut b, &out[1]);
    assert!(end(&mut b).is_empty());
}

/// §9.1: "if no provisional response has been received, the CANCEL request MUST NOT be sent".
#[test]
fn a_cancel_before_any_provisional_response_waits_for_one() {
    let mut b = registered(&location(), &[phone(1), phone(2), with_q(3, 100)]);
    let sent = call(&mut b);
    assert_eq!(brief(&b.udp(CALLER, &cancel())), ["caller 200"]);
    let out = answer(&mut b, &sent[0], "100 Trying");
    assert_eq!(brief(&out), ["1 CANCEL"]);
    assert_eq!(
        brief(&answer(&mut b, &sent[0], "487 Request Terminated")),
        ["1 ACK"]
    );
    // The other never says anything: timer B ends it, and the third is not called.
    let out = b.pass(32_100);
    assert_eq!(told(&out), ["caller 487"]);
    assert!(!brief(&out).iter().any(|s| s == "2 CANCEL" || s.starts_with('3')));
    ack(&mut b, &out[out.len() - 1]);
    end(&mut b);
}

#[test]
fn a_cancel_before_any_provisional_response_and_silence() {
    let mut b = registered(&location(), &[phone(1), phone(2)]);
    call(&mut b);
    b.udp(CALLER, &cancel());
    let out = b.pass(32_100);
    assert_eq!(told(&out), ["caller 487"]);
    assert!(!brief(&out).iter().any(|s| s.ends_with("CANCEL")));
    ack(&mut b, &out[out.len() - 1]);
    end(&mut b);
}

#[test]
fn ringing_phones_are_cancelled_at_once_and_silent_ones_later() {
    let mut b = registered(&location(), &[phone(1), phone(2)]);
    let sent = call(&mut b);
    answer(&mut b, &sent[0], "180 Ringing");
    assert_eq!(sorted(&b.udp(CALLER, &cancel())), ["1 CANCEL", "caller 200"]);
    let out = answer(&mut b, &sent[1], "180 Ringing");
    assert_eq!(brief(&out)[0], "2 CANCEL");
    answer(&mut b, &sent[1], "487 Request Terminated");
    let out = answer(&mut b, &sent[0], "487 Request Terminated");
    assert_eq!(brief(&out), ["1 ACK", "caller 487"]);
    ack(&mut b, &out[1]);
    end(&mut b);
}

#[test]
fn a_200_that_crosses_the_cancel_goes_on() {
    let (mut b, sent) = ringing();
    let out = b.udp(CALLER, &cancel());
    assert_eq!(sorted(&out), ["1 CANCEL", "2 CANCEL", "caller 200"]);
    assert_eq!(brief(&answer(&mut b, &sent[0], "200 OK")), ["caller 200"]);
    // It had responded before: 481 to the CANCEL, which concerns no caller.
    assert!(answer(&mut b, &to(&out, "1"), "481 Call/Transaction Does Not Exist").is_empty());
    assert_eq!(brief(&answer(&mut b, &sent[1], "200 OK")), ["caller 200"]);
    end(&mut b);
}

#[test]
fn a_cancel_after_a_200_changes_nothing() {
    let (mut b, sent) = ringing();
    assert_eq!(
        sorted(&answer(&mut b, &sent[0], "200 OK")),
        ["2 CANCEL", "caller 200"]
    );
    assert_eq!(brief(&b.udp(CALLER, &cancel())), ["caller 200"]);
    assert_eq!(
        brief(&answer(&mut b, &sent[1], "487 Request Terminated")),
        ["2 ACK"]
    );
    end(&mut b);
}

#[test]
fn a_200_after_our_487_goes_on() {
    let mut b = registered(&location(), &[phone(1), phone(2)]);
    let sent = call(&mut b);
    b.udp(CALLER, &cancel());
    let out = b.pass(31_900);
    assert!(told(&out).is_empty());
    answer(&mut b, &sent[0], "180 Ringing");
    let out = b.pass(33_000);
    assert_eq!(told(&out), ["caller 487"]);
    end(&mut b);
}

fn named(n: u8, q_milli: u16) -> Binding {
    Binding {
        path: b"<sip:edge.example.net:5060;lr>"[..].into(),
        ..with_q(n, q_milli)
    }
}

#[test]
fn what_waits_for_a_name_is_never_called() {
    let mut b = registered(&location(), &[named(1, 1000), phone(2)]);
    let sent = call(&mut b);
    answer(&mut b, &sent[0], "180 Ringing");
    assert_eq!(sorted(&b.udp(CALLER, &cancel())), ["2 CANCEL", "caller 200"]);
    let (_, out) = b.serve(&[("edge.example.net A", vec![address("192.0.2.39")])]);
    assert!(out.is_empty());
    let out = answer(&mut b, &sent[0], "487 Request Terminated");
    assert_eq!(brief(&out), ["2 ACK", "caller 487"]);
    ack(&mut b, &out[1]);
    end(&mut b);
}

#[test]
fn where_all_wait_for_names_the_487_comes_at_once() {
    let mut b = registered(&location(), &[named(1, 1000), named(2, 1000)]);
    assert!(call(&mut b).is_empty());
    let out = b.udp(CALLER, &cancel());
    assert_eq!(brief(&out), ["caller 200", "caller 487"]);
    ack(&mut b, &out[1]);
    let (_, out) = b.serve(&[("edge.example.net A", vec![address("192.0.2.39")])]);
    assert!(out.is_empty());
    end(&mut b);
}

/// Between two targets: the first has ended, the second waits for its name.
#[test]
fn between_two_targets_the_best_answer_so_far_ends_it() {
    let mut b = registered(&location(), &[phone(1), named(2, 500)]);
    let sent = call(&mut b);
    assert_eq!(brief(&answer(&mut b, &sent[0], "486 Busy Here")), ["1 ACK"]);
    let out = b.udp(CALLER, &cancel());
    assert_eq!(brief(&out), ["caller 200", "caller 486"]);
    ack(&mut b, &out[1]);
    b.serve(&[("edge.example.net A", vec![address("192.0.2.39")])]);
    end(&mut b);
}

#[test]
fn lower_ones_are_not_called_after_a_cancel() {
    let mut b = registered(&location(), &[with_q(1, 1000), with_q(2, 500)]);
    let sent = call(&mut b);
    answer(&mut b, &sent[0], "180 Ringing");
    assert_eq!(sorted(&b.udp(CALLER, &cancel())), ["1 CANCEL", "caller 200"]);
    // Whatever it says now.
    for (status, last) in [
        ("486 Busy Here", "caller 486"),
        ("503 Service Unavailable", "caller 500"),
    ] {
        let (mut b, sent) = {
            let mut b = registered(&location(), &[with_q(1, 1000), with_q(2, 500)]);
            let sent = call(&mut b);
            answer(&mut b, &sent[0], "180 Ringing");
            b.udp(CALLER, &cancel());
            (b, sent)
        };
        let out = answer(&mut b, &sent[0], status);
        assert_eq!(brief(&out), ["1 ACK", last]);
        ack(&mut b, &out[1]);
        end(&mut b);
    }
}

/// Every message comes twice.
#[test]
fn copies_of_every_message_change_nothing() {
    let mut b = registered(&location(), &[phone(1), phone(2)]);
    let sent = call(&mut b);
    assert_eq!(brief(&b.udp(CALLER, &invite())), ["caller 100"]);
    for s in &sent {
        answer(&mut b, s, "180 Ringing");
        // A provisional response that comes again goes on again.
        assert_eq!(brief(&answer(&mut b, s, "180 Ringing")), ["caller 180"]);
    }
    let out = b.udp(CALLER, &cancel());
    assert_eq!(sorted(&out), ["1 CANCEL", "2 CANCEL", "caller 200"]);
    assert_eq!(brief(&b.udp(CALLER, &cancel())), ["caller 200"]);
    // Ours are repeated until they have a response.
    assert_eq!(sorted(&b.pass(510)), ["1 CANCEL", "2 CANCEL"]);
    for s in &sent {
        let cancel = to(&out, &who(s));
        assert!(answer(&mut b, &cancel, "200 OK").is_empty());
        assert!(answer(&mut b, &cancel, "200 OK").is_empty());
    }
    assert_eq!(
        brief(&answer(&mut b, &sent[0], "487 Request Terminated")),
        ["1 ACK"]
    );
    assert_eq!(
        brief(&answer(&mut b, &sent[0], "487 Request Terminated")),
        ["1 ACK"]
    );
    let out = answer(&mut b, &sent[1], "487 Request Terminated");
    assert_eq!(brief(&out), ["2 ACK", "caller 487"]);
    assert_eq!(
        brief(&answer(&mut b, &sent[1], "487 Request Terminated")),
        ["2 ACK"]
    );
    // The same INVITE, and time: the 487 again; then its ACK, twice.
    assert_eq!(brief(&b.udp(CALLER, &invite())), ["caller 487"]);
    assert_eq!(brief(&b.pass(510)), ["caller 487"]);
    ack(&mut b, &out[1]);
    ack(&mut b, &out[1]);
    assert_eq!(brief(&b.udp(CALLER, &cancel())), ["caller 200"]);
    assert!(end(&mut b).is_empty());
}

#[test]
fn a_6xx_after_a_cancel_is_the_answer() {
    let (mut b, sent) = ringing();
    b.udp(CALLER, &cancel());
    assert_eq!(brief(&answer(&mut b, &sent[0], "603 Decline")), ["1 ACK"]);
    let out = answer(&mut b, &sent[1], "487 Request Terminated");
    assert_eq!(brief(&out), ["2 ACK", "caller 603"]);
    ack(&mut b, &out[1]);
    end(&mut b);
}

/// §9.1: 64·T1 after the CANCEL the INVITE counts as cancelled, if no response comes.
#[test]
fn an_unanswered_cancel_ends_after_64_t1() {
    let (mut b, _) = ringing();
    b.udp(CALLER, &cancel());
    let out = b.pass(31_900);
    assert!(told(&out).is_empty());
    let out = b.pass(200);
    assert_eq!(told(&out), ["caller 487"]);
    ack(&mut b, &to(&out, "caller"));
    end(&mut b);
}

/// Timer C of one, then the caller's CANCEL: one CANCEL to each.
#[test]
fn timer_c_and_a_cancel_together_send_one_cancel_each() {
    let (mut b, sent) = ringing();
    b.pass(100_000);
    answer(&mut b, &sent[1], "180 Ringing");
    let out = b.pass(81_200);
    assert_eq!(brief(&out), ["1 CANCEL"]);
    answer(&mut b, &out[0], "200 OK");
    let out = b.udp(CALLER, &cancel());
    assert_eq!(sorted(&out), ["2 CANCEL", "caller 200"]);
    answer(&mut b, &to(&out, "2"), "200 OK");
    assert_eq!(
        brief(&answer(&mut b, &sent[1], "487 Request Terminated")),
        ["2 ACK"]
    );
    let out = answer(&mut b, &sent[0], "487 Request Terminated");
    assert_eq!(brief(&out), ["1 ACK", "caller 487"]);
    ack(&mut b, &out[1]);
    assert!(end(&mut b).is_empty());
}

/// What cannot be delivered after a CANCEL was cancelled all the same.
#[test]
fn an_error_of_the_transport_after_a_cancel_is_a_487() {
    let mut b = registered(&location(), &[phone(1), phone(2)]);
    let sent = call(&mut b);
    b.udp(CALLER, &cancel());
    assert!(b.undelivered(&sent[0]).is_empty());
    let out = b.undelivered(&sent[1]);
    assert_eq!(brief(&out), ["caller 487"]);
    ack(&mut b, &out[0]);
    end(&mut b);
}

/// A CANCEL of ours that cannot be delivered leaves the INVITE to its time.
#[test]
fn our_cancel_may_get_lost() {
    let (mut b, sent) = ringing();
    let out = b.udp(CALLER, &cancel());
    assert!(b.undelivered(&to(&out, "1")).is_empty());
    answer(&mut b, &sent[1], "487 Request Terminated");
    let out = b.pass(32_100);
    assert_eq!(told(&out), ["caller 487"]);
    ack(&mut b, &to(&out, "caller"));
    end(&mut b);
}

/// Timer C ends what rang without a final response; its other address does not ring for as long
/// again.
#[test]
fn what_rang_in_vain_rings_nowhere_else() {
    let mut config = config();
    config.routes = vec![relay("sip:gw.example.net:5070")];
    let mut b = Bench::new(&config);
    b.udp(CALLER, &invite());
    let (_, out) = b.serve(&[(
        "gw.example.net A",
        vec![address("198.51.100.1"), address("198.51.100.2")],
    )]);
    let rings = b.udp(&out[0].address(), &response(&out[0], "180 Ringing", ""));
    assert_eq!(brief(&rings), ["caller 180"]);
    let out = b.pass(181_000 + 70_000);
    assert!(out.iter().any(|s| s.first_line().starts_with("CANCEL ")));
    assert!(out.iter().all(|s| s.address() != "198.51.100.2:5070"));
    let told: Vec<_> = out.iter().filter(|s| s.address() == CALLER).collect();
    assert_eq!(told[0].first_line(), "SIP/2.0 408 Request Timeout");
}

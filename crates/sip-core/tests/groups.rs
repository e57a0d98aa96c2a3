//! Groups of next hops (dispatcher sets): sharing out, failing over, marks and probes.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use crate::common;
use crate::forks;

use std::sync::Arc;

use common::*;
use forks::*;
use sip_core::config::{Config, StateMode};
use sip_core::dispatcher::{Distribution, Group, MemberState};
use sip_core::event::Event;
use sip_core::query::{QueryResult, Unavailable};

const UP: MemberState = MemberState::Up;
const FAILED: MemberState = MemberState::Failed;

/// Request `method` of call number `n`.
fn of_call(method: &str, n: u32) -> String {
    request(method, BOB, &format!("a{n}"), "").replace("Call-ID: c1@", &format!("Call-ID: c{n}@"))
}

/// Sends the INVITE of call `n`; what left beside the 100.
#[track_caller]
fn call_number(b: &mut Bench, n: u32) -> Vec<Sent> {
    call_with(b, &of_call("INVITE", n))
}

/// To which member call `n` goes first.
#[track_caller]
fn first(b: &mut Bench, n: u32) -> String {
    who(&one(call_number(b, n)))
}

fn state(config: &Config, b: &Bench) -> Vec<MemberState> {
    let now = b.now().unix_ms;
    config.groups[0]
        .members
        .iter()
        .map(|m| m.health.state(now))
        .collect()
}

fn events(b: &mut Bench) -> Vec<Event> {
    std::iter::from_fn(|| b.endpoint.poll_event())
        .filter(|e| matches!(e, Event::MemberFailed { .. } | Event::MemberRecovered { .. }))
        .collect()
}

fn failed(n: u8) -> Event {
    Event::MemberFailed {
        group: b"carriers"[..].into(),
        member: format!("sip:198.51.100.{n}").into_bytes().into(),
    }
}

fn recovered(n: u8) -> Event {
    Event::MemberRecovered {
        group: b"carriers"[..].into(),
        member: format!("sip:198.51.100.{n}").into_bytes().into(),
    }
}

#[test]
fn round_robin_goes_round() {
    let mut b = Bench::new(&grouped(group(Distribution::RoundRobin, 3)));
    let order: Vec<String> = (0..4).map(|n| first(&mut b, n)).collect();
    assert_eq!(order, ["g1", "g2", "g3", "g1"]);
    // The Request-URI stays as it came; the same INVITE again goes nowhere.
    assert_eq!(brief(&b.udp(CALLER, &of_call("INVITE", 0))), ["caller 100"]);
}

#[test]
fn weights_share_out_and_a_call_id_stays_where_it_is() {
    for algorithm in [Distribution::Weighted, Distribution::CallId] {
        let mut g = group(algorithm, 3);
        g.members[1].weight = 8;
        let mut b = Bench::new(&grouped(g));
        let mut counts = [0; 3];
        for n in 0..200 {
            let to = first(&mut b, n);
            counts[usize::from(to.as_bytes()[1] - b'1')] += 1;
        }
        assert!(counts[1] > 130 && counts[0] > 0 && counts[2] > 0, "{counts:?}");
    }
    let mut b = Bench::new(&grouped(group(Distribution::CallId, 3)));
    for n in 0..20 {
        let to = first(&mut b, n);
        // Another request of that call.
        let message = of_call("MESSAGE", n);
        assert_eq!(who(&one(b.udp(CALLER, &message))), to);
    }
}

#[test]
fn priorities_are_kept_until_all_of_one_are_gone() {
    let mut g = group(Distribution::Priority, 3);
    g.members[0].priority = 7;
    g.marks.fail_after = 1;
    let config = grouped(g);
    let mut b = Bench::new(&config);
    assert_eq!(
        [first(&mut b, 0), first(&mut b, 1), first(&mut b, 2)],
        ["g2", "g3", "g2"]
    );
    config.groups[0].members[1].health.set_drained(true);
    config.groups[0].members[2].health.set_drained(true);
    assert_eq!(first(&mut b, 3), "g1");
    assert_eq!(state(&config, &b)[1], MemberState::Drained);
    config.groups[0].members[2].health.set_drained(false);
    assert_eq!(first(&mut b, 4), "g3");
}

/// Loads go back to nothing, whichever way a request ends: three calls at once to a group of three
/// go to three members only then.
#[test]
fn least_load_counts_requests_without_a_final_answer() {
    let ends = [
        "200 OK",
        "486 Busy Here",
        "603 Decline",
        "503 Service Unavailable",
        "302 Moved Temporarily",
        "cancelled",
        "silent",
        "unreachable",
        "limit",
        "message",
        "message silent",
    ];
    for how in ends {
        let mut g = group(Distribution::LeastLoad, 3);
        g.marks.fail_after = 1000;
        let mut config = grouped(g);
        if how == "limit" {
            config.limits.branches = 1;
        }
        let mut b = Bench::new(&config);
        for n in 0..7 {
            let (method, n) = (
                if how.starts_with("message") {
                    "MESSAGE"
                } else {
                    "INVITE"
                },
                100 + n,
            );
            let sent = b.udp(CALLER, &of_call(method, n)).pop().unwrap();
            match how {
                "cancelled" => {
                    answer(&mut b, &sent, "180 Ringing");
                    b.udp(CALLER, &of_call("CANCEL", n));
                    answer(&mut b, &sent, "487 Request Terminated");
                }
                "silent" | "message silent" | "limit" => {
                    b.pass(37_000);
                }
                "unreachable" => {
                    let mut sent = vec![sent];
                    while let Some(next) = sent.iter().find(|s| who(s).starts_with('g')).cloned() {
                        sent = b.undelivered(&next);
                    }
                }
                "message" => {
                    answer(&mut b, &sent, "200 OK");
                }
                status => {
                    let mut out = answer(&mut b, &sent, status);
                    while let Some(next) = out.iter().find(|s| s.first_line().starts_with("INVITE")).cloned()
                    {
                        out = answer(&mut b, &next, status);
                    }
                }
            }
        }
        for n in 0..3 {
            b.udp(CALLER, &of_call("INVITE", 200 + n));
        }
        let mut seen: Vec<String> = (0..3).map(|n| first(&mut b, 300 + n)).collect();
        seen.sort();
        assert_eq!(seen, ["g1", "g2", "g3"], "{how}");
        b.pass(100_000);
        end(&mut b);
    }
}

#[test]
fn least_load_prefers_the_idle_and_heeds_weights() {
    let mut g = group(Distribution::LeastLoad, 2);
    g.members[0].weight = 3;
    let mut b = Bench::new(&grouped(g));
    let to: Vec<String> = (0..8).map(|n| first(&mut b, n)).collect();
    let to_first = to.iter().filter(|t| *t == "g1").count();
    assert_eq!(to_first, 6, "{to:?}");
}

/// What sends a request on to the next member, and what does not.
#[test]
fn failures_go_on_to_the_next_member_and_answers_stand() {
    let mut g = group(Distribution::RoundRobin, 3);
    g.failover_on = vec![503, 500, 404];
    for (status, next) in [
        ("503 Service Unavailable", true),
        ("500 Server Internal Error", true),
        ("404 Not Found", true),
        ("486 Busy Here", false),
        ("480 Temporarily Unavailable", false),
        ("408 Request Timeout", false),
        ("401 Unauthorized", false),
        ("504 Server Time-out", false),
        ("302 Moved Temporarily", false),
        ("603 Decline", false),
    ] {
        let mut b = Bench::new(&grouped(g.clone()));
        let sent = call(&mut b);
        assert_eq!(brief(&sent), ["g1 INVITE"]);
        let out = answer(&mut b, &sent[0], status);
        let code = status.split(' ').next().unwrap();
        if next {
            assert_eq!(brief(&out), ["g1 ACK", "g2 INVITE"], "{status}");
            assert_ne!(out[1].header("Via"), sent[0].header("Via"));
            let out = answer(&mut b, &out[1], "180 Ringing");
            assert_eq!(brief(&out), ["caller 180"]);
            // Another copy of the failure changes nothing.
            assert_eq!(brief(&answer(&mut b, &sent[0], status)), ["g1 ACK"]);
            b.udp(CALLER, &cancel());
        } else {
            assert_eq!(brief(&out), ["g1 ACK".to_string(), format!("caller {code}")]);
            ack(&mut b, &out[1]);
        }
        end(&mut b);
    }
    // Without it in the list, not even for a 503: the caller gets 500.
    g.failover_on.clear();
    let mut b = Bench::new(&grouped(g));
    let sent = call(&mut b);
    let out = answer(&mut b, &sent[0], "503 Service Unavailable");
    assert_eq!(brief(&out), ["g1 ACK", "caller 500"]);
    ack(&mut b, &out[1]);
    end(&mut b);
}

#[test]
fn all_members_are_tried_and_then_the_best_answer_goes_on() {
    let mut g = group(Distribution::RoundRobin, 3);
    g.failover_on = vec![503, 500];
    let mut b = Bench::new(&grouped(g));
    let mut sent = call(&mut b).remove(0);
    for (status, next) in [
        ("503 Service Unavailable", "g2"),
        ("500 Server Internal Error", "g3"),
    ] {
        let out = answer(&mut b, &sent, status);
        assert_eq!(brief(&out)[1], format!("{next} INVITE"));
        sent = out[1].clone();
    }
    let out = answer(&mut b, &sent, "503 Service Unavailable");
    assert_eq!(brief(&out), ["g3 ACK", "caller 500"]);
    assert!(out[1].header("To").ends_with(";tag=tg2"));
    ack(&mut b, &out[1]);
    end(&mut b);
}

/// The caller sees nothing of it but the delay.
#[test]
fn a_silent_member_is_left_and_cancelled_should_it_ring_later() {
    let mut b = Bench::new(&grouped(group(Distribution::RoundRobin, 2)));
    let sent = call(&mut b);
    assert_eq!(brief(&b.pass(1_900)), ["g1 INVITE", "g1 INVITE"]);
    let out = b.pass(200);
    assert_eq!(brief(&out), ["g2 INVITE"]);
    assert!(b.pass(400).is_empty(), "the first is not asked again");
    assert_eq!(brief(&answer(&mut b, &out[0], "180 Ringing")), ["caller 180"]);
    // Now the first rings.
    let late = answer(&mut b, &sent[0], "180 Ringing");
    assert_eq!(brief(&late), ["g1 CANCEL"]);
    answer(&mut b, &late[0], "200 OK");
    assert_eq!(
        brief(&answer(&mut b, &sent[0], "487 Request Terminated")),
        ["g1 ACK"]
    );
    assert_eq!(brief(&answer(&mut b, &out[0], "200 OK")), ["caller 200"]);
    end(&mut b);
}

#[test]
fn a_late_200_of_a_silent_member_goes_on_and_stops_the_next() {
    let mut b = Bench::new(&grouped(group(Distribution::RoundRobin, 2)));
    let sent = call(&mut b);
    let out = b.pass(2_100);
    let second = to(&out, "g2");
    answer(&mut b, &second, "180 Ringing");
    assert_eq!(
        sorted(&answer(&mut b, &sent[0], "200 OK")),
        ["caller 200", "g2 CANCEL"]
    );
    answer(&mut b, &second, "487 Request Terminated");
    end(&mut b);
    // And after the second one's 200 too.
    let mut b = Bench::new(&grouped(group(Distribution::RoundRobin, 2)));
    let sent = call(&mut b);
    let second = to(&b.pass(2_100), "g2");
    answer(&mut b, &second, "200 OK");
    assert_eq!(brief(&answer(&mut b, &sent[0], "200 OK")), ["caller 200"]);
    end(&mut b);
}

/// A failure that comes too late from a member that was left changes nothing.
#[test]
fn a_late_failure_of_a_silent_member_changes_nothing() {
    let mut b = Bench::new(&grouped(group(Distribution::RoundRobin, 2)));
    let sent = call(&mut b);
    let second = to(&b.pass(2_100), "g2");
    assert_eq!(brief(&answer(&mut b, &sent[0], "486 Busy Here")), ["g1 ACK"]);
    assert_eq!(brief(&answer(&mut b, &second, "200 OK")), ["caller 200"]);
    end(&mut b);
}

#[test]
fn a_100_is_a_sign_of_life() {
    let mut b = Bench::new(&grouped(group(Distribution::RoundRobin, 2)));
    let sent = call(&mut b);
    assert!(answer(&mut b, &sent[0], "100 Trying").is_empty());
    assert!(b.pass(60_000).is_empty());
    assert_eq!(brief(&answer(&mut b, &sent[0], "200 OK")), ["caller 200"]);
    end(&mut b);
}

/// A member that rang for all the time that the rule gives is left as well, and has not failed.
#[test]
fn a_member_that_rang_in_vain_is_cancelled_and_the_next_one_tried() {
    let config = grouped_with(group(Distribution::RoundRobin, 2), |r| r.timeout_s = Some(20));
    let mut b = Bench::new(&config);
    let sent = call(&mut b);
    answer(&mut b, &sent[0], "180 Ringing");
    let out = b.pass(20_100);
    assert_eq!(brief(&out), ["g1 CANCEL", "g2 INVITE"]);
    answer(&mut b, &out[0], "200 OK");
    assert_eq!(
        brief(&answer(&mut b, &sent[0], "487 Request Terminated")),
        ["g1 ACK"]
    );
    answer(&mut b, &out[1], "180 Ringing");
    let last = to(&b.pass(20_100), "g2");
    answer(&mut b, &last, "200 OK");
    // The last one's own end is waited for.
    let out = answer(&mut b, &out[1], "487 Request Terminated");
    assert_eq!(brief(&out), ["g2 ACK", "caller 408"]);
    ack(&mut b, &out[1]);
    assert_eq!(config.groups[0].members[0].health.failures(), 0);
    end(&mut b);
}

#[test]
fn an_unreachable_member_is_left_at_once() {
    let config = grouped(group(Distribution::RoundRobin, 2));
    let mut b = Bench::new(&config);
    let sent = call(&mut b);
    assert_eq!(brief(&b.undelivered(&sent[0])), ["g2 INVITE"]);
    // A copy of it, quoted once more, concerns no transaction.
    assert!(b.undelivered(&sent[0]).is_empty());
    b.udp(CALLER, &cancel());
    end(&mut b);
}

/// Marks: after so many failures in a row, for so long.
#[test]
fn a_member_that_fails_again_and_again_gets_no_calls_for_a_while() {
    let mut g = group(Distribution::Priority, 2);
    g.members[1].priority = 1;
    let config = grouped(g);
    let mut b = Bench::new(&config);
    for n in 0..2 {
        assert_eq!(state(&config, &b), [UP, UP]);
        let sent = one(call_number(&mut b, n));
        assert_eq!(who(&sent), "g1");
        let next = answer(&mut b, &sent, "503 Service Unavailable");
        answer(&mut b, &next[1], "200 OK");
    }
    assert_eq!(state(&config, &b), [FAILED, UP]);
    assert_eq!(events(&mut b), [failed(1)]);
    let sent = one(call_number(&mut b, 2));
    assert_eq!(who(&sent), "g2");
    answer(&mut b, &sent, "486 Busy Here");
    b.pass(30_100);
    assert_eq!(state(&config, &b), [UP, UP]);
    // One more is enough; a response wipes all out.
    let sent = one(call_number(&mut b, 3));
    assert_eq!(who(&sent), "g1");
    let next = b.undelivered(&sent);
    answer(&mut b, &next[0], "486 Busy Here");
    assert_eq!(state(&config, &b), [FAILED, UP]);
    b.pass(30_100);
    for n in 4..8 {
        let sent = one(call_number(&mut b, n));
        if n % 2 == 0 {
            answer(&mut b, &sent, "486 Busy Here");
        } else {
            let next = b.undelivered(&sent);
            answer(&mut b, &next[0], "486 Busy Here");
        }
    }
    assert_eq!(state(&config, &b), [UP, UP]);
    b.pass(60_000);
    end(&mut b);
}

/// RFC 3263 §4.3: a member is as good as any of its addresses.
#[test]
fn a_member_with_one_good_address_has_not_failed() {
    let mut g = group(Distribution::RoundRobin, 1);
    g.members = vec![member("sip:gw.example.net:5060")];
    g.marks.fail_after = 1;
    let config = grouped(g);
    let mut b = Bench::new(&config);
    assert!(call(&mut b).is_empty());
    let two = vec![address("198.51.100.1"), address("198.51.100.2")];
    let (_, sent) = b.serve(&[("gw.example.net A", two)]);
    assert_eq!(brief(&sent), ["g1 INVITE"]);
    let out = b.undelivered(&sent[0]);
    assert_eq!(brief(&out), ["g2 INVITE"]);
    assert_eq!(state(&config, &b), [UP]);
    assert_eq!(
        brief(&answer(&mut b, &out[0], "503 Service Unavailable")),
        ["g2 ACK", "caller 500"]
    );
    assert_eq!(state(&config, &b), [FAILED]);
    assert_eq!(config.groups[0].members[0].health.failures(), 1);
    end(&mut b);
}

#[test]
fn where_all_are_down_or_drained_the_caller_gets_500() {
    let config = grouped(group(Distribution::RoundRobin, 2));
    for m in &config.groups[0].members {
        m.health.set_drained(true);
    }
    for state in [StateMode::Transaction, StateMode::Stateless] {
        let mut b = Bench::new(&Config {
            state,
            ..config.clone()
        });
        let out = b.udp(CALLER, &invite());
        assert_eq!(
            lines(&out),
            [format!("{CALLER} SIP/2.0 500 No Member Of The Group Is Up")]
        );
        ack(&mut b, &out[0]);
        b.assert_idle();
    }
}

/// A member that is drained finishes what it has.
#[test]
fn calls_of_a_drained_member_go_on() {
    let config = grouped(group(Distribution::RoundRobin, 2));
    let mut b = Bench::new(&config);
    let sent = call(&mut b);
    config.groups[0].members[0].health.set_drained(true);
    assert_eq!(brief(&answer(&mut b, &sent[0], "180 Ringing")), ["caller 180"]);
    assert_eq!(brief(&answer(&mut b, &sent[0], "200 OK")), ["caller 200"]);
    assert_eq!([first(&mut b, 5), first(&mut b, 6)], ["g2", "g2"]);
}

#[test]
fn each_member_gets_the_request_as_the_rule_makes_it() {
    let mut g = group(Distribution::RoundRobin, 2);
    g.members[1] = member("sip:198.51.100.2:5060");
    let config = grouped_with(g, |r| {
        r.strip = 1;
        r.prefix = b"+49"[..].into();
        r.rewrite_host = true;
    });
    let mut b = Bench::new(&config);
    let sent = call_with(
        &mut b,
        &request("INVITE", "sip:0301234@example.com;user=phone", "a1", ""),
    );
    assert_eq!(
        sent[0].first_line(),
        "INVITE sip:+49301234@198.51.100.1;user=phone SIP/2.0"
    );
    let out = answer(&mut b, &sent[0], "503 Service Unavailable");
    assert_eq!(
        out[1].first_line(),
        "INVITE sip:+49301234@198.51.100.2:5060;user=phone SIP/2.0"
    );
}

/// §16.11: without state INVITE, CANCEL and ACK of a call must find the same member.
#[test]
fn without_state_a_call_stays_with_its_member() {
    for algorithm in [
        Distribution::RoundRobin,
        Distribution::Weighted,
        Distribution::CallId,
        Distribution::LeastLoad,
        Distribution::Priority,
    ] {
        let mut config = grouped(group(algorithm, 3));
        config.state = StateMode::Stateless;
        let mut b = Bench::new(&config);
        let mut seen = vec![];
        for n in 0..30 {
            let to = who(&one(b.udp(CALLER, &of_call("INVITE", n))));
            for method in ["INVITE", "CANCEL", "ACK"] {
                assert_eq!(who(&one(b.udp(CALLER, &of_call(method, n)))), to, "{algorithm:?}");
            }
            seen.push(to);
        }
        seen.sort();
        seen.dedup();
        let all = if algorithm == Distribution::Priority { 1 } else { 3 };
        assert_eq!(seen.len(), all, "{algorithm:?}");
        b.assert_idle();
    }
}

#[test]
fn other_requests_fail_over_as_well() {
    let mut b = Bench::new(&grouped(group(Distribution::RoundRobin, 3)));
    let message = request("MESSAGE", BOB, "a1", "");
    let sent = b.udp(CALLER, &message);
    let out = answer(&mut b, &sent[0], "503 Service Unavailable");
    assert_eq!(brief(&out), ["g2 MESSAGE"]);
    let second = out[0].clone();
    let out = b.pass(2_100);
    let third = to(&out, "g3");
    // A member that was left may still respond.
    assert_eq!(brief(&answer(&mut b, &second, "200 OK")), ["caller 200"]);
    assert!(answer(&mut b, &third, "200 OK").is_empty());
    end(&mut b);
}

/// The sender of a MESSAGE gets no time-out (RFC 4320 §4.2): the last member may take its time, and a
/// copy meanwhile goes nowhere.
#[test]
fn the_last_member_may_answer_a_message_late() {
    let mut b = Bench::new(&grouped(group(Distribution::RoundRobin, 2)));
    let message = request("MESSAGE", BOB, "a1", "");
    b.udp(CALLER, &message);
    let out = b.pass(7_500);
    let last = to(&out, "g2");
    assert_eq!(brief(&b.udp(CALLER, &message)), ["caller 100"]);
    assert_eq!(brief(&answer(&mut b, &last, "200 OK")), ["caller 200"]);
    end(&mut b);
}

/// A limit of ours says nothing about the members.
#[test]
fn members_that_may_not_be_looked_up_are_not_marked() {
    let mut g = group(Distribution::RoundRobin, 2);
    g.members = vec![member("sip:gw1.example.net"), member("sip:gw2.example.net")];
    g.marks.fail_after = 1;
    let mut config = grouped(g);
    config.limits.parked_requests = 0;
    let mut b = Bench::new(&config);
    assert_eq!(brief(&call(&mut b)), ["caller 500"]);
    assert_eq!(state(&config, &b), [UP, UP]);
    assert_eq!(b.counters().limited_parked, 2);
}

/// The order of the members is made when the request comes; a member that leaves service after that
/// is passed over when its turn comes.
#[test]
fn a_member_that_left_meanwhile_is_passed_over() {
    let config = grouped(group(Distribution::RoundRobin, 3));
    let mut b = Bench::new(&config);
    let first = one(call(&mut b));
    assert_eq!(who(&first), "g1");
    config.groups[0].members[1].health.set_drained(true);
    let out = answer(&mut b, &first, "503 Service Unavailable");
    assert_eq!(brief(&out), ["g1 ACK", "g3 INVITE"]);
    config.groups[0].members[0].health.set_drained(true);
    assert_eq!(
        brief(&answer(&mut b, &out[1], "503 Service Unavailable")),
        ["g3 ACK", "caller 500"]
    );
    end(&mut b);
}

/// Members by name: each is looked up when its turn comes.
#[test]
fn a_member_whose_name_is_not_known_is_left() {
    let mut g = group(Distribution::RoundRobin, 2);
    g.members[0] = member("sip:gw.example.net:5060");
    let config = grouped(g);
    let mut b = Bench::new(&config);
    assert!(call(&mut b).is_empty());
    let query = b.query();
    let out = b.answer(&query, QueryResult::Resolved(Err(Unavailable)));
    assert_eq!(brief(&out), ["g2 INVITE"]);
    assert_eq!(config.groups[0].members[0].health.failures(), 1);
    assert_eq!(brief(&answer(&mut b, &out[0], "200 OK")), ["caller 200"]);
    end(&mut b);
}

fn probed(every_ms: u32, members: u8) -> Group {
    let mut g = group(Distribution::RoundRobin, members);
    g.probe_ms = Some(every_ms);
    g.marks.hold_ms = None;
    g
}

/// The next probe, within `ms`.
#[track_caller]
fn next_probe(b: &mut Bench, ms: u64) -> Sent {
    for _ in 0..=ms / 10 {
        let out = b.pass(10);
        if let Some(probe) = out.into_iter().find(|s| s.first_line().starts_with("OPTIONS")) {
            return probe;
        }
    }
    panic!("no probe within {ms} ms");
}

fn ok(b: &mut Bench, probe: &Sent) {
    assert!(answer(b, probe, "200 OK").is_empty());
}

#[test]
fn members_are_probed_in_turn_and_their_answers_judged() {
    let config = grouped(probed(10_000, 2));
    let mut b = Bench::new(&config);
    let probe = one(b.pass(10));
    assert_eq!(probe.first_line(), "OPTIONS sip:198.51.100.1 SIP/2.0");
    assert_eq!(probe.header("Max-Forwards"), "70");
    assert!(probe.header("From").contains(";tag=") && !probe.header("To").contains("tag="));
    assert_eq!(probe.header("CSeq"), "1 OPTIONS");
    // Any response shows that the member is there.
    assert!(answer(&mut b, &probe, "100 Trying").is_empty());
    assert!(answer(&mut b, &probe, "405 Method Not Allowed").is_empty());
    assert_eq!(b.counters().probe_responses, 1);
    // But for 503; and silence.
    let two = next_probe(&mut b, 7_000);
    assert_eq!(who(&two), "g2");
    assert!(answer(&mut b, &two, "503 Service Unavailable").is_empty());
    let again = next_probe(&mut b, 7_000);
    assert_eq!(who(&again), "g1");
    assert_ne!(again.header("Call-ID"), probe.header("Call-ID"));
    assert_ne!(again.header("Via"), probe.header("Via"));
    ok(&mut b, &again);
    let two = next_probe(&mut b, 7_000);
    let out = b.pass(3_000);
    assert_eq!(brief(&out), ["g2 OPTIONS", "g2 OPTIONS"], "until reply_timeout");
    assert_eq!(state(&config, &b), [UP, FAILED]);
    assert_eq!(events(&mut b), [failed(2)]);
    assert_eq!((b.counters().probes_failed, b.counters().probe_responses), (2, 2));
    // A late response to a probe that was given up is a stray one.
    assert!(answer(&mut b, &two, "200 OK").is_empty());
    assert_eq!(state(&config, &b), [UP, FAILED]);
    // No call goes there until it has responded twice.
    for n in 1..3 {
        let sent = one(call_number(&mut b, n));
        assert_eq!(who(&sent), "g1");
        answer(&mut b, &sent, "486 Busy Here");
    }
    for good in 1..=2 {
        for n in ["g1", "g2"] {
            let probe = next_probe(&mut b, 7_000);
            assert_eq!(who(&probe), n);
            ok(&mut b, &probe);
        }
        assert_eq!(state(&config, &b)[1], if good < 2 { FAILED } else { UP });
    }
    assert_eq!(events(&mut b), [recovered(2)]);
}

#[test]
fn an_unreachable_member_fails_its_probe_at_once() {
    let config = grouped(probed(10_000, 1));
    let mut b = Bench::new(&config);
    for _ in 0..2 {
        let probe = next_probe(&mut b, 10_100);
        assert!(b.undelivered(&probe).is_empty());
    }
    assert_eq!(state(&config, &b), [FAILED]);
    // A call that comes now: 500. Calls bring no member back, probes do.
    let out = b.udp(CALLER, &invite());
    assert_eq!(brief(&out), ["caller 500"]);
    for _ in 0..2 {
        let probe = next_probe(&mut b, 10_100);
        ok(&mut b, &probe);
    }
    assert_eq!(first(&mut b, 4), "g1");
}

#[test]
fn names_of_members_are_looked_up_for_probes() {
    let mut g = probed(10_000, 1);
    g.members = vec![member("sip:gw.example.net:5060")];
    let config = grouped(g);
    let mut b = Bench::new(&config);
    assert!(b.pass(10).is_empty());
    let (asked, out) = b.serve(&[("gw.example.net A", vec![address("198.51.100.7")])]);
    assert!(asked == ["gw.example.net A"] && out.is_empty());
    let probe = one(b.pass(300));
    assert_eq!(brief(std::slice::from_ref(&probe)), ["g7 OPTIONS"]);
    ok(&mut b, &probe);
    // A look-up without a result counts as a failure.
    b.pass(61_000);
    let failures = config.groups[0].members[0].health.failures();
    let mut b = Bench::new(&config);
    b.pass(10);
    let query = b.query();
    assert!(
        b.answer(&query, QueryResult::Resolved(Err(Unavailable)))
            .is_empty()
    );
    assert!(b.pass(9_000).is_empty());
    assert_eq!(config.groups[0].members[0].health.failures(), failures + 1);
}

#[test]
fn a_new_configuration_ends_old_probes_and_begins_its_own() {
    let old = grouped(probed(10_000, 2));
    let mut b = Bench::new(&old);
    let open = one(b.pass(10));
    let mut g = probed(4_000, 1);
    g.members = vec![member("sip:198.51.100.9")];
    let new = grouped(g);
    b.endpoint.reconfigure(&new);
    let mut seen = vec![];
    for _ in 0..700 {
        for probe in b.pass(10) {
            // What was open is repeated until it is given up, and says nothing any more.
            if who(&probe) == "g9" {
                ok(&mut b, &probe);
                seen.push(probe.header("Call-ID").to_string());
            } else {
                assert_eq!(probe.text, open.text);
            }
        }
    }
    assert_eq!(seen.len(), 2);
    assert_eq!(old.groups[0].members[1].health.failures(), 0);
    // None at all any more.
    b.endpoint.reconfigure(&location());
    b.pass(60_000);
    b.assert_idle();
}

#[test]
fn only_the_first_worker_probes_and_all_see_what_it_learns() {
    let mut config = grouped(probed(10_000, 1));
    config.workers = 2;
    config.groups[0].marks.fail_after = 1;
    let shared = Arc::new(Shared::default());
    let mut workers = [
        Bench::worker(&config, 0, shared.clone()),
        Bench::worker(&config, 1, shared),
    ];
    assert!(workers[1].pass(100_000).is_empty());
    let probe = one(workers[0].pass(10));
    // The response comes by another worker's socket, and is handed over.
    let response = response_of(&probe, "503 Service Unavailable", "");
    let handled = workers[1].handle(probe.to, &response);
    assert_eq!(
        handled,
        sip_core::endpoint::Handled::HandOver(sip_core::id::WorkerId(0))
    );
    assert!(workers[0].receive(probe.to, &response).is_empty());
    for n in 0..20 {
        let invite = of_call("INVITE", n);
        for worker in &mut workers {
            if worker.handle(udp_flow(CALLER), &invite) == sip_core::endpoint::Handled::Here {
                assert_eq!(brief(&worker.drain()), ["caller 500"]);
            }
        }
    }
}

#[test]
fn the_limits_hold_for_members() {
    let mut config = grouped(group(Distribution::RoundRobin, 4));
    config.limits.branches = 2;
    let mut b = Bench::new(&config);
    let sent = call(&mut b);
    let out = answer(&mut b, &sent[0], "503 Service Unavailable");
    assert_eq!(brief(&out), ["g1 ACK", "g2 INVITE"]);
    let out = answer(&mut b, &out[1], "503 Service Unavailable");
    assert_eq!(brief(&out), ["g2 ACK", "caller 500"]);
    ack(&mut b, &out[1]);
    end(&mut b);
}

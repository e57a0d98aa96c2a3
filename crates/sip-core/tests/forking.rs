//! Requests to users with several contacts (RFC 3261 §16.5 to §16.8, RFC 5393, RFC 5626 §5.3).
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use crate::common;
use crate::forks;

use common::*;
use forks::*;
use sip_core::dispatcher::Distribution;
use sip_core::limits::Limits;
use sip_core::location::Binding;
use sip_core::query::{QueryResult, Unavailable};

/// §16.6: targets of equal q at once; §16.7 step 5: all provisional responses but 100 go on, and a
/// 2xx at once; step 10: the others are cancelled.
#[test]
fn equal_ones_ring_together_and_the_first_2xx_stops_the_rest() {
    let mut b = registered(&location(), &[phone(1), phone(2), phone(3)]);
    let sent = call(&mut b);
    assert_eq!(brief(&sent), ["1 INVITE", "2 INVITE", "3 INVITE"]);
    for (n, s) in (1..).zip(&sent) {
        assert_eq!(s.first_line(), format!("INVITE sip:bob@192.0.2.3{n} SIP/2.0"));
        assert_eq!(s.headers("Record-Route").len(), 1);
    }
    let branch = |s: &Sent| s.header("Via").to_string();
    assert!(branch(&sent[0]) != branch(&sent[1]) && branch(&sent[1]) != branch(&sent[2]));
    assert!(answer(&mut b, &sent[2], "100 Trying").is_empty());
    for n in [0, 1] {
        let out = one(answer(&mut b, &sent[n], "180 Ringing"));
        assert_eq!(brief(std::slice::from_ref(&out)), ["caller 180"]);
        assert!(out.header("To").ends_with(&format!(";tag=t{}", n + 1)));
    }
    // The same INVITE again gets the last of them, and goes nowhere.
    assert_eq!(brief(&b.udp(CALLER, &invite())), ["caller 180"]);
    let out = answer(&mut b, &sent[1], "200 OK");
    assert_eq!(sorted(&out), ["1 CANCEL", "3 CANCEL", "caller 200"]);
    for n in [0, 2] {
        let cancel = to(&out, &(n + 1).to_string());
        assert_eq!(cancel.header("Via"), sent[n].header("Via"));
        assert_eq!(
            cancel.first_line(),
            sent[n].first_line().replace("INVITE", "CANCEL")
        );
        assert!(answer(&mut b, &cancel, "200 OK").is_empty());
        let out = answer(&mut b, &sent[n], "487 Request Terminated");
        assert_eq!(brief(&out), [format!("{} ACK", n + 1)]);
    }
    let out = end(&mut b);
    assert!(out.is_empty(), "{:?}", brief(&out));
    assert_eq!(b.counters().forked, 1);
}

#[test]
fn a_phone_that_rings_after_another_answered_is_cancelled_then() {
    let mut b = registered(&location(), &[phone(1), phone(2), phone(3)]);
    let sent = call(&mut b);
    assert_eq!(brief(&answer(&mut b, &sent[0], "200 OK")), ["caller 200"]);
    // §9.1: not before a provisional response; and the caller does not get that any more.
    assert_eq!(brief(&answer(&mut b, &sent[1], "180 Ringing")), ["2 CANCEL"]);
    assert!(answer(&mut b, &sent[1], "180 Ringing").is_empty());
    // The third says nothing at all: its INVITE is sent again until timer B, and no CANCEL.
    let out = end(&mut b);
    assert!(!brief(&out).contains(&"3 CANCEL".to_string()));
    assert_eq!(brief(&out).iter().filter(|s| *s == "3 INVITE").count(), 6);
}

/// §16.7 step 5: each 2xx goes on, whenever it comes.
#[test]
fn a_late_2xx_of_another_branch_goes_on() {
    let mut b = registered(&location(), &[phone(1), phone(2)]);
    let sent = call(&mut b);
    answer(&mut b, &sent[0], "180 Ringing");
    answer(&mut b, &sent[1], "180 Ringing");
    assert_eq!(
        sorted(&answer(&mut b, &sent[0], "200 OK")),
        ["2 CANCEL", "caller 200"]
    );
    let out = one(answer(&mut b, &sent[1], "200 OK"));
    assert_eq!(brief(std::slice::from_ref(&out)), ["caller 200"]);
    assert!(out.header("To").ends_with(";tag=t2"));
    // And again, as long as the callee repeats it.
    assert_eq!(brief(&answer(&mut b, &sent[1], "200 OK")), ["caller 200"]);
    end(&mut b);
}

#[test]
fn lower_ones_get_their_turn_when_better_ones_have_ended() {
    let phones = [with_q(1, 1000), with_q(2, 500), with_q(3, 500), with_q(4, 100)];
    let mut b = registered(&location(), &phones);
    let sent = call(&mut b);
    assert_eq!(brief(&sent), ["1 INVITE"]);
    let out = answer(&mut b, &sent[0], "486 Busy Here");
    assert_eq!(brief(&out), ["1 ACK", "2 INVITE", "3 INVITE"]);
    // A copy of the failure is acknowledged, and begins nothing.
    assert_eq!(brief(&answer(&mut b, &sent[0], "486 Busy Here")), ["1 ACK"]);
    assert_eq!(brief(&answer(&mut b, &out[1], "404 Not Found")), ["2 ACK"]);
    let out = answer(&mut b, &out[2], "480 Temporarily Unavailable");
    assert_eq!(brief(&out), ["3 ACK", "4 INVITE"]);
    let out = answer(&mut b, &out[1], "500 Server Internal Error");
    assert_eq!(brief(&out), ["4 ACK", "caller 486"]);
    assert!(out[1].header("To").ends_with(";tag=t1"));
    ack(&mut b, &out[1]);
    end(&mut b);
}

/// §16.8: a branch that rang all its time is cancelled, and the next gets its turn at once.
#[test]
fn a_time_out_gives_the_next_its_turn() {
    let config = location_with(|relay| relay.timeout_s = Some(10));
    let mut b = registered(&config, &[with_q(1, 1000), with_q(2, 500)]);
    let sent = call(&mut b);
    answer(&mut b, &sent[0], "180 Ringing");
    assert!(b.pass(9_900).is_empty());
    let out = b.pass(200);
    assert_eq!(sorted(&out), ["1 CANCEL", "2 INVITE"]);
    let second = to(&out, "2");
    answer(&mut b, &to(&out, "1"), "200 OK");
    assert_eq!(
        brief(&answer(&mut b, &sent[0], "487 Request Terminated")),
        ["1 ACK"]
    );
    assert_eq!(brief(&answer(&mut b, &second, "200 OK")), ["caller 200"]);
    end(&mut b);
}

#[test]
fn a_2xx_that_crosses_the_time_out_goes_on_and_stops_the_next() {
    let config = location_with(|relay| relay.timeout_s = Some(10));
    let mut b = registered(&config, &[with_q(1, 1000), with_q(2, 500)]);
    let sent = call(&mut b);
    answer(&mut b, &sent[0], "180 Ringing");
    let out = b.pass(10_100);
    let second = to(&out, "2");
    answer(&mut b, &second, "180 Ringing");
    let out = answer(&mut b, &sent[0], "200 OK");
    assert_eq!(sorted(&out), ["2 CANCEL", "caller 200"]);
    end(&mut b);
}

/// Nothing came at all: 480, and a 2xx that comes after it still goes on (§16.7 step 5).
#[test]
fn a_2xx_after_our_480_goes_on() {
    let config = location_with(|relay| relay.timeout_s = Some(10));
    for caller in [udp_flow(CALLER), tcp_flow("192.0.2.10:40000", 3)] {
        let mut b = registered(&config, &[with_q(1, 1000), with_q(2, 500)]);
        let text = if caller.conn.is_some() {
            invite().replace("SIP/2.0/UDP", "SIP/2.0/TCP")
        } else {
            invite()
        };
        let sent = b.receive(caller, &text);
        let out = b.pass(10_100);
        let second = to(&out, "2");
        let out = b.pass(10_100);
        let told = out
            .iter()
            .find(|s| s.first_line().starts_with("SIP/2.0"))
            .unwrap();
        assert_eq!(told.first_line(), "SIP/2.0 480 Temporarily Unavailable");
        // A phone that rings now is cancelled.
        assert_eq!(brief(&answer(&mut b, &second, "180 Ringing")), ["2 CANCEL"]);
        let late = one(answer(&mut b, &sent[1], "200 OK"));
        assert_eq!((late.first_line(), late.to), ("SIP/2.0 200 OK", told.to));
        assert_eq!(late.to.conn, caller.conn);
        assert!(answer(&mut b, &second, "487 Request Terminated").len() == 1);
        end(&mut b);
    }
}

/// §16.7 step 6, and what is made of a 503.
#[test]
fn the_best_answer_goes_on() {
    let table = [
        ("486 Busy Here", "404 Not Found", 486),
        ("404 Not Found", "486 Busy Here", 404),
        ("404 Not Found", "302 Moved Temporarily", 302),
        ("500 Server Internal Error", "404 Not Found", 404),
        ("503 Service Unavailable", "404 Not Found", 404),
        ("503 Service Unavailable", "500 Server Internal Error", 500),
        ("503 Service Unavailable", "503 Service Unavailable", 500),
        ("503 Service Unavailable", "504 Server Time-out", 504),
        ("404 Not Found", "401 Unauthorized", 401),
        ("486 Busy Here", "407 Proxy Authentication Required", 407),
        ("404 Not Found", "415 Unsupported Media Type", 415),
        ("404 Not Found", "420 Bad Extension", 420),
        ("404 Not Found", "484 Address Incomplete", 484),
        ("408 Request Timeout", "404 Not Found", 404),
        ("480 Temporarily Unavailable", "487 Request Terminated", 480),
        ("302 Moved Temporarily", "603 Decline", 603),
        ("401 Unauthorized", "600 Busy Everywhere", 600),
    ];
    for (first, second, best) in table {
        for (first, second) in [(first, second), (second, first)] {
            // Of equals the first stays.
            let best = match (first, second) {
                ("486 Busy Here", "404 Not Found") => 486,
                ("404 Not Found", "486 Busy Here") => 404,
                _ => best,
            };
            let mut b = registered(&location(), &[phone(1), phone(2)]);
            let sent = call(&mut b);
            assert_eq!(sorted(&answer(&mut b, &sent[0], first)), ["1 ACK"], "{first}");
            let out = answer(&mut b, &sent[1], second);
            assert_eq!(brief(&out), ["2 ACK".to_string(), format!("caller {best}")]);
            assert_eq!(out[1].headers("Via").len(), 1);
            ack(&mut b, &out[1]);
            end(&mut b);
        }
    }
}

/// One phone does not respond, another is busy.
#[test]
fn a_time_out_is_worse_than_any_answer() {
    let mut b = registered(&location(), &[phone(1), phone(2)]);
    let sent = call(&mut b);
    answer(&mut b, &sent[0], "480 Temporarily Unavailable");
    let out = b.pass(32_100);
    assert_eq!(brief(&out[out.len() - 1..]), ["caller 480"]);
    ack(&mut b, &out[out.len() - 1]);
    end(&mut b);
}

/// §16.7 step 5: "If a 6xx response is received, it is not immediately forwarded, but ... cancel".
#[test]
fn a_6xx_ends_all_once_all_have_ended() {
    let phones = [phone(1), phone(2), phone(3), with_q(4, 100)];
    let mut b = registered(&location(), &phones);
    let sent = call(&mut b);
    answer(&mut b, &sent[0], "180 Ringing");
    let out = answer(&mut b, &sent[1], "603 Decline");
    assert_eq!(sorted(&out), ["1 CANCEL", "2 ACK"]);
    assert_eq!(
        brief(&answer(&mut b, &sent[2], "183 Session Progress")),
        ["3 CANCEL", "caller 183"]
    );
    assert_eq!(
        brief(&answer(&mut b, &sent[0], "487 Request Terminated")),
        ["1 ACK"]
    );
    let out = answer(&mut b, &sent[2], "487 Request Terminated");
    assert_eq!(brief(&out), ["3 ACK", "caller 603"]);
    ack(&mut b, &out[1]);
    end(&mut b);
}

#[test]
fn a_2xx_beats_a_6xx_that_came_before() {
    let mut b = registered(&location(), &[phone(1), phone(2)]);
    let sent = call(&mut b);
    answer(&mut b, &sent[0], "180 Ringing");
    assert_eq!(
        sorted(&answer(&mut b, &sent[1], "600 Busy Everywhere")),
        ["1 CANCEL", "2 ACK"]
    );
    assert_eq!(brief(&answer(&mut b, &sent[0], "200 OK")), ["caller 200"]);
    end(&mut b);
}

/// §16.7 step 7: all challenges, each once, in the order in which they came.
#[test]
fn challenges_of_all_branches_go_on_together() {
    let mut b = registered(&location(), &[phone(1), phone(2), phone(3), phone(4)]);
    let sent = call(&mut b);
    let www = |realm: &str| format!("WWW-Authenticate: Digest realm=\"{realm}\", nonce=\"n\"\n");
    let proxy = |realm: &str| format!("Proxy-Authenticate: Digest realm=\"{realm}\", nonce=\"n\"\n");
    answer_with(&mut b, &sent[0], "401 Unauthorized", &(www("a") + &www("b")));
    let both = proxy("c") + &www("d");
    answer_with(&mut b, &sent[1], "407 Proxy Authentication Required", &both);
    answer(&mut b, &sent[2], "404 Not Found");
    let out = answer_with(&mut b, &sent[3], "407 Proxy Authentication Required", &proxy("e"));
    assert_eq!(brief(&out), ["4 ACK", "caller 401"]);
    let realms = |name: &str| {
        out[1]
            .headers(name)
            .iter()
            .map(|v| v.split('"').nth(1).unwrap().to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(realms("WWW-Authenticate"), ["a", "b", "d"]);
    assert_eq!(realms("Proxy-Authenticate"), ["c", "e"]);
    ack(&mut b, &out[1]);
    end(&mut b);
    // Of one challenger nothing is moved.
    let mut b = registered(&location(), &[phone(1), phone(2)]);
    let sent = call(&mut b);
    answer(&mut b, &sent[0], "404 Not Found");
    let out = answer_with(&mut b, &sent[1], "401 Unauthorized", &www("a"));
    let expected = response_of(&sent[1], "401 Unauthorized", &www("a"));
    let rest = |t: &str| t.split_once("\r\nRecord-Route").unwrap().1.to_string();
    assert_eq!(rest(&unmarked(&out[1].text)), rest(&unmarked(&expected)));
}

#[test]
fn a_message_forks_and_the_first_2xx_wins() {
    let mut b = registered(&location(), &[phone(1), phone(2), with_q(3, 500)]);
    let message = request("MESSAGE", BOB, "a1", "");
    let sent = b.udp(CALLER, &message);
    assert_eq!(brief(&sent), ["1 MESSAGE", "2 MESSAGE"]);
    assert!(answer(&mut b, &sent[0], "100 Trying").is_empty());
    assert_eq!(brief(&answer(&mut b, &sent[0], "200 OK")), ["caller 200"]);
    assert!(answer(&mut b, &sent[1], "200 OK").is_empty());
    assert!(b.pass(3000).is_empty(), "none is cancelled, none sent again");
    end(&mut b);
    // All refuse: the next ones, then the best.
    let mut b = registered(&location(), &[phone(1), phone(2), with_q(3, 500)]);
    let sent = b.udp(CALLER, &message);
    assert!(answer(&mut b, &sent[0], "404 Not Found").is_empty());
    let out = answer(&mut b, &sent[1], "480 Temporarily Unavailable");
    assert_eq!(brief(&out), ["3 MESSAGE"]);
    assert_eq!(
        brief(&answer(&mut b, &out[0], "405 Method Not Allowed")),
        ["caller 404"]
    );
    end(&mut b);
}

/// RFC 4320 §4.2: no 408, ours or another's, ever goes to a request that is no INVITE.
#[test]
fn an_unanswered_message_ends_in_silence() {
    let mut b = registered(&location(), &[phone(1), phone(2)]);
    let sent = b.udp(CALLER, &request("MESSAGE", BOB, "a1", ""));
    answer(&mut b, &sent[0], "408 Request Timeout");
    let out = end(&mut b);
    let told: Vec<String> = brief(&out)
        .into_iter()
        .filter(|s| s.starts_with("caller"))
        .collect();
    assert_eq!(told, ["caller 100"], "RFC 4320 §4.1");
}

/// RFC 5393 §4.2: the same request once more.
#[test]
fn a_forked_request_that_comes_back_unchanged_is_a_loop() {
    let mut b = registered(
        &location(),
        &[with_contact(1, "sip:BOB@example.com;x=1"), phone(2)],
    );
    register(&b, "BOB@example.com", &[phone(3), phone(4)]);
    // Through another proxy, which brings back what it was: the Request-URI is bob again.
    let sent = call(&mut b);
    let back = sent[0]
        .text
        .replace("sip:BOB@example.com;x=1 SIP", "sip:bob@example.com SIP");
    let via = "Via: SIP/2.0/UDP 192.0.2.99:5060;branch=z9hG4bKelse\r\nVia: ";
    let back = back.replacen("Via: ", via, 1);
    let out = one(b.udp("192.0.2.99:5060", &back));
    assert_eq!(lines(&[out]), ["192.0.2.99:5060 SIP/2.0 482 Loop Detected"]);
    assert_eq!(b.counters().loops, 1);
    // A spiral: the Request-URI is another. It is forked again.
    let back = sent[0].text.replacen("Via: ", via, 1);
    let out = b.udp("192.0.2.99:5060", &back);
    assert_eq!(brief(&out[1..]), ["3 INVITE", "4 INVITE"]);
    assert_eq!(out[1].header("Max-Breadth"), "15");
}

/// RFC 5393 §4.2: one after the other is a fork as well. Without the mark it would be 510.
#[test]
fn a_group_that_leads_back_here_is_a_loop() {
    let mut g = group(Distribution::RoundRobin, 2);
    g.failover_on = vec![482, 483, 500, 503];
    let mut b = Bench::new(&grouped(g));
    let invite = invite().replace("Max-Forwards: 70", "Max-Forwards: 8");
    let mut under_way: std::collections::VecDeque<Sent> = b.udp(CALLER, &invite).into();
    let (mut invites, mut told) = (0, vec![]);
    while let Some(sent) = under_way.pop_front() {
        if sent.address() == CALLER {
            told.push(who(&sent) + &sent.first_line()[7..11]);
            continue;
        }
        invites += usize::from(sent.first_line().starts_with("INVITE"));
        assert!(invites < 100);
        // Whatever goes to a member comes back from there.
        under_way.extend(b.udp(&sent.address(), &sent.text));
    }
    assert_eq!(
        (invites, told),
        (2, vec!["caller 100".into(), "caller 482".to_string()])
    );
    assert_eq!(b.counters().loops, 2);
}

#[test]
fn our_own_output_fed_back_to_us_ends() {
    let mut b = registered(&location(), &[with_contact(1, BOB), phone(2)]);
    let sent = call(&mut b);
    let out = one(b.udp(PROXY, &sent[0].text));
    assert_eq!(
        lines(std::slice::from_ref(&out)),
        [format!("{PROXY} SIP/2.0 482 Loop Detected")]
    );
    assert_eq!(brief(&b.udp("192.0.2.31:5060", &out.text)), ["1 ACK"]);
    let out = answer(&mut b, &sent[1], "486 Busy Here");
    assert_eq!(brief(&out), ["2 ACK", "caller 482"]);
    ack(&mut b, &out[1]);
    end(&mut b);
}

/// RFC 5393 §5.3.3: what came is shared, and bounds what goes at once.
#[test]
fn max_breadth_is_shared_out() {
    let breadths = |received: &str| {
        let mut b = registered(&location(), &[phone(1), phone(2), phone(3)]);
        let sent = call_with(&mut b, &request("INVITE", BOB, "a1", received));
        sent.iter()
            .map(|s| s.headers("Max-Breadth").join(","))
            .collect::<Vec<_>>()
    };
    assert_eq!(breadths(""), ["20", "20", "20"], "60 is assumed");
    assert_eq!(breadths("Max-Breadth: 5\n"), ["2", "2", "1"]);
    assert_eq!(breadths("Max-Breadth: 3\n"), ["1", "1", "1"]);
    // §5.3.3: more than our most is made that.
    assert_eq!(breadths("Max-Breadth: 4294967295\n"), ["20", "20", "20"]);
    // Fewer than contacts: the rest wait until those have ended.
    let mut b = registered(&location(), &[phone(1), phone(2), phone(3)]);
    let sent = call_with(&mut b, &request("INVITE", BOB, "a1", "Max-Breadth: 2\n"));
    assert_eq!(brief(&sent), ["1 INVITE", "2 INVITE"]);
    assert_eq!(brief(&answer(&mut b, &sent[0], "486 Busy Here")), ["1 ACK"]);
    let out = answer(&mut b, &sent[1], "486 Busy Here");
    assert_eq!(brief(&out), ["2 ACK", "3 INVITE"]);
    assert_eq!(out[1].header("Max-Breadth"), "2");
    // None at all: 440.
    let out = b.udp(CALLER, &request("INVITE", BOB, "a2", "Max-Breadth: 0\n"));
    assert_eq!(
        lines(&out),
        [format!("{CALLER} SIP/2.0 440 Max-Breadth Exceeded")]
    );
}

/// RFC 5626 §5.3: one flow of an instance at a time.
#[test]
fn another_flow_of_an_instance_is_tried_when_the_first_is_gone() {
    for why in ["430 Flow Failed", "408 Request Timeout", "silence", "unreachable"] {
        let phones = [outbound(1, "x", 2), outbound(2, "x", 1), phone(3)];
        let mut b = registered(&location(), &phones);
        let sent = call(&mut b);
        assert_eq!(brief(&sent), ["1 INVITE", "3 INVITE"]);
        assert_eq!(sent[0].header("Max-Breadth"), "30");
        answer(&mut b, &sent[1], "180 Ringing");
        let out = match why {
            "silence" => b.pass(32_100),
            "unreachable" => b.undelivered(&sent[0]),
            status => answer(&mut b, &sent[0], status),
        };
        let spare = to(&out, "2");
        assert_eq!(spare.first_line(), "INVITE sip:bob@192.0.2.32 SIP/2.0", "{why}");
        assert_eq!(spare.header("Max-Breadth"), "30");
        let out = answer(&mut b, &spare, "200 OK");
        assert_eq!(sorted(&out), ["3 CANCEL", "caller 200"]);
        end(&mut b);
    }
}

/// RFC 5626 §5.3.1: after any other final response the instance gets no second request.
#[test]
fn an_instance_that_answered_is_not_asked_again() {
    for status in [
        "486 Busy Here",
        "503 Service Unavailable",
        "404 Not Found",
        "603 Decline",
    ] {
        let mut b = registered(&location(), &[outbound(1, "x", 2), outbound(2, "x", 1)]);
        let sent = call(&mut b);
        assert_eq!(brief(&sent), ["1 INVITE"]);
        let out = answer(&mut b, &sent[0], status);
        assert_eq!(brief(&out)[0], "1 ACK");
        assert!(
            brief(&out)[1].starts_with("caller "),
            "{status}: {:?}",
            brief(&out)
        );
        ack(&mut b, &out[1]);
        end(&mut b);
    }
}

#[test]
fn all_flows_of_an_instance_are_tried_one_after_the_other() {
    let phones = [outbound(1, "x", 3), outbound(2, "x", 2), outbound(3, "x", 1)];
    let mut b = registered(&location(), &phones);
    let mut sent = call(&mut b).remove(0);
    for next in ["2", "3"] {
        let out = b.undelivered(&sent);
        assert_eq!(brief(&out), [format!("{next} INVITE")]);
        sent = out[0].clone();
    }
    let out = answer(&mut b, &sent, "430 Flow Failed");
    assert_eq!(brief(&out), ["3 ACK", "caller 430"]);
    ack(&mut b, &out[1]);
    end(&mut b);
}

/// RFC 3327 §5.3.
#[test]
fn each_contact_has_its_own_path() {
    let through = |n: u8, path: &str| Binding {
        path: path.as_bytes().into(),
        ..phone(n)
    };
    let phones = [
        through(1, "<sip:192.0.2.38;lr>,<sip:edge.example.net;lr>"),
        through(2, "<sip:192.0.2.39:5060;lr>"),
        phone(3),
    ];
    let mut b = registered(&location(), &phones);
    let sent = call(&mut b);
    assert_eq!(brief(&sent), ["8 INVITE", "9 INVITE", "3 INVITE"]);
    let routes: Vec<&str> = sent.iter().map(|s| s.header("Route")).collect();
    assert_eq!(
        routes,
        [
            "<sip:192.0.2.38;lr>,<sip:edge.example.net;lr>",
            "<sip:192.0.2.39:5060;lr>",
            ""
        ]
    );
    assert_eq!(sent[0].first_line(), "INVITE sip:bob@192.0.2.31 SIP/2.0");
    // The CANCEL takes the same way.
    answer(&mut b, &sent[0], "180 Ringing");
    let out = b.udp(CALLER, &cancel());
    let cancel = to(&out, "8");
    assert_eq!(cancel.header("Route"), routes[0]);
}

/// A connection that is gone: its contact's address, by name.
#[test]
fn a_contact_whose_connection_is_lost_is_called_at_its_address() {
    let phones = |one: bool| {
        let tcp = Binding {
            received: tcp_flow("192.0.2.31:40000", 5),
            ..with_contact(1, "sip:bob@phone.example.net:5060;transport=tcp")
        };
        if one { vec![tcp] } else { vec![tcp, phone(2)] }
    };
    for one in [true, false] {
        let mut b = registered(&location(), &phones(one));
        let sent = call(&mut b);
        assert_eq!(sent[0].to, tcp_flow("192.0.2.31:40000", 5));
        let out = b.undelivered(&sent[0]);
        assert!(out.is_empty());
        assert_eq!(b.endpoint.gauges().parked_requests, 1);
        let (asked, out) = b.serve(&[("phone.example.net A", vec![address("192.0.2.37")])]);
        assert_eq!(asked, ["phone.example.net A"]);
        assert_eq!(brief(&out), ["7 INVITE"]);
        assert_eq!(out[0].to.conn, None);
        assert_eq!(
            out[0].first_line(),
            "INVITE sip:bob@phone.example.net:5060;transport=tcp SIP/2.0"
        );
        let out = answer(&mut b, &out[0], "200 OK");
        assert_eq!(brief(&out), ["caller 200"]);
        end(&mut b);
    }
}

fn named(n: u8) -> Binding {
    Binding {
        path: format!("<sip:edge{n}.example.net:5060;lr>").into_bytes().into(),
        ..phone(n)
    }
}

/// Results in any order, and one that never comes.
#[test]
fn targets_that_wait_for_names_begin_when_theirs_is_known() {
    let phones = [named(1), named(2), named(3), phone(4), with_q(5, 100)];
    let mut b = registered(&location(), &phones);
    let sent = call(&mut b);
    assert_eq!(brief(&sent), ["4 INVITE"]);
    assert_eq!(b.endpoint.gauges().parked_requests, 3);
    let queries: Vec<_> = std::iter::from_fn(|| b.endpoint.poll_query()).collect();
    let names: Vec<String> = queries.iter().map(Bench::resolve_kind).collect();
    assert_eq!(
        names,
        [
            "edge1.example.net A",
            "edge2.example.net A",
            "edge3.example.net A"
        ]
    );
    let found = |ip: &str| {
        QueryResult::Resolved(Ok(sip_core::query::Records {
            ttl_s: 60,
            values: vec![address(ip)],
        }))
    };
    let third = b.answer(&queries[2], found("192.0.2.39"));
    assert_eq!(brief(&third), ["9 INVITE"]);
    assert!(
        b.answer(&queries[0], QueryResult::Resolved(Err(Unavailable)))
            .is_empty()
    );
    answer(&mut b, &sent[0], "404 Not Found");
    answer(&mut b, &third[0], "404 Not Found");
    // The second never has a result: its time is over, and those of lower q get their turn.
    let out = b.pass(5_100);
    assert_eq!(brief(&out), ["5 INVITE"]);
    let out = answer(&mut b, &out[0], "410 Gone");
    assert_eq!(brief(&out), ["5 ACK", "caller 404"]);
    ack(&mut b, &out[1]);
    end(&mut b);
}

#[test]
fn two_targets_behind_one_name_wait_together() {
    let mut b = registered(&location(), &[named(1), named(1)]);
    assert!(call(&mut b).is_empty());
    let (asked, out) = b.serve(&[("edge1.example.net A", vec![address("192.0.2.39")])]);
    assert_eq!(asked.len(), 1);
    assert_eq!(brief(&out), ["9 INVITE", "9 INVITE"]);
    assert_ne!(out[0].header("Via"), out[1].header("Via"));
}

/// A 2xx ends the wait for names of others.
#[test]
fn what_waits_for_a_name_is_given_up_with_the_first_2xx() {
    let mut b = registered(&location(), &[named(1), phone(2)]);
    let sent = call(&mut b);
    assert_eq!(brief(&answer(&mut b, &sent[0], "200 OK")), ["caller 200"]);
    let (_, out) = b.serve(&[("edge1.example.net A", vec![address("192.0.2.39")])]);
    assert!(out.is_empty());
    end(&mut b);
}

/// A time-out of one does not end what waits for the other.
#[test]
fn a_time_out_leaves_what_waits_for_a_name_alone() {
    let config = location_with(|relay| relay.timeout_s = Some(2));
    let mut b = registered(&config, &[phone(1), named(2)]);
    let sent = call(&mut b);
    answer(&mut b, &sent[0], "180 Ringing");
    assert_eq!(brief(&b.pass(2_100)), ["1 CANCEL"]);
    answer(&mut b, &sent[0], "487 Request Terminated");
    let (_, out) = b.serve(&[("edge2.example.net A", vec![address("192.0.2.39")])]);
    assert_eq!(brief(&out), ["9 INVITE"]);
    assert_eq!(brief(&answer(&mut b, &out[0], "200 OK")), ["caller 200"]);
    end(&mut b);
}

#[test]
fn timer_c_runs_for_each_branch() {
    let mut b = registered(&location(), &[phone(1), phone(2)]);
    let sent = call(&mut b);
    answer(&mut b, &sent[0], "180 Ringing");
    answer(&mut b, &sent[1], "180 Ringing");
    b.pass(100_000);
    // §16.7 step 2: this one's starts anew.
    answer(&mut b, &sent[1], "180 Ringing");
    let out = b.pass(82_000);
    assert_eq!(brief(&out)[0], "1 CANCEL");
    answer(&mut b, &to(&out, "1"), "200 OK");
    assert_eq!(
        brief(&answer(&mut b, &sent[0], "487 Request Terminated")),
        ["1 ACK"]
    );
    assert_eq!(brief(&answer(&mut b, &sent[1], "200 OK")), ["caller 200"]);
    end(&mut b);
}

/// At the bound no more is tried, and the caller gets the best response so far.
#[test]
fn the_limit_of_branches_holds() {
    let mut config = location();
    config.limits = Limits {
        branches: 2,
        ..Limits::default()
    };
    let mut b = registered(&config, &[phone(1), phone(2), phone(3), with_q(4, 100)]);
    let sent = call(&mut b);
    assert_eq!(brief(&sent), ["1 INVITE", "2 INVITE"]);
    assert_eq!(b.counters().limited_transactions, 1);
    answer(&mut b, &sent[0], "486 Busy Here");
    let out = answer(&mut b, &sent[1], "486 Busy Here");
    assert_eq!(brief(&out), ["2 ACK", "caller 486"]);
    ack(&mut b, &out[1]);
    end(&mut b);
}

#[test]
fn the_limit_of_transactions_holds_for_branches() {
    let mut config = location();
    config.limits.held_transactions = 2;
    let mut b = registered(&config, &[phone(1), phone(2)]);
    let sent = call(&mut b);
    assert_eq!(brief(&sent), ["1 INVITE"]);
    let out = answer(&mut b, &sent[0], "200 OK");
    assert_eq!(brief(&out), ["caller 200"]);
    end(&mut b);
    // None at all: 503 without state, or 500 where the first branch finds no room.
    config.limits.held_transactions = 1;
    let mut b = registered(&config, &[phone(1), phone(2)]);
    let out = call(&mut b);
    assert_eq!(brief(&out), ["caller 500"]);
    config.limits.held_transactions = 0;
    let mut b = registered(&config, &[phone(1), phone(2)]);
    assert_eq!(brief(&b.udp(CALLER, &invite())), ["caller 503"]);
    b.assert_idle();
}

/// RFC 3263 §4.3: the next address of the same contact, whatever has registered meanwhile.
#[test]
fn the_next_address_is_one_of_the_same_contact() {
    let two = [(
        "edge1.example.net A",
        vec![address("192.0.2.38"), address("192.0.2.39")],
    )];
    let mut b = registered(&location(), &[named(1)]);
    assert!(call(&mut b).is_empty());
    let (_, sent) = b.serve(&two);
    assert_eq!(brief(&sent), ["8 INVITE"]);
    for now in [vec![], vec![phone(2)], vec![phone(2), phone(3)]] {
        let mut b = registered(&location(), &[named(1)]);
        call(&mut b);
        let (_, sent) = b.serve(&two);
        register(&b, "bob@example.com", &now);
        let out = b.undelivered(&sent[0]);
        assert_eq!(brief(&out), ["9 INVITE"]);
        assert_eq!(out[0].first_line(), "INVITE sip:bob@192.0.2.31 SIP/2.0");
        assert_eq!(out[0].headers("Route"), ["<sip:edge1.example.net:5060;lr>"]);
        assert_eq!(brief(&answer(&mut b, &out[0], "200 OK")), ["caller 200"]);
        end(&mut b);
    }
}

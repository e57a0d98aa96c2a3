//! Hostile callees: responses as large as a message may be, and contacts. What is kept of them is
//! within the bytes that transactions may hold, and an eighth more. It is kept to be sent again, or
//! until other callees have responded.

use counting_allocator::held;
use sip_core::config::{Action, Config};
use sip_core::location::Binding;
use sip_core::transport::Transport;

use crate::common::{Bench, CALLER, Sent, address, all_transports, config, over, relay, request, response};
use crate::forks::{BOB, location, phone, register, registered, who, with_q};

const BYTES: usize = 1024 * 1024;
const MOST: usize = BYTES + BYTES / 8;
const CALLS: usize = 200;
/// What a call takes beside its messages: both transactions, timers, targets, places in tables.
const OF_A_CALL: usize = 4 * 1024;

fn limited(mut config: Config) -> Config {
    config.limits.transaction_bytes = BYTES;
    config
}

#[track_caller]
fn assert_within(bench: &Bench) {
    let held = bench.endpoint.gauges().transaction_bytes;
    assert!(held <= MOST as u64, "{held}");
}

/// What this thread has come to hold is no more than that and what calls are without their messages.
#[track_caller]
fn assert_heap(before: i64, calls: usize) {
    let more = held().bytes() - before;
    assert!(more <= (MOST + calls * OF_A_CALL) as i64, "{more}");
}

fn invite(number: usize, lines: &str) -> String {
    request("INVITE", BOB, &format!("u{number}"), lines).replace("c1@", &format!("c{number}@"))
}

/// Calls: what went on of each of them.
fn calls(bench: &mut Bench) -> Vec<Vec<Sent>> {
    let call = |number: usize| {
        let mut sent = bench.udp(CALLER, &invite(number, ""));
        sent.retain(|s| s.address() != CALLER);
        sent
    };
    (0..CALLS).map(call).collect()
}

fn refusal(invite: &Sent, status: &str) -> String {
    response(invite, status, &format!("X: {}\n", "x".repeat(50_000)))
}

#[test]
fn what_is_sent_again_is_bounded() {
    // Of the response itself, and of the ACK to it, which has its To.
    for in_to in [false, true] {
        let mut bench = Bench::new(&limited(config()));
        let invites = calls(&mut bench);
        let before = held().bytes();
        for invite in invites.iter().flatten() {
            let answer = match in_to {
                true => response(invite, "486 Busy Here", "")
                    .replace("tag=t1", &format!("tag=t1{}", "x".repeat(50_000))),
                false => refusal(invite, "486 Busy Here"),
            };
            for copy in 0..2 {
                let sent = bench.udp(&invite.address(), &answer);
                let is_whole = |s: &&Sent| s.address() == CALLER && s.text.len() > 50_000;
                assert_eq!(
                    sent.iter().filter(is_whole).count(),
                    1 - copy,
                    "it goes on as it is"
                );
                let acks = sent.iter().filter(|s| s.first_line().starts_with("ACK"));
                assert_eq!(acks.count(), 1, "each copy is acknowledged");
            }
            assert_within(&bench);
        }
        assert_heap(before, CALLS);
        let again = bench.pass(600);
        let again = again.iter().filter(|s| s.text.len() > 50_000).count();
        assert!((5..30).contains(&again), "{again} have room");
        let refused = bench.counters().limited_responses as usize;
        assert!(refused >= CALLS - again, "{refused}");
        bench.pass(400_000);
        bench.assert_idle();
    }
}

/// Two phones ring, and one refuses with as much as it may. The callers get that, or what its first line says.
#[test]
fn the_best_answers_of_forks_are_bounded() {
    let mut bench = registered(&limited(location()), &[phone(1), phone(2)]);
    let invites = calls(&mut bench);
    let before = held().bytes();
    for sent in &invites {
        let [first, _] = sent.as_slice() else {
            panic!("two phones ring")
        };
        let out = bench.udp(&first.address(), &refusal(first, "486 Busy At Work"));
        assert!(out.iter().all(|s| who(s) != "caller"), "the other still rings");
        assert_within(&bench);
    }
    assert_heap(before, CALLS);
    let refused = bench.counters().limited_responses as usize;
    assert!(refused > 150, "{refused}");
    let mut whole = 0;
    for sent in &invites {
        let out = bench.udp(&sent[1].address(), &response(&sent[1], "480 Away", ""));
        let [answer] = out.iter().filter(|s| who(s) == "caller").collect::<Vec<_>>()[..] else {
            panic!("one answer")
        };
        assert_eq!(answer.first_line(), "SIP/2.0 486 Busy At Work");
        whole += usize::from(answer.text.len() > 50_000);
        assert_within(&bench);
    }
    assert_eq!(whole + refused, CALLS);
    bench.pass(400_000);
    bench.assert_idle();
}

/// A better response leaves nothing of the one before it, however large that was.
#[test]
fn better_answers_take_no_more_than_they_are() {
    let mut bench = registered(&limited(location()), &[phone(1), phone(2), phone(3)]);
    let before = held().bytes();
    for number in 0..CALLS {
        let sent = bench.udp(CALLER, &invite(number, ""));
        let rings: Vec<&Sent> = sent.iter().filter(|s| s.address() != CALLER).collect();
        let [first, second, _] = rings[..] else {
            panic!("three phones ring")
        };
        bench.udp(&first.address(), &refusal(first, "486 Busy Here"));
        let lines = "Contact: <sip:elsewhere@192.0.2.40>\n";
        bench.udp(&second.address(), &response(second, "302 Elsewhere", lines));
        assert_within(&bench);
    }
    assert_eq!(bench.counters().limited_responses, 0);
    assert_heap(before - MOST as i64 / 2, CALLS);
}

/// What there is room for is not lost for what there is none for.
#[test]
fn challenges_give_way_to_the_best_answer() {
    let mut config = limited(location());
    config.limits.transaction_bytes = 20_000;
    let mut bench = registered(&config, &[phone(1), phone(2), phone(3)]);
    let sent = bench.udp(CALLER, &invite(0, ""));
    let rings: Vec<&Sent> = sent.iter().filter(|s| s.address() != CALLER).collect();
    let contact = "Contact: <sip:elsewhere@192.0.2.40>\n";
    bench.udp(&rings[0].address(), &response(rings[0], "302 Elsewhere", contact));
    let challenge = format!("Proxy-Authenticate: Digest realm=\"{}\"\n", "r".repeat(15_000));
    let text = response(rings[1], "407 Proxy Authentication Required", &challenge);
    bench.udp(&rings[1].address(), &text);
    assert_eq!(bench.counters().limited_responses, 1);
    let out = bench.udp(&rings[2].address(), &response(rings[2], "480 Away", ""));
    let answer = out.iter().find(|s| who(s) == "caller").expect("an answer");
    assert_eq!(answer.first_line(), "SIP/2.0 302 Elsewhere");
    assert!(answer.header("Contact").contains("elsewhere"));
}

/// Contacts of lower q as long as may be, while the first rings.
#[test]
fn the_targets_of_forks_are_bounded() {
    let long = |n: u8| Binding {
        contact: format!("sip:bob@192.0.2.3{n};x={}", "x".repeat(2_000))
            .into_bytes()
            .into(),
        path: format!("<sip:192.0.2.3{n};lr;x={}>", "x".repeat(4_000))
            .into_bytes()
            .into(),
        ..with_q(n, 100)
    };
    let phones: Vec<Binding> = std::iter::once(phone(1)).chain((2..=9).map(long)).collect();
    let mut bench = registered(&limited(location()), &phones);
    let before = held().bytes();
    let (mut rings, mut refused) = (0, 0);
    for number in 0..CALLS {
        for sent in bench.udp(CALLER, &invite(number, "")) {
            rings += usize::from(sent.address() != CALLER);
            refused += usize::from(sent.first_line().starts_with("SIP/2.0 503"));
        }
        assert_within(&bench);
    }
    assert_heap(before, CALLS);
    assert!(
        (10..60).contains(&rings) && refused == CALLS - rings,
        "{rings} {refused}"
    );
    assert_eq!(bench.counters().limited_transactions, refused as u64);
    register(&bench, "bob@example.com", &[]);
    bench.pass(1_000_000);
    bench.assert_idle();
}

/// Contacts of a 3xx that are followed.
#[test]
fn contacts_that_are_followed_are_bounded() {
    let mut config = limited(config());
    let Action::Relay(to) = &mut config.routes[0].action else {
        panic!("a relay")
    };
    to.recurse = true;
    let mut bench = Bench::new(&config);
    let invites = calls(&mut bench);
    let before = held().bytes();
    for invite in invites.iter().flatten() {
        let contact = |n: usize| {
            let long = "x".repeat(1_500);
            format!("Contact: <sip:n{n}@192.0.2.40;x={long}>;q=0.{n}\n")
        };
        let lines: String = (1..=9).map(contact).collect();
        bench.udp(&invite.address(), &response(invite, "302 Elsewhere", &lines));
        assert_within(&bench);
    }
    assert_heap(before, CALLS);
    bench.pass(1_000_000);
    bench.assert_idle();
}

/// Requests that have waited for a name, and go on together when it is known.
#[test]
fn copies_of_what_has_waited_are_bounded() {
    let mut config = limited(config());
    config.routes = vec![relay("sip:gateway.example")];
    let mut bench = Bench::new(&config);
    let long = format!("X: {}\n", "x".repeat(30_000));
    for number in 0..CALLS {
        let _ = bench.udp(CALLER, &invite(number, &long));
        assert_within(&bench);
    }
    let waiting = bench.endpoint.gauges().transaction_bytes;
    let zone = [("gateway.example A", vec![address("192.0.2.20")])];
    let (mut relayed, mut refused) = (0, 0);
    for _ in 0..10 {
        let sent = bench.serve(&zone).1.into_iter().chain(bench.pass(10));
        for sent in sent {
            relayed += usize::from(sent.text.starts_with("INVITE"));
            refused += usize::from(sent.first_line().starts_with("SIP/2.0 503"));
        }
        assert_within(&bench);
    }
    assert!(
        waiting > 900_000 && relayed > 1 && refused > 1,
        "{waiting} {relayed} {refused}"
    );
    bench.pass(400_000);
    bench.assert_idle();
}

/// A connection closes on which many transactions wait. They learn it some at a time, and their
/// responses are not held together, nor their memory kept.
#[test]
fn answers_to_all_of_a_connection_do_not_become_one_batch() {
    let mut config = all_transports();
    config.routes = location().routes;
    let flows = [5, 6].map(|slot| over(Transport::Tcp, "192.0.2.31:5060", slot));
    let mut bench = Bench::new(&config);
    for (user, flow) in ["bob@example.com", "carol@example.com"].into_iter().zip(flows) {
        let phone = Binding {
            received: flow,
            contact: b"sip:bob@192.0.2.31;transport=tcp"[..].into(),
            ..phone(1)
        };
        register(&bench, user, &[phone]);
    }
    let before = held().bytes();
    for number in 0..CALLS {
        let via = format!("SIP/2.0/UDP 192.0.2.10:5060;x={}", "x".repeat(50_000));
        let mut text = invite(number, "").replace("SIP/2.0/UDP 192.0.2.10:5060", &via);
        if number < 30 {
            text = text.replace("bob@", "carol@");
        }
        let flow = flows[usize::from(number < 30)];
        let sent = bench.udp(CALLER, &text);
        assert!(sent.iter().any(|s| s.to.conn == flow.conn));
    }
    let now = bench.now();
    for flow in flows.iter().rev() {
        bench.endpoint.handle_flow_closed(now, flow.conn.unwrap());
    }
    let mut told = Vec::new();
    for _ in 0..=CALLS {
        let sent = bench.drain();
        assert!(sent.len() <= 64, "{}", sent.len());
        told.push(sent.len());
        if bench.endpoint.poll_timeout() != Some(now.instant) {
            break;
        }
        bench.endpoint.handle_timeout(now);
    }
    assert_eq!(told.iter().sum::<usize>(), CALLS, "each caller hears: {told:?}");
    bench.pass(400_000);
    bench.assert_idle();
    let _ = bench.drain();
    let more = held().bytes() - before;
    assert!(more < 3 * 1024 * 1024, "{more}");
}

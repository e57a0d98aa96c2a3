//! Answers as large as a message may be, of callees who mean the server ill: what is kept of them, to be sent
//! again or until the others have answered, is within the bytes that transactions may hold, and an eighth more.

use sip_core::config::Config;

use crate::common::{Bench, CALLER, Sent, config, request, response};
use crate::forks::{BOB, location, phone, registered, who};

const BYTES: usize = 1024 * 1024;
const CALLS: usize = 200;

fn limited(mut config: Config) -> Config {
    config.limits.transaction_bytes = BYTES;
    config
}

#[track_caller]
fn assert_within(bench: &Bench) {
    let held = bench.endpoint.gauges().transaction_bytes;
    assert!(held <= (BYTES + BYTES / 8) as u64, "{held}");
}

/// Calls: what each of them sent, answers to the caller left out.
fn calls(bench: &mut Bench) -> Vec<Vec<Sent>> {
    let call = |number: usize| {
        let text = request("INVITE", BOB, &format!("u{number}"), "").replace("c1@", &format!("c{number}@"));
        let mut sent = bench.udp(CALLER, &text);
        sent.retain(|s| s.address() != CALLER);
        sent
    };
    (0..CALLS).map(call).collect()
}

fn refusal(invite: &Sent) -> String {
    response(invite, "486 Busy Here", &format!("X: {}\n", "x".repeat(50_000)))
}

#[test]
fn what_is_sent_again_is_bounded() {
    let mut bench = Bench::new(&limited(config()));
    let invites = calls(&mut bench);
    let mut again = 0;
    for invite in invites.iter().flatten() {
        let sent = bench.udp(&invite.address(), &refusal(invite));
        let whole = sent
            .iter()
            .filter(|s| s.address() == CALLER && s.text.len() > 50_000);
        assert_eq!(whole.count(), 1, "it goes on as it is");
        assert_within(&bench);
    }
    for sent in bench.pass(600) {
        again += usize::from(sent.text.len() > 50_000);
        assert_within(&bench);
    }
    assert!((10..30).contains(&again), "{again} have room");
    assert_eq!(bench.counters().limited_answers, (CALLS - again) as u64);
    bench.pass(400_000);
    bench.assert_idle();
}

#[test]
fn the_best_answers_of_forks_are_bounded() {
    let mut bench = registered(&limited(location()), &[phone(1), phone(2)]);
    let invites = calls(&mut bench);
    for sent in &invites {
        let [first, _] = sent.as_slice() else {
            panic!("two phones ring")
        };
        let out = bench.udp(&first.address(), &refusal(first));
        assert!(out.iter().all(|s| who(s) != "caller"), "the other still rings");
        assert_within(&bench);
    }
    let refused = bench.counters().limited_answers;
    assert!(refused > 150, "{refused}");
    let mut told = [0, 0];
    for sent in &invites {
        let out = bench.udp(&sent[1].address(), &response(&sent[1], "480 Away", ""));
        let answers: Vec<&str> = out
            .iter()
            .filter(|s| who(s) == "caller")
            .map(Sent::first_line)
            .collect();
        match answers.as_slice() {
            ["SIP/2.0 486 Busy Here"] => told[0] += 1,
            ["SIP/2.0 500 Server Internal Error"] => told[1] += 1,
            other => panic!("{other:?}"),
        }
        assert_within(&bench);
    }
    assert!(told[0] >= 15 && told[1] as u64 == refused, "{told:?}");
    bench.pass(400_000);
    bench.assert_idle();
}

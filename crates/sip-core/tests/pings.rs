//! Pings of phones behind NATs: which contacts get them and when, and what a missing response leads to.

use crate::common;

use std::collections::BTreeMap;
use std::sync::Arc;

use common::*;
use sip_core::config::{Config, Durability, Nat, Network, PingKind, Pings, StateMode};
use sip_core::event::Event;
use sip_core::query::QueryKind;
use sip_core::shared::SharedState as _;
use sip_core::transport::Transport;

const SOURCE: &str = "203.0.113.8:40002";
const PINGS: Pings = Pings {
    kind: PingKind::Options,
    every_s: 10,
    lost: 3,
    remove_lost: false,
};

fn pinging(pings: Pings) -> Config {
    let mut config = config();
    config.routes.clear();
    config.state = StateMode::Transaction;
    config.pings = Some(pings);
    config
}

/// `user` registers with this Contact from there.
#[track_caller]
fn register_as(b: &mut Bench, user: &str, source: &str, contact: &str, cseq: u32) {
    let text = request(
        "REGISTER",
        "sip:example.com",
        &format!("{user}{cseq}"),
        &format!("Contact: <{contact}>\n"),
    )
    .replace(
        "SIP/2.0/UDP 192.0.2.10:5060;",
        "SIP/2.0/UDP 192.168.1.2:5060;rport;",
    )
    .replace("sip:alice@example.com", &format!("sip:{user}@example.com"))
    .replace("sip:bob@example.com", &format!("sip:{user}@example.com"))
    .replace("c1@192.0.2.10", &format!("of-{user}-at-{source}"))
    .replace("CSeq: 1 ", &format!("CSeq: {cseq} "));
    assert_eq!(b.udp(source, &text)[0].first_line(), "SIP/2.0 200 OK");
}

fn register(b: &mut Bench, user: &str, source: &str) {
    register_as(b, user, source, &format!("sip:{user}@192.168.1.2:5060"), 1);
}

fn is_ping(sent: &Sent) -> bool {
    sent.text.starts_with("OPTIONS") || sent.text == "\r\n\r\n"
}

/// The pings of this many seconds, a step of a fifth of a second after the other, by second.
fn sent_in(b: &mut Bench, seconds: u64) -> Vec<(u64, Sent)> {
    let began = b.now_us;
    let mut sent = vec![];
    while b.now_us < began + seconds * 1_000_000 {
        let second = (b.now_us - began) / 1_000_000;
        sent.extend(b.pass(200).into_iter().filter(is_ping).map(|ping| (second, ping)));
    }
    sent
}

/// As [`sent_in`], with a phone at each address that answers pings with this status.
fn answered_in(b: &mut Bench, seconds: u64, status: &str) -> usize {
    let mut count = 0;
    for _ in 0..seconds * 5 {
        for ping in b.pass(200).into_iter().filter(is_ping) {
            let from = ping.address();
            assert!(b.udp(&from, &response(&ping, status, "")).is_empty());
            count += 1;
        }
    }
    count
}

fn is_called(b: &mut Bench, branch: &str) -> Vec<String> {
    let invite = request("INVITE", "sip:bob@example.com", branch, "").replace("c1@", branch);
    let mut called: Vec<String> = b
        .udp(CALLER, &invite)
        .iter()
        .filter(|sent| sent.first_line().starts_with("INVITE"))
        .map(Sent::address)
        .collect();
    called.sort();
    called
}

/// RFC 3261 §11: a ping is a whole OPTIONS, and no phone takes one for a copy of another.
#[test]
fn a_ping_is_an_options_to_the_source_of_the_register() {
    let mut b = Bench::new(&pinging(PINGS));
    register(&mut b, "bob", SOURCE);
    let sent = sent_in(&mut b, 15);
    assert_eq!(sent.len(), 2, "{sent:?}");
    let (first, again) = (&sent[0].1, &sent[1].1);
    assert_eq!(first.address(), SOURCE);
    assert_eq!(first.first_line(), "OPTIONS sip:bob@192.168.1.2:5060 SIP/2.0");
    assert_eq!(first.header("To"), "<sip:bob@192.168.1.2:5060>");
    assert!(first.header("From").starts_with("<sip:192.0.2.1:5060>;tag="));
    assert_eq!(
        (first.header("Max-Forwards"), first.header("CSeq")),
        ("70", "1 OPTIONS")
    );
    let via = first.header("Via");
    assert!(
        via.starts_with("SIP/2.0/UDP 192.0.2.1:5060;branch=z9hG4bK") && via.ends_with(";rport"),
        "{via}"
    );
    for header in ["Via", "Call-ID"] {
        assert_ne!(first.header(header), again.header(header));
    }
    assert_eq!(b.counters().pings_sent, 2);
}

#[test]
fn only_phones_behind_nats_are_pinged() {
    let network = Network {
        address: [203, 0, 113, 0].into(),
        prefix_len: 24,
    };
    let with = |change: fn(&mut Config, Network)| {
        let mut config = pinging(PINGS);
        change(&mut config, network);
        config
    };
    for (what, config, contact, expected) in [
        ("private", with(|_, _| ()), "sip:bob@192.168.1.2:5060", 1),
        ("at its source", with(|_, _| ()), "sip:bob@203.0.113.8:40002", 0),
        ("another port", with(|_, _| ()), "sip:bob@203.0.113.8:5060", 1),
        (
            "another public address",
            with(|_, _| ()),
            "sip:bob@198.51.100.7",
            0,
        ),
        (
            "always",
            with(|c, _| c.listeners[0].nat = Nat::Always),
            "sip:bob@203.0.113.8:40002",
            1,
        ),
        (
            "never",
            with(|c, _| c.listeners[0].nat = Nat::Never),
            "sip:bob@192.168.1.2:5060",
            0,
        ),
        (
            "a peer",
            with(|c, n| c.trust = vec![n]),
            "sip:bob@192.168.1.2:5060",
            0,
        ),
        ("off", with(|c, _| c.pings = None), "sip:bob@192.168.1.2:5060", 0),
    ] {
        let mut b = Bench::new(&config);
        register_as(&mut b, "bob", SOURCE, contact, 1);
        assert_eq!(sent_in(&mut b, 8).len(), expected, "{what}");
    }
    // A connection is kept open by the phone.
    let mut b = Bench::new(&pinging(PINGS));
    let text = request(
        "REGISTER",
        "sip:example.com",
        "r1",
        "Contact: <sip:bob@192.168.1.2:5060;transport=tcp>\n",
    );
    b.receive(tcp_flow(SOURCE, 1), &text.replace("SIP/2.0/UDP", "SIP/2.0/TCP"));
    assert_eq!(sent_in(&mut b, 25), []);
}

#[test]
fn any_status_is_life_and_only_silence_after_it_is_not() {
    for status in [
        "200 OK",
        "405 Method Not Allowed",
        "486 Busy Here",
        "503 Service Unavailable",
    ] {
        let mut b = Bench::new(&pinging(PINGS));
        register(&mut b, "bob", SOURCE);
        register(&mut b, "bob", "203.0.113.9:5060");
        assert_eq!(answered_in(&mut b, 45, status), 10);
        assert_eq!((b.counters().pings_sent, b.counters().pings_answered), (10, 10));
        assert_eq!(
            (b.counters().contacts_lost, b.counters().dropped_stray_response),
            (0, 0)
        );
        assert_eq!(is_called(&mut b, "a1"), [SOURCE, "203.0.113.9:5060"], "{status}");
    }
}

#[test]
fn a_phone_that_stops_answering_is_left_out_until_it_is_back() {
    let mut b = Bench::new(&pinging(PINGS));
    register(&mut b, "bob", SOURCE);
    answered_in(&mut b, 15, "200 OK");
    // Pings go on, so that the phone is found when it is back.
    assert_eq!(sent_in(&mut b, 60).len(), 6);
    let lost =
        |event: &Event| matches!(event, Event::ContactLost { aor, .. } if **aor == *b"bob@example.com");
    let events: Vec<Event> = core::iter::from_fn(|| b.endpoint.poll_event()).collect();
    assert_eq!(events.iter().filter(|event| lost(event)).count(), 1, "{events:?}");
    assert_eq!(is_called(&mut b, "a1"), [""; 0]);
    assert_eq!(b.counters().contacts_unreachable, 1);
    // Another phone of the user rings alone.
    register(&mut b, "bob", "203.0.113.9:5060");
    assert_eq!(is_called(&mut b, "a2"), ["203.0.113.9:5060"]);
    answered_in(&mut b, 10, "200 OK");
    assert_eq!(is_called(&mut b, "a3"), [SOURCE, "203.0.113.9:5060"]);
    assert_eq!(
        (b.counters().contacts_lost, b.counters().contacts_returned),
        (1, 1)
    );
}

#[test]
fn a_lost_phone_that_registers_again_is_back() {
    let mut b = Bench::new(&pinging(PINGS));
    register(&mut b, "bob", SOURCE);
    answered_in(&mut b, 15, "200 OK");
    sent_in(&mut b, 60);
    assert_eq!(is_called(&mut b, "a1"), [""; 0]);
    register_as(&mut b, "bob", SOURCE, "sip:bob@192.168.1.2:5060", 2);
    assert_eq!(is_called(&mut b, "a2"), [SOURCE]);
    assert_eq!(b.counters().contacts_returned, 1);
}

/// A REGISTER with another's source address: that host gets a few pings for it, and no more.
#[test]
fn what_never_answers_gets_few_pings_and_every_call() {
    let mut b = Bench::new(&pinging(PINGS));
    register(&mut b, "bob", SOURCE);
    assert_eq!(sent_in(&mut b, 3_000).len(), 7);
    assert_eq!(b.counters().contacts_lost, 0);
    // It may still be a phone that knows no OPTIONS.
    assert_eq!(is_called(&mut b, "a1"), [SOURCE]);
    b.pass(40_000);
    register_as(&mut b, "bob", SOURCE, "sip:bob@192.168.1.2:5060", 2);
    assert_eq!(sent_in(&mut b, 3_000).len(), 7);
}

/// A response counts for the address that it comes from, and only with the MAC of a ping that went there.
#[test]
fn no_host_can_answer_for_another() {
    let mut b = Bench::new(&pinging(PINGS));
    register(&mut b, "bob", SOURCE);
    register(&mut b, "carol", "203.0.113.9:5060");
    let pings: BTreeMap<String, Sent> = sent_in(&mut b, 11)
        .into_iter()
        .map(|(_, s)| (s.address(), s))
        .collect();
    let of_bob = &pings[SOURCE];
    let answer = response(of_bob, "200 OK", "");
    let last = of_bob
        .header("Via")
        .strip_suffix(";rport")
        .and_then(|via| via.chars().last())
        .unwrap();
    let other = if last == '0' { '1' } else { '0' };
    for (from, text) in [
        ("203.0.113.9:5060", answer.clone()),
        ("203.0.113.8:40003", answer.clone()),
        (
            SOURCE,
            answer.replace(&format!("{last};rport"), &format!("{other};rport")),
        ),
        (SOURCE, answer.replace("1 OPTIONS", "1 INFO")),
    ] {
        assert!(b.udp(from, &text).is_empty());
        assert_eq!(b.counters().pings_answered, 0, "{from}: {text}");
    }
    assert!(b.udp(SOURCE, &answer).is_empty());
    assert_eq!(b.counters().pings_answered, 1);
}

#[test]
fn lines_of_one_phone_share_its_pings() {
    let mut b = Bench::new(&pinging(PINGS));
    for user in ["bob", "carol", "dave", "erin"] {
        register(&mut b, user, SOURCE);
    }
    assert_eq!(answered_in(&mut b, 45, "200 OK"), 5);
}

#[test]
fn crlf_follows_once_a_phone_has_answered() {
    let mut b = Bench::new(&pinging(Pings {
        kind: PingKind::Crlf,
        ..PINGS
    }));
    register(&mut b, "bob", SOURCE);
    assert_eq!(answered_in(&mut b, 5, "200 OK"), 1);
    let sent = sent_in(&mut b, 100);
    assert_eq!(sent.len(), 10);
    assert!(
        sent.iter()
            .all(|(_, ping)| ping.text == "\r\n\r\n" && ping.address() == SOURCE)
    );
    // Nothing answers it, so nothing is lost for that.
    assert_eq!(is_called(&mut b, "a1"), [SOURCE]);
}

#[test]
fn lost_contacts_are_removed_if_so_configured() {
    let mut config = pinging(Pings {
        remove_lost: true,
        ..PINGS
    });
    config.registrar.durability = Durability::Async;
    let mut b = Bench::new(&config);
    register(&mut b, "bob", SOURCE);
    b.query();
    answered_in(&mut b, 15, "200 OK");
    sent_in(&mut b, 60);
    b.shared
        .read_bindings(b"bob@example.com", &mut |_| panic!("it is there"));
    let query = b.query();
    assert!(query.id.is_none(), "nothing waits for it");
    let QueryKind::SaveBindings { aor, .. } = query.kind else {
        panic!("{query:?}")
    };
    assert_eq!(&*aor, b"bob@example.com");
    assert_eq!(sent_in(&mut b, 30), []);
}

/// Each line of a lost phone goes.
#[test]
fn all_lines_of_a_lost_phone_are_removed() {
    let mut b = Bench::new(&pinging(Pings {
        remove_lost: true,
        ..PINGS
    }));
    for user in ["bob", "carol", "dave"] {
        register(&mut b, user, SOURCE);
    }
    register(&mut b, "bob", "203.0.113.9:5060");
    answered_in(&mut b, 15, "200 OK");
    for _ in 0..80 {
        for ping in b.pass(1_000).into_iter().filter(is_ping) {
            if ping.address() != SOURCE {
                let from = ping.address();
                b.udp(&from, &response(&ping, "200 OK", ""));
            }
        }
    }
    let mut left = vec![];
    for aor in ["bob@example.com", "carol@example.com", "dave@example.com"] {
        b.shared.read_bindings(aor.as_bytes(), &mut |record| {
            left.extend(
                record
                    .bindings()
                    .map(|binding| binding.unwrap().received.remote.to_string()),
            );
        });
    }
    assert_eq!(left, ["203.0.113.9:5060"]);
}

/// A configuration without pings knows of no lost contact, and one with empty lines asks a lost one until it answers.
#[test]
fn a_reload_strands_no_lost_contact() {
    let lost = || {
        let mut b = Bench::new(&pinging(PINGS));
        register(&mut b, "bob", SOURCE);
        answered_in(&mut b, 15, "200 OK");
        sent_in(&mut b, 60);
        assert_eq!(is_called(&mut b, "a1"), [""; 0]);
        b
    };
    let mut b = lost();
    let mut without = pinging(PINGS);
    without.pings = None;
    b.endpoint.reconfigure(&without);
    assert_eq!(is_called(&mut b, "a2"), [SOURCE]);
    let mut b = lost();
    b.endpoint.reconfigure(&pinging(Pings {
        kind: PingKind::Crlf,
        ..PINGS
    }));
    assert_eq!(answered_in(&mut b, 15, "200 OK"), 1);
    assert_eq!(is_called(&mut b, "a2"), [SOURCE]);
}

/// RFC 3261 §16.11: a CANCEL without state goes where its INVITE went.
#[test]
fn a_cancel_follows_its_invite_to_a_contact_that_was_lost_meanwhile() {
    let mut config = pinging(PINGS);
    config.state = StateMode::Stateless;
    let mut b = Bench::new(&config);
    register(&mut b, "bob", SOURCE);
    answered_in(&mut b, 15, "200 OK");
    sent_in(&mut b, 20);
    assert_eq!(is_called(&mut b, "a1"), [SOURCE]);
    sent_in(&mut b, 40);
    assert_eq!(is_called(&mut b, "a2"), [""; 0]);
    let cancel = request("CANCEL", "sip:bob@example.com", "a1", "").replace("c1@", "a1");
    let sent = one(b.udp(CALLER, &cancel));
    assert_eq!((sent.address().as_str(), &sent.text[..6]), (SOURCE, "CANCEL"));
}

/// A phone that is gone gets no more pings; one behind a NAT that closed its port is pinged at the new one only.
#[test]
fn pings_follow_the_bindings() {
    let mut b = Bench::new(&pinging(PINGS));
    register(&mut b, "bob", SOURCE);
    let again = |b: &mut Bench, source: &str, cseq: u32, more: &str| {
        let text = request("REGISTER", "sip:example.com", &format!("x{cseq}"), more)
            .replace(
                "SIP/2.0/UDP 192.0.2.10:5060;",
                "SIP/2.0/UDP 192.168.1.2:5060;rport;",
            )
            .replace("From: <sip:alice@", "From: <sip:bob@")
            .replace("c1@192.0.2.10", &format!("of-bob-at-{SOURCE}"))
            .replace("CSeq: 1 ", &format!("CSeq: {cseq} "));
        assert_eq!(b.udp(source, &text)[0].first_line(), "SIP/2.0 200 OK");
    };
    again(
        &mut b,
        "203.0.113.8:41000",
        2,
        "Contact: <sip:bob@192.168.1.2:5060>\n",
    );
    let sent = sent_in(&mut b, 15);
    assert!(sent.len() == 2 && sent.iter().all(|(_, ping)| ping.address() == "203.0.113.8:41000"));
    again(
        &mut b,
        "203.0.113.8:41000",
        3,
        "Contact: <sip:bob@192.168.1.2:5060>;expires=0\n",
    );
    b.drain();
    assert_eq!(sent_in(&mut b, 30), []);
}

/// After a restart the bindings are there, and nothing else.
#[test]
fn a_restarted_server_goes_on() {
    let mut b = Bench::new(&pinging(PINGS));
    register(&mut b, "bob", SOURCE);
    let mut again = Bench::worker(&pinging(PINGS), 0, Arc::clone(&b.shared));
    *again.shared.reachability.lock().unwrap() = Default::default();
    assert_eq!(sent_in(&mut again, 8).len(), 1);
}

/// A thousand phones are pinged evenly over the interval, each once, by the workers together.
#[test]
fn pings_are_spread_over_the_interval_and_the_workers() {
    for workers in [1, 2, 3] {
        let mut config = pinging(PINGS);
        config.workers = workers;
        config.state = StateMode::Stateless;
        let mut first = Bench::new(&config);
        for n in 0..1_000 {
            let address = format!("203.0.{}.{}:5060", 100 + n / 200, n % 200 + 1);
            register(&mut first, &format!("u{n}"), &address);
        }
        let shared = Arc::clone(&first.shared);
        let (mut by_second, mut by_phone) = (vec![0; 20], BTreeMap::<String, u32>::new());
        for worker in 0..workers {
            let mut b = Bench::worker(&config, worker, Arc::clone(&shared));
            b.now_us = first.now_us;
            for (second, ping) in sent_in(&mut b, 20) {
                by_second[second as usize] += 1;
                *by_phone.entry(ping.address()).or_default() += 1;
            }
        }
        assert_eq!(by_phone.len(), 1_000);
        // A third round begins at the end.
        let all: u32 = by_phone.values().sum();
        assert!(
            by_phone.values().all(|count| *count >= 2) && all <= 2_010,
            "{all}: {by_phone:?}"
        );
        assert!(
            by_second.iter().all(|count| (60..=140).contains(count)),
            "{by_second:?}"
        );
    }
}

/// All phones of a town register within one round. The pings follow, a little faster than evenly, and not in one burst.
#[test]
fn a_round_follows_what_registers_in_it() {
    let mut b = Bench::new(&pinging(PINGS));
    let town = |n: u32| format!("203.0.{}.{}:5060", 100 + n / 200, n % 200 + 1);
    for n in 0..20 {
        register(&mut b, &format!("u{n}"), &town(n));
    }
    sent_in(&mut b, 5);
    for n in 20..2_020 {
        register(&mut b, &format!("u{n}"), &town(n));
    }
    let (mut pinged, mut most) = (BTreeMap::<String, u32>::new(), 0);
    for _ in 0..75 {
        let pings = b.pass(200).into_iter().filter(is_ping);
        let pings: Vec<String> = pings.map(|ping| ping.address()).collect();
        most = most.max(pings.len());
        for address in pings {
            *pinged.entry(address).or_default() += 1;
        }
    }
    assert_eq!(pinged.len(), 2_020);
    // Evenly there would be 40 in a fifth of a second; the step before the town came was half a second ago.
    assert!((40..=200).contains(&most), "{most}");
}

/// With another configuration the pings of the old one end.
#[test]
fn a_reload_changes_the_pings() {
    let mut b = Bench::new(&pinging(PINGS));
    register(&mut b, "bob", SOURCE);
    assert_eq!(answered_in(&mut b, 15, "200 OK"), 2);
    b.endpoint.reconfigure(&pinging(Pings { every_s: 2, ..PINGS }));
    assert_eq!(answered_in(&mut b, 20, "200 OK"), 10);
    b.endpoint.reconfigure(&config());
    assert_eq!(sent_in(&mut b, 30), []);
    assert_eq!(b.endpoint.gauges().timers, 0);
}

/// Registrations by a flow that cannot be used are not pinged by it: another transport than the listener has now.
#[test]
fn a_binding_of_a_listener_that_is_gone_is_left_alone() {
    let mut b = Bench::new(&pinging(PINGS));
    register(&mut b, "bob", SOURCE);
    let mut other = pinging(PINGS);
    other.listeners.swap(0, 1);
    assert_eq!(other.listeners[0].transport, Transport::Tcp);
    let mut again = Bench::worker(&other, 0, Arc::clone(&b.shared));
    assert_eq!(sent_in(&mut again, 30), []);
}

//! Contacts that lead back to this server: one request becomes ten, and each of these ten again.

use sip_core::config::Config;
use sip_core::location::Binding;
use sip_core::transport::{Flow, Transport};

use crate::common::{Bench, CALLER, PROXY, Sent, listener, request, response, tcp_flow, udp_flow};
use crate::forks::{BOB, answer, location, location_with, phone, register, with_contact};

/// A registration with a closed connection, so that its contact is the way.
pub(crate) fn lost(n: u8, contact: &str) -> Binding {
    Binding {
        received: Flow {
            conn: None,
            ..tcp_flow("192.0.2.66:40000", 1)
        },
        ..with_contact(n, contact)
    }
}

/// All that is sent for one request, with what comes back to this server given to it again, up to `most`.
fn all_sent(bench: &mut Bench, text: &str, most: usize) -> Vec<Sent> {
    let mut all = vec![];
    let mut back = vec![(CALLER.to_owned(), text.to_owned())];
    while let Some((from, text)) = back.pop() {
        let sent = bench.udp(&from, &text);
        let ours = sent.iter().filter(|s| s.address() == PROXY);
        back.extend(ours.map(|s| (PROXY.to_owned(), s.text.clone())));
        all.extend(sent);
        assert!(all.len() <= most, "more than {most} messages");
    }
    all
}

fn invites(sent: &[Sent]) -> Vec<String> {
    let invites = sent.iter().filter(|s| s.first_line().starts_with("INVITE"));
    let mut all: Vec<String> = invites.map(Sent::address).collect();
    all.sort();
    all
}

fn bench(config: &Config, users: &[(&str, &[Binding])]) -> Bench {
    let bench = Bench::new(config);
    for (aor, bindings) in users {
        register(&bench, aor, bindings);
    }
    bench
}

#[test]
fn contacts_that_lead_back_here_are_looked_up_in_place() {
    let names = |users: &[&str]| -> Vec<Binding> {
        let own = |user: &str| -> Vec<Binding> {
            let contact = |n: u8| lost(n, &format!("sip:{user}@example.com;x={n}"));
            (0..10).map(contact).collect()
        };
        users.iter().flat_map(|user| own(user)).collect()
    };
    // To itself, to each other, to a phone behind them all.
    for (bob, carol, expected) in [
        (names(&["bob"]), vec![], 0),
        (names(&["carol"]), names(&["bob"]), 0),
        (
            names(&["carol", "bob"]),
            [names(&["bob"]), vec![phone(1)]].concat(),
            1,
        ),
        (names(&["unknown"]), vec![], 0),
    ] {
        let mut b = bench(
            &location(),
            &[("bob@example.com", &bob), ("carol@example.com", &carol)],
        );
        let sent = all_sent(&mut b, &request("INVITE", BOB, "a", ""), 8);
        assert_eq!(invites(&sent).len(), expected, "{:?}", invites(&sent));
        assert!(sent.iter().all(|s| s.address() != PROXY));
        let answer = match expected {
            0 => "SIP/2.0 480 Temporarily Unavailable",
            _ => "SIP/2.0 100 Trying",
        };
        assert_eq!(sent[0].first_line(), answer);
        assert!(b.counters().contacts_own > 0);
    }
}

/// A gateway's number at our own address is no contact: the call would be this server's own.
#[test]
fn a_contact_at_our_own_address_is_no_target() {
    for contact in [
        "sip:0019005550100@192.0.2.1",
        "sip:x@proxy.example.com",
        "sip:192.0.2.1:5060",
    ] {
        let mut b = bench(&location(), &[("bob@example.com", &[lost(1, contact)])]);
        let sent = all_sent(&mut b, &request("INVITE", BOB, "a", ""), 8);
        assert_eq!(
            sent[0].first_line(),
            "SIP/2.0 480 Temporarily Unavailable",
            "{contact}"
        );
    }
}

/// In place of the contact, in its turn.
#[test]
fn what_is_found_in_place_rings_when_the_contact_would_have() {
    let first = Binding {
        q_milli: 900,
        ..lost(1, "sip:carol@example.com")
    };
    let then = Binding {
        q_milli: 500,
        ..phone(2)
    };
    let mut b = bench(
        &location(),
        &[
            ("bob@example.com", &[then, first]),
            ("carol@example.com", &[phone(3)]),
        ],
    );
    let sent = all_sent(&mut b, &request("INVITE", BOB, "a", ""), 8);
    assert_eq!(invites(&sent), ["192.0.2.33:5060"]);
}

/// Each user's contact is the next one, and there are many.
#[test]
fn a_long_chain_of_contacts_is_cut() {
    for (length, reached) in [(15, true), (1_000, false)] {
        let mut b = bench(&location(), &[]);
        for n in 0..length {
            let next = lost(1, &format!("sip:u{}@example.com", n + 1));
            register(&b, &format!("u{n}@example.com"), &[next]);
        }
        register(&b, &format!("u{length}@example.com"), &[phone(1)]);
        let text = request("INVITE", "sip:u0@example.com", "a", "");
        let sent = all_sent(&mut b, &text, 8);
        assert_eq!(invites(&sent).len(), usize::from(reached), "{length}");
        assert!(b.counters().contacts_own <= 20, "{}", b.counters().contacts_own);
    }
}

/// Registers `name`, and the users to which its contacts lead. Each user of a level has so many contacts that are users
/// of the next level, and so many phones.
fn register_tree(b: &Bench, name: &str, levels: &[(usize, usize)], users_first: bool, made: &mut usize) {
    let Some((&(users, phones), below)) = levels.split_first() else {
        return;
    };
    let names: Vec<String> = (0..users).map(|n| format!("{name}-{n}")).collect();
    let to_user = |user: &String| lost(1, &format!("sip:{user}@example.com"));
    let mut to_phone = || {
        *made += 1;
        Binding {
            received: udp_flow(&format!("198.51.100.{made}:5060")),
            ..with_contact(1, &format!("sip:p@198.51.100.{made}"))
        }
    };
    let mut contacts: Vec<Binding> = names.iter().map(to_user).collect();
    let place = if users_first { contacts.len() } else { 0 };
    contacts.splice(place..place, (0..phones).map(|_| to_phone()));
    register(b, &format!("{name}@example.com"), &contacts);
    for name in &names {
        register_tree(b, name, below, users_first, made);
    }
}

/// How many phones get an INVITE for bob if each is busy. The rest of the bounds for one request is out of the way.
fn phones_reached(levels: &[(usize, usize)], users_first: bool) -> (usize, usize) {
    let mut config = location();
    config.limits.branches = usize::from(u8::MAX);
    let mut b = Bench::new(&config);
    let mut phones = 0;
    register_tree(&b, "bob", levels, users_first, &mut phones);
    let mut under_way = b.udp(CALLER, &request("INVITE", BOB, "a", ""));
    let mut reached = vec![];
    while !under_way.is_empty() {
        reached.extend(invites(&under_way));
        let sent = std::mem::take(&mut under_way);
        for invite in sent.iter().filter(|s| s.first_line().starts_with("INVITE")) {
            under_way.extend(answer(&mut b, invite, "486 Busy Here"));
        }
    }
    reached.sort();
    let all = reached.len();
    reached.dedup();
    assert_eq!(reached.len(), all, "an INVITE went twice to a phone");
    (reached.len(), phones)
}

/// The contacts of one request are bounded as a whole, however they are spread over users: many of one user, many users
/// side by side, users behind users.
#[test]
fn contacts_of_users_behind_users_have_one_bound() {
    for (levels, expected, there) in [
        (&[(0, 64)][..], 64, 64),
        (&[(0, 65)], 64, 65),
        (&[(8, 0), (0, 8)], 64, 64),
        (&[(8, 0), (0, 9)], 64, 72),
        (&[(3, 1), (3, 0), (0, 7)], 64, 64),
        (&[(3, 1), (3, 1), (0, 8)], 64, 76),
        (&[(1, 9), (1, 9), (1, 9), (1, 9), (1, 9), (1, 9), (0, 10)], 64, 64),
        (
            &[(1, 9), (1, 9), (1, 9), (1, 9), (1, 9), (1, 9), (1, 9), (0, 9)],
            64,
            72,
        ),
        // So many users are looked up besides bob.
        (&[(16, 0), (0, 1)], 16, 16),
        (&[(17, 0), (0, 1)], 16, 17),
    ] {
        for users_first in [true, false] {
            assert_eq!(
                phones_reached(levels, users_first),
                (expected, there),
                "{levels:?} {users_first}"
            );
        }
    }
}

/// A contact that must be reached by TLS leads to none that cannot.
#[test]
fn a_sips_contact_stays_one_in_place() {
    let mut b = bench(
        &location(),
        &[
            ("bob@example.com", &[lost(1, "sips:carol@example.com")]),
            ("carol@example.com", &[phone(1)]),
        ],
    );
    let sent = all_sent(&mut b, &request("INVITE", BOB, "a", ""), 8);
    assert_eq!(invites(&sent).len(), 0);
}

/// By way of another server that sends back whatever it gets.
#[test]
fn a_loop_through_another_server_ends_at_its_first_turn() {
    let contacts: Vec<Binding> = (0..10)
        .map(|n| lost(n, &format!("sip:bob@192.0.2.77;x={n}")))
        .collect();
    let mut b = bench(&location(), &[("bob@example.com", &contacts)]);
    let mut all = b.udp(CALLER, &request("INVITE", BOB, "a", ""));
    let turns: Vec<Sent> = all
        .iter()
        .filter(|s| s.address() == "192.0.2.77:5060")
        .cloned()
        .collect();
    assert_eq!(turns.len(), 10);
    for turn in &turns {
        let back = turn.text.replacen("@192.0.2.77;", "@example.com;", 1).replacen(
            "Via: ",
            "Via: SIP/2.0/UDP 192.0.2.77;branch=z9hG4bKother\r\nVia: ",
            1,
        );
        let sent = b.udp("192.0.2.77:5060", &back);
        assert!(
            sent.iter().any(|s| s.first_line() == "SIP/2.0 482 Loop Detected"),
            "{sent:?}"
        );
        all.extend(sent);
    }
    assert_eq!(invites(&all).len(), 10);
}

/// Users that ring each other by way of another server: each of five rings the other four, which is a way for each order
/// of them.
#[test]
fn a_request_is_forked_few_times_whatever_server_sends_it_back() {
    let user = |n: usize| format!("u{n}@example.com");
    let contacts: Vec<Vec<Binding>> = (0..6)
        .map(|of: usize| {
            let others = (0..6).filter(|n| *n != of);
            others
                .map(|n| lost(n as u8, &format!("sip:u{n}@192.0.2.77")))
                .collect()
        })
        .collect();
    let names: Vec<String> = (0..6).map(user).collect();
    let users: Vec<(&str, &[Binding])> = names
        .iter()
        .zip(&contacts)
        .map(|(name, contacts)| (name.as_str(), contacts.as_slice()))
        .collect();
    let mut b = bench(&location(), &users);
    let mut sent = b.udp(CALLER, &request("INVITE", "sip:u0@example.com", "a", ""));
    for next in 1..4 {
        let uri = format!("INVITE sip:u{next}@192.0.2.77 ");
        let turn = sent.iter().find(|s| s.text.starts_with(&uri));
        let turn = turn.unwrap_or_else(|| panic!("{next}: {sent:?}"));
        let back = turn.text.replacen("@192.0.2.77 ", "@example.com ", 1).replacen(
            "Via: ",
            &format!("Via: SIP/2.0/UDP 192.0.2.77;branch=z9hG4bKother{next}\r\nVia: "),
            1,
        );
        // What is tested is no matter of Max-Breadth.
        let breadth = turn.header("Max-Breadth").to_owned();
        let back = back.replace(&format!("Max-Breadth: {breadth}"), "Max-Breadth: 60");
        sent = b.udp("192.0.2.77:5060", &back);
        assert_eq!(invites(&sent).len(), 5, "{next}: {sent:?}");
    }
    let turn = sent.iter().find(|s| s.text.starts_with("INVITE sip:u4@"));
    let turn = &turn.expect("the last turn").text;
    let back = turn.replacen("@192.0.2.77 ", "@example.com ", 1).replacen(
        "Via: ",
        "Via: SIP/2.0/UDP 192.0.2.77;branch=z9hG4bKother9\r\nVia: ",
        1,
    );
    let sent = b.udp("192.0.2.77:5060", &back);
    assert_eq!(invites(&sent).len(), 0);
    let last = sent.last().map(Sent::first_line);
    assert_eq!(last, Some("SIP/2.0 482 Loop Detected"));
}

/// One datagram of ours would reach many hosts, or any program on this one.
#[test]
fn nothing_is_sent_to_what_is_no_host() {
    for host in [
        "224.0.0.1",
        "239.255.255.250",
        "255.255.255.255",
        "0.0.0.0",
        "[ff02::1]",
        "[::]",
        "[::ffff:0.0.0.0]",
    ] {
        let contact = format!("sip:bob@{host}");
        let mut config = location();
        config
            .listeners
            .push(listener(Transport::Udp, "[2001:db8::1]:5060"));
        let mut b = bench(&config, &[("bob@example.com", &[lost(1, &contact)])]);
        let sent = b.udp(CALLER, &request("INVITE", BOB, "a", ""));
        assert_eq!(invites(&sent).len(), 0, "{contact}");
        let last = sent.last().map(Sent::first_line);
        assert_eq!(last, Some("SIP/2.0 480 Contact Denied"), "{contact}");
        // By a redirect.
        let mut following = config.clone();
        following.routes = location_with(|relay| relay.recurse = true).routes;
        let mut b = bench(&following, &[("bob@example.com", &[phone(2)])]);
        let sent = b.udp(CALLER, &request("INVITE", BOB, "a", ""));
        let first = sent.iter().find(|s| s.address() == "192.0.2.32:5060");
        let moved = response(
            first.expect("the phone"),
            "302 Moved",
            &format!("Contact: <{contact}>\n"),
        );
        let sent = b.udp("192.0.2.32:5060", &moved);
        assert_eq!(invites(&sent).len(), 0, "{contact}");
        let last = sent.last().map(Sent::first_line);
        assert_eq!(last, Some("SIP/2.0 480 Contact Denied"), "{contact}");
        // Beside a phone, it is a branch that fails.
        let mut b = bench(&config, &[("bob@example.com", &[lost(1, &contact), phone(2)])]);
        let sent = b.udp(CALLER, &request("INVITE", BOB, "a", ""));
        assert_eq!(invites(&sent), ["192.0.2.32:5060"], "{contact}");
    }
}

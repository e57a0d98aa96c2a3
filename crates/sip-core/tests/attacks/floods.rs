//! Floods: of transactions, of users, of registrations, of what waits. Nothing that is held ever exceeds
//! its limit, what is beyond is refused by 503 or counted, and all of it is let go.

use sip_core::config::{Config, Durability};
use sip_core::query::QueryResult;
use sip_core::shared::SharedState as _;
use sip_core::transport::Transport;

use crate::agent::{Login, login, nonce_of};
use crate::common::{Bench, CALLER, all_transports, config, one, over, request};

const HELD: usize = 200;
const PARKED: usize = 20;
const PARKED_BYTES: usize = 16_384;
const FLOWS: usize = 30;
const EVENTS: usize = 50;
const NAMES: usize = 40;

fn small(mut config: Config) -> Config {
    let limits = &mut config.limits;
    limits.transactions = 50;
    limits.held_transactions = HELD;
    limits.parked_requests = PARKED;
    limits.parked_bytes = PARKED_BYTES;
    limits.flows = FLOWS;
    limits.events = EVENTS;
    limits.dns_entries = NAMES;
    limits.contacts_per_aor = 3;
    config
}

/// Nothing is beyond its limit now.
#[track_caller]
fn assert_within(bench: &Bench) {
    let g = bench.endpoint.gauges();
    let transactions = g.server_transactions + g.client_transactions;
    // The branches of one request that was let in may come beside it.
    assert!(transactions <= HELD as u64 + 2, "{g:?}");
    assert!(g.timers <= 3 * (transactions + g.parked_requests) + 64, "{g:?}");
    assert!(
        g.parked_requests <= PARKED as u64 && g.parked_bytes <= PARKED_BYTES as u64,
        "{g:?}"
    );
    assert!(g.flows <= FLOWS as u64 && g.dns_entries <= NAMES as u64, "{g:?}");
}

#[test]
fn unique_branches_are_bounded() {
    let mut bench = Bench::new(&small(config()));
    let (mut refused, mut relayed) = (0, 0);
    for number in 0..5000 {
        let method = if number % 2 == 0 { "INVITE" } else { "MESSAGE" };
        let text = request(method, "sip:bob@example.com", &format!("u{number}"), "")
            .replace("c1@", &format!("c{number}@"));
        for sent in bench.udp(CALLER, &text) {
            refused += usize::from(sent.first_line().starts_with("SIP/2.0 503"));
            relayed += usize::from(sent.address() != CALLER);
        }
        assert_within(&bench);
        if number % 100 == 0 {
            bench.pass(50);
            assert_within(&bench);
        }
    }
    assert!(
        relayed > 0 && refused > 4000,
        "{relayed} relayed, {refused} refused"
    );
    assert_eq!(bench.counters().limited_transactions, refused as u64);
    bench.pass(400_000);
    bench.assert_idle();
    // Later callers are served.
    let text = request("INVITE", "sip:bob@example.com", "after", "").replace("c1@", "after@");
    assert!(bench.udp(CALLER, &text).iter().any(|s| s.address() != CALLER));
}

/// Few transactions, each as large as a stream allows.
#[test]
fn large_messages_are_bounded_by_their_bytes() {
    const BYTES: usize = 4 * 1024 * 1024;
    let mut config = all_transports();
    config.limits.transaction_bytes = BYTES;
    let mut bench = Bench::new(&config);
    let long = "x".repeat(50_000);
    let (mut refused, mut relayed) = (0, 0);
    for number in 0..500 {
        let method = if number % 2 == 0 { "INVITE" } else { "MESSAGE" };
        let text = request(
            method,
            "sip:bob@example.com",
            &format!("u{number}"),
            &format!("X: {long}\n"),
        )
        .replace("c1@", &format!("c{number}@"));
        for sent in bench.receive(over(Transport::Tcp, "192.0.2.10:40000", 3), &text) {
            refused += usize::from(sent.first_line().starts_with("SIP/2.0 503"));
            relayed += usize::from(sent.address() != CALLER && !sent.text.starts_with("SIP/2.0"));
        }
        assert!(bench.endpoint.gauges().transaction_bytes <= BYTES as u64);
    }
    assert!(
        (1..100).contains(&relayed) && refused > 400,
        "{relayed} relayed, {refused} refused"
    );
    bench.pass(400_000);
    bench.assert_idle();
}

/// Each name is another, none is known, and the store says nothing.
#[test]
fn unique_users_are_bounded() {
    for (method, uri) in [("REGISTER", "sip:example.com"), ("INVITE", "sip:bob@example.com")] {
        let mut config = small(config());
        config.domains[0].auth.methods = vec![b"REGISTER"[..].into(), b"INVITE"[..].into()];
        let mut bench = Bench::new(&config);
        let nonce = nonce_of(&one(bench.udp(CALLER, &request(method, uri, "first", ""))));
        let (mut asked, mut refused) = (0, 0);
        for number in 0..2000 {
            let line = Login {
                user: format!("user{number}"),
                count: number + 1,
                ..login(method, uri)
            }
            .line(&nonce);
            let text =
                request(method, uri, &format!("u{number}"), &line).replace("c1@", &format!("c{number}@"));
            for sent in bench.udp(CALLER, &text) {
                refused += usize::from(sent.first_line().starts_with("SIP/2.0 503"));
            }
            while bench.endpoint.poll_query().is_some() {
                asked += 1;
            }
            assert_within(&bench);
        }
        assert!(
            asked <= PARKED && asked + refused == 2000,
            "{method}: {asked} asked, {refused} refused"
        );
        bench.pass(60_000);
        bench.assert_idle();
    }
}

/// A flood of attempts makes no more events than the shell takes.
#[test]
fn events_of_a_flood_are_bounded() {
    let mut config = small(config());
    config.domains[0].auth.methods = vec![b"MESSAGE"[..].into()];
    let mut bench = Bench::new(&config);
    let uri = "sip:bob@example.com";
    let nonce = nonce_of(&one(bench.udp(CALLER, &request("MESSAGE", uri, "first", ""))));
    let key = (b"alice".to_vec(), b"example.com".to_vec());
    bench.shared.cached.lock().unwrap().insert(key, None);
    for number in 0..500 {
        let line = Login {
            count: number + 1,
            ..login("MESSAGE", uri)
        }
        .line(&nonce);
        let text =
            request("MESSAGE", uri, &format!("u{number}"), &line).replace("c1@", &format!("c{number}@"));
        let _ = bench.udp(CALLER, &text);
    }
    let told = std::iter::from_fn(|| bench.endpoint.poll_event()).count();
    assert_eq!(told, EVENTS);
    assert_eq!(bench.counters().dropped_event, 500 - EVENTS as u64);
}

#[test]
fn registrations_are_bounded() {
    // Of one address: its contacts, and the response.
    let mut config = small(all_transports());
    config.routes.clear();
    config.registrar.durability = Durability::Commit;
    let mut bench = Bench::new(&config);
    let register = |number: u32, user: &str, contact: String| {
        request(
            "REGISTER",
            "sip:example.com",
            &format!("u{number}"),
            &format!("Contact: <{contact}>\n"),
        )
        .replace("bob@example.com", &format!("{user}@example.com"))
        .replace("c1@", &format!("c{number}@"))
    };
    let mut refused = 0;
    for number in 0..500 {
        let text = register(
            number,
            "bob",
            format!("sip:b@10.0.{}.{}", number / 250, number % 250),
        );
        for sent in bench.udp(CALLER, &text) {
            refused += usize::from(
                sent.first_line().starts_with("SIP/2.0 403") || sent.first_line().starts_with("SIP/2.0 503"),
            );
        }
        assert_within(&bench);
    }
    assert!(refused >= 497, "{refused}");
    while bench.endpoint.poll_query().is_some() {}
    bench.pass(60_000);
    // Of many: what waits for the disk, which says nothing.
    let (mut waiting, mut unavailable) = (0, 0);
    for number in 0..2000 {
        let flow = over(Transport::Tcp, "192.0.2.10:40000", number % 500);
        let text = register(
            10_000 + number,
            &format!("user{number}"),
            format!("sip:u{number}@10.0.0.1"),
        );
        for sent in bench.receive(flow, &text) {
            unavailable += usize::from(sent.first_line().starts_with("SIP/2.0 503"));
        }
        while let Some(query) = bench.endpoint.poll_query() {
            // Changes to be undone are sent to the store, and no request waits for them.
            waiting += usize::from(query.id.is_some());
        }
        assert_within(&bench);
    }
    assert!(
        waiting <= PARKED && unavailable >= 2000 - PARKED,
        "{waiting} {unavailable}"
    );
    assert!(bench.counters().limited_parked > 0);
    bench.pass(60_000);
    let g = bench.endpoint.gauges();
    assert_eq!((g.parked_requests, g.parked_bytes, g.timers), (0, 0, 0));
}

/// Where no credentials are needed, registrations take no more than they may. Then no user can be
/// added. Users with bindings may refresh them, lengthen them within an eighth more, and leave.
#[test]
fn an_open_registrar_is_bounded() {
    const BYTES: usize = 100_000;
    let mut config = config();
    config.routes.clear();
    config.limits.location_bytes = BYTES;
    let mut bench = Bench::new(&config);
    let mut cseq = 0;
    let mut register = |bench: &mut Bench, user: u32, phone: u32, length: usize, expires: u32| {
        cseq += 1;
        let contact = format!("<sip:u{user}@10.0.0.{phone};x={}>", "x".repeat(length));
        let lines = format!(
            "Contact: {contact};expires={expires};reg-id=1;+sip.instance=\"<urn:{user}-{phone}>\"\n\
             Supported: outbound\n"
        );
        let text = request("REGISTER", "sip:example.com", &format!("r{cseq}"), &lines)
            .replace("bob@example.com", &format!("user{user}@example.com"))
            .replace("c1@", &format!("c{user}-{phone}@"))
            .replace("CSeq: 1 ", &format!("CSeq: {cseq} "));
        let answer = one(bench.udp(CALLER, &text));
        answer.first_line().split(' ').nth(1).unwrap().to_owned()
    };
    let held = |bench: &Bench| bench.shared.location_bytes();
    let mut users = 0;
    while register(&mut bench, users, 1, 1, 3600) == "200" {
        users += 1;
        assert!(held(&bench) < BYTES + 1_000);
    }
    assert!(held(&bench) >= BYTES && users > 200, "{users}");
    assert_eq!(bench.counters().limited_location, 1);
    let full = held(&bench);
    assert_eq!(
        register(&mut bench, 0, 2, 1, 3600),
        "503",
        "another phone of somebody"
    );
    assert_eq!(held(&bench), full, "it left nothing");
    assert_eq!(register(&mut bench, 0, 1, 1, 3600), "200", "a refresh");
    // Longer ones, as far as that goes.
    let longer = (0..users)
        .take_while(|user| register(&mut bench, *user, 1, 1_500, 3600) == "200")
        .count();
    assert!((5..50).contains(&longer), "{longer}");
    let most = held(&bench);
    assert!(
        (BYTES + BYTES / 8..BYTES + BYTES / 8 + 2_000).contains(&most),
        "{most}"
    );
    assert_eq!(register(&mut bench, 0, 1, 1_500, 3600), "200", "a refresh");
    assert_eq!(register(&mut bench, 0, 1, 1_501, 3600), "503");
    assert_eq!(register(&mut bench, users - 1, 1, 0, 3600), "200", "shorter");
    // A user that unregisters makes room.
    for user in 0..users / 2 {
        assert_eq!(register(&mut bench, user, 1, 1, 0), "200");
    }
    assert!(held(&bench) < BYTES * 2 / 3, "{}", held(&bench));
    assert_eq!(register(&mut bench, 0, 2, 1, 3600), "200");
}

/// A user without room leaves no trace: not in the record, and not in the store, which is asked for
/// nothing.
#[test]
fn a_registration_without_room_changes_nothing() {
    let mut config = config();
    config.routes.clear();
    config.registrar.durability = Durability::Commit;
    let register = |cseq: u32, contact: &str| {
        request("REGISTER", "sip:example.com", &format!("r{cseq}"), contact)
            .replace("CSeq: 1 ", &format!("CSeq: {cseq} "))
    };
    let mut bench = Bench::new(&config);
    bench.udp(CALLER, &register(1, "Contact: <sip:a@10.0.0.1>\n"));
    let query = bench.query();
    bench.answer(&query, QueryResult::Saved(Ok(())));
    config.limits.location_bytes = 1;
    bench.endpoint.reconfigure(&config);
    let contacts = |bench: &mut Bench| {
        let answer = one(bench.udp(CALLER, &register(2, "")));
        answer.headers("Contact").join(", ")
    };
    let before = contacts(&mut bench);
    assert!(before.starts_with("<sip:a@10.0.0.1>"), "{before}");
    // One more; and a longer one in its place, where what it removes must not be remembered either.
    for (cseq, lines) in [
        (3, "Contact: <sip:b@10.0.0.1>\n"),
        (
            9,
            "Contact: <sip:a@10.0.0.1>;expires=0, <sip:longer-than-a@10.0.0.1>\n",
        ),
    ] {
        let answer = one(bench.udp(CALLER, &register(cseq, lines)));
        assert_eq!(answer.first_line(), "SIP/2.0 503 Service Unavailable");
        bench.no_query();
        assert_eq!(contacts(&mut bench), before);
    }
    assert_eq!(bench.counters().limited_location, 2);
    assert_eq!(bench.counters().registrations_refused, 2);
    bench.udp(CALLER, &register(4, "Contact: <sip:a@10.0.0.1>;expires=0\n"));
    let query = bench.query();
    let answer = one(bench.answer(&query, QueryResult::Saved(Ok(()))));
    assert_eq!(answer.first_line(), "SIP/2.0 200 OK");
    assert_eq!(contacts(&mut bench), "");
}

/// What is kept of registrations by name is not longer than names are.
#[test]
fn long_addresses_of_record_are_refused() {
    for (length, status) in [(500, "200 OK"), (501, "400 Too Long Address-Of-Record")] {
        let mut config = config();
        config.routes.clear();
        let mut bench = Bench::new(&config);
        let contact = "Contact: <sip:b@10.0.0.1>\nExpires: 0\n";
        let text = request("REGISTER", "sip:example.com", "r1", contact)
            .replace("bob@example.com", &format!("{}@example.com", "b".repeat(length)));
        let out = one(bench.udp(CALLER, &text));
        assert_eq!(out.first_line(), format!("SIP/2.0 {status}"));
    }
}

/// Each request has another name to ask for, and name service says nothing.
#[test]
fn unique_names_of_next_hops_are_bounded() {
    let mut config = small(config());
    config.routes[0] = sip_core::config::Route {
        action: sip_core::config::Action::Relay(sip_core::config::Relay::to(
            sip_core::config::RelayTarget::RequestUri,
        )),
        ..config.routes[0].clone()
    };
    let mut bench = Bench::new(&config);
    let mut refused = 0;
    for number in 0..2000 {
        let text = request(
            "MESSAGE",
            &format!("sip:x@host{number}.example"),
            &format!("u{number}"),
            "",
        )
        .replace("c1@", &format!("c{number}@"));
        for sent in bench.udp(CALLER, &text) {
            refused += usize::from(sent.first_line().starts_with("SIP/2.0 503"));
        }
        assert_within(&bench);
    }
    assert!(refused >= 2000 - PARKED, "{refused}");
    while bench.endpoint.poll_query().is_some() {}
    // With so small a cache its names push each other out, and each is asked for some times.
    bench.pass(400_000);
    bench.assert_idle();
}

/// Without a limit a source could keep all others from the database, with one nonce and made-up names.
#[test]
fn names_that_one_source_makes_up_leave_the_database_to_others() {
    let mut config = config();
    config.registrar.durability = Durability::Memory;
    config.domains[0].auth.methods = vec![b"REGISTER"[..].into()];
    let uri = "sip:example.com";
    for (exempt, expected) in [(false, 1_250), (true, 2_000)] {
        if exempt {
            config.abuse.exempt = vec![sip_core::config::Network {
                address: [192, 0, 2, 10].into(),
                prefix_len: 32,
            }];
        }
        let mut bench = Bench::new(&config);
        let ask = |bench: &mut Bench, from: &str, nonce: &str, number: u32| {
            let line = Login {
                user: format!("user{number}"),
                count: number + 1,
                ..login("REGISTER", uri)
            }
            .line(nonce);
            let text = request("REGISTER", uri, &format!("u{number}"), &line)
                .replace("c1@", &format!("c{number}{from}@"));
            bench.udp(from, &text);
            bench.endpoint.poll_query()
        };
        let nonce = |bench: &mut Bench, from: &str| {
            nonce_of(&one(
                bench.udp(from, &request("REGISTER", uri, &format!("n{from}"), ""))
            ))
        };
        let own = nonce(&mut bench, CALLER);
        let asked: Vec<_> = (0..2_000)
            .filter_map(|n| ask(&mut bench, CALLER, &own, n))
            .collect();
        assert_eq!(asked.len(), expected);
        assert_eq!(bench.counters().limited_source_look_ups, 2_000 - expected as u64);
        let others = nonce(&mut bench, "192.0.2.99:5060");
        assert!(ask(&mut bench, "192.0.2.99:5060", &others, 0).is_some());
        // When some requests have their result, the source has room for as many again.
        for query in asked.iter().take(3) {
            bench.answer(query, QueryResult::Credentials(Ok(None)));
        }
        let again = (2_000..2_010).filter_map(|n| ask(&mut bench, CALLER, &own, n));
        assert_eq!(again.count(), if exempt { 10 } else { 3 });
        bench.pass(60_000);
        bench.assert_idle();
    }
}

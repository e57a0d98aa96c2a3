//! The time for which results serve, failures, and the bounds.

use super::super::cache::{FAILED_S, MAX_STALE_S, STALE_S, UNAVAILABLE_S};
use super::*;

const FAILURE: Result<Records, Unavailable> = Err(Unavailable);

/// A look-up that needs the addresses of "h" only.
fn host() -> Question<'static> {
    Question {
        port: Some(5060),
        ..question("h")
    }
}

fn found(cache: &Cache, now: Instant, q: &Question<'_>) -> String {
    match cache.locate(now, q) {
        Located::Done(c) => text(&c).join(", "),
        Located::Ask { name, kind } => alloc::format!("ask {}", spell(&name, kind)),
        Located::Unavailable => "unavailable".to_string(),
    }
}

fn refreshes(cache: &mut Cache) -> Vec<String> {
    core::iter::from_fn(|| cache.poll_refresh())
        .map(|(name, kind)| spell(&name, kind))
        .collect()
}

fn one(ttl_s: u32, ip: &str) -> Result<Records, Unavailable> {
    ok(ttl_s, vec![address(ip)])
}

const OLD: &str = "UDP 192.0.2.1:5060";
const NEW: &str = "UDP 192.0.2.2:5060";

#[test]
fn an_answer_that_has_ended_serves_while_it_is_asked_for_anew() {
    let mut cache = Cache::new(10);
    cache.store(at(0), b"H", RecordKind::A, one(20, "192.0.2.1"));
    assert_eq!(found(&cache, at(19), &host()), OLD);
    assert_eq!(refreshes(&mut cache), [""; 0]);
    // The time is over: the result serves, and is queried once however many requests use it.
    assert_eq!(found(&cache, at(20), &host()), OLD);
    assert_eq!(found(&cache, at(21), &host()), OLD);
    assert_eq!(refreshes(&mut cache), ["h A"]);
    assert_eq!(found(&cache, at(22), &host()), OLD);
    assert_eq!(refreshes(&mut cache), [""; 0]);
    assert_eq!(cache.counters().stale, 3);
    assert_eq!(cache.counters().refreshes, 1);
    // The result counts from the next request on.
    cache.store(at(23), b"h", RecordKind::A, one(5, "192.0.2.2"));
    assert_eq!(found(&cache, at(23), &host()), NEW);
    assert_eq!(refreshes(&mut cache), [""; 0]);
    // If no request used the name for a long time, the result does not serve.
    assert_eq!(found(&cache, at(28 + u64::from(STALE_S) - 1), &host()), NEW);
    assert_eq!(found(&cache, at(28 + u64::from(STALE_S)), &host()), "ask h A");
}

#[test]
fn a_dead_name_service_does_not_stop_what_was_known() {
    let mut cache = Cache::new(10);
    cache.store(at(0), b"h", RecordKind::A, one(20, "192.0.2.1"));
    let mut now = 20;
    while now < 20 + u64::from(MAX_STALE_S) {
        assert_eq!(found(&cache, at(now), &host()), OLD, "{now}");
        for _ in refreshes(&mut cache) {
            now += 5;
            cache.store(at(now), b"h", RecordKind::A, FAILURE);
        }
        now += u64::from(STALE_S) - 10;
    }
    // The serving ends at last.
    cache.store(at(now), b"h", RecordKind::A, FAILURE);
    assert_eq!(found(&cache, at(now), &host()), "unavailable");
}

/// A result that was unused for long does not serve before the name service was queried. If the name service
/// then gives no result, the request does not fail.
#[test]
fn an_old_answer_is_better_than_a_failure() {
    let mut cache = Cache::new(10);
    cache.store(at(0), b"h", RecordKind::A, one(20, "192.0.2.1"));
    assert_eq!(found(&cache, at(900), &host()), "ask h A");
    cache.store(at(905), b"h", RecordKind::A, FAILURE);
    assert_eq!(found(&cache, at(905), &host()), OLD);
    // A look-up has just failed.
    assert_eq!(refreshes(&mut cache), [""; 0]);
    assert_eq!(found(&cache, at(907), &host()), OLD);
    assert_eq!(refreshes(&mut cache), ["h A"]);
}

#[test]
fn a_name_without_addresses_is_asked_for_again() {
    let mut cache = Cache::new(10);
    cache.store(at(0), b"h", RecordKind::A, ok(30, vec![]));
    assert_eq!(found(&cache, at(29), &host()), "");
    assert_eq!(found(&cache, at(30), &host()), "ask h A");
    // Without a result no address is known, and the queries end.
    cache.store(at(35), b"h", RecordKind::A, FAILURE);
    assert_eq!(found(&cache, at(35), &host()), "unavailable");
    assert_eq!(found(&cache, at(37), &host()), "ask h A");
    cache.store(at(37), b"h", RecordKind::A, one(30, "192.0.2.2"));
    assert_eq!(found(&cache, at(37), &host()), NEW);
}

/// A domain without NAPTR and SRV records, all of it too old: the call goes on at once.
#[test]
fn a_known_address_serves_while_missing_services_are_asked_for_again() {
    let mut cache = Cache::new(10);
    let zone = [("h", RecordKind::A, vec![address("192.0.2.1")])];
    let q = question("h");
    assert_eq!(run(&mut cache, &zone, &q).0, [OLD]);
    assert_eq!(found(&cache, at(70), &q), OLD);
    let mut wanted = refreshes(&mut cache);
    wanted.sort();
    assert_eq!(wanted, ["_sip._tcp.h Srv", "_sip._udp.h Srv", "h A", "h Naptr"]);
    // New services are found by the next request.
    cache.store(
        at(71),
        b"_sip._udp.h",
        RecordKind::Srv,
        ok(60, vec![service(1, 1, 5099, "h")]),
    );
    assert_eq!(found(&cache, at(71), &q), "UDP 192.0.2.1:5099");
}

#[test]
fn a_failure_is_remembered_briefly() {
    let mut cache = Cache::new(10);
    cache.store(at(0), b"h", RecordKind::A, FAILURE);
    assert_eq!(found(&cache, at(0), &host()), "unavailable");
    assert_eq!(
        found(&cache, at(u64::from(UNAVAILABLE_S)), &host()),
        "ask h A",
        "it recovers at once"
    );
}

/// Firewalls drop NAPTR queries. The first request waits, those after it do not.
#[test]
fn a_look_up_that_always_fails_holds_up_one_request_only() {
    let mut cache = Cache::new(10);
    let q = question("h");
    cache.store(at(5), b"h", RecordKind::Naptr, FAILURE);
    cache.store(at(5), b"_sip._udp.h", RecordKind::Srv, ok(300, vec![]));
    cache.store(at(5), b"_sip._tcp.h", RecordKind::Srv, ok(300, vec![]));
    cache.store(at(5), b"h", RecordKind::A, one(300, "192.0.2.1"));
    let mut failures = 0;
    for now in 6..200 {
        assert_eq!(found(&cache, at(now), &q), OLD, "{now}");
        for _ in refreshes(&mut cache) {
            failures += 1;
            cache.store(at(now), b"h", RecordKind::Naptr, FAILURE);
        }
    }
    assert!(failures > 50);
    // The name is rarely called, so that a request waits again.
    let later = 200 + u64::from(FAILED_S);
    assert_eq!(found(&cache, at(later), &q), "ask h Naptr");
}

/// One service's look-up failed some time ago. The host's own addresses are a guess, which is not used before
/// the service was queried again.
#[test]
fn services_that_may_have_been_missed_are_asked_for_again() {
    let mut cache = Cache::new(10);
    let q = question("h");
    cache.store(at(0), b"h", RecordKind::Naptr, ok(300, vec![]));
    cache.store(at(0), b"_sip._udp.h", RecordKind::Srv, FAILURE);
    cache.store(at(0), b"_sip._tcp.h", RecordKind::Srv, ok(300, vec![]));
    cache.store(at(0), b"h", RecordKind::A, one(300, "192.0.2.1"));
    // The look-up failed just now: the host's addresses are all that is left.
    assert_eq!(found(&cache, at(0), &q), OLD);
    assert_eq!(found(&cache, at(10), &q), "ask _sip._udp.h Srv");
    cache.store(
        at(10),
        b"_sip._udp.h",
        RecordKind::Srv,
        ok(60, vec![service(1, 1, 5099, "h")]),
    );
    assert_eq!(found(&cache, at(10), &q), "UDP 192.0.2.1:5099");
}

/// RFC 3263 §4.3: one host's failed look-up hides nothing of the results of the others.
#[test]
fn a_host_that_cannot_be_looked_up_is_passed_over() {
    let mut cache = Cache::new(10);
    let q = Question {
        transport: Some(Transport::Udp),
        ..question("d")
    };
    let services = vec![service(1, 1, 5061, "h1"), service(2, 1, 5062, "h2")];
    cache.store(at(0), b"_sip._udp.d", RecordKind::Srv, ok(300, services));
    assert_eq!(found(&cache, at(0), &q), "ask h1 A");
    assert_eq!(refreshes(&mut cache), ["h2 A"], "side by side");
    cache.store(at(5), b"h1", RecordKind::A, FAILURE);
    cache.store(at(1), b"h2", RecordKind::A, one(300, "192.0.2.2"));
    assert_eq!(found(&cache, at(5), &q), "UDP 192.0.2.2:5062");
    // The host is queried again beside the requests, and is there again.
    assert_eq!(found(&cache, at(7), &q), "UDP 192.0.2.2:5062");
    assert_eq!(refreshes(&mut cache), ["h1 A"]);
    cache.store(at(8), b"h1", RecordKind::A, one(300, "192.0.2.1"));
    assert_eq!(found(&cache, at(8), &q), "UDP 192.0.2.1:5061, UDP 192.0.2.2:5062");
}

/// The name was never known, and each query ends without a result after 5 s: the request fails in bounded
/// time.
#[test]
fn a_dead_name_service_is_reported_in_time() {
    let mut cache = Cache::new(100);
    let q = Question {
        ipv6: true,
        ..question("d")
    };
    let mut now = 0;
    let end = loop {
        let Located::Ask { name, kind } = cache.locate(at(now), &q) else {
            break found(&cache, at(now), &q);
        };
        let others: Vec<_> = core::iter::from_fn(|| cache.poll_refresh()).collect();
        now += 5;
        assert!(now <= 30, "still asking");
        cache.store(at(now), &name, kind, FAILURE);
        for (name, kind) in others {
            cache.store(at(now), &name, kind, FAILURE);
        }
    };
    assert_eq!(end, "unavailable");
}

/// The fate of an address concerns each request alone: the cache does not learn it.
#[test]
fn a_shorter_lived_answer_serves_the_next_and_the_list_of_one_under_way_stays() {
    let mut cache = Cache::new(10);
    let both = vec![address("192.0.2.1"), address("192.0.2.2")];
    cache.store(at(0), b"h", RecordKind::A, ok(3600, both));
    let got = cache.locate(at(1), &host());
    let Located::Done(under_way) = got else {
        panic!("{got:?}")
    };
    // The first was tried in vain. The next request starts with it all the same.
    assert_eq!(found(&cache, at(2), &host()), text(&under_way).join(", "));
    cache.store(at(3), b"h", RecordKind::A, one(10, "192.0.2.3"));
    assert_eq!(found(&cache, at(3), &host()), "UDP 192.0.2.3:5060");
    assert_eq!(text(&under_way), [OLD, NEW]);
    // The new time to live counts, not the rest of the old.
    found(&cache, at(13), &host());
    assert_eq!(refreshes(&mut cache), ["h A"]);
}

#[test]
fn names_that_do_not_exist_push_out_none_that_do() {
    let mut cache = Cache::new(50);
    for n in 0..10 {
        let name = alloc::format!("good{n}");
        cache.store(at(0), name.as_bytes(), RecordKind::A, one(30, "192.0.2.1"));
    }
    for n in 0..10_000 {
        let name = alloc::format!("bad{n}");
        let answer = if n % 2 == 0 { ok(86_400, vec![]) } else { FAILURE };
        cache.store(at(1), name.as_bytes(), RecordKind::A, answer);
        assert!(cache.len() <= 50);
    }
    for n in 0..10 {
        let name = alloc::format!("good{n}");
        let q = Question {
            port: Some(5060),
            ..question(&name)
        };
        assert_eq!(found(&cache, at(1), &q), OLD);
    }
    assert!(cache.counters().evicted > 9_000);
    // Names that exist: the soonest to end leaves.
    for n in 0..100 {
        let name = alloc::format!("more{n}");
        cache.store(at(2), name.as_bytes(), RecordKind::A, one(60 + n, "192.0.2.1"));
        assert!(cache.len() <= 50);
    }
    let q = Question {
        port: Some(5060),
        ..question("more99")
    };
    assert_eq!(found(&cache, at(2), &q), OLD);
}

#[test]
fn look_ups_without_a_waiting_request_are_bounded() {
    let mut cache = Cache::new(1_000);
    let names: Vec<_> = (0..200).map(|n| alloc::format!("h{n}")).collect();
    for name in &names {
        cache.store(at(0), name.as_bytes(), RecordKind::A, one(5, "192.0.2.1"));
    }
    let look = |cache: &Cache, now: Instant| {
        for name in &names {
            let q = Question {
                port: Some(5060),
                ..question(name)
            };
            assert_eq!(found(cache, now, &q), OLD, "all are served");
        }
    };
    look(&cache, at(10));
    assert_eq!(refreshes(&mut cache).len(), MAX_REFRESHES);
    assert_eq!(
        cache.counters().refreshes_refused,
        (names.len() - MAX_REFRESHES) as u64
    );
    look(&cache, at(11));
    assert_eq!(refreshes(&mut cache), [""; 0]);
    // A result makes room; so does one that never comes.
    cache.store(at(12), b"h0", RecordKind::A, one(300, "192.0.2.1"));
    look(&cache, at(12));
    assert_eq!(refreshes(&mut cache), ["h64 A"]);
    look(&cache, at(40));
    assert_eq!(refreshes(&mut cache).len(), MAX_REFRESHES);
}

/// If records were queried beside, and turned out not to be needed, they hold up no request when their time
/// is over.
#[test]
fn services_that_are_not_used_are_not_waited_for() {
    let mut cache = Cache::new(10);
    let q = question("h");
    cache.store(at(0), b"h", RecordKind::Naptr, ok(9_000, vec![]));
    assert_eq!(found(&cache, at(0), &q), "ask _sip._udp.h Srv");
    assert_eq!(refreshes(&mut cache), ["_sip._tcp.h Srv"]);
    let services = ok(9_000, vec![service(1, 1, 5099, "h")]);
    cache.store(at(0), b"_sip._udp.h", RecordKind::Srv, services);
    cache.store(at(0), b"h", RecordKind::A, one(9_000, "192.0.2.1"));
    assert_eq!(
        found(&cache, at(0), &q),
        "UDP 192.0.2.1:5099",
        "before its answer"
    );
    cache.store(at(1), b"_sip._tcp.h", RecordKind::Srv, ok(5, vec![]));
    assert_eq!(
        found(&cache, at(8_000), &q),
        "UDP 192.0.2.1:5099",
        "and long after"
    );
    assert_eq!(refreshes(&mut cache), [""; 0]);
}

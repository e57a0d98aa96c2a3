//! The machine and its cache, against zones made of values.

mod life;
mod naptr;
mod properties;

use alloc::boxed::Box;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;

use super::*;
use crate::query::{Record, Records, Unavailable};
use crate::time::Instant;

type Zone<'z> = &'z [(&'z str, RecordKind, Vec<Record>)];

const UDP_TCP: Transports = Transports::NONE.with(Transport::Udp).with(Transport::Tcp);
const ALL: Transports = UDP_TCP.with(Transport::Tls);

fn question(name: &str) -> Question<'_> {
    Question {
        host: HostRef::Name(name.as_bytes()),
        port: None,
        transport: None,
        secure: false,
        transports: UDP_TCP,
        ipv4: true,
        ipv6: false,
        dice: 1,
        stateless: false,
    }
}

#[track_caller]
fn address(ip: &str) -> Record {
    Record::Address(ip.parse().unwrap())
}

fn service(priority: u16, weight: u16, port: u16, target: &str) -> Record {
    Record::Service {
        priority,
        weight,
        port,
        target: Box::from(target.as_bytes()),
    }
}

fn pointer(order: u16, preference: u16, service: &str, replacement: &str) -> Record {
    Record::Naptr {
        order,
        preference,
        flags: Box::from(&b"s"[..]),
        service: Box::from(service.as_bytes()),
        regexp: Box::default(),
        replacement: Box::from(replacement.as_bytes()),
    }
}

fn ok(ttl_s: u32, values: Vec<Record>) -> Result<Records, Unavailable> {
    Ok(Records { ttl_s, values })
}

fn at(seconds: u64) -> Instant {
    Instant::from_micros(seconds * 1_000_000)
}

fn find<'z>(zone: Zone<'z>, name: &[u8], kind: RecordKind) -> &'z [Record] {
    zone.iter()
        .find(|z| z.0.as_bytes() == name && z.1 == kind)
        .map_or(&[], |z| &z.2[..])
}

fn text(candidates: &Candidates) -> Vec<String> {
    candidates
        .iter()
        .map(|c| alloc::format!("{} {}", c.transport, c.address))
        .collect()
}

fn spell(name: &[u8], kind: RecordKind) -> String {
    alloc::format!("{} {kind:?}", String::from_utf8_lossy(name))
}

/// Gives results from `zone` until the machine is done. Returns the addresses, and the queries.
#[track_caller]
fn run(cache: &mut Cache, zone: Zone<'_>, q: &Question<'_>) -> (Vec<String>, Vec<String>) {
    let mut asked = vec![];
    loop {
        let (name, kind) = match cache.locate(Instant::ORIGIN, q) {
            Located::Done(c) => return (text(&c), asked),
            Located::Unavailable => return (vec!["unavailable".to_string()], asked),
            Located::Ask { name, kind } => (name, kind),
        };
        asked.push(spell(&name, kind));
        assert!(asked.len() <= MAX_LOOKUPS, "{asked:?}");
        let records = find(zone, &name, kind).to_vec();
        cache.store(Instant::ORIGIN, &name, kind, ok(60, records));
        while let Some((name, kind)) = cache.poll_refresh() {
            asked.push(spell(&name, kind));
            let records = find(zone, &name, kind).to_vec();
            cache.store(Instant::ORIGIN, &name, kind, ok(60, records));
        }
    }
}

fn locate(zone: Zone<'_>, q: &Question<'_>) -> Vec<String> {
    run(&mut Cache::new(100), zone, q).0
}

fn asked(zone: Zone<'_>, q: &Question<'_>) -> Vec<String> {
    run(&mut Cache::new(100), zone, q).1
}

#[test]
fn an_address_needs_no_question() {
    let mut q = question("x");
    q.transports = ALL;
    q.host = HostRef::Ip("192.0.2.1".parse().unwrap());
    let found = |q: &Question<'_>| run(&mut Cache::new(1), &[], q);
    assert_eq!(found(&q), (vec!["UDP 192.0.2.1:5060".to_string()], vec![]));
    q.secure = true;
    assert_eq!(found(&q), (vec!["TLS 192.0.2.1:5061".to_string()], vec![]));
    q.port = Some(5070);
    q.secure = false;
    q.transport = Some(Transport::Tcp);
    assert_eq!(found(&q), (vec!["TCP 192.0.2.1:5070".to_string()], vec![]));
    // SIPS over anything is TLS over that.
    q.secure = true;
    assert_eq!(found(&q).0, ["TLS 192.0.2.1:5070"]);
    q.transport = Some(Transport::Ws);
    assert_eq!(found(&q).0, [""; 0], "nobody can open one");
    q.transports = ALL.with(Transport::Wss);
    assert_eq!(found(&q).0, ["WSS 192.0.2.1:5070"]);
}

#[test]
fn a_port_means_address_records_only() {
    let zone = [(
        "gw.example.com",
        RecordKind::A,
        vec![address("192.0.2.1"), address("192.0.2.2")],
    )];
    let mut q = question("GW.example.com.");
    q.port = Some(5080);
    assert_eq!(locate(&zone, &q), ["UDP 192.0.2.1:5080", "UDP 192.0.2.2:5080"]);
    assert_eq!(asked(&zone, &q), ["gw.example.com A"]);
    q.transports = ALL;
    q.secure = true;
    assert_eq!(locate(&zone, &q)[0], "TLS 192.0.2.1:5080");
    q.secure = false;
    q.transports = Transports::NONE.with(Transport::Tcp);
    assert_eq!(
        locate(&zone, &q)[0],
        "TCP 192.0.2.1:5080",
        "UDP cannot be sent from here"
    );
}

#[test]
fn a_transport_in_the_uri_means_its_services_only() {
    let zone = [
        (
            "example.com",
            RecordKind::Naptr,
            vec![pointer(1, 1, "SIP+D2U", "_sip._udp.example.com")],
        ),
        (
            "_sip._udp.example.com",
            RecordKind::Srv,
            vec![service(1, 1, 5061, "udp.example.com")],
        ),
        (
            "_sip._tcp.example.com",
            RecordKind::Srv,
            vec![service(1, 1, 5062, "tcp.example.com")],
        ),
        (
            "_sips._tcp.example.com",
            RecordKind::Srv,
            vec![service(1, 1, 5063, "tls.example.com")],
        ),
        ("udp.example.com", RecordKind::A, vec![address("192.0.2.1")]),
        ("tcp.example.com", RecordKind::A, vec![address("192.0.2.2")]),
        ("tls.example.com", RecordKind::A, vec![address("192.0.2.3")]),
        ("example.com", RecordKind::A, vec![address("192.0.2.9")]),
    ];
    let mut q = question("example.com");
    q.transports = ALL;
    let cases = [
        (Transport::Udp, false, "UDP 192.0.2.1:5061"),
        (Transport::Tcp, false, "TCP 192.0.2.2:5062"),
        (Transport::Tls, false, "TLS 192.0.2.3:5063"),
        (Transport::Tcp, true, "TLS 192.0.2.3:5063"),
        (Transport::Tls, true, "TLS 192.0.2.3:5063"),
    ];
    for (transport, secure, expected) in cases {
        (q.transport, q.secure) = (Some(transport), secure);
        let (found, asked) = run(&mut Cache::new(100), &zone, &q);
        assert_eq!(found, [expected]);
        assert_eq!(asked.len(), 2, "{asked:?}");
        // Without services: the host's addresses at the transport's port.
        let port = transport.default_port().max(if secure { 5061 } else { 0 });
        let found = locate(&zone[7..], &q);
        assert_eq!(found.len(), 1);
        assert!(
            found[0].ends_with(&alloc::format!(" 192.0.2.9:{port}")),
            "{found:?}"
        );
    }
    // RFC 7118 has no services, and not every server opens WebSockets.
    (q.transport, q.secure) = (Some(Transport::Ws), false);
    assert_eq!(locate(&zone, &q), Vec::<String>::new());
    q.transports = ALL.with(Transport::Ws);
    assert_eq!(locate(&zone, &q), ["WS 192.0.2.9:80"]);
}

#[test]
fn an_unusable_target_asks_no_question() {
    let mut q = question("example.com");
    let long = "a.".repeat(127);
    let nothing = (Vec::<String>::new(), Vec::<String>::new());
    for change in [
        |q: &mut Question<'_>| q.transports = Transports::NONE,
        |q: &mut Question<'_>| q.secure = true,
        |q: &mut Question<'_>| q.transport = Some(Transport::Tls),
        |q: &mut Question<'_>| (q.secure, q.port) = (true, Some(5061)),
        |q: &mut Question<'_>| q.host = HostRef::Name(b"."),
        |q: &mut Question<'_>| q.host = HostRef::Name(b""),
    ] {
        let mut q = q;
        change(&mut q);
        assert_eq!(run(&mut Cache::new(100), &[], &q), nothing, "{q:?}");
    }
    let long = [long.as_bytes(), b"ab"].concat();
    q.host = HostRef::Name(&long);
    assert_eq!(run(&mut Cache::new(100), &[], &q), nothing);
}

#[test]
fn services_come_by_priority_and_fall_back_to_addresses() {
    let zone = [
        (
            "_sip._udp.example.com",
            RecordKind::Srv,
            vec![
                service(20, 0, 5062, "b.example.com"),
                service(10, 0, 5061, "A.example.com"),
                service(5, 0, 0, "b.example.com"),
            ],
        ),
        ("a.example.com", RecordKind::A, vec![address("192.0.2.1")]),
        ("b.example.com", RecordKind::A, vec![address("192.0.2.2")]),
        ("example.com", RecordKind::A, vec![address("192.0.2.9")]),
    ];
    assert_eq!(
        locate(&zone, &question("example.com")),
        ["UDP 192.0.2.1:5061", "UDP 192.0.2.2:5062"]
    );
    assert_eq!(
        locate(&zone[3..], &question("example.com")),
        ["UDP 192.0.2.9:5060"]
    );
    assert_eq!(locate(&[], &question("example.com")), Vec::<String>::new());
}

/// RFC 2782: "." says decidedly not; RFC 3263 §4.2: a host's addresses count only if there are no SRV
/// records.
#[test]
fn a_service_that_is_not_offered_is_not_looked_for_elsewhere() {
    let mut zone = vec![
        (
            "_sip._udp.example.com",
            RecordKind::Srv,
            vec![service(0, 0, 0, "")],
        ),
        ("example.com", RecordKind::A, vec![address("192.0.2.9")]),
        ("a.example.com", RecordKind::A, vec![address("192.0.2.1")]),
    ];
    assert_eq!(locate(&zone, &question("example.com")), Vec::<String>::new());
    zone.push((
        "_sip._tcp.example.com",
        RecordKind::Srv,
        vec![service(1, 1, 5090, "a.example.com")],
    ));
    assert_eq!(locate(&zone, &question("example.com")), ["TCP 192.0.2.1:5090"]);
}

#[test]
fn both_families_are_asked_where_both_can_be_used() {
    let zone = [
        ("h.example.com", RecordKind::A, vec![address("192.0.2.1")]),
        ("h.example.com", RecordKind::Aaaa, vec![address("2001:db8::1")]),
    ];
    let mut q = question("h.example.com");
    q.port = Some(5060);
    q.ipv6 = true;
    assert_eq!(
        locate(&zone, &q),
        ["UDP 192.0.2.1:5060", "UDP [2001:db8::1]:5060"]
    );
    q.ipv4 = false;
    assert_eq!(locate(&zone, &q), ["UDP [2001:db8::1]:5060"]);
    assert_eq!(asked(&zone, &q), ["h.example.com Aaaa"]);
}

/// 0.0.0.0 would be this machine.
#[test]
fn addresses_that_are_no_hosts_are_left_out() {
    let bad = [
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
        "2001:db8::1",
        "192.0.2.1",
    ];
    let zone = [("h", RecordKind::A, bad.map(address).to_vec())];
    let mut q = question("h");
    q.port = Some(5060);
    assert_eq!(locate(&zone, &q), ["UDP 192.0.2.1:5060"]);
    let bad = ["::", "ff02::1", "::ffff:192.0.2.1", "192.0.2.1", "2001:db8::1"];
    let zone = [("h", RecordKind::Aaaa, bad.map(address).to_vec())];
    (q.ipv4, q.ipv6) = (false, true);
    assert_eq!(locate(&zone, &q), ["UDP [2001:db8::1]:5060"]);
}

/// RFC 3261 §16.11: the choice is the same in whatever order the name service gives addresses, at each
/// worker.
#[test]
fn without_state_the_choice_follows_from_the_set_alone() {
    let ips = ["192.0.2.3", "192.0.2.1", "192.0.2.2"];
    let mut turned = ips;
    turned.rotate_left(1);
    let zones = [ips, turned].map(|ips| [("h", RecordKind::A, ips.map(address).to_vec())]);
    let mut q = question("h");
    q.port = Some(5060);
    // With state, addresses stay as they came.
    assert_eq!(locate(&zones[0], &q)[0], "UDP 192.0.2.3:5060");
    assert_eq!(locate(&zones[1], &q)[0], "UDP 192.0.2.1:5060");
    q.stateless = true;
    let mut firsts = alloc::collections::BTreeSet::new();
    for dice in 0..50 {
        q.dice = dice;
        assert_eq!(locate(&zones[0], &q), locate(&zones[1], &q));
        firsts.insert(locate(&zones[0], &q)[0].clone());
    }
    assert_eq!(firsts.len(), 3, "all of them are used");
}

#[test]
fn weights_share_the_load_and_the_same_dice_give_the_same_order() {
    let records = [
        service(1, 75, 5060, "big"),
        service(1, 25, 5060, "small"),
        service(1, 0, 5060, "never"),
    ];
    let mut first = alloc::collections::BTreeMap::new();
    for dice in 0..4000u64 {
        let order = services::order_services(&records, services::step(dice));
        assert_eq!(order.len(), 3);
        assert_eq!(order, services::order_services(&records, services::step(dice)));
        *first.entry(order[0].0).or_insert(0) += 1;
    }
    let share = |name: &str| first.get(name.as_bytes()).copied().unwrap_or(0);
    assert!((2850..3150).contains(&share("big")), "{}", share("big"));
    assert!(share("never") < 100, "{}", share("never"));
}

#[test]
fn a_response_goes_by_what_via_says() {
    let zone = [
        (
            "_sip._udp.ua.example.com",
            RecordKind::Srv,
            vec![service(1, 1, 5071, "h.example.com")],
        ),
        (
            "_sips._tcp.ua.example.com",
            RecordKind::Srv,
            vec![service(1, 1, 5073, "h.example.com")],
        ),
        ("h.example.com", RecordKind::A, vec![address("192.0.2.1")]),
        ("ua.example.com", RecordKind::A, vec![address("192.0.2.2")]),
    ];
    let find = |host: HostRef<'_>, port: Option<u16>, transport: Transport| {
        let mut cache = Cache::new(100);
        let sent_by = SentBy {
            host,
            port,
            transport,
            ipv4: true,
            ipv6: false,
            dice: 1,
        };
        for _ in 0..10 {
            match cache.locate_response(Instant::ORIGIN, &sent_by) {
                Located::Done(candidates) => return text(&candidates),
                Located::Ask { name, kind } => {
                    let records = super::tests::find(&zone, &name, kind).to_vec();
                    cache.store(Instant::ORIGIN, &name, kind, ok(60, records));
                }
                Located::Unavailable => panic!("nothing failed"),
            }
        }
        panic!("no end")
    };
    let name = HostRef::Name(b"ua.example.com");
    let ip = HostRef::Ip("192.0.2.7".parse().unwrap());
    assert_eq!(find(ip, None, Transport::Udp), ["UDP 192.0.2.7:5060"]);
    assert_eq!(find(ip, Some(5080), Transport::Tcp), ["TCP 192.0.2.7:5080"]);
    assert_eq!(find(name, Some(5080), Transport::Udp), ["UDP 192.0.2.2:5080"]);
    assert_eq!(find(name, None, Transport::Udp), ["UDP 192.0.2.1:5071"]);
    assert_eq!(find(name, None, Transport::Tls), ["TLS 192.0.2.1:5073"]);
    assert_eq!(find(name, None, Transport::Tcp), ["TCP 192.0.2.2:5060"]);
    assert_eq!(find(name, None, Transport::Wss), Vec::<String>::new());
}

//! NAPTR (RFC 3263 §4.1), as domains write it and as they should not.

use super::*;

/// RFC 3263 §4.1's example domain.
fn domain() -> Vec<(&'static str, RecordKind, Vec<Record>)> {
    vec![
        (
            "example.com",
            RecordKind::Naptr,
            vec![
                pointer(100, 50, "SIP+D2U", "_sip._udp.example.com"),
                pointer(90, 50, "SIP+D2T", "_sip._tcp.example.com"),
                pointer(50, 50, "SIPS+D2T", "_sips._tcp.example.com"),
                pointer(10, 50, "SIP+D2S", "_sip._sctp.example.com"),
            ],
        ),
        (
            "_sips._tcp.example.com",
            RecordKind::Srv,
            vec![service(1, 1, 5061, "h.example.com")],
        ),
        (
            "_sip._tcp.example.com",
            RecordKind::Srv,
            vec![
                service(2, 1, 5072, "h.example.com"),
                service(1, 1, 5071, "h.example.com"),
            ],
        ),
        (
            "_sip._udp.example.com",
            RecordKind::Srv,
            vec![service(1, 1, 5060, "h.example.com")],
        ),
        ("h.example.com", RecordKind::A, vec![address("192.0.2.1")]),
        ("example.com", RecordKind::A, vec![address("192.0.2.9")]),
    ]
}

#[test]
fn the_domains_order_among_the_transports_that_we_speak() {
    let mut q = question("Example.com");
    assert_eq!(
        locate(&domain(), &q),
        ["TCP 192.0.2.1:5071", "TCP 192.0.2.1:5072", "UDP 192.0.2.1:5060"]
    );
    assert_eq!(
        asked(&domain(), &q),
        [
            "example.com Naptr",
            "_sip._tcp.example.com Srv",
            "_sip._udp.example.com Srv",
            "h.example.com A"
        ]
    );
    // "A client resolving a SIP URI SHOULD retain records with SIPS, if it supports TLS."
    q.transports = ALL;
    assert_eq!(locate(&domain(), &q)[0], "TLS 192.0.2.1:5061");
    q.transports = Transports::NONE.with(Transport::Udp);
    assert_eq!(locate(&domain(), &q), ["UDP 192.0.2.1:5060"]);
}

#[test]
fn a_sips_uri_takes_services_of_sips_only() {
    let mut q = question("example.com");
    (q.secure, q.transports) = (true, ALL);
    assert_eq!(locate(&domain(), &q), ["TLS 192.0.2.1:5061"]);
    // If NAPTR has none of them, it counts as absent; at last the host itself is used.
    let mut zone = domain();
    zone[0]
        .2
        .retain(|r| matches!(r, Record::Naptr { service, .. } if !service.starts_with(b"SIPS")));
    assert_eq!(locate(&zone, &q), ["TLS 192.0.2.1:5061"]);
    assert_eq!(locate(&zone[2..], &q), ["TLS 192.0.2.9:5061"]);
}

#[test]
fn preference_settles_equal_orders_and_case_does_not_matter() {
    let mut zone = domain();
    zone[0].2 = vec![
        pointer(7, 20, "sip+d2t", "_SIP._tcp.Example.com"),
        pointer(7, 10, "Sip+D2u", "_sip._udp.example.com"),
    ];
    if let Record::Naptr { flags, .. } = &mut zone[0].2[0] {
        *flags = Box::from(&b"S"[..]);
    }
    assert_eq!(
        locate(&zone, &question("example.com")),
        ["UDP 192.0.2.1:5060", "TCP 192.0.2.1:5071", "TCP 192.0.2.1:5072"]
    );
}

#[test]
fn the_replacement_may_lie_in_another_domain() {
    let zone = [
        (
            "example.com",
            RecordKind::Naptr,
            vec![pointer(1, 1, "SIP+D2T", "_sip._tcp.school.edu")],
        ),
        (
            "_sip._tcp.school.edu",
            RecordKind::Srv,
            vec![service(1, 1, 5075, "h.school.edu")],
        ),
        ("h.school.edu", RecordKind::A, vec![address("192.0.2.4")]),
    ];
    assert_eq!(locate(&zone, &question("example.com")), ["TCP 192.0.2.4:5075"]);
}

#[test]
fn websockets_only_where_they_can_be_opened() {
    let mut zone = domain();
    zone[0].2 = vec![
        pointer(1, 1, "SIPS+D2W", "_sips._ws.example.com"),
        pointer(2, 1, "SIP+D2T", "_sip._tcp.example.com"),
    ];
    zone.push((
        "_sips._ws.example.com",
        RecordKind::Srv,
        vec![service(1, 1, 443, "h.example.com")],
    ));
    let mut q = question("example.com");
    assert_eq!(locate(&zone, &q)[0], "TCP 192.0.2.1:5071");
    q.transports = UDP_TCP.with(Transport::Wss);
    assert_eq!(locate(&zone, &q)[0], "WSS 192.0.2.1:443");
}

/// Records with wrong flags, a regular expression, no replacement or another service count as absent.
#[test]
fn records_that_are_none_of_ours_change_nothing() {
    let with = |flags: &str, service: &str, regexp: &str, replacement: &str| Record::Naptr {
        order: 1,
        preference: 1,
        flags: flags.as_bytes().into(),
        service: service.as_bytes().into(),
        regexp: regexp.as_bytes().into(),
        replacement: replacement.as_bytes().into(),
    };
    let to = "_sip._tcp.example.com";
    let mut bad = vec![
        with("s", "SIP+D2T", "!^.*$!sip:info@example.com!", to),
        with("s", "SIP+D2T", "", ""),
        with("s", "SIP+D2T", "", "."),
    ];
    for flags in ["", "a", "u", "p", "ss", "su", "\u{0}"] {
        bad.push(with(flags, "SIP+D2T", "", to));
    }
    for service in [
        "",
        "SIP",
        "SIP+",
        "SIP+D2",
        "SIP+D2X",
        "SIPS+D2U",
        "E2U+sip",
        "SIP+D2T+D2U",
    ] {
        bad.push(with("s", service, "", to));
    }
    let mut zone = domain();
    // If there are no others, the result is the same as without NAPTR.
    zone[0].2 = bad.clone();
    assert_eq!(
        locate(&zone, &question("example.com")),
        locate(&domain()[1..], &question("example.com"))
    );
    assert_eq!(locate(&zone, &question("example.com")), ["UDP 192.0.2.1:5060"]);
    // If there is a good one, it is used.
    zone[0].2.push(pointer(9, 9, "SIP+D2T", "_sip._tcp.example.com"));
    assert_eq!(locate(&zone, &question("example.com"))[0], "TCP 192.0.2.1:5071");
}

/// Records may lead to themselves, to another NAPTR, or through an SRV record back to the domain. Each step
/// goes on to another kind of record, so there is no circle.
#[test]
fn circles_end() {
    let zone = [
        (
            "example.com",
            RecordKind::Naptr,
            vec![
                pointer(1, 1, "SIP+D2T", "example.com"),
                pointer(2, 1, "SIP+D2T", "other.example.com"),
            ],
        ),
        (
            "other.example.com",
            RecordKind::Naptr,
            vec![pointer(1, 1, "SIP+D2T", "example.com")],
        ),
    ];
    let q = question("example.com");
    assert_eq!(locate(&zone, &q), Vec::<String>::new());
    assert_eq!(
        asked(&zone, &q),
        [
            "example.com Naptr",
            "example.com Srv",
            "other.example.com Srv",
            "example.com A"
        ]
    );
    let zone = [
        zone[0].clone(),
        (
            "example.com",
            RecordKind::Srv,
            vec![service(1, 1, 5065, "example.com")],
        ),
        ("example.com", RecordKind::A, vec![address("192.0.2.9")]),
    ];
    assert_eq!(locate(&zone, &q), ["TCP 192.0.2.9:5065"]);
}

#[test]
fn a_replacement_without_services_leaves_the_host_by_that_transport() {
    let zone = [
        (
            "example.com",
            RecordKind::Naptr,
            vec![pointer(1, 1, "SIP+D2T", "_sip._tcp.gone.example.com")],
        ),
        ("example.com", RecordKind::A, vec![address("192.0.2.9")]),
    ];
    assert_eq!(locate(&zone, &question("example.com")), ["TCP 192.0.2.9:5060"]);
}

/// Thousands of pointers, services and hosts: the look-ups are bounded, and are the best of them.
#[test]
fn too_many_records_are_bounded() {
    let names: Vec<String> = (0..2_000)
        .map(|n| alloc::format!("_sip._tcp.n{n}.example.com"))
        .collect();
    let pointers = (0..2_000u16)
        .rev()
        .map(|n| pointer(n, 0, "SIP+D2T", &names[usize::from(n)]))
        .collect();
    let hosts = |of: u16| {
        (0..500u16)
            .rev()
            .map(|n| service(n, 0, 5060, &alloc::format!("h{of}-{n}.example.com")))
            .collect()
    };
    let mut zone = vec![("example.com", RecordKind::Naptr, pointers)];
    for n in 0..20u16 {
        zone.push((&names[usize::from(n)], RecordKind::Srv, hosts(n)));
    }
    let mut q = question("example.com");
    q.ipv6 = true;
    let asked = asked(&zone, &q);
    assert_eq!(asked.len(), 1 + MAX_SERVICES + 2 * MAX_TARGETS);
    assert!(asked.contains(&"h0-0.example.com A".to_string()), "{asked:?}");
    let ips = (1..=200)
        .map(|n| address(&alloc::format!("192.0.2.{n}")))
        .collect();
    zone.push(("h0-0.example.com", RecordKind::A, ips));
    let found = locate(&zone, &q);
    assert_eq!(found.len(), MAX_CANDIDATES);
    assert_eq!(found[0], "TCP 192.0.2.1:5060");
}

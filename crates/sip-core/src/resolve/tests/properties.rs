//! Properties of any records.

use alloc::collections::BTreeMap;

use proptest::prelude::*;

use super::super::services::{order_services, step};
use super::*;

/// Few names, so that they lead to each other.
const NAMES: [&str; 9] = [
    "d.test",
    "h1.test",
    "h2.test",
    "_sip._udp.d.test",
    "_sip._tcp.d.test",
    "_sips._tcp.d.test",
    "_sip._tcp.h1.test",
    "",
    ".",
];

fn names() -> impl Strategy<Value = &'static str> {
    prop::sample::select(&NAMES[..])
}

fn records() -> impl Strategy<Value = Record> {
    let services = prop::sample::select(
        &[
            "SIP+D2U", "SIP+D2T", "SIPS+D2T", "SIP+D2S", "SIP+D2W", "SIPS+D2W", "E2U+sip", "",
        ][..],
    );
    let flags = prop::sample::select(&["s", "S", "", "a", "u"][..]);
    let regexp = prop::sample::select(&["", "", "", "!.*!x!"][..]);
    prop_oneof![
        any::<[u8; 4]>().prop_map(|ip| Record::Address(ip.into())),
        (0..16u16).prop_map(|n| Record::Address([192, 0, 2, n as u8].into())),
        any::<[u8; 16]>().prop_map(|ip| Record::Address(ip.into())),
        (0..3u16, any::<u16>(), any::<u16>(), names()).prop_map(|(p, w, port, t)| service(p, w, port, t)),
        (0..3u16, 0..3u16, flags, services, regexp, names()).prop_map(|(o, p, f, s, x, r)| Record::Naptr {
            order: o,
            preference: p,
            flags: f.as_bytes().into(),
            service: s.as_bytes().into(),
            regexp: x.as_bytes().into(),
            replacement: r.as_bytes().into(),
        }),
    ]
}

const KINDS: [RecordKind; 4] = [
    RecordKind::A,
    RecordKind::Aaaa,
    RecordKind::Srv,
    RecordKind::Naptr,
];

type AnyZone = BTreeMap<(usize, usize), Option<Vec<Record>>>;

/// Each record set, or a failure if the name service gives none.
fn zones() -> impl Strategy<Value = AnyZone> {
    let set = prop::option::weighted(0.9, prop::collection::vec(records(), 0..24));
    prop::collection::btree_map((0..NAMES.len(), 0..KINDS.len()), set, 0..30)
}

const TRANSPORTS: [Transport; 5] = [
    Transport::Udp,
    Transport::Tcp,
    Transport::Tls,
    Transport::Ws,
    Transport::Wss,
];

prop_compose! {
    fn questions()(
        port in prop::option::weighted(0.2, 1..=u16::MAX),
        transport in prop::option::weighted(0.3, prop::sample::select(&TRANSPORTS[..])),
        secure in any::<bool>(),
        transports in prop::sample::subsequence(TRANSPORTS.to_vec(), 0..=5),
        ipv4 in any::<bool>(),
        ipv6 in any::<bool>(),
        dice in any::<u64>(),
        stateless in any::<bool>(),
    ) -> Question<'static> {
        Question {
            host: HostRef::Name(b"D.test."),
            port,
            transport,
            secure,
            transports: transports.into_iter().collect(),
            ipv4,
            ipv6,
            dice,
            stateless,
        }
    }
}

fn answer(zone: &AnyZone, name: &[u8], kind: RecordKind) -> Result<Records, Unavailable> {
    let name = NAMES.iter().position(|n| n.as_bytes() == name);
    let kind = KINDS.iter().position(|k| *k == kind);
    match name.zip(kind).and_then(|key| zone.get(&key)) {
        Some(Some(values)) => ok(60, values.clone()),
        Some(None) => Err(Unavailable),
        None => ok(60, vec![]),
    }
}

/// Runs the machine to its end; `None`: unavailable.
fn solve(zone: &AnyZone, q: &Question<'_>, side_by_side: bool) -> Option<Candidates> {
    let mut cache = Cache::new(1_000);
    for _ in 0..=MAX_LOOKUPS {
        match cache.locate(Instant::ORIGIN, q) {
            Located::Done(candidates) => return Some(candidates),
            Located::Unavailable => return None,
            Located::Ask { name, kind } => {
                cache.store(Instant::ORIGIN, &name, kind, answer(zone, &name, kind));
            }
        }
        while let Some((name, kind)) = cache.poll_refresh().filter(|_| side_by_side) {
            cache.store(Instant::ORIGIN, &name, kind, answer(zone, &name, kind));
        }
    }
    panic!("more than {MAX_LOOKUPS} look-ups")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn any_records_give_only_what_can_be_sent_to(zone in zones(), q in questions()) {
        let found = solve(&zone, &q, true);
        // The same dice give the same order, whether look-ups are made one by one or side by side.
        prop_assert_eq!(&found, &solve(&zone, &q, true));
        prop_assert_eq!(&found, &solve(&zone, &q, false));
        let found = found.unwrap_or_default();
        prop_assert!(found.len() <= MAX_CANDIDATES);
        for (at, candidate) in found.iter().enumerate() {
            prop_assert!(q.transports.has(candidate.transport));
            let family = (candidate.address.is_ipv4() && q.ipv4) || (candidate.address.is_ipv6() && q.ipv6);
            prop_assert!(family);
            prop_assert!(candidate.address.port() != 0);
            prop_assert!(!candidate.address.ip().is_unspecified());
            if let Some(port) = q.port {
                prop_assert_eq!(candidate.address.port(), port);
            }
            if q.secure {
                prop_assert!(matches!(candidate.transport, Transport::Tls | Transport::Wss));
            }
            if let Some(wanted) = q.wanted_transport() {
                prop_assert_eq!(candidate.transport, wanted);
            }
            prop_assert!(!found[..at].contains(candidate), "none twice");
        }
    }

    /// The order of the records in a result decides nothing but the order of a host's addresses, and
    /// without state not even that.
    #[test]
    fn the_order_of_records_does_not_matter_without_state(
        zone in zones(),
        mut q in questions(),
        turn in 0..24usize,
    ) {
        q.stateless = true;
        let mut turned = zone.clone();
        for set in turned.values_mut().flatten() {
            let by = turn.min(set.len());
            set.rotate_left(by);
        }
        let (a, b) = (solve(&zone, &q, true), solve(&turned, &q, true));
        // Equal order and preference leave the choice of transports to the order of the records.
        let settled = zone.iter().all(|(key, set)| KINDS[key.1] != RecordKind::Naptr || set.is_none());
        if settled {
            prop_assert_eq!(a, b);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// RFC 2782: lower priorities first, and among equals shares by weight.
    #[test]
    fn weights_are_shares(weights in prop::collection::vec(1..1_000u16, 1..6), seed in any::<u64>()) {
        let names: Vec<String> = (0..weights.len()).map(|n| alloc::format!("h{n}")).collect();
        let mut records: Vec<Record> = weights
            .iter()
            .zip(&names)
            .map(|(w, name)| service(5, *w, 5060, name))
            .collect();
        records.push(service(9, u16::MAX, 5060, "last"));
        const DRAWS: u64 = 10_000;
        let mut firsts = BTreeMap::new();
        for n in 0..DRAWS {
            let order = order_services(&records, step(seed.wrapping_add(n)));
            prop_assert_eq!(order.len(), records.len());
            prop_assert_eq!(order.last().map(|o| o.0), Some(&b"last"[..]));
            *firsts.entry(order[0].0).or_insert(0u64) += 1;
        }
        let sum: u64 = weights.iter().map(|w| u64::from(*w)).sum();
        for (weight, name) in weights.iter().zip(&names) {
            let share = firsts.get(name.as_bytes()).copied().unwrap_or(0) as f64 / DRAWS as f64;
            let expected = f64::from(*weight) / sum as f64;
            // Ten standard deviations of 10,000 draws are at most 0.05.
            prop_assert!((share - expected).abs() < 0.05, "{} for {}", share, expected);
        }
    }
}

//! Record sets by name and type, and the machine that runs over them.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use smallvec::SmallVec;

use super::{Candidate, Candidates, HostRef, Located, MAX_CANDIDATES, Question};
use crate::query::{Record, RecordKind, Records, Unavailable};
use crate::time::Instant;
use crate::transport::Transport;

/// An answer with a TTL of 0 still serves the request that asked, while it waits for the next one,
/// seconds.
const MIN_TTL_S: u32 = 5;
/// Longest time that an answer is kept, whatever its TTL says, seconds.
const MAX_TTL_S: u32 = 86_400;
/// How long a failed look-up is remembered, seconds: long enough to answer those that wait, short
/// enough to recover at once.
const UNAVAILABLE_TTL_S: u32 = 1;

#[derive(Clone, Debug)]
struct Entry {
    until: Instant,
    records: Result<Vec<Record>, Unavailable>,
}

/// A bounded cache of record sets, one per worker. Ordered, so that what it does is the same
/// each time.
#[derive(Debug)]
pub struct Cache {
    entries: BTreeMap<(Box<[u8]>, u8), Entry>,
    limit: usize,
}

const fn kind_index(kind: RecordKind) -> u8 {
    match kind {
        RecordKind::A => 0,
        RecordKind::Aaaa => 1,
        RecordKind::Srv => 2,
    }
}

enum Found<'a> {
    Records(&'a [Record]),
    Unavailable,
    Missing,
}

impl Cache {
    /// An empty cache for at most `limit` record sets.
    pub fn new(limit: usize) -> Self {
        Self {
            entries: BTreeMap::new(),
            limit: limit.max(1),
        }
    }

    /// Record sets held.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Keeps an answer for its TTL.
    pub fn store(
        &mut self,
        now: Instant,
        name: &[u8],
        kind: RecordKind,
        answer: Result<Records, Unavailable>,
    ) {
        if self.entries.len() >= self.limit {
            self.make_room(now);
        }
        let (ttl_s, records) = match answer {
            Ok(records) => (records.ttl_s.clamp(MIN_TTL_S, MAX_TTL_S), Ok(records.values)),
            Err(Unavailable) => (UNAVAILABLE_TTL_S, Err(Unavailable)),
        };
        let until = now + crate::time::Millis(ttl_s * 1000);
        self.entries.insert(
            (name.to_ascii_lowercase().into_boxed_slice(), kind_index(kind)),
            Entry { until, records },
        );
    }

    /// What has ended leaves; if nothing has, the soonest to end.
    fn make_room(&mut self, now: Instant) {
        self.entries.retain(|_, e| e.until > now);
        if self.entries.len() >= self.limit
            && let Some(key) = self
                .entries
                .iter()
                .min_by_key(|(_, e)| e.until)
                .map(|(k, _)| k.clone())
        {
            self.entries.remove(&key);
        }
    }

    fn find(&self, now: Instant, name: &[u8], kind: RecordKind) -> Found<'_> {
        let key = (name.to_ascii_lowercase().into_boxed_slice(), kind_index(kind));
        match self.entries.get(&key) {
            Some(entry) if entry.until > now => match &entry.records {
                Ok(records) => Found::Records(records),
                Err(Unavailable) => Found::Unavailable,
            },
            _ => Found::Missing,
        }
    }

    /// Runs the machine. Allocates nothing for addresses.
    pub fn locate(&self, now: Instant, question: &Question<'_>) -> Located {
        let name = match question.host {
            HostRef::Ip(ip) => {
                let transport = question.default_transport();
                let port = question.port.unwrap_or(transport.default_port());
                let mut candidates = Candidates::new();
                candidates.push(Candidate {
                    transport,
                    address: SocketAddr::new(ip, port),
                });
                return Located::Done(candidates);
            }
            HostRef::Name(name) => name.strip_suffix(b".").unwrap_or(name),
        };
        let mut run = Run {
            cache: self,
            now,
            question,
            candidates: Candidates::new(),
            failed: false,
        };
        let outcome = match question.port {
            Some(port) => run.addresses(name, question.default_transport(), port),
            None => run.services(name),
        };
        match outcome {
            // RFC 3263 §4.3: one look-up that failed hides nothing of what the others found.
            Ok(()) if run.candidates.is_empty() && run.failed => Located::Unavailable,
            Ok(()) => Located::Done(run.candidates),
            Err(stop) => stop,
        }
    }
}

struct Run<'c, 'q> {
    cache: &'c Cache,
    now: Instant,
    question: &'c Question<'q>,
    candidates: Candidates,
    /// A look-up got no answer.
    failed: bool,
}

impl<'c> Run<'c, '_> {
    fn records(&mut self, name: &[u8], kind: RecordKind) -> Result<&'c [Record], Located> {
        match self.cache.find(self.now, name, kind) {
            Found::Records(records) => Ok(records),
            Found::Unavailable => {
                self.failed = true;
                Ok(&[])
            }
            Found::Missing => Err(Located::Ask {
                name: name.to_ascii_lowercase().into_boxed_slice(),
                kind,
            }),
        }
    }

    /// RFC 3263 §4.1, §4.2: SRV for the transports that may be used, else addresses.
    fn services(&mut self, name: &[u8]) -> Result<(), Located> {
        let transports: &[Transport] = match (self.question.transport, self.question.secure) {
            (Some(Transport::Udp), false) => &[Transport::Udp],
            (Some(Transport::Tcp), false) => &[Transport::Tcp],
            (None, false) => &[Transport::Udp, Transport::Tcp],
            (_, true) | (Some(Transport::Tls), _) => &[Transport::Tls],
            // RFC 7118 defines no SRV look-up.
            (Some(Transport::Ws | Transport::Wss), false) => &[],
        };
        for &transport in transports {
            let label: &[u8] = match transport {
                Transport::Udp => b"_sip._udp.",
                Transport::Tls => b"_sips._tcp.",
                Transport::Tcp | Transport::Ws | Transport::Wss => b"_sip._tcp.",
            };
            let service = [label, name].concat();
            let order = order_services(self.records(&service, RecordKind::Srv)?, self.question.dice);
            for (target, port) in order {
                if self.candidates.len() < MAX_CANDIDATES {
                    self.addresses(&target, transport, port)?;
                }
            }
            // Of several transports the first that has services is taken.
            if !self.candidates.is_empty() {
                return Ok(());
            }
        }
        let transport = self.question.default_transport();
        self.addresses(name, transport, transport.default_port())
    }

    /// A before AAAA: of the families we can send from, the one that works in most networks first.
    fn addresses(&mut self, name: &[u8], transport: Transport, port: u16) -> Result<(), Located> {
        let kinds = [
            (self.question.ipv4, RecordKind::A),
            (self.question.ipv6, RecordKind::Aaaa),
        ];
        for (_, kind) in kinds.into_iter().filter(|(wanted, _)| *wanted) {
            let found: SmallVec<[IpAddr; 4]> = self
                .records(name, kind)?
                .iter()
                .filter_map(|r| match r {
                    Record::Address(ip) => Some(*ip),
                    Record::Service { .. } => None,
                })
                .collect();
            for ip in found {
                if self.candidates.len() < MAX_CANDIDATES {
                    self.candidates.push(Candidate {
                        transport,
                        address: SocketAddr::new(ip, port),
                    });
                }
            }
        }
        Ok(())
    }
}

/// RFC 2782: by priority; among equals, by weight, drawn with numbers made from `dice`.
fn order_services(records: &[Record], dice: u64) -> Vec<(Box<[u8]>, u16)> {
    let mut left: Vec<(u16, u16, u16, &[u8])> = records
        .iter()
        .filter_map(|r| match r {
            // "." says that the service is not offered here.
            Record::Service {
                priority,
                weight,
                port,
                target,
            } if !target.is_empty() && **target != *b"." => Some((*priority, *weight, *port, &**target)),
            Record::Service { .. } | Record::Address(_) => None,
        })
        .collect();
    // Weight 0 first within a priority, as the RFC's algorithm wants it; names settle the rest.
    left.sort();
    let mut state = dice;
    let mut order = Vec::with_capacity(left.len());
    while let Some(first) = left.first() {
        let equals = left.iter().take_while(|r| r.0 == first.0).count();
        let sum: u64 = left.iter().take(equals).map(|r| u64::from(r.1)).sum();
        state = step(state);
        // "Uniform between 0 and the sum": in whole numbers, 0 is for those of weight 0.
        let draw = if first.1 == 0 {
            state % (sum + 1)
        } else {
            state % sum + 1
        };
        let mut running = 0;
        let chosen = left
            .iter()
            .take(equals)
            .position(|r| {
                running += u64::from(r.1);
                running >= draw
            })
            .unwrap_or(0);
        let (_, _, port, target) = left.remove(chosen);
        order.push((Box::from(target), port));
    }
    order
}

/// One step of SplitMix64: any state gives the next.
const fn step(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::{String, ToString};
    use alloc::vec;

    fn question(name: &str) -> Question<'_> {
        Question {
            host: HostRef::Name(name.as_bytes()),
            port: None,
            transport: None,
            secure: false,
            ipv4: true,
            ipv6: false,
            dice: 1,
        }
    }

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

    fn ok(values: Vec<Record>) -> Result<Records, Unavailable> {
        Ok(Records { ttl_s: 60, values })
    }

    /// Answers from `zone` until the machine is done.
    fn locate(zone: &[(&str, RecordKind, Vec<Record>)], q: &Question<'_>) -> (Vec<String>, usize) {
        let mut cache = Cache::new(100);
        let mut asked = 0;
        loop {
            match cache.locate(Instant::ORIGIN, q) {
                Located::Done(c) => {
                    return (
                        c.iter()
                            .map(|c| alloc::format!("{} {}", c.transport, c.address))
                            .collect(),
                        asked,
                    );
                }
                Located::Ask { name, kind } => {
                    asked += 1;
                    let values = zone
                        .iter()
                        .find(|z| z.0.as_bytes() == &*name && z.1 == kind)
                        .map(|z| z.2.clone())
                        .unwrap_or_default();
                    cache.store(Instant::ORIGIN, &name, kind, ok(values));
                }
                Located::Unavailable => return (vec!["unavailable".to_string()], asked),
            }
        }
    }

    #[test]
    fn an_address_needs_no_question() {
        let mut q = question("x");
        q.host = HostRef::Ip("192.0.2.1".parse().unwrap());
        assert_eq!(locate(&[], &q), (vec!["UDP 192.0.2.1:5060".to_string()], 0));
        q.secure = true;
        assert_eq!(locate(&[], &q), (vec!["TLS 192.0.2.1:5061".to_string()], 0));
        q.port = Some(5070);
        q.secure = false;
        q.transport = Some(Transport::Tcp);
        assert_eq!(locate(&[], &q), (vec!["TCP 192.0.2.1:5070".to_string()], 0));
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
        assert_eq!(
            locate(&zone, &q),
            (
                vec!["UDP 192.0.2.1:5080".to_string(), "UDP 192.0.2.2:5080".to_string()],
                1
            )
        );
    }

    #[test]
    fn services_come_by_priority_and_fall_back_to_addresses() {
        let zone = [
            (
                "_sip._udp.example.com",
                RecordKind::Srv,
                vec![
                    service(20, 0, 5062, "b.example.com"),
                    service(10, 0, 5061, "a.example.com"),
                ],
            ),
            ("a.example.com", RecordKind::A, vec![address("192.0.2.1")]),
            ("b.example.com", RecordKind::A, vec![address("192.0.2.2")]),
            ("example.com", RecordKind::A, vec![address("192.0.2.9")]),
        ];
        assert_eq!(
            locate(&zone, &question("example.com")).0,
            ["UDP 192.0.2.1:5061", "UDP 192.0.2.2:5062"]
        );
        assert_eq!(
            locate(&zone[3..], &question("example.com")).0,
            ["UDP 192.0.2.9:5060"]
        );
        assert_eq!(locate(&[], &question("example.com")).0, Vec::<String>::new());
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
            locate(&zone, &q).0,
            ["UDP 192.0.2.1:5060", "UDP [2001:db8::1]:5060"]
        );
    }

    #[test]
    fn weights_share_the_load_and_the_same_dice_give_the_same_order() {
        let records = [
            service(1, 75, 5060, "big"),
            service(1, 25, 5060, "small"),
            service(1, 0, 5060, "never"),
        ];
        let mut first = BTreeMap::new();
        for dice in 0..4000u64 {
            let order = order_services(&records, step(dice));
            assert_eq!(order.len(), 3);
            assert_eq!(order, order_services(&records, step(dice)));
            *first.entry(order[0].0.clone()).or_insert(0) += 1;
        }
        let share = |name: &str| first.get(name.as_bytes()).copied().unwrap_or(0);
        assert!((2850..3150).contains(&share("big")), "{}", share("big"));
        assert!(share("never") < 100, "{}", share("never"));
    }

    #[test]
    fn answers_end_with_their_ttl_and_failures_soon() {
        let mut cache = Cache::new(2);
        let mut q = question("h");
        q.port = Some(1);
        cache.store(
            Instant::ORIGIN,
            b"H",
            RecordKind::A,
            Ok(Records {
                ttl_s: 5,
                values: vec![address("192.0.2.1")],
            }),
        );
        assert!(
            matches!(cache.locate(Instant::from_micros(4_999_999), &q), Located::Done(c) if c.len() == 1)
        );
        assert!(matches!(
            cache.locate(Instant::from_micros(5_000_000), &q),
            Located::Ask { .. }
        ));
        cache.store(Instant::ORIGIN, b"h", RecordKind::A, Err(Unavailable));
        assert_eq!(cache.locate(Instant::ORIGIN, &q), Located::Unavailable);
        for name in [&b"1"[..], b"2", b"3", b"4"] {
            cache.store(Instant::ORIGIN, name, RecordKind::A, ok(vec![]));
            assert!(cache.len() <= 2);
        }
    }
}

//! The machine that runs over the cache (RFC 3263 §4, §5).
//!
//! Record sets of one stage (all services, all hosts) are queried side by side: the request waits for the
//! first that is missing, and [`Cache::poll_refresh`] gives the others.

use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use smallvec::SmallVec;

use super::cache::{Cache, Found, lower};
use super::services::{order_services, pointers, srv_labels, step};
use super::{
    Candidate, Candidates, HostRef, Located, MAX_CANDIDATES, MAX_SERVICES, MAX_TARGETS, Question, SentBy,
    Transports,
};
use crate::query::{Record, RecordKind};
use crate::time::Instant;
use crate::transport::{MAX_NAME, Transport};

/// A domain name in lower case.
type Name = SmallVec<[u8; 128]>;

/// A host whose addresses are candidates.
struct Target {
    host: Name,
    transport: Transport,
    port: u16,
}

/// A record set that was used, or passed by, although it is not fresh.
struct Late {
    name: Name,
    kind: RecordKind,
    /// Whether there was no result to use.
    failed: bool,
    /// Whether a new look-up failed just now.
    tried: bool,
}

impl Cache {
    /// Runs the machine (RFC 3263 §4). Allocates nothing for addresses.
    pub fn locate(&self, now: Instant, question: &Question<'_>) -> Located {
        if !question.can_send() {
            return Located::Done(Candidates::new());
        }
        let name = match question.host {
            HostRef::Ip(ip) => {
                let transport = question.default_transport();
                let port = question.port.unwrap_or(transport.default_port());
                let mut candidates = Candidates::new();
                candidates.push(Candidate {
                    transport,
                    address: SocketAddr::new(ip, port),
                    named: question.transport.is_some(),
                });
                return Located::Done(candidates);
            }
            HostRef::Name(name) => lower(name.strip_suffix(b".").unwrap_or(name)),
        };
        if name.is_empty() || name.len() > MAX_NAME {
            return Located::Done(Candidates::new());
        }
        let mut run = Run {
            cache: self,
            now,
            question,
            candidates: Candidates::new(),
            late: Vec::new(),
            doubtful: false,
            targets_left: MAX_TARGETS,
        };
        match run.walk(&name) {
            Ok(()) => run.finish(),
            Err(stop) => stop,
        }
    }

    /// The destination of a response by sent-by (RFC 3263 §5), if the source of the request cannot be reached
    /// any more, or named no address to begin with. An address is used as it is. A host with a port: its
    /// addresses. A host without a port: its SRV records; if there are none, its addresses and the default
    /// port. A browser's WebSocket can only be reached on its own connection: no candidates.
    pub fn locate_response(&self, now: Instant, sent_by: &SentBy<'_>) -> Located {
        if matches!(sent_by.transport, Transport::Ws | Transport::Wss) {
            return Located::Done(Candidates::new());
        }
        self.locate(
            now,
            &Question {
                host: sent_by.host,
                port: sent_by.port,
                transport: Some(sent_by.transport),
                secure: false,
                transports: Transports::NONE.with(sent_by.transport),
                ipv4: sent_by.ipv4,
                ipv6: sent_by.ipv6,
                dice: sent_by.dice,
                // All copies of a response go the same way, on each worker and node.
                stateless: true,
            },
        )
    }
}

impl Question<'_> {
    /// Whether the question has a transport that can be used.
    fn can_send(&self) -> bool {
        match self.wanted_transport() {
            Some(transport) => self.transports.has(transport),
            None => self.preference().iter().any(|t| self.transports.has(*t)),
        }
    }
}

struct Run<'c, 'q> {
    cache: &'c Cache,
    now: Instant,
    question: &'c Question<'q>,
    candidates: Candidates,
    late: Vec<Late>,
    /// Whether the candidates are those of a host without services, although a service may only have been
    /// missed.
    doubtful: bool,
    targets_left: usize,
}

impl<'c> Run<'c, '_> {
    /// Walks through the records of a name (RFC 3263 §4.1, §4.2).
    fn walk(&mut self, name: &[u8]) -> Result<(), Located> {
        let default = self.question.default_transport();
        if let Some(port) = self.question.port {
            return self.host(name, default, port);
        }
        let mut services: SmallVec<[(Transport, Name); MAX_SERVICES]> = SmallVec::new();
        let wanted = self.question.wanted_transport();
        if wanted.is_none() {
            self.need(&[(name, RecordKind::Naptr)])?;
            for (transport, target) in pointers(self.records(name, RecordKind::Naptr), self.question) {
                let service = (transport, lower(target));
                if services.len() < MAX_SERVICES && !services.contains(&service) {
                    services.push(service);
                }
            }
        }
        let by_naptr = !services.is_empty();
        if !by_naptr {
            let transports: &[Transport] = match &wanted {
                Some(transport) => core::slice::from_ref(transport),
                None => self.question.preference(),
            };
            for &transport in transports.iter().filter(|t| self.question.transports.has(**t)) {
                if let Some(labels) = srv_labels(transport) {
                    services.push((transport, labels.iter().chain(name).copied().collect()));
                }
            }
        }
        if self.by_services(&services, by_naptr)? {
            return Ok(());
        }
        // "If no SRV records were found": not if there are some that lead nowhere.
        self.doubtful = self.late.iter().any(|l| l.kind == RecordKind::Srv && l.failed);
        let transport = match services.first() {
            Some((transport, _)) if by_naptr => *transport,
            _ => default,
        };
        self.host(name, transport, transport.default_port())
    }

    /// Adds the hosts of SRV records: of all `services` one after another, or of the first that leads to an
    /// address. Returns whether there were SRV records.
    fn by_services(&mut self, services: &[(Transport, Name)], all: bool) -> Result<bool, Located> {
        let wanted: SmallVec<[(&[u8], RecordKind); MAX_SERVICES]> = services
            .iter()
            .map(|(_, name)| (&name[..], RecordKind::Srv))
            .collect();
        let mut found = false;
        let mut targets = Vec::new();
        for (at, (transport, name)) in services.iter().enumerate() {
            // The services behind this one may not be used, so that they are not waited for. But if this one
            // is missing, they are queried with it.
            if matches!(self.cache.find(self.now, name, RecordKind::Srv), Found::Missing) {
                self.need(wanted.get(at..).unwrap_or_default())?;
            }
            let records = self.records(name, RecordKind::Srv);
            found |= !records.is_empty();
            for (host, port) in order_services(records, self.question.dice) {
                if self.targets_left > 0 {
                    self.targets_left -= 1;
                    targets.push(Target {
                        host: lower(host),
                        transport: *transport,
                        port,
                    });
                }
            }
            if !all {
                self.addresses(&targets)?;
                if !self.candidates.is_empty() {
                    return Ok(true);
                }
                targets.clear();
            }
        }
        self.addresses(&targets)?;
        Ok(found)
    }

    fn host(&mut self, name: &[u8], transport: Transport, port: u16) -> Result<(), Located> {
        self.addresses(&[Target {
            host: Name::from_slice(name),
            transport,
            port,
        }])
    }

    /// Adds the addresses of `targets`, A before AAAA: the family that works in most networks comes first.
    fn addresses(&mut self, targets: &[Target]) -> Result<(), Located> {
        let kinds = [
            (self.question.ipv4, RecordKind::A),
            (self.question.ipv6, RecordKind::Aaaa),
        ];
        let kinds = kinds
            .iter()
            .filter(|(can_send, _)| *can_send)
            .map(|(_, kind)| *kind);
        let wanted: SmallVec<[(&[u8], RecordKind); 2]> = targets
            .iter()
            .flat_map(|target| kinds.clone().map(|kind| (&target.host[..], kind)))
            .collect();
        self.need(&wanted)?;
        for target in targets {
            for kind in kinds.clone() {
                for ip in self.in_order(&target.host, kind) {
                    let candidate = Candidate {
                        transport: target.transport,
                        address: SocketAddr::new(ip, target.port),
                        named: self.question.transport.is_some(),
                    };
                    if self.candidates.len() < MAX_CANDIDATES && !self.candidates.contains(&candidate) {
                        self.candidates.push(candidate);
                    }
                }
            }
        }
        Ok(())
    }

    fn in_order(&mut self, host: &[u8], kind: RecordKind) -> SmallVec<[IpAddr; 4]> {
        let mut ips: SmallVec<[IpAddr; 4]> = self
            .records(host, kind)
            .iter()
            .filter_map(|r| match r {
                Record::Address(ip) => Some(*ip),
                Record::Service { .. } | Record::Naptr { .. } => None,
            })
            .collect();
        if self.question.stateless && !ips.is_empty() {
            ips.sort_unstable();
            ips.dedup();
            let first = step(!self.question.dice) % ips.len() as u64;
            ips.rotate_left(first as usize);
        }
        ips
    }

    /// Stops if one of `wanted` is missing, and has the other missing ones queried, too.
    fn need(&self, wanted: &[(&[u8], RecordKind)]) -> Result<(), Located> {
        let mut missing = wanted
            .iter()
            .filter(|(name, kind)| matches!(self.cache.find(self.now, name, *kind), Found::Missing));
        let Some((first, kind)) = missing.next() else {
            return Ok(());
        };
        for (name, other) in missing {
            if (name, other) != (first, kind) {
                self.cache.want(self.now, name, *other);
            }
        }
        Err(Located::Ask {
            name: (*first).into(),
            kind: *kind,
        })
    }

    fn records(&mut self, name: &[u8], kind: RecordKind) -> &'c [Record] {
        let (records, failed, tried): (&[Record], bool, bool) = match self.cache.find(self.now, name, kind) {
            Found::Fresh(records) => return records,
            Found::Stale { records, tried } => (records, false, tried),
            Found::Failed { tried } => (&[], true, tried),
            Found::Missing => return &[],
        };
        self.late.push(Late {
            name: Name::from_slice(name),
            kind,
            failed,
            tried,
        });
        records
    }

    /// Ends the walk. Outdated records may serve. But if they lead to no host, or say that there is no
    /// service, all of them are queried again at once, so that the results are of one time.
    fn finish(self) -> Located {
        let unsure = self.candidates.is_empty() || self.doubtful;
        let untried = self.late.iter().position(|l| !l.tried);
        if let Some(first) = untried.filter(|_| unsure) {
            for (at, late) in self.late.iter().enumerate() {
                if at != first {
                    self.cache.want(self.now, &late.name, late.kind);
                }
            }
            return self
                .late
                .get(first)
                .map_or(Located::Unavailable, |late| Located::Ask {
                    name: late.name.as_slice().into(),
                    kind: late.kind,
                });
        }
        // RFC 3263 §4.3: one failed look-up hides nothing of the results of the others.
        if self.candidates.is_empty() && !self.late.is_empty() {
            return Located::Unavailable;
        }
        for late in &self.late {
            if !late.failed {
                self.cache.count_stale();
            }
            if !late.tried {
                self.cache.want(self.now, &late.name, late.kind);
            }
        }
        Located::Done(self.candidates)
    }
}

//! The location of the next hop (RFC 3263), as a state machine over a cache.
//!
//! ```text
//!            IP address ───────────────────────────────────────► candidates
//! name ──► port given? ── yes ──► A / AAAA ────────────────────► candidates
//!            │ no
//!            ├► transport given? ── yes ──► its SRV ─────┐
//!            │ no                                        │
//!            ├► NAPTR ── services that we speak ──► SRV ─┤
//!            │    └ none ──► SRV of each transport ──────┤
//!            │                                           ├ found ► A / AAAA of each target ► candidates
//!            └───────────────────────────────────────────┴ none ─► A / AAAA, default port ─► candidates
//! ```
//!
//! [`Cache::locate`] runs the machine from its start over the cache, and names the first record set that is
//! missing. The caller queries that set, stores the result ([`Cache::store`]) and runs the machine again. So
//! a waiting request keeps nothing but its name.
//!
//! Only records are kept here, never the fate of an address. If one request tried a candidate in vain, that
//! says nothing to the next (RFC 3263 §4.3 concerns each request alone).

mod cache;
mod locate;
mod refresh;
mod services;
#[cfg(test)]
mod tests;

use core::net::{IpAddr, SocketAddr};

use smallvec::SmallVec;

pub use cache::Cache;
pub use refresh::{CacheCounters, MAX_REFRESHES};

use crate::query::RecordKind;
use crate::transport::{HopHost, Transport};

/// One way to reach the next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Transport.
    pub transport: Transport,
    /// Address and port.
    pub address: SocketAddr,
    /// Whether the URI named this transport.
    pub named: bool,
}

/// Candidates in the order in which they are to be tried.
pub type Candidates = SmallVec<[Candidate; 2]>;

/// The most candidates that one name gives; the rest is left out.
pub const MAX_CANDIDATES: usize = 16;
/// The most services of one domain whose SRV records are queried: one for each transport, and some to spare.
pub(crate) const MAX_SERVICES: usize = 6;
/// The most hosts of one domain whose addresses are queried.
pub(crate) const MAX_TARGETS: usize = 16;
/// The most record sets that one question needs: NAPTR, services, and both kinds of addresses of
/// each host.
pub const MAX_LOOKUPS: usize = 1 + MAX_SERVICES + 2 * MAX_TARGETS;

/// The next hop that is to be located.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question<'a> {
    /// Host of the next hop's URI (or its `maddr`).
    pub host: HostRef<'a>,
    /// Port of the URI, if given.
    pub port: Option<u16>,
    /// `transport` parameter, if given and known.
    pub transport: Option<Transport>,
    /// Whether the URI is a SIPS URI.
    pub secure: bool,
    /// Transports that we can send over.
    pub transports: Transports,
    /// Address families that we can send from.
    pub ipv4: bool,
    /// See `ipv4`.
    pub ipv6: bool,
    /// The number that chooses among SRV records of equal priority: the same number, the same order.
    pub dice: u64,
    /// Whether no transaction remembers the choice. If so, the choice must follow from `dice` and the set of
    /// records alone, not from the order of a host's addresses (RFC 3261 §16.11). Else a host's addresses
    /// stay in the order in which they came (RFC 3263 §4.2).
    pub stateless: bool,
}

/// A name or an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostRef<'a> {
    /// Domain name in any case.
    Name(&'a [u8]),
    /// Address.
    Ip(IpAddr),
}

impl<'a> From<&'a HopHost> for HostRef<'a> {
    fn from(host: &'a HopHost) -> Self {
        match host {
            HopHost::Name(name) => Self::Name(name),
            HopHost::Ip(ip) => Self::Ip(*ip),
        }
    }
}

/// A set of transports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transports(u8);

impl Transports {
    /// The empty set.
    pub const NONE: Self = Self(0);

    /// This set and `transport`.
    #[must_use]
    pub const fn with(self, transport: Transport) -> Self {
        Self(self.0 | 1 << transport as u8)
    }

    /// Whether `transport` is in the set.
    pub const fn has(self, transport: Transport) -> bool {
        self.0 & 1 << transport as u8 != 0
    }
}

impl FromIterator<Transport> for Transports {
    fn from_iter<I: IntoIterator<Item = Transport>>(transports: I) -> Self {
        transports.into_iter().fold(Self::NONE, Self::with)
    }
}

/// The topmost Via of a response that cannot go to the source of its request (RFC 3261 §18.2.2, RFC
/// 3263 §5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SentBy<'a> {
    /// Host of sent-by.
    pub host: HostRef<'a>,
    /// Port of sent-by, if given.
    pub port: Option<u16>,
    /// Transport of sent-protocol.
    pub transport: Transport,
    /// Address families that we can send from.
    pub ipv4: bool,
    /// See `ipv4`.
    pub ipv6: bool,
    /// See [`Question::dice`].
    pub dice: u64,
}

/// The result of [`Cache::locate`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Located {
    /// The addresses to send to. Empty: the name has no address.
    Done(Candidates),
    /// These records are needed first.
    Ask {
        /// Name, lower case.
        name: alloc::boxed::Box<[u8]>,
        /// Record type.
        kind: RecordKind,
    },
    /// The name service gave no result recently.
    Unavailable,
}

impl Question<'_> {
    /// The transport that the URI asks for. A SIPS URI means TLS, regardless of its parameters (RFC 3261
    /// §26.2.2); over WebSocket that is `WSS` (RFC 7118 §5.2).
    pub(crate) fn wanted_transport(&self) -> Option<Transport> {
        match (self.transport?, self.secure) {
            (Transport::Ws | Transport::Wss, true) => Some(Transport::Wss),
            (_, true) => Some(Transport::Tls),
            (transport, false) => Some(transport),
        }
    }

    /// The transport if neither NAPTR nor SRV names one (RFC 3263 §4.1): UDP for `sip:`, if UDP can be used.
    pub(crate) fn default_transport(&self) -> Transport {
        self.wanted_transport().unwrap_or_else(|| {
            self.preference()
                .iter()
                .copied()
                .find(|t| self.transports.has(*t))
                .unwrap_or(match self.secure {
                    true => Transport::Tls,
                    false => Transport::Udp,
                })
        })
    }

    /// The order of transports if a domain has none (RFC 3263 §4.1).
    pub(crate) const fn preference(&self) -> &'static [Transport] {
        match self.secure {
            true => &[Transport::Tls],
            false => &[Transport::Udp, Transport::Tcp, Transport::Tls],
        }
    }
}

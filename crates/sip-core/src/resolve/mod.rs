//! Locating the next hop (RFC 3263, without NAPTR) as a state machine over a cache.
//!
//! ```text
//!            IP address ────────────────────────────────► candidates
//! name ──► port given? ── yes ──► A / AAAA ─────────────► candidates
//!            │ no
//!            └► SRV ── found ──► A / AAAA of each target ► candidates, by priority and weight
//!                 └─ none ────► A / AAAA, default port ──► candidates
//! ```
//!
//! [`Cache::locate`] runs the machine from its start over what the cache holds, and names the
//! first record set that is missing; the caller asks for it, stores the answer
//! ([`Cache::store`]) and runs it again. So a request that waits keeps nothing but its name.

mod cache;

use core::net::{IpAddr, SocketAddr};

use smallvec::SmallVec;

pub use cache::Cache;

use crate::query::RecordKind;
use crate::transport::Transport;

/// One way to reach the next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Transport.
    pub transport: Transport,
    /// Address and port.
    pub address: SocketAddr,
}

/// Candidates in the order in which they are to be tried.
pub type Candidates = SmallVec<[Candidate; 2]>;

/// The most candidates that one name gives; the rest is left out.
pub const MAX_CANDIDATES: usize = 16;

/// What is to be located.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question<'a> {
    /// Host of the next hop's URI (or its `maddr`).
    pub host: HostRef<'a>,
    /// Port of the URI, if given.
    pub port: Option<u16>,
    /// `transport` parameter, if given and known.
    pub transport: Option<Transport>,
    /// `sips:`.
    pub secure: bool,
    /// Address families that we can send from.
    pub ipv4: bool,
    /// See `ipv4`.
    pub ipv6: bool,
    /// Chooses among SRV records of equal priority; the same number, the same order.
    pub dice: u64,
}

/// A name or an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostRef<'a> {
    /// Domain name in any case.
    Name(&'a [u8]),
    /// Address.
    Ip(IpAddr),
}

/// How far [`Cache::locate`] came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Located {
    /// Where to send. Empty: the name has no address.
    Done(Candidates),
    /// These records are needed first.
    Ask {
        /// Name, lower case.
        name: alloc::boxed::Box<[u8]>,
        /// Record type.
        kind: RecordKind,
    },
    /// The name service gave no answer lately.
    Unavailable,
}

impl Question<'_> {
    /// The transport where neither the URI nor SRV says (RFC 3263 §4.1).
    pub(crate) fn default_transport(&self) -> Transport {
        match (self.transport, self.secure) {
            (Some(Transport::Udp | Transport::Tcp) | None, true) => Transport::Tls,
            (Some(transport), _) => transport,
            (None, false) => Transport::Udp,
        }
    }
}

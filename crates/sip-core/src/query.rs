//! Queries that the core sends to its back-ends, and their results.
//!
//! The core never waits: a request that needs a result is parked, and the query goes out through
//! [`crate::endpoint::Endpoint::poll_query`]. [`crate::endpoint::Endpoint::handle_result`] resumes
//! the request on the same worker. If no result comes by the deadline, the core takes it as
//! unavailable.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::net::IpAddr;
use zeroize::Zeroizing;

use crate::id::QueryId;

/// A query to a back-end.
#[derive(Debug)]
pub struct Query {
    /// The identifier that comes back with the result. `None`: the core wants no result (`durability =
    /// "async"`).
    pub id: Option<QueryId>,
    /// The kind of the query.
    pub kind: QueryKind,
}

/// The kinds of queries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QueryKind {
    /// The secrets of a subscriber.
    Credentials {
        /// The name as sent in `username`: the user part, or that with `@` and one of the domain's names.
        username: Box<[u8]>,
        /// Length of the user part in `username`.
        user_len: usize,
        /// Canonical name of the domain, lower case.
        domain: Box<[u8]>,
        /// Realm for which HA1 is wanted (used if the table holds plain passwords).
        realm: Box<[u8]>,
    },
    /// Address records or services of a name (RFC 3263).
    Resolve {
        /// Domain name, lower case, without a trailing dot.
        name: Box<[u8]>,
        /// Record type.
        kind: RecordKind,
    },
    /// Write this address-of-record's bindings; an empty record deletes them.
    SaveBindings {
        /// `user@domain`, canonical.
        aor: Box<[u8]>,
        /// [`crate::location::codec`] encoding of the whole record.
        record: Box<[u8]>,
        /// The record's version: of two writes the higher wins.
        version: u64,
    },
}

/// DNS record types that the core queries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RecordKind {
    /// IPv4 addresses.
    A,
    /// IPv6 addresses.
    Aaaa,
    /// Services (RFC 2782).
    Srv,
    /// The transports that a domain offers (RFC 3403, as RFC 3263 §4.1 uses it).
    Naptr,
}

/// The result of a [`Query`].
#[derive(Debug, Clone)]
pub enum QueryResult {
    /// The result of [`QueryKind::Credentials`]: the secrets, or `None` if there is no such subscriber.
    Credentials(Result<Option<Secrets>, Unavailable>),
    /// The result of [`QueryKind::Resolve`].
    Resolved(Result<Records, Unavailable>),
    /// The result of [`QueryKind::SaveBindings`]: whether the bindings are on disk.
    Saved(Result<(), Unavailable>),
}

/// The back-end gave no result. The cause is for logs and metrics of the back-end itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unavailable;

/// The HA1 values of a subscriber (RFC 7616 §3.4.2), decoded. `None`: the row has no such column filled.
#[derive(Clone, Default)]
pub struct Secrets {
    /// `MD5(user:realm:password)`.
    pub ha1_md5: Option<Zeroizing<[u8; 16]>>,
    /// `SHA-256(user:realm:password)`.
    pub ha1_sha256: Option<Zeroizing<[u8; 32]>>,
    /// `SHA-512-256(user:realm:password)`.
    pub ha1_sha512_256: Option<Zeroizing<[u8; 32]>>,
    /// Whether the secrets were read before the store became unavailable. If so, a digest response that
    /// matches is right, and a mismatch proves nothing.
    pub outdated: bool,
}

/// Shows which secrets are present, never their values.
impl core::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Secrets")
            .field("md5", &self.ha1_md5.is_some())
            .field("sha256", &self.ha1_sha256.is_some())
            .field("sha512_256", &self.ha1_sha512_256.is_some())
            .field("outdated", &self.outdated)
            .finish()
    }
}

/// Records of one name and type. Empty `values` with a TTL is a negative answer (NXDOMAIN, NODATA).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Records {
    /// Seconds for which the result may be kept.
    pub ttl_s: u32,
    /// The records.
    pub values: Vec<Record>,
}

/// One DNS record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    /// A or AAAA.
    Address(IpAddr),
    /// SRV.
    Service {
        /// Lower is tried first.
        priority: u16,
        /// Share among equals in priority.
        weight: u16,
        /// Port.
        port: u16,
        /// Host name, lower case, without a trailing dot.
        target: Box<[u8]>,
    },
    /// NAPTR (RFC 3403 §4.1).
    Naptr {
        /// Lower is looked at first.
        order: u16,
        /// Among equals in order, lower is looked at first.
        preference: u16,
        /// The kind of the replacement: `s`, a name of SRV records. In any case.
        flags: Box<[u8]>,
        /// The service offered, such as `SIP+D2T`. In any case.
        service: Box<[u8]>,
        /// Substitution expression; RFC 3263 wants none.
        regexp: Box<[u8]>,
        /// The next name to query, lower case, without a trailing dot.
        replacement: Box<[u8]>,
    },
}

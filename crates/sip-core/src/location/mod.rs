//! The location of addresses-of-record: the binding record, one address-of-record's set of bindings, its
//! encoding, and the shard that holds many.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::net::IpAddr;

use sip_message::{Host, Uri};

use crate::id::ConnId;
use crate::transport::Flow;
use crate::transport::private::is_private;
pub use recent::RecentChanges;
pub use removal::Removal;
pub use tally::{ByTransport, TRANSPORTS};

pub mod aor;
pub mod codec;
mod expiry_ring;
pub mod reachability;
pub(crate) mod recent;
mod removal;
mod rollback;
pub mod shard;
mod tally;

/// One contact of an address-of-record (RFC 3261 §10, RFC 3327, RFC 5626).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// Contact URI as registered.
    pub contact: Box<[u8]>,
    /// The flow that the REGISTER came by (and that requests go by): transport, address, local listener and,
    /// for streams, the connection.
    pub received: Flow,
    /// The `Path` header field's values, comma-joined, topmost first; empty: none.
    pub path: Box<[u8]>,
    /// `+sip.instance`, without the angle brackets' quotes; empty: none.
    pub instance: Box<[u8]>,
    /// `reg-id`; 0: none.
    pub reg_id: u32,
    /// Call-ID of the REGISTER.
    pub call_id: Box<[u8]>,
    /// CSeq number of the REGISTER.
    pub cseq: u32,
    /// Preference in thousandths, 0 to 1000.
    pub q_milli: u16,
    /// Wall clock second at which the binding ends.
    pub expires_unix_s: u64,
    /// User-Agent of the REGISTER; empty: none.
    pub user_agent: Box<[u8]>,
    /// The record's version when this binding was last registered. Of two bindings of one record the higher
    /// is the more recent. Contacts of one REGISTER have the same.
    pub updated: u64,
}

impl Binding {
    /// The binding of a contact alone, with the highest `q`.
    pub fn plain(contact: impl Into<Box<[u8]>>, received: Flow, expires_unix_s: u64) -> Self {
        Self {
            contact: contact.into(),
            received,
            path: Box::default(),
            instance: Box::default(),
            reg_id: 0,
            call_id: Box::default(),
            cseq: 1,
            q_milli: 1_000,
            expires_unix_s,
            user_agent: Box::default(),
            updated: 0,
        }
    }

    /// Whether both are bindings of one user agent instance (RFC 5626 §4.1). With different `reg_id` these
    /// are two flows to one device, of which only one at a time may be a target (§7).
    pub fn is_same_instance(&self, other: &Self) -> bool {
        !self.instance.is_empty() && self.instance == other.instance
    }

    /// Bytes of the texts, whose length the phone chooses.
    pub(crate) fn text_bytes(&self) -> usize {
        [
            &self.contact,
            &self.path,
            &self.instance,
            &self.call_id,
            &self.user_agent,
        ]
        .map(|text| text.len())
        .iter()
        .sum()
    }

    /// Bytes of the binding in memory, not encoded.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<Self>() + self.text_bytes()
    }

    /// The fields that a contact must name to be this binding.
    pub(crate) fn identity(&self) -> Identity<'_> {
        Identity {
            contact: &self.contact,
            instance: &self.instance,
            reg_id: self.reg_id,
            device: Device::of(&self.call_id, self.received.remote.ip(), !self.path.is_empty()),
        }
    }

    /// The rank among several bindings that match a REGISTER: the lowest is meant. A binding of the same
    /// Call-ID comes before one of the same source, and that before the one that was registered earliest.
    fn rank(&self, call_id: &[u8], source: IpAddr) -> (bool, bool, u64) {
        (
            *self.call_id != *call_id,
            self.received.remote.ip().to_canonical() != source.to_canonical(),
            self.updated,
        )
    }

    /// Whether both are the same binding, so that a REGISTER for one replaces the other (RFC 3261 §10.3 step
    /// 7).
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.identity().is(other.identity(), || self.has_uri_of(other))
    }

    /// Whether the Contacts of both have equal URIs (RFC 3261 §19.1.4).
    pub(crate) fn has_uri_of(&self, other: &Self) -> bool {
        let uri = |text| Uri::parse(text).ok();
        self.contact == other.contact
            || match (uri(&self.contact), uri(&other.contact)) {
                (Some(Uri::Sip(one)), Some(Uri::Sip(other))) => one == other,
                _ => false,
            }
    }
}

/// The binding, of those that match, that a REGISTER of this Call-ID and source means ([`Binding::rank`]).
pub(crate) fn meant<'a>(
    mut matching: impl Iterator<Item = &'a Binding>,
    call_id: &[u8],
    source: IpAddr,
) -> Option<&'a Binding> {
    let first = matching.next()?;
    match matching.next() {
        // Nearly always.
        None => Some(first),
        Some(second) => {
            let all = [first, second].into_iter().chain(matching);
            all.min_by_key(|binding| binding.rank(call_id, source))
        }
    }
}

/// The fields that tell one binding of an address-of-record from another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity<'a> {
    pub(crate) contact: &'a [u8],
    pub(crate) instance: &'a [u8],
    pub(crate) reg_id: u32,
    /// The user agent as far as its REGISTER shows it; `None`: of any.
    pub(crate) device: Option<Device<'a>>,
}

/// What tells apart two user agents without instances that have one private Contact, each behind a NAT of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Device<'a> {
    /// Call-ID of the REGISTER. A user agent keeps it until it is started anew (RFC 3261 §10.2).
    pub(crate) call_id: &'a [u8],
    /// Source address of the REGISTER. Its port is left out: a NAT changes it when its mapping has ended.
    pub(crate) source: IpAddr,
}

impl<'a> Device<'a> {
    /// The user agent of a REGISTER. `None` if the REGISTER came with a Path: then its source is a proxy.
    pub(crate) fn of(call_id: &'a [u8], source: IpAddr, has_path: bool) -> Option<Self> {
        let source = source.to_canonical();
        (!has_path).then_some(Self { call_id, source })
    }

    /// Whether these are two user agents: neither Call-ID nor source address is that of the other.
    fn differs(self, other: Device<'_>) -> bool {
        self.call_id != other.call_id && self.source != other.source
    }
}

impl Identity<'_> {
    /// Whether both identify one binding: by instance and reg-id if both have them (RFC 5626 §6), else by URI
    /// (RFC 3261 §10.3 step 7, §19.1.4), unless instance or device shows two user agents. `is_uri` compares the
    /// URIs, and is called if their texts differ.
    ///
    /// By device this is no equivalence: a user agent may have the Call-ID of one and the source of another. Of
    /// several bindings that match, [`Binding::rank`] tells which is meant.
    pub(crate) fn is(self, other: Identity<'_>, is_uri: impl FnOnce() -> bool) -> bool {
        if self.reg_id != 0 && other.reg_id != 0 {
            return self.reg_id == other.reg_id && self.instance == other.instance;
        }
        let same_uri = self.contact == other.contact || is_uri();
        same_uri && !self.is_of_another(other)
    }

    /// Whether both are of two user agents. Where both have an instance, it decides. A public address in the
    /// Contact is that of one user agent, wherever its REGISTER comes from.
    fn is_of_another(self, other: Identity<'_>) -> bool {
        let (Some(one), Some(two)) = (self.device, other.device) else {
            return false;
        };
        let has_instance = !self.instance.is_empty() && !other.instance.is_empty();
        one.differs(two)
            && (!has_instance || self.instance != other.instance)
            && leads_to_private(self.contact)
    }
}

/// Whether the host of a Contact is an address that many hosts may have, each in its own network.
fn leads_to_private(contact: &[u8]) -> bool {
    match Uri::parse(contact)
        .as_ref()
        .ok()
        .and_then(Uri::sip)
        .map(|uri| uri.host)
    {
        Some(Host::V4(ip)) => is_private(ip.into()),
        Some(Host::V6(ip)) => is_private(ip.into()),
        Some(Host::Name(_)) | None => false,
    }
}

/// All bindings of one address-of-record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AorRecord {
    /// The bindings, best `q` first. Of equals, the newest binding comes first, and within one REGISTER the
    /// last Contact. Of the flows of one user agent, the most recently registered comes first. By a refresh a
    /// user agent keeps its place among others.
    pub bindings: Vec<Binding>,
    /// The version, which grows with each change: of two writes the higher wins. It starts from the wall
    /// clock ([`AorRecord::changed`]), so that a record made anew after its deletion wins over the old.
    pub version: u64,
    /// The recent removals and rollbacks. They are kept in memory only, and are no part of the encoding.
    pub recent: RecentChanges,
}

impl AorRecord {
    /// The bindings that have not ended, in the order in which they are to be tried
    /// (RFC 3261 §16.5: by `q`).
    pub fn live(&self, now_unix_s: u64) -> impl Iterator<Item = &Binding> + Clone {
        self.bindings
            .iter()
            .filter(move |b| b.expires_unix_s > now_unix_s)
    }

    /// Bytes of the texts of all bindings.
    pub(crate) fn text_bytes(&self) -> usize {
        self.bindings.iter().map(Binding::text_bytes).sum()
    }

    /// Adds a binding as the most recent of its `q`.
    pub fn put(&mut self, binding: Binding) {
        let at = self
            .bindings
            .iter()
            .take_while(|b| b.q_milli > binding.q_milli)
            .count();
        self.bindings.insert(at, binding);
    }

    /// Removes the bindings that have ended. Returns their number.
    pub fn remove_expired(&mut self, now_unix_s: u64) -> usize {
        let before = self.bindings.len();
        self.bindings.retain(|b| b.expires_unix_s > now_unix_s);
        before - self.bindings.len()
    }

    /// Removes a closed connection from the bindings made over it. Returns their number. This changes neither
    /// the registration nor the record on disk, where bindings have no connection either.
    pub fn forget_conn(&mut self, conn: ConnId) -> u64 {
        let of_it = |b: &&mut Binding| b.received.conn == Some(conn);
        let mut lost = 0;
        for binding in self.bindings.iter_mut().filter(of_it) {
            binding.received.conn = None;
            lost += 1;
        }
        self.recent.forget_conn(conn);
        lost
    }

    /// The version that a change at this time gives the record. A binding registered with the change has it
    /// as [`Binding::updated`].
    pub fn next_version(&self, now_unix_ms: u64) -> u64 {
        self.version.saturating_add(1).max(now_unix_ms)
    }

    /// Gives the record its next version. The caller calls this once for each change, after the change.
    pub fn changed(&mut self, now_unix_ms: u64) {
        self.version = self.next_version(now_unix_ms);
    }
}

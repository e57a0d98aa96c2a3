//! Where an address-of-record can be reached: the binding record, one address-of-record's set of
//! them, its encoding, and the shard that holds many.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::transport::Flow;

/// One contact of an address-of-record (RFC 3261 §10, RFC 3327, RFC 5626).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// Contact URI as registered.
    pub contact: Box<[u8]>,
    /// Where the REGISTER came from (and so where requests go): transport, address, local
    /// listener and, for streams, the connection.
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
    /// Wall clock second at which it ends.
    pub expires_unix_s: u64,
    /// User-Agent of the REGISTER; empty: none.
    pub user_agent: Box<[u8]>,
}

/// All bindings of one address-of-record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AorRecord {
    /// The bindings, best `q` first.
    pub bindings: Vec<Binding>,
    /// Grows with each change; of two writes the higher wins.
    pub version: u64,
}

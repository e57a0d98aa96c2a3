//! The binary form of an address-of-record's bindings, in which stores and the in-memory [`super::shard`]
//! keep them.
//!
//! ```text
//! record  = format(1 byte: 2) version(varint) count(varint) binding*
//! binding = contact path instance call_id user_agent   (each: varint length, bytes)
//!           reg_id cseq q_milli expires_unix_s age      (varints)
//!           transport(1) listener(varint) family(1: 4 or 6) address(4 or 16) port(varint)
//!           conn(1: 0 or 1) [worker slot generation]    (varints)
//! ```
//!
//! `age` is the record's version less [`Binding::updated`]: 0 for the only phone of a record. Format 1, which
//! journals of earlier versions may hold, had no `age`; there the order tells which binding is more recent.
//!
//! Varints are little-endian groups of 7 bits (LEB128). Every record has one encoding: longer
//! varints than needed and bytes after the end are errors. Reading borrows: [`RecordRef`] decodes
//! a binding when asked for it.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use sip_message::Uri;

use super::{AorRecord, Binding};
use crate::id::{ConnId, ListenerId, WorkerId};
use crate::transport::{Flow, Proof, Transport};

/// The format written by this version of the program.
const FORMAT: u8 = 2;
/// The earlier format, without ages: it is read, and never written.
const FORMAT_WITHOUT_AGE: u8 = 1;

/// Bytes of the shortest binding of any format, which bound a record's count of bindings.
const MIN_BINDING: usize = 5 + 4 + 1 + 1 + 1 + 4 + 1 + 1;

/// The error for bytes that are not a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodecError {
    /// The record was written by another version of the program, with this format number.
    UnknownFormat(u8),
    /// The bytes end too early.
    Truncated,
    /// Bytes follow the record.
    TrailingBytes,
    /// A field has a value that is never written.
    BadValue(&'static str),
}

impl fmt::Display for CodecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownFormat(n) => {
                write!(f, "unknown format {n} of bindings (this version writes {FORMAT})")
            }
            Self::Truncated => f.write_str("the bindings end too early"),
            Self::TrailingBytes => f.write_str("bytes follow the bindings"),
            Self::BadValue(field) => write!(f, "impossible value of `{field}` in a binding"),
        }
    }
}

impl core::error::Error for CodecError {}

/// Appends the encoding of `record`.
pub fn encode(record: &AorRecord, out: &mut Vec<u8>) {
    out.push(FORMAT);
    put_varint(out, record.version);
    put_varint(out, record.bindings.len() as u64);
    for binding in &record.bindings {
        put_binding(out, binding, record.version);
    }
}

/// Reads a whole record.
///
/// # Errors
/// An error for any bytes that [`encode`] does not write, and never wrote in an earlier format.
pub fn decode(bytes: &[u8]) -> Result<AorRecord, CodecError> {
    let record = RecordRef::new(bytes)?;
    let mut bindings = Vec::with_capacity(record.len());
    let mut rest = record.bindings();
    for binding in &mut rest {
        bindings.push(binding?.to_owned());
    }
    if !rest.reader.0.is_empty() {
        return Err(CodecError::TrailingBytes);
    }
    Ok(AorRecord {
        bindings,
        version: record.version,
        ..AorRecord::default()
    })
}

/// An encoded record, its bindings not yet decoded.
#[derive(Clone, Copy, Debug)]
pub struct RecordRef<'a> {
    format: u8,
    version: u64,
    count: usize,
    rest: &'a [u8],
}

impl<'a> RecordRef<'a> {
    /// Reads the record's head.
    ///
    /// # Errors
    /// An error for an unknown format, or for bytes too short for their own count of bindings.
    pub fn new(bytes: &'a [u8]) -> Result<Self, CodecError> {
        let mut reader = Reader(bytes);
        let format = reader.byte()?;
        if !matches!(format, FORMAT | FORMAT_WITHOUT_AGE) {
            return Err(CodecError::UnknownFormat(format));
        }
        let version = reader.varint()?;
        let count = reader.varint()?;
        if count > (reader.0.len() / MIN_BINDING) as u64 {
            return Err(CodecError::Truncated);
        }
        Ok(Self {
            format,
            version,
            count: count as usize,
            rest: reader.0,
        })
    }

    /// [`AorRecord::version`].
    pub const fn version(&self) -> u64 {
        self.version
    }

    /// Number of bindings.
    pub const fn len(&self) -> usize {
        self.count
    }

    /// Whether there is no binding.
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The bindings in their order ([`AorRecord::bindings`]): best `q` first. An error ends the iteration.
    pub const fn bindings(&self) -> Bindings<'a> {
        Bindings {
            record: *self,
            reader: Reader(self.rest),
            left: self.count,
        }
    }
}

/// The bindings of a [`RecordRef`].
#[derive(Clone, Debug)]
pub struct Bindings<'a> {
    record: RecordRef<'a>,
    reader: Reader<'a>,
    left: usize,
}

impl<'a> Iterator for Bindings<'a> {
    type Item = Result<BindingRef<'a>, CodecError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let RecordRef {
            format,
            version,
            count,
            ..
        } = self.record;
        // If no age is written, later bindings are older.
        let age = (format == FORMAT_WITHOUT_AGE).then(|| (count - self.left - 1) as u64);
        let binding = self.reader.binding(version, age);
        if binding.is_err() {
            self.left = 0;
        }
        Some(binding)
    }
}

/// A [`Binding`] that borrows its bytes; the fields are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    missing_docs,
    reason = "each field is documented at the same field of Binding"
)]
pub struct BindingRef<'a> {
    pub contact: &'a [u8],
    pub received: Flow,
    pub path: &'a [u8],
    pub instance: &'a [u8],
    pub reg_id: u32,
    pub call_id: &'a [u8],
    pub cseq: u32,
    pub q_milli: u16,
    pub expires_unix_s: u64,
    pub user_agent: &'a [u8],
    pub updated: u64,
}

impl BindingRef<'_> {
    /// [`Binding::is_same_instance`].
    pub fn is_same_instance(&self, other: &BindingRef<'_>) -> bool {
        !self.instance.is_empty() && self.instance == other.instance
    }

    /// Whether the flow is the only way to the binding. Either the binding was registered as a flow (RFC 5626
    /// §4.2, §4.3), or it is a WebSocket client, whose Contact names no host (RFC 7118 §5).
    pub fn is_flow(&self) -> bool {
        let ob = || {
            may_have_ob(self.contact)
                && matches!(Uri::parse(self.contact), Ok(Uri::Sip(uri)) if uri.params.has(b"ob"))
        };
        matches!(self.received.transport, Transport::Ws | Transport::Wss) || self.reg_id != 0 || ob()
    }

    /// Whether the binding is a flow that has gone: no phone can be reached by it.
    pub fn is_lost(&self) -> bool {
        self.received.transport.is_reliable() && self.received.conn.is_none() && self.is_flow()
    }

    /// A copy that owns its bytes.
    pub fn to_owned(&self) -> Binding {
        Binding {
            contact: Box::from(self.contact),
            received: self.received,
            path: Box::from(self.path),
            instance: Box::from(self.instance),
            reg_id: self.reg_id,
            call_id: Box::from(self.call_id),
            cseq: self.cseq,
            q_milli: self.q_milli,
            expires_unix_s: self.expires_unix_s,
            user_agent: Box::from(self.user_agent),
            updated: self.updated,
        }
    }
}

/// Whether a Contact may have the parameter `ob` (RFC 5626 §4.3): a quick test before the Contact is parsed.
pub(crate) fn may_have_ob(contact: &[u8]) -> bool {
    memchr::memchr_iter(b';', contact)
        .filter_map(|at| contact.get(at + 1..at + 3))
        .any(|name| name.eq_ignore_ascii_case(b"ob"))
}

pub(super) fn put_varint(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn put_binding(out: &mut Vec<u8>, b: &Binding, version: u64) {
    for bytes in [&b.contact, &b.path, &b.instance, &b.call_id, &b.user_agent] {
        put_bytes(out, bytes);
    }
    for n in [
        u64::from(b.reg_id),
        u64::from(b.cseq),
        u64::from(b.q_milli),
        b.expires_unix_s,
        version.saturating_sub(b.updated),
    ] {
        put_varint(out, n);
    }
    put_flow(out, &b.received);
}

fn put_flow(out: &mut Vec<u8>, flow: &Flow) {
    out.push(match flow.transport {
        Transport::Udp => 0,
        Transport::Tcp => 1,
        Transport::Tls => 2,
        Transport::Ws => 3,
        Transport::Wss => 4,
    });
    put_varint(out, u64::from(flow.listener.0));
    match flow.remote.ip() {
        IpAddr::V4(ip) => {
            out.push(4);
            out.extend_from_slice(&ip.octets());
        }
        IpAddr::V6(ip) => {
            out.push(6);
            out.extend_from_slice(&ip.octets());
        }
    }
    put_varint(out, u64::from(flow.remote.port()));
    match flow.conn {
        None => out.push(0),
        Some(conn) => {
            out.push(1);
            put_varint(out, u64::from(conn.worker.0));
            put_varint(out, u64::from(conn.slot));
            put_varint(out, u64::from(conn.generation));
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    fn byte(&mut self) -> Result<u8, CodecError> {
        let (&first, rest) = self.0.split_first().ok_or(CodecError::Truncated)?;
        self.0 = rest;
        Ok(first)
    }

    fn take(&mut self, len: u64) -> Result<&'a [u8], CodecError> {
        let len = usize::try_from(len).map_err(|_| CodecError::Truncated)?;
        let (head, rest) = self.0.split_at_checked(len).ok_or(CodecError::Truncated)?;
        self.0 = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], CodecError> {
        let (head, rest) = self.0.split_first_chunk().ok_or(CodecError::Truncated)?;
        self.0 = rest;
        Ok(*head)
    }

    pub(super) fn bytes(&mut self) -> Result<&'a [u8], CodecError> {
        let len = self.varint()?;
        self.take(len)
    }

    fn varint(&mut self) -> Result<u64, CodecError> {
        let mut n = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            n |= bits << shift;
            if byte & 0x80 == 0 {
                // A last group of zeros would be a second spelling.
                return if byte == 0 && shift > 0 {
                    Err(CodecError::BadValue("varint"))
                } else {
                    Ok(n)
                };
            }
        }
        Err(CodecError::BadValue("varint"))
    }

    fn number<T: TryFrom<u64>>(&mut self, field: &'static str) -> Result<T, CodecError> {
        T::try_from(self.varint()?).map_err(|_| CodecError::BadValue(field))
    }

    /// Reads one binding of a record of this version. `age`: the age if none is written.
    fn binding(&mut self, version: u64, age: Option<u64>) -> Result<BindingRef<'a>, CodecError> {
        let contact = self.bytes()?;
        let path = self.bytes()?;
        let instance = self.bytes()?;
        let call_id = self.bytes()?;
        let user_agent = self.bytes()?;
        let reg_id = self.number("reg_id")?;
        let cseq = self.number("cseq")?;
        let q_milli = self.number("q")?;
        let expires_unix_s = self.varint()?;
        if q_milli > 1000 {
            return Err(CodecError::BadValue("q"));
        }
        let updated = match age {
            Some(age) => version.saturating_sub(age),
            None => version
                .checked_sub(self.varint()?)
                .ok_or(CodecError::BadValue("age"))?,
        };
        Ok(BindingRef {
            contact,
            received: self.flow()?,
            path,
            instance,
            reg_id,
            call_id,
            cseq,
            q_milli,
            expires_unix_s,
            user_agent,
            updated,
        })
    }

    fn flow(&mut self) -> Result<Flow, CodecError> {
        let transport = match self.byte()? {
            0 => Transport::Udp,
            1 => Transport::Tcp,
            2 => Transport::Tls,
            3 => Transport::Ws,
            4 => Transport::Wss,
            _ => return Err(CodecError::BadValue("transport")),
        };
        let listener = ListenerId(self.number("listener")?);
        let ip = match self.byte()? {
            4 => IpAddr::V4(Ipv4Addr::from(self.array::<4>()?)),
            6 => IpAddr::V6(Ipv6Addr::from(self.array::<16>()?)),
            _ => return Err(CodecError::BadValue("family")),
        };
        let remote = SocketAddr::new(ip, self.number("port")?);
        let conn = match self.byte()? {
            0 => None,
            1 => Some(ConnId {
                worker: WorkerId(self.number("worker")?),
                slot: self.number("slot")?,
                generation: self.number("generation")?,
            }),
            _ => return Err(CodecError::BadValue("conn")),
        };
        Ok(Flow {
            transport,
            listener,
            remote,
            conn,
            // A proof is not stored: the phone gave it when it registered.
            proof: Proof::None,
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

    fn bytes(max: usize) -> impl Strategy<Value = Box<[u8]>> {
        prop::collection::vec(any::<u8>(), 0..max).prop_map(Vec::into_boxed_slice)
    }

    /// Any flow, without a proof.
    pub(crate) fn flow() -> impl Strategy<Value = Flow> {
        let transport = prop::sample::select(vec![
            Transport::Udp,
            Transport::Tcp,
            Transport::Tls,
            Transport::Ws,
            Transport::Wss,
        ]);
        let conn = prop::option::of(any::<(u16, u32, u32)>());
        (transport, any::<u16>(), any::<(IpAddr, u16)>(), conn).prop_map(
            |(transport, listener, remote, conn)| Flow {
                transport,
                listener: ListenerId(listener),
                remote: remote.into(),
                conn: conn.map(|(worker, slot, generation)| ConnId {
                    worker: WorkerId(worker),
                    slot,
                    generation,
                }),
                proof: Proof::None,
            },
        )
    }

    fn binding() -> impl Strategy<Value = Binding> {
        let texts = (bytes(200), bytes(40), bytes(40), bytes(60), bytes(40));
        let numbers = (any::<u32>(), any::<u32>(), 0..=1000u16, any::<u64>());
        (texts, numbers, flow()).prop_map(|((contact, path, instance, call_id, user_agent), n, received)| {
            Binding {
                contact,
                received,
                path,
                instance,
                reg_id: n.0,
                call_id,
                cseq: n.1,
                q_milli: n.2,
                expires_unix_s: n.3,
                user_agent,
                updated: 0,
            }
        })
    }

    pub(in super::super) fn record() -> impl Strategy<Value = AorRecord> {
        let bindings = prop::collection::vec((binding(), any::<u64>()), 0..4);
        (bindings, any::<u64>()).prop_map(|(bindings, version)| AorRecord {
            bindings: bindings
                .into_iter()
                .map(|(binding, updated)| Binding {
                    updated: updated.min(version),
                    ..binding
                })
                .collect(),
            version,
            ..AorRecord::default()
        })
    }

    proptest! {
        #[test]
        fn bindings_survive_encoding(record in record()) {
            let mut out = vec![];
            encode(&record, &mut out);
            let decoded = decode(&out);
            prop_assert_eq!(decoded.as_ref(), Ok(&record));
            let view = RecordRef::new(&out).unwrap();
            prop_assert_eq!(view.len(), record.bindings.len());
            prop_assert_eq!(view.bindings().map(|b| b.unwrap().to_owned()).collect::<Vec<_>>(), record.bindings);
        }

        #[test]
        fn truncated_or_longer_is_an_error(record in record(), cut: prop::sample::Index) {
            let mut out = vec![];
            encode(&record, &mut out);
            prop_assert!(decode(&out[..cut.index(out.len())]).is_err());
            out.push(0);
            prop_assert_eq!(decode(&out), Err(CodecError::TrailingBytes));
        }

        /// Decoding never panics, and accepted bytes have one spelling.
        #[test]
        fn no_bytes_panic_the_decoder(mut bytes in prop::collection::vec(any::<u8>(), 0..100), record in record(), at: prop::sample::Index, to: u8) {
            if let Some(first) = bytes.first_mut() {
                *first = FORMAT;
            }
            let mut changed = vec![];
            encode(&record, &mut changed);
            let at = at.index(changed.len());
            changed[at] = to;
            for bytes in [bytes, changed] {
                // The earlier format is read and never written.
                if let (Ok(record), Some(&FORMAT)) = (decode(&bytes), bytes.first()) {
                    let mut again = vec![];
                    encode(&record, &mut again);
                    prop_assert_eq!(again, bytes);
                }
            }
        }
    }

    #[test]
    fn errors_name_the_cause() {
        assert_eq!(decode(b""), Err(CodecError::Truncated));
        assert_eq!(decode(b"\x03"), Err(CodecError::UnknownFormat(3)));
        assert_eq!(
            decode(b"\x02\x00\xff\xff\xff\xff\x0f"),
            Err(CodecError::Truncated)
        );
        assert_eq!(decode(b"\x02\x80\x00\x00"), Err(CodecError::BadValue("varint")));
        assert_eq!(decode(b"\x02\x00\x00"), Ok(AorRecord::default()));
        // A binding more recent than its record.
        let older = b"\x02\x05\x01\0\0\0\0\0\0\0\0\0\x06\0\0\x04\x01\x02\x03\x04\0\0";
        assert_eq!(decode(older), Err(CodecError::BadValue("age")));
    }

    /// The first format, which a journal of an earlier version may hold, is read; its order tells which
    /// binding is more recent.
    #[test]
    fn the_first_format_is_read() {
        let one = b"\0\0\0\0\0\0\0\0\x09\0\0\x04\x01\x02\x03\x04\0\0";
        let bytes = [&b"\x01\x05\x02"[..], one, one].concat();
        let record = decode(&bytes).unwrap();
        assert_eq!(record.version, 5);
        let updated: Vec<_> = record.bindings.iter().map(|b| b.updated).collect();
        assert_eq!((record.bindings[1].expires_unix_s, updated), (9, vec![5, 4]));
    }
}

//! STUN on the SIP port (RFC 5389), as far as a keep-alive needs it (RFC 5626 §3.5.2, §8). A Binding request
//! over UDP gets a response with its source address.
//!
//! There are no credentials, no NAT behaviour discovery, and no state. A response is at most 80 bytes and
//! never more than three times the request, so that this server cannot be used to flood another host.

use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

/// Bytes of a STUN header (§6).
const HEADER: usize = 20;
const MAGIC: [u8; 4] = 0x2112_a442_u32.to_be_bytes();

const BINDING_REQUEST: u16 = 0x0001;
const BINDING_SUCCESS: u16 = 0x0101;
const BINDING_ERROR: u16 = 0x0111;

const USERNAME: u16 = 0x0006;
const MESSAGE_INTEGRITY: u16 = 0x0008;
const ERROR_CODE: u16 = 0x0009;
const UNKNOWN_ATTRIBUTES: u16 = 0x000a;
const REALM: u16 = 0x0014;
const NONCE: u16 = 0x0015;
const XOR_MAPPED_ADDRESS: u16 = 0x0020;
const FINGERPRINT: u16 = 0x8028;
/// The first attribute type that need not be understood (§15).
const OPTIONAL: u16 = 0x8000;
/// The value that is combined with the CRC (§15.5).
const FINGERPRINT_XOR: u32 = 0x5354_554e;

/// The most unknown attributes that a response names.
const MAX_NAMED: usize = 8;

/// Whether a datagram is STUN and no SIP (§8): two zero bits, and the magic cookie. No SIP message
/// begins with a byte below 4.
#[inline]
pub fn is_stun(datagram: &[u8]) -> bool {
    datagram.first().is_some_and(|first| *first < 0x40) && datagram.get(4..8) == Some(&MAGIC)
}

/// The outcome of handling a STUN datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A response was appended.
    Sent,
    /// The datagram gets no response: it is no Binding request (indications and responses among them).
    Ignored,
    /// The datagram is malformed.
    Malformed,
}

/// Appends the response to a STUN datagram from `source`.
pub fn respond(request: &[u8], source: SocketAddr, out: &mut Vec<u8>) -> Outcome {
    let Some(parsed) = Parsed::read(request) else {
        return Outcome::Malformed;
    };
    if parsed.kind != BINDING_REQUEST {
        return Outcome::Ignored;
    }
    let start = out.len();
    if parsed.unknown.is_empty() {
        write_header(out, BINDING_SUCCESS, parsed.transaction);
        write_address(out, source, parsed.transaction);
    } else {
        write_header(out, BINDING_ERROR, parsed.transaction);
        // §15.6: class 4, number 20. No reason phrase: it may be empty, and costs bytes.
        write_attribute(out, ERROR_CODE, &[0, 0, 4, 20]);
        let named: smallvec::SmallVec<[u8; 2 * MAX_NAMED]> = parsed
            .unknown
            .iter()
            .flat_map(|kind| kind.to_be_bytes())
            .collect();
        write_attribute(out, UNKNOWN_ATTRIBUTES, &named);
    }
    if parsed.fingerprint {
        // §15.5: the attribute's own eight bytes count in the length that it covers.
        set_length(out, start, 8);
        let sum = crc32(out.get(start..).unwrap_or_default()) ^ FINGERPRINT_XOR;
        write_attribute(out, FINGERPRINT, &sum.to_be_bytes());
    }
    set_length(out, start, 0);
    Outcome::Sent
}

/// A message with a valid structure.
struct Parsed<'a> {
    kind: u16,
    /// Cookie and transaction ID.
    transaction: &'a [u8],
    /// Whether the message ends in a FINGERPRINT, which was right.
    fingerprint: bool,
    /// Attributes that must be understood and are not.
    unknown: smallvec::SmallVec<[u16; MAX_NAMED]>,
}

impl<'a> Parsed<'a> {
    fn read(message: &'a [u8]) -> Option<Self> {
        let (header, mut rest) = message.split_at_checked(HEADER)?;
        let kind = u16::from_be_bytes(*header.first_chunk()?);
        let length = u16::from_be_bytes(*header.get(2..)?.first_chunk()?);
        // §6: the length is a multiple of four, and nothing follows.
        if usize::from(length) != rest.len() || !length.is_multiple_of(4) {
            return None;
        }
        let mut parsed = Self {
            kind,
            transaction: header.get(4..)?,
            fingerprint: false,
            unknown: smallvec::SmallVec::new(),
        };
        let mut integrity = false;
        while !rest.is_empty() {
            // §15.5: a FINGERPRINT is the last attribute.
            if parsed.fingerprint {
                return None;
            }
            let at = message.len() - rest.len();
            let attribute = u16::from_be_bytes(*rest.first_chunk()?);
            let len = usize::from(u16::from_be_bytes(*rest.get(2..)?.first_chunk()?));
            let value = rest.get(4..4 + len)?;
            rest = rest.get(4 + len.next_multiple_of(4)..)?;
            match attribute {
                FINGERPRINT => {
                    let sum = crc32(message.get(..at)?) ^ FINGERPRINT_XOR;
                    if value != sum.to_be_bytes() {
                        return None;
                    }
                    parsed.fingerprint = true;
                }
                // §10.1.2: credentials are not asked for, and if they come they change nothing. Attributes
                // after the integrity are ignored (§15.4).
                MESSAGE_INTEGRITY => integrity = true,
                USERNAME | REALM | NONCE => {}
                known if known >= OPTIONAL || integrity => {}
                unknown => {
                    if parsed.unknown.len() < MAX_NAMED && !parsed.unknown.contains(&unknown) {
                        parsed.unknown.push(unknown);
                    }
                }
            }
        }
        Some(parsed)
    }
}

fn write_header(out: &mut Vec<u8>, kind: u16, transaction: &[u8]) {
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&[0, 0]);
    out.extend_from_slice(transaction);
}

/// Sets the length of the message that begins at `start`, with `more` bytes that will follow.
fn set_length(out: &mut [u8], start: usize, more: usize) {
    let length = (out.len() - start - HEADER + more) as u16;
    if let Some(place) = out.get_mut(start + 2..start + 4) {
        place.copy_from_slice(&length.to_be_bytes());
    }
}

fn write_attribute(out: &mut Vec<u8>, kind: u16, value: &[u8]) {
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&(value.len() as u16).to_be_bytes());
    out.extend_from_slice(value);
    let padding = value.len().next_multiple_of(4) - value.len();
    out.extend(core::iter::repeat_n(0, padding));
}

/// Appends the address, combined with the cookie and the transaction ID (§15.2), so that no NAT rewrites it.
fn write_address(out: &mut Vec<u8>, source: SocketAddr, transaction: &[u8]) {
    let mut value: smallvec::SmallVec<[u8; 20]> = smallvec::SmallVec::new();
    let ip = source.ip().to_canonical();
    value.push(0);
    value.push(if ip.is_ipv4() { 1 } else { 2 });
    value.extend_from_slice(&source.port().to_be_bytes());
    match ip {
        IpAddr::V4(ip) => value.extend_from_slice(&ip.octets()),
        IpAddr::V6(ip) => value.extend_from_slice(&ip.octets()),
    }
    for (at, mask) in (2..).zip(MAGIC).take(2) {
        if let Some(byte) = value.get_mut(at) {
            *byte ^= mask;
        }
    }
    for (byte, mask) in value.iter_mut().skip(4).zip(transaction) {
        *byte ^= mask;
    }
    write_attribute(out, XOR_MAPPED_ADDRESS, &value);
}

/// CRC-32 of ITU V.42 (§15.5), a nibble at a time: keep-alives are few and short.
fn crc32(bytes: &[u8]) -> u32 {
    const fn table() -> [u32; 16] {
        let mut table = [0; 16];
        let mut at = 0;
        while at < 16 {
            let mut word = at as u32;
            let mut bit = 0;
            while bit < 4 {
                word = word >> 1 ^ (0xedb8_8320 & (word & 1).wrapping_neg());
                bit += 1;
            }
            table[at] = word;
            at += 1;
        }
        table
    }
    const TABLE: [u32; 16] = table();
    let step = |crc: u32, nibble: u32| {
        crc >> 4
            ^ TABLE
                .get(((crc ^ nibble) & 15) as usize)
                .copied()
                .unwrap_or_default()
    };
    !bytes.iter().fold(!0, |crc, byte| {
        let byte = u32::from(*byte);
        step(step(crc, byte & 15), byte >> 4)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

    fn message(kind: u16, attributes: &[(u16, &[u8])], fingerprint: bool) -> Vec<u8> {
        let mut out = Vec::new();
        let transaction = [&MAGIC[..], b"abcdefghijkl"].concat();
        write_header(&mut out, kind, &transaction);
        for (kind, value) in attributes {
            write_attribute(&mut out, *kind, value);
        }
        if fingerprint {
            set_length(&mut out, 0, 8);
            let sum = crc32(&out) ^ FINGERPRINT_XOR;
            write_attribute(&mut out, FINGERPRINT, &sum.to_be_bytes());
        }
        set_length(&mut out, 0, 0);
        out
    }

    fn responded(request: &[u8], source: &str) -> (Outcome, Vec<u8>) {
        let mut out = Vec::new();
        let outcome = respond(request, source.parse().unwrap(), &mut out);
        (outcome, out)
    }

    /// The check value of this CRC.
    #[test]
    fn crc_is_that_of_its_check_value() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        assert_eq!(crc32(b""), 0);
    }

    #[test]
    fn attributes_are_padded() {
        for (len, whole) in [(0, 4), (1, 8), (3, 8), (4, 8), (5, 12)] {
            let mut out = vec![];
            write_attribute(&mut out, 1, &vec![7; len]);
            assert_eq!(out.len(), whole, "{len}");
        }
    }

    /// RFC 5769 §2.2, §2.3: the mapped addresses of its responses, by its transaction ID.
    #[test]
    fn addresses_of_rfc_5769() {
        let id = [
            0x21, 0x12, 0xa4, 0x42, 0xb7, 0xe7, 0xa7, 0x01, 0xbc, 0x34, 0xd6, 0x86, 0xfa, 0x87, 0xdf, 0xae,
        ];
        let mut out = vec![];
        write_address(&mut out, "192.0.2.1:32853".parse().unwrap(), &id);
        assert_eq!(out, [0, 0x20, 0, 8, 0, 1, 0xa1, 0x47, 0xe1, 0x12, 0xa6, 0x43]);
        out.clear();
        let v6 = "[2001:db8:1234:5678:11:2233:4455:6677]:32853".parse().unwrap();
        write_address(&mut out, v6, &id);
        let expected = [
            0x00, 0x20, 0x00, 0x14, 0x00, 0x02, 0xa1, 0x47, 0x01, 0x13, 0xa9, 0xfa, 0xa5, 0xd3, 0xf1, 0x79,
            0xbc, 0x25, 0xf4, 0xb5, 0xbe, 0xd2, 0xb9, 0xd9,
        ];
        assert_eq!(out, expected);
    }

    #[test]
    fn a_binding_request_gets_its_source() {
        let request = message(BINDING_REQUEST, &[(0x8022, b"phone")], false);
        assert!(is_stun(&request));
        let (outcome, out) = responded(&request, "192.0.2.9:4000");
        assert_eq!((outcome, out.len()), (Outcome::Sent, 32));
        assert_eq!((&out[..4], &out[4..20]), (&[1, 1, 0, 12][..], &request[4..20]));
        // An IPv4-mapped address is sent as IPv4.
        assert_eq!(responded(&request, "[::ffff:192.0.2.9]:4000").1, out);
    }

    #[test]
    fn a_fingerprint_is_checked_and_answered_with_one() {
        let request = message(BINDING_REQUEST, &[], true);
        let (outcome, out) = responded(&request, "192.0.2.9:4000");
        assert_eq!((outcome, out.len()), (Outcome::Sent, 40));
        let parsed = Parsed::read(&out).unwrap();
        assert!(parsed.fingerprint && parsed.kind == BINDING_SUCCESS);
        let mut wrong = request;
        wrong[27] ^= 1;
        assert_eq!(responded(&wrong, "192.0.2.9:4000").0, Outcome::Malformed);
    }

    #[test]
    fn what_must_be_understood_is_named() {
        let request = message(
            BINDING_REQUEST,
            &[(3, &[0; 4]), (0x7777, &[]), (3, &[0; 4]), (0x8003, &[])],
            false,
        );
        let (outcome, out) = responded(&request, "192.0.2.9:4000");
        assert_eq!(outcome, Outcome::Sent);
        assert_eq!(&out[..2], BINDING_ERROR.to_be_bytes());
        assert_eq!(
            &out[20..],
            [0, 9, 0, 4, 0, 0, 4, 20, 0, 10, 0, 4, 0, 3, 0x77, 0x77]
        );
        // Credentials are no reason to refuse.
        let with = message(
            BINDING_REQUEST,
            &[(USERNAME, b"a"), (MESSAGE_INTEGRITY, &[0; 20]), (3, &[])],
            false,
        );
        assert_eq!(
            responded(&with, "192.0.2.9:4000").1[..2],
            BINDING_SUCCESS.to_be_bytes()
        );
    }

    #[test]
    fn nothing_else_is_answered() {
        for kind in [0x0011, BINDING_SUCCESS, BINDING_ERROR, 0x0003] {
            assert_eq!(
                responded(&message(kind, &[], false), "192.0.2.9:4000"),
                (Outcome::Ignored, vec![])
            );
        }
        let whole = message(BINDING_REQUEST, &[(0x8022, b"phone")], false);
        for cut in [19, 20, 24, whole.len() - 1] {
            assert_eq!(
                responded(&whole[..cut], "192.0.2.9:4000"),
                (Outcome::Malformed, vec![])
            );
        }
        for sip in [
            &b"INVITE sip:a@b SIP/2.0\r\n"[..],
            b"\r\n\r\n",
            b"",
            b"\0\0\0\0\0\0\0\0",
        ] {
            assert!(!is_stun(sip));
        }
    }

    proptest! {
        /// Any datagram: no panic, no more than three times its length in response, and always STUN.
        #[test]
        fn no_datagram_panics_the_reader(
            mut bytes in prop::collection::vec(any::<u8>(), 20..200),
            attributes in prop::collection::vec((any::<u16>(), prop::collection::vec(any::<u8>(), 0..12)), 0..20),
            fingerprint: bool,
            v6: bool,
        ) {
            bytes[..2].copy_from_slice(&BINDING_REQUEST.to_be_bytes());
            let length = bytes.len() as u16 - 20;
            bytes[2..4].copy_from_slice(&length.to_be_bytes());
            bytes[4..8].copy_from_slice(&MAGIC);
            let attributes: Vec<(u16, &[u8])> = attributes.iter().map(|(kind, value)| (*kind, &value[..])).collect();
            let made = message(BINDING_REQUEST, &attributes, fingerprint);
            let source = if v6 { "[2001:db8::9]:4000" } else { "192.0.2.9:4000" };
            for request in [bytes, made] {
                let (outcome, out) = responded(&request, source);
                prop_assert_eq!(outcome == Outcome::Sent, !out.is_empty());
                prop_assert!(out.len() <= 80 && out.len() <= 3 * request.len());
                if outcome == Outcome::Sent {
                    prop_assert!(is_stun(&out));
                    prop_assert!(Parsed::read(&out).is_some());
                    prop_assert_eq!(&out[4..20], &request[4..20]);
                }
            }
        }
    }
}

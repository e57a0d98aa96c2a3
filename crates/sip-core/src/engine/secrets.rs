//! Keyed hashes: branches, Record-Route marks, To tags, and which worker owns a Call-ID.
//!
//! SipHash-2-4 is a pseudo-random function made for short inputs; with 128 bits of output a
//! branch cannot be guessed nor met by accident. Fields are hashed as length and bytes, so that
//! no two field lists encode alike.

use core::hash::Hasher as _;

use siphasher::sip::SipHasher24;
use siphasher::sip128::{Hasher128 as _, SipHasher24 as SipHasher24x128};

use crate::keys::derive_siphash_key;

type Key = (u64, u64);

/// All keys of one endpoint. The domain's are the same on each node that shares its secret.
#[derive(Clone)]
pub(crate) struct Secrets {
    branch: Key,
    route: Key,
    tag: Key,
    owner: Key,
    dice: Key,
    /// For maps keyed by what a peer chooses; differs between starts.
    map: Key,
}

impl core::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Secrets(..)")
    }
}

impl Secrets {
    pub(crate) fn new(domain_secret: &[u8; 32], seed: &[u8; 32]) -> Self {
        Self {
            branch: derive_siphash_key(domain_secret, "client branch"),
            route: derive_siphash_key(domain_secret, "record-route mark"),
            tag: derive_siphash_key(domain_secret, "to tag"),
            owner: derive_siphash_key(domain_secret, "call-id owner"),
            dice: derive_siphash_key(domain_secret, "choice among equals"),
            map: derive_siphash_key(seed, "transaction keys"),
        }
    }

    /// The branch that a request gets from us: the same for each copy of it, on each node and
    /// after a restart (RFC 3261 §16.11).
    pub(crate) fn branch(&self, of: &BranchInput<'_>, target: u8) -> u128 {
        let mut numbers = [0; 23];
        let (source, rest) = numbers.split_at_mut(16);
        match of.source {
            core::net::IpAddr::V4(ip) => source.copy_from_slice(&ip.to_ipv6_mapped().octets()),
            core::net::IpAddr::V6(ip) => source.copy_from_slice(&ip.octets()),
        }
        let (port, rest) = rest.split_at_mut(2);
        port.copy_from_slice(&of.port.to_be_bytes());
        let (cseq, rest) = rest.split_at_mut(4);
        cseq.copy_from_slice(&of.cseq.to_be_bytes());
        rest.copy_from_slice(&[target]);
        let fields = [of.received_branch, of.sent_by, of.call_id, of.from_tag, &numbers];
        Fields(fields).hash128(self.branch)
    }

    /// Marks a Record-Route as ours: over Call-ID and the tag of the dialog's initiator.
    pub(crate) fn route_mark(&self, call_id: &[u8], initiator_tag: &[u8]) -> u64 {
        hash64(self.route, [call_id, initiator_tag])
    }

    /// Marks a forked request, by which it is known should it come back unchanged (RFC 5393 §4.2).
    pub(crate) fn loop_mark(&self, uri: &[u8], call_id: &[u8], cseq: u32) -> u64 {
        hash64(self.route, [uri, call_id, &cseq.to_be_bytes(), b"loop"])
    }

    /// The To tag of answers that we make; their ACK is known by it (RFC 3261 §8.2.6.2, §8.2.7).
    /// An INVITE, its CANCEL and that ACK have their branch in common.
    pub(crate) fn to_tag(&self, call_id: &[u8], from_tag: &[u8], branch: &[u8]) -> u64 {
        hash64(self.tag, [call_id, from_tag, branch])
    }

    /// Which of `workers` holds the state of this Call-ID.
    pub(crate) fn owner(&self, call_id: &[u8], workers: u16) -> u16 {
        if workers <= 1 {
            return 0;
        }
        (hash64(self.owner, [call_id]) % u64::from(workers)) as u16
    }

    /// Key of a table entry made of what a peer chose.
    pub(crate) fn map_key<const N: usize>(&self, fields: [&[u8]; N]) -> u128 {
        Fields(fields).hash128(self.map)
    }

    /// A reproducible number for choices among equals (RFC 2782 weights): the same on each
    /// worker and node, so that a CANCEL goes where its INVITE went (RFC 3261 §16.11).
    pub(crate) fn dice(&self, call_id: &[u8]) -> u64 {
        hash64(self.dice, [call_id])
    }
}

/// What a branch is made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BranchInput<'a> {
    /// Branch of the topmost Via as received; empty where it has none (RFC 2543): the other
    /// fields tell its requests apart.
    pub(crate) received_branch: &'a [u8],
    /// `sent-by` host of that Via as written.
    pub(crate) sent_by: &'a [u8],
    /// Its port; 0: none given.
    pub(crate) port: u16,
    /// Where the request came from.
    pub(crate) source: core::net::IpAddr,
    pub(crate) call_id: &'a [u8],
    pub(crate) from_tag: &'a [u8],
    pub(crate) cseq: u32,
}

/// Bytes of a row of fields that are put together before they are hashed: nearly every row.
const ROW: usize = 384;

/// A row of fields, each behind its length. Hashing them at once costs half of hashing them piece
/// by piece, and gives the same.
struct Fields<'f, const N: usize>([&'f [u8]; N]);

impl<const N: usize> Fields<'_, N> {
    fn lengths(&self) -> [[u8; 4]; N] {
        self.0.map(|field| (field.len() as u32).to_le_bytes())
    }

    /// All of it at once; `None` if it is long.
    fn joined<'r>(&self, row: &'r mut [u8; ROW]) -> Option<&'r [u8]> {
        let mut at = 0;
        for (field, len) in self.0.iter().zip(self.lengths()) {
            row.get_mut(at..at + 4)?.copy_from_slice(&len);
            at += 4;
            row.get_mut(at..at + field.len())?.copy_from_slice(field);
            at += field.len();
        }
        row.get(..at)
    }

    fn put(&self, hasher: &mut impl core::hash::Hasher) {
        for (field, len) in self.0.iter().zip(self.lengths()) {
            hasher.write(&len);
            hasher.write(field);
        }
    }

    fn hash64(&self, key: Key) -> u64 {
        let mut hasher = SipHasher24::new_with_keys(key.0, key.1);
        if let Some(row) = self.joined(&mut [0; ROW]) {
            return hasher.hash(row);
        }
        self.put(&mut hasher);
        hasher.finish()
    }

    fn hash128(&self, key: Key) -> u128 {
        let mut hasher = SipHasher24x128::new_with_keys(key.0, key.1);
        if let Some(row) = self.joined(&mut [0; ROW]) {
            return hasher.hash(row).as_u128();
        }
        self.put(&mut hasher);
        hasher.finish128().as_u128()
    }
}

fn hash64<const N: usize>(key: Key, fields: [&[u8]; N]) -> u64 {
    Fields(fields).hash64(key)
}

const HEX: &[u8; 16] = b"0123456789abcdef";

/// Appends `digits` hexadecimal digits of `value`, the highest first.
pub(crate) fn write_hex(out: &mut alloc::vec::Vec<u8>, value: u128, digits: u32) {
    let mut text = [b'0'; 32];
    for (pair, byte) in text.chunks_exact_mut(2).zip(value.to_be_bytes()) {
        let digit = |nibble: u8| HEX.get(usize::from(nibble)).copied().unwrap_or(b'0');
        pair.copy_from_slice(&[digit(byte >> 4), digit(byte & 15)]);
    }
    let from = text.len().saturating_sub(digits as usize);
    out.extend_from_slice(text.get(from..).unwrap_or_default());
}

/// Reads exactly `digits` lower-case hexadecimal digits.
pub(crate) fn read_hex(text: &[u8], digits: usize) -> Option<u128> {
    if text.len() != digits {
        return None;
    }
    let mut value = 0u128;
    for &c in text {
        let nibble = match c {
            b'0'..=b'9' => c - b'0',
            b'a'..=b'f' => c - b'a' + 10,
            _ => return None,
        };
        value = value << 4 | u128::from(nibble);
    }
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn long_rows_are_hashed_as_short_ones_are() {
        for len in [0, 1, 200, ROW - 9, ROW - 8, ROW - 7, ROW, 2000] {
            let long = vec![b'x'; len];
            let fields = Fields([&long, b"y"]);
            let mut pieces = SipHasher24::new_with_keys(1, 2);
            fields.put(&mut pieces);
            assert_eq!(fields.hash64((1, 2)), pieces.finish(), "{len}");
            let mut pieces = SipHasher24x128::new_with_keys(1, 2);
            fields.put(&mut pieces);
            assert_eq!(fields.hash128((1, 2)), pieces.finish128().as_u128(), "{len}");
        }
        assert_ne!(
            Fields([b"ab", b"c"]).hash64((1, 2)),
            Fields([b"a", b"bc"]).hash64((1, 2))
        );
    }

    #[test]
    fn hexadecimal_digits() {
        let mut out = vec![];
        write_hex(&mut out, 0x0012_ab00_0000_00ff, 16);
        write_hex(&mut out, 7, 2);
        assert_eq!(out, b"0012ab00000000ff07");
        assert_eq!(read_hex(b"0012ab00000000ff", 16), Some(0x0012_ab00_0000_00ff));
        for bad in [&b"0012AB00000000ff"[..], b"0", b"", b"0012ab00000000fg"] {
            assert_eq!(read_hex(bad, 16), None);
        }
    }
}

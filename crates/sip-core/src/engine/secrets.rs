//! Keyed hashes: branches, marks of dialogs, loop marks, To tags, flow and path tokens, and choices among
//! equals.
//!
//! SipHash is a pseudo-random function made for short inputs. To tags, tokens and loop marks are
//! SipHash-2-4. Table hashes, branches and dialog marks are needed for each message: SipHash-1-3 of 128 bits.
//! docs/decisions.md has the bits that each of them takes. Fields are hashed as length and bytes, so that no
//! two field lists encode alike.

use core::hash::Hasher as _;

use sip_message::{Method, SipUri};
use siphasher::sip::SipHasher24;
use siphasher::sip128::{Hasher128 as _, SipHasher13 as SipHasher13x128};

use super::directory::host_key;
use crate::keys::derive_siphash_key;
use crate::transport::Flow;

type Key = (u64, u64);

/// All keys of one endpoint. The domain's are the same on each node that shares its secret.
#[derive(Clone)]
pub(crate) struct Secrets {
    branch: Key,
    loops: Key,
    tag: Key,
    dice: Key,
    flow: Key,
    ping: Key,
    path: Key,
    mark: Key,
    below: Key,
    /// The value of [`Secrets::mark_domain`], and its digits.
    mark_domain: (u32, [u8; 5]),
    /// The key of maps keyed by what a peer chooses; it differs between starts.
    map: Key,
    /// The key of maps keyed by the sources of messages; it differs between starts.
    source: Key,
}

impl core::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Secrets(..)")
    }
}

impl Secrets {
    pub(crate) fn new(domain_secret: &[u8; 32], seed: &[u8; 32]) -> Self {
        let mark_domain = derive_siphash_key(domain_secret, "domain of marks").0 as u32 >> 12;
        let [_, _, _, digits @ ..] = digits_of(spread(mark_domain)).to_le_bytes();
        Self {
            branch: derive_siphash_key(domain_secret, "client branch"),
            loops: derive_siphash_key(domain_secret, "loop mark"),
            tag: derive_siphash_key(domain_secret, "to tag"),
            dice: derive_siphash_key(domain_secret, "choice among equals"),
            flow: derive_siphash_key(domain_secret, "flow token"),
            ping: derive_siphash_key(domain_secret, "ping"),
            path: derive_siphash_key(domain_secret, "path token"),
            mark: derive_siphash_key(domain_secret, "mark of a dialog"),
            below: derive_siphash_key(domain_secret, "hosts below a mark"),
            mark_domain: (mark_domain, digits),
            map: derive_siphash_key(seed, "transaction keys"),
            source: derive_siphash_key(seed, "sources"),
        }
    }

    /// The branch that a request gets from us. Each copy of the request gets the same branch, on each node
    /// and after a restart (RFC 3261 §16.11).
    pub(crate) fn branch(&self, of: &BranchInput<'_>, target: u8) -> Branched {
        let mut numbers = [0; 23];
        let [p1, p0] = of.port.to_be_bytes();
        let [c3, c2, c1, c0] = of.cseq.to_be_bytes();
        // A shorter row cannot be mistaken for a longer one.
        let numbers: &[u8] = match of.source {
            core::net::IpAddr::V4(ip) => {
                let [a, b, c, d] = ip.octets();
                &[a, b, c, d, p1, p0, c3, c2, c1, c0, target]
            }
            core::net::IpAddr::V6(ip) => {
                let (source, rest) = numbers.split_at_mut(16);
                source.copy_from_slice(&ip.octets());
                rest.copy_from_slice(&[p1, p0, c3, c2, c1, c0, target]);
                &numbers
            }
        };
        let fields = [of.received_branch, of.sent_by, of.call_id, of.from_tag, numbers];
        // Methods whose Via hides a value have different pads: a callee can make a request itself, and so
        // learn the value that this method's pad hides. Unknown methods are hashed, too, so a caller cannot
        // choose a pad by its method.
        let hash = if is_common(of.method) {
            Fields(fields).hash128(self.branch)
        } else {
            let [a, b, c, d, e] = fields;
            Fields([a, b, c, d, e, of.method.as_bytes()]).hash128(self.branch)
        };
        Branched {
            id: hash as u64,
            pad: (hash >> 64) as u64,
        }
    }

    /// The 20 bits by which marks of this secret are recognised. These bits prove nothing.
    #[inline]
    pub(crate) const fn mark_domain(&self) -> u32 {
        self.mark_domain.0
    }

    /// The value of [`Secrets::mark_domain`] as hexadecimal digits.
    #[inline]
    pub(crate) const fn mark_domain_digits(&self) -> &[u8; 5] {
        &self.mark_domain.1
    }

    /// The two halves that the marks of a dialog are made of: a hash of the marks' content, the Call-ID and
    /// the caller's tag. Neither half reveals the other.
    pub(crate) fn mark(&self, says: [u8; 10], call_id: &[u8], caller_tag: &[u8]) -> [u64; 2] {
        let [a, b, c, d, e, f, g, h, i, j] = says;
        // The length shows where the tag begins.
        let [l3, l2, l1, l0] = (call_id.len() as u32).to_be_bytes();
        let head = [a, b, c, d, e, f, g, h, i, j, l3, l2, l1, l0];
        let parts = [&head[..], call_id, caller_tag];
        let mut hasher = SipHasher13x128::new_with_keys(self.mark.0, self.mark.1);
        let mut row = [0; 128];
        let hash = match joined(&mut row, parts) {
            // Hashing the row at once takes half as long.
            Some(row) => hasher.hash(row),
            None => {
                parts.iter().for_each(|part| hasher.write(part));
                hasher.finish128()
            }
        };
        [hash.h1, hash.h2]
    }

    /// The keyed hash of hosts below a Record-Route value: of the hosts further down, and one more.
    pub(crate) fn below(&self, further: u64, host: &[u8]) -> u64 {
        hash64(self.below, [&further.to_be_bytes(), host])
    }

    /// The same hash with a Route URI as the host: its user (a flow token, say), host and port, and `maddr`,
    /// which leads past both (RFC 3261 §19.1.1). The default ports count as no port: a user agent may write
    /// them out.
    pub(crate) fn below_uri(&self, further: u64, uri: &SipUri<'_>) -> u64 {
        let port = uri.port.filter(|port| !matches!(port, 5060 | 5061));
        let port = port.unwrap_or(0).to_be_bytes();
        let maddr = uri.params.value(b"maddr").unwrap_or_default();
        let user = uri.user.unwrap_or_default();
        let fields = [&further.to_be_bytes(), user, &host_key(&uri.host), &port, maddr];
        hash64(self.below, fields)
    }

    /// The start of the hash of hosts: it covers the dialog, so that hosts of one dialog reveal nothing of
    /// another.
    pub(crate) fn below_of_dialog(&self, call_id: &[u8], caller_tag: &[u8]) -> u64 {
        hash64(self.below, [call_id, caller_tag])
    }

    /// One round of the cipher that seals a seed ([`crate::engine::seed::Seed::sealed`]): 24 bits.
    pub(crate) fn seal_round(&self, below: u64, round: u8, half: u32) -> u32 {
        let [a, b, c, d] = half.to_be_bytes();
        hash64(self.below, [&below.to_be_bytes(), &[round, a, b, c, d]]) as u32 & 0xff_ffff
    }

    /// The MAC of a flow token of ours (RFC 5626 §5.2), for this dialog only.
    pub(crate) fn flow_mac(&self, flow: &[u8], call_id: &[u8], caller_tag: &[u8]) -> u64 {
        hash64(self.flow, [flow, call_id, caller_tag])
    }

    /// The MAC of a ping by this flow, with this number.
    pub(crate) fn ping_mac(&self, flow: &Flow, number: u8) -> u64 {
        let [l1, l0] = flow.listener.0.to_be_bytes();
        let [p1, p0] = flow.remote.port().to_be_bytes();
        let head = [l1, l0, p1, p0, number];
        match flow.remote.ip() {
            core::net::IpAddr::V4(ip) => hash64(self.ping, [&head, &ip.octets()]),
            core::net::IpAddr::V6(ip) => hash64(self.ping, [&head, &ip.octets()]),
        }
    }

    /// The MAC of a path token of ours (RFC 5626 §5.2): of a flow, and of the registrar that may use it.
    pub(crate) fn path_mac(&self, flow: &[u8]) -> u64 {
        hash64(self.path, [flow])
    }

    /// The mark of a forked request, by which the request is recognised if it comes back unchanged (RFC 5393
    /// §4.2).
    pub(crate) fn loop_mark(&self, uri: &[u8], call_id: &[u8], cseq: u32, rule: usize) -> u64 {
        let (cseq, rule) = (cseq.to_be_bytes(), rule.to_be_bytes());
        hash64(self.loops, [uri, call_id, &cseq, &rule, b"loop"])
    }

    /// The To tag of responses that we make, by which their ACK is recognised (RFC 3261 §8.2.6.2, §8.2.7). An
    /// INVITE, its CANCEL and that ACK have their branch in common.
    pub(crate) fn to_tag(&self, call_id: &[u8], from_tag: &[u8], branch: &[u8]) -> u64 {
        hash64(self.tag, [call_id, from_tag, branch])
    }

    /// The hash of fields that a peer chose, by which tables find an entry.
    pub(crate) fn map_hash<const N: usize>(&self, fields: [&[u8]; N]) -> u128 {
        Fields(fields).hash128(self.map)
    }

    /// The key of the hashes of sources.
    pub(crate) const fn source_key(&self) -> (u64, u64) {
        self.source
    }

    /// A reproducible number for choices among equals (RFC 2782 weights): the same on each
    /// worker and node, so that a CANCEL goes where its INVITE went (RFC 3261 §16.11).
    pub(crate) fn dice(&self, call_id: &[u8]) -> u64 {
        hash64(self.dice, [call_id])
    }
}

/// Whether branches of a method are made as an INVITE's are.
const fn is_common(method: Method<'_>) -> bool {
    !matches!(method, Method::Subscribe | Method::Refer | Method::Other(_))
}

/// A branch, and a pad that only this domain's nodes can derive from the same request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Branched {
    /// The part of the branch that identifies it.
    pub(crate) id: u64,
    /// The pad that hides the value which our Via carries through other hands.
    pub(crate) pad: u64,
}

/// The input of a branch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BranchInput<'a> {
    /// The branch of the topmost Via as received. Empty if the Via has none (RFC 2543): the other fields
    /// distinguish its requests.
    pub(crate) received_branch: &'a [u8],
    /// `sent-by` host of that Via as written.
    pub(crate) sent_by: &'a [u8],
    /// The port of that Via; 0: none given.
    pub(crate) port: u16,
    /// The source address of the request.
    pub(crate) source: core::net::IpAddr,
    pub(crate) call_id: &'a [u8],
    pub(crate) from_tag: &'a [u8],
    pub(crate) cseq: u32,
    /// The method. CANCEL and ACK have the branch of their INVITE.
    pub(crate) method: Method<'a>,
}

/// Bytes of a row of fields that are joined before they are hashed: nearly every row fits.
const ROW: usize = 256;

/// A row of fields, each behind its length. Hashing the row at once costs half of hashing it piece by piece,
/// and gives the same.
struct Fields<'f, const N: usize>([&'f [u8]; N]);

/// The length of a field as it is hashed: one byte, or five if it needs more.
#[inline(always)]
fn length(field: &[u8]) -> ([u8; 5], usize) {
    match u8::try_from(field.len()) {
        Ok(len) if len < u8::MAX => ([len, 0, 0, 0, 0], 1),
        _ => {
            let [a, b, c, d] = (field.len() as u32).to_le_bytes();
            ([u8::MAX, a, b, c, d], 5)
        }
    }
}

impl<const N: usize> Fields<'_, N> {
    /// The whole row; `None` if the row is long.
    #[inline(always)]
    fn joined<'r>(&self, row: &'r mut [u8; ROW]) -> Option<&'r [u8]> {
        let mut at = 0;
        for field in &self.0 {
            let len = u8::try_from(field.len()).ok().filter(|len| *len < u8::MAX)?;
            let place = row.get_mut(at..at + 1 + field.len())?;
            let (first, rest) = place.split_first_mut()?;
            *first = len;
            rest.copy_from_slice(field);
            at += 1 + field.len();
        }
        row.get(..at)
    }

    #[cold]
    fn put(&self, hasher: &mut impl core::hash::Hasher) {
        for field in &self.0 {
            let (len, bytes) = length(field);
            hasher.write(len.get(..bytes).unwrap_or_default());
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
        let mut hasher = SipHasher13x128::new_with_keys(key.0, key.1);
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

/// Each byte of `nibbles`, which are below 16, as a hexadecimal digit.
const fn digits_of(nibbles: u64) -> u64 {
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    // Bit 4 of a sum with 6 marks the letters, whose codes are 39 higher.
    let letters = ((nibbles + ONES * 6) >> 4) & ONES;
    nibbles + ONES * b'0' as u64 + letters * 39
}

/// The nibbles of `value` as bytes, the highest in the lowest byte, which is written first.
const fn spread(value: u32) -> u64 {
    let x = value.swap_bytes() as u64;
    let x = (x | x << 16) & 0x0000_ffff_0000_ffff;
    let x = (x | x << 8) & 0x00ff_00ff_00ff_00ff;
    (x >> 4 | x << 8) & 0x0f0f_0f0f_0f0f_0f0f
}

/// The opposite of [`spread`].
const fn gather(nibbles: u64) -> u32 {
    let x = (nibbles << 4 | nibbles >> 8) & 0x00ff_00ff_00ff_00ff;
    let x = (x | x >> 8) & 0x0000_ffff_0000_ffff;
    ((x | x >> 16) as u32).swap_bytes()
}

/// Appends `digits` hexadecimal digits of `value`, the highest first.
pub(crate) fn write_hex(out: &mut alloc::vec::Vec<u8>, value: u128, digits: u32) {
    let mut text = [0; 32];
    let words = value.to_be_bytes();
    for (digits, word) in text
        .as_chunks_mut::<8>()
        .0
        .iter_mut()
        .zip(words.as_chunks::<4>().0)
    {
        *digits = digits_of(spread(u32::from_be_bytes(*word))).to_le_bytes();
    }
    match digits {
        32 => out.extend_from_slice(&text),
        16 => out.extend_from_slice(&text[16..]),
        _ => {
            let from = text.len().saturating_sub(digits as usize);
            out.extend_from_slice(text.get(from..).unwrap_or_default());
        }
    }
}

/// The 16 digits of `value`.
#[inline]
pub(crate) fn hex64(value: u64) -> [u8; 16] {
    let mut text = [0; 16];
    let (high, low) = text.split_at_mut(8);
    high.copy_from_slice(&digits_of(spread((value >> 32) as u32)).to_le_bytes());
    low.copy_from_slice(&digits_of(spread(value as u32)).to_le_bytes());
    text
}

/// The 2 digits of `value`.
#[inline]
pub(crate) fn hex8(value: u8) -> [u8; 2] {
    let nibbles = u16::from(value >> 4) | u16::from(value & 15) << 8;
    (digits_of(u64::from(nibbles)) as u16).to_le_bytes()
}

/// The 4 digits of `value`.
#[inline]
pub(crate) fn hex16(value: u16) -> [u8; 4] {
    let [_, _, _, _, last @ ..] = digits_of(spread(u32::from(value))).to_le_bytes();
    last
}

/// The 12 digits of the low 48 bits of `value`.
#[inline]
pub(crate) fn hex48(value: u64) -> [u8; 12] {
    let mut text = [0; 12];
    let (high, low) = text.split_at_mut(8);
    high.copy_from_slice(&digits_of(spread((value >> 16) as u32)).to_le_bytes());
    let [_, _, _, _, last @ ..] = digits_of(spread(value as u32)).to_le_bytes();
    low.copy_from_slice(&last);
    text
}

/// Reads exactly `digits` lower-case hexadecimal digits, at most 32.
pub(crate) fn read_hex(text: &[u8], digits: usize) -> Option<u128> {
    if text.len() != digits {
        return None;
    }
    let (eights, rest) = text.as_chunks::<8>();
    let mut value = 0u128;
    for eight in eights {
        let word = u64::from_le_bytes(*eight);
        // Letters have bit 6, and are worth 9 more than their low bits.
        let nibbles = (word & 0x0f0f_0f0f_0f0f_0f0f) + ((word >> 6) & 0x0101_0101_0101_0101) * 9;
        let nibbles = nibbles & 0x0f0f_0f0f_0f0f_0f0f;
        if digits_of(nibbles) != word {
            return None;
        }
        value = value << 32 | u128::from(gather(nibbles));
    }
    for &c in rest {
        let nibble = match c {
            b'0'..=b'9' => c - b'0',
            b'a'..=b'f' => c - b'a' + 10,
            _ => return None,
        };
        value = value << 4 | u128::from(nibble);
    }
    Some(value)
}

/// The parts one after the other; `None` if they do not fit.
#[inline(always)]
fn joined<'r, const ROW: usize, const PARTS: usize>(
    row: &'r mut [u8; ROW],
    parts: [&[u8]; PARTS],
) -> Option<&'r [u8]> {
    let mut len = 0;
    for part in parts {
        row.get_mut(len..len + part.len())?.copy_from_slice(part);
        len += part.len();
    }
    row.get(..len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    /// A seal that a callee sees in a call of its own fits no other call through the same hosts, however
    /// Call-ID and tag are cut.
    #[test]
    fn hosts_are_hashed_for_one_dialog() {
        let secrets = Secrets::new(&[7; 32], &[9; 32]);
        let of = |secrets: &Secrets, call_id: &[u8], tag: &[u8]| {
            secrets.below(secrets.below_of_dialog(call_id, tag), b"proxy.example")
        };
        let own = of(&secrets, b"c1", b"f1");
        assert_eq!(own, of(&secrets, b"c1", b"f1"));
        for (call_id, tag) in [
            (&b"c2"[..], &b"f1"[..]),
            (b"c1", b"f2"),
            (b"c1f", b"1"),
            (b"", b"c1f1"),
            (b"f1", b"c1"),
        ] {
            assert_ne!(own, of(&secrets, call_id, tag), "{call_id:?} {tag:?}");
        }
        // The other workers have the same; the next domain does not.
        assert_eq!(own, of(&Secrets::new(&[7; 32], &[10; 32]), b"c1", b"f1"));
        assert_ne!(own, of(&Secrets::new(&[8; 32], &[9; 32]), b"c1", b"f1"));
    }

    /// A callee may make a SUBSCRIBE that equals its INVITE in all other fields of a branch, and find out the
    /// value that its pad hides. CANCEL and ACK have the INVITE's branch (RFC 3261 §9.1, §17.1.1.3).
    #[test]
    fn a_pad_is_of_one_method() {
        let secrets = Secrets::new(&[7; 32], &[9; 32]);
        let of = |method| {
            let input = BranchInput {
                received_branch: b"z9hG4bKa",
                sent_by: b"192.0.2.10",
                port: 5060,
                source: core::net::IpAddr::from([192, 0, 2, 10]),
                call_id: b"c1",
                from_tag: b"f1",
                cseq: 1,
                method,
            };
            let branched = secrets.branch(&input, 0);
            (branched.id, branched.pad)
        };
        let invite = of(Method::Invite);
        assert_eq!([of(Method::Ack), of(Method::Cancel)], [invite; 2]);
        let mut all = vec![invite];
        for method in [
            Method::Subscribe,
            Method::Refer,
            Method::Other(b"X"),
            Method::Other(b"Y"),
        ] {
            let (id, pad) = of(method);
            assert!(
                all.iter().all(|other| id != other.0 && pad != other.1),
                "{method:?}"
            );
            all.push((id, pad));
        }
    }

    #[test]
    fn long_rows_are_hashed_as_short_ones_are() {
        for len in [
            0,
            1,
            200,
            ROW - 9,
            ROW - 8,
            ROW - 7,
            ROW - 4,
            ROW - 3,
            ROW - 2,
            ROW,
            2000,
        ] {
            let long = vec![b'x'; len];
            let fields = Fields([&long, b"y"]);
            let mut pieces = SipHasher24::new_with_keys(1, 2);
            fields.put(&mut pieces);
            assert_eq!(fields.hash64((1, 2)), pieces.finish(), "{len}");
            let mut pieces = SipHasher13x128::new_with_keys(1, 2);
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
        assert_eq!(&hex48(0xffff_0012_ab00_00f7), b"0012ab0000f7");
        assert_eq!(&hex64(0x0123_4567_89ab_cdef), b"0123456789abcdef");
        assert_eq!((&hex16(0x0a9f), &hex8(0xb7)), (b"0a9f", b"b7"));
        assert_eq!(read_hex(b"0012ab00000000ff", 16), Some(0x0012_ab00_0000_00ff));
        for byte in 0..=u8::MAX {
            let text = [b'0', b'0', b'0', byte, b'0', b'0', b'0', b'0', byte];
            let digit = char::from(byte)
                .to_digit(16)
                .filter(|_| !byte.is_ascii_uppercase());
            let expected = digit.map(|d| u128::from(d << 16));
            assert_eq!(read_hex(&text[..8], 8), expected, "{byte}");
            assert_eq!(
                read_hex(&text, 9),
                digit.map(|d| u128::from(d) << 20 | u128::from(d)),
                "{byte}"
            );
        }
        out.clear();
        write_hex(&mut out, 0x0123_4567_89ab_cdef_fedc_ba98_7654_3210, 32);
        assert_eq!(out, b"0123456789abcdeffedcba9876543210");
        assert_eq!(
            read_hex(&out, 32),
            Some(0x0123_4567_89ab_cdef_fedc_ba98_7654_3210)
        );
        for bad in [&b"0012AB00000000ff"[..], b"0", b"", b"0012ab00000000fg"] {
            assert_eq!(read_hex(bad, 16), None);
        }
    }
}

//! Digest computation: pure functions, no allocation (RFC 7616 §3.4, RFC 8760, RFC 2069).

use md5::Md5;
use sha2::{Digest, Sha256, Sha512_256};
use subtle::ConstantTimeEq;
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use crate::config::Algorithm;
use crate::query::Secrets;

/// Bytes of the longest digest.
const LONGEST: usize = 32;

impl Algorithm {
    /// The name as written in `algorithm` (RFC 7616 §3.3, RFC 8760 §2.1).
    pub const fn name(self) -> &'static str {
        match self {
            Self::Md5 => "MD5",
            Self::Sha256 => "SHA-256",
            Self::Sha512_256 => "SHA-512-256",
        }
    }

    /// Reads an `algorithm` value in any case. `-sess` variants are not offered and not read.
    pub fn parse(token: &[u8]) -> Option<Self> {
        [Self::Md5, Self::Sha256, Self::Sha512_256]
            .into_iter()
            .find(|a| token.eq_ignore_ascii_case(a.name().as_bytes()))
    }

    /// Bytes of a digest.
    pub const fn digest_len(self) -> usize {
        match self {
            Self::Md5 => 16,
            Self::Sha256 | Self::Sha512_256 => 32,
        }
    }
}

/// A digest value: a hash of one of the algorithms. Wiped when dropped.
#[derive(Clone, ZeroizeOnDrop)]
pub struct Hash {
    bytes: [u8; LONGEST],
    len: u8,
}

impl Hash {
    /// The hash's bytes.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }

    /// The hash in lower-case hexadecimal digits, as it goes on the wire and into the subscriber table.
    pub fn to_hex(&self) -> Hex {
        hex(self.as_bytes())
    }

    /// A hash of these bytes, at most 32; more are cut off.
    pub fn from_slice(bytes: &[u8]) -> Self {
        let len = bytes.len().min(LONGEST);
        let mut hash = Self {
            bytes: [0; LONGEST],
            len: len as u8,
        };
        hash.bytes[..len].copy_from_slice(&bytes[..len]);
        hash
    }

    /// Reads hexadecimal digits of either case. `None` if their number is not that of a hash of `algorithm`,
    /// or one is no digit.
    pub fn from_hex(algorithm: Algorithm, digits: &[u8]) -> Option<Self> {
        let len = algorithm.digest_len();
        if digits.len() != 2 * len {
            return None;
        }
        let mut hash = Self {
            bytes: [0; LONGEST],
            len: len as u8,
        };
        for (byte, pair) in hash.bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = (hex_value(pair[0])? << 4) | hex_value(pair[1])?;
        }
        Some(hash)
    }
}

impl core::fmt::Debug for Hash {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Hash(..)")
    }
}

/// Compares in a time that does not depend on the position of a difference.
impl PartialEq for Hash {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && bool::from(self.bytes.ct_eq(&other.bytes))
    }
}

impl Eq for Hash {}

/// A hash in lower-case hexadecimal digits, on the stack. Wiped when dropped.
#[derive(Clone, ZeroizeOnDrop)]
pub struct Hex {
    digits: [u8; 2 * LONGEST],
    len: u8,
}

impl Hex {
    /// The digits.
    pub fn as_bytes(&self) -> &[u8] {
        self.digits.get(..usize::from(self.len)).unwrap_or_default()
    }

    /// The digits, as text.
    pub fn as_str(&self) -> &str {
        core::str::from_utf8(self.as_bytes()).unwrap_or_default()
    }
}

impl core::fmt::Debug for Hex {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Hex(..)")
    }
}

const HEX_DIGITS: &[u8; 16] = b"0123456789abcdef";

fn hex(bytes: &[u8]) -> Hex {
    let mut hex = Hex {
        digits: [0; 2 * LONGEST],
        len: (2 * bytes.len().min(LONGEST)) as u8,
    };
    for (pair, byte) in hex.digits.chunks_exact_mut(2).zip(bytes) {
        pair[0] = HEX_DIGITS[usize::from(byte >> 4)];
        pair[1] = HEX_DIGITS[usize::from(byte & 15)];
    }
    hex
}

const fn hex_value(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

/// Reads an `nc` value: eight hexadecimal digits (RFC 7616 §3.4).
pub fn parse_nonce_count(digits: &[u8]) -> Option<u32> {
    if digits.len() != 8 {
        return None;
    }
    digits
        .iter()
        .try_fold(0u32, |n, &d| Some((n << 4) | u32::from(hex_value(d)?)))
}

fn hash_parts<D: Digest>(parts: &[&[u8]]) -> Hash {
    let mut digest = D::new();
    for (i, part) in parts.iter().enumerate() {
        if i > 0 {
            digest.update(b":");
        }
        digest.update(part);
    }
    let mut output = digest.finalize();
    let hash = Hash::from_slice(&output);
    output.as_mut_slice().zeroize();
    hash
}

/// Hash of the parts joined by colons: `H(concat(a, ":", b, …))`.
fn hash_joined(algorithm: Algorithm, parts: &[&[u8]]) -> Hash {
    match algorithm {
        Algorithm::Md5 => hash_parts::<Md5>(parts),
        Algorithm::Sha256 => hash_parts::<Sha256>(parts),
        Algorithm::Sha512_256 => hash_parts::<Sha512_256>(parts),
    }
}

/// `H(A1)` with `A1 = username:realm:password` (RFC 7616 §3.4.2), as a subscriber table keeps it.
pub fn ha1(algorithm: Algorithm, username: &[u8], realm: &[u8], password: &[u8]) -> Hash {
    hash_joined(algorithm, &[username, realm, password])
}

/// HA1 of all three algorithms, for a table that keeps plain passwords.
pub fn secrets(username: &[u8], realm: &[u8], password: &[u8]) -> Secrets {
    let long = |algorithm| {
        let mut bytes = Zeroizing::new([0; 32]);
        bytes.copy_from_slice(&ha1(algorithm, username, realm, password).bytes);
        bytes
    };
    let mut md5 = Zeroizing::new([0; 16]);
    md5.copy_from_slice(ha1(Algorithm::Md5, username, realm, password).as_bytes());
    Secrets {
        ha1_md5: Some(md5),
        ha1_sha256: Some(long(Algorithm::Sha256)),
        ha1_sha512_256: Some(long(Algorithm::Sha512_256)),
        outdated: false,
    }
}

impl Secrets {
    /// HA1 for `algorithm`, if the row has one.
    pub fn ha1(&self, algorithm: Algorithm) -> Option<&[u8]> {
        match algorithm {
            Algorithm::Md5 => self.ha1_md5.as_ref().map(|h| &h[..]),
            Algorithm::Sha256 => self.ha1_sha256.as_ref().map(|h| &h[..]),
            Algorithm::Sha512_256 => self.ha1_sha512_256.as_ref().map(|h| &h[..]),
        }
    }
}

/// The values that `qop=auth` adds to a response, as sent, without quotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QopAuth<'a> {
    /// `qop`, as sent (`auth`).
    pub qop: &'a [u8],
    /// `nc`, the eight digits as sent.
    pub nc: &'a [u8],
    /// `cnonce`.
    pub cnonce: &'a [u8],
}

/// The input of a digest response, besides the secret: values as sent, without quotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Input<'a> {
    /// Algorithm.
    pub algorithm: Algorithm,
    /// `nonce`.
    pub nonce: &'a [u8],
    /// The values of `qop=auth`. `None`: computed as by RFC 2069 (RFC 7616 has dropped that, RFC 3261 §22.4
    /// rule 8 has not).
    pub qop: Option<QopAuth<'a>>,
    /// The request's method.
    pub method: &'a [u8],
    /// `uri`, as sent in the credentials.
    pub uri: &'a [u8],
}

/// The right `response` (RFC 7616 §3.4.1; without `qop` RFC 2069 §2.1.2) for `ha1`, the bytes of
/// `H(A1)`.
pub fn response(input: &Input<'_>, ha1: &[u8]) -> Hash {
    let a1 = hex(ha1);
    let a2 = hash_joined(input.algorithm, &[input.method, input.uri]).to_hex();
    let (a1, a2) = (a1.as_bytes(), a2.as_bytes());
    match input.qop {
        Some(q) => hash_joined(input.algorithm, &[a1, input.nonce, q.nc, q.cnonce, q.qop, a2]),
        None => hash_joined(input.algorithm, &[a1, input.nonce, a2]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn md5_and_sha256_example(algorithm: Algorithm) -> Hash {
        let input = Input {
            algorithm,
            nonce: b"7ypf/xlj9XXwfDPEoM4URrv/xwf94BcCAzFZH4GiTo0v",
            qop: Some(QopAuth {
                qop: b"auth",
                nc: b"00000001",
                cnonce: b"f2/wE4q74E6zIJEtWaHKaf5wv/H5QzzpXusqGemxURZJ",
            }),
            method: b"GET",
            uri: b"/dir/index.html",
        };
        let ha1 = ha1(algorithm, b"Mufasa", b"http-auth@example.org", b"Circle of Life");
        response(&input, ha1.as_bytes())
    }

    /// RFC 7616 §3.9.1.
    #[test]
    fn rfc_7616_md5_and_sha_256() {
        assert_eq!(
            md5_and_sha256_example(Algorithm::Md5).to_hex().as_str(),
            "8ca523f5e9506fed4657c9700eebdbec"
        );
        assert_eq!(
            md5_and_sha256_example(Algorithm::Sha256).to_hex().as_str(),
            "753927fa0e85d155564e2e272a28d1802ca10daf4496794697cf8db5856cb6c1"
        );
    }

    /// RFC 2617 §3.5.
    #[test]
    fn rfc_2617_md5() {
        let input = Input {
            algorithm: Algorithm::Md5,
            nonce: b"dcd98b7102dd2f0e8b11d0f600bfb0c093",
            qop: Some(QopAuth {
                qop: b"auth",
                nc: b"00000001",
                cnonce: b"0a4f113b",
            }),
            method: b"GET",
            uri: b"/dir/index.html",
        };
        let ha1 = ha1(
            Algorithm::Md5,
            b"Mufasa",
            b"testrealm@host.com",
            b"Circle Of Life",
        );
        assert_eq!(ha1.to_hex().as_str(), "939e7578ed9e3c518a452acee763bce9");
        assert_eq!(
            response(&input, ha1.as_bytes()).to_hex().as_str(),
            "6629fae49393a05397450978507c4ef1"
        );
    }

    /// RFC 2069 §2.4 with the response of its erratum 749.
    #[test]
    fn rfc_2069_without_qop() {
        let input = Input {
            algorithm: Algorithm::Md5,
            nonce: b"dcd98b7102dd2f0e8b11d0f600bfb0c093",
            qop: None,
            method: b"GET",
            uri: b"/dir/index.html",
        };
        let ha1 = ha1(Algorithm::Md5, b"Mufasa", b"testrealm@host.com", b"CircleOfLife");
        assert_eq!(
            response(&input, ha1.as_bytes()).to_hex().as_str(),
            "1949323746fe6a43ef61f9606e7febea"
        );
    }

    /// The example of RFC 7616 §3.9.2 is wrong in print, so: the hash by FIPS 180-4's example, the
    /// response by values computed with another implementation.
    #[test]
    fn sha_512_256() {
        assert_eq!(
            hash_joined(Algorithm::Sha512_256, &[b"abc"]).to_hex().as_str(),
            "53048e2681941ef99b2e29b76b4c7dabe4c2d0c634fc6d46e0e2f13107e7af23"
        );
        let ha1 = ha1(Algorithm::Sha512_256, b"alice", b"trapezoid", b"wonderland");
        assert_eq!(
            ha1.to_hex().as_str(),
            "96905a23a21929cf313c80871f152c857ec4c8a1f159039fc5583563a284f2e5"
        );
        let input = Input {
            algorithm: Algorithm::Sha512_256,
            nonce: b"abc",
            qop: Some(QopAuth {
                qop: b"auth",
                nc: b"0000000a",
                cnonce: b"xyz",
            }),
            method: b"REGISTER",
            uri: b"sip:example.com",
        };
        assert_eq!(
            response(&input, ha1.as_bytes()).to_hex().as_str(),
            "ff530169e414b3d56e4a3290a20ab0c45268bc3a5ce0e6f079b3ee8cd7944dce"
        );
    }

    #[test]
    fn hexadecimal_digits_are_read_exactly() {
        let hash = md5_and_sha256_example(Algorithm::Md5);
        assert_eq!(
            Hash::from_hex(Algorithm::Md5, b"8ca523f5e9506fed4657c9700eebdbec").as_ref(),
            Some(&hash)
        );
        assert_eq!(
            Hash::from_hex(Algorithm::Md5, b"8CA523F5E9506FED4657C9700EEBDBEC").as_ref(),
            Some(&hash)
        );
        assert_ne!(
            Hash::from_hex(Algorithm::Md5, b"8ca523f5e9506fed4657c9700eebdbed").as_ref(),
            Some(&hash)
        );
        for bad in [
            &b""[..],
            b"8ca523f5e9506fed4657c9700eebdbe",
            b"8ca523f5e9506fed4657c9700eebdbeg",
        ] {
            assert_eq!(Hash::from_hex(Algorithm::Md5, bad), None);
        }
        assert_eq!(
            Hash::from_hex(Algorithm::Sha256, b"8ca523f5e9506fed4657c9700eebdbec"),
            None
        );
        assert_eq!(parse_nonce_count(b"0000001f"), Some(31));
        assert_eq!(parse_nonce_count(b"ffffffff"), Some(u32::MAX));
        for bad in [&b"1"[..], b"000000001", b"0000000g", b"+0000001"] {
            assert_eq!(parse_nonce_count(bad), None);
        }
    }

    #[test]
    fn secrets_hold_every_algorithm() {
        let all = secrets(b"alice", b"r", b"p");
        for algorithm in [Algorithm::Md5, Algorithm::Sha256, Algorithm::Sha512_256] {
            assert_eq!(
                all.ha1(algorithm),
                Some(ha1(algorithm, b"alice", b"r", b"p").as_bytes())
            );
            assert_eq!(
                Algorithm::parse(algorithm.name().to_ascii_lowercase().as_bytes()),
                Some(algorithm)
            );
        }
        assert_eq!(Algorithm::parse(b"MD5-sess"), None);
    }
}

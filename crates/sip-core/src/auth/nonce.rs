//! Self-contained nonces (RFC 7616 §3.3, §5.4): a time, the node that made the nonce, unique bits, and a MAC
//! over these and the realm. So no state is kept for a challenge without a reply.
//!
//! Layout, before base64url (RFC 4648 §5, without padding; 43 characters):
//!
//! ```text
//! 0      6     8           16       20           32
//! | time | node | unique    | source | MAC        |
//! ```
//!
//! The time is Unix milliseconds, all numbers are big-endian. The MAC is 96 bits of SipHash-2-4 with
//! 128 bits under a key derived from the domain's secret.
//!
//! The source is 32 bits of a keyed hash of the address that the challenge was sent to. A client that uses
//! the nonce has received it there, so that a spoofed address is distinguished from a real one
//! ([`NonceSource::issued_to`]). On a connection a nonce is good at other addresses, too, since a phone may
//! move from one network to another.
//!
//! The unique bits are a keyed function of a counter (no randomness is drawn): they name the nonce in
//! the replay windows ([`super::window`]).

use core::hash::Hasher as _;
use core::net::IpAddr;

use base64ct::{Base64UrlUnpadded, Encoding as _};
use siphasher::sip::SipHasher24;
use siphasher::sip128::{Hasher128 as _, SipHasher24 as SipHasher24x128};
use subtle::ConstantTimeEq as _;

use crate::keys::derive_siphash_key;

/// Bytes of a nonce before encoding.
const RAW_LEN: usize = 32;
/// Bytes under the MAC.
const BODY_LEN: usize = 20;
/// The position of the source.
const SOURCE: core::ops::Range<usize> = 16..BODY_LEN;
/// Characters of a nonce.
pub const NONCE_LEN: usize = 43;

/// Milliseconds that a nonce may lie in the future: the wall clock may have been set back a little.
const FUTURE_SKEW_MS: u64 = 5_000;

/// The identity of a nonce, for the replay windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NonceId {
    /// The unique bits of the nonce.
    pub id: u64,
    /// The wall clock time of its issue, milliseconds.
    pub issued_unix_ms: u64,
    /// The last wall clock second at which the nonce is accepted.
    pub expires_unix_s: u64,
}

/// The result of the check of a nonce in credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NonceCheck {
    /// The nonce is ours and young enough; its count remains to be checked.
    Good(NonceId),
    /// The nonce was made with our key, but is too old, from the future, or by another node whose replay
    /// windows we do not see.
    Stale,
    /// The nonce was not made with our key for this realm.
    Forged,
}

/// A nonce as sent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Nonce([u8; NONCE_LEN]);

impl Nonce {
    /// The characters.
    pub const fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl core::fmt::Debug for Nonce {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(core::str::from_utf8(&self.0).unwrap_or_default())
    }
}

/// Makes and checks nonces: one per endpoint.
#[derive(Clone)]
pub struct NonceSource {
    mac_key: (u64, u64),
    source_key: (u64, u64),
    unique_key: (u64, u64),
    issued: u64,
    node: u16,
}

impl core::fmt::Debug for NonceSource {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("NonceSource")
            .field("node", &self.node)
            .field("issued", &self.issued)
            .finish_non_exhaustive()
    }
}

impl NonceSource {
    /// A source of nonces. All endpoints that accept each other's nonces share `domain_secret`; `seed`
    /// differs between endpoints and starts ([`crate::endpoint::Keys`]). `node` is
    /// [`crate::config::Config::node_id`].
    pub fn new(domain_secret: &[u8; 32], seed: &[u8; 32], node: u16) -> Self {
        Self {
            mac_key: derive_siphash_key(domain_secret, "nonce mac"),
            source_key: derive_siphash_key(domain_secret, "nonce source"),
            unique_key: derive_siphash_key(seed, "nonce unique bits"),
            issued: 0,
            node,
        }
    }

    /// A new nonce for `realm`, sent to `source`.
    pub fn issue(&mut self, now_unix_ms: u64, realm: &[u8], source: IpAddr) -> Nonce {
        let mut unique = SipHasher24::new_with_keys(self.unique_key.0, self.unique_key.1);
        unique.write_u64(self.issued);
        self.issued = self.issued.wrapping_add(1);

        let mut raw = [0; RAW_LEN];
        raw[..6].copy_from_slice(&now_unix_ms.to_be_bytes()[2..]);
        raw[6..8].copy_from_slice(&self.node.to_be_bytes());
        raw[8..16].copy_from_slice(&unique.finish().to_be_bytes());
        raw[SOURCE].copy_from_slice(&self.source_tag(source));
        let mac = self.mac(&raw[..BODY_LEN], realm);
        raw[BODY_LEN..].copy_from_slice(&mac);
        Nonce(encode(&raw))
    }

    /// Checks a nonce that came back for `realm`, with nonces that live for `lifetime_s`.
    pub fn check(&self, now_unix_ms: u64, nonce: &[u8], realm: &[u8], lifetime_s: u32) -> NonceCheck {
        let Some(raw) = decode(nonce) else {
            return NonceCheck::Forged;
        };
        if !bool::from(self.mac(&raw[..BODY_LEN], realm).ct_eq(&raw[BODY_LEN..])) {
            return NonceCheck::Forged;
        }
        let number =
            |from: usize, to: usize| raw[from..to].iter().fold(0u64, |n, &b| (n << 8) | u64::from(b));
        let issued_unix_ms = number(0, 6);
        let expires_unix_s = issued_unix_ms / 1000 + u64::from(lifetime_s);
        let too_old = now_unix_ms / 1000 > expires_unix_s;
        let too_new = issued_unix_ms > now_unix_ms.saturating_add(FUTURE_SKEW_MS);
        if too_old || too_new || number(6, 8) != u64::from(self.node) {
            return NonceCheck::Stale;
        }
        NonceCheck::Good(NonceId {
            id: number(8, 16),
            issued_unix_ms,
            expires_unix_s,
        })
    }

    /// Whether a nonce that [`NonceSource::check`] found good was sent to `source`. Of the nonces that were
    /// sent elsewhere, one in 2³² seems to be.
    pub fn issued_to(&self, nonce: &[u8], source: IpAddr) -> bool {
        decode(nonce).is_some_and(|raw| raw[SOURCE] == self.source_tag(source))
    }

    fn source_tag(&self, source: IpAddr) -> [u8; 4] {
        let mut hasher = SipHasher24::new_with_keys(self.source_key.0, self.source_key.1);
        match source {
            IpAddr::V4(ip) => hasher.write(&ip.to_ipv6_mapped().octets()),
            IpAddr::V6(ip) => hasher.write(&ip.octets()),
        }
        (hasher.finish() as u32).to_be_bytes()
    }

    /// The MAC of a nonce. The body's length is fixed, so that no two pairs of body and realm are the same
    /// bytes.
    fn mac(&self, body: &[u8], realm: &[u8]) -> [u8; RAW_LEN - BODY_LEN] {
        let mut mac = SipHasher24x128::new_with_keys(self.mac_key.0, self.mac_key.1);
        mac.write(body);
        mac.write(realm);
        let mut short = [0; RAW_LEN - BODY_LEN];
        short.copy_from_slice(&mac.finish128().as_bytes()[..RAW_LEN - BODY_LEN]);
        short
    }
}

fn encode(raw: &[u8; RAW_LEN]) -> [u8; NONCE_LEN] {
    let mut out = [0; NONCE_LEN];
    let encoded = Base64UrlUnpadded::encode(raw, &mut out);
    debug_assert!(encoded.is_ok_and(|text| text.len() == NONCE_LEN));
    out
}

/// Reads a nonce strictly: each has one spelling.
fn decode(chars: &[u8]) -> Option<[u8; RAW_LEN]> {
    let mut raw = [0; RAW_LEN];
    let decoded = Base64UrlUnpadded::decode(chars, &mut raw).ok()?;
    (decoded.len() == RAW_LEN).then_some(raw)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HERE: IpAddr = IpAddr::V4(core::net::Ipv4Addr::new(192, 0, 2, 1));
    const NOW: u64 = 1_800_000_000_123;
    const BASE64URL: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

    fn source(node: u16) -> NonceSource {
        NonceSource::new(&[1; 32], &[2; 32], node)
    }

    #[test]
    fn a_nonce_is_good_for_its_lifetime() {
        let mut s = source(3);
        let n = s.issue(NOW, b"example.com", HERE);
        let got = s.check(NOW, n.as_bytes(), b"example.com", 300);
        let NonceCheck::Good(id) = got else {
            panic!("{got:?}")
        };
        assert_eq!((id.issued_unix_ms, id.expires_unix_s), (NOW, NOW / 1000 + 300));
        assert_eq!(
            s.check(NOW + 300_000, n.as_bytes(), b"example.com", 300),
            NonceCheck::Good(id)
        );
        assert_eq!(
            s.check(NOW + 301_000, n.as_bytes(), b"example.com", 300),
            NonceCheck::Stale
        );
        assert_eq!(
            s.check(NOW - 5_000, n.as_bytes(), b"example.com", 300),
            NonceCheck::Good(id)
        );
        assert_eq!(
            s.check(NOW - 5_001, n.as_bytes(), b"example.com", 300),
            NonceCheck::Stale
        );
    }

    #[test]
    fn nonces_differ_and_so_do_their_ids() {
        let mut s = source(3);
        let (a, b) = (s.issue(NOW, b"r", HERE), s.issue(NOW, b"r", HERE));
        assert_ne!(a, b);
        let id = |n: Nonce, s: &NonceSource| match s.check(NOW, n.as_bytes(), b"r", 1) {
            NonceCheck::Good(id) => id.id,
            bad @ (NonceCheck::Stale | NonceCheck::Forged) => panic!("{bad:?}"),
        };
        assert_ne!(id(a, &s), id(b, &s));
        let mut other = NonceSource::new(&[1; 32], &[9; 32], 3);
        let c = other.issue(NOW, b"r", HERE);
        assert_ne!(id(a, &s), id(c, &s));
    }

    #[test]
    fn another_node_is_stale_another_key_or_realm_is_forged() {
        let n = source(3).issue(NOW, b"r", HERE);
        assert_eq!(source(4).check(NOW, n.as_bytes(), b"r", 300), NonceCheck::Stale);
        assert_eq!(source(3).check(NOW, n.as_bytes(), b"s", 300), NonceCheck::Forged);
        let stranger = NonceSource::new(&[7; 32], &[2; 32], 3);
        assert_eq!(stranger.check(NOW, n.as_bytes(), b"r", 300), NonceCheck::Forged);
        assert_eq!(source(3).check(NOW, b"", b"r", 300), NonceCheck::Forged);
    }

    #[test]
    fn a_nonce_knows_where_it_was_sent() {
        let mut s = source(3);
        let there: IpAddr = "2001:db8::1".parse().unwrap();
        let mapped: IpAddr = "::ffff:192.0.2.1".parse().unwrap();
        let (a, b) = (s.issue(NOW, b"r", HERE), s.issue(NOW, b"r", there));
        for (nonce, ip, is) in [
            (a, HERE, true),
            (a, mapped, true),
            (a, there, false),
            (b, there, true),
            (b, HERE, false),
        ] {
            assert_eq!(s.issued_to(nonce.as_bytes(), ip), is, "{ip}");
            // The nonce is good at any address.
            assert!(matches!(
                s.check(NOW, nonce.as_bytes(), b"r", 1),
                NonceCheck::Good(_)
            ));
        }
        // Another node of the domain knows the source as well; no other host could.
        assert!(source(4).issued_to(a.as_bytes(), HERE));
        assert!(!NonceSource::new(&[7; 32], &[2; 32], 3).issued_to(a.as_bytes(), HERE));
        assert!(!s.issued_to(b"", HERE));
    }

    #[test]
    fn no_character_may_change() {
        let n = source(3).issue(NOW, b"r", HERE);
        for i in 0..NONCE_LEN {
            for c in BASE64URL.iter().chain(b"=+/ \"\x00\xff") {
                let mut changed = n.0;
                changed[i] = *c;
                if changed != n.0 {
                    assert_eq!(source(3).check(NOW, &changed, b"r", 300), NonceCheck::Forged);
                }
            }
        }
    }

    proptest! {
        #[test]
        fn base64url_round_trip(raw: [u8; 32]) {
            prop_assert_eq!(decode(&encode(&raw)), Some(raw));
        }

        #[test]
        fn any_bytes_are_forged(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            prop_assert_eq!(source(1).check(NOW, &bytes, b"r", 300), NonceCheck::Forged);
        }
    }
}

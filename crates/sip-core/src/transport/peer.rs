//! The domain that the certificate of a TLS peer must be for.

use alloc::sync::Arc;
use core::fmt;

use smallvec::SmallVec;

/// The domain that the certificate of a TLS peer must be for: the host of the URI that led to the peer, as it
/// was before name service (RFC 5922 §4), in lower case and without a trailing dot. An IP address has no such
/// name: the certificate must have the address itself.
///
/// The name takes eight bytes, and a copy is a count: the name goes with each message of a transaction, to
/// another worker, too.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct PeerName(Arc<SmallVec<[u8; 40]>>);

/// The longest domain name as text (RFC 1035 §2.3.4: 255 bytes on the wire).
pub(crate) const MAX_NAME: usize = 253;

impl PeerName {
    /// The name of a host. `None`: no certificate can have this name.
    pub fn new(host: &[u8]) -> Option<Self> {
        let host = host.strip_suffix(b".").unwrap_or(host);
        let fits = !host.is_empty() && host.len() <= MAX_NAME && host.is_ascii();
        fits.then(|| Self(Arc::new(host.iter().map(u8::to_ascii_lowercase).collect())))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        core::str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl fmt::Debug for PeerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PeerName({})", self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_canonical_and_bounded() {
        let text = |host: &[u8]| PeerName::new(host).map(|name| alloc::string::String::from(name.as_str()));
        assert_eq!(text(b"GW.Example.NET.").as_deref(), Some("gw.example.net"));
        assert_eq!(PeerName::new(b"A.example"), PeerName::new(b"a.EXAMPLE."));
        for none in [&b""[..], b".", "b\u{fc}cher.example".as_bytes(), &[b'a'; 254]] {
            assert_eq!(text(none), None);
        }
        assert!(text(&[b'a'; 253]).is_some());
        assert_eq!(size_of::<Option<PeerName>>(), 8);
    }
}

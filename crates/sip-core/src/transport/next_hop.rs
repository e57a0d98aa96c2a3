//! A next hop named in the configuration, parsed once when that is loaded.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::hash::{Hash as _, Hasher as _};
use core::net::IpAddr;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use sip_message::{Host, Uri};
use siphasher::sip::SipHasher13;

use super::Transport;

/// A URI to which requests are sent, regardless of their Request-URI.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextHop {
    /// The URI as configured.
    pub uri: Box<[u8]>,
    /// The host of the URI, or its `maddr` (RFC 3263 §4).
    pub host: HopHost,
    /// The port of the URI, if given.
    pub port: Option<u16>,
    /// The `transport` parameter of the URI, if given.
    pub transport: Option<Transport>,
    /// Whether the URI is a SIPS URI.
    pub secure: bool,
    /// `host[:port]` as written.
    pub authority: Box<[u8]>,
    /// The addresses that name service has given for the host.
    pub known: Known,
}

/// The addresses at which a host was found, as hashes: the last few of them. All copies share one list, so
/// that all workers know the addresses that one worker learns. The list does not count when next hops are
/// compared.
#[derive(Clone, Debug, Default)]
pub struct Known(Arc<[AtomicU64; MOST_KNOWN]>);

/// The most addresses of one name that are remembered.
const MOST_KNOWN: usize = 16;

impl PartialEq for Known {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Known {}

impl Known {
    /// Remembers an address, in the place of another if there are too many.
    pub(crate) fn learn(&self, ip: IpAddr) {
        let hash = hash_of(ip);
        if self.has_hash(hash) {
            return;
        }
        let free = self.0.iter().find(|slot| slot.load(Relaxed) == 0);
        let taken = || self.0.get(hash as usize % MOST_KNOWN);
        if let Some(slot) = free.or_else(taken) {
            slot.store(hash, Relaxed);
        }
    }

    /// Whether the host was found at this address.
    pub(crate) fn has(&self, ip: IpAddr) -> bool {
        self.has_hash(hash_of(ip))
    }

    fn has_hash(&self, hash: u64) -> bool {
        self.0.iter().any(|slot| slot.load(Relaxed) == hash)
    }
}

/// The hash of an address; never 0, which stands for no address.
fn hash_of(ip: IpAddr) -> u64 {
    let mut hasher = SipHasher13::new();
    ip.to_canonical().hash(&mut hasher);
    hasher.finish().max(1)
}

/// A name or an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HopHost {
    /// Domain name.
    Name(Box<[u8]>),
    /// Address.
    Ip(IpAddr),
}

impl NextHop {
    /// Parses a SIP or SIPS URI. `None`: the text is no such URI, or names an unknown transport.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let Ok(Uri::Sip(uri)) = Uri::parse(text) else {
            return None;
        };
        let maddr = uri.params.value(b"maddr").map(Host::parse);
        let host = match maddr {
            Some(host) => host?,
            None => uri.host,
        };
        let transport = match uri.transport() {
            Some(name) => Some(Transport::parse(name)?),
            None => None,
        };
        let mut authority = Vec::from(uri.host_text);
        if let Some(port) = uri.port {
            authority.push(b':');
            sip_message::number::write_decimal(&mut authority, u64::from(port));
        }
        Some(Self {
            uri: Box::from(text),
            host: match host {
                Host::Name(name) => HopHost::Name(Box::from(name)),
                Host::V4(ip) => HopHost::Ip(ip.into()),
                Host::V6(ip) => HopHost::Ip(ip.into()),
            },
            port: uri.port,
            transport,
            secure: uri.secure,
            authority: authority.into_boxed_slice(),
            known: Known::default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_are_read_once() {
        let hop = NextHop::parse(b"sip:gw.example.net:5070;transport=tcp;maddr=192.0.2.9").unwrap();
        assert_eq!(hop.host, HopHost::Ip([192, 0, 2, 9].into()));
        assert_eq!((hop.port, hop.transport), (Some(5070), Some(Transport::Tcp)));
        assert_eq!(&*hop.authority, b"gw.example.net:5070");
        let hop = NextHop::parse(b"sips:[2001:db8::1]").unwrap();
        assert!(hop.secure && hop.port.is_none());
        assert_eq!(&*hop.authority, b"[2001:db8::1]");
        let copy = hop.clone();
        let ip = |last: u8| IpAddr::from([192, 0, 2, last]);
        for last in 0..100 {
            copy.known.learn(ip(last));
            copy.known.learn(ip(last));
            assert!(hop.known.has(ip(last)), "the newest is there");
        }
        let remembered = (0..=255).filter(|last| hop.known.has(ip(*last))).count();
        assert_eq!(remembered, MOST_KNOWN);
        for bad in [
            &b"tel:+1"[..],
            b"sip:",
            b"sip:a;transport=pigeon",
            b"gw.example.net",
        ] {
            assert_eq!(NextHop::parse(bad), None);
        }
    }
}

//! A next hop named in the configuration, read once when that is loaded.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::net::IpAddr;

use sip_message::{Host, Uri};

use super::Transport;

/// Where requests are sent to, whatever their Request-URI.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextHop {
    /// The URI as configured.
    pub uri: Box<[u8]>,
    /// Its host, or its `maddr` (RFC 3263 §4).
    pub host: HopHost,
    /// Its port, if given.
    pub port: Option<u16>,
    /// Its `transport` parameter, if given.
    pub transport: Option<Transport>,
    /// `sips:`.
    pub secure: bool,
    /// `host[:port]` as written.
    pub authority: Box<[u8]>,
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
    /// Reads a SIP or SIPS URI. `None`: it is none, or names a transport that there is not.
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

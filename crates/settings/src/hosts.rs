//! Host names, addresses and networks in the form of the configuration.

use std::net::{IpAddr, SocketAddr};

use sip_core::config::Network;
use sip_message::host::Host;

/// Reads `host` or `host:port`, IPv6 in brackets, as in a SIP URI.
pub(crate) fn host_port(text: &str) -> Option<(Host<'_>, Option<u16>)> {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        _ => (text, None),
    };
    let port = match port {
        Some(digits) => Some(digits.parse::<u16>().ok().filter(|port| *port > 0)?),
        None => None,
    };
    Some((Host::parse(host.as_bytes())?, port))
}

/// A host in the form in which domains and own hosts are compared: lower case, without a final dot, IPv6
/// canonical and without brackets.
pub(crate) fn canonical(host: &Host<'_>) -> Box<[u8]> {
    match host {
        Host::Name(name) => name
            .strip_suffix(b".")
            .unwrap_or(name)
            .to_ascii_lowercase()
            .into(),
        Host::V4(ip) => ip.to_string().into_bytes().into(),
        Host::V6(ip) => ip.to_string().into_bytes().into(),
    }
}

/// Reads a domain: a host without port, brackets not needed.
pub(crate) fn domain(text: &str) -> Option<Box<[u8]>> {
    if let Ok(ip) = text.parse::<IpAddr>() {
        return Some(ip.to_string().into_bytes().into());
    }
    Host::parse(text.as_bytes()).map(|host| canonical(&host))
}

/// Reads a network as `192.0.2.0/24`, or a single address; `None` if `text` is neither.
pub fn network(text: &str) -> Option<Network> {
    if let Ok(address) = text.parse::<IpAddr>() {
        let prefix_len = if address.is_ipv4() { 32 } else { 128 };
        return Some(Network { address, prefix_len });
    }
    let network: ipnet::IpNet = text.parse().ok()?;
    Some(Network {
        address: network.addr(),
        prefix_len: network.prefix_len(),
    })
}

/// Reads an address with a port; `port` is used if there is none.
pub(crate) fn socket_address(text: &str, port: u16) -> Option<SocketAddr> {
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Some(address);
    }
    let bare = text
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
        .unwrap_or(text);
    bare.parse::<IpAddr>().ok().map(|ip| SocketAddr::new(ip, port))
}

/// Whether `text` is a token of RFC 3261 §25.1: a method or a header name.
pub(crate) fn is_token(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|c| c.is_ascii_alphanumeric() || b"-.!%*_+`'~".contains(&c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_and_port() {
        let read = |text| host_port(text).map(|(host, port)| (canonical(&host), port));
        assert_eq!(
            read("Sip.Example.com:5070"),
            Some((b"sip.example.com".as_slice().into(), Some(5070)))
        );
        assert_eq!(read("192.0.2.1"), Some((b"192.0.2.1".as_slice().into(), None)));
        assert_eq!(
            read("[2001:DB8::1]"),
            Some((b"2001:db8::1".as_slice().into(), None))
        );
        assert_eq!(
            read("[2001:db8:0::1]:5060"),
            Some((b"2001:db8::1".as_slice().into(), Some(5060)))
        );
        for wrong in [
            "",
            ":5060",
            "a:0",
            "a:65536",
            "a:b",
            "2001:db8::1",
            "a b",
            "[::1",
            "a/b",
        ] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn networks_are_read_or_refused() {
        let read = |text| network(text).map(|network| network.prefix_len);
        assert_eq!(read("10.0.0.0/8"), Some(8));
        assert_eq!(read("10.0.0.1"), Some(32));
        assert_eq!(read("2001:db8::/32"), Some(32));
        assert_eq!(read("::1"), Some(128));
        for wrong in ["10.0.0.0/33", "10.0.0", "example.com", "10.0.0.0/", ""] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}

//! Addresses that are not of the public Internet: many hosts may have one, each in its own network.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Whether an address is private, shared, of a link or of the loopback (RFC 1918, 3927, 4193, 4291, 6598).
pub(crate) fn is_private(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => is_private_v4(ip),
        IpAddr::V6(ip) => is_private_v6(ip),
    }
}

fn is_private_v4(ip: Ipv4Addr) -> bool {
    let [first, second, ..] = ip.octets();
    // RFC 6598: the network between a provider's NAT and the customers'.
    let is_shared = first == 100 && second & 0xc0 == 0x40;
    ip.is_private() || ip.is_link_local() || ip.is_loopback() || is_shared
}

fn is_private_v6(ip: Ipv6Addr) -> bool {
    ip.is_unique_local() || ip.is_unicast_link_local() || ip.is_loopback()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_addresses_are_those_of_the_rfcs() {
        for (text, expected) in [
            ("10.0.0.1", true),
            ("172.16.0.1", true),
            ("172.32.0.1", false),
            ("192.168.255.255", true),
            ("192.169.0.1", false),
            ("169.254.1.1", true),
            ("127.0.0.1", true),
            ("100.63.255.255", false),
            ("100.64.0.1", true),
            ("100.127.255.255", true),
            ("100.128.0.0", false),
            ("198.51.100.1", false),
            ("::ffff:10.0.0.1", true),
            ("::1", true),
            ("fd00::1", true),
            ("fe80::1", true),
            ("2001:db8::1", false),
        ] {
            assert_eq!(is_private(text.parse().unwrap()), expected, "{text}");
        }
    }
}

//! The addresses of this machine, to which wildcard listeners are expanded.

use std::io;
use std::net::{IpAddr, SocketAddr};

use crate::sys;

/// One address of an interface that is up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceAddress {
    /// The interface's name.
    pub interface: String,
    /// The address. For an IPv6 link-local address see `scope_id`.
    pub address: IpAddr,
    /// Interface index that belongs to an IPv6 link-local address; 0 if none.
    pub scope_id: u32,
    /// Length of the network prefix, bits.
    pub prefix_len: u8,
    /// Whether it is a loopback interface.
    pub is_loopback: bool,
}

/// All addresses of all interfaces that are up, in the kernel's order.
pub fn addresses() -> io::Result<Vec<InterfaceAddress>> {
    let found = sys::interface_addresses()?;
    Ok(found
        .into_iter()
        .map(
            |sys::RawInterface {
                 name,
                 address,
                 mask,
                 is_loopback,
             }| InterfaceAddress {
                interface: name,
                address: address.ip(),
                scope_id: match address {
                    SocketAddr::V4(_) => 0,
                    SocketAddr::V6(v6) => v6.scope_id(),
                },
                prefix_len: prefix_len(address.ip(), mask),
                is_loopback,
            },
        )
        .collect())
}

/// Number of ones in the mask; without a mask, the length of the whole address.
fn prefix_len(address: IpAddr, mask: Option<IpAddr>) -> u8 {
    let bits = match mask.unwrap_or(match address {
        IpAddr::V4(_) => IpAddr::from([0xff; 4]),
        IpAddr::V6(_) => IpAddr::from([0xff; 16]),
    }) {
        IpAddr::V4(mask) => mask.to_bits().leading_ones(),
        IpAddr::V6(mask) => mask.to_bits().leading_ones(),
    };
    bits as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_address_is_among_them_with_its_prefix() {
        let all = addresses().unwrap();
        let loopback = all
            .iter()
            .find(|a| a.address == IpAddr::from([127, 0, 0, 1]))
            .unwrap();
        assert!(loopback.is_loopback);
        assert_eq!(loopback.prefix_len, 8);
        assert_eq!(loopback.scope_id, 0);
    }

    #[test]
    fn prefixes_are_counted_from_masks() {
        let v4 = IpAddr::from([192, 0, 2, 1]);
        assert_eq!(prefix_len(v4, Some(IpAddr::from([255, 255, 254, 0]))), 23);
        assert_eq!(prefix_len(v4, None), 32);
        let v6: IpAddr = "2001:db8::1".parse().unwrap();
        assert_eq!(prefix_len(v6, Some("ffff:ffff:ffff:ffff::".parse().unwrap())), 64);
    }
}

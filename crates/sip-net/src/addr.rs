//! Socket addresses as the kernel writes them, encoded and decoded without allocation and without
//! `unsafe`: `sockaddr_in` and `sockaddr_in6` as bytes.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

const V4_LEN: usize = size_of::<libc::sockaddr_in>();
const V6_LEN: usize = size_of::<libc::sockaddr_in6>();

/// Room for a `sockaddr_in` or `sockaddr_in6`, aligned like them.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
pub(crate) struct RawAddr([u8; V6_LEN]);

impl RawAddr {
    pub(crate) const EMPTY: Self = Self([0; V6_LEN]);

    /// Bytes of the kernel's view; the rest of the value is padding.
    pub(crate) const CAPACITY: usize = V6_LEN;

    /// The address of the first bytes of `bytes`, as many as fit.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Self {
        let mut raw = Self::EMPTY;
        for (to, from) in raw.0.iter_mut().zip(bytes) {
            *to = *from;
        }
        raw
    }

    /// Writes `address`. Returns the number of bytes to pass to the kernel.
    pub(crate) fn encode(&mut self, address: SocketAddr) -> usize {
        self.0[2..4].copy_from_slice(&address.port().to_be_bytes());
        match address {
            SocketAddr::V4(v4) => {
                self.0[..2].copy_from_slice(&(libc::AF_INET as libc::sa_family_t).to_ne_bytes());
                self.0[4..8].copy_from_slice(&v4.ip().octets());
                self.0[8..16].fill(0);
                V4_LEN
            }
            SocketAddr::V6(v6) => {
                self.0[..2].copy_from_slice(&(libc::AF_INET6 as libc::sa_family_t).to_ne_bytes());
                self.0[4..8].copy_from_slice(&v6.flowinfo().to_be_bytes());
                self.0[8..24].copy_from_slice(&v6.ip().octets());
                self.0[24..28].copy_from_slice(&v6.scope_id().to_ne_bytes());
                V6_LEN
            }
        }
    }

    /// Reads the `len` bytes that the kernel wrote; `None` if they are no internet address.
    pub(crate) fn decode(&self, len: usize) -> Option<SocketAddr> {
        let bytes = &self.0;
        let family = libc::c_int::from(libc::sa_family_t::from_ne_bytes([bytes[0], bytes[1]]));
        let port = u16::from_be_bytes([bytes[2], bytes[3]]);
        if family == libc::AF_INET && len >= V4_LEN {
            let ip = Ipv4Addr::new(bytes[4], bytes[5], bytes[6], bytes[7]);
            return Some(SocketAddr::V4(SocketAddrV4::new(ip, port)));
        }
        if family == libc::AF_INET6 && len >= V6_LEN {
            let mut octets = [0; 16];
            octets.copy_from_slice(&bytes[8..24]);
            let flowinfo = u32::from_be_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
            let scope = u32::from_ne_bytes([bytes[24], bytes[25], bytes[26], bytes[27]]);
            return Some(SocketAddr::V6(SocketAddrV6::new(
                Ipv6Addr::from(octets),
                port,
                flowinfo,
                scope,
            )));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_survives_encoding() {
        for text in [
            "192.0.2.7:5060",
            "[2001:db8::1]:5061",
            "[::1]:1",
            "0.0.0.0:0",
            "[fe80::1%7]:5060",
        ] {
            let address: SocketAddr = text.parse().unwrap();
            let mut raw = RawAddr::EMPTY;
            let len = raw.encode(address);
            assert_eq!(raw.decode(len), Some(address));
        }
    }

    #[test]
    fn a_reused_slot_keeps_nothing_of_the_longer_address() {
        let mut raw = RawAddr::EMPTY;
        raw.encode("[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:1".parse().unwrap());
        let len = raw.encode("192.0.2.1:2".parse().unwrap());
        assert_eq!(len, V4_LEN);
        assert!(raw.0[8..16].iter().all(|b| *b == 0));
    }

    #[test]
    fn what_is_no_internet_address_is_none() {
        assert_eq!(RawAddr::EMPTY.decode(V6_LEN), None);
        let mut raw = RawAddr::EMPTY;
        raw.encode("[::1]:1".parse().unwrap());
        assert_eq!(raw.decode(V4_LEN), None);
    }
}

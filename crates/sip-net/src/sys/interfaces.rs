//! `getifaddrs`.

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ptr;

use super::check;
use crate::addr::RawAddr;

/// One address of an interface.
#[derive(Debug)]
pub(crate) struct RawInterface {
    pub(crate) name: String,
    /// The address, with port 0; an IPv6 link-local address has its scope.
    pub(crate) address: SocketAddr,
    /// The network mask, as an address of the same family.
    pub(crate) mask: Option<IpAddr>,
    pub(crate) is_loopback: bool,
}

/// Every internet address of every interface that is up.
pub(crate) fn interface_addresses() -> io::Result<Vec<RawInterface>> {
    let mut list: *mut libc::ifaddrs = ptr::null_mut();
    // SAFETY: the C library writes one pointer to `list`.
    check(unsafe { libc::getifaddrs(&raw mut list) })?;
    let mut found = Vec::new();
    let mut next = list;
    while !next.is_null() {
        // SAFETY: a non-null pointer of the list is a whole `ifaddrs`, alive until `freeifaddrs`.
        let entry = unsafe { &*next };
        next = entry.ifa_next;
        if entry.ifa_flags & libc::IFF_UP as libc::c_uint == 0 {
            continue;
        }
        // SAFETY: address and mask are null or point to a `sockaddr` of their family.
        let (address, mask) = unsafe { (socket_address(entry.ifa_addr), socket_address(entry.ifa_netmask)) };
        let Some(address) = address else { continue };
        // SAFETY: the name is a C string of the list.
        let name = unsafe { CStr::from_ptr(entry.ifa_name) }
            .to_string_lossy()
            .into_owned();
        let is_loopback = entry.ifa_flags & libc::IFF_LOOPBACK as libc::c_uint != 0;
        found.push(RawInterface {
            name,
            address,
            mask: mask.map(|mask| mask.ip()),
            is_loopback,
        });
    }
    // SAFETY: the list came from `getifaddrs`; nothing borrowed from it is kept.
    unsafe { libc::freeifaddrs(list) };
    Ok(found)
}

/// The internet address behind a pointer; `None` if it is null or of another family.
///
/// # Safety
/// `address` is null, or points to a `sockaddr` as long as its family's.
unsafe fn socket_address(address: *const libc::sockaddr) -> Option<SocketAddr> {
    if address.is_null() {
        return None;
    }
    // SAFETY: not null, so at least a `sockaddr` header, by the caller's word.
    let len = match libc::c_int::from(unsafe { (*address).sa_family }) {
        libc::AF_INET => size_of::<libc::sockaddr_in>(),
        libc::AF_INET6 => size_of::<libc::sockaddr_in6>(),
        _ => return None,
    };
    // SAFETY: a `sockaddr` of this family is `len` bytes, by the caller's word.
    let bytes = unsafe { std::slice::from_raw_parts(address.cast::<u8>(), len) };
    RawAddr::from_bytes(bytes).decode(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decodes from memory of exactly the address's length, aligned for a `sockaddr`.
    fn decoded(address: SocketAddr) -> Option<SocketAddr> {
        let mut raw = RawAddr::EMPTY;
        let len = raw.encode(address);
        // SAFETY: a `RawAddr` begins with as many initialised bytes as `encode` returns.
        let bytes = unsafe { std::slice::from_raw_parts((&raw const raw).cast::<u8>(), len) };
        let exact: Box<[u8]> = bytes.into();
        // SAFETY: a `sockaddr` of its family, by `encode`.
        unsafe { socket_address(exact.as_ptr().cast()) }
    }

    #[test]
    fn an_address_is_read_as_long_as_its_family() {
        for text in ["192.0.2.7:0", "[2001:db8::1]:0", "[fe80::1%7]:0"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(decoded(address), Some(address));
        }
    }

    #[test]
    fn what_is_no_internet_address_is_none() {
        // SAFETY: null is allowed.
        assert_eq!(unsafe { socket_address(ptr::null()) }, None);
        for family in [libc::AF_UNSPEC, libc::AF_UNIX, libc::AF_PACKET] {
            // Memory of the family alone: nothing behind it is read.
            let exact = Box::new(family as libc::sa_family_t);
            // SAFETY: of a family that is not ours only itself is read.
            assert_eq!(unsafe { socket_address((&raw const *exact).cast()) }, None);
        }
    }

    #[test]
    fn the_loopback_interface_is_there() {
        let all = interface_addresses().unwrap();
        let loopback = all.iter().find(|i| i.is_loopback && i.address.is_ipv4());
        let loopback = loopback.expect("127.0.0.1");
        assert_eq!(loopback.address, "127.0.0.1:0".parse().unwrap());
        assert_eq!(loopback.mask, Some([255, 0, 0, 0].into()));
        assert!(!loopback.name.is_empty());
    }
}

//! Addresses at which TCP failed. For a while, requests that are too long for a datagram go there by
//! UDP at once: TCP first would cost each of them the time-out of a connection.
//!
//! Only such requests look here, and they are few: the list is searched from end to end. At the bound
//! the oldest address leaves, which costs one more try of TCP there.

use alloc::collections::VecDeque;
use core::net::SocketAddr;

use crate::time::Instant;

/// The most addresses that are remembered.
const MOST: usize = 256;
/// Microseconds for which an address is remembered.
const MEMORY_US: u64 = 5 * 60 * 1_000_000;

/// Addresses at which TCP failed; see the module.
#[derive(Debug, Default)]
pub(crate) struct TcpFailureCache {
    /// The addresses, the oldest first.
    entries: VecDeque<(SocketAddr, Instant)>,
}

/// The canonical form of an address.
pub(super) fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

impl TcpFailureCache {
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Notes that TCP failed at this address.
    pub(crate) fn note(&mut self, address: SocketAddr, now: Instant) {
        self.forget(address);
        if self.entries.len() >= MOST {
            self.entries.pop_front();
        }
        self.entries.push_back((canonical(address), now));
    }

    /// Notes that TCP works at this address.
    pub(crate) fn forget(&mut self, address: SocketAddr) {
        let address = canonical(address);
        self.entries.retain(|(known, _)| *known != address);
    }

    /// Whether TCP failed at this address not long ago.
    pub(crate) fn has(&mut self, address: SocketAddr, now: Instant) -> bool {
        let is_over = |noted: Instant| now.micros_since(noted) >= MEMORY_US;
        while self.entries.front().is_some_and(|(_, noted)| is_over(*noted)) {
            self.entries.pop_front();
        }
        let address = canonical(address);
        self.entries.iter().any(|(known, _)| *known == address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(port: u16) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, 1], port))
    }

    #[test]
    fn the_oldest_leaves_and_each_has_its_time() {
        let at = |s: u64| Instant::from_micros(s * 1_000_000);
        let mut memory = TcpFailureCache::default();
        for port in 0..300 {
            memory.note(address(port), at(u64::from(port)));
            assert!(memory.entries.len() <= MOST);
        }
        assert!(!memory.has(address(43), at(300)) && memory.has(address(44), at(300)));
        // Noted again, the address is the most recent, and is listed once.
        memory.note(address(44), at(300));
        assert_eq!(memory.entries.len(), MOST);
        assert!(memory.has(address(45), at(344)) && !memory.has(address(45), at(345)));
        assert!(memory.has(address(299), at(598)) && memory.has(address(44), at(599)));
        assert!(!memory.has(address(44), at(600)) && memory.is_empty());
    }

    #[test]
    fn what_works_is_forgotten_however_it_is_written() {
        let mut memory = TcpFailureCache::default();
        memory.note("[::ffff:192.0.2.1]:5060".parse().unwrap(), Instant::ORIGIN);
        assert!(memory.has(address(5060), Instant::ORIGIN));
        memory.forget(address(5061));
        assert!(!memory.is_empty());
        memory.forget(address(5060));
        assert!(memory.is_empty());
    }
}

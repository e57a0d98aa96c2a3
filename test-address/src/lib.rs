//! A loopback address (127/8) for each test, with all of its ports.
//!
//! At an address that two tests share, a port that one gives back may be the other's next: messages of one test
//! would reach the other's sockets. A listener at port 4999 marks an address as taken, in this process and in
//! others, until its [`Place`] is dropped.
#![forbid(unsafe_code)]

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

/// The port whose listener marks an address as taken.
const CLAIM: u16 = 4999;

/// An address of 127/8 that no other test has.
#[derive(Debug)]
pub struct Place {
    ip: Ipv4Addr,
    _claim: TcpListener,
}

impl Place {
    /// Claims an address.
    ///
    /// # Panics
    /// If none of 10,000 is free.
    #[must_use]
    pub fn claim() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let claimed = (0..10_000).find_map(|_| {
            // Spreads processes apart: 61 addresses each, then into the next one's, which is no harm.
            let number = std::process::id()
                .wrapping_mul(61)
                .wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
            let [_, a, b, c] = number.to_be_bytes();
            let ip = Ipv4Addr::new(127, a | 1, b, c.clamp(1, 254));
            let claim = TcpListener::bind((ip, CLAIM)).ok()?;
            Some(Self { ip, _claim: claim })
        });
        claimed.expect("a loopback address is free")
    }

    /// The address.
    #[must_use]
    pub const fn ip(&self) -> IpAddr {
        IpAddr::V4(self.ip)
    }

    /// A port of it; 0: one that the kernel chooses.
    #[must_use]
    pub const fn at(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.ip(), port)
    }

    /// One that the kernel chooses.
    #[must_use]
    pub const fn any(&self) -> SocketAddr {
        self.at(0)
    }

    /// A port at which connections are refused.
    #[must_use]
    pub const fn closed(&self) -> SocketAddr {
        self.at(CLAIM - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_differ_and_are_free() {
        let places: Vec<Place> = (0..100).map(|_| Place::claim()).collect();
        for (number, place) in places.iter().enumerate() {
            assert!(places.iter().skip(number + 1).all(|other| other.ip != place.ip));
            assert!(place.ip.is_loopback());
            assert!(TcpListener::bind(place.any()).is_ok());
            assert!(TcpListener::bind((place.ip, CLAIM)).is_err());
        }
    }
}

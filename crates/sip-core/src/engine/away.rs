//! Next hops that failed and have given no response since: their first response is an event.
//!
//! The list is searched from end to end, but only if an address is in it or in [`super::tcp_failures`]. At
//! the bound the oldest leaves, and its return is no event.

use alloc::collections::VecDeque;
use core::net::SocketAddr;

use super::Engine;
use super::tcp_failures::canonical;
use crate::event::Event;
use crate::transport::{Flow, Transport};

/// The most next hops that are remembered.
const MOST: usize = 64;

/// The next hops that failed; see the module.
#[derive(Debug, Default)]
pub(crate) struct Away {
    /// The next hops by the time of their failure, the oldest first.
    entries: VecDeque<SocketAddr>,
}

impl Away {
    fn note(&mut self, address: SocketAddr) {
        self.forget(address);
        if self.entries.len() >= MOST {
            self.entries.pop_front();
        }
        self.entries.push_back(canonical(address));
    }

    fn forget(&mut self, address: SocketAddr) {
        let address = canonical(address);
        self.entries.retain(|known| *known != address);
    }

    fn has(&self, address: SocketAddr) -> bool {
        self.entries.contains(&canonical(address))
    }
}

impl Engine {
    /// Notes that a request to this next hop failed. Registered contacts are not remembered: phones come and
    /// go.
    pub(crate) fn note_away(&mut self, destination: SocketAddr, timed_out: bool, is_contact: bool) {
        let noted = self.event(Event::NextHopFailed {
            destination,
            timed_out,
            is_contact,
        });
        if noted && !is_contact {
            self.note_failed_hop(destination);
        }
    }

    /// Notes a failed next hop, whose first response is an event.
    pub(crate) fn note_failed_hop(&mut self, destination: SocketAddr) {
        self.away.note(destination);
        self.hops_failed = true;
    }

    /// Notes that TCP failed at this address.
    pub(crate) fn note_no_tcp(&mut self, address: SocketAddr) {
        self.tcp_failures.note(address, self.now.instant);
        self.hops_failed = true;
    }

    /// Notes that a response to a request of this server came on this flow.
    #[inline]
    pub(crate) fn note_response_of(&mut self, flow: &Flow) {
        if self.hops_failed {
            self.note_return(flow);
        }
    }

    /// Forgets the failures of this flow's address.
    #[cold]
    fn note_return(&mut self, flow: &Flow) {
        let destination = flow.remote;
        // TCP works if the connection is to the address itself, and not from some port of the same host.
        if flow.transport == Transport::Tcp {
            self.tcp_failures.forget(destination);
        }
        // If there is no room for the event, the next response is one.
        if self.away.has(destination) && self.event(Event::NextHopReturned { destination }) {
            self.away.forget(destination);
        }
        self.hops_failed = !self.tcp_failures.is_empty() || !self.away.entries.is_empty();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_leaves_and_each_is_there_once() {
        let address = |port: u16| SocketAddr::from(([192, 0, 2, 1], port));
        let mut away = Away::default();
        for port in 0..70 {
            away.note(address(port));
            assert!(away.entries.len() <= MOST);
        }
        assert!(!away.has(address(5)) && away.has(address(6)));
        // Noted again, the address is the most recent.
        away.note(address(6));
        away.note("[::ffff:192.0.2.1]:70".parse().unwrap());
        assert!(away.has(address(6)) && !away.has(address(7)) && away.has(address(70)));
        away.forget(address(70));
        assert!(!away.has(address(70)));
        assert_eq!(away.entries.len(), MOST - 1);
    }
}

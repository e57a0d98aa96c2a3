//! Accepted connections by their far ends, for all workers.
//!
//! RFC 3261 §18: connections are indexed by the address, port and transport at their far end. A phone that is
//! behind a NAT, or listens nowhere, can be reached only on the connection that it opened. The kernel chose
//! the worker that accepted this connection. So a worker that sends to a peer must find the connection of
//! another worker.
//!
//! The index is written when a connection is accepted and when it ends. It is read for messages that name no
//! living connection. Each entry is one living connection, so the workers' limits on connections bound the
//! index, too.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;

use sip_core::id::ConnId;
use sip_core::transport::Transport;

use crate::sync::RwLock;

/// Number of locks, so many that two workers rarely want the same one at once. Models have one lock, because
/// the order of locks must not depend on a random key there.
const SHARDS: usize = if cfg!(loom) { 1 } else { 64 };

/// The far end of a connection.
type Peer = (Transport, SocketAddr);

/// One lock and the part of the index that it guards, in a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Shard(RwLock<HashMap<Peer, ConnId>>);

/// Accepted connections, by their far ends. All workers share one index.
#[derive(Debug)]
pub struct Accepted {
    shards: Box<[Shard]>,
    /// Keyed, since peers choose their addresses. The shards' maps have keys of their own: within a shard,
    /// all hashes by this key have bits in common.
    hasher: RandomState,
}

impl Default for Accepted {
    fn default() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
            hasher: RandomState::new(),
        }
    }
}

impl Accepted {
    fn shard(&self, peer: &Peer) -> Option<&RwLock<HashMap<Peer, ConnId>>> {
        let number = self.hasher.hash_one(peer) % SHARDS as u64;
        self.shards.get(number as usize).map(|shard| &shard.0)
    }

    /// Adds an accepted connection. Of two from one address the later counts: the peer has forgotten the
    /// earlier, or holds it to another of our addresses and may use either.
    pub(crate) fn insert(&self, transport: Transport, remote: SocketAddr, id: ConnId) {
        let peer = (transport, remote);
        if let Some(shard) = self.shard(&peer) {
            shard.write().insert(peer, id);
        }
    }

    /// Removes a connection that takes no more messages, unless a later one has its entry.
    pub(crate) fn remove(&self, transport: Transport, remote: SocketAddr, id: ConnId) {
        let peer = (transport, remote);
        if let Some(shard) = self.shard(&peer)
            && let Entry::Occupied(entry) = shard.write().entry(peer)
            && *entry.get() == id
        {
            entry.remove();
        }
    }

    /// The connection from exactly this address. Its worker may be ending the connection at this moment.
    pub(crate) fn find(&self, transport: Transport, remote: SocketAddr) -> Option<ConnId> {
        let peer = (transport, remote);
        self.shard(&peer)?.read().get(&peer).copied()
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.0.read().len()).sum()
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;
    use sip_core::id::WorkerId;

    fn id(worker: u16, slot: u32, generation: u32) -> ConnId {
        ConnId {
            worker: WorkerId(worker),
            slot,
            generation,
        }
    }

    #[test]
    fn a_connection_is_found_by_address_port_and_transport() {
        let accepted = Accepted::default();
        let peers: Vec<SocketAddr> = (1..=1000)
            .map(|port| ([192, 0, 2, (port % 3) as u8], port).into())
            .collect();
        for (peer, slot) in peers.iter().zip(0..) {
            accepted.insert(Transport::Tcp, *peer, id(0, slot, 1));
            accepted.insert(Transport::Tls, *peer, id(1, slot, 1));
        }
        for (peer, slot) in peers.iter().zip(0..) {
            assert_eq!(accepted.find(Transport::Tcp, *peer), Some(id(0, slot, 1)));
            assert_eq!(accepted.find(Transport::Tls, *peer), Some(id(1, slot, 1)));
            assert_eq!(accepted.find(Transport::Ws, *peer), None);
            let other = SocketAddr::new(peer.ip(), peer.port() + 1);
            assert_eq!(accepted.find(Transport::Tcp, other), None);
        }
        for (peer, slot) in peers.iter().zip(0..) {
            accepted.remove(Transport::Tcp, *peer, id(0, slot, 1));
            assert_eq!(accepted.find(Transport::Tcp, *peer), None);
            assert_eq!(accepted.find(Transport::Tls, *peer), Some(id(1, slot, 1)));
        }
        assert_eq!(accepted.len(), 1000, "what has ended takes no room");
    }

    #[test]
    fn the_end_of_an_earlier_connection_leaves_the_later_one() {
        let accepted = Accepted::default();
        let peer = "[2001:db8::1]:40000".parse().unwrap();
        accepted.insert(Transport::Tcp, peer, id(0, 7, 1));
        accepted.insert(Transport::Tcp, peer, id(1, 7, 1));
        accepted.remove(Transport::Tcp, peer, id(0, 7, 1));
        assert_eq!(accepted.find(Transport::Tcp, peer), Some(id(1, 7, 1)));
        // The same slot, used again.
        accepted.insert(Transport::Tcp, peer, id(1, 7, 2));
        accepted.remove(Transport::Tcp, peer, id(1, 7, 1));
        assert_eq!(accepted.find(Transport::Tcp, peer), Some(id(1, 7, 2)));
        accepted.remove(Transport::Tcp, peer, id(1, 7, 2));
        accepted.remove(Transport::Tcp, peer, id(1, 7, 2));
        assert_eq!(accepted.len(), 0);
    }
}

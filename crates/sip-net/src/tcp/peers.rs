//! Connections that we opened, and opening one.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::AsFd;

use sip_core::id::{ConnId, ListenerId};
use sip_core::owner::call_id_of;
use sip_core::transport::{Flow, Transport};
use socket2::{Domain, Protocol, Socket, Type};

use super::service::Sharing;
use crate::sys;

/// What a connection that we opened is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Peer {
    transport: Transport,
    /// From one local address.
    listener: ListenerId,
    remote: SocketAddr,
    /// For one call alone: a hash of its Call-ID.
    pub(super) call: Option<u64>,
}

/// Connections that we opened and that can be used, by what they are for.
#[derive(Debug, Default)]
pub(super) struct Peers {
    connections: HashMap<Peer, ConnId>,
    hasher: RandomState,
}

impl Peers {
    /// What a connection that carries `message` to `to` would be for.
    pub(super) fn peer(&self, to: &Flow, sharing: Sharing, message: &[u8]) -> Peer {
        Peer {
            transport: to.transport,
            listener: to.listener,
            remote: to.remote,
            call: match sharing {
                Sharing::PerPeer => None,
                Sharing::PerCall => call_id_of(message).map(|id| self.hasher.hash_one(id)),
            },
        }
    }

    pub(super) fn get(&self, peer: &Peer) -> Option<ConnId> {
        self.connections.get(peer).copied()
    }

    pub(super) fn insert(&mut self, peer: Peer, id: ConnId) {
        self.connections.insert(peer, id);
    }

    /// Forgets the connection, unless another has its place.
    pub(super) fn remove(&mut self, peer: &Peer, id: ConnId) {
        if self.connections.get(peer) == Some(&id) {
            self.connections.remove(peer);
        }
    }
}

/// Begins to open a connection from `source`.
pub(super) fn connect(source: IpAddr, remote: SocketAddr) -> io::Result<TcpStream> {
    let socket = Socket::new(
        Domain::for_address(remote),
        Type::STREAM.nonblocking().cloexec(),
        Some(Protocol::TCP),
    )?;
    // The port is chosen at connect, when the peer is known: so ports run out for each peer, not
    // for all together (ip(7)).
    sys::set_option(socket.as_fd(), libc::SOL_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1)?;
    socket.set_tcp_nodelay(true)?;
    socket.bind(&SocketAddr::new(source, 0).into())?;
    match socket.connect(&remote.into()) {
        Ok(()) => {}
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
        Err(error) => return Err(error),
    }
    Ok(socket.into())
}

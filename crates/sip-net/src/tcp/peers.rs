//! Connections by what they lead to, and opening one.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::AsFd;

use sip_core::id::{ConnId, ListenerId};
use sip_core::owner::call_id_of;
use sip_core::transport::{Flow, Transport};
use socket2::{Domain, Protocol, Socket, Type};

use super::conn::Beginning;
use super::layer::{Decoder, Secured};
use super::service::{Sharing, is_secure};
use super::streams::Streams;
use crate::counters::NetCounters;
use crate::sys;
use crate::tls::TlsError;

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

impl Streams {
    /// Whether the connection that `to` names is one of this worker's and can be used.
    pub fn has(&mut self, to: &Flow) -> bool {
        to.conn.is_some_and(|id| self.usable(id, to))
    }

    /// Whether this worker has opened a connection for `message` to the address of `to`, and it can be
    /// used.
    pub fn has_opened(&mut self, to: &Flow, message: &[u8]) -> bool {
        self.find_opened(to, message).is_some()
    }

    fn usable(&mut self, id: ConnId, to: &Flow) -> bool {
        self.table.get_mut(id).is_some_and(|conn| {
            conn.takes_messages() && conn.transport == to.transport && conn.remote.ip() == to.remote.ip()
        })
    }

    pub(super) fn find(&mut self, to: &Flow, message: &[u8]) -> Option<ConnId> {
        if let Some(id) = to.conn.filter(|id| self.usable(*id, to)) {
            return Some(id);
        }
        self.find_opened(to, message)
    }

    fn peer(&self, to: &Flow, message: &[u8]) -> Peer {
        let service = self.services.get(usize::from(to.listener.0));
        let sharing = service.map_or(Sharing::PerPeer, |service| service.sharing);
        self.peers.peer(to, sharing, message)
    }

    fn find_opened(&mut self, to: &Flow, message: &[u8]) -> Option<ConnId> {
        let id = self.peers.get(&self.peer(to, message))?;
        self.usable(id, to).then_some(id)
    }

    pub(super) fn open(
        &mut self,
        to: &Flow,
        message: &[u8],
        now_ms: u64,
        counters: &mut NetCounters,
    ) -> Option<ConnId> {
        let source = self.sources.get(usize::from(to.listener.0)).copied().flatten();
        if self.table.is_full() {
            counters.tcp_refused_limit += 1;
            return None;
        }
        let tls = match is_secure(to.transport) {
            false => None,
            true => match self.client(to) {
                Ok(secured) => Some(Box::new(secured)),
                Err(error) => {
                    counters.tcp_open_failed += 1;
                    self.note_failure(*to, true, error);
                    return None;
                }
            },
        };
        let Some(Ok(socket)) = source.map(|source| connect(source, to.remote)) else {
            counters.tcp_open_failed += 1;
            return None;
        };
        let peer = self.peer(to, message);
        let beginning = Beginning {
            socket,
            flow: *to,
            decoder: Decoder::new(to.transport, &self.limits),
            tls,
            opened_to: Some(Box::new(peer.clone())),
        };
        let id = self.add(beginning, now_ms, counters)?;
        self.peers.insert(peer, id);
        Some(id)
    }

    /// Our end of TLS to the peer of `to`.
    fn client(&self, to: &Flow) -> Result<Secured, TlsError> {
        let service = self.services.get(usize::from(to.listener.0));
        let none = || TlsError::Internal("connections from here cannot be opened".to_owned());
        let clients = service
            .and_then(|service| service.clients.as_ref())
            .ok_or_else(none)?;
        let domain = to.remote.ip().to_string();
        let mut first = Vec::new();
        let session = clients.for_domain(&domain).connect(&domain, &mut first)?;
        Ok(Secured::new(session, first))
    }
}

/// Begins to open a connection from `source`.
fn connect(source: IpAddr, remote: SocketAddr) -> io::Result<TcpStream> {
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

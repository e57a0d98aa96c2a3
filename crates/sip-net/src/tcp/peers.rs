//! Connections that we opened, by peer, and how one is opened.

use std::borrow::Cow;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use sip_core::activity::Component;
use sip_core::affinity::call_id_of;
use sip_core::id::{ConnId, ListenerId};
use sip_core::transport::{Flow, PeerName, Transport};
use socket2::{Domain, Protocol, Socket, TcpKeepalive, Type};

use super::conn::NewConnection;
use super::layer::{Decoder, Secured};
use super::listener::{bound_unacknowledged, bound_unsent};
use super::service::{Sharing, is_secure};
use super::streams::{Outgoing, Streams};
use crate::counters::NetCounters;
use crate::settings::Settings;
use crate::sys;
use crate::tls::TlsError;

/// The key of a connection that we opened: connections with different keys are not shared.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Peer {
    transport: Transport,
    /// The listener from whose address the connection is opened.
    listener: ListenerId,
    remote: SocketAddr,
    /// The domain that the peer has to prove by TLS; `None`: the address.
    name: Option<PeerName>,
    /// A hash of the Call-ID, if the connection serves one call alone.
    pub(super) call: Option<u64>,
}

impl Peer {
    /// The domain that the peer has to prove.
    pub(super) const fn name(&self) -> Option<&PeerName> {
        self.name.as_ref()
    }

    /// Whether the connection was opened to the peer of this domain.
    pub(super) fn is_named(&self, name: &str) -> bool {
        self.name.as_ref().is_some_and(|own| own.as_str() == name)
    }
}

/// Usable connections that we opened, by peer.
#[derive(Debug, Default)]
pub(super) struct Peers {
    connections: HashMap<Peer, ConnId>,
    hasher: RandomState,
}

impl Peers {
    /// The key of a connection for this message.
    fn peer(&self, outgoing: &Outgoing<'_>, sharing: Sharing) -> Peer {
        let Outgoing { to, way, message, .. } = outgoing;
        Peer {
            transport: to.transport,
            listener: to.listener,
            remote: to.remote,
            name: way.peer.clone().filter(|_| is_secure(to.transport)),
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

    /// Removes the connection, unless another one has taken its entry.
    pub(super) fn remove(&mut self, peer: &Peer, id: ConnId) {
        if self.connections.get(peer) == Some(&id) {
            self.connections.remove(peer);
        }
    }
}

/// Whether a message to be sent is a response.
pub(super) fn is_response(message: &[u8]) -> bool {
    message.starts_with(b"SIP/2.0 ")
}

impl Streams {
    /// Whether the connection named by `to` belongs to this worker and can be used.
    pub fn has(&mut self, to: &Flow) -> bool {
        to.conn.is_some_and(|id| self.usable(id, to))
    }

    /// Whether this worker has opened a usable connection for this message.
    pub fn has_opened(&mut self, outgoing: &Outgoing<'_>) -> bool {
        self.find_opened(outgoing).is_some()
    }

    fn usable(&mut self, id: ConnId, to: &Flow) -> bool {
        self.table.get_mut(id).is_some_and(|conn| {
            conn.takes_messages() && conn.transport == to.transport && conn.remote.ip() == to.remote.ip()
        })
    }

    /// Whether the named connection may carry this message. A message for a domain needs a connection with a
    /// certificate of that domain (RFC 5923 §8.1). The flow of a phone names no domain. A connection that was
    /// found by its address must have proved that address, as a connection that we open must. A response may
    /// use the connection found by its address in any case (RFC 3261 §18.2.2).
    fn will_do(&mut self, id: ConnId, outgoing: &Outgoing<'_>) -> bool {
        let to = &outgoing.to;
        let pinned = outgoing.way.pinned;
        let name = outgoing.way.peer.as_ref().map(PeerName::as_str);
        self.usable(id, to)
            && self.table.get_mut(id).is_some_and(|conn| {
                let has_proved = match name {
                    Some(name) => conn.has_proved(name),
                    None => {
                        // An address other than the connection's own is only claimed by the peer.
                        let is_own = conn.alias.as_deref() != Some(&to.remote);
                        !outgoing.way.found
                            || is_response(outgoing.message) && is_own
                            || conn.has_proved_address()
                    }
                };
                // Without kept state a response goes by Via. If the client did not ask for `rport`, Via lacks
                // the client's port (RFC 3581 §4). The named connection is the right one all the same.
                let is_it = !pinned || conn.remote == to.remote || is_response(outgoing.message);
                is_it && has_proved
            })
    }

    /// Lists an accepted connection also under `address`, by which its peer wants to be found (RFC 5923
    /// §8.2). [`Streams::send`] checks whether the peer may use that address.
    pub fn alias(&mut self, id: ConnId, address: SocketAddr) {
        let Some(conn) = self.table.get_mut(id) else {
            return;
        };
        let known = conn.alias.as_deref() == Some(&address) || conn.remote == address;
        if known || conn.is_outbound() || !conn.takes_messages() {
            return;
        }
        if let Some(old) = conn.alias.replace(Box::new(address)) {
            self.accepted.remove(conn.transport, *old, id);
        }
        self.accepted.insert(conn.transport, address, id);
    }

    pub(super) fn find(&mut self, outgoing: &Outgoing<'_>) -> Option<ConnId> {
        let named = outgoing.to.conn;
        if let Some(id) = named.filter(|id| self.will_do(*id, outgoing)) {
            return Some(id);
        }
        if outgoing.way.pinned {
            return None;
        }
        self.find_opened(outgoing)
    }

    fn peer(&self, outgoing: &Outgoing<'_>) -> Peer {
        let service = self.services.get(usize::from(outgoing.to.listener.0));
        let sharing = service.map_or(Sharing::PerPeer, |service| service.sharing);
        self.peers.peer(outgoing, sharing)
    }

    fn find_opened(&mut self, outgoing: &Outgoing<'_>) -> Option<ConnId> {
        let id = self.peers.get(&self.peer(outgoing))?;
        self.usable(id, &outgoing.to).then_some(id)
    }

    pub(super) fn open(
        &mut self,
        outgoing: &Outgoing<'_>,
        now_ms: u64,
        counters: &mut NetCounters,
    ) -> Option<ConnId> {
        if outgoing.way.pinned {
            return None;
        }
        let to = &outgoing.to;
        let source = self.sources.get(usize::from(to.listener.0)).copied().flatten();
        let peer = self.peer(outgoing);
        if !self.may_open(&peer, counters) {
            return None;
        }
        let tls = match is_secure(to.transport) {
            false => None,
            true => match self.first_flight(outgoing) {
                Ok(secured) => Some(Box::new(secured)),
                Err(error) => {
                    counters.tcp_open_failed += 1;
                    self.note_failure(*to, true, outgoing.way.peer.clone(), error);
                    return None;
                }
            },
        };
        let before = self.activity.enter(Component::Connections);
        let socket = source.map(|source| connect(source, to.remote, &self.settings));
        self.activity.enter(before);
        let Some(Ok(socket)) = socket else {
            counters.tcp_open_failed += 1;
            return None;
        };
        let beginning = NewConnection {
            socket,
            flow: *to,
            decoder: Decoder::new(to.transport, &self.limits),
            tls,
            opened_to: Some(Box::new(peer.clone())),
            is_for_response: is_response(outgoing.message),
        };
        let id = self.add(beginning, now_ms, counters)?;
        if peer.call.is_none() {
            let limit = self.settings.connections_per_address;
            self.per_address.add(to.remote.ip(), limit);
        }
        self.peers.insert(peer, id);
        Some(id)
    }

    /// Whether another connection to the peer may be opened. A peer can make us connect to it, by its address
    /// for responses. That gets the peer no more connections, and keeps no other peer from connecting to us.
    fn may_open(&mut self, peer: &Peer, counters: &mut NetCounters) -> bool {
        let opened = self.table.len() - self.accepted_count;
        if opened >= self.settings.connections.div_ceil(2)
            || self.table.is_full() && !self.make_room(counters)
        {
            counters.tcp_refused_limit += 1;
            return false;
        }
        let limit = self.settings.connections_per_address;
        if peer.call.is_none() && !self.per_address.has_room(peer.remote.ip(), limit) {
            counters.tcp_refused_address += 1;
            return false;
        }
        true
    }

    /// A TLS client for the peer, with its ClientHello.
    fn first_flight(&self, outgoing: &Outgoing<'_>) -> Result<Secured, TlsError> {
        let before = self.activity.enter(Component::Tls);
        let secured = self.client(outgoing);
        self.activity.enter(before);
        secured
    }

    fn client(&self, outgoing: &Outgoing<'_>) -> Result<Secured, TlsError> {
        let Outgoing { to, way, .. } = outgoing;
        let service = self.services.get(usize::from(to.listener.0));
        let none = || TlsError::Internal("connections from here cannot be opened".to_owned());
        let clients = service
            .and_then(|service| service.clients.as_ref())
            .ok_or_else(none)?;
        // The host of the URI before any resolution (RFC 5922 §4).
        let domain = match &way.peer {
            Some(name) => Cow::Borrowed(name.as_str()),
            None => Cow::Owned(to.remote.ip().to_string()),
        };
        let mut first = Vec::new();
        let session = clients.for_domain(&domain).connect(&domain, &mut first)?;
        Ok(Secured::new(session, first))
    }
}

/// Unit of the kernel's keep-alive intervals.
const SECOND: Duration = Duration::from_secs(1);

/// Lets a socket that is bound to an address have its port at `connect`, when the peer is known: so ports run out
/// for each peer, not for all together (ip(7)).
///
/// # Errors
/// The kernel does not know the option (Linux before 4.2).
pub fn choose_port_late(socket: BorrowedFd<'_>) -> io::Result<()> {
    sys::set_option(socket, libc::SOL_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1)
}

/// Begins to open a connection from `source`.
fn connect(source: IpAddr, remote: SocketAddr, settings: &Settings) -> io::Result<TcpStream> {
    let socket = Socket::new(
        Domain::for_address(remote),
        Type::STREAM.nonblocking().cloexec(),
        Some(Protocol::TCP),
    )?;
    choose_port_late(socket.as_fd())?;
    socket.set_tcp_nodelay(true)?;
    bound_unsent(&socket)?;
    let patience_ms = settings.peer_timeout_ms.min(settings.write_timeout_ms);
    bound_unacknowledged(&socket, patience_ms)?;
    // Keep-alives find a lost neighbour before a call does. (Phones are not probed: it would wake their
    // radios.)
    let patience = Duration::from_millis(patience_ms.into());
    let probes = TcpKeepalive::new()
        .with_time((patience * 3).max(SECOND))
        .with_interval((patience / 2).max(SECOND));
    socket.set_tcp_keepalive(&probes)?;
    socket.bind(&SocketAddr::new(source, 0).into())?;
    match socket.connect(&remote.into()) {
        Ok(()) => {}
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
        Err(error) => return Err(error),
    }
    Ok(socket.into())
}

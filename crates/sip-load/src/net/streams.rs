//! Connections of both ends: TCP, TLS, WebSocket; cut into messages.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

use sip_core::limits::Limits;
use sip_net::epoll::{Epoll, Interest, Readiness};
use sip_net::tls::{TlsClient, TlsServer};
use socket2::{Domain, Protocol, Socket, Type};

use super::connection::{Connection, Ended, Phase};
use super::websocket::Client;
use super::{End, FIRST_CONNECTION, LISTENER};
use crate::Micros;
use crate::outbox::{Outbox, To};
use crate::stats::Cause;

/// Bytes that wait for the peer on one connection; more messages fail.
const MOST_WAITING: usize = 4 << 20;
/// Bytes of one read.
const READ: usize = 64 << 10;
/// Different reasons of lost connections that are counted.
const REASONS: usize = 32;
/// Connections that may wait to be accepted.
const BACKLOG: i32 = 4096;

/// How callers connect.
pub(crate) struct Dial {
    pub(crate) target: SocketAddr,
    /// With the name that the server's certificate must speak for.
    pub(crate) tls: Option<(Arc<TlsClient>, String)>,
    /// Path and host of the WebSocket.
    pub(crate) websocket: Option<(String, String)>,
}

/// Messages that have come, one after the other.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    bytes: Vec<u8>,
    messages: Vec<(End, u32, usize)>,
}

impl Inbox {
    pub(super) fn push(&mut self, end: End, connection: u32, message: &[u8]) {
        self.bytes.extend_from_slice(message);
        self.messages.push((end, connection, self.bytes.len()));
    }

    /// Gives all to `each`, and forgets them.
    pub(crate) fn drain(&mut self, mut each: impl FnMut(End, To, &[u8])) {
        let mut from = 0;
        for (end, connection, until) in self.messages.drain(..) {
            let message = self.bytes.get(from..until).unwrap_or_default();
            each(end, To::Connection(connection), message);
            from = until;
        }
        self.bytes.clear();
    }
}

/// All connections.
pub(crate) struct Streams {
    connections: Vec<Option<Connection>>,
    free: Vec<u32>,
    dial: Option<Dial>,
    listener: Option<(TcpListener, Option<Arc<TlsServer>>)>,
    scratch: Box<[u8]>,
    plain: Vec<u8>,
    limits: Limits,
    dirty: Vec<u32>,
    pub(crate) inbox: Inbox,
    /// Connections that are gone.
    pub(crate) lost: Vec<(u32, End, Cause)>,
    /// Why they are, in words.
    pub(crate) reasons: BTreeMap<String, u64>,
    /// When connections of the callers began that can be used now.
    pub(crate) opened: Vec<Micros>,
}

impl std::fmt::Debug for Streams {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Streams")
            .field("connections", &self.connections.len())
            .finish_non_exhaustive()
    }
}

impl Streams {
    pub(crate) fn new(dial: Option<Dial>) -> Self {
        Self {
            connections: Vec::new(),
            free: Vec::new(),
            dial,
            listener: None,
            scratch: vec![0; READ].into_boxed_slice(),
            plain: Vec::new(),
            limits: Limits::default(),
            dirty: Vec::new(),
            inbox: Inbox::default(),
            lost: Vec::new(),
            reasons: BTreeMap::new(),
            opened: Vec::new(),
        }
    }

    /// Accepts connections for the called end; where it listens then.
    pub(crate) fn listen(
        &mut self,
        address: SocketAddr,
        tls: Option<Arc<TlsServer>>,
        epoll: &Epoll,
    ) -> io::Result<SocketAddr> {
        let kind = Type::STREAM.nonblocking().cloexec();
        let socket = Socket::new(Domain::for_address(address), kind, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        let listener = TcpListener::from(socket);
        let local = listener.local_addr()?;
        epoll.add(&listener, LISTENER, Interest::Read)?;
        self.listener = Some((listener, tls));
        Ok(local)
    }

    fn take_slot(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.connections.push(None);
            (self.connections.len() - 1) as u32
        })
    }

    fn get(&mut self, id: u32) -> Option<&mut Connection> {
        self.connections.get_mut(id as usize)?.as_mut()
    }

    /// A new connection to the target; its number. What becomes of it is told by `lost` and
    /// `opened`.
    pub(crate) fn open(&mut self, epoll: &Epoll, now: Micros) -> u32 {
        let id = self.take_slot();
        self.reopen(id, epoll, now);
        id
    }

    /// Opens a connection of this number, which is lost, again.
    pub(crate) fn reopen(&mut self, id: u32, epoll: &Epoll, now: Micros) {
        let Some(dial) = &self.dial else {
            return;
        };
        let made = connect(dial.target).and_then(|socket| {
            epoll.add(&socket, FIRST_CONNECTION + u64::from(id), Interest::Write)?;
            Ok(socket)
        });
        match made {
            Ok(socket) => {
                let websocket = dial.websocket.as_ref().map(|_| Box::new(Client::new(id)));
                let connection = Connection::calling(socket, websocket, now, &self.limits);
                self.connections[id as usize] = Some(connection);
            }
            Err(error) => {
                self.note(error.to_string());
                self.lost.push((id, End::Callers, Cause::ConnectFailed));
            }
        }
    }

    /// What happened at a socket: the listener's or a connection's.
    pub(crate) fn ready(&mut self, epoll: &Epoll, what: Readiness, now: Micros) {
        if what.token == LISTENER {
            return self.accept(epoll, now);
        }
        let id = (what.token - FIRST_CONNECTION) as u32;
        let Some(connection) = self.connections.get_mut(id as usize).and_then(Option::as_mut) else {
            return;
        };
        let was_open = connection.phase == Phase::Open;
        let mut done = Ok(());
        if connection.phase == Phase::Connecting {
            done = connection.connected(self.dial.as_ref());
        }
        if done.is_ok() && (what.readable || what.error) {
            let dial = self.dial.as_ref();
            done = connection.read(id, &mut self.scratch, &mut self.plain, dial, &mut self.inbox);
        }
        if connection.phase == Phase::Open && !was_open {
            connection.say_what_waited();
            if connection.end == End::Callers {
                self.opened.push(connection.began);
            }
        }
        self.dirty.push(id);
        if let Err(Ended { cause, why }) = done {
            self.lose(id, cause, why);
        }
        self.flush(epoll);
    }

    fn accept(&mut self, epoll: &Epoll, now: Micros) {
        while let Some((listener, tls)) = &self.listener
            && let Ok((socket, _)) = listener.accept()
        {
            let session = match tls.as_ref().map(|tls| tls.accept()) {
                None => None,
                Some(Ok(session)) => Some(Box::new(session)),
                Some(Err(_)) => continue,
            };
            let ready = socket
                .set_nonblocking(true)
                .and_then(|()| socket.set_nodelay(true));
            let id = self.take_slot();
            let token = FIRST_CONNECTION + u64::from(id);
            if ready
                .and_then(|()| epoll.add(&socket, token, Interest::Read))
                .is_ok()
            {
                self.connections[id as usize] = Some(Connection::called(socket, session, now, &self.limits));
            } else {
                self.free.push(id);
            }
        }
    }

    fn note(&mut self, why: String) {
        if self.reasons.len() < REASONS {
            *self.reasons.entry(why).or_default() += 1;
        } else if let Some(known) = self.reasons.get_mut(&why) {
            *known += 1;
        }
    }

    fn lose(&mut self, id: u32, cause: Cause, why: String) {
        self.note(why);
        if let Some(connection) = self.connections.get_mut(id as usize).and_then(Option::take) {
            self.lost.push((id, connection.end, cause));
            if connection.end == End::Called {
                self.free.push(id);
            }
        }
    }

    /// Takes what the outbox has for connections; `failed` gets what there is no room for.
    pub(crate) fn send(&mut self, outbox: &Outbox, epoll: &Epoll, mut failed: impl FnMut(&[u8], Cause)) {
        for index in 0..outbox.len() {
            let Some((To::Connection(id), message)) = outbox.get(index) else {
                continue;
            };
            match self.get(id) {
                None => failed(message, Cause::ConnectionLost),
                Some(connection) if connection.waiting() > MOST_WAITING => {
                    failed(message, Cause::ConnectionFull)
                }
                Some(connection) => {
                    connection.say(message);
                    self.dirty.push(id);
                }
            }
        }
        self.flush(epoll);
        for id in &outbox.closing {
            self.close(*id);
        }
    }

    /// Writes what waits, on all connections that may have something new.
    fn flush(&mut self, epoll: &Epoll) {
        let mut dirty = std::mem::take(&mut self.dirty);
        dirty.dedup();
        for id in dirty.drain(..) {
            let token = FIRST_CONNECTION + u64::from(id);
            if let Some(Err(error)) = self.get(id).map(|c| c.flush(epoll, token)) {
                self.lose(id, Cause::ConnectionLost, error.to_string());
            }
        }
        self.dirty = dirty;
    }

    /// A connection of the callers is not needed any more.
    fn close(&mut self, id: u32) {
        if let Some(slot) = self.connections.get_mut(id as usize) {
            if let Some(mut connection) = slot.take() {
                connection.close();
            }
            self.free.push(id);
        }
    }
}

fn connect(target: SocketAddr) -> io::Result<TcpStream> {
    let kind = Type::STREAM.nonblocking().cloexec();
    let socket = Socket::new(Domain::for_address(target), kind, Some(Protocol::TCP))?;
    let in_progress = rustix::io::Errno::INPROGRESS.raw_os_error();
    match socket.connect(&target.into()) {
        Err(error) if error.raw_os_error() != Some(in_progress) => return Err(error),
        Ok(()) | Err(_) => {}
    }
    socket.set_tcp_nodelay(true)?;
    Ok(TcpStream::from(socket))
}

//! Connections of both ends (TCP, TLS, WebSocket), whose bytes are cut into messages.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

use rustix::io::Errno;
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

/// Most bytes that wait for the peer on one connection; beyond it messages fail.
const MOST_WAITING: usize = 4 << 20;
/// Most bytes of one read.
const READ: usize = 64 << 10;
/// Most different reasons of lost connections that are counted.
const REASONS: usize = 32;
/// Most connections that wait to be accepted.
const BACKLOG: i32 = 4096;
/// Pause of a listener that could not accept for want of descriptors, microseconds.
const PAUSE_US: Micros = 100_000;

/// How callers connect.
pub(crate) struct Dial {
    pub(crate) target: SocketAddr,
    /// Our address; with port 0 the kernel chooses the port.
    pub(crate) local: Option<SocketAddr>,
    /// TLS settings, and the name that the server's certificate must contain; `None` without TLS.
    pub(crate) tls: Option<(Arc<TlsClient>, String)>,
    /// Path and host of the WebSocket; `None` without one.
    pub(crate) websocket: Option<(String, String)>,
}

/// Received messages, one after the other.
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

    /// Gives all messages to `each`, and clears the inbox.
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
    /// By connection: the cause of its last end.
    down: Vec<Cause>,
    free: Vec<u32>,
    /// Longest time from the start of a connection until it is open.
    within: Micros,
    /// Connections that are not open yet with their deadlines, the earliest first.
    opening: VecDeque<(Micros, u32)>,
    /// Time until which the listener is ignored.
    paused: Option<Micros>,
    dial: Option<Dial>,
    listener: Option<(TcpListener, Option<Arc<TlsServer>>)>,
    scratch: Box<[u8]>,
    plain: Vec<u8>,
    limits: Limits,
    dirty: Vec<u32>,
    pub(crate) inbox: Inbox,
    /// Connections that have ended, with their causes.
    pub(crate) lost: Vec<(u32, End, Cause)>,
    /// Number of lost connections by reason, in words.
    pub(crate) reasons: BTreeMap<String, u64>,
    /// First error of a socket for the generator's own lack of descriptors, ports or memory.
    pub(crate) own_limit: Option<String>,
    /// Starting times of the callers' connections that have newly opened.
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
    /// Streams without a connection. Each connection must be open `within` this time.
    pub(crate) fn new(dial: Option<Dial>, within: Micros) -> Self {
        Self {
            within,
            connections: Vec::new(),
            down: Vec::new(),
            free: Vec::new(),
            opening: VecDeque::new(),
            paused: None,
            dial,
            listener: None,
            scratch: vec![0; READ].into_boxed_slice(),
            plain: Vec::new(),
            limits: Limits::default(),
            dirty: Vec::new(),
            inbox: Inbox::default(),
            lost: Vec::new(),
            reasons: BTreeMap::new(),
            own_limit: None,
            opened: Vec::new(),
        }
    }

    /// Begins to accept connections for the called end. Returns its address.
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
            self.down.push(Cause::ConnectionLost);
            (self.connections.len() - 1) as u32
        })
    }

    fn get(&mut self, id: u32) -> Option<&mut Connection> {
        self.connections.get_mut(id as usize)?.as_mut()
    }

    /// Opens a new connection to the target. Returns its number. `lost` and `opened` report its fate.
    pub(crate) fn open(&mut self, epoll: &Epoll, now: Micros) -> u32 {
        let id = self.take_slot();
        self.reopen(id, epoll, now);
        id
    }

    /// Opens the connection of this number, which is new or lost.
    pub(crate) fn reopen(&mut self, id: u32, epoll: &Epoll, now: Micros) {
        let Some(dial) = &self.dial else {
            return;
        };
        let made = connect(dial).and_then(|socket| {
            epoll.add(&socket, FIRST_CONNECTION + u64::from(id), Interest::Write)?;
            Ok(socket)
        });
        match made {
            Ok(socket) => {
                let websocket = dial.websocket.as_ref().map(|_| Box::new(Client::new(id)));
                let connection = Connection::calling(socket, websocket, now, &self.limits);
                self.connections[id as usize] = Some(connection);
                self.opening.push_back((now + self.within, id));
            }
            Err(error) => {
                let cause = self.note_error(&error);
                self.down[id as usize] = cause;
                self.lost.push((id, End::Callers, cause));
            }
        }
    }

    /// Ends the connections that are late, and resumes accepting. To be called ten times a second.
    pub(crate) fn wake(&mut self, epoll: &Epoll, now: Micros) {
        while let Some((due, id)) = self.opening.pop_front_if(|(due, _)| *due <= now) {
            // A later connection of this number has a deadline of its own.
            let began = due - self.within;
            let late = |c: &Connection| c.phase != Phase::Open && c.began == began;
            if self.connections[id as usize].as_ref().is_some_and(late) {
                self.lose(
                    id,
                    Cause::ConnectTimeout,
                    "it took too long to connect".to_owned(),
                );
            }
        }
        if self.paused.take_if(|until| *until <= now).is_some()
            && let Some((listener, _)) = &self.listener
            && epoll.add(listener, LISTENER, Interest::Read).is_err()
        {
            self.paused = Some(now + PAUSE_US);
        }
    }

    /// Handles an event of a socket: the listener's or a connection's.
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
        while let Some((listener, tls)) = &self.listener {
            let socket = match listener.accept() {
                Ok((socket, _)) => socket,
                Err(error) => {
                    if is_own_limit(&error) {
                        // A connection that waits to be accepted would wake us at once, again and again.
                        let _ = epoll.remove(listener);
                        self.paused = Some(now + PAUSE_US);
                        self.note_error(&error);
                    }
                    return;
                }
            };
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
                self.opening
                    .extend(session.is_some().then_some((now + self.within, id)));
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

    /// Notes an error of making a socket. Returns the cause under which calls fail.
    fn note_error(&mut self, error: &io::Error) -> Cause {
        self.note(error.to_string());
        if !is_own_limit(error) {
            return Cause::ConnectFailed;
        }
        self.own_limit.get_or_insert_with(|| error.to_string());
        Cause::OwnLimit
    }

    fn lose(&mut self, id: u32, cause: Cause, why: String) {
        self.note(why);
        if let Some(connection) = self.connections.get_mut(id as usize).and_then(Option::take) {
            self.down[id as usize] = cause;
            self.lost.push((id, connection.end, cause));
            if connection.end == End::Called {
                self.free.push(id);
            }
        }
    }

    /// Sends the outbox's messages for connections. `failed` gets those without a connection, and those
    /// without room.
    pub(crate) fn send(&mut self, outbox: &Outbox, epoll: &Epoll, mut failed: impl FnMut(&[u8], Cause)) {
        for index in 0..outbox.len() {
            let Some((To::Connection(id), message)) = outbox.get(index) else {
                continue;
            };
            let down = self.down.get(id as usize).copied();
            match self.get(id) {
                None => failed(message, down.unwrap_or(Cause::ConnectionLost)),
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

    /// Writes the waiting bytes of all connections that may have new ones.
    fn flush(&mut self, epoll: &Epoll) {
        let mut dirty = std::mem::take(&mut self.dirty);
        dirty.dedup();
        for id in dirty.drain(..) {
            let token = FIRST_CONNECTION + u64::from(id);
            let Some(connection) = self.get(id) else {
                continue;
            };
            if let Err(error) = connection.flush(epoll, token) {
                let Ended { cause, why } = connection.ended(error);
                self.lose(id, cause, why);
            }
        }
        self.dirty = dirty;
    }

    /// Closes a connection of the callers that is not needed any more.
    fn close(&mut self, id: u32) {
        if let Some(slot) = self.connections.get_mut(id as usize) {
            if let Some(mut connection) = slot.take() {
                connection.close();
            }
            self.free.push(id);
        }
    }
}

/// Whether the error is the generator's own lack of a descriptor, a port or memory for a socket.
fn is_own_limit(error: &io::Error) -> bool {
    const OURS: [Errno; 6] = [
        Errno::MFILE,
        Errno::NFILE,
        Errno::ADDRNOTAVAIL,
        Errno::ADDRINUSE,
        Errno::NOBUFS,
        Errno::NOMEM,
    ];
    let number = error.raw_os_error();
    OURS.iter().any(|ours| Some(ours.raw_os_error()) == number)
}

/// A socket for a connection to `target`, bound to `local`.
pub(super) fn outgoing(target: SocketAddr, local: Option<SocketAddr>) -> io::Result<Socket> {
    let kind = Type::STREAM.nonblocking().cloexec();
    let socket = Socket::new(Domain::for_address(target), kind, Some(Protocol::TCP))?;
    if let Some(local) = local {
        if local.port() != 0 {
            // The port of a lost connection is used again.
            socket.set_reuse_address(true)?;
        }
        socket.bind(&local.into())?;
    }
    Ok(socket)
}

fn connect(dial: &Dial) -> io::Result<TcpStream> {
    let socket = outgoing(dial.target, dial.local)?;
    let target = dial.target;
    let in_progress = Errno::INPROGRESS.raw_os_error();
    match socket.connect(&target.into()) {
        Err(error) if error.raw_os_error() != Some(in_progress) => return Err(error),
        Ok(()) | Err(_) => {}
    }
    socket.set_tcp_nodelay(true)?;
    Ok(TcpStream::from(socket))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_resource_that_runs_out_has_its_own_cause() {
        let mut streams = Streams::new(None, 1);
        let cause = |streams: &mut Streams, errno: Errno| streams.note_error(&errno.into());
        assert_eq!(cause(&mut streams, Errno::CONNREFUSED), Cause::ConnectFailed);
        assert_eq!(streams.own_limit, None);
        for errno in [Errno::MFILE, Errno::NFILE, Errno::ADDRNOTAVAIL] {
            assert_eq!(cause(&mut streams, errno), Cause::OwnLimit);
        }
        assert!(streams.own_limit.is_some_and(|why| why.contains("open files")));
        assert_eq!(streams.reasons.len(), 4);
    }
}

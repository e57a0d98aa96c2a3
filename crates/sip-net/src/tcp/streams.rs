//! All connections of one worker.

use std::collections::HashMap;
use std::io;
use std::mem;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;

use sip_core::config::Config;
use sip_core::id::{ConnId, ListenerId, WorkerId};
use sip_core::limits::Limits;
use sip_core::transport::framing::{Framer, FramingError};
use sip_core::transport::{Flow, Transport};
use socket2::{Domain, Protocol, Socket, Type};

use super::conn::{Conn, Overdue, State};
use super::listener::TcpListener;
use super::queue::OutQueue;
use super::table::{LOW_GENERATION, Table};
use super::wheel::Wheel;
use crate::accepted::Accepted;
use crate::counters::NetCounters;
use crate::epoll::{Epoll, Interest, Readiness};
use crate::mailbox::{Block, Task};
use crate::settings::Settings;
use crate::sys;

/// What the receiver of a message wants done with its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It goes on.
    Keep,
    /// Send what is queued, and what this turn still queues, then end it.
    Close,
}

/// What arrived on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival<'a> {
    /// A complete message.
    Message(&'a [u8]),
    /// The end of all messages: the connection is closed once an answer has been sent.
    Fault(FramingError<'a>),
}

/// How connections are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Naming {
    /// The worker that owns them.
    pub worker: WorkerId,
    /// What their events' tokens have in the highest byte; the rest is theirs.
    pub token: u64,
    /// First generation of their numbers; differs between processes, which numbers outlive.
    pub seed: u32,
}

/// Why a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    Peer,
    Error,
    OpenFailed,
    Framing,
    Core,
    Idle,
    Incomplete,
    Slow,
    Memory,
}

/// Peers to which we hold a connection that we opened: one for each local address.
type Peer = (Transport, ListenerId, SocketAddr);

/// Queues kept for reuse.
const KEPT_QUEUES: usize = 256;

/// The connections of one worker, and its listeners.
///
/// Messages are collected in each connection's queue and written once, at the end of the turn
/// ([`Streams::flush`]). A message that cannot be delivered comes back, whole, through
/// [`Streams::take_lost`].
#[derive(Debug)]
pub struct Streams {
    settings: Settings,
    epoll: Arc<Epoll>,
    token: u64,
    listeners: Vec<TcpListener>,
    /// For each listener of the configuration that is a stream: the address to connect from.
    sources: Vec<Option<IpAddr>>,
    limits: Limits,
    table: Table<Conn>,
    peers: HashMap<Peer, ConnId>,
    /// Connections that peers opened, of all workers.
    accepted: Arc<Accepted>,
    wheel: Wheel,
    due: Vec<(ConnId, u64)>,
    dirty: Vec<ConnId>,
    #[expect(
        clippy::vec_box,
        reason = "connections hold boxes, to be small while they are silent"
    )]
    spare: Vec<Box<OutQueue>>,
    buffer: Vec<u8>,
    lost: Block,
    /// Bytes that wait to be sent.
    unsent: usize,
    /// Bytes of messages that are not complete.
    partial: usize,
    /// Given up for a moment when descriptors run out, to accept and refuse a connection that
    /// would otherwise be reported as waiting for ever.
    reserve: Option<std::fs::File>,
}

impl Streams {
    /// No connections yet. The listeners are to be registered with `epoll` by the caller, the
    /// connections register themselves; those that peers open also with `accepted`, for all
    /// workers.
    pub fn new(
        naming: Naming,
        config: &Config,
        settings: &Settings,
        listeners: Vec<TcpListener>,
        epoll: Arc<Epoll>,
        accepted: Arc<Accepted>,
        now_ms: u64,
    ) -> Self {
        let Naming { worker, token, seed } = naming;
        let sources = config.listeners.iter();
        let sources = sources
            .map(|l| (l.transport == Transport::Tcp).then_some(l.address.ip()))
            .collect::<Vec<_>>();
        Self {
            settings: settings.clone(),
            epoll,
            token,
            listeners,
            sources,
            limits: config.limits.clone(),
            table: Table::new(worker, settings.connections, seed),
            peers: HashMap::new(),
            accepted,
            wheel: Wheel::new(now_ms),
            due: Vec::new(),
            dirty: Vec::new(),
            spare: Vec::new(),
            buffer: vec![0; settings.read_bytes.max(1)],
            lost: Block::default(),
            unsent: 0,
            partial: 0,
            reserve: std::fs::File::open("/dev/null").ok(),
        }
    }

    /// Takes over what a new configuration says of connections: bounds of messages, for
    /// connections that come.
    pub fn reconfigure(&mut self, config: &Config) {
        self.limits = config.limits.clone();
    }

    /// The listeners, in the order of their indexes.
    pub fn listeners(&self) -> &[TcpListener] {
        &self.listeners
    }

    /// Whether messages wait to be sent.
    pub fn has_unsent(&self) -> bool {
        self.unsent > 0
    }

    fn held(&self) -> usize {
        self.unsent + self.partial
    }

    /// Connections, and bytes that they hold.
    pub fn load(&self) -> (usize, usize) {
        (self.table.len(), self.held())
    }

    /// Accepts what waits at listener `index` (of those given to [`Streams::new`]), up to the
    /// bound of one turn.
    pub fn accept(&mut self, index: usize, now_ms: u64, counters: &mut NetCounters) {
        for _ in 0..self.settings.accepts_per_turn {
            let Some(listener) = self.listeners.get(index) else {
                return;
            };
            match listener.accept() {
                Ok(Some((socket, remote))) => {
                    let (transport, listener) = (listener.transport(), listener.id());
                    let flow = Flow {
                        transport,
                        listener,
                        remote,
                        conn: None,
                    };
                    if let Some(id) = self.add(socket, &flow, false, now_ms, counters) {
                        self.accepted.insert(transport, remote, id);
                        counters.tcp_accepted += 1;
                    }
                }
                Ok(None) => return,
                Err(error) => match error.raw_os_error() {
                    // Errors of the connection that was accepted (accept(2)); there may be more.
                    Some(
                        libc::ECONNABORTED
                        | libc::EINTR
                        | libc::ENETDOWN
                        | libc::EPROTO
                        | libc::ENOPROTOOPT
                        | libc::EHOSTDOWN
                        | libc::ENONET
                        | libc::EHOSTUNREACH
                        | libc::EOPNOTSUPP
                        | libc::ENETUNREACH,
                    ) => {}
                    Some(libc::EMFILE | libc::ENFILE) => {
                        counters.tcp_refused_files += 1;
                        self.reserve = None;
                        // Closed at once.
                        drop(listener.accept());
                        self.reserve = std::fs::File::open("/dev/null").ok();
                    }
                    _ => return,
                },
            }
        }
    }

    /// Closes the listeners.
    pub fn stop_accepting(&mut self) {
        self.listeners.clear();
    }

    /// Puts a new connection into the table and registers it.
    fn add(
        &mut self,
        socket: TcpStream,
        flow: &Flow,
        outbound: bool,
        now_ms: u64,
        counters: &mut NetCounters,
    ) -> Option<ConnId> {
        let framer = Framer::new(&self.limits);
        let Ok(id) = self
            .table
            .insert(Conn::new(socket, flow, framer, outbound, now_ms))
        else {
            counters.tcp_refused_limit += 1;
            return None;
        };
        let token = self.token_of(id);
        let conn = self.table.get_mut(id)?;
        if self.epoll.add(conn, token, conn.interest).is_err() {
            counters.tcp_refused_files += 1;
            self.table.remove(id);
            return None;
        }
        let (deadline, _) = conn.deadline(&self.settings);
        conn.placed = self.wheel.place(id, deadline, conn.placed);
        Some(id)
    }

    fn token_of(&self, id: ConnId) -> u64 {
        self.token | u64::from(id.generation & LOW_GENERATION) << 32 | u64::from(id.slot)
    }

    /// Deals with an event of a connection. Each complete message goes to `deliver`, with the
    /// flow that answers to it take.
    pub fn ready(
        &mut self,
        event: Readiness,
        now_ms: u64,
        counters: &mut NetCounters,
        mut deliver: impl FnMut(Flow, Arrival<'_>) -> Verdict,
    ) {
        let low_generation = (event.token >> 32) as u32 & LOW_GENERATION;
        // The connection may have ended earlier in this turn.
        let Some(id) = self.table.key(event.token as u32, low_generation) else {
            return;
        };
        let Some(conn) = self.table.get_mut(id) else {
            return;
        };
        if conn.state == State::Connecting {
            match conn.connected() {
                Ok(()) => {
                    conn.enter(State::Open, now_ms);
                    conn.progress_ms = now_ms;
                    counters.tcp_opened += 1;
                    self.mark_dirty(id);
                }
                // Neither connected nor failed yet.
                Err(error) if error.kind() == io::ErrorKind::NotConnected && !event.error => return,
                Err(_) => return self.close(id, Why::OpenFailed, counters),
            }
        } else if event.writable {
            self.mark_dirty(id);
        }
        if event.readable || event.error {
            let mut buffer = mem::take(&mut self.buffer);
            self.read(id, &mut buffer, now_ms, counters, &mut deliver);
            self.buffer = buffer;
        }
    }

    fn read(
        &mut self,
        id: ConnId,
        buffer: &mut [u8],
        now_ms: u64,
        counters: &mut NetCounters,
        deliver: &mut impl FnMut(Flow, Arrival<'_>) -> Verdict,
    ) {
        let Some(conn) = self.table.get_mut(id) else {
            return;
        };
        let fresh = match conn.read(buffer) {
            Ok(0) => return self.close(id, Why::Peer, counters),
            Ok(count) => buffer.get(..count).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(_) => return self.close(id, Why::Error, counters),
        };
        counters.stream_received_bytes += fresh.len() as u64;
        if conn.state != State::Open {
            // We are ending it; what still comes is thrown away.
            return;
        }
        conn.touch(now_ms);
        let (partial, was_mid_message) = (conn.framer.held_bytes(), conn.framer.is_mid_message());
        let taken = conn.take_messages(id, fresh, counters, deliver);
        if conn.framer.is_mid_message() && (taken.messages > 0 || !was_mid_message) {
            conn.message_begins(now_ms);
        }
        if taken.pings > 0 {
            let out = conn
                .out
                .get_or_insert_with(|| self.spare.pop().unwrap_or_default());
            let before = out.len();
            if before == 0 {
                conn.progress_ms = now_ms;
            }
            (0..taken.pings).for_each(|_| out.push_unmarked(b"\r\n"));
            self.unsent += out.len() - before;
        }
        self.partial = (self.partial + conn.framer.held_bytes()).saturating_sub(partial);
        let too_slow = conn.waiting() > self.settings.write_queue_bytes;
        let (deadline, _) = conn.deadline(&self.settings);
        conn.placed = self.wheel.place(id, deadline, conn.placed);
        if taken.pings > 0 {
            self.mark_dirty(id);
        }
        match taken.end {
            Some(why) => self.finish(id, why, now_ms, counters),
            None if too_slow => self.close(id, Why::Slow, counters),
            None if self.held() > self.settings.stream_bytes => self.close(id, Why::Memory, counters),
            None => {}
        }
    }

    /// Sends a message that worker `origin` made: on the connection that `to` names, if it is
    /// ours and stands; else on the one to that address, opened if need be. It leaves at the next
    /// [`Streams::flush`].
    pub fn send(
        &mut self,
        to: Flow,
        origin: WorkerId,
        message: &[u8],
        now_ms: u64,
        counters: &mut NetCounters,
    ) {
        let id = match self.find(&to) {
            Some(id) => id,
            None => match self.open(&to, now_ms, counters) {
                Some(id) => id,
                None => return self.lose(to, origin, message, counters),
            },
        };
        if self.is_over(id, message.len()) {
            // Perhaps the reader has caught up since.
            self.write(id, now_ms, counters);
        }
        if self.is_over(id, message.len()) {
            self.lose(to, origin, message, counters);
            // One that does not stand yet is no slow reader; to cut it would only mean to open
            // the next one for the next message.
            if self
                .table
                .get_mut(id)
                .is_some_and(|conn| conn.state != State::Connecting)
            {
                self.close(id, Why::Slow, counters);
            }
            return;
        }
        let Some(conn) = self.table.get_mut(id) else {
            return self.lose(to, origin, message, counters);
        };
        if conn.waiting() == 0 {
            conn.progress_ms = now_ms;
        }
        let out = conn
            .out
            .get_or_insert_with(|| self.spare.pop().unwrap_or_default());
        out.push(to, origin, message);
        self.unsent += message.len();
        self.mark_dirty(id);
        if self.held() > self.settings.stream_bytes {
            self.close(id, Why::Memory, counters);
        }
    }

    /// Whether `more` bytes are too many for what waits on a connection. One message always may
    /// wait, however long.
    fn is_over(&mut self, id: ConnId, more: usize) -> bool {
        let limit = self.settings.write_queue_bytes;
        self.table
            .get_mut(id)
            .is_some_and(|conn| conn.waiting() > 0 && conn.waiting() + more > limit)
    }

    /// Whether the connection that `to` names is one of this worker's and can be used.
    pub fn has(&mut self, to: &Flow) -> bool {
        to.conn.is_some_and(|id| self.usable(id, to))
    }

    /// Whether this worker has opened a connection to the address of `to`, and it can be used.
    pub fn has_opened(&mut self, to: &Flow) -> bool {
        self.find_opened(to).is_some()
    }

    fn usable(&mut self, id: ConnId, to: &Flow) -> bool {
        self.table.get_mut(id).is_some_and(|conn| {
            conn.state != State::Shut && conn.transport == to.transport && conn.remote.ip() == to.remote.ip()
        })
    }

    fn find(&mut self, to: &Flow) -> Option<ConnId> {
        if let Some(id) = to.conn.filter(|id| self.usable(*id, to)) {
            return Some(id);
        }
        self.find_opened(to)
    }

    fn find_opened(&mut self, to: &Flow) -> Option<ConnId> {
        let id = *self.peers.get(&(to.transport, to.listener, to.remote))?;
        self.usable(id, to).then_some(id)
    }

    fn open(&mut self, to: &Flow, now_ms: u64, counters: &mut NetCounters) -> Option<ConnId> {
        let source = self.sources.get(usize::from(to.listener.0)).copied().flatten();
        if self.table.is_full() {
            counters.tcp_refused_limit += 1;
            return None;
        }
        let Some(Ok(socket)) = source.map(|source| connect(source, to.remote)) else {
            counters.tcp_open_failed += 1;
            return None;
        };
        let id = self.add(socket, to, true, now_ms, counters)?;
        self.peers.insert((to.transport, to.listener, to.remote), id);
        Some(id)
    }

    fn mark_dirty(&mut self, id: ConnId) {
        if let Some(conn) = self.table.get_mut(id)
            && !conn.is_dirty
        {
            conn.is_dirty = true;
            self.dirty.push(id);
        }
    }

    /// Writes what this turn has queued, each connection once.
    pub fn flush(&mut self, now_ms: u64, counters: &mut NetCounters) {
        let mut dirty = mem::take(&mut self.dirty);
        for id in dirty.drain(..) {
            if let Some(conn) = self.table.get_mut(id) {
                conn.is_dirty = false;
                self.write(id, now_ms, counters);
            }
        }
        self.dirty = dirty;
    }

    fn write(&mut self, id: ConnId, now_ms: u64, counters: &mut NetCounters) {
        let token = self.token_of(id);
        let Some(conn) = self.table.get_mut(id) else {
            return;
        };
        if conn.state == State::Connecting {
            return;
        }
        let before = conn.waiting();
        let result = conn.flush(&mut counters.stream_sent_bytes, &mut counters.stream_sent);
        let after = conn.waiting();
        self.unsent = self.unsent.saturating_sub(before.saturating_sub(after));
        if after < before {
            conn.progress_ms = now_ms;
            conn.touch(now_ms);
        }
        let interest = match result {
            Err(_) => return self.close(id, Why::Error, counters),
            Ok(false) => Interest::ReadWrite,
            Ok(true) => {
                if let Some(mut out) = conn.out.take()
                    && out.is_usual()
                    && self.spare.len() < KEPT_QUEUES
                {
                    out.clear();
                    self.spare.push(out);
                }
                if conn.state == State::Flushing {
                    // It fails where the peer has gone already, which the next read tells.
                    let _ = conn.shut();
                    conn.enter(State::Shut, now_ms);
                }
                Interest::Read
            }
        };
        if conn.interest != interest && self.epoll.modify(conn, token, interest).is_ok() {
            conn.interest = interest;
        }
        let (deadline, _) = conn.deadline(&self.settings);
        conn.placed = self.wheel.place(id, deadline, conn.placed);
    }

    /// When [`Streams::advance`] wants to be called next, milliseconds.
    pub fn next_ms(&self) -> Option<u64> {
        self.wheel.next_ms()
    }

    /// Ends the connections whose time is up.
    pub fn advance(&mut self, now_ms: u64, counters: &mut NetCounters) {
        let mut due = mem::take(&mut self.due);
        self.wheel.advance(now_ms, &mut due);
        for (id, tick) in due.drain(..) {
            let Some(conn) = self.table.get_mut(id).filter(|conn| conn.placed == tick) else {
                continue;
            };
            let (deadline, overdue) = conn.deadline(&self.settings);
            if deadline > now_ms {
                conn.placed = self.wheel.place(id, deadline, super::wheel::NEVER);
                continue;
            }
            let why = match overdue {
                Overdue::Connect => Why::OpenFailed,
                Overdue::Write => Why::Slow,
                Overdue::Message => Why::Incomplete,
                Overdue::Idle => Why::Idle,
                Overdue::Close => {
                    // What ended it was counted when it began to end.
                    self.remove(id, counters);
                    continue;
                }
            };
            self.close(id, why, counters);
        }
        self.due = due;
    }

    /// Ends a connection once what is queued has been sent.
    fn finish(&mut self, id: ConnId, why: Why, now_ms: u64, counters: &mut NetCounters) {
        if let Some(conn) = self.table.get_mut(id) {
            conn.enter(State::Flushing, now_ms);
            if !conn.outbound {
                // What is not an answer to what came on it takes another way from now on.
                self.accepted.remove(conn.transport, conn.remote, id);
            }
            let (deadline, _) = conn.deadline(&self.settings);
            conn.placed = self.wheel.place(id, deadline, conn.placed);
            count(why, counters);
            self.mark_dirty(id);
        }
    }

    /// Ends a connection now. What was not wholly sent is lost, and comes back.
    fn close(&mut self, id: ConnId, why: Why, counters: &mut NetCounters) {
        if let Some(state) = self.remove(id, counters)
            && !matches!(state, State::Flushing | State::Shut)
        {
            count(why, counters);
        }
    }

    fn remove(&mut self, id: ConnId, counters: &mut NetCounters) -> Option<State> {
        let mut conn = self.table.remove(id)?;
        self.unsent = self.unsent.saturating_sub(conn.waiting());
        self.partial = self.partial.saturating_sub(conn.framer.held_bytes());
        let peer = (conn.transport, conn.listener, conn.remote);
        if !conn.outbound {
            self.accepted.remove(conn.transport, conn.remote, id);
        } else if self.peers.get(&peer) == Some(&id) {
            self.peers.remove(&peer);
        }
        for (to, origin, message) in conn.out.iter().flat_map(|out| out.unsent()) {
            counters.stream_undelivered += 1;
            self.lost.push(Task::Send { origin }, to, message);
        }
        if let Some(mut out) = conn.out.take()
            && out.is_usual()
            && self.spare.len() < KEPT_QUEUES
        {
            out.clear();
            self.spare.push(out);
        }
        // Dropping the socket closes it, and takes it out of epoll.
        Some(conn.state)
    }

    fn lose(&mut self, to: Flow, origin: WorkerId, message: &[u8], counters: &mut NetCounters) {
        counters.stream_undelivered += 1;
        self.lost.push(Task::Send { origin }, to, message);
    }

    /// Exchanges the messages that could not be delivered for `empty`, which is to be an empty
    /// block. Each is a [`Task::Send`] whose origin wants to know. Whether there are any.
    pub fn take_lost(&mut self, empty: &mut Block) -> bool {
        mem::swap(&mut self.lost, empty);
        !empty.is_empty()
    }
}

fn count(why: Why, counters: &mut NetCounters) {
    let counter = match why {
        Why::Peer => &mut counters.tcp_closed_by_peer,
        Why::Error => &mut counters.tcp_closed_error,
        Why::OpenFailed => &mut counters.tcp_open_failed,
        Why::Framing => &mut counters.tcp_closed_framing,
        Why::Core => &mut counters.tcp_closed_by_core,
        Why::Idle => &mut counters.tcp_closed_idle,
        Why::Incomplete => &mut counters.tcp_closed_incomplete,
        Why::Slow => &mut counters.tcp_closed_slow,
        Why::Memory => &mut counters.tcp_closed_memory,
    };
    *counter += 1;
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

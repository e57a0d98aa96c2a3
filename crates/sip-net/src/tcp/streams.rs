//! All connections of one worker.

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::net::IpAddr;
use std::sync::Arc;

use sip_core::activity::{Activity, Component};
use sip_core::admission::SourceLists;
use sip_core::config::Config;
use sip_core::id::{ConnId, WorkerId};
use sip_core::limits::Limits;
use sip_core::transport::websocket::AllowedOrigins;
use sip_core::transport::{Flow, PeerName, Transport};

use super::admission::{PerAddress, Turns};
use super::conn::{Conn, NewConnection, Sent, State};
use super::event::{Arrival, CloseReason, ForeignPage, TlsFailure, Verdict};
use super::holders::Holders;
use super::layer::{Context, Taken};
use super::listener::TcpListener;
use super::peers::Peers;
use super::queue::OutQueue;
use super::service::StreamService;
use super::table::{LOW_GENERATION, Table};
use super::wheel::Wheel;
use crate::accepted::Accepted;
use crate::counters::NetCounters;
use crate::epoll::{Epoll, Interest, Readiness};
use crate::mailbox::{Block, ConnectionPolicy};
use crate::settings::Settings;
use crate::tls::TlsError;

/// Numbering of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Naming {
    /// The worker of the connections.
    pub worker: WorkerId,
    /// The highest byte of the connections' event tokens; the rest numbers the connection.
    pub token: u64,
    /// First generation of the connections' numbers. Processes have different first generations, since
    /// numbers outlive a process.
    pub seed: u32,
}

/// The listeners, and the services behind them.
#[derive(Debug, Default)]
pub struct Serving {
    /// The listening sockets.
    pub listeners: Vec<TcpListener>,
    /// For each listener of the configuration, what its connections need besides TCP. A missing entry counts
    /// as none.
    pub services: Vec<StreamService>,
}

/// A message to be sent.
#[derive(Clone, Debug)]
pub struct Outgoing<'a> {
    /// The destination.
    pub to: Flow,
    /// The worker of the endpoint that made the message. If undelivered, the message returns to this worker.
    pub origin: WorkerId,
    /// Which connections may carry the message.
    pub way: ConnectionPolicy,
    /// The message.
    pub message: &'a [u8],
}

static ANY_ORIGIN: AllowedOrigins = AllowedOrigins::any();

/// Queues kept for reuse.
const KEPT_QUEUES: usize = 256;

/// Failures kept for the report of a turn; further ones are only counted.
const KEPT_FAILURES: usize = 64;

/// The connections of one worker, and its listeners.
///
/// Messages are collected in each connection's queue and written once, at the end of the turn
/// ([`Streams::flush`]). [`Streams::take_lost`] returns each undeliverable message, whole.
#[derive(Debug)]
pub struct Streams {
    pub(super) settings: Settings,
    epoll: Arc<Epoll>,
    token: u64,
    pub(super) listeners: Vec<TcpListener>,
    /// For each listener of the configuration, its address, if connections are opened from it.
    pub(super) sources: Vec<Option<IpAddr>>,
    /// For each listener of the configuration, its service.
    pub(super) services: Vec<StreamService>,
    pub(super) limits: Limits,
    /// Domains that are trusted if a certificate proves them.
    trusted: Vec<Box<str>>,
    pub(super) table: Table<Conn>,
    pub(super) peers: Peers,
    /// Accepted connections of all workers.
    pub(super) accepted: Arc<Accepted>,
    pub(super) per_address: PerAddress,
    /// Number of this worker's accepted connections.
    pub(super) accepted_count: usize,
    /// Accepted connections that wait for their peers to close, the longest wait first. Some may have ended.
    pub(super) shut: VecDeque<ConnId>,
    /// Banned sources, and those that are never banned.
    pub(super) standing: Arc<SourceLists>,
    turns: Turns,
    pub(super) wheel: Wheel,
    pub(super) due: Vec<(ConnId, u64)>,
    dirty: Vec<ConnId>,
    #[expect(
        clippy::vec_box,
        reason = "connections hold boxes, to be small while they are silent"
    )]
    spare: Vec<Box<OutQueue>>,
    buffer: Vec<u8>,
    /// Replies of WebSocket and keep-alives to the bytes just read.
    replies: Vec<u8>,
    /// Records on their way to the socket.
    scratch: Vec<u8>,
    pub(super) lost: Block,
    failures: Vec<TlsFailure>,
    foreign: Vec<ForeignPage>,
    /// Bytes in the queues of all connections.
    pub(super) unsent: usize,
    /// Memory of each connection.
    pub(super) holders: Holders,
    /// The observer of the time spent here.
    pub(super) activity: Activity,
    /// A descriptor given up for a moment when descriptors run out, to accept and refuse a connection.
    /// Otherwise epoll would report that connection as waiting for ever.
    pub(super) reserve: Option<std::fs::File>,
}

impl Streams {
    /// An empty set of connections. The caller registers the listeners with `epoll`; connections register
    /// themselves. Accepted connections are also listed in `accepted`, for all workers.
    pub fn new(
        naming: Naming,
        config: &Config,
        settings: &Settings,
        serving: Serving,
        epoll: Arc<Epoll>,
        accepted: Arc<Accepted>,
        now_ms: u64,
    ) -> Self {
        let Naming { worker, token, seed } = naming;
        let Serving {
            listeners,
            mut services,
        } = serving;
        let opens = |transport| matches!(transport, Transport::Tcp | Transport::Tls);
        let sources = config.listeners.iter();
        let sources = sources
            .map(|l| opens(l.transport).then_some(l.address.ip()))
            .collect::<Vec<_>>();
        services.resize_with(sources.len(), StreamService::default);
        Self {
            settings: settings.clone(),
            epoll,
            token,
            listeners,
            sources,
            services,
            limits: config.limits.clone(),
            trusted: config.trust_names.clone(),
            table: Table::new(worker, settings.connections, seed),
            peers: Peers::default(),
            accepted,
            per_address: PerAddress::default(),
            accepted_count: 0,
            shut: VecDeque::new(),
            standing: Arc::default(),
            turns: Turns::default(),
            wheel: Wheel::new(now_ms),
            due: Vec::new(),
            dirty: Vec::new(),
            spare: Vec::new(),
            buffer: vec![0; settings.read_bytes.max(1)],
            replies: Vec::new(),
            scratch: Vec::new(),
            lost: Block::default(),
            failures: Vec::new(),
            foreign: Vec::new(),
            unsent: 0,
            holders: Holders::default(),
            activity: Activity::default(),
            reserve: std::fs::File::open("/dev/null").ok(),
        }
    }

    /// Makes `activity` the observer of the time spent here.
    pub fn observe(&mut self, activity: Activity) {
        self.activity = activity;
    }

    /// Takes the bounds of messages and the trusted names from a new configuration, for connections to come.
    pub fn reconfigure(&mut self, config: &Config) {
        self.limits = config.limits.clone();
        self.trusted.clone_from(&config.trust_names);
    }

    /// The listeners, in the order of their indexes.
    pub fn listeners(&self) -> &[TcpListener] {
        &self.listeners
    }

    /// Whether messages wait to be sent.
    pub fn has_unsent(&self) -> bool {
        self.unsent > 0
    }

    /// Whether handshakes wait for the next turn.
    pub fn has_waiting(&self) -> bool {
        self.turns.waiting() > 0
    }

    /// Connections that wait for the turn of their handshake.
    pub fn handshakes_waiting(&self) -> usize {
        self.turns.waiting()
    }

    /// Number of connections, and the bytes they hold.
    pub fn load(&self) -> (usize, usize) {
        (self.table.len(), self.holders.total())
    }

    /// Puts a new connection into the table and registers it.
    pub(super) fn add(
        &mut self,
        beginning: NewConnection,
        now_ms: u64,
        counters: &mut NetCounters,
    ) -> Option<ConnId> {
        let Ok(id) = self.table.insert(Conn::new(beginning, now_ms)) else {
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
        // A TLS connection that we open begins with its ClientHello.
        self.recount(id);
        Some(id)
    }

    fn token_of(&self, id: ConnId) -> u64 {
        self.token | u64::from(id.generation & LOW_GENERATION) << 32 | u64::from(id.slot)
    }

    /// Begins a turn of the loop with the waiting handshakes, in their order. Each complete message goes to
    /// `deliver`.
    pub fn begin_turn(
        &mut self,
        now_ms: u64,
        counters: &mut NetCounters,
        mut deliver: impl FnMut(Flow, Arrival<'_>) -> Verdict,
    ) {
        self.turns.begin(self.settings.handshakes_per_turn);
        while let Some(id) = self.turns.next() {
            let token = self.token_of(id);
            let Some(conn) = self.table.get_mut(id).filter(|conn| conn.is_parked) else {
                continue;
            };
            conn.is_parked = false;
            if self.epoll.modify(conn, token, Interest::Read).is_ok() {
                conn.interest = Interest::Read;
            }
            self.readable(id, now_ms, counters, &mut deliver);
        }
    }

    /// Handles an event of a connection. Each complete message goes to `deliver`, with the flow for its
    /// responses.
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
        if conn.is_parked {
            // A parked handshake is registered for a hang-up only: the peer has gone.
            return self.close(id, CloseReason::Peer, counters);
        }
        if conn.state == State::Connecting {
            match conn.connected() {
                Ok(()) => {
                    let next = match conn.tls {
                        Some(_) => State::Handshaking,
                        None => State::Open,
                    };
                    conn.enter(next, now_ms);
                    conn.progress_ms = now_ms;
                    counters.tcp_opened += 1;
                    self.mark_dirty(id);
                }
                // Neither connected nor failed yet.
                Err(error) if error.kind() == io::ErrorKind::NotConnected && !event.error => return,
                Err(_) => return self.close(id, CloseReason::OpenFailed, counters),
            }
        } else if event.writable {
            self.mark_dirty(id);
        }
        if event.readable || event.error {
            self.readable(id, now_ms, counters, &mut deliver);
        }
    }

    /// Reads from a connection, unless it waits for the turn of its handshake.
    fn readable(
        &mut self,
        id: ConnId,
        now_ms: u64,
        counters: &mut NetCounters,
        deliver: &mut impl FnMut(Flow, Arrival<'_>) -> Verdict,
    ) {
        let token = self.token_of(id);
        let Some(conn) = self.table.get_mut(id) else {
            return;
        };
        let is_securing = conn.is_securing();
        if is_securing && !self.turns.take() {
            if self.epoll.modify(conn, token, Interest::Hangup).is_ok() {
                conn.interest = Interest::Hangup;
                conn.is_parked = true;
                let goes_first = conn.tls.as_mut().is_some_and(|tls| tls.goes_first());
                self.turns.wait(id, goes_first);
                counters.tls_parked += 1;
            }
            return;
        }
        let begun = is_securing.then(std::time::Instant::now);
        let mut buffer = mem::take(&mut self.buffer);
        self.read(id, &mut buffer, now_ms, counters, deliver);
        self.buffer = buffer;
        if let Some(begun) = begun {
            self.turns.spend(begun.elapsed().as_nanos() as u64);
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
        let before = self.activity.enter(Component::Receive);
        let read = conn.read(buffer);
        self.activity.enter(before);
        let fresh = match read {
            Ok(0) => return self.close(id, CloseReason::Peer, counters),
            Ok(count) => buffer.get_mut(..count).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(_) => return self.close(id, CloseReason::Error, counters),
        };
        counters.stream_received_bytes += fresh.len() as u64;
        if !matches!(conn.state, State::Open | State::Handshaking) {
            // The connection is ending; bytes that still arrive are dropped.
            return;
        }
        conn.heard(now_ms);
        let was_mid_message = conn.is_mid_message();
        let mut context = Context {
            limits: &self.limits,
            origins: self
                .services
                .get(usize::from(conn.listener.0))
                .map_or(&ANY_ORIGIN, |service| &service.origins),
            trusted: &self.trusted,
            activity: &self.activity,
            replies: &mut self.replies,
        };
        let taken = conn.take(id, fresh, &mut context, deliver);
        counters.stream_received += taken.messages;
        counters.stream_pings += taken.pings;
        conn.has_spoken |= taken.messages > 0;
        if conn.is_mid_message() && (taken.messages > 0 || !was_mid_message) && conn.state == State::Open {
            conn.message_begins(now_ms);
        }
        self.recount(id);
        self.settle(id, taken, now_ms, counters);
    }

    /// Applies the results of a read.
    fn settle(&mut self, id: ConnId, taken: Taken, now_ms: u64, counters: &mut NetCounters) {
        self.queue_replies(id, now_ms);
        let Some(conn) = self.table.get_mut(id) else {
            return;
        };
        let has_records = conn.tls.as_ref().is_some_and(|tls| tls.has_records());
        if has_records || taken.secured && conn.waiting() > 0 {
            // Records of the handshake, a session ticket, or a key update are to be written; or messages that
            // waited for the end of the handshake.
            self.mark_dirty(id);
        }
        let Some(conn) = self.table.get_mut(id) else {
            return;
        };
        if taken.secured {
            count_handshake(conn, counters);
        }
        counters.ws_opened += u64::from(taken.upgraded);
        if conn.state == State::Handshaking && conn.stands() {
            conn.enter(State::Open, now_ms);
            conn.progress_ms = now_ms;
            if !conn.is_outbound() {
                self.accepted.insert(conn.transport, conn.remote, id);
            }
        }
        let too_slow = conn.waiting() > self.settings.write_queue_bytes;
        let (deadline, _) = conn.deadline(&self.settings);
        conn.placed = self.wheel.place(id, deadline, conn.placed);
        if let Some(origin) = taken.foreign
            && self.foreign.len() < KEPT_FAILURES
        {
            let flow = conn.flow(id);
            self.foreign.push(ForeignPage { flow, origin });
        }
        if let Some(error) = taken.fault {
            let (flow, outbound) = (conn.flow(id), conn.is_outbound());
            let domain = conn.opened_to.as_ref().and_then(|peer| peer.name().cloned());
            self.note_failure(flow, outbound, domain, error);
        }
        match taken.end {
            Some(why) => self.finish(id, (why, taken.farewell), now_ms, counters),
            None if too_slow => self.close(id, CloseReason::Slow, counters),
            None => self.relieve(id, now_ms, counters),
        }
    }

    /// Queues the replies of WebSocket and keep-alives.
    fn queue_replies(&mut self, id: ConnId, now_ms: u64) {
        let replies = mem::take(&mut self.replies);
        if !replies.is_empty() {
            self.queue_unmarked(id, &replies, now_ms);
        }
        self.replies = replies;
        self.replies.clear();
    }

    /// Queues bytes that are no message.
    pub(super) fn queue_unmarked(&mut self, id: ConnId, bytes: &[u8], now_ms: u64) {
        let Some(conn) = self.table.get_mut(id) else {
            return;
        };
        if conn.waiting() == 0 {
            conn.progress_ms = now_ms;
        }
        conn.out
            .get_or_insert_with(|| self.spare.pop().unwrap_or_default())
            .push_unmarked(bytes);
        self.unsent += bytes.len();
        self.recount(id);
        self.mark_dirty(id);
    }

    /// Sends a message, which leaves at the next [`Streams::flush`]. Uses the named connection, if it belongs
    /// to this worker and is usable. Otherwise uses the connection to that address, which is opened if there
    /// is none; a pinned message is then undelivered.
    pub fn send(&mut self, outgoing: &Outgoing<'_>, now_ms: u64, counters: &mut NetCounters) {
        let Outgoing {
            to, origin, message, ..
        } = *outgoing;
        let id = match self.find(outgoing) {
            Some(id) => id,
            None => match self.open(outgoing, now_ms, counters) {
                Some(id) => id,
                None => return self.lose(to, origin, message, counters),
            },
        };
        if self.is_over(id, message.len()) {
            // The reader may have caught up since.
            self.write(id, now_ms, counters);
        }
        if self.is_over(id, message.len()) {
            self.lose(to, origin, message, counters);
            // A connection that is not open yet is no slow reader. Cutting it would only mean opening another
            // for the next message.
            if self
                .table
                .get_mut(id)
                .is_some_and(|conn| !matches!(conn.state, State::Connecting | State::Handshaking))
            {
                self.close(id, CloseReason::Slow, counters);
            }
            return;
        }
        let Some(conn) = self.table.get_mut(id) else {
            return self.lose(to, origin, message, counters);
        };
        let before = conn.waiting();
        if before == 0 {
            conn.progress_ms = now_ms;
        }
        let framed = conn.is_framed();
        let out = conn
            .out
            .get_or_insert_with(|| self.spare.pop().unwrap_or_default());
        if framed {
            out.push_framed(to, origin, message);
        } else {
            out.push(to, origin, message);
        }
        self.unsent += out.len() - before;
        conn.remember(to, origin, message);
        self.recount(id);
        self.mark_dirty(id);
        self.relieve(id, now_ms, counters);
    }

    /// Whether `more` bytes are too many for a connection's queue. An empty queue takes any one message.
    fn is_over(&mut self, id: ConnId, more: usize) -> bool {
        let limit = self.settings.write_queue_bytes;
        self.table
            .get_mut(id)
            .is_some_and(|conn| conn.waiting() > 0 && conn.waiting() + more > limit)
    }

    pub(super) fn mark_dirty(&mut self, id: ConnId) {
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
        let before = self.holders.total();
        self.write_what_fits(id, now_ms, counters);
        // Waiting records take room beside the messages in them.
        if self.holders.total() > before {
            self.relieve(id, now_ms, counters);
        }
    }

    pub(super) fn write_what_fits(&mut self, id: ConnId, now_ms: u64, counters: &mut NetCounters) {
        let token = self.token_of(id);
        let Some(conn) = self.table.get_mut(id) else {
            return;
        };
        if conn.state == State::Connecting {
            return;
        }
        let (before, was_shut) = (conn.waiting(), conn.state == State::Shut);
        let mut sent = Sent::default();
        let result = conn.flush(&self.activity, &mut self.scratch, &mut sent);
        let result = match (result, conn.state) {
            (Ok(true), State::Flushing | State::Parting) => {
                conn.end(&self.activity, &mut self.scratch, &mut sent, now_ms)
            }
            (result, _) => result,
        };
        counters.stream_sent_bytes += sent.bytes;
        counters.stream_sent += sent.messages;
        self.unsent = exchanged(self.unsent, before, conn.waiting());
        if sent.bytes > 0 {
            conn.progress_ms = now_ms;
            conn.touch(now_ms);
        }
        let interest = match result {
            Err(_) => return self.close(id, CloseReason::Error, counters),
            Ok(false) => conn.interest_while_unsent(&self.settings),
            Ok(true) => {
                if conn.waiting() == 0
                    && let Some(out) = conn.out.take()
                {
                    recycle(&mut self.spare, out);
                }
                Interest::Read
            }
        };
        if conn.interest != interest && !conn.is_parked && self.epoll.modify(conn, token, interest).is_ok() {
            counters.stream_pauses += u64::from(interest == Interest::Write);
            if conn.interest == Interest::Write {
                // The rest of a message could not arrive while reading was paused.
                conn.message_begins(now_ms);
            }
            conn.interest = interest;
        }
        let (deadline, _) = conn.deadline(&self.settings);
        conn.placed = self.wheel.place(id, deadline, conn.placed);
        let is_shut = conn.state == State::Shut && !conn.is_outbound();
        self.recount(id);
        if is_shut && !was_shut {
            self.note_shut(id);
        }
    }

    pub(super) fn recycle(&mut self, out: Box<OutQueue>) {
        recycle(&mut self.spare, out);
    }

    /// Keeps a failure of TLS for the report, unless [`KEPT_FAILURES`] are kept already.
    pub(super) fn note_failure(
        &mut self,
        flow: Flow,
        outbound: bool,
        domain: Option<PeerName>,
        error: TlsError,
    ) {
        if self.failures.len() < KEPT_FAILURES {
            self.failures.push(TlsFailure {
                flow,
                outbound,
                domain,
                error,
            });
        }
    }

    /// Takes the WebSockets refused for their origin since the last time, at most 64.
    pub fn take_foreign(&mut self) -> Vec<ForeignPage> {
        mem::take(&mut self.foreign)
    }

    /// Takes the failures of TLS since the last time, at most 64.
    pub fn take_failures(&mut self) -> Vec<TlsFailure> {
        mem::take(&mut self.failures)
    }
}

/// The new total, when one connection holds `after` in the place of `before`.
pub(super) fn exchanged(held: usize, before: usize, after: usize) -> usize {
    debug_assert!(
        held >= before,
        "what is held was counted when it came: {held} < {before}"
    );
    (held + after).saturating_sub(before)
}

/// Keeps the buffer of a queue for the next connection that has something to send.
#[expect(
    clippy::vec_box,
    reason = "connections hold boxes, to be small while they are silent"
)]
fn recycle(spare: &mut Vec<Box<OutQueue>>, mut out: Box<OutQueue>) {
    if out.is_worth_keeping() && spare.len() < KEPT_QUEUES {
        out.clear();
        spare.push(out);
    }
}

fn count_handshake(conn: &Conn, counters: &mut NetCounters) {
    let resumed = conn.tls.as_ref().and_then(|tls| tls.session.resumed());
    let counter = match (conn.is_outbound(), resumed == Some(true)) {
        (false, false) => &mut counters.tls_accepted_full,
        (false, true) => &mut counters.tls_accepted_resumed,
        (true, false) => &mut counters.tls_opened_full,
        (true, true) => &mut counters.tls_opened_resumed,
    };
    *counter += 1;
}

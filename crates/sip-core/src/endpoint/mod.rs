//! The only entry point of the core.
//!
//! Four kinds of methods, and the order in which the shell calls them in one turn of its loop:
//!
//! 0. [`Endpoint::admit`], for each message that arrives. A message that another worker has handed over was
//!    admitted there. Then [`Endpoint::worker_of`], if that saves work: a datagram that belongs to another
//!    worker is not handled.
//! 1. `handle_*`: something happened (bytes, a result, an undelivered message, time passed).
//! 2. `poll_*`: take the outcome: [`Endpoint::poll_transmit`], then [`Endpoint::poll_query`],
//!    [`Endpoint::poll_event`], and [`Endpoint::poll_timeout`] last, to know how long to sleep.
//! 3. changes: [`Endpoint::reconfigure`], [`Endpoint::set_source_lists`], [`Endpoint::drain`],
//!    [`Endpoint::observe`].
//! 4. getters: [`Endpoint::counters`], [`Endpoint::gauges`].

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::SocketAddr;

use sip_message::{HeaderIndex, Message, Method, StartLine};

use crate::activity::{Activity, Component};
use crate::admission::SourceLists;
use crate::shared::SharedState;

pub use crate::engine::Keys;
pub use crate::engine::asserted_identity::{Strip, claims};

use crate::affinity;
use crate::config::Config;
use crate::engine::effects::ServerEvent;
use crate::engine::request::Request;
use crate::engine::waiting::Purpose;
use crate::engine::{Engine, Wake};
use crate::event::{Calls, Counters, Event, Gauges};
use crate::id::{ConnId, QueryId, WorkerId};
use crate::proxy::flawed::Flaw;
use crate::proxy::response::Outcome;
use crate::query::{Query, QueryKind, QueryResult};
use crate::request_path;
use crate::time::{Instant, Now};
use crate::transport::framing::FramingError;
use crate::transport::{Flow, TransmitBatch, Transport, stun};

/// The outcome of handling a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Handled {
    /// The message was handled here.
    Here,
    /// The state of the message lives on another worker: give the same bytes and flow to that worker's
    /// [`Endpoint::handle_message`]. Nothing was changed here.
    HandOver(WorkerId),
    /// On a stream: the message may not have ended where framing found its end. Send the queued messages and
    /// close the connection.
    Close,
}

/// One worker's protocol engine.
#[derive(Debug)]
pub struct Endpoint {
    engine: Engine,
    /// The index of the message at hand, apart from the engine so that both can be borrowed.
    index: HeaderIndex,
    /// The message at hand, if it came with folded lines.
    unfolded: Vec<u8>,
    /// Transactions that learned in this turn that their connection has closed.
    told: usize,
}

/// The most transactions that learn in one turn that their connection has closed.
const REPORTED_AT_ONCE: usize = 64;

impl Endpoint {
    /// An endpoint of worker `worker`. `shared` is the state that the workers of one process share.
    pub fn new(config: &Config, keys: &Keys, worker: WorkerId, shared: Arc<dyn SharedState>) -> Self {
        let mut engine = Engine::new(config, keys, worker, shared);
        engine.start_probes();
        engine.start_locating();
        engine.start_pings();
        Self {
            engine,
            index: HeaderIndex::new(),
            unfolded: Vec::new(),
            told: 0,
        }
    }

    /// Whether a message that arrives on `flow` is admitted; if not, the message is dropped unread. The
    /// worker to which a message comes calls this once for it, before [`Endpoint::worker_of`] and
    /// [`Endpoint::handle_message`]. Else both workers would count a message that is handed over.
    #[must_use]
    #[inline]
    pub fn admit(&mut self, now: Now, flow: &Flow) -> bool {
        !self.engine.admission.is_on() || self.engine.admit(now, flow)
    }

    /// The other worker that a datagram belongs to, by its Call-ID alone. `None`: the datagram belongs to
    /// this worker, or must be read by [`Endpoint::handle_message`] to know. Giving it to that worker at once
    /// saves that reading, which would end in [`Handled::HandOver`].
    ///
    /// May also name a worker for a datagram that [`Endpoint::handle_message`] would refuse or drop: the
    /// other worker does the same. Not for messages on streams: the worker of the connection must be able to
    /// close it.
    #[must_use]
    pub fn worker_of(&self, bytes: &[u8]) -> Option<WorkerId> {
        if !self.engine.holds_state {
            return None;
        }
        let call_id = affinity::call_id_of(bytes)?;
        let other = self.engine.other_worker(call_id)?;
        // REGISTER holds no state that must meet other messages. Methods are case-sensitive
        // (RFC 3261 §7.1).
        (!bytes.trim_ascii_start().starts_with(b"REGISTER ")).then_some(other)
    }

    /// Whether this endpoint holds the INVITE transaction that a CANCEL is for. If not, the INVITE may not have been
    /// handled yet: the shell may let the CANCEL wait. Without state it is always `false`.
    #[must_use]
    pub fn knows_invite_of(&mut self, flow: Flow, bytes: &[u8]) -> bool {
        let engine = &self.engine;
        let before = engine.activity.enter(Component::Parse);
        let is_known =
            sip_message::parse(bytes, &mut self.index, engine.config.limits.headers).is_ok_and(|message| {
                let cancel = Request::read(message, flow).ok();
                let hash = cancel.map(|cancel| engine.server_hash(&cancel, Method::Invite));
                hash.is_some_and(|hash| engine.table.find_server(hash).is_some())
            });
        engine.activity.enter(before);
        is_known
    }

    /// Handles a complete message that arrived on `flow`: a datagram, or one message framed from a stream.
    pub fn handle_message(&mut self, now: Now, flow: Flow, bytes: &[u8]) -> Handled {
        self.engine.now = now;
        let before = self.engine.activity.enter(Component::Parse);
        let handled = self.take_message(flow, bytes);
        self.engine.activity.enter(before);
        handled
    }

    fn take_message(&mut self, flow: Flow, bytes: &[u8]) -> Handled {
        let engine = &mut self.engine;
        let Ok(message) = sip_message::parse(bytes, &mut self.index, engine.config.limits.headers) else {
            if flow.transport == Transport::Udp && stun::is_stun(bytes) {
                engine.respond_to_stun(flow, bytes);
                return Handled::Here;
            }
            // RFC 5626 §3.5.1: empty lines keep a NAT's door open and are no message.
            if !bytes.iter().all(|c| matches!(c, b'\r' | b'\n' | 0)) {
                engine.counters.dropped_not_sip += 1;
            }
            return Handled::Here;
        };
        // No line of a relayed value may look like a header of its own.
        if message.is_folded() && message.defect().is_none() {
            let mut unfolded = core::mem::take(&mut self.unfolded);
            unfolded.clear();
            message.unfold(&mut unfolded);
            let handled = self.take_message(flow, &unfolded);
            self.unfolded = unfolded;
            return handled;
        }
        match message.start() {
            StartLine::Request { .. } => match engine.handle_request(&message, flow) {
                request_path::Handled::Here => Handled::Here,
                request_path::Handled::HandOver(worker) => Handled::HandOver(worker),
                request_path::Handled::Broken if flow.transport.is_stream() => Handled::Close,
                request_path::Handled::Broken => Handled::Here,
            },
            StartLine::Response { .. } => {
                let outcome = match engine.handle_response(&message, flow) {
                    Ok(outcome) => outcome,
                    Err(flaw) => take_flawed(engine, &message, flow, flaw),
                };
                self.follow(outcome)
            }
        }
    }

    /// Refuses the request at fault on a stream that cannot be followed further, if a response is possible
    /// (RFC 3261 §18.3, §21.4.11). A response at fault ends its branch. The shell then sends the queued
    /// messages and closes the connection. `Some`: the transaction lives on another worker. Give these bytes,
    /// with the same flow, to that worker's [`Endpoint::handle_message`].
    pub fn handle_framing_error(
        &mut self,
        now: Now,
        flow: Flow,
        error: FramingError<'_>,
    ) -> Option<(WorkerId, Box<[u8]>)> {
        let engine = &mut self.engine;
        engine.now = now;
        let Ok(message) = sip_message::parse(error.head, &mut self.index, engine.config.limits.headers)
        else {
            engine.counters.dropped_not_sip += 1;
            return None;
        };
        if message.method().is_some() {
            let _ = engine.refuse_unreadable(&message, flow, error.fault.into());
        } else {
            let outcome = engine.handle_flawed(&message, flow, Flaw::Framing(error.fault));
            // Without its last line the head has no end. So the other worker, too, takes the message for a
            // response that cannot be relayed.
            if let Handled::HandOver(worker) = self.follow(outcome) {
                let head = error.head.strip_suffix(b"\r\n").unwrap_or(error.head);
                return Some((worker, head.into()));
            }
        }
        None
    }

    /// Handles a message, sent to `to`, that could not be delivered: ICMP error, connection refused or lost.
    pub fn handle_undelivered(&mut self, now: Now, to: Flow, bytes: &[u8]) {
        let engine = &mut self.engine;
        engine.now = now;
        let before = engine.activity.enter(Component::Transaction);
        if let Ok(message) = sip_message::parse(bytes, &mut self.index, usize::MAX) {
            engine.handle_undelivered(&message, to);
        }
        self.engine.activity.enter(before);
    }

    /// Notes that a connection on which messages had come is closed. The shell calls every worker: the worker
    /// that owns the connection knows its registrations, and any worker may have its transactions. A message
    /// that could not be delivered on the connection comes by [`Endpoint::handle_undelivered`] as ever,
    /// before or after this.
    ///
    /// Bindings made over the connection keep their time, and are no targets if the flow was the only way to
    /// them. Requests without any response fail at once. So do requests that ring at a WebSocket client,
    /// which responds there or nowhere. Another response may yet come by a new connection (RFC 3261 §18.2.2),
    /// and is awaited.
    pub fn handle_flow_closed(&mut self, now: Now, conn: ConnId) {
        self.engine.now = now;
        let before = self.engine.activity.enter(Component::Transaction);
        self.engine.close_flow(conn);
        self.report_closed();
        self.engine.activity.enter(before);
    }

    /// Whether an address-of-record has a binding made over this connection of this worker.
    pub fn is_registered_over(&mut self, now: Now, conn: ConnId) -> bool {
        self.engine.now = now;
        self.engine.has_registration(conn)
    }

    /// Notes that a request of another worker to this next hop failed ([`crate::event::Event::NextHopFailed`]).
    /// Its next response here is [`crate::event::Event::NextHopReturned`].
    pub fn handle_failed_hop(&mut self, destination: SocketAddr) {
        self.engine.note_failed_hop(destination);
    }

    /// Informs transactions that their connection has closed: some now, and the others in the next
    /// turns, so that their responses do not become one batch.
    fn report_closed(&mut self) {
        while self.told < REPORTED_AT_ONCE {
            let Some((client, conn)) = self.engine.next_closed() else {
                return;
            };
            self.told += 1;
            self.engine.client_flow_closed(client, conn);
        }
    }

    /// Handles the result of a query to a back-end.
    pub fn handle_result(&mut self, now: Now, id: QueryId, result: QueryResult) {
        self.engine.now = now;
        let before = self.engine.activity.enter(Component::Store);
        self.engine.resume(id, Some(result));
        self.engine.activity.enter(before);
    }

    /// Fires every timer that is due.
    pub fn handle_timeout(&mut self, now: Now) {
        self.engine.now = now;
        let before = self.engine.activity.enter(Component::Timers);
        if self.engine.waiting.has_ready() {
            self.engine.resume_ready();
            self.engine.activity.enter(Component::Timers);
        }
        self.told = 0;
        if self.engine.has_closed() {
            self.engine.activity.enter(Component::Transaction);
            self.report_closed();
            self.engine.activity.enter(Component::Timers);
        }
        self.engine.wheel.advance(now.instant);
        while let Some(wake) = self.engine.wheel.pop_due() {
            match wake {
                Wake::Server(key, timer) => self.engine.server_event(key, ServerEvent::Timer(timer), &[]),
                Wake::Client(key, timer) => {
                    self.engine.activity.enter(Component::Transaction);
                    self.engine.client_timer(key, timer);
                    self.engine.activity.enter(Component::Timers);
                }
                Wake::Query(id) => {
                    self.engine.activity.enter(Component::Store);
                    self.engine.resume(id, None);
                    self.engine.activity.enter(Component::Timers);
                }
                Wake::Probe(probe) => self.engine.probe(probe),
                Wake::Locate(locate) => self.engine.locate_peer(locate),
                Wake::Ping(epoch) => self.engine.ping_step(epoch),
            }
        }
        self.engine.activity.enter(before);
    }

    fn follow(&mut self, outcome: Outcome) -> Handled {
        match outcome {
            Outcome::Done => Handled::Here,
            Outcome::HandOver(worker) => Handled::HandOver(worker),
        }
    }

    /// Moves the messages to be sent into `batch`, and drops its old content. Returns whether there are any
    /// messages.
    pub fn poll_transmit(&mut self, batch: &mut TransmitBatch) -> bool {
        batch.clear();
        if self.engine.out.is_empty() {
            return false;
        }
        core::mem::swap(batch, &mut self.engine.out);
        true
    }

    /// The next query to a back-end.
    #[must_use]
    pub fn poll_query(&mut self) -> Option<Query> {
        // These are names that requests will need soon, or whose records serve although their time is over.
        while let Some((name, kind)) = self.engine.resolver.poll_refresh() {
            let purpose = Purpose::Resolve {
                name: name.clone(),
                kind,
                waiters: Vec::new(),
            };
            self.engine.ask(QueryKind::Resolve { name, kind }, purpose);
        }
        self.engine.queries.pop_front()
    }

    /// The next connection on which its peer wants requests to this address (RFC 5923). The shell uses it for
    /// messages by TLS to that address, if the peer has proved the domain that they are for.
    pub fn poll_alias(&mut self) -> Option<(ConnId, SocketAddr)> {
        self.engine.aliases.pop()
    }

    /// The next event.
    #[must_use]
    pub fn poll_event(&mut self) -> Option<Event> {
        self.engine.events.pop_front()
    }

    /// The time at which [`Endpoint::handle_timeout`] is to be called next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.engine.waiting.has_ready() || self.engine.has_closed() {
            return Some(self.engine.now.instant);
        }
        self.engine.wheel.next_deadline()
    }

    /// Takes a new configuration; requests under way go on by the old route decisions.
    pub fn reconfigure(&mut self, config: &Config) {
        self.engine.reconfigure(config);
        self.engine.start_probes();
        self.engine.start_locating();
        self.engine.start_pings();
    }

    /// Takes the sources that the process has banned, and those that belong to the trust domain.
    pub fn set_source_lists(&mut self, standing: Arc<SourceLists>) {
        self.engine.admission.set_source_lists(standing);
    }

    /// Sets the `activity` that reports what this endpoint is busy with. Nothing else depends on it.
    pub fn observe(&mut self, activity: Activity) {
        self.engine.activity = activity;
    }

    /// Makes new requests outside dialogs get 503 from now on; all others go on.
    pub fn drain(&mut self) {
        self.engine.draining = true;
    }

    /// Whether no transaction is live and no request waits (finished transactions, kept for
    /// retransmissions, do not count).
    pub fn is_idle(&self) -> bool {
        self.engine.live == 0 && self.engine.waiting.requests == 0
    }

    /// The counts since the start.
    pub fn counters(&self) -> &Counters {
        &self.engine.counters
    }

    /// Final responses to INVITEs by code, and the waiting times of their callers.
    pub fn calls(&self) -> &Calls {
        &self.engine.calls
    }

    /// The values of the moment.
    pub fn gauges(&self) -> Gauges {
        let engine = &self.engine;
        Gauges {
            server_transactions: engine.table.servers() as u64,
            live_transactions: engine.live as u64,
            live_invites: engine.live_invites as u64,
            client_transactions: engine.table.clients() as u64,
            transaction_bytes: engine.table.bytes() as u64,
            parked_requests: engine.waiting.requests as u64,
            parked_bytes: engine.waiting.bytes as u64,
            timers: engine.wheel.len() as u64,
            dns_entries: engine.resolver.len() as u64,
            flows: engine.flows.len() as u64,
            flows_registered: engine.flows.registered() as u64,
            sources: engine.admission.sources(engine.now.instant) as u64,
        }
    }
}

/// Handles a response with a flaw. The response is mended if possible; else it ends the branch that it
/// belongs to.
#[cold]
fn take_flawed(engine: &mut Engine, message: &Message<'_>, flow: Flow, flaw: Flaw) -> Outcome {
    let mut text = Vec::new();
    let strays = engine.counters.dropped_stray_response;
    if message.mend(&mut text) {
        let handled = engine.with_message(&text, |engine, mended| engine.handle_response(mended, flow));
        if let Some(Ok(outcome)) = handled {
            // A response that belongs to no transaction did not go on.
            let is_stray = engine.counters.dropped_stray_response != strays;
            if !is_stray && !matches!(outcome, Outcome::HandOver(_)) {
                engine.note_flaw(message, flow, flaw, true);
            }
            return outcome;
        }
    }
    engine.handle_flawed(message, flow, flaw)
}

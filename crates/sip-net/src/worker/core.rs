//! The interfaces between the loop and the protocol engine, and between the loop and the program.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::tcp::{ForeignPage, TlsFailure};
use sip_core::activity::Activity;
use sip_core::admission::SourceLists;
use sip_core::config::Config;
use sip_core::endpoint::{Endpoint, Handled};
use sip_core::event::{Calls, Counters, Event, Gauges};
use sip_core::id::{ConnId, QueryId, WorkerId};
use sip_core::query::{Query, QueryResult};
use sip_core::time::{Instant, Now};
use sip_core::transport::framing::FramingError;
use sip_core::transport::{Flow, TransmitBatch};

/// The protocol engine of one worker: [`Endpoint`], or a stand-in for tests of the loop. See
/// [`sip_core::endpoint`] for what the methods mean and for their order.
pub trait Core {
    /// See [`Endpoint::admit`].
    fn admit(&mut self, now: Now, flow: &Flow) -> bool;
    /// See [`Endpoint::worker_of`].
    fn worker_of(&self, bytes: &[u8]) -> Option<WorkerId>;
    /// See [`Endpoint::knows_invite_of`].
    fn knows_invite_of(&mut self, flow: Flow, bytes: &[u8]) -> bool;
    /// See [`Endpoint::handle_message`].
    fn handle_message(&mut self, now: Now, flow: Flow, bytes: &[u8]) -> Handled;
    /// See [`Endpoint::handle_framing_error`].
    fn handle_framing_error(
        &mut self,
        now: Now,
        flow: Flow,
        error: FramingError<'_>,
    ) -> Option<(WorkerId, Box<[u8]>)>;
    /// See [`Endpoint::handle_undelivered`].
    fn handle_undelivered(&mut self, now: Now, to: Flow, bytes: &[u8]);
    /// See [`Endpoint::handle_flow_closed`].
    fn handle_flow_closed(&mut self, now: Now, conn: ConnId);
    /// See [`Endpoint::is_registered_over`].
    fn is_registered_over(&mut self, now: Now, conn: ConnId) -> bool;
    /// See [`Endpoint::handle_failed_hop`].
    fn handle_failed_hop(&mut self, destination: SocketAddr);
    /// See [`Endpoint::handle_result`].
    fn handle_result(&mut self, now: Now, id: QueryId, result: QueryResult);
    /// See [`Endpoint::handle_timeout`].
    fn handle_timeout(&mut self, now: Now);
    /// See [`Endpoint::poll_transmit`].
    fn poll_transmit(&mut self, batch: &mut TransmitBatch) -> bool;
    /// See [`Endpoint::poll_query`].
    fn poll_query(&mut self) -> Option<Query>;
    /// See [`Endpoint::poll_event`].
    fn poll_event(&mut self) -> Option<Event>;
    /// See [`Endpoint::poll_alias`].
    fn poll_alias(&mut self) -> Option<(ConnId, SocketAddr)>;
    /// See [`Endpoint::poll_timeout`].
    fn poll_timeout(&self) -> Option<Instant>;
    /// See [`Endpoint::reconfigure`].
    fn reconfigure(&mut self, config: &Config);
    /// See [`Endpoint::set_source_lists`].
    fn set_source_lists(&mut self, standing: Arc<SourceLists>);
    /// See [`Endpoint::observe`].
    fn observe(&mut self, activity: Activity);
    /// See [`Endpoint::drain`].
    fn drain(&mut self);
    /// See [`Endpoint::is_idle`].
    fn is_idle(&self) -> bool;
    /// See [`Endpoint::counters`].
    fn counters(&self) -> Counters;
    /// See [`Endpoint::calls`].
    fn calls(&self) -> Calls;
    /// See [`Endpoint::gauges`].
    fn gauges(&self) -> Gauges;
}

impl Core for Endpoint {
    fn admit(&mut self, now: Now, flow: &Flow) -> bool {
        Self::admit(self, now, flow)
    }

    fn worker_of(&self, bytes: &[u8]) -> Option<WorkerId> {
        Self::worker_of(self, bytes)
    }

    fn knows_invite_of(&mut self, flow: Flow, bytes: &[u8]) -> bool {
        Self::knows_invite_of(self, flow, bytes)
    }

    fn handle_message(&mut self, now: Now, flow: Flow, bytes: &[u8]) -> Handled {
        Self::handle_message(self, now, flow, bytes)
    }

    fn handle_framing_error(
        &mut self,
        now: Now,
        flow: Flow,
        error: FramingError<'_>,
    ) -> Option<(WorkerId, Box<[u8]>)> {
        Self::handle_framing_error(self, now, flow, error)
    }

    fn handle_undelivered(&mut self, now: Now, to: Flow, bytes: &[u8]) {
        Self::handle_undelivered(self, now, to, bytes);
    }

    fn handle_flow_closed(&mut self, now: Now, conn: ConnId) {
        Self::handle_flow_closed(self, now, conn);
    }

    fn is_registered_over(&mut self, now: Now, conn: ConnId) -> bool {
        Self::is_registered_over(self, now, conn)
    }

    fn handle_failed_hop(&mut self, destination: SocketAddr) {
        Self::handle_failed_hop(self, destination);
    }

    fn handle_result(&mut self, now: Now, id: QueryId, result: QueryResult) {
        Self::handle_result(self, now, id, result);
    }

    fn handle_timeout(&mut self, now: Now) {
        Self::handle_timeout(self, now);
    }

    fn poll_transmit(&mut self, batch: &mut TransmitBatch) -> bool {
        Self::poll_transmit(self, batch)
    }

    fn poll_query(&mut self) -> Option<Query> {
        Self::poll_query(self)
    }

    fn poll_event(&mut self) -> Option<Event> {
        Self::poll_event(self)
    }

    fn poll_alias(&mut self) -> Option<(ConnId, SocketAddr)> {
        Self::poll_alias(self)
    }

    fn poll_timeout(&self) -> Option<Instant> {
        Self::poll_timeout(self)
    }

    fn reconfigure(&mut self, config: &Config) {
        Self::reconfigure(self, config);
    }

    fn set_source_lists(&mut self, standing: Arc<SourceLists>) {
        Self::set_source_lists(self, standing);
    }

    fn observe(&mut self, activity: Activity) {
        Self::observe(self, activity);
    }

    fn drain(&mut self) {
        Self::drain(self);
    }

    fn is_idle(&self) -> bool {
        Self::is_idle(self)
    }

    fn counters(&self) -> Counters {
        *Self::counters(self)
    }

    fn calls(&self) -> Calls {
        *Self::calls(self)
    }

    fn gauges(&self) -> Gauges {
        Self::gauges(self)
    }
}

/// Takes the workers' queries to the back-ends. The result of a query returns by the worker's mailbox, as
/// [`crate::mailbox::Item::Result`].
pub trait QuerySink: Send {
    /// Takes all of `queries`, a turn's worth, and leaves it empty. Must not block. A query that cannot be
    /// accepted gets the result `Unavailable`, or none (the core gives it up at its deadline).
    fn submit(&mut self, worker: WorkerId, queries: &mut Vec<Query>);
}

/// Takes the workers' events to logs, metrics and call records.
pub trait EventSink: Send {
    /// Takes all of `events`, a turn's worth, and leaves it empty. Must not block. Events that cannot be
    /// recorded are dropped and counted.
    fn record(&mut self, worker: WorkerId, events: &mut Vec<Event>);
    /// Reports a failed TLS handshake, or a connection that TLS ended. Must not block.
    fn tls_failed(&mut self, worker: WorkerId, failure: &TlsFailure);
    /// Reports a WebSocket that was refused because of the origin of its page. Must not block.
    fn origin_refused(&mut self, worker: WorkerId, page: &ForeignPage);
}

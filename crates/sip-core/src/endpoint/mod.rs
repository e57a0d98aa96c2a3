//! The only door into the core.
//!
//! Four kinds of methods, and the order in which the shell calls them in one turn of its loop:
//!
//! 1. `handle_*`: something happened (bytes, an answer, an undelivered message, time passed).
//! 2. `poll_*`: take what came of it: [`Endpoint::poll_transmit`], then [`Endpoint::poll_query`],
//!    [`Endpoint::poll_event`], and [`Endpoint::poll_timeout`] last, to know how long to sleep.
//! 3. changes: [`Endpoint::reconfigure`], [`Endpoint::drain`].
//! 4. getters: [`Endpoint::counters`], [`Endpoint::gauges`].

use alloc::sync::Arc;

use crate::shared::SharedState;

use crate::config::Config;
use crate::event::{Counters, Event, Gauges};
use crate::id::{QueryId, WorkerId};
use crate::query::{Answer, Query};
use crate::time::{Instant, Now};
use crate::transport::{Flow, TransmitBatch};

/// Secrets of the domain (the same on every node that shares keys, kept in `data_dir`) and this
/// endpoint's seed.
#[derive(Clone)]
pub struct Keys {
    /// Everything else is derived from it: branches, Record-Route and nonce MACs.
    pub domain_secret: [u8; 32],
    /// Differs between endpoints and starts: To tags, unique nonce bits, hash seeds.
    pub seed: [u8; 32],
}

impl core::fmt::Debug for Keys {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Keys(..)")
    }
}

/// What became of a message given to the endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Handled {
    /// It was dealt with here.
    Here,
    /// Its state lives on another worker: give the same bytes and flow to that worker's
    /// [`Endpoint::handle_message`]. Nothing was changed here.
    HandOver(WorkerId),
    /// On a stream: the message cannot be trusted to be framed rightly; send what is queued and
    /// close the connection.
    Close,
}

/// One worker's protocol engine.
#[derive(Debug)]
pub struct Endpoint {
    config: Arc<Config>,
    counters: Counters,
}

impl Endpoint {
    /// An endpoint of worker `worker`. `shared` is what the workers of one process share.
    pub fn new(config: Arc<Config>, keys: Keys, worker: WorkerId, shared: Arc<dyn SharedState>) -> Self {
        let _ = (keys, worker, shared);
        Self { config, counters: Counters::default() }
    }

    /// A complete message (a datagram, or one message framed from a stream) arrived on `flow`.
    pub fn handle_message(&mut self, now: Now, flow: Flow, bytes: &[u8]) -> Handled {
        let _ = (now, flow, bytes);
        Handled::Here
    }

    /// `bytes`, sent to `to`, could not be delivered: ICMP error, connection refused or lost.
    pub fn handle_undelivered(&mut self, now: Now, to: Flow, bytes: &[u8]) {
        let _ = (now, to, bytes);
    }

    /// A back-end answered.
    pub fn handle_answer(&mut self, now: Now, id: QueryId, answer: Answer) {
        let _ = (now, id, answer);
    }

    /// Fires every timer that is due.
    pub fn handle_timeout(&mut self, now: Now) {
        let _ = now;
    }

    /// Moves what is to be sent to the end of `batch`; whether there was anything.
    pub fn poll_transmit(&mut self, batch: &mut TransmitBatch) -> bool {
        let _ = batch;
        false
    }

    /// The next question for a back-end.
    #[must_use]
    pub fn poll_query(&mut self) -> Option<Query> {
        None
    }

    /// The next event.
    #[must_use]
    pub fn poll_event(&mut self) -> Option<Event> {
        None
    }

    /// When [`Endpoint::handle_timeout`] wants to be called next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// Takes a new configuration; what is under way goes on by the old route decisions.
    pub fn reconfigure(&mut self, config: Arc<Config>) {
        self.config = config;
    }

    /// From now on new requests outside dialogs are answered 503; the rest goes on.
    pub fn drain(&mut self) {}

    /// Whether no transaction is live (finished ones, kept for retransmissions, do not count).
    pub fn is_quiet(&self) -> bool {
        true
    }

    /// Counts so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Values of the moment.
    pub fn gauges(&self) -> Gauges {
        Gauges::default()
    }
}

//! What an endpoint holds, and the steps that every part of it takes: sending, transactions and
//! their timers, questions to back-ends, answers made here.

pub(crate) mod directory;
pub(crate) mod effects;
pub(crate) mod reply;
pub(crate) mod request;
pub(crate) mod secrets;
pub(crate) mod waiting;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;

use sip_message::write::Edits;
use sip_message::{HeaderIndex, Message};
use smallvec::SmallVec;

use crate::auth::verify::Authenticator;
use crate::config::{Config, StateMode};
use crate::event::{Counters, Event};
use crate::id::{QueryId, WorkerId};
use crate::query::Query;
use crate::resolve::{Cache, Candidate};
use crate::shared::SharedState;
use crate::time::{Instant, Now};
use crate::timer::wheel::{TimerId, Wheel};
use crate::transaction::table::{Key, Table};
use crate::transaction::{MachineContext, Timer};
use crate::transport::{Flow, TransmitBatch};

use directory::Directory;
use secrets::Secrets;
use waiting::Waiting;

/// Secrets of the domain (the same on every node that shares keys, kept in `data_dir`) and this
/// endpoint's seed.
#[derive(Clone)]
pub struct Keys {
    /// Everything else is derived from it: branches, Record-Route and nonce MACs.
    pub domain_secret: [u8; 32],
    /// Differs between endpoints and starts: unique nonce bits, hash seeds.
    pub seed: [u8; 32],
}

impl core::fmt::Debug for Keys {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Keys(..)")
    }
}

/// Who is woken when a timer fires, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wake {
    /// A server transaction's timer.
    Server(Key, Timer),
    /// A client transaction's timer; C among them.
    Client(Key, Timer),
    /// A question got no answer in time.
    Query(QueryId),
}

/// What the proxy keeps beside a server transaction: the response context of RFC 3261 §16.
#[derive(Debug)]
pub(crate) struct ServerUser {
    /// Its client transactions.
    pub(crate) branches: SmallVec<[Key; 1]>,
    /// A CANCEL came.
    pub(crate) cancelled: bool,
    /// A final response was sent.
    pub(crate) answered: bool,
    /// The caller proved who he is, or need not.
    pub(crate) authorized: bool,
    /// The question that it waits for.
    pub(crate) parked: Option<QueryId>,
    /// When the request came.
    pub(crate) started: Instant,
    /// Other addresses of the next hop.
    pub(crate) failover: Option<Box<Failover>>,
}

/// What is left to try when a next hop fails (RFC 3263 §4.3).
#[derive(Debug)]
pub(crate) struct Failover {
    pub(crate) candidates: Vec<Candidate>,
    /// Next of them.
    pub(crate) next: usize,
}

/// What the proxy keeps beside a client transaction.
#[derive(Debug)]
pub(crate) struct ClientUser {
    /// The server transaction that it serves; `None` for a CANCEL, which serves none.
    pub(crate) server: Option<Key>,
    /// Timer C (RFC 3261 §16.6 step 11).
    pub(crate) timer_c: Option<TimerId>,
    /// Its length, milliseconds.
    pub(crate) c_ms: u32,
    /// A provisional response came: CANCEL may be sent (§9.1).
    pub(crate) provisional: bool,
    /// CANCEL is wanted as soon as it may be sent.
    pub(crate) cancel_wanted: bool,
    /// CANCEL was sent.
    pub(crate) cancel_sent: bool,
}

/// The state of one endpoint.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) config: Arc<Config>,
    pub(crate) directory: Directory,
    pub(crate) secrets: Secrets,
    pub(crate) authenticator: Authenticator,
    pub(crate) shared: SharedHandle,
    pub(crate) worker: WorkerId,
    pub(crate) now: Now,
    pub(crate) table: Table<ServerUser, ClientUser>,
    pub(crate) wheel: Wheel<Wake>,
    pub(crate) out: TransmitBatch,
    pub(crate) edits: Edits,
    /// The message under construction.
    pub(crate) scratch: Vec<u8>,
    pub(crate) resolver: Cache,
    pub(crate) waiting: Waiting,
    pub(crate) queries: VecDeque<Query>,
    pub(crate) events: VecDeque<Event>,
    pub(crate) counters: Counters,
    pub(crate) indexes: Vec<HeaderIndex>,
    pub(crate) draining: bool,
    /// Server transactions without a final answer yet.
    pub(crate) live: usize,
    /// Some request may find, or need, state on the worker that owns its Call-ID.
    pub(crate) holds_state: bool,
    /// Where the last look-up in the location service led; memory used again.
    pub(crate) target: LocationTarget,
}

/// A registered contact, copied out of the shared map.
#[derive(Debug, Default)]
pub(crate) struct LocationTarget {
    pub(crate) contact: Vec<u8>,
    pub(crate) path: Vec<u8>,
    pub(crate) flow: Option<Flow>,
}

/// Whether `config` lets transactions live on the workers, several of them.
fn holds_state(config: &Config) -> bool {
    config.workers > 1
        && (config.state == StateMode::Transaction
            || config
                .routes
                .iter()
                .any(|r| r.state == Some(StateMode::Transaction) || r.auth == Some(true))
            || config.domains.iter().any(|d| !d.auth.methods.is_empty()))
}

/// [`SharedState`] with the `Debug` that everything here has.
#[derive(Clone)]
pub(crate) struct SharedHandle(pub(crate) Arc<dyn SharedState>);

impl core::fmt::Debug for SharedHandle {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("SharedState")
    }
}

impl core::ops::Deref for SharedHandle {
    type Target = dyn SharedState;
    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl Engine {
    pub(crate) fn new(config: &Config, keys: &Keys, worker: WorkerId, shared: Arc<dyn SharedState>) -> Self {
        // A copy of its own: the workers share no reference count that changes with each message.
        let config = Arc::new(config.clone());
        Self {
            directory: Directory::new(&config),
            secrets: Secrets::new(&keys.domain_secret, &keys.seed),
            authenticator: Authenticator::new(&keys.domain_secret, &keys.seed, config.node_id),
            shared: SharedHandle(shared),
            worker,
            now: Now::default(),
            table: Table::default(),
            wheel: Wheel::new(),
            out: TransmitBatch::new(),
            edits: Edits::new(),
            scratch: Vec::with_capacity(4096),
            resolver: Cache::new(config.limits.dns_entries),
            waiting: Waiting::default(),
            queries: VecDeque::new(),
            events: VecDeque::new(),
            counters: Counters::default(),
            indexes: Vec::new(),
            draining: false,
            live: 0,
            holds_state: holds_state(&config),
            target: LocationTarget::default(),
            config,
        }
    }

    /// Takes a new configuration. Caches stay; what is under way goes on.
    pub(crate) fn reconfigure(&mut self, config: &Config) {
        self.config = Arc::new(config.clone());
        self.directory = Directory::new(&self.config);
        self.holds_state = holds_state(&self.config);
    }

    /// Timer values for a transaction on `flow`.
    pub(crate) fn machine_context(&self, flow: &Flow) -> MachineContext {
        MachineContext::new(&self.config.timers, flow.transport.is_reliable())
    }

    /// The worker that owns `call_id`, if it is another than this.
    pub(crate) fn other_owner(&self, call_id: &[u8]) -> Option<WorkerId> {
        let owner = WorkerId(self.secrets.owner(call_id, self.config.workers));
        (owner != self.worker).then_some(owner)
    }

    /// Notes an event, or counts that it was dropped.
    pub(crate) fn event(&mut self, event: Event) {
        if self.events.len() < self.config.limits.events {
            self.events.push_back(event);
        } else {
            self.counters.dropped_event += 1;
        }
    }

    /// Parses `bytes` with a borrowed index and hands the message to `use_it`. `None`: no SIP.
    pub(crate) fn with_message<R>(
        &mut self,
        bytes: &[u8],
        use_it: impl FnOnce(&mut Self, &Message<'_>) -> R,
    ) -> Option<R> {
        let mut index = self.indexes.pop().unwrap_or_default();
        let result = sip_message::parse(bytes, &mut index, self.config.limits.headers)
            .ok()
            .map(|message| use_it(self, &message));
        self.indexes.push(index);
        result
    }
}

//! The state of an endpoint, and the steps that all its parts share: sending, transactions and their
//! timers, queries to back-ends, responses made here.

pub(crate) mod admit;
mod aors;
pub(crate) mod asserted_identity;
mod away;
mod begin;
pub(crate) mod bindings;
pub(crate) mod context;
pub(crate) mod destination;
pub(crate) mod directory;
pub(crate) mod effects;
pub(crate) mod flows;
pub(crate) mod pings;
pub(crate) mod place;
pub(crate) mod refusals;
pub(crate) mod reply;
pub(crate) mod request;
pub(crate) mod response_failover;
pub(crate) mod secrets;
pub(crate) mod seed;
pub(crate) mod status;
pub(crate) mod stored;
pub(crate) mod tcp_failures;
pub(crate) mod waiting;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::SocketAddr;
use core::num::NonZeroU32;

use sip_message::write::Edits;
use sip_message::{HeaderIndex, Message};
use smallvec::SmallVec;

use self::seed::Seed;
use crate::activity::{Activity, Component};
use crate::admission::Admission;
use crate::affinity::worker_of;
use crate::auth::verify::Authenticator;
use crate::config::{Config, Route, StateMode};
use crate::dispatcher::Group;
use crate::event::{Calls, Counters, Event};
use crate::id::{ConnId, QueryId, WorkerId};
use crate::location::codec::BindingRef;
use crate::query::Query;
use crate::resolve::Cache;
use crate::shared::SharedState;
use crate::time::{Instant, Now};
use crate::timer::wheel::{TimerId, Wheel};
use crate::transaction::table::{ClientKey, Live, ServerKey, Table};
use crate::transaction::{MachineContext, Timer};
use crate::transport::{Flow, PeerName, Proof, TransmitBatch, Transport};

use away::Away;
use context::Context;
use destination::NewAddresses;
use directory::Directory;
use flows::Flows;
use pings::Round;
use place::DomainNumber;
use refusals::Refusals;
use response_failover::ResponseFailover;
use secrets::Secrets;
use tcp_failures::TcpFailureCache;
use waiting::Waiting;

/// The secrets of an endpoint: that of the domain, the same on every node that shares keys and kept in
/// `data_dir`, and the endpoint's own seed.
#[derive(Clone)]
pub struct Keys {
    /// The domain's secret, from which the keys of branches, Record-Route and nonce MACs are derived.
    pub domain_secret: [u8; 32],
    /// The seed of unique nonce bits and hash keys. Endpoints and starts have different seeds.
    pub seed: [u8; 32],
}

impl core::fmt::Debug for Keys {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Keys(..)")
    }
}

/// The purpose of a timer: what is done when it fires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wake {
    /// A server transaction's timer.
    Server(ServerKey, Timer),
    /// A client transaction's timer; C among them.
    Client(ClientKey, Timer),
    /// A query got no result in time.
    Query(QueryId),
    /// A member of a group is to be probed.
    Probe(Probe),
    /// A next hop of the configuration is to be looked up in name service.
    Locate(Locate),
    /// Contacts are to be pinged, by the configuration of this epoch.
    Ping(u16),
}

/// The next hop that is to be located.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Locate {
    pub(crate) epoch: u16,
    /// The number of the next hop among those of the configuration.
    pub(crate) hop: u32,
    /// Look-ups of the next hop's name that gave nothing.
    pub(crate) asked: u8,
}

/// The member that is to be probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Probe {
    pub(crate) epoch: u16,
    pub(crate) group: u16,
    pub(crate) member: u16,
    /// Look-ups of the member's name that gave nothing.
    pub(crate) asked: u8,
}

/// The proxy's part of a server transaction, kept until the final response.
#[derive(Debug)]
pub(crate) struct ServerUser {
    /// The client transactions of the request.
    pub(crate) branches: SmallVec<[ClientKey; 1]>,
    /// Whether a CANCEL came.
    pub(crate) cancelled: bool,
    /// The number of the rule that the request goes by.
    pub(crate) rule: Option<u16>,
    /// The time at which the request came.
    pub(crate) started: Instant,
    /// Microseconds from `started` to the first provisional response other than 100, an hour at most. 32 bits
    /// do, and each transaction has them.
    pub(crate) alerted_us: Option<NonZeroU32>,
    /// Whether the request is an INVITE without a To tag, which begins a call.
    pub(crate) begins_call: bool,
    /// The response context, if there are or may be several branches.
    pub(crate) context: Option<Box<Context>>,
}

/// The user of a client transaction.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TransactionUser {
    /// The client transaction is a branch of this server transaction.
    Server(ServerKey),
    /// The client transaction sends a CANCEL or BYE of ours; no server transaction waits for its response.
    Detached,
    /// The client transaction probes a member of a group.
    Probe(Probe),
}

/// Whether a flow is the only way for a request, and why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum FlowOnly {
    /// There may be other ways: those of the Contact.
    #[default]
    None,
    /// The registration is a flow and nothing else.
    Registration,
    /// A Route names the flow.
    Route,
    /// A Route that is a Path of ours names the flow.
    Path {
        /// Whether the flow is the only way in dialogs, too.
        in_dialogs: bool,
    },
}

impl FlowOnly {
    /// Whether a message to `to` goes by that connection or fails. Every message for a connection does, even
    /// if there is another way. The far end of a closed connection is a port of a NAT, which another host may
    /// have by now.
    pub(crate) const fn holds(self, to: &Flow) -> bool {
        !matches!(self, Self::None) || to.conn.is_some()
    }

    /// Whether a Path of ours names the flow. What then becomes of the request is for the registrar to judge.
    pub(crate) const fn is_path(self) -> bool {
        matches!(self, Self::Path { .. })
    }
}

/// The course of a client transaction: plain, switched to TCP, or hung up. One byte, since every client
/// transaction has a course.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Course(u8);

impl Course {
    pub(crate) const PLAIN: Self = Self(0);
    /// The request left by TCP because it was too long for a datagram, and may go back to UDP until a
    /// response comes.
    pub(crate) const SWITCHED: Self = Self(1);
    const HUNG_UP: u8 = 2;

    /// The callee accepted with a 2xx that could not be relayed, and this many of its dialogs were ended with
    /// BYE.
    pub(crate) const fn hung_up(byes: u8) -> Self {
        Self(Self::HUNG_UP.saturating_add(byes))
    }

    /// The number of dialogs that were ended with BYE, if the callee accepted with such a 2xx.
    pub(crate) const fn byes(self) -> Option<u8> {
        self.0.checked_sub(Self::HUNG_UP)
    }
}

/// The proxy's part of a client transaction.
#[derive(Debug)]
pub(crate) struct ClientUser {
    pub(crate) owner: TransactionUser,
    /// Number of the target in the server transaction's context.
    pub(crate) target: u8,
    /// Timer C (RFC 3261 §16.6 step 11), or, until a response comes, the wait for the first one.
    pub(crate) timer_c: Option<TimerId>,
    /// Length of timer C, milliseconds.
    pub(crate) c_ms: u32,
    /// Whether a provisional response came: CANCEL may be sent (§9.1).
    pub(crate) provisional: bool,
    /// Whether CANCEL is wanted as soon as it may be sent.
    pub(crate) cancel_wanted: bool,
    /// Whether CANCEL was sent.
    pub(crate) cancel_sent: bool,
    /// The domain that the peer's certificate must be for, if the request goes by TLS.
    pub(crate) peer: Option<PeerName>,
    /// Whether the flow of the request is the only way.
    pub(crate) flow_only: FlowOnly,
    pub(crate) course: Course,
    /// Whether the transaction is listed in [`Flows`] under its connection.
    pub(crate) listed: bool,
    /// Whether the request goes to a user agent by a contact or flow, and not to a next hop of the
    /// configuration.
    pub(crate) is_contact: bool,
    /// The seed of the caller's mark in the responses.
    pub(crate) seed: Option<Seed>,
}

impl ClientUser {
    pub(crate) fn new(owner: TransactionUser) -> Self {
        Self {
            owner,
            target: 0,
            timer_c: None,
            c_ms: 0,
            provisional: false,
            cancel_wanted: false,
            cancel_sent: false,
            peer: None,
            flow_only: FlowOnly::None,
            course: Course::PLAIN,
            listed: false,
            is_contact: false,
            seed: None,
        }
    }

    /// The server transaction that this client transaction serves.
    pub(crate) const fn server(&self) -> Option<ServerKey> {
        match self.owner {
            TransactionUser::Server(key) => Some(key),
            TransactionUser::Detached | TransactionUser::Probe(_) => None,
        }
    }
}

/// The state of one endpoint.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) config: Arc<Config>,
    pub(crate) directory: Directory,
    pub(crate) secrets: Secrets,
    pub(crate) authenticator: Authenticator,
    pub(crate) shared: SharedHandle,
    /// The report of what this endpoint is busy with.
    pub(crate) activity: Activity,
    /// The decision which messages are admitted.
    pub(crate) admission: Admission,
    pub(crate) worker: WorkerId,
    pub(crate) now: Now,
    pub(crate) table: Table<ServerUser, ClientUser>,
    /// Memory of settled server transactions, for new ones.
    #[expect(clippy::vec_box, reason = "the boxes themselves are used again")]
    pub(crate) pool: Vec<Box<Live<ServerUser>>>,
    pub(crate) wheel: Wheel<Wake>,
    pub(crate) out: TransmitBatch,
    pub(crate) edits: Edits,
    /// The edits of a request before those of a target. The memory is used again.
    pub(crate) base_edits: Edits,
    /// The message under construction.
    pub(crate) scratch: Vec<u8>,
    pub(crate) resolver: Cache,
    pub(crate) waiting: Waiting,
    pub(crate) queries: VecDeque<Query>,
    pub(crate) events: VecDeque<Event>,
    /// Connections on which their peers want requests, and the address of these requests.
    pub(crate) aliases: Vec<(ConnId, SocketAddr)>,
    pub(crate) counters: Counters,
    pub(crate) flows: Flows,
    /// Addresses to which long requests go by UDP at once.
    pub(crate) tcp_failures: TcpFailureCache,
    /// Next hops that failed and have not come back.
    pub(crate) away: Away,
    /// Whether `tcp_failures` or `away` has an address.
    pub(crate) hops_failed: bool,
    /// Responses that found their connection closed, counted per source.
    pub(crate) response_failover: ResponseFailover,
    pub(crate) indexes: Vec<HeaderIndex>,
    /// Whether some callers are asked for credentials.
    pub(crate) asks_callers: bool,
    /// Whether some rule relays REGISTER: this server is an edge before another registrar.
    pub(crate) relays_register: bool,
    /// The number of the rule that the request at hand goes by.
    pub(crate) rule_at_hand: Option<u16>,
    /// The limit of new addresses of the contacts of users.
    pub(crate) new_addresses: NewAddresses,
    /// The limit of reports of refused requests.
    pub(crate) refusals: Refusals,
    pub(crate) draining: bool,
    /// Server transactions without a final response yet.
    pub(crate) live: usize,
    /// INVITE server transactions without a final response yet.
    pub(crate) live_invites: usize,
    /// Final responses to INVITEs by code, and the waiting times of their callers.
    pub(crate) calls: Calls,
    /// Whether some request may find, or need, state on the worker that owns its Call-ID.
    pub(crate) holds_state: bool,
    /// The contacts that the last look-up in the location service found. The memory is used again.
    pub(crate) found: Vec<LocationTarget>,
    /// The groups as this worker sees them, with loads and turns of its own.
    pub(crate) groups: Vec<Arc<Group>>,
    /// The number of changes of the configuration: probes of an older one stop.
    pub(crate) epoch: u16,
    /// A counter that makes the branches of requests of our own differ.
    pub(crate) probes: u64,
    /// This worker's round of pings.
    pub(crate) round: Round,
}

/// A registered contact, copied out of the shared map.
#[derive(Debug)]
pub(crate) struct LocationTarget {
    pub(crate) contact: Vec<u8>,
    pub(crate) path: Vec<u8>,
    pub(crate) instance: Vec<u8>,
    pub(crate) flow: Flow,
    pub(crate) q_milli: u16,
    pub(crate) expires_unix_s: u64,
    /// Whether the contact is to be reached by TLS, even if its URI does not ask for TLS now (RFC 5630 §5.3).
    pub(crate) secure: bool,
    /// Whether its flow is the only way to the contact (RFC 5626 §5.3, RFC 7118 §5).
    pub(crate) only_flow: bool,
    /// The domain of the address-of-record that the contact is registered for.
    pub(crate) domain: DomainNumber,
}

impl LocationTarget {
    pub(crate) fn new(binding: &BindingRef<'_>) -> Self {
        let mut target = Self {
            contact: Vec::new(),
            path: Vec::new(),
            instance: Vec::new(),
            flow: binding.received,
            q_milli: 0,
            expires_unix_s: 0,
            secure: false,
            only_flow: false,
            domain: 0,
        };
        target.set(binding);
        target
    }

    /// Makes this target a copy of `binding`, in its own memory.
    pub(crate) fn set(&mut self, binding: &BindingRef<'_>) {
        for (to, from) in [
            (&mut self.contact, binding.contact),
            (&mut self.path, binding.path),
            (&mut self.instance, binding.instance),
        ] {
            to.clear();
            to.extend_from_slice(from);
        }
        self.flow = binding.received;
        self.q_milli = binding.q_milli;
        self.expires_unix_s = binding.expires_unix_s;
        self.secure = false;
        self.only_flow = binding.is_flow();
    }

    /// Whether the flow is the only way to the contact, and why.
    pub(crate) const fn flow_only(&self) -> FlowOnly {
        match self.only_flow {
            true => FlowOnly::Registration,
            false => FlowOnly::None,
        }
    }

    /// Makes the contact fit the scheme of the Request-URI (RFC 5630 §5.3): a request to a SIP URI goes on to
    /// a SIP URI. A SIPS contact becomes SIP, and is reached by TLS all the same. So is a contact that was
    /// registered by TLS.
    pub(crate) fn settle_scheme(&mut self, secure: bool) {
        let sips = is_sips(&self.contact);
        self.secure = secure || sips || self.flow.transport.is_secure();
        if sips && !secure {
            self.contact.remove(SIP.len());
        }
    }
}

const SIP: &[u8] = b"sip";

/// Whether a URI is a SIPS URI.
pub(crate) fn is_sips(uri: &[u8]) -> bool {
    uri.get(..5).is_some_and(|s| s.eq_ignore_ascii_case(b"sips:"))
}

/// This worker's view of the configured groups.
fn groups(config: &Config) -> Vec<Arc<Group>> {
    config.groups.iter().map(|g| Arc::new(g.clone())).collect()
}

/// Whether several workers hold transactions by `config`.
fn holds_state(config: &Config) -> bool {
    config.workers > 1
        && (config.state == StateMode::Transaction
            || config
                .routes
                .iter()
                .any(|r| r.state == Some(StateMode::Transaction) || r.auth == Some(true))
            || relays_register(config)
            || config.groups.iter().any(|g| g.probe_ms.is_some())
            || config.domains.iter().any(|d| !d.auth.methods.is_empty()))
}

/// Whether some rule relays REGISTER.
fn relays_register(config: &Config) -> bool {
    config.routes.iter().any(Route::takes_register)
}

/// Whether credentials are wanted for some INVITE.
fn asks_callers(config: &Config) -> bool {
    config.routes.iter().any(|r| r.auth == Some(true))
        || config.domains.iter().any(|d| d.auth.asks(b"INVITE", false))
}

/// [`SharedState`] with the `Debug` that everything here implements.
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
    /// Whether the peer of this flow is trusted: by its address, or by the domain that its
    /// certificate proves.
    pub(crate) fn is_trusted(&self, flow: &Flow) -> bool {
        flow.proof == Proof::Trusted || directory::comes_from(&self.config.trust, flow)
    }

    /// The flow with [`Proof::Page`], if a web page of any origin may have written its messages. Two kinds
    /// are such: WebSockets of a listener without `origins`, and WebSockets without certificate from an
    /// address of this machine, which a web server may have forwarded.
    pub(crate) fn as_page(&self, flow: Flow) -> Flow {
        let is_any = || {
            let listener = self.config.listeners.get(usize::from(flow.listener.0));
            listener.is_some_and(|listener| listener.any_page)
        };
        let is_forwarded = || flow.proof == Proof::None && self.directory.is_own_address(flow.remote.ip());
        match flow.transport {
            Transport::Ws | Transport::Wss if is_any() || is_forwarded() => Flow {
                proof: Proof::Page,
                ..flow
            },
            Transport::Udp | Transport::Tcp | Transport::Tls | Transport::Ws | Transport::Wss => flow,
        }
    }

    pub(crate) fn new(config: &Config, keys: &Keys, worker: WorkerId, shared: Arc<dyn SharedState>) -> Self {
        // The endpoint has its own copy: workers share no reference count that changes with each message.
        let config = Arc::new(config.clone());
        let secrets = Secrets::new(&keys.domain_secret, &keys.seed);
        Self {
            directory: Directory::new(&config),
            admission: Admission::new(&config, secrets.source_key()),
            new_addresses: NewAddresses::new(&config, secrets.source_key()),
            secrets,
            authenticator: Authenticator::new(&keys.domain_secret, &keys.seed, config.node_id),
            shared: SharedHandle(shared),
            activity: Activity::default(),
            worker,
            now: Now::default(),
            table: Table::default(),
            pool: Vec::new(),
            wheel: Wheel::new(),
            out: TransmitBatch::new(),
            edits: Edits::new(),
            base_edits: Edits::new(),
            scratch: Vec::with_capacity(4096),
            resolver: Cache::new(config.limits.dns_entries),
            waiting: Waiting::default(),
            queries: VecDeque::new(),
            events: VecDeque::new(),
            aliases: Vec::new(),
            counters: Counters::default(),
            flows: Flows::default(),
            tcp_failures: TcpFailureCache::default(),
            away: Away::default(),
            hops_failed: false,
            response_failover: ResponseFailover::default(),
            indexes: Vec::new(),
            asks_callers: asks_callers(&config),
            relays_register: relays_register(&config),
            rule_at_hand: None,
            refusals: Refusals::default(),
            draining: false,
            live: 0,
            live_invites: 0,
            calls: Calls::default(),
            holds_state: holds_state(&config),
            found: Vec::new(),
            groups: groups(&config),
            epoch: 0,
            probes: 0,
            round: Round::default(),
            config,
        }
    }

    /// Takes a new configuration. Caches stay, and requests under way go on.
    pub(crate) fn reconfigure(&mut self, config: &Config) {
        let mut config = config.clone();
        place::keep_known(&self.config, &mut config);
        self.config = Arc::new(config);
        self.directory = Directory::new(&self.config);
        self.admission.reconfigure(&self.config);
        self.new_addresses.reconfigure(&self.config);
        self.holds_state = holds_state(&self.config);
        self.asks_callers = asks_callers(&self.config);
        self.relays_register = relays_register(&self.config);
        self.groups = groups(&self.config);
        self.epoch = self.epoch.wrapping_add(1);
    }

    /// Timer values for a transaction on `flow`.
    pub(crate) fn machine_context(&self, flow: &Flow) -> MachineContext {
        MachineContext::new(&self.config.timers, flow.transport.is_reliable())
    }

    /// The worker that owns `call_id`, if it is not this one.
    pub(crate) fn other_worker(&self, call_id: &[u8]) -> Option<WorkerId> {
        let owner = worker_of(call_id, self.config.workers);
        (owner != self.worker).then_some(owner)
    }

    /// Queues an event, or counts that it was dropped. Returns whether it was queued.
    pub(crate) fn event(&mut self, event: Event) -> bool {
        let has_room = self.events.len() < self.config.limits.events;
        if has_room {
            self.events.push_back(event);
        } else {
            self.counters.dropped_event += 1;
        }
        has_room
    }

    /// Parses `bytes` with a borrowed index and hands the message to `use_it`. `None`: the bytes are no SIP
    /// message. The message was accepted before, so no limit applies: limits may be lower by now.
    pub(crate) fn with_message<R>(
        &mut self,
        bytes: &[u8],
        use_it: impl FnOnce(&mut Self, &Message<'_>) -> R,
    ) -> Option<R> {
        let mut index = self.indexes.pop().unwrap_or_default();
        let before = self.activity.enter(Component::Parse);
        let message = sip_message::parse(bytes, &mut index, usize::MAX);
        self.activity.enter(before);
        let result = message.ok().map(|message| use_it(self, &message));
        self.indexes.push(index);
        result
    }
}

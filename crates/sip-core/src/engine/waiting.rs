//! Queries under way, and the requests that wait for their results.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use super::place::DomainNumber;
use super::request::Authorized;
use super::{Engine, Wake};
use crate::admission::Source;
use crate::id::QueryId;
use crate::query::{Query, QueryKind, RecordKind};
use crate::slab::{Key, Slab};
use crate::time::Millis;
use crate::timer::wheel::TimerId;
use crate::transaction::table::ServerKey;
use crate::transport::Flow;

/// The share of `limits.parked_requests` that requests of one source may take while they wait for
/// credentials. The share is one in [`SOURCE_SHARE`], but at least [`SOURCE_LEAST`] requests.
const SOURCE_SHARE: usize = 8;
const SOURCE_LEAST: usize = 64;

/// The most record sets that one target waits for: services of two transports, both address families of each
/// candidate, and some to spare. Without a limit, records that expire before the next ones are there would be
/// queried in turns.
pub(crate) const MAX_ASKED: u8 = 40;

/// Milliseconds for which the core waits for name service.
const RESOLVE_DEADLINE_MS: u32 = 5_000;
/// Milliseconds for which the core waits for the location store.
const SAVE_DEADLINE_MS: u32 = 5_000;

/// A request that waits.
#[derive(Debug)]
pub(crate) struct Parked {
    /// The flow that the request came by.
    pub(crate) flow: Flow,
    /// The bytes of the request; empty if a transaction holds them.
    pub(crate) bytes: Box<[u8]>,
    /// The server transaction of the request, if it has one.
    pub(crate) server: Option<ServerKey>,
    /// The reason why the request may be relayed, if that is decided.
    pub(crate) authorized: Option<Authorized>,
    /// The domain of which any account is accepted; 0: From decides.
    pub(crate) any_account_of: DomainNumber,
    /// Times that the request has waited for name service, this one included.
    pub(crate) asked: u8,
    /// The target whose name the request waits for, if it has a response context.
    pub(crate) target: Option<u8>,
    /// Whether the flow is watched while the request waits.
    pub(crate) watched: bool,
}

impl Parked {
    fn size(&self) -> usize {
        self.bytes.len() + core::mem::size_of::<Self>()
    }
}

/// The purpose of a query.
#[derive(Debug)]
pub(crate) enum Purpose {
    /// Check the credentials of this request.
    Credentials(Parked),
    /// Route these requests once the name is known.
    Resolve {
        name: Box<[u8]>,
        kind: RecordKind,
        waiters: Vec<Parked>,
    },
    /// Respond to this REGISTER once its bindings are on disk.
    Save {
        parked: Parked,
        /// The 200 to send.
        ok: PendingOk,
        /// The address-of-record, for a rollback if the record cannot be stored.
        aor: Box<[u8]>,
        /// The bindings that the REGISTER replaced or removed, as an encoded record; `None`: an earlier copy
        /// of the REGISTER did that.
        lost: Option<Box<[u8]>>,
        /// The version of the record after the REGISTER.
        version: u64,
    },
}

/// The response to a REGISTER that is being stored.
#[derive(Debug)]
pub(crate) struct PendingOk {
    /// The 200.
    pub(crate) response: Box<[u8]>,
    /// The number of bindings in the response.
    pub(crate) contacts: usize,
}

#[derive(Debug)]
struct Open {
    purpose: Purpose,
    timer: Option<TimerId>,
}

/// All queries under way.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    open: Slab<Open>,
    /// Look-ups of names under way, by their [hash](Engine::name_hash), so that equal ones join.
    names: BTreeMap<u128, Key>,
    pub(crate) requests: usize,
    pub(crate) bytes: usize,
    /// The number of requests of each source that wait for credentials.
    sources: BTreeMap<Source, u32>,
    /// Requests that have their result and wait for their turn; they count in `requests` and `bytes`.
    ready: VecDeque<Parked>,
}

impl Waiting {
    fn count(&mut self, requests: usize, bytes: usize) {
        self.requests += requests;
        self.bytes += bytes;
    }

    fn discount(&mut self, requests: usize, bytes: usize) {
        self.requests = self.requests.saturating_sub(requests);
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    /// Counts a request that begins to wait for credentials (`waits`), or ends its wait.
    fn count_source(&mut self, purpose: &Purpose, waits: bool) {
        let Purpose::Credentials(parked) = purpose else {
            return;
        };
        let source = Source::of(parked.flow.remote.ip());
        let count = self.sources.entry(source).or_default();
        *count = if waits {
            count.saturating_add(1)
        } else {
            count.saturating_sub(1)
        };
        if *count == 0 {
            self.sources.remove(&source);
        }
    }

    /// Whether some requests have their result and wait for their turn.
    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Queues requests that have their result.
    pub(crate) fn await_turn(&mut self, waiters: Vec<Parked>) {
        self.count(waiters.len(), total_size(&waiters));
        self.ready.extend(waiters);
    }

    /// The next request in turn.
    pub(crate) fn next_ready(&mut self) -> Option<Parked> {
        let parked = self.ready.pop_front()?;
        self.discount(1, parked.size());
        Some(parked)
    }
}

fn total_size(waiters: &[Parked]) -> usize {
    waiters.iter().map(Parked::size).sum()
}

fn slab_key(id: QueryId) -> Option<Key> {
    Key::new(id.slot, id.generation)
}

impl Engine {
    /// Whether one more request may wait, of which this many bytes are kept. Counts a refusal.
    pub(crate) fn may_park(&mut self, bytes: usize) -> bool {
        let limits = &self.config.limits;
        let size = bytes.saturating_add(core::mem::size_of::<Parked>());
        let fits = self.waiting.requests < limits.parked_requests
            && self.waiting.bytes.saturating_add(size) <= limits.parked_bytes;
        if !fits {
            self.counters.limited_parked += 1;
        }
        fits
    }

    /// Whether one more request that came by `flow` may wait for credentials. A source with made-up user
    /// names must not keep all others from the database. Counts a refusal.
    pub(crate) fn may_ask_for(&mut self, flow: &Flow) -> bool {
        let most = (self.config.limits.parked_requests / SOURCE_SHARE).max(SOURCE_LEAST);
        let source = Source::of(flow.remote.ip());
        let waiting = self.waiting.sources.get(&source).copied().unwrap_or(0);
        let may = (waiting as usize) < most || self.admission.is_exempt(flow);
        self.counters.limited_source_look_ups += u64::from(!may);
        may
    }

    /// Sends a query to a back-end. `purpose` comes back with the result, or when the deadline
    /// passes.
    pub(crate) fn ask(&mut self, kind: QueryKind, purpose: Purpose) {
        let deadline_ms = match &purpose {
            Purpose::Credentials(_) => self.config.credentials_deadline_ms,
            Purpose::Resolve { .. } => RESOLVE_DEADLINE_MS,
            Purpose::Save { .. } => SAVE_DEADLINE_MS,
        };
        match kind {
            QueryKind::Credentials { .. } => self.counters.queries_credentials += 1,
            QueryKind::Resolve { .. } => self.counters.queries_resolve += 1,
            QueryKind::SaveBindings { .. } => self.counters.queries_save += 1,
        }
        let (requests, bytes) = weight(&purpose);
        self.waiting.count(requests, bytes);
        self.waiting.count_source(&purpose, true);
        let name = self.name_hash(&purpose);
        let key = self.waiting.open.insert(Open { purpose, timer: None });
        let id = QueryId {
            slot: key.slot,
            generation: key.generation.get(),
        };
        let timer = self
            .wheel
            .start(self.now.instant, Millis(deadline_ms), Wake::Query(id));
        if let Some(open) = self.waiting.open.get_mut(key) {
            open.timer = Some(timer);
        }
        if let Some(name) = name {
            self.waiting.names.insert(name, key);
        }
        self.queries.push_back(Query { id: Some(id), kind });
    }

    /// Whether a look-up of this name is under way.
    fn is_asking(&self, name: &[u8], kind: RecordKind) -> bool {
        self.waiting.names.contains_key(&self.hash_of(name, kind))
    }

    /// The hash of a look-up, with a key, since peers choose the names.
    fn hash_of(&self, name: &[u8], kind: RecordKind) -> u128 {
        self.secrets.map_hash([name, &[kind as u8]])
    }

    fn name_hash(&self, purpose: &Purpose) -> Option<u128> {
        match purpose {
            Purpose::Resolve { name, kind, .. } => Some(self.hash_of(name, *kind)),
            Purpose::Credentials(_) | Purpose::Save { .. } => None,
        }
    }

    /// Makes a request wait for these records, together with other requests that wait for them.
    pub(crate) fn wait_for_name(&mut self, name: Box<[u8]>, kind: RecordKind, parked: Parked) {
        if let Err(parked) = self.join_resolve(&name, kind, parked) {
            let purpose = Purpose::Resolve {
                name: name.clone(),
                kind,
                waiters: alloc::vec![parked],
            };
            self.ask(QueryKind::Resolve { name, kind }, purpose);
        }
    }

    /// Queries these records, for which no request waits.
    pub(crate) fn ask_for_name(&mut self, name: Box<[u8]>, kind: RecordKind) {
        if !self.is_asking(&name, kind) {
            let purpose = Purpose::Resolve {
                name: name.clone(),
                kind,
                waiters: Vec::new(),
            };
            self.ask(QueryKind::Resolve { name, kind }, purpose);
        }
    }

    /// Joins a look-up of this name that is under way. Returns the request if there is none.
    fn join_resolve(&mut self, name: &[u8], kind: RecordKind, parked: Parked) -> Result<(), Parked> {
        let key = self.waiting.names.get(&self.hash_of(name, kind)).copied();
        let open = key.and_then(|key| self.waiting.open.get_mut(key));
        if let Some(Open {
            purpose: Purpose::Resolve { waiters, .. },
            ..
        }) = open
        {
            let bytes = parked.size();
            waiters.push(parked);
            self.waiting.count(1, bytes);
            return Ok(());
        }
        Err(parked)
    }

    /// Removes a query that has its result or whose deadline has passed.
    pub(crate) fn take_query(&mut self, id: QueryId) -> Option<Purpose> {
        let open = self.waiting.open.remove(slab_key(id)?)?;
        if let Some(timer) = open.timer {
            self.wheel.cancel(timer);
        }
        if let Some(name) = self.name_hash(&open.purpose) {
            self.waiting.names.remove(&name);
        }
        let (requests, bytes) = weight(&open.purpose);
        self.waiting.discount(requests, bytes);
        self.waiting.count_source(&open.purpose, false);
        Some(open.purpose)
    }
}

/// The number of requests that wait for this query, and the bytes held for them.
fn weight(purpose: &Purpose) -> (usize, usize) {
    match purpose {
        Purpose::Credentials(parked) => (1, parked.size()),
        Purpose::Save { parked, ok, lost, .. } => {
            let lost = lost.as_ref().map_or(0, |lost| lost.len());
            (1, parked.size() + ok.response.len() + lost)
        }
        Purpose::Resolve { waiters, .. } => (waiters.len(), total_size(waiters)),
    }
}

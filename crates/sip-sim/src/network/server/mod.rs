//! A server of the simulated network: the real core on one or more workers, with a model of the shell around
//! it: hand-overs, connections, queries, the sweep, and the disk, which outlives the process.

mod backends;
pub mod config;
mod conns;
mod store;

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use counting_allocator::{Held, held};
use sip_core::config::Config;
use sip_core::endpoint::{Endpoint, Handled, Keys};
use sip_core::id::WorkerId;
use sip_core::location::codec;
use sip_core::query::{Query, QueryKind};
use sip_core::shared::SharedState as _;
use sip_core::time::{Instant, Now, SteadyWall};
use sip_core::transport::{Flow, TransmitBatch, Transport};

use self::backends::{Answered, Backends};
use self::config::SIP_PORT;
use self::conns::{Came, Conns, Waiting};
use super::node::{Clocks, Input, Node, NodeId, Output, Wire, WireNames};
use super::scenario::{Scenario, ServerPlan, Trouble};
use super::server_ip;
use crate::cells::Cells;
use crate::clock::{MS, Micros, Queue, SECOND};
use crate::rng::Rng;

/// Most messages on their way from worker to worker. Beyond it the newest are dropped.
const MOST_MAIL: usize = 256;
/// Interval of the sweep for expired bindings.
const SWEEP_EVERY: Micros = 5 * SECOND;
/// Time for which secrets are cached.
const CACHE_FOR: Micros = 30 * SECOND;
/// Pause before a process that cannot start is started again.
const START_PAUSE: Micros = SECOND;

/// Most memory that a worker may hold when everything is over, beyond that at its start. It is kept for later
/// use: memory of as many finished transactions as were held at one time, a batch that grew, and one page of
/// each of the worker's four slabs.
const MOST_KEPT: Held = Held {
    small: 24 * 1024,
    large: 512 * 1024,
};

/// Most memory of a worker with a limit on sources, for the limited ones, bytes.
const LIMITED_KEPT: i64 = 24 * 1024;

/// Most bytes that an admitted transaction may add to twice its request: additions on its way, a CANCEL, and
/// a response.
const MOST_GROWTH: usize = 1_000;

/// Most bytes that an admitted REGISTER may add to the registrations.
const MOST_REGISTERED: usize = 300;

/// Longest time for which a query of a worker is open.
const LONGEST_QUESTION: Micros = 10 * SECOND;
/// Time for which a resolved name is used: its time to live, and 64·T1 more, in which an INVITE may be
/// repeated to its address.
const NAME_SERVES: Micros = (backends::TTL_S as u64 + 34) * SECOND;

/// A message for another worker.
#[derive(Debug)]
struct Mail {
    worker: usize,
    flow: Flow,
    bytes: Vec<u8>,
}

/// Parts of a server that a start makes and an end removes.
struct Process {
    wall: SteadyWall,
    workers: Vec<Endpoint>,
    shared: Arc<Cells>,
    conns: Conns,
    mail: Queue<Mail>,
    waiting_mail: usize,
    sweep_at: Option<Micros>,
}

/// A server.
pub struct Server {
    number: usize,
    plan: ServerPlan,
    config: Config,
    /// Secret of the configuration, the same at every start.
    domain_secret: [u8; 32],
    process: Option<Process>,
    backends: Backends,
    /// When the start is tried again, if the disk prevented it.
    retry_at: Option<Micros>,
    /// The latest time that the server was given.
    seen: Micros,
    heal_at: Micros,
    /// Most phones of one user.
    most_phones: usize,
    names: WireNames,
    batch: TransmitBatch,
    out: VecDeque<Output>,
    /// Rules that the server itself found broken.
    faults: Vec<(&'static str, String)>,
    /// When each name was last queried.
    names_asked: BTreeMap<Box<[u8]>, Micros>,
    /// Times of the queries of workers that may be open.
    asked: VecDeque<Micros>,
    rng: Rng,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server")
            .field("plan", &self.plan)
            .finish_non_exhaustive()
    }
}

fn key(rng: &mut Rng) -> [u8; 32] {
    let words: [[u8; 8]; 4] = core::array::from_fn(|_| rng.next_u64().to_le_bytes());
    let mut bytes = [0; 32];
    for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&word);
    }
    bytes
}

const fn read(clocks: Clocks) -> Now {
    Now {
        instant: Instant::from_micros(clocks.now),
        unix_ms: clocks.unix_ms,
    }
}

/// The clocks as the shell gives them to the core: the wall clock does not jump.
fn steady(wall: &mut SteadyWall, clocks: Clocks) -> Clocks {
    Clocks {
        now: clocks.now,
        unix_ms: wall.read(Instant::from_micros(clocks.now), clocks.unix_ms),
    }
}

/// A number that depends on the content only (FNV-1a): for choices that must not change if other messages are
/// taken out of a run.
fn hash(parts: [&[u8]; 2]) -> u64 {
    let bytes = parts.into_iter().flatten();
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

impl Server {
    /// The server with this number, at node `node`; it is not started yet.
    pub fn new(scenario: &Scenario, number: usize, node: NodeId, mut rng: Rng) -> Self {
        let plan = scenario.servers[number].clone();
        Self {
            number,
            config: config::config(scenario, number),
            domain_secret: key(&mut rng),
            process: None,
            backends: Backends::new(number, plan.backend_us, rng.fork()),
            retry_at: None,
            seen: 0,
            heal_at: scenario.heal_at,
            most_phones: scenario.most_phones(),
            names: WireNames::new(node),
            batch: TransmitBatch::new(),
            out: VecDeque::new(),
            faults: Vec::new(),
            names_asked: BTreeMap::new(),
            asked: VecDeque::new(),
            plan,
            rng,
        }
    }

    fn start(&mut self, clocks: Clocks) {
        self.seen = clocks.now;
        self.retry_at = None;
        if clocks.now >= self.heal_at {
            self.backends.heal(self.heal_at);
        }
        let Ok((found, newest)) = self.backends.store.start(read(clocks)) else {
            // As a supervisor of services would do.
            self.retry_at = Some(clocks.now + START_PAUSE);
            return;
        };
        let rng = &mut self.rng;
        let hash_seed = (rng.next_u64(), rng.next_u64());
        let shared = Arc::new(Cells::new(hash_seed, self.config.limits.nonces, clocks.unix_ms));
        for (aor, record) in &found {
            shared.update_bindings(aor, &mut |held| held.clone_from(record));
        }
        shared.versions_from(newest);
        let workers = self.workers(&shared);
        self.process = Some(Process {
            wall: SteadyWall::new(Instant::from_micros(clocks.now), clocks.unix_ms),
            workers,
            shared,
            conns: Conns::new(self.plan.workers, &self.config.limits, self.rng.next_u64() as u32),
            mail: Queue::default(),
            waiting_mail: 0,
            sweep_at: None,
        });
    }

    /// New workers at a start.
    fn workers(&mut self, shared: &Arc<Cells>) -> Vec<Endpoint> {
        (0..self.plan.workers)
            .map(|worker| {
                let keys = Keys {
                    domain_secret: self.domain_secret,
                    seed: key(&mut self.rng),
                };
                Endpoint::new(&self.config, &keys, WorkerId(worker), shared.clone())
            })
            .collect()
    }

    /// Gives a message to a worker. Returns whether its connection may stay open.
    fn deliver(&mut self, clocks: Clocks, worker: usize, flow: Flow, bytes: &[u8], handed: bool) -> bool {
        let Some(process) = &mut self.process else {
            return false;
        };
        match process.workers[worker].handle_message(read(clocks), flow, bytes) {
            Handled::Here => true,
            Handled::Close => false,
            Handled::HandOver(other) if handed => {
                let what = format!("worker {worker} hands over to {} what was handed to it", other.0);
                self.faults.push(("hand-over", what));
                true
            }
            Handled::HandOver(other) => {
                self.hand_over(clocks, usize::from(other.0), flow, bytes);
                true
            }
        }
    }

    /// Whether this worker admits a message of the flow.
    fn admit(&mut self, clocks: Clocks, worker: usize, flow: &Flow) -> bool {
        let process = self.process.as_mut();
        process.is_some_and(|process| process.workers[worker].admit(read(clocks), flow))
    }

    fn hand_over(&mut self, clocks: Clocks, worker: usize, flow: Flow, bytes: &[u8]) {
        let Some(process) = self.process.as_mut().filter(|p| p.waiting_mail < MOST_MAIL) else {
            return;
        };
        process.waiting_mail += 1;
        let after = hash([bytes, b"mail"]) % MS;
        let bytes = bytes.to_vec();
        process.mail.put(clocks.now + after, Mail { worker, flow, bytes });
    }

    fn datagram(&mut self, clocks: Clocks, from: SocketAddr, bytes: &[u8]) {
        let flow = Flow::udp(from);
        let chance = hash([bytes, from.to_string().as_bytes()]);
        let worker = (chance >> 8) as usize % usize::from(self.plan.workers);
        // The shell calls `worker_of` if that saves work. With and without the call the result must be the
        // same.
        let asks = chance & 1 == 0;
        if !self.admit(clocks, worker, &flow) {
            return;
        }
        let owner = self
            .process
            .as_ref()
            .filter(|_| asks)
            .and_then(|process| process.workers[worker].worker_of(bytes));
        match owner {
            Some(owner) => self.hand_over(clocks, usize::from(owner.0), flow, bytes),
            None => {
                let _ = self.deliver(clocks, worker, flow, bytes, false);
            }
        }
    }

    fn bytes(&mut self, clocks: Clocks, wire: Wire, bytes: &[u8]) {
        let Some(process) = &mut self.process else { return };
        let (mut messages, mut fault) = (Vec::new(), None);
        let mut replies = Vec::new();
        let mut over = process.conns.take(wire, bytes, &mut replies, &mut |flow, came| {
            match came {
                Came::Message(message) => messages.push((flow, message.to_vec())),
                Came::Fault(error) => fault = Some((flow, error.fault, error.head.to_vec())),
            }
            true
        });
        if !replies.is_empty() {
            self.out.push_back(Output::Bytes {
                wire,
                bytes: replies,
                message: Vec::new(),
            });
        }
        for (flow, message) in messages {
            let worker = flow.conn.map_or(0, |id| usize::from(id.worker.0));
            if !self.admit(clocks, worker, &flow) {
                continue;
            }
            if !self.deliver(clocks, worker, flow, &message, false) {
                over = true;
                break;
            }
        }
        if let (Some((flow, fault, head)), Some(process)) = (fault, &mut self.process) {
            let worker = flow.conn.map_or(0, |id| usize::from(id.worker.0));
            let error = sip_core::transport::framing::FramingError { fault, head: &head };
            let now = read(clocks);
            if let Some((owner, head)) = process.workers[worker].handle_framing_error(now, flow, error) {
                let _ = process.workers[usize::from(owner.0)].handle_message(now, flow, &head);
            }
        }
        self.collect(clocks);
        if over {
            self.out.push_back(Output::Close { wire });
            self.closed(clocks, wire);
        }
    }

    fn closed(&mut self, clocks: Clocks, wire: Wire) {
        let Some(process) = &mut self.process else { return };
        let Some(gone) = process.conns.closed(wire) else {
            return;
        };
        // The order is "before or after": both orders must work.
        let flow_first = wire.0.is_multiple_of(2);
        let tell = |process: &mut Process| {
            if gone.heard {
                for worker in &mut process.workers {
                    worker.handle_flow_closed(read(clocks), gone.id);
                }
            }
        };
        if flow_first {
            tell(process);
        }
        for lost in &gone.waiting {
            process.workers[lost.worker].handle_undelivered(read(clocks), lost.to, &lost.message);
        }
        if !flow_first {
            tell(process);
        }
        self.collect(clocks);
    }

    fn timeout(&mut self, clocks: Clocks) {
        let now = clocks.now;
        if now >= self.heal_at {
            self.backends.heal(self.heal_at);
        }
        self.backends.handle_timeout(read(clocks));
        for aor in self.backends.store.unsaved.drain(..) {
            let what = format!("the disk has no {} yet", String::from_utf8_lossy(&aor));
            self.faults.push(("answered unsaved", what));
        }
        while let Some(Answered {
            worker,
            id,
            answer,
            cache,
        }) = self.backends.pop_due(now)
        {
            let Some(process) = &mut self.process else { return };
            if let Some((user, secrets)) = cache {
                process.shared.cache(&user, secrets, now + CACHE_FOR);
            }
            process.workers[worker].handle_result(read(clocks), id, answer);
        }
        while let Some(mail) = self.process.as_mut().and_then(|process| {
            let mail = process.mail.pop_due(now)?;
            process.waiting_mail -= 1;
            Some(mail)
        }) {
            // A connection that must end is reported by a framing error, not from here.
            let _ = self.deliver(clocks, mail.worker, mail.flow, &mail.bytes, true);
        }
        let Some(process) = &mut self.process else { return };
        for worker in &mut process.workers {
            if worker.poll_timeout().is_some_and(|at| at.as_micros() <= now) {
                worker.handle_timeout(read(clocks));
            }
        }
        self.sweep(clocks);
        self.collect(clocks);
    }

    /// Sweeps as the shell does: expired bindings leave memory, and are deleted on disk.
    fn sweep(&mut self, clocks: Clocks) {
        let Some(process) = &mut self.process else { return };
        if process.sweep_at.is_none_or(|at| at > clocks.now) {
            return;
        }
        process.sweep_at = None;
        let mut saves = Vec::new();
        process.shared.sweep(clocks.unix_ms, |aor, record| {
            let mut bytes = Vec::new();
            codec::encode(record, &mut bytes);
            saves.push(QueryKind::SaveBindings {
                aor: aor.into(),
                record: bytes.into(),
                version: record.version,
            });
        });
        if self.config.registrar.durability != sip_core::config::Durability::Memory {
            for kind in saves {
                self.backends.ask(clocks.now, 0, Query { id: None, kind });
            }
        }
    }

    /// Takes the output of the endpoints, until there is no more.
    fn collect(&mut self, clocks: Clocks) {
        let now = read(clocks);
        let Some(process) = &mut self.process else { return };
        let mut batch = core::mem::take(&mut self.batch);
        let (mut more, mut sent_on) = (true, false);
        while more {
            more = false;
            for worker in 0..process.workers.len() {
                let mut lost: Vec<Waiting> = Vec::new();
                while process.workers[worker].poll_transmit(&mut batch) {
                    more = true;
                    for item in batch.items() {
                        let message = batch.message(item);
                        sent_on |= is_to_next(&self.plan, item.to.remote, message);
                        if item.to.transport == Transport::Udp {
                            self.out.push_back(Output::Datagram {
                                from: SocketAddr::new(server_ip(self.number), SIP_PORT),
                                to: item.to.remote,
                                bytes: message.to_vec(),
                            });
                        } else {
                            let out = &mut |output| self.out.push_back(output);
                            lost.extend(process.conns.send(worker, item, message, &mut self.names, out));
                        }
                    }
                }
                for lost in lost {
                    more = true;
                    process.workers[worker].handle_undelivered(now, lost.to, &lost.message);
                }
                while let Some(query) = process.workers[worker].poll_query() {
                    if let QueryKind::Resolve { name, .. } = &query.kind {
                        self.names_asked.insert(name.clone(), clocks.now);
                    }
                    if query.id.is_some() {
                        self.asked.push_back(clocks.now);
                    }
                    self.backends.ask(clocks.now, worker, query);
                }
                while process.workers[worker].poll_event().is_some() {}
                while process.workers[worker].poll_alias().is_some() {}
            }
        }
        self.batch = batch;
        while self
            .asked
            .pop_front_if(|at| *at + LONGEST_QUESTION < clocks.now)
            .is_some()
        {}
        if let Some(next) = self.plan.next.filter(|next| sent_on && next.by_name) {
            let name = config::server_name(next.server).into_bytes();
            let asked = self.names_asked.get(name.as_slice());
            if asked.is_none_or(|asked| asked + NAME_SERVES < clocks.now) {
                let what = format!("S{} was last asked for at {asked:?}", next.server);
                self.faults.push(("stale name", what));
            }
        }
        if process.sweep_at.is_none() && process.shared.bindings() > 0 {
            process.sweep_at = Some(clocks.now + SWEEP_EVERY);
        }
    }
}

/// Whether the message is an INVITE outside of a dialog, to the server for foreign domains.
fn is_to_next(plan: &ServerPlan, to: SocketAddr, message: &[u8]) -> bool {
    let next = plan.next.map(|next| server_ip(next.server));
    message.starts_with(b"INVITE ") && next == Some(to.ip())
}

impl Node for Server {
    fn handle(&mut self, clocks: Clocks, input: Input<'_>) {
        self.seen = clocks.now;
        if self.retry_at.is_some_and(|at| at <= clocks.now) {
            self.start(clocks);
        }
        let Some(process) = &mut self.process else {
            // No process listens.
            if let Input::Opened { wire, .. } = input {
                self.out.push_back(Output::Close { wire });
            }
            return;
        };
        process.shared.expire_cached(clocks.now);
        let clocks = steady(&mut process.wall, clocks);
        match input {
            Input::Datagram { from, to, bytes } if to.port() == SIP_PORT => {
                self.datagram(clocks, from, bytes)
            }
            Input::Datagram { .. } | Input::Overheard { .. } => {}
            Input::Unreachable { to, bytes } => self.unreachable(clocks, to, bytes),
            Input::Opened { wire, peer, local } => {
                let Some(process) = &mut self.process else { return };
                if process.conns.is_opening(wire) {
                    let out = &mut |output| self.out.push_back(output);
                    process.conns.opened(wire, out);
                } else {
                    let worker = (hash([peer.to_string().as_bytes(), b""]) >> 8) as u16 % self.plan.workers;
                    process.conns.accept(wire, peer, local.port(), worker);
                }
            }
            Input::Bytes { wire, bytes } => self.bytes(clocks, wire, bytes),
            Input::Closed { wire } => self.closed(clocks, wire),
            Input::Timeout => self.timeout(clocks),
        }
        self.collect(clocks);
    }

    fn poll_output(&mut self) -> Option<Output> {
        self.out.pop_front()
    }

    fn poll_timeout(&self) -> Option<Micros> {
        let Some(process) = &self.process else {
            return self.retry_at;
        };
        let timers = process.workers.iter().filter_map(Endpoint::poll_timeout);
        let others = [
            process.mail.next_at(),
            process.sweep_at,
            self.backends.next_at(self.seen),
        ];
        timers
            .map(Instant::as_micros)
            .chain(others.into_iter().flatten())
            .min()
    }

    fn crash(&mut self, clocks: Clocks, power: bool) {
        self.process = None;
        self.retry_at = None;
        self.backends.crash(read(clocks), power);
    }

    fn restart(&mut self, clocks: Clocks) {
        self.start(clocks);
        self.collect(clocks);
    }

    fn trouble(&mut self, clocks: Clocks, trouble: &Trouble) {
        self.backends.trouble(clocks.now, trouble);
    }

    fn fault(&self) -> Option<(&'static str, String)> {
        let process = self.process.as_ref()?;
        if let Some(fault) = self.faults.first() {
            return Some(fault.clone());
        }
        let mut owners = self.asked.len() as u64;
        let mut timers = 0;
        for gauges in process.workers.iter().map(Endpoint::gauges) {
            // The retransmission timer and the one that ends the transaction; for a client also timer C.
            owners += 2 * gauges.server_transactions + 3 * gauges.client_transactions;
            timers += gauges.timers;
        }
        if timers > owners {
            let what = format!("{timers} timers, of at most {owners} for all that is held");
            return Some(("timers without owner", what));
        }
        self.over_limit(process).map(|what| ("limits", what))
    }

    fn leftovers(&self) -> Option<String> {
        let process = self.process.as_ref()?;
        let mut held = Vec::new();
        for worker in &process.workers {
            let gauges = worker.gauges();
            let counts = [
                gauges.server_transactions,
                gauges.client_transactions,
                gauges.transaction_bytes,
                gauges.parked_requests,
                gauges.parked_bytes,
                gauges.timers,
                gauges.flows,
            ];
            if !worker.is_idle() || counts.iter().any(|n| *n > 0) {
                held.push(format!("quiet: {}, {gauges:?}", worker.is_idle()));
            }
        }
        let bindings = process.shared.bindings();
        if bindings > 0 {
            held.push(format!("{bindings} bindings"));
        }
        (!held.is_empty()).then(|| held.join("; "))
    }

    fn end(&mut self) -> Option<String> {
        let process = self.process.take()?;
        let before = held();
        let fresh = self.workers(&process.shared);
        let fresh_bytes = held() - before;
        drop(fresh);
        // The memory that dropping frees is what they held, to the byte.
        let before = held();
        drop(process.workers);
        let kept = before - held() - fresh_bytes;
        let workers = i64::from(self.plan.workers);
        let limited = self.plan.limit.map_or(0, |_| LIMITED_KEPT);
        let small = MOST_KEPT.small + limited;
        let fits = kept.small <= workers * small && kept.large <= workers * MOST_KEPT.large;
        (!fits).then(|| {
            format!(
                "keeps {} bytes in small blocks and {} in pages, on {workers} workers; each may keep {} and {}",
                kept.small, kept.large, small, MOST_KEPT.large
            )
        })
    }
}

impl Server {
    /// The first gauge that is above its limit.
    fn over_limit(&self, process: &Process) -> Option<String> {
        let limits = &self.config.limits;
        // Admitted requests go on when the limit has been reached: each live one may get its first branch,
        // and each branch a CANCEL. Their messages and the final response are added.
        let begun = limits.held_transactions + limits.transactions * (1 + self.most_phones);
        let bytes = limits.transaction_bytes + limits.transactions * MOST_GROWTH * self.most_phones;
        let over = |what: &str, held: u64, limit: usize| {
            (held > limit as u64).then(|| format!("{held} {what}, and {limit} are allowed"))
        };
        let nonces = process.shared.nonces() as u64;
        let location = process.shared.location_bytes() as u64;
        let most_location = limits
            .location_bytes
            .saturating_add(limits.location_bytes / 8 + MOST_REGISTERED);
        let shared = over("nonces", nonces, limits.nonces)
            .or_else(|| over("bytes of registrations", location, most_location));
        shared.or_else(|| {
            process.workers.iter().map(Endpoint::gauges).find_map(|gauges| {
                let held = gauges.server_transactions + gauges.client_transactions;
                [
                    ("live transactions", gauges.live_transactions, limits.transactions),
                    (
                        "server transactions",
                        gauges.server_transactions,
                        limits.held_transactions,
                    ),
                    ("transactions", held, begun),
                    ("bytes of transactions", gauges.transaction_bytes, bytes),
                    ("parked requests", gauges.parked_requests, limits.parked_requests),
                    ("parked bytes", gauges.parked_bytes, limits.parked_bytes),
                    ("entries of the resolver", gauges.dns_entries, limits.dns_entries),
                    ("flows", gauges.flows, limits.flows),
                ]
                .into_iter()
                .find_map(|(what, held, limit)| over(what, held, limit))
            })
        })
    }

    /// Handles ICMP: the kernel informs the worker whose socket sent the datagram.
    fn unreachable(&mut self, clocks: Clocks, to: SocketAddr, bytes: &[u8]) {
        let Some(process) = &mut self.process else { return };
        let flow = Flow::udp(to);
        // All workers send from one address, so only the message shows which of them sent it.
        for worker in &mut process.workers {
            worker.handle_undelivered(read(clocks), flow, bytes);
        }
    }
}

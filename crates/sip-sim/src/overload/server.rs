//! The server: the real core, its queues in the kernel, and a loop that takes time for each message.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use sip_core::config::{
    Abuse, Action, Algorithm, AuthPolicy, Config, Destinations, Domain, Durability, Listener, Nat,
    RegistrarPolicy, Relay, RelayTarget, Route, StateMode, Timers, When,
};
use sip_core::endpoint::{Endpoint, Keys};
use sip_core::id::{ListenerId, WorkerId};
use sip_core::limits::Limits;
use sip_core::overload::{Cancels, Queue, Schedule, is_cancel, queue_of};
use sip_core::time::{Instant, Millis, Now};
use sip_core::transport::{Flow, NextHop, Proof, TransmitBatch, Transport};

use super::{CALLEE, Plan, SERVER};
use crate::cells::Cells;
use crate::clock::Micros;
use crate::rng::Rng;

/// Microseconds for a message that comes, and for one that leaves.
const RECEIVING: Micros = 4;
const SENDING: Micros = 5;
/// Messages of one batch.
const BATCH: usize = 64;
/// Bytes asked of the kernel for the queue of established calls, for each queue of new work, and those that a datagram
/// takes of them: one of up to 640 bytes, on loopback.
const BYTES: u64 = 4 << 20;
const NEW_WORK_BYTES: u64 = 1 << 20;
const BYTES_EACH: u64 = 640;
/// As the shell has them by default.
const CANCEL_WAIT: Millis = Millis(200);
/// The wall clock at the begin.
const UNIX_MS: u64 = 1_700_000_000_000;

#[derive(Debug)]
struct Arrived {
    at: Micros,
    from: SocketAddr,
    bytes: Vec<u8>,
}

/// What a turn did.
#[derive(Debug)]
pub(super) struct Turn {
    pub(super) took: Micros,
    pub(super) sent: Vec<(SocketAddr, Vec<u8>)>,
    /// When the next turn begins, if nothing comes before.
    pub(super) next: Option<Micros>,
}

pub(super) struct Server {
    endpoint: Endpoint,
    has_queues: bool,
    queues: [VecDeque<Arrived>; 3],
    room: [usize; 3],
    calls: Schedule,
    requests: Schedule,
    cancels: Cancels,
    /// When the present turn ends.
    busy_until: Micros,
    /// When the next turn is due; an event of another time is one that was overtaken.
    due: Option<Micros>,
    batch: TransmitBatch,
    pub(super) dropped: [Vec<Micros>; 3],
    pub(super) waited: Vec<(Micros, Micros)>,
    pub(super) busy: Micros,
}

fn place(queue: Queue) -> usize {
    match queue {
        Queue::Established => 0,
        Queue::Calls => 1,
        Queue::Requests => 2,
    }
}

fn now(at: Micros) -> Now {
    Now {
        instant: Instant::from_micros(at),
        unix_ms: UNIX_MS + at / 1_000,
    }
}

impl Server {
    pub(super) fn new(plan: &Plan, rng: &mut Rng) -> Self {
        let mut key = || core::array::from_fn(|_| rng.next_u64() as u8);
        let keys = Keys {
            domain_secret: key(),
            seed: key(),
        };
        let shared = Arc::new(Cells::new((1, 2), 64, UNIX_MS));
        let schedule = || Schedule::new(NEW_WORK_BYTES as usize, Instant::from_micros(0));
        let room = [BYTES, NEW_WORK_BYTES, NEW_WORK_BYTES].map(|bytes| (bytes / BYTES_EACH) as usize);
        Self {
            endpoint: Endpoint::new(&config(plan.is_stateful), &keys, WorkerId(0), shared),
            has_queues: plan.has_queues,
            queues: Default::default(),
            room,
            calls: schedule(),
            requests: schedule(),
            cancels: Cancels::new(CANCEL_WAIT),
            busy_until: 0,
            due: None,
            batch: TransmitBatch::new(),
            dropped: Default::default(),
            waited: Vec::new(),
            busy: 0,
        }
    }

    /// A datagram comes to its queue, or is dropped. Returns when a turn is to begin for it, if none is due by then.
    pub(super) fn arrive(&mut self, at: Micros, from: SocketAddr, bytes: Vec<u8>) -> Option<Micros> {
        let queue = if self.has_queues {
            queue_of(&bytes)
        } else {
            Queue::Established
        };
        let number = place(queue);
        if self.queues[number].len() >= self.room[number] {
            self.dropped[number].push(at);
            return None;
        }
        self.queues[number].push_back(Arrived { at, from, bytes });
        match queue {
            Queue::Established => {}
            Queue::Calls => self.calls.note_ready(),
            Queue::Requests => self.requests.note_ready(),
        }
        let begins = at.max(self.busy_until);
        if self.due.is_some_and(|due| due <= begins) {
            return None;
        }
        self.due = Some(begins);
        self.due
    }

    /// Does a turn of the loop. `None`: none is due.
    pub(super) fn turn(&mut self, at: Micros, slowness: u32) -> Option<Turn> {
        if self.due != Some(at) {
            return None;
        }
        let mut handled = 0;
        let first = self.read(at, Queue::Established, BATCH);
        let mut others_wait = first.len() == BATCH;
        for arrived in first {
            let flow = flow(arrived.from);
            if self.has_queues
                && is_cancel(&arrived.bytes)
                && !self.endpoint.knows_invite_of(flow, &arrived.bytes)
                && self
                    .cancels
                    .try_hold(&mut self.calls, now(at), flow, false, &arrived.bytes)
            {
                continue;
            }
            self.give(at, flow, &arrived.bytes);
            handled += 1;
        }
        for queue in Queue::NEW_WORK {
            let (count, is_full) = self.read_new_work(at, queue, (handled, others_wait));
            handled += count;
            others_wait |= is_full;
        }
        if self
            .endpoint
            .poll_timeout()
            .is_some_and(|due| due <= Instant::from_micros(at))
        {
            self.endpoint.handle_timeout(now(at));
        }
        let sent = self.sent();
        let took = handled as Micros * RECEIVING + sent.len() as Micros * SENDING;
        let took = (took * Micros::from(slowness) / 100).max(1);
        self.busy += took;
        self.busy_until = at + took;
        let has_more = self.queues.iter().any(|queue| !queue.is_empty()) || !self.cancels.is_empty();
        let timer = self.endpoint.poll_timeout().map(Instant::as_micros);
        self.due = if has_more {
            Some(self.busy_until)
        } else {
            timer.map(|timer| timer.max(self.busy_until))
        };
        Some(Turn {
            took,
            sent,
            next: self.due,
        })
    }

    fn read(&mut self, at: Micros, queue: Queue, most: usize) -> Vec<Arrived> {
        let waiting = &mut self.queues[place(queue)];
        let batch: Vec<Arrived> = waiting.drain(..most.min(waiting.len())).collect();
        if queue == Queue::Calls {
            self.waited
                .extend(batch.iter().map(|arrived| (at, at - arrived.at)));
        }
        batch
    }

    /// Reads a batch of new work, if it has its turn: how many messages, and whether there may be more.
    fn read_new_work(
        &mut self,
        at: Micros,
        queue: Queue,
        (others, others_wait): (usize, bool),
    ) -> (usize, bool) {
        let schedule = match queue {
            Queue::Established => return (0, false),
            Queue::Calls => &mut self.calls,
            Queue::Requests => &mut self.requests,
        };
        let (mut handled, mut is_full, mut is_empty) = (0, false, false);
        let most = schedule.turn(others, others_wait).min(BATCH);
        if most > 0 {
            let batch = self.read(at, queue, most);
            (is_full, is_empty) = (batch.len() == most, batch.is_empty());
            let schedule = match queue {
                Queue::Requests => &mut self.requests,
                Queue::Established | Queue::Calls => &mut self.calls,
            };
            let bytes = batch.iter().map(|arrived| arrived.bytes.len() as u64).sum();
            if let Some(bytes) = schedule.note_read(now(at).instant, Some(batch.len()), bytes, is_full) {
                let number = place(queue);
                self.room[number] = (bytes / BYTES_EACH) as usize;
                // What has waited longest gives way.
                let surplus = self.queues[number].len().saturating_sub(self.room[number]);
                self.queues[number].drain(..surplus);
                self.dropped[number].extend(std::iter::repeat_n(at, surplus));
                schedule.note_discarded(surplus);
            }
            handled += batch.len();
            for arrived in batch {
                self.give(at, flow(arrived.from), &arrived.bytes);
            }
        }
        if queue == Queue::Calls {
            while let Some(cancel) = self.cancels.next(&self.calls, now(at), is_empty) {
                self.give(at, cancel.flow, &cancel.bytes);
                handled += 1;
            }
            if !self.cancels.is_empty() {
                self.calls.note_ready();
            }
        }
        (handled, is_full)
    }

    fn give(&mut self, at: Micros, flow: Flow, bytes: &[u8]) {
        let _ = self.endpoint.handle_message(now(at), flow, bytes);
    }

    fn sent(&mut self) -> Vec<(SocketAddr, Vec<u8>)> {
        let mut sent = Vec::new();
        while self.endpoint.poll_transmit(&mut self.batch) {
            let messages = self.batch.items().iter();
            sent.extend(messages.map(|item| (item.to.remote, self.batch.message(item).to_vec())));
        }
        while self.endpoint.poll_query().is_some() || self.endpoint.poll_event().is_some() {}
        sent
    }
}

fn flow(remote: SocketAddr) -> Flow {
    Flow {
        transport: Transport::Udp,
        listener: ListenerId(0),
        remote,
        conn: None,
        proof: Proof::None,
    }
}

/// One UDP listener, one domain without authentication, every call to the callee.
fn config(is_stateful: bool) -> Config {
    let address = SocketAddr::from(SERVER);
    let text = |text: String| text.into_bytes().into_boxed_slice();
    let callee = format!("sip:{}", SocketAddr::from(CALLEE));
    let routes = NextHop::parse(callee.as_bytes()).map(|hop| Route {
        when: When::default(),
        action: Action::Relay(Relay::to(RelayTarget::Uri(hop))),
        auth: None,
        state: None,
        record_route: true,
    });
    Config {
        server_header: Box::default(),
        listeners: vec![Listener {
            transport: Transport::Udp,
            address,
            prefix_len: 24,
            sent_by: text(address.to_string()),
            preloaded_route: false,
            any_page: false,
            nat: Nat::Auto,
        }],
        own_hosts: vec![],
        domains: vec![Domain {
            name: text("example.com".to_owned()),
            aliases: vec![],
            auth: AuthPolicy {
                realm: text("example.com".to_owned()),
                methods: vec![],
                algorithms: vec![Algorithm::Md5],
                nonce_lifetime_s: 300,
                strict_uri: false,
            },
        }],
        routes: routes.into_iter().collect(),
        groups: vec![],
        state: if is_stateful {
            StateMode::Transaction
        } else {
            StateMode::Stateless
        },
        timers: Timers::default(),
        limits: Limits::default(),
        registrar: RegistrarPolicy {
            min_expires_s: 60,
            default_expires_s: 3_600,
            max_expires_s: 7_200,
            durability: Durability::Memory,
        },
        pings: None,
        trust: vec![],
        trust_names: vec![],
        destinations: Destinations::default(),
        abuse: Abuse::default(),
        credentials_deadline_ms: 3_000,
        credentials_unavailable: 503,
        workers: 1,
        node_id: 1,
    }
}

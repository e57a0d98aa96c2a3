//! The loop of one worker.
//!
//! Each turn, in this order:
//! 1. wait;
//! 2. read the clock;
//! 3. receive: datagrams in one batch for each socket, connections up to a bound, the mailbox, and, if all that was
//!    little, new work by UDP;
//! 4. fire timers;
//! 5. send the core's messages;
//! 6. pass on queries and events;
//! 7. post messages for other workers.
//!
//! No message writes anything that other threads read: counters are published a few times a second.

mod core;
mod new_work;
mod receive;
mod transmit;

pub use self::core::{Core, EventSink, QuerySink};
use new_work::NewWork;
use receive::MisroutedRate;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use sip_core::activity::{Activity, Component};
use sip_core::config::Config;
use sip_core::event::{Calls, Counters, Event, Gauges};
use sip_core::id::{ListenerId, WorkerId};
use sip_core::overload::Queue;
use sip_core::query::Query;
use sip_core::time::{Instant, Millis, Now};
use sip_core::transport::{TransmitBatch, Transport};

use crate::bind::{DatagramSockets, WorkerSockets};
use crate::clock::Clock;
use crate::counters::{NetCounters, NetGauges};
use crate::cpu::{CpuSplit, Meter};
use crate::epoll::{Epoll, EventList, Interest};
use crate::hub::Hub;
use crate::mailbox::{Block, Inbox, MailboxReceiver};
use crate::memory::Peak;
use crate::settings::Settings;
use crate::tcp::{Naming, Serving, StreamService, Streams, TcpListener};
use crate::udp::{Backlog, IcmpErrors, RecvBatch, SendBatch, UdpSocket};

/// Events taken from the kernel in one turn.
const EVENTS_PER_TURN: usize = 256;

/// Kinds of tokens, in the highest byte. The meaning of the rest depends on the kind.
mod token {
    pub(super) const KIND: u64 = 0xff << 56;
    pub(super) const WAKER: u64 = 1 << 56;
    pub(super) const UDP: u64 = 2 << 56;
    pub(super) const LISTENER: u64 = 3 << 56;
    pub(super) const CONNECTION: u64 = 4 << 56;
    pub(super) const CALLS: u64 = 5 << 56;
    pub(super) const REQUESTS: u64 = 6 << 56;
}

/// The values that a worker publishes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Time of the snapshot.
    pub at: Now,
    /// The core's counts.
    pub counters: Counters,
    /// Final responses to INVITEs by code, and the times that callers waited.
    pub calls: Calls,
    /// The core's present values.
    pub gauges: Gauges,
    /// The sockets' counts.
    pub net: NetCounters,
    /// The sockets' present values.
    pub net_gauges: NetGauges,
    /// The CPU time by component, if it is measured.
    pub cpu: CpuSplit,
}

/// The worker's latest [`Snapshot`], for any thread. While the worker is busy, the snapshot is at most the
/// publish interval old.
#[derive(Clone, Debug, Default)]
pub struct Published(Arc<Mutex<Snapshot>>);

impl Published {
    /// A copy of the latest snapshot.
    pub fn get(&self) -> Snapshot {
        *self.0.lock()
    }
}

/// The reason why a worker returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// All workers got the order to drain, and all of them finished their work.
    Drained,
    /// The worker got the order to drain, and the deadline passed first.
    Deadline,
    /// The worker got the order to stop.
    Stopped,
}

/// The parts of a worker.
#[derive(Debug)]
pub struct Parts<C, Q, E> {
    /// The worker's number.
    pub worker: WorkerId,
    /// The worker's protocol engine.
    pub core: C,
    /// The configuration from which the engine and the sockets were made.
    pub config: Arc<Config>,
    /// Bounds and time-outs.
    pub settings: Settings,
    /// The worker's sockets.
    pub sockets: WorkerSockets,
    /// For each listener of the configuration, what its connections need besides TCP. A missing entry counts
    /// as none.
    pub services: Vec<StreamService>,
    /// The worker's mailbox.
    pub mailbox: MailboxReceiver,
    /// The mailboxes of all workers.
    pub hub: Hub,
    /// The worker's clock; all workers' clocks have one origin.
    pub clock: Clock,
    /// Takes the core's queries.
    pub queries: Q,
    /// Takes the core's events.
    pub events: E,
    /// A number that differs between processes, so that connection numbers of an earlier process name
    /// nothing.
    pub seed: u32,
}

/// A datagram socket with its buffers.
#[derive(Debug)]
struct Udp {
    listener: ListenerId,
    socket: UdpSocket,
    backlog: Backlog,
    waits_for_room: bool,
    kernel_drops: u32,
    /// Whether the last batch of this turn was full, so that more may wait.
    has_more: bool,
    /// The queues of new work, if there are any.
    new_work: Option<NewWork>,
    /// Indexes of messages of the present batch that leave by this socket.
    outgoing: Vec<u32>,
}

impl Udp {
    /// The socket of a queue.
    fn of(&self, queue: Queue) -> Option<&UdpSocket> {
        match queue {
            Queue::Established => Some(&self.socket),
            Queue::Calls | Queue::Requests => self.new_work.as_ref()?.socket(queue),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Running,
    Draining { until: Instant },
    Stopping,
}

/// One worker: sockets, connections, protocol engine. [`Worker::run`] is its thread.
#[derive(Debug)]
pub struct Worker<C, Q, E> {
    id: WorkerId,
    core: C,
    settings: Settings,
    epoll: Arc<Epoll>,
    ready: EventList,
    /// The event with which the next turn begins, if this turn had taken enough.
    first_ready: Option<usize>,
    clock: Clock,
    udp: Vec<Udp>,
    /// For each listener of the configuration, its index in `udp`.
    udp_of: Vec<Option<usize>>,
    received: RecvBatch,
    strays: MisroutedRate,
    sending: SendBatch,
    icmp: IcmpErrors,
    streams: Streams,
    mailbox: MailboxReceiver,
    inbox: Inbox,
    hub: Hub,
    /// For each worker, this turn's messages for it.
    outboxes: Vec<Block>,
    out: TransmitBatch,
    /// Indexes of messages of `out` that could not be sent.
    failed: Vec<u32>,
    lost: Block,
    queries: Vec<Query>,
    query_sink: Q,
    events: Vec<Event>,
    /// Next hops whose failure was announced to the other workers, and when.
    failed_hops: Vec<(SocketAddr, Instant)>,
    event_sink: E,
    counters: NetCounters,
    /// Measures the CPU time by component.
    meter: Meter,
    /// The observer of this turn: the meter, if the turn is measured.
    activity: Activity,
    published: Published,
    publish_at: Instant,
    /// Whether something happened since the last publication.
    is_unpublished: bool,
    peak: Peak,
    /// Whether the next turn must not wait: work is left for which no event will come.
    again: bool,
    /// The time at which the listeners that could not accept are registered again.
    accept_again_at: Option<Instant>,
    phase: Phase,
}

impl<C: Core, Q: QuerySink, E: EventSink> Worker<C, Q, E> {
    /// Makes a worker from its parts and registers its sockets.
    pub fn new(parts: Parts<C, Q, E>) -> io::Result<Self> {
        let Parts {
            worker,
            core,
            config,
            settings,
            sockets,
            services,
            mailbox,
            hub,
            mut clock,
            queries,
            events,
            seed,
        } = parts;
        let epoll = Arc::new(Epoll::new()?);
        epoll.add(mailbox.waker(), token::WAKER, Interest::Read)?;
        let now = clock.read();
        let udp = register_udp(sockets.udp, &epoll, &settings, now.instant)?;
        let place = |listener| udp.iter().position(|udp| udp.listener == ListenerId(listener));
        let udp_of = (0..=u16::MAX).take(config.listeners.len()).map(place).collect();
        let serving = register_listeners(sockets.tcp, services, &epoll)?;
        let streams = Streams::new(
            naming(worker, seed),
            &config,
            &settings,
            serving,
            Arc::clone(&epoll),
            Arc::clone(hub.accepted()),
            now.instant.as_millis(),
        );
        Ok(Self {
            id: worker,
            core,
            epoll,
            ready: EventList::new(EVENTS_PER_TURN),
            first_ready: None,
            clock,
            udp,
            udp_of,
            received: RecvBatch::new(settings.udp_batch),
            strays: MisroutedRate::default(),
            sending: SendBatch::new(settings.udp_batch),
            icmp: IcmpErrors::new(),
            streams,
            mailbox,
            inbox: Inbox::default(),
            outboxes: (0..hub.workers()).map(|_| Block::default()).collect(),
            hub,
            out: TransmitBatch::new(),
            failed: Vec::new(),
            lost: Block::default(),
            queries: Vec::new(),
            query_sink: queries,
            events: Vec::new(),
            failed_hops: Vec::new(),
            event_sink: events,
            counters: NetCounters::default(),
            meter: Meter::new(seed),
            activity: Activity::default(),
            published: Published::default(),
            publish_at: now.instant,
            is_unpublished: true,
            peak: Peak::default(),
            again: true,
            accept_again_at: None,
            phase: Phase::Running,
            settings,
        })
    }

    /// The handle by which other threads read this worker's counters.
    pub fn published(&self) -> Published {
        self.published.clone()
    }

    /// Runs the worker until an order to stop or drain. An error is one of the event loop itself, after which
    /// the worker cannot go on.
    pub fn run(mut self) -> io::Result<Ended> {
        let mut now = self.clock.read();
        loop {
            let is_measured = self.meter.begin_wait();
            self.wait(now)?;
            if is_measured {
                let activity = self.meter.begin_turn();
                self.observe(&activity);
            }
            now = self.clock.read();
            let ended = self.turn(now);
            if is_measured {
                self.meter.end_turn();
                self.observe(&Activity::default());
            }
            if let Some(ended) = ended {
                return Ok(ended);
            }
        }
    }

    /// Makes `activity` the observer of the worker's work, from now on.
    fn observe(&mut self, activity: &Activity) {
        self.activity = activity.clone();
        self.core.observe(activity.clone());
        self.streams.observe(activity.clone());
    }

    /// Sleeps until there is something to do.
    fn wait(&mut self, now: Now) -> io::Result<()> {
        let mut timeout_us = self.sleep_us(now);
        if timeout_us != Some(0) && !self.mailbox.prepare_sleep() {
            timeout_us = Some(0);
        }
        let result = self.epoll.wait(&mut self.ready, timeout_us);
        self.mailbox.awake();
        result
    }

    /// Microseconds until something is due; `None` if nothing is.
    fn sleep_us(&self, now: Now) -> Option<u64> {
        if self.again {
            return Some(0);
        }
        let publish = self.is_unpublished.then_some(self.publish_at);
        let streams = self
            .streams
            .next_ms()
            .map(|ms| Instant::from_micros(ms.saturating_mul(1000)));
        let drained = match self.phase {
            Phase::Running => None,
            Phase::Draining { until } => Some(until),
            Phase::Stopping => Some(now.instant),
        };
        let next = [
            self.core.poll_timeout(),
            streams,
            publish,
            drained,
            self.accept_again_at,
        ]
        .into_iter()
        .flatten()
        .min()?;
        Some(next.micros_since(now.instant))
    }

    /// Does everything after the wait. Returns why the worker ends, if it ends.
    fn turn(&mut self, now: Now) -> Option<Ended> {
        self.again = false;
        self.counters.turns += 1;
        if self.accept_again_at.is_some_and(|at| at <= now.instant) {
            self.accept_again();
        }
        let before = self.counters.udp_received + self.counters.stream_received;
        self.begin_streams(now);
        self.receive_ready(now);
        self.again |= self.streams.has_waiting();
        let mail = self.receive_mail(now);
        // Handshakes that wait are new work themselves.
        let others_wait = self.first_ready.is_some() || mail >= self.settings.udp_batch;
        let received = self.counters.udp_received + self.counters.stream_received - before;
        self.receive_new_work(now, received as usize + mail, others_wait);
        if self.core.poll_timeout().is_some_and(|due| due <= now.instant) {
            self.core.handle_timeout(now);
        }
        let now_ms = now.instant.as_millis();
        if self.streams.next_ms().is_some_and(|due| due <= now_ms) {
            let before = self.activity.enter(Component::Timers);
            self.streams.advance(now_ms, &mut self.counters);
            self.activity.enter(before);
        }
        // Done before the response leaves: the peer's next message may need the alias.
        while let Some((conn, address)) = self.core.poll_alias() {
            self.streams.alias(conn, address);
        }
        self.transmit(now);
        self.pass_on(now);
        self.post_outboxes(now);
        let ended = self.ended(now);
        if ended.is_some() {
            self.streams.part(now_ms, &mut self.counters);
        }
        if ended.is_some() || now.instant >= self.publish_at {
            self.publish(now);
        } else {
            self.is_unpublished = true;
        }
        ended
    }

    /// Passes queries and events to the program.
    fn pass_on(&mut self, now: Now) {
        let before = self.activity.enter(Component::Store);
        while let Some(query) = self.core.poll_query() {
            self.queries.push(query);
        }
        if !self.queries.is_empty() {
            self.query_sink.submit(self.id, &mut self.queries);
            self.queries.clear();
        }
        self.activity.enter(before);
        while let Some(event) = self.core.poll_event() {
            self.events.push(event);
        }
        if !self.events.is_empty() {
            self.announce_failed_hops(now);
            self.event_sink.record(self.id, &mut self.events);
            self.events.clear();
        }
        for failure in self.streams.take_failures() {
            self.event_sink.tls_failed(self.id, &failure);
        }
        for page in self.streams.take_foreign() {
            self.event_sink.origin_refused(self.id, &page);
        }
    }

    fn begin_drain(&mut self, now: Now, deadline_ms: u32) {
        for listener in self.streams.listeners() {
            // If this fails, closing the listener does the same, later.
            let _ = self.epoll.remove(listener);
        }
        self.streams.stop_accepting();
        self.accept_again_at = None;
        self.core.drain();
        let until = now.instant + Millis(deadline_ms);
        self.phase = match self.phase {
            Phase::Running => Phase::Draining { until },
            Phase::Draining { until: earlier } => Phase::Draining {
                until: earlier.min(until),
            },
            Phase::Stopping => Phase::Stopping,
        };
    }

    fn ended(&self, now: Now) -> Option<Ended> {
        match self.phase {
            Phase::Running => None,
            Phase::Stopping => Some(Ended::Stopped),
            Phase::Draining { until } => {
                let waits = self.again || self.udp.iter().any(|udp| !udp.backlog.is_empty());
                let done = !waits && self.core.is_idle() && !self.streams.has_unsent();
                if self.hub.is_done(self.id, done) {
                    Some(Ended::Drained)
                } else {
                    (now.instant >= until).then_some(Ended::Deadline)
                }
            }
        }
    }

    fn publish(&mut self, now: Now) {
        for udp in &mut self.udp {
            if let Ok(drops) = udp.socket.receive_drops() {
                self.counters.udp_kernel_drops += u64::from(drops.wrapping_sub(udp.kernel_drops));
                udp.kernel_drops = drops;
            }
            if let Some(new_work) = &mut udp.new_work {
                let [calls, requests] = new_work.new_drops();
                self.counters.udp_calls_dropped += calls;
                self.counters.udp_requests_dropped += requests;
            }
        }
        self.counters.udp_truncated = self.received.truncated();
        let (connections, stream_bytes) = self.streams.load();
        let gauges = self.core.gauges();
        let cpu = self.meter.read();
        self.peak.note(&gauges);
        *self.published.0.lock() = Snapshot {
            at: now,
            counters: self.core.counters(),
            calls: self.core.calls(),
            gauges,
            net: self.counters,
            net_gauges: NetGauges {
                connections: connections as u64,
                stream_bytes: stream_bytes as u64,
                handshakes_waiting: self.streams.handshakes_waiting() as u64,
                udp_waiting: self.udp.iter().map(|udp| udp.backlog.len() as u64).sum(),
            },
            cpu,
        };
        self.publish_at = now.instant + Millis(self.settings.publish_interval_ms);
        self.is_unpublished = self.meter.has_more();
    }
}

/// The numbering of a worker's connections.
fn naming(worker: WorkerId, seed: u32) -> Naming {
    let token = token::CONNECTION;
    Naming { worker, token, seed }
}

fn register_listeners(
    listeners: Vec<TcpListener>,
    services: Vec<StreamService>,
    epoll: &Epoll,
) -> io::Result<Serving> {
    for (listener, index) in listeners.iter().zip(0u64..) {
        epoll.add(listener, token::LISTENER | index, Interest::Read)?;
    }
    Ok(Serving { listeners, services })
}

fn register_udp(
    sockets: Vec<DatagramSockets>,
    epoll: &Epoll,
    settings: &Settings,
    now: Instant,
) -> io::Result<Vec<Udp>> {
    let register = |(sockets, number): (DatagramSockets, u64)| {
        epoll.add(&sockets.first, token::UDP | number, Interest::Read)?;
        for (socket, kind) in sockets
            .new_work
            .iter()
            .flatten()
            .zip([token::CALLS, token::REQUESTS])
        {
            epoll.add(socket, kind | number, Interest::Read)?;
        }
        Ok(Udp {
            listener: sockets.listener,
            socket: sockets.first,
            backlog: Backlog::new(settings.udp_backlog_bytes),
            waits_for_room: false,
            kernel_drops: 0,
            has_more: false,
            new_work: sockets.new_work.map(|queues| NewWork::new(queues, settings, now)),
            outgoing: Vec::new(),
        })
    };
    sockets.into_iter().zip(0u64..).map(register).collect()
}

/// Whether messages of this transport go through [`Streams`].
fn is_stream(transport: Transport) -> bool {
    match transport {
        Transport::Tcp | Transport::Tls | Transport::Ws | Transport::Wss => true,
        Transport::Udp => false,
    }
}

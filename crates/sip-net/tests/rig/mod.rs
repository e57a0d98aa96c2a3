//! Workers with a stand-in for the protocol engine, which does what the first word of a message says and
//! reports what it received.

#![allow(
    dead_code,
    unreachable_pub,
    missing_debug_implementations,
    reason = "each test file uses a part of the rig"
)]
#![allow(
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "a test that cannot go on fails"
)]

pub mod certificates;
mod late;
mod net;
pub mod websocket;

pub use late::unless_late;
pub use net::{
    PATIENCE, accept, any_port, closed, closed_to_datagrams, connect, connect_from, expect, framed, listen,
    own_ip, read_to_end, receive, udp_client, wait_for_delivery, write,
};

use std::collections::{BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant as StdInstant};

use sip_core::activity::{Activity, Component};
use sip_core::admission::{Source, SourceLists};
use sip_core::config::{Config, Durability, Listener, Nat, RegistrarPolicy, StateMode, Timers};
use sip_core::endpoint::Handled;
use sip_core::event::{Calls, Counters, Event, Gauges};
use sip_core::id::{ConnId, ListenerId, QueryId, WorkerId};
use sip_core::limits::Limits;
use sip_core::query::{Query, QueryKind, QueryResult, RecordKind};
use sip_core::time::{Instant, Millis, Now};
use sip_core::transport::framing::{FramingError, FramingFault};
use sip_core::transport::{Flow, Proof, TransmitBatch, Transport};
use sip_net::bind::{WorkerSockets, bind_all};
use sip_net::clock::Clock;
use sip_net::hub::Hub;
use sip_net::mailbox::Control;
use sip_net::settings::Settings;
use sip_net::tcp::{ForeignPage, StreamService, TlsFailure};
use sip_net::tls::TlsError;
use sip_net::worker::{Core, Ended, EventSink, Parts, Published, QuerySink, Snapshot, Worker};

/// Milliseconds that no test waits.
const NEVER_MS: u32 = 600_000;

/// Settings with time-outs that are never reached, however slow the machine is: each test sets those that it
/// is about. (An end that the peer does not take part in still comes soon.)
pub fn settings() -> Settings {
    Settings {
        connect_timeout_ms: NEVER_MS,
        handshake_timeout_ms: NEVER_MS,
        first_message_timeout_ms: NEVER_MS,
        message_timeout_ms: NEVER_MS,
        write_timeout_ms: NEVER_MS,
        peer_timeout_ms: NEVER_MS,
        per_call_idle_ms: NEVER_MS,
        ws_ping_ms: NEVER_MS,
        ..Settings::default()
    }
}

/// An input that an engine reports.
#[derive(Clone, Debug, PartialEq)]
pub enum Report {
    Message {
        worker: u16,
        flow: Flow,
        text: String,
    },
    Undelivered {
        worker: u16,
        to: Flow,
        text: String,
    },
    Fault {
        worker: u16,
        fault: FramingFault,
    },
    Closed {
        worker: u16,
        conn: ConnId,
    },
    HopFailed {
        worker: u16,
        destination: SocketAddr,
    },
    Answer {
        worker: u16,
        id: QueryId,
    },
    Timeout {
        worker: u16,
    },
    Reconfigured {
        worker: u16,
    },
    Drained {
        worker: u16,
    },
    /// It waits for [`Rig::release`].
    Held {
        worker: u16,
    },
    /// Reported to the program, not to the engine.
    TlsFailed {
        flow: Flow,
        outbound: bool,
        error: TlsError,
    },
}

/// The stand-in. First words (of a datagram, or of the start line of a framed message):
/// - `ECHO`: sends the message back on its flow.
/// - `AT n rest`: hands the message to worker n, which obeys `rest`.
/// - `OWNER n rest`: hands the message to worker n, which sends `rest` back, preceded by its number.
/// - `CLOSE`: sends `BYE` back and closes.
/// - `DATAGRAM address text`: sends text by the listener that the message came by.
/// - `SEND address text`: sends text by listener 1 (TCP) to the address.
/// - `STALE address text`: the same on a connection that is long gone.
/// - `VIA n address text`: sends text by listener n to the address.
/// - `CALL n id address text`: the same in a framed message of that Call-ID.
/// - `GUESS n address text`: as `VIA`, on the first connection of the process.
/// - `WHOLE`: sends the whole message back on its flow, body and all.
/// - `FLOOD n`: sends the flow n messages of 1,000 bytes.
/// - `ASK`: asks a back-end. `TIMER ms`: starts a timer. `BUSY`, `QUIET`: has work, has none.
/// - `ALIAS address`: the flow's connection is to be found by that address too.
/// - `SPIN n`: sends the message back; computes n million steps, as authentication, if the turn is measured.
/// - `HOLD`: does nothing until [`Rig::release`], nor does its worker.
/// - `FAIL address`, `FAIL-CONTACT address`: has the event that a next hop, or a contact, failed, twice.
/// - `WATCH`: from now on, reports connections that are closed.
pub struct Fake {
    worker: WorkerId,
    told: Sender<Report>,
    transports: Vec<Transport>,
    out: VecDeque<(Flow, Vec<u8>)>,
    queries: u32,
    events: Vec<Event>,
    due: Option<Instant>,
    busy: bool,
    tells_closed: bool,
    aliases: Vec<(ConnId, SocketAddr)>,
    standing: Arc<SourceLists>,
    activity: Activity,
    gate: Arc<Mutex<Receiver<()>>>,
}

impl Fake {
    fn obey(&mut self, now: Now, flow: Flow, text: &str) -> Handled {
        let mut words = text.splitn(3, ' ');
        let (verb, one, rest) = (
            words.next().unwrap_or(""),
            words.next().unwrap_or(""),
            words.next().unwrap_or(""),
        );
        match verb {
            "ECHO" => self.out.push_back((flow, text.as_bytes().to_vec())),
            "AT" => {
                let owner = WorkerId(one.parse().unwrap());
                if owner != self.worker {
                    return Handled::HandOver(owner);
                }
                return self.obey(now, flow, rest);
            }
            "OWNER" => {
                let owner = WorkerId(one.parse().unwrap());
                if owner != self.worker {
                    return Handled::HandOver(owner);
                }
                self.out
                    .push_back((flow, format!("{} {rest}", owner.0).into_bytes()));
            }
            "CLOSE" => {
                self.out.push_back((flow, b"BYE".to_vec()));
                return Handled::Close;
            }
            "DATAGRAM" => {
                let to = Flow {
                    remote: one.parse().unwrap(),
                    ..flow
                };
                self.out.push_back((to, rest.as_bytes().to_vec()));
            }
            "SEND" | "STALE" => {
                let conn = (verb == "STALE").then_some(sip_core::id::ConnId {
                    worker: WorkerId(0),
                    slot: 7,
                    generation: 7,
                });
                let remote = one.parse().unwrap();
                let to = Flow {
                    transport: Transport::Tcp,
                    listener: ListenerId(1),
                    remote,
                    conn,
                    proof: Proof::None,
                };
                self.out.push_back((to, rest.as_bytes().to_vec()));
            }
            "VIA" | "GUESS" => {
                let (address, text) = rest.split_once(' ').unwrap();
                let mut to = self.by_listener(one, address);
                to.conn = (verb == "GUESS").then_some(FIRST_CONNECTION);
                self.out.push_back((to, text.as_bytes().to_vec()));
            }
            "CALL" => {
                let mut words = rest.splitn(3, ' ');
                let (call_id, address) = (words.next().unwrap(), words.next().unwrap());
                let to = self.by_listener(one, address);
                let text = words.next().unwrap();
                let message = format!("{text}\r\nCall-ID: {call_id}\r\nContent-Length: 0\r\n\r\n");
                self.out.push_back((to, message.into_bytes()));
            }
            "FLOOD" => {
                let count: usize = one.trim().parse().unwrap();
                self.out
                    .extend((0..count).map(|number| (flow, format!("{number:-<1000}").into_bytes())));
            }
            "ASK" => self.queries += 1,
            "TIMER" => self.due = Some(now.instant + Millis(one.parse().unwrap())),
            "SPIN" => self.spin(flow, one.trim().parse().unwrap(), text),
            "HOLD" => self.hold(),
            "BUSY" => self.busy = true,
            "QUIET" => self.busy = false,
            "WATCH" => self.tells_closed = true,
            "FAIL" | "FAIL-CONTACT" => {
                let failed = Event::NextHopFailed {
                    destination: one.trim().parse().unwrap(),
                    timed_out: false,
                    is_contact: verb == "FAIL-CONTACT",
                };
                self.events.extend([failed.clone(), failed]);
            }
            "ALIAS" => self
                .aliases
                .push((flow.conn.unwrap(), one.trim().parse().unwrap())),
            _ => {}
        }
        Handled::Here
    }

    /// What it computes does not depend on how long the machine lets it.
    fn spin(&mut self, flow: Flow, millions: u64, text: &str) {
        let before = self.activity.enter(Component::Auth);
        // Where nothing is measured there is nothing before.
        if before != Component::Auth {
            for step in 0..millions * 1_000_000 {
                std::hint::black_box(step);
            }
        }
        self.activity.enter(before);
        self.out.push_back((flow, text.as_bytes().to_vec()));
    }

    #[track_caller]
    fn hold(&mut self) {
        let _ = self.told.send(Report::Held {
            worker: self.worker.0,
        });
        // The end of the rig releases it, too.
        let _ = self.gate.lock().unwrap().recv();
    }

    #[track_caller]
    fn by_listener(&self, number: &str, address: &str) -> Flow {
        let number: u16 = number.parse().unwrap();
        Flow {
            transport: self.transports[usize::from(number)],
            listener: ListenerId(number),
            remote: address.parse().unwrap(),
            conn: None,
            proof: Proof::None,
        }
    }
}

/// The id of the first connection of worker 0.
const FIRST_CONNECTION: sip_core::id::ConnId = sip_core::id::ConnId {
    worker: WorkerId(0),
    slot: 0,
    generation: SEED,
};

const SEED: u32 = 1000;

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes)
        .lines()
        .next()
        .unwrap_or("")
        .to_owned()
}

impl Core for Fake {
    fn admit(&mut self, _: Now, flow: &Flow) -> bool {
        let source = Source::of(flow.remote.ip());
        !self.standing.banned.contains(source) || self.standing.peers.contains(source)
    }

    fn set_source_lists(&mut self, standing: Arc<SourceLists>) {
        self.standing = standing;
    }

    /// Knows it of `OWNER`; not of `AT`.
    fn worker_of(&self, bytes: &[u8]) -> Option<WorkerId> {
        let text = std::str::from_utf8(bytes).ok()?;
        let owner = text.strip_prefix("OWNER ")?.split(' ').next()?.parse().ok()?;
        (WorkerId(owner) != self.worker).then_some(WorkerId(owner))
    }

    fn handle_message(&mut self, now: Now, flow: Flow, bytes: &[u8]) -> Handled {
        let text = text(bytes);
        if text.starts_with("WHOLE") {
            self.out.push_back((flow, bytes.to_vec()));
        }
        let handled = self.obey(now, flow, &text);
        if !matches!(handled, Handled::HandOver(_)) {
            let _ = self.told.send(Report::Message {
                worker: self.worker.0,
                flow,
                text,
            });
        }
        handled
    }

    fn handle_framing_error(
        &mut self,
        _: Now,
        _: Flow,
        error: FramingError<'_>,
    ) -> Option<(WorkerId, Box<[u8]>)> {
        let _ = self.told.send(Report::Fault {
            worker: self.worker.0,
            fault: error.fault,
        });
        None
    }

    fn handle_undelivered(&mut self, _: Now, to: Flow, bytes: &[u8]) {
        let _ = self.told.send(Report::Undelivered {
            worker: self.worker.0,
            to,
            text: text(bytes),
        });
    }

    fn handle_flow_closed(&mut self, _: Now, conn: ConnId) {
        let worker = self.worker.0;
        if self.tells_closed {
            let _ = self.told.send(Report::Closed { worker, conn });
        }
    }

    fn is_registered_over(&mut self, _: Now, _: ConnId) -> bool {
        false
    }

    fn handle_failed_hop(&mut self, destination: SocketAddr) {
        let worker = self.worker.0;
        let _ = self.told.send(Report::HopFailed { worker, destination });
    }

    fn handle_result(&mut self, _: Now, id: QueryId, _: QueryResult) {
        let _ = self.told.send(Report::Answer {
            worker: self.worker.0,
            id,
        });
    }

    fn handle_timeout(&mut self, now: Now) {
        assert!(
            self.due.take().is_some_and(|due| due <= now.instant),
            "a timer fires when due, not before"
        );
        let _ = self.told.send(Report::Timeout {
            worker: self.worker.0,
        });
    }

    fn poll_transmit(&mut self, batch: &mut TransmitBatch) -> bool {
        let any = !self.out.is_empty();
        for (to, message) in self.out.drain(..) {
            batch.push(to, &message);
        }
        any
    }

    fn poll_query(&mut self) -> Option<Query> {
        let slot = self.queries.checked_sub(1)?;
        self.queries = slot;
        let kind = QueryKind::Resolve {
            name: b"example.com".as_slice().into(),
            kind: RecordKind::A,
        };
        Some(Query {
            id: Some(QueryId { slot, generation: 9 }),
            kind,
        })
    }

    fn poll_alias(&mut self) -> Option<(ConnId, SocketAddr)> {
        self.aliases.pop()
    }

    fn poll_event(&mut self) -> Option<Event> {
        self.events.pop()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.due
    }

    fn reconfigure(&mut self, _: &Config) {
        let _ = self.told.send(Report::Reconfigured {
            worker: self.worker.0,
        });
    }

    fn observe(&mut self, activity: Activity) {
        self.activity = activity;
    }

    fn drain(&mut self) {
        let _ = self.told.send(Report::Drained {
            worker: self.worker.0,
        });
    }

    fn is_idle(&self) -> bool {
        !self.busy
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }

    fn calls(&self) -> Calls {
        Calls::default()
    }

    fn gauges(&self) -> Gauges {
        Gauges::default()
    }
}

pub struct Queries(Sender<(WorkerId, Query)>);

impl QuerySink for Queries {
    fn submit(&mut self, worker: WorkerId, queries: &mut Vec<Query>) {
        for query in queries.drain(..) {
            let _ = self.0.send((worker, query));
        }
    }
}

pub struct Failures(Sender<Report>);

impl EventSink for Failures {
    fn record(&mut self, _: WorkerId, events: &mut Vec<Event>) {
        events.clear();
    }

    fn tls_failed(&mut self, _: WorkerId, failure: &TlsFailure) {
        let _ = self.0.send(Report::TlsFailed {
            flow: failure.flow,
            outbound: failure.outbound,
            error: failure.error.clone(),
        });
    }

    fn origin_refused(&mut self, _: WorkerId, _: &ForeignPage) {}
}

/// Running workers. Listener 0 is UDP, listener 1 TCP, both at the test's own address; where there are more,
/// 2 is TLS, 3 WS and 4 WSS.
pub struct Rig {
    pub udp: SocketAddr,
    pub tcp: SocketAddr,
    pub tls: SocketAddr,
    pub ws: SocketAddr,
    pub wss: SocketAddr,
    pub hub: Hub,
    pub told: Receiver<Report>,
    pub asked: Receiver<(WorkerId, Query)>,
    pub published: Vec<Published>,
    pub threads: Vec<JoinHandle<Ended>>,
    pub config: Arc<Config>,
    gate: Sender<()>,
}

pub fn config(workers: u16) -> Config {
    let listener = |transport| Listener {
        transport,
        address: any_port(),
        prefix_len: 8,
        sent_by: own_ip().to_string().into_bytes().into(),
        preloaded_route: false,
        any_page: false,
        nat: Nat::Auto,
    };
    Config {
        server_header: Box::default(),
        listeners: vec![listener(Transport::Udp), listener(Transport::Tcp)],
        own_hosts: Vec::new(),
        domains: Vec::new(),
        routes: Vec::new(),
        groups: Vec::new(),
        state: StateMode::Transaction,
        timers: Timers::default(),
        limits: Limits {
            body_bytes: 10_000,
            ..Limits::default()
        },
        registrar: RegistrarPolicy {
            min_expires_s: 60,
            default_expires_s: 3600,
            max_expires_s: 7200,
            durability: Durability::Memory,
        },
        pings: None,
        trust: Vec::new(),
        trust_names: Vec::new(),
        destinations: sip_core::config::Destinations::default(),
        abuse: sip_core::config::Abuse::default(),
        credentials_deadline_ms: 3000,
        credentials_unavailable: 503,
        workers,
        node_id: 0,
    }
}

impl Rig {
    pub fn start(workers: u16, settings: Settings) -> Self {
        Self::run(config(workers), settings, Vec::new(), |_| ())
    }

    /// With a look at the sockets of the workers before they begin.
    pub fn looked_at(workers: u16, settings: Settings, look: impl FnOnce(&[WorkerSockets])) -> Self {
        Self::run(config(workers), settings, Vec::new(), look)
    }

    /// With listeners of every transport, and longer messages. `service` is that of each.
    pub fn secure(workers: u16, settings: Settings, service: StreamService) -> Self {
        let mut config = config(workers);
        for transport in [Transport::Tls, Transport::Ws, Transport::Wss] {
            let tcp = config.listeners[1].clone();
            config.listeners.push(Listener { transport, ..tcp });
        }
        config.limits.body_bytes = 200_000;
        let services = vec![service; config.listeners.len()];
        Self::run(config, settings, services, |_| ())
    }

    #[track_caller]
    fn run(
        config: Config,
        settings: Settings,
        services: Vec<StreamService>,
        look: impl FnOnce(&[WorkerSockets]),
    ) -> Self {
        let (workers, config) = (config.workers, Arc::new(config));
        let all = bind_all(&config, &settings, workers).unwrap();
        look(&all);
        let address = |number: usize| all[0].addresses().get(number).copied().unwrap_or(NOWHERE);
        let [udp, tcp, tls, ws, wss] = [0, 1, 2, 3, 4].map(address);
        let (hub, mailboxes) = Hub::new(workers, &settings).unwrap();
        let (tell, told) = channel();
        let (ask, asked) = channel();
        let (gate, released) = channel();
        let released = Arc::new(Mutex::new(released));
        let clock = Clock::new(StdInstant::now());
        let (mut published, mut threads) = (Vec::new(), Vec::new());
        for ((sockets, mailbox), number) in all.into_iter().zip(mailboxes).zip(0..) {
            let id = WorkerId(number);
            let core = Fake {
                worker: id,
                told: tell.clone(),
                transports: config.listeners.iter().map(|l| l.transport).collect(),
                out: VecDeque::new(),
                queries: 0,
                events: Vec::new(),
                due: None,
                busy: false,
                tells_closed: false,
                aliases: Vec::new(),
                standing: Arc::default(),
                activity: Activity::default(),
                gate: Arc::clone(&released),
            };
            let worker = Worker::new(Parts {
                worker: id,
                core,
                config: Arc::clone(&config),
                settings: settings.clone(),
                sockets,
                services: services.clone(),
                mailbox,
                hub: hub.clone(),
                clock: clock.clone(),
                queries: Queries(ask.clone()),
                events: Failures(tell.clone()),
                seed: SEED,
            })
            .unwrap();
            published.push(worker.published());
            threads.push(std::thread::spawn(move || worker.run().unwrap()));
        }
        Self {
            udp,
            tcp,
            tls,
            ws,
            wss,
            hub,
            told,
            asked,
            published,
            threads,
            config,
            gate,
        }
    }

    /// The next thing that an engine received.
    #[track_caller]
    pub fn next(&self) -> Report {
        self.told.recv_timeout(PATIENCE).unwrap()
    }

    /// Gives a datagram to the workers.
    #[track_caller]
    pub fn tell(&self, order: &str) {
        udp_client().send_to(order.as_bytes(), self.udp).unwrap();
    }

    /// The same; which of them obeyed it.
    #[track_caller]
    pub fn order(&self, order: &str) -> u16 {
        self.tell(order);
        match self.next() {
            Report::Message { worker, text, .. } if text == order => worker,
            other => panic!("{other:?}"),
        }
    }

    /// Holds the only worker: nothing is read, nothing is sent. What its engine got before is passed over.
    pub fn hold(&self) {
        self.tell("HOLD");
        while self.next() != (Report::Held { worker: 0 }) {}
    }

    /// Lets it go on.
    #[track_caller]
    pub fn release(&self) {
        self.gate.send(()).unwrap();
        assert!(matches!(self.next(), Report::Message { text, .. } if text == "HOLD"));
    }

    /// Waits until each worker has begun a turn since and ended it: it has read what had come to its sockets,
    /// and obeyed what was in its mailbox. What each published then.
    #[track_caller]
    pub fn settled(&self) -> Vec<Snapshot> {
        let end = StdInstant::now() + PATIENCE;
        let mut seen: Vec<_> = self.published.iter().map(Published::get).collect();
        // The first turn that is published may have begun before.
        for _ in 0..2 {
            self.hub.order(&Control::Publish);
            for (published, seen) in self.published.iter().zip(&mut seen) {
                let before = seen.net.turns;
                while seen.net.turns == before {
                    assert!(StdInstant::now() < end, "a worker has ended");
                    std::thread::sleep(Duration::from_micros(300));
                    *seen = published.get();
                }
            }
        }
        seen
    }

    /// A counter, summed over workers, once it has reached `least`.
    pub fn counter(&self, least: u64, read: impl Fn(&sip_net::counters::NetCounters) -> u64) -> u64 {
        let end = StdInstant::now() + PATIENCE;
        loop {
            let sum: u64 = self.settled().iter().map(|snapshot| read(&snapshot.net)).sum();
            if sum >= least || StdInstant::now() > end {
                return sum;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The next failure of TLS, all else passed over: whether we had opened the connection, and why.
    pub fn next_failure(&self) -> (bool, TlsError) {
        loop {
            if let Report::TlsFailed { outbound, error, .. } = self.next() {
                return (outbound, error);
            }
        }
    }

    /// The next message that came back, all else passed over.
    pub fn next_undelivered(&self) -> String {
        loop {
            if let Report::Undelivered { text, .. } = self.next() {
                return text;
            }
        }
    }

    /// Messages of this transport that came back, all else passed over: as many as are counted, less those
    /// that were taken before. Each is another.
    #[track_caller]
    pub fn all_undelivered(&self, transport: Transport, taken_before: usize) -> BTreeSet<String> {
        let counted = self.counter(0, |c| c.stream_undelivered) as usize;
        let mut texts = BTreeSet::new();
        while texts.len() + taken_before < counted {
            if let Report::Undelivered { to, text, .. } = self.next() {
                assert_eq!(to.transport, transport);
                assert!(texts.insert(text), "once");
            }
        }
        texts
    }

    /// Values of the moment, summed over workers: connections, bytes that they hold, handshakes that
    /// wait.
    pub fn load(&self) -> (u64, u64, u64) {
        let gauges = self.settled().into_iter().map(|snapshot| snapshot.net_gauges);
        gauges.fold((0, 0, 0), |(connections, bytes, waiting), gauges| {
            (
                connections + gauges.connections,
                bytes + gauges.stream_bytes,
                waiting + gauges.handshakes_waiting,
            )
        })
    }

    /// Waits until `done` of [`Rig::load`].
    #[track_caller]
    pub fn until(&self, done: impl Fn((u64, u64, u64)) -> bool) {
        let end = StdInstant::now() + PATIENCE;
        loop {
            let load = self.load();
            if done(load) {
                return;
            }
            assert!(
                StdInstant::now() < end,
                "still (connections, bytes, waiting): {load:?}"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Sees to it that no connection is left, and with none left nothing held for any; then stops.
    #[track_caller]
    pub fn end_empty(self) {
        self.until(|(connections, _, _)| connections == 0);
        assert_eq!(self.load(), (0, 0, 0), "(connections, bytes, waiting)");
        assert_eq!(
            self.end(Control::Stop)
                .iter()
                .filter(|e| **e != Ended::Stopped)
                .count(),
            0
        );
    }

    /// Stops all workers; how each ended.
    #[track_caller]
    pub fn end(self, control: Control) -> Vec<Ended> {
        self.hub.order(&control);
        self.threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    }

    pub fn connect(&self) -> TcpStream {
        connect(self.tcp)
    }
}

/// An address without listener.
const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

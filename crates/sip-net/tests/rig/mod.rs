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
mod fake;
mod late;
mod net;
pub mod websocket;

use fake::Fake;
pub use late::unless_late;
pub use net::{
    PATIENCE, accept, any_port, closed, closed_to_datagrams, connect, connect_from, expect, framed, listen,
    own_ip, read_to_end, receive, udp_client, wait_for_delivery, write,
};

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant as StdInstant};

use sip_core::config::{Config, Durability, Listener, Nat, RegistrarPolicy, StateMode, Timers};
use sip_core::event::Event;
use sip_core::id::{ConnId, QueryId, WorkerId};
use sip_core::limits::Limits;
use sip_core::query::Query;
use sip_core::transport::framing::FramingFault;
use sip_core::transport::{Flow, Transport};
use sip_net::bind::{WorkerSockets, bind_all};
use sip_net::clock::Clock;
use sip_net::hub::Hub;
use sip_net::mailbox::Control;
use sip_net::settings::Settings;
use sip_net::tcp::{ForeignPage, StreamService, TlsFailure};
use sip_net::tls::TlsError;
use sip_net::worker::{Ended, EventSink, Parts, Published, QuerySink, Snapshot, Worker};

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
        cancel_wait_ms: NEVER_MS,
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

/// The id of the first connection of worker 0.
const FIRST_CONNECTION: sip_core::id::ConnId = sip_core::id::ConnId {
    worker: WorkerId(0),
    slot: 0,
    generation: SEED,
};

const SEED: u32 = 1000;

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

    /// With another configuration.
    pub fn of(config: Config, settings: Settings, look: impl FnOnce(&[WorkerSockets])) -> Self {
        Self::run(config, settings, Vec::new(), look)
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
            let transports = config.listeners.iter().map(|l| l.transport).collect();
            let core = Fake::new(id, tell.clone(), transports, Arc::clone(&released));
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
        self.hold_worker(0);
    }

    /// Holds a worker.
    pub fn hold_worker(&self, worker: u16) {
        self.tell(&format!("AT {worker} HOLD"));
        while self.next() != (Report::Held { worker }) {}
    }

    /// Lets it go on.
    #[track_caller]
    pub fn release(&self) {
        self.gate.send(()).unwrap();
        assert!(matches!(self.next(), Report::Message { text, .. } if text.ends_with(" HOLD")));
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

//! What experiments in steps measure: a server of its own for each step, and its figures. Pure.

mod pings;
mod workers;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::case::{CallScenario, Server};
use crate::cpu::{Used, ratio};
use crate::crowd::said;
use crate::load::{Operation, Report, Transport};

pub use pings::{Counted, Phase, Ping, PingPlan, Pinged};
pub(crate) use pings::{REGISTRATIONS, WINDOW_S};
pub use workers::{Part, SplitTime, Spread, shares};
pub(crate) use workers::{SPLIT_TURN_S, WORKER, split_load_s};

/// Messages that a call relays.
const MESSAGES: f64 = 6.0;

/// What a listener speaks, and which versions of TLS its clients know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// TCP.
    Tcp,
    /// TLS; the clients know 1.3.
    Tls13,
    /// TLS; the clients know 1.2 alone.
    Tls12,
    /// WebSocket over TLS 1.3.
    Wss,
}

impl Kind {
    /// All.
    pub const ALL: [Self; 4] = [Self::Tcp, Self::Tls13, Self::Tls12, Self::Wss];

    /// For people.
    pub fn text(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Tls13 => "TLS 1.3",
            Self::Tls12 => "TLS 1.2",
            Self::Wss => "WebSocket over TLS",
        }
    }

    /// As the crowd's command line and configurations have it.
    pub fn transport(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Tls13 | Self::Tls12 => "tls",
            Self::Wss => "wss",
        }
    }

    /// Bytes of the process that an idle connection may hold.
    pub fn goal(self) -> f64 {
        match self {
            Self::Tcp => 4_000.0,
            Self::Tls13 | Self::Tls12 => 20_000.0,
            Self::Wss => 24_000.0,
        }
    }
}

/// The key of a server's certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Key {
    /// An elliptic curve.
    P256,
    /// RSA of 2,048 bits.
    Rsa2048,
}

impl Key {
    /// For people, and as the crowd says it.
    pub fn text(self) -> &'static str {
        match self {
            Self::P256 => "P-256",
            Self::Rsa2048 => "RSA-2048",
        }
    }

    /// The name of its files.
    pub(crate) fn file(self) -> &'static str {
        match self {
            Self::P256 => "p256",
            Self::Rsa2048 => "rsa",
        }
    }
}

/// A part of the experiment, with a server of its own: measured whole, or not at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "part", rename_all = "kebab-case")]
pub enum Step {
    /// Bytes of idle connections.
    Memory {
        /// Which server.
        server: Server,
        /// What the connections are.
        kind: Kind,
        /// How many.
        clients: u32,
    },
    /// CPU for each message, beside few and beside many idle TLS connections in turn.
    Messages {
        /// The few.
        few: u32,
        /// The many.
        many: u32,
        /// Runs with each.
        rounds: u32,
    },
    /// Calls without and with slow and deaf TLS clients.
    Attackers {
        /// Clients on whose connections a message or a handshake never ends.
        slow: u32,
        /// Clients that ask and read no response.
        deaf: u32,
        /// Which repetition, from 1.
        round: u32,
    },
    /// Handshakes without sockets.
    InMemory,
    /// CPU for each connection.
    Handshakes {
        /// Which server.
        server: Server,
        /// The key of its certificate; absent: TCP alone.
        key: Option<Key>,
        /// Which repetition, from 1.
        round: u32,
    },
    /// Clients with a ticket each that come back at once after a restart.
    Storm {
        /// Which server.
        server: Server,
        /// How many.
        clients: u32,
        /// Which repetition, from 1.
        round: u32,
    },
    /// Bytes of transactions: calls that come and go.
    Transactions {
        /// Which server.
        server: Server,
        /// Calls a second.
        rate: u32,
        /// So long.
        seconds: u32,
        /// Seconds without load after them: timers take 32.
        quiet: u32,
    },
    /// Bytes of transactions that wait: calls that ring.
    Ringing {
        /// Which server.
        server: Server,
        /// How many at once.
        calls: u32,
        /// Seconds without load after them; 0: what is left is not looked at.
        quiet: u32,
    },
    /// Bytes of registered contacts.
    Contacts {
        /// Which server.
        server: Server,
        /// How many.
        contacts: u32,
    },
    /// CPU for a call of a server with so many workers, and how calls spread over them.
    Workers {
        /// Which calls.
        scenario: CallScenario,
        /// How many.
        workers: u32,
        /// Calls a second.
        rate: u32,
        /// Which repetition, from 1.
        round: u32,
    },
    /// The split of CPU time, beside the CPU time of the thread, and what it costs.
    Split {
        /// Which calls.
        scenario: CallScenario,
        /// Calls a second.
        rate: u32,
        /// Seconds of load before anything counts.
        warm: u32,
        /// Turns with the split off and on.
        turns: u32,
        /// Seconds for which it stays on after them.
        seconds: u32,
    },
    /// NAT keep-alive of many registered contacts.
    Pings(PingPlan),
}

impl Step {
    /// For people, and what `--only` looks at: without a comma, at which that parts its words.
    pub fn text(&self) -> String {
        match self {
            Self::Memory {
                server,
                kind,
                clients,
            } => {
                format!("memory {} {} {clients} clients", server.name(), kind.text())
            }
            Self::Messages { few, many, .. } => format!("messages beside {few} and {many} idle clients"),
            Self::Attackers { slow, deaf, round } => {
                format!("attackers {slow} slow and {deaf} deaf round {round}")
            }
            Self::InMemory => "handshakes in memory".to_owned(),
            Self::Handshakes { server, key, round } => {
                let what = key.map_or("TCP alone", Key::text);
                format!("handshakes {} {what} round {round}", server.name())
            }
            Self::Storm {
                server,
                clients,
                round,
            } => {
                format!("storm {} {clients} clients round {round}", server.name())
            }
            Self::Transactions {
                server,
                rate,
                seconds,
                ..
            } => {
                format!("transactions {} {rate} calls/s for {seconds} s", server.name())
            }
            Self::Ringing { server, calls, .. } => format!("ringing {} {calls} calls", server.name()),
            Self::Contacts { server, contacts } => format!("contacts {} {contacts}", server.name()),
            Self::Workers {
                scenario,
                workers,
                rate,
                round,
            } => {
                let plural = if *workers == 1 { "" } else { "s" };
                format!(
                    "{} {rate} calls/s {workers} worker{plural} round {round}",
                    scenario.name()
                )
            }
            Self::Split { scenario, rate, .. } => format!("{} {rate} calls/s", scenario.name()),
            Self::Pings(plan) => plan.text(),
        }
    }

    /// Which repetition, from 1.
    pub fn round(&self) -> u32 {
        match self {
            Self::Attackers { round, .. }
            | Self::Handshakes { round, .. }
            | Self::Storm { round, .. }
            | Self::Workers { round, .. } => *round,
            Self::Memory { .. }
            | Self::Messages { .. }
            | Self::InMemory
            | Self::Transactions { .. }
            | Self::Ringing { .. }
            | Self::Contacts { .. }
            | Self::Split { .. }
            | Self::Pings(_) => 1,
        }
    }

    /// The key of the server's certificate; `None`: TCP alone.
    pub fn key(&self) -> Option<Key> {
        match self {
            Self::Handshakes { key, .. } => *key,
            Self::Memory { .. }
            | Self::Messages { .. }
            | Self::Attackers { .. }
            | Self::InMemory
            | Self::Storm { .. }
            | Self::Transactions { .. }
            | Self::Ringing { .. }
            | Self::Contacts { .. }
            | Self::Workers { .. }
            | Self::Split { .. }
            | Self::Pings(_) => Some(Key::P256),
        }
    }

    /// The server that is measured.
    pub fn server(&self) -> Server {
        match self {
            Self::Memory { server, .. } | Self::Handshakes { server, .. } | Self::Storm { server, .. } => {
                *server
            }
            Self::Transactions { server, .. }
            | Self::Ringing { server, .. }
            | Self::Contacts { server, .. } => *server,
            Self::Messages { .. }
            | Self::Attackers { .. }
            | Self::InMemory
            | Self::Workers { .. }
            | Self::Split { .. }
            | Self::Pings(_) => Server::Trapezoid,
        }
    }

    /// What the server listens for, besides the calls.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Memory { kind, .. } => *kind,
            Self::Handshakes { key: None, .. }
            | Self::Transactions { .. }
            | Self::Ringing { .. }
            | Self::Contacts { .. }
            | Self::Workers { .. }
            | Self::Split { .. }
            | Self::Pings(_) => Kind::Tcp,
            Self::Messages { .. }
            | Self::Attackers { .. }
            | Self::InMemory
            | Self::Handshakes { .. }
            | Self::Storm { .. } => Kind::Tls13,
        }
    }

    /// Whether there must be certificates.
    pub fn needs_certificates(&self) -> bool {
        match self {
            Self::Transactions { .. } | Self::Ringing { .. } | Self::Contacts { .. } | Self::Pings(_) => {
                false
            }
            Self::Workers { scenario, .. } | Self::Split { scenario, .. } => {
                scenario.case().transport == Transport::Tls
            }
            Self::Memory { .. }
            | Self::Messages { .. }
            | Self::Attackers { .. }
            | Self::InMemory
            | Self::Handshakes { .. }
            | Self::Storm { .. } => true,
        }
    }
}

/// How long everything takes. Seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pace {
    /// Each run of calls.
    pub run_s: f64,
    /// Each run of handshakes.
    pub shake_s: f64,
    /// Calls before what is counted of a run, or connections before those that are measured.
    pub warm_s: f64,
    /// Until memory is looked at.
    pub settle_s: f64,
    /// Attack before calls are measured.
    pub siege_s: f64,
    /// Each case in memory.
    pub alone_s: f64,
    /// After which a storm is given up.
    pub give_up_s: f64,
    /// Runs that look for the rate of the part `messages`.
    pub looks: u32,
    /// Calls a second beside attackers and storm, and of the first look.
    pub rate: f64,
    /// Most calls a second of the part `messages`.
    pub most_rate: f64,
    /// Requests a second of all deaf clients together.
    pub deaf_rate: f64,
}

/// A step that was made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The step.
    pub step: Step,
    /// Seconds since the experiment began.
    pub at_s: f64,
    /// Milliseconds for a fixed piece of work on the server's CPU, just before.
    pub probe_ms: Option<f64>,
    /// What was found.
    pub figures: Figures,
}

impl Measured {
    /// Its idle connections, if it is a step of that.
    pub fn memory(&self) -> Option<&Memory> {
        if let Figures::Memory(found) = &self.figures {
            Some(found)
        } else {
            None
        }
    }

    /// Its runs beside idle connections, if it is a step of that.
    pub fn messages(&self) -> Option<&Messages> {
        if let Figures::Messages(found) = &self.figures {
            Some(found)
        } else {
            None
        }
    }

    /// Its calls without and with attackers, if it is a step of that.
    pub fn siege(&self) -> Option<&Siege> {
        if let Figures::Attackers(found) = &self.figures {
            Some(found)
        } else {
            None
        }
    }

    /// Its handshakes in memory, if it is a step of that.
    pub fn in_memory(&self) -> Option<&[said::Crypto]> {
        if let Figures::InMemory(found) = &self.figures {
            Some(found)
        } else {
            None
        }
    }

    /// Its connections one after the other, if it is a step of that.
    pub fn handshakes(&self) -> Option<&[Handshake]> {
        if let Figures::Handshakes(found) = &self.figures {
            Some(found)
        } else {
            None
        }
    }

    /// What its server held, if it is a step of that.
    pub fn held(&self) -> Option<&Held> {
        if let Figures::Held(found) = &self.figures {
            Some(found)
        } else {
            None
        }
    }

    /// Its calls on workers, if it is a step of that.
    pub fn spread(&self) -> Option<&Spread> {
        if let Figures::Workers(found) = &self.figures {
            Some(found)
        } else {
            None
        }
    }

    /// What the split of CPU time says and costs, if it is a step of that.
    pub fn split(&self) -> Option<&SplitTime> {
        if let Figures::Split(found) = &self.figures {
            Some(found)
        } else {
            None
        }
    }

    /// Its contacts that were pinged, if it is a step of that.
    pub fn pinged(&self) -> Option<&Pinged> {
        if let Figures::Pings(found) = &self.figures {
            Some(found)
        } else {
            None
        }
    }

    /// Its clients that came back at once, if it is a step of that.
    pub fn storm(&self) -> Option<&Storm> {
        if let Figures::Storm(found) = &self.figures {
            Some(found)
        } else {
            None
        }
    }
}

/// What a step has found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Figures {
    /// Of [`Step::Memory`].
    Memory(Memory),
    /// Of [`Step::Messages`].
    Messages(Messages),
    /// Of [`Step::Attackers`].
    Attackers(Box<Siege>),
    /// Of [`Step::InMemory`].
    InMemory(Vec<said::Crypto>),
    /// Of [`Step::Handshakes`].
    Handshakes(Vec<Handshake>),
    /// Of [`Step::Storm`].
    Storm(Box<Storm>),
    /// Of [`Step::Transactions`], [`Step::Ringing`] and [`Step::Contacts`].
    Held(Box<Held>),
    /// Of [`Step::Workers`].
    Workers(Box<Spread>),
    /// Of [`Step::Split`].
    Split(Box<SplitTime>),
    /// Of [`Step::Pings`].
    Pings(Box<Pinged>),
}

/// Bytes of what a server holds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Held {
    /// What the generator reports.
    pub load: Report,
    /// Bytes of the process before.
    pub before: u64,
    /// At most.
    pub most: u64,
    /// After the quiet.
    pub after: u64,
    /// What the server held when it had most: transactions, or contacts; Kamailio is not asked for transactions.
    pub things: Option<f64>,
    /// Gauges of what it still holds of calls after the quiet; nothing is right. Absent: it was not asked.
    pub left: Option<BTreeMap<String, f64>>,
}

impl Held {
    /// Bytes for each of what it held.
    pub fn bytes_each(&self) -> Option<f64> {
        let things = self.things.filter(|things| *things > 0.0)?;
        Some((self.most as f64 - self.before as f64) / things)
    }
}

/// Bytes of idle connections.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    /// What the clients say.
    pub crowd: said::Idle,
    /// Connections that the server says it has, while all are there; Kamailio is not asked.
    pub known: Option<f64>,
    /// The same, after all have ended.
    pub left: Option<f64>,
    /// Bytes of the process (proportional set size) before.
    pub before: u64,
    /// While all are there.
    pub most: u64,
    /// After all have ended.
    pub after: u64,
    /// What the kernel's memory grew by meanwhile: that of both ends.
    pub kernel: Kernel,
}

/// Bytes of the kernel that have to do with sockets, of the whole machine: readings, or what they grew by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kernel {
    /// Slabs: sockets among much else.
    pub slabs: i64,
    /// What lies in buffers of TCP.
    pub buffers: i64,
}

impl Kernel {
    /// What it grew by.
    pub fn since(self, before: Self) -> Self {
        Self {
            slabs: self.slabs - before.slabs,
            buffers: self.buffers - before.buffers,
        }
    }
}

impl Memory {
    /// Bytes of the process for each connection.
    pub fn bytes_each(&self) -> f64 {
        ratio(self.most as f64 - self.before as f64, self.crowd.opened as f64)
    }

    /// The kernel's bytes for each connection, of both ends: slabs and buffers.
    pub fn kernel_each(&self) -> (f64, f64) {
        let each = |bytes: i64| ratio(bytes as f64, self.crowd.opened as f64);
        (each(self.kernel.slabs), each(self.kernel.buffers))
    }
}

/// Runs beside few and many idle connections, in turn.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Messages {
    /// What the few clients say, then the many.
    pub crowds: Vec<said::Idle>,
    /// The runs.
    pub runs: Vec<Beside>,
}

/// A run of calls beside idle connections.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Beside {
    /// Idle connections.
    pub idle: u32,
    /// Which repetition, from 1.
    pub round: u32,
    /// The calls.
    pub calls: Calls,
}

/// A run of calls over one TCP connection.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Calls {
    /// Calls a second that were asked for.
    pub rate: f64,
    /// What the generator reports.
    pub load: Report,
    /// CPU of the server, while the load was counted.
    pub server: Used,
    /// Most bytes of the server's process meanwhile.
    pub memory: u64,
    /// Most bytes in the kernel's buffers of TCP meanwhile.
    pub buffers: i64,
}

impl Calls {
    /// Microseconds of the server's CPU for each message.
    pub fn us_each(&self) -> f64 {
        self.server.us_each(self.load.goodput) / MESSAGES
    }

    /// Milliseconds from INVITE to 200, of 99 % of the calls.
    pub fn p99_ms(&self) -> f64 {
        let times = self.load.response_ms.get(Operation::Call.response());
        times.map_or(0.0, |times| times.p99)
    }

    /// Part of the calls that succeeded.
    pub fn succeeded(&self) -> f64 {
        self.load.succeeded_part()
    }
}

/// Calls without and with attackers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Siege {
    /// Without.
    pub calm: Calls,
    /// With.
    pub attacked: Calls,
    /// What the slow clients say.
    pub slow: said::Attackers,
    /// What the deaf clients say.
    pub deaf: said::Attackers,
    /// Bytes of the server's process before the attack.
    pub before: u64,
    /// Bytes in the kernel's buffers of TCP before the attack.
    pub buffers: i64,
}

impl Siege {
    /// Bytes that the server's process grew by.
    pub fn growth(&self) -> f64 {
        self.attacked.memory as f64 - self.before as f64
    }

    /// Bytes that the kernel's buffers of both ends grew by.
    pub fn kernel(&self) -> f64 {
        (self.attacked.buffers - self.buffers) as f64
    }

    /// Bytes that the process may grow by: what all connections together may hold (`transport.connection_bytes`), and
    /// what each needs besides.
    pub fn bound(&self) -> f64 {
        const ALL: f64 = 256.0 * 1024.0 * 1024.0;
        const EACH: f64 = 24_000.0;
        ALL + EACH * (self.slow.asked + self.deaf.asked) as f64
    }
}

/// Connections one after the other.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Handshake {
    /// Of TLS; empty: TCP alone.
    pub version: String,
    /// Whether each resumes the session of the one before.
    pub resumed: bool,
    /// What the clients say.
    pub crowd: said::Handshakes,
    /// CPU of the server meanwhile.
    pub server: Used,
}

impl Handshake {
    /// Microseconds of the server's CPU for each connection.
    pub fn us(&self) -> f64 {
        ratio(self.server.total_s * 1e6, self.crowd.done as f64)
    }

    /// The part of it in the kernel.
    pub fn system_us(&self) -> f64 {
        self.us() * ratio(self.server.system_s, self.server.user_s + self.server.system_s)
    }
}

/// Clients that came back at once.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Storm {
    /// Clients that had a ticket.
    pub remembered: usize,
    /// What the clients say.
    pub crowd: said::Storm,
    /// CPU of the server, calls included.
    pub server: Used,
    /// Calls beside; Kamailio has none.
    pub calls: Option<Report>,
}

impl Storm {
    /// Milliseconds from INVITE to 200 of 99 % of the calls beside it.
    pub fn p99_ms(&self) -> Option<f64> {
        let times = self.calls.as_ref()?.response_ms.get(Operation::Call.response())?;
        Some(times.p99)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_written_and_read() {
        for step in [
            Step::InMemory,
            Step::Memory {
                server: Server::Kamailio,
                kind: Kind::Tls12,
                clients: 19_000,
            },
            Step::Handshakes {
                server: Server::Trapezoid,
                key: None,
                round: 2,
            },
            Step::Workers {
                scenario: CallScenario::Digest,
                workers: 2,
                rate: 6_000,
                round: 7,
            },
        ] {
            let text = serde_json::to_string(&step).unwrap();
            assert_eq!(serde_json::from_str::<Step>(&text).unwrap(), step, "{text}");
        }
        let text = serde_json::to_string(&Figures::Memory(Memory::default())).unwrap();
        assert!(text.starts_with("{\"memory\":"), "{text}");
    }

    #[test]
    fn figures_follow_from_readings() {
        let memory = Memory {
            crowd: said::Idle {
                opened: 1_000,
                ..said::Idle::default()
            },
            before: 10_000_000,
            most: 15_000_000,
            kernel: Kernel {
                slabs: 4_000_000,
                buffers: 500_000,
            },
            ..Memory::default()
        };
        assert_eq!(memory.bytes_each(), 5_000.0);
        assert_eq!(memory.kernel_each(), (4_000.0, 500.0));
        assert_eq!(Memory::default().bytes_each(), 0.0, "no connection");
        let handshake = Handshake {
            crowd: said::Handshakes {
                done: 10_000,
                ..said::Handshakes::default()
            },
            server: Used {
                total_s: 2.0,
                user_s: 1.5,
                system_s: 0.5,
                ..Used::default()
            },
            ..Handshake::default()
        };
        assert_eq!((handshake.us(), handshake.system_us()), (200.0, 50.0));
        let siege = Siege {
            before: 100,
            attacked: Calls {
                memory: 300,
                buffers: 70,
                ..Calls::default()
            },
            buffers: 20,
            ..Siege::default()
        };
        assert_eq!((siege.growth(), siege.kernel()), (200.0, 50.0));
        assert_eq!(siege.bound(), 268_435_456.0);
    }
}

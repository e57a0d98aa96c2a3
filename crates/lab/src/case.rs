//! What is measured: a server, what it is configured to do, and the load.

use serde::{Deserialize, Serialize};

use crate::load::{Operation, Transport};

/// The server under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Server {
    /// Ours.
    Trapezoid,
    /// Kamailio as installed.
    Kamailio,
    /// A relay of datagrams or bytes that reads no message: what a proxy would cost if SIP cost nothing.
    Floor,
    /// The same as a program in C, which shares no code with this project.
    BareRelay,
}

impl Server {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Trapezoid => "Trapezoid",
            Self::Kamailio => "Kamailio",
            Self::Floor => "floor",
            Self::BareRelay => "bare relay",
        }
    }

    /// Whether it passes messages on without reading them: it challenges no request, and asks for none.
    pub fn is_relay(self) -> bool {
        matches!(self, Self::Floor | Self::BareRelay)
    }
}

/// What a proxy remembers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Nothing.
    Stateless,
    /// Each transaction.
    Transaction,
}

/// What a server is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Case {
    /// What one operation is.
    pub operation: Operation,
    /// What a proxy remembers of it.
    pub state: State,
    /// Whether it asks for credentials.
    pub auth: bool,
    /// What carries the messages.
    pub transport: Transport,
    /// Whether a registration is on disk before it is answered.
    pub durable: bool,
}

impl Case {
    /// Calls.
    pub const fn call(state: State, auth: bool, transport: Transport) -> Self {
        Self {
            operation: Operation::Call,
            state,
            auth,
            transport,
            durable: false,
        }
    }

    /// Registrations, in memory or on disk.
    pub const fn register(auth: bool, durable: bool) -> Self {
        Self {
            operation: Operation::Register,
            state: State::Transaction,
            auth,
            transport: Transport::Udp,
            durable,
        }
    }

    /// Redirection.
    pub const fn redirect(auth: bool) -> Self {
        Self {
            operation: Operation::Redirect,
            state: State::Stateless,
            auth,
            transport: Transport::Udp,
            durable: false,
        }
    }

    /// For people, and the name of a series.
    pub fn text(&self) -> String {
        let what = match (self.operation, self.state) {
            (Operation::Call, State::Stateless) => "stateless",
            (Operation::Call, State::Transaction) => "stateful",
            (Operation::Register, _) if self.durable => "registration on disk",
            (Operation::Register, _) => "registration in memory",
            (Operation::Redirect, _) => "redirection",
        };
        let auth = if self.auth { "digest" } else { "no auth" };
        let transport = match self.transport {
            Transport::Udp => "UDP",
            Transport::Tcp => "TCP",
            Transport::Tls => "TLS",
        };
        format!("{what}, {transport}, {auth}")
    }
}

/// A kind of call, by a short name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CallScenario {
    /// Nothing is remembered.
    Stateless,
    /// Each transaction is.
    Transaction,
    /// The same, with credentials.
    Digest,
    /// Transactions, by one TCP connection to the server and one from it.
    Tcp,
    /// The same, encrypted.
    Tls,
}

impl CallScenario {
    /// As `--only` and tables have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stateless => "stateless",
            Self::Transaction => "transaction",
            Self::Digest => "digest",
            Self::Tcp => "tcp",
            Self::Tls => "tls",
        }
    }

    /// What the server is to do.
    pub const fn case(self) -> Case {
        match self {
            Self::Stateless => Case::call(State::Stateless, false, Transport::Udp),
            Self::Transaction => Case::call(State::Transaction, false, Transport::Udp),
            Self::Digest => Case::call(State::Transaction, true, Transport::Udp),
            Self::Tcp => Case::call(State::Transaction, false, Transport::Tcp),
            Self::Tls => Case::call(State::Transaction, false, Transport::Tls),
        }
    }
}

/// When look-ups of credentials leave for the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Each by itself.
    Single,
    /// In full batches, or after a wait.
    Fixed,
    /// In whatever has gathered while the connections were busy.
    Adaptive,
}

impl Mode {
    /// As the configuration has it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::Fixed => "fixed",
            Self::Adaptive => "adaptive",
        }
    }
}

/// How credentials are looked up in a database far away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LookUps {
    /// Connections to the database (Kamailio: processes, with one each).
    pub connections: u32,
    /// When they leave.
    pub mode: Mode,
    /// Most in a batch.
    pub max_batch: u32,
}

impl LookUps {
    /// For people, and the name of a series.
    pub fn text(&self) -> String {
        match self.mode {
            Mode::Single => format!("single {}", self.connections),
            Mode::Fixed => format!("fixed {}×{}", self.connections, self.max_batch),
            Mode::Adaptive => format!("adaptive {}", self.connections),
        }
    }
}

/// A server, configured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Setup {
    /// The server.
    pub server: Server,
    /// What it is to do.
    pub case: Case,
    /// Where credentials are far away: how they are looked up. Absent: they are on this machine.
    pub look_ups: Option<LookUps>,
    /// Part of its CPU that it may use; absent: all.
    pub quota: Option<f64>,
    /// Of ours: new work by UDP waits among everything else (`overload.new_work_queue_bytes = 0`).
    #[serde(default)]
    pub one_queue: bool,
}

impl Setup {
    /// Without quota, credentials near by.
    pub const fn of(server: Server, case: Case) -> Self {
        Self {
            server,
            case,
            look_ups: None,
            quota: None,
            one_queue: false,
        }
    }

    /// For people, and the name of a series.
    pub fn text(&self) -> String {
        format!("{} {}", self.server.name(), self.short())
    }

    /// The same without the server's name, for experiments with one server.
    pub fn short(&self) -> String {
        let text = self
            .look_ups
            .map_or_else(|| self.case.text(), |look_ups| look_ups.text());
        if self.one_queue {
            text + ", one queue"
        } else {
            text
        }
    }
}

/// Why a run is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Purpose {
    /// To find a peak.
    Look,
    /// At the same rate as others, below the peak of each.
    Fixed,
    /// A point of a curve of throughput against offered load.
    Curve,
    /// In turn with others, each at a rate below its peak.
    Duel,
    /// In turn with others, each at the rate that nearly fills its CPU.
    Near,
    /// In turn with others, at the rate that nearly fills another server's CPU.
    Equal,
    /// In turn with others, each at a rate beyond its peak: what is completed is what it carries.
    Beyond,
    /// At a very low rate.
    Rare,
}

/// One run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Why.
    pub purpose: Purpose,
    /// Which repetition, from 1.
    pub round: u32,
    /// Operations a second.
    pub rate: f64,
    /// Seconds before what is counted.
    pub warmup_s: f64,
    /// Seconds that are counted.
    pub duration_s: f64,
    /// Seconds after which calls that have not ended are given up.
    pub drain_s: f64,
    /// When the load counts as carried.
    pub criterion: crate::load::Criterion,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_and_setups_have_names() {
        let call = Case::call(State::Stateless, true, Transport::Tcp);
        assert_eq!(call.text(), "stateless, TCP, digest");
        assert_eq!(
            Case::register(false, true).text(),
            "registration on disk, UDP, no auth"
        );
        assert_eq!(Case::redirect(false).text(), "redirection, UDP, no auth");
        let mut setup = Setup::of(Server::Trapezoid, call);
        assert_eq!(setup.text(), "Trapezoid stateless, TCP, digest");
        let over_tls = Case::call(State::Transaction, false, Transport::Tls);
        let relay = Setup::of(Server::BareRelay, over_tls);
        assert_eq!(relay.text(), "bare relay stateful, TLS, no auth");
        setup.one_queue = true;
        assert_eq!(setup.short(), "stateless, TCP, digest, one queue");
        setup.one_queue = false;
        setup.look_ups = Some(LookUps {
            connections: 8,
            mode: Mode::Fixed,
            max_batch: 16,
        });
        assert_eq!(setup.text(), "Trapezoid fixed 8×16");
    }
}

//! What a pool of connections carries, and what limits it.

use std::fmt;

use super::bytes::BytesCost;
use super::cost::BatchCost;
use super::line::Line;

/// Most connections that the model looks at.
pub const MAX_CONNECTIONS: u32 = 4096;
/// Most rows of a batch that the model looks at.
pub const MAX_BATCH: u32 = 4096;
/// Longest time that any parameter may name, microseconds: a minute.
pub const MAX_TIME_US: f64 = 60e6;
/// Least CPU time of a call, microseconds.
pub const MIN_CPU_US: f64 = 0.01;
/// Most cores of the database.
pub const MAX_CORES: u32 = 1024;

/// What is known of a network, a database and a proxy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameters {
    /// Round trip between proxy and database, microseconds: 0 to [`MAX_TIME_US`].
    pub rtt_us: f64,
    /// Time of the database for a batch; both coefficients at most [`MAX_TIME_US`].
    pub batch: BatchCost,
    /// Batches that the database works on at once: 1 to [`MAX_CORES`].
    pub db_cores: u32,
    /// CPU time of the database for a batch, microseconds, where it is known: less than `batch`, which also
    /// holds what the database waited for.
    pub db_cpu: Option<Line>,
    /// CPU time of the proxy for an authenticated call, microseconds, divided by its workers where there are
    /// several, where it is known: [`MIN_CPU_US`] to [`MAX_TIME_US`].
    pub cpu_per_call_us: Option<f64>,
    /// Payload of a batch.
    pub bytes: BytesCost,
}

/// A parameter that is out of range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadParameter {
    /// Which one.
    pub name: &'static str,
    /// Where it would have to lie.
    pub range: &'static str,
}

impl fmt::Display for BadParameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} must be {}", self.name, self.range)
    }
}

impl std::error::Error for BadParameter {}

/// Connections and the largest batch on each: what is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    connections: u32,
    max_batch: u32,
}

impl Shape {
    /// One connection, one look-up at a time.
    pub const SINGLE: Self = Self {
        connections: 1,
        max_batch: 1,
    };

    /// `None` unless both lie in 1 to [`MAX_CONNECTIONS`] and [`MAX_BATCH`].
    #[must_use]
    pub fn new(connections: u32, max_batch: u32) -> Option<Self> {
        let fits = (1..=MAX_CONNECTIONS).contains(&connections) && (1..=MAX_BATCH).contains(&max_batch);
        fits.then_some(Self {
            connections,
            max_batch,
        })
    }

    /// Connections to the database.
    #[must_use]
    pub fn connections(self) -> u32 {
        self.connections
    }

    /// Most rows of a batch.
    #[must_use]
    pub fn max_batch(self) -> u32 {
        self.max_batch
    }

    /// Look-ups that can be under way at once.
    #[must_use]
    pub fn in_flight(self) -> u32 {
        self.connections * self.max_batch
    }
}

/// What keeps a rate from being higher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// All connections wait for answers: more of them, or larger batches, carry more.
    Connections,
    /// The database works on as many batches as it can at once.
    DatabaseBatches,
    /// The database's CPU.
    DatabaseCpu,
    /// The proxy's CPU.
    ProxyCpu,
}

impl Limit {
    /// A word for output that machines read.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Connections => "connections",
            Self::DatabaseBatches => "database-batches",
            Self::DatabaseCpu => "database-cpu",
            Self::ProxyCpu => "proxy-cpu",
        }
    }
}

/// The most that is carried, and why not more.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Throughput {
    /// Look-ups a second; above 0.
    pub per_s: f64,
    /// What limits it.
    pub limit: Limit,
}

/// Parameters within their ranges.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Model(Parameters);

impl Model {
    /// Checks the parameters.
    ///
    /// # Errors
    /// The first that is out of range.
    pub fn new(parameters: Parameters) -> Result<Self, BadParameter> {
        let bad = |name, range| Err(BadParameter { name, range });
        let time = |value: f64| (0.0..=MAX_TIME_US).contains(&value);
        let line = |line: Line| time(line.fixed()) && time(line.per_row());
        if !time(parameters.rtt_us) {
            return bad("the round trip", "0 to 60 s");
        }
        if !line(parameters.batch.line()) {
            return bad("the database's time for a batch", "0 to 60 s");
        }
        if !(1..=MAX_CORES).contains(&parameters.db_cores) {
            return bad("the number of the database's cores", "1 to 1024");
        }
        if parameters.db_cpu.is_some_and(|cpu| !line(cpu)) {
            return bad("the database's CPU time for a batch", "0 to 60 s");
        }
        if parameters
            .cpu_per_call_us
            .is_some_and(|us| !(MIN_CPU_US..=MAX_TIME_US).contains(&us))
        {
            return bad("the proxy's CPU time for a call", "0.01 µs to 60 s");
        }
        Ok(Self(parameters))
    }

    /// What it was made of.
    #[must_use]
    pub fn parameters(&self) -> &Parameters {
        &self.0
    }

    /// From sending a batch of `rows` to its answer where the database is idle, microseconds.
    #[must_use]
    pub fn response_us(&self, rows: f64) -> f64 {
        self.0.rtt_us + self.0.batch.time_us(rows)
    }

    /// The most that this shape carries when every batch is full: the least of
    /// - `p·b / (RTT + t_batch(b))`: each of p connections brings b rows each time it comes back;
    /// - `k·b / t_batch(b)`: the database works on k batches at once;
    /// - `k / (cpu_row + cpu_fixed / b)`: its CPU, where it is known;
    /// - `1 / cpu_call`: the proxy's CPU, where it is known.
    #[must_use]
    pub fn throughput(&self, shape: Shape) -> Throughput {
        let rows = f64::from(shape.max_batch);
        let cores = f64::from(self.0.db_cores);
        let per_s = |of_rows: f64, us: f64| of_rows * 1e6 / us;
        let limits = [
            Some((
                per_s(f64::from(shape.connections) * rows, self.response_us(rows)),
                Limit::Connections,
            )),
            Some((
                per_s(cores * rows, self.0.batch.time_us(rows)),
                Limit::DatabaseBatches,
            )),
            self.0.db_cpu.map(|cpu| {
                (
                    per_s(cores * rows, cpu.at(rows).max(MIN_CPU_US)),
                    Limit::DatabaseCpu,
                )
            }),
            self.0.cpu_per_call_us.map(|us| (per_s(1.0, us), Limit::ProxyCpu)),
        ];
        let mut least = Throughput {
            per_s: f64::MAX,
            limit: Limit::Connections,
        };
        for (per_s, limit) in limits.into_iter().flatten() {
            if per_s < least.per_s {
                least = Throughput { per_s, limit };
            }
        }
        least
    }

    /// Mean rows of a batch in adaptive mode at `offered_per_s`, where arrivals and answers come evenly: 1 while
    /// connections are idle; else what arrives between two answers, `n = λ·(RTT + t_batch(n)) / p`, or what
    /// makes the database keep up, `n = λ·t_batch(n) / k`, if that is more; `max_batch` at most.
    ///
    /// [`super::simulate()`] has chance in it and is closer; this is for comparing many shapes.
    #[must_use]
    pub fn adaptive_rows(&self, shape: Shape, offered_per_s: f64) -> f64 {
        let per_us = offered_per_s.max(0.0) / 1e6;
        let line = self.0.batch.line();
        let most = f64::from(shape.max_batch);
        // n·servers = λ·(base + per_row·n), solved for n.
        let balance = |base: f64, servers: f64| {
            let left = servers - per_us * line.per_row();
            if left > 0.0 {
                (per_us * base / left).min(most)
            } else {
                most
            }
        };
        let connections = balance(self.0.rtt_us + line.fixed(), f64::from(shape.connections));
        let database = balance(line.fixed(), f64::from(self.0.db_cores));
        connections.max(database).clamp(1.0, most)
    }

    /// Mean wait for a connection in adaptive mode where arrivals and answers come evenly, microseconds: half of
    /// the time that a batch gathers, `n / 2λ`; 0 while connections are idle. Where answers come in a bunch it is
    /// longer, up to `(RTT + t_batch) / 2`: simulations tell (see [`super::Mode::Adaptive`]).
    #[must_use]
    pub fn adaptive_wait_us(&self, shape: Shape, offered_per_s: f64) -> f64 {
        let rows = self.adaptive_rows(shape, offered_per_s);
        if rows > 1.0 && offered_per_s > 0.0 {
            rows * 1e6 / (2.0 * offered_per_s)
        } else {
            0.0
        }
    }

    /// Mean wait in fixed mode where connections are always idle, microseconds. The first of a batch starts the
    /// timer `max_wait_us`; up to `b − 1` others follow before it ends or the batch is full.
    #[must_use]
    pub fn fixed_wait_us(max_batch: u32, max_wait_us: f64, offered_per_s: f64) -> f64 {
        let others = f64::from(max_batch.saturating_sub(1));
        let per_us = offered_per_s.max(0.0) / 1e6;
        let max_wait_us = max_wait_us.clamp(0.0, MAX_TIME_US);
        if per_us * max_wait_us >= others {
            // It fills in time: the i-th of b waits for b − i more.
            if per_us > 0.0 {
                others / (2.0 * per_us)
            } else {
                0.0
            }
        } else {
            let followers = per_us * max_wait_us;
            (max_wait_us + followers * max_wait_us / 2.0) / (1.0 + followers)
        }
    }

    /// Kilobits a second each way, towards the database and from it, for `per_s` look-ups in batches of `rows`.
    #[must_use]
    pub fn kbit_per_s(&self, per_s: f64, rows: f64) -> (f64, f64) {
        let rows = rows.max(1.0);
        let wire = self.0.bytes.wire(rows);
        let kbit_of_byte = per_s / rows * 8.0 / 1000.0;
        (wire.out * kbit_of_byte, wire.back * kbit_of_byte)
    }
}

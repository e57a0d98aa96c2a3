//! A pool of connections, simulated event by event: what chance adds to the formulas.
//!
//! Look-ups arrive at random (Poisson). Batches wait for a connection, then half a round trip, then in order of
//! arrival for one of the database's cores, which works on each for `t_batch(b)`; the answer takes the other
//! half. Same arguments, same result: chance comes from the seed.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::model::{MAX_TIME_US, Model, Shape};

/// Fewest look-ups of a run.
pub const MIN_ARRIVALS: u32 = 1_000;
/// Most look-ups of a run.
pub const MAX_ARRIVALS: u32 = 10_000_000;
/// Lowest and highest rate, a second.
pub const RATES: (f64, f64) = (1e-3, 1e8);
/// Look-ups that may wait; more are refused, and counted.
const MAX_WAITING: usize = 100_000;
/// Of all look-ups this part comes before anything is counted, so that the pool is as busy as it will be.
const WARM_UP: f64 = 0.2;

/// When a batch leaves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mode {
    /// Each look-up by itself, as soon as a connection is idle.
    Single,
    /// A full batch, or one with a first look-up that has waited this long, as soon as a connection is idle.
    Fixed {
        /// Longest wait for others.
        max_wait_us: f64,
    },
    /// Whatever waits, as soon as a connection is idle. Where a load begins suddenly all connections leave with
    /// small batches at nearly the same time, come back so, and do it again: waits are then up to a whole round
    /// trip, and half of one in the mean.
    Adaptive,
    /// The same, but a batch that is not full leaves no sooner after the last one than `(RTT + t_batch) / p`, or
    /// than so many microseconds if that is less: connections then come back evenly.
    Spaced {
        /// Longest time between two batches while a connection is idle.
        max_gap_us: f64,
    },
}

/// When a batch that is not full is ready.
#[derive(Clone, Copy, Debug)]
enum Ready {
    /// So long after its first look-up came.
    AfterFirst(f64),
    /// So long after the last batch left.
    AfterLast(f64),
}

/// What is simulated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Run {
    /// When a batch leaves.
    pub mode: Mode,
    /// Look-ups offered a second; held within [`RATES`].
    pub offered_per_s: f64,
    /// How many of them; held within [`MIN_ARRIVALS`] and [`MAX_ARRIVALS`].
    pub arrivals: u32,
    /// Chance.
    pub seed: u64,
}

/// The outcome, after a warm-up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// Look-ups offered a second.
    pub offered_per_s: f64,
    /// Look-ups answered a second.
    pub carried_per_s: f64,
    /// Look-ups that found too many waiting.
    pub refused: u64,
    /// Whether more was offered than the pool carries: then waits grow without end, and tell only how long the
    /// run was.
    pub saturated: bool,
    /// Mean wait from arrival to being sent, microseconds.
    pub mean_wait_us: f64,
    /// The wait that 99 % do not exceed, microseconds.
    pub p99_wait_us: f64,
    /// Mean time from arrival to the answer, microseconds.
    pub mean_response_us: f64,
    /// Mean rows of a batch.
    pub mean_rows: f64,
}

/// Runs it.
///
/// The proxy's and the database's CPU, where they are known apart from `t_batch`, are not simulated: at rates
/// that they do not carry the outcome is `saturated`, and carried is what they carry.
#[must_use]
pub fn simulate(model: &Model, shape: Shape, run: Run) -> Outcome {
    let run = Run {
        offered_per_s: finite(run.offered_per_s).clamp(RATES.0, RATES.1),
        arrivals: run.arrivals.clamp(MIN_ARRIVALS, MAX_ARRIVALS),
        ..run
    };
    let held = |us: f64| finite(us).clamp(0.0, MAX_TIME_US);
    let (max_batch, ready) = match run.mode {
        Mode::Single => (1, Ready::AfterFirst(0.0)),
        Mode::Fixed { max_wait_us } => (shape.max_batch(), Ready::AfterFirst(held(max_wait_us))),
        Mode::Adaptive => (shape.max_batch(), Ready::AfterFirst(0.0)),
        Mode::Spaced { max_gap_us } => {
            let even = model.response_us(f64::from(shape.max_batch())) / f64::from(shape.connections());
            (shape.max_batch(), Ready::AfterLast(even.min(held(max_gap_us))))
        }
    };
    let effective = Shape::new(shape.connections(), max_batch).unwrap_or(shape);
    let peak = model.throughput(effective).per_s;
    let mut pool = Pool::new(model, effective, ready, &run);
    pool.run();
    let mut outcome = pool.outcome(run.offered_per_s);
    outcome.saturated |= run.offered_per_s >= peak;
    outcome.carried_per_s = outcome.carried_per_s.min(peak);
    outcome
}

fn finite(value: f64) -> f64 {
    if value.is_finite() { value } else { 0.0 }
}

/// A moment, microseconds after the start; ordered, since none is NaN.
#[derive(Clone, Copy, Debug)]
struct At(f64);

impl PartialEq for At {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for At {}

impl PartialOrd for At {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for At {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// SplitMix64: small, and good enough for arrivals.
#[derive(Debug)]
struct Chance(u64);

impl Chance {
    /// Above 0, at most 1.
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^= z >> 31;
        ((z >> 11) as f64 + 1.0) / (1u64 << 53) as f64
    }

    /// A time between two events of a Poisson process.
    fn gap(&mut self, mean: f64) -> f64 {
        -self.unit().ln() * mean
    }
}

#[derive(Debug)]
struct Pool<'a> {
    model: &'a Model,
    max_batch: usize,
    ready: Ready,
    /// When the last batch left.
    last: f64,
    chance: Chance,
    gap_us: f64,
    /// Look-ups still to come.
    left: u32,
    /// Look-ups still to come when counting begins.
    counted: u32,
    counting: bool,
    now: f64,
    /// When counting began.
    since: f64,
    idle: u32,
    /// Arrivals of those that wait, and whether they are counted.
    waiting: VecDeque<(f64, bool)>,
    /// When each connection under way comes back, and with how many rows.
    under_way: BinaryHeap<Reverse<(At, usize)>>,
    /// When each core of the database is free.
    cores: BinaryHeap<Reverse<At>>,
    waits: Vec<f32>,
    responses_us: f64,
    answered: u64,
    batches: u64,
    rows: u64,
    refused: u64,
}

impl<'a> Pool<'a> {
    fn new(model: &'a Model, shape: Shape, ready: Ready, run: &Run) -> Self {
        let counted = f64::from(run.arrivals) * (1.0 - WARM_UP);
        Self {
            model,
            max_batch: shape.max_batch() as usize,
            ready,
            last: f64::MIN,
            chance: Chance(run.seed),
            gap_us: 1e6 / run.offered_per_s,
            left: run.arrivals,
            counted: counted as u32,
            counting: false,
            now: 0.0,
            since: 0.0,
            idle: shape.connections(),
            waiting: VecDeque::new(),
            under_way: BinaryHeap::new(),
            cores: (0..model.parameters().db_cores)
                .map(|_| Reverse(At(0.0)))
                .collect(),
            waits: Vec::with_capacity(counted as usize),
            responses_us: 0.0,
            answered: 0,
            batches: 0,
            rows: 0,
            refused: 0,
        }
    }

    /// Until the last arrival.
    fn run(&mut self) {
        let mut arrival = self.chance.gap(self.gap_us);
        while self.left > 0 {
            let answer = self.under_way.peek().map_or(f64::MAX, |Reverse((at, _))| at.0);
            let timer = match self.waiting.front() {
                Some((first, _)) if self.idle > 0 => self.ready_at(*first),
                Some(_) | None => f64::MAX,
            };
            self.now = arrival.min(answer).min(timer);
            if answer <= self.now {
                self.answer();
            } else if arrival <= self.now {
                self.arrive();
                arrival = self.now + self.chance.gap(self.gap_us);
            }
            self.send();
        }
    }

    /// When a batch is ready, if its first look-up came at `first` and it does not fill before.
    fn ready_at(&self, first: f64) -> f64 {
        match self.ready {
            Ready::AfterFirst(us) => first + us,
            Ready::AfterLast(us) => (self.last + us).max(first),
        }
    }

    fn arrive(&mut self) {
        if self.left == self.counted {
            self.since = self.now;
            self.counting = true;
        }
        if self.waiting.len() < MAX_WAITING {
            self.waiting.push_back((self.now, self.counting));
        } else {
            self.refused += 1;
        }
        self.left -= 1;
    }

    fn answer(&mut self) {
        if let Some(Reverse((_, rows))) = self.under_way.pop() {
            self.idle += 1;
            if self.counting {
                self.answered += rows as u64;
            }
        }
    }

    /// Sends what is ready, while there is a connection.
    fn send(&mut self) {
        while self.idle > 0 {
            let Some((first, _)) = self.waiting.front() else {
                return;
            };
            let ready = self.waiting.len() >= self.max_batch || self.now >= self.ready_at(*first);
            if !ready {
                return;
            }
            let rows = self.waiting.len().min(self.max_batch);
            let parameters = self.model.parameters();
            let reached = self.now + parameters.rtt_us / 2.0;
            let core = self.cores.pop().map_or(0.0, |Reverse(at)| at.0);
            let done = reached.max(core) + parameters.batch.time_us(rows as f64);
            self.cores.push(Reverse(At(done)));
            let back = done + parameters.rtt_us / 2.0;
            self.under_way.push(Reverse((At(back), rows)));
            self.idle -= 1;
            self.last = self.now;
            if self.counting {
                self.batches += 1;
                self.rows += rows as u64;
            }
            for (arrived, counted) in self.waiting.drain(..rows) {
                if counted {
                    self.waits.push((self.now - arrived) as f32);
                    self.responses_us += back - arrived;
                }
            }
        }
    }

    fn outcome(mut self, offered_per_s: f64) -> Outcome {
        let sent = self.waits.len();
        let mean = |sum: f64| if sent > 0 { sum / sent as f64 } else { 0.0 };
        let mean_wait_us = mean(self.waits.iter().map(|w| f64::from(*w)).sum());
        let p99_wait_us = if sent > 0 {
            let rank = (sent * 99).div_ceil(100) - 1;
            f64::from(*self.waits.select_nth_unstable_by(rank, f32::total_cmp).1)
        } else {
            0.0
        };
        let seconds = (self.now - self.since) / 1e6;
        Outcome {
            offered_per_s,
            carried_per_s: if seconds > 0.0 {
                self.answered as f64 / seconds
            } else {
                0.0
            },
            refused: self.refused,
            saturated: self.refused > 0,
            mean_wait_us,
            p99_wait_us,
            mean_response_us: mean(self.responses_us),
            mean_rows: if self.batches > 0 {
                self.rows as f64 / self.batches as f64
            } else {
                1.0
            },
        }
    }
}

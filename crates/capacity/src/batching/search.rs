//! Which connections and batches carry a target, and at what price.

use super::model::{MAX_BATCH, MAX_CONNECTIONS, Model, Shape, Throughput};
use super::simulate::{Mode, Outcome, RATES, Run, simulate};

/// Bandwidths this close to the least count as equal: the smaller shape is chosen.
pub const TIE: f64 = 0.01;

/// What is to be carried, and with what.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Goal {
    /// Look-ups a second; within [`RATES`].
    pub target_per_s: f64,
    /// The peak must be so many times the target; at least 1.
    pub headroom: f64,
    /// Most connections: 1 to [`MAX_CONNECTIONS`].
    pub max_connections: u32,
    /// Largest batch: 1 to [`MAX_BATCH`]; powers of two up to it are tried.
    pub max_batch: u32,
}

/// A shape, what it carries, and what it costs at the target in adaptive mode.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Connections and largest batch.
    pub shape: Shape,
    /// The most that it carries.
    pub peak: Throughput,
    /// Mean rows of a batch at the target; see [`Model::adaptive_rows`].
    pub rows: f64,
    /// Kilobits a second towards the database at the target.
    pub out_kbit_per_s: f64,
    /// Kilobits a second from the database at the target.
    pub back_kbit_per_s: f64,
    /// Mean wait at the target, microseconds; see [`Model::adaptive_wait_us`].
    pub wait_us: f64,
}

impl Candidate {
    /// Kilobits a second, both ways together.
    #[must_use]
    pub fn kbit_per_s(&self) -> f64 {
        self.out_kbit_per_s + self.back_kbit_per_s
    }
}

/// The answer to a [`Goal`].
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// What to configure.
    pub choice: Candidate,
    /// For each size of batch that can carry the target the fewest connections with which it does, in ascending
    /// order of batch.
    pub alternatives: Vec<Candidate>,
}

/// No shape carries the target.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Unreachable {
    /// What would have to be carried: target times headroom.
    pub needed_per_s: f64,
    /// The shape that carries most, and what limits it.
    pub best: Candidate,
}

/// The shape that needs the least bandwidth among all that carry `target · headroom`; of those within [`TIE`] of
/// it the one with the fewest look-ups in flight, and of these the one with the shortest wait.
///
/// Values of the goal outside their ranges are held within them.
///
/// # Errors
/// No shape within the goal's bounds carries that much.
pub fn search(model: &Model, goal: &Goal) -> Result<Plan, Box<Unreachable>> {
    let target = held(goal.target_per_s, RATES.0, RATES.1);
    let needed_per_s = target * held(goal.headroom, 1.0, 1e6);
    let mut alternatives: Vec<Candidate> = Vec::new();
    let mut carrying: Vec<Candidate> = Vec::new();
    let mut best = candidate(model, Shape::SINGLE, target);
    for max_batch in powers_of_two(goal.max_batch) {
        let mut fewest = None;
        for connections in 1..=goal.max_connections.clamp(1, MAX_CONNECTIONS) {
            let Some(shape) = Shape::new(connections, max_batch) else {
                continue;
            };
            let candidate = candidate(model, shape, target);
            if candidate.peak.per_s > best.peak.per_s {
                best = candidate;
            }
            if candidate.peak.per_s >= needed_per_s {
                fewest.get_or_insert(candidate);
                carrying.push(candidate);
            }
        }
        alternatives.extend(fewest);
    }
    match choose(&carrying) {
        Some(choice) => Ok(Plan { choice, alternatives }),
        None => Err(Box::new(Unreachable { needed_per_s, best })),
    }
}

/// The row of a shape.
#[must_use]
pub fn candidate(model: &Model, shape: Shape, target_per_s: f64) -> Candidate {
    let rows = model.adaptive_rows(shape, target_per_s);
    let (out_kbit_per_s, back_kbit_per_s) = model.kbit_per_s(target_per_s, rows);
    Candidate {
        shape,
        peak: model.throughput(shape),
        rows,
        out_kbit_per_s,
        back_kbit_per_s,
        wait_us: model.adaptive_wait_us(shape, target_per_s),
    }
}

fn choose(carrying: &[Candidate]) -> Option<Candidate> {
    let least = carrying
        .iter()
        .map(Candidate::kbit_per_s)
        .fold(f64::MAX, f64::min);
    carrying
        .iter()
        .filter(|c| c.kbit_per_s() <= least * (1.0 + TIE))
        .min_by(|a, b| {
            let in_flight = a.shape.in_flight().cmp(&b.shape.in_flight());
            in_flight.then(a.wait_us.total_cmp(&b.wait_us))
        })
        .copied()
}

/// 1, 2, 4 … up to `most`.
pub fn powers_of_two(most: u32) -> impl Iterator<Item = u32> + Clone {
    let most = most.clamp(1, MAX_BATCH);
    std::iter::successors(Some(1u32), |last| last.checked_mul(2)).take_while(move |n| *n <= most)
}

/// A point of the curve: what a shape does at one offered load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadPoint {
    /// What happened; `carried_per_s` is what is offered unless saturated.
    pub outcome: Outcome,
    /// Kilobits a second towards the database.
    pub out_kbit_per_s: f64,
    /// Kilobits a second from the database.
    pub back_kbit_per_s: f64,
}

/// What a shape does at one offered load, simulated.
#[must_use]
pub fn at_load(model: &Model, shape: Shape, run: Run) -> LoadPoint {
    let mut outcome = simulate(model, shape, run);
    if !outcome.saturated {
        // The rest is the chance of one run.
        outcome.carried_per_s = outcome.offered_per_s;
    }
    let (out_kbit_per_s, back_kbit_per_s) = model.kbit_per_s(outcome.carried_per_s, outcome.mean_rows);
    LoadPoint {
        outcome,
        out_kbit_per_s,
        back_kbit_per_s,
    }
}

/// Parts of the peak at which the curve has its points.
pub const LOADS: [f64; 14] = [
    0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0, 1.2,
];

/// What a shape does from nearly no load to more than it carries: one point for each of [`LOADS`].
#[must_use]
pub fn curve(model: &Model, shape: Shape, mode: Mode, arrivals: u32, seed: u64) -> Vec<LoadPoint> {
    let peak = model.throughput(shape).per_s;
    let run = |part: f64| Run {
        mode,
        offered_per_s: peak * part,
        arrivals,
        seed,
    };
    LOADS
        .iter()
        .map(|part| at_load(model, shape, run(*part)))
        .collect()
}

fn held(value: f64, least: f64, most: f64) -> f64 {
    if value.is_finite() {
        value.clamp(least, most)
    } else {
        least
    }
}

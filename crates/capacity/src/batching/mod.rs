//! The credential pipeline: connections to a remote database, and batches of look-ups on each.
//!
//! A look-up costs a round trip, whatever the database does with it. Connections and batches share round trips
//! out among look-ups; this model says how many of each a load needs, which Dacosta and others left as future
//! work ("Improving authentication performance of distributed SIP proxies", 2009, §6).
//!
//! - [`BatchCost`]: `t_batch(b)`, the database's time for a batch of b rows, fitted from measured batches.
//! - [`BytesCost`]: bytes of a batch on the wire, each way.
//! - [`Model`]: what p connections with batches of b carry, and what limits it.
//! - [`simulate()`]: waits and sizes of batches at a load, with chance in it.
//! - [`search()`]: the connections and batches of least bandwidth that carry a target.

mod bytes;
mod cost;
mod line;
mod model;
mod search;
mod simulate;

pub use bytes::{BytesCost, BytesSample, HEADERS, SEGMENT, WireBytes};
pub use cost::{BatchCost, BatchSample};
pub use line::{Fit, FitError, Line, MAX_SIZE, MAX_VALUE, MAX_WEIGHT, Point, Residual, fit};
pub use model::{
    BadParameter, Limit, MAX_BATCH, MAX_CONNECTIONS, MAX_CORES, MAX_TIME_US, MIN_CPU_US, Model, Parameters,
    Shape, Throughput,
};
pub use search::{
    Candidate, Goal, LOADS, LoadPoint, Plan, TIE, Unreachable, at_load, candidate, curve, powers_of_two,
    search,
};
pub use simulate::{MAX_ARRIVALS, MIN_ARRIVALS, Mode, Outcome, RATES, Run, simulate};

#[cfg(test)]
mod tests;

//! The back-ends that serve the core's queries: stores, credentials, DNS.
//!
//! The core never waits for the result of a query ([`sip_core::query::Query`]). [`Backend::submit`] takes the
//! queries of one worker, gives each to the thread that serves it and returns at once. Results come back
//! through a [`ResultSink`], in batches. Every queue is bounded: a query that does not fit gets the result
//! [`sip_core::query::Unavailable`] at once, and is counted.
//!
//! - [`location`]: registrations on disk, by an append-only journal folded into SQLite.
//! - [`subscribers`]: the OpenSER-style `subscriber` table, look-ups in batches, a cache.
//! - [`shared`]: the sharded maps that the workers share ([`sip_core::shared::SharedState`]).
//! - [`known`]: source addresses with a recent registration.
//! - [`dns`]: A, AAAA and SRV records.
//! - [`metrics`]: counters, gauges and histograms of all of them.
//!
//! Stores run on plain threads of their own; only [`dns`] is asynchronous. `crates/loom-models` has models of
//! the state that threads share.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod front;
mod queue;
mod sqlite;
mod sync;
mod throttle;

pub mod dns;
pub mod known;
pub mod location;
pub mod metrics;
pub mod shared;
pub mod subscribers;

pub use self::front::Backend;

use sip_core::id::QueryId;
use sip_core::query::QueryResult;

/// Delivers results to the worker of the query. The threads of the stores call the sink, so it must not
/// block: it puts the result into that worker's queue. The core bounds the queries, and so their results.
pub trait ResultSink: Send + Sync {
    /// Delivers one result to worker `origin`.
    fn deliver(&self, origin: u16, id: QueryId, result: QueryResult);

    /// Ends a batch of results: wakes the workers that got any.
    fn flush(&self) {}
}

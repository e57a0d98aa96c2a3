//! Answers to the core's queries: stores, credentials, DNS.
//!
//! The core asks ([`sip_core::query::Query`]) and never waits; [`Backend::submit`] takes the
//! questions of one worker, gives each to the thread that can answer it and returns at once.
//! Answers come back through an [`ResultSink`], in batches. Every queue is bounded: what does not
//! fit is answered [`sip_core::query::Unavailable`] there and then, and counted.
//!
//! - [`location`]: registrations on disk, by an append-only journal folded into SQLite.
//! - [`subscribers`]: the OpenSER-style `subscriber` table, look-ups in batches, a cache.
//! - [`shared`]: the sharded maps that the workers share ([`sip_core::shared::SharedState`]).
//! - [`known`]: source addresses with a recent registration.
//! - [`dns`]: A, AAAA and SRV records.
//! - [`metrics`]: what all of them count.
//!
//! Stores run on plain threads of their own; only [`dns`] is asynchronous. What threads share is
//! modelled in `crates/loom-models`.
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

/// Takes results back to the worker that asked. It is called from the threads of the stores, so it must not block: put
/// the result into that worker's queue. The core bounds the queries, and so their results.
pub trait ResultSink: Send + Sync {
    /// One result for worker `origin`.
    fn deliver(&self, origin: u16, id: QueryId, result: QueryResult);

    /// The batch of results delivered so far is complete: wake the workers that got any.
    fn flush(&self) {}
}

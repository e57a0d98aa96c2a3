//! An open-loop SIP load generator: user agents at both ends of a server.
//!
//! Calls begin at their planned times, whatever the server does, and all times are measured from then. So a
//! slow server is reported as slow (no coordinated omission). The user agents behave according to RFC 3261:
//! they retransmit, acknowledge, and give up at 64 × T1. Each failure is counted under its cause.
//!
//! [`run()`] plays a [`plan::Plan`] in one thread: system calls in batches, no task and, once warm, next to
//! no allocation for a call. The user agents themselves (`uac`, `uas`) use neither socket nor clock.
#![warn(missing_docs)]

mod digest;
mod net;
mod outbox;
pub mod plan;
mod run;
mod schedule;
mod stats;
mod text;
mod timers;
mod uac;
mod uas;

pub use run::{LoadError, Progress, run};
pub use schedule::{Offered, Ramp};
pub use stats::{Generator, Quantiles, Report, Second};

/// Microseconds since the start.
pub(crate) type Micros = u64;

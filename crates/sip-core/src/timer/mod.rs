//! Timers: one hierarchical wheel per endpoint ([`wheel::Wheel`]), keyed by a value that the caller gets back
//! when a timer fires. The timers themselves are described at their use: those of the transactions in
//! [`crate::transaction::Timer`].

pub mod wheel;

pub use wheel::{TICK_US, TimerId, Wheel};

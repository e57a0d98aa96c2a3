//! Timers: one hierarchical wheel per endpoint ([`wheel::Wheel`]), keyed by what the caller wants
//! to hear when one fires. What the timers are is said where they are used: those of the
//! transactions in [`crate::transaction::Timer`].

pub mod wheel;

pub use wheel::{TICK_US, TimerId, Wheel};

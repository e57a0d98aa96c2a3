//! A deterministic simulator: networks of real cores under virtual time and one seed. The same seed
//! gives the same run, byte for byte (docs/simulator.md).
//!
//! [`network`] is the whole of it, and what `make sim` plays (`src/bin/sim.rs`): servers with their
//! connections, back-ends and location journal on a [`disk`] that loses power, phones, gateways, a stranger,
//! troubles, and the rules. A phone's side of a call is [`agent`]'s, written from RFC 3261
//! independently of the core.

#![forbid(unsafe_code)]

pub mod agent;
pub mod cells;
pub mod clock;
pub mod disk;
pub mod message;
pub mod network;
pub mod report;
pub mod rng;
pub mod trace;

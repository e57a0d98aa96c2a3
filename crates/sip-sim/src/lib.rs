//! A deterministic simulator: networks of real cores under virtual time, from one seed. The same seed gives
//! the same run, byte for byte (docs/simulator.md).
//!
//! [`network`] is the simulation that `make sim` plays (`src/bin/sim.rs`): servers, phones, gateways, a
//! stranger, troubles, and the rules. Servers have connections, back-ends and a location journal on a
//! [`disk`] that loses power. [`overload`] is one server that is offered more than it carries. [`agent`] is a phone's side of a call, written from RFC 3261 independently of
//! the core.

#![forbid(unsafe_code)]

pub mod agent;
pub mod cells;
pub mod clock;
pub mod disk;
pub mod message;
pub mod network;
pub mod overload;
pub mod report;
pub mod rng;
pub mod trace;

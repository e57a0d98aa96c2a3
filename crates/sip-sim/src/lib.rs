//! A deterministic simulator: networks of real cores under virtual time and one seed. The same seed
//! gives the same run, byte for byte (docs/simulator.md).
//!
//! [`network`] is the whole of it, and what `make sim` plays (`src/bin/sim.rs`): servers with their
//! connections, back-ends and location journal on a [`disk`] that loses power, phones, a stranger,
//! troubles, and the rules. A phone's side of a call is [`agent`]'s, written from RFC 3261
//! independently of the core.
//!
//! Two smaller worlds run in the crate's tests: two proxies in a row ([`scenario`], [`world`],
//! [`proxy`], [`checker`]) and one that forks ([`fork`]); [`runner`] runs many seeds of either.
//! `SEED=n cargo test -p sip-sim --test suite seeds:: -- --nocapture` prints the ladder of one seed
//! (`CALL=n`: of one call in it); `SEEDS=a..b` runs others than the fixed ones.

#![forbid(unsafe_code)]

pub mod agent;
pub mod cells;
pub mod checker;
pub mod clock;
pub mod disk;
pub mod fork;
pub mod message;
pub mod mutant;
pub mod net;
pub mod network;
pub mod node;
pub mod proxy;
pub mod report;
pub mod rng;
pub mod runner;
pub mod scenario;
pub mod trace;
pub mod world;

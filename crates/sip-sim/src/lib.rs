//! A deterministic simulator: a network of real cores under virtual time and one seed.
//!
//! A seed stands for a [`scenario::Scenario`]: the faults of each link, the proxies'
//! configuration, the calls. [`world::run`] plays it: two user agents ([`agent`], written from
//! RFC 3261 independently of the core) call each other through two proxies ([`proxy`], the
//! core's own `Endpoint`), and [`checker`] compares what the network saw with what must hold.
//! The same seed gives the same trace, byte for byte. [`fork`] does the same for calls that fork,
//! and [`runner`] runs many seeds of either.
//!
//! `SEED=n cargo test -p sip-sim --test seeds -- --nocapture` prints the ladder of one seed
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

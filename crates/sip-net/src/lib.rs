//! Sockets in batches and the workers' event loop. Linux only.
//!
//! - [`udp`]: datagrams by `recvmmsg` and `sendmmsg`, ICMP errors with what they are about.
//! - [`tcp`]: connections, framed into messages.
//! - [`epoll`], [`clock`]: waiting, and the one reading of the clocks in each turn.
//! - [`mailbox`], [`hub`]: what other threads give to a worker.
//! - [`tls`]: TLS as values that are fed with bytes; certificates, tickets, peers' names.
//! - [`accepted`]: which worker holds the connection that a peer opened.
//! - [`bind`], [`interfaces`]: making all sockets before any thread starts.
//! - [`worker`]: the loop.
//! - [`cpu`]: what the workers' CPU time goes into.
//! - [`memory`]: the allocator.
//! - [`settings`], [`counters`]: every bound, and what is counted.
//!
//! All `unsafe` code is in the private module `sys`. With `--cfg loom` (`cargo xtask loom`) only
//! what workers share is here, on the locks and atomics of the model checker.
#![warn(missing_docs)]

pub mod accepted;
#[cfg(not(loom))]
mod addr;
#[cfg(not(loom))]
pub mod bind;
#[cfg(not(loom))]
pub mod clock;
#[cfg(not(loom))]
pub mod counters;
#[cfg(not(loom))]
pub mod cpu;
#[cfg(not(loom))]
pub mod epoll;
pub mod hub;
#[cfg(not(loom))]
pub mod interfaces;
pub mod mailbox;
#[cfg(not(loom))]
pub mod memory;
#[cfg(all(loom, test))]
mod models;
pub mod settings;
mod sync;
#[cfg(not(loom))]
mod sys;
#[cfg(not(loom))]
pub mod tcp;
#[cfg(not(loom))]
pub mod tls;
#[cfg(not(loom))]
pub mod udp;
mod waker;
#[cfg(not(loom))]
pub mod worker;

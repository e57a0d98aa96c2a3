//! Sockets in batches and the workers' event loop. Linux only.
//!
//! - [`udp`]: datagrams by `recvmmsg` and `sendmmsg`, and ICMP errors with the datagrams that caused them.
//! - [`tcp`]: connections, framed into messages.
//! - [`epoll`], [`clock`]: waiting, and the one reading of the clocks in each turn.
//! - [`mailbox`], [`hub`]: messages, results and orders from other threads to a worker.
//! - [`tls`]: TLS as values that are fed with bytes; certificates, tickets, peers' names.
//! - [`accepted`]: the worker of each accepted connection.
//! - [`bind`], [`interfaces`]: binding of all sockets before any thread starts.
//! - [`worker`]: the loop.
//! - [`cpu`]: the workers' CPU time by component.
//! - [`memory`]: the allocator.
//! - [`settings`], [`counters`]: every bound, and every count.
//!
//! All `unsafe` code is in the private module `sys`. `crates/loom-models` has models of the state that
//! workers share.
#![warn(missing_docs)]

pub mod accepted;
mod addr;
pub mod bind;
pub mod clock;
pub mod counters;
pub mod cpu;
pub mod epoll;
pub mod hub;
pub mod interfaces;
pub mod mailbox;
pub mod memory;
pub mod settings;
mod sync;
mod sys;
pub mod tcp;
pub mod tls;
pub mod udp;
mod waker;
pub mod worker;

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
//! All `unsafe` code is in the private module `sys`. What workers share is modelled in
//! `crates/loom-models`.
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

//! Connections: listening, opening, framing, sending, ending.
//!
//! A connection belongs to one worker. A connection that a peer opens belongs to the worker of the listener
//! that the kernel chose. A connection that we open belongs to worker `hash(peer) mod N`, so that a process
//! has one connection to each peer. A [`sip_core::id::ConnId`] names worker, slot and generation.

mod accepting;
mod admission;
mod conn;
mod ending;
mod event;
mod holders;
mod layer;
mod listener;
mod peers;
mod queue;
mod service;
mod streams;
mod table;
mod wheel;

pub use event::{Arrival, ForeignPage, TlsFailure, Verdict};
pub use listener::{TcpListener, TcpOptions};
pub use peers::choose_port_late;
pub use service::{Sharing, StreamService};
pub use streams::{Naming, Outgoing, Serving, Streams};

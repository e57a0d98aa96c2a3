//! Sockets of both ends.

mod connection;
mod datagrams;
mod setup;
mod streams;
mod websocket;

pub(crate) use datagrams::Datagrams;
pub(crate) use setup::{dial, listen};
pub(crate) use streams::{Dial, Streams};

/// Which end a socket or connection belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Callers,
    Called,
}

/// Numbers under which sockets are waited for: the callers' and the called end's for datagrams,
/// the called end's for connections, and then all connections.
pub(crate) const CALLERS_SOCKET: u64 = 0;
pub(crate) const CALLED_SOCKET: u64 = 1;
pub(crate) const LISTENER: u64 = 2;
pub(crate) const FIRST_CONNECTION: u64 = 3;

//! Sockets of both ends.

mod connection;
mod datagrams;
mod setup;
mod streams;
mod websocket;

pub(crate) use datagrams::Datagrams;
pub(crate) use setup::{dial, listen};
pub(crate) use streams::{Dial, Streams};

/// The end to which a socket or connection belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Callers,
    Called,
}

/// Epoll token of the callers' datagram socket. The next ones are of the called end's datagram socket, the
/// called end's listener, and the connections of both ends.
pub(crate) const CALLERS_SOCKET: u64 = 0;
pub(crate) const CALLED_SOCKET: u64 = 1;
pub(crate) const LISTENER: u64 = 2;
pub(crate) const FIRST_CONNECTION: u64 = 3;

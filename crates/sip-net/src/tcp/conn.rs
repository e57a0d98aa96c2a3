//! One connection: its socket, what has arrived of an unfinished message, what waits to be sent.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

use sip_core::id::{ConnId, ListenerId};
use sip_core::transport::framing::{Framed, Framer};
use sip_core::transport::{Flow, Transport};

use super::queue::OutQueue;
use super::streams::{Arrival, Verdict, Why};
use super::wheel::NEVER;
use crate::counters::NetCounters;
use crate::epoll::Interest;
use crate::settings::Settings;

/// What a connection is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// We open it; it does not stand yet.
    Connecting,
    /// Messages go both ways.
    Open,
    /// We send what is queued, then end.
    Flushing,
    /// Our end is shut; the peer's is awaited, and what it still sends is thrown away, because
    /// closing a socket with unread bytes would reset the connection under our last message.
    Shut,
}

/// A connection. Kept small: there may be 100,000 that say nothing. Buffers exist only while
/// they hold something.
#[derive(Debug)]
pub(super) struct Conn {
    socket: TcpStream,
    pub(super) transport: Transport,
    pub(super) listener: ListenerId,
    pub(super) remote: SocketAddr,
    pub(super) state: State,
    /// What the socket is registered for.
    pub(super) interest: Interest,
    pub(super) framer: Framer,
    pub(super) out: Option<Box<OutQueue>>,
    /// In the list of those to be written at the end of the turn.
    pub(super) is_dirty: bool,
    /// We opened it, so that messages to its peer's address find it.
    pub(super) outbound: bool,
    /// When bytes last went either way.
    active_ms: u64,
    /// When the present state, or the wait for the rest of a message, began.
    since_ms: u64,
    /// When what waits to be sent last shrank; meaningful while something waits.
    pub(super) progress_ms: u64,
    /// Tick of the wheel at which this connection is looked at.
    pub(super) placed: u64,
}

/// Why a deadline has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Overdue {
    /// It did not come to stand.
    Connect,
    /// The peer does not take what we send.
    Write,
    /// A message has begun and does not end.
    Message,
    /// Nothing happens.
    Idle,
    /// Its orderly end takes too long.
    Close,
}

impl Conn {
    pub(super) fn new(socket: TcpStream, flow: &Flow, framer: Framer, outbound: bool, now_ms: u64) -> Self {
        Self {
            socket,
            transport: flow.transport,
            listener: flow.listener,
            remote: flow.remote,
            state: if outbound { State::Connecting } else { State::Open },
            interest: if outbound {
                Interest::ReadWrite
            } else {
                Interest::Read
            },
            framer,
            out: None,
            is_dirty: false,
            outbound,
            active_ms: now_ms,
            since_ms: now_ms,
            progress_ms: now_ms,
            placed: NEVER,
        }
    }

    /// What messages from here carry.
    pub(super) fn flow(&self, id: ConnId) -> Flow {
        Flow {
            transport: self.transport,
            listener: self.listener,
            remote: self.remote,
            conn: Some(id),
        }
    }

    /// Bytes that wait to be sent.
    pub(super) fn waiting(&self) -> usize {
        self.out.as_ref().map_or(0, |out| out.len())
    }

    pub(super) fn enter(&mut self, state: State, now_ms: u64) {
        self.state = state;
        self.since_ms = now_ms;
        self.active_ms = now_ms;
    }

    /// Notes traffic.
    pub(super) fn touch(&mut self, now_ms: u64) {
        self.active_ms = now_ms;
    }

    /// Notes that a message has begun and is not complete.
    pub(super) fn message_begins(&mut self, now_ms: u64) {
        self.since_ms = now_ms;
    }

    /// The earliest time at which something must have happened, and what it means if not.
    pub(super) fn deadline(&self, settings: &Settings) -> (u64, Overdue) {
        let after = |start: u64, ms: u32| start + u64::from(ms);
        match self.state {
            State::Connecting => {
                return (
                    after(self.since_ms, settings.connect_timeout_ms),
                    Overdue::Connect,
                );
            }
            State::Flushing | State::Shut => {
                return (after(self.since_ms, settings.close_timeout_ms), Overdue::Close);
            }
            State::Open => {}
        }
        let mut earliest = (after(self.active_ms, settings.idle_timeout_ms), Overdue::Idle);
        if self.waiting() > 0 {
            earliest =
                earliest.min_by_time((after(self.progress_ms, settings.write_timeout_ms), Overdue::Write));
        }
        if self.framer.is_mid_message() {
            earliest = earliest.min_by_time((
                after(self.since_ms, settings.message_timeout_ms),
                Overdue::Message,
            ));
        }
        earliest
    }

    // The layer between socket and framer: for TLS and WebSocket, what follows here becomes the
    // choice of the codec through which bytes pass.

    /// Reads what is there, at most as much as fits. 0: the peer sends no more.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.socket.read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result,
            }
        }
    }

    /// Writes as much as there is room for; whether all of it. Counts bytes and messages.
    pub(super) fn flush(&mut self, written: &mut u64, messages: &mut u64) -> io::Result<bool> {
        let Some(out) = &mut self.out else { return Ok(true) };
        while out.len() > 0 {
            match self.socket.write(out.waiting()) {
                Ok(count) => {
                    *written += count as u64;
                    *messages += out.advance(count);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Tells the peer that we send no more.
    pub(super) fn shut(&self) -> io::Result<()> {
        self.socket.shutdown(Shutdown::Write)
    }

    /// What became of the attempt to connect.
    pub(super) fn connected(&self) -> io::Result<()> {
        match self.socket.take_error()? {
            Some(error) => Err(error),
            None => self.socket.peer_addr().map(|_| ()),
        }
    }
}

/// What came of the bytes of one read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Taken {
    /// Complete messages.
    pub(super) messages: u64,
    /// Keep-alives to be answered.
    pub(super) pings: u64,
    /// The connection is to end.
    pub(super) end: Option<Why>,
}

impl Conn {
    /// Gives each message that `fresh` completes to `deliver`.
    pub(super) fn take_messages(
        &mut self,
        id: ConnId,
        fresh: &[u8],
        counters: &mut NetCounters,
        deliver: &mut impl FnMut(Flow, Arrival<'_>) -> Verdict,
    ) -> Taken {
        let flow = self.flow(id);
        let mut input = fresh;
        let mut taken = Taken::default();
        loop {
            match self.framer.next(&mut input) {
                Framed::Message(message) => {
                    counters.stream_received += 1;
                    taken.messages += 1;
                    if deliver(flow, Arrival::Message(message)) == Verdict::Close {
                        taken.end = Some(Why::Core);
                        break;
                    }
                }
                Framed::KeepAlivePing => {
                    counters.stream_pings += 1;
                    taken.pings += 1;
                }
                Framed::KeepAlivePong => {}
                Framed::Incomplete => break,
                Framed::Error(error) => {
                    let _ = deliver(flow, Arrival::Fault(error));
                    taken.end = Some(Why::Framing);
                    break;
                }
            }
        }
        taken
    }
}

impl AsFd for Conn {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The earlier of two deadlines.
trait Earlier {
    fn min_by_time(self, other: Self) -> Self;
}

impl Earlier for (u64, Overdue) {
    fn min_by_time(self, other: Self) -> Self {
        if other.0 < self.0 { other } else { self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel's part of a connection is about 3 kB; all of it is to stay below 4.
    #[test]
    fn a_silent_connection_is_small() {
        assert!(size_of::<Conn>() <= 256, "{}", size_of::<Conn>());
    }
}

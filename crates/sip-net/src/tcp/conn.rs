//! One connection: its socket, the bytes of an unfinished message, and the queue of bytes to be sent.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

use sip_core::activity::{Activity, Component};
use sip_core::id::{ConnId, ListenerId, WorkerId};
use sip_core::transport::websocket::write_ping;
use sip_core::transport::{Flow, Proof, Transport};

use super::event::{Arrival, CloseReason, Verdict};
use super::holders::Holding;
use super::layer::{Context, Decoder, Farewell, Secured, Taken, closing_frame};
use super::peers::Peer;
use super::queue::OutQueue;
use super::service::is_websocket;
use super::wheel::NEVER;
use crate::epoll::Interest;
use crate::settings::Settings;

/// State of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Being opened by us; not yet connected.
    Connecting,
    /// In the handshakes of TLS and WebSocket. Messages to be sent wait.
    Handshaking,
    /// Open: messages go both ways.
    Open,
    /// Ending: the queue is still being sent.
    Flushing,
    /// The queue is written; the closing words of WebSocket and TLS are being written.
    Parting,
    /// Our direction is shut; the peer's is awaited. Bytes that still arrive are read and dropped, because
    /// closing a socket with unread bytes would reset the connection under our last message.
    Shut,
}

/// A connection. The struct is kept small: 100,000 connections may be silent. Buffers exist only while they
/// hold something.
#[derive(Debug)]
pub(super) struct Conn {
    socket: TcpStream,
    pub(super) transport: Transport,
    pub(super) listener: ListenerId,
    pub(super) remote: SocketAddr,
    pub(super) state: State,
    /// Events for which the socket is registered.
    pub(super) interest: Interest,
    decoder: Decoder,
    pub(super) tls: Option<Box<Secured>>,
    pub(super) out: Option<Box<OutQueue>>,
    /// The proof that the peer has given of its identity.
    proof: Proof,
    /// Listed for writing at the end of the turn.
    pub(super) is_dirty: bool,
    /// The handshake waits for its turn.
    pub(super) is_parked: bool,
    /// A whole message has arrived.
    pub(super) has_spoken: bool,
    /// A ping was sent, and nothing has arrived since.
    pinged: bool,
    /// The Close frame to be sent last.
    farewell: Option<Farewell>,
    /// The key by which senders find the connection, if we opened it.
    pub(super) opened_to: Option<Box<Peer>>,
    /// A copy of all messages sent on a connection that we opened, until the peer sends something. In TLS 1.3
    /// our handshake is done before the peer has checked our certificate. If the peer refuses the
    /// certificate, it has read nothing of what we took for sent. By TCP, a balancer without a server behind
    /// it accepts, and then closes.
    unheard: Option<Box<OutQueue>>,
    /// Opened to deliver one response: ends after `per_call_idle_ms` unless the peer sends a message.
    is_for_response: bool,
    /// A second address by which the peer wants this connection found (RFC 5923).
    pub(super) alias: Option<Box<SocketAddr>>,
    /// The time at which the connection was made.
    began_ms: u64,
    /// The time at which bytes last went either way.
    active_ms: u64,
    /// The time at which the present state began, or the wait for the rest of a message.
    since_ms: u64,
    /// The time at which the queue last shrank; meaningful while the queue is not empty.
    pub(super) progress_ms: u64,
    /// Tick of the wheel at which this connection is examined.
    pub(super) placed: u64,
    /// Memory last noted for the connection.
    pub(super) holding: Holding,
}

/// Which deadline has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Overdue {
    /// The attempt to connect takes too long.
    Connect,
    /// The handshake takes too long.
    Handshake,
    /// The peer does not read what we send.
    Write,
    /// A message has begun and is not completed.
    Message,
    /// The peer has sent no message since it connected.
    Silent,
    /// No traffic for the idle time.
    Idle,
    /// No traffic, and a ping is due.
    Ping,
    /// The copy of sent messages is kept no longer for a peer that sends nothing.
    Unheard,
    /// The orderly end takes too long.
    Close,
}

/// The parts of a new connection.
pub(super) struct NewConnection {
    pub(super) socket: TcpStream,
    pub(super) flow: Flow,
    pub(super) decoder: Decoder,
    pub(super) tls: Option<Box<Secured>>,
    /// The key of the connection, if we opened it.
    pub(super) opened_to: Option<Box<Peer>>,
    /// Opened to deliver a response.
    pub(super) is_for_response: bool,
}

/// Longest copy of sent messages that is kept until the peer sends something, bytes. If more is sent, no copy
/// is kept.
const UNHEARD: usize = 64 << 10;

impl Conn {
    pub(super) fn new(beginning: NewConnection, now_ms: u64) -> Self {
        let NewConnection {
            socket,
            flow,
            decoder,
            tls,
            opened_to,
            is_for_response,
        } = beginning;
        let outbound = opened_to.is_some();
        let handshake = tls.is_some() || is_websocket(flow.transport);
        Self {
            socket,
            transport: flow.transport,
            listener: flow.listener,
            remote: flow.remote,
            state: match (outbound, handshake) {
                (true, _) => State::Connecting,
                (false, true) => State::Handshaking,
                (false, false) => State::Open,
            },
            interest: if outbound {
                Interest::ReadWrite
            } else {
                Interest::Read
            },
            decoder,
            tls,
            out: None,
            proof: Proof::None,
            is_dirty: false,
            is_parked: false,
            has_spoken: false,
            pinged: false,
            farewell: None,
            unheard: outbound.then(Box::default),
            is_for_response,
            opened_to,
            alias: None,
            began_ms: now_ms,
            active_ms: now_ms,
            since_ms: now_ms,
            progress_ms: now_ms,
            placed: NEVER,
            holding: Holding::default(),
        }
    }

    /// The flow of messages that arrive here.
    pub(super) fn flow(&self, id: ConnId) -> Flow {
        Flow {
            transport: self.transport,
            listener: self.listener,
            remote: self.remote,
            conn: Some(id),
            proof: self.proof,
        }
    }

    /// Whether we opened this connection.
    pub(super) fn is_outbound(&self) -> bool {
        self.opened_to.is_some()
    }

    /// Whether messages can be queued: the connection is open, or we are opening it.
    pub(super) fn takes_messages(&self) -> bool {
        match self.state {
            State::Connecting | State::Open => true,
            State::Handshaking => self.is_outbound(),
            State::Flushing => self.stands(),
            State::Parting | State::Shut => false,
        }
    }

    /// Whether a TLS handshake is under way, the costliest part of a connection.
    pub(super) fn is_securing(&self) -> bool {
        self.state == State::Handshaking && self.tls.as_ref().is_some_and(|tls| tls.session.is_handshaking())
    }

    /// Bytes in the queue.
    pub(super) fn waiting(&self) -> usize {
        self.out.as_ref().map_or(0, |out| out.len())
    }

    /// Memory in bytes beyond the struct: the queue, the copy of sent messages, incomplete messages and
    /// records.
    pub(super) fn memory(&self) -> usize {
        let out = self.out.as_ref().map_or(0, |out| out.memory());
        let unheard = self.unheard.as_ref().map_or(0, |unheard| unheard.memory());
        out + unheard + self.decoder.held_bytes() + self.tls.as_ref().map_or(0, |tls| tls.held_bytes())
    }

    /// Copies a message to be sent, as long as the peer has sent nothing.
    pub(super) fn remember(&mut self, to: Flow, origin: WorkerId, message: &[u8]) {
        if let Some(unheard) = &mut self.unheard {
            if unheard.len() + message.len() > UNHEARD {
                self.unheard = None;
            } else {
                unheard.push(to, origin, message);
            }
        }
    }

    /// Takes the copy of all messages sent, if the peer never sent anything.
    pub(super) fn take_unheard(&mut self) -> Option<Box<OutQueue>> {
        self.unheard.take()
    }

    pub(super) fn is_mid_message(&self) -> bool {
        self.decoder.is_mid_message() || self.tls.as_ref().is_some_and(|tls| tls.session.buffered() > 0)
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

    /// Notes that something arrived.
    pub(super) fn heard(&mut self, now_ms: u64) {
        self.active_ms = now_ms;
        self.pinged = false;
    }

    /// Notes that a message has begun and is not complete.
    pub(super) fn message_begins(&mut self, now_ms: u64) {
        self.since_ms = now_ms;
    }

    /// Events to register for while the queue is not empty. A peer that does not read the responses to its
    /// requests is not read from either ([`Settings::pause_reading_bytes`]). Connections that we opened are
    /// always read from, or two servers would wait for each other.
    pub(super) fn interest_while_unsent(&self, settings: &Settings) -> Interest {
        if self.waiting() > settings.pause_reading_bytes && !self.is_outbound() {
            Interest::Write
        } else {
            Interest::ReadWrite
        }
    }

    /// The earliest deadline, milliseconds, and what its passing means.
    pub(super) fn deadline(&self, settings: &Settings) -> (u64, Overdue) {
        let after = |start: u64, ms: u32| start + u64::from(ms);
        match self.state {
            State::Connecting => {
                return (
                    after(self.since_ms, settings.connect_timeout_ms),
                    Overdue::Connect,
                );
            }
            State::Handshaking => {
                return (
                    after(self.since_ms, settings.handshake_timeout_ms),
                    Overdue::Handshake,
                );
            }
            State::Flushing | State::Parting | State::Shut => {
                return (after(self.since_ms, settings.close_timeout_ms), Overdue::Close);
            }
            State::Open => {}
        }
        let idle_ms = match &self.opened_to {
            Some(peer) if peer.call.is_some() => settings.per_call_idle_ms,
            Some(_) if self.is_for_response && !self.has_spoken => settings.per_call_idle_ms,
            _ => settings.idle_timeout_ms,
        };
        let mut earliest = (after(self.active_ms, idle_ms), Overdue::Idle);
        if self.waiting() > 0 {
            earliest =
                earliest.min_by_time((after(self.progress_ms, settings.write_timeout_ms), Overdue::Write));
        }
        if self.unheard.is_some() {
            // Nothing has arrived since the connection was open.
            let ends = after(self.since_ms, settings.handshake_timeout_ms);
            earliest = earliest.min_by_time((ends, Overdue::Unheard));
        }
        // Nothing can be missing while reading is paused.
        let is_heard = self.interest != Interest::Write;
        if is_heard && self.is_mid_message() {
            earliest = earliest.min_by_time((
                after(self.since_ms, settings.message_timeout_ms),
                Overdue::Message,
            ));
        }
        if !self.has_spoken && !self.is_outbound() && settings.first_message_timeout_ms > 0 {
            earliest = earliest.min_by_time((
                after(self.began_ms, settings.first_message_timeout_ms),
                Overdue::Silent,
            ));
        }
        if is_heard && self.decoder.is_framed() && settings.ws_ping_ms > 0 {
            let overdue = if self.pinged { Overdue::Idle } else { Overdue::Ping };
            earliest = earliest.min_by_time((after(self.active_ms, settings.ws_ping_ms), overdue));
        }
        earliest
    }

    /// Reads what has arrived, at most as much as fits. Returns 0 if the peer has shut its direction.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.socket.read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result,
            }
        }
    }

    /// Handles the bytes that were read, and overwrites them. Messages go to `deliver`. Replies of TLS go to
    /// the connection's records, those of WebSocket and keep-alives to the context's replies.
    ///
    /// Bytes that arrive together with the end of the handshake are handled after it: only then is the
    /// identity of the sender known.
    pub(super) fn take(
        &mut self,
        id: ConnId,
        fresh: &mut [u8],
        context: &mut Context<'_>,
        deliver: &mut impl FnMut(Flow, Arrival<'_>) -> Verdict,
    ) -> Taken {
        let mut taken = Taken::default();
        let flow = self.flow(id);
        let activity = context.activity;
        let Some(tls) = &mut self.tls else {
            self.unheard = None;
            let before = activity.enter(Component::Framing);
            self.decoder.take(flow, fresh, context, &mut taken, deliver);
            activity.enter(before);
            return taken;
        };
        let mut early = Vec::new();
        let decoder = &mut self.decoder;
        let before = activity.enter(Component::Tls);
        let fed = if tls.session.is_handshaking() {
            tls.feed(fresh, |data| early.extend_from_slice(data))
        } else {
            tls.feed(fresh, |data| {
                if taken.end.is_none() {
                    activity.enter(Component::Framing);
                    decoder.take(flow, data, context, &mut taken, deliver);
                    activity.enter(Component::Tls);
                }
            })
        };
        activity.enter(before);
        let peer_closed = match fed {
            Ok(fed) => {
                if fed.plaintext > 0 {
                    self.unheard = None;
                }
                taken.secured = fed.established;
                fed.peer_closed
            }
            Err(error) => {
                taken.end = Some(CloseReason::Tls);
                taken.fault = Some(error);
                return taken;
            }
        };
        if taken.secured {
            self.identify(context.trusted);
            let flow = self.flow(id);
            if !early.is_empty() {
                self.decoder.take(flow, &early, context, &mut taken, deliver);
            }
        }
        if peer_closed && taken.end.is_none() {
            taken.end = Some(CloseReason::Peer);
        }
        taken
    }

    /// Bytes of the queue that may still leave although the connection is about to end; `None` for all of
    /// them.
    pub(super) fn last_bytes(&self) -> Option<usize> {
        let failed = self.tls.as_ref().filter(|tls| tls.session.has_ended());
        match failed {
            Some(tls) => Some(tls.carried()),
            // Before the end of the handshakes, the queue of a connection that we opened holds messages. That
            // of an accepted one holds replies of the handshake.
            None => (self.is_outbound() && !self.stands()).then_some(0),
        }
    }

    /// Whether all handshakes are done, and messages can be sent.
    pub(super) fn stands(&self) -> bool {
        let secured = self
            .tls
            .as_ref()
            .is_none_or(|tls| !tls.session.is_handshaking() && !tls.session.has_ended());
        secured && !matches!(self.decoder, Decoder::Upgrade(_))
    }

    /// Whether the peer has proved to be of this domain.
    pub(super) fn has_proved(&self, name: &str) -> bool {
        match (&self.opened_to, &self.tls) {
            // If the peer was not of that domain, the handshake would have failed.
            (Some(peer), Some(_)) => peer.is_named(name),
            (None, Some(tls)) => tls.identities.as_ref().is_some_and(|own| own.contains(name)),
            (_, None) => true,
        }
    }

    /// Whether the peer has proved its address. Only TLS has anything to prove. A connection that we opened
    /// was opened to that address, or to a domain that has it. (A browser on `wss` proves nothing.)
    pub(super) fn has_proved_address(&self) -> bool {
        self.is_outbound()
            || self.transport != Transport::Tls
            || self.tls.as_ref().is_some_and(|tls| tls.is_of_address)
    }

    /// Notes what the peer has proved in the TLS handshake, which is done.
    fn identify(&mut self, trusted: &[Box<str>]) {
        let Some(tls) = &mut self.tls else { return };
        if tls.session.peer_certificates().is_empty() {
            return;
        }
        let identities = Box::new(tls.session.peer_identities());
        let is_trusted = trusted.iter().any(|name| identities.contains(name));
        tls.identities = Some(identities);
        tls.is_of_address = tls.session.peer_speaks_for(self.remote.ip());
        self.proof = if is_trusted {
            Proof::Trusted
        } else {
            Proof::Certificate
        };
    }

    /// Whether messages are to be sent in WebSocket frames.
    pub(super) fn is_framed(&self) -> bool {
        self.decoder.is_framed()
    }

    /// Queues a ping. The pong is awaited from now on.
    pub(super) fn ping(&mut self, out: &mut Vec<u8>, now_ms: u64) {
        write_ping(out);
        self.pinged = true;
        self.touch(now_ms);
    }

    /// Begins the orderly end: the queue is sent, then the Close frame `farewell`, if there is one.
    pub(super) fn begin_end(&mut self, why: CloseReason, farewell: Option<Farewell>, now_ms: u64) {
        // If TLS has failed, nothing more can be sent.
        self.farewell = farewell
            .or_else(|| closing_frame(&self.decoder, why))
            .filter(|_| self.stands());
        self.enter(State::Flushing, now_ms);
    }

    /// Ends a connection with an empty queue by the Close frame, then `close_notify`, and shuts down our
    /// direction. Returns whether all of these are written.
    pub(super) fn end(
        &mut self,
        activity: &Activity,
        scratch: &mut Vec<u8>,
        sent: &mut Sent,
        now_ms: u64,
    ) -> io::Result<bool> {
        self.state = State::Parting;
        if let Some(farewell) = self.farewell.take() {
            self.out.get_or_insert_default().push_unmarked(farewell.frame());
            if !self.flush(activity, scratch, sent)? {
                return Ok(false);
            }
        }
        if let Some(tls) = &mut self.tls {
            tls.close();
            if !self.flush(activity, scratch, sent)? {
                return Ok(false);
            }
        }
        // Fails if the peer has gone already: the next read reports that.
        let _ = self.socket.shutdown(Shutdown::Write);
        self.enter(State::Shut, now_ms);
        Ok(true)
    }

    /// Writes as much of the queue as the socket has room for, encrypted in `scratch`. Returns whether the
    /// queue is empty.
    pub(super) fn flush(
        &mut self,
        activity: &Activity,
        scratch: &mut Vec<u8>,
        sent: &mut Sent,
    ) -> io::Result<bool> {
        loop {
            let out = self.out.as_deref_mut();
            let Some(tls) = &mut self.tls else {
                let Some(out) = out.filter(|out| out.len() > 0) else {
                    return Ok(true);
                };
                let Some(count) = write_some(activity, &self.socket, out.waiting())? else {
                    return Ok(false);
                };
                sent.bytes += count as u64;
                sent.messages += out.advance(count);
                continue;
            };
            let waiting = out.as_ref().map_or(&[][..], |out| out.waiting());
            let before = activity.enter(Component::Tls);
            let records = tls.records(waiting, scratch);
            activity.enter(before);
            let records = records.map_err(io::Error::other)?;
            if records.is_empty() {
                return Ok(true);
            }
            let count = write_some(activity, &self.socket, records)?;
            sent.bytes += count.unwrap_or(0) as u64;
            let carried = tls.written(count.unwrap_or(0), scratch);
            if let Some(out) = out {
                sent.messages += out.advance(carried);
            }
            if count.is_none() {
                return Ok(false);
            }
        }
    }

    /// The outcome of the attempt to connect.
    pub(super) fn connected(&self) -> io::Result<()> {
        match self.socket.take_error()? {
            Some(error) => Err(error),
            None => self.socket.peer_addr().map(|_| ()),
        }
    }
}

/// The outcome of a flush.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sent {
    pub(super) bytes: u64,
    pub(super) messages: u64,
}

/// Writes as many bytes as the socket has room for; `None` if it has no room.
fn write_some(activity: &Activity, mut socket: &TcpStream, bytes: &[u8]) -> io::Result<Option<usize>> {
    let before = activity.enter(Component::Send);
    let written = loop {
        match socket.write(bytes) {
            Ok(count) => break Ok(Some(count)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break Ok(None),
            Err(error) => break Err(error),
        }
    };
    activity.enter(before);
    written
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

    /// The kernel's part of a connection is about 3 kB; the whole must stay below 4 kB.
    #[test]
    fn a_silent_connection_is_small() {
        assert!(size_of::<Conn>() <= 256, "{}", size_of::<Conn>());
    }
}

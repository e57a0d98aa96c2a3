//! The connections of one process, in a model of the shell: which message goes on which, and the reports when
//! one ends. Framing and WebSocket are the core's own.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use sip_core::id::{ConnId, ListenerId, WorkerId};
use sip_core::limits::Limits;
use sip_core::transport::framing::{Framed, Framer, FramingError};
use sip_core::transport::websocket::{
    AllowedOrigins, CloseCode, Frames, Handshake, HandshakeFault, Handshaking, KEEP_ALIVE_PONG, Unframed,
    write_close, write_frame,
};
use sip_core::transport::{Flow, Proof, Transmit, Transport};

use super::super::node::{Output, Wire, WireNames};
use super::config::LISTENERS;

/// Most messages that wait for one connection to open; a further one is not delivered.
const MOST_WAITING: usize = 64;

/// Finds the messages in received bytes.
#[derive(Debug)]
enum Decoder {
    Stream(Framer),
    Upgrade(Handshake),
    Frames(Frames),
}

/// Input from a connection.
pub(super) enum Came<'a> {
    /// A whole message.
    Message(&'a [u8]),
    /// A framing error, after which no message can be found.
    Fault(FramingError<'a>),
}

/// A message that waits for its connection.
#[derive(Debug)]
pub(super) struct Waiting {
    /// The worker of the endpoint that must learn if the message is not delivered.
    pub worker: usize,
    /// Destination.
    pub to: Flow,
    /// The message.
    pub message: Vec<u8>,
}

#[derive(Debug)]
struct Conn {
    flow: Flow,
    decoder: Decoder,
    /// Whether the connection is open; otherwise we are opening it.
    open: bool,
    /// Whether a message has come.
    heard: bool,
    waiting: Vec<Waiting>,
}

/// The remains of a connection that ended.
#[derive(Debug)]
pub(super) struct Gone {
    /// Id of the connection at the endpoints.
    pub id: ConnId,
    /// Whether a message had come on it.
    pub heard: bool,
    /// Messages that waited for the connection.
    pub waiting: Vec<Waiting>,
}

/// All connections of a process.
#[derive(Debug)]
pub(super) struct Conns {
    table: BTreeMap<Wire, Conn>,
    by_id: BTreeMap<(u16, u32), Wire>,
    /// Free slots of each worker, with the generation of their next use.
    free: Vec<Vec<(u32, u32)>>,
    /// Number of slots made so far, of each worker.
    made: Vec<u32>,
    first_generation: u32,
    limits: Limits,
    origins: AllowedOrigins,
}

impl Conns {
    /// An empty set of connections. The first generation differs from start to start, so that a token of an
    /// earlier start names no connection of this one.
    pub(super) fn new(workers: u16, limits: &Limits, first_generation: u32) -> Self {
        Self {
            table: BTreeMap::new(),
            by_id: BTreeMap::new(),
            free: vec![Vec::new(); usize::from(workers)],
            made: vec![0; usize::from(workers)],
            first_generation,
            limits: limits.clone(),
            origins: AllowedOrigins::any(),
        }
    }

    fn insert(&mut self, wire: Wire, worker: u16, mut flow: Flow, open: bool) {
        let (slot, generation) = self.free[usize::from(worker)].pop().unwrap_or_else(|| {
            let slot = self.made[usize::from(worker)];
            self.made[usize::from(worker)] += 1;
            (slot, self.first_generation)
        });
        let id = ConnId {
            worker: WorkerId(worker),
            slot,
            generation,
        };
        flow.conn = Some(id);
        let decoder = if matches!(flow.transport, Transport::Ws | Transport::Wss) {
            Decoder::Upgrade(Handshake::new(self.limits.header_bytes))
        } else {
            Decoder::Stream(Framer::new(&self.limits))
        };
        self.by_id.insert((worker, slot), wire);
        self.table.insert(
            wire,
            Conn {
                flow,
                decoder,
                open,
                heard: false,
                waiting: Vec::new(),
            },
        );
    }

    /// Adds a connection that a peer opened to the local port `port`, for `worker`.
    pub(super) fn accept(&mut self, wire: Wire, peer: SocketAddr, port: u16, worker: u16) {
        let found = LISTENERS
            .iter()
            .position(|(transport, at)| *at == port && *transport != Transport::Udp);
        let Some(listener) = found else { return };
        let flow = Flow {
            transport: LISTENERS[listener].0,
            listener: ListenerId(listener as u16),
            remote: peer,
            conn: None,
            proof: Proof::None,
        };
        self.insert(wire, worker, flow, true);
    }

    /// Whether we are opening this connection.
    pub(super) fn is_opening(&self, wire: Wire) -> bool {
        self.table.get(&wire).is_some_and(|conn| !conn.open)
    }

    /// Notes that our connection is open, and sends the waiting messages.
    pub(super) fn opened(&mut self, wire: Wire, out: &mut impl FnMut(Output)) {
        if let Some(conn) = self.table.get_mut(&wire) {
            conn.open = true;
            for waiting in core::mem::take(&mut conn.waiting) {
                out(write(wire, conn, waiting.message));
            }
        }
    }

    /// Gives each message that `bytes` completes to `deliver`, which returns whether to go on. Appends the
    /// protocol's own replies to `replies`. Returns whether the connection is to be closed.
    #[must_use]
    pub(super) fn take(
        &mut self,
        wire: Wire,
        bytes: &[u8],
        replies: &mut Vec<u8>,
        deliver: &mut impl FnMut(Flow, Came<'_>) -> bool,
    ) -> bool {
        let Some(conn) = self.table.get_mut(&wire) else {
            return false;
        };
        let mut fresh = bytes;
        if let Decoder::Upgrade(handshake) = &mut conn.decoder {
            match handshake.next(&mut fresh, &self.origins) {
                Handshaking::Incomplete => return false,
                Handshaking::Accepted(upgrade) => upgrade.write_response(replies),
                Handshaking::Refused(fault) => {
                    fault.write_response(replies);
                    return true;
                }
                Handshaking::Foreign(_) => {
                    HandshakeFault::Origin.write_response(replies);
                    return true;
                }
            }
            conn.decoder = Decoder::Frames(Frames::new(&self.limits));
        }
        let (flow, heard) = (conn.flow, &mut conn.heard);
        match &mut conn.decoder {
            Decoder::Stream(framer) => take_framed(framer, fresh, replies, &mut |came| {
                *heard = true;
                deliver(flow, came)
            }),
            Decoder::Frames(frames) => take_frames(frames, fresh, replies, &mut |came| {
                *heard = true;
                deliver(flow, came)
            }),
            Decoder::Upgrade(_) => false,
        }
    }

    /// Sends a message as [`Transmit`] demands. Messages that cannot be delivered are returned.
    pub(super) fn send(
        &mut self,
        worker: usize,
        item: &Transmit,
        message: &[u8],
        names: &mut WireNames,
        out: &mut impl FnMut(Output),
    ) -> Option<Waiting> {
        let waiting = Waiting {
            worker,
            to: item.to,
            message: message.to_vec(),
        };
        let wire = match self.find(item, message) {
            Some(wire) => wire,
            None if item.pinned => return Some(waiting),
            None => {
                let wire = names.take();
                self.insert(wire, worker as u16, item.to, false);
                let to = item.to.remote;
                out(Output::Open { wire, to });
                wire
            }
        };
        let Some(conn) = self.table.get_mut(&wire) else {
            return Some(waiting);
        };
        if conn.open {
            out(write(wire, conn, waiting.message));
        } else if conn.waiting.len() < MOST_WAITING {
            conn.waiting.push(waiting);
        } else {
            return Some(waiting);
        }
        None
    }

    /// The connection for a message: the named one, if its peer is the destination; otherwise, unless the
    /// message is pinned there, one with that address.
    fn find(&self, item: &Transmit, message: &[u8]) -> Option<Wire> {
        let to = &item.to;
        let is_response = message.starts_with(b"SIP/2.0 ");
        let named = to.conn.and_then(|id| {
            let wire = *self.by_id.get(&(id.worker.0, id.slot))?;
            let flow = self.table.get(&wire)?.flow;
            let same = flow.conn == Some(id) && flow.remote.ip() == to.remote.ip();
            (same && (!item.pinned || is_response || flow.remote == to.remote)).then_some(wire)
        });
        if named.is_some() || (item.pinned && to.conn.is_some()) {
            return named;
        }
        let with_address = self
            .table
            .iter()
            .find(|(_, conn)| conn.flow.remote == to.remote && conn.flow.transport == to.transport);
        with_address.map(|(wire, _)| *wire)
    }

    /// Removes a connection that ended.
    pub(super) fn closed(&mut self, wire: Wire) -> Option<Gone> {
        let conn = self.table.remove(&wire)?;
        let id = conn.flow.conn?;
        self.by_id.remove(&(id.worker.0, id.slot));
        if let Some(free) = self.free.get_mut(usize::from(id.worker.0)) {
            free.push((id.slot, id.generation.wrapping_add(1)));
        }
        Some(Gone {
            id,
            heard: conn.heard,
            waiting: conn.waiting,
        })
    }
}

fn write(wire: Wire, conn: &Conn, message: Vec<u8>) -> Output {
    let bytes = if matches!(conn.decoder, Decoder::Stream(_)) {
        message.clone()
    } else {
        let mut framed = Vec::with_capacity(message.len() + 10);
        write_frame(&mut framed, &message);
        framed
    };
    Output::Bytes { wire, bytes, message }
}

fn take_framed(
    framer: &mut Framer,
    mut fresh: &[u8],
    replies: &mut Vec<u8>,
    deliver: &mut impl FnMut(Came<'_>) -> bool,
) -> bool {
    loop {
        match framer.next(&mut fresh) {
            Framed::Message(message) => {
                if !deliver(Came::Message(message)) {
                    return true;
                }
            }
            Framed::KeepAlivePing => replies.extend_from_slice(b"\r\n"),
            Framed::KeepAlivePong => {}
            Framed::Incomplete => return false,
            Framed::Error(error) => {
                deliver(Came::Fault(error));
                return true;
            }
        }
    }
}

fn take_frames(
    frames: &mut Frames,
    mut fresh: &[u8],
    replies: &mut Vec<u8>,
    deliver: &mut impl FnMut(Came<'_>) -> bool,
) -> bool {
    loop {
        match frames.next(&mut fresh) {
            Unframed::Message(message) => {
                if !deliver(Came::Message(message)) {
                    write_close(replies, CloseCode::ProtocolError);
                    return true;
                }
            }
            Unframed::KeepAlivePing => replies.extend_from_slice(KEEP_ALIVE_PONG),
            Unframed::Ping { reply } => replies.extend_from_slice(reply),
            Unframed::KeepAlivePong | Unframed::Pong => {}
            Unframed::Close { reply, .. } => {
                replies.extend_from_slice(reply);
                return true;
            }
            Unframed::Incomplete => return false,
            Unframed::Error(fault) => {
                write_close(replies, fault.close_code());
                return true;
            }
        }
    }
}

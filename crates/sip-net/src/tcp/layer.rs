//! The protocols between a connection's socket and its messages: none, TLS, WebSocket, or WebSocket in TLS.
//! These layers are values fed with bytes: no socket here, no clock.

use std::mem;

use sip_core::activity::Activity;
use sip_core::limits::Limits;
use sip_core::transport::framing::{Framed, Framer};
use sip_core::transport::websocket::{
    AllowedOrigins, CloseCode, Frames, Handshake, HandshakeFault, Handshaking, KEEP_ALIVE_PONG, Unframed,
};
use sip_core::transport::{Flow, Transport};

use super::admission::GOES_FIRST;
use super::event::{Arrival, CloseReason, Verdict};
use super::service::is_websocket;
use crate::tls::{SipIdentities, TlsError, TlsSession};

/// Finds the messages in a connection's data.
#[derive(Debug)]
pub(super) enum Decoder {
    /// SIP as a stream (RFC 3261 §18.3).
    Stream(Framer),
    /// The request that opens a WebSocket.
    Upgrade(Handshake),
    /// WebSocket frames.
    Frames(Frames),
}

/// The results of handling received bytes.
#[derive(Debug, Default)]
pub(super) struct Taken {
    /// Complete messages.
    pub(super) messages: u64,
    /// Keep-alives answered.
    pub(super) pings: u64,
    /// The TLS handshake has finished in these bytes.
    pub(super) secured: bool,
    /// A WebSocket was opened.
    pub(super) upgraded: bool,
    /// Origin of the page, if its WebSocket was refused.
    pub(super) foreign: Option<Box<str>>,
    /// The reason why the connection is to end; `None`: it goes on.
    pub(super) end: Option<CloseReason>,
    /// The Close frame, to be sent behind the replies to what came before.
    pub(super) farewell: Option<Farewell>,
    /// The error of TLS, if TLS ended the connection.
    pub(super) fault: Option<TlsError>,
}

impl Decoder {
    /// The decoder of a new connection.
    pub(super) fn new(transport: Transport, limits: &Limits) -> Self {
        if is_websocket(transport) {
            Self::Upgrade(Handshake::new(limits.header_bytes))
        } else {
            Self::Stream(Framer::new(limits))
        }
    }

    /// Whether a message, a frame or an upgrade has begun and not ended.
    pub(super) fn is_mid_message(&self) -> bool {
        match self {
            Self::Stream(framer) => framer.is_mid_message(),
            Self::Upgrade(handshake) => handshake.held_bytes() > 0,
            Self::Frames(frames) => frames.is_mid_message(),
        }
    }

    /// Bytes kept of an incomplete message, frame or upgrade.
    pub(super) fn held_bytes(&self) -> usize {
        match self {
            Self::Stream(framer) => framer.held_bytes(),
            Self::Upgrade(handshake) => handshake.held_bytes(),
            Self::Frames(frames) => frames.held_bytes(),
        }
    }

    /// Gives each message that `fresh` completes to `deliver`. Appends the protocol's own replies (pongs, the
    /// response to an upgrade) to `replies`.
    pub(super) fn take(
        &mut self,
        flow: Flow,
        mut fresh: &[u8],
        context: &mut Context<'_>,
        taken: &mut Taken,
        deliver: &mut impl FnMut(Flow, Arrival<'_>) -> Verdict,
    ) {
        if let Self::Upgrade(handshake) = self {
            match handshake.next(&mut fresh, context.origins) {
                Handshaking::Incomplete => return,
                Handshaking::Accepted(upgrade) => {
                    upgrade.write_response(context.replies);
                    taken.upgraded = true;
                }
                Handshaking::Refused(fault) => {
                    fault.write_response(context.replies);
                    taken.end = Some(CloseReason::Upgrade);
                    return;
                }
                Handshaking::Foreign(origin) => {
                    HandshakeFault::Origin.write_response(context.replies);
                    let origin = origin.get(..MOST_ORIGIN).unwrap_or(origin);
                    taken.foreign = Some(String::from_utf8_lossy(origin).into());
                    taken.end = Some(CloseReason::Upgrade);
                    return;
                }
            }
            *self = Self::Frames(Frames::new(context.limits));
        }
        match self {
            Self::Stream(framer) => take_framed(framer, flow, fresh, context, taken, deliver),
            Self::Frames(frames) => take_frames(frames, flow, fresh, context, taken, deliver),
            Self::Upgrade(_) => {}
        }
    }

    /// Whether messages are to be sent in frames.
    pub(super) fn is_framed(&self) -> bool {
        matches!(self, Self::Frames(_))
    }
}

/// Buffers and settings of a worker, which its connections use in turn.
pub(super) struct Context<'a> {
    pub(super) limits: &'a Limits,
    pub(super) origins: &'a AllowedOrigins,
    /// Domains that are trusted if a certificate proves them.
    pub(super) trusted: &'a [Box<str>],
    /// The observer of the time spent.
    pub(super) activity: &'a Activity,
    /// Bytes to be sent back at once.
    pub(super) replies: &'a mut Vec<u8>,
}

fn take_framed(
    framer: &mut Framer,
    flow: Flow,
    mut fresh: &[u8],
    context: &mut Context<'_>,
    taken: &mut Taken,
    deliver: &mut impl FnMut(Flow, Arrival<'_>) -> Verdict,
) {
    loop {
        match framer.next(&mut fresh) {
            Framed::Message(message) => {
                taken.messages += 1;
                if deliver(flow, Arrival::Message(message)) == Verdict::Close {
                    taken.end = Some(CloseReason::Core);
                    return;
                }
            }
            Framed::KeepAlivePing => {
                taken.pings += 1;
                context.replies.extend_from_slice(b"\r\n");
            }
            Framed::KeepAlivePong => {}
            Framed::Incomplete => return,
            Framed::Error(error) => {
                let _ = deliver(flow, Arrival::Fault(error));
                taken.end = Some(CloseReason::Framing);
                return;
            }
        }
    }
}

fn take_frames(
    frames: &mut Frames,
    flow: Flow,
    mut fresh: &[u8],
    context: &mut Context<'_>,
    taken: &mut Taken,
    deliver: &mut impl FnMut(Flow, Arrival<'_>) -> Verdict,
) {
    // Of several waiting pings, only the last is answered (RFC 6455 §5.5.3).
    let mut pong = Vec::new();
    loop {
        match frames.next(&mut fresh) {
            Unframed::Message(message) => {
                taken.messages += 1;
                if deliver(flow, Arrival::Message(message)) == Verdict::Close {
                    taken.end = Some(CloseReason::Core);
                    break;
                }
            }
            Unframed::KeepAlivePing => {
                taken.pings += 1;
                context.replies.extend_from_slice(KEEP_ALIVE_PONG);
            }
            Unframed::Ping { reply } => {
                taken.pings += 1;
                pong.clear();
                pong.extend_from_slice(reply);
            }
            Unframed::KeepAlivePong | Unframed::Pong => {}
            Unframed::Close { reply, .. } => {
                taken.farewell = Some(match reply.first_chunk() {
                    Some(frame) => Farewell::Coded(*frame),
                    None => Farewell::Bare,
                });
                taken.end = Some(CloseReason::Peer);
                break;
            }
            Unframed::Incomplete => break,
            Unframed::Error(fault) => {
                taken.farewell = Some(Farewell::Coded(fault.close_code().frame()));
                taken.end = Some(CloseReason::Framing);
                break;
            }
        }
    }
    context.replies.append(&mut pong);
}

/// The Close frame of a WebSocket, after which nothing may be sent (RFC 6455 §5.5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Farewell {
    /// A Close frame with a code.
    Coded([u8; 4]),
    /// A Close frame without a code, which responds to one without.
    Bare,
}

impl Farewell {
    pub(super) fn frame(&self) -> &[u8] {
        match self {
            Self::Coded(frame) => frame,
            Self::Bare => &[0x88, 0],
        }
    }
}

/// The Close frame with which we end a WebSocket of our own accord.
pub(super) fn closing_frame(decoder: &Decoder, why: CloseReason) -> Option<Farewell> {
    if !decoder.is_framed() {
        return None;
    }
    let code = if matches!(why, CloseReason::Core | CloseReason::Framing) {
        CloseCode::PolicyViolation
    } else {
        CloseCode::GoingAway
    };
    Some(Farewell::Coded(code.frame()))
}

/// TLS on a connection, with the records that wait for room in the socket.
#[derive(Debug)]
pub(super) struct Secured {
    pub(super) session: TlsSession,
    /// The identities in the peer's certificate, if it sent one: read once, used for each message.
    pub(super) identities: Option<Box<SipIdentities>>,
    /// Whether the peer's certificate names its address.
    pub(super) is_of_address: bool,
    /// The costly part is done: we answered the peer's first flight, or sent ours.
    has_begun: bool,
    /// Steps of the handshake that went before others.
    went_first: u8,
    /// Records to be written.
    cipher: Vec<u8>,
    /// Bytes at the front of `cipher` that were written.
    written: usize,
    /// The records that carry messages, in order.
    carried: [Carried; RECORDS],
}

/// One record under way. The bytes of a record leave the queue exactly when the record is written. Earlier
/// would be wrong, because the peer can read nothing of a cut record. Later would be wrong, too, because a
/// message that the peer has read must not be returned as lost.
#[derive(Clone, Copy, Debug, Default)]
struct Carried {
    /// Bytes still to be written up to the end of this record.
    until: usize,
    /// Bytes of the queue in this record.
    bytes: usize,
}

/// Longest part of a page's origin kept for the log, bytes.
const MOST_ORIGIN: usize = 128;

/// Most records encrypted for one write.
const RECORDS: usize = 2;

/// Bytes of messages in one record (RFC 8446 §5.1).
const RECORD: usize = 16 << 10;

impl Secured {
    /// TLS with `session`, whose first records to be sent are `first`.
    pub(super) fn new(session: TlsSession, first: Vec<u8>) -> Self {
        Self {
            session,
            identities: None,
            is_of_address: false,
            has_begun: !first.is_empty(),
            went_first: 0,
            cipher: first,
            written: 0,
            carried: [Carried::default(); RECORDS],
        }
    }

    /// Handles received bytes; decrypted data goes to `data`.
    pub(super) fn feed(
        &mut self,
        input: &mut [u8],
        data: impl FnMut(&[u8]),
    ) -> Result<crate::tls::Fed, TlsError> {
        let fed = self.session.feed(input, &mut self.cipher, data);
        self.has_begun |= !self.cipher.is_empty();
        fed
    }

    /// Whether this step of the handshake goes before others: the costly part is done, and there were few
    /// such steps.
    pub(super) fn goes_first(&mut self) -> bool {
        let goes = self.has_begun && self.went_first < GOES_FIRST;
        self.went_first += u8::from(goes);
        goes
    }

    /// Whether records wait to be written.
    pub(super) fn has_records(&self) -> bool {
        !self.cipher.is_empty()
    }

    /// Bytes kept of an incomplete record and of records to be written.
    pub(super) fn held_bytes(&self) -> usize {
        self.session.buffered() + self.cipher.capacity()
    }

    /// Records to be written: the kept ones, else as much of `waiting` as goes into one write, encrypted in
    /// `scratch`. Empty if nothing waits, or if nothing can be sent.
    pub(super) fn records<'a>(
        &'a mut self,
        waiting: &[u8],
        scratch: &'a mut Vec<u8>,
    ) -> Result<&'a [u8], TlsError> {
        scratch.clear();
        if !self.cipher.is_empty() {
            return Ok(self.cipher.get(self.written..).unwrap_or_default());
        }
        if !waiting.is_empty() && !self.session.is_handshaking() && !self.session.has_ended() {
            for (piece, carried) in waiting.chunks(RECORD).zip(&mut self.carried) {
                self.session.write(piece, scratch)?;
                *carried = Carried {
                    until: scratch.len(),
                    bytes: piece.len(),
                };
            }
        }
        Ok(scratch)
    }

    /// Notes that `count` bytes of those records were written; the rest is kept. Returns the bytes that may
    /// now leave the queue.
    pub(super) fn written(&mut self, count: usize, scratch: &[u8]) -> usize {
        if self.cipher.is_empty() {
            self.cipher
                .extend_from_slice(scratch.get(count..).unwrap_or_default());
        } else {
            self.written += count;
            if self.written >= self.cipher.len() {
                // A connection with nothing to send keeps no buffer for it.
                self.cipher = Vec::new();
                self.written = 0;
            }
        }
        let mut done = 0;
        for carried in &mut self.carried {
            carried.until = carried.until.saturating_sub(count);
            if carried.until == 0 {
                done += mem::take(&mut carried.bytes);
            }
        }
        done
    }

    /// Bytes of the queue in records that are under way.
    pub(super) fn carried(&self) -> usize {
        self.carried.iter().map(|carried| carried.bytes).sum()
    }

    /// Appends `close_notify`, which is written after the waiting records.
    pub(super) fn close(&mut self) {
        self.session.close(&mut self.cipher);
    }
}

#[cfg(test)]
mod tests;

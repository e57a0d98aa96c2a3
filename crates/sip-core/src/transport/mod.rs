//! Transports: flows of messages, messages to send, stream framing, and Via's `received` and `rport`.

pub mod framing;
mod next_hop;
mod peer;
pub(crate) mod private;
pub mod stun;
pub mod via;
pub mod websocket;

pub use next_hop::{HopHost, Known, NextHop};
pub(crate) use peer::MAX_NAME;
pub use peer::PeerName;

use alloc::vec::Vec;
use core::fmt;
use core::net::SocketAddr;
use core::ops::Range;

use crate::id::{ConnId, ListenerId};

/// Transport protocols of SIP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// Datagrams (RFC 3261 §18).
    Udp,
    /// Stream.
    Tcp,
    /// TLS over TCP.
    Tls,
    /// WebSocket (RFC 7118).
    Ws,
    /// WebSocket over TLS.
    Wss,
}

impl Transport {
    /// The name as written in Via (`SIP/2.0/UDP`).
    pub const fn via_name(self) -> &'static str {
        match self {
            Self::Udp => "UDP",
            Self::Tcp => "TCP",
            Self::Tls => "TLS",
            Self::Ws => "WS",
            Self::Wss => "WSS",
        }
    }

    /// The name as written in the configuration.
    pub const fn uri_name(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Tcp => "tcp",
            Self::Tls => "tls",
            Self::Ws => "ws",
            Self::Wss => "wss",
        }
    }

    /// The name in the `transport` parameter of a URI: for WebSocket over TLS that is `ws`, too (RFC 7118
    /// §5.2).
    pub const fn param_name(self) -> &'static str {
        match self {
            Self::Wss => Self::Ws.uri_name(),
            Self::Udp | Self::Tcp | Self::Tls | Self::Ws => self.uri_name(),
        }
    }

    /// Whether the transport is TLS, or runs over it.
    pub const fn is_secure(self) -> bool {
        matches!(self, Self::Tls | Self::Wss)
    }

    /// Whether lower layers deliver in order, or report that they could not. Such a transport needs no
    /// retransmissions.
    pub const fn is_reliable(self) -> bool {
        !matches!(self, Self::Udp)
    }

    /// Whether messages end by the length that they give: if the length is wrong, the next message cannot be
    /// found. A datagram and a WebSocket message have an end of their own.
    pub const fn is_stream(self) -> bool {
        matches!(self, Self::Tcp | Self::Tls)
    }

    /// Port if a URI or Via gives none (RFC 3261 §19.1.2, RFC 7118 §5.3... 80/443).
    pub const fn default_port(self) -> u16 {
        match self {
            Self::Udp | Self::Tcp => 5060,
            Self::Tls => 5061,
            Self::Ws => 80,
            Self::Wss => 443,
        }
    }

    /// Reads a Via transport or a `transport` parameter, in any case.
    pub fn parse(token: &[u8]) -> Option<Self> {
        [Self::Udp, Self::Tcp, Self::Tls, Self::Ws, Self::Wss]
            .into_iter()
            .find(|t| token.eq_ignore_ascii_case(t.via_name().as_bytes()))
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.via_name())
    }
}

/// The flow by which a message came, and by which responses go back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    /// Transport.
    pub transport: Transport,
    /// The listener that received the message (for a connection that we opened: the one it was opened for).
    pub listener: ListenerId,
    /// The peer's address.
    pub remote: SocketAddr,
    /// The connection; `None` for datagrams.
    pub conn: Option<ConnId>,
    /// The proof that the peer has given of itself.
    pub proof: Proof,
}

impl Flow {
    /// The flow of datagrams between the first listener and `remote`.
    pub const fn udp(remote: SocketAddr) -> Self {
        Self {
            transport: Transport::Udp,
            listener: ListenerId(0),
            remote,
            conn: None,
            proof: Proof::None,
        }
    }
}

/// The proof that the peer of a connection has given of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Proof {
    /// No proof that counts.
    #[default]
    None,
    /// A valid certificate: it is of some SIP domain (RFC 5922 §7).
    Certificate,
    /// A certificate of one of the peers that are trusted (`trust` of the configuration).
    Trusted,
    /// This server has sent the message to itself, so the source address says nothing of the message's
    /// author. The core notes this, from the topmost Via.
    Ourselves,
    /// A web page of any origin may have written the message, so source address and certificate (those of the
    /// browser) say nothing of its author. The core notes this, for WebSockets that pages of all origins may
    /// open, and for those that a web server on this machine may have forwarded.
    Page,
}

/// One message to send. The bytes of the message lie in the batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// The destination. With `conn` set, the message goes on that connection if it still lives and its peer's
    /// IP address is that of `remote`. Else, as without `conn`, a response goes on a connection to `remote`,
    /// opened if need be (RFC 3261 §18.2.2). A request that names a connection is `pinned` there.
    pub to: Flow,
    /// The domain that the peer's certificate must be for (RFC 5922 §7.1), if a connection by TLS must be
    /// opened or chosen. A connection to the same address that proved another domain is not used. `None`: the
    /// certificate must be for the address of `to`.
    pub peer: Option<PeerName>,
    /// Whether only one connection may carry the message: the named connection, or, if none is named, the
    /// connection that was accepted from `to.remote`. If that connection is closed, or the peer of a
    /// request's connection is not exactly `to.remote`, the message is undelivered at once (RFC 5626 §5.3).
    /// All messages by WebSocket are pinned, since no WebSocket can be opened to a user agent (RFC 7118 §5).
    pub pinned: bool,
    /// The place of the message in [`TransmitBatch::bytes`].
    pub range: Range<usize>,
}

/// Bytes of memory that a batch has from the start: enough for nearly every turn, except under full load.
const FIRST_BYTES: usize = 16 * 1024;
const FIRST_ITEMS: usize = 32;
/// Bytes of memory that an empty batch keeps.
const KEPT_BYTES: usize = 1024 * 1024;
const KEPT_ITEMS: usize = 4096;

/// Messages to send, which the core fills into memory that the worker lends and uses again.
#[derive(Debug, Default)]
pub struct TransmitBatch {
    bytes: Vec<u8>,
    items: Vec<Transmit>,
}

impl TransmitBatch {
    /// An empty batch with memory for a turn. A batch by [`Default`] has no memory.
    pub fn new() -> Self {
        Self {
            bytes: Vec::with_capacity(FIRST_BYTES),
            items: Vec::with_capacity(FIRST_ITEMS),
        }
    }

    /// Messages in the order in which they are to be sent.
    pub fn items(&self) -> &[Transmit] {
        &self.items
    }

    /// All messages' bytes; [`Transmit::range`] points into it.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// One message's bytes.
    pub fn message(&self, item: &Transmit) -> &[u8] {
        self.bytes.get(item.range.clone()).unwrap_or_default()
    }

    /// Whether no message waits.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Number of messages.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Forgets all messages, and keeps the memory that turns usually need.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(KEPT_BYTES);
        self.items.clear();
        self.items.shrink_to(KEPT_ITEMS);
    }

    /// Appends one message that `write` puts at the end of the buffer.
    pub fn push_with(&mut self, to: Flow, write: impl FnOnce(&mut Vec<u8>)) {
        let start = self.bytes.len();
        write(&mut self.bytes);
        self.items.push(Transmit {
            to,
            peer: None,
            pinned: matches!(to.transport, Transport::Ws | Transport::Wss),
            range: start..self.bytes.len(),
        });
    }

    /// Sets the domain that the certificate of the peer must be for, for the message appended last.
    pub(crate) fn name_last(&mut self, peer: Option<PeerName>) {
        if let Some(last) = self.items.last_mut() {
            last.peer = peer;
        }
    }

    /// Bytes of the message appended last.
    pub(crate) fn last_len(&self) -> usize {
        self.items.last().map_or(0, |item| item.range.len())
    }

    /// Pins the message appended last to its connection: it goes there or not at all.
    pub(crate) fn pin_last(&mut self) {
        if let Some(last) = self.items.last_mut() {
            last.pinned = true;
        }
    }

    /// Removes the message appended last, and appends its bytes to `text`.
    pub(crate) fn take_last(&mut self, text: &mut Vec<u8>) {
        if let Some(item) = self.items.pop() {
            text.extend_from_slice(self.bytes.get(item.range.clone()).unwrap_or_default());
            self.bytes.truncate(item.range.start);
        }
    }

    /// Appends a copy of `message`.
    pub fn push(&mut self, to: Flow, message: &[u8]) {
        self.push_with(to, |out| out.extend_from_slice(message));
    }
}

//! Events of connections, and the decisions about them.

use sip_core::transport::framing::FramingError;
use sip_core::transport::{Flow, PeerName};

use crate::tls::TlsError;

/// An arrival on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival<'a> {
    /// A complete message.
    Message(&'a [u8]),
    /// A framing error, which ends the messages: the connection is closed once a response has been sent.
    Fault(FramingError<'a>),
}

/// The decision of a message's receiver about the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The connection stays open.
    Keep,
    /// The connection ends once the queue is sent, including what this turn still queues.
    Close,
}

/// The reason why a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CloseReason {
    Peer,
    Error,
    OpenFailed,
    Framing,
    Core,
    Idle,
    Incomplete,
    Slow,
    Memory,
    Banned,
    Unregistered,
    Handshake,
    Silent,
    Tls,
    Upgrade,
    Stopping,
}

/// A connection that TLS ended.
#[derive(Clone, Debug, PartialEq)]
pub struct TlsFailure {
    /// The two ends of the connection, which is closed.
    pub flow: Flow,
    /// Whether we opened the connection.
    pub outbound: bool,
    /// The domain that the peer had to prove, if we opened the connection; `None`: the address.
    pub domain: Option<PeerName>,
    /// The error of TLS.
    pub error: TlsError,
}

/// A WebSocket that was refused because of the origin of its page.
#[derive(Clone, Debug, PartialEq)]
pub struct ForeignPage {
    /// The connection, which ends.
    pub flow: Flow,
    /// Origin of the page.
    pub origin: Box<str>,
}

//! What connections report, and what is decided about them.

use sip_core::transport::framing::FramingError;
use sip_core::transport::{Flow, PeerName};

use crate::tls::TlsError;

/// What arrived on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival<'a> {
    /// A complete message.
    Message(&'a [u8]),
    /// The end of all messages: the connection is closed once an answer has been sent.
    Fault(FramingError<'a>),
}

/// What the receiver of a message wants done with its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It goes on.
    Keep,
    /// Send what is queued, and what this turn still queues, then end it.
    Close,
}

/// Why a connection ends.
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
    Handshake,
    Silent,
    Tls,
    Upgrade,
    Stopping,
}

/// A connection that TLS ended.
#[derive(Clone, Debug, PartialEq)]
pub struct TlsFailure {
    /// The two ends; the connection has gone.
    pub flow: Flow,
    /// We opened it.
    pub outbound: bool,
    /// The domain that the peer had to prove to be, where we opened it; `None`: its address.
    pub domain: Option<PeerName>,
    /// Why.
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

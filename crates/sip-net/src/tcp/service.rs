//! What the connections of one listener are besides TCP.

use std::sync::Arc;

use sip_core::transport::Transport;
use sip_core::transport::websocket::AllowedOrigins;

use crate::tls::{TlsClients, TlsServer};

/// What the connections of one listener are besides TCP. Which of it counts is decided by the
/// listener's transport.
#[derive(Clone, Debug, Default)]
pub struct StreamService {
    /// Our end of TLS towards peers that connect to this listener: for tls and wss, which take no
    /// connection without it.
    pub server: Option<Arc<TlsServer>>,
    /// Our end of TLS towards peers to which we connect from this listener: for tls. None: none can
    /// be opened.
    pub clients: Option<Arc<TlsClients>>,
    /// The origins of pages that may open a WebSocket: for ws and wss.
    pub origins: AllowedOrigins,
    /// How connections that we open from here are shared.
    pub sharing: Sharing,
}

/// How connections that we open are shared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Sharing {
    /// One to each peer.
    #[default]
    PerPeer,
    /// One for each call to each peer, as long as the call's messages are less than a short idle time
    /// apart; for comparisons (Shen 2009, section III).
    PerCall,
}

/// Whether connections of this transport begin with TLS.
pub(super) fn is_secure(transport: Transport) -> bool {
    matches!(transport, Transport::Tls | Transport::Wss)
}

/// Whether messages of this transport lie in WebSocket frames.
pub(super) fn is_websocket(transport: Transport) -> bool {
    matches!(transport, Transport::Ws | Transport::Wss)
}

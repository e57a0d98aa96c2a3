//! The service of one listener: everything that its connections need besides TCP.

use std::sync::Arc;

use sip_core::transport::Transport;
use sip_core::transport::websocket::AllowedOrigins;

use crate::tls::{TlsClients, TlsServer};

/// The service of one listener: everything that its connections need besides TCP. The listener's transport
/// decides which fields count.
#[derive(Clone, Debug, Default)]
pub struct StreamService {
    /// Our TLS server for peers that connect to this listener. Used by tls and wss, which accept no
    /// connection without it.
    pub server: Option<Arc<TlsServer>>,
    /// Our TLS client for peers to which we connect from this listener. Used by tls. `None`: no connection
    /// can be opened.
    pub clients: Option<Arc<TlsClients>>,
    /// The origins of pages that may open a WebSocket: for ws and wss.
    pub origins: AllowedOrigins,
    /// The sharing of connections that we open from here.
    pub sharing: Sharing,
}

/// The sharing of connections that we open: which messages use the same connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Sharing {
    /// One connection to each peer.
    #[default]
    PerPeer,
    /// One connection for each call to each peer, as long as the call's messages are less than a short idle
    /// time apart. For comparisons (Shen 2009, section III).
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

//! Nonce-count replay windows (RFC 7616 §3.3 `nc`).

/// What a nonce count turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NonceUse {
    /// Not seen before: accept.
    Fresh,
    /// Seen, in the very same request from the same source: a retransmission, accept.
    Retransmission,
    /// Seen in another request, or older than the window: refuse.
    Replay,
}

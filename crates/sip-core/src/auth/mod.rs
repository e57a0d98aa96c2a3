//! Digest authentication: nonces, replay windows, verification.
pub mod window;

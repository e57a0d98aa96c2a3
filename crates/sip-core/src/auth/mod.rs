//! Digest authentication (RFC 3261 §22, RFC 7616, RFC 8760).
//!
//! The way of a request: [`challenge::find`] picks the credentials for our realm,
//! [`verify::precheck`] refuses what needs no secret to be refused (and names the nonce),
//! the caller fetches the secrets, [`verify::check`] compares, and only then the nonce count is
//! noted ([`window::Windows::use_nonce`], through [`crate::shared::SharedState::use_nonce`]).
//! What is refused is challenged again with [`challenge::write`].
pub mod digest;
pub mod nonce;
pub mod window;

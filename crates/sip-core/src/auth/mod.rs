//! Digest authentication (RFC 3261 §22, RFC 7616, RFC 8760).
//!
//! The way of a request: [`challenge::find`] picks the credentials for our realm.
//! [`verify::Authenticator::precheck`] refuses what needs no secret to be refused, and returns the
//! nonce. The caller fetches the secrets, [`verify::Authenticator::check`] compares, and only then
//! the nonce count is noted ([`window::Windows::use_nonce`], through
//! [`crate::shared::SharedState::use_nonce`]). A request that is refused is challenged again
//! ([`verify::Authenticator::challenge`]).
//!
//! `stale=true` goes with every nonce that cannot be used, forged ones included. RFC 7616 §3.3 asks
//! only that the nonce be invalid (RFC 2617's "with a valid digest" is gone). It reveals nothing
//! about a user. And a phone that kept a nonce over a change of keys then asks again instead of
//! calling its password wrong.
pub mod challenge;
pub mod digest;
pub mod nonce;
pub mod verify;
pub mod window;

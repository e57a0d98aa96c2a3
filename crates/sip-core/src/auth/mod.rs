//! Digest authentication (RFC 3261 §22, RFC 7616, RFC 8760).
//!
//! The path of a request: [`challenge::find`] picks the credentials for our realm.
//! [`verify::Authenticator::precheck`] makes the checks that need no secret, and returns the nonce. The
//! caller fetches the secrets, and [`verify::Authenticator::check`] compares. Only then the nonce count is
//! noted ([`window::Windows::use_nonce`], through [`crate::shared::SharedState::use_nonce`]). If the request
//! is refused, it is challenged again ([`verify::Authenticator::challenge`]).
//!
//! `stale=true` goes with every nonce that cannot be used, forged ones included. RFC 7616 §3.3 asks only that
//! the nonce be invalid (RFC 2617's "with a valid digest" is gone). `stale=true` reveals nothing about a
//! user. And a phone that kept a nonce over a change of keys then tries again, and does not call its password
//! wrong.
pub mod challenge;
pub mod digest;
pub mod nonce;
pub mod verify;
pub mod window;

//! SIP messages (RFC 3261 §7, §20, §25).
//!
//! [`parse()`] indexes a message in one pass over borrowed bytes; typed values are read on demand
//! ([`Message`], [`header`], [`uri`]). Forwarding is an edit list applied while the received bytes are copied
//! ([`mod@write`]): unchanged parts leave byte for byte.
//!
//! Arbitrary bytes never cause a panic. Bodies are never parsed.
#![no_std]
#![forbid(unsafe_code)]
#![warn(missing_docs, clippy::indexing_slicing)]

extern crate alloc;

mod block;
pub mod chars;
pub mod header;
pub mod host;
pub mod message;
pub mod method;
pub mod name;
pub mod number;
pub mod params;
pub mod parse;
pub mod uri;
pub mod values;
pub mod write;

pub use host::Host;
pub use message::Message;
pub use method::Method;
pub use name::HeaderName;
pub use params::{Param, Params};
pub use parse::{Defect, Field, HeaderIndex, ParseError, StartLine, parse};
pub use uri::{SipUri, TelUri, Uri, UriError};
pub use values::Value;

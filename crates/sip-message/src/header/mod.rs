//! Typed header values, one file each.

mod auth;
mod contact;
mod cseq;
mod name_addr;
mod via;

use core::fmt;

pub use auth::{AuthParams, AuthValue};
pub use contact::{Contact, Contacts};
pub use cseq::CSeq;
pub use name_addr::NameAddr;
pub use via::Via;

use crate::message::Message;
use crate::name::HeaderName;

/// A header that cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderError {
    /// Not there.
    Missing(HeaderName),
    /// Cannot be read.
    Malformed(HeaderName),
}

impl HeaderError {
    /// Which header.
    pub const fn name(self) -> HeaderName {
        match self {
            Self::Missing(name) | Self::Malformed(name) => name,
        }
    }
}

impl fmt::Display for HeaderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(name) => write!(f, "Missing {}", name.as_str()),
            Self::Malformed(name) => write!(f, "Malformed {}", name.as_str()),
        }
    }
}

/// See [`Message::check_mandatory`].
pub(crate) fn check_mandatory(message: &Message<'_>) -> Result<(), HeaderError> {
    message.top_via()?;
    let from = message.from()?;
    message.to()?;
    if message.call_id().is_none() {
        return Err(HeaderError::Missing(HeaderName::CallId));
    }
    message.cseq()?;
    // A tag must be a token where there is one; an unquoted, unparsable tail would be copied
    // into answers (RFC 3261 §19.3).
    for (addr, name) in [(from, HeaderName::From), (message.to()?, HeaderName::To)] {
        if addr.tag().is_some_and(|tag| !crate::chars::is_token_text(tag)) {
            return Err(HeaderError::Malformed(name));
        }
    }
    Ok(())
}

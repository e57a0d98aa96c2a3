//! Typed header values, one file each.

mod auth;
mod contact;
mod cseq;
mod fast_path;
mod name_addr;
mod via;

use core::fmt;

pub use auth::{AuthParams, AuthValue};
pub use contact::{Contact, Contacts};
pub use cseq::CSeq;
pub(crate) use fast_path::via as via_fast_path;
pub use name_addr::NameAddr;
pub use via::Via;

use crate::message::Message;
use crate::name::HeaderName;

/// A header that cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderError {
    /// The header is missing.
    Missing(HeaderName),
    /// The header cannot be read.
    Malformed(HeaderName),
}

impl HeaderError {
    /// The name of the header.
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

/// The headers that every message has (RFC 3261 §8.1.1), as read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mandatory<'a> {
    /// The topmost Via.
    pub via: Via<'a>,
    /// From.
    pub from: NameAddr<'a>,
    /// From's tag; `None`: an RFC 2543 peer sent none.
    pub from_tag: Option<&'a [u8]>,
    /// To.
    pub to: NameAddr<'a>,
    /// To's tag, if it has one.
    pub to_tag: Option<&'a [u8]>,
    /// Call-ID.
    pub call_id: &'a [u8],
    /// CSeq.
    pub cseq: CSeq<'a>,
}

/// See [`Message::mandatory`].
pub(crate) fn mandatory<'a>(message: &Message<'a>) -> Result<Mandatory<'a>, HeaderError> {
    let via = message.top_via()?;
    if !via.is_version_2() {
        return Err(HeaderError::Malformed(HeaderName::Via));
    }
    let from = message.from()?;
    let to = message.to()?;
    let call_id = match message.value_on(HeaderName::CallId) {
        None | Some((_, 0)) => return Err(HeaderError::Missing(HeaderName::CallId)),
        Some((text, len)) => text
            .get(..len)
            .filter(|_| crate::chars::visible_len(text) >= len)
            .ok_or(HeaderError::Malformed(HeaderName::CallId))?,
    };
    Ok(Mandatory {
        via,
        from,
        from_tag: tag(&from, HeaderName::From)?,
        to,
        to_tag: tag(&to, HeaderName::To)?,
        call_id,
        cseq: message.cseq()?,
    })
}

/// The tag of an address, which must be a token if there is one. Else an unquoted, unparsable tail would be
/// copied into responses (RFC 3261 §19.3).
fn tag<'a>(addr: &NameAddr<'a>, name: HeaderName) -> Result<Option<&'a [u8]>, HeaderError> {
    match addr.tag() {
        Some(tag) if !crate::chars::is_token_text(tag) => Err(HeaderError::Malformed(name)),
        tag => Ok(tag),
    }
}

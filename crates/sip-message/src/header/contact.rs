//! `Contact` (RFC 3261 §20.10).

use super::{HeaderError, NameAddr};
use crate::message::Message;
use crate::name::HeaderName;
use crate::number;
use crate::values::ValueIter;

/// One Contact value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contact<'a> {
    /// Address and parameters.
    pub addr: NameAddr<'a>,
    /// `q` in thousandths; `None`: not given.
    pub q_milli: Option<u16>,
    /// `expires` in seconds; `None`: not given.
    pub expires_s: Option<u32>,
}

impl<'a> Contact<'a> {
    /// Reads one value. An `expires` that is no number counts as 3600 (RFC 3261 §10.2.1.1: "malformed values
    /// SHOULD be treated as equivalent to 3600").
    pub fn parse(text: &'a [u8]) -> Option<Self> {
        let addr = NameAddr::parse(text)?;
        let q_milli = match addr.params.value(b"q") {
            Some(text) => Some(number::qvalue(text)?),
            None => None,
        };
        let expires_s = addr
            .params
            .value(b"expires")
            .map(|text| number::delta_seconds(text).unwrap_or(3600));
        Some(Self {
            addr,
            q_milli,
            expires_s,
        })
    }
}

/// All Contact values of a message.
#[derive(Clone, Debug)]
pub enum Contacts<'a> {
    /// `Contact: *`.
    Star,
    /// Values, perhaps none.
    List(ContactIter<'a>),
}

impl<'a> Contacts<'a> {
    /// The Contact header fields of `message`.
    ///
    /// # Errors
    /// `*` beside other values.
    pub fn of(message: &Message<'a>) -> Result<Self, HeaderError> {
        let mut values = message.values(HeaderName::Contact);
        let star = message.values(HeaderName::Contact).any(|v| v.text == b"*");
        if !star {
            return Ok(Self::List(ContactIter { values }));
        }
        match (values.next(), values.next()) {
            (Some(_), None) => Ok(Self::Star),
            _ => Err(HeaderError::Malformed(HeaderName::Contact)),
        }
    }
}

/// Iterator over Contact values.
#[derive(Clone, Debug)]
pub struct ContactIter<'a> {
    values: ValueIter<'a>,
}

impl<'a> Iterator for ContactIter<'a> {
    type Item = Result<Contact<'a>, HeaderError>;

    fn next(&mut self) -> Option<Self::Item> {
        let value = self.values.next()?;
        Some(Contact::parse(value.text).ok_or(HeaderError::Malformed(HeaderName::Contact)))
    }
}

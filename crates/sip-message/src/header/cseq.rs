//! `CSeq` (RFC 3261 §20.16).

use super::HeaderError;
use crate::chars::{is_space, is_token_text, trim};
use crate::method::Method;
use crate::name::HeaderName;
use crate::number;

/// Sequence number and method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CSeq<'a> {
    /// Less than 2^31 (RFC 3261 §8.1.1.5).
    pub number: u32,
    /// Method.
    pub method: Method<'a>,
}

impl<'a> CSeq<'a> {
    /// Reads all of `text`.
    ///
    /// # Errors
    /// Not a number below 2^31 and a method.
    pub fn parse(text: &'a [u8]) -> Result<Self, HeaderError> {
        let bad = HeaderError::Malformed(HeaderName::CSeq);
        let space = text.iter().position(|c| is_space(*c)).ok_or(bad)?;
        let digits = text.get(..space).ok_or(bad)?;
        // Leading zeros are legal and seen (RFC 4475 §3.1.1.1: "0009").
        let zeros = digits
            .iter()
            .take_while(|c| **c == b'0')
            .count()
            .min(digits.len().saturating_sub(1));
        let number = number::decimal_u32(digits.get(zeros..).ok_or(bad)?).ok_or(bad)?;
        let method = trim(text.get(space..).ok_or(bad)?);
        if number > i32::MAX as u32 || !is_token_text(method) {
            return Err(bad);
        }
        Ok(Self {
            number,
            method: Method::parse(method),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values() {
        let ok = |text: &'static [u8]| CSeq::parse(text).ok().map(|c| (c.number, c.method));
        assert_eq!(ok(b"1 INVITE"), Some((1, Method::Invite)));
        assert_eq!(ok(b"0009\r\n  INVITE"), Some((9, Method::Invite)));
        assert_eq!(ok(b"2147483647 BYE"), Some((2_147_483_647, Method::Bye)));
        assert_eq!(ok(b"0 FOO"), Some((0, Method::Other(b"FOO"))));
        for bad in [
            &b"2147483648 BYE"[..],
            b"36893488147419103232 REGISTER",
            b"-1 BYE",
            b"BYE",
            b"1",
            b"1 ",
            b"",
            b"1 B YE",
            b" 1 BYE",
        ] {
            assert_eq!(ok(bad), None);
        }
    }
}

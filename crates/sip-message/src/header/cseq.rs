//! `CSeq` (RFC 3261 §20.16).

use super::HeaderError;
use crate::chars::{is_space, is_token_text, trim};
use crate::method::Method;
use crate::name::HeaderName;

/// Sequence number and method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CSeq<'a> {
    /// The number, less than 2^31 (RFC 3261 §8.1.1.5).
    pub number: u32,
    /// Method.
    pub method: Method<'a>,
}

impl<'a> CSeq<'a> {
    /// Reads all of `text`.
    ///
    /// # Errors
    /// The text is not a number below 2^31 and a method.
    pub fn parse(text: &'a [u8]) -> Result<Self, HeaderError> {
        let bad = HeaderError::Malformed(HeaderName::CSeq);
        let mut rest = text;
        let mut number: u32 = 0;
        // Leading zeros are legal and seen (RFC 4475 §3.1.1.1: "0009").
        while let [digit @ b'0'..=b'9', tail @ ..] = rest {
            number = number
                .checked_mul(10)
                .and_then(|n| n.checked_add(u32::from(digit - b'0')))
                .ok_or(bad)?;
            rest = tail;
        }
        let method = match rest {
            [b' ', method @ ..] => trim(method),
            [c, ..] if is_space(*c) => trim(rest),
            _ => return Err(bad),
        };
        if rest.len() == text.len() || number > i32::MAX as u32 {
            return Err(bad);
        }
        let method = Method::parse(method);
        if let Method::Other(text) = method
            && !is_token_text(text)
        {
            return Err(bad);
        }
        Ok(Self { number, method })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cseq_numbers_end_at_2_to_the_31() {
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

//! Authorization, Proxy-Authorization, WWW-Authenticate, Proxy-Authenticate: a scheme and
//! comma-separated parameters (RFC 3261 §20.7, §25.1).

use crate::chars::{is_space, is_token_text, quoted_len, trim};
use crate::params::Param;

/// An authentication scheme with its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuthValue<'a> {
    /// Scheme as written (`Digest`).
    pub scheme: &'a [u8],
    /// Parameters.
    pub params: AuthParams<'a>,
}

impl<'a> AuthValue<'a> {
    /// Reads a whole field value. (These headers are never joined by commas: RFC 3261 §7.3.1.)
    pub fn parse(text: &'a [u8]) -> Option<Self> {
        let stop = text.iter().position(|c| is_space(*c))?;
        let scheme = text.get(..stop)?;
        let params = AuthParams {
            text: trim(text.get(stop..)?),
        };
        (is_token_text(scheme) && params.is_valid()).then_some(Self { scheme, params })
    }

    /// Whether the scheme is Digest.
    pub const fn is_digest(&self) -> bool {
        self.scheme.eq_ignore_ascii_case(b"Digest")
    }
}

/// The parameters `name=value, name="value", …`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuthParams<'a> {
    text: &'a [u8],
}

impl<'a> AuthParams<'a> {
    /// All parameters in order; the first fault ends the iteration.
    pub fn iter(&self) -> AuthParamIter<'a> {
        AuthParamIter {
            rest: self.text,
            failed: false,
        }
    }

    /// The first parameter of this name, in any case.
    pub fn get(&self, name: &[u8]) -> Option<Param<'a>> {
        self.iter().find(|p| p.name.eq_ignore_ascii_case(name))
    }

    /// The value of the first parameter of this name, without quotes (escapes are left as they are).
    pub fn unquoted(&self, name: &[u8]) -> Option<&'a [u8]> {
        self.get(name).map(|p| p.unquoted())
    }

    /// Whether the whole text is well-formed, and no name stands twice.
    pub fn is_valid(&self) -> bool {
        let mut iter = self.iter();
        let mut count = 0;
        for param in iter.by_ref() {
            if self
                .iter()
                .take(count)
                .any(|p| p.name.eq_ignore_ascii_case(param.name))
            {
                return false;
            }
            count += 1;
            if count > 32 {
                return false;
            }
        }
        !iter.failed
    }
}

/// Iterator over [`AuthParams`].
#[derive(Clone, Debug)]
pub struct AuthParamIter<'a> {
    rest: &'a [u8],
    failed: bool,
}

impl<'a> AuthParamIter<'a> {
    fn one(&mut self, text: &'a [u8]) -> Option<Param<'a>> {
        let equals = memchr::memchr(b'=', text)?;
        let name = trim(text.get(..equals)?);
        let mut value = text.get(equals + 1..)?;
        while let [first, rest @ ..] = value
            && is_space(*first)
        {
            value = rest;
        }
        let len = if value.first() == Some(&b'"') {
            quoted_len(value)?
        } else {
            memchr::memchr(b',', value).unwrap_or(value.len())
        };
        let tail = trim(value.get(len..)?);
        self.rest = match tail {
            [] => tail,
            [b',', rest @ ..] => rest,
            _ => return None,
        };
        let value = trim(value.get(..len)?);
        // A bare value with white space inside lacks a comma, and readers would differ.
        let whole = value.first() == Some(&b'"') || !value.iter().any(|c| is_space(*c));
        (is_token_text(name) && !value.is_empty() && whole).then_some(Param {
            name,
            value: Some(value),
        })
    }
}

impl<'a> Iterator for AuthParamIter<'a> {
    type Item = Param<'a>;

    fn next(&mut self) -> Option<Param<'a>> {
        let text = trim(self.rest);
        if text.is_empty() || self.failed {
            return None;
        }
        // Empty elements of the list mean nothing.
        if let [b',', rest @ ..] = text {
            self.rest = rest;
            return self.next_after_comma();
        }
        let param = self.one(text);
        self.failed = param.is_none();
        param
    }
}

impl<'a> AuthParamIter<'a> {
    /// The first parameter behind a run of commas, which is skipped without recursion.
    fn next_after_comma(&mut self) -> Option<Param<'a>> {
        let mut text = trim(self.rest);
        while let [b',', rest @ ..] = text {
            text = trim(rest);
        }
        self.rest = text;
        if text.is_empty() {
            return None;
        }
        let param = self.one(text);
        self.failed = param.is_none();
        param
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_credentials_are_read_by_parameter() {
        let a = AuthValue::parse(
            b"Digest username=\"a,b\", realm=\"x\",qop=auth, nc=00000001 ,response = \"ff\"",
        )
        .unwrap();
        assert!(a.is_digest());
        assert_eq!(a.params.unquoted(b"username"), Some(&b"a,b"[..]));
        assert_eq!(a.params.unquoted(b"NC"), Some(&b"00000001"[..]));
        assert_eq!(a.params.unquoted(b"response"), Some(&b"ff"[..]));
        assert_eq!(a.params.unquoted(b"opaque"), None);
        for bad in [
            &b"Digest"[..],
            b"Digest x",
            b"Digest x=\"y",
            b"Digest x=1 y=2",
            b"Digest x=1, x=2",
            b"Dig est, x=1",
            b"Digest =1",
        ] {
            assert_eq!(AuthValue::parse(bad), None, "{:?}", core::str::from_utf8(bad));
        }
    }
}

//! `name-addr` and `addr-spec` with header parameters: From, To, Route, Record-Route, Path, …

use crate::chars::{quoted_len, trim};
use crate::params::Params;
use crate::uri::{SipUri, Uri, UriError};

/// A display name, a URI and parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameAddr<'a> {
    /// As written, quotes included; empty: none.
    pub display: &'a [u8],
    /// The URI as written, without angle brackets.
    pub uri: &'a [u8],
    /// Parameters after the URI.
    pub params: Params<'a>,
    /// Whether the URI stood in angle brackets.
    pub bracketed: bool,
}

impl<'a> NameAddr<'a> {
    /// Reads all of `text`. The URI itself is not examined.
    pub fn parse(text: &'a [u8]) -> Option<Self> {
        let open = find_open(text)?;
        let parsed = match open {
            Some(open) => {
                let close = open + 1 + memchr::memchr(b'>', text.get(open + 1..)?)?;
                let display = trim(text.get(..open)?);
                if !display_ok(display) {
                    return None;
                }
                Self {
                    display,
                    uri: text.get(open + 1..close)?,
                    params: Params::new(text.get(close + 1..)?),
                    bracketed: true,
                }
            }
            None => {
                // RFC 3261 §20.10: without brackets, parameters belong to the header, and the URI
                // may hold no comma, question mark or semicolon.
                let stop = memchr::memchr(b';', text).unwrap_or(text.len());
                Self {
                    display: &[],
                    uri: trim(text.get(..stop)?),
                    params: Params::new(text.get(stop..)?),
                    bracketed: false,
                }
            }
        };
        (!parsed.uri.is_empty() && parsed.params.is_valid()).then_some(parsed)
    }

    /// The `tag` parameter.
    pub fn tag(&self) -> Option<&'a [u8]> {
        self.params.get(b"tag").map(|p| p.value.unwrap_or_default())
    }

    /// The URI, read.
    ///
    /// # Errors
    /// As [`Uri::parse`].
    pub fn parsed_uri(&self) -> Result<Uri<'a>, UriError> {
        Uri::parse(self.uri)
    }

    /// The URI if it is a SIP or SIPS URI that can be read.
    pub fn sip_uri(&self) -> Option<SipUri<'a>> {
        match Uri::parse(self.uri) {
            Ok(Uri::Sip(uri)) => Some(uri),
            _ => None,
        }
    }
}

/// Where the `<` outside quotes is; `None` (outer) if a quoted string never ends.
fn find_open(text: &[u8]) -> Option<Option<usize>> {
    let mut at = 0;
    while let Some(&c) = text.get(at) {
        match c {
            b'"' => at += quoted_len(text.get(at..)?)?,
            b'<' => return Some(Some(at)),
            b';' => return Some(None),
            _ => at += 1,
        }
    }
    Some(None)
}

/// A quoted string, or words. Senders put more than tokens there, so only what would be read
/// differently by others is refused.
fn display_ok(display: &[u8]) -> bool {
    match display.first() {
        Some(b'"') => quoted_len(display) == Some(display.len()),
        _ => !display.iter().any(|c| matches!(c, b'"' | b'>' | b',' | b';')),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms() {
        let a = NameAddr::parse(b"\"A <x> \\\" y\" <sip:a@b;lr>;tag=1").unwrap();
        assert_eq!(
            (a.display, a.uri, a.tag()),
            (&b"\"A <x> \\\" y\""[..], &b"sip:a@b;lr"[..], Some(&b"1"[..]))
        );
        let a = NameAddr::parse(b"sip:a@b;tag=x;y").unwrap();
        assert_eq!(
            (a.uri, a.tag(), a.bracketed),
            (&b"sip:a@b"[..], Some(&b"x"[..]), false)
        );
        let a = NameAddr::parse(b"J Rosenberg <sip:a@b>").unwrap();
        assert_eq!((a.display, a.tag()), (&b"J Rosenberg"[..], None));
        for bad in [
            &b"\"open <sip:a@b>"[..],
            b"<sip:a@b",
            b"<>",
            b"",
            b"x\" <sip:a@b>",
            b"<sip:a@b> tag=1",
            b"<sip:a@b>;;",
            b";tag=1",
        ] {
            assert_eq!(NameAddr::parse(bad), None, "{:?}", core::str::from_utf8(bad));
        }
    }
}

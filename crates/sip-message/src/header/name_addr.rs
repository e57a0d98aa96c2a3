//! `name-addr` and `addr-spec` with header parameters: From, To, Route, Record-Route, Path, …

use crate::chars::{find, quoted_len, trim, trim_start, uri_len, word_len};
use crate::params::Params;
use crate::uri::{SipUri, Uri, UriError};

/// A display name, a URI and parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameAddr<'a> {
    /// The display name as written, quotes included; empty: none.
    pub display: &'a [u8],
    /// The URI as written, without angle brackets.
    pub uri: &'a [u8],
    /// Parameters after the URI.
    pub params: Params<'a>,
    /// Whether the URI stood in angle brackets.
    pub bracketed: bool,
    /// The `tag` parameter, found when the parameters were checked.
    pub(super) tag: Option<&'a [u8]>,
}

impl<'a> NameAddr<'a> {
    /// Reads the value that is the first `len` bytes of `text`, a part of a message.
    pub(crate) fn parse_in(text: &'a [u8], len: usize) -> Option<Self> {
        super::fast_path::name_addr(text, len).or_else(|| Self::parse_any(text.get(..len)?))
    }

    /// Reads all of `text`. Of the URI only the characters are checked.
    pub fn parse(text: &'a [u8]) -> Option<Self> {
        Self::parse_in(text, text.len())
    }

    /// Reads all of `text`, however it is written.
    pub(super) fn parse_any(text: &'a [u8]) -> Option<Self> {
        // A display name is a quoted string, or words. Senders put more than tokens there, so only characters
        // that others would read differently are refused.
        let (display, rest) = match text.first()? {
            b'"' => {
                let (display, rest) = text.split_at_checked(quoted_len(text)?)?;
                (display, trim_start(rest))
            }
            _ => text.split_at_checked(word_len(text))?,
        };
        let [b'<', inner @ ..] = rest else {
            return Self::without_brackets(display, rest);
        };
        let (uri, rest) = inner.split_at_checked(uri_text_len(inner))?;
        let [b'>', params @ ..] = rest else {
            return None;
        };
        let mut tag = None;
        (!uri.is_empty() && check_params(params, &mut tag)).then(|| Self {
            display: trim(display),
            uri,
            params: Params::new(params),
            bracketed: true,
            tag,
        })
    }

    /// Reads an address without brackets (RFC 3261 §20.10). The parameters belong to the header, and the URI
    /// may hold no comma, question mark or semicolon.
    fn without_brackets(uri: &'a [u8], params: &'a [u8]) -> Option<Self> {
        let uri = trim(uri);
        let mut tag = None;
        let ok = !uri.is_empty()
            && uri_text_len(uri) == uri.len()
            && find(uri, b'?').is_none()
            && check_params(params, &mut tag);
        ok.then(|| Self {
            display: &[],
            uri,
            params: Params::new(params),
            bracketed: false,
            tag,
        })
    }

    /// The `tag` parameter; empty if it has no value.
    pub const fn tag(&self) -> Option<&'a [u8]> {
        self.tag
    }

    /// The URI, parsed.
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

/// Whether `text` consists of parameters. Finds the tag among them.
fn check_params<'a>(text: &'a [u8], tag: &mut Option<&'a [u8]>) -> bool {
    Params::new(text).check(|param| {
        if param.name.len() == 3 && param.name.eq_ignore_ascii_case(b"tag") {
            *tag = Some(param.value.unwrap_or_default());
        }
    })
}

/// The length of the text up to a character that may not stand in a URI.
fn uri_text_len(text: &[u8]) -> usize {
    let mut len = uri_len(text);
    while text.get(len) == Some(&b'%') {
        len += 1;
        len += text.get(len..).map_or(0, uri_len);
    }
    len
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_of_name_addr_and_addr_spec_are_read() {
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
            b"< sip:a@b >",
            b"<sip:a@b >",
            b"<sip:a\r\n @b>",
            b"<sip:a@b<>",
            b"sip:a@b?x=y",
            b"sip:a@b, sip:c@d",
            b"sip:a@b c",
            b"\"x\" sip:a@b",
            b"\"x\" y <sip:a@b>",
            b"Bell, A <sip:a@b>",
            b"<sip:a@b>;x=1, <sip:c@d>;tag=2",
            b"<sip:a@b>;tag=1;tag=2",
            b"a <sip:a@b> <sip:c@d>",
        ] {
            assert_eq!(NameAddr::parse(bad), None, "{:?}", core::str::from_utf8(bad));
        }
    }
}

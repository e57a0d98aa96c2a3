//! Mending: a flawed response is written anew from the parts that could be read.
//!
//! If a response is dropped, its caller waits for half a minute, and a callee that accepted believes that the
//! call is up. So unambiguous flaws are removed. The mended message has none, so no other reader understands
//! it differently. Requests are not mended: their sender can get a response.

use alloc::vec::Vec;

use super::write_content_length;
use crate::chars::{is_c1, quoted_len, trim, trim_start};
use crate::message::Message;
use crate::name::HeaderName;
use crate::number::write_decimal;
use crate::params::Params;
use crate::parse::{Defect, StartLine};

impl Message<'_> {
    /// Appends the response without the flaws that can be mended. If the message is a request, or has a
    /// defect that cannot be mended, `false` is returned and nothing is appended. The result is to be parsed
    /// again: a header may be missing from it or still be malformed.
    ///
    /// Lines end with CRLF, and values stand on one line. A line without a name or a colon is removed, and so
    /// is the second of two equal lines of a header that may stand once. So are control characters of the
    /// reason phrase (U+0080 to U+009F included). White space before the reason phrase and before the status
    /// code becomes one space each. Of several tags in To the first is kept; a tag without a value is
    /// removed. A missing Content-Length is written.
    pub fn mend(&self, out: &mut Vec<u8>) -> bool {
        let StartLine::Response { status, reason } = self.start() else {
            return false;
        };
        if self.defect().is_some_and(|defect| !defect.is_harmless()) {
            return false;
        }
        out.extend_from_slice(b"SIP/2.0 ");
        write_decimal(out, u64::from(status));
        out.push(b' ');
        write_without_controls(out, reason);
        out.extend_from_slice(b"\r\n");
        for (number, field) in self.fields().iter().enumerate() {
            let value = self.field_value(field);
            let mut before = self.fields().get(..number).unwrap_or_default().iter();
            if field.name.is_single() && before.any(|f| f.name == field.name && self.field_value(f) == value)
            {
                continue;
            }
            out.extend_from_slice(self.field_name(field));
            out.extend_from_slice(b": ");
            if field.name == HeaderName::To {
                write_one_tag(out, value);
            } else {
                write_on_one_line(out, value);
            }
            out.extend_from_slice(b"\r\n");
        }
        // If Content-Length was missing, the body ended with the datagram: on a stream the length must be
        // written.
        if !self.has(HeaderName::ContentLength) {
            write_content_length(out, self.body().len());
        }
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(self.body());
        true
    }
}

impl Defect {
    /// Whether a response with this defect can be mended ([`Message::mend`]).
    pub(crate) const fn is_harmless(self) -> bool {
        matches!(
            self,
            Self::StatusLine | Self::ReasonPhrase | Self::HeaderLine | Self::LineEnd | Self::Repeated(_)
        )
    }
}

/// Writes a text without its control characters: those of ASCII, and U+0080 to U+009F in UTF-8 or as single
/// bytes. Bytes of other characters stay as they are, in any encoding.
fn write_without_controls(out: &mut Vec<u8>, text: &[u8]) {
    for chunk in text.utf8_chunks() {
        let mut rest = chunk.valid();
        while let Some(at) = rest.find(char::is_control) {
            let (visible, from) = rest.split_at(at);
            out.extend_from_slice(visible.as_bytes());
            rest = from.strip_prefix(char::is_control).unwrap_or_default();
        }
        out.extend_from_slice(rest.as_bytes());
        out.extend(chunk.invalid().iter().filter(|c| !is_c1(**c)));
    }
}

/// Writes a value with its lines joined by single spaces (RFC 3261 §7.3.1).
fn write_on_one_line(out: &mut Vec<u8>, value: &[u8]) {
    let lines = value.split(|c| matches!(c, b'\r' | b'\n')).map(trim);
    for (number, line) in lines.filter(|line| !line.is_empty()).enumerate() {
        if number > 0 {
            out.push(b' ');
        }
        out.extend_from_slice(line);
    }
}

/// Writes a `name-addr` with the first tag that has a value, and its other parameters.
fn write_one_tag(out: &mut Vec<u8>, value: &[u8]) {
    let (address, text) = value.split_at(params_at(value));
    write_on_one_line(out, address);
    // Text that is no parameter stays, and is refused when the message is parsed again.
    if Params::new(text).count_loose().is_none() {
        return write_on_one_line(out, text);
    }
    let is_tag = |name: &[u8]| name.eq_ignore_ascii_case(b"tag");
    let mut has_tag = false;
    for param in Params::new(text).iter() {
        let value = param.value.filter(|value| !value.is_empty());
        if is_tag(param.name) && (value.is_none() || core::mem::replace(&mut has_tag, true)) {
            continue;
        }
        out.push(b';');
        out.extend_from_slice(param.name);
        if let Some(value) = param.value {
            out.push(b'=');
            write_on_one_line(out, value);
        }
    }
}

/// The start of the parameters of a `name-addr` or `addr-spec`.
fn params_at(value: &[u8]) -> usize {
    let display = match value.first() {
        Some(b'"') => quoted_len(value).unwrap_or(0),
        _ => 0,
    };
    let rest = value.get(display..).unwrap_or_default();
    let open = memchr::memchr2(b'<', b';', rest).filter(|at| rest.get(*at) == Some(&b'<'));
    let end = match open.and_then(|at| memchr::memchr(b'>', rest.get(at..)?).map(|len| at + len + 1)) {
        Some(end) => end,
        None => memchr::memchr(b';', rest).unwrap_or(rest.len()),
    };
    let blanks = rest.get(end..).unwrap_or_default();
    display + end + (blanks.len() - trim_start(blanks).len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::{HeaderIndex, parse};
    use alloc::format;
    use alloc::string::String;

    fn mended(text: &str) -> Option<String> {
        let mut index = HeaderIndex::new();
        let message = parse(text.as_bytes(), &mut index, 100).unwrap();
        let mut out = Vec::new();
        message.mend(&mut out).then(|| String::from_utf8(out).unwrap())
    }

    fn response(to: &str, lines: &str, body: &str) -> String {
        format!(
            "SIP/2.0 180 Ringing\r\nVia: SIP/2.0/UDP a;branch=z9hG4bK1\r\nFrom: <sip:a@b>;tag=1\r\n\
             To: {to}\r\nCall-ID: x\r\nCSeq: 1 INVITE\r\nl: {}\r\n{lines}\r\n{body}",
            body.len()
        )
    }

    #[test]
    fn a_response_without_a_flaw_stays_as_it_is() {
        let text = response("<sip:c@d>;tag=2;x=\"y;z\"", "X: y\r\n", "body");
        assert_eq!(mended(&text), Some(text));
    }

    #[test]
    fn lines_are_mended() {
        for (lines, expected) in [
            ("X: a\n b\r\n", "X: a b\r\n"),
            ("X: a\r\n \r\n\tb\r\n", "X: a b\r\n"),
            ("X: a\nY: b\r\n", "X: a\r\nY: b\r\n"),
            ("no colon\r\nX: a\r\n", "X: a\r\n"),
            ("no colon\r\n folded\r\nX: a\r\n", "X: a\r\n"),
            ("Content-Length: 0\r\nX: a\r\nl: 0\r\n", "X: a\r\n"),
            ("call-id: x\r\n", ""),
            ("X\t:\ta\r\n", "X: a\r\n"),
        ] {
            let expected = response("<sip:c@d>", expected, "");
            assert_eq!(
                mended(&response("<sip:c@d>", lines, "")),
                Some(expected),
                "{lines:?}"
            );
        }
    }

    #[test]
    fn a_reason_phrase_loses_its_control_characters() {
        let (start, end) = (&b"SIP/2.0 486 "[..], &b"\r\nl: 0\r\n\r\n"[..]);
        for (phrase, expected) in [
            (&b"B\x1b[31mu\x7fs\0y"[..], &b"B[31musy"[..]),
            // U+0085 and U+009B in UTF-8, and as single bytes.
            (
                b"Gr\xc3\xb6\xc3\x9fe\xc2\x9b31m\xc2\x85",
                b"Gr\xc3\xb6\xc3\x9fe31m",
            ),
            (b"\x9b31mBusy\x85", b"31mBusy"),
            ("\u{80}日\u{9f}本".as_bytes(), "日本".as_bytes()),
            // Continuation bytes of nothing, and the rest of a character that was cut.
            (b"\xe6\x97", b"\xe6"),
            (b"a\xf0\x9f\x98b\x80", b"a\xf0b"),
            // The remaining bytes make no control character together.
            (b"\xc2\x01\x9b", b"\xc2"),
            (b"\xc2\xc2\x85\x85", b"\xc2"),
            // Latin-1, and the space that is none of ASCII's (U+00A0), are no control characters.
            (b"\x1bGr\xf6\xdfe", b"Gr\xf6\xdfe"),
            (
                "\u{7f}a\u{a0}é\u{fffd}😀".as_bytes(),
                "a\u{a0}é\u{fffd}😀".as_bytes(),
            ),
        ] {
            let text = [start, phrase, end].concat();
            let mut index = HeaderIndex::new();
            let message = parse(&text, &mut index, 100).unwrap();
            let mut out = Vec::new();
            assert_eq!(message.defect(), Some(Defect::ReasonPhrase), "{phrase:x?}");
            assert!(message.mend(&mut out));
            assert_eq!(out, [start, expected, end].concat(), "{phrase:x?}");
            let mut index = HeaderIndex::new();
            assert_eq!(
                parse(&out, &mut index, 100).unwrap().defect(),
                None,
                "{phrase:x?}"
            );
        }
    }

    #[test]
    fn to_keeps_one_tag() {
        for (to, expected) in [
            ("<sip:c@d>;tag=1;tag=2", "<sip:c@d>;tag=1"),
            ("<sip:c@d>;tag=1;tag=1;x", "<sip:c@d>;tag=1;x"),
            ("<sip:c@d>;tag=", "<sip:c@d>"),
            ("<sip:c@d>;TAG;x=y", "<sip:c@d>;x=y"),
            ("<sip:c@d;tag=9>;tag=;tag=2", "<sip:c@d;tag=9>;tag=2"),
            (
                "\"a <b> \\\";\" <sip:c@d> ; tag = 1;tag=2",
                "\"a <b> \\\";\" <sip:c@d>;tag=1",
            ),
            ("sip:c@d;tag=1;tag=2", "sip:c@d;tag=1"),
            ("sip:c@d;x=<;tag=1", "sip:c@d;x=<;tag=1"),
            // Text that is no parameter is not cut off: it is refused when the message is parsed again.
            ("<sip:c@d>;x=1;tag=a b", "<sip:c@d>;x=1;tag=a b"),
            ("<sip:c@d>;tag=t1;;y", "<sip:c@d>;tag=t1;;y"),
            ("<sip:c@d>;tag=t1;x=\"open", "<sip:c@d>;tag=t1;x=\"open"),
            (
                "Me <sip:c@d>;x=\";tag=3\";tag=1",
                "Me <sip:c@d>;x=\";tag=3\";tag=1",
            ),
        ] {
            let expected = response(expected, "", "");
            assert_eq!(mended(&response(to, "", "")), Some(expected), "{to:?}");
        }
    }

    #[test]
    fn a_length_is_written_where_there_is_none() {
        let text = "SIP/2.0 200 OK\r\nContent-Length 0\r\n\r\nMESSAGE sip:a@b SIP/2.0\r\n";
        let expected = "SIP/2.0 200 OK\r\nContent-Length: 25\r\n\r\nMESSAGE sip:a@b SIP/2.0\r\n";
        assert_eq!(mended(text).as_deref(), Some(expected));
    }

    #[test]
    fn what_leaves_doubts_is_not_mended() {
        for lines in ["X: a\0\r\n", "c: x\r\nX: \x01\r\n"] {
            assert_eq!(mended(&response("<sip:c@d>", lines, "")), None, "{lines:?}");
        }
        for end in [
            "\n\n",
            "\r\r",
            "\n\r\n",
            "\r\r\n",
            "\r\n\rX: y\r\n\r\n",
            "\r\n\nX: y\r\n\r\n",
        ] {
            let text = response("<sip:c@d>", "", "").replace("\r\n\r\n", end);
            assert_eq!(mended(&text), None, "{end:?}");
        }
        let cut = response("<sip:c@d>", "Contact: <sip:x", "");
        assert_eq!(mended(&cut), None);
        // A graver flaw behind a harmless one.
        assert_eq!(mended(&response("<sip:c@d>", "no colon\r\nX: a\0\r\n", "")), None);
        assert_eq!(mended("OPTIONS sip:a@b SIP/2.0\r\nno colon\r\n\r\n"), None);
    }

    #[test]
    fn two_different_values_stay_and_are_refused() {
        let two = response("<sip:c@d>", "Call-ID: y\r\n", "");
        let text = mended(&two).unwrap();
        let mut index = HeaderIndex::new();
        let message = parse(text.as_bytes(), &mut index, 100).unwrap();
        assert_eq!(message.defect(), Some(Defect::Repeated(HeaderName::CallId)));
    }
}

//! `Request-Line` and `Status-Line` (RFC 3261 §7.1, §7.2).

use super::Defect;
use crate::chars::{find, find_either, has_control, is_token_text, trim_start};
use crate::method::Method;

/// The first line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartLine<'a> {
    /// A request.
    Request {
        /// Method.
        method: Method<'a>,
        /// Request-URI as written.
        uri: &'a [u8],
    },
    /// A response.
    Response {
        /// The status code, 100 to 699.
        status: u16,
        /// Reason phrase as written.
        reason: &'a [u8],
    },
}

/// The fault of a line that is no start line of SIP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartLineError {
    /// The line is not SIP at all.
    NotSip,
    /// The line is a status line with a broken status code.
    Status,
}

const VERSION: &[u8] = b"SIP/2.0";

/// Reads a line (without its end).
pub(super) fn parse(line: &[u8]) -> Result<(StartLine<'_>, Option<Defect>), StartLineError> {
    match line.get(..4) {
        Some([b'S' | b's', b'I' | b'i', b'P' | b'p', b'/']) => status_line(line),
        _ => request_line(line),
    }
}

fn status_line(line: &[u8]) -> Result<(StartLine<'_>, Option<Defect>), StartLineError> {
    let (version, rest) = line
        .split_at_checked(VERSION.len())
        .ok_or(StartLineError::Status)?;
    if !(version == VERSION || version.eq_ignore_ascii_case(VERSION)) {
        return Err(StartLineError::Status);
    }
    let (digits, reason, spacing) = match rest {
        [b' ', a, b, c] => ([*a, *b, *c], Default::default(), None),
        [b' ', a, b, c, b' ', reason @ ..] if *a != b' ' => ([*a, *b, *c], reason, None),
        _ => {
            let (digits, reason) = spaced(rest).ok_or(StartLineError::Status)?;
            (digits, reason, Some(Defect::StatusLine))
        }
    };
    let status = digits.iter().fold(0u16, |sum, d| {
        sum.wrapping_mul(10).wrapping_add(u16::from(d.wrapping_sub(b'0')))
    });
    if !digits.iter().all(u8::is_ascii_digit) || !(100..700).contains(&status) {
        return Err(StartLineError::Status);
    }
    let defect = spacing.or_else(|| has_control(reason).then_some(Defect::ReasonPhrase));
    Ok((StartLine::Response { status, reason }, defect))
}

/// The three digits and the reason phrase, if other white space than one space each stands before them.
fn spaced(rest: &[u8]) -> Option<([u8; 3], &[u8])> {
    let text = trim_start(rest);
    let (digits, tail) = text.split_first_chunk::<3>()?;
    let reason = trim_start(tail);
    let is_spaced = text.len() < rest.len() && (reason.len() < tail.len() || tail.is_empty());
    is_spaced.then_some((*digits, reason))
}

fn request_line(line: &[u8]) -> Result<(StartLine<'_>, Option<Defect>), StartLineError> {
    let method_len = find(line, b' ').ok_or(StartLineError::NotSip)?;
    let method = Method::parse(line.get(..method_len).unwrap_or_default());
    if let Method::Other(text) = method
        && !is_token_text(text)
    {
        return Err(StartLineError::NotSip);
    }
    let after = line.get(method_len + 1..).unwrap_or_default();
    // The usual line is URI, one space, version.
    if let Some((uri, tail)) = after.split_at_checked(after.len().saturating_sub(VERSION.len() + 1))
        && let [b' ', version @ ..] = tail
        && (version == VERSION || version.eq_ignore_ascii_case(VERSION))
    {
        let broken = uri.is_empty() || find_either(uri, b' ', b'\t').is_some();
        return Ok((
            StartLine::Request { method, uri },
            broken.then_some(Defect::RequestLine),
        ));
    }
    // The line may be SIP with a flaw: trailing space, or another version.
    let at = rfind_version(after).ok_or(StartLineError::NotSip)?;
    let uri = crate::chars::trim(after.get(..at).unwrap_or_default());
    let version = after.get(at..).unwrap_or_default();
    let defect = if is_other_version(version) {
        Defect::Version
    } else {
        Defect::RequestLine
    };
    Ok((StartLine::Request { method, uri }, Some(defect)))
}

/// Whether a text is `SIP/` digits `.` digits, and not 2.0: a sender of another version (RFC 3261 §21.5.6),
/// not a broken line.
fn is_other_version(version: &[u8]) -> bool {
    let digits = |text: &[u8]| !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    let (major, minor) = crate::chars::split_once(version.get(4..).unwrap_or_default(), b'.');
    digits(major) && minor.is_some_and(digits) && !version.eq_ignore_ascii_case(VERSION)
}

/// The position of the last `SIP/` after a space.
fn rfind_version(text: &[u8]) -> Option<usize> {
    let mut at = text.len();
    while let Some(space) = text.get(..at).and_then(|t| memchr::memrchr(b' ', t)) {
        let follows = text.get(space + 1..space + 5).unwrap_or_default();
        if follows.eq_ignore_ascii_case(b"SIP/") {
            return Some(space + 1);
        }
        at = space;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_of_a_reason_phrase_are_a_defect() {
        for reason in [
            &b"O\0K"[..],
            b"Gr\xc2\x9b\xc3\xb6",
            b"\x9b31m",
            b"OK\x80",
            b"\xe6\x97",
        ] {
            let odd = StartLine::Response { status: 200, reason };
            let line = [b"SIP/2.0 200 ", reason].concat();
            assert_eq!(parse(&line), Ok((odd, Some(Defect::ReasonPhrase))), "{reason:?}");
        }
        for reason in ["Größe".as_bytes(), "日本".as_bytes(), b"Gr\xf6\xdfe", b"O\tK"] {
            let line = [b"SIP/2.0 200 ", reason].concat();
            let whole = StartLine::Response { status: 200, reason };
            assert_eq!(parse(&line), Ok((whole, None)), "{reason:?}");
        }
    }

    #[test]
    fn start_lines_are_read_or_refused() {
        let request = |uri| StartLine::Request {
            method: Method::Invite,
            uri,
        };
        assert_eq!(parse(b"INVITE sip:a@b SIP/2.0"), Ok((request(b"sip:a@b"), None)));
        assert_eq!(parse(b"INVITE sip:a@b sip/2.0"), Ok((request(b"sip:a@b"), None)));
        assert_eq!(
            parse(b"INVITE  sip:a@b SIP/2.0"),
            Ok((request(b" sip:a@b"), Some(Defect::RequestLine)))
        );
        assert_eq!(
            parse(b"INVITE sip:a@b SIP/2.0 "),
            Ok((request(b"sip:a@b"), Some(Defect::RequestLine)))
        );
        assert_eq!(
            parse(b"INVITE sip:a@b SIP/7.0"),
            Ok((request(b"sip:a@b"), Some(Defect::Version)))
        );
        for text in [
            &b"INVITE sip:a@b SIP/2.0 x"[..],
            b"INVITE sip:a@b SIP/x.0",
            b"INVITE sip:a@b SIP/3",
        ] {
            assert_eq!(parse(text), Ok((request(b"sip:a@b"), Some(Defect::RequestLine))));
        }
        assert_eq!(parse(b"INVITE sip:a@b"), Err(StartLineError::NotSip));
        assert_eq!(parse(b"GET / HTTP/1.1"), Err(StartLineError::NotSip));
        assert_eq!(parse(b""), Err(StartLineError::NotSip));
        let response = |status, reason| Ok((StartLine::Response { status, reason }, None));
        assert_eq!(parse(b"SIP/2.0 200 OK"), response(200, b"OK"));
        assert_eq!(parse(b"SIP/2.0 100 "), response(100, b""));
        assert_eq!(parse(b"SIP/2.0 100"), response(100, b""));
        let spaced = |status, reason| Ok((StartLine::Response { status, reason }, Some(Defect::StatusLine)));
        for (text, reason) in [
            (&b"SIP/2.0  200 OK"[..], &b"OK"[..]),
            (b"SIP/2.0\t200 OK", b"OK"),
            (b"SIP/2.0 200\tOK", b"OK"),
            (b"sip/2.0 \t 200 \t OK then", b"OK then"),
            (b"SIP/2.0  200", b""),
            (b"SIP/2.0  200 ", b""),
        ] {
            assert_eq!(parse(text), spaced(200, reason));
        }
        // White space after the one space may be the phrase's own.
        assert_eq!(parse(b"SIP/2.0 200  OK"), response(200, b" OK"));
        for bad in [
            &b"SIP/2.0 4294967301 x"[..],
            b"SIP/2.0 99 x",
            b"SIP/2.0 700 x",
            b"SIP/2.0  99 x",
            b"SIP/2.0 200OK",
            b"SIP/2.0  200OK",
            b"SIP/2.0200 OK",
            b"SIP/2.0  20 OK",
            b"SIP/2.0  2",
            b"SIP/2.0 2 0 OK",
            b"SIP/3.0 200 OK",
            b"SIP/2.0 ",
            b"SIP/2.0",
        ] {
            assert_eq!(parse(bad), Err(StartLineError::Status));
        }
    }
}

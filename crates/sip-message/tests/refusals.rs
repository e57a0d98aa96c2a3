//! What must be refused because two readers could take it for two messages: numbers that overflow,
//! headers that conflict, line ends that are none.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use crate::common;

use sip_message::header::HeaderError;
use sip_message::{Defect, HeaderIndex, HeaderName, parse};

/// A request with these header lines (each with its line end) after the mandatory ones.
fn request(extra: &str, body: &str) -> Vec<u8> {
    format!(
        "MESSAGE sip:a@b SIP/2.0\r\nVia: SIP/2.0/UDP h;branch=z9hG4bK1\r\nFrom: <sip:a@b>;tag=1\r\n\
         To: <sip:c@d>\r\nCall-ID: x\r\nCSeq: 1 MESSAGE\r\n{extra}\r\n{body}"
    )
    .into_bytes()
}

fn defect(bytes: &[u8]) -> Option<Defect> {
    let mut index = HeaderIndex::new();
    let message = parse(bytes, &mut index, common::MAX_HEADERS).unwrap();
    common::exercise(&message);
    message.defect()
}

#[test]
fn content_lengths_are_read_or_refused() {
    use Defect::{ContentLength, Repeated, Truncated};
    let twice = Some(Repeated(HeaderName::ContentLength));
    for (lines, expected) in [
        ("Content-Length: 4\r\n", None),
        ("Content-Length: 0\r\n", None),
        ("Content-Length:4\r\n", None),
        ("Content-Length : \t 4 \t\r\n", None),
        ("l: 4\r\n", None),
        ("L:\r\n 4\r\n", None),
        ("CONTENT-LENGTH: 0000000004\r\n", None),
        ("Content-Length: 5\r\n", Some(Truncated)),
        ("Content-Length: 2147483646\r\n", Some(Truncated)),
        ("Content-Length: 2147483647\r\n", Some(Truncated)),
        ("Content-Length: 2147483648\r\n", Some(ContentLength)),
        ("Content-Length: 2147483649\r\n", Some(ContentLength)),
        ("Content-Length: 4294967296\r\n", Some(ContentLength)),
        ("Content-Length: 4294967300\r\n", Some(ContentLength)),
        ("Content-Length: 9223372036854775807\r\n", Some(ContentLength)),
        ("Content-Length: 9223372036854775808\r\n", Some(ContentLength)),
        ("Content-Length: 18446744073709551620\r\n", Some(ContentLength)),
        ("Content-Length: 99999999999999999999\r\n", Some(ContentLength)),
        ("Content-Length: 00000000000000000004\r\n", Some(ContentLength)),
        ("Content-Length: -1\r\n", Some(ContentLength)),
        ("Content-Length: +4\r\n", Some(ContentLength)),
        ("Content-Length: 0x4\r\n", Some(ContentLength)),
        ("Content-Length: 4.0\r\n", Some(ContentLength)),
        ("Content-Length: 4;x\r\n", Some(ContentLength)),
        ("Content-Length: 4 4\r\n", Some(ContentLength)),
        ("Content-Length: 4,4\r\n", Some(ContentLength)),
        ("Content-Length: 1\r\n 4\r\n", Some(ContentLength)),
        ("Content-Length:\r\n", Some(ContentLength)),
        ("Content-Length: \u{664}\r\n", Some(ContentLength)),
        ("Content-Length: 4\r\nContent-Length: 4\r\n", twice),
        ("Content-Length: 4\r\nl: 4\r\n", twice),
        ("l: 4\r\nX: y\r\ncontent-length : 3\r\n", twice),
    ] {
        assert_eq!(defect(&request(lines, "body")), expected, "{lines:?}");
    }
}

#[test]
fn headers_that_may_stand_once() {
    for (lines, name) in [
        ("To: <sip:c@d>\r\n", HeaderName::To),
        ("t: <sip:e@f>\r\n", HeaderName::To),
        ("TO : <sip:c@d>\r\n", HeaderName::To),
        ("f: <sip:a@b>;tag=1\r\n", HeaderName::From),
        ("I: x\r\n", HeaderName::CallId),
        ("cseq: 1 MESSAGE\r\n", HeaderName::CSeq),
        (
            "Max-Forwards: 70\r\nmax-forwards: 70\r\n",
            HeaderName::MaxForwards,
        ),
    ] {
        assert_eq!(
            defect(&request(lines, "")),
            Some(Defect::Repeated(name)),
            "{lines:?}"
        );
    }
}

#[test]
fn header_lines_are_read_or_refused() {
    use Defect::{Control, HeadEnd, HeaderLine, LineEnd, Unterminated};
    for (lines, expected) in [
        ("X: y\r\n", None),
        ("X:\r\n", None),
        ("X: a\r\n b\r\n\tc\r\n", None),
        ("X: a\r\n \r\n", None),
        ("X: a\0b\r\n", Some(Control)),
        ("X: a\x01\r\n", Some(Control)),
        // No reader takes it for an end of anything.
        ("X: \x7f\r\n", None),
        ("X: \"a\\\x01\"\r\n", None),
        ("X: \"a\x01\"\r\n", Some(Control)),
        ("X: a\tb\r\n", None),
        ("X: a\nY: b\r\n", Some(LineEnd)),
        ("X: a\rY: b\r\n", Some(LineEnd)),
        ("X: a\n\r\n", Some(HeadEnd)),
        ("X: a\r\n\nY: b\r\n", Some(HeadEnd)),
        ("X: a\r\r\n", Some(HeadEnd)),
        ("X: a\n b\r\n", Some(LineEnd)),
        ("X: a\r b\r\n", Some(LineEnd)),
        ("X\r\n", Some(HeaderLine)),
        (": y\r\n", Some(HeaderLine)),
        ("X\0: y\r\n", Some(HeaderLine)),
        ("X Y: z\r\n", Some(HeaderLine)),
        ("X(Y): z\r\n", Some(HeaderLine)),
        ("X\r\n : y\r\n", Some(HeaderLine)),
        ("Call\rID: x\r\n", Some(HeaderLine)),
        ("\u{e9}: y\r\n", Some(HeaderLine)),
    ] {
        assert_eq!(defect(&request(lines, "")), expected, "{lines:?}");
    }
    let whole = String::from_utf8(request("", "")).unwrap();
    for (from, to, expected) in [
        ("SIP/2.0\r\nVia", "SIP/2.0\nVia", LineEnd),
        ("SIP/2.0\r\nVia", "SIP/2.0\rVia", LineEnd),
        ("SIP/2.0\r\nVia", "SIP/2.0\r\n Via", HeaderLine),
        ("MESSAGE\r\n\r\n", "MESSAGE\r\n\n", HeadEnd),
        ("MESSAGE\r\n\r\n", "MESSAGE\r\n\r", HeadEnd),
        ("MESSAGE\r\n\r\n", "MESSAGE\r\n", Unterminated),
        ("MESSAGE\r\n\r\n", "MESSAGE\r", Unterminated),
        ("MESSAGE\r\n\r\n", "MESSAGE", Unterminated),
    ] {
        let broken = whole.replace(from, to);
        assert_ne!(broken, whole);
        assert_eq!(defect(broken.as_bytes()), Some(expected), "{broken:?}");
    }
}

#[test]
fn a_bare_line_end_in_a_value_hides_no_header() {
    let bytes = request("Subject: x\nContent-Length: 0\r\n", "");
    let mut index = HeaderIndex::new();
    let message = parse(&bytes, &mut index, common::MAX_HEADERS).unwrap();
    assert_eq!(message.defect(), Some(Defect::LineEnd));
    assert_eq!(message.value(HeaderName::Subject), Some(&b"x"[..]));
}

#[test]
fn mandatory_headers_with_bad_values_are_refused() {
    use HeaderError::{Malformed, Missing};
    use HeaderName::{CSeq, CallId, From, To, Via};
    let whole = String::from_utf8(request("", "")).unwrap();
    for (from, to, expected) in [
        ("CSeq: 1 ", "CSeq: 2147483647 ", None),
        ("CSeq: 1 ", "CSeq: 2147483648 ", Some(Malformed(CSeq))),
        ("CSeq: 1 ", "CSeq: 4294967297 ", Some(Malformed(CSeq))),
        ("CSeq: 1 ", "CSeq: 18446744073709551617 ", Some(Malformed(CSeq))),
        ("CSeq: 1 ", "CSeq: -1 ", Some(Malformed(CSeq))),
        ("1 MESSAGE", "1 MESSAGE, 2 BYE", Some(Malformed(CSeq))),
        ("1 MESSAGE", "1MESSAGE", Some(Malformed(CSeq))),
        ("Call-ID: x", "Call-ID:", Some(Missing(CallId))),
        ("Call-ID: x", "Call-ID: x y", Some(Malformed(CallId))),
        ("Call-ID: x", "Call-ID: x\r\n y", Some(Malformed(CallId))),
        ("To: <sip:c@d>", "To: <sip:c@d>, <sip:e@f>", Some(Malformed(To))),
        ("To: <sip:c@d>", "To: sip:c@d, sip:e@f", Some(Malformed(To))),
        ("To: <sip:c@d>", "To: sip:c@d?x=y", Some(Malformed(To))),
        ("To: <sip:c@d>", "To: <sip:c@d>;tag", Some(Malformed(To))),
        ("To: <sip:c@d>", "To: <sip:c@d>;tag=a;tag=b", Some(Malformed(To))),
        ("To: <sip:c@d>", "To: <sip:c@d>;tag=\"a\"", Some(Malformed(To))),
        ("To: <sip:c@d>", "To: \"<sip:c@d>", Some(Malformed(To))),
        ("To: <sip:c@d>", "To: < sip:c@d>", Some(Malformed(To))),
        (";tag=1", ";tag=1;tag=1", Some(Malformed(From))),
        (";tag=1", ";tag=a@b", Some(Malformed(From))),
        ("UDP h;", "UDP h:0;", Some(Malformed(Via))),
        ("UDP h;", "UDP h:65536;", Some(Malformed(Via))),
        ("UDP h;", "UDP h x;", Some(Malformed(Via))),
        ("UDP h;", "UDP 1.2.3.400;", Some(Malformed(Via))),
        ("UDP h;", "UDP;", Some(Malformed(Via))),
        ("K1\r\n", "K1;branch=z9hG4bK2\r\n", Some(Malformed(Via))),
        ("K1\r\n", "K1;;\r\n", Some(Malformed(Via))),
        ("K1\r\n", "K1,\r\n", None),
        ("K1\r\n", "K1, SIP/2.0/UDP i\r\n", None),
    ] {
        let text = whole.replace(from, to);
        assert_ne!(text, whole);
        let mut index = HeaderIndex::new();
        let message = parse(text.as_bytes(), &mut index, common::MAX_HEADERS).unwrap();
        assert_eq!(message.defect(), None, "{text}");
        assert_eq!(message.check_mandatory().err(), expected, "{text}");
    }
}

#[test]
fn as_many_headers_as_the_limit() {
    let bytes = request("X: y\r\nX: y\r\n", "body");
    let mut index = HeaderIndex::new();
    for (limit, expected) in [
        (7, None),
        (8, None),
        (6, Some(Defect::TooManyHeaders)),
        (0, Some(Defect::TooManyHeaders)),
    ] {
        let message = parse(&bytes, &mut index, limit).unwrap();
        assert_eq!(message.defect(), expected, "{limit}");
        assert!(message.fields().len() <= limit);
    }
}

use alloc::format;
use alloc::string::String;
use alloc::vec;

use proptest::prelude::*;
use sip_message::{Defect, HeaderIndex, HeaderName};

use super::*;

/// [`Framed`] with its bytes owned.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Seen {
    Message(Vec<u8>),
    Ping,
    Pong,
    Error(FramingFault, Vec<u8>),
}

fn limits() -> Limits {
    Limits {
        header_bytes: 200,
        body_bytes: 100,
        ..Limits::default()
    }
}

fn framer() -> Framer {
    Framer::new(&limits())
}

/// Gives one piece of the stream. No memory may exceed the bounds, nor stay if no message is under way.
#[track_caller]
fn feed(framer: &mut Framer, piece: &[u8], seen: &mut Vec<Seen>) {
    let mut input = piece;
    loop {
        match framer.next(&mut input) {
            Framed::Message(message) => seen.push(Seen::Message(message.to_vec())),
            Framed::KeepAlivePing => seen.push(Seen::Ping),
            Framed::KeepAlivePong => seen.push(Seen::Pong),
            Framed::Error(error) => seen.push(Seen::Error(error.fault, error.head.to_vec())),
            Framed::Incomplete => break,
        }
        assert!(framer.held_bytes() <= 2 * (200 + 100));
    }
    assert!(input.is_empty());
    assert!(framer.held_bytes() <= 2 * (200 + 100));
    assert_eq!(framer.is_mid_message(), framer.held_bytes() > 0);
}

fn whole(stream: &[u8]) -> Vec<Seen> {
    in_pieces(stream, stream.len().max(1))
}

fn in_pieces(stream: &[u8], size: usize) -> Vec<Seen> {
    let (mut framer, mut seen) = (framer(), Vec::new());
    stream
        .chunks(size)
        .for_each(|piece| feed(&mut framer, piece, &mut seen));
    seen
}

fn cut(stream: &[u8], cuts: &[prop::sample::Index]) -> Vec<Seen> {
    let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
    at.extend([0, stream.len()]);
    at.sort_unstable();
    let (mut framer, mut seen) = (framer(), Vec::new());
    at.windows(2)
        .for_each(|ends| feed(&mut framer, &stream[ends[0]..ends[1]], &mut seen));
    seen
}

fn message(headers: &str, body: &str) -> String {
    format!("OPTIONS sip:a@b SIP/2.0\r\n{headers}\r\n{body}")
}

#[track_caller]
fn one(text: &str) -> Seen {
    let mut seen = whole(text.as_bytes());
    assert_eq!(in_pieces(text.as_bytes(), 1), seen, "byte by byte: {text:?}");
    assert_eq!(seen.len(), 1, "{text:?}: {seen:?}");
    seen.remove(0)
}

#[test]
fn spellings_of_content_length() {
    for header in [
        "Content-Length: 4\r\n",
        "content-length:4\r\n",
        "CONTENT-LENGTH \t :\t 4 \r\n",
        "l: 4\r\n",
        "L:4\r\n",
        "Content-Length:\r\n 4\r\n",
        "Content-Length:\r\n\t\r\n  4\r\n \r\n",
        "Content-Length: 0000000004\r\n",
        "Subject: x\r\n Content-Length: 9\r\nl: 4\r\nVia: x\r\n",
        "Content-Lengthy: 9\r\nXl: 9\r\nContent-Type: l\r\nl: 4\r\n",
        "l: 4\r\nContent-Length: 4\r\n",
    ] {
        let text = message(header, "body");
        assert_eq!(one(&text), Seen::Message(text.clone().into_bytes()), "{header:?}");
    }
}

#[test]
fn lengths_beyond_doubt_or_none() {
    use FramingFault::{BadContentLength, BodyTooLarge, MissingContentLength, RepeatedContentLength};
    for (headers, fault) in [
        ("Via: x\r\n", MissingContentLength),
        ("Content-Length 4\r\n", MissingContentLength),
        ("Via: x\r\n Content-Length: 4\r\n", MissingContentLength),
        ("l:\r\n", BadContentLength),
        ("l: x\r\n", BadContentLength),
        ("l: 4 4\r\n", BadContentLength),
        ("l: 4, 4\r\n", BadContentLength),
        ("l: 4\r\n 4\r\n", BadContentLength),
        ("l: -1\r\n", BadContentLength),
        ("l: +1\r\n", BadContentLength),
        ("l: 0x4\r\n", BadContentLength),
        ("l: 4.0\r\n", BadContentLength),
        ("l: 2147483648\r\n", BadContentLength),
        ("l: 2147483649\r\n", BadContentLength),
        ("l: 4294967295\r\n", BadContentLength),
        ("l: 4294967300\r\n", BadContentLength),
        ("l: 9223372036854775808\r\n", BadContentLength),
        ("l: 99999999999999999999\r\n", BadContentLength),
        ("l: 2147483647\r\n", BodyTooLarge),
        ("l: 101\r\n", BodyTooLarge),
        ("l: 4\r\nContent-Length: 3\r\n", RepeatedContentLength),
        ("l: 4\r\nl: 4\r\nl: 5\r\n", RepeatedContentLength),
        ("l: 4\r\nl: 5\r\n", RepeatedContentLength),
        ("l: x\r\nl: 4\r\n", RepeatedContentLength),
    ] {
        let head = message(headers, "");
        assert_eq!(
            one(&message(headers, "body")),
            Seen::Error(fault, head.into_bytes()),
            "{headers:?}"
        );
    }
    assert_eq!(FramingFault::BodyTooLarge.status(), 413);
    assert_eq!(FramingFault::MissingContentLength.status(), 400);
}

#[test]
fn bare_line_ends_are_refused_with_the_head() {
    for head in [
        "OPTIONS sip:a@b SIP/2.0\nl: 0\r\n\r\n",
        "OPTIONS sip:a@b SIP/2.0\r\nVia: x\rl: 0\r\n\r\n",
        "OPTIONS sip:a@b SIP/2.0\r\nl: 0\r\nVia: x\n\n",
        "OPTIONS sip:a@b SIP/2.0\r\nl: 0\r\n\n",
        "OPTIONS sip:a@b SIP/2.0\r\nl: 0\r\n\r",
        "\n",
        "\r",
    ] {
        let stream = format!("{head}more");
        assert_eq!(
            one(&stream),
            Seen::Error(FramingFault::LineEnd, head.into()),
            "{head:?}"
        );
    }
}

#[test]
fn the_bounds_are_exact() {
    let head = |length: usize, body: usize| {
        let fixed = message(&format!("l: {body}\r\nX: \r\n"), "").len();
        message(&format!("l: {body}\r\nX: {}\r\n", "x".repeat(length - fixed)), "")
    };
    let largest = head(200, 100) + &"b".repeat(100);
    assert_eq!(one(&largest), Seen::Message(largest.clone().into_bytes()));
    let larger = head(201, 0);
    assert_eq!(
        one(&larger),
        Seen::Error(FramingFault::HeadTooLarge, larger.as_bytes()[..200].to_vec())
    );
    let endless = "x".repeat(1000);
    assert_eq!(
        one(&endless),
        Seen::Error(FramingFault::HeadTooLarge, endless.as_bytes()[..200].to_vec())
    );
    let body = head(100, 101);
    assert_eq!(
        one(&body),
        Seen::Error(FramingFault::BodyTooLarge, body.clone().into_bytes())
    );
}

#[test]
fn keep_alives_between_messages() {
    let text = message("l: 0\r\n", "");
    let stream = format!("\r\n{text}\r\n\r\n\r\n{text}\r\n\r\n");
    let message = Seen::Message(text.into_bytes());
    let expected = [
        Seen::Pong,
        message.clone(),
        Seen::Pong,
        Seen::Ping,
        Seen::Pong,
        message,
        Seen::Pong,
        Seen::Ping,
    ];
    assert_eq!(whole(stream.as_bytes()), expected);
    assert_eq!(in_pieces(stream.as_bytes(), 1), expected);
}

#[test]
fn an_idle_connection_holds_nothing() {
    let text = message("l: 4\r\n", "body");
    let (mut framer, mut seen) = (framer(), Vec::new());
    for piece in [&text[..10], &text[10..], "\r", "\n\r", "\n", &text, &text[..20]] {
        feed(&mut framer, piece.as_bytes(), &mut seen);
    }
    assert!(framer.is_mid_message());
    feed(&mut framer, &text.as_bytes()[20..], &mut seen);
    assert!(!framer.is_mid_message());
    assert_eq!(framer.held_bytes(), 0);
    assert_eq!(seen.len(), 5);
    assert!(size_of::<Framer>() <= 80);
}

#[test]
fn a_whole_message_is_not_copied() {
    let text = message("l: 4\r\n", "body").repeat(3);
    let mut framer = framer();
    let mut input = text.as_bytes();
    for n in 0..3 {
        let Framed::Message(message) = framer.next(&mut input) else {
            panic!("a message")
        };
        assert!(core::ptr::eq(
            message.as_ptr(),
            &raw const text.as_bytes()[n * text.len() / 3]
        ));
    }
    assert_eq!(framer.next(&mut input), Framed::Incomplete);
}

#[test]
fn a_content_length_alone_reserves_nothing() {
    let limits = Limits {
        body_bytes: 1 << 30,
        ..Limits::default()
    };
    let (mut framer, mut input) = (
        Framer::new(&limits),
        b"OPTIONS x SIP/2.0\r\nl: 1000000000\r\n\r\nb".as_slice(),
    );
    assert_eq!(framer.next(&mut input), Framed::Incomplete);
    assert!(framer.held_bytes() < 200);
}

#[test]
fn nothing_is_heard_after_an_error() {
    let text = message("l: 0\r\n", "");
    let stream = format!("{}{text}", message("", ""));
    let (mut framer, mut seen) = (framer(), Vec::new());
    feed(&mut framer, stream.as_bytes(), &mut seen);
    feed(&mut framer, text.as_bytes(), &mut seen);
    assert_eq!(seen.len(), 1);
    assert!(framer.is_failed());
    assert_eq!(framer.held_bytes(), 0);
}

/// Streams that look much like SIP, good and bad.
fn streams() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        6 => (0..60usize).prop_map(|n| message(&format!("Via: x\r\nl: {n}\r\n"), &"\r\n".repeat(n)[..n])),
        4 => prop::sample::select(vec![
            "\r\n", "\r", "\n", " ", "\t", "l", ":", "4", "Content-Length: 7\r\n", "l: 3\r\n", "x: y\r\n",
            "OPTIONS sip:a@b SIP/2.0\r\n", "SIP/2.0 200 OK\r\n", "\r\n\r\n", "c-length", "Content-Length",
        ]).prop_map(String::from),
    ];
    let alike = prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat().into_bytes());
    prop_oneof![4 => alike, 1 => prop::collection::vec(any::<u8>(), 0..400)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn any_split_reads_alike(stream in streams(), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..10)) {
        let expected = whole(&stream);
        prop_assert_eq!(cut(&stream, &cuts), expected.clone());
        prop_assert_eq!(in_pieces(&stream, 1), expected);
    }

    #[test]
    fn messages_come_out_as_they_went_in(
        bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..100), 0..20),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
    ) {
        let messages: Vec<Vec<u8>> = bodies.iter().map(|body| {
            let mut bytes = message(&format!("Content-Length: {}\r\n", body.len()), "").into_bytes();
            bytes.extend_from_slice(body);
            bytes
        }).collect();
        let expected: Vec<Seen> = messages.iter().cloned().map(Seen::Message).collect();
        prop_assert_eq!(cut(&messages.concat(), &cuts), expected);
    }

    /// If a message was framed, the parser takes it to be the same message. If it was refused for its line
    /// ends or its length, the parser finds fault with it, too.
    #[test]
    fn the_parser_agrees(stream in streams()) {
        for seen in whole(&stream) {
            let (bytes, fault) = match &seen {
                Seen::Message(bytes) => (bytes, None),
                Seen::Error(fault, head) => (head, Some(*fault)),
                Seen::Ping | Seen::Pong => continue,
            };
            let mut index = HeaderIndex::new();
            let Ok(parsed) = sip_message::parse(bytes, &mut index, 256) else { continue };
            let length_fault = matches!(
                parsed.defect(),
                Some(Defect::ContentLength | Defect::Truncated | Defect::LineEnd | Defect::HeadEnd | Defect::Unterminated)
            );
            match fault {
                None => {
                    prop_assert!(!length_fault, "{:?} in {:?}", parsed.defect(), seen);
                    prop_assert_eq!(parsed.end_offset(), bytes.len());
                    prop_assert!(parsed.value(HeaderName::ContentLength).is_some());
                }
                Some(FramingFault::MissingContentLength) => {
                    prop_assert!(parsed.value(HeaderName::ContentLength).is_none());
                }
                Some(FramingFault::HeadTooLarge | FramingFault::BodyTooLarge) => {}
                Some(FramingFault::LineEnd | FramingFault::BadContentLength | FramingFault::RepeatedContentLength) => {
                    prop_assert!(parsed.defect().is_some(), "{:?}", seen);
                }
            }
        }
    }
}

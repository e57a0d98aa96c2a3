use alloc::string::String;
use alloc::vec;

use proptest::prelude::*;
use sip_message::{Defect, HeaderIndex};

use super::super::{KEEP_ALIVE_PONG, write_frame};
use super::*;

/// [`Unframed`] with its bytes owned.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Seen {
    Message(Vec<u8>),
    KeepAlivePing,
    KeepAlivePong,
    Ping(Vec<u8>),
    Pong,
    Close(Option<u16>, Vec<u8>),
    Error(FrameFault),
}

const MOST: usize = 300;

fn frames() -> Frames {
    Frames::new(&Limits {
        header_bytes: 200,
        body_bytes: 100,
        ..Limits::default()
    })
}

/// Gives one piece of the stream. No memory may exceed the bound, nor stay if no frame is under way.
#[track_caller]
fn feed(frames: &mut Frames, piece: &[u8], seen: &mut Vec<Seen>) {
    let mut input = piece;
    loop {
        seen.push(match frames.next(&mut input) {
            Unframed::Message(message) => Seen::Message(message.to_vec()),
            Unframed::KeepAlivePing => Seen::KeepAlivePing,
            Unframed::KeepAlivePong => Seen::KeepAlivePong,
            Unframed::Ping { reply } => Seen::Ping(reply.to_vec()),
            Unframed::Pong => Seen::Pong,
            Unframed::Close { code, reply } => Seen::Close(code, reply.to_vec()),
            Unframed::Error(fault) => Seen::Error(fault),
            Unframed::Incomplete => break,
        });
        assert!(frames.held_bytes() <= MOST + 127);
    }
    assert!(input.is_empty());
    assert!(frames.is_mid_message() || frames.held_bytes() == 0);
}

fn in_pieces(stream: &[u8], size: usize) -> Vec<Seen> {
    let (mut frames, mut seen) = (frames(), Vec::new());
    stream
        .chunks(size.max(1))
        .for_each(|piece| feed(&mut frames, piece, &mut seen));
    seen
}

#[track_caller]
fn whole(stream: &[u8]) -> Vec<Seen> {
    let seen = in_pieces(stream, stream.len());
    assert_eq!(in_pieces(stream, 1), seen, "byte by byte");
    seen
}

fn cut(stream: &[u8], cuts: &[prop::sample::Index]) -> Vec<Seen> {
    let (mut frames, mut seen) = (frames(), Vec::new());
    for piece in pieces(stream, cuts) {
        feed(&mut frames, piece, &mut seen);
    }
    seen
}

/// The pieces of `bytes`: one more than there are cuts; some may be empty.
fn pieces<'a>(bytes: &'a [u8], cuts: &[prop::sample::Index]) -> Vec<&'a [u8]> {
    let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
    at.extend([0, bytes.len()]);
    at.sort_unstable();
    at.windows(2).map(|ends| &bytes[ends[0]..ends[1]]).collect()
}

const KEY: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];

/// A client's frame, with the mask put on byte by byte.
fn client_with(key: [u8; 4], first: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![first];
    match payload.len() {
        length @ 0..126 => frame.push(0x80 | length as u8),
        length @ 126..65536 => {
            frame.push(0x80 | 126);
            frame.extend((length as u16).to_be_bytes());
        }
        length => {
            frame.push(0x80 | 127);
            frame.extend((length as u64).to_be_bytes());
        }
    }
    frame.extend(key);
    frame.extend(payload.iter().enumerate().map(|(i, byte)| byte ^ key[i % 4]));
    frame
}

fn client(first: u8, payload: &[u8]) -> Vec<u8> {
    client_with(KEY, first, payload)
}

fn text(payload: &str) -> Seen {
    Seen::Message(payload.as_bytes().to_vec())
}

/// RFC 6455 §5.7, as far as a client may send the examples: the others are of servers, and unmasked.
#[test]
fn examples_of_rfc_6455_are_read() {
    assert_eq!(
        whole(&[0x81, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58]),
        [text("Hello")]
    );
    assert_eq!(
        whole(&[0x8a, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58]),
        [Seen::Pong]
    );
    // A fragmented text, masked here.
    assert_eq!(
        whole(&[client(0x01, b"Hel"), client(0x80, b"lo")].concat()),
        [text("Hello")]
    );
    // A ping; the pong has its payload.
    assert_eq!(
        whole(&client(0x89, b"Hello")),
        [Seen::Ping(b"\x8a\x05Hello".to_vec())]
    );
    // 256 bytes of binary in one frame.
    let binary = [0xfe; 256];
    assert_eq!(client(0x82, &binary)[..4], [0x82, 0xfe, 0x01, 0x00]);
    assert_eq!(whole(&client(0x82, &binary)), [Seen::Message(binary.to_vec())]);
    // 64 KiB, with the limit that they need.
    let mut frames = Frames::new(&Limits::default());
    let large = vec![0xfe; 65536];
    let stream = client(0x82, &large);
    assert_eq!(stream[..10], [0x82, 0xff, 0, 0, 0, 0, 0, 1, 0, 0]);
    let mut input = stream.as_slice();
    assert_eq!(frames.next(&mut input), Unframed::Message(&large));
    assert_eq!(frames.next(&mut input), Unframed::Incomplete);
}

/// RFC 6455 §5.1 to §5.5, §7.4, §8.1: each fault, with its close code.
#[test]
fn faults_end_the_connection() {
    use FrameFault::*;
    let close = |code: u16| client(0x88, &code.to_be_bytes());
    let length = |second: u8, length: &[u8]| [&[0x82, second], length, &KEY].concat();
    let opened = |then: Vec<u8>| [client(0x01, b"a"), then].concat();
    for (stream, fault, code) in [
        (b"\x81\x05Hello".to_vec(), Unmasked, 1002),
        (b"\x88\x00".to_vec(), Unmasked, 1002),
        (client(0xc1, b"a"), ReservedBit, 1002),
        (client(0xa1, b"a"), ReservedBit, 1002),
        (client(0x91, b"a"), ReservedBit, 1002),
        (client(0xc9, b""), ReservedBit, 1002),
        (client(0x83, b"a"), ReservedOpcode, 1002),
        (client(0x87, b"a"), ReservedOpcode, 1002),
        (client(0x8b, b""), ReservedOpcode, 1002),
        (client(0x0f, b""), ReservedOpcode, 1002),
        (client(0x08, b""), FragmentedControl, 1002),
        (client(0x09, b"a"), FragmentedControl, 1002),
        (opened(client(0x0a, b"a")), FragmentedControl, 1002),
        (client(0x88, &[b'a'; 126]), LongControl, 1002),
        (client(0x89, &[b'a'; 126]), LongControl, 1002),
        (length(0xff, &[0, 0, 0, 0, 0, 0, 0, 1]), LengthForm, 1002),
        (client(0x80, b"a"), UnexpectedContinuation, 1002),
        (client(0x00, b""), UnexpectedContinuation, 1002),
        (
            [client(0x81, b"a"), client(0x80, b"b")].concat()[7..].to_vec(),
            UnexpectedContinuation,
            1002,
        ),
        (opened(client(0x81, b"b")), UnfinishedMessage, 1002),
        (opened(client(0x02, b"b")), UnfinishedMessage, 1002),
        (length(0xfe, &[0, 125]), LengthForm, 1002),
        (length(0xff, &[0, 0, 0, 0, 0, 0, 0xff, 0xff]), LengthForm, 1002),
        (length(0xff, &[0x80, 0, 0, 0, 0, 0, 0, 0]), LengthSign, 1002),
        (length(0xff, &[0xff; 8]), LengthSign, 1002),
        (client(0x88, b"a"), CloseCode, 1002),
        (close(0), CloseCode, 1002),
        (close(999), CloseCode, 1002),
        (close(1004), CloseCode, 1002),
        (close(1005), CloseCode, 1002),
        (close(1006), CloseCode, 1002),
        (close(1015), CloseCode, 1002),
        (close(1016), CloseCode, 1002),
        (close(2999), CloseCode, 1002),
        (close(5000), CloseCode, 1002),
        (close(65535), CloseCode, 1002),
        (client(0x88, b"\x03\xe8\xff"), NotUtf8, 1007),
        (client(0x88, b"\x03\xe8\xe2\x82"), NotUtf8, 1007),
        (client(0x81, b"\xff"), NotUtf8, 1007),
        (client(0x81, b"a\xc0\xaf"), NotUtf8, 1007),
        (client(0x81, b"\xed\xa0\x80"), NotUtf8, 1007),
        (client(0x81, b"\xf4\x90\x80\x80"), NotUtf8, 1007),
        (client(0x81, b"cut \xe2\x82"), NotUtf8, 1007),
        (
            [client(0x01, b"cut \xe2"), client(0x80, b"")].concat(),
            NotUtf8,
            1007,
        ),
        (
            [client(0x01, b"cut \xe2"), client(0x80, b"x")].concat(),
            NotUtf8,
            1007,
        ),
        (client(0x82, &[b'a'; 301]), TooLarge, 1009),
        (length(0xff, &[0, 0, 0, 0, 0, 1, 0, 0]), TooLarge, 1009),
        (length(0xff, &[0x7f, 0xff, 0, 0, 0, 0, 0, 0]), TooLarge, 1009),
        (opened(client(0x80, &[b'a'; 300])), TooLarge, 1009),
    ] {
        // Later bytes are ignored.
        let longer = [stream.clone(), client(0x81, b"late")].concat();
        assert_eq!(whole(&longer).last(), Some(&Seen::Error(fault)), "{stream:02x?}");
        assert_eq!(whole(&longer).len(), 1, "{stream:02x?}");
        assert_eq!(fault.close_code().code(), code, "{fault:?}");
    }
    assert_eq!(FrameFault::TooLarge.close_code().frame(), [0x88, 2, 0x03, 0xf1]);
}

/// RFC 6455 §8.1: bad text is a fault as soon as it is seen, not when its message ends.
#[test]
fn bad_text_fails_at_once() {
    let (mut frames, mut seen) = (frames(), Vec::new());
    let stream = client(0x01, b"valid \xf8 and so on");
    feed(&mut frames, &stream[..6 + 6], &mut seen);
    assert_eq!(seen, []);
    feed(&mut frames, &stream[12..13], &mut seen);
    assert_eq!(seen, [Seen::Error(FrameFault::NotUtf8)]);
    assert!(frames.is_ended());
    assert!(!frames.is_mid_message());
}

#[test]
fn a_character_may_be_cut_by_a_fragment() {
    let stream = [
        client(0x01, b"\xf0\x9f"),
        client(0x00, b""),
        client(0x00, b"\x98"),
        client(0x89, b"\xff"),
        client(0x80, b"\x80!"),
    ]
    .concat();
    assert_eq!(
        whole(&stream),
        [Seen::Ping(b"\x8a\x01\xff".to_vec()), text("\u{1f600}!")]
    );
}

/// RFC 6455 §5.6: binary is any bytes (RFC 7118 §5 has both).
#[test]
fn binary_need_not_be_text() {
    let stream = [client(0x02, b"\xff\xfe"), client(0x80, b"\xe2")].concat();
    assert_eq!(whole(&stream), [Seen::Message(b"\xff\xfe\xe2".to_vec())]);
}

/// RFC 6455 §5.5.1: the code comes back, the reason does not; then the stream has ended.
#[test]
fn close_is_echoed() {
    for (payload, code, reply) in [
        (&b""[..], None, &b"\x88\x00"[..]),
        (b"\x03\xe8", Some(1000), b"\x88\x02\x03\xe8"),
        (b"\x03\xe9bye \xe2\x82\xac", Some(1001), b"\x88\x02\x03\xe9"),
        (b"\x03\xeb", Some(1003), b"\x88\x02\x03\xeb"),
        (b"\x03\xef", Some(1007), b"\x88\x02\x03\xef"),
        (b"\x03\xf6", Some(1014), b"\x88\x02\x03\xf6"),
        (b"\x0b\xb8", Some(3000), b"\x88\x02\x0b\xb8"),
        (b"\x13\x87", Some(4999), b"\x88\x02\x13\x87"),
    ] {
        let expected = Seen::Close(code, reply.to_vec());
        let stream = [client(0x88, payload), client(0x81, b"late"), vec![0xff]].concat();
        assert_eq!(whole(&stream), core::slice::from_ref(&expected));
        // A Close may come within a message, which is then lost.
        assert_eq!(whole(&[client(0x01, b"a"), stream].concat()), [expected]);
    }
}

/// RFC 7118 §6, RFC 5626 §3.5.1.
#[test]
fn pings_are_answered_with_pongs() {
    let stream = [
        client(0x81, b"\r\n\r\n"),
        client(0x82, b"\r\n"),
        client(0x81, b""),
        [client(0x01, b"\r\n\r"), client(0x00, b""), client(0x80, b"\n")].concat(),
        client(0x8a, b""),
        client(0x89, b""),
        client(0x89, &[b'x'; 125]),
        client(0x81, b"\r\n\r\n\r\n"),
    ]
    .concat();
    assert_eq!(
        whole(&stream),
        [
            Seen::KeepAlivePing,
            Seen::KeepAlivePong,
            Seen::KeepAlivePong,
            Seen::KeepAlivePing,
            Seen::Pong,
            Seen::Ping(vec![0x8a, 0]),
            Seen::Ping([&[0x8a, 125][..], &[b'x'; 125]].concat()),
            // The core ignores such a datagram.
            text("\r\n\r\n\r\n"),
        ]
    );
}

#[test]
fn the_bound_is_exact() {
    let largest = [b'a'; MOST];
    assert_eq!(whole(&client(0x81, &largest)), [Seen::Message(largest.to_vec())]);
    let control = client(0x89, &[b'p'; 125]);
    let mut parts: Vec<Vec<u8>> = vec![client(0x02, b"")];
    for _ in 0..MOST {
        parts.extend([client(0x00, b"a"), control.clone(), client(0x00, b"")]);
    }
    let pong = Seen::Ping([&[0x8a, 125][..], &[b'p'; 125]].concat());
    let mut expected = vec![pong; MOST];
    let stream = [parts.concat(), client(0x80, b"")].concat();
    let beyond = [parts.concat(), client(0x80, b"b")].concat();
    expected.push(Seen::Message(largest.to_vec()));
    assert_eq!(whole(&stream), expected);
    *expected.last_mut().unwrap() = Seen::Error(FrameFault::TooLarge);
    assert_eq!(whole(&beyond), expected);
}

#[test]
fn a_silent_connection_holds_nothing() {
    assert!(size_of::<Frames>() <= 128, "{}", size_of::<Frames>());
    let (mut frames, mut seen) = (frames(), Vec::new());
    let stream = client(0x81, b"message");
    for piece in [&stream[..1], &stream[1..9], &stream[9..]] {
        assert_eq!(seen, []);
        feed(&mut frames, piece, &mut seen);
        assert_eq!(frames.is_mid_message(), seen.is_empty());
    }
    assert_eq!(frames.held_bytes(), 0);
    feed(&mut frames, &client(0x01, b""), &mut seen);
    assert!(frames.is_mid_message());
    feed(&mut frames, &client(0x89, b"ping"), &mut seen);
    assert!(frames.is_mid_message());
    feed(&mut frames, &client(0x80, b""), &mut seen);
    assert!(!frames.is_mid_message());
    assert_eq!(seen.len(), 3);
}

#[test]
fn a_length_alone_reserves_nothing() {
    let mut frames = Frames::new(&Limits::default());
    let mut input = b"\x82\xff\0\0\0\0\0\x0f\0\0keyspayload".as_slice();
    assert_eq!(frames.next(&mut input), Unframed::Incomplete);
    assert!(frames.held_bytes() < 64);
}

/// RFC 7118 §5, RFC 3261 §18.3: the parser treats a message from a frame as a datagram.
#[test]
fn a_message_is_a_datagram() {
    for (headers, body, end_of_body, defect) in [
        ("", "body", "body", None),
        ("Content-Length: 4\r\n", "body", "body", None),
        ("Content-Length: 4\r\n", "body, and more", "body", None),
        ("Content-Length: 5\r\n", "body", "body", Some(Defect::Truncated)),
    ] {
        let message = alloc::format!("OPTIONS sip:a@b SIP/2.0\r\n{headers}\r\n{body}");
        let stream = client(0x81, message.as_bytes());
        let (mut frames, mut input) = (frames(), stream.as_slice());
        let Unframed::Message(bytes) = frames.next(&mut input) else {
            panic!("a message")
        };
        let mut index = HeaderIndex::new();
        let parsed = sip_message::parse(bytes, &mut index, 16).unwrap();
        assert_eq!(parsed.defect(), defect, "{message}");
        assert!(parsed.bytes().ends_with(end_of_body.as_bytes()), "{message}");
    }
}

/// A written frame could be read by the same codec, were it masked.
#[test]
fn the_written_frame_has_the_message() {
    for message in [&b"SIP/2.0 200 OK\r\n\r\n"[..], b"\xff\xfe", &[b'x'; 200]] {
        let mut out = Vec::new();
        write_frame(&mut out, message);
        out[1] |= 0x80;
        let head = out.len() - message.len();
        out.splice(head..head, [0; 4]);
        assert_eq!(whole(&out), [Seen::Message(message.to_vec())]);
    }
    assert_eq!(KEEP_ALIVE_PONG[0], 0x81);
}

#[test]
fn the_mask_comes_off_at_any_length() {
    for length in 0..40 {
        let bytes: Vec<u8> = (0..length).collect();
        let mut masked: Vec<u8> = bytes.iter().zip(KEY.iter().cycle()).map(|(b, k)| b ^ k).collect();
        unmask(&mut masked, KEY);
        assert_eq!(masked, bytes);
    }
}

/// Frames as a client might send them, in order and out of it.
fn streams() -> impl Strategy<Value = Vec<u8>> {
    let payload = prop_oneof![
        4 => "[a-z\u{e9}\u{20ac}\u{1f600}]{0,20}".prop_map(String::into_bytes),
        1 => prop::collection::vec(any::<u8>(), 0..140),
    ];
    let first = prop_oneof![
        6 => prop::sample::select(vec![0x81, 0x82, 0x01, 0x02, 0x00, 0x80, 0x89, 0x8a]),
        1 => prop::sample::select(vec![0x88, 0x09, 0xc1, 0x83]),
    ];
    let frame = (first, payload, any::<[u8; 4]>())
        .prop_map(|(first, payload, key)| client_with(key, first, &payload));
    let alike = prop::collection::vec(frame, 0..12).prop_map(|frames| frames.concat());
    prop_oneof![4 => alike, 1 => prop::collection::vec(any::<u8>(), 0..400)]
}

/// One thing that a client sends: a message in fragments, with pings between them.
type Sent = (String, Vec<prop::sample::Index>, Option<Vec<u8>>, [u8; 4]);

fn sent() -> impl Strategy<Value = Sent> {
    (
        "[a-z\u{e9}\u{20ac}\u{1f600}]{3,70}",
        prop::collection::vec(any::<prop::sample::Index>(), 0..5),
        prop::option::of(prop::collection::vec(any::<u8>(), 0..=125)),
        any::<[u8; 4]>(),
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn any_split_reads_alike(stream in streams(), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..10)) {
        let expected = whole(&stream);
        prop_assert_eq!(cut(&stream, &cuts), expected);
    }

    #[test]
    fn messages_come_out_as_they_went_in(
        all in prop::collection::vec(sent(), 0..8),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
    ) {
        let (mut stream, mut expected) = (Vec::new(), Vec::new());
        for (message, fragments, ping, key) in &all {
            let bytes = message.as_bytes();
            let last = fragments.len();
            for (i, piece) in pieces(bytes, fragments).into_iter().enumerate() {
                let opcode = if i == 0 { 1 } else { 0 };
                let fin = if i == last { 0x80 } else { 0 };
                stream.extend(client_with(*key, fin | opcode, piece));
                if let Some(ping) = ping && i < last {
                    stream.extend(client_with(*key, 0x89, ping));
                    expected.push(Seen::Ping([&[0x8a, ping.len() as u8], ping.as_slice()].concat()));
                }
            }
            expected.push(Seen::Message(bytes.to_vec()));
        }
        prop_assert_eq!(whole(&stream), expected.clone());
        prop_assert_eq!(cut(&stream, &cuts), expected);
    }
}

//! What one peer sends on a connection, as a stream and as a WebSocket: read whole, and in pieces.
//!
//! The first byte chooses the decoder, the second the size of the pieces; the rest is the peer's.
//! However it is cut, the same comes of it; nothing is held beyond the bounds, and nothing between
//! messages. What a WebSocket's frames carry is read as a datagram would be.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sip_message::HeaderIndex;
use sip_core::limits::Limits;
use sip_core::transport::framing::{Framed, Framer};
use sip_core::transport::websocket::{AllowedOrigins, Frames, Handshake, Handshaking, Unframed};

const LIMITS: (usize, usize) = (1024, 512);

fn limits() -> Limits {
    Limits {
        header_bytes: LIMITS.0,
        body_bytes: LIMITS.1,
        ..Limits::default()
    }
}

/// What came of the bytes, one entry each.
type Seen = Vec<(u8, Vec<u8>)>;

enum Decoder {
    Stream(Framer),
    Upgrade(Handshake),
    Frames(Frames),
}

impl Decoder {
    fn new(choice: u8) -> Self {
        match choice % 3 {
            0 => Self::Stream(Framer::new(&limits())),
            1 => Self::Upgrade(Handshake::new(LIMITS.0)),
            _ => Self::Frames(Frames::new(&limits())),
        }
    }

    fn feed(&mut self, mut input: &[u8], seen: &mut Seen) {
        if let Self::Upgrade(handshake) = self {
            let mut reply = Vec::new();
            match handshake.next(&mut input, &AllowedOrigins::any()) {
                Handshaking::Incomplete => return,
                Handshaking::Accepted(upgrade) => {
                    upgrade.write_response(&mut reply);
                    seen.push((10, reply));
                }
                Handshaking::Refused(fault) => {
                    fault.write_response(&mut reply);
                    seen.push((11, reply));
                    return;
                }
            }
            *self = Self::Frames(Frames::new(&limits()));
        }
        match self {
            Self::Stream(framer) => feed_stream(framer, input, seen),
            Self::Frames(frames) => feed_frames(frames, input, seen),
            Self::Upgrade(_) => {}
        }
    }
}

fn feed_stream(framer: &mut Framer, mut input: &[u8], seen: &mut Seen) {
    loop {
        seen.push(match framer.next(&mut input) {
            Framed::Message(message) => {
                let _ = sip_message::parse(message, &mut HeaderIndex::default(), 64);
                (0, message.to_vec())
            }
            Framed::KeepAlivePing => (1, Vec::new()),
            Framed::KeepAlivePong => (2, Vec::new()),
            Framed::Error(error) => (3, error.head.to_vec()),
            Framed::Incomplete => break,
        });
    }
    assert!(framer.held_bytes() <= 2 * (LIMITS.0 + LIMITS.1));
    assert!(framer.is_mid_message() || framer.held_bytes() == 0);
}

fn feed_frames(frames: &mut Frames, mut input: &[u8], seen: &mut Seen) {
    loop {
        seen.push(match frames.next(&mut input) {
            Unframed::Message(message) => {
                let _ = sip_message::parse(message, &mut HeaderIndex::default(), 64);
                (4, message.to_vec())
            }
            Unframed::KeepAlivePing => (5, Vec::new()),
            Unframed::KeepAlivePong => (6, Vec::new()),
            Unframed::Ping { reply } => (7, reply.to_vec()),
            Unframed::Pong => (8, Vec::new()),
            Unframed::Close { reply, .. } => (9, reply.to_vec()),
            Unframed::Error(fault) => (12, fault.close_code().frame().to_vec()),
            Unframed::Incomplete => break,
        });
    }
    assert!(frames.held_bytes() <= LIMITS.0 + LIMITS.1 + 127);
    assert!(frames.is_mid_message() || frames.held_bytes() == 0);
}

fuzz_target!(|data: &[u8]| {
    let [choice, size, bytes @ ..] = data else { return };
    let (mut whole, mut pieces) = (Seen::new(), Seen::new());
    Decoder::new(*choice).feed(bytes, &mut whole);
    let mut decoder = Decoder::new(*choice);
    for piece in bytes.chunks(usize::from(*size).max(1)) {
        decoder.feed(piece, &mut pieces);
    }
    assert_eq!(whole, pieces);
});

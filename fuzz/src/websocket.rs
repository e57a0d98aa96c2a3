//! What one peer sends on a WebSocket connection: the upgrade and the frames behind it, whole and in
//! pieces.
//!
//! The lowest bit of the first byte says whether the upgrade lies behind us, the next whether only
//! one origin is allowed; the second byte is the size of the pieces; the rest is the peer's. What
//! frames carry is read as a datagram would be.

use sip_core::transport::websocket::{AllowedOrigins, Frames, Handshake, Handshaking, Unframed};

use crate::pieces::{BODY, HEADERS, Seen, compare, limits, read};

/// Longest payload of a control frame, and its head (RFC 6455 §5.5).
const CONTROL: usize = 127;

/// Bits of an input's first byte.
mod choice {
    pub(super) const UPGRADED: u8 = 1;
    pub(super) const ONE_ORIGIN: u8 = 2;
}

enum Decoder {
    Upgrade(Handshake),
    Frames(Frames),
    Over,
}

/// Takes one input.
pub fn run(data: &[u8]) {
    let [choice, size, bytes @ ..] = data else { return };
    let origins = if choice & choice::ONE_ORIGIN == 0 {
        AllowedOrigins::any()
    } else {
        AllowedOrigins::only(["https://phone.example.com"]).expect("an origin")
    };
    let new = || match choice & choice::UPGRADED {
        0 => Decoder::Upgrade(Handshake::new(HEADERS)),
        _ => Decoder::Frames(Frames::new(&limits())),
    };
    compare(bytes, *size, new, |decoder, input, seen| {
        feed(decoder, input, &origins, seen);
    });
}

fn feed(decoder: &mut Decoder, mut input: &[u8], origins: &AllowedOrigins, seen: &mut Seen) {
    if let Decoder::Upgrade(handshake) = decoder {
        let mut reply = Vec::new();
        match handshake.next(&mut input, origins) {
            Handshaking::Incomplete => {
                assert!(handshake.held_bytes() <= HEADERS);
                return;
            }
            Handshaking::Accepted(upgrade) => {
                assert!(origins.allows(upgrade.origin), "whom we do not allow is refused");
                upgrade.write_response(&mut reply);
                assert!(reply.starts_with(b"HTTP/1.1 101 "));
                seen.push(('a', reply));
                *decoder = Decoder::Frames(Frames::new(&limits()));
            }
            Handshaking::Foreign(origin) => {
                assert!(!origins.allows(Some(origin)), "whom we allow is let in");
                seen.push(('f', origin.to_vec()));
                *decoder = Decoder::Over;
            }
            Handshaking::Refused(fault) => {
                fault.write_response(&mut reply);
                let refused = [&b"HTTP/1.1 4"[..], b"HTTP/1.1 5"];
                assert!(refused.iter().any(|status| reply.starts_with(status)));
                seen.push(('r', reply));
                *decoder = Decoder::Over;
            }
        }
    }
    if let Decoder::Frames(frames) = decoder {
        feed_frames(frames, input, seen);
    }
}

fn feed_frames(frames: &mut Frames, mut input: &[u8], seen: &mut Seen) {
    loop {
        seen.push(match frames.next(&mut input) {
            Unframed::Message(message) => {
                assert!(message.len() <= HEADERS + BODY);
                read(message);
                ('m', message.to_vec())
            }
            Unframed::KeepAlivePing => ('i', Vec::new()),
            Unframed::KeepAlivePong => ('o', Vec::new()),
            Unframed::Ping { reply } => ('p', reply.to_vec()),
            Unframed::Pong => ('q', Vec::new()),
            Unframed::Close { reply, .. } => ('c', reply.to_vec()),
            Unframed::Error(fault) => ('e', fault.close_code().frame().to_vec()),
            Unframed::Incomplete => break,
        });
    }
    assert!(frames.held_bytes() <= HEADERS + BODY + CONTROL);
    assert!(frames.is_mid_message() || frames.held_bytes() == 0);
}

//! The server's side of WebSocket (RFC 6455) as a transport of SIP (RFC 7118), from bytes to
//! bytes.
//!
//! A connection is first a [`Handshake`], then [`Frames`]; [`write_frame`] and its companions write the
//! output. If two readers of one stream read frames differently, one can be made to see other messages. So
//! input that leaves a doubt ends the connection here, too. No extension is ever agreed to, so every reserved
//! bit is a fault.
//!
//! # Messages
//! A WebSocket message is one SIP message (RFC 7118 §5): it has an end of its own and needs no
//! Content-Length. The core gets the message as it would get a datagram, and [`sip_message::parse()`] treats
//! it as one (RFC 3261 §18.3). Without Content-Length the body is all that follows the headers. If
//! Content-Length is more than there is, the message is refused (400). If it is less, the rest is no part of
//! the message, nor another one.
//!
//! # What is refused
//! Of handshakes, by [`HandshakeFault`]: each ends the connection after its response.
//!
//! | what | response |
//! | --- | --- |
//! | head longer than the limit | 431 |
//! | control character, line end that is not CRLF, folded line, no token as field name, white space before the colon | 400 |
//! | request line that is none; URI that is none | 400 |
//! | a version of HTTP that is not 1.1 | 505 |
//! | a method that is not GET | 405 |
//! | Host, Origin, Sec-WebSocket-Key or -Version twice | 400 |
//! | Host absent or no host; a body announced | 400 |
//! | no `Upgrade: websocket` with `Connection: Upgrade` | 426 |
//! | Sec-WebSocket-Version absent or not 13 | 426 |
//! | Sec-WebSocket-Key absent or not 16 bytes in base64 | 400 |
//! | an Origin that is not on the list, if there is one | 403 |
//! | no sub-protocol `sip` among those offered | 400 |
//!
//! Of frames, by [`FrameFault`]: each ends the connection after a Close.
//!
//! | what | close code |
//! | --- | --- |
//! | no masking; reserved bit, opcode; control frame in fragments or above 125 bytes | 1002 |
//! | length not in its shortest form, or 2^63 and more | 1002 |
//! | continuation of nothing; a message that begins within another | 1002 |
//! | Close of one byte, or with a code that may not be sent | 1002 |
//! | text, or the reason of a Close, that is not UTF-8 | 1007 |
//! | message longer than the limit | 1009 |

mod frames;
mod handshake;
mod origin;

pub use frames::{FrameFault, Frames, Unframed};
pub use handshake::{Handshake, HandshakeFault, Handshaking, SingleField, Upgrade};
pub use origin::{AllowedOrigins, BadOrigin};

use alloc::vec::Vec;

/// First byte of frames that are not fragments (RFC 6455 §5.2).
const TEXT: u8 = 0x81;
const BINARY: u8 = 0x82;
const CLOSE: u8 = 0x88;
const PING: u8 = 0x89;
const PONG: u8 = 0x8a;

/// The longest length in the second byte of a frame; control frames are no longer.
const SHORT: usize = 125;

/// The reason why this server closes a connection (RFC 6455 §7.4.1 and its registry).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum CloseCode {
    /// The purpose of the connection is fulfilled.
    Normal = 1000,
    /// The server goes away.
    GoingAway = 1001,
    /// The peer broke RFC 6455.
    ProtocolError = 1002,
    /// Text that is not UTF-8.
    InvalidPayload = 1007,
    /// The peer broke a rule of ours.
    PolicyViolation = 1008,
    /// A message longer than the limit.
    TooBig = 1009,
    /// This server failed.
    InternalError = 1011,
    /// The server restarts; the client may reconnect somewhat later.
    ServiceRestart = 1012,
    /// The server is overloaded.
    TryAgainLater = 1013,
}

impl CloseCode {
    /// The code as sent.
    pub const fn code(self) -> u16 {
        self as u16
    }

    /// The whole Close frame with this code and no reason.
    pub const fn frame(self) -> [u8; 4] {
        let [high, low] = self.code().to_be_bytes();
        [CLOSE, 2, high, low]
    }
}

/// The pong for [`Unframed::KeepAlivePing`]: a text of one CRLF (RFC 5626 §3.5.1).
pub const KEEP_ALIVE_PONG: &[u8] = b"\x81\x02\r\n";

/// Appends `message` as one frame: text if it is UTF-8, else binary (RFC 7118 §5). A server does
/// not mask (RFC 6455 §5.1).
pub fn write_frame(out: &mut Vec<u8>, message: &[u8]) {
    let first = if core::str::from_utf8(message).is_ok() {
        TEXT
    } else {
        BINARY
    };
    out.reserve(message.len() + 10);
    match u16::try_from(message.len()) {
        Ok(length) if usize::from(length) <= SHORT => out.extend_from_slice(&[first, length as u8]),
        Ok(length) => {
            out.extend_from_slice(&[first, 126]);
            out.extend_from_slice(&length.to_be_bytes());
        }
        Err(_) => {
            out.extend_from_slice(&[first, 127]);
            out.extend_from_slice(&(message.len() as u64).to_be_bytes());
        }
    }
    out.extend_from_slice(message);
}

/// Appends a Ping without payload; the peer sends a Pong back.
pub fn write_ping(out: &mut Vec<u8>) {
    out.extend_from_slice(&[PING, 0]);
}

/// Appends a Close. Nothing may be sent after it (RFC 6455 §5.5.1).
pub fn write_close(out: &mut Vec<u8>, code: CloseCode) {
    out.extend_from_slice(&code.frame());
}

/// Makes room for `needed` bytes in all. The buffer doubles, but not beyond `bound` unless more is needed.
fn grow(buffer: &mut Vec<u8>, needed: usize, bound: usize) {
    if needed > buffer.capacity() {
        let wanted = (buffer.capacity() * 2).min(bound).max(needed);
        buffer.reserve_exact(wanted - buffer.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 6455 §5.7: the examples of unmasked frames.
    #[test]
    fn written_frames_are_those_of_the_examples() {
        let written = |message: &[u8]| {
            let mut out = Vec::new();
            write_frame(&mut out, message);
            out
        };
        assert_eq!(written(b"Hello"), [0x81, 5, 0x48, 0x65, 0x6c, 0x6c, 0x6f]);
        let binary = [0xff; 256];
        assert_eq!(written(&binary)[..4], [0x82, 0x7e, 1, 0]);
        assert_eq!(written(&binary)[4..], binary);
        let large = alloc::vec![0xfe; 65536];
        assert_eq!(written(&large)[..10], [0x82, 0x7f, 0, 0, 0, 0, 0, 1, 0, 0]);
        assert_eq!(written(&large)[10..], large);
        assert_eq!(written(b"\r\n"), KEEP_ALIVE_PONG);
        assert_eq!(written(b""), [0x81, 0]);
    }

    #[test]
    fn lengths_take_their_shortest_form() {
        for (length, head) in [
            (125, &[0x81, 125][..]),
            (126, &[0x81, 126, 0, 126]),
            (65535, &[0x81, 126, 0xff, 0xff]),
            (65536, &[0x81, 127, 0, 0, 0, 0, 0, 1, 0, 0]),
        ] {
            let mut out = Vec::new();
            write_frame(&mut out, &alloc::vec![b'x'; length]);
            assert_eq!(out[..head.len()], *head);
            assert_eq!(out.len(), head.len() + length);
        }
    }

    #[test]
    fn control_frames_are_written_whole() {
        let mut out = Vec::new();
        write_ping(&mut out);
        write_close(&mut out, CloseCode::GoingAway);
        assert_eq!(out, [0x89, 0, 0x88, 2, 3, 0xe9]);
    }
}

//! The client's end of a WebSocket (RFC 6455, RFC 7118): the handshake, masked frames to the
//! server, plain frames from it.

use base64ct::{Base64, Encoding};
use sha1::{Digest, Sha1};

/// Result of [`Client::next`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Came {
    /// The buffer has no whole frame, or no whole response.
    Nothing,
    /// The server has accepted the handshake.
    Agreed,
    /// A whole SIP message, which [`Client::message`] returns.
    Message,
    /// A Pong frame to send, the response to a Ping.
    Pong(Vec<u8>),
    /// The server closes, refused the handshake, or exceeds a limit.
    Closed,
}

/// Most bytes of a message.
const MOST: usize = 1 << 20;

#[derive(Debug, Default)]
pub(crate) struct Client {
    agreed: bool,
    buffer: Vec<u8>,
    /// The last message.
    message: Vec<u8>,
    /// Whether `message` waits for more fragments.
    partial: bool,
    /// Number from which the key is made.
    number: u32,
    mask: u32,
}

impl Client {
    /// A client before its handshake, with a number that differs between connections.
    pub(crate) fn new(number: u32) -> Self {
        Self {
            number: number.wrapping_mul(0x9e37_79b9) | 1,
            mask: number.wrapping_mul(0x9e37_79b9) | 1,
            ..Self::default()
        }
    }

    /// Appends the request of the handshake (RFC 6455 §4.1, RFC 7118 §4).
    pub(crate) fn write_request(&self, out: &mut Vec<u8>, host: &str, path: &str) {
        let key = self.key();
        let text = format!(
            "GET {path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Protocol: sip\r\nSec-WebSocket-Version: 13\r\n\r\n"
        );
        out.extend_from_slice(text.as_bytes());
    }

    /// The value of Sec-WebSocket-Key.
    fn key(&self) -> String {
        const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        // 22 digits of base64 with padding are sixteen bytes.
        let digit = |i: u32| ALPHABET[(self.number.rotate_left(7 * i) as usize) & 63] as char;
        // Only two bits of the last digit are used.
        (0..21).map(digit).chain("A==".chars()).collect()
    }

    /// The value of Sec-WebSocket-Accept that the server must send (RFC 6455 §4.1, §4.2.2).
    fn accept(&self) -> String {
        let hash = Sha1::new()
            .chain_update(self.key())
            .chain_update("258EAFA5-E914-47DA-95CA-C5AB0DC85B11")
            .finalize();
        let mut accept = [0; 28];
        // Twenty bytes are 28 digits.
        Base64::encode(&hash, &mut accept).map_or_else(|_| String::new(), str::to_owned)
    }

    /// Appends a message as one masked frame (RFC 6455 §5.2, §5.3).
    pub(crate) fn write_frame(&mut self, out: &mut Vec<u8>, message: &[u8]) {
        self.write(out, 0x81, message);
    }

    fn write(&mut self, out: &mut Vec<u8>, first: u8, payload: &[u8]) {
        // Masks keep scripts from writing bytes that proxies take for requests; a generator is no script.
        self.mask = self.mask.wrapping_mul(0x0019_660d).wrapping_add(0x3c6e_f35f);
        let key = self.mask.to_be_bytes();
        out.push(first);
        match payload.len() {
            short @ 0..=125 => out.push(0x80 | short as u8),
            middle @ 126..=0xffff => {
                out.push(0x80 | 126);
                out.extend_from_slice(&(middle as u16).to_be_bytes());
            }
            long => {
                out.push(0x80 | 127);
                out.extend_from_slice(&(long as u64).to_be_bytes());
            }
        }
        out.extend_from_slice(&key);
        out.extend(
            payload
                .iter()
                .zip(key.iter().cycle())
                .map(|(byte, key)| byte ^ key),
        );
    }

    /// The last message.
    pub(crate) fn message(&self) -> &[u8] {
        &self.message
    }

    /// Appends received bytes to the buffer.
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next step. To be called until it is [`Came::Nothing`].
    pub(crate) fn next(&mut self) -> Came {
        if !self.agreed {
            return self.handshake();
        }
        while let Some((first, payload)) = self.frame() {
            let came = self.take(first, payload);
            if came != Came::Nothing {
                return came;
            }
        }
        if self.buffer.len() > MOST {
            Came::Closed
        } else {
            Came::Nothing
        }
    }

    /// Takes the frame at the front, given its first byte and the range of its payload.
    fn take(&mut self, first: u8, payload: std::ops::Range<usize>) -> Came {
        let bytes = self.buffer.get(payload.clone()).unwrap_or_default();
        let came = match first & 0x0f {
            0..=2 => {
                if !self.partial {
                    self.message.clear();
                }
                self.message.extend_from_slice(bytes);
                self.partial = first & 0x80 == 0;
                if self.message.len() > MOST {
                    Came::Closed
                } else if self.partial {
                    Came::Nothing
                } else {
                    Came::Message
                }
            }
            8 => Came::Closed,
            9 => {
                let (mut pong, echo) = (Vec::new(), bytes.to_vec());
                self.write(&mut pong, 0x8a, &echo);
                Came::Pong(pong)
            }
            _ => Came::Nothing,
        };
        self.buffer.drain(..payload.end);
        came
    }

    fn handshake(&mut self) -> Came {
        let Some(end) = memchr::memmem::find(&self.buffer, b"\r\n\r\n") else {
            return if self.buffer.len() > 16_384 {
                Came::Closed
            } else {
                Came::Nothing
            };
        };
        let head = self.buffer.get(..end).unwrap_or_default();
        let agreed = head.starts_with(b"HTTP/1.1 101 ") && self.is_accepted(head);
        self.buffer.drain(..end + 4);
        self.agreed = agreed;
        if agreed { Came::Agreed } else { Came::Closed }
    }

    /// Whether the response with this head accepts our key. If not, the response is a cached one, or the
    /// server does not understand the request (RFC 6455 §4.1).
    fn is_accepted(&self, head: &[u8]) -> bool {
        let accept = self.accept();
        let fields = head.split(|c| *c == b'\n').skip(1);
        let named = |line: &&[u8]| {
            let name = line.split(|c| *c == b':').next().unwrap_or_default();
            name.eq_ignore_ascii_case(b"Sec-WebSocket-Accept")
        };
        let value = fields
            .filter(named)
            .map(|line| line.get(21..).unwrap_or_default().trim_ascii());
        value.eq(std::iter::once(accept.as_bytes()))
    }

    /// First byte and range of the payload of the frame at the front, if it is whole.
    fn frame(&self) -> Option<(u8, std::ops::Range<usize>)> {
        let (first, second) = (*self.buffer.first()?, *self.buffer.get(1)?);
        let (length, at): (usize, usize) = match second & 0x7f {
            126 => (
                usize::from(u16::from_be_bytes(self.buffer.get(2..4)?.try_into().ok()?)),
                4,
            ),
            127 => {
                let length = u64::from_be_bytes(self.buffer.get(2..10)?.try_into().ok()?);
                (usize::try_from(length).ok()?, 10)
            }
            short => (usize::from(short), 2),
        };
        let end = at.checked_add(length)?;
        (self.buffer.len() >= end).then_some((first, at..end))
    }
}

#[cfg(test)]
mod tests {
    use sip_core::limits::Limits;
    use sip_core::transport::websocket::{self, Frames, Unframed};

    use super::*;

    #[test]
    fn the_server_reads_what_we_write() {
        let mut client = Client::new(7);
        for length in [0, 1, 125, 126, 1_000, 65_535, 65_536] {
            let message: Vec<u8> = (0..length).map(|i| b'a' + (i % 26) as u8).collect();
            let mut out = Vec::new();
            client.write_frame(&mut out, &message);
            let mut frames = Frames::new(&Limits::default());
            let mut input = &out[..];
            if length > 0 {
                assert!(matches!(frames.next(&mut input), Unframed::Message(m) if m == message));
            }
        }
    }

    #[test]
    fn we_read_what_the_server_writes_however_it_is_cut() {
        let mut stream = agreement(&Client::new(1).accept());
        let messages: Vec<Vec<u8>> = [3, 126, 70_000].iter().map(|n| vec![b'x'; *n]).collect();
        for message in &messages {
            websocket::write_frame(&mut stream, message);
            websocket::write_ping(&mut stream);
        }
        for cut in [1, 7, 4096, usize::MAX] {
            let mut client = Client::new(1);
            let (mut came, mut pongs, mut agreed) = (Vec::new(), 0, 0);
            for piece in stream.chunks(cut) {
                client.feed(piece);
                loop {
                    match client.next() {
                        Came::Nothing => break,
                        Came::Agreed => agreed += 1,
                        Came::Message => came.push(client.message().to_vec()),
                        Came::Pong(_) => pongs += 1,
                        Came::Closed => panic!("closed"),
                    }
                }
            }
            assert_eq!((agreed, pongs), (1, 3));
            assert_eq!(came, messages);
        }
    }

    fn agreement(accept: &str) -> Vec<u8> {
        let head = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n";
        format!("{head}sec-websocket-accept:{accept}\r\n\r\n").into_bytes()
    }

    #[test]
    fn a_refusal_is_an_end() {
        let mut client = Client::new(1);
        client.feed(b"HTTP/1.1 403 Forbidden\r\n\r\n");
        assert_eq!(client.next(), Came::Closed);
    }

    /// RFC 6455 §4.1: the response must accept this key.
    #[test]
    fn an_answer_to_another_key_is_an_end() {
        let good = Client::new(1).accept();
        let twice = format!("{good}\r\nSec-WebSocket-Accept: {good}");
        let cut = &good[..27];
        for (accept, came) in [
            (good.as_str(), Came::Agreed),
            (&Client::new(2).accept(), Came::Closed),
            (cut, Came::Closed),
            (&twice, Came::Closed),
            ("", Came::Closed),
        ] {
            let mut client = Client::new(1);
            client.feed(&agreement(accept));
            assert_eq!(client.next(), came, "{accept}");
        }
        let mut client = Client::new(1);
        client.feed(b"HTTP/1.1 101 Switching Protocols\r\n\r\n");
        assert_eq!(client.next(), Came::Closed);
    }

    #[test]
    fn what_the_server_makes_of_our_key_is_what_we_expect() {
        use sip_core::transport::websocket::{AllowedOrigins, Handshake, Handshaking};
        let mut client = Client::new(5);
        let (mut request, mut answer) = (Vec::new(), Vec::new());
        client.write_request(&mut request, "example.com", "/");
        let mut input = &request[..];
        let mut handshake = Handshake::new(16_384);
        let Handshaking::Accepted(upgrade) = handshake.next(&mut input, &AllowedOrigins::any()) else {
            panic!("no upgrade")
        };
        upgrade.write_response(&mut answer);
        client.feed(&answer);
        assert_eq!(client.next(), Came::Agreed);
    }

    #[test]
    fn many_frames_of_nothing_are_passed_over() {
        let mut stream = agreement(&Client::new(1).accept());
        // Unsolicited Pongs.
        stream.extend([0x8a, 0].repeat(200_000));
        websocket::write_frame(&mut stream, b"x");
        let mut client = Client::new(1);
        client.feed(&stream[..]);
        assert_eq!(client.next(), Came::Agreed);
        assert_eq!(client.next(), Came::Message);
    }
}

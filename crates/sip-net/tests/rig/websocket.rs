//! A client's end of a WebSocket, as plain as can be.

use std::io::{ErrorKind, Read, Write};

/// The request that opens a WebSocket; the key is that of RFC 6455 §1.3.
pub const UPGRADE: &[u8] = b"GET / HTTP/1.1\r\n\
    Host: 127.0.0.1\r\n\
    Upgrade: websocket\r\n\
    Connection: Upgrade\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
    Sec-WebSocket-Version: 13\r\n\
    Sec-WebSocket-Protocol: sip\r\n\r\n";

pub const TEXT: u8 = 0x81;
pub const BINARY: u8 = 0x82;
pub const CLOSE: u8 = 0x88;
pub const PING: u8 = 0x89;
pub const PONG: u8 = 0x8a;

/// An open WebSocket.
pub struct WebSocket<S>(pub S);

impl<S: Read + Write> WebSocket<S> {
    /// Upgrades a connection.
    #[track_caller]
    pub fn open(mut stream: S) -> Self {
        super::write(&mut stream, UPGRADE);
        let head = read_head(&mut stream);
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        assert!(
            head.contains("\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"),
            "{head}"
        );
        assert!(head.contains("\r\nSec-WebSocket-Protocol: sip\r\n"), "{head}");
        Self(stream)
    }

    pub fn send(&mut self, first: u8, payload: &[u8]) {
        super::write(&mut self.0, &masked(first, payload));
    }

    pub fn text(&mut self, message: &[u8]) {
        self.send(TEXT, message);
    }

    /// The next frame: its first byte and its payload. None: the connection has ended in order.
    #[track_caller]
    pub fn frame(&mut self) -> Option<(u8, Vec<u8>)> {
        let mut first = [0];
        match self.0.read(&mut first) {
            Ok(0) => return None,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return None,
            Err(error) => panic!("{error}"),
        }
        let [short] = self.bytes();
        let length = match short {
            126 => u64::from(u16::from_be_bytes(self.bytes())),
            127 => u64::from_be_bytes(self.bytes()),
            short => u64::from(short),
        };
        assert!(length < 1 << 24, "a server's frame is not masked: {short:#x}");
        let mut payload = vec![0; length as usize];
        self.0.read_exact(&mut payload).unwrap();
        Some((first[0], payload))
    }

    #[track_caller]
    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.0.read_exact(&mut bytes).unwrap();
        bytes
    }

    #[track_caller]
    pub fn expect(&mut self, first: u8, payload: &[u8]) {
        let (got, bytes) = self.frame().unwrap();
        assert_eq!(
            (got, String::from_utf8_lossy(&bytes)),
            (first, String::from_utf8_lossy(payload))
        );
    }

    /// A message there and back.
    pub fn echo(&mut self, text: &str) {
        self.text(format!("ECHO {text}").as_bytes());
        self.expect(TEXT, format!("ECHO {text}").as_bytes());
    }
}

/// Reads up to the empty line of an answer.
#[track_caller]
pub fn read_head(stream: &mut impl Read) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}

/// A frame of a client.
pub fn masked(first: u8, payload: &[u8]) -> Vec<u8> {
    const KEY: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];
    let mut frame = vec![first];
    match payload.len() {
        short @ 0..=125 => frame.push(0x80 | short as u8),
        medium @ 126..=65535 => {
            frame.push(0x80 | 126);
            frame.extend((medium as u16).to_be_bytes());
        }
        long => {
            frame.push(0x80 | 127);
            frame.extend((long as u64).to_be_bytes());
        }
    }
    frame.extend(KEY);
    frame.extend(
        payload
            .iter()
            .zip(KEY.iter().cycle())
            .map(|(byte, key)| byte ^ key),
    );
    frame
}

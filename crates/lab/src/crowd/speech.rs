//! What a client says and hears on one connection, without the socket: TLS, the WebSocket
//! upgrade, frames, SIP messages.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use rustls::ClientConfig;
use sip_net::tls::{TlsError, TlsSession};

use super::target::{Target, Transport};

const UPGRADE: &str = "\
GET / HTTP/1.1\r\nHost: bench\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: sip\r\n\
Sec-WebSocket-Version: 13\r\n\r\n";
const MASK: [u8; 4] = [0x35, 0x9a, 0x61, 0xc4];
const TEXT: u8 = 1;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Securing,
    Upgrading,
    Open,
    Closed,
}

/// One end of a connection. `out` is to be sent; the code that sends it clears it.
#[derive(Debug)]
pub(crate) struct Speech {
    transport: Transport,
    pub(crate) tls: Option<TlsSession>,
    stage: Stage,
    /// Decrypted bytes: HTTP or frames that are incomplete.
    raw: Vec<u8>,
    /// SIP as a stream.
    inbox: Vec<u8>,
    pub(crate) out: Vec<u8>,
}

fn broken(what: &str) -> io::Error {
    io::Error::other(what.to_owned())
}

fn failed(error: TlsError) -> io::Error {
    io::Error::other(error)
}

impl Speech {
    /// `config` in the place of the target's own.
    pub(crate) fn new(target: &Target, config: Option<&Arc<ClientConfig>>) -> io::Result<Self> {
        let mut speech = Self {
            transport: target.transport,
            tls: None,
            stage: Stage::Securing,
            raw: Vec::new(),
            inbox: Vec::new(),
            out: Vec::new(),
        };
        if target.transport.is_secure() {
            let name = target.server_name().map_err(|error| broken(&error.to_string()))?;
            let config = Arc::clone(config.unwrap_or(&target.tls));
            let session = TlsSession::client(config, name, &mut speech.out);
            speech.tls = Some(session.map_err(failed)?);
        } else {
            speech.secured()?;
        }
        Ok(speech)
    }

    fn secured(&mut self) -> io::Result<()> {
        if self.transport.is_websocket() {
            self.stage = Stage::Upgrading;
            return self.write(UPGRADE.as_bytes());
        }
        self.stage = Stage::Open;
        Ok(())
    }

    /// All handshakes are done.
    pub(crate) fn is_open(&self) -> bool {
        self.stage == Stage::Open
    }

    /// TLS stands, or there is none.
    pub(crate) fn is_secured(&self) -> bool {
        self.stage != Stage::Securing
    }

    /// The server has said that it sends no more.
    pub(crate) fn is_closed(&self) -> bool {
        self.stage == Stage::Closed
    }

    /// Appends bytes to what is to be sent, encrypted where that is so.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.tls {
            Some(tls) => tls.write(bytes, &mut self.out).map_err(failed),
            None => {
                self.out.extend_from_slice(bytes);
                Ok(())
            }
        }
    }

    /// Says a SIP message.
    pub(crate) fn say(&mut self, message: &[u8]) -> io::Result<()> {
        if self.transport.is_websocket() {
            self.write(&frame(TEXT, message))
        } else {
            self.write(message)
        }
    }

    /// Says that we send no more.
    pub(crate) fn close(&mut self) -> io::Result<()> {
        if self.transport.is_websocket() && self.is_open() {
            self.write(&frame(CLOSE, &[0x03, 0xe8]))?;
        }
        if let Some(tls) = &mut self.tls {
            tls.close(&mut self.out);
        }
        Ok(())
    }

    /// Takes what has arrived, which is overwritten.
    pub(crate) fn feed(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        match &mut self.tls {
            None => self.raw.extend_from_slice(bytes),
            Some(tls) => {
                let raw = &mut self.raw;
                let fed = tls
                    .feed(bytes, &mut self.out, |data| raw.extend_from_slice(data))
                    .map_err(failed)?;
                if fed.established {
                    self.secured()?;
                }
                if fed.peer_closed {
                    self.stage = Stage::Closed;
                }
            }
        }
        if self.stage == Stage::Upgrading
            && let Some(end) = find(&self.raw, b"\r\n\r\n")
        {
            if !self.raw.starts_with(b"HTTP/1.1 101") {
                return Err(broken("the server opens no WebSocket"));
            }
            self.raw.drain(..end + 4);
            self.stage = Stage::Open;
        }
        match (self.stage, self.transport.is_websocket()) {
            (Stage::Open, true) => self.take_frames()?,
            (Stage::Open | Stage::Closed, false) => self.inbox.append(&mut self.raw),
            _ => {}
        }
        if self.raw.is_empty() {
            self.raw = Vec::new(); // thousands of connections are idle: they keep nothing
        }
        Ok(())
    }

    /// Takes apart whole frames of the server, which does not mask them. Pings are answered.
    fn take_frames(&mut self) -> io::Result<()> {
        loop {
            let (head, length) = match self.raw.as_slice() {
                [_, 126, high, low, ..] => (4, usize::from(u16::from_be_bytes([*high, *low]))),
                [_, 127, ..] => return Err(broken("a frame of more than 64 KiB")),
                [_, length, ..] if *length < 126 => (2, usize::from(*length)),
                _ => return Ok(()),
            };
            if self.raw.len() < head + length {
                return Ok(());
            }
            let opcode = self.raw.first().map_or(0, |first| first & 0x0f);
            let payload: Vec<u8> = self.raw.drain(..head + length).skip(head).collect();
            match opcode {
                PING => self.write(&frame(PONG, &payload))?,
                CLOSE => self.stage = Stage::Closed,
                PONG => {}
                _ => self.inbox.extend_from_slice(&payload),
            }
        }
    }

    /// The status of the next whole response, if there is one.
    pub(crate) fn heard(&mut self) -> Option<u16> {
        let end = find(&self.inbox, b"\r\n\r\n")? + 4;
        let head = String::from_utf8_lossy(self.inbox.get(..end)?).into_owned();
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            let is_it = name.eq_ignore_ascii_case("content-length") || name.eq_ignore_ascii_case("l");
            is_it.then(|| value.trim().parse::<usize>().ok())?
        });
        let total = end + length.unwrap_or(0);
        if self.inbox.len() < total {
            return None;
        }
        self.inbox.drain(..total);
        if self.inbox.is_empty() {
            self.inbox = Vec::new();
        }
        head.get(8..11).and_then(|status| status.parse().ok()).or(Some(0))
    }
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

/// One frame of a client (RFC 6455 §5.2), up to 64 KiB.
fn frame(opcode: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0x80 | opcode];
    match payload.len() {
        short @ 0..126 => frame.push(0x80 | short as u8),
        long => {
            frame.push(0x80 | 126);
            frame.extend_from_slice(&(long as u16).to_be_bytes());
        }
    }
    frame.extend_from_slice(&MASK);
    frame.extend(
        payload
            .iter()
            .zip(MASK.iter().cycle())
            .map(|(byte, mask)| byte ^ mask),
    );
    frame
}

/// An OPTIONS request of a client, `padding` bytes longer than needed. `serial` tells its requests apart.
pub(crate) fn options(
    target: &Target,
    from: SocketAddr,
    number: usize,
    serial: usize,
    padding: usize,
) -> Vec<u8> {
    let sent_by = if target.transport.is_websocket() {
        format!("c{number}.invalid")
    } else {
        from.to_string()
    };
    let name = &target.name;
    // What the response brings back is as long as the request.
    let display = if padding > 0 {
        format!("\"{}\" ", "p".repeat(padding))
    } else {
        String::new()
    };
    format!(
        "OPTIONS sip:{name} SIP/2.0\r\nVia: SIP/2.0/{} {sent_by};branch=z9hG4bK{number}-{serial};rport\r\n\
         Max-Forwards: 70\r\nFrom: {display}<sip:crowd{number}@{name}>;tag=f{number}\r\nTo: <sip:{name}>\r\n\
         Call-ID: crowd{number}-{serial}\r\nCSeq: 1 OPTIONS\r\nContent-Length: 0\r\n\r\n",
        target.transport.name()
    )
    .into_bytes()
}

/// The beginning of a message that never ends, and with what it goes on for ever.
pub(crate) fn endless(target: &Target, number: usize) -> (Vec<u8>, u8) {
    let head = format!(
        "OPTIONS sip:{} SIP/2.0\r\nVia: SIP/2.0/{} slow{number}.invalid;branch=z9hG4bKslow{number}\r\nSubject: slow",
        target.name,
        target.transport.name()
    );
    if target.transport.is_websocket() {
        // A frame that says it is of 60,000 bytes.
        let mut bytes = vec![0x80 | TEXT, 0x80 | 126];
        bytes.extend_from_slice(&60_000u16.to_be_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(head.as_bytes());
        return (bytes, b'w');
    }
    (head.into_bytes(), b'w')
}

/// The first bytes of a connection: `ClientHello`, or the request that opens a WebSocket. None where
/// there is no handshake.
pub(crate) fn first_bytes(target: &Target) -> io::Result<Option<Vec<u8>>> {
    let speech = Speech::new(target, None)?;
    Ok((!speech.out.is_empty()).then_some(speech.out))
}

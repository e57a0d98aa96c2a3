//! The request that opens a WebSocket, and its response (RFC 6455 §4.2, RFC 7118 §4).

use alloc::vec::Vec;

use base64ct::{Base64, Encoding};
use sha1::{Digest, Sha1};
use sip_message::{Host, chars, number};

use super::{AllowedOrigins, grow};

/// The reader of the request's head.
///
/// Input is given to [`Handshake::next`] until that returns something other than [`Handshaking::Incomplete`].
/// A head that came whole is read where it lies. Of a head that did not, the beginning is kept here.
#[derive(Debug)]
pub struct Handshake {
    buffer: Vec<u8>,
    limit: u32,
    place: Place,
    done: bool,
}

/// The place of the next byte in the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    InLine,
    /// After the CR that ends a line.
    LineEnding,
    LineStart,
    /// After the CR of the empty line.
    HeadEnding,
}

/// The outcome of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Handshaking<'a> {
    /// All input is used up; more is needed.
    Incomplete,
    /// The handshake is accepted: [`Upgrade::write_response`] writes the response. The rest of the input, and
    /// all later input, is for [`super::Frames`].
    Accepted(Upgrade<'a>),
    /// The handshake is refused: [`HandshakeFault::write_response`] writes the response, and the connection
    /// is to be closed.
    Refused(HandshakeFault),
    /// Refused with [`HandshakeFault::Origin`]; this is the Origin of the request.
    Foreign(&'a [u8]),
}

/// A handshake that is in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Upgrade<'a> {
    /// The request's target as it was written: a path with its query, or an absolute URI.
    pub target: &'a [u8],
    /// Host, as it was written.
    pub host: &'a [u8],
    /// Origin: the page that opens this connection, for browsers.
    pub origin: Option<&'a [u8]>,
    /// Sec-WebSocket-Accept.
    accept: [u8; 28],
}

/// A field that may stand once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SingleField {
    /// `Host` (RFC 9112 §3.2).
    Host,
    /// `Origin` (RFC 6454 §7.3).
    Origin,
    /// `Sec-WebSocket-Key` (RFC 6455 §11.3.1).
    Key,
    /// `Sec-WebSocket-Version` (RFC 6455 §11.3.5).
    Version,
}

/// A fault of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HandshakeFault {
    /// The head is longer than the limit.
    HeadTooLarge,
    /// A control character, or a CR or LF that is not part of a CRLF (RFC 9112 §2.2).
    Character,
    /// A line that continues the one before (RFC 9112 §5.2).
    FoldedLine,
    /// The first line is no request line (RFC 9112 §3), or its target is no path and no URI.
    RequestLine,
    /// A version of HTTP that is not 1.1 (RFC 6455 §4.1).
    HttpVersion,
    /// A method that is not GET (RFC 6455 §4.1).
    Method,
    /// A line without a field name, or with white space before its colon (RFC 9112 §5.1).
    FieldLine,
    /// A field stands twice that may stand only once.
    Repeated(SingleField),
    /// Host is absent, or no host with or without a port (RFC 9112 §3.2).
    Host,
    /// A body is announced, which would lie where frames are expected.
    Body,
    /// No `Upgrade: websocket` with `Connection: Upgrade` (RFC 6455 §4.2.1).
    NoUpgrade,
    /// Sec-WebSocket-Version is absent or not 13 (RFC 6455 §4.4).
    WebSocketVersion,
    /// Sec-WebSocket-Key is absent or not 16 bytes in base64 (RFC 6455 §4.2.1).
    Key,
    /// The Origin is not on the list (RFC 6455 §4.2.2).
    Origin,
    /// The sub-protocol `sip` is not offered (RFC 7118 §4.1).
    Subprotocol,
}

/// The value that is hashed with the key (RFC 6455 §1.3).
const ACCEPT_GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

impl Upgrade<'_> {
    /// The path of the target, without its query.
    pub fn path(&self) -> &[u8] {
        let after_authority = match self.target.first() {
            Some(b'/') => self.target,
            _ => after_scheme(self.target)
                .and_then(|rest| rest.get(rest.iter().position(|c| matches!(c, b'/' | b'?'))?..))
                .unwrap_or_default(),
        };
        match chars::split_once(after_authority, b'?').0 {
            b"" => b"/",
            path => path,
        }
    }

    /// Appends the response that opens the WebSocket (RFC 6455 §4.2.2, RFC 7118 §4.2).
    pub fn write_response(&self, out: &mut Vec<u8>) {
        for part in [
            b"HTTP/1.1 101 Switching Protocols\r\n\
              Upgrade: websocket\r\n\
              Connection: Upgrade\r\n\
              Sec-WebSocket-Protocol: sip\r\n\
              Sec-WebSocket-Accept: ",
            self.accept.as_slice(),
            b"\r\n\r\n",
        ] {
            out.extend_from_slice(part);
        }
    }
}

impl HandshakeFault {
    /// Status code and reason phrase of the response.
    pub const fn status(self) -> (u16, &'static str) {
        match self {
            Self::Character
            | Self::FoldedLine
            | Self::RequestLine
            | Self::FieldLine
            | Self::Repeated(_)
            | Self::Host
            | Self::Body
            | Self::Key
            | Self::Subprotocol => (400, "Bad Request"),
            Self::Origin => (403, "Forbidden"),
            Self::Method => (405, "Method Not Allowed"),
            Self::NoUpgrade | Self::WebSocketVersion => (426, "Upgrade Required"),
            Self::HeadTooLarge => (431, "Request Header Fields Too Large"),
            Self::HttpVersion => (505, "HTTP Version Not Supported"),
        }
    }

    /// The body of the response, which names the fault.
    pub const fn explanation(self) -> &'static str {
        match self {
            Self::HeadTooLarge => "The request head is too large.",
            Self::Character => "Control character, or line end that is not CRLF.",
            Self::FoldedLine => "Folded header line.",
            Self::RequestLine => "Malformed request line.",
            Self::HttpVersion => "Only HTTP/1.1 is spoken here.",
            Self::Method => "Only GET opens a WebSocket.",
            Self::FieldLine => "Malformed header line.",
            Self::Repeated(SingleField::Host) => "More than one Host.",
            Self::Repeated(SingleField::Origin) => "More than one Origin.",
            Self::Repeated(SingleField::Key) => "More than one Sec-WebSocket-Key.",
            Self::Repeated(SingleField::Version) => "More than one Sec-WebSocket-Version.",
            Self::Host => "Host is missing or malformed.",
            Self::Body => "The request may not have a body.",
            Self::NoUpgrade => "Only WebSocket is spoken here: Upgrade and Connection must ask for it.",
            Self::WebSocketVersion => "Sec-WebSocket-Version must be 13.",
            Self::Key => "Sec-WebSocket-Key must be 16 bytes in base64.",
            Self::Origin => "This Origin may not connect.",
            Self::Subprotocol => "Sec-WebSocket-Protocol must offer the sub-protocol \"sip\" (RFC 7118).",
        }
    }

    /// Appends the response. The connection is to be closed after it.
    pub fn write_response(self, out: &mut Vec<u8>) {
        let (code, phrase) = self.status();
        let more = match self {
            Self::Method => "Allow: GET\r\nConnection: close\r\n",
            Self::NoUpgrade | Self::WebSocketVersion => {
                "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nConnection: Upgrade, close\r\n"
            }
            Self::HeadTooLarge
            | Self::Character
            | Self::FoldedLine
            | Self::RequestLine
            | Self::HttpVersion
            | Self::FieldLine
            | Self::Repeated(_)
            | Self::Host
            | Self::Body
            | Self::Key
            | Self::Origin
            | Self::Subprotocol => "Connection: close\r\n",
        };
        let body = self.explanation();
        let response = alloc::format!(
            "HTTP/1.1 {code} {phrase}\r\n{more}Content-Type: text/plain\r\nContent-Length: {}\r\n\r\n{body}\n",
            body.len() + 1
        );
        out.extend_from_slice(response.as_bytes());
    }
}

impl Handshake {
    /// A reader for a new connection; a head longer than `limit` bytes is refused.
    pub fn new(limit: usize) -> Self {
        Self {
            buffer: Vec::new(),
            limit: u32::try_from(limit).unwrap_or(u32::MAX),
            // An empty first line is no line end of a head.
            place: Place::InLine,
            done: false,
        }
    }

    /// Takes the head, as far as it has come, off the front of `input`, which becomes the rest of it. After
    /// [`Handshaking::Accepted`] the rest is frames; else nothing is left. Afterwards no input is taken any
    /// more.
    pub fn next<'s, 'i: 's>(&'s mut self, input: &mut &'i [u8], origins: &AllowedOrigins) -> Handshaking<'s> {
        if self.done {
            self.buffer = Vec::new();
            return Handshaking::Incomplete;
        }
        let bytes = *input;
        let room = (self.limit as usize).saturating_sub(self.buffer.len());
        let offered = bytes.get(..room).unwrap_or(bytes);
        let end = match self.find_end(offered) {
            Ok(Some(end)) => end,
            Ok(None) if offered.len() == room => return self.refuse(HandshakeFault::HeadTooLarge, input),
            Ok(None) => {
                self.keep(offered);
                *input = &[];
                return Handshaking::Incomplete;
            }
            Err(fault) => return self.refuse(fault, input),
        };
        let (last, frames) = bytes.split_at(end);
        *input = frames;
        self.done = true;
        let head = if self.buffer.is_empty() {
            last
        } else {
            self.keep(last);
            self.buffer.as_slice()
        };
        match read(head, origins) {
            Ok(upgrade) => Handshaking::Accepted(upgrade),
            Err(fault) => {
                *input = &[];
                match (fault, origin_in(head)) {
                    (HandshakeFault::Origin, Some(origin)) => Handshaking::Foreign(origin),
                    _ => Handshaking::Refused(fault),
                }
            }
        }
    }

    /// Bytes of memory held for the head.
    pub fn held_bytes(&self) -> usize {
        self.buffer.capacity()
    }

    fn keep(&mut self, bytes: &[u8]) {
        let needed = self.buffer.len() + bytes.len();
        grow(&mut self.buffer, needed, self.limit as usize);
        self.buffer.extend_from_slice(bytes);
    }

    fn refuse<'a>(&mut self, fault: HandshakeFault, input: &mut &[u8]) -> Handshaking<'a> {
        self.done = true;
        self.buffer = Vec::new();
        *input = &[];
        Handshaking::Refused(fault)
    }

    /// Reads on to the end of the head. Returns how many of `bytes` belong to it. A byte that can never be
    /// part of a head is a fault at once: a client that speaks TLS here gets a response before it waits for
    /// one.
    fn find_end(&mut self, bytes: &[u8]) -> Result<Option<usize>, HandshakeFault> {
        for (at, byte) in bytes.iter().enumerate() {
            self.place = match (self.place, byte) {
                (Place::InLine, b'\r') => Place::LineEnding,
                (Place::LineStart, b'\r') => Place::HeadEnding,
                (Place::LineEnding, b'\n') => Place::LineStart,
                (Place::HeadEnding, b'\n') => return Ok(Some(at + 1)),
                (Place::LineEnding | Place::HeadEnding, _) => return Err(HandshakeFault::Character),
                (Place::LineStart, b' ' | b'\t') => return Err(HandshakeFault::FoldedLine),
                (Place::InLine, b'\t') => Place::InLine,
                (Place::InLine | Place::LineStart, 0..b' ' | 0x7f) => return Err(HandshakeFault::Character),
                (Place::InLine | Place::LineStart, _) => Place::InLine,
            };
        }
        Ok(None)
    }
}

/// The fields of a head.
#[derive(Debug, Default)]
struct Fields<'a> {
    host: Option<&'a [u8]>,
    origin: Option<&'a [u8]>,
    key: Option<&'a [u8]>,
    version: Option<&'a [u8]>,
    upgrade: bool,
    connection: bool,
    sip: bool,
    body: bool,
}

/// The Origin in the head of a handshake, even if other parts of the head are wrong.
fn origin_in(head: &[u8]) -> Option<&[u8]> {
    let mut lines = head.split(|c| *c == b'\n');
    lines.find_map(|line| match chars::split_once(line, b':') {
        (name, Some(value)) if name.eq_ignore_ascii_case(b"Origin") => Some(chars::trim(value)),
        _ => None,
    })
}

/// Checks a whole head, empty line included.
fn read<'a>(head: &'a [u8], origins: &AllowedOrigins) -> Result<Upgrade<'a>, HandshakeFault> {
    let mut lines = head.split_inclusive(|c| *c == b'\n').map(|line| {
        // Every line ends in CRLF: that was checked when the end of the head was found.
        line.get(..line.len().saturating_sub(2)).unwrap_or_default()
    });
    let target = read_request_line(lines.next().unwrap_or_default())?;
    let mut fields = Fields::default();
    for line in lines.filter(|line| !line.is_empty()) {
        fields.read_line(line)?;
    }
    let host = fields
        .host
        .filter(|host| is_authority(host))
        .ok_or(HandshakeFault::Host)?;
    if fields.body {
        return Err(HandshakeFault::Body);
    }
    if !(fields.upgrade && fields.connection) {
        return Err(HandshakeFault::NoUpgrade);
    }
    if fields.version != Some(b"13") {
        return Err(HandshakeFault::WebSocketVersion);
    }
    let accept = fields.key.and_then(accept_for).ok_or(HandshakeFault::Key)?;
    if !origins.allows(fields.origin) {
        return Err(HandshakeFault::Origin);
    }
    if !fields.sip {
        return Err(HandshakeFault::Subprotocol);
    }
    Ok(Upgrade {
        target,
        host,
        origin: fields.origin,
        accept,
    })
}

/// Reads `GET SP target SP HTTP/1.1` (RFC 9112 §3), and returns the target.
fn read_request_line(line: &[u8]) -> Result<&[u8], HandshakeFault> {
    let mut words = line.split(|c| *c == b' ');
    let (Some(method), Some(target), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(HandshakeFault::RequestLine);
    };
    let version_is_one = matches!(
        version,
        [b'H', b'T', b'T', b'P', b'/', b'0'..=b'9', b'.', b'0'..=b'9']
    );
    if !is_name(method) || target.is_empty() || !version_is_one {
        return Err(HandshakeFault::RequestLine);
    }
    if version != b"HTTP/1.1" {
        return Err(HandshakeFault::HttpVersion);
    }
    if method != b"GET" {
        return Err(HandshakeFault::Method);
    }
    let is_path_or_uri = target.starts_with(b"/") || after_scheme(target).is_some();
    if !is_path_or_uri || !target.iter().all(u8::is_ascii_graphic) {
        return Err(HandshakeFault::RequestLine);
    }
    Ok(target)
}

impl<'a> Fields<'a> {
    fn read_line(&mut self, line: &'a [u8]) -> Result<(), HandshakeFault> {
        let (name, Some(value)) = chars::split_once(line, b':') else {
            return Err(HandshakeFault::FieldLine);
        };
        if !is_name(name) {
            return Err(HandshakeFault::FieldLine);
        }
        let value = chars::trim(value);
        let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
        if is("Host") {
            set_once(&mut self.host, value, SingleField::Host)?;
        } else if is("Origin") {
            set_once(&mut self.origin, value, SingleField::Origin)?;
        } else if is("Sec-WebSocket-Key") {
            set_once(&mut self.key, value, SingleField::Key)?;
        } else if is("Sec-WebSocket-Version") {
            set_once(&mut self.version, value, SingleField::Version)?;
        } else if is("Upgrade") {
            self.upgrade |= elements(value).any(|word| word.eq_ignore_ascii_case(b"websocket"));
        } else if is("Connection") {
            self.connection |= elements(value).any(|word| word.eq_ignore_ascii_case(b"upgrade"));
        } else if is("Sec-WebSocket-Protocol") {
            // Names of sub-protocols are compared as they are written (RFC 6455 §4.1, §11.5).
            self.sip |= elements(value).any(|word| word == b"sip");
        } else if is("Transfer-Encoding") {
            self.body = true;
        } else if is("Content-Length") {
            self.body |= value.is_empty() || value.iter().any(|c| *c != b'0');
        }
        Ok(())
    }
}

fn set_once<'a>(
    field: &mut Option<&'a [u8]>,
    value: &'a [u8],
    name: SingleField,
) -> Result<(), HandshakeFault> {
    match field.replace(value) {
        None => Ok(()),
        Some(_) => Err(HandshakeFault::Repeated(name)),
    }
}

/// Elements of a list (RFC 9110 §5.6.1).
fn elements(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|c| *c == b',').map(chars::trim)
}

/// Whether a text is a `token` of RFC 9110 §5.6.2, which has some characters more than that of SIP.
fn is_name(text: &[u8]) -> bool {
    let is_tchar = |c: &u8| c.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(c);
    !text.is_empty() && text.iter().all(is_tchar)
}

/// The part behind the `://` of an absolute URI of a scheme that a client may use (RFC 6455 §4.1).
fn after_scheme(target: &[u8]) -> Option<&[u8]> {
    ["http://", "https://", "ws://", "wss://"]
        .iter()
        .find_map(|scheme| {
            let (start, rest) = target.split_at_checked(scheme.len())?;
            start.eq_ignore_ascii_case(scheme.as_bytes()).then_some(rest)
        })
}

/// Whether a text is `host [":" port]` (RFC 9110 §7.2).
fn is_authority(text: &[u8]) -> bool {
    let port_at = text
        .iter()
        .rposition(|c| matches!(c, b':' | b']'))
        .filter(|at| text.get(*at) == Some(&b':'));
    let (host, port) = match port_at {
        Some(at) => (text.get(..at), text.get(at + 1..)),
        None => (Some(text), None),
    };
    host.is_some_and(|host| Host::parse(host).is_some())
        // RFC 3986 §3.2.3: a colon may stand without a port.
        && port.is_none_or(|port| port.is_empty() || number::port(port).is_some())
}

/// Sec-WebSocket-Accept for a valid key (RFC 6455 §4.2.2); `None`: the key is not valid.
fn accept_for(key: &[u8]) -> Option<[u8; 28]> {
    let mut nonce = [0; 16];
    if Base64::decode(key, &mut nonce).ok()?.len() != nonce.len() {
        return None;
    }
    let digest = Sha1::new().chain_update(key).chain_update(ACCEPT_GUID).finalize();
    let mut accept = [0; 28];
    Base64::encode(&digest, &mut accept).ok()?;
    Some(accept)
}

#[cfg(test)]
mod tests;

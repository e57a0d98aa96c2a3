//! The torture messages of RFC 4475 and RFC 5118: what a proxy and registrar does with each, and the checks
//! of what it sends.
//!
//! The table holds for a server that serves `example.com` (with the aliases in [`ALIASES`]) without
//! authentication, knows [`OWN_ROUTE`] as an address of its own, listens on port 5070 as well, and relays the
//! domains in [`RELAYED`] to one callee, which answers 200 to everything. It is used twice:
//! `tests/torture.rs` here sends the messages to the real server, and `sip-core`'s test of the same name
//! gives them to the protocol engine.
//!
//! The messages are no part of the project; see [`read`].

mod check;
mod table;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use sip_message::{HeaderIndex, HeaderName, Message, parse};

pub use check::{
    answer_of_callee, assert_answer, assert_forwarded, assert_forwarded_by, assert_own, assert_relayed,
    unmarked,
};
pub use table::{RFC4475, RFC5118};

/// Header fields that are indexed.
const MAX_HEADERS: usize = 256;

/// Names of the served domain beside `example.com`. The first stands in the Route of `wsinv`, the
/// addresses in Request-URIs of RFC 5118; that of its §4.3 is one address, with no port.
pub const ALIASES: [&str; 3] = ["services.example.com", "2001:db8::10", "2001:db8::10:5070"];

/// Host and port in the Route of `mpart01`.
pub const OWN_ROUTE: &str = "127.0.0.1:5080";

/// The port in the Request-URI of `port-unambiguous`.
pub const OTHER_PORT: u16 = 5070;

/// Domains beside the served one, with requests that go to the callee.
pub const RELAYED: [&str; 6] = [
    "example.net",
    "example.org",
    "chair-dnrc.example.com",
    "company.com",
    "registrar.example.com",
    "host.example.net",
];

/// The host `[2001:db8::192.0.2.1]` of RFC 5118 §4.10, which is relayed too, as a pattern: rules see the address as its
/// value is written.
pub const RELAYED_PATTERN: &str = r"@\[2001:db8::c000:201\]";

/// The outcome of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It reaches the callee with this many Via values, ours among them, and the callee's 200 reaches the
    /// sender.
    Forwarded(usize),
    /// This server answers: status, reason phrase, header lines that are there.
    Answered(u16, &'static str, &'static [&'static str]),
    /// A REGISTER is answered 200 with these contacts, in alphabetical order.
    Registered(&'static [&'static str]),
    /// It is neither relayed nor answered; `trapezoid_dropped` counts it under this cause.
    Dropped(&'static str),
    /// The stream waits for the rest of it.
    Incomplete,
}

/// What a stream makes of a message that was said of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// The same, and the connection goes on.
    Same,
    /// Refused with the same status and this reason phrase, and the connection is closed.
    Closed(&'static str),
    /// Something else.
    Otherwise {
        /// One for each message that the stream finds.
        outcomes: &'static [Outcome],
        /// Whether the connection is closed then.
        closed: bool,
        /// By which rule.
        why: &'static str,
    },
}

/// One message.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Folder and file.
    pub file: &'static str,
    /// Section of its RFC.
    pub section: &'static str,
    /// Over UDP and WebSocket.
    pub datagram: Outcome,
    /// Over TCP and TLS.
    pub stream: Stream,
    /// What the RFC says of it, for such a server.
    pub says: &'static str,
}

impl Row {
    /// What follows on a stream, and whether the connection is closed.
    pub fn on_stream(&self) -> (Vec<Outcome>, bool) {
        match (self.stream, self.datagram) {
            (Stream::Same, outcome) => (vec![outcome], false),
            (Stream::Closed(reason), Outcome::Answered(status, _, lines)) => {
                (vec![Outcome::Answered(status, reason, lines)], true)
            }
            (Stream::Closed(_), outcome) => panic!("{}: {outcome:?} closes nothing", self.file),
            (Stream::Otherwise { outcomes, closed, .. }, _) => (outcomes.to_vec(), closed),
        }
    }

    /// What follows where it is one message of a WebSocket, and whether the connection is closed.
    /// Such a message ends as a datagram does, so its verdict is that of a datagram
    /// (RFC 7118 §5).
    pub fn on_websocket(&self) -> (Vec<Outcome>, bool) {
        (vec![self.datagram], false)
    }
}

/// The folder of messages: `../shared/torture` from the project's root, which is the nearest
/// folder with a Cargo.lock.
pub fn folder() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .find(|dir| dir.join("Cargo.lock").is_file())?;
    let folder = root.join("../shared/torture");
    if !folder.is_dir() {
        eprintln!("SKIPPED: {} is not there", folder.display());
    }
    folder.is_dir().then_some(folder)
}

/// Reads a row's message from the [`folder`].
///
/// Where RFC 5118's line ends were made CRLF, Content-Length is off: it gets the body's length.
///
/// # Panics
/// When the file cannot be read.
pub fn read(folder: &Path, row: &Row) -> Vec<u8> {
    let path = folder.join(row.file);
    let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    if !row.file.starts_with("rfc5118/") {
        return bytes;
    }
    let mut index = HeaderIndex::new();
    let message = parse(&bytes, &mut index, MAX_HEADERS).expect("a SIP message");
    let fields = message.fields();
    let length = fields.iter().find(|f| f.name == HeaderName::ContentLength);
    let length = length.expect("Content-Length is there");
    let head = message.headers_end_offset() + 2;
    let body = bytes.len() - head;
    let mut out = bytes[..length.value as usize].to_vec();
    out.extend_from_slice(body.to_string().as_bytes());
    out.extend_from_slice(&bytes[length.value_end as usize..]);
    out
}

/// Calls `f` with the message that `bytes` begin with.
///
/// # Panics
/// When that is none.
pub fn with_message<T>(bytes: &[u8], f: impl FnOnce(&Message<'_>) -> T) -> T {
    let mut index = HeaderIndex::new();
    match parse(bytes, &mut index, MAX_HEADERS) {
        Ok(message) => f(&message),
        Err(error) => panic!("{error:?}: {}", bytes.escape_ascii()),
    }
}

/// Length of the whole message at the front of what came on a stream; `None`: it goes on.
/// CRLFs before it (RFC 5626 §3.5.1) count.
pub fn framed(bytes: &[u8]) -> Option<usize> {
    let mut index = HeaderIndex::new();
    let message = parse(bytes, &mut index, MAX_HEADERS).ok()?;
    assert!(message.has(HeaderName::ContentLength), "{}", bytes.escape_ascii());
    message.defect().is_none().then(|| message.end_offset())
}

/// The messages that a stream finds in a file: all but one file hold one.
pub fn split(bytes: &[u8], count: usize) -> Vec<&[u8]> {
    let (mut rest, mut out) = (bytes, Vec::new());
    for _ in 1..count {
        let (first, more) = rest.split_at(with_message(rest, |m| m.end_offset()));
        out.push(first);
        rest = more.trim_ascii_start();
    }
    out.push(rest);
    out
}

/// The port to which an answer goes over UDP, without `rport` (RFC 3261 §18.2.2) or with it
/// (RFC 3581 §4). `None`: no Via can be read.
pub fn answer_port(sent: &[u8], source: SocketAddr) -> Option<u16> {
    let mut index = HeaderIndex::new();
    let message = parse(sent, &mut index, MAX_HEADERS).ok()?;
    let Ok(via) = message.top_via() else {
        // badinv01: nothing but the host can be read.
        return Some(5060);
    };
    let rport = via.rport().map(|_| source.port());
    Some(rport.or(via.port).unwrap_or(5060))
}

/// Status line of the callee's answers: that of `unreason`, which shows that such a one passes.
pub fn status_line(folder: &Path) -> Vec<u8> {
    let bytes = std::fs::read(folder.join("rfc4475/unreason.dat")).expect("unreason.dat");
    let end = bytes.windows(2).position(|w| w == b"\r\n").expect("a first line");
    bytes[..end].to_vec()
}

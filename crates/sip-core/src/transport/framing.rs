//! The framing of messages in a stream of bytes (RFC 3261 §18.3), and of the keep-alives between them (RFC
//! 5626 §3.5.1).
//!
//! The end of a message decides where the next begins. If two readers disagree about it, a request can slip
//! past one of them. So ambiguous input is an error and ends the connection. Errors: Content-Length is
//! missing, repeated with another value, not a number, or too large; a line does not end in CRLF. Lines,
//! folding and numbers are read here exactly as by [`sip_message::parse()`], which then reads the whole
//! message again.

use alloc::vec::Vec;

use sip_message::{chars, number};

use crate::limits::Limits;

/// The reader that cuts one connection's stream into messages.
///
/// The worker reads into memory that its connections share, and gives it to [`Framer::next`] again and again
/// until that returns [`Framed::Incomplete`]. A message that came whole is returned where it lies. Of a
/// message that did not, the beginning is kept here. Between messages no memory is held.
#[derive(Debug)]
pub struct Framer {
    /// The beginning of the message under way; nothing of the following one.
    buffer: Vec<u8>,
    scan: Scan,
    header_bytes: u32,
    body_bytes: u32,
    state: State,
    /// Whether a CR came where a message may begin.
    cr: bool,
    /// Whether the last item was a CRLF: a second one makes a ping.
    half_ping: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Reading,
    /// The content of the buffer was returned.
    Delivered,
    Failed,
}

/// The next item of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Framed<'a> {
    /// One whole message, from start line to body.
    Message(&'a [u8]),
    /// The second of two CRLFs between messages: the response is one CRLF (RFC 5626 §3.5.1).
    KeepAlivePing,
    /// A CRLF between messages: the pong to a ping of ours, or the first half of the peer's ping.
    KeepAlivePong,
    /// All input is used up; more is needed.
    Incomplete,
    /// No message can be found any more: respond if possible, and close. Further input is dropped.
    Error(FramingError<'a>),
}

/// The error of a stream that cannot be followed further, by the peer's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FramingError<'a> {
    /// The fault.
    pub fault: FramingFault,
    /// Start line and headers of the message at fault, with the empty line: enough to build the refusal from.
    /// For [`FramingFault::HeadTooLarge`], as much of them as is within the limit.
    pub head: &'a [u8],
}

/// A fault of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FramingFault {
    /// Start line and headers are longer than [`Limits::header_bytes`].
    HeadTooLarge,
    /// A CR or LF that is not part of a CRLF.
    LineEnd,
    /// No Content-Length: on a stream it must be there (RFC 3261 §18.3, §20.14).
    MissingContentLength,
    /// Content-Length is not a number, or one above 2^31 - 1.
    BadContentLength,
    /// More than one Content-Length, and they do not agree.
    RepeatedContentLength,
    /// Content-Length is more than [`Limits::body_bytes`].
    BodyTooLarge,
}

impl FramingFault {
    /// Status code of the refusal.
    pub const fn status(self) -> u16 {
        match self {
            Self::BodyTooLarge => 413,
            Self::HeadTooLarge
            | Self::LineEnd
            | Self::MissingContentLength
            | Self::BadContentLength
            | Self::RepeatedContentLength => 400,
        }
    }

    /// Reason phrase of the refusal.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::HeadTooLarge => "Headers Too Large",
            Self::LineEnd => "Line End Is Not CRLF",
            Self::MissingContentLength => "Missing Content-Length",
            Self::BadContentLength => "Bad Content-Length",
            Self::RepeatedContentLength => "Repeated Content-Length",
            Self::BodyTooLarge => "Request Entity Too Large",
        }
    }
}

/// The most bytes of a head, 1 GiB, and of a body, 2 GiB: offsets fit in 32 bits with these.
const MOST_HEADER_BYTES: u32 = 1 << 30;
const MOST_BODY_BYTES: u32 = i32::MAX as u32;

impl Framer {
    /// A reader for a new connection. Limits above 1 GiB (header) and 2 GiB (body) count as these.
    pub fn new(limits: &Limits) -> Self {
        let bounded = |limit: usize, most: u32| u32::try_from(limit).map_or(most, |limit| limit.min(most));
        Self {
            buffer: Vec::new(),
            scan: Scan::default(),
            header_bytes: bounded(limits.header_bytes, MOST_HEADER_BYTES),
            body_bytes: bounded(limits.body_bytes, MOST_BODY_BYTES),
            state: State::Reading,
            cr: false,
            half_ping: false,
        }
    }

    /// Takes the next item off the front of the stream: off the bytes kept here, then off `input`, which
    /// becomes the rest of it. At [`Framed::Incomplete`] nothing is left.
    pub fn next<'s, 'i: 's>(&'s mut self, input: &mut &'i [u8]) -> Framed<'s> {
        match self.state {
            State::Reading => {}
            State::Delivered => {
                self.buffer = Vec::new();
                self.state = State::Reading;
            }
            State::Failed => {
                self.buffer = Vec::new();
                *input = &[];
                return Framed::Incomplete;
            }
        }
        if !self.buffer.is_empty() {
            return self.next_kept(input);
        }
        if let Some(keep_alive) = self.between_messages(input) {
            return keep_alive;
        }
        if input.is_empty() {
            return Framed::Incomplete;
        }
        self.half_ping = false;
        self.next_in_place(input)
    }

    /// Bytes of memory held for the message under way.
    pub fn held_bytes(&self) -> usize {
        self.buffer.capacity()
    }

    /// Whether a message has begun and not ended: such a connection is not idle but slow.
    pub fn is_mid_message(&self) -> bool {
        self.state == State::Reading && !self.buffer.is_empty()
    }

    /// Whether an error was reported: no more items come from this stream.
    pub fn is_failed(&self) -> bool {
        self.state == State::Failed
    }

    /// Reads CRLFs where a message may begin.
    fn between_messages<'s>(&mut self, input: &mut &[u8]) -> Option<Framed<'s>> {
        let rest = match (self.cr, *input) {
            (true, [b'\n', rest @ ..]) | (false, [b'\r', b'\n', rest @ ..]) => rest,
            (false, [b'\r']) => {
                self.cr = true;
                *input = &[];
                return Some(Framed::Incomplete);
            }
            (true, []) | (false, _) => return None,
            (true, _) => {
                *input = &[];
                return Some(self.fail(FramingFault::LineEnd, b"\r"));
            }
        };
        *input = rest;
        self.cr = false;
        self.half_ping = !self.half_ping;
        Some(if self.half_ping {
            Framed::KeepAlivePong
        } else {
            Framed::KeepAlivePing
        })
    }

    /// Reads a message that begins at the front of `input`.
    fn next_in_place<'s, 'i: 's>(&'s mut self, input: &mut &'i [u8]) -> Framed<'s> {
        let bytes = *input;
        match self.scan.measure(bytes, self.header_bytes, self.body_bytes) {
            Measured::Whole(length) => {
                let (message, rest) = bytes.split_at(length);
                *input = rest;
                self.scan = Scan::default();
                Framed::Message(message)
            }
            Measured::Partial => {
                self.keep(bytes);
                *input = &[];
                Framed::Incomplete
            }
            Measured::Fault(fault, head) => {
                *input = &[];
                self.fail(fault, bytes.get(..head).unwrap_or_default())
            }
        }
    }

    /// Reads the message whose beginning is kept here, with the bytes that `input` adds to it.
    fn next_kept<'s, 'i: 's>(&'s mut self, input: &mut &'i [u8]) -> Framed<'s> {
        while !input.is_empty() {
            let offered = *input;
            let (more, rest) = offered.split_at(offered.len().min(self.room()));
            self.keep(more);
            *input = rest;
            match self
                .scan
                .measure(&self.buffer, self.header_bytes, self.body_bytes)
            {
                Measured::Partial => {}
                Measured::Whole(length) => {
                    // The bytes behind the message came with this piece of input: they are given back.
                    let following = self.buffer.len() - length;
                    self.buffer.truncate(length);
                    *input = offered.get(more.len() - following..).unwrap_or_default();
                    self.scan = Scan::default();
                    self.state = State::Delivered;
                    return Framed::Message(&self.buffer);
                }
                Measured::Fault(fault, head) => {
                    *input = &[];
                    self.state = State::Failed;
                    let head = self.buffer.get(..head).unwrap_or_default();
                    return Framed::Error(FramingError { fault, head });
                }
            }
        }
        Framed::Incomplete
    }

    /// Bytes that may be added before it is known whether the message needs more; not 0 while a message is
    /// under way.
    fn room(&self) -> usize {
        let bound = self.scan.length.unwrap_or(self.header_bytes);
        (bound as usize).saturating_sub(self.buffer.len()).max(1)
    }

    /// Adds bytes to the buffer. The buffer grows by doubling, but not beyond the end of the message if that
    /// is known: a large Content-Length alone costs no memory.
    fn keep(&mut self, bytes: &[u8]) {
        let needed = self.buffer.len() + bytes.len();
        if needed > self.buffer.capacity() {
            let doubled = self.buffer.capacity() * 2;
            let wanted = self
                .scan
                .length
                .map_or(doubled, |length| doubled.min(length as usize));
            self.buffer.reserve_exact(wanted.max(needed) - self.buffer.len());
        }
        self.buffer.extend_from_slice(bytes);
    }

    fn fail<'a>(&mut self, fault: FramingFault, head: &'a [u8]) -> Framed<'a> {
        self.state = State::Failed;
        Framed::Error(FramingError { fault, head })
    }
}

/// The length of a message, as far as it is known.
enum Measured {
    /// The message ends after this many bytes, and all are there.
    Whole(usize),
    /// The message goes on.
    Partial,
    /// The length cannot be known; the head has this many bytes.
    Fault(FramingFault, usize),
}

/// The progress of reading the message under way; offsets are from its first byte. Every byte of the head is
/// read once, in however small pieces it comes.
#[derive(Debug, Default)]
struct Scan {
    /// First byte of the line (with its folded continuations) under way.
    field: u32,
    /// The position before which all line ends have been handled.
    searched: u32,
    /// Bytes of the whole message, once its head is complete.
    length: Option<u32>,
    content_length: ContentLength,
    past_start_line: bool,
    bad_line_end: bool,
}

#[derive(Debug, Default)]
enum ContentLength {
    #[default]
    Absent,
    Bytes(u32),
    Fault(FramingFault),
}

impl Scan {
    /// Measures the message. `bytes` begins as at the last call, and has more.
    fn measure(&mut self, bytes: &[u8], header_bytes: u32, body_bytes: u32) -> Measured {
        let length = match self.length {
            Some(length) => length,
            None => {
                let head_most = header_bytes as usize;
                match self.find_head_end(bytes.get(..head_most).unwrap_or(bytes)) {
                    None if bytes.len() >= head_most => {
                        return Measured::Fault(FramingFault::HeadTooLarge, head_most);
                    }
                    None => return Measured::Partial,
                    Some(head) => match self.body_length(body_bytes) {
                        Err(fault) => return Measured::Fault(fault, head),
                        Ok(body) => *self.length.insert(head as u32 + body),
                    },
                }
            }
        } as usize;
        if bytes.len() >= length {
            Measured::Whole(length)
        } else {
            Measured::Partial
        }
    }

    /// The length of the body, from the complete head.
    fn body_length(&self, body_bytes: u32) -> Result<u32, FramingFault> {
        if self.bad_line_end {
            return Err(FramingFault::LineEnd);
        }
        match self.content_length {
            ContentLength::Absent => Err(FramingFault::MissingContentLength),
            ContentLength::Fault(fault) => Err(fault),
            ContentLength::Bytes(length) if length > body_bytes => Err(FramingFault::BodyTooLarge),
            ContentLength::Bytes(length) => Ok(length),
        }
    }

    /// The length of the head, empty line included, once the whole head has come.
    ///
    /// A bare CR or LF is a line end here, too, as in [`sip_message::parse()`]. Such a line end is a fault,
    /// but the refusal is built from the headers, so these are read to their end.
    fn find_head_end(&mut self, bytes: &[u8]) -> Option<usize> {
        loop {
            let from = self.searched as usize;
            let Some(found) = memchr::memchr2(b'\r', b'\n', bytes.get(from..)?) else {
                self.searched = bytes.len() as u32;
                return None;
            };
            let stop = from + found;
            // This line end is handled once the byte after it is there.
            self.searched = stop as u32;
            let next = match (bytes.get(stop)?, bytes.get(stop + 1)) {
                (b'\r', None) => return None,
                (b'\r', Some(b'\n')) => stop + 2,
                _ => {
                    self.bad_line_end = true;
                    stop + 1
                }
            };
            if stop == self.field as usize {
                return Some(next);
            }
            // Folding (RFC 3261 §7.3.1): the field goes on if the next line begins with white space.
            if !matches!(bytes.get(next)?, b' ' | b'\t') {
                let field = bytes.get(self.field as usize..stop).unwrap_or_default();
                if core::mem::replace(&mut self.past_start_line, true) {
                    self.read_field(field);
                }
                self.field = next as u32;
            }
            self.searched = next as u32;
        }
    }

    /// Notes a Content-Length, in either form, in any case, with white space before the colon.
    fn read_field(&mut self, field: &[u8]) {
        if !matches!(field.first(), Some(b'C' | b'c' | b'L' | b'l')) {
            return;
        }
        let name_end = field
            .iter()
            .position(|c| !chars::is_token(*c))
            .unwrap_or(field.len());
        let (name, rest) = field.split_at(name_end);
        if !name.eq_ignore_ascii_case(b"content-length") && !name.eq_ignore_ascii_case(b"l") {
            return;
        }
        let colon = rest.iter().position(|c| !matches!(c, b' ' | b'\t'));
        let Some((b':', value)) = colon.and_then(|at| rest.get(at..)).and_then(<[u8]>::split_first) else {
            return;
        };
        let length = number::content_length(value).and_then(|length| u32::try_from(length).ok());
        self.content_length = match (&self.content_length, length) {
            // Two readers read the same length. The parser notes the repetition: a request is refused for it.
            (ContentLength::Bytes(before), Some(again)) if *before == again => return,
            (ContentLength::Absent, Some(length)) => ContentLength::Bytes(length),
            (ContentLength::Absent, None) => ContentLength::Fault(FramingFault::BadContentLength),
            (ContentLength::Bytes(_) | ContentLength::Fault(_), _) => {
                ContentLength::Fault(FramingFault::RepeatedContentLength)
            }
        };
    }
}

#[cfg(test)]
mod tests;

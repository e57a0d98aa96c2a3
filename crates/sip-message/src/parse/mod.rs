//! From bytes to an indexed message: one pass finds the start line and the spans of all headers. Values are
//! read on demand.

mod start_line;

use alloc::vec::Vec;

pub use start_line::{StartLine, StartLineError};

use crate::chars::{find_control, find_in_block, find_line_end, token_len, trim_end, trim_start};
use crate::message::Message;
use crate::name::HeaderName;
use crate::number;

/// The place of one header field in the message. Offsets are from the first byte given to the parser.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// The known name, or [`HeaderName::Other`].
    pub name: HeaderName,
    /// First byte of the name.
    pub start: u32,
    /// The end of the name.
    pub name_end: u32,
    /// First byte of the value, white space skipped.
    pub value: u32,
    /// The end of the value, white space trimmed. Folding is left inside.
    pub value_end: u32,
    /// The end of the line.
    pub end: u32,
    /// Number of the next field of the same known name, if there is one.
    pub(crate) next: u16,
}

const NONE: u16 = u16::MAX;

/// Memory for one message's index, used again for the next message: once the memory has grown to the
/// traffic's size, parsing allocates nothing.
#[derive(Debug)]
pub struct HeaderIndex {
    pub(crate) fields: Vec<Field>,
    /// The first and last field of each known name, and of all other names together.
    pub(crate) ends: [(u16, u16); HeaderName::COUNT],
    /// Whether a value continues on another line.
    pub(crate) folded: bool,
}

impl Default for HeaderIndex {
    fn default() -> Self {
        Self {
            fields: Vec::with_capacity(32),
            ends: [(NONE, NONE); HeaderName::COUNT],
            folded: false,
        }
    }
}

impl HeaderIndex {
    /// An index without fields.
    pub fn new() -> Self {
        Self::default()
    }

    fn clear(&mut self) {
        self.fields.clear();
        self.ends = [(NONE, NONE); HeaderName::COUNT];
        self.folded = false;
    }

    pub(crate) fn first(&self, name: HeaderName) -> Option<usize> {
        match self.ends.get(name as usize) {
            Some(&(at, _)) if at != NONE => Some(usize::from(at)),
            _ => None,
        }
    }
}

/// A fault of a message that is SIP all the same. If the headers that a response needs are there, the sender
/// can be informed (400 and its like).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// The request line: spaces where none may be, or no URI.
    RequestLine,
    /// The version is not SIP/2.0 (505).
    Version,
    /// White space in the status line is not one space after the version and one after the code.
    StatusLine,
    /// A control character in the reason phrase of a response.
    ReasonPhrase,
    /// A header line without a name or a colon.
    HeaderLine,
    /// A line end that is not CRLF.
    LineEnd,
    /// Such a line end at or before an empty line: readers differ on whether the headers end there.
    HeadEnd,
    /// A control character in a header field that no backslash quotes: some readers end the value there.
    Control,
    /// A header that may stand once stands twice.
    Repeated(HeaderName),
    /// Content-Length is not a number, or too large a one.
    ContentLength,
    /// The body is shorter than Content-Length says.
    Truncated,
    /// No empty line after the headers.
    Unterminated,
    /// More header fields than the limit.
    TooManyHeaders,
}

impl Defect {
    /// The graver of two defects: the first, unless only the first could be mended.
    #[inline]
    pub(crate) fn graver(first: Option<Self>, second: Option<Self>) -> Option<Self> {
        let is_harmless = |defect: Option<Self>| defect.is_none_or(Self::is_harmless);
        match is_harmless(first) && !is_harmless(second) {
            true => second,
            false => first.or(second),
        }
    }

    /// The reason phrase of the refusal.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::RequestLine => "Malformed Request-Line",
            Self::Version => "SIP Version Not Supported",
            Self::StatusLine => "White Space In Status-Line",
            Self::ReasonPhrase => "Control Character In Reason Phrase",
            Self::HeaderLine => "Malformed Header Line",
            Self::LineEnd | Self::HeadEnd => "Line End Is Not CRLF",
            Self::Control => "Control Character In Header",
            Self::Repeated(_) => "Repeated Header Field",
            Self::ContentLength => "Bad Content-Length",
            Self::Truncated => "Body Shorter Than Content-Length",
            Self::Unterminated => "No Empty Line After Headers",
            Self::TooManyHeaders => "Too Many Header Fields",
        }
    }
}

/// The error for bytes that are not a SIP message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParseError {
    /// No line can be a SIP request line or status line.
    NotSip,
    /// The status line is broken: there is no request to respond to.
    StatusLine,
    /// The bytes are longer than 4 GiB.
    TooLong,
}

/// Indexes one message. From a stream, `bytes` is one message as framing found it. In a datagram, bytes
/// behind the body by Content-Length are not part of the message.
///
/// # Errors
/// [`ParseError`] if nothing can be read of the bytes; lesser faults are in [`Message::defect`].
pub fn parse<'a>(
    bytes: &'a [u8],
    index: &'a mut HeaderIndex,
    max_headers: usize,
) -> Result<Message<'a>, ParseError> {
    if u32::try_from(bytes.len()).is_err() {
        return Err(ParseError::TooLong);
    }
    index.clear();
    // RFC 3261 §7.5: empty lines before the start line are ignored.
    let mut at = 0;
    while bytes.get(at..at + 2) == Some(b"\r\n") {
        at += 2;
    }
    let start_at = at;
    let line_stop = find_line_end(bytes, at).ok_or(ParseError::NotSip)?;
    let line = bytes.get(at..line_stop).unwrap_or_default();
    let (start, mut defect) = start_line::parse(line).map_err(|e| match e {
        StartLineError::NotSip => ParseError::NotSip,
        StartLineError::Status => ParseError::StatusLine,
    })?;
    at = line_end(bytes, line_stop).ok_or(ParseError::NotSip)?;
    if at != line_stop + 2 {
        defect = defect.or(Some(Defect::LineEnd));
    }
    let mut fields = FieldParser {
        bytes,
        at,
        defect: None,
    };
    let body_at = fields.run(index, max_headers);
    defect = Defect::graver(defect, fields.defect);
    let mut message = Message::new(bytes, start, index, start_at, body_at, defect);
    message.find_body(fields_content_length(&message));
    Ok(message)
}

/// The position after a CRLF at `at`. A bare CR or LF counts as a line end here, so that the rest of a broken
/// message can still be read for the refusal.
fn line_end(bytes: &[u8], at: usize) -> Option<usize> {
    match (bytes.get(at)?, bytes.get(at + 1)) {
        (b'\r', Some(b'\n')) => Some(at + 2),
        (b'\n', _) => Some(at + 1),
        (b'\r', _) => Some(at + 1),
        _ => None,
    }
}

fn fields_content_length(message: &Message<'_>) -> Option<Result<usize, Defect>> {
    message
        .value(HeaderName::ContentLength)
        .map(|text| number::content_length(text).ok_or(Defect::ContentLength))
}

/// One field as nearly all are written: a known name in its usual spelling, a colon, one space, a value
/// without control characters, CRLF. `None`: the field is written otherwise.
#[inline(always)]
fn usual_field(bytes: &[u8], start: usize) -> Option<Field> {
    let rest = bytes.get(start..)?;
    let block = rest.first_chunk()?;
    let len = find_in_block(block, b':')?;
    let name = HeaderName::lookup_usual(block, len)?;
    let stop = find_control(rest, len + 1)?;
    let [b' ', first, ..] = rest.get(len + 1..stop)? else {
        return None;
    };
    // The line end is whole, and no folding follows.
    let [last, b'\r', b'\n', next] = rest.get(stop - 1..stop + 3)? else {
        return None;
    };
    if *first == b' ' || *last == b' ' || *next == b' ' || *next == b'\t' {
        return None;
    }
    let start = start as u32;
    Some(Field {
        name,
        start,
        name_end: start + len as u32,
        value: start + len as u32 + 2,
        value_end: start + stop as u32,
        end: start + stop as u32 + 2,
        next: NONE,
    })
}

/// Whether a value has a control character where none may be (RFC 3261 §25.1: TEXT-UTF8 has none, a
/// quoted-pair may be any but CR and LF). Tabs, and the line ends of folding, are white space.
fn has_bare_control(text: &[u8]) -> bool {
    let mut bytes = text.iter();
    while let Some(&c) = bytes.next() {
        match c {
            b'\\' => drop(bytes.next()),
            b'\t' | b'\r' | b'\n' => {}
            0..b' ' => return true,
            _ => {}
        }
    }
    false
}

struct FieldParser<'a> {
    bytes: &'a [u8],
    at: usize,
    defect: Option<Defect>,
}

impl FieldParser<'_> {
    /// Indexes all fields. Returns the start of the body.
    fn run(&mut self, index: &mut HeaderIndex, max_headers: usize) -> usize {
        let most = max_headers.min(usize::from(NONE));
        loop {
            self.usual_fields(index, most);
            match self.bytes.get(self.at) {
                None => {
                    self.note(Defect::Unterminated);
                    return self.at;
                }
                Some(b'\r') if self.bytes.get(self.at + 1) == Some(&b'\n') => {
                    // Some readers take CR CR LF for one line end.
                    if self.defect.is_some()
                        && self.bytes.get(self.at.saturating_sub(2)..self.at) != Some(b"\r\n")
                    {
                        self.note(Defect::HeadEnd);
                    }
                    return self.at + 2;
                }
                Some(b'\r' | b'\n') => {
                    // Headers are smuggled by such line ends.
                    self.note(Defect::HeadEnd);
                    return self.at + 1;
                }
                Some(_) => {}
            }
            if index.fields.len() >= most {
                self.note(Defect::TooManyHeaders);
                return self.bytes.len();
            }
            self.field(index);
        }
    }

    /// Indexes fields as long as they are written in the usual way.
    fn usual_fields(&mut self, index: &mut HeaderIndex, most: usize) {
        let (bytes, mut at) = (self.bytes, self.at);
        while index.fields.len() < most
            && let Some(field) = usual_field(bytes, at)
        {
            at = field.end as usize;
            self.enter(index, field);
        }
        self.at = at;
    }

    #[inline(always)]
    fn enter(&mut self, index: &mut HeaderIndex, field: Field) {
        let number = index.fields.len();
        index.fields.push(field);
        if let Some((first, last)) = index.ends.get_mut(field.name as usize) {
            if *first == NONE {
                *first = number as u16;
            } else {
                if let Some(before) = index.fields.get_mut(usize::from(*last)) {
                    before.next = number as u16;
                }
                if field.name.is_single() {
                    self.note(Defect::Repeated(field.name));
                }
            }
            *last = number as u16;
        }
    }

    fn note(&mut self, defect: Defect) {
        self.defect = Defect::graver(self.defect, Some(defect));
    }

    /// Indexes one field, however it is written.
    #[inline(never)]
    fn field(&mut self, index: &mut HeaderIndex) {
        let start = self.at;
        let Some((name, name_len, colon)) = self.name(start) else {
            self.note(Defect::HeaderLine);
            self.at = self.value_stop(start).1;
            return;
        };
        let from = start + colon + 1;
        let (stop, end) = self.value_stop(from);
        self.at = end;
        let text = self.bytes.get(from..stop).unwrap_or_default();
        index.folded |= text.contains(&b'\n');
        if has_bare_control(text) {
            self.note(Defect::Control);
        }
        let kept = trim_start(text);
        let value = stop - kept.len();
        let value_end = value + trim_end(kept).len();
        self.enter(
            index,
            Field {
                name,
                start: start as u32,
                name_end: (start + name_len) as u32,
                value: value as u32,
                value_end: value_end as u32,
                end: end as u32,
                next: NONE,
            },
        );
    }

    /// The name of the field at `start`, its length, and the position of the colon, from `start`.
    fn name(&self, start: usize) -> Option<(HeaderName, usize, usize)> {
        let rest = self.bytes.get(start..)?;
        let len = token_len(rest);
        let mut colon = len;
        while matches!(rest.get(colon), Some(b' ' | b'\t')) {
            colon += 1;
        }
        (len > 0 && rest.get(colon) == Some(&b':')).then(|| {
            (
                HeaderName::lookup(rest.get(..len).unwrap_or_default()),
                len,
                colon,
            )
        })
    }

    /// The end of the value that begins at `from`, folded lines included, and the start of the next field.
    fn value_stop(&mut self, from: usize) -> (usize, usize) {
        let mut at = from;
        loop {
            let Some(stop) = find_line_end(self.bytes, at) else {
                self.note(Defect::Unterminated);
                return (self.bytes.len(), self.bytes.len());
            };
            let next = line_end(self.bytes, stop).unwrap_or(stop + 1);
            if next != stop + 2 {
                self.note(Defect::LineEnd);
            }
            // Folding (RFC 3261 §7.3.1): the next line begins with white space.
            if matches!(self.bytes.get(next), Some(b' ' | b'\t')) {
                at = next;
                continue;
            }
            return (stop, next);
        }
    }
}

//! A parsed message: borrowed bytes, an index, and typed values on demand.

use core::ops::Range;

use crate::chars::{find, trim_end};
use crate::header::{self, CSeq, HeaderError, Mandatory, NameAddr, Via};
use crate::method::Method;
use crate::name::HeaderName;
use crate::parse::{Defect, Field, HeaderIndex, StartLine};
use crate::values::{ValueIter, split_value};

/// A message.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    bytes: &'a [u8],
    start: StartLine<'a>,
    index: &'a HeaderIndex,
    start_at: usize,
    body_at: usize,
    end: usize,
    defect: Option<Defect>,
}

impl<'a> Message<'a> {
    pub(crate) const fn new(
        bytes: &'a [u8],
        start: StartLine<'a>,
        index: &'a HeaderIndex,
        start_at: usize,
        body_at: usize,
        defect: Option<Defect>,
    ) -> Self {
        Self {
            bytes,
            start,
            index,
            start_at,
            body_at,
            end: bytes.len(),
            defect,
        }
    }

    /// Cuts the body to Content-Length.
    pub(crate) fn find_body(&mut self, length: Option<Result<usize, Defect>>) {
        match length {
            None => {}
            Some(Ok(length)) => match self.body_at.checked_add(length) {
                Some(end) if end <= self.bytes.len() => self.end = end,
                _ => self.defect = Defect::graver(self.defect, Some(Defect::Truncated)),
            },
            Some(Err(defect)) => self.defect = Defect::graver(self.defect, Some(defect)),
        }
    }

    /// The message's bytes, without empty lines before it and without bytes behind its body.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes.get(self.start_at..self.end).unwrap_or_default()
    }

    /// All bytes given to the parser; the offsets of [`Field`] and of every span point into these.
    pub const fn source(&self) -> &'a [u8] {
        self.bytes
    }

    /// The start of the start line in [`Message::source`].
    pub const fn start_offset(&self) -> usize {
        self.start_at
    }

    /// The end of the message in [`Message::source`].
    pub const fn end_offset(&self) -> usize {
        self.end
    }

    /// The start of the first header in [`Message::source`].
    pub fn headers_offset(&self) -> usize {
        self.index
            .fields
            .first()
            .map_or(self.body_at, |f| f.start as usize)
    }

    /// The start of the empty line that ends the headers: new fields go before it.
    pub fn headers_end_offset(&self) -> usize {
        self.index.fields.last().map_or(self.body_at, |f| f.end as usize)
    }

    /// The first line.
    pub const fn start(&self) -> StartLine<'a> {
        self.start
    }

    /// Whether a value continues on another line (RFC 3261 §7.3.1).
    pub const fn is_folded(&self) -> bool {
        self.index.folded
    }

    /// Appends the message with each value on one line, which means the same (RFC 3261 §7.3.1). A reader of
    /// lines that ignores folding then finds no header in the middle of a value.
    pub fn unfold(&self, out: &mut alloc::vec::Vec<u8>) {
        let head = self.start_at..self.headers_end_offset();
        let mut rest = self.text(head.clone());
        while let Some(at) = memchr::memchr(b'\n', rest) {
            let (line, tail) = rest.split_at_checked(at + 1).unwrap_or((rest, &[]));
            if matches!(tail.first(), Some(b' ' | b'\t')) {
                out.extend_from_slice(trim_end(line));
                out.push(b' ');
                let blank = |c: &u8| matches!(c, b' ' | b'\t');
                let blanks = tail.iter().take_while(|c| blank(c)).count();
                rest = tail.get(blanks..).unwrap_or_default();
            } else {
                out.extend_from_slice(line);
                rest = tail;
            }
        }
        out.extend_from_slice(rest);
        out.extend_from_slice(self.text(head.end..self.end));
    }

    /// The fault of the message, if it has one.
    pub const fn defect(&self) -> Option<Defect> {
        self.defect
    }

    /// Method of a request.
    pub const fn method(&self) -> Option<Method<'a>> {
        match self.start {
            StartLine::Request { method, .. } => Some(method),
            StartLine::Response { .. } => None,
        }
    }

    /// Request-URI of a request, as written.
    pub const fn request_uri(&self) -> Option<&'a [u8]> {
        match self.start {
            StartLine::Request { uri, .. } => Some(uri),
            StartLine::Response { .. } => None,
        }
    }

    /// Status code of a response.
    pub const fn status(&self) -> Option<u16> {
        match self.start {
            StartLine::Response { status, .. } => Some(status),
            StartLine::Request { .. } => None,
        }
    }

    /// Reason phrase of a response, as written; empty for a request.
    pub const fn reason(&self) -> &'a [u8] {
        match self.start {
            StartLine::Response { reason, .. } => reason,
            StartLine::Request { .. } => &[],
        }
    }

    /// The body.
    pub fn body(&self) -> &'a [u8] {
        self.bytes.get(self.body_at..self.end).unwrap_or_default()
    }

    /// All fields in order.
    pub fn fields(&self) -> &'a [Field] {
        &self.index.fields
    }

    /// A span of [`Message::source`].
    pub fn text(&self, range: Range<usize>) -> &'a [u8] {
        self.bytes.get(range).unwrap_or_default()
    }

    /// A field's name as written.
    pub fn field_name(&self, field: &Field) -> &'a [u8] {
        self.text(field.start as usize..field.name_end as usize)
    }

    /// A field's value as written, white space at both ends trimmed.
    pub fn field_value(&self, field: &Field) -> &'a [u8] {
        self.text(field.value as usize..field.value_end as usize)
    }

    /// The fields of a known name, in order. For [`HeaderName::Other`] these are all fields with an unknown
    /// name.
    pub fn fields_named(&self, name: HeaderName) -> impl Iterator<Item = &'a Field> + use<'a> {
        let fields = &self.index.fields;
        let first = self.index.first(name).and_then(|at| fields.get(at));
        core::iter::successors(first, |f| fields.get(usize::from(f.next)))
    }

    /// The fields of a name that this crate does not know, compared in any case.
    pub fn fields_other<'n>(&self, name: &'n [u8]) -> impl Iterator<Item = &'a Field> + use<'a, 'n> {
        let message = *self;
        self.fields_named(HeaderName::Other)
            .filter(move |f| message.field_name(f).eq_ignore_ascii_case(name))
    }

    /// Whether there is a field of this name.
    pub fn has(&self, name: HeaderName) -> bool {
        self.index.first(name).is_some()
    }

    /// The value of the first field of this name, as written.
    pub fn value(&self, name: HeaderName) -> Option<&'a [u8]> {
        let field = self.index.fields.get(self.index.first(name)?)?;
        Some(self.field_value(field))
    }

    /// The message from the start of that value on, and the value's length.
    #[inline(always)]
    pub(crate) fn value_on(&self, name: HeaderName) -> Option<(&'a [u8], usize)> {
        let field = self.index.fields.get(self.index.first(name)?)?;
        let text = self.bytes.get(field.value as usize..)?;
        Some((text, (field.value_end - field.value) as usize))
    }

    /// All values of a header that may be repeated or joined by commas (RFC 3261 §7.3.1), in order.
    pub fn values(&self, name: HeaderName) -> ValueIter<'a> {
        let from = self.index.first(name).unwrap_or(self.index.fields.len());
        ValueIter::new(self, from)
    }

    // Typed values.

    /// Call-ID as written. `None`: it is missing, empty, or has white space or control characters inside. No
    /// `callid` has these (RFC 3261 §25.1), and other readers would take them for something else.
    pub fn call_id(&self) -> Option<&'a [u8]> {
        self.value(HeaderName::CallId)
            .filter(|v| !v.is_empty() && crate::chars::visible_len(v) == v.len())
    }

    /// CSeq.
    ///
    /// # Errors
    /// Missing or malformed.
    pub fn cseq(&self) -> Result<CSeq<'a>, HeaderError> {
        CSeq::parse(
            self.value(HeaderName::CSeq)
                .ok_or(HeaderError::Missing(HeaderName::CSeq))?,
        )
    }

    /// From.
    ///
    /// # Errors
    /// Missing or malformed.
    pub fn from(&self) -> Result<NameAddr<'a>, HeaderError> {
        self.name_addr(HeaderName::From)
    }

    /// To.
    ///
    /// # Errors
    /// Missing or malformed.
    pub fn to(&self) -> Result<NameAddr<'a>, HeaderError> {
        self.name_addr(HeaderName::To)
    }

    fn name_addr(&self, name: HeaderName) -> Result<NameAddr<'a>, HeaderError> {
        let (text, len) = self.value_on(name).ok_or(HeaderError::Missing(name))?;
        NameAddr::parse_in(text, len).ok_or(HeaderError::Malformed(name))
    }

    /// The topmost Via.
    ///
    /// # Errors
    /// Missing or malformed.
    pub fn top_via(&self) -> Result<Via<'a>, HeaderError> {
        let missing = HeaderError::Missing(HeaderName::Via);
        let (text, len) = self.value_on(HeaderName::Via).ok_or(missing)?;
        // Nearly always the first field holds one value.
        if let Some(via) = header::via_fast_path(text, len) {
            return Ok(via);
        }
        let text = match text.get(..len) {
            Some(text @ [b'S' | b's', ..]) => trim_end(split_value(text).0),
            _ => self.values(HeaderName::Via).next().ok_or(missing)?.text,
        };
        Via::parse_any(text).ok_or(HeaderError::Malformed(HeaderName::Via))
    }

    /// The Via below the topmost one, which leads a response on (RFC 3261 §16.7 step 3).
    ///
    /// # Errors
    /// Missing or malformed.
    pub fn second_via(&self) -> Result<Via<'a>, HeaderError> {
        let mut fields = self.fields_named(HeaderName::Via);
        // Nearly always each Via has a field of its own.
        if let (Some(first), Some(second)) = (fields.next(), fields.next())
            && find(self.field_value(first), b',').is_none()
            && let Some(via) = header::via_fast_path(
                self.bytes.get(second.value as usize..).unwrap_or_default(),
                (second.value_end - second.value) as usize,
            )
            && first.value != first.value_end
        {
            return Ok(via);
        }
        let value = self.values(HeaderName::Via).nth(1);
        let value = value.ok_or(HeaderError::Missing(HeaderName::Via))?;
        Via::parse(value.text).ok_or(HeaderError::Malformed(HeaderName::Via))
    }

    /// Max-Forwards, 0 to 255 (RFC 3261 §20.22).
    ///
    /// # Errors
    /// Malformed.
    pub fn max_forwards(&self) -> Result<Option<u8>, HeaderError> {
        match self.value(HeaderName::MaxForwards) {
            None => Ok(None),
            Some(text) => crate::number::decimal_u32(text)
                .and_then(|v| u8::try_from(v).ok())
                .map(Some)
                .ok_or(HeaderError::Malformed(HeaderName::MaxForwards)),
        }
    }

    /// Expires in seconds (RFC 3261 §20.19).
    ///
    /// # Errors
    /// Malformed.
    pub fn expires(&self) -> Result<Option<u32>, HeaderError> {
        match self.value(HeaderName::Expires) {
            None => Ok(None),
            Some(text) => crate::number::delta_seconds(text)
                .map(Some)
                .ok_or(HeaderError::Malformed(HeaderName::Expires)),
        }
    }

    /// Whether an option tag is listed in `name` (Supported, Require, Proxy-Require, …), in any case.
    pub fn has_option(&self, name: HeaderName, tag: &[u8]) -> bool {
        self.values(name).any(|v| v.text.eq_ignore_ascii_case(tag))
    }

    /// Checks the headers that a response to this message needs: Via, From, To, Call-ID and CSeq.
    ///
    /// # Errors
    /// The first that is missing or malformed.
    pub fn check_mandatory(&self) -> Result<(), HeaderError> {
        self.mandatory().map(|_| ())
    }

    /// The headers that [`Message::check_mandatory`] checks: cheaper than reading them again.
    ///
    /// # Errors
    /// The first that is missing or malformed.
    pub fn mandatory(&self) -> Result<Mandatory<'a>, HeaderError> {
        header::mandatory(self)
    }
}

//! Values of headers that may be repeated or joined by commas.

use core::ops::Range;

use crate::chars::{quoted_len, trim};
use crate::message::Message;
use crate::name::HeaderName;

/// One value with its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value<'a> {
    /// The value, white space trimmed.
    pub text: &'a [u8],
    /// Which field of the message ([`Message::fields`]) holds it.
    pub field: usize,
    /// First value of its field.
    pub first: bool,
    /// Last value of its field.
    pub last: bool,
}

impl<'a> Value<'a> {
    /// Its place in [`Message::source`].
    pub fn span(&self, message: &Message<'a>) -> Range<usize> {
        crate::chars::span_in(message.source(), self.text).unwrap_or_default()
    }
}

/// Iterator over the values of one header name, through all its fields.
#[derive(Clone, Debug)]
pub struct ValueIter<'a> {
    message: Message<'a>,
    name: HeaderName,
    field: usize,
    rest: Option<&'a [u8]>,
    first: bool,
}

impl<'a> ValueIter<'a> {
    pub(crate) const fn new(message: Message<'a>, name: HeaderName, field: usize) -> Self {
        Self {
            message,
            name,
            field,
            rest: None,
            first: true,
        }
    }
}

impl<'a> Iterator for ValueIter<'a> {
    type Item = Value<'a>;

    fn next(&mut self) -> Option<Value<'a>> {
        loop {
            let fields = self.message.fields();
            let Some(rest) = self.rest else {
                let field = fields.get(self.field)?;
                if field.name != self.name {
                    self.field += 1;
                    continue;
                }
                self.rest = Some(self.message.field_value(field));
                self.first = true;
                continue;
            };
            let (value, tail) = split_value(rest);
            let item = Value {
                text: trim(value),
                field: self.field,
                first: self.first,
                last: tail.is_none(),
            };
            self.first = false;
            self.rest = tail;
            if tail.is_none() {
                self.field += 1;
            }
            // Empty elements of a list mean nothing ("a,,b").
            if item.text.is_empty() {
                continue;
            }
            return Some(item);
        }
    }
}

/// Splits at the first comma outside quotes and angle brackets.
pub fn split_value(text: &[u8]) -> (&[u8], Option<&[u8]>) {
    // Most values hold no comma at all.
    if memchr::memchr(b',', text).is_none() {
        return (text, None);
    }
    let mut at = 0;
    let mut bracketed = false;
    while let Some(&c) = text.get(at) {
        match c {
            b'"' if !bracketed => match text.get(at..).and_then(quoted_len) {
                Some(len) => {
                    at += len;
                    continue;
                }
                None => return (text, None),
            },
            b'<' => bracketed = true,
            b'>' => bracketed = false,
            b',' if !bracketed => {
                return (text.get(..at).unwrap_or_default(), text.get(at + 1..));
            }
            _ => {}
        }
        at += 1;
    }
    (text, None)
}

//! Values of headers that may be repeated or joined by commas.

use core::ops::Range;

use crate::chars::{find, quoted_len, trim_end, trim_start};
use crate::message::Message;
use crate::parse::Field;

/// One value with its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value<'a> {
    /// The value, white space trimmed.
    pub text: &'a [u8],
    /// The number of the field ([`Message::fields`]) that holds the value.
    pub field: usize,
    /// Whether it is the first value of its field (empty list elements are no values).
    pub first: bool,
    /// Whether it is the last value of its field (empty list elements are no values).
    pub last: bool,
}

impl<'a> Value<'a> {
    /// The place of the value in [`Message::source`].
    pub fn span(&self, message: &Message<'a>) -> Range<usize> {
        crate::chars::span_in(message.source(), self.text).unwrap_or_default()
    }
}

/// Iterator over the values of one header name, through all its fields.
#[derive(Clone, Debug)]
pub struct ValueIter<'a> {
    source: &'a [u8],
    fields: &'a [Field],
    /// Number of the field at hand, and of the next one.
    field: usize,
    next: usize,
    rest: Option<&'a [u8]>,
    first: bool,
}

impl<'a> ValueIter<'a> {
    /// The values of field number `first` and of the later fields of the same name.
    pub(crate) fn new(message: &Message<'a>, first: usize) -> Self {
        Self {
            source: message.source(),
            fields: message.fields(),
            field: first,
            next: first,
            rest: None,
            first: true,
        }
    }
}

impl<'a> Iterator for ValueIter<'a> {
    type Item = Value<'a>;

    #[inline]
    fn next(&mut self) -> Option<Value<'a>> {
        let rest = loop {
            if let Some(rest) = self.rest {
                break rest;
            }
            let field = self.fields.get(self.next)?;
            (self.field, self.next) = (self.next, usize::from(field.next));
            // Empty elements of a list ("a,,b") mean nothing, and are skipped before a value is looked for,
            // so that `first` and `last` concern values only.
            let value = self.source.get(field.value as usize..field.value_end as usize);
            self.rest = value.and_then(skip_empty);
            self.first = true;
        };
        let (value, tail) = split_value(rest);
        self.rest = tail.and_then(skip_empty);
        let item = Value {
            text: trim_end(value),
            field: self.field,
            first: self.first,
            last: self.rest.is_none(),
        };
        self.first = false;
        Some(item)
    }
}

/// The text without commas and white space at the front; `None` if nothing is left.
fn skip_empty(text: &[u8]) -> Option<&[u8]> {
    let mut text = trim_start(text);
    while let [b',', rest @ ..] = text {
        text = trim_start(rest);
    }
    (!text.is_empty()).then_some(text)
}

/// Splits at the first comma outside quotes and angle brackets.
pub fn split_value(text: &[u8]) -> (&[u8], Option<&[u8]>) {
    // Most values hold no comma at all.
    if find(text, b',').is_none() {
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

#[cfg(test)]
mod tests {
    use crate::{HeaderIndex, HeaderName, parse};
    use alloc::vec::Vec;

    #[test]
    fn empty_elements_are_no_values_and_hide_neither_end() {
        let text = b"SIP/2.0 200 OK\r\nVia: ,\r\nv: , a ,, b,\r\nX: y\r\nVIA:c\r\nVia:\r\n\r\n";
        let mut index = HeaderIndex::new();
        let message = parse(text, &mut index, 8).unwrap();
        let values: Vec<_> = message
            .values(HeaderName::Via)
            .map(|v| (v.text, v.field, v.first, v.last))
            .collect();
        assert_eq!(
            values,
            [
                (&b"a"[..], 1, true, false),
                (&b"b"[..], 1, false, true),
                (&b"c"[..], 3, true, true)
            ]
        );
    }
}

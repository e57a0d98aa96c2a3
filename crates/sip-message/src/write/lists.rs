//! Edits of headers with values that may share lines (Via, Route), and of Content-Length.

use core::ops::Range;

use super::{Edits, write_content_length};
use crate::message::Message;
use crate::name::HeaderName;
use crate::parse::Field;

impl Edits {
    /// Removes the first `count` values of a header with values that may share lines (Via, Route).
    pub fn remove_values(&mut self, message: &Message<'_>, name: HeaderName, count: usize) {
        self.keep_values(message, name, count..usize::MAX);
    }

    /// Removes all values of a header but those whose numbers, from the top, are in `keep`.
    pub fn keep_values(&mut self, message: &Message<'_>, name: HeaderName, keep: Range<usize>) {
        // Nearly always the topmost value goes, and has a line of its own.
        if keep == (1..usize::MAX)
            && let Some(field) = message.fields_named(name).next()
            && field.value != field.value_end
            && memchr::memchr(b',', message.field_value(field)).is_none()
        {
            return self.delete(field.start as usize..field.end as usize);
        }
        // A line of empty values would come to stand on top.
        let is_empty = |field: &&Field| message.field_value(field).iter().all(|c| b", \t".contains(c));
        for field in message.fields_named(name).filter(is_empty) {
            self.delete(field.start as usize..field.end as usize);
        }
        // The start of the values of the line at hand, and the part of the line that stays.
        let mut from = 0;
        let mut kept: Option<Range<usize>> = None;
        for (number, value) in message.values(name).enumerate() {
            if value.first {
                if number >= keep.start && keep.end == usize::MAX {
                    return;
                }
                from = value.span(message).start;
                kept = None;
            }
            let keep_this = keep.contains(&number);
            if keep_this {
                let span = value.span(message);
                let start = kept.map_or(span.start, |k| k.start);
                kept = Some(start..span.end);
            }
            let Some(field) = message.fields().get(value.field).filter(|_| value.last) else {
                continue;
            };
            match kept.take() {
                None => self.delete(field.start as usize..field.end as usize),
                Some(kept) => {
                    if from < kept.start {
                        self.delete(from..kept.start);
                    }
                    if !keep_this {
                        self.delete(kept.end..field.value_end as usize);
                    }
                }
            }
        }
    }

    /// Adds Content-Length, if the message has none: on a stream it must have one (RFC 3261 §18.3).
    pub fn add_content_length(&mut self, message: &Message<'_>) {
        if !message.has(HeaderName::ContentLength) {
            let length = message.body().len();
            self.insert_with(message.headers_end_offset(), |out| {
                write_content_length(out, length)
            });
        }
    }
}

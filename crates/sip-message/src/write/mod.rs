//! Forwarding as an edit list over the received bytes: unchanged parts leave byte for byte.

mod lists;
mod mend;

use alloc::vec::Vec;
use core::ops::Range;

use crate::number::write_decimal;

/// Appends `Content-Length: ` and the line's end.
fn write_content_length(out: &mut Vec<u8>, length: usize) {
    out.extend_from_slice(b"Content-Length: ");
    write_decimal(out, length as u64);
    out.extend_from_slice(b"\r\n");
}

#[derive(Clone, Copy, Debug)]
struct Edit {
    /// The range of the source that is replaced.
    from: u32,
    to: u32,
    /// The part of the arena that replaces it.
    text: u32,
    text_end: u32,
}

/// Edits of one message, kept in order of their place. The memory is used again.
#[derive(Debug, Default)]
pub struct Edits {
    edits: Vec<Edit>,
    arena: Vec<u8>,
}

impl Edits {
    /// A list without edits.
    pub fn new() -> Self {
        Self::default()
    }

    /// Forgets all edits, and keeps the memory.
    pub fn clear(&mut self) {
        self.edits.clear();
        self.arena.clear();
    }

    /// Makes this list a copy of `other`, in its own memory.
    pub fn copy_from(&mut self, other: &Self) {
        self.edits.clone_from(&other.edits);
        self.arena.clone_from(&other.arena);
    }

    /// Bytes of memory that the edits take.
    pub fn bytes(&self) -> usize {
        self.edits.capacity() * size_of::<Edit>() + self.arena.capacity()
    }

    /// Whether there is no edit.
    pub fn is_empty(&self) -> bool {
        self.edits.is_empty()
    }

    /// Replaces `range` by the bytes that `write` appends. Edits at the same place keep the order in which
    /// they were made, but an insertion goes before a replacement. If a range overlaps an earlier edit's, it
    /// is cut to the rest.
    pub fn replace_with(&mut self, range: Range<usize>, write: impl FnOnce(&mut Vec<u8>)) {
        let text = self.arena.len() as u32;
        write(&mut self.arena);
        let edit = Edit {
            from: range.start as u32,
            to: range.end.max(range.start) as u32,
            text,
            text_end: self.arena.len() as u32,
        };
        let mut at = self.edits.len();
        while at > 0 && self.edits.get(at - 1).is_some_and(|e| edit.before(e)) {
            at -= 1;
        }
        self.edits.insert(at, edit);
    }

    /// Replaces `range` by `text`.
    pub fn replace(&mut self, range: Range<usize>, text: &[u8]) {
        self.replace_with(range, |out| out.extend_from_slice(text));
    }

    /// Inserts the bytes that `write` appends before the byte at `at`.
    pub fn insert_with(&mut self, at: usize, write: impl FnOnce(&mut Vec<u8>)) {
        self.replace_with(at..at, write);
    }

    /// Inserts `text` before the byte at `at`.
    pub fn insert(&mut self, at: usize, text: &[u8]) {
        self.replace(at..at, text);
    }

    /// Removes `range`.
    pub fn delete(&mut self, range: Range<usize>) {
        self.replace_with(range, |_| {});
    }

    /// Forgets the edits that begin within `range`.
    pub fn clear_within(&mut self, range: Range<usize>) {
        self.edits.retain(|e| !range.contains(&(e.from as usize)));
    }

    /// Appends `source[within]` with the edits applied. Edits outside `within` are ignored.
    pub fn apply(&self, source: &[u8], within: Range<usize>, out: &mut Vec<u8>) {
        let end = within.end.min(source.len());
        let mut at = within.start.min(end);
        let added: usize = self.edits.iter().map(|e| (e.text_end - e.text) as usize).sum();
        out.reserve(end - at + added);
        for edit in &self.edits {
            let (from, to) = ((edit.from as usize).max(at), (edit.to as usize).min(end));
            if (edit.from as usize) < within.start || edit.from as usize > end {
                continue;
            }
            if at < from {
                out.extend_from_slice(source.get(at..from).unwrap_or_default());
            }
            out.extend_from_slice(
                self.arena
                    .get(edit.text as usize..edit.text_end as usize)
                    .unwrap_or_default(),
            );
            at = to.max(from).min(end);
        }
        out.extend_from_slice(source.get(at..end).unwrap_or_default());
    }
}

impl Edit {
    /// Whether `self` goes before `other`, which was made earlier.
    fn before(&self, other: &Self) -> bool {
        // At the same place an insertion goes before a replacement.
        self.from < other.from || (self.from == other.from && self.from == self.to && other.from != other.to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_apply_in_order_of_place() {
        let mut e = Edits::new();
        e.replace(6..11, b"there");
        e.insert(0, b">");
        e.insert(0, b"> ");
        e.delete(5..6);
        e.insert(6, b", ");
        let mut out = Vec::new();
        e.apply(b"hello world!", 0..12, &mut out);
        assert_eq!(out, b">> hello, there!");
    }

    #[test]
    fn no_edit_is_the_identity_and_overlaps_are_harmless() {
        let mut out = Vec::new();
        let mut e = Edits::new();
        e.apply(b"abc", 0..3, &mut out);
        assert_eq!(out, b"abc");
        e.delete(0..2);
        e.replace(1..3, b"X");
        e.insert(99, b"no");
        out.clear();
        e.apply(b"abcd", 0..4, &mut out);
        assert_eq!(out, b"Xd");
    }
}

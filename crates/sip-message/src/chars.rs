//! Character classes of RFC 3261 §25.1, and the scans built on them.

use crate::block::{self, Block, Places};

const TOKEN: u8 = 1;
const SPACE: u8 = 2;
/// Characters that may stand in a URI as they are: no white space, no control character, none of `<>"`, no
/// `%`.
const URI: u8 = 4;
/// Characters that may stand in a host name, dots included.
const HOST: u8 = 8;
/// Characters that may stand in a header parameter's bare value: a token, a host, and other values that
/// senders write.
const VALUE: u8 = 16;
/// Characters that may stand in a parameter of a URI, and in names: all but those that end or quote a
/// parameter.
const LOOSE: u8 = 32;
/// Characters that may stand in a display name without quotes, or in an address without angle brackets.
const WORD: u8 = 64;
/// Characters that are neither white space nor control characters.
const VISIBLE: u8 = 128;

#[expect(clippy::indexing_slicing, reason = "a fault is one of compilation")]
const CLASS: [u8; 256] = {
    let mut table = [0u8; 256];
    let mut i = 0;
    while i < 256 {
        let c = i as u8;
        let control = c < b' ' || c == 0x7f;
        let space = matches!(c, b' ' | b'\t' | b'\r' | b'\n');
        if c.is_ascii_alphanumeric()
            || matches!(
                c,
                b'-' | b'.' | b'!' | b'%' | b'*' | b'_' | b'+' | b'`' | b'\'' | b'~'
            )
        {
            table[i] |= TOKEN;
        }
        if space {
            table[i] |= SPACE;
        }
        if !control && !space && !matches!(c, b'<' | b'>' | b'"' | b'%') {
            table[i] |= URI;
        }
        if !control && !space {
            table[i] |= VISIBLE;
        }
        if c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.') {
            table[i] |= HOST;
        }
        if !control && !space && !matches!(c, b'<' | b'>' | b'"' | b',' | b';') {
            table[i] |= VALUE;
        }
        if !space && !matches!(c, b'"' | b';' | b'=') {
            table[i] |= LOOSE;
        }
        if (!control || space) && !matches!(c, b'<' | b'>' | b'"' | b',' | b';') {
            table[i] |= WORD;
        }
        i += 1;
    }
    table
};

#[expect(clippy::indexing_slicing, reason = "the table has a place for every byte")]
const fn classes(c: u8) -> u8 {
    CLASS[c as usize]
}

const fn has(c: u8, class: u8) -> bool {
    classes(c) & class != 0
}

/// The length of the run of a class at the front of `text`.
#[inline]
fn run(text: &[u8], class: u8) -> usize {
    let mut rest = text;
    // Four characters at a time take one branch, since nearly always all are in the class.
    while let Some((four, tail)) = rest.split_first_chunk::<4>() {
        if four.iter().fold(class, |all, &c| all & classes(c)) == 0 {
            break;
        }
        rest = tail;
    }
    while let [first, tail @ ..] = rest
        && has(*first, class)
    {
        rest = tail;
    }
    text.len() - rest.len()
}

/// The length of such a run, read by the block as long as there are blocks. `ends` returns the places in a
/// block at which the run ends.
#[inline(always)]
fn long_run(text: &[u8], class: u8, ends: impl Fn(Block) -> Places) -> usize {
    let mut rest = text;
    while let Some((block, tail)) = rest.split_first_chunk() {
        let found = ends(Block::new(block)).bits();
        if found != 0 {
            return text.len() - rest.len() + found.trailing_zeros() as usize;
        }
        rest = tail;
    }
    text.len() - rest.len() + run(rest, class)
}

pub(crate) fn token_len(text: &[u8]) -> usize {
    run(text, TOKEN)
}

/// The places of white space and control characters in a block.
#[inline(always)]
fn unseen(block: Block) -> Places {
    block.up_to(b' ') | block.is(0x7f)
}

/// The length of the text up to a character that may not stand in a URI, or a `%`.
#[inline(always)]
pub(crate) fn uri_len(text: &[u8]) -> usize {
    long_run(text, URI, |b| {
        unseen(b) | b.is(b'<') | b.is(b'>') | b.is(b'"') | b.is(b'%')
    })
}

pub(crate) fn host_len(text: &[u8]) -> usize {
    run(text, HOST)
}

#[inline(always)]
pub(crate) fn value_len(text: &[u8]) -> usize {
    long_run(text, VALUE, |b| {
        unseen(b) | b.is(b'<') | b.is(b'>') | b.is(b'"') | b.is(b',') | b.is(b';')
    })
}

#[inline]
pub(crate) fn loose_len(text: &[u8]) -> usize {
    long_run(text, LOOSE, |b| {
        let spaces = b.is(b' ') | b.is(b'\t') | b.is(b'\r') | b.is(b'\n');
        spaces | b.is(b'"') | b.is(b';') | b.is(b'=')
    })
}

#[inline(always)]
pub(crate) fn visible_len(text: &[u8]) -> usize {
    long_run(text, VISIBLE, unseen)
}

pub(crate) fn word_len(text: &[u8]) -> usize {
    run(text, WORD)
}

/// The position of the first `c`, for short texts as those of header fields are.
#[inline(always)]
pub(crate) fn find(text: &[u8], c: u8) -> Option<usize> {
    find_either(text, c, c)
}

/// The position of the first `a` or `b`, in a short text.
#[inline(always)]
pub(crate) fn find_either(text: &[u8], a: u8, b: u8) -> Option<usize> {
    let mut rest = text;
    while let Some((block, tail)) = rest.split_first_chunk() {
        let block = Block::new(block);
        let found = (block.is(a) | block.is(b)).bits();
        if found != 0 {
            return Some(text.len() - rest.len() + found.trailing_zeros() as usize);
        }
        rest = tail;
    }
    let at = rest.iter().position(|c| *c == a || *c == b)?;
    Some(text.len() - rest.len() + at)
}

/// Whether a character may stand in a `token`.
pub const fn is_token(c: u8) -> bool {
    has(c, TOKEN)
}

/// Whether a character is a space, a tab, or the CR or LF that folding leaves inside a value.
pub const fn is_space(c: u8) -> bool {
    has(c, SPACE)
}

/// Whether `text` is a token, and not empty.
pub fn is_token_text(text: &[u8]) -> bool {
    !text.is_empty() && token_len(text) == text.len()
}

/// The text without white space (folding included) at the front.
pub fn trim_start(mut text: &[u8]) -> &[u8] {
    while let [first, rest @ ..] = text
        && is_space(*first)
    {
        text = rest;
    }
    text
}

/// The text without white space (folding included) at both ends.
pub fn trim(text: &[u8]) -> &[u8] {
    trim_end(trim_start(text))
}

/// The text without white space (folding included) at the end.
pub fn trim_end(mut text: &[u8]) -> &[u8] {
    while let [rest @ .., last] = text
        && is_space(*last)
    {
        text = rest;
    }
    text
}

/// Value of a hexadecimal digit.
pub const fn hex_value(c: u8) -> Option<u8> {
    match c {
        b'0'..=b'9' => Some(c - b'0'),
        b'a'..=b'f' => Some(c - b'a' + 10),
        b'A'..=b'F' => Some(c - b'A' + 10),
        _ => None,
    }
}

/// Splits at the first `separator`: (before, after).
pub fn split_once(text: &[u8], separator: u8) -> (&[u8], Option<&[u8]>) {
    match find(text, separator) {
        Some(at) => match (text.get(..at), text.get(at + 1..)) {
            (Some(before), Some(after)) => (before, Some(after)),
            _ => (text, None),
        },
        None => (text, None),
    }
}

/// Length of the quoted string at the front of `text` (which begins with `"`), closing quote
/// included; `None` if it is never closed.
pub fn quoted_len(text: &[u8]) -> Option<usize> {
    let mut at = 1;
    loop {
        match text.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

/// Index of the first byte of `block` that equals `c`.
#[inline(always)]
pub(crate) fn find_in_block(block: &[u8; block::LEN], c: u8) -> Option<usize> {
    let found = Block::new(block).is(c).bits();
    (found != 0).then_some(found.trailing_zeros() as usize)
}

/// The position of the first control character at or after `from`.
#[inline(always)]
pub(crate) fn find_control(bytes: &[u8], from: usize) -> Option<usize> {
    // Lines are short: most of a call to a general search would be its preparation.
    let mut rest = bytes.get(from..)?;
    while let Some((block, tail)) = rest.split_first_chunk() {
        let found = Block::new(block).up_to(b' ' - 1).bits();
        if found != 0 {
            return Some(bytes.len() - rest.len() + found.trailing_zeros() as usize);
        }
        rest = tail;
    }
    let at = rest.iter().position(|c| *c < b' ')?;
    Some(bytes.len() - rest.len() + at)
}

/// The position of the first CR or LF at or after `from`.
pub(crate) fn find_line_end(bytes: &[u8], from: usize) -> Option<usize> {
    match find_control(bytes, from) {
        Some(at) if matches!(bytes.get(at), Some(b'\r' | b'\n')) => Some(at),
        _ => find_line_end_slowly(bytes, from),
    }
}

/// The same search for rare cases: the last bytes of a message without a body, control characters.
#[cold]
#[inline(never)]
fn find_line_end_slowly(bytes: &[u8], from: usize) -> Option<usize> {
    memchr::memchr2(b'\r', b'\n', bytes.get(from..)?).map(|found| from + found)
}

/// The place of `inner` in `outer`. `None`: it is no part of `outer`.
pub fn span_in(outer: &[u8], inner: &[u8]) -> Option<core::ops::Range<usize>> {
    let start = (inner.as_ptr() as usize).checked_sub(outer.as_ptr() as usize)?;
    let end = start.checked_add(inner.len())?;
    (end <= outer.len()).then_some(start..end)
}

/// Whether `text` has a control character other than tab: one of ASCII, or U+0080 to U+009F in UTF-8 or as a
/// single byte.
pub(crate) fn has_control(text: &[u8]) -> bool {
    // This takes no branch for each byte.
    let (found, bits) = text.iter().fold((false, 0), |(found, bits), &c| {
        let is_control = ((c < b' ') & (c != b'\t')) | (c == 0x7f);
        (found | is_control, bits | c)
    });
    found || (bits >= 0x80 && has_c1(text))
}

/// Whether `text` has one of U+0080 to U+009F. Bytes of these values are also parts of other characters in
/// UTF-8.
#[cold]
fn has_c1(text: &[u8]) -> bool {
    let is_control = |c: char| u8::try_from(c).is_ok_and(is_c1);
    let mut chunks = text.utf8_chunks();
    chunks.any(|chunk| chunk.valid().contains(is_control) || chunk.invalid().iter().any(|c| is_c1(*c)))
}

/// Whether a byte is a control character in ISO 8859, U+0080 to U+009F: terminals take U+009B for ESC and
/// `[`.
pub(crate) const fn is_c1(c: u8) -> bool {
    matches!(c, 0x80..=0x9f)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn line_ends_are_found_wherever_they_are() {
        for len in 0..70 {
            for at in 0..len {
                for end in [b'\r', b'\n'] {
                    let mut text = vec![b'x'; len];
                    text[at] = end;
                    for from in 0..=len {
                        let expected = (from <= at).then_some(at);
                        assert_eq!(find_line_end(&text, from), expected, "{len} {at} {from}");
                    }
                }
            }
        }
        assert_eq!(find_line_end(b"x", 2), None);
        assert_eq!(find_line_end(b"a\tb\0c\x1f\x80\xff\rdefghijklmnop", 0), Some(8));
    }

    #[test]
    fn bytes_are_found_in_a_block() {
        for at in 0..16 {
            let mut block = *b"Aa;;9 \xba\x39\x3b--zzzz\n";
            assert_eq!(find_in_block(&block, b':'), None);
            block[at] = b':';
            assert_eq!(find_in_block(&block, b':'), Some(at));
            block[15] = b':';
            assert_eq!(find_in_block(&block, b':'), Some(at));
        }
    }
}

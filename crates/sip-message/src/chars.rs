//! Character classes of RFC 3261 §25.1.

const TOKEN: u8 = 1;
const DIGIT: u8 = 2;
const HEX: u8 = 4;
const SPACE: u8 = 8;

const CLASS: [u8; 256] = {
    let mut table = [0u8; 256];
    let mut i = 0;
    while i < 256 {
        let c = i as u8;
        if c.is_ascii_alphanumeric() {
            table[i] |= TOKEN;
        }
        if c.is_ascii_digit() {
            table[i] |= DIGIT;
        }
        if c.is_ascii_hexdigit() {
            table[i] |= HEX;
        }
        i += 1;
    }
    let marks = b"-.!%*_+`'~";
    let mut j = 0;
    while j < marks.len() {
        table[marks[j] as usize] |= TOKEN;
        j += 1;
    }
    table[b' ' as usize] |= SPACE;
    table[b'\t' as usize] |= SPACE;
    table[b'\r' as usize] |= SPACE;
    table[b'\n' as usize] |= SPACE;
    table
};

const fn has(c: u8, class: u8) -> bool {
    CLASS[c as usize] & class != 0
}

/// `token` characters.
pub const fn is_token(c: u8) -> bool {
    has(c, TOKEN)
}

/// Space, tab, and the CR and LF that folding leaves inside a value.
pub const fn is_space(c: u8) -> bool {
    has(c, SPACE)
}

/// Whether all of `text` is a token, and there is some.
pub fn is_token_text(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(|&c| is_token(c))
}

/// Without white space (folding included) at both ends.
pub fn trim(mut text: &[u8]) -> &[u8] {
    while let [first, rest @ ..] = text
        && is_space(*first)
    {
        text = rest;
    }
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

/// Splits at the first `separator` outside quotes: (before, after).
pub fn split_once(text: &[u8], separator: u8) -> (&[u8], Option<&[u8]>) {
    match memchr::memchr(separator, text) {
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

/// Where `inner`, a part of `outer`, lies in it. `None` if it is no part of it.
pub fn span_in(outer: &[u8], inner: &[u8]) -> Option<core::ops::Range<usize>> {
    let start = (inner.as_ptr() as usize).checked_sub(outer.as_ptr() as usize)?;
    let end = start.checked_add(inner.len())?;
    (end <= outer.len()).then_some(start..end)
}

//! The fast path for Via, From and To as nearly all senders write them, read in one go.
//!
//! Each function takes the message from the start of a value on, and the value's length. A scan that may look
//! beyond the value goes by the block to its end. `None`: the value is written otherwise, or is malformed.
//! Then the general parser decides, which the fast path must not contradict.

use super::via::Known;
use super::{NameAddr, Via};
use crate::chars::{find_either, host_len, token_len, uri_len, value_len};
use crate::host::Host;
use crate::number;
use crate::params::Params;

/// Whether `text` has `word` at `at`.
#[inline(always)]
fn has<const N: usize>(text: &[u8], at: usize, word: &[u8; N]) -> bool {
    text.get(at..).and_then(<[u8]>::first_chunk) == Some(word)
}

/// Reads `SIP/2.0/UDP host:port;branch=…;rport`, or another transport of three letters. The parameters have
/// no white space and no quotes.
pub(crate) fn via(text: &[u8], len: usize) -> Option<Via<'_>> {
    let value = text.get(..len)?;
    let transport = value.get(8..11)?;
    if !has(text, 0, b"SIP/2.0/") || text.get(11) != Some(&b' ') || token_len(transport) != 3 {
        return None;
    }
    let host_at = 12;
    let host_text = text.get(host_at..host_at + host_len(text.get(host_at..)?))?;
    let host = Host::parse(host_text)?;
    let mut at = host_at + host_text.len();
    let mut port = None;
    if text.get(at) == Some(&b':') {
        let (number, digits) = port_number(text.get(at + 1..)?)?;
        port = Some(number);
        at += 1 + digits;
    }
    let params_at = at;
    let mut known = Known::default();
    let mut other = false;
    while at != len {
        at = param(text, at, &mut known, &mut other).filter(|at| *at <= len)?;
    }
    Some(Via {
        text: value,
        transport,
        host,
        host_text,
        port,
        params: Params::new(value.get(params_at..)?),
        known,
    })
}

/// Reads the parameter at `at`. Returns where it ends.
#[inline(always)]
fn param<'a>(text: &'a [u8], at: usize, known: &mut Known<'a>, other: &mut bool) -> Option<usize> {
    let bare = |from: usize| {
        let rest = text.get(from..)?;
        rest.get(..value_len(rest))
    };
    if has(text, at, b";branch=") {
        let value = bare(at + 8)?;
        let new = known.branch.replace(value).is_none();
        return new.then_some(at + 8 + value.len());
    }
    if has(text, at, b";rport") && known.rport.is_none() {
        return match text.get(at + 6) {
            Some(b'=') => {
                let value = bare(at + 7)?;
                known.rport = Some(number::port(value));
                Some(at + 7 + value.len())
            }
            None | Some(b';' | b'\r') => {
                known.rport = Some(None);
                Some(at + 6)
            }
            _ => None,
        };
    }
    if has(text, at, b";received=") && known.received.is_none() {
        let value = bare(at + 10)?;
        known.received = Some(value);
        return Some(at + 10 + value.len());
    }
    // One parameter that is none of these cannot stand there twice.
    if text.get(at) != Some(&b';') || *other {
        return None;
    }
    let rest = text.get(at + 1..)?;
    let name_len = token_len(rest);
    if matches!(name_len, 0 | 5 | 6 | 8) {
        return None;
    }
    *other = true;
    match rest.get(name_len) {
        Some(b'=') => {
            let value = bare(at + 2 + name_len)?;
            Some(at + 2 + name_len + value.len())
        }
        None | Some(b';' | b'\r') => Some(at + 1 + name_len),
        _ => None,
    }
}

/// A port at the front of `text`, and the number of its digits.
#[inline(always)]
fn port_number(text: &[u8]) -> Option<(u16, usize)> {
    let mut value = 0u32;
    for (count, c) in text.iter().enumerate().take(6) {
        if !c.is_ascii_digit() {
            return Some((u16::try_from(value).ok().filter(|p| *p != 0)?, count));
        }
        value = value * 10 + u32::from(c - b'0');
    }
    None
}

/// Reads `"Display" <uri>;tag=…` or less of it.
pub(super) fn name_addr(text: &[u8], len: usize) -> Option<NameAddr<'_>> {
    let value = text.get(..len)?;
    let mut at = 0;
    if text.first() == Some(&b'"') {
        let close = 1 + find_either(text.get(1..)?, b'"', b'\\')?;
        if text.get(close) != Some(&b'"') || close >= len {
            return None;
        }
        at = close + 1;
    }
    let display = value.get(..at)?;
    if text.get(at) == Some(&b' ') {
        at += 1;
    }
    if text.get(at) != Some(&b'<') {
        return None;
    }
    let rest = text.get(at + 1..)?;
    let uri = rest.get(..uri_len(rest))?;
    at += 1 + uri.len();
    if text.get(at) != Some(&b'>') || uri.is_empty() || at >= len {
        return None;
    }
    let params_at = at + 1;
    let mut tag = None;
    if params_at != len {
        if !has(text, params_at, b";tag=") {
            return None;
        }
        let value = value.get(params_at + 5..)?;
        if value_len(text.get(params_at + 5..)?) != value.len() {
            return None;
        }
        tag = Some(value);
    }
    Some(NameAddr {
        display,
        uri,
        params: Params::new(value.get(params_at..)?),
        bracketed: true,
        tag,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    /// Compares with the general parsers, with bytes after the value and without.
    fn check(value: &[u8]) -> (bool, bool) {
        let mut found = (false, false);
        for tail in [
            &b"\r\nContent-Length: 0\r\nSubject: x\r\n\r\n"[..],
            b", x;tag=1;branch=2",
            b";tag=1",
            b"",
        ] {
            let text: Vec<u8> = [value, tail].concat();
            if let Some(via) = via(&text, value.len()) {
                assert_eq!(Some(via), Via::parse_any(value), "{}", value.escape_ascii());
                found.0 = true;
            }
            if let Some(addr) = name_addr(&text, value.len()) {
                assert_eq!(Some(addr), NameAddr::parse_any(value), "{}", value.escape_ascii());
                found.1 = true;
            }
        }
        found
    }

    #[test]
    fn what_is_usual_is_read_here() {
        for text in [
            &b"SIP/2.0/UDP 192.0.2.1:5060;branch=z9hG4bK1"[..],
            b"SIP/2.0/TCP a.example;rport;branch=z9hG4bK776asdhds;received=192.0.2.1",
            b"SIP/2.0/UDP 192.0.2.1:5060;branch=z9hG4bK0123456789abcdef00;rport=5061;tz=0.1.2-0123456789abcdef",
            b"SIP/2.0/UDP a",
        ] {
            assert!(check(text).0, "{}", text.escape_ascii());
        }
        for text in [
            &b"<sip:a@b>"[..],
            b"\"A B\" <sip:a@b;lr>;tag=1",
            b"<sip:a@b>;tag=",
        ] {
            assert!(check(text).1, "{}", text.escape_ascii());
        }
    }

    #[test]
    fn the_general_parser_is_never_contradicted() {
        let values: [&[u8]; 5] = [
            b"SIP/2.0/UDP 192.0.2.1:5060;branch=z9hG4bK1;rport;x=y",
            b"SIP/2.0/UDP a.example;rport=1;received=1.2.3.4;branch=z9hG4bK0123456789abcdef",
            b"SIP/2.0/UDP a;tz;ttl=1;branch=;rport=",
            b"\"A B\" <sip:a@b:5060;lr>;tag=123456789012345678",
            b"<sip:a%41@b>;tag=\"x\"",
        ];
        let bytes = b"\0\r\n\t ;,=:\"\\<>%@[]./aZ09\x7f\x80";
        for value in values {
            for at in 0..=value.len() {
                let _ = check(&value[..at]);
                let _ = check(&value[at..]);
                for &c in bytes {
                    let mut changed = value.to_vec();
                    changed.insert(at, c);
                    let _ = check(&changed);
                    if at < value.len() {
                        changed = value.to_vec();
                        changed[at] = c;
                        let _ = check(&changed);
                        // A piece of the value once more: parameters that repeat.
                        changed = [value, &value[at..]].concat();
                        let _ = check(&changed);
                    }
                }
            }
        }
    }
}

//! Option tags that a request requires and this server does not know (RFC 3261 §8.2.2.3, §16.3 step 5). The
//! same rule holds for the registrar and the proxy.

use alloc::vec::Vec;

use sip_message::{HeaderName, Message};
use smallvec::SmallVec;

/// The most tags that a refusal names, each once. So a datagram with a spoofed source address gets no large
/// response.
const MOST: usize = 8;

/// The option tags that are not known.
pub(crate) type Tags<'a> = SmallVec<[&'a [u8]; MOST]>;

/// The tags in `name` (Require, Proxy-Require) that are none of `known`.
pub(crate) fn unknown<'a>(message: &Message<'a>, name: HeaderName, known: &[&[u8]]) -> Tags<'a> {
    let mut tags = Tags::new();
    for value in message.values(name) {
        let is_it = |other: &&[u8]| other.eq_ignore_ascii_case(value.text);
        if tags.len() < MOST && !known.iter().any(is_it) && !tags.iter().any(is_it) {
            tags.push(value.text);
        }
    }
    tags
}

/// Appends the line of a 420 that names `tags` (§20.40); nothing if there are none.
pub(crate) fn write_unsupported(out: &mut Vec<u8>, tags: &[&[u8]]) {
    for (number, tag) in tags.iter().enumerate() {
        out.extend_from_slice(if number == 0 { b"Unsupported: " } else { b", " });
        out.extend_from_slice(tag);
    }
    if !tags.is_empty() {
        out.extend_from_slice(b"\r\n");
    }
}

//! Bytes given whole and in pieces: both must yield the same.

use sip_core::limits::Limits;
use sip_message::HeaderIndex;

/// Bytes of headers and of a body: small, so that they are met.
pub(crate) const HEADERS: usize = 1024;
pub(crate) const BODY: usize = 512;

pub(crate) fn limits() -> Limits {
    Limits {
        header_bytes: HEADERS,
        body_bytes: BODY,
        ..Limits::default()
    }
}

/// What the bytes yielded, one entry each: a letter for its kind, and what it says.
pub(crate) type Seen = Vec<(char, Vec<u8>)>;

/// Feeds `bytes` to a decoder at once, and to another in pieces of `size`.
pub(crate) fn compare<D>(
    bytes: &[u8],
    size: u8,
    new: impl Fn() -> D,
    feed: impl Fn(&mut D, &[u8], &mut Seen),
) {
    let (mut whole, mut pieces) = (Seen::new(), Seen::new());
    feed(&mut new(), bytes, &mut whole);
    let mut decoder = new();
    for piece in bytes.chunks(usize::from(size).max(1)) {
        feed(&mut decoder, piece, &mut pieces);
    }
    assert_eq!(whole, pieces);
}

/// What a stream carries is read like any message.
pub(crate) fn read(message: &[u8]) {
    let _ = sip_message::parse(message, &mut HeaderIndex::default(), 64);
}

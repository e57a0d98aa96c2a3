//! What one peer sends on a TCP or TLS connection: framed whole and in pieces.
//!
//! The first byte is the size of the pieces; the rest is the peer's. However it is cut, it yields the same
//! messages; nothing is held beyond the bounds, and nothing between messages.

use sip_core::transport::framing::{Framed, Framer};

use crate::pieces::{BODY, HEADERS, Seen, compare, limits, read};

/// Takes one input.
pub fn run(data: &[u8]) {
    if let [size, bytes @ ..] = data {
        compare(bytes, *size, || Framer::new(&limits()), feed);
    }
}

fn feed(framer: &mut Framer, mut input: &[u8], seen: &mut Seen) {
    loop {
        seen.push(match framer.next(&mut input) {
            Framed::Message(message) => {
                assert!(message.len() <= HEADERS + BODY);
                read(message);
                ('m', message.to_vec())
            }
            Framed::KeepAlivePing => ('i', Vec::new()),
            Framed::KeepAlivePong => ('o', Vec::new()),
            Framed::Error(error) => ('e', error.head.to_vec()),
            Framed::Incomplete => break,
        });
    }
    assert!(framer.held_bytes() <= 2 * (HEADERS + BODY));
    assert!(framer.is_mid_message() || framer.held_bytes() == 0);
}

//! Lines as URIs: each is read, each is equal to itself, and equality is symmetric.

use sip_message::Uri;

use crate::message;

/// Takes one input.
pub fn run(bytes: &[u8]) {
    let mut before: Option<Uri<'_>> = None;
    for line in bytes.split(|c| *c == b'\n').take(4) {
        message::uri(line);
        message::as_anything(line);
        let Ok(uri) = Uri::parse(line) else { continue };
        if let Some(before) = before {
            assert_eq!(before.eq(&uri), uri.eq(&before), "symmetric");
        }
        before = Some(uri);
    }
}

//! Lines as URIs: each is read, each is equal to itself, and equality is symmetric.
#![no_main]

#[path = "../../crates/sip-message/tests/common/mod.rs"]
mod common;

use libfuzzer_sys::fuzz_target;
use sip_message::Uri;

fuzz_target!(|bytes: &[u8]| {
    let mut before: Option<Uri<'_>> = None;
    for line in bytes.split(|c| *c == b'\n').take(4) {
        common::uri(line);
        common::as_anything(line);
        let Ok(uri) = Uri::parse(line) else { continue };
        if let Some(before) = before {
            assert_eq!(before == uri, uri == before, "symmetric");
        }
        before = Some(uri);
    }
});

//! Any bytes as a datagram: parse, then read everything.
#![no_main]

#[path = "../../crates/sip-message/tests/common/mod.rs"]
mod common;

use libfuzzer_sys::fuzz_target;
use sip_message::HeaderIndex;

fuzz_target!(|bytes: &[u8]| {
    common::exercise_bytes(bytes, &mut HeaderIndex::new());
});

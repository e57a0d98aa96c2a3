//! Any bytes as the value of an Authorization or WWW-Authenticate header.
#![no_main]

#[path = "../../crates/sip-message/tests/common/mod.rs"]
mod common;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    common::auth(bytes);
});

//! Any bytes as a datagram: parsed, then everything is read. The short way to a Call-ID, by which
//! datagrams find their worker, agrees with the parser.

use sip_core::affinity;
use sip_message::{HeaderIndex, HeaderName};

use crate::message;

/// Takes one input.
pub fn run(bytes: &[u8]) {
    let mut index = HeaderIndex::new();
    message::exercise_bytes(bytes, &mut index);
    let Ok(parsed) = sip_message::parse(bytes, &mut index, message::MAX_HEADERS) else {
        return;
    };
    if parsed.defect().is_none()
        && let Some(call_id) = affinity::call_id_of(bytes)
    {
        assert_eq!(parsed.value(HeaderName::CallId), Some(call_id), "both ways to it");
    }
}

//! Parsing, reading values and forwarding allocate nothing once their memory has grown to the
//! traffic's size. Each thread counts for itself: the test harness allocates beside.

#[path = "../benches/forward/mod.rs"]
mod forward;

use std::hint::black_box;

use counting_allocator::{Counting, allocations};
use sip_message::HeaderIndex;
use sip_message::write::Edits;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn forwarding_allocates_nothing_after_warm_up() {
    let mut memory = HeaderIndex::new();
    let (mut edits, mut out) = (Edits::new(), Vec::new());
    let mut once = || {
        let message = forward::index(black_box(forward::INVITE), &mut memory);
        black_box(forward::read_values(&message));
        forward::forward(&message, &mut edits, &mut out);
        black_box(out.len());
    };
    once();
    let before = allocations();
    assert!(before > 0, "the allocator counts");
    (0..1_000).for_each(|_| once());
    assert_eq!(allocations() - before, 0);

    let text = String::from_utf8(out).unwrap();
    let added = "Via: SIP/2.0/UDP 198.51.100.1:5060;branch=z9hG4bK81985529216486895\r\n\
        Record-Route: <sip:198.51.100.1:5060;lr>\r\nVia: SIP/2.0/UDP 192.0.2.47:5060";
    assert!(text.contains(added), "{text}");
    assert!(
        text.contains("b2a9e4c36;rport=5060;received=192.0.2.47\r\nMax-Forwards: 69\r\n"),
        "{text}"
    );
}

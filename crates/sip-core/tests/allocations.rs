//! Nothing is allocated for a message without state, and little for a transaction.
//!
//! Each thread counts for itself: the test harness allocates beside.
#![expect(unsafe_code, reason = "a global allocator that counts")]

#[path = "common/call.rs"]
mod call;
#[path = "common/mod.rs"]
mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use call::Call;
use sip_core::config::StateMode;

struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

fn note() {
    let _ = COUNT.try_with(|count| count.set(count.get() + 1));
}

// SAFETY: everything is the system allocator's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note();
        // SAFETY: the caller keeps the contract.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract.
        unsafe { System.dealloc(at, layout) }
    }
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note();
        // SAFETY: the caller keeps the contract.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations of `calls` calls.
fn count(call: &mut Call, calls: u32) -> u64 {
    let before = COUNT.get();
    for _ in 0..calls {
        call.invite();
        call.rest();
        call.pass(100_000);
    }
    COUNT.get() - before
}

#[test]
fn allocations_in_steady_state() {
    let mut stateless = Call::new(StateMode::Stateless);
    count(&mut stateless, 10);
    assert_eq!(count(&mut stateless, 100), 0, "six messages without state");
    let c = *stateless.endpoint.counters();
    assert_eq!((c.relayed_stateless, c.responses_relayed_stateless), (330, 330));

    // Transactions last 32 s: as many calls again as live in that time, and tables are as large as
    // they will be.
    let mut stateful = Call::new(StateMode::Transaction);
    count(&mut stateful, 1_000);
    let calls = 1_000;
    let allocations = count(&mut stateful, calls);
    let c = *stateful.endpoint.counters();
    assert_eq!(
        (
            c.relayed_stateful,
            c.relayed_stateless,
            c.responses_relayed_stateful
        ),
        (4_000, 2_000, 6_000)
    );
    assert!(stateful.endpoint.gauges().server_transactions > 500);
    // Of the INVITE: itself as received, itself as sent, its 180, the event. Of the BYE: itself
    // twice, and its 200.
    // (Once in a while a table grows.)
    let most = 7 * u64::from(calls) + 5;
    assert!(
        allocations <= most,
        "{allocations} in {calls} calls, of seven each"
    );
}

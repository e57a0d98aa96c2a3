//! Nothing is allocated for a message without state, and little for a transaction.
//!
//! Each thread counts for itself: the test harness allocates beside.

#[path = "common/call.rs"]
mod call;
#[path = "common/mod.rs"]
mod common;

use call::Call;
use counting_allocator::{Counting, allocations, held};
use sip_core::config::StateMode;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations of `calls` calls.
fn count(call: &mut Call, calls: u32) -> u64 {
    let before = allocations();
    for _ in 0..calls {
        call.invite();
        call.rest();
        call.pass(100_000);
    }
    allocations() - before
}

/// Once everything is over, as much is held as the times before, to the byte, whatever the end of the
/// calls: ended, without a response after a 180, or without any response.
#[test]
fn what_quiet_leaves_does_not_grow() {
    let mut calls = Call::new(StateMode::Transaction);
    let mut quiet = || {
        for number in 0..150 {
            calls.invite();
            match number % 3 {
                0 => calls.rest(),
                1 => calls.ring(),
                _ => {}
            }
            calls.pass(100_000);
        }
        // Timer C and all that follows it.
        for _ in 0..40 {
            calls.pass(10_000_000);
        }
        while calls.endpoint.poll_event().is_some() {}
        assert!(calls.endpoint.is_idle());
        let gauges = calls.endpoint.gauges();
        assert_eq!((gauges.server_transactions, gauges.timers), (0, 0));
        held()
    };
    // At first a table grows once or twice, as it has room for few at a time.
    for _ in 0..10 {
        quiet();
    }
    let kept = quiet();
    for _ in 0..20 {
        assert_eq!(quiet(), kept);
    }
}

#[test]
fn allocations_in_steady_state() {
    let mut stateless = Call::new(StateMode::Stateless);
    count(&mut stateless, 10);
    assert_eq!(count(&mut stateless, 100), 0, "six messages without state");
    let c = *stateless.endpoint.counters();
    assert_eq!((c.relayed_stateless, c.responses_relayed_stateless), (330, 330));

    // Nor does a rule that compares the URI, where that is in the one spelling.
    let mut config = common::config();
    config.state = StateMode::Stateless;
    config.routes[0].when.uri = regex::bytes::Regex::new("^sip:[^@]*@(192|\\[2001)").ok();
    for uri in ["sip:bob@192.0.2.9:5060", "sip:bob@[2001:db8::9]"] {
        let mut call = Call::to(uri, &config);
        let again = |call: &mut Call| (0..100).for_each(|_| call.invite_again());
        call.invite();
        again(&mut call);
        let before = allocations();
        again(&mut call);
        assert_eq!(allocations() - before, 0, "{uri}");
        assert_eq!(call.endpoint.counters().relayed_stateless, 201, "{uri}");
    }

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

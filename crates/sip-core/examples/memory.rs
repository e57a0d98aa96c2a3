//! Memory of transactions: calls at a given rate under virtual time, RFC timers, through one core.
//!
//! ```sh
//! cargo run --release -p sip-core --example memory            # 12,000 calls/s for 40 s
//! cargo run --release -p sip-core --example memory -- 2000 40
//! ```
//!
//! Prints what the core holds on its heap (a counting allocator: exact, whatever the machine) with
//! 32 s of finished transactions, what that is for each, what a live one (an INVITE that rings)
//! holds, and what is left after all timers have fired.

#![expect(clippy::print_stdout, reason = "an example")]

#[path = "../tests/common/call.rs"]
mod call;
#[path = "../tests/common/mod.rs"]
mod common;

use call::Call;
use counting_allocator::Counting;
use sip_core::config::StateMode;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn held() -> i64 {
    counting_allocator::held().bytes()
}

fn megabytes(bytes: i64) -> f64 {
    bytes as f64 / 1e6
}

fn main() {
    let mut args = std::env::args().skip(1);
    let rate: u64 = args.next().map_or(12_000, |a| a.parse().expect("a number"));
    let seconds: u64 = args.next().map_or(40, |a| a.parse().expect("a number"));

    let mut calls = Call::new(StateMode::Transaction);
    let empty = held();
    let us_per_call = 1_000_000 / rate;
    calls.step_us = 1;
    for _ in 0..rate * seconds {
        calls.invite();
        calls.rest();
        calls.pass(us_per_call.saturating_sub(6));
    }
    let gauges = calls.endpoint.gauges();
    let transactions = gauges.server_transactions + gauges.client_transactions;
    let full = held() - empty;
    println!(
        "finished: {:.0} MB for {transactions} transactions and {} timers at {rate} calls/s: {} bytes a transaction, {} a call",
        megabytes(full),
        gauges.timers,
        full / transactions as i64,
        full / (rate * 32) as i64,
    );
    calls.pass(200_000_000);
    let gauges = calls.endpoint.gauges();
    println!(
        "after quiet: {:.0} MB kept for {} transactions and {} timers",
        megabytes(held() - empty),
        gauges.server_transactions + gauges.client_transactions,
        gauges.timers,
    );

    let mut calls = Call::new(StateMode::Transaction);
    let before = held();
    let live = 20_000;
    for _ in 0..live {
        calls.invite();
        calls.ring();
    }
    let gauges = calls.endpoint.gauges();
    let transactions = gauges.server_transactions + gauges.client_transactions;
    println!(
        "live: {} bytes for an INVITE of 800 that rings, which has {} transactions",
        (held() - before) / live,
        transactions as f64 / live as f64,
    );
}

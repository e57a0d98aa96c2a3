//! A fixed number of messages through the core, for counting instructions: see
//! `benches/forward.rs`.
#![expect(clippy::print_stdout, reason = "an example")]

#[path = "../tests/common/call.rs"]
mod call;
#[path = "../tests/common/mod.rs"]
mod common;

use call::Call;
use sip_core::config::StateMode;

fn main() {
    let mut args = std::env::args().skip(1);
    let what = args.next().unwrap_or_else(|| "stateless".to_string());
    let count: u32 = args.next().and_then(|n| n.parse().ok()).unwrap_or(20_000);
    let state = match what.as_str() {
        "stateful" => StateMode::Transaction,
        _ => StateMode::Stateless,
    };
    let mut call = Call::new(state);
    call.invite();
    let started = std::time::Instant::now();
    for _ in 0..count {
        if what == "invite" {
            call.invite_again();
        } else {
            call.invite();
            call.rest();
            call.pass(2_500);
        }
    }
    println!(
        "{what} {count}: {} ns each",
        started.elapsed().as_nanos() / u128::from(count.max(1))
    );
}

//! What a message costs in the core: parsing, routing and forwarding, without any IO.
//!
//! - `cargo bench -p sip-core --bench forward` (add `--profile fast` while developing).
//! - Instructions, exactly and on any machine, of the core alone: `cargo xtask instructions`.
//!
//! The INVITE has 14 header fields and about 800 bytes. A call is six messages: INVITE, 180, 200,
//! ACK, BYE, 200; making them in the place of both ends is part of a call's figure here, and not
//! of its instructions.

#[path = "../tests/common/call.rs"]
mod call;
#[path = "../tests/common/mod.rs"]
mod common;

use call::Call;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use sip_core::config::StateMode;

fn forward(c: &mut Criterion) {
    let mut group = c.benchmark_group("forward");
    group.throughput(Throughput::Elements(1));
    let mut call = Call::new(StateMode::Stateless);
    call.invite();
    group.bench_function("stateless INVITE", |b| b.iter(|| call.invite_again()));
    for (name, state) in [
        ("stateless call", StateMode::Stateless),
        ("stateful call", StateMode::Transaction),
    ] {
        let mut call = Call::new(state);
        // Transactions end after 32 s: about 12,000 calls are alive at any time.
        let one = |call: &mut Call| {
            call.invite();
            call.rest();
            call.pass(2_500);
        };
        (0..20_000).for_each(|_| one(&mut call));
        group.bench_function(name, |b| b.iter(|| one(&mut call)));
    }
    group.finish();
}

criterion_group!(benches, forward);
criterion_main!(benches);

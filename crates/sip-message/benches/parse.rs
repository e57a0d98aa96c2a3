//! Time to parse, to read what a proxy needs, and to forward. `cargo bench -p sip-message`.

mod forward;

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use sip_message::HeaderIndex;
use sip_message::write::Edits;

fn parse(c: &mut Criterion) {
    let mut group = c.benchmark_group("invite");
    group.throughput(Throughput::Bytes(forward::INVITE.len() as u64));
    let mut memory = HeaderIndex::new();
    group.bench_function("parse", |b| {
        b.iter(|| forward::index(black_box(forward::INVITE), &mut memory).end_offset());
    });
    group.bench_function("parse+values", |b| {
        b.iter(|| forward::read_values(&forward::index(black_box(forward::INVITE), &mut memory)));
    });
    let (mut edits, mut out) = (Edits::new(), Vec::new());
    group.bench_function("parse+values+forward", |b| {
        b.iter(|| {
            let message = forward::index(black_box(forward::INVITE), &mut memory);
            let sum = forward::read_values(&message);
            forward::forward(&message, &mut edits, &mut out);
            sum + out.len() as u64
        });
    });
    group.finish();
}

criterion_group!(benches, parse);
criterion_main!(benches);

//! What it costs to ask whether a message is heard.

#[path = "../tests/common/mod.rs"]
mod common;

use std::hint::black_box;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use common::{Bench, config, udp_flow};
use criterion::{Criterion, criterion_group, criterion_main};
use sip_core::admission::{Source, SourceLists};
use sip_core::config::{Abuse, Network};
use sip_core::transport::Flow;

fn from(number: u32) -> Flow {
    let remote = SocketAddr::from((Ipv4Addr::from_bits(0x0a00_0000 + number), 5060));
    Flow {
        remote,
        ..udp_flow("192.0.2.1:5060")
    }
}

fn standing(banned: u32) -> Arc<SourceLists> {
    let source = |n: u32| Source::of(Ipv4Addr::from_bits(0xc000_0000 + 7 * n).into());
    Arc::new(SourceLists {
        banned: (0..banned).map(source).collect(),
        ..SourceLists::default()
    })
}

fn admission(c: &mut Criterion) {
    let mut group = c.benchmark_group("admission");
    let mut limited = config();
    limited.abuse = Abuse {
        rate: 1_000_000,
        burst: 1_000_000,
        sources: 65_536,
        ..Abuse::default()
    };
    let mut strict = limited.clone();
    (strict.abuse.rate, strict.abuse.burst) = (1, 1);
    strict.trust = (0..20u8)
        .map(|n| Network {
            address: [172, 16, n, 0].into(),
            prefix_len: 24,
        })
        .collect();
    for (name, config, sources, banned) in [
        ("off", config(), 1, 0),
        ("10,000 banned, others", config(), 1_000, 10_000),
        ("limited, 1 source", limited.clone(), 1, 0),
        ("limited, 30,000 sources", limited.clone(), 30_000, 0),
        ("limited, 30,000 sources, 10,000 banned", limited, 30_000, 10_000),
        ("refused, 1 source, 20 trusted networks", strict.clone(), 1, 0),
        ("flood of 4,000,000 sources", strict, 4_000_000, 0),
    ] {
        let mut bench = Bench::new(&config);
        bench.endpoint.set_source_lists(standing(banned));
        let flows: Vec<Flow> = (0..sources.min(4096)).map(from).collect();
        let mut number = 0u32;
        group.bench_function(name, |b| {
            b.iter(|| {
                number = number.wrapping_add(1);
                bench.now_us += 1;
                let now = bench.now();
                let flow = if sources > 4096 {
                    from(number.wrapping_mul(2_654_435_761) % sources)
                } else {
                    flows[number as usize % flows.len()]
                };
                black_box(bench.endpoint.admit(now, black_box(&flow)))
            })
        });
        while bench.endpoint.poll_event().is_some() {}
    }
    group.finish();
}

criterion_group!(benches, admission);
criterion_main!(benches);

//! A fixed number of REGISTER refreshes through the core, for counting instructions:
//!
//! ```text
//! cargo build --release -p sip-core --example register
//! valgrind --tool=callgrind --toggle-collect='*Endpoint::handle_message*' \
//!     target/release/examples/register memory 10000
//! ```
//!
//! divided by the number. The words are those of `[location] durability`: `memory`, `async`,
//! `commit` (the answer of the store is outside of the count). The phone's REGISTER has 12 header
//! fields, an instance and no credentials; 1,000 phones refresh in turn.
#![expect(clippy::print_stdout, reason = "an example")]

#[path = "../tests/common/mod.rs"]
mod common;

use std::sync::Arc;

use common::{Shared, config, keys, udp_flow};
use sip_core::config::{Config, Durability, StateMode};
use sip_core::endpoint::{Endpoint, Handled};
use sip_core::id::WorkerId;
use sip_core::query::Answer;
use sip_core::time::{Instant, Now};
use sip_core::transport::TransmitBatch;

const PHONES: u32 = 1_000;

fn register(phone: u32, cseq: u32) -> Vec<u8> {
    format!(
        "REGISTER sip:example.com SIP/2.0\r\n\
         Via: SIP/2.0/UDP 192.168.178.21:5060;rport;branch=z9hG4bKPj{phone:08x}{cseq:08x}\r\n\
         Max-Forwards: 70\r\n\
         From: \"Phone\" <sip:user{phone:07}@example.com>;tag=a73kszlfl\r\n\
         To: \"Phone\" <sip:user{phone:07}@example.com>\r\n\
         Call-ID: {phone:024x}@192.168.178.21\r\n\
         CSeq: {cseq} REGISTER\r\n\
         User-Agent: Example Phone 2.1 (b47.1)\r\n\
         Supported: path, gruu\r\n\
         Contact: <sip:u{phone:07}@192.168.178.21:5060;transport=udp>;\
         +sip.instance=\"<urn:uuid:{phone:08x}-7dec-11d0-a765-00a0c91e6bf6>\"\r\n\
         Expires: 3600\r\n\
         Allow: INVITE, ACK, BYE, CANCEL, OPTIONS, MESSAGE\r\n\
         Content-Length: 0\r\n\r\n"
    )
    .into_bytes()
}

fn main() {
    let mut args = std::env::args().skip(1);
    let what = args.next().unwrap_or_else(|| "memory".to_string());
    let count: u32 = args.next().and_then(|n| n.parse().ok()).unwrap_or(100_000);
    let durability = match what.as_str() {
        "commit" => Durability::Commit,
        "async" => Durability::Async,
        _ => Durability::Memory,
    };
    let mut config = Config {
        state: StateMode::Stateless,
        ..config()
    };
    config.registrar.durability = durability;
    let shared = Arc::new(Shared::default());
    let mut endpoint = Endpoint::new(&config, &keys(9), WorkerId(0), shared);
    let mut batch = TransmitBatch::new();
    let flow = udp_flow("203.0.113.9:40404");
    let mut now_us = 1_000_000;
    let mut spent = std::time::Duration::ZERO;
    for number in 0..count + PHONES {
        let text = register(number % PHONES, 1 + number / PHONES);
        now_us += 10;
        let now = Now {
            instant: Instant::from_micros(now_us),
            unix_ms: 1_800_000_000_000 + now_us / 1000,
        };
        let started = std::time::Instant::now();
        let handled = endpoint.handle_message(now, flow, &text);
        spent += started.elapsed();
        assert_eq!(handled, Handled::Here);
        while let Some(query) = endpoint.poll_query() {
            if let Some(id) = query.id {
                endpoint.handle_answer(now, id, Answer::Saved(Ok(())));
            }
        }
        let mut answered = false;
        while endpoint.poll_transmit(&mut batch) {
            answered = batch
                .items()
                .iter()
                .all(|item| batch.message(item).starts_with(b"SIP/2.0 200"));
        }
        assert!(answered, "a REGISTER was not answered 200");
        while endpoint.poll_event().is_some() {}
    }
    let each = spent.as_nanos() / u128::from(count + PHONES);
    println!("{what}: {count} refreshes of {PHONES} phones: {each} ns each");
}

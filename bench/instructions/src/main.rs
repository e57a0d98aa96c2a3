//! A fixed piece of the core's work, whose instructions `cargo xtask instructions` counts.
//!
//! `instructions (parse|stateless|stateful|register|ping) COUNT` does the work COUNT times, always the
//! same way: seeds, times and texts are fixed. What is counted is what happens inside the functions
//! called `counted_*`; making the messages in the place of both ends is outside of them. The
//! counter subtracts a short run from a long one, so nothing that happens once is in the figure.

#[path = "../../../crates/sip-core/tests/common/mod.rs"]
mod common;
mod desk;

use std::hint::black_box;

use sip_core::config::{Config, Durability, PingKind, Pings, StateMode};
use sip_core::transport::Flow;
use sip_message::HeaderIndex;

use crate::desk::Desk;

/// Virtual time between two calls. Transactions end after 32 s: about 320 calls are alive when a
/// short run ends, and as many when a long one does.
const STEP_US: u64 = 100_000;
/// Users whose registrations are refreshed in turn.
const USERS: u32 = 100;
/// Phones behind NATs, of which each step of pings finds one: as many steps as fit into the interval.
const BEHIND_NAT: u32 = PING_S * 1_000 / STEP_MS;
const PING_S: u32 = 20;
const STEP_MS: u32 = 20;
/// Header fields that the parser lets through.
const MAX_HEADERS: usize = 128;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let what = arguments.next().unwrap_or_default();
    let count = arguments.next().and_then(|n| n.parse().ok()).unwrap_or(1);
    match what.as_str() {
        "parse" => parse(count),
        "stateless" => calls(StateMode::Stateless, count),
        "stateful" => calls(StateMode::Transaction, count),
        "register" => register(count),
        "ping" => ping(count),
        _ => {
            eprintln!("usage: instructions (parse|stateless|stateful|register|ping) COUNT");
            std::process::exit(2);
        }
    }
}

/// The compiler must keep each function: the label makes them different, so that none is merged
/// with another or inlined.
macro_rules! counted {
    ($($name:ident)+) => { $(
        #[inline(never)]
        fn $name(desk: &mut Desk, text: &[u8], from_callee: bool) {
            black_box(stringify!($name));
            desk.give(text, from_callee);
        }
    )+ };
}

counted! {
    counted_invite counted_ringing counted_ok counted_ack counted_bye counted_bye_ok counted_register
}

#[inline(never)]
fn counted_timers(desk: &mut Desk) {
    desk.fire_timers();
}

#[inline(never)]
fn counted_pings(desk: &mut Desk) {
    desk.fire_pings();
}

#[inline(never)]
fn counted_ping_ok(desk: &mut Desk, flow: Flow, text: &[u8]) {
    desk.give_from(flow, text);
}

#[inline(never)]
fn counted_parse(text: &[u8], index: &mut HeaderIndex) -> usize {
    let message = sip_message::parse(black_box(text), index, MAX_HEADERS).expect("the message is valid");
    message.end_offset()
}

fn parse(count: u32) {
    let mut index = HeaderIndex::new();
    let text = desk::invite(1);
    for _ in 0..count {
        assert_eq!(counted_parse(&text, &mut index), text.len());
    }
}

/// Whole calls: INVITE, 180, 200, ACK, BYE, 200.
fn calls(state: StateMode, count: u32) {
    let mut desk = Desk::new(&Config {
        state,
        ..common::config()
    });
    for number in 0..count {
        counted_invite(&mut desk, &desk::invite(number), false);
        let invite = desk.sent(b"INVITE ");
        counted_ringing(&mut desk, &desk::response(&invite, "180 Ringing", number), true);
        desk.sent(b"SIP/2.0 180 ");
        counted_ok(&mut desk, &desk::response(&invite, "200 OK", number), true);
        // As the caller gets it.
        let ok = desk.sent(b"SIP/2.0 200 ");
        counted_ack(&mut desk, &desk::in_dialog("ACK", &ok, number), false);
        desk.sent(b"ACK ");
        counted_bye(&mut desk, &desk::in_dialog("BYE", &ok, number), false);
        let bye = desk.sent(b"BYE ");
        counted_bye_ok(&mut desk, &desk::response(&bye, "200 OK", number), true);
        desk.sent(b"SIP/2.0 200 ");
        desk.pass(STEP_US);
        counted_timers(&mut desk);
    }
}

/// Refreshes of registrations that are in memory already.
fn register(count: u32) {
    let mut config = common::config();
    config.routes.clear();
    config.state = StateMode::Stateless;
    config.registrar.durability = Durability::Memory;
    let mut desk = Desk::new(&config);
    for number in 0..USERS {
        desk.give(&desk::register(number, 1), false);
    }
    for number in 0..count {
        let text = desk::register(number % USERS, number / USERS + 2);
        counted_register(&mut desk, &text, false);
        desk.sent(b"SIP/2.0 200 ");
        desk.pass(STEP_US / 100);
    }
}

/// Pings of phones behind NATs, and their responses.
fn ping(count: u32) {
    let mut config = common::config();
    config.routes.clear();
    config.pings = Some(Pings {
        kind: PingKind::Options,
        every_s: PING_S,
        lost: 3,
        remove_lost: false,
    });
    let mut desk = Desk::new(&config);
    for number in 0..BEHIND_NAT {
        let (flow, text) = desk::register_behind_nat(number);
        desk.give_from(flow, &text);
    }
    let mut pinged = 0;
    while pinged < count {
        desk.pass(u64::from(STEP_MS) * 1_000);
        counted_pings(&mut desk);
        for (flow, text) in desk.all_sent() {
            assert!(text.starts_with(b"OPTIONS "));
            counted_ping_ok(&mut desk, flow, &desk::response(&text, "200 OK", 1));
            pinged += 1;
        }
    }
}

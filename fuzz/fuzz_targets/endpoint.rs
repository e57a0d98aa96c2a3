//! A life of one endpoint: messages, replies, answers of back-ends, lost messages, time.
//!
//! The first byte chooses the configuration. The rest is divided at two NULs; the first byte of
//! each part says what it is (see [`Life::step`]). Whatever happened: ten minutes after the last
//! of it nothing is held any more.
#![no_main]

#[path = "../../crates/sip-core/tests/common/mod.rs"]
mod common;

use std::collections::VecDeque;

use common::{Bench, CALLEE, CALLER, Sent, config, listener, relay, response, tcp_flow, udp_flow};
use libfuzzer_sys::fuzz_target;
use sip_core::config::{Action, Config, Durability, Network, Relay, RelayTarget, StateMode, When};
use sip_core::endpoint::Handled;
use sip_core::id::ConnId;
use sip_core::limits::Limits;
use sip_core::query::{Answer, Query, QueryKind, Record, Records, Secrets, Unavailable};
use sip_core::transport::framing::{Framed, Framer};
use sip_core::transport::{Flow, Transport};

/// Parts of one input that are looked at.
const PARTS: usize = 64;
/// Messages and questions that are remembered for later steps.
const REMEMBERED: usize = 64;
/// Longer than every timer of the protocol: timer C and what follows a CANCEL.
const QUIET_MS: u64 = 600_000;

/// Bits of an input's first byte.
mod choice {
    pub(super) const STATELESS: u8 = 1;
    pub(super) const AUTHENTICATION: u8 = 2;
    pub(super) const COMMIT: u8 = 4;
    pub(super) const LOCATION: u8 = 8;
    pub(super) const REQUEST_URI: u8 = 16;
    pub(super) const SMALL: u8 = 32;
    pub(super) const TRUSTED: u8 = 64;
}

fn chosen(bits: u8) -> Config {
    let on = |bit: u8| bits & bit != 0;
    let mut config = config();
    if on(choice::STATELESS) {
        config.state = StateMode::Stateless;
    }
    if on(choice::AUTHENTICATION) {
        config.domains[0].auth.methods = [&b"REGISTER"[..], b"INVITE"].map(Into::into).to_vec();
    }
    config.registrar.durability = if on(choice::COMMIT) {
        Durability::Commit
    } else {
        Durability::Async
    };
    let to = |target| sip_core::config::Route {
        action: Action::Relay(Relay::to(target)),
        ..relay("sip:192.0.2.20:5060")
    };
    // example.com by the first rule, everything else to the callee.
    if on(choice::LOCATION) {
        let mut route = to(RelayTarget::Location);
        route.when = When {
            domain: Some(b"example.com"[..].into()),
            ..When::default()
        };
        config.routes.insert(0, route);
    }
    if on(choice::REQUEST_URI) {
        let mut route = to(RelayTarget::RequestUri);
        route.when.methods = vec![b"MESSAGE"[..].into(), b"INVITE"[..].into()];
        config.routes.insert(0, route);
    }
    if on(choice::SMALL) {
        config.limits = Limits {
            headers: 32,
            header_bytes: 1024,
            body_bytes: 256,
            transactions: 3,
            held_transactions: 6,
            parked_requests: 2,
            parked_bytes: 2048,
            contacts_per_aor: 2,
            dns_entries: 2,
            events: 4,
            nonces: 2,
            route_values: 3,
            via_values: 3,
            ..Limits::default()
        };
    }
    if on(choice::TRUSTED) {
        config.listeners[0].preloaded_route = true;
        config.trust = vec![Network {
            address: [192, 0, 2, 0].into(),
            prefix_len: 24,
        }];
        config
            .listeners
            .push(listener(Transport::Udp, "[2001:db8::1]:5060"));
    }
    config
}

struct Life {
    bench: Bench,
    /// What left last, newest at the back.
    sent: VecDeque<Sent>,
    asked: VecDeque<Query>,
    framer: Framer,
    limits: Limits,
    /// Generation of the caller's connection.
    connection: u32,
}

impl Life {
    fn new(config: &Config) -> Self {
        Self {
            bench: Bench::new(config),
            sent: VecDeque::new(),
            asked: VecDeque::new(),
            framer: Framer::new(&config.limits),
            limits: config.limits.clone(),
            connection: 0,
        }
    }

    /// One part: what it is, and what it says.
    fn step(&mut self, part: &[u8]) {
        let Some((&kind, rest)) = part.split_first() else {
            return;
        };
        match kind {
            b'c' => self.datagram(CALLEE, rest),
            b's' => self.stream(rest),
            b'r' => self.reply(rest),
            b'a' => self.answer(rest),
            b'x' => self.lose(rest),
            b'w' => self.wait(rest),
            b'k' => self.configure(rest),
            b'd' => self.bench.endpoint.drain(),
            // Most are datagrams of the caller; the kind may be left out.
            b'u' => self.datagram(CALLER, rest),
            _ => self.datagram(CALLER, part),
        }
        self.collect();
    }

    fn datagram(&mut self, from: &str, bytes: &[u8]) {
        self.handle(udp_flow(from), bytes);
    }

    fn handle(&mut self, flow: Flow, bytes: &[u8]) -> bool {
        let now = self.bench.now();
        let handled = self.bench.endpoint.handle_message(now, flow, bytes);
        assert!(!matches!(handled, Handled::HandOver(_)), "there is one worker");
        handled == Handled::Close
    }

    /// Bytes on the caller's connection, as the shell deals with them.
    fn stream(&mut self, bytes: &[u8]) {
        let mut flow = tcp_flow("192.0.2.10:40000", 3);
        flow.conn = flow.conn.map(|conn| ConnId {
            generation: self.connection,
            ..conn
        });
        let now = self.bench.now();
        let mut input = bytes;
        let mut framer = std::mem::replace(&mut self.framer, Framer::new(&self.limits));
        let closed = loop {
            let closed = match framer.next(&mut input) {
                Framed::Message(message) => self.handle(flow, message),
                Framed::KeepAlivePing | Framed::KeepAlivePong => false,
                Framed::Incomplete => break false,
                Framed::Error(error) => {
                    self.bench.endpoint.handle_framing_error(now, flow, error);
                    true
                }
            };
            if closed {
                break true;
            }
        };
        if closed {
            self.connection += 1;
        } else {
            self.framer = framer;
        }
    }

    /// Something that left earlier; the first byte counts from the newest.
    fn earlier<'a, 'b>(sent: &'a VecDeque<Sent>, rest: &'b [u8]) -> Option<(&'a Sent, &'b [u8])> {
        let (&back, rest) = rest.split_first()?;
        let at = sent.len().checked_sub(1 + usize::from(back & 7))?;
        Some((sent.get(at)?, rest))
    }

    /// The peer of an earlier request answers it: `180 Ringing`, then header lines.
    fn reply(&mut self, rest: &[u8]) {
        let Some((sent, text)) = Self::earlier(&self.sent, rest) else {
            return;
        };
        let flow = sent.to;
        let text = String::from_utf8_lossy(text);
        let (status, extra) = text.split_once('\n').unwrap_or((&text, ""));
        let message = response(sent, status, extra);
        self.handle(flow, message.as_bytes());
    }

    /// A back-end answers its oldest question.
    fn answer(&mut self, rest: &[u8]) {
        let Some(query) = self.asked.pop_front() else {
            return;
        };
        let Some(id) = query.id else { return };
        let how = rest.first().copied().unwrap_or_default();
        let good = how & 1 == 0;
        let answer = match &query.kind {
            QueryKind::Credentials { .. } => Answer::Credentials(match how & 3 {
                0 => Ok(Some(Secrets::default())),
                1 => Err(Unavailable),
                _ => Ok(None),
            }),
            QueryKind::Resolve { .. } => Answer::Resolved(if good {
                Ok(Records {
                    ttl_s: u32::from(how),
                    values: records(rest),
                })
            } else {
                Err(Unavailable)
            }),
            QueryKind::SaveBindings { .. } => Answer::Saved(if good { Ok(()) } else { Err(Unavailable) }),
        };
        let now = self.bench.now();
        self.bench.endpoint.handle_answer(now, id, answer.clone());
        if how & 128 != 0 {
            // Back-ends should not, but may, answer twice.
            self.bench.endpoint.handle_answer(now, id, answer);
        }
    }

    /// An earlier message was not delivered.
    fn lose(&mut self, rest: &[u8]) {
        let Some((sent, _)) = Self::earlier(&self.sent, rest) else {
            return;
        };
        let now = self.bench.now();
        self.bench
            .endpoint
            .handle_undelivered(now, sent.to, sent.text.as_bytes());
    }

    /// A byte for the mantissa, one for the exponent: up to some 20 minutes.
    fn wait(&mut self, rest: &[u8]) {
        let byte = |at: usize| u64::from(rest.get(at).copied().unwrap_or_default());
        let out = self.bench.pass(byte(0) << (byte(1) % 13));
        self.remember(out);
    }

    fn configure(&mut self, rest: &[u8]) {
        let config = chosen(rest.first().copied().unwrap_or_default());
        self.bench.endpoint.reconfigure(&config);
    }

    fn remember(&mut self, out: Vec<Sent>) {
        self.sent.extend(out);
        while self.sent.len() > REMEMBERED {
            self.sent.pop_front();
        }
    }

    /// Takes all that the endpoint has, as the shell does after each step.
    fn collect(&mut self) {
        let out = self.bench.drain();
        self.remember(out);
        while let Some(query) = self.bench.endpoint.poll_query() {
            if self.asked.len() < REMEMBERED {
                self.asked.push_back(query);
            }
        }
        while self.bench.endpoint.poll_event().is_some() {}
    }

    /// Nobody says anything more, and the questions still open stay so.
    fn end(mut self) {
        let _late = self.bench.pass(QUIET_MS);
        self.bench.assert_idle();
    }
}

/// Addresses and services made of bytes.
fn records(bytes: &[u8]) -> Vec<Record> {
    let record = |&byte: &u8| match byte & 3 {
        0 => Record::Address([192, 0, 2, byte].into()),
        1 => Record::Address([0x2001, 0xdb8, 0, 0, 0, 0, 0, u16::from(byte)].into()),
        _ => Record::Service {
            priority: u16::from(byte >> 6),
            weight: u16::from(byte & 31),
            port: 5060 + u16::from(byte),
            target: format!("h{}.example.net", byte & 31).into_bytes().into(),
        },
    };
    bytes.iter().take(8).map(record).collect()
}

/// The parts of an input, between double NULs.
fn parts(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut over = false;
    std::iter::from_fn(move || {
        if over {
            return None;
        }
        match bytes.windows(2).position(|pair| pair == [0, 0]) {
            Some(at) => {
                let part = &bytes[..at];
                bytes = &bytes[at + 2..];
                Some(part)
            }
            None => {
                over = true;
                Some(bytes)
            }
        }
    })
    .take(PARTS)
}

fuzz_target!(|bytes: &[u8]| {
    let Some((&bits, rest)) = bytes.split_first() else {
        return;
    };
    let mut life = Life::new(&chosen(bits));
    for part in parts(rest) {
        life.step(part);
    }
    life.end();
});

//! A life of one process: requests, responses, results of back-ends, lost messages, connections that close,
//! time, and a wall clock that is set.
//!
//! The first byte chooses the configuration. The rest is divided at two NULs; the first byte of
//! each part says what it is (see [`Life::step`]). Whatever happened: ten minutes after the last
//! of it nothing is held any more.

use std::collections::VecDeque;

use sip_core::config::{Action, Config, Durability, Network, Relay, RelayTarget, StateMode, When};
use sip_core::id::ConnId;
use sip_core::limits::Limits;
use sip_core::query::{Query, QueryKind, QueryResult, Record, Records, Secrets, Unavailable};
use sip_core::transport::framing::{Framed, Framer};
use sip_core::transport::{Flow, Proof, Transport};

use crate::common::{CALLEE, CALLER, all_transports, config, listener, over, relay, response, udp_flow};
use crate::table::{Out, Table};

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
    /// Two workers, and all transports.
    pub(super) const WIDE: u8 = 128;
}

fn chosen(bits: u8) -> Config {
    let on = |bit: u8| bits & bit != 0;
    let mut config = if on(choice::WIDE) {
        Config {
            workers: 2,
            ..all_transports()
        }
    } else {
        config()
    };
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

/// A connection of the caller's.
struct Line {
    flow: Flow,
    framer: Framer,
}

impl Line {
    /// The next connection in this slot.
    fn renew(&mut self, limits: &Limits) {
        if let Some(conn) = &mut self.flow.conn {
            conn.generation += 1;
        }
        self.framer = Framer::new(limits);
    }
}

struct Life {
    table: Table,
    /// What left last, newest at the back.
    sent: VecDeque<Out>,
    asked: VecDeque<(usize, Query)>,
    limits: Limits,
    bits: u8,
    /// By TCP, TLS, WebSocket and WebSocket over TLS.
    lines: [Line; 4],
}

impl Life {
    fn new(bits: u8) -> Self {
        let config = chosen(bits);
        let line = |transport, slot| {
            let mut flow = over(transport, "192.0.2.10:40000", slot);
            if transport == Transport::Tls {
                flow.proof = Proof::Certificate;
            }
            let framer = Framer::new(&config.limits);
            Line { flow, framer }
        };
        Self {
            table: Table::new(&config),
            sent: VecDeque::new(),
            asked: VecDeque::new(),
            lines: [
                line(Transport::Tcp, 3),
                line(Transport::Tls, 4),
                line(Transport::Ws, 5),
                line(Transport::Wss, 6),
            ],
            limits: config.limits,
            bits,
        }
    }

    /// One part: what it is, and what it says.
    fn step(&mut self, part: &[u8]) {
        let Some((&kind, rest)) = part.split_first() else {
            return;
        };
        match kind {
            b'c' => self.table.steer(0, udp_flow(CALLEE), rest),
            b's' => self.stream(0, rest),
            b't' if self.is_wide() => self.stream(1, rest),
            b'b' if self.is_wide() => self.browser(2, rest),
            b'B' if self.is_wide() => self.browser(3, rest),
            b'f' => self.close(rest),
            b'r' => self.reply(rest),
            b'a' => self.answer(rest),
            b'x' => self.lose(rest),
            b'w' => self.wait(rest),
            b'j' => self.set_clock(rest),
            b'k' => self.configure(rest),
            b'd' => self.table.drain_calls(),
            // What the other worker's socket got.
            b'o' => {
                self.table.handle(1, udp_flow(CALLER), rest);
            }
            // Most are datagrams of the caller; the kind may be left out.
            b'u' => self.table.steer(0, udp_flow(CALLER), rest),
            _ => self.table.steer(0, udp_flow(CALLER), part),
        }
        self.collect();
    }

    fn is_wide(&self) -> bool {
        self.bits & choice::WIDE != 0
    }

    /// Bytes on a connection of the caller's, as the shell deals with them.
    fn stream(&mut self, line: usize, bytes: &[u8]) {
        let Self { table, lines, .. } = self;
        let Line { flow, framer } = &mut lines[line];
        let mut input = bytes;
        let closed = loop {
            let closed = match framer.next(&mut input) {
                Framed::Message(message) => table.handle(0, *flow, message),
                Framed::KeepAlivePing | Framed::KeepAlivePong => false,
                Framed::Incomplete => break false,
                Framed::Error(error) => {
                    table.framing_error(0, *flow, error);
                    true
                }
            };
            if closed {
                break true;
            }
        };
        if closed {
            self.hang_up(line);
        }
    }

    /// A message on a WebSocket.
    fn browser(&mut self, line: usize, bytes: &[u8]) {
        if self.table.handle(1, self.lines[line].flow, bytes) {
            self.hang_up(line);
        }
    }

    fn hang_up(&mut self, line: usize) {
        let conn: Option<ConnId> = self.lines[line].flow.conn;
        if let Some(conn) = conn {
            self.table.closed(conn);
        }
        self.lines[line].renew(&self.limits);
    }

    /// A connection closes.
    fn close(&mut self, rest: &[u8]) {
        let line = rest.first().copied().unwrap_or_default();
        self.hang_up(usize::from(line) % self.lines.len());
    }

    /// Something that left earlier; the first byte counts from the newest.
    fn earlier<'a, 'b>(sent: &'a VecDeque<Out>, rest: &'b [u8]) -> Option<(&'a Out, &'b [u8])> {
        let (&back, rest) = rest.split_first()?;
        let at = sent.len().checked_sub(1 + usize::from(back & 7))?;
        Some((sent.get(at)?, rest))
    }

    /// The peer of an earlier request answers it: `180 Ringing`, then header lines.
    fn reply(&mut self, rest: &[u8]) {
        let Some((sent, text)) = Self::earlier(&self.sent, rest) else {
            return;
        };
        let text = String::from_utf8_lossy(text);
        let (status, extra) = text.split_once('\n').unwrap_or((&text, ""));
        let message = response(&sent.as_sent(), status, extra);
        self.table.handle(sent.worker, sent.to, message.as_bytes());
    }

    /// A back-end answers its oldest question.
    fn answer(&mut self, rest: &[u8]) {
        let Some((worker, query)) = self.asked.pop_front() else {
            return;
        };
        let Some(id) = query.id else { return };
        let how = rest.first().copied().unwrap_or_default();
        let good = how & 1 == 0;
        let answer = match &query.kind {
            QueryKind::Credentials { .. } => QueryResult::Credentials(match how & 3 {
                0 => Ok(Some(Secrets::default())),
                1 => Err(Unavailable),
                _ => Ok(None),
            }),
            QueryKind::Resolve { .. } => QueryResult::Resolved(if good {
                Ok(Records {
                    ttl_s: u32::from(how),
                    values: records(rest),
                })
            } else {
                Err(Unavailable)
            }),
            QueryKind::SaveBindings { .. } => {
                QueryResult::Saved(if good { Ok(()) } else { Err(Unavailable) })
            }
        };
        self.table.answer(worker, id, answer.clone());
        if how & 128 != 0 {
            // Back-ends should not, but may, answer twice.
            self.table.answer(worker, id, answer);
        }
    }

    /// An earlier message was not delivered.
    fn lose(&mut self, rest: &[u8]) {
        if let Some((sent, _)) = Self::earlier(&self.sent, rest) {
            self.table.undelivered(sent);
        }
    }

    /// A byte for the mantissa, one for the exponent: up to some 20 minutes.
    fn wait(&mut self, rest: &[u8]) {
        let ms = scaled(rest, 13);
        let Self { table, sent, .. } = self;
        table.pass(ms, |out| remember(sent, out));
    }

    /// Sets the wall clock: forward or, if the third byte is odd, back; up to two months.
    fn set_clock(&mut self, rest: &[u8]) {
        let by_ms = i64::try_from(scaled(rest, 25)).unwrap_or_default();
        let back = rest.get(2).is_some_and(|byte| byte & 1 == 1);
        self.table.set_wall_by(if back { -by_ms } else { by_ms });
    }

    fn configure(&mut self, rest: &[u8]) {
        let bits = rest.first().copied().unwrap_or_default();
        // Listeners and workers stay what they were at the start.
        let config = chosen(bits & !choice::WIDE | self.bits & choice::WIDE);
        self.table.reconfigure(&config);
    }

    /// Takes all that the endpoints have, as the shell does after each step.
    fn collect(&mut self) {
        let Self {
            table, sent, asked, ..
        } = self;
        table.sent(|out| remember(sent, out));
        table.asked(|worker, query| {
            if asked.len() < REMEMBERED {
                asked.push_back((worker, query));
            }
        });
    }

    /// No peer sends anything more, and the questions still open stay so.
    fn end(mut self) {
        self.table.pass(QUIET_MS, drop);
        self.table.assert_idle();
    }
}

fn remember(sent: &mut VecDeque<Out>, out: Out) {
    sent.push_back(out);
    if sent.len() > REMEMBERED {
        sent.pop_front();
    }
}

/// A byte for the mantissa, one for the exponent.
fn scaled(bytes: &[u8], exponents: u64) -> u64 {
    let byte = |at: usize| u64::from(bytes.get(at).copied().unwrap_or_default());
    byte(0) << (byte(1) % exponents)
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

/// Takes one input.
pub fn run(bytes: &[u8]) {
    let Some((&bits, rest)) = bytes.split_first() else {
        return;
    };
    let mut life = Life::new(bits);
    for part in parts(rest) {
        life.step(part);
    }
    life.end();
}

//! The same message by UDP and by TCP, through two equal endpoints: the same is done with it.
//!
//! The first byte chooses the configuration; then the message, and behind two NULs an answer to what
//! was forwarded: `180 Ringing`, then header lines. What may differ, and why:
//!
//! | by UDP | by TCP | why |
//! | --- | --- | --- |
//! | handled | waited for | shorter than its Content-Length: a stream may bring the rest (RFC 3261 §18.3) |
//! | handled | refused, closed | without a readable Content-Length its end is unknown (§18.3, §20.14) |
//! | empty lines, STUN | framed apart | what keeps a door open is no message (RFC 5626 §3.5.1, §4.4.1) |
//! | refused | refused, closed | what is broken may be framed wrongly as well |
//! | branch, `tz` of Via, To tag of ours | another | they hold, or take in, how the request came |
//! | answered at the port of Via | on the connection | RFC 3261 §18.2.2, RFC 3581 §4 |
//! | one Record-Route | two, or another | each says the transport on its side (RFC 5658) |
//!
//! The length at which requests change to TCP is out of reach here, and no time passes, so timers
//! that only UDP has do nothing.

use sip_core::config::{Action, Config, Relay, RelayTarget, StateMode};
use sip_core::transport::Flow;
use sip_core::transport::framing::{Framed, Framer};

use crate::common::{CALLER, config, relay, response, tcp_flow, udp_flow};
use crate::table::{Out, Table};

/// Bits of an input's first byte.
mod choice {
    pub(super) const STATELESS: u8 = 1;
    pub(super) const AUTHENTICATION: u8 = 2;
    pub(super) const REQUEST_URI: u8 = 4;
    pub(super) const LOCATION: u8 = 8;
    pub(super) const NO_RECORD_ROUTE: u8 = 16;
}

fn chosen(bits: u8) -> Config {
    let on = |bit: u8| bits & bit != 0;
    let mut config = config();
    config.limits.udp_mtu = usize::MAX;
    if on(choice::STATELESS) {
        config.state = StateMode::Stateless;
    }
    if on(choice::AUTHENTICATION) {
        config.domains[0].auth.methods = [&b"REGISTER"[..], b"INVITE"].map(Into::into).to_vec();
    }
    if on(choice::REQUEST_URI) {
        config.routes[0].action = Action::Relay(Relay::to(RelayTarget::RequestUri));
    }
    if on(choice::LOCATION) {
        let mut route = relay("sip:192.0.2.20");
        route.action = Action::Relay(Relay::to(RelayTarget::Location));
        route.when.domain = Some(b"example.com"[..].into());
        config.routes.insert(0, route);
    }
    for route in &mut config.routes {
        route.record_route = !on(choice::NO_RECORD_ROUTE);
    }
    config
}

/// Takes one input.
pub fn run(bytes: &[u8]) {
    let Some((&bits, rest)) = bytes.split_first() else {
        return;
    };
    let at = rest.windows(2).position(|pair| pair == [0, 0]);
    let (message, answer) = match at {
        Some(at) => (&rest[..at], &rest[at + 2..]),
        None => (rest, &b"200 OK"[..]),
    };
    let config = chosen(bits);
    // What a stream makes of it decides whether there is anything to compare.
    let mut framer = Framer::new(&config.limits);
    let Framed::Message(framed) = framer.next(&mut &message[..]) else {
        return;
    };
    let stream = tcp_flow(CALLER, 3);
    let (mut by_udp, mut by_tcp) = (Side::new(&config, udp_flow(CALLER)), Side::new(&config, stream));
    compare(by_udp.give(message), by_tcp.give(framed));
    compare(by_udp.answer(answer), by_tcp.answer(answer));
    assert_eq!(by_udp.table.questions(), by_tcp.table.questions());
}

fn compare(by_udp: Vec<String>, by_tcp: Vec<String>) {
    assert_eq!(by_udp, by_tcp, "by UDP and by TCP");
}

/// One of the two endpoints, and how the message comes to it.
struct Side {
    table: Table,
    caller: Flow,
    forwarded: Vec<Out>,
}

impl Side {
    fn new(config: &Config, caller: Flow) -> Self {
        Self {
            table: Table::new(config),
            caller,
            forwarded: Vec::new(),
        }
    }

    fn give(&mut self, message: &[u8]) -> Vec<String> {
        self.table.handle(0, self.caller, message);
        self.collect()
    }

    /// All next hops answer what they got.
    fn answer(&mut self, answer: &[u8]) -> Vec<String> {
        let text = String::from_utf8_lossy(answer);
        let (status, extra) = text.split_once('\n').unwrap_or((&text, ""));
        for sent in std::mem::take(&mut self.forwarded) {
            let message = response(&sent.as_sent(), status, extra);
            self.table.handle(0, sent.to, message.as_bytes());
        }
        self.collect()
    }

    /// What left, as it can be compared.
    fn collect(&mut self) -> Vec<String> {
        let Self {
            table,
            caller,
            forwarded,
        } = self;
        let mut seen = Vec::new();
        table.sent(|out| {
            if out.bytes.starts_with(b"SIP/") {
                assert_eq!(out.to.remote.ip(), caller.remote.ip(), "answers go back");
                seen.push(masked(&out.bytes));
            } else {
                let Flow {
                    remote, transport, ..
                } = out.to;
                seen.push(format!("to {remote} by {transport}: {}", masked(&out.bytes)));
                forwarded.push(out);
            }
        });
        seen
    }
}

/// The message without what differs by the way that the request came.
fn masked(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let mut out = String::new();
    for line in head.split("\r\n") {
        if line.starts_with("Record-Route: ") && line.contains(";tz=") {
            continue;
        }
        // Ours, and only ours, are of this length.
        let line = masked_after(line, ";branch=z9hG4bK", 18);
        let line = masked_after(&line, ";rport;tz=", 64);
        out.push_str(&masked_after(&line, ";tag=tz", 16));
        out.push('\n');
    }
    out + "\n" + body
}

/// `line` with up to `len` hexadecimal digits (full stops and hyphens, too) behind `mark` replaced.
fn masked_after(line: &str, mark: &str, len: usize) -> String {
    let Some(at) = line.find(mark) else {
        return line.to_owned();
    };
    let (before, after) = line.split_at(at + mark.len());
    let is_masked = |c: &u8| c.is_ascii_hexdigit() || matches!(c, b'.' | b'-');
    let digits = after.bytes().take(len).take_while(is_masked).count();
    format!("{before}…{}", &after[digits..])
}

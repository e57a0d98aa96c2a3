//! A phone of the simulated network: the model user agent with its connection. That is UDP, or one connection
//! of TCP or WebSocket, which the phone opens again if it is lost.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use super::node::{Clocks, Input, Node, NodeId, Output, Wire, WireNames};
use super::scenario::{GATEWAY_USER, Scenario, Speaks, Trouble, aor};
use super::server::config::{SIP_PORT, WS_PORT};
use super::{phone_ip, server_ip};
use crate::agent::registration::{Registrant, Registration, RegistrationPlan};
use crate::agent::{Agent, Line, Outgoing};
use crate::clock::{MS, Micros};
use crate::message::View;
use crate::report::CallReport;

/// Pause before a lost connection is opened again.
const RECONNECT_AFTER: Micros = 700 * MS;
/// Most messages that wait for the connection. Beyond it the oldest are dropped.
const MOST_WAITING: usize = 32;
/// An identity that no phone may assert: no server may send it on.
pub const ASSERTED: &str = "P-Asserted-Identity: <sip:president@d0.example>\r\n";

/// Masking key of WebSocket frames. Frames must be masked, but any key will do.
const MASK: [u8; 4] = [0x5a, 0x17, 0xc3, 0x88];
/// The request that opens a WebSocket (RFC 6455 §1.3 has this key).
const UPGRADE: &str = "GET / HTTP/1.1\r\nHost: sip.example\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: sip\r\n\r\n";

/// State of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    /// There is no connection, and none is needed: UDP, or the phone is off.
    None,
    /// The connection is to be opened at this time.
    Down(Micros),
    Opening(Wire),
    /// The response to the upgrade is awaited.
    Upgrading(Wire),
    Up(Wire),
}

/// A phone.
#[derive(Debug)]
pub struct Phone {
    agent: Agent,
    speaks: Speaks,
    local: SocketAddr,
    server: SocketAddr,
    link: Link,
    /// Whether the phone was connected before: bindings of the old flow must be registered anew.
    was_up: bool,
    received: Vec<u8>,
    /// Connections that servers opened to the address in the phone's Contact, with the bytes received on
    /// each.
    accepted: BTreeMap<Wire, Vec<u8>>,
    waiting: VecDeque<String>,
    names: WireNames,
    out: VecDeque<Output>,
}

impl Phone {
    /// The phone with this index in the scenario, at `node`.
    pub fn new(scenario: &Scenario, place: usize, node: NodeId) -> Self {
        let plan = &scenario.phones[place];
        let aor = aor(plan.user);
        let local = SocketAddr::new(phone_ip(place), SIP_PORT);
        let home = server_ip(scenario.home_of(plan.user));
        let port = match plan.speaks {
            Speaks::Udp | Speaks::Tcp => SIP_PORT,
            Speaks::Ws => WS_PORT,
        };
        let server = SocketAddr::new(home, port);
        let places = |number: u32| scenario.calls.iter().any(|c| c.call == number && c.from == place);
        let line = line(scenario, place, server);
        let mut agent = Agent::of(line, &scenario.call_plans(place), |call| places(call.call));
        // Gateways do not register: a rule leads to them.
        if plan.user != GATEWAY_USER {
            agent.register(Registrant::new(RegistrationPlan {
                aor,
                expires_s: plan.expires_s,
                start: plan.start,
                leaves: plan.leaves.clone(),
                fetch_every: plan.fetch_every,
                end: plan.end,
                q: plan.q,
            }));
        }
        let link = if plan.speaks == Speaks::Udp {
            Link::None
        } else {
            Link::Down(0)
        };
        Self {
            agent,
            speaks: plan.speaks,
            local,
            server,
            link,
            was_up: false,
            received: Vec::new(),
            accepted: BTreeMap::new(),
            waiting: VecDeque::new(),
            names: WireNames::new(node),
            out: VecDeque::new(),
        }
    }

    fn wire(&self) -> Option<Wire> {
        match self.link {
            Link::None | Link::Down(_) => None,
            Link::Opening(wire) | Link::Upgrading(wire) | Link::Up(wire) => Some(wire),
        }
    }

    fn send(&mut self, outgoing: Outgoing) {
        if self.speaks == Speaks::Udp {
            return self.out.push_back(Output::Datagram {
                from: self.local,
                to: outgoing.to,
                bytes: outgoing.text.into_bytes(),
            });
        }
        if self.waiting.len() >= MOST_WAITING {
            self.waiting.pop_front();
        }
        self.waiting.push_back(outgoing.text);
    }

    /// Takes the agent's messages.
    fn collect(&mut self, now: Micros) {
        while let Some(outgoing) = self.agent.poll_transmit() {
            self.send(outgoing);
        }
        if let Link::Up(wire) = self.link {
            while let Some(text) = self.waiting.pop_front() {
                let bytes = match self.speaks {
                    Speaks::Ws => masked(0x81, text.as_bytes()),
                    Speaks::Udp | Speaks::Tcp => text.clone().into_bytes(),
                };
                self.out.push_back(Output::Bytes {
                    wire,
                    bytes,
                    message: text.into_bytes(),
                });
            }
        }
        if self.agent.has_signed_off() {
            if let Some(wire) = self.wire() {
                self.out.push_back(Output::Close { wire });
            }
            self.link = Link::None;
        }
        if let Link::Down(at) = self.link
            && at <= now
        {
            let wire = self.names.take();
            self.link = Link::Opening(wire);
            self.out.push_back(Output::Open {
                wire,
                to: self.server,
            });
        }
    }

    fn up(&mut self, now: Micros, wire: Wire) {
        self.link = Link::Up(wire);
        if core::mem::replace(&mut self.was_up, true) {
            self.agent.reconnected(now);
        }
    }

    fn opened(&mut self, now: Micros, wire: Wire) {
        if self.link != Link::Opening(wire) {
            self.accepted.insert(wire, Vec::new());
            return;
        }
        self.received.clear();
        if self.speaks == Speaks::Tcp {
            return self.up(now, wire);
        }
        self.link = Link::Upgrading(wire);
        self.out.push_back(Output::Bytes {
            wire,
            bytes: UPGRADE.as_bytes().to_vec(),
            message: Vec::new(),
        });
    }

    fn bytes(&mut self, now: Micros, wire: Wire, bytes: &[u8]) {
        if self.wire() != Some(wire) {
            return self.accepted_bytes(now, wire, bytes);
        }
        self.received.extend_from_slice(bytes);
        if self.link == Link::Upgrading(wire) {
            let Some(end) = find(&self.received, b"\r\n\r\n") else {
                return;
            };
            assert!(
                self.received.starts_with(b"HTTP/1.1 101"),
                "the upgrade was refused"
            );
            self.received.drain(..end + 4);
            self.up(now, wire);
        }
        while let Some(message) = self.next_message(wire) {
            self.agent.handle_message(now, self.server, &message);
        }
    }

    /// Handles bytes on a connection that a server opened: responses go back on it (RFC 3261 §18.2.2).
    fn accepted_bytes(&mut self, now: Micros, wire: Wire, bytes: &[u8]) {
        let Some(mut received) = self.accepted.remove(&wire) else {
            return;
        };
        received.extend_from_slice(bytes);
        while let Some(text) = take_message(&mut received) {
            self.agent.handle_message(now, self.server, &text);
            let mut rest = Vec::new();
            while let Some(outgoing) = self.agent.poll_transmit() {
                if !outgoing.text.starts_with("SIP/2.0") {
                    rest.push(outgoing);
                    continue;
                }
                let message = outgoing.text.into_bytes();
                self.out.push_back(Output::Bytes {
                    wire,
                    bytes: message.clone(),
                    message,
                });
            }
            rest.into_iter().for_each(|outgoing| self.send(outgoing));
        }
        self.accepted.insert(wire, received);
    }

    /// The next message in the received bytes.
    fn next_message(&mut self, wire: Wire) -> Option<String> {
        if self.speaks == Speaks::Ws {
            return self.next_frame(wire);
        }
        take_message(&mut self.received)
    }

    fn next_frame(&mut self, wire: Wire) -> Option<String> {
        loop {
            let (first, second) = (*self.received.first()?, *self.received.get(1)?);
            assert!(second & 0x80 == 0, "a server does not mask (RFC 6455 §5.1)");
            let (head, len) = match second {
                126 => {
                    let len = self.received.get(2..4)?;
                    (4, usize::from(u16::from_be_bytes([len[0], len[1]])))
                }
                127 => panic!("no message here is so long"),
                short => (2, usize::from(short)),
            };
            if self.received.len() < head + len {
                return None;
            }
            let payload: Vec<u8> = self.received.drain(..head + len).skip(head).collect();
            match first & 0x0f {
                1 | 2 => return String::from_utf8(payload).ok(),
                9 => self.out.push_back(Output::Bytes {
                    wire,
                    bytes: masked(0x8a, &payload),
                    message: Vec::new(),
                }),
                _ => {}
            }
        }
    }
}

/// The URI that a phone registers, and by which it is reached.
pub fn contact(scenario: &Scenario, place: usize) -> String {
    let plan = &scenario.phones[place];
    let user = aor(plan.user).split('@').next().unwrap_or_default();
    let local = SocketAddr::new(phone_ip(place), SIP_PORT);
    match plan.speaks {
        Speaks::Udp => format!("sip:{user}@{local}"),
        Speaks::Tcp => format!("sip:{user}@{local};transport=tcp"),
        // RFC 7118 §5: a browser does not know its address.
        Speaks::Ws => format!(
            "sip:{user}@{}.invalid;transport=ws",
            scenario.name_of_phone(place)
        ),
    }
}

fn line(scenario: &Scenario, place: usize, server: SocketAddr) -> Line {
    let plan = &scenario.phones[place];
    let local = SocketAddr::new(phone_ip(place), SIP_PORT);
    let name = scenario.name_of_phone(place);
    Line {
        user: aor(plan.user).split('@').next().unwrap_or_default(),
        name,
        proxy: server,
        rport: plan.rport,
        reliable: plan.speaks != Speaks::Udp,
        via: match plan.speaks {
            Speaks::Udp => format!("SIP/2.0/UDP {local}"),
            Speaks::Tcp => format!("SIP/2.0/TCP {local}"),
            Speaks::Ws => format!("SIP/2.0/WS {name}.invalid"),
        },
        contact: format!("<{}>", contact(scenario, place)),
        extra: ASSERTED,
    }
}

/// Takes the first message of a stream's bytes, if it is whole.
pub(super) fn take_message(received: &mut Vec<u8>) -> Option<String> {
    while received.starts_with(b"\r\n") {
        received.drain(..2);
    }
    let end = find(received, b"\r\n\r\n")? + 4;
    let head = String::from_utf8_lossy(&received[..end]).into_owned();
    let body: usize = View::new(&head).get("Content-Length").parse().ok()?;
    if received.len() < end + body {
        return None;
    }
    let message = received.drain(..end + body).collect();
    String::from_utf8(message).ok()
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}

/// A frame of a client (RFC 6455 §5.2).
fn masked(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![first];
    match u16::try_from(payload.len()) {
        Ok(len) if len < 126 => frame.push(0x80 | len as u8),
        Ok(len) => {
            frame.push(0x80 | 126);
            frame.extend_from_slice(&len.to_be_bytes());
        }
        Err(_) => panic!("no message here is so long"),
    }
    frame.extend_from_slice(&MASK);
    frame.extend(
        payload
            .iter()
            .zip(MASK.iter().cycle())
            .map(|(byte, key)| byte ^ key),
    );
    frame
}

impl Node for Phone {
    fn handle(&mut self, clocks: Clocks, input: Input<'_>) {
        let now = clocks.now;
        match input {
            // A response to a forged copy of the phone's requests may go to another port of its address.
            Input::Datagram { to, .. } if to != self.local => {}
            Input::Datagram { from, bytes, .. } => {
                let text = String::from_utf8_lossy(bytes);
                self.agent.handle_message(now, from, &text);
            }
            Input::Unreachable { .. } | Input::Overheard { .. } => {}
            Input::Opened { wire, .. } => self.opened(now, wire),
            Input::Bytes { wire, bytes } => self.bytes(now, wire, bytes),
            Input::Closed { wire } => {
                self.accepted.remove(&wire);
                if self.wire() == Some(wire) {
                    self.link = Link::Down(now + RECONNECT_AFTER);
                }
            }
            Input::Timeout => self.agent.handle_timeout(now),
        }
        self.collect(now);
    }

    fn poll_output(&mut self) -> Option<Output> {
        self.out.pop_front()
    }

    fn poll_timeout(&self) -> Option<Micros> {
        let reconnect = match self.link {
            Link::Down(at) => Some(at),
            Link::None | Link::Opening(_) | Link::Upgrading(_) | Link::Up(_) => None,
        };
        self.agent.poll_timeout().into_iter().chain(reconnect).min()
    }

    fn crash(&mut self, _clocks: Clocks, _power: bool) {}

    fn restart(&mut self, clocks: Clocks) {
        self.collect(clocks.now);
    }

    fn trouble(&mut self, _clocks: Clocks, _trouble: &Trouble) {}

    fn leftovers(&self) -> Option<String> {
        self.agent.leftovers()
    }

    fn calls(&self) -> Vec<CallReport> {
        self.agent.reports()
    }

    fn registrations(&self) -> &[Registration] {
        self.agent.registrations()
    }
}

//! The stranger: a host that overhears what phones send by UDP, and can forge any source address. In each
//! domain it has an account that only the stranger calls ([`super::lure`]).
//!
//! None of the stranger's messages may succeed; [`super::check`] defines that. They are recognized by their
//! branches and Call-IDs.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};

use super::lure::{Lure, Next, ack};
use super::node::{Clocks, Input, Node, NodeId, Output, Wire, WireNames};
use super::phone::take_message;
use super::scenario::{Attack, AttackPlan, DOMAINS, Scenario, Trouble, USERS};
use super::server::config::SIP_PORT;
use super::{STRANGER, phone_ip, server_ip};
use crate::clock::{Micros, Queue, SECOND};
use crate::message::View;
use crate::rng::Rng;

/// Prefix of the branches of all the stranger's requests.
const BRANCH: &str = "z9hG4bK-evil";
/// Prefix of the branches of a flood; [`NAMED`] follows if they come from a server's forged address.
const FLOOD: &str = "z9hG4bK-evil-flood-";
const NAMED: &str = "named-";
/// Follows [`BRANCH`] if a request has the stranger's own address.
const OWN: &str = "-own-";
/// Follows [`BRANCH`] if a request has a forged address.
const FORGED: &str = "-forged-";
/// Prefix of the Call-IDs of the stranger's requests, unless another one is repeated.
const CALL_ID: &str = "Call-ID: evil-";
/// The port in the Via of a changed copy that has its sender's branch. By this port its transaction differs from the
/// original's, and its response does not come to the sender.
const COPY_PORT: u16 = 5099;
/// Time from the end of an account's connection to the call.
const CALL_AFTER: Micros = 2 * SECOND;
/// Longest wait for the registrations of an account; then the stranger closes their connection.
const LURE_LASTS: Micros = 40 * SECOND;

/// Whether a branch is one of the stranger's.
pub fn is_strangers(branch: &str) -> bool {
    branch.starts_with(BRANCH)
}

/// Whether a branch is one of the stranger's requests from its own address.
pub fn is_from_his_own_address(branch: &str) -> bool {
    branch
        .strip_prefix(BRANCH)
        .is_some_and(|rest| rest.starts_with(OWN))
}

/// Whether a branch is one of a flood: `Some(true)` if from the forged address of a server.
pub fn flood(branch: &str) -> Option<bool> {
    let rest = branch.strip_prefix(FLOOD)?;
    Some(rest.starts_with(NAMED))
}

/// Whether a message is a changed copy with its sender's branch, or belongs to one.
pub fn is_changed_copy(text: &str) -> bool {
    let via = View::new(text).get("Via");
    let sent_by = via.split(';').next().unwrap_or_default();
    sent_by.ends_with(&format!(":{COPY_PORT}"))
}

/// The stranger.
#[derive(Debug)]
pub struct Stranger {
    address: SocketAddr,
    plans: VecDeque<AttackPlan>,
    /// For each server, whether it challenges.
    asks: Vec<bool>,
    /// Home of each domain.
    homes: [usize; DOMAINS],
    /// The last REGISTER that bound a contact, by its sender.
    binds: BTreeMap<SocketAddr, String>,
    /// Attacks that wait for a message to be overheard.
    ready: Vec<Attack>,
    /// Registrations under way for calls to the stranger's own accounts.
    lures: Vec<Lure>,
    names: WireNames,
    shots: Queue<Output>,
    out: VecDeque<Output>,
    serial: u32,
    rng: Rng,
}

impl Stranger {
    /// The stranger with the attacks of the scenario, at `node`.
    pub fn new(scenario: &Scenario, node: NodeId, rng: Rng) -> Self {
        Self {
            address: SocketAddr::new(IpAddr::from(STRANGER), SIP_PORT),
            plans: scenario.attacks.iter().copied().collect(),
            asks: (0..scenario.servers.len())
                .map(|server| scenario.challenges(server))
                .collect(),
            homes: scenario.homes,
            binds: BTreeMap::new(),
            ready: Vec::new(),
            lures: Vec::new(),
            names: WireNames::new(node),
            shots: Queue::default(),
            out: VecDeque::new(),
            serial: 0,
            rng,
        }
    }

    fn serial(&mut self) -> u32 {
        self.serial += 1;
        self.serial
    }

    /// Whether the server at this address challenges.
    fn asks_at(&self, address: SocketAddr) -> bool {
        let mut all = self.asks.iter().enumerate();
        all.any(|(server, asks)| *asks && server_ip(server) == address.ip())
    }

    fn begin(&mut self, now: Micros, plan: AttackPlan) {
        let server = SocketAddr::new(server_ip(plan.server), SIP_PORT);
        let mut from = self.address;
        let text = match plan.attack {
            Attack::Probe { kind, user } => self.probe(plan.server, kind, USERS[user % USERS.len()], from),
            Attack::Spoof { kind, user, phone } => {
                from = SocketAddr::new(phone_ip(phone), SIP_PORT);
                self.probe(plan.server, kind, USERS[user % USERS.len()], from)
            }
            Attack::ForgedRoute { phone } => self.forged_route(server, phone),
            Attack::SelfSent { user, hash } => {
                from = server;
                self.self_sent(server, USERS[user % USERS.len()], hash)
            }
            Attack::Lure { domain, gateway } => return self.begin_lure(now, domain % DOMAINS, gateway),
            Attack::Flood { count, named } => return self.flood(server, count, named),
            Attack::Borrow { .. }
            | Attack::Replay { .. }
            | Attack::LateCopy { .. }
            | Attack::Change { .. }
            | Attack::Exchange { .. }
            | Attack::Cancel { .. } => return self.ready.push(plan.attack),
        };
        self.out.push_back(Output::Datagram {
            from,
            to: server,
            bytes: text.into_bytes(),
        });
    }

    /// Sends requests that each get one response, without state.
    fn flood(&mut self, server: SocketAddr, count: u32, named: Option<usize>) {
        let ip = named.map_or(self.address.ip(), server_ip);
        let source = SocketAddr::new(ip, SIP_PORT);
        let whose = if named.is_some() { NAMED } else { "" };
        for _ in 0..count {
            let n = self.serial();
            let text = format!(
                "OPTIONS sip:{server} SIP/2.0\r\nVia: SIP/2.0/UDP {source};branch={FLOOD}{whose}{n};rport\r\n\
                 Max-Forwards: 70\r\nFrom: <sip:evil@elsewhere.example>;tag=e{n}\r\nTo: <sip:{server}>\r\n\
                 {CALL_ID}{n}\r\nCSeq: 1 OPTIONS\r\nContent-Length: 0\r\n\r\n"
            );
            self.out.push_back(Output::Datagram {
                from: source,
                to: server,
                bytes: text.into_bytes(),
            });
        }
    }

    /// A branch of the stranger's; it shows whether `from` is its own address.
    fn branch(&mut self, from: SocketAddr) -> (u32, String) {
        let n = self.serial();
        let whose = if from == self.address { OWN } else { FORGED };
        (n, format!("{BRANCH}{whose}{n}"))
    }

    /// A request with From, Call-ID and the other header fields, to this user and as if from this address.
    fn request(&mut self, source: SocketAddr, method: &str, uri: &str, to: &str, more: &str) -> String {
        let (n, branch) = self.branch(source);
        let from = to.split('>').next().unwrap_or_default();
        format!(
            "{method} {uri} SIP/2.0\r\nVia: SIP/2.0/UDP {source};branch={branch};rport\r\nMax-Forwards: 70\r\n\
             From: {from}>;tag=e{n}\r\nTo: {to}\r\n{CALL_ID}{n}\r\nCSeq: 1 {method}\r\n{more}Content-Length: 0\r\n\r\n",
        )
    }

    /// A request that any host may send. Its response must not be larger than the request allows.
    fn probe(&mut self, server: usize, kind: u8, user: &str, source: SocketAddr) -> String {
        let (uri, to) = (format!("sip:{user}"), format!("<sip:{user}>"));
        // Where no sender is challenged, the stranger may register: its REGISTER then only fetches.
        let contact = match self.asks.get(server) {
            Some(true) => format!("Contact: <sip:evil@{source}>\r\n"),
            Some(false) | None => String::new(),
        };
        let domain = format!("sip:{}", user.split('@').nth(1).unwrap_or_default());
        match kind {
            0 => self.request(source, "REGISTER", &domain, &to, &contact),
            1 => self.request(source, "INVITE", &uri, &to, &contact),
            2 => self.request(source, "OPTIONS", &uri, &to, ""),
            3 => self.request(source, "BYE", &uri, &format!("{to};tag=x"), ""),
            4 => self.request(source, "CANCEL", &uri, &to, ""),
            5 => self.short_register(&domain, user, source),
            // The refusal lists extensions that the server does not know. The list must not grow with the
            // request.
            7 => self.request(
                source,
                "REGISTER",
                &domain,
                &to,
                &format!("{contact}Require: {}a\r\n", "a,".repeat(200)),
            ),
            8 => self.request(
                source,
                "INVITE",
                &uri,
                &to,
                &format!("{contact}Proxy-Require: {}a\r\n", "a,".repeat(200)),
            ),
            _ => "SIP/2.0 200 OK\r\nVia: x\r\n\r\n".to_owned(),
        }
    }

    /// A REGISTER of as few bytes as possible: its response must be short as well.
    fn short_register(&mut self, domain: &str, user: &str, source: SocketAddr) -> String {
        let (n, branch) = self.branch(source);
        format!(
            "REGISTER {domain} SIP/2.0\r\nVia:SIP/2.0/UDP x;branch={branch};rport\r\nf:<sip:{user}>;tag=e\r\n\
             t:<sip:{user}>\r\ni:{n}\r\nCSeq:1 REGISTER\r\n\r\n"
        )
    }

    /// A request with a Route. The server may follow it for an unknown caller only if the server itself made
    /// it.
    fn forged_route(&mut self, server: SocketAddr, phone: usize) -> String {
        let target = format!("sip:victim@{}:{SIP_PORT}", phone_ip(phone));
        let (says, mac) = (self.rng.next_u64(), self.rng.next_u64());
        let route = format!("Route: <sip:{server};lr;tz={says:016x}{mac:016x}>\r\n");
        self.request(
            self.address,
            "MESSAGE",
            &target,
            &format!("<{target}>;tag=callee"),
            &route,
        )
    }

    /// A call from an unknown caller that looks as if the server had sent it to itself. The server's trust in
    /// itself must not count.
    fn self_sent(&mut self, server: SocketAddr, user: &str, hash: u64) -> String {
        let (n, branch) = self.branch(self.address);
        let own = self.address;
        format!(
            "INVITE sip:{user} SIP/2.0\r\nVia: SIP/2.0/UDP {server};branch=z9hG4bK{hash:016x}00\r\n\
             Via: SIP/2.0/UDP {own};branch={branch};rport\r\nMax-Forwards: 69\r\n\
             From: <sip:evil@elsewhere.example>;tag=e{n}\r\nTo: <sip:{user}>\r\n{CALL_ID}{n}\r\nCSeq: 1 INVITE\r\n\
             Contact: <sip:evil@{own}>\r\nContent-Length: 0\r\n\r\n"
        )
    }

    fn begin_lure(&mut self, now: Micros, domain: usize, gateway: bool) {
        let (server, wire) = (server_ip(self.homes[domain]), self.names.take());
        let to = SocketAddr::new(server, SIP_PORT);
        let serial = self.serial();
        self.lures
            .push(Lure::new((self.address, to), domain, gateway, wire, serial));
        self.out.push_back(Output::Open { wire, to });
        self.shots.put(now + LURE_LASTS, Output::Close { wire });
    }

    /// Sends what was kept for this time. A connection is closed only if its registration still waits for a
    /// response: beyond its limits a server sends none.
    fn shoot(&mut self, shot: Output) {
        if let Output::Close { wire } = shot {
            let before = self.lures.len();
            self.lures.retain(|lure| lure.wire != wire);
            if self.lures.len() == before {
                return;
            }
        }
        self.out.push_back(shot);
    }

    /// Handles bytes on the connection of a registration, or its opening.
    fn lure_on(&mut self, now: Micros, wire: Wire, bytes: &[u8]) {
        let Some(place) = self.lures.iter().position(|lure| lure.wire == wire) else {
            return;
        };
        let lure = &mut self.lures[place];
        lure.received.extend_from_slice(bytes);
        let mut next = bytes.is_empty().then(|| Some(Next::Register(lure.register())));
        while let Some(text) = take_message(&mut lure.received) {
            next = Some(lure.response(&View::new(&text)));
        }
        match next {
            None => {}
            Some(Some(Next::Register(text))) => self.out.push_back(Output::Bytes {
                wire,
                bytes: text.clone().into_bytes(),
                message: text.into_bytes(),
            }),
            Some(over) => {
                if let Some(Next::Call(call)) = over {
                    self.shots.put(now + CALL_AFTER, call);
                }
                self.lures.remove(place);
                self.out.push_back(Output::Close { wire });
            }
        }
    }

    fn hear(&mut self, now: Micros, from: SocketAddr, to: SocketAddr, bytes: &[u8]) {
        let Ok(text) = std::str::from_utf8(bytes) else {
            return;
        };
        let view = View::new(text);
        let register = view.method() == "REGISTER" && view.status().is_none();
        let unbinds = view.get("Contact").ends_with("expires=0");
        if register && !unbinds && !view.get("Contact").is_empty() {
            self.binds.insert(from, text.to_owned());
        }
        let has_credentials =
            !view.get("Authorization").is_empty() || !view.get("Proxy-Authorization").is_empty();
        let wanted = |attack: &Attack| match attack {
            Attack::LateCopy { .. } => register && unbinds && self.binds.contains_key(&from),
            Attack::Borrow { .. } | Attack::Replay { .. } => has_credentials && view.status().is_none(),
            Attack::Change { .. } => {
                let has_contact = !view.get("Contact").is_empty();
                let is_of_phone = view.status().is_none() && view.all("Via").count() == 1;
                has_credentials
                    && is_of_phone
                    && has_contact
                    && matches!(view.method(), "REGISTER" | "INVITE")
            }
            Attack::Exchange { .. } => {
                let in_dialog = matches!(view.method(), "ACK" | "BYE") && !view.get("Route").is_empty();
                in_dialog && view.status().is_none()
            }
            Attack::Cancel { .. } => view.method() == "INVITE" && view.status().is_none(),
            Attack::Probe { .. }
            | Attack::Spoof { .. }
            | Attack::ForgedRoute { .. }
            | Attack::SelfSent { .. }
            | Attack::Lure { .. }
            | Attack::Flood { .. } => false,
        };
        let Some(place) = self.ready.iter().position(wanted) else {
            return;
        };
        let (after, from, text) = match self.ready.remove(place) {
            Attack::Borrow { after } => (after, self.address, self.altered(&view, OWN)),
            Attack::Replay { after } => (after, from, self.altered(&view, FORGED)),
            Attack::LateCopy { after } => (after, from, self.binds.get(&from).cloned().unwrap_or_default()),
            Attack::Exchange { user, after } => {
                // At a server that does not challenge the stranger may call: that is no attack.
                let user = user.filter(|_| self.asks_at(to));
                (after, self.address, self.exchanged(&view, from, user))
            }
            Attack::Cancel { after } => (after, self.address, cancel_of(&view)),
            Attack::Change { forged, after } => {
                let by = if forged { from } else { self.address };
                (after, by, self.changed(&view, from, forged))
            }
            Attack::Probe { .. }
            | Attack::Spoof { .. }
            | Attack::ForgedRoute { .. }
            | Attack::SelfSent { .. }
            | Attack::Lure { .. }
            | Attack::Flood { .. } => return,
        };
        let bytes = text.into_bytes();
        self.shots.put(now + after, Output::Datagram { from, to, bytes });
    }

    /// A forged request, as if from the other side of the dialog of `view`, which `source` sent. It has the
    /// other side's tags and the Route of `view`'s side. To a user it is an INVITE, else a MESSAGE to
    /// `source`.
    fn exchanged(&mut self, view: &View<'_>, source: SocketAddr, user: Option<usize>) -> String {
        let (_, branch) = self.branch(self.address);
        let (method, uri) = match user {
            Some(user) => ("INVITE", format!("sip:{}", USERS[user % USERS.len()])),
            None => ("MESSAGE", format!("sip:victim@{source}")),
        };
        let routes = view.all("Route").map(|route| format!("Route: {route}\r\n"));
        let routes: String = routes.collect();
        let (from, to, call_id) = (view.get("To"), view.get("From"), view.get("Call-ID"));
        let own = self.address;
        format!(
            "{method} {uri} SIP/2.0\r\nVia: SIP/2.0/UDP {own};branch={branch};rport\r\nMax-Forwards: 70\r\n{routes}\
             From: {from}\r\nTo: {to}\r\nCall-ID: {call_id}\r\nCSeq: 900 {method}\r\nContact: <sip:evil@{own}>\r\n\
             Content-Length: 0\r\n\r\n",
        )
    }

    /// A copy of a request in which everything is changed that its credentials do not cover (RFC 7616
    /// §3.4.3). The server admits the first request of a count, which may be the copy, so the copy of a
    /// REGISTER binds nothing.
    fn changed(&mut self, view: &View<'_>, source: SocketAddr, forged: bool) -> String {
        let (n, branch) = self.branch(self.address);
        let own = self.address;
        let via = match forged {
            true => format!("{}:{COPY_PORT};branch={}", source.ip(), view.branch()),
            false => format!("{own};branch={branch};rport"),
        };
        let is_register = view.method() == "REGISTER";
        let end = if is_register { ";expires=0" } else { "" };
        let change = |line: &str| match line.split(':').next().unwrap_or_default() {
            "Via" => format!("Via: SIP/2.0/UDP {via}"),
            "Call-ID" => format!("{CALL_ID}{n}"),
            "Contact" => format!("Contact: <sip:evil@{own}>{end}"),
            "To" if !is_register => "To: <sip:evil@elsewhere.example>".to_owned(),
            "Content-Length" => "Content-Length: 4".to_owned(),
            _ => line.to_owned(),
        };
        let head = view.text().split("\r\n\r\n").next().unwrap_or_default();
        let lines: Vec<String> = head.split("\r\n").map(change).collect();
        format!("{}\r\n\r\nevil", lines.join("\r\n"))
    }

    /// The same request with another branch; an INVITE also gets another Call-ID. Digest covers neither (RFC
    /// 7616 §3.4.3).
    fn altered(&mut self, view: &View<'_>, whose: &str) -> String {
        let n = self.serial();
        let text = view
            .text()
            .replacen(view.branch(), &format!("{BRANCH}{whose}{n}"), 1);
        if view.method() == "REGISTER" {
            return text;
        }
        let old = format!("Call-ID: {}", view.get("Call-ID"));
        text.replacen(&old, &format!("{CALL_ID}{n}"), 1)
    }
}

/// The CANCEL for an INVITE (RFC 3261 §9.1), except that it will come from another address.
fn cancel_of(view: &View<'_>) -> String {
    let line = view.text().lines().next().unwrap_or_default();
    let line = line.replacen("INVITE", "CANCEL", 1);
    let [via, from, to, call_id, cseq] = ["Via", "From", "To", "Call-ID", "CSeq"].map(|name| view.get(name));
    let number = cseq.split(' ').next().unwrap_or_default();
    format!(
        "{line}\r\nVia: {via}\r\nMax-Forwards: 70\r\nFrom: {from}\r\nTo: {to}\r\nCall-ID: {call_id}\r\n\
         CSeq: {number} CANCEL\r\nContent-Length: 0\r\n\r\n"
    )
}

impl Node for Stranger {
    fn handle(&mut self, clocks: Clocks, input: Input<'_>) {
        match input {
            Input::Overheard { from, to, bytes } => self.hear(clocks.now, from, to, bytes),
            Input::Timeout => {
                while let Some(plan) = self.plans.pop_front_if(|plan| plan.at <= clocks.now) {
                    self.begin(clocks.now, plan);
                }
                while let Some(shot) = self.shots.pop_due(clocks.now) {
                    self.shoot(shot);
                }
            }
            Input::Datagram { from, bytes, .. } => {
                let text = String::from_utf8_lossy(bytes);
                if let Some(ack) = ack(&View::new(&text)) {
                    self.out.push_back(Output::Datagram {
                        from: self.address,
                        to: from,
                        bytes: ack.into_bytes(),
                    });
                }
            }
            Input::Opened { wire, .. } => self.lure_on(clocks.now, wire, &[]),
            Input::Bytes { wire, bytes } => self.lure_on(clocks.now, wire, bytes),
            Input::Closed { wire } => self.lures.retain(|lure| lure.wire != wire),
            Input::Unreachable { .. } => {}
        }
    }

    fn poll_output(&mut self) -> Option<Output> {
        self.out.pop_front()
    }

    fn poll_timeout(&self) -> Option<Micros> {
        let plan = self.plans.front().map(|plan| plan.at);
        plan.into_iter().chain(self.shots.next_at()).min()
    }

    fn crash(&mut self, _clocks: Clocks, _power: bool) {}

    fn restart(&mut self, _clocks: Clocks) {}

    fn trouble(&mut self, _clocks: Clocks, _trouble: &Trouble) {}

    fn leftovers(&self) -> Option<String> {
        None
    }
}

//! An endpoint on a table: virtual time, messages in as text, messages out as text.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]
#![allow(
    clippy::unwrap_used,
    clippy::type_complexity,
    clippy::wildcard_enum_match_arm,
    reason = "helpers of tests"
)]

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use sip_core::auth::nonce::NonceId;
use sip_core::auth::window::{NonceUse, Windows};
use sip_core::config::{
    Action, Algorithm, AuthPolicy, Config, Domain, Durability, Listener, Nat, OwnHost, RegistrarPolicy,
    Relay, RelayTarget, Route, StateMode, Timers, When,
};
use sip_core::endpoint::{Endpoint, Handled, Keys};
use sip_core::id::{ConnId, ListenerId, WorkerId};
use sip_core::limits::Limits;
use sip_core::location::AorRecord;
use sip_core::location::codec::RecordRef;
use sip_core::location::reachability::{Reachability, flow_key};
use sip_core::location::shard::{Shard, Walked};
use sip_core::query::{Query, QueryKind, QueryResult, Record, Records, Secrets};
use sip_core::shared::SharedState;
use sip_core::time::{Instant, Now};
use sip_core::transport::framing::{Framed, Framer};
use sip_core::transport::{Flow, NextHop, Proof, TransmitBatch, Transport};

pub const PROXY: &str = "192.0.2.1:5060";
pub const CALLER: &str = "192.0.2.10:5060";
pub const CALLEE: &str = "192.0.2.20:5060";

/// Shared state of one process, in one cell.
pub struct Shared {
    shard: Mutex<Shard>,
    pub reachability: Mutex<Reachability>,
    windows: Mutex<Windows>,
    pub cached: Mutex<HashMap<(Vec<u8>, Vec<u8>), Option<Secrets>>>,
    /// Changes by other workers before the next changes, one after the other.
    pub before: Mutex<VecDeque<Option<fn(&mut AorRecord)>>>,
}

impl Default for Shared {
    fn default() -> Self {
        Self {
            shard: Mutex::new(Shard::new((1, 2))),
            reachability: Mutex::default(),
            windows: Mutex::new(Windows::new(1000, 0)),
            cached: Mutex::default(),
            before: Mutex::default(),
        }
    }
}

impl SharedState for Shared {
    fn update_bindings(&self, aor: &[u8], f: &mut dyn FnMut(&mut AorRecord)) {
        let before = self.before.lock().unwrap().pop_front();
        let mut shard = self.shard.lock().unwrap();
        if let Some(Some(other)) = before {
            shard.update(aor, other);
        }
        shard.update(aor, f);
    }
    fn read_bindings(&self, aor: &[u8], f: &mut dyn FnMut(RecordRef<'_>)) {
        if let Some(view) = self.shard.lock().unwrap().view(aor) {
            f(view);
        }
    }
    fn parts(&self) -> u32 {
        1
    }
    fn places(&self, _part: u32) -> u32 {
        self.shard.lock().unwrap().slots() as u32
    }
    fn walk_bindings(
        &self,
        _part: u32,
        from: u32,
        most: u32,
        f: &mut dyn FnMut(&[u8], RecordRef<'_>),
    ) -> Walked {
        self.shard.lock().unwrap().visit(from, most, f)
    }
    fn reachability(&self, flow: &Flow, f: &mut dyn FnMut(&mut Reachability, u64)) {
        f(&mut self.reachability.lock().unwrap(), flow_key((0, 0), flow));
    }
    fn has_lost_flows(&self) -> bool {
        self.reachability.lock().unwrap().lost() > 0
    }
    fn forget_flows(&self, _part: u32, before_unix_s: u64) {
        self.reachability.lock().unwrap().forget(before_unix_s);
    }
    fn location_bytes(&self) -> usize {
        self.shard.lock().unwrap().bytes()
    }
    fn use_nonce(&self, now_unix_ms: u64, nonce: NonceId, count: u32, request: u64) -> NonceUse {
        self.windows
            .lock()
            .unwrap()
            .use_nonce(now_unix_ms, nonce, count, request)
    }
    fn cached_secrets(&self, user: &[u8], domain: &[u8], _realm: &[u8]) -> Option<Option<Secrets>> {
        self.cached
            .lock()
            .unwrap()
            .get(&(user.to_vec(), domain.to_vec()))
            .cloned()
    }
}

#[track_caller]
pub fn listener(transport: Transport, address: &str) -> Listener {
    Listener {
        transport,
        address: address.parse().unwrap(),
        prefix_len: 24,
        sent_by: address.as_bytes().into(),
        preloaded_route: false,
        any_page: false,
        nat: Nat::Auto,
    }
}

/// One UDP and one TCP listener, one domain without authentication, everything to `CALLEE`.
pub fn config() -> Config {
    Config {
        server_header: Box::default(),
        listeners: vec![listener(Transport::Udp, PROXY), listener(Transport::Tcp, PROXY)],
        own_hosts: vec![OwnHost {
            host: b"proxy.example.com"[..].into(),
            port: None,
        }],
        domains: vec![Domain {
            name: b"example.com"[..].into(),
            aliases: vec![],
            auth: AuthPolicy {
                realm: b"example.com"[..].into(),
                methods: vec![],
                algorithms: vec![Algorithm::Md5],
                nonce_lifetime_s: 300,
                strict_uri: false,
            },
        }],
        routes: vec![relay("sip:192.0.2.20:5060")],
        groups: vec![],
        state: StateMode::Transaction,
        timers: Timers::default(),
        limits: Limits::default(),
        registrar: RegistrarPolicy {
            min_expires_s: 60,
            default_expires_s: 3600,
            max_expires_s: 7200,
            durability: Durability::Memory,
        },
        pings: None,
        trust: vec![],
        trust_names: vec![],
        destinations: sip_core::config::Destinations::default(),
        abuse: sip_core::config::Abuse::default(),
        credentials_deadline_ms: 3000,
        credentials_unavailable: 503,
        workers: 1,
        node_id: 1,
    }
}

/// The same with a TLS, a WS and a WSS listener: numbers 2, 3 and 4.
pub fn all_transports() -> Config {
    let mut config = config();
    config.listeners.extend([
        listener(Transport::Tls, "192.0.2.1:5061"),
        listener(Transport::Ws, "192.0.2.1:5066"),
        listener(Transport::Wss, "192.0.2.1:5067"),
    ]);
    config
}

/// From `from` to the listener of this transport among [`all_transports`]; over a connection in slot
/// `slot` but for UDP.
pub fn over(transport: Transport, from: &str, slot: u32) -> Flow {
    if transport == Transport::Udp {
        return udp_flow(from);
    }
    Flow {
        transport,
        listener: ListenerId(transport as u16),
        ..tcp_flow(from, slot)
    }
}

#[track_caller]
pub fn hop(uri: &str) -> NextHop {
    NextHop::parse(uri.as_bytes()).unwrap()
}

/// A rule that sends everything to `uri`.
pub fn relay(uri: &str) -> Route {
    Route {
        when: When::default(),
        action: Action::Relay(Relay::to(RelayTarget::Uri(hop(uri)))),
        auth: None,
        state: None,
        record_route: true,
    }
}

/// A message that left.
#[derive(Clone, Debug, PartialEq)]
pub struct Sent {
    pub to: Flow,
    pub text: String,
    /// The domain that a TLS peer must prove to be.
    pub peer: Option<String>,
    /// On its connection or not at all.
    pub pinned: bool,
}

impl Sent {
    pub fn address(&self) -> String {
        self.to.remote.to_string()
    }
    pub fn first_line(&self) -> &str {
        self.text.lines().next().unwrap_or_default()
    }
    /// Values of a header, one a line.
    pub fn headers(&self, name: &str) -> Vec<&str> {
        let head = self.text.split("\r\n\r\n").next().unwrap_or_default();
        head.split("\r\n")
            .filter_map(|l| l.split_once(':'))
            .filter(|(n, _)| n.trim().eq_ignore_ascii_case(name))
            .map(|(_, v)| v.trim())
            .collect()
    }
    pub fn header(&self, name: &str) -> &str {
        self.headers(name).first().copied().unwrap_or_default()
    }
}

/// The table.
pub struct Bench {
    pub endpoint: Endpoint,
    pub shared: Arc<Shared>,
    pub now_us: u64,
    batch: TransmitBatch,
}

impl Bench {
    pub fn new(config: &Config) -> Self {
        Self::worker(config, 0, Arc::new(Shared::default()))
    }

    /// Worker number `worker`, which shares `shared` with the others.
    pub fn worker(config: &Config, worker: u16, shared: Arc<Shared>) -> Self {
        let endpoint = Endpoint::new(config, &keys(worker as u8 + 9), WorkerId(worker), shared.clone());
        Self {
            endpoint,
            shared,
            now_us: 1_000_000,
            batch: TransmitBatch::new(),
        }
    }

    pub fn now(&self) -> Now {
        Now {
            instant: Instant::from_micros(self.now_us),
            unix_ms: 1_700_000_000_000 + self.now_us / 1000,
        }
    }

    pub fn drain(&mut self) -> Vec<Sent> {
        let mut out = vec![];
        while self.endpoint.poll_transmit(&mut self.batch) {
            for item in self.batch.items() {
                let text = String::from_utf8_lossy(self.batch.message(item)).into_owned();
                let peer = item.peer.as_ref().map(|name| name.as_str().to_string());
                out.push(Sent {
                    to: item.to,
                    text,
                    peer,
                    pinned: item.pinned,
                });
            }
        }
        out
    }

    pub fn udp(&mut self, from: &str, text: &str) -> Vec<Sent> {
        self.receive(udp_flow(from), text)
    }

    #[track_caller]
    pub fn receive(&mut self, flow: Flow, text: &str) -> Vec<Sent> {
        let handled = self.handle(flow, text);
        assert!(!matches!(handled, Handled::HandOver(_)), "{handled:?}: {text}");
        self.drain()
    }

    /// The endpoint's decision about a message. Messages that it sends stay for [`Bench::drain`].
    pub fn handle(&mut self, flow: Flow, text: &str) -> Handled {
        let now = self.now();
        self.endpoint.handle_message(now, flow, text.as_bytes())
    }

    /// The bytes of a new connection, given as the shell would. Returns whether the connection is closed then. What the
    /// endpoint sends stays for [`Bench::drain`].
    #[track_caller]
    pub fn stream(&mut self, flow: Flow, bytes: &[u8]) -> bool {
        let now = self.now();
        let mut framer = Framer::new(&Limits::default());
        let mut input = bytes;
        loop {
            match framer.next(&mut input) {
                Framed::Message(message) => {
                    let handled = self.endpoint.handle_message(now, flow, message);
                    assert!(!matches!(handled, Handled::HandOver(_)), "{handled:?}");
                    if handled == Handled::Close {
                        return true;
                    }
                }
                Framed::KeepAlivePing | Framed::KeepAlivePong => {}
                Framed::Error(error) => {
                    let elsewhere = self.endpoint.handle_framing_error(now, flow, error);
                    assert_eq!(elsewhere, None);
                    return true;
                }
                Framed::Incomplete => return false,
            }
        }
    }

    /// The transport says that `sent` could not be delivered.
    pub fn undelivered(&mut self, sent: &Sent) -> Vec<Sent> {
        let now = self.now();
        self.endpoint
            .handle_undelivered(now, sent.to, sent.text.as_bytes());
        self.drain()
    }

    pub fn counters(&self) -> sip_core::event::Counters {
        *self.endpoint.counters()
    }

    /// Nothing is left: no transaction, no timer, nothing parked, nothing live; and of connections
    /// only what is registered over them.
    #[track_caller]
    pub fn assert_idle(&self) {
        let g = self.endpoint.gauges();
        assert_eq!(g.server_transactions, 0, "server transactions are left");
        assert_eq!(g.client_transactions, 0, "client transactions are left");
        assert_eq!(g.timers, 0, "timers are left");
        assert_eq!(g.parked_requests, 0, "parked requests are left");
        assert_eq!(g.parked_bytes, 0, "bytes of parked requests are left");
        assert_eq!(g.transaction_bytes, 0, "bytes of transactions are left");
        assert_eq!(
            g.flows, g.flows_registered,
            "connections without registrations are left"
        );
        assert!(self.endpoint.is_idle(), "the endpoint is not idle");
    }

    /// Lets `ms` pass, firing timers as the shell would.
    pub fn pass(&mut self, ms: u64) -> Vec<Sent> {
        let end = self.now_us + ms * 1000;
        let mut out = vec![];
        while let Some(next) = self.endpoint.poll_timeout() {
            if next.as_micros() > end {
                break;
            }
            self.now_us = self.now_us.max(next.as_micros());
            let now = self.now();
            self.endpoint.handle_timeout(now);
            out.extend(self.drain());
        }
        self.now_us = end;
        out
    }

    #[track_caller]
    pub fn query(&mut self) -> Query {
        self.endpoint.poll_query().expect("a query")
    }

    #[track_caller]
    pub fn answer(&mut self, query: &Query, answer: QueryResult) -> Vec<Sent> {
        let now = self.now();
        self.endpoint.handle_result(now, query.id.unwrap(), answer);
        self.drain()
    }

    #[track_caller]
    pub fn no_query(&mut self) {
        let query = self.endpoint.poll_query();
        assert!(query.is_none(), "an unexpected query: {query:?}");
    }

    /// Name and type of a query to name service.
    #[track_caller]
    pub fn resolve_kind(query: &Query) -> String {
        match &query.kind {
            QueryKind::Resolve { name, kind } => format!("{} {kind:?}", String::from_utf8_lossy(name)),
            other => panic!("{other:?}"),
        }
    }

    /// Gives results from `zone` for all queries to name service. Returns what was asked and what
    /// left then.
    pub fn serve(&mut self, zone: Zone<'_>) -> (Vec<String>, Vec<Sent>) {
        let (mut asked, mut sent) = (vec![], vec![]);
        while let Some(query) = self.endpoint.poll_query() {
            let what = Self::resolve_kind(&query);
            let values = zone
                .iter()
                .find(|z| z.0 == what)
                .map(|z| z.1.clone())
                .unwrap_or_default();
            asked.push(what);
            let records = Records { ttl_s: 60, values };
            sent.extend(self.answer(&query, QueryResult::Resolved(Ok(records))));
        }
        (asked, sent)
    }
}

/// Record sets by name and type, as `host.example A`.
pub type Zone<'a> = &'a [(&'a str, Vec<Record>)];

#[track_caller]
pub fn address(ip: &str) -> Record {
    Record::Address(ip.parse().unwrap())
}

pub fn service(priority: u16, weight: u16, port: u16, target: &str) -> Record {
    Record::Service {
        priority,
        weight,
        port,
        target: target.as_bytes().into(),
    }
}

/// Keys of a worker: the domain's secret is common, the seed its own.
pub fn keys(seed: u8) -> Keys {
    Keys {
        domain_secret: [7; 32],
        seed: [seed; 32],
    }
}

/// Address and first line of each message.
pub fn lines(sent: &[Sent]) -> Vec<String> {
    sent.iter()
        .map(|s| format!("{} {}", s.address(), s.first_line()))
        .collect()
}

/// The one message of `sent`.
#[track_caller]
pub fn one(sent: Vec<Sent>) -> Sent {
    assert_eq!(sent.len(), 1, "{:?}", lines(&sent));
    sent.into_iter().next().unwrap()
}

/// A connection to listener 1 of [`config`], in slot `slot` of worker 0.
#[track_caller]
pub fn tcp_flow(from: &str, slot: u32) -> Flow {
    Flow {
        transport: Transport::Tcp,
        listener: ListenerId(1),
        remote: from.parse().unwrap(),
        conn: Some(ConnId {
            worker: WorkerId(0),
            slot,
            generation: 7,
        }),
        proof: Proof::None,
    }
}

/// Text with CRLF line ends.
pub fn crlf(text: &str) -> String {
    text.replace('\n', "\r\n")
}

#[track_caller]
pub fn udp_flow(from: &str) -> Flow {
    let remote: SocketAddr = from.parse().unwrap();
    Flow::udp(remote)
}

/// A request with CRLF line ends; `extra` lines end in `\n`.
pub fn request(method: &str, uri: &str, branch: &str, extra: &str) -> String {
    let text = format!(
        "{method} {uri} SIP/2.0\nVia: SIP/2.0/UDP 192.0.2.10:5060;branch=z9hG4bK{branch}\nMax-Forwards: 70\n\
         From: <sip:alice@example.com>;tag=f1\nTo: <sip:bob@example.com>\nCall-ID: c1@192.0.2.10\nCSeq: 1 {method}\n\
         {extra}Content-Length: 0\n\n"
    );
    text.replace('\n', "\r\n")
}

/// A response to a request that left the proxy, as the callee makes it.
pub fn response(request: &Sent, status: &str, extra: &str) -> String {
    let mut text = format!("SIP/2.0 {status}\r\n");
    for name in ["Via", "Record-Route", "From", "Call-ID", "CSeq"] {
        for value in request.headers(name) {
            text += &format!("{name}: {value}\r\n");
        }
    }
    let to = request.header("To");
    let tag = if to.contains("tag=") || status.starts_with("100") {
        ""
    } else {
        ";tag=t1"
    };
    text += &format!(
        "To: {to}{tag}\r\n{}Content-Length: 0\r\n\r\n",
        extra.replace('\n', "\r\n")
    );
    text
}

/// Without the digits of dialog marks, which differ on the two sides of this server.
pub fn unmarked(text: &str) -> String {
    let mut parts = text.split(";tz=");
    let first = parts.next().unwrap_or_default().to_string();
    parts.fold(first, |text, part| text + ";tz=" + part.get(32..).unwrap_or(part))
}

/// The topmost Via without the seed of marks, which only what begins a dialog has.
pub fn via_without_seed(sent: &Sent) -> String {
    let via = sent.header("Via");
    match via
        .split_once(";tz=")
        .map(|(before, token)| (before, token.split_once('-')))
    {
        Some((before, Some((ingress, _)))) => format!("{before};tz={ingress}"),
        _ => via.to_owned(),
    }
}

/// The Record-Route values that the caller gets with the response to `invite` from `callee`, the
/// nearest first: its route.
#[track_caller]
pub fn route_of_caller(bench: &mut Bench, callee: Flow, invite: &Sent) -> Vec<String> {
    let sent = bench.receive(callee, &response(invite, "200 OK", ""));
    let answer = sent
        .iter()
        .find(|s| s.first_line() == "SIP/2.0 200 OK")
        .expect("it is relayed");
    let route = answer.headers("Record-Route");
    route.iter().rev().map(|value| (*value).to_string()).collect()
}

pub fn without_100(mut sent: Vec<Sent>) -> Vec<Sent> {
    sent.retain(|s| s.first_line() != "SIP/2.0 100 Trying");
    sent
}

/// A request in a dialog between alice, the caller, and bob: by this route set, to this remote target.
pub fn in_dialog(method: &str, uri: &str, from_caller: bool, route: &[impl AsRef<str>]) -> String {
    let (from, to) = match from_caller {
        true => ("<sip:alice@example.com>;tag=f1", "<sip:bob@example.com>;tag=t1"),
        false => ("<sip:bob@example.com>;tag=t1", "<sip:alice@example.com>;tag=f1"),
    };
    let route: String = route.iter().map(|r| format!("Route: {}\n", r.as_ref())).collect();
    request(method, uri, &format!("d{method}{from_caller}"), &route)
        .replace("From: <sip:alice@example.com>;tag=f1", &format!("From: {from}"))
        .replace("To: <sip:bob@example.com>", &format!("To: {to}"))
}

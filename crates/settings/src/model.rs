//! The configuration file as serde and schemars see it: one struct for each table.
//!
//! This is the only list of keys, defaults and ranges. The JSON Schema made from it checks the
//! file (`shape`), is printed by `config-schema`, and writes the tables of
//! `docs/configuration.md`; the comments below are the descriptions in both.

mod abuse;
mod destinations;
mod groups;
mod overload;
mod subscribers;
mod tls;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub(crate) use abuse::Abuse;
pub(crate) use destinations::Destinations;
pub(crate) use groups::{Group, GroupAlgorithm, Member, hold_s};
pub(crate) use overload::Overload;
pub(crate) use subscribers::{CredentialMode, Credentials, OnUnavailable, Subscribers};
pub(crate) use tls::{ClientAuth, Connection, ListenTls, Tls, TlsPeer, TlsVersion};

/// Configuration of the SIP server Trapezoid. Every table and key is optional.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Settings {
    pub server: Server,
    /// Sockets to listen on. Absent: UDP and TCP, port 5060, TLS, port 5061, and WS, port 5066, of every address of the
    /// machine.
    #[schemars(length(max = 256))]
    pub listen: Vec<Listen>,
    pub tls: Tls,
    pub subscribers: Subscribers,
    pub location: Location,
    pub nat: Nat,
    /// Domains served here. Absent: the built-in domain `trapezoid` with realm `trapezoid`, default policy and
    /// `own_hosts = true`.
    #[schemars(length(max = 10_000))]
    pub domain: Vec<Domain>,
    pub credentials: Credentials,
    pub state: State,
    /// Routing rules for new requests; the first that matches wins. No match: the registered contacts for our own
    /// domains, else 403. A REGISTER for our own domains goes by no rule.
    #[schemars(length(max = 10_000))]
    pub route: Vec<Route>,
    /// Groups of next hops, to which rules relay.
    #[schemars(length(max = 1000))]
    pub group: Vec<Group>,
    pub trust: Trust,
    pub destinations: Destinations,
    pub abuse: Abuse,
    pub overload: Overload,
    pub timers: Timers,
    pub transport: Transport,
    pub limits: Limits,
    pub dns: Dns,
    pub log: Log,
    pub admin: Admin,
}

/// The process as a whole.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Server {
    /// Host name of this server, as written in Via and Record-Route. Other servers and phones
    /// must be able to resolve it to this machine.
    #[schemars(extend("x-default" = "none: each listener's own address"))]
    pub name: Option<String>,
    /// Worker threads; 0: one for each processor.
    #[schemars(range(max = 256))]
    pub workers: u16,
    /// Directory of the server's own files: keys, and the databases whose place is not given.
    /// Created if absent, with access for its owner only.
    pub data_dir: String,
    /// How long requests under way may take after SIGTERM before the process ends; it ends as soon as each
    /// has its final response. New requests get 503 meanwhile. Established calls go on without the server,
    /// and through it once it is back.
    #[schemars(range(max = 3600))]
    pub drain_s: u32,
    /// How long after SIGTERM requests are served as before, while `/health/ready` says 503, so that a balancer takes
    /// this server out before it refuses anything. Draining (`drain_s`) begins after that.
    #[schemars(range(max = 3600))]
    pub drain_min_s: u32,
}

impl Default for Server {
    fn default() -> Self {
        Self {
            name: None,
            workers: 0,
            data_dir: "data".to_owned(),
            drain_s: 32,
            drain_min_s: 0,
        }
    }
}

/// A socket to listen on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Listen {
    /// Transport protocol.
    pub transport: ListenTransport,
    /// Address and port, as `192.0.2.1:5060` or `[2001:db8::1]:5060`. `0.0.0.0` and `[::]` stand for
    /// every address of that family that the machine has at start (link-local ones excepted), each
    /// with a listener of its own.
    pub address: String,
    /// `host` or `host:port` written in Via and Record-Route instead, exactly as given; for a server behind a
    /// translating firewall.
    #[serde(default)]
    #[schemars(extend("x-default" = "`server.name` with the port; else the address"))]
    pub advertise: Option<String>,
    /// Follow Route headers that are not ours in new requests from sources in `trust.peers`; from
    /// others, and without this, they are refused with 403.
    #[serde(default)]
    pub preloaded_route: bool,
    /// For `udp`: whether user agents behind a NAT are reached in their dialogs where their requests came from, and not at
    /// their Contact. `auto`: those whose Contact shows it; `always`: all; `never`: none. Peers in `trust.peers`, in groups and
    /// in a rule's `source` never are.
    #[serde(default)]
    #[schemars(extend("x-default" = "`auto`"))]
    pub nat: Option<ListenNat>,
    #[serde(default)]
    pub tls: Option<ListenTls>,
    /// For `ws` and `wss`: the origins whose pages may connect, as `https://phone.example.com`; `[]`: no page
    /// at all. Clients that are no browsers send no origin, and are let in. Without `origins` any page may
    /// connect, so `trust.peers` and a rule's `source` do not hold here.
    #[serde(default)]
    #[schemars(extend("x-default" = "every page"), length(max = 256))]
    pub origins: Option<Vec<String>>,
    /// For `tcp` and `tls`: how connections that we open from here are shared. `per-peer`: one to each peer;
    /// `per-call`: one for each call.
    #[serde(default)]
    #[schemars(extend("x-default" = "`per-peer`"))]
    pub connection: Option<Connection>,
}

/// How user agents behind a NAT are recognized.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ListenNat {
    #[default]
    Auto,
    Always,
    Never,
}

/// Transports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ListenTransport {
    Udp,
    Tcp,
    Tls,
    Ws,
    Wss,
}

impl ListenTransport {
    /// As the file writes it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Tcp => "tcp",
            Self::Tls => "tls",
            Self::Ws => "ws",
            Self::Wss => "wss",
        }
    }
}

/// Registrations: where a user can be reached.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Location {
    /// Where registrations are kept: `sqlite:FILE`, or `memory:` (forgotten at a restart).
    #[schemars(extend("x-default" = "`sqlite:` and `location.db` in `server.data_dir`"))]
    pub url: Option<String>,
    /// When a REGISTER gets its 200. `commit`: once its binding is on disk; `async`: at once, the write
    /// follows; `memory`: at once, nothing is written.
    #[schemars(extend("x-default" = "`commit`; with `memory:`, `memory`"))]
    pub durability: Option<Durability>,
    /// A shorter registration is refused with 423 (RFC 3261 §10.2.8).
    #[schemars(range(min = 1, max = 86_400))]
    pub min_expires_s: u32,
    /// Granted if a REGISTER names no time.
    #[schemars(range(min = 1, max = 31_536_000))]
    pub default_expires_s: u32,
    /// A longer registration is shortened to this.
    #[schemars(range(min = 1, max = 31_536_000))]
    pub max_expires_s: u32,
    /// Contacts of one address-of-record. One more: the REGISTER is refused with 403.
    #[schemars(range(min = 1, max = 1000))]
    pub max_contacts: usize,
}

impl Default for Location {
    fn default() -> Self {
        Self {
            url: None,
            durability: None,
            min_expires_s: 60,
            default_expires_s: 3600,
            max_expires_s: 7200,
            max_contacts: 10,
        }
    }
}

/// Pings of registered contacts behind NATs, by UDP. They keep the ports open that the NATs opened for the phones.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Nat {
    /// What is sent: `options`: OPTIONS, to which any response shows that the phone is there; `crlf`: OPTIONS until the first
    /// response, then empty lines, to which there is none; `none`: nothing.
    pub ping: NatPing,
    /// Time from one ping of a contact to the next. Many NATs close a port that was silent for 30 s.
    #[schemars(range(min = 1, max = 3600))]
    pub ping_s: u32,
    /// Pings in a row without a response after which a contact that has answered before gets no more requests, until it answers
    /// or registers again. A contact that has never answered gets requests all the same, but only this many pings after each
    /// REGISTER, and four more at growing intervals.
    #[schemars(range(min = 1, max = 100))]
    pub ping_lost: u8,
    /// Remove contacts that are lost, instead of leaving them out.
    pub remove_lost: bool,
}

impl Default for Nat {
    fn default() -> Self {
        Self {
            ping: NatPing::Options,
            ping_s: 25,
            ping_lost: 3,
            remove_lost: false,
        }
    }
}

/// What is sent to contacts behind NATs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum NatPing {
    Options,
    Crlf,
    None,
}

/// When a REGISTER gets its 200.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Durability {
    Commit,
    Async,
    Memory,
}

/// A domain served here.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Domain {
    /// Its name; subscribers are stored under it.
    pub name: String,
    /// Other names of the same domain.
    #[serde(default)]
    #[schemars(length(max = 1000))]
    pub aliases: Vec<String>,
    /// Count every address that this server listens on, every advertised name, `server.name`, `localhost`
    /// and the machine's host name (also with `.local`) as aliases, so that a phone may use any of them as
    /// its domain. For one domain at most.
    #[serde(default)]
    pub own_hosts: bool,
    #[serde(default)]
    pub auth: Auth,
}

/// Authentication: which requests need credentials, and how they are checked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Auth {
    /// Realm of challenges. Stored hashes contain it: changing it makes them useless.
    #[schemars(extend("x-default" = "the domain's `name`"))]
    pub realm: Option<String>,
    /// Methods that need credentials. `"*"`: all outside of dialogs, except ACK and CANCEL; `[]`: none. In a
    /// dialog a side is challenged if it has an account here, only for methods named here. Leave BYE out:
    /// many phones fail on a challenge to it.
    #[schemars(length(max = 32))]
    pub methods: Vec<String>,
    /// Authentication schemes offered.
    #[schemars(length(min = 1, max = 1))]
    pub schemes: Vec<Scheme>,
    /// Digest algorithms offered, in order of preference (RFC 8760). Many phones give up on a
    /// challenge whose first algorithm is not MD5.
    #[schemars(length(min = 1, max = 3))]
    pub algorithms: Vec<Algorithm>,
    /// How long a nonce is good; then the phone is challenged again with `stale=true`, and sends credentials
    /// without asking its user.
    #[schemars(range(min = 10, max = 86_400))]
    pub nonce_lifetime_s: u32,
    /// Whether `uri` in credentials must be the Request-URI. If `false`, it may name the same user at another
    /// name of this server: a proxy before this one may rewrite the host.
    pub strict_uri: bool,
}

impl Default for Auth {
    fn default() -> Self {
        let methods = [
            "REGISTER",
            "INVITE",
            "MESSAGE",
            "SUBSCRIBE",
            "PUBLISH",
            "REFER",
            "*",
        ];
        Self {
            realm: None,
            methods: methods.map(str::to_owned).to_vec(),
            schemes: vec![Scheme::Digest],
            algorithms: vec![Algorithm::Md5],
            nonce_lifetime_s: 300,
            strict_uri: false,
        }
    }
}

/// Authentication schemes of this version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Scheme {
    Digest,
}

/// Digest algorithms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub(crate) enum Algorithm {
    #[serde(rename = "SHA-512-256")]
    Sha512_256,
    #[serde(rename = "SHA-256")]
    Sha256,
    #[serde(rename = "MD5")]
    Md5,
}

/// What is remembered of a request that is passed on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct State {
    /// `stateless`: nothing (RFC 3261 §16.11); `transaction`: its transaction, so that retransmissions stay
    /// here and another address is tried when one fails.
    pub mode: StateMode,
}

impl Default for State {
    fn default() -> Self {
        Self {
            mode: StateMode::Transaction,
        }
    }
}

/// State kept for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum StateMode {
    Stateless,
    Transaction,
}

/// A routing rule: what to do with requests for which all conditions hold.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Route {
    #[serde(default)]
    pub when: When,
    pub r#do: Do,
    /// `true`, `false`: whether credentials are needed.
    #[serde(default)]
    #[schemars(extend("x-default" = "the domain's policy"))]
    pub auth: Option<bool>,
    /// As `state.mode`, for this rule.
    #[serde(default)]
    #[schemars(extend("x-default" = "`state.mode`"))]
    pub state: Option<StateMode>,
    /// Stay in the path of the dialog.
    #[serde(default = "yes")]
    pub record_route: bool,
}

fn yes() -> bool {
    true
}

/// Conditions of a rule; what is absent holds for every request.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct When {
    /// Methods; one of them. `"REGISTER"` makes this server an edge: a REGISTER to a domain that is not in `[[domain]]`
    /// goes to the URI or group of `relay`, with a Path. A rule without it takes no REGISTER.
    #[schemars(length(max = 32))]
    pub method: Vec<String>,
    /// Regular expression on the Request-URI in one spelling, which is described below the table. Matched in
    /// linear time; at most 1 MiB compiled.
    #[schemars(extend("x-default" = "none"), length(max = 4096))]
    pub uri: Option<String>,
    /// Domain of the Request-URI; if the URI has `maddr`, that host.
    #[schemars(extend("x-default" = "none"))]
    pub domain: Option<String>,
    /// Networks of the source address, as `10.0.0.0/8`; one of them.
    #[schemars(length(max = 1000))]
    pub source: Vec<String>,
    /// Header fields and their exact values, as `{ "X-Trunk" = "a" }`; all of them.
    #[schemars(extend("maxProperties" = 32))]
    pub header: BTreeMap<String, String>,
}

/// What a rule does: `relay`, `redirect` or `reject`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Do {
    /// Send on: to a SIP URI (the next hop; the Request-URI stays), `"group:NAME"` (a member of that
    /// `[[group]]`), `"location"` (the registered contacts), or `"request-uri"` (where the Request-URI points).
    #[schemars(extend("x-default" = "none"))]
    pub relay: Option<String>,
    /// Characters taken from the front of the Request-URI's user part.
    #[schemars(range(max = 255))]
    pub strip: u16,
    /// Put before the Request-URI's user part, after `strip`.
    #[schemars(length(max = 255))]
    pub prefix: String,
    /// Put the next hop's host and port into the Request-URI; of a group, those of the member.
    pub rewrite_host: bool,
    /// Give up if no final response came in this time.
    #[schemars(extend("x-default" = "`timers.c_s`"), range(min = 1, max = 3600))]
    pub timeout_s: Option<u32>,
    /// Follow the contacts of a 3xx in place of the caller (RFC 3261 §16.7), if the request is for one of our
    /// domains; with `relay` to `"location"`, a URI or a group, and with state.
    pub recurse: bool,
    /// Respond with 302 and the registered contacts (`"location"`), or this SIP URI. If that URI has no user
    /// part, it gets that of the Request-URI.
    #[schemars(extend("x-default" = "none"))]
    pub redirect: Option<String>,
    /// Refuse with this status code.
    #[schemars(extend("x-default" = "none"), range(min = 300, max = 699))]
    pub reject: Option<u16>,
    /// Reason phrase of the refusal.
    #[schemars(extend("x-default" = "that of the code"), length(max = 255))]
    pub reason: Option<String>,
}

/// Peers that are believed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Trust {
    /// Peers whose P-Asserted-Identity is kept: networks, as `10.0.0.0/24` or a single address, and SIP
    /// domains that a peer must prove by its certificate (RFC 5922), as `san:edge2.example.com`; the listener
    /// must ask for certificates. From any other source the header is removed.
    #[schemars(length(max = 1000))]
    pub peers: Vec<String>,
}

/// Protocol timers (RFC 3261 table 4). The others follow from these.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Timers {
    /// T1, the estimate of a round trip: first retransmission; time-outs are 64 times it.
    #[schemars(range(min = 100, max = 5000))]
    pub t1_ms: u32,
    /// T2, the longest interval between retransmissions of requests other than INVITE and of
    /// responses to INVITE.
    #[schemars(range(min = 100, max = 60_000))]
    pub t2_ms: u32,
    /// T4, the longest time that a message stays in the network.
    #[schemars(range(min = 100, max = 60_000))]
    pub t4_ms: u32,
    /// Timer C: an INVITE without a final response is cancelled after this. RFC 3261 §16.6 asks for more than
    /// 180.
    #[schemars(range(min = 1, max = 3600))]
    pub c_s: u32,
}

impl Default for Timers {
    fn default() -> Self {
        let core = sip_core::config::Timers::default();
        Self {
            t1_ms: core.t1_ms,
            t2_ms: core.t2_ms,
            t4_ms: core.t4_ms,
            c_s: core.c_ms / 1000,
        }
    }
}

/// Sockets and connections. Each worker has its own: nothing here is a total over workers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Transport {
    /// A connection on which nothing came or went for this long is closed. Keep-alives count.
    #[schemars(range(min = 10, max = 86_400))]
    pub idle_s: u32,
    /// As `idle_s`, for connections that we opened for one call (`connection = "per-call"`).
    #[schemars(range(min = 1, max = 86_400))]
    pub per_call_idle_s: u32,
    /// Time in which the handshakes of TLS and WebSocket must be done; then the connection is closed.
    #[schemars(range(min = 1, max = 300))]
    pub handshake_s: u32,
    /// Time in which a peer that has connected must have sent a whole message; then the connection is closed. 0: any
    /// time.
    #[schemars(range(max = 3600))]
    pub first_message_s: u32,
    /// A WebSocket without traffic for this long gets a ping (RFC 6455 §5.5.2); if nothing comes for as long
    /// again, it is closed. 0: no pings.
    #[schemars(range(max = 3600))]
    pub ws_ping_s: u32,
    /// Time to open a connection; then the next hop counts as unreachable.
    #[schemars(range(min = 100, max = 60_000))]
    pub connect_timeout_ms: u32,
    /// Time in which a message that has begun to arrive on a connection must be complete; then the connection
    /// is closed.
    #[schemars(range(min = 100, max = 600_000))]
    pub message_timeout_ms: u32,
    /// Time in which a peer must take at least some of what waits for it, and its system acknowledge what was
    /// sent; then the connection is closed, and what waited counts as undelivered.
    #[schemars(range(min = 1000, max = 600_000))]
    pub write_timeout_ms: u32,
    /// Time in which the system of a neighbour to which we have connected must acknowledge what was sent, if that
    /// is less; then the connection is closed, and the next message opens another. After three times as long a
    /// silence the neighbour's system is asked whether it is there (TCP keep-alive).
    #[schemars(range(min = 1000, max = 600_000))]
    pub peer_timeout_ms: u32,
    /// Open connections of one worker. A sixteenth is kept for those that we open, half for those that peers
    /// open. Beyond, new ones of peers are closed at once and none is opened from here; both are counted.
    #[schemars(range(min = 1, max = 10_000_000))]
    pub max_connections: usize,
    /// Start line and header fields of one message on a stream. Larger: 400, and the connection is closed.
    #[schemars(range(min = 1024, max = 1_048_576))]
    pub max_header_bytes: usize,
    /// Body of one message on a stream. Larger: 413, and the connection is closed.
    #[schemars(range(max = 67_108_864))]
    pub max_body_bytes: usize,
    /// What waits to be written on one connection. At the limit it is closed, and what waited counts as
    /// undelivered.
    #[schemars(range(min = 65_536, max = 268_435_456))]
    pub write_buffer_bytes: usize,
    /// What all connections of one worker hold, unsent or incomplete. Beyond it the connection that holds the
    /// most is closed, and what waited on it counts as undelivered.
    #[schemars(extend("x-default" = "an eighth of the machine's memory, shared out among the workers; 2 MiB at least, 256 MiB at most"))]
    #[schemars(range(min = 1_048_576, max = 68_719_476_736_u64))]
    pub connection_bytes: Option<usize>,
    /// Receive buffer asked of the kernel for each UDP socket; it may give less (`net.core.rmem_max`). When it
    /// is full the kernel drops datagrams; they are counted.
    #[schemars(range(min = 65_536, max = 1_073_741_824))]
    pub udp_receive_buffer_bytes: usize,
    /// Send buffer asked of the kernel for each UDP socket.
    #[schemars(range(min = 65_536, max = 1_073_741_824))]
    pub udp_send_buffer_bytes: usize,
    /// A longer request over UDP, in bytes, leaves by TCP if a listener speaks TCP and the next hop has not
    /// asked for UDP (RFC 3261 §18.1.1). If TCP fails, it leaves by UDP after all, and for five minutes at
    /// once. 0: none leaves by TCP for its length.
    #[schemars(range(max = 65_535))]
    pub udp_mtu: usize,
    /// Datagrams that wait for room in that buffer. At the limit they are dropped and counted.
    #[schemars(range(min = 65_536, max = 1_073_741_824))]
    pub udp_backlog_bytes: usize,
    /// Messages on their way from one worker to another. At the limit they are dropped and counted.
    #[schemars(range(min = 16, max = 1_048_576))]
    pub handover_messages: usize,
    /// Bytes of those messages. At the limit they are dropped and counted.
    #[schemars(extend("x-default" = "a 64th of the machine's memory, shared out among the workers; 2 MiB at least, 32 MiB at most"))]
    #[schemars(range(min = 1_048_576, max = 1_073_741_824))]
    pub handover_bytes: Option<usize>,
}

impl Default for Transport {
    fn default() -> Self {
        let core = sip_core::limits::Limits::default();
        let net = sip_net::settings::Settings::default();
        Self {
            idle_s: net.idle_timeout_ms / 1000,
            per_call_idle_s: net.per_call_idle_ms / 1000,
            handshake_s: net.handshake_timeout_ms / 1000,
            first_message_s: net.first_message_timeout_ms / 1000,
            ws_ping_s: net.ws_ping_ms / 1000,
            connect_timeout_ms: net.connect_timeout_ms,
            message_timeout_ms: net.message_timeout_ms,
            write_timeout_ms: net.write_timeout_ms,
            peer_timeout_ms: net.peer_timeout_ms,
            max_connections: net.connections,
            max_header_bytes: core.header_bytes,
            max_body_bytes: core.body_bytes,
            write_buffer_bytes: net.write_queue_bytes,
            connection_bytes: None,
            udp_receive_buffer_bytes: net.udp_receive_buffer,
            udp_send_buffer_bytes: net.udp_send_buffer,
            udp_mtu: core.udp_mtu,
            udp_backlog_bytes: net.udp_backlog_bytes,
            handover_messages: net.mailbox_messages,
            handover_bytes: None,
        }
    }
}

/// Upper bounds on what the server holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Limits {
    /// Header fields of one message. More: 400.
    #[schemars(range(min = 16, max = 4096))]
    pub headers: usize,
    /// Live transactions of one worker. At the limit a new request that needs one gets 503.
    #[schemars(range(min = 100, max = 100_000_000))]
    pub transactions: usize,
    /// Transactions of one worker, finished ones included, which are kept for 32 s to absorb retransmissions.
    /// At the limit a new request that needs one gets 503.
    #[schemars(range(min = 1000, max = 1_000_000_000))]
    pub held_transactions: usize,
    /// Bytes of the messages that one worker's transactions hold. At the limit a new request that needs one
    /// gets 503. An eighth above it responses go on but are not kept, and no further targets are tried.
    #[schemars(extend("x-default" = "a quarter of the machine's memory, shared out among the workers; 2 MiB at least, 2 GiB at most"))]
    #[schemars(range(min = 1_048_576, max = 68_719_476_736_u64))]
    pub transaction_bytes: Option<usize>,
    /// Branches of one request, over all its targets and their addresses. At the limit no other is tried.
    #[schemars(range(min = 1, max = 255))]
    pub branches: usize,
    /// Requests of one worker that wait for a look-up. At the limit: 503.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub parked_requests: usize,
    /// Bytes of those requests. At the limit: 503.
    #[schemars(extend("x-default" = "a 32nd of the machine's memory, shared out among the workers; 2 MiB at least, 64 MiB at most"))]
    #[schemars(range(min = 65_536, max = 17_179_869_184_u64))]
    pub parked_bytes: Option<usize>,
    /// Bytes that registrations take in memory, over all workers; one phone takes about 240. At the limit a
    /// REGISTER that adds a contact gets 503, and refreshes go on. An eighth above the limit, a refresh with
    /// longer texts than before gets 503, too.
    #[schemars(extend("x-default" = "a quarter of the machine's memory; 2 MiB at least, 2 GiB at most"))]
    #[schemars(range(min = 1_048_576, max = 1_099_511_627_776_u64))]
    pub location_bytes: Option<usize>,
    /// DNS results that one worker keeps. At the limit the one that expires soonest leaves.
    #[schemars(range(min = 16, max = 1_000_000))]
    pub dns_entries: usize,
    /// Events that wait to be recorded, of one worker. At the limit new ones are dropped and counted.
    #[schemars(range(min = 1, max = 10_000_000))]
    pub events: usize,
    /// Nonces whose use is remembered against replay. At the limit the oldest leaves, and its user is
    /// challenged again with `stale=true`.
    #[schemars(range(min = 1000, max = 100_000_000))]
    pub nonces: usize,
    /// Route values of one request. More: 400.
    #[schemars(range(min = 1, max = 1000))]
    pub route_values: usize,
    /// Via values of one message. More: 400.
    #[schemars(range(min = 1, max = 1000))]
    pub via_values: usize,
    /// Connections from one address (of IPv6, one network of 64 bits) at one worker, and those opened to it, unless for
    /// one call alone. At the limit new ones are closed at once, or not opened, and counted. 0: any number.
    #[schemars(range(max = 10_000_000))]
    pub connections_per_address: usize,
    /// Steps of TLS handshakes that one worker does in a turn; what is more waits while established connections are
    /// served.
    #[schemars(range(min = 1, max = 1024))]
    pub handshakes_per_turn: usize,
}

impl Default for Limits {
    fn default() -> Self {
        let core = sip_core::limits::Limits::default();
        let net = sip_net::settings::Settings::default();
        Self {
            headers: core.headers,
            transactions: core.transactions,
            held_transactions: core.held_transactions,
            transaction_bytes: None,
            branches: core.branches,
            parked_requests: core.parked_requests,
            parked_bytes: None,
            location_bytes: None,
            dns_entries: core.dns_entries,
            events: core.events,
            nonces: core.nonces,
            route_values: core.route_values,
            via_values: core.via_values,
            connections_per_address: net.connections_per_address,
            handshakes_per_turn: net.handshakes_per_turn,
        }
    }
}

/// Name resolution.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Dns {
    /// Addresses of name servers, as `192.0.2.53` or `192.0.2.53:5353`; `[]`: those of the system.
    #[schemars(length(max = 16))]
    pub nameservers: Vec<String>,
    /// How long to wait for a result.
    #[schemars(range(min = 100, max = 30_000))]
    pub timeout_ms: u32,
}

impl Default for Dns {
    fn default() -> Self {
        Self {
            nameservers: Vec::new(),
            timeout_ms: 2000,
        }
    }
}

/// Logs, on standard error.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// The least level that is written.
    pub level: LogLevel,
    /// `text` for people, `json` for machines: one object a line.
    pub format: LogFormat,
    /// Lines of one cause written in `interval_s`; what is more is counted, and the number is
    /// written at the end of the interval.
    #[schemars(range(min = 1, max = 10_000))]
    pub burst: u32,
    /// Length of that interval.
    #[schemars(range(min = 1, max = 3600))]
    pub interval_s: u32,
}

impl Default for Log {
    fn default() -> Self {
        Self {
            level: LogLevel::Info,
            format: LogFormat::Text,
            burst: 10,
            interval_s: 10,
        }
    }
}

/// Log levels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    Text,
    Json,
}

/// HTTP for operators: `/metrics`, `/health/live`, `/health/ready`, and `/api/v1/` for those with the token.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Admin {
    /// Address and port, or `off`. Every client that reaches it can read the metrics: keep it on the loopback
    /// address or a network of your own.
    pub listen: String,
    /// Names by which the admin address may be asked, as `metrics.example.com`: what a browser, a reverse proxy or
    /// Prometheus writes in `Host`, without a port. IP addresses, `localhost` and `server.name` need not be listed.
    #[schemars(length(max = 100))]
    pub hosts: Vec<String>,
    /// File of the token that `/api/v1/` asks for. It is made at the first start. A terminal shows its
    /// token then, if the log is text. To have another one, write it there, or remove the file, and start again.
    #[schemars(extend("x-default" = "`admin.token` in `server.data_dir`"))]
    pub token_file: Option<String>,
    /// Measure what CPU time goes into, by component, and report it on `/metrics` and at `/api/v1/cpu-split`,
    /// where it can be switched on and off, too. Costs about 1 % of the CPU time while it is on.
    pub cpu_split: bool,
}

impl Default for Admin {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:8080".to_owned(),
            hosts: Vec::new(),
            token_file: None,
            cpu_split: false,
        }
    }
}

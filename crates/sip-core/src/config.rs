//! The configuration as the core uses it: plain, validated values.
//!
//! The shell reads TOML and reports errors with file, line, key and remedy. The core never sees a
//! half-valid configuration.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use crate::dispatcher::Group;
use crate::limits::Limits;
use crate::transport::{NextHop, Transport};

/// The whole configuration of one endpoint.
#[derive(Clone, Debug)]
pub struct Config {
    /// Product name for `Server` of responses that we make; empty: no header.
    pub server_header: Box<[u8]>,
    /// Listeners; [`crate::id::ListenerId`] indexes them. The shell has expanded wildcard addresses: one
    /// listener for each address of the machine.
    pub listeners: Vec<Listener>,
    /// More hosts that mean this server, lower case: `server.name`, and advertised hosts.
    pub own_hosts: Vec<OwnHost>,
    /// Domains that we serve.
    pub domains: Vec<Domain>,
    /// Routing rules for new requests; the first that matches wins.
    pub routes: Vec<Route>,
    /// Groups of next hops; [`RelayTarget::Group`] indexes them.
    pub groups: Vec<Group>,
    /// State kept for a request if its rule does not set it.
    pub state: StateMode,
    /// Protocol timers.
    pub timers: Timers,
    /// Bounds.
    pub limits: Limits,
    /// The registrar's policy.
    pub registrar: RegistrarPolicy,
    /// Pings of phones behind NATs; `None`: there are none.
    pub pings: Option<Pings>,
    /// Sources whose asserted identities are believed.
    pub trust: Vec<Network>,
    /// SIP domains, lower case, that are trusted if the peer's certificate proves them. The shell compares
    /// the domains: [`crate::transport::Proof::Trusted`].
    pub trust_names: Vec<Box<str>>,
    /// The destinations to which contacts and followed redirects may lead.
    pub destinations: Destinations,
    /// Abuse control: limits and bans of sources, and requests that are dropped.
    pub abuse: Abuse,
    /// Milliseconds for which a request may wait for credentials.
    pub credentials_deadline_ms: u32,
    /// Status code of the response if credentials cannot be had: 503 or 504.
    pub credentials_unavailable: u16,
    /// Number of workers; a Call-ID belongs to worker `hash(Call-ID) mod workers`.
    pub workers: u16,
    /// This node's number among those that share keys; part of each nonce.
    pub node_id: u16,
}

/// Denied destinations of contacts, of redirects, and of the Request-URI or Route in a dialog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destinations {
    /// Networks that are allowed even if another field denies them.
    pub allow: Vec<Network>,
    /// Networks that are denied.
    pub deny: Vec<Network>,
    /// Whether the loopback is denied, except to sources on the loopback.
    pub loopback: bool,
    /// Whether the addresses and ports of the listeners are denied, and [`Destinations::own_sockets`].
    pub own: bool,
    /// Sockets of this process besides the listeners.
    pub own_sockets: Vec<SocketAddr>,
    /// Whether members of groups and targets of rules are denied.
    pub groups: bool,
    /// The most new addresses that the contacts of one user may have within an hour, for one worker; 0: any
    /// number.
    pub new_per_hour: u32,
}

impl Default for Destinations {
    fn default() -> Self {
        Self {
            allow: Vec::new(),
            deny: Vec::new(),
            loopback: true,
            own: true,
            own_sockets: Vec::new(),
            groups: true,
            new_per_hour: 30,
        }
    }
}

/// Abuse control ([`crate::admission`]). The default does nothing.
#[derive(Clone, Debug, Default)]
pub struct Abuse {
    /// Messages a second that one source may send to one worker; 0: any number.
    pub rate: u32,
    /// Messages that one source may send at once; at least 1.
    pub burst: u32,
    /// Sources that one worker counts. Beyond that, sources that sent little recently are forgotten.
    pub sources: usize,
    /// Networks that are neither limited nor banned, beside the trust domain.
    pub exempt: Vec<Network>,
    /// Whether sources may be banned for their messages. If so, the addresses of the trust domain are learnt.
    pub bans: bool,
    /// Patterns of requests that are dropped without a response.
    pub scanners: Scanners,
}

/// Patterns by which requests of scanners are recognised.
#[derive(Clone, Debug, Default)]
pub struct Scanners {
    /// The pattern on the value of User-Agent.
    pub user_agent: Option<regex::bytes::Regex>,
    /// The pattern on the user part of From.
    pub from_user: Option<regex::bytes::Regex>,
    /// The pattern on the user part of To.
    pub to_user: Option<regex::bytes::Regex>,
    /// The pattern on the user part of the Request-URI.
    pub uri_user: Option<regex::bytes::Regex>,
}

impl Scanners {
    /// Whether there is no pattern.
    pub const fn is_empty(&self) -> bool {
        self.user_agent.is_none()
            && self.from_user.is_none()
            && self.to_user.is_none()
            && self.uri_user.is_none()
    }
}

/// A socket that we listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// Transport.
    pub transport: Transport,
    /// The concrete local address (never a wildcard).
    pub address: SocketAddr,
    /// Length of the interface's network prefix, bits; picks the egress listener.
    pub prefix_len: u8,
    /// `host[:port]` for Via and Record-Route, as written there.
    pub sent_by: Box<[u8]>,
    /// Whether new requests may have Route headers that are not ours (from `trust` sources only).
    pub preloaded_route: bool,
    /// Whether web pages of any origin may open a WebSocket here. If so, the browser's address says nothing
    /// about the page.
    pub any_page: bool,
    /// How user agents behind a NAT are recognized that come here by UDP.
    pub nat: Nat,
}

/// How user agents behind a NAT are recognized ([`crate::proxy`], `nat`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Nat {
    /// By their Contact, which is not where their requests come from.
    #[default]
    Auto,
    /// Each user agent is taken for one.
    Always,
    /// None is.
    Never,
}

/// A host (and port) that means this server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnHost {
    /// Name or address, lower case; IPv6 without brackets.
    pub host: Box<[u8]>,
    /// The port; `None`: any port that we listen on, or no port.
    pub port: Option<u16>,
}

/// A domain that we serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domain {
    /// Canonical name, lower case.
    pub name: Box<[u8]>,
    /// Other names of the same domain, lower case.
    pub aliases: Vec<Box<[u8]>>,
    /// The authentication policy of the domain.
    pub auth: AuthPolicy,
}

/// The authentication policy of a domain: methods that need credentials, and the parameters of
/// challenges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthPolicy {
    /// Realm of challenges.
    pub realm: Box<[u8]>,
    /// Methods that need credentials, upper case. `*`: outside of dialogs, all methods that can be
    /// challenged. Empty: none.
    pub methods: Vec<Box<[u8]>>,
    /// Algorithms offered, in order of preference (RFC 8760); never empty.
    pub algorithms: Vec<Algorithm>,
    /// Seconds for which a nonce is good.
    pub nonce_lifetime_s: u32,
    /// Whether `uri` in credentials must be the Request-URI, and not another URI of the same user here.
    pub strict_uri: bool,
}

impl AuthPolicy {
    /// Whether a request of this method needs credentials if no rule says otherwise. In a dialog only
    /// listed methods do: many phones do not resend a BYE, PRACK or NOTIFY after a challenge.
    pub(crate) fn asks(&self, method: &[u8], in_dialog: bool) -> bool {
        // RFC 3261 §22.1: an ACK has no response, and a CANCEL is not sent again.
        let all = !in_dialog && method != b"ACK" && method != b"CANCEL";
        self.methods.iter().any(|m| **m == *method || all && **m == *b"*")
    }
}

/// Digest algorithms (RFC 7616 §3.3, RFC 8760 §2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// MD5, which every phone speaks.
    Md5,
    /// SHA-256.
    Sha256,
    /// SHA-512 truncated to 256 bits (FIPS 180-4 §5.3.6).
    Sha512_256,
}

/// The state that a relayed request gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateMode {
    /// No state (RFC 3261 §16.11).
    Stateless,
    /// Transactions (RFC 3261 §16.2 to §16.10).
    Transaction,
}

/// A routing rule.
#[derive(Clone, Debug)]
pub struct Route {
    /// The conditions, all of which must hold.
    pub when: When,
    /// The action for requests that match.
    pub action: Action,
    /// Whether credentials are needed; `None`: by the domain's policy.
    pub auth: Option<bool>,
    /// The state to keep; `None`: by the configuration's `state`.
    pub state: Option<StateMode>,
    /// Whether this server stays in the path of the dialog.
    pub record_route: bool,
}

impl Route {
    /// Whether the rule is for REGISTER: it names that method. Such a rule relays to a next hop or a group, or
    /// rejects.
    pub fn takes_register(&self) -> bool {
        self.when.methods.iter().any(|method| **method == *b"REGISTER")
    }
}

/// Conditions of a rule; an empty list or `None` holds for everything.
#[derive(Clone, Debug, Default)]
pub struct When {
    /// Methods, upper case. Empty: all but REGISTER.
    pub methods: Vec<Box<[u8]>>,
    /// Pattern on the Request-URI in one spelling: scheme and host in lower case, the user without escapes, and a
    /// number without separators.
    pub uri: Option<regex::bytes::Regex>,
    /// Domain of the Request-URI: a name or alias, lower case.
    pub domain: Option<Box<[u8]>>,
    /// Source networks.
    pub source: Vec<Network>,
    /// Header name (lower case) and exact value.
    pub headers: Vec<HeaderIs>,
}

/// A header name (lower case) and the value that it must have.
pub type HeaderIs = (Box<[u8]>, Box<[u8]>);

/// The action of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send the request on.
    Relay(Relay),
    /// Respond with 302 (RFC 3261 §8.3).
    Redirect(Redirect),
    /// Refuse the request.
    Reject {
        /// The status code, 300 to 699.
        status: u16,
        /// Reason phrase.
        reason: Box<[u8]>,
    },
}

/// The relaying of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relay {
    /// The target of the request.
    pub target: RelayTarget,
    /// Characters taken from the front of the Request-URI's user part.
    pub strip: u16,
    /// Characters put before the Request-URI's user part.
    pub prefix: Box<[u8]>,
    /// Whether the next hop's host and port go into the Request-URI.
    pub rewrite_host: bool,
    /// Seconds until a branch is given up without a final response; `None`: timer C.
    pub timeout_s: Option<u32>,
    /// Whether the contacts of a 3xx are followed (RFC 3261 §16.7 step 4), for domains of ours, with state.
    pub recurse: bool,
}

impl Relay {
    /// A relaying to `target`, with nothing changed.
    pub fn to(target: RelayTarget) -> Self {
        Self {
            target,
            strip: 0,
            prefix: Box::default(),
            rewrite_host: false,
            timeout_s: None,
            recurse: false,
        }
    }
}

/// The target of a relayed request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RelayTarget {
    /// This next hop.
    Uri(NextHop),
    /// The registered contacts of the Request-URI.
    Location,
    /// The Request-URI itself.
    RequestUri,
    /// A member of this group, by its index.
    Group(usize),
}

/// The targets of a redirected request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Redirect {
    /// The registered contacts of the Request-URI.
    Location,
    /// This URI; the user part of the Request-URI goes into it if the URI has none.
    Uri(Box<[u8]>),
}

/// Protocol timers, milliseconds (RFC 3261 Table 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timers {
    /// RTT estimate; 100 to 5,000.
    pub t1_ms: u32,
    /// Longest retransmission interval of non-INVITE requests and INVITE responses.
    pub t2_ms: u32,
    /// Longest time a message stays in the network.
    pub t4_ms: u32,
    /// Proxy INVITE time-out; more than 180,000 by RFC 3261 §16.6 (smaller is allowed here, for trunks).
    pub c_ms: u32,
}

impl Default for Timers {
    fn default() -> Self {
        Self {
            t1_ms: 500,
            t2_ms: 4_000,
            t4_ms: 5_000,
            c_ms: 181_000,
        }
    }
}

/// The registrar's policy (RFC 3261 §10.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegistrarPolicy {
    /// Seconds below which a registration is refused with 423.
    pub min_expires_s: u32,
    /// Seconds granted if neither Expires nor the `expires` parameter is given.
    pub default_expires_s: u32,
    /// Seconds to which longer registrations are shortened.
    pub max_expires_s: u32,
    /// The time at which the response to a REGISTER is sent.
    pub durability: Durability,
}

/// The time at which the response to a REGISTER is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Once the bindings of the REGISTER are on disk.
    Commit,
    /// At once; the write follows.
    Async,
    /// At once; nothing is written.
    Memory,
}

/// Pings of registered contacts behind NATs ([`crate::proxy`]'s `ping`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pings {
    /// The datagram that is sent.
    pub kind: PingKind,
    /// Seconds from one ping of a contact to the next; at least 1.
    pub every_s: u32,
    /// Pings in a row without a response after which a contact that has answered before is lost. One that has never answered
    /// gets this many pings after each REGISTER, and four more at growing intervals.
    pub lost: u8,
    /// Whether lost contacts are removed.
    pub remove_lost: bool,
}

/// The datagram of a ping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PingKind {
    /// OPTIONS.
    Options,
    /// An empty line, to contacts that have answered an OPTIONS.
    Crlf,
}

/// A network: address and prefix length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// Any address of the network.
    pub address: IpAddr,
    /// Prefix length, bits.
    pub prefix_len: u8,
}

impl Network {
    /// Whether `ip` lies in this network. An IPv4-mapped IPv6 address counts as IPv4.
    pub fn contains(&self, ip: IpAddr) -> bool {
        match (self.address.to_canonical(), ip.to_canonical()) {
            (IpAddr::V4(a), IpAddr::V4(b)) => {
                let shift = 32u32.saturating_sub(u32::from(self.prefix_len));
                shift >= 32 || (a.to_bits() >> shift) == (b.to_bits() >> shift)
            }
            (IpAddr::V6(a), IpAddr::V6(b)) => {
                let shift = 128u32.saturating_sub(u32::from(self.prefix_len));
                shift >= 128 || (a.to_bits() >> shift) == (b.to_bits() >> shift)
            }
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
        }
    }
}

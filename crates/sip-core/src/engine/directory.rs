//! The configuration as look-ups: whether a host is this server, the domain of a host, and the
//! listener that reaches an address.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::net::IpAddr;

use hashbrown::HashTable;
use sip_message::{Host, SipUri};
use smallvec::SmallVec;

use super::place::{
    DomainNumber, DomainsByNumber, PlaceId, denied_by, domains_by_number, place_of_rule, places,
};
use crate::config::{Config, Domain, Listener, Network};
use crate::id::ListenerId;
use crate::location::aor::unescape;
use crate::resolve::Transports;
use crate::transport::{Flow, HopHost, Proof, Transport};

/// A host in canonical form: names in lower case without a trailing dot, addresses as bytes.
pub(super) type HostKey = SmallVec<[u8; 64]>;

const NAME: u8 = b'n';
const ADDRESS: u8 = b'a';

pub(super) fn host_key(host: &Host<'_>) -> HostKey {
    let mut key = HostKey::new();
    match host {
        Host::Name(name) => {
            key.push(NAME);
            key.extend(without_dot(name).iter().map(u8::to_ascii_lowercase));
        }
        Host::V4(ip) => {
            key.push(ADDRESS);
            key.extend_from_slice(&ip.octets());
        }
        Host::V6(ip) => {
            key.push(ADDRESS);
            match ip.to_canonical() {
                IpAddr::V4(ip) => key.extend_from_slice(&ip.octets()),
                IpAddr::V6(ip) => key.extend_from_slice(&ip.octets()),
            }
        }
    }
    key
}

/// The key of a host written in the configuration (IPv6 with or without brackets).
fn text_key(text: &[u8]) -> Option<HostKey> {
    if let Some(host) = Host::parse(text) {
        return Some(host_key(&host));
    }
    let ip: IpAddr = core::str::from_utf8(text).ok()?.parse().ok()?;
    Some(host_key(&match ip {
        IpAddr::V4(ip) => Host::V4(ip),
        IpAddr::V6(ip) => Host::V6(ip),
    }))
}

/// The meaning of a host: a domain, this server, guarded places.
#[derive(Debug)]
struct Entry {
    key: HostKey,
    /// The domain that the host names.
    domain: Option<usize>,
    /// The ports with which the host means this server; `None`: it does not.
    own: Option<OwnPorts>,
    /// The guarded places that the host belongs to.
    places: SmallVec<[PlaceId; 2]>,
}

/// The ports with which a host means this server.
#[derive(Debug)]
enum OwnPorts {
    /// Any port that we listen on, or no port.
    Listening,
    /// These ports; 5060 stands for no port.
    These(SmallVec<[u16; 4]>),
}

/// The look-ups. The hash needs no key: a peer chooses what is looked up, but not the entries.
#[derive(Debug)]
pub(crate) struct Directory {
    hosts: HashTable<Entry>,
    ports: SmallVec<[u16; 4]>,
    /// The number of listeners, and the last of them: for each transport, over IPv4 and IPv6.
    kinds: [[(u16, ListenerId); 2]; 5],
    /// The start of a Via line of each listener, up to and with the branch's cookie.
    via_starts: Vec<Box<[u8]>>,
    /// The usual Record-Route value of each listener, up to its mark.
    route_starts: Vec<Box<[u8]>>,
    /// The transports and address families that can be sent over.
    pub(crate) reach: Reach,
    /// Whether there are guarded places, and whether some are found by name service.
    has_places: [bool; 2],
    /// The place that each rule leads to; 0: none of its own.
    rule_places: Vec<PlaceId>,
    /// The domains that a mark names by number.
    domains_by_number: DomainsByNumber,
}

/// The transports and address families of the listeners.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reach {
    pub(crate) ipv4: bool,
    pub(crate) ipv6: bool,
    /// The transports that can be opened from here: a WebSocket is opened by the other side (RFC 7118 §5).
    pub(crate) transports: Transports,
}

impl Reach {
    fn of(config: &Config) -> Self {
        let has = |v4: bool| config.listeners.iter().any(|l| l.address.is_ipv4() == v4);
        let transports = config.listeners.iter().map(|l| l.transport);
        Self {
            ipv4: has(true),
            ipv6: has(false),
            transports: transports
                .filter(|t| !matches!(t, Transport::Ws | Transport::Wss))
                .collect(),
        }
    }
}

const VIA: &[u8] = b"Via: ";

fn via_start(listener: &Listener) -> Box<[u8]> {
    let mut start = Vec::with_capacity(48);
    start.extend_from_slice(VIA);
    start.extend_from_slice(b"SIP/2.0/");
    start.extend_from_slice(listener.transport.via_name().as_bytes());
    start.push(b' ');
    start.extend_from_slice(&listener.sent_by);
    start.extend_from_slice(b";branch=");
    start.extend_from_slice(COOKIE);
    start.into_boxed_slice()
}

/// Digits of a mark ([`crate::proxy::mark`]).
pub(crate) const MARK_DIGITS: usize = 32;

/// Appends the URI of a Record-Route value up to its parameters. `token` is the user part; empty: none.
pub(crate) fn write_route_uri(out: &mut Vec<u8>, listener: &Listener, token: &[u8], secure: bool) {
    let secure = secure && listener.transport.is_secure();
    out.extend_from_slice(match secure {
        true => b"<sips:",
        false => b"<sip:",
    });
    if !token.is_empty() {
        out.extend_from_slice(token);
        out.push(b'@');
    }
    out.extend_from_slice(&listener.sent_by);
    // RFC 5630 §3.1.4: a SIPS URI means TLS, and needs no `transport` parameter.
    let implied = match listener.transport {
        Transport::Udp => true,
        Transport::Tls => secure,
        Transport::Tcp | Transport::Ws | Transport::Wss => false,
    };
    if !implied {
        out.extend_from_slice(b";transport=");
        out.extend_from_slice(listener.transport.param_name().as_bytes());
    }
    out.extend_from_slice(b";lr");
}

fn plain_route(listener: &Listener) -> Box<[u8]> {
    let mut start = Vec::with_capacity(64);
    write_route_uri(&mut start, listener, b"", false);
    start.extend_from_slice(b";tz=");
    start.into_boxed_slice()
}

/// The prefix of branches of ours: the magic cookie of RFC 3261 §8.1.1.7.
pub(crate) const COOKIE: &[u8] = b"z9hG4bK";

const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

/// Mixes bytes without regard to the case of letters.
fn hash_text(text: &[u8]) -> u64 {
    let (words, rest) = text.as_chunks::<8>();
    let mut last = [0; 8];
    for (to, from) in last.iter_mut().zip(rest) {
        *to = *from;
    }
    let mix = |hash: u64, word: [u8; 8]| {
        let folded = u64::from_le_bytes(word) | 0x2020_2020_2020_2020;
        (hash ^ folded).wrapping_mul(MULTIPLIER).rotate_left(29)
    };
    let hash = words
        .iter()
        .fold(text.len() as u64, |hash, word| mix(hash, *word));
    mix(hash, last)
}

fn without_dot(name: &[u8]) -> &[u8] {
    name.strip_suffix(b".").unwrap_or(name)
}

fn hash_key(key: &HostKey) -> u64 {
    match key.split_first() {
        Some((&NAME, name)) => hash_text(name),
        Some((_, octets)) => hash_text(octets),
        None => 0,
    }
}

impl Directory {
    pub(crate) fn new(config: &Config) -> Self {
        let mut directory = Self {
            hosts: HashTable::new(),
            ports: config.listeners.iter().map(|l| l.address.port()).collect(),
            kinds: [[(0, ListenerId(0)); 2]; 5],
            via_starts: config.listeners.iter().map(via_start).collect(),
            route_starts: config.listeners.iter().map(plain_route).collect(),
            reach: Reach::of(config),
            has_places: [false; 2],
            domains_by_number: domains_by_number(config),
            rule_places: config
                .routes
                .iter()
                .map(|rule| place_of_rule(config, rule))
                .collect(),
        };
        for (number, listener) in (0u16..).zip(&config.listeners) {
            let family = usize::from(listener.address.is_ipv6());
            let kinds = directory.kinds.get_mut(listener.transport as usize);
            if let Some((count, last)) = kinds.and_then(|k| k.get_mut(family)) {
                *count += 1;
                *last = ListenerId(number);
            }
        }
        for listener in &config.listeners {
            if let Some(key) = text_key(alloc::format!("{}", listener.address.ip()).as_bytes()) {
                directory.entry(key).add_own(Some(listener.address.port()));
            }
        }
        for host in &config.own_hosts {
            if let Some(key) = text_key(&host.host) {
                directory.entry(key).add_own(host.port);
            }
        }
        for (index, domain) in config.domains.iter().enumerate() {
            for name in core::iter::once(&domain.name).chain(&domain.aliases) {
                if let Some(key) = text_key(name) {
                    directory.entry(key).domain.get_or_insert(index);
                }
            }
        }
        for (place, hop) in places(config) {
            let host = match &hop.host {
                HopHost::Name(name) => Host::Name(name),
                HopHost::Ip(IpAddr::V4(ip)) => Host::V4(*ip),
                HopHost::Ip(IpAddr::V6(ip)) => Host::V6(*ip),
            };
            let [some, named] = &mut directory.has_places;
            *some = true;
            *named |= matches!(host, Host::Name(_));
            let of_host = &mut directory.entry(host_key(&host)).places;
            if !of_host.contains(&place) {
                of_host.push(place);
            }
        }
        for (place, key) in config
            .routes
            .iter()
            .filter_map(denied_by)
            .filter_map(|(place, host)| Some((place, text_key(host)?)))
        {
            let [some, _] = &mut directory.has_places;
            *some = true;
            directory.entry(key).places.push(place);
        }
        directory
    }

    /// The guarded places that a host belongs to by the configuration alone.
    pub(crate) fn places_of(&self, host: &Host<'_>) -> &[PlaceId] {
        self.find(host).map_or(&[], |entry| &entry.places)
    }

    /// The place that the rule of this number leads to; 0: none of its own.
    pub(crate) fn place_of_rule(&self, number: usize) -> PlaceId {
        self.rule_places.get(number).copied().unwrap_or(0)
    }

    /// Whether there are guarded places.
    pub(crate) const fn has_places(&self) -> bool {
        let [some, _] = self.has_places;
        some
    }

    /// Whether there are guarded places whose address the configuration does not give.
    pub(crate) const fn has_named_places(&self) -> bool {
        let [_, named] = self.has_places;
        named
    }

    fn entry(&mut self, key: HostKey) -> &mut Entry {
        let hash = hash_key(&key);
        self.hosts
            .entry(hash, |entry| entry.key == key, |entry| hash_key(&entry.key))
            .or_insert_with(|| Entry {
                key: key.clone(),
                domain: None,
                own: None,
                places: SmallVec::new(),
            })
            .into_mut()
    }

    fn find(&self, host: &Host<'_>) -> Option<&Entry> {
        let octets = |octets: &[u8]| {
            let same = |entry: &Entry| entry.key.split_first() == Some((&ADDRESS, octets));
            self.hosts.find(hash_text(octets), same)
        };
        match host {
            Host::Name(name) => {
                let name = without_dot(name);
                let same = |entry: &Entry| matches!(entry.key.split_first(), Some((&NAME, key)) if key.eq_ignore_ascii_case(name));
                self.hosts.find(hash_text(name), same)
            }
            Host::V4(ip) => octets(&ip.octets()),
            Host::V6(ip) => match ip.to_canonical() {
                IpAddr::V4(ip) => octets(&ip.octets()),
                IpAddr::V6(ip) => octets(&ip.octets()),
            },
        }
    }

    /// The start of a Via line for requests that leave by `listener`.
    pub(crate) fn via_start(&self, listener: ListenerId) -> &[u8] {
        self.via_starts
            .get(usize::from(listener.0))
            .map_or(&[], |start| start)
    }

    /// Whether the value of a Via begins as a listener of ours writes it.
    #[inline]
    pub(crate) fn wrote_via(&self, value: &[u8]) -> bool {
        let starts = self.via_starts.iter().filter_map(|line| line.strip_prefix(VIA));
        starts.into_iter().any(|start| value.starts_with(start))
    }

    /// Whether a Record-Route value is as a listener of ours usually writes it: one value, without a flow token, that ends
    /// with its mark.
    #[inline]
    pub(crate) fn wrote_route(&self, value: &[u8]) -> bool {
        let Some((start, mark)) = value.split_at_checked(value.len().wrapping_sub(MARK_DIGITS + 1)) else {
            return false;
        };
        mark.ends_with(b">") && self.route_starts.iter().any(|usual| **usual == *start)
    }

    /// Whether a Route value leads here, and to no other place first (`maddr`).
    pub(crate) fn is_route_here(&self, uri: &SipUri<'_>) -> bool {
        self.is_own(&uri.host, uri.port) && !uri.params.has(b"maddr")
    }

    /// See [`egress`].
    pub(crate) fn egress(
        &self,
        config: &Config,
        transport: Transport,
        to: IpAddr,
        ingress: Option<ListenerId>,
    ) -> Option<ListenerId> {
        let kinds = self.kinds.get(transport as usize)?;
        match kinds.get(usize::from(to.is_ipv6()))? {
            (0, _) => None,
            // With one listener of a kind there is nothing to choose.
            (1, only) => Some(*only),
            _ => egress(config, transport, to, ingress),
        }
    }

    /// The domains that a mark may mean by this number.
    pub(crate) fn domains_of<'s, 'c>(
        &'s self,
        config: &'c Config,
        number: DomainNumber,
    ) -> impl Iterator<Item = &'c Domain> + use<'s, 'c> {
        let positions = self.domains_by_number.get(usize::from(number));
        positions
            .into_iter()
            .flatten()
            .filter_map(|at| config.domains.get(*at))
    }

    /// The domain that `uri` belongs to by its host, if the URI has no port or a port that we listen on.
    pub(crate) fn domain_of<'c>(&self, config: &'c Config, uri: &SipUri<'_>) -> Option<&'c Domain> {
        if uri.port.is_some_and(|port| !self.ports.contains(&port)) {
            return None;
        }
        self.domain_of_host(config, &uri.host)
    }

    /// The domain of a host.
    pub(crate) fn domain_of_host<'c>(&self, config: &'c Config, host: &Host<'_>) -> Option<&'c Domain> {
        config.domains.get(self.find(host)?.domain?)
    }

    /// Whether an address is this machine's, as far as is known here: of a listener, of a host of ours, or of
    /// the loopback.
    pub(crate) fn is_own_address(&self, ip: IpAddr) -> bool {
        let host = match ip.to_canonical() {
            IpAddr::V4(ip) => Host::V4(ip),
            IpAddr::V6(ip) => Host::V6(ip),
        };
        ip.to_canonical().is_loopback() || self.find(&host).is_some_and(Entry::is_ours)
    }

    /// Whether host and port mean this server: what we listen on or advertise, its name, a domain.
    pub(crate) fn is_own(&self, host: &Host<'_>, port: Option<u16>) -> bool {
        let Some(entry) = self.find(host) else {
            return false;
        };
        let port_ok = port.is_none_or(|p| self.ports.contains(&p));
        if port_ok && entry.domain.is_some() {
            return true;
        }
        match &entry.own {
            None => false,
            Some(OwnPorts::Listening) => port_ok,
            Some(OwnPorts::These(ports)) => ports.contains(&port.unwrap_or(5060)),
        }
    }
}

impl Entry {
    fn is_ours(&self) -> bool {
        self.domain.is_some() || self.own.is_some()
    }

    /// Notes that the host means this server with this port; `None`: with any that we listen on.
    fn add_own(&mut self, port: Option<u16>) {
        match (port, &mut self.own) {
            (None, own) => *own = Some(OwnPorts::Listening),
            (Some(_), Some(OwnPorts::Listening)) => {}
            (Some(port), Some(OwnPorts::These(ports))) => ports.push(port),
            (Some(port), own @ None) => *own = Some(OwnPorts::These(smallvec::smallvec![port])),
        }
    }
}

/// Whether a message on `flow` comes from one of `networks`. `false` for three kinds of messages, which would
/// get rights that their author lacks:
/// - A request that this server has sent to itself: a contact may lead back here.
/// - A WebSocket that any web page may open: the source address is the browser's.
/// - A WebSocket from the loopback: a web server on this machine may have forwarded it (`Engine::as_page`
///   sees to other addresses of this machine).
pub(crate) fn comes_from(networks: &[Network], flow: &Flow) -> bool {
    let is_forwarded = || {
        matches!(flow.transport, Transport::Ws | Transport::Wss)
            && flow.remote.ip().to_canonical().is_loopback()
    };
    !matches!(flow.proof, Proof::Ourselves | Proof::Page)
        && in_networks(networks, flow.remote.ip())
        && !is_forwarded()
}

/// Whether a rule exempts new requests from this source from credentials. In a dialog no rule is looked up:
/// if its first request needed no credentials, the others need none either.
pub(crate) fn is_exempt(config: &Config, source: &Flow) -> bool {
    let mut rules = config.routes.iter();
    rules.any(|rule| rule.auth == Some(false) && comes_from(&rule.when.source, source))
}

/// Whether any of `networks` holds `ip`.
pub(crate) fn in_networks(networks: &[Network], ip: IpAddr) -> bool {
    networks.iter().any(|n| n.contains(ip))
}

/// The listener that sends to `to` over `transport`. In this order:
/// 1. the listener with the smallest network that holds `to`; of equals, the listener at which the message
///    came in;
/// 2. the listener at which the message came in, if it is not on the loopback;
/// 3. the first listener. If `to` is not on the loopback, listeners on the loopback are skipped, unless there
///    is no other.
///
/// `None`: there is no listener of this transport and address family.
fn egress(
    config: &Config,
    transport: Transport,
    to: IpAddr,
    ingress: Option<ListenerId>,
) -> Option<ListenerId> {
    let mut first = None;
    let mut best: Option<(u8, ListenerId)> = None;
    for (index, listener) in config.listeners.iter().enumerate() {
        let address = listener.address.ip();
        if listener.transport != transport || address.is_ipv4() != to.is_ipv4() {
            continue;
        }
        let id = ListenerId(index as u16);
        if first.is_none() || (!address.is_loopback() && to_is_beyond(config, first, to)) {
            first = Some(id);
        }
        let network = Network {
            address,
            prefix_len: listener.prefix_len,
        };
        let better = match best {
            None => true,
            Some((len, _)) => {
                listener.prefix_len > len || (listener.prefix_len == len && ingress == Some(id))
            }
        };
        if network.contains(to) && better {
            best = Some((listener.prefix_len, id));
        }
    }
    if let Some((_, id)) = best {
        return Some(id);
    }
    let usable = |id: ListenerId| {
        config.listeners.get(usize::from(id.0)).is_some_and(|l| {
            l.transport == transport && l.address.is_ipv4() == to.is_ipv4() && !l.address.ip().is_loopback()
        })
    };
    ingress.filter(|id| usable(*id)).or(first)
}

/// Whether `first` is a loopback listener and `to` is not on the loopback.
fn to_is_beyond(config: &Config, first: Option<ListenerId>, to: IpAddr) -> bool {
    !to.is_loopback()
        && first
            .and_then(|id| config.listeners.get(usize::from(id.0)))
            .is_some_and(|l| l.address.ip().is_loopback())
}

/// The canonical address-of-record of a user in a domain: `user@domain`, unescaped.
pub(crate) fn address_of_record(user: &[u8], domain: &Domain) -> Box<[u8]> {
    let mut aor = Vec::with_capacity(user.len() + 1 + domain.name.len());
    unescape(user, &mut aor);
    aor.push(b'@');
    aor.extend_from_slice(&domain.name);
    aor.into_boxed_slice()
}

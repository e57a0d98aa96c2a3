//! Which hosts are ours, which domain a host belongs to, and which listener reaches an address:
//! the configuration turned into look-ups.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::net::IpAddr;

use sip_message::{Host, SipUri};
use smallvec::SmallVec;

use crate::config::{Config, Domain, Network};
use crate::id::ListenerId;
use crate::location::aor::unescape;
use crate::transport::Transport;

/// A host in canonical form: names in lower case without a trailing dot, addresses as bytes.
type HostKey = SmallVec<[u8; 64]>;

const NAME: u8 = b'n';
const ADDRESS: u8 = b'a';

fn host_key(host: &Host<'_>) -> HostKey {
    let mut key = HostKey::new();
    match host {
        Host::Name(name) => {
            key.push(NAME);
            key.extend(
                name.strip_suffix(b".")
                    .unwrap_or(name)
                    .iter()
                    .map(u8::to_ascii_lowercase),
            );
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

/// Key of a host written in the configuration (IPv6 with or without brackets).
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

/// The look-ups.
#[derive(Debug)]
pub(crate) struct Directory {
    domains: BTreeMap<HostKey, usize>,
    own: BTreeMap<HostKey, Option<BTreeSet<u16>>>,
    ports: BTreeSet<u16>,
}

impl Directory {
    pub(crate) fn new(config: &Config) -> Self {
        let mut domains = BTreeMap::new();
        let mut own: BTreeMap<HostKey, Option<BTreeSet<u16>>> = BTreeMap::new();
        let ports = config.listeners.iter().map(|l| l.address.port()).collect();
        let mut add_own = |key: HostKey, port: Option<u16>| match port {
            None => {
                own.insert(key, None);
            }
            Some(port) => {
                if let Some(set) = own.entry(key).or_insert_with(|| Some(BTreeSet::new())) {
                    set.insert(port);
                }
            }
        };
        for listener in &config.listeners {
            if let Some(key) = text_key(alloc::format!("{}", listener.address.ip()).as_bytes()) {
                add_own(key, Some(listener.address.port()));
            }
        }
        for host in &config.own_hosts {
            if let Some(key) = text_key(&host.host) {
                add_own(key, host.port);
            }
        }
        for (index, domain) in config.domains.iter().enumerate() {
            for name in core::iter::once(&domain.name).chain(&domain.aliases) {
                if let Some(key) = text_key(name) {
                    domains.entry(key).or_insert(index);
                }
            }
        }
        Self { domains, own, ports }
    }

    /// The domain that `uri` belongs to: by its host, with no port or one that we listen on.
    pub(crate) fn domain_of<'c>(&self, config: &'c Config, uri: &SipUri<'_>) -> Option<&'c Domain> {
        if uri.port.is_some_and(|port| !self.ports.contains(&port)) {
            return None;
        }
        self.domain_of_host(config, &uri.host)
    }

    /// The domain of a host.
    pub(crate) fn domain_of_host<'c>(&self, config: &'c Config, host: &Host<'_>) -> Option<&'c Domain> {
        let index = *self.domains.get(&host_key(host))?;
        config.domains.get(index)
    }

    /// Whether host and port mean this server: what we listen on or advertise, its name, a domain.
    pub(crate) fn is_own(&self, host: &Host<'_>, port: Option<u16>) -> bool {
        let key = host_key(host);
        let port_ok = port.is_none_or(|p| self.ports.contains(&p));
        if port_ok && self.domains.contains_key(&key) {
            return true;
        }
        match self.own.get(&key) {
            None => false,
            Some(None) => port_ok,
            Some(Some(ports)) => {
                ports.contains(&port.unwrap_or(5060)) || (port == Some(5061) && ports.contains(&5061))
            }
        }
    }
}

/// Whether any of `networks` holds `ip`.
pub(crate) fn in_networks(networks: &[Network], ip: IpAddr) -> bool {
    networks.iter().any(|n| n.contains(ip))
}

/// The listener from which to send to `to` over `transport`: the one whose network holds it;
/// else, for an address beyond all of them, the one at which the message came in; else the
/// first that is not on the loopback. `None`: nothing of that transport and address family.
pub(crate) fn egress(
    config: &Config,
    transport: Transport,
    to: IpAddr,
    ingress: Option<ListenerId>,
) -> Option<ListenerId> {
    // With one listener of a kind there is nothing to choose.
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

/// The canonical address-of-record of a user in a domain: `user@domain`, escapes undone.
pub(crate) fn address_of_record(user: &[u8], domain: &Domain) -> Box<[u8]> {
    let mut aor = Vec::with_capacity(user.len() + 1 + domain.name.len());
    unescape(user, &mut aor);
    aor.push(b'@');
    aor.extend_from_slice(&domain.name);
    aor.into_boxed_slice()
}

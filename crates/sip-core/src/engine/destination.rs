//! Denied destinations (`[destinations]`): addresses to which a contact, a 3xx or a URI of a dialog must not lead.
//!
//! The loopback, addresses of groups and of rules, and listed networks are denied, except to sources from the
//! same place. So a PBX on this machine may register a contact on the loopback, and a phone on another
//! machine may not. The source of the REGISTER must be verified: over UDP, by a nonce that was sent to it and
//! returned.
//!
//! An address and port on which this server listens is denied to all sources. Nothing is ever sent to
//! multicast, broadcast and unspecified addresses (`proxy/forward.rs`).

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::hash::Hasher as _;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};

use sip_message::Host;
use siphasher::sip::SipHasher13;

use super::Engine;
use super::directory::in_networks;
use super::place::PlaceId;
use crate::admission::bucket::Buckets;
use crate::config::{Config, Destinations, Network};
use crate::resolve::HostRef;
use crate::time::Instant;
use crate::transport::{Flow, Transport};

/// The most users for which one worker counts new addresses.
const USERS: usize = 16_384;
/// The most addresses of users that one worker remembers.
const WAYS: usize = 16_384;
/// The interval of `destinations.new_per_hour`, nanoseconds.
const HOUR_NS: u64 = 3_600_000_000_000;

/// The cause for which an address is denied, apart from groups, rules and listeners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Denied {
    /// The address is not that of one host.
    NoHost,
    /// The address is on the loopback.
    Loopback,
    /// The address is in this network of `destinations.deny`.
    Network(Network),
}

/// The source address by which exceptions for a denied destination are decided. For a WebSocket it is the unspecified
/// address: a proxy on this machine may forward it for a browser anywhere.
pub(crate) fn source_of(flow: &Flow) -> IpAddr {
    match flow.transport {
        Transport::Ws | Transport::Wss => Ipv4Addr::UNSPECIFIED.into(),
        Transport::Udp | Transport::Tcp | Transport::Tls => flow.remote.ip(),
    }
}

/// Whether an address is not that of one host. A contact, a 3xx, a Request-URI or a name can lead there, and
/// a request would go to many hosts at once, or to this one.
pub(crate) fn is_no_host(ip: IpAddr) -> bool {
    let ip = ip.to_canonical();
    ip.is_multicast() || ip.is_unspecified() || ip == IpAddr::V4(Ipv4Addr::BROADCAST)
}

impl Destinations {
    /// The cause for which an address is denied, apart from groups, rules and listeners; `None`: it is
    /// allowed.
    pub(crate) fn denies(&self, ip: IpAddr) -> Option<Denied> {
        let ip = ip.to_canonical();
        if is_no_host(ip) {
            return Some(Denied::NoHost);
        }
        let found = match self.loopback && ip.is_loopback() {
            true => Some(Denied::Loopback),
            false => {
                let mut networks = self.deny.iter();
                networks
                    .find(|network| network.contains(ip))
                    .map(|network| Denied::Network(*network))
            }
        };
        found.filter(|_| !in_networks(&self.allow, ip))
    }
}

impl Denied {
    /// Whether a source at `from` may have requests sent to `ip` although it is denied.
    fn excepts(self, ip: IpAddr, from: IpAddr) -> bool {
        match self {
            Self::NoHost => false,
            Self::Loopback => from.to_canonical().is_loopback(),
            Self::Network(_) => from.to_canonical() == ip.to_canonical(),
        }
    }
}

impl Engine {
    /// The guarded place ([`super::place`]) that a denied address belongs to; 0: the address is not denied.
    pub(crate) fn denied_place(&self, ip: IpAddr) -> PlaceId {
        match self.config.destinations.denies(ip) {
            None => 0,
            Some(Denied::NoHost) => super::place::number(b'0', b""),
            Some(Denied::Loopback) => super::place::number(b'l', b""),
            Some(Denied::Network(network)) => {
                let mut text = [0; 17];
                let octets = match network.address.to_canonical() {
                    IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
                    IpAddr::V6(ip) => ip.octets(),
                };
                text[..16].copy_from_slice(&octets);
                text[16] = network.prefix_len;
                super::place::number(b'x', &text)
            }
        }
    }

    /// Whether a request from `from` must not go to this address because of a URI in its dialog.
    pub(crate) fn is_denied(&self, ip: IpAddr, from: IpAddr) -> bool {
        let denied = self.config.destinations.denies(ip);
        denied.is_some_and(|denied| !denied.excepts(ip, from))
    }

    /// Whether a contact or a 3xx that came from `from` must not lead to this address, one of `host`.
    pub(crate) fn is_denied_target(&self, host: HostRef<'_>, address: SocketAddr, from: IpAddr) -> bool {
        let destinations = &self.config.destinations;
        let ip = address.ip();
        if in_networks(&destinations.allow, ip.to_canonical()) {
            return is_no_host(ip);
        }
        let is_listening = || {
            let host = match ip.to_canonical() {
                IpAddr::V4(ip) => Host::V4(ip),
                IpAddr::V6(ip) => Host::V6(ip),
            };
            self.directory.is_own(&host, Some(address.port())) || self.is_own_socket(address)
        };
        let is_its_own = ip.to_canonical() == from.to_canonical();
        let is_of_group = || {
            let hosts = [host, HostRef::Ip(ip.to_canonical())];
            !is_its_own && hosts.into_iter().any(|host| self.is_guarded(host, 0))
        };
        self.is_denied(ip, from)
            || (destinations.own && is_listening())
            || (destinations.groups && is_of_group())
    }

    /// Whether this process listens at an address for something other than SIP, such as its admin pages. No
    /// URI from a phone leads there.
    pub(crate) fn is_own_socket(&self, address: SocketAddr) -> bool {
        let destinations = &self.config.destinations;
        let ip = address.ip().to_canonical();
        destinations.own
            && destinations.own_sockets.iter().any(|socket| {
                let is_there = match socket.ip().is_unspecified() {
                    true => self.directory.is_own_address(ip),
                    false => socket.ip().to_canonical() == ip,
                };
                is_there && socket.port() == address.port()
            })
    }

    /// Whether a REGISTER from `from` must prove its source: requests will be sent there, and the address is
    /// denied to all other sources.
    pub(crate) fn must_be_proved(&self, from: IpAddr) -> bool {
        let destinations = &self.config.destinations;
        // The kernel drops packets from a network with a source address on the loopback.
        let is_listed = || matches!(destinations.denies(from), Some(Denied::Network(_)));
        let is_of_group = || self.is_guarded(HostRef::Ip(from.to_canonical()), 0);
        !from.to_canonical().is_loopback()
            && !in_networks(&destinations.allow, from.to_canonical())
            && (is_listed() || (destinations.groups && is_of_group()))
    }
}

/// Hashes of a user together with each of some new addresses.
pub(crate) type NewWays = Vec<u64>;

/// Limits how many new addresses the contacts of a user may have within an hour. Each user has a token bucket.
#[derive(Debug)]
pub(crate) struct NewAddresses {
    most: u32,
    users: Option<Buckets>,
    /// Hashes of users with hosts to which their contacts and 3xx led. Direct-mapped: a colliding
    /// hash evicts the older one, and that address counts again then.
    ways: Box<[u64]>,
    key: (u64, u64),
}

impl NewAddresses {
    /// `key` is for the hash of users; it differs between endpoints and starts.
    pub(crate) fn new(config: &Config, key: (u64, u64)) -> Self {
        let mut made = Self {
            most: 0,
            users: None,
            ways: Box::default(),
            key,
        };
        made.reconfigure(config);
        made
    }

    /// Takes a new configuration. Counts stay, unless the limit changes.
    pub(crate) fn reconfigure(&mut self, config: &Config) {
        // At least one REGISTER with all contacts new must pass.
        let most = match config.destinations.new_per_hour {
            0 => 0,
            most => most.max(u32::try_from(config.limits.contacts_per_aor).unwrap_or(u32::MAX)),
        };
        if most != self.most {
            self.most = most;
            let made = || Buckets::with_interval(HOUR_NS / u64::from(most), most, USERS);
            self.users = (most > 0).then(made);
            self.ways = alloc::vec![0; if most > 0 { WAYS } else { 0 }].into_boxed_slice();
        }
    }

    /// The new addresses among `hosts`: those to which no contact and no 3xx of this user has led so far.
    /// `None`: they are more than the user may have now.
    pub(crate) fn new_among<'a>(
        &self,
        now: Instant,
        aor: &[u8],
        hosts: impl Iterator<Item = Host<'a>>,
    ) -> Option<NewWays> {
        let mut new = NewWays::new();
        let Some(users) = &self.users else {
            return Some(new);
        };
        for host in hosts {
            let way = self.way(aor, &host);
            let is_known = self.ways.get(way as usize % WAYS) == Some(&way);
            if !is_known && !new.contains(&way) {
                new.push(way);
            }
        }
        let count = u32::try_from(new.len()).unwrap_or(u32::MAX);
        // Nearly all REGISTERs have no new address.
        let user = if count == 0 { 0 } else { self.user(aor) };
        (count == 0 || users.may_take(now, user, user, count)).then_some(new)
    }

    /// Counts these new addresses of a user. A remembered address does not count again: a phone may forward
    /// all of its calls to one address, or register again after a failure.
    pub(crate) fn take(&mut self, now: Instant, aor: &[u8], new: &[u64]) {
        if new.is_empty() {
            return;
        }
        let user = self.user(aor);
        for way in new {
            if let Some(users) = &mut self.users {
                // `new_among` was asked before.
                let _ = users.take(now, user, user);
            }
            if let Some(place) = self.ways.get_mut(*way as usize % WAYS) {
                *place = *way;
            }
        }
    }

    /// Whether a 3xx of a user may lead to `host`. A new address counts.
    pub(crate) fn lead(&mut self, now: Instant, aor: &[u8], host: &Host<'_>) -> bool {
        let new = self.new_among(now, aor, core::iter::once(*host));
        if let Some(new) = &new {
            self.take(now, aor, new);
        }
        new.is_some()
    }

    fn user(&self, aor: &[u8]) -> u64 {
        let mut hasher = self.hasher();
        hasher.write(aor);
        hasher.finish()
    }

    fn way(&self, aor: &[u8], host: &Host<'_>) -> u64 {
        let mut hasher = self.hasher();
        hasher.write(aor);
        // This separator occurs in no address-of-record.
        hasher.write_u8(b'\n');
        match host {
            Host::Name(name) => {
                let name = name.strip_suffix(b".").unwrap_or(name);
                name.iter().for_each(|c| hasher.write_u8(c.to_ascii_lowercase()));
            }
            Host::V4(ip) => hasher.write(&ip.to_ipv6_mapped().octets()),
            Host::V6(ip) => hasher.write(&ip.octets()),
        }
        hasher.finish()
    }

    fn hasher(&self) -> SipHasher13 {
        SipHasher13::new_with_keys(self.key.0, self.key.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn network(text: &str, prefix_len: u8) -> Network {
        Network {
            address: ip(text),
            prefix_len,
        }
    }

    #[test]
    fn lists_and_the_loopback() {
        let made = Destinations {
            allow: vec![network("10.1.0.0", 16), network("127.0.0.9", 32)],
            deny: vec![network("10.0.0.0", 8), network("2001:db8::", 32)],
            ..Destinations::default()
        };
        let all = Destinations {
            loopback: false,
            ..made.clone()
        };
        for (address, from, of_made, of_all) in [
            ("127.0.0.1", "192.0.2.9", true, false),
            ("127.0.0.2", "127.0.0.1", false, false),
            ("::1", "127.0.0.1", false, false),
            ("::1", "2001:db9::1", true, false),
            ("::ffff:127.0.0.1", "192.0.2.9", true, false),
            ("127.0.0.9", "192.0.2.9", false, false),
            ("10.0.0.1", "192.0.2.9", true, true),
            ("::ffff:10.0.0.1", "192.0.2.9", true, true),
            ("10.0.0.1", "10.0.0.1", false, false),
            ("10.0.0.1", "::ffff:10.0.0.1", false, false),
            ("10.0.0.1", "10.0.0.2", true, true),
            ("10.1.2.3", "192.0.2.9", false, false),
            ("11.0.0.1", "192.0.2.9", false, false),
            ("2001:db8::5", "2001:db9::1", true, true),
        ] {
            for (destinations, expected) in [(&made, of_made), (&all, of_all)] {
                let denied = destinations.denies(ip(address));
                let denied = denied.is_some_and(|denied| !denied.excepts(ip(address), ip(from)));
                assert_eq!(denied, expected, "{address} from {from}");
            }
        }
    }

    /// The limit of an hour is `most`.
    fn counted(most: u32) -> NewAddresses {
        NewAddresses {
            most,
            users: Some(Buckets::with_interval(HOUR_NS / u64::from(most), most, USERS)),
            ways: vec![0; WAYS].into(),
            key: (1, 2),
        }
    }

    fn host(text: &str) -> Host<'_> {
        Host::parse(text.as_bytes()).expect("a host")
    }

    #[test]
    fn a_user_has_so_many_new_addresses_within_an_hour() {
        let mut counted = counted(4);
        let minute = |n: u64| Instant::from_micros(n * 60_000_000);
        for (at, aor, hosts, expected) in [
            (0, &b"a@x"[..], &["1.example", "2.example", "3.example"][..], true),
            (
                0,
                b"b@x",
                &["1.example", "2.example", "3.example", "4.example"],
                true,
            ),
            (0, b"a@x", &["4.example"], true),
            (0, b"a@x", &["5.example"], false),
            (0, b"a@x", &[], true),
            // Remembered addresses do not count a second time, whatever became of their REGISTER.
            (0, b"a@x", &["4.example", "1.example"], true),
            (14, b"a@x", &["5.example"], false),
            // One of an hour's four comes back every fifteen minutes; twice in one REGISTER is one.
            (15, b"a@x", &["5.example", "5.EXAMPLE."], true),
            (15, b"a@x", &["6.example"], false),
            (300, b"a@x", &["a1", "a2", "a3", "a4", "a5"], false),
        ] {
            let new = counted.new_among(minute(at), aor, hosts.iter().map(|text| host(text)));
            assert_eq!(new.is_some(), expected, "{at} {hosts:?}");
            if let Some(new) = new {
                counted.take(minute(at), aor, &new);
            }
        }
    }

    #[test]
    fn a_way_of_a_user_counts_once() {
        let mut counted = counted(2);
        for (aor, to, expected) in [
            (&b"a@x"[..], "one.example", true),
            (b"a@x", "ONE.example.", true),
            (b"a@x", "192.0.2.1", true),
            (b"a@x", "[::ffff:192.0.2.1]", true),
            (b"a@x", "192.0.2.2", false),
            (b"b@x", "192.0.2.2", true),
            (b"a@x", "192.0.2.1", true),
        ] {
            assert_eq!(counted.lead(Instant::default(), aor, &host(to)), expected, "{to}");
        }
    }
}

//! Denied destinations (`[destinations]`): where a contact, a 3xx or a URI of a dialog must not lead.
//!
//! The loopback, addresses of groups and of rules, and listed networks are denied, except to what comes from there:
//! a PBX on the same machine may register the loopback, and a phone on another machine may not. An address on which this server
//! listens is denied to all. Multicast, broadcast and unspecified addresses are no hosts, and nothing is ever sent
//! there (`proxy/forward.rs`).
//!
//! The source of a REGISTER must be certain for that: on UDP it is if a nonce has come back from it.

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

/// Users whose new addresses one worker counts.
const USERS: usize = 16_384;
/// In which a user has new addresses, nanoseconds.
const HOUR_NS: u64 = 3_600_000_000_000;

/// What denies an address by itself, apart from groups and rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Denied {
    /// It is of the loopback.
    Loopback,
    /// It is of this network of the configuration.
    Network(Network),
}

/// Where something comes from, for what is denied but to what is there. A proxy on this machine brings browsers from
/// anywhere, so of a WebSocket it is not known: the unspecified address.
pub(crate) fn source_of(flow: &Flow) -> IpAddr {
    match flow.transport {
        Transport::Ws | Transport::Wss => Ipv4Addr::UNSPECIFIED.into(),
        Transport::Udp | Transport::Tcp | Transport::Tls => flow.remote.ip(),
    }
}

impl Destinations {
    /// What denies an address by itself.
    pub(crate) fn denies(&self, ip: IpAddr) -> Option<Denied> {
        let ip = ip.to_canonical();
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
    /// Whether it is not denied to what comes from here.
    fn excepts(self, ip: IpAddr, from: IpAddr) -> bool {
        match self {
            Self::Loopback => from.to_canonical().is_loopback(),
            Self::Network(_) => from.to_canonical() == ip.to_canonical(),
        }
    }
}

impl Engine {
    /// The place that an address is because it is denied ([`super::place`]); 0: none.
    pub(crate) fn denied_place(&self, ip: IpAddr) -> PlaceId {
        match self.config.destinations.denies(ip) {
            None => 0,
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

    /// Whether a request of `from` must not be led to an address by what a dialog says.
    pub(crate) fn is_denied(&self, ip: IpAddr, from: IpAddr) -> bool {
        let denied = self.config.destinations.denies(ip);
        denied.is_some_and(|denied| !denied.excepts(ip, from))
    }

    /// Whether a contact or a 3xx that came from `from` must not lead to this address of this host.
    pub(crate) fn is_denied_target(&self, host: HostRef<'_>, address: SocketAddr, from: IpAddr) -> bool {
        let destinations = &self.config.destinations;
        let ip = address.ip();
        if in_networks(&destinations.allow, ip.to_canonical()) {
            return false;
        }
        let is_listening = || {
            let host = match ip.to_canonical() {
                IpAddr::V4(ip) => Host::V4(ip),
                IpAddr::V6(ip) => Host::V6(ip),
            };
            self.directory.is_own(&host, Some(address.port()))
                || destinations.own_sockets.iter().any(|socket| {
                    let is_there = match socket.ip().is_unspecified() {
                        true => self.directory.is_own_address(ip),
                        false => socket.ip().to_canonical() == ip.to_canonical(),
                    };
                    is_there && socket.port() == address.port()
                })
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

    /// Whether what comes from `from` need not only come from there, but prove it: it will be sent requests to an
    /// address that is denied to all others.
    pub(crate) fn must_be_proved(&self, from: IpAddr) -> bool {
        let destinations = &self.config.destinations;
        // The kernel takes nothing from the loopback's addresses that comes by a network.
        let is_listed = || matches!(destinations.denies(from), Some(Denied::Network(_)));
        let is_of_group = || self.is_guarded(HostRef::Ip(from.to_canonical()), 0);
        !from.to_canonical().is_loopback()
            && !in_networks(&destinations.allow, from.to_canonical())
            && (is_listed() || (destinations.groups && is_of_group()))
    }
}

/// The new addresses of users within an hour.
#[derive(Debug)]
pub(crate) struct NewAddresses {
    most: u32,
    users: Option<Buckets>,
    key: (u64, u64),
}

impl NewAddresses {
    /// `key` differs between endpoints and starts.
    pub(crate) fn new(config: &Config, key: (u64, u64)) -> Self {
        let mut made = Self {
            most: 0,
            users: None,
            key,
        };
        made.reconfigure(config);
        made
    }

    /// Takes a new configuration. What is counted stays, unless the limit changes.
    pub(crate) fn reconfigure(&mut self, config: &Config) {
        // All contacts of one REGISTER may be new.
        let most = match config.destinations.new_per_hour {
            0 => 0,
            most => most.max(u32::try_from(config.limits.contacts_per_aor).unwrap_or(u32::MAX)),
        };
        if most != self.most {
            self.most = most;
            let made = || Buckets::with_interval(HOUR_NS / u64::from(most), most, USERS);
            self.users = (most > 0).then(made);
        }
    }

    /// Whether a user may have so many more.
    pub(crate) fn may_take(&self, now: Instant, aor: &[u8], count: usize) -> bool {
        // Nearly all REGISTERs have none.
        let Some(users) = self.users.as_ref().filter(|_| count > 0) else {
            return true;
        };
        let (user, count) = (self.user(aor), u32::try_from(count).unwrap_or(u32::MAX));
        users.may_take(now, user, user, count)
    }

    /// A user has so many more.
    pub(crate) fn take(&mut self, now: Instant, aor: &[u8], count: usize) {
        if count == 0 {
            return;
        }
        let user = self.user(aor);
        if let Some(users) = &mut self.users {
            for _ in 0..count {
                // That it may was asked before.
                let _ = users.take(now, user, user);
            }
        }
    }

    fn user(&self, aor: &[u8]) -> u64 {
        let mut hasher = SipHasher13::new_with_keys(self.key.0, self.key.1);
        hasher.write(aor);
        hasher.finish()
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

    #[test]
    fn a_user_has_so_many_new_addresses_within_an_hour() {
        let mut counted = NewAddresses {
            most: 4,
            users: Some(Buckets::with_interval(HOUR_NS / 4, 4, USERS)),
            key: (1, 2),
        };
        let minute = |n: u64| Instant::from_micros(n * 60_000_000);
        for (at, aor, count, expected) in [
            (0, &b"a@x"[..], 3, true),
            (0, b"b@x", 4, true),
            (0, b"a@x", 1, true),
            (0, b"a@x", 1, false),
            (0, b"a@x", 0, true),
            (14, b"a@x", 1, false),
            (15, b"a@x", 1, true),
            (15, b"a@x", 1, false),
            (300, b"a@x", 5, false),
        ] {
            let may = counted.may_take(minute(at), aor, count);
            assert_eq!(may, expected, "{at} {count}");
            if may {
                counted.take(minute(at), aor, count);
            }
        }
    }
}

//! Guarded places: hosts to which calls may cost money, and denied destinations. A dialog's mark leads to the
//! places that it names and to no others. Without that check the Request-URI, which the peer writes, would
//! decide.
//!
//! A place is a group, the target of a rule that relays, a domain that a rule rejects or asks for credentials for, or
//! a denied destination ([`super::destination`]).
//! A place is recognised by the hosts of its URIs, and by the addresses that name service gave for them
//! ([`crate::transport::Known`]). Ports do not count: another port of a gateway is the gateway.

use alloc::vec::Vec;
use core::net::IpAddr;

use sip_message::Host;
use smallvec::SmallVec;

use super::Engine;
use crate::config::{Action, Config, Domain, RelayTarget, Route};
use crate::resolve::HostRef;
use crate::transport::{HopHost, NextHop};

/// A number for a place in the configuration; 0: none.
pub(crate) type PlaceId = u16;

/// The places that one host belongs to: nearly always one at most.
type Places = SmallVec<[PlaceId; 2]>;

/// The number of a place, which outlives a reload and is the same on each node. Two places share one by
/// accident in one of 65,535 cases.
pub(super) fn number(kind: u8, name: &[u8]) -> PlaceId {
    // FNV-1a: only the operator chooses what is hashed.
    let hash = core::iter::once(&kind)
        .chain(name)
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
        });
    ((hash >> 32) as PlaceId).max(1)
}

/// The number of a domain of ours; 0: none. A domain that asks for credentials in dialogs has a number from 1
/// to 15, by its name. A domain that does not has a number from 16 to 30. Two domains may share a number. If
/// so, either both ask in dialogs, though perhaps for different methods, or neither does.
pub(crate) type DomainNumber = u8;

/// Numbers of each kind.
const OF_KIND: DomainNumber = 15;

/// The number of `domain`; see [`DomainNumber`].
pub(crate) fn domain_number(domain: &Domain) -> DomainNumber {
    let number = (number(b'n', &domain.name) % PlaceId::from(OF_KIND)) as DomainNumber + 1;
    match asks_in_dialogs(domain) {
        true => number,
        false => number + OF_KIND,
    }
}

/// Whether a domain asks for credentials for some method in a dialog: `*` names none there.
fn asks_in_dialogs(domain: &Domain) -> bool {
    domain.auth.methods.iter().any(|method| **method != *b"*")
}

/// The domains that marks may mean by each number.
pub(super) type DomainsByNumber = [Vec<usize>; 2 * OF_KIND as usize + 1];

/// Positions of the domains that a mark may mean by a number. First, domains with this number, now or before
/// they began to ask for credentials. If there are none, domains that had it before they ceased to ask.
pub(super) fn domains_by_number(config: &Config) -> DomainsByNumber {
    let numbers: Vec<DomainNumber> = config.domains.iter().map(domain_number).collect();
    let with = |wanted: &dyn Fn(DomainNumber) -> bool| -> Vec<usize> {
        let all = numbers.iter().enumerate();
        all.filter(|(_, number)| wanted(**number))
            .map(|(at, _)| at)
            .collect()
    };
    core::array::from_fn(|number| {
        let number = number as DomainNumber;
        let found = with(&|now| now == number || now + OF_KIND == number);
        match found.is_empty() && number != 0 {
            true => with(&|now| now == number + OF_KIND),
            false => found,
        }
    })
}

/// The host that a rule denies, or asks for credentials for, and its place. `None` unless the rule names a
/// domain and nothing else: other conditions depend on more than the host.
pub(super) fn denied_by(rule: &Route) -> Option<(PlaceId, &[u8])> {
    let when = &rule.when;
    let denies = match &rule.action {
        Action::Reject { .. } => true,
        Action::Relay(relay) => rule.auth == Some(true) && relay.target == RelayTarget::RequestUri,
        Action::Redirect(_) => false,
    };
    let by_host =
        when.methods.is_empty() && when.headers.is_empty() && when.source.is_empty() && when.uri.is_none();
    let domain = when.domain.as_deref().filter(|_| denies && by_host)?;
    Some((number(b'd', domain), domain))
}

/// The place that a rule leads to; 0: none of its own.
pub(super) fn place_of_rule(config: &Config, rule: &Route) -> PlaceId {
    match &rule.action {
        Action::Relay(relay) => match &relay.target {
            RelayTarget::Uri(hop) => number(b'r', &hop.authority),
            RelayTarget::Group(index) => config.groups.get(*index).map_or(0, |g| number(b'g', &g.name)),
            RelayTarget::RequestUri => denied_by(rule).map_or(0, |(place, _)| place),
            RelayTarget::Location => 0,
        },
        Action::Redirect(_) | Action::Reject { .. } => 0,
    }
}

/// All next hops of the configuration, and the place of each.
pub(crate) fn places(config: &Config) -> impl Iterator<Item = (PlaceId, &NextHop)> {
    let rules = config.routes.iter().filter_map(|rule| match &rule.action {
        Action::Relay(relay) => match &relay.target {
            RelayTarget::Uri(hop) => Some((place_of_rule(config, rule), hop)),
            RelayTarget::Location | RelayTarget::RequestUri | RelayTarget::Group(_) => None,
        },
        Action::Redirect(_) | Action::Reject { .. } => None,
    });
    let groups = config.groups.iter().flat_map(|group| {
        let place = number(b'g', &group.name);
        group.members.iter().map(move |member| (place, &member.hop))
    });
    // Groups come first, since they have more hosts: if a host is in several places, a mark names the first.
    groups.chain(rules)
}

/// Keeps the known addresses of named next hops in the new configuration.
pub(super) fn keep_known(before: &Config, after: &mut Config) {
    let rules = after.routes.iter_mut().filter_map(|rule| match &mut rule.action {
        Action::Relay(relay) => match &mut relay.target {
            RelayTarget::Uri(hop) => Some(hop),
            RelayTarget::Location | RelayTarget::RequestUri | RelayTarget::Group(_) => None,
        },
        Action::Redirect(_) | Action::Reject { .. } => None,
    });
    let members = after.groups.iter_mut().flat_map(|group| &mut group.members);
    for hop in rules.chain(members.map(|member| &mut member.hop)) {
        let same =
            |(_, old): &(PlaceId, &NextHop)| matches!(hop.host, HopHost::Name(_)) && old.host == hop.host;
        if let Some((_, old)) = places(before).find(same) {
            hop.known = old.known.clone();
        }
    }
}

impl Engine {
    /// The guarded places that a host belongs to.
    pub(crate) fn places_of(&self, host: HostRef<'_>) -> Places {
        let (ip, host) = match host {
            HostRef::Name(name) => (None, Host::Name(name)),
            HostRef::Ip(IpAddr::V4(ip)) => (Some(IpAddr::V4(ip)), Host::V4(ip)),
            HostRef::Ip(IpAddr::V6(ip)) => (Some(IpAddr::V6(ip)), Host::V6(ip)),
        };
        let mut found = Places::from_slice(self.directory.places_of(&host));
        if let Some(ip) = ip.filter(|_| self.directory.has_named_places()) {
            let named = places(&self.config).filter(|(_, hop)| matches!(hop.host, HopHost::Name(_)));
            found.extend(named.filter(|(_, hop)| hop.known.has(ip)).map(|(place, _)| place));
        }
        found
    }

    /// The first guarded place that an address belongs to, else its place as a denied destination; 0: neither.
    pub(crate) fn place_of_address(&self, ip: IpAddr) -> PlaceId {
        let host = match ip {
            IpAddr::V4(ip) => Host::V4(ip),
            IpAddr::V6(ip) => Host::V6(ip),
        };
        let named = || self.places_of(HostRef::Ip(ip)).first().copied();
        let found = match self.directory.has_places() {
            true => match self.directory.places_of(&host) {
                [place, ..] => Some(*place),
                [] if self.directory.has_named_places() => named(),
                [] => None,
            },
            false => None,
        };
        found.unwrap_or_else(|| self.denied_place(ip))
    }

    /// Whether a host is a guarded place, and `named`, the place that the mark names, is none of its places.
    pub(crate) fn is_guarded(&self, host: HostRef<'_>, named: PlaceId) -> bool {
        if !self.directory.has_places() {
            return false;
        }
        let places = self.places_of(host);
        !places.is_empty() && !places.contains(&named)
    }
}

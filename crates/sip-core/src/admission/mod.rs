//! Admission: whether a message that arrives is handled, decided before any of it is read.
//!
//! A message is refused, without a response, if its source is banned or sends more than it may ([`bucket`]).
//! All state is one worker's own. The state that the workers have in common (bans, the addresses of our next
//! hops) comes to each as a [`SourceLists`]. The shell makes that value anew when it changes, so that nothing
//! shared is read, let alone written, for a message.
//!
//! **The trust domain is exempt**: sources in `trust` and `exempt` of the configuration, and peers
//! that have proved a trusted name by certificate. So are next hops and group members of the
//! configuration, at all addresses that name service gives.
//!
//! Name service is queried as long as any source may be refused (`proxy/peers.rs`), and addresses are learnt
//! as requests are sent there, too. New addresses are reported to all workers, since a peer's messages may
//! come to any of them. A source is checked for exemption only when it is about to be refused.

pub(crate) mod bucket;
mod source;
mod throttle;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::hash::Hasher as _;
use core::net::IpAddr;

use hashbrown::HashMap;
use siphasher::sip::SipHasher13;

use crate::config::{Action, Config, Network, RelayTarget};
use crate::event::Counters;
use crate::time::Instant;
use crate::transport::{Flow, HopHost, NextHop, Proof};

use bucket::{Buckets, Taken};
pub use source::{NoSource, Source, Sources};
use throttle::LogThrottle;

/// The sources that the whole process has banned or learnt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceLists {
    /// Banned sources.
    pub banned: Sources,
    /// Sources of the trust domain, as far as they have been learnt.
    pub peers: Sources,
}

/// The most peers that one worker has learnt. If a source is not remembered, it is reported again.
const PEERS: usize = 4096;

/// Microseconds after which a peer that is still met is reported again.
const MEET_AGAIN_US: u64 = 600_000_000;

/// The reason for the refusal of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The source is banned.
    Banned,
    /// The message is more than the source may send. `Some`: log it, with the number of messages since the
    /// last that was logged.
    Limited(Option<u32>),
}

/// The admission of messages to one worker.
#[derive(Debug)]
pub(crate) struct Admission {
    /// Whether any message need be checked.
    is_on: bool,
    standing: Arc<SourceLists>,
    buckets: Option<Buckets>,
    /// The limits that the buckets were made for.
    limits: (u32, u32, usize),
    /// Networks of the trust domain: those named, and addresses of next hops.
    exempt: Vec<Network>,
    /// Whether the addresses of peers are learnt.
    learns: bool,
    met: HashMap<Source, Instant, BuildKeyed>,
    told: LogThrottle,
    key: (u64, u64),
}

/// The builder of keyed hashers of sources: peers choose their sources.
#[derive(Clone, Copy, Debug)]
struct BuildKeyed((u64, u64));

impl core::hash::BuildHasher for BuildKeyed {
    type Hasher = SipHasher13;
    fn build_hasher(&self) -> SipHasher13 {
        SipHasher13::new_with_keys(self.0.0, self.0.1)
    }
}

impl Admission {
    /// The admission by `config`. `key` differs between endpoints and starts.
    pub(crate) fn new(config: &Config, key: (u64, u64)) -> Self {
        let mut made = Self {
            is_on: false,
            standing: Arc::default(),
            buckets: None,
            limits: (0, 0, 0),
            exempt: Vec::new(),
            learns: false,
            met: HashMap::with_hasher(BuildKeyed(key)),
            told: LogThrottle::default(),
            key,
        };
        made.reconfigure(config);
        made
    }

    /// Takes a new configuration. Buckets stay as they are, unless their limits change.
    pub(crate) fn reconfigure(&mut self, config: &Config) {
        let abuse = &config.abuse;
        let limits = (abuse.rate, abuse.burst, abuse.sources);
        if limits != self.limits {
            self.limits = limits;
            self.buckets = (abuse.rate > 0).then(|| Buckets::new(abuse.rate, abuse.burst, abuse.sources));
        }
        self.exempt = exempt_networks(config);
        self.learns = abuse.rate > 0 || abuse.bans;
        self.switch();
    }

    /// Takes the lists of sources that the process now holds.
    pub(crate) fn set_source_lists(&mut self, standing: Arc<SourceLists>) {
        self.standing = standing;
        self.switch();
    }

    fn switch(&mut self) {
        self.is_on = self.buckets.is_some() || !self.standing.banned.is_empty();
    }

    /// Whether a message need be checked.
    #[inline]
    pub(crate) const fn is_on(&self) -> bool {
        self.is_on
    }

    /// Whether a message that came by `flow` is admitted.
    pub(crate) fn check(
        &mut self,
        now: Instant,
        flow: &Flow,
        counters: &mut Counters,
    ) -> Result<(), Refused> {
        let source = Source::of(flow.remote.ip());
        if !self.standing.banned.is_empty() && self.standing.banned.contains(source) && !self.is_exempt(flow)
        {
            return Err(Refused::Banned);
        }
        let key = self.key;
        let Some(buckets) = &mut self.buckets else {
            return Ok(());
        };
        let hash = hash(key, source);
        match buckets.take(now, source.bits(), hash) {
            Taken::Passed => Ok(()),
            Taken::Evicted => {
                counters.sources_evicted += 1;
                Ok(())
            }
            Taken::Untracked => {
                counters.sources_untracked += 1;
                Ok(())
            }
            Taken::Refused if self.is_exempt(flow) => Ok(()),
            Taken::Refused => Err(Refused::Limited(self.told.note(now, source, hash))),
        }
    }

    /// Whether the source of `flow` is of the trust domain.
    pub(crate) fn is_exempt(&self, flow: &Flow) -> bool {
        let ip = flow.remote.ip();
        let source = Source::of(ip);
        // A translated address has two spellings.
        let plain = Some(source.address()).filter(IpAddr::is_ipv4);
        let has_it =
            |network: &Network| network.contains(ip) || plain.is_some_and(|plain| network.contains(plain));
        flow.proof == Proof::Trusted || self.exempt.iter().any(has_it) || self.standing.peers.contains(source)
    }

    /// Notes another event of a source. `Some`: log it, with the number of events since the last that
    /// was logged.
    pub(crate) fn tell(&mut self, now: Instant, ip: IpAddr) -> Option<u32> {
        let source = Source::of(ip);
        self.told.note(now, source, hash(self.key, source))
    }

    /// Whether the addresses of peers are learnt.
    pub(crate) const fn learns(&self) -> bool {
        self.learns
    }

    /// Whether the process should learn that `ip` is the address of a trusted peer or of a next hop
    /// of the configuration. The caller that reports it then calls [`Self::told_of`].
    pub(crate) fn is_to_be_told_of(&self, now: Instant, ip: IpAddr) -> bool {
        let met = || self.met.get(&Source::of(ip));
        self.learns && met().is_none_or(|at| now.micros_since(*at) >= MEET_AGAIN_US)
    }

    /// Notes that the peer at `ip` is reported, and need not be for a while.
    pub(crate) fn told_of(&mut self, now: Instant, ip: IpAddr) {
        let source = Source::of(ip);
        if self.met.len() >= PEERS && !self.met.contains_key(&source) {
            self.met.clear();
        }
        self.met.insert(source, now);
    }

    /// The number of sources with buckets in use.
    pub(crate) fn sources(&self, now: Instant) -> usize {
        self.buckets.as_ref().map_or(0, |buckets| buckets.in_use(now))
    }
}

fn hash(key: (u64, u64), source: Source) -> u64 {
    let mut hasher = SipHasher13::new_with_keys(key.0, key.1);
    hasher.write_u64(source.bits());
    hasher.finish()
}

/// The networks of the trust domain, as the configuration has them: their messages are never refused, and no
/// part of them is banned. Next hops are among the networks if the configuration gives their addresses.
pub fn exempt_networks(config: &Config) -> Vec<Network> {
    let mut networks = config.trust.clone();
    networks.extend(&config.abuse.exempt);
    networks.extend(next_hops(config).filter_map(address_of));
    networks
}

/// All next hops that the configuration names: of rules, and members of groups.
pub(crate) fn next_hops(config: &Config) -> impl Iterator<Item = &NextHop> {
    let routes = config.routes.iter().filter_map(|route| match &route.action {
        Action::Relay(relay) => match &relay.target {
            RelayTarget::Uri(hop) => Some(hop),
            RelayTarget::Location | RelayTarget::RequestUri | RelayTarget::Group(_) => None,
        },
        Action::Redirect(_) | Action::Reject { .. } => None,
    });
    let members = config.groups.iter().flat_map(|group| &group.members);
    routes.chain(members.map(|member| &member.hop))
}

fn address_of(hop: &NextHop) -> Option<Network> {
    match hop.host {
        HopHost::Name(_) => None,
        HopHost::Ip(address) => Some(Network {
            address,
            prefix_len: if address.to_canonical().is_ipv4() { 32 } else { 128 },
        }),
    }
}

//! The rules of bans: which sources are banned, for what and for how long. Plain values; the time is an
//! argument.
//!
//! **What counts.** Failed authentications and requests of scanners count, if the source is verified and not
//! of the trust domain; the core decides that. A source with too many of these within the window is banned.
//!
//! **Many users behind one address.** If other users have recently registered from an address, one wrong
//! password must not ban them all. There the *users* that fail are counted, each once. Failures of fewer
//! users than that ban the address once they are [`SHARED_PATIENCE`] times as many as elsewhere; no telephone
//! makes so many by mistake. Requests of scanners are counted by themselves there: a scanner says nothing
//! about wrong passwords of others. Of the users that fail, [`USERS`] are remembered; each failure of any
//! other counts as another user.
//!
//! **How long.** Each ban of a source takes twice as long as the one before, up to the longest. A ban is
//! remembered for the longest time after its end.
//!
//! **At the limit.** If too many bans are held, a remembered ban that is over makes room first, then the one
//! that ends soonest. Bans made by an operator stay. If only such are held, a new ban is refused. Of sources
//! that have recently failed, [`SUSPECTS`] are remembered; the one whose window began first makes room for a
//! new one.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::IpAddr;

use sip_core::admission::{Source, SourceLists};
use sip_core::config::Network;

use settings::BanPolicy;

/// Most sources with recent failures that are remembered.
const SUSPECTS: usize = 65_536;

/// Most users remembered for each source: 16 MiB in all.
const USERS: usize = 64;

/// Most learnt peers of the trust domain.
const PEERS: usize = 4_096;

/// Time after which a peer that was not met is forgotten, milliseconds. Workers resolve peers with names
/// every five minutes and report them every ten. Name service may be down for as long as this bound.
const PEER_MS: u64 = 86_400_000;

/// Time after which a peer that was not met is forgotten after a change of the configuration, milliseconds:
/// the configuration may no longer name it.
const PEER_LEFT_MS: u64 = 3_600_000;

/// Factor on the failures allowed to an address from which other users register.
const SHARED_PATIENCE: u32 = 10;

/// Most characters of a reason.
pub(crate) const REASON: usize = 200;

/// The maker of a ban.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// Failures of the source.
    Failures,
    /// An operator.
    Hand,
}

impl By {
    /// The maker's name on pages and in the file.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Failures => "failures",
            Self::Hand => "hand",
        }
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        [Self::Failures, Self::Hand]
            .into_iter()
            .find(|by| by.name() == text)
    }
}

/// One ban.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ban {
    /// Begin of the ban, Unix milliseconds.
    pub since_ms: u64,
    /// End of the ban, Unix milliseconds; `None`: until it is lifted.
    pub until_ms: Option<u64>,
    /// Number of the ban among those of this source, from 1.
    pub strikes: u32,
    /// Maker of the ban.
    pub by: By,
    /// Reason of the ban.
    pub reason: String,
}

impl Ban {
    /// Whether the ban is in force.
    pub(crate) fn holds(&self, now_ms: u64) -> bool {
        self.until_ms.is_none_or(|until| until > now_ms)
    }

    /// The ban's key in the `ends` of [`Guard`], which have no bans of operators.
    fn end(&self) -> u64 {
        self.until_ms.unwrap_or(u64::MAX)
    }
}

/// Why a source is not banned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotBanned {
    /// The source is a peer of the trust domain, or its network contains one.
    Trusted,
    /// Too many bans are held, all of them made by operators.
    Full,
}

/// Recent failures of a source.
#[derive(Debug, Default)]
struct Suspect {
    /// Begin of the window, Unix milliseconds.
    since_ms: u64,
    /// Failed authentications.
    failures: Count,
    /// Requests of a scanner.
    scans: Count,
    users: Users,
}

/// Counts of this window and of the one before.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    now: u32,
    earlier: u32,
}

/// The users that failed in a window.
#[derive(Debug, Default)]
struct Users {
    /// Hashes of the first users, keyed, so that no guesser can choose two users with the same hash.
    known: Vec<u32>,
    /// Failures of other users.
    others: u32,
}

impl Users {
    fn add(&mut self, user: u64) {
        let user = user as u32;
        if self.known.contains(&user) {
            return;
        }
        if self.known.len() < USERS {
            self.known.push(user);
        } else {
            self.others = self.others.saturating_add(1);
        }
    }

    /// Most users that these can be.
    fn count(&self) -> u32 {
        self.others.saturating_add(self.known.len() as u32)
    }
}

/// Counts since the start.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub made: u64,
    pub made_by_hand: u64,
    pub lifted: u64,
    pub ended: u64,
    pub evicted: u64,
    pub refused: u64,
    pub suspects_evicted: u64,
}

/// State of all sources: bans, suspects and peers.
#[derive(Debug)]
pub(crate) struct Guard {
    policy: BanPolicy,
    exempt: Vec<Network>,
    /// Bans in force, and remembered ones.
    bans: BTreeMap<Source, Ban>,
    /// Bans that may make room, by their ends.
    ends: BTreeSet<(u64, Source)>,
    suspects: HashMap<Source, Suspect>,
    /// Suspects in the order of their windows. Some have begun another window since.
    order: VecDeque<(u64, Source)>,
    /// Peers, with the time of the last report of each.
    peers: BTreeMap<Source, u64>,
    pub(crate) counts: Counts,
}

impl Guard {
    pub(crate) fn new(policy: BanPolicy, exempt: Vec<Network>) -> Self {
        Self {
            policy,
            exempt,
            bans: BTreeMap::new(),
            ends: BTreeSet::new(),
            suspects: HashMap::new(),
            order: VecDeque::new(),
            peers: BTreeMap::new(),
            counts: Counts::default(),
        }
    }

    /// Uses a new configuration. Returns the sources whose bans end by it, because they are trusted now.
    pub(crate) fn reconfigure(
        &mut self,
        now_ms: u64,
        policy: BanPolicy,
        exempt: Vec<Network>,
    ) -> Vec<Source> {
        (self.policy, self.exempt) = (policy, exempt);
        let latest = now_ms.saturating_sub(PEER_MS - PEER_LEFT_MS);
        self.peers.values_mut().for_each(|at| *at = latest.min(*at));
        let trusted: Vec<Source> = self
            .bans
            .keys()
            .copied()
            .filter(|s| self.is_trusted(*s))
            .collect();
        for source in &trusted {
            self.lift(*source);
        }
        while self.bans.len() > self.policy.limit && self.make_room() {}
        trusted
    }

    /// Adds the bans of a file.
    pub(crate) fn load(&mut self, bans: Vec<(Source, Ban)>) {
        for (source, ban) in bans {
            let has_room = self.bans.len() < self.policy.limit || self.make_room();
            if has_room && !self.is_trusted(source) {
                self.put(source, ban);
            }
        }
    }

    /// All bans in order, including remembered ones.
    pub(crate) fn bans(&self) -> impl Iterator<Item = (Source, &Ban)> {
        self.bans.iter().map(|(source, ban)| (*source, ban))
    }

    /// The source lists for the workers.
    pub(crate) fn standing(&self, now_ms: u64) -> SourceLists {
        let held = self.bans().filter(|(_, ban)| ban.holds(now_ms));
        SourceLists {
            banned: held.map(|(source, _)| source).collect(),
            peers: self.peers.keys().copied().collect(),
        }
    }

    /// Numbers of sources with recent failures, and of learnt peers.
    pub(crate) fn watched(&self) -> (usize, usize) {
        (self.suspects.len(), self.peers.len())
    }

    /// Most bans that may be held.
    pub(crate) fn limit(&self) -> usize {
        self.policy.limit
    }

    /// Whether sources are banned for failures.
    pub(crate) fn is_watching(&self) -> bool {
        self.policy.failures > 0
    }

    /// Notes a peer of the trust domain at `ip`. Returns whether it is new, and whether it had been banned.
    pub(crate) fn meet(&mut self, now_ms: u64, ip: IpAddr) -> (bool, bool) {
        let source = Source::of(ip);
        if self.peers.len() >= PEERS && !self.peers.contains_key(&source) {
            let oldest = self
                .peers
                .iter()
                .min_by_key(|(_, at)| **at)
                .map(|(peer, _)| *peer);
            oldest.and_then(|peer| self.peers.remove(&peer));
        }
        let is_news = self.peers.insert(source, now_ms).is_none();
        (is_news, is_news && self.lift(source))
    }

    /// Counts a failure of a source: of `user` (a hash of the name), or, if `None`, a request of a scanner.
    /// `is_shared`: other users have recently registered from there. Returns the resulting ban, if any.
    pub(crate) fn fail(
        &mut self,
        now_ms: u64,
        source: Source,
        user: Option<u64>,
        is_shared: bool,
    ) -> Option<Result<&Ban, NotBanned>> {
        let limit = self.policy.failures;
        let is_banned = self.bans.get(&source).is_some_and(|ban| ban.holds(now_ms));
        if limit == 0 || is_banned || self.is_trusted(source) {
            return None;
        }
        let window = millis(self.policy.window);
        let suspect = self.suspect(now_ms, source);
        match user {
            Some(user) => {
                suspect.failures.add();
                suspect.users.add(user);
            }
            None => suspect.scans.add(),
        }
        let (failures, scans, users) = suspect.weigh(now_ms, window);
        let is_over = if is_shared {
            users >= limit || scans >= limit || failures >= limit.saturating_mul(SHARED_PATIENCE)
        } else {
            failures.saturating_add(scans) >= limit
        };
        if !is_over {
            return None;
        }
        self.suspects.remove(&source);
        let reason = reason(failures, users, scans);
        Some(self.ban_for_failures(now_ms, source, reason))
    }

    fn ban_for_failures(&mut self, now_ms: u64, source: Source, reason: String) -> Result<&Ban, NotBanned> {
        let strikes = self.bans.get(&source).map_or(0, |ban| ban.strikes) + 1;
        let (first, longest) = (millis(self.policy.first), millis(self.policy.longest));
        let doubled = 1u64
            .checked_shl(strikes - 1)
            .and_then(|times| first.checked_mul(times));
        let length = doubled.unwrap_or(longest).min(longest);
        let ban = Ban {
            since_ms: now_ms,
            until_ms: Some(now_ms + length),
            strikes,
            by: By::Failures,
            reason,
        };
        self.enter(source, ban)
    }

    /// Bans a source by hand, until `until_ms` or until it is lifted.
    pub(crate) fn add(
        &mut self,
        now_ms: u64,
        source: Source,
        until_ms: Option<u64>,
        reason: String,
    ) -> Result<&Ban, NotBanned> {
        if self.is_trusted(source) {
            return Err(NotBanned::Trusted);
        }
        let ban = Ban {
            since_ms: now_ms,
            until_ms,
            strikes: self.bans.get(&source).map_or(0, |ban| ban.strikes).max(1),
            by: By::Hand,
            reason,
        };
        self.enter(source, ban)
    }

    fn enter(&mut self, source: Source, ban: Ban) -> Result<&Ban, NotBanned> {
        let is_held = self.bans.contains_key(&source);
        if !is_held && self.bans.len() >= self.policy.limit && !self.make_room() {
            self.counts.refused += 1;
            return Err(NotBanned::Full);
        }
        match ban.by {
            By::Failures => self.counts.made += 1,
            By::Hand => self.counts.made_by_hand += 1,
        }
        self.put(source, ban);
        self.bans.get(&source).ok_or(NotBanned::Full)
    }

    fn put(&mut self, source: Source, ban: Ban) {
        if ban.by == By::Failures {
            self.ends.insert((ban.end(), source));
        }
        if let Some(old) = self.bans.insert(source, ban)
            && self
                .bans
                .get(&source)
                .is_some_and(|new| new.end() != old.end() || new.by != By::Failures)
        {
            self.ends.remove(&(old.end(), source));
        }
    }

    /// Ends the ban of a source and forgets its failures. Returns whether there was a ban.
    pub(crate) fn lift(&mut self, source: Source) -> bool {
        self.suspects.remove(&source);
        let Some(ban) = self.bans.remove(&source) else {
            return false;
        };
        self.ends.remove(&(ban.end(), source));
        self.counts.lifted += 1;
        true
    }

    /// Forgets the ban that ends soonest.
    fn make_room(&mut self) -> bool {
        let Some((_, source)) = self.ends.pop_first() else {
            return false;
        };
        self.bans.remove(&source);
        self.counts.evicted += 1;
        true
    }

    /// Advances the time from `before_ms` to `now_ms`. Returns the sources whose bans have ended, and whether
    /// anything else has changed for workers or file.
    pub(crate) fn pass(&mut self, before_ms: u64, now_ms: u64) -> (Vec<Source>, bool) {
        let longest = millis(self.policy.longest);
        let ended = self
            .bans
            .iter()
            .filter(|(_, ban)| ban.holds(before_ms) && !ban.holds(now_ms));
        let ended: Vec<Source> = ended.map(|(source, _)| *source).collect();
        self.counts.ended += ended.len() as u64;
        let held = (self.bans.len(), self.peers.len());
        // A ban for failures is remembered after its end, to double the next. A ban by an operator is not:
        // there is nothing to double.
        self.bans.retain(|source, ban| {
            let kept = match (ban.by, ban.until_ms) {
                (_, None) => true,
                (By::Hand, Some(until)) => until > now_ms,
                (By::Failures, Some(until)) => until.saturating_add(longest) > now_ms,
            };
            if !kept {
                self.ends.remove(&(ban.end(), *source));
            }
            kept
        });
        self.peers.retain(|_, at| at.saturating_add(PEER_MS) > now_ms);
        let window = millis(self.policy.window);
        while let Some((since, source)) = self.order.front().copied() {
            if since.saturating_add(window.saturating_mul(2)) > now_ms {
                break;
            }
            self.order.pop_front();
            self.forget(since, source);
        }
        let is_different = held != (self.bans.len(), self.peers.len());
        (ended, is_different)
    }

    /// Forgets a suspect if its window began at that time.
    fn forget(&mut self, since_ms: u64, source: Source) -> bool {
        let is_that = self.suspects.get(&source).is_some_and(|s| s.since_ms == since_ms);
        is_that && self.suspects.remove(&source).is_some()
    }

    fn suspect(&mut self, now_ms: u64, source: Source) -> &mut Suspect {
        let window = millis(self.policy.window);
        let begins = |since_ms| Suspect {
            since_ms,
            ..Suspect::default()
        };
        let (is_new, next) = match self.suspects.get(&source) {
            None => (true, Some(begins(now_ms))),
            Some(old) => match now_ms.saturating_sub(old.since_ms) {
                age if age < window => (false, None),
                age if age < window.saturating_mul(2) => {
                    let next = Suspect {
                        failures: old.failures.next(),
                        scans: old.scans.next(),
                        ..begins(old.since_ms + window)
                    };
                    (false, Some(next))
                }
                _ => (false, Some(begins(now_ms))),
            },
        };
        while is_new && self.suspects.len() >= SUSPECTS {
            let Some((since, oldest)) = self.order.pop_front() else {
                break;
            };
            if self.forget(since, oldest) {
                self.counts.suspects_evicted += 1;
            }
        }
        if let Some(next) = &next {
            // Each remembered suspect has one valid entry, and at most one outdated.
            if self.order.len() >= 2 * SUSPECTS {
                let suspects = &self.suspects;
                self.order
                    .retain(|(since, source)| suspects.get(source).is_some_and(|s| s.since_ms == *since));
            }
            self.order.push_back((next.since_ms, source));
        }
        let entry = self.suspects.entry(source).or_insert_with(|| begins(now_ms));
        if let Some(next) = next {
            *entry = next;
        }
        entry
    }

    /// Whether a source is in the trust domain, or contains a part of it.
    fn is_trusted(&self, source: Source) -> bool {
        self.peers.contains_key(&source) || self.exempt.iter().any(|network| source.touches(network))
    }
}

impl Suspect {
    /// Failures and scans of the last window's length, and users of this window.
    fn weigh(&self, now_ms: u64, window_ms: u64) -> (u32, u32, u32) {
        let left = window_ms.saturating_sub(now_ms.saturating_sub(self.since_ms));
        let lately = |count: Count| count.weight(left, window_ms);
        (lately(self.failures), lately(self.scans), self.users.count())
    }
}

impl Count {
    fn add(&mut self) {
        self.now = self.now.saturating_add(1);
    }

    /// The count for the next window.
    const fn next(self) -> Self {
        Self {
            now: 0,
            earlier: self.now,
        }
    }

    /// The count of this window, and a part of that of the window before. The part is the share of the window
    /// that has not passed yet, as if the events had come evenly.
    fn weight(self, left_ms: u64, window_ms: u64) -> u32 {
        let earlier = u64::from(self.earlier) * left_ms / window_ms.max(1);
        self.now.saturating_add(earlier as u32)
    }
}

/// The reason of a ban for failures.
fn reason(failures: u32, users: u32, scans: u32) -> String {
    let failed = match (failures, users) {
        (0, _) => None,
        (1, _) => Some("1 failed authentication".to_owned()),
        (_, 0 | 1) => Some(format!("{failures} failed authentications of one user")),
        (_, _) => Some(format!("{failures} failed authentications of {users} users")),
    };
    let scanned = match scans {
        0 => None,
        1 => Some("1 request of a scanner".to_owned()),
        _ => Some(format!("{scans} requests of a scanner")),
    };
    let both: Vec<String> = failed.into_iter().chain(scanned).collect();
    both.join(", ")
}

fn millis(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[path = "guard_tests.rs"]
mod tests;

//! A cache of secrets, so that most requests need no look-up.

use std::hash::{BuildHasher as _, RandomState};
use std::time::{Duration, Instant};

use hashbrown::HashTable;
use sip_core::query::Secrets;

use crate::metrics::{Counter, Sample};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};

/// Number of locks; one in models, where the order of locks must not depend on a random key.
const SHARDS: usize = if cfg!(loom) { 1 } else { 64 };

/// Secrets of subscribers by user, domain and realm, for a limited time and number. That a subscriber does
/// not exist is also cached, for a shorter time. Workers read the cache. A full shard evicts an entry that
/// was not used recently.
#[derive(Debug)]
pub struct CredentialCache {
    shards: Vec<Mutex<Shard>>,
    per_shard: usize,
    ttl: Duration,
    negative_ttl: Duration,
    /// Time beyond `ttl` for which secrets are kept, for use while the store is away.
    stale: Duration,
    /// Number of changes of the store. Entries made before the last one do not count.
    generation: AtomicU64,
    /// Number of times that a subscriber was forgotten. A look-up that began before the last one is not
    /// cached.
    forgets: AtomicU64,
    keys: RandomState,
    hits: Counter,
    misses: Counter,
    invalidations: Counter,
    evictions: Counter,
}

#[derive(Debug, Default)]
struct Shard {
    index: HashTable<usize>,
    slots: Vec<Slot>,
    hand: usize,
    /// Number of slots for unknown users.
    absent: usize,
}

/// Divisor for the slots of unknown users in a shard. Names that strangers invent must not displace
/// subscribers.
const ABSENT_SHARE: usize = 8;

struct Slot {
    hash: u64,
    /// User, domain and realm, one after the other.
    key: Box<[u8]>,
    user_len: usize,
    domain_len: usize,
    secrets: Option<Secrets>,
    until: Instant,
    stale_until: Instant,
    generation: u64,
    used: bool,
    /// Whether the slot was made for an unknown user, without secrets.
    is_absent: bool,
}

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Slot(..)")
    }
}

/// The moment at which a look-up began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    generation: u64,
    forgets: u64,
}

/// Key of an entry: user, domain and realm.
#[derive(Clone, Copy)]
struct Key<'a>(&'a [u8], &'a [u8], &'a [u8]);

impl Slot {
    fn is(&self, key: Key<'_>) -> bool {
        let Key(user, domain, realm) = key;
        let domain_at = self.user_len;
        let realm_at = domain_at + self.domain_len;
        self.key.get(..domain_at) == Some(user)
            && self.key.get(domain_at..realm_at) == Some(domain)
            && self.key.get(realm_at..) == Some(realm)
    }

    /// Whether the entry is of `user`, named with or without the domain.
    fn is_about(&self, user: &[u8], domain: &[u8]) -> bool {
        let names = self.key.get(..self.user_len).unwrap_or_default();
        let rest = names.strip_prefix(user);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"@"))
            && self.key.get(self.user_len..self.user_len + self.domain_len) == Some(domain)
    }
}

impl CredentialCache {
    /// A cache of about `entries` entries (0: nothing is cached). Secrets are kept for `ttl`. That there are
    /// none is kept for `negative_ttl`.
    pub fn new(entries: usize, ttl: Duration, negative_ttl: Duration) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::new(Shard::default())).collect(),
            per_shard: entries.div_ceil(SHARDS),
            ttl,
            negative_ttl,
            stale: Duration::ZERO,
            generation: AtomicU64::new(0),
            forgets: AtomicU64::new(0),
            keys: RandomState::new(),
            hits: Counter::default(),
            misses: Counter::default(),
            invalidations: Counter::default(),
            evictions: Counter::default(),
        }
    }

    /// Sets the time beyond `ttl` for which secrets are kept for [`CredentialCache::stale`].
    #[must_use]
    pub fn with_stale(mut self, stale: Duration) -> Self {
        self.stale = stale;
        self
    }

    /// The secrets of `user@domain` for `realm`: `Some(None)` if the user is known not to exist, `None` if
    /// nothing is cached.
    pub fn get(&self, user: &[u8], domain: &[u8], realm: &[u8]) -> Option<Option<Secrets>> {
        let found = self.peek(user, domain, realm);
        if found.is_some() {
            self.hits.inc();
        } else if self.per_shard > 0 {
            self.misses.inc();
        }
        found
    }

    /// [`CredentialCache::get`] without counting.
    pub(super) fn peek(&self, user: &[u8], domain: &[u8], realm: &[u8]) -> Option<Option<Secrets>> {
        self.find(Key(user, domain, realm), |slot| {
            (slot.until > Instant::now()).then(|| slot.secrets.clone())
        })
    }

    /// Outdated secrets that may still be used while the store does not respond. `None` if the store is known
    /// to have changed since.
    pub(super) fn stale(&self, user: &[u8], domain: &[u8], realm: &[u8]) -> Option<Secrets> {
        self.find(Key(user, domain, realm), |slot| {
            let secrets = slot
                .secrets
                .clone()
                .filter(|_| slot.stale_until > Instant::now())?;
            Some(Secrets {
                outdated: true,
                ..secrets
            })
        })
    }

    /// Result of `read` on the entry of `key`, if there is one of this generation.
    fn find<T>(&self, key: Key<'_>, read: impl FnOnce(&Slot) -> Option<T>) -> Option<T> {
        if self.per_shard == 0 {
            return None;
        }
        let (hash, shard) = self.place(key)?;
        let mut shard = shard.lock();
        let Shard { index, slots, .. } = &mut *shard;
        let at = *index.find(hash, |at| slots.get(*at).is_some_and(|slot| slot.is(key)))?;
        let slot = slots.get_mut(at)?;
        if slot.generation != self.generation() {
            return None;
        }
        let found = read(slot)?;
        slot.used = true;
        Some(found)
    }

    /// Forgets a subscriber's entries in every realm and spelling. Returns their number. Searches all
    /// entries: for operators.
    pub fn forget(&self, user: &[u8], domain: &[u8]) -> usize {
        // Before the first shard is searched: entries inserted from now on are either found or not inserted.
        self.forgets.fetch_add(1, Ordering::AcqRel);
        let mut forgotten = 0;
        for shard in &self.shards {
            for slot in &mut shard.lock().slots {
                if slot.generation == self.generation() && slot.is_about(user, domain) {
                    slot.generation = u64::MAX;
                    slot.secrets = None;
                    forgotten += 1;
                }
            }
        }
        forgotten
    }

    /// The generation, to be read before the store is, and to be stored with the entry. The entry does not
    /// count if the store has changed in between.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Forgets everything, because the store has changed.
    pub fn invalidate(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
        self.invalidations.inc();
    }

    /// The present moment. Pass that of the beginning of a look-up to [`CredentialCache::keep`].
    pub(crate) fn moment(&self) -> Moment {
        Moment {
            generation: self.generation(),
            forgets: self.forgets.load(Ordering::Acquire),
        }
    }

    /// Caches the result of a look-up, unless a subscriber was forgotten since the look-up began.
    pub(crate) fn keep(
        &self,
        (user, domain, realm): (&[u8], &[u8], &[u8]),
        begun: Moment,
        secrets: Option<Secrets>,
    ) {
        self.put(
            Key(user, domain, realm),
            begun.generation,
            Some(begun.forgets),
            secrets,
        );
    }

    /// Caches the result of a look-up that began at `generation`.
    pub fn insert(
        &self,
        user: &[u8],
        domain: &[u8],
        realm: &[u8],
        generation: u64,
        secrets: Option<Secrets>,
    ) {
        self.put(Key(user, domain, realm), generation, None, secrets);
    }

    fn put(&self, key: Key<'_>, generation: u64, forgets: Option<u64>, secrets: Option<Secrets>) {
        let Key(user, domain, realm) = key;
        let Some((hash, shard)) = self.place(key).filter(|_| self.per_shard > 0) else {
            return;
        };
        let until = Instant::now()
            + if secrets.is_some() {
                self.ttl
            } else {
                self.negative_ttl
            };
        let stale_until = until + self.stale;
        let slot = Slot {
            hash,
            key: [user, domain, realm].concat().into(),
            user_len: user.len(),
            domain_len: domain.len(),
            secrets,
            until,
            stale_until,
            generation,
            used: false,
            is_absent: false,
        };
        let slot = Slot {
            is_absent: slot.secrets.is_none(),
            ..slot
        };
        let mut shard = shard.lock();
        if forgets.is_some_and(|before| before != self.forgets.load(Ordering::Acquire)) {
            return;
        }
        let Shard {
            index,
            slots,
            hand,
            absent,
        } = &mut *shard;
        let is_absent = slot.is_absent;
        let most_absent = (self.per_shard / ABSENT_SHARE).max(1);
        if let Some(at) = index
            .find(hash, |at| slots.get(*at).is_some_and(|slot| slot.is(key)))
            .copied()
        {
            if let Some(old) = slots.get_mut(at) {
                *absent = *absent + usize::from(is_absent) - usize::from(old.is_absent);
                *old = slot;
            }
        } else if slots.len() < self.per_shard && !(is_absent && *absent >= most_absent) {
            *absent += usize::from(is_absent);
            slots.push(slot);
            let at = slots.len() - 1;
            index.insert_unique(hash, at, |at| slots.get(*at).map_or(0, |slot| slot.hash));
        } else {
            let among_absent = is_absent && *absent >= most_absent;
            let at = victim(slots, hand, self.generation(), among_absent);
            let Some(old) = slots.get_mut(at) else { return };
            *absent = *absent + usize::from(is_absent) - usize::from(old.is_absent);
            if let Ok(entry) = index.find_entry(old.hash, |held| *held == at) {
                entry.remove();
            }
            *old = slot;
            index.insert_unique(hash, at, |at| slots.get(*at).map_or(0, |slot| slot.hash));
            self.evictions.inc();
        }
    }

    /// Whether anything is ever cached.
    pub(super) const fn is_kept(&self) -> bool {
        self.per_shard > 0
    }

    /// Number of entries, including outdated ones.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().slots.len()).sum()
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All metrics of the cache.
    pub fn metrics(&self) -> Vec<Sample> {
        const GETS: &str = "Look-ups in the cache of credentials.";
        vec![
            Sample::counter("credential_cache", "result=\"hit\"", GETS, self.hits.get()),
            Sample::counter("credential_cache", "result=\"miss\"", GETS, self.misses.get()),
            Sample::counter(
                "credential_cache_invalidations",
                "",
                "Times that everything was forgotten because the store had changed.",
                self.invalidations.get(),
            ),
            Sample::counter(
                "credential_cache_evictions",
                "",
                "Entries that made room for others.",
                self.evictions.get(),
            ),
            Sample::gauge(
                "credential_cache_entries",
                "",
                "Entries in the cache of credentials.",
                self.len() as u64,
            ),
        ]
    }

    fn place(&self, key: Key<'_>) -> Option<(u64, &Mutex<Shard>)> {
        let hash = self.keys.hash_one((key.0, key.1, key.2));
        // The table takes its index from the low bits and its tag from the seven highest.
        let shard = self.shards.get((hash >> 40) as usize % SHARDS)?;
        Some((hash, shard))
    }
}

/// The slot to evict, by second chance: the first from `hand` on that is outdated, or was not used since the
/// hand last passed. With `among_absent`, only slots of unknown users are considered, and the caller knows
/// that there is one. `slots` is not empty.
fn victim(slots: &mut [Slot], hand: &mut usize, generation: u64, among_absent: bool) -> usize {
    let now = Instant::now();
    // Up to two rounds: all considered slots may have been used.
    for _ in 0..=2 * slots.len() {
        let at = *hand % slots.len();
        *hand = at + 1;
        if let Some(slot) = slots.get_mut(at).filter(|slot| slot.is_absent || !among_absent) {
            if !slot.used || slot.until <= now || slot.generation != generation {
                return at;
            }
            slot.used = false;
        }
    }
    0
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    fn secrets(n: u8) -> Secrets {
        Secrets {
            ha1_md5: Some([n; 16].into()),
            ..Secrets::default()
        }
    }

    fn md5(found: Option<Option<Secrets>>) -> Option<Option<u8>> {
        found.map(|secrets| secrets.map(|secrets| secrets.ha1_md5.unwrap()[0]))
    }

    #[test]
    fn entries_differ_by_each_of_the_three_names() {
        let cache = CredentialCache::new(1000, LONG, LONG);
        cache.insert(b"ab", b"c", b"d", 0, Some(secrets(1)));
        cache.insert(b"a", b"bc", b"d", 0, Some(secrets(2)));
        cache.insert(b"a", b"b", b"cd", 0, None);
        assert_eq!(md5(cache.get(b"ab", b"c", b"d")), Some(Some(1)));
        assert_eq!(md5(cache.get(b"a", b"bc", b"d")), Some(Some(2)));
        assert_eq!(md5(cache.get(b"a", b"b", b"cd")), Some(None));
        assert_eq!(md5(cache.get(b"abc", b"", b"d")), None);
        cache.insert(b"ab", b"c", b"d", 0, Some(secrets(3)));
        assert_eq!(md5(cache.get(b"ab", b"c", b"d")), Some(Some(3)));
        assert_eq!(cache.len(), 3);
    }

    #[test]
    fn secrets_and_their_absence_end_at_different_times() {
        let cache = CredentialCache::new(1000, LONG, Duration::ZERO);
        cache.insert(b"known", b"d", b"r", 0, Some(secrets(1)));
        cache.insert(b"unknown", b"d", b"r", 0, None);
        assert_eq!(md5(cache.get(b"known", b"d", b"r")), Some(Some(1)));
        assert_eq!(md5(cache.get(b"unknown", b"d", b"r")), None);
    }

    #[test]
    fn old_secrets_serve_while_the_store_is_away_unless_it_changed() {
        let cache = CredentialCache::new(1000, Duration::ZERO, Duration::ZERO).with_stale(LONG);
        cache.insert(b"u", b"d", b"r", 0, Some(secrets(1)));
        cache.insert(b"nobody", b"d", b"r", 0, None);
        assert_eq!(md5(cache.get(b"u", b"d", b"r")), None);
        assert!(cache.stale(b"u", b"d", b"r").is_some());
        assert!(
            cache.stale(b"nobody", b"d", b"r").is_none(),
            "absence is no secret"
        );
        cache.invalidate();
        assert!(cache.stale(b"u", b"d", b"r").is_none());
        let brief = CredentialCache::new(1000, Duration::ZERO, Duration::ZERO);
        brief.insert(b"u", b"d", b"r", 0, Some(secrets(1)));
        assert!(brief.stale(b"u", b"d", b"r").is_none());
    }

    #[test]
    fn one_subscriber_is_forgotten_in_every_spelling_and_realm() {
        let cache = CredentialCache::new(1000, LONG, LONG).with_stale(LONG);
        for (user, realm) in [
            (b"u".as_slice(), b"r"),
            (b"u", b"s"),
            (b"u@d", b"r"),
            (b"uv", b"r"),
        ] {
            cache.insert(user, b"d", realm, 0, Some(secrets(1)));
        }
        let before = cache.moment();
        assert_eq!(cache.forget(b"u", b"d"), 3);
        cache.keep((b"u", b"d", b"r"), before, Some(secrets(1)));
        assert_eq!(md5(cache.get(b"u", b"d", b"r")), None, "read before");
        assert_eq!(md5(cache.get(b"u", b"d", b"s")), None);
        assert!(cache.stale(b"u@d", b"d", b"r").is_none());
        assert_eq!(md5(cache.get(b"uv", b"d", b"r")), Some(Some(1)));
        cache.insert(b"u", b"d", b"r", 0, Some(secrets(2)));
        assert_eq!(md5(cache.get(b"u", b"d", b"r")), Some(Some(2)));
    }

    #[test]
    fn a_change_of_the_store_outdates_what_was_read_before() {
        let cache = CredentialCache::new(1000, LONG, LONG);
        let before = cache.generation();
        cache.insert(b"u", b"d", b"r", before, Some(secrets(1)));
        cache.invalidate();
        assert_eq!(md5(cache.get(b"u", b"d", b"r")), None);
        cache.insert(b"u", b"d", b"r", before, Some(secrets(1)));
        assert_eq!(md5(cache.get(b"u", b"d", b"r")), None, "read before the change");
        cache.insert(b"u", b"d", b"r", cache.generation(), Some(secrets(2)));
        assert_eq!(md5(cache.get(b"u", b"d", b"r")), Some(Some(2)));
    }

    #[test]
    fn the_bound_holds_and_what_is_used_stays() {
        let cache = CredentialCache::new(640, LONG, LONG);
        cache.insert(b"busy", b"d", b"r", 0, Some(secrets(9)));
        for n in 0..20_000u32 {
            cache.insert(&n.to_le_bytes(), b"d", b"r", 0, Some(secrets(1)));
            assert_eq!(md5(cache.get(b"busy", b"d", b"r")), Some(Some(9)));
        }
        assert_eq!(cache.len(), 640);
        let hits = (0..20_000u32)
            .filter(|n| cache.get(&n.to_le_bytes(), b"d", b"r").is_some())
            .count();
        assert_eq!(hits, 639);
    }

    #[test]
    fn names_that_are_made_up_take_the_place_of_no_subscriber() {
        // There are so many more places than names that names never fill a shard, whatever the hash key.
        let cache = CredentialCache::new(SHARDS * 32, LONG, LONG);
        let known: Vec<String> = (0..SHARDS * 4).map(|n| format!("known{n}")).collect();
        for name in &known {
            cache.insert(name.as_bytes(), b"d", b"r", 0, Some(secrets(1)));
        }
        let held = || {
            known
                .iter()
                .filter(|name| cache.peek(name.as_bytes(), b"d", b"r").is_some())
                .count()
        };
        let before = held();
        for n in 0..100_000 {
            let name = format!("made up {n}");
            cache.insert(name.as_bytes(), b"d", b"r", 0, None);
            assert_eq!(md5(cache.peek(name.as_bytes(), b"d", b"r")), Some(None), "{n}");
        }
        assert_eq!(held(), before);
        assert!(cache.len() <= known.len() + SHARDS * 4);
        // An unknown user is added to the store, and a known one is removed from it.
        cache.insert(b"made up 99999", b"d", b"r", 0, Some(secrets(2)));
        cache.insert(known[0].as_bytes(), b"d", b"r", 0, None);
        assert_eq!(md5(cache.get(b"made up 99999", b"d", b"r")), Some(Some(2)));
        let absent: usize = cache.shards.iter().map(|shard| shard.lock().absent).sum();
        let counted = cache.shards.iter().map(|shard| {
            let shard = shard.lock();
            shard.slots.iter().filter(|slot| slot.is_absent).count()
        });
        assert_eq!(absent, counted.sum::<usize>());
    }

    #[test]
    fn without_room_nothing_is_kept() {
        let cache = CredentialCache::new(0, LONG, LONG);
        cache.insert(b"u", b"d", b"r", 0, None);
        assert_eq!(md5(cache.get(b"u", b"d", b"r")), None);
        assert!(cache.is_empty());
    }

    #[test]
    fn debug_output_shows_no_secret() {
        let cache = CredentialCache::new(64, LONG, LONG);
        cache.insert(b"u", b"d", b"r", 0, Some(secrets(171)));
        assert!(!format!("{cache:?}").contains("171"));
    }
}

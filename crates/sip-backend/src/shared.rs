//! Maps that the workers of one process share on the hot path, in locked shards: bindings, nonce counts,
//! cached credentials. Each lock is held for one look-up or change, never over IO.

use std::collections::BTreeMap;
use std::sync::Arc;

use sip_core::auth::nonce::NonceId;
use sip_core::auth::window::{NonceUse, Windows};
use sip_core::location::codec::{self, RecordRef};
use sip_core::location::reachability::{Reach, Reachability, flow_key};
use sip_core::location::shard::{Shard, Swept, Walked, hash_aor, shard_of};
use sip_core::location::{AorRecord, ByTransport};
use sip_core::query::{Query, QueryKind, Secrets};
use sip_core::shared::SharedState;
use sip_core::transport::Flow;

use crate::metrics::{Counter, Sample};
use crate::subscribers::CredentialCache;
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Mutex, MutexGuard};

/// Number of shards of bindings.
const BINDING_SHARDS: usize = if cfg!(loom) { 1 } else { 256 };
/// Number of shards of the reachability of flows.
const FLOW_SHARDS: usize = if cfg!(loom) { 1 } else { 64 };
/// Number of shards of nonce windows.
const NONCE_SHARDS: usize = if cfg!(loom) { 1 } else { 64 };
/// Records read under one lock, which takes some tens of microseconds.
pub const SLICE: usize = 64;

/// The place at which a walk over all records continues ([`Shared::walk`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The shard.
    pub shard: u32,
    /// The slot in the shard.
    pub slot: u32,
}

/// A lock in a cache line of its own: neighbouring locks must not share one.
#[derive(Debug)]
#[repr(align(64))]
struct Line<T>(Mutex<T>);

/// The shared maps of one process.
#[derive(Debug)]
pub struct Shared {
    seed: (u64, u64),
    bindings: Vec<Line<Shard>>,
    /// Bytes of all bindings. Written only if that changes: a refresh usually leaves it as it was.
    location_bytes: AtomicUsize,
    flows: Vec<Line<Reachability>>,
    /// Number of lost flows. Written only if that changes.
    lost_flows: AtomicUsize,
    nonces: Vec<Line<Windows>>,
    credentials: Arc<CredentialCache>,
    /// The shard that the next sweep begins with.
    sweeping: Mutex<usize>,
    swept: Counter,
}

impl Shared {
    /// Empty maps. `seed` keys the hashes of addresses-of-record and must be secret. At most about `nonces`
    /// nonces are watched ([`sip_core::limits::Limits::nonces`]). Nonces issued before `started_unix_ms` are
    /// not accepted.
    pub fn new(
        seed: (u64, u64),
        nonces: usize,
        started_unix_ms: u64,
        credentials: Arc<CredentialCache>,
    ) -> Self {
        let per_shard = nonces.div_ceil(NONCE_SHARDS);
        Self {
            seed,
            bindings: (0..BINDING_SHARDS)
                .map(|_| Line(Mutex::new(Shard::starting_at(seed, started_unix_ms / 1000))))
                .collect(),
            location_bytes: AtomicUsize::new(0),
            flows: (0..FLOW_SHARDS)
                .map(|_| Line(Mutex::new(Reachability::new())))
                .collect(),
            lost_flows: AtomicUsize::new(0),
            nonces: (0..NONCE_SHARDS)
                .map(|_| Line(Mutex::new(Windows::new(per_shard, started_unix_ms))))
                .collect(),
            credentials,
            sweeping: Mutex::new(0),
            swept: Counter::default(),
        }
    }

    /// Inserts a record that a store held at the start.
    pub fn load(&self, aor: &[u8], record: AorRecord) {
        self.change(self.shard(aor), |shard| shard.update(aor, |held| *held = record));
    }

    /// Changes a shard, and updates the number of bytes.
    fn change<T>(&self, mut shard: MutexGuard<'_, Shard>, f: impl FnOnce(&mut Shard) -> T) -> T {
        let before = shard.bytes();
        let result = f(&mut shard);
        let after = shard.bytes();
        if after != before {
            // Modulo the word size, so that the sum can also shrink.
            let more = after.wrapping_sub(before);
            self.location_bytes.fetch_add(more, Ordering::Relaxed);
        }
        result
    }

    /// Makes new records get versions above `newest_version`, even if the clock was set back since that
    /// version was written.
    pub fn versions_from(&self, newest_version: u64) {
        for shard in &self.bindings {
            // A record that ends empty is dropped, and leaves its version in the shard.
            shard
                .0
                .lock()
                .update(b"", |record| record.version = newest_version);
        }
    }

    /// The reachability of a flow; `None` if it is not pinged.
    pub fn reach(&self, flow: &Flow) -> Option<Reach> {
        let mut reach = None;
        self.reachability(flow, &mut |flows, key| reach = flows.reach(key));
        reach
    }

    /// Changes a shard of flows, and updates the number of lost ones.
    fn change_flows(&self, shard: &Line<Reachability>, f: impl FnOnce(&mut Reachability)) {
        let mut shard = shard.0.lock();
        let before = shard.lost();
        f(&mut shard);
        let after = shard.lost();
        if after != before {
            // Modulo the word size, so that the sum can also shrink.
            self.lost_flows
                .fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
        }
    }

    /// Removes bindings that have expired, reading at most `budget` records. Each shard has its due records
    /// by time, so nothing is searched. `finished` means that nothing more is due; otherwise the next call
    /// continues where this one ended.
    ///
    /// Nothing is written: an expired binding is not loaded at a start either. If bindings are stored,
    /// [`Shared::sweep_saves`] removes them from the store too.
    pub fn sweep(&self, now_unix_ms: u64, budget: usize) -> Swept {
        self.sweep_with(now_unix_ms, budget, |_, _| ())
    }

    /// Sweeps as [`Shared::sweep`], and appends to `saves` the saves that the store must make, for
    /// [`crate::Backend::submit`]. These are at most one for each record read.
    pub fn sweep_saves(&self, now_unix_ms: u64, budget: usize, saves: &mut Vec<Query>) -> Swept {
        self.sweep_with(now_unix_ms, budget, |aor, record| {
            let mut bytes = Vec::new();
            codec::encode(record, &mut bytes);
            saves.push(Query {
                id: None,
                kind: QueryKind::SaveBindings {
                    aor: aor.into(),
                    record: bytes.into(),
                    version: record.version,
                },
            });
        })
    }

    fn sweep_with(
        &self,
        now_unix_ms: u64,
        budget: usize,
        mut changed: impl FnMut(&[u8], &AorRecord),
    ) -> Swept {
        let mut total = Swept::default();
        let mut at = self.sweeping.lock();
        for _ in 0..self.bindings.len() {
            let Some(shard) = self.bindings.get(*at) else {
                break;
            };
            total.finished = false;
            while !total.finished && total.visited < budget {
                let slice = SLICE.min(budget - total.visited);
                let swept = self.change(shard.0.lock(), |shard| {
                    shard.sweep(now_unix_ms, slice, &mut changed)
                });
                total.visited += swept.visited;
                total.bindings += swept.bindings;
                total.records += swept.records;
                total.finished = swept.finished;
            }
            if !total.finished {
                break;
            }
            *at = (*at + 1) % self.bindings.len();
        }
        self.swept.add(total.bindings as u64);
        total
    }

    /// Calls `f` with every address-of-record and its encoded record, under one shard's lock after the other.
    /// For operators; `f` must be quick.
    pub fn for_each_record(&self, mut f: impl FnMut(&[u8], RecordRef<'_>)) {
        for shard in &self.bindings {
            shard.0.lock().for_each(&mut f);
        }
    }

    /// Calls `f` with some records from `place` on: those of one shard, and [`SLICE`] at most, under its
    /// lock. `f` must be quick, and returns whether it took the record; if not, the walk ends before that
    /// record. Returns where the next walk continues; `None` at the end.
    ///
    /// Successive walks meet each record that stays registered exactly once, even if records change between
    /// them. A record that is removed and registers again may be met twice, or not at all.
    pub fn walk(&self, place: Place, f: impl FnMut(&[u8], RecordRef<'_>) -> bool) -> Option<Place> {
        let Place { shard, slot } = place;
        let next = self.bindings.get(shard as usize)?;
        let next = next.0.lock().walk(slot as usize, SLICE, f);
        let next = next.and_then(|slot| u32::try_from(slot).ok());
        let place = next.map_or(
            Place {
                shard: shard + 1,
                slot: 0,
            },
            |slot| Place { shard, slot },
        );
        ((place.shard as usize) < self.bindings.len()).then_some(place)
    }

    /// A number of this run of the program. A [`Place`] of another run is not valid in this one.
    pub fn run(&self) -> u32 {
        (hash_aor(self.seed, b"places of this run") >> 32) as u32
    }

    /// Bindings by transport, of each domain that has any.
    pub fn by_domain(&self) -> BTreeMap<Box<[u8]>, ByTransport> {
        let mut all: BTreeMap<Box<[u8]>, ByTransport> = BTreeMap::new();
        for shard in &self.bindings {
            for (domain, counts) in shard.0.lock().by_domain() {
                let Some(sum) = all.get_mut(domain) else {
                    all.insert(domain.into(), counts);
                    continue;
                };
                for (sum, count) in sum.iter_mut().zip(counts) {
                    *sum = sum.saturating_add(count);
                }
            }
        }
        all
    }

    /// Numbers of addresses-of-record and bindings held, including expired ones until they are swept.
    pub fn held(&self) -> (usize, usize) {
        self.bindings.iter().fold((0, 0), |(aors, bindings), shard| {
            let shard = shard.0.lock();
            (aors + shard.len(), bindings + shard.bindings())
        })
    }

    /// All metrics of the maps, including those of the cache of credentials.
    pub fn metrics(&self) -> Vec<Sample> {
        let (aors, bindings) = self.held();
        let (nonces, evicted) = self.nonces.iter().fold((0, 0), |(nonces, evicted), shard| {
            let shard = shard.0.lock();
            (nonces + shard.len(), evicted + shard.evicted())
        });
        let mut samples = vec![
            Sample::gauge(
                "location_aors",
                "",
                "Addresses-of-record with a binding.",
                aors as u64,
            ),
            Sample::gauge("location_bindings", "", "Bindings.", bindings as u64),
            Sample::gauge(
                "location_bytes",
                "",
                "Bytes that registrations take in memory.",
                self.location_bytes() as u64,
            ),
            Sample::counter(
                "location_expired",
                "",
                "Bindings that ended by time.",
                self.swept.get(),
            ),
            Sample::gauge(
                "location_flows_pinged",
                "",
                "Addresses of contacts behind NATs that are pinged.",
                self.flows.iter().map(|shard| shard.0.lock().len() as u64).sum(),
            ),
            Sample::gauge(
                "location_flows_lost",
                "",
                "Of these, those that no longer answer.",
                self.lost_flows.load(Ordering::Relaxed) as u64,
            ),
            Sample::gauge("nonces", "", "Nonces whose counts are watched.", nonces as u64),
            Sample::counter(
                "nonces_evicted",
                "",
                "Nonces forgotten at the limit, before their end.",
                evicted,
            ),
        ];
        samples.extend(self.credentials.metrics());
        samples
    }

    fn shard(&self, aor: &[u8]) -> MutexGuard<'_, Shard> {
        // `shard_of` is below the number of shards.
        self.bindings[shard_of(self.seed, aor, BINDING_SHARDS)].0.lock()
    }
}

impl SharedState for Shared {
    fn update_bindings(&self, aor: &[u8], f: &mut dyn FnMut(&mut AorRecord)) {
        self.change(self.shard(aor), |shard| shard.update(aor, f));
    }

    fn read_bindings(&self, aor: &[u8], f: &mut dyn FnMut(RecordRef<'_>)) {
        if let Some(record) = self.shard(aor).view(aor) {
            f(record);
        }
    }

    fn parts(&self) -> u32 {
        BINDING_SHARDS as u32
    }

    fn places(&self, part: u32) -> u32 {
        let shard = self.bindings.get(part as usize);
        shard.map_or(0, |shard| shard.0.lock().slots() as u32)
    }

    fn walk_bindings(
        &self,
        part: u32,
        from: u32,
        most: u32,
        f: &mut dyn FnMut(&[u8], RecordRef<'_>),
    ) -> Walked {
        let shard = self.bindings.get(part as usize);
        shard.map_or_else(Walked::default, |shard| {
            shard.0.lock().visit(from, most.min(SLICE as u32), f)
        })
    }

    fn reachability(&self, flow: &Flow, f: &mut dyn FnMut(&mut Reachability, u64)) {
        let key = flow_key(self.seed, flow);
        // Any bits will do; the table of a shard takes the low ones and the seven highest.
        let shard = &self.flows[(key >> 32) as usize % FLOW_SHARDS];
        self.change_flows(shard, |flows| f(flows, key));
    }

    fn has_lost_flows(&self) -> bool {
        self.lost_flows.load(Ordering::Relaxed) > 0
    }

    fn forget_flows(&self, part: u32, before_unix_s: u64) {
        if let Some(shard) = self.flows.get(part as usize) {
            self.change_flows(shard, |flows| flows.forget(before_unix_s));
        }
    }

    fn location_bytes(&self) -> usize {
        self.location_bytes.load(Ordering::Relaxed)
    }

    fn use_nonce(&self, now_unix_ms: u64, nonce: NonceId, count: u32, request: u64) -> NonceUse {
        // Ids are the output of a keyed function; any bits will do.
        let shard = &self.nonces[(nonce.id >> 48) as usize % NONCE_SHARDS];
        shard.0.lock().use_nonce(now_unix_ms, nonce, count, request)
    }

    fn cached_secrets(&self, user: &[u8], domain: &[u8], realm: &[u8]) -> Option<Option<Secrets>> {
        self.credentials.get(user, domain, realm)
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;
    use sip_core::location::Binding;
    use sip_core::transport::{Flow, Transport};
    use std::time::Duration;

    fn shared() -> Shared {
        let cache = CredentialCache::new(100, Duration::from_secs(60), Duration::from_secs(60));
        Shared::new((1, 2), 1_000, 100_000, Arc::new(cache))
    }

    fn binding(expires_unix_s: u64) -> Binding {
        let received = Flow::udp("192.0.2.1:5060".parse().unwrap());
        Binding::plain(b"sip:a@192.0.2.1".as_slice(), received, expires_unix_s)
    }

    #[test]
    fn bindings_are_shared_and_swept_within_the_budget() {
        let shared = shared();
        for n in 0..2_000u64 {
            let record = AorRecord {
                bindings: vec![binding(100 + n % 2 * 100)],
                version: n,
                ..AorRecord::default()
            };
            shared.load(format!("u{n}@x").as_bytes(), record);
        }
        assert_eq!(shared.held(), (2_000, 2_000));
        let in_shards =
            |shared: &Shared| -> usize { shared.bindings.iter().map(|shard| shard.0.lock().bytes()).sum() };
        let loaded = shared.location_bytes();
        assert!(loaded > 2_000 * 83 && loaded == in_shards(&shared), "{loaded}");
        let (mut rounds, mut removed, mut visited, mut saves) = (0, 0, 0, vec![]);
        loop {
            let swept = shared.sweep_saves(150_000, 64, &mut saves);
            assert!(swept.visited <= 64);
            (removed, visited) = (removed + swept.bindings, visited + swept.visited);
            rounds += 1;
            if swept.finished {
                break;
            }
        }
        assert!(rounds >= 1_000 / 64, "the budget bounds a call: {rounds}");
        assert_eq!(visited, 1_000, "what has not ended is not looked at");
        assert_eq!((removed, shared.held()), (1_000, (1_000, 1_000)));
        assert_eq!(shared.location_bytes(), in_shards(&shared));
        assert!(shared.location_bytes() < loaded * 11 / 20);
        assert_eq!(saves.len(), 1_000);
        for save in saves {
            let QueryKind::SaveBindings { record, version, .. } = save.kind else {
                panic!("{:?}", save.kind)
            };
            assert!(save.id.is_none() && version >= 150_000);
            assert!(RecordRef::new(&record).unwrap().is_empty());
        }
        let mut seen = 0;
        shared.for_each_record(|_, record| seen += record.len());
        assert_eq!(seen, 1_000);
        let mut contact = None;
        shared.read_bindings(b"u1@x", &mut |record| {
            contact = record
                .bindings()
                .next()
                .map(|binding| binding.unwrap().contact.to_vec());
        });
        assert_eq!(contact.as_deref(), Some(&b"sip:a@192.0.2.1"[..]));
        shared.read_bindings(b"u0@x", &mut |_| panic!("it was swept"));
        shared.update_bindings(b"u1@x", &mut |record| record.bindings.clear());
        assert_eq!(shared.location_bytes(), in_shards(&shared));
        shared.sweep(300_000, usize::MAX);
        assert_eq!(shared.location_bytes(), 0);
    }

    #[test]
    fn walks_meet_every_record_once_in_slices() {
        let shared = shared();
        let load = |name: String, transport| {
            let mut of = binding(9_999);
            of.received.transport = transport;
            let record = AorRecord {
                bindings: vec![of],
                version: 1,
                ..AorRecord::default()
            };
            shared.load(name.as_bytes(), record);
        };
        for n in 0..20_000 {
            load(format!("u{n}@x"), Transport::Udp);
        }
        load("a@y".to_owned(), Transport::Wss);
        let (mut place, mut met) = (Some(Place::default()), std::collections::BTreeSet::new());
        let (mut slices, mut full) = (0, 0);
        while let Some(at) = place {
            let mut looks = 0;
            place = shared.walk(at, |aor, _| {
                looks += 1;
                // At times a record is not taken, and is met again.
                let takes = looks < 5 || slices % 3 > 0;
                assert!(!takes || met.insert(aor.to_vec()), "{aor:?}");
                takes
            });
            assert!(looks <= SLICE);
            slices += 1;
            full += usize::from(looks == SLICE);
        }
        assert_eq!(met.len(), 20_001);
        assert!(full > BINDING_SHARDS / 2, "{full} of {slices}");
        for (shard, slot) in [
            (u32::MAX, 0),
            (BINDING_SHARDS as u32, 0),
            (BINDING_SHARDS as u32 - 1, u32::MAX),
        ] {
            assert_eq!(shared.walk(Place { shard, slot }, |_, _| panic!("none")), None);
        }
        let counts = [(&b"x"[..], [20_000, 0, 0, 0, 0]), (&b"y"[..], [0, 0, 0, 0, 1])];
        let counts = counts.map(|(domain, counts)| (Box::from(domain), counts));
        assert_eq!(shared.by_domain(), counts.into());
        shared.update_bindings(b"a@y", &mut |record| record.bindings.clear());
        assert_eq!(shared.by_domain().len(), 1);
    }

    #[test]
    fn new_records_start_above_the_versions_of_before() {
        let shared = shared();
        shared.versions_from(5_000_000);
        assert_eq!(shared.held(), (0, 0));
        shared.update_bindings(b"a@x", &mut |record| {
            record.bindings.push(binding(9_999));
            record.changed(1_000_000);
        });
        let mut version = 0;
        shared.read_bindings(b"a@x", &mut |record| version = record.version());
        assert!(version > 5_000_000, "{version}");
    }

    #[test]
    fn nonce_counts_are_shared() {
        let shared = shared();
        for id in [7, u64::MAX] {
            let nonce = NonceId {
                id,
                issued_unix_ms: 1_000_500,
                expires_unix_s: 2_000,
            };
            assert_eq!(shared.use_nonce(1_001_000, nonce, 1, 11), NonceUse::Fresh);
            assert_eq!(
                shared.use_nonce(1_001_000, nonce, 1, 11),
                NonceUse::Retransmission
            );
            assert_eq!(shared.use_nonce(1_001_000, nonce, 1, 12), NonceUse::Replay);
            assert_eq!(shared.use_nonce(1_001_000, nonce, 2, 12), NonceUse::Fresh);
        }
    }

    #[test]
    fn many_threads_change_one_record_one_after_the_other() {
        let shared = shared();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        shared.update_bindings(b"a@x", &mut |record| {
                            if record.bindings.is_empty() {
                                record.bindings.push(binding(9_999));
                                record.bindings[0].cseq = 0;
                            }
                            record.bindings[0].cseq += 1;
                        });
                    }
                });
            }
        });
        let mut cseq = 0;
        shared.read_bindings(b"a@x", &mut |record| {
            cseq = record.bindings().next().unwrap().unwrap().cseq
        });
        assert_eq!(cseq, 2_000);
    }
}

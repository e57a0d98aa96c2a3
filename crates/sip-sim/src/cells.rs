//! The shared maps of one process's workers, in plain cells.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sip_core::auth::nonce::NonceId;
use sip_core::auth::window::{NonceUse, Windows};
use sip_core::location::AorRecord;
use sip_core::location::codec::RecordRef;
use sip_core::location::reachability::{Reachability, flow_key};
use sip_core::location::shard::{Shard, Swept, Walked};
use sip_core::query::Secrets;
use sip_core::shared::SharedState;
use sip_core::transport::Flow;

use crate::clock::Micros;

/// Cached secrets of a user (`None` if the user does not exist), and their expiry.
type Cached = BTreeMap<Vec<u8>, (Option<Secrets>, Micros)>;

/// Shared state of one process.
pub struct Cells {
    shard: Mutex<Shard>,
    reachability: Mutex<Reachability>,
    windows: Mutex<Windows>,
    cached: Mutex<Cached>,
}

impl std::fmt::Debug for Cells {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cells").finish_non_exhaustive()
    }
}

fn lock<T>(cell: &Mutex<T>) -> MutexGuard<'_, T> {
    cell.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Cells {
    /// Empty maps. `hash_seed` keys the shard, and at most `nonces` are watched. Nonces issued before
    /// `started_unix_ms` are not accepted.
    pub fn new(hash_seed: (u64, u64), nonces: usize, started_unix_ms: u64) -> Self {
        Self {
            shard: Mutex::new(Shard::new(hash_seed)),
            reachability: Mutex::new(Reachability::new()),
            windows: Mutex::new(Windows::new(nonces, started_unix_ms)),
            cached: Mutex::new(Cached::new()),
        }
    }

    /// Caches secrets until `until`.
    pub fn cache(&self, user: &[u8], secrets: Option<Secrets>, until: Micros) {
        lock(&self.cached).insert(user.to_vec(), (secrets, until));
    }

    /// Removes cached secrets that have expired.
    pub fn expire_cached(&self, now: Micros) {
        lock(&self.cached).retain(|_, (_, until)| *until > now);
    }

    /// Number of bindings.
    pub fn bindings(&self) -> usize {
        lock(&self.shard).bindings()
    }

    /// Number of nonces whose counts are kept.
    pub fn nonces(&self) -> usize {
        lock(&self.windows).len()
    }

    /// Removes expired bindings ([`Shard::sweep`]).
    pub fn sweep(&self, now_unix_ms: u64, changed: impl FnMut(&[u8], &AorRecord)) -> Swept {
        lock(&self.shard).sweep(now_unix_ms, usize::MAX, changed)
    }

    /// Makes new records get versions above `newest` ([`sip_core::location::shard`]).
    pub fn versions_from(&self, newest: u64) {
        lock(&self.shard).update(b"", |record| record.version = newest);
    }
}

impl SharedState for Cells {
    fn update_bindings(&self, aor: &[u8], f: &mut dyn FnMut(&mut AorRecord)) {
        lock(&self.shard).update(aor, f);
    }

    fn read_bindings(&self, aor: &[u8], f: &mut dyn FnMut(RecordRef<'_>)) {
        if let Some(view) = lock(&self.shard).view(aor) {
            f(view);
        }
    }

    fn parts(&self) -> u32 {
        1
    }

    fn places(&self, _part: u32) -> u32 {
        lock(&self.shard).slots() as u32
    }

    fn walk_bindings(
        &self,
        _part: u32,
        from: u32,
        most: u32,
        f: &mut dyn FnMut(&[u8], RecordRef<'_>),
    ) -> Walked {
        lock(&self.shard).visit(from, most, f)
    }

    fn reachability(&self, flow: &Flow, f: &mut dyn FnMut(&mut Reachability, u64)) {
        f(&mut lock(&self.reachability), flow_key((0, 0), flow));
    }

    fn has_lost_flows(&self) -> bool {
        lock(&self.reachability).lost() > 0
    }

    fn forget_flows(&self, _part: u32, before_unix_s: u64) {
        lock(&self.reachability).forget(before_unix_s);
    }

    fn location_bytes(&self) -> usize {
        lock(&self.shard).bytes()
    }

    fn use_nonce(&self, now_unix_ms: u64, nonce: NonceId, count: u32, request: u64) -> NonceUse {
        lock(&self.windows).use_nonce(now_unix_ms, nonce, count, request)
    }

    fn cached_secrets(&self, user: &[u8], _domain: &[u8], _realm: &[u8]) -> Option<Option<Secrets>> {
        lock(&self.cached).get(user).map(|(secrets, _)| secrets.clone())
    }
}

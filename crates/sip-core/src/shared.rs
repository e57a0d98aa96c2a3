//! The state that the workers of one process share on the hot path: bindings, nonce counts and cached
//! credentials. The shell keeps it in locked shards, the simulator in a plain cell. The data
//! structures inside are the core's own.

use crate::auth::nonce::NonceId;
use crate::auth::window::NonceUse;
use crate::location::AorRecord;
use crate::location::codec::RecordRef;
use crate::location::reachability::Reachability;
use crate::location::shard::Walked;
use crate::query::Secrets;
use crate::transport::Flow;

/// Shared maps, called with short critical sections only; never blocks on IO.
pub trait SharedState: Send + Sync {
    /// Runs `f` on the record of `aor` (canonical `user@domain`), made empty if absent. A record that is then
    /// empty is dropped.
    fn update_bindings(&self, aor: &[u8], f: &mut dyn FnMut(&mut AorRecord));

    /// Runs `f` on the encoded record of `aor`, if there is one: look-ups decode the bindings that they need.
    fn read_bindings(&self, aor: &[u8], f: &mut dyn FnMut(RecordRef<'_>));

    /// Number of parts in which the records are walked.
    fn parts(&self) -> u32;

    /// Number of places in a part. Each record has one, and keeps it while it has a binding.
    fn places(&self, part: u32) -> u32;

    /// Runs `f` on the records of a part from the place `from` on. It looks at `most` places, or at fewer, under one
    /// lock.
    fn walk_bindings(
        &self,
        part: u32,
        from: u32,
        most: u32,
        f: &mut dyn FnMut(&[u8], RecordRef<'_>),
    ) -> Walked;

    /// Runs `f` on the table that holds the reachability of a flow, with the flow's key there.
    fn reachability(&self, flow: &Flow, f: &mut dyn FnMut(&mut Reachability, u64));

    /// Whether some flow is lost. This is read for each look-up, so that it must be cheap.
    fn has_lost_flows(&self) -> bool;

    /// Forgets the flows of a part that were not pinged since this second.
    fn forget_flows(&self, part: u32, before_unix_s: u64);

    /// Bytes that all records take ([`crate::location::shard::Shard::bytes`]).
    fn location_bytes(&self) -> usize;

    /// Notes the use of a nonce with a count ([`crate::auth::window::NO_COUNT`]: none given) in a request
    /// with a right digest response; see [`crate::auth::window::Windows::use_nonce`]. `request` is a keyed
    /// hash of the message and its source: the same request again is a retransmission, not a replay.
    fn use_nonce(&self, now_unix_ms: u64, nonce: NonceId, count: u32, request: u64) -> NonceUse;

    /// Cached secrets of `user@domain` for `realm`: `Some(None)` means "known not to exist".
    fn cached_secrets(&self, user: &[u8], domain: &[u8], realm: &[u8]) -> Option<Option<Secrets>>;
}

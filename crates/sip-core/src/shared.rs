//! The state that the workers of one process share on the hot path: bindings, nonce counts and cached
//! credentials. The shell keeps it in locked shards, the simulator in a plain cell. The data
//! structures inside are the core's own.

use crate::auth::nonce::NonceId;
use crate::auth::window::NonceUse;
use crate::location::AorRecord;
use crate::location::codec::RecordRef;
use crate::query::Secrets;

/// Shared maps, called with short critical sections only; never blocks on IO.
pub trait SharedState: Send + Sync {
    /// Runs `f` on the record of `aor` (canonical `user@domain`), made empty if absent. A record that is then
    /// empty is dropped.
    fn update_bindings(&self, aor: &[u8], f: &mut dyn FnMut(&mut AorRecord));

    /// Runs `f` on the encoded record of `aor`, if there is one: look-ups decode the bindings that they need.
    fn read_bindings(&self, aor: &[u8], f: &mut dyn FnMut(RecordRef<'_>));

    /// Bytes that all records take ([`crate::location::shard::Shard::bytes`]).
    fn location_bytes(&self) -> usize;

    /// Notes the use of a nonce with a count ([`crate::auth::window::NO_COUNT`]: none given) in a request
    /// with a right digest response; see [`crate::auth::window::Windows::use_nonce`]. `request` is a keyed
    /// hash of the message and its source: the same request again is a retransmission, not a replay.
    fn use_nonce(&self, now_unix_ms: u64, nonce: NonceId, count: u32, request: u64) -> NonceUse;

    /// Cached secrets of `user@domain` for `realm`: `Some(None)` means "known not to exist".
    fn cached_secrets(&self, user: &[u8], domain: &[u8], realm: &[u8]) -> Option<Option<Secrets>>;
}

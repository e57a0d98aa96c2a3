//! Models of what the stores' threads and the workers share: the files of `sip-backend`, on the
//! locks and atomics of loom.

#![allow(
    clippy::modulo_one,
    dead_code,
    unreachable_pub,
    reason = "the included files are whole, the models use a part of each, and maps have one shard"
)]

#[path = "../../../sip-backend/src/known.rs"]
mod known;
#[path = "../../../sip-backend/src/metrics.rs"]
mod metrics;
mod models;
#[path = "../../../sip-backend/src/queue.rs"]
mod queue;
#[path = "../../../sip-backend/src/shared.rs"]
mod shared;

/// Of the subscribers only the cache of their secrets.
#[path = "../../../sip-backend/src/subscribers"]
mod subscribers {
    mod cache;
    pub(crate) use self::cache::CredentialCache;
}

/// Stands for `sip-backend`'s module of that name.
mod sync {
    pub(crate) use loom::sync::atomic;
    pub(crate) use loom_models::locks::{Condvar, Mutex, MutexGuard};
}

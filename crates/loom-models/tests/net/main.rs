//! Models of what workers share: the files of `sip-net`, on the locks and atomics of loom.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "the included files are whole, and the models use a part of each"
)]

#[path = "../../../sip-net/src/accepted.rs"]
mod accepted;
#[path = "../../../sip-net/src/hub.rs"]
mod hub;
#[path = "../../../sip-net/src/mailbox.rs"]
mod mailbox;
mod models;
#[path = "../../../sip-net/src/settings.rs"]
mod settings;
mod waker;

/// Stands for `sip-net`'s module of that name.
mod sync {
    pub(crate) use loom::sync::atomic;
    pub(crate) use loom_models::locks::{Mutex, RwLock};
}

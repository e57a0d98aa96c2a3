//! The locks and atomics of what workers share. With `--cfg loom` they are those of the model
//! checker (`cargo xtask loom`), under the same names, so that the models in `models` run the code
//! that workers run.

#[cfg(not(loom))]
pub(crate) use parking_lot::{Mutex, RwLock};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic;

#[cfg(loom)]
pub(crate) use loom::sync::atomic;
#[cfg(loom)]
pub(crate) use loom_locks::{Mutex, RwLock};

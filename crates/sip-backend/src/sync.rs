//! The locks and atomics of what threads share here. With `--cfg loom` they are those of the model
//! checker (`cargo xtask loom`), under the same names, so that the models in `models` run the code
//! that threads run.

#[cfg(not(loom))]
pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic;

#[cfg(loom)]
pub(crate) use loom::sync::atomic;
#[cfg(loom)]
pub(crate) use loom_locks::{Condvar, Mutex, MutexGuard};

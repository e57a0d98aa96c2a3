//! The locks and atomics of the state that threads share here. The models (`crates/loom-models`) include the
//! files that use them, beside a module `sync` of the model checker.

pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard};
pub(crate) use std::sync::atomic;

//! `parking_lot`'s locks as loom sees them. Only what our code uses is here, with `parking_lot`'s
//! signatures. loom's locks know poison only where a model has failed already.

use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;
use std::time::Duration;

pub use loom::sync::{RwLockReadGuard, RwLockWriteGuard};

/// Stands for `parking_lot::Mutex`.
#[derive(Debug, Default)]
pub struct Mutex<T>(loom::sync::Mutex<T>);

/// What [`Mutex::lock`] gives. Empty only while [`Condvar::wait_for`] holds what was in it.
#[derive(Debug)]
pub struct MutexGuard<'a, T> {
    lock: &'a Mutex<T>,
    held: Option<loom::sync::MutexGuard<'a, T>>,
}

impl<T> Mutex<T> {
    /// An open lock.
    pub fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    /// Waits for the lock.
    #[track_caller]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        MutexGuard {
            lock: self,
            held: Some(held),
        }
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.held.as_deref().expect("no wait is under way")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.held.as_deref_mut().expect("no wait is under way")
    }
}

/// Stands for `parking_lot::Condvar`.
#[derive(Debug, Default)]
pub struct Condvar(loom::sync::Condvar);

impl Condvar {
    /// Without waiters.
    pub fn new() -> Self {
        Self::default()
    }

    /// Gives the lock back, waits to be notified, and takes it again. loom has no time: a wait of
    /// zero ends without a notification, once others had their chance at the lock; any other ends
    /// with one or, which loom reports as a deadlock, not at all.
    #[track_caller]
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, timeout: Duration) {
        let held = guard.held.take().expect("no wait is under way");
        guard.held = if timeout.is_zero() {
            drop(held);
            guard.lock.lock().held.take()
        } else {
            Some(self.0.wait(held).unwrap_or_else(PoisonError::into_inner))
        };
    }

    /// Wakes one that waits.
    #[track_caller]
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all that wait.
    #[track_caller]
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// Stands for `parking_lot::RwLock`.
#[derive(Debug)]
pub struct RwLock<T>(loom::sync::RwLock<T>);

impl<T: Default> Default for RwLock<T> {
    fn default() -> Self {
        Self(loom::sync::RwLock::new(T::default()))
    }
}

impl<T> RwLock<T> {
    /// Waits for the lock, shared with other readers.
    #[track_caller]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the lock, alone.
    #[track_caller]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

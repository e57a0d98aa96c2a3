//! Whether this process should be given traffic.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// Asks the location store whether registrations cannot be saved.
struct Store(Box<dyn Fn() -> bool + Send + Sync>);

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Store(..)")
    }
}

/// The conditions for new traffic: registrations loaded, listeners bound, not draining, store working.
#[derive(Debug, Default)]
pub(crate) struct Health {
    loaded: AtomicBool,
    listening: AtomicBool,
    draining: AtomicBool,
    store: OnceLock<Store>,
}

impl Health {
    /// The registrations are in memory.
    pub(crate) fn set_loaded(&self) {
        self.loaded.store(true, Ordering::Relaxed);
    }

    /// From now on the process is not ready while `cannot_save` returns true.
    pub(crate) fn watch_store(&self, cannot_save: impl Fn() -> bool + Send + Sync + 'static) {
        // It is called once.
        let _ = self.store.set(Store(Box::new(cannot_save)));
    }

    /// Every listener is bound and its workers run.
    pub(crate) fn set_listening(&self) {
        self.listening.store(true, Ordering::Relaxed);
    }

    /// No new traffic, please; there is no way back.
    pub(crate) fn set_draining(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// Whether it takes no new traffic, for good.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Why it is not ready; empty: it is.
    pub(crate) fn reasons(&self) -> Vec<&'static str> {
        let states = [
            (
                !self.loaded.load(Ordering::Relaxed),
                "registrations are not loaded",
            ),
            (!self.listening.load(Ordering::Relaxed), "listeners are not bound"),
            (
                self.store.get().is_some_and(|store| (store.0)()),
                "registrations cannot be saved",
            ),
            (self.is_draining(), "draining"),
        ];
        states
            .into_iter()
            .filter(|(holds, _)| *holds)
            .map(|(_, reason)| reason)
            .collect()
    }
}

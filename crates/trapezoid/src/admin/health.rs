//! Readiness: whether this process should get traffic.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// Tells whether the location store cannot save registrations.
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
    /// Notes that the registrations are in memory.
    pub(crate) fn set_loaded(&self) {
        self.loaded.store(true, Ordering::Relaxed);
    }

    /// Makes the process not ready while `cannot_save` returns true, from now on.
    pub(crate) fn watch_store(&self, cannot_save: impl Fn() -> bool + Send + Sync + 'static) {
        // This function is called once.
        let _ = self.store.set(Store(Box::new(cannot_save)));
    }

    /// Notes that every listener is bound and its workers run.
    pub(crate) fn set_listening(&self) {
        self.listening.store(true, Ordering::Relaxed);
    }

    /// Asks for no new traffic; there is no way back.
    pub(crate) fn set_draining(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// Whether the process accepts no new traffic, for good.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Reasons of not being ready; empty if the process is ready.
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

//! The component on which a worker spends its CPU time.
//!
//! The core reads no clock, but reports each change of component to an [`Observer`] that the shell lends it.
//! Without an observer, which is the usual case, a report is one comparison.

use alloc::sync::Arc;
use core::fmt::Debug;

/// Defines the components once: name in code, name for people, what belongs to it.
macro_rules! components {
    ($($(#[doc = $doc:literal])+ $name:ident => $label:literal;)+) => {
        /// Parts of a worker's work.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Component { $($(#[doc = $doc])+ $name,)+ }

        impl Component {
            /// All of them, in order; `component as usize` is its place.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];
            /// Their number.
            pub const COUNT: usize = Self::ALL.len();

            /// Its name in metrics.
            pub const fn label(self) -> &'static str {
                match self { $(Self::$name => $label,)+ }
            }

            /// What belongs to it, one sentence.
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$name => concat!($($doc),+).trim_ascii(),)+ }
            }
        }
    };
}

components! {
    /// Waiting for events: what the kernel does to put the thread to sleep and to wake it.
    Wait => "wait";
    /// Receiving in the kernel: datagrams and reads of connections.
    Receive => "receive";
    /// Sending in the kernel, and with it the delivery to a receiver on the same machine.
    Send => "send";
    /// Opening, accepting, registering and closing connections in the kernel.
    Connections => "connections";
    /// Records and handshakes of TLS.
    Tls => "tls";
    /// Finding the messages in a stream, WebSocket frames included.
    Framing => "framing";
    /// Reading the message: its lines, and the header fields that each message needs.
    Parse => "parse";
    /// Transactions: finding, making, changing and forgetting them, and starting their timers.
    Transaction => "transaction";
    /// Credentials: challenges, digests, nonces, and the cache of secrets.
    Auth => "auth";
    /// The location service in memory: registrations made, and contacts looked up.
    Location => "location";
    /// Where a request goes: Route, rules, domains, groups, names.
    Route => "route";
    /// Writing the message that leaves, forwarded or made here.
    Build => "build";
    /// Timers that fire: looking for them, and what is due on connections.
    Timers => "timers";
    /// Queries to stores and name service, and taking in their results.
    Store => "store";
    /// Messages given to, or taken from, other workers.
    HandOver => "hand-over";
    /// The worker's loop, events, counters, and all the rest.
    Other => "other";
}

/// The receiver of each change of a worker's component.
pub trait Observer: Debug + Send + Sync {
    /// Notes that the worker enters `component`. Returns the component that it leaves.
    fn enter(&self, component: Component) -> Component;
}

/// A handle that reports changes of component, if there is an observer. Cheap to clone; without an observer
/// by default.
#[derive(Clone, Debug, Default)]
pub struct Activity(Option<Arc<dyn Observer>>);

impl Activity {
    /// A handle that reports to `observer`.
    pub fn observed(observer: Arc<dyn Observer>) -> Self {
        Self(Some(observer))
    }

    /// Reports that the worker enters `component`. Returns the component that it leaves, to be
    /// entered again when that work goes on; without an observer, `component` itself.
    #[inline]
    pub fn enter(&self, component: Component) -> Component {
        match &self.0 {
            None => component,
            Some(observer) => tell(&**observer, component),
        }
    }
}

#[cold]
#[inline(never)]
fn tell(observer: &dyn Observer, component: Component) -> Component {
    observer.enter(component)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;
    use core::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn components_have_places_names_and_meanings_of_their_own() {
        let mut labels = BTreeSet::new();
        for (place, component) in Component::ALL.iter().enumerate() {
            assert_eq!(*component as usize, place);
            assert!(labels.insert(component.label()), "{component:?}");
            assert!(component.meaning().ends_with('.'), "{component:?}");
        }
        assert_eq!(labels.len(), Component::COUNT);
    }

    #[derive(Debug, Default)]
    struct Last(AtomicUsize);

    impl Observer for Last {
        fn enter(&self, component: Component) -> Component {
            Component::ALL[self.0.swap(component as usize, Ordering::Relaxed)]
        }
    }

    #[test]
    fn what_was_before_can_be_entered_again() {
        let last = Arc::new(Last::default());
        let activity = Activity::observed(Arc::<Last>::clone(&last));
        activity.enter(Component::Route);
        let before = activity.enter(Component::Auth);
        assert_eq!(before, Component::Route);
        assert_eq!(activity.enter(before), Component::Auth);
        assert_eq!(last.0.load(Ordering::Relaxed), Component::Route as usize);
        Activity::default().enter(Component::Send);
        assert_eq!(last.0.load(Ordering::Relaxed), Component::Route as usize);
    }
}

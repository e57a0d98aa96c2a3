//! The one place where the core's questions go.

use std::sync::Arc;

use sip_core::query::{Query, QueryKind, QueryResult, Unavailable};

use crate::ResultSink;
use crate::dns::Dns;
use crate::location::{LocalSocket, LocationStore, Save};
use crate::metrics::{Counter, Sample};
use crate::subscribers::{CredentialQuery, CredentialStore};

/// All back-ends of a process. What is not there answers: without a location store saves are
/// taken as done (`memory:`), without the others questions are unavailable.
pub struct Backend {
    sink: Arc<dyn ResultSink>,
    location: Option<Box<dyn LocationStore>>,
    credentials: Option<Box<dyn CredentialStore>>,
    dns: Option<Dns>,
    unrouted: Counter,
}

impl std::fmt::Debug for Backend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Backend")
            .field("location", &self.location.is_some())
            .field("credentials", &self.credentials.is_some())
            .field("dns", &self.dns.is_some())
            .finish_non_exhaustive()
    }
}

impl Backend {
    /// Without any back-end. `sink` should be the one that the back-ends got.
    pub fn new(sink: Arc<dyn ResultSink>) -> Self {
        Self {
            sink,
            location: None,
            credentials: None,
            dns: None,
            unrouted: Counter::default(),
        }
    }

    /// Keeps registrations in `store`.
    #[must_use]
    pub fn with_location(mut self, store: impl LocationStore + 'static) -> Self {
        self.location = Some(Box::new(store));
        self
    }

    /// Finds secrets in `store`.
    #[must_use]
    pub fn with_credentials(mut self, store: impl CredentialStore + 'static) -> Self {
        self.credentials = Some(Box::new(store));
        self
    }

    /// Resolves names.
    #[must_use]
    pub fn with_dns(mut self, dns: Dns) -> Self {
        self.dns = Some(dns);
        self
    }

    /// Takes the questions of worker `origin`; does not block. Every one with an id is answered
    /// exactly once, some before this returns.
    pub fn submit(&self, origin: u16, batch: impl IntoIterator<Item = Query>) {
        let mut saves = Vec::new();
        let mut credentials = Vec::new();
        let mut any = false;
        let mut at_once = |id, result| {
            if let Some(id) = id {
                self.sink.deliver(origin, id, result);
                any = true;
            }
        };
        for Query { id, kind } in batch {
            match (kind, &self.dns) {
                (QueryKind::SaveBindings { aor, record, version }, _) if self.location.is_some() => {
                    saves.push(Save {
                        origin,
                        id,
                        aor,
                        record,
                        version,
                    });
                }
                (QueryKind::SaveBindings { .. }, _) => at_once(id, QueryResult::Saved(Ok(()))),
                (
                    QueryKind::Credentials {
                        username,
                        user_len,
                        domain,
                        realm,
                    },
                    _,
                ) if self.credentials.is_some() => {
                    credentials.push(CredentialQuery {
                        origin,
                        id,
                        username,
                        user_len,
                        domain,
                        realm,
                    });
                }
                (QueryKind::Credentials { .. }, _) => {
                    self.unrouted.inc();
                    at_once(id, QueryResult::Credentials(Err(Unavailable)));
                }
                (QueryKind::Resolve { name, kind }, Some(dns)) => dns.resolve(origin, id, name, kind),
                (QueryKind::Resolve { .. }, None) => {
                    self.unrouted.inc();
                    at_once(id, QueryResult::Resolved(Err(Unavailable)));
                }
            }
        }
        if any {
            self.sink.flush();
        }
        if let (Some(store), false) = (&self.location, saves.is_empty()) {
            store.save(saves);
        }
        if let (Some(store), false) = (&self.credentials, credentials.is_empty()) {
            store.ask(credentials);
        }
    }

    /// From now on the listener ids inside records mean these sockets. To be called before the
    /// workers take a configuration with other listeners.
    pub fn set_listeners(&self, listeners: Vec<LocalSocket>) {
        if let Some(store) = &self.location {
            store.set_listeners(listeners);
        }
    }

    /// Whether registrations cannot be saved now.
    pub fn cannot_save(&self) -> bool {
        self.location.as_ref().is_some_and(|store| store.is_failing())
    }

    /// Everything that the back-ends count.
    pub fn metrics(&self) -> Vec<Sample> {
        let mut samples = vec![Sample::counter(
            "queries_unrouted",
            "",
            "Questions for a back-end that is not there.",
            self.unrouted.get(),
        )];
        samples.extend(self.location.iter().flat_map(|store| store.metrics()));
        samples.extend(self.credentials.iter().flat_map(|store| store.metrics()));
        samples.extend(self.dns.iter().flat_map(Dns::metrics));
        samples
    }

    /// Saves and answers what is queued, and ends the stores' threads. Later questions are
    /// answered as unavailable.
    pub fn shutdown(&self) {
        if let Some(store) = &self.credentials {
            store.shutdown();
        }
        if let Some(store) = &self.location {
            store.shutdown();
        }
    }
}

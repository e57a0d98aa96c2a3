//! The one entry for all of the core's queries.

use std::sync::Arc;

use sip_core::query::{Query, QueryKind, QueryResult, Unavailable};

use crate::ResultSink;
use crate::dns::Dns;
use crate::location::{LocalSocket, LocationStore, Save};
use crate::metrics::{Counter, Sample};
use crate::subscribers::{CredentialQuery, CredentialStore};

/// All back-ends of a process. Without a location store, saves count as done (`memory:`). Without one of the
/// others, its queries get the result `Unavailable`.
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
    /// No back-ends yet. `sink` must be the sink that the back-ends were given.
    pub fn new(sink: Arc<dyn ResultSink>) -> Self {
        Self {
            sink,
            location: None,
            credentials: None,
            dns: None,
            unrouted: Counter::default(),
        }
    }

    /// Adds the store of registrations.
    #[must_use]
    pub fn with_location(mut self, store: impl LocationStore + 'static) -> Self {
        self.location = Some(Box::new(store));
        self
    }

    /// Adds the store of credentials.
    #[must_use]
    pub fn with_credentials(mut self, store: impl CredentialStore + 'static) -> Self {
        self.credentials = Some(Box::new(store));
        self
    }

    /// Adds the resolver.
    #[must_use]
    pub fn with_dns(mut self, dns: Dns) -> Self {
        self.dns = Some(dns);
        self
    }

    /// Takes the queries of worker `origin` without blocking. Each query with an id gets exactly one result,
    /// in some cases before this function returns.
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

    /// Sets the sockets that the listener ids inside records mean from now on. To be called before the
    /// workers take a configuration with other listeners.
    pub fn set_listeners(&self, listeners: Vec<LocalSocket>) {
        if let Some(store) = &self.location {
            store.set_listeners(listeners);
        }
    }

    /// Whether registrations cannot be saved at present.
    pub fn cannot_save(&self) -> bool {
        self.location.as_ref().is_some_and(|store| store.is_failing())
    }

    /// All metrics of the back-ends.
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

    /// Saves what is queued, delivers the results, and ends the stores' threads. Later queries get the result
    /// `Unavailable`.
    pub fn shutdown(&self) {
        if let Some(store) = &self.credentials {
            store.shutdown();
        }
        if let Some(store) = &self.location {
            store.shutdown();
        }
    }
}

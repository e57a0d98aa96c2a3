//! Stores, name resolution and the workers' shared maps, made from the configuration.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sip_backend::dns::{Dns, DnsOptions};
use sip_backend::location::{DiskStore, LocationError, Options};
use sip_backend::metrics::Sample;
use sip_backend::shared::Shared;
use sip_backend::subscribers::{CredentialCache, Pipeline, Status};
use sip_backend::{Backend, ResultSink};
use sip_core::config::{Durability, Listener};
use sip_core::id::{ListenerId, WorkerId};
use sip_core::location::TRANSPORTS;
use sip_core::query::Query;
use sip_core::shared::SharedState;
use sip_net::hub::Hub;
use sip_net::worker::QuerySink;
use tokio::runtime::Handle;

use super::data_dir;
use super::sinks::Results;
use crate::admin::metrics::Registered;
use crate::cli::Failure;
use crate::cli::user::failure;
use crate::machine::unix_ms;
use crate::registrations::{Registrations, Waiting};
use settings::Loaded;

/// Records swept for expired bindings in one second. Only due ones are read: if a million expire at once, the
/// sweep takes 50 s.
const SWEEP_RECORDS: usize = 20_000;

/// All back-ends. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Backends {
    backend: Arc<Backend>,
    credentials: Arc<Pipeline>,
    shared: Arc<Shared>,
    registrations: Registrations,
    results: Arc<Results>,
}

impl std::fmt::Debug for Backends {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.backend.fmt(f)
    }
}

impl Backends {
    /// Opens the stores and loads the registrations.
    pub(crate) fn open(loaded: &Loaded, hub: &Hub, runtime: &Handle) -> Result<Self, Failure> {
        let waiting = Arc::<Waiting>::default();
        let results = Arc::new(Results::new(hub.clone(), Arc::clone(&waiting)));
        let sink: Arc<dyn ResultSink> = Arc::<Results>::clone(&results);
        let shell = &loaded.shell;
        let cache = Arc::new(
            CredentialCache::new(
                shell.cache_entries,
                shell.cache_ttl,
                // That a user does not exist is cached for as long as a user is. Otherwise the time of a
                // response would show which users exist. A change of the table ends both.
                shell.cache_ttl,
            )
            .with_stale(shell.cache_stale),
        );
        let shared = Arc::new(shared(loaded, Arc::clone(&cache))?);
        let mut backend = Backend::new(Arc::clone(&sink));
        if let Some(path) = &shell.location {
            make_parent(path)?;
            backend = backend.with_location(location(path, loaded, &shared, Arc::clone(&sink))?);
        }
        let credentials = Pipeline::open(
            shell.subscribers.clone(),
            shell.lookups.clone(),
            Arc::clone(&cache),
            Arc::clone(&sink),
        );
        let credentials = Arc::new(credentials.map_err(failure)?);
        backend = backend.with_credentials(Arc::clone(&credentials));
        let options = DnsOptions {
            servers: shell.nameservers.clone(),
            timeout: shell.dns_timeout,
            ..DnsOptions::default()
        };
        match Dns::new(runtime.clone(), options, sink) {
            Ok(dns) => backend = backend.with_dns(dns),
            // Addresses and registered contacts need no names, so the server is useful without name service.
            Err(error) => {
                tracing::warn!(
                    error = error.to_string(),
                    "names are not resolved; name servers can be given in [dns]"
                )
            }
        }
        let backend = Arc::new(backend);
        let registrations = Registrations::new(
            Arc::clone(&shared),
            Arc::clone(&backend),
            hub.clone(),
            waiting,
            loaded.core.registrar.durability,
        );
        Ok(Self {
            backend,
            credentials,
            shared,
            registrations,
            results,
        })
    }

    /// The maps that the workers share.
    pub(crate) fn shared(&self) -> Arc<dyn SharedState> {
        Arc::<Shared>::clone(&self.shared)
    }

    /// Calls `f` with the source address of each binding.
    pub(crate) fn for_each_source(&self, f: impl Fn(IpAddr)) {
        self.shared.for_each_record(|_, record| {
            let bindings = record.bindings().filter_map(Result::ok);
            bindings.for_each(|binding| f(binding.received.remote.ip()));
        });
    }

    /// The sink of a worker's queries.
    pub(crate) fn queries(&self) -> Queries {
        Queries(Arc::clone(&self.backend))
    }

    /// The registrations, for operators.
    pub(crate) fn registrations(&self) -> Registrations {
        self.registrations.clone()
    }

    /// Sets when a change of a registration gets its result, from now on.
    pub(crate) fn set_durability(&self, durability: Durability) {
        self.registrations.set_durability(durability);
    }

    /// Numbers of contacts by domain and transport; pairs without contacts are left out.
    pub(crate) fn registered(&self) -> Vec<Registered> {
        let all = self.shared.by_domain();
        let each = all.iter().flat_map(|(domain, counts)| {
            let domain = String::from_utf8_lossy(domain);
            let counts = TRANSPORTS.into_iter().zip(*counts);
            counts.map(move |(transport, count)| Registered {
                domain: domain.clone().into_owned(),
                transport: transport.uri_name(),
                contacts: count.into(),
            })
        });
        each.filter(|registered| registered.contacts > 0).collect()
    }

    /// State of the subscriber store.
    pub(crate) fn credentials(&self) -> Status {
        self.credentials.status()
    }

    /// Forgets the cached entries of a subscriber, or of all without a name. Returns their number.
    pub(crate) fn forget(&self, subscriber: Option<(&str, &str)>) -> usize {
        let name = subscriber.map(|(user, domain)| (user.as_bytes(), domain.as_bytes()));
        self.credentials.forget(name)
    }

    /// Sets the longest time of look-ups from now on.
    pub(crate) fn set_lookup_deadline(&self, deadline: Duration) {
        self.credentials.set_deadline(deadline);
    }

    /// Whether registrations cannot be saved now.
    pub(crate) fn cannot_save(&self) -> bool {
        self.backend.cannot_save()
    }

    /// All metrics of the back-ends.
    pub(crate) fn metrics(&self) -> Vec<Sample> {
        let mut samples = self.backend.metrics();
        samples.extend(self.shared.metrics());
        samples.push(self.registrations.metrics());
        samples.push(self.results.metrics());
        samples
    }

    /// Removes expired registrations, in memory and on disk, some at a time; to be called about once a
    /// second.
    pub(crate) fn sweep(&self) {
        let mut saves = Vec::new();
        self.shared.sweep_saves(unix_ms(), SWEEP_RECORDS, &mut saves);
        self.backend.submit(0, saves);
    }

    /// Writes what is queued and ends the stores' threads.
    pub(crate) fn shutdown(&self) {
        self.backend.shutdown();
    }
}

/// Passes a worker's queries to the back-ends.
#[derive(Debug)]
pub(crate) struct Queries(Arc<Backend>);

impl QuerySink for Queries {
    fn submit(&mut self, worker: WorkerId, queries: &mut Vec<Query>) {
        self.0.submit(worker.0, queries.drain(..));
    }
}

fn shared(loaded: &Loaded, cache: Arc<CredentialCache>) -> Result<Shared, Failure> {
    let key = data_dir::random_key()?;
    let word = |at: usize| {
        let bytes = key.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
        bytes.map(u64::from_le_bytes).unwrap_or_default()
    };
    Ok(Shared::new(
        (word(0), word(8)),
        loaded.core.limits.nonces,
        unix_ms(),
        cache,
    ))
}

fn location(
    path: &Path,
    loaded: &Loaded,
    shared: &Shared,
    sink: Arc<dyn ResultSink>,
) -> Result<DiskStore, Failure> {
    let listeners = &loaded.core.listeners;
    let sockets = listeners
        .iter()
        .map(|listener| (listener.transport, listener.address))
        .collect();
    let find = |transport, address| {
        let is = |listener: &Listener| listener.transport == transport && listener.address == address;
        let index = listeners.iter().position(is)?;
        u16::try_from(index).ok().map(ListenerId)
    };
    let options = Options::new(path, sockets);
    let load = |aor: Box<[u8]>, record| shared.load(&aor, record);
    let (store, found) = DiskStore::open(options, sink, &find, &load).map_err(|error| match error {
        LocationError::Locked { .. } => Failure::Usage(format!(
            "{error}; end that process, or name another [location] url or data_dir"
        )),
        LocationError::Io { .. } | LocationError::Database { .. } => Failure::Usage(format!(
            "registrations: {error}; name another [location] url or data_dir"
        )),
    })?;
    shared.versions_from(found.newest_version);
    Ok(store)
}

/// Makes the directory of a database file.
fn make_parent(path: &Path) -> Result<(), Failure> {
    path.parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .map_or(Ok(()), data_dir::create)
}

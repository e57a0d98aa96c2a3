//! A, AAAA, SRV and NAPTR records, for the core's RFC 3263 machine.
//!
//! The resolver underneath keeps nothing. The core caches each result for the records' own time to live, so a
//! change of TTL is seen with the next look-up. `/etc/hosts` is read once, when the resolver is made.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{
    ConnectionConfig, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts,
};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::rr::{Name, RData, Record as DnsRecord, RecordType};
use hickory_resolver::system_conf::read_system_conf;
use sip_core::id::QueryId;
use sip_core::query::{QueryResult, Record, RecordKind, Records, Unavailable};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use crate::ResultSink;
use crate::metrics::{self, Counter, Histogram, Sample};
use crate::throttle::LogThrottle;

/// Least and longest time for which the core may cache that there are no records, seconds. RFC 2308 §5 allows
/// hours; a new gateway should not wait for them.
const NEGATIVE_TTL_S: std::ops::RangeInclusive<u32> = 1..=300;
/// Time for which the core may cache that there are no records, if the server gave no SOA, seconds.
const NEGATIVE_TTL_WITHOUT_SOA_S: u32 = 30;
/// Longest time that the core may cache records, seconds.
const MAX_TTL_S: u32 = 86_400;
/// Most records of one response that go on to the core, the most preferred ones. A message over TCP could
/// hold thousands.
const MAX_RECORDS: usize = 256;

/// Options of the resolver.
#[derive(Clone, Debug)]
pub struct DnsOptions {
    /// Name servers; empty: those of the system (`/etc/resolv.conf`).
    pub servers: Vec<SocketAddr>,
    /// Whether `/etc/hosts` is searched first.
    pub hosts_file: bool,
    /// Time after which a query without a response gets the result `Unavailable`.
    pub timeout: Duration,
    /// Most queries under way. A further one gets the result `Unavailable` at once.
    pub in_flight: usize,
}

impl Default for DnsOptions {
    fn default() -> Self {
        Self {
            servers: Vec::new(),
            hosts_file: true,
            timeout: Duration::from_secs(5),
            in_flight: 1_024,
        }
    }
}

/// Error of setting up the resolver.
#[derive(Debug, thiserror::Error)]
#[error("name resolution cannot be set up: {0}")]
pub struct DnsSetupError(#[from] NetError);

#[derive(Debug)]
struct Stats {
    found: Counter,
    negative: Counter,
    failed: Counter,
    timed_out: Counter,
    refused: Counter,
    latency: Histogram,
    log: LogThrottle,
    /// Whether a failure was logged since the name servers last responded.
    is_away: AtomicBool,
}

/// Resolves queries for DNS records on a tokio runtime.
#[derive(Debug)]
pub struct Dns {
    runtime: Handle,
    resolver: Resolver,
    permits: Arc<Semaphore>,
    options: DnsOptions,
    stats: Arc<Stats>,
    sink: Arc<dyn ResultSink>,
}

#[derive(Clone)]
struct Resolver(Arc<TokioResolver>);

impl std::fmt::Debug for Resolver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Resolver(..)")
    }
}

impl Dns {
    /// A resolver that works on `runtime`.
    ///
    /// # Errors
    /// The system's configuration cannot be read.
    pub fn new(
        runtime: Handle,
        options: DnsOptions,
        sink: Arc<dyn ResultSink>,
    ) -> Result<Self, DnsSetupError> {
        let _in_runtime = runtime.enter();
        let mut builder = if options.servers.is_empty() {
            TokioResolver::builder_tokio()?
        } else {
            let servers = options.servers.iter().map(name_server).collect();
            let config = ResolverConfig::from_name_servers(servers);
            TokioResolver::builder_with_config(config, TokioRuntimeProvider::default())
        };
        tune(builder.options_mut(), &options);
        let stats = Stats {
            found: Counter::default(),
            negative: Counter::default(),
            failed: Counter::default(),
            timed_out: Counter::default(),
            refused: Counter::default(),
            latency: Histogram::new(metrics::LATENCY_US),
            log: LogThrottle::new(Duration::from_secs(5)),
            is_away: AtomicBool::new(false),
        };
        let resolver = Resolver(Arc::new(builder.build()?));
        let permits = Arc::new(Semaphore::new(options.in_flight));
        Ok(Self {
            runtime: runtime.clone(),
            resolver,
            permits,
            options,
            stats: Arc::new(stats),
            sink,
        })
    }

    /// Looks `name` up without blocking. If `id` is given, a result always follows.
    pub fn resolve(&self, origin: u16, id: Option<QueryId>, name: Box<[u8]>, kind: RecordKind) {
        let deliver = move |sink: &dyn ResultSink, result| {
            if let Some(id) = id {
                sink.deliver(origin, id, QueryResult::Resolved(result));
                sink.flush();
            }
        };
        let Ok(permit) = self.permits.clone().try_acquire_owned() else {
            self.stats.refused.inc();
            deliver(&*self.sink, Err(Unavailable));
            return;
        };
        let (resolver, stats, sink) = (self.resolver.clone(), self.stats.clone(), self.sink.clone());
        let timeout = self.options.timeout;
        self.runtime.spawn(async move {
            let start = Instant::now();
            let result = tokio::time::timeout(timeout, look_up(&resolver.0, &name, kind)).await;
            // The resolver's attempts together last as long as this time-out, so either may notice the
            // silence first.
            let result = result.unwrap_or(Err(NetError::Timeout));
            stats.latency.observe_duration(start.elapsed(), 1);
            let name = String::from_utf8_lossy(&name);
            let result = match result {
                Ok(records) => {
                    if stats.is_away.swap(false, Ordering::Relaxed) {
                        tracing::info!("name servers respond again");
                    }
                    if records.values.is_empty() {
                        &stats.negative
                    } else {
                        &stats.found
                    }
                    .inc();
                    Ok(records)
                }
                Err(NetError::Timeout) => {
                    stats.timed_out.inc();
                    if let Some(more) = stats.log.allow() {
                        tracing::warn!(name = &*name, kind = ?kind, more, "name servers do not respond");
                        stats.is_away.store(true, Ordering::Relaxed);
                    }
                    Err(Unavailable)
                }
                Err(error) => {
                    stats.failed.inc();
                    if let Some(more) = stats.log.allow() {
                        tracing::warn!(name = &*name, kind = ?kind, error = error.to_string(), more, "name cannot be resolved");
                    }
                    Err(Unavailable)
                }
            };
            // Makes room for the next query first: the worker that gets the result may send one at once.
            drop(permit);
            deliver(&*sink, result);
        });
    }

    /// All metrics of name resolution.
    pub fn metrics(&self) -> Vec<Sample> {
        const LOOKUPS: &str = "Look-ups of DNS records, by what came of them.";
        let stats = &self.stats;
        let lookups =
            |label, counter: &Counter| Sample::counter("dns_lookups", label, LOOKUPS, counter.get());
        let busy = self
            .options
            .in_flight
            .saturating_sub(self.permits.available_permits());
        vec![
            lookups("result=\"found\"", &stats.found),
            lookups("result=\"negative\"", &stats.negative),
            lookups("result=\"failed\"", &stats.failed),
            lookups("result=\"timed-out\"", &stats.timed_out),
            lookups("result=\"too-many\"", &stats.refused),
            Sample::histogram(
                "dns_lookup_microseconds",
                "",
                "From a worker's query to its result.",
                &stats.latency,
            ),
            Sample::gauge("dns_in_flight", "", "Look-ups under way.", busy as u64),
        ]
    }
}

/// The name servers that [`Dns`] asks if [`DnsOptions::servers`] is empty: those of `/etc/resolv.conf`.
///
/// # Errors
/// The file cannot be read, or names no server.
pub fn system_servers() -> Result<Vec<SocketAddr>, DnsSetupError> {
    let (config, _) = read_system_conf()?;
    let servers = config.name_servers().iter();
    Ok(servers
        .map(|server| {
            let port = server
                .connections
                .first()
                .map_or(53, |connection| connection.port);
            SocketAddr::new(server.ip, port)
        })
        .collect())
}

fn name_server(address: &SocketAddr) -> NameServerConfig {
    let connections = [ConnectionConfig::udp(), ConnectionConfig::tcp()].map(|mut connection| {
        connection.port = address.port();
        connection
    });
    // A negative response is a response; another server is queried only if there is none.
    NameServerConfig::new(address.ip(), true, connections.into())
}

fn tune(resolver: &mut ResolverOpts, options: &DnsOptions) {
    resolver.cache_size = 0;
    resolver.use_hosts_file = if options.hosts_file {
        ResolveHosts::Always
    } else {
        ResolveHosts::Never
    };
    // Three attempts fit into the time-out.
    resolver.timeout = resolver
        .timeout
        .min(options.timeout / 3)
        .max(Duration::from_millis(10));
    resolver.attempts = 2;
    resolver.max_active_requests = resolver.max_active_requests.max(options.in_flight);
}

async fn look_up(resolver: &TokioResolver, name: &[u8], kind: RecordKind) -> Result<Records, NetError> {
    // A text that is no domain name has no records, so no server need be queried.
    let nothing = Records {
        ttl_s: *NEGATIVE_TTL_S.end(),
        values: Vec::new(),
    };
    let Some(mut host) = std::str::from_utf8(name)
        .ok()
        .and_then(|name| Name::from_ascii(name).ok())
    else {
        return Ok(nothing);
    };
    if host.is_root() {
        return Ok(nothing);
    }
    // No search list: names in SIP are complete.
    host.set_fqdn(true);
    let kind = match kind {
        RecordKind::A => RecordType::A,
        RecordKind::Aaaa => RecordType::AAAA,
        RecordKind::Srv => RecordType::SRV,
        RecordKind::Naptr => RecordType::NAPTR,
    };
    match resolver.lookup(host, kind).await {
        Ok(found) => Ok(records(found.answers(), kind)),
        Err(NetError::Dns(DnsError::NoRecordsFound(none))) => {
            let ttl = none.negative_ttl.unwrap_or(NEGATIVE_TTL_WITHOUT_SOA_S);
            Ok(Records {
                ttl_s: ttl.clamp(*NEGATIVE_TTL_S.start(), *NEGATIVE_TTL_S.end()),
                values: Vec::new(),
            })
        }
        Err(error) => Err(error),
    }
}

/// The records of the requested kind; aliases on the way count for the TTL only.
fn records(answers: &[DnsRecord], kind: RecordType) -> Records {
    let mut values: Vec<_> = answers
        .iter()
        .filter(|r| r.record_type() == kind)
        .filter_map(record)
        .collect();
    if values.len() > MAX_RECORDS {
        values.sort_by_key(|record| match record {
            Record::Address(_) => (0, 0),
            Record::Service { priority, .. } => (*priority, 0),
            Record::Naptr {
                order, preference, ..
            } => (*order, *preference),
        });
        values.truncate(MAX_RECORDS);
    }
    let ttl = answers.iter().map(|record| record.ttl).min();
    let ttl_s = if values.is_empty() {
        NEGATIVE_TTL_WITHOUT_SOA_S
    } else {
        ttl.unwrap_or(0).min(MAX_TTL_S)
    };
    Records { ttl_s, values }
}

fn record(record: &DnsRecord) -> Option<Record> {
    if let Some(address) = record.data.ip_addr() {
        return Some(Record::Address(address));
    }
    #[expect(clippy::wildcard_enum_match_arm, reason = "nothing else is asked for")]
    match &record.data {
        RData::SRV(service) => Some(Record::Service {
            priority: service.priority,
            weight: service.weight,
            port: service.port,
            target: text(&service.target),
        }),
        RData::NAPTR(pointer) => Some(Record::Naptr {
            order: pointer.order,
            preference: pointer.preference,
            flags: pointer.flags.clone(),
            service: pointer.services.clone(),
            regexp: pointer.regexp.clone(),
            replacement: text(&pointer.replacement),
        }),
        _ => None,
    }
}

/// A name in the form that the core expects. "." (no such service here, RFC 2782; no replacement, RFC 3403)
/// becomes the empty name.
fn text(name: &Name) -> Box<[u8]> {
    let name = name.to_ascii().to_ascii_lowercase();
    name.strip_suffix('.').unwrap_or(&name).as_bytes().into()
}

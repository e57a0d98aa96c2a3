//! `/metrics`: all metrics as OpenMetrics; [`super::exposition`] has the other format.
//!
//! Nothing is counted here. The parts of the program count for themselves. A [`Source`] reads their counts
//! for each request, and the collector below merges the readings of one name.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use sip_backend::metrics::{HistogramValue, Sample, Value};
use sip_core::dispatcher::{Group, Member, MemberState};
use sip_core::event::{BOUNDS_US, Code, Counters};
use sip_net::counters::NetCounters;
use sip_net::worker::Snapshot;

use super::process;
use crate::cpu::CpuTime;
use crate::machine::unix_ms;
use crate::serve::tls::{CertificateExpiry, Use};

/// Source of readings.
pub(crate) trait Source: Send + Sync + 'static {
    /// Reads everything now.
    fn read(&self) -> Reading;
}

/// One reading of all metrics.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reading {
    /// Snapshots of the workers, in order.
    pub workers: Vec<Snapshot>,
    /// Samples that belong to no worker.
    pub samples: Vec<Sample>,
    /// Contacts by domain and transport.
    pub registered: Vec<Registered>,
    /// Groups of next hops.
    pub groups: Arc<[Group]>,
    /// Our certificates in force.
    pub certificates: Vec<CertificateExpiry>,
    /// CPU time by component.
    pub cpu: CpuTime,
}

/// Contacts of one domain, registered over one transport.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Registered {
    /// The domain's name.
    pub domain: String,
    /// Name of the transport, as in the configuration.
    pub transport: &'static str,
    /// Number of contacts.
    pub contacts: u64,
}

/// The page `/metrics`.
#[derive(Debug)]
pub(crate) struct Metrics {
    /// Two registries: of all workers together, and with a series for each worker.
    registries: [Registry; 2],
}

impl Metrics {
    /// A page of the readings of `source` and of the process itself.
    pub(crate) fn new(source: Arc<dyn Source>) -> Self {
        let registry = |by_worker| {
            let mut registry = Registry::default();
            registry.register_collector(Box::new(All {
                source: Arc::clone(&source),
                by_worker,
            }));
            registry
        };
        Self {
            registries: [registry(false), registry(true)],
        }
    }

    /// The page as OpenMetrics. With `by_worker` it has a series for each worker instead of one for all.
    ///
    /// # Errors
    /// A reading could not be written, which is a bug.
    pub(crate) fn text(&self, by_worker: bool) -> Result<String, fmt::Error> {
        let mut text = String::new();
        let [all, each] = &self.registries;
        let registry = if by_worker { each } else { all };
        prometheus_client::encoding::text::encode(&mut text, registry)?;
        Ok(text)
    }
}

struct All {
    source: Arc<dyn Source>,
    by_worker: bool,
}

impl fmt::Debug for All {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("All(..)")
    }
}

/// A reading with its labels.
struct Series {
    labels: Vec<(String, String)>,
    value: Value,
}

/// All series of one name.
struct Family {
    name: String,
    help: &'static str,
    series: Vec<Series>,
}

/// Families in the order in which their names first appeared.
#[derive(Default)]
struct Families(Vec<Family>);

impl Families {
    /// Adds a reading. If there is a series with the same name and labels, the reading is added to that.
    fn add(&mut self, name: String, help: &'static str, labels: Vec<(String, String)>, value: Value) {
        let series = Series { labels, value };
        match self.0.iter_mut().find(|family| family.name == name) {
            Some(family) => {
                let mut all = family.series.iter_mut();
                match all.find(|other| other.labels == series.labels) {
                    Some(other) => add_to(&mut other.value, &series.value),
                    None => family.series.push(series),
                }
            }
            None => self.0.push(Family {
                name,
                help,
                series: vec![series],
            }),
        }
    }

    /// Adds the readings of a worker: with `number` as separate series, else to those of all workers.
    fn worker(&mut self, number: Option<usize>, worker: &Snapshot) {
        let labelled = |mut labels: Vec<(String, String)>| {
            labels.extend(number.map(|number| ("worker".to_owned(), number.to_string())));
            labels
        };
        let core = Counters::INFO.iter().zip(worker.counters.values());
        let net = NetCounters::INFO.iter().zip(worker.net.values());
        for (info, value) in core.chain(net) {
            self.add(
                format!("trapezoid_{}", info.name),
                info.help.trim(),
                labelled(parse_labels(info.labels)),
                Value::Counter(value),
            );
        }
        for (name, help, value) in gauges(worker) {
            let labels = labelled(Vec::new());
            self.add(format!("trapezoid_{name}"), help, labels, Value::Gauge(value));
        }
        for (code, count) in worker.calls.responses() {
            let (class, code) = match code {
                Code::One(code) => (format!("{}xx", code / 100), code.to_string()),
                Code::Others(class) => (class.to_owned(), "other".to_owned()),
            };
            self.add(
                "trapezoid_invite_responses".to_owned(),
                "Final responses to INVITE requests that begin a call: relayed with state, or made here",
                labelled(vec![("class".to_owned(), class), ("code".to_owned(), code)]),
                Value::Counter(count),
            );
        }
        for (name, help, times) in [
            (
                "invite_setup",
                "From an INVITE to its first ringing or its 2xx (RFC 6076, session request delay)",
                &worker.calls.setup,
            ),
            (
                "invite_ring",
                "From the first ringing to the 2xx",
                &worker.calls.ring,
            ),
        ] {
            let value = HistogramValue {
                bounds: &BOUNDS_US,
                counts: times.counts.to_vec(),
                sum: times.sum_us,
            };
            let name = format!("trapezoid_{name}_microseconds");
            self.add(name, help, labelled(Vec::new()), Value::Histogram(value));
        }
    }

    fn member(&mut self, group: &Group, member: &Member, now_unix_ms: u64) {
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        let labels = || {
            let group = ("group".to_owned(), text(&group.name));
            vec![group, ("member".to_owned(), text(&member.hop.uri))]
        };
        let up = member.state(now_unix_ms) == MemberState::Up;
        self.add(
            "trapezoid_group_member_up".to_owned(),
            "Whether the member gets requests: 0 where it failed or is drained",
            labels(),
            Value::Gauge(up.into()),
        );
        self.add(
            "trapezoid_group_member_failures".to_owned(),
            "Requests and probes that failed at the member",
            labels(),
            Value::Counter(member.health.failures()),
        );
    }
}

/// Adds a reading to another of the same kind.
fn add_to(value: &mut Value, more: &Value) {
    match (value, more) {
        (Value::Counter(value), Value::Counter(more)) | (Value::Gauge(value), Value::Gauge(more)) => {
            *value = value.saturating_add(*more);
        }
        (Value::Histogram(value), Value::Histogram(more)) => {
            for (count, more) in value.counts.iter_mut().zip(&more.counts) {
                *count += more;
            }
            value.sum = value.sum.saturating_add(more.sum);
        }
        (Value::Counter(_) | Value::Gauge(_) | Value::Histogram(_), _) => {}
    }
}

/// Adds the contacts of each domain and transport. No two entries are the same, so nothing is searched for.
fn registered(all: Vec<Registered>, families: &mut Families) {
    let series = all.into_iter().map(|registered| Series {
        labels: vec![
            ("domain".to_owned(), registered.domain),
            ("transport".to_owned(), registered.transport.to_owned()),
        ],
        value: Value::Gauge(registered.contacts),
    });
    families.0.push(Family {
        name: "trapezoid_registered_contacts".to_owned(),
        help: "Registered contacts, by domain and by the transport that they registered over",
        series: series.collect(),
    });
}

/// Adds the end of each certificate. If a domain has two, of RSA and of ECDSA, one series has the earlier end.
fn certificates(all: &[CertificateExpiry], families: &mut Families) {
    let mut series: Vec<(Vec<(String, String)>, u64)> = Vec::new();
    for ends in all {
        let to = match &ends.to {
            Use::Listener(label) => ("listener".to_owned(), label.clone()),
            Use::Peer(domain) => ("peer".to_owned(), domain.clone()),
        };
        let labels = vec![to, ("domain".to_owned(), ends.domain.clone())];
        let end = ends.end_unix_s();
        match series.iter_mut().find(|(other, _)| *other == labels) {
            Some((_, first)) => *first = end.min(*first),
            None => series.push((labels, end)),
        }
    }
    for (labels, end) in series {
        families.add(
            "trapezoid_tls_certificate_expiry_timestamp_seconds".to_owned(),
            "When the certificate ends, Unix time",
            labels,
            Value::Gauge(end),
        );
    }
}

fn gauges(worker: &Snapshot) -> [(&'static str, &'static str, u64); 12] {
    let Snapshot {
        gauges, net_gauges, ..
    } = worker;
    [
        (
            "server_transactions",
            "Server transactions held, finished ones included",
            gauges.server_transactions,
        ),
        (
            "invite_transactions",
            "INVITE transactions that have no final response yet: calls being set up",
            gauges.live_invites,
        ),
        (
            "client_transactions",
            "Client transactions held, finished ones included",
            gauges.client_transactions,
        ),
        (
            "transaction_bytes",
            "Bytes of the messages that transactions hold",
            gauges.transaction_bytes,
        ),
        (
            "parked_requests",
            "Requests that wait for a back-end",
            gauges.parked_requests,
        ),
        (
            "parked_bytes",
            "Bytes that those requests hold",
            gauges.parked_bytes,
        ),
        ("timers", "Timers running", gauges.timers),
        (
            "sources",
            "Sources that have sent something recently, if messages are limited by source",
            gauges.sources,
        ),
        ("dns_entries", "Names in the resolver's cache", gauges.dns_entries),
        (
            "connections",
            "Connections open or being opened",
            net_gauges.connections,
        ),
        (
            "connection_bytes",
            "Bytes that connections hold, unsent or incomplete",
            net_gauges.stream_bytes,
        ),
        (
            "udp_waiting",
            "Datagrams that wait for room in a send buffer",
            net_gauges.udp_waiting,
        ),
    ]
}

/// Splits `a="x",b="y"` into pairs; the values are words of this program, without escapes.
fn parse_labels(text: &str) -> Vec<(String, String)> {
    let pairs = text.split(',').filter_map(|pair| pair.split_once('='));
    pairs
        .map(|(key, value)| (key.trim().to_owned(), value.trim_matches('"').to_owned()))
        .collect()
}

impl Collector for All {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let mut families = Families::default();
        let reading = self.source.read();
        for (number, worker) in reading.workers.iter().enumerate() {
            families.worker(Some(number).filter(|_| self.by_worker), worker);
        }
        for sample in reading.samples {
            let name = format!("trapezoid_{}", sample.name);
            families.add(name, sample.help, parse_labels(sample.labels), sample.value);
        }
        let now = unix_ms();
        for group in reading.groups.iter() {
            let members = group.members.iter();
            members.for_each(|member| families.member(group, member, now));
        }
        registered(reading.registered, &mut families);
        certificates(&reading.certificates, &mut families);
        if reading.cpu.on {
            encode_cpu(&mut encoder, &reading.cpu)?;
        }
        for (name, help, value) in process::read() {
            encode_process(&mut encoder, name, help, value)?;
        }
        let build = vec![("version".to_owned(), env!("CARGO_PKG_VERSION").to_owned())];
        let help = "The program's version; always 1";
        families.add("trapezoid_build_info".to_owned(), help, build, Value::Gauge(1));
        families
            .0
            .iter()
            .try_for_each(|family| encode_family(&mut encoder, family))
    }
}

/// CPU seconds since the measurement was switched on.
fn encode_cpu(encoder: &mut DescriptorEncoder<'_>, cpu: &CpuTime) -> Result<(), fmt::Error> {
    let help = "CPU time by thread and by what it went into, since that is measured";
    let mut metrics = encoder.encode_descriptor("trapezoid_cpu_seconds", help, None, MetricType::Counter)?;
    for (thread, component, ns) in cpu.parts() {
        let labels = [("thread", thread.as_str()), ("component", component)];
        let seconds = Duration::from_nanos(ns).as_secs_f64();
        let mut series = metrics.encode_family(&labels)?;
        series.encode_counter::<NoLabelSet, f64, u64>(&seconds, None)?;
    }
    Ok(())
}

fn encode_process(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    value: process::Value,
) -> Result<(), fmt::Error> {
    match value {
        process::Value::Counter(value) => {
            let metric = ConstCounter::new(value);
            metric.encode(encoder.encode_descriptor(name, help, None, MetricType::Counter)?)
        }
        process::Value::Gauge(value) => {
            let metric = ConstGauge::new(value);
            metric.encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)
        }
    }
}

fn encode_family(encoder: &mut DescriptorEncoder<'_>, family: &Family) -> Result<(), fmt::Error> {
    let kind = match family.series.first().map(|series| &series.value) {
        Some(Value::Counter(_)) => MetricType::Counter,
        Some(Value::Gauge(_)) => MetricType::Gauge,
        Some(Value::Histogram(_)) => MetricType::Histogram,
        None => return Ok(()),
    };
    // Back-ends count microseconds; by convention, metrics are in seconds.
    let (name, divisor) = match (&kind, family.name.strip_suffix("_microseconds")) {
        (MetricType::Histogram | MetricType::Counter, Some(stem)) => (format!("{stem}_seconds"), 1e6),
        _ => (family.name.clone(), 1.0),
    };
    let help = family.help.trim().trim_end_matches('.');
    let mut metrics = encoder.encode_descriptor(&name, help, None, kind)?;
    for series in &family.series {
        let labels = series.labels.as_slice();
        if labels.is_empty() {
            encode_value(&mut metrics, &series.value, divisor)?;
        } else {
            encode_value(&mut metrics.encode_family(&labels)?, &series.value, divisor)?;
        }
    }
    Ok(())
}

#[expect(
    clippy::cast_precision_loss,
    reason = "seconds need not be exact to the last digit"
)]
fn encode_value(encoder: &mut MetricEncoder<'_>, value: &Value, divisor: f64) -> Result<(), fmt::Error> {
    match value {
        Value::Counter(value) if divisor > 1.0 => {
            encoder.encode_counter::<NoLabelSet, f64, u64>(&(*value as f64 / divisor), None)
        }
        Value::Counter(value) => encoder.encode_counter::<NoLabelSet, _, u64>(value, None),
        Value::Gauge(value) => encoder.encode_gauge(&i64::try_from(*value).unwrap_or(i64::MAX)),
        Value::Histogram(value) => encode_histogram(encoder, value, divisor),
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "sums and bounds of a histogram need not be exact to the last digit"
)]
fn encode_histogram(
    encoder: &mut MetricEncoder<'_>,
    value: &HistogramValue,
    divisor: f64,
) -> Result<(), fmt::Error> {
    let bounds = value
        .bounds
        .iter()
        .map(|bound| *bound as f64 / divisor)
        .chain([f64::INFINITY]);
    let buckets: Vec<(f64, u64)> = bounds.zip(value.counts.iter().copied()).collect();
    let count = value.counts.iter().sum();
    encoder.encode_histogram::<NoLabelSet>(value.sum as f64 / divisor, count, &buckets, None)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use sip_core::activity::Component;
    use sip_core::dispatcher::{Distribution, Local, MarkPolicy};
    use sip_core::event::Gauges;
    use sip_core::transport::NextHop;
    use sip_net::cpu::CpuSplit;

    use super::*;
    use crate::cpu::ThreadTime;

    #[derive(Debug)]
    struct Fixed(Reading);

    impl Source for Fixed {
        fn read(&self) -> Reading {
            self.0.clone()
        }
    }

    fn page(reading: Reading) -> String {
        Metrics::new(Arc::new(Fixed(reading))).text(true).expect("text")
    }

    /// Every line of the page, name with labels and value, after a check of its form.
    fn parse(page: &str) -> HashMap<String, f64> {
        let mut out = HashMap::new();
        let mut described: Vec<String> = Vec::new();
        for line in page.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').expect("a type");
                assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
                assert!(!described.iter().any(|other| other == name), "{name} twice");
                described.push(name.to_owned());
            } else if !line.starts_with('#') {
                let (series, value) = line.rsplit_once(' ').expect("a value");
                let name = series.split('{').next().expect("a name");
                let of = described.last().expect("a description before it");
                assert!(name.starts_with(of.as_str()), "{name} below {of}");
                let value = value.parse().unwrap_or_else(|_| panic!("{line}"));
                assert!(out.insert(series.to_owned(), value).is_none(), "{series} twice");
            }
        }
        assert_eq!(page.lines().last(), Some("# EOF"));
        out
    }

    #[test]
    fn workers_have_labels_of_their_own() {
        let worker = |n| {
            let counters = Counters {
                requests_invite: n,
                relayed_stateful: 2 * n,
                ..Counters::default()
            };
            let net = NetCounters {
                udp_received: 3 * n,
                ..NetCounters::default()
            };
            let gauges = Gauges {
                parked_requests: n,
                ..Gauges::default()
            };
            Snapshot {
                counters,
                net,
                gauges,
                ..Snapshot::default()
            }
        };
        let page = parse(&page(Reading {
            workers: vec![worker(5), worker(7)],
            ..Reading::default()
        }));
        let value = |series: &str| {
            page.get(series)
                .copied()
                .unwrap_or_else(|| panic!("{series} in {page:?}"))
        };
        assert_eq!(
            value("trapezoid_requests_received_total{method=\"INVITE\",worker=\"0\"}"),
            5.0
        );
        assert_eq!(
            value("trapezoid_requests_received_total{method=\"INVITE\",worker=\"1\"}"),
            7.0
        );
        assert_eq!(
            value("trapezoid_requests_relayed_total{state=\"transaction\",worker=\"1\"}"),
            14.0
        );
        assert_eq!(
            value("trapezoid_net_udp_datagrams_total{direction=\"in\",worker=\"0\"}"),
            15.0
        );
        assert_eq!(value("trapezoid_parked_requests{worker=\"1\"}"), 7.0);
        let all = Metrics::new(Arc::new(Fixed(Reading {
            workers: vec![worker(5), worker(7)],
            ..Reading::default()
        })));
        let all = parse(&all.text(false).expect("text"));
        assert_eq!(all["trapezoid_requests_received_total{method=\"INVITE\"}"], 12.0);
        assert_eq!(all["trapezoid_parked_requests"], 12.0);
        assert_eq!(
            all["trapezoid_invite_responses_total{class=\"4xx\",code=\"486\"}"],
            0.0
        );
        assert_eq!(all["trapezoid_invite_setup_seconds_count"], 0.0);
        assert!(!all.keys().any(|name| name.contains("worker=")));
    }

    #[test]
    fn cpu_time_is_shown_while_it_is_measured() {
        let mut split = CpuSplit::default();
        split.ns[Component::Auth as usize] = 1_500_000_000;
        let thread = ThreadTime {
            name: "subscribers".to_owned(),
            component: "store",
            ns: 250_000_000,
        };
        let reading = |on| Reading {
            cpu: CpuTime {
                on,
                workers: vec![split, split],
                threads: vec![thread.clone()],
                ..CpuTime::default()
            },
            ..Reading::default()
        };
        let shown = |page: &str| -> Vec<(String, f64)> {
            let series = parse(page).into_iter();
            series
                .filter(|(name, _)| name.starts_with("trapezoid_cpu_seconds"))
                .collect()
        };
        assert_eq!(shown(&page(reading(false))), []);
        let shown = shown(&page(reading(true)));
        assert_eq!(shown.len(), 2 * Component::COUNT + 1);
        let of = |labels: &str| {
            let name = format!("trapezoid_cpu_seconds_total{{{labels}}}");
            shown
                .iter()
                .find(|(series, _)| *series == name)
                .map(|(_, seconds)| *seconds)
        };
        assert_eq!(of("thread=\"worker-1\",component=\"auth\""), Some(1.5));
        assert_eq!(of("thread=\"worker-0\",component=\"parse\""), Some(0.0));
        assert_eq!(of("thread=\"subscribers\",component=\"store\""), Some(0.25));
    }

    #[test]
    fn members_of_groups_are_shown() {
        let member = |uri: &[u8]| Member::new(NextHop::parse(uri).expect("a URI"), 1, 0);
        let group = Group {
            name: b"carriers"[..].into(),
            algorithm: Distribution::RoundRobin,
            members: vec![member(b"sip:a"), member(b"sip:b"), member(b"sip:c")],
            probe_ms: None,
            marks: MarkPolicy {
                fail_after: 2,
                recover_after: 1,
                hold_ms: Some(60_000),
            },
            reply_timeout_ms: 2000,
            failover_on: Vec::new(),
            cursor: Local::default(),
        };
        for _ in 0..2 {
            group.members[0].health.note_failure(unix_ms(), &group.marks);
        }
        group.members[1].health.note_failure(unix_ms(), &group.marks);
        group.members[2].health.set_drained(true);
        let page = parse(&page(Reading {
            groups: [group].into(),
            ..Reading::default()
        }));
        let of = |name: &str| -> Vec<f64> {
            let series = |member| {
                format!("trapezoid_group_member_{name}{{group=\"carriers\",member=\"sip:{member}\"}}")
            };
            ["a", "b", "c"]
                .iter()
                .map(|member| page[&series(member)])
                .collect()
        };
        assert_eq!(of("up"), [0.0, 1.0, 0.0]);
        assert_eq!(of("failures_total"), [2.0, 1.0, 0.0]);
    }

    #[test]
    fn the_ends_of_certificates_are_shown() {
        let now_s = unix_ms() / 1000;
        let ends = |to: Use, domain: &str, at_s: u64| CertificateExpiry {
            to,
            domain: domain.to_owned(),
            path: "cert.pem".into(),
            at_s,
            is_own: false,
        };
        let listener = || Use::Listener("tls 0.0.0.0:5061".to_owned());
        let page = parse(&page(Reading {
            certificates: vec![
                ends(listener(), "a.example", now_s + 1_000_000),
                ends(listener(), "a.example", now_s + 500_000),
                ends(listener(), "b.example", now_s - 1),
                ends(Use::Peer("c.example".to_owned()), "a.example", now_s + 2_000_000),
            ],
            ..Reading::default()
        }));
        let end = |labels: &str| {
            page[&format!("trapezoid_tls_certificate_expiry_timestamp_seconds{{{labels}}}")] - now_s as f64
        };
        assert_eq!(
            end("listener=\"tls 0.0.0.0:5061\",domain=\"a.example\""),
            500_000.0
        );
        assert_eq!(end("listener=\"tls 0.0.0.0:5061\",domain=\"b.example\""), -1.0);
        assert_eq!(end("peer=\"c.example\",domain=\"a.example\""), 2_000_000.0);
    }

    #[test]
    fn back_ends_are_shown_in_seconds() {
        let bounds: &'static [u64] = &[100, 1000];
        let histogram = HistogramValue {
            bounds,
            counts: vec![1, 2, 3],
            sum: 5_000_000,
        };
        let samples = vec![
            Sample {
                name: "things",
                help: "Things.",
                labels: "kind=\"a\"",
                value: Value::Counter(1),
            },
            Sample {
                name: "wait_microseconds",
                help: "Waiting.",
                labels: "",
                value: Value::Histogram(histogram),
            },
            Sample {
                name: "things",
                help: "Things.",
                labels: "kind=\"b\"",
                value: Value::Counter(2),
            },
        ];
        let text = page(Reading {
            samples,
            ..Reading::default()
        });
        assert!(text.contains("# HELP trapezoid_things Things\n"), "{text}");
        let page = parse(&text);
        let value = |series: &str| {
            page.get(series)
                .copied()
                .unwrap_or_else(|| panic!("{series} in {text}"))
        };
        assert_eq!(value("trapezoid_things_total{kind=\"b\"}"), 2.0);
        assert_eq!(value("trapezoid_wait_seconds_sum"), 5.0);
        assert_eq!(value("trapezoid_wait_seconds_count"), 6.0);
        assert_eq!(value("trapezoid_wait_seconds_bucket{le=\"0.001\"}"), 3.0);
        assert_eq!(value("trapezoid_wait_seconds_bucket{le=\"+Inf\"}"), 6.0);
    }

    #[test]
    fn the_process_shows_itself() {
        let page = parse(&page(Reading::default()));
        let value = |series: &str| {
            page.get(series)
                .copied()
                .unwrap_or_else(|| panic!("{series} in {page:?}"))
        };
        assert!(value("process_resident_memory_bytes") > 100_000.0);
        assert!(value("process_cpu_seconds_total") >= 0.0);
        assert!(value("process_open_fds") >= 3.0);
        let started = value("process_start_time_seconds");
        let now = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .expect("after 1970");
        assert!(started > 1.6e9 && started <= now.as_secs_f64() + 2.0, "{started}");
        let version = env!("CARGO_PKG_VERSION");
        assert_eq!(
            value(&format!("trapezoid_build_info{{version=\"{version}\"}}")),
            1.0
        );
    }
}

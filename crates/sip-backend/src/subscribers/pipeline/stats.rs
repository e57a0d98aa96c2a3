//! Counters of the pipeline.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use sip_core::query::{Secrets, Unavailable};

use super::batcher::Batcher;
use super::breaker::State;
use crate::metrics::{self, Counter, Histogram, Sample};
use crate::subscribers::secrets::Reader;

/// Batch sizes up to each power of two. The time of a batch by size is fitted from them.
const CLASSES: [&str; 11] = [
    "size=\"1\"",
    "size=\"2\"",
    "size=\"4\"",
    "size=\"8\"",
    "size=\"16\"",
    "size=\"32\"",
    "size=\"64\"",
    "size=\"128\"",
    "size=\"256\"",
    "size=\"512\"",
    "size=\"1024\"",
];

#[derive(Debug, Default)]
struct Class {
    batches: Counter,
    rows: Counter,
    busy_us: Counter,
}

/// All counters of a store.
#[derive(Debug)]
pub(super) struct Stats {
    connections: AtomicUsize,
    found: Counter,
    unknown: Counter,
    unavailable: Counter,
    /// Questions refused because the queue was full.
    pub(super) refused: Counter,
    /// Questions that joined a flight.
    pub(super) joined: Counter,
    /// Questions with outdated secrets as their result.
    pub(super) stale: Counter,
    /// Look-ups that took too long.
    pub(super) timed_out: Counter,
    /// Failures of the database.
    pub(super) errors: Counter,
    /// Look-ups sent again on another connection, each time counted.
    pub(super) again: Counter,
    /// Batches that lost their connection.
    pub(super) lost: Counter,
    /// Connections made.
    pub(super) connected: Counter,
    batch: Histogram,
    wait: Histogram,
    busy: Histogram,
    latency: Histogram,
    classes: [Class; CLASSES.len()],
}

fn us(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

impl Stats {
    pub(super) fn new() -> Self {
        Self {
            connections: AtomicUsize::new(0),
            found: Counter::new(),
            unknown: Counter::new(),
            unavailable: Counter::new(),
            refused: Counter::new(),
            joined: Counter::new(),
            stale: Counter::new(),
            timed_out: Counter::new(),
            errors: Counter::new(),
            again: Counter::new(),
            lost: Counter::new(),
            connected: Counter::new(),
            batch: Histogram::new(metrics::BATCH),
            wait: Histogram::new(metrics::LATENCY_US),
            busy: Histogram::new(metrics::LATENCY_US),
            latency: Histogram::new(metrics::LATENCY_US),
            classes: Default::default(),
        }
    }

    /// Sets the configured number of connections.
    pub(super) fn set_connections(&self, connections: usize) {
        self.connections.store(connections, Ordering::Relaxed);
    }

    pub(super) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Counts a batch that is sent after its first question has waited `wait`.
    pub(super) fn sent(&self, wait: Duration, size: usize) {
        self.wait.observe_duration(wait, 1);
        self.batch.observe(size as u64, 1);
    }

    /// Counts a batch with its result.
    pub(super) fn carried(&self, busy: Duration, size: usize) {
        self.busy.observe_duration(busy, 1);
        let class = (size.max(1).next_power_of_two().trailing_zeros() as usize).min(CLASSES.len() - 1);
        if let Some(class) = self.classes.get(class) {
            class.batches.inc();
            class.rows.add(size as u64);
            class.busy_us.add(us(busy));
        }
    }

    /// Counts the result of a question.
    pub(super) fn answered(&self, after: Duration, result: &Result<Option<Secrets>, Unavailable>) {
        match result {
            Ok(Some(_)) => self.found.inc(),
            Ok(None) => self.unknown.inc(),
            Err(Unavailable) => self.unavailable.inc(),
        }
        self.latency.observe_duration(after, 1);
    }

    /// All metrics of the pipeline.
    pub(super) fn samples(&self, now: &Now, reader: &Reader) -> Vec<Sample> {
        let mut samples = self.counts(reader);
        samples.extend(self.histograms());
        samples.extend(state(now));
        samples.extend(self.by_size());
        samples
    }

    fn counts(&self, reader: &Reader) -> Vec<Sample> {
        const LOOKUPS: &str = "Look-ups of credentials in the store, by what came of them.";
        let lookups =
            |label, counter: &Counter| Sample::counter("credential_lookups", label, LOOKUPS, counter.get());
        let counter = |name, help, counter: &Counter| Sample::counter(name, "", help, counter.get());
        vec![
            lookups("result=\"found\"", &self.found),
            lookups("result=\"unknown\"", &self.unknown),
            lookups("result=\"unavailable\"", &self.unavailable),
            lookups("result=\"queue-full\"", &self.refused),
            counter(
                "credential_joins",
                "Queries for a subscriber that was being looked up already.",
                &self.joined,
            ),
            counter(
                "credential_stale_answers",
                "Queries served from outdated entries of the cache, as the store gave no result.",
                &self.stale,
            ),
            counter(
                "credential_timeouts",
                "Look-ups to which the store gave no result within the deadline.",
                &self.timed_out,
            ),
            counter(
                "credential_broken_hashes",
                "Values in the subscriber table that are no hash of their algorithm.",
                &reader.broken,
            ),
            counter(
                "credential_store_errors",
                "Errors of the subscriber database.",
                &self.errors,
            ),
            counter(
                "credential_asked_again",
                "Look-ups that had no result for a quarter of their time and went on another connection, too.",
                &self.again,
            ),
            counter(
                "credential_batches_lost",
                "Batches whose connection ended; their look-ups went again on another.",
                &self.lost,
            ),
            counter(
                "credential_connects",
                "Connections to the store that came up.",
                &self.connected,
            ),
        ]
    }

    fn histograms(&self) -> [Sample; 4] {
        [
            Sample::histogram(
                "credential_batch_size",
                "",
                "Look-ups sent together.",
                &self.batch,
            ),
            Sample::histogram(
                "credential_wait_microseconds",
                "",
                "From the first query of a batch to its sending.",
                &self.wait,
            ),
            Sample::histogram(
                "credential_batch_microseconds",
                "",
                "From the sending of a batch to its result.",
                &self.busy,
            ),
            Sample::histogram(
                "credential_lookup_microseconds",
                "",
                "From a worker's query to its result.",
                &self.latency,
            ),
        ]
    }

    /// Batches, look-ups and time by batch size: one metric for each.
    fn by_size(&self) -> impl Iterator<Item = Sample> {
        type Read = fn(&Class) -> u64;
        let metrics: [(&'static str, &'static str, Read); 3] = [
            (
                "credential_batches",
                "Batches completed, by size: up to this, and more than half of it.",
                |class| class.batches.get(),
            ),
            (
                "credential_batch_rows",
                "Look-ups in batches of this size.",
                |class| class.rows.get(),
            ),
            (
                "credential_batch_busy_microseconds",
                "From the sending to the result of batches of this size, added up.",
                |class| class.busy_us.get(),
            ),
        ];
        metrics.into_iter().flat_map(move |(name, help, read)| {
            CLASSES
                .into_iter()
                .zip(&self.classes)
                .map(move |(label, class)| Sample::counter(name, label, help, read(class)))
        })
    }
}

/// State of the queue at one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Now {
    queued: u64,
    under_way: u64,
    questions: u64,
    sessions: u64,
    state: State,
    opened: u64,
}

impl Now {
    pub(super) fn of(batcher: &Batcher) -> Self {
        Self {
            queued: batcher.queued() as u64,
            under_way: batcher.under_way() as u64,
            questions: batcher.questions() as u64,
            sessions: batcher.sessions() as u64,
            state: batcher.breaker().state(),
            opened: batcher.breaker().opened(),
        }
    }
}

fn state(now: &Now) -> Vec<Sample> {
    let gauge = |name, help, n| Sample::gauge(name, "", help, n);
    vec![
        gauge(
            "credential_queue",
            "Look-ups that wait for a connection to the store.",
            now.queued,
        ),
        gauge(
            "credential_in_flight",
            "Look-ups that were sent to the store and have no result yet.",
            now.under_way,
        ),
        gauge(
            "credential_waiting",
            "Queries that wait for the result of a look-up.",
            now.questions,
        ),
        gauge(
            "credential_connections",
            "Connections to the store that are up.",
            now.sessions,
        ),
        gauge(
            "credential_breaker",
            "0: the store is queried; 1: one batch tries whether it responds again; 2: it is not queried.",
            match now.state {
                State::Closed => 0,
                State::HalfOpen => 1,
                State::Open { .. } => 2,
            },
        ),
        Sample::counter(
            "credential_breaker_opened",
            "",
            "Times that the store was given up for a while.",
            now.opened,
        ),
    ]
}

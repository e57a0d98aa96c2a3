//! Metrics of the back-ends: plain atomics, read when metrics are scraped.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A count since the start.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// A counter at zero.
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// Adds one.
    pub fn inc(&self) {
        self.add(1);
    }

    /// The count.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A present value.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    /// Sets the value.
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// The value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Bounds of a histogram that counts durations, microseconds.
pub const LATENCY_US: &[u64] = &[
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 500_000, 1_000_000, 5_000_000,
];

/// Bounds of a histogram that counts batch sizes.
pub const BATCH: &[u64] = &[1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_024, 4_096, 16_384];

/// Values in classes, with their sum.
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [u64],
    counts: Box<[AtomicU64]>,
    sum: AtomicU64,
}

impl Histogram {
    /// A histogram with a class up to and including each bound (ascending), and one above.
    pub fn new(bounds: &'static [u64]) -> Self {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self {
            bounds,
            counts,
            sum: AtomicU64::new(0),
        }
    }

    /// Notes `value`, `times` times.
    pub fn observe(&self, value: u64, times: u64) {
        let class = self.bounds.partition_point(|bound| *bound < value);
        if let Some(count) = self.counts.get(class) {
            count.fetch_add(times, Ordering::Relaxed);
        }
        self.sum.fetch_add(value.saturating_mul(times), Ordering::Relaxed);
    }

    /// Notes a duration, in microseconds, `times` times.
    pub fn observe_duration(&self, duration: Duration, times: u64) {
        self.observe(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX), times);
    }

    /// Counts by class (not cumulative), and the sum.
    pub fn read(&self) -> HistogramValue {
        let counts = self
            .counts
            .iter()
            .map(|count| count.load(Ordering::Relaxed))
            .collect();
        HistogramValue {
            bounds: self.bounds,
            counts,
            sum: self.sum.load(Ordering::Relaxed),
        }
    }
}

/// A reading of a [`Histogram`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistogramValue {
    /// Upper bounds, inclusive.
    pub bounds: &'static [u64],
    /// Values in each class; one more than there are bounds.
    pub counts: Vec<u64>,
    /// Sum of all values.
    pub sum: u64,
}

/// A reading of one metric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A value that only grows.
    Counter(u64),
    /// A value that goes up and down.
    Gauge(u64),
    /// Values in classes. Names that end in `_microseconds` count microseconds.
    Histogram(HistogramValue),
}

/// One metric with its description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Name without the program's prefix and without `_total`.
    pub name: &'static str,
    /// Help text, one sentence.
    pub help: &'static str,
    /// Labels as Prometheus writes them between the braces; may be empty.
    pub labels: &'static str,
    /// The reading.
    pub value: Value,
}

impl Sample {
    pub(crate) const fn counter(
        name: &'static str,
        labels: &'static str,
        help: &'static str,
        n: u64,
    ) -> Self {
        Self {
            name,
            help,
            labels,
            value: Value::Counter(n),
        }
    }

    pub(crate) const fn gauge(name: &'static str, labels: &'static str, help: &'static str, n: u64) -> Self {
        Self {
            name,
            help,
            labels,
            value: Value::Gauge(n),
        }
    }

    pub(crate) fn histogram(
        name: &'static str,
        labels: &'static str,
        help: &'static str,
        histogram: &Histogram,
    ) -> Self {
        Self {
            name,
            help,
            labels,
            value: Value::Histogram(histogram.read()),
        }
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histogram_classes_are_inclusive_above() {
        let histogram = Histogram::new(&[10, 20]);
        histogram.observe(10, 1);
        histogram.observe(11, 2);
        histogram.observe(20, 1);
        histogram.observe(21, 1);
        let value = histogram.read();
        assert_eq!(value.counts, [1, 3, 1]);
        assert_eq!(value.sum, 10 + 22 + 20 + 21);
    }
}

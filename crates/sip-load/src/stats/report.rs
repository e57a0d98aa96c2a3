//! The report at the end of a run.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::{Stats, Timed};
use crate::plan::{Kind, Plan, via_name};

/// Most points of a distribution.
const POINTS: usize = 200;

/// A distribution of times, milliseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Quantiles {
    /// Number of values.
    pub count: u64,
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
    /// Largest value.
    pub max: f64,
    /// Cumulative distribution: milliseconds, and the share of values up to them, in (0, 1]; at most 200
    /// points.
    pub cdf: Vec<(f64, f64)>,
}

impl Quantiles {
    fn of(histogram: &Histogram<u64>) -> Self {
        let ms = |us: u64| us as f64 / 1000.0;
        let at = |quantile| ms(histogram.value_at_quantile(quantile));
        let count = histogram.len();
        if count == 0 {
            return Self::default();
        }
        let mut cdf: Vec<(f64, f64)> = Vec::new();
        let mut seen = 0;
        for value in histogram.iter_recorded() {
            seen += value.count_since_last_iteration();
            let share = seen as f64 / count as f64;
            let told = cdf.last().map_or(0.0, |(_, share)| *share);
            if seen == count || share - told >= 1.0 / (POINTS - 1) as f64 {
                cdf.push((ms(value.value_iterated_to()), share));
            }
        }
        Self {
            count,
            mean: histogram.mean() / 1000.0,
            p50: at(0.5),
            p90: at(0.9),
            p95: at(0.95),
            p99: at(0.99),
            p999: at(0.999),
            max: ms(histogram.max()),
            cdf,
        }
    }
}

/// One second of the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Second {
    /// Seconds since the start.
    pub t: u64,
    /// Number of calls that were meant to begin in this second.
    pub offered: u64,
    /// Number of calls that succeeded in this second.
    pub succeeded: u64,
    /// Number of calls that failed in this second.
    pub failed: u64,
}

/// State of the generator itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Generator {
    /// CPU time of this process while calls counted, seconds.
    pub cpu_s: f64,
    /// CPU time as a share of one core's.
    pub utilization: f64,
    /// Delay of the start of calls.
    pub lag_ms: Quantiles,
    /// Number of datagrams that the kernel dropped because our receive buffer was full.
    pub receive_drops: u64,
    /// Whether the generator was at its own limit. If so, the results are not the server's.
    pub saturated: bool,
    /// Why the generator counts as saturated.
    pub why: Option<String>,
}

/// The report of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Version of this program.
    pub version: &'static str,
    /// Kind of the calls.
    pub kind: Kind,
    /// Transport of the callers' end.
    pub transport: String,
    /// Address of the server.
    pub target: String,
    /// Planned rate at the start, calls per second.
    pub rate: f64,
    /// Time in which calls counted, seconds: the plan's, or less if the run was stopped.
    pub duration_s: f64,
    /// Time before it in which calls did not count, seconds.
    pub warmup_s: f64,
    /// Whether times between calls were random.
    pub poisson: bool,
    /// Number of calls that count.
    pub offered: u64,
    /// Number of calls that count and succeeded.
    pub succeeded: u64,
    /// Number of calls that count and failed.
    pub failed: u64,
    /// Rate of successes in the time that counts, calls per second, even if the call began before it.
    pub goodput: f64,
    /// Number of failures by cause.
    pub failures: BTreeMap<String, u64>,
    /// Number of messages by direction and name: `sent` without retransmissions, `received` with them.
    pub messages: BTreeMap<&'static str, BTreeMap<String, u64>>,
    /// Number of messages that were sent again, by name.
    pub retransmissions: BTreeMap<String, u64>,
    /// Number of requests that were received again, by name.
    pub repeated: BTreeMap<String, u64>,
    /// Number of answered calls without ACK.
    pub unacknowledged: u64,
    /// Number of connections that failed or were lost, by reason.
    pub lost_connections: BTreeMap<String, u64>,
    /// Number of received messages that were ignored, by reason.
    pub ignored: BTreeMap<&'static str, u64>,
    /// Times from the planned start of a request or connection, by name.
    pub response_ms: BTreeMap<&'static str, Quantiles>,
    /// State of the generator itself.
    pub generator: Generator,
    /// Calls of each second.
    pub series: Vec<Second>,
}

/// Limit of the 99th percentile of the delay, milliseconds. A busy host delays a process by less.
const LATE_MS: f64 = 50.0;
/// Limit of the share of a core. Beyond it a process has no room for peaks.
const BUSY: f64 = 0.95;

impl Report {
    pub(crate) fn new(plan: &Plan, stats: &Stats, cpu_s: f64, receive_drops: u64) -> Self {
        // The time is less than the plan's if the run was stopped.
        let window = &stats.window;
        let duration_s = window.end.saturating_sub(window.start) as f64 / 1e6;
        let a_second = |amount: f64| {
            if duration_s > 0.0 {
                amount / duration_s
            } else {
                0.0
            }
        };
        let failures: BTreeMap<String, u64> = stats.failures.iter().map(|(c, n)| (c.name(), *n)).collect();
        let times = Timed::ALL.iter().zip(&stats.times).filter(|(_, h)| !h.is_empty());
        let messages = [("sent", stats.sent.named()), ("received", stats.received.named())];
        let mut report = Self {
            version: env!("CARGO_PKG_VERSION"),
            kind: plan.kind,
            transport: via_name(plan.transport).to_ascii_lowercase(),
            target: plan.target.to_string(),
            rate: plan.offered.rate,
            duration_s,
            warmup_s: plan.warmup.as_secs_f64(),
            poisson: plan.offered.poisson,
            offered: stats.offered,
            succeeded: stats.succeeded,
            failed: stats.failures.values().sum(),
            goodput: a_second(stats.completed as f64),
            failures,
            messages: messages.into(),
            retransmissions: stats.resent.named(),
            repeated: stats.repeated.named(),
            unacknowledged: stats.unacknowledged,
            lost_connections: stats.lost_connections.clone(),
            ignored: stats.ignored.clone(),
            response_ms: times.map(|((_, name), h)| (*name, Quantiles::of(h))).collect(),
            generator: Generator {
                cpu_s,
                utilization: a_second(cpu_s),
                lag_ms: Quantiles::of(&stats.lag),
                receive_drops,
                ..Generator::default()
            },
            series: stats.seconds.clone(),
        };
        report.generator.why = report.own_limit(stats.own_limit.as_deref());
        report.generator.saturated = report.generator.why.is_some();
        report
    }

    fn own_limit(&self, ran_out: Option<&str>) -> Option<String> {
        let own = &self.generator;
        let full = self.failures.get("generator full").copied().unwrap_or(0);
        let told = if let Some(why) = ran_out {
            format!("it could open no more connections ({why})")
        } else if own.lag_ms.p99 > LATE_MS {
            format!("calls began {:.1} ms late (99th percentile)", own.lag_ms.p99)
        } else if own.utilization > BUSY {
            format!(
                "its core was busy for {:.0} % of the time",
                100.0 * own.utilization
            )
        } else if own.receive_drops > 0 {
            format!("{} datagrams found its receive buffer full", own.receive_drops)
        } else if full > 0 {
            format!("{full} calls found no room in it")
        } else {
            return None;
        };
        Some(told)
    }

    /// Share of successes among the calls that count.
    pub fn success_ratio(&self) -> f64 {
        self.succeeded as f64 / (self.offered as f64).max(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distribution_is_written_with_few_points() {
        let mut histogram = super::super::histogram();
        for us in 1..=100_000u64 {
            histogram.saturating_record(us);
        }
        let q = Quantiles::of(&histogram);
        assert_eq!(q.count, 100_000);
        for (is, ms) in [
            (q.mean, 50.0),
            (q.p50, 50.0),
            (q.p90, 90.0),
            (q.p99, 99.0),
            (q.max, 100.0),
        ] {
            assert!((is / ms - 1.0).abs() < 0.01, "{is} {ms}");
        }
        assert!(q.cdf.len() <= POINTS);
        assert!(q.cdf.windows(2).all(|w| w[0].0 < w[1].0 && w[0].1 < w[1].1));
        assert_eq!(q.cdf.last().unwrap().1, 1.0);
        assert_eq!(Quantiles::of(&super::super::histogram()), Quantiles::default());
    }
}

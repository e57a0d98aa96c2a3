//! Figures of a server's workers: how calls spread over them, and what their CPU time goes into.

use serde::{Deserialize, Serialize};

use crate::cpu::{Used, ratio};
use crate::load::Report;
use crate::statistics::mean;

/// What names of the workers' threads begin with.
pub(crate) const WORKER: &str = "worker-";
/// Seconds for which the split is off, or on, in each turn.
pub(crate) const SPLIT_TURN_S: f64 = 0.5;

/// Seconds of load in which the split is off and on in so many turns, then on for `seconds`. To switch takes time, too.
pub(crate) fn split_load_s(turns: u32, seconds: u32) -> f64 {
    const SWITCH_S: f64 = 0.1;
    const SPARE_S: f64 = 2.0;
    2.0 * f64::from(turns) * (SPLIT_TURN_S + SWITCH_S) + f64::from(seconds) + SPARE_S
}

/// Calls on a server with some workers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// What the generator reports.
    pub load: Report,
    /// CPU of the server, while the load was counted.
    pub server: Used,
    /// Requests that each worker received meanwhile, in the order of their numbers.
    pub requests: Vec<f64>,
    /// Responses, likewise.
    pub responses: Vec<f64>,
}

impl Spread {
    /// Microseconds of the server's CPU for each call.
    pub fn us(&self) -> f64 {
        self.server.us_each(self.load.goodput)
    }

    /// Part of the calls that were completed.
    pub fn completed(&self) -> f64 {
        self.load.succeeded_part()
    }

    /// Seconds of CPU of each worker's thread, in the order of their numbers.
    pub fn cpu(&self) -> Vec<f64> {
        let threads = self.server.threads.iter();
        let workers = threads.filter(|(name, _)| name.starts_with(WORKER));
        workers.map(|(_, seconds)| *seconds).collect()
    }
}

/// Per cent of the sum that each part has.
pub fn shares(parts: &[f64]) -> Vec<f64> {
    let all: f64 = parts.iter().sum();
    parts.iter().map(|part| 100.0 * ratio(*part, all)).collect()
}

/// CPU time of one component, as the server says it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// Its name.
    pub component: String,
    /// Seconds.
    pub cpu_seconds: f64,
}

/// What the split of CPU time says, beside the CPU time of the worker's thread, and what it costs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SplitTime {
    /// What the generator reports.
    pub load: Report,
    /// Share of a CPU that the worker used with the split off, and with it on, in each turn.
    pub turns: Vec<(f64, f64)>,
    /// Seconds of CPU of the worker's thread, by the kernel, while the split stayed on.
    pub thread_s: f64,
    /// Seconds of each component in that time, in the server's order.
    pub parts: Vec<Part>,
    /// Turns of the worker's loop that were measured in that time.
    pub measured: u64,
}

impl SplitTime {
    /// The sum of the components, beside the CPU time of the thread.
    pub fn accounted(&self) -> f64 {
        ratio(
            self.parts.iter().map(|part| part.cpu_seconds).sum(),
            self.thread_s,
        )
    }

    /// Share of a CPU that the worker used with the split off.
    pub fn off(&self) -> f64 {
        mean(&self.turns.iter().map(|(off, _)| *off).collect::<Vec<_>>())
    }

    /// Ratios of what the worker used with the split on to what it used with it off.
    pub fn ratios(&self) -> Vec<f64> {
        let turns = self.turns.iter();
        turns.map(|(off, on)| ratio(*on, *off)).collect()
    }

    /// Per cent of the sum that each component has.
    pub fn shares(&self) -> Vec<(&str, f64)> {
        let seconds: Vec<f64> = self.parts.iter().map(|part| part.cpu_seconds).collect();
        let names = self.parts.iter().map(|part| part.component.as_str());
        names.zip(shares(&seconds)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn shares_are_of_the_sum() {
        assert_eq!(shares(&[1.0, 3.0]), [25.0, 75.0]);
        assert_eq!(shares(&[0.0, 0.0]), [0.0, 0.0]);
        assert_eq!(shares(&[]), [0.0; 0]);
    }

    #[test]
    fn only_threads_of_workers_count_as_such() {
        let spread = Spread {
            server: Used {
                threads: BTreeMap::from([
                    ("worker-1".to_owned(), 2.0),
                    ("http".to_owned(), 9.0),
                    ("worker-0".to_owned(), 1.0),
                ]),
                ..Used::default()
            },
            ..Spread::default()
        };
        assert_eq!(spread.cpu(), [1.0, 2.0]);
    }

    #[test]
    fn what_a_split_accounts_for_and_costs() {
        let part = |component: &str, cpu_seconds: f64| Part {
            component: component.to_owned(),
            cpu_seconds,
        };
        let split = SplitTime {
            turns: vec![(0.5, 0.55), (0.4, 0.4)],
            thread_s: 5.0,
            parts: vec![part("send", 3.6), part("parse", 1.2)],
            ..SplitTime::default()
        };
        assert!((split.accounted() - 0.96).abs() < 1e-9);
        assert!((split.off() - 0.45).abs() < 1e-9);
        let ratios = split.ratios();
        assert!((ratios[0] - 1.1).abs() < 1e-9 && (ratios[1] - 1.0).abs() < 1e-9);
        let shares = split.shares();
        assert_eq!((shares[0].0, shares[1].0), ("send", "parse"));
        assert!((shares[0].1 - 75.0).abs() < 1e-9, "{shares:?}");
    }
}

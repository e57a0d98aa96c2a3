//! `results.json`: everything that was measured, and all that one must know to believe it.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::case::{LookUps, Purpose, Run, Server, Setup};
use crate::cpu::Used;
use crate::failure::{Failure, Outcome};
use crate::load::Report;
use crate::machine::{Machine, Program};
use crate::statistics::{Judgement, Look, Peak, Verdict};
use crate::steps::{Measured, Pace};

/// Version of this file's form; it grows when a reader of the last one would misread it.
pub const SCHEMA: u32 = 1;

/// The CPU that generator, database and relay share counts as full from here on: some of it goes into what they are
/// not charged for.
const OTHERS_FULL: f64 = 0.93;

/// One experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Which experiment.
    pub experiment: String,
    /// Whether in its quick form, which checks shapes only.
    pub quick: bool,
    /// Where, with what and when.
    pub provenance: Provenance,
    /// Each run.
    pub rows: Vec<Row>,
    /// Each search for a peak.
    pub peaks: Vec<Found>,
    /// Each step, of experiments in steps.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<Measured>,
    /// How long the steps took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pace: Option<Pace>,
    /// What the plan says of settings of look-ups.
    pub predictions: Vec<Prediction>,
    /// What was checked.
    pub checks: Vec<Check>,
    /// What could not be measured, and why.
    pub absent: Vec<Absent>,
    /// What else a reader must know.
    pub notes: Vec<String>,
}

/// Where, with what and when figures were made.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Provenance {
    /// Version of this program.
    pub version: String,
    /// Its commit, or `unknown`.
    pub commit: String,
    /// How it was called.
    pub command_line: Vec<String>,
    /// When it began, in UTC.
    pub began: String,
    /// When it ended, in UTC.
    pub ended: String,
    /// What the random times of all loads follow from.
    pub seed: u64,
    /// The machine.
    pub machine: Machine,
    /// Others' programs that are installed.
    pub programs: Vec<Program>,
    /// CPU of the server that is measured.
    pub server_cpu: usize,
    /// CPU of all else.
    pub other_cpu: usize,
    /// Milliseconds for a fixed piece of work on the server's CPU, before.
    pub probe_before_ms: f64,
    /// The same, after.
    pub probe_after_ms: f64,
    /// How quotas of CPU were set.
    pub quota: Option<String>,
}

/// One run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The server and its configuration.
    pub setup: Setup,
    /// The load.
    pub run: Run,
    /// What the generator's random times follow from.
    pub seed: u64,
    /// Seconds since the experiment began.
    pub at_s: f64,
    /// The outcome.
    pub verdict: Verdict,
    /// What the generator reports.
    pub load: Report,
    /// CPU of the server, while the load was counted.
    pub server: Used,
    /// CPU of the database, likewise.
    pub database: Option<Used>,
    /// CPU of the relay before the database, likewise.
    pub relay: Option<Used>,
    /// What went over the connections to the database.
    pub wire: Option<Wire>,
    /// Batches of look-ups.
    pub batches: Option<Batches>,
    /// Seconds of CPU of the server's components, by its own counters: name with labels, and what it grew by.
    pub components: BTreeMap<String, f64>,
    /// Seconds between the two readings of its own counters.
    pub counters_s: f64,
    /// Datagrams that overflowed the server's buffer, warm-up included.
    pub drops: u64,
    /// Milliseconds for a fixed piece of work on the server's CPU, just before.
    pub probe_ms: Option<f64>,
}

/// What went over connections, as far as the relay counts it, over the whole run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Wire {
    /// Towards the database.
    pub queries: Direction,
    /// From it.
    pub answers: Direction,
}

/// One direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Direction {
    /// Payload, bytes.
    pub bytes: f64,
    /// With headers of Ethernet, IP and TCP, as the relay estimates them.
    pub wire_bytes: f64,
    /// Seconds over which it was counted.
    pub seconds: f64,
}

impl Direction {
    /// Kilobits a second on the wire.
    pub fn kbit_s(&self) -> f64 {
        crate::cpu::ratio(self.wire_bytes * 8.0 / 1e3, self.seconds)
    }
}

/// Batches of look-ups, by the server's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Batches {
    /// How many.
    pub count: f64,
    /// Look-ups in them.
    pub rows: f64,
    /// Time from sending to the answer, summed, microseconds.
    pub busy_us: f64,
}

impl Row {
    /// Microseconds of the server's CPU for each completed operation.
    pub fn server_us(&self) -> f64 {
        self.server.us_each(self.load.goodput)
    }

    /// The part of it in user mode.
    pub fn user_us(&self) -> f64 {
        self.server_us() * self.server.user_share()
    }

    /// Microseconds of the database's CPU for each completed operation.
    pub fn database_us(&self) -> Option<f64> {
        self.database.as_ref().map(|used| used.us_each(self.load.goodput))
    }

    /// Bytes on the wire to and from the database for each completed operation.
    pub fn wire_bytes_each(&self) -> Option<(f64, f64)> {
        let wire = self.wire?;
        let each = |way: Direction| {
            crate::cpu::ratio(crate::cpu::ratio(way.wire_bytes, way.seconds), self.load.goodput)
        };
        Some((each(wire.queries), each(wire.answers)))
    }

    /// Whether its rate was below the peak, and the same as that of others.
    pub fn is_steady(&self) -> bool {
        matches!(self.run.purpose, Purpose::Fixed | Purpose::Duel)
    }

    /// Whether nearly all operations succeeded, so that CPU for each of them means something.
    pub fn is_sound(&self) -> bool {
        self.load.offered > 0 && self.load.failed_part() < 0.05
    }

    /// Whether nearly all operations also completed at the rate at which they were offered. A server that falls
    /// behind serves its callers' retransmissions, and its CPU for each operation says little.
    pub fn keeps_up(&self) -> bool {
        self.is_sound() && self.load.completed_part() > 0.95
    }

    /// Look-ups in a batch, in the mean.
    pub fn mean_batch(&self) -> Option<f64> {
        self.batches
            .filter(|batches| batches.count > 0.0)
            .map(|batches| batches.rows / batches.count)
    }

    /// Milliseconds from sending a batch to its answer, in the mean.
    pub fn batch_ms(&self) -> Option<f64> {
        self.batches
            .filter(|batches| batches.count > 0.0)
            .map(|batches| batches.busy_us / batches.count / 1e3)
    }

    /// Shares of the CPU that generator, database and relay have in common.
    pub fn others_utilization(&self) -> f64 {
        let others = [&self.database, &self.relay].into_iter().flatten();
        self.load.generator.utilization + others.map(Used::utilization).sum::<f64>()
    }

    /// Whether what is beside the server had no room left: the server may carry more.
    pub fn others_are_full(&self) -> bool {
        self.load.generator.saturated || self.others_utilization() >= OTHERS_FULL
    }

    /// Whether the server had no room left.
    pub fn server_is_full(&self) -> bool {
        self.server.utilization() >= 0.95 * self.setup.quota.unwrap_or(1.0)
    }

    /// Whether CPU was measured for a good part of the run. On a busy machine the first reading comes late.
    pub fn is_measured(&self) -> bool {
        self.server.wall_s >= self.run.duration_s / 4.0
    }

    /// The verdict, from that of the generator alone. A load that fails while the server is full is too much
    /// for the server, also if others are full. A load that fails while only others are full shows nothing of
    /// the server.
    pub fn judged(&self, by_generator: Verdict) -> Verdict {
        match by_generator {
            _ if !self.is_measured() => Verdict::GeneratorFull,
            Verdict::GeneratorFull if self.server_is_full() => Verdict::Failed,
            Verdict::Failed if self.others_are_full() && !self.server_is_full() => Verdict::GeneratorFull,
            Verdict::Carried | Verdict::Failed | Verdict::GeneratorFull => by_generator,
        }
    }

    /// What was full: the generator, the server, both, the database, the other CPU, or none.
    pub fn saturated(&self) -> &'static str {
        if self.load.generator.saturated && self.server_is_full() {
            "both"
        } else if self.load.generator.saturated {
            "generator"
        } else if self.server_is_full() {
            "server"
        } else if self
            .database
            .as_ref()
            .is_some_and(|used| used.utilization() > 0.9)
        {
            "database"
        } else if self.others_are_full() {
            "the other CPU"
        } else {
            "none"
        }
    }
}

/// A search for a peak.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Found {
    /// The server and its configuration.
    pub setup: Setup,
    /// Which repetition, from 1.
    pub round: u32,
    /// The peak; absent: nothing that was offered was carried.
    pub peak: Option<Peak>,
    /// Where it was looked for.
    pub looks: Vec<Look>,
}

/// What the plan says of one setting.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// The setting.
    pub look_ups: LookUps,
    /// Its peak, calls a second.
    pub peak: f64,
}

/// Something that must hold of the figures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// What.
    pub name: String,
    /// Whether it does; files of earlier versions do not say.
    #[serde(default)]
    pub judgement: Judgement,
    /// The figures.
    pub figures: String,
}

/// Something that could not be measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Absent {
    /// What.
    pub what: String,
    /// Why.
    pub why: String,
}

impl Results {
    /// Nothing yet.
    pub fn new(experiment: &str, quick: bool) -> Self {
        Self {
            schema: SCHEMA,
            experiment: experiment.to_owned(),
            quick,
            provenance: Provenance::default(),
            rows: Vec::new(),
            peaks: Vec::new(),
            steps: Vec::new(),
            pace: None,
            predictions: Vec::new(),
            checks: Vec::new(),
            absent: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// How many runs and steps have been made.
    pub(crate) fn made(&self) -> usize {
        self.rows.len() + self.steps.len()
    }

    /// Runs of one setup for one purpose.
    pub fn of(&self, setup: &Setup, purpose: Purpose) -> Vec<&Row> {
        let rows = self.rows.iter();
        rows.filter(|row| row.setup == *setup && row.run.purpose == purpose)
            .collect()
    }

    /// Runs of one setup below its peak, at rates that others were offered, too.
    pub fn steady(&self, setup: &Setup) -> Vec<&Row> {
        let rows = self.rows.iter();
        rows.filter(|row| row.setup == *setup && row.is_steady())
            .collect()
    }

    /// A figure of two setups that took turns, in pairs: at the highest rate that both were offered, of each round.
    /// Where operations failed it means nothing, and the pair is left out.
    pub fn pairs(&self, first: &Setup, second: &Setup, figure: impl Fn(&Row) -> f64) -> Vec<(f64, f64)> {
        let (firsts, seconds) = (self.steady(first), self.steady(second));
        let both = firsts.iter().map(|row| row.run.rate).filter(|rate| {
            let mut others = seconds.iter();
            others.any(|other| other.run.rate.total_cmp(rate).is_eq())
        });
        let Some(rate) = both.max_by(f64::total_cmp) else {
            return Vec::new();
        };
        let at = |row: &Row| row.run.rate.total_cmp(&rate).is_eq() && row.is_sound();
        let mut pairs = Vec::new();
        for row in firsts.iter().filter(|row| at(row)) {
            let mut partners = seconds.iter().filter(|other| {
                at(other) && (other.run.purpose, other.run.round) == (row.run.purpose, row.run.round)
            });
            pairs.extend(partners.next().map(|other| (figure(row), figure(other))));
        }
        pairs
    }

    /// Setups that have runs for a purpose, in the order of their first.
    pub fn setups(&self, purpose: Purpose) -> Vec<Setup> {
        let mut found: Vec<Setup> = Vec::new();
        for row in self.rows.iter().filter(|row| row.run.purpose == purpose) {
            if !found.contains(&row.setup) {
                found.push(row.setup);
            }
        }
        found
    }

    /// The peaks of one setup, in the order of their rounds.
    pub fn peaks_of(&self, setup: &Setup) -> Vec<f64> {
        let found = self.peaks.iter().filter(|found| found.setup == *setup);
        found
            .filter_map(|found| Some(found.peak.as_ref()?.rate))
            .collect()
    }

    /// The middle one of them.
    pub fn peak(&self, setup: &Setup) -> Option<f64> {
        crate::statistics::median(&self.peaks_of(setup))
    }

    /// Whether a peak of this setup is only a lower bound.
    pub fn is_at_least(&self, setup: &Setup) -> bool {
        let mut found = self.peaks.iter().filter(|found| found.setup == *setup);
        found.any(|found| found.peak.as_ref().is_some_and(|peak| peak.at_least))
    }

    /// The median of a figure over runs; `None` without runs.
    pub fn median(rows: &[&Row], figure: impl Fn(&Row) -> f64) -> Option<f64> {
        let values: Vec<f64> = rows.iter().map(|row| figure(row)).collect();
        crate::statistics::median(&values)
    }

    /// The servers that took part.
    pub fn servers(&self) -> Vec<Server> {
        let mut found = Vec::new();
        for row in &self.rows {
            if !found.contains(&row.setup.server) {
                found.push(row.setup.server);
            }
        }
        found
    }

    /// What warns a reader, from the figures themselves.
    pub fn warnings(&self) -> Vec<String> {
        let mut found = Vec::new();
        let steps = self.steps.iter().filter_map(|step| step.probe_ms);
        let probes: Vec<f64> = self
            .rows
            .iter()
            .filter_map(|row| row.probe_ms)
            .chain(steps)
            .collect();
        let least = probes.iter().copied().fold(f64::INFINITY, f64::min);
        let most = probes.iter().copied().fold(0.0, f64::max);
        if most > 1.15 * least {
            found.push(format!(
                "the speed of the server's CPU varied by {:.0} % between the runs: absolute figures are as uncertain",
                100.0 * (most / least - 1.0)
            ));
        }
        let full = self.rows.iter().filter(|row| row.others_are_full()).count();
        if full > 0 {
            found.push(format!(
                "in {full} of {} runs the CPU of the generator was full: times there are partly its own, and a peak that it \
                 ended is \"at least\"",
                self.rows.len()
            ));
        }
        let dropped: u64 = self.rows.iter().map(|row| row.drops).sum();
        if dropped > 0 {
            found.push(format!(
                "{dropped} datagrams overflowed servers' receive buffers, in runs beyond or near their peaks"
            ));
        }
        found.extend(crate::experiments::steps::doubts(&self.steps));
        found
    }

    /// Writes `results.json` into a directory.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&self, directory: &Path) -> Outcome<()> {
        let path = directory.join("results.json");
        let text = serde_json::to_string_pretty(self).map_err(|error| Failure::failed("results", error))?;
        // Whatever ends the lab meanwhile, the last file is whole.
        let new = directory.join("results.json.new");
        let written = std::fs::write(&new, text + "\n").and_then(|()| std::fs::rename(&new, &path));
        written.map_err(|error| Failure::failed(path.display(), error))
    }

    /// Reads a `results.json`.
    ///
    /// # Errors
    /// It cannot be read, or is of another version.
    pub fn read(path: &Path) -> Outcome<Self> {
        let failed = |error: &dyn std::fmt::Display| Failure::failed(path.display(), error);
        let text = std::fs::read_to_string(path).map_err(|error| failed(&error))?;
        let found: Self = serde_json::from_str(&text).map_err(|error| failed(&error))?;
        if found.schema == SCHEMA {
            Ok(found)
        } else {
            Err(Failure::Usage(format!(
                "{}: its form is version {}, this program reads {SCHEMA}",
                path.display(),
                found.schema
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::synthetic::row;

    #[test]
    fn what_failed_is_laid_at_whose_cpu_was_full() {
        // 10 s of the server's CPU in 10 s, or a tenth of it.
        let (full, idle) = (row(10_000.0, 100.0), row(10_000.0, 10.0));
        let with = |row: &Row, generator: f64, saturated: bool| {
            let mut row = row.clone();
            row.load.generator.utilization = generator;
            row.load.generator.saturated = saturated;
            row
        };
        // Its CPU was read for a moment only.
        let mut glimpsed = with(&idle, 0.5, false);
        (glimpsed.server.wall_s, glimpsed.server.total_s) = (0.001, 0.0);
        use Verdict::{Carried, Failed, GeneratorFull};
        for (row, by_generator, verdict, who) in [
            (with(&full, 0.5, false), Failed, Failed, "server"),
            (with(&full, 0.96, true), GeneratorFull, Failed, "both"),
            (with(&full, 0.96, true), Carried, Carried, "both"),
            (with(&idle, 0.96, true), GeneratorFull, GeneratorFull, "generator"),
            (with(&idle, 0.94, false), Failed, GeneratorFull, "the other CPU"),
            (with(&idle, 0.5, false), Failed, Failed, "none"),
            (glimpsed, Carried, GeneratorFull, "none"),
        ] {
            assert_eq!((row.judged(by_generator), row.saturated()), (verdict, who));
        }
        let mut shared = with(&idle, 0.4, false);
        (shared.database, shared.relay) = (Some(full.server.clone()), None);
        assert_eq!(shared.judged(Failed), GeneratorFull);
    }

    #[test]
    fn pairs_are_of_one_round_at_the_highest_rate_of_both() {
        let mut results = Results::new("transport", true);
        let one = row(1.0, 1.0).setup;
        let other = Setup {
            server: Server::Floor,
            ..one
        };
        for (setup, purpose, round, rate, us) in [
            (one, Purpose::Duel, 1, 1_000.0, 5.0),
            (other, Purpose::Duel, 1, 1_000.0, 6.0),
            (one, Purpose::Duel, 1, 2_000.0, 10.0),
            (other, Purpose::Duel, 1, 2_000.0, 20.0),
            (other, Purpose::Duel, 2, 2_000.0, 22.0),
            (one, Purpose::Duel, 2, 2_000.0, 11.0),
            // Alone in its round, alone at its rate, for another purpose, and one in which calls failed.
            (one, Purpose::Duel, 3, 2_000.0, 12.0),
            (one, Purpose::Duel, 1, 3_000.0, 9.0),
            (other, Purpose::Fixed, 3, 2_000.0, 24.0),
            (one, Purpose::Duel, 4, 2_000.0, 13.0),
            (other, Purpose::Duel, 4, 2_000.0, 0.0),
        ] {
            let mut row = row(rate, us);
            (row.setup, row.run.purpose, row.run.round) = (setup, purpose, round);
            if us == 0.0 {
                row.load.failed = row.load.offered;
            }
            results.rows.push(row);
        }
        let pairs = results.pairs(&one, &other, |row| row.server_us().round());
        assert_eq!(pairs, [(10.0, 20.0), (11.0, 22.0)]);
        assert_eq!(results.pairs(&other, &one, Row::server_us).len(), 2);
        let unmeasured = Setup {
            quota: Some(0.5),
            ..one
        };
        assert!(results.pairs(&one, &unmeasured, Row::server_us).is_empty());
    }

    #[test]
    fn a_check_of_an_earlier_version_is_undecided() {
        let text = r#"{"name": "a", "holds": true, "figures": "1 and 2"}"#;
        let check: Check = serde_json::from_str(text).unwrap();
        assert_eq!(check.judgement, Judgement::Undecided);
    }
}

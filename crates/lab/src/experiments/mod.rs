//! The experiments: data and small code over a [`Bench`], so that all of it is tested without servers.

pub(crate) mod batching;
pub(crate) mod checks;
pub(crate) mod connections;
pub(crate) mod memory;
pub(crate) mod overload;
pub(crate) mod peers;
pub(crate) mod pings;
pub(crate) mod split;
pub(crate) mod steps;
#[cfg(test)]
pub(crate) mod synthetic;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod transport;
pub(crate) mod workers;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::case::{Purpose, Run, Setup};
use crate::failure::{Failure, Outcome};
use crate::load::Criterion;
use crate::results::{Found, Results, Row};
use crate::station::Bench;
use crate::statistics::{Limits, Seen, search};
use crate::steps::{Measured, Pace};

/// Between two times that results are written while an experiment runs.
const SAVE: Duration = Duration::from_secs(30);

/// A setup that takes turns with others: its rounds, and at how many operations a second.
pub(crate) type Turn = (Setup, u32, f64);

/// A stall delays operations, and loses few: when as many fail the load is too much.
const BEYOND_DOUBT: f64 = 0.1;

/// How long and how often everything is measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Scale {
    /// The quick form: shapes only.
    pub quick: bool,
    /// Seconds of a look for a peak.
    pub look_s: f64,
    /// Seconds of every other run; of those in turn a part, in the quick form.
    pub run_s: f64,
    /// Seconds before what is counted of each run; before those in turn less, in the quick form.
    pub warmup_s: f64,
    /// Looks for a peak, at most.
    pub looks: usize,
    /// Repetitions of peaks and of runs at fixed rates.
    pub repeats: u32,
    /// Rounds in which servers take turns, in `peers`.
    pub rounds: u32,
    /// Rounds in which one worker and two take turns, in `workers`: they differ by little.
    pub worker_rounds: u32,
    /// Only cases or settings with one of these words in their name; none: all.
    pub only: Vec<String>,
    /// Milliseconds to the database and back, where one is far away.
    pub rtt_ms: f64,
}

impl Scale {
    /// For figures.
    pub fn full() -> Self {
        Self {
            quick: false,
            look_s: 4.0,
            run_s: 8.0,
            warmup_s: 1.0,
            looks: 18,
            repeats: 3,
            rounds: 5,
            worker_rounds: 7,
            only: Vec::new(),
            rtt_ms: 30.0,
        }
    }

    /// For shapes, within half a minute where `make test` asks for them.
    pub fn quick() -> Self {
        Self {
            quick: true,
            look_s: 2.0,
            run_s: 1.5,
            warmup_s: 0.5,
            looks: 4,
            repeats: 2,
            rounds: 2,
            worker_rounds: 2,
            only: Vec::new(),
            rtt_ms: 30.0,
        }
    }

    /// Of these, those that are asked for.
    pub(crate) fn wanted<T: Copy>(&self, all: &[T], name: impl Fn(&T) -> String) -> Outcome<Vec<T>> {
        let found: Vec<T> = all.iter().filter(|one| self.wants(&name(one))).copied().collect();
        if found.is_empty() {
            let names: Vec<String> = all.iter().map(name).collect();
            return Err(Failure::Usage(format!(
                "--only {}: no case has one of these in its name; there are:\n  {}",
                self.only.join(","),
                names.join("\n  ")
            )));
        }
        Ok(found)
    }

    /// Whether a case or setting is asked for.
    pub(crate) fn wants(&self, name: &str) -> bool {
        let name = name.to_lowercase();
        self.only.is_empty() || self.only.iter().any(|word| name.contains(&word.to_lowercase()))
    }

    pub(crate) fn run(&self, purpose: Purpose, round: u32, rate: f64) -> Run {
        let (warmup_s, duration_s) = match purpose {
            Purpose::Look => (self.warmup_s, self.look_s),
            // Of the same time, many short runs in turn tell more than few long ones.
            Purpose::Duel if self.quick => (0.3 * self.warmup_s, self.run_s / 3.0),
            // What is not carried is queued, and to be worked off before the next.
            Purpose::Beyond => (0.3, (self.run_s / 4.0).max(1.0)),
            Purpose::Fixed
            | Purpose::Curve
            | Purpose::Duel
            | Purpose::Near
            | Purpose::Equal
            | Purpose::Rare => (self.warmup_s, self.run_s),
        };
        Run {
            purpose,
            round,
            rate,
            warmup_s,
            duration_s,
            // What has not ended by then was not carried, and the next run need not wait for its time-out.
            drain_s: if purpose == Purpose::Look || self.quick {
                4.0
            } else {
                10.0
            },
            criterion: Criterion::PAPERS,
        }
    }

    /// Seconds that turns take.
    pub(crate) fn seconds_in_turn(&self, turns: &[Turn]) -> f64 {
        let runs: u32 = turns.iter().map(|(_, rounds, _)| rounds).sum();
        f64::from(runs) * self.seconds(Purpose::Duel)
    }

    /// Seconds that a run takes, starts of servers aside.
    pub(crate) fn seconds(&self, purpose: Purpose) -> f64 {
        let run = self.run(purpose, 1, 1.0);
        run.warmup_s + run.duration_s + 0.8
    }
}

/// An experiment that is being made.
pub(crate) struct Session<'a> {
    pub(crate) bench: &'a mut dyn Bench,
    pub(crate) results: &'a mut Results,
    pub(crate) scale: &'a Scale,
    /// Runs of an earlier time that this one goes on with, in their order.
    earlier: VecDeque<Row>,
    /// Steps of an earlier time, and how long they took.
    earlier_steps: (Vec<Measured>, Option<Pace>),
    /// Where results are written while the experiment runs; absent: nowhere.
    pub(crate) out: Option<PathBuf>,
    saved: Instant,
}

impl<'a> Session<'a> {
    /// A new one.
    pub(crate) fn new(bench: &'a mut dyn Bench, results: &'a mut Results, scale: &'a Scale) -> Self {
        Self {
            bench,
            results,
            scale,
            earlier: VecDeque::new(),
            earlier_steps: (Vec::new(), None),
            out: None,
            saved: Instant::now(),
        }
    }

    /// Goes on with an experiment that ended early: its runs and steps are not made again.
    pub(crate) fn go_on(&mut self, earlier: Results) {
        let text = format!(
            "{} {} are those of {}, which ended early; the others were made later",
            earlier.made(),
            if earlier.steps.is_empty() { "runs" } else { "steps" },
            earlier.provenance.began
        );
        self.results.notes.push(text);
        self.results.predictions = earlier.predictions;
        self.earlier_steps = (earlier.steps, earlier.pace);
        self.earlier = earlier.rows.into();
    }

    /// One run; its row is kept.
    pub(crate) fn run(&mut self, setup: &Setup, run: &Run) -> Outcome<Row> {
        let row = match self.made_earlier(setup, run) {
            Some(row) => row,
            None => self.bench.measure(setup, run)?,
        };
        let seconds = self.scale.seconds(run.purpose);
        self.bench.progress().done(seconds);
        self.results.rows.push(slim(row.clone()));
        self.save()?;
        Ok(row)
    }

    /// The row of a run that was made earlier. What is run follows from the rows before it, so that an experiment which
    /// goes on asks for the same runs in the same order. Once it asks for another, the rest is of no use.
    fn made_earlier(&mut self, setup: &Setup, run: &Run) -> Option<Row> {
        let row = self.earlier.pop_front()?;
        if row.setup == *setup && is_same(&row.run, run) {
            // The rate has been through a file, and compares with those that have not.
            return Some(Row { run: *run, ..row });
        }
        let text = format!(
            "{} earlier runs were not used: they were made with other settings",
            self.earlier.len() + 1
        );
        self.bench.progress().say(&text);
        self.results.notes.push(text);
        self.earlier.clear();
        None
    }

    /// Writes what there is so far: whatever ends the lab, little is lost.
    fn save(&mut self) -> Outcome<()> {
        let Some(out) = self.out.as_ref().filter(|_| self.saved.elapsed() >= SAVE) else {
            return Ok(());
        };
        self.results.write(out)?;
        self.saved = Instant::now();
        Ok(())
    }

    /// CPU for each operation at equal rates, in turn: forwards in one round and backwards in the next, so that what
    /// changes steadily adds as much to one as to the other. All servers run meanwhile, and only one has load.
    pub(crate) fn in_turn(&mut self, turns: &[Turn]) -> Outcome<()> {
        self.bench.keep(turns.len());
        let rounds = turns.iter().map(|(_, rounds, _)| *rounds).max().unwrap_or(0);
        for round in 1..=rounds {
            let mut of_round: Vec<&Turn> = turns.iter().filter(|(_, rounds, _)| round <= *rounds).collect();
            if round % 2 == 0 {
                of_round.reverse();
            }
            for (setup, _, rate) in of_round {
                self.run(setup, &self.scale.run(Purpose::Duel, round, *rate))?;
            }
        }
        self.bench.keep(1);
        Ok(())
    }

    /// Of these, those that can be measured here. What cannot is noted once.
    pub(crate) fn present(&mut self, setups: &[Setup]) -> Vec<Setup> {
        let mut found = Vec::new();
        for setup in setups {
            match self.bench.absent(setup) {
                None => found.push(*setup),
                Some(absent) if self.results.absent.contains(&absent) => {}
                Some(absent) => {
                    self.bench
                        .progress()
                        .say(&format!("{}: left out: {}", absent.what, absent.why));
                    self.results.absent.push(absent);
                }
            }
        }
        found
    }

    /// The highest load that a setup carries, by search.
    pub(crate) fn peak(
        &mut self,
        setup: &Setup,
        round: u32,
        limits: &Limits,
        criterion: Criterion,
    ) -> Outcome<Option<f64>> {
        let each = self.scale.seconds(Purpose::Look);
        let mut made = 0_usize;
        let (peak, looks) = search(limits, |rate| -> Outcome<Seen> {
            made += 1;
            let run = Run {
                criterion,
                ..self.scale.run(Purpose::Look, round, rate)
            };
            let row = self.run(setup, &run)?;
            Ok(Seen {
                verdict: row.verdict,
                beyond_doubt: row.load.failed_part() > BEYOND_DOUBT,
            })
        })?;
        self.bench
            .progress()
            .done(each * limits.looks.saturating_sub(made) as f64);
        let rate = peak.as_ref().map(|peak| peak.rate);
        if let Some(peak) = &peak {
            let bound = if peak.at_least { "at least " } else { "" };
            let doubt = if peak.confirmed { "" } else { ", not confirmed" };
            let text = format!("{}: peak {bound}{:.0}/s{doubt}", setup.text(), peak.rate);
            self.bench.progress().say(&text);
        }
        self.results.peaks.push(Found {
            setup: *setup,
            round,
            peak,
            looks,
        });
        Ok(rate)
    }
}

/// Whether two runs are the same, but for the last digit of what a file held.
fn is_same(one: &Run, other: &Run) -> bool {
    let near = |a: f64, b: f64| (a - b).abs() <= 1e-9 * b.abs();
    near(one.rate, other.rate)
        && near(one.warmup_s, other.warmup_s)
        && near(one.duration_s, other.duration_s)
        && (one.purpose, one.round) == (other.purpose, other.round)
}

/// Distributions and seconds of what was only looked at are not kept: there are many of them.
fn slim(mut row: Row) -> Row {
    if row.run.purpose == Purpose::Look {
        row.load.series.clear();
        for times in row.load.response_ms.values_mut() {
            times.cdf.clear();
        }
    }
    row
}

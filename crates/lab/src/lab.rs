//! Running an experiment from beginning to end.

use std::path::{Path, PathBuf};

use crate::cpu;
use crate::experiments::{
    Scale, Session, batching, checks, connections, memory, overload, peers, pings, split, transport, workers,
};
use crate::failure::{Failure, Outcome, Stop};
use crate::machine;
use crate::progress::Progress;
use crate::report;
use crate::results::{Absent, Provenance, Results};
use crate::station::{Conditions, Cpus, Station};

/// An experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name {
    /// What each way of handling a call carries and costs.
    Transport,
    /// Goodput beyond the peak.
    Overload,
    /// Look-ups in a database far away.
    Batching,
    /// What a call costs Kamailio, this server and a bare relay.
    Peers,
    /// What connections cost: idle, under attack, shaking hands, after a restart.
    Connections,
    /// Bytes of transactions and contacts.
    Memory,
    /// What a second worker brings.
    Workers,
    /// What the split of CPU time says and costs.
    Split,
    /// What NAT keep-alive pings cost.
    Pings,
}

impl Name {
    /// All of them, in the order in which `all` makes them.
    pub const ALL: [Self; 9] = [
        Self::Transport,
        Self::Overload,
        Self::Batching,
        Self::Peers,
        Self::Connections,
        Self::Memory,
        Self::Workers,
        Self::Split,
        Self::Pings,
    ];

    /// As on the command line.
    pub fn word(self) -> &'static str {
        match self {
            Self::Transport => "transport",
            Self::Overload => "overload",
            Self::Batching => "batching",
            Self::Peers => "peers",
            Self::Connections => "connections",
            Self::Memory => "memory",
            Self::Workers => "workers",
            Self::Split => "split",
            Self::Pings => "pings",
        }
    }
}

/// How to run experiments.
#[derive(Clone, Debug)]
pub struct Options {
    /// How long and how often.
    pub scale: Scale,
    /// Where `results.json`, `report.html` and logs go.
    pub out: PathBuf,
    /// Whether to go on with the experiments that ended early there.
    pub resume: bool,
    /// The program that is server, generator and relay.
    pub program: PathBuf,
    /// Its version.
    pub version: &'static str,
    /// The commit that it was built from, if its build knew it.
    pub commit: Option<&'static str>,
    /// How it was called.
    pub command_line: Vec<String>,
    /// What the random times of all loads follow from.
    pub seed: u64,
    /// When to end early.
    pub stop: Stop,
}

/// Runs experiments, each into its directory under [`Options::out`] (one alone: into that itself).
///
/// # Errors
/// The first that could not be run; in the quick form, those with figures that have lost their shape.
pub fn run(names: &[Name], options: &Options) -> Outcome<()> {
    let mut lost = Vec::new();
    for name in names {
        let out = match names {
            [_] => options.out.clone(),
            _ => options.out.join(name.word()),
        };
        match one(*name, options, &out) {
            Err(Failure::Shape(text)) => lost.push(text),
            Ok(()) => {}
            Err(other) => return Err(other),
        }
    }
    if lost.is_empty() {
        Ok(())
    } else {
        Err(Failure::Shape(lost.join("\n")))
    }
}

fn one(name: Name, options: &Options, out: &Path) -> Outcome<()> {
    let mut progress = Progress::new(name.word());
    let mut results = Results::new(name.word(), options.scale.quick);
    let earlier = earlier(name, options, out)?;
    let done = measure(name, options, out, earlier, &mut progress, &mut results);
    progress.finish();
    if let Err(error) = &done {
        if results.rows.is_empty() && results.steps.is_empty() {
            return done;
        }
        // What was measured until then is worth an hour.
        results.notes.push(format!("the experiment ended early: {error}"));
    }
    results.checks = checks::of(&results);
    results.write(out)?;
    report::write(&results, out)?;
    progress.say(&summary(&results, out));
    done?;
    verdict(&results)
}

fn measure(
    name: Name,
    options: &Options,
    out: &Path,
    earlier: Option<Results>,
    progress: &mut Progress,
    results: &mut Results,
) -> Outcome<()> {
    let scale = &options.scale;
    let made = earlier.as_ref().map_or(0, Results::made);
    let conditions = Conditions {
        warm_s: if scale.quick { 0.3 } else { 2.0 },
        warm_rate: 1_500.0,
        rtt_ms: scale.rtt_ms,
        // Other random times than those of the runs before.
        seed: options.seed.wrapping_add(2 * made as u64),
        settles: name == Name::Peers && !scale.quick,
    };
    let (work, stop) = (out.join("work"), options.stop.clone());
    let mut station = Station::new(options.program.clone(), work, conditions, stop, progress)?;
    results.provenance = provenance(options, station.cpus());
    let quota = (name == Name::Overload).then(|| station.quota());
    results.provenance.quota = quota.as_ref().map(|_| station.quota_text());
    if let Some(Err(why)) = &quota {
        results.absent.push(Absent {
            what: "a quota of CPU for the server".to_owned(),
            why: why.clone(),
        });
    }
    let mut session = Session::new(&mut station, results, scale);
    session.out = Some(out.to_owned());
    if let Some(earlier) = earlier {
        session.go_on(earlier);
    }
    let done = match name {
        Name::Transport => transport::run(&mut session),
        Name::Peers => peers::run(&mut session),
        Name::Overload => overload::run(&mut session, quota.and_then(Result::ok).map(|()| overload::QUOTA)),
        Name::Batching => batching::run(&mut session),
        Name::Connections => connections::run(&mut session),
        Name::Memory => memory::run(&mut session),
        Name::Workers => workers::run(&mut session),
        Name::Split => split::run(&mut session),
        Name::Pings => pings::run(&mut session),
    };
    station.close();
    results.provenance.probe_after_ms = cpu::probe(results.provenance.server_cpu).unwrap_or(0.0);
    results.provenance.ended = machine::now();
    done
}

/// The results of an experiment that ended early, if it is to go on.
fn earlier(name: Name, options: &Options, out: &Path) -> Outcome<Option<Results>> {
    let file = out.join("results.json");
    // Of several experiments, those that had not begun have none.
    if !options.resume || (out != options.out && !file.exists()) {
        return Ok(None);
    }
    let found = Results::read(&file)?;
    let (version, commit) = (options.version, machine::commit(options.commit, &options.program));
    let of = &found.provenance;
    let other = if found.experiment != name.word() {
        format!("they are of the experiment {}", found.experiment)
    } else if found.quick != options.scale.quick {
        "one is the quick form, the other is not".to_owned()
    } else if (of.version.as_str(), of.commit.as_str()) != (version, commit.as_str()) {
        format!(
            "they are of trapezoid {}, commit {}; this is {version}, commit {commit}",
            of.version, of.commit
        )
    } else {
        // With other settings its runs are of no use, and must not be lost by a forgotten word.
        let copy = out.join("results.earlier.json");
        std::fs::copy(&file, &copy).map_err(|error| Failure::failed(copy.display(), error))?;
        return Ok(Some(found));
    };
    Err(Failure::Usage(format!(
        "{}: its results cannot go on: {other}",
        out.display()
    )))
}

fn provenance(options: &Options, cpus: Cpus) -> Provenance {
    Provenance {
        version: options.version.to_owned(),
        commit: machine::commit(options.commit, &options.program),
        command_line: options.command_line.clone(),
        began: machine::now(),
        ended: String::new(),
        seed: options.seed,
        machine: machine::read(),
        programs: machine::programs(),
        server_cpu: cpus.server,
        other_cpu: cpus.other,
        probe_before_ms: cpu::probe(cpus.server).unwrap_or(0.0),
        probe_after_ms: 0.0,
        quota: None,
    }
}

/// Makes the report of results again.
///
/// # Errors
/// They cannot be read, or the report cannot be written.
pub fn rewrite(directory: &Path) -> Outcome<()> {
    let mut results = Results::read(&directory.join("results.json"))?;
    results.checks = checks::of(&results);
    report::write(&results, directory)
}

/// What is said at the end.
fn summary(results: &Results, out: &Path) -> String {
    let mut text = String::new();
    for check in &results.checks {
        let word = check.judgement.word();
        let judgement = if check.judgement.fails() {
            word.to_uppercase()
        } else {
            word.to_owned()
        };
        text.push_str(&format!("{judgement:<12}  {}: {}\n", check.name, check.figures));
    }
    for warning in results.warnings() {
        text.push_str(&format!("note          {warning}\n"));
    }
    text.push_str(&format!("report: {}", out.join("report.html").display()));
    text
}

/// The outcome of an experiment. The quick form fails if a shape is lost or was not measured; an undecided shape and
/// the figures themselves never make it fail.
fn verdict(results: &Results) -> Outcome<()> {
    let lost: Vec<&str> = results
        .checks
        .iter()
        .filter(|check| check.judgement.fails())
        .map(|check| check.name.as_str())
        .collect();
    if results.quick && !lost.is_empty() {
        return Err(Failure::Shape(format!(
            "{}: lost or not measured: {}",
            results.experiment,
            lost.join("; ")
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Check;
    use crate::statistics::Judgement;

    #[test]
    fn a_lost_shape_fails_the_quick_form_only() {
        let check = |judgement| Check {
            name: "a".to_owned(),
            judgement,
            figures: "1 and 2".to_owned(),
        };
        let with = |quick, judgement| {
            let mut results = Results::new("transport", quick);
            results.checks = vec![check(judgement)];
            results
        };
        assert!(verdict(&with(true, Judgement::Held)).is_ok());
        assert!(verdict(&with(true, Judgement::Undecided)).is_ok());
        assert!(verdict(&with(false, Judgement::Lost)).is_ok());
        assert!(verdict(&with(true, Judgement::Unmeasured)).is_err());
        let lost = verdict(&with(true, Judgement::Lost)).unwrap_err();
        assert_eq!(lost.to_string(), "transport: lost or not measured: a");
        let said = |judgement| summary(&with(true, judgement), Path::new("out"));
        assert!(said(Judgement::Undecided).starts_with("undecided     a: 1 and 2\n"));
        assert!(said(Judgement::Lost).starts_with("LOST          a: 1 and 2\n"));
    }

    #[test]
    fn only_the_same_experiment_goes_on() {
        let directory = tempfile::tempdir().unwrap();
        let options = Options {
            scale: Scale::full(),
            out: directory.path().to_owned(),
            resume: true,
            program: "/nowhere/trapezoid".into(),
            version: "1.2.3",
            commit: Some("abc"),
            command_line: Vec::new(),
            seed: 1,
            stop: Stop::default(),
        };
        let of = |options: &Options| earlier(Name::Peers, options, directory.path());
        assert!(of(&options).is_err(), "there is nothing");
        let write = |change: fn(&mut Results)| {
            let mut results = Results::new("peers", false);
            results.provenance.version = "1.2.3".to_owned();
            results.provenance.commit = "abc".to_owned();
            change(&mut results);
            results.write(directory.path()).unwrap();
        };
        write(|_| ());
        assert!(of(&options).unwrap().is_some());
        assert!(directory.path().join("results.earlier.json").exists(), "a copy");
        let anew = Options {
            resume: false,
            ..options.clone()
        };
        assert!(of(&anew).unwrap().is_none());
        let of_all = earlier(Name::Peers, &options, &directory.path().join("peers"));
        assert!(of_all.unwrap().is_none(), "it had not begun");
        for (change, said) in [
            (
                (|results| results.experiment = "overload".to_owned()) as fn(&mut Results),
                "overload",
            ),
            (|results| results.quick = true, "the quick form"),
            (
                |results| results.provenance.commit = "def".to_owned(),
                "commit def",
            ),
        ] {
            write(change);
            let error = of(&options).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }

    #[test]
    fn results_are_written_and_reported_again() {
        let directory = tempfile::tempdir().unwrap();
        let mut results = Results::new("batching", false);
        results
            .rows
            .push(crate::experiments::synthetic::row(1000.0, 25.0));
        results.write(directory.path()).unwrap();
        rewrite(directory.path()).unwrap();
        let page = std::fs::read_to_string(directory.path().join("report.html")).unwrap();
        assert!(page.contains("Looking credentials up far away"));
        let again = Results::read(&directory.path().join("results.json")).unwrap();
        assert_eq!((again.rows.len(), again.rows[0].load.offered), (1, 10_000));
        assert_eq!(again.rows[0].setup, results.rows[0].setup);
        results.schema = 99;
        results.write(directory.path()).unwrap();
        let error = rewrite(directory.path()).unwrap_err();
        assert!(error.to_string().contains("version 99"), "{error}");
        assert!(rewrite(Path::new("/nowhere")).is_err());
    }
}

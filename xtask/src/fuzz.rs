//! `cargo xtask fuzz`: builds the targets, runs them, and keeps what they learnt.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::ledger;
use crate::steps::{Outcome, cargo, host_triple, metadata, root, run_step, target_dir};

mod pack;

/// Where libFuzzer's binaries are.
pub(crate) const MANIFEST: &str = "fuzz/libfuzzer/Cargo.toml";
/// Executions of each target in the short form: the same number everywhere, a minute together.
const SHORT_RUNS: u64 = 100_000;
/// Targets that take much longer for an input than the others, and how much rarer they run in the short form.
const SLOW: &[(&str, u64)] = &[("configuration", 20)];
/// How long each target is measured before a total is divided.
const MEASURED: Duration = Duration::from_secs(5);
/// Longest input; a message that is longer is like one that is not.
const MAX_LEN: &str = "-max_len=4096";

/// Most bytes of a kept corpus; the shortest inputs are kept.
const PACK_BYTES: usize = 512 * 1024;

const USAGE: &str = "usage: fuzz [--runs N | --total N | --seconds N] [--asan] [--minimise] [TARGET…]";

/// How long each target runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Length {
    /// So many executions each, from a fixed seed and nothing that an earlier run left: the same
    /// inputs everywhere, every time.
    Runs(u64),
    /// The same, some seconds of each.
    Short,
    /// So many executions of all together, the same time each.
    Total(u64),
    Seconds(u64),
    /// Not at all: what earlier runs found is made small and kept.
    Minimise,
}

#[derive(Debug, PartialEq, Eq)]
struct Options {
    length: Length,
    asan: bool,
    wanted: Vec<String>,
}

fn options(args: &[String]) -> Result<Options, String> {
    let mut options = Options {
        length: Length::Seconds(3600),
        asan: false,
        wanted: Vec::new(),
    };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut number = || {
            let number = args.next().and_then(|n| n.replace('_', "").parse().ok());
            number.ok_or_else(|| format!("{arg} needs a number"))
        };
        match arg.as_str() {
            "--runs" => options.length = Length::Runs(number()?),
            "--total" => options.length = Length::Total(number()?),
            "--seconds" => options.length = Length::Seconds(number()?),
            "--minimise" => options.length = Length::Minimise,
            "--asan" => options.asan = true,
            name if name.starts_with('-') => return Err(format!("unknown option {arg}; {USAGE}")),
            name => options.wanted.push(name.to_owned()),
        }
    }
    Ok(options)
}

/// A minute of all targets together, of the same inputs everywhere.
pub(crate) fn short() -> Outcome {
    fuzz(&Options {
        length: Length::Short,
        asan: false,
        wanted: Vec::new(),
    })
}

/// Builds the targets and does with them what `args` say.
pub(crate) fn run(args: &[String]) -> Outcome {
    fuzz(&options(args)?)
}

fn fuzz(options: &Options) -> Outcome {
    let targets = Target::all(options)?;
    build(options)?;
    let mut done = Vec::new();
    match options.length {
        Length::Minimise => return targets.iter().try_for_each(minimise),
        Length::Runs(runs) => {
            for target in &targets {
                done.push((target.name.clone(), target.repeatable(runs)?));
            }
        }
        Length::Short => {
            for target in &targets {
                let slow = SLOW.iter().find(|(name, _)| *name == target.name);
                let runs = SHORT_RUNS / slow.map_or(1, |(_, times)| *times);
                done.push((target.name.clone(), target.repeatable(runs)?));
            }
        }
        Length::Seconds(seconds) => {
            for target in &targets {
                let limit = format!("-max_total_time={seconds}");
                done.push((target.name.clone(), target.explore(&limit)?));
            }
        }
        Length::Total(total) => done = share(&targets, total)?,
    }
    eprint!("{}", summary(&done));
    Ok(())
}

/// Divides `total` so that each target runs for the same time.
fn share(targets: &[Target], total: u64) -> Result<Vec<(String, Done)>, String> {
    let limit = format!("-max_total_time={}", MEASURED.as_secs());
    let mut done = Vec::new();
    for target in targets {
        done.push((target.name.clone(), target.explore(&limit)?));
    }
    let measured: u64 = done.iter().map(|(_, done)| done.executions).sum();
    let speeds: f64 = done.iter().map(|(_, done)| done.per_second()).sum();
    let seconds = total.saturating_sub(measured) as f64 / speeds.max(1.0);
    for (target, (_, done)) in targets.iter().zip(&mut done) {
        let runs = (done.per_second() * seconds).ceil() as u64;
        if runs > 0 {
            let more = target.explore(&format!("-runs={runs}"))?;
            done.executions += more.executions;
            done.took += more.took;
        }
    }
    Ok(done)
}

/// What a run did.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Done {
    executions: u64,
    took: Duration,
}

impl Done {
    fn per_second(&self) -> f64 {
        self.executions as f64 / self.took.as_secs_f64().max(0.001)
    }
}

/// A table of what was done, with the sum below it.
fn summary(done: &[(String, Done)]) -> String {
    let mut all = Done::default();
    for (_, one) in done {
        all.executions += one.executions;
        all.took += one.took;
    }
    let line = |name: &str, done: &Done| {
        format!(
            "{name:<16}{:>14}{:>10.0}{:>14.0}\n",
            done.executions,
            done.took.as_secs_f64(),
            done.per_second()
        )
    };
    let head = format!(
        "{:<16}{:>14}{:>10}{:>14}\n",
        "target", "executions", "seconds", "per second"
    );
    let lines: String = done.iter().map(|(name, done)| line(name, done)).collect();
    head + &lines + &line("all", &all)
}

/// Compiles the targets, in a target directory of their own: these flags fit nothing else that we
/// build.
fn build(options: &Options) -> Outcome {
    let mut command = cargo();
    command
        .args(["build", "--release", "--locked", "--manifest-path", MANIFEST])
        .args(["--target", &host_triple()?, "--target-dir"])
        .arg(target_directory(options.asan)?);
    let mut flags = FLAGS.join(" ");
    if options.asan {
        flags.push_str(" -Zsanitizer=address");
        command.env("RUSTC_BOOTSTRAP", "1");
    }
    run_step("build the fuzz targets", command.env("RUSTFLAGS", flags))
}

fn target_directory(asan: bool) -> Result<PathBuf, String> {
    Ok(target_dir()?.join(if asan { "fuzz-asan" } else { "fuzz" }))
}

/// libFuzzer's coverage passes; plain options of the stable compiler.
const FLAGS: &[&str] = &[
    "--cfg fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Cllvm-args=-simplifycfg-branch-fold-threshold=0",
];

/// One target, and where its files are.
#[derive(Debug)]
struct Target {
    name: String,
    program: PathBuf,
    /// What is made anew for each run.
    scratch: PathBuf,
    dictionaries: Vec<String>,
}

impl Target {
    fn all(options: &Options) -> Result<Vec<Self>, String> {
        let metadata = metadata(&["--no-deps", "--manifest-path", MANIFEST])?;
        let names = names(&metadata);
        if let Some(unknown) = options.wanted.iter().find(|name| !names.contains(name)) {
            return Err(format!(
                "no fuzz target `{unknown}`; there are: {}",
                names.join(", ")
            ));
        }
        let directory = target_directory(options.asan)?;
        let built = directory.join(host_triple()?).join("release");
        let wanted = names
            .into_iter()
            .filter(|name| options.wanted.is_empty() || options.wanted.contains(name));
        let mut dictionaries = dictionaries(&metadata);
        let targets: Vec<Self> = wanted
            .map(|name| Self {
                program: built.join(&name),
                scratch: directory.join("scratch").join(&name),
                dictionaries: dictionaries.remove(&name).unwrap_or_default(),
                name,
            })
            .collect();
        if targets.is_empty() {
            return Err(format!("{MANIFEST} names no target"));
        }
        Ok(targets)
    }

    fn seeds(&self) -> PathBuf {
        root().join("fuzz/seeds").join(&self.name)
    }

    /// Where runs put what they discover; git does not look there.
    fn found(&self) -> PathBuf {
        root().join("fuzz/corpus").join(&self.name)
    }

    fn pack(&self) -> PathBuf {
        root().join("fuzz/corpus").join(format!("{}.cat", self.name))
    }

    fn artifacts(&self) -> PathBuf {
        root().join("fuzz/artifacts").join(&self.name)
    }

    /// The kept corpus as the files that libFuzzer reads.
    fn unpacked(&self) -> Result<PathBuf, String> {
        let directory = self.scratch.join("kept");
        pack::unpack(&self.pack(), &directory)?;
        Ok(directory)
    }

    fn repeatable(&self, runs: u64) -> Result<Done, String> {
        let fresh = self.scratch.join("fresh");
        renew(&fresh)?;
        let mut command = self.command()?;
        command
            .arg(fresh)
            .args(["-seed=1", &format!("-runs={runs}"), "-verbosity=0"]);
        self.run(&mut command)
    }

    fn explore(&self, limit: &str) -> Result<Done, String> {
        make(&self.found())?;
        let mut command = self.command()?;
        self.run(command.arg(self.found()).arg(limit))
    }

    /// The program with the options that all runs have.
    fn command(&self) -> Result<Command, String> {
        make(&self.artifacts())?;
        make(&self.scratch)?;
        let mut command = Command::new(&self.program);
        command
            .args([
                MAX_LEN,
                "-rss_limit_mb=2048",
                "-timeout=10",
                "-print_final_stats=1",
            ])
            .arg(format!("-artifact_prefix={}/", self.artifacts().display()))
            .arg(format!("-dict={}", self.dictionary()?.display()));
        Ok(command)
    }

    /// libFuzzer takes one dictionary: this target's in one file.
    fn dictionary(&self) -> Result<PathBuf, String> {
        let mut words = String::new();
        for name in &self.dictionaries {
            let path = root().join("fuzz/dictionaries").join(format!("{name}.dict"));
            words.push_str(&fs::read_to_string(&path).map_err(said(&path))?);
        }
        let path = self.scratch.join("dictionary");
        fs::write(&path, words).map_err(said(&path))?;
        Ok(path)
    }

    /// Runs to the end, passing on what libFuzzer writes, and counts.
    fn run(&self, command: &mut Command) -> Result<Done, String> {
        // libFuzzer writes into the first directory, and only reads the others.
        command.args([self.unpacked()?, self.seeds()]);
        eprintln!("── fuzz {}", self.name);
        let began = Instant::now();
        let mut child = command
            .current_dir(root())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(said(&self.program))?;
        let mut executions = 0;
        for line in BufReader::new(child.stderr.take().ok_or("no stderr")?).split(b'\n') {
            let line = line.map_err(said(&self.program))?;
            let line = String::from_utf8_lossy(&line);
            executions = executed(&line).unwrap_or(executions);
            eprintln!("{line}");
        }
        let status = child.wait().map_err(said(&self.program))?;
        let took = began.elapsed();
        ledger::note(&format!("fuzz {}", self.name), took);
        if !status.success() {
            return Err(format!(
                "{} failed ({status}); its input is in {}",
                self.name,
                self.artifacts().display()
            ));
        }
        let done = Done { executions, took };
        eprintln!(
            "── fuzz {}: {executions} executions, {:.0} a second",
            self.name,
            done.per_second()
        );
        Ok(done)
    }
}

/// The number of executions, if the line has it.
fn executed(line: &str) -> Option<u64> {
    let number = line.strip_prefix("stat::number_of_executed_units:")?;
    number.trim().parse().ok()
}

/// The smallest set of inputs that reaches what all of them together reach, packed; seeds are files of
/// their own and need not be in it.
fn minimise(target: &Target) -> Outcome {
    let merged = target.scratch.join("merged");
    renew(&merged)?;
    make(&target.found())?;
    let seeds = files(&target.seeds())?;
    for (at, seed) in seeds.iter().enumerate() {
        let path = merged.join(format!("seed-{at}"));
        fs::write(&path, seed).map_err(said(&path))?;
    }
    let mut command = target.command()?;
    command
        .args(["-set_cover_merge=1", "-verbosity=0"])
        .arg(&merged)
        .args([target.unpacked()?, target.found()])
        .stderr(Stdio::null());
    run_step(&format!("minimise the corpus of {}", target.name), &mut command)?;
    let mut kept = files(&merged)?;
    kept.retain(|input| !seeds.contains(input));
    kept.sort_by(|a, b| (a.len(), a).cmp(&(b.len(), b)));
    let reached = kept.len();
    let mut room = PACK_BYTES;
    kept.retain(|input| match room.checked_sub(input.len() + 4) {
        Some(left) => {
            room = left;
            true
        }
        None => false,
    });
    let bytes = pack::pack(&target.pack(), &kept)?;
    eprintln!(
        "── {}: {} of {reached} inputs beside {} seeds, {bytes} bytes",
        target.name,
        kept.len(),
        seeds.len()
    );
    Ok(())
}

fn files(directory: &Path) -> Result<Vec<Vec<u8>>, String> {
    let mut out = Vec::new();
    for entry in fs::read_dir(directory).map_err(said(directory))? {
        let path = entry.map_err(said(directory))?.path();
        out.push(fs::read(&path).map_err(said(&path))?);
    }
    Ok(out)
}

fn make(directory: &Path) -> Outcome {
    fs::create_dir_all(directory).map_err(said(directory))
}

/// An empty directory.
fn renew(directory: &Path) -> Outcome {
    if directory.exists() {
        fs::remove_dir_all(directory).map_err(said(directory))?;
    }
    make(directory)
}

fn said(path: &Path) -> impl FnOnce(std::io::Error) -> String {
    move |error| format!("{}: {error}", path.display())
}

/// The binaries.
fn names(metadata: &serde_json::Value) -> Vec<String> {
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let targets = packages.flat_map(|p| p["targets"].as_array().into_iter().flatten());
    targets
        .filter(|t| t["kind"][0] == "bin")
        .filter_map(|t| t["name"].as_str().map(str::to_owned))
        .collect()
}

/// The names of each target's dictionaries, from `[package.metadata.dictionaries]`.
fn dictionaries(metadata: &serde_json::Value) -> BTreeMap<String, Vec<String>> {
    let table = metadata["packages"][0]["metadata"]["dictionaries"].as_object();
    let words = |list: &serde_json::Value| {
        let list = list.as_array().into_iter().flatten();
        list.filter_map(|name| name.as_str().map(str::to_owned)).collect()
    };
    let table = table.into_iter().flatten();
    table.map(|(name, list)| (name.clone(), words(list))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn options_say_how_long_and_which() {
        let read = |text: &str| options(&words(text)).map(|o| (o.length, o.asan, o.wanted));
        assert_eq!(
            read("--runs 7 datagram"),
            Ok((Length::Runs(7), false, words("datagram")))
        );
        assert_eq!(
            read("--total 100_000_000"),
            Ok((Length::Total(100_000_000), false, vec![]))
        );
        assert_eq!(
            read("--asan uri"),
            Ok((Length::Seconds(3600), true, words("uri")))
        );
        assert_eq!(read("--minimise"), Ok((Length::Minimise, false, vec![])));
        assert!(read("--runs many").is_err());
        assert!(read("--run 3").is_err());
    }

    #[test]
    fn targets_are_the_binaries_with_their_dictionaries() {
        let metadata = serde_json::json!({ "packages": [ {
            "metadata": { "dictionaries": { "datagram": ["sip", "digest"] } },
            "targets": [
                { "kind": ["bin"], "name": "datagram" }, { "kind": ["lib"], "name": "common" } ] } ] });
        assert_eq!(names(&metadata), ["datagram"]);
        assert_eq!(dictionaries(&metadata)["datagram"], ["sip", "digest"]);
    }

    #[test]
    fn executions_are_counted_at_the_end() {
        assert_eq!(executed("stat::number_of_executed_units: 1234"), Some(1234));
        assert_eq!(executed("#1234 DONE cov: 5"), None);
    }

    #[test]
    fn the_summary_ends_in_the_sum() {
        let done = |executions, seconds| Done {
            executions,
            took: Duration::from_secs(seconds),
        };
        let text = summary(&[("a".to_owned(), done(100, 2)), ("b".to_owned(), done(50, 1))]);
        let last: Vec<&str> = text
            .lines()
            .last()
            .unwrap_or_default()
            .split_whitespace()
            .collect();
        assert_eq!(last, ["all", "150", "3", "50"]);
    }
}

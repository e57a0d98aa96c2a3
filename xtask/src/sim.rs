//! The simulator: many seeds, and the mutants that its checkers must catch.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use crate::steps::{Outcome, cargo, root, run_own, run_step, target_dir};

/// Profile with the speed of a release and every check: most runs are long.
const PROFILE: &str = "sim";
/// Seeds in which a mutant must be caught.
const MUTANT_SEEDS: &str = "0..1000";

/// `SEEDS=FROM..TO`, `MINUTES=N`, `SEED=N` or `SCENARIO=FILE`, from the environment.
pub(crate) fn run(args: &[String]) -> Outcome {
    if !args.is_empty() {
        return Err("it takes no arguments: SEEDS=FROM..TO, MINUTES=N, SEED=N or SCENARIO=FILE".into());
    }
    run_with(&[])
}

/// The same, where `variables` count for more than those of the environment.
pub(crate) fn run_with(variables: &[(&str, &str)]) -> Outcome {
    let program = build(&root(), &target_dir()?, &[])?;
    run_step("simulate", Command::new(program).envs(variables.iter().copied()))
}

fn build(tree: &Path, target: &Path, settings: &[(&str, &str)]) -> Result<PathBuf, String> {
    run_step(
        "build the simulator",
        cargo()
            .args([
                "build",
                "--profile",
                PROFILE,
                "--package",
                "sip-sim",
                "--bin",
                "sim",
            ])
            .arg("--manifest-path")
            .arg(tree.join("Cargo.toml"))
            .arg("--target-dir")
            .arg(target)
            // CI switches off what makes a mutant quick to build.
            .env_remove("CARGO_INCREMENTAL")
            .envs(settings.iter().copied())
            .env("SIM_COMMIT", commit()),
    )?;
    Ok(target.join(PROFILE).join("sim"))
}

/// A mutant runs for seconds, and is built again for a changed line or two: what makes that quick
/// counts for more than the speed of the runs.
const QUICK_BUILD: [(&str, &str); 4] = [
    ("CARGO_PROFILE_SIM_LTO", "off"),
    ("CARGO_PROFILE_SIM_CODEGEN_UNITS", "16"),
    ("CARGO_PROFILE_SIM_INCREMENTAL", "true"),
    ("CARGO_PROFILE_SIM_DEBUG", "0"),
];

fn git(args: &[&str]) -> Option<String> {
    let out = Command::new("git").args(args).current_dir(root()).output().ok()?;
    let text = String::from_utf8(out.stdout)
        .ok()
        .filter(|_| out.status.success())?;
    Some(text.trim().to_owned())
}

/// The commit that is checked out.
pub(crate) fn head() -> Option<String> {
    git(&["rev-parse", "HEAD"])
}

/// What is built: a seed means a run of just this.
fn commit() -> String {
    let commit = git(&["rev-parse", "--short", "HEAD"]).unwrap_or_default();
    let changed = git(&["status", "--porcelain", "--untracked-files=no"]).is_some_and(|s| !s.is_empty());
    format!("commit {commit}{}", if changed { " with changes" } else { "" })
}

/// A fault in the sources, and the rule that must catch it.
struct Mutant {
    name: String,
    patch: PathBuf,
    rule: String,
}

/// `crates/sip-sim/mutants/*.patch`: the first line of each is `rule: NAME`.
fn mutants(wanted: &[String]) -> Result<Vec<Mutant>, String> {
    let dir = root().join("crates/sip-sim/mutants");
    let mut found = Vec::new();
    for entry in fs::read_dir(&dir).map_err(|error| format!("{}: {error}", dir.display()))? {
        let patch = entry.map_err(|error| error.to_string())?.path();
        if patch.extension().is_none_or(|extension| extension != "patch") {
            continue;
        }
        let name = patch
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let text = fs::read_to_string(&patch).map_err(|error| format!("{}: {error}", patch.display()))?;
        let rule = text.lines().next().and_then(|line| line.strip_prefix("rule: "));
        let rule = rule.ok_or(format!("{}: its first line is no `rule: NAME`", patch.display()))?;
        if wanted.is_empty() || wanted.iter().any(|word| name.contains(word.as_str())) {
            found.push(Mutant {
                name,
                rule: rule.trim().to_owned(),
                patch,
            });
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    if found.is_empty() {
        return Err("no mutant has such a name".into());
    }
    Ok(found)
}

/// Whether every patch still fits the sources: cheap, and part of `check`.
pub(crate) fn check_mutants() -> Outcome {
    for mutant in mutants(&[])? {
        let applies = Command::new("git")
            .args(["apply", "--check"])
            .arg(&mutant.patch)
            .current_dir(root())
            .status()
            .is_ok_and(|status| status.success());
        if !applies {
            return Err(format!(
                "{} does not fit the sources any more",
                mutant.patch.display()
            ));
        }
    }
    Ok(())
}

/// The outcome of a mutant.
struct Tried {
    mutant: Mutant,
    /// What the simulator says of it, or why it says nothing.
    caught: Result<String, String>,
    seconds: u64,
}

/// Builds the simulator with each fault in turn, in a copy of the sources, and sees to it that the
/// seeds of CI catch it.
pub(crate) fn run_mutants(wanted: &[String]) -> Outcome {
    let place = target_dir()?.join("mutants");
    let mut tried = Vec::new();
    for mutant in mutants(wanted)? {
        let began = Instant::now();
        let caught = try_mutant(&mutant, &place)?;
        tried.push(Tried {
            mutant,
            caught,
            seconds: began.elapsed().as_secs(),
        });
    }
    report(&tried)
}

/// What the simulator says of it, or why it says nothing.
fn try_mutant(mutant: &Mutant, place: &Path) -> Result<Result<String, String>, String> {
    let (tree, target) = (place.join("src"), place.join("target"));
    copy(&tree)?;
    run_step(
        &format!("apply {}", mutant.name),
        // Within another repository it would look for the files there.
        Command::new("git")
            .arg("-C")
            .arg(&tree)
            .arg("apply")
            .arg(&mutant.patch)
            .env("GIT_CEILING_DIRECTORIES", place),
    )?;
    let Ok(program) = build(&tree, &target, &QUICK_BUILD) else {
        return Ok(Err("DOES NOT BUILD".into()));
    };
    let mut out = None;
    run_own(&format!("try {}", mutant.name), || {
        let mut command = Command::new(program);
        command
            .env("SEEDS", MUTANT_SEEDS)
            .env("RULE", &mutant.rule)
            .current_dir(&tree);
        let done = command
            .output()
            .map_err(|error| format!("cannot start the simulator: {error}"))?;
        out = Some(done);
        Ok(())
    })?;
    let out = out.ok_or("the simulator said nothing")?;
    let text = String::from_utf8_lossy(&out.stdout);
    let line = text.lines().find_map(|line| line.strip_prefix("caught: "));
    let line = line.filter(|_| !out.status.success()).map(str::to_owned);
    Ok(line.ok_or_else(|| format!("NOT CAUGHT by `{}`", mutant.rule)))
}

/// A table of all, and the names of those that were not caught.
fn report(tried: &[Tried]) -> Outcome {
    let longest = tried
        .iter()
        .map(|t| t.mutant.name.len())
        .max()
        .unwrap_or_default();
    eprintln!("── mutants");
    for Tried {
        mutant,
        caught,
        seconds,
    } in tried
    {
        let found = match caught {
            Ok(line) => format!("caught by {line}"),
            Err(why) => why.clone(),
        };
        eprintln!("{:longest$}  {seconds:>4} s  {found}", mutant.name);
    }
    let missed: Vec<&str> = tried
        .iter()
        .filter(|t| t.caught.is_err())
        .map(|t| t.mutant.name.as_str())
        .collect();
    if missed.is_empty() {
        eprintln!("── {} mutants, all caught", tried.len());
        Ok(())
    } else {
        Err(format!("not caught: {}", missed.join(", ")))
    }
}

/// The sources as they are checked in or changed, and nothing else.
fn copy(tree: &Path) -> Outcome {
    fs::create_dir_all(tree).map_err(|error| format!("{}: {error}", tree.display()))?;
    let list = Command::new("git")
        .args(["ls-files", "-z"])
        .current_dir(root())
        .output()
        .map_err(|error| format!("git ls-files: {error}"))?;
    let list = String::from_utf8_lossy(&list.stdout);
    let names: BTreeSet<&str> = list.split('\0').filter(|name| !name.is_empty()).collect();
    let error = |path: &Path, error: io::Error| format!("{}: {error}", path.display());
    for name in &names {
        let (from, to) = (root().join(name), tree.join(name));
        let text = fs::read(&from).map_err(|e| error(&from, e))?;
        // What has not changed keeps its time, and is not built again.
        if fs::read(&to).is_ok_and(|held| held == text) {
            continue;
        }
        let parent = to.parent().unwrap_or(tree);
        fs::create_dir_all(parent).map_err(|e| error(parent, e))?;
        fs::write(&to, text).map_err(|e| error(&to, e))?;
    }
    // What an earlier copy had, and the sources have no more, would be built with them.
    let mut dirs = vec![tree.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).map_err(|e| error(&dir, e))? {
            let path = entry.map_err(|e| error(&dir, e))?.path();
            if path.is_dir() {
                dirs.push(path);
            } else if path
                .strip_prefix(tree)
                .is_ok_and(|name| !names.contains(name.to_string_lossy().as_ref()))
            {
                fs::remove_file(&path).map_err(|e| error(&path, e))?;
            }
        }
    }
    Ok(())
}

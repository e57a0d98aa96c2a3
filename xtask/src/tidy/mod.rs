//! The project's own rules, those that rustc and Clippy do not know. Each rule is a pure function
//! from text to violations, with samples that pass and samples that fail beside it.

mod allow;
mod attacks;
mod coverage;
mod documents;
mod graph;
mod imports;
mod length;
mod policy;
mod proof;
mod purity;
mod source;
mod upward;
mod words;

use std::path::{Path, PathBuf};

use crate::steps::{self, Outcome};

/// A rule broken at a place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Violation {
    /// Path relative to the root, with a line where there is one.
    pub(crate) place: String,
    /// What is wrong, and what would be right.
    pub(crate) message: String,
}

impl Violation {
    fn new(place: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            place: place.into(),
            message: message.into(),
        }
    }
}

/// A text file of the project.
#[derive(Debug, Clone)]
pub(crate) struct File {
    /// Relative to the root, with `/`.
    pub(crate) path: String,
    pub(crate) text: String,
}

/// Directories that hold nothing written by hand.
const NOT_OURS: &[&str] = &[
    "target",
    ".git",
    "node_modules",
    "data",
    "fuzz/corpus",
    "fuzz/artifacts",
];

/// Checks the whole tree under `root`.
pub(crate) fn run(root: &Path) -> Outcome {
    let mut paths = Vec::new();
    collect(root, root, &mut paths).map_err(|error| format!("reading the tree: {error}"))?;
    paths.sort();
    let files: Vec<File> = paths.iter().filter_map(|path| read(root, path)).collect();
    let mut found = graph::check(&steps::metadata(&["--no-deps"])?);
    found.extend(imports::check(&files));
    found.extend(upward::check(&files));
    found.extend(length::check(&files));
    found.extend(proof::check(&files));
    found.extend(purity::check(&files));
    found.extend(attacks::check(&files));
    found.extend(documents::check(&paths, &files));
    found.extend(coverage::check(&files));
    found.extend(words::check(&files));
    let rules = files.iter().find(|file| file.path == policy::RULES);
    found.extend(policy::check(&rules.ok_or("deny.toml is missing")?.text)?);
    if found.is_empty() {
        eprintln!("tidy: {} files, no violation", files.len());
        return Ok(());
    }
    for violation in &found {
        eprintln!("{}: {}", violation.place, violation.message);
    }
    Err(format!("{} violations", found.len()))
}

fn collect(root: &Path, dir: &Path, paths: &mut Vec<String>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let path = entry.path();
        let Some(relative) = relative(root, &path) else {
            continue;
        };
        if NOT_OURS.contains(&relative.as_str()) {
            continue;
        }
        let kind = entry.file_type()?;
        if kind.is_dir() {
            collect(root, &path, paths)?;
        } else if kind.is_file() {
            paths.push(relative);
        }
    }
    Ok(())
}

fn relative(root: &Path, path: &Path) -> Option<String> {
    path.strip_prefix(root)
        .ok()
        .and_then(Path::to_str)
        .map(str::to_owned)
}

/// `None` for what is not text.
fn read(root: &Path, path: &str) -> Option<File> {
    let full: PathBuf = root.join(path);
    std::fs::read_to_string(full).ok().map(|text| File {
        path: path.to_owned(),
        text,
    })
}

#[cfg(test)]
pub(crate) fn file(path: &str, text: &str) -> File {
    File {
        path: path.to_owned(),
        text: text.to_owned(),
    }
}

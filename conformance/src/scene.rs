//! Where a test takes place: an address of its own, a directory, and the logs in it.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;
use test_address::Place;

/// One test's loopback address and directory.
#[derive(Debug)]
pub struct Scene {
    place: Place,
    dir: Option<TempDir>,
}

impl Scene {
    /// Claims an unused address of 127/8 and makes an empty directory.
    ///
    /// # Panics
    /// When neither can be had.
    pub fn new() -> Self {
        let dir = TempDir::with_prefix("trapezoid-test-").expect("a temporary directory");
        Self {
            place: Place::claim(),
            dir: Some(dir),
        }
    }

    /// The scene's address.
    pub fn ip(&self) -> IpAddr {
        self.place.ip()
    }

    /// A port on it.
    pub fn at(&self, port: u16) -> SocketAddr {
        self.place.at(port)
    }

    /// The scene's directory.
    pub fn dir(&self) -> &Path {
        self.dir.as_ref().expect("lives as long as the scene").path()
    }

    /// A file in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir().join(name)
    }
}

impl Default for Scene {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        if std::thread::panicking() {
            print_logs(self.dir());
        }
        if std::env::var_os("TRAPEZOID_KEEP").is_some()
            && let Some(dir) = self.dir.take()
        {
            eprintln!("kept: {}", dir.keep().display());
        }
    }
}

fn print_logs(dir: &Path) {
    const LINES: usize = 150;
    let Ok(entries) = std::fs::read_dir(dir) else {
        return;
    };
    let mut logs: Vec<PathBuf> = entries.flatten().map(|e| e.path()).collect();
    logs.retain(|p| p.extension().is_some_and(|e| e == "log" || e == "toml"));
    logs.sort();
    for path in logs {
        let text = String::from_utf8_lossy(&std::fs::read(&path).unwrap_or_default()).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        let skipped = lines.len().saturating_sub(LINES);
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        eprintln!(
            "──── {name} (last {} of {} lines)",
            lines.len() - skipped,
            lines.len()
        );
        for line in &lines[skipped..] {
            eprintln!("{line}");
        }
    }
}

/// The path of a program that tests drive. `None`: it is missing and `TRAPEZOID_SKIP_MISSING=1`
/// says that the test may be skipped, which is then said.
///
/// # Panics
/// When it is missing otherwise: `cargo xtask setup` installs it.
pub fn tool(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path)
        .chain(["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from))
        .map(|dir| dir.join(name))
        .find(|candidate| candidate.is_file());
    if found.is_none() {
        skip(&format!("{name} is missing"), "`cargo xtask setup` installs it");
    }
    found
}

/// A command that runs its arguments as the root of a user namespace, with further namespaces of its own: `--net`,
/// `--mount`. `None`: the kernel refuses that here, and `TRAPEZOID_SKIP_MISSING=1` says that the test may be skipped.
///
/// # Panics
/// When it is refused otherwise.
pub fn namespaces(further: &[&str]) -> Option<Command> {
    let unshare = tool("unshare")?;
    let begun = || {
        let mut command = Command::new(&unshare);
        command.args(["--user", "--map-root-user"]).args(further);
        command
    };
    let tried = begun().arg("true").output().expect("unshare runs");
    if tried.status.success() {
        return Some(begun());
    }
    let why = String::from_utf8_lossy(&tried.stderr);
    skip(why.trim(), "user namespaces have to be allowed");
    None
}

/// Says that a test is skipped, if it may be.
fn skip(why: &str, remedy: &str) {
    let may = std::env::var("TRAPEZOID_SKIP_MISSING").is_ok_and(|v| v == "1");
    assert!(may, "{why}: {remedy}; TRAPEZOID_SKIP_MISSING=1 skips this test");
    eprintln!("SKIPPED: {why} and TRAPEZOID_SKIP_MISSING=1");
}

//! The directory in which tests keep their data: in memory, where the machine has room.
//!
//! A test that waits for a file to be on disk would wait for everything that the disk is busy with, such
//! as what was built before: then a server refuses registrations, as it must, and the test fails by
//! itself. A file in memory survives `kill -9` as one on disk does, and what a power cut leaves is
//! shown on simulated disks.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Linux keeps what is in it in memory.
const SHARED_MEMORY: &str = "/dev/shm";

/// Bytes that must be free there, and in memory: all tests together keep 0.5 GiB.
const ROOM: u64 = 2 << 30;

const PREFIX: &str = "trapezoid-tests-";

/// The held lock's file, in the directory that it protects.
const LOCK: &str = ".lock";

/// A directory that goes with this value. Where there is no room in memory it is none, and tests use the
/// machine's temporary directory; so they do with `TRAPEZOID_KEEP`, which says that data shall stay.
#[derive(Debug)]
pub(super) struct Scratch {
    directory: Option<(PathBuf, File)>,
}

impl Scratch {
    pub(super) fn new() -> Self {
        let memory = Path::new(SHARED_MEMORY);
        let wanted = std::env::var_os("TRAPEZOID_KEEP").is_none() && has_room(memory);
        let directory = wanted.then(|| make(memory).ok()).flatten();
        match &directory {
            Some((path, _)) => eprintln!("── tests keep their data in memory, in {}", path.display()),
            None => eprintln!("── tests keep their data in {}", std::env::temp_dir().display()),
        }
        Self { directory }
    }

    /// What makes test programs use it. Database templates stay where the next run finds them.
    pub(super) fn variables(&self) -> Vec<(String, String)> {
        let Some((path, _)) = &self.directory else {
            return Vec::new();
        };
        let templates = std::env::temp_dir();
        vec![
            ("TMPDIR".into(), path.display().to_string()),
            ("TRAPEZOID_TEST_TEMPLATES".into(), templates.display().to_string()),
        ]
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Some((path, _)) = &self.directory {
            let _ = fs::remove_dir_all(path);
        }
    }
}

/// Makes a directory in `parent` and locks it, after removing those of runs that were killed.
fn make(parent: &Path) -> std::io::Result<(PathBuf, File)> {
    for old in fs::read_dir(parent)?.flatten() {
        let is_ours = old.file_name().to_string_lossy().starts_with(PREFIX);
        // The kernel frees the lock of a process that has ended.
        let is_left = || File::open(old.path().join(LOCK)).is_ok_and(|lock| lock.try_lock().is_ok());
        if is_ours && is_left() {
            // Another user's stays.
            let _ = fs::remove_dir_all(old.path());
        }
    }
    // It gets its name when it is locked: before that it would look left.
    let name = format!("{PREFIX}{}", std::process::id());
    let draft = parent.join(format!(".{name}"));
    fs::create_dir(&draft)?;
    // Databases run as users of their own.
    fs::set_permissions(&draft, fs::Permissions::from_mode(0o1777))?;
    let lock = File::create(draft.join(LOCK))?;
    lock.lock()?;
    let path = parent.join(name);
    fs::rename(&draft, &path)?;
    Ok((path, lock))
}

fn has_room(memory: &Path) -> bool {
    let df = Command::new("df")
        .args(["--output=avail", "--block-size=1"])
        .arg(memory)
        .output();
    let free = df
        .ok()
        .and_then(|out| last_number(&String::from_utf8_lossy(&out.stdout)));
    let available = fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("MemAvailable:"))?;
        Some(last_number(line.trim_end_matches("kB"))? * 1024)
    });
    free.min(available) >= Some(ROOM)
}

fn last_number(text: &str) -> Option<u64> {
    text.split_whitespace().last()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_run_left_goes_and_what_is_in_use_stays() {
        let parent = std::env::temp_dir().join(format!("xtask-scratch-{}", std::process::id()));
        let other = |name: &str| {
            let path = parent.join(format!("{PREFIX}{name}"));
            fs::create_dir_all(&path).expect("a directory");
            let lock = File::create(path.join(LOCK)).expect("a file");
            (path, lock)
        };
        let (left, _) = other("left");
        let (used, lock) = other("used");
        lock.lock().expect("a lock");
        let strange = parent.join("of-another-program");
        fs::create_dir(&strange).expect("a directory");
        let (path, _lock) = make(&parent).expect("a directory");
        assert!(path.is_dir() && used.is_dir() && strange.is_dir());
        assert!(!left.exists());
        fs::remove_dir_all(&parent).expect("it can be removed");
    }

    #[test]
    fn the_last_number_of_a_line_is_its_figure() {
        assert_eq!(last_number("Avail\n123\n"), Some(123));
        assert_eq!(last_number("MemAvailable:   24 "), Some(24));
        assert_eq!(last_number("df: no such file"), None);
    }
}

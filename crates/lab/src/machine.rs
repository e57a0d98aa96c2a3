//! Where, with what and when figures were made.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::programs;

/// The machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Model of its CPUs, as the kernel names it.
    pub cpu: String,
    /// Its CPUs, including those that the lab may not use: it binds itself to one.
    pub cpus: usize,
    /// Bytes of memory.
    pub memory: u64,
    /// Name and release of the kernel.
    pub kernel: String,
    /// Name of the distribution.
    pub distribution: String,
    /// Where the kernel takes its time from.
    pub clock_source: String,
    /// Whether it is a virtual machine, as far as the CPU shows.
    pub virtual_machine: bool,
}

/// A program that took part, and its version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// Its name.
    pub name: String,
    /// What it says of itself.
    pub version: String,
}

/// Reads the machine; what cannot be read is left empty.
pub fn read() -> Machine {
    let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = text("/proc/cpuinfo");
    let field = |name: &str| {
        let line = cpuinfo.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let total = text("/proc/meminfo");
    let total = total.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kibibytes = total.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    let release = text("/etc/os-release");
    let pretty = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    Machine {
        cpu: field("model name").unwrap_or_default(),
        cpus: cpuinfo
            .lines()
            .filter(|line| line.starts_with("processor"))
            .count(),
        memory: kibibytes.unwrap_or(0) * 1024,
        kernel: format!(
            "{} {}",
            text("/proc/sys/kernel/ostype").trim(),
            text("/proc/sys/kernel/osrelease").trim()
        ),
        distribution: pretty.unwrap_or_default().trim_matches('"').to_owned(),
        clock_source: text("/sys/devices/system/clocksource/clocksource0/current_clocksource")
            .trim()
            .to_owned(),
        virtual_machine: field("flags")
            .is_some_and(|flags| flags.split(' ').any(|flag| flag == "hypervisor")),
    }
}

/// Descriptors that a process may have. The limit of this process, which its children inherit, is raised to that.
///
/// # Errors
/// The limit cannot be raised.
pub(crate) fn descriptors() -> std::io::Result<u64> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    /// What a machine without a limit would let a process have, about.
    const MOST: u64 = 1 << 20;
    let limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.unwrap_or(MOST);
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: Some(most),
            maximum: limit.maximum,
        },
    )?;
    Ok(most)
}

/// Programs that may take part, and the arguments that print their versions.
const PROGRAMS: [(&str, &[&str]); 3] = [
    ("kamailio", &["-V"]),
    ("mariadbd", &["--no-defaults", "--version"]),
    ("sipp", &["-v"]),
];

/// Those that are installed.
pub fn programs() -> Vec<Program> {
    let found = PROGRAMS.iter().filter_map(|(name, arguments)| {
        let path = programs::find(name)?;
        let version = programs::first_line(&path, arguments)?;
        Some(Program {
            name: (*name).to_owned(),
            // MariaDB's begins with its path.
            version: version.replace(&*path.to_string_lossy(), name),
        })
    });
    found.collect()
}

/// The commit that a program was built from: what the build said, else that of the tree that it lies in (and then it
/// may be older than that tree), else `unknown`.
pub fn commit(built: Option<&str>, program: &Path) -> String {
    built.map_or_else(
        || of_tree(program).unwrap_or_else(|| "unknown".to_owned()),
        str::to_owned,
    )
}

fn of_tree(program: &Path) -> Option<String> {
    let directory: PathBuf = program
        .ancestors()
        .find(|at| at.join(".git").exists())?
        .to_owned();
    let git = |arguments: &[&str]| {
        let mut command = Command::new("git");
        command.arg("-C").arg(&directory).args(arguments);
        programs::run(&mut command, "").ok()
    };
    let commit = git(&["rev-parse", "HEAD"])?.trim().to_owned();
    let clean = git(&["status", "--porcelain", "--untracked-files=no"])?
        .trim()
        .is_empty();
    let changes = if clean { "" } else { ", with changes" };
    Some(format!("{commit} (of the tree around the program{changes})"))
}

/// This moment, as in RFC 3339, in UTC.
pub fn now() -> String {
    let seconds = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs();
    date(seconds)
}

/// Days since 1970 to a date, by the civil calendar's cycles of 400 years.
fn date(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Counted from 0000-03-01, so that a leap day is the last of its year.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (year, month) = (
        era * 400 + year + u64::from(month >= 10),
        if month < 10 { month + 3 } else { month - 9 },
    );
    let (hour, minute, second) = (rest / 3600, rest % 3600 / 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_follow_the_calendar() {
        assert_eq!(date(0), "1970-01-01T00:00:00Z");
        assert_eq!(date(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(date(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(date(951_868_800), "2000-03-01T00:00:00Z");
        assert_eq!(date(1_767_225_599), "2025-12-31T23:59:59Z");
        assert_eq!(date(1_767_225_600), "2026-01-01T00:00:00Z");
        assert_eq!(now().len(), 20);
    }

    #[test]
    fn this_machine_is_known() {
        let machine = read();
        assert!(machine.cpus > 0 && machine.memory > 0);
        assert!(machine.kernel.starts_with("Linux "), "{machine:?}");
    }

    #[test]
    fn descriptors_are_raised() {
        let most = descriptors().unwrap();
        let now = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        assert_eq!(now.current, Some(most));
    }

    #[test]
    fn a_commit_is_what_the_build_said_or_unknown() {
        assert_eq!(commit(Some("abc"), Path::new("/nowhere")), "abc");
        assert_eq!(commit(None, Path::new("/nowhere/trapezoid")), "unknown");
    }
}

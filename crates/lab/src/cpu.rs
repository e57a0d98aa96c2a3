//! CPU time of processes and their threads, and the speed of a CPU.
//!
//! Seconds come from `schedstat`, to the nanosecond. How they split into user and system comes from `utime` and
//! `stime`, which the kernel samples: good to some per cent over ten seconds.

use std::collections::BTreeMap;
use std::fs;
use std::hint::black_box;
use std::time::Instant;

use md5::{Digest, Md5};
use serde::{Deserialize, Serialize};

use crate::process::set_affinity;

/// What processes have used up to a moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// When.
    pub at: Instant,
    /// Seconds on a CPU, of all threads that live.
    pub total_s: f64,
    /// Ticks in user mode.
    pub user: u64,
    /// Ticks in the kernel.
    pub system: u64,
    /// Seconds of the threads of each name.
    pub threads: BTreeMap<String, f64>,
}

/// What processes have used between two moments.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Used {
    /// Seconds between the moments.
    pub wall_s: f64,
    /// Seconds on a CPU.
    pub total_s: f64,
    /// Of which in user mode, by the kernel's samples.
    pub user_s: f64,
    /// Of which in the kernel, by its samples.
    pub system_s: f64,
    /// Seconds of the threads of each name.
    pub threads: BTreeMap<String, f64>,
}

impl Used {
    /// Share of one CPU: 1 is all of it.
    pub fn utilization(&self) -> f64 {
        ratio(self.total_s, self.wall_s)
    }

    /// Microseconds for each of so many operations a second.
    pub fn us_each(&self, per_second: f64) -> f64 {
        ratio(self.utilization() * 1e6, per_second)
    }

    /// Part of the time that was spent in user mode; 0 where nothing was sampled.
    pub fn user_share(&self) -> f64 {
        ratio(self.user_s, self.user_s + self.system_s)
    }
}

/// A quotient, 0 where there is nothing to divide by.
pub(crate) fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

/// Reads a process and its descendants.
pub fn sample(root: u32) -> Sample {
    let mut found = Sample {
        at: Instant::now(),
        total_s: 0.0,
        user: 0,
        system: 0,
        threads: BTreeMap::new(),
    };
    for pid in tree(root) {
        if let Some((_, user, system)) = stat(pid) {
            found.user += user;
            found.system += system;
        }
        for (name, seconds) in threads(pid) {
            found.total_s += seconds;
            *found.threads.entry(name).or_default() += seconds;
        }
    }
    found
}

/// What was used between two samples.
pub fn used(before: &Sample, after: &Sample) -> Used {
    let total_s = (after.total_s - before.total_s).max(0.0);
    let user = after.user.saturating_sub(before.user) as f64;
    let system = after.system.saturating_sub(before.system) as f64;
    let threads = after.threads.iter().map(|(name, seconds)| {
        let earlier = before.threads.get(name).copied().unwrap_or(0.0);
        (name.clone(), (seconds - earlier).max(0.0))
    });
    Used {
        wall_s: after.at.saturating_duration_since(before.at).as_secs_f64(),
        total_s,
        // Samples say how it splits, schedstat how much it is.
        user_s: total_s * ratio(user, user + system),
        system_s: total_s * ratio(system, user + system),
        threads: threads.collect(),
    }
}

/// A process and all that descend from it.
pub(crate) fn tree(root: u32) -> Vec<u32> {
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    for pid in entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()) {
        if let Some((parent, ..)) = stat(pid) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let (mut found, mut next) = (vec![root], 0);
    while let Some(pid) = found.get(next) {
        found.extend(children.get(pid).into_iter().flatten());
        next += 1;
    }
    found
}

/// Parent, ticks in user mode and ticks in the kernel.
fn stat(pid: u32) -> Option<(u32, u64, u64)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // pid (name) state ppid …; the name may hold anything.
    let fields: Vec<&str> = text
        .get(text.rfind(')')? + 1..)?
        .split_ascii_whitespace()
        .collect();
    let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
    Some((u32::try_from(number(1)?).ok()?, number(11)?, number(12)?))
}

/// Seconds on a CPU of each thread of a process, with its name.
pub(crate) fn threads(pid: u32) -> Vec<(String, f64)> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten();
    tasks
        .filter_map(|task| {
            let name = fs::read_to_string(task.path().join("comm")).ok()?;
            let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
            let nanoseconds: u64 = text.split_ascii_whitespace().next()?.parse().ok()?;
            Some((name.trim().to_owned(), nanoseconds as f64 / 1e9))
        })
        .collect()
}

/// CPUs that this process may use.
pub(crate) fn allowed() -> Vec<usize> {
    let text = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let list = text
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))
        .unwrap_or_default();
    numbers(list.trim())
}

/// `0-2,5` as numbers.
fn numbers(list: &str) -> Vec<usize> {
    list.split(',')
        .filter_map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            Some(first.trim().parse::<usize>().ok()?..=last.trim().parse().ok()?)
        })
        .flatten()
        .collect()
}

/// Milliseconds that a CPU needs for a fixed piece of work (MD5 of 1 MiB, the best of eight): a shared host varies.
pub(crate) fn probe(cpu: usize) -> Option<f64> {
    let thread = std::thread::spawn(move || {
        set_affinity(&[cpu]).ok()?;
        let block = vec![0_u8; 1 << 20];
        let times = (0..8).map(|_| {
            let began = Instant::now();
            black_box(Md5::digest(black_box(&block)));
            began.elapsed().as_secs_f64() * 1e3
        });
        times.min_by(f64::total_cmp)
    });
    thread.join().ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(after_s: u64, total_s: f64, user: u64, system: u64, threads: &[(&str, f64)]) -> Sample {
        static START: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
        Sample {
            at: *START + std::time::Duration::from_secs(after_s),
            total_s,
            user,
            system,
            threads: threads.iter().map(|(n, s)| ((*n).to_owned(), *s)).collect(),
        }
    }

    #[test]
    fn what_was_used_and_how_it_splits() {
        let before = at(10, 5.0, 100, 100, &[("worker-0", 4.0), ("main", 1.0)]);
        let after = at(
            20,
            9.0,
            400,
            200,
            &[("worker-0", 7.5), ("main", 1.0), ("new", 0.5)],
        );
        let used = used(&before, &after);
        assert_eq!((used.wall_s, used.total_s), (10.0, 4.0));
        assert_eq!((used.user_s, used.system_s), (3.0, 1.0));
        assert_eq!(used.utilization(), 0.4);
        assert_eq!(used.user_share(), 0.75);
        assert_eq!(used.us_each(1000.0), 400.0);
        assert_eq!(used.us_each(0.0), 0.0);
        assert_eq!(used.threads["worker-0"], 3.5);
        assert_eq!(used.threads["new"], 0.5);
    }

    #[test]
    fn nothing_goes_backwards() {
        let before = at(10, 5.0, 100, 100, &[("gone", 4.0)]);
        let used = used(&before, &at(9, 1.0, 50, 50, &[]));
        assert_eq!((used.wall_s, used.total_s, used.utilization()), (0.0, 0.0, 0.0));
    }

    /// A process of its own: threads of other tests begin and end in this one.
    #[test]
    fn a_process_that_works_is_seen() {
        let mut child = std::process::Command::new("sh")
            .args(["-c", "while :; do :; done"])
            .spawn()
            .unwrap();
        let before = sample(child.id());
        let deadline = Instant::now() + std::time::Duration::from_secs(30);
        let found = loop {
            let found = used(&before, &sample(child.id()));
            if found.total_s > 0.0 || Instant::now() > deadline {
                break found;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        };
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(found.total_s > 0.0 && found.wall_s > 0.0, "{found:?}");
    }

    #[test]
    fn descendants_are_counted() {
        let mut child = std::process::Command::new("sh")
            .args(["-c", "sleep 60 & wait"])
            .spawn()
            .unwrap();
        let deadline = Instant::now() + std::time::Duration::from_secs(20);
        while tree(child.id()).len() < 2 && Instant::now() < deadline {
            std::thread::yield_now();
        }
        let found = tree(child.id());
        assert_eq!(found.len(), 2);
        for pid in found.iter().rev() {
            let pid = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        }
        child.wait().unwrap();
    }

    #[test]
    fn lists_of_cpus() {
        assert_eq!(numbers("0-2,5"), [0, 1, 2, 5]);
        assert_eq!(numbers("3"), [3]);
        assert_eq!(numbers(""), [0; 0]);
        assert!(!allowed().is_empty());
        assert!(probe(allowed()[0]).unwrap() > 0.0);
        assert_eq!(probe(100_000), None, "no such CPU");
    }
}

//! An equal quota of CPU for each emulated node, by control groups of version 1 or 2.
//!
//! Groups are made under a name of ours and removed with their handle. Where that cannot be done, it is said why, and
//! the experiment goes on without.

use std::fs;
use std::path::{Path, PathBuf};

/// How often a quota is handed out, microseconds: short, so that a group that has used its own waits milliseconds.
const PERIOD_US: u64 = 10_000;
/// Least quota that the kernel takes, microseconds.
const LEAST_US: u64 = 1_000;
/// Where hierarchies are mounted; the first form is version 1's.
const ROOT: &str = "/sys/fs/cgroup";

/// How quotas can be given here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Version 1: the directory of the CPU controller where groups can be made.
    One(PathBuf),
    /// Version 2: the same.
    Two(PathBuf),
}

/// A group with a quota; removed when dropped, when no process is left in it.
#[derive(Debug)]
pub(crate) struct Group {
    directory: PathBuf,
}

/// How quotas can be given on this machine, or why they cannot.
pub(crate) fn kind() -> Result<Kind, String> {
    kind_under(
        Path::new(ROOT),
        &fs::read_to_string("/proc/self/cgroup").unwrap_or_default(),
    )
}

fn kind_under(root: &Path, own: &str) -> Result<Kind, String> {
    // N:controllers:PATH; version 2 is 0::PATH.
    let path_of = |wanted: &dyn Fn(&str) -> bool| {
        own.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':');
            let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
            wanted(controllers).then(|| path.trim_start_matches('/').to_owned())
        })
    };
    let is_cpu = |controllers: &str| controllers.split(',').any(|one| one == "cpu");
    if let Some(path) = path_of(&is_cpu) {
        for directory in ["cpu", "cpu,cpuacct"].map(|name| root.join(name)) {
            let own = directory.join(&path);
            if own.join("cpu.cfs_quota_us").exists() || own.join("cgroup.procs").exists() {
                return Ok(Kind::One(own));
            }
        }
    }
    let path = path_of(&|controllers| controllers.is_empty()).ok_or("the kernel has no control groups")?;
    let own = root.join(path);
    // Children have the controllers that their parent passes on.
    let mut at = own.as_path();
    loop {
        let passed = fs::read_to_string(at.join("cgroup.subtree_control")).unwrap_or_default();
        if passed.split_whitespace().any(|one| one == "cpu") {
            return Ok(Kind::Two(at.to_owned()));
        }
        match at.parent() {
            Some(parent) if parent.starts_with(root) => at = parent,
            _ => return Err("no control group here passes the CPU controller on to its children".to_owned()),
        }
    }
}

impl Kind {
    /// Makes a group whose processes get this part of one CPU in all.
    pub(crate) fn group(&self, name: &str, part: f64) -> Result<Group, String> {
        let quota_us = ((part * PERIOD_US as f64).round() as u64).max(LEAST_US);
        let (parent, settings) = match self {
            Self::One(parent) => (
                parent,
                vec![
                    ("cpu.cfs_period_us", PERIOD_US.to_string()),
                    ("cpu.cfs_quota_us", quota_us.to_string()),
                ],
            ),
            Self::Two(parent) => (parent, vec![("cpu.max", format!("{quota_us} {PERIOD_US}"))]),
        };
        let directory = parent.join(format!("trapezoid-lab-{}-{name}", std::process::id()));
        let failed = |error: std::io::Error| format!("{}: {error}", directory.display());
        fs::create_dir(&directory).map_err(failed)?;
        let group = Group {
            directory: directory.clone(),
        };
        for (file, value) in settings {
            fs::write(directory.join(file), value).map_err(failed)?;
        }
        Ok(group)
    }

    /// For people.
    pub(crate) fn text(&self) -> &'static str {
        match self {
            Self::One(_) => "control groups of version 1",
            Self::Two(_) => "control groups of version 2",
        }
    }
}

impl Group {
    /// The file that takes the numbers of processes.
    pub(crate) fn processes(&self) -> PathBuf {
        self.directory.join("cgroup.procs")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The kernel takes a moment to forget processes that have just ended.
        for _ in 0..50 {
            if fs::remove_dir(&self.directory).is_ok() || !self.directory.exists() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_one_is_taken_where_it_has_the_controller() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("cpu,cpuacct/mine")).unwrap();
        fs::write(root.path().join("cpu,cpuacct/mine/cgroup.procs"), "").unwrap();
        let found = kind_under(root.path(), "4:memory:/m\n2:cpu,cpuacct:/mine\n0::/\n").unwrap();
        assert_eq!(found, Kind::One(root.path().join("cpu,cpuacct/mine")));
    }

    #[test]
    fn version_two_is_taken_where_it_is_passed_on() {
        let root = tempfile::tempdir().unwrap();
        let own = root.path().join("user/session");
        fs::create_dir_all(&own).unwrap();
        let refused = kind_under(root.path(), "0::/user/session\n").unwrap_err();
        assert!(refused.contains("CPU controller"), "{refused}");
        fs::write(root.path().join("user/cgroup.subtree_control"), "cpu memory\n").unwrap();
        let found = kind_under(root.path(), "0::/user/session\n").unwrap();
        assert_eq!(found, Kind::Two(root.path().join("user")));
        assert!(kind_under(root.path(), "").is_err());
    }

    #[test]
    fn a_group_has_its_quota_and_goes() {
        let root = tempfile::tempdir().unwrap();
        let directory = {
            let group = Kind::Two(root.path().to_owned()).group("a", 0.2).unwrap();
            assert_eq!(
                fs::read_to_string(group.directory.join("cpu.max")).unwrap(),
                "2000 10000"
            );
            assert!(group.processes().ends_with("cgroup.procs"));
            // The kernel's directories can be removed with their files; these are plain.
            fs::remove_file(group.directory.join("cpu.max")).unwrap();
            group.directory.clone()
        };
        assert!(!directory.exists());
        let one = Kind::One(root.path().to_owned()).group("b", 0.001).unwrap();
        let quota = fs::read_to_string(one.directory.join("cpu.cfs_quota_us")).unwrap();
        assert_eq!(quota, "1000", "the least that the kernel takes");
        fs::remove_dir_all(&one.directory).unwrap();
        assert!(Kind::One(root.path().join("none")).group("c", 0.5).is_err());
    }
}

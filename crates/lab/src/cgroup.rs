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

/// What names of ours begin with; the number of the lab's process and a name follow.
const PREFIX: &str = "trapezoid-lab-";

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
        let mounts = ["cpu", "cpu,cpuacct"].map(|name| root.join(name));
        // In a container without a namespace of its own for groups, the path is one of the host, and what is mounted
        // here is ours.
        let places = mounts.iter().flat_map(|at| [at.join(&path), at.clone()]);
        for own in places {
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
    /// Makes a group that gives its processes this part of one CPU in all.
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
        let directory = parent.join(format!("{PREFIX}{}-{name}", std::process::id()));
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

    /// Removes groups of labs that were killed: the kernel refuses where a process is left.
    fn sweep(&self) {
        let (Self::One(parent) | Self::Two(parent)) = self;
        for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let lab = name
                .to_str()
                .and_then(|name| name.strip_prefix(PREFIX)?.split_once('-'));
            if lab.is_some_and(|(lab, _)| !Path::new("/proc").join(lab).exists()) {
                drop(fs::remove_dir(entry.path()));
            }
        }
    }

    /// Tries: a group is made and a process moved into it, and both go again.
    pub(crate) fn attempt(&self) -> Result<(), String> {
        self.sweep();
        let group = self.group("trial", 0.5)?;
        let mut child = std::process::Command::new("sleep")
            .arg("10")
            .spawn()
            .map_err(|error| format!("sleep: {error}"))?;
        let moved = fs::write(group.processes(), child.id().to_string());
        // It is ours and still there: nothing of it can fail but by having ended.
        drop(child.kill());
        drop(child.wait());
        moved.map_err(|error| format!("{}: {error}", group.processes().display()))
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
        fs::write(root.path().join("cpu,cpuacct/cgroup.procs"), "").unwrap();
        let found = kind_under(root.path(), "2:cpu,cpuacct:/docker/0123\n").unwrap();
        assert_eq!(found, Kind::One(root.path().join("cpu,cpuacct")), "a container's");
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
    fn what_a_killed_lab_left_is_removed() {
        let root = tempfile::tempdir().unwrap();
        let mine = format!("{PREFIX}{}-server", std::process::id());
        // No process has the number 0.
        for name in ["trapezoid-lab-0-server", &mine, "trapezoid-lab-other", "else-0-x"] {
            fs::create_dir(root.path().join(name)).unwrap();
        }
        Kind::Two(root.path().to_owned()).sweep();
        let left = |name: &str| root.path().join(name).exists();
        assert!(!left("trapezoid-lab-0-server"));
        assert!(left(&mine) && left("trapezoid-lab-other") && left("else-0-x"));
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

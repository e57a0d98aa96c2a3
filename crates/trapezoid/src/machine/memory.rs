//! The memory that this process may use.

use std::fs;
use std::path::{Component, Path};

/// Limits above this mean none: version 1 of control groups writes the largest number of whole pages for no
/// limit.
const LARGEST: u64 = 1 << 60;

/// Bytes of memory: those of the machine, or the least limit of the control groups of this process, if that
/// is less. `None`: neither is known.
///
/// `proc` and `groups` are the mount points of the kernel's `/proc` and `/sys/fs/cgroup`.
pub(super) fn bytes(proc: &Path, groups: &Path) -> Option<u64> {
    let own = fs::read_to_string(proc.join("self/cgroup")).unwrap_or_default();
    let limits = own.lines().filter_map(|line| of_hierarchy(groups, line));
    of_machine(proc).into_iter().chain(limits).min()
}

fn of_machine(proc: &Path) -> Option<u64> {
    let text = fs::read_to_string(proc.join("meminfo")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// The least limit by a line of `/proc/self/cgroup`: `0::PATH` in version 2, `NUMBER:CONTROLLERS:PATH` in version 1.
fn of_hierarchy(groups: &Path, line: &str) -> Option<u64> {
    let mut parts = line.splitn(3, ':');
    let (number, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
    if controllers.split(',').any(|controller| controller == "memory") {
        least(&groups.join("memory"), path, "memory.limit_in_bytes")
    } else if number == "0" && controllers.is_empty() {
        least(groups, path, "memory.max")
    } else {
        None
    }
}

/// The least limit in the files `name` of a group and of all groups around it.
///
/// If a container has no namespace of its own for groups, its path is that of the host. Its groups are not
/// mounted, and the root of the mounted ones is its own group.
fn least(root: &Path, path: &str, name: &str) -> Option<u64> {
    let mut at = root.to_owned();
    let mut found = limit(&at.join(name));
    for part in Path::new(path).components() {
        match part {
            Component::Normal(part) => at.push(part),
            // A group outside of the namespace (`/../other`).
            Component::ParentDir => break,
            Component::RootDir | Component::CurDir | Component::Prefix(_) => continue,
        }
        found = found.into_iter().chain(limit(&at.join(name))).min();
    }
    found
}

/// The limit in a file; `None`: no file, `max`, or effectively no limit.
fn limit(file: &Path) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    text.trim().parse().ok().filter(|bytes| *bytes < LARGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    /// The result for a machine with 8 GiB, this `/proc/self/cgroup`, and these files below `/sys/fs/cgroup`.
    fn found(own: &str, files: &[(&str, &str)]) -> Option<u64> {
        found_with("MemFree: 1 kB\nMemTotal:        8388608 kB\n", own, files)
    }

    fn found_with(meminfo: &str, own: &str, files: &[(&str, &str)]) -> Option<u64> {
        let root = tempfile::tempdir().expect("a directory");
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("directories");
            fs::write(path, text).expect("a file");
        };
        write("proc/meminfo", meminfo);
        write("proc/self/cgroup", own);
        for (path, text) in files {
            write(&format!("groups/{path}"), text);
        }
        bytes(&root.path().join("proc"), &root.path().join("groups"))
    }

    #[test]
    fn the_memory_of_this_machine_is_known() {
        let found = bytes(Path::new("/proc"), Path::new("/sys/fs/cgroup")).expect("Linux says it");
        assert!(found > 16 << 20, "{found}");
    }

    #[test]
    fn the_least_limit_of_the_groups_holds() {
        let own = "0::/pods.slice/pod/server\n";
        let (one, two) = ("1073741824\n", "2147483648\n");
        let (root, slice, pod, leaf) = (
            "memory.max",
            "pods.slice/memory.max",
            "pods.slice/pod/memory.max",
            "pods.slice/pod/server/memory.max",
        );
        for level in [root, slice, pod, leaf] {
            assert_eq!(found(own, &[(level, one)]), Some(GIB), "{level}");
        }
        for (outer, inner, expected) in [
            (one, two, GIB),
            (two, one, GIB),
            (one, "max\n", GIB),
            ("max\n", two, 2 * GIB),
            ("max\n", "max\n", 8 * GIB),
            ("17179869184\n", "max\n", 8 * GIB),
        ] {
            let files = [(slice, outer), (leaf, inner)];
            assert_eq!(found(own, &files), Some(expected), "{files:?}");
        }
        // Limits of a group beside it, or in a file of version 1, do not apply.
        for beside in [
            "pods.slice/other/memory.max",
            "pods.slice/pod/memory.limit_in_bytes",
        ] {
            assert_eq!(found(own, &[(beside, one)]), Some(8 * GIB), "{beside}");
        }
        // For a group outside of the namespace, the limits around it apply.
        assert_eq!(found("0::/../other\n", &[(root, one)]), Some(GIB));
        assert_eq!(found("0::/\n", &[(root, one)]), Some(GIB));
    }

    #[test]
    fn version_1_is_read_too() {
        const NONE: &str = "9223372036854771712\n";
        let own = "12:cpu,cpuacct:/cpu\n4:hugetlb,memory:/docker/server\n1:name=systemd:/init\n0::/other\n";
        let (root, parent, leaf) = (
            "memory/memory.limit_in_bytes",
            "memory/docker/memory.limit_in_bytes",
            "memory/docker/server/memory.limit_in_bytes",
        );
        for level in [root, parent, leaf] {
            assert_eq!(found(own, &[(level, "1073741824\n")]), Some(GIB), "{level}");
        }
        let files = [(root, NONE), (parent, "1073741824\n"), (leaf, "2147483648\n")];
        assert_eq!(found(own, &files), Some(GIB));
        assert_eq!(found(own, &[(root, NONE), (leaf, NONE)]), Some(8 * GIB));
        assert_eq!(found_with("", own, &[(leaf, NONE)]), None);
        // Limits of both versions.
        let both = [(leaf, "2147483648\n"), ("other/memory.max", "1073741824\n")];
        assert_eq!(found(own, &both), Some(GIB));
        // A path may have colons.
        let files = [("memory/a:b/memory.limit_in_bytes", "1073741824")];
        assert_eq!(found("4:memory:/a:b\n", &files), Some(GIB));
    }

    #[test]
    fn what_cannot_be_read_limits_nothing() {
        let own = "0::/server\n";
        for text in ["", "\n", "1 GiB\n", "-1\n", "99999999999999999999999\n"] {
            let files = [("server/memory.max", text), ("memory.max", "2147483648\n")];
            assert_eq!(found(own, &files), Some(2 * GIB), "{text:?}");
        }
        for own in [
            "",
            "\n",
            "0:\n",
            "0::\n",
            "x",
            "4:memory\n",
            "4:memoryx:/server\n",
        ] {
            assert_eq!(
                found(own, &[("server/memory.max", "1\n")]),
                Some(8 * GIB),
                "{own:?}"
            );
        }
        for meminfo in [
            "",
            "MemTotal: x kB\n",
            "MemTotal: 1 MB\n",
            "MemTotal: 18446744073709551615 kB\n",
        ] {
            assert_eq!(found_with(meminfo, own, &[]), None, "{meminfo:?}");
        }
        let nowhere = Path::new("/nonexistent");
        assert_eq!(bytes(nowhere, nowhere), None);
    }
}

//! Programs, users and processes of the machine. Linux only: processes are read from /proc.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Another user, which runs a program and owns its files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

/// The user of this process.
pub(crate) fn own_uid() -> u32 {
    fs::metadata("/proc/self").expect("/proc is mounted").uid()
}

/// An existing user that is not root: PostgreSQL's user, or else `nobody`.
pub(crate) fn unprivileged() -> Owner {
    let users = fs::read_to_string("/etc/passwd").expect("/etc/passwd can be read");
    ["postgres", "nobody"]
        .iter()
        .find_map(|name| user(&users, name))
        .expect("PostgreSQL does not run as root, and there is neither a user `postgres` nor `nobody`")
}

/// name:password:uid:gid:…
fn user(passwd: &str, name: &str) -> Option<Owner> {
    let line = passwd.lines().find(|line| line.split(':').next() == Some(name))?;
    let mut fields = line.split(':').skip(2).map_while(|field| field.parse().ok());
    Some(Owner {
        uid: fields.next()?,
        gid: fields.next()?,
    })
}

/// Where a program is; users other than root do not have the sbin directories in PATH.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/usr/local/sbin", "/sbin"].map(PathBuf::from))
        .map(|dir| dir.join(name))
        .find(|candidate| is_executable(candidate))
}

pub(crate) fn is_executable(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

/// A command that sees nothing of this process's environment (PGHOST, MYSQL_HOME, languages)
/// but where programs are.
pub(crate) fn clean_command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("LC_ALL", "C")
        .env("TZ", "UTC")
        .current_dir("/");
    command
}

/// The same, run by another user.
pub(crate) fn command_of(owner: Option<Owner>, program: impl AsRef<OsStr>) -> Command {
    let mut command = clean_command(program);
    if let Some(owner) = owner {
        command.uid(owner.uid).gid(owner.gid);
    }
    command
}

/// Runs a command to its end.
///
/// # Panics
/// When it cannot be run or fails; shows what it said.
pub(crate) fn output(command: &mut Command) -> Output {
    match command.output() {
        Ok(output) if output.status.success() => output,
        Ok(output) => panic!(
            "{command:?} failed ({}):\n{}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        ),
        Err(error) => panic!("{command:?} cannot be run: {error}"),
    }
}

/// State letter and parent of a process; `None`: there is none.
fn process(pid: u32) -> Option<(char, u32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // pid (name) state ppid …; the name may hold anything.
    let mut fields = stat.get(stat.rfind(')')? + 1..)?.split_ascii_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

/// Whether a process still runs, rather than being gone or waiting to be reaped.
pub(crate) fn runs(pid: u32) -> bool {
    process(pid).is_some_and(|(state, _)| !matches!(state, 'Z' | 'X'))
}

/// The processes that a process has started.
pub(crate) fn children(of: u32) -> Vec<u32> {
    let entries = fs::read_dir("/proc").expect("/proc is mounted");
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| process(*pid).is_some_and(|(_, parent)| parent == of))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_found_by_their_whole_name() {
        let passwd = "root:x:0:0::/:/bin/sh\npost:x:9:9::/:/bin/sh\npostgres:x:101:104:a,,:/:/bin/sh\n";
        assert_eq!(user(passwd, "postgres"), Some(Owner { uid: 101, gid: 104 }));
        assert_eq!(user(passwd, "nobody"), None);
    }

    #[test]
    fn processes_and_their_children() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        assert!(runs(child.id()));
        assert!(children(std::process::id()).contains(&child.id()));
        child.kill().unwrap();
        while runs(child.id()) {
            std::thread::yield_now();
        }
        assert!(
            Path::new(&format!("/proc/{}", child.id())).exists(),
            "not reaped yet"
        );
        child.wait().unwrap();
    }
}

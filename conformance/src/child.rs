//! A program that ends with its handle.

use std::fs::File;
use std::path::Path;
use std::process::{ChildStdin, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::PATIENCE;

/// Between two looks at what is waited for.
const PAUSE: Duration = Duration::from_millis(10);

/// A running program with its output in a log file; killed when dropped.
#[derive(Debug)]
pub struct Child {
    name: String,
    inner: std::process::Child,
    /// Whether what it has started ends with it.
    has_others: bool,
}

impl Child {
    /// Starts it. Standard input is empty; output and errors go to `log`.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn start(name: &str, command: &mut Command, log: &Path) -> Self {
        Self::spawn(name, command.stdin(Stdio::null()), log)
    }

    fn spawn(name: &str, command: &mut Command, log: &Path) -> Self {
        let out = File::create(log).expect("a log file");
        let err = out.try_clone().expect("a log file");
        let inner = command
            .stdout(out)
            .stderr(err)
            .spawn()
            .unwrap_or_else(|error| panic!("{name}: cannot start {:?}: {error}", command.get_program()));
        Self {
            name: name.to_owned(),
            inner,
            has_others: false,
        }
    }

    /// Starts a program that starts others, which are ended with it.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn start_with_others(name: &str, command: &mut Command, log: &Path) -> Self {
        let mut child = Self::start(name, command, log);
        child.has_others = true;
        child
    }

    /// The same, and what is written to the returned pipe is its input.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn start_with_input(name: &str, command: &mut Command, log: &Path) -> (Self, ChildStdin) {
        let mut child = Self::spawn(name, command.stdin(Stdio::piped()), log);
        child.has_others = true;
        let input = child.inner.stdin.take().expect("a pipe, as above");
        (child, input)
    }

    /// The number of its process.
    pub fn id(&self) -> u32 {
        self.inner.id()
    }

    /// Sends a signal, named as `kill` names it.
    pub fn signal(&self, signal: &str) {
        send_signal(signal, &[self.inner.id()]);
    }

    /// Its status, if it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.inner.try_wait().expect("a child can be asked")
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// After `limit`.
    #[track_caller]
    pub fn wait(&mut self, limit: Duration) -> ExitStatus {
        let mut status = None;
        wait_within(&format!("the end of {}", self.name), limit, || {
            status = self.ended();
            status.is_some()
        });
        status.expect("it has ended, as above")
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if self.has_others {
            send_signal("KILL", &descendants(self.inner.id()));
        }
        // Both fail only where it has ended already.
        let _ = self.inner.kill();
        let _ = self.inner.wait();
    }
}

fn send_signal(signal: &str, to: &[u32]) {
    let to: Vec<String> = to.iter().map(u32::to_string).collect();
    let sent = Command::new("sh")
        .args(["-c", &format!("kill -{signal} {}", to.join(" "))])
        .stderr(Stdio::null())
        .status();
    assert!(sent.is_ok(), "no shell to send signals with");
}

/// The processes that this one has started, and those that they have.
fn descendants(of: u32) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let parents: Vec<(u32, u32)> = processes
        .filter_map(|entry| {
            let process = entry.file_name().to_str()?.parse().ok()?;
            let text = std::fs::read_to_string(entry.path().join("stat")).ok()?;
            // PID (NAME) STATE PPID: only the name may hold anything.
            let after_name = text.rsplit_once(')')?.1;
            let parent = after_name.split_whitespace().nth(1)?.parse().ok()?;
            Some((process, parent))
        })
        .collect();
    let mut found = vec![of];
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        let children = parents.iter().filter(|(_, of)| *of == parent);
        found.extend(children.map(|(process, _)| process));
        next += 1;
    }
    found.split_off(1)
}

/// Asks `ready` until it says yes.
///
/// # Panics
/// After [`PATIENCE`], naming `what`.
#[track_caller]
pub fn wait_until(what: &str, ready: impl FnMut() -> bool) {
    wait_within(what, PATIENCE, ready);
}

/// The outcome of the first attempt that is one. An attempt is `None` if the machine was late: an act of the test
/// came when a time-out of the server was over. The next attempt has a scene of its own.
///
/// # Panics
/// If that is so for [`PATIENCE`].
#[track_caller]
pub fn in_time<T>(mut attempt: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(outcome) = attempt() {
            return outcome;
        }
        assert!(begun.elapsed() < PATIENCE, "the machine is late each time");
        eprintln!("the machine was late; once more");
    }
}

/// The same as [`wait_until`], for as long as `limit`.
#[track_caller]
pub(crate) fn wait_within(what: &str, limit: Duration, mut ready: impl FnMut() -> bool) {
    let deadline = Instant::now() + limit;
    while !ready() {
        assert!(Instant::now() < deadline, "{what}: not within {limit:?}");
        std::thread::sleep(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_program_has_started_ends_with_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let log = dir.path().join("log");
        let mut command = Command::new("sh");
        command.args(["-c", "sh -c 'sleep 100 & wait' & wait"]);
        let child = Child::start_with_others("sh", &mut command, &log);
        let mut others = Vec::new();
        wait_until("three processes", || {
            others = descendants(child.inner.id());
            others.len() >= 2
        });
        drop(child);
        wait_until("their end", || {
            let lives = |process: &u32| {
                let text = std::fs::read_to_string(format!("/proc/{process}/stat"));
                text.is_ok_and(|text| !text.contains(") Z "))
            };
            !others.iter().any(lives)
        });
    }
}

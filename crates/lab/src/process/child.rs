//! Starting, watching and ending children.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::failure::{Failure, Outcome, Stop};
use crate::programs::tail;

/// Between looks at a child.
const LOOK: Duration = Duration::from_millis(20);
/// How long a child may take to end in order.
const PATIENCE: Duration = Duration::from_secs(10);
/// Lines of a log that explain a failure.
const LOG_LINES: usize = 30;

/// Starts children.
#[derive(Debug)]
pub struct Launcher {
    /// Our own program, which is the trampoline.
    program: PathBuf,
    guard: Arc<Guard>,
    stop: Stop,
}

/// What to start.
#[derive(Clone, Debug)]
pub struct Order<'a> {
    /// For messages, and the name of its log.
    pub name: &'a str,
    /// The program and its arguments.
    pub words: Vec<OsString>,
    /// Where it runs; its log lies there.
    pub directory: &'a Path,
    /// CPUs that it may use; empty: all.
    pub cpus: &'a [usize],
    /// `cgroup.procs` files of the groups that it enters.
    pub groups: &'a [PathBuf],
    /// Where its standard output goes.
    pub output: Output,
}

/// Where a child's standard output goes. Standard error always goes to the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// To the log; its standard input is empty.
    Log,
    /// To us, and we may write to its standard input.
    Pipe,
}

impl Launcher {
    /// `program` is the executable with the commands `lab-child` and `lab-guard`.
    ///
    /// # Errors
    /// The guard cannot be started.
    pub fn new(program: PathBuf, stop: Stop) -> Outcome<Self> {
        let guard = Arc::new(Guard::start(&program)?);
        Ok(Self { program, guard, stop })
    }

    /// Starts a child.
    ///
    /// # Errors
    /// It cannot be started, or the end was asked for.
    pub fn start(&self, order: &Order<'_>) -> Outcome<Child> {
        self.stop.check()?;
        let failed =
            |error: std::io::Error| Failure::failed(format!("{} cannot be started", order.name), error);
        let log = order.directory.join(format!("{}.log", order.name));
        let out = File::create(&log).map_err(failed)?;
        let err = out.try_clone().map_err(failed)?;
        let mut command = Command::new(&self.program);
        command
            .args(trampoline_words(order))
            .current_dir(order.directory)
            .env("NO_COLOR", "1")
            // A terminal's Control-C is ours alone: children end in order, one after the other.
            .process_group(0)
            .stderr(err);
        match order.output {
            Output::Log => command.stdin(Stdio::null()).stdout(out),
            Output::Pipe => command.stdin(Stdio::piped()).stdout(Stdio::piped()),
        };
        let mut inner = command.spawn().map_err(failed)?;
        let input = inner.stdin.take();
        let output = inner.stdout.take().map(BufReader::new);
        let child = Child {
            name: order.name.to_owned(),
            input,
            output,
            inner,
            log,
            asked_to_end: false,
            ended: None,
            guard: Arc::clone(&self.guard),
            stop: self.stop.clone(),
        };
        child.guard.tell("add", child.pid());
        Ok(child)
    }
}

fn trampoline_words(order: &Order<'_>) -> Vec<OsString> {
    let mut words: Vec<OsString> = vec![
        "lab-child".into(),
        "--parent".into(),
        std::process::id().to_string().into(),
    ];
    for cpu in order.cpus {
        words.extend(["--cpu".into(), cpu.to_string().into()]);
    }
    for group in order.groups {
        words.extend(["--group".into(), group.clone().into_os_string()]);
    }
    words.push("--".into());
    words.extend(order.words.iter().cloned());
    words
}

/// A running child; ends when dropped.
#[derive(Debug)]
pub struct Child {
    name: String,
    input: Option<ChildStdin>,
    output: Option<BufReader<ChildStdout>>,
    inner: std::process::Child,
    log: PathBuf,
    asked_to_end: bool,
    ended: Option<ExitStatus>,
    guard: Arc<Guard>,
    stop: Stop,
}

impl Child {
    /// Its process, the leader of its group.
    pub fn pid(&self) -> u32 {
        self.inner.id()
    }

    /// The end of what it has said.
    pub fn said(&self) -> String {
        end_of(&self.log)
    }

    /// Its status, if it has ended.
    pub fn status(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none() {
            self.ended = self.inner.try_wait().ok().flatten();
        }
        self.ended
    }

    /// Waits until `ready` says so.
    ///
    /// # Errors
    /// It ended or took too long (its log says why), or the end was asked for.
    pub fn wait_until(&mut self, limit: Duration, mut ready: impl FnMut() -> bool) -> Outcome<()> {
        let deadline = Instant::now() + limit;
        while !ready() {
            if let Some(status) = self.status() {
                let said = self.said();
                return Err(Failure::Failed(format!(
                    "{} ended at its start ({status}):\n{said}",
                    self.name
                )));
            }
            if Instant::now() > deadline {
                let said = self.said();
                return Err(Failure::Failed(format!(
                    "{} is not ready after {} s:\n{said}",
                    self.name,
                    limit.as_secs()
                )));
            }
            self.stop.sleep(LOOK)?;
        }
        Ok(())
    }

    /// Waits for its end; `None`: it still runs after `limit`.
    ///
    /// # Errors
    /// The end was asked for.
    pub fn wait(&mut self, limit: Duration) -> Outcome<Option<ExitStatus>> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.status() {
                return Ok(Some(status));
            }
            if Instant::now() > deadline {
                return Ok(None);
            }
            self.stop.sleep(LOOK)?;
        }
    }

    /// Writes a line to its standard input, and reads one from its standard output.
    ///
    /// # Errors
    /// Its output is not ours, or it has ended.
    pub fn ask(&mut self, line: &str) -> Outcome<String> {
        let (Some(input), Some(output)) = (&mut self.input, &mut self.output) else {
            return Err(Failure::Failed(format!("{} cannot be asked", self.name)));
        };
        let mut answer = String::new();
        let asked = writeln!(input, "{line}")
            .and_then(|()| input.flush())
            .and_then(|()| output.read_line(&mut answer));
        match asked {
            Ok(length) if length > 0 => Ok(answer),
            Ok(_) => Err(Failure::Failed(format!(
                "{} has ended:\n{}",
                self.name,
                self.said()
            ))),
            Err(error) => Err(Failure::failed(format!("{} does not answer", self.name), error)),
        }
    }

    /// Writes a line to its standard input.
    ///
    /// # Errors
    /// Its input is not ours, or it has ended.
    pub fn write_line(&mut self, line: &str) -> Outcome<()> {
        let Some(input) = &mut self.input else {
            return Err(Failure::Failed(format!("{} has no input of ours", self.name)));
        };
        writeln!(input, "{line}")
            .and_then(|()| input.flush())
            .map_err(|error| Failure::failed(format!("{} reads nothing", self.name), error))
    }

    /// Ends its standard input.
    pub fn end_input(&mut self) {
        self.input = None;
    }

    /// Waits for a line of its standard output, which it must write whole; `None`: the output has ended.
    ///
    /// # Errors
    /// No line came in time, the output is not ours, or the end was asked for.
    pub fn read_line(&mut self, limit: Duration) -> Outcome<Option<String>> {
        let deadline = Instant::now() + limit;
        let Some(output) = &mut self.output else {
            return Err(Failure::Failed(format!("{} has no output of ours", self.name)));
        };
        let failed = |error: std::io::Error| Failure::failed(format!("{} cannot be read", self.name), error);
        while output.buffer().is_empty() {
            let mut fds = [PollFd::new(output.get_ref(), PollFlags::IN)];
            let wait = Timespec {
                tv_sec: 0,
                tv_nsec: LOOK.subsec_nanos().into(),
            };
            let ready = poll(&mut fds, Some(&wait)).or_else(|error| {
                // A signal: its handler asks for the end.
                if error == rustix::io::Errno::INTR {
                    Ok(0)
                } else {
                    Err(error)
                }
            });
            if ready.map_err(|error| failed(error.into()))? > 0 {
                break;
            }
            self.stop.check()?;
            if Instant::now() > deadline {
                let said = end_of(&self.log);
                return Err(Failure::Failed(format!(
                    "{} said nothing for {} s:\n{said}",
                    self.name,
                    limit.as_secs()
                )));
            }
        }
        let mut line = String::new();
        let length = output.read_line(&mut line).map_err(failed)?;
        Ok((length > 0).then_some(line))
    }

    /// Asks it to end, once, and does not wait for that.
    pub fn ask_to_end(&mut self) {
        self.input = None;
        if !self.asked_to_end && self.status().is_none() {
            self.asked_to_end = true;
            signal_one(self.pid(), Signal::TERM);
        }
    }

    /// Asks it to end, then makes it, with all that it has started.
    pub fn end(&mut self) {
        self.ask_to_end();
        if self.status().is_none() {
            let deadline = Instant::now() + PATIENCE;
            while self.status().is_none() && Instant::now() < deadline {
                std::thread::sleep(LOOK);
            }
        }
        // Also where the first has ended: others of its group may be left.
        signal_group(self.pid(), Signal::KILL);
        if self.ended.is_none() {
            self.ended = self.inner.wait().ok();
        }
        self.guard.tell("remove", self.pid());
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.end();
    }
}

fn end_of(log: &Path) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    tail(&String::from_utf8_lossy(&text), LOG_LINES)
}

fn signal_one(pid: u32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid.cast_signed()) {
        // It may have ended meanwhile; we have not waited for it, so no other process has its number.
        let _ = kill_process(pid, signal);
    }
}

fn signal_group(pid: u32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid.cast_signed()) {
        // Mostly no process is left.
        let _ = kill_process_group(pid, signal);
    }
}

/// The process that kills our children's groups when we are gone.
#[derive(Debug)]
struct Guard {
    process: Mutex<std::process::Child>,
}

impl Guard {
    fn start(program: &Path) -> Outcome<Self> {
        let process = Command::new(program)
            .arg(OsStr::new("lab-guard"))
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| Failure::failed(format!("{} cannot be run", program.display()), error))?;
        Ok(Self {
            process: Mutex::new(process),
        })
    }

    /// Writes to the guard. A guard that is gone reads nothing; the children still end with their handles.
    fn tell(&self, what: &str, pid: u32) {
        let mut process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(input) = &mut process.stdin {
            let _ = writeln!(input, "{what} {pid}").and_then(|()| input.flush());
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let process = self.process.get_mut().unwrap_or_else(PoisonError::into_inner);
        process.stdin = None;
        drop(process.wait());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_trampoline_gets_its_parents_words() {
        let groups = [PathBuf::from("/sys/fs/cgroup/x/cgroup.procs")];
        let order = Order {
            name: "x",
            words: vec!["prog".into(), "--flag".into()],
            directory: Path::new("."),
            cpus: &[0, 3],
            groups: &groups,
            output: Output::Log,
        };
        let words: Vec<String> = trampoline_words(&order)
            .into_iter()
            .map(|word| word.into_string().unwrap())
            .collect();
        let pid = std::process::id().to_string();
        assert_eq!(
            words,
            [
                "lab-child",
                "--parent",
                &pid,
                "--cpu",
                "0",
                "--cpu",
                "3",
                "--group",
                "/sys/fs/cgroup/x/cgroup.procs",
                "--",
                "prog",
                "--flag"
            ]
        );
    }
}

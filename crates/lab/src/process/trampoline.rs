//! What runs between `fork` and a child's own program, as a program of its own: no `unsafe`, no other program needed.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{self, BufRead};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use rustix::process::{Pid, Signal, getppid, kill_process_group, set_parent_process_death_signal};
use rustix::thread::{CpuSet, sched_setaffinity};

/// What to do before the child's program takes our place.
#[derive(Clone, Debug, Default)]
pub struct Trampoline {
    /// The process that must still be our parent; the kernel reports its end only from now on.
    pub parent: u32,
    /// CPUs that the program may use; empty: all.
    pub cpus: Vec<usize>,
    /// `cgroup.procs` files of the groups to enter.
    pub groups: Vec<PathBuf>,
    /// The program and its arguments.
    pub words: Vec<OsString>,
}

impl Trampoline {
    /// Becomes the program; returns only with why it could not.
    pub fn jump(&self) -> io::Error {
        match self.prepare() {
            Ok(mut command) => command.exec(),
            Err(error) => error,
        }
    }

    fn prepare(&self) -> io::Result<Command> {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        if getppid().map(|pid| pid.as_raw_nonzero().get().cast_unsigned()) != Some(self.parent) {
            return Err(io::Error::other("the lab has ended"));
        }
        if !self.cpus.is_empty() {
            set_affinity(&self.cpus)?;
        }
        for group in &self.groups {
            std::fs::write(group, std::process::id().to_string())?;
        }
        let (program, arguments) = self
            .words
            .split_first()
            .ok_or_else(|| io::Error::other("no program"))?;
        let mut command = Command::new(program);
        command.args(arguments);
        Ok(command)
    }
}

/// Binds this thread to CPUs; threads and processes that it starts inherit that.
pub(crate) fn set_affinity(cpus: &[usize]) -> io::Result<()> {
    let mut set = CpuSet::new();
    for cpu in cpus.iter().filter(|cpu| **cpu < CpuSet::MAX_CPU) {
        set.set(*cpu);
    }
    Ok(sched_setaffinity(None, &set)?)
}

/// Kills process groups once the lab is gone: reads `add PID` and `remove PID` until its input ends.
///
/// # Errors
/// Input that cannot be read; the groups known by then are killed all the same.
pub fn guard(mut orders: impl BufRead) -> io::Result<()> {
    let mut groups = BTreeSet::new();
    let mut line = String::new();
    let end = loop {
        line.clear();
        match orders.read_line(&mut line) {
            Ok(0) => break Ok(()),
            Ok(_) => obey(&mut groups, &line),
            Err(error) => break Err(error),
        }
    };
    for group in groups {
        if let Some(pid) = Pid::from_raw(group) {
            // It may have ended meanwhile.
            let _ = kill_process_group(pid, Signal::KILL);
        }
    }
    end
}

fn obey(groups: &mut BTreeSet<i32>, line: &str) {
    let mut words = line.split_whitespace();
    let (order, number) = (words.next(), words.next().and_then(|word| word.parse().ok()));
    match (order, number) {
        // Group 1 and below would mean all processes, or us.
        (Some("add"), Some(group)) if group > 1 => {
            groups.insert(group);
        }
        (Some("remove"), Some(group)) => {
            groups.remove(&group);
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use super::*;

    #[test]
    fn the_guard_kills_whole_groups_that_were_not_taken_back() {
        let spawn = || {
            Command::new("sh")
                .args(["-c", "sleep 600 & wait"])
                .process_group(0)
                .stdin(Stdio::null())
                .spawn()
                .unwrap()
        };
        let (mut kept, mut taken_back) = (spawn(), spawn());
        let orders = format!(
            "add {0}\nadd {1}\nadd 0\nadd -1\nnonsense\nremove {1}\n",
            kept.id(),
            taken_back.id()
        );
        guard(orders.as_bytes()).unwrap();
        assert!(!kept.wait().unwrap().success());
        assert!(taken_back.try_wait().unwrap().is_none(), "it was not in the list");
        let group = Pid::from_raw(taken_back.id().cast_signed()).unwrap();
        kill_process_group(group, Signal::KILL).unwrap();
        taken_back.wait().unwrap();
    }

    #[test]
    fn the_trampoline_ends_under_another_parent() {
        let trampoline = Trampoline {
            parent: 0,
            words: vec!["true".into()],
            ..Trampoline::default()
        };
        // In a thread: the parent-death signal is a thread's own.
        let error = std::thread::spawn(move || trampoline.jump()).join().unwrap();
        assert!(error.to_string().contains("ended"), "{error}");
    }

    #[test]
    fn a_thread_is_bound() {
        // The first may belong to others.
        let cpu = crate::cpu::allowed().pop().unwrap();
        let bound = std::thread::spawn(move || {
            set_affinity(&[cpu]).unwrap();
            std::fs::read_to_string("/proc/thread-self/status").unwrap()
        });
        let status = bound.join().unwrap();
        let mut lines = status.lines();
        let found = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        assert_eq!(found.map(str::trim), Some(cpu.to_string().as_str()));
    }
}

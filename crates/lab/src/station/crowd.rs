//! The crowd of clients, as a child process.

use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;

use crate::crowd::said;
use crate::failure::{Failure, Outcome};
use crate::load::DOMAIN;
use crate::process::{Child, Launcher, Order, Output, ports};
use crate::programs;
use crate::steps::Kind;

/// How long a crowd may take to end, after the last that it says.
const ENDING: Duration = Duration::from_secs(10);

/// Where crowds are started, and with what.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ground<'a> {
    pub(super) launcher: &'a Launcher,
    pub(super) program: &'a Path,
    /// Of their logs.
    pub(super) directory: &'a Path,
    pub(super) cpu: usize,
}

/// Which clients, and what they are to do.
#[derive(Clone, Debug)]
pub(super) struct Clients<'a> {
    /// As the command line has it.
    pub(super) mode: &'a str,
    /// What the connections are, and the port; absent: there are none.
    pub(super) target: Option<(Kind, u16)>,
    /// Whether they run only if no one else wants their CPU, so that they do not keep the generator waiting.
    pub(super) idle_priority: bool,
    /// Options of the mode. A flag has no value.
    pub(super) options: Vec<(&'a str, String)>,
}

impl<'a> Clients<'a> {
    pub(super) fn new(mode: &'a str, target: Option<(Kind, u16)>, options: &[(&'a str, String)]) -> Self {
        Self {
            mode,
            target,
            idle_priority: false,
            options: options.to_vec(),
        }
    }

    /// The words after the program's name.
    fn words(&self) -> Vec<OsString> {
        let mut words: Vec<OsString> = vec!["lab-crowd".into(), self.mode.into()];
        let mut option = |name: &str, value: &str| {
            words.push(format!("--{name}").into());
            if !value.is_empty() {
                words.push(value.into());
            }
        };
        if let Some((kind, port)) = self.target {
            option("transport", kind.transport());
            option("target", &ports::local(port).to_string());
            option("name", DOMAIN);
            if kind == Kind::Tls12 {
                option("tls12", "");
            }
        }
        for (name, value) in &self.options {
            option(name, value);
        }
        words
    }
}

/// Clients that run; they end when dropped.
#[derive(Debug)]
pub(super) struct Crowd {
    child: Child,
    mode: String,
}

impl Crowd {
    pub(super) fn start(ground: &Ground<'_>, clients: &Clients<'_>) -> Outcome<Self> {
        let mut words: Vec<OsString> = Vec::new();
        if clients.idle_priority {
            let chrt = programs::find("chrt")
                .ok_or_else(|| Failure::Usage("chrt is missing (Debian: util-linux)".to_owned()))?;
            words.extend([chrt.into(), "--idle".into(), "0".into()]);
        }
        words.push(ground.program.into());
        words.extend(clients.words());
        let child = ground.launcher.start(&Order {
            name: &format!("crowd-{}", clients.mode),
            words,
            directory: ground.directory,
            cpus: &[ground.cpu],
            groups: &[],
            output: Output::Pipe,
        })?;
        Ok(Self {
            child,
            mode: clients.mode.to_owned(),
        })
    }

    /// Waits until they are there; how many.
    pub(super) fn ready(&mut self, limit: Duration) -> Outcome<usize> {
        match self.child.read_line(limit)? {
            Some(line) => said::ready_count(&line)
                .ok_or_else(|| Failure::Failed(format!("the crowd says {:?}", line.trim_end()))),
            None => Err(self.failed("ended early")),
        }
    }

    /// Begins the storm.
    pub(super) fn go(&mut self) -> Outcome<()> {
        self.child.write_line("go")
    }

    /// Gives an order, and waits for the row that they say then.
    pub(super) fn ask<T: DeserializeOwned>(&mut self, order: &str, limit: Duration) -> Outcome<T> {
        self.child.write_line(order)?;
        let line = self.child.read_line(limit)?;
        let line = line.ok_or_else(|| self.failed("ended early"))?;
        serde_json::from_str(&line).map_err(|error| Failure::failed("what the crowd says", error))
    }

    /// Ends their input, and waits for their end: the rows that they say.
    pub(super) fn rows<T: DeserializeOwned>(&mut self, limit: Duration) -> Outcome<Vec<T>> {
        self.child.end_input();
        let deadline = Instant::now() + limit;
        let mut rows = Vec::new();
        while let Some(line) = self
            .child
            .read_line(deadline.saturating_duration_since(Instant::now()))?
        {
            // Attackers may say only now that all are there.
            if said::ready_count(&line).is_none() {
                let row = serde_json::from_str(&line);
                rows.push(row.map_err(|error| Failure::failed("what the crowd says", error))?);
            }
        }
        match self.child.wait(ENDING)? {
            Some(status) if status.success() && !rows.is_empty() => Ok(rows),
            _ => Err(self.failed("failed")),
        }
    }

    /// The last of these rows.
    pub(super) fn row<T: DeserializeOwned>(&mut self, limit: Duration) -> Outcome<T> {
        let mut rows = self.rows(limit)?;
        rows.pop().ok_or_else(|| self.failed("said nothing"))
    }

    fn failed(&self, what: &str) -> Failure {
        Failure::Failed(format!(
            "the crowd ({}) {what}:\n{}",
            self.mode,
            self.child.said()
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_crowds_command_line() {
        let words = |clients: &Clients<'_>| {
            let words = clients.words().into_iter();
            let words: Vec<String> = words.map(|word| word.into_string().unwrap()).collect();
            words.join(" ")
        };
        let idle = Clients::new("idle", Some((Kind::Tls12, 5061)), &[("count", "20".to_owned())]);
        assert_eq!(
            words(&idle),
            "lab-crowd idle --transport tls --target 127.0.0.1:5061 --name bench --tls12 --count 20"
        );
        let crypto = Clients::new("crypto", None, &[("seconds", "1".to_owned())]);
        assert_eq!(words(&crypto), "lab-crowd crypto --seconds 1");
        let resumed = Clients::new("handshakes", Some((Kind::Wss, 1)), &[("resume", String::new())]);
        assert!(words(&resumed).ends_with("--transport wss --target 127.0.0.1:1 --name bench --resume"));
    }
}

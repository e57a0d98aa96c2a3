//! Relays: the floor, and the one that makes a database be far away.

use std::path::Path;
use std::time::Duration;

use super::{Site, words};
use crate::case::Setup;
use crate::failure::{Failure, Outcome};
use crate::load::{Operation, Transport};
use crate::process::{Child, Launcher, Order, Output, ports};

const PATIENCE: Duration = Duration::from_secs(10);

/// Starts what takes a server's place and reads no message.
pub(crate) fn floor(setup: &Setup, site: &Site<'_>) -> Outcome<Child> {
    let transport = setup.case.transport;
    let listen = ports::local(site.ports.sip).to_string();
    let target = ports::local(site.ports.uas).to_string();
    let mut line = match (transport, setup.case.operation) {
        (Transport::Tcp, _) => words(["", "relay", "--listen", &listen, "--target", &target]),
        (Transport::Udp, Operation::Call) => {
            words(["", "lab-floor", "--listen", &listen, "--target", &target])
        }
        (Transport::Udp, Operation::Register) => words(["", "lab-floor", "--listen", &listen]),
        (Transport::Udp, Operation::Redirect) => {
            return Err(Failure::Usage("there is no floor for redirection".to_owned()));
        }
    };
    if let Some(first) = line.first_mut() {
        *first = site.program.into();
    }
    let mut child = site.start("floor", line, Output::Log)?;
    let port = site.ports.sip;
    child.wait_until(PATIENCE, || ports::is_bound(transport, port))?;
    Ok(child)
}

/// `trapezoid relay`: a database's delay, and its counters.
#[derive(Debug)]
pub(crate) struct DelayRelay {
    child: Child,
    port: u16,
}

/// What it has passed on, in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Deserialize)]
pub(crate) struct Passed {
    pub(crate) bytes: u64,
    pub(crate) wire_bytes: u64,
}

/// Its counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Deserialize)]
pub(crate) struct Counters {
    pub(crate) to_target: Passed,
    pub(crate) to_client: Passed,
}

impl DelayRelay {
    /// Before a port of this machine, `rtt_ms` there and back.
    pub(crate) fn start(
        launcher: &Launcher,
        program: &Path,
        directory: &Path,
        cpus: &[usize],
        (target, rtt_ms): (u16, f64),
    ) -> Outcome<Self> {
        let [port] = ports::free()?;
        let mut words = words(["", "relay"]);
        if let Some(first) = words.first_mut() {
            *first = program.into();
        }
        for (option, value) in [
            ("--listen", ports::local(port).to_string()),
            ("--target", ports::local(target).to_string()),
            ("--delay", format!("{}ms", rtt_ms / 2.0)),
        ] {
            words.extend([option.into(), value.into()]);
        }
        let mut child = launcher.start(&Order {
            name: "relay",
            words,
            directory,
            cpus,
            groups: &[],
            output: Output::Pipe,
        })?;
        child.wait_until(PATIENCE, || ports::is_bound(Transport::Tcp, port))?;
        Ok(Self { child, port })
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.pid()
    }

    pub(crate) fn counters(&mut self) -> Outcome<Counters> {
        let line = self.child.ask("stats")?;
        serde_json::from_str(&line).map_err(|error| Failure::failed("the relay's counters", error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read() {
        let line = r#"{"opened":1,"to_target":{"bytes":10,"segments":1,"wire_bytes":76,"passed":10},
            "to_client":{"bytes":20,"segments":1,"wire_bytes":86}}"#;
        let counters: Counters = serde_json::from_str(line).unwrap();
        assert_eq!(
            counters.to_target,
            Passed {
                bytes: 10,
                wire_bytes: 76
            }
        );
        assert_eq!(counters.to_client.wire_bytes, 86);
    }
}

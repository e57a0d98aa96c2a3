//! Relays: the floor, and the one that makes a database be far away.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::{Site, words};
use crate::case::Setup;
use crate::failure::{Failure, Outcome};
use crate::load::{Operation, Transport};
use crate::process::{Child, Launcher, Order, Output, ports};
use crate::programs;

const PATIENCE: Duration = Duration::from_secs(10);
/// The bare relay. It is compiled where it runs, so that it depends on nothing of this project.
const BARE_RELAY: &str = include_str!("relay.c");

/// Starts what takes a server's place and reads no message.
pub(crate) fn floor(setup: &Setup, site: &Site<'_>) -> Outcome<Child> {
    let transport = setup.case.transport;
    let listen = ports::local(site.ports.sip).to_string();
    let target = ports::local(site.ports.uas).to_string();
    let mut line = match (transport, setup.case.operation) {
        (Transport::Tcp | Transport::Tls, _) => {
            words(["", "relay", "--listen", &listen, "--target", &target])
        }
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

/// Compiles and starts the relay in C that takes a server's place and reads no message.
pub(crate) fn bare_relay(setup: &Setup, site: &Site<'_>) -> Outcome<Child> {
    let transport = setup.case.transport;
    let what = match (transport, setup.case.operation) {
        (Transport::Tcp | Transport::Tls, _) => "tcp",
        (Transport::Udp, Operation::Call) => "udp",
        (Transport::Udp, Operation::Register) => "register",
        (Transport::Udp, Operation::Redirect) => {
            return Err(Failure::Usage(
                "there is no bare relay for redirection".to_owned(),
            ));
        }
    };
    let source = site.write("relay.c", BARE_RELAY)?;
    let program = compiled(&source)?;
    let ports = site.ports;
    let mut line: Vec<OsString> = vec![program.into(), what.into()];
    line.extend([ports.sip, ports.caller, ports.uas].map(|port| OsString::from(port.to_string())));
    let mut child = site.start("bare-relay", line, Output::Log)?;
    child.wait_until(PATIENCE, || ports::is_bound(transport, ports.sip))?;
    Ok(child)
}

/// The program of a file in C, which is put beside it.
fn compiled(source: &Path) -> Outcome<PathBuf> {
    let program = source.with_extension("");
    let compiler = programs::find("cc")
        .ok_or_else(|| Failure::Usage("cc, a C compiler, is missing (Debian: gcc)".to_owned()))?;
    let mut command = Command::new(compiler);
    command.args(["-O2", "-o"]).arg(&program).arg(source);
    programs::run(&mut command, "").map_err(Failure::Failed)?;
    Ok(program)
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
    use std::net::UdpSocket;

    use super::*;

    /// A process that ends with its test.
    struct Killed(std::process::Child);

    impl Drop for Killed {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn heard(socket: &UdpSocket) -> String {
        let mut bytes = [0; 2048];
        let (length, _) = socket.recv_from(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    }

    #[test]
    fn the_bare_relay_passes_datagrams_on_and_requests_back() {
        let directory = tempfile::tempdir().unwrap();
        let source = directory.path().join("relay.c");
        std::fs::write(&source, BARE_RELAY).unwrap();
        let program = compiled(&source).unwrap();
        let bound = || {
            let socket = UdpSocket::bind(ports::local(0)).unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            let port = socket.local_addr().unwrap().port();
            (socket, port)
        };
        let ((caller, caller_port), (callee, callee_port)) = (bound(), bound());
        let [port, other] = ports::free().unwrap();
        let started = |what: &str, port: u16| {
            let words = [port, caller_port, callee_port].map(|port| port.to_string());
            let child = Command::new(&program).arg(what).args(words).spawn().unwrap();
            let child = Killed(child);
            let deadline = std::time::Instant::now() + PATIENCE;
            while !ports::is_bound(Transport::Udp, port) {
                assert!(std::time::Instant::now() < deadline, "{what}: it does not listen");
            }
            child
        };
        let _relay = started("udp", port);
        caller.send_to(b"there", ports::local(port)).unwrap();
        assert_eq!(heard(&callee), "there");
        callee.send_to(b"back", ports::local(port)).unwrap();
        assert_eq!(heard(&caller), "back");
        let _registrar = started("register", other);
        let request = "REGISTER sip:bench SIP/2.0\r\nVia: x\r\nTo: <sip:a@bench>\r\nCSeq: 1 REGISTER\r\n\r\n";
        caller.send_to(request.as_bytes(), ports::local(other)).unwrap();
        assert_eq!(
            heard(&caller),
            "SIP/2.0 200 OK\r\nVia: x\r\nTo: <sip:a@bench>;tag=floor\r\nCSeq: 1 REGISTER\r\n\r\n"
        );
    }

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

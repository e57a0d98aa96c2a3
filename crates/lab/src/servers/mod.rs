//! What is started for an experiment.

mod certificates;
mod database;
mod kamailio;
mod listening;
mod pinging;
mod relays;
mod trapezoid;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::case::{Server, Setup};
use crate::failure::{Failure, Outcome};
use crate::load::Transport;
use crate::process::{Child, Launcher, Order, Output, ports};
use crate::programs;

pub(crate) use certificates::Certificates;
pub(crate) use database::MariaDb;
pub(crate) use listening::{Listener, cannot_listen, listen};
pub(crate) use pinging::pinging;
pub(crate) use relays::{Counters, DelayRelay, Passed};
use relays::{bare_relay, floor};

/// How long a server may take until it answers.
const PATIENCE: Duration = Duration::from_secs(60);

/// Where everything is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ports {
    /// The server that is measured.
    pub(crate) sip: u16,
    /// The generator's called end.
    pub(crate) uas: u16,
    /// The server's metrics.
    pub(crate) admin: u16,
    /// The generator's calling end, over UDP to a relay that must know it.
    pub(crate) caller: u16,
}

impl Ports {
    /// Free ones.
    pub(crate) fn free() -> Outcome<Self> {
        let [sip, uas, admin, caller] = ports::free()?;
        Ok(Self {
            sip,
            uas,
            admin,
            caller,
        })
    }

    /// Whether one port is in both.
    pub(crate) fn meets(self, other: Self) -> bool {
        let all = |ports: Self| [ports.sip, ports.uas, ports.admin, ports.caller];
        all(self).iter().any(|port| all(other).contains(port))
    }
}

/// What a server needs to be started.
#[derive(Clone, Debug)]
pub(crate) struct Site<'a> {
    pub(crate) launcher: &'a Launcher,
    /// Our own program.
    pub(crate) program: &'a Path,
    /// An empty directory.
    pub(crate) directory: PathBuf,
    pub(crate) ports: Ports,
    pub(crate) cpus: &'a [usize],
    /// Workers of ours. The others have one.
    pub(crate) workers: u32,
    pub(crate) groups: &'a [PathBuf],
    /// The port of the database, or of the relay before it.
    pub(crate) database: Option<u16>,
    /// For TLS.
    pub(crate) certificates: Option<&'a Certificates>,
}

impl Site<'_> {
    fn start(&self, name: &str, words: Vec<OsString>, output: Output) -> Outcome<Child> {
        self.launcher.start(&Order {
            name,
            words,
            directory: &self.directory,
            cpus: self.cpus,
            groups: self.groups,
            output,
        })
    }

    /// Starts our server with a configuration.
    fn serve(&self, config: PathBuf) -> Outcome<Child> {
        let mut line: Vec<OsString> = vec![self.program.into()];
        line.extend(words(["serve", "--config"]));
        line.push(config.into());
        self.start("trapezoid", line, Output::Log)
    }

    fn write(&self, name: &str, text: &str) -> Outcome<PathBuf> {
        let path = self.directory.join(name);
        std::fs::write(&path, text).map_err(|error| Failure::failed(path.display(), error))?;
        Ok(path)
    }
}

/// Starts the server of a setup and waits until it answers.
pub(crate) fn start(setup: &Setup, site: &Site<'_>) -> Outcome<Child> {
    let transport = setup.case.transport;
    let mut child = match setup.server {
        Server::Trapezoid => trapezoid::start(setup, site)?,
        Server::Kamailio => kamailio::start(setup, site)?,
        Server::Floor => return floor(setup, site),
        Server::BareRelay => return bare_relay(setup, site),
    };
    let port = site.ports.sip;
    child.wait_until(PATIENCE, || ports::answers(transport, port))?;
    Ok(child)
}

/// Whether credentials or registrations are in MariaDB: ours far away, Kamailio's always.
pub(crate) fn needs_database(setup: &Setup) -> bool {
    let case = &setup.case;
    match setup.server {
        Server::Trapezoid => setup.look_ups.is_some(),
        Server::Kamailio => case.auth || case.durable,
        Server::Floor | Server::BareRelay => false,
    }
}

/// Why a setup cannot be started on this machine; absent: it can.
pub(crate) fn missing(setup: &Setup) -> Option<String> {
    let not_installed = |what: &str, package: &str| format!("{what} is not installed (Debian: {package})");
    let of_kamailio = |module: &str, package: &str| {
        let is_missing = setup.server == Server::Kamailio && !kamailio::has_module(module);
        is_missing.then(|| not_installed(&format!("Kamailio's module {module}"), package))
    };
    if setup.server == Server::Kamailio && programs::find("kamailio").is_none() {
        return Some(not_installed("kamailio", "kamailio, kamailio-mysql-modules"));
    }
    if setup.server == Server::BareRelay && programs::find("cc").is_none() {
        return Some(not_installed("cc, a C compiler,", "gcc"));
    }
    if setup.case.transport == Transport::Tls
        && let Some(why) = of_kamailio("tls", "kamailio-tls-modules")
    {
        return Some(why);
    }
    if !needs_database(setup) {
        return None;
    }
    database::missing()
        .map(|program| not_installed(program, "mariadb-server, mariadb-client"))
        .or_else(|| of_kamailio("db_mysql", "kamailio-mysql-modules"))
        .or_else(|| {
            let has_no_tables = setup.case.durable && !database::has_location_tables();
            has_no_tables
                .then(|| not_installed("the schema of Kamailio's registrar", "kamailio-mysql-modules"))
        })
}

/// `;transport=…` where it is not the usual one.
fn suffix(transport: Transport) -> &'static str {
    match transport {
        Transport::Udp => "",
        Transport::Tcp => ";transport=tcp",
        Transport::Tls => ";transport=tls",
    }
}

/// Words of a command line.
fn words<const N: usize>(words: [&str; N]) -> Vec<OsString> {
    words.map(OsString::from).to_vec()
}

/// An empty directory in place of whatever an earlier run left there.
pub(crate) fn fresh(directory: &Path) -> Outcome<()> {
    let failed = |error: std::io::Error| Failure::failed(directory.display(), error);
    match std::fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
        Ok(()) | Err(_) => {}
    }
    std::fs::create_dir_all(directory).map_err(failed)
}

/// What `text` makes of a setup's site, at which nothing can be started.
#[cfg(test)]
fn with_site(setup: &Setup, text: impl FnOnce(&Site<'_>) -> String) -> String {
    let certificates = Certificates::of("/certificates".as_ref());
    let certificates = (setup.case.transport == Transport::Tls).then_some(&certificates);
    with_bare_site(|site| {
        text(&Site {
            database: Some(3306),
            certificates,
            ..site.clone()
        })
    })
}

/// The same of a site without database and certificates.
#[cfg(test)]
fn with_bare_site(text: impl FnOnce(&Site<'_>) -> String) -> String {
    let launcher = Launcher::new("/bin/cat".into(), crate::failure::Stop::default()).unwrap();
    text(&Site {
        launcher: &launcher,
        program: "/bin/false".as_ref(),
        directory: "/nowhere".into(),
        ports: Ports {
            sip: 5060,
            uas: 5070,
            admin: 8080,
            caller: 5090,
        },
        cpus: &[],
        workers: 1,
        groups: &[],
        database: None,
        certificates: None,
    })
}

//! What is started for an experiment.

mod database;
mod kamailio;
mod relays;
mod trapezoid;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::case::Setup;
use crate::failure::{Failure, Outcome};
use crate::load::Transport;
use crate::process::{Child, Launcher, Order, Output, ports};

pub(crate) use database::{MariaDb, has_location_tables, missing};
pub(crate) use kamailio::has_mysql as kamailio_has_mysql;
use relays::floor;
pub(crate) use relays::{Counters, DelayRelay, Passed};

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
    pub(crate) groups: &'a [PathBuf],
    /// The port of the database, or of the relay before it.
    pub(crate) database: Option<u16>,
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
        crate::case::Server::Trapezoid => trapezoid::start(setup, site)?,
        crate::case::Server::Kamailio => kamailio::start(setup, site)?,
        crate::case::Server::Floor => return floor(setup, site),
    };
    let port = site.ports.sip;
    child.wait_until(PATIENCE, || ports::answers(transport, port))?;
    Ok(child)
}

/// `;transport=…` where it is not the usual one.
fn suffix(transport: Transport) -> &'static str {
    match transport {
        Transport::Udp => "",
        Transport::Tcp => ";transport=tcp",
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

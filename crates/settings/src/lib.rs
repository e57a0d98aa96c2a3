//! The configuration: reads TOML, reports every error in it, and makes the configurations of the core
//! ([`sip_core::config::Config`]) and of the shell ([`Shell`]).
//!
//! A file passes these steps: `tree` (text to values with places, variables replaced), `shape` (against the
//! schema of `model`), serde, `convert` and its neighbours (meaning). Each step reports into [`Problems`] and
//! passes on what is valid.

mod abuse;
mod context;
mod convert;
mod destinations;
mod domains;
mod groups;
mod hosts;
mod listeners;
mod model;
mod patterns;
mod problems;
mod routes;
mod shape;
mod stores;
mod tls;
mod tree;
mod unsupported;
mod warnings;

#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use self::abuse::BanPolicy;
pub use self::hosts::network;
pub use self::stores::{AdminTable, lookup_deadline};
use sip_backend::subscribers::{LookupOptions, TableOptions};
use sip_core::config::Config;

use model::Settings;
pub use model::{Log, LogFormat, LogLevel};
pub use problems::{Problem, Problems};
pub use tls::{Service, Tls, TlsListener};

/// Largest accepted file, bytes.
const MAX_FILE_BYTES: u64 = 16 * 1024 * 1024;

/// Properties of the machine on which the configuration depends. A value, so that tests can have their own.
#[derive(Debug, Clone)]
pub struct Machine {
    /// Addresses of the network interfaces that are up, with their prefix lengths.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Host name, if it has one.
    pub host_name: Option<String>,
    /// Processors that this process may use.
    pub processors: usize,
    /// Bytes of memory that this process may use, if known.
    pub memory_bytes: Option<u64>,
    /// Looks up an environment variable.
    pub variable: fn(&str) -> Option<String>,
}

/// A machine with only the loopback and one processor.
impl Default for Machine {
    fn default() -> Self {
        Self {
            addresses: vec![(IpAddr::from([127, 0, 0, 1]), 8)],
            host_name: None,
            processors: 1,
            memory_bytes: None,
            variable: |_| None,
        }
    }
}

/// A valid configuration.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The core's configuration.
    pub core: Config,
    /// The configuration of the rest of the program.
    pub shell: Shell,
    /// Warnings: what is allowed but may be a mistake.
    pub warnings: Vec<String>,
    /// Every key with its value, as read, to find what another file changes.
    pub keys: serde_json::Value,
}

/// Configuration of the shell: everything outside of the core.
#[derive(Debug, Clone)]
pub struct Shell {
    /// The configuration file; `None`: the built-in configuration.
    pub file: Option<PathBuf>,
    /// Directory of the server's own files.
    pub data_dir: PathBuf,
    /// Longest time of draining.
    pub drain: Duration,
    /// How long requests are still served before draining begins.
    pub drain_min: Duration,
    /// The subscriber table.
    pub subscribers: TableOptions,
    /// The subscriber table as `trapezoid user` opens it.
    pub admin_table: AdminTable,
    /// File of the registrations; `None`: memory only.
    pub location: Option<PathBuf>,
    /// Number of users with cached secrets; 0: none.
    pub cache_entries: usize,
    /// How long secrets are cached.
    pub cache_ttl: Duration,
    /// How much longer secrets are cached while the database does not respond.
    pub cache_stale: Duration,
    /// Options of looking secrets up.
    pub lookups: LookupOptions,
    /// Sockets and connections.
    pub sockets: sip_net::settings::Settings,
    /// Settings of the connections of each listener of the core, in the same order.
    pub services: Vec<Service>,
    /// Certificates, authorities, tickets.
    pub tls: Tls,
    /// Name servers; empty: those of the system.
    pub nameservers: Vec<SocketAddr>,
    /// Longest wait for a name server.
    pub dns_timeout: Duration,
    /// The ban policy.
    pub bans: BanPolicy,
    /// Logs.
    pub log: Log,
    /// Admin address; `None`: off.
    pub admin: Option<SocketAddr>,
    /// Names by which requests may address the admin pages, besides `localhost`: lower case, without a final
    /// dot.
    pub admin_hosts: Vec<Box<str>>,
    /// File of the token for the admin pages.
    pub admin_token: PathBuf,
    /// Whether to measure CPU time by component.
    pub cpu_split: bool,
}

/// The JSON Schema of the configuration file.
pub fn schema() -> serde_json::Value {
    shape::schema().clone()
}

/// Reads `file`, or uses the built-in configuration.
pub fn load(file: Option<&Path>, machine: &Machine) -> Result<Loaded, Problems> {
    let Some(file) = file else {
        return read_text("", "the built-in configuration", None, machine);
    };
    let name = file.display().to_string();
    let unreadable = |what: String, remedy: &str| {
        let mut problems = Problems::new(&name, "");
        problems.add_whole(what, remedy);
        problems
    };
    let length = std::fs::metadata(file).map(|metadata| metadata.len());
    if length.is_ok_and(|length| length > MAX_FILE_BYTES) {
        return Err(unreadable(
            "larger than 16 MiB".to_owned(),
            "name a configuration file",
        ));
    }
    let bytes = std::fs::read(file)
        .map_err(|error| unreadable(error.to_string(), "name a readable TOML file with --config"))?;
    match str::from_utf8(&bytes) {
        Ok(text) => read_text(text, &name, Some(file), machine),
        Err(error) => {
            let text = bytes.get(..error.valid_up_to()).unwrap_or_default();
            let text = str::from_utf8(text).unwrap_or_default();
            let mut problems = Problems::new(&name, text);
            problems.add(
                &(text.len()..text.len()),
                "",
                "a byte here is not UTF-8",
                "save the file as UTF-8",
            );
            Err(problems)
        }
    }
}

/// Reads `text`, which messages call `name`. Relative paths begin at the directory of `file`.
pub fn read_text(text: &str, name: &str, file: Option<&Path>, machine: &Machine) -> Result<Loaded, Problems> {
    let mut problems = Problems::new(name, text);
    let Some(tree) = tree::parse(text, &machine.variable, &mut problems) else {
        return Err(problems);
    };
    let tree = shape::check(tree, shape::schema(), &mut problems).unwrap_or_else(tree::Node::empty);
    let settings: Settings = match serde_json::from_value(tree.to_json()) {
        Ok(settings) => settings,
        Err(error) => {
            // The shape was checked, so this is a difference between schema and model.
            problems.add_whole(error.to_string(), "");
            return Err(problems);
        }
    };
    let loaded = convert::convert(&settings, &tree, file, machine, &mut problems);
    if problems.is_empty() {
        Ok(loaded)
    } else {
        Err(problems)
    }
}

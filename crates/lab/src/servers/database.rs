//! A MariaDB of the experiment's own: its own data, port and socket, and 10,000 subscribers.
//!
//! The tests' databases (`test-databases`) are made to be quick to start and panic where they cannot; this one is
//! pinned, has room for its table in memory, and is measured.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use md5::{Digest, Md5};

use super::fresh;
use crate::failure::{Failure, Outcome};
use crate::load::{DOMAIN, Transport, USERS};
use crate::process::{Child, Launcher, Order, Output, ports};
use crate::programs;

const PATIENCE: Duration = Duration::from_secs(60);
/// Connections that it takes: the most that an experiment opens, and some.
const CONNECTIONS: u32 = 1_200;
/// Where Debian's package puts the tables of Kamailio's registrar.
const LOCATION_TABLES: &str = "/usr/share/kamailio/mysql/usrloc-create.sql";

/// A running database; ends when dropped.
#[derive(Debug)]
pub(crate) struct MariaDb {
    child: Child,
    port: u16,
}

/// Names of all users, and H(A1) of each (RFC 2617 §3.2.2.2).
pub(super) fn users() -> impl Iterator<Item = (String, String)> {
    (0..USERS).map(|number| {
        let name = format!("user{number:05}");
        let hash = Md5::digest(format!("{name}:{DOMAIN}:pass{number:05}"));
        let text = hash.iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        });
        (name, text)
    })
}

/// Where the table is, as both servers write it.
pub(super) fn url(port: u16) -> String {
    format!("mysql://sip:sip@127.0.0.1:{port}/sipbench")
}

/// What is missing of the programs, if anything.
pub(super) fn missing() -> Option<&'static str> {
    ["mariadbd", "mariadb-install-db", "mariadb"]
        .into_iter()
        .find(|name| programs::find(name).is_none())
}

/// Whether the tables of Kamailio's registrar can be made.
pub(super) fn has_location_tables() -> bool {
    Path::new(LOCATION_TABLES).exists()
}

impl MariaDb {
    /// Starts it in a directory of its own, and fills it.
    pub(crate) fn start(launcher: &Launcher, directory: &Path, cpus: &[usize]) -> Outcome<Self> {
        let find = |name: &str| {
            programs::find(name).ok_or_else(|| {
                Failure::Usage(format!(
                    "{name} is missing (Debian: mariadb-server, mariadb-client)"
                ))
            })
        };
        let (server, installer, client) = (find("mariadbd")?, find("mariadb-install-db")?, find("mariadb")?);
        fresh(directory)?;
        let data = option("--datadir=", &directory.join("data"));
        // MariaDB runs as root only if that is asked for.
        let user = rustix::process::geteuid().is_root().then_some("--user=root");
        let mut command = Command::new(installer);
        command
            .args([
                "--no-defaults",
                "--skip-test-db",
                "--auth-root-authentication-method=normal",
            ])
            .args(user)
            .arg(&data);
        programs::run(&mut command, "").map_err(Failure::Failed)?;
        let [port] = ports::free()?;
        let socket = directory.join("socket");
        let mut words: Vec<OsString> = vec![server.into(), "--no-defaults".into()];
        words.extend(user.map(OsString::from));
        words.extend([
            data,
            option("--socket=", &socket),
            option("--pid-file=", &directory.join("pid")),
        ]);
        words.extend(
            [
                format!("--port={port}"),
                "--bind-address=127.0.0.1".to_owned(),
                "--skip-name-resolve".to_owned(),
                "--innodb-buffer-pool-size=256M".to_owned(),
                format!("--max-connections={CONNECTIONS}"),
                format!("--back-log={CONNECTIONS}"),
                "--performance-schema=OFF".to_owned(),
            ]
            .map(OsString::from),
        );
        let mut child = launcher.start(&Order {
            name: "mariadbd",
            words,
            directory,
            cpus,
            groups: &[],
            output: Output::Log,
        })?;
        child.wait_until(PATIENCE, || {
            socket.exists() && ports::is_bound(Transport::Tcp, port)
        })?;
        let location = std::fs::read_to_string(LOCATION_TABLES).ok();
        fill(&client, &socket, location.as_deref())?;
        Ok(Self { child, port })
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.pid()
    }
}

fn option(name: &str, path: &Path) -> OsString {
    let mut option = OsString::from(name);
    option.push(path);
    option
}

fn fill(client: &PathBuf, socket: &Path, location: Option<&str>) -> Outcome<()> {
    let mut command = Command::new(client);
    command
        .args(["--no-defaults", "-uroot"])
        .arg(option("--socket=", socket));
    let text = schema(location.unwrap_or_default());
    programs::run(&mut command, &text).map_err(Failure::Failed)?;
    Ok(())
}

/// The `subscriber` table as OpenSER, Kamailio and OpenSIPS have it, of the columns that are asked for.
fn schema(location: &str) -> String {
    let mut rows = String::new();
    for (name, ha1) in users() {
        let comma = if rows.is_empty() { "" } else { "," };
        let _ = write!(rows, "{comma}('{name}','{DOMAIN}','{ha1}')");
    }
    format!(
        "CREATE DATABASE sipbench; USE sipbench;\n\
         CREATE TABLE version (table_name VARCHAR(32) PRIMARY KEY, table_version INT UNSIGNED NOT NULL DEFAULT 0);\n\
         INSERT INTO version VALUES ('subscriber', 7);\n\
         CREATE TABLE subscriber (id INT UNSIGNED AUTO_INCREMENT PRIMARY KEY, \
         username VARCHAR(64) NOT NULL DEFAULT '', domain VARCHAR(64) NOT NULL DEFAULT '', \
         password VARCHAR(64) NOT NULL DEFAULT '', ha1 VARCHAR(128) NOT NULL DEFAULT '', \
         ha1b VARCHAR(128) NOT NULL DEFAULT '', UNIQUE KEY account (username, domain)) ENGINE=InnoDB;\n\
         INSERT INTO subscriber (username, domain, ha1) VALUES {rows};\n{location}\n\
         CREATE USER 'sip'@'127.0.0.1' IDENTIFIED BY 'sip';\nGRANT ALL ON sipbench.* TO 'sip'@'127.0.0.1';\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_and_their_hashes() {
        let all: Vec<(String, String)> = users().collect();
        assert_eq!(all.len(), 10_000);
        // printf user00000:bench:pass00000 | md5sum
        let hash = Md5::digest("user00000:bench:pass00000");
        assert_eq!(all[0].0, "user00000");
        assert_eq!(all[0].1.len(), 32);
        assert_eq!(u8::from_str_radix(&all[0].1[..2], 16).unwrap(), hash[0]);
        assert_eq!(all[9_999].0, "user09999");
        let schema = schema("-- more");
        assert!(schema.contains("('user00000','bench','") && schema.contains("-- more"));
    }
}

//! PostgreSQL.

use std::ffi::OsString;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::database::Client;
use crate::instance::{Instance, Make};
use crate::loan::Loan;
use crate::server::{Dialect, Home, Server};
use crate::system::{self, Owner};
use crate::template;
use crate::tls::Files;

/// The administrator, and the database of the same name.
const ADMINISTRATOR: &str = "postgres";

const DIALECT: Dialect = Dialect {
    scheme: "postgres",
    administrator: ADMINISTRATOR,
    home: ADMINISTRATOR,
    // Tables belong to the user that makes them.
    set_up_by_administrator: false,
    create: |database| {
        let (name, user, password) = (database.name(), database.user(), database.password());
        format!("CREATE ROLE {user} LOGIN PASSWORD '{password}'; CREATE DATABASE {name} OWNER {user};")
    },
};

/// Admission: by the socket without a password, since only this user (and root) can reach it; by TCP with
/// the password.
const DOORS: &str = "local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n";

/// A PostgreSQL server of this test program's own, which ends when dropped. It takes 600
/// connections, wants SCRAM-SHA-256 of those by TCP, and keeps what is committed when it is killed
/// (not when the machine is).
#[derive(Debug)]
pub struct PostgreSql {
    server: Server,
}

struct Programs {
    server: PathBuf,
    installer: PathBuf,
    client: PathBuf,
}

/// `Err`: the first that is missing.
fn programs() -> Result<Programs, &'static str> {
    let directory = server_directory();
    let find = |name| {
        let there = directory.as_ref().map(|directory| directory.join(name));
        there
            .filter(|path| system::is_executable(path))
            .or_else(|| system::find_program(name))
            .ok_or(name)
    };
    Ok(Programs {
        server: find("postgres")?,
        installer: find("initdb")?,
        client: find("psql")?,
    })
}

/// Debian has the server's programs outside PATH, in a directory for each version: the newest.
fn server_directory() -> Option<PathBuf> {
    std::fs::read_dir("/usr/lib/postgresql")
        .ok()?
        .flatten()
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse::<u32>().ok()?, entry.path())))
        .map(|(version, path)| (version, path.join("bin")))
        .filter(|(_, path)| system::is_executable(&path.join("postgres")))
        .max()
        .map(|(_, path)| path)
}

fn programs_or_panic() -> Programs {
    programs().unwrap_or_else(|name| {
        panic!("{name} is missing: `cargo xtask setup` installs it (Debian: postgresql)")
    })
}

impl PostgreSql {
    /// The variable that names a lent server, by [`Server::loan`].
    pub const VARIABLE: &str = "TRAPEZOID_TEST_POSTGRESQL";

    /// Whether the programs are there.
    pub fn is_installed() -> bool {
        programs().is_ok()
    }

    /// Starts a server with no databases but the administrator's.
    ///
    /// # Panics
    /// When a program is missing, or the server does not come up within 60 seconds.
    pub fn start() -> Self {
        Self::launch(false)
    }

    /// The same, offering TLS with a certificate signed by [`Server::ca_file`].
    ///
    /// # Panics
    /// As [`Self::start`].
    pub fn start_with_tls() -> Self {
        Self::launch(true)
    }

    fn launch(with_tls: bool) -> Self {
        let Programs {
            server,
            installer,
            client,
        } = programs_or_panic();
        // PostgreSQL refuses to run as root.
        let owner = (system::own_uid() == 0).then(system::unprivileged);
        let instance = Instance::start(&Make {
            name: "postgresql",
            template: template(&server, &installer, owner),
            owner,
            program: server,
            command,
            with_tls,
            ready,
            orderly: "INT",
            // Its children end with it, and it gives back its shared memory.
            at_once: "QUIT",
        });
        Self::reached(Home::Own(Box::new(instance)), client)
    }

    fn reached(home: Home, client: PathBuf) -> Self {
        let mut host = OsString::from("--host=");
        host.push(home.directory());
        let options = [
            "--no-psqlrc",
            "--no-password",
            "--quiet",
            "--no-align",
            "--tuples-only",
            "--field-separator=\t",
            "--set=ON_ERROR_STOP=1",
        ];
        let port = format!("--port={}", home.port()).into();
        let client = Client {
            program: client,
            arguments: options
                .map(OsString::from)
                .into_iter()
                .chain([host, port])
                .collect(),
            user_option: "--username=",
            database_option: "--dbname=connect_timeout=60 dbname=",
        };
        Self {
            server: Server::new(home, client, &DIALECT),
        }
    }

    /// The one server that tests share: that which another program lends ([`Self::VARIABLE`]), else
    /// one of this program, started when first asked for. Do not stop it: others are using it.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<PostgreSql> = OnceLock::new();
        SHARED.get_or_init(|| match Loan::of(Self::VARIABLE) {
            Some(loan) => Self::reached(Home::Lent(loan), programs_or_panic().client),
            None => Self::start(),
        })
    }
}

impl Deref for PostgreSql {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

fn template(server: &Path, installer: &Path, owner: Option<Owner>) -> PathBuf {
    let version = system::output(system::clean_command(server).arg("--version"));
    let key = String::from_utf8_lossy(&version.stdout).into_owned();
    template::template(&key, owner, |data| {
        system::output(
            system::command_of(owner, installer)
                .args(["--username", ADMINISTRATOR, "--encoding=UTF8", "--locale=C"])
                // The smallest segments of the log: there is less to copy.
                .args([
                    "--auth-local=trust",
                    "--auth-host=scram-sha-256",
                    "--wal-segsize=1",
                ])
                .args(["--no-sync", "--pgdata"])
                .arg(data),
        );
        // The file stays its owner's: it is written over, not made anew.
        std::fs::write(data.join("pg_hba.conf"), DOORS).expect("a file in our own directory can be written");
    })
}

fn command(server: &Path, directory: &Path, port: u16, tls: Option<&Files>) -> Vec<OsString> {
    let mut command = vec![server.into(), "-D".into(), directory.join("data").into()];
    let mut socket = OsString::from("unix_socket_directories=");
    socket.push(directory);
    let settings = [
        "listen_addresses=127.0.0.1",
        "password_encryption=scram-sha-256",
        "max_connections=600",
        "shared_buffers=16MB",
        "max_wal_size=32MB",
        "min_wal_size=2MB",
        "fsync=off",
        "full_page_writes=off",
        // A file in the data directory: nothing is left behind by a kill.
        "dynamic_shared_memory_type=mmap",
        "logging_collector=off",
    ]
    .map(OsString::from);
    let port = OsString::from(format!("port={port}"));
    let mut settings = Vec::from(settings);
    settings.extend([socket, port]);
    if let Some(tls) = tls {
        settings.push("ssl=on".into());
        for (setting, file) in [("ssl_cert_file=", &tls.certificate), ("ssl_key_file=", &tls.key)] {
            let mut setting = OsString::from(setting);
            setting.push(file);
            settings.push(setting);
        }
    }
    for setting in settings {
        command.extend([OsString::from("-c"), setting]);
    }
    command
}

/// The server's own file tells: process first, state eighth.
fn ready(directory: &Path, pid: u32) -> bool {
    let file = std::fs::read_to_string(directory.join("data/postmaster.pid")).unwrap_or_default();
    let mut lines = file.lines().map(str::trim);
    lines.next() == Some(pid.to_string().as_str()) && lines.nth(6) == Some("ready")
}

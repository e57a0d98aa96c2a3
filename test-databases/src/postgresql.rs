//! PostgreSQL.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::database::{Client, Database, explained};
use crate::instance::{Instance, Make};
use crate::system::{self, Owner};
use crate::template;

/// The administrator, who has no password and is let in by the Unix socket only; and his
/// database.
const ADMINISTRATOR: &str = "postgres";

/// Who is let in: everybody by the socket, which only this user (and root) can reach; by TCP with
/// the password.
const DOORS: &str = "local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n";

/// A PostgreSQL server of this test program's own, which ends when dropped. It takes 600
/// connections, wants SCRAM-SHA-256 of those by TCP, and keeps what is committed when it is killed
/// (not when the machine is).
#[derive(Debug)]
pub struct PostgreSql {
    instance: Instance,
    client: Client,
    databases: AtomicU64,
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

impl PostgreSql {
    /// Whether the programs are there.
    pub fn is_installed() -> bool {
        programs().is_ok()
    }

    /// Starts a server with no databases but the administrator's.
    ///
    /// # Panics
    /// When a program is missing, or the server does not come up within 60 seconds.
    pub fn start() -> Self {
        let Programs {
            server,
            installer,
            client,
        } = programs().unwrap_or_else(|name| {
            panic!("{name} is missing: `cargo xtask setup` installs it (Debian: postgresql)")
        });
        // PostgreSQL refuses to run as root.
        let owner = (system::own_uid() == 0).then(system::unprivileged);
        let instance = Instance::start(&Make {
            name: "postgresql",
            template: template(&server, &installer, owner),
            owner,
            program: server,
            command,
            ready,
            orderly: "INT",
            // Its children end with it, and it gives back its shared memory.
            at_once: "QUIT",
        });
        let mut host = OsString::from("--host=");
        host.push(instance.directory());
        let options = [
            "--no-psqlrc",
            "--no-password",
            "--quiet",
            "--no-align",
            "--tuples-only",
            "--field-separator=\t",
            "--set=ON_ERROR_STOP=1",
        ];
        let port = format!("--port={}", instance.port()).into();
        let client = Client {
            program: client,
            arguments: options
                .map(OsString::from)
                .into_iter()
                .chain([host, port])
                .collect(),
            user_option: "--username=",
            database_option: "--dbname=connect_timeout=10 dbname=",
        };
        Self {
            instance,
            client,
            databases: AtomicU64::new(0),
        }
    }

    /// The one server that the tests of this program share, started when first asked for. Do not
    /// stop it: others are using it.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<PostgreSql> = OnceLock::new();
        SHARED.get_or_init(Self::start)
    }

    /// A new, empty database and its user.
    pub fn fresh_database(&self) -> Database {
        let number = self.databases.fetch_add(1, Ordering::Relaxed) + 1;
        let database = Database::new("postgres", self.port(), number, self.client.clone(), None);
        let (name, user, password) = (database.name(), database.user(), database.password());
        self.sql(&format!(
            "CREATE ROLE {user} LOGIN PASSWORD '{password}'; CREATE DATABASE {name} OWNER {user};"
        ));
        database
    }

    /// Runs statements (separated by semicolons) as the administrator, in his own database: rows
    /// come a line each, columns parted by tabs, without headings.
    ///
    /// # Panics
    /// When a statement fails or the server does not answer.
    pub fn sql(&self, statements: &str) -> String {
        explained(statements, self.try_sql(statements))
    }

    /// As [`Self::sql`].
    ///
    /// # Errors
    /// What the client said.
    pub fn try_sql(&self, statements: &str) -> Result<String, String> {
        self.client.run(ADMINISTRATOR, ADMINISTRATOR, statements)
    }

    /// The TCP port on 127.0.0.1. It stays the same when the server is restarted.
    pub fn port(&self) -> u16 {
        self.instance.port()
    }

    /// The server's first process.
    ///
    /// # Panics
    /// When it is not running.
    pub fn pid(&self) -> u32 {
        self.instance.pid()
    }

    /// Kills all processes of the server (SIGKILL).
    ///
    /// # Panics
    /// When it is not running.
    pub fn kill(&self) {
        self.instance.kill();
    }

    /// Stops all processes of the server as they are (SIGSTOP): the kernel still accepts
    /// connections for it.
    ///
    /// # Panics
    /// When it is not running.
    pub fn stop_answering(&self) {
        self.instance.stop_answering();
    }

    /// Lets it go on after [`Self::stop_answering`].
    ///
    /// # Panics
    /// When it is not running.
    pub fn continue_answering(&self) {
        self.instance.continue_answering();
    }

    /// Ends the server in order: it closes its connections and stores everything.
    ///
    /// # Panics
    /// When it is not running, or does not end within 60 seconds.
    pub fn shut_down(&self) {
        self.instance.shut_down();
    }

    /// Starts the server again with the same data on the same port, after an orderly end if it is
    /// running.
    ///
    /// # Panics
    /// When it does not come up within 60 seconds.
    pub fn restart(&self) {
        self.instance.restart();
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

fn command(server: &Path, directory: &Path, port: u16) -> Vec<OsString> {
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
    for setting in settings.into_iter().chain([socket, port]) {
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

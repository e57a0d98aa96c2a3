//! MariaDB.

use std::ffi::OsString;
use std::io::Read;
use std::ops::Deref;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use crate::database::Client;
use crate::instance::{Instance, Make};
use crate::loan::Loan;
use crate::server::{Dialect, Home, Server};
use crate::tls::Files;
use crate::{system, template};

const DIALECT: Dialect = Dialect {
    scheme: "mysql",
    administrator: "root",
    home: "mysql",
    set_up_by_administrator: true,
    create: |database| {
        let (name, user, password) = (database.name(), database.user(), database.password());
        format!(
            "CREATE DATABASE {name} CHARACTER SET utf8mb4; CREATE USER {user}@'%' IDENTIFIED BY '{password}'; \
             GRANT ALL PRIVILEGES ON {name}.* TO {user}@'%'"
        )
    },
};

/// The size of a log that takes no part in what tests measure; the template has it already.
const LOG_SIZE: &str = "--innodb-log-file-size=4M";

/// Takes from the administrator the ways in by TCP.
const NO_DOOR_BUT_THE_SOCKET: &str = "DELETE FROM mysql.global_priv WHERE Host <> 'localhost';\n";

/// A MariaDB server of this test program's own, which ends when dropped. It takes 1,200
/// connections, and keeps what is committed when it is killed (not when the machine is).
#[derive(Debug)]
pub struct MariaDb {
    server: Server,
}

struct Programs {
    server: PathBuf,
    installer: PathBuf,
    client: PathBuf,
}

/// `Err`: the first that is missing.
fn programs() -> Result<Programs, &'static str> {
    let find = |name| system::find_program(name).ok_or(name);
    Ok(Programs {
        server: find("mariadbd")?,
        installer: find("mariadb-install-db")?,
        client: find("mariadb")?,
    })
}

fn programs_or_panic() -> Programs {
    programs().unwrap_or_else(|name| {
        panic!("{name} is missing: `cargo xtask setup` installs it (Debian: mariadb-server, mariadb-client)")
    })
}

impl MariaDb {
    /// The variable that names a lent server, by [`Server::loan`].
    pub const VARIABLE: &str = "TRAPEZOID_TEST_MARIADB";

    /// Whether the programs are there.
    pub fn is_installed() -> bool {
        programs().is_ok()
    }

    /// Starts a server with no databases.
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
        let instance = Instance::start(&Make {
            name: "mariadb",
            template: template(&server, &installer),
            owner: None,
            program: server,
            command,
            with_tls,
            ready,
            orderly: "TERM",
            at_once: "KILL",
        });
        Self::reached(Home::Own(Box::new(instance)), client)
    }

    fn reached(home: Home, client: PathBuf) -> Self {
        let mut socket = OsString::from("--socket=");
        socket.push(home.directory().join("socket"));
        let options = [
            "--no-defaults",
            "--batch",
            "--skip-column-names",
            "--raw",
            "--connect-timeout=60",
        ];
        let client = Client {
            program: client,
            arguments: options.map(OsString::from).into_iter().chain([socket]).collect(),
            user_option: "--user=",
            database_option: "--database=",
        };
        Self {
            server: Server::new(home, client, &DIALECT),
        }
    }

    /// The one server that tests share: that which another program lends ([`Self::VARIABLE`]), else
    /// one of this program, started when first asked for. Do not stop it: others are using it.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<MariaDb> = OnceLock::new();
        SHARED.get_or_init(|| match Loan::of(Self::VARIABLE) {
            Some(loan) => Self::reached(Home::Lent(loan), programs_or_panic().client),
            None => Self::start(),
        })
    }
}

impl Deref for MariaDb {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

/// Options of every run, the installer's included.
fn options() -> impl Iterator<Item = &'static str> {
    // MariaDB runs as root only if `--user=root` says so.
    let user = (system::own_uid() == 0).then_some("--user=root");
    ["--no-defaults", LOG_SIZE].into_iter().chain(user)
}

fn template(server: &Path, installer: &Path) -> PathBuf {
    let version = system::output(system::clean_command(server).args(["--no-defaults", "--version"]));
    // "/usr/sbin/mariadbd  Ver 10.11.…": without the directory.
    let version = String::from_utf8_lossy(&version.stdout).into_owned();
    let version = version.split_once("Ver").map_or(&*version, |(_, rest)| rest);
    let key = format!("mariadb-{}", version.trim());
    template::template(&key, None, |data| {
        let statements = data.with_extension("sql");
        std::fs::write(&statements, NO_DOOR_BUT_THE_SOCKET).expect("our own directory can be written");
        let option = |name: &str, path: &Path| {
            let mut option = OsString::from(name);
            option.push(path);
            option
        };
        system::output(
            system::clean_command(installer)
                .args(options())
                .args(["--auth-root-authentication-method=normal", "--skip-test-db"])
                .arg("--skip-name-resolve")
                .arg(option("--extra-file=", &statements))
                .arg(option("--datadir=", data)),
        );
    })
}

fn command(server: &Path, directory: &Path, port: u16, tls: Option<&Files>) -> Vec<OsString> {
    let mut command = vec![OsString::from(server)];
    command.extend(options().map(OsString::from));
    for (option, file) in [
        ("--datadir=", "data"),
        ("--socket=", "socket"),
        ("--pid-file=", "pid"),
        ("--tmpdir=", ""),
    ] {
        let mut option = OsString::from(option);
        option.push(directory.join(file));
        command.push(option);
    }
    command.push(format!("--port={port}").into());
    for (option, file) in tls.iter().flat_map(|tls| {
        [
            ("--ssl-ca=", &tls.authority),
            ("--ssl-cert=", &tls.certificate),
            ("--ssl-key=", &tls.key),
        ]
    }) {
        let mut option = OsString::from(option);
        option.push(file);
        command.push(option);
    }
    if tls.is_none() {
        // Newer ones make themselves a certificate.
        command.push("--skip-ssl".into());
    }
    command.extend(
        [
            "--bind-address=127.0.0.1",
            "--skip-name-resolve",
            "--max-connections=1200",
            "--max-connect-errors=4294967295",
            "--back-log=1200",
            // Small, and quick to start.
            "--innodb-buffer-pool-size=32M",
            "--innodb-buffer-pool-dump-at-shutdown=0",
            "--innodb-buffer-pool-load-at-startup=0",
            "--aria-pagecache-buffer-size=8M",
            "--key-buffer-size=1M",
            "--performance-schema=off",
            "--skip-log-bin",
            // The kernel's asynchronous IO is limited by machine, and there may be many of us.
            "--innodb-use-native-aio=0",
            // A commit is in the kernel's hands: it outlives a kill, and no disk is waited for.
            "--innodb-flush-log-at-trx-commit=2",
        ]
        .map(OsString::from),
    );
    command
}

/// It greets: the TCP port is then bound as well.
fn ready(directory: &Path, _: u32) -> bool {
    let greet = || {
        let mut stream = UnixStream::connect(directory.join("socket"))?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        // Length and number of the packet, then the protocol's version (an error has 0xff there).
        let mut greeting = [0; 5];
        stream.read_exact(&mut greeting)?;
        Ok::<bool, std::io::Error>(greeting[4] == 10)
    };
    greet().unwrap_or(false)
}

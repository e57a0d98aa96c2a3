//! A database of one test, and the command line clients.

use std::ffi::OsString;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::Write;
use std::path::PathBuf;
use std::process::Stdio;

use crate::system;

/// The loopback address that every server listens on.
pub(crate) const HOST: &str = "127.0.0.1";

/// A command line client that reaches its server by the Unix socket.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<OsString>,
    /// The options before the names of user and database.
    pub(crate) user_option: &'static str,
    pub(crate) database_option: &'static str,
}

impl Client {
    /// Runs the statements. Rows come a line each, columns parted by tabs, without headings.
    pub(crate) fn run(&self, user: &str, database: &str, statements: &str) -> Result<String, String> {
        let mut child = system::clean_command(&self.program)
            .args(&self.arguments)
            .arg(format!("{}{user}", self.user_option))
            .arg(format!("{}{database}", self.database_option))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|e| format!("{}: {e}", self.program.display()))?;
        // Taken, so that it is closed when all is written. A client that has given up tells why.
        let mut input = child.stdin.take().expect("it is piped");
        let statements = statements.to_owned();
        let writer = std::thread::spawn(move || drop(input.write_all(statements.as_bytes())));
        let output = child.wait_with_output().map_err(|e| e.to_string())?;
        drop(writer.join());
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned())
        }
    }
}

/// An empty database with a user of its own, made by `fresh_database`. It stays until the server
/// ends.
#[derive(Debug, Clone)]
pub struct Database {
    scheme: &'static str,
    port: u16,
    name: String,
    user: String,
    password: String,
    client: Client,
    /// Who runs [`Self::sql`].
    hand: String,
}

impl Database {
    /// Names of a new one, which no other program has chosen. `hand`: the user that runs [`Self::sql`];
    /// `None`: the database's user.
    pub(crate) fn new(scheme: &'static str, port: u16, client: Client, hand: Option<&str>) -> Self {
        let word = random_word();
        let user = format!("tester{word}");
        Self {
            scheme,
            port,
            name: format!("test{word}"),
            password: random_word(),
            hand: hand.unwrap_or(&user).to_owned(),
            user,
            client,
        }
    }

    /// `mysql://user:password@127.0.0.1:port/name`, or the same with `postgres://`. Nothing in it
    /// needs escaping.
    pub fn url(&self) -> String {
        let Self {
            scheme,
            user,
            password,
            port,
            name,
            ..
        } = self;
        format!("{scheme}://{user}:{password}@{HOST}:{port}/{name}")
    }

    /// The server's address.
    pub fn host(&self) -> &str {
        HOST
    }

    /// The server's TCP port. It stays the same when the server is restarted.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The database's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Who may do everything in this database, and nothing elsewhere.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// The user's password: letters and digits.
    pub fn password(&self) -> &str {
        &self.password
    }

    /// Runs statements (separated by semicolons) in this database, for a test's own set-up: rows
    /// come a line each, columns parted by tabs, without headings. MariaDB's are run by the
    /// administrator, PostgreSQL's by the database's user, which then owns the tables.
    ///
    /// # Panics
    /// When a statement fails or the server does not answer.
    #[track_caller]
    pub fn sql(&self, statements: &str) -> String {
        explained(statements, self.try_sql(statements))
    }

    /// As [`Self::sql`].
    ///
    /// # Errors
    /// What the client said.
    pub fn try_sql(&self, statements: &str) -> Result<String, String> {
        self.client.run(&self.hand, &self.name, statements)
    }
}

/// The result of statements, or a panic that shows them.
#[track_caller]
pub(crate) fn explained(statements: &str, result: Result<String, String>) -> String {
    result.unwrap_or_else(|error| panic!("{statements}\nfailed: {error}"))
}

/// 32 hexadecimal digits that cannot be guessed.
fn random_word() -> String {
    let random = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", random(), random())
}

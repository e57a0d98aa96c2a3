//! What both makes of servers have in common.

use std::path::Path;

use crate::database::{Client, Database, explained};
use crate::instance::Instance;
use crate::loan::Loan;

/// How a make of servers is spoken to.
#[derive(Debug)]
pub(crate) struct Dialect {
    pub(crate) scheme: &'static str,
    /// Who may do everything; without a password, let in by the Unix socket only.
    pub(crate) administrator: &'static str,
    /// The database that is always there.
    pub(crate) home: &'static str,
    /// Whether a test's own set-up is the administrator's, rather than the database's user's.
    pub(crate) set_up_by_administrator: bool,
    /// The statements that make a database and its user.
    pub(crate) create: fn(&Database) -> String,
}

/// A server, of either make: [`crate::MariaDb`] and [`crate::PostgreSql`] are one each, and start
/// it.
#[derive(Debug)]
pub struct Server {
    home: Home,
    client: Client,
    dialect: &'static Dialect,
}

/// Whose the server's process is.
#[derive(Debug)]
pub(crate) enum Home {
    /// This program's.
    Own(Box<Instance>),
    /// Another program's, which lends it.
    Lent(Loan),
}

impl Home {
    pub(crate) fn directory(&self) -> &Path {
        match self {
            Self::Own(instance) => instance.directory(),
            Self::Lent(loan) => &loan.directory,
        }
    }

    pub(crate) fn port(&self) -> u16 {
        match self {
            Self::Own(instance) => instance.port(),
            Self::Lent(loan) => loan.port,
        }
    }
}

impl Server {
    pub(crate) fn new(home: Home, client: Client, dialect: &'static Dialect) -> Self {
        Self {
            home,
            client,
            dialect,
        }
    }

    /// What another program needs to reach this server as its own shared one: the value of the
    /// variable [`crate::MariaDb::VARIABLE`] or [`crate::PostgreSql::VARIABLE`].
    pub fn loan(&self) -> String {
        let (port, directory) = (self.home.port(), self.home.directory().to_owned());
        Loan { port, directory }.to_string()
    }

    #[track_caller]
    fn instance(&self) -> &Instance {
        match &self.home {
            Home::Own(instance) => instance,
            Home::Lent(_) => panic!("other test programs use this server: start one to stop it"),
        }
    }

    /// A new, empty database and its user.
    ///
    /// # Panics
    /// When the server does not answer.
    pub fn fresh_database(&self) -> Database {
        let Dialect {
            scheme,
            administrator,
            set_up_by_administrator,
            create,
            ..
        } = *self.dialect;
        let hand = set_up_by_administrator.then_some(administrator);
        let database = Database::new(scheme, self.port(), self.client.clone(), hand);
        self.sql(&create(&database));
        database
    }

    /// Runs statements (separated by semicolons) as the administrator: rows come a line each,
    /// columns parted by tabs, without headings.
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
        let Dialect {
            administrator, home, ..
        } = *self.dialect;
        self.client.run(administrator, home, statements)
    }

    /// The TCP port on 127.0.0.1. It stays the same when the server is restarted.
    pub fn port(&self) -> u16 {
        self.home.port()
    }

    /// The certificate (PEM) of the authority that signed the server's, which is for `localhost`
    /// and 127.0.0.1. `None`: it was started without TLS.
    pub fn ca_file(&self) -> Option<&Path> {
        match &self.home {
            Home::Own(instance) => instance.ca_file(),
            Home::Lent(_) => None,
        }
    }

    /// The server's process; PostgreSQL's first one.
    ///
    /// # Panics
    /// When it is not running, or another program lends it.
    #[track_caller]
    pub fn pid(&self) -> u32 {
        self.instance().pid()
    }

    /// Kills the server (SIGKILL), with all its processes. What is committed stays.
    ///
    /// # Panics
    /// When it is not running, or another program lends it.
    #[track_caller]
    pub fn kill(&self) {
        self.instance().kill();
    }

    /// Stops the server, with all its processes, as it is (SIGSTOP): the kernel still accepts
    /// connections for it, up to the length of the queue.
    ///
    /// # Panics
    /// When it is not running, or another program lends it.
    #[track_caller]
    pub fn stop_answering(&self) {
        self.instance().stop_answering();
    }

    /// Stops one of its processes (SIGSTOP), which with PostgreSQL is one connection.
    ///
    /// # Panics
    /// When it is no process of this server, or another program lends the server.
    #[track_caller]
    pub fn stop_process(&self, pid: u32) {
        self.instance().stop_child(pid);
    }

    /// Lets it go on after [`Self::stop_answering`] or [`Self::stop_process`].
    ///
    /// # Panics
    /// When it is not running, or another program lends it.
    #[track_caller]
    pub fn continue_answering(&self) {
        self.instance().continue_answering();
    }

    /// Ends the server in order: it closes its connections and stores everything.
    ///
    /// # Panics
    /// When another program lends it, it is not running, or does not end within 60 seconds.
    #[track_caller]
    pub fn shut_down(&self) {
        self.instance().shut_down();
    }

    /// Starts the server again with the same data on the same port, after an orderly end if it is
    /// running.
    ///
    /// # Panics
    /// When another program lends it, or it does not come up within 60 seconds.
    #[track_caller]
    pub fn restart(&self) {
        self.instance().restart();
    }
}

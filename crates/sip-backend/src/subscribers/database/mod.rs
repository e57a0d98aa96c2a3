//! The databases, each with its operations for look-ups and for commands.
//!
//! [`Database`] and [`Session`] serve look-ups, driven by the pipeline. [`Client`] serves commands.

pub(super) mod mysql;
pub(super) mod postgres;
pub(super) mod sqlite;

use std::error::Error;
use std::future::Future;
use std::path::Path;
use std::time::{Duration, Instant};

use rustls::RootCertStore;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;

use super::options::{Source, TableOptions};
use super::secrets::Row;
use super::sql::Shape;
use super::{SubscriberError, options};

/// The failure of a database operation.
#[derive(Debug, thiserror::Error)]
pub(super) enum DbError {
    /// There is no such table.
    #[error("there is no table \"{table}\"; `trapezoid user add` makes it")]
    NoTable {
        /// The table's name.
        table: String,
    },
    /// The table exists, but lacks a column.
    #[error("table \"{table}\" has no column \"{column}\"; name it in [subscribers] columns, or add it")]
    NoColumn {
        /// The table.
        table: String,
        /// The column.
        column: String,
    },
    /// The connection ended or could not be opened: another may work.
    #[error("{0}")]
    Lost(Box<dyn Error + Send + Sync>),
    /// A batch got no response in time.
    #[error("no result within the deadline")]
    Silent,
    /// The query or its result is unusable because of one question or row.
    #[error("{0}")]
    Unfit(Box<dyn Error + Send + Sync>),
    /// The database refused.
    #[error("{0}")]
    Refused(Box<dyn Error + Send + Sync>),
}

impl DbError {
    pub(super) fn lost(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Lost(error.into())
    }

    pub(super) fn refused(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Refused(error.into())
    }
}

/// User and domain, by which a row is found.
pub(super) type RowKey<'a> = (&'a str, &'a str);

/// A database to which connections can be opened.
pub(super) trait Database: Send + 'static {
    type Session: Session;

    /// Interval between calls of [`Session::mark`].
    const WATCH_EVERY: Duration;

    /// Batches that one connection carries at the same time.
    const DEPTH: usize;

    /// Opens a connection for batches of up to `max_batch`, and checks its table. Each [`step`] on the way
    /// has its own time-out.
    fn connect(&self, max_batch: usize) -> impl Future<Output = Result<Self::Session, DbError>>;
}

/// A connection for look-ups.
pub(super) trait Session {
    /// Calls `each` with the rows of these keys, in any order. Other rows may be among them, because
    /// databases differ in which names they consider equal.
    fn fetch(
        &self,
        keys: &[RowKey<'_>],
        each: &mut dyn FnMut(Row<'_>),
    ) -> impl Future<Output = Result<(), DbError>>;

    /// A value that differs after any change of the table, by any client; `None` if the database cannot
    /// report changes.
    fn mark(&self) -> impl Future<Output = Result<Option<String>, DbError>>;
}

/// A connection for commands. Blocks.
pub(super) trait Client {
    /// The columns of a table; empty if there is no such table.
    fn shape(&mut self, table: &str) -> Result<Shape, DbError>;

    /// Runs a statement. Returns the number of changed rows.
    fn execute(&mut self, sql: &str, parameters: &[&str]) -> Result<u64, DbError>;

    /// Runs a query with `columns` columns of text.
    fn rows(
        &mut self,
        sql: &str,
        parameters: &[&str],
        columns: usize,
        each: &mut dyn FnMut(&[&str]),
    ) -> Result<(), DbError>;
}

/// Opens a connection for commands.
pub(super) fn client(options: &TableOptions) -> Result<Box<dyn Client>, SubscriberError> {
    let of = SubscriberError::database(&options.source);
    match &options.source {
        Source::Sqlite(path) => {
            sqlite::make_file(path).map_err(SubscriberError::io(path))?;
            Ok(Box::new(sqlite::SqliteClient::open(path).map_err(of)?))
        }
        Source::Server(server) => match server.protocol {
            options::Protocol::MySql => Ok(Box::new(mysql::MySqlClient::open(server).map_err(of)?)),
            options::Protocol::Postgres => Ok(Box::new(postgres::PostgresClient::open(server).map_err(of)?)),
        },
    }
}

/// Longest wait for each response that opening a connection needs. A distant database takes many round trips.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest wait of a command for the same. A command has no other connection to try, so it has more patience
/// with a database that has too much to do.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(15);

/// Runs one step of opening a connection, with its time-out.
pub(super) async fn step<T, E>(step: impl Future<Output = Result<T, E>>) -> Result<T, DbError>
where
    DbError: From<E>,
{
    within(ANSWER_TIMEOUT, step).await
}

/// Runs one step of opening a connection, for at most `limit`.
async fn within<T, E>(limit: Duration, step: impl Future<Output = Result<T, E>>) -> Result<T, DbError>
where
    DbError: From<E>,
{
    match tokio::time::timeout(limit, step).await {
        Ok(done) => Ok(done?),
        Err(_) => Err(DbError::lost("no result in time")),
    }
}

/// A runtime for one thread.
pub(super) fn small_runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

/// A value that is costly to make, kept for a while. Reading the system's authorities for each of many
/// connections would delay the others.
#[derive(Debug)]
pub(super) struct Kept<T>(parking_lot::Mutex<Option<(Instant, T)>>);

impl<T: Clone> Kept<T> {
    const FOR: Duration = Duration::from_secs(60);

    pub(super) const fn new() -> Self {
        Self(parking_lot::Mutex::new(None))
    }

    /// The kept value, or the result of `make`, which is kept unless it is an error.
    pub(super) fn get<E>(&self, make: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let mut kept = self.0.lock();
        if let Some((_, value)) = kept.as_ref().filter(|(at, _)| at.elapsed() < Self::FOR) {
            return Ok(value.clone());
        }
        let made = make()?;
        *kept = Some((Instant::now(), made.clone()));
        Ok(made)
    }
}

/// The authorities that may issue a database's certificate: those of the file, or the readable ones of the
/// system.
pub(super) fn authorities(ca: Option<&Path>) -> Result<Vec<CertificateDer<'static>>, DbError> {
    let Some(path) = ca else {
        let mut found = rustls_native_certs::load_native_certs().certs;
        found.retain(|der| RootCertStore::empty().add(der.clone()).is_ok());
        return Ok(found);
    };
    let of_file = |error| DbError::lost(format!("{}: {error}", path.display()));
    let found: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path).map_err(of_file)?.collect();
    let found = found.map_err(of_file)?;
    if found.is_empty() {
        return Err(DbError::lost(format!("{}: no certificate in it", path.display())));
    }
    Ok(found)
}

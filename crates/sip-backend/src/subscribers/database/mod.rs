//! The databases: what a look-up and what a command does in each.
//!
//! [`Database`] and [`Session`] are the look-up's side, driven by the pipeline; [`Client`] is the
//! commands' side.

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

/// Why a database did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub(super) enum DbError {
    /// There is no such table.
    #[error("there is no table \"{table}\"; `trapezoid user add` makes it")]
    NoTable {
        /// Its name.
        table: String,
    },
    /// The table exists, but differs.
    #[error("table \"{table}\" has no column \"{column}\"; name it in [subscribers] columns, or add it")]
    NoColumn {
        /// The table.
        table: String,
        /// The column.
        column: String,
    },
    /// The connection ended or could not be had: another may do.
    #[error("{0}")]
    Lost(Box<dyn Error + Send + Sync>),
    /// A batch was not answered in time.
    #[error("no answer within the deadline")]
    Silent,
    /// It cannot be asked this, or what it answered is none: because of one question or row.
    #[error("{0}")]
    Unfit(Box<dyn Error + Send + Sync>),
    /// It refused.
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

/// A user and a domain: what a row is found by.
pub(super) type RowKey<'a> = (&'a str, &'a str);

/// A database that can be connected to.
pub(super) trait Database: Send + 'static {
    type Session: Session;

    /// How often [`Session::mark`] is looked at.
    const WATCH_EVERY: Duration;

    /// Batches that one connection carries at a time.
    const DEPTH: usize;

    /// A connection that is ready for batches of up to `max_batch`, its table looked at. Each [`step`]
    /// on the way has its time.
    fn connect(&self, max_batch: usize) -> impl Future<Output = Result<Self::Session, DbError>>;
}

/// A connection.
pub(super) trait Session {
    /// Calls `each` with the rows of these keys, in any order. Rows of others may be among them,
    /// for databases have their own ideas of equal names.
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
    /// The columns of a table; none where there is no such table.
    fn shape(&mut self, table: &str) -> Result<Shape, DbError>;

    /// Runs a statement; rows that it changed.
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

/// Connects for commands.
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

/// Longest wait for each of the answers that a connection needs before it is of use. A database
/// that is far away takes many of them.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// One step of making a connection.
pub(super) async fn step<T, E>(step: impl Future<Output = Result<T, E>>) -> Result<T, DbError>
where
    DbError: From<E>,
{
    match tokio::time::timeout(ANSWER_TIMEOUT, step).await {
        Ok(done) => Ok(done?),
        Err(_) => Err(DbError::lost("no answer in time")),
    }
}

/// A runtime for one thread.
pub(super) fn small_runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

/// What it costs to make, for a while: reading the system's authorities for each of many connections
/// would keep the others waiting.
#[derive(Debug)]
pub(super) struct Kept<T>(parking_lot::Mutex<Option<(Instant, T)>>);

impl<T: Clone> Kept<T> {
    const FOR: Duration = Duration::from_secs(60);

    pub(super) const fn new() -> Self {
        Self(parking_lot::Mutex::new(None))
    }

    /// What is kept, or what `make` gives, if that is not an error.
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

/// The authorities that a database's certificate may be of: those of the file, or those of the
/// system's that can be read.
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

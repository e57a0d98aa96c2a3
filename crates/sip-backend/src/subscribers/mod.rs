//! Subscribers and their secrets.
//!
//! A subscriber is a row with a user name and a domain. That pair identifies it in look-ups and in commands.
//! The domain is the canonical name of one of ours, in lower case; an alias finds the same row.
//!
//! The realm is no part of the identity, but of the stored hashes. If the realm of a domain changes, its
//! subscribers need new hashes. If the table holds plain passwords ([`TableOptions::calculate_ha1`]), the
//! hashes are calculated for the requested realm instead.
//!
//! The table is OpenSER's `subscriber` with the columns that RFC 8760 needs, in SQLite, MySQL, MariaDB or
//! PostgreSQL. `user add` creates it if it is absent; nothing alters it. Our secrets are wiped from memory
//! when dropped (those in the database clients' memory are not), and appear in no log.
//!
//! A look-up goes [`CredentialCache`] → [`Pipeline`] (joined with its like, queued, sent in a batch) →
//! database. The result goes back to the worker of the query; no worker ever waits.

mod cache;
mod calibrate;
mod database;
mod options;
mod pipeline;
mod secrets;
mod sql;
mod table;

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};

use sip_core::id::QueryId;

pub use self::cache::CredentialCache;
pub use self::calibrate::Calibration;
pub use self::options::{Columns, Protocol, Server, Source, TableOptions, Tls};
pub use self::pipeline::{LookupOptions, Mode, Pipeline, Status};
pub use self::table::SubscriberTable;

use self::database::DbError;
use crate::metrics::Sample;

/// The failure of an operation on subscribers.
#[derive(Debug, thiserror::Error)]
pub enum SubscriberError {
    /// `add`: the subscriber exists already.
    #[error("{user}@{domain} exists already")]
    Exists {
        /// User.
        user: String,
        /// Domain.
        domain: String,
    },
    /// There is no such subscriber.
    #[error("no subscriber {user}@{domain}")]
    NotFound {
        /// User.
        user: String,
        /// Domain.
        domain: String,
    },
    /// A name that cannot be used in digest credentials.
    #[error("{what} must not be empty, nor contain a colon, a quote, white space or a control character")]
    BadName {
        /// The kind of name.
        what: &'static str,
    },
    /// A plain password is to be stored, but it is not text.
    #[error("the password must be UTF-8, as the table keeps it in plain text (calculate_ha1)")]
    BadPassword,
    /// A table's or column's name in the configuration is no identifier.
    #[error("\"{name}\" is not a column or table name (letters, digits and underscores)")]
    BadColumn {
        /// The name as configured.
        name: String,
    },
    /// The table cannot be used.
    #[error("{store}: {source}")]
    Table {
        /// The database.
        store: String,
        /// The reason why the table cannot be used.
        source: Box<dyn Error + Send + Sync>,
    },
    /// An error of the file system.
    #[error("{}: {source}", path.display())]
    Io {
        /// The path of the operation.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// An error of the database.
    #[error("{store}: {source}")]
    Database {
        /// The database.
        store: String,
        /// The error.
        source: Box<dyn Error + Send + Sync>,
    },
}

impl SubscriberError {
    fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io {
            path: path.to_owned(),
            source,
        }
    }

    fn database(store: &Source) -> impl FnOnce(DbError) -> Self + use<> {
        let store = store.to_string();
        move |error| match error {
            DbError::NoTable { .. } | DbError::NoColumn { .. } => Self::Table {
                store,
                source: error.into(),
            },
            DbError::Silent => Self::Database {
                store,
                source: error.into(),
            },
            DbError::Lost(source) | DbError::Unfit(source) | DbError::Refused(source) => {
                Self::Database { store, source }
            }
        }
    }
}

/// A query for the secrets of a subscriber.
#[derive(Debug)]
pub struct CredentialQuery {
    /// The worker of the query.
    pub origin: u16,
    /// The query's id; `None`: no result is wanted, only the cache is to be filled.
    pub id: Option<QueryId>,
    /// The name as sent in `username`: the user part, alone or with `@` and a domain of ours.
    pub username: Box<[u8]>,
    /// Length of the user part in `username`.
    pub user_len: usize,
    /// Canonical name of the domain, lower case.
    pub domain: Box<[u8]>,
    /// Realm of the HA1.
    pub realm: Box<[u8]>,
}

/// A store of secrets: this module's, or another that passes the same tests.
pub trait CredentialStore: Send + Sync {
    /// Takes queries without blocking. Each query with an id gets a result, at once if the queue is full.
    fn ask(&self, batch: Vec<CredentialQuery>);

    /// All metrics of this store.
    fn metrics(&self) -> Vec<Sample>;

    /// Delivers results for what is queued, and ends. Later queries are refused. A second call does nothing.
    fn shutdown(&self);
}

impl<T: CredentialStore> CredentialStore for std::sync::Arc<T> {
    fn ask(&self, batch: Vec<CredentialQuery>) {
        (**self).ask(batch);
    }

    fn metrics(&self) -> Vec<Sample> {
        (**self).metrics()
    }

    fn shutdown(&self) {
        (**self).shutdown();
    }
}

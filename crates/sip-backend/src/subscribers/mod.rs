//! Subscribers and their secrets.
//!
//! A subscriber is a row with a user name and a domain: that pair names it, in look-ups and in
//! commands, and the domain is the canonical name of one of ours, in lower case (an alias finds
//! the same row). The realm is no part of the name: it only went into the stored hashes, so a
//! domain whose realm changes needs new ones, unless the table holds plain passwords
//! ([`TableOptions::calculate_ha1`]) and the hashes are made for whatever realm is asked.
//!
//! The table is OpenSER's `subscriber` with the columns that RFC 8760 needs, in SQLite, MySQL,
//! MariaDB or PostgreSQL; `user add` makes it where it is absent, nothing alters it. Secrets are
//! wiped from memory when dropped, as far as they are ours (what the clients of the databases hold
//! is theirs), and appear in no log.
//!
//! A look-up goes [`CredentialCache`] → [`Pipeline`] (joined with its like, queued, sent in a
//! batch) → database, and the answer back to the worker that asked; no worker ever waits.

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

/// Why something with subscribers did not work.
#[derive(Debug, thiserror::Error)]
pub enum SubscriberError {
    /// `add`: there is one already.
    #[error("{user}@{domain} exists already")]
    Exists {
        /// User.
        user: String,
        /// Domain.
        domain: String,
    },
    /// There is none.
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
        /// Which name.
        what: &'static str,
    },
    /// A plain password is to be kept, but it is no text.
    #[error("the password must be UTF-8, as the table keeps it in plain text (calculate_ha1)")]
    BadPassword,
    /// A name in the configuration that is no identifier.
    #[error("\"{name}\" is not a column or table name (letters, digits and underscores)")]
    BadColumn {
        /// As configured.
        name: String,
    },
    /// The table cannot be used.
    #[error("{store}: {source}")]
    Table {
        /// The database.
        store: String,
        /// Why not.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The file system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// What was touched.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The database refused.
    #[error("{store}: {source}")]
    Database {
        /// The database.
        store: String,
        /// Why not.
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

/// A question for the secrets of a subscriber.
#[derive(Debug)]
pub struct CredentialQuery {
    /// The worker that wants the answer.
    pub origin: u16,
    /// The question; `None`: no answer is wanted, only the cache filled.
    pub id: Option<QueryId>,
    /// As sent in `username`: the user part, or that with `@` and a domain of ours.
    pub username: Box<[u8]>,
    /// How much of it is the user part.
    pub user_len: usize,
    /// Canonical name of the domain, lower case.
    pub domain: Box<[u8]>,
    /// Realm for which HA1 is wanted.
    pub realm: Box<[u8]>,
}

/// A place where secrets are found: this module's, or another that passes the same tests.
pub trait CredentialStore: Send + Sync {
    /// Takes questions without blocking. Every one with an id is answered, at once where the
    /// queue is full.
    fn ask(&self, batch: Vec<CredentialQuery>);

    /// Everything that this store counts.
    fn metrics(&self) -> Vec<Sample>;

    /// Answers what is queued, and ends. Later questions are refused. A second call does nothing.
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

//! Subscribers and their secrets.
//!
//! A subscriber is a row with a user name and a domain: that pair names it, in look-ups and in
//! commands, and the domain is the canonical name of one of ours, in lower case (an alias finds
//! the same row). The realm is no part of the name: it only went into the stored hashes, so a
//! domain whose realm changes needs new ones, unless the table holds plain passwords
//! ([`TableOptions::calculate_ha1`]) and the hashes are made for whatever realm is asked.
//!
//! The table is OpenSER's `subscriber` with the columns that RFC 8760 needs; it is made where it
//! is absent and never altered. Secrets are wiped from memory when dropped and appear in no log.

mod cache;
mod lookup;
mod table;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sip_core::id::QueryId;

pub use self::cache::CredentialCache;
pub use self::lookup::SqliteCredentials;
pub use self::table::{SubscriberTable, TableOptions};

use crate::metrics::Sample;

/// Names of the table's columns, for tables that were made by others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Columns {
    /// User part of the address-of-record.
    pub user: String,
    /// Domain.
    pub domain: String,
    /// Plain password; empty unless [`TableOptions::calculate_ha1`].
    pub password: String,
    /// `MD5(user:realm:password)`, hexadecimal.
    pub ha1: String,
    /// `MD5(user@domain:realm:password)`, hexadecimal; written, not read.
    pub ha1b: String,
    /// `SHA-256(user:realm:password)`, hexadecimal.
    pub ha1_sha256: String,
    /// `SHA-512-256(user:realm:password)`, hexadecimal.
    pub ha1_sha512t256: String,
}

impl Default for Columns {
    fn default() -> Self {
        Self {
            user: "username".into(),
            domain: "domain".into(),
            password: "password".into(),
            ha1: "ha1".into(),
            ha1b: "ha1b".into(),
            ha1_sha256: "ha1_sha256".into(),
            ha1_sha512t256: "ha1_sha512t256".into(),
        }
    }
}

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
    /// The table exists, but differs.
    #[error("{}: table \"{table}\" has no column \"{column}\"; name it in [subscribers] columns, or add it", path.display())]
    MissingColumn {
        /// The database.
        path: PathBuf,
        /// The table.
        table: String,
        /// The column.
        column: String,
    },
    /// The file system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// What was touched.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// SQLite refused.
    #[error("{}: {source}", path.display())]
    Database {
        /// The database.
        path: PathBuf,
        /// Why not.
        source: rusqlite::Error,
    },
}

impl SubscriberError {
    fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io {
            path: path.to_owned(),
            source,
        }
    }

    fn database(path: &Path) -> impl FnOnce(rusqlite::Error) -> Self {
        move |source| Self::Database {
            path: path.to_owned(),
            source,
        }
    }
}

/// A question for the secrets of `user@domain`.
#[derive(Debug)]
pub struct CredentialQuery {
    /// The worker that wants the answer.
    pub origin: u16,
    /// The question; `None`: no answer is wanted, only the cache filled.
    pub id: Option<QueryId>,
    /// User part, as sent in `username`.
    pub user: Box<[u8]>,
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

/// How look-ups work.
#[derive(Clone, Debug)]
pub struct LookupOptions {
    /// Questions that may wait; one more is answered as unavailable.
    pub queue_items: usize,
    /// A question that waited longer than this is answered as unavailable: who asked gave up.
    pub deadline: Duration,
    /// How often the file is looked at for changes that others made.
    pub watch_every: Duration,
}

impl Default for LookupOptions {
    fn default() -> Self {
        Self {
            queue_items: 65_536,
            deadline: Duration::from_secs(3),
            watch_every: Duration::from_millis(200),
        }
    }
}

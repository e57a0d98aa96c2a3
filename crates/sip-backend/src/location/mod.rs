//! Registrations on disk.
//!
//! A save is appended to a journal, and its result is delivered once `fdatasync` has returned. All waiting
//! saves go to disk in one write and one sync (group commit). A second thread folds ended journal segments
//! into the SQLite table `location`, with only the newest version of each address-of-record, and deletes the
//! segments. A start reads the table and then the remaining segments. A registration with a positive result
//! survives a kill and a loss of power, if the disk keeps what it confirmed as synced.
//!
//! Operators may read the table, which lags behind by about [`Options::fold_every`] at most.
//!
//! The map in memory saves an expired binding like a removal ([`crate::shared::Shared::sweep_saves`]), so
//! nothing is searched for on disk.

mod backlog;
mod clock;
mod deleted;
mod disk;
mod fold;
mod journal;
mod open;
pub mod parts;
pub mod segment;
mod socket;
mod store;
mod table;
mod writer;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sip_core::id::QueryId;

pub use self::open::{FindListener, Load, Loaded};
pub use self::socket::LocalSocket;
pub use self::store::DiskStore;

use crate::metrics::{self, Counter, Gauge, Histogram, Sample};

/// One address-of-record to be written.
#[derive(Debug)]
pub struct Save {
    /// The worker of the query.
    pub origin: u16,
    /// The query's id; `None`: no result is wanted.
    pub id: Option<QueryId>,
    /// `user@domain`, canonical.
    pub aor: Box<[u8]>,
    /// The record in [`sip_core::location::codec`]'s encoding. A record without bindings deletes the
    /// address-of-record.
    pub record: Box<[u8]>,
    /// Version of the record. Of two saves of one address-of-record the higher version counts, in either
    /// order.
    pub version: u64,
}

/// A store of registrations: this module's, or another that passes the same tests.
pub trait LocationStore: Send + Sync {
    /// Takes saves without blocking. Each save with an id gets a result, at once if the queue is full.
    fn save(&self, batch: Vec<Save>);

    /// Sets the sockets that the listener ids inside records mean from now on.
    fn set_listeners(&self, listeners: Vec<LocalSocket>);

    /// Whether the last save failed because of the store itself.
    fn is_failing(&self) -> bool;

    /// All metrics of this store.
    fn metrics(&self) -> Vec<Sample>;

    /// Saves what is queued, delivers the results, and ends. Later saves are refused. A second call does
    /// nothing.
    fn shutdown(&self);
}

/// Options of the store on this machine's disk.
#[derive(Clone, Debug)]
pub struct Options {
    /// Path of the database, beside which are `<path>.journal/` and `<path>.lock`.
    pub path: PathBuf,
    /// The local sockets of [`sip_core::config::Config::listeners`], in its order.
    pub listeners: Vec<LocalSocket>,
    /// Most saves that wait for the disk. A further one gets the result `Unavailable`.
    pub queue_items: usize,
    /// Most bytes of the saves that wait for the disk.
    pub queue_bytes: usize,
    /// Bytes at which a journal segment is ended.
    pub segment_bytes: u64,
    /// Age at which a journal segment is ended and folded.
    pub fold_every: Duration,
    /// Bytes read into memory for one round of folding; further ones wait for the next round.
    pub fold_bytes: u64,
    /// Most bytes of journal on disk. Beyond it saves get the result `Unavailable` until folding has caught
    /// up.
    pub journal_bytes: u64,
}

impl Options {
    /// The defaults for a database at `path`.
    pub fn new(path: impl Into<PathBuf>, listeners: Vec<LocalSocket>) -> Self {
        Self {
            path: path.into(),
            listeners,
            queue_items: 131_072,
            queue_bytes: 128 * 1024 * 1024,
            segment_bytes: 32 * 1024 * 1024,
            fold_every: Duration::from_secs(30),
            fold_bytes: 128 * 1024 * 1024,
            journal_bytes: 4 * 1024 * 1024 * 1024,
        }
    }

    fn journal_dir(&self) -> PathBuf {
        self.beside(".journal")
    }

    fn beside(&self, suffix: &str) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(suffix);
        name.into()
    }
}

/// Error of opening a store.
#[derive(Debug, thiserror::Error)]
pub enum LocationError {
    /// Another process (or this one) has the store open.
    #[error("{} is in use by another process (lock file {})", path.display(), lock.display())]
    Locked {
        /// The database.
        path: PathBuf,
        /// The lock file.
        lock: PathBuf,
    },
    /// An error of the file system.
    #[error("{}: {source}", path.display())]
    Io {
        /// The path of the operation.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// An error of SQLite.
    #[error("{}: {source}", path.display())]
    Database {
        /// The database.
        path: PathBuf,
        /// The error.
        source: rusqlite::Error,
    },
}

impl LocationError {
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

/// Counters of the store.
#[derive(Debug)]
pub(crate) struct Stats {
    saved: Counter,
    failed_write: Counter,
    refused_queue: Counter,
    refused_journal: Counter,
    refused_size: Counter,
    write_errors: Counter,
    fold_errors: Counter,
    undecodable: Counter,
    damaged: Counter,
    folded: Counter,
    purged: Counter,
    batch: Histogram,
    latency: Histogram,
    sync: Histogram,
    journal_bytes: Gauge,
    /// 1 while the disk fails, so that changes are refused; else 0.
    failing: Gauge,
}

impl Stats {
    fn new() -> Self {
        Self {
            saved: Counter::default(),
            failed_write: Counter::default(),
            refused_queue: Counter::default(),
            refused_journal: Counter::default(),
            refused_size: Counter::default(),
            write_errors: Counter::default(),
            fold_errors: Counter::default(),
            undecodable: Counter::default(),
            damaged: Counter::default(),
            folded: Counter::default(),
            purged: Counter::default(),
            batch: Histogram::new(metrics::BATCH),
            latency: Histogram::new(metrics::LATENCY_US),
            sync: Histogram::new(metrics::LATENCY_US),
            journal_bytes: Gauge::default(),
            failing: Gauge::default(),
        }
    }

    fn samples(&self) -> Vec<Sample> {
        const SAVES: &str = "Registrations given to the location store, by what became of them.";
        let saves = |label, counter: &Counter| Sample::counter("location_saves", label, SAVES, counter.get());
        let count = |name, help, counter: &Counter| Sample::counter(name, "", help, counter.get());
        [
            saves("result=\"saved\"", &self.saved),
            saves("result=\"write-failed\"", &self.failed_write),
            saves("result=\"queue-full\"", &self.refused_queue),
            saves("result=\"journal-full\"", &self.refused_journal),
            saves("result=\"too-large\"", &self.refused_size),
            count(
                "location_write_errors",
                "Failed writes or syncs of the location journal.",
                &self.write_errors,
            ),
            count(
                "location_fold_errors",
                "Failed rounds of folding the journal into SQLite.",
                &self.fold_errors,
            ),
            count(
                "location_undecodable",
                "Journal entries whose record could not be read.",
                &self.undecodable,
            ),
            count(
                "location_damaged",
                "Places in the location journal that were damaged on disk and left out.",
                &self.damaged,
            ),
            count(
                "location_folded",
                "Addresses-of-record written to the location table.",
                &self.folded,
            ),
            Sample::counter(
                "location_purged",
                "",
                "Bindings deleted from the location table that had ended while nothing ran or their deletion was refused.",
                self.purged.get(),
            ),
        ]
        .into_iter()
        .chain(self.of_the_moment())
        .collect()
    }

    /// Histograms of times and sizes, and gauges.
    fn of_the_moment(&self) -> [Sample; 5] {
        [
            Sample::histogram(
                "location_batch_size",
                "",
                "Registrations written with one sync (group commit).",
                &self.batch,
            ),
            Sample::histogram(
                "location_save_microseconds",
                "",
                "From a worker's query to its result.",
                &self.latency,
            ),
            Sample::histogram(
                "location_sync_microseconds",
                "",
                "One write and one fdatasync of the journal.",
                &self.sync,
            ),
            Sample::gauge(
                "location_journal_bytes",
                "",
                "Bytes of journal that wait to be folded.",
                self.journal_bytes.get(),
            ),
            Sample::gauge(
                "location_failing",
                "",
                "1 while registrations cannot be saved, as the disk refuses to take them.",
                self.failing.get(),
            ),
        ]
    }
}

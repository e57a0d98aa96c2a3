//! The thread that looks secrets up: everything queued in one read transaction.

use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension as _, Row, Statement};
use sip_core::auth::digest::{self, Hash};
use sip_core::config::Algorithm;
use sip_core::query::{Answer, Secrets, Unavailable};
use zeroize::Zeroizing;

use super::table::{self, Shape, TableOptions, quoted};
use super::{CredentialCache, CredentialQuery, CredentialStore, LookupOptions, SubscriberError};
use crate::AnswerSink;
use crate::metrics::{self, Counter, Histogram, Sample};
use crate::queue::{Queue, Taken};
use crate::quiet::Quiet;

/// A database that failed is opened anew no sooner than this.
const REOPEN_AFTER: Duration = Duration::from_millis(500);

#[derive(Debug)]
struct Stats {
    found: Counter,
    unknown: Counter,
    unavailable: Counter,
    refused: Counter,
    broken: Counter,
    errors: Counter,
    batch: Histogram,
    latency: Histogram,
}

/// Look-ups in the `subscriber` table of an SQLite file.
#[derive(Debug)]
pub struct SqliteCredentials {
    queue: Arc<Queue<(CredentialQuery, Instant)>>,
    stats: Arc<Stats>,
    sink: Arc<dyn AnswerSink>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl SqliteCredentials {
    /// Opens the table (making it where it is absent) and starts the thread. What it finds goes
    /// into `cache`, and a change of the file by anybody empties that.
    ///
    /// # Errors
    /// As [`super::SubscriberTable::open`].
    pub fn open(
        table: TableOptions,
        options: LookupOptions,
        cache: Arc<CredentialCache>,
        sink: Arc<dyn AnswerSink>,
    ) -> Result<Self, SubscriberError> {
        let (db, shape) = table::prepare(&table)?;
        let queue = Arc::new(Queue::new(options.queue_items, usize::MAX));
        let stats = Arc::new(Stats {
            found: Counter::default(),
            unknown: Counter::default(),
            unavailable: Counter::default(),
            refused: Counter::default(),
            broken: Counter::default(),
            errors: Counter::default(),
            batch: Histogram::new(metrics::BATCH),
            latency: Histogram::new(metrics::LATENCY_US),
        });
        let path = table.path.clone();
        let mut lookup = Lookup {
            select: select(&table, &shape),
            source: None,
            failed_at: None,
            queue: queue.clone(),
            stats: stats.clone(),
            sink: sink.clone(),
            table,
            options,
            cache,
            log: Quiet::new(Duration::from_secs(5)),
            log_broken: Quiet::new(Duration::from_secs(60)),
        };
        lookup.source = Some(Source::new(db, &path).map_err(SubscriberError::database(&path))?);
        let thread = thread::Builder::new()
            .name("subscribers".into())
            .spawn(move || lookup.run())
            .map_err(SubscriberError::io(&path))?;
        Ok(Self {
            queue,
            stats,
            sink,
            thread: Mutex::new(Some(thread)),
        })
    }
}

impl CredentialStore for SqliteCredentials {
    fn ask(&self, batch: Vec<CredentialQuery>) {
        let asked = Instant::now();
        let mut refused = Vec::new();
        self.queue
            .push_all(batch.into_iter().map(|query| (query, asked)), |_| 1, &mut refused);
        if refused.is_empty() {
            return;
        }
        self.stats.refused.add(refused.len() as u64);
        for (query, _) in refused {
            if let Some(id) = query.id {
                self.sink
                    .answer(query.origin, id, Answer::Credentials(Err(Unavailable)));
            }
        }
        self.sink.flush();
    }

    fn metrics(&self) -> Vec<Sample> {
        const LOOKUPS: &str = "Look-ups of credentials in the store, by what came of them.";
        let stats = &self.stats;
        let lookups =
            |label, counter: &Counter| Sample::counter("credential_lookups", label, LOOKUPS, counter.get());
        vec![
            lookups("result=\"found\"", &stats.found),
            lookups("result=\"unknown\"", &stats.unknown),
            lookups("result=\"unavailable\"", &stats.unavailable),
            lookups("result=\"queue-full\"", &stats.refused),
            Sample::counter(
                "credential_broken_hashes",
                "",
                "Values in the subscriber table that are no hash of their algorithm.",
                stats.broken.get(),
            ),
            Sample::counter(
                "credential_store_errors",
                "",
                "Errors of the subscriber database.",
                stats.errors.get(),
            ),
            Sample::histogram(
                "credential_batch_size",
                "",
                "Look-ups done in one transaction.",
                &stats.batch,
            ),
            Sample::histogram(
                "credential_lookup_microseconds",
                "",
                "From a worker's question to its answer.",
                &stats.latency,
            ),
            Sample::gauge(
                "credential_queue",
                "",
                "Look-ups that wait for the store.",
                self.queue.len() as u64,
            ),
        ]
    }

    fn shutdown(&self) {
        self.queue.close();
        if let Some(thread) = self.thread.lock().take()
            && thread.join().is_err()
        {
            tracing::error!("the subscriber thread had panicked");
        }
    }
}

impl Drop for SqliteCredentials {
    fn drop(&mut self) {
        self.shutdown();
    }
}

/// One open database file.
struct Source {
    db: Connection,
    /// Device and inode: a file that was replaced keeps its name.
    file: Option<(u64, u64)>,
    /// Changes when another connection, of any process, commits.
    version: i64,
}

fn file_of(path: &std::path::Path) -> Option<(u64, u64)> {
    std::fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()))
}

impl Source {
    fn new(db: Connection, path: &std::path::Path) -> rusqlite::Result<Self> {
        db.pragma_update(None, "query_only", true)?;
        let version = data_version(&db)?;
        Ok(Self {
            db,
            file: file_of(path),
            version,
        })
    }
}

fn data_version(db: &Connection) -> rusqlite::Result<i64> {
    db.prepare_cached("PRAGMA data_version")?
        .query_row([], |row| row.get(0))
}

/// `ha1, ha1_sha256, ha1_sha512t256, password` of a user and domain.
fn select(table: &TableOptions, shape: &Shape) -> String {
    let columns = &table.columns;
    format!(
        "SELECT {}, {}, {}, {} FROM {} WHERE {} = ?1 AND {} = ?2",
        shape.or_null(&columns.ha1),
        shape.or_null(&columns.ha1_sha256),
        shape.or_null(&columns.ha1_sha512t256),
        shape.or_null(&columns.password),
        quoted(&table.table),
        quoted(&columns.user),
        quoted(&columns.domain)
    )
}

struct Lookup {
    select: String,
    source: Option<Source>,
    failed_at: Option<Instant>,
    queue: Arc<Queue<(CredentialQuery, Instant)>>,
    stats: Arc<Stats>,
    sink: Arc<dyn AnswerSink>,
    table: TableOptions,
    options: LookupOptions,
    cache: Arc<CredentialCache>,
    log: Quiet,
    log_broken: Quiet,
}

impl Lookup {
    fn run(mut self) {
        let mut batch = Vec::new();
        let mut watched = Instant::now();
        loop {
            let taken = self.queue.take(&mut batch, self.options.watch_every);
            if watched.elapsed() >= self.options.watch_every {
                watched = Instant::now();
                self.watch();
            }
            if taken == Taken::Closed {
                break;
            }
            if !batch.is_empty() {
                self.answer(&mut batch);
            }
        }
    }

    /// Looks whether somebody changed the table.
    fn watch(&mut self) {
        let Some(source) = &mut self.source else { return };
        if file_of(&self.table.path) != source.file {
            tracing::info!(path = %self.table.path.display(), "subscriber database was replaced; opening it anew");
            self.source = None;
            self.cache.invalidate();
            return;
        }
        match data_version(&source.db) {
            Ok(version) if version != source.version => {
                source.version = version;
                self.cache.invalidate();
            }
            Ok(_) => {}
            Err(error) => self.failed(&error),
        }
    }

    fn failed(&mut self, error: &rusqlite::Error) {
        self.stats.errors.inc();
        self.source = None;
        self.failed_at = Some(Instant::now());
        if let Some(more) = self.log.allow() {
            tracing::error!(path = %self.table.path.display(), %error, more, "subscriber database cannot be read");
        }
    }

    /// The database, opened anew after a failure.
    fn open(&mut self) -> bool {
        if self.source.is_some() {
            return true;
        }
        if self.failed_at.is_some_and(|at| at.elapsed() < REOPEN_AFTER) {
            return false;
        }
        // What was cached may be of another file.
        self.cache.invalidate();
        match table::connect(&self.table.path).and_then(|db| Source::new(db, &self.table.path)) {
            Ok(source) => {
                self.source = Some(source);
                self.failed_at = None;
                true
            }
            Err(error) => {
                self.failed(&error);
                false
            }
        }
    }

    fn answer(&mut self, batch: &mut Vec<(CredentialQuery, Instant)>) {
        self.stats.batch.observe(batch.len() as u64, 1);
        let mut left = batch.drain(..).peekable();
        if self.open() {
            let generation = self.cache.generation();
            if let Err(error) = self.look_up(&mut left, generation) {
                self.failed(&error);
            }
        }
        for (query, asked) in left {
            self.reply(&query, asked, Err(Unavailable));
        }
        self.sink.flush();
    }

    /// Answers from the front of `left` until none is left or the database fails.
    fn look_up(
        &self,
        left: &mut std::iter::Peekable<impl Iterator<Item = (CredentialQuery, Instant)>>,
        generation: u64,
    ) -> rusqlite::Result<()> {
        let Some(source) = &self.source else { return Ok(()) };
        let tx = source.db.unchecked_transaction()?;
        let mut statement = tx.prepare_cached(&self.select)?;
        while let Some((query, asked)) = left.peek() {
            let result = if asked.elapsed() > self.options.deadline {
                Err(Unavailable)
            } else if let Some(known) = self.cache.peek(&query.user, &query.domain, &query.realm) {
                // Asked twice before the first was answered.
                Ok(known)
            } else {
                let found = self.find(&mut statement, query)?;
                self.cache.insert(
                    &query.user,
                    &query.domain,
                    &query.realm,
                    generation,
                    found.clone(),
                );
                Ok(found)
            };
            self.reply(query, *asked, result);
            left.next();
        }
        Ok(())
    }

    fn reply(&self, query: &CredentialQuery, asked: Instant, result: Result<Option<Secrets>, Unavailable>) {
        match &result {
            Ok(Some(_)) => self.stats.found.inc(),
            Ok(None) => self.stats.unknown.inc(),
            Err(Unavailable) => self.stats.unavailable.inc(),
        }
        self.stats.latency.observe_duration(asked.elapsed(), 1);
        if let Some(id) = query.id {
            self.sink.answer(query.origin, id, Answer::Credentials(result));
        }
    }

    fn find(
        &self,
        statement: &mut Statement<'_>,
        query: &CredentialQuery,
    ) -> rusqlite::Result<Option<Secrets>> {
        // A name that is no text is in no table.
        let (Ok(user), Ok(domain)) = (
            std::str::from_utf8(&query.user),
            std::str::from_utf8(&query.domain),
        ) else {
            return Ok(None);
        };
        statement
            .query_row([user, domain], |row| self.secrets(row, query))
            .optional()
    }

    fn secrets(&self, row: &Row<'_>, query: &CredentialQuery) -> rusqlite::Result<Secrets> {
        if self.table.calculate_ha1 {
            let password = text(row.get_ref(3)?);
            if password.is_empty() {
                return Ok(Secrets::default());
            }
            return Ok(digest::secrets(&query.user, &query.realm, password));
        }
        let long = |value: Option<Hash>| value.and_then(|hash| array(&hash));
        Ok(Secrets {
            ha1_md5: self
                .hash(row.get_ref(0)?, Algorithm::Md5)
                .and_then(|hash| array(&hash)),
            ha1_sha256: long(self.hash(row.get_ref(1)?, Algorithm::Sha256)),
            ha1_sha512_256: long(self.hash(row.get_ref(2)?, Algorithm::Sha512_256)),
        })
    }

    /// A hash column; one that is filled with something else counts as empty.
    fn hash(&self, value: ValueRef<'_>, algorithm: Algorithm) -> Option<Hash> {
        let digits = text(value);
        if digits.is_empty() {
            return None;
        }
        let hash = Hash::from_hex(algorithm, digits);
        if hash.is_none() {
            self.stats.broken.inc();
            if let Some(more) = self.log_broken.allow() {
                let algorithm = algorithm.name();
                tracing::warn!(
                    algorithm,
                    more,
                    "subscriber table: a hash column does not hold a hash; ignored"
                );
            }
        }
        hash
    }
}

fn array<const N: usize>(hash: &Hash) -> Option<Zeroizing<[u8; N]>> {
    let mut bytes = Zeroizing::new([0; N]);
    bytes.copy_from_slice(hash.as_bytes().get(..N)?);
    Some(bytes)
}

fn text(value: ValueRef<'_>) -> &[u8] {
    match value {
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => bytes,
        ValueRef::Null | ValueRef::Integer(_) | ValueRef::Real(_) => &[],
    }
}

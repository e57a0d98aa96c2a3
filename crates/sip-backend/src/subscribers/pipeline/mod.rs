//! The pipeline of a question: joined, queued, sent in a batch. If the database does not respond, the
//! question is resolved without it.
//!
//! One thread carries all connections of a store, for each kind of database ([`connection`]). Values without
//! threads decide what is sent when ([`batcher`], [`breaker`]). Workers only ever take the lock of the queue.

mod batcher;
mod breaker;
mod connection;
mod stats;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sip_core::query::{QueryResult, Secrets, Unavailable};
use tokio::sync::{Notify, watch};

pub use self::batcher::Mode;
use self::batcher::{Asked, Batcher, Ended, Refusal, Rules};
use self::breaker::State;
use self::stats::Stats;
use super::database::mysql::MySql;
use super::database::postgres::Postgres;
use super::database::sqlite::{Sqlite, make_file};
use super::options::{Protocol, Source, TableOptions};
use super::secrets::Reader;
use super::{CredentialCache, CredentialQuery, CredentialStore, SubscriberError, SubscriberTable, sql};
use crate::ResultSink;
use crate::metrics::Sample;
use crate::throttle::LogThrottle;

/// Options of look-ups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LookupOptions {
    /// Number of connections to a database server; a file has one.
    pub connections: usize,
    /// The rule for the time at which a batch is sent.
    pub mode: Mode,
    /// Most questions of a batch, 1 to 1,024.
    pub max_batch: usize,
    /// Longest wait of a batch for more questions; see [`Mode`].
    pub max_wait: Duration,
    /// Most open questions. A further one gets the result `Unavailable`.
    pub queue_items: usize,
    /// Longest time of a question. Then it gets the result `Unavailable`, because the core gives up.
    pub deadline: Duration,
}

impl Default for LookupOptions {
    fn default() -> Self {
        Self {
            connections: 8,
            mode: Mode::Adaptive,
            max_batch: 128,
            max_wait: Duration::from_millis(5),
            queue_items: 65_536,
            deadline: Duration::from_secs(3),
        }
    }
}

/// Look-ups in a subscriber table.
#[derive(Debug)]
pub struct Pipeline {
    inner: Arc<Inner>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// State of a store, for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The database as a URL, without its password.
    pub store: String,
    /// Number of connections that are up.
    pub connections: usize,
    /// Configured number of connections.
    pub connections_wanted: usize,
    /// `closed`: questions go to the database; `open`: the database is given up for now; `half-open`: one
    /// batch tests whether the database responds again.
    pub breaker: &'static str,
    /// Number of look-ups that wait for a connection.
    pub queued: usize,
    /// Number of look-ups under way.
    pub under_way: usize,
    /// Number of questions that wait for a result, including joined ones.
    pub questions: usize,
    /// The last failure, without secrets.
    pub last_error: Option<String>,
}

/// State that the thread and the workers share.
#[derive(Debug)]
struct Inner {
    batcher: Mutex<Batcher>,
    options: LookupOptions,
    store: String,
    /// Notifies connections without a batch under way to look at the queue.
    idle: Notify,
    /// Notifies any connection to look at the queue.
    busy: Notify,
    /// Notifies waiting connections that one came up.
    revived: Notify,
    /// Notifies that the first deadline was set.
    ageing: Notify,
    closed: watch::Sender<bool>,
    cache: Arc<CredentialCache>,
    reader: Reader,
    stats: Stats,
    sink: Arc<dyn ResultSink>,
    log: LogThrottle,
    last_error: Mutex<Option<String>>,
    /// Whether a failure was logged since the database last responded.
    is_away: AtomicBool,
}

impl Pipeline {
    /// Starts the thread. Results are kept in `cache`, which any change of the table empties.
    ///
    /// The table of a file is created if it is absent, and must be usable. A server may be away: it is
    /// connected to once it responds, and only commands create its table.
    ///
    /// # Errors
    /// Those of [`SubscriberTable::open`].
    pub fn open(
        table: TableOptions,
        options: LookupOptions,
        cache: Arc<CredentialCache>,
        sink: Arc<dyn ResultSink>,
    ) -> Result<Self, SubscriberError> {
        sql::check_identifiers(&table)?;
        let store = table.source.to_string();
        let inner = Arc::new(Inner::new(&table, options, cache, sink));
        let thread = match table.source.clone() {
            Source::Sqlite(path) => {
                make_file(&path).map_err(SubscriberError::io(&path))?;
                drop(SubscriberTable::open(table.clone())?);
                inner.start(Sqlite::new(path, table), 1)
            }
            Source::Server(server) => {
                if server.is_exposed() {
                    tracing::warn!(%server, "secrets from this database cross the network unencrypted; tls=on in its URL encrypts them");
                }
                let connections = inner.options.connections;
                match server.protocol {
                    Protocol::MySql => inner.start(MySql::new(server, table), connections),
                    Protocol::Postgres => inner.start(Postgres::new(server, table), connections),
                }
            }
        };
        let thread = thread.map_err(|error| SubscriberError::Database {
            store,
            source: error.into(),
        })?;
        Ok(Self {
            inner,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Forgets the cached entries of `user@domain` (of all users, if no name is given), and the results of
    /// look-ups under way. Returns the number of entries forgotten.
    pub fn forget(&self, subscriber: Option<(&[u8], &[u8])>) -> usize {
        let cache = &self.inner.cache;
        match subscriber {
            Some((user, domain)) => {
                self.inner.batcher.lock().changed();
                cache.forget(user, domain)
            }
            None => {
                let held = cache.len();
                self.inner.changed();
                held
            }
        }
    }

    /// Sets the longest time of questions from now on.
    pub fn set_deadline(&self, deadline: Duration) {
        self.inner.batcher.lock().set_deadline(deadline);
    }

    /// The present state.
    pub fn status(&self) -> Status {
        let inner = &self.inner;
        let batcher = inner.batcher.lock();
        Status {
            store: inner.store.clone(),
            connections: batcher.sessions(),
            connections_wanted: inner.stats.connections(),
            breaker: match batcher.breaker().state() {
                State::Closed => "closed",
                State::HalfOpen => "half-open",
                State::Open { .. } => "open",
            },
            queued: batcher.queued(),
            under_way: batcher.under_way(),
            questions: batcher.questions(),
            last_error: inner.last_error.lock().clone(),
        }
    }
}

impl CredentialStore for Pipeline {
    fn ask(&self, batch: Vec<CredentialQuery>) {
        let inner = &self.inner;
        let now = Instant::now();
        let (mut refused, mut nameless) = (Vec::new(), Vec::new());
        let mut wake = false;
        let first = {
            let mut batcher = inner.batcher.lock();
            let ageing = batcher.next_deadline().is_some();
            for query in batch {
                // A name that is not text is in no table. In a batch it would count as a result of the
                // database, and any client could cause that.
                if std::str::from_utf8(&query.username).is_err() {
                    nameless.push(query);
                    continue;
                }
                match batcher.ask(now, query) {
                    Ok(Asked::Queued { wake: this }) => wake |= this,
                    Ok(Asked::Joined) => {
                        inner.stats.joined.inc();
                        // The question may start a probe.
                        wake |= batcher.queued() > 0;
                    }
                    Err(refusal) => refused.push(refusal),
                }
            }
            !ageing && batcher.next_deadline().is_some()
        };
        if wake {
            inner.wake();
        }
        if first {
            inner.ageing.notify_one();
        }
        if refused.is_empty() && nameless.is_empty() {
            return;
        }
        for query in nameless {
            inner.reply(query.origin, query.id, now, Ok(None));
        }
        for (why, query) in refused {
            if why == Refusal::Full {
                inner.stats.refused.inc();
            }
            let stale = inner
                .cache
                .stale(&query.username, &query.domain, &query.realm)
                .filter(|_| why != Refusal::Closed);
            inner.reply(query.origin, query.id, now, inner.instead(stale));
        }
        inner.sink.flush();
    }

    fn metrics(&self) -> Vec<Sample> {
        let inner = &self.inner;
        // Samples are made after the lock is released, because workers wait for it.
        let now = stats::Now::of(&inner.batcher.lock());
        inner.stats.samples(&now, &inner.reader)
    }

    fn shutdown(&self) {
        self.inner.batcher.lock().close();
        // `send_replace` works without a receiver, too.
        self.inner.closed.send_replace(true);
        if let Some(thread) = self.thread.lock().take()
            && thread.join().is_err()
        {
            tracing::error!("the subscriber thread had panicked");
        }
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        self.shutdown();
    }
}

impl Inner {
    fn new(
        table: &TableOptions,
        options: LookupOptions,
        cache: Arc<CredentialCache>,
        sink: Arc<dyn ResultSink>,
    ) -> Self {
        let rules = Rules {
            mode: options.mode,
            max_batch: options.max_batch.max(1),
            max_wait: options.max_wait,
            deadline: options.deadline,
            questions: options.queue_items,
        };
        Self {
            batcher: Mutex::new(Batcher::new(rules)),
            store: table.source.to_string(),
            idle: Notify::new(),
            busy: Notify::new(),
            revived: Notify::new(),
            ageing: Notify::new(),
            closed: watch::Sender::new(false),
            cache,
            reader: Reader::new(table.calculate_ha1),
            stats: Stats::new(),
            sink,
            log: LogThrottle::new(Duration::from_secs(5)),
            last_error: Mutex::new(None),
            is_away: AtomicBool::new(false),
            options,
        }
    }

    fn start<D: super::database::Database>(
        self: &Arc<Self>,
        database: D,
        connections: usize,
    ) -> std::io::Result<JoinHandle<()>> {
        self.stats.set_connections(connections);
        let inner = Arc::clone(self);
        let runtime = super::database::small_runtime()?;
        thread::Builder::new().name("subscribers".into()).spawn(move || {
            runtime.block_on(connection::run(&inner, &database, connections));
            // Questions that still wait get no result from the database any more.
            let mut left = Vec::new();
            inner.batcher.lock().drain(&mut left);
            inner.fail(left);
            // A name server that does not respond must not delay the end of the process.
            runtime.shutdown_background();
        })
    }

    /// Notes a change of the table.
    fn changed(&self) {
        self.batcher.lock().changed();
        self.cache.invalidate();
    }

    /// Most questions that are sent together.
    fn largest_batch(&self) -> usize {
        match self.options.mode {
            Mode::Single => 1,
            Mode::Fixed | Mode::Adaptive => self.options.max_batch.max(1),
        }
    }

    /// Wakes a connection to look at the queue.
    fn wake(&self) {
        self.idle.notify_one();
        self.busy.notify_one();
    }

    /// Delivers the result of a flight to its waiters.
    fn answer(&self, ended: Ended, secrets: &Option<Secrets>) {
        for waiter in ended.waiters {
            self.reply(waiter.origin, waiter.id, waiter.asked, Ok(secrets.clone()));
        }
    }

    /// Gives results to flights without one from the database.
    fn fail(&self, ended: Vec<Ended>) {
        if ended.is_empty() {
            return;
        }
        for Ended { subject, waiters } in ended {
            let stale = self
                .cache
                .stale(&subject.username, &subject.domain, &subject.realm);
            for waiter in waiters {
                let instead = self.instead(stale.clone());
                self.reply(waiter.origin, waiter.id, waiter.asked, instead);
            }
        }
        self.sink.flush();
    }

    /// The result without the database: outdated secrets, if they may still be used.
    fn instead(&self, stale: Option<Secrets>) -> Result<Option<Secrets>, Unavailable> {
        match stale {
            Some(secrets) => {
                self.stats.stale.inc();
                Ok(Some(secrets))
            }
            None => Err(Unavailable),
        }
    }

    fn reply(
        &self,
        origin: u16,
        id: Option<sip_core::id::QueryId>,
        asked: Instant,
        result: Result<Option<Secrets>, Unavailable>,
    ) {
        self.stats.answered(asked.elapsed(), &result);
        if let Some(id) = id {
            self.sink.deliver(origin, id, QueryResult::Credentials(result));
        }
    }

    /// Notes and logs a failure of the database.
    fn note(&self, error: &dyn std::fmt::Display) {
        self.stats.errors.inc();
        let text = error.to_string();
        let mut last = self.last_error.lock();
        // A new error is logged at once: after "connection refused" may come "access denied".
        let is_new = last.as_ref() != Some(&text);
        if let Some(more) = self.log.allow_if(is_new) {
            tracing::error!(store = &*self.store, error = &*text, more, "subscriber database");
            self.is_away.store(true, Ordering::Relaxed);
        }
        *last = Some(text);
    }

    /// Notes that the database has responded. Logs it if a failure was logged before.
    fn note_response(&self) {
        if self.is_away.load(Ordering::Relaxed) && self.is_away.swap(false, Ordering::Relaxed) {
            tracing::info!(store = &*self.store, "subscriber database responds again");
        }
    }
}

//! Measurement of the time that a database takes for a batch.

use std::time::{Duration, Instant};

use super::database::mysql::MySql;
use super::database::postgres::Postgres;
use super::database::sqlite::Sqlite;
use super::database::{Database, DbError, RowKey, Session, small_runtime};
use super::options::{Protocol, Source, TableOptions};
use super::{SubscriberError, SubscriberTable};

/// Most subscribers to look up.
const NAMES: usize = 10_000;

/// Queries a number of rows a number of times. Returns the time of each batch.
type Ask = Box<dyn FnMut(usize, usize) -> Result<Vec<Duration>, DbError>>;

/// One connection to a subscriber table, for batches sent one after the other. Blocks.
pub struct Calibration {
    ask: Ask,
    source: Source,
    max_batch: usize,
}

impl std::fmt::Debug for Calibration {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Calibration")
            .field("source", &self.source)
            .finish_non_exhaustive()
    }
}

impl Calibration {
    /// Connects, with statements for batches of up to `max_batch`.
    ///
    /// # Errors
    /// Those of [`SubscriberTable::open`]; an empty table is one too.
    pub fn open(options: &TableOptions, max_batch: usize) -> Result<Self, SubscriberError> {
        let names = names(options)?;
        let table = options.clone();
        let max_batch = max_batch.max(1).next_power_of_two();
        let ask = match options.source.clone() {
            Source::Sqlite(path) => asking(&Sqlite::new(path, table), names, max_batch),
            Source::Server(server) => match server.protocol {
                Protocol::MySql => asking(&MySql::new(server, table), names, max_batch),
                Protocol::Postgres => asking(&Postgres::new(server, table), names, max_batch),
            },
        };
        Ok(Self {
            ask: ask.map_err(SubscriberError::database(&options.source))?,
            source: options.source.clone(),
            max_batch,
        })
    }

    /// The powers of two up to the largest batch.
    pub fn sizes(&self) -> impl Iterator<Item = usize> + use<> {
        let largest = self.max_batch;
        std::iter::successors(Some(1), |size| Some(size * 2)).take_while(move |size| *size <= largest)
    }

    /// Sends `rounds` batches of `size` for subscribers in the table, after a batch that is not counted.
    /// Returns the time of each batch from its sending to its rows, round trip included.
    ///
    /// # Errors
    /// Those of the database.
    pub fn ask(&mut self, size: usize, rounds: usize) -> Result<Vec<Duration>, SubscriberError> {
        (self.ask)(size, rounds).map_err(SubscriberError::database(&self.source))
    }
}

fn names(options: &TableOptions) -> Result<Vec<(String, String)>, SubscriberError> {
    let mut names = Vec::new();
    SubscriberTable::open(options.clone())?.list(None, &mut |user, domain| {
        if names.len() < NAMES {
            names.push((user.to_owned(), domain.to_owned()));
        }
    })?;
    if names.is_empty() {
        let empty = DbError::refused("the table has no subscribers to ask for");
        return Err(SubscriberError::database(&options.source)(empty));
    }
    Ok(names)
}

fn asking<D: Database>(database: &D, names: Vec<(String, String)>, max_batch: usize) -> Result<Ask, DbError>
where
    D::Session: 'static,
{
    let runtime = small_runtime().map_err(DbError::lost)?;
    let session = runtime.block_on(database.connect(max_batch))?;
    let mut at = 0;
    Ok(Box::new(move |size, rounds| {
        let mut took = Vec::with_capacity(rounds);
        for round in 0..=rounds {
            let keys: Vec<RowKey<'_>> = (0..size)
                .filter_map(|n| {
                    // A step that shares no factor with most numbers of names, so it spreads them.
                    let (user, domain) = names.get((at + n * 7_919) % names.len())?;
                    Some((user.as_str(), domain.as_str()))
                })
                .collect();
            at += size;
            let begun = Instant::now();
            runtime.block_on(session.fetch(&keys, &mut |_| {}))?;
            if round > 0 {
                took.push(begun.elapsed());
            }
        }
        Ok(took)
    }))
}

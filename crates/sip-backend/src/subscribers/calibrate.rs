//! How long a database takes for a batch, by asking it.

use std::time::{Duration, Instant};

use super::database::mysql::MySql;
use super::database::postgres::Postgres;
use super::database::sqlite::Sqlite;
use super::database::{Database, DbError, RowKey, Session, small_runtime};
use super::options::{Protocol, Source, TableOptions};
use super::{SubscriberError, SubscriberTable};

/// Subscribers whose rows are asked for, at most.
const NAMES: usize = 10_000;

/// One batch that was sent and answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchSample {
    /// Look-ups in it.
    pub size: usize,
    /// From its sending to its answer, round trip included.
    pub elapsed: Duration,
}

/// Sends `rounds` batches of every power of two up to `max_batch` to the table, one after the other
/// on one connection, for subscribers that are in it.
///
/// # Errors
/// As [`SubscriberTable::open`], an empty table included.
pub fn calibrate(
    options: &TableOptions,
    max_batch: usize,
    rounds: usize,
) -> Result<Vec<BatchSample>, SubscriberError> {
    let names = names(options)?;
    let of = SubscriberError::database(&options.source);
    let table = options.clone();
    let samples = match options.source.clone() {
        Source::Sqlite(path) => run(&Sqlite::new(path, table), &names, max_batch, rounds),
        Source::Server(server) => match server.protocol {
            Protocol::MySql => run(&MySql::new(server, table), &names, max_batch, rounds),
            Protocol::Postgres => run(&Postgres::new(server, table), &names, max_batch, rounds),
        },
    };
    samples.map_err(of)
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

fn run(
    database: &impl Database,
    names: &[(String, String)],
    max_batch: usize,
    rounds: usize,
) -> Result<Vec<BatchSample>, DbError> {
    small_runtime().map_err(DbError::lost)?.block_on(async {
        let session = database.connect(max_batch).await?;
        let mut samples = Vec::new();
        let mut at = 0;
        let mut size = 1;
        while size <= max_batch {
            // One round more, which warms up.
            for round in 0..=rounds {
                let keys: Vec<RowKey<'_>> = (0..size.min(names.len()))
                    .filter_map(|n| {
                        // A step that shares no factor with the number of names spreads them.
                        let (user, domain) = names.get((at + n * 7_919) % names.len())?;
                        Some((user.as_str(), domain.as_str()))
                    })
                    .collect();
                at += size;
                let begun = Instant::now();
                session.fetch(&keys, &mut |_| {}).await?;
                if round > 0 {
                    samples.push(BatchSample {
                        size: keys.len(),
                        elapsed: begun.elapsed(),
                    });
                }
            }
            size *= 2;
        }
        Ok(samples)
    })
}

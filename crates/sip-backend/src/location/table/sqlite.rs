//! The `location` table in SQLite: one row for each binding, in the manner of OpenSER's usrloc. Operators and
//! the next start read it.

use std::path::{Path, PathBuf};

use rusqlite::types::{Value, ValueRef};
use rusqlite::{Connection, Row, Statement, ToSql, params};
use sip_core::id::ListenerId;
use sip_core::location::{AorRecord, Binding};
use sip_core::transport::{Flow, Proof};

use super::super::socket::{self, Mapper};
use super::{Part, Scan, Table, Write, split_aor};
use crate::sqlite;

/// Clustered by address-of-record: a refresh touches one page, a start reads in order.
/// `slot` is the binding's place in its record, best `q` first; `expires` and `last_modified`
/// are seconds since 1970; `updated` is the record's `version` when the binding was last
/// registered.
const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS location (
  username TEXT NOT NULL,
  domain TEXT NOT NULL,
  slot INTEGER NOT NULL,
  contact TEXT NOT NULL,
  received TEXT NOT NULL,
  path TEXT NOT NULL,
  expires INTEGER NOT NULL,
  q REAL NOT NULL,
  callid TEXT NOT NULL,
  cseq INTEGER NOT NULL,
  last_modified INTEGER NOT NULL,
  user_agent TEXT NOT NULL,
  socket TEXT NOT NULL,
  instance TEXT NOT NULL,
  reg_id INTEGER NOT NULL,
  version INTEGER NOT NULL,
  updated INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (domain, username, slot)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS location_deleted (
  username TEXT NOT NULL,
  domain TEXT NOT NULL,
  version INTEGER NOT NULL,
  at INTEGER NOT NULL,
  PRIMARY KEY (domain, username)
) WITHOUT ROWID;";

/// Rows read in one step of a walk.
const WALK_ROWS: u32 = 10_000;

/// The table in an SQLite file.
#[derive(Debug)]
pub(crate) struct SqliteTable {
    path: PathBuf,
    db: Connection,
}

impl SqliteTable {
    /// Opens the database, and creates it if it is absent.
    pub(crate) fn open(path: &Path) -> rusqlite::Result<Self> {
        Ok(Self {
            path: path.to_owned(),
            db: open(path)?,
        })
    }
}

impl Table for SqliteTable {
    type Error = rusqlite::Error;
    type Part = Range;
    type Place = Key;

    fn deletions(&self, each: &mut dyn FnMut(Box<[u8]>, u64, u64)) -> rusqlite::Result<()> {
        deletions(&self.db, each)
    }

    fn parts(&self, most: usize) -> rusqlite::Result<Vec<Range>> {
        let keys = split(&self.db, most)?;
        let bound = |n: Option<usize>| n.and_then(|n| keys.get(n)).cloned();
        let range = |n: usize| Range {
            path: self.path.clone(),
            from: bound(n.checked_sub(1)),
            to: bound(Some(n)),
        };
        Ok((0..=keys.len()).map(range).collect())
    }

    fn write(&mut self, records: &[Write<'_>]) -> rusqlite::Result<Vec<bool>> {
        let tx = self.db.unchecked_transaction()?;
        let mut writer = Writer::new(&tx)?;
        let written = records.iter().map(|write| writer.write(write));
        let written = written.collect::<rusqlite::Result<Vec<bool>>>()?;
        drop(writer);
        tx.commit()?;
        Ok(written)
    }

    fn purge_step(&mut self, after: Option<&Key>, ended_before: u64) -> rusqlite::Result<(u64, Option<Key>)> {
        purge_step(&self.db, after, ended_before, WALK_ROWS)
    }

    fn purge_deletions(&mut self, before: u64) -> rusqlite::Result<()> {
        purge_deletions(&self.db, before).map(drop)
    }

    fn finish(&mut self) -> rusqlite::Result<()> {
        self.db
            .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
    }
}

/// A part of the table: from the first key (or the beginning) up to the second, exclusive (or to the end).
#[derive(Debug)]
pub(crate) struct Range {
    path: PathBuf,
    from: Option<AorKey>,
    to: Option<AorKey>,
}

impl Part for Range {
    type Error = rusqlite::Error;

    fn scan(
        &self,
        mapper: &mut Mapper<'_>,
        wanted: &mut dyn FnMut(&[u8], u64) -> bool,
        each: &mut dyn FnMut(Box<[u8]>, AorRecord),
    ) -> rusqlite::Result<Scan> {
        let db = sqlite::connect(&self.path)?;
        scan(&db, (self.from.as_ref(), self.to.as_ref()), mapper, wanted, each)
    }
}

/// Opens the database, and creates it if it is absent.
fn open(path: &Path) -> rusqlite::Result<Connection> {
    let db = sqlite::connect(path)?;
    db.pragma_update(None, "journal_mode", "WAL")?;
    // A folded segment is deleted after the commit, so the commit must be on disk.
    db.pragma_update(None, "synchronous", "FULL")?;
    db.pragma_update(None, "cache_size", -32_768)?;
    db.set_prepared_statement_cache_capacity(16);
    db.execute_batch(SCHEMA)?;
    // The table was created by an earlier version.
    if db.prepare("SELECT updated FROM location LIMIT 0").is_err() {
        db.execute_batch("ALTER TABLE location ADD COLUMN updated INTEGER NOT NULL DEFAULT 0")?;
    }
    Ok(db)
}

/// Bytes as SQLite stores them: as text if they are UTF-8, so that people can read them, else as a blob.
struct Bytes<'a>(&'a [u8]);

impl ToSql for Bytes<'_> {
    fn to_sql(&self) -> rusqlite::Result<rusqlite::types::ToSqlOutput<'_>> {
        let value = match std::str::from_utf8(self.0) {
            Ok(_) => ValueRef::Text(self.0),
            Err(_) => ValueRef::Blob(self.0),
        };
        Ok(rusqlite::types::ToSqlOutput::Borrowed(value))
    }
}

fn join_aor(user: &[u8], domain: &[u8]) -> Box<[u8]> {
    let mut aor = Vec::with_capacity(user.len() + domain.len() + 1);
    if !user.is_empty() {
        aor.extend_from_slice(user);
        aor.push(b'@');
    }
    aor.extend_from_slice(domain);
    aor.into_boxed_slice()
}

/// Prepared statements that write in one transaction.
#[derive(Debug)]
struct Writer<'db> {
    find: Statement<'db>,
    put: Statement<'db>,
    cut: Statement<'db>,
    bury: Statement<'db>,
    unbury: Statement<'db>,
}

impl<'db> Writer<'db> {
    fn new(db: &'db Connection) -> rusqlite::Result<Self> {
        Ok(Self {
            find: db.prepare("SELECT max(slot) + 1, max(version) FROM location WHERE domain=? AND username=?")?,
            put: db.prepare(
                "INSERT OR REPLACE INTO location (username, domain, slot, contact, received, path, expires, q, \
                 callid, cseq, last_modified, user_agent, socket, instance, reg_id, version, updated) \
                 VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
            )?,
            cut: db.prepare("DELETE FROM location WHERE domain=? AND username=? AND slot>=?")?,
            bury: db.prepare("INSERT OR REPLACE INTO location_deleted VALUES (?,?,?,?)")?,
            unbury: db.prepare("DELETE FROM location_deleted WHERE domain=? AND username=?")?,
        })
    }

    /// Writes the record unless the table has a newer one. Returns whether it was written.
    fn write(&mut self, write: &Write<'_>) -> rusqlite::Result<bool> {
        let (user, domain) = split_aor(write.aor);
        let (user, domain) = (Bytes(user), Bytes(domain));
        let bindings = i64::try_from(write.record.bindings.len()).unwrap_or(i64::MAX);
        // Not the number of rows, because rows of expired bindings may be missing.
        let (rows, newest): (Option<i64>, Option<i64>) = self
            .find
            .query_row(params![domain, user], |row| Ok((row.get(0)?, row.get(1)?)))?;
        if newest.is_some_and(|newest| newest.cast_unsigned() >= write.version)
            || write.deleted.is_some_and(|deleted| deleted >= write.version)
        {
            return Ok(false);
        }
        for (slot, binding) in (0..).zip(&write.record.bindings) {
            self.put_binding(write, slot, binding)?;
        }
        if rows > Some(bindings) {
            self.cut.execute(params![domain, user, bindings])?;
        }
        if write.record.bindings.is_empty() {
            let (version, at) = (write.version.cast_signed(), write.saved_unix_s.cast_signed());
            self.bury.execute(params![user, domain, version, at])?;
        } else if write.deleted.is_some() {
            self.unbury.execute(params![domain, user])?;
        }
        Ok(true)
    }

    fn put_binding(&mut self, write: &Write<'_>, slot: i64, binding: &Binding) -> rusqlite::Result<()> {
        let (user, domain) = split_aor(write.aor);
        let socket = write.listeners.get(usize::from(binding.received.listener.0));
        self.put.execute(params![
            Bytes(user),
            Bytes(domain),
            slot,
            Bytes(&binding.contact),
            socket::write_received(binding.received.transport, binding.received.remote),
            Bytes(&binding.path),
            binding.expires_unix_s.cast_signed(),
            f64::from(binding.q_milli) / 1000.0,
            Bytes(&binding.call_id),
            binding.cseq,
            write.saved_unix_s.cast_signed(),
            Bytes(&binding.user_agent),
            Bytes(socket.map_or(&[], |socket| socket)),
            Bytes(&binding.instance),
            binding.reg_id,
            write.version.cast_signed(),
            binding.updated.cast_signed(),
        ])?;
        Ok(())
    }
}

/// Deletes the notes of deletions before `before` (Unix seconds).
fn purge_deletions(db: &Connection, before: u64) -> rusqlite::Result<usize> {
    db.execute(
        "DELETE FROM location_deleted WHERE at < ?",
        params![before.cast_signed()],
    )
}

/// The key of a row: domain, user, slot.
pub(crate) type Key = (Value, Value, i64);

/// Does one step of a walk through the table: of the `rows` rows after `after`, deletes those of bindings
/// that expired before `expired_before` (Unix seconds). Returns their number, and where the next step
/// continues (`None` at the end).
fn purge_step(
    db: &Connection,
    after: Option<&Key>,
    expired_before: u64,
    rows: u32,
) -> rusqlite::Result<(u64, Option<Key>)> {
    // Every domain is a text or a blob, which sort after a number.
    let first: Key = (Value::Integer(0), Value::Integer(0), 0);
    let (domain, user, slot) = after.unwrap_or(&first);
    let mut select = db.prepare_cached(
        "SELECT domain, username, slot, expires FROM location WHERE (domain, username, slot) > (?,?,?) \
         ORDER BY domain, username, slot LIMIT ?",
    )?;
    let read = |row: &Row<'_>| -> rusqlite::Result<(Key, i64)> {
        Ok(((row.get(0)?, row.get(1)?, row.get(2)?), row.get(3)?))
    };
    let found = select
        .query_map(params![domain, user, slot, rows], read)?
        .collect::<rusqlite::Result<Vec<_>>>()?;
    let tx = db.unchecked_transaction()?;
    let mut removed = 0;
    {
        let mut delete =
            tx.prepare_cached("DELETE FROM location WHERE domain=? AND username=? AND slot=?")?;
        for ((domain, user, slot), expires) in &found {
            if expires.cast_unsigned() < expired_before {
                removed += delete.execute(params![domain, user, slot])? as u64;
            }
        }
    }
    tx.commit()?;
    let more = found.len() >= rows as usize;
    let last = found.into_iter().next_back().map(|(key, _)| key);
    Ok((removed, last.filter(|_| more)))
}

/// Domain and user: the key of an address-of-record.
type AorKey = (Value, Value);

/// The bounds of a part of the table, as in [`Range`].
type Bounds<'a> = (Option<&'a AorKey>, Option<&'a AorKey>);

/// Splits the table into `parts` parts with about as many rows each. Returns the keys at which the second and
/// later parts begin. A small table has fewer parts.
fn split(db: &Connection, parts: usize) -> rusqlite::Result<Vec<AorKey>> {
    /// Least number of pages: fewer are read as fast by one thread.
    const MIN_PAGES: i64 = 1_000;
    let pages: i64 = db.query_row("PRAGMA page_count", [], |row| row.get(0))?;
    if parts < 2 || pages < MIN_PAGES {
        return Ok(Vec::new());
    }
    let rows: i64 = db.query_row("SELECT count(*) FROM location", [], |row| row.get(0))?;
    let part = rows / i64::try_from(parts).unwrap_or(i64::MAX);
    let mut next = db.prepare(
        "SELECT domain, username FROM location WHERE (domain, username) >= (?,?) \
         ORDER BY domain, username LIMIT 1 OFFSET ?",
    )?;
    let mut keys = Vec::<AorKey>::new();
    while keys.len() + 1 < parts {
        let first = (Value::Integer(0), Value::Integer(0));
        let (domain, user) = keys.last().unwrap_or(&first);
        let found = next.query_row(params![domain, user, part], |row| Ok((row.get(0)?, row.get(1)?)));
        match found {
            Ok(key) => keys.push(key),
            Err(rusqlite::Error::QueryReturnedNoRows) => break,
            Err(error) => return Err(error),
        }
    }
    keys.dedup();
    Ok(keys)
}

/// Calls `each` with the recent deletions: address-of-record, version, Unix second.
fn deletions(db: &Connection, each: &mut dyn FnMut(Box<[u8]>, u64, u64)) -> rusqlite::Result<()> {
    let mut select = db.prepare("SELECT username, domain, version, at FROM location_deleted ORDER BY at")?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        let (version, at): (i64, i64) = (row.get(2)?, row.get(3)?);
        each(
            join_aor(bytes(row, 0)?, bytes(row, 1)?),
            version.cast_unsigned(),
            at.cast_unsigned(),
        );
    }
    Ok(())
}

fn bytes<'row>(row: &'row Row<'_>, column: usize) -> rusqlite::Result<&'row [u8]> {
    Ok(match row.get_ref(column)? {
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => bytes,
        ValueRef::Null | ValueRef::Integer(_) | ValueRef::Real(_) => &[],
    })
}

/// Passes on every address-of-record with at least one usable binding of a part of the table, in the table's
/// order. `wanted(aor, version)` is called before the bindings are built.
fn scan(
    db: &Connection,
    (from, to): Bounds<'_>,
    mapper: &mut Mapper<'_>,
    wanted: &mut dyn FnMut(&[u8], u64) -> bool,
    each: &mut dyn FnMut(Box<[u8]>, AorRecord),
) -> rusqlite::Result<Scan> {
    let mut text =
        "SELECT username, domain, version, contact, received, path, expires, q, callid, cseq, user_agent, \
         socket, instance, reg_id, updated FROM location"
            .to_owned();
    let mut keys = Vec::new();
    for (bound, key) in [
        (" WHERE (domain, username) >= (?,?)", from),
        (" (domain, username) < (?,?)", to),
    ] {
        let Some((domain, user)) = key else { continue };
        match (keys.is_empty(), bound.starts_with(" WHERE")) {
            (true, false) => text.push_str(" WHERE"),
            (false, false) => text.push_str(" AND"),
            (true | false, true) => {}
        }
        text.push_str(bound);
        keys.extend([domain, user]);
    }
    text.push_str(" ORDER BY domain, username, slot");
    let mut select = db.prepare(&text)?;
    let mut rows = select.query(rusqlite::params_from_iter(keys))?;
    let mut found = Scan::default();
    let mut open = Open::default();
    let mut aor = Vec::new();
    while let Some(row) = rows.next()? {
        aor.clear();
        let (user, domain) = (bytes(row, 0)?, bytes(row, 1)?);
        if !user.is_empty() {
            aor.extend_from_slice(user);
            aor.push(b'@');
        }
        aor.extend_from_slice(domain);
        if open.aor != aor {
            open.hand_over(each);
            let version = row.get::<_, i64>(2)?.cast_unsigned();
            found.newest = found.newest.max(version);
            open.wanted = wanted(&aor, version);
            open.record.version = version;
            std::mem::swap(&mut open.aor, &mut aor);
        }
        if open.wanted {
            match read_binding(row, mapper)? {
                Some(binding) => open.record.bindings.push(binding),
                None => {
                    found.unmapped += 1;
                    let until = row.get::<_, i64>(6)?.cast_unsigned();
                    found.unmapped_until = found.unmapped_until.max(until);
                }
            }
        }
    }
    open.hand_over(each);
    Ok(found)
}

/// The address-of-record whose rows are being read.
#[derive(Default)]
struct Open {
    aor: Vec<u8>,
    wanted: bool,
    record: AorRecord,
}

impl Open {
    fn hand_over(&mut self, each: &mut dyn FnMut(Box<[u8]>, AorRecord)) {
        let record = std::mem::take(&mut self.record);
        if self.wanted && !record.bindings.is_empty() {
            each(self.aor.as_slice().into(), record);
        }
    }
}

fn read_binding(row: &Row<'_>, mapper: &mut Mapper<'_>) -> rusqlite::Result<Option<Binding>> {
    let Some((transport, remote)) = socket::parse_received(bytes(row, 4)?) else {
        return Ok(None);
    };
    let Some(listener): Option<ListenerId> = mapper.listener(bytes(row, 11)?) else {
        return Ok(None);
    };
    let q: f64 = row.get(7)?;
    let version = row.get::<_, i64>(2)?.cast_unsigned();
    Ok(Some(Binding {
        contact: bytes(row, 3)?.into(),
        // Connections do not outlive their process.
        received: Flow {
            transport,
            listener,
            remote,
            conn: None,
            proof: Proof::None,
        },
        path: bytes(row, 5)?.into(),
        instance: bytes(row, 12)?.into(),
        reg_id: row.get(13)?,
        call_id: bytes(row, 8)?.into(),
        cseq: row.get(9)?,
        q_milli: q_milli(q),
        expires_unix_s: row.get::<_, i64>(6)?.cast_unsigned(),
        user_agent: bytes(row, 10)?.into(),
        updated: row.get::<_, i64>(14)?.cast_unsigned().min(version),
    }))
}

/// Thousandths of `q`, limited to 0 to 1000.
fn q_milli(q: f64) -> u16 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "clamped to 0..=1000 before"
    )]
    let milli = (q * 1000.0).round().clamp(0.0, 1000.0) as u16;
    milli
}

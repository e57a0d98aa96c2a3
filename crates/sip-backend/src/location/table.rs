//! The `location` table: one row for each binding, in the manner of OpenSER's usrloc, to be read
//! by operators and at the next start.

use std::path::Path;

use rusqlite::types::ValueRef;
use rusqlite::{Connection, Row, Statement, ToSql, params};
use sip_core::id::ListenerId;
use sip_core::location::{AorRecord, Binding};
use sip_core::transport::Flow;

use super::socket::{self, Mapper};

/// Clustered by address-of-record: a refresh touches one page, a start reads in order.
/// `slot` is the binding's place in its record, best `q` first; `expires` and `last_modified`
/// are seconds since 1970.
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
  PRIMARY KEY (domain, username, slot)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS location_deleted (
  username TEXT NOT NULL,
  domain TEXT NOT NULL,
  version INTEGER NOT NULL,
  at INTEGER NOT NULL,
  PRIMARY KEY (domain, username)
) WITHOUT ROWID;";

/// Opens the database, making what is absent.
pub(crate) fn open(path: &Path) -> rusqlite::Result<Connection> {
    let db = Connection::open(path)?;
    db.busy_timeout(std::time::Duration::from_secs(5))?;
    db.pragma_update(None, "journal_mode", "WAL")?;
    // A folded segment is deleted after the commit, so the commit must be on disk.
    db.pragma_update(None, "synchronous", "FULL")?;
    db.pragma_update(None, "cache_size", -32_768)?;
    db.set_prepared_statement_cache_capacity(16);
    db.execute_batch(SCHEMA)?;
    Ok(db)
}

/// Bytes as SQLite has them: text where they are UTF-8 (so that they can be read), else a blob.
pub(crate) struct Bytes<'a>(pub(crate) &'a [u8]);

impl ToSql for Bytes<'_> {
    fn to_sql(&self) -> rusqlite::Result<rusqlite::types::ToSqlOutput<'_>> {
        let value = match std::str::from_utf8(self.0) {
            Ok(_) => ValueRef::Text(self.0),
            Err(_) => ValueRef::Blob(self.0),
        };
        Ok(rusqlite::types::ToSqlOutput::Borrowed(value))
    }
}

/// Splits `user@domain` at the last `@`; without one it is all domain.
pub(crate) fn split_aor(aor: &[u8]) -> (&[u8], &[u8]) {
    match aor.iter().rposition(|b| *b == b'@') {
        Some(at) => (
            aor.get(..at).unwrap_or_default(),
            aor.get(at + 1..).unwrap_or_default(),
        ),
        None => (&[], aor),
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

/// Statements that write, prepared for one transaction.
#[derive(Debug)]
pub(crate) struct Writer<'db> {
    find: Statement<'db>,
    put: Statement<'db>,
    cut: Statement<'db>,
    bury: Statement<'db>,
    unbury: Statement<'db>,
}

/// One address-of-record as it is to be written.
#[derive(Debug)]
pub(crate) struct Write<'a> {
    pub(crate) aor: &'a [u8],
    pub(crate) record: &'a AorRecord,
    pub(crate) version: u64,
    pub(crate) saved_unix_s: u64,
    /// Names of the sockets that the record's listener ids index.
    pub(crate) listeners: &'a [Box<[u8]>],
    /// Version at which this address-of-record was deleted before, if it was lately.
    pub(crate) deleted: Option<u64>,
}

impl<'db> Writer<'db> {
    pub(crate) fn new(db: &'db Connection) -> rusqlite::Result<Self> {
        Ok(Self {
            find: db.prepare("SELECT count(*), max(version) FROM location WHERE domain=? AND username=?")?,
            put: db.prepare(
                "INSERT OR REPLACE INTO location (username, domain, slot, contact, received, path, expires, q, \
                 callid, cseq, last_modified, user_agent, socket, instance, reg_id, version) \
                 VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
            )?,
            cut: db.prepare("DELETE FROM location WHERE domain=? AND username=? AND slot>=?")?,
            bury: db.prepare("INSERT OR REPLACE INTO location_deleted VALUES (?,?,?,?)")?,
            unbury: db.prepare("DELETE FROM location_deleted WHERE domain=? AND username=?")?,
        })
    }

    /// Writes the record unless the table knows a newer one; whether it was written.
    pub(crate) fn write(&mut self, write: &Write<'_>) -> rusqlite::Result<bool> {
        let (user, domain) = split_aor(write.aor);
        let (user, domain) = (Bytes(user), Bytes(domain));
        let bindings = i64::try_from(write.record.bindings.len()).unwrap_or(i64::MAX);
        let (rows, newest): (i64, Option<i64>) = self
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
        if rows > bindings {
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
        ])?;
        Ok(())
    }
}

/// Deletes what a start would not load: bindings that ended before `expired_before`, and deletions
/// noted before `deleted_before` (both Unix seconds); at most `limit` rows of each. Returns how
/// many bindings went.
pub(crate) fn purge(
    db: &Connection,
    expired_before: u64,
    deleted_before: u64,
    limit: u32,
) -> rusqlite::Result<usize> {
    db.execute(
        "DELETE FROM location_deleted WHERE (domain, username) IN \
         (SELECT domain, username FROM location_deleted WHERE at < ? LIMIT ?)",
        params![deleted_before.cast_signed(), limit],
    )?;
    db.execute(
        "DELETE FROM location WHERE (domain, username, slot) IN \
         (SELECT domain, username, slot FROM location WHERE expires < ? LIMIT ?)",
        params![expired_before.cast_signed(), limit],
    )
}

/// Deletions noted lately: address-of-record and version.
pub(crate) fn deletions(db: &Connection, each: &mut dyn FnMut(Box<[u8]>, u64, u64)) -> rusqlite::Result<()> {
    let mut select = db.prepare("SELECT username, domain, version, at FROM location_deleted")?;
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

/// What reading the table came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Scan {
    /// Bindings whose listener is gone, or whose row cannot be read.
    pub(crate) unmapped: u64,
    /// Highest version seen.
    pub(crate) newest: u64,
}

/// Hands over every address-of-record in the table with at least one usable binding, in the
/// table's order. `wanted(aor, version)` is asked before the bindings are built.
pub(crate) fn scan(
    db: &Connection,
    mapper: &mut Mapper<'_>,
    wanted: &mut dyn FnMut(&[u8], u64) -> bool,
    each: &mut dyn FnMut(Box<[u8]>, AorRecord),
) -> rusqlite::Result<Scan> {
    let mut select = db.prepare(
        "SELECT username, domain, version, contact, received, path, expires, q, callid, cseq, user_agent, \
         socket, instance, reg_id FROM location ORDER BY domain, username, slot",
    )?;
    let mut rows = select.query([])?;
    let mut found = Scan::default();
    let mut current: Option<(Box<[u8]>, AorRecord)> = None;
    let mut aor = Vec::new();
    let mut skip = false;
    while let Some(row) = rows.next()? {
        aor.clear();
        let (user, domain) = (bytes(row, 0)?, bytes(row, 1)?);
        if !user.is_empty() {
            aor.extend_from_slice(user);
            aor.push(b'@');
        }
        aor.extend_from_slice(domain);
        if current.as_ref().is_none_or(|(open, _)| **open != *aor) {
            if let Some((done, record)) = current.take()
                && !skip
                && !record.bindings.is_empty()
            {
                each(done, record);
            }
            let version = row.get::<_, i64>(2)?.cast_unsigned();
            found.newest = found.newest.max(version);
            skip = !wanted(&aor, version);
            current = Some((
                aor.as_slice().into(),
                AorRecord {
                    bindings: Vec::new(),
                    version,
                },
            ));
        }
        if let Some((_, record)) = &mut current
            && !skip
        {
            match read_binding(row, mapper)? {
                Some(binding) => record.bindings.push(binding),
                None => found.unmapped += 1,
            }
        }
    }
    if let Some((done, record)) = current
        && !skip
        && !record.bindings.is_empty()
    {
        each(done, record);
    }
    Ok(found)
}

fn read_binding(row: &Row<'_>, mapper: &mut Mapper<'_>) -> rusqlite::Result<Option<Binding>> {
    let Some((transport, remote)) = socket::parse_received(bytes(row, 4)?) else {
        return Ok(None);
    };
    let Some(listener): Option<ListenerId> = mapper.listener(bytes(row, 11)?) else {
        return Ok(None);
    };
    let q: f64 = row.get(7)?;
    Ok(Some(Binding {
        contact: bytes(row, 3)?.into(),
        // Connections do not survive their process.
        received: Flow {
            transport,
            listener,
            remote,
            conn: None,
        },
        path: bytes(row, 5)?.into(),
        instance: bytes(row, 12)?.into(),
        reg_id: row.get(13)?,
        call_id: bytes(row, 8)?.into(),
        cseq: row.get(9)?,
        q_milli: q_milli(q),
        expires_unix_s: row.get::<_, i64>(6)?.cast_unsigned(),
        user_agent: bytes(row, 10)?.into(),
    }))
}

/// Thousandths, out of 0 to 1000.
fn q_milli(q: f64) -> u16 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "clamped to 0..=1000 before"
    )]
    let milli = (q * 1000.0).round().clamp(0.0, 1000.0) as u16;
    milli
}

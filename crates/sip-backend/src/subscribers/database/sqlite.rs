//! SQLite: a file of this machine. Querying several rows at once gains nothing; one read transaction for a
//! batch does.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, params_from_iter};

use super::{Client, Database, DbError, RowKey, Session};
use crate::sqlite;
use crate::subscribers::options::TableOptions;
use crate::subscribers::secrets::{Field, Row};
use crate::subscribers::sql::{self, Dialect, Shape};

impl From<rusqlite::Error> for DbError {
    fn from(error: rusqlite::Error) -> Self {
        Self::refused(error)
    }
}

/// Creates the file and its directory if they are absent.
pub(in crate::subscribers) fn make_file(path: &Path) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    sqlite::create(path)
}

fn shape(db: &Connection, table: &str) -> rusqlite::Result<Shape> {
    let mut shape = Shape::new(Dialect::Sqlite);
    let mut select = db.prepare("SELECT name FROM pragma_table_info(?)")?;
    let mut rows = select.query([table])?;
    while let Some(row) = rows.next()? {
        shape.add(&row.get::<_, String>(0)?, None);
    }
    Ok(shape)
}

fn text(value: ValueRef<'_>) -> &[u8] {
    match value {
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => bytes,
        ValueRef::Null | ValueRef::Integer(_) | ValueRef::Real(_) => &[],
    }
}

/// An SQLite file with the table, for look-ups.
#[derive(Debug)]
pub(in crate::subscribers) struct Sqlite {
    path: PathBuf,
    table: TableOptions,
    /// Number of the next connection. The number is part of the mark, since the counts of two connections are
    /// not comparable.
    connections: AtomicU64,
}

impl Sqlite {
    pub(in crate::subscribers) fn new(path: PathBuf, table: TableOptions) -> Self {
        Self {
            path,
            table,
            connections: AtomicU64::new(0),
        }
    }
}

impl Database for Sqlite {
    type Session = SqliteSession;

    const WATCH_EVERY: Duration = Duration::from_millis(200);
    const DEPTH: usize = 1;

    async fn connect(&self, _max_batch: usize) -> Result<SqliteSession, DbError> {
        let file = file_of(&self.path);
        let db = sqlite::connect(&self.path).map_err(DbError::lost)?;
        db.pragma_update(None, "query_only", true)?;
        let shape = shape(&db, &self.table.table)?;
        let fields = shape.fields(&self.table)?;
        Ok(SqliteSession {
            select: sql::select(&self.table, &shape, &fields, 1),
            fields,
            db: Mutex::new(db),
            path: self.path.clone(),
            file,
            number: self.connections.fetch_add(1, Ordering::Relaxed),
        })
    }
}

/// Device and inode of the file: a file that was replaced keeps its name.
fn file_of(path: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()))
}

/// The open file.
#[derive(Debug)]
pub(in crate::subscribers) struct SqliteSession {
    db: Mutex<Connection>,
    select: String,
    fields: Vec<Field>,
    path: PathBuf,
    file: Option<(u64, u64)>,
    number: u64,
}

impl Session for SqliteSession {
    async fn fetch(&self, keys: &[RowKey<'_>], each: &mut dyn FnMut(Row<'_>)) -> Result<(), DbError> {
        let db = self.db.lock();
        let tx = db.unchecked_transaction()?;
        let mut statement = tx.prepare_cached(&self.select)?;
        for (user, domain) in keys {
            let mut rows = statement.query([user, domain])?;
            if let Some(found) = rows.next()? {
                let mut row = Row::new(text(found.get_ref(0)?), text(found.get_ref(1)?));
                for (at, field) in (2..).zip(&self.fields) {
                    row.set(*field, text(found.get_ref(at)?));
                }
                each(row);
            }
        }
        Ok(())
    }

    async fn mark(&self) -> Result<Option<String>, DbError> {
        if file_of(&self.path) != self.file {
            return Err(DbError::lost("the file was replaced"));
        }
        // Changes when another connection, of any process, commits.
        let version: i64 = self
            .db
            .lock()
            .prepare_cached("PRAGMA data_version")?
            .query_row([], |row| row.get(0))?;
        Ok(Some(format!("{}:{version}", self.number)))
    }
}

/// An SQLite file, for commands.
#[derive(Debug)]
pub(in crate::subscribers) struct SqliteClient {
    db: Connection,
}

impl SqliteClient {
    pub(in crate::subscribers) fn open(path: &Path) -> Result<Self, DbError> {
        let db = sqlite::connect(path)?;
        // The content of a changed or deleted row is overwritten, not only unlinked.
        db.pragma_update(None, "secure_delete", true)?;
        // Readers continue while a command writes. A file with tables of other programs keeps its journal
        // mode.
        let tables: i64 = db.query_row("SELECT count(*) FROM sqlite_master", [], |row| row.get(0))?;
        if tables == 0 {
            db.pragma_update(None, "journal_mode", "WAL")?;
        }
        Ok(Self { db })
    }
}

impl Client for SqliteClient {
    fn shape(&mut self, table: &str) -> Result<Shape, DbError> {
        Ok(shape(&self.db, table)?)
    }

    fn execute(&mut self, sql: &str, parameters: &[&str]) -> Result<u64, DbError> {
        Ok(self.db.execute(sql, params_from_iter(parameters))? as u64)
    }

    fn rows(
        &mut self,
        sql: &str,
        parameters: &[&str],
        columns: usize,
        each: &mut dyn FnMut(&[&str]),
    ) -> Result<(), DbError> {
        let mut statement = self.db.prepare(sql)?;
        let mut rows = statement.query(params_from_iter(parameters))?;
        while let Some(row) = rows.next()? {
            let values: rusqlite::Result<Vec<String>> = (0..columns).map(|at| row.get(at)).collect();
            let values = values?;
            each(&values.iter().map(String::as_str).collect::<Vec<_>>());
        }
        Ok(())
    }
}

//! The `subscriber` table: its shape, and what commands do with it.

use std::collections::HashSet;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, OptionalExtension as _, TransactionBehavior, params};
use sip_core::auth::digest;
use sip_core::config::Algorithm;
use zeroize::Zeroizing;

use super::{Columns, SubscriberError};

/// Which table, and how it is read.
#[derive(Clone, Debug)]
pub struct TableOptions {
    /// The SQLite file.
    pub path: PathBuf,
    /// The table.
    pub table: String,
    /// Its columns.
    pub columns: Columns,
    /// The table holds plain passwords: HA1 is calculated for the realm that is asked, and `add`
    /// and `set_password` keep the password.
    pub calculate_ha1: bool,
}

impl TableOptions {
    /// The usual table in the file at `path`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            table: "subscriber".into(),
            columns: Columns::default(),
            calculate_ha1: false,
        }
    }
}

/// Which of the optional columns a table has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    present: HashSet<String>,
}

impl Shape {
    /// The column as SQL, `NULL` where the table has none.
    pub(super) fn or_null(&self, column: &str) -> String {
        if self.has(column) {
            quoted(column)
        } else {
            "NULL".into()
        }
    }

    fn has(&self, column: &str) -> bool {
        self.present.contains(&column.to_ascii_lowercase())
    }
}

/// An identifier in SQL; it was checked to be one.
pub(super) fn quoted(name: &str) -> String {
    format!("\"{name}\"")
}

fn check_identifier(name: &str) -> Result<(), SubscriberError> {
    let good = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    if name.is_empty() || !name.bytes().all(good) || name.starts_with(|c: char| c.is_ascii_digit()) {
        return Err(SubscriberError::BadColumn { name: name.into() });
    }
    Ok(())
}

/// Opens the file, which must exist.
pub(super) fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_READ_WRITE;
    let db = Connection::open_with_flags(path, flags)?;
    db.busy_timeout(Duration::from_secs(2))?;
    Ok(db)
}

/// Makes file and table where they are absent, and looks whether the table can be used.
pub(super) fn prepare(options: &TableOptions) -> Result<(Connection, Shape), SubscriberError> {
    let Columns {
        user,
        domain,
        password,
        ha1,
        ha1b,
        ha1_sha256,
        ha1_sha512t256,
    } = &options.columns;
    for name in [
        &options.table,
        user,
        domain,
        password,
        ha1,
        ha1b,
        ha1_sha256,
        ha1_sha512t256,
    ] {
        check_identifier(name)?;
    }
    let path = &options.path;
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(SubscriberError::io(parent))?;
    }
    // Hashes are as good as passwords in their realm: for the owner's eyes only.
    OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(path)
        .map_err(SubscriberError::io(path))?;
    let mut db = connect(path).map_err(SubscriberError::database(path))?;
    let shape = read_or_create(&mut db, options).map_err(SubscriberError::database(path))?;
    let secret = if options.calculate_ha1 { password } else { ha1 };
    for column in [user, domain, secret] {
        if !shape.has(column) {
            let (table, column) = (options.table.clone(), column.clone());
            return Err(SubscriberError::MissingColumn {
                path: path.clone(),
                table,
                column,
            });
        }
    }
    Ok((db, shape))
}

fn read_or_create(db: &mut Connection, options: &TableOptions) -> rusqlite::Result<Shape> {
    let shape = read_shape(db, &options.table)?;
    if !shape.present.is_empty() {
        return Ok(shape);
    }
    // Readers go on while `user passwd` writes.
    db.pragma_update(None, "journal_mode", "WAL")?;
    let tx = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    tx.execute_batch(&schema(options))?;
    tx.commit()?;
    read_shape(db, &options.table)
}

fn read_shape(db: &Connection, table: &str) -> rusqlite::Result<Shape> {
    let mut select = db.prepare("SELECT lower(name) FROM pragma_table_info(?)")?;
    let present = select
        .query_map([table], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    Ok(Shape { present })
}

/// As OpenSER's descendants have it, table version 7, with the hashes of RFC 8760.
fn schema(options: &TableOptions) -> String {
    let c = &options.columns;
    let [table, user, domain, password, ha1, ha1b, sha256, sha512] = [
        &options.table,
        &c.user,
        &c.domain,
        &c.password,
        &c.ha1,
        &c.ha1b,
        &c.ha1_sha256,
        &c.ha1_sha512t256,
    ]
    .map(|name| quoted(name));
    format!(
        "CREATE TABLE IF NOT EXISTS {table} (\n\
         id INTEGER PRIMARY KEY NOT NULL,\n\
         {user} VARCHAR(64) NOT NULL DEFAULT '',\n\
         {domain} VARCHAR(64) NOT NULL DEFAULT '',\n\
         {password} VARCHAR(64) NOT NULL DEFAULT '',\n\
         {ha1} VARCHAR(128) NOT NULL DEFAULT '',\n\
         {ha1b} VARCHAR(128) NOT NULL DEFAULT '',\n\
         {sha256} VARCHAR(64) NOT NULL DEFAULT '',\n\
         {sha512} VARCHAR(64) NOT NULL DEFAULT '',\n\
         UNIQUE ({user}, {domain}));\n\
         CREATE TABLE IF NOT EXISTS version (\n\
         table_name VARCHAR(32) NOT NULL PRIMARY KEY, table_version INTEGER NOT NULL DEFAULT 0);\n\
         INSERT OR IGNORE INTO version VALUES ('{}', 7);",
        options.table
    )
}

/// The table, for commands: add, change, delete, list.
#[derive(Debug)]
pub struct SubscriberTable {
    db: Connection,
    shape: Shape,
    options: TableOptions,
}

impl SubscriberTable {
    /// Opens the table, making file and table where they are absent.
    ///
    /// # Errors
    /// Names that are none, a table without the columns needed, or a refusal of file system or
    /// SQLite.
    pub fn open(options: TableOptions) -> Result<Self, SubscriberError> {
        let (db, shape) = prepare(&options)?;
        // What a changed or deleted row held is overwritten, not only unlinked.
        db.pragma_update(None, "secure_delete", true)
            .map_err(SubscriberError::database(&options.path))?;
        Ok(Self { db, shape, options })
    }

    /// Adds a subscriber whose hashes are good for `realm`. `domain` is put in lower case.
    ///
    /// # Errors
    /// [`SubscriberError::Exists`], [`SubscriberError::BadName`], or SQLite's.
    pub fn add(
        &mut self,
        user: &str,
        domain: &str,
        realm: &str,
        password: &[u8],
    ) -> Result<(), SubscriberError> {
        let key = Key::new(user, domain)?;
        self.write(&key, realm, password, false)
    }

    /// Gives an existing subscriber a new password, for `realm`.
    ///
    /// # Errors
    /// [`SubscriberError::NotFound`], or SQLite's.
    pub fn set_password(
        &mut self,
        user: &str,
        domain: &str,
        realm: &str,
        password: &[u8],
    ) -> Result<(), SubscriberError> {
        let key = Key::new(user, domain)?;
        self.write(&key, realm, password, true)
    }

    /// Deletes a subscriber.
    ///
    /// # Errors
    /// [`SubscriberError::NotFound`], or SQLite's.
    pub fn delete(&mut self, user: &str, domain: &str) -> Result<(), SubscriberError> {
        let key = Key::new(user, domain)?;
        let sql = format!(
            "DELETE FROM {} WHERE {}",
            quoted(&self.options.table),
            self.by_key()
        );
        let deleted = self.db.execute(&sql, params![key.user, key.domain]);
        match deleted.map_err(SubscriberError::database(&self.options.path))? {
            0 => Err(key.not_found()),
            _ => Ok(()),
        }
    }

    /// Calls `each` with user and domain of every subscriber, of one domain where given, by domain
    /// and user.
    ///
    /// # Errors
    /// SQLite's.
    pub fn list(
        &self,
        domain: Option<&str>,
        each: &mut dyn FnMut(&str, &str),
    ) -> Result<(), SubscriberError> {
        self.list_rows(domain, each)
            .map_err(SubscriberError::database(&self.options.path))
    }

    /// Number of subscribers.
    ///
    /// # Errors
    /// SQLite's.
    pub fn count(&self) -> Result<u64, SubscriberError> {
        let sql = format!("SELECT count(*) FROM {}", quoted(&self.options.table));
        let count: rusqlite::Result<i64> = self.db.query_row(&sql, [], |row| row.get(0));
        Ok(count
            .map_err(SubscriberError::database(&self.options.path))?
            .cast_unsigned())
    }

    fn list_rows(&self, domain: Option<&str>, each: &mut dyn FnMut(&str, &str)) -> rusqlite::Result<()> {
        let (user_column, domain_column) = (
            quoted(&self.options.columns.user),
            quoted(&self.options.columns.domain),
        );
        let mut select = self.db.prepare(&format!(
            "SELECT {user_column}, {domain_column} FROM {} WHERE ?1 IS NULL OR {domain_column} = ?1 \
             ORDER BY {domain_column}, {user_column}",
            quoted(&self.options.table)
        ))?;
        let mut rows = select.query([domain.map(str::to_ascii_lowercase)])?;
        while let Some(row) = rows.next()? {
            let (user, domain): (String, String) = (row.get(0)?, row.get(1)?);
            each(&user, &domain);
        }
        Ok(())
    }

    fn by_key(&self) -> String {
        let columns = &self.options.columns;
        format!(
            "{} = ?1 AND {} = ?2",
            quoted(&columns.user),
            quoted(&columns.domain)
        )
    }

    /// The secret columns that the table has, with their new values.
    fn secrets(
        &self,
        key: &Key,
        realm: &str,
        password: &[u8],
    ) -> Result<Vec<(String, Zeroizing<String>)>, SubscriberError> {
        let columns = &self.options.columns;
        let mut values = Vec::with_capacity(5);
        let mut put = |column: &String, value: &str| {
            if self.shape.has(column) {
                values.push((quoted(column), Zeroizing::new(value.to_owned())));
            }
        };
        let ha1 = |algorithm, user: &str| {
            digest::ha1(algorithm, user.as_bytes(), realm.as_bytes(), password).to_hex()
        };
        let full = format!("{}@{}", key.user, key.domain);
        put(&columns.ha1, ha1(Algorithm::Md5, &key.user).as_str());
        put(&columns.ha1b, ha1(Algorithm::Md5, &full).as_str());
        put(&columns.ha1_sha256, ha1(Algorithm::Sha256, &key.user).as_str());
        put(
            &columns.ha1_sha512t256,
            ha1(Algorithm::Sha512_256, &key.user).as_str(),
        );
        let plain = if self.options.calculate_ha1 {
            std::str::from_utf8(password).map_err(|_| SubscriberError::BadPassword)?
        } else {
            ""
        };
        put(&columns.password, plain);
        Ok(values)
    }

    fn write(
        &mut self,
        key: &Key,
        realm: &str,
        password: &[u8],
        exists: bool,
    ) -> Result<(), SubscriberError> {
        let secrets = self.secrets(key, realm, password)?;
        let table = quoted(&self.options.table);
        let find = format!("SELECT 1 FROM {table} WHERE {}", self.by_key());
        let numbered = (3..).zip(&secrets);
        let sql = if exists {
            let set: Vec<_> = numbered
                .map(|(n, (column, _))| format!("{column} = ?{n}"))
                .collect();
            format!("UPDATE {table} SET {} WHERE {}", set.join(", "), self.by_key())
        } else {
            let columns = &self.options.columns;
            let names: Vec<_> = secrets.iter().map(|(column, _)| column.as_str()).collect();
            let values: Vec<_> = numbered.map(|(n, _)| format!("?{n}")).collect();
            format!(
                "INSERT INTO {table} ({}, {}, {}) VALUES (?1, ?2, {})",
                quoted(&columns.user),
                quoted(&columns.domain),
                names.join(", "),
                values.join(", ")
            )
        };
        let values = [key.user.as_str(), key.domain.as_str()]
            .into_iter()
            .chain(secrets.iter().map(|(_, value)| value.as_str()));
        let mut run = || -> rusqlite::Result<bool> {
            let tx = self
                .db
                .transaction_with_behavior(TransactionBehavior::Immediate)?;
            let found = tx
                .query_row(&find, params![key.user, key.domain], |_| Ok(()))
                .optional()?;
            if found.is_some() != exists {
                return Ok(false);
            }
            tx.execute(&sql, rusqlite::params_from_iter(values.clone()))?;
            tx.commit()?;
            Ok(true)
        };
        match run().map_err(SubscriberError::database(&self.options.path))? {
            true => Ok(()),
            false if exists => Err(key.not_found()),
            false => Err(SubscriberError::Exists {
                user: key.user.clone(),
                domain: key.domain.clone(),
            }),
        }
    }
}

/// What names a subscriber.
struct Key {
    user: String,
    domain: String,
}

impl Key {
    fn new(user: &str, domain: &str) -> Result<Self, SubscriberError> {
        let bad = |c: char| c.is_control() || c.is_whitespace() || c == ':' || c == '"';
        // A colon separates the parts of what is hashed; an IPv6 domain has its own.
        if user.is_empty() || user.contains(bad) {
            return Err(SubscriberError::BadName {
                what: "the user name",
            });
        }
        if domain.is_empty() || domain.contains(|c| bad(c) && c != ':') {
            return Err(SubscriberError::BadName { what: "the domain" });
        }
        Ok(Self {
            user: user.to_owned(),
            domain: domain.to_ascii_lowercase(),
        })
    }

    fn not_found(&self) -> SubscriberError {
        SubscriberError::NotFound {
            user: self.user.clone(),
            domain: self.domain.clone(),
        }
    }
}

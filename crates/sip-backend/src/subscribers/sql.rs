//! The differences between the databases' SQL, and statements for the columns of a table.

use std::collections::HashMap;

use super::options::{Columns, TableOptions};
use super::secrets::Field;
use super::{SubscriberError, database::DbError};

/// A kind of SQL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    Sqlite,
    MySql,
    Postgres,
}

impl Dialect {
    /// A quoted identifier; `name` was checked to be one.
    pub(super) fn quoted(self, name: &str) -> String {
        match self {
            Self::MySql => format!("`{name}`"),
            Self::Sqlite | Self::Postgres => format!("\"{name}\""),
        }
    }

    /// The placeholder of parameter `n`, from 1.
    pub(super) fn parameter(self, n: usize) -> String {
        match self {
            Self::Sqlite => format!("?{n}"),
            Self::MySql => "?".into(),
            Self::Postgres => format!("${n}"),
        }
    }

    /// Begins a transaction that will write.
    pub(super) const fn begin(self) -> &'static str {
        match self {
            Self::Sqlite => "BEGIN IMMEDIATE",
            Self::MySql => "START TRANSACTION",
            Self::Postgres => "BEGIN",
        }
    }
}

/// Refuses names that cannot be written into SQL.
pub(super) fn check_identifiers(options: &TableOptions) -> Result<(), SubscriberError> {
    let Columns {
        user,
        domain,
        password,
        ha1,
        ha1b,
        ha1_sha256,
        ha1_sha512t256,
    } = &options.columns;
    let names = [
        &options.table,
        user,
        domain,
        password,
        ha1,
        ha1b,
        ha1_sha256,
        ha1_sha512t256,
    ];
    for name in names {
        let good = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
        if name.is_empty() || !name.bytes().all(good) || name.starts_with(|c: char| c.is_ascii_digit()) {
            return Err(SubscriberError::BadColumn { name: name.clone() });
        }
    }
    Ok(())
}

/// Character set and collation of a column, in MySQL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Collation {
    pub(super) charset: String,
    pub(super) collation: String,
}

/// The columns that a table has.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    pub(super) dialect: Dialect,
    columns: HashMap<String, Option<Collation>>,
}

impl Shape {
    pub(super) fn new(dialect: Dialect) -> Self {
        Self {
            dialect,
            columns: HashMap::new(),
        }
    }

    /// Adds a column, as the database spells it.
    pub(super) fn add(&mut self, column: &str, collation: Option<Collation>) {
        self.columns.insert(self.key(column), collation);
    }

    pub(super) fn has(&self, column: &str) -> bool {
        self.columns.contains_key(&self.key(column))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.columns.is_empty()
    }

    /// Quoted names are exact in PostgreSQL only.
    fn key(&self, column: &str) -> String {
        match self.dialect {
            Dialect::Postgres => column.into(),
            Dialect::Sqlite | Dialect::MySql => column.to_ascii_lowercase(),
        }
    }

    /// The columns with secrets that look-ups read, in order.
    ///
    /// # Errors
    /// The missing column.
    pub(super) fn fields(&self, options: &TableOptions) -> Result<Vec<Field>, DbError> {
        let columns = &options.columns;
        for needed in [&columns.user, &columns.domain] {
            self.need(options, needed)?;
        }
        if options.calculate_ha1 {
            self.need(options, &columns.password)?;
            return Ok(vec![Field::Password]);
        }
        let hashes = [Field::Ha1, Field::Ha1b, Field::Sha256, Field::Sha512t256];
        // A table may lack some of the hashes, but no hash that the configuration names.
        let usual = Columns::default();
        for field in hashes {
            let name = column(columns, field);
            if name != column(&usual, field) {
                self.need(options, name)?;
            }
        }
        let there: Vec<Field> = hashes
            .into_iter()
            .filter(|field| self.has(column(columns, *field)))
            .collect();
        if there.is_empty() {
            self.need(options, &columns.ha1)?;
        }
        Ok(there)
    }

    fn need(&self, options: &TableOptions, column: &str) -> Result<(), DbError> {
        if self.is_empty() {
            return Err(DbError::NoTable {
                table: options.table.clone(),
            });
        }
        if !self.has(column) {
            return Err(DbError::NoColumn {
                table: options.table.clone(),
                column: column.into(),
            });
        }
        Ok(())
    }

    /// A parameter to be compared with `column`, in the column's own character set: a comparison in a wider
    /// one would use no index. A character that the set lacks becomes `?`. Such a name finds no subscriber,
    /// because rows are compared byte by byte afterwards.
    fn parameter_for(&self, column: &str) -> String {
        match self.columns.get(&self.key(column)).and_then(Option::as_ref) {
            Some(text) if text.charset != "utf8mb4" => {
                format!("CONVERT(? USING {}) COLLATE {}", text.charset, text.collation)
            }
            Some(_) | None => "?".into(),
        }
    }
}

fn column(columns: &Columns, field: Field) -> &str {
    match field {
        Field::Ha1 => &columns.ha1,
        Field::Ha1b => &columns.ha1b,
        Field::Sha256 => &columns.ha1_sha256,
        Field::Sha512t256 => &columns.ha1_sha512t256,
        Field::Password => &columns.password,
    }
}

/// `SELECT` of user, domain and `fields` for the keys given: one in SQLite (parameters user,
/// domain), `size` in MySQL (user, domain, user, domain, …), any number in PostgreSQL (an array of
/// users, one of domains).
pub(super) fn select(options: &TableOptions, shape: &Shape, fields: &[Field], size: usize) -> String {
    let dialect = shape.dialect;
    let columns = &options.columns;
    let table = dialect.quoted(&options.table);
    let (user, domain) = (dialect.quoted(&columns.user), dialect.quoted(&columns.domain));
    let mut list = vec![user.clone(), domain.clone()];
    list.extend(fields.iter().map(|field| dialect.quoted(column(columns, *field))));
    match dialect {
        Dialect::Sqlite => format!(
            "SELECT {} FROM {table} WHERE {user} = ?1 AND {domain} = ?2",
            list.join(", ")
        ),
        Dialect::MySql => {
            let key = format!(
                "({},{})",
                shape.parameter_for(&columns.user),
                shape.parameter_for(&columns.domain)
            );
            format!(
                "SELECT {} FROM {table} WHERE ({user},{domain}) IN ({})",
                list.join(", "),
                vec![key; size].join(",")
            )
        }
        Dialect::Postgres => format!(
            "SELECT {} FROM unnest($1::text[], $2::text[]) AS k (u, d) JOIN {table} AS s \
             ON s.{user} = k.u AND s.{domain} = k.d",
            list.iter()
                .map(|name| format!("s.{name}"))
                .collect::<Vec<_>>()
                .join(", ")
        ),
    }
}

/// Statements that create the table like OpenSER's descendants, table version 7, with the hashes of RFC 8760.
pub(super) fn schema(options: &TableOptions, dialect: Dialect) -> Vec<String> {
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
    .map(|name| dialect.quoted(name));
    // Names are compared byte by byte, as RFC 3261 §19.1.4 compares the user part.
    let (id, end) = match dialect {
        Dialect::Sqlite => ("INTEGER PRIMARY KEY NOT NULL", ""),
        Dialect::MySql => (
            "INT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY",
            " DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
        ),
        Dialect::Postgres => ("SERIAL PRIMARY KEY NOT NULL", ""),
    };
    let version = match dialect {
        Dialect::Sqlite => "INSERT OR IGNORE INTO version",
        Dialect::MySql => "INSERT IGNORE INTO version",
        Dialect::Postgres => "INSERT INTO version",
    };
    let on_conflict = match dialect {
        Dialect::Sqlite | Dialect::MySql => "",
        Dialect::Postgres => " ON CONFLICT DO NOTHING",
    };
    vec![
        format!(
            "CREATE TABLE IF NOT EXISTS {table} (\n\
             id {id},\n\
             {user} VARCHAR(64) NOT NULL DEFAULT '',\n\
             {domain} VARCHAR(64) NOT NULL DEFAULT '',\n\
             {password} VARCHAR(64) NOT NULL DEFAULT '',\n\
             {ha1} VARCHAR(128) NOT NULL DEFAULT '',\n\
             {ha1b} VARCHAR(128) NOT NULL DEFAULT '',\n\
             {sha256} VARCHAR(64) NOT NULL DEFAULT '',\n\
             {sha512} VARCHAR(64) NOT NULL DEFAULT '',\n\
             UNIQUE ({user}, {domain})){end}"
        ),
        "CREATE TABLE IF NOT EXISTS version (\n\
         table_name VARCHAR(32) NOT NULL PRIMARY KEY, table_version INTEGER NOT NULL DEFAULT 0)"
            .to_owned(),
        format!(
            "{version} (table_name, table_version) VALUES ('{}', 7){on_conflict}",
            options.table
        ),
    ]
}

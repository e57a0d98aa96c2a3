//! The `subscriber` table for commands: add, change, delete, list.

use sip_core::auth::digest;
use sip_core::config::Algorithm;
use zeroize::Zeroizing;

use super::SubscriberError;
use super::database::{self, Client, DbError};
use super::options::{Source, TableOptions};
use super::sql::{self, Shape};

/// The table, for commands. Its functions block.
pub struct SubscriberTable {
    client: Box<dyn Client>,
    shape: Shape,
    options: TableOptions,
}

impl std::fmt::Debug for SubscriberTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SubscriberTable")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl SubscriberTable {
    /// Opens the table. A file is created with the table if it is absent. On a server,
    /// [`SubscriberTable::add`] creates the table.
    ///
    /// # Errors
    /// A configured name is no identifier, the table lacks a needed column, or the file system or database
    /// fails.
    pub fn open(options: TableOptions) -> Result<Self, SubscriberError> {
        sql::check_identifiers(&options)?;
        let client = database::client(&options)?;
        let mut table = Self {
            client,
            shape: Shape::new(sql::Dialect::Sqlite),
            options,
        };
        table.look()?;
        if table.shape.is_empty() && matches!(table.options.source, Source::Sqlite(_)) {
            table.create()?;
        }
        Ok(table)
    }

    /// Reads the columns of the table; empty if there is no table.
    fn look(&mut self) -> Result<(), SubscriberError> {
        let of = SubscriberError::database(&self.options.source);
        self.shape = match self.client.shape(&self.options.table) {
            Ok(shape) if shape.is_empty() => shape,
            Ok(shape) => shape.fields(&self.options).map(|_| shape).map_err(of)?,
            Err(error) => return Err(of(error)),
        };
        Ok(())
    }

    fn create(&mut self) -> Result<(), SubscriberError> {
        for statement in sql::schema(&self.options, self.shape.dialect) {
            self.client
                .execute(&statement, &[])
                .map_err(SubscriberError::database(&self.options.source))?;
        }
        self.look()
    }

    /// Fails if there is no table.
    fn must_be(&self) -> Result<(), SubscriberError> {
        if self.shape.is_empty() {
            let error = DbError::NoTable {
                table: self.options.table.clone(),
            };
            return Err(SubscriberError::database(&self.options.source)(error));
        }
        Ok(())
    }

    /// Adds a subscriber with hashes for `realm`. `domain` is put in lower case.
    ///
    /// # Errors
    /// [`SubscriberError::Exists`], [`SubscriberError::BadName`], or an error of the database.
    pub fn add(
        &mut self,
        user: &str,
        domain: &str,
        realm: &str,
        password: &[u8],
    ) -> Result<(), SubscriberError> {
        let key = Key::new(user, domain)?;
        if self.shape.is_empty() {
            self.create()?;
        }
        self.write(&key, realm, password, false)
    }

    /// Sets a new password of an existing subscriber, for `realm`.
    ///
    /// # Errors
    /// [`SubscriberError::NotFound`], or an error of the database.
    pub fn set_password(
        &mut self,
        user: &str,
        domain: &str,
        realm: &str,
        password: &[u8],
    ) -> Result<(), SubscriberError> {
        let key = Key::new(user, domain)?;
        self.must_be()?;
        self.write(&key, realm, password, true)
    }

    /// Deletes a subscriber.
    ///
    /// # Errors
    /// [`SubscriberError::NotFound`], or an error of the database.
    pub fn delete(&mut self, user: &str, domain: &str) -> Result<(), SubscriberError> {
        let key = Key::new(user, domain)?;
        self.must_be()?;
        let sql = format!("DELETE FROM {} WHERE {}", self.table(), self.by_key());
        let of = SubscriberError::database(&self.options.source);
        let deleted = self.find(&key).and_then(|found| match found {
            Some(row) if row.is(&key) => self.client.execute(&sql, &[&key.user, &row.domain]),
            Some(_) | None => Ok(0),
        });
        match deleted.map_err(of)? {
            0 => Err(key.not_found()),
            _ => Ok(()),
        }
    }

    /// Calls `each` with user and domain of every subscriber (of one domain, if given), ordered by domain and
    /// user.
    ///
    /// # Errors
    /// Those of the database.
    pub fn list(
        &mut self,
        domain: Option<&str>,
        each: &mut dyn FnMut(&str, &str),
    ) -> Result<(), SubscriberError> {
        self.must_be()?;
        let dialect = self.shape.dialect;
        let columns = &self.options.columns;
        let (user_column, domain_column) = (dialect.quoted(&columns.user), dialect.quoted(&columns.domain));
        let wanted = domain.map(str::to_ascii_lowercase);
        let only = match &wanted {
            Some(_) => format!("WHERE lower({domain_column}) = {} ", dialect.parameter(1)),
            None => String::new(),
        };
        let sql = format!(
            "SELECT {user_column}, {domain_column} FROM {} {only}ORDER BY {domain_column}, {user_column}",
            self.table()
        );
        let parameters: Vec<&str> = wanted.as_deref().into_iter().collect();
        self.client
            .rows(&sql, &parameters, 2, &mut |row| {
                if let [user, domain] = row {
                    each(user, domain);
                }
            })
            .map_err(SubscriberError::database(&self.options.source))
    }

    /// Whether there is no subscriber.
    ///
    /// # Errors
    /// Those of the database.
    pub fn is_empty(&mut self) -> Result<bool, SubscriberError> {
        self.must_be()?;
        let user = self.shape.dialect.quoted(&self.options.columns.user);
        let sql = format!("SELECT {user} FROM {} LIMIT 1", self.table());
        let mut empty = true;
        self.client
            .rows(&sql, &[], 1, &mut |_| empty = false)
            .map_err(SubscriberError::database(&self.options.source))?;
        Ok(empty)
    }

    fn table(&self) -> String {
        self.shape.dialect.quoted(&self.options.table)
    }

    /// A condition that selects one row; parameters 1 and 2 are user and domain.
    fn by_key(&self) -> String {
        let dialect = self.shape.dialect;
        let columns = &self.options.columns;
        format!(
            "{} = {} AND {} = {}",
            dialect.quoted(&columns.user),
            dialect.parameter(1),
            dialect.quoted(&columns.domain),
            dialect.parameter(2)
        )
    }

    /// The row that the database takes for that of `key`.
    fn find(&mut self, key: &Key) -> Result<Option<Key>, DbError> {
        let dialect = self.shape.dialect;
        let columns = &self.options.columns;
        let sql = format!(
            "SELECT {}, {} FROM {} WHERE {}",
            dialect.quoted(&columns.user),
            dialect.quoted(&columns.domain),
            self.table(),
            self.by_key()
        );
        let mut found = None;
        self.client.rows(&sql, &[&key.user, &key.domain], 2, &mut |row| {
            if let [user, domain] = row {
                found = Some(Key {
                    user: (*user).to_owned(),
                    domain: (*domain).to_owned(),
                });
            }
        })?;
        Ok(found)
    }

    /// The secret columns of the table, with their new values.
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
                let column = self.shape.dialect.quoted(column);
                values.push((column, Zeroizing::new(value.to_owned())));
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
        let of = SubscriberError::database(&self.options.source);
        match self.write_row(key, &secrets, exists).map_err(of)? {
            true => Ok(()),
            false if exists => Err(key.not_found()),
            false => Err(SubscriberError::Exists {
                user: key.user.clone(),
                domain: key.domain.clone(),
            }),
        }
    }

    /// Changes a row if `exists`, else adds it. Returns `false` if the row is absent, or present, contrary to
    /// `exists`.
    fn write_row(
        &mut self,
        key: &Key,
        secrets: &[(String, Zeroizing<String>)],
        exists: bool,
    ) -> Result<bool, DbError> {
        self.client.execute(self.shape.dialect.begin(), &[])?;
        let done = self.write_in_transaction(key, secrets, exists);
        let end = if matches!(done, Ok(true)) {
            "COMMIT"
        } else {
            "ROLLBACK"
        };
        let ended = self.client.execute(end, &[]);
        match (done, ended) {
            (Ok(true), Err(error)) => Err(error),
            (done, _) => done,
        }
    }

    fn write_in_transaction(
        &mut self,
        key: &Key,
        secrets: &[(String, Zeroizing<String>)],
        exists: bool,
    ) -> Result<bool, DbError> {
        let found = self.find(key)?;
        let in_way = found.is_some();
        let domain = match (found.filter(|row| row.is(key)), exists) {
            (Some(row), true) => row.domain,
            (None, false) if !in_way => key.domain.clone(),
            (Some(_), false) | (None, _) => return Ok(false),
        };
        let (dialect, table) = (self.shape.dialect, self.table());
        // MySQL's parameters have no numbers: their order is that in the text.
        let (sql, key_first) = if exists {
            let set: Vec<_> = (1..)
                .zip(secrets)
                .map(|(n, (column, _))| format!("{column} = {}", dialect.parameter(n)))
                .collect();
            let columns = &self.options.columns;
            let by_key = format!(
                "{} = {} AND {} = {}",
                dialect.quoted(&columns.user),
                dialect.parameter(secrets.len() + 1),
                dialect.quoted(&columns.domain),
                dialect.parameter(secrets.len() + 2)
            );
            (
                format!("UPDATE {table} SET {} WHERE {by_key}", set.join(", ")),
                false,
            )
        } else {
            let columns = &self.options.columns;
            let names: Vec<_> = secrets.iter().map(|(column, _)| column.as_str()).collect();
            let values: Vec<_> = (1..secrets.len() + 3).map(|n| dialect.parameter(n)).collect();
            let text = format!(
                "INSERT INTO {table} ({}, {}, {}) VALUES ({})",
                dialect.quoted(&columns.user),
                dialect.quoted(&columns.domain),
                names.join(", "),
                values.join(", ")
            );
            (text, true)
        };
        let mut values: Vec<&str> = secrets.iter().map(|(_, value)| value.as_str()).collect();
        let at = if key_first { 0 } else { values.len() };
        values.splice(at..at, [key.user.as_str(), domain.as_str()]);
        self.client.execute(&sql, &values)?;
        Ok(true)
    }
}

/// The identity of a subscriber.
struct Key {
    user: String,
    domain: String,
}

impl Key {
    fn new(user: &str, domain: &str) -> Result<Self, SubscriberError> {
        let bad = |c: char| c.is_control() || c.is_whitespace() || c == ':' || c == '"';
        // A colon separates the parts of the hashed text; only an IPv6 domain contains colons of its own.
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

    /// Whether this row is the subscriber's, and not a row that only the database considers equal.
    fn is(&self, key: &Self) -> bool {
        self.user == key.user && self.domain.eq_ignore_ascii_case(&key.domain)
    }

    fn not_found(&self) -> SubscriberError {
        SubscriberError::NotFound {
            user: self.user.clone(),
            domain: self.domain.clone(),
        }
    }
}

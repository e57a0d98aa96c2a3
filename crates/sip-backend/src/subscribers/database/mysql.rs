//! MySQL and MariaDB: one statement for a batch, prepared once for every power of two.

use std::time::Duration;

use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, Error, Opts, OptsBuilder, Params, SslOpts, Statement, Value};
use tokio::runtime::Runtime;
use tokio::sync::Mutex;

use super::{
    COMMAND_TIMEOUT, Client, Database, DbError, Kept, RowKey, Session, authorities, small_runtime, step,
    within,
};
use crate::subscribers::options::{Server, TableOptions, Tls};
use crate::subscribers::secrets::{Field, Row};
use crate::subscribers::sql::{self, Collation, Dialect, Shape};

/// Error codes of a server that shuts down, or of a killed connection.
const GOING: [u16; 3] = [1053, 1317, 1927];

/// Error codes for one name in a batch: text outside of the column's character set.
const UNFIT: [u16; 5] = [1267, 1271, 1300, 1366, 3988];

impl From<Error> for DbError {
    fn from(error: Error) -> Self {
        match error {
            Error::Server(ref refusal) if UNFIT.contains(&refusal.code) => Self::Unfit(error.into()),
            Error::Server(ref refusal) if !GOING.contains(&refusal.code) => Self::refused(error),
            // The outer error only repeats the words of the inner one.
            Error::Io(error) => Self::lost(error),
            Error::Server(_) | Error::Driver(_) | Error::Other(_) | Error::Url(_) => Self::lost(error),
        }
    }
}

fn opts(server: &Server) -> Result<Opts, DbError> {
    let tls = match &server.tls {
        Tls::Off => None,
        Tls::Unverified => Some(
            SslOpts::default()
                .with_danger_accept_invalid_certs(true)
                .with_danger_skip_domain_validation(true),
        ),
        Tls::Verified { ca } => {
            let authorities = authorities(ca.as_deref())?;
            let authorities = authorities.iter().map(|der| der.to_vec().into()).collect();
            Some(
                SslOpts::default()
                    .with_root_certs(authorities)
                    .with_disable_built_in_roots(true),
            )
        }
    };
    let socket = server
        .socket
        .as_ref()
        .map(|path| path.to_string_lossy().into_owned());
    Ok(OptsBuilder::default()
        .ip_or_hostname(server.host.clone())
        .tcp_port(server.port)
        .socket(socket)
        // Only the configured way is used.
        .prefer_socket(server.socket.is_some())
        .user(Some(server.user.clone()))
        .pass(Some(server.password.to_string()))
        .db_name(Some(server.database.clone()))
        .ssl_opts(tls)
        .tcp_nodelay(true)
        .tcp_keepalive(Some(Duration::from_secs(30)))
        // Room for all statements, each kept by its owner.
        .stmt_cache_size(Some(64))
        .into())
}

/// Query for the time of the table's last change, and the present time if the change was just now.
const MARK: &str = "SELECT CAST(update_time AS CHAR), IF(update_time >= NOW() - INTERVAL 2 SECOND, \
                    CAST(NOW(6) AS CHAR), '') FROM information_schema.tables \
                    WHERE table_schema = DATABASE() AND table_name = ?";

async fn shape(conn: &mut Conn, table: &str) -> Result<Shape, DbError> {
    let mut shape = Shape::new(Dialect::MySql);
    let columns: Vec<(String, Option<String>, Option<String>)> = conn
        .exec(
            "SELECT column_name, character_set_name, collation_name FROM information_schema.columns \
             WHERE table_schema = DATABASE() AND table_name = ?",
            (table,),
        )
        .await?;
    let is_name = |name: &str| name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    for (column, charset, collation) in columns {
        let text = charset
            .zip(collation)
            .map(|(charset, collation)| Collation { charset, collation });
        shape.add(
            &column,
            text.filter(|text| is_name(&text.charset) && is_name(&text.collation)),
        );
    }
    Ok(shape)
}

/// A MySQL server with the table, for look-ups.
#[derive(Debug)]
pub(in crate::subscribers) struct MySql {
    server: Server,
    table: TableOptions,
    opts: Kept<Opts>,
}

impl MySql {
    pub(in crate::subscribers) const fn new(server: Server, table: TableOptions) -> Self {
        Self {
            server,
            table,
            opts: Kept::new(),
        }
    }
}

impl Database for MySql {
    type Session = MySqlSession;

    const WATCH_EVERY: Duration = Duration::from_secs(1);
    /// 1, because servers do not promise pipelining in this protocol.
    const DEPTH: usize = 1;

    async fn connect(&self, max_batch: usize) -> Result<MySqlSession, DbError> {
        let opts = self.opts.get(|| opts(&self.server))?;
        let mut conn = step(Conn::new(opts)).await?;
        // Without this, MySQL since 8 reports changes a day late. MariaDB has no such variable.
        match step(conn.query_drop("SET SESSION information_schema_stats_expiry = 0")).await {
            Ok(()) | Err(DbError::Refused(_)) => {}
            Err(error) => return Err(error),
        }
        let shape = step(shape(&mut conn, &self.table.table)).await?;
        let fields = shape.fields(&self.table)?;
        // All statements are prepared now, so that no batch waits for one later.
        let mut statements = Vec::new();
        let mut size = 1;
        loop {
            let text = sql::select(&self.table, &shape, &fields, size);
            statements.push((size, step(conn.prep(text)).await?));
            if size >= max_batch {
                break;
            }
            size *= 2;
        }
        // The client keeps the prepared statement.
        step(conn.prep(MARK)).await?;
        Ok(MySqlSession {
            conn: Mutex::new(conn),
            statements,
            fields,
            table: self.table.table.clone(),
        })
    }
}

/// A connection with its prepared statements.
#[derive(Debug)]
pub(in crate::subscribers) struct MySqlSession {
    conn: Mutex<Conn>,
    /// Statements by size, ascending.
    statements: Vec<(usize, Statement)>,
    fields: Vec<Field>,
    table: String,
}

fn bytes(value: Option<&Value>) -> &[u8] {
    match value {
        Some(Value::Bytes(bytes)) => bytes,
        _ => &[],
    }
}

impl MySqlSession {
    async fn fetch_some(
        &self,
        keys: &[RowKey<'_>],
        statement: &Statement,
        size: usize,
        each: &mut dyn FnMut(Row<'_>),
    ) -> Result<(), DbError> {
        // A shorter batch repeats its last key.
        let padded = keys.iter().chain(std::iter::repeat_n(
            keys.last().unwrap_or(&("", "")),
            size - keys.len(),
        ));
        let parameters = padded
            .flat_map(|(user, domain)| [user, domain])
            .map(|text| Value::Bytes(text.as_bytes().to_vec()))
            .collect();
        let mut conn = self.conn.lock().await;
        let mut result = conn.exec_iter(statement, Params::Positional(parameters)).await?;
        while let Some(found) = result.next().await? {
            let mut row = Row::new(bytes(found.as_ref(0)), bytes(found.as_ref(1)));
            for (at, field) in (2..).zip(&self.fields) {
                row.set(*field, bytes(found.as_ref(at)));
            }
            each(row);
        }
        Ok(())
    }
}

impl Session for MySqlSession {
    async fn fetch(&self, keys: &[RowKey<'_>], each: &mut dyn FnMut(Row<'_>)) -> Result<(), DbError> {
        let fits = self.statements.iter().find(|(size, _)| *size >= keys.len());
        let Some((size, statement)) = fits.or(self.statements.last()) else {
            return Ok(());
        };
        for keys in keys.chunks(*size) {
            self.fetch_some(keys, statement, *size, each).await?;
        }
        Ok(())
    }

    /// The time of the table's last change. The server gives it in seconds. Until that second is well past,
    /// every call reports a change.
    async fn mark(&self) -> Result<Option<String>, DbError> {
        let found: Option<(Option<String>, Option<String>)> = self
            .conn
            .lock()
            .await
            .exec_first(MARK, (self.table.as_str(),))
            .await?;
        let (changed, recent) = found.ok_or_else(|| DbError::NoTable {
            table: self.table.clone(),
        })?;
        // The time is unknown if the table has not changed since the server was started.
        Ok(changed
            .zip(recent)
            .map(|(changed, recent)| format!("{changed}/{recent}")))
    }
}

/// A MySQL server, for commands.
#[derive(Debug)]
pub(in crate::subscribers) struct MySqlClient {
    conn: Conn,
    runtime: Runtime,
}

impl MySqlClient {
    pub(in crate::subscribers) fn open(server: &Server) -> Result<Self, DbError> {
        let runtime = small_runtime().map_err(DbError::lost)?;
        let conn = runtime.block_on(async { within(COMMAND_TIMEOUT, Conn::new(opts(server)?)).await })?;
        Ok(Self { conn, runtime })
    }
}

fn parameters(values: &[&str]) -> Params {
    if values.is_empty() {
        return Params::Empty;
    }
    Params::Positional(values.iter().map(|text| Value::from(*text)).collect())
}

impl Client for MySqlClient {
    fn shape(&mut self, table: &str) -> Result<Shape, DbError> {
        self.runtime.block_on(shape(&mut self.conn, table))
    }

    fn execute(&mut self, sql: &str, values: &[&str]) -> Result<u64, DbError> {
        self.runtime.block_on(async {
            if values.is_empty() {
                self.conn.query_drop(sql).await?;
            } else {
                self.conn.exec_drop(sql, parameters(values)).await?;
            }
            Ok(self.conn.affected_rows())
        })
    }

    fn rows(
        &mut self,
        sql: &str,
        values: &[&str],
        columns: usize,
        each: &mut dyn FnMut(&[&str]),
    ) -> Result<(), DbError> {
        self.runtime.block_on(async {
            let mut result = self.conn.exec_iter(sql, parameters(values)).await?;
            while let Some(row) = result.next().await? {
                let texts: Vec<String> = (0..columns)
                    .map(|at| String::from_utf8_lossy(bytes(row.as_ref(at))).into_owned())
                    .collect();
                each(&texts.iter().map(String::as_str).collect::<Vec<_>>());
            }
            Ok(())
        })
    }
}

//! PostgreSQL: one statement for batches of every size, and several batches on one connection.

use std::sync::Arc;
use std::time::Duration;

use futures_util::TryStreamExt as _;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tokio_postgres::config::SslMode;
use tokio_postgres::types::{FromSql, ToSql, Type};
use tokio_postgres::{Config, Error, NoTls, Statement};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::{
    ANSWER_TIMEOUT, COMMAND_TIMEOUT, Client, Database, DbError, Kept, RowKey, Session, authorities,
    small_runtime, step, within,
};
use crate::subscribers::options::{Server, TableOptions, Tls};
use crate::subscribers::secrets::{Field, Row};
use crate::subscribers::sql::{self, Dialect, Shape};

impl From<Error> for DbError {
    fn from(error: Error) -> Self {
        // The reason is in the source; the error's own text says only "db error".
        let text = match (error.as_db_error(), std::error::Error::source(&error)) {
            (Some(refusal), _) => format!(
                "{} {}: {}",
                refusal.severity(),
                refusal.code().code(),
                refusal.message()
            ),
            (None, Some(source)) => format!("{error}: {source}"),
            (None, None) => error.to_string(),
        };
        match error.code().map(|code| code.code().get(..2).unwrap_or_default()) {
            // Data exception: a name that the database's encoding cannot represent.
            Some("22") => Self::Unfit(text.into()),
            // An operator ended the connection, or the server shuts down.
            Some("57") => Self::lost(text),
            Some(_) => Self::refused(text),
            None => Self::lost(text),
        }
    }
}

/// Accepts any certificate, for `tls=unverified`: the connection is encrypted, with any server.
#[derive(Debug)]
struct AnyServer(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

fn tls(server: &Server) -> Result<Option<MakeRustlsConnect>, DbError> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(DbError::lost)?;
    let config = match &server.tls {
        Tls::Off => return Ok(None),
        Tls::Unverified => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyServer(provider)))
            .with_no_client_auth(),
        Tls::Verified { ca } => {
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(authorities(ca.as_deref())?);
            builder.with_root_certificates(roots).with_no_client_auth()
        }
    };
    Ok(Some(MakeRustlsConnect::new(config)))
}

/// Opens a connection within `limit`, with the task that moves its bytes.
async fn connect(
    server: &Server,
    tls: Option<MakeRustlsConnect>,
    limit: Duration,
) -> Result<(tokio_postgres::Client, JoinHandle<()>), DbError> {
    let mut config = Config::new();
    match &server.socket {
        Some(path) => config.host_path(path),
        None => config.host(&server.host),
    };
    config
        .port(server.port)
        .user(&server.user)
        .password(server.password.as_bytes())
        .dbname(&server.database)
        .application_name("trapezoid")
        .keepalives_idle(Duration::from_secs(30))
        .ssl_mode(if server.tls == Tls::Off {
            SslMode::Disable
        } else {
            SslMode::Require
        });
    Ok(match tls {
        None => {
            let (client, connection) = within(limit, config.connect(NoTls)).await?;
            (client, tokio::spawn(async move { drop(connection.await) }))
        }
        Some(tls) => {
            let (client, connection) = within(limit, config.connect(tls)).await?;
            (client, tokio::spawn(async move { drop(connection.await) }))
        }
    })
}

async fn shape(client: &tokio_postgres::Client, table: &str) -> Result<Shape, DbError> {
    let mut shape = Shape::new(Dialect::Postgres);
    let rows = client
        .query(
            "SELECT attname::text FROM pg_attribute WHERE attrelid = to_regclass($1) \
             AND attnum > 0 AND NOT attisdropped",
            &[&Dialect::Postgres.quoted(table)],
        )
        .await?;
    for row in rows {
        shape.add(row.try_get(0)?, None);
    }
    Ok(shape)
}

/// Query for whether the table is absent, and for a text that differs after any change.
const MARK: &str = "SELECT to_regclass($1) IS NULL, \
                    (SELECT relid::text || ':' || (n_tup_ins + n_tup_upd + n_tup_del)::text \
                    FROM pg_stat_user_tables WHERE relid = to_regclass($1))";

/// A PostgreSQL server with the table, for look-ups.
pub(in crate::subscribers) struct Postgres {
    server: Server,
    table: TableOptions,
    tls: Kept<Option<MakeRustlsConnect>>,
}

impl Postgres {
    pub(in crate::subscribers) const fn new(server: Server, table: TableOptions) -> Self {
        Self {
            server,
            table,
            tls: Kept::new(),
        }
    }
}

impl Database for Postgres {
    type Session = PostgresSession;

    const WATCH_EVERY: Duration = Duration::from_secs(1);
    const DEPTH: usize = 4;

    async fn connect(&self, _max_batch: usize) -> Result<PostgresSession, DbError> {
        let tls = self.tls.get(|| tls(&self.server))?;
        let (client, io) = connect(&self.server, tls, ANSWER_TIMEOUT).await?;
        let session = Ending { client, io };
        // Every batch reads a few rows by the index, whatever the statistics say.
        step(session.client.batch_execute(
            "SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; \
             SET plan_cache_mode = force_generic_plan; SET default_transaction_read_only = on",
        ))
        .await?;
        let shape = step(shape(&session.client, &self.table.table)).await?;
        let fields = shape.fields(&self.table)?;
        let text = sql::select(&self.table, &shape, &fields, 1);
        let types = [Type::TEXT_ARRAY, Type::TEXT_ARRAY];
        let select = step(session.client.prepare_typed(&text, &types)).await?;
        let mark = step(session.client.prepare_typed(MARK, &[Type::TEXT])).await?;
        Ok(PostgresSession {
            session,
            select,
            mark,
            fields,
            table: Dialect::Postgres.quoted(&self.table.table),
        })
    }
}

/// A client whose connection ends when it is dropped, even if the server does not respond.
#[derive(Debug)]
struct Ending {
    client: tokio_postgres::Client,
    io: JoinHandle<()>,
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.io.abort();
    }
}

/// The stored bytes of a column. Bytes that are invalid in the database's encoding harm their own row only.
struct Raw<'a>(&'a [u8]);

impl<'a> FromSql<'a> for Raw<'a> {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        Ok(Self(raw))
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}

/// A connection with its prepared statement.
#[derive(Debug)]
pub(in crate::subscribers) struct PostgresSession {
    session: Ending,
    select: Statement,
    mark: Statement,
    fields: Vec<Field>,
    table: String,
}

impl Session for PostgresSession {
    async fn fetch(&self, keys: &[RowKey<'_>], each: &mut dyn FnMut(Row<'_>)) -> Result<(), DbError> {
        // Text cannot contain NUL here, so no row has such a name.
        let (users, domains): (Vec<&str>, Vec<&str>) = keys
            .iter()
            .copied()
            .filter(|(user, domain)| !user.contains('\0') && !domain.contains('\0'))
            .unzip();
        let parameters: [&(dyn ToSql + Sync); 2] = [&users, &domains];
        let rows = self.session.client.query_raw(&self.select, parameters).await?;
        let mut rows = std::pin::pin!(rows);
        while let Some(found) = rows.try_next().await? {
            let text = |at| {
                Ok::<_, Error>(
                    found
                        .try_get::<_, Option<Raw<'_>>>(at)?
                        .map_or(&[][..], |raw| raw.0),
                )
            };
            let mut row = Row::new(text(0)?, text(1)?);
            for (at, field) in (2..).zip(&self.fields) {
                row.set(*field, text(at)?);
            }
            each(row);
        }
        Ok(())
    }

    /// The server's count of changed rows. A session reports its changes to the server when it ends, or has
    /// been idle for some seconds.
    async fn mark(&self) -> Result<Option<String>, DbError> {
        let row = self.session.client.query_one(&self.mark, &[&self.table]).await?;
        if row.try_get(0)? {
            return Err(DbError::NoTable {
                table: self.table.trim_matches('"').to_owned(),
            });
        }
        Ok(row.try_get(1)?)
    }
}

/// A PostgreSQL server, for commands.
#[derive(Debug)]
pub(in crate::subscribers) struct PostgresClient {
    session: Ending,
    runtime: Runtime,
}

impl PostgresClient {
    pub(in crate::subscribers) fn open(server: &Server) -> Result<Self, DbError> {
        let runtime = small_runtime().map_err(DbError::lost)?;
        let (client, io) = runtime.block_on(connect(server, tls(server)?, COMMAND_TIMEOUT))?;
        Ok(Self {
            session: Ending { client, io },
            runtime,
        })
    }
}

impl Client for PostgresClient {
    fn shape(&mut self, table: &str) -> Result<Shape, DbError> {
        self.runtime.block_on(shape(&self.session.client, table))
    }

    fn execute(&mut self, sql: &str, values: &[&str]) -> Result<u64, DbError> {
        let parameters: Vec<_> = values
            .iter()
            .map(|value| (value as &(dyn ToSql + Sync), Type::TEXT))
            .collect();
        let run = self.session.client.execute_typed(sql, &parameters);
        Ok(self.runtime.block_on(run)?)
    }

    fn rows(
        &mut self,
        sql: &str,
        values: &[&str],
        columns: usize,
        each: &mut dyn FnMut(&[&str]),
    ) -> Result<(), DbError> {
        let parameters: Vec<_> = values
            .iter()
            .map(|value| (value as &(dyn ToSql + Sync), Type::TEXT))
            .collect();
        for row in self
            .runtime
            .block_on(self.session.client.query_typed(sql, &parameters))?
        {
            let values: Result<Vec<Option<&str>>, _> = (0..columns).map(|at| row.try_get(at)).collect();
            each(
                &values?
                    .into_iter()
                    .map(Option::unwrap_or_default)
                    .collect::<Vec<_>>(),
            );
        }
        Ok(())
    }
}

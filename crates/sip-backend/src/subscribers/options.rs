//! Options of the subscriber table: database, table, columns.

use std::fmt;
use std::path::PathBuf;

use url::Url;
use zeroize::Zeroizing;

/// Names of the table's columns, for tables made by other programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Columns {
    /// User part of the address-of-record.
    pub user: String,
    /// Domain.
    pub domain: String,
    /// Plain password; empty unless [`TableOptions::calculate_ha1`].
    pub password: String,
    /// `MD5(user:realm:password)`, hexadecimal.
    pub ha1: String,
    /// `MD5(user@domain:realm:password)`, hexadecimal: for phones whose `username` contains the domain.
    pub ha1b: String,
    /// `SHA-256(user:realm:password)`, hexadecimal.
    pub ha1_sha256: String,
    /// `SHA-512-256(user:realm:password)`, hexadecimal.
    pub ha1_sha512t256: String,
}

impl Default for Columns {
    fn default() -> Self {
        Self {
            user: "username".into(),
            domain: "domain".into(),
            password: "password".into(),
            ha1: "ha1".into(),
            ha1b: "ha1b".into(),
            ha1_sha256: "ha1_sha256".into(),
            ha1_sha512t256: "ha1_sha512t256".into(),
        }
    }
}

/// Options of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableOptions {
    /// The database.
    pub source: Source,
    /// The table.
    pub table: String,
    /// The columns of the table.
    pub columns: Columns,
    /// Whether the table holds plain passwords. HA1 is then calculated for the requested realm, and `add` and
    /// `set_password` store the password.
    pub calculate_ha1: bool,
}

impl TableOptions {
    /// The usual table of a database.
    pub fn new(source: Source) -> Self {
        Self {
            source,
            table: "subscriber".into(),
            columns: Columns::default(),
            calculate_ha1: false,
        }
    }

    /// The usual table in the SQLite file at `path`.
    pub fn sqlite(path: impl Into<PathBuf>) -> Self {
        Self::new(Source::Sqlite(path.into()))
    }
}

/// Location of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A file.
    Sqlite(PathBuf),
    /// A database server.
    Server(Server),
}

/// The source for messages and logs, without the password.
impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(path) => write!(f, "{}", path.display()),
            Self::Server(server) => server.fmt(f),
        }
    }
}

/// Protocol of a database server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// MySQL, MariaDB and compatible servers.
    MySql,
    /// PostgreSQL.
    Postgres,
}

/// Encryption of the connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Tls {
    /// No encryption.
    #[default]
    Off,
    /// Encrypted. The server's certificate must name its host and be issued by an authority of this file, or
    /// of the system.
    Verified {
        /// The authorities, PEM; `None`: those of the system.
        ca: Option<PathBuf>,
    },
    /// Encrypted, with any server: protects from eavesdroppers only.
    Unverified,
}

/// A database server, with the user to log in as.
#[derive(Clone, PartialEq, Eq)]
pub struct Server {
    /// The server's protocol.
    pub protocol: Protocol,
    /// The server's name or address.
    pub host: String,
    /// The server's TCP port.
    pub port: u16,
    /// A Unix socket to use instead of host and port: the file of MySQL, or the directory of PostgreSQL's.
    pub socket: Option<PathBuf>,
    /// The user's name.
    pub user: String,
    /// The user's password.
    pub password: Zeroizing<String>,
    /// The database's name.
    pub database: String,
    /// Encryption of the connection.
    pub tls: Tls,
}

/// The server without the password.
impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Server({self})")
    }
}

/// The server as a URL, without the password.
impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.protocol {
            Protocol::MySql => "mysql",
            Protocol::Postgres => "postgres",
        };
        write!(f, "{scheme}://{}@", self.user)?;
        match &self.socket {
            Some(path) => write!(f, "{}", path.display())?,
            None => write!(f, "{}:{}", self.host, self.port)?,
        }
        write!(f, "/{}", self.database)
    }
}

impl Server {
    /// Reads `mysql://USER:PASSWORD@HOST:PORT/DATABASE` or `postgres://…`; after `?`:
    /// `socket=PATH`, `tls=off`, `tls=on` (verified, with `ca=FILE` if not by the system's
    /// authorities), `tls=unverified`.
    ///
    /// # Errors
    /// The problem of the URL. The text never repeats the URL, which contains a password.
    pub fn parse(url: &str) -> Result<Self, String> {
        let url = Url::parse(url).map_err(|error| format!("is no URL: {error}"))?;
        let (protocol, usual_port) = match url.scheme() {
            "mysql" | "mariadb" => (Protocol::MySql, 3306),
            "postgres" | "postgresql" => (Protocol::Postgres, 5432),
            _ => return Err("begins neither with mysql:// nor with postgres://".into()),
        };
        let decoded = |text: &str, what: &str| {
            percent_decode(text).ok_or_else(|| format!("the {what} in it is no UTF-8 once decoded"))
        };
        let mut server = Self {
            protocol,
            host: url
                .host_str()
                .unwrap_or_default()
                .trim_matches(['[', ']'])
                .to_owned(),
            port: url.port().unwrap_or(usual_port),
            socket: None,
            user: decoded(url.username(), "user")?,
            password: Zeroizing::new(decoded(url.password().unwrap_or_default(), "password")?),
            database: decoded(url.path().trim_start_matches('/'), "database")?,
            tls: Tls::Off,
        };
        let mut ca = None;
        for (key, value) in url.query_pairs() {
            match (&*key, &*value) {
                ("socket", path) => server.socket = Some(path.into()),
                ("ca", path) => ca = Some(PathBuf::from(path)),
                ("tls", "off") => server.tls = Tls::Off,
                ("tls", "on") => server.tls = Tls::Verified { ca: None },
                ("tls", "unverified") => server.tls = Tls::Unverified,
                ("tls", _) => return Err("tls is neither off, on nor unverified".into()),
                (other, _) => return Err(format!("{other:?} is not known; there are socket, tls and ca")),
            }
        }
        match (&mut server.tls, ca) {
            (_, None) => {}
            (Tls::Verified { ca }, given) => *ca = given,
            (Tls::Off | Tls::Unverified, Some(_)) => return Err("ca is of use with tls=on only".into()),
        }
        if server.socket.is_some() && server.tls != Tls::Off {
            return Err("a socket of this machine is not encrypted: leave tls out".into());
        }
        if server.host.is_empty() && server.socket.is_none() {
            return Err("names no host".into());
        }
        if server.user.is_empty() {
            return Err("names no user".into());
        }
        if server.database.is_empty() || server.database.contains('/') {
            return Err("names no database".into());
        }
        Ok(server)
    }

    /// Whether secrets would cross a network as they are.
    pub fn is_exposed(&self) -> bool {
        let local = self.host == "localhost"
            || self
                .host
                .parse::<std::net::IpAddr>()
                .is_ok_and(|address| address.is_loopback());
        self.tls == Tls::Off && self.socket.is_none() && !local
    }
}

fn percent_decode(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let high = char::from(bytes.next()?).to_digit(16)?;
            let low = char::from(bytes.next()?).to_digit(16)?;
            out.push(u8::try_from(high * 16 + low).ok()?);
        } else {
            out.push(byte);
        }
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read() {
        let server = Server::parse("mysql://sip:p%40ss%2F@db.example.com/openser").unwrap();
        assert_eq!(server.protocol, Protocol::MySql);
        assert_eq!((server.host.as_str(), server.port), ("db.example.com", 3306));
        assert_eq!((server.user.as_str(), server.password.as_str()), ("sip", "p@ss/"));
        assert_eq!((server.database.as_str(), &server.tls), ("openser", &Tls::Off));
        assert!(server.is_exposed());
        let server = Server::parse("postgresql://sip:x@[::1]:6432/sip?tls=on&ca=/etc/ca.pem").unwrap();
        assert_eq!((server.host.as_str(), server.port), ("::1", 6432));
        assert_eq!(
            server.tls,
            Tls::Verified {
                ca: Some("/etc/ca.pem".into())
            }
        );
        assert!(!server.is_exposed());
        let server = Server::parse("mariadb://sip@localhost/sip?socket=/run/mysqld/mysqld.sock").unwrap();
        assert_eq!(
            server.socket.as_deref(),
            Some(std::path::Path::new("/run/mysqld/mysqld.sock"))
        );
    }

    #[test]
    fn errors_show_no_password() {
        for (url, what) in [
            ("mysql:", "names no host"),
            ("mysql://sip:geheim@/db", "host"),
            ("mysql://:geheim@h/db", "names no user"),
            ("mysql://sip:geheim@h", "names no database"),
            ("mysql://sip:geheim@h/a/b", "names no database"),
            ("mysql://sip:geheim@h:99999/db", "port"),
            ("mysql://sip:geheim%ff@h/db", "UTF-8"),
            (
                "mysql://sip:geheim@h/db?tls=maybe",
                "neither off, on nor unverified",
            ),
            ("mysql://sip:geheim@h/db?ssl=1", "\"ssl\" is not known"),
            ("mysql://sip:geheim@h/db?tls=on&socket=/x", "leave tls out"),
            ("mysql://sip:geheim@h/db?ca=x", "ca is of use with tls=on only"),
            ("oracle://sip:geheim@h/db", "neither with mysql:// nor"),
            ("geheim", "no URL"),
        ] {
            let error = Server::parse(url).unwrap_err();
            assert!(
                error.contains(what) && !error.contains("geheim"),
                "{url}: {error}"
            );
        }
    }

    #[test]
    fn no_output_has_the_password() {
        let server = Server::parse("mysql://sip:geheim@h/db").unwrap();
        let options = TableOptions::new(Source::Server(server));
        assert!(!format!("{options:?} {}", options.source).contains("geheim"));
        assert_eq!(options.source.to_string(), "mysql://sip@h:3306/db");
    }
}

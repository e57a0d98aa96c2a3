//! `[subscribers]` and `[credentials]`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The users that may register and call: a table in the way of OpenSER's `subscriber`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Subscribers {
    /// Where the table is: `sqlite:FILE`, `mysql://USER:PASSWORD@HOST/DATABASE` (MariaDB too) or
    /// `postgres://USER:PASSWORD@HOST/DATABASE`. After `?` of a server: `tls=on` (its certificate is verified,
    /// with `ca=FILE` against that file), `tls=unverified`, `socket=PATH`.
    #[schemars(extend("x-default" = "`sqlite:` and `subscribers.db` in `server.data_dir`"))]
    pub url: Option<String>,
    /// A file whose first line is the `url`, to keep it out of this one.
    #[schemars(extend("x-default" = "none"))]
    pub url_file: Option<String>,
    /// Where `trapezoid user` goes, if the server's own account may only read: the same table by another `url`.
    #[schemars(extend("x-default" = "`url`"))]
    pub admin_url: Option<String>,
    /// A file whose first line is the `admin_url`. Only `trapezoid user` reads it, so that the server need not be able
    /// to.
    #[schemars(extend("x-default" = "none"))]
    pub admin_url_file: Option<String>,
    /// Name of the table. It is never altered. In a file it is made if it is absent, on a server by the first
    /// `trapezoid user add`.
    pub table: String,
    /// `true`: the table holds plain passwords (column `password`), and the hashes are computed
    /// from them. `false`: it holds the hashes.
    pub calculate_ha1: bool,
    pub columns: Columns,
}

impl Default for Subscribers {
    fn default() -> Self {
        Self {
            url: None,
            url_file: None,
            admin_url: None,
            admin_url_file: None,
            table: "subscriber".to_owned(),
            calculate_ha1: false,
            columns: Columns::default(),
        }
    }
}

/// Names of the table's columns. Columns of secrets that a table lacks count as empty; `password` with
/// `calculate_ha1`, else one of the hashes, must be there.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Columns {
    /// The user part of the address-of-record.
    pub user: String,
    /// The domain of the address-of-record.
    pub domain: String,
    /// `MD5(user:realm:password)`, hexadecimal.
    pub ha1: String,
    /// `MD5(user@domain:realm:password)`, hexadecimal: for phones that give their name with the domain.
    pub ha1b: String,
    /// The plain password, with `calculate_ha1`.
    pub password: String,
    /// `SHA-256(user:realm:password)`, hexadecimal.
    pub ha1_sha256: String,
    /// `SHA-512-256(user:realm:password)`, hexadecimal.
    pub ha1_sha512t256: String,
}

impl Default for Columns {
    fn default() -> Self {
        Self {
            user: "username".to_owned(),
            domain: "domain".to_owned(),
            ha1: "ha1".to_owned(),
            ha1b: "ha1b".to_owned(),
            password: "password".to_owned(),
            ha1_sha256: "ha1_sha256".to_owned(),
            ha1_sha512t256: "ha1_sha512t256".to_owned(),
        }
    }
}

/// Looking up the secrets that credentials are checked against.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Credentials {
    /// Connections to a database server. A file has one.
    #[schemars(range(min = 1, max = 1024))]
    pub connections: usize,
    /// When look-ups are sent: `single`: each by itself; `fixed`: once `max_batch` wait or the oldest has waited
    /// `max_wait_ms`; `adaptive`: at once while a connection is idle, else together when one is.
    pub mode: CredentialMode,
    /// Most look-ups that are sent together.
    #[schemars(range(min = 1, max = 1024))]
    pub max_batch: usize,
    /// How long look-ups may wait for more: in mode `fixed`, and in `adaptive` before a connection that is under
    /// way carries one batch more (PostgreSQL).
    #[schemars(range(max = 1000))]
    pub max_wait_ms: u32,
    /// How long a request may wait for its look-up; then it gets the status of `on_unavailable`.
    #[schemars(range(min = 100, max = 30_000))]
    pub deadline_ms: u32,
    /// Status code if the look-up failed or took too long.
    pub on_unavailable: OnUnavailable,
    /// Users whose secrets are kept in memory; 0: none. At the limit the oldest leaves.
    #[schemars(range(max = 10_000_000))]
    pub cache_entries: usize,
    /// How long they are kept at most. A change of the table empties the cache: of a file within a second, on
    /// MySQL within three, on PostgreSQL within some ten.
    #[schemars(range(min = 1, max = 86_400))]
    pub cache_ttl_s: u32,
    /// How long outdated secrets still serve while the database does not respond; 0: not at all.
    #[schemars(range(max = 604_800))]
    pub cache_stale_s: u32,
}

/// When look-ups are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum CredentialMode {
    Single,
    Fixed,
    Adaptive,
}

impl Default for Credentials {
    fn default() -> Self {
        Self {
            connections: 8,
            mode: CredentialMode::Adaptive,
            max_batch: 128,
            max_wait_ms: 5,
            deadline_ms: 3000,
            on_unavailable: OnUnavailable::Unavailable503,
            cache_entries: 100_000,
            cache_ttl_s: 300,
            cache_stale_s: 3600,
        }
    }
}

/// Status without credentials.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub(crate) enum OnUnavailable {
    #[serde(rename = "503")]
    Unavailable503,
    #[serde(rename = "504")]
    Timeout504,
}

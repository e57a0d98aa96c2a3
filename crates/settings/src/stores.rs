//! `[subscribers]` and `[location]`: the stores.

use std::path::{Path, PathBuf};
use std::time::Duration;

use sip_backend::subscribers::{Columns, LookupOptions, Mode, Server, Source, TableOptions};
use sip_core::config::{Durability, RegistrarPolicy};

use super::context::Context;
use super::model::{self, Settings};

/// Most characters of a name in SQL.
const MAX_IDENTIFIER: usize = 64;

/// Options of the table in `[subscribers]`.
pub(super) fn subscribers(settings: &Settings, data_dir: &Path, cx: &mut Context<'_>) -> TableOptions {
    let entry = &settings.subscribers;
    let of_server = Place {
        keys: ["url", "url_file"],
        url: entry.url.as_deref(),
        file: entry.url_file.as_deref(),
    };
    let source = source(&of_server, cx).unwrap_or_else(|| Source::Sqlite(data_dir.join("subscribers.db")));
    let columns = &entry.columns;
    let names = [
        ("user", &columns.user),
        ("domain", &columns.domain),
        ("ha1", &columns.ha1),
        ("ha1b", &columns.ha1b),
        ("password", &columns.password),
        ("ha1_sha256", &columns.ha1_sha256),
        ("ha1_sha512t256", &columns.ha1_sha512t256),
    ];
    for (at, (key, name)) in names.iter().enumerate() {
        let path = format!("subscribers.columns.{key}");
        identifier(&path, name, "column", cx);
        let same = names
            .iter()
            .take(at)
            .find(|(_, other)| other.eq_ignore_ascii_case(name));
        if let Some((other, _)) = same {
            cx.problem(
                &path,
                format!("the same column as {other}"),
                "name another column",
            );
        }
    }
    identifier("subscribers.table", &entry.table, "table", cx);
    TableOptions {
        source,
        table: entry.table.clone(),
        columns: Columns {
            user: columns.user.clone(),
            domain: columns.domain.clone(),
            password: columns.password.clone(),
            ha1: columns.ha1.clone(),
            ha1b: columns.ha1b.clone(),
            ha1_sha256: columns.ha1_sha256.clone(),
            ha1_sha512t256: columns.ha1_sha512t256.clone(),
        },
        calculate_ha1: entry.calculate_ha1,
    }
}

/// Checks a name that goes into SQL text: it may have letters, digits and underscores only.
fn identifier(path: &str, name: &str, of: &str, cx: &mut Context<'_>) {
    let fits = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.len() <= MAX_IDENTIFIER
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if !fits {
        let remedy = "use letters, digits and underscores, 64 at most";
        cx.problem(path, format!("{name:?} is not the name of a {of}"), remedy);
    }
}

/// The two keys of the configuration that name a subscriber store, with their values.
struct Place<'a> {
    keys: [&'static str; 2],
    url: Option<&'a str>,
    file: Option<&'a str>,
}

/// The table for `trapezoid user`: by `admin_url`, if it is given.
pub(super) fn admin_table(settings: &Settings, table: &TableOptions, cx: &mut Context<'_>) -> AdminTable {
    let entry = &settings.subscribers;
    let at = |source| TableOptions {
        source,
        ..table.clone()
    };
    match (&entry.admin_url, &entry.admin_url_file) {
        // Read only when `trapezoid user` needs it, because the server's account may be unable to read the
        // file.
        (None, Some(file)) => AdminTable::InFile(cx.path(file)),
        (url, file) => {
            let place = Place {
                keys: ["admin_url", "admin_url_file"],
                url: url.as_deref(),
                file: file.as_deref(),
            };
            AdminTable::At(Box::new(source(&place, cx).map_or_else(|| table.clone(), at)))
        }
    }
}

/// The subscriber table for `trapezoid user`.
#[derive(Debug, Clone, PartialEq)]
pub enum AdminTable {
    /// With these options.
    At(Box<TableOptions>),
    /// At the URL in the first line of this file.
    InFile(PathBuf),
}

impl AdminTable {
    /// The options to open the table; `own` are those of the server.
    ///
    /// # Errors
    /// The file cannot be read, or has no such URL. The text has the reason.
    pub fn open(&self, own: &TableOptions) -> Result<TableOptions, String> {
        let file = match self {
            Self::At(table) => return Ok(TableOptions::clone(table)),
            Self::InFile(file) => file,
        };
        let place = file.display();
        let text = std::fs::read_to_string(file).map_err(|error| format!("cannot read {place}: {error}"))?;
        let url = text.lines().next().unwrap_or_default().trim();
        let server = Server::parse(url).map_err(|what| format!("{place}: {what}"))?;
        Ok(TableOptions {
            source: Source::Server(server),
            ..own.clone()
        })
    }
}

fn source(place: &Place<'_>, cx: &mut Context<'_>) -> Option<Source> {
    let [url_key, file_key] = place.keys.map(|key| format!("subscribers.{key}"));
    let read;
    let (path, url) = match (place.url, place.file) {
        (Some(url), None) => (&url_key, url),
        (None, Some(file)) => {
            read = secret_file(&file_key, file, cx)?;
            (&file_key, read.as_str())
        }
        (Some(_), Some(_)) => {
            let [url, file] = place.keys;
            cx.problem(&file_key, format!("both {url} and {file}"), "keep one of them");
            return None;
        }
        (None, None) => return None,
    };
    match scheme(url) {
        Some(("sqlite", rest)) => sqlite(path, rest, cx).map(Source::Sqlite),
        Some(("mysql" | "mariadb" | "postgres" | "postgresql", _)) => match Server::parse(url) {
            Ok(server) => Some(Source::Server(server)),
            Err(what) => {
                let remedy = "write \"mysql://USER:PASSWORD@HOST/DATABASE\" or \"postgres://…\"";
                cx.problem(path, what, remedy);
                None
            }
        },
        _ => {
            cx.problem(
                path,
                "not the URL of a subscriber store",
                "write \"sqlite:subscribers.db\", \"mysql://…\" or \"postgres://…\"",
            );
            None
        }
    }
}

/// The part of `[credentials]` about the store.
pub(super) fn lookups(entry: &model::Credentials) -> LookupOptions {
    LookupOptions {
        connections: entry.connections,
        mode: match entry.mode {
            model::CredentialMode::Single => Mode::Single,
            model::CredentialMode::Fixed => Mode::Fixed,
            model::CredentialMode::Adaptive => Mode::Adaptive,
        },
        max_batch: entry.max_batch,
        max_wait: Duration::from_millis(entry.max_wait_ms.into()),
        deadline: lookup_deadline(entry.deadline_ms),
        ..LookupOptions::default()
    }
}

/// The deadline of look-ups in the store. The store gives up before the core does, so that outdated secrets
/// can still be used.
pub fn lookup_deadline(deadline_ms: u32) -> Duration {
    Duration::from_millis((deadline_ms - (deadline_ms / 10).min(100)).into())
}

/// Reads the first line of a file that holds a secret.
fn secret_file(path: &str, file: &str, cx: &mut Context<'_>) -> Option<String> {
    let file = cx.path(file);
    match std::fs::read_to_string(&file) {
        Ok(text) => Some(text.lines().next().unwrap_or_default().trim().to_owned()),
        Err(error) => {
            let what = format!("cannot read {}: {error}", file.display());
            cx.problem(path, what, "name a readable file");
            None
        }
    }
}

/// `[location]`: the file (`None`: memory only), and the registrar's policy.
pub(super) fn location(
    settings: &Settings,
    data_dir: &Path,
    subscribers: &TableOptions,
    cx: &mut Context<'_>,
) -> (Option<PathBuf>, RegistrarPolicy) {
    let entry = &settings.location;
    let file = location_file(entry, data_dir, cx);
    if let (Some(file), Source::Sqlite(other)) = (&file, &subscribers.source)
        && file == other
    {
        let what = "the same file as subscribers.url";
        cx.problem("location.url", what, "name another file");
    }
    let durability = match (entry.durability, &file) {
        (Some(model::Durability::Memory), _) | (None, None) => Durability::Memory,
        (Some(model::Durability::Commit) | None, Some(_)) => Durability::Commit,
        (Some(model::Durability::Async), Some(_)) => Durability::Async,
        (Some(model::Durability::Commit | model::Durability::Async), None) => {
            let what = "a memory: store writes nothing to disk";
            cx.problem("location.durability", what, "remove it, or name a sqlite: store");
            Durability::Memory
        }
    };
    if entry.min_expires_s > entry.default_expires_s || entry.default_expires_s > entry.max_expires_s {
        let given = ["default_expires_s", "min_expires_s", "max_expires_s"];
        let key = given
            .into_iter()
            .find(|key| cx.has("location", key))
            .unwrap_or("default_expires_s");
        let what = format!(
            "min_expires_s = {}, default_expires_s = {}, max_expires_s = {} are not in this order",
            entry.min_expires_s, entry.default_expires_s, entry.max_expires_s
        );
        cx.problem(
            &format!("location.{key}"),
            what,
            "let none be smaller than the one before it",
        );
    }
    let policy = RegistrarPolicy {
        min_expires_s: entry.min_expires_s,
        default_expires_s: entry.default_expires_s,
        max_expires_s: entry.max_expires_s,
        durability,
    };
    (file, policy)
}

fn location_file(entry: &model::Location, data_dir: &Path, cx: &mut Context<'_>) -> Option<PathBuf> {
    let beside = || Some(data_dir.join("location.db"));
    let Some(url) = &entry.url else { return beside() };
    match scheme(url) {
        Some(("sqlite", rest)) => sqlite("location.url", rest, cx).or_else(beside),
        Some(("memory", "")) => None,
        Some((other @ ("redis" | "rediss" | "valkey"), _)) => {
            let what = format!("{other}: is not supported by this version");
            cx.problem("location.url", what, "use \"sqlite:location.db\" or \"memory:\"");
            beside()
        }
        _ => {
            let remedy = "write \"sqlite:location.db\" or \"memory:\"";
            cx.problem("location.url", "not the URL of a location store", remedy);
            beside()
        }
    }
}

fn scheme(url: &str) -> Option<(&str, &str)> {
    url.split_once(':')
}

/// The file of an `sqlite:` URL: the text after the colon, or the path of `sqlite:///…`.
fn sqlite(path: &str, rest: &str, cx: &mut Context<'_>) -> Option<PathBuf> {
    let file = rest.strip_prefix("//").unwrap_or(rest);
    if file.is_empty() || file == ":memory:" || file.contains(['?', '\0']) {
        cx.problem(path, "names no file", "write \"sqlite:FILE\"");
        return None;
    }
    Some(cx.path(file))
}

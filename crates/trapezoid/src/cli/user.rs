//! `trapezoid user add|passwd|list|del`.

use std::io::{self, BufRead, Read};

use clap::Subcommand;
use sip_backend::subscribers::{Source, SubscriberError, SubscriberTable};
use sip_core::config::{Config, Domain};
use zeroize::Zeroizing;

use super::{ConfigOption, Failure, configuration, print, say};
use crate::machine;
use crate::serve::data_dir;
use settings::{AdminTable, Loaded};

/// Longest password, bytes.
const MAX_PASSWORD: usize = 1024;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: UserAction,
}

#[derive(Debug, Subcommand)]
enum UserAction {
    /// Add a subscriber.
    Add(WithPassword),
    /// Give a subscriber a new password.
    Passwd(WithPassword),
    /// List the subscribers.
    List(List),
    /// Delete a subscriber.
    Del(Del),
}

#[derive(Debug, clap::Args)]
struct WithPassword {
    /// The subscriber; the domain may be left out if the configuration has only one.
    #[arg(value_name = "NAME@DOMAIN")]
    name: String,
    /// Read the password from the first line of standard input instead of asking for it.
    #[arg(long)]
    password_stdin: bool,
    #[command(flatten)]
    config: ConfigOption,
}

#[derive(Debug, clap::Args)]
struct List {
    /// Of this domain only.
    domain: Option<String>,
    /// As JSON: an array of objects with `user` and `domain`.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    config: ConfigOption,
}

#[derive(Debug, clap::Args)]
struct Del {
    /// The subscriber.
    #[arg(value_name = "NAME@DOMAIN")]
    name: String,
    #[command(flatten)]
    config: ConfigOption,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    match &args.action {
        UserAction::Add(args) => with_password(args, "added", SubscriberTable::add),
        UserAction::Passwd(args) => with_password(args, "changed", SubscriberTable::set_password),
        UserAction::List(args) => list(args),
        UserAction::Del(args) => del(args),
    }
}

type Write = fn(&mut SubscriberTable, &str, &str, &str, &[u8]) -> Result<(), SubscriberError>;

fn with_password(args: &WithPassword, done: &str, write: Write) -> Result<(), Failure> {
    let loaded = read_configuration(&args.config)?;
    let (user, domain) = subscriber(&args.name, &loaded.core)?;
    let name = String::from_utf8_lossy(&domain.name).into_owned();
    let realm = String::from_utf8_lossy(&domain.auth.realm).into_owned();
    let mut table = open(&loaded)?;
    let password = if args.password_stdin {
        password_from_stdin()?
    } else {
        ask_for_password()?
    };
    write(&mut table, user, &name, &realm, password.as_bytes())
        .map_err(|error| failure_to_write(&loaded, error))?;
    say(&format!("{done} {user}@{name}"));
    Ok(())
}

fn del(args: &Del) -> Result<(), Failure> {
    let loaded = read_configuration(&args.config)?;
    let (user, domain) = subscriber(&args.name, &loaded.core)?;
    let name = String::from_utf8_lossy(&domain.name).into_owned();
    open(&loaded)?
        .delete(user, &name)
        .map_err(|error| failure_to_write(&loaded, error))?;
    say(&format!("deleted {user}@{name}"));
    Ok(())
}

fn list(args: &List) -> Result<(), Failure> {
    let loaded = read_configuration(&args.config)?;
    let domain = match &args.domain {
        Some(text) => Some(String::from_utf8_lossy(&find_domain(text, &loaded.core)?.name).into_owned()),
        None => None,
    };
    let mut names: Vec<(String, String)> = Vec::new();
    open(&loaded)?
        .list(domain.as_deref(), &mut |user, domain| {
            names.push((user.to_owned(), domain.to_owned()))
        })
        .map_err(failure)?;
    if args.json {
        let objects = names
            .iter()
            .map(|(user, domain)| serde_json::json!({ "user": user, "domain": domain }));
        return print(&format!("{}\n", serde_json::Value::from_iter(objects)));
    }
    let lines: String = names
        .iter()
        .map(|(user, domain)| format!("{user}@{domain}\n"))
        .collect();
    print(&lines)
}

fn read_configuration(option: &ConfigOption) -> Result<Loaded, Failure> {
    configuration(option.config.as_deref(), &machine::read()?)
}

fn open(loaded: &Loaded) -> Result<SubscriberTable, Failure> {
    let own = &loaded.shell.subscribers;
    let table = loaded.shell.admin_table.open(own).map_err(Failure::Usage)?;
    if let Source::Sqlite(path) = &table.source
        && path.parent() == Some(loaded.shell.data_dir.as_path())
    {
        data_dir::create(&loaded.shell.data_dir)?;
    }
    SubscriberTable::open(table).map_err(failure)
}

/// The failure of a change, with a remedy if the server's account may only read.
fn failure_to_write(loaded: &Loaded, error: SubscriberError) -> Failure {
    let has_own_account =
        loaded.shell.admin_table != AdminTable::At(Box::new(loaded.shell.subscribers.clone()));
    match failure(error) {
        Failure::Failed(text) if !has_own_account && is_forbidden(&text) => Failure::Failed(format!(
            "{text}; if the server's account may only read, write the URL of one that may change the table into \
             subscribers.admin_url"
        )),
        failure @ (Failure::Failed(_) | Failure::Usage(_)) => failure,
    }
}

/// Whether a database server reports that its account lacks a right: MySQL and MariaDB, or PostgreSQL.
fn is_forbidden(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    text.contains("command denied") || text.contains("permission denied")
}

/// The failure with its exit code: of the command line, or of the operation.
pub(crate) fn failure(error: SubscriberError) -> Failure {
    match error {
        SubscriberError::Exists { .. }
        | SubscriberError::NotFound { .. }
        | SubscriberError::Io { .. }
        | SubscriberError::Database { .. } => Failure::Failed(error.to_string()),
        SubscriberError::BadName { .. }
        | SubscriberError::BadPassword
        | SubscriberError::BadColumn { .. }
        | SubscriberError::Table { .. } => Failure::Usage(error.to_string()),
    }
}

/// User name and domain of the subscriber named by `text`.
fn subscriber<'a>(text: &'a str, config: &'a Config) -> Result<(&'a str, &'a Domain), Failure> {
    let text = text.strip_prefix("sip:").unwrap_or(text);
    match (text.rsplit_once('@'), config.domains.as_slice()) {
        (Some((user, domain)), _) => Ok((user, find_domain(domain, config)?)),
        (None, [only]) => Ok((text, only)),
        (None, domains) => Err(Failure::Usage(format!(
            "{text}: which domain? Write {text}@DOMAIN, one of {}",
            names(domains)
        ))),
    }
}

fn find_domain<'a>(text: &str, config: &'a Config) -> Result<&'a Domain, Failure> {
    let wanted = text.to_ascii_lowercase();
    let is = |name: &[u8]| *name == *wanted.as_bytes();
    let found = config
        .domains
        .iter()
        .find(|domain| is(&domain.name) || domain.aliases.iter().any(|a| is(a)));
    found.ok_or_else(|| {
        let known = names(&config.domains);
        Failure::Usage(format!(
            "{text} is not served here; the configuration has {known}"
        ))
    })
}

fn names(domains: &[Domain]) -> String {
    let names: Vec<_> = domains
        .iter()
        .map(|domain| String::from_utf8_lossy(&domain.name))
        .collect();
    names.join(", ")
}

fn password_from_stdin() -> Result<Zeroizing<String>, Failure> {
    let mut line = Zeroizing::new(String::new());
    let read = io::stdin()
        .lock()
        .take(MAX_PASSWORD as u64 + 2)
        .read_line(&mut line);
    read.map_err(|error| Failure::failed("cannot read the password from standard input", error))?;
    let end = line.trim_end_matches(['\r', '\n']).len();
    line.truncate(end);
    checked(line)
}

fn ask_for_password() -> Result<Zeroizing<String>, Failure> {
    let ask = |prompt: &str| {
        let answer = rpassword::prompt_password(prompt).map(Zeroizing::new);
        answer.map_err(|error| {
            Failure::Failed(format!(
                "cannot ask for the password: {error}; use --password-stdin"
            ))
        })
    };
    let first = checked(ask("Password: ")?)?;
    if *ask("The same again: ")? != *first {
        return Err(Failure::Usage("the two differ; nothing was changed".to_owned()));
    }
    Ok(first)
}

fn checked(password: Zeroizing<String>) -> Result<Zeroizing<String>, Failure> {
    match password.len() {
        0 => Err(Failure::Usage(
            "an empty password is none; nothing was changed".to_owned(),
        )),
        length if length > MAX_PASSWORD => Err(Failure::Usage(format!(
            "a password has {MAX_PASSWORD} bytes at most; nothing was changed"
        ))),
        _ => Ok(password),
    }
}

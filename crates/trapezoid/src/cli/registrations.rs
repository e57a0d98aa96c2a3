//! `trapezoid registrations list|show|remove`: commands to the running server, by its admin address.

use clap::Subcommand;
use serde_json::Value;

use super::running::{Running, ask, escaped, word};
use super::{ConfigOption, Failure, print, print_part, say};
use crate::registrations::{Origin, canonical};

/// Rows requested at once.
const PAGE: u64 = 500;

/// Number of columns of the table.
const COLUMNS: usize = 5;
const HEAD: [&str; COLUMNS] = ["ADDRESS-OF-RECORD", "CONTACT", "SOURCE", "LEFT", "USER-AGENT"];

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List the registered contacts; of several filters all must hold.
    List(List),
    /// Show the contacts of one address-of-record.
    Show(Show),
    /// Remove one contact of an address-of-record, or all. The phone may register again.
    Remove(Remove),
}

#[derive(Debug, clap::Args)]
struct List {
    /// The user part of the address-of-record, whole, in its case.
    #[arg(long, value_name = "USER", value_parser = filled)]
    user: Option<String>,
    /// The domain of the address-of-record, whole, in any case.
    #[arg(long, value_name = "DOMAIN", value_parser = filled)]
    domain: Option<String>,
    /// A part of the contact's URI, in any case.
    #[arg(long, value_name = "TEXT", value_parser = filled)]
    contact: Option<String>,
    /// Where the REGISTER came from: an address, a network, or an address with a port.
    #[arg(long, value_name = "ADDRESS", value_parser = source)]
    source: Option<String>,
    /// A part of the User-Agent, in any case.
    #[arg(long, value_name = "TEXT", value_parser = filled)]
    user_agent: Option<String>,
    /// Contacts to list at most; without it all.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    /// As JSON: an array of objects, as the admin page has them.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    config: ConfigOption,
}

#[derive(Debug, clap::Args)]
struct Show {
    /// The address-of-record, as USER@DOMAIN.
    #[arg(value_name = "AOR", value_parser = address_of_record)]
    aor: String,
    /// As JSON: an object, as the admin page has it.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    config: ConfigOption,
}

#[derive(Debug, clap::Args)]
struct Remove {
    /// The address-of-record, as USER@DOMAIN.
    #[arg(value_name = "AOR", value_parser = address_of_record)]
    aor: String,
    /// URI of the contact; without it and `--source` all contacts are removed.
    #[arg(long, value_name = "URI", value_parser = filled)]
    contact: Option<String>,
    /// Where its REGISTER came from: an address, a network, or an address with a port.
    #[arg(long, value_name = "ADDRESS", value_parser = source)]
    source: Option<String>,
    #[command(flatten)]
    config: ConfigOption,
}

fn filled(text: &str) -> Result<String, &'static str> {
    match text.is_empty() {
        true => Err("there is nothing in it; leave the option out"),
        false => Ok(text.to_owned()),
    }
}

fn source(text: &str) -> Result<String, &'static str> {
    text.parse::<Origin>().map(|_| text.to_owned())
}

fn address_of_record(text: &str) -> Result<String, &'static str> {
    canonical(text)
        .map(|_| text.to_owned())
        .ok_or("write USER@DOMAIN, as the list has it")
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    match &args.action {
        Action::List(args) => list(args),
        Action::Show(args) => show(args),
        Action::Remove(args) => remove(args),
    }
}

/// The parameters of a query that are given, each after an `&`.
fn query<const N: usize>(parameters: [(&str, &Option<String>); N]) -> String {
    let given = parameters
        .iter()
        .filter_map(|(name, value)| Some((name, value.as_deref()?)));
    given
        .map(|(name, value)| format!("&{name}={}", escaped(value)))
        .collect()
}

impl List {
    /// The filters, as continuation of a query.
    fn filters(&self) -> String {
        query([
            ("user", &self.user),
            ("domain", &self.domain),
            ("contact", &self.contact),
            ("source", &self.source),
            ("user_agent", &self.user_agent),
        ])
    }
}

/// Prints page after page, so that a long list takes no memory here.
fn list(args: &List) -> Result<(), Failure> {
    let server = Running::of(&args.config)?;
    let filters = args.filters();
    let mut left = args.limit.unwrap_or(u64::MAX);
    let mut cursor = String::new();
    let mut printer = Printer::new(args.json);
    loop {
        let limit = left.min(PAGE);
        let path = format!("/api/v1/registrations?limit={limit}{filters}{cursor}");
        let page = server.ask("GET", &path, "")?;
        let rows = page["registrations"].as_array().map_or(&[][..], Vec::as_slice);
        // An address-of-record with more contacts than the limit arrives whole.
        let most = usize::try_from(left).unwrap_or(usize::MAX).min(rows.len());
        let rows = rows.get(..most).unwrap_or_default();
        left -= most as u64;
        if !print_part(&printer.page(rows))? {
            return Ok(());
        }
        match page["next"].as_str() {
            Some(next) if left > 0 => cursor = format!("&cursor={}", escaped(next)),
            _ => break,
        }
    }
    if !printer.has_row && !args.json {
        say("no registrations");
    }
    print(printer.end())
}

fn show(args: &Show) -> Result<(), Failure> {
    let path = format!("/api/v1/registrations/{}", escaped(&args.aor));
    let found = ask(&args.config, "GET", &path, "")?;
    if args.json {
        return print(&format!("{found}\n"));
    }
    let rows = found["registrations"].as_array().into_iter().flatten();
    print(&rows.map(details).collect::<Vec<_>>().join("\n"))
}

fn remove(args: &Remove) -> Result<(), Failure> {
    let chosen = query([("contact", &args.contact), ("source", &args.source)]);
    let path = format!("/api/v1/registrations/{}?{chosen}", escaped(&args.aor));
    let done = ask(&args.config, "DELETE", &path, "")?;
    let contacts = match done["removed"].as_u64() {
        Some(1) => "1 contact".to_owned(),
        number => format!("{} contacts", number.unwrap_or_default()),
    };
    say(&format!(
        "removed {contacts} of {}",
        plain(&word(&done, "address_of_record"))
    ));
    Ok(())
}

/// Text from peers, without control characters that a terminal obeys.
fn plain(text: &str) -> String {
    let one = |c: char| if c.is_control() { '?' } else { c };
    text.chars().map(one).collect()
}

/// The source of a contact, such as `udp 192.0.2.1:5060`.
fn source_of(row: &Value) -> String {
    format!("{} {}", word(row, "transport"), word(row, "source"))
}

/// All fields of a contact, a line each.
fn details(row: &Value) -> String {
    let number = |key: &str| row[key].as_u64().map(|n| n.to_string());
    let left = number("left_s").unwrap_or_default();
    let lines = [
        ("contact", Some(word(row, "contact"))),
        ("source", Some(source_of(row))),
        ("user agent", row["user_agent"].as_str().map(str::to_owned)),
        (
            "expires",
            number("expires_unix_s").map(|end| format!("{end} (Unix time), in {left} s")),
        ),
        ("q", Some(row["q"].to_string())),
        ("call-id", Some(word(row, "call_id"))),
        ("cseq", number("cseq")),
        ("instance", row["instance"].as_str().map(str::to_owned)),
        ("reg-id", number("reg_id")),
        ("path", row["path"].as_str().map(str::to_owned)),
        ("ping", row["ping"].as_str().map(str::to_owned)),
    ];
    let known = lines.into_iter().filter_map(|(name, value)| Some((name, value?)));
    known
        .map(|(name, value)| format!("{name:<10}  {}\n", plain(&value)))
        .collect()
}

/// Prints a list page by page: as an array, or as a table whose columns grow if a page needs it.
struct Printer {
    json: bool,
    is_begun: bool,
    has_row: bool,
    widths: [usize; COLUMNS],
}

impl Printer {
    fn new(json: bool) -> Self {
        Self {
            json,
            is_begun: false,
            has_row: false,
            widths: HEAD.map(str::len),
        }
    }

    fn page(&mut self, rows: &[Value]) -> String {
        let had_row = self.has_row;
        self.has_row |= !rows.is_empty();
        if self.json {
            let first = !std::mem::replace(&mut self.is_begun, true);
            let mut text = String::from(if first { "[" } else { "" });
            for (number, row) in rows.iter().enumerate() {
                let comma = if had_row || number > 0 { "," } else { "" };
                text.push_str(&format!("{comma}{row}"));
            }
            return text;
        }
        let head = HEAD.map(str::to_owned);
        let lines: Vec<[String; COLUMNS]> = (self.has_row && !had_row)
            .then_some(head)
            .into_iter()
            .chain(rows.iter().map(cells))
            .collect();
        for line in &lines {
            for (width, cell) in self.widths.iter_mut().zip(line) {
                *width = cell.chars().count().max(*width);
            }
        }
        lines.iter().map(|line| self.line(line)).collect()
    }

    fn line(&self, cells: &[String; COLUMNS]) -> String {
        let padded = cells
            .iter()
            .zip(self.widths)
            .map(|(cell, width)| format!("{cell:<width$}"));
        let line = padded.collect::<Vec<_>>().join("  ");
        format!("{}\n", line.trim_end())
    }

    fn end(&self) -> &'static str {
        if self.json { "]\n" } else { "" }
    }
}

fn cells(row: &Value) -> [String; COLUMNS] {
    [
        word(row, "address_of_record"),
        word(row, "contact"),
        source_of(row),
        match (row["left_s"].as_u64().unwrap_or_default(), row["ping"].as_str()) {
            (left, Some("lost")) => format!("{left} s, lost"),
            (left, _) => format!("{left} s"),
        },
        word(row, "user_agent"),
    ]
    .map(|cell| plain(&cell))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn row(user: &str, user_agent: Option<&str>) -> Value {
        json!({
            "address_of_record": format!("{user}@example.com"), "contact": format!("sip:{user}@192.0.2.7"),
            "source": "192.0.2.7:5060", "transport": "udp", "user_agent": user_agent, "left_s": 60,
            "expires_unix_s": 2_000_000_000, "call_id": "c1", "cseq": 7, "q": 0.5,
            "instance": null, "reg_id": 1, "path": null,
        })
    }

    #[test]
    fn a_table_has_a_head_once_and_columns_that_grow() {
        let mut printer = Printer::new(false);
        assert_eq!(printer.page(&[]), "", "a head over nothing says nothing");
        let first = printer.page(&[row("bob", Some("Phone 1\u{1b}[2J"))]);
        let expected = "\
ADDRESS-OF-RECORD  CONTACT            SOURCE              LEFT  USER-AGENT
bob@example.com    sip:bob@192.0.2.7  udp 192.0.2.7:5060  60 s  Phone 1?[2J
";
        assert_eq!(first, expected);
        let second = printer.page(&[row("carol-the-second", None), row("d", None)]);
        let expected = "\
carol-the-second@example.com  sip:carol-the-second@192.0.2.7  udp 192.0.2.7:5060  60 s
d@example.com                 sip:d@192.0.2.7                 udp 192.0.2.7:5060  60 s
";
        assert_eq!(second, expected);
        assert_eq!((printer.page(&[]).as_str(), printer.end()), ("", ""));
    }

    #[test]
    fn an_array_is_whole_however_it_comes() {
        for pages in [vec![0], vec![0, 2, 0, 1], vec![1, 1], vec![3]] {
            let mut printer = Printer::new(true);
            let text: String = pages
                .iter()
                .map(|count| printer.page(&vec![row("bob", None); *count]))
                .collect();
            let all: Vec<Value> = serde_json::from_str(&(text + printer.end())).expect("JSON");
            assert_eq!(all, vec![row("bob", None); pages.iter().sum()], "{pages:?}");
        }
    }

    #[test]
    fn what_is_not_known_is_left_out_of_the_details() {
        let expected = "\
contact     sip:bob@192.0.2.7
source      udp 192.0.2.7:5060
expires     2000000000 (Unix time), in 60 s
q           0.5
call-id     c1
cseq        7
reg-id      1
";
        assert_eq!(details(&row("bob", None)), expected);
    }

    #[test]
    fn filters_are_a_query() {
        let list = List {
            user: Some("bob&x".to_owned()),
            domain: None,
            contact: None,
            source: Some("192.0.2.0/24".to_owned()),
            user_agent: Some("Phone 1".to_owned()),
            limit: None,
            json: false,
            config: ConfigOption { config: None },
        };
        assert_eq!(
            list.filters(),
            "&user=bob%26x&source=192.0.2.0%2F24&user_agent=Phone%201"
        );
    }

    #[test]
    fn wrong_words_are_refused() {
        assert!(source("example.com").is_err() && source("192.0.2.0/24").is_ok());
        assert!(address_of_record("bob").is_err() && address_of_record("bob@x").is_ok());
        assert!(filled("").is_err() && filled("a").is_ok());
    }
}

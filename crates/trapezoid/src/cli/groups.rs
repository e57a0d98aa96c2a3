//! `trapezoid groups list|drain|enable`: commands to the running server, by its admin address.

use clap::Subcommand;
use serde_json::{Value, json};

use super::running::{List, ask, escaped, word};
use super::{ConfigOption, Failure, print, say};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: GroupsAction,
}

#[derive(Debug, Subcommand)]
enum GroupsAction {
    /// List the groups of next hops, their members and how these are.
    List(List),
    /// Give a member no new requests; those that it has go on.
    Drain(Change),
    /// Give a drained member requests again.
    Enable(Change),
}

#[derive(Debug, clap::Args)]
struct Change {
    /// Name of the group.
    #[arg(value_name = "GROUP")]
    group: String,
    /// URI of the member, as the configuration has it.
    #[arg(value_name = "URI")]
    member: String,
    #[command(flatten)]
    config: ConfigOption,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    match &args.action {
        GroupsAction::List(args) => list(args),
        GroupsAction::Drain(args) => change(args, "drain"),
        GroupsAction::Enable(args) => change(args, "enable"),
    }
}

fn list(args: &List) -> Result<(), Failure> {
    let answer = ask(&args.config, "GET", "/api/v1/groups", "")?;
    let groups = &answer["groups"];
    if args.json {
        return print(&format!("{groups}\n"));
    }
    if groups.as_array().is_none_or(Vec::is_empty) {
        say("no groups");
        return Ok(());
    }
    print(&table(groups))
}

fn change(args: &Change, what: &str) -> Result<(), Failure> {
    let path = format!("/api/v1/groups/{}/{what}", escaped(&args.group));
    let body = json!({ "member": args.member }).to_string();
    let done = ask(&args.config, "POST", &path, &body)?;
    let member = &done["member"];
    say(&format!(
        "{} of group {} is {}",
        word(member, "uri"),
        args.group,
        word(member, "state")
    ));
    Ok(())
}

/// A table with a line for each member: group, algorithm, URI, state, weight, priority, failures.
fn table(groups: &Value) -> String {
    let mut rows = vec![
        [
            "GROUP",
            "ALGORITHM",
            "MEMBER",
            "STATE",
            "WEIGHT",
            "PRIORITY",
            "FAILURES",
        ]
        .map(str::to_owned),
    ];
    for group in groups.as_array().into_iter().flatten() {
        for member in group["members"].as_array().into_iter().flatten() {
            let number = |key: &str| member[key].as_u64().unwrap_or_default().to_string();
            rows.push([
                word(group, "name"),
                word(group, "algorithm"),
                word(member, "uri"),
                word(member, "state"),
                number("weight"),
                number("priority"),
                number("failures"),
            ]);
        }
    }
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..7).map(width).collect();
    let line = |row: &[String; 7]| {
        let cells = row
            .iter()
            .zip(&widths)
            .enumerate()
            .map(|(column, (cell, width))| match column {
                0..4 => format!("{cell:<width$}"),
                _ => format!("{cell:>width$}"),
            });
        format!("{}\n", cells.collect::<Vec<_>>().join("  "))
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_a_line_for_each_member() {
        let groups = json!([{ "name": "carriers", "algorithm": "weighted", "members": [
            { "uri": "sip:gw1.example.net", "state": "up", "weight": 10, "priority": 0, "failures": 3 },
            { "uri": "sip:b", "state": "drained", "weight": 0, "priority": 0, "failures": 12345 },
        ] }]);
        let expected = "\
GROUP     ALGORITHM  MEMBER               STATE    WEIGHT  PRIORITY  FAILURES
carriers  weighted   sip:gw1.example.net  up           10         0         3
carriers  weighted   sip:b                drained       0         0     12345
";
        assert_eq!(table(&groups), expected);
        assert_eq!(table(&json!([])).lines().count(), 1);
    }
}

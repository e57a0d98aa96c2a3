//! `trapezoid bans list|add|lift`: commands to the running server, by its admin address.

use std::time::Duration;

use clap::Subcommand;
use serde_json::{Value, json};
use sip_core::admission::Source;

use super::running::{List, ask};
use super::{ConfigOption, Failure, duration, print, say};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: BansAction,
}

#[derive(Debug, Subcommand)]
enum BansAction {
    /// List the sources that are banned.
    List(List),
    /// Ban a source: an address of IPv4, or of IPv6 its network of 64 bits.
    Add(Add),
    /// Lift a ban, and forget what the source did before.
    Lift(Lift),
}

#[derive(Debug, clap::Args)]
struct Add {
    /// An address of the source.
    #[arg(value_name = "ADDRESS", value_parser = source)]
    source: Source,
    /// How long, as `90s`, `30m`, `12h` or `7d`; without it until the ban is lifted.
    #[arg(long = "for", value_name = "TIME", value_parser = length)]
    length: Option<Duration>,
    /// Why, for the readers of the list.
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,
    #[command(flatten)]
    config: ConfigOption,
}

#[derive(Debug, clap::Args)]
struct Lift {
    /// An address of the source.
    #[arg(value_name = "ADDRESS", value_parser = source)]
    source: Source,
    #[command(flatten)]
    config: ConfigOption,
}

fn source(text: &str) -> Result<Source, String> {
    let remedy = "write an address, as 192.0.2.66 or 2001:db8::1";
    text.parse().map_err(|_| remedy.to_owned())
}

fn length(text: &str) -> Result<Duration, String> {
    let long = [("m", 60), ("h", 3_600), ("d", 86_400)]
        .into_iter()
        .find_map(|(unit, seconds)| {
            let number: u64 = text.strip_suffix(unit)?.parse().ok()?;
            Some(Duration::from_secs(number.checked_mul(seconds)?))
        });
    let found = long.or_else(|| duration::parse(text));
    let found = found.filter(|length| length.as_secs() > 0 && length.subsec_nanos() == 0);
    found.ok_or_else(|| "write a number of whole seconds and a unit, as 90s, 30m, 12h or 7d".to_owned())
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    match &args.action {
        BansAction::List(args) => list(args),
        BansAction::Add(args) => {
            let seconds = args.length.map(|length| length.as_secs());
            let mut body = json!({ "source": args.source.to_string(), "reason": args.reason });
            if let (Some(seconds), Some(body)) = (seconds, body.as_object_mut()) {
                body.insert("seconds".to_owned(), seconds.into());
            }
            let done = ask(&args.config, "POST", "/api/v1/bans", &body.to_string())?;
            say(&format!("banned {}", line(&done["ban"])));
            Ok(())
        }
        BansAction::Lift(args) => {
            // The address identifies the network as well, and needs no escapes.
            let path = format!("/api/v1/bans/{}", args.source.address());
            ask(&args.config, "DELETE", &path, "")?;
            say(&format!("lifted the ban of {}", args.source));
            Ok(())
        }
    }
}

fn list(args: &List) -> Result<(), Failure> {
    let answer = ask(&args.config, "GET", "/api/v1/bans", "")?;
    if args.json {
        return print(&format!("{}\n", answer["bans"]));
    }
    let bans = answer["bans"].as_array().map_or(&[][..], Vec::as_slice);
    if bans.is_empty() {
        say("no bans");
    }
    print(
        &bans
            .iter()
            .map(|ban| format!("{}\n", line(ban)))
            .collect::<String>(),
    )
}

/// One ban as a line of text.
fn line(ban: &Value) -> String {
    let text = |key: &str| ban[key].as_str().unwrap_or_default().to_owned();
    let until = match ban["left_s"].as_u64() {
        Some(seconds) => format!("for {seconds} s more"),
        None => "until it is lifted".to_owned(),
    };
    let mut line = format!("{} {until}", text("source"));
    if ban["strikes"].as_u64().is_some_and(|strikes| strikes > 1) {
        line.push_str(&format!(", its ban number {}", ban["strikes"]));
    }
    if text("by") == "hand" {
        line.push_str(", by hand");
    }
    let reason = text("reason");
    if !reason.is_empty() {
        line.push_str(&format!(": {reason}"));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_have_units() {
        for (text, seconds) in [
            ("90s", Some(90)),
            ("30m", Some(1_800)),
            ("12h", Some(43_200)),
            ("7d", Some(604_800)),
            ("1500ms", None),
            ("0s", None),
            ("5", None),
            ("h", None),
            ("-1h", None),
        ] {
            assert_eq!(length(text).ok().map(|l| l.as_secs()), seconds, "{text}");
        }
    }

    #[test]
    fn bans_are_written_in_words() {
        let ban = json!({ "source": "192.0.2.66", "left_s": 60, "strikes": 1, "by": "failures", "reason": "12 failed" });
        assert_eq!(line(&ban), "192.0.2.66 for 60 s more: 12 failed");
        let ban =
            json!({ "source": "2001:db8::/64", "left_s": null, "strikes": 3, "by": "hand", "reason": "" });
        assert_eq!(
            line(&ban),
            "2001:db8::/64 until it is lifted, its ban number 3, by hand"
        );
    }
}

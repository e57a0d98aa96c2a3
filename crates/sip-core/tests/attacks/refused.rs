//! Which refusals there are, and that each has a scene in which a forged source address provokes it.
//!
//! The bound of each scene is checked in [`crate::amplification`]. The statuses are read from the source, where most stand
//! as constants and the rest where they are used: so a new one needs a scene, too.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use sip_core::config::Config;
use sip_core::dispatcher::Distribution;

use crate::amplification::{REFUSED, REFUSED_LATER, Tally, URI, callees, open, own_call, refuse, short};
use crate::common::{Bench, all_transports, config, relay};
use crate::forks::{group, grouped};

/// Statuses that no forged source address provokes, and why.
const NOT_PROVOKED: [(&str, &str); 2] = [
    ("100 Trying", "an INVITE whose source is not proved gets none"),
    (
        "504 Server Time-out",
        "follows credentials for a challenge that was received",
    ),
];

/// No source needs credentials.
fn opened(edit: impl FnOnce(&mut Config)) -> Bench {
    let mut config = config();
    open(&mut config);
    edit(&mut config);
    Bench::new(&config)
}

fn registering(extra: &str) -> String {
    short("REGISTER", "sip:example.com", extra)
}

/// To is no user of the domain in the Request-URI.
pub(crate) fn not_found(tally: &mut Tally) -> Bench {
    let mut bench = opened(|_| {});
    tally.forge(&mut bench, &registering("").replace(URI, "sip:a@b"));
    bench
}

/// An edge proxy that does no outbound stands before this server.
pub(crate) fn first_hop(tally: &mut Tally) -> Bench {
    let mut bench = opened(|_| {});
    let contact = "<sip:a@b>;+sip.instance=\"<u>\";reg-id=1";
    let extra = format!("Via: SIP/2.0/UDP b\nSupported: outbound\nContact: {contact}\n");
    tally.forge(&mut bench, &registering(&extra));
    bench
}

pub(crate) fn path(tally: &mut Tally) -> Bench {
    let mut bench = opened(|_| {});
    tally.forge(&mut bench, &registering("Contact: <sip:a@b>\nPath: <sip:b;lr>\n"));
    bench
}

/// Of these only contacts with TLS count that came by UDP.
pub(crate) fn new_addresses(tally: &mut Tally) -> Bench {
    let mut bench = opened(|config| {
        config.limits.contacts_per_aor = 1;
        config.destinations.new_per_hour = 1;
    });
    for host in ["b", "c"] {
        tally.forge(&mut bench, &registering(&format!("Contact: <sips:a@{host}>\n")));
    }
    bench
}

pub(crate) fn out_of_order(tally: &mut Tally) -> Bench {
    let mut bench = opened(|_| {});
    let text = registering("Contact: <sip:a@b>\n");
    tally.forge(&mut bench, &text.replace("CSeq: 1", "CSeq: 2"));
    tally.forge(&mut bench, &text);
    bench
}

/// No room for another registration.
pub(crate) fn full(tally: &mut Tally) -> Bench {
    let mut bench = opened(|config| config.limits.location_bytes = 0);
    tally.forge(&mut bench, &registering("Contact: <sip:a@b>\n"));
    assert_eq!(bench.counters().limited_location, 1);
    bench
}

/// A request in the attacker's own call leads to the loopback.
pub(crate) fn destination(tally: &mut Tally) -> Bench {
    let (mut bench, route) = own_call();
    let text = callees("BYE", "x", &route).replacen("sip:alice@192.0.2.10 ", "sip:alice@127.0.0.1 ", 1);
    tally.forge(&mut bench, &text);
    bench
}

/// SIPS by UDP: the 480 has a Warning.
pub(crate) fn sips(tally: &mut Tally) -> Bench {
    let mut bench = opened(|config| config.listeners = all_transports().listeners);
    let sent = tally.forge(&mut bench, &short("INVITE", "sips:bob@example.com", ""));
    assert!(
        sent.iter().any(|sent| !sent.header("Warning").is_empty()),
        "{sent:?}"
    );
    bench
}

/// The host of the next hop has no address.
pub(crate) fn next_hop(tally: &mut Tally) -> Bench {
    let mut bench = opened(|config| config.routes = vec![relay("sip:gw.example")]);
    tally.forge(&mut bench, &short("MESSAGE", URI, ""));
    tally.count(&bench.serve(&[]).1);
    bench
}

/// All listeners are IPv4.
pub(crate) fn no_listener(tally: &mut Tally) -> Bench {
    let mut bench = opened(|config| config.routes = vec![relay("sip:[2001:db8::20]")]);
    tally.forge(&mut bench, &short("MESSAGE", URI, ""));
    bench
}

pub(crate) fn no_member(tally: &mut Tally) -> Bench {
    let gateways = group(Distribution::RoundRobin, 1);
    gateways.members[0].health.set_drained(true);
    let mut bench = Bench::new(&grouped(gateways));
    tally.forge(&mut bench, &short("MESSAGE", URI, ""));
    bench
}

/// What this server says of itself in status lines, as `404 Not Found`. 400 is left out: its reason phrases are many,
/// and the parser's.
fn statuses() -> BTreeSet<String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = BTreeSet::new();
    literals(&source, &mut found);
    let rejections = std::fs::read_to_string(source.join("registrar/response.rs")).unwrap();
    let (codes, reasons) = (arms(&rejections, "status"), arms(&rejections, "reason"));
    assert!(codes.keys().eq(reasons.keys()), "{codes:?} {reasons:?}");
    let lines = codes
        .iter()
        .map(|(name, code)| format!("{code} {}", reasons[name]));
    found.extend(lines.filter(|line| !line.starts_with("400 ")));
    found
}

/// Adds the `Status::new(404, "Not Found")` of all files below a directory.
fn literals(directory: &Path, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            literals(&path, found);
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let words: Vec<&str> = text.split_whitespace().collect();
        let text = words.join(" ");
        let literals = ["Status::new(", "Self::new("].map(|call| text.split(call).skip(1));
        for literal in literals.into_iter().flatten() {
            if let Some((code, rest)) = literal.split_once(", \"")
                && code.bytes().all(|c| c.is_ascii_digit())
            {
                let reason = rest.split('"').next().unwrap();
                found.insert(format!("{code} {reason}"));
            }
        }
    }
}

/// What a function of `Rejection` has for each variant.
fn arms(text: &str, function: &str) -> BTreeMap<String, String> {
    let body = text.split_once(&format!("fn {function}(")).unwrap().1;
    let body = body.split_once("\n    }\n").unwrap().0;
    let arms = body.lines().filter_map(|line| line.split_once(" => "));
    arms.flat_map(|(variants, value)| {
        let value = value.trim_end_matches(',').trim_matches('"').to_owned();
        let name = |variant: &str| {
            let name = variant.trim().trim_start_matches("Self::");
            name.split('(').next().unwrap().to_owned()
        };
        let names: Vec<String> = variants.split(" | ").map(name).collect();
        names.into_iter().map(move |name| (name, value.clone()))
    })
    .collect()
}

#[test]
fn each_status_of_ours_has_its_scene() {
    let mut provoked: BTreeSet<String> = REFUSED.into_iter().map(|refused| refuse(refused).0).collect();
    provoked.extend(REFUSED_LATER.iter().map(|(line, _)| (*line).to_owned()));
    let made = statuses();
    for status in &made {
        let is_provoked = provoked.contains(&format!("SIP/2.0 {status}"));
        let why_not = NOT_PROVOKED.iter().find(|(known, _)| known == status);
        assert_ne!(
            is_provoked,
            why_not.is_some(),
            "{status} needs a scene in REFUSED or REFUSED_LATER, or a reason in NOT_PROVOKED: {why_not:?}"
        );
    }
    // Those that are read from the source are all that there are.
    for (line, _) in REFUSED_LATER {
        assert!(
            made.contains(&line["SIP/2.0 ".len()..]),
            "{line} stands nowhere in the source"
        );
    }
    for (status, why) in NOT_PROVOKED {
        assert!(
            made.contains(status),
            "{status} ({why}) stands nowhere in the source"
        );
    }
}

//! What a stranger may not reach: somebody by a forged Route, anybody with another's credentials;
//! and he may not have a server send more, to an address that has proved nothing, than came from
//! there. And whoever it is uses each credential once.

use std::collections::{BTreeMap, BTreeSet};

use super::super::node::NodeId;
use super::super::scenario::{AuthPlan, Scenario};
use super::super::stranger::{is_from_his_own_address, is_strangers};
use super::Case;
use crate::checker::Violation;
use crate::clock::Micros;
use crate::message::{View, param};
use crate::trace::Sent;

/// Bytes that may go to an unproven source for each that came.
const MOST_BYTES: usize = 3;

pub(super) fn check(case: &Case<'_>) -> Vec<Violation> {
    let mut found = credentials_once(case);
    if let Some(stranger) = case.scenario.stranger_node() {
        found.extend(nothing_through(case, stranger));
        for server in 0..case.scenario.servers.len() {
            found.extend(amplification(case, stranger, server));
        }
    }
    found
}

/// Forged routes lead nowhere, and credentials are good for who has them.
fn nothing_through(case: &Case<'_>, stranger: NodeId) -> Vec<Violation> {
    let servers = case.scenario.servers.len();
    let mut found = Vec::new();
    // Which server he sent a request to, by its branch.
    let mut asked: BTreeMap<&str, NodeId> = BTreeMap::new();
    for sent in &case.log.sent {
        let facts = &sent.facts;
        if sent.from == stranger
            && let Some(to) = sent.to
        {
            asked.insert(&facts.branch, to);
        }
        if sent.from >= servers {
            continue;
        }
        if facts.status.is_none()
            && let Some(what) = passes(case.scenario, sent, &asked)
        {
            found.push(Violation::new("open relay", None, what));
        }
        let borrowed = facts.status == Some(200) && facts.method == "REGISTER";
        if borrowed && sent.to == Some(stranger) && is_from_his_own_address(&facts.branch) {
            let asks = case.scenario.servers[sent.from].auth != AuthPlan::Off;
            if asks {
                let what = format!("S{} registers what a stranger asks for", sent.from);
                found.push(Violation::new("credential of another", None, what));
            }
        }
    }
    found
}

/// What a request that a server sends has of the stranger's and must not: where its method needs
/// credentials at the server that he sent it to, none of his passes; and his MESSAGEs, whose Route he
/// made up and whose Request-URI is of no domain, pass nowhere.
fn passes(scenario: &Scenario, sent: &Sent, asked: &BTreeMap<&str, NodeId>) -> Option<String> {
    let view = View::new(&sent.text);
    let branches = view.all("Via").map(|via| param(via, "branch"));
    let his = branches.into_iter().find(|branch| is_strangers(branch))?;
    let &first = asked.get(his)?;
    let method = sent.facts.method.as_str();
    // In the name of who has the credentials they may be the first to come; then they are used up
    // (`credential twice`).
    let is_judged = method == "MESSAGE"
        || is_from_his_own_address(his) && needs_credentials(scenario, first).contains(&method);
    is_judged.then(|| {
        format!(
            "S{} relays {method} {his} of a stranger, who sent it to S{first}",
            sent.from
        )
    })
}

/// The methods for which a server asks everybody but other servers for credentials.
fn needs_credentials(scenario: &Scenario, server: NodeId) -> &'static [&'static str] {
    match scenario.servers[server].auth {
        _ if !scenario.homes.contains(&server) => &[],
        AuthPlan::Off => &[],
        AuthPlan::Calls => &["REGISTER", "INVITE"],
        AuthPlan::ByeToo => &["REGISTER", "INVITE", "BYE"],
    }
}

/// Of each server, from and to the stranger's own address: never more datagrams than came by then,
/// nor more than some times their bytes. What needs no credentials is let in as the configuration
/// wants it, and is not counted.
fn amplification(case: &Case<'_>, stranger: NodeId, server: usize) -> Option<Violation> {
    let scenario = case.scenario;
    let asked = needs_credentials(scenario, server);
    let mut course: Vec<(Micros, bool, usize)> = Vec::new();
    let counted = |sent: &&Sent| asked.contains(&&*sent.facts.method);
    for sent in case.log.sent.iter().filter(counted) {
        let len = sent.text.len();
        if sent.from == stranger && sent.to == Some(server) && !is_forged(sent) {
            course.extend(sent.arrivals.iter().map(|at| (*at, false, len)));
        } else if sent.from == server && sent.to == Some(stranger) {
            course.push((sent.at, true, len));
        }
    }
    course.sort_unstable();
    let (mut datagrams, mut bytes) = (0usize, 0usize);
    for (at, out, len) in course {
        if !out {
            (datagrams, bytes) = (datagrams + 1, bytes + MOST_BYTES * len);
            continue;
        }
        match (datagrams.checked_sub(1), bytes.checked_sub(len)) {
            (Some(fewer), Some(less)) => (datagrams, bytes) = (fewer, less),
            _ => {
                let what = format!("S{server} sends an unproven source more than it asked for, at {at} µs");
                return Some(Violation::new("amplification", None, what));
            }
        }
    }
    None
}

fn is_forged(sent: &Sent) -> bool {
    !is_from_his_own_address(&sent.facts.branch) && sent.facts.status.is_none()
}

/// Nonce and count.
type Credential<'a> = (NodeId, &'a str, &'a str);

/// Each count of a nonce serves one request: of those that came with it, by branch, no more than
/// one is let in (RFC 7616 §3.3, §5.5).
fn credentials_once(case: &Case<'_>) -> Vec<Violation> {
    let servers = case.scenario.servers.len();
    let mut asked: BTreeMap<(NodeId, &str), Credential<'_>> = BTreeMap::new();
    let mut served: BTreeMap<Credential<'_>, BTreeSet<&str>> = BTreeMap::new();
    for sent in &case.log.sent {
        let view = View::new(&sent.text);
        let is_asked = matches!(sent.facts.method.as_str(), "REGISTER" | "INVITE" | "BYE");
        match (sent.facts.status, sent.to) {
            (None, Some(to)) if to < servers && is_asked && sent.from >= servers => {
                let value = match sent.facts.method.as_str() {
                    "REGISTER" => view.get("Authorization"),
                    _ => view.get("Proxy-Authorization"),
                };
                if let Some(nonce) = quoted(value, "nonce") {
                    let count = value.rsplit("nc=").next().unwrap_or_default();
                    asked.insert((to, &sent.facts.branch), (to, nonce, count));
                }
            }
            _ => {}
        }
        if sent.from >= servers {
            continue;
        }
        // Let in is what goes on, and what is registered.
        let second = view.all("Via").nth(1);
        let branch = match (sent.facts.status, second) {
            (None, Some(via)) if matches!(sent.facts.method.as_str(), "INVITE" | "BYE") => {
                param(via, "branch")
            }
            (Some(200), _) if sent.facts.method == "REGISTER" => sent.facts.branch.as_str(),
            _ => continue,
        };
        if let Some((key, credential)) = asked.get_key_value(&(sent.from, branch)) {
            served.entry(*credential).or_default().insert(key.1);
        }
    }
    // A server that starts with its clock set back takes what it used before for new.
    let forgets =
        |server: NodeId| case.scenario.clock_jumps(server) && case.scenario.crashes(server).next().is_some();
    let twice = served
        .into_iter()
        .filter(|((server, ..), branches)| branches.len() > 1 && !forgets(*server));
    twice
        .map(|((server, nonce, count), branches)| {
            let by_whom = if branches.iter().any(|b| is_strangers(b)) {
                "a stranger"
            } else {
                "a phone"
            };
            let what = format!(
                "S{server} lets nonce {nonce} with count {count} in twice, for {by_whom}: {branches:?}"
            );
            Violation::new("credential twice", None, what)
        })
        .collect()
}

fn quoted<'a>(value: &'a str, name: &str) -> Option<&'a str> {
    let after = value.split_once(&format!("{name}=\""))?.1;
    after.split('"').next()
}

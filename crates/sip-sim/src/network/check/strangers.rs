//! Rules about what the stranger may not achieve. A forged Route must reach no phone, and credentials of
//! another party no user. A contact must lead nowhere where no rule leads. A server must not send more to an
//! unproven address than came from there. Each credential is used once, regardless of its sender.

use std::collections::{BTreeMap, BTreeSet};

use sip_core::timer::wheel::TICK_US;

use super::super::lure;
use super::super::node::NodeId;
use super::super::scenario::{AuthPlan, Scenario};
use super::super::stranger::{is_from_his_own_address, is_strangers};
use super::{Case, Violation};
use crate::clock::{MS, Micros, SECOND};
use crate::message::{View, param};
use crate::trace::Sent;

/// Most bytes that may go to an unproven source, for each byte that came.
const MOST_BYTES: usize = 3;
/// Longest time of a request in a look-up of its credentials, and on the way to another worker before that.
const LONGEST_LOOK_UP: Micros = 3 * SECOND + TICK_US + 2 * MS;
/// Longest further time of a REGISTER until it is on disk.
const LONGEST_SAVE: Micros = 5 * SECOND + TICK_US;

pub(super) fn check(case: &Case<'_>) -> Vec<Violation> {
    let mut found = credentials_once(case);
    if let Some(stranger) = case.scenario.stranger_node() {
        found.extend(nothing_through(case, stranger));
        found.extend(contacts(case, stranger));
        for server in 0..case.scenario.servers.len() {
            found.extend(amplification(case, stranger, server));
        }
    }
    found
}

/// Forged Routes lead nowhere, and credentials serve their owner only.
fn nothing_through(case: &Case<'_>, stranger: NodeId) -> Vec<Violation> {
    let servers = case.scenario.servers.len();
    let mut found = Vec::new();
    // The servers to which the stranger sent requests, by branch.
    let mut asked: BTreeMap<&str, NodeId> = BTreeMap::new();
    for sent in &case.log.sent {
        let facts = &sent.facts;
        if sent.from == stranger
            && let Some(to) = sent.to
        {
            // A request that seems to come from a server has the stranger's Via below.
            let vias = View::new(&sent.text);
            asked.extend(vias.all("Via").map(|via| (param(via, "branch"), to)));
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
        let is_for_stranger = sent.to == Some(stranger) && is_from_his_own_address(&facts.branch);
        if borrowed && is_for_stranger && case.scenario.challenges(sent.from) {
            let what = format!("S{} registers what a stranger asks for", sent.from);
            found.push(Violation::new("credential of another", None, what));
        }
    }
    found
}

/// Describes a request of the stranger that a server forwards although it must not. If its method needs
/// credentials at the server to which it was sent, the stranger's must not pass. A MESSAGE of the stranger,
/// which has a forged Route and a Request-URI of no domain, must never pass.
fn passes(scenario: &Scenario, sent: &Sent, asked: &BTreeMap<&str, NodeId>) -> Option<String> {
    let view = View::new(&sent.text);
    let mut branches = view.all("Via").map(|via| param(via, "branch"));
    let his = branches.find(|branch| is_strangers(branch))?;
    let &first = asked.get(his)?;
    let method = sent.facts.method.as_str();
    // A copy from the forged address of the credentials' owner may be the first to come. The credentials are
    // then used up (`credential twice`).
    let is_judged = method == "MESSAGE"
        || is_from_his_own_address(his) && needs_credentials(scenario, first).contains(&method);
    is_judged.then(|| {
        format!(
            "S{} relays {method} {his} of a stranger, who sent it to S{first}",
            sent.from
        )
    })
}

/// Judges contacts. Those of the stranger's account lead back to the server or to the gateway, so no call to
/// the account may go on. One may go to the stranger by the connection of the registration, if the server
/// does not yet know that the connection has ended. No server may send itself a request.
fn contacts(case: &Case<'_>, stranger: NodeId) -> Vec<Violation> {
    let servers = case.scenario.servers.len();
    let requests = case.log.sent.iter();
    let requests = requests.filter(|sent| sent.from < servers && sent.facts.status.is_none());
    let wrong = requests.filter(|sent| {
        let view = View::new(&sent.text);
        let mut branches = view.all("Via").map(|via| param(via, "branch"));
        let is_of_lure = branches.any(|branch| branch.starts_with(lure::BRANCH));
        sent.to == Some(sent.from) || (is_of_lure && sent.to != Some(stranger))
    });
    let violation = |sent: &Sent| {
        let line = View::new(&sent.text).first_line();
        let to = match sent.to {
            Some(to) if to == sent.from => "itself".to_owned(),
            Some(to) => format!("node {to}"),
            None => "no node".to_owned(),
        };
        Violation::new("contact", None, format!("S{} sends to {to}: {line}", sent.from))
    };
    wrong.map(violation).collect()
}

/// Methods for which a server challenges every sender except other servers.
fn needs_credentials(scenario: &Scenario, server: NodeId) -> &'static [&'static str] {
    match scenario.servers[server].auth {
        _ if !scenario.challenges(server) => &[],
        AuthPlan::Off => &[],
        AuthPlan::Calls => &["REGISTER", "INVITE"],
        AuthPlan::ByeToo => &["REGISTER", "INVITE", "BYE"],
    }
}

/// A request of the stranger's at a server: branch and method.
type Asked<'a> = (&'a str, &'a str);

/// Events of one request: datagrams that came, and responses, by time.
#[derive(Default)]
struct Course {
    came: Vec<(Micros, usize)>,
    answers: Vec<(Micros, usize)>,
}

/// Judges amplification at each server: requests of the stranger have the stranger's own address, or a forged
/// one whose owner has asked for nothing. For each datagram that came, at most one may go there. It must
/// follow soon, and have no more than [`MOST_BYTES`] times the bytes. A repetition needs another copy of the
/// request.
///
/// Not counted are requests that need no credentials, which the configuration admits. Nor is an INVITE with
/// credentials from the forged address of their owner, who has answered a challenge that was sent there
/// (docs/attacks.md).
fn amplification(case: &Case<'_>, stranger: NodeId, server: NodeId) -> Vec<Violation> {
    let asked = needs_credentials(case.scenario, server);
    let mut courses: BTreeMap<Asked<'_>, Course> = BTreeMap::new();
    for sent in &case.log.sent {
        let facts = &sent.facts;
        let key = (facts.branch.as_str(), facts.method.as_str());
        if !asked.contains(&key.1) || !is_strangers(key.0) {
            continue;
        }
        let len = sent.text.len();
        if sent.from == stranger && sent.to == Some(server) && !is_proved(sent) {
            let came = sent.arrivals.iter().map(|at| (*at, len));
            courses.entry(key).or_default().came.extend(came);
        } else if sent.from == server
            && facts.status.is_some()
            && let Some(course) = courses.get_mut(&key)
        {
            course.answers.push((sent.at, len));
        }
    }
    let too_much = courses.into_iter().filter_map(|(key, course)| {
        let saved = if key.1 == "REGISTER" { LONGEST_SAVE } else { 0 };
        let unasked = unasked(course, LONGEST_LOOK_UP + saved)?;
        Some((key, unasked))
    });
    too_much
        .map(|((branch, method), (at, len))| {
            let what = format!(
                "S{server} sends {len} bytes to an unproven source, for {method} {branch}, at {at} µs: \
                 more than it asked for"
            );
            Violation::new("amplification", None, what)
        })
        .collect()
}

/// The first response for which no datagram came recently, or too short a one; each datagram serves once.
fn unasked(mut course: Course, longest: Micros) -> Option<(Micros, usize)> {
    course.came.sort_unstable();
    course.answers.into_iter().find(|(at, len)| {
        let fits = |(came, bytes): &(Micros, usize)| {
            (came..=&(came + longest)).contains(&at) && *len <= MOST_BYTES * bytes
        };
        let place = course.came.iter().position(fits);
        place.map(|place| course.came.remove(place)).is_none()
    })
}

/// Whether it is an INVITE with credentials from their owner's forged address.
fn is_proved(sent: &Sent) -> bool {
    let own = is_from_his_own_address(&sent.facts.branch);
    !own && sent.facts.method == "INVITE" && sent.facts.credentials
}

/// Identity of a request: branch and Call-ID. (A changed copy may have the branch of its original.)
type Identity<'a> = (&'a str, &'a str);

/// Server, nonce and count.
type Credential<'a> = (NodeId, &'a str, &'a str);

/// Each count of a nonce serves one request: of those with it, at most one is admitted (RFC 7616 §3.3, §5.5).
fn credentials_once(case: &Case<'_>) -> Vec<Violation> {
    let servers = case.scenario.servers.len();
    let mut asked: BTreeMap<(NodeId, Identity<'_>), Credential<'_>> = BTreeMap::new();
    let mut served: BTreeMap<Credential<'_>, BTreeSet<Identity<'_>>> = BTreeMap::new();
    for sent in &case.log.sent {
        let view = View::new(&sent.text);
        let call_id = view.get("Call-ID");
        let is_asked = matches!(sent.facts.method.as_str(), "REGISTER" | "INVITE" | "BYE");
        match (sent.facts.status, sent.to) {
            (None, Some(to)) if to < servers && is_asked && sent.from >= servers => {
                let value = match sent.facts.method.as_str() {
                    "REGISTER" => view.get("Authorization"),
                    _ => view.get("Proxy-Authorization"),
                };
                if let Some(nonce) = quoted(value, "nonce") {
                    let count = value.rsplit("nc=").next().unwrap_or_default();
                    asked.insert((to, (&sent.facts.branch, call_id)), (to, nonce, count));
                }
            }
            _ => {}
        }
        if sent.from >= servers {
            continue;
        }
        // A request counts as admitted if it goes on, or is registered.
        let second = view.all("Via").nth(1);
        let branch = match (sent.facts.status, second) {
            (None, Some(via)) if matches!(sent.facts.method.as_str(), "INVITE" | "BYE") => {
                param(via, "branch")
            }
            (Some(200), _) if sent.facts.method == "REGISTER" => sent.facts.branch.as_str(),
            _ => continue,
        };
        if let Some((key, credential)) = asked.get_key_value(&(sent.from, (branch, call_id))) {
            served.entry(*credential).or_default().insert(key.1);
        }
    }
    // A server that starts with its clock set back takes used credentials for new ones.
    let forgets =
        |server: NodeId| case.scenario.clock_jumps(server) && case.scenario.crashes(server).next().is_some();
    let twice = served
        .into_iter()
        .filter(|((server, ..), branches)| branches.len() > 1 && !forgets(*server));
    twice
        .map(|((server, nonce, count), branches)| {
            let by_whom = if branches
                .iter()
                .any(|(branch, call_id)| is_strangers(branch) || call_id.starts_with("evil-"))
            {
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

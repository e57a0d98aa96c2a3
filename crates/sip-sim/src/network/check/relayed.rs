//! Rules about relaying: a server without state sends each copy on that it gets (RFC 3261 §16.11). A server
//! with state does so for what matches no transaction: the ACK to a 2xx. (For a 2xx, see [`super::hops`].)
//!
//! Only calls over UDP are judged: a message on a connection may be lost with it. A server that was away, or
//! has small bounds, is not judged.

use std::collections::{BTreeMap, BTreeSet};

use super::super::node::NodeId;
use super::super::scenario::{AuthPlan, NetCall, Speaks};
use super::super::stranger::{is_changed_copy, is_strangers};
use super::calls::{OWN_TAG, may_keep};
use super::{Case, Violation};
use crate::message::{View, param};
use crate::trace::Sent;

/// Key of the counts: the server, the branch with which the request came to it, the method, and for a
/// response the status and the tag.
type Kind<'a> = (NodeId, &'a str, &'a str, Option<u16>, &'a str);

/// Numbers of copies that came, and that left.
#[derive(Default)]
struct Balance {
    came: usize,
    left: usize,
}

pub(super) fn check(case: &Case<'_>) -> Vec<Violation> {
    let calls = case.scenario.calls.iter();
    calls
        .filter(|call| is_judged(case, call))
        .flat_map(|call| judge(case, call))
        .collect()
}

/// Whether all messages of a call go by UDP.
fn is_judged(case: &Case<'_>, call: &NetCall) -> bool {
    let scenario = case.scenario;
    let speaks_udp = |phone: usize| scenario.phones[phone].speaks == Speaks::Udp;
    let servers = case.path(call);
    let plans = || servers.iter().map(|server| &scenario.servers[*server]);
    speaks_udp(call.from)
        && scenario.callees(call).all(speaks_udp)
        && plans().all(|plan| !plan.tight && plan.next.is_none_or(|next| !next.tcp))
        && servers
            .iter()
            .all(|server| scenario.crashes(*server).next().is_none())
}

/// Whether a message is the stranger's, although it may have the Call-ID of a call.
fn is_of_stranger(sent: &Sent) -> bool {
    let vias = View::new(&sent.text).all("Via");
    vias.map(|via| param(via, "branch")).any(is_strangers) || is_changed_copy(&sent.text)
}

fn judge(case: &Case<'_>, call: &NetCall) -> Vec<Violation> {
    let servers = case.path(call);
    let sent: Vec<&Sent> = case.of_call(call).filter(|sent| !is_of_stranger(sent)).collect();
    let mut balances: BTreeMap<Kind<'_>, Balance> = BTreeMap::new();
    let mut invites: BTreeSet<(NodeId, &str)> = BTreeSet::new();
    // Requests to which a server itself responded.
    let mut answered: BTreeSet<(NodeId, &str, &str)> = BTreeSet::new();
    for sent in &sent {
        let facts = &sent.facts;
        let second = View::new(&sent.text).all("Via").nth(1);
        let second = second.map(|via| param(via, "branch"));
        let (is_response, tag) = (facts.status.is_some(), &*facts.to_tag);
        for (server, came) in [(Some(sent.from), false), (sent.to, true)] {
            let Some(server) = server.filter(|server| servers.contains(server)) else {
                continue;
            };
            // The second Via of a request that leaves, and of a response that comes, is that of the hop
            // before.
            let branch = if came == is_response {
                second
            } else {
                Some(&*facts.branch)
            };
            let Some(branch) = branch else { continue };
            let method = facts.method.as_str();
            if came && facts.is_request("INVITE") {
                invites.insert((server, branch));
            }
            if !came && is_response && (tag.starts_with(OWN_TAG) || facts.status == Some(100)) {
                answered.insert((server, branch, method));
                continue;
            }
            let tag = if is_response { tag } else { "" };
            let balance = balances
                .entry((server, branch, method, facts.status, tag))
                .or_default();
            if came {
                balance.came += sent.arrivals.len();
            } else {
                balance.left += 1;
            }
        }
    }
    let was_away = case.was_unregistered(call);
    let unlike = balances
        .into_iter()
        .filter(|((server, branch, method, status, _), balance)| {
            let is_to_success = *method == "ACK" && !invites.contains(&(*server, *branch));
            let plan = &case.scenario.servers[*server];
            let of = if *method == "ACK" { "INVITE" } else { *method };
            let is_own = *status == Some(100) || answered.contains(&(*server, *branch, of));
            let is_challenged = *method == "BYE" && plan.auth == AuthPlan::ByeToo;
            // The ACK to a failure is routed anew, and goes nowhere while its phone is not registered.
            let is_astray = *method == "ACK" && was_away;
            let goes_on = is_to_success || !(may_keep(plan) || is_own || is_challenged || is_astray);
            goes_on && balance.came != balance.left
        });
    unlike
        .map(|((server, branch, method, status, _), Balance { came, left })| {
            let status = status.map_or_else(String::new, |status| format!("{status} to "));
            let what =
                format!("S{server} got {came} copies of {status}{method} {branch}, and sent {left} on");
            Violation::new("conservation", Some(call.call), what)
        })
        .collect()
}

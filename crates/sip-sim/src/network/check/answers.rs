//! Responses that a server with state sends as soon as the request comes: to an INVITE (RFC 3261 §17.2.1) and
//! to a CANCEL (§9.2).
//!
//! Judged over UDP, where a message arrives as a whole. A server that lost its memory, or has small bounds,
//! is not judged. Messages from the stranger, or with the branch of one of its copies, are not judged either.

use std::collections::{BTreeMap, BTreeSet};

use super::super::node::NodeId;
use super::super::stranger::{is_changed_copy, is_strangers};
use super::{Case, Violation, is_udp};
use crate::clock::{MS, Micros};
use crate::trace::Sent;

/// Time from worker to worker.
const HAND_OVER: Micros = MS;

/// A transaction: server, sender of the request, branch, method.
type Key<'a> = (NodeId, NodeId, &'a str, &'a str);

pub(super) fn check(case: &Case<'_>) -> Vec<Violation> {
    let scenario = case.scenario;
    let is_judged = |server: NodeId| {
        let plan = scenario.servers.get(server);
        plan.is_some_and(|plan| plan.stateful && !plan.tight) && scenario.crashes(server).next().is_none()
    };
    let sent = || case.log.sent.iter().filter(|sent| is_udp(sent));
    let copied: BTreeSet<&str> = sent()
        .filter(|sent| is_changed_copy(&sent.text))
        .map(|sent| &*sent.facts.branch)
        .collect();
    let mut answers: BTreeMap<Key<'_>, Vec<Micros>> = BTreeMap::new();
    for answer in sent().filter(|sent| sent.facts.status.is_some() && is_judged(sent.from)) {
        let facts = &answer.facts;
        if let Some(to) = answer.to {
            let key = (answer.from, to, &*facts.branch, &*facts.method);
            answers.entry(key).or_default().push(answer.at);
        }
    }
    let mut begun: BTreeSet<Key<'_>> = BTreeSet::new();
    let mut found = Vec::new();
    for request in sent().filter(|sent| sent.facts.status.is_none()) {
        let (facts, branch) = (&request.facts, &*request.facts.branch);
        let Some(to) = request.to.filter(|to| is_judged(*to)) else {
            continue;
        };
        if is_strangers(branch) || copied.contains(branch) || Some(request.from) == scenario.stranger_node() {
            continue;
        }
        let key = (to, request.from, branch, &*facts.method);
        let came = due(request, begun.insert(key));
        let of_it = answers.get(&key).map_or(&[][..], Vec::as_slice);
        let is_answered = |at: &Micros| of_it.iter().any(|answer| (*at..=at + HAND_OVER).contains(answer));
        if let Some(silent) = came.iter().find(|at| !is_answered(at)) {
            let rule = if facts.method == "CANCEL" {
                "CANCEL unanswered"
            } else {
                "no 100"
            };
            let what = format!("S{to} is silent when {branch} comes at {silent} µs");
            found.push(Violation::new(rule, facts.call, what));
        }
    }
    found
}

/// Times at which a request came that needs a response at once: of an INVITE only the first, of a CANCEL
/// each.
fn due(request: &Sent, is_first: bool) -> &[Micros] {
    match request.facts.method.as_str() {
        "INVITE" if is_first => request.arrivals.get(..1).unwrap_or_default(),
        "CANCEL" => request.arrivals.as_slice(),
        _ => &[],
    }
}

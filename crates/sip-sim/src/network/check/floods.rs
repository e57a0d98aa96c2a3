//! Rules about floods. A server with a limit for each source processes no more of a flood than the limit
//! allows. It processes all messages from the address of a server that it trusts.

use std::collections::BTreeMap;

use super::super::node::NodeId;
use super::super::scenario::SourceLimit;
use super::super::stranger::flood;
use super::{Case, Violation};
use crate::clock::{Micros, SECOND};

pub(super) fn check(case: &Case<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for (server, plan) in case.scenario.servers.iter().enumerate() {
        // The counts of a server end with its process.
        let crashes = case.scenario.crashes(server).next().is_some();
        if let Some(limit) = plan.limit.filter(|_| !crashes) {
            let fault = heard(case, server, limit, plan.workers).or_else(|| unheard(case, server));
            found.extend(fault.map(|what| Violation::new("flood", None, format!("S{server} {what}"))));
        }
    }
    found
}

/// Judges the limit: each processed message of a flood has a response, and each worker counts for itself.
fn heard(case: &Case<'_>, server: NodeId, limit: SourceLimit, workers: u16) -> Option<String> {
    let sent = case
        .log
        .sent
        .iter()
        .filter(|sent| sent.from == server && sent.facts.status.is_some());
    let of_flood = sent.filter(|sent| flood(&sent.facts.branch) == Some(false));
    let times: Vec<Micros> = of_flood.map(|sent| sent.at).collect();
    // All messages of one instant count.
    let at_once = |n: &usize| times.get(n + 1) != times.get(*n);
    (0..times.len()).filter(at_once).find_map(|last| {
        let too_many = |first: &usize| {
            let lasts = times[last] - times[*first];
            let filled = u64::from(limit.rate) * lasts / SECOND + 1;
            let most = u64::from(workers) * (u64::from(limit.burst) + filled);
            (last - first + 1) as u64 > most
        };
        let first = (0..=last).find(too_many)?;
        Some(format!(
            "hears {} messages of a flood from {} to {} µs",
            last - first + 1,
            times[first],
            times[last]
        ))
    })
}

/// Judges a trusted server's address: each copy of each message must be processed.
fn unheard(case: &Case<'_>, server: NodeId) -> Option<String> {
    let mut copies: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for sent in &case.log.sent {
        if flood(&sent.facts.branch) != Some(true) {
            continue;
        }
        let (came, answered) = copies.entry(&sent.facts.branch).or_default();
        if sent.facts.status.is_some() && sent.from == server {
            *answered += 1;
        } else if sent.facts.status.is_none() && sent.to == Some(server) {
            *came += sent.arrivals.len();
        }
    }
    let (branch, (came, answered)) = copies
        .into_iter()
        .find(|(_, (came, answered))| came != answered)?;
    Some(format!(
        "answers {answered} of {came} copies of {branch}, in the name of a server"
    ))
}

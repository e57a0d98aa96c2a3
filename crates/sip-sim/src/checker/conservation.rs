//! What a proxy without state gets it sends on, copy for copy; so does one with state for what
//! belongs to no transaction of its own: 2xx to INVITE and their ACK.

use std::collections::BTreeMap;

use super::Case;
use crate::node::NodeId;
use crate::scenario::{CALLEE, PROXY_A, PROXY_B};
use crate::trace::Facts;

/// Kind of message: method, CSeq number, status, and whether it goes toward the callee.
type Kind = (String, u32, Option<u16>, bool);

#[derive(Default)]
struct Balance {
    came: usize,
    left: usize,
}

pub(super) fn check(case: &mut Case<'_>) {
    for node in [PROXY_A, PROXY_B] {
        for (kind, balance) in balances(case, node) {
            if balance.came != balance.left {
                let (method, cseq, status, _) = kind;
                let what = format!(
                    "{} got {} copies of {method} {cseq} {status:?} and sent {} on",
                    case.name(node),
                    balance.came,
                    balance.left
                );
                case.violate("conservation", what);
            }
        }
    }
}

fn balances(case: &Case<'_>, node: NodeId) -> BTreeMap<Kind, Balance> {
    let mut balances: BTreeMap<Kind, Balance> = BTreeMap::new();
    for sent in &case.sent {
        let Some(to) = sent.to else { continue };
        let (came, left) = match (sent.from == node, to == node) {
            (true, false) => (0, 1),
            (false, true) => (sent.arrivals.len(), 0),
            _ => continue,
        };
        if !must_balance(case, node, &sent.facts) {
            continue;
        }
        let facts = &sent.facts;
        let upward = if sent.from == node {
            to > node
        } else {
            sent.from < node
        };
        let kind = (facts.method.clone(), facts.cseq, facts.status, upward);
        let balance = balances.entry(kind).or_default();
        balance.came += came;
        balance.left += left;
    }
    balances
}

fn must_balance(case: &Case<'_>, node: NodeId, facts: &Facts) -> bool {
    let success = facts.status.is_some_and(|s| (200..300).contains(&s));
    let invites = case.scenario.keeps_state(node, "INVITE");
    match facts.method.as_str() {
        "INVITE" if success => true,
        "ACK" if is_to_success(case, facts) => true,
        "INVITE" | "ACK" | "CANCEL" if invites => false,
        "BYE" if case.scenario.keeps_state(node, "BYE") => false,
        // What it answered itself it need not send on: a challenge, a failure.
        _ => !answered_itself(case, node, facts),
    }
}

/// The ACK is to a 2xx: no INVITE has its branch.
fn is_to_success(case: &Case<'_>, facts: &Facts) -> bool {
    !case
        .sent
        .iter()
        .any(|s| s.facts.is_request("INVITE") && s.facts.branch == facts.branch)
}

/// Whether this node made an answer to that request.
fn answered_itself(case: &Case<'_>, node: NodeId, facts: &Facts) -> bool {
    let method = if facts.method == "ACK" {
        "INVITE"
    } else {
        &facts.method
    };
    case.sent.iter().any(|s| {
        s.from == node
            && s.facts.is_final_to(method)
            && s.facts.cseq == facts.cseq
            && !came_from_elsewhere(case, node, &s.facts)
    })
}

fn came_from_elsewhere(case: &Case<'_>, node: NodeId, facts: &Facts) -> bool {
    debug_assert_ne!(node, CALLEE);
    case.sent.iter().any(|s| {
        s.to == Some(node)
            && s.facts.status == facts.status
            && s.facts.method == facts.method
            && s.facts.cseq == facts.cseq
            && s.facts.to_tag == facts.to_tag
    })
}

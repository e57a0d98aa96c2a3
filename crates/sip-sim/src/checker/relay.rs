//! What a node may send on a hop, given what it got.

use super::{Case, is_proxys};
use crate::clock::{MS, Micros};
use crate::node::NodeId;
use crate::scenario::{CALLEE, CALLER, PROXY_A, PROXY_B};
use crate::trace::Sent;

/// A timer of the core may fire this early.
const SLACK: Micros = 2 * MS;

/// When an INVITE is repeated (timer A, RFC 3261 §17.1.1.2), after the first sending.
const INVITE_AGAIN_MS: [u64; 6] = [500, 1_500, 3_500, 7_500, 15_500, 31_500];
/// When other requests and failures are repeated (timers E and G).
const OTHERS_AGAIN_MS: [u64; 10] = [
    500, 1_500, 3_500, 7_500, 11_500, 15_500, 19_500, 23_500, 27_500, 31_500,
];

pub(super) fn check(case: &mut Case<'_>) {
    one_invite_at_the_callee(case);
    for index in 0..case.sent.len() {
        let sent = case.sent[index];
        match sent.facts.status {
            Some(_) => response_follows_request(case, sent, index),
            None => request(case, sent, index),
        }
    }
    for node in [PROXY_A, PROXY_B] {
        for cseq in 1..=case.last_invite() {
            if case.scenario.keeps_state(node, "INVITE") {
                trying_at_once(case, node, cseq);
                invite_rhythm(case, node, cseq);
                failure_rhythm(case, node, cseq);
            }
        }
        other_requests_rhythm(case, node);
    }
}

/// One call, one INVITE transaction at the callee (RFC 3261 §16.6 step 8, §16.11).
fn one_invite_at_the_callee(case: &mut Case<'_>) {
    let mut branches: Vec<&str> = Vec::new();
    for sent in &case.sent {
        if sent.to == Some(CALLEE)
            && sent.facts.is_request("INVITE")
            && !branches.contains(&&*sent.facts.branch)
        {
            branches.push(&sent.facts.branch);
        }
    }
    if branches.len() > 1 {
        let what = format!(
            "{} INVITE transactions go to the callee: {branches:?}",
            branches.len()
        );
        case.violate("second INVITE", what);
    }
}

/// Nobody is answered who did not ask.
fn response_follows_request(case: &mut Case<'_>, sent: &Sent, index: usize) {
    let asked = case.sent[..index].iter().any(|r| {
        r.facts.status.is_none()
            && Some(r.from) == sent.to
            && r.to == Some(sent.from)
            && r.facts.branch == sent.facts.branch
            && r.facts.method == sent.facts.method
            && r.arrivals.first().is_some_and(|at| *at <= sent.at)
    });
    if !asked {
        let what = format!(
            "{} answers {} with {:?} to an {} that never came from there",
            case.name(sent.from),
            sent.to.map_or("?", |to| case.name(to)),
            sent.facts.status,
            sent.facts.method
        );
        case.violate("stray response", what);
    }
}

fn request(case: &mut Case<'_>, sent: &Sent, index: usize) {
    let Some(to) = sent.to else { return };
    let is_proxy = case.scenario.proxy(sent.from).is_some();
    let facts = &sent.facts;
    if is_proxy && facts.vias > 1 {
        let lowered = case.sent[..index].iter().any(|r| {
            r.to == Some(sent.from)
                && r.facts.is_request(&facts.method)
                && r.facts.cseq == facts.cseq
                && r.facts.max_forwards.and_then(|m| m.checked_sub(1)) == facts.max_forwards
        });
        if !lowered {
            let what = format!(
                "{} sends {} on with {:?}",
                case.name(sent.from),
                facts.method,
                facts.max_forwards
            );
            case.violate("Max-Forwards", what);
        }
    }
    if facts.credentials && sent.from == PROXY_A && case.scenario.proxies[0].digest.is_some() {
        case.violate(
            "credentials",
            format!("{} passes credentials for its realm on", case.name(sent.from)),
        );
    }
    let mut earlier = case.sent[..index]
        .iter()
        .filter(|r| r.from == sent.from && r.to == Some(to));
    let invite = |r: &&&Sent| r.facts.is_request("INVITE") && r.facts.cseq == facts.cseq;
    match facts.method.as_str() {
        "CANCEL" => {
            // A proxy that keeps no state by its configuration, but had to for this INVITE, sends
            // a late copy of the CANCEL on once that state is gone: it cannot know better.
            let forgot = facts.vias > 1
                && case.sent[..index].iter().any(|r| {
                    r.facts.is_final_to("INVITE") && r.facts.cseq == facts.cseq && is_proxys(&r.facts.to_tag)
                });
            if !forgot && !earlier.filter(invite).any(|r| r.facts.branch == facts.branch) {
                case.violate(
                    "CANCEL's branch",
                    format!("{} cancels what it did not send", case.name(sent.from)),
                );
            }
        }
        "ACK" => ack(case, sent, to, index),
        _ => {
            let other = earlier.find(|r| {
                r.facts.is_request(&facts.method)
                    && r.facts.cseq == facts.cseq
                    && r.facts.branch != facts.branch
            });
            if other.is_some() {
                let what = format!(
                    "{} repeats {} with another branch",
                    case.name(sent.from),
                    facts.method
                );
                case.violate("branch changed", what);
            }
        }
    }
}

/// An ACK with its INVITE's branch acknowledges a failure that came over this very hop; any other
/// acknowledges the callee's 2xx (§17.1.1.3, §13.2.2.4).
fn ack(case: &mut Case<'_>, sent: &Sent, to: NodeId, index: usize) {
    let facts = &sent.facts;
    let earlier = &case.sent[..index];
    let of_invite = earlier.iter().any(|r| {
        r.from == sent.from
            && r.to == Some(to)
            && r.facts.is_request("INVITE")
            && r.facts.branch == facts.branch
    });
    let answered = if of_invite {
        earlier.iter().any(|r| {
            r.from == to
                && r.to == Some(sent.from)
                && r.facts.branch == facts.branch
                && r.facts.method == "INVITE"
                && r.facts.status.is_some_and(|s| s >= 300)
        })
    } else {
        earlier.iter().any(|r| {
            r.from == CALLEE
                && r.facts.cseq == facts.cseq
                && r.facts.method == "INVITE"
                && r.facts.status.is_some_and(|s| (200..300).contains(&s))
        })
    };
    if !answered {
        let what = format!(
            "{} sends {} an ACK to nothing that it answered",
            case.name(sent.from),
            case.name(to)
        );
        case.violate("stray ACK", what);
    }
}

fn before(node: NodeId) -> NodeId {
    if node == PROXY_A { CALLER } else { PROXY_A }
}

fn after(node: NodeId) -> NodeId {
    if node == PROXY_A { PROXY_B } else { CALLEE }
}

/// A proxy that keeps state answers an INVITE as soon as it comes (§17.2.1).
fn trying_at_once(case: &mut Case<'_>, node: NodeId, cseq: u32) {
    let invites = case.traffic(before(node), node, |f| f.is_request("INVITE") && f.cseq == cseq);
    let Some(at) = invites.first_arrival else { return };
    let answered = case.on_hop(node, before(node)).any(|s| {
        s.at == at && s.facts.status.is_some() && s.facts.method == "INVITE" && s.facts.cseq == cseq
    });
    if !answered {
        case.violate(
            "no 100",
            format!("{} is silent when the INVITE comes", case.name(node)),
        );
    }
}

/// How often something may have been sent within `elapsed` of the first time.
fn due(schedule_ms: &[u64], elapsed: Micros) -> usize {
    1 + schedule_ms
        .iter()
        .filter(|ms| **ms * MS <= elapsed + SLACK)
        .count()
}

/// An INVITE is repeated by timer A only, and not once something came back; where nothing
/// arrives it is repeated to the end (§17.1.1.2).
fn invite_rhythm(case: &mut Case<'_>, node: NodeId, cseq: u32) {
    let next = after(node);
    let times: Vec<Micros> = case
        .on_hop(node, next)
        .filter(|s| s.facts.is_request("INVITE") && s.facts.cseq == cseq)
        .map(|s| s.at)
        .collect();
    let Some(&first) = times.first() else { return };
    let back = case.traffic(next, node, |f| {
        f.status.is_some() && f.method == "INVITE" && f.cseq == cseq
    });
    let arrived = case
        .traffic(node, next, |f| f.is_request("INVITE") && f.cseq == cseq)
        .copies_arrived;
    let name = case.name(node);
    for (n, at) in times.iter().enumerate() {
        if n + 1 > due(&INVITE_AGAIN_MS, at - first) {
            case.violate(
                "not absorbed",
                format!("{name} sends its INVITE too often: {times:?}"),
            );
            return;
        }
        if back.first_arrival.is_some_and(|answer| *at > answer) {
            case.violate(
                "INVITE after answer",
                format!("{name} repeats its INVITE after an answer"),
            );
            return;
        }
    }
    if arrived == 0 && times.len() < INVITE_AGAIN_MS.len() + 1 {
        case.violate(
            "gave up early",
            format!("{name} sent its INVITE only {} times", times.len()),
        );
    }
}

/// A failure is repeated by timer G and for each copy of the INVITE, until its ACK (§17.2.1).
fn failure_rhythm(case: &mut Case<'_>, node: NodeId, cseq: u32) {
    let previous = before(node);
    let failures = || {
        case.on_hop(node, previous).filter(|s| {
            // A challenge, and what is answered without state, is repeated for each request only.
            let failed = s.facts.status.is_some_and(|s| s >= 300 && s != 407);
            failed && s.facts.method == "INVITE" && s.facts.cseq == cseq
        })
    };
    let times: Vec<Micros> = failures().map(|s| s.at).collect();
    let Some(&first) = times.first() else { return };
    let invites: Vec<Micros> = case
        .on_hop(previous, node)
        .filter(|s| s.facts.is_request("INVITE") && s.facts.cseq == cseq)
        .flat_map(|s| s.arrivals.iter().copied())
        .filter(|at| *at > first)
        .collect();
    let branch = case
        .on_hop(previous, node)
        .find(|s| s.facts.is_request("INVITE") && s.facts.cseq == cseq)
        .map(|s| s.facts.branch.clone())
        .unwrap_or_default();
    let acks = case.traffic(previous, node, |f| f.is_request("ACK") && f.branch == branch);
    let name = case.name(node);
    for (n, at) in times.iter().enumerate() {
        let asked = invites.iter().filter(|i| *i <= at).count();
        if n + 1 > due(&OTHERS_AGAIN_MS, at - first) + asked {
            case.violate(
                "final too often",
                format!("{name} sends its failure too often: {times:?}"),
            );
            return;
        }
        if acks.first_arrival.is_some_and(|ack| *at > ack) {
            case.violate(
                "final after ACK",
                format!("{name} repeats its failure after the ACK"),
            );
            return;
        }
    }
    let arrived = case
        .on_hop(node, previous)
        .filter(|s| s.facts.is_final_to("INVITE") && s.facts.cseq == cseq)
        .any(Sent::arrived);
    if !arrived && times.len() < OTHERS_AGAIN_MS.len() {
        case.violate(
            "gave up early",
            format!("{name} sent its failure only {} times", times.len()),
        );
    }
}

/// BYE and CANCEL of a proxy with state are repeated by timer E only.
fn other_requests_rhythm(case: &mut Case<'_>, node: NodeId) {
    let stateful = case.scenario.proxy(node).is_some_and(|p| p.stateful);
    let mut seen: Vec<(&str, Vec<Micros>, bool)> = Vec::new();
    for sent in &case.sent {
        let own_cancel = sent.facts.vias == 1 && sent.facts.is_request("CANCEL");
        let relayed_bye = stateful && sent.facts.is_request("BYE");
        if sent.from == node && (own_cancel || relayed_bye) {
            let key = (&*sent.facts.branch, &*sent.facts.method);
            match seen.iter_mut().find(|(branch, ..)| *branch == key.0) {
                Some((_, times, arrived)) => {
                    times.push(sent.at);
                    *arrived |= sent.arrived();
                }
                None => seen.push((key.0, vec![sent.at], sent.arrived())),
            }
        }
    }
    let name = case.name(node);
    for (branch, times, arrived) in seen {
        let first = times.first().copied().unwrap_or_default();
        let too_often = times
            .iter()
            .enumerate()
            .any(|(n, at)| n + 1 > due(&OTHERS_AGAIN_MS, at - first));
        if too_often {
            case.violate(
                "not absorbed",
                format!("{name} sends {branch} too often: {times:?}"),
            );
        } else if !arrived && times.len() < OTHERS_AGAIN_MS.len() {
            case.violate(
                "gave up early",
                format!("{name} sent {branch} only {} times", times.len()),
            );
        }
    }
}

/// The node that made a final answer itself: it sent it without having got it.
pub(super) fn maker(case: &Case<'_>, cseq: u32, status: u16, tag: &str) -> Option<NodeId> {
    let wanted = |f: &crate::trace::Facts| {
        f.method == "INVITE" && f.cseq == cseq && f.status == Some(status) && f.to_tag == tag
    };
    if !is_proxys(tag) {
        return Some(CALLEE);
    }
    [PROXY_B, PROXY_A]
        .into_iter()
        .find(|node| case.traffic(*node, before(*node), wanted).sent > 0)
}

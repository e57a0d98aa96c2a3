//! How a call may end, given what was lost.

use super::relay::maker;
use super::{Case, Traffic};
use crate::clock::{MS, Micros};
use crate::node::NodeId;
use crate::report::{CallReport, RequestEnd, Side};
use crate::scenario::{Behaviour, CALLEE, CALLER, PROXY_A, PROXY_B, Store};
use crate::trace::Facts;

/// The way of an INVITE.
const PATH: [NodeId; 4] = [CALLER, PROXY_A, PROXY_B, CALLEE];

/// Why nothing came in time.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Cause {
    /// Every copy was lost on a hop.
    Loss,
    /// It came too late.
    Late,
    /// The callee had nothing to say yet.
    Silent,
    /// A node did not do its part.
    Fault(String),
}

pub(super) fn check(case: &mut Case<'_>) {
    one_final_answer(case);
    let report = |side| case.reports.iter().copied().find(|r| r.side == side).cloned();
    let (caller, callee) = (report(Side::Caller), report(Side::Callee));
    let Some(caller) = caller else {
        return case.violate("no end", "the call was never placed");
    };
    invite_end(case, &caller);
    cancel_end(case, &caller);
    bye_end(case, &caller, Side::Caller);
    if let Some(callee) = callee {
        bye_end(case, &callee, Side::Callee);
        acknowledged(case, &callee);
    }
}

/// What the caller hears of one INVITE is one final answer. What comes to a proxy after it has
/// answered itself goes nowhere (RFC 6026 §6).
fn one_final_answer(case: &mut Case<'_>) {
    for cseq in 1..=case.last_invite() {
        let mut finals: Vec<(u16, String)> = Vec::new();
        for sent in case.on_hop(PROXY_A, CALLER) {
            let key = (sent.facts.status.unwrap_or(0), sent.facts.to_tag.clone());
            if sent.facts.is_final_to("INVITE") && sent.facts.cseq == cseq && !finals.contains(&key) {
                finals.push(key);
            }
        }
        if finals.len() > 1 {
            case.violate("two finals", format!("the caller is told {finals:?}"));
        }
    }
}

fn is_final(facts: &Facts, cseq: u32) -> bool {
    facts.is_final_to("INVITE") && facts.cseq == cseq
}

fn invite_end(case: &mut Case<'_>, caller: &CallReport) {
    let cseq = case.last_invite();
    let wanted_cancel =
        |at: Option<Micros>| at.is_some_and(|at| at >= case.plan.start + case.plan.cancel_after);
    let digest = case.scenario.proxies[0].digest.as_ref();
    match caller.invite {
        RequestEnd::NotSent | RequestEnd::Pending => case.violate("no end", "the INVITE never ended"),
        RequestEnd::TimedOut(at) => {
            let cause = invite_silence(case, 0, cseq, at);
            judge(case, "unexplained time-out", "the INVITE", cause);
        }
        RequestEnd::Answered(200) if matches!(case.plan.behaviour, Behaviour::Answer(_)) => {}
        RequestEnd::Answered(486) if matches!(case.plan.behaviour, Behaviour::Busy(_)) => {}
        RequestEnd::Answered(487) if caller.cancel != RequestEnd::NotSent || timer_c_fired(case) => {}
        RequestEnd::Answered(503) if digest.is_some_and(|d| d.store == Store::Dead) => {}
        RequestEnd::Answered(407) if digest.is_some() => {
            let answer = case.traffic(PROXY_A, CALLER, |f| is_final(f, cseq));
            if !wanted_cancel(answer.first_arrival) {
                case.violate("wrong end", "the challenges never end");
            }
        }
        RequestEnd::Answered(408) => {
            let tag = case
                .on_hop(PROXY_A, CALLER)
                .find(|s| s.facts.status == Some(408) && is_final(&s.facts, cseq))
                .map(|s| s.facts.to_tag.clone())
                .unwrap_or_default();
            let node = maker(case, cseq, 408, &tag).unwrap_or(PROXY_A);
            let at = case.traffic(node, node - 1, |f| f.status == Some(408)).first_sent;
            let cause = invite_silence(case, node, cseq, at.unwrap_or_default());
            judge(case, "unexplained 408", "a proxy's INVITE", cause);
        }
        RequestEnd::Answered(status) => {
            case.violate(
                "wrong end",
                format!("{:?} ended in {status}", case.plan.behaviour),
            );
        }
    }
}

/// Whether a proxy with state had waited for a final answer as long as timer C.
fn timer_c_fired(case: &Case<'_>) -> bool {
    [PROXY_A, PROXY_B].into_iter().any(|node| {
        let Some(plan) = case.scenario.proxy(node) else {
            return false;
        };
        let invite = case.traffic(node, node + 1, |f| f.is_request("INVITE"));
        let cancel = case
            .on_hop(node, node + 1)
            .find(|s| s.facts.is_request("CANCEL") && s.facts.vias == 1)
            .map(|s| s.at);
        let waited = cancel
            .zip(invite.first_sent)
            .map(|(cancel, invite)| cancel - invite);
        waited.is_some_and(|w| w + 2 * MS >= u64::from(plan.c_ms) * MS)
    })
}

fn judge(case: &mut Case<'_>, rule: &'static str, what: &str, cause: Cause) {
    match cause {
        Cause::Loss | Cause::Silent => {}
        Cause::Late if case.losses() > 0 => {}
        Cause::Late => case.violate(
            rule,
            format!("the answer to {what} came too late, and nothing was lost"),
        ),
        Cause::Fault(why) => case.violate(rule, format!("{what}: {why}")),
    }
}

/// Why the node at `origin` of the path had no final answer to its INVITE at `deadline`; for a
/// node that had heard nothing at all (timer B) why it had not.
fn invite_silence(case: &Case<'_>, origin: usize, cseq: u32, deadline: Micros) -> Cause {
    let any = |f: &Facts| f.status.is_some() && f.method == "INVITE" && f.cseq == cseq;
    let (from, next) = (PATH[origin], PATH[origin + 1]);
    let heard = case
        .traffic(next, from, any)
        .first_arrival
        .is_some_and(|at| at <= deadline);
    let invite = |f: &Facts| f.is_request("INVITE") && f.cseq == cseq;
    // Timer B ran out on a callee that says nothing before it decides; or the caller's patience
    // after a CANCEL that the last proxy before such a callee may not pass on (§9.1).
    let spoke = case.traffic(CALLEE, PROXY_B, any).first_sent;
    if spoke.is_none_or(|at| at > deadline) && callee_is_silent(case) {
        return Cause::Silent;
    }
    if !heard {
        return silence(case, &PATH[origin..], invite, any, deadline);
    }
    let fin = |f: &Facts| is_final(f, cseq);
    let cancel = |f: &Facts| f.is_request("CANCEL") && f.cseq == cseq;
    silence(case, &PATH[origin..], cancel, fin, deadline)
}

/// Whether this callee may say nothing for as long as timer B runs.
fn callee_is_silent(case: &Case<'_>) -> bool {
    !case.plan.trying
        && case.plan.ring_after.is_none()
        && (case.plan.behaviour == Behaviour::Ring || case.losses() > 0)
}

/// Why an answer that `answers` wants did not come back along `path` in time to a request that
/// `requests` knows.
fn silence(
    case: &Case<'_>,
    path: &[NodeId],
    requests: impl Fn(&Facts) -> bool,
    answers: impl Fn(&Facts) -> bool,
    deadline: Micros,
) -> Cause {
    let back = |at: usize| -> Traffic { case.traffic(path[at], path[at - 1], &answers) };
    // The node nearest to us that answered at all.
    if let Some(nearest) = (1..path.len()).find(|at| back(*at).sent > 0) {
        let traffic = back(nearest);
        return match traffic.first_arrival {
            None => Cause::Loss,
            Some(at) if nearest == 1 && at >= deadline => Cause::Late,
            Some(_) if nearest == 1 => Cause::Fault("it was answered in time".to_owned()),
            Some(_) => Cause::Fault(format!(
                "{} got an answer and sent none",
                case.name(path[nearest - 1])
            )),
        };
    }
    for hop in path.windows(2) {
        let [from, to] = hop else { continue };
        let traffic = case.traffic(*from, *to, &requests);
        if traffic.sent == 0 {
            return Cause::Fault(format!("{} neither answered nor sent it on", case.name(*from)));
        }
        if traffic.copies_arrived == 0 {
            return Cause::Loss;
        }
    }
    Cause::Fault(format!("{} never answered", case.name(path[path.len() - 1])))
}

fn cancel_end(case: &mut Case<'_>, caller: &CallReport) {
    let answer = |f: &Facts| f.is_final_to("CANCEL");
    match caller.cancel {
        RequestEnd::NotSent | RequestEnd::Answered(200) => {}
        RequestEnd::Pending => case.violate("no end", "the CANCEL never ended"),
        RequestEnd::TimedOut(at) => {
            let cause = silence(case, &PATH, |f| f.is_request("CANCEL"), answer, at);
            judge(case, "unexplained time-out", "the CANCEL", cause);
        }
        RequestEnd::Answered(481) => {
            // Legal only where the INVITE had been answered by whoever says so, or before him.
            let node = PATH[1..].iter().rev().copied().find(|node| {
                let said = |f: &Facts| f.method == "CANCEL" && f.status == Some(481);
                case.traffic(*node, node - 1, said).sent > 0
            });
            let said = case
                .traffic(PROXY_A, CALLER, |f| f.method == "CANCEL" && f.status == Some(481))
                .first_sent;
            let forgot = node.is_some_and(|node| {
                (1..=node).any(|node| {
                    let done = case.traffic(node, node - 1, |f| f.is_final_to("INVITE"));
                    done.first_sent.is_some() && done.first_sent <= said
                })
            });
            if !forgot {
                case.violate(
                    "CANCEL lost",
                    "481 to the CANCEL of an INVITE without a final answer",
                );
            }
        }
        RequestEnd::Answered(status) => case.violate("CANCEL lost", format!("{status} to a CANCEL")),
    }
}

fn bye_end(case: &mut Case<'_>, report: &CallReport, side: Side) {
    let mut path = case.dialog_path();
    if side == Side::Callee {
        path.reverse();
    }
    let from = path[0];
    let cseq = case
        .sent
        .iter()
        .filter(|s| s.from == from && s.facts.is_request("BYE"))
        .map(|s| s.facts.cseq)
        .max();
    match report.bye {
        RequestEnd::NotSent | RequestEnd::Answered(200) => {}
        RequestEnd::Pending => case.violate("no end", format!("{side:?}'s BYE never ended")),
        RequestEnd::TimedOut(at) => {
            let request = |f: &Facts| f.is_request("BYE") && Some(f.cseq) == cseq;
            let answer = |f: &Facts| f.is_final_to("BYE") && Some(f.cseq) == cseq;
            let cause = silence(case, &path, request, answer, at);
            judge(case, "unexplained time-out", "the BYE", cause);
        }
        RequestEnd::Answered(481) if side == Side::Callee => {
            let answer = case.traffic(PROXY_A, CALLER, |f| {
                f.is_final_to("INVITE") && f.status == Some(200)
            });
            let bye = case
                .sent
                .iter()
                .filter(|s| s.to == Some(CALLER) && s.facts.is_request("BYE"))
                .find_map(|s| s.arrivals.first().copied());
            let knew = answer
                .first_arrival
                .zip(bye)
                .is_some_and(|(answer, bye)| answer < bye);
            if knew || bye.is_none() {
                case.violate("wrong end", "481 to the BYE of a dialog that the caller has");
            }
        }
        RequestEnd::Answered(status) => case.violate("wrong end", format!("{status} to {side:?}'s BYE")),
    }
}

/// The ACK to a 2xx reaches the callee, or the log says where it or the 2xx was lost.
fn acknowledged(case: &mut Case<'_>, callee: &CallReport) {
    if callee.acknowledged != Some(false) || callee.was_ended {
        return;
    }
    let success = |f: &Facts| f.method == "INVITE" && f.status == Some(200);
    let ack = |f: &Facts| f.is_request("ACK");
    let mut way: Vec<(NodeId, NodeId, bool)> =
        PATH.windows(2).rev().map(|hop| (hop[1], hop[0], false)).collect();
    way.extend(case.dialog_path().windows(2).map(|hop| (hop[0], hop[1], true)));
    for (from, to, is_ack) in way {
        let traffic = if is_ack {
            case.traffic(from, to, ack)
        } else {
            case.traffic(from, to, success)
        };
        if traffic.sent == 0 {
            let what = if is_ack { "ACK" } else { "200" };
            return case.violate(
                "ACK lost",
                format!("{} did not send the {what} on", case.name(from)),
            );
        }
        if traffic.copies_arrived == 0 {
            return;
        }
    }
    if case.losses() == 0 {
        case.violate("ACK lost", "the callee got no ACK although nothing was lost");
    }
}

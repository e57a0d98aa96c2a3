//! How a call may end.

use super::super::node::NodeId;
use super::super::scenario::{DurabilityPlan, NetCall, Reaction};
use super::{Case, reaches};
use crate::checker::Violation;
use crate::clock::{MS, SECOND};
use crate::report::{CallReport, RequestEnd, Side};
use crate::trace::Sent;

/// How the tags begin that a server gives to its own answers.
pub(super) const OWN_TAG: &str = "tz";

pub(super) fn check(case: &Case<'_>) -> Vec<Violation> {
    case.scenario
        .calls
        .iter()
        .flat_map(|call| Judged::new(case, call).judge())
        .collect()
}

/// One call and everything known of it.
struct Judged<'a> {
    case: &'a Case<'a>,
    call: &'a NetCall,
    sent: Vec<&'a Sent>,
    found: Vec<Violation>,
}

impl<'a> Judged<'a> {
    fn new(case: &'a Case<'a>, call: &'a NetCall) -> Self {
        Self {
            case,
            call,
            sent: case
                .log
                .sent
                .iter()
                .filter(|sent| sent.facts.call == Some(call.call))
                .collect(),
            found: Vec::new(),
        }
    }

    fn judge(mut self) -> Vec<Violation> {
        self.right_callee();
        if !self.case.was_cut(self.call) {
            self.one_final_answer();
            if !self.case.lost_connection(self.call) {
                self.one_invite_at_the_callee();
            }
        }
        match self.report(Side::Caller) {
            Some(caller) => self.ends(&caller),
            None => self.violate("no end", "the call was never placed"),
        }
        self.found
    }

    fn violate(&mut self, rule: &'static str, what: impl Into<String>) {
        self.found.push(Violation::new(rule, Some(self.call.call), what));
    }

    fn node(&self, phone: usize) -> NodeId {
        self.case.scenario.node_of_phone(phone)
    }

    fn report(&self, side: Side) -> Option<CallReport> {
        let of = |(_, report): &&(NodeId, CallReport)| report.call == self.call.call && report.side == side;
        self.case
            .reports
            .iter()
            .find(of)
            .map(|(_, report)| report.clone())
    }

    /// Nobody rings who was not called.
    fn right_callee(&mut self) {
        let wrong: Vec<NodeId> = self
            .case
            .reports
            .iter()
            .filter(|(_, report)| report.call == self.call.call && report.side == Side::Callee)
            .map(|(node, _)| *node)
            .filter(|node| *node != self.node(self.call.to))
            .collect();
        if !wrong.is_empty() {
            self.violate("wrong callee", format!("the call came to nodes {wrong:?}"));
        }
    }

    /// What the caller hears of one INVITE is one final answer. A server that refuses without keeping
    /// state may let the next copy pass (RFC 3261 §8.2.7): things have changed since.
    fn one_final_answer(&mut self) {
        let caller = self.node(self.call.from);
        let stateless = self
            .case
            .path(self.call)
            .iter()
            .any(|s| !self.case.scenario.servers[*s].stateful);
        let mut under_way: Vec<&str> = Vec::new();
        let mut finals: Vec<(&str, u16, &str)> = Vec::new();
        for sent in self.sent.iter().filter(|sent| sent.to == Some(caller)) {
            let facts = &sent.facts;
            let key = (&*facts.branch, facts.status.unwrap_or(0), &*facts.to_tag);
            let own_refusal = facts.to_tag.starts_with(OWN_TAG) && key.1 >= 300;
            if facts.status == Some(100) {
                under_way.push(&facts.branch);
            }
            let is_kept = !own_refusal || !stateless && under_way.contains(&&*facts.branch);
            if facts.is_final_to("INVITE") && is_kept && !finals.contains(&key) {
                finals.push(key);
            }
        }
        let twice = finals
            .iter()
            .find(|a| finals.iter().any(|b| a.0 == b.0 && *a != b));
        if twice.is_some() {
            let what = format!("the caller is told {finals:?}");
            self.violate("two finals", what);
        }
    }

    /// One call, one INVITE transaction at the callee (RFC 3261 §16.6 step 8, §16.11).
    fn one_invite_at_the_callee(&mut self) {
        let callee = self.node(self.call.to);
        let mut branches: Vec<(u32, &str)> = Vec::new();
        for sent in self.sent.iter().filter(|sent| sent.to == Some(callee)) {
            let key = (sent.facts.cseq, &*sent.facts.branch);
            if sent.facts.is_request("INVITE") && !branches.contains(&key) {
                branches.push(key);
            }
        }
        let second = branches
            .iter()
            .any(|a| branches.iter().any(|b| a.0 == b.0 && a.1 != b.1));
        if second {
            self.violate("second INVITE", format!("to the callee go {branches:?}"));
        }
    }

    /// Every request ends; and once nothing excuses it, as it must.
    fn ends(&mut self, caller: &CallReport) {
        for (what, end) in [
            ("INVITE", caller.invite),
            ("CANCEL", caller.cancel),
            ("BYE", caller.bye),
        ] {
            if end == RequestEnd::Pending {
                self.violate("no end", format!("the {what} never ended"));
            }
        }
        if !self.call.after_faults || self.case.may_refuse(self.call) {
            return;
        }
        if !self.is_due_end(caller.invite) {
            let what = format!("{:?} ended in {:?}", self.call.reaction, caller.invite);
            self.violate("wrong end", what);
        }
        if !matches!(
            caller.cancel,
            RequestEnd::NotSent | RequestEnd::Answered(200 | 481)
        ) {
            self.violate("CANCEL lost", format!("it ended in {:?}", caller.cancel));
        }
        let callee = self.report(Side::Callee);
        for report in [Some(caller), callee.as_ref()].into_iter().flatten() {
            if !matches!(report.bye, RequestEnd::NotSent | RequestEnd::Answered(200 | 481)) {
                self.violate(
                    "BYE lost",
                    format!("that of the {:?} ended in {:?}", report.side, report.bye),
                );
            }
        }
        if callee.is_some_and(|callee| callee.acknowledged == Some(false)) {
            self.violate("ACK lost", "the callee's 200 was never acknowledged");
        }
    }

    /// Whether its registrar may have lost the callee by right.
    fn callee_may_be_lost(&self) -> bool {
        let scenario = self.case.scenario;
        let home = scenario.home_of(scenario.phones[self.call.to].user);
        let keeps =
            scenario.servers[home].durability == DurabilityPlan::Commit && !scenario.clock_jumps(home);
        !keeps && scenario.crashes(home).next().is_some()
    }

    fn is_due_end(&self, end: RequestEnd) -> bool {
        let call = self.call;
        let cancelled_by = |decides| call.cancel_after <= decides + SECOND;
        let shortest_c = self
            .case
            .path(call)
            .iter()
            .map(|server| &self.case.scenario.servers[*server])
            .filter(|server| server.stateful)
            .map(|server| u64::from(server.c_ms) * MS)
            .min();
        match (call.reaction, end) {
            (Reaction::Answer(_), RequestEnd::Answered(200))
            | (Reaction::Busy(_), RequestEnd::Answered(486)) => true,
            (Reaction::Answer(after) | Reaction::Busy(after), RequestEnd::Answered(487)) => {
                cancelled_by(after)
            }
            // Who gives up before he was asked for credentials gives none.
            (_, RequestEnd::Answered(407)) => cancelled_by(0),
            // Until the callee registers again.
            (_, RequestEnd::Answered(480)) => self.callee_may_be_lost(),
            (Reaction::Ring, RequestEnd::Answered(487)) => {
                shortest_c.is_some() || reaches(200 * SECOND, call.cancel_after, 0)
            }
            (Reaction::Ring, RequestEnd::Answered(408)) => shortest_c.is_some(),
            _ => false,
        }
    }
}

//! The reference: what must hold of every run, judged from what the network saw and from what
//! the user agents say, never from the proxies' own account.
//!
//! [`relay`] looks at each hop (what a proxy may send, given what it got), [`calls`] at each call
//! from end to end (how it may end, given what was lost). A failure to end well is excused only
//! where the log names the hop on which every copy of the needed message was lost.

mod calls;
mod conservation;
mod relay;

use std::fmt;

use crate::clock::Micros;
use crate::node::NodeId;
use crate::report::CallReport;
use crate::scenario::{CALLEE, CALLER, CallPlan, PROXY_A, PROXY_B, Scenario};
use crate::trace::{Facts, Log, Sent, Station};

/// Something that must not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Short name of the rule.
    pub rule: &'static str,
    /// In which call.
    pub call: Option<u32>,
    /// What happened.
    pub what: String,
}

impl Violation {
    /// A violation of `rule`.
    pub fn new(rule: &'static str, call: Option<u32>, what: impl Into<String>) -> Self {
        Self {
            rule,
            call,
            what: what.into(),
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.call {
            Some(call) => write!(f, "[{}] call {call}: {}", self.rule, self.what),
            None => write!(f, "[{}] {}", self.rule, self.what),
        }
    }
}

/// All rules.
pub fn check(scenario: &Scenario, stations: &[Station], log: &Log, reports: &[CallReport]) -> Vec<Violation> {
    let mut found = Vec::new();
    for sent in &log.sent {
        if sent.to.is_none() {
            let what = format!(
                "{} sends {:?} to nobody",
                stations[sent.from].name, sent.facts.method
            );
            found.push(Violation::new("stranger", sent.facts.call, what));
        }
        if !scenario.calls.iter().any(|p| Some(p.call) == sent.facts.call) {
            found.push(Violation::new(
                "stranger",
                sent.facts.call,
                "a message of no call",
            ));
        }
    }
    for plan in &scenario.calls {
        let mut case = Case::new(scenario, stations, plan, log, reports);
        relay::check(&mut case);
        conservation::check(&mut case);
        calls::check(&mut case);
        found.append(&mut case.found);
    }
    found
}

/// One call and everything known of it.
struct Case<'a> {
    scenario: &'a Scenario,
    stations: &'a [Station],
    plan: &'a CallPlan,
    /// Its messages in the order of sending.
    sent: Vec<&'a Sent>,
    reports: Vec<&'a CallReport>,
    found: Vec<Violation>,
}

/// What was sent on one hop of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Traffic {
    sent: usize,
    copies_arrived: usize,
    first_sent: Option<Micros>,
    first_arrival: Option<Micros>,
}

impl<'a> Case<'a> {
    fn new(
        scenario: &'a Scenario,
        stations: &'a [Station],
        plan: &'a CallPlan,
        log: &'a Log,
        reports: &'a [CallReport],
    ) -> Self {
        Self {
            scenario,
            stations,
            plan,
            sent: log
                .sent
                .iter()
                .filter(|s| s.facts.call == Some(plan.call))
                .collect(),
            reports: reports.iter().filter(|r| r.call == plan.call).collect(),
            found: Vec::new(),
        }
    }

    fn violate(&mut self, rule: &'static str, what: impl Into<String>) {
        self.found.push(Violation::new(rule, Some(self.plan.call), what));
    }

    fn name(&self, node: NodeId) -> &'static str {
        self.stations.get(node).map_or("?", |s| s.name)
    }

    /// What went from one node to another that `wanted` wants.
    fn traffic(&self, from: NodeId, to: NodeId, wanted: impl Fn(&Facts) -> bool) -> Traffic {
        let mut traffic = Traffic::default();
        for sent in self.on_hop(from, to).filter(|s| wanted(&s.facts)) {
            traffic.sent += 1;
            traffic.copies_arrived += sent.arrivals.len();
            traffic.first_sent = traffic.first_sent.or(Some(sent.at));
            let first = sent.arrivals.first().copied();
            traffic.first_arrival = traffic.first_arrival.into_iter().chain(first).min();
        }
        traffic
    }

    fn on_hop(&self, from: NodeId, to: NodeId) -> impl Iterator<Item = &'a Sent> + '_ {
        self.sent
            .iter()
            .copied()
            .filter(move |s| s.from == from && s.to == Some(to))
    }

    /// Messages of which no copy arrived.
    fn losses(&self) -> usize {
        self.sent.iter().filter(|s| !s.arrived()).count()
    }

    /// CSeq number of the caller's last INVITE.
    fn last_invite(&self) -> u32 {
        let invites = self.sent.iter().filter(|s| s.facts.is_request("INVITE"));
        invites.map(|s| s.facts.cseq).max().unwrap_or(0)
    }

    /// Nodes on the way of requests in the dialog, the caller first.
    fn dialog_path(&self) -> Vec<NodeId> {
        let stays = |node: &NodeId| self.scenario.proxy(*node).is_none_or(|p| p.record_route);
        [CALLER, PROXY_A, PROXY_B, CALLEE]
            .into_iter()
            .filter(stays)
            .collect()
    }
}

/// Whether a To tag is one that a proxy gives (the callee here calls its own `to-…`).
fn is_proxys(tag: &str) -> bool {
    tag.starts_with("tz")
}

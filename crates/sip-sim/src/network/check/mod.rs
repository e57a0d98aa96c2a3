//! The rules that every run must keep, judged from what the network saw and what the user agents report.
//!
//! Safety always holds. [`messages`] judges which messages servers may send at all, [`calls`] how a call may
//! end. [`registrations`] judges what a registrar may forget, with a model of the requests and responses.
//! Liveness holds for everything that begins once the faults are over and everything from before has ended
//! ([`Scenario::settled_at`]): then nothing excuses a failure.

mod answers;
mod calls;
mod floods;
mod forks;
mod hops;
mod losses;
mod messages;
mod registrations;
mod relayed;
mod rhythm;
mod strangers;

use std::fmt;

use super::fabric::USER_TIMEOUT;
use super::node::{Node, NodeId};
use super::scenario::{DurabilityPlan, GATEWAY_USER, NetCall, Scenario, Speaks, Trouble, TroublePlan};
use super::world::World;
use crate::agent::registration::Registration;
use crate::clock::{MS, Micros, SECOND};
use crate::report::CallReport;
use crate::trace::{Log, Sent};

/// Timer B.
const TIMER_B: Micros = 32 * SECOND;
/// Interval at which a process that cannot start is started again.
const STARTING: Micros = 2 * SECOND;

/// A broken rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Short name of the rule.
    pub rule: &'static str,
    /// Number of the call, if it is about one.
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
pub fn check(scenario: &Scenario, world: &World<'_>) -> Vec<Violation> {
    let reports = world
        .nodes()
        .enumerate()
        .flat_map(|(node, machine)| machine.calls().into_iter().map(move |report| (node, report)))
        .collect();
    let case = Case {
        scenario,
        log: &world.log,
        reports,
    };
    let mut found = messages::check(&case);
    found.extend(calls::check(&case));
    found.extend(forks::check(&case));
    found.extend(hops::check(&case));
    found.extend(relayed::check(&case));
    found.extend(answers::check(&case));
    found.extend(losses::check(&case));
    found.extend(rhythm::check(&case));
    found.extend(strangers::check(&case));
    found.extend(floods::check(&case));
    let phones = world
        .nodes()
        .skip(scenario.servers.len())
        .take(scenario.phones.len());
    let histories: Vec<&[Registration]> = phones.map(Node::registrations).collect();
    for place in 0..histories.len() {
        found.extend(registrations::check(scenario, place, &histories));
    }
    found
}

/// A run, with everything known of it.
struct Case<'a> {
    scenario: &'a Scenario,
    log: &'a Log,
    /// Reports of calls, with the reporting nodes.
    reports: Vec<(NodeId, CallReport)>,
}

impl Case<'_> {
    /// Servers on the way of a call: the homes of both users, and the servers in between.
    fn path(&self, call: &NetCall) -> Vec<NodeId> {
        let home = |phone: usize| {
            let user = self.scenario.phones.get(phone).map_or(0, |plan| plan.user);
            self.scenario.home_of(user)
        };
        let (first, last) = (home(call.from), home(call.to));
        let mut path = vec![first];
        let mut at = first;
        while at != last && path.len() <= self.scenario.servers.len() {
            at = self.scenario.servers[at].next.map_or(last, |next| next.server);
            path.push(at);
        }
        path
    }

    /// Messages of a call. Of the stranger's messages only copies are among them.
    fn of_call(&self, call: &NetCall) -> impl Iterator<Item = &Sent> {
        let number = Some(call.call);
        let sent = self.log.sent.iter();
        sent.filter(move |sent| sent.facts.call == number)
    }

    /// Whether a server on the way of a call lost its memory while the call's INVITE was under way.
    fn was_cut(&self, call: &NetCall) -> bool {
        let under_way = call.start..=self.last_of_invite(call);
        self.path(call)
            .iter()
            .any(|server| self.scenario.crashes(*server).any(|at| under_way.contains(&at)))
    }

    /// Whether the registrar may rightly have lost the called user's bindings.
    fn callee_may_be_lost(&self, call: &NetCall) -> bool {
        let scenario = self.scenario;
        if scenario.is_to_group(call) {
            return false;
        }
        let home = scenario.home_of(scenario.phones[call.to].user);
        let keeps =
            scenario.servers[home].durability == DurabilityPlan::Commit && !scenario.clock_jumps(home);
        !keeps && scenario.crashes(home).next().is_some()
    }

    /// When a call's INVITE, or a response to it, was last sent.
    fn last_of_invite(&self, call: &NetCall) -> Micros {
        let of_it = |sent: &&Sent| sent.facts.call == Some(call.call) && sent.facts.method == "INVITE";
        self.log.sent.iter().rfind(of_it).map_or(0, |sent| sent.at)
    }

    /// Whether a server was away for any time between these times. If its disk fails, it may not start before
    /// the fault ends.
    fn was_away(&self, server: NodeId, from: Micros, to: Micros) -> bool {
        let its = || self.scenario.troubles.iter().filter(|t| t.node == server);
        let of_disk = |t: &TroublePlan| match t.trouble {
            Trouble::Disk { .. } | Trouble::Failing { .. } => true,
            Trouble::Crash { .. }
            | Trouble::Partition { .. }
            | Trouble::Reset
            | Trouble::WallJump { .. }
            | Trouble::Slow { .. }
            | Trouble::Dead { .. } => false,
        };
        let disk_fails = its().any(of_disk);
        its().any(|t| match t.trouble {
            Trouble::Crash { lasts, .. } => {
                let back = if disk_fails {
                    self.scenario.heal_at
                } else {
                    t.at + lasts
                };
                t.at <= to && back.max(t.at) + STARTING >= from
            }
            Trouble::Partition { .. }
            | Trouble::Reset
            | Trouble::WallJump { .. }
            | Trouble::Slow { .. }
            | Trouble::Dead { .. }
            | Trouble::Failing { .. }
            | Trouble::Disk { .. } => false,
        })
    }

    /// Whether a connection between two nodes may have ended between these times. Messages on it may have
    /// arrived or not.
    fn was_disconnected(&self, between: (NodeId, NodeId), from: Micros, to: Micros) -> bool {
        let is_end = |node: NodeId| node == between.0 || node == between.1;
        self.scenario.troubles.iter().any(|t| {
            let lasted = match t.trouble {
                Trouble::Reset if is_end(t.node) => 0,
                Trouble::Crash { lasts, .. } if is_end(t.node) => lasts,
                Trouble::Partition { other, lasts } if is_end(t.node) && is_end(other) => lasts,
                Trouble::Reset
                | Trouble::Crash { .. }
                | Trouble::Partition { .. }
                | Trouble::WallJump { .. }
                | Trouble::Slow { .. }
                | Trouble::Dead { .. }
                | Trouble::Failing { .. }
                | Trouble::Disk { .. } => return false,
            };
            t.at <= to && t.at + lasted + 2 * USER_TIMEOUT >= from
        })
    }

    /// Whether a called phone was not registered at some time while messages of the call were sent. A server
    /// without state then finds no way to the phone, for an ACK or CANCEL either.
    fn was_unregistered(&self, call: &NetCall) -> bool {
        let first = self.of_call(call).next().map_or(0, |sent| sent.at);
        let last = self.of_call(call).last().map_or(0, |sent| sent.at);
        let mut phones = self
            .scenario
            .callees(call)
            .map(|phone| &self.scenario.phones[phone])
            .filter(|phone| phone.user != GATEWAY_USER);
        phones.any(|phone| {
            let mut leaves = phone.leaves.iter();
            phone.end <= last || leaves.any(|(from, to)| *from <= last && *to >= first)
        })
    }

    /// Whether the connection of a called phone may have ended under its INVITE. The arrival of messages on
    /// it is then uncertain, and the phone's other address is tried (RFC 3261 §16.9).
    fn lost_connection(&self, call: &NetCall, phone: usize) -> bool {
        let plan = &self.scenario.phones[phone];
        let ends = (
            self.scenario.node_of_phone(phone),
            self.scenario.home_of(plan.user),
        );
        let last = self.last_of_invite(call);
        plan.speaks != Speaks::Udp && self.was_disconnected(ends, call.start, last)
    }

    /// How long a server waits for the first response to an INVITE to this node: timer B, timer C, or the
    /// time-out of the group whose member the node is.
    fn patience(&self, server: NodeId, to: NodeId) -> Micros {
        let scenario = self.scenario;
        let c = scenario
            .servers
            .get(server)
            .map(|plan| Micros::from(plan.c_ms) * MS);
        let is_member = |phone: usize| scenario.node_of_phone(phone) == to;
        let mut members = scenario.phones_of(GATEWAY_USER);
        let group = scenario.gateways.filter(|_| members.any(is_member));
        let times = c.into_iter().chain(group.map(|group| group.reply_timeout));
        times.fold(TIMER_B, Micros::min)
    }

    /// Whether a server on the way has bounds so small that it may refuse.
    fn may_refuse(&self, call: &NetCall) -> bool {
        self.path(call)
            .iter()
            .any(|server| self.scenario.servers[*server].tight)
    }
}

/// Whether the message went by UDP, according to its topmost Via.
fn is_udp(sent: &Sent) -> bool {
    let at = sent.text.find("\r\nVia: ");
    at.is_some_and(|at| sent.text[at..].starts_with("\r\nVia: SIP/2.0/UDP"))
}

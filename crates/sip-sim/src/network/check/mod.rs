//! What must hold of every run, judged from what the network saw and what the user agents say.
//!
//! Safety holds always: [`messages`] looks at what servers may send at all, [`calls`] at how a call
//! may end, [`registrations`] at what a registrar may forget, beside a model of what it was asked
//! and what it answered. Liveness holds for what begins once the faults are over and everything
//! from before has come to its end ([`Scenario::settled_at`]): then nothing excuses a failure.

mod calls;
mod forks;
mod hops;
mod messages;
mod registrations;
mod rhythm;
mod strangers;

use super::fabric::USER_TIMEOUT;
use super::node::{Node, NodeId};
use super::scenario::{DurabilityPlan, NetCall, Scenario, Speaks, Trouble, TroublePlan};
use super::world::World;
use crate::agent::registration::Registration;
use crate::checker::Violation;
use crate::clock::Micros;
use crate::report::CallReport;
use crate::trace::Log;

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
    found.extend(rhythm::check(&case));
    found.extend(strangers::check(&case));
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

/// A run, and what is known of it.
struct Case<'a> {
    scenario: &'a Scenario,
    log: &'a Log,
    /// What became of calls, as these nodes saw it.
    reports: Vec<(NodeId, CallReport)>,
}

impl Case<'_> {
    /// Homes of both users of a call and what lies between.
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

    /// A server on the way of a call lost its memory after the call had begun.
    fn was_cut(&self, call: &NetCall) -> bool {
        self.path(call)
            .iter()
            .any(|server| self.scenario.crashes(*server).any(|at| at >= call.start))
    }

    /// Whether its registrar may have lost who is called by right.
    fn callee_may_be_lost(&self, call: &NetCall) -> bool {
        let scenario = self.scenario;
        let home = scenario.home_of(scenario.phones[call.to].user);
        let keeps =
            scenario.servers[home].durability == DurabilityPlan::Commit && !scenario.clock_jumps(home);
        !keeps && scenario.crashes(home).next().is_some()
    }

    /// A connection of a phone that is called may have ended under it: whether what was sent on it
    /// arrived is not known then, and its other way is tried (RFC 3261 §16.9).
    fn lost_connection(&self, call: &NetCall, phone: usize) -> bool {
        let callee = self.scenario.node_of_phone(phone);
        let ends = |t: &TroublePlan| match t.trouble {
            Trouble::Reset => true,
            Trouble::Partition { other, .. } => other == callee || t.node == callee,
            Trouble::Crash { .. }
            | Trouble::WallJump { .. }
            | Trouble::Slow { .. }
            | Trouble::Dead { .. }
            | Trouble::Failing { .. }
            | Trouble::Disk { .. } => false,
        };
        let late = |t: &&TroublePlan| t.at + 2 * USER_TIMEOUT >= call.start;
        let streams = self.scenario.phones[phone].speaks != Speaks::Udp;
        streams && self.scenario.troubles.iter().filter(late).any(ends)
    }

    /// A server on the way has bounds so small that it may refuse.
    fn may_refuse(&self, call: &NetCall) -> bool {
        self.path(call)
            .iter()
            .any(|server| self.scenario.servers[*server].tight)
    }
}

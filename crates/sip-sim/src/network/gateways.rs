//! A group of gateways: user agents that do not register, to which a rule of one server leads. The server
//! tries one after the other: after a 503, after some silence, or if a gateway cannot be reached. Drawn from
//! a random generator of its own.

use serde::{Deserialize, Serialize};

use super::forks::{links, refusal};
use super::scenario::{
    BranchPlan, NetCall, PhonePlan, Reaction, Scenario, Speaks, Trouble, TroublePlan, USERS,
};
use crate::clock::{MS, Micros, SECOND};
use crate::rng::Rng;

/// The user whose phones are the gateways.
pub const GATEWAY_USER: usize = USERS.len();
/// The domain that leads to the gateways.
pub(super) const DOMAIN: &str = "gateways.example";
/// The number that callers call there.
pub(super) const NUMBER: &str = "0019005550123@gateways.example";
/// Most gateways.
const MOST: u64 = 5;

/// A group of gateways.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GatewaysPlan {
    /// The server with the group. It keeps state.
    pub server: usize,
    /// Distribution of calls.
    pub sharing: Sharing,
    /// Silence after which the next gateway is tried.
    pub reply_timeout: Micros,
}

/// Distribution of calls, as [`sip_core::dispatcher::Distribution`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Sharing {
    /// In turn.
    RoundRobin,
    /// By weight.
    Weighted,
    /// By a hash of Call-ID.
    CallId,
    /// To the gateway with the fewest calls.
    LeastLoad,
    /// To the first available gateway.
    Priority,
}

impl Scenario {
    /// Whether a call goes to the group.
    pub fn is_to_group(&self, call: &NetCall) -> bool {
        self.phones[call.to].user == GATEWAY_USER
    }

    /// Whether a member of the group may send nothing until the next one has its turn.
    pub fn may_be_late(&self, call: &NetCall, phone: usize) -> bool {
        let plan = self.branch_plan(call, phone);
        let decides = match plan.reaction {
            Reaction::Answer(after) | Reaction::Busy(after) | Reaction::Refuse(after, _) => after,
            Reaction::Ring | Reaction::Silent => Micros::MAX,
        };
        let speaks = if plan.trying {
            0
        } else {
            plan.ring_after.unwrap_or(decides).min(decides)
        };
        let group = self.gateways.filter(|_| self.is_to_group(call));
        group.is_some_and(|group| speaks.saturating_add(SECOND) >= group.reply_timeout)
    }
}

/// Adds a group, to a quarter of all scenarios. Half of the calls go to the group.
pub(super) fn group(scenario: &mut Scenario) {
    let mut rng = Rng::new(scenario.seed ^ 0x6761_7465);
    if !rng.chance(250) {
        return;
    }
    let server = rng.between(0, scenario.servers.len() as u64 - 1) as usize;
    scenario.servers[server].stateful = true;
    scenario.gateways = Some(GatewaysPlan {
        server,
        sharing: rng.pick(&[
            Sharing::RoundRobin,
            Sharing::Weighted,
            Sharing::CallId,
            Sharing::LeastLoad,
            Sharing::Priority,
        ]),
        reply_timeout: rng.pick(&[2, 8]) * SECOND,
    });
    let first = scenario.phones.len();
    for _ in 0..rng.between(2, MOST) {
        scenario.phones.push(PhonePlan {
            user: GATEWAY_USER,
            speaks: Speaks::Udp,
            rport: rng.chance(700),
            expires_s: 0,
            start: 0,
            leaves: Vec::new(),
            fetch_every: 0,
            end: 0,
            q: None,
        });
    }
    links(&mut rng, scenario);
    troubles(&mut rng, scenario, first);
    for place in 0..scenario.calls.len() {
        if !rng.chance(500) {
            continue;
        }
        let mut call = scenario.calls[place];
        scenario.branches.retain(|branch| branch.call != call.call);
        call.to = first;
        reactions(&mut rng, scenario, &mut call);
        scenario.calls[place] = call;
    }
}

/// Takes a gateway, or its network, away for a while.
fn troubles(rng: &mut Rng, scenario: &mut Scenario, first: usize) {
    for _ in 0..rng.pick(&[0, 0, 1, 2]) {
        let place = rng.between(first as u64, scenario.phones.len() as u64 - 1) as usize;
        let lasts = rng.between(SECOND / 2, 20 * SECOND);
        let other = scenario.home_of(GATEWAY_USER);
        let trouble = match rng.between(0, 2) {
            0 => Trouble::Partition { other, lasts },
            _ => Trouble::Crash {
                power: rng.chance(500),
                lasts,
            },
        };
        scenario.troubles.push(TroublePlan {
            at: rng.between(SECOND, scenario.heal_at - SECOND),
            node: scenario.node_of_phone(place),
            trouble,
        });
    }
    scenario.troubles.sort_by_key(|t| t.at);
}

/// Draws the reaction of each gateway to a call.
fn reactions(rng: &mut Rng, scenario: &mut Scenario, call: &mut NetCall) {
    let latest = rng.pick(&[0, 300 * MS, 3 * SECOND, 25 * SECOND]);
    let gateways: Vec<usize> = scenario.callees(call).collect();
    for phone in gateways {
        let after = rng.between(0, latest);
        let reaction = match rng.between(0, 11) {
            0..4 => Reaction::Answer(after),
            4..7 => Reaction::Refuse(after, 503),
            7..9 => Reaction::Refuse(after, refusal(rng)),
            9 => Reaction::Ring,
            _ => Reaction::Silent,
        };
        let speaks = reaction != Reaction::Silent;
        // Some gateways send nothing until the next one has its turn.
        let is_late = rng.chance(300);
        let latest = if is_late { 12 * SECOND } else { 800 * MS };
        let ring_after = (speaks && (is_late || rng.chance(800))).then(|| rng.between(0, latest));
        let trying = speaks && !is_late && (rng.chance(300) || ring_after.is_none());
        let plan = BranchPlan {
            call: call.call,
            phone,
            trying,
            ring_after,
            reaction,
        };
        scenario.plan(call, plan);
    }
    call.cancel_after = match rng.between(0, 9) {
        0 => rng.between(0, 300),
        1 | 2 => rng.between(0, latest + SECOND),
        3..5 => 70 * SECOND,
        _ => 200 * SECOND,
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_of_the_scenarios_has_a_group_that_is_called() {
        let some = (0..1_000).map(Scenario::of).filter(|s| s.gateways.is_some());
        let called = some.filter(|s| s.calls.iter().any(|call| s.is_to_group(call)));
        let count = called.count();
        assert!((200..300).contains(&count), "{count}");
    }

    #[test]
    fn no_gateway_calls() {
        for scenario in (0..500).map(Scenario::of) {
            for call in &scenario.calls {
                assert_ne!(scenario.phones[call.from].user, GATEWAY_USER);
            }
        }
    }
}

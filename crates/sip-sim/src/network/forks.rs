//! Users with several phones, and the reaction of each phone to a call for all of them. Drawn from a random
//! generator of their own after everything else.

use super::links::{LinkPlan, Worst};
use super::scenario::{BranchPlan, GATEWAY_USER, NetCall, Reaction, Scenario, Trouble, TroublePlan, phone};
use crate::clock::{MS, Micros, SECOND};
use crate::rng::Rng;

/// Most phones of one user.
const MOST_PHONES: u64 = 3;

impl Scenario {
    /// The phones of one user, by their indexes.
    pub fn phones_of(&self, user: usize) -> impl Iterator<Item = usize> + '_ {
        let places = self.phones.iter().enumerate();
        places
            .filter(move |(_, p)| p.user == user)
            .map(|(place, _)| place)
    }

    /// Most phones that a user of the scenario has.
    pub fn most_phones(&self) -> usize {
        let of_users = (0..=GATEWAY_USER).map(|user| self.phones_of(user).count());
        of_users.max().unwrap_or(0)
    }

    /// The phones to which a call may come.
    pub fn callees(&self, call: &NetCall) -> impl Iterator<Item = usize> + '_ {
        self.phones_of(self.phones[call.to].user)
    }

    /// Plans one phone of a call: the one that the call names has its plan in the call.
    pub(super) fn plan(&mut self, call: &mut NetCall, plan: BranchPlan) {
        if plan.phone == call.to {
            (call.trying, call.ring_after, call.reaction) = (plan.trying, plan.ring_after, plan.reaction);
        } else {
            self.branches.push(plan);
        }
    }
}

/// Gives users several phones, in a third of all scenarios.
pub(super) fn several_phones(scenario: &mut Scenario, over: Micros) {
    let mut rng = Rng::new(scenario.seed ^ 0x666f_726b_6564);
    if !rng.chance(400) {
        return;
    }
    let mut forked: Vec<usize> = Vec::new();
    for first in 0..scenario.phones.len() {
        if !rng.chance(500) {
            continue;
        }
        forked.push(first);
        let user = scenario.phones[first].user;
        let by_q = rng.chance(400);
        let preference = |rng: &mut Rng| by_q.then(|| rng.pick(&[1_000, 1_000, 500, 250]));
        scenario.phones[first].q = preference(&mut rng);
        for _ in 1..rng.between(2, MOST_PHONES) {
            let mut another = phone(&mut rng, user, scenario.heal_at, over);
            another.q = preference(&mut rng);
            scenario.phones.push(another);
        }
    }
    links(&mut rng, scenario);
    troubles(&mut rng, scenario);
    if forked.is_empty() {
        return;
    }
    for place in 0..scenario.calls.len() {
        let mut call = scenario.calls[place];
        // More calls to users with several phones, and from all of these.
        let to = rng.pick(&forked);
        if rng.chance(600) && scenario.phones[to].user != scenario.phones[call.from].user {
            call.to = to;
        }
        let own: Vec<usize> = scenario.phones_of(scenario.phones[call.from].user).collect();
        call.from = rng.pick(&own);
        if scenario.callees(&call).count() > 1 {
            reactions(&mut rng, scenario, &mut call);
        }
        scenario.calls[place] = call;
    }
}

/// Links of the new phones, as bad as the others at most.
pub(super) fn links(rng: &mut Rng, scenario: &mut Scenario) {
    let worst = |of: fn(&LinkPlan) -> u64| scenario.links.iter().map(of).max().unwrap_or(0);
    let most = Worst {
        loss: worst(|link| link.loss.into()),
        duplication: worst(|link| link.duplication.into()),
        delay: worst(|link| link.delay),
    };
    let known: Vec<(usize, usize)> = scenario.links.iter().map(|link| (link.from, link.to)).collect();
    let nodes = scenario.node_of_phone(scenario.phones.len());
    let servers = scenario.servers.len();
    let pairs = (0..nodes).flat_map(|from| (0..nodes).map(move |to| (from, to)));
    // Phones do not send to each other.
    let pairs = pairs.filter(|(from, to)| from != to && (*from < servers || *to < servers));
    for (from, to) in pairs.filter(|pair| !known.contains(pair)) {
        scenario.links.push(most.link(rng, from, to));
    }
}

/// Adds troubles of some of the phones.
fn troubles(rng: &mut Rng, scenario: &mut Scenario) {
    for _ in 0..rng.pick(&[0, 0, 1, 2]) {
        let place = rng.between(0, scenario.phones.len() as u64 - 1) as usize;
        let trouble = if rng.chance(500) {
            Trouble::Reset
        } else {
            Trouble::Partition {
                other: scenario.home_of(scenario.phones[place].user),
                lasts: rng.between(SECOND / 2, 20 * SECOND),
            }
        };
        scenario.troubles.push(TroublePlan {
            at: rng.between(SECOND, scenario.heal_at - SECOND),
            node: scenario.node_of_phone(place),
            trouble,
        });
    }
    scenario.troubles.sort_by_key(|t| t.at);
}

/// Pattern of the reactions of the called user's phones.
#[derive(Clone, Copy)]
enum Mood {
    /// One phone answers while the others ring.
    OneAnswers,
    /// Several phones answer at nearly the same time.
    AllAnswer,
    /// All phones refuse.
    AllRefuse,
    /// One phone declines for all (6xx), the others ring.
    OneDeclines,
    /// One phone is busy, the others ring.
    OneIsBusy,
    /// The phones ring until the caller gives up.
    AllRing,
    /// Each phone reacts by itself.
    Any,
}

/// Draws the reaction of each phone to a call.
fn reactions(rng: &mut Rng, scenario: &mut Scenario, call: &mut NetCall) {
    let mood = rng.pick(&[
        Mood::OneAnswers,
        Mood::AllAnswer,
        Mood::AllAnswer,
        Mood::AllRefuse,
        Mood::AllRefuse,
        Mood::OneDeclines,
        Mood::OneIsBusy,
        Mood::AllRing,
        Mood::Any,
        Mood::Any,
    ]);
    let latest = rng.pick(&[300 * MS, 3 * SECOND, 25 * SECOND]);
    let common = rng.between(0, latest);
    let phones: Vec<usize> = scenario.callees(call).collect();
    let one = rng.pick(&phones);
    for phone in phones {
        let soon = common
            + rng.pick(&[
                0,
                rng.clone().between(0, 20 * MS),
                rng.clone().between(0, 400 * MS),
            ]);
        let reaction = match mood {
            Mood::OneAnswers if phone == one => Reaction::Answer(common),
            Mood::OneDeclines if phone == one => Reaction::Refuse(common, 603),
            Mood::OneIsBusy if phone == one => Reaction::Busy(common),
            Mood::OneAnswers | Mood::OneDeclines | Mood::OneIsBusy | Mood::AllRing => Reaction::Ring,
            Mood::AllAnswer => Reaction::Answer(soon),
            Mood::AllRefuse => Reaction::Refuse(soon, refusal(rng)),
            Mood::Any => any(rng, latest),
        };
        let speaks = reaction != Reaction::Silent;
        let ring_after = (speaks && rng.chance(800)).then(|| rng.between(0, 800 * MS));
        // RFC 3261 §17.2.1: a phone that does not ring at once sends 100.
        let trying = speaks && (rng.chance(300) || ring_after.is_none());
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
        1 => rng.between(0, common + SECOND),
        2 => common + rng.between(0, 600 * MS),
        3..6 => 70 * SECOND,
        _ => 200 * SECOND,
    };
}

fn any(rng: &mut Rng, latest: Micros) -> Reaction {
    let after = rng.between(0, latest);
    match rng.between(0, 9) {
        0..3 => Reaction::Answer(after),
        3..6 => Reaction::Refuse(after, refusal(rng)),
        6 => Reaction::Busy(after),
        7 | 8 => Reaction::Ring,
        _ => Reaction::Silent,
    }
}

pub(super) fn refusal(rng: &mut Rng) -> u16 {
    rng.pick(&[302, 401, 401, 404, 480, 486, 486, 500, 503, 503, 603])
}

#[cfg(test)]
mod tests {
    use super::super::scenario::{Challenges, ServerPlan};
    use super::*;

    #[test]
    fn a_third_of_the_scenarios_has_users_with_several_phones() {
        let forks = |seed: &u64| {
            let scenario = Scenario::of(*seed);
            (0..GATEWAY_USER).any(|user| scenario.phones_of(user).count() > 1)
        };
        let some = (0..1_000).filter(forks).count();
        assert!((250..420).contains(&some), "{some}");
    }

    /// A scenario from before users had several phones can still be read and played.
    #[test]
    fn an_older_scenario_is_read() {
        let is_plain = |s: &Scenario| {
            let usual = |server: &ServerPlan| {
                let is_known = server.record_route && server.limit.is_none();
                is_known && server.challenges == Challenges::default()
            };
            s.branches.is_empty() && s.gateways.is_none() && s.servers.iter().all(usual)
        };
        let plain = (0..).map(Scenario::of).find(is_plain).unwrap();
        let mut text = serde_json::to_value(&plain).unwrap();
        for key in ["branches", "gateways"] {
            text.as_object_mut().unwrap().remove(key);
        }
        for server in text["servers"].as_array_mut().unwrap() {
            for key in ["record_route", "challenges", "limit"] {
                server.as_object_mut().unwrap().remove(key);
            }
        }
        for phone in text["phones"].as_array_mut().unwrap() {
            phone.as_object_mut().unwrap().remove("q");
        }
        assert_eq!(serde_json::from_value::<Scenario>(text).unwrap(), plain);
    }

    #[test]
    fn no_phone_calls_itself() {
        for scenario in (0..500).map(Scenario::of) {
            for call in &scenario.calls {
                assert!(!scenario.callees(call).any(|phone| phone == call.from));
            }
        }
    }
}

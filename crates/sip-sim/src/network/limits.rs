//! Servers with a limit on the messages of one source, and floods of the stranger against them. Drawn from a
//! random generator of their own.

use super::attacks::{Attack, AttackPlan};
use super::scenario::{Scenario, SourceLimit};
use crate::clock::SECOND;
use crate::rng::Rng;

/// A limit above what any phone sends here.
const LIMIT: SourceLimit = SourceLimit { rate: 20, burst: 80 };
/// Least and most messages of one flood.
const FLOOD: (u64, u64) = (100, 250);

/// Sets the limit for a quarter of all servers. A server that has to look its next hop up has none: while a
/// limit is set, the server looks up the next hop's address every five minutes, and no run would end.
pub(super) fn limits(scenario: &mut Scenario) {
    let mut rng = Rng::new(scenario.seed ^ 0x666c_6f6f);
    let servers = scenario.servers.len();
    let latest = scenario.heal_at + 30 * SECOND;
    for server in 0..servers {
        let plan = &mut scenario.servers[server];
        if plan.next.is_some_and(|next| next.by_name) || !rng.chance(250) {
            continue;
        }
        plan.limit = Some(LIMIT);
        // Without attacks there is no stranger, and its node would be new.
        if scenario.attacks.is_empty() {
            continue;
        }
        for _ in 0..rng.between(1, 2) {
            let other = rng.between(0, servers as u64 - 1) as usize;
            let attack = Attack::Flood {
                count: rng.between(FLOOD.0, FLOOD.1) as u32,
                // From the forged address of a server that the flooded one trusts.
                named: (other != server && rng.chance(300)).then_some(other),
            };
            let at = rng.between(0, latest);
            scenario.attacks.push(AttackPlan { at, server, attack });
        }
    }
    scenario.attacks.sort_by_key(|attack| attack.at);
}

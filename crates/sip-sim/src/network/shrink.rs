//! Shrinking: makes a scenario that breaks a rule smaller, as long as it breaks the rule. It tries fewer
//! troubles, calls, phones and faulty links, and plainer servers (after Zeller's delta debugging: halves
//! first, then smaller pieces). The ladder of the result is short enough to read.

use super::scenario::{AuthPlan, Challenges, GATEWAY_USER, Scenario, Speaks};
use crate::clock::SECOND;

/// Searches for smaller scenarios that still break the rule according to `fails`, in at most `budget` runs.
pub fn shrink(scenario: Scenario, budget: usize, fails: impl FnMut(&Scenario) -> bool) -> Scenario {
    let mut search = Search {
        best: scenario,
        left: budget,
        fails,
    };
    let mut before = None;
    while search.left > 0 && before.as_ref() != Some(&search.best) {
        before = Some(search.best.clone());
        search.thin(
            |s| s.troubles.len(),
            |s, from, to| drop(s.troubles.drain(from..to)),
        );
        search.thin(|s| s.calls.len(), |s, from, to| drop(s.calls.drain(from..to)));
        search.thin(
            |s| s.branches.len(),
            |s, from, to| drop(s.branches.drain(from..to)),
        );
        search.thin(|s| s.attacks.len(), |s, from, to| drop(s.attacks.drain(from..to)));
        search.thin(|s| s.links.len(), |s, from, to| drop(s.links.drain(from..to)));
        search.without_phones();
        search.plainer();
    }
    search.best
}

struct Search<F> {
    best: Scenario,
    left: usize,
    fails: F,
}

impl<F: FnMut(&Scenario) -> bool> Search<F> {
    /// Keeps `change` if the rule is still broken with it. Returns whether it was kept.
    fn take(&mut self, change: impl FnOnce(&mut Scenario)) -> bool {
        let mut smaller = self.best.clone();
        change(&mut smaller);
        if self.left == 0 || smaller == self.best {
            return false;
        }
        self.left -= 1;
        let taken = (self.fails)(&smaller);
        if taken {
            self.best = smaller;
        }
        taken
    }

    /// Removes all, halves, quarters, … single elements of a list.
    fn thin(&mut self, len: impl Fn(&Scenario) -> usize, remove: impl Fn(&mut Scenario, usize, usize)) {
        let mut size = len(&self.best);
        while size > 0 {
            let mut from = 0;
            while from < len(&self.best) {
                let to = (from + size).min(len(&self.best));
                if !self.take(|s| remove(s, from, to)) {
                    from = to;
                }
            }
            size /= 2;
        }
    }

    /// Removes phones without calls. If a user has several, another one may take a phone's calls.
    fn without_phones(&mut self) {
        let mut place = self.best.phones.len();
        while place > 0 {
            place -= 1;
            let user = self.best.phones[place].user;
            let other = self.best.phones_of(user).find(|other| *other != place);
            if let Some(other) = other
                && self.take(|s| calls_with(s, place, other))
            {
                continue;
            }
            let in_use = self.best.calls.iter().any(|c| c.from == place || c.to == place);
            if !in_use && self.best.phones.len() > 1 {
                self.take(|s| remove_phone(s, place));
            }
        }
    }

    fn plainer(&mut self) {
        for place in 0..self.best.phones.len() {
            self.take(|s| s.phones[place].leaves.clear());
            self.take(|s| s.phones[place].speaks = Speaks::Udp);
            self.take(|s| s.phones[place].q = None);
            self.take(|s| s.phones[place].rport = true);
            self.take(|s| s.phones[place].fetch_every = 100_000 * SECOND);
        }
        for server in 0..self.best.servers.len() {
            self.take(|s| s.servers[server].workers = 1);
            self.take(|s| s.servers[server].auth = AuthPlan::Off);
            self.take(|s| s.servers[server].tight = false);
            self.take(|s| s.servers[server].backend_us = 0);
            self.take(|s| s.servers[server].record_route = true);
            self.take(|s| s.servers[server].challenges = Challenges::default());
            self.take(|s| s.servers[server].limit = None);
            self.take(|s| {
                if let Some(next) = &mut s.servers[server].next {
                    (next.tcp, next.by_name) = (false, false);
                }
            });
        }
        for link in 0..self.best.links.len() {
            self.take(|s| s.links[link].duplication = 0);
            self.take(|s| s.links[link].loss = 0);
            self.take(|s| s.links[link].reorder = false);
        }
    }
}

/// Removes a phone whose calls another phone of its user takes.
fn calls_with(scenario: &mut Scenario, place: usize, other: usize) {
    for call in &mut scenario.calls {
        for phone in [&mut call.from, &mut call.to] {
            *phone = if *phone == place { other } else { *phone };
        }
    }
    remove_phone(scenario, place);
}

/// Removes a phone; those behind it move up.
fn remove_phone(scenario: &mut Scenario, place: usize) {
    let node = scenario.node_of_phone(place);
    scenario.phones.remove(place);
    if scenario.phones_of(GATEWAY_USER).next().is_none() {
        scenario.gateways = None;
    }
    for call in &mut scenario.calls {
        call.from -= usize::from(call.from > place);
        call.to -= usize::from(call.to > place);
    }
    scenario.branches.retain(|branch| branch.phone != place);
    for branch in &mut scenario.branches {
        branch.phone -= usize::from(branch.phone > place);
    }
    let moved = |n: &mut usize| *n -= usize::from(*n > node);
    scenario.links.retain(|link| link.from != node && link.to != node);
    for link in &mut scenario.links {
        moved(&mut link.from);
        moved(&mut link.to);
    }
    scenario.troubles.retain(|trouble| trouble.node != node);
    for trouble in &mut scenario.troubles {
        moved(&mut trouble.node);
    }
}

#[cfg(test)]
mod tests {
    use super::super::scenario::{Trouble, TroublePlan};
    use super::*;

    #[test]
    fn what_matters_is_left() {
        let mut scenario = (0..).map(Scenario::of).find(|s| s.phones.len() > 4).unwrap();
        let reset = TroublePlan {
            at: 5,
            node: 0,
            trouble: Trouble::Reset,
        };
        scenario
            .troubles
            .insert(scenario.troubles.len() / 2, reset.clone());
        let call = scenario.calls[scenario.calls.len() / 2];
        let (from, to) = (scenario.phones[call.from].user, scenario.phones[call.to].user);
        let mut runs = 0;
        let smallest = shrink(scenario, 2_000, |s| {
            runs += 1;
            let has = |c: &super::super::scenario::NetCall| {
                c.call == call.call && s.phones[c.from].user == from && s.phones[c.to].user == to
            };
            s.troubles.contains(&reset) && s.calls.iter().any(has)
        });
        assert_eq!(smallest.troubles, [reset]);
        assert_eq!(
            (smallest.calls.len(), smallest.phones.len()),
            (1, 2),
            "{smallest:?}"
        );
        assert!(smallest.links.is_empty());
        assert!(runs <= 2_000);
    }

    #[test]
    fn users_keep_as_many_phones_as_it_takes() {
        let scenario = (0..).map(Scenario::of).find(|s| s.branches.len() > 4).unwrap();
        let several = |s: &Scenario| {
            let two = |call: &super::super::scenario::NetCall| s.callees(call).count() > 1;
            s.calls.iter().any(two)
        };
        let smallest = shrink(scenario.clone(), 2_000, several);
        assert_eq!(
            (smallest.calls.len(), smallest.phones.len()),
            (1, 3),
            "{smallest:?}"
        );
        assert!(smallest.branches.is_empty());
        let one = shrink(scenario, 2_000, |s| !s.calls.is_empty());
        assert_eq!((one.calls.len(), one.phones.len()), (1, 2), "{one:?}");
    }
}

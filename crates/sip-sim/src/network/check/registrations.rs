//! The reference: what a registrar may say, given what it was asked and what it answered.
//!
//! Of each phone it is known whether its binding is there, is not, or may be either: an answer
//! makes it certain, a question that was not answered uncertain. A crash leaves it certain where
//! the registrar had promised that (`durability = "commit"`). Where the wall clock of the registrar
//! is set, registrations last by the time that passes still, but a little faster or slower until it
//! has caught up ([`sip_core::time::SteadyWall`]); a start goes by the clock as it is, and what was
//! bound before may last longer or shorter by as much as that was set.

use super::super::phone::contact;
use super::super::scenario::{
    Attack, BackendKind, DiskFault, DurabilityPlan, PhonePlan, Scenario, Speaks, Trouble, aor,
};
use super::super::server::config::GRANTS_S;
use super::Violation;
use crate::agent::registration::{Ask, Registration};
use crate::clock::{Micros, SECOND};
use crate::report::RequestEnd;

/// Expiry is in whole seconds, at both ends.
const SLACK: Micros = 2 * SECOND;

/// The longest that a registrar grants.
const MAX_GRANT: Micros = GRANTS_S.1 as Micros * SECOND;
/// A copy of a request may come this much later.
const LATE_COPY: Micros = 40 * SECOND;

/// By which part of the time a registrar's clock may go wrong while it catches up.
const SLEWING: u64 = 20;

/// What is known of a binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// It is there since then, and ends between these times.
    Bound(Micros, Micros, Micros),
    Unbound,
    /// It may be there, until then at the latest.
    Either,
}

/// Judges what the phones of a user were told of this one.
pub(super) fn check(scenario: &Scenario, place: usize, histories: &[&[Registration]]) -> Vec<Violation> {
    let phone = &scenario.phones[place];
    let history = told_of(scenario, place, histories);
    let home = scenario.home_of(phone.user);
    let mut model = Model {
        phone,
        own: contact(scenario, place),
        all: scenario
            .phones_of(phone.user)
            .map(|other| contact(scenario, other))
            .collect(),
        known: Known::Unbound,
        forgets_removals: scenario.crashes(home).next().is_some()
            && scenario
                .attacks
                .iter()
                .any(|a| matches!(a.attack, Attack::LateCopy { .. })),
        waits_for_disk: scenario.servers[home].durability == DurabilityPlan::Commit,
        jumps: scenario.clock_jumps(home),
        crashes: match scenario.servers[home].durability {
            DurabilityPlan::Commit if !scenario.clock_jumps(home) => Vec::new(),
            DurabilityPlan::Commit | DurabilityPlan::Async | DurabilityPlan::Memory => {
                scenario.crashes(home).collect()
            }
        },
        kills: scenario.crashes(home).collect(),
        restarts: scenario.crashes(home).collect(),
        doubtful: false,
        found: Vec::new(),
    };
    let diskless = diskless(scenario, home);
    for registration in &history {
        model.follow(registration);
        if let (Some((from, to)), Ask::Bind(_)) = (&diskless, registration.ask)
            && registration.end == RequestEnd::Answered(200)
            && registration.sent_at >= *from
            && registration.ended_at.is_some_and(|at| at < *to)
        {
            model.violate(
                "answered unsaved",
                format!("no disk could have it: {registration:?}"),
            );
        }
        let refused_by_right = scenario.servers[home].tight;
        if registration.sent_at >= scenario.settled_at()
            && registration.end != RequestEnd::Answered(200)
            && !refused_by_right
        {
            let what = format!("nothing was wrong any more, and {registration:?}");
            model.violate("REGISTER lost", what);
        }
    }
    model.found
}

/// What was asked and answered of the binding of a phone, in the order of the answers: by itself, and
/// the lists that other phones of its user got while it asked for nothing.
fn told_of(scenario: &Scenario, place: usize, histories: &[&[Registration]]) -> Vec<Registration> {
    let own = histories[place];
    let overlaps = |other: &Registration| {
        let ends = |r: &Registration| r.ended_at.unwrap_or(Micros::MAX);
        own.iter()
            .any(|r| r.sent_at <= ends(other) && other.sent_at <= ends(r))
    };
    let others = scenario
        .phones_of(scenario.phones[place].user)
        .filter(|other| *other != place && *other < histories.len())
        .flat_map(|other| histories[other])
        .filter(|r| r.end == RequestEnd::Answered(200) && !overlaps(r))
        .map(|r| Registration {
            ask: Ask::Fetch,
            ..r.clone()
        });
    let mut all: Vec<Registration> = own.iter().cloned().chain(others).collect();
    all.sort_by_key(|r| r.ended_at.unwrap_or(Micros::MAX));
    all
}

/// When a registrar that promises to answer once a registration is on disk has no disk that would
/// take it.
fn diskless(scenario: &Scenario, home: usize) -> Option<(Micros, Micros)> {
    if scenario.servers[home].durability != DurabilityPlan::Commit {
        return None;
    }
    let of_store = scenario.troubles.iter().filter_map(|t| match t.trouble {
        _ if t.node != home => None,
        // Whatever fails now and then, or has little room, may take one: then that it did is judged
        // where it says so ([`super::super::server`]).
        Trouble::Disk { fault, lasts } => match fault {
            DiskFault::Syncs { per_mille: 1_000.. } | DiskFault::Everything { per_mille: 1_000.. } => {
                Some((t.at, lasts))
            }
            DiskFault::Full { .. } | DiskFault::Syncs { .. } | DiskFault::Everything { .. } => {
                Some((t.at, 0))
            }
        },
        Trouble::Slow { backend, .. } => (backend == BackendKind::Store).then_some((t.at, 0)),
        Trouble::Dead { backend, lasts } | Trouble::Failing { backend, lasts } => {
            (backend == BackendKind::Store).then_some((t.at, lasts))
        }
        Trouble::Crash { .. } | Trouble::Partition { .. } | Trouble::Reset | Trouble::WallJump { .. } => None,
    });
    // Of several the last counts: one alone is certain.
    let found: Vec<(Micros, Micros)> = of_store.collect();
    let &[(at, lasts)] = found.as_slice() else {
        return None;
    };
    Some((at, (at + lasts).min(scenario.heal_at)))
}

struct Model<'a> {
    phone: &'a PhonePlan,
    /// Its contact.
    own: String,
    /// Those of all phones of its user.
    all: Vec<String>,
    known: Known,
    /// A REGISTER may be held up until the registrar, which crashed, knows no more what it removed.
    forgets_removals: bool,
    /// Whether the registrar answers once it is on disk.
    waits_for_disk: bool,
    /// Whether the registrar's wall clock is set at some time.
    jumps: bool,
    /// When the registrar lost what it knew.
    crashes: Vec<Micros>,
    /// When the registrar ended, whatever it lost by that.
    kills: Vec<Micros>,
    /// The same, of the whole run.
    restarts: Vec<Micros>,
    /// A change was refused as its record was not on disk in time. It may have come there since,
    /// and the registrar have ended before that was taken back.
    doubtful: bool,
    found: Vec<Violation>,
}

impl Model<'_> {
    fn violate(&mut self, rule: &'static str, what: String) {
        let what = format!("{}: {what}", aor(self.phone.user));
        self.found.push(Violation::new(rule, None, what));
    }

    fn follow(&mut self, registration: &Registration) {
        let Some(ended_at) = registration.ended_at else {
            return self.violate("no end", format!("{registration:?}"));
        };
        let sent_at = registration.sent_at;
        // It may have been before the question, or between it and its answer.
        let before = self.crashes.iter().any(|at| *at <= ended_at);
        let between = self.crashes.iter().any(|at| (sent_at..=ended_at).contains(at));
        self.crashes.retain(|at| *at > ended_at);
        let killed = self.kills.iter().any(|at| *at <= ended_at);
        self.kills.retain(|at| *at > ended_at);
        if before || killed && self.doubtful {
            self.known = Known::Either;
        }
        let answered = registration.end == RequestEnd::Answered(200);
        let refused = matches!(registration.end, RequestEnd::Answered(300..));
        if answered {
            self.others(registration);
        }
        if registration.ask != Ask::Fetch {
            self.doubtful = !answered;
        }
        match registration.ask {
            Ask::Fetch if answered => self.fetched(registration, sent_at, ended_at),
            Ask::Fetch => {}
            Ask::Bind(asked) if answered => {
                self.known = match self.own(registration) {
                    Some(granted) if self.is_due(registration, asked, granted, ended_at) => {
                        let granted = u64::from(granted) * SECOND;
                        Known::Bound(sent_at, sent_at + granted, ended_at + granted)
                    }
                    found => {
                        self.violate(
                            "wrong grant",
                            format!("{asked} s were asked, and granted {found:?}"),
                        );
                        Known::Either
                    }
                };
            }
            Ask::Unbind if answered && self.forgets_removals => self.known = Known::Either,
            Ask::Unbind if answered => self.known = Known::Unbound,
            // RFC 3261 §10.3: what is refused leaves the bindings as they were. A datagram may have come
            // more than once, and one copy have been taken.
            Ask::Bind(_) | Ask::Unbind if refused && self.phone.speaks != Speaks::Udp => {}
            Ask::Bind(_) => self.known = self.refused(ended_at),
            Ask::Unbind => self.known = Known::Either,
        }
        if between {
            self.known = Known::Either;
        }
    }

    /// Whether so much is what the registrar's configuration grants to who asks for so much. A datagram
    /// may have come before, and its answer have been lost, and an answer that waits for the disk tells
    /// what is left then: some of it has passed. (Where the registrar started in between by a clock that
    /// was set, any of it, or none.)
    fn is_due(&self, registration: &Registration, asked: u32, granted: u32, ended_at: Micros) -> bool {
        let (shortest, longest) = GRANTS_S;
        if asked < shortest {
            return false;
        }
        let due = asked.min(longest);
        if self.phone.speaks != Speaks::Udp && !self.waits_for_disk {
            return granted == due;
        }
        let began = registration.sent_at;
        if self.jumps && self.restarts.iter().any(|at| (began..=ended_at).contains(at)) {
            return true;
        }
        let passed = (ended_at - began) / SECOND + 1;
        let passed = if self.jumps {
            passed + passed / SLEWING
        } else {
            passed
        };
        (u64::from(due).saturating_sub(passed)..=u64::from(due)).contains(&u64::from(granted))
    }

    /// After a refresh that was refused, or not answered: it may have been done, now or by a late
    /// copy, but what was there before is there in any case (RFC 3261 §10.3).
    fn refused(&self, ended_at: Micros) -> Known {
        match self.known {
            Known::Bound(since, earliest, latest) => {
                let latest = latest.max(ended_at + LATE_COPY + MAX_GRANT);
                Known::Bound(since, earliest, latest)
            }
            Known::Unbound | Known::Either => Known::Either,
        }
    }

    /// Seconds that the own contact has left.
    fn own(&self, registration: &Registration) -> Option<u32> {
        let found = registration
            .contacts
            .iter()
            .find(|(contact, _)| *contact == self.own);
        found.map(|(_, left)| *left)
    }

    /// A 200 lists what the user's phones bound, each once (RFC 3261 §10.3 step 8).
    fn others(&mut self, registration: &Registration) {
        let mut left = self.all.clone();
        for (contact, _) in &registration.contacts {
            match left.iter().position(|known| known == contact) {
                Some(at) => drop(left.swap_remove(at)),
                None => return self.violate("foreign binding", format!("{:?}", registration.contacts)),
            }
        }
    }

    fn fetched(&mut self, registration: &Registration, sent_at: Micros, ended_at: Micros) {
        let found = self.own(registration);
        let slack = match self.known {
            Known::Bound(since, ..) if self.jumps => SLACK + (ended_at - since) / SLEWING,
            Known::Bound(..) | Known::Unbound | Known::Either => SLACK,
        };
        match (self.known, found) {
            (Known::Bound(_, earliest, _), None) if ended_at + slack < earliest => {
                let what = format!(
                    "bound until {} s, and at {} s it is gone",
                    earliest / SECOND,
                    ended_at / SECOND
                );
                self.violate("registration lost", what);
            }
            (Known::Bound(_, earliest, latest), Some(left)) => {
                let left = u64::from(left) * SECOND;
                let (shortest, longest) = (earliest.saturating_sub(ended_at), latest.saturating_sub(sent_at));
                if left + slack < shortest || left > longest + slack {
                    let what = format!("{left} µs are left, and should be {shortest} to {longest}");
                    self.violate("registration's end", what);
                }
            }
            (Known::Unbound, Some(left)) => {
                let what = format!("it was removed, and at {} s {left} s are left", ended_at / SECOND);
                self.violate("registration back", what);
            }
            (Known::Bound(..) | Known::Unbound, None) | (Known::Either, _) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(ask: Ask, at: Micros, end: RequestEnd, contacts: &[u32]) -> Registration {
        Registration {
            cseq: (1, 1),
            ask,
            sent_at: at * SECOND,
            ended_at: Some((at + 1) * SECOND),
            end,
            contacts: contacts
                .iter()
                .map(|left| ("sip:u0@198.51.100.10:5060".to_owned(), *left))
                .collect(),
        }
    }

    fn rules(
        durability: DurabilityPlan,
        crash: Option<Micros>,
        history: &[Registration],
    ) -> Vec<&'static str> {
        use super::super::super::scenario::TroublePlan;
        let mut scenario = Scenario::of(1);
        scenario.heal_at = 1_000 * SECOND;
        scenario.phones.truncate(1);
        scenario.phones[0].user = 0;
        scenario.phones[0].speaks = Speaks::Udp;
        scenario.servers[0].durability = durability;
        scenario.servers[0].tight = false;
        scenario.troubles = crash
            .iter()
            .map(|at| TroublePlan {
                at: at * SECOND,
                node: 0,
                trouble: Trouble::Crash {
                    power: true,
                    lasts: 1,
                },
            })
            .collect();
        check(&scenario, 0, &[history]).iter().map(|v| v.rule).collect()
    }

    const OK: RequestEnd = RequestEnd::Answered(200);

    /// RFC 3261 §10.3: it may be less than was asked for, and here it is said how much.
    #[test]
    fn what_is_granted_is_what_is_configured() {
        let grant = |asked_s, granted| {
            rules(
                DurabilityPlan::Commit,
                None,
                &[asked(Ask::Bind(asked_s), 0, OK, &[granted])],
            )
        };
        for (asked_s, granted) in [(60, 60), (300, 300), (300, 298), (600, 600), (3_600, 600)] {
            assert!(grant(asked_s, granted).is_empty(), "{granted} for {asked_s}");
        }
        for (asked_s, granted) in [
            (30, 30),
            (30, 60),
            (300, 1),
            (300, 297),
            (300, 301),
            (3_600, 3_600),
        ] {
            assert_eq!(
                grant(asked_s, granted),
                ["wrong grant"],
                "{granted} for {asked_s}"
            );
        }
    }

    /// A disk of which all syncs fail takes nothing.
    #[test]
    fn nothing_is_answered_that_no_disk_has() {
        let trouble = |fault| {
            let mut scenario = Scenario::of(1);
            scenario.heal_at = 1_000 * SECOND;
            scenario.phones.truncate(1);
            scenario.phones[0].user = 0;
            scenario.phones[0].speaks = Speaks::Udp;
            scenario.servers[0].durability = DurabilityPlan::Commit;
            scenario.troubles = vec![super::super::super::scenario::TroublePlan {
                at: 0,
                node: 0,
                trouble: Trouble::Disk {
                    fault,
                    lasts: 10 * SECOND,
                },
            }];
            let history = [asked(Ask::Bind(300), 1, OK, &[300])];
            check(&scenario, 0, &[&history])
                .iter()
                .map(|v| v.rule)
                .collect::<Vec<_>>()
        };
        for per_mille in [999, 1_000] {
            let expected: &[&str] = if per_mille < 1_000 {
                &[]
            } else {
                &["answered unsaved"]
            };
            assert_eq!(trouble(DiskFault::Syncs { per_mille }), expected);
            assert_eq!(trouble(DiskFault::Everything { per_mille }), expected);
        }
        assert!(trouble(DiskFault::Full { room: 0 }).is_empty());
    }

    #[test]
    fn what_was_answered_holds() {
        use DurabilityPlan::{Async, Commit};
        let bound = asked(Ask::Bind(300), 0, OK, &[300]);
        let gone = asked(Ask::Fetch, 10, OK, &[]);
        let there = asked(Ask::Fetch, 10, OK, &[290]);
        let unbound = asked(Ask::Unbind, 5, OK, &[]);
        let failed = asked(Ask::Unbind, 5, RequestEnd::Answered(500), &[]);
        let later = asked(Ask::Fetch, 302, OK, &[]);
        let holds = |history: &[Registration]| rules(Commit, None, history);
        assert!(holds(&[bound.clone(), there.clone()]).is_empty());
        assert_eq!(holds(&[bound.clone(), gone.clone()]), ["registration lost"]);
        assert!(holds(&[bound.clone(), later]).is_empty());
        assert_eq!(
            holds(&[bound.clone(), unbound, there.clone()]),
            ["registration back"]
        );
        let refresh = |end| asked(Ask::Bind(300), 5, end, &[]);
        for end in [RequestEnd::Answered(500), RequestEnd::TimedOut(0)] {
            assert_eq!(
                holds(&[bound.clone(), refresh(end), gone.clone()]),
                ["registration lost"]
            );
            assert!(holds(&[bound.clone(), refresh(end), there.clone()]).is_empty());
        }
        for after in [&gone, &there] {
            assert!(holds(&[bound.clone(), failed.clone(), after.clone()]).is_empty());
        }
        assert_eq!(
            holds(&[bound.clone(), asked(Ask::Fetch, 10, OK, &[200])]),
            ["registration's end"]
        );
        assert_eq!(
            rules(Commit, Some(5), &[bound.clone(), gone.clone()]),
            ["registration lost"]
        );
        assert!(rules(Async, Some(5), &[bound, gone]).is_empty());
    }
}

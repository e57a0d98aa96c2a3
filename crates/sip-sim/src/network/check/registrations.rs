//! A model of registrations: what a registrar may respond, given the requests and its earlier responses.
//!
//! Each phone's binding is known to exist, known not to exist, or uncertain. A response makes it certain, a
//! request without a response uncertain. A crash leaves it certain if the registrar had promised that
//! (`durability = "commit"`).
//!
//! If the registrar's wall clock is set, registrations still last by the passing time, but a little faster or
//! slower until the clock has caught up ([`sip_core::time::SteadyWall`]). A start uses the clock as it is, so
//! earlier bindings may last longer or shorter by as much as the clock was set.

use super::super::phone::contact;
use super::super::scenario::{
    Attack, BackendKind, DiskFault, DurabilityPlan, PhonePlan, Scenario, Speaks, Trouble, aor,
};
use super::super::server::config::GRANTS_S;
use super::Violation;
use crate::agent::registration::{Ask, Registration};
use crate::clock::{Micros, SECOND};
use crate::report::RequestEnd;

/// Slack of expiry, which is in whole seconds at both ends.
const SLACK: Micros = 2 * SECOND;

/// Longest registration that a registrar grants.
const MAX_GRANT: Micros = GRANTS_S.1 as Micros * SECOND;
/// Longest delay of a copy of a request.
const LATE_COPY: Micros = 40 * SECOND;

/// Divisor of the time by which a registrar's clock may go wrong while it catches up.
const SLEWING: u64 = 20;

/// Knowledge about a binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// The binding has existed since the first time, and ends between the other two.
    Bound(Micros, Micros, Micros),
    Unbound,
    /// The binding may exist.
    Either,
}

/// Judges the responses about this phone that the phones of its user got.
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

/// The requests and responses about a phone's binding, in the order of the responses: its own, and the lists
/// that other phones of its user got while this phone had no request under way.
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

/// When a registrar that confirms registrations only from disk has no disk that would store them.
fn diskless(scenario: &Scenario, home: usize) -> Option<(Micros, Micros)> {
    if scenario.servers[home].durability != DurabilityPlan::Commit {
        return None;
    }
    let of_store = scenario.troubles.iter().filter_map(|t| match t.trouble {
        _ if t.node != home => None,
        // A disk with occasional failures or little room may still store a registration. The server judges
        // then itself whether it did ([`super::super::server`]).
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
    // Only a single fault gives certain times: of several, the last one counts.
    let found: Vec<(Micros, Micros)> = of_store.collect();
    let &[(at, lasts)] = found.as_slice() else {
        return None;
    };
    Some((at, (at + lasts).min(scenario.heal_at)))
}

struct Model<'a> {
    phone: &'a PhonePlan,
    /// Contact of the phone.
    own: String,
    /// Contacts of all phones of the user.
    all: Vec<String>,
    known: Known,
    /// Whether a REGISTER may be delayed until the registrar, which crashed, has forgotten a removal.
    forgets_removals: bool,
    /// Whether the registrar responds once the registration is on disk.
    waits_for_disk: bool,
    /// Whether the registrar's wall clock is set at some time.
    jumps: bool,
    /// When the registrar lost its bindings. Past ones are removed.
    crashes: Vec<Micros>,
    /// When the registrar ended, with or without a loss. Past ones are removed.
    kills: Vec<Micros>,
    /// When the registrar ended, in the whole run.
    restarts: Vec<Micros>,
    /// Whether a change was refused because its record was not on disk in time. The record may have reached
    /// the disk since, and the registrar have ended before it undid the change.
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
        // A crash may have been before the request, or between the request and its response.
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
            // RFC 3261 §10.3: a refused request leaves the bindings as they were. A datagram may have come
            // more than once, and one copy may have been accepted.
            Ask::Bind(_) | Ask::Unbind if refused && self.phone.speaks != Speaks::Udp => {}
            Ask::Bind(_) => self.known = self.refused(ended_at),
            Ask::Unbind => self.known = Known::Either,
        }
        if between {
            self.known = Known::Either;
        }
    }

    /// Whether the granted seconds are those that the registrar's configuration gives for the requested ones.
    /// A datagram may have come before, with its response lost, and a response that waits for the disk has
    /// the seconds that are left: some have passed. (If the registrar started in between by a clock that was
    /// set, any number is possible.)
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

    /// Knowledge after a refresh without a 200. The refresh may have been done, now or by a late copy, but an
    /// earlier binding exists in any case (RFC 3261 §10.3).
    fn refused(&self, ended_at: Micros) -> Known {
        match self.known {
            Known::Bound(since, earliest, latest) => {
                let latest = latest.max(ended_at + LATE_COPY + MAX_GRANT);
                Known::Bound(since, earliest, latest)
            }
            Known::Unbound | Known::Either => Known::Either,
        }
    }

    /// Remaining seconds of the phone's own contact.
    fn own(&self, registration: &Registration) -> Option<u32> {
        let found = registration
            .contacts
            .iter()
            .find(|(contact, _)| *contact == self.own);
        found.map(|(_, left)| *left)
    }

    /// A 200 lists only contacts of the user's phones, each once (RFC 3261 §10.3 step 8).
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

    /// RFC 3261 §10.3: the registrar may grant less than requested. The configuration here says how much.
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

    /// A disk whose syncs all fail stores nothing.
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

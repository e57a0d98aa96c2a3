//! What must hold where a call forks, judged from what the network saw.

use crate::checker::Violation;
use crate::clock::{MS, Micros, SECOND};
use crate::node::NodeId;
use crate::report::{CallReport, RequestEnd, Side};
use crate::trace::{Log, Sent};

use super::scenario::{CALLER, FIRST_PHONE, ForkCall, ForkScenario, Kind, PROXY};

/// Timers B and F, and the patience after a CANCEL.
const TIME_OUT: Micros = 32 * SECOND;
/// The core's clock ticks.
const SLACK: Micros = 5 * MS;

/// All rules.
pub fn check(scenario: &ForkScenario, log: &Log, reports: &[CallReport]) -> Vec<Violation> {
    let mut found = Vec::new();
    for call in &scenario.calls {
        let mut case = Case::new(scenario, call, log);
        case.caller(reports);
        case.finals();
        case.branches();
        case.order();
        case.best();
        found.append(&mut case.found);
    }
    found
}

/// A branch as the proxy sees it: times are those at the proxy.
#[derive(Debug)]
struct Branch {
    phone: usize,
    invite: Micros,
    /// First response of any kind.
    heard: Option<Micros>,
    /// First final response, and when.
    answered: Option<(Micros, u16)>,
    /// First provisional response.
    rang: Option<Micros>,
    cancel: Option<Micros>,
    /// Whether a copy of the CANCEL reached the phone.
    cancel_arrived: bool,
}

impl Branch {
    /// Whether its client transaction lives at `at`; `None`: hard to say.
    fn lives(&self, at: Micros) -> Option<bool> {
        let heard = self.heard.filter(|heard| *heard < self.invite + TIME_OUT);
        let end = match (heard, self.cancel) {
            (None, _) => self.invite + TIME_OUT,
            (Some(_), None) => return Some(true),
            (Some(_), Some(cancel)) => cancel + TIME_OUT,
        };
        (at.abs_diff(end) > SECOND).then_some(at < end)
    }
}

/// One call and what is known of it.
struct Case<'a> {
    scenario: &'a ForkScenario,
    call: &'a ForkCall,
    sent: Vec<&'a Sent>,
    branches: Vec<Branch>,
    found: Vec<Violation>,
}

impl<'a> Case<'a> {
    fn new(scenario: &'a ForkScenario, call: &'a ForkCall, log: &'a Log) -> Self {
        let number = Some(call.plan.call);
        let sent = log.sent.iter().filter(|s| s.facts.call == number).collect();
        let mut case = Self {
            scenario,
            call,
            sent,
            branches: Vec::new(),
            found: Vec::new(),
        };
        case.branches = (0..scenario.phones)
            .filter_map(|phone| case.branch(phone))
            .collect();
        case
    }

    fn violate(&mut self, rule: &'static str, what: impl Into<String>) {
        self.found
            .push(Violation::new(rule, Some(self.call.plan.call), what));
    }

    fn on_hop(&self, from: NodeId, to: NodeId) -> impl Iterator<Item = &'a Sent> + '_ {
        self.sent
            .iter()
            .copied()
            .filter(move |s| s.from == from && s.to == Some(to))
    }

    /// Responses of a phone to its INVITE, in the order of their first arrival at the proxy.
    fn responses(&self, phone: usize) -> Vec<(Micros, &'a Sent)> {
        let mut responses: Vec<(Micros, &Sent)> = self
            .on_hop(FIRST_PHONE + phone, PROXY)
            .filter(|s| s.facts.status.is_some() && s.facts.method == "INVITE")
            .flat_map(|s| s.arrivals.iter().map(move |at| (*at, s)))
            .collect();
        responses.sort_by_key(|r| r.0);
        responses
    }

    fn branch(&self, phone: usize) -> Option<Branch> {
        let node = FIRST_PHONE + phone;
        let invite = self.on_hop(PROXY, node).find(|s| s.facts.is_request("INVITE"))?;
        let cancels = || self.on_hop(PROXY, node).filter(|s| s.facts.is_request("CANCEL"));
        let responses = self.responses(phone);
        let status = |s: &Sent| s.facts.status.unwrap_or(0);
        Some(Branch {
            phone,
            invite: invite.at,
            heard: responses.first().map(|r| r.0),
            answered: responses
                .iter()
                .find(|r| status(r.1) >= 200)
                .map(|r| (r.0, status(r.1))),
            rang: responses.iter().find(|r| status(r.1) < 200).map(|r| r.0),
            cancel: cancels().next().map(|s| s.at),
            cancel_arrived: cancels().any(Sent::arrived),
        })
    }

    /// Final responses to the INVITE as they left for the caller.
    fn told(&self) -> impl Iterator<Item = &'a Sent> + '_ {
        self.on_hop(PROXY, CALLER)
            .filter(|s| s.facts.is_final_to("INVITE"))
    }

    /// When the caller's CANCEL reached the proxy.
    fn cancelled(&self) -> Option<Micros> {
        self.on_hop(CALLER, PROXY)
            .filter(|s| s.facts.is_request("CANCEL"))
            .flat_map(|s| s.arrivals.iter().copied())
            .min()
    }

    /// When the call ended at the proxy: nothing new begins after that.
    fn ended(&self) -> Option<Micros> {
        let told = self.told().map(|s| s.at).min();
        told.into_iter().chain(self.cancelled()).min()
    }

    /// The caller hears an end; the CANCEL is answered whenever it comes.
    fn caller(&mut self, reports: &[CallReport]) {
        let call = self.call.plan.call;
        let report = reports.iter().find(|r| r.call == call && r.side == Side::Caller);
        let Some(report) = report else {
            return self.violate("no end", "the call was never placed");
        };
        match report.invite {
            RequestEnd::NotSent | RequestEnd::Pending => self.violate("no end", "the INVITE never ended"),
            RequestEnd::TimedOut(at) => {
                // A silent phone keeps the answer back until timer B (§9.1): as long as the patience
                // of a caller who cancelled at once.
                let close = self.told().any(|s| s.at + SECOND > at);
                let answered = self.told().any(|s| s.arrivals.iter().any(|a| *a < at));
                let lost = self.sent.iter().any(|s| !s.arrived());
                if answered || (!close && !lost) {
                    self.violate("unexplained time-out", format!("{:?}", report.invite));
                }
            }
            RequestEnd::Answered(_) => {}
        }
        let cancels: Vec<Micros> = self
            .on_hop(CALLER, PROXY)
            .filter(|s| s.facts.is_request("CANCEL"))
            .flat_map(|s| s.arrivals.iter().copied())
            .collect();
        for at in cancels {
            let answered = self
                .on_hop(PROXY, CALLER)
                .any(|s| s.at == at && s.facts.method == "CANCEL" && s.facts.status.is_some());
            if !answered {
                self.violate("CANCEL unanswered", format!("that of {at}"));
            }
        }
    }

    /// One failure at most, none new after a 2xx; and no 2xx is lost on its way.
    fn finals(&mut self) {
        let mut failures: Vec<(u16, &str)> = Vec::new();
        let mut first_success = None;
        for sent in self.told().collect::<Vec<_>>() {
            let status = sent.facts.status.unwrap_or(0);
            if status < 300 {
                first_success = first_success.or(Some(sent.at));
                continue;
            }
            let key = (status, sent.facts.to_tag.as_str());
            if failures.contains(&key) {
                continue;
            }
            failures.push(key);
            if first_success.is_some() || failures.len() > 1 {
                self.violate("two finals", format!("{failures:?}, 2xx: {first_success:?}"));
            }
        }
        let mut lost = Vec::new();
        for branch in &self.branches {
            let name = branch.phone + 1;
            for (at, sent) in self.responses(branch.phone) {
                let success = sent.facts.status.is_some_and(|s| (200..300).contains(&s));
                let went_on = || {
                    self.told()
                        .any(|t| t.at == at && t.facts.to_tag == sent.facts.to_tag)
                };
                // Where it has not been accepted yet: a copy may come when all is over.
                let first = branch.answered.is_some_and(|(first, _)| first == at);
                if success && first && branch.lives(at) == Some(true) && !went_on() {
                    lost.push(format!("that of p{name} at {at}"));
                }
            }
        }
        for what in lost {
            self.violate("2xx lost", what);
        }
    }

    /// Each phone gets one INVITE, and one CANCEL if it rings when the call has ended.
    fn branches(&mut self) {
        let ended = self.ended();
        let mut wrong: Vec<(&'static str, String)> = Vec::new();
        for branch in &self.branches {
            let node = FIRST_PHONE + branch.phone;
            let name = format!("p{}", branch.phone + 1);
            let mut ids: Vec<&str> = self
                .on_hop(PROXY, node)
                .filter(|s| s.facts.is_request("INVITE"))
                .map(|s| s.facts.branch.as_str())
                .collect();
            ids.dedup();
            if ids.len() > 1 {
                wrong.push(("second INVITE", name.clone()));
            }
            if ended.is_some_and(|ended| branch.invite > ended) {
                wrong.push(("begun after the end", format!("{name} at {}", branch.invite)));
            }
            if let Some(cancel) = branch.cancel {
                let early = branch.rang.is_none_or(|rang| rang > cancel);
                let late = branch.answered.is_some_and(|(at, _)| at < cancel);
                if early || late {
                    wrong.push(("stray CANCEL", format!("{name}: {branch:?}")));
                }
            }
            let Some(rang) = branch.rang.filter(|at| branch.lives(*at) == Some(true)) else {
                continue;
            };
            let due = ended.map_or(Micros::MAX, |ended| ended.max(rang));
            let quiet = branch.answered.is_some_and(|(at, _)| at <= due + SLACK);
            if ended.is_some() && !quiet && branch.cancel.is_none_or(|at| at > due + SLACK) {
                wrong.push(("rings on", format!("{name} after {due}: {branch:?}")));
            }
            if ended.is_none() && branch.answered.is_none() && branch.cancel.is_none() {
                // Timer C ends what nobody else does.
                wrong.push(("rings on", format!("{name} for ever")));
            }
            let rang_out = self
                .on_hop(node, PROXY)
                .any(|s| s.facts.method == "INVITE" && s.at >= branch.invite + 390 * SECOND);
            if rang_out && branch.cancel_arrived && branch.answered.is_none() {
                wrong.push(("rings on", format!("{name} although it was told")));
            }
        }
        for (rule, what) in wrong {
            self.violate(rule, what);
        }
    }

    /// Whether a branch had come to its end at `at`, as far as the proxy is concerned.
    fn is_over(&self, branch: &Branch, at: Micros) -> bool {
        let c = Micros::from(self.scenario.c_ms) * MS;
        let answered = branch.answered.is_some_and(|(answered, _)| answered <= at);
        let silent = branch.heard.is_none_or(|heard| heard > at);
        let patience = match &self.scenario.kind {
            Kind::Group { reply_timeout, .. } => (*reply_timeout).min(c),
            Kind::Location { .. } => TIME_OUT.min(c),
        };
        let left = silent && branch.invite + patience <= at + SLACK;
        let cancelled = branch.cancel.is_some_and(|cancel| cancel <= at + SLACK);
        let gone = branch.heard.is_none_or(|heard| heard >= branch.invite + patience)
            && branch.invite + patience <= at + SLACK;
        answered || left || cancelled || gone
    }

    /// Lower q after higher, one member after the other; and all of them before a failure is told.
    fn order(&mut self) {
        let mut wrong: Vec<(&'static str, String)> = Vec::new();
        for branch in &self.branches {
            for other in &self.branches {
                let before = match &self.scenario.kind {
                    Kind::Location { q } => q[other.phone] > q[branch.phone],
                    Kind::Group { .. } => other.invite < branch.invite,
                };
                if before && (other.invite > branch.invite || !self.is_over(other, branch.invite)) {
                    let what = format!("p{} while p{} is tried", branch.phone + 1, other.phone + 1);
                    wrong.push(("out of turn", what));
                }
            }
        }
        let first = self.told().next();
        if let Some(told) = first
            && told.facts.status.is_some_and(|s| s >= 300)
            && self.cancelled().is_none_or(|at| at > told.at)
        {
            let answers: Vec<u16> = self
                .branches
                .iter()
                .filter_map(|b| b.answered)
                .map(|a| a.1)
                .collect();
            // What stands for all: a 6xx; of a group any answer but a 503.
            let stands = answers.iter().any(|s| match self.scenario.kind {
                Kind::Location { .. } => *s >= 600,
                Kind::Group { .. } => *s != 503,
            });
            if !stands && self.branches.len() < self.scenario.phones {
                let what = format!("{} of {} were tried", self.branches.len(), self.scenario.phones);
                wrong.push(("stops early", what));
            }
        }
        for (rule, what) in wrong {
            self.violate(rule, what);
        }
    }

    /// §16.7 step 6: nothing that came in time is better than what the caller is told.
    fn best(&mut self) {
        let Some(told) = self.told().next() else { return };
        let status = told.facts.status.unwrap_or(0);
        if status < 300 {
            return;
        }
        // A 500 may stand for a 503.
        let made_here = told.facts.to_tag.starts_with("tz");
        let rank_told = if made_here && status == 500 {
            6
        } else {
            rank(status)
        };
        let better = self.branches.iter().find(|b| {
            let in_time = |at: Micros| {
                at <= told.at
                    && b.cancel.is_none_or(|cancel| cancel > at)
                    && !self.is_over(
                        &Branch {
                            answered: None,
                            ..b.copy()
                        },
                        at,
                    )
            };
            b.answered
                .is_some_and(|(at, s)| in_time(at) && rank(s) < rank_told)
        });
        if let Some(better) = better {
            let what = format!("{status} where p{} said {:?}", better.phone + 1, better.answered);
            self.violate("not the best", what);
        }
    }
}

impl Branch {
    const fn copy(&self) -> Self {
        Self { ..*self }
    }
}

/// Lower is better. Said again on purpose: the core's own table would agree with itself.
pub(crate) const fn rank(status: u16) -> u8 {
    match status {
        600.. => 0,
        300..=399 => 1,
        401 | 407 | 415 | 420 | 484 => 2,
        408 | 430 | 487 => 4,
        400..=499 => 3,
        503 => 6,
        _ => 5,
    }
}

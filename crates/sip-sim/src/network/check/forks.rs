//! Rules about forks: a server calls the phones of a user (RFC 3261 §16.7), or the members of a group one
//! after the other. Each is called once and in its turn, and rings no longer than any caller waits. The
//! caller gets the best of their responses.
//!
//! Not judged are a home without transactions, which takes one of the phones, a home that crashed, and a home
//! with small bounds.

use sip_core::timer::wheel::TICK_US;

use super::super::node::NodeId;
use super::super::scenario::{NetCall, Reaction, Scenario, Speaks, Trouble};
use super::calls::OWN_TAG;
use super::{Case, Violation};
use crate::clock::{MS, Micros, SECOND};
use crate::message::{View, param};
use crate::report::{RequestEnd, Side};
use crate::trace::Sent;

/// Timers B and F, and the wait after a CANCEL.
const TIME_OUT: Micros = 32 * SECOND;
/// Time from worker to worker and back, and the wheel's tick.
const SLACK: Micros = 5 * MS + TICK_US;
/// Time for opening a connection on the slowest links. An INVITE that is too long for UDP waits for it.
const OPENING: Micros = SECOND;
/// Ringing time that proves that a phone was not stopped.
const RANG_OUT: Micros = 390 * SECOND;

pub(super) fn check(case: &Case<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for call in &case.scenario.calls {
        found.extend(after_all(case, call));
        if is_judged(case, call) {
            for fork in forks(case, call) {
                found.extend(fork.judge());
            }
        }
    }
    found
}

/// Once nothing excuses a failure, no phone keeps ringing, and no answered call stays open.
fn after_all(case: &Case<'_>, call: &NetCall) -> Vec<Violation> {
    let mut found = Vec::new();
    if !call.after_faults || case.may_refuse(call) {
        return found;
    }
    let mut violate = |rule, what| found.push(Violation::new(rule, Some(call.call), what));
    for (node, report) in &case.reports {
        let is_callee = report.call == call.call && report.side == Side::Callee;
        let ended = report.was_ended || report.bye != RequestEnd::NotSent;
        if is_callee && report.acknowledged.is_some() && !ended {
            violate("talks on", format!("node {node} answered, and nobody hung up"));
        }
    }
    for phone in case.scenario.callees(call) {
        let node = case.scenario.node_of_phone(phone);
        let of_it = |s: &&Sent| s.facts.call == Some(call.call) && s.facts.method == "INVITE";
        let came = case.log.sent.iter().filter(of_it).find(|s| s.to == Some(node));
        let last = case.log.sent.iter().filter(of_it).rfind(|s| s.from == node);
        if let (Some(came), Some(last)) = (came, last)
            && last.at >= came.at + RANG_OUT
        {
            violate("rings on", format!("node {node} until it gave up"));
        }
    }
    found
}

fn is_judged(case: &Case<'_>, call: &NetCall) -> bool {
    let scenario = case.scenario;
    let home = scenario.home_of(scenario.phones[call.to].user);
    // Over TCP a request with a response leaves nothing behind, and a copy is a new request with the same
    // branch.
    let mut before = scenario.servers.iter().filter(|s| !s.stateful);
    let copied = before.any(|s| s.next.is_some_and(|next| next.tcp && next.server == home));
    let plan = &scenario.servers[home];
    plan.stateful && !plan.tight && !copied && scenario.crashes(home).next().is_none()
}

/// The INVITE to one phone, as seen by its home: times are the home's.
#[derive(Debug)]
struct Branch<'a> {
    phone: usize,
    node: NodeId,
    /// Preference in thousandths.
    q: u16,
    by_udp: bool,
    /// Whether messages may have been lost: a connection may have ended, or the phone was away.
    unsure: bool,
    invite: Micros,
    /// How long the home waits for the first response.
    patience: Micros,
    /// Provisional responses, in the order of time.
    provisional: Vec<Micros>,
    /// The first final response, and when it came.
    answer: Option<(Micros, &'a Sent)>,
    cancel: Option<Micros>,
}

impl Branch<'_> {
    fn heard(&self) -> Option<Micros> {
        let answered = self.answer.map(|a| a.0);
        self.provisional
            .first()
            .copied()
            .into_iter()
            .chain(answered)
            .min()
    }

    fn answered(&self) -> Option<(Micros, u16)> {
        self.answer.map(|(at, sent)| (at, sent.facts.status.unwrap_or(0)))
    }

    /// Whether the branch's client transaction lives at `at`; `None` if that is uncertain.
    fn lives(&self, at: Micros) -> Option<bool> {
        let heard = self.heard().filter(|heard| *heard < self.invite + TIME_OUT);
        let end = match (heard, self.cancel) {
            (None, _) => self.invite + TIME_OUT,
            (Some(_), None) => return Some(true),
            (Some(_), Some(cancel)) => cancel + TIME_OUT,
        };
        (at.abs_diff(end) > SECOND).then_some(at < end)
    }

    /// Whether the branch had ended by then without a response: by timer B, the group's time-out, or timer C
    /// with its CANCEL.
    fn is_given_up(&self, at: Micros) -> bool {
        let silent = self
            .heard()
            .is_none_or(|heard| heard >= self.invite + self.patience);
        let left = silent && self.invite + self.patience <= at + self.slack();
        left || self.cancel.is_some_and(|cancel| cancel <= at + SLACK)
    }

    /// Time between the decision to send a request and its sending.
    const fn slack(&self) -> Micros {
        if self.by_udp { SLACK } else { SLACK + OPENING }
    }

    fn is_over(&self, at: Micros) -> bool {
        self.answered().is_some_and(|(answered, _)| answered <= at) || self.is_given_up(at)
    }
}

/// All INVITEs that a home sends for one that it received.
struct Fork<'a> {
    case: &'a Case<'a>,
    call: &'a NetCall,
    branches: Vec<Branch<'a>>,
    /// Final responses that the home gave to the hop before.
    told: Vec<&'a Sent>,
    /// When a CANCEL came.
    cancelled: Option<Micros>,
    /// Whether messages from and to the hop before may be lost with its connection.
    unsure: bool,
    c: Micros,
    /// Whether the fork is to the members of a group.
    is_group: bool,
    found: Vec<Violation>,
}

/// The forks of a call: one for each INVITE that its callee's home sends on.
fn forks<'a>(case: &'a Case<'a>, call: &'a NetCall) -> Vec<Fork<'a>> {
    let scenario = case.scenario;
    // Messages from the stranger are no part of the call.
    let stranger = scenario.stranger_node();
    let home = scenario.home_of(scenario.phones[call.to].user);
    let phones: Vec<(usize, NodeId)> = scenario
        .callees(call)
        .map(|phone| (phone, scenario.node_of_phone(phone)))
        .collect();
    let sent: Vec<&Sent> = case
        .log
        .sent
        .iter()
        .filter(|s| s.facts.call == Some(call.call) && Some(s.from) != stranger)
        .collect();
    let before = |s: &'a Sent| {
        let to_phone = s.from == home && s.facts.is_request("INVITE");
        let second = View::new(&s.text).all("Via").nth(1);
        second
            .filter(|_| to_phone && phones.iter().any(|(_, node)| s.to == Some(*node)))
            .map(|via| param(via, "branch"))
    };
    let mut all: Vec<&str> = sent.iter().filter_map(|s| before(s)).collect();
    all.sort_unstable();
    all.dedup();
    let fork = |branch: &'a str| {
        let invites: Vec<&Sent> = sent
            .iter()
            .copied()
            .filter(|s| before(s) == Some(branch))
            .collect();
        let branches = phones
            .iter()
            .filter_map(|(phone, node)| branch_to(case, call, &sent, &invites, (*phone, *node)))
            .collect();
        let of_it = |s: &&&Sent| s.facts.branch == branch;
        let cancels: Vec<&&Sent> = sent
            .iter()
            .filter(of_it)
            .filter(|s| s.to == Some(home) && s.facts.is_request("CANCEL"))
            .collect();
        // A refusal before any phone was called was without state, and a copy of the INVITE may pass if
        // things have changed (RFC 3261 §8.2.7).
        let began = invites.first().map_or(0, |s| s.at);
        let told = |s: &&&Sent| s.from == home && s.at >= began && s.facts.is_final_to("INVITE");
        let told: Vec<&Sent> = sent.iter().filter(of_it).filter(told).copied().collect();
        let by_stream = cancels.iter().copied().chain(&told).any(|s| !is_udp(s));
        Fork {
            case,
            call,
            branches,
            cancelled: cancels.iter().flat_map(|s| s.arrivals.iter().copied()).min(),
            told,
            unsure: by_stream && may_lose_connections(scenario),
            c: Micros::from(scenario.servers[home].c_ms) * MS,
            is_group: scenario.is_to_group(call),
            found: Vec::new(),
        }
    };
    all.into_iter().map(fork).collect()
}

/// One branch of a fork, if it was sent.
fn branch_to<'a>(
    case: &Case<'_>,
    call: &NetCall,
    sent: &[&'a Sent],
    invites: &[&'a Sent],
    (phone, node): (usize, NodeId),
) -> Option<Branch<'a>> {
    let own: Vec<&&Sent> = invites.iter().filter(|s| s.to == Some(node)).collect();
    let first = own.first()?;
    let mut ids: Vec<&str> = own.iter().map(|s| s.facts.branch.as_str()).collect();
    ids.sort_unstable();
    ids.dedup();
    let mut responses: Vec<(Micros, &Sent)> = sent
        .iter()
        .filter(|s| s.from == node && s.facts.status.is_some() && s.facts.method == "INVITE")
        .filter(|s| ids.contains(&s.facts.branch.as_str()))
        .flat_map(|s| s.arrivals.iter().map(move |at| (*at, *s)))
        .collect();
    responses.sort_by_key(|(at, _)| *at);
    let cancels = sent
        .iter()
        .filter(|s| s.to == Some(node) && s.facts.is_request("CANCEL"))
        .filter(|s| ids.contains(&s.facts.branch.as_str()));
    let is_final = |s: &Sent| s.facts.status >= Some(200);
    Some(Branch {
        phone,
        node,
        q: case.scenario.phones[phone].q.unwrap_or(1_000),
        by_udp: is_udp(first),
        unsure: case.lost_connection(call, phone) || case.was_away(node, first.at, first.at + TIME_OUT),
        invite: first.at,
        patience: case.patience(first.from, node),
        provisional: responses.iter().filter(|r| !is_final(r.1)).map(|r| r.0).collect(),
        answer: responses.iter().find(|r| is_final(r.1)).copied(),
        cancel: cancels.map(|s| s.at).min(),
    })
}

/// Whether the message went by UDP, according to its topmost Via.
fn is_udp(sent: &Sent) -> bool {
    View::new(&sent.text).get("Via").starts_with("SIP/2.0/UDP")
}

fn may_lose_connections(scenario: &Scenario) -> bool {
    scenario.troubles.iter().any(|t| {
        matches!(
            t.trouble,
            Trouble::Reset | Trouble::Partition { .. } | Trouble::Crash { .. }
        )
    })
}

impl Fork<'_> {
    fn judge(mut self) -> Vec<Violation> {
        self.finals();
        self.each();
        self.turns();
        self.all_are_tried();
        self.best();
        self.challenges();
        self.found
    }

    fn violate(&mut self, rule: &'static str, what: impl Into<String>) {
        self.found.push(Violation::new(rule, Some(self.call.call), what));
    }

    /// When a response came that stands for all: a 6xx, or from a member of a group any failure but a 503.
    fn declined(&self) -> Option<Micros> {
        // A message on a connection that ended may not have arrived.
        let sure = self.branches.iter().filter(|branch| !branch.unsure);
        let stands = |branch: &Branch<'_>, (at, status): (Micros, u16)| match self.is_group {
            true => status >= 300 && status != 503 && !branch.is_given_up(at),
            false => status >= 600,
        };
        sure.filter_map(|branch| branch.answered().filter(|answer| stands(branch, *answer)))
            .map(|(at, _)| at)
            .min()
    }

    /// When the fork ended: no branch begins after that, and ringing ones are cancelled.
    fn ended(&self) -> Option<Micros> {
        let told = self.told.iter().map(|s| s.at).min();
        let cancelled = self.cancelled.filter(|_| !self.unsure);
        [told, cancelled, self.declined()].into_iter().flatten().min()
    }

    /// The caller gets at most one failure, and none after a 2xx. No 2xx is lost on its way.
    fn finals(&mut self) {
        let mut failures: Vec<(u16, &str)> = Vec::new();
        let mut success = None;
        for sent in &self.told {
            let status = sent.facts.status.unwrap_or(0);
            let key = (status, sent.facts.to_tag.as_str());
            if status < 300 {
                success = success.or(Some(key));
            } else if !failures.contains(&key) {
                failures.push(key);
                if success.is_some() || failures.len() > 1 {
                    let what = format!("{failures:?} are told, and {success:?}");
                    return self.violate("two finals", what);
                }
            }
        }
        let is_lost = |branch: &&Branch<'_>| {
            let Some((at, answer)) = branch.answer else {
                return false;
            };
            let success = answer.facts.status < Some(300);
            // A caller that has closed its connection gets its response by a new one (RFC 3261 §18.2.2).
            let went_on = |told: &&Sent| {
                let slack = if is_udp(told) { SLACK } else { SLACK + OPENING };
                told.facts.to_tag == answer.facts.to_tag && (at..=at + slack).contains(&told.at)
            };
            success && branch.lives(at) == Some(true) && !self.told.iter().any(went_on)
        };
        let lost: Vec<String> = self
            .branches
            .iter()
            .filter(|branch| !branch.unsure && !self.unsure)
            .filter(is_lost)
            .map(|branch| format!("that of node {}: {:?}", branch.node, branch.answered()))
            .collect();
        if !lost.is_empty() {
            self.violate("2xx lost", lost.join(", "));
        }
    }

    /// Each phone gets its INVITE before the call has ended, and one CANCEL if it still rings then.
    fn each(&mut self) {
        let ended = self.ended();
        let faults: Vec<_> = self
            .branches
            .iter()
            .filter(|branch| !branch.unsure)
            .filter_map(|branch| self.fault(branch, ended))
            .collect();
        for (rule, what) in faults {
            self.violate(rule, what);
        }
    }

    fn fault(&self, branch: &Branch<'_>, ended: Option<Micros>) -> Option<(&'static str, String)> {
        let who = format!("node {}", branch.node);
        if let Some(ended) = ended
            && branch.by_udp
            && branch.invite > ended + SLACK
        {
            return Some((
                "begun after the end",
                format!("{who} at {}, after {ended}", branch.invite),
            ));
        }
        let first = branch.provisional.first().copied();
        if let Some(cancel) = branch.cancel {
            let early = first.is_none_or(|rang| rang > cancel);
            let late = branch
                .answered()
                .is_some_and(|(at, _)| at + branch.slack() < cancel);
            if early || late {
                return Some(("stray CANCEL", format!("{who}: {branch:?}")));
            }
        }
        let rang = first.filter(|at| branch.lives(*at) == Some(true))?;
        // If nothing else ends the branch, timer C does (§16.8); each 101 to 199 restarts it.
        let last = branch.provisional.last().map_or(rang, |last| *last);
        let by_c = last.max(branch.invite) + self.c + SLACK;
        let is_late = rang > branch.invite + branch.patience + SLACK;
        let by_end = ended.map(|ended| ended.max(rang));
        let due = by_end
            .into_iter()
            .chain(is_late.then_some(rang))
            .fold(by_c, Micros::min);
        let due = due + branch.slack();
        let quiet = branch.answered().is_some_and(|(at, _)| at <= due);
        if !quiet && branch.cancel.is_none_or(|at| at > due) {
            return Some(("rings on", format!("{who} after {due}: {branch:?}")));
        }
        None
    }

    /// Lower q comes after higher (§16.6), and one member of a group after the other.
    fn turns(&mut self) {
        let mut wrong = Vec::new();
        for branch in &self.branches {
            for other in &self.branches {
                let before = match self.is_group {
                    true => other.phone != branch.phone && other.invite <= branch.invite,
                    false => other.q > branch.q,
                };
                let before = before && !other.unsure && !branch.unsure;
                let in_turn = other.invite <= branch.invite && other.is_over(branch.invite);
                if before && !in_turn {
                    wrong.push(format!("node {} while {} is tried", branch.node, other.node));
                }
            }
        }
        for what in wrong {
            self.violate("out of turn", what);
        }
    }

    /// A failure goes to the caller once all phones had their turn, unless one stands for all.
    fn all_are_tried(&mut self) {
        let Some(told) = self.told.first() else { return };
        let status = told.facts.status.unwrap_or(0);
        let phones = self.case.scenario.callees(self.call).count();
        let excused = !self.call.after_faults
            || self.case.callee_may_be_lost(self.call)
            || self.declined().is_some()
            || self.cancelled.is_some_and(|at| at <= told.at);
        if status >= 300 && !excused && self.branches.len() < phones {
            let what = format!("{status} when {} of {phones} were tried", self.branches.len());
            self.violate("stops early", what);
        }
    }

    /// Responses that came before the failure was sent, and count for it.
    fn in_time(&self) -> Vec<(&Branch<'_>, u16)> {
        let Some(told) = self.told.first() else {
            return Vec::new();
        };
        let counts = |branch: &&Branch<'_>| {
            let at = branch.answered().map_or(Micros::MAX, |(at, _)| at);
            let kept = branch.cancel.is_none_or(|cancel| cancel > at);
            !branch.unsure && at.saturating_add(SLACK) <= told.at && kept && !branch.is_given_up(at)
        };
        let counting = self.branches.iter().filter(counts);
        counting
            .filter_map(|branch| Some((branch, branch.answered()?.1)))
            .collect()
    }

    /// §16.7 step 6: no response that came in time is better than the caller's.
    fn best(&mut self) {
        let Some(told) = self.told.first() else { return };
        let status = told.facts.status.unwrap_or(0);
        if status < 300 {
            return;
        }
        // The server's own 500 may stand for a 503.
        let stands_for_503 = told.facts.to_tag.starts_with(OWN_TAG) && status == 500;
        let rank_told = if stands_for_503 { rank(503) } else { rank(status) };
        let better = self.in_time().into_iter().find(|(_, s)| rank(*s) < rank_told);
        if let Some((branch, better)) = better {
            let what = format!("{status} where node {} said {better}", branch.node);
            self.violate("not the best", what);
        }
    }

    /// §16.7 step 7: if several phones challenge, the caller gets the challenges of all.
    fn challenges(&mut self) {
        let Some(told) = self.told.first().filter(|told| told.facts.status == Some(401)) else {
            return;
        };
        let mut asking = self.in_time().into_iter().filter(|(_, status)| *status == 401);
        let missing = asking.find(|(branch, _)| {
            let realm = format!("realm=\"{}\"", self.case.scenario.name_of_phone(branch.phone));
            !told.text.contains(&realm)
        });
        if let Some((branch, _)) = missing {
            let what = format!("that of node {}", branch.node);
            self.violate("challenge missing", what);
        }
    }
}

/// When all phones of the called user would have decided, by q one after the other, or all members of a
/// group.
pub(super) fn decided_by(case: &Case<'_>, call: &NetCall) -> Micros {
    let scenario = case.scenario;
    let home = &scenario.servers[scenario.home_of(scenario.phones[call.to].user)];
    let rings_for = if home.stateful {
        Micros::from(home.c_ms) * MS
    } else {
        RANG_OUT
    };
    let takes = |phone: usize| match scenario.branch_plan(call, phone).reaction {
        Reaction::Answer(after) | Reaction::Busy(after) | Reaction::Refuse(after, _) => after,
        Reaction::Ring => rings_for + SECOND,
        Reaction::Silent => silence(case, phone),
    };
    if scenario.is_to_group(call) {
        return scenario.callees(call).map(takes).sum();
    }
    let q = |phone: usize| scenario.phones[phone].q.unwrap_or(1_000);
    let mut turns: Vec<u16> = scenario.callees(call).map(q).collect();
    turns.sort_unstable();
    turns.dedup();
    let of_turn = |turn: &u16| {
        let phones = scenario.callees(call).filter(|phone| q(*phone) == *turn);
        phones.map(takes).max().unwrap_or(0)
    };
    turns.iter().map(of_turn).sum()
}

/// How long the home waits for a phone without any response. If the phone had a connection, its Contact is
/// tried next (RFC 3261 §16.9).
pub(super) fn silence(case: &Case<'_>, phone: usize) -> Micros {
    match case.scenario.phones[phone].speaks {
        Speaks::Udp => TIME_OUT,
        Speaks::Tcp | Speaks::Ws => 2 * TIME_OUT,
    }
}

/// Rank of a status; lower is better. Written again on purpose: the core's own table would agree with itself.
const fn rank(status: u16) -> u8 {
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

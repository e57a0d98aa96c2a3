//! Rules about how a call may end.

use super::super::node::NodeId;
use super::super::scenario::{AuthPlan, NetCall, Reaction, ServerPlan};
use super::{Case, Violation, is_udp};
use crate::clock::{MS, Micros, SECOND};
use crate::report::{CallReport, RequestEnd, Side};
use crate::trace::{Facts, Sent};

/// Prefix of the tags that a server gives to its own responses.
pub(super) const OWN_TAG: &str = "tz";

/// Most time of a message on one link without faults: two pieces of up to a millisecond each, the opening of
/// a connection, and the way from worker to worker.
const CROSSING: Micros = 6 * MS;
/// Longest wait, after timer C, for a callee that does not respond to the CANCEL.
const LONGEST_CANCEL: Micros = 33 * SECOND;

pub(super) fn check(case: &Case<'_>) -> Vec<Violation> {
    case.scenario
        .calls
        .iter()
        .flat_map(|call| Judged::new(case, call).judge())
        .collect()
}

/// One call, with everything known of it.
struct Judged<'a> {
    case: &'a Case<'a>,
    call: &'a NetCall,
    sent: Vec<&'a Sent>,
    found: Vec<Violation>,
}

impl<'a> Judged<'a> {
    fn new(case: &'a Case<'a>, call: &'a NetCall) -> Self {
        Self {
            case,
            call,
            sent: case
                .log
                .sent
                .iter()
                .filter(|sent| sent.facts.call == Some(call.call))
                .collect(),
            found: Vec::new(),
        }
    }

    fn judge(mut self) -> Vec<Violation> {
        self.right_callee();
        if !self.case.was_cut(self.call) {
            if !self.has_moved() {
                self.one_final_answer();
            }
            for phone in self.case.scenario.callees(self.call) {
                if !self.case.lost_connection(self.call, phone) {
                    self.one_invite_at_a_phone(phone);
                }
            }
        }
        match self.reports(Side::Caller).next() {
            Some(caller) => self.ends(caller),
            None => self.violate("no end", "the call was never placed"),
        }
        self.found
    }

    fn violate(&mut self, rule: &'static str, what: impl Into<String>) {
        self.found.push(Violation::new(rule, Some(self.call.call), what));
    }

    fn node(&self, phone: usize) -> NodeId {
        self.case.scenario.node_of_phone(phone)
    }

    /// Reports of this side: the caller's, or those of all called phones.
    fn reports(&self, side: Side) -> impl Iterator<Item = &'a CallReport> + use<'a> {
        let call = self.call.call;
        let reports = self.case.reports.iter().map(|(_, report)| report);
        reports.filter(move |report| report.call == call && report.side == side)
    }

    /// Only called phones may get the call.
    fn right_callee(&mut self) {
        let wrong: Vec<NodeId> = self
            .case
            .reports
            .iter()
            .filter(|(_, report)| report.call == self.call.call && report.side == Side::Callee)
            .map(|(node, _)| *node)
            .filter(|node| {
                let mut called = self.case.scenario.callees(self.call);
                !called.any(|phone| self.node(phone) == *node)
            })
            .collect();
        if !wrong.is_empty() {
            self.violate("wrong callee", format!("the call came to nodes {wrong:?}"));
        }
    }

    /// For one INVITE the caller gets one final response, with these exceptions. The 2xx of several phones
    /// may cross (RFC 3261 §13.2.2.4). So may a 2xx and the failure of a server that waits for less than
    /// timer B. A server that refuses without keeping state may admit the next copy if things have changed
    /// since (RFC 3261 §8.2.7).
    fn one_final_answer(&mut self) {
        let caller = self.node(self.call.from);
        let mut finals: Vec<(&str, u16, &str)> = Vec::new();
        for sent in self.sent.iter().filter(|sent| sent.to == Some(caller)) {
            let facts = &sent.facts;
            let key = (&*facts.branch, facts.status.unwrap_or(0), &*facts.to_tag);
            let own_refusal = facts.to_tag.starts_with(OWN_TAG) && key.1 >= 300;
            let is_kept = !own_refusal || self.keeps_refusal(&facts.to_tag);
            if facts.is_final_to("INVITE") && is_kept && !finals.contains(&key) {
                finals.push(key);
            }
        }
        let is_success = |status: u16| (200..300).contains(&status);
        let gives_up = self.gives_up_before_timer_b();
        let crossed = |a: u16, b: u16| match (is_success(a), is_success(b)) {
            (true, true) => true,
            (true, false) | (false, true) => gives_up,
            (false, false) => false,
        };
        let twice = finals
            .iter()
            .find(|a| finals.iter().any(|b| a.0 == b.0 && *a != b && !crossed(a.1, b.1)));
        if twice.is_some() {
            let what = format!("the caller is told {finals:?}");
            self.violate("two finals", what);
        }
    }

    /// Whether a server on the way waits for a first response for less than timer B, so that a 2xx may come
    /// later.
    fn gives_up_before_timer_b(&self) -> bool {
        let mut servers = self.servers();
        let waits_less = |server: &ServerPlan| u64::from(server.c_ms) * MS < 32 * SECOND;
        self.case.scenario.is_to_group(self.call) || servers.any(waits_less)
    }

    /// Whether copies of one INVITE went to different phones. A home without state looks up the destination
    /// of each copy anew (RFC 3261 §16.11), and phones come and go.
    fn has_moved(&self) -> bool {
        let scenario = self.case.scenario;
        let home = scenario.home_of(scenario.phones[self.call.to].user);
        let invites = || {
            let sent = self.sent.iter();
            sent.filter(|s| s.from == home && s.facts.is_request("INVITE"))
        };
        let moves = |a: &&Sent| invites().any(|b| a.facts.branch == b.facts.branch && a.to != b.to);
        !scenario.servers[home].stateful && invites().any(moves)
    }

    /// Whether the server that made this refusal keeps state for its INVITE: it sent a 100. (Over TCP its
    /// transaction ends with the ACK: a later copy from a server without state is a new request.)
    fn keeps_refusal(&self, tag: &str) -> bool {
        let made = self.sent.iter().find(|sent| sent.facts.to_tag == tag);
        let Some(made) = made.filter(|made| made.from < self.case.scenario.servers.len()) else {
            return false;
        };
        let says_trying = |sent: &&Sent| {
            let same = sent.from == made.from && sent.facts.branch == made.facts.branch;
            same && sent.facts.status == Some(100) && sent.at <= made.at
        };
        let servers = &self.case.scenario.servers;
        let copies = |to: NodeId| servers.get(to).is_some_and(|before| !before.stateful);
        let copied = !is_udp(made) && made.to.is_some_and(copies);
        servers[made.from].stateful && !copied && self.sent.iter().copied().any(|sent| says_trying(&sent))
    }

    /// One call, one INVITE transaction at each phone (RFC 3261 §16.6 step 8, §16.11).
    fn one_invite_at_a_phone(&mut self, phone: usize) {
        let callee = self.node(phone);
        let mut branches: Vec<(u32, &str, Micros)> = Vec::new();
        for sent in self.sent.iter().filter(|sent| sent.to == Some(callee)) {
            let (cseq, branch) = (sent.facts.cseq, &*sent.facts.branch);
            let is_known = branches.iter().any(|known| (known.0, known.1) == (cseq, branch));
            if sent.facts.is_request("INVITE") && !is_known {
                branches.push((cseq, branch, sent.at));
            }
        }
        // A phone on a connection that sends no response until timer B or C may have a dead connection. The
        // address of its Contact is then tried (RFC 3261 §16.9, RFC 3263 §4.3).
        let scenario = self.case.scenario;
        let silent = scenario.branch_plan(self.call, phone).reaction == Reaction::Silent;
        let patience = self
            .case
            .patience(scenario.home_of(scenario.phones[phone].user), callee);
        let in_vain = |first: Micros, second: Micros| silent && second >= first + patience;
        let is_second =
            |a: &(u32, &str, Micros), b: &(u32, &str, Micros)| a.0 == b.0 && a.1 != b.1 && !in_vain(a.2, b.2);
        // The pairs are in the order of time.
        let mut pairs = branches
            .iter()
            .enumerate()
            .flat_map(|(n, a)| branches.iter().skip(n + 1).map(move |b| (a, b)));
        if pairs.any(|(a, b)| is_second(a, b)) {
            self.violate("second INVITE", format!("to node {callee} go {branches:?}"));
        }
    }

    /// Every request ends; and once nothing excuses a failure, it ends as planned.
    fn ends(&mut self, caller: &CallReport) {
        let byes = caller.other_byes.iter().map(|end| ("BYE", *end));
        for (what, end) in [
            ("INVITE", caller.invite),
            ("CANCEL", caller.cancel),
            ("BYE", caller.bye),
        ]
        .into_iter()
        .chain(byes)
        {
            if end == RequestEnd::Pending {
                self.violate("no end", format!("the {what} never ended"));
            }
        }
        if !self.call.after_faults || self.case.may_refuse(self.call) {
            return;
        }
        if !self.is_due_end(caller) {
            let what = format!("{:?} ended in {:?}", self.reactions(), caller.invite);
            self.violate("wrong end", what);
        }
        if !matches!(
            caller.cancel,
            RequestEnd::NotSent | RequestEnd::Answered(200 | 481)
        ) {
            self.violate("CANCEL lost", format!("it ended in {:?}", caller.cancel));
        }
        for report in core::iter::once(caller).chain(self.reports(Side::Callee)) {
            for bye in core::iter::once(&report.bye).chain(&report.other_byes) {
                if !matches!(bye, RequestEnd::NotSent | RequestEnd::Answered(200 | 481)) {
                    self.violate(
                        "BYE lost",
                        format!("that of the {:?} ended in {bye:?}", report.side),
                    );
                }
            }
        }
        let has_succeeded = matches!(caller.invite, RequestEnd::Answered(200..300));
        let call = self.call.call;
        let unheard = |report: &CallReport| {
            report.call == call && report.side == Side::Callee && report.acknowledged == Some(false)
        };
        let mut unheard = self.case.reports.iter().filter(|(_, report)| unheard(report));
        if unheard.any(|(node, _)| has_succeeded || !self.may_be_late(*node)) {
            self.violate("ACK lost", "the callee's 200 was never acknowledged");
        }
    }

    /// Whether this node is a member of a group that sends nothing until other members had their turn. Once
    /// the caller has a failure, the node's 2xx matches no transaction (RFC 6026 §8.9).
    fn may_be_late(&self, node: NodeId) -> bool {
        let scenario = self.case.scenario;
        let mut phones = scenario
            .callees(self.call)
            .filter(|phone| self.node(*phone) == node);
        phones.any(|phone| scenario.may_be_late(self.call, phone))
    }

    /// Planned reactions of the called user's phones.
    fn reactions(&self) -> Vec<Reaction> {
        let scenario = self.case.scenario;
        let reaction = |phone| scenario.branch_plan(self.call, phone).reaction;
        scenario.callees(self.call).map(reaction).collect()
    }

    /// Shortest timer C of the servers on the way that have one, or may have one.
    fn shortest_c(&self) -> Option<Micros> {
        let keeping = self.servers().filter(|server| may_keep(server));
        keeping.map(|server| u64::from(server.c_ms) * MS).min()
    }

    /// Whether some server on the way always keeps a transaction.
    fn is_kept(&self) -> bool {
        let servers = &self.case.scenario.servers;
        self.case.path(self.call).iter().any(|s| servers[*s].stateful)
    }

    /// Whether the call must be answered: one of several phones that ring together answers long before
    /// anything else can end the call.
    fn must_be_answered(&self) -> bool {
        let (scenario, call) = (self.case.scenario, self.call);
        let home = scenario.home_of(scenario.phones[call.to].user);
        let q = |phone: usize| scenario.phones[phone].q.unwrap_or(1_000);
        let first = scenario.callees(call).map(q).max();
        let reactions = self.reactions();
        let declined = reactions.iter().filter_map(|reaction| match reaction {
            Reaction::Refuse(after, 600..) => Some(*after),
            Reaction::Answer(_)
            | Reaction::Busy(_)
            | Reaction::Ring
            | Reaction::Refuse(..)
            | Reaction::Silent => None,
        });
        let ends = declined.chain(self.shortest_c()).chain([call.cancel_after]);
        let before = ends.min().unwrap_or(0);
        // Members of a group do not ring together.
        scenario.servers[home].stateful
            && !scenario.is_to_group(call)
            && scenario
                .callees(call)
                .zip(&reactions)
                .filter(|(phone, _)| Some(q(*phone)) == first)
                .any(|(_, reaction)| matches!(reaction, Reaction::Answer(after) if after + SECOND < before))
    }

    /// Whether the call may have this end: the planned reaction of one of the phones, or the end if no phone
    /// decides in time.
    fn is_due_end(&self, caller: &CallReport) -> bool {
        let end = caller.invite;
        let lost = self.case.callee_may_be_lost(self.call);
        let reactions = self.reactions();
        if reactions.len() > 1 && !lost && self.must_be_answered() {
            return end == RequestEnd::Answered(200);
        }
        let takes = super::forks::decided_by(self.case, self.call);
        let several = match end {
            _ if reactions.len() == 1 => false,
            // Some phone would have decided later.
            RequestEnd::Answered(487) => {
                self.call.cancel_after <= takes + SECOND || self.shortest_c().is_some_and(|c| c <= takes)
            }
            RequestEnd::Answered(408) => {
                let (scenario, call) = (self.case.scenario, self.call);
                let mut members = scenario.callees(call);
                members.any(|phone| scenario.may_be_late(call, phone))
                    || self.shortest_c().is_some_and(|c| c <= takes)
            }
            RequestEnd::NotSent | RequestEnd::Pending | RequestEnd::Answered(_) | RequestEnd::TimedOut(_) => {
                false
            }
        };
        several
            || reactions
                .iter()
                .any(|reaction| self.is_due_end_of(*reaction, caller))
    }

    fn is_due_end_of(&self, reaction: Reaction, caller: &CallReport) -> bool {
        let call = self.call;
        // The rules of `forks` judge calls to several phones more exactly.
        let single = self.reactions().len() == 1;
        let cancelled = caller.cancel != RequestEnd::NotSent;
        let cancelled_by = |decides| cancelled && call.cancel_after <= decides + SECOND;
        let shortest_c = self.shortest_c();
        let silences = self.case.scenario.callees(call);
        let silences = silences.map(|phone| super::forks::silence(self.case, phone));
        // If no server always keeps state, a late copy may be the first that waits for a back-end.
        let late = if self.is_kept() { 0 } else { 32 * SECOND };
        let silence = silences.max().unwrap_or(0) + late;
        match (reaction, caller.invite) {
            (Reaction::Answer(_), RequestEnd::Answered(status @ 200))
            | (Reaction::Busy(_), RequestEnd::Answered(status @ 486)) => {
                !single || self.may_have_crossed(status)
            }
            (Reaction::Refuse(_, 503), RequestEnd::Answered(500 | 503)) => true,
            (Reaction::Refuse(_, refused), RequestEnd::Answered(status)) if refused == status => true,
            (
                Reaction::Answer(after) | Reaction::Busy(after) | Reaction::Refuse(after, _),
                RequestEnd::Answered(487),
            ) => cancelled_by(after) || single && self.timer_c_fired(487),
            (Reaction::Answer(_) | Reaction::Busy(_) | Reaction::Refuse(..), RequestEnd::Answered(408))
                if single =>
            {
                self.timer_c_fired(408)
            }
            // A caller that gives up before it is challenged sends no credentials.
            (_, RequestEnd::Answered(407)) => call.cancel_after <= SECOND,
            // 480: a contact sent nothing until timer B or C ended it; or the callee is not registered again
            // yet.
            (Reaction::Silent, RequestEnd::Answered(480)) if shortest_c.is_some() => true,
            (_, RequestEnd::Answered(480)) => self.case.callee_may_be_lost(call),
            (Reaction::Ring, RequestEnd::Answered(487)) if single => {
                self.timer_c_fired(487) || cancelled && !self.timer_c_is_over(487)
            }
            (Reaction::Ring, RequestEnd::Answered(487)) => shortest_c.is_some() || cancelled,
            (Reaction::Ring, RequestEnd::Answered(408)) if single => self.timer_c_fired(408),
            (Reaction::Ring, RequestEnd::Answered(408)) => shortest_c.is_some(),
            // §17.1.1.2: the timer B of some hop. A caller that cancels does not wait for it (§9.1).
            (Reaction::Silent, RequestEnd::Answered(408)) => shortest_c.is_some(),
            (Reaction::Silent, RequestEnd::Answered(487)) => cancelled_by(silence),
            (Reaction::Silent, RequestEnd::TimedOut(_)) => !self.is_kept() || cancelled_by(silence),
            _ => false,
        }
    }

    fn servers(&self) -> impl Iterator<Item = &'a ServerPlan> {
        let scenario = self.case.scenario;
        let path = self.case.path(self.call);
        path.into_iter().map(move |server| &scenario.servers[server])
    }

    /// The first message like this from a node; `None` if there is none.
    fn first(&self, from: NodeId, is: impl Fn(&Facts) -> bool) -> Option<&'a Sent> {
        let mut sent = self.sent.iter().copied();
        sent.find(|sent| sent.from == from && is(&sent.facts))
    }

    /// Whether the callee decided before a CANCEL could arrive. If all servers keep state, the CANCEL goes on
    /// at once, or with the callee's first response (RFC 3261 §9.1).
    fn may_have_crossed(&self, status: u16) -> bool {
        let (caller, callee) = (self.node(self.call.from), self.node(self.call.to));
        let decided = self.first(callee, |facts| {
            facts.method == "INVITE" && facts.status == Some(status)
        });
        let Some(decided) = decided.filter(|_| self.servers().all(|s| s.stateful)) else {
            return true;
        };
        let cseq = decided.facts.cseq;
        let cancel = self.first(caller, |facts| facts.is_request("CANCEL") && facts.cseq == cseq);
        let life = self.first(callee, |facts| facts.method == "INVITE" && facts.cseq == cseq);
        let (Some(cancel), Some(life)) = (cancel, life) else {
            return true;
        };
        let links = self.servers().count() as u64 + 1;
        decided.at <= cancel.at.max(life.at) + links * CROSSING
    }

    /// When the shortest timer C of these servers is due, and when the caller got this status. Each
    /// provisional response except 100 restarts the timer (RFC 3261 §16.7 step 2).
    fn timer_c(&self, status: u16, has: impl Fn(&ServerPlan) -> bool) -> Option<(Micros, Micros)> {
        let (caller, callee) = (self.node(self.call.from), self.node(self.call.to));
        let servers = self.servers().filter(|server| has(server));
        let shortest = servers.map(|server| u64::from(server.c_ms) * MS).min()?;
        let is_final = |sent: &&&Sent| {
            let is_told = sent.to == Some(caller) && sent.facts.method == "INVITE";
            is_told && sent.facts.status == Some(status)
        };
        let told = self.sent.iter().find(is_final)?.arrivals.first().copied()?;
        let rings = |sent: &&&Sent| {
            let is_ring = matches!(sent.facts.status, Some(101..200)) && sent.facts.method == "INVITE";
            sent.from == callee && is_ring && sent.at < told
        };
        let rang = self.sent.iter().filter(rings).map(|sent| sent.at).max();
        Some((rang.unwrap_or(self.call.start) + shortest, told))
    }

    /// Whether timer C was due before the call ended.
    fn timer_c_fired(&self, status: u16) -> bool {
        self.timer_c(status, may_keep)
            .is_some_and(|(due, told)| told >= due)
    }

    /// Whether timer C was due so long before the end that no hop can have waited for anything any more.
    fn timer_c_is_over(&self, status: u16) -> bool {
        self.timer_c(status, |server| server.stateful)
            .is_some_and(|(due, told)| told > due + LONGEST_CANCEL)
    }
}

/// Whether a server may keep a transaction for an INVITE. One that waits for a back-end has a transaction
/// even in stateless mode (docs/request-path.md, waiting).
pub(super) fn may_keep(server: &ServerPlan) -> bool {
    server.stateful || server.auth != AuthPlan::Off || server.next.is_some_and(|next| next.by_name)
}

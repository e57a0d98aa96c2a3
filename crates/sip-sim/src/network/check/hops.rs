//! Rules about what a server may send on a hop, given what it received. It responds only to requests,
//! acknowledges only final responses, and cancels only INVITEs that it sent. A request goes on by one branch
//! and with one hop less. A 2xx goes on copy by copy.

use std::collections::{BTreeMap, BTreeSet};

use super::super::node::NodeId;
use super::super::scenario::{Scenario, ServerPlan, Speaks};
use super::super::stranger::{is_changed_copy, is_strangers};
use super::calls::OWN_TAG;
use super::{Case, Violation, is_udp};
use crate::clock::{Micros, SECOND};
use crate::message::{View, param};
use crate::trace::{Facts, Sent};

/// Timer I over UDP (T4).
const TIMER_I: Micros = 5 * SECOND;

/// A transaction on a hop: sender, receiver, branch.
type Hop<'a> = (NodeId, NodeId, &'a str);

/// A request on its way through a server to a node: server, node, branch and method with which it had come.
type Way<'a> = (NodeId, NodeId, &'a str, &'a str);

/// Messages seen so far. All are found by key, without a search.
#[derive(Default)]
struct Seen<'a> {
    /// When requests first came, by method.
    asked: BTreeMap<(Hop<'a>, &'a str), Micros>,
    /// When requests of the stranger first came, from any source, by method.
    forged: BTreeMap<(NodeId, &'a str, &'a str), Micros>,
    /// INVITEs that a server sent.
    invites: BTreeSet<Hop<'a>>,
    /// INVITEs for which a server keeps a transaction: it sent a 100.
    kept: BTreeSet<Hop<'a>>,
    /// INVITEs to which a server sent a final response.
    finals: BTreeSet<Hop<'a>>,
    /// Number of copies of failures that came to an INVITE.
    failures: BTreeMap<Hop<'a>, usize>,
    /// When INVITEs came to a server, and when the first ACK to a failure did.
    came: BTreeMap<Hop<'a>, Vec<Micros>>,
    acknowledged: BTreeMap<Hop<'a>, Micros>,
    /// Number of ACKs to these.
    acks: BTreeMap<Hop<'a>, usize>,
    /// Calls, with the CSeq number, that a phone accepted.
    accepted: BTreeSet<(Option<u32>, u32)>,
    /// Max-Forwards of the requests that came to a server, by branch and method.
    hops_left: BTreeMap<(NodeId, &'a str, &'a str), Vec<Option<u32>>>,
    /// INVITEs that phones refused: server, call, CSeq number, and the phone.
    refused: BTreeSet<(NodeId, Option<u32>, u32, NodeId)>,
    /// The branches by which a request went on to a node, each with the number of crashes of the server before
    /// it.
    sent_on: BTreeMap<Way<'a>, Vec<(usize, &'a str)>>,
}

pub(super) fn check(case: &Case<'_>) -> Vec<Violation> {
    let servers = case.scenario.servers.len();
    let stranger = case.scenario.stranger_node();
    let mut seen = Seen::default();
    let mut found = Vec::new();
    for sent in &case.log.sent {
        let Some(to) = sent.to else { continue };
        if sent.facts.status.is_none() {
            seen.note_way(case.scenario, sent, to);
        }
        // A changed copy has the branch of a phone's request, and is another request.
        if is_changed_copy(&sent.text) {
            continue;
        }
        if sent.from < servers && !is_strangers(&sent.facts.branch) {
            let fault = match sent.facts.status {
                Some(status) => seen.answer(case.scenario, sent, to, status),
                None => seen
                    .ack(case.scenario, sent, to)
                    .or_else(|| seen.cancel(case.scenario, sent, to))
                    .or_else(|| seen.goes_on(case.scenario, sent, to)),
            };
            if let Some((rule, what)) = fault {
                let what = format!("S{} to node {to}: {what}", sent.from);
                found.push(Violation::new(rule, sent.facts.call, what));
            }
        }
        seen.note(sent, to, servers, stranger);
    }
    found.extend(successes(case));
    found
}

impl<'a> Seen<'a> {
    fn note(&mut self, sent: &'a Sent, to: NodeId, servers: usize, stranger: Option<NodeId>) {
        let facts = &sent.facts;
        let (there, back) = ((sent.from, to, &*facts.branch), (to, sent.from, &*facts.branch));
        let is_invite = facts.method == "INVITE";
        match facts.status {
            None => {
                if is_invite {
                    self.invites.insert(there);
                    self.came
                        .entry(back)
                        .or_default()
                        .extend_from_slice(&sent.arrivals);
                }
                if facts.method == "ACK" {
                    *self.acks.entry(there).or_default() += 1;
                }
                if let Some(&came) = sent.arrivals.first() {
                    let first = |at: &mut Micros| *at = came.min(*at);
                    if facts.method == "ACK" {
                        self.acknowledged.entry(back).and_modify(first).or_insert(came);
                    }
                    self.asked
                        .entry((back, &facts.method))
                        .and_modify(first)
                        .or_insert(came);
                    let forged = (to, &*facts.branch, &*facts.method);
                    if stranger == Some(sent.from) {
                        self.forged.entry(forged).and_modify(first).or_insert(came);
                    }
                }
            }
            Some(100) if is_invite => {
                self.kept.insert(there);
            }
            Some(200..) if is_invite => {
                if self.kept.contains(&there) {
                    self.finals.insert(there);
                }
                if facts.status.is_some_and(|s| s >= 300) {
                    *self.failures.entry(back).or_default() += sent.arrivals.len();
                    if sent.arrived() {
                        self.refused.insert((to, facts.call, facts.cseq, sent.from));
                    }
                } else if sent.from >= servers {
                    self.accepted.insert((facts.call, facts.cseq));
                }
            }
            Some(_) => {}
        }
    }

    /// Notes the hops and the branch of a request.
    fn note_way(&mut self, scenario: &Scenario, sent: &'a Sent, to: NodeId) {
        let facts = &sent.facts;
        let servers = scenario.servers.len();
        if to < servers && sent.arrived() {
            let came = (to, &*facts.branch, &*facts.method);
            self.hops_left.entry(came).or_default().push(facts.max_forwards);
        }
        if let Some(before) = before(sent).filter(|_| sent.from < servers) {
            let way = (sent.from, to, before, &*facts.method);
            let this = (lives(scenario, sent), &*facts.branch);
            let known = self.sent_on.entry(way).or_default();
            if !known.contains(&this) {
                known.push(this);
            }
        }
    }

    fn answer(
        &self,
        scenario: &Scenario,
        sent: &Sent,
        to: NodeId,
        status: u16,
    ) -> Option<(&'static str, String)> {
        let facts = &sent.facts;
        let hop = (sent.from, to, &*facts.branch);
        let asked = self.asked.get(&(hop, &*facts.method));
        let forged = self.forged.get(&(sent.from, &*facts.branch, &*facts.method));
        if !asked.into_iter().chain(forged).any(|came| *came <= sent.at) {
            let what = format!("{status} to a {} that never came from there", facts.method);
            return Some(("stray response", what));
        }
        // A server without state passes responses on in the order of their arrival.
        let forgot = scenario.crashes(sent.from).any(|at| at <= sent.at);
        let keeps = scenario.servers[sent.from].stateful && !forgot;
        if keeps && status < 200 && self.finals.contains(&hop) && !self.is_anew(hop, sent) {
            let what = format!("{status} to {} after the final answer", facts.branch);
            return Some(("provisional after final", what));
        }
        None
    }

    /// Whether a copy of the INVITE came once its transaction was over: that is a new request, with responses
    /// of its own. (Over TCP the transaction ends with its ACK, by UDP timer I later, RFC 3261 §17.2.1. A
    /// server without state sends copies by TCP, and a copy that is new at the next hop is new behind it,
    /// too.)
    fn is_anew(&self, hop: Hop<'_>, answer: &Sent) -> bool {
        let lasts = if is_udp(answer) { TIMER_I } else { 0 };
        let over = self.acknowledged.get(&hop).map(|at| at + lasts);
        let copies = self.came.get(&hop).map_or(&[][..], Vec::as_slice);
        over.is_some_and(|over| copies.iter().any(|came| (over..=answer.at).contains(came)))
    }

    /// Judges an ACK. With its INVITE's branch it is to a failure that came over this very hop; any other is
    /// to a 2xx (RFC 3261 §17.1.1.3, §13.2.2.4).
    fn ack(&self, scenario: &Scenario, sent: &Sent, to: NodeId) -> Option<(&'static str, String)> {
        let facts = &sent.facts;
        if facts.method != "ACK" {
            return None;
        }
        let hop = (sent.from, to, &*facts.branch);
        let answered = if self.invites.contains(&hop) {
            // A server with state acknowledges each copy itself, and passes no other ACK on. (But over TCP
            // its transaction ends with the first ACK. A hop before that had the INVITE by UDP may send
            // more.)
            let to_it = |s: &ServerPlan| s.next.is_some_and(|next| next.tcp && next.server == sent.from);
            let by_tcp = scenario.servers.iter().any(to_it);
            let forgets = by_tcp || scenario.crashes(sent.from).any(|at| at <= sent.at);
            let keeps = scenario.servers[sent.from].stateful && !forgets;
            let sent_before = self.acks.get(&hop).copied().unwrap_or_default();
            let copies = self.failures.get(&hop).copied().unwrap_or_default();
            copies > if keeps { sent_before } else { 0 }
        } else {
            self.accepted.contains(&(facts.call, facts.cseq))
        };
        (!answered && !self.has_moved(scenario, sent, to))
            .then(|| ("stray ACK", format!("{} acknowledges nothing", facts.branch)))
    }
}

impl<'a> Seen<'a> {
    /// Judges a CANCEL, which has the branch of an INVITE that went over this very hop (RFC 3261 §9.1). A
    /// server without state sends it where an INVITE would go now.
    fn cancel(&self, scenario: &Scenario, sent: &Sent, to: NodeId) -> Option<(&'static str, String)> {
        let facts = &sent.facts;
        let forgot = scenario.crashes(sent.from).any(|at| at <= sent.at);
        let keeps = scenario.servers[sent.from].stateful && !forgot;
        let is_stray = facts.method == "CANCEL" && !self.invites.contains(&(sent.from, to, &*facts.branch));
        (is_stray && keeps).then(|| ("stray CANCEL", format!("{} cancels nothing", facts.branch)))
    }

    /// Judges a forwarded request. It has one hop less than when it came (RFC 3261 §16.6 step 3), and its
    /// copies go on by the branch of the first (§16.11). A phone behind a connection that ended may be
    /// reached by another way. A fork numbers its branches in the order of the contacts: a server that crashed
    /// has forgotten the fork, and takes the contacts that are there now.
    fn goes_on(&self, scenario: &Scenario, sent: &Sent, to: NodeId) -> Option<(&'static str, String)> {
        let facts = &sent.facts;
        let (before, method) = (before(sent)?, facts.method.as_str());
        let came = self.hops_left.get(&(sent.from, before, method));
        let lowered = |came: &Option<u32>| came.map_or(Some(70), |hops| hops.checked_sub(1));
        let fits = came.is_some_and(|all| all.iter().any(|came| lowered(came) == facts.max_forwards));
        if !fits {
            let what = format!(
                "{method} with {:?} hops left, having come with {came:?}",
                facts.max_forwards
            );
            return Some(("Max-Forwards", what));
        }
        let has_ways = |phone: &usize| scenario.phones[*phone].speaks != Speaks::Udp;
        let phone = to.checked_sub(scenario.servers.len());
        let phone = phone.filter(|phone| *phone < scenario.phones.len());
        if matches!(method, "INVITE" | "ACK" | "CANCEL") || phone.as_ref().is_some_and(has_ways) {
            return None;
        }
        let is_of_fork = |branch: &str| branch.contains('-');
        let life = lives(scenario, sent);
        let is_other = |(then, first): &&(usize, &str)| {
            let may_differ = *then != life && (is_of_fork(first) || is_of_fork(&facts.branch));
            *first != facts.branch && !may_differ
        };
        let known = self.sent_on.get(&(sent.from, to, before, method))?;
        known.iter().find(is_other).map(|(_, first)| {
            let what = format!("{method} {before} as {}, after {first}", facts.branch);
            ("branch changed", what)
        })
    }

    /// Whether the INVITE of an ACK went to another phone, which refused it. A server without state, or that
    /// lost its state, looks up the destination of each copy anew (RFC 3261 §16.11), and phones come and go.
    /// (The branch is the same, except for the mark of a fork. Only after a crash it may be another: the ACK goes
    /// on without state, and the member of the group that refused had a number.)
    fn has_moved(&self, scenario: &Scenario, sent: &Sent, to: NodeId) -> bool {
        let trunk = |branch: &'a str| branch.split('-').next().unwrap_or(branch);
        let (own, _) = sent
            .facts
            .branch
            .split_once('-')
            .unwrap_or((&sent.facts.branch, ""));
        let is_phone = |node: NodeId| (0..scenario.phones.len()).any(|p| scenario.node_of_phone(p) == node);
        let refused = |(server, node, branch): &Hop<'a>| {
            *server == sent.from && *node != to && is_phone(*node) && trunk(branch) == own
        };
        let by_another = |(server, call, cseq, node): &(NodeId, Option<u32>, u32, NodeId)| {
            let is_its = (*server, *call, *cseq) == (sent.from, sent.facts.call, sent.facts.cseq);
            is_its && *node != to && is_phone(*node)
        };
        let forgot = lives(scenario, sent) > 0;
        let stateless = !scenario.servers[sent.from].stateful;
        (forgot || stateless) && self.failures.keys().any(refused)
            || forgot && self.refused.iter().any(by_another)
    }
}

/// How often the sender, a server, had crashed before it sent this.
fn lives(scenario: &Scenario, sent: &Sent) -> usize {
    scenario.crashes(sent.from).filter(|at| *at <= sent.at).count()
}

/// The branch with which a request came to the server that sends it on; `None` if it is the server's own.
fn before(sent: &Sent) -> Option<&str> {
    let via = View::new(&sent.text).all("Via").nth(1)?;
    Some(param(via, "branch"))
}

/// A 2xx to an INVITE: server, call, CSeq number, tag.
type Success<'a> = (NodeId, Option<u32>, u32, &'a str);

/// Numbers of copies of a 2xx that came to a server, and that left it.
#[derive(Default)]
struct Balance {
    came: usize,
    left: usize,
    /// When the last copy was under way.
    last: Micros,
    /// Whether a copy went over a connection that may have ended, so that its arrival is uncertain.
    is_cut: bool,
}

/// When branches at servers with state ended in a refusal. A later 2xx, from another phone to which a server
/// without state sent a copy, matches no transaction (RFC 6026 §6, §8.9).
fn ended_branches<'a>(case: &Case<'a>) -> BTreeMap<(NodeId, &'a str), Micros> {
    let servers = &case.scenario.servers;
    let keeps = |to: NodeId| servers.get(to).is_some_and(|server| server.stateful);
    // The first final response of each branch, and whether it was a refusal.
    let mut firsts: BTreeMap<(NodeId, &'a str), (Micros, bool)> = BTreeMap::new();
    for sent in &case.log.sent {
        let Some(status) = sent.facts.status.filter(|status| *status >= 200) else {
            continue;
        };
        if let Some(to) = sent.to.filter(|to| sent.facts.method == "INVITE" && keeps(*to))
            && let Some(at) = sent.arrivals.iter().min()
        {
            let this = (*at, status >= 300);
            let known = firsts.entry((to, &*sent.facts.branch)).or_insert(this);
            *known = this.min(*known);
        }
    }
    let refused = firsts.into_iter().filter(|(_, (_, refused))| *refused);
    refused.map(|(branch, (at, _))| (branch, at)).collect()
}

/// A server sends each copy of a 2xx on, and no more. The callee repeats a 2xx, and the caller acknowledges
/// it (RFC 3261 §13.3.1.4, §16.7 step 5, RFC 6026 §8).
fn successes(case: &Case<'_>) -> Vec<Violation> {
    let scenario = case.scenario;
    let servers = scenario.servers.len();
    // A server that gave the call up itself has no transaction for later responses (RFC 6026 §6).
    let gave_up: BTreeSet<(NodeId, Option<u32>)> = case
        .log
        .sent
        .iter()
        .filter(|sent| sent.from < servers && sent.facts.status >= Some(300))
        .filter(|sent| sent.facts.method == "INVITE" && sent.facts.to_tag.starts_with(OWN_TAG))
        .map(|sent| (sent.from, sent.facts.call))
        .collect();
    let starts = |call: Option<u32>| {
        let mut calls = scenario.calls.iter();
        calls.find(|c| Some(c.call) == call).map_or(0, |c| c.start)
    };
    let ended = ended_branches(case);
    let mut balances: BTreeMap<Success<'_>, Balance> = BTreeMap::new();
    let key = |server: NodeId, facts: &'_ Facts| (server, facts.call, facts.cseq);
    for sent in case.log.sent.iter().filter(|sent| is_success(&sent.facts)) {
        let ends = [(Some(sent.from), false), (sent.to, true)];
        for (server, came) in ends {
            let Some(server) = server.filter(|s| *s < servers) else {
                continue;
            };
            let (server, call, cseq) = key(server, &sent.facts);
            let balance = balances
                .entry((server, call, cseq, &sent.facts.to_tag))
                .or_default();
            if came {
                let end = ended.get(&(server, &*sent.facts.branch)).copied();
                let is_open = |at: &&Micros| end.is_none_or(|end| **at <= end);
                balance.came += sent.arrivals.iter().filter(is_open).count();
            } else {
                balance.left += 1;
            }
            balance.last = sent
                .arrivals
                .iter()
                .fold(balance.last.max(sent.at), |last, at| last.max(*at));
            // If the host of an absent phone refused an INVITE, that branch has ended.
            let is_phone = sent.from >= servers;
            balance.is_cut |=
                is_cut(case, sent) || is_phone && case.was_away(sent.from, starts(sent.facts.call), sent.at);
        }
    }
    let unlike = balances.into_iter().filter(|(key, balance)| {
        let was_away = || case.was_away(key.0, starts(key.1), balance.last);
        let its = (key.0, key.1);
        let gave_up = || gave_up.contains(&its) || is_cut_behind(case, its, balance.last);
        let is_unlike = balance.left > balance.came || balance.left < balance.came && !gave_up();
        is_unlike && !balance.is_cut && !was_away()
    });
    unlike
        .map(|((server, call, cseq, _), Balance { came, left, .. })| {
            let what = format!("S{server} got {came} copies of the 2xx to INVITE {cseq}, and sent {left} on");
            let rule = if left > came {
                "success too often"
            } else {
                "success kept back"
            };
            Violation::new(rule, call, what)
        })
        .collect()
}

/// Whether the message went over a connection that may have ended then.
fn is_cut(case: &Case<'_>, sent: &Sent) -> bool {
    let arrived = sent.arrivals.last().copied().unwrap_or(sent.at);
    let cut = |to| case.was_disconnected((sent.from, to), sent.at, arrived);
    !is_udp(sent) && sent.to.is_none_or(cut)
}

/// Whether the INVITE came to a server over a connection that may have ended by then. A response has then no
/// way back, and is not sent.
fn is_cut_behind(case: &Case<'_>, (server, call): (NodeId, Option<u32>), by: Micros) -> bool {
    let of_it = |sent: &&Sent| sent.facts.call == call && sent.to == Some(server);
    let mut invites = case.log.sent.iter().filter(of_it);
    invites.any(|sent| {
        let is_stream = sent.facts.is_request("INVITE") && !is_udp(sent);
        is_stream && case.was_disconnected((sent.from, server), sent.at, by)
    })
}

fn is_success(facts: &Facts) -> bool {
    facts.method == "INVITE" && facts.status.is_some_and(|s| (200..300).contains(&s)) && facts.call.is_some()
}

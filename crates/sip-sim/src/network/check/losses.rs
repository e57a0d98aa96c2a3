//! Rules about calls that failed while messages got lost. Each failure has a hop on which every copy of a
//! needed message was lost, or it is the callee's own.
//!
//! Only calls over UDP are judged whose nodes have no trouble and no small bounds.

use super::super::node::NodeId;
use super::super::scenario::{NetCall, Reaction, Speaks, Trouble};
use super::calls::{OWN_TAG, may_keep};
use super::{Case, Violation};
use crate::clock::{MS, Micros, SECOND};
use crate::report::{CallReport, RequestEnd, Side};
use crate::trace::{Facts, Sent};

/// Why nothing came in time.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Cause {
    /// Every copy was lost on a hop.
    Loss,
    /// The message came too late.
    Late,
    /// The callee sends no response.
    Silent,
    /// A node did not do its part.
    Fault(String),
}

/// Messages of one kind on one hop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Traffic {
    sent: usize,
    arrived: usize,
    first_sent: Option<Micros>,
    first_arrival: Option<Micros>,
}

pub(super) fn check(case: &Case<'_>) -> Vec<Violation> {
    let calls = case.scenario.calls.iter();
    calls
        .filter_map(|call| Explained::new(case, call))
        .flat_map(Explained::judge)
        .collect()
}

/// One call, with everything known of it.
struct Explained<'a> {
    case: &'a Case<'a>,
    call: &'a NetCall,
    /// The way of the INVITE from the caller to the home of the callee.
    way: Vec<NodeId>,
    sent: Vec<&'a Sent>,
    found: Vec<Violation>,
}

impl<'a> Explained<'a> {
    /// The call, if it is judged.
    fn new(case: &'a Case<'a>, call: &'a NetCall) -> Option<Self> {
        let scenario = case.scenario;
        let servers = case.path(call);
        let node = |phone: usize| scenario.node_of_phone(phone);
        let mut nodes = servers.clone();
        nodes.extend(scenario.callees(call).chain([call.from]).map(node));
        let is_hit = nodes.iter().any(|node| {
            let hits = |other: &Trouble| matches!(other, Trouble::Partition { other, .. } if other == node);
            scenario
                .troubles
                .iter()
                .any(|t| t.node == *node || hits(&t.trouble))
        });
        let speaks_udp = |phone: usize| scenario.phones[phone].speaks == Speaks::Udp;
        let mut plans = servers.iter().map(|server| &scenario.servers[*server]);
        let is_plain = plans.all(|plan| !plan.tight && plan.next.is_none_or(|next| !next.tcp));
        let all_udp = speaks_udp(call.from) && scenario.callees(call).all(speaks_udp);
        (all_udp && is_plain && !is_hit).then(|| Self {
            case,
            call,
            way: [vec![node(call.from)], servers].concat(),
            sent: case.of_call(call).collect(),
            found: Vec::new(),
        })
    }

    fn judge(mut self) -> Vec<Violation> {
        let (case, call) = (self.case, self.call.call);
        let reports = case.reports.iter().map(|(_, report)| report);
        let reports: Vec<&CallReport> = reports.filter(|report| report.call == call).collect();
        let Some(caller) = reports.iter().find(|report| report.side == Side::Caller) else {
            return self.found;
        };
        let callees: Vec<usize> = case.scenario.callees(self.call).collect();
        let &[callee] = callees.as_slice() else {
            self.forked(caller);
            return self.found;
        };
        self.way.push(case.scenario.node_of_phone(callee));
        self.invite_end(caller);
        self.cancel_end(caller);
        self.bye_end(caller, Side::Caller);
        if let Some(callee) = reports.iter().find(|report| report.side == Side::Callee) {
            self.bye_end(callee, Side::Callee);
            self.acknowledged(callee);
        }
        self.found
    }

    fn violate(&mut self, rule: &'static str, what: impl Into<String>) {
        self.found.push(Violation::new(rule, Some(self.call.call), what));
    }

    fn on_hop(&self, from: NodeId, to: NodeId) -> impl Iterator<Item = &'a Sent> + '_ {
        let sent = self.sent.iter().copied();
        sent.filter(move |s| s.from == from && s.to == Some(to))
    }

    /// Messages from one node to another that match `wanted`.
    fn traffic(&self, from: NodeId, to: NodeId, wanted: impl Fn(&Facts) -> bool) -> Traffic {
        let mut traffic = Traffic::default();
        for sent in self.on_hop(from, to).filter(|s| wanted(&s.facts)) {
            traffic.sent += 1;
            traffic.arrived += sent.arrivals.len();
            traffic.first_sent = traffic.first_sent.or(Some(sent.at));
            let first = sent.arrivals.first().copied();
            traffic.first_arrival = traffic.first_arrival.into_iter().chain(first).min();
        }
        traffic
    }

    /// Whether a message was lost.
    fn has_losses(&self) -> bool {
        self.sent.iter().any(|sent| !sent.arrived())
    }

    /// CSeq number of the caller's last INVITE.
    fn last_invite(&self) -> u32 {
        let invites = self.on_hop(self.way[0], self.way[1]);
        let invites = invites.filter(|sent| sent.facts.is_request("INVITE"));
        invites.map(|sent| sent.facts.cseq).max().unwrap_or(0)
    }

    fn reaction(&self) -> Reaction {
        let mut callees = self.case.scenario.callees(self.call);
        let callee = callees.next().unwrap_or(self.call.to);
        self.case.scenario.branch_plan(self.call, callee).reaction
    }

    fn accuse(&mut self, rule: &'static str, what: &str, cause: Cause) {
        match cause {
            Cause::Loss | Cause::Silent => {}
            Cause::Late if self.has_losses() => {}
            Cause::Late => self.violate(
                rule,
                format!("the answer to {what} came too late, and nothing was lost"),
            ),
            Cause::Fault(why) => self.violate(rule, format!("{what}: {why}")),
        }
    }

    /// Judges a call to several phones. A phone that sends nothing delays the final response until timer B,
    /// which is as long as the wait of a caller that cancelled at once.
    fn forked(&mut self, caller: &CallReport) {
        let mut servers = self.way.iter().skip(1);
        if !servers.all(|server| self.case.scenario.servers[*server].stateful) {
            return;
        }
        let RequestEnd::TimedOut(at) = caller.invite else {
            return;
        };
        let told = || {
            let to_caller = self.on_hop(self.way[1], self.way[0]);
            to_caller.filter(|sent| sent.facts.is_final_to("INVITE"))
        };
        let is_close = told().any(|sent| sent.at + SECOND > at);
        let answered = told().any(|sent| sent.arrivals.iter().any(|came| *came < at));
        if answered || (!is_close && !self.has_losses()) {
            self.violate("unexplained time-out", format!("{:?}", caller.invite));
        }
    }

    fn invite_end(&mut self, caller: &CallReport) {
        let cseq = self.last_invite();
        match caller.invite {
            RequestEnd::TimedOut(at) => {
                let cause = self.silence_to_invite(0, cseq, at);
                self.accuse("unexplained time-out", "the INVITE", cause);
            }
            RequestEnd::Answered(408) => {
                let Some((place, at)) = self.maker_of_408(cseq) else {
                    return;
                };
                let cause = self.silence_to_invite(place, cseq, at);
                self.accuse("unexplained 408", "a server's INVITE", cause);
            }
            RequestEnd::Answered(487) if caller.cancel == RequestEnd::NotSent && !self.timer_c_fired() => {
                self.violate("wrong end", "487, and nobody cancelled");
            }
            RequestEnd::NotSent | RequestEnd::Pending | RequestEnd::Answered(_) => {}
        }
    }

    /// The server that made the caller's 408, by its index on the way, and when.
    fn maker_of_408(&self, cseq: u32) -> Option<(usize, Micros)> {
        let is_it = |f: &Facts| f.method == "INVITE" && f.cseq == cseq && f.status == Some(408);
        let mut told = self.on_hop(self.way[1], self.way[0]);
        let tag = &told.find(|sent| is_it(&sent.facts))?.facts.to_tag;
        let made = |place: usize| {
            let of_tag = |f: &Facts| is_it(f) && f.to_tag == *tag;
            self.traffic(self.way[place], self.way[place - 1], of_tag)
                .first_sent
        };
        let mut places = (1..self.way.len() - 1).rev().filter(|_| tag.starts_with(OWN_TAG));
        places.find_map(|place| Some((place, made(place)?)))
    }

    /// Whether a server had waited for a final answer as long as timer C.
    fn timer_c_fired(&self) -> bool {
        let hops = self.way.windows(2).skip(1);
        hops.map(|hop| (hop[0], hop[1])).any(|(server, next)| {
            let invite = self.traffic(server, next, |f| f.is_request("INVITE")).first_sent;
            let own = |f: &Facts| f.is_request("CANCEL") && f.vias == 1;
            let cancel = self.traffic(server, next, own).first_sent;
            let c = Micros::from(self.case.scenario.servers[server].c_ms) * MS;
            let waited = cancel.zip(invite).map(|(cancel, invite)| cancel - invite);
            waited.is_some_and(|waited| waited + 2 * MS >= c)
        })
    }

    /// Why the node at this index of the way had no final response to its INVITE at `deadline`. For a node
    /// without any response (timer B): why it had none.
    fn silence_to_invite(&self, place: usize, cseq: u32, deadline: Micros) -> Cause {
        let any = |f: &Facts| f.status.is_some() && f.method == "INVITE" && f.cseq == cseq;
        let way = &self.way[place..];
        let last = &self.way[self.way.len() - 2..];
        // A CANCEL does not go on before a response came back (RFC 3261 §9.1).
        let spoke = self.traffic(last[1], last[0], any).first_sent;
        if spoke.is_none_or(|at| at > deadline) && self.reaction() == Reaction::Silent {
            return Cause::Silent;
        }
        let heard = self.traffic(way[1], way[0], any).first_arrival;
        if heard.is_none_or(|at| at > deadline) {
            let invite = |f: &Facts| f.is_request("INVITE") && f.cseq == cseq;
            return self.silence(way, invite, any, deadline);
        }
        let last = |f: &Facts| f.is_final_to("INVITE") && f.cseq == cseq;
        let cancel = |f: &Facts| f.is_request("CANCEL") && f.cseq == cseq;
        self.silence(way, cancel, last, deadline)
    }

    /// Why no response that matches `answers` came back along `way` in time, to a request that matches
    /// `requests`.
    fn silence(
        &self,
        way: &[NodeId],
        requests: impl Fn(&Facts) -> bool,
        answers: impl Fn(&Facts) -> bool,
        deadline: Micros,
    ) -> Cause {
        let back = |at: usize| self.traffic(way[at], way[at - 1], &answers);
        // The nearest node that sent a response at all.
        if let Some(nearest) = (1..way.len()).find(|at| back(*at).sent > 0) {
            return match back(nearest).first_arrival {
                None => Cause::Loss,
                Some(at) if nearest == 1 && at >= deadline => Cause::Late,
                Some(_) if nearest == 1 => Cause::Fault("it was answered in time".to_owned()),
                Some(_) => Cause::Fault(format!("node {} got an answer and sent none", way[nearest - 1])),
            };
        }
        for hop in way.windows(2) {
            let traffic = self.traffic(hop[0], hop[1], &requests);
            if traffic.sent == 0 {
                return Cause::Fault(format!("node {} neither answered nor sent it on", hop[0]));
            }
            if traffic.arrived == 0 {
                return Cause::Loss;
            }
        }
        Cause::Fault(format!("node {} never answered", way[way.len() - 1]))
    }

    fn cancel_end(&mut self, caller: &CallReport) {
        match caller.cancel {
            RequestEnd::TimedOut(at) => {
                let way = self.way.clone();
                let answer = |f: &Facts| f.is_final_to("CANCEL");
                let cause = self.silence(&way, |f| f.is_request("CANCEL"), answer, at);
                self.accuse("unexplained time-out", "the CANCEL", cause);
            }
            // Allowed only if the INVITE had a final response at the node that sends the 481, or before it.
            RequestEnd::Answered(481) if !self.is_481_due() && !self.is_looked_up_in_vain() => {
                self.violate(
                    "CANCEL lost",
                    "481 to the CANCEL of an INVITE without a final answer",
                );
            }
            RequestEnd::NotSent | RequestEnd::Pending | RequestEnd::Answered(_) => {}
        }
    }

    /// Whether the INVITE had its final response when a node first sent 481 to its CANCEL.
    fn is_481_due(&self) -> bool {
        let says = |f: &Facts| f.method == "CANCEL" && f.status == Some(481);
        let said = |place: usize| {
            self.traffic(self.way[place], self.way[place - 1], says)
                .first_sent
        };
        let Some(maker) = (1..self.way.len()).rev().find(|place| said(*place).is_some()) else {
            return false;
        };
        (1..=maker).any(|place| {
            let done = |f: &Facts| f.is_final_to("INVITE");
            let done = self
                .traffic(self.way[place], self.way[place - 1], done)
                .first_sent;
            done.is_some() && done <= said(1)
        })
    }

    /// Whether the home of the callee keeps no state, so that it looks up the destination of a CANCEL anew,
    /// and the callee was not registered meanwhile.
    fn is_looked_up_in_vain(&self) -> bool {
        let home = self.way[self.way.len() - 2];
        !may_keep(&self.case.scenario.servers[home]) && self.case.was_unregistered(self.call)
    }

    /// Nodes on the way of requests in the dialog, the caller first.
    fn dialog_way(&self) -> Vec<NodeId> {
        let stays = |node: &&NodeId| {
            let plan = self.case.scenario.servers.get(**node);
            plan.is_none_or(|plan| plan.record_route)
        };
        self.way.iter().filter(stays).copied().collect()
    }

    fn bye_end(&mut self, report: &CallReport, side: Side) {
        let mut way = self.dialog_way();
        if side == Side::Callee {
            way.reverse();
        }
        let byes = self
            .sent
            .iter()
            .filter(|s| s.from == way[0] && s.facts.is_request("BYE"));
        let cseq = byes.map(|s| s.facts.cseq).max();
        match report.bye {
            RequestEnd::TimedOut(at) => {
                let request = |f: &Facts| f.is_request("BYE") && Some(f.cseq) == cseq;
                let answer = |f: &Facts| f.is_final_to("BYE") && Some(f.cseq) == cseq;
                let cause = self.silence(&way, request, answer, at);
                self.accuse("unexplained time-out", "the BYE", cause);
            }
            RequestEnd::Answered(481) if side == Side::Callee => {
                let caller = self.way[0];
                let of_200 = |f: &Facts| f.is_final_to("INVITE") && f.status == Some(200);
                let knew = self.traffic(self.way[1], caller, of_200).first_arrival;
                let came = self
                    .sent
                    .iter()
                    .filter(|s| s.to == Some(caller) && s.facts.is_request("BYE"));
                let came = came.filter_map(|s| s.arrivals.first().copied()).min();
                if came.is_none_or(|bye| knew.is_some_and(|knew| knew < bye)) {
                    self.violate("wrong end", "481 to the BYE of a dialog that the caller has");
                }
            }
            RequestEnd::NotSent | RequestEnd::Pending | RequestEnd::Answered(_) => {}
        }
    }

    /// The ACK to a 2xx reaches the callee, unless it or the 2xx was lost on a hop.
    fn acknowledged(&mut self, callee: &CallReport) {
        if callee.acknowledged != Some(false) || callee.was_ended {
            return;
        }
        let success = |f: &Facts| f.method == "INVITE" && f.status == Some(200);
        let ack = |f: &Facts| f.is_request("ACK");
        let back = self.way.windows(2).rev().map(|hop| (hop[1], hop[0]));
        let mut hops: Vec<(Traffic, NodeId, &str)> = back
            .map(|(from, to)| (self.traffic(from, to, success), from, "200"))
            .collect();
        let dialog = self.dialog_way();
        let there = dialog.windows(2).map(|hop| (hop[0], hop[1]));
        hops.extend(there.map(|(from, to)| (self.traffic(from, to, ack), from, "ACK")));
        for (traffic, from, what) in hops {
            if traffic.sent == 0 {
                return self.violate("ACK lost", format!("node {from} did not send the {what} on"));
            }
            if traffic.arrived == 0 {
                return;
            }
        }
        if !self.has_losses() {
            self.violate("ACK lost", "the callee got no ACK although nothing was lost");
        }
    }
}

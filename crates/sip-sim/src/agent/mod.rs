//! A user agent, written from RFC 3261 and from nothing else: the independent model against which the servers
//! are tested. [`caller`] is the UAC of an INVITE, [`callee`] its UAS, [`request`] the client transaction of
//! CANCEL and BYE. [`dialog`] is the state that both sides keep of a call.

mod callee;
mod caller;
mod dialog;
mod digest;
pub mod plan;
pub mod registration;
mod request;

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use crate::clock::{MS, Micros, Queue, SECOND};
use crate::message::{View, tag};
use crate::report::{CallReport, RequestEnd};

use callee::InCall;
use caller::OutCall;
use plan::CallPlan;
use registration::{Registrant, Registration, RegistrationTimer};
use request::ClientRequest;

pub(crate) use digest::Challenge;
pub use digest::PASSWORD;

/// A datagram to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// Destination.
    pub to: SocketAddr,
    /// The datagram's content, which is always text in the simulation.
    pub text: String,
}

/// RFC 3261 Table 4.
pub(crate) const T1: Micros = 500 * MS;
/// RFC 3261 Table 4.
pub(crate) const T2: Micros = 4 * SECOND;
/// Timers B, F, H and J of unreliable transports.
pub(crate) const TIME_OUT: Micros = 64 * T1;

/// The interval between the `sent`-th sending and the next, which doubles up to T2.
pub(crate) fn doubled_to_t2(sent: u32) -> Micros {
    (T1 << sent.saturating_sub(1).min(8)).min(T2)
}

/// Method of a client transaction other than that of INVITE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Purpose {
    Cancel,
    Bye,
}

/// Purpose of a timer. A timer is never stopped: when it fires, its owner checks whether it still applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Timer {
    /// The call begins.
    Place(u32),
    /// Timer A, of the INVITE with this branch.
    InviteAgain(u32, String),
    /// Timer B.
    InviteGivenUp(u32, String),
    /// The caller cancels.
    Cancel(u32),
    /// RFC 3261 §9.1: no final answer after a CANCEL.
    CancelGivenUp(u32),
    /// The caller hangs up.
    CallerHangsUp(u32),
    /// Timer E, by branch and method.
    RequestAgain(String, Purpose),
    /// Timer F.
    RequestGivenUp(String, Purpose),
    /// The callee rings.
    Ring(u32),
    /// The callee decides.
    Decide(u32),
    /// The callee stops ringing, without CANCEL or answer.
    RingEnds(u32),
    /// Timer G, or the repetition of a 2xx (§13.3.1.4).
    FinalAgain(u32),
    /// Timer H, or the end of that repetition.
    FinalGivenUp(u32),
    /// The callee hangs up.
    CalleeHangsUp(u32),
    /// An event of the registration.
    Registration(RegistrationTimer),
}

/// State that all calls of an agent share.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) now: Micros,
    /// User part of the agent's address-of-record, and its name for digest.
    pub(crate) user: &'static str,
    /// Name of the agent, which no other user agent of the user has.
    pub(crate) name: &'static str,
    pub(crate) proxy: SocketAddr,
    pub(crate) rport: bool,
    /// Whether the transport is reliable, so that nothing is sent again.
    pub(crate) reliable: bool,
    /// Transport and address as in Via.
    via: String,
    contact: String,
    /// More header lines of the agent's INVITEs and 2xx.
    pub(crate) extra: &'static str,
    pub(crate) timers: Queue<Timer>,
    out: VecDeque<Outgoing>,
    serial: u32,
}

impl Core {
    pub(crate) fn start(&mut self, after: Micros, timer: Timer) {
        self.timers.put(self.now + after, timer);
    }

    pub(crate) fn send(&mut self, to: SocketAddr, text: String) {
        self.out.push_back(Outgoing { to, text });
    }

    /// A new branch.
    pub(crate) fn branch(&mut self) -> String {
        self.serial += 1;
        format!("z9hG4bK-{}-{}", self.name, self.serial)
    }

    /// The Via value for `branch`.
    pub(crate) fn via(&self, branch: &str) -> String {
        let rport = if self.rport { ";rport" } else { "" };
        format!("{};branch={branch}{rport}", self.via)
    }

    pub(crate) fn contact(&self) -> &str {
        &self.contact
    }
}

/// A user agent.
#[derive(Debug)]
pub struct Agent {
    core: Core,
    plans: BTreeMap<u32, CallPlan>,
    outgoing: BTreeMap<u32, OutCall>,
    incoming: BTreeMap<u32, InCall>,
    requests: BTreeMap<(String, Purpose), ClientRequest>,
    /// Responses to requests other than INVITE, by branch: a copy gets the same response (§17.2.2).
    answered: BTreeMap<(String, Purpose), String>,
    registrant: Option<Registrant>,
}

/// Connection and names of a user agent.
#[derive(Clone, Debug)]
pub struct Line {
    /// User part of the agent's address-of-record, and its name for digest.
    pub user: &'static str,
    /// Name of the agent, which no other user agent of the user has.
    pub name: &'static str,
    /// The agent's outbound proxy.
    pub proxy: SocketAddr,
    /// Whether the agent asks for `rport` (RFC 3581).
    pub rport: bool,
    /// Whether the transport is reliable, so that nothing is sent again.
    pub reliable: bool,
    /// `SIP/2.0/TRANSPORT sent-by`.
    pub via: String,
    /// The agent's Contact.
    pub contact: String,
    /// More header lines of the agent's INVITEs and 2xx.
    pub extra: &'static str,
}

impl Agent {
    /// A user agent for these calls. It places those for which `places` is true.
    pub fn of(line: Line, plans: &[CallPlan], places: impl Fn(&CallPlan) -> bool) -> Self {
        let mut timers = Queue::default();
        for plan in plans.iter().filter(|plan| places(plan)) {
            timers.put(plan.start, Timer::Place(plan.call));
        }
        Self {
            core: Core {
                now: 0,
                user: line.user,
                name: line.name,
                proxy: line.proxy,
                rport: line.rport,
                reliable: line.reliable,
                via: line.via,
                contact: line.contact,
                extra: line.extra,
                timers,
                out: VecDeque::new(),
                serial: 0,
            },
            plans: plans.iter().map(|p| (p.call, *p)).collect(),
            outgoing: BTreeMap::new(),
            incoming: BTreeMap::new(),
            requests: BTreeMap::new(),
            answered: BTreeMap::new(),
            registrant: None,
        }
    }

    /// Makes the agent register with this plan.
    pub(crate) fn register(&mut self, mut registrant: Registrant) {
        registrant.begin(&mut self.core);
        self.registrant = Some(registrant);
    }

    /// Notes that the agent is connected again. That is a new flow, so a binding of the old one must be
    /// registered anew (RFC 5626 §4.2.2).
    pub(crate) fn reconnected(&mut self, now: Micros) {
        self.core.now = now;
        if let Some(registrant) = &mut self.registrant {
            registrant.reconnected(&mut self.core);
        }
    }

    /// Whether the agent has left for good.
    pub(crate) fn has_signed_off(&self) -> bool {
        self.registrant.as_ref().is_some_and(Registrant::has_signed_off)
    }

    /// The agent's REGISTERs.
    pub(crate) fn registrations(&self) -> &[Registration] {
        self.registrant.as_ref().map_or(&[], |r| r.history())
    }

    fn fire(&mut self, timer: Timer) {
        let core = &mut self.core;
        match timer {
            Timer::Place(call) => {
                if let Some(plan) = self.plans.get(&call) {
                    self.outgoing.insert(call, OutCall::place(core, plan));
                }
            }
            Timer::InviteAgain(call, branch) => self.with_out(call, |c, core| c.send_again(core, &branch)),
            Timer::InviteGivenUp(call, branch) => self.with_out(call, |c, core| c.give_up(core, &branch)),
            Timer::Cancel(call) => self.with_out(call, OutCall::want_cancel),
            Timer::CancelGivenUp(call) => self.with_out(call, OutCall::cancel_patience_ends),
            Timer::CallerHangsUp(call) => self.with_out(call, OutCall::hang_up),
            Timer::RequestAgain(branch, purpose) => {
                if let Some(request) = self.requests.get_mut(&(branch, purpose)) {
                    request.send_again(core);
                }
            }
            Timer::RequestGivenUp(branch, purpose) => {
                let key = (branch, purpose);
                if let Some(request) = self.requests.remove(&key) {
                    let end = RequestEnd::TimedOut(self.core.now);
                    self.request_ended(request.call, &key, end);
                }
            }
            Timer::Ring(call) => self.with_in(call, InCall::ring),
            Timer::Decide(call) => self.with_in(call, InCall::decide),
            Timer::RingEnds(call) => self.with_in(call, InCall::ring_ends),
            Timer::FinalAgain(call) => self.with_in(call, InCall::final_again),
            Timer::FinalGivenUp(call) => self.with_in(call, InCall::final_given_up),
            Timer::CalleeHangsUp(call) => self.with_in(call, InCall::hang_up),
            Timer::Registration(timer) => {
                if let Some(registrant) = &mut self.registrant {
                    registrant.fire(core, timer);
                }
            }
        }
    }

    /// Runs `f` on a placed call, and begins the requests in its `wanted`.
    fn with_out(&mut self, call: u32, f: impl FnOnce(&mut OutCall, &mut Core)) {
        if let Some(found) = self.outgoing.get_mut(&call) {
            f(found, &mut self.core);
            let wanted = found.wanted.drain(..).collect();
            self.begin(wanted);
        }
    }

    /// Runs `f` on a received call, and begins the requests in its `wanted`.
    fn with_in(&mut self, call: u32, f: impl FnOnce(&mut InCall, &mut Core)) {
        if let Some(found) = self.incoming.get_mut(&call) {
            f(found, &mut self.core);
            let wanted = found.wanted.drain(..).collect();
            self.begin(wanted);
        }
    }

    fn begin(&mut self, wanted: Vec<ClientRequest>) {
        for mut request in wanted {
            request.begin(&mut self.core);
            self.requests
                .insert((request.branch.clone(), request.purpose), request);
        }
    }

    fn request_ended(&mut self, call: u32, (branch, purpose): &(String, Purpose), end: RequestEnd) {
        if let Some(found) = self.outgoing.get_mut(&call) {
            match purpose {
                Purpose::Cancel => found.report.cancel = end,
                Purpose::Bye => found.bye_ended(branch, end),
            }
        } else if let Some(found) = self.incoming.get_mut(&call) {
            found.report.bye = end;
        }
    }

    fn response(&mut self, view: &View<'_>, status: u16) {
        if view.method() == "REGISTER" {
            if let Some(registrant) = &mut self.registrant {
                registrant.response(&mut self.core, view, status);
            }
            return;
        }
        let Some(call) = view.call() else { return };
        let purpose = match view.method() {
            "INVITE" => return self.with_out(call, |c, core| c.response(core, view, status)),
            "CANCEL" => Purpose::Cancel,
            "BYE" => Purpose::Bye,
            _ => return,
        };
        let key = (view.branch().to_owned(), purpose);
        let Some(request) = self.requests.get_mut(&key) else {
            return;
        };
        if status < 200 {
            request.proceeding = true;
            return;
        }
        // Timer K is not needed here: a copy of the response finds no request.
        self.requests.remove(&key);
        self.request_ended(call, &key, RequestEnd::Answered(status));
        if status == 407 && purpose == Purpose::Bye {
            self.with_out(call, |c, core| c.bye_challenged(core, &key.0, view));
            self.with_in(call, |c, core| c.bye_challenged(core, &key.0, view));
        }
    }

    fn request(&mut self, from: SocketAddr, view: &View<'_>, text: &str) {
        let Some(call) = view.call() else { return };
        match view.method() {
            "INVITE" => self.invite(from, view, text),
            "ACK" => self.with_in(call, |c, core| c.ack(core, view)),
            "CANCEL" => self.cancel(from, view),
            "BYE" => self.bye(from, view),
            _ => {}
        }
    }

    fn invite(&mut self, from: SocketAddr, view: &View<'_>, text: &str) {
        let Some(call) = view.call() else { return };
        if let Some(found) = self.incoming.get_mut(&call) {
            if found.branch == view.branch() {
                found.again(&mut self.core);
            } else if !found.is_silent() {
                // §8.2.2.2: the same request has come by another way.
                let answer = dialog::answer(text, "482 Loop Detected", &found.to_tag, "");
                self.core.send(from, answer);
            }
            return;
        }
        if let Some(plan) = self.plans.get(&call) {
            let found = InCall::new(&mut self.core, plan, from, text);
            self.incoming.insert(call, found);
        }
    }

    fn cancel(&mut self, from: SocketAddr, view: &View<'_>) {
        let key = (view.branch().to_owned(), Purpose::Cancel);
        let call = view.call().unwrap_or_default();
        let known = self
            .incoming
            .get(&call)
            .filter(|c| c.branch == view.branch() && !c.is_forgotten(self.core.now));
        // A CANCEL without an INVITE of the same branch cancels nothing (§9.2).
        let cancels = known.is_some();
        let answer = match (self.answered.get(&key), known) {
            (Some(answer), _) => answer.clone(),
            (None, Some(found)) => dialog::answer(view.text(), "200 OK", &found.to_tag, ""),
            (None, None) => dialog::answer(view.text(), "481 Call/Transaction Does Not Exist", "none", ""),
        };
        let fresh = self.answered.insert(key, answer.clone()).is_none();
        self.core.send(from, answer);
        if fresh && cancels {
            self.with_in(call, InCall::cancelled);
        }
    }

    fn bye(&mut self, from: SocketAddr, view: &View<'_>) {
        let key = (view.branch().to_owned(), Purpose::Bye);
        if let Some(answer) = self.answered.get(&key) {
            let answer = answer.clone();
            return self.core.send(from, answer);
        }
        let call = view.call().unwrap_or_default();
        let known = match (self.outgoing.get_mut(&call), self.incoming.get_mut(&call)) {
            (Some(found), _) => found.other_side_hangs_up(tag(view.get("From"))),
            (None, Some(found)) => found.other_side_hangs_up(),
            (None, None) => false,
        };
        let status = if known {
            "200 OK"
        } else {
            "481 Call/Transaction Does Not Exist"
        };
        let answer = dialog::answer(view.text(), status, "", "");
        self.answered.insert(key, answer.clone());
        self.core.send(from, answer);
    }
}

impl Agent {
    /// Handles a message from `from`.
    pub fn handle_message(&mut self, now: Micros, from: SocketAddr, text: &str) {
        self.core.now = now;
        let view = View::new(text);
        match view.status() {
            Some(status) => self.response(&view, status),
            None => self.request(from, &view, text),
        }
    }

    /// Handles the time-out named by [`Self::poll_timeout`].
    pub fn handle_timeout(&mut self, now: Micros) {
        self.core.now = now;
        while let Some(timer) = self.core.timers.pop_due(now) {
            self.fire(timer);
        }
    }

    /// The next message to send.
    pub fn poll_transmit(&mut self) -> Option<Outgoing> {
        self.core.out.pop_front()
    }

    /// When [`Self::handle_timeout`] is due; `None` until something arrives.
    pub fn poll_timeout(&self) -> Option<Micros> {
        self.core.timers.next_at()
    }

    /// State that the agent still holds although everything is over; `None` if there is none.
    pub fn leftovers(&self) -> Option<String> {
        let open: Vec<String> = self
            .reports()
            .into_iter()
            .filter(|r| {
                [r.invite, r.cancel, r.bye].contains(&RequestEnd::Pending)
                    || r.other_byes.contains(&RequestEnd::Pending)
                    || self.incoming.get(&r.call).is_some_and(InCall::is_open)
            })
            .map(|r| format!("call {}: {r:?}", r.call))
            .chain(self.registrant.as_ref().and_then(Registrant::leftovers))
            .collect();
        (!open.is_empty()).then(|| open.join("; "))
    }

    /// Reports of the calls in which the agent took part.
    pub fn reports(&self) -> Vec<CallReport> {
        let outgoing = self.outgoing.values().map(|c| c.report.clone());
        let incoming = self.incoming.values().map(|c| c.report.clone());
        outgoing.chain(incoming).collect()
    }
}

//! The callee of a call: the INVITE server transaction and the user above it (RFC 3261 §13.3, §17.2.1, RFC
//! 6026, §9.2, §15).

use std::net::SocketAddr;

use super::dialog::{self, Dialog};
use super::digest;
use super::plan::{Behaviour, CallPlan};
use super::request::ClientRequest;
use super::{Core, Purpose, TIME_OUT, Timer, doubled_to_t2};
use crate::clock::{Micros, SECOND};
use crate::message::View;
use crate::report::{CallReport, RequestEnd, Side};

/// Time after which an unanswered phone stops ringing.
const RINGS_FOR: Micros = 400 * SECOND;
/// RFC 3261 Table 4, timer I.
const T4: Micros = 5 * SECOND;

/// State of the INVITE transaction (RFC 6026 Figure 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Proceeding,
    /// A 2xx was sent.
    Accepted,
    /// A failure was sent.
    Completed,
    /// The ACK to the failure came.
    Confirmed,
    /// The ACK did not come in time.
    GivenUp,
}

/// A call at the callee.
#[derive(Debug)]
pub(crate) struct InCall {
    plan: CallPlan,
    invite: String,
    source: SocketAddr,
    pub(crate) branch: String,
    pub(crate) to_tag: String,
    state: State,
    /// The last response, if there was one.
    last: Option<String>,
    /// Number of times that the final response was sent.
    sent: u32,
    /// When the transaction ends.
    forgotten_at: Option<Micros>,
    dialog: Dialog,
    /// Branches of the BYE, and of the one with credentials.
    byes: Vec<String>,
    /// Requests to begin.
    pub(crate) wanted: Vec<ClientRequest>,
    pub(crate) report: CallReport,
}

impl InCall {
    /// The call of a new INVITE.
    pub(crate) fn new(core: &mut Core, plan: &CallPlan, source: SocketAddr, text: &str) -> Self {
        let view = View::new(text);
        let to_tag = format!("to-{}-{}", core.name, plan.call);
        let mut call = Self {
            plan: *plan,
            invite: text.to_owned(),
            source,
            branch: view.branch().to_owned(),
            dialog: Dialog::of_callee(&view, &to_tag),
            to_tag,
            state: State::Proceeding,
            last: None,
            sent: 0,
            forgotten_at: None,
            byes: Vec::new(),
            wanted: Vec::new(),
            report: CallReport::new(plan.call, Side::Callee),
        };
        if plan.trying {
            call.answer(core, "100 Trying");
        }
        if let Some(after) = plan.ring_after {
            core.start(after, Timer::Ring(plan.call));
        }
        match plan.behaviour {
            Behaviour::Answer(after) | Behaviour::Busy(after) | Behaviour::Refuse(after, _) => {
                core.start(after, Timer::Decide(plan.call));
            }
            Behaviour::Ring => core.start(RINGS_FOR, Timer::RingEnds(plan.call)),
            Behaviour::Silent => {}
        }
        call
    }

    fn answer(&mut self, core: &mut Core, status: &str) {
        let extra = if status.starts_with('2') {
            format!("Contact: {}\r\n{}", core.contact(), core.extra)
        } else if status.starts_with("401") {
            // Each callee has a realm of its own: if several challenge, the caller must get every challenge
            // (RFC 3261 §16.7 step 7).
            format!(
                "WWW-Authenticate: Digest realm=\"{0}\", nonce=\"{0}\"\r\n",
                core.name
            )
        } else {
            String::new()
        };
        let text = dialog::answer(&self.invite, status, &self.to_tag, &extra);
        core.send(self.source, text.clone());
        self.last = Some(text);
    }

    /// Handles a copy of the INVITE by sending the last response. In Accepted, §13.3.1.4 governs its
    /// repetition.
    pub(crate) fn again(&mut self, core: &mut Core) {
        if matches!(self.state, State::Proceeding | State::Completed)
            && let Some(last) = &self.last
        {
            core.send(self.source, last.clone());
        }
    }

    pub(crate) fn ring(&mut self, core: &mut Core) {
        if self.state == State::Proceeding {
            self.answer(core, "180 Ringing");
        }
    }

    pub(crate) fn decide(&mut self, core: &mut Core) {
        match self.plan.behaviour {
            Behaviour::Answer(_) => self.finish(core, "200 OK", State::Accepted),
            Behaviour::Busy(_) => self.finish(core, "486 Busy Here", State::Completed),
            Behaviour::Refuse(_, status) => self.finish(core, status, State::Completed),
            Behaviour::Ring | Behaviour::Silent => {}
        }
    }

    pub(crate) fn ring_ends(&mut self, core: &mut Core) {
        self.finish(core, "480 Temporarily Unavailable", State::Completed);
    }

    /// Handles a CANCEL for this INVITE (§9.2).
    pub(crate) fn cancelled(&mut self, core: &mut Core) {
        self.finish(core, "487 Request Terminated", State::Completed);
    }

    fn finish(&mut self, core: &mut Core, status: &str, next: State) {
        if self.state != State::Proceeding {
            return;
        }
        self.state = next;
        if next == State::Accepted {
            self.report.acknowledged = Some(false);
            // RFC 6026 §7.1: timer L.
            self.forgotten_at = Some(core.now + TIME_OUT);
        }
        self.answer(core, status);
        self.sent = 1;
        // A 2xx is repeated over reliable transports too: the hops behind may be unreliable (§13.3.1.4).
        if !core.reliable || next == State::Accepted {
            core.start(doubled_to_t2(1), Timer::FinalAgain(self.plan.call));
        }
        core.start(TIME_OUT, Timer::FinalGivenUp(self.plan.call));
    }

    fn awaits_ack(&self) -> bool {
        match self.state {
            State::Completed => true,
            State::Accepted => {
                self.report.acknowledged == Some(false) && !self.report.was_ended && self.byes.is_empty()
            }
            State::Proceeding | State::Confirmed | State::GivenUp => false,
        }
    }

    /// Timer G, which also repeats a 2xx.
    pub(crate) fn final_again(&mut self, core: &mut Core) {
        if self.awaits_ack()
            && let Some(last) = &self.last
        {
            core.send(self.source, last.clone());
            self.sent += 1;
            core.start(doubled_to_t2(self.sent), Timer::FinalAgain(self.plan.call));
        }
    }

    /// Timer H. After a 2xx without ACK for 64·T1, the session is ended (§13.3.1.4).
    pub(crate) fn final_given_up(&mut self, core: &mut Core) {
        match self.state {
            State::Completed => {
                self.state = State::GivenUp;
                self.forgotten_at = Some(core.now);
            }
            State::Accepted if self.awaits_ack() => self.hang_up(core),
            State::Proceeding | State::Accepted | State::Confirmed | State::GivenUp => {}
        }
    }

    pub(crate) fn ack(&mut self, core: &mut Core, view: &View<'_>) {
        match self.state {
            State::Completed if view.branch() == self.branch => {
                self.state = State::Confirmed;
                self.forgotten_at = Some(core.now + T4);
            }
            State::Accepted if self.report.acknowledged == Some(false) && self.is_ours(view) => {
                self.report.acknowledged = Some(true);
                if !self.plan.hang_up.by_caller {
                    core.start(self.plan.hang_up.after, Timer::CalleeHangsUp(self.plan.call));
                }
            }
            State::Proceeding | State::Accepted | State::Completed | State::Confirmed | State::GivenUp => {}
        }
    }

    fn is_ours(&self, ack: &View<'_>) -> bool {
        ack.to_tag() == self.to_tag
            && self.dialog.is_with(crate::message::tag(ack.get("From")))
            && ack.cseq().0 == View::new(&self.invite).cseq().0
    }

    /// Sends a BYE, once.
    pub(crate) fn hang_up(&mut self, core: &mut Core) {
        if self.byes.is_empty() && !self.report.was_ended {
            self.send_bye(core, None);
        }
    }

    /// Handles the challenge of the BYE with this branch: sends a BYE with credentials.
    pub(crate) fn bye_challenged(&mut self, core: &mut Core, branch: &str, view: &View<'_>) {
        if self.byes.len() == 1 && self.byes[0] == branch {
            self.send_bye(core, Some(view));
        }
    }

    fn send_bye(&mut self, core: &mut Core, challenge: Option<&View<'_>>) {
        self.dialog.cseq += 1;
        let branch = core.branch();
        self.byes.push(branch.clone());
        let line = challenge.and_then(|c| digest::credentials(c, core.user, "BYE", &self.dialog.target));
        let (to, text) = self
            .dialog
            .request(core, "BYE", &branch, &line.unwrap_or_default());
        self.report.bye = RequestEnd::Pending;
        self.wanted
            .push(ClientRequest::new(self.plan.call, Purpose::Bye, branch, to, text));
    }

    /// Handles a BYE. Returns whether there is a dialog that it can end.
    pub(crate) fn other_side_hangs_up(&mut self) -> bool {
        if self.state != State::Accepted {
            return false;
        }
        self.report.was_ended = true;
        true
    }

    /// Whether the transaction has ended, so that a CANCEL finds none.
    pub(crate) fn is_forgotten(&self, now: Micros) -> bool {
        self.forgotten_at.is_some_and(|at| now >= at)
    }

    /// Whether the callee sends no response at all.
    pub(crate) fn is_silent(&self) -> bool {
        self.plan.behaviour == Behaviour::Silent
    }

    /// Whether the call still waits for something.
    pub(crate) fn is_open(&self) -> bool {
        (self.state == State::Proceeding && self.plan.behaviour != Behaviour::Silent) || self.awaits_ack()
    }
}

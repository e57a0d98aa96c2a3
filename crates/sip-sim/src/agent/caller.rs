//! The caller of a call: the INVITE client transaction and the user above it (RFC 3261 §13.2, §17.1.1, §9.1,
//! §15).

use std::collections::BTreeMap;

use super::dialog::Dialog;
use super::plan::CallPlan;
use super::request::ClientRequest;
use super::{Core, Purpose, T1, TIME_OUT, Timer, digest};
use crate::clock::Micros;
use crate::message::View;
use crate::report::{CallReport, RequestEnd, Side};

/// Most INVITEs of one call: a caller that is challenged again and again gives up.
const MOST_TRIES: u32 = 3;

/// State of the INVITE transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Calling,
    Proceeding,
    /// A final response came, or the caller gave up.
    Over,
}

/// A dialog established by a 2xx.
#[derive(Debug)]
struct Talk {
    dialog: Dialog,
    /// Branches of the dialog's BYEs; the second has credentials.
    byes: Vec<String>,
    /// Whether the other side ended the dialog.
    was_ended: bool,
}

/// A call at the caller.
#[derive(Debug)]
pub(crate) struct OutCall {
    plan: CallPlan,
    cseq: u32,
    branch: String,
    invite: String,
    state: State,
    sent: u32,
    tries: u32,
    cancel_wanted: bool,
    cancel_sent: bool,
    /// ACKs to failures of INVITEs, by branch (timer D never ends here).
    acks: BTreeMap<String, String>,
    /// Dialogs of the call. The caller talks in the first.
    dialogs: Vec<Talk>,
    /// The ACK to each 2xx by its To tag. It is sent again for each copy of the 2xx (§13.2.2.4).
    confirmed: BTreeMap<String, (std::net::SocketAddr, String)>,
    /// Requests to begin.
    pub(crate) wanted: Vec<ClientRequest>,
    pub(crate) report: CallReport,
}

impl OutCall {
    /// Sends the INVITE.
    pub(crate) fn place(core: &mut Core, plan: &CallPlan) -> Self {
        let mut call = Self {
            plan: *plan,
            cseq: 0,
            branch: String::new(),
            invite: String::new(),
            state: State::Calling,
            sent: 0,
            tries: 0,
            cancel_wanted: false,
            cancel_sent: false,
            acks: BTreeMap::new(),
            dialogs: Vec::new(),
            confirmed: BTreeMap::new(),
            wanted: Vec::new(),
            report: CallReport::new(plan.call, Side::Caller),
        };
        core.start(plan.cancel_after, Timer::Cancel(plan.call));
        call.send_invite(core, "");
        call
    }

    /// Starts a new INVITE transaction, with or without credentials.
    fn send_invite(&mut self, core: &mut Core, credentials: &str) {
        self.cseq += 1;
        self.tries += 1;
        self.sent = 0;
        self.state = State::Calling;
        self.branch = core.branch();
        self.invite = format!(
            "INVITE sip:{to} SIP/2.0\r\nVia: {}\r\nMax-Forwards: 70\r\n\
             From: <sip:{from}>;tag=from-{call}\r\nTo: <sip:{to}>\r\n\
             Call-ID: call-{call}@sim\r\nCSeq: {cseq} INVITE\r\nContact: {contact}\r\n{extra}{credentials}\
             Content-Length: 0\r\n\r\n",
            core.via(&self.branch),
            from = self.plan.from,
            to = self.plan.to,
            extra = core.extra,
            call = self.plan.call,
            cseq = self.cseq,
            contact = core.contact(),
        );
        self.report.invite = RequestEnd::Pending;
        let branch = self.branch.clone();
        core.start(TIME_OUT, Timer::InviteGivenUp(self.plan.call, branch.clone()));
        self.send_again(core, &branch);
    }

    /// Timer A, which doubles without bound (§17.1.1.2).
    pub(crate) fn send_again(&mut self, core: &mut Core, branch: &str) {
        if self.state != State::Calling || branch != self.branch {
            return;
        }
        core.send(core.proxy, self.invite.clone());
        self.sent += 1;
        if !core.reliable {
            let after: Micros = T1 << (self.sent - 1).min(10);
            core.start(after, Timer::InviteAgain(self.plan.call, branch.to_owned()));
        }
    }

    /// Timer B.
    pub(crate) fn give_up(&mut self, core: &mut Core, branch: &str) {
        if self.state == State::Calling && branch == self.branch {
            self.time_out(core);
        }
    }

    /// Cancels the call: CANCEL is sent as soon as a provisional response allows it (§9.1).
    pub(crate) fn want_cancel(&mut self, core: &mut Core) {
        self.cancel_wanted = true;
        if self.state == State::Proceeding && !self.cancel_sent {
            self.send_cancel(core);
        }
    }

    fn send_cancel(&mut self, core: &mut Core) {
        self.cancel_sent = true;
        let text = format!(
            "CANCEL sip:{} SIP/2.0\r\nVia: {}\r\nMax-Forwards: 70\r\n{}CSeq: {} CANCEL\r\n\
             Content-Length: 0\r\n\r\n",
            self.plan.to,
            core.via(&self.branch),
            same_call(&self.invite, None),
            self.cseq,
        );
        self.report.cancel = RequestEnd::Pending;
        core.start(TIME_OUT, Timer::CancelGivenUp(self.plan.call));
        let branch = self.branch.clone();
        self.wanted.push(ClientRequest::new(
            self.plan.call,
            Purpose::Cancel,
            branch,
            core.proxy,
            text,
        ));
    }

    /// Ends the wait after a CANCEL (§9.1): 64·T1 later the INVITE counts as cancelled.
    pub(crate) fn cancel_patience_ends(&mut self, core: &mut Core) {
        if self.state == State::Proceeding {
            self.time_out(core);
        }
    }

    fn time_out(&mut self, core: &Core) {
        self.state = State::Over;
        self.report.invite = RequestEnd::TimedOut(core.now);
    }

    /// Handles a response to an INVITE of this call.
    pub(crate) fn response(&mut self, core: &mut Core, view: &View<'_>, status: u16) {
        if let Some(ack) = self.acks.get(view.branch()) {
            if status >= 300 {
                core.send(core.proxy, ack.clone());
            }
            return;
        }
        if view.branch() != self.branch {
            return;
        }
        match status {
            100..200 if self.state != State::Over => {
                self.state = State::Proceeding;
                if self.cancel_wanted && !self.cancel_sent {
                    self.send_cancel(core);
                }
            }
            200..300 => self.success(core, view),
            300.. if self.state != State::Over => self.failure(core, view, status),
            _ => {}
        }
    }

    fn success(&mut self, core: &mut Core, view: &View<'_>) {
        if let Some((to, ack)) = self.confirmed.get(view.to_tag()) {
            return core.send(*to, ack.clone());
        }
        let in_time = self.state != State::Over;
        self.state = State::Over;
        if in_time {
            self.report.invite = RequestEnd::Answered(200);
        }
        let dialog = Dialog::of_caller(view, self.cseq);
        let branch = core.branch();
        let (to, ack) = dialog.request(core, "ACK", &branch, "");
        core.send(to, ack.clone());
        self.confirmed.insert(view.to_tag().to_owned(), (to, ack));
        self.dialogs.push(Talk {
            dialog,
            byes: Vec::new(),
            was_ended: false,
        });
        let place = self.dialogs.len() - 1;
        if place > 0 {
            // §13.2.2.4: if several phones answered, all dialogs but one are ended.
            self.report.other_byes.push(RequestEnd::NotSent);
            return self.send_bye(core, place, None);
        }
        // A 2xx that comes too late is accepted, and its dialog ended by BYE (§15).
        if !in_time || self.cancel_wanted {
            self.hang_up(core);
        } else if self.plan.hang_up.by_caller {
            core.start(self.plan.hang_up.after, Timer::CallerHangsUp(self.plan.call));
        }
    }

    fn failure(&mut self, core: &mut Core, view: &View<'_>, status: u16) {
        let ack = format!(
            "ACK sip:{} SIP/2.0\r\nVia: {}\r\nMax-Forwards: 70\r\n{}CSeq: {} ACK\r\n\
             Content-Length: 0\r\n\r\n",
            self.plan.to,
            core.via(&self.branch),
            same_call(&self.invite, Some(view.get("To"))),
            self.cseq,
        );
        core.send(core.proxy, ack.clone());
        self.acks.insert(self.branch.clone(), ack);
        self.state = State::Over;
        self.report.invite = RequestEnd::Answered(status);
        if status == 407 && !self.cancel_wanted && self.tries < MOST_TRIES {
            let uri = format!("sip:{}", self.plan.to);
            if let Some(line) = digest::credentials(view, core.user, "INVITE", &uri) {
                self.send_invite(core, &line);
            }
        }
    }

    /// Sends a BYE, once.
    pub(crate) fn hang_up(&mut self, core: &mut Core) {
        let is_open = |talk: &Talk| talk.byes.is_empty() && !talk.was_ended;
        if self.dialogs.first().is_some_and(is_open) {
            self.send_bye(core, 0, None);
        }
    }

    /// Ends the dialog with this index.
    fn send_bye(&mut self, core: &mut Core, place: usize, challenge: Option<&View<'_>>) {
        let Some(Talk { dialog, byes, .. }) = self.dialogs.get_mut(place) else {
            return;
        };
        dialog.cseq += 1;
        let branch = core.branch();
        byes.push(branch.clone());
        let line = challenge.and_then(|c| digest::credentials(c, core.user, "BYE", &dialog.target));
        let (to, text) = dialog.request(core, "BYE", &branch, &line.unwrap_or_default());
        self.bye_ended(&branch, RequestEnd::Pending);
        self.wanted
            .push(ClientRequest::new(self.plan.call, Purpose::Bye, branch, to, text));
    }

    /// Notes the end of the BYE with this branch.
    pub(crate) fn bye_ended(&mut self, branch: &str, end: RequestEnd) {
        let of_it = |talk: &Talk| talk.byes.iter().any(|bye| bye == branch);
        match self.dialogs.iter().position(of_it) {
            Some(0) => self.report.bye = end,
            Some(place) => self.report.other_byes[place - 1] = end,
            None => {}
        }
    }

    /// Handles the challenge of the BYE with this branch: sends a BYE with credentials.
    pub(crate) fn bye_challenged(&mut self, core: &mut Core, branch: &str, view: &View<'_>) {
        let first = |talk: &Talk| talk.byes.len() == 1 && talk.byes[0] == branch;
        if let Some(place) = self.dialogs.iter().position(first) {
            self.send_bye(core, place, Some(view));
        }
    }

    /// Handles a BYE from the side with this tag. Returns whether there is a dialog that it can end.
    pub(crate) fn other_side_hangs_up(&mut self, their_tag: &str) -> bool {
        let Some(place) = self
            .dialogs
            .iter()
            .position(|talk| talk.dialog.is_with(their_tag))
        else {
            return false;
        };
        self.dialogs[place].was_ended = true;
        self.report.was_ended |= place == 0;
        true
    }
}

/// From, To and Call-ID of the INVITE; To from the response, if there is one.
fn same_call(invite: &str, to: Option<&str>) -> String {
    let view = View::new(invite);
    format!(
        "From: {}\r\nTo: {}\r\nCall-ID: {}\r\n",
        view.get("From"),
        to.unwrap_or_else(|| view.get("To")),
        view.get("Call-ID")
    )
}

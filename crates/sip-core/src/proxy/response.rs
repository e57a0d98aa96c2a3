//! Response processing (RFC 3261 §16.7, §16.8, §16.11).

use alloc::boxed::Box;
use core::net::SocketAddr;

use sip_message::header::{Mandatory, Via};
use sip_message::{Field, HeaderName, Message, Method};

use super::branch::{Ingress, client_hash, ingress_token, read_branch};
use super::flawed::Flaw;
use super::fork::Final;
use crate::activity::Component;
use crate::engine::effects::{ClientEvent, ServerEvent};
use crate::engine::secrets::BranchInput;
use crate::engine::seed::{Seed, Turn};
use crate::engine::status::Status;
use crate::engine::{Engine, FlowOnly, TransactionUser};
use crate::event::Event;
use crate::id::{ConnId, WorkerId};
use crate::time::Instant;
use crate::transaction::table::{ClientKey, ServerKey};
use crate::transaction::{Passed, Timer};
use crate::transport::{Flow, Proof, Transport, via};

/// The `Reason` (RFC 3326) of a 480 for a registered contact that was not reached: 408 if it was silent, else 503.
pub(crate) const fn reason_of_gone(cause: u16) -> &'static [u8] {
    match cause {
        408 => b"Reason: SIP;cause=408;text=\"Contact Silent\"\r\n",
        _ => b"Reason: SIP;cause=503;text=\"Contact Unreachable\"\r\n",
    }
}

/// The outcome of a response or of a branch's failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Outcome {
    /// Handled on this worker.
    Done,
    /// The transaction lives on another worker.
    HandOver(WorkerId),
}

/// A response, with facts about it beside its text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Response<'a> {
    pub(super) message: &'a Message<'a>,
    /// The flow that the response came by.
    flow: Flow,
    /// Whether the topmost Via has a line of its own, and another Via follows.
    via_is_alone: bool,
    /// The turn of the callee's marks in the response; `None`: none of them is of its transaction.
    turn: Option<Turn>,
}

/// The reason why a branch has no final response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    TimedOut,
    /// The transport could not deliver the request.
    Unreachable,
    /// The transport could not deliver the request to a registered contact: the phone is gone.
    ContactGone,
    /// A registered contact gave no response at all, not even a provisional one.
    ContactSilent,
    /// The transport could not deliver the request on the flow that is the only way.
    FlowGone(FlowOnly),
}

impl Failure {
    /// The status of the response that the failure stands for, and the Reason line of that response.
    fn status(self) -> (Status<'static>, &'static [u8]) {
        match self {
            Self::TimedOut => (Status::NEXT_HOP_SILENT, &[]),
            Self::Unreachable => (Status::NEXT_HOP_UNREACHABLE, &[]),
            Self::ContactGone => (Status::CONTACT_UNREACHABLE, reason_of_gone(503)),
            Self::ContactSilent => (Status::CONTACT_SILENT, reason_of_gone(408)),
            Self::FlowGone(FlowOnly::Route | FlowOnly::Path { .. }) => (Status::FLOW_FAILED, &[]),
            Self::FlowGone(_) => (Status::CONTACT_FLOW_CLOSED, reason_of_gone(503)),
        }
    }
}

impl Engine {
    /// Handles a response.
    ///
    /// # Errors
    /// The response has a flaw, and nothing was done.
    pub(crate) fn handle_response(&mut self, message: &Message<'_>, flow: Flow) -> Result<Outcome, Flaw> {
        let status = message.status().unwrap_or(0);
        if let Some(defect) = message.defect() {
            return Err(Flaw::Defect(defect));
        }
        // The parts are large, so that they are read in place.
        let parts = message.mandatory();
        let parts = parts.as_ref().map_err(|error| Flaw::Header(*error))?;
        self.activity.enter(Component::Transaction);
        let top = &parts.via;
        let mut response = Response {
            message,
            flow: self.as_page(flow),
            via_is_alone: is_alone(message, top),
            turn: None,
        };
        let Some((branch, target)) = top.branch().and_then(read_branch) else {
            self.stray();
            return Ok(Outcome::Done);
        };
        // §18.1.2: sent-by must be ours.
        if !self.is_sent_by(top) {
            self.stray();
            return Ok(Outcome::Done);
        }
        if let Some(key) = self.table.find_client(client_hash(branch, parts.cseq.method)) {
            // §16.7 step 3: without a Via beside ours the response has no way on.
            let client = self.table.client(key).map(|c| &c.user);
            let serves = client.is_some_and(|user| user.server().is_some());
            let seed = client.and_then(|user| user.seed);
            response.turn = seed.map(|seed| seed.turn(parts.to_tag.unwrap_or_default()));
            if serves && !response.via_is_alone && message.values(HeaderName::Via).nth(1).is_none() {
                self.end_branch(key, message, flow, Flaw::OnlyOurVia);
                return Ok(Outcome::Done);
            }
            self.count_response(status);
            self.note_response_of(&flow);
            self.client_response(key, status, &response);
            return Ok(Outcome::Done);
        }
        if parts.cseq.method == Method::Options && self.is_ping_response(branch, target, &flow) {
            return Ok(Outcome::Done);
        }
        if self.holds_state
            && let Some(other) = self.other_worker(parts.call_id)
        {
            return Ok(Outcome::HandOver(other));
        }
        self.count_response(status);
        self.relay_response_statelessly(response, parts, flow, branch, target);
        Ok(Outcome::Done)
    }

    fn stray(&mut self) {
        self.counters.dropped_stray_response += 1;
    }

    /// Whether sent-by is what one of our listeners writes, or names this server in another way.
    pub(crate) fn is_sent_by(&self, top: &Via<'_>) -> bool {
        // Sent-by is nearly always just as it was written.
        if self.directory.wrote_via(top.text) {
            return true;
        }
        let written = |sent_by: &[u8]| {
            let Some((host, rest)) = sent_by.split_at_checked(top.host_text.len()) else {
                return false;
            };
            let port = match rest {
                [] => None,
                [b':', digits @ ..] => sip_message::number::port(digits),
                _ => return false,
            };
            host.eq_ignore_ascii_case(top.host_text) && port == top.port
        };
        self.config.listeners.iter().any(|l| written(&l.sent_by))
            || self.directory.is_own(&top.host, top.port)
    }

    pub(super) fn count_response(&mut self, status: u16) {
        let c = &mut self.counters;
        let counter = match status / 100 {
            1 => &mut c.responses_1xx,
            2 => &mut c.responses_2xx,
            3 => &mut c.responses_3xx,
            4 => &mut c.responses_4xx,
            5 => &mut c.responses_5xx,
            _ => &mut c.responses_6xx,
        };
        *counter += 1;
    }

    /// Relays a response to the next Via, if we wrote the topmost Via for that request (§16.11). A branch
    /// that does not follow from the rest of the message is not ours, and nothing is sent on.
    fn relay_response_statelessly(
        &mut self,
        mut response: Response<'_>,
        parts: &Mandatory<'_>,
        flow: Flow,
        branch: u64,
        target: u8,
    ) {
        let message = response.message;
        let next = message.second_via().ok();
        // RFC 6026 §6: a response that has lost its transaction goes nowhere. A Via that was written
        // without state says so by this parameter.
        let (Some(next), Some(token)) = (next, ingress_token(&parts.via)) else {
            return self.stray();
        };
        let Some((transport, remote)) = via::response_target(&next) else {
            return self.stray();
        };
        let input = BranchInput {
            received_branch: next.branch().unwrap_or_default(),
            sent_by: next.host_text,
            port: next.port.unwrap_or(0),
            source: remote.ip().to_canonical(),
            call_id: parts.call_id,
            from_tag: parts.from_tag.unwrap_or_default(),
            cseq: parts.cseq.number,
            method: parts.cseq.method,
        };
        let branched = self.secrets.branch(&input, target);
        if branched.id != branch {
            return self.stray();
        }
        self.activity.enter(Component::Build);
        self.note_response_of(&flow);
        // The token is not under the branch's hash, so that its content must at least be possible. (The shell
        // compares the far end of the connection that the token names with `remote`.)
        let ingress = Ingress::read(token);
        let hidden = ingress.and_then(|ingress| ingress.seed);
        let seed = hidden.and_then(|hidden| Seed::uncovered(hidden, branched.pad));
        response.turn = seed.map(|seed| seed.turn(parts.to_tag.unwrap_or_default()));
        let ingress = ingress.filter(|ingress| {
            self.config
                .listeners
                .get(usize::from(ingress.listener.0))
                .is_some_and(|l| l.transport == transport && l.address.is_ipv4() == remote.is_ipv4())
        });
        let listener = match ingress {
            Some(ingress) => Some(ingress.listener),
            None => self
                .directory
                .egress(&self.config, transport, remote.ip(), Some(flow.listener)),
        };
        let Some(listener) = listener else {
            self.counters.dropped_no_route += 1;
            return;
        };
        let to = Flow {
            transport,
            listener,
            remote,
            conn: ingress.and_then(|ingress| ingress.conn),
            proof: Proof::None,
        };
        self.edit_response(&response);
        let span = message.start_offset()..message.end_offset();
        self.out
            .push_with(to, |out| self.edits.apply(message.source(), span, out));
        self.counters.responses_relayed_stateless += 1;
    }

    /// Handles a response of a client transaction.
    fn client_response(&mut self, key: ClientKey, status: u16, response: &Response<'_>) {
        if status >= 200
            && let Some(client) = self.table.client_mut(key)
            && client.user.timer_c.is_some()
        {
            self.stop_timer_c(key);
        }
        let told = self.client_event(key, ClientEvent::Response(status), Some(response.message));
        match told {
            Some(Passed::Response) => self.branch_response(key, status, response),
            _ => self.counters.retransmissions_absorbed += 1,
        }
        self.forget_if_over(key);
    }

    pub(super) fn forget_if_over(&mut self, key: ClientKey) {
        if self.client_is_over(key) {
            self.forget_client(key);
        }
    }

    /// Handles a response that the client transaction passed up (§16.7).
    fn branch_response(&mut self, key: ClientKey, status: u16, response: &Response<'_>) {
        let Some(client) = self.table.client_mut(key) else {
            return;
        };
        let Some(server) = client.user.server() else {
            return self.own_request_completed(key, status);
        };
        if status < 200 {
            let target = client.user.target;
            self.note_provisional(key, server, status);
            // §16.8: a branch that was given up counts as ended; its provisional responses go
            // nowhere.
            let given_up = self.context(server).is_some_and(|c| !c.awaits(target, key));
            if given_up {
                return;
            }
            return self.relay_provisional(server, status, response);
        }
        if client.user.course.byes().is_some() && status < 300 {
            // A good 2xx after a flawed one comes too late: its caller has another response.
            self.hang_up(key, response.message);
            return;
        }
        let target = client.user.target;
        // The request is needed no more. If an INVITE failed, its ACK is kept in that place.
        if status < 300 || response.message.cseq().is_ok_and(|c| c.method != Method::Invite) {
            self.table.keep_request(key, Box::default());
        }
        let Some(found) = self.table.server(server) else {
            return self.relay_late_success(status, response);
        };
        let forked = found
            .live
            .as_ref()
            .is_some_and(|live| live.user.context.is_some());
        if !forked {
            self.relay_final(server, status, response);
            return;
        }
        if status < 300 {
            // §16.7 step 10.
            if found.machine.is_invite() {
                self.cancel_others(server, key);
            }
            self.member_completed(server, target);
            self.relay_final(server, status, response);
            return;
        }
        self.target_completed(server, key, target, Final::With(status, response))
    }

    /// Handles the response to a request of our own, which serves no request of a caller.
    #[cold]
    pub(super) fn own_request_completed(&mut self, key: ClientKey, status: u16) {
        match self.table.client(key).map(|client| client.user.owner) {
            Some(TransactionUser::Probe(_)) => self.probe_completed(key, status),
            // After a CANCEL the response to the INVITE is what counts.
            Some(TransactionUser::Detached | TransactionUser::Server(_)) | None => {}
        }
    }

    /// Notes a provisional response (§16.7 step 2).
    pub(super) fn note_provisional(&mut self, key: ClientKey, server: ServerKey, status: u16) {
        let Some(client) = self.table.client_mut(key) else {
            return;
        };
        let first = !core::mem::replace(&mut client.user.provisional, true);
        let invite = client.machine.is_invite();
        let (waits, target) = (client.user.timer_c.is_some(), client.user.target);
        if client.user.cancel_wanted {
            return self.cancel_client(key);
        }
        // After a CANCEL the wait is not prolonged (§9.1).
        let cancelled = client.user.cancel_sent;
        if first {
            self.member_completed(server, target);
        }
        if !invite {
            // The wait for a sign of life is over.
            self.stop_timer_c(key);
        } else if waits && !cancelled && (first || status > 100) {
            self.restart_timer_c(key);
        }
    }

    /// Relays a 1xx other than 100 of an INVITE (§16.7 step 5); RFC 4320 §4.1 has none for other
    /// methods.
    fn relay_provisional(&mut self, server: ServerKey, status: u16, response: &Response<'_>) {
        let invite = self
            .table
            .server(server)
            .is_some_and(|s| s.machine.is_invite() && s.live.is_some());
        if status > 100 && invite {
            self.relay_through(server, status, response);
        }
    }

    /// Relays the final response to the caller: of the only branch, or a 2xx of any.
    fn relay_final(&mut self, server: ServerKey, status: u16, response: &Response<'_>) {
        let Some(found) = self.table.server(server) else {
            return;
        };
        let started = found.live.as_ref().map(|live| live.user.started);
        let (invite, accepted) = (found.machine.is_invite(), found.machine.is_accepted());
        let Some(started) = started else {
            // More than one 2xx to an INVITE: each goes on (§16.7 step 5, RFC 6026 §8.3), even after
            // another final response.
            if invite && (200..300).contains(&status) {
                let to = found.reply_to;
                if accepted {
                    self.relay_through(server, status, response);
                } else {
                    self.relay_past(to, response);
                }
            }
            return;
        };
        if invite {
            // The response was found well formed when it came.
            let call_id = Box::from(response.message.value(HeaderName::CallId).unwrap_or_default());
            self.note_completed(call_id, status, started);
        }
        if !invite && (200..300).contains(&status) && self.relays_register {
            self.keep_registration(server, response.message);
        }
        if status == 408 && !invite {
            // RFC 4320 §4.2: the 408 comes too late; the client has timed out as well.
            self.server_event(server, ServerEvent::Abandon, &[]);
            return;
        }
        if status == 503 {
            // §16.7 step 6: a 503 would say that this proxy can serve nothing.
            self.respond(server, Status::NEXT_HOP_UNAVAILABLE);
            return;
        }
        self.relay_through(server, status, response);
    }

    /// Reports the final response of an INVITE.
    pub(crate) fn note_completed(&mut self, call_id: Box<[u8]>, status: u16, started: Instant) {
        let after_us = self.now.instant.micros_since(started);
        self.event(Event::InviteCompleted {
            call_id,
            status,
            after_us,
        });
    }

    /// Relays a 2xx after its server transaction has gone (timer L fired): the caller still needs it.
    fn relay_late_success(&mut self, status: u16, response: &Response<'_>) {
        let next = response.message.second_via().ok();
        let invite = response.message.cseq().is_ok_and(|c| c.method == Method::Invite);
        let Some((transport, remote)) = next.as_ref().and_then(via::response_target) else {
            return self.stray();
        };
        let listener = self.directory.egress(&self.config, transport, remote.ip(), None);
        let (true, true, Some(listener)) = (invite, (200..300).contains(&status), listener) else {
            return self.stray();
        };
        let to = Flow {
            transport,
            listener,
            remote,
            conn: None,
            proof: Proof::None,
        };
        self.relay_past(to, response);
    }

    /// Edits a response on its way. Our Via is removed (§16.7 step 3), and so are identity claims if the
    /// source is not trusted (RFC 3325 §5). Marks become those of the side to which the response goes.
    pub(super) fn edit_response(&mut self, response: &Response<'_>) {
        self.edits.clear();
        let message = response.message;
        match message.fields_named(HeaderName::Via).next() {
            Some(field) if response.via_is_alone => {
                self.edits.delete(field.start as usize..field.end as usize)
            }
            _ => self.edits.remove_values(message, HeaderName::Via, 1),
        }
        self.turn_marks(message, response.turn);
        self.strip_asserted_identity(message, &response.flow);
    }

    /// Relays a response without our Via, past the server transaction.
    fn relay_past(&mut self, to: Flow, response: &Response<'_>) {
        self.edit_response(response);
        let span = response.message.start_offset()..response.message.end_offset();
        self.out
            .push_with(to, |out| self.edits.apply(response.message.source(), span, out));
    }

    /// Relays a response without our Via (§16.7 step 3), through the server transaction.
    pub(super) fn relay_through(&mut self, server: ServerKey, status: u16, response: &Response<'_>) {
        self.activity.enter(Component::Build);
        self.edit_response(response);
        let mut text = core::mem::take(&mut self.scratch);
        text.clear();
        self.edits.apply(
            response.message.source(),
            response.message.start_offset()..response.message.end_offset(),
            &mut text,
        );
        self.counters.responses_relayed_stateful += 1;
        self.send_response(server, status, &text);
        self.scratch = text;
    }

    /// Handles a timer of a client transaction, or the failed delivery of its request.
    pub(super) fn client_failure(&mut self, key: ClientKey, event: ClientEvent) {
        let Some(client) = self.table.client(key) else {
            return;
        };
        let (remote, target, flow_only) = (client.to.remote, client.user.target, client.user.flow_only);
        let (is_contact, is_silent) = (client.user.is_contact, !client.user.provisional);
        let (server, given_up) = (client.user.server(), client.user.cancel_wanted);
        let probe = matches!(client.user.owner, TransactionUser::Probe(_));
        let told = self.client_event(key, event, None);
        let timed_out = match told {
            Some(Passed::TimedOut) => true,
            Some(Passed::TransportFailed) => false,
            _ => {
                self.forget_if_over(key);
                return;
            }
        };
        if probe {
            self.probe_failed(key);
        }
        self.forget_if_over(key);
        let Some(server) = server else {
            return;
        };
        // A branch that was given up before was counted then.
        if !given_up {
            self.count_failure(remote, timed_out, is_contact);
        }
        let failure = match (timed_out, flow_only) {
            (true, flow_only)
                if is_contact && is_silent && !flow_only.is_path() && self.is_invite(server) =>
            {
                Failure::ContactSilent
            }
            (true, _) => Failure::TimedOut,
            (false, FlowOnly::None) if is_contact => Failure::ContactGone,
            (false, FlowOnly::None) => Failure::Unreachable,
            (false, flow_only) => Failure::FlowGone(flow_only),
        };
        self.branch_failed(server, key, target, failure)
    }

    /// Handles the end of the connection that a request went by.
    pub(crate) fn client_flow_closed(&mut self, key: ClientKey, conn: ConnId) {
        let Some(client) = self.table.client(key).filter(|c| c.to.conn == Some(conn)) else {
            return;
        };
        let websocket = matches!(client.to.transport, Transport::Ws | Transport::Wss);
        if !client.machine.is_ringing() {
            return self.client_failure(key, ClientEvent::TransportError);
        }
        let (Some(server), true) = (client.user.server(), websocket) else {
            return;
        };
        let (remote, target, flow_only) = (client.to.remote, client.user.target, client.user.flow_only);
        let is_contact = client.user.is_contact;
        let _ = self.client_event(key, ClientEvent::Abandon, None);
        self.forget_client(key);
        self.count_failure(remote, false, is_contact);
        self.branch_failed(server, key, target, Failure::FlowGone(flow_only))
    }

    fn count_failure(&mut self, destination: SocketAddr, timed_out: bool, is_contact: bool) {
        if timed_out {
            self.counters.transactions_timed_out += 1;
        } else {
            self.counters.transactions_unreachable += 1;
        }
        self.note_away(destination, timed_out, is_contact);
    }

    /// Goes on after a branch has failed: with the next address or target, else with the response
    /// that the failure stands for (§16.8, §16.9, RFC 3263 §4.3).
    fn branch_failed(&mut self, server: ServerKey, client: ClientKey, target: u8, failure: Failure) {
        let Some(found) = self.table.live(server) else {
            return;
        };
        if found.user.context.is_some() {
            return self.target_failed(server, client, target, failure);
        }
        self.respond_to_failure(server, failure);
    }

    /// Responds to a request with nothing left to try.
    fn respond_to_failure(&mut self, server: ServerKey, failure: Failure) {
        let invite = self.is_invite(server);
        let Some(found) = self.table.live(server) else {
            return;
        };
        match (found.user.cancelled, failure) {
            (true, _) if invite => self.respond(server, Status::REQUEST_TERMINATED),
            // RFC 4320 §4.2: no 408 to a non-INVITE; its sender has timed out as well.
            (_, Failure::TimedOut) if !invite => self.time_out_silently(server),
            _ => {
                let (status, reason) = failure.status();
                self.respond_with(server, status, reason);
            }
        }
    }

    /// Handles timer C (§16.8), or its shorter form before any response. A branch that rings is cancelled. A
    /// branch that was cancelled already is given up. A branch without a sign of life is left alone, and
    /// cancelled if it rings later.
    fn timer_c(&mut self, key: ClientKey) {
        let Some(client) = self.table.client_mut(key) else {
            return;
        };
        client.user.timer_c = None;
        let (target, remote, is_contact) = (client.user.target, client.to.remote, client.user.is_contact);
        let is_path = client.user.flow_only.is_path();
        let Some(server) = client.user.server() else {
            if matches!(client.user.owner, TransactionUser::Probe(_)) {
                self.probe_failed(key);
                self.forget_client(key);
            }
            return;
        };
        if client.user.cancel_sent {
            let _ = self.client_event(key, ClientEvent::Abandon, None);
            self.forget_client(key);
            self.counters.transactions_timed_out += 1;
            return self.branch_failed(server, key, target, Failure::TimedOut);
        }
        if client.user.provisional {
            self.cancel_client(key);
            return self.rang_in_vain(server, key, target);
        }
        client.user.cancel_wanted = true;
        // The request is not sent again either; timer B or F ends the branch.
        if let Some(resend) = client.timers.first_mut().and_then(Option::take) {
            self.wheel.cancel(resend);
        }
        self.count_failure(remote, true, is_contact);
        let failure = match is_contact && !is_path && self.is_invite(server) {
            true => Failure::ContactSilent,
            false => Failure::TimedOut,
        };
        self.branch_failed(server, key, target, failure)
    }

    /// Handles a timer of a client transaction.
    pub(crate) fn client_timer(&mut self, key: ClientKey, timer: Timer) {
        if timer == Timer::C {
            return self.timer_c(key);
        }
        self.client_failure(key, ClientEvent::Timer(timer))
    }
}

/// Whether the topmost Via has a line of its own, and the next line begins with another Via: nearly always.
/// Either line may begin with empty values instead (RFC 3261 §7.3.1 allows none, but a lenient reader skips
/// them).
#[inline]
fn is_alone(message: &Message<'_>, top: &Via<'_>) -> bool {
    let mut fields = message.fields_named(HeaderName::Via);
    let is_whole = |field: &Field| core::ptr::eq(top.text, message.field_value(field));
    // For an empty value, this byte is the end of its line.
    let first = |field: &Field| message.source().get(field.value as usize);
    let begins = |field: &Field| first(field).is_some_and(u8::is_ascii_alphabetic);
    fields.next().is_some_and(is_whole) && fields.next().is_some_and(begins)
}

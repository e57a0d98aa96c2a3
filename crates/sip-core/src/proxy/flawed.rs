//! Responses that cannot be relayed, although they belong to a live client transaction.
//!
//! Such a response ends its branch all the same (RFC 3261 §17.1.3). If it were dropped in silence,
//! the request would be sent again for half a minute, and the caller would learn nothing. A callee
//! that has accepted would believe that the call is up. Responses that can be mended were mended
//! before ([`Message::mend`]), and do not come here.

use alloc::vec::Vec;

use sip_message::header::{Contact, HeaderError, NameAddr};
use sip_message::number::write_decimal;
use sip_message::{Defect, HeaderName, Message, Method};

use super::branch::{client_hash, read_branch, write_via_start};
use super::fork::Final;
use super::forward::write_request_uri;
use super::response::Outcome;
use crate::engine::context::TargetState;
use crate::engine::effects::{ClientEvent, ServerEvent};
use crate::engine::refusals::text;
use crate::engine::status::Status;
use crate::engine::{ClientUser, Course, Engine, TransactionUser};
use crate::event::{Event, RefusalCause};
use crate::transaction::Passed;
use crate::transaction::table::{ClientKey, ServerKey};
use crate::transport::Flow;
use crate::transport::framing::FramingFault;

/// The most dialogs of one INVITE that are ended with BYE because their 2xx cannot be relayed.
const MOST_BYES: u8 = 8;

/// The flaw that keeps a response from being relayed as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// A defect of the message.
    Defect(Defect),
    /// A header field that every response has is missing or cannot be read.
    Header(HeaderError),
    /// The stream cannot be followed further: only the head of the response is there.
    Framing(FramingFault),
    /// There is no Via beside ours, and so no way on (§16.7 step 3).
    OnlyOurVia,
}

impl Flaw {
    /// The text for the log: one of few values, none of which a peer chooses.
    #[expect(clippy::wildcard_enum_match_arm, reason = "the others are not mandatory")]
    pub(crate) const fn reason(self) -> &'static str {
        match self {
            Self::Defect(defect) => defect.reason(),
            Self::Header(error) => match error.name() {
                HeaderName::Via => "Malformed Via",
                HeaderName::From => "Malformed From",
                HeaderName::To => "Malformed To",
                HeaderName::CallId => "Malformed Call-ID",
                _ => "Malformed CSeq",
            },
            Self::Framing(fault) => fault.reason(),
            Self::OnlyOurVia => "No Via Beside Ours",
        }
    }
}

impl Engine {
    /// Handles a response that could not be mended.
    #[cold]
    pub(crate) fn handle_flawed(&mut self, message: &Message<'_>, flow: Flow, flaw: Flaw) -> Outcome {
        let (Ok(top), Ok(cseq)) = (message.top_via(), message.cseq()) else {
            self.counters.dropped_malformed += 1;
            return Outcome::Done;
        };
        let branch = top.branch().and_then(read_branch);
        let Some((branch, _)) = branch.filter(|_| self.is_sent_by(&top)) else {
            self.counters.dropped_malformed += 1;
            return Outcome::Done;
        };
        if let Some(key) = self.table.find_client(client_hash(branch, cseq.method)) {
            self.end_branch(key, message, flow, flaw);
            return Outcome::Done;
        }
        let other = message.call_id().and_then(|call_id| self.other_worker(call_id));
        if let Some(other) = other.filter(|_| self.holds_state) {
            return Outcome::HandOver(other);
        }
        self.counters.dropped_malformed += 1;
        Outcome::Done
    }

    /// Ends the branch of a client transaction that got a flawed response.
    #[cold]
    pub(crate) fn end_branch(&mut self, key: ClientKey, message: &Message<'_>, flow: Flow, flaw: Flaw) {
        let status = message.status().unwrap_or(0);
        self.count_response(status);
        self.note_response_of(&flow);
        self.note_flaw(message, flow, flaw, false);
        if status >= 200 {
            self.stop_timer_c(key);
        }
        // The ACK has the response's To if that can be read (§17.1.1.3), else the INVITE's: the branch is
        // enough to recognise the ACK.
        let model = readable_to(message).is_some().then_some(message);
        match self.client_event(key, ClientEvent::Response(status), model) {
            Some(Passed::Response) => self.end_branch_with(key, status, message, flaw),
            _ => self.counters.retransmissions_absorbed += 1,
        }
        self.forget_if_over(key);
    }

    /// Counts and reports a flawed response, mended or not.
    pub(crate) fn note_flaw(&mut self, message: &Message<'_>, flow: Flow, flaw: Flaw, mended: bool) {
        match mended {
            true => self.counters.responses_mended += 1,
            false => self.counters.responses_flawed += 1,
        }
        self.event(Event::ResponseFlawed {
            source: flow.remote,
            call_id: text(message.call_id().unwrap_or_default()),
            flaw: flaw.reason(),
            mended,
        });
    }

    fn end_branch_with(&mut self, key: ClientKey, status: u16, message: &Message<'_>, flaw: Flaw) {
        let Some(client) = self.table.client(key) else {
            return;
        };
        let (target, server) = (client.user.target, client.user.server());
        let Some(server) = server else {
            return self.own_request_completed(key, status);
        };
        if status < 200 {
            self.note_provisional(key, server, status);
            return;
        }
        let method = message.cseq().map_or(Method::Other(b""), |cseq| cseq.method);
        let accepted = status < 300;
        match (method, accepted) {
            (Method::Invite, true) => self.hang_up(key, message),
            (Method::Invite, false) => {}
            _ => self.table.keep_request(key, alloc::boxed::Box::default()),
        }
        let tells = flaw == Flaw::OnlyOurVia && says_enough(method, status);
        let end = match (method, accepted, tells) {
            (_, _, true) => End::Status(own_status(status, message)),
            (Method::Invite, _, false) => End::Status(Status::FLAWED_RESPONSE),
            (_, _, false) => End::Silence,
        };
        if self.context(server).is_none() {
            return self.end_with(server, key, target, end);
        }
        match end {
            // A 2xx is the end of all: another branch would do the same once more.
            End::Status(_) if accepted => self.end_with(server, key, target, end),
            End::Status(status) => self.target_completed(server, key, target, Final::Only(status)),
            End::Silence => self.end_target_silently(server, key, target, accepted),
        }
    }

    /// Ends a branch of a request other than INVITE whose response cannot be relayed. Another branch's 2xx is
    /// still relayed. If this response was a 2xx, nothing else is.
    fn end_target_silently(&mut self, server: ServerKey, client: ClientKey, target: u8, accepted: bool) {
        let Some(context) = self.context(server).filter(|c| c.awaits(target, client)) else {
            return;
        };
        context.set_state(target, TargetState::Done);
        if accepted {
            context.is_silent = true;
            context.end();
        } else {
            context.best.offer(408, Some(RefusalCause::FlawedResponse));
        }
        self.member_completed(server, target);
        self.next_targets(server);
    }

    /// Ends the request with the end of this branch.
    fn end_with(&mut self, server: ServerKey, client: ClientKey, target: u8, end: End<'_>) {
        let invite = self.is_invite(server);
        if let Some(context) = self.context(server) {
            if !context.awaits(target, client) {
                return;
            }
            context.end();
            self.member_completed(server, target);
            self.cancel_others(server, client);
        }
        let Some(found) = self.table.live(server) else {
            return;
        };
        match end {
            _ if invite && found.user.cancelled => self.respond(server, Status::REQUEST_TERMINATED),
            // The status is as for a response that can be relayed (§16.7 step 6).
            End::Status(Status { code: 503, .. }) => {
                self.respond(server, Status::NEXT_HOP_UNAVAILABLE);
            }
            End::Status(status) => self.respond(server, status),
            End::Silence => self.server_event(server, ServerEvent::Abandon, &[]),
        }
    }

    /// Ends the call of a callee that has accepted with a 2xx that cannot be relayed. The callee gets its ACK
    /// and a BYE, if the response has a readable To and Contact. In a dialog it gets the ACK alone: after a
    /// 502 to a re-INVITE the session stands as it was (§14.1). Each copy of the 2xx is acknowledged. BYEs
    /// are limited to [`MOST_BYES`] dialogs of one INVITE, more than a fork of phones makes, and by the
    /// limits of transactions.
    pub(super) fn hang_up(&mut self, key: ClientKey, message: &Message<'_>) {
        let Some(client) = self.table.client_mut(key) else {
            return;
        };
        // A good 2xx came before, and the caller deals with that call.
        if client.request.is_empty() {
            return;
        }
        let byes = client.user.course.byes().unwrap_or(0);
        client.user.course = Course::hung_up(byes);
        let (flow, peer, flow_only) = (client.to, client.user.peer.clone(), client.user.flow_only);
        let hash = client.hash().to_be_bytes();
        let invite = core::mem::take(&mut client.request);
        let to = message.value(HeaderName::To).unwrap_or_default();
        let branch_of = |engine: &Self, method: &[u8]| engine.secrets.map_hash([method, &hash, to]) as u64;
        let ack = self.dialog_request(b"ACK", branch_of(self, b"ACK"), flow, &invite, message);
        let branch = branch_of(self, b"BYE");
        let bye = self.dialog_request(b"BYE", branch, flow, &invite, message);
        if let Some(client) = self.table.client_mut(key) {
            client.request = invite;
        }
        if let Some(ack) = ack {
            self.out.push(flow, &ack);
            self.out.name_last(peer.clone());
            if flow_only.holds(&flow) {
                self.out.pin_last();
            }
        }
        let bye_hash = client_hash(branch, Method::Bye);
        if let Some(bye) = bye.filter(|_| self.table.find_client(bye_hash).is_none()) {
            if byes >= MOST_BYES || !self.has_room_for_own(bye.len()) {
                self.counters.limited_transactions += 1;
                return;
            }
            if let Some(client) = self.table.client_mut(key) {
                client.user.course = Course::hung_up(byes + 1);
            }
            let user = ClientUser {
                peer,
                flow_only,
                ..ClientUser::new(TransactionUser::Detached)
            };
            self.begin_client(bye_hash, false, flow, &bye, user, None);
        }
    }

    /// The ACK or BYE for the dialog of `accepted`, a 2xx to `invite`. `None`: the 2xx has no To and
    /// Contact to send it to, or it is a BYE in a dialog that existed before.
    fn dialog_request(
        &mut self,
        method: &[u8],
        branch: u64,
        flow: Flow,
        invite: &[u8],
        accepted: &Message<'_>,
    ) -> Option<Vec<u8>> {
        let mut via = Vec::with_capacity(96);
        write_via_start(&mut via, self.directory.via_start(flow.listener), branch, 0);
        if !flow.transport.is_reliable() {
            via.extend_from_slice(b";rport");
        }
        self.with_message(invite, |_, invite| {
            write_of_dialog(method, &via, invite, accepted)
        })?
    }
}

/// The end of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End<'a> {
    /// A response of this status.
    Status(Status<'a>),
    /// No final response (RFC 4320 §4.2): after a delivered MESSAGE a 502 would make duplicates.
    Silence,
}

/// Whether the status of a response to `method` means something without its header fields and body.
fn says_enough(method: Method<'_>, status: u16) -> bool {
    let is_invite = method == Method::Invite;
    match status {
        // The 2xx of other methods says what was agreed on.
        200..=299 => matches!(
            method,
            Method::Bye | Method::Message | Method::Info | Method::Notify | Method::Options
        ),
        // RFC 4320 §4.2.
        408 => is_invite,
        _ => crate::engine::context::tells_alone(status),
    }
}

/// The status of a response, for a response made here.
fn own_status<'a>(code: u16, message: &Message<'a>) -> Status<'a> {
    let reason = core::str::from_utf8(message.reason()).unwrap_or_default();
    let cause = match code {
        503 => RefusalCause::NextHopUnavailable,
        _ => RefusalCause::FlawedResponse,
    };
    Status::new(code, reason).because(cause)
}

/// To as written, if it can be read, has a tag, and would not break the line that it is copied to.
fn readable_to<'a>(message: &Message<'a>) -> Option<&'a [u8]> {
    let text = message.value(HeaderName::To).filter(|text| is_clean(text))?;
    let tag = NameAddr::parse(text)?.tag()?;
    sip_message::chars::is_token_text(tag).then_some(text)
}

/// The URI of Contact as written, if it can be read and would not break the line that it is copied to.
fn readable_contact<'a>(message: &Message<'a>) -> Option<&'a [u8]> {
    let text = message.values(HeaderName::Contact).next()?.text;
    let contact = Contact::parse(text).filter(|_| is_clean(text))?;
    contact.addr.sip_uri().map(|_| contact.addr.uri)
}

fn is_clean(text: &[u8]) -> bool {
    !text.iter().any(u8::is_ascii_control)
}

/// The CSeq number of a BYE, so far above that of its INVITE that no request of the dialog had a higher one.
const CSEQ_GAP: u32 = 1 << 16;
/// The highest CSeq number (RFC 3261 §8.1.1.5).
const MOST_CSEQ: u32 = (1 << 31) - 1;

/// See [`Engine::dialog_request`].
fn write_of_dialog(
    method: &[u8],
    via: &[u8],
    invite: &Message<'_>,
    accepted: &Message<'_>,
) -> Option<Vec<u8>> {
    let is_new = invite.to().is_ok_and(|to| to.tag().is_none());
    let (to, uri) = match is_new {
        true => (readable_to(accepted)?, readable_contact(accepted)?),
        false if method == b"BYE" => return None,
        false => (
            invite.value(HeaderName::To)?,
            readable_contact(accepted).or(invite.request_uri())?,
        ),
    };
    let mut out = Vec::with_capacity(512);
    out.extend_from_slice(method);
    out.push(b' ');
    write_request_uri(&mut out, uri);
    out.extend_from_slice(b" SIP/2.0\r\n");
    out.extend_from_slice(via);
    out.extend_from_slice(b"\r\nMax-Forwards: 70\r\n");
    // §12.1.2: the caller's route set is the Record-Route in reverse. The values that the INVITE had when it
    // left here are the hops behind us. In an existing dialog the route set is the INVITE's own.
    let routes: Vec<&[u8]> = if is_new {
        let behind = invite.values(HeaderName::RecordRoute).count();
        let all = accepted.values(HeaderName::RecordRoute).count();
        let ahead = accepted.values(HeaderName::RecordRoute);
        let ahead = ahead.take(all.saturating_sub(behind)).map(|value| value.text);
        let ahead: Vec<&[u8]> = ahead.collect();
        ahead.into_iter().rev().collect()
    } else {
        invite.values(HeaderName::Route).map(|value| value.text).collect()
    };
    for route in routes.into_iter().filter(|route| is_clean(route)) {
        out.extend_from_slice(b"Route: ");
        out.extend_from_slice(route);
        out.extend_from_slice(b"\r\n");
    }
    for (name, value) in [
        (&b"From: "[..], invite.value(HeaderName::From).unwrap_or_default()),
        (b"To: ", to),
        (b"Call-ID: ", invite.value(HeaderName::CallId).unwrap_or_default()),
    ] {
        out.extend_from_slice(name);
        out.extend_from_slice(value);
        out.extend_from_slice(b"\r\n");
    }
    let number = invite.cseq().map_or(0, |c| c.number);
    let number = match method {
        b"BYE" => number.saturating_add(CSEQ_GAP).min(MOST_CSEQ),
        _ => number,
    };
    out.extend_from_slice(b"CSeq: ");
    write_decimal(&mut out, u64::from(number));
    out.push(b' ');
    out.extend_from_slice(method);
    if method == b"BYE" {
        // RFC 3326.
        out.extend_from_slice(b"\r\nReason: SIP;cause=502;text=\"Bad Gateway\"");
    }
    out.extend_from_slice(b"\r\nContent-Length: 0\r\n\r\n");
    Some(out)
}

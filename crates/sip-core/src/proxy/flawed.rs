//! Responses that cannot be passed on, although they belong to a live client transaction.
//!
//! Such a response ends its branch all the same (RFC 3261 §17.1.3): dropped in silence, the request would
//! be sent again for half a minute, its sender would learn nothing, and a callee that has answered would
//! believe that the call is up. What can be mended was mended before
//! ([`Message::mend`]), and does not come here.

use alloc::vec::Vec;

use sip_message::header::{Contact, HeaderError, NameAddr};
use sip_message::number::write_decimal;
use sip_message::{Defect, HeaderName, Message, Method};

use super::forward::{client_key, read_branch, write_request_uri, write_via_start};
use super::response::Outcome;
use crate::engine::context::TargetState;
use crate::engine::effects::{ClientEvent, ServerEvent};
use crate::engine::reply::Status;
use crate::engine::{ClientUser, Engine, Owner};
use crate::event::Event;
use crate::transaction::Passed;
use crate::transaction::table::Key;
use crate::transport::Flow;
use crate::transport::framing::FramingFault;

/// What keeps a response from being passed on as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// Something that is wrong with the message.
    Defect(Defect),
    /// A header field that every response has is missing or cannot be read.
    Header(HeaderError),
    /// Its stream cannot be followed further: its head is all there is.
    Framing(FramingFault),
    /// There is no Via beside ours, and so no way on (§16.7 step 3).
    OnlyOurVia,
}

impl Flaw {
    /// For the log: few values, none of which a peer chooses.
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
    /// A response that could not be mended came.
    #[cold]
    pub(crate) fn handle_flawed(&mut self, message: &Message<'_>, flow: Flow, flaw: Flaw) -> Outcome {
        self.answered_by = Some(flow);
        let (Ok(top), Ok(cseq)) = (message.top_via(), message.cseq()) else {
            self.counters.dropped_malformed += 1;
            return Outcome::Done;
        };
        let branch = top.branch().and_then(read_branch);
        let Some((branch, _)) = branch.filter(|_| self.is_sent_by(&top)) else {
            self.counters.dropped_malformed += 1;
            return Outcome::Done;
        };
        if let Some(key) = self.table.find_client(client_key(branch, cseq.method)) {
            return self.end_branch(key, message, flow, flaw);
        }
        let other = message.call_id().and_then(|call_id| self.other_owner(call_id));
        if let Some(other) = other.filter(|_| self.holds_state) {
            return Outcome::HandOver(other);
        }
        self.counters.dropped_malformed += 1;
        Outcome::Done
    }

    /// The flawed response belongs to this client transaction.
    #[cold]
    #[inline(never)]
    pub(crate) fn end_branch(&mut self, key: Key, message: &Message<'_>, flow: Flow, flaw: Flaw) -> Outcome {
        let status = message.status().unwrap_or(0);
        self.count_response(status);
        self.note_answered_by(&flow);
        self.note_flaw(message, flow, flaw, false);
        if status >= 200 {
            self.stop_timer_c(key);
        }
        // The ACK has the response's To where that can be read (§17.1.1.3), else the INVITE's: its
        // branch is enough to be known by.
        let model = readable_to(message).is_some().then_some(message);
        let outcome = match self.client_event(key, ClientEvent::Response(status), model) {
            Some(Passed::Response) => self.end_branch_with(key, status, message, flaw),
            _ => {
                self.counters.retransmissions_absorbed += 1;
                Outcome::Done
            }
        };
        self.forget_if_over(key);
        outcome
    }

    /// Counts a flawed response, mended or not, and tells of it.
    pub(crate) fn note_flaw(&mut self, message: &Message<'_>, flow: Flow, flaw: Flaw, mended: bool) {
        match mended {
            true => self.counters.responses_mended += 1,
            false => self.counters.responses_flawed += 1,
        }
        self.event(Event::ResponseFlawed {
            source: flow.remote,
            call_id: message.call_id().unwrap_or_default().into(),
            flaw: flaw.reason(),
            mended,
        });
    }

    fn end_branch_with(&mut self, key: Key, status: u16, message: &Message<'_>, flaw: Flaw) -> Outcome {
        let Some(client) = self.table.client(key) else {
            return Outcome::Done;
        };
        let (target, server) = (client.user.target, client.user.server());
        let Some(server) = server else {
            return self.own_request_answered(key, status);
        };
        if status < 200 {
            self.note_provisional(key, server, status);
            return Outcome::Done;
        }
        let invite = message.cseq().is_ok_and(|c| c.method == Method::Invite);
        if !invite {
            self.table.keep_request(key, alloc::boxed::Box::default());
        } else if status < 300 {
            self.hang_up(key, message);
        }
        let tells = flaw == Flaw::OnlyOurVia && !(invite && status < 300) && says_enough(status);
        let own = tells.then_some(status);
        if self.context(server).is_some() {
            return self.target_flawed(server, key, target, own, message);
        }
        self.answer_flawed(server, own, message);
        Outcome::Done
    }

    /// The only branch has ended: its own status where that can be told, else 502; for a request that is
    /// not INVITE what it gets where no answer came: after a delivered MESSAGE a 502 would make duplicates.
    fn answer_flawed(&mut self, server: Key, own: Option<u16>, message: &Message<'_>) {
        let invite = self.is_invite(server);
        let Some(found) = self.table.live(server) else {
            return;
        };
        match own {
            _ if invite && found.user.cancelled => self.answer_stored(server, Status::REQUEST_TERMINATED),
            // As where it can be passed on (§16.7 step 6).
            Some(503) => self.answer_stored(server, Status::SERVER_ERROR),
            Some(code) => self.answer_stored(server, own_status(code, message)),
            None if invite => self.answer_stored(server, Status::BAD_GATEWAY),
            None => self.server_event(server, ServerEvent::Abandon, &[]),
        }
    }

    /// The same for a branch among others.
    fn target_flawed(
        &mut self,
        server: Key,
        client: Key,
        number: u8,
        own: Option<u16>,
        message: &Message<'_>,
    ) -> Outcome {
        let invite = self.is_invite(server);
        let Some(context) = self.context(server) else {
            return Outcome::Done;
        };
        if !context.awaits(number, client) {
            return Outcome::Done;
        }
        context.set_state(number, TargetState::Done);
        self.member_answered(server, number);
        if let Some(code @ 200..=299) = own {
            self.answer_stored(server, own_status(code, message));
            return Outcome::Done;
        }
        if let Some(600..) = own {
            self.end(server);
            self.cancel_others(server, client);
        }
        let status = match own {
            Some(code) => own_status(code, message),
            None if invite => Status::BAD_GATEWAY,
            None => Status::REQUEST_TIMEOUT,
        };
        if let Some(context) = self.context(server) {
            context.best.offer_status(status);
        }
        self.next_step(server, None)
    }

    /// A callee has accepted a call and its 2xx cannot be passed on: it gets its ACK and a BYE, where the
    /// response says who it is and where. Each copy of the 2xx is acknowledged; the BYE goes once.
    fn hang_up(&mut self, key: Key, message: &Message<'_>) {
        let (Some(to), Some(contact)) = (readable_to(message), readable_contact(message)) else {
            return;
        };
        let Some(client) = self.table.client_mut(key) else {
            return;
        };
        let (flow, peer, pin) = (client.to, client.user.peer.clone(), client.user.pin);
        let branch = client.key().to_be_bytes();
        let invite = core::mem::take(&mut client.request);
        let mut text = core::mem::take(&mut self.scratch);
        for (method, name) in [(Method::Ack, &b"ACK"[..]), (Method::Bye, b"BYE")] {
            let branch = self.secrets.map_key([name, &branch, to]);
            let bye_key = client_key(branch, method);
            if self.table.find_client(bye_key).is_some() {
                continue;
            }
            text.clear();
            self.with_message(&invite, |engine, invite| {
                let start = engine.directory.via_start(flow.listener);
                write_via_start(&mut text, start, branch, 0);
                if !flow.transport.is_reliable() {
                    text.extend_from_slice(b";rport");
                }
                let via = core::mem::take(&mut text);
                write_of_dialog(&mut text, name, contact, &via, invite, to, message);
            });
            if method == Method::Ack {
                self.out.push(flow, &text);
                self.out.name_last(peer.clone());
                if pin.holds(&flow) {
                    self.out.pin_last();
                }
            } else if !text.is_empty() {
                let user = ClientUser {
                    peer: peer.clone(),
                    pin,
                    ..ClientUser::new(Owner::Nobody)
                };
                self.begin_client(bye_key, false, flow, &text, user, None);
            }
        }
        self.scratch = text;
        if let Some(client) = self.table.client_mut(key) {
            client.request = invite;
        }
    }
}

/// Whether a status can be told without the header fields that belong to it.
fn says_enough(status: u16) -> bool {
    (200..300).contains(&status) || crate::engine::context::tells_alone(status)
}

/// The status of a response, for an answer made here.
fn own_status<'a>(code: u16, message: &Message<'a>) -> Status<'a> {
    let reason = core::str::from_utf8(message.reason()).unwrap_or_default();
    Status { code, reason }
}

/// To as written, if it can be read, has a tag, and would not break the line that it is copied to.
fn readable_to<'a>(message: &Message<'a>) -> Option<&'a [u8]> {
    let text = message.value(HeaderName::To).filter(|text| is_clean(text))?;
    let tag = NameAddr::parse(text)?.tag()?;
    sip_message::chars::is_token_text(tag).then_some(text)
}

/// The URI of Contact, under the same conditions.
fn readable_contact<'a>(message: &Message<'a>) -> Option<&'a [u8]> {
    let text = message.values(HeaderName::Contact).next()?.text;
    let contact = Contact::parse(text).filter(|_| is_clean(text))?;
    contact.addr.sip_uri().map(|_| contact.addr.uri)
}

fn is_clean(text: &[u8]) -> bool {
    !text.iter().any(u8::is_ascii_control)
}

/// Appends the ACK or BYE of the dialog that `accepted` made of `invite`, with our Via alone.
fn write_of_dialog(
    out: &mut Vec<u8>,
    method: &[u8],
    contact: &[u8],
    via: &[u8],
    invite: &Message<'_>,
    to: &[u8],
    accepted: &Message<'_>,
) {
    out.extend_from_slice(method);
    out.push(b' ');
    write_request_uri(out, contact);
    out.extend_from_slice(b" SIP/2.0\r\n");
    out.extend_from_slice(via);
    out.extend_from_slice(b"\r\nMax-Forwards: 70\r\n");
    // §12.1.2: the route set of who called is the Record-Route in reverse. What stood in the INVITE
    // when it left here is the way that lies behind us.
    let behind = invite.values(HeaderName::RecordRoute).count();
    let all = accepted.values(HeaderName::RecordRoute).count();
    let ahead: Vec<&[u8]> = accepted
        .values(HeaderName::RecordRoute)
        .take(all.saturating_sub(behind))
        .map(|value| value.text)
        .collect();
    for route in ahead.into_iter().rev().filter(|route| is_clean(route)) {
        out.extend_from_slice(b"Route: ");
        out.extend_from_slice(route);
        out.extend_from_slice(b"\r\n");
    }
    let number = u64::from(invite.cseq().map_or(0, |c| c.number)) + u64::from(method == b"BYE");
    for (name, value) in [
        (&b"From: "[..], invite.value(HeaderName::From).unwrap_or_default()),
        (b"To: ", to),
        (b"Call-ID: ", invite.value(HeaderName::CallId).unwrap_or_default()),
    ] {
        out.extend_from_slice(name);
        out.extend_from_slice(value);
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"CSeq: ");
    write_decimal(out, number);
    out.push(b' ');
    out.extend_from_slice(method);
    if method == b"BYE" {
        // RFC 3326.
        out.extend_from_slice(b"\r\nReason: SIP;cause=502;text=\"Bad Gateway\"");
    }
    out.extend_from_slice(b"\r\nContent-Length: 0\r\n\r\n");
}

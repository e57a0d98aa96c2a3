//! Requests of the callers.

use sip_message::number::write_decimal;
use sip_message::{HeaderName, Message};
use smallvec::SmallVec;

use super::{Call, Uac};
use crate::digest::Challenge;
use crate::outbox::To;
use crate::plan::{Kind, Plan, uri_parameter, via_name};
use crate::text::{SDP, SDP_TYPE, body, cat, copy_fields, hex8, read_hex8};

/// Prefix of branches (RFC 3261 §8.1.1.7).
const COOKIE: &[u8] = b"z9hG4bK";
/// Transaction number of an ACK after its call is over; the next one is that of a BYE.
const LATE_ACK: u8 = 254;
const LATE_BYE: u8 = 255;

/// A call that is over, as far as a 2xx describes the call.
pub(super) struct LateCall {
    pub(super) slot: u32,
    pub(super) call: Call,
}

impl Uac {
    /// Writes the first request of `slot`, with credentials if there is a challenge to answer.
    pub(super) fn write_first(&mut self, slot: u32, challenge: Option<&mut Challenge>) {
        let call = &mut self.calls[slot as usize];
        let (plan, run, local) = (&*self.plan, &self.run, &self.local);
        let mut out = std::mem::take(&mut call.request);
        out.clear();
        cat(&mut out, &[plan.kind.method(), b" "]);
        let uri_at = out.len();
        write_request_uri(&mut out, plan, call.user);
        let uri = uri_at..out.len();
        out.extend_from_slice(b" SIP/2.0\r\n");
        write_via(&mut out, plan, run, local, slot, call);
        out.extend_from_slice(b"Max-Forwards: 70\r\nFrom: <sip:");
        plan.users.write_name(&mut out, call.user);
        cat(&mut out, &[b"@", plan.domain.as_bytes(), b">;tag="]);
        write_own_tag(&mut out, run, plan, slot, call);
        out.extend_from_slice(b"\r\nTo: <");
        let to_user = if plan.kind == Kind::Register {
            call.user
        } else {
            callee(plan, call.user)
        };
        if plan.kind == Kind::Options {
            cat(&mut out, &[b"sip:", plan.server.as_bytes()]);
        } else {
            write_aor(&mut out, plan, to_user);
        }
        out.extend_from_slice(b">\r\nCall-ID: ");
        write_own_tag(&mut out, run, plan, slot, call);
        cat(&mut out, &[b"@", local, b"\r\nCSeq: "]);
        write_decimal(&mut out, u64::from(call.cseq));
        cat(&mut out, &[b" ", plan.kind.method(), b"\r\n"]);
        write_contact(&mut out, plan, local, call.user);
        if let Some(challenge) = challenge {
            let uri = out[uri].to_vec();
            write_credentials(&mut out, plan, call.user, challenge, plan.kind.method(), &uri);
        }
        match plan.kind {
            Kind::Call | Kind::Redirect => body(&mut out, SDP_TYPE, SDP),
            Kind::Message => {
                let text: Vec<u8> = b"trapezoid "
                    .iter()
                    .copied()
                    .cycle()
                    .take(plan.text_len)
                    .collect();
                body(&mut out, "text/plain", &text);
            }
            Kind::Register => {
                out.extend_from_slice(b"Expires: ");
                write_decimal(&mut out, u64::from(plan.expires_s));
                out.extend_from_slice(b"\r\n");
                body(&mut out, "", b"");
            }
            Kind::Options => body(&mut out, "", b""),
        }
        call.request = out;
    }

    /// Writes the ACK of a 3xx–6xx response, in the INVITE's own transaction (§17.1.1.3). It is made from the
    /// response alone, so that a late response is acknowledged as well.
    pub(super) fn write_own_ack(&mut self, message: &Message<'_>) {
        let out = &mut self.text;
        out.clear();
        out.extend_from_slice(b"ACK ");
        // Our To has the same URI as the Request-URI.
        let uri = message.to().map(|to| to.uri).unwrap_or_default();
        cat(out, &[uri, b" SIP/2.0\r\nVia: "]);
        let via = message.values(HeaderName::Via).next();
        // The server's additions (`received`, `rport`) are harmless.
        cat(
            out,
            &[via.map_or(&[][..], |v| v.text), b"\r\nMax-Forwards: 70\r\n"],
        );
        copy_fields(
            out,
            message,
            &[HeaderName::From, HeaderName::To, HeaderName::CallId],
        );
        let number = message.cseq().map_or(1, |cseq| cseq.number);
        out.extend_from_slice(b"CSeq: ");
        write_decimal(out, u64::from(number));
        out.extend_from_slice(b" ACK\r\n");
        body(out, "", b"");
    }

    /// Writes the CANCEL of the INVITE under way (§9.1), with its Request-URI, Via, From, To, Call-ID and
    /// CSeq number.
    pub(super) fn write_cancel(&mut self, slot: u32) {
        let call = &self.calls[slot as usize];
        let (plan, out) = (&*self.plan, &mut self.text);
        out.clear();
        out.extend_from_slice(b"CANCEL ");
        write_request_uri(out, plan, call.user);
        out.extend_from_slice(b" SIP/2.0\r\n");
        write_via(out, plan, &self.run, &self.local, slot, call);
        out.extend_from_slice(b"Max-Forwards: 70\r\nFrom: <sip:");
        plan.users.write_name(out, call.user);
        cat(out, &[b"@", plan.domain.as_bytes(), b">;tag="]);
        write_own_tag(out, &self.run, plan, slot, call);
        out.extend_from_slice(b"\r\nTo: <");
        write_aor(out, plan, callee(plan, call.user));
        out.extend_from_slice(b">\r\nCall-ID: ");
        write_own_tag(out, &self.run, plan, slot, call);
        cat(out, &[b"@", &self.local, b"\r\nCSeq: "]);
        write_decimal(out, u64::from(call.cseq));
        out.extend_from_slice(b" CANCEL\r\n");
        body(out, "", b"");
    }

    /// Reads the dialog from a 2xx (§12.1.2). Returns false if the 2xx does not describe one.
    pub(super) fn read_dialog(&mut self, slot: u32, message: &Message<'_>) -> bool {
        read_dialog(&mut self.calls[slot as usize], message, self.plan.outbound)
    }

    /// The call of a 2xx that arrives after the call's end, from the response alone. `None` if the response
    /// cannot be acknowledged.
    pub(super) fn late_call(&self, from: To, message: &Message<'_>) -> Option<LateCall> {
        let via = message.value(HeaderName::Via)?;
        let (slot, generation, _) = branch_of(&self.run, via)?;
        let mut call = Call {
            generation,
            link: from,
            cseq: message.cseq().ok()?.number,
            ..Call::free()
        };
        read_dialog(&mut call, message, self.plan.outbound).then_some(LateCall { slot, call })
    }

    /// Writes the ACK or BYE of a late call, in a transaction whose number no call reaches.
    pub(super) fn write_late(&mut self, late: &mut LateCall, method: &[u8]) {
        let bye = method == b"BYE";
        late.call.transaction = if bye { LATE_BYE } else { LATE_ACK };
        late.call.cseq += u32::from(bye);
        self.text.clear();
        let (text, call) = (&mut self.text, &late.call);
        write_in_dialog(text, &self.plan, &self.run, &self.local, late.slot, call, method);
        body(text, "", b"");
    }

    /// Whether `via` is that of a BYE of [`Self::write_late`].
    pub(super) fn is_late_bye(&self, via: &[u8]) -> bool {
        branch_of(&self.run, via).is_some_and(|(.., transaction)| transaction == u32::from(LATE_BYE))
    }

    /// Writes the ACK of a 2xx (§13.2.2.4), a transaction of its own.
    pub(super) fn write_ack(&mut self, slot: u32) {
        let call = &mut self.calls[slot as usize];
        call.transaction = call.transaction.wrapping_add(1);
        let mut ack = std::mem::take(&mut call.ack);
        ack.clear();
        write_in_dialog(&mut ack, &self.plan, &self.run, &self.local, slot, call, b"ACK");
        body(&mut ack, "", b"");
        call.ack = ack;
    }

    /// Writes the BYE (§15.1.1).
    pub(super) fn write_bye(&mut self, slot: u32, challenge: Option<&mut Challenge>) {
        let call = &mut self.calls[slot as usize];
        call.transaction = call.transaction.wrapping_add(1);
        let mut bye = std::mem::take(&mut call.request);
        bye.clear();
        write_in_dialog(&mut bye, &self.plan, &self.run, &self.local, slot, call, b"BYE");
        if let Some(challenge) = challenge {
            let uri = call.dialog[..call.target_len].to_vec();
            write_credentials(&mut bye, &self.plan, call.user, challenge, b"BYE", &uri);
        }
        body(&mut bye, "", b"");
        call.request = bye;
    }

    /// Slot and transaction of a branch of ours in `via`, if the slot still has the branch's call.
    pub(super) fn branch_in(&self, via: &[u8]) -> Option<(u32, u8)> {
        let (slot, generation, transaction) = branch_of(&self.run, via)?;
        let call = self.calls.get(slot as usize)?;
        (call.generation == generation).then_some((slot, u8::try_from(transaction).ok()?))
    }
}

/// Slot, generation and transaction in a branch of this run.
fn branch_of(run: &[u8], via: &[u8]) -> Option<(u32, u32, u32)> {
    let at = memchr::memmem::find(via, COOKIE)? + COOKIE.len();
    let number = |n: usize| read_hex8(via.get(at + 8 * n..at + 8 * (n + 1))?);
    (via.get(at..at + 8)? == run).then_some((number(1)?, number(2)?, number(3)?))
}

fn read_dialog(call: &mut Call, message: &Message<'_>, outbound: bool) -> bool {
    let Some((to, target)) = remote_target(message, call.link) else {
        return false;
    };
    call.dialog_to = if outbound { call.link } else { to };
    call.dialog.clear();
    call.dialog.extend_from_slice(target);
    call.target_len = target.len();
    let routes: SmallVec<[&[u8]; 4]> = message.values(HeaderName::RecordRoute).map(|v| v.text).collect();
    for route in routes.iter().rev() {
        cat(&mut call.dialog, &[b"Route: ", route, b"\r\n"]);
    }
    let kept = [HeaderName::From, HeaderName::To, HeaderName::CallId];
    copy_fields(&mut call.dialog, message, &kept);
    true
}

/// The URI of the Contact, and the destination of requests to it. That is `link`, where the first hop of the
/// route set is. For datagrams without a route set it is the address in the URI. `None` if the URI or the
/// address is missing.
fn remote_target<'a>(message: &Message<'a>, link: To) -> Option<(To, &'a [u8])> {
    let contact = message.values(HeaderName::Contact).next()?;
    let contact = sip_message::header::NameAddr::parse(contact.text)?;
    let uri = contact.sip_uri()?;
    let direct = match link {
        To::Address(_) if !message.has(HeaderName::RecordRoute) => {
            let ip = uri.host.ip()?;
            To::Address((ip, uri.port.unwrap_or(5060)).into())
        }
        To::Address(_) | To::Connection(_) => link,
    };
    Some((direct, contact.uri))
}

fn write_request_uri(out: &mut Vec<u8>, plan: &Plan, user: u32) {
    match plan.kind {
        Kind::Register => cat(out, &[b"sip:", plan.domain.as_bytes()]),
        Kind::Options => cat(out, &[b"sip:", plan.server.as_bytes()]),
        Kind::Call | Kind::Redirect | Kind::Message => write_aor(out, plan, callee(plan, user)),
    }
}

/// The user whom this user calls.
pub(super) fn callee(plan: &Plan, user: u32) -> u32 {
    (user + 1) % plan.users.count().max(1)
}

fn write_aor(out: &mut Vec<u8>, plan: &Plan, user: u32) {
    out.extend_from_slice(b"sip:");
    plan.users.write_name(out, user);
    cat(out, &[b"@", plan.domain.as_bytes()]);
}

fn write_via(out: &mut Vec<u8>, plan: &Plan, run: &[u8], local: &[u8], slot: u32, call: &Call) {
    let transport = via_name(plan.transport).as_bytes();
    cat(
        out,
        &[b"Via: SIP/2.0/", transport, b" ", local, b";branch=", COOKIE, run],
    );
    hex8(out, slot);
    hex8(out, call.generation);
    hex8(out, u32::from(call.transaction));
    out.extend_from_slice(b";rport\r\n");
}

/// Appends tag or Call-ID of a call; registrations of one user share theirs (§10.2).
fn write_own_tag(out: &mut Vec<u8>, run: &[u8], plan: &Plan, slot: u32, call: &Call) {
    if plan.kind == Kind::Register {
        hex8(out, call.user);
    } else {
        hex8(out, slot);
        hex8(out, call.generation);
    }
    out.extend_from_slice(run);
}

fn write_contact(out: &mut Vec<u8>, plan: &Plan, local: &[u8], user: u32) {
    out.extend_from_slice(b"Contact: <sip:");
    plan.users.write_name(out, user);
    out.push(b'@');
    let (registered, callee) = match (plan.kind, plan.contact, &plan.callee) {
        (Kind::Register, Some(address), callee) => (Some(address), callee.as_ref().map(|c| c.transport)),
        (Kind::Register, None, Some(callee)) => (Some(callee.listen), Some(callee.transport)),
        _ => (None, None),
    };
    match registered {
        Some(address) => out.extend_from_slice(address.to_string().as_bytes()),
        None => out.extend_from_slice(local),
    }
    let transport = uri_parameter(callee.unwrap_or(plan.transport));
    cat(out, &[transport.as_bytes(), b">\r\n"]);
}

fn write_credentials(
    out: &mut Vec<u8>,
    plan: &Plan,
    user: u32,
    challenge: &mut Challenge,
    method: &[u8],
    uri: &[u8],
) {
    let mut name = Vec::new();
    plan.users.write_name(&mut name, user);
    challenge.answer(out, &name, &plan.users.password(user), method, uri);
}

fn write_in_dialog(
    out: &mut Vec<u8>,
    plan: &Plan,
    run: &[u8],
    local: &[u8],
    slot: u32,
    call: &Call,
    method: &[u8],
) {
    let (target, rest) = call.dialog.split_at(call.target_len.min(call.dialog.len()));
    cat(out, &[method, b" ", target, b" SIP/2.0\r\n"]);
    write_via(out, plan, run, local, slot, call);
    cat(out, &[b"Max-Forwards: 70\r\n", rest, b"CSeq: "]);
    write_decimal(out, u64::from(call.cseq));
    cat(out, &[b" ", method, b"\r\n"]);
}

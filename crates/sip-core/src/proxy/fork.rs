//! The response context at work (RFC 3261 §16.7, §16.8): the effect of the end of one branch on the
//! others, on targets that wait, and on the caller.

use alloc::boxed::Box;
use alloc::vec::Vec;

use sip_message::{HeaderName, Message};

use super::redirected::Contacts;
use super::response::{Failure, Response, reason_of_gone};
use crate::dispatcher::Group;
use crate::engine::Engine;
use crate::engine::context::{Context, MAX_CHALLENGES, TargetState};
use crate::engine::reply::Reply;
use crate::engine::request::Request;
use crate::engine::status::Status;
use crate::event::{Event, RefusalCause};
use crate::transaction::table::{ClientKey, ServerKey};

/// A branch's final response.
#[derive(Clone, Copy, Debug)]
pub(super) enum Final<'a> {
    /// A response that can be relayed, and its status.
    With(u16, &'a Response<'a>),
    /// A response that cannot be relayed: the status that stands for it.
    Only(Status<'a>),
}

impl Final<'_> {
    const fn status(&self) -> u16 {
        match self {
            Self::With(status, _) => *status,
            Self::Only(status) => status.code,
        }
    }
}

impl Engine {
    pub(crate) fn context(&mut self, server: ServerKey) -> Option<&mut Context> {
        self.table
            .live_mut(server)
            .and_then(|live| live.user.context.as_deref_mut())
    }

    /// Whether a server transaction is an INVITE's.
    pub(crate) fn is_invite(&self, server: ServerKey) -> bool {
        self.table.server(server).is_some_and(|s| s.machine.is_invite())
    }

    /// Handles the final response of a branch, other than 2xx.
    pub(super) fn target_completed(
        &mut self,
        server: ServerKey,
        client: ClientKey,
        number: u8,
        last: Final<'_>,
    ) {
        let status = last.status();
        let Some(context) = self.context(server) else {
            return;
        };
        // The branch was given up before.
        if !context.awaits(number, client) {
            return;
        }
        context.set_state(number, TargetState::Done);
        let target = context.targets.get(usize::from(number));
        let is_member = target.is_some_and(|t| t.member.is_some());
        let by_flow = target.is_some_and(|t| t.by_flow);
        let fails = match &context.group {
            Some(group) if is_member => group.failover_on.contains(&status),
            _ => status == 503,
        };
        let stands_for_all = is_member && !fails;
        // A 305 names a proxy and a 380 another service: neither names targets (§21.3).
        let recurse = context.policy.recurse && matches!(status, 300..=302);
        if status != 503 {
            self.member_completed(server, number);
        } else if fails && !by_flow && self.retry(server, number) {
            return self.next_targets(server);
        } else {
            self.member_failed(server, number);
        }
        // RFC 5626 §5.3: after 408 or 430 the instance gets the request by another flow. After any other
        // response it MUST NOT: the instance has responded.
        if matches!(status, 408 | 430) && self.use_alternate(server, number) {
            return self.next_targets(server);
        }
        if status >= 600 {
            // §16.7 step 5: no new branches, and the others are cancelled.
            self.end(server);
            self.cancel_others(server, client);
        } else if stands_for_all && let Some(context) = self.context(server) {
            context.give_up_members();
        }
        match last {
            Final::With(status, response) => {
                let contacts = match recurse {
                    true => self.recurse(server, client, response.message),
                    false => Contacts::Untouched,
                };
                self.keep_if_best(server, status, response, contacts);
            }
            Final::Only(status) => {
                if let Some(context) = self.context(server) {
                    context.best.offer_status(status);
                }
            }
        }
        self.next_targets(server);
    }

    /// Handles the failure of a branch without a final response: a time-out, or an error of the transport.
    pub(super) fn target_failed(
        &mut self,
        server: ServerKey,
        client: ClientKey,
        number: u8,
        failure: Failure,
    ) {
        let Some(context) = self.context(server) else {
            return;
        };
        if !context.awaits(number, client) {
            return;
        }
        context.set_state(number, TargetState::Done);
        if failure == Failure::TimedOut && self.is_too_late(server) {
            self.end(server);
        } else if self.retry(server, number) {
            return self.next_targets(server);
        }
        // All addresses of the target were tried, or it is too late for another.
        self.member_failed(server, number);
        if self.use_alternate(server, number) {
            return self.next_targets(server);
        }
        if let Some(context) = self.context(server) {
            match failure {
                Failure::TimedOut => context.best.offer(408, Some(RefusalCause::NextHopSilent)),
                // §16.9: an error of the transport counts as 503.
                Failure::Unreachable => {
                    context.best.offer(503, Some(RefusalCause::NextHopUnreachable));
                }
                Failure::FlowGone(_) | Failure::ContactGone => context.best.offer_gone(503),
                Failure::ContactSilent => context.best.offer_gone(408),
            }
        }
        self.next_targets(server);
    }

    /// Gives up a branch that rang for all its time and is being cancelled (§16.8). Targets that wait
    /// get their turn at once; if there are none, the branch's own end is awaited.
    pub(super) fn rang_in_vain(&mut self, server: ServerKey, client: ClientKey, number: u8) {
        let Some(context) = self.context(server) else {
            return;
        };
        if !context.awaits(number, client) {
            return;
        }
        context.exhaust(number);
        if !context.has_more() {
            return;
        }
        context.set_state(number, TargetState::Done);
        context.best.offer(408, Some(RefusalCause::NextHopSilent));
        self.next_targets(server);
    }

    /// Whether a response would come too late: the client gives up a request other than INVITE 64·T1 after
    /// first sending the request (§17.1.2.2, timer F).
    fn is_too_late(&self, server: ServerKey) -> bool {
        if self.is_invite(server) {
            return false;
        }
        let (now, timers) = (self.now.instant, &self.config.timers);
        self.table
            .live(server)
            .is_some_and(|s| now.micros_since(s.user.started) >= u64::from(timers.t1_ms) * 64_000)
    }

    pub(super) fn end(&mut self, server: ServerKey) {
        if let Some(context) = self.context(server) {
            context.end();
        }
    }

    /// Makes a target ready for its next address, with a branch of its own (RFC 3263 §4.3). Returns whether
    /// the target has one.
    fn retry(&mut self, server: ServerKey, number: u8) -> bool {
        let Some(found) = self.table.live(server) else {
            return false;
        };
        let (cancelled, ingress) = (found.user.cancelled, found.source.listener);
        let Some(context) = found.user.context.as_deref().filter(|c| !c.ended && !cancelled) else {
            return false;
        };
        let Some(target) = context.targets.get(usize::from(number)) else {
            return false;
        };
        if target.located
            && self
                .next_candidate(&target.candidates, target.next, ingress)
                .is_none()
        {
            return false;
        }
        self.counters.failovers += 1;
        if let Some(context) = self.context(server) {
            context.set_state(number, TargetState::Ready);
        }
        true
    }

    fn use_alternate(&mut self, server: ServerKey, number: u8) -> bool {
        let used = self
            .context(server)
            .is_some_and(|context| !context.ended && context.take_alternate(number));
        self.counters.failovers += u64::from(used);
        used
    }

    /// Bytes that the context of a request may take.
    pub(super) fn context_room(&self, server: ServerKey) -> usize {
        let beside = self.table.bytes_beside_kept(server);
        self.config.limits.response_bytes().saturating_sub(beside)
    }

    /// Notes the bytes that the context of a request takes by now.
    pub(crate) fn count_context(&mut self, server: ServerKey) {
        let bytes = self.context(server).map_or(0, |context| context.bytes());
        self.table.count_kept(server, bytes);
    }

    /// Keeps a final response if none was better (§16.7 step 6), and its challenges in any case (step
    /// 7).
    fn keep_if_best(&mut self, server: ServerKey, status: u16, response: &Response<'_>, contacts: Contacts) {
        if matches!(contacts, Contacts::AllUsed) {
            return;
        }
        self.edit_response(response);
        let message = response.message;
        let mut edits = core::mem::take(&mut self.edits);
        if let Contacts::Left(lines) = &contacts {
            for field in message.fields_named(HeaderName::Contact) {
                edits.delete(field.start as usize..field.end as usize);
            }
            edits.insert(message.headers_end_offset(), lines);
        }
        let room = self.context_room(server);
        let mut is_whole = true;
        if let Some(context) = self.context(server) {
            let best = &mut context.best;
            if best.is_beaten_by(status) {
                let span = message.start_offset()..message.end_offset();
                best.take(status, |text| edits.apply(message.source(), span, text));
            }
            if let (401 | 407, Some(challengers)) = (status, &mut best.challengers) {
                *challengers = challengers.saturating_add(1);
                collect_challenges(message, &mut best.challenges);
            }
            is_whole = context.keep_within(room);
        }
        self.counters.limited_responses += u64::from(!is_whole);
        self.count_context(server);
        self.edits = edits;
    }

    /// Ends a request with nothing left to try or wait for: the caller gets the best response.
    pub(crate) fn finish(&mut self, server: ServerKey, at_hand: Option<&Request<'_>>) {
        let invite = self.is_invite(server);
        let Some(found) = self.table.live_mut(server) else {
            return;
        };
        let (cancelled, started) = (found.user.cancelled, found.user.started);
        let context = found.user.context.take();
        let is_silent = context.as_ref().is_some_and(|context| context.is_silent);
        let best = context
            .map(|mut c| core::mem::take(&mut c.best))
            .unwrap_or_default();
        let made_here = best.text.is_empty();
        let (alone, gone, cause) = (best.status_alone(), best.gone, best.cause);
        let status = match best.status {
            // §16.10: cancelled before a final response came.
            _ if cancelled && invite && made_here => Status::REQUEST_TERMINATED,
            // RFC 4320 §4.2: the client has timed out as well.
            _ if is_silent && !invite => return self.time_out_silently(server),
            408 if !invite => return self.time_out_silently(server),
            // §16.7 step 6: a 503 would say that this proxy can serve nothing.
            503 => Status::SERVER_ERROR,
            _ if !made_here => return self.send_best(server, &best, invite.then_some(started)),
            408 => Status::REQUEST_TIMEOUT,
            430 => alone.map_or(Status::TEMPORARILY_UNAVAILABLE, |status| Status {
                code: 480,
                ..status
            }),
            _ if alone.is_some() => alone.unwrap_or(Status::SERVER_ERROR),
            _ => Status::SERVER_ERROR,
        };
        let status = match status.code {
            487 => status,
            _ => Status { cause, ..status },
        };
        let extra: &[u8] = match (status.code, best.status) {
            (480, 430) if alone.is_none() => reason_of_gone(gone),
            _ => &[],
        };
        match at_hand {
            Some(request) => {
                let reply = Reply { status, extra };
                self.reply(&request.message, request.flow, Some(server), &reply);
            }
            None => self.respond_with(server, status, extra),
        }
    }

    fn send_best(
        &mut self,
        server: ServerKey,
        best: &crate::engine::context::Best,
        started: Option<crate::time::Instant>,
    ) {
        self.with_message(&best.text, |engine, message| {
            if let Some(started) = started {
                let call_id = Box::from(message.call_id().unwrap_or_default());
                engine.note_completed(call_id, best.status, started);
            }
            let mut edits = core::mem::take(&mut engine.edits);
            edits.clear();
            if matches!(best.status, 401 | 407) && best.challengers > Some(1) {
                for name in [HeaderName::WwwAuthenticate, HeaderName::ProxyAuthenticate] {
                    for field in message.fields_named(name) {
                        edits.delete(field.start as usize..field.end as usize);
                    }
                }
                edits.insert(message.headers_end_offset(), &best.challenges);
            }
            let mut text = core::mem::take(&mut engine.scratch);
            text.clear();
            edits.apply(
                message.source(),
                message.start_offset()..message.end_offset(),
                &mut text,
            );
            engine.edits = edits;
            engine.counters.responses_relayed_stateful += 1;
            engine.send_response(server, best.status, &text);
            engine.scratch = text;
        });
    }

    fn member_of(&mut self, server: ServerKey, number: u8) -> Option<(alloc::sync::Arc<Group>, u16)> {
        let context = self.context(server)?;
        let member = context.targets.get(usize::from(number))?.member?;
        Some((context.group.clone()?, member))
    }

    /// Notes a sign of life of a group member.
    pub(super) fn member_completed(&mut self, server: ServerKey, number: u8) {
        if let Some((group, member)) = self.member_of(server, number)
            && let Some(member) = group.member(member)
        {
            member.health.note_response();
        }
    }

    /// Notes that a member of a group failed a call.
    pub(crate) fn member_failed(&mut self, server: ServerKey, number: u8) {
        if let Some((group, member)) = self.member_of(server, number) {
            self.note_member_failure(&group, member);
        }
    }

    /// Notes that a member of a group failed a call or a probe.
    pub(super) fn note_member_failure(&mut self, group: &Group, number: u16) {
        let Some(member) = group.member(number) else {
            return;
        };
        if member.health.note_failure(self.now.unix_ms, &group.marks) {
            self.event(Event::MemberFailed {
                group: group.name.clone(),
                member: member.hop.uri.clone(),
            });
        }
    }
}

/// Appends the challenges of a 401 or 407, as whole lines, up to the limit.
fn collect_challenges(message: &Message<'_>, out: &mut Vec<u8>) {
    for name in [HeaderName::WwwAuthenticate, HeaderName::ProxyAuthenticate] {
        for field in message.fields_named(name) {
            let value = message.field_value(field);
            if out.len() + value.len() + 32 > MAX_CHALLENGES {
                return;
            }
            out.extend_from_slice(name.as_str().as_bytes());
            out.extend_from_slice(b": ");
            out.extend_from_slice(value);
            out.extend_from_slice(b"\r\n");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_are_collected_up_to_a_limit() {
        let line = alloc::format!("WWW-Authenticate: Digest realm=\"{}\"\r\n", "r".repeat(6000));
        let text = alloc::format!("SIP/2.0 401 Unauthorized\r\n{}{}{}{}\r\n", line, line, line, line);
        let mut index = sip_message::HeaderIndex::new();
        let message = sip_message::parse(text.as_bytes(), &mut index, 100).unwrap();
        let mut out = Vec::new();
        collect_challenges(&message, &mut out);
        assert_eq!(out.len(), 2 * line.len());
    }
}

//! Requests with several targets (RFC 3261 §16.5): forks, groups, redirection.

use alloc::boxed::Box;
use alloc::vec::Vec;

use sip_message::header::Via;
use sip_message::number::write_decimal;
use sip_message::{HeaderName, Method, Uri};

use super::Progress;
use super::route::RoutePlan;
use crate::config::{Redirect, Relay, StateMode};
use crate::engine::context::{Context, Target};
use crate::engine::reply::Reply;
use crate::engine::request::Request;
use crate::engine::status::Status;
use crate::engine::{Engine, LocationTarget};
use crate::proxy::branch::read_loop_mark;
use crate::proxy::forward::max_breadth;
use crate::proxy::hop::Hop;

/// The most times that one request may be forked here. The request may return from another server, and each
/// pass may make ten of it. Services need fewer: a call group whose members ring groups of another server is
/// three.
const MOST_FORKS: usize = 4;

impl Engine {
    /// Forks to several contacts: those of equal q together, lower ones after them. Of the flows of
    /// one user agent instance one is tried, and the others stand by (RFC 5626 §5.3).
    pub(super) fn fork(
        &mut self,
        request: &Request<'_>,
        progress: Progress,
        plan: &RoutePlan<'_>,
        contacts: &[LocationTarget],
    ) {
        if let Err(status) = self.may_fork(request, plan.matched.number) {
            return self.refuse(request, progress.server, status);
        }
        let mut targets: Vec<Target> = Vec::with_capacity(contacts.len());
        let (mut order, mut last_q) = (0u16, None);
        for (at, contact) in contacts.iter().enumerate() {
            if last_q.is_some_and(|q| q != contact.q_milli) {
                order = order.saturating_add(1);
            }
            last_q = Some(contact.q_milli);
            let same =
                |other: &LocationTarget| !contact.instance.is_empty() && other.instance == contact.instance;
            let alternate_of = contacts.iter().take(at).position(same);
            targets.push(Target {
                alternate_of: alternate_of.and_then(|n| u8::try_from(n).ok()),
                ..self.contact_target(contact, order)
            });
        }
        let mut policy = plan.policy;
        policy.loop_mark = Some(self.loop_mark(request, plan.matched.number));
        let context = Context::new(targets, policy);
        self.begin_context(request, progress, plan, context);
    }

    /// The loop mark in a Via of ours: a hash of the request and of the decision about it (RFC 5393 §4.2.1).
    /// A request that returns with another decision is in a spiral, not in a loop.
    pub(super) fn loop_mark(&self, request: &Request<'_>, rule_number: usize) -> u64 {
        // A user of ours stays the same user if parameters of the URI differ, which a contact chooses.
        let aor = self.own_aor(&request.uri);
        let uri = aor.as_deref().unwrap_or(request.uri_text);
        self.secrets
            .loop_mark(uri, request.call_id, request.cseq.number, rule_number)
    }

    /// Whether a Via value has `mark`, our mark of this very request; and the number of our Via values with
    /// any mark: the times that the request was forked here.
    fn forks_before(&self, request: &Request<'_>, mark: u64) -> (bool, usize) {
        let (mut came_back, mut forks) = (false, 0);
        for value in request.message.values(HeaderName::Via) {
            let Some(via) = Via::parse(value.text) else {
                continue;
            };
            let Some(found) = via.branch().and_then(read_loop_mark) else {
                continue;
            };
            came_back |= found == mark;
            forks += usize::from(self.directory.is_own(&via.host, via.port));
        }
        (came_back, forks)
    }

    /// Whether this request may get several branches, at once or one after the other (RFC 5393).
    pub(super) fn may_fork(
        &mut self,
        request: &Request<'_>,
        rule_number: usize,
    ) -> Result<(), Status<'static>> {
        // §4.2: this very request was forked here before.
        let (came_back, forks) = self.forks_before(request, self.loop_mark(request, rule_number));
        if came_back || forks >= MOST_FORKS {
            self.counters.loops += 1;
            return Err(Status::LOOP_DETECTED);
        }
        // §5.3.3.
        if max_breadth(request) == Some(0) {
            return Err(Status::MAX_BREADTH_EXCEEDED);
        }
        Ok(())
    }

    /// Sends a request to the members of a group, one after the other until one takes it.
    pub(super) fn follow_group(
        &mut self,
        request: &Request<'_>,
        progress: Progress,
        plan: &RoutePlan<'_>,
        relay: &Relay,
        index: usize,
    ) {
        let Some(group) = self.groups.get(index).cloned() else {
            return self.refuse(request, progress.server, Status::SERVER_ERROR);
        };
        let stateless = matches!(request.method, Method::Ack | Method::Cancel)
            || (plan.state == StateMode::Stateless && progress.server.is_none());
        let call = self.secrets.dice(request.call_id);
        let order = group.order(call, self.now.unix_ms, stateless);
        let Some(first) = order.first().and_then(|n| group.member(*n)) else {
            self.counters.dropped_no_route += 1;
            return self.no_way(request, progress, Status::MEMBERS_DOWN);
        };
        if stateless {
            self.rewrite(request, relay, Some(&first.hop));
            return self.locate_and_send(request, progress, plan, Hop::configured(&first.hop), None);
        }
        let mut policy = plan.policy;
        if order.len() > 1 {
            if let Err(status) = self.may_fork(request, plan.matched.number) {
                return self.refuse(request, progress.server, status);
            }
            policy.loop_mark = Some(self.loop_mark(request, plan.matched.number));
        }
        let mut base = core::mem::take(&mut self.base_edits);
        base.copy_from(&self.edits);
        let mut targets = Vec::with_capacity(order.len());
        for (turn, number) in (0u16..).zip(&order) {
            let Some(member) = group.member(*number) else {
                continue;
            };
            self.edits.copy_from(&base);
            self.rewrite(request, relay, Some(&member.hop));
            targets.push(Target {
                member: Some(*number),
                ..Target::new(self.edited_uri(request), turn)
            });
        }
        self.edits.copy_from(&base);
        self.base_edits = base;
        let mut context = Context::new(targets, policy);
        context.group = Some(group);
        self.begin_context(request, progress, plan, context);
    }

    fn begin_context(
        &mut self,
        request: &Request<'_>,
        progress: Progress,
        plan: &RoutePlan<'_>,
        mut context: Context,
    ) {
        context.breadth = max_breadth(request);
        context.decided.edits.copy_from(&self.edits);
        context.decided.dialog = plan.position.dialog();
        context.decided.secure = request.is_secure();
        let Some(server) = progress
            .server
            .or_else(|| self.begin(request, plan.authorized.vouches_for_source()))
        else {
            return self.refuse(request, None, Status::NO_ROOM);
        };
        if self.table.bytes() + context.bytes() > self.config.limits.transaction_bytes {
            self.counters.limited_transactions += 1;
            return self.refuse(request, Some(server), Status::NO_ROOM);
        }
        self.counters.forked += 1;
        self.note_routed(server);
        if let Some(found) = self.table.live_mut(server) {
            found.user.context = Some(Box::new(context));
        }
        self.count_context(server);
        self.begin_targets(request, server);
    }

    /// Responds with 302, with all contacts and their q, or with the contact of the rule (§8.3).
    #[expect(clippy::wildcard_enum_match_arm, reason = "most methods are alike here")]
    pub(super) fn redirect(
        &mut self,
        request: &Request<'_>,
        progress: Progress,
        plan: &RoutePlan<'_>,
        redirect: &Redirect,
    ) {
        match request.method {
            // The ACK to our 302.
            Method::Ack => return self.counters.dropped_stray_ack += 1,
            // §8.3: "For well-formed CANCEL requests, it SHOULD return a 2xx response."
            Method::Cancel => return self.refuse(request, progress.server, Status::OK),
            _ => {}
        }
        let mut lines = Vec::new();
        match redirect {
            Redirect::Uri(uri) => {
                lines.extend_from_slice(b"Contact: <");
                write_with_user(&mut lines, uri, request);
                lines.extend_from_slice(b">\r\n");
            }
            Redirect::Location => {
                let count = self.look_up(request);
                for contact in self.found.iter().take(count) {
                    write_contact(&mut lines, contact, self.now.unix_s());
                }
            }
        }
        if lines.is_empty() {
            return self.refuse(request, progress.server, Status::NOT_REGISTERED);
        }
        // With state, a 302 is retransmitted until its ACK: eleven times to an address that may be forged.
        // Without state, each copy of the request gets one.
        let is_sure = plan.authorized.source_verified() || !self.is_source_unverified(&request.flow);
        let keeps_state = plan.state == StateMode::Transaction && is_sure;
        let server = match (progress.server, keeps_state) {
            (None, true) => match self.begin(request, plan.authorized.vouches_for_source()) {
                Some(server) => Some(server),
                None => return self.refuse(request, None, Status::NO_ROOM),
            },
            (server, _) => server,
        };
        let reply = Reply {
            status: Status::MOVED_TEMPORARILY,
            extra: &lines,
        };
        self.reply(&request.message, request.flow, server, &reply);
    }
}

/// Appends a contact as a line of a 302.
fn write_contact(out: &mut Vec<u8>, contact: &LocationTarget, now_unix_s: u64) {
    out.extend_from_slice(b"Contact: <");
    out.extend_from_slice(&contact.contact);
    out.push(b'>');
    if contact.q_milli < 1000 {
        out.extend_from_slice(b";q=0.");
        let q = contact.q_milli;
        for digit in [q / 100, q / 10 % 10, q % 10] {
            out.push(b'0' + digit as u8);
        }
    }
    out.extend_from_slice(b";expires=");
    write_decimal(out, contact.expires_unix_s.saturating_sub(now_unix_s));
    out.extend_from_slice(b"\r\n");
}

/// Appends a URI of the configuration, with the user part of the Request-URI if it has none.
fn write_with_user(out: &mut Vec<u8>, uri: &[u8], request: &Request<'_>) {
    let user = match (&request.uri, Uri::parse(uri)) {
        (Uri::Sip(from), Ok(Uri::Sip(to))) if to.user.is_none() => from.user,
        (Uri::Tel(from), Ok(Uri::Sip(to))) if to.user.is_none() => Some(from.number),
        _ => None,
    };
    let scheme = uri.iter().position(|c| *c == b':').map_or(0, |at| at + 1);
    let (scheme, rest) = uri.split_at(scheme);
    out.extend_from_slice(scheme);
    if let Some(user) = user {
        out.extend_from_slice(user);
        out.push(b'@');
    }
    out.extend_from_slice(rest);
}

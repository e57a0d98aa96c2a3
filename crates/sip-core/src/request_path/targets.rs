//! Requests with several targets (RFC 3261 §16.5, §16.6): forks, groups, redirection; and how
//! each target gets its branch.

use alloc::boxed::Box;
use alloc::vec::Vec;

use sip_message::header::{NameAddr, Via};
use sip_message::number::write_decimal;
use sip_message::{HeaderName, Method, Uri};

use super::Progress;
use super::guard::denied;
use super::route::{MAX_ASKED, Plan};
use crate::config::{Redirect, Relay, StateMode};
use crate::dispatcher::MemberState;
use crate::engine::context::{Context, Target, TargetState};
use crate::engine::reply::{Reply, Status};
use crate::engine::request::Request;
use crate::engine::waiting::Parked;
use crate::engine::{Engine, LocationTarget, Pin};
use crate::event::RefusalCause;
use crate::proxy::flow_token::flow_of_contact;
use crate::proxy::forward::{Branch, by_tls, max_breadth, read_loop_mark};
use crate::proxy::hop::{Hop, Lead};
use crate::proxy::response::Outcome;
use crate::proxy::switch::may_switch as may_leave_by_tcp;
use crate::resolve::Located;
use crate::transaction::table::Key;

impl Engine {
    /// To several contacts: those of equal q together, lower ones after them; of the flows of one
    /// user agent instance the others stand by (RFC 5626 §5.3).
    pub(super) fn fork(
        &mut self,
        request: &Request<'_>,
        progress: Progress,
        plan: &Plan<'_>,
        contacts: &[LocationTarget],
    ) {
        if let Err(status) = self.may_fork(request, plan.rule_number) {
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
            let spare_of = contacts.iter().take(at).position(same);
            targets.push(Target {
                spare_of: spare_of.and_then(|n| u8::try_from(n).ok()),
                ..self.contact_target(contact, order)
            });
        }
        let mut shape = plan.shape;
        shape.loop_mark = Some(self.loop_mark(request, plan.rule_number));
        let context = Context::new(targets, shape);
        self.begin_context(request, progress, plan, context);
    }

    /// What stands for this request, and for what was decided of it, in a Via of ours: one that
    /// comes back and is sent elsewhere is in a spiral, not in a loop (RFC 5393 §4.2.1).
    pub(super) fn loop_mark(&self, request: &Request<'_>, rule_number: usize) -> u64 {
        // A user of ours is one whatever parameters stand in the URI: those a contact chooses.
        let aor = self.own_aor(&request.uri);
        let uri = aor.as_deref().unwrap_or(request.uri_text);
        self.secrets
            .loop_mark(uri, request.call_id, request.cseq.number, rule_number)
    }

    /// RFC 5393: whether this request may get several branches, at once or one after the other.
    pub(super) fn may_fork(
        &mut self,
        request: &Request<'_>,
        rule_number: usize,
    ) -> Result<(), Status<'static>> {
        // §4.2: it was forked here before, as the same request.
        if came_back(request, self.loop_mark(request, rule_number)) {
            self.counters.loops += 1;
            return Err(Status::LOOP_DETECTED);
        }
        // §5.3.3.
        if max_breadth(request) == Some(0) {
            return Err(Status::MAX_BREADTH_EXCEEDED);
        }
        Ok(())
    }

    /// To the members of a group, one after the other until one takes it.
    pub(super) fn follow_group(
        &mut self,
        request: &Request<'_>,
        progress: Progress,
        plan: &Plan<'_>,
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
            let status = Status::new(500, "No Member Of The Group Is Up");
            return self.no_way(request, progress, status.because(RefusalCause::MembersDown));
        };
        if stateless {
            self.rewrite(request, relay, Some(&first.hop));
            return self.locate_and_send(request, progress, plan, Hop::configured(&first.hop), None);
        }
        let mut shape = plan.shape;
        if order.len() > 1 {
            if let Err(status) = self.may_fork(request, plan.rule_number) {
                return self.refuse(request, progress.server, status);
            }
            shape.loop_mark = Some(self.loop_mark(request, plan.rule_number));
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
        let mut context = Context::new(targets, shape);
        context.group = Some(group);
        self.begin_context(request, progress, plan, context);
    }

    fn begin_context(
        &mut self,
        request: &Request<'_>,
        progress: Progress,
        plan: &Plan<'_>,
        mut context: Context,
    ) {
        context.breadth = max_breadth(request);
        let Some(server) = progress.server.or_else(|| self.begin(request)) else {
            return self.refuse(request, None, Status::NO_ROOM);
        };
        if self.table.bytes() + context.bytes() > self.config.limits.transaction_bytes {
            self.counters.limited_transactions += 1;
            return self.refuse(request, Some(server), Status::NO_ROOM);
        }
        self.counters.forked += 1;
        self.pass_authorized(server);
        if let Some(found) = self.table.live_mut(server) {
            found.user.context = Some(Box::new(context));
        }
        self.count_context(server);
        if let Outcome::Begin(server) = self.next_step(server, Some(request)) {
            self.begin_targets(request, plan, server);
        }
    }

    /// Gives each target that is ready its branch. The edits that all have in common are made.
    pub(super) fn begin_targets(&mut self, request: &Request<'_>, plan: &Plan<'_>, server: Key) {
        let mut base = core::mem::take(&mut self.base_edits);
        base.copy_from(&self.edits);
        loop {
            while let Some(number) = self.context(server).and_then(|c| c.next_ready()) {
                self.edits.copy_from(&base);
                self.begin_target(request, plan, server, number);
                // Whatever became of it, it is not begun twice.
                if let Some(context) = self.context(server)
                    && context.next_ready() == Some(number)
                {
                    context.set_state(number, TargetState::Done);
                    context.best.offer(500, None);
                }
            }
            if !matches!(self.next_step(server, Some(request)), Outcome::Begin(_)) {
                break;
            }
        }
        self.base_edits = base;
    }

    fn begin_target(&mut self, request: &Request<'_>, plan: &Plan<'_>, server: Key, number: u8) {
        if self.is_passed_over(server, number) {
            return;
        }
        let Some(context) = self.context(server) else {
            return;
        };
        let Some(target) = context.target_mut(number) else {
            return;
        };
        if target.uri.is_empty() {
            // As the rule makes it, which is asked again for its edits.
            let progress = Progress {
                authorized: true,
                server: Some(server),
                begin: true,
                asked: 0,
                any_account_of: 0,
            };
            return self.follow(request, progress, plan);
        }
        let (uri, path) = (target.uri.clone(), target.path.clone());
        let known = target.flow.is_some() || target.located;
        if known || self.locate_target(request, plan, server, number, (&uri, &path)) {
            self.edit_for_target(request, &uri, &path);
            self.begin_candidate(request, server, number);
        }
    }

    /// Whether a member has left service since the request came: the operator has drained it, or
    /// it counts as failed and another waits. Its turn is over then.
    fn is_passed_over(&mut self, server: Key, number: u8) -> bool {
        let now_ms = self.now.unix_ms;
        let Some(context) = self.context(server) else {
            return false;
        };
        let member = context.targets.get(usize::from(number)).and_then(|t| t.member);
        let (Some(group), Some(member)) = (&context.group, member) else {
            return false;
        };
        let over = match group.member(member).map(|m| m.state(now_ms)) {
            Some(MemberState::Drained) => true,
            Some(MemberState::Failed) => context.has_more(),
            Some(MemberState::Up) | None => false,
        };
        if over {
            context.set_state(number, TargetState::Done);
            context.best.offer(500, Some(RefusalCause::MembersDown));
        }
        over
    }

    /// Looks up the addresses of a target; whether they are known now.
    fn locate_target(
        &mut self,
        request: &Request<'_>,
        plan: &Plan<'_>,
        server: Key,
        number: u8,
        (uri, path): (&[u8], &[u8]),
    ) -> bool {
        let group = self.context(server).and_then(|c| c.group.clone());
        let Some(target) = self.context(server).and_then(|c| c.target_mut(number)) else {
            return false;
        };
        let asked = target.asked;
        target.asked = asked.saturating_add(1);
        let secure = target.secure || request.is_secure();
        let member = target.member.and_then(|n| group.as_ref()?.member(n));
        let from = target.from;
        let is_bare_contact = target.is_contact && path.is_empty();
        let parsed = Uri::parse(uri).ok();
        let uri = parsed.as_ref().and_then(|uri| uri.sip());
        let hop = match member {
            Some(member) => Some(Hop::configured(&member.hop)),
            None if path.is_empty() => uri.and_then(|uri| Hop::of_contact(uri, secure, from)),
            None => first_hop(path),
        };
        let hop = if secure { hop.and_then(Hop::secured) } else { hop };
        let Some(hop) = hop else {
            return self.no_address(server, number);
        };
        let question = self.question(hop, request.call_id, false);
        match self.resolver.locate(self.now.instant, &question) {
            Located::Done(found) if self.leads_astray(request, plan.position, &hop, &found) => {
                let status = Status::FORBIDDEN.because(RefusalCause::GuardedPlace);
                self.forbid_target(server, number, status)
            }
            Located::Done(mut candidates) if !candidates.is_empty() => {
                if !self.keep_allowed(request, plan.position, &hop, &mut candidates) {
                    return self.forbid_target(server, number, denied(&hop));
                }
                self.meet_peers(&hop, &candidates);
                if let Some(target) = self.context(server).and_then(|c| c.target_mut(number)) {
                    target.peer = hop.peer(&candidates);
                    target.candidates = candidates;
                    target.located = true;
                }
                true
            }
            Located::Ask { name, kind } if asked < MAX_ASKED && self.may_park(0) => {
                if let Some(context) = self.context(server) {
                    context.set_state(number, TargetState::Locating);
                }
                let parked = Parked {
                    flow: request.flow,
                    bytes: Box::default(),
                    server: Some(server),
                    authorized: true,
                    any_account_of: 0,
                    asked: 0,
                    target: Some(number),
                    watched: false,
                };
                self.wait_for_name(name, kind, parked);
                false
            }
            Located::Done(_) if is_bare_contact => self.contact_gone(server, number),
            Located::Done(_) | Located::Unavailable => self.no_address(server, number),
            // Not the target's fault: a limit of ours.
            Located::Ask { .. } => self.not_located(server, number),
        }
    }

    /// Ends a target that this request must not reach, as if it had sent `status`. For a denied contact it counts as
    /// 430, which gives way to a response that says more.
    fn forbid_target(&mut self, server: Key, number: u8, status: Status<'static>) -> bool {
        let status = match status {
            Status::CONTACT_DENIED => Status { code: 430, ..status },
            status => status,
        };
        if let Some(context) = self.context(server) {
            context.set_state(number, TargetState::Done);
            if !context.take_spare(number) {
                context.best.offer_status(status);
            }
        }
        false
    }

    /// A target has no address that can be reached: as if it had answered 503 (RFC 3263 §4.3).
    fn no_address(&mut self, server: Key, number: u8) -> bool {
        self.member_failed(server, number);
        self.not_located(server, number)
    }

    /// The host of a registered contact has no address: the phone is gone.
    fn contact_gone(&mut self, server: Key, number: u8) -> bool {
        self.counters.dropped_no_route += 1;
        if let Some(context) = self.context(server) {
            context.set_state(number, TargetState::Done);
            if !context.take_spare(number) {
                context.best.offer_gone(503);
            }
        }
        false
    }

    /// Nobody knows where a target is.
    fn not_located(&mut self, server: Key, number: u8) -> bool {
        self.counters.dropped_no_route += 1;
        if let Some(context) = self.context(server) {
            context.set_state(number, TargetState::Done);
            if !context.take_spare(number) {
                context.best.offer(503, Some(RefusalCause::NextHopUnreachable));
            }
        }
        false
    }

    /// Whether a request may get no more branches.
    fn has_all_branches(&self, server: Key) -> bool {
        let limits = &self.config.limits;
        let most = limits.branches.min(usize::from(u8::MAX));
        let held = self.table.servers() + self.table.clients();
        let branches = self.table.live(server).map(|s| s.user.branches.len());
        branches.is_none_or(|count| count >= most)
            || held >= limits.held_transactions
            || self.table.bytes() >= limits.transaction_bytes
    }

    /// Sends the request to the next address of a target that is ready. Its edits are made.
    pub(super) fn begin_candidate(&mut self, request: &Request<'_>, server: Key, number: u8) {
        if self.has_all_branches(server) {
            self.counters.limited_transactions += 1;
            if let Some(context) = self.context(server) {
                context.end();
                context.set_state(number, TargetState::Done);
                context.best.offer(500, Some(RefusalCause::BranchLimit));
            }
            return;
        }
        let Some(context) = self.context(server) else {
            return;
        };
        let (shape, reply_timeout_ms) = (context.shape, context.group.as_ref().map(|g| g.reply_timeout_ms));
        let Some(target) = context.target_mut(number) else {
            return;
        };
        let (is_member, is_contact, peer) = (target.member.is_some(), target.is_contact, target.peer.clone());
        let secure = request.is_secure() || target.is_sips();
        let is_last = target.next.saturating_add(1) >= target.candidates.len() && !context.has_more();
        // Only members have others to take their place. Where all leave an INVITE without an answer its
        // caller hears of it; of another request not (RFC 4320 §4.2): waiting for the last costs nothing.
        let reply_timeout_ms =
            reply_timeout_ms.filter(|_| is_member && (request.method == Method::Invite || !is_last));
        let Some(target) = context.target_mut(number) else {
            return;
        };
        let breadth = shape.loop_mark.map(|_| target.breadth);
        let mut may_switch = false;
        let (pin, flow) = (target.pin, target.take_flow());
        let back = flow.and_then(|flow| flow_of_contact(&target.uri, flow, pin != Pin::None));
        let to = match flow {
            Some(flow) => Some(flow),
            None => {
                let (candidates, from) = (target.candidates.clone(), target.next);
                let next = self.next_candidate(&candidates, from, request.flow.listener);
                if let (Some((at, _)), Some(target)) =
                    (next, self.context(server).and_then(|c| c.target_mut(number)))
                {
                    target.next = at + 1;
                    may_switch = candidates.get(at).is_some_and(may_leave_by_tcp);
                }
                next.map(|(_, flow)| flow)
            }
        };
        let Some(to) = to else {
            self.no_address(server, number);
            return;
        };
        let client = self.start_branch(
            request,
            &Branch {
                server,
                target: number,
                to,
                peer: by_tls(to, &peer),
                pin,
                back,
                may_switch,
                shape,
                secure,
                breadth,
                reply_timeout_ms,
                is_contact,
            },
        );
        if let Some(context) = self.context(server) {
            context.set_state(number, TargetState::Pending(client));
        }
    }

    /// §8.3: a 302 with all contacts and their q, or with the one of the rule.
    #[expect(clippy::wildcard_enum_match_arm, reason = "most methods are alike here")]
    pub(super) fn redirect(
        &mut self,
        request: &Request<'_>,
        progress: Progress,
        plan: &Plan<'_>,
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
        // With state a 302 is sent again until its ACK: eleven times to an address that may be forged. Without it each copy
        // of the request gets one.
        let keeps_state = plan.state == StateMode::Transaction && !self.may_be_forged(request);
        let server = match (progress.server, keeps_state) {
            (None, true) => match self.begin(request) {
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

/// The next hop that a Path leads to.
pub(super) fn first_hop(path: &[u8]) -> Option<Hop<'_>> {
    let (first, _) = sip_message::values::split_value(path);
    let addr = NameAddr::parse(first)?;
    addr.sip_uri().map(|uri| Hop {
        lead: Lead::Believed,
        ..Hop::of(&uri)
    })
}

/// Whether one of the Via values has our mark of this very request.
fn came_back(request: &Request<'_>, mark: u64) -> bool {
    request.message.values(HeaderName::Via).any(|value| {
        Via::parse(value.text)
            .and_then(|via| via.branch().and_then(read_loop_mark))
            .is_some_and(|found| found == mark)
    })
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

//! Branches of a request that has a response context (RFC 3261 §16.6): each target that is ready gets one. They begin
//! from the routing decision that the context keeps, not from the rules: these may have changed since.

use alloc::boxed::Box;
use core::net::IpAddr;

use sip_message::{Message, Method, SipUri, Uri};

use super::allowed::denied;
use super::flow_token::RouteFlow;
use super::forward::{Branch, by_tls, write_request_uri};
use super::hop::{Hop, first_hop};
use super::switch::may_switch as may_leave_by_tcp;
use crate::activity::Component;
use crate::dispatcher::MemberState;
use crate::engine::context::{Step, TargetState};
use crate::engine::request::Request;
use crate::engine::status::Status;
use crate::engine::waiting::{MAX_ASKED, Parked};
use crate::engine::{Engine, FlowOnly};
use crate::event::RefusalCause;
use crate::resolve::Located;
use crate::transaction::table::ServerKey;
use crate::transport::Flow;

/// The reason why a target without a usable address ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lost {
    /// The next hop has no address: the target counts as a 503 (RFC 3263 §4.3).
    NextHop,
    /// The host of a registered contact has no address: the phone is gone.
    Contact,
    /// No further request may wait for name service.
    Limit,
}

impl Engine {
    /// Goes on after a branch of this server transaction has ended: with the targets that are ready
    /// now, or with the best response.
    pub(crate) fn next_targets(&mut self, server: ServerKey) {
        match self.context(server).map(|context| context.advance()) {
            None | Some(Step::Wait) => {}
            Some(Step::Finish) => self.finish(server, None),
            Some(Step::Begin) => {
                let before = self.activity.enter(Component::Route);
                self.with_server_request(server, |engine, request| engine.begin_targets(request, server));
                self.activity.enter(before);
            }
        }
    }

    /// Runs `go` with the stored request of a server transaction that has no final response yet.
    pub(crate) fn with_server_request(
        &mut self,
        server: ServerKey,
        go: impl FnOnce(&mut Self, &Request<'_>),
    ) {
        let Some(found) = self.table.live_mut(server) else {
            return;
        };
        let flow = found.source;
        let bytes = core::mem::take(&mut found.request);
        self.with_message(&bytes, |engine, message: &Message<'_>| {
            if let Ok(request) = Request::read(*message, flow) {
                go(engine, &request);
            }
        });
        // The request stays for the next address, and for responses that are made here.
        if let Some(found) = self.table.live_mut(server) {
            found.request = bytes;
        }
    }

    /// Gives each target that is ready its branch, until one is pending or none is left.
    pub(crate) fn begin_targets(&mut self, request: &Request<'_>, server: ServerKey) {
        loop {
            while let Some(number) = self.context(server).and_then(|c| c.next_ready()) {
                self.begin_target(request, server, number);
                // A target is not begun twice, whatever became of it.
                if let Some(context) = self.context(server)
                    && context.next_ready() == Some(number)
                {
                    context.set_state(number, TargetState::Done);
                    context.best.offer(500, None);
                }
            }
            match self.context(server).map(|context| context.advance()) {
                Some(Step::Begin) => {}
                Some(Step::Finish) => return self.finish(server, Some(request)),
                Some(Step::Wait) | None => return,
            }
        }
    }

    fn begin_target(&mut self, request: &Request<'_>, server: ServerKey, number: u8) {
        if self.is_passed_over(server, number) {
            return;
        }
        let Some(target) = self.context(server).and_then(|c| c.target_mut(number)) else {
            return;
        };
        let (uri, path) = (target.uri.clone(), target.path.clone());
        let known = target.flow.is_some() || target.located;
        if known || self.locate_target(request, server, number, (&uri, &path)) {
            if let Some(context) = self.table.live(server).and_then(|l| l.user.context.as_deref()) {
                self.edits.copy_from(&context.decided.edits);
            }
            if !uri.is_empty() {
                self.edit_for_target(request, &uri, &path);
            }
            self.begin_candidate(request, server, number);
        }
    }

    /// Whether a member has left service since the request came: the operator has drained it, or it counts as
    /// failed and another waits. If so, the member's turn is over.
    fn is_passed_over(&mut self, server: ServerKey, number: u8) -> bool {
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

    /// Looks up the addresses of a target. Returns whether they are known now.
    fn locate_target(
        &mut self,
        request: &Request<'_>,
        server: ServerKey,
        number: u8,
        (uri, path): (&[u8], &[u8]),
    ) -> bool {
        let Some(context) = self.context(server) else {
            return false;
        };
        let (dialog, is_secure) = (context.decided.dialog, context.decided.secure);
        let group = context.group.clone();
        let Some(target) = context.target_mut(number) else {
            return false;
        };
        let asked = target.asked;
        target.asked = asked.saturating_add(1);
        let secure = target.secure || is_secure;
        let (member, from) = (target.member.and_then(|n| group.as_ref()?.member(n)), target.from);
        let is_bare_contact = target.is_contact && path.is_empty();
        let parsed = Uri::parse(uri).ok();
        let uri = parsed.as_ref().and_then(|uri| uri.sip());
        let hop = match member {
            Some(member) => Some(Hop::configured(&member.hop)),
            None => hop_of(uri, path, secure, from),
        };
        let Some(hop) = hop.and_then(|hop| if secure { hop.secured() } else { Some(hop) }) else {
            return self.no_address(server, number);
        };
        let question = self.question(hop, request.call_id, false);
        match self.resolver.locate(self.now.instant, &question) {
            Located::Done(found) if self.leads_astray(request, dialog, &hop, &found) => {
                self.forbid_target(server, number, Status::GUARDED_PLACE)
            }
            Located::Done(mut candidates) if !candidates.is_empty() => {
                if !self.keep_allowed(request, dialog, &hop, &mut candidates) {
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
                    authorized: None,
                    any_account_of: 0,
                    asked: 0,
                    target: Some(number),
                    watched: false,
                };
                self.wait_for_name(name, kind, parked);
                false
            }
            Located::Done(_) if is_bare_contact => self.lose_target(server, number, Lost::Contact),
            Located::Done(_) | Located::Unavailable => self.no_address(server, number),
            // Not the target's fault: a limit of ours.
            Located::Ask { .. } => self.lose_target(server, number, Lost::Limit),
        }
    }

    /// Ends a target that this request must not reach, as if the target had sent `status`. A denied contact
    /// counts as 430, which gives way to a response that says more.
    fn forbid_target(&mut self, server: ServerKey, number: u8, status: Status<'static>) -> bool {
        let status = match status {
            Status::CONTACT_DENIED => Status { code: 430, ..status },
            status => status,
        };
        if let Some(context) = self.context(server) {
            context.set_state(number, TargetState::Done);
            if !context.take_alternate(number) {
                context.best.offer_status(status);
            }
        }
        false
    }

    /// Ends a target without a reachable address, as if the target had responded with 503 (RFC 3263 §4.3).
    fn no_address(&mut self, server: ServerKey, number: u8) -> bool {
        self.member_failed(server, number);
        self.lose_target(server, number, Lost::NextHop)
    }

    /// Ends a target that has no address. Another flow of its instance takes its place, if there is one.
    fn lose_target(&mut self, server: ServerKey, number: u8, lost: Lost) -> bool {
        self.counters.dropped_no_route += 1;
        if let Some(context) = self.context(server) {
            context.set_state(number, TargetState::Done);
            if !context.take_alternate(number) {
                match lost {
                    Lost::NextHop => context.best.offer(503, Some(RefusalCause::NextHopUnreachable)),
                    Lost::Contact => context.best.offer_gone(503),
                    Lost::Limit => context.best.offer(503, Some(RefusalCause::ParkedLimit)),
                }
            }
        }
        false
    }

    /// Whether a request may get no more branches.
    fn has_all_branches(&self, server: ServerKey) -> bool {
        let limits = &self.config.limits;
        let most = limits.branches.min(usize::from(u8::MAX));
        let held = self.held_transactions();
        let branches = self.table.live(server).map(|s| s.user.branches.len());
        branches.is_none_or(|count| count >= most)
            || held >= limits.held_transactions
            || self.table.bytes() >= limits.transaction_bytes
    }

    /// Ends a target for which there is no branch, and the targets that wait behind it.
    fn stop_at_limit(&mut self, server: ServerKey, number: u8) {
        self.counters.limited_transactions += 1;
        if let Some(context) = self.context(server) {
            context.end();
            context.set_state(number, TargetState::Done);
            context.best.offer(500, Some(RefusalCause::BranchLimit));
        }
    }

    /// The flow by which later requests of the dialog reach this target.
    fn back_to(&self, server: ServerKey, number: u8, flow: Flow, flow_only: FlowOnly) -> Option<RouteFlow> {
        let context = self.table.live(server)?.user.context.as_ref()?;
        let target = context.targets.get(usize::from(number))?;
        self.flow_of_contact(&target.uri, flow, flow_only != FlowOnly::None)
    }

    /// Sends the request to the next address of a target that is ready. The edits are already made.
    fn begin_candidate(&mut self, request: &Request<'_>, server: ServerKey, number: u8) {
        if self.has_all_branches(server) {
            return self.stop_at_limit(server, number);
        }
        let Some(context) = self.context(server) else {
            return;
        };
        let (policy, is_secure) = (context.policy, context.decided.secure);
        let reply_timeout_ms = context.group.as_ref().map(|g| g.reply_timeout_ms);
        let has_more = context.has_more();
        let Some(target) = context.target_mut(number) else {
            return;
        };
        let (is_member, peer) = (target.member.is_some(), target.peer.clone());
        let (is_contact, domain) = (target.is_contact, target.domain);
        let secure = is_secure || target.is_sips();
        let is_last = target.next.saturating_add(1) >= target.candidates.len() && !has_more;
        // The time-out is for members only: these have others to take their place. If all leave an INVITE
        // without a response, its caller gets a final response. The caller of another request gets none (RFC
        // 4320 §4.2), so that waiting for the last member costs nothing.
        let reply_timeout_ms =
            reply_timeout_ms.filter(|_| is_member && (request.method == Method::Invite || !is_last));
        let breadth = policy.loop_mark.map(|_| target.breadth);
        let mut may_switch = false;
        let (flow_only, flow) = (target.flow_only, target.take_flow());
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
        let back = flow.and_then(|flow| self.back_to(server, number, flow, flow_only));
        let client = self.start_branch(
            request,
            &Branch {
                server,
                target: number,
                to,
                peer: by_tls(to, &peer),
                flow_only,
                back,
                may_switch,
                policy,
                secure,
                breadth,
                reply_timeout_ms,
                is_contact,
                domain,
            },
        );
        if let Some(context) = self.context(server) {
            context.set_state(number, TargetState::Pending(client));
        }
    }

    /// Puts the Request-URI and Route of a target into the edits.
    pub(crate) fn edit_for_target(&mut self, request: &Request<'_>, uri: &[u8], path: &[u8]) {
        let message = &request.message;
        let text = message.request_uri().unwrap_or_default();
        if let Some(span) = sip_message::chars::span_in(message.source(), text) {
            self.edits.clear_within(span.clone());
            self.edits.replace_with(span, |out| write_request_uri(out, uri));
        }
        if !path.is_empty() {
            self.edits.insert_with(message.headers_offset(), |out| {
                out.extend_from_slice(b"Route: ");
                out.extend_from_slice(path);
                out.extend_from_slice(b"\r\n");
            });
        }
    }
}

/// The next hop of a target that is no member: the first of its Path, else its URI.
fn hop_of<'h>(
    uri: Option<&SipUri<'h>>,
    path: &'h [u8],
    secure: bool,
    from: Option<IpAddr>,
) -> Option<Hop<'h>> {
    match path.is_empty() {
        true => uri.and_then(|uri| Hop::of_contact(uri, secure, from)),
        false => first_hop(path),
    }
}

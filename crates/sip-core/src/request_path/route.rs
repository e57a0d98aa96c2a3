//! The phase *route*: the destination of a request (RFC 3261 §16.5), by its rule, location and name service.

use sip_message::header::NameAddr;
use sip_message::{HeaderName, Method, Uri};

use super::Progress;
use super::in_dialog::Position;
use super::matching::Matched;
use crate::config::{Action, Listener, Relay, RelayTarget, StateMode};
use crate::engine::context::BranchPolicy;
use crate::engine::request::{Authorized, Request};
use crate::engine::status::Status;
use crate::engine::waiting::MAX_ASKED;
use crate::engine::{Engine, FlowOnly, is_sips};
use crate::proxy::allowed::denied;
use crate::proxy::flow_token::RouteFlow;
use crate::proxy::forward::{ContactRef, NotSent, RouteDecision};
use crate::proxy::hop::{Hop, first_hop};
use crate::proxy::response::reason_of_gone;
use crate::resolve::{Candidates, Located};
use crate::transport::{Flow, NextHop, PeerName};

/// The routing decision of the rules, before name service.
#[derive(Clone, Copy, Debug)]
pub(super) struct RoutePlan<'c> {
    pub(super) matched: Matched<'c>,
    pub(super) authorized: Authorized,
    pub(super) position: &'c Position<'c>,
    pub(super) state: StateMode,
    pub(super) policy: BranchPolicy,
}

/// The way in which the one target of a request is reached.
pub(super) enum Reach {
    /// A flow, and whether the flow is the only way.
    Flow(Flow, FlowOnly),
    /// The flow of a registration, and whether the flow is the only way.
    Registered(Flow, FlowOnly),
    /// The addresses to try, and the domain that the peer's certificate must be for.
    Candidates(Option<PeerName>, Candidates),
}

impl Engine {
    /// Finds where the request goes and sends it there.
    pub(crate) fn route(
        &mut self,
        request: &Request<'_>,
        position: &Position<'_>,
        progress: Progress,
        (matched, authorized): (Matched<'_>, Authorized),
    ) {
        // A request that waits from here on needs no further check of credentials.
        let progress = Progress {
            authorized: Some(authorized),
            ..progress
        };
        self.strip_identity(request);
        let plan = self.plan(request, position, matched, authorized);
        // §9.2: the CANCEL matched no transaction, though its INVITE would have left one. A redirected CANCEL
        // gets a 2xx in either case (§8.3).
        let action = matched.rule.map(|rule| &rule.action);
        let is_redirected = matches!(action, Some(Action::Redirect(_))) && position.next_route.is_none();
        if request.method == Method::Cancel && plan.state == StateMode::Transaction && !is_redirected {
            return self.refuse(request, progress.server, Status::NO_TRANSACTION);
        }
        // A 3xx that is followed may fork.
        if plan.policy.recurse
            && let Err(status) = self.may_fork(request, matched.number)
        {
            return self.refuse(request, progress.server, status);
        }
        self.follow(request, progress, &plan);
    }

    fn plan<'c>(
        &self,
        request: &Request<'_>,
        position: &'c Position<'c>,
        matched: Matched<'c>,
        authorized: Authorized,
    ) -> RoutePlan<'c> {
        let (config, rule) = (&self.config, matched.rule);
        let relay = rule.and_then(|r| match &r.action {
            Action::Relay(relay) => Some(relay),
            Action::Redirect(_) | Action::Reject { .. } => None,
        });
        let timeout_ms = relay.and_then(|r| r.timeout_s).map(|s| s.saturating_mul(1000));
        // The 200 to a REGISTER is read here, which takes the transaction.
        let state = match request.method == Method::Register {
            true => StateMode::Transaction,
            false => rule.and_then(|r| r.state).unwrap_or(config.state),
        };
        // §16.5: targets are added only if the Request-URI is of a domain of ours and no Route names the way.
        let recurse = relay.is_some_and(|r| r.recurse)
            && state == StateMode::Transaction
            && position.next_route.is_none()
            && !matches!(request.method, Method::Ack | Method::Cancel)
            && self.own_domain_of(&request.uri).is_some();
        RoutePlan {
            matched,
            authorized,
            position,
            state,
            policy: BranchPolicy {
                record_route: !position.in_dialog && rule.is_none_or(|r| r.record_route),
                c_ms: timeout_ms.unwrap_or(config.timers.c_ms),
                recurse,
                loop_mark: recurse.then(|| self.loop_mark(request, matched.number)),
                place: self.directory.place_of_rule(matched.number),
            },
        }
    }

    /// Sends the request by Route, dialog or rule.
    fn follow(&mut self, request: &Request<'_>, progress: Progress, plan: &RoutePlan<'_>) {
        if let Some(next) = &plan.position.next_route {
            if plan.position.is_service_route {
                return self.follow_service_route(request, progress, plan, next);
            }
            return self.follow_route(request, progress, plan, next);
        }
        if let Some(route) = plan.position.flow {
            return self.follow_flow(request, progress, plan, route);
        }
        if plan.position.in_dialog {
            return self.follow_target(request, progress, plan);
        }
        self.follow_rule(request, progress, plan);
    }

    /// Follows the next Route, which is not ours (§16.6 step 6).
    fn follow_route(
        &mut self,
        request: &Request<'_>,
        progress: Progress,
        plan: &RoutePlan<'_>,
        next: &NameAddr<'_>,
    ) {
        let Some(uri) = next.sip_uri() else {
            return self.refuse(request, progress.server, Status::UNSUPPORTED_URI_SCHEME);
        };
        if !uri.is_loose_route() {
            self.make_strict_route(request, plan.position, next);
        }
        self.locate_and_send(request, progress, plan, Hop::of(&uri), None);
    }

    /// Rewrites a request for a strict router as next hop (§16.6 step 6). The router's URI becomes the
    /// Request-URI, and the former Request-URI goes to the end of Route.
    fn make_strict_route(&mut self, request: &Request<'_>, position: &Position<'_>, next: &NameAddr<'_>) {
        let message = &request.message;
        if let Some(span) = message
            .request_uri()
            .and_then(|u| sip_message::chars::span_in(message.source(), u))
        {
            self.edits.clear_within(span.clone());
            self.edits.replace(span, next.uri);
        }
        // The next Route value is removed, too, and with it all values of ours before it.
        for field in message.fields_named(HeaderName::Route) {
            self.edits.clear_within(field.start as usize..field.end as usize);
        }
        let kept = position.kept_from + 1..position.kept_to;
        self.edits.keep_values(message, HeaderName::Route, kept);
        self.edits.insert_with(message.headers_end_offset(), |out| {
            out.extend_from_slice(b"Route: <");
            out.extend_from_slice(request.uri_text);
            out.extend_from_slice(b">\r\n");
        });
    }

    /// Sends a request by the flow that our Route names (RFC 5626 §5.3.1). If the flow is the only way, the
    /// request goes on that connection or not at all. Else the Request-URI is tried after the flow. The flow of
    /// our Path is the only way, and the Request-URI is the contact there.
    fn follow_flow(
        &mut self,
        request: &Request<'_>,
        progress: Progress,
        plan: &RoutePlan<'_>,
        route: RouteFlow,
    ) {
        let flow = route.flow;
        let listener = self.config.listeners.get(usize::from(flow.listener.0));
        // Before a restart, another listener may have had this number.
        let fits = |l: &Listener| {
            l.transport == flow.transport && l.address.is_ipv4() == flow.remote.ip().to_canonical().is_ipv4()
        };
        if !listener.is_some_and(fits) {
            return self.no_way(request, progress, Status::FLOW_FAILED);
        }
        if request.is_secure() && !flow.transport.is_secure() {
            return self.no_way(request, progress, Status::NOT_SECURE);
        }
        let contact = ContactRef {
            uri: request.uri_text,
            path: &[],
            domain: 0,
        };
        let (flow_only, contact) = match (plan.position.by_path, route.only) {
            (true, in_dialogs) => (FlowOnly::Path { in_dialogs }, Some(contact)),
            (false, true) => (FlowOnly::Route, None),
            (false, false) => (FlowOnly::None, Some(contact)),
        };
        self.send(request, progress, plan, Reach::Flow(flow, flow_only), contact);
    }

    /// Follows the Request-URI of a request in a dialog, with no Route left. The Request-URI is the peer's,
    /// or names a user of ours.
    fn follow_target(&mut self, request: &Request<'_>, progress: Progress, plan: &RoutePlan<'_>) {
        match &request.uri {
            Uri::Sip(uri) => {
                if uri.user.is_some() && self.own_domain_of(&request.uri).is_some() {
                    return self.follow_location(request, progress, plan);
                }
                self.locate_and_send(request, progress, plan, Hop::of(uri), None);
            }
            Uri::Tel(_) | Uri::Other { .. } => {
                self.refuse(request, progress.server, Status::UNSUPPORTED_URI_SCHEME);
            }
        }
    }

    /// Follows the rule of a new request. Without a rule, a domain of ours goes by location, and anything
    /// else gets 403.
    pub(super) fn follow_rule(&mut self, request: &Request<'_>, progress: Progress, plan: &RoutePlan<'_>) {
        let Some(rule) = plan.matched.rule else {
            if self.own_domain_of(&request.uri).is_some() {
                return self.follow_location(request, progress, plan);
            }
            return self.no_way(request, progress, Status::NO_RULE);
        };
        match &rule.action {
            Action::Reject { status, reason } => {
                let reason = core::str::from_utf8(reason).unwrap_or("Rejected");
                let status = Status::of_rule(*status, reason);
                self.no_way(request, progress, status);
            }
            Action::Redirect(redirect) => self.redirect(request, progress, plan, redirect),
            Action::Relay(relay) => self.follow_relay(request, progress, plan, relay),
        }
    }

    pub(super) fn follow_relay(
        &mut self,
        request: &Request<'_>,
        progress: Progress,
        plan: &RoutePlan<'_>,
        relay: &Relay,
    ) {
        match &relay.target {
            RelayTarget::Location => self.follow_location(request, progress, plan),
            RelayTarget::Group(group) => self.follow_group(request, progress, plan, relay, *group),
            RelayTarget::Uri(next) => {
                self.rewrite(request, relay, Some(next));
                self.locate_and_send(request, progress, plan, Hop::configured(next), None);
            }
            RelayTarget::RequestUri => match &request.uri {
                Uri::Sip(uri) => {
                    self.rewrite(request, relay, None);
                    self.locate_and_send(request, progress, plan, Hop::of(uri), None);
                }
                Uri::Tel(_) | Uri::Other { .. } => {
                    self.refuse(request, progress.server, Status::UNSUPPORTED_URI_SCHEME);
                }
            },
        }
    }

    /// Ends a request that has no way on. An ACK, such as one to a stateless response of ours, is dropped.
    #[expect(clippy::wildcard_enum_match_arm, reason = "most methods are alike here")]
    pub(super) fn no_way(&mut self, request: &Request<'_>, progress: Progress, status: Status<'_>) {
        match request.method {
            Method::Ack => self.counters.dropped_stray_ack += 1,
            // §9.2: the request to be cancelled is not known here.
            Method::Cancel => self.refuse(request, progress.server, Status::NO_TRANSACTION),
            _ => self.refuse(request, progress.server, status),
        }
    }

    /// Applies a rule's changes to the Request-URI.
    pub(super) fn rewrite(&mut self, request: &Request<'_>, relay: &Relay, next: Option<&NextHop>) {
        self.rewrite_user(request, relay.strip, &relay.prefix);
        if let Some(next) = next.filter(|_| relay.rewrite_host) {
            self.rewrite_host(request, next);
        }
    }

    /// Applies `strip` and `prefix` of a rule to the user part.
    fn rewrite_user(&mut self, request: &Request<'_>, strip: u16, prefix: &[u8]) {
        if strip == 0 && prefix.is_empty() {
            return;
        }
        let user = match &request.uri {
            Uri::Sip(uri) => uri.user,
            Uri::Tel(uri) => Some(uri.number),
            Uri::Other { .. } => None,
        };
        let source = request.message.source();
        if let Some(span) = user.and_then(|user| sip_message::chars::span_in(source, user)) {
            let cut = usize::from(strip).min(span.len());
            self.edits.replace(span.start..span.start + cut, prefix);
        }
    }

    /// Puts the next hop's host and port into the Request-URI.
    fn rewrite_host(&mut self, request: &Request<'_>, next: &NextHop) {
        let Some(uri) = request.uri.sip() else { return };
        let source = request.message.source();
        let Some(host) = sip_message::chars::span_in(source, uri.host_text) else {
            return;
        };
        // Up to the parameters: the old port goes as well.
        let end = sip_message::chars::span_in(source, uri.params.as_bytes())
            .filter(|p| !p.is_empty())
            .map_or_else(
                || sip_message::chars::span_in(source, request.uri_text).map_or(host.end, |s| s.end),
                |p| p.start,
            );
        self.edits.replace(host.start..end, &next.authority);
    }

    /// Looks up the next hop and forwards the request, or makes it wait for name service. `contact`:
    /// the registered contact, if the target is one.
    pub(super) fn locate_and_send(
        &mut self,
        request: &Request<'_>,
        progress: Progress,
        plan: &RoutePlan<'_>,
        hop: Hop<'_>,
        contact: Option<ContactRef<'_>>,
    ) {
        let hop = match request.is_secure() {
            true => hop.secured(),
            false => Some(hop),
        };
        // RFC 5630 §5.3: a SIPS request goes on by TLS only.
        let Some(hop) = hop else {
            return self.no_way(request, progress, Status::NOT_SECURE);
        };
        let stateless = request.method == Method::Ack || plan.state == StateMode::Stateless;
        let question = self.question(hop, request.call_id, stateless);
        match self.resolver.locate(self.now.instant, &question) {
            Located::Done(candidates)
                if self.leads_astray(request, plan.position.dialog(), &hop, &candidates) =>
            {
                self.refuse(request, progress.server, Status::GUARDED_PLACE);
            }
            Located::Done(mut candidates) if !candidates.is_empty() => {
                if !self.keep_allowed(request, plan.position.dialog(), &hop, &mut candidates) {
                    return self.no_way(request, progress, denied(&hop));
                }
                self.meet_peers(&hop, &candidates);
                let way = Reach::Candidates(hop.peer(&candidates), candidates);
                self.send(request, progress, plan, way, contact);
            }
            Located::Ask { name, kind } if progress.asked < MAX_ASKED => {
                let progress = Progress {
                    asked: progress.asked + 1,
                    ..progress
                };
                if let Some(parked) = self.park(
                    request,
                    progress,
                    plan.state,
                    plan.authorized.vouches_for_source(),
                ) {
                    self.wait_for_name(name, kind, parked);
                }
            }
            // The host of a registered contact has no address: the phone is gone.
            Located::Done(_) if contact.is_some_and(|contact| contact.path.is_empty()) => {
                self.counters.dropped_no_route += 1;
                self.refuse_with(
                    request,
                    progress.server,
                    Status::CONTACT_UNREACHABLE,
                    reason_of_gone(503),
                );
            }
            Located::Done(_) | Located::Unavailable | Located::Ask { .. } => {
                self.counters.dropped_no_route += 1;
                self.refuse(request, progress.server, Status::NEXT_HOP_NOT_FOUND);
            }
        }
    }

    pub(super) fn send(
        &mut self,
        request: &Request<'_>,
        progress: Progress,
        plan: &RoutePlan<'_>,
        way: Reach,
        contact: Option<ContactRef<'_>>,
    ) {
        let has_contact_edits = matches!(way, Reach::Flow(..));
        let (peer, candidates, flow, flow_only, from) = match way {
            Reach::Flow(flow, flow_only) => (None, Candidates::new(), Some(flow), flow_only, None),
            Reach::Registered(flow, flow_only) => (
                None,
                Candidates::new(),
                Some(flow),
                flow_only,
                Some(flow.remote.ip()),
            ),
            Reach::Candidates(peer, candidates) => (peer, candidates, None, FlowOnly::None, None),
        };
        let next_route = plan.position.next_route.as_ref();
        let path = contact.and_then(|contact| first_hop(contact.path));
        let request_secure = request.is_secure() || next_route.is_some_and(|route| is_sips(route.uri));
        let decision = RouteDecision {
            authorized: plan.authorized,
            candidates,
            peer,
            flow,
            flow_only,
            state: plan.state,
            policy: plan.policy,
            secure: request_secure || path.is_some_and(|hop| hop.secure),
            contact,
            has_contact_edits,
            dialog: plan.position.dialog(),
            request_secure,
            from,
        };
        match self.forward(request, progress.server, &decision) {
            Ok(()) => {}
            Err(NotSent::Full) => self.refuse(request, progress.server, Status::NO_ROOM),
            Err(NotSent::NoListener) if decision.contact.is_some() => {
                self.counters.dropped_no_route += 1;
                self.no_way(request, progress, Status::CONTACT_UNREACHABLE);
            }
            Err(NotSent::NoListener) => {
                self.counters.dropped_no_route += 1;
                self.refuse(request, progress.server, Status::NO_LISTENER);
            }
        }
    }
}

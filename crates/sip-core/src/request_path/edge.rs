//! The phase *edge*: a REGISTER to a domain that is not ours, which goes to the registrar that a rule names (RFC
//! 3327 §5.2, RFC 5626 §5); and requests with its Service-Route (RFC 3608).
//!
//! The registrar asks for credentials, so that nothing is asked for here. What requests reach a phone by is checked
//! as for a registration here: a Path must be believed, and a source that may be spoofed must not be a denied
//! destination. [`crate::proxy::edge`] has the Path, and what is kept of the 200.

use sip_message::header::NameAddr;
use sip_message::{HeaderName, Host, Method};

use super::Progress;
use super::asking::asked_by_its_registrar;
use super::in_dialog::Position;
use super::route::RoutePlan;
use crate::config::{Action, RelayTarget};
use crate::engine::Engine;
use crate::engine::request::Request;
use crate::engine::status::Status;
use crate::proxy::hop::Hop;
use crate::resolve::HostRef;

impl Engine {
    /// Whether a REGISTER may go on to another registrar. It then needs state on the worker of its Call-ID.
    pub(super) fn may_relay_register(&self, request: &Request<'_>) -> bool {
        self.relays_register && !self.names_own_domain(request)
    }

    /// Whether the Request-URI or To of a REGISTER is in a domain of ours, with whatever port.
    fn names_own_domain(&self, request: &Request<'_>) -> bool {
        let is_own = |host: &Host<'_>| self.directory.domain_of_host(&self.config, host).is_some();
        request.uri.sip().is_none_or(|uri| is_own(&uri.host))
            || request.to.sip_uri().is_none_or(|uri| is_own(&uri.host))
    }

    /// Relays a REGISTER by the rule that takes it. Without one, the domain is foreign.
    #[inline(never)]
    pub(super) fn relay_register(
        &mut self,
        request: &Request<'_>,
        position: &Position<'_>,
        progress: Progress,
    ) {
        let config = self.config.clone();
        let mut position = *position;
        if position.by_path {
            let status = self.foreign_path();
            return self.refuse(request, progress.server, status);
        }
        // No REGISTER belongs to a dialog.
        if let Err(status) = self.leave_dialog(request, &mut position) {
            return self.refuse(request, progress.server, status);
        }
        let matched = self.match_rule(&config, request, &position);
        if matched.rule.is_none() || self.names_own_domain(request) {
            self.counters.registrations_refused += 1;
            return self.refuse(request, progress.server, Status::FOREIGN_DOMAIN);
        }
        if let Err(status) = self.check_hops(request) {
            return self.refuse(request, progress.server, status);
        }
        if let Err(rejection) = self.believes_way(request, progress) {
            return self.reject(request, progress, rejection);
        }
        let relays = matched
            .rule
            .is_some_and(|rule| matches!(rule.action, Action::Relay(_)));
        if let Some(live) = progress.server.and_then(|server| self.table.live_mut(server)) {
            live.user.rule = self.rule_at_hand;
        } else if relays {
            self.counters.registrations_relayed += 1;
        } else {
            self.counters.registrations_refused += 1;
        }
        self.route(request, &position, progress, (matched, asked_by_its_registrar()));
    }

    /// Whether all Routes that are left lead to registrars behind this edge, as a Service-Route does. Only a new request
    /// has one, and the ACK to its failure: in a dialog the registrar would follow the Request-URI anywhere.
    #[inline(never)] // Its frame would be paid for with each Route.
    pub(super) fn is_service_route(&self, request: &Request<'_>, position: &Position<'_>) -> bool {
        let leads_to_registrar = |text| {
            let uri = NameAddr::parse(text).and_then(|addr| addr.sip_uri());
            uri.is_some_and(|uri| {
                let places = self.places_of(Hop::of(&uri).host);
                uri.is_loose_route() && places.iter().any(|place| self.is_registrar_place(*place))
            })
        };
        let kept = position.kept_to.saturating_sub(position.kept_from);
        let mut left = request
            .message
            .values(HeaderName::Route)
            .skip(position.kept_from)
            .take(kept);
        let may_have_one = request.to.tag().is_none() || request.method == Method::Ack;
        self.relays_register && may_have_one && left.all(|value| leads_to_registrar(value.text))
    }

    /// Follows the rule of a request whose Route is a Service-Route. The rule decides where the request goes, and
    /// must lead to the host of that Route. The registrar gets the Route.
    #[inline(never)]
    pub(super) fn follow_service_route(
        &mut self,
        request: &Request<'_>,
        progress: Progress,
        plan: &RoutePlan<'_>,
        next: &NameAddr<'_>,
    ) {
        let place = plan.policy.place;
        let leads_there = |host: HostRef<'_>| place != 0 && self.places_of(host).contains(&place);
        match plan.matched.rule.map(|rule| &rule.action) {
            Some(Action::Relay(relay))
                if matches!(relay.target, RelayTarget::Uri(_) | RelayTarget::Group(_))
                    && next.sip_uri().is_some_and(|uri| leads_there(Hop::of(&uri).host)) =>
            {
                self.follow_relay(request, progress, plan, relay);
            }
            Some(Action::Reject { .. }) => self.follow_rule(request, progress, plan),
            Some(Action::Relay(_) | Action::Redirect(_)) | None => {
                self.no_way(request, progress, Status::FOREIGN_ROUTE);
            }
        }
    }
}

//! The phase *authorize*: whether a request needs credentials (RFC 3261 §22). The rule decides, else the
//! stricter policy of the domains of From and Request-URI, else, in a dialog, the mark.

use sip_message::Method;

use super::Progress;
use super::in_dialog::Position;
use crate::config::{Action, Config, Domain, RelayTarget, Route, StateMode};
use crate::engine::Engine;
use crate::engine::directory::is_exempt;
use crate::engine::place::DomainNumber;
use crate::engine::request::{Authorized, Request};
use crate::engine::status::Status;

/// Whether an ACK outside our dialogs is relayed although its INVITE needed credentials: an ACK cannot be
/// challenged (RFC 3261 §22.1). An ACK to a 2xx has our Route, unless the rule leaves Record-Route out. An
/// ACK to a failure is absorbed here, unless the rule keeps no state.
fn passes_unasked(config: &Config, request: &Request<'_>, rule: Option<&Route>) -> bool {
    let state = rule.and_then(|r| r.state).unwrap_or(config.state);
    let leaves_no_route = rule.is_some_and(|r| !r.record_route);
    request.to.tag().is_some() && (state == StateMode::Stateless || leaves_no_route)
}

/// Whether a rule relays to another place than a user of `called`, and does not name that domain. A rule may name the
/// `maddr` of a Request-URI in it.
fn leads_elsewhere(rule: &Route, called: &Domain) -> bool {
    let is_other = |name: &[u8]| *name != *called.name && called.aliases.iter().all(|alias| **alias != *name);
    let relays_to_others = match &rule.action {
        Action::Relay(relay) => !matches!(relay.target, RelayTarget::Location),
        Action::Redirect(_) | Action::Reject { .. } => false,
    };
    relays_to_others && rule.when.domain.as_deref().is_none_or(is_other)
}

/// The reason why a REGISTER to the registrar of another domain may be relayed: that registrar asks for credentials.
/// It vouches for no source.
pub(super) const fn asked_by_its_registrar() -> Authorized {
    Authorized::Unasked
}

impl Engine {
    /// The reason why a request may be relayed. `None`: the request got a response, was dropped, or waits for
    /// credentials.
    pub(crate) fn authorize_routed(
        &mut self,
        config: &Config,
        request: &Request<'_>,
        position: &Position<'_>,
        progress: Progress,
        rule: Option<&Route>,
    ) -> Option<Authorized> {
        if progress.authorized == Some(Authorized::Credentials) {
            return progress.authorized;
        }
        let unasked = match position.in_dialog {
            true => Authorized::Dialog,
            false => Authorized::Exempt,
        };
        // Most requests need no credentials with any From, so From is not read for them. An ACK goes where
        // its INVITE went.
        let is_ack = request.method == Method::Ack;
        let method = if is_ack { Method::Invite } else { request.method };
        let asks = |domain: &Domain| domain.auth.asks(method.as_bytes(), position.in_dialog);
        let someone_asks = || config.domains.iter().any(asks);
        // The configuration names the registrar that a request along our Path comes from.
        if position.by_path || !rule.and_then(|r| r.auth).unwrap_or_else(someone_asks) {
            return Some(unasked);
        }
        if let Some(number) = self.domain_of_mark(config, request, position) {
            return self.authorize_side(config, request, progress, number);
        }
        let beyond_asking = position.in_dialog && (is_ack || is_exempt(config, &request.flow));
        let domain = self.policy_domain(config, request);
        let uri = request.uri.sip();
        let called = || uri.and_then(|uri| self.directory.domain_of(config, uri));
        // A rule without `source` is no open relay, unless it has `auth = false`.
        let relays = || {
            rule.is_some_and(|r| matches!(r.action, Action::Relay(_)) && r.when.source.is_empty())
                && !self.is_trusted(&request.flow)
        };
        // A domain that asks for nothing admits all callers to its users, and to gateways only by rules that name it.
        let guards = |domain: &Domain| {
            asks(domain) || (rule.is_some_and(|rule| leads_elsewhere(rule, domain)) && relays())
        };
        let needed = match (rule.and_then(|r| r.auth), domain) {
            (Some(auth), _) => auth,
            // The stricter policy holds: the caller writes From, and must not evade the policy of the called
            // domain by it. If no domain is called (a number, a gateway), only the rule can let the caller in.
            (None, Some(domain)) => asks(domain) || called().map_or_else(relays, guards),
            // Neither the caller nor the callee is of ours: no policy lets the request in.
            (None, None) => relays(),
        };
        if !needed || beyond_asking {
            return Some(unasked);
        }
        if request.method == Method::Ack && !passes_unasked(config, request, rule) {
            self.counters.dropped_stray_ack += 1;
            return None;
        }
        match domain {
            Some(domain) => self.authorize(request, progress, domain),
            None => {
                self.refuse(request, progress.server, Status::NO_DOMAIN);
                None
            }
        }
    }

    /// The domain in which a side of a dialog must have its account, if From does not decide about
    /// credentials. `None`: From decides. For the callee it does not, since the callee did not choose the
    /// name by which it is called. A caller with an account here must not evade credentials by another From.
    fn domain_of_mark(
        &self,
        config: &Config,
        request: &Request<'_>,
        position: &Position<'_>,
    ) -> Option<DomainNumber> {
        let mark = position.mark.filter(|_| position.in_dialog)?;
        let number = mark.domain_of_holder();
        // A domain that asks for nothing leaves the decision to the others of its number.
        let is_it = |domain: &Domain| {
            domain.auth.asks(request.method.as_bytes(), true)
                && self
                    .directory
                    .domains_of(config, number)
                    .any(|other| core::ptr::eq(other, domain))
        };
        let from_decides = || number == 0 || self.domain_of_from(config, request).is_some_and(is_it);
        (!mark.is_of_caller() || !from_decides()).then_some(number)
    }

    /// Whether a side of a dialog may be relayed. A side with an account needs credentials; a callee has one
    /// if it is a contact that is registered here. Other sides may be strangers: the mark shows that the
    /// dialog came through this server.
    fn authorize_side(
        &mut self,
        config: &Config,
        request: &Request<'_>,
        progress: Progress,
        number: DomainNumber,
    ) -> Option<Authorized> {
        if number == 0 || request.method == Method::Ack || is_exempt(config, &request.flow) {
            return Some(Authorized::Dialog);
        }
        let progress = Progress {
            any_account_of: number,
            ..progress
        };
        match self.domain_of_side(config, request, number) {
            Some(domain) => self.authorize(request, progress, domain),
            None => Some(Authorized::Dialog),
        }
    }
}

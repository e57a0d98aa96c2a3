//! Phase 6: where a request goes (RFC 3261 §16.5): rules, location, name service.

use sip_message::header::NameAddr;
use sip_message::{HeaderName, Host, Method, SipUri, Uri};

use super::Progress;
use super::authorize::Authorized;
use super::in_dialog::Position;
use crate::config::{Action, Config, Domain, Relay, RelayTarget, Route, StateMode, When};
use crate::engine::Engine;
use crate::engine::directory::{address_of_record, in_networks};
use crate::engine::reply::Status;
use crate::engine::request::Request;
use crate::engine::waiting::Purpose;
use crate::proxy::forward::{Decision, NotSent, keep_values};
use crate::query::QueryKind;
use crate::resolve::{Candidates, HostRef, Located, Question};
use crate::transport::{Flow, HopHost, NextHop, Transport};

/// The most record sets that one request waits for: services of two transports, both address
/// families of each candidate, and some to spare. Answers that end before the next one is there
/// would else be asked for in turns.
const MAX_ASKED: u8 = 40;

/// The next hop, before name service.
#[derive(Clone, Copy, Debug)]
struct Hop<'a> {
    host: HostRef<'a>,
    port: Option<u16>,
    transport: Option<Transport>,
    secure: bool,
}

impl<'a> Hop<'a> {
    fn configured(hop: &'a NextHop) -> Self {
        Self {
            host: match &hop.host {
                HopHost::Name(name) => HostRef::Name(name),
                HopHost::Ip(ip) => HostRef::Ip(*ip),
            },
            port: hop.port,
            transport: hop.transport,
            secure: hop.secure,
        }
    }

    fn of(uri: &SipUri<'a>) -> Self {
        // RFC 3263 §4: the maddr parameter, where there is one, is the target.
        let host = uri
            .params
            .value(b"maddr")
            .and_then(Host::parse)
            .unwrap_or(uri.host);
        let host = match host {
            Host::Name(name) => HostRef::Name(name),
            Host::V4(ip) => HostRef::Ip(ip.into()),
            Host::V6(ip) => HostRef::Ip(ip.into()),
        };
        let transport = uri.transport().and_then(Transport::parse);
        Self {
            host,
            port: uri.port,
            transport,
            secure: uri.secure,
        }
    }
}

/// What the rules say, without what name service will add.
#[derive(Clone, Copy, Debug)]
struct Plan<'c> {
    rule: Option<&'c Route>,
    state: StateMode,
    record_route: bool,
    c_ms: u32,
}

impl Engine {
    /// Finds where the request goes and sends it there.
    pub(crate) fn route(&mut self, request: &Request<'_>, position: &Position<'_>, progress: Progress) {
        let config = self.config.clone();
        let rule = if position.in_dialog {
            None
        } else {
            self.matching_rule(&config, request)
        };
        if self.authorize_routed(&config, request, position, progress, rule) == Authorized::No {
            return;
        }
        // Should it wait now, it need not prove itself again.
        let progress = Progress {
            authorized: true,
            ..progress
        };
        self.strip_identity(request);
        let plan = Plan {
            rule,
            state: rule.and_then(|r| r.state).unwrap_or(config.state),
            record_route: !position.in_dialog && rule.is_none_or(|r| r.record_route),
            c_ms: config.timers.c_ms,
        };
        // §9.2: a CANCEL that matched nothing, where its INVITE would have left a transaction.
        if request.method == Method::Cancel && plan.state == StateMode::Transaction {
            return self.refuse(request, progress.server, Status::NO_TRANSACTION);
        }
        if let Some(next) = &position.next_route {
            return self.follow_route(request, position, progress, &plan, next);
        }
        if position.in_dialog {
            return self.follow_target(request, progress, &plan);
        }
        self.follow_rule(request, progress, plan);
    }

    /// Phase 5 for a request that is to be relayed.
    fn authorize_routed(
        &mut self,
        config: &Config,
        request: &Request<'_>,
        position: &Position<'_>,
        progress: Progress,
        rule: Option<&Route>,
    ) -> Authorized {
        // Most requests need no credentials, whoever sends them: From need not be read for that.
        let someone_asks = || {
            config
                .domains
                .iter()
                .any(|d| Self::needs_credentials(d, request.method))
        };
        if !rule.and_then(|r| r.auth).unwrap_or_else(someone_asks) {
            return Authorized::Yes;
        }
        let domain = self.policy_domain(config, request);
        let by_policy = domain.is_some_and(|d| Self::needs_credentials(d, request.method));
        let needed = rule.and_then(|r| r.auth).unwrap_or(by_policy);
        // In a dialog only its initiator can be asked: who answered the call may be a stranger who
        // has no account here (the mark in his Route shows that the dialog came through us).
        let beyond_asking =
            position.in_dialog && (!position.from_initiator || is_exempt(config, request.flow.remote.ip()));
        if !needed || beyond_asking {
            return Authorized::Yes;
        }
        match domain {
            Some(domain) => self.authorize(request, progress, domain),
            None => {
                self.refuse(request, progress.server, Status::FORBIDDEN);
                Authorized::No
            }
        }
    }

    /// The first rule that matches.
    fn matching_rule<'c>(&self, config: &'c Config, request: &Request<'_>) -> Option<&'c Route> {
        config
            .routes
            .iter()
            .find(|rule| self.matches(config, &rule.when, request))
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "most methods are alike here")]
    fn matches(&self, config: &Config, when: &When, request: &Request<'_>) -> bool {
        // CANCEL and the ACK to a non-2xx take the path of their INVITE.
        let method = match request.method {
            Method::Ack | Method::Cancel => Method::Invite,
            method => method,
        };
        (when.methods.is_empty() || when.methods.iter().any(|m| **m == *method.as_bytes()))
            && (when.source.is_empty() || in_networks(&when.source, request.flow.remote.ip()))
            && when
                .domain
                .as_ref()
                .is_none_or(|name| self.is_in_domain(config, request, name))
            && when
                .uri
                .as_ref()
                .is_none_or(|pattern| pattern.is_match(request.uri_text))
            && when
                .headers
                .iter()
                .all(|(name, value)| has_header(request, name, value))
    }

    fn is_in_domain(&self, config: &Config, request: &Request<'_>, name: &[u8]) -> bool {
        let Some(uri) = request.uri.sip() else {
            return false;
        };
        match self.directory.domain_of(config, uri) {
            Some(domain) => *domain.name == *name || domain.aliases.iter().any(|a| **a == *name),
            None => uri.host_text.eq_ignore_ascii_case(name),
        }
    }

    /// A Route that is not ours comes next (§16.6 step 6).
    fn follow_route(
        &mut self,
        request: &Request<'_>,
        position: &Position<'_>,
        progress: Progress,
        plan: &Plan<'_>,
        next: &NameAddr<'_>,
    ) {
        let Some(uri) = next.sip_uri() else {
            return self.refuse(request, progress.server, Status::UNSUPPORTED_URI_SCHEME);
        };
        if !uri.is_loose_route() {
            self.make_strict_route(request, position, next);
        }
        self.locate_and_send(request, progress, plan, Hop::of(&uri));
    }

    /// §16.6 step 6: the next hop is a strict router. It gets itself as Request-URI, and what was
    /// the Request-URI at the end of Route.
    fn make_strict_route(&mut self, request: &Request<'_>, position: &Position<'_>, next: &NameAddr<'_>) {
        let message = &request.message;
        if let Some(span) = message
            .request_uri()
            .and_then(|u| sip_message::chars::span_in(message.source(), u))
        {
            self.edits.clear_within(span.clone());
            self.edits.replace(span, next.uri);
        }
        // The next Route value goes too, and with it all of ours before it.
        for field in message.fields_named(HeaderName::Route) {
            self.edits.clear_within(field.start as usize..field.end as usize);
        }
        let kept = position.kept_from + 1..position.kept_to;
        keep_values(&mut self.edits, message, HeaderName::Route, kept);
        self.edits.insert_with(message.headers_end_offset(), |out| {
            out.extend_from_slice(b"Route: <");
            out.extend_from_slice(request.uri_text);
            out.extend_from_slice(b">\r\n");
        });
    }

    /// In a dialog, without more Route: the Request-URI is the peer, or names a user of ours.
    fn follow_target(&mut self, request: &Request<'_>, progress: Progress, plan: &Plan<'_>) {
        match &request.uri {
            Uri::Sip(uri) => {
                if uri.user.is_some() && self.directory.domain_of(&self.config, uri).is_some() {
                    return self.follow_location(request, progress, plan);
                }
                self.locate_and_send(request, progress, plan, Hop::of(uri));
            }
            Uri::Tel(_) | Uri::Other { .. } => {
                self.refuse(request, progress.server, Status::UNSUPPORTED_URI_SCHEME);
            }
        }
    }

    /// A new request: what the rule says; without one, location for domains of ours, else 403.
    fn follow_rule(&mut self, request: &Request<'_>, progress: Progress, mut plan: Plan<'_>) {
        let Some(rule) = plan.rule else {
            if self.own_domain_of(&request.uri).is_some() {
                return self.follow_location(request, progress, &plan);
            }
            return self.no_way(request, progress, Status::FORBIDDEN);
        };
        match &rule.action {
            Action::Reject { status, reason } => {
                let reason = core::str::from_utf8(reason).unwrap_or("Rejected");
                self.no_way(
                    request,
                    progress,
                    Status {
                        code: *status,
                        reason,
                    },
                );
            }
            Action::Redirect(_) => self.refuse(request, progress.server, Status::SERVER_ERROR),
            Action::Relay(relay) => {
                if let Some(seconds) = relay.timeout_s {
                    plan.c_ms = seconds.saturating_mul(1000);
                }
                self.follow_relay(request, progress, &plan, relay);
            }
        }
    }

    fn follow_relay(&mut self, request: &Request<'_>, progress: Progress, plan: &Plan<'_>, relay: &Relay) {
        match &relay.target {
            RelayTarget::Location => self.follow_location(request, progress, plan),
            RelayTarget::Uri(next) => {
                self.rewrite_user(request, relay.strip, &relay.prefix);
                if relay.rewrite_host {
                    self.rewrite_host(request, next);
                }
                self.locate_and_send(request, progress, plan, Hop::configured(next));
            }
            RelayTarget::RequestUri => match &request.uri {
                Uri::Sip(uri) => {
                    self.rewrite_user(request, relay.strip, &relay.prefix);
                    self.locate_and_send(request, progress, plan, Hop::of(uri));
                }
                Uri::Tel(_) | Uri::Other { .. } => {
                    self.refuse(request, progress.server, Status::UNSUPPORTED_URI_SCHEME);
                }
            },
            RelayTarget::Group(_) => self.refuse(request, progress.server, Status::SERVER_ERROR),
        }
    }

    /// There is no way on. An ACK to our own stateless answer ends here quietly.
    #[expect(clippy::wildcard_enum_match_arm, reason = "most methods are alike here")]
    fn no_way(&mut self, request: &Request<'_>, progress: Progress, status: Status<'_>) {
        match request.method {
            Method::Ack => self.counters.dropped_stray_ack += 1,
            // §9.2: what is to be cancelled is not known here.
            Method::Cancel => self.refuse(request, progress.server, Status::NO_TRANSACTION),
            _ => self.refuse(request, progress.server, status),
        }
    }

    /// `strip` and `prefix` of a rule, on the user part.
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

    /// The next hop's host and port in the Request-URI.
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

    /// To the registered contact (§16.5, RFC 3327 §5.3).
    fn follow_location(&mut self, request: &Request<'_>, progress: Progress, plan: &Plan<'_>) {
        let user = request.uri.sip().and_then(|uri| uri.user);
        let domain: Option<&Domain> = self.own_domain_of(&request.uri);
        let (Some(user), Some(domain)) = (user, domain) else {
            return self.no_way(request, progress, Status::TEMPORARILY_UNAVAILABLE);
        };
        let aor = address_of_record(user, domain);
        if !self.look_up(&aor) {
            // The same for a user who is not there and for one that there never was.
            return self.no_way(request, progress, Status::TEMPORARILY_UNAVAILABLE);
        }
        let target = core::mem::take(&mut self.target);
        self.send_to_contact(request, progress, plan, &target);
        self.target = target;
    }

    /// Copies the best live binding of `aor` to `self.target`.
    fn look_up(&mut self, aor: &[u8]) -> bool {
        let now = self.now.unix_s();
        let target = &mut self.target;
        target.flow = None;
        self.shared.read_bindings(aor, &mut |record| {
            let best = record
                .bindings()
                .filter_map(Result::ok)
                .find(|b| b.expires_unix_s > now);
            if let Some(binding) = best {
                target.contact.clear();
                target.contact.extend_from_slice(binding.contact);
                target.path.clear();
                target.path.extend_from_slice(binding.path);
                target.flow = Some(binding.received);
            }
        });
        self.target.flow.is_some()
    }

    fn send_to_contact(
        &mut self,
        request: &Request<'_>,
        progress: Progress,
        plan: &Plan<'_>,
        target: &crate::engine::LocationTarget,
    ) {
        let message = &request.message;
        if let Some(span) =
            sip_message::chars::span_in(message.source(), message.request_uri().unwrap_or_default())
        {
            self.edits.clear_within(span.clone());
            self.edits
                .replace_with(span, |out| write_request_uri(out, &target.contact));
        }
        if !target.path.is_empty() {
            self.edits.insert_with(message.headers_offset(), |out| {
                out.extend_from_slice(b"Route: ");
                out.extend_from_slice(&target.path);
                out.extend_from_slice(b"\r\n");
            });
            let (first, _) = sip_message::values::split_value(&target.path);
            return match NameAddr::parse(first).and_then(|addr| addr.sip_uri()) {
                Some(uri) => self.locate_and_send(request, progress, plan, Hop::of(&uri)),
                None => self.refuse(request, progress.server, Status::SERVER_ERROR),
            };
        }
        // The way the registration came: through its NAT, on its connection.
        let flow = target
            .flow
            .filter(|f| self.config.listeners.get(usize::from(f.listener.0)).is_some());
        // A stream that ended with an earlier start of this server: the contact's own address.
        let lost = flow.is_some_and(|f| f.transport.is_reliable() && f.conn.is_none());
        let contact = Uri::parse(&target.contact);
        match (flow, contact) {
            (Some(_), Ok(Uri::Sip(contact))) if lost => {
                self.locate_and_send(request, progress, plan, Hop::of(&contact));
            }
            (Some(flow), Ok(Uri::Sip(contact))) => {
                let behind = self.behind_flow(&flow, &contact);
                let flow = (!progress.next_address).then_some(flow);
                self.send(request, progress, plan, behind, flow);
            }
            (Some(flow), _) => self.send(request, progress, plan, Candidates::new(), Some(flow)),
            (None, _) => self.refuse(request, progress.server, Status::TEMPORARILY_UNAVAILABLE),
        }
    }

    /// What is left to try should a registration's connection be gone: the contact's own address,
    /// where it is one (RFC 3261 §18.1.1; a name would have to be asked for first).
    fn behind_flow(&self, flow: &Flow, contact: &SipUri<'_>) -> Candidates {
        let hop = Hop::of(contact);
        let mut candidates = match (flow.transport.is_reliable(), hop.host) {
            (true, HostRef::Ip(_)) => match self.resolver.locate(self.now.instant, &self.question(hop, 0)) {
                Located::Done(candidates) => candidates,
                Located::Ask { .. } | Located::Unavailable => Candidates::new(),
            },
            _ => Candidates::new(),
        };
        candidates.retain(|c| c.address != flow.remote || c.transport != flow.transport);
        candidates
    }

    fn question<'h>(&self, hop: Hop<'h>, dice: u64) -> Question<'h> {
        let has = |v4: bool| self.config.listeners.iter().any(|l| l.address.is_ipv4() == v4);
        Question {
            host: hop.host,
            port: hop.port,
            transport: hop.transport,
            secure: hop.secure,
            ipv4: has(true),
            ipv6: has(false),
            dice,
        }
    }

    /// Name service, then forwarding; or waiting for name service.
    fn locate_and_send(&mut self, request: &Request<'_>, progress: Progress, plan: &Plan<'_>, hop: Hop<'_>) {
        // The next address of a hop that was located before: nothing to ask.
        if progress.next_address {
            return self.send(request, progress, plan, Candidates::new(), None);
        }
        let dice = match hop.host {
            HostRef::Name(_) => self.secrets.dice(request.call_id),
            HostRef::Ip(_) => 0,
        };
        let question = self.question(hop, dice);
        match self.resolver.locate(self.now.instant, &question) {
            Located::Done(candidates) if !candidates.is_empty() => {
                self.send(request, progress, plan, candidates, None);
            }
            Located::Ask { name, kind } if progress.asked < MAX_ASKED => {
                let progress = Progress {
                    asked: progress.asked + 1,
                    ..progress
                };
                let Some(parked) = self.park(request, progress, plan.state) else {
                    return;
                };
                let server = parked.server;
                let id = match self.join_resolve(&name, kind, parked) {
                    Ok(id) => id,
                    Err(parked) => {
                        let waiters = alloc::vec![parked];
                        self.ask(
                            QueryKind::Resolve {
                                name: name.clone(),
                                kind,
                            },
                            Purpose::Resolve { name, kind, waiters },
                        )
                    }
                };
                self.note_parked(server, id);
            }
            // RFC 3263 §4.3 with RFC 3261 §16.7 step 6: as a 503 from there, which goes on as 500.
            Located::Done(_) | Located::Unavailable | Located::Ask { .. } => {
                self.counters.dropped_no_route += 1;
                self.refuse(
                    request,
                    progress.server,
                    Status {
                        code: 500,
                        reason: "Next Hop Not Found",
                    },
                );
            }
        }
    }

    fn send(
        &mut self,
        request: &Request<'_>,
        progress: Progress,
        plan: &Plan<'_>,
        candidates: Candidates,
        flow: Option<Flow>,
    ) {
        let target = progress
            .server
            .and_then(|key| self.table.server(key))
            .map_or(0, |s| s.user.branches.len());
        let mut decision = Decision {
            candidates,
            flow,
            state: plan.state,
            record_route: plan.record_route,
            c_ms: plan.c_ms,
            target: u8::try_from(target).unwrap_or(u8::MAX),
        };
        if progress.next_address {
            let Some(server) = progress.server else { return };
            if !self.fail_over(request, server, &mut decision) {
                // The configuration changed: what was left cannot be reached any more.
                self.refuse(request, Some(server), Status::SERVER_ERROR);
            }
            return;
        }
        match self.forward(request, progress.server, &decision) {
            Ok(()) => {}
            Err(NotSent::Full) => self.refuse(request, None, Status::SERVICE_UNAVAILABLE),
            Err(NotSent::NoListener) => {
                self.counters.dropped_no_route += 1;
                self.refuse(
                    request,
                    progress.server,
                    Status {
                        code: 500,
                        reason: "No Listener Reaches The Next Hop",
                    },
                );
            }
        }
    }
}

/// Appends a contact as Request-URI: without `method` and headers, which may not stand there
/// (RFC 3261 §19.1.1 Table 1, §16.6 step 2).
fn write_request_uri(out: &mut alloc::vec::Vec<u8>, contact: &[u8]) {
    let Ok(Uri::Sip(uri)) = Uri::parse(contact) else {
        return out.extend_from_slice(contact);
    };
    if uri.headers.is_none() && uri.param(b"method").is_none() {
        return out.extend_from_slice(contact);
    }
    let headers = uri.headers.map_or(0, |h| h.len() + 1);
    let end = contact.len() - (headers + uri.params.as_bytes().len()).min(contact.len());
    out.extend_from_slice(contact.get(..end).unwrap_or_default());
    let unwanted = uri.param(b"method").map(|p| p.name);
    for param in uri.params.iter().filter(|p| Some(p.name) != unwanted) {
        out.push(b';');
        out.extend_from_slice(param.name);
        if let Some(value) = param.value {
            out.push(b'=');
            out.extend_from_slice(value);
        }
    }
}

/// Whether a rule frees new requests from this source of credentials: no rule is looked for in a
/// dialog, but what its first request needed not prove, the others need not either.
fn is_exempt(config: &Config, source: core::net::IpAddr) -> bool {
    config
        .routes
        .iter()
        .any(|rule| rule.auth == Some(false) && in_networks(&rule.when.source, source))
}

/// Whether a header with exactly this value is there. The name is in lower case.
fn has_header(request: &Request<'_>, name: &[u8], value: &[u8]) -> bool {
    let message = &request.message;
    let known = HeaderName::lookup(name);
    let same = |field: &sip_message::Field| message.field_value(field) == value;
    if known == HeaderName::Other {
        message.fields_other(name).any(same)
    } else {
        message.fields_named(known).any(same)
    }
}

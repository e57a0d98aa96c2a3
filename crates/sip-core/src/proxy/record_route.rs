//! Record-Route values of ours, and how they are recognised (RFC 3261 §16.6 step 4, RFC 5658).
//!
//! Each value carries `tz=` and the mark of its dialog ([`super::mark`]). So loose routing serves dialogs
//! that came through here and no others: this server is no open relay.
//!
//! The URIs are SIPS if the Request-URI or Route that leaves is one (RFC 3261 §16.6 step 4, RFC 5630 §5.3).
//! The exception is a side that the request did not pass by TLS.

use alloc::vec::Vec;

use sip_message::header::NameAddr;
use sip_message::{HeaderName, Method, SipUri};

use super::flow_token::{Dialog, RouteFlow, TokenOrigin};
use super::forward::EgressEdits;
use super::hop::Hop;
use super::mark::{Ends, Mark};
use super::path_token::{PathToken, token_in};
use crate::config::{Config, Listener};
use crate::engine::Engine;
use crate::engine::directory::{is_exempt, write_route_uri};
use crate::engine::place::{PlaceId, domain_number};
use crate::engine::request::Request;
use crate::engine::seed::Seed;
use crate::resolve::HostRef;
use crate::transport::Flow;

/// The parts of the Record-Route lines of one request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordRoute<'c> {
    /// The mark of the side that reads the lines first.
    pub(crate) mark: Mark,
    /// The listener at which the request came in.
    pub(crate) ingress: &'c Listener,
    /// The listener by which the request leaves.
    pub(crate) egress: &'c Listener,
    /// Whether the request leaves for a SIPS URI.
    pub(crate) secure: bool,
    /// The token of the flow by which requests of the dialog reach the sender of this request; empty: none is
    /// needed.
    pub(crate) sender: &'c [u8],
    /// The token of the flow to the receiver, in the same way.
    pub(crate) receiver: &'c [u8],
}

/// The decision that this server stays in the path of a dialog.
#[derive(Debug)]
pub(super) struct Stay {
    mark: Mark,
    /// The seed of the caller's mark in the responses.
    pub(super) seed: Option<Seed>,
    /// See [`RecordRoute::sender`].
    sender: Vec<u8>,
    /// See [`RecordRoute::receiver`].
    receiver: Vec<u8>,
}

/// The origin of a Route value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RouteOrigin {
    /// Another host.
    Foreign,
    /// Names this server, without a valid mark.
    OwnHost,
    /// Made by us for this dialog.
    Marked {
        /// The mark of the value: it names the side that the value was made for.
        mark: Mark,
        /// The flow that the value names.
        flow: Option<TokenOrigin>,
    },
    /// A Path of ours, with its token; `None`: no node of ours wrote that.
    Path(Option<PathToken>),
}

impl Engine {
    /// The origin of this Route URI, for a request of this dialog.
    pub(crate) fn route_origin(&self, request: &Request<'_>, uri: &SipUri<'_>) -> RouteOrigin {
        if !self.directory.is_own(&uri.host, uri.port) {
            return RouteOrigin::Foreign;
        }
        let Some(mark) = Mark::of_params(&uri.params) else {
            return match uri.user.and_then(token_in) {
                Some(token) => RouteOrigin::Path(self.read_path_token(token)),
                None => RouteOrigin::OwnHost,
            };
        };
        let tags = [&request.from, &request.to].map(|addr| addr.tag().unwrap_or_default());
        if !mark.is_of(&self.secrets, self.now.unix_ms, request.call_id, tags) {
            return RouteOrigin::OwnHost;
        }
        let [from_tag, to_tag] = tags;
        let caller_tag = if mark.is_of_caller() { from_tag } else { to_tag };
        let dialog = Dialog {
            call_id: request.call_id,
            caller_tag,
        };
        RouteOrigin::Marked {
            mark,
            flow: uri.user.map(|token| self.read_flow_token(token, dialog)),
        }
    }

    /// Whether this server stays in the path of the dialog that a request begins. If a side is reached by its
    /// flow only, this server stays, even if the rule says otherwise.
    pub(super) fn stay(&self, request: &Request<'_>, leaving: &EgressEdits) -> Option<Stay> {
        let call_id = request.call_id;
        let (caller_tag, (mark, seed), flows) = if begins_dialog(request) {
            let flows = [self.flow_of_sender(request), leaving.back];
            if !leaving.policy.record_route && flows.iter().all(Option::is_none) {
                return None;
            }
            let tag = request.from_tag();
            let ends = self.ends(request, leaving);
            let (mark, seed) = Mark::new(&self.secrets, self.now.unix_ms, ends, call_id, tag);
            let below = self.hosts_below(&request.message);
            let seed = seed.and_then(|seed| seed.sealed(&self.secrets, below));
            (tag, (mark, seed), flows)
        } else {
            let (mark, onward) = self.route_of_notifier(request)?;
            let back = self.flow_of_sender(request).map(|flow| RouteFlow {
                to_initiator: false,
                ..flow
            });
            let tag = request.to.tag().unwrap_or_default();
            (
                tag,
                (
                    mark.of_caller(&self.secrets, call_id, [tag, request.from_tag()]),
                    None,
                ),
                [back, onward],
            )
        };
        let dialog = Dialog { call_id, caller_tag };
        let [sender, receiver] = flows.map(|flow| {
            let mut token = Vec::new();
            if let Some(flow) = flow {
                self.write_flow_token(&mut token, &flow, dialog);
            }
            token
        });
        Some(Stay {
            mark,
            seed,
            sender,
            receiver,
        })
    }

    /// The callee's mark, and the flow to the caller, in the Route of a NOTIFY from the callee of a subscription. If
    /// that NOTIFY comes before the 2xx, or from a second fork, its own Record-Route makes the dialog
    /// (RFC 6665 §4.4.1). A NOTIFY in a call makes no dialog, and would only give the caller's mark away.
    fn route_of_notifier(&self, request: &Request<'_>) -> Option<(Mark, Option<RouteFlow>)> {
        if request.method != Method::Notify || request.to.tag().is_none() {
            return None;
        }
        let mut found = None;
        for value in request.message.values(HeaderName::Route) {
            let addr = NameAddr::parse(value.text)?;
            let RouteOrigin::Marked { mark, flow } = self.route_origin(request, &addr.sip_uri()?) else {
                break;
            };
            if mark.is_of_caller() || !mark.is_of_subscription() {
                return None;
            }
            let onward = match flow {
                Some(TokenOrigin::ThisNode(flow)) if flow.to_initiator => Some(flow),
                _ => None,
            };
            let before = found.and_then(|(_, flow)| flow);
            found = Some((mark, onward.or(before)));
        }
        found
    }

    /// The ends of the dialog that a request begins.
    fn ends(&self, request: &Request<'_>, leaving: &EgressEdits) -> Ends {
        let config = &self.config;
        let mut ends = Ends {
            is_subscription: matches!(request.method, Method::Subscribe | Method::Refer),
            ..Ends::default()
        };
        if config
            .domains
            .iter()
            .any(|domain| !domain.auth.methods.is_empty())
        {
            let number = |host| {
                self.directory
                    .domain_of_host(config, &host)
                    .map_or(0, domain_number)
            };
            ends.caller_domain = request.from.sip_uri().map_or(0, |uri| number(uri.host));
            if leaving.is_contact {
                // A 3xx or a contact may have led to a user of another domain.
                ends.callee_domain = match leaving.domain {
                    0 => request.uri.sip().map_or(0, |uri| number(uri.host)),
                    domain => domain,
                };
            }
        }
        ends.caller = self.place_of_caller(request);
        ends.callee = self.place_of_callee(leaving);
        ends
    }

    /// The place to which a request goes: that of its rule, unless a 3xx led elsewhere. A user chooses its
    /// contact, which can only name a denied destination. A contact that is reached by its connection has the
    /// place of its address.
    fn place_of_callee(&self, leaving: &EgressEdits) -> PlaceId {
        let ip = leaving.to.remote.ip();
        let place = leaving.policy.place;
        let is_there = || !leaving.policy.recurse || self.places_of(HostRef::Ip(ip)).contains(&place);
        if place != 0 && is_there() {
            return place;
        }
        match leaving.is_contact && leaving.to.conn.is_none() {
            true => self.denied_place(ip),
            false => self.place_of_address(ip),
        }
    }

    /// The place that a request came from. A trusted or exempt peer may send its calls from an address to
    /// which no calls go. So the peer's Record-Route or Contact is asked first: it names the way back.
    fn place_of_caller(&self, request: &Request<'_>) -> PlaceId {
        let may_name_another = || self.is_trusted(&request.flow) || is_exempt(&self.config, &request.flow);
        if self.directory.has_places() && may_name_another() {
            let message = &request.message;
            let back = message.values(HeaderName::RecordRoute).next();
            let back = [back.map(|value| value.text), message.value(HeaderName::Contact)];
            for value in back.into_iter().flatten() {
                let uri = NameAddr::parse(value).and_then(|addr| addr.sip_uri());
                let places = uri.map(|uri| self.places_of(Hop::of(&uri).host));
                if let Some(place) = places.and_then(|places| places.first().copied()) {
                    return place;
                }
            }
        }
        self.place_of_address(request.flow.remote.ip())
    }
}

/// Whether the responses to a request may begin a dialog.
fn begins_dialog(request: &Request<'_>) -> bool {
    request.to.tag().is_none() && matches!(request.method, Method::Invite | Method::Subscribe | Method::Refer)
}

impl Stay {
    /// The Record-Route lines. `None`: a listener has gone.
    pub(super) fn lines<'a>(
        &'a self,
        config: &'a Config,
        from: Flow,
        leaving: &EgressEdits,
    ) -> Option<RecordRoute<'a>> {
        let listener = |flow: Flow| config.listeners.get(usize::from(flow.listener.0));
        Some(RecordRoute {
            mark: self.mark,
            ingress: listener(from)?,
            egress: listener(leaving.to)?,
            secure: leaving.secure,
            sender: &self.sender,
            receiver: &self.receiver,
        })
    }
}

impl RecordRoute<'_> {
    /// Appends the lines: one, or two if the sides differ (RFC 5658 §5), the egress side on top.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let (ingress, egress) = (self.ingress, self.egress);
        let two = ingress.transport != egress.transport
            || ingress.address.is_ipv4() != egress.address.is_ipv4()
            || ingress.sent_by != egress.sent_by
            || !(self.sender.is_empty() || self.receiver.is_empty());
        if two {
            self.write_one(out, egress, self.receiver, two);
            self.write_one(out, ingress, self.sender, two);
        } else {
            let token = if self.sender.is_empty() {
                self.receiver
            } else {
                self.sender
            };
            self.write_one(out, egress, token, two);
        }
    }

    fn write_one(&self, out: &mut Vec<u8>, listener: &Listener, token: &[u8], two: bool) {
        out.extend_from_slice(b"Record-Route: ");
        write_route_uri(out, listener, token, self.secure);
        if two {
            // Only this server reads `r2`. Other proxies write it, too, so traces read alike.
            out.extend_from_slice(b";r2=on");
        }
        out.extend_from_slice(b";tz=");
        self.mark.write(out);
        out.extend_from_slice(b">\r\n");
    }
}

//! The phase *in-dialog*: Route values of ours come off; a valid mark makes the request part of a dialog (RFC
//! 3261 §16.4).

use sip_message::header::NameAddr;
use sip_message::{HeaderName, Host, Method, Params, Uri};

use crate::engine::Engine;
use crate::engine::place::PlaceId;
use crate::engine::request::Request;
use crate::engine::status::Status;
use crate::proxy::flow_token::{RouteFlow, TokenOrigin};
use crate::proxy::mark::Mark;
use crate::proxy::record_route::RouteOrigin;
use crate::transport::Transport;

/// The real Request-URI, parsed and as written: from the end of Route, or without a `maddr` of ours.
pub(crate) type RealUri<'a> = (Uri<'a>, &'a [u8]);

/// The position of a request in its route.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Position<'a> {
    /// Whether the request has a Route that we issued for its dialog, and a To tag. A caller's ACK or BYE may
    /// lack the tag.
    pub(crate) in_dialog: bool,
    /// The mark of the dialog, from a Route of ours.
    pub(crate) mark: Option<Mark>,
    /// The flow to the receiver, as named by a Route of ours.
    pub(crate) flow: Option<RouteFlow>,
    /// Whether that Route is our Path: the request comes from the registrar behind this edge.
    pub(crate) by_path: bool,
    /// Whether `next_route` is a Service-Route of such a registrar: the rules decide about the request.
    pub(crate) is_service_route: bool,
    /// The first Route value that is not ours.
    pub(crate) next_route: Option<NameAddr<'a>>,
    /// The number of the first Route value that is kept: that of `next_route`.
    pub(crate) kept_from: usize,
    /// The number behind the last Route value that is kept. The last of all is not kept if it became the
    /// Request-URI.
    pub(crate) kept_to: usize,
}

impl Position<'_> {
    /// The guarded place that the mark of the dialog names; `None`: the request is in no dialog.
    pub(crate) fn dialog(&self) -> Option<PlaceId> {
        self.mark.filter(|_| self.in_dialog).map(Mark::place_beyond)
    }
}

impl Engine {
    /// Reads and removes our Route values, and sets the position. Returns the real Request-URI if a strict router
    /// sent the request.
    ///
    /// # Errors
    /// The status to respond with.
    pub(crate) fn take_routes<'a>(
        &mut self,
        request: &Request<'a>,
        position: &mut Position<'a>,
    ) -> Result<Option<RealUri<'a>>, Status<'static>> {
        let message = &request.message;
        if !message.has(HeaderName::Route) {
            return Ok(None);
        }
        let (mut marked, real) = self.undo_strict_route(request)?.unzip();
        let end = match marked {
            Some(_) => message.values(HeaderName::Route).count() - 1,
            None => usize::MAX,
        };
        let mut count = 0;
        for value in message.values(HeaderName::Route).take(end) {
            // Our Path leads to the phone itself.
            if position.by_path {
                return Err(self.foreign_path());
            }
            let bad = Status::bad_request("Malformed Route");
            let addr = NameAddr::parse(value.text).ok_or(bad)?;
            let Ok(uri) = addr.parsed_uri() else {
                return Err(bad);
            };
            let owner = match &uri {
                Uri::Sip(uri) => self.route_origin(request, uri),
                Uri::Tel(_) | Uri::Other { .. } => RouteOrigin::Foreign,
            };
            match owner {
                RouteOrigin::Foreign => {
                    position.next_route = Some(addr);
                    break;
                }
                RouteOrigin::OwnHost => {}
                RouteOrigin::Marked { mark, flow } => {
                    marked = Some(mark);
                    position.flow = flow_onward(mark.is_of_caller(), flow)?.or(position.flow);
                }
                RouteOrigin::Path(token) => {
                    position.flow = Some(self.flow_of_path(request, token)?);
                    position.by_path = true;
                }
            }
            count += 1;
        }
        self.edits.keep_values(message, HeaderName::Route, count..end);
        (position.kept_from, position.kept_to) = (count, end);
        if !position.by_path {
            let target = real.as_ref().map_or(&request.uri, |(uri, _)| uri);
            if position.flow.is_some_and(|flow| self.has_moved(target, &flow)) {
                position.flow = None;
            }
            // §12.1.2: a callee of RFC 2543 has no tag. Calls to such a callee must be acknowledged and end all
            // the same.
            let has_tag = request.to.tag().is_some()
                || (marked.is_some_and(Mark::is_of_caller)
                    && matches!(request.method, Method::Ack | Method::Bye));
            position.mark = marked.filter(|_| has_tag);
            match position.mark {
                Some(_) => position.in_dialog = true,
                None => self.leave_dialog(request, position)?,
            }
        }
        Ok(real)
    }

    /// Whether the user agent that a token leads to has moved to another public address since (RFC 3261 §12.2).
    #[inline(never)]
    fn has_moved(&self, target: &Uri<'_>, route: &RouteFlow) -> bool {
        let moved = |uri| self.leads_past_nat(uri, &route.flow);
        !route.only && target.sip().is_some_and(moved)
    }

    /// Handles a request of a dialog as a new one: its mark and flow token no longer count.
    ///
    /// # Errors
    /// The status to respond with: the request names a route that is not its dialog's.
    pub(super) fn leave_dialog(
        &self,
        request: &Request<'_>,
        position: &mut Position<'_>,
    ) -> Result<(), Status<'static>> {
        position.in_dialog = false;
        position.mark = None;
        position.flow = None;
        position.is_service_route = false;
        if position.next_route.is_some() && !self.may_preload(request) {
            if !self.is_service_route(request, position) {
                return Err(Status::FOREIGN_ROUTE);
            }
            position.is_service_route = true;
        }
        Ok(())
    }

    /// Removes a `maddr` that names this server, with port and transport, if the request came by these
    /// (§16.4). `None`: the Request-URI has no such `maddr`.
    pub(crate) fn without_own_maddr<'a>(&mut self, request: &Request<'a>) -> Option<RealUri<'a>> {
        let mut uri = *request
            .uri
            .sip()
            .filter(|uri| !uri.params.as_bytes().is_empty())?;
        let maddr = uri.params.value(b"maddr").and_then(Host::parse)?;
        let listener = self.config.listeners.get(usize::from(request.flow.listener.0))?;
        let transport = match uri.transport() {
            Some(name) => Transport::parse(name)?,
            None if uri.secure => Transport::Tls,
            None => Transport::Udp,
        };
        let port = uri.port.unwrap_or(transport.default_port());
        let came_so = transport == listener.transport && port == listener.address.port();
        if !came_so || !self.directory.is_own(&maddr, uri.port) {
            return None;
        }
        let source = request.message.source();
        let params = uri.params.as_bytes();
        let params_at = sip_message::chars::span_in(source, params)?.start;
        let host_end = sip_message::chars::span_in(source, uri.host_text)?.end;
        if uri.port.take().is_some() {
            self.edits.delete(host_end..params_at);
        }
        // The parameters that `uri` keeps: those before the first removed one.
        let (mut kept, mut at) = (params.len(), 0);
        for param in params.split_inclusive(|c| *c == b';') {
            let name = param
                .split(|c| matches!(c, b'=' | b';'))
                .next()
                .unwrap_or_default();
            let from = at;
            at += param.len();
            if name.eq_ignore_ascii_case(b"maddr") || name.eq_ignore_ascii_case(b"transport") {
                // The parameter goes with the semicolon before it, not with the one behind it.
                let start = from.saturating_sub(1);
                kept = kept.min(start);
                let end = at - usize::from(param.ends_with(b";"));
                self.edits.delete(params_at + start..params_at + end);
            }
        }
        uri.params = Params::new(params.get(..kept).unwrap_or_default());
        Some((Uri::Sip(uri), request.uri_text))
    }

    /// Whether a new request from this source may carry a preloaded Route.
    fn may_preload(&self, request: &Request<'_>) -> bool {
        let listener = self.config.listeners.get(usize::from(request.flow.listener.0));
        listener.is_some_and(|l| l.preloaded_route) && self.is_trusted(&request.flow)
    }

    /// Undoes strict routing (§16.4, first step). A strict router before us put our Record-Route into the
    /// Request-URI and the real URI at the end of Route. Returns our mark and the real URI, which still has
    /// to be removed from Route. `None`: the Request-URI has no mark of ours.
    fn undo_strict_route<'a>(
        &mut self,
        request: &Request<'a>,
    ) -> Result<Option<(Mark, RealUri<'a>)>, Status<'static>> {
        let Uri::Sip(uri) = &request.uri else {
            return Ok(None);
        };
        if !uri.is_loose_route() {
            return Ok(None);
        }
        let RouteOrigin::Marked { mark, .. } = self.route_origin(request, uri) else {
            return Ok(None);
        };
        let message = request.message;
        let Some(last) = message.values(HeaderName::Route).last() else {
            return Ok(None);
        };
        let bad = Status::bad_request("Malformed Route");
        let addr = NameAddr::parse(last.text).ok_or(bad)?;
        let uri = addr.parsed_uri().map_err(|_| bad)?;
        if let Some(span) = sip_message::chars::span_in(message.source(), request.uri_text) {
            self.edits.replace(span, addr.uri);
        }
        Ok(Some((mark, (uri, addr.uri))))
    }
}

/// The flow to the receiver that a token in our Route names. A token of the sender's own side names none (RFC
/// 5626 §5.3.1).
///
/// # Errors
/// The status to respond with: 430 for a flow that cannot be had here, 403 for a token that is not ours.
fn flow_onward(from_caller: bool, token: Option<TokenOrigin>) -> Result<Option<RouteFlow>, Status<'static>> {
    match token {
        None => Ok(None),
        Some(TokenOrigin::Forged) => Err(Status::FORGED_TOKEN),
        Some(TokenOrigin::ThisNode(route) | TokenOrigin::OtherNode(route))
            if route.to_initiator == from_caller =>
        {
            Ok(None)
        }
        Some(TokenOrigin::ThisNode(route)) => Ok(Some(route)),
        Some(TokenOrigin::OtherNode(_)) => Err(Status::FLOW_FAILED),
    }
}

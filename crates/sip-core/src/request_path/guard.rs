//! The end of the phase *in-dialog*: requests of a dialog that go by the rules all the same, for the sake of
//! guarded places ([`crate::engine::place`]).

use sip_message::header::NameAddr;
use sip_message::{Method, Uri};

use super::in_dialog::Position;
use crate::engine::Engine;
use crate::engine::destination::source_of;
use crate::engine::request::Request;
use crate::proxy::allowed::may_cost;
use crate::proxy::hop::Hop;

impl Engine {
    /// Whether a request of a dialog goes by the rules, as a new request does. Such a request has a method
    /// that may begin something that costs, and a next hop that is a user of ours, this server, or a guarded
    /// place that its mark does not name.
    pub(crate) fn goes_as_new(&self, request: &Request<'_>, position: &Position<'_>) -> bool {
        let Some(mark) = position
            .mark
            .filter(|_| position.in_dialog && may_cost(request.method))
        else {
            return false;
        };
        if mark.is_of_subscription() && request.method != Method::Subscribe {
            return true;
        }
        let route = position.next_route.as_ref().map(NameAddr::parsed_uri);
        let target = match &route {
            Some(Ok(uri)) => uri,
            Some(Err(_)) => return true,
            // The flow is the only way, and it is the dialog's.
            None if position
                .flow
                .is_some_and(|flow| flow.only || !flow.flow.transport.is_reliable()) =>
            {
                return false;
            }
            None => &request.uri,
        };
        let Uri::Sip(uri) = target else {
            return false;
        };
        self.directory.is_own(&uri.host, uri.port)
            || self.directory.domain_of(&self.config, uri).is_some()
            || match position.flow {
                // The request goes by the flow. If the flow has gone, `keep_allowed` checks the URI's addresses.
                Some(_) => self.is_guarded(Hop::of(uri).host, mark.place_beyond()),
                None => self.is_beyond(Hop::of(uri).host, mark.place_beyond(), source_of(&request.flow)),
            }
    }
}

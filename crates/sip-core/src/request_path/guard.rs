//! Phase 3, its end: what of a dialog goes by the rules all the same, for the sake of guarded places
//! ([`crate::engine::place`]).

use sip_message::header::NameAddr;
use sip_message::{Method, Uri};

use super::in_dialog::Position;
use crate::engine::Engine;
use crate::engine::request::Request;
use crate::proxy::hop::Hop;
use crate::resolve::{Candidates, HostRef};

impl Engine {
    /// Whether name service led a request of a dialog to a guarded place that its mark does not name.
    pub(crate) fn leads_astray(
        &self,
        request: &Request<'_>,
        position: &Position<'_>,
        hop: &Hop<'_>,
        candidates: &Candidates,
    ) -> bool {
        let mark = position
            .mark
            .filter(|_| position.in_dialog && may_cost(request.method));
        let is_named = matches!(hop.host, HostRef::Name(_));
        mark.filter(|_| is_named).is_some_and(|mark| {
            let named = mark.place_beyond();
            let mut addresses = candidates.iter().map(|c| HostRef::Ip(c.address.ip()));
            addresses.any(|ip| self.is_guarded(ip, named))
        })
    }

    /// Whether a request of a dialog goes by the rules, as a new one does: it may begin something that costs, and
    /// what leads it on is a user of ours, this server, or a guarded place that its mark does not name.
    pub(crate) fn goes_as_new(&self, request: &Request<'_>, position: &Position<'_>) -> bool {
        let Some(mark) = position
            .mark
            .filter(|_| position.in_dialog && may_cost(request.method))
        else {
            return false;
        };
        let route = position.next_route.as_ref().map(NameAddr::parsed_uri);
        let target = match &route {
            Some(Ok(uri)) => uri,
            Some(Err(_)) => return true,
            // Its flow is the only way, and the dialog's.
            None if position.flow.is_some_and(|flow| flow.only) => return false,
            None => &request.uri,
        };
        let Uri::Sip(uri) = target else {
            return false;
        };
        self.directory.is_own(&uri.host, uri.port)
            || self.directory.domain_of(&self.config, uri).is_some()
            || self.is_guarded(Hop::of(uri).host, mark.place_beyond())
    }
}

/// Whether a request of this method may begin something at its target, in a dialog, too. The others end a call or
/// belong to one that is there: a target must get them wherever it has moved to.
const fn may_cost(method: Method<'_>) -> bool {
    match method {
        // A CANCEL goes where its INVITE went.
        Method::Invite
        | Method::Cancel
        | Method::Refer
        | Method::Subscribe
        | Method::Message
        | Method::Other(_) => true,
        Method::Ack
        | Method::Bye
        | Method::Info
        | Method::Notify
        | Method::Options
        | Method::Prack
        | Method::Publish
        | Method::Register
        | Method::Update => false,
    }
}

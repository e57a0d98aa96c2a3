//! The end of phase 3: which requests of a dialog go by the rules all the same, and which addresses are denied to them,
//! for the sake of guarded places ([`crate::engine::place`]).

use core::net::IpAddr;

use sip_message::header::NameAddr;
use sip_message::{Method, Uri};

use super::in_dialog::Position;
use crate::engine::Engine;
use crate::engine::destination::source_of;
use crate::engine::place::PlaceId;
use crate::engine::reply::Status;
use crate::engine::request::Request;
use crate::proxy::hop::{Hop, Lead};
use crate::proxy::mark::Mark;
use crate::resolve::{Candidate, Candidates, HostRef};

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
            let (named, from) = (mark.place_beyond(), source_of(&request.flow));
            let mut addresses = candidates.iter().map(|c| HostRef::Ip(c.address.ip()));
            addresses.any(|ip| self.is_beyond(ip, named, from))
        })
    }

    /// Removes the denied addresses ([`crate::engine::destination`]) of a next hop. Returns whether an address is left.
    pub(crate) fn keep_allowed(
        &mut self,
        request: &Request<'_>,
        position: &Position<'_>,
        hop: &Hop<'_>,
        candidates: &mut Candidates,
    ) -> bool {
        let is_denied = |engine: &Self, candidate: &Candidate| match hop.lead {
            Lead::Believed => false,
            Lead::Request => {
                let (ip, from) = (candidate.address.ip(), source_of(&request.flow));
                let is_beyond = || {
                    let named = position.mark.map_or(0, Mark::place_beyond);
                    engine.is_beyond(HostRef::Ip(ip), named, from)
                };
                engine.is_own_socket(candidate.address) || (engine.is_denied(ip, from) && is_beyond())
            }
            Lead::Contact(from) => engine.is_denied_target(hop.host, candidate.address, from),
        };
        let may_be_denied = match hop.lead {
            Lead::Believed => false,
            // A rule that sends requests on by the Request-URI is the operator's wish.
            Lead::Request => position.in_dialog,
            Lead::Contact(_) => true,
        };
        // Nearly always no address is denied.
        if may_be_denied && candidates.iter().any(|candidate| is_denied(self, candidate)) {
            let before = candidates.len();
            candidates.retain(|candidate| !is_denied(self, candidate));
            self.counters.destinations_denied += (before - candidates.len()) as u64;
        }
        !candidates.is_empty()
    }

    /// Whether a host is a guarded place, or denied to sources at `from`, to which a mark that names `named` does not
    /// lead.
    fn is_beyond(&self, host: HostRef<'_>, named: PlaceId, from: IpAddr) -> bool {
        match host {
            HostRef::Ip(ip) if self.is_denied(ip, from) => {
                self.denied_place(ip) != named && !self.places_of(host).contains(&named)
            }
            HostRef::Ip(_) | HostRef::Name(_) => self.is_guarded(host, named),
        }
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
        if mark.is_of_subscription() && request.method != Method::Subscribe {
            return true;
        }
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
            || match position.flow {
                // The request goes by the flow. If the flow has gone, `keep_allowed` checks the URI's addresses.
                Some(_) => self.is_guarded(Hop::of(uri).host, mark.place_beyond()),
                None => self.is_beyond(Hop::of(uri).host, mark.place_beyond(), source_of(&request.flow)),
            }
    }
}

/// The status that refuses a request if no address of its next hop is allowed.
pub(super) const fn denied(hop: &Hop<'_>) -> Status<'static> {
    match hop.lead {
        Lead::Contact(_) => Status::CONTACT_DENIED,
        Lead::Believed | Lead::Request => Status::DESTINATION_DENIED,
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
        | Method::Publish
        | Method::Register
        | Method::Other(_) => true,
        Method::Ack
        | Method::Bye
        | Method::Info
        | Method::Notify
        | Method::Options
        | Method::Prack
        | Method::Update => false,
    }
}

//! The check of the addresses that a request may be sent to. It may not go to denied destinations
//! ([`crate::engine::destination`]), nor to guarded places ([`crate::engine::place`]) that its dialog does
//! not name.

use core::net::IpAddr;

use sip_message::Method;

use super::hop::{Hop, Lead};
use crate::engine::Engine;
use crate::engine::destination::source_of;
use crate::engine::place::PlaceId;
use crate::engine::request::Request;
use crate::engine::status::Status;
use crate::resolve::{Candidate, Candidates, HostRef};

impl Engine {
    /// Whether name service led a request of a dialog to a guarded place that its mark does not name. `dialog` is the
    /// place that the mark names; `None`: the request is in no dialog.
    pub(crate) fn leads_astray(
        &self,
        request: &Request<'_>,
        dialog: Option<PlaceId>,
        hop: &Hop<'_>,
        candidates: &Candidates,
    ) -> bool {
        let named = dialog.filter(|_| may_cost(request.method));
        let is_name = matches!(hop.host, HostRef::Name(_));
        named.filter(|_| is_name).is_some_and(|named| {
            let from = source_of(&request.flow);
            let mut addresses = candidates.iter().map(|c| HostRef::Ip(c.address.ip()));
            addresses.any(|ip| self.is_beyond(ip, named, from))
        })
    }

    /// Removes the denied addresses ([`crate::engine::destination`]) of a next hop. Returns whether an address is left.
    pub(crate) fn keep_allowed(
        &mut self,
        request: &Request<'_>,
        dialog: Option<PlaceId>,
        hop: &Hop<'_>,
        candidates: &mut Candidates,
    ) -> bool {
        let is_denied = |engine: &Self, candidate: &Candidate| match hop.lead {
            Lead::Believed => false,
            Lead::Request => {
                let (ip, from) = (candidate.address.ip(), source_of(&request.flow));
                let is_beyond = || engine.is_beyond(HostRef::Ip(ip), dialog.unwrap_or(0), from);
                engine.is_own_socket(candidate.address) || (engine.is_denied(ip, from) && is_beyond())
            }
            Lead::Contact(from) => engine.is_denied_target(hop.host, candidate.address, from),
        };
        let may_be_denied = match hop.lead {
            Lead::Believed => false,
            // A rule that sends requests on by the Request-URI is the operator's wish.
            Lead::Request => dialog.is_some(),
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

    /// Whether a mark that names `named` does not lead to this host. The host is a guarded place, or denied
    /// to sources at `from`.
    pub(crate) fn is_beyond(&self, host: HostRef<'_>, named: PlaceId, from: IpAddr) -> bool {
        match host {
            HostRef::Ip(ip) if self.is_denied(ip, from) => {
                self.denied_place(ip) != named && !self.places_of(host).contains(&named)
            }
            HostRef::Ip(_) | HostRef::Name(_) => self.is_guarded(host, named),
        }
    }
}

/// The status that refuses a request if no address of its next hop is allowed.
pub(crate) const fn denied(hop: &Hop<'_>) -> Status<'static> {
    match hop.lead {
        Lead::Contact(_) => Status::CONTACT_DENIED,
        Lead::Believed | Lead::Request => Status::DESTINATION_DENIED,
    }
}

/// Whether a request of this method may begin something that costs at its target, even in a dialog. Requests
/// of other methods end a call or belong to an existing one: a target must get them wherever it has moved to.
pub(crate) const fn may_cost(method: Method<'_>) -> bool {
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

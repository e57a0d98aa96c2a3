//! Registered contacts as targets (RFC 3261 §16.5, RFC 3327 §5.3). Contacts are looked up, resolved if they
//! lead back to this server, and reached by their flow, their Path or their URI.

use alloc::boxed::Box;

use sip_message::{Method, Uri};
use smallvec::SmallVec;

use super::Progress;
use super::route::{Reach, RoutePlan};
use crate::config::StateMode;
use crate::engine::request::Request;
use crate::engine::status::Status;
use crate::engine::{Engine, LocationTarget, is_sips};
use crate::proxy::forward::ContactRef;
use crate::proxy::hop::{Hop, first_hop};

/// The most addresses-of-record that are looked up for one request because a contact names one.
const MAX_OWN: usize = 16;

impl Engine {
    /// Sends a request to the registered contacts (§16.5, RFC 3327 §5.3).
    pub(super) fn follow_location(
        &mut self,
        request: &Request<'_>,
        progress: Progress,
        plan: &RoutePlan<'_>,
    ) {
        let count = self.look_up(request);
        let count = self.resolve_own(request, count);
        if count == 0 {
            // A user without contacts and an unknown user get the same status.
            return self.no_way(request, progress, Status::NOT_REGISTERED);
        }
        let mut found = core::mem::take(&mut self.found);
        for target in found.iter_mut().take(count) {
            target.settle_scheme(request.is_secure());
        }
        // A stateless request that waited for a back-end has a transaction. Other copies of the request have
        // none, and go to one target by the branch that this copy gets as well.
        let stateless = plan.state == StateMode::Stateless;
        let one =
            stateless || plan.position.in_dialog || matches!(request.method, Method::Ack | Method::Cancel);
        match found.get(..count).unwrap_or_default() {
            [] => {}
            [first, rest @ ..] if one || rest.is_empty() => {
                self.send_to_contact(request, progress, plan, first);
            }
            contacts => self.fork(request, progress, plan, contacts),
        }
        self.found = found;
    }

    /// Copies the live bindings of the Request-URI to `self.found`, the best first, and returns their number.
    /// For a SIPS URI, only SIPS bindings count (RFC 5630 §5.3).
    pub(super) fn look_up(&mut self, request: &Request<'_>) -> usize {
        match self.own_aor(&request.uri) {
            Some(aor) => self.look_up_aor(&aor, request.is_secure(), leaves_lost(request), 0),
            None => 0,
        }
    }

    /// Replaces contacts that lead back to this server by the contacts of the users that they name. If a
    /// request were sent to ten such contacts, it would become ten, each with ten again. A contact that names
    /// no user of ours is dropped.
    fn resolve_own(&mut self, request: &Request<'_>, count: usize) -> usize {
        let secure = request.is_secure();
        let (mut count, mut at) = (count, 0);
        let mut seen: SmallVec<[Box<[u8]>; 2]> = SmallVec::new();
        while at < count {
            let Some(target) = self.found.get(at).filter(|target| self.leads_back(target)) else {
                at += 1;
                continue;
            };
            self.counters.contacts_own += 1;
            if seen.is_empty() {
                seen.extend(self.own_aor(&request.uri));
            }
            let (q_milli, secure) = (target.q_milli, secure || is_sips(&target.contact));
            let aor = Uri::parse(&target.contact)
                .ok()
                .and_then(|uri| self.own_aor(&uri));
            // The replaced contact moves behind the targets in use.
            if let Some(targets) = self.found.get_mut(at..count) {
                targets.rotate_left(1);
            }
            count -= 1;
            let Some(aor) = aor.filter(|aor| seen.len() <= MAX_OWN && !seen.contains(aor)) else {
                continue;
            };
            let from = count;
            count = self.look_up_aor(&aor, secure, leaves_lost(request), from);
            seen.push(aor);
            // They ring when the replaced contact would have.
            for target in self.found.iter_mut().take(count).skip(from) {
                target.q_milli = q_milli;
            }
        }
        if !seen.is_empty()
            && let Some(targets) = self.found.get_mut(..count)
        {
            targets.sort_by_key(|target| core::cmp::Reverse(target.q_milli));
        }
        count
    }

    fn send_to_contact(
        &mut self,
        request: &Request<'_>,
        progress: Progress,
        plan: &RoutePlan<'_>,
        target: &LocationTarget,
    ) {
        let contact = Some(ContactRef {
            uri: &target.contact,
            path: &target.path,
            domain: target.domain,
        });
        if !target.path.is_empty() {
            return match first_hop(&target.path) {
                Some(hop) => self.locate_and_send(request, progress, plan, hop, contact),
                None => self.refuse(request, progress.server, Status::PATH_UNUSABLE),
            };
        }
        let secure = target.secure;
        match self.usable_flow(target.flow, secure) {
            Some(flow) => {
                let flow_only = target.flow_only();
                self.send(
                    request,
                    progress,
                    plan,
                    Reach::Registered(flow, flow_only),
                    contact,
                );
            }
            None if target.only_flow => {
                self.no_way(request, progress, Status::CONTACT_FLOW_CLOSED);
            }
            None => match Uri::parse(&target.contact) {
                Ok(Uri::Sip(uri)) => match Hop::of_contact(&uri, secure, Some(target.flow.remote.ip())) {
                    Some(hop) => self.locate_and_send(request, progress, plan, hop, contact),
                    None => self.refuse(request, progress.server, Status::CONTACT_UNUSABLE),
                },
                _ => self.refuse(request, progress.server, Status::CONTACT_UNUSABLE),
            },
        }
    }
}

/// Whether contacts that no longer answer pings are left out. A CANCEL or ACK without state, and a request of a dialog, go where
/// their INVITE went, which may have been before.
fn leaves_lost(request: &Request<'_>) -> bool {
    request.to.tag().is_none() && !matches!(request.method, Method::Ack | Method::Cancel)
}

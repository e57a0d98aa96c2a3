//! Registered contacts, looked up for a request: their flows, and targets made of them.

use alloc::boxed::Box;

use sip_message::{Host, Uri};

use super::context::Target;
use super::destination::source_of;
use super::directory::address_of_record;
use super::place::{DomainNumber, domain_number};
use super::{Engine, LocationTarget, is_sips};
use crate::activity::Component;
use crate::config::Domain;
use crate::transport::Flow;

/// The most registered contacts that [`Engine::found`] holds.
const MAX_CONTACTS: usize = 64;

impl Engine {
    /// The domain of ours that a Request-URI belongs to. `None` if `maddr` leads to another server (§16.5:
    /// then nothing but the Request-URI itself is a target).
    pub(crate) fn own_domain_of(&self, uri: &Uri<'_>) -> Option<&Domain> {
        let uri = uri.sip().filter(|uri| !uri.params.has(b"maddr"))?;
        self.directory.domain_of(&self.config, uri)
    }

    /// The address-of-record that a URI names, if its domain is ours.
    pub(crate) fn own_aor(&self, uri: &Uri<'_>) -> Option<Box<[u8]>> {
        let domain = self.own_domain_of(uri)?;
        let user = uri.sip()?.user?;
        Some(address_of_record(user, domain))
    }

    /// Appends the live bindings of an address-of-record, if asked for without those that no longer answer pings, to the first `count` targets in `self.found`. Returns the
    /// new count.
    pub(crate) fn look_up_aor(
        &mut self,
        aor: &[u8],
        secure: bool,
        leaves_lost: bool,
        mut count: usize,
    ) -> usize {
        let before = self.activity.enter(Component::Location);
        let now = self.now.unix_s();
        let room = MAX_CONTACTS.saturating_sub(count);
        let first = count;
        let found = &mut self.found;
        self.shared.read_bindings(aor, &mut |record| {
            let live = record
                .bindings()
                .filter_map(Result::ok)
                .filter(|b| b.expires_unix_s > now && (!secure || is_sips(b.contact)) && !b.is_lost());
            for binding in live.take(room) {
                match found.get_mut(count) {
                    Some(target) => target.set(&binding),
                    None => found.push(LocationTarget::new(&binding)),
                }
                count += 1;
            }
        });
        if leaves_lost {
            count = first + self.leave_lost(first, count);
        }
        let domain = self.domain_of_aor(aor);
        for target in self.found.iter_mut().take(count).skip(first) {
            target.domain = domain;
        }
        self.activity.enter(before);
        count
    }

    /// Moves the contacts behind NATs that no longer answer pings behind the others of this range. Returns how many others
    /// there are.
    fn leave_lost(&mut self, first: usize, end: usize) -> usize {
        if self.config.pings.is_none() || !self.shared.has_lost_flows() {
            return end - first;
        }
        let mut kept = first;
        for at in first..end {
            let Some(target) = self.found.get(at) else { break };
            let has_path = !target.path.is_empty();
            if !has_path && self.is_flow_lost(&target.flow) {
                self.counters.contacts_unreachable += 1;
                continue;
            }
            self.found.swap(kept, at);
            kept += 1;
        }
        kept - first
    }

    /// The number of the domain of an address-of-record; 0 if no domain asks for credentials.
    fn domain_of_aor(&self, aor: &[u8]) -> DomainNumber {
        let mut domains = self.config.domains.iter();
        if domains.all(|domain| domain.auth.methods.is_empty()) {
            return 0;
        }
        let host = memchr::memrchr(b'@', aor).and_then(|at| aor.get(at + 1..));
        let host = host.and_then(Host::parse);
        let domain = host.and_then(|host| self.directory.domain_of_host(&self.config, &host));
        domain.map_or(0, domain_number)
    }

    /// Whether a request to this contact would come back to this server.
    pub(crate) fn leads_back(&self, target: &LocationTarget) -> bool {
        let has_way = !target.path.is_empty()
            || target.only_flow
            || self.usable_flow(target.flow, target.secure).is_some();
        !has_way
            && matches!(
                Uri::parse(&target.contact),
                Ok(Uri::Sip(uri)) if !uri.params.has(b"maddr") && self.directory.is_own(&uri.host, uri.port)
            )
    }

    /// The flow of a registration, if it can be used: through the phone's NAT, on its connection. `None` if
    /// its listener is gone, or if it was a stream and this server has been restarted since. `None`, too, if
    /// TLS is needed and the flow has none.
    pub(crate) fn usable_flow(&self, flow: Flow, secure: bool) -> Option<Flow> {
        let lost =
            (flow.transport.is_reliable() && flow.conn.is_none()) || (secure && !flow.transport.is_secure());
        let known = self.config.listeners.get(usize::from(flow.listener.0)).is_some();
        (known && !lost).then_some(flow)
    }

    /// Makes a target of a registered contact.
    pub(crate) fn contact_target(&self, contact: &LocationTarget, order: u16) -> Target {
        let flow = match contact.path.is_empty() {
            true => self.usable_flow(contact.flow, contact.secure),
            false => None,
        };
        Target {
            path: Box::from(contact.path.as_slice()),
            flow,
            // The address of a UDP registration is the only one to try.
            located: contact.only_flow || flow.is_some_and(|f| !f.transport.is_reliable()),
            flow_only: contact.flow_only(),
            secure: contact.secure,
            is_contact: true,
            domain: contact.domain,
            from: Some(source_of(&contact.flow)),
            ..Target::new(Box::from(contact.contact.as_slice()), order)
        }
    }
}

//! This server as an edge before another registrar (RFC 3327, RFC 5626 §5.1): the Path of a relayed REGISTER, and what is
//! kept of its 200.
//!
//! The bindings that the other registrar grants stand in the location beside those that are registered here. Lists
//! and counts show them, but no request is routed by them: their domain is not ours.

use alloc::boxed::Box;
use alloc::vec::Vec;

use sip_message::header::NameAddr;
use sip_message::{HeaderName, Message, Method};

use super::flow_token::RouteFlow;
use super::forward::EgressEdits;
use crate::config::Durability;
use crate::engine::Engine;
use crate::engine::directory::write_route_uri;
use crate::engine::request::Request;
use crate::engine::stored::{MAX_AOR, encoded};
use crate::event::Event;
use crate::location::AorRecord;
use crate::location::aor::canonical_aor;
use crate::registrar::{Effect, Registration, Rejection};
use crate::transaction::table::ServerKey;
use crate::transport::{Flow, Transport};

/// What a phone behind this edge says of its flow in a REGISTER.
#[derive(Clone, Copy, Debug)]
struct Outbound {
    /// The REGISTER makes a flow (RFC 5626 §4.2): a Contact has `reg-id` and `+sip.instance`.
    registers_flow: bool,
    /// The phone is reached by its flow only, in dialogs, too.
    is_only_way: bool,
}

impl Outbound {
    fn of(request: &Request<'_>) -> Self {
        let mut found = Self {
            registers_flow: false,
            is_only_way: matches!(request.flow.transport, Transport::Ws | Transport::Wss),
        };
        for value in request.message.values(HeaderName::Contact) {
            let Some(addr) = NameAddr::parse(value.text) else {
                continue;
            };
            found.registers_flow |= addr.params.has(b"reg-id") && addr.params.has(b"+sip.instance");
            found.is_only_way |= addr.sip_uri().is_some_and(|uri| uri.params.has(b"ob"));
        }
        found.is_only_way |= found.registers_flow;
        found
    }
}

/// Whether another proxy, with a way of its own to the phone, stands between the phone and this server.
fn is_behind_proxy(message: &Message<'_>) -> bool {
    message.values(HeaderName::Via).nth(1).is_some() || message.has(HeaderName::Path)
}

impl Engine {
    /// Writes the Path of a REGISTER that leaves: a URI of ours on the registrar's side, with the flow of the
    /// REGISTER as a path token. A phone behind another proxy is reached by the Path of that proxy.
    #[inline(never)] // Its frame would be paid for with each request.
    pub(super) fn write_path(&mut self, request: &Request<'_>, leaving: &EgressEdits) {
        let message = &request.message;
        let egress = self.config.listeners.get(usize::from(leaving.to.listener.0));
        let Some(egress) = egress.filter(|_| !is_behind_proxy(message)) else {
            return;
        };
        let outbound = Outbound::of(request);
        let route = RouteFlow {
            flow: request.flow,
            only: outbound.is_only_way,
            to_initiator: false,
        };
        let mut token = Vec::with_capacity(64);
        self.write_path_token(&mut token, &route, leaving.policy.place);
        self.edits.insert_with(message.headers_end_offset(), |out| {
            out.extend_from_slice(b"Path: ");
            write_route_uri(out, egress, &token, leaving.secure);
            // RFC 5626 §5.1.
            if outbound.registers_flow {
                out.extend_from_slice(b";ob");
            }
            out.extend_from_slice(b">\r\n");
        });
    }

    /// If this is the 200 to a relayed REGISTER, keeps the bindings that it grants. The REGISTER is the request of this
    /// server transaction.
    #[inline(never)]
    pub(super) fn keep_registration(&mut self, server: ServerKey, response: &Message<'_>) {
        if !response.cseq().is_ok_and(|cseq| cseq.method == Method::Register) {
            return;
        }
        self.with_server_request(server, |engine, request| {
            let kept = engine.keep_bindings(request, response);
            let counter = match kept {
                Ok(()) => &mut engine.counters.relayed_kept,
                Err(_) => &mut engine.counters.relayed_not_kept,
            };
            *counter += 1;
        });
    }

    fn keep_bindings(&mut self, request: &Request<'_>, response: &Message<'_>) -> Result<(), Rejection> {
        let aor = self.foreign_aor(&request.to).ok_or(Rejection::Bad("Not Kept"))?;
        let limit = self.config.limits.contacts_per_aor;
        // The Path leads to the connection, and the token in it says which. A binding that named it, too, would have to
        // learn its end, which may have come before the 200.
        let flow = Flow {
            conn: None,
            ..request.flow
        };
        let message = &request.message;
        let registration = Registration::read_relayed(message, flow, limit, self.now, response)?;
        let room = self.room_for_registrations();
        let is_stored = self.config.registrar.durability != Durability::Memory;
        let mut outcome = Err(Rejection::Bad("Not Kept"));
        self.shared.update_bindings(&aor, &mut |record: &mut AorRecord| {
            let changed = room.change(record, |record| registration.apply(record, limit, &mut |_| {}));
            outcome = changed.map(|effect| {
                let saved = (is_stored && effect == Effect::Changed).then(|| encoded(record));
                (effect, record.bindings.len(), saved, record.version)
            });
        });
        let counter = &mut self.counters.limited_location;
        let (effect, contacts, saved, version) = outcome.inspect_err(|rejection| {
            *counter += u64::from(*rejection == Rejection::Full);
        })?;
        if effect == Effect::Nothing {
            return Ok(());
        }
        if let Some(record) = saved {
            self.save_later(&aor, record, version);
        }
        self.note_flow_registered(&flow);
        self.event(Event::Registered {
            aor,
            source: flow.remote,
            contacts: contacts as u32,
        });
        Ok(())
    }

    /// The address-of-record in a domain that is not ours. `None`: it is none, or too long to be kept.
    fn foreign_aor(&self, to: &NameAddr<'_>) -> Option<Box<[u8]>> {
        let uri = to.sip_uri()?;
        if self.directory.domain_of_host(&self.config, &uri.host).is_some() {
            return None;
        }
        let host = uri.host_text.strip_suffix(b".").unwrap_or(uri.host_text);
        let mut aor = Vec::new();
        let is_user = canonical_aor(&uri, &host.to_ascii_lowercase(), &mut aor);
        (is_user && aor.len() <= MAX_AOR).then(|| aor.into_boxed_slice())
    }
}

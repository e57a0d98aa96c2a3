//! The phase *register*: authorization, then [`crate::registrar`], then the store (RFC 3261 §10.3). A REGISTER to
//! a domain that is not ours goes on by the rules ([`super::edge`]).

use alloc::boxed::Box;
use alloc::vec::Vec;

use sip_message::HeaderName;
use sip_message::header::NameAddr;

use super::Progress;
use super::in_dialog::Position;
use crate::activity::Component;
use crate::config::Durability;
use crate::engine::Engine;
use crate::engine::destination::source_of;
use crate::engine::directory::address_of_record;
use crate::engine::reply::Reply;
use crate::engine::request::{Authorized, Request};
use crate::engine::status::Status;
use crate::engine::stored::{MAX_AOR, encoded};
use crate::engine::waiting::{Parked, PendingOk, Purpose};
use crate::event::Event;
use crate::location::{AorRecord, codec};
use crate::proxy::hop::Hop;
use crate::query::QueryKind;
use crate::registrar::{Effect, Registration, Rejection};
use crate::resolve::HostRef;
use crate::transport::Proof;

/// The effect of a REGISTER on its record, found under the record's lock.
struct Applied {
    effect: Effect,
    /// The bindings that the REGISTER replaced or removed, as an encoded record for a rollback. `None`: there
    /// is nothing to roll back.
    lost: Option<Box<[u8]>>,
    /// The record after the REGISTER, encoded; `None`: nothing is stored.
    after: Option<Box<[u8]>>,
    version: u64,
    contacts: usize,
    /// Whether the record has a binding made over the connection of the request.
    is_here: bool,
}

impl Engine {
    /// Runs the phase *register* and all that follows for a REGISTER.
    pub(crate) fn register(&mut self, request: &Request<'_>, position: &Position<'_>, progress: Progress) {
        let config = self.config.clone();
        // §10.3 step 1: the Request-URI names a domain of ours.
        let named = request
            .uri
            .sip()
            .and_then(|uri| self.directory.domain_of(&config, uri));
        let Some(domain) = named else {
            return self.relay_register(request, position, progress);
        };
        let mut progress = progress;
        if domain.auth.asks(request.method.as_bytes(), false) {
            progress.authorized = self.authorize(request, progress, domain);
            if progress.authorized.is_none() {
                return;
            }
        }
        self.activity.enter(Component::Location);
        // §10.3 step 5: To names the address-of-record, in the same domain.
        let record_of = request.to.sip_uri().and_then(|uri| {
            let its_domain = self.directory.domain_of_host(&config, &uri.host)?;
            let user = uri.user?;
            (its_domain.name == domain.name).then(|| address_of_record(user, domain))
        });
        let Some(aor) = record_of else {
            self.counters.registrations_refused += 1;
            return self.refuse(request, progress.server, Status::NO_SUCH_AOR);
        };
        if let Err(rejection) = self.register_aor(request, progress, &aor) {
            self.reject(request, progress, rejection);
        }
    }

    /// Refuses a REGISTER.
    pub(super) fn reject(&mut self, request: &Request<'_>, progress: Progress, rejection: Rejection) {
        self.counters.registrations_refused += 1;
        let mut extra = Vec::new();
        rejection.write_headers(&request.message, &mut extra);
        self.refuse_with(request, progress.server, rejection.into(), &extra);
    }

    fn register_aor(
        &mut self,
        request: &Request<'_>,
        progress: Progress,
        aor: &[u8],
    ) -> Result<(), Rejection> {
        if aor.len() > MAX_AOR {
            return Err(Rejection::Bad("Too Long Address-Of-Record"));
        }
        let limit = self.config.limits.contacts_per_aor;
        let policy = self.config.registrar;
        let registration = Registration::read(&request.message, request.flow, &policy, limit, self.now)?;
        self.believes_way(request, progress)?;
        let mut headers = Vec::with_capacity(256);
        let durable = policy.durability == Durability::Commit;
        let conn = request.flow.conn;
        let room = self.room_for_registrations();
        let (now, new_addresses) = (self.now.instant, &mut self.new_addresses);
        let mut outcome = Err(Rejection::Bad("Not Registered"));
        self.shared.update_bindings(aor, &mut |record: &mut AorRecord| {
            let mut lost = AorRecord::default();
            headers.clear();
            let Some(new) = new_addresses.new_among(now, aor, registration.new_hosts(record)) else {
                outcome = Err(Rejection::TooManyNew);
                return;
            };
            let applied = room.change(record, |record| {
                registration.apply(record, limit, &mut |binding| {
                    if durable {
                        lost.bindings.push(binding);
                    }
                })
            });
            if applied.is_ok() {
                new_addresses.take(now, aor, &new);
            }
            lost.version = record.version;
            outcome = applied.map(|effect| {
                registration.write_headers(record, &mut headers);
                let is_stored = effect != Effect::Nothing && policy.durability != Durability::Memory;
                Applied {
                    effect,
                    lost: (durable && effect == Effect::Changed).then(|| encoded(&lost)),
                    after: is_stored.then(|| encoded(record)),
                    version: record.version,
                    contacts: record.bindings.len(),
                    is_here: conn.is_some() && record.bindings.iter().any(|b| b.received.conn == conn),
                }
            });
        });
        let applied = outcome.inspect_err(|rejection| {
            self.counters.limited_location += u64::from(*rejection == Rejection::Full);
            self.counters.contacts_too_new += u64::from(*rejection == Rejection::TooManyNew);
        })?;
        if applied.effect != Effect::Nothing {
            if applied.is_here {
                self.note_registration(aor, &request.flow);
            }
            self.note_flow_registered(&request.flow);
        }
        self.answer(request, progress, aor, applied, &headers);
        Ok(())
    }

    /// Sends the 200 with the header lines `extra`: now, or once the store has the record.
    fn answer(
        &mut self,
        request: &Request<'_>,
        progress: Progress,
        aor: &[u8],
        applied: Applied,
        extra: &[u8],
    ) {
        let reply = Reply {
            status: Status::OK,
            extra,
        };
        match (applied.effect, self.config.registrar.durability) {
            (Effect::Nothing, _) => self.reply(&request.message, request.flow, progress.server, &reply),
            (_, Durability::Commit) => self.save_then_respond(request, progress, aor, applied, &reply),
            (_, Durability::Memory) => {
                self.registered(request, aor, applied.contacts);
                self.reply(&request.message, request.flow, progress.server, &reply);
            }
            (_, Durability::Async) => {
                self.save_later(aor, applied.after.unwrap_or_default(), applied.version);
                self.registered(request, aor, applied.contacts);
                self.reply(&request.message, request.flow, progress.server, &reply);
            }
        }
    }

    /// Refuses a REGISTER if its Path is not believed, or if its source may be spoofed but must not be.
    pub(super) fn believes_way(
        &mut self,
        request: &Request<'_>,
        progress: Progress,
    ) -> Result<(), Rejection> {
        if !self.believes_path(request) {
            return Err(Rejection::Path);
        }
        if !self.is_source_certain(request, progress) {
            self.counters.contacts_unproved += 1;
            return Err(Rejection::NotProved);
        }
        Ok(())
    }

    /// Whether requests may go by the Path of this REGISTER ([`crate::registrar`]).
    fn believes_path(&self, request: &Request<'_>) -> bool {
        let Some(first) = request.message.values(HeaderName::Path).next() else {
            return true;
        };
        // A WebSocket may come through a proxy on this machine. Then its address is not the sender's.
        let source = source_of(&request.flow).to_canonical();
        let leads_back = NameAddr::parse(first.text)
            .and_then(|addr| Some(Hop::of(&addr.sip_uri()?).host == HostRef::Ip(source)));
        (leads_back == Some(true) && !source.is_unspecified()) || self.is_trusted(&request.flow)
    }

    /// Whether requests may be sent to the source of this REGISTER. If that is a denied destination
    /// ([`crate::engine::destination`]), the source must not be one that the sender can spoof.
    fn is_source_certain(&self, request: &Request<'_>, progress: Progress) -> bool {
        let flow = &request.flow;
        let is_verified = progress.authorized.is_some_and(Authorized::source_verified);
        let is_certain = flow.transport.is_reliable() || is_verified || self.is_trusted(flow);
        flow.proof != Proof::Ourselves && (is_certain || !self.must_be_proved(flow.remote.ip()))
    }

    fn registered(&mut self, request: &Request<'_>, aor: &[u8], contacts: usize) {
        self.counters.registrations += 1;
        let contacts = contacts as u32;
        self.event(Event::Registered {
            aor: Box::from(aor),
            source: request.flow.remote,
            contacts,
        });
    }

    /// Sends the response once the record is on disk.
    fn save_then_respond(
        &mut self,
        request: &Request<'_>,
        progress: Progress,
        aor: &[u8],
        applied: Applied,
        reply: &Reply<'_>,
    ) {
        let bytes = request.message.bytes();
        let mut response = Vec::with_capacity(512 + reply.extra.len());
        self.write_reply(&mut response, &request.message, request.flow, reply);
        let lost_len = applied.lost.as_ref().map_or(0, |lost| lost.len());
        if !self.may_park(bytes.len() + response.len() + lost_len) {
            self.roll_back(aor, applied.lost.as_deref(), applied.version, false);
            self.refuse(request, progress.server, Status::NO_ROOM_TO_WAIT);
            return;
        }
        let parked = Parked {
            flow: request.flow,
            bytes: Box::from(bytes),
            server: progress.server,
            authorized: None,
            any_account_of: 0,
            asked: 0,
            target: None,
            // The bindings exist already: the closing of the connection reaches them there.
            watched: false,
        };
        let kind = QueryKind::SaveBindings {
            aor: Box::from(aor),
            record: applied.after.unwrap_or_default(),
            version: applied.version,
        };
        let purpose = Purpose::Save {
            parked,
            ok: PendingOk {
                response: response.into_boxed_slice(),
                contacts: applied.contacts,
            },
            aor: Box::from(aor),
            lost: applied.lost,
            version: applied.version,
        };
        self.ask(kind, purpose);
    }

    /// Rolls back a change that could not be stored (§10.3: "it MUST ... leave the bindings as they were").
    /// If the store `was_asked`, the record is written again: a write that was merely late must not outlive
    /// its refusal. The record is also written again if a later change, which the store was asked to save,
    /// contains this one.
    pub(crate) fn roll_back(&mut self, aor: &[u8], lost: Option<&[u8]>, version: u64, was_asked: bool) {
        let Some(lost) = lost.and_then(|lost| codec::decode(lost).ok()) else {
            return;
        };
        let now = self.now;
        let mut rolled_back = None;
        self.shared.update_bindings(aor, &mut |record: &mut AorRecord| {
            let was_last = record.version == version;
            if record.rollback(&lost.bindings, version, now.unix_s()) {
                record.changed(now.unix_ms);
                rolled_back = (was_asked || !was_last).then(|| (encoded(record), record.version));
            }
        });
        if let Some((record, version)) = rolled_back {
            self.save_later(aor, record, version);
        }
    }

    /// The response to a REGISTER whose change is stored: the one written for it. If the record has changed
    /// since, the response has the bindings as they are now (§10.3 step 8). `None`: the change does not hold
    /// any more, since an earlier copy of it failed and was rolled back meanwhile.
    pub(crate) fn response_when_stored(
        &mut self,
        parked: &Parked,
        aor: &[u8],
        version: u64,
        written: PendingOk,
    ) -> Option<PendingOk> {
        let mut current = false;
        self.shared
            .read_bindings(aor, &mut |record| current = record.version() == version);
        if current {
            return Some(written);
        }
        let limit = self.config.limits.contacts_per_aor;
        let policy = self.config.registrar;
        let now = self.now;
        let mut record = AorRecord::default();
        self.shared
            .update_bindings(aor, &mut |found: &mut AorRecord| record = found.clone());
        let again = self.with_message(&parked.bytes, |engine, message| {
            let Ok(registration) = Registration::read(message, parked.flow, &policy, limit, now) else {
                // The configuration has changed since.
                return Some(written);
            };
            let holds = registration.is_overtaken(&record, version)
                // If a later REGISTER of the same Call-ID makes this one out of order, this one did hold.
                || matches!(
                    registration.apply(&mut record.clone(), limit, &mut |_| {}),
                    Ok(Effect::Repeated | Effect::Nothing) | Err(Rejection::OutOfOrder)
                );
            let mut headers = Vec::with_capacity(256);
            registration.write_headers(&record, &mut headers);
            let reply = Reply {
                status: Status::OK,
                extra: &headers,
            };
            let mut response = Vec::with_capacity(512 + headers.len());
            engine.write_reply(&mut response, message, parked.flow, &reply);
            holds.then(|| PendingOk {
                response: response.into_boxed_slice(),
                contacts: record.bindings.len(),
            })
        });
        again.flatten()
    }
}

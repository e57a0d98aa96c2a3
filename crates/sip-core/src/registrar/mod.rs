//! The registrar (RFC 3261 §10.3, RFC 3327, matching by RFC 5626 §6): pure logic.
//!
//! Three steps, so that the lock on a record is held for the middle one only:
//! - [`Registration::read`] parses the request and refuses it if no record is needed for that.
//! - [`Registration::apply`] changes the record wholly or not at all.
//! - [`Registration::write_headers`] writes the header lines of the 200.
//!
//! Steps 1 to 5 of §10.3 (domain, authentication, authorisation, address-of-record) come before; storing is
//! up to the caller.
//!
//! Decisions that the RFCs leave open:
//! - **Out of order** (steps 6 and 7: "the update MUST be aborted and the request fails"): 500, as §12.2.2
//!   has it for a CSeq that comes too late.
//! - **The same CSeq again** for the same contact is a retransmission of the same REGISTER after its
//!   transaction. The retransmission changes nothing and gets 200.
//! - **Path without `Supported: path`** (RFC 3327 §5.3 leaves it to the registrar): stored, since the edge
//!   proxy needs it. The 200 repeats Path only if the phone supports it.
//! - **Path from an untrusted source** gets 403, unless its first value is the source of the REGISTER.
//!   Otherwise a Path could lead requests for one user anywhere, by any next hops, from our address; RFC 3327
//!   §6 leaves it to the network that no other host can write one. 420 would be wrong: `path` is supported.
//!   Without its Path the contact could not be reached.
//! - **`reg-id`** names a binding together with `+sip.instance`, as in RFC 5626 §6, so that a phone that
//!   comes back from another port replaces its binding. The 200 has `Require: outbound` for a phone that
//!   supports it, if an edge proxy before us does outbound (`ob` in its Path URI) or if we are the first hop.
//!   It has no `Flow-Timer` (§5.4): without it a phone keeps its flow alive by the defaults of §4.4.1, which
//!   differ between UDP and streams as they should.
//! - **Equal Contacts** (step 7) are one binding. But with a private address in them they are two if neither
//!   Call-ID nor source address is that of the other: two phones behind two NATs often have one private address.
//!   A phone whose NAT gave it another port is one, and so is a phone that was started anew at the same source.
//!   One that was started anew at another source is taken for a second; its first binding ends by itself, or gives
//!   way when the address-of-record has as many as it may. If both have `+sip.instance`, that decides. A phone is
//!   removed by its own REGISTER, or by any if it alone has the Contact. The 200 leaves out those of others that
//!   equal an own one, whose expiration the phone would read for its own.
//! - **Contact schemes**: `sip` and `sips`; nothing else can be reached from here.

mod contact;
pub(crate) mod extensions;
mod relayed;
mod response;

use alloc::boxed::Box;
use alloc::vec::Vec;

use sip_message::header::NameAddr;
use sip_message::{HeaderName, Host, Message, Uri};
use smallvec::SmallVec;

use crate::config::RegistrarPolicy;
use crate::location::{AorRecord, Binding, Device, meant};
use crate::time::Now;
use crate::transport::Flow;
use contact::NewContact;
pub(crate) use contact::destination;

/// Option tags of `Require` that the registrar can honour.
const EXTENSIONS: [&[u8]; 1] = [b"path"];

/// Longest contact URI, `+sip.instance` and Call-ID that are stored, bytes; longer: 400.
const MAX_CONTACT: usize = 2_048;
const MAX_INSTANCE: usize = 256;
const MAX_CALL_ID: usize = 512;
/// Longest Path that is stored, bytes; longer: 400.
const MAX_PATH: usize = 4_096;
/// The most bytes of User-Agent that are stored; the rest is cut off.
const MAX_USER_AGENT: usize = 128;

/// The interval, in seconds, from which none is too brief (§10.3 step 7): an hour.
const NEVER_TOO_BRIEF_S: u32 = 3_600;
/// The seconds that a malformed expiration counts as (§10.2.1.1).
const MALFORMED_EXPIRES_S: u32 = 3_600;

/// The reason for the refusal of a REGISTER.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rejection {
    /// 400, with a reason phrase.
    Bad(&'static str),
    /// 420: Require names an extension that we do not support (§10.3 step 2).
    Extension,
    /// 423: the interval is shorter than this many seconds (§10.3 step 7).
    TooBrief(u32),
    /// 439: reg-id is there, and an edge proxy before us does no outbound (RFC 5626 §6).
    FirstHopLacksOutbound,
    /// 500: a later request was served before (§10.3 steps 6, 7).
    OutOfOrder,
    /// 403: more contacts than an address-of-record may have.
    TooManyContacts,
    /// 403: a Path that is not believed.
    Path,
    /// 403: the source is a denied destination, and may be spoofed.
    NotProved,
    /// 403: more new addresses than the contacts of a user may have within an hour.
    TooManyNew,
    /// 503: no room for more registrations.
    Full,
}

/// The effect of [`Registration::apply`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// The record has changed and has its next version: it is to be stored.
    Changed,
    /// The REGISTER was applied before, and the record is as it left it. If responses wait for the store,
    /// this one waits, too: the first change may not have been stored yet. So does the response to a removal
    /// of an absent binding: the binding may have been rolled back while the store still has it.
    Repeated,
    /// The REGISTER was a query.
    Nothing,
}

/// How a Contact names a binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Match {
    /// By its URI, of the same device as far as that shows. A removal names the only binding of its URI in any
    /// case.
    Device,
    /// By its URI, of any device: the address-of-record has as many bindings as it may.
    Uri,
}

/// A REGISTER as read.
#[derive(Clone, Debug)]
pub(crate) struct Registration<'a> {
    message: Message<'a>,
    received: Flow,
    now: Now,
    call_id: &'a [u8],
    cseq: u32,
    /// The user agent, as far as the REGISTER shows it.
    device: Option<Device<'a>>,
    ask: Ask<'a>,
    /// Whether the 200 has `Require: outbound`.
    outbound: bool,
}

#[derive(Clone, Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "one at a time, on the stack, instead of an allocation"
)]
enum Ask<'a> {
    /// No Contact: list the bindings (§10.2.3).
    Query,
    /// `Contact: *`, `Expires: 0` (§10.2.2).
    RemoveAll,
    /// Add, refresh, remove.
    Update(SmallVec<[NewContact<'a>; 2]>),
}

impl<'a> Registration<'a> {
    /// Reads a REGISTER that arrived on `received` and may have at most `max_contacts` bindings.
    ///
    /// # Errors
    /// [`Rejection`]; nothing has changed.
    pub(crate) fn read(
        message: &Message<'a>,
        received: Flow,
        policy: &RegistrarPolicy,
        max_contacts: usize,
        now: Now,
    ) -> Result<Self, Rejection> {
        if !unsupported(message).is_empty() {
            return Err(Rejection::Extension);
        }
        let call_id = message
            .call_id()
            .filter(|id| id.len() <= MAX_CALL_ID)
            .ok_or(Rejection::Bad("Missing Or Too Long Call-ID"))?;
        let cseq = message
            .cseq()
            .map_err(|_| Rejection::Bad("Malformed CSeq"))?
            .number;
        check_path(message)?;
        let mut ask = read_contacts(message, policy, max_contacts)?;
        let outbound = match &mut ask {
            Ask::Update(contacts) => check_outbound(message, contacts)?,
            Ask::Query | Ask::RemoveAll => false,
        };
        Ok(Self {
            message: *message,
            received,
            now,
            call_id,
            cseq,
            device: Device::of(call_id, received.remote.ip(), message.has(HeaderName::Path)),
            ask,
            outbound,
        })
    }

    /// Changes `record` as asked, or leaves the record as it is. Each replaced or removed binding goes to
    /// `lost`.
    ///
    /// # Errors
    /// [`Rejection`]; the record has not changed.
    pub(crate) fn apply(
        &self,
        record: &mut AorRecord,
        max_contacts: usize,
        lost: &mut dyn FnMut(Binding),
    ) -> Result<Effect, Rejection> {
        match &self.ask {
            Ask::Query => Ok(Effect::Nothing),
            Ask::RemoveAll => self.remove_all(record, lost),
            Ask::Update(contacts) => self.update(record, contacts, max_contacts, lost),
        }
    }

    /// The hosts that the contacts add to those of `record`, apart from the source itself. Only hosts to
    /// which requests will be sent count. With a Path, or after a REGISTER by UDP, requests go to the Path or
    /// back to the source.
    pub(crate) fn new_hosts<'r>(&'r self, record: &'r AorRecord) -> impl Iterator<Item = Host<'r>> {
        let contacts = match &self.ask {
            Ask::Update(contacts) if self.message.value(HeaderName::Path).is_none() => &contacts[..],
            Ask::Query | Ask::RemoveAll | Ask::Update(_) => &[],
        };
        let is_datagram = !self.received.transport.is_stream();
        let source = self.received.remote.ip().to_canonical();
        let is_source = move |host: &Host<'_>| match host {
            Host::Name(_) => false,
            Host::V4(ip) => source == *ip,
            Host::V6(ip) => ip.to_canonical() == source,
        };
        let is_known = |host: &Host<'_>| {
            let leads_there = |b: &Binding| matches!(Uri::parse(&b.contact), Ok(Uri::Sip(uri)) if destination(&uri) == *host);
            record.bindings.iter().any(leads_there)
        };
        contacts
            .iter()
            .filter(move |contact| contact.expires_s > 0 && (!is_datagram || contact.is_secure()))
            .filter_map(NewContact::host)
            .filter(move |host| !is_source(host) && !is_known(host))
    }

    /// Whether later REGISTERs have repeated all changes of this one, which made the record this version.
    pub(crate) fn is_overtaken(&self, record: &AorRecord, version: u64) -> bool {
        match &self.ask {
            Ask::Query => true,
            Ask::RemoveAll => record.bindings.iter().all(|b| b.updated > version),
            Ask::Update(contacts) => contacts.iter().all(|contact| {
                let found = self.named(record, 0, contact, Match::Device);
                found.map_or(contact.expires_s == 0, |b| b.updated > version)
            }),
        }
    }

    /// The binding of `record` that a Contact names, of those that have not ended `at` this second.
    fn named<'r>(
        &self,
        record: &'r AorRecord,
        at_unix_s: u64,
        contact: &NewContact<'a>,
        by: Match,
    ) -> Option<&'r Binding> {
        let device = self.device;
        let of_device = record.live(at_unix_s).filter(|b| contact.names(b, device));
        let named = meant(of_device, self.call_id, self.received.remote.ip());
        if named.is_some() || device.is_none() {
            return named;
        }
        let mut of_any = record.live(at_unix_s).filter(|b| contact.names(b, None));
        match by {
            Match::Device if contact.expires_s > 0 || self.was_removed(record, contact) => None,
            Match::Device => of_any.next().filter(|_| of_any.next().is_none()),
            Match::Uri => of_any.min_by_key(|binding| binding.updated),
        }
    }

    /// Whether a REGISTER of this Call-ID has removed the binding just now.
    fn was_removed(&self, record: &AorRecord, contact: &NewContact<'a>) -> bool {
        let names = |b: &Binding| contact.names(b, self.device);
        record.recent.has_removed(self.call_id, self.now.unix_s(), names)
    }

    /// Removes all bindings (§10.3 step 6).
    fn remove_all(&self, record: &mut AorRecord, lost: &mut dyn FnMut(Binding)) -> Result<Effect, Rejection> {
        let now = self.now.unix_s();
        if record
            .live(now)
            .any(|b| *b.call_id == *self.call_id && b.cseq >= self.cseq)
        {
            return Err(Rejection::OutOfOrder);
        }
        if record.bindings.is_empty() {
            return Ok(Effect::Repeated);
        }
        for binding in core::mem::take(&mut record.bindings) {
            self.remember(record, binding.clone());
            lost(binding);
        }
        record.changed(self.now.unix_ms);
        Ok(Effect::Changed)
    }

    /// Updates the bindings (§10.3 step 7): first every check, then every change.
    fn update(
        &self,
        record: &mut AorRecord,
        contacts: &[NewContact<'a>],
        max_contacts: usize,
        lost: &mut dyn FnMut(Binding),
    ) -> Result<Effect, Rejection> {
        let now = self.now.unix_s();
        let count = record.live(now).count();
        // If a removal was rolled back, there may be more than allowed: those may be refreshed.
        let room = max_contacts.max(count);
        let fits = |by| count + contacts.len() <= room || self.count_after(record, contacts, by) <= room;
        let mut repeated: SmallVec<[bool; 2]> = SmallVec::with_capacity(contacts.len());
        for contact in contacts {
            repeated.push(self.is_repeated(record, contact)?);
        }
        if repeated.iter().all(|&r| r) {
            return Ok(Effect::Repeated);
        }
        let ways = [Match::Device, Match::Uri];
        let by = ways.into_iter().find(|by| fits(*by));
        let by = by.ok_or(Rejection::TooManyContacts)?;
        let path = stored_path(&self.message);
        let mut changed = record.remove_expired(now) > 0;
        for (contact, repeated) in contacts.iter().zip(repeated) {
            if !repeated {
                changed |= self.change(record, contact, by, &path, lost);
            }
        }
        if !changed {
            // The contacts to remove are not there, as after an earlier copy of the request.
            return Ok(Effect::Repeated);
        }
        record.changed(self.now.unix_ms);
        Ok(Effect::Changed)
    }

    /// Whether an earlier copy of this REGISTER did what this Contact asks for.
    ///
    /// # Errors
    /// [`Rejection::OutOfOrder`]: a later REGISTER was served before.
    fn is_repeated(&self, record: &AorRecord, contact: &NewContact<'a>) -> Result<bool, Rejection> {
        match self.named(record, self.now.unix_s(), contact, Match::Device) {
            // The REGISTER is a late copy, from before the REGISTER that removed this binding.
            None if contact.expires_s > 0 && self.is_behind_removal(record, contact) => {
                Err(Rejection::OutOfOrder)
            }
            Some(b) if *b.call_id == *self.call_id && b.cseq >= self.cseq => {
                // The REGISTER is older, or has the same number and asks for something else.
                if b.cseq > self.cseq || contact.expires_s == 0 || *b.contact != *contact.uri_text {
                    return Err(Rejection::OutOfOrder);
                }
                Ok(true)
            }
            Some(_) | None => Ok(false),
        }
    }

    /// Makes, refreshes or removes the binding that one Contact names. Returns whether the record changed.
    fn change(
        &self,
        record: &mut AorRecord,
        contact: &NewContact<'a>,
        by: Match,
        path: &[u8],
        lost: &mut dyn FnMut(Binding),
    ) -> bool {
        let named = self.named(record, 0, contact, by);
        let at = named.and_then(|named| record.bindings.iter().position(|b| core::ptr::eq(b, named)));
        let mut place = None;
        if let Some(at) = at {
            let old = record.bindings.remove(at);
            let gives_way = by == Match::Uri && !contact.names(&old, self.device);
            if contact.expires_s == 0 || gives_way {
                self.remember(record, old.clone());
            } else {
                place = self.place_of_refresh(record, &old, contact, at);
            }
            lost(old);
        } else if contact.expires_s == 0 {
            self.remember_absent(record, contact, path);
        }
        if contact.expires_s > 0 {
            let binding = self.binding(contact, path, record.next_version(self.now.unix_ms));
            match place {
                Some(at) => record.bindings.insert(at, binding),
                None => record.put(binding),
            }
        }
        at.is_some() || contact.expires_s > 0
    }

    /// The place of a refreshed binding among those of equal `q`: where it stood (`at`), as its user agent
    /// only prolongs it. A stateless CANCEL must find the contact that its INVITE went to (RFC 3261 §16.11),
    /// though others refresh meanwhile. But the binding comes before more recent bindings of the same user
    /// agent, since that is reached by this one now. `None`: the user agent was started anew, or wants
    /// another `q`, and the binding becomes the most recent.
    fn place_of_refresh(
        &self,
        record: &AorRecord,
        old: &Binding,
        contact: &NewContact<'a>,
        at: usize,
    ) -> Option<usize> {
        let version = record.next_version(self.now.unix_ms);
        let is_its = |other: &Binding| other.call_id == old.call_id || other.is_same_instance(old);
        let is_newer = |other: &Binding| other.updated > old.updated && other.updated != version;
        let newer = |other: &Binding| other.q_milli == old.q_milli && is_its(other) && is_newer(other);
        let is_refresh = *old.call_id == *self.call_id && old.q_milli == contact.q_milli;
        let first = record.bindings.iter().position(newer).unwrap_or(at);
        is_refresh.then_some(first.min(at))
    }

    /// Keeps a tombstone of a binding that this REGISTER removes ([`crate::location::recent`]).
    fn remember(&self, record: &mut AorRecord, binding: Binding) {
        let is_own = *binding.call_id == *self.call_id;
        let cseq = if is_own { self.cseq } else { binding.cseq };
        record.remember(binding, cseq, self.now.unix_ms);
    }

    /// Keeps a tombstone of an absent binding that this REGISTER was to remove. An older REGISTER may come
    /// after this one, for instance because it was refused for want of room the first time. The older
    /// REGISTER must not make the binding.
    fn remember_absent(&self, record: &mut AorRecord, contact: &NewContact<'a>, path: &[u8]) {
        if !self.is_behind_removal(record, contact) {
            record.remember_absent(self.binding(contact, path, 0), self.now.unix_ms);
        }
    }

    fn is_behind_removal(&self, record: &AorRecord, contact: &NewContact<'a>) -> bool {
        let names = |b: &Binding| contact.names(b, self.device);
        record
            .recent
            .is_behind_removal(self.call_id, self.cseq, self.now.unix_s(), names)
    }

    /// The number of bindings after the update.
    fn count_after(&self, record: &AorRecord, contacts: &[NewContact<'a>], by: Match) -> usize {
        let now = self.now.unix_s();
        let named = contacts.iter().filter_map(|c| self.named(record, now, c, by));
        let named: SmallVec<[&Binding; 2]> = named.collect();
        let is_kept = |binding: &&Binding| !named.iter().any(|named| core::ptr::eq(*named, *binding));
        // Of contacts that name the same binding the last one counts.
        let new = contacts.iter().enumerate().filter(|(i, c)| {
            c.expires_s > 0 && !contacts.iter().skip(i + 1).any(|later| later.same_binding(c))
        });
        record.live(now).filter(is_kept).count() + new.count()
    }

    fn binding(&self, contact: &NewContact<'a>, path: &[u8], version: u64) -> Binding {
        let user_agent = self.message.value(HeaderName::UserAgent).unwrap_or_default();
        let user_agent = user_agent.get(..MAX_USER_AGENT).unwrap_or(user_agent);
        Binding {
            contact: Box::from(contact.uri_text),
            received: self.received,
            path: Box::from(path),
            instance: Box::from(contact.instance),
            reg_id: contact.reg_id,
            call_id: Box::from(self.call_id),
            cseq: self.cseq,
            q_milli: contact.q_milli,
            expires_unix_s: self.now.unix_s().saturating_add(u64::from(contact.expires_s)),
            user_agent: user_agent.iter().map(|&c| unfolded(c)).collect(),
            updated: version,
        }
    }
}

/// The option tags of Require that we do not know.
fn unsupported<'a>(message: &Message<'a>) -> extensions::Tags<'a> {
    extensions::unknown(message, HeaderName::Require, &EXTENSIONS)
}

fn read_contacts<'a>(
    message: &Message<'a>,
    policy: &RegistrarPolicy,
    max_contacts: usize,
) -> Result<Ask<'a>, Rejection> {
    let header_expires = match message.expires() {
        Ok(expires) => expires,
        Err(_) => Some(MALFORMED_EXPIRES_S),
    };
    let mut contacts = SmallVec::new();
    let mut star = false;
    for value in message.values(HeaderName::Contact) {
        // §10.3 step 6: `*` stands alone, and Expires is 0.
        if star || (value.text == b"*" && !contacts.is_empty()) {
            return Err(Rejection::Bad("Contact * Beside Other Values"));
        }
        if value.text == b"*" {
            star = true;
            continue;
        }
        // All bindings may be removed, and as many put in their place. More contacts are of no use, and each
        // is compared with each below.
        if contacts.len() >= max_contacts.saturating_mul(2) {
            return Err(Rejection::TooManyContacts);
        }
        contacts.push(NewContact::read(value.text, header_expires, policy)?);
    }
    if star {
        return if header_expires == Some(0) {
            Ok(Ask::RemoveAll)
        } else {
            Err(Rejection::Bad("Contact * Without Expires 0"))
        };
    }
    Ok(if contacts.is_empty() {
        Ask::Query
    } else {
        Ask::Update(contacts)
    })
}

/// Checks outbound (RFC 5626 §6): whether reg-id counts. Returns whether the 200 says that outbound is done.
fn check_outbound(message: &Message<'_>, contacts: &mut [NewContact<'_>]) -> Result<bool, Rejection> {
    if contacts.iter().all(|c| c.reg_id == 0) {
        return Ok(false);
    }
    let added = contacts.iter().filter(|c| c.expires_s > 0);
    if added.clone().any(|c| c.reg_id != 0) && added.count() > 1 {
        return Err(Rejection::Bad("reg-id With More Than One Contact"));
    }
    let supported = message.has_option(HeaderName::Supported, b"outbound");
    if message.values(HeaderName::Via).nth(1).is_none() {
        // We are the first hop, and do outbound as it must.
        return Ok(supported);
    }
    let edge = message.values(HeaderName::Path).next();
    let edge_uri = edge.and_then(|path| NameAddr::parse(path.text)?.sip_uri());
    if edge_uri.is_some_and(|uri| uri.params.has(b"ob")) {
        return Ok(supported);
    }
    if supported {
        return Err(Rejection::FirstHopLacksOutbound);
    }
    for contact in contacts {
        contact.reg_id = 0;
    }
    Ok(false)
}

/// Checks Path (RFC 3327 §5.1): its values are those of Route, each a name-addr with a SIP URI.
fn check_path(message: &Message<'_>) -> Result<(), Rejection> {
    let mut len = 0;
    for value in message.values(HeaderName::Path) {
        let addr = NameAddr::parse(value.text);
        // RFC 3327 §4: a Path value is a loose route.
        if !addr.is_some_and(|a| a.bracketed && a.sip_uri().is_some_and(|uri| uri.is_loose_route())) {
            return Err(Rejection::Bad("Malformed Path"));
        }
        len += value.text.len() + 2;
    }
    if len > MAX_PATH {
        Err(Rejection::Bad("Path Too Long"))
    } else {
        Ok(())
    }
}

/// All Path values, comma-joined, on one line.
fn stored_path(message: &Message<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    for value in message.values(HeaderName::Path) {
        if !out.is_empty() {
            out.extend_from_slice(b", ");
        }
        out.extend(value.text.iter().map(|&c| unfolded(c)));
    }
    out
}

/// Replaces folding and control characters by spaces: stored texts are written into other messages.
const fn unfolded(c: u8) -> u8 {
    if c.is_ascii_control() { b' ' } else { c }
}

#[cfg(test)]
mod tests;

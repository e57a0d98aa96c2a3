//! Recursion (RFC 3261 §16.7 step 4): the contacts of a 3xx as targets.
//!
//! The sender of a 3xx names the targets. So they have the bounds of registered contacts: on their number
//! ([`crate::limits::Limits::contacts_per_aor`] for one request), on new addresses within an hour, and on where they lead
//! ([`crate::engine::destination`]). A contact that is a user of ours is looked up in place. If it were sent to this
//! server itself, it would be a new request, for which the caller has no credentials.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::net::IpAddr;

use sip_message::header::Contact;
use sip_message::uri::is_same;
use sip_message::{HeaderName, Message, Uri};

use super::forward::write_request_uri;
use crate::engine::context::{Context, Target};
use crate::engine::destination::source_of;
use crate::engine::{Engine, LocationTarget, is_sips};
use crate::registrar::destination;
use crate::transaction::table::{ClientKey, ServerKey};

/// The contacts of a 3xx that recursion left.
pub(super) enum Contacts {
    /// No contact became a target: the response goes on as it came.
    Untouched,
    /// All contacts became targets: the response is not kept.
    AllUsed,
    /// The Contact lines that did not become targets.
    Left(Vec<u8>),
}

/// The number of targets, and of their bytes, that a request may still get.
struct Room {
    targets: usize,
    bytes: usize,
}

/// The targets that the contacts of one 3xx have become so far.
struct Found {
    room: Room,
    /// The Request-URI of the request, which is not tried again.
    original: Vec<u8>,
    /// The user that the new addresses of the contacts count for. `None`: the response is from a next
    /// hop of the configuration or a peer of the trust domain.
    user: Option<Box<[u8]>>,
    /// The new targets, each with its q.
    targets: Vec<(u16, Target)>,
}

impl Engine {
    /// Makes targets of the contacts of a 3xx. The new targets are tried by q, after the targets that the
    /// request has.
    pub(super) fn recurse(
        &mut self,
        server: ServerKey,
        client: ClientKey,
        message: &Message<'_>,
    ) -> Contacts {
        let from = self.table.client(client).map(|client| source_of(&client.to));
        let Some(mut found) = self.room_for_contacts(server) else {
            return Contacts::Untouched;
        };
        if self.is_of_user(server, client) {
            let uri = Uri::parse(&found.original).ok();
            found.user = uri.and_then(|uri| self.own_aor(&uri));
        }
        let secure = is_sips(&found.original);
        let mut left = Vec::new();
        for value in message.values(HeaderName::Contact) {
            let usable = Contact::parse(value.text).and_then(|contact| {
                let is_usable = contact.addr.sip_uri().is_some_and(|uri| !secure || uri.secure);
                is_usable.then_some((contact.q_milli.unwrap_or(1000), contact.addr.uri))
            });
            let is_used = usable.filter(|_| found.room.targets > 0).is_some_and(|(q, uri)| {
                let targets = self.targets_of(uri, secure, from, found.user.as_deref());
                let context = self.context(server);
                context.is_some_and(|context| found.take(context, q, targets))
            });
            if !is_used {
                left.extend_from_slice(b"Contact: ");
                left.extend_from_slice(value.text);
                left.extend_from_slice(b"\r\n");
            }
        }
        let Some(context) = self.context(server).filter(|_| !found.targets.is_empty()) else {
            return Contacts::Untouched;
        };
        found.begin(context);
        self.count_context(server);
        self.counters.recursions += 1;
        if left.is_empty() {
            Contacts::AllUsed
        } else {
            Contacts::Left(left)
        }
    }

    /// The room for contacts of a 3xx. `None`: the request takes no new targets.
    fn room_for_contacts(&mut self, server: ServerKey) -> Option<Found> {
        let limits = &self.config.limits;
        let (branches, contacts) = (limits.branches.min(usize::from(u8::MAX)), limits.contacts_per_aor);
        let bytes = self.context_room(server);
        let original = self.table.live(server)?.request.split(|c| *c == b' ').nth(1);
        let original = original.map(Vec::from).unwrap_or_default();
        let context = self.context(server).filter(|context| !context.ended)?;
        let free = branches.saturating_sub(context.targets.len());
        Some(Found {
            room: Room {
                targets: free.min(contacts.saturating_sub(context.redirected)),
                bytes: bytes.saturating_sub(context.bytes()),
            },
            original,
            user: None,
            targets: Vec::new(),
        })
    }

    /// Whether a user decides where this client transaction's 3xx leads. If so, the response is from a
    /// registered contact, or from a contact that another 3xx named, and its source is not trusted.
    fn is_of_user(&mut self, server: ServerKey, client: ClientKey) -> bool {
        let Some(client) = self.table.client(client) else {
            return false;
        };
        let (number, to) = (client.user.target, client.to);
        let context = self.context(server);
        let target = context.and_then(|context| context.targets.get(usize::from(number)));
        target.is_some_and(|target| target.is_contact || target.from.is_some()) && !self.is_trusted(&to)
    }

    /// The targets of one contact of a 3xx: the contact itself, or, if it is a user of ours, that user's
    /// registered contacts. Empty if `user` has too many new addresses.
    fn targets_of(
        &mut self,
        uri: &[u8],
        secure: bool,
        from: Option<IpAddr>,
        user: Option<&[u8]>,
    ) -> Vec<Target> {
        let mut text = Vec::with_capacity(uri.len());
        write_request_uri(&mut text, uri);
        let Ok(Uri::Sip(parsed)) = Uri::parse(&text) else {
            return Vec::new();
        };
        if parsed.params.has(b"maddr") || !self.directory.is_own(&parsed.host, parsed.port) {
            let host = destination(&parsed);
            let is_there =
                from.is_some_and(|from| host.ip().map(|ip| ip.to_canonical()) == Some(from.to_canonical()));
            if user.is_some_and(|user| !is_there && !self.new_addresses.lead(self.now.instant, user, &host)) {
                self.counters.destinations_denied += 1;
                return Vec::new();
            }
            let target = Target {
                from,
                ..Target::new(text.into_boxed_slice(), 0)
            };
            return alloc::vec![target];
        }
        let Some(aor) = self.own_aor(&Uri::Sip(parsed)) else {
            return Vec::new();
        };
        let by_tls = secure || is_sips(&text);
        let count = self.look_up_aor(&aor, by_tls, true, 0);
        let mut found = core::mem::take(&mut self.found);
        let mut targets: Vec<Target> = Vec::with_capacity(count);
        for at in 0..count {
            let (before, rest) = found.split_at_mut(at);
            let Some(contact) = rest.first_mut() else { break };
            contact.settle_scheme(secure);
            contact.secure |= by_tls;
            // A contact that leads back here is not looked up again. Of the flows of one instance the best is taken.
            let is_other =
                |other: &LocationTarget| !contact.instance.is_empty() && other.instance == contact.instance;
            if !before.iter().any(is_other) && !self.leads_back(contact) {
                targets.push(self.contact_target(contact, 0));
            }
        }
        self.found = found;
        targets
    }
}

impl Found {
    /// Takes the targets of one contact. Returns false if there are none, or no room for all of them.
    fn take(&mut self, context: &Context, q: u16, targets: Vec<Target>) -> bool {
        let bytes = |target: &Target| target.uri.len() + target.path.len();
        let needed = targets.iter().map(bytes).sum();
        if targets.is_empty() || targets.len() > self.room.targets || self.room.bytes < needed {
            return false;
        }
        for target in targets {
            // No URI is tried twice (§16.5).
            let is_known = context.targets.iter().any(|t| is_same(&t.uri, &target.uri))
                || self.targets.iter().any(|(_, t)| is_same(&t.uri, &target.uri))
                || is_same(&self.original, &target.uri);
            if !is_known {
                self.room.targets -= 1;
                self.room.bytes -= bytes(&target);
                self.targets.push((q, target));
            }
        }
        true
    }

    /// Appends the new targets to those of the request.
    fn begin(mut self, context: &mut Context) {
        self.targets.sort_by_key(|(q, _)| Reverse(*q));
        let mut order = context.targets.iter().map(|t| t.order).max().unwrap_or(0);
        let mut last = None;
        context.redirected += self.targets.len();
        for (q, target) in self.targets {
            if last != Some(q) {
                order = order.saturating_add(1);
                last = Some(q);
            }
            context.targets.push(Target { order, ..target });
        }
    }
}

//! A REGISTER that another registrar has accepted: its 200 says which bindings hold, and how long.

use sip_message::header::NameAddr;
use sip_message::number::{decimal_u32, delta_seconds};
use sip_message::{HeaderName, Message};

use super::contact::NewContact;
use super::{Ask, Registration, Rejection};
use crate::config::{Durability, RegistrarPolicy};
use crate::time::Now;
use crate::transport::Flow;

/// No interval is too brief or too long: the other registrar has decided.
const AS_GRANTED: RegistrarPolicy = RegistrarPolicy {
    min_expires_s: 0,
    default_expires_s: 3_600,
    max_expires_s: u32::MAX,
    durability: Durability::Async,
};

impl<'a> Registration<'a> {
    /// Reads a REGISTER that came on `received` and got the 200 `response` from another registrar. Each contact has the
    /// expiration that the 200 grants to it. One that the 200 does not list is to be removed.
    ///
    /// # Errors
    /// [`Rejection`]; this registrar could not keep such bindings.
    pub(crate) fn read_relayed(
        request: &Message<'a>,
        received: Flow,
        max_contacts: usize,
        now: Now,
        response: &Message<'_>,
    ) -> Result<Self, Rejection> {
        let mut registration = Self::read(request, received, &AS_GRANTED, max_contacts, now)?;
        if let Ask::Update(contacts) = &mut registration.ask {
            for contact in contacts.iter_mut().filter(|contact| contact.expires_s > 0) {
                contact.expires_s = granted(contact, response).unwrap_or(0);
            }
        }
        Ok(registration)
    }
}

/// The seconds that a 200 grants to a contact (RFC 3261 §10.2.4). `None`: the 200 does not list the contact.
fn granted(contact: &NewContact<'_>, response: &Message<'_>) -> Option<u32> {
    let is_it = |listed: &NameAddr<'_>| {
        let reg_id = listed.params.value(b"reg-id").and_then(decimal_u32);
        let is_other_flow = contact.reg_id != 0 && reg_id.is_some_and(|listed| listed != contact.reg_id);
        !is_other_flow && contact.is_uri(listed.uri)
    };
    let mut listed = response
        .values(HeaderName::Contact)
        .filter_map(|value| NameAddr::parse(value.text));
    let listed = listed.find(is_it)?;
    let of_contact = listed.params.value(b"expires").and_then(delta_seconds);
    let of_all = || response.expires().ok().flatten();
    Some(of_contact.or_else(of_all).unwrap_or(contact.expires_s))
}

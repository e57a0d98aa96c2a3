//! One Contact of a REGISTER, and which binding it names.

use sip_message::header::Contact;
use sip_message::number::decimal_u32;
use sip_message::{SipUri, Uri};

use super::{MAX_CONTACT, MAX_INSTANCE, NEVER_TOO_BRIEF_S, Rejection};
use crate::config::RegistrarPolicy;
use crate::location::Binding;

/// A Contact as asked for, its expiration settled.
#[derive(Clone, Debug)]
pub(super) struct NewContact<'a> {
    /// As written, without angle brackets.
    pub(super) uri_text: &'a [u8],
    uri: SipUri<'a>,
    /// `+sip.instance` without its quotes; empty: none.
    pub(super) instance: &'a [u8],
    /// `reg-id`; 0: none.
    pub(super) reg_id: u32,
    /// 0 to 1000.
    pub(super) q_milli: u16,
    /// Granted seconds; 0: remove.
    pub(super) expires_s: u32,
}

impl<'a> NewContact<'a> {
    pub(super) fn read(
        contact: &Contact<'a>,
        header_expires: Option<u32>,
        policy: &RegistrarPolicy,
    ) -> Result<Self, Rejection> {
        let uri_text = contact.addr.uri;
        let Some(uri) = contact.addr.sip_uri() else {
            return Err(Rejection::Bad("Contact Is Not A SIP URI"));
        };
        let params = contact.addr.params;
        let instance = params
            .get(b"+sip.instance")
            .map(|p| p.unquoted())
            .unwrap_or_default();
        if uri_text.len() > MAX_CONTACT || instance.len() > MAX_INSTANCE {
            return Err(Rejection::Bad("Contact Too Long"));
        }
        // It is written into answers between quotes.
        if instance
            .iter()
            .any(|c| c.is_ascii_control() || matches!(c, b'"' | b'\\'))
        {
            return Err(Rejection::Bad("Malformed Contact"));
        }
        // RFC 5626 §6: reg-id without an instance means nothing.
        let reg_id = match params.value(b"reg-id") {
            Some(text) if !instance.is_empty() => decimal_u32(text).unwrap_or(0),
            Some(_) | None => 0,
        };
        let asked = contact
            .expires_s
            .or(header_expires)
            .unwrap_or(policy.default_expires_s);
        Ok(Self {
            uri_text,
            uri,
            instance,
            reg_id,
            // RFC 3841 §7.2.3: a contact without q has q = 1.0.
            q_milli: contact.q_milli.unwrap_or(1000),
            expires_s: granted(asked, policy)?,
        })
    }

    /// Whether this Contact names `binding`: by instance and reg-id where both have them
    /// (RFC 5626 §6), else by URI (RFC 3261 §10.3 step 7, §19.1.4).
    pub(super) fn names(&self, binding: &Binding) -> bool {
        if self.reg_id != 0 && binding.reg_id != 0 {
            return self.reg_id == binding.reg_id && *self.instance == *binding.instance;
        }
        *self.uri_text == *binding.contact || self.is_uri(&binding.contact)
    }

    /// Whether both name the same binding.
    pub(super) fn same_binding(&self, other: &NewContact<'_>) -> bool {
        if self.reg_id != 0 && other.reg_id != 0 {
            return self.reg_id == other.reg_id && self.instance == other.instance;
        }
        self.uri_text == other.uri_text || self.uri == other.uri
    }

    fn is_uri(&self, text: &[u8]) -> bool {
        match Uri::parse(text) {
            Ok(Uri::Sip(uri)) => self.uri == uri,
            Ok(Uri::Tel(_) | Uri::Other { .. }) | Err(_) => false,
        }
    }
}

/// RFC 3261 §10.3 step 7: too brief is refused, too long is shortened.
fn granted(asked_s: u32, policy: &RegistrarPolicy) -> Result<u32, Rejection> {
    let min = policy.min_expires_s.min(NEVER_TOO_BRIEF_S);
    if asked_s != 0 && asked_s < min {
        return Err(Rejection::TooBrief(policy.min_expires_s));
    }
    Ok(asked_s.min(policy.max_expires_s.max(1)))
}

//! One Contact of a REGISTER, and the binding that it names.

use sip_message::header::NameAddr;
use sip_message::number::{decimal_u32, delta_seconds, qvalue};
use sip_message::{Host, SipUri, Uri};

use super::{MALFORMED_EXPIRES_S, MAX_CONTACT, MAX_INSTANCE, NEVER_TOO_BRIEF_S, Rejection};
use crate::config::RegistrarPolicy;
use crate::location::{Binding, Device, Identity};

/// A Contact of a REGISTER with its granted expiration.
#[derive(Clone, Debug)]
pub(super) struct NewContact<'a> {
    /// The URI as written, without angle brackets.
    pub(super) uri_text: &'a [u8],
    uri: SipUri<'a>,
    /// `+sip.instance` without its quotes; empty: none.
    pub(super) instance: &'a [u8],
    /// `reg-id`; 0: none.
    pub(super) reg_id: u32,
    /// The preference in thousandths, 0 to 1000.
    pub(super) q_milli: u16,
    /// The granted seconds; 0: the binding is to be removed.
    pub(super) expires_s: u32,
}

/// The parameters of a Contact that a registrar reads, found in one pass.
#[derive(Default)]
struct Parameters<'a> {
    q: Option<&'a [u8]>,
    expires: Option<&'a [u8]>,
    instance: Option<&'a [u8]>,
    reg_id: Option<&'a [u8]>,
}

impl<'a> Parameters<'a> {
    fn read(addr: &NameAddr<'a>) -> Self {
        let mut found = Self::default();
        for param in addr.params.iter() {
            // No parameter stands twice: the parser has checked that.
            match param.name.len() {
                1 if param.name.eq_ignore_ascii_case(b"q") => found.q = param.value,
                6 if param.name.eq_ignore_ascii_case(b"reg-id") => found.reg_id = param.value,
                7 if param.name.eq_ignore_ascii_case(b"expires") => found.expires = param.value,
                13 if param.name.eq_ignore_ascii_case(b"+sip.instance") => {
                    found.instance = Some(param.unquoted());
                }
                _ => {}
            }
        }
        found
    }
}

impl<'a> NewContact<'a> {
    pub(super) fn read(
        value: &'a [u8],
        header_expires: Option<u32>,
        policy: &RegistrarPolicy,
    ) -> Result<Self, Rejection> {
        let malformed = Rejection::Bad("Malformed Contact");
        let addr = NameAddr::parse(value).ok_or(malformed)?;
        let params = Parameters::read(&addr);
        let q_milli = match params.q {
            Some(q) => qvalue(q).ok_or(malformed)?,
            // RFC 3841 §7.2.3: a contact without q has q = 1.0.
            None => 1000,
        };
        let uri_text = addr.uri;
        let Some(uri) = addr.sip_uri() else {
            return Err(Rejection::Bad("Contact Is Not A SIP URI"));
        };
        let instance = params.instance.unwrap_or_default();
        if uri_text.len() > MAX_CONTACT || instance.len() > MAX_INSTANCE {
            return Err(Rejection::Bad("Contact Too Long"));
        }
        // The instance is written into responses between quotes.
        if instance
            .iter()
            .any(|c| c.is_ascii_control() || matches!(c, b'"' | b'\\'))
        {
            return Err(malformed);
        }
        // RFC 5626 §6: reg-id without an instance means nothing.
        let reg_id = match params.reg_id {
            Some(text) if !instance.is_empty() => decimal_u32(text).unwrap_or(0),
            Some(_) | None => 0,
        };
        let asked = params
            .expires
            .map(|text| delta_seconds(text).unwrap_or(MALFORMED_EXPIRES_S))
            .or(header_expires)
            .unwrap_or(policy.default_expires_s);
        Ok(Self {
            uri_text,
            uri,
            instance,
            reg_id,
            q_milli,
            expires_s: granted(asked, policy)?,
        })
    }

    /// The host to which requests for this contact may go. `None`: they go back only by the flow of its
    /// registration.
    pub(super) fn host(&self) -> Option<Host<'a>> {
        let only_flow = self.reg_id != 0 || self.uri.params.has(b"ob");
        (!only_flow).then(|| destination(&self.uri))
    }

    /// Whether requests for this contact go by TLS, and so not back by a datagram.
    pub(super) const fn is_secure(&self) -> bool {
        self.uri.secure
    }

    const fn identity(&self, device: Option<Device<'a>>) -> Identity<'a> {
        Identity {
            contact: self.uri_text,
            instance: self.instance,
            reg_id: self.reg_id,
            device,
        }
    }

    /// Whether this Contact names `binding`, in a REGISTER of `device`; `None`: of any.
    pub(super) fn names(&self, binding: &Binding, device: Option<Device<'a>>) -> bool {
        self.identity(device)
            .is(binding.identity(), || self.is_uri(&binding.contact))
    }

    /// Whether both name the same binding, in one REGISTER.
    pub(super) fn same_binding(&self, other: &NewContact<'_>) -> bool {
        self.identity(None)
            .is(other.identity(None), || self.uri == other.uri)
    }

    pub(super) fn is_uri(&self, text: &[u8]) -> bool {
        match Uri::parse(text) {
            Ok(Uri::Sip(uri)) => self.uri == uri,
            Ok(Uri::Tel(_) | Uri::Other { .. }) | Err(_) => false,
        }
    }
}

/// The host that a URI leads to: `maddr`, if there is one (RFC 3263 §4).
pub(crate) fn destination<'a>(uri: &SipUri<'a>) -> Host<'a> {
    let other = uri.params.value(b"maddr").and_then(Host::parse);
    other.unwrap_or(uri.host)
}

/// The granted interval (RFC 3261 §10.3 step 7). A requested interval that is too brief is refused; an
/// interval that is too long is shortened.
fn granted(asked_s: u32, policy: &RegistrarPolicy) -> Result<u32, Rejection> {
    let min = policy.min_expires_s.min(NEVER_TOO_BRIEF_S);
    if asked_s != 0 && asked_s < min {
        return Err(Rejection::TooBrief(policy.min_expires_s));
    }
    Ok(asked_s.min(policy.max_expires_s.max(1)))
}

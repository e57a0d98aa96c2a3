//! Headers that make a claim which only the operator's own network may make: who calls, who is
//! charged, where from. A stranger's are taken off, from requests and from responses alike, before
//! anybody behind us believes them.
//!
//! Not among them, on purpose: what its author signs (Identity, RFC 8224); what user agents are meant
//! to write (P-Preferred-Identity, which is checked; History-Info, RFC 7044; Privacy; Reason); and
//! Diversion (RFC 5806), which every PBX that forwards must write, and whose gateway must therefore
//! decide whom it believes.

use sip_message::{Field, HeaderName, Message};

use super::Engine;
use crate::transport::Flow;

/// Names in lower case, and when they are taken off. The first is [`HeaderName::PAssertedIdentity`].
const CLAIMS: [(&[u8], Strip); 16] = [
    // RFC 3325 §5.
    (b"p-asserted-identity", Strip::Always),
    // RFC 7315 §4.4: the phone writes it of itself; that the network saw it, it cannot say.
    (b"p-access-network-info", Strip::NetworkProvided),
    // RFC 6050: as P-Asserted-Identity, of the service.
    (b"p-asserted-service", Strip::Always),
    // RFC 7315 §4.2, §4.3: written by proxies of the domain only.
    (b"p-called-party-id", Strip::Always),
    // RFC 7315 §4.5, §4.6: who is charged, and where the records of the call are kept.
    (b"p-charging-function-addresses", Strip::Always),
    (b"p-charging-vector", Strip::Always),
    // RFC 5503: billing and interception between the switches of one operator.
    (b"p-dcs-billing-info", Strip::Always),
    (b"p-dcs-laes", Strip::Always),
    (b"p-dcs-osps", Strip::Always),
    (b"p-dcs-redirect", Strip::Always),
    (b"p-dcs-trace-party-id", Strip::Always),
    // RFC 7316: which private network a call belongs to, and so whom it may reach.
    (b"p-private-network-indication", Strip::Always),
    // RFC 5502: in whose name, and with whose rights, services run.
    (b"p-served-user", Strip::Always),
    // RFC 4457: where the user's data are.
    (b"p-user-database", Strip::Always),
    (b"p-visited-network-id", Strip::Always),
    // draft-ietf-sip-privacy: what P-Asserted-Identity was called before; gateways still read it.
    (b"remote-party-id", Strip::Always),
];

/// When a header is taken off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strip {
    /// Whatever it says.
    Always,
    /// Where it says that the network provided it.
    NetworkProvided,
}

/// The headers that are taken off what strangers send: names in lower case, and when. For who tests that none
/// gets through.
pub fn claims() -> impl Iterator<Item = (&'static [u8], Strip)> {
    CLAIMS.into_iter()
}

impl Engine {
    /// Takes off what `message` claims and its sender `from` (`None`: nobody knows) may not.
    pub(crate) fn strip_claims(&mut self, message: &Message<'_>, from: Option<&Flow>) {
        let of = |name| message.fields_named(name).filter(|f| is_claim(message, f));
        let mut claims = of(HeaderName::PAssertedIdentity)
            .chain(of(HeaderName::Other))
            .peekable();
        if claims.peek().is_none() || from.is_some_and(|flow| self.is_trusted(flow)) {
            return;
        }
        for field in claims {
            self.edits.delete(field.start as usize..field.end as usize);
        }
    }
}

#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "the other known headers claim nothing"
)]
fn is_claim(message: &Message<'_>, field: &Field) -> bool {
    match field.name {
        HeaderName::PAssertedIdentity => true,
        HeaderName::Other => {
            let name = message.field_name(field);
            // Most names that are not known begin with another letter.
            if !matches!(name.first(), Some(b'P' | b'p' | b'R' | b'r')) {
                return false;
            }
            let claim = CLAIMS.iter().find(|(claim, _)| claim.eq_ignore_ascii_case(name));
            claim.is_some_and(|(_, strip)| match strip {
                Strip::Always => true,
                Strip::NetworkProvided => says_network_provided(message.field_value(field)),
            })
        }
        _ => false,
    }
}

/// Whether one of the values of this P-Access-Network-Info says so. With it go the others of its line:
/// nobody else puts two values on one.
fn says_network_provided(value: &[u8]) -> bool {
    value
        .split(|c| matches!(c, b';' | b','))
        .any(|part| part.trim_ascii().eq_ignore_ascii_case(b"network-provided"))
}

//! Header fields in which only the operator's own network may make a claim: the identity of the caller, the
//! party that is charged, the origin of a call. These fields are removed from messages of untrusted sources,
//! requests and responses alike, before a server behind this one believes them.
//!
//! Some header fields are kept on purpose:
//! - header fields with a signature (Identity, RFC 8224);
//! - header fields that user agents write (P-Preferred-Identity, which is checked; History-Info, RFC 7044;
//!   Privacy; Reason);
//! - Diversion (RFC 5806), which every forwarding PBX writes: the gateway decides which PBX to trust.

use alloc::vec::Vec;
use core::ops::Range;

use sip_message::header::NameAddr;
use sip_message::{Field, HeaderName, Message};

use super::Engine;
use super::request::Request;
use crate::transport::Flow;

/// Names in lower case, and the condition of their removal. The first is [`HeaderName::PAssertedIdentity`].
const CLAIMS: [(&[u8], Strip); 26] = [
    // RFC 3325 §5.
    (b"p-asserted-identity", Strip::Always),
    // RFC 7315 §4.4: the phone writes it about itself, but cannot say that the network saw it.
    (b"p-access-network-info", Strip::NetworkProvided),
    // RFC 6050: as P-Asserted-Identity, of the service.
    (b"p-asserted-service", Strip::Always),
    // RFC 7315 §4.2, §4.3: written by proxies of the domain only.
    (b"p-called-party-id", Strip::Always),
    // RFC 7315 §4.5, §4.6: the party that is charged, and where the records of the call are kept.
    (b"p-charging-function-addresses", Strip::Always),
    (b"p-charging-vector", Strip::Always),
    // RFC 5503: billing and interception between the switches of one operator.
    (b"p-dcs-billing-info", Strip::Always),
    (b"p-dcs-laes", Strip::Always),
    (b"p-dcs-osps", Strip::Always),
    (b"p-dcs-redirect", Strip::Always),
    (b"p-dcs-trace-party-id", Strip::Always),
    // RFC 3313 §5: which media resources the network grants the phone.
    (b"p-media-authorization", Strip::Always),
    // RFC 5002: the key to the profile of the user or service that is called.
    (b"p-profile-key", Strip::Always),
    // RFC 7316: the private network that a call belongs to, and so the users that it may reach.
    (b"p-private-network-indication", Strip::Always),
    // RFC 5502: the user for whose services the request runs.
    (b"p-served-user", Strip::Always),
    // RFC 4457: where the user's data are.
    (b"p-user-database", Strip::Always),
    (b"p-visited-network-id", Strip::Always),
    // 3GPP TS 24.229 §7.2.20: further identities of the caller, as P-Asserted-Identity.
    (b"additional-identity", Strip::Always),
    // ATIS-1000074: what the network attests of the caller's number, and where the call came in.
    (b"attestation-info", Strip::Always),
    (b"origination-id", Strip::Always),
    // The same under the names that gateways used before.
    (b"p-attestation-indicator", Strip::Always),
    (b"p-origination-id", Strip::Always),
    // RFC 8496: the party that is charged.
    (b"p-charge-info", Strip::Always),
    // 3GPP TS 24.229 §7.2.14: what the call costs on its way.
    (b"relayed-charge", Strip::Always),
    // RFC 5373 §8: the phone answers by itself, past its own settings.
    (b"priv-answer-mode", Strip::Always),
    // draft-ietf-sip-privacy: what P-Asserted-Identity was called before; gateways still read it.
    (b"remote-party-id", Strip::Always),
];

/// The condition for the removal of a header field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strip {
    /// The header field is always removed.
    Always,
    /// The header field is removed if it says that the network provided it.
    NetworkProvided,
}

/// The header fields that are removed from messages of untrusted sources: names in lower case, and the
/// condition. Tests use them to check that none gets through.
pub fn claims() -> impl Iterator<Item = (&'static [u8], Strip)> {
    CLAIMS.into_iter()
}

impl Engine {
    /// Removes the claims in `message` that its source `from` may not make.
    pub(crate) fn strip_asserted_identity(&mut self, message: &Message<'_>, from: &Flow) {
        let of = |name| message.fields_named(name).filter(|f| is_claim(message, f));
        let mut claims = of(HeaderName::PAssertedIdentity)
            .chain(of(HeaderName::Other))
            .peekable();
        if claims.peek().is_none() || self.is_trusted(from) {
            return;
        }
        for field in claims {
            self.edits.delete(field.start as usize..field.end as usize);
        }
    }

    /// Removes `verstat` from From and P-Preferred-Identity of untrusted sources. By `verstat` a network says
    /// that it has verified the caller's number. The From of the response may differ, since a dialog is
    /// identified by its tags.
    pub(crate) fn strip_verstat(&mut self, request: &Request<'_>) {
        let (message, from) = (&request.message, &request.flow);
        let preferred = message.fields_named(HeaderName::PPreferredIdentity);
        // Nearly always the tag is the only parameter.
        let skipped = usize::from(has_only_tag(&request.from));
        let of_from = message.fields_named(HeaderName::From).take(1).skip(skipped);
        for field in of_from.chain(preferred) {
            let mut params = verstat_params(message.field_value(field)).peekable();
            if params.peek().is_none() {
                continue;
            }
            if self.is_trusted(from) {
                return;
            }
            for param in params {
                let at = field.value as usize;
                self.edits.delete(at + param.start..at + param.end);
            }
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
            if !matches!(name.first().map(|c| c | 0x20), Some(b'p' | b'r' | b'a' | b'o')) {
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

/// Whether this P-Access-Network-Info has `network-provided` in any form that some parser accepts: quoted,
/// escaped, or as a parameter's value. The other values of its line are removed with it: no other sender puts
/// two on one line.
fn says_network_provided(value: &[u8]) -> bool {
    const WORD: &[u8] = b"network-provided";
    let is_here = |text: &[u8]| text.windows(WORD.len()).any(|w| w.eq_ignore_ascii_case(WORD));
    if !value.contains(&b'\\') {
        return is_here(value);
    }
    let plain: Vec<u8> = value.iter().copied().filter(|c| *c != b'\\').collect();
    is_here(&plain)
}

/// The parameter of an identity that says whether the network has verified its number
/// (3GPP TS 24.229 §7.2A.20).
const VERSTAT: &[u8] = b"verstat";

/// Whether an address has no parameters but `tag`, neither in its URI nor behind it.
#[inline]
fn has_only_tag(addr: &NameAddr<'_>) -> bool {
    let tag = addr.tag().unwrap_or_default();
    let params = addr.params.as_bytes();
    let is_tag = params.len() == b";tag=".len() + tag.len() && params.starts_with(b";tag=");
    is_tag && memchr::memchr(b';', addr.uri).is_none()
}

/// The range of each `;verstat=…` in a value.
fn verstat_params(value: &[u8]) -> impl Iterator<Item = Range<usize>> {
    let ends = |c: &u8| matches!(c, b';' | b'@' | b'>' | b'<' | b',' | b'"' | b'?');
    let mut at = 0;
    core::iter::from_fn(move || {
        loop {
            let start = at + memchr::memchr(b';', value.get(at..)?)?;
            let rest = value.get(start + 1..)?;
            at = start + 1;
            let blanks = rest.iter().take_while(|c| matches!(c, b' ' | b'\t')).count();
            let rest = rest.get(blanks..)?;
            // The parameter is nearly always the tag.
            if !matches!(rest.first(), Some(b'v' | b'V' | b'%')) {
                continue;
            }
            let mut len = rest.iter().position(ends).unwrap_or(rest.len());
            let written = rest.get(..len)?;
            let name = written.split(|c| *c == b'=').next().unwrap_or_default();
            if is_verstat(name.trim_ascii()) {
                // A value in quotes may hold the characters of `ends`.
                if written.trim_ascii_end().ends_with(b"=") && rest.get(len) == Some(&b'"') {
                    len += quoted_len(rest.get(len..)?);
                }
                at = start + 1 + blanks + len;
                return Some(start..at);
            }
        }
    })
}

/// Whether a parameter's name is `verstat`. Escapes are decoded, since another server may decode them.
fn is_verstat(name: &[u8]) -> bool {
    if memchr::memchr(b'%', name).is_none() {
        return name.eq_ignore_ascii_case(VERSTAT);
    }
    let mut plain = Vec::with_capacity(name.len());
    let mut rest = name;
    while let Some((first, after)) = rest.split_first() {
        let escaped = after.get(..2).filter(|_| *first == b'%');
        let byte = escaped.and_then(|digits| u8::from_str_radix(core::str::from_utf8(digits).ok()?, 16).ok());
        plain.push(byte.unwrap_or(*first));
        rest = if byte.is_some() {
            after.get(2..).unwrap_or_default()
        } else {
            after
        };
    }
    plain.eq_ignore_ascii_case(VERSTAT)
}

/// The length of the quoted string at the front, its quotes included. If the string does not end, it is all
/// of `text`.
fn quoted_len(text: &[u8]) -> usize {
    let mut is_escaped = true;
    let end = text.iter().position(|c| {
        let ends = *c == b'"' && !is_escaped;
        is_escaped = *c == b'\\' && !is_escaped;
        ends
    });
    end.map_or(text.len(), |end| end + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verstat_is_found_where_it_is_a_parameter() {
        for (value, expected) in [
            ("<sip:+1;verstat=TN-Validation-Passed@b>;tag=1", &["7..36"][..]),
            ("<tel:+1;VerStat=x;y>;tag=1", &["7..17"]),
            (
                "<sip:+1@b;user=phone;verstat>;verstat=y;tag=1",
                &["20..28", "29..39"],
            ),
            ("<sip:+1@b>; verstat = y", &["10..23"]),
            ("<sip:+1@b>;tag=verstat", &[]),
            ("<sip:+1@b;verstatus=1>;tag=1", &[]),
            ("<sip:+1@b>;", &[]),
            ("<sip:+1@b>;verstat=\"a;b\\\"c\";tag=1", &["10..27"]),
            ("<sip:+1@b>;verstat=\"open;tag=1", &["10..30"]),
            ("<sip:+1;ver%73tat=x@b>;%56erstat=y;tag=1", &["7..19", "22..34"]),
            ("\"verstat=1\" <sip:+1@b>", &[]),
        ] {
            let found: Vec<_> = verstat_params(value.as_bytes())
                .map(|range| alloc::format!("{range:?}"))
                .collect();
            assert_eq!(found, expected, "{value}");
        }
    }

    #[test]
    fn what_the_network_provided_is_known_in_any_form() {
        for value in [
            &b"IEEE-802.11; network-provided"[..],
            b"IEEE-802.11;NETWORK-Provided",
            b"IEEE-802.11;\"network-provided\"",
            b"IEEE-802.11;\"network\\-provided\"",
            b"IEEE-802.11;np=network-provided;x",
        ] {
            assert!(says_network_provided(value), "{}", value.escape_ascii());
        }
        assert!(!says_network_provided(b"IEEE-802.11;i-wlan-node-id=00112233"));
    }
}

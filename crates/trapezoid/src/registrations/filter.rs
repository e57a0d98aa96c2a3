//! Filters of registrations for operators.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use settings::network;
use sip_core::config::Network;
use sip_core::location::aor;
use sip_core::location::codec::BindingRef;

/// Conditions of a list, all of which must hold. An absent condition always holds.
#[derive(Debug, Default)]
pub(crate) struct Filter {
    /// The whole user part, case-sensitive, without escapes.
    pub user: Option<Vec<u8>>,
    /// The whole domain, lower case.
    pub domain: Option<Vec<u8>>,
    /// A part of the contact's URI, case-insensitive.
    pub contact: Option<Vec<u8>>,
    /// The source of the REGISTER.
    pub source: Option<Origin>,
    /// A part of the User-Agent, case-insensitive.
    pub user_agent: Option<Vec<u8>>,
}

impl Filter {
    /// The only address-of-record that can match, if there is one.
    pub(super) fn address_of_record(&self) -> Option<Vec<u8>> {
        let (user, domain) = (self.user.as_deref()?, self.domain.as_deref()?);
        Some([user, b"@", domain].concat())
    }

    /// Whether bindings of this address-of-record may match.
    pub(super) fn names(&self, aor: &[u8]) -> bool {
        let (user, domain) = aor::parts(aor);
        let is =
            |wanted: &Option<Vec<u8>>, part: &[u8]| wanted.as_deref().is_none_or(|wanted| wanted == part);
        is(&self.user, user) && is(&self.domain, domain)
    }

    /// Whether this binding of a matching address-of-record matches.
    pub(super) fn wants(&self, binding: &BindingRef<'_>) -> bool {
        let has = |wanted: &Option<Vec<u8>>, text: &[u8]| {
            let wanted = wanted.as_deref();
            wanted.is_none_or(|wanted| contains(text, wanted))
        };
        has(&self.contact, binding.contact)
            && has(&self.user_agent, binding.user_agent)
            && self
                .source
                .as_ref()
                .is_none_or(|source| source.contains(binding.received.remote))
    }
}

/// Contacts to remove from an address-of-record: those to which all applies that is given. The default chooses
/// all.
#[derive(Debug, Default)]
pub(crate) struct Choice {
    /// URI of the contact, compared as RFC 3261 §19.1.4 says.
    pub contact: Option<Vec<u8>>,
    /// The source of the REGISTER. Phones behind several NATs may have one contact URI.
    pub source: Option<Origin>,
}

impl Choice {
    pub(super) fn is_from(&self, remote: SocketAddr) -> bool {
        self.source.as_ref().is_none_or(|source| source.contains(remote))
    }
}

/// Whether `part` occurs in `text`, case-insensitive.
fn contains(text: &[u8], part: &[u8]) -> bool {
    part.is_empty()
        || text
            .windows(part.len())
            .any(|window| window.eq_ignore_ascii_case(part))
}

/// The source of a REGISTER: an address, a network, or an address with a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Any address of the network, with any port.
    Network(Network),
    /// This address and port.
    Socket(SocketAddr),
}

impl Origin {
    fn contains(&self, remote: SocketAddr) -> bool {
        match self {
            Self::Network(network) => network.contains(remote.ip()),
            Self::Socket(socket) => {
                let canonical = |ip: IpAddr| ip.to_canonical();
                canonical(socket.ip()) == canonical(remote.ip()) && socket.port() == remote.port()
            }
        }
    }
}

impl FromStr for Origin {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Ok(socket) = text.parse() {
            return Ok(Self::Socket(socket));
        }
        let remedy = "write an address, a network or an address with a port, as 192.0.2.7, 192.0.2.0/24 or 192.0.2.7:5060";
        network(text).map(Self::Network).ok_or(remedy)
    }
}

/// The canonical form of an address-of-record that is written as `USER@DOMAIN`. Escapes in the user part are
/// decoded, and the domain's case does not matter.
pub(crate) fn canonical(text: &str) -> Option<Box<[u8]>> {
    let (user, domain) = text.rsplit_once('@')?;
    if user.is_empty() || domain.is_empty() {
        return None;
    }
    let mut out = Vec::with_capacity(text.len());
    aor::unescape(user.as_bytes(), &mut out);
    out.push(b'@');
    out.extend(domain.bytes().map(|c| c.to_ascii_lowercase()));
    Some(out.into_boxed_slice())
}

/// The address-of-record as text: characters that a URI's user part may not contain are escaped.
pub(crate) fn written(aor: &[u8]) -> String {
    let (user, domain) = aor::parts(aor);
    let mut out = Vec::with_capacity(aor.len());
    aor::escape_user(user, &mut out);
    out.push(b'@');
    out.extend_from_slice(domain);
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use sip_core::location::AorRecord;
    use sip_core::location::Binding;
    use sip_core::location::codec::{RecordRef, encode};

    use super::super::tests::binding;
    use super::*;

    fn wants(filter: &Filter, aor: &str, binding: Binding) -> bool {
        let mut bytes = Vec::new();
        let record = AorRecord {
            bindings: vec![binding],
            ..AorRecord::default()
        };
        encode(&record, &mut bytes);
        let record = RecordRef::new(&bytes).expect("a record");
        let binding = record.bindings().next().expect("one").expect("whole");
        filter.names(aor.as_bytes()) && filter.wants(&binding)
    }

    fn text(text: &str) -> Option<Vec<u8>> {
        Some(text.as_bytes().to_vec())
    }

    #[test]
    fn each_condition_of_the_filter_holds() {
        let origin = |text: &str| Filter {
            source: Some(text.parse().expect("an origin")),
            ..Filter::default()
        };
        let filter = |key: &str, value: &str| {
            let mut filter = Filter::default();
            let field = match key {
                "user" => &mut filter.user,
                "domain" => &mut filter.domain,
                "contact" => &mut filter.contact,
                "user-agent" => &mut filter.user_agent,
                _ => return origin(value),
            };
            *field = text(value);
            filter
        };
        // A contact sip:bob@192.0.2.17:5062, from 192.0.2.17:5062, by "Example Phone 2.1".
        for (key, value, is) in [
            ("user", "bob", true),
            ("user", "Bob", false),
            ("user", "bo", false),
            ("domain", "example.com", true),
            ("domain", "example", false),
            ("contact", "BOB@192.0.2.17", true),
            ("contact", "sip:bob@192.0.2.17:5062", true),
            ("contact", "carol", false),
            ("contact", "sip:bob@192.0.2.17:5062;more", false),
            ("source", "192.0.2.17", true),
            ("source", "192.0.2.17:5062", true),
            ("source", "[::ffff:192.0.2.17]:5062", true),
            ("source", "192.0.2.17:5063", false),
            ("source", "192.0.2.0/24", true),
            ("source", "192.0.3.0/24", false),
            ("source", "2001:db8::/32", false),
            ("user-agent", "phone 2", true),
            ("user-agent", "phone 3", false),
        ] {
            let found = wants(&filter(key, value), "bob@example.com", binding("bob", 2_000));
            assert_eq!(found, is, "{key} {value}");
        }
        let mut both = filter("user", "bob");
        both.user_agent = text("Another");
        assert!(!wants(&both, "bob@example.com", binding("bob", 2_000)));
        assert!(wants(
            &Filter::default(),
            "bob@example.com",
            binding("bob", 2_000)
        ));
    }

    #[test]
    fn what_is_no_origin() {
        for wrong in ["", "example.com", "192.0.2", "192.0.2.1/33", "192.0.2.1:70000"] {
            assert!(wrong.parse::<Origin>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn addresses_of_record_are_written_as_in_a_uri() {
        for (given, canonical_form, shown) in [
            ("bob@Example.COM", &b"bob@example.com"[..], "bob@example.com"),
            ("Bob@x", b"Bob@x", "Bob@x"),
            ("a%40b@x", b"a@b@x", "a%40b@x"),
            ("a@b@x", b"a@b@x", "a%40b@x"),
            ("%FF%25@x", b"\xff%@x", "%FF%25@x"),
        ] {
            assert_eq!(canonical(given).as_deref(), Some(canonical_form), "{given}");
            assert_eq!(written(canonical_form), shown);
        }
        for wrong in ["", "bob", "@x", "bob@"] {
            assert_eq!(canonical(wrong), None, "{wrong}");
        }
    }
}

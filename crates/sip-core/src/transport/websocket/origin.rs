//! The origins of pages that may open a connection (RFC 6455 §10.2, RFC 6454).

use alloc::boxed::Box;
use alloc::string::String;
use core::fmt;

/// The origins of pages that may connect. Browsers send the Origin, and a page cannot make them lie. Clients
/// that are no browsers send none, or any they like, and are not held back by this list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowedOrigins(Option<Box<[String]>>);

/// An entry that no browser would ever send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadOrigin(pub String);

impl fmt::Display for BadOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "`{}` is no origin: scheme://host or scheme://host:port, without a path",
            self.0
        )
    }
}

impl core::error::Error for BadOrigin {}

impl AllowedOrigins {
    /// A list by which any client may connect.
    pub const fn any() -> Self {
        Self(None)
    }

    /// A list of these origins, each `scheme://host` or `scheme://host:port`, or `null` (pages without an
    /// origin of their own). Clients that send no Origin may connect, too.
    ///
    /// # Errors
    /// [`BadOrigin`]: the first entry that is none of these.
    pub fn only<'a>(origins: impl IntoIterator<Item = &'a str>) -> Result<Self, BadOrigin> {
        let serialized = |entry: &str| serialize(entry).ok_or_else(|| BadOrigin(entry.into()));
        let origins = origins.into_iter().map(serialized).collect::<Result<_, _>>()?;
        Ok(Self(Some(origins)))
    }

    /// Whether a request with this Origin may connect. Scheme and host are compared without regard to case.
    pub fn allows(&self, origin: Option<&[u8]>) -> bool {
        match (&self.0, origin) {
            (None, _) | (_, None) => true,
            (Some(allowed), Some(origin)) => allowed
                .iter()
                .any(|entry| entry.as_bytes().eq_ignore_ascii_case(origin)),
        }
    }
}

/// An origin as a browser writes it (RFC 6454 §6.1): in lower case, without the default port of the scheme.
fn serialize(entry: &str) -> Option<String> {
    let mut origin = entry.to_ascii_lowercase();
    if origin == "null" {
        return Some(origin);
    }
    let (scheme, authority) = origin.split_once("://")?;
    let scheme_is_one = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'));
    let (host, port) = match authority.rsplit_once(':') {
        // The last colon of an IPv6 reference does not stand before a port.
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (authority, None),
    };
    sip_message::Host::parse(host.as_bytes()).filter(|_| scheme_is_one)?;
    if let Some(port) = port {
        let port = sip_message::number::port(port.as_bytes())?;
        if matches!((scheme, port), ("http" | "ws", 80) | ("https" | "wss", 443)) {
            origin.truncate(scheme.len() + "://".len() + host.len());
        }
    }
    Some(origin)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_lets_in_what_is_on_it_and_what_has_no_origin() {
        let list = AllowedOrigins::only([
            "https://Phone.Example.com:443",
            "http://127.0.0.1:8080",
            "http://[2001:DB8::1]",
            "https://[::1]:8443",
        ])
        .unwrap();
        for allowed in [
            "https://phone.example.com",
            "HTTPS://PHONE.example.com",
            "http://127.0.0.1:8080",
            "http://[2001:db8::1]",
            "https://[::1]:8443",
        ] {
            assert!(list.allows(Some(allowed.as_bytes())), "{allowed}");
        }
        for refused in [
            "",
            "null",
            "http://phone.example.com",
            "https://phone.example.com:8443",
            "https://phone.example.com.evil.example",
            "https://evil.example/https://phone.example.com",
            "https://phone.example.com https://evil.example",
            "https://sub.phone.example.com",
            "http://127.0.0.1",
        ] {
            assert!(!list.allows(Some(refused.as_bytes())), "{refused}");
        }
        assert!(list.allows(None));
        assert!(AllowedOrigins::any().allows(Some(b"https://evil.example")));
        assert!(AllowedOrigins::only([]).unwrap().allows(None));
        assert!(!AllowedOrigins::only([]).unwrap().allows(Some(b"null")));
        assert!(AllowedOrigins::only(["null"]).unwrap().allows(Some(b"null")));
    }

    #[test]
    fn entries_that_could_never_match_are_errors() {
        for entry in [
            "",
            "*",
            "phone.example.com",
            "https://",
            "https://phone.example.com/",
            "https://*.example.com",
            "https://a@b",
            "https://a b",
            "https://a:0",
            "https://a:65536",
            "https://a:",
            "://a",
            "1://a",
        ] {
            assert_eq!(
                AllowedOrigins::only([entry]),
                Err(BadOrigin(entry.into())),
                "{entry}"
            );
        }
    }
}

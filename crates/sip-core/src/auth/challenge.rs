//! Challenges as header lines, and the credentials for them.

use alloc::vec::Vec;
use core::ops::Range;

use sip_message::header::AuthValue;
use sip_message::{HeaderName, Message};

use super::digest::{Hash, QopAuth, parse_nonce_count};
use super::nonce::Nonce;
use super::window::NO_COUNT;
use crate::config::{Algorithm, AuthPolicy};

/// The role in which this server challenges (RFC 3261 §22.2, §22.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Registrar or user agent server: 401, WWW-Authenticate, Authorization.
    Server,
    /// Proxy: 407, Proxy-Authenticate, Proxy-Authorization.
    Proxy,
}

impl Role {
    /// Status of the response that carries the challenge.
    pub const fn status(self) -> u16 {
        match self {
            Self::Server => 401,
            Self::Proxy => 407,
        }
    }

    /// Header of the challenge.
    pub const fn challenge_header(self) -> HeaderName {
        match self {
            Self::Server => HeaderName::WwwAuthenticate,
            Self::Proxy => HeaderName::ProxyAuthenticate,
        }
    }

    /// Header of the credentials.
    pub const fn credentials_header(self) -> HeaderName {
        match self {
            Self::Server => HeaderName::Authorization,
            Self::Proxy => HeaderName::ProxyAuthorization,
        }
    }
}

/// Appends one header line for each algorithm that `policy` offers, in order of preference
/// (RFC 8760 §2.3), all with the same nonce. RFC 3261 §22.4 rule 8: `qop` is always sent.
pub fn write(out: &mut Vec<u8>, role: Role, policy: &AuthPolicy, nonce: &Nonce, stale: bool) {
    for algorithm in &policy.algorithms {
        out.extend_from_slice(role.challenge_header().as_str().as_bytes());
        out.extend_from_slice(b": Digest realm=\"");
        for &c in &policy.realm {
            if matches!(c, b'"' | b'\\') {
                out.push(b'\\');
            }
            out.push(c);
        }
        out.extend_from_slice(b"\", nonce=\"");
        out.extend_from_slice(nonce.as_bytes());
        out.extend_from_slice(b"\", qop=\"auth\", algorithm=");
        out.extend_from_slice(algorithm.name().as_bytes());
        if stale {
            out.extend_from_slice(b", stale=true");
        }
        out.extend_from_slice(b"\r\n");
    }
}

/// Digest credentials for a challenge of ours; texts without their quotes.
#[derive(Clone, Debug)]
pub struct Credentials<'a> {
    /// `username`, escapes left as they are.
    pub username: &'a [u8],
    /// `nonce`.
    pub nonce: &'a [u8],
    /// `uri`.
    pub uri: &'a [u8],
    /// `response`.
    pub response: Hash,
    /// `algorithm`; MD5 if none was given (RFC 7616 §3.4).
    pub algorithm: Algorithm,
    /// `qop=auth` with its companions; `None`: no `qop` was given.
    pub qop: Option<QopAuth<'a>>,
    /// `nc` as a number; [`NO_COUNT`] without `qop`.
    pub count: u32,
    /// `userhash=true`: `username` is a hash. We do not offer it, so no user is known by it.
    pub userhash: bool,
}

/// The credentials found in a request.
#[derive(Clone, Debug)]
pub enum Found<'a> {
    /// No credentials for this realm with an algorithm that we offer: challenge.
    None,
    /// Credentials for this realm that lack a part or have an impossible one: 400 (RFC 2617 §3.2.2; RFC 7616
    /// §3.4).
    Malformed,
    /// Credentials that can be read; they remain to be checked.
    Credentials(Credentials<'a>),
}

/// Picks the credentials for `policy`'s realm from a request. Credentials for other realms, in other schemes,
/// and with algorithms that we do not offer are left alone; of several the first counts.
pub fn find<'a>(message: &Message<'a>, role: Role, policy: &AuthPolicy) -> Found<'a> {
    for field in message.fields_named(role.credentials_header()) {
        let Some(value) = AuthValue::parse(message.field_value(field)) else {
            continue;
        };
        if !value.is_digest() || !is_realm(&value, &policy.realm) {
            continue;
        }
        let algorithm = match value.params.unquoted(b"algorithm") {
            None => Some(Algorithm::Md5),
            Some(name) => Algorithm::parse(name),
        };
        let Some(algorithm) = algorithm.filter(|a| policy.algorithms.contains(a)) else {
            continue;
        };
        return read(&value, algorithm).map_or(Found::Malformed, Found::Credentials);
    }
    Found::None
}

fn read<'a>(value: &AuthValue<'a>, algorithm: Algorithm) -> Option<Credentials<'a>> {
    let get = |name: &[u8]| value.params.unquoted(name);
    let qop = match get(b"qop") {
        None => None,
        // Only "auth" is offered.
        Some(qop) if qop.eq_ignore_ascii_case(b"auth") => Some(QopAuth {
            qop,
            nc: get(b"nc")?,
            cnonce: get(b"cnonce")?,
        }),
        Some(_) => return None,
    };
    let count = match qop {
        // RFC 7616 §3.4: counts begin at 1.
        Some(qop) => parse_nonce_count(qop.nc).filter(|&n| n != NO_COUNT)?,
        None => NO_COUNT,
    };
    Some(Credentials {
        username: get(b"username").filter(|u| !u.is_empty())?,
        nonce: get(b"nonce")?,
        uri: get(b"uri")?,
        response: Hash::from_hex(algorithm, get(b"response")?)?,
        algorithm,
        qop,
        count,
        userhash: get(b"userhash").is_some_and(|v| v.eq_ignore_ascii_case(b"true")),
    })
}

fn is_realm(value: &AuthValue<'_>, realm: &[u8]) -> bool {
    let Some(text) = value.params.unquoted(b"realm") else {
        return false;
    };
    unescaped(text).eq(realm.iter().copied())
}

/// Header lines (spans of [`Message::source`]) with credentials for `realm`, in both roles. Such credentials
/// are used up here, and no other server needs them (RFC 3261 §22.3).
pub fn own_credentials<'a>(message: &Message<'a>, realm: &[u8]) -> impl Iterator<Item = Range<usize>> {
    [HeaderName::Authorization, HeaderName::ProxyAuthorization]
        .into_iter()
        .flat_map(|name| message.fields_named(name))
        .filter(move |field| {
            let text = message.field_value(field);
            match AuthValue::parse(text) {
                Some(value) => is_realm(&value, realm) || asks_realm(text, realm),
                // Another parser may understand a line that this one cannot: it is dropped rather than
                // leaked.
                None => asks_realm(text, realm) || is_quoted_in(text, realm),
            }
        })
        .map(|field| field.start as usize..field.end as usize)
}

/// Whether `realm = …` stands anywhere in `text`. Another parser may find parameters that this parser does
/// not find, or take a second `realm` instead of the first.
fn asks_realm(text: &[u8], realm: &[u8]) -> bool {
    let names = text.windows(5).enumerate();
    let mut names = names.filter(|(_, name)| name.eq_ignore_ascii_case(b"realm"));
    names.any(|(at, name)| {
        let behind = text.get(at + name.len()..).unwrap_or_default().trim_ascii_start();
        let value = behind.strip_prefix(b"=").map(<[u8]>::trim_ascii_start);
        value.is_some_and(|value| match value.strip_prefix(b"\"") {
            Some(quoted) => unescaped(quoted).eq(realm.iter().copied()),
            None => value.strip_prefix(realm).is_some_and(|rest| {
                let next = rest.first();
                next.is_none_or(|c| c.is_ascii_whitespace() || matches!(c, b',' | b';'))
            }),
        })
    })
}

/// The text before the closing quote, without the backslashes of quoted pairs (RFC 3261 §25.1).
fn unescaped(quoted: &[u8]) -> impl Iterator<Item = u8> {
    let mut rest = quoted.iter().copied();
    core::iter::from_fn(move || match rest.next() {
        Some(b'"') => None,
        Some(b'\\') => rest.next(),
        other => other,
    })
}

/// Whether the realm stands between quotes somewhere in `text`.
fn is_quoted_in(text: &[u8], realm: &[u8]) -> bool {
    let len = realm.len() + 2;
    text.windows(len)
        .any(|w| w.first() == Some(&b'"') && w.last() == Some(&b'"') && w.get(1..len - 1) == Some(realm))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::nonce::NonceSource;
    use alloc::format;
    use alloc::string::String;
    use alloc::vec;
    use sip_message::HeaderIndex;

    fn policy(algorithms: &[Algorithm]) -> AuthPolicy {
        AuthPolicy {
            realm: b"example.com".as_slice().into(),
            methods: vec![],
            algorithms: algorithms.into(),
            nonce_lifetime_s: 300,
            strict_uri: false,
        }
    }

    fn with_request<T>(lines: &str, f: impl FnOnce(&Message<'_>) -> T) -> T {
        let text = format!("REGISTER sip:example.com SIP/2.0\r\n{lines}\r\n");
        let mut index = HeaderIndex::new();
        f(&sip_message::parse(text.as_bytes(), &mut index, 64).unwrap())
    }

    const GOOD: &str = "username=\"alice\", realm=\"example.com\", nonce=\"n\", uri=\"sip:example.com\", \
        response=\"8ca523f5e9506fed4657c9700eebdbec\", qop=auth, nc=00000002, cnonce=\"c\"";

    #[test]
    fn one_line_for_each_algorithm_in_order() {
        let nonce = NonceSource::new(&[1; 32], &[2; 32], 0).issue(
            0,
            b"example.com",
            core::net::Ipv4Addr::LOCALHOST.into(),
        );
        let n = String::from_utf8(nonce.as_bytes().to_vec()).unwrap();
        let mut out = vec![];
        write(
            &mut out,
            Role::Server,
            &policy(&[Algorithm::Sha256, Algorithm::Md5]),
            &nonce,
            false,
        );
        assert_eq!(
            String::from_utf8(out).unwrap(),
            format!(
                "WWW-Authenticate: Digest realm=\"example.com\", nonce=\"{n}\", qop=\"auth\", algorithm=SHA-256\r\n\
                 WWW-Authenticate: Digest realm=\"example.com\", nonce=\"{n}\", qop=\"auth\", algorithm=MD5\r\n"
            )
        );
        let mut odd = policy(&[Algorithm::Sha512_256]);
        odd.realm = b"a\"b\\".as_slice().into();
        let mut out = vec![];
        write(&mut out, Role::Proxy, &odd, &nonce, true);
        assert_eq!(
            String::from_utf8(out).unwrap(),
            format!(
                "Proxy-Authenticate: Digest realm=\"a\\\"b\\\\\", nonce=\"{n}\", qop=\"auth\", \
                 algorithm=SHA-512-256, stale=true\r\n"
            )
        );
        with_request(r#"Authorization: Digest realm="a\"b\\", x=y"#, |m| {
            let value = AuthValue::parse(m.value(HeaderName::Authorization).unwrap()).unwrap();
            assert!(is_realm(&value, b"a\"b\\"));
            assert!(!is_realm(&value, b"a\"b"));
        });
    }

    #[test]
    fn finds_the_credentials_for_our_realm() {
        let lines = format!(
            "Authorization: Basic QWxhZGRpbg== \r\n\
             Authorization: Digest username=\"x\", realm=\"elsewhere\", nonce=\"\"\r\n\
             Authorization: Digest algorithm=SHA-256, {GOOD}\r\n\
             Proxy-Authorization: Digest algorithm=MD5, {}\r\n\
             Authorization: Digest {GOOD}\r\n",
            GOOD.replace("alice", "proxy")
        );
        with_request(&lines, |m| {
            // The credentials of SHA-256 would be malformed, but that algorithm is not offered.
            let got = find(m, Role::Server, &policy(&[Algorithm::Md5]));
            let Found::Credentials(c) = got else {
                panic!("{got:?}")
            };
            assert_eq!(
                (c.username, c.nonce, c.uri, c.count),
                (&b"alice"[..], &b"n"[..], &b"sip:example.com"[..], 2)
            );
            assert_eq!(
                c.qop,
                Some(QopAuth {
                    qop: b"auth",
                    nc: b"00000002",
                    cnonce: b"c"
                })
            );
            let both = policy(&[Algorithm::Md5, Algorithm::Sha256]);
            assert!(matches!(find(m, Role::Server, &both), Found::Malformed));
            let got = find(m, Role::Proxy, &both);
            let Found::Credentials(c) = got else {
                panic!("{got:?}")
            };
            assert_eq!(c.username, b"proxy");
            assert!(matches!(
                find(m, Role::Server, &policy(&[Algorithm::Sha512_256])),
                Found::None
            ));
            let mut other = both;
            other.realm = b"Example.com".as_slice().into();
            assert!(matches!(find(m, Role::Server, &other), Found::None));
        });
    }

    #[test]
    fn missing_and_impossible_parts_are_malformed() {
        for (from, to) in [
            ("username=\"alice\", ", ""),
            ("username=\"alice\"", "username=\"\""),
            ("nonce=\"n\", ", ""),
            ("uri=\"sip:example.com\", ", ""),
            ("8ca523f5e9506fed4657c9700eebdbec", "8ca5"),
            ("qop=auth", "qop=auth-int"),
            (", nc=00000002", ""),
            ("00000002", "2"),
            ("00000002", "00000000"),
            (", cnonce=\"c\"", ""),
        ] {
            let line = format!("Authorization: Digest {}\r\n", GOOD.replace(from, to));
            with_request(&line, |m| {
                let found = find(m, Role::Server, &policy(&[Algorithm::Md5]));
                assert!(matches!(found, Found::Malformed), "{from} -> {to}: {found:?}");
            });
        }
        // RFC 3261 §22.4 rule 8: qop may be missing.
        let line = format!(
            "Authorization: Digest {}\r\n",
            GOOD.split(", qop").next().unwrap()
        );
        with_request(&line, |m| {
            let got = find(m, Role::Server, &policy(&[Algorithm::Md5]));
            let Found::Credentials(c) = got else {
                panic!("{got:?}")
            };
            assert_eq!((c.qop, c.count), (None, NO_COUNT));
        });
    }

    #[test]
    fn own_credentials_are_found_for_removal() {
        let lines = "Proxy-Authorization: Digest realm=\"example.com\", a=b\r\n\
             Authorization: Digest realm=\"elsewhere\", a=b\r\n\
             Authorization: Digest realm=\"example.com\", a=b,\r\n c=d\r\n\
             Proxy-Authorization: Digest realm=\"x\", a=b, Digest realm=\"example.com\", a=b\r\n\
             Authorization: Digest realm= realm=\"example.com\", a=b\r\n\
             Authorization: Digest reaml= Realm = \"example.com\", a=b\r\n\
             Authorization: Digest realm=\"elsewhere\", username=\"example.com\"\r\n\
             Authorization: Digest realm=x, realm=example.com\r\n\
             Authorization: Digest realm=x, realm=example.community, realm=\"example.com2\"\r\n\
             Authorization: Digest realm=x, realm=\"exam\\ple.com\"\r\n\
             Subject: \"example.com\"\r\n";
        with_request(lines, |m| {
            let found: Vec<_> = own_credentials(m, b"example.com").map(|r| m.text(r)).collect();
            assert_eq!(found.len(), 7);
            assert_eq!(
                found[0],
                b"Authorization: Digest realm=\"example.com\", a=b,\r\n c=d\r\n"
            );
            assert!(found[1].starts_with(b"Authorization: Digest realm= realm="));
            assert!(found[2].starts_with(b"Authorization: Digest reaml= Realm = "));
            assert!(found[3].ends_with(b"realm=example.com\r\n"));
            assert!(found[4].ends_with(b"realm=\"exam\\ple.com\"\r\n"));
            assert!(found[5].starts_with(b"Proxy-Authorization: Digest realm=\"example.com\""));
            assert!(found[6].starts_with(b"Proxy-Authorization: Digest realm=\"x\""));
            assert_eq!(own_credentials(m, b"nowhere").count(), 0);
        });
    }
}

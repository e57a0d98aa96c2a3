//! SIP, SIPS and TEL URIs (RFC 3261 §19.1, RFC 3966), borrowed.

mod compare;
mod fast_path;

use core::fmt;

use crate::chars::{find, split_once, uri_len};
use crate::host::Host;
use crate::number;
use crate::params::{MAX_PARAMS, Param, Params};

/// A URI as far as a proxy needs to understand it.
#[derive(Clone, Copy, Debug)]
pub enum Uri<'a> {
    /// `sip:` or `sips:`.
    Sip(SipUri<'a>),
    /// `tel:`.
    Tel(TelUri<'a>),
    /// Any other scheme.
    Other {
        /// Scheme as written, without the colon.
        scheme: &'a [u8],
        /// The part behind the colon.
        rest: &'a [u8],
    },
}

/// A SIP or SIPS URI.
#[derive(Clone, Copy, Debug)]
pub struct SipUri<'a> {
    /// The whole URI, as written.
    pub text: &'a [u8],
    /// Whether the scheme is `sips:`.
    pub secure: bool,
    /// User part as written (escapes kept), without the password.
    pub user: Option<&'a [u8]>,
    /// Password as written.
    pub password: Option<&'a [u8]>,
    /// Host.
    pub host: Host<'a>,
    /// Host as written, brackets included.
    pub host_text: &'a [u8],
    /// Port, if given.
    pub port: Option<u16>,
    /// URI parameters.
    pub params: Params<'a>,
    /// Headers, without the `?`.
    pub headers: Option<&'a [u8]>,
}

/// A telephone URI.
#[derive(Clone, Copy, Debug)]
pub struct TelUri<'a> {
    /// The whole URI, as written.
    pub text: &'a [u8],
    /// The number as written, visual separators included.
    pub number: &'a [u8],
    /// Parameters (`phone-context`, `isub`, …).
    pub params: Params<'a>,
}

/// The fault of a URI that cannot be understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UriError {
    /// No scheme.
    Scheme,
    /// White space, `<`, `>`, `"` or a control character inside.
    Character,
    /// Empty user part, or characters that must be escaped.
    User,
    /// Not a host.
    Host,
    /// Not a port.
    Port,
    /// Malformed parameters, or more than 64 of them or of headers.
    Params,
    /// A broken `%HH`.
    Escape,
    /// Not a telephone number.
    Number,
}

impl fmt::Display for UriError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Scheme => "no scheme",
            Self::Character => "a character that must be escaped",
            Self::User => "bad user part",
            Self::Host => "bad host",
            Self::Port => "bad port",
            Self::Params => "bad parameters",
            Self::Escape => "bad percent escape",
            Self::Number => "bad telephone number",
        })
    }
}

impl<'a> Uri<'a> {
    /// Reads all of `text`.
    ///
    /// # Errors
    /// The part that is wrong.
    pub fn parse(text: &'a [u8]) -> Result<Self, UriError> {
        // The usual scheme first.
        if let [b's' | b'S', b'i' | b'I', b'p' | b'P', b':', rest @ ..] = text {
            if let Some(uri) = fast_path::sip(text, rest) {
                return Ok(Self::Sip(uri));
            }
            check_characters(rest)?;
            return SipUri::parse_rest(text, rest, false).map(Uri::Sip);
        }
        let (scheme, rest) = split_once(text, b':');
        let Some(rest) = rest else {
            return Err(UriError::Scheme);
        };
        let scheme_ok = scheme.first().is_some_and(u8::is_ascii_alphabetic)
            && scheme
                .iter()
                .all(|c| c.is_ascii_alphanumeric() || matches!(c, b'+' | b'-' | b'.'));
        if !scheme_ok {
            return Err(UriError::Scheme);
        }
        check_characters(rest)?;
        if scheme.eq_ignore_ascii_case(b"sips") {
            SipUri::parse_rest(text, rest, true).map(Uri::Sip)
        } else if scheme.eq_ignore_ascii_case(b"tel") {
            TelUri::parse_rest(text, rest).map(Uri::Tel)
        } else {
            Ok(Uri::Other { scheme, rest })
        }
    }

    /// The URI, if it is SIP or SIPS.
    pub const fn sip(&self) -> Option<&SipUri<'a>> {
        match self {
            Self::Sip(uri) => Some(uri),
            Self::Tel(_) | Self::Other { .. } => None,
        }
    }
}

/// Checks that no character would end or reopen the URI where it stands, and that all escapes are whole.
fn check_characters(text: &[u8]) -> Result<(), UriError> {
    let mut rest = text;
    loop {
        rest = match rest.get(uri_len(rest)..) {
            None | Some([]) => return Ok(()),
            Some([b'%', a, b, tail @ ..]) if a.is_ascii_hexdigit() && b.is_ascii_hexdigit() => tail,
            Some([b'%', ..]) => return Err(UriError::Escape),
            Some(_) => return Err(UriError::Character),
        }
    }
}

impl<'a> SipUri<'a> {
    fn parse_rest(text: &'a [u8], rest: &'a [u8], secure: bool) -> Result<Self, UriError> {
        // '@' may not stand unescaped in userinfo nor in a host, but may in headers and, by sloppy senders,
        // in parameters. The userinfo itself may hold ';' and '?' (RFC 4475 §3.1.1.9). So the first '@' ends
        // the userinfo.
        let (user, password, after) = match split_once(rest, b'@') {
            (userinfo, Some(after)) if !userinfo_is_host(userinfo) => {
                let (user, password) = split_once(userinfo, b':');
                if user.is_empty() {
                    return Err(UriError::User);
                }
                (Some(user), password, after)
            }
            _ => (None, None, rest),
        };
        let (before_headers, headers) = split_once(after, b'?');
        let params_at = find(before_headers, b';').unwrap_or(before_headers.len());
        let hostport = before_headers.get(..params_at).unwrap_or_default();
        let params = Params::new(before_headers.get(params_at..).unwrap_or_default());
        let too_many_headers = |text: &[u8]| memchr::memchr_iter(b'&', text).nth(MAX_PARAMS - 1).is_some();
        if !uri_params_ok(params) || headers.is_some_and(too_many_headers) {
            return Err(UriError::Params);
        }
        let (host_text, port) = split_port(hostport)?;
        let host = Host::parse(host_text).ok_or(UriError::Host)?;
        Ok(Self {
            text,
            secure,
            user,
            password,
            host,
            host_text,
            port,
            params,
            headers,
        })
    }

    /// The first parameter of this name, in any case, even if the name was written with escapes (RFC 4475
    /// §3.1.1.3). The value is as written.
    pub fn param(&self, name: &[u8]) -> Option<Param<'a>> {
        self.params.get(name).or_else(|| {
            find(self.params.as_bytes(), b'%')?;
            compare::find_param(self.params, name)
        })
    }

    /// `transport` parameter, as written.
    pub fn transport(&self) -> Option<&'a [u8]> {
        self.param(b"transport").and_then(|p| p.value)
    }

    /// Whether the URI has the `lr` parameter (RFC 3261 §19.1.1).
    pub fn is_loose_route(&self) -> bool {
        self.param(b"lr").is_some()
    }
}

/// Whether the text before an '@' is a host, so that the '@' belongs to headers or parameters. Userinfo may
/// hold almost anything, so only a bracketed host in front decides.
fn userinfo_is_host(userinfo: &[u8]) -> bool {
    userinfo.first() == Some(&b'[')
}

/// Whether URI parameters are well-formed as far as separators go; `;;` and empty names are not. The number
/// of parameters is bounded, because a comparison of two URIs takes the product of their numbers.
fn uri_params_ok(params: Params<'_>) -> bool {
    params.count_loose().is_some_and(|count| count <= MAX_PARAMS)
}

/// Splits `host:port`; an IPv6 reference keeps its colons.
fn split_port(hostport: &[u8]) -> Result<(&[u8], Option<u16>), UriError> {
    let colon = if hostport.first() == Some(&b'[') {
        let close = find(hostport, b']').ok_or(UriError::Host)?;
        match hostport.get(close + 1) {
            None => None,
            Some(b':') => Some(close + 1),
            Some(_) => return Err(UriError::Host),
        }
    } else {
        find(hostport, b':')
    };
    match colon {
        None => Ok((hostport, None)),
        Some(at) => {
            let host = hostport.get(..at).unwrap_or_default();
            let port = number::port(hostport.get(at + 1..).unwrap_or_default()).ok_or(UriError::Port)?;
            Ok((host, Some(port)))
        }
    }
}

impl<'a> TelUri<'a> {
    fn parse_rest(text: &'a [u8], rest: &'a [u8]) -> Result<Self, UriError> {
        let at = find(rest, b';').unwrap_or(rest.len());
        let number = rest.get(..at).unwrap_or_default();
        let params = Params::new(rest.get(at..).unwrap_or_default());
        let digits = number.strip_prefix(b"+").unwrap_or(number);
        let ok = |c: &u8| c.is_ascii_hexdigit() || matches!(c, b'-' | b'.' | b'(' | b')' | b'*' | b'#');
        if digits.is_empty() || !digits.iter().all(ok) || !digits.iter().any(u8::is_ascii_alphanumeric) {
            return Err(UriError::Number);
        }
        if !uri_params_ok(params) {
            return Err(UriError::Params);
        }
        Ok(Self { text, number, params })
    }
}

/// Whether two texts are the same URI: byte for byte, or by the rules of comparison (RFC 3261 §19.1.4). If
/// the texts are no URIs, they are the same only byte for byte.
pub fn is_same(a: &[u8], b: &[u8]) -> bool {
    a == b || matches!((Uri::parse(a), Uri::parse(b)), (Ok(a), Ok(b)) if a == b)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sip(text: &str) -> SipUri<'_> {
        match Uri::parse(text.as_bytes()) {
            Ok(Uri::Sip(uri)) => uri,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn parts_of_a_sip_uri() {
        let u = sip("SIPS:alice:secret@[2001:db8::1]:5070;transport=tcp;lr?Subject=x&y=a@b");
        assert!(u.secure && u.is_loose_route());
        assert_eq!(
            (u.user, u.password, u.port),
            (Some(&b"alice"[..]), Some(&b"secret"[..]), Some(5070))
        );
        assert_eq!(u.host_text, b"[2001:db8::1]");
        assert_eq!(u.transport(), Some(&b"tcp"[..]));
        assert_eq!(u.headers, Some(&b"Subject=x&y=a@b"[..]));
        let u = sip("sip:+12125551212;isub=9@example.com");
        assert_eq!(u.user, Some(&b"+12125551212;isub=9"[..]));
        let u = sip("sip:sip%3Auser%40example.com@company.com;other-param=summit");
        assert_eq!(u.user, Some(&b"sip%3Auser%40example.com"[..]));
        let u = sip("sip:a@b;%6C%72;n%61me=v;TRANS%50ort=tcp");
        assert!(u.is_loose_route());
        assert_eq!(u.param(b"name").unwrap().value, Some(&b"v"[..]));
        assert_eq!(u.transport(), Some(&b"tcp"[..]));
        let u = sip("sip:1234@10.0.0.1:5060");
        assert_eq!(u.host.ip(), Some("10.0.0.1".parse().unwrap()));
    }

    #[test]
    fn broken_uris_are_refused_with_the_part() {
        for (text, error) in [
            ("alice", UriError::Scheme),
            (":a", UriError::Scheme),
            ("sip:@example.com", UriError::User),
            ("sip:", UriError::Host),
            ("sip:a@", UriError::Host),
            ("sip:a@b:0", UriError::Port),
            ("sip:a@b:99999", UriError::Port),
            ("sip:a@b:", UriError::Port),
            ("sip:a@b;;x", UriError::Params),
            ("sip:a@b;=x", UriError::Params),
            ("sip:a@b;", UriError::Params),
            ("sip:a@b;x=1;;?y", UriError::Params),
            ("sip:a\0@c", UriError::Character),
            ("sip:a@b@c", UriError::Host),
            ("sip:%", UriError::Escape),
            ("sip:a b@c", UriError::Character),
            ("sip:a@b>", UriError::Character),
            ("sip:%4@b", UriError::Escape),
            ("sip:[2001:db8::1", UriError::Host),
            ("tel:", UriError::Number),
            ("tel:+", UriError::Number),
            ("tel:hello", UriError::Number),
        ] {
            assert_eq!(Uri::parse(text.as_bytes()).err(), Some(error), "{text}");
        }
    }

    #[test]
    fn there_is_a_bound_to_parameters_and_headers() {
        let with = |n: usize, first: char, next: char| {
            let mut text = alloc::format!("sip:b{first}x=1");
            (1..n).for_each(|_| text.extend([next, 'x', '=', '1']));
            Uri::parse(text.as_bytes()).map(|_| ())
        };
        assert_eq!(with(64, ';', ';'), Ok(()));
        assert_eq!(with(65, ';', ';'), Err(UriError::Params));
        assert_eq!(with(64, '?', '&'), Ok(()));
        assert_eq!(with(65, '?', '&'), Err(UriError::Params));
    }

    #[test]
    fn other_schemes_are_kept() {
        assert!(matches!(
            Uri::parse(b"http://x"),
            Ok(Uri::Other { scheme: b"http", .. })
        ));
        assert!(matches!(
            Uri::parse(b"nobodyKnowsThisScheme:totallyopaque"),
            Ok(Uri::Other { .. })
        ));
    }
}

//! `Via` (RFC 3261 §20.42, RFC 3581).

use core::net::IpAddr;

use crate::chars::{find, host_len, is_token_text, split_once, token_len, trim, trim_start};
use crate::host::Host;
use crate::number;
use crate::params::{Param, Params};

/// One Via value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Via<'a> {
    /// The whole value, as written.
    pub text: &'a [u8],
    /// `UDP`, `TCP`, … as written.
    pub transport: &'a [u8],
    /// `sent-by` host.
    pub host: Host<'a>,
    /// `sent-by` host as written, brackets included.
    pub host_text: &'a [u8],
    /// `sent-by` port, if given.
    pub port: Option<u16>,
    /// Parameters.
    pub params: Params<'a>,
    /// Parameters that are read often, found when all were checked.
    pub(super) known: Known<'a>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Known<'a> {
    pub(super) branch: Option<&'a [u8]>,
    pub(super) received: Option<&'a [u8]>,
    pub(super) rport: Option<Option<u16>>,
    pub(super) other_version: bool,
}

impl<'a> Known<'a> {
    fn note(&mut self, param: &Param<'a>) {
        match param.name.len() {
            5 if param.name.eq_ignore_ascii_case(b"rport") => {
                self.rport = Some(param.value.and_then(number::port));
            }
            6 if param.name.eq_ignore_ascii_case(b"branch") => self.branch = param.value,
            8 if param.name.eq_ignore_ascii_case(b"received") => self.received = Some(param.unquoted()),
            _ => {}
        }
    }
}

impl<'a> Via<'a> {
    /// Reads one value.
    pub fn parse(text: &'a [u8]) -> Option<Self> {
        super::fast_path::via(text, text.len()).or_else(|| Self::parse_any(text))
    }

    /// Reads one value, however it is written.
    pub(crate) fn parse_any(text: &'a [u8]) -> Option<Self> {
        let (rest, other_version) = after_protocol(text)?;
        let (transport, rest) = rest.split_at_checked(token_len(rest))?;
        let sent_by = trim_start(rest);
        if transport.is_empty() || sent_by.len() == rest.len() {
            return None;
        }
        let (host_text, port, params) = split_sent_by(sent_by)?;
        let host = Host::parse(host_text)?;
        let params = Params::new(params);
        let mut known = Known {
            other_version,
            ..Known::default()
        };
        params.check(|param| known.note(param)).then_some(Self {
            text,
            transport,
            host,
            host_text,
            port,
            params,
            known,
        })
    }

    /// `branch`; `None` if it is missing or empty.
    pub fn branch(&self) -> Option<&'a [u8]> {
        self.known.branch.filter(|b| !b.is_empty())
    }

    /// Whether the branch begins with the magic cookie of RFC 3261 §8.1.1.7 and has more.
    pub fn has_cookie(&self) -> bool {
        self.branch()
            .is_some_and(|b| b.len() > 7 && b.get(..7).is_some_and(|c| c.eq_ignore_ascii_case(b"z9hG4bK")))
    }

    /// Whether the version is 2.0. A Via of another version is read all the same: the 505 that reports the
    /// version goes where the Via leads (RFC 4475 §3.1.2.16).
    pub const fn is_version_2(&self) -> bool {
        !self.known.other_version
    }

    /// `received`, an address; IPv6 with or without brackets (RFC 5118 §4.5).
    pub fn received(&self) -> Option<IpAddr> {
        let text = self.known.received?;
        match Host::parse(text) {
            Some(host) => host.ip(),
            None => crate::host::parse_v6(text).map(IpAddr::V6),
        }
    }

    /// Whether the Via has `received`, with any value or none.
    pub const fn has_received(&self) -> bool {
        self.known.received.is_some()
    }

    /// The same as [`Via::received`].
    pub fn received_any(&self) -> Option<IpAddr> {
        self.received()
    }

    /// Whether `rport` is there, and its value if it has one (RFC 3581 §3).
    pub const fn rport(&self) -> Option<Option<u16>> {
        self.known.rport
    }
}

/// The part behind `SIP/2.0/`, with white space where SLASH allows it, and whether the version is another
/// one.
fn after_protocol(text: &[u8]) -> Option<(&[u8], bool)> {
    if let Some(rest) = text.strip_prefix(b"SIP/2.0/") {
        return Some((trim_start(rest), false));
    }
    let (protocol, rest) = split_once(text, b'/');
    let (version, rest) = split_once(rest?, b'/');
    let version = trim(version);
    let ours = trim(protocol).eq_ignore_ascii_case(b"SIP") && is_token_text(version);
    ours.then_some((trim_start(rest?), version != b"2.0"))
}

/// Host, port and parameters of `host [: port] *(; param)`, with white space round the separators
/// as COLON and SEMI allow.
fn split_sent_by(text: &[u8]) -> Option<(&[u8], Option<u16>, &[u8])> {
    let host_len = match text.first()? {
        b'[' => find(text, b']')? + 1,
        _ => host_len(text),
    };
    let (host, rest) = text.split_at_checked(host_len)?;
    let rest = trim_start(rest);
    let [b':', rest @ ..] = rest else {
        return matches!(rest, [] | [b';', ..]).then_some((host, None, rest));
    };
    let rest = trim_start(rest);
    let (port, rest) = rest.split_at_checked(digits_len(rest))?;
    let rest = trim_start(rest);
    let port = number::port(port)?;
    matches!(rest, [] | [b';', ..]).then_some((host, Some(port), rest))
}

fn digits_len(text: &[u8]) -> usize {
    text.iter()
        .position(|c| !c.is_ascii_digit())
        .unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_of_via_are_read() {
        let v = Via::parse(b"SIP/2.0/UDP 192.0.2.1:5070;branch=z9hG4bKabc;rport;received=10.0.0.1").unwrap();
        assert_eq!(
            (v.transport, v.port, v.branch()),
            (&b"UDP"[..], Some(5070), Some(&b"z9hG4bKabc"[..]))
        );
        assert_eq!(v.rport(), Some(None));
        assert_eq!(v.received(), Some("10.0.0.1".parse().unwrap()));
        assert!(v.has_cookie());
        let v =
            Via::parse(b"SIP  / 2.0\r\n /UDP\r\n    [2001:db8::9:1] : 5060 ;\r\n  branch\r\n =\r\n z9hG4bK1")
                .unwrap();
        assert_eq!((v.port, v.branch()), (Some(5060), Some(&b"z9hG4bK1"[..])));
        let v = Via::parse(b"SIP/2.0/TLS example.com;received=[2001:db8::9:255]").unwrap();
        assert_eq!(v.received(), Some("2001:db8::9:255".parse().unwrap()));
        let v = Via::parse(b"SIP/2.0/TLS example.com;received=2001:db8::9:255").unwrap();
        assert_eq!(v.received(), v.received_any());
        assert_eq!(v.received_any(), Some("2001:db8::9:255".parse().unwrap()));
        assert_eq!(v.branch(), None);
        assert!(v.is_version_2());
        let v = Via::parse(b"SIP/7.0/UDP c.example.com:5070;branch=z9hG4bKkdjuw").unwrap();
        assert_eq!(
            (v.is_version_2(), v.transport, v.port),
            (false, &b"UDP"[..], Some(5070))
        );
        for bad in [
            &b"SIP/2.0/UDP"[..],
            b"SIP/2.0/UDP ",
            b"SIP//UDP a",
            b"SIP/2 0/UDP a",
            b"HTTP/1.1/UDP a",
            b"SIP/2.0 a",
            b"SIP/2.0/UDP a:x",
            b"SIP/2.0/UDP a;;b",
            b"SIP/2.0/U,P a",
            b"SIP/2.0/UDP a;branch=z9hG4bK1;branch=z9hG4bK2",
            b"SIP/2.0/UDP a;branch=z9hG4bK1 x",
            b"SIP/2.0/UDP a b",
            b"SIP/2.0/UDP [::1] b",
            b"SIP/2.0/UDP a b:1",
            b"",
        ] {
            assert_eq!(Via::parse(bad), None, "{:?}", core::str::from_utf8(bad));
        }
    }
}

//! `host` of RFC 3261 §25.1: a name, an IPv4 address, or an IPv6 reference in brackets.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::chars::{find, hex_value, host_len};

/// A host.
#[derive(Clone, Copy, Debug)]
pub enum Host<'a> {
    /// A domain name as written.
    Name(&'a [u8]),
    /// IPv4 address.
    V4(Ipv4Addr),
    /// IPv6 address.
    V6(Ipv6Addr),
}

impl<'a> Host<'a> {
    /// Reads all of `text`.
    pub fn parse(text: &'a [u8]) -> Option<Self> {
        match text.first()? {
            b'[' => match text {
                [b'[', inner @ .., b']'] => parse_v6(inner).map(Host::V6),
                _ => None,
            },
            c if c.is_ascii_digit() => parse_v4(text).map(Host::V4).or_else(|| name(text)),
            _ => name(text),
        }
    }

    /// The address, if the host is one.
    pub const fn ip(&self) -> Option<IpAddr> {
        match self {
            Self::V4(ip) => Some(IpAddr::V4(*ip)),
            Self::V6(ip) => Some(IpAddr::V6(*ip)),
            Self::Name(_) => None,
        }
    }
}

impl PartialEq for Host<'_> {
    /// Names compare in any case (RFC 3261 §19.1.4), addresses by value (RFC 5118 §4.5 ff.).
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Name(a), Self::Name(b)) => a.eq_ignore_ascii_case(b),
            (Self::V4(a), Self::V4(b)) => a == b,
            (Self::V6(a), Self::V6(b)) => a == b,
            (Self::Name(_) | Self::V4(_) | Self::V6(_), _) => false,
        }
    }
}

impl Eq for Host<'_> {}

impl fmt::Display for Host<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(core::str::from_utf8(name).unwrap_or("?")),
            Self::V4(ip) => ip.fmt(f),
            Self::V6(ip) => write!(f, "[{ip}]"),
        }
    }
}

/// A `hostname`, with the underscore that real networks use and the trailing dot.
fn name(text: &[u8]) -> Option<Host<'_>> {
    if text.len() > 255 || host_len(text) != text.len() {
        return None;
    }
    let body = text.strip_suffix(b".").unwrap_or(text);
    // No label is empty, and the last is not of digits only: that would be a broken IPv4 address (RFC 3696
    // §2).
    let mut label = 0;
    let mut letters = false;
    for &c in body {
        if c == b'.' {
            if label == 0 {
                return None;
            }
            (label, letters) = (0, false);
        } else {
            label += 1;
            letters |= !c.is_ascii_digit();
        }
    }
    letters.then_some(Host::Name(text))
}

/// Dotted quad, decimal only.
fn parse_v4(text: &[u8]) -> Option<Ipv4Addr> {
    let mut rest = text;
    let mut address = 0;
    for number in 0..4 {
        if number > 0 {
            rest = match rest {
                [b'.', tail @ ..] => tail,
                _ => return None,
            };
        }
        let digit = |c: u8| u32::from(c.wrapping_sub(b'0'));
        let (octet, tail) = match rest {
            [a, b, c, tail @ ..] if digit(*a) < 10 && digit(*b) < 10 && digit(*c) < 10 => {
                (digit(*a) * 100 + digit(*b) * 10 + digit(*c), tail)
            }
            [a, b, tail @ ..] if digit(*a) < 10 && digit(*b) < 10 => (digit(*a) * 10 + digit(*b), tail),
            [a, tail @ ..] if digit(*a) < 10 => (digit(*a), tail),
            _ => return None,
        };
        if octet > 255 {
            return None;
        }
        address = address << 8 | octet;
        rest = tail;
    }
    rest.is_empty().then(|| Ipv4Addr::from(address))
}

/// IPv6 text form (RFC 4291 §2.2), without a zone.
pub(crate) fn parse_v6(text: &[u8]) -> Option<Ipv6Addr> {
    let mut groups = [0u16; 8];
    let mut count = 0;
    let mut gap = None;
    let mut rest = text;
    if let Some(after) = rest.strip_prefix(b"::") {
        gap = Some(0);
        rest = after;
    }
    while !rest.is_empty() {
        let end = find(rest, b':').unwrap_or(rest.len());
        let part = rest.get(..end)?;
        if find(part, b'.').is_some() {
            // The IPv4 tail takes two groups and must be last.
            let v4 = parse_v4(part)?.octets();
            let [a, b, c, d] = v4;
            *groups.get_mut(count)? = u16::from_be_bytes([a, b]);
            *groups.get_mut(count + 1)? = u16::from_be_bytes([c, d]);
            count += 2;
            if end != rest.len() {
                return None;
            }
            break;
        }
        if part.is_empty() || part.len() > 4 {
            return None;
        }
        let mut value: u16 = 0;
        for &c in part {
            value = value << 4 | u16::from(hex_value(c)?);
        }
        *groups.get_mut(count)? = value;
        count += 1;
        rest = rest.get(end..)?;
        if let Some(after) = rest.strip_prefix(b"::") {
            if gap.is_some() {
                return None;
            }
            gap = Some(count);
            rest = after;
        } else if let Some(after) = rest.strip_prefix(b":") {
            if after.is_empty() {
                return None;
            }
            rest = after;
        }
    }
    match gap {
        None if count == 8 => Some(Ipv6Addr::from(groups)),
        Some(at) if count < 8 => {
            let mut full = [0u16; 8];
            let tail = count - at;
            full.get_mut(..at)?.copy_from_slice(groups.get(..at)?);
            full.get_mut(8 - tail..)?.copy_from_slice(groups.get(at..count)?);
            Some(Ipv6Addr::from(full))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use core::str::FromStr;

    #[test]
    fn addresses_parse_as_std_parses_them() {
        for text in [
            "::",
            "::1",
            "1::",
            "2001:db8::9:1",
            "1:2:3:4:5:6:7:8",
            "::ffff:192.0.2.10",
            "1:2:3:4:5:6:1.2.3.4",
            "::1.2.3.4",
            ":::",
            "1:2:3:4:5:6:7",
            "1:2:3:4:5:6:7:8:9",
            "1::2::3",
            "12345::",
            "g::",
            "1:",
            ":1",
            "1:2:3:4:5:6:7::",
            "::2:3:4:5:6:7:8",
            "1.2.3.4::",
            "",
        ] {
            let std = Ipv6Addr::from_str(text).ok();
            assert_eq!(parse_v6(text.as_bytes()), std, "{text}");
            let bracketed = format!("[{text}]");
            let ours = Host::parse(bracketed.as_bytes()).and_then(|h| h.ip());
            assert_eq!(ours, std.map(IpAddr::V6), "{bracketed}");
        }
        assert_eq!(
            Host::parse(b"192.0.2.1"),
            Some(Host::V4(Ipv4Addr::new(192, 0, 2, 1)))
        );
    }

    #[test]
    fn host_names_are_read_or_refused() {
        for text in [
            "a",
            "example.com",
            "example.com.",
            "3com.net",
            "a-b.c",
            "_sip.x",
            "192.0.2.1.in-addr.arpa",
        ] {
            assert_eq!(
                Host::parse(text.as_bytes()),
                Some(Host::Name(text.as_bytes())),
                "{text}"
            );
        }
        for text in [
            "",
            ".",
            "a..b",
            "192.0.2.256",
            "1.2.3",
            "1.2.3.",
            "1.2.3.4.5",
            ".1.2.3",
            "1..2.3",
            "0001.2.3.4",
            "1.2.3.4444",
            "a.1",
            ".a",
            "a b",
            "a:b",
            "[::1",
            "::1",
            "a,b",
            "<a>",
        ] {
            assert_eq!(Host::parse(text.as_bytes()), None, "{text}");
        }
        assert_eq!(Host::parse(b"EXAMPLE.com"), Host::parse(b"example.COM"));
    }
}

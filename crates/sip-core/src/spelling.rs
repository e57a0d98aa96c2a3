//! A Request-URI in one spelling, for the patterns of rules. `sip:0019`, `SIP:0019`, `sip:%30%3019` and
//! `sip:0-019` call the same number, and a pattern that bars one bars all.

use alloc::borrow::Cow;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use sip_message::Host;

/// Characters between digits that only people read (RFC 3966 §5.1.1).
const SEPARATORS: &[u8] = b"-.()";

/// The URI in its one spelling. Scheme and host are in lower case, an IP address is as its value is written,
/// and a name has no dot at its end. The part before `@` (of a `tel:` URI, the whole number) has no escapes
/// of characters that may stand there bare. If that part is a number, it has no separators. Parameters stay
/// as they are, and so does the URI of the message. A URI in this spelling already costs no allocation.
pub(crate) fn normalised(uri: &[u8]) -> Cow<'_, [u8]> {
    let (scheme, rest) = split_after(uri, b':');
    let is_tel = scheme.eq_ignore_ascii_case(b"tel:");
    // A user part may have `;`, `?` and `:`, but no `@`; a URI without `@` is a host alone.
    let (user, at, rest) = match memchr::memchr(b'@', rest) {
        Some(at) => (rest.get(..at), b"@".as_slice(), rest.get(at + 1..)),
        None if is_tel => {
            let end = memchr::memchr(b';', rest).unwrap_or(rest.len());
            (rest.get(..end), b"".as_slice(), rest.get(end..))
        }
        None => (None, b"".as_slice(), Some(rest)),
    };
    let (user, rest) = (user.unwrap_or_default(), rest.unwrap_or_default());
    let host_end = rest
        .iter()
        .position(|c| matches!(c, b';' | b'?'))
        .unwrap_or(rest.len());
    let host = rest.get(..host_end).unwrap_or_default();
    let is_so = |part: &[u8]| !part.iter().any(u8::is_ascii_uppercase);
    let canonical = canonical_host(host);
    // Names have dots and hyphens, too, and keep them.
    let number = before_parameters(user);
    let is_parted = || number.iter().any(|c| SEPARATORS.contains(c)) && is_number(number);
    if is_so(scheme) && is_so(host) && canonical.is_none() && !user.contains(&b'%') && !is_parted() {
        return Cow::Borrowed(uri);
    }
    let mut plain = Vec::with_capacity(user.len());
    unescape_plain(user, &mut plain);
    let behind = plain.split_off(before_parameters(&plain).len());
    if is_number(&plain) {
        plain.retain(|c| !SEPARATORS.contains(c));
    }
    plain.extend_from_slice(&behind);
    let mut out = Vec::with_capacity(uri.len());
    out.extend(scheme.iter().map(u8::to_ascii_lowercase));
    out.extend_from_slice(&plain);
    out.extend_from_slice(at);
    match &canonical {
        Some(host) => out.extend_from_slice(host.as_bytes()),
        None => out.extend(host.iter().map(u8::to_ascii_lowercase)),
    }
    out.extend_from_slice(rest.get(host_end..).unwrap_or_default());
    Cow::Owned(out)
}

/// Host and port in their one spelling, apart from the case of letters; `None`: they are in it.
fn canonical_host(text: &[u8]) -> Option<String> {
    let is_v6 = text.first() == Some(&b'[');
    let end = match is_v6 {
        true => memchr::memchr(b']', text).map_or(text.len(), |at| at + 1),
        false => memchr::memchr(b':', text).unwrap_or(text.len()),
    };
    let (host, port) = text.split_at_checked(end)?;
    // Only such hosts have several spellings.
    let is_v4 = || host.iter().all(|c| c.is_ascii_digit() || *c == b'.');
    if !is_v6 && host.last() != Some(&b'.') && !is_v4() {
        return None;
    }
    let parsed = Host::parse(host)?;
    let is_so = match parsed {
        Host::V4(ip) => is_written(host, format_args!("{ip}")),
        Host::V6(ip) => is_written(host, format_args!("[{ip}]")),
        Host::Name(name) => name.last() != Some(&b'.'),
    };
    if is_so {
        return None;
    }
    let written = match parsed {
        Host::V4(ip) => format!("{ip}"),
        Host::V6(ip) => format!("[{ip}]"),
        Host::Name(name) => {
            let name = name.strip_suffix(b".").unwrap_or(name);
            core::str::from_utf8(name).ok()?.to_ascii_lowercase()
        }
    };
    Some(written + core::str::from_utf8(port).ok()?)
}

/// Whether `text` is `value` as written. Nothing is allocated.
fn is_written(text: &[u8], value: fmt::Arguments<'_>) -> bool {
    struct Rest<'a>(&'a [u8]);
    impl fmt::Write for Rest<'_> {
        fn write_str(&mut self, part: &str) -> fmt::Result {
            self.0 = self.0.strip_prefix(part.as_bytes()).ok_or(fmt::Error)?;
            Ok(())
        }
    }
    let mut rest = Rest(text);
    fmt::Write::write_fmt(&mut rest, value).is_ok() && rest.0.is_empty()
}

/// A regular expression (bytes, no Unicode, to be anchored) that matches all results of [`normalised`] for
/// well-formed URIs, and little else. A pattern that matches none of them matches no request. If `hosts` has
/// names (no IP addresses), the URI has one of them as its host, or `maddr`.
pub fn spellings(hosts: &[&str]) -> String {
    // Escapes that stay, and `%` without an escape.
    let escape = "%(?:[01][0-9A-Fa-f]|2[02456CFcf]|3[A-Fa-f]|40|5[B-Eb-e]|60|7[B-Db-dFf]|[89A-Fa-f][0-9A-Fa-f]\
                  |[0-9A-Fa-f]?[^0-9A-Fa-f@;:])";
    let end = "(?:%[0-9A-Fa-f]?)?";
    let any = format!("(?:[^@;:%]|{escape})");
    let number = r"\+?[0-9*#]*";
    // Characters besides digits and separators: another character, a second `+`, or no digit.
    let odd =
        format!("{any}*(?:[^@;:%0-9*#.()+-]|{escape}){any}*{end}|{any}*%[0-9A-Fa-f]?|{any}+\\+{any}*{end}");
    let user = format!("(?:{number}|[*#.()+-]*|{odd})(?:[;:][^@]*)?");
    let tail = "(?:[;?][^@]*)?";
    // `sip` and `sips`, with hosts without escapes, and other schemes that begin with `s`; then all others
    // but `tel`.
    let c = "[a-z0-9+.-]";
    let other = format!("(?:[a-ru-z]{c}*|t(?:[a-df-z0-9+.-]{c}*|e(?:[a-km-z0-9+.-]{c}*|l{c}+)?)?)");
    let address = r"\[[0-9a-f:]*(?:ffff:[0-9.]+)?\](?::[0-9]*)?";
    let host = format!("(?:{address}|[^\\[A-Z;?@][^A-Z;?@]*)?{tail}");
    let sip_host = format!("(?:{address}|[^\\[A-Z;?@%][^A-Z;?@%]*)?{tail}");
    if !hosts.is_empty() {
        let names = hosts
            .iter()
            .map(|name| name.to_ascii_lowercase().replace('.', "\\."));
        let names = names.collect::<Vec<_>>().join("|");
        let maddr = "[^A-Z;?@%]*;[^@]*(?i:maddr)[^@]*";
        return format!("(?s-u:s{c}*:(?:{user}@)?(?:(?:{names})(?::[^;?@]*)?{tail}|{maddr}))");
    }
    format!("(?s-u:s{c}*:(?:{user}@)?{sip_host}|{other}:(?:{user}@)?{host}|tel:{user}(?:@{host})?)")
}

/// Appends a user part without escapes of letters, digits and other characters that have no meaning of their
/// own there (RFC 3261 §19.1.4). Other escapes stay: `%40` is no end of the user part.
fn unescape_plain(text: &[u8], out: &mut Vec<u8>) {
    let digit = |c: u8| char::from(c).to_digit(16);
    let mut rest = text;
    while let [first, tail @ ..] = rest {
        let mut next = (*first, tail);
        if let [b'%', high, low, tail @ ..] = rest
            && let (Some(high), Some(low)) = (digit(*high), digit(*low))
        {
            let byte = (high << 4 | low) as u8;
            if byte.is_ascii_alphanumeric() || b"-_.!~*'()+#".contains(&byte) {
                next = (byte, tail);
            }
        }
        out.push(next.0);
        rest = next.1;
    }
}

fn split_after(text: &[u8], end: u8) -> (&[u8], &[u8]) {
    let at = memchr::memchr(end, text).map_or(0, |at| at + 1);
    text.split_at_checked(at).unwrap_or((text, &[]))
}

/// A user part up to a parameter or password.
fn before_parameters(user: &[u8]) -> &[u8] {
    let end = memchr::memchr2(b';', b':', user).unwrap_or(user.len());
    user.get(..end).unwrap_or_default()
}

/// Whether this is a telephone number.
fn is_number(number: &[u8]) -> bool {
    let digits = number.strip_prefix(b"+").unwrap_or(number);
    let is_part = |c: &u8| c.is_ascii_digit() || matches!(c, b'*' | b'#') || SEPARATORS.contains(c);
    digits.iter().any(u8::is_ascii_digit) && digits.iter().all(is_part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn one(uri: &str) -> String {
        String::from_utf8(normalised(uri.as_bytes()).into_owned()).unwrap()
    }

    #[test]
    fn a_number_has_one_spelling() {
        for (written, expected) in [
            ("sip:0019@gw.example", "sip:0019@gw.example"),
            ("SIP:0019@GW.example", "sip:0019@gw.example"),
            ("sip:%30%3019@gw.example:5060;X=Y", "sip:0019@gw.example:5060;X=Y"),
            ("sip:0-0(1)9.@gw.example", "sip:0019@gw.example"),
            (
                "sip:+1-900;phone-context=a-b@gw",
                "sip:+1900;phone-context=a-b@gw",
            ),
            ("sip:%2B1900@gw", "sip:+1900@gw"),
            ("Tel:+1-(900).5", "tel:+19005"),
            ("tel:0-19;phone-context=A-B.c", "tel:019;phone-context=A-B.c"),
            ("sips:Al.ice-b@Example.COM", "sips:Al.ice-b@example.com"),
            ("sip:GW.example;lr", "sip:gw.example;lr"),
            ("sip:a@192.0.2.009:5060;lr", "sip:a@192.0.2.9:5060;lr"),
            ("sip:a@GW.example.:5060", "sip:a@gw.example:5060"),
            ("sip:a@gw.example.", "sip:a@gw.example"),
            ("sip:[2001:DB8:0::0009]:5060", "sip:[2001:db8::9]:5060"),
            ("sip:a@192.0.2.9", "sip:a@192.0.2.9"),
            ("sip:a@192.0.2", "sip:a@192.0.2"),
            ("sip:a@[2001:db8", "sip:a@[2001:db8"),
            ("sip:a@.", "sip:a@."),
            ("urn:Service:SOS", "urn:service:sos"),
            ("sip:a%zz@b", "sip:a%zz@b"),
            ("sip:%252B@b", "sip:%252B@b"),
            ("sip:a%40good%3b%3A@bad", "sip:a%40good%3b%3A@bad"),
            ("", ""),
            ("nonsense", "nonsense"),
        ] {
            assert_eq!(one(written), expected, "{written}");
        }
    }

    proptest! {
        #[test]
        fn what_is_so_is_left_as_it_is(user in "[a-z][a-z0-9.()-]{0,11}(;x=a-b)?", host in "[a-z][a-z0-9]{0,5}(\\.[a-z0-9]{1,5})?") {
            let uri = alloc::format!("sip:{user}@{host}");
            prop_assert!(matches!(normalised(uri.as_bytes()), Cow::Borrowed(_)));
        }

        #[test]
        fn what_comes_out_is_among_the_spellings(
            scheme in "(sips?|SIP|tel|TEL|tels|te|t|urn):",
            user in "([A-Fa-f0-9+.()*#-]|%2[0-9A-F]|%[3-7][0-9A-F]|&){0,8}([;:][0-9A-Za-z%.;:-]{0,5})?",
            host in "@([A-Za-z0-9.-]{0,6}|\\[(2001:DB8)?:(:0?[0-9a-c]){1,3}\\]|\\[::(FFFF:|a:)?192\\.0\\.2\\.1\\](:5060)?)([;?][A-Za-z0-9=%.-]{0,5})?",
            has_host in any::<bool>(),
        ) {
            // A SIP URI without `@` is a host alone, which has no escapes.
            let is_sip = scheme.to_ascii_lowercase().starts_with("sip");
            let host = if is_sip || has_host { host } else { String::new() };
            let pattern = format!("^(?:{})$", spellings(&[]));
            let all = regex::bytes::RegexBuilder::new(&pattern).unicode(false).build().unwrap();
            let text = normalised(format!("{scheme}{user}{host}").as_bytes()).into_owned();
            prop_assert!(all.is_match(&text), "{}", String::from_utf8_lossy(&text));
        }

        #[test]
        fn any_text_is_survived(text in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = normalised(&text);
        }
    }
}

//! Canonical addresses-of-record.

use alloc::vec::Vec;

use sip_message::SipUri;
use sip_message::chars::hex_value;

/// Appends the canonical address-of-record of `uri` in `domain`: the user part, unescaped and with its case
/// kept, `@`, and the domain. `domain` is a canonical name in lower case; the caller resolves its aliases.
/// Scheme, password, port, parameters and headers do not count (RFC 3261 §10.3 step 5). An `@` in the user
/// part is no ambiguity: a domain holds none.
///
/// Returns `false`, and appends nothing, if there is no user part.
#[must_use]
pub fn canonical_aor(uri: &SipUri<'_>, domain: &[u8], out: &mut Vec<u8>) -> bool {
    let Some(user) = uri.user else { return false };
    out.reserve(user.len() + 1 + domain.len());
    unescape(user, out);
    out.push(b'@');
    out.extend_from_slice(domain);
    true
}

/// User part and domain of a canonical address-of-record; without an `@` the whole is the domain.
pub fn parts(aor: &[u8]) -> (&[u8], &[u8]) {
    let at = aor.iter().rposition(|c| *c == b'@');
    match at.and_then(|at| aor.split_at_checked(at)) {
        Some((user, domain)) => (user, domain.get(1..).unwrap_or_default()),
        None => (&[], aor),
    }
}

/// Appends `text` with each `%HH` made the byte that it stands for. A `%` without two hexadecimal digits
/// stays.
pub fn unescape(text: &[u8], out: &mut Vec<u8>) {
    let mut rest = text;
    while let [first, tail @ ..] = rest {
        if let [b'%', high, low, tail @ ..] = rest
            && let (Some(high), Some(low)) = (hex_value(*high), hex_value(*low))
        {
            out.push((high << 4) | low);
            rest = tail;
        } else {
            out.push(*first);
            rest = tail;
        }
    }
}

/// Appends a user part as it may stand in a SIP URI: characters that may not stand there bare are escaped
/// (RFC 3261 §25.1 `user`). The inverse of [`unescape`].
pub fn escape_user(user: &[u8], out: &mut Vec<u8>) {
    for &c in user {
        if c.is_ascii_alphanumeric() || b"-_.!~*'()&=+$,;?/".contains(&c) {
            out.push(c);
        } else {
            out.push(b'%');
            for digit in [c >> 4, c & 15] {
                out.push(if digit < 10 {
                    b'0' + digit
                } else {
                    b'A' + digit - 10
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;
    use sip_message::Uri;

    fn aor(uri: &str) -> Option<Vec<u8>> {
        let Ok(Uri::Sip(uri)) = Uri::parse(uri.as_bytes()) else {
            panic!("{uri}")
        };
        let mut out = vec![];
        canonical_aor(&uri, b"example.com", &mut out).then_some(out)
    }

    /// RFC 3261 §10.3 step 5.
    #[test]
    fn the_canonical_form_is_one() {
        for uri in [
            "sip:alice@example.com",
            "SIPS:%61lice@EXAMPLE.com:5061;transport=tcp;user=phone?Subject=x",
            "sip:al%69ce:secret@alias.example",
        ] {
            assert_eq!(aor(uri).unwrap(), b"alice@example.com", "{uri}");
        }
        assert_eq!(aor("sip:Alice@example.com").unwrap(), b"Alice@example.com");
        assert_eq!(aor("sip:a%40b@example.com").unwrap(), b"a@b@example.com");
        assert_eq!(
            aor("sip:null-%00-null@example.com").unwrap(),
            b"null-\0-null@example.com"
        );
        assert_eq!(aor("sip:example.com"), None);
    }

    #[test]
    fn a_domain_holds_no_at() {
        assert_eq!(parts(b"a@b@example.com"), (&b"a@b"[..], &b"example.com"[..]));
        assert_eq!(parts(b"alice@"), (&b"alice"[..], &b""[..]));
        assert_eq!(parts(b"example.com"), (&b""[..], &b"example.com"[..]));
    }

    proptest! {
        #[test]
        fn escape_and_unescape(user in prop::collection::vec(any::<u8>(), 0..40)) {
            let (mut escaped, mut back) = (vec![], vec![]);
            escape_user(&user, &mut escaped);
            unescape(&escaped, &mut back);
            prop_assert_eq!(back, user);
        }
    }
}

//! URI equality (RFC 3261 §19.1.4, RFC 3966 §4).

use super::{SipUri, TelUri, Uri};
use crate::chars::hex_value;
use crate::params::{Param, Params};

/// Parameters that make a difference even if only one side has them. `transport` is among them because
/// without it the URI may resolve to any transport (the RFC's own example).
const SIGNIFICANT: [&[u8]; 5] = [b"user", b"ttl", b"method", b"maddr", b"transport"];

impl PartialEq for Uri<'_> {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Sip(a), Self::Sip(b)) => a == b,
            (Self::Tel(a), Self::Tel(b)) => a == b,
            (Self::Other { scheme: a, rest: x }, Self::Other { scheme: b, rest: y }) => {
                a.eq_ignore_ascii_case(b) && x == y
            }
            (Self::Sip(_) | Self::Tel(_) | Self::Other { .. }, _) => false,
        }
    }
}

impl PartialEq for SipUri<'_> {
    /// The comparison is reflexive and symmetric, but by the RFC's own rules no equivalence. A parameter that
    /// the RFC does not name counts only if both sides have it. So `a;x=1` equals `a`, `a` equals `a;x=2`,
    /// and yet `a;x=1` does not equal `a;x=2`. Among URIs without such parameters the comparison is
    /// transitive. If a parameter stands twice, the first counts.
    fn eq(&self, other: &Self) -> bool {
        self.secure == other.secure
            && same_text(self.user, other.user, false)
            && same_text(self.password, other.password, false)
            && self.host == other.host
            && self.port == other.port
            && same_params(self.params, other.params)
            && same_headers(
                self.headers.unwrap_or_default(),
                other.headers.unwrap_or_default(),
            )
    }
}

impl PartialEq for TelUri<'_> {
    fn eq(&self, other: &Self) -> bool {
        fn digits(number: &[u8]) -> impl Iterator<Item = u8> {
            number
                .iter()
                .filter(|c| !matches!(c, b'-' | b'.' | b'(' | b')'))
                .map(u8::to_ascii_lowercase)
        }
        digits(self.number).eq(digits(other.number))
            && params_within(self.params, other.params, true)
            && params_within(other.params, self.params, true)
    }
}

/// The characters one by one, unescaped. An escaped reserved character is not the same as the bare one (RFC
/// 3261 §19.1.4 with RFC 2396 §2.2): the flag keeps them apart.
fn unescaped(text: &[u8]) -> impl Iterator<Item = (u8, bool)> + '_ {
    let mut at = 0;
    core::iter::from_fn(move || {
        let c = *text.get(at)?;
        if c == b'%'
            && let (Some(high), Some(low)) = (
                text.get(at + 1).copied().and_then(hex_value),
                text.get(at + 2).copied().and_then(hex_value),
            )
        {
            at += 3;
            let byte = high << 4 | low;
            return Some((byte, is_reserved(byte)));
        }
        at += 1;
        Some((c, false))
    })
}

const fn is_reserved(c: u8) -> bool {
    matches!(
        c,
        b';' | b'/' | b'?' | b':' | b'@' | b'&' | b'=' | b'+' | b'$' | b','
    )
}

fn same_text(a: Option<&[u8]>, b: Option<&[u8]>, any_case: bool) -> bool {
    match (a, b) {
        (None, None) => true,
        (Some(a), Some(b)) => {
            let fold = move |(c, e): (u8, bool)| (if any_case { c.to_ascii_lowercase() } else { c }, e);
            unescaped(a).map(fold).eq(unescaped(b).map(fold))
        }
        _ => false,
    }
}

fn same_params(a: Params<'_>, b: Params<'_>) -> bool {
    if a.as_bytes() == b.as_bytes() {
        return true;
    }
    params_within(a, b, false) && params_within(b, a, false)
}

/// The first parameter of this name, compared without regard to escapes and case.
pub(super) fn find_param<'a>(params: Params<'a>, name: &[u8]) -> Option<Param<'a>> {
    params.iter().find(|p| same_text(Some(p.name), Some(name), true))
}

/// Whether the parameters common to `a` and `b` are equal, and `b` has each parameter of `a` that must be on
/// both sides (`all`: every parameter).
fn params_within(a: Params<'_>, b: Params<'_>, all: bool) -> bool {
    a.iter().all(|p| match find_param(b, p.name) {
        Some(q) => {
            let value = find_param(a, p.name).map_or(p.value, |first| first.value);
            same_text(value, q.value, true)
        }
        None => !all && !SIGNIFICANT.iter().any(|s| same_text(Some(s), Some(p.name), true)),
    })
}

/// Whether both sides have the same headers, in any order. Headers are never ignored.
fn same_headers(a: &[u8], b: &[u8]) -> bool {
    fn parts(text: &[u8]) -> impl Iterator<Item = &[u8]> {
        text.split(|c| *c == b'&').filter(|p| !p.is_empty())
    }
    fn same(x: &[u8], y: &[u8]) -> bool {
        let (xn, xv) = crate::chars::split_once(x, b'=');
        let (yn, yv) = crate::chars::split_once(y, b'=');
        same_text(Some(xn), Some(yn), true) && same_text(xv, yv, false)
    }
    let within = |x: &[u8], y: &[u8]| {
        parts(x).all(|p| parts(x).filter(|o| same(p, o)).count() == parts(y).filter(|o| same(p, o)).count())
    };
    within(a, b) && within(b, a)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn equal(a: &str, b: &str) -> bool {
        let (x, y) = (
            Uri::parse(a.as_bytes()).unwrap(),
            Uri::parse(b.as_bytes()).unwrap(),
        );
        let (forth, back) = (x == y, y == x);
        assert_eq!(forth, back, "symmetry: {a} {b}");
        forth
    }

    #[test]
    fn examples_of_rfc_3261_19_1_4() {
        for (a, b) in [
            (
                "sip:%61lice@atlanta.com;transport=TCP",
                "sip:alice@AtLanTa.CoM;Transport=tcp",
            ),
            ("sip:carol@chicago.com", "sip:carol@chicago.com;newparam=5"),
            ("sip:carol@chicago.com", "sip:carol@chicago.com;security=on"),
            (
                "sip:biloxi.com;transport=tcp;method=REGISTER?to=sip:bob%40biloxi.com",
                "sip:biloxi.com;method=REGISTER;transport=tcp?to=sip:bob%40biloxi.com",
            ),
            (
                "sip:alice@atlanta.com?subject=project%20x&priority=urgent",
                "sip:alice@atlanta.com?priority=urgent&subject=project%20x",
            ),
            ("sip:a@b;%74ransport=%74cp", "sip:a@b;transport=TCP"),
            ("sip:a@b;x=1;x=2", "sip:a@b;X=1"),
            ("sip:a@b;x=1;x=2", "sip:a@b;x=%31;X=3"),
            ("sip:a@b?%53ubject=x", "sip:a@b?subject=x"),
            ("sip:[2001:db8::1]", "sip:[2001:DB8:0::1]"),
            ("tel:+1-201-555-0123", "tel:+12015550123"),
            (
                "tel:7042;phone-context=example.com",
                "tel:70-42;Phone-Context=EXAMPLE.com",
            ),
        ] {
            assert!(equal(a, b), "{a} == {b}");
        }
        for (a, b) in [
            (
                "SIP:ALICE@AtLanTa.CoM;Transport=udp",
                "sip:alice@AtLanTa.CoM;Transport=UDP",
            ),
            ("sip:bob@biloxi.com", "sip:bob@biloxi.com:5060"),
            ("sip:bob@biloxi.com", "sip:bob@biloxi.com;transport=udp"),
            ("sip:bob@biloxi.com", "sip:bob@biloxi.com:6000;transport=tcp"),
            (
                "sip:carol@chicago.com",
                "sip:carol@chicago.com?Subject=next%20meeting",
            ),
            ("sip:bob@phone21.boxesbybob.com", "sip:bob@192.0.2.4"),
            (
                "sip:carol@chicago.com;security=on",
                "sip:carol@chicago.com;security=off",
            ),
            ("sip:a@b", "sips:a@b"),
            ("sip:a%3Bb@c", "sip:a;b@c"),
            ("sip:a@b;%74ransport=tcp", "sip:a@b"),
            ("sip:a@b?x=1", "sip:a@b?x=1&x=1"),
            ("tel:7042;phone-context=example.com", "tel:7042"),
            ("sip:a@b;maddr=1.2.3.4", "sip:a@b"),
            ("tel:+12015550123", "tel:12015550123"),
        ] {
            assert!(!equal(a, b), "{a} != {b}");
        }
    }
}

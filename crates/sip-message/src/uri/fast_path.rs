//! The fast path for SIP URIs as nearly all are: short, without escapes, passwords, headers and IPv6
//! addresses. All separators are found at once, as sets of places.

use super::SipUri;
use crate::block::{self, Block};
use crate::host::Host;
use crate::number;
use crate::params::Params;

/// The longest text, without `sip:`: one bit of a word is left for the place behind it.
const MOST: usize = 63;

/// Places in a text, the first lowest.
#[derive(Default)]
struct Separators {
    at: u64,
    colon: u64,
    semicolon: u64,
    equals: u64,
    /// Characters that the general parser has to look at, or refuses.
    odd: u64,
}

impl Separators {
    #[inline(always)]
    fn of(text: &[u8; 64], len: usize) -> Self {
        let mut all = Self::default();
        for (number, bytes) in text.as_chunks::<{ block::LEN }>().0.iter().enumerate() {
            let from = number * block::LEN;
            if from >= len {
                break;
            }
            let block = Block::new(bytes);
            let odd = block.up_to(b' ')
                | block.is(0x7f)
                | block.is(b'<')
                | block.is(b'>')
                | block.is(b'"')
                | block.is(b'%')
                | block.is(b'?')
                | block.is(b'[');
            all.at |= u64::from(block.is(b'@').bits()) << from;
            all.colon |= u64::from(block.is(b':').bits()) << from;
            all.semicolon |= u64::from(block.is(b';').bits()) << from;
            all.equals |= u64::from(block.is(b'=').bits()) << from;
            all.odd |= u64::from(odd.bits()) << from;
        }
        all
    }
}

/// Reads `rest`, the part of `text` behind `sip:`. `None`: the general parser decides, which this function
/// must not contradict.
pub(super) fn sip<'a>(text: &'a [u8], rest: &'a [u8]) -> Option<SipUri<'a>> {
    let len = rest.len();
    if len > MOST {
        return None;
    }
    let mut padded = [0; 64];
    padded.get_mut(..len)?.copy_from_slice(rest);
    let found = Separators::of(&padded, len);
    let before = |place: usize| (1u64 << place) - 1;
    if found.odd & before(len) != 0 {
        return None;
    }
    let (user, host_at) = match found.at {
        0 => (None, 0),
        at => {
            let at = at.trailing_zeros() as usize;
            if at == 0 || found.colon & before(at) != 0 {
                return None;
            }
            (Some(rest.get(..at)?), at + 1)
        }
    };
    let semicolons = found.semicolon & !before(host_at);
    let host_end = len.min(semicolons.trailing_zeros() as usize);
    // Each parameter has a name: no separator and no end stands right behind a semicolon.
    if (semicolons << 1) & (semicolons | found.equals | 1 << len) != 0 {
        return None;
    }
    let colon = len.min((found.colon & !before(host_at)).trailing_zeros() as usize);
    let (host_text, port) = if colon < host_end {
        let port = number::port(rest.get(colon + 1..host_end)?)?;
        (rest.get(host_at..colon)?, Some(port))
    } else {
        (rest.get(host_at..host_end)?, None)
    };
    Some(SipUri {
        text,
        secure: false,
        user,
        password: None,
        host: Host::parse(host_text)?,
        host_text,
        port,
        params: Params::new(rest.get(host_end..)?),
        headers: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uri::check_characters;
    use alloc::format;
    use alloc::vec::Vec;

    fn check(text: &[u8]) -> bool {
        let Some(rest) = text.strip_prefix(b"sip:") else {
            return false;
        };
        let Some(usual) = sip(text, rest) else {
            return false;
        };
        let general = check_characters(rest).and_then(|()| SipUri::parse_rest(text, rest, false));
        assert_eq!(
            format!("{:?}", Ok::<_, crate::UriError>(usual)),
            format!("{general:?}"),
            "{}",
            text.escape_ascii()
        );
        true
    }

    #[test]
    fn what_is_usual_is_read_here() {
        for text in [
            &b"sip:bob@example.com"[..],
            b"sip:example.com",
            b"sip:192.0.2.1:5060;lr;tz=0123456789abcdef",
            b"sip:+12125550142;x=1@proxy.example.net:5062;user=phone;a==",
        ] {
            assert!(check(text), "{}", text.escape_ascii());
        }
    }

    #[test]
    fn the_general_parser_is_never_contradicted() {
        let texts: [&[u8]; 3] = [
            b"sip:bob;x=1@example.com:5060;lr;transport=udp",
            b"sip:192.0.2.1;maddr=1.2.3.4;=",
            b"sip:0123456789012345678901234567890123456789@example.com:5060;abc",
        ];
        let bytes = b"\0\r\n\t ;,=:\"\\<>%@[]?&./aZ09\x7f\x80";
        for text in texts {
            for at in 4..=text.len() {
                let _ = check(&text[..at]);
                for &c in bytes {
                    let mut changed: Vec<u8> = text.to_vec();
                    changed.insert(at, c);
                    let _ = check(&changed);
                    if at < text.len() {
                        changed = text.to_vec();
                        changed[at] = c;
                        let _ = check(&changed);
                    }
                }
            }
        }
    }
}

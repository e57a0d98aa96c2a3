//! Functions that write and read pieces of messages.

use sip_message::{HeaderName, Message};

/// Appends all parts.
pub(crate) fn cat(out: &mut Vec<u8>, parts: &[&[u8]]) {
    for part in parts {
        out.extend_from_slice(part);
    }
}

/// Appends `value` as eight hexadecimal digits.
pub(crate) fn hex8(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&digits(value));
}

pub(crate) fn digits(value: u32) -> [u8; 8] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    std::array::from_fn(|i| DIGITS[(value >> (28 - 4 * i)) as usize & 15])
}

/// Reads eight hexadecimal digits, as [`hex8`] writes them.
pub(crate) fn read_hex8(text: &[u8]) -> Option<u32> {
    if text.len() != 8 {
        return None;
    }
    text.iter().try_fold(0, |value: u32, digit| {
        let digit = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(value << 4 | u32::from(digit))
    })
}

/// Copies all fields of these names from `message`, unchanged.
pub(crate) fn copy_fields(out: &mut Vec<u8>, message: &Message<'_>, names: &[HeaderName]) {
    for field in message.fields().iter().filter(|f| names.contains(&f.name)) {
        out.extend_from_slice(message.text(field.start as usize..field.end as usize));
    }
}

/// Appends the end of a message: Content-Type if there is a body, Content-Length, and the body.
pub(crate) fn body(out: &mut Vec<u8>, kind: &str, body: &[u8]) {
    if !body.is_empty() {
        cat(out, &[b"Content-Type: ", kind.as_bytes(), b"\r\n"]);
    }
    out.extend_from_slice(b"Content-Length: ");
    sip_message::number::write_decimal(out, body.len() as u64);
    cat(out, &[b"\r\n\r\n", body]);
}

/// A session description of one PCMU stream to the discard port of the loopback interface (RFC 4566). Neither
/// end sends media.
pub(crate) const SDP: &[u8] = b"v=0\r\no=- 1 1 IN IP4 127.0.0.1\r\ns=-\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\n\
    m=audio 9 RTP/AVP 0\r\na=rtpmap:0 PCMU/8000\r\na=inactive\r\n";
/// The media type of [`SDP`].
pub(crate) const SDP_TYPE: &str = "application/sdp";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back() {
        for value in [0, 1, 0xdead_beef, u32::MAX] {
            let mut text = Vec::new();
            hex8(&mut text, value);
            assert_eq!(read_hex8(&text), Some(value));
        }
        for bad in [&b""[..], b"1234567", b"123456789", b"1234567g", b"1234567A"] {
            assert_eq!(read_hex8(bad), None);
        }
    }
}

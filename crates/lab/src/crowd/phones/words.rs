//! What phones say and hear.

/// What begins a ping, up to the phone's number.
const PING: &[u8] = b"OPTIONS sip:u";
/// What begins a response, up to its status.
const RESPONSE: &[u8] = b"SIP/2.0 ";
/// What comes before the phone's number in a response.
const CALL_ID: &[u8] = b"\r\nCall-ID: u";

/// The REGISTER of a phone in a home network: Via and Contact have its private address.
pub(super) fn register(number: u32, domain: &str) -> Vec<u8> {
    let private = format!("192.168.{}.{}", number / 250 % 250, 1 + number % 250);
    format!(
        "REGISTER sip:{domain} SIP/2.0\r\nVia: SIP/2.0/UDP {private}:5060;rport;branch=z9hG4bKu{number}\r\n\
         Max-Forwards: 70\r\nFrom: <sip:u{number}@{domain}>;tag=u{number}\r\nTo: <sip:u{number}@{domain}>\r\n\
         Call-ID: u{number}@{private}\r\nCSeq: 1 REGISTER\r\nContact: <sip:u{number}@{private}:5060>\r\n\
         Expires: 3600\r\nContent-Length: 0\r\n\r\n"
    )
    .into_bytes()
}

/// The phone that an OPTIONS is for.
pub(super) fn number_of_ping(bytes: &[u8]) -> Option<u32> {
    leading_number(bytes.strip_prefix(PING)?)
}

/// The phone whose REGISTER a response is for, and its status.
pub(super) fn response(bytes: &[u8]) -> Option<(u32, u16)> {
    let status = leading_number(bytes.strip_prefix(RESPONSE)?)?;
    let at = memchr::memmem::find(bytes, CALL_ID)?;
    let number = leading_number(bytes.get(at + CALL_ID.len()..)?)?;
    Some((number, u16::try_from(status).ok()?))
}

/// Whether a datagram is a keep-alive (RFC 5626 §3.5.1).
pub(super) fn is_empty_line(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| matches!(byte, b'\r' | b'\n'))
}

fn leading_number(bytes: &[u8]) -> Option<u32> {
    let digits = bytes.split(|byte| !byte.is_ascii_digit()).next()?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phone_has_a_private_contact_and_asks_for_its_source() {
        let text = String::from_utf8(register(999_999, "bench")).unwrap();
        assert!(text.starts_with("REGISTER sip:bench SIP/2.0\r\n"), "{text}");
        assert!(
            text.contains("Via: SIP/2.0/UDP 192.168.249.250:5060;rport;branch=z9hG4bKu999999\r\n"),
            "{text}"
        );
        assert!(
            text.contains("Contact: <sip:u999999@192.168.249.250:5060>\r\n"),
            "{text}"
        );
        assert!(text.ends_with("Content-Length: 0\r\n\r\n"), "{text}");
    }

    #[test]
    fn datagrams_are_told_apart() {
        let ping = b"OPTIONS sip:u17@192.168.0.18:5060 SIP/2.0\r\n\r\n";
        assert_eq!((number_of_ping(ping), response(ping)), (Some(17), None));
        let response_of = |text: &str| response(text.as_bytes());
        let ok = "SIP/2.0 200 OK\r\nVia: x\r\nCall-ID: u4294967295@192.168.0.1\r\n\r\n";
        assert_eq!(response_of(ok), Some((u32::MAX, 200)));
        assert_eq!(number_of_ping(ok.as_bytes()), None);
        for text in [
            "SIP/2.0 200 OK\r\nCall-ID: probe\r\n\r\n",
            "SIP/2.0 200 OK\r\nCall-ID: u4294967296@h\r\n\r\n",
            "SIP/2.0 99999 OK\r\nCall-ID: u1@h\r\n\r\n",
            "SIP/2.0 OK\r\nCall-ID: u1@h\r\n\r\n",
            "INVITE sip:u1@h SIP/2.0\r\nCall-ID: u1@h\r\n\r\n",
        ] {
            assert_eq!(response_of(text), None, "{text}");
        }
        assert!(is_empty_line(b"\r\n") && is_empty_line(b"\r\n\r\n") && !is_empty_line(ping));
    }
}

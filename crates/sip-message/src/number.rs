//! Numbers. Overflow is an error, never a wrapped or clamped value.

/// Reads all of `text` as a decimal number. `None`: the text is empty, holds anything but digits, or does not
/// fit.
pub fn decimal_u32(text: &[u8]) -> Option<u32> {
    // At most ten digits can fit; more leading zeros are not worth their risk.
    if text.is_empty() || text.len() > 10 {
        return None;
    }
    let mut value: u64 = 0;
    for &c in text {
        if !c.is_ascii_digit() {
            return None;
        }
        value = value * 10 + u64::from(c - b'0');
    }
    u32::try_from(value).ok()
}

/// A `Content-Length` value (RFC 3261 §20.14): at most 2^31 - 1.
pub fn content_length(text: &[u8]) -> Option<usize> {
    let value = decimal_u32(crate::chars::trim(text))?;
    if value > i32::MAX as u32 {
        None
    } else {
        usize::try_from(value).ok()
    }
}

/// `delta-seconds` (RFC 3261 §20.19): 0 to 2^32 - 1; larger values, still digits, count as the maximum.
pub fn delta_seconds(text: &[u8]) -> Option<u32> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(decimal_u32(text).unwrap_or(u32::MAX))
}

/// A port number, 1 to 65535.
pub fn port(text: &[u8]) -> Option<u16> {
    u16::try_from(decimal_u32(text)?).ok().filter(|p| *p != 0)
}

/// A `qvalue` in thousandths: `0`, `0.x` … `0.xxx`, `1`, `1.000` (RFC 3261 §25.1).
pub fn qvalue(text: &[u8]) -> Option<u16> {
    let (whole, fraction) = crate::chars::split_once(text, b'.');
    let whole = match whole {
        b"0" => 0,
        b"1" => 1000,
        _ => return None,
    };
    let fraction = fraction.unwrap_or_default();
    if fraction.len() > 3 || !fraction.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let mut value: u16 = 0;
    for i in 0..3 {
        let digit = fraction.get(i).map_or(0, |c| c - b'0');
        value = value * 10 + u16::from(digit);
    }
    let sum = whole + value;
    (sum <= 1000).then_some(sum)
}

/// Appends a decimal number.
#[inline]
pub fn write_decimal(out: &mut alloc::vec::Vec<u8>, value: u64) {
    // Most numbers are short: hops, ports of at most five digits, numbers of listeners.
    match value {
        0..10 => out.push(b'0' + value as u8),
        10..100 => out.extend_from_slice(&[b'0' + (value / 10) as u8, b'0' + (value % 10) as u8]),
        _ => write_long_decimal(out, value),
    }
}

fn write_long_decimal(out: &mut alloc::vec::Vec<u8>, mut value: u64) {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        if let Some(slot) = digits.get_mut(at) {
            *slot = b'0' + (value % 10) as u8;
        }
        value /= 10;
        if value == 0 {
            break;
        }
    }
    out.extend_from_slice(digits.get(at..).unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;
    use alloc::vec::Vec;

    #[test]
    fn overflow_is_refused() {
        for text in [
            "",
            "-1",
            "+1",
            " 1",
            "4294967296",
            "9223372036854775808",
            "18446744073709551617",
            "00000000001",
            "1a",
        ] {
            assert_eq!(decimal_u32(text.as_bytes()), None, "{text}");
        }
        assert_eq!(decimal_u32(b"4294967295"), Some(u32::MAX));
        assert_eq!(content_length(b"2147483647"), Some(2_147_483_647));
        assert_eq!(content_length(b"2147483648"), None);
        assert_eq!(content_length(b" 7 "), Some(7));
        assert_eq!(delta_seconds(b"99999999999999"), Some(u32::MAX));
        assert_eq!(port(b"65536"), None);
        assert_eq!(port(b"0"), None);
    }

    #[test]
    fn qvalues_are_thousandths_or_refused() {
        for (text, value) in [
            ("0", Some(0)),
            ("1", Some(1000)),
            ("0.5", Some(500)),
            ("0.123", Some(123)),
            ("1.000", Some(1000)),
            ("1.1", None),
            ("0.1234", None),
            ("2", None),
            (".5", None),
            ("0.", Some(0)),
        ] {
            assert_eq!(qvalue(text.as_bytes()), value, "{text}");
        }
    }

    #[test]
    fn decimals_are_written_as_std_does() {
        for value in [0, 7, 10, 99, 100, 12345, u64::MAX] {
            let mut out = Vec::new();
            write_decimal(&mut out, value);
            assert_eq!(out, value.to_string().as_bytes());
        }
    }
}

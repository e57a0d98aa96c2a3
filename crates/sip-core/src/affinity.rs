//! The worker that holds the state of a call: a hash of its Call-ID, modulo the number of workers.
//!
//! A classic BPF program can compute this hash, so that the kernel gives a datagram to the right worker
//! (`sip_net::udp::steer`). The hash has no key, and no map is built on it. A source that wants all its calls
//! at one worker can as well use one Call-ID for all.
//!
//! [`call_id_of`] finds the Call-ID without reading the message, for datagrams that reached another
//! worker.

use memchr::memchr;

use crate::id::WorkerId;

/// The initial value of the hash.
pub const SEED: u32 = 0x2f0b_4a75;

/// The factor of each step (from MurmurHash3's finisher: good mixing, public domain).
pub const MULTIPLIER: u32 = 0x85eb_ca6b;

/// Bits by which each step shifts.
pub const SHIFT: u32 = 15;

/// The number of words of four bytes that are hashed; the rest of a Call-ID does not count.
pub const WORDS: usize = 16;

/// One step of the hash.
const fn step(hash: u32, value: u32) -> u32 {
    let mixed = (hash ^ value).wrapping_mul(MULTIPLIER);
    mixed ^ (mixed >> SHIFT)
}

/// Whether a word may hold a CR. The test is exact for ASCII, and otherwise wrong in the same way as in the
/// kernel, where only the line end shows how long the Call-ID is.
const fn may_end(word: u32) -> bool {
    (word ^ 0x0d0d_0d0d).wrapping_sub(0x0101_0101) & 0x8080_8080 != 0
}

/// The hash of a Call-ID.
fn hash(call_id: &[u8]) -> u32 {
    let mut hash = SEED;
    let mut rest = call_id;
    for _ in 0..WORDS {
        match rest.split_first_chunk::<4>() {
            Some((word, tail)) if !may_end(u32::from_be_bytes(*word)) => {
                hash = step(hash, u32::from_be_bytes(*word));
                rest = tail;
            }
            _ => return rest.iter().take(3).fold(hash, |h, b| step(h, u32::from(*b))),
        }
    }
    hash
}

/// The worker, one of `workers`, that holds the state of this Call-ID.
pub fn worker_of(call_id: &[u8], workers: u16) -> WorkerId {
    if workers <= 1 {
        return WorkerId(0);
    }
    WorkerId((hash(call_id) % u32::from(workers)) as u16)
}

/// The Call-ID of a datagram, found by the beginnings of its lines only. `None`: the datagram has none, or
/// its line is not a plain one (folded, bare line ends) and needs the parser. If the parser finds no defects
/// and this finds a Call-ID, both agree.
pub fn call_id_of(bytes: &[u8]) -> Option<&[u8]> {
    let mut rest = bytes;
    while let [b'\r', b'\n', tail @ ..] = rest {
        rest = tail;
    }
    loop {
        rest = rest.get(memchr(b'\n', rest)? + 1..)?;
        let len = match rest.first()? {
            // The end of the headers.
            b'\r' | b'\n' => return None,
            b'c' | b'C' => 7,
            b'i' | b'I' => 1,
            _ => continue,
        };
        let (name, after) = rest.split_at_checked(len)?;
        if len == 7 && !name.eq_ignore_ascii_case(b"call-id") {
            continue;
        }
        let blanks = blank_len(after);
        if after.get(blanks) == Some(&b':') {
            return value(after.get(blanks + 1..)?);
        }
    }
}

/// The value at the front of `text`, if the whole value is on this line.
fn value(text: &[u8]) -> Option<&[u8]> {
    let text = text.get(blank_len(text)..)?;
    let stop = memchr(b'\n', text)?;
    let [line @ .., b'\r'] = text.get(..stop)? else {
        return None;
    };
    if matches!(text.get(stop + 1), Some(b' ' | b'\t')) || memchr(b'\r', line).is_some() {
        return None;
    }
    let blanks = line
        .iter()
        .rev()
        .take_while(|c| matches!(c, b' ' | b'\t'))
        .count();
    line.get(..line.len() - blanks).filter(|id| !id.is_empty())
}

fn blank_len(text: &[u8]) -> usize {
    text.iter().take_while(|c| matches!(c, b' ' | b'\t')).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;

    #[test]
    fn similar_call_ids_spread_evenly() {
        for workers in [2u16, 3, 4, 16] {
            for kind in 0..5 {
                let mut count = [0u32; 16];
                for n in 0..16_000u32 {
                    let id = match kind {
                        0 => format!("{n}@gen"),
                        1 => format!("{n:08x}-0-5f@192.0.2.1"),
                        2 => format!("call-id-of-somebody-with-a-long-prefix-{n}"),
                        3 => format!("{:08x}-{:04x}@a.example", n.wrapping_mul(0x9e37_79b9), n % 7),
                        _ => format!("{}{n:05}", "a".repeat(59)),
                    };
                    count[usize::from(worker_of(id.as_bytes(), workers).0)] += 1;
                }
                let fair = 16_000 / u32::from(workers);
                for n in &count[..usize::from(workers)] {
                    assert!(
                        n.abs_diff(fair) < fair / 8,
                        "{workers} workers, kind {kind}: {count:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn one_worker_owns_everything() {
        assert_eq!(worker_of(b"a", 1), WorkerId(0));
        assert_eq!(worker_of(b"a", 0), WorkerId(0));
    }

    #[test]
    fn a_call_id_is_found_in_any_spelling() {
        for (line, found) in [
            ("Call-ID: a@b\r\n", Some("a@b")),
            ("call-id:a@b\r\n", Some("a@b")),
            ("CALL-ID \t : \t a@b \t\r\n", Some("a@b")),
            ("i: a@b\r\n", Some("a@b")),
            ("I\t:a@b\r\n", Some("a@b")),
            ("Call-ID: a@b\r\nCall-ID: c@d\r\n", Some("a@b")),
            ("Contact: <sip:a@b>\r\nIdentity: x\r\ni: a@b\r\n", Some("a@b")),
            ("X: y\r\n Call-ID: c@d\r\nCall-ID: a@b\r\n", Some("a@b")),
            ("Call-ID: a@b\r\n c\r\n", None),
            ("Call-ID:\r\n a@b\r\n", None),
            ("Call-ID: a@b\n", None),
            ("Call-ID: a\rb\r\n", None),
            ("Call-ID:  \r\n", None),
            ("X-Call-ID: a@b\r\n", None),
            ("", None),
        ] {
            for before in ["", "\r\n\r\n"] {
                let text = format!(
                    "{before}INVITE sip:a@b SIP/2.0\r\nVia: x\r\n{line}To: <sip:a@b>\r\n\r\ni: body\r\n"
                );
                assert_eq!(call_id_of(text.as_bytes()), found.map(str::as_bytes), "{line:?}");
            }
        }
        for text in [
            "",
            "\r\n",
            "INVITE",
            "INVITE\r\nCall-ID: a",
            "x\r\nCall",
            "x\r\ni",
            "x\r\ni:",
        ] {
            assert_eq!(call_id_of(text.as_bytes()), None);
        }
    }
}

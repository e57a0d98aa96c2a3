//! The format of journal segments on disk.
//!
//! ```text
//! segment = magic(8) length(4) crc(4) listeners entry*
//! entry   = length(4) crc(4) version(8) saved_unix_s(8) aor_length(2) aor record
//! ```
//!
//! Numbers are little-endian. Each CRC-32 covers its length field and the bytes that the length counts.
//! `listeners` has the names of local sockets, one a line; listener ids inside the records are indexes of it.
//! A crash can leave an unfinished entry at the end of a segment; no result was delivered for it.

use super::socket::{self, LocalSocket};

const MAGIC: &[u8; 8] = b"TZLOC\x01\r\n";
/// Bytes before a segment's listener table.
const HEADER_FIXED: usize = 16;
/// Bytes of an entry before its address-of-record.
const ENTRY_FIXED: usize = 18;
/// Longest address-of-record.
pub(crate) const MAX_AOR: usize = u16::MAX as usize;
/// Longest record, bytes; longer ones are refused (ten contacts of a datagram's size fit three times).
pub(crate) const MAX_RECORD: usize = 2 * 1024 * 1024;

/// The beginning of a segment, with the sockets that its records' listener ids mean.
pub(crate) fn header(listeners: &[LocalSocket]) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    push_block(&mut out, |out| {
        out.extend_from_slice(write_table(listeners).as_bytes());
    });
    out
}

fn write_table(listeners: &[LocalSocket]) -> String {
    let mut table = String::new();
    for listener in listeners {
        table.push_str(&socket::write(*listener));
        table.push('\n');
    }
    table
}

/// Names of the sockets in a listener table.
fn names(table: &[u8]) -> Vec<Box<[u8]>> {
    let lines = table.split(|b| *b == b'\n');
    lines.filter(|line| !line.is_empty()).map(Into::into).collect()
}

/// Appends `length crc body`.
fn push_block(out: &mut Vec<u8>, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; 8]);
    body(out);
    let length = u32::try_from(out.len() - start - 8)
        .unwrap_or(u32::MAX)
        .to_le_bytes();
    let crc = checksum(length, out.get(start + 8..).unwrap_or_default());
    if let Some(fixed) = out.get_mut(start..start + 8) {
        fixed[..4].copy_from_slice(&length);
        fixed[4..].copy_from_slice(&crc.to_le_bytes());
    }
}

fn checksum(length: [u8; 4], body: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&length);
    hasher.update(body);
    hasher.finalize()
}

/// One saved address-of-record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Version of the record. Of two entries of one address-of-record the higher one counts.
    pub version: u64,
    /// The time at which the entry was written, Unix seconds.
    pub saved_unix_s: u64,
    /// `user@domain`, canonical.
    pub aor: &'a [u8],
    /// The record in [`sip_core::location::codec`]'s encoding.
    pub record: &'a [u8],
}

impl Entry<'_> {
    /// Whether an entry of this size may be written.
    pub(crate) fn fits(aor: &[u8], record: &[u8]) -> bool {
        aor.len() <= MAX_AOR && record.len() <= MAX_RECORD
    }

    /// Appends the entry to `out`. The size of the entry must fit; that of an entry read from a segment does.
    pub fn write(&self, out: &mut Vec<u8>) {
        push_block(out, |out| {
            out.extend_from_slice(&self.version.to_le_bytes());
            out.extend_from_slice(&self.saved_unix_s.to_le_bytes());
            out.extend_from_slice(&u16::try_from(self.aor.len()).unwrap_or(u16::MAX).to_le_bytes());
            out.extend_from_slice(self.aor);
            out.extend_from_slice(self.record);
        });
    }
}

/// A segment read back.
#[derive(Debug)]
pub struct Segment {
    bytes: Vec<u8>,
    start: usize,
    header_damaged: bool,
    /// Names of the local sockets that listener ids index.
    pub listeners: Vec<Box<[u8]>>,
}

impl Segment {
    /// The segment in these bytes. `None` if its header is not whole and no entry follows: then it holds
    /// nothing with a positive result. If only the header is damaged, listener ids are taken to mean
    /// `listeners`, the present ones.
    pub fn from_bytes(bytes: Vec<u8>, listeners: &[LocalSocket]) -> Option<Self> {
        let table = bytes.strip_prefix(MAGIC).and_then(split_block);
        let found = table.map(|(table, _)| (HEADER_FIXED + table.len(), names(table)));
        let header_damaged = found.is_none();
        let (start, listeners) = match found {
            Some(found) => found,
            None => {
                let start = find_entry(&bytes)?;
                (start, names(write_table(listeners).as_bytes()))
            }
        };
        Some(Self {
            bytes,
            start,
            listeners,
            header_damaged,
        })
    }

    /// The bytes with which a segment begins.
    pub fn start(listeners: &[LocalSocket]) -> Vec<u8> {
        header(listeners)
    }

    /// The sockets that listener ids mean; `None` for a name that is not one of ours.
    pub fn sockets(&self) -> Vec<Option<LocalSocket>> {
        self.listeners.iter().map(|name| socket::parse(name)).collect()
    }

    /// The entries. Damaged places between them are left out and counted. An entry that is not whole at the
    /// end was interrupted by a crash.
    pub fn entries(&self) -> Entries<'_> {
        Entries {
            rest: self.bytes.get(self.start..).unwrap_or_default(),
            damaged: u64::from(self.header_damaged),
        }
    }

    /// The segment's bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Number of bytes in the segment.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }
}

/// Iterator over a segment's entries. Afterwards [`Entries::rest`] is the unreadable rest.
#[derive(Debug)]
pub struct Entries<'a> {
    rest: &'a [u8],
    damaged: u64,
}

impl<'a> Entries<'a> {
    /// Bytes not read yet; after the end of the iterator, the unfinished entry.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Number of damaged places so far.
    pub fn damaged(&self) -> u64 {
        self.damaged
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = Entry<'a>;

    fn next(&mut self) -> Option<Entry<'a>> {
        let (entry, rest) = match split_entry(self.rest) {
            Some(found) => found,
            None => {
                let at = find_entry(self.rest)?;
                self.damaged += 1;
                split_entry(self.rest.get(at..)?)?
            }
        };
        self.rest = rest;
        Some(entry)
    }
}

/// Splits a whole entry off the front.
fn split_entry(bytes: &[u8]) -> Option<(Entry<'_>, &[u8])> {
    let (body, rest) = split_block(bytes)?;
    let (fixed, tail) = body.split_at_checked(ENTRY_FIXED)?;
    let version = u64::from_le_bytes(fixed.get(0..8)?.try_into().ok()?);
    let saved_unix_s = u64::from_le_bytes(fixed.get(8..16)?.try_into().ok()?);
    let aor_length = u16::from_le_bytes(fixed.get(16..18)?.try_into().ok()?);
    let (aor, record) = tail.split_at_checked(usize::from(aor_length))?;
    let entry = Entry {
        version,
        saved_unix_s,
        aor,
        record,
    };
    Some((entry, rest))
}

/// The offset of the next whole entry, behind damaged bytes. If the length of the damaged entry is right, it
/// gives the offset; otherwise each offset is tried. A client cannot plant an entry in a record: an entry's
/// length has a byte of zero, and no part of a SIP message has.
fn find_entry(bytes: &[u8]) -> Option<usize> {
    let length_at = |at: usize| {
        let length = bytes.get(at..)?.first_chunk::<4>()?;
        usize::try_from(u32::from_le_bytes(*length)).ok()
    };
    let is_entry = |at: &usize| {
        let fits = |length: usize| (ENTRY_FIXED..=ENTRY_FIXED + MAX_AOR + MAX_RECORD).contains(&length);
        length_at(*at).is_some_and(fits) && bytes.get(*at..).and_then(split_entry).is_some()
    };
    let next = length_at(0).map(|length| length.saturating_add(8));
    let next = next.filter(is_entry);
    next.or_else(|| (1..bytes.len()).find(is_entry))
}

/// Splits a block with a right checksum off the front.
fn split_block(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    let (crc, rest) = rest.split_first_chunk::<4>()?;
    let (body, rest) = rest.split_at_checked(usize::try_from(u32::from_le_bytes(*length)).ok()?)?;
    (checksum(*length, body) == u32::from_le_bytes(*crc)).then_some((body, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn segment(entries: &[(u64, &[u8], &[u8])]) -> Vec<u8> {
        let mut out = header(&[("udp", "192.0.2.1:5060"), ("tcp", "[::1]:5060")].map(|(t, a)| {
            (
                sip_core::transport::Transport::parse(t.as_bytes()).unwrap(),
                a.parse().unwrap(),
            )
        }));
        for (version, aor, record) in entries {
            Entry {
                version: *version,
                saved_unix_s: 5,
                aor,
                record,
            }
            .write(&mut out);
        }
        out
    }

    fn read(bytes: Vec<u8>) -> Option<(Vec<u64>, usize)> {
        let segment = Segment::from_bytes(bytes, &[])?;
        let mut entries = segment.entries();
        let versions = entries.by_ref().map(|entry| entry.version).collect();
        Some((versions, entries.rest().len()))
    }

    #[test]
    fn entries_come_back_in_order_with_their_listeners() {
        let bytes = segment(&[(7, b"alice@example.com", b"one"), (8, b"", b"")]);
        let segment = Segment::from_bytes(bytes, &[]).unwrap();
        assert_eq!(
            *segment.listeners,
            [Box::from(&b"udp:192.0.2.1:5060"[..]), (*b"tcp:[::1]:5060").into()]
        );
        let all: Vec<_> = segment.entries().collect();
        assert_eq!(
            all[0],
            Entry {
                version: 7,
                saved_unix_s: 5,
                aor: b"alice@example.com",
                record: b"one"
            }
        );
        assert_eq!(
            all[1],
            Entry {
                version: 8,
                saved_unix_s: 5,
                aor: b"",
                record: b""
            }
        );
    }

    #[test]
    fn any_cut_gives_the_whole_entries_before_it() {
        let bytes = segment(&[(1, b"a@b", b"x"), (2, b"c@d", b"yy"), (3, b"e@f", b"zzz")]);
        let first = segment(&[]).len();
        let ends: Vec<usize> = [1usize, 2, 3]
            .iter()
            .scan(first, |at, n| {
                *at += 8 + ENTRY_FIXED + 3 + n;
                Some(*at)
            })
            .collect();
        assert_eq!(*ends.last().unwrap(), bytes.len());
        for cut in 0..bytes.len() {
            let whole = ends.iter().filter(|end| **end <= cut).count() as u64;
            match read(bytes[..cut].to_vec()) {
                None => assert!(cut < first),
                Some((versions, rest)) => {
                    assert_eq!(versions, (1..=whole).collect::<Vec<_>>());
                    let good = ends
                        .iter()
                        .copied()
                        .filter(|end| *end <= cut)
                        .max()
                        .unwrap_or(first);
                    assert_eq!(rest, cut - good);
                }
            }
        }
    }

    #[test]
    fn zeros_after_the_last_entry_are_a_torn_tail() {
        let mut bytes = segment(&[(1, b"a@b", b"x")]);
        bytes.extend_from_slice(&[0; 4096]);
        assert_eq!(read(bytes), Some((vec![1], 4096)));
    }

    proptest! {
        #[test]
        fn any_bytes_and_any_flipped_bit_are_read_without_panic(
            noise in proptest::collection::vec(any::<u8>(), 0..200),
            at in any::<prop::sample::Index>(),
            bit in 0..8u32,
        ) {
            let _ = read(noise.clone());
            let mut bytes = segment(&[(1, b"a@b", &noise), (2, b"c@d", b"y")]);
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            let header = segment(&[]).len();
            let read = Segment::from_bytes(bytes, &[]).map(|segment| {
                let mut entries = segment.entries();
                let versions: Vec<_> = entries.by_ref().map(|entry| entry.version).collect();
                (versions, entries.damaged(), entries.rest().len())
            });
            let (versions, damaged, rest) = read.unwrap();
            let second = header + 8 + ENTRY_FIXED + 3 + noise.len();
            match at {
                _ if at < header => prop_assert_eq!((versions, damaged, rest), (vec![1, 2], 1, 0)),
                _ if at < second => prop_assert_eq!((versions, damaged, rest), (vec![2], 1, 0)),
                _ => prop_assert!(versions == [1] && damaged == 0 && rest > 0),
            }
        }
    }
}

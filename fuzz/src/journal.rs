//! A segment of the location journal, or one record of it, read back.
//!
//! The first byte chooses: bytes as they are, bytes with corrected checksums (so that what lies behind them
//! is reached), or a record. What can be read is written again, byte for byte.

use sip_backend::location::LocalSocket;
use sip_backend::location::segment::Segment;
use sip_core::location::codec::{RecordRef, decode, encode};

/// Bytes before the first block: the magic.
const MAGIC: usize = 8;
/// The format of records that is written.
const FORMAT: u8 = 2;

/// Takes one input.
pub fn run(bytes: &[u8]) {
    match bytes.split_first() {
        Some((0, rest)) => segment(rest.to_vec()),
        Some((1, rest)) => segment(repaired(rest)),
        Some((_, rest)) => record(rest),
        None => {}
    }
}

/// The blocks of `bytes` with the checksums that they should have; where a length goes beyond the
/// end, it is made to reach the end.
fn repaired(bytes: &[u8]) -> Vec<u8> {
    let mut out = bytes.to_vec();
    let mut at = MAGIC;
    while let Some((length, rest)) = out.get(at..).and_then(<[u8]>::split_first_chunk::<4>) {
        let Some(room) = rest.len().checked_sub(4) else {
            break;
        };
        let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
        let length = length.min(room);
        let field = u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes();
        let end = at + 8 + length;
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&field);
        hasher.update(&out[at + 8..end]);
        out[at..at + 4].copy_from_slice(&field);
        out[at + 4..at + 8].copy_from_slice(&hasher.finalize().to_le_bytes());
        at = end;
    }
    out
}

fn segment(bytes: Vec<u8>) {
    let Some(segment) = Segment::from_bytes(bytes.clone(), &[]) else {
        return;
    };
    let sockets: Option<Vec<LocalSocket>> = segment.sockets().into_iter().collect();
    let mut again = Vec::new();
    let mut entries = segment.entries();
    for entry in &mut entries {
        record(entry.record);
        entry.write(&mut again);
    }
    again.extend_from_slice(entries.rest());
    // What is damaged between entries is left out.
    if entries.damaged() == 0 {
        assert!(bytes.ends_with(&again), "entries are written as they were");
    }
    if let Some(sockets) = sockets {
        // Sockets have more than one spelling; ours, once written, is read as the same.
        let start = Segment::start(&sockets);
        let read = Segment::from_bytes(start, &[]).expect("a segment without entries");
        let read: Option<Vec<_>> = read.sockets().into_iter().collect();
        assert_eq!(read, Some(sockets));
    }
}

fn record(bytes: &[u8]) {
    let Ok(record) = decode(bytes) else { return };
    let view = RecordRef::new(bytes).expect("decoded");
    assert_eq!(view.len(), record.bindings.len());
    for (lent, owned) in view.bindings().zip(&record.bindings) {
        assert_eq!(lent.as_ref().map(|b| b.to_owned()), Ok(owned.clone()));
    }
    let mut again = Vec::new();
    encode(&record, &mut again);
    if bytes.first() == Some(&FORMAT) {
        assert_eq!(again, bytes, "one encoding");
    } else {
        assert_eq!(
            decode(&again),
            Ok(record),
            "the earlier format is read and never written"
        );
    }
}

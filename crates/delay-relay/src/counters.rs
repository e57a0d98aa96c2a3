//! What is counted.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes of payload that fit into a segment on Ethernet: 1,500 less 20 for IPv4 and 32 for TCP
/// with timestamps (RFC 9293 §3.7.1, RFC 7323).
pub const SEGMENT_PAYLOAD: usize = 1_448;

/// Bytes of headers of a segment with data: Ethernet 14, IPv4 20, TCP with timestamps 32.
pub const SEGMENT_HEADERS: u64 = 66;

/// What has passed in one direction since the relay started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Flow {
    /// Bytes of payload taken from senders. Exact.
    pub bytes: u64,
    /// Reads that gave bytes. A sender's write is one of them where it is small and the relay is
    /// not busy; two writes that come at once may be one.
    pub chunks: u64,
    /// Segments that these would be on an Ethernet: an estimate, one for each 1,448 bytes
    /// ([`SEGMENT_PAYLOAD`]) of each chunk. Acknowledgements without data, segments that open and
    /// close a connection, and retransmissions are not in it.
    pub segments: u64,
    /// Bytes of payload given to receivers.
    pub passed: u64,
    /// Bytes of payload that reached no receiver: swallowed on command, on their way when their connection
    /// was closed or reset, or meant for a receiver that had gone.
    pub lost: u64,
    /// How many times reading stopped because a connection had as many bytes on their way as it
    /// may have.
    pub pauses: u64,
}

impl Flow {
    /// Bytes on an Ethernet: payload and [`SEGMENT_HEADERS`] for each of [`Self::segments`]; an
    /// estimate, as they are.
    pub fn wire_bytes(&self) -> u64 {
        self.bytes + SEGMENT_HEADERS * self.segments
    }

    /// Bytes on their way now. Each number is read by itself, so this is exact only while nothing
    /// moves.
    pub fn on_the_way(&self) -> u64 {
        self.bytes.saturating_sub(self.passed.saturating_add(self.lost))
    }
}

/// What a relay has counted since it started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Connections that were taken, and a connection to the target begun for.
    pub opened: u64,
    /// Of these, so many have not ended on both sides.
    pub open: u64,
    /// Connections reset as soon as they came: on command, or because as many were open as may be. Those that
    /// a closed port refuses are not counted.
    pub refused: u64,
    /// Connections with a target that could not be reached.
    pub unreachable: u64,
    /// Connections reset on command, those cut after a number of bytes among them.
    pub reset: u64,
    /// How many times a connection could not be accepted (no more open files, mostly).
    pub accept_failures: u64,
    /// From clients to the target.
    pub to_target: Flow,
    /// From the target to clients.
    pub to_client: Flow,
}

/// [`Flow`], written by the relay's thread and read by any.
#[derive(Debug, Default)]
pub(crate) struct FlowTally {
    bytes: AtomicU64,
    chunks: AtomicU64,
    segments: AtomicU64,
    passed: AtomicU64,
    lost: AtomicU64,
    pauses: AtomicU64,
}

impl FlowTally {
    /// A read gave so many bytes.
    pub(crate) fn taken(&self, bytes: usize) {
        add(&self.bytes, bytes);
        add(&self.chunks, 1);
        add(&self.segments, bytes.div_ceil(SEGMENT_PAYLOAD));
    }

    pub(crate) fn passed(&self, bytes: usize) {
        add(&self.passed, bytes);
    }

    pub(crate) fn lost(&self, bytes: usize) {
        add(&self.lost, bytes);
    }

    pub(crate) fn paused(&self) {
        add(&self.pauses, 1);
    }

    fn read(&self) -> Flow {
        // What was passed or lost was taken before, so that is read last.
        let (passed, lost) = (self.passed.load(Relaxed), self.lost.load(Relaxed));
        Flow {
            passed,
            lost,
            bytes: self.bytes.load(Relaxed),
            chunks: self.chunks.load(Relaxed),
            segments: self.segments.load(Relaxed),
            pauses: self.pauses.load(Relaxed),
        }
    }
}

/// [`Counters`], written by the relay's thread and read by any.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) opened: AtomicU64,
    pub(crate) ended: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) unreachable: AtomicU64,
    pub(crate) reset: AtomicU64,
    pub(crate) accept_failures: AtomicU64,
    pub(crate) to_target: FlowTally,
    pub(crate) to_client: FlowTally,
}

/// Adds to a counter.
pub(crate) fn add(counter: &AtomicU64, count: usize) {
    counter.fetch_add(u64::try_from(count).unwrap_or(u64::MAX), Relaxed);
}

impl Tally {
    pub(crate) fn read(&self) -> Counters {
        let ended = self.ended.load(Relaxed);
        let opened = self.opened.load(Relaxed);
        Counters {
            opened,
            open: opened.saturating_sub(ended),
            refused: self.refused.load(Relaxed),
            unreachable: self.unreachable.load(Relaxed),
            reset: self.reset.load(Relaxed),
            accept_failures: self.accept_failures.load(Relaxed),
            to_target: self.to_target.read(),
            to_client: self.to_client.read(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_and_bytes_on_the_wire_follow_from_chunks() {
        let tally = FlowTally::default();
        for bytes in [1, 1_448, 1_449] {
            tally.taken(bytes);
        }
        tally.passed(2_000);
        tally.lost(98);
        let flow = tally.read();
        assert_eq!((flow.bytes, flow.chunks, flow.segments), (2_898, 3, 4));
        assert_eq!(flow.wire_bytes(), 2_898 + 4 * 66);
        assert_eq!(flow.on_the_way(), 800);
    }
}

//! Receiving of datagrams in batches.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;

use super::PENDING_ERRORS;
use crate::sys::{RawDatagram, RecvSlots};

/// Bytes of a datagram that its slot takes in place. A SIP message over UDP rarely exceeds the 1,300 bytes of
/// RFC 3261 §18.1.1. The number of cache lines is odd, so that the first bytes of the slots do not fall on
/// the same cache sets.
const HEAD_LEN: usize = 33 * 64;

/// The largest datagram: the length field has 16 bits (jumbograms, RFC 2675, aside).
const LARGEST: usize = 65_535;

/// One datagram, valid until its batch is used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// Address of the sender.
    pub source: SocketAddr,
    /// The datagram's bytes.
    pub bytes: &'a [u8],
}

/// Receives datagrams of up to 65,535 bytes whole, many at a time.
///
/// A slot has 2,112 bytes in a small area that stays in the cache. The rest of a large datagram goes to an
/// area that gets its pages only once a datagram has needed them. 64 slots cost 132 KiB, and 4 MiB more only
/// for a peer's burst of 64 giant datagrams. A datagram that lies in both areas is joined by one copy. Longer
/// ones cannot occur with the default size; with a smaller one they are marked by the kernel and never shown.
#[derive(Debug)]
pub struct RecvBatch {
    slots: RecvSlots,
    joined: Vec<u8>,
    count: usize,
    capacity: usize,
    /// The most that the last call could receive.
    asked: usize,
    truncated: u64,
}

impl RecvBatch {
    /// A batch of at most `capacity` datagrams a call.
    pub fn new(capacity: usize) -> Self {
        Self::with_largest(capacity, LARGEST)
    }

    /// As [`RecvBatch::new`], for datagrams of up to `largest` bytes; longer ones are dropped and
    /// counted.
    pub fn with_largest(capacity: usize, largest: usize) -> Self {
        let head = HEAD_LEN.min(largest.saturating_sub(1));
        Self {
            slots: RecvSlots::new(capacity, head, largest - head),
            joined: Vec::new(),
            count: 0,
            capacity: capacity.max(1),
            asked: capacity.max(1),
            truncated: 0,
        }
    }

    /// Receives the datagrams that wait at `socket`, at most as many as fit; never blocks. Returns 0 if none
    /// waited. An error concerns the socket, not a datagram; the next call may well succeed.
    pub fn receive(&mut self, socket: &impl AsFd) -> io::Result<usize> {
        self.receive_at_most(socket, usize::MAX)
    }

    /// As [`RecvBatch::receive`], but at most `most` (not 0).
    pub(crate) fn receive_at_most(&mut self, socket: &impl AsFd, most: usize) -> io::Result<usize> {
        self.count = 0;
        self.asked = self.capacity.min(most);
        let mut tries = 0;
        loop {
            match self.slots.receive(socket.as_fd(), self.asked) {
                Ok(count) => {
                    self.count = count;
                    return Ok(count);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(0),
                // A waiting ICMP error is reported once, by the next call of any kind (udp(7)). The details
                // are in the error queue. More may arrive.
                Err(_) if tries < PENDING_ERRORS => tries += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// Number of datagrams of the last call.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether the last call received none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether the last call received as many as it could, so that more may wait.
    pub fn is_full(&self) -> bool {
        self.count == self.asked
    }

    /// Datagram `index` of the last call. `None` beyond the last, and for a truncated datagram, which is
    /// counted once for each call of this function.
    pub fn datagram(&mut self, index: usize) -> Option<Datagram<'_>> {
        if index >= self.count {
            return None;
        }
        let RawDatagram {
            source,
            head,
            tail,
            is_truncated,
        } = self.slots.datagram(index)?;
        if is_truncated {
            self.truncated += 1;
            return None;
        }
        let source = source?;
        if tail.is_empty() {
            return Some(Datagram { source, bytes: head });
        }
        self.joined.clear();
        self.joined.extend_from_slice(head);
        self.joined.extend_from_slice(tail);
        Some(Datagram {
            source,
            bytes: &self.joined,
        })
    }

    /// Number of datagrams too long for their slot, since the batch was made.
    pub fn truncated(&self) -> u64 {
        self.truncated
    }
}

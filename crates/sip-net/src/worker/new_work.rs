//! The queue of new work by UDP: INVITEs that begin a dialog, which the kernel keeps apart
//! ([`crate::udp::steer`]).
//!
//! A worker reads it after everything else of a turn, and only if little else came, so that the rest of the
//! calls that it has accepted does not wait behind new ones. If there is much else for long, it still gets one
//! batch in [`MOST_SKIPPED`] + 1 turns.
//!
//! A CANCEL comes by the first queue, and may so overtake its INVITE. It would then cancel nothing, and the
//! INVITE would ring. So each CANCEL is put aside until the new work that came before it has been read: the
//! queue has been seen empty, or as much has been read as it can hold. Few user agents send such a CANCEL,
//! because RFC 3261 §9.1 lets it wait for a provisional response.

use std::collections::VecDeque;

use sip_core::time::Now;
use sip_core::transport::Flow;

use super::core::{Core, EventSink, QuerySink};
use super::{Queue, Udp, Worker};
use crate::udp::UdpSocket;

/// Turns in a row in which new work may wait because a batch of other datagrams was full.
const MOST_SKIPPED: u8 = 4;

/// Bytes of CANCELs that wait. Beyond them, a CANCEL is handled at once.
const CANCEL_BYTES: usize = 64 << 10;

/// Bytes of a receive buffer that a datagram takes at least: the kernel counts its own structures, too
/// (`SKB_TRUESIZE`: 576 bytes more than the datagram). So a buffer holds no more datagrams than its size says by this.
const LEAST_TRUESIZE: usize = 768;

/// The queue of new work of one listener.
#[derive(Debug)]
pub(super) struct NewWork {
    pub(super) socket: UdpSocket,
    kernel_drops: u32,
    /// Whether it has something to read, or may have.
    pub(super) is_ready: bool,
    /// Turns in a row in which it was ready and not read.
    skipped: u8,
    /// Datagrams that it can hold.
    capacity: u64,
    /// Datagrams read from it.
    read: u64,
    cancels: VecDeque<Cancel>,
    cancel_bytes: usize,
}

/// A CANCEL that waits for new work.
#[derive(Debug)]
struct Cancel {
    /// The value of [`NewWork::read`] from which on all has been read that came before.
    due: u64,
    flow: Flow,
    bytes: Box<[u8]>,
}

impl NewWork {
    pub(super) fn new(socket: UdpSocket) -> Self {
        // The kernel grants twice what it says (socket(7)).
        let capacity = 2 * socket.receive_buffer() / LEAST_TRUESIZE;
        Self {
            socket,
            kernel_drops: 0,
            is_ready: true,
            skipped: 0,
            capacity: capacity as u64,
            read: 0,
            cancels: VecDeque::new(),
            cancel_bytes: 0,
        }
    }

    /// Datagrams that the kernel dropped since the last call.
    pub(super) fn new_drops(&mut self) -> u64 {
        let drops = self.socket.receive_drops().unwrap_or(self.kernel_drops);
        let new = drops.wrapping_sub(self.kernel_drops);
        self.kernel_drops = drops;
        u64::from(new)
    }

    /// Whether CANCELs wait.
    pub(super) fn holds_cancels(&self) -> bool {
        !self.cancels.is_empty()
    }

    /// Whether it is read in a turn in which the first queue `has_more`.
    fn has_turn(&mut self, has_more: bool) -> bool {
        if !self.is_ready {
            return false;
        }
        let waits = has_more && self.skipped < MOST_SKIPPED;
        self.skipped = if waits { self.skipped + 1 } else { 0 };
        !waits
    }

    /// Puts a datagram aside if it is a CANCEL. `false`: it is to be handled now.
    pub(super) fn puts_aside(&mut self, flow: Flow, bytes: &[u8]) -> bool {
        let fits = self.cancel_bytes + bytes.len() <= CANCEL_BYTES;
        if !bytes.starts_with(b"CANCEL ") || !fits {
            return false;
        }
        self.cancel_bytes += bytes.len();
        self.cancels.push_back(Cancel {
            due: self.read + self.capacity,
            flow,
            bytes: bytes.into(),
        });
        // The kernel may not have said yet that there is something.
        self.is_ready = true;
        true
    }

    /// Notes a batch of `count` datagrams.
    fn note_read(&mut self, count: usize, has_more: bool) {
        self.read += count as u64;
        self.is_ready = has_more;
    }

    /// The next CANCEL that need not wait any longer.
    fn next_cancel(&mut self) -> Option<(Flow, Box<[u8]>)> {
        let (read, is_empty) = (self.read, !self.is_ready);
        let cancel = self
            .cancels
            .pop_front_if(|cancel| is_empty || cancel.due <= read)?;
        self.cancel_bytes -= cancel.bytes.len();
        Some((cancel.flow, cancel.bytes))
    }
}

impl<C: Core, Q: QuerySink, E: EventSink> Worker<C, Q, E> {
    /// Reads a batch of the new work of each listener whose turn it is.
    pub(super) fn receive_new_work(&mut self, now: Now) {
        for number in 0..self.udp.len() {
            let Some(udp) = self.udp.get_mut(number) else {
                return;
            };
            let has_more = std::mem::take(&mut udp.has_more);
            let Some(new_work) = &mut udp.new_work else {
                continue;
            };
            if !new_work.has_turn(has_more) {
                self.again |= new_work.holds_cancels();
                continue;
            }
            let received = self.receive_batch(number, Queue::NewWork);
            if let Some(new_work) = self.udp.get_mut(number).and_then(Udp::new_work) {
                new_work.note_read(received, received > 0 && self.received.is_full());
            }
            self.counters.new_work_received += received as u64;
            self.handle_batch(number, Queue::NewWork, now);
            self.handle_cancels(number, now);
        }
    }

    /// Handles the CANCELs that need not wait any longer.
    fn handle_cancels(&mut self, number: usize, now: Now) {
        let next = |worker: &mut Self| worker.udp.get_mut(number)?.new_work.as_mut()?.next_cancel();
        while let Some((flow, bytes)) = next(self) {
            self.handle_datagram(now, flow, &bytes);
        }
        // No event may come for a queue that has just been emptied by a full batch.
        let udp = self.udp.get(number);
        self.again |= udp
            .and_then(|udp| udp.new_work.as_ref())
            .is_some_and(NewWork::holds_cancels);
    }
}

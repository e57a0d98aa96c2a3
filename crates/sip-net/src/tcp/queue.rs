//! Bytes waiting to be sent on a connection, with the bounds of each message.

use std::collections::VecDeque;

use sip_core::id::WorkerId;
use sip_core::transport::Flow;
use sip_core::transport::websocket::write_frame;

/// A message in an [`OutQueue`], by its offsets among all bytes of the connection.
#[derive(Clone, Copy, Debug)]
struct Mark {
    start: u64,
    end: u64,
    /// Bytes of the frame header before the message.
    head: u8,
    to: Flow,
    origin: WorkerId,
}

/// Bytes to be sent, with the messages in them.
#[derive(Debug, Default)]
pub(super) struct OutQueue {
    bytes: Vec<u8>,
    /// Bytes at the front of `bytes` that were written.
    written: usize,
    marks: VecDeque<Mark>,
    /// Offset of the first of `bytes` among all bytes of the connection.
    base: u64,
}

/// Written bytes at the front of a queue that are worth clearing away.
const COMPACT_BYTES: usize = 64 << 10;

/// Capacity beyond which a queue is not kept for reuse, bytes.
const KEPT_BYTES: usize = 64 << 10;

impl OutQueue {
    /// Number of bytes that wait.
    pub(super) fn len(&self) -> usize {
        self.bytes.len() - self.written
    }

    /// Memory taken, bytes: the capacity of the buffers.
    pub(super) fn memory(&self) -> usize {
        size_of::<Self>() + self.bytes.capacity() + self.marks.capacity() * size_of::<Mark>()
    }

    /// The bytes that wait.
    pub(super) fn waiting(&self) -> &[u8] {
        self.bytes.get(self.written..).unwrap_or_default()
    }

    /// Appends a message to `to`, made by worker `origin`.
    pub(super) fn push(&mut self, to: Flow, origin: WorkerId, message: &[u8]) {
        self.push_with(to, origin, message, |bytes| bytes.extend_from_slice(message));
    }

    /// Appends a message in a WebSocket frame. If unsent, the message is returned without the frame.
    pub(super) fn push_framed(&mut self, to: Flow, origin: WorkerId, message: &[u8]) {
        self.push_with(to, origin, message, |bytes| write_frame(bytes, message));
    }

    fn push_with(&mut self, to: Flow, origin: WorkerId, message: &[u8], write: impl FnOnce(&mut Vec<u8>)) {
        let before = self.bytes.len();
        write(&mut self.bytes);
        let length = self.bytes.len() - before;
        let start = self.base + before as u64;
        self.marks.push_back(Mark {
            start,
            end: start + length as u64,
            head: length.saturating_sub(message.len()) as u8,
            to,
            origin,
        });
    }

    /// Appends bytes that are no message and are never returned.
    pub(super) fn push_unmarked(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Notes that `count` more bytes were written. Returns the number of messages completed by them.
    pub(super) fn advance(&mut self, count: usize) -> u64 {
        self.written = (self.written + count).min(self.bytes.len());
        let done = self.base + self.written as u64;
        let mut messages = 0;
        while self.marks.front().is_some_and(|mark| mark.end <= done) {
            self.marks.pop_front();
            messages += 1;
        }
        if self.len() == 0 {
            self.clear();
        } else if self.written >= COMPACT_BYTES && self.written > self.len() {
            // The beginning of a partly written message stays, because the message may have to be returned
            // whole.
            let keep = self.marks.front().map_or(done, |mark| mark.start.min(done));
            let cut = keep.saturating_sub(self.base) as usize;
            self.bytes.drain(..cut.min(self.written));
            self.base += cut as u64;
            self.written -= cut;
        }
        messages
    }

    /// Empties the queue; the memory stays.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.marks.clear();
        (self.written, self.base) = (0, 0);
    }

    /// Whether the buffer is of the usual size, so that it is worth keeping.
    pub(super) fn is_worth_keeping(&self) -> bool {
        self.bytes.capacity() <= KEPT_BYTES
    }

    /// Removes everything behind the first `keep` waiting bytes. Each message that ends behind them goes to
    /// `lost`.
    pub(super) fn cut(&mut self, keep: usize, mut lost: impl FnMut(Flow, WorkerId, &[u8])) {
        let end = self.base + (self.written + keep) as u64;
        let first = self.marks.partition_point(|mark| mark.end <= end);
        for (to, origin, message) in self.unsent().skip(first) {
            lost(to, origin, message);
        }
        self.marks.truncate(first);
        self.bytes.truncate(self.written + keep);
    }

    /// The messages that were not wholly written. The peer can use no part of a message that is cut.
    pub(super) fn unsent(&self) -> impl Iterator<Item = (Flow, WorkerId, &[u8])> {
        self.marks.iter().map(|mark| {
            let start = (mark.start + u64::from(mark.head)).saturating_sub(self.base);
            let range = start as usize..(mark.end - self.base) as usize;
            (mark.to, mark.origin, self.bytes.get(range).unwrap_or_default())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use sip_core::id::ListenerId;
    use sip_core::transport::Transport;

    fn flow(port: u16) -> Flow {
        let remote = ([127, 0, 0, 1], port).into();
        Flow {
            transport: Transport::Tcp,
            listener: ListenerId(0),
            remote,
            conn: None,
            proof: sip_core::transport::Proof::None,
        }
    }

    #[test]
    fn what_is_cut_off_comes_back_once_and_what_stays_does_not() {
        let mut queue = OutQueue::default();
        for (number, message) in ["one", "two", "three", "four"].iter().enumerate() {
            queue.push(flow(number as u16), WorkerId(1), message.as_bytes());
            queue.push_unmarked(b"\r\n");
        }
        assert_eq!(queue.advance(4), 1);
        let mut lost = Vec::new();
        // To the end of "two", and one byte into "three".
        queue.cut(1 + 3 + 2 + 1, |to, _, message| {
            lost.push((to.remote.port(), message.to_vec()))
        });
        assert_eq!(lost, [(2, b"three".to_vec()), (3, b"four".to_vec())]);
        assert_eq!(queue.waiting(), b"\ntwo\r\nt");
        let left: Vec<_> = queue.unsent().map(|(_, _, message)| message.to_vec()).collect();
        assert_eq!(left, [b"two".to_vec()]);
        assert_eq!(queue.advance(7), 1);
        queue.cut(0, |_, _, _| panic!("nothing is left"));
        assert_eq!(queue.len(), 0);
    }

    proptest! {
        /// For any sequence of messages and writes, the written bytes are the messages in order. The unsent
        /// messages are those not wholly written, each whole.
        #[test]
        fn nothing_is_lost_between_written_and_unsent(
            steps in prop::collection::vec((0usize..3000, 0usize..200_000, any::<bool>()), 1..100),
        ) {
            let mut queue = OutQueue::default();
            let (mut pushed, mut all, mut wire) = (Vec::new(), Vec::new(), Vec::new());
            let mut sent = 0;
            for (number, (len, write, ping)) in steps.into_iter().enumerate() {
                if ping && number % 5 == 0 {
                    queue.push_unmarked(b"\r\n");
                    all.extend_from_slice(b"\r\n");
                }
                let message = vec![number as u8; len * 40 + 1];
                queue.push(flow(number as u16), WorkerId(1), &message);
                all.extend_from_slice(&message);
                pushed.push(message);
                let count = write.min(queue.len());
                wire.extend_from_slice(&queue.waiting()[..count]);
                sent += queue.advance(count) as usize;
                let unsent: Vec<_> = queue.unsent().map(|(_, _, bytes)| bytes.to_vec()).collect();
                prop_assert_eq!(&unsent, &pushed[sent..]);
                prop_assert_eq!(wire.len() + queue.len(), all.len());
            }
            prop_assert_eq!(&wire[..], &all[..wire.len()]);
        }
    }
}

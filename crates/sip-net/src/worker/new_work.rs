//! The queues of new work by UDP, which the kernel keeps apart ([`crate::udp::steer`]). When they are read, how long
//! they are and which CANCELs wait for them: [`sip_core::overload`].

use sip_core::overload::{Cancel, Cancels, Queue, Schedule};
use sip_core::time::{Instant, Millis, Now};
use sip_core::transport::Flow;

use super::Worker;
use super::core::{Core, EventSink, QuerySink};
use crate::settings::Settings;
use crate::udp::UdpSocket;

/// The queues of new work of one listener.
#[derive(Debug)]
pub(super) struct NewWork {
    calls: NewWorkQueue,
    requests: NewWorkQueue,
    cancels: Cancels,
}

/// One queue of new work.
#[derive(Debug)]
pub(super) struct NewWorkQueue {
    socket: UdpSocket,
    kernel_drops: u32,
    schedule: Schedule,
    /// Bytes that the kernel is to let wait.
    room: usize,
}

impl NewWork {
    pub(super) fn new(queues: [UdpSocket; 2], settings: &Settings, now: Instant) -> Self {
        let [calls, requests] = queues.map(|socket| NewWorkQueue {
            kernel_drops: 0,
            schedule: Schedule::new(socket.receive_buffer(), now),
            room: 2 * socket.receive_buffer(),
            socket,
        });
        Self {
            calls,
            requests,
            cancels: Cancels::new(Millis(settings.cancel_wait_ms)),
        }
    }

    pub(super) fn queue(&mut self, queue: Queue) -> Option<&mut NewWorkQueue> {
        match queue {
            Queue::Established => None,
            Queue::Calls => Some(&mut self.calls),
            Queue::Requests => Some(&mut self.requests),
        }
    }

    pub(super) fn socket(&self, queue: Queue) -> Option<&UdpSocket> {
        match queue {
            Queue::Established => None,
            Queue::Calls => Some(&self.calls.socket),
            Queue::Requests => Some(&self.requests.socket),
        }
    }

    /// Datagrams that the kernel dropped since the last call: calls, requests.
    pub(super) fn new_drops(&mut self) -> [u64; 2] {
        [self.calls.new_drops(), self.requests.new_drops()]
    }

    /// Both queues may have something: an event of theirs may have been missed.
    pub(super) fn make_ready(&mut self) {
        self.calls.schedule.note_ready();
        self.requests.schedule.note_ready();
    }

    /// Whether CANCELs are held.
    fn holds_cancels(&self) -> bool {
        !self.cancels.is_empty()
    }

    /// Holds a CANCEL whose INVITE is not known. `false`: it is to be handled now.
    pub(super) fn try_hold_cancel(
        &mut self,
        now: Now,
        flow: Flow,
        is_handed_over: bool,
        bytes: &[u8],
    ) -> bool {
        let calls = &mut self.calls.schedule;
        self.cancels.try_hold(calls, now, flow, is_handed_over, bytes)
    }

    /// The next CANCEL that need not wait any longer. `is_empty`: there are no calls.
    fn next_cancel(&mut self, now: Now, is_empty: bool) -> Option<Cancel> {
        self.cancels.next(&self.calls.schedule, now, is_empty)
    }
}

impl NewWorkQueue {
    fn new_drops(&mut self) -> u64 {
        let drops = self.socket.receive_drops().unwrap_or(self.kernel_drops);
        let new = drops.wrapping_sub(self.kernel_drops);
        self.kernel_drops = drops;
        u64::from(new)
    }

    /// Notes that the kernel says that there is something.
    pub(super) fn note_ready(&mut self) {
        self.schedule.note_ready();
    }

    /// Notes a batch of so many bytes. `count` is `None` if the socket has an error. Returns whether the queue has become
    /// shorter.
    fn note_read(&mut self, now: Now, count: Option<usize>, bytes: u64, is_full: bool) -> bool {
        let Some(size) = self.schedule.note_read(now.instant, count, bytes, is_full) else {
            return false;
        };
        // If the kernel refuses, the queue is longer than it should be.
        let _ = self.socket.set_receive_buffer(size as usize);
        self.room = 2 * size as usize;
        is_full
    }

    /// Whether more waits than the queue has room for.
    fn has_surplus(&self) -> bool {
        self.socket
            .waiting_bytes()
            .is_ok_and(|waiting| waiting > self.room)
    }
}

impl<C: Core, Q: QuerySink, E: EventSink> Worker<C, Q, E> {
    /// Reads from the new work of each listener what its turn allows. `handled` messages of everything else were handled
    /// in this turn, and there may be more of them (`others_wait`).
    pub(super) fn receive_new_work(&mut self, now: Now, mut handled: usize, mut others_wait: bool) {
        for udp in &mut self.udp {
            others_wait |= std::mem::take(&mut udp.has_more);
        }
        for queue in Queue::NEW_WORK {
            let (mut of_queue, mut has_more) = (0, false);
            for number in 0..self.udp.len() {
                let (count, is_full) = self.receive_waiting(number, queue, (handled, others_wait), now);
                of_queue += count;
                has_more |= is_full;
            }
            handled += of_queue;
            others_wait |= has_more;
        }
    }

    /// Reads from one queue of new work, if it has its turn. Returns how many datagrams came, and whether more may wait.
    fn receive_waiting(
        &mut self,
        number: usize,
        queue: Queue,
        (handled, others_wait): (usize, bool),
        now: Now,
    ) -> (usize, bool) {
        let Some(new_work) = self.udp.get_mut(number).and_then(|udp| udp.new_work.as_mut()) else {
            return (0, false);
        };
        let most = new_work
            .queue(queue)
            .map_or(0, |of_queue| of_queue.schedule.turn(handled, others_wait));
        let mut count = None;
        let mut is_full = false;
        if most > 0 {
            count = self.receive_batch(number, queue, most);
            is_full = self.received.is_full();
            let before = self.counters.udp_received_bytes;
            self.handle_batch(number, queue, now);
            let bytes = self.counters.udp_received_bytes - before;
            if let Some(of_queue) = self.new_work_queue(number, queue)
                && of_queue.note_read(now, count, bytes, is_full)
            {
                self.discard_surplus(number, queue);
            }
            let received = count.unwrap_or(0) as u64;
            match queue {
                Queue::Established => {}
                Queue::Calls => self.counters.udp_calls_read += received,
                Queue::Requests => self.counters.udp_requests_read += received,
            }
        }
        if queue == Queue::Calls {
            self.handle_cancels(number, now, count == Some(0));
        }
        (count.unwrap_or(0), is_full)
    }

    fn new_work_queue(&mut self, number: usize, queue: Queue) -> Option<&mut NewWorkQueue> {
        self.udp.get_mut(number)?.new_work.as_mut()?.queue(queue)
    }

    /// Discards what has waited longest in a queue that has become shorter. Its senders send it again.
    fn discard_surplus(&mut self, number: usize, queue: Queue) {
        // No more than a queue can hold, whatever comes meanwhile.
        let most = self
            .new_work_queue(number, queue)
            .map_or(0, |of_queue| of_queue.schedule.most_waiting());
        let mut discarded = 0;
        while discarded < most
            && let Some(of_queue) = self.new_work_queue(number, queue)
            && of_queue.has_surplus()
            && let Some(count) = self
                .receive_batch(number, queue, usize::MAX)
                .filter(|count| *count > 0)
        {
            discarded += count as u64;
            if let Some(of_queue) = self.new_work_queue(number, queue) {
                of_queue.schedule.note_discarded(count);
            }
        }
        match queue {
            Queue::Established => {}
            Queue::Calls => self.counters.udp_calls_dropped += discarded,
            Queue::Requests => self.counters.udp_requests_dropped += discarded,
        }
    }

    /// Handles the CANCELs that need not wait any longer. `is_empty`: no calls wait.
    fn handle_cancels(&mut self, number: usize, now: Now, is_empty: bool) {
        let next = |worker: &mut Self| {
            let new_work = worker.udp.get_mut(number)?.new_work.as_mut()?;
            new_work.next_cancel(now, is_empty)
        };
        while let Some(cancel) = next(self) {
            if cancel.is_handed_over {
                self.handle_handed_over(now, cancel.flow, &cancel.bytes);
            } else {
                self.handle_datagram(now, cancel.flow, &cancel.bytes);
            }
        }
        let new_work = self.udp.get_mut(number).and_then(|udp| udp.new_work.as_mut());
        if let Some(new_work) = new_work.filter(|new_work| new_work.holds_cancels()) {
            // Only a batch of none tells that there are no calls, and no event tells that.
            new_work.calls.schedule.note_ready();
            self.again = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use socket2::SockRef;

    use super::*;
    use crate::udp::UdpOptions;

    /// The kernel has the size that the schedule says, and gives back the full one.
    #[test]
    fn the_kernel_follows_the_schedule() {
        let options = UdpOptions {
            receive_buffer: 128 << 10,
            send_buffer: 0,
            share: false,
        };
        let socket = UdpSocket::bind("127.0.0.1:0".parse().unwrap(), options).unwrap();
        let at = |ms: u64| Now {
            instant: Instant::from_micros(ms * 1_000),
            ..Now::default()
        };
        let mut queue = NewWorkQueue {
            schedule: Schedule::new(socket.receive_buffer(), at(0).instant),
            kernel_drops: 0,
            room: 2 * socket.receive_buffer(),
            socket,
        };
        let granted = |queue: &NewWorkQueue| SockRef::from(&queue.socket).recv_buffer_size().unwrap();
        let full = granted(&queue);
        assert_eq!(full, 2 * (128 << 10));
        let become_shorter = (0..300)
            .step_by(50)
            .filter(|ms| queue.note_read(at(*ms), Some(64), 64 * 300, true));
        assert_eq!(become_shorter.count(), 1);
        let short = granted(&queue);
        assert!(
            short < full && short == queue.room && short >= 128 * 1_280,
            "{short}"
        );
        assert!(!queue.note_read(at(310), Some(3), 900, false));
        assert_eq!((granted(&queue), queue.room), (full, full));
    }
}

//! When a queue of new work is read, and how much of it may wait.

use crate::time::{Instant, Millis};

/// How long new work waits in a queue that stays filled, and how often its size follows what is read.
pub const LONGEST_QUEUE: Millis = Millis(100);

const LONGEST_QUEUE_US: u64 = LONGEST_QUEUE.0 as u64 * 1_000;

/// Datagrams that the shortest queue holds: two batches.
const FEWEST: u64 = 128;

/// While others wait, one message of new work is read for so many others. A call has five messages more, some eight:
/// those that are let in so take a quarter of the others at most, and never all the time that there is.
const OTHERS_FOR_EACH: usize = 32;

/// Messages of new work that are read at a time while others wait.
const FEWEST_AT_A_TIME: usize = 8;

/// Bytes of a receive buffer that a datagram takes at least (`SKB_TRUESIZE`). So a buffer holds no more datagrams than
/// its size says by this.
const LEAST_TRUESIZE: u64 = 768;

/// Bytes of a receive buffer that a datagram of `len` bytes takes on loopback: the kernel adds room for headers and 320
/// bytes of its own, takes the next power of two, and counts 256 bytes of another structure. A network driver may take
/// more for it: then a queue holds fewer datagrams.
const fn truesize(len: u64) -> u64 {
    (len + 64 + 320).next_power_of_two() + 256
}

/// The order in which one queue of new work is read, and its size.
#[derive(Debug)]
pub struct Schedule {
    /// Whether it has something to read, or may have.
    is_ready: bool,
    /// Messages of others that were handled since it had its turn.
    others: usize,
    /// Datagrams read from it.
    read: u64,
    size: Size,
}

/// The size of a queue's buffer, bytes asked of the kernel. It grants twice as many (socket(7)).
#[derive(Debug)]
struct Size {
    full: u64,
    present: u64,
    /// Until so many datagrams have been read in all, as many may wait as the full size holds.
    full_until: u64,
    /// The interval in which the queue is observed: its begin, the datagrams read and their bytes, whether it was empty
    /// at a time.
    began: Instant,
    read: u64,
    bytes: u64,
    was_empty: bool,
}

impl Schedule {
    /// A queue with a buffer of so many bytes, as asked of the kernel.
    pub const fn new(bytes: usize, now: Instant) -> Self {
        Self {
            is_ready: true,
            others: 0,
            read: 0,
            size: Size {
                full: bytes as u64,
                present: bytes as u64,
                full_until: 0,
                began: now,
                read: 0,
                bytes: 0,
                was_empty: true,
            },
        }
    }

    /// Datagrams read from it so far.
    pub const fn read(&self) -> u64 {
        self.read
    }

    /// Datagrams that may wait in it at most.
    pub const fn most_waiting(&self) -> u64 {
        let is_full_size = self.size.present == self.size.full || self.read < self.size.full_until;
        let bytes = if is_full_size {
            self.size.full
        } else {
            self.size.present
        };
        2 * bytes / LEAST_TRUESIZE
    }

    /// Notes that it has something to read, or may have.
    pub const fn note_ready(&mut self) {
        self.is_ready = true;
    }

    /// The most messages to read from it in this turn; 0: it has no turn. `handled` messages of what comes before it
    /// were handled in this turn, and there may be more of them (`others_wait`).
    pub const fn turn(&mut self, handled: usize, others_wait: bool) -> usize {
        if !self.is_ready {
            self.others = 0;
            return 0;
        }
        self.others += handled;
        let share = self.others / OTHERS_FOR_EACH;
        if others_wait && share < FEWEST_AT_A_TIME {
            return 0;
        }
        self.others = 0;
        if others_wait { share } else { usize::MAX }
    }

    /// Notes that a batch was read: how many datagrams (`None` if the socket had an error) of how many bytes in all, and
    /// whether more may wait. Returns the bytes to ask of the kernel from now on, if they are others. What waits beyond
    /// them is to be discarded, the oldest first: it has waited too long.
    #[must_use]
    pub fn note_read(
        &mut self,
        now: Instant,
        count: Option<usize>,
        bytes: u64,
        is_full: bool,
    ) -> Option<u64> {
        let datagrams = count.unwrap_or(0) as u64;
        self.read += datagrams;
        self.is_ready = is_full || count.is_none();
        let size = self.size.note_read(now, datagrams, bytes, !self.is_ready)?;
        if size < self.size.full {
            self.size.full_until = self.read + 2 * self.size.full / LEAST_TRUESIZE;
        }
        Some(size)
    }

    /// Notes that so many datagrams were read and discarded.
    pub const fn note_discarded(&mut self, datagrams: usize) {
        self.read += datagrams as u64;
    }
}

impl Size {
    /// Notes that this many datagrams were read. Returns the size if it is another one from now on.
    fn note_read(&mut self, now: Instant, datagrams: u64, bytes: u64, is_empty: bool) -> Option<u64> {
        self.read += datagrams;
        self.bytes += bytes;
        self.was_empty |= is_empty;
        let took = now.micros_since(self.began);
        // What comes next may be a burst, and nothing is read before.
        let grows = is_empty && self.present != self.full;
        if took < LONGEST_QUEUE_US && !grows {
            return None;
        }
        let wanted = if self.was_empty {
            self.full
        } else {
            let each = truesize(self.bytes / self.read.max(1)) / 2;
            let fitting = self.read * LONGEST_QUEUE_US / took;
            (fitting.max(FEWEST) * each).min(self.full)
        };
        (self.began, self.read, self.bytes, self.was_empty) = (now, 0, 0, is_empty);
        // A size that is nearly right stays: changing it is a system call.
        let is_near = wanted != self.full && wanted.abs_diff(self.present) < self.present / 8;
        if is_near || wanted == self.present {
            return None;
        }
        self.present = wanted;
        Some(wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    const INTERVAL: u64 = LONGEST_QUEUE_US;
    const FULL: u64 = 1 << 20;
    /// Half of what a datagram of 600 bytes takes.
    const EACH: u64 = 640;

    fn queue() -> Schedule {
        Schedule::new(FULL as usize, Instant::from_micros(0))
    }

    /// Reads `count` datagrams of 600 bytes at these tenths of an interval, more of which wait. The new sizes.
    fn reads(queue: &mut Schedule, tenths: core::ops::Range<u64>, count: u64) -> Vec<u64> {
        let each = tenths.map(|tenth| {
            let now = Instant::from_micros(tenth * INTERVAL / 10);
            queue.note_read(now, Some(count as usize), 600 * count, true)
        });
        each.flatten().collect()
    }

    /// The sizes that Linux counts on loopback.
    #[test]
    fn a_datagram_takes_more_than_its_bytes() {
        assert_eq!(
            [29, 300, 640, 641, 1_300, 1_664].map(truesize),
            [768, 1_280, 1_280, 2_304, 2_304, 2_304]
        );
        assert_eq!(truesize(600), 2 * EACH);
        assert!((0..2_000).all(|len| truesize(len) >= LEAST_TRUESIZE));
    }

    /// While others wait, one message is read for 32 of theirs; without others, all that there is.
    #[test]
    fn a_queue_has_its_share() {
        let now = Instant::from_micros(0);
        let mut queue = queue();
        let turns: Vec<usize> = (0..8).map(|_| queue.turn(64, true)).collect();
        assert_eq!(turns, [0, 0, 0, 8, 0, 0, 0, 8]);
        assert_eq!(queue.turn(64, false), usize::MAX);
        let turns: Vec<usize> = (0..4).map(|_| queue.turn(64, true)).collect();
        assert_eq!(turns, [0, 0, 0, 8], "what came before has had its turn");
        assert_eq!(queue.turn(1_000, true), 31);
        let _ = queue.note_read(now, Some(0), 0, false);
        assert_eq!(
            [queue.turn(1_000, false), queue.turn(1_000, true)],
            [0, 0],
            "it is empty"
        );
        let _ = queue.note_read(now, None, 0, false);
        assert_eq!(
            queue.turn(255, true),
            0,
            "others before it was ready do not count"
        );
        assert_eq!(queue.turn(1, true), 8, "an error says nothing");
        let _ = queue.note_read(now, Some(8), 4_800, true);
        assert_eq!((queue.read(), queue.turn(0, false)), (8, usize::MAX));
    }

    /// A queue that stays filled holds what is read in 100 ms, from the first whole interval without an empty batch on.
    #[test]
    fn a_queue_that_stays_filled_follows_the_rate() {
        let mut queue = queue();
        // The first interval began empty. Then 200 in 100 ms.
        assert_eq!(reads(&mut queue, 1..50, 20), [200 * EACH]);
        // A tenth of it: no fewer than two batches.
        assert_eq!(reads(&mut queue, 50..150, 2), [FEWEST * EACH]);
    }

    /// Once it has been empty it is as large as ever, from that moment on.
    #[test]
    fn a_queue_that_was_empty_has_room_for_a_burst() {
        let mut queue = queue();
        assert_eq!(reads(&mut queue, 1..40, 20), [200 * EACH]);
        let now = Instant::from_micros(4 * INTERVAL + INTERVAL / 3);
        assert_eq!(queue.note_read(now, Some(2), 1_200, false), Some(FULL));
        // What came after a silence says nothing of how fast it is read.
        let later = Instant::from_micros(100 * INTERVAL);
        assert_eq!(queue.note_read(later, Some(64), 38_400, true), None);
        assert_eq!(queue.size.present, FULL);
    }

    /// No size is larger than what was configured, and none is changed for little.
    #[test]
    fn a_fast_reader_has_the_full_size() {
        let mut queue = Schedule::new(100 * EACH as usize, Instant::from_micros(0));
        assert_eq!(reads(&mut queue, 1..40, 900), [0; 0]);
        let mut queue = self::queue();
        assert_eq!(reads(&mut queue, 1..21, 40).len(), 1);
        assert_eq!(reads(&mut queue, 21..60, 42), [0; 0]);
    }

    /// What had come before a queue was made shorter still waits.
    #[test]
    fn what_may_wait_follows_the_size() {
        let mut queue = queue();
        let all = 2 * FULL / LEAST_TRUESIZE;
        assert_eq!(queue.most_waiting(), all);
        assert_eq!(reads(&mut queue, 1..21, 20).len(), 1);
        assert_eq!(queue.most_waiting(), all, "all of it may be full");
        let many = (all / 10) as usize;
        for _ in 0..11 {
            let _ = queue.note_read(Instant::from_micros(2 * INTERVAL), Some(many), 600, true);
        }
        assert_eq!(queue.most_waiting(), 2 * 200 * EACH / LEAST_TRUESIZE);
    }
}

//! What is on its way in one direction of a connection: a value that is fed with times and bytes.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Bytes that a chunk counts against the bound beside those that it carries: what it takes to
/// hold it. So many small chunks cannot take more memory than the bound says.
pub(crate) const CHUNK_COST: usize = 64;

/// Places for chunks that an empty queue keeps.
const IDLE_CHUNKS: usize = 64;

/// What was taken from the sender at once.
#[derive(Debug)]
struct Chunk {
    due: Instant,
    bytes: Box<[u8]>,
    /// Of these bytes, so many have been passed on.
    passed: usize,
}

/// What is to be done now.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Due<'a> {
    /// Pass these bytes on, or some of them.
    Bytes(&'a [u8]),
    /// Tell the receiver that nothing more comes.
    End,
    /// Reset the receiver's connection.
    Reset,
}

/// One direction of one connection.
///
/// Bytes come out in the order in which they went in, none before its time. Where the delay gets
/// shorter, what comes later waits for what came before: a stream has no overtaking.
#[derive(Debug)]
pub(crate) struct Pipe {
    chunks: VecDeque<Chunk>,
    /// On their way, in all chunks.
    bytes: usize,
    /// When the last of what went in is due.
    last_due: Option<Instant>,
    end: Option<Instant>,
    reset: Option<Instant>,
    end_passed: bool,
    bound: usize,
    full: bool,
}

impl Pipe {
    /// `bound`: bytes that it holds at most, chunks counted with [`CHUNK_COST`].
    pub(crate) fn new(bound: usize) -> Self {
        Self {
            chunks: VecDeque::new(),
            bytes: 0,
            last_due: None,
            end: None,
            reset: None,
            end_passed: false,
            bound,
            full: false,
        }
    }

    /// Bytes that may come now: none from when it is full until it is half empty, so that the
    /// sender is not asked for a few bytes at a time.
    pub(crate) fn room(&self) -> usize {
        if self.full {
            return 0;
        }
        self.bound.saturating_sub(self.held() + CHUNK_COST)
    }

    /// Whether it is waiting to be half empty.
    pub(crate) fn is_full(&self) -> bool {
        self.full
    }

    /// What counts against the bound.
    fn held(&self) -> usize {
        self.bytes + self.chunks.len() * CHUNK_COST
    }

    /// Takes what the sender gave at `now`; returns how many bytes it took, which is all where
    /// there was [`Self::room`] for them.
    pub(crate) fn push(&mut self, now: Instant, delay: Duration, bytes: &[u8]) -> usize {
        let taken = bytes.get(..self.room()).unwrap_or(bytes);
        if !taken.is_empty() {
            let due = self.enter(now, delay);
            self.bytes += taken.len();
            self.chunks.push_back(Chunk {
                due,
                bytes: taken.into(),
                passed: 0,
            });
        }
        self.full |= self.held() + CHUNK_COST >= self.bound;
        taken.len()
    }

    /// The sender ended its stream at `now`.
    pub(crate) fn finish(&mut self, now: Instant, delay: Duration) {
        if self.end.is_none() && !self.end_passed {
            self.end = Some(self.enter(now, delay));
        }
    }

    /// The sender's connection was reset, or found to be gone, at `now`.
    pub(crate) fn reset(&mut self, now: Instant, delay: Duration) {
        if self.reset.is_none() {
            self.reset = Some(self.enter(now, delay));
        }
    }

    /// When what comes at `now` is due.
    fn enter(&mut self, now: Instant, delay: Duration) -> Instant {
        let due = now.checked_add(delay).unwrap_or(now);
        let due = self.last_due.map_or(due, |last| due.max(last));
        self.last_due = Some(due);
        due
    }

    /// What is first, and since when it is due; an end or a reset only `with_ends`.
    fn first(&self, with_ends: bool) -> Option<(Instant, Due<'_>)> {
        if let Some(chunk) = self.chunks.front() {
            let rest = chunk.bytes.get(chunk.passed..).unwrap_or_default();
            return Some((chunk.due, Due::Bytes(rest)));
        }
        let end = self.end.map(|due| (due, Due::End));
        end.or_else(|| self.reset.map(|due| (due, Due::Reset)))
            .filter(|_| with_ends)
    }

    /// What is to be done at `now`. The caller reports what it did: [`Self::passed`], [`Self::pass_end`].
    pub(crate) fn due(&self, now: Instant, with_ends: bool) -> Option<Due<'_>> {
        self.first(with_ends)
            .filter(|(due, _)| *due <= now)
            .map(|(_, what)| what)
    }

    /// When [`Self::due`] will have something, if nothing more comes.
    pub(crate) fn next_due(&self, with_ends: bool) -> Option<Instant> {
        self.first(with_ends).map(|(due, _)| due)
    }

    /// The first `count` bytes of what is due have been passed on.
    pub(crate) fn passed(&mut self, count: usize) {
        let Some(chunk) = self.chunks.front_mut() else {
            return;
        };
        let count = count.min(chunk.bytes.len() - chunk.passed);
        chunk.passed += count;
        self.bytes -= count;
        if chunk.passed == chunk.bytes.len() {
            self.chunks.pop_front();
            if self.chunks.is_empty() && self.chunks.capacity() > IDLE_CHUNKS {
                self.chunks = VecDeque::new();
            }
        }
        self.full &= self.held() > self.bound / 2;
    }

    /// Notes that the end has been passed to the receiver.
    pub(crate) fn pass_end(&mut self) {
        self.end = None;
        self.end_passed = true;
    }

    /// Whether the receiver knows that nothing more comes.
    pub(crate) fn end_passed(&self) -> bool {
        self.end_passed
    }

    /// Forgets the bytes that are on their way, not the end; returns how many they were.
    pub(crate) fn lose(&mut self) -> usize {
        self.chunks = VecDeque::new();
        self.full = false;
        std::mem::take(&mut self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Everything that is due at `now`, with `E` for an end and `R` for a reset; at most `step`
    /// bytes are passed on at a time.
    fn drain(pipe: &mut Pipe, now: Instant, step: usize) -> Vec<u8> {
        let mut out = Vec::new();
        loop {
            match pipe.due(now, true) {
                Some(Due::Bytes(bytes)) => {
                    let count = bytes.len().min(step);
                    out.extend_from_slice(&bytes[..count]);
                    pipe.passed(count);
                }
                Some(Due::End) => {
                    out.push(b'E');
                    pipe.pass_end();
                }
                Some(Due::Reset) => {
                    out.push(b'R');
                    return out;
                }
                None => return out,
            }
        }
    }

    #[test]
    fn nothing_comes_before_its_time() {
        let (mut pipe, start) = (Pipe::new(10_000), Instant::now());
        assert_eq!(pipe.push(start, ms(15), b"one"), 3);
        assert_eq!(pipe.push(start + ms(4), ms(15), b"two"), 3);
        pipe.finish(start + ms(5), ms(15));
        assert_eq!(pipe.next_due(true), Some(start + ms(15)));
        assert_eq!(drain(&mut pipe, start + ms(14), 100), b"");
        assert_eq!(drain(&mut pipe, start + ms(15), 100), b"one");
        assert_eq!(drain(&mut pipe, start + ms(18), 100), b"");
        assert_eq!((pipe.bytes, pipe.end_passed()), (3, false));
        assert_eq!(drain(&mut pipe, start + ms(20), 1), b"twoE");
        assert_eq!((pipe.bytes, pipe.end_passed()), (0, true));
        assert_eq!(pipe.next_due(true), None);
    }

    #[test]
    fn a_shorter_delay_does_not_overtake() {
        let (mut pipe, start) = (Pipe::new(10_000), Instant::now());
        pipe.push(start, ms(100), b"slow");
        pipe.push(start + ms(1), ms(0), b"fast");
        assert_eq!(drain(&mut pipe, start + ms(99), 100), b"");
        assert_eq!(drain(&mut pipe, start + ms(100), 100), b"slowfast");
    }

    #[test]
    fn a_reset_follows_what_came_before_it() {
        let (mut pipe, start) = (Pipe::new(10_000), Instant::now());
        pipe.push(start, ms(10), b"x");
        pipe.finish(start, ms(10));
        pipe.reset(start + ms(5), ms(10));
        assert_eq!(drain(&mut pipe, start + ms(10), 100), b"xE");
        assert_eq!(pipe.next_due(true), Some(start + ms(15)));
        assert_eq!(drain(&mut pipe, start + ms(15), 100), b"R");
    }

    #[test]
    fn ends_can_be_held_back_and_bytes_lost() {
        let (mut pipe, start) = (Pipe::new(10_000), Instant::now());
        pipe.push(start, ms(0), b"abc");
        pipe.finish(start, ms(0));
        assert_eq!(pipe.due(start, false), Some(Due::Bytes(b"abc")));
        assert_eq!(pipe.lose(), 3);
        assert_eq!((pipe.due(start, false), pipe.next_due(false)), (None, None));
        assert_eq!(pipe.due(start, true), Some(Due::End));
    }

    #[test]
    fn it_takes_no_more_than_its_bound_and_more_when_half_empty() {
        let (mut pipe, now) = (Pipe::new(1_000), Instant::now());
        assert_eq!(pipe.push(now, ms(0), &[7; 500]), 500);
        assert!(!pipe.is_full());
        assert_eq!(pipe.room(), 1_000 - 500 - 2 * CHUNK_COST);
        assert_eq!(pipe.push(now, ms(0), &[8; 2_000]), 1_000 - 500 - 2 * CHUNK_COST);
        assert_eq!((pipe.is_full(), pipe.room()), (true, 0));
        assert_eq!(pipe.push(now, ms(0), b"x"), 0);
        pipe.passed(100);
        assert_eq!((pipe.is_full(), pipe.room()), (true, 0));
        pipe.passed(400);
        assert!(!pipe.is_full());
        assert!(pipe.room() > 0);
    }

    #[test]
    fn small_chunks_count_for_what_they_take() {
        let (mut pipe, now) = (Pipe::new(100 * (1 + CHUNK_COST)), Instant::now());
        let taken: usize = (0..1_000).map(|_| pipe.push(now, ms(0), b"x")).sum();
        assert_eq!((taken, pipe.is_full()), (100, true));
    }

    proptest! {
        /// However the delay changes and however little is passed on at a time: the same bytes, in
        /// order, none before its own delay.
        #[test]
        fn what_goes_in_comes_out(
            pushes in prop::collection::vec((0u64..20, 0u64..50, 1usize..200), 1..60),
            step in 1usize..300,
            bound in 300usize..4_000,
        ) {
            let start = Instant::now();
            let (mut pipe, mut now) = (Pipe::new(bound), start);
            let (mut sent, mut got) = (Vec::new(), Vec::new());
            // For each byte, when it may come out.
            let mut times = Vec::new();
            for (pause, delay, length) in pushes {
                now += ms(pause);
                let bytes: Vec<u8> = (0..length).map(|n| (sent.len() + n) as u8).collect();
                let taken = pipe.push(now, ms(delay), &bytes);
                sent.extend_from_slice(&bytes[..taken]);
                times.resize(sent.len(), now + ms(delay));
                prop_assert!(pipe.bytes < bound);
                got.extend(drain(&mut pipe, now, step));
                prop_assert_eq!(pipe.bytes, sent.len() - got.len());
                prop_assert!(times[..got.len()].iter().all(|time| *time <= now));
            }
            got.extend(drain(&mut pipe, now + ms(50), step));
            prop_assert_eq!(got, sent);
        }
    }
}

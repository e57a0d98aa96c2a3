//! Nonce-count replay windows (RFC 7616 §3.3 `nc`, §5.5 replay attacks).
//!
//! A nonce is checked by its MAC alone ([`crate::auth::nonce`]). Only the single use of a *count* needs
//! memory, and only from the first request with a right digest response: strangers cannot fill it. Each nonce
//! in use has a window: the highest count seen, a bitmap of the counts just below it, and hashes of the
//! newest requests. These hashes distinguish a retransmission that no transaction absorbs from a replay.
//!
//! **At the bound** the window that was opened first leaves. Its nonce must not be accepted afresh. So the
//! map remembers the latest time of issue among the nonces that left (the *floor*). An unknown nonce issued
//! at or before the floor is [`NonceUse::Unknown`], and its user is challenged again with `stale=true`. The
//! floor begins just before the time at which the map was made. So a restart, which forgets all windows,
//! opens no door either.
//!
//! Windows leave once their nonce is past its end, oldest first: each use removes at most [`EXPIRE_PER_USE`]
//! of them, so that a use costs O(1). Expired windows raise the floor, too: a longer lifetime, or a clock
//! that is set back, could make their nonces valid again. Unused nonces of the same age cost one challenge
//! more.

use alloc::collections::VecDeque;

use hashbrown::HashTable;

use super::nonce::NonceId;

/// The result of the check of a nonce count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NonceUse {
    /// The count was not seen before: accept.
    Fresh,
    /// The count was seen in the very same request from the same source: a retransmission, accept.
    Retransmission,
    /// The count was seen in another request, or is older than the window: challenge again.
    Replay,
    /// The count may have been seen: its window left at the limit, or its nonce was issued before the process
    /// began. Challenge again, `stale=true`.
    Unknown,
}

impl NonceUse {
    /// Whether the request may go on; else the request is challenged again, `stale=true`.
    pub const fn is_accepted(self) -> bool {
        matches!(self, Self::Fresh | Self::Retransmission)
    }
}

/// The count of a request without `qop` (RFC 2069): such a nonce is good for one request only.
pub const NO_COUNT: u32 = 0;

/// Counts below the highest that may still arrive, once each.
pub const WINDOW: u32 = 64;

/// Newest requests of a nonce that are recognised when they are retransmitted.
const RECENT: usize = 4;

/// The most windows of expired nonces that one use removes.
const EXPIRE_PER_USE: usize = 4;

/// One nonce in use: 88 bytes.
#[derive(Clone, Debug)]
struct Window {
    id: u64,
    issued_unix_ms: u64,
    expires_unix_s: u64,
    /// Bit i is set if the count `highest - i` was used.
    seen: u64,
    highest: u32,
    /// The slot of `recent` that is written next.
    next: u8,
    /// Counts and hashes of the newest requests.
    recent_counts: [u32; RECENT],
    recent_hashes: [u64; RECENT],
}

impl Window {
    fn new(nonce: NonceId, count: u32, request: u64) -> Self {
        Self {
            id: nonce.id,
            issued_unix_ms: nonce.issued_unix_ms,
            expires_unix_s: nonce.expires_unix_s,
            seen: 1,
            highest: count,
            next: 1,
            recent_counts: [count; RECENT],
            recent_hashes: [request; RECENT],
        }
    }

    fn use_count(&mut self, count: u32, request: u64) -> NonceUse {
        // A nonce used without a count serves one request. A nonce used with counts serves none without a
        // count.
        let one_shot = self.highest == NO_COUNT || count == NO_COUNT;
        if !one_shot && count > self.highest {
            self.seen = self.seen.checked_shl(count - self.highest).unwrap_or(0) | 1;
            self.highest = count;
            return self.note(count, request);
        }
        let below = self.highest.saturating_sub(count);
        if !one_shot && below < WINDOW && self.seen & (1 << below) == 0 {
            self.seen |= 1 << below;
            return self.note(count, request);
        }
        let same = self
            .recent_counts
            .iter()
            .zip(&self.recent_hashes)
            .any(|(&c, &h)| c == count && h == request);
        if same {
            NonceUse::Retransmission
        } else {
            NonceUse::Replay
        }
    }

    fn note(&mut self, count: u32, request: u64) -> NonceUse {
        let slot = usize::from(self.next) % RECENT;
        self.recent_counts[slot] = count;
        self.recent_hashes[slot] = request;
        self.next = ((slot + 1) % RECENT) as u8;
        NonceUse::Fresh
    }
}

/// The windows of one lock shard.
#[derive(Debug)]
pub struct Windows {
    /// The windows in the order of first use; the front has sequence number `front`.
    queue: VecDeque<Window>,
    /// Sequence numbers by nonce id.
    index: HashTable<u32>,
    front: u32,
    capacity: usize,
    /// Unknown nonces issued at or before this are not accepted.
    floor_unix_ms: u64,
    /// Windows that left at the limit, before their nonce's end.
    evicted: u64,
}

/// The table hash of a nonce id. Nonce ids are the output of a keyed function ([`super::nonce::NonceSource`])
/// and proven by a MAC before they come here. No peer chooses them, so that they need only be stirred.
const fn hash(id: u64) -> u64 {
    id.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(26)
}

impl Windows {
    /// Windows for `capacity` nonces (at least 1, at most 2³¹). Nonces issued before `started_unix_ms` are
    /// never accepted: their use is not known.
    pub fn new(capacity: usize, started_unix_ms: u64) -> Self {
        Self {
            queue: VecDeque::new(),
            index: HashTable::new(),
            front: 0,
            capacity: capacity.clamp(1, 1 << 31),
            floor_unix_ms: started_unix_ms.saturating_sub(1),
            evicted: 0,
        }
    }

    /// Notes the use of `nonce` with `count` ([`NO_COUNT`]: none was given) at `now_unix_ms`. `request` is a
    /// keyed hash of the message and its source. The caller calls this only once the request's digest
    /// response was found right.
    pub fn use_nonce(&mut self, now_unix_ms: u64, nonce: NonceId, count: u32, request: u64) -> NonceUse {
        self.expire(now_unix_ms);
        if let Some(position) = self.position(nonce.id) {
            return match self.queue.get_mut(position) {
                Some(window) => window.use_count(count, request),
                None => NonceUse::Unknown,
            };
        }
        if nonce.issued_unix_ms <= self.floor_unix_ms {
            return NonceUse::Unknown;
        }
        if self.queue.len() >= self.capacity {
            self.pop();
            self.evicted += 1;
            // The new nonce may be as old as the nonce that made room for it.
            if nonce.issued_unix_ms <= self.floor_unix_ms {
                return NonceUse::Unknown;
            }
        }
        self.push(Window::new(nonce, count, request));
        NonceUse::Fresh
    }

    /// The number of windows held.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Whether no window is held.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Windows that left at the limit so far.
    pub const fn evicted(&self) -> u64 {
        self.evicted
    }

    fn position(&self, id: u64) -> Option<usize> {
        let (queue, front) = (&self.queue, self.front);
        self.index
            .find(hash(id), |&seq| {
                queue
                    .get(seq.wrapping_sub(front) as usize)
                    .is_some_and(|w| w.id == id)
            })
            .map(|&seq| seq.wrapping_sub(front) as usize)
    }

    fn push(&mut self, window: Window) {
        let seq = self.front.wrapping_add(self.queue.len() as u32);
        let id = window.id;
        self.queue.push_back(window);
        let (queue, front) = (&self.queue, self.front);
        self.index.insert_unique(hash(id), seq, |&seq| {
            queue
                .get(seq.wrapping_sub(front) as usize)
                .map_or(0, |w| hash(w.id))
        });
    }

    /// Removes the oldest window. Nonces as old as its nonce are not accepted from now on.
    fn pop(&mut self) {
        let Some(window) = self.queue.pop_front() else {
            return;
        };
        self.floor_unix_ms = self.floor_unix_ms.max(window.issued_unix_ms);
        let front = self.front;
        if let Ok(entry) = self.index.find_entry(hash(window.id), |&seq| seq == front) {
            entry.remove();
        }
        self.front = front.wrapping_add(1);
    }

    /// Removes windows whose nonces are past their end. Such a nonce is stale by its own time stamp, and
    /// needs no window. The end is that of [`super::nonce::NonceSource::check`], to the second.
    fn expire(&mut self, now_unix_ms: u64) {
        for _ in 0..EXPIRE_PER_USE {
            match self.queue.front() {
                Some(window) if now_unix_ms / 1000 > window.expires_unix_s => self.pop(),
                Some(_) | None => break,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T0: u64 = 1_800_000_000_000;

    fn nonce(id: u64, issued_unix_ms: u64) -> NonceId {
        NonceId {
            id,
            issued_unix_ms,
            expires_unix_s: issued_unix_ms / 1000 + 300,
        }
    }

    #[test]
    fn counts_are_accepted_once_in_any_order() {
        let mut w = Windows::new(8, T0);
        let n = nonce(7, T0 + 5);
        for count in [1, 3, 2, 67, 4, 66] {
            assert_eq!(
                w.use_nonce(T0 + 10, n, count, u64::from(count)),
                NonceUse::Fresh,
                "{count}"
            );
        }
        for count in [1, 2, 3, 4, 66, 67] {
            assert_eq!(w.use_nonce(T0 + 10, n, count, 999), NonceUse::Replay, "{count}");
        }
        // 67 - 64 = 3: below the window, never seen or not.
        assert_eq!(w.use_nonce(T0 + 10, n, 5, 1), NonceUse::Fresh);
        assert_eq!(w.use_nonce(T0 + 10, n, 1000, 1), NonceUse::Fresh);
        assert_eq!(w.use_nonce(T0 + 10, n, 936, 1), NonceUse::Replay);
        assert_eq!(w.use_nonce(T0 + 10, n, 937, 1), NonceUse::Fresh);
        assert_eq!(w.use_nonce(T0 + 10, n, u32::MAX, 1), NonceUse::Fresh);
        assert_eq!(w.len(), 1);
    }

    #[test]
    fn the_newest_requests_may_be_repeated() {
        let mut w = Windows::new(8, T0);
        let n = nonce(7, T0);
        for count in 1..=6 {
            assert_eq!(w.use_nonce(T0, n, count, 100 + u64::from(count)), NonceUse::Fresh);
        }
        for count in 3..=6 {
            let request = 100 + u64::from(count);
            assert_eq!(w.use_nonce(T0, n, count, request), NonceUse::Retransmission);
            assert_eq!(w.use_nonce(T0, n, count, request + 1), NonceUse::Replay);
        }
        assert_eq!(w.use_nonce(T0, n, 2, 102), NonceUse::Replay);
    }

    #[test]
    fn a_nonce_without_counts_serves_one_request() {
        let mut w = Windows::new(8, T0);
        assert_eq!(w.use_nonce(T0, nonce(1, T0), NO_COUNT, 5), NonceUse::Fresh);
        assert_eq!(
            w.use_nonce(T0, nonce(1, T0), NO_COUNT, 5),
            NonceUse::Retransmission
        );
        assert_eq!(w.use_nonce(T0, nonce(1, T0), NO_COUNT, 6), NonceUse::Replay);
        assert_eq!(w.use_nonce(T0, nonce(1, T0), 1, 5), NonceUse::Replay);
        assert_eq!(w.use_nonce(T0, nonce(2, T0), 1, 5), NonceUse::Fresh);
        assert_eq!(w.use_nonce(T0, nonce(2, T0), NO_COUNT, 5), NonceUse::Replay);
    }

    #[test]
    fn eviction_opens_no_door_to_replay() {
        let mut w = Windows::new(2, T0);
        assert_eq!(w.use_nonce(T0, nonce(1, T0 + 1), 1, 1), NonceUse::Fresh);
        assert_eq!(w.use_nonce(T0, nonce(2, T0 + 2), 1, 1), NonceUse::Fresh);
        assert_eq!(w.use_nonce(T0, nonce(3, T0 + 3), 1, 1), NonceUse::Fresh);
        assert_eq!((w.len(), w.evicted()), (2, 1));
        assert_eq!(w.use_nonce(T0, nonce(1, T0 + 1), 1, 1), NonceUse::Unknown);
        assert_eq!(w.use_nonce(T0, nonce(1, T0 + 1), 2, 2), NonceUse::Unknown);
        // The nonce was never used, but is as old as the floor: its window might have left.
        assert_eq!(w.use_nonce(T0, nonce(9, T0 + 1), 1, 1), NonceUse::Unknown);
        assert_eq!(w.use_nonce(T0, nonce(2, T0 + 2), 1, 1), NonceUse::Retransmission);
    }

    #[test]
    fn nonces_of_an_earlier_process_are_unknown() {
        let mut w = Windows::new(2, T0);
        assert_eq!(w.use_nonce(T0, nonce(1, T0 - 1), 1, 1), NonceUse::Unknown);
        assert_eq!(w.use_nonce(T0, nonce(2, T0), 1, 1), NonceUse::Fresh);
    }

    #[test]
    fn windows_leave_with_their_nonces() {
        let mut w = Windows::new(1000, T0);
        for id in 0..100 {
            assert_eq!(w.use_nonce(T0, nonce(id, T0), 1, 1), NonceUse::Fresh);
        }
        let later = T0 + 301_000;
        for id in 100..200 {
            assert_eq!(w.use_nonce(later, nonce(id, later), 1, 1), NonceUse::Fresh);
        }
        assert_eq!((w.len(), w.evicted()), (100, 0));
        for id in 100..200 {
            assert_eq!(w.use_nonce(later, nonce(id, later), 1, 2), NonceUse::Replay);
        }
    }

    /// A nonce is good until the end of its last second, and its counts are remembered as long.
    #[test]
    fn no_count_is_good_again_in_the_last_second() {
        let mut w = Windows::new(8, T0);
        let n = nonce(7, T0 + 5);
        assert_eq!(w.use_nonce(T0 + 10, n, 1, 1), NonceUse::Fresh);
        for now in [T0 + 300_000, T0 + 300_001, T0 + 300_999] {
            assert_eq!(w.use_nonce(now, n, 1, 2), NonceUse::Replay, "{now}");
        }
        assert_eq!(w.use_nonce(T0 + 301_000, n, 1, 2), NonceUse::Unknown);
    }

    /// A clock that was ahead for a while, or a lifetime that became longer.
    #[test]
    fn what_was_past_its_end_once_is_not_fresh_later() {
        let mut w = Windows::new(8, T0);
        assert_eq!(w.use_nonce(T0 + 10, nonce(7, T0 + 5), 1, 1), NonceUse::Fresh);
        let ahead = T0 + 3_600_000;
        assert_eq!(w.use_nonce(ahead, nonce(8, ahead), 1, 1), NonceUse::Fresh);
        assert_eq!(w.use_nonce(T0 + 20, nonce(7, T0 + 5), 1, 1), NonceUse::Unknown);
        assert_eq!(w.use_nonce(ahead, nonce(8, ahead), 1, 2), NonceUse::Replay);
    }

    #[test]
    fn sequence_numbers_wrap() {
        let mut w = Windows::new(3, T0);
        w.front = u32::MAX - 1;
        for id in 0..10 {
            assert_eq!(w.use_nonce(T0, nonce(id, T0 + id), 1, 1), NonceUse::Fresh);
            assert_eq!(w.use_nonce(T0, nonce(id, T0 + id), 1, 2), NonceUse::Replay);
        }
        assert_eq!(w.len(), 3);
    }
}

//! The system's allocator, with a count of each thread: for tests and tools that say what code
//! allocates, or holds.
//!
//! A program counts when it has `#[global_allocator] static ALLOCATOR: Counting = Counting;`. Each
//! thread counts for itself, as a test harness allocates beside: what one thread allocates and
//! another frees is out of both counts' reach.

#![expect(unsafe_code, reason = "a global allocator")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ops::Sub;

/// The allocator.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static HELD: Cell<Held> = const { Cell::new(Held { small: 0, large: 0 }) };
}

/// A block of as many bytes and more is large.
pub const LARGE: usize = 32 * 1024;

/// Bytes that this thread allocated and did not free, as glibc counts them. Negative where it frees
/// what others allocated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// In blocks below [`LARGE`].
    pub small: i64,
    /// In larger ones.
    pub large: i64,
}

impl Held {
    /// In all of them.
    pub const fn bytes(self) -> i64 {
        self.small + self.large
    }
}

impl Sub for Held {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self {
            small: self.small - other.small,
            large: self.large - other.large,
        }
    }
}

/// What glibc takes for a request of `size` bytes: a header of 8, rounded up to 16, at least 32.
fn taken(size: usize) -> i64 {
    (size + 8).next_multiple_of(16).max(32) as i64
}

fn hold(size: usize, bytes: i64) {
    let _ = HELD.try_with(|held| {
        let mut sum = held.get();
        if size < LARGE {
            sum.small += bytes;
        } else {
            sum.large += bytes;
        }
        held.set(sum);
    });
}

// A thread that is ending has no counts any more, and is not the one that is counted.
fn allocated(size: usize) {
    let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
    hold(size, taken(size));
}

fn freed(size: usize) {
    hold(size, -taken(size));
}

// SAFETY: everything is the system allocator's; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        allocated(layout.size());
        // SAFETY: the caller keeps the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        freed(layout.size());
        // SAFETY: the caller keeps the contract.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        freed(layout.size());
        allocated(size);
        // SAFETY: the caller keeps the contract.
        unsafe { System.realloc(at, layout, size) }
    }
}

/// Allocations of this thread so far, growing included. 0: the program does not count.
pub fn allocations() -> u64 {
    ALLOCATIONS.get()
}

/// What this thread holds by now.
pub fn held() -> Held {
    HELD.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[global_allocator]
    static ALLOCATOR: Counting = Counting;

    #[test]
    fn what_is_allocated_grown_and_freed_is_counted() {
        let (before, held_before) = (allocations(), held());
        let mut bytes: Vec<u8> = Vec::with_capacity(100);
        let since = || {
            let held = held() - held_before;
            (allocations() - before, held.small, held.large)
        };
        assert_eq!(since(), (1, 112, 0));
        bytes.reserve_exact(1_000);
        assert_eq!(since(), (2, 1_008, 0));
        bytes.reserve_exact(LARGE);
        assert_eq!(since(), (3, 0, LARGE as i64 + 16));
        drop(bytes);
        assert_eq!(since(), (3, 0, 0));
    }
}

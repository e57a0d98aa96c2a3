//! What the standard library has not: limits, CPU time, and the end of the input.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::time::{ClockId, clock_gettime};

/// As many descriptors as the system lets us have.
pub(crate) fn raise_descriptor_limit() -> io::Result<()> {
    crate::machine::descriptors().map(drop)
}

/// Nanoseconds that this thread has spent on a CPU.
pub(crate) fn thread_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

/// Becomes true when stdin ends.
pub(crate) fn input_ended() -> Arc<AtomicBool> {
    let ended = Arc::new(AtomicBool::new(false));
    let tell = Arc::clone(&ended);
    thread::spawn(move || {
        // An unreadable input is one that has ended.
        let _ = io::stdin().lock().read_to_end(&mut Vec::new());
        tell.store(true, Ordering::Relaxed);
    });
    ended
}

/// Numbers that look random, the same in each run.
#[derive(Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// From 0 to 1.
    pub(crate) fn roll(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }
}

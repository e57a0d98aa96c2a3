//! Acts that must come before a time-out of the server, on a machine that may be late.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

use super::PATIENCE;

/// The time that the server promises to wait for the next act of the test.
pub struct Window {
    promise: Duration,
    /// `None`: the server waits for nothing.
    since: Option<Instant>,
}

impl Window {
    /// The time counts from now: no act has begun that starts the server's.
    pub fn open(&mut self) {
        self.since = Some(Instant::now());
    }

    /// The last act has come. Ends the attempt if it came late.
    pub fn close(&mut self) {
        if self.is_late() {
            // Without a message: nothing has failed.
            resume_unwind(Box::new("the machine was late"));
        }
        self.since = None;
    }

    /// An act that ends the server's wait and begins the next one. Ends the attempt if it came late.
    pub fn act(&mut self, act: impl FnOnce()) {
        let begun = Instant::now();
        act();
        self.close();
        self.since = Some(begun);
    }

    /// Whether the server need not have waited until now.
    pub fn is_late(&self) -> bool {
        self.since.is_some_and(|since| since.elapsed() >= self.promise)
    }
}

/// Runs `attempt`, a test with a rig of its own, for a server that promises to wait so long. If the attempt fails
/// when the promise is over and an act still to come, the machine was late and the attempt begins again, for
/// [`PATIENCE`] in all. Any other failure is one.
pub fn unless_late(promise: Duration, attempt: impl Fn(&mut Window)) {
    let begun = Instant::now();
    loop {
        let mut window = Window { promise, since: None };
        let Err(failure) = catch_unwind(AssertUnwindSafe(|| attempt(&mut window))) else {
            return;
        };
        if !window.is_late() || begun.elapsed() >= PATIENCE {
            resume_unwind(failure);
        }
        eprintln!("the machine was late: {promise:?} were over before the test's act; once more");
    }
}

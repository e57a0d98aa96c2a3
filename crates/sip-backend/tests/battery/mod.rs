//! What every store must do, whatever lies beneath. A new store implements the harness, names the
//! tests once more by the macro, and is held to the same.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "shared by several test programs, each using a part"
)]

pub mod location;
pub mod subscribers;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use sip_backend::ResultSink;
use sip_core::id::QueryId;
use sip_core::query::QueryResult;

/// Longest wait for something that must happen.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Collects answers.
#[derive(Default)]
pub struct Answers {
    got: Mutex<HashMap<(u16, u32), QueryResult>>,
    wake: Condvar,
}

/// A question's id with this number.
pub const fn id(slot: u32) -> QueryId {
    QueryId { slot, generation: 1 }
}

impl Answers {
    /// Waits for the answer to question `slot` of worker `origin`, and takes it.
    #[track_caller]
    pub fn wait(&self, origin: u16, slot: u32) -> QueryResult {
        let deadline = Instant::now() + PATIENCE;
        let mut got = self.got.lock();
        loop {
            if let Some(answer) = got.remove(&(origin, slot)) {
                return answer;
            }
            assert!(
                !self.wake.wait_until(&mut got, deadline).timed_out(),
                "no answer to {slot}"
            );
        }
    }

    /// Answers not taken yet.
    pub fn len(&self) -> usize {
        self.got.lock().len()
    }
}

impl ResultSink for Answers {
    fn deliver(&self, origin: u16, id: QueryId, result: QueryResult) {
        assert_eq!(id.generation, 1, "the id comes back as it went");
        let twice = self.got.lock().insert((origin, id.slot), result);
        assert!(twice.is_none(), "question {} was answered twice", id.slot);
        self.wake.notify_all();
    }
}

//! The health of a group member: whether it may get calls, by calls that fail, by probes, and by the
//! operator.

#[cfg(not(loom))]
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
// In the models of `crates/loom-models`.
#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

/// State of one member, shared by all workers. The state is read for each call, and written only when a part
/// of it changes or a call fails.
#[derive(Debug, Default)]
pub struct Health {
    drained: AtomicBool,
    /// Failures in a row.
    failures: AtomicU32,
    /// Good probes in a row, while marked as failed.
    recoveries: AtomicU32,
    /// Wall clock millisecond until which the member counts as failed; 0: it does not.
    failed_until_ms: AtomicU64,
    /// Failures since the start, for the operator.
    failed_total: AtomicU64,
}

/// The state of a member as the operator sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberState {
    /// The member gets calls.
    Up,
    /// The member failed, and gets no calls.
    Failed,
    /// The operator has taken the member out of service: it gets no calls, and its present calls go on.
    Drained,
}

/// The conditions under which a member counts as failed, and no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MarkPolicy {
    /// Failures in a row after which the member counts as failed; at least 1.
    pub fail_after: u32,
    /// Good probes in a row after which the member no longer counts as failed; at least 1.
    pub recover_after: u32,
    /// Milliseconds for which the member counts as failed, without probes. `None`: until probes succeed.
    pub hold_ms: Option<u32>,
}

impl Health {
    /// The state of the member as the operator sees it.
    pub fn state(&self, now_unix_ms: u64) -> MemberState {
        if self.drained.load(Relaxed) {
            MemberState::Drained
        } else if self.failed_until_ms.load(Relaxed) > now_unix_ms {
            MemberState::Failed
        } else {
            MemberState::Up
        }
    }

    /// Takes the member out of service, or puts it back.
    pub fn set_drained(&self, drained: bool) {
        self.drained.store(drained, Relaxed);
    }

    /// Failures since the start of the program.
    pub fn failures(&self) -> u64 {
        self.failed_total.load(Relaxed)
    }

    /// Notes that a call or a probe failed. Returns whether the member counts as failed from now on
    /// and did not before.
    pub fn note_failure(&self, now_unix_ms: u64, policy: &MarkPolicy) -> bool {
        self.failed_total.fetch_add(1, Relaxed);
        self.recoveries.store(0, Relaxed);
        let failures = self.failures.fetch_add(1, Relaxed).saturating_add(1);
        if failures < policy.fail_after {
            return false;
        }
        let until = policy
            .hold_ms
            .map_or(u64::MAX, |hold| now_unix_ms.saturating_add(u64::from(hold)));
        self.failed_until_ms.swap(until, Relaxed) <= now_unix_ms
    }

    /// Notes that a probe got a response. Returns whether the member gets calls again from now on and
    /// did not before.
    pub fn note_probe_response(&self, now_unix_ms: u64, policy: &MarkPolicy) -> bool {
        if self.failed_until_ms.load(Relaxed) <= now_unix_ms {
            self.note_response();
            return false;
        }
        let good = self.recoveries.fetch_add(1, Relaxed).saturating_add(1);
        if good < policy.recover_after {
            return false;
        }
        self.failures.store(0, Relaxed);
        self.recoveries.store(0, Relaxed);
        self.failed_until_ms.swap(0, Relaxed) > now_unix_ms
    }

    /// Notes a response to a call: later failures begin a new row.
    pub fn note_response(&self) {
        // Nothing is written if no call has failed: all workers read this.
        if self.failures.load(Relaxed) != 0 {
            self.failures.store(0, Relaxed);
        }
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;

    const HELD: MarkPolicy = MarkPolicy {
        fail_after: 2,
        recover_after: 2,
        hold_ms: Some(1000),
    };
    const PROBED: MarkPolicy = MarkPolicy {
        hold_ms: None,
        ..HELD
    };

    #[test]
    fn failures_in_a_row_mark_it_for_a_while() {
        let health = Health::default();
        assert!(!health.note_failure(0, &HELD));
        health.note_response();
        assert!(!health.note_failure(10, &HELD));
        assert_eq!(health.state(10), MemberState::Up);
        assert!(health.note_failure(20, &HELD));
        assert_eq!(
            (health.state(1019), health.state(1020)),
            (MemberState::Failed, MemberState::Up)
        );
        // One more failure is enough now, and the mark is an event again only once it had ended.
        assert!(!health.note_failure(1000, &HELD));
        assert!(health.note_failure(3000, &HELD));
        assert_eq!(health.failures(), 5);
    }

    #[test]
    fn probes_bring_it_back() {
        let health = Health::default();
        assert!(!health.note_failure(0, &PROBED));
        assert!(health.note_failure(0, &PROBED));
        assert_eq!(health.state(u64::MAX - 1), MemberState::Failed);
        assert!(!health.note_probe_response(5, &PROBED));
        assert!(!health.note_failure(6, &PROBED));
        assert!(!health.note_probe_response(7, &PROBED));
        assert!(health.note_probe_response(8, &PROBED));
        assert_eq!(health.state(8), MemberState::Up);
        assert!(!health.note_failure(9, &PROBED));
    }

    #[test]
    fn drained_is_drained_whatever_it_answers() {
        let health = Health::default();
        health.set_drained(true);
        assert!(!health.note_probe_response(0, &PROBED));
        assert_eq!(health.state(0), MemberState::Drained);
        health.set_drained(false);
        assert_eq!(health.state(0), MemberState::Up);
    }
}

//! Models of what workers share in the core: the health of a member of a group.

#![allow(unreachable_pub, reason = "the included file is a module of a library")]

use std::sync::Arc;

use loom::thread;
use loom_models::explore;

use crate::health::{Health, MarkPolicy, MemberState};

#[path = "../../../sip-core/src/dispatcher/health.rs"]
mod health;

const PROBED: MarkPolicy = MarkPolicy {
    fail_after: 2,
    recover_after: 1,
    hold_ms: None,
};

/// Runs both at once; what they returned.
fn both(health: &Arc<Health>, steps: [fn(&Health) -> bool; 2]) -> [bool; 2] {
    steps
        .map(|step| {
            let health = Arc::clone(health);
            thread::spawn(move || step(&health))
        })
        .map(|worker| worker.join().expect("it ran to its end"))
}

fn fails(health: &Health) -> bool {
    health.note_failure(10, &PROBED)
}

fn answers(health: &Health) -> bool {
    health.note_probe_response(10, &PROBED)
}

#[test]
fn of_two_failures_at_once_none_is_lost_and_one_is_news() {
    explore(|| {
        let health = Arc::new(Health::default());
        let news = both(&health, [fails, fails]);
        assert_eq!(health.state(10), MemberState::Failed);
        assert_eq!(health.failures(), 2);
        assert_ne!(news[0], news[1], "one of them marked it");
    });
}

#[test]
fn of_two_answers_at_once_one_brings_it_back() {
    explore(|| {
        let health = Arc::new(Health::default());
        fails(&health);
        assert!(fails(&health));
        let news = both(&health, [answers, answers]);
        assert_eq!(health.state(10), MemberState::Up);
        assert_ne!(news[0], news[1]);
    });
}

/// The last of the two decides, and what they return adds up.
#[test]
fn a_failure_and_an_answer_at_once_tell_what_they_did() {
    explore(|| {
        let health = Arc::new(Health::default());
        fails(&health);
        assert!(fails(&health));
        let [failed, back] = both(&health, [fails, answers]);
        let marks = 1 + i32::from(failed) - i32::from(back);
        let is_failed = health.state(10) == MemberState::Failed;
        assert_eq!(
            marks,
            i32::from(is_failed),
            "marked again: {failed}, back: {back}"
        );
        assert_eq!(health.failures(), 3);
    });
}

/// The operator's wish holds whatever the workers find out meanwhile.
#[test]
fn drained_is_drained() {
    explore(|| {
        let health = Arc::new(Health::default());
        let wish: fn(&Health) -> bool = |health| {
            health.set_drained(true);
            health.state(10) == MemberState::Drained
        };
        let [wished, _] = both(&health, [wish, fails]);
        assert!(wished && health.state(10) == MemberState::Drained);
    });
}

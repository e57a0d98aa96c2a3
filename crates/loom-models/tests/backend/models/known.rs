//! Sources with a recent registration: of registrations at several workers none is forgotten while there is
//! an older one, and no time goes back. There are two places in models.

use std::net::Ipv4Addr;
use std::sync::Arc;

use loom::thread;
use loom_models::explore;
use sip_core::admission::Source;

use crate::known::Known;

const MINUTE_MS: u64 = 60_000;

fn source(n: u8) -> Source {
    Source::of(Ipv4Addr::new(192, 0, 2, n).into())
}

/// Registers from these, each at a minute, and each at a worker of its own.
fn at_once(known: &Arc<Known>, registrations: &[(u8, u64)]) {
    let workers: Vec<_> = registrations
        .iter()
        .map(|(n, minute)| {
            let (known, n, at) = (Arc::clone(known), *n, minute * MINUTE_MS);
            thread::spawn(move || known.note(at, source(n)))
        })
        .collect();
    for worker in workers {
        worker.join().expect("it ran to its end");
    }
}

#[test]
fn of_two_that_register_at_once_both_are_known() {
    explore(|| {
        let known = Arc::new(Known::default());
        at_once(&known, &[(1, 10), (2, 10)]);
        for n in [1, 2] {
            assert!(known.has(10 * MINUTE_MS, source(n)), "{n}");
        }
    });
}

/// The source with the oldest registration registers again, while a newcomer looks for a place.
#[test]
fn a_new_registration_of_a_known_user_takes_no_room() {
    explore(|| {
        let known = Arc::new(Known::default());
        known.note(MINUTE_MS, source(1));
        known.note(2 * MINUTE_MS, source(2));
        at_once(&known, &[(1, 10), (3, 10)]);
        let known = |n| known.has(10 * MINUTE_MS, source(n));
        assert_eq!([1, 2, 3].map(known), [true, false, true]);
    });
}

/// A worker may be slow between its look at the clock and its writing.
#[test]
fn a_later_registration_is_what_counts() {
    explore(|| {
        let known = Arc::new(Known::default());
        at_once(&known, &[(1, 10), (1, 11)]);
        assert!(known.has((11 + 119) * MINUTE_MS, source(1)));
    });
}

#[test]
fn a_known_user_stays_known_during_a_new_registration() {
    explore(|| {
        let known = Arc::new(Known::default());
        known.note(10 * MINUTE_MS, source(1));
        let workers = [(1, 11), (2, 11)].map(|(n, minute)| {
            let known = Arc::clone(&known);
            thread::spawn(move || known.note(minute * MINUTE_MS, source(n)))
        });
        assert!(known.has(11 * MINUTE_MS, source(1)));
        for worker in workers {
            worker.join().expect("it ran to its end");
        }
    });
}

//! The end of a drain: no worker leaves before all are done, and every worker hears of it.

use std::sync::Arc;

use loom::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use loom::thread;
use loom_models::explore;
use sip_core::id::{ConnId, WorkerId};

use super::{flow, turn};
use crate::hub::{Hub, Reach};
use crate::mailbox::{Inbox, MailboxReceiver};
use crate::settings::Settings;

/// Has work for so many turns, then none.
fn drain(hub: &Hub, own: WorkerId, mailbox: &MailboxReceiver, mut work: usize, finished: &AtomicUsize) {
    let mut inbox = Inbox::default();
    loop {
        let done = work == 0;
        if done {
            finished.fetch_add(1, Relaxed);
        }
        if hub.is_done(own, done) {
            return;
        }
        match work.checked_sub(1) {
            Some(left) => work = left,
            // Nothing wakes it but the others' end.
            None => turn(mailbox, &mut inbox),
        }
    }
}

#[test]
fn all_workers_end_together_and_none_sleeps_on() {
    explore(|| {
        let (hub, mut mailboxes) = Hub::new(2, &Settings::default()).expect("no descriptor");
        let finished = Arc::new(AtomicUsize::new(0));
        let (second, first) = (mailboxes.pop(), mailboxes.pop());
        let (second, first) = (second.expect("two"), first.expect("two"));
        let other = thread::spawn({
            let (hub, finished) = (hub.clone(), Arc::clone(&finished));
            move || {
                drain(&hub, WorkerId(1), &second, 1, &finished);
                assert!(finished.load(Relaxed) >= 2, "the other still had work");
                second
            }
        });
        drain(&hub, WorkerId(0), &first, 0, &finished);
        assert!(finished.load(Relaxed) >= 2, "the other still had work");
        // A mailbox outlives its worker's last turn: the others may still tell it.
        other.join().expect("it ran to its end");
    });
}

/// A peer connects again while a worker looks where a message to it should go.
#[test]
fn a_message_goes_to_a_connection_that_there_is_or_was() {
    explore(|| {
        let (hub, _mailboxes) = Hub::new(2, &Settings::default()).expect("no descriptor");
        let to = flow(40_000);
        let [old, new] = [0, 1].map(|worker| ConnId {
            worker: WorkerId(worker),
            slot: 1,
            generation: 1,
        });
        hub.accepted().insert(to.transport, to.remote, old);
        let moving = thread::spawn({
            let hub = hub.clone();
            move || {
                hub.accepted().insert(to.transport, to.remote, new);
                hub.accepted().remove(to.transport, to.remote, old);
            }
        });
        let (worker, conn) = hub.route(&to, WorkerId(0), Reach::AllWorkers);
        let conn = conn.expect("the new one is there before the old one goes");
        assert!([old, new].contains(&conn) && conn.worker == worker);
        moving.join().expect("it ran to its end");
        let own = hub.route(&to, WorkerId(0), Reach::Own);
        assert_eq!(own, (hub.worker_of(&to.remote), None));
    });
}

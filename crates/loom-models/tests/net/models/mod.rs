//! Models of what workers share: loom runs each under every order of steps that its bounds allow, and
//! under every value that the memory model lets a read see.
//!
//! A thread that waits for ever is a deadlock, which loom reports: so a lost wake-up shows.
//!
//! loom takes a sequentially consistent access for one that acquires and releases, no more. What
//! passes here is therefore right without sequential consistency.

mod accepted;
mod hub;
mod mailbox;
use sip_core::transport::Flow;

use crate::mailbox::{Inbox, MailboxReceiver};

fn flow(port: u16) -> Flow {
    Flow::udp(([127, 0, 0, 1], port).into())
}

/// A turn of a worker that has nothing else to do, in the order of `Worker::wait` and
/// `Worker::receive_ready`.
fn turn(mailbox: &MailboxReceiver, inbox: &mut Inbox) {
    let is_ready = if mailbox.prepare_sleep() {
        mailbox.waker().wait();
        true
    } else {
        mailbox.waker().is_ready()
    };
    mailbox.awake();
    if is_ready {
        mailbox.waker().reset();
    }
    mailbox.take(inbox);
}

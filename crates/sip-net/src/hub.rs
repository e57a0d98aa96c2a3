//! What joins the workers of one process: everybody's mailbox, and who owns which peer.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sip_core::id::WorkerId;

use crate::mailbox::{Control, Item, MailboxReceiver, MailboxSender, mailbox};
use crate::settings::Settings;

/// The mailboxes of all workers. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Hub {
    mailboxes: Arc<[MailboxSender]>,
    /// For each worker: it drains, and has nothing left to do.
    done: Arc<[AtomicBool]>,
    hasher: RandomState,
}

impl Hub {
    /// Makes the mailboxes of `workers` workers (at least one); the receiving ends are theirs, in
    /// their order.
    pub fn new(workers: u16, settings: &Settings) -> io::Result<(Self, Vec<MailboxReceiver>)> {
        let pairs = (0..workers.max(1))
            .map(|_| mailbox(settings))
            .collect::<io::Result<Vec<_>>>()?;
        let (senders, receivers): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
        Ok((
            Self {
                done: senders.iter().map(|_| AtomicBool::new(false)).collect(),
                mailboxes: senders.into(),
                hasher: RandomState::new(),
            },
            receivers,
        ))
    }

    /// Number of workers.
    pub fn workers(&self) -> u16 {
        // `new` made no more than that.
        self.mailboxes.len() as u16
    }

    /// The mailbox of one worker.
    pub fn mailbox(&self, worker: WorkerId) -> Option<&MailboxSender> {
        self.mailboxes.get(usize::from(worker.0))
    }

    /// The worker that owns the connection which we open to `peer`. Keyed, since peers choose
    /// their addresses.
    pub fn owner_of(&self, peer: &SocketAddr) -> WorkerId {
        WorkerId((self.hasher.hash_one(peer) % u64::from(self.workers())) as u16)
    }

    /// Notes whether a draining worker has nothing left to do; whether that holds for all.
    ///
    /// None may leave before: others still receive messages whose state it holds.
    pub(crate) fn is_done(&self, worker: WorkerId, done: bool) -> bool {
        let Some(own) = self.done.get(usize::from(worker.0)) else {
            return done;
        };
        let news = own.swap(done, Ordering::SeqCst) != done;
        let all = self.done.iter().all(|done| done.load(Ordering::SeqCst));
        if all && news {
            // The others may be asleep. One whose mailbox is full is not.
            self.order(&Control::Publish);
        }
        all
    }

    /// Gives an order to all workers; how many took it.
    pub fn order(&self, control: &Control) -> usize {
        self.mailboxes
            .iter()
            .filter(|mailbox| mailbox.post(Item::Control(control.clone())).is_ok())
            .count()
    }
}

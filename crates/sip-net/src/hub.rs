//! The hub that joins the workers of one process: all mailboxes, and the choice of the worker for a peer.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use sip_core::id::{ConnId, WorkerId};
use sip_core::transport::Flow;

use crate::accepted::Accepted;
use crate::mailbox::{Control, Item, MailboxReceiver, MailboxSender, mailbox};
use crate::settings::Settings;
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Which connections may carry a message that names none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// A connection of any worker.
    AllWorkers,
    /// A connection of this worker only: another worker has already passed the message on. If there is none,
    /// the message goes to the worker that opens connections to this peer. So no message goes to and fro
    /// between workers.
    Own,
}

/// Counts the draining workers that have nothing left to do.
#[derive(Debug)]
struct Done {
    /// A flag for each worker, written by that worker only.
    is: Box<[AtomicBool]>,
    /// Number of flags set. As it is one number, the second of two workers that finish at once sees both.
    count: AtomicUsize,
}

/// The mailboxes of all workers. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Hub {
    mailboxes: Arc<[MailboxSender]>,
    done: Arc<Done>,
    hasher: RandomState,
    accepted: Arc<Accepted>,
}

impl Hub {
    /// Makes the mailboxes of `workers` workers (at least one). The receiving ends are returned in the
    /// workers' order.
    pub fn new(workers: u16, settings: &Settings) -> io::Result<(Self, Vec<MailboxReceiver>)> {
        let pairs = (0..workers.max(1))
            .map(|_| mailbox(settings))
            .collect::<io::Result<Vec<_>>>()?;
        let (senders, receivers): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
        Ok((
            Self {
                done: Arc::new(Done {
                    is: senders.iter().map(|_| AtomicBool::new(false)).collect(),
                    count: AtomicUsize::new(0),
                }),
                mailboxes: senders.into(),
                hasher: RandomState::new(),
                accepted: Arc::default(),
            },
            receivers,
        ))
    }

    /// Number of workers.
    pub fn workers(&self) -> u16 {
        // `new` made no more than `u16::MAX`.
        self.mailboxes.len() as u16
    }

    /// The mailbox of one worker.
    pub fn mailbox(&self, worker: WorkerId) -> Option<&MailboxSender> {
        self.mailboxes.get(usize::from(worker.0))
    }

    /// The worker that opens the connection to `peer`. The hash is keyed, since peers choose their addresses.
    pub fn worker_of(&self, peer: &SocketAddr) -> WorkerId {
        WorkerId((self.hasher.hash_one(peer) % u64::from(self.workers())) as u16)
    }

    /// The accepted connections of all workers.
    pub(crate) fn accepted(&self) -> &Arc<Accepted> {
        &self.accepted
    }

    /// The worker that sends a message of `own`, if the message names no connection or one that is closed. If
    /// the peer has opened a connection from exactly that address, that connection is returned with its
    /// worker (RFC 3261 §18). Otherwise the worker that opens connections to the peer is returned.
    pub(crate) fn route(&self, to: &Flow, own: WorkerId, reach: Reach) -> (WorkerId, Option<ConnId>) {
        let accepted = self.accepted.find(to.transport, to.remote);
        match accepted.filter(|id| reach == Reach::AllWorkers || id.worker == own) {
            Some(id) => (id.worker, Some(id)),
            None => (self.worker_of(&to.remote), None),
        }
    }

    /// Notes whether a draining worker has nothing left to do. Returns whether that holds for all workers.
    ///
    /// No worker may leave before all are done: the others still receive messages for the state that it
    /// holds.
    pub(crate) fn is_done(&self, worker: WorkerId, done: bool) -> bool {
        let Some(own) = self.done.is.get(usize::from(worker.0)) else {
            return done;
        };
        let count = &self.done.count;
        let is_news = own.swap(done, Ordering::Relaxed) != done;
        let others = match (is_news, done) {
            (true, true) => count.fetch_add(1, Ordering::AcqRel),
            (true, false) => count.fetch_sub(1, Ordering::AcqRel) - 1,
            (false, _) => count.load(Ordering::Acquire) - usize::from(done),
        };
        let all = done && others + 1 == self.done.is.len();
        if all && is_news {
            // The other workers may be asleep. A worker with a full mailbox is not.
            self.order(&Control::Publish);
        }
        all
    }

    /// Gives an order to all workers. Returns the number of workers whose mailbox took it.
    pub fn order(&self, control: &Control) -> usize {
        self.mailboxes
            .iter()
            .filter(|mailbox| mailbox.post(Item::Control(control.clone())).is_ok())
            .count()
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;
    use sip_core::id::ListenerId;
    use sip_core::transport::Transport;

    #[test]
    fn a_message_passes_from_worker_to_worker_no_more_than_once_more() {
        let (hub, _mailboxes) = Hub::new(4, &Settings::default()).unwrap();
        for port in 1..100 {
            let to = Flow {
                transport: Transport::Tcp,
                listener: ListenerId(0),
                remote: ([192, 0, 2, 1], port).into(),
                conn: None,
                proof: sip_core::transport::Proof::None,
            };
            let opener = (hub.worker_of(&to.remote), None);
            let conn = |worker| ConnId {
                worker: WorkerId(worker),
                slot: 1,
                generation: 1,
            };
            assert_eq!(hub.route(&to, WorkerId(0), Reach::AllWorkers), opener);
            // Worker 1's connection is found by worker 0, and by worker 1 itself.
            let found = (WorkerId(1), Some(conn(1)));
            hub.accepted().insert(to.transport, to.remote, conn(1));
            assert_eq!(hub.route(&to, WorkerId(0), Reach::AllWorkers), found);
            assert_eq!(hub.route(&to, WorkerId(1), Reach::AllWorkers), found);
            assert_eq!(hub.route(&to, WorkerId(1), Reach::Own), found);
            // Before the message arrives at worker 1, the peer moves to worker 2. Worker 1 does not send the
            // message after it.
            hub.accepted().insert(to.transport, to.remote, conn(2));
            hub.accepted().remove(to.transport, to.remote, conn(1));
            assert_eq!(hub.route(&to, WorkerId(1), Reach::Own), opener);
            hub.accepted().remove(to.transport, to.remote, conn(2));
            assert_eq!(hub.route(&to, WorkerId(0), Reach::AllWorkers), opener);
        }
    }
}

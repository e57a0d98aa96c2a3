//! The mailbox of a worker. Other threads send: messages for its state, messages for its connections, results
//! of back-ends, and orders of the program.
//!
//! Messages travel in [`Block`]s. A sender collects a turn's messages for one receiver; their bytes are
//! copied once, into the block. The sender posts the block at the end of the turn, which costs one lock. The
//! receiver takes all blocks at once and returns emptied ones to the senders. No memory is allocated once
//! blocks have grown to their usual size.
//!
//! The receiver is woken by its eventfd only if it sleeps. No wake-up is lost: a sender first sets `pending`,
//! then swaps `sleeping`; the receiver first swaps `sleeping`, then reads `pending`. Every access to
//! `sleeping` is a swap, never only a store, so each reads the swap before it and sees what that thread did
//! until then. Of a sender and the receiver one comes first: either the sender finds the receiver asleep, or
//! the receiver sees `pending`. `models::mailbox` tries all orders.
//!
//! If a bound is reached, the sender keeps its message and decides what to do.

use std::io;
use std::mem;
use std::ops::Range;
use std::sync::Arc;

use sip_core::admission::SourceLists;
use sip_core::config::Config;
use sip_core::id::{ConnId, QueryId, WorkerId};
use sip_core::query::QueryResult;
use sip_core::transport::{Flow, PeerName, Transmit};

use crate::settings::Settings;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::waker::Waker;

/// The work to be done with a message in a [`Block`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Task {
    /// A message received on the flow by another worker; the receiver holds its state.
    Handle,
    /// A message to be sent to the flow, on a connection that the receiver owns or opens. If sending fails,
    /// the message returns to `origin`.
    Send {
        /// The worker of the endpoint that made the message.
        origin: WorkerId,
        /// Which connections may carry the message.
        way: ConnectionPolicy,
    },
    /// A message of the receiver's endpoint to the flow, which was not delivered.
    Undelivered,
    /// No message: the connection of the flow, on which messages had come, is closed.
    Closed,
    /// No message: a request of another worker to the address of the flow failed.
    HopFailed,
}

impl Task {
    /// A message to be sent, on its way back to `origin`.
    pub fn lost(origin: WorkerId) -> Self {
        let way = ConnectionPolicy::default();
        Self::Send { origin, way }
    }
}

/// Which connections may carry a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnectionPolicy {
    /// See [`Transmit::peer`].
    pub peer: Option<PeerName>,
    /// See [`Transmit::pinned`].
    pub pinned: bool,
    /// Whether the connection was found by the peer's address, not named by the core.
    pub found: bool,
}

impl ConnectionPolicy {
    /// The policy that the core asks for.
    pub fn of(item: &Transmit) -> Self {
        Self {
            peer: item.peer.clone(),
            pinned: item.pinned,
            found: false,
        }
    }
}

/// One message of a [`Block`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The work to be done.
    pub task: Task,
    /// The flow of the message: the message was received on it, or is to be sent on it.
    pub flow: Flow,
    range: Range<usize>,
}

/// Messages for one worker, with their bytes.
#[derive(Debug, Default)]
pub struct Block {
    bytes: Vec<u8>,
    entries: Vec<Entry>,
}

/// Bytes beyond which a block is not kept for reuse.
const KEPT_BLOCK_BYTES: usize = 256 << 10;

/// Emptied blocks kept for reuse in one mailbox.
const KEPT_BLOCKS: usize = 8;

impl Block {
    /// Appends a copy of a message.
    pub fn push(&mut self, task: Task, flow: Flow, message: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(message);
        self.entries.push(Entry {
            task,
            flow,
            range: start..self.bytes.len(),
        });
    }

    /// The messages, in the order in which they were pushed.
    pub fn iter(&self) -> impl Iterator<Item = (&Entry, &[u8])> {
        self.entries
            .iter()
            .map(|entry| (entry, self.bytes.get(entry.range.clone()).unwrap_or_default()))
    }

    /// Number of messages.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Bytes of all messages.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Whether the block holds no message.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Removes all messages. The memory is kept unless it is unusually large.
    pub fn clear(&mut self) {
        self.entries.clear();
        if self.bytes.capacity() > KEPT_BLOCK_BYTES {
            self.bytes = Vec::new();
        } else {
            self.bytes.clear();
        }
    }
}

/// An order of the program to a worker.
#[derive(Clone, Debug)]
pub enum Control {
    /// Use this configuration from now on. The listeners of the configuration must be those for which the
    /// sockets were bound.
    Reconfigure(Arc<Config>),
    /// Use these source lists from now on; close the accepted connections of banned sources.
    SourceLists(Arc<SourceLists>),
    /// Close this connection of the worker, unless an address-of-record has a binding made over it. Its phone learns so
    /// that its registration was removed (RFC 5626 §4.2.1: a flow that fails is registered anew).
    EndFlow(ConnId),
    /// Refuse new work and finish what is under way. Return together with all other workers, at the latest
    /// after this many milliseconds. All workers must get this order.
    Drain {
        /// Longest time to finish, milliseconds.
        deadline_ms: u32,
    },
    /// Return after this turn.
    Stop,
    /// Publish the counters after this turn.
    Publish,
    /// Begin or end splitting CPU time by component ([`crate::cpu`]).
    SplitCpu(bool),
}

/// A result or an order.
#[derive(Clone, Debug)]
pub enum Item {
    /// The result of a query of this worker.
    Result {
        /// The query's id.
        id: QueryId,
        /// The result.
        result: QueryResult,
    },
    /// An order of the program.
    Control(Control),
}

/// The error of a post: the receiver is gone, or the mailbox is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused;

#[derive(Debug, Default)]
struct Queue {
    items: Vec<Item>,
    blocks: Vec<Block>,
    spare: Vec<Block>,
    messages: usize,
    bytes: usize,
    closed: bool,
}

#[derive(Debug)]
struct Shared {
    waker: Waker,
    sleeping: AtomicBool,
    pending: AtomicBool,
    queue: Mutex<Queue>,
    max_messages: usize,
    max_bytes: usize,
    max_items: usize,
}

impl Shared {
    /// Wakes the receiver if it sleeps. To be called after queueing, with the lock released.
    fn notify(&self) {
        self.pending.store(true, Ordering::SeqCst);
        if self.sleeping.swap(false, Ordering::SeqCst) {
            self.waker.wake();
        }
    }
}

/// Makes the mailbox of one worker.
pub fn mailbox(settings: &Settings) -> io::Result<(MailboxSender, MailboxReceiver)> {
    let shared = Arc::new(Shared {
        waker: Waker::new()?,
        sleeping: AtomicBool::new(false),
        pending: AtomicBool::new(false),
        queue: Mutex::new(Queue::default()),
        max_messages: settings.mailbox_messages,
        max_bytes: settings.mailbox_bytes,
        max_items: settings.mailbox_items,
    });
    Ok((
        MailboxSender {
            shared: Arc::clone(&shared),
        },
        MailboxReceiver { shared },
    ))
}

/// The sending end; any number of threads may hold one.
#[derive(Clone, Debug)]
pub struct MailboxSender {
    shared: Arc<Shared>,
}

impl MailboxSender {
    /// Posts one item. Returns it as the error if it does not fit or the worker is gone.
    pub fn post(&self, item: Item) -> Result<(), Item> {
        {
            let mut queue = self.shared.queue.lock();
            if queue.closed || queue.items.len() >= self.shared.max_items {
                return Err(item);
            }
            queue.items.push(item);
        }
        self.shared.notify();
        Ok(())
    }

    /// Posts items in their order for the price of one lock. Items that do not fit stay in `items`.
    pub fn post_all(&self, items: &mut Vec<Item>) -> Result<(), Refused> {
        if items.is_empty() {
            return Ok(());
        }
        {
            let mut queue = self.shared.queue.lock();
            if queue.closed {
                return Err(Refused);
            }
            let room = self
                .shared
                .max_items
                .saturating_sub(queue.items.len())
                .min(items.len());
            queue.items.extend(items.drain(..room));
        }
        self.shared.notify();
        if items.is_empty() { Ok(()) } else { Err(Refused) }
    }

    /// Posts a block, whole or not at all. If posted, `block` is empty afterwards.
    pub fn post_block(&self, block: &mut Block) -> Result<(), Refused> {
        if block.is_empty() {
            return Ok(());
        }
        {
            let mut queue = self.shared.queue.lock();
            let messages = queue.messages + block.len();
            let bytes = queue.bytes + block.bytes.len();
            if queue.closed || messages > self.shared.max_messages || bytes > self.shared.max_bytes {
                return Err(Refused);
            }
            (queue.messages, queue.bytes) = (messages, bytes);
            let empty = queue.spare.pop().unwrap_or_default();
            queue.blocks.push(mem::replace(block, empty));
        }
        self.shared.notify();
        Ok(())
    }

    /// Numbers of waiting items, blocks and messages, for models.
    #[cfg(all(loom, test))]
    pub(crate) fn queued(&self) -> (usize, usize, usize) {
        let queue = self.shared.queue.lock();
        (queue.items.len(), queue.blocks.len(), queue.messages)
    }
}

/// The contents that the receiver took. Pass it to the next [`MailboxReceiver::take`] for reuse.
#[derive(Debug, Default)]
pub struct Inbox {
    /// Results and orders.
    pub items: Vec<Item>,
    /// Messages.
    pub blocks: Vec<Block>,
}

/// The receiving end of a mailbox, held by one worker.
#[derive(Debug)]
pub struct MailboxReceiver {
    shared: Arc<Shared>,
}

impl MailboxReceiver {
    /// The waker that the worker adds to its epoll instance.
    pub fn waker(&self) -> &Waker {
        &self.shared.waker
    }

    /// Replaces the contents of `inbox` by all that waits. Returns whether there was anything. Costs one
    /// atomic load if nothing waits.
    pub fn take(&self, inbox: &mut Inbox) -> bool {
        inbox.items.clear();
        for block in &mut inbox.blocks {
            block.clear();
        }
        if !self.shared.pending.load(Ordering::SeqCst) {
            return false;
        }
        let mut queue = self.shared.queue.lock();
        // Cleared before reading the queue: what is queued after this lock is released sets the flag again.
        self.shared.pending.store(false, Ordering::SeqCst);
        let room = KEPT_BLOCKS
            .saturating_sub(queue.spare.len())
            .min(inbox.blocks.len());
        queue.spare.extend(inbox.blocks.drain(..room));
        inbox.blocks.clear();
        mem::swap(&mut queue.items, &mut inbox.items);
        mem::swap(&mut queue.blocks, &mut inbox.blocks);
        (queue.messages, queue.bytes) = (0, 0);
        !inbox.items.is_empty() || !inbox.blocks.is_empty()
    }

    /// Announces a wait: from now on senders wake. Returns `false` if something waits already, so that the
    /// worker must not sleep.
    pub fn prepare_sleep(&self) -> bool {
        self.shared.sleeping.swap(true, Ordering::SeqCst);
        if self.shared.pending.load(Ordering::SeqCst) {
            self.shared.sleeping.swap(false, Ordering::SeqCst);
            return false;
        }
        true
    }

    /// Ends a wait: from now on senders need not wake.
    pub fn awake(&self) {
        self.shared.sleeping.swap(false, Ordering::SeqCst);
    }
}

impl Drop for MailboxReceiver {
    fn drop(&mut self) {
        let mut queue = self.shared.queue.lock();
        *queue = Queue {
            closed: true,
            ..Queue::default()
        };
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::epoll::{Epoll, EventList, Interest};
    use sip_core::id::ListenerId;
    use sip_core::transport::Transport;

    fn flow(port: u16) -> Flow {
        let remote = ([127, 0, 0, 1], port).into();
        Flow {
            transport: Transport::Udp,
            listener: ListenerId(0),
            remote,
            conn: None,
            proof: sip_core::transport::Proof::None,
        }
    }

    fn result(slot: u32) -> Item {
        Item::Result {
            id: QueryId { slot, generation: 1 },
            result: QueryResult::Saved(Ok(())),
        }
    }

    fn small() -> Settings {
        Settings {
            mailbox_messages: 4,
            mailbox_bytes: 100,
            mailbox_items: 2,
            ..Settings::default()
        }
    }

    #[test]
    fn a_block_is_taken_whole_or_not_at_all() {
        let (sender, receiver) = mailbox(&small()).unwrap();
        let mut block = Block::default();
        for port in 0..3 {
            block.push(Task::Handle, flow(port), &[port as u8; 10]);
        }
        assert_eq!(sender.post_block(&mut block), Ok(()));
        assert!(block.is_empty());
        block.push(Task::Handle, flow(7), b"x");
        block.push(Task::Handle, flow(8), b"y");
        assert_eq!(sender.post_block(&mut block), Err(Refused), "a fifth message");
        assert_eq!(block.len(), 2);
        let mut big = Block::default();
        big.push(Task::Handle, flow(9), &[0; 71]);
        assert_eq!(sender.post_block(&mut big), Err(Refused), "a byte too many");
        let mut inbox = Inbox::default();
        assert!(receiver.take(&mut inbox));
        let taken: Vec<_> = inbox
            .blocks
            .iter()
            .flat_map(Block::iter)
            .map(|(e, b)| (e.flow.remote.port(), b.len()))
            .collect();
        assert_eq!(taken, [(0, 10), (1, 10), (2, 10)]);
        assert_eq!(sender.post_block(&mut block), Ok(()), "room again");
    }

    #[test]
    fn blocks_go_round() {
        let (sender, receiver) = mailbox(&Settings::default()).unwrap();
        let (mut inbox, mut block) = (Inbox::default(), Block::default());
        let mut seen = std::collections::BTreeSet::new();
        for round in 0..20 {
            block.push(Task::Handle, flow(1), &[0; 1000]);
            if round >= 4 {
                assert!(seen.contains(&block.bytes.as_ptr()), "memory of an earlier round");
            }
            seen.insert(block.bytes.as_ptr());
            sender.post_block(&mut block).unwrap();
            assert!(receiver.take(&mut inbox));
        }
    }

    #[test]
    fn items_that_do_not_fit_stay_with_the_sender() {
        let (sender, receiver) = mailbox(&small()).unwrap();
        let mut items: Vec<_> = (0..3).map(result).collect();
        assert_eq!(sender.post_all(&mut items), Err(Refused));
        assert!(matches!(
            items[..],
            [Item::Result {
                id: QueryId { slot: 2, .. },
                ..
            }]
        ));
        assert!(sender.post(Item::Control(Control::Stop)).is_err());
        let mut inbox = Inbox::default();
        assert!(receiver.take(&mut inbox));
        assert_eq!(inbox.items.len(), 2);
        assert!(!receiver.take(&mut inbox));
        assert!(inbox.items.is_empty());
    }

    #[test]
    fn a_mailbox_without_its_worker_refuses() {
        let (sender, receiver) = mailbox(&small()).unwrap();
        sender.post(result(1)).unwrap();
        drop(receiver);
        assert!(sender.post(result(1)).is_err());
        let mut block = Block::default();
        block.push(Task::Handle, flow(1), b"x");
        assert_eq!(sender.post_block(&mut block), Err(Refused));
    }

    /// The receiver sleeps without end whenever it may: a lost wake-up would hang this test.
    #[test]
    fn no_wake_up_is_lost() {
        const SENDERS: u32 = 3;
        const EACH: u32 = 3_000;
        let (sender, receiver) = mailbox(&Settings::default()).unwrap();
        let threads: Vec<_> = (0..SENDERS)
            .map(|number| {
                let sender = sender.clone();
                std::thread::spawn(move || {
                    let mut block = Block::default();
                    for count in 0..EACH {
                        if count % 3 == 0 {
                            while sender.post(result(number)).is_err() {
                                std::thread::yield_now();
                            }
                            continue;
                        }
                        block.push(Task::Handle, flow(number as u16), &count.to_ne_bytes());
                        while sender.post_block(&mut block).is_err() {
                            std::thread::yield_now();
                        }
                    }
                })
            })
            .collect();
        let epoll = Epoll::new().unwrap();
        epoll.add(receiver.waker(), 0, Interest::Read).unwrap();
        let (mut events, mut inbox) = (EventList::new(4), Inbox::default());
        let mut got = 0;
        let mut last = [None; SENDERS as usize];
        while got < SENDERS * EACH {
            let timeout = if receiver.prepare_sleep() { None } else { Some(0) };
            epoll.wait(&mut events, timeout).unwrap();
            receiver.awake();
            if !events.is_empty() {
                receiver.waker().reset();
            }
            receiver.take(&mut inbox);
            got += inbox.items.len() as u32;
            for (entry, bytes) in inbox.blocks.iter().flat_map(Block::iter) {
                let count = Some(u32::from_ne_bytes(bytes.try_into().unwrap()));
                let last = &mut last[usize::from(entry.flow.remote.port())];
                assert!(*last < count, "each sender's messages keep their order");
                *last = count;
                got += 1;
            }
        }
        for thread in threads {
            thread.join().unwrap();
        }
    }
}

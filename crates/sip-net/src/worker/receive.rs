//! Receiving: datagrams, ICMP errors, connections, the mailbox.

use std::mem;

use sip_core::activity::{Activity, Component};
use sip_core::endpoint::Handled;
use sip_core::id::WorkerId;
use sip_core::overload::{Queue, is_cancel};
use sip_core::time::{Millis, Now};
use sip_core::transport::{Flow, Proof, Transport};

use super::core::{Core, EventSink, QuerySink};
use super::new_work::NewWork;
use super::{Phase, Worker, token};
use crate::counters::NetCounters;
use crate::epoll::{Interest, Readiness};
use crate::hub::Reach;
use crate::mailbox::{Block, Control, Item, Task};
use crate::tcp::{Arrival, Outgoing, Streams, Verdict};

/// ICMP errors taken from one socket in one turn; the rest wait in the kernel.
const ICMP_PER_TURN: usize = 64;

/// Bytes of undeliverable messages at which these are returned to their origins before further connections
/// end in the same turn. Kept beside the queues that they come from, they would take as much memory again.
const LOST_BYTES: usize = 1 << 20;

/// Pause of accepting after the kernel could not give a connection, because it is short of memory.
const ACCEPT_PAUSE: Millis = Millis(100);

impl<C: Core, Q: QuerySink, E: EventSink> Worker<C, Q, E> {
    /// Handles all events of the wait.
    pub(super) fn receive_ready(&mut self, now: Now) {
        let taken_before = self.counters.stream_received;
        let mut saw_udp = false;
        let (count, first) = (self.ready.len(), self.first_ready.take().unwrap_or(0));
        for step in 0..count {
            let index = (first + step) % count;
            let Some(mut event) = self.ready.get(index) else {
                break;
            };
            let number = (event.token & !token::KIND) as usize;
            match event.token & token::KIND {
                token::WAKER => {
                    let before = self.activity.enter(Component::HandOver);
                    self.mailbox.waker().reset();
                    self.activity.enter(before);
                }
                token::UDP => {
                    saw_udp = true;
                    self.udp_ready(number, event, now);
                }
                token::CALLS => self.new_work_ready(number, Queue::Calls, event, now),
                token::REQUESTS => self.new_work_ready(number, Queue::Requests, event, now),
                token::LISTENER => self.accept(number, now),
                _ => {
                    let taken = self.counters.stream_received - taken_before;
                    if taken >= self.settings.stream_messages_per_turn as u64 {
                        // The connection is still ready at the next turn, which begins with the first that
                        // had to wait: the kernel reports them in the same order each time.
                        if self.first_ready.is_none() {
                            self.first_ready = Some(index);
                            self.counters.stream_reads_put_off += 1;
                        }
                        if !event.writable {
                            continue;
                        }
                        (event.readable, event.error) = (false, false);
                    }
                    self.stream_ready(event, now);
                    if self.streams.lost_bytes() > LOST_BYTES {
                        self.return_lost(now);
                    }
                }
            }
        }
        if self.ready.is_full() {
            // Busy connections must not hide the datagram sockets.
            let hidden = if saw_udp { 0 } else { self.udp.len() };
            for number in 0..hidden {
                self.receive_datagrams(number, now);
            }
            let new_work = self.udp.iter_mut().filter_map(|udp| udp.new_work.as_mut());
            new_work.for_each(NewWork::make_ready);
        }
    }

    /// Notes that new work waits. Errors come by each socket of an address.
    fn new_work_ready(&mut self, number: usize, queue: Queue, event: Readiness, now: Now) {
        if event.error {
            self.receive_icmp(number, queue, now);
        }
        if event.readable
            && let Some(new_work) = self.udp.get_mut(number).and_then(|udp| udp.new_work.as_mut())
            && let Some(of_queue) = new_work.queue(queue)
        {
            of_queue.note_ready();
        }
    }

    /// Accepts connections. A listener that cannot accept stays ready all the same, so it is unregistered for
    /// a moment.
    fn accept(&mut self, number: usize, now: Now) {
        let before = self.activity.enter(Component::Connections);
        let accepted = self
            .streams
            .accept(number, now.instant.as_millis(), &mut self.counters);
        self.activity.enter(before);
        if accepted.is_err()
            && let Some(listener) = self.streams.listeners().get(number)
            && self.epoll.remove(listener).is_ok()
        {
            self.counters.tcp_accept_pauses += 1;
            let at = now.instant + ACCEPT_PAUSE;
            self.accept_again_at = Some(self.accept_again_at.map_or(at, |earlier| earlier.min(at)));
        }
    }

    /// Registers the listeners again after a pause.
    pub(super) fn accept_again(&mut self) {
        for (listener, index) in self.streams.listeners().iter().zip(0u64..) {
            // Listeners that were not paused are registered already (EEXIST).
            let _ = self.epoll.add(listener, token::LISTENER | index, Interest::Read);
        }
        self.accept_again_at = None;
    }

    fn udp_ready(&mut self, number: usize, event: Readiness, now: Now) {
        if event.error {
            self.receive_icmp(number, Queue::Established, now);
        }
        if event.writable {
            self.flush_backlog(number, now);
        }
        if event.readable {
            self.receive_datagrams(number, now);
        }
    }

    /// Receives one batch from the first socket, and handles it.
    fn receive_datagrams(&mut self, number: usize, now: Now) {
        self.receive_batch(number, Queue::Established, usize::MAX);
        let has_more = self.received.is_full();
        if let Some(udp) = self.udp.get_mut(number) {
            udp.has_more = has_more;
        }
        self.handle_batch(number, Queue::Established, now);
    }

    /// Receives one batch from one socket, at most `most` datagrams. Returns how many came; `None` if the socket has an
    /// error.
    pub(super) fn receive_batch(&mut self, number: usize, queue: Queue, most: usize) -> Option<usize> {
        let socket = self.udp.get(number)?.of(queue)?;
        let before = self.activity.enter(Component::Receive);
        let received = self.received.receive_at_most(socket, most);
        self.activity.enter(before);
        if received.is_err() {
            self.counters.udp_receive_errors += 1;
        }
        self.counters.udp_received += self.received.len() as u64;
        received.ok()
    }

    /// Handles the datagrams of the last batch.
    pub(super) fn handle_batch(&mut self, number: usize, queue: Queue, now: Now) {
        let Some(udp) = self.udp.get_mut(number) else {
            return;
        };
        let listener = udp.listener;
        let mut new_work = udp.new_work.as_mut().filter(|_| queue == Queue::Established);
        for index in 0..self.received.len() {
            let Some(datagram) = self.received.datagram(index) else {
                continue;
            };
            self.counters.udp_received_bytes += datagram.bytes.len() as u64;
            let flow = Flow {
                transport: Transport::Udp,
                listener,
                remote: datagram.source,
                conn: None,
                proof: Proof::None,
            };
            if !self.core.admit(now, &flow) {
                continue;
            }
            let (core, strays) = (&mut self.core, &mut self.strays);
            if try_hold(core, new_work.as_deref_mut(), (now, flow), false, datagram.bytes) {
                self.counters.udp_cancels_held += 1;
                continue;
            }
            let handled = handle_datagram(core, strays, &self.activity, (now, flow), datagram.bytes);
            dispatch(
                handled,
                &self.activity,
                &mut self.outboxes,
                &mut self.counters,
                flow,
                datagram.bytes,
            );
        }
    }

    /// Handles a datagram that is admitted.
    pub(super) fn handle_datagram(&mut self, now: Now, flow: Flow, bytes: &[u8]) {
        let (core, strays) = (&mut self.core, &mut self.strays);
        let handled = handle_datagram(core, strays, &self.activity, (now, flow), bytes);
        let (activity, outboxes) = (&self.activity, &mut self.outboxes);
        dispatch(handled, activity, outboxes, &mut self.counters, flow, bytes);
    }

    /// Receives ICMP errors. The kernel chooses the socket of an error by the addresses, not by the socket
    /// that sent. So every worker gets the errors, and the worker that holds the transaction recognizes it.
    fn receive_icmp(&mut self, number: usize, queue: Queue, now: Now) {
        let Some(udp) = self.udp.get(number) else { return };
        let Some(socket) = udp.of(queue) else { return };
        let (core, outboxes, own) = (&mut self.core, &mut self.outboxes, self.id);
        let before = self.activity.enter(Component::Receive);
        let taken = self.icmp.drain(socket, ICMP_PER_TURN, |remote, bytes| {
            let to = Flow {
                transport: Transport::Udp,
                listener: udp.listener,
                remote,
                conn: None,
                proof: Proof::None,
            };
            core.handle_undelivered(now, to, bytes);
            for (outbox, worker) in outboxes.iter_mut().zip(0..) {
                if WorkerId(worker) != own {
                    outbox.push(Task::Undelivered, to, bytes);
                }
            }
        });
        self.activity.enter(before);
        match taken {
            Ok(taken) => self.counters.icmp_errors += taken as u64,
            Err(_) => self.counters.udp_receive_errors += 1,
        }
    }

    fn stream_ready(&mut self, event: Readiness, now: Now) {
        self.with_streams(now, |streams, counters, deliver| {
            streams.ready(event, now.instant.as_millis(), counters, deliver);
        });
    }

    /// Continues handshakes that have waited since earlier turns.
    pub(super) fn begin_streams(&mut self, now: Now) {
        self.with_streams(now, |streams, counters, deliver| {
            streams.begin_turn(now.instant.as_millis(), counters, deliver);
        });
    }

    fn with_streams(
        &mut self,
        now: Now,
        act: impl FnOnce(&mut Streams, &mut NetCounters, &mut dyn FnMut(Flow, Arrival<'_>) -> Verdict),
    ) {
        let (core, outboxes) = (&mut self.core, &mut self.outboxes);
        let activity = &self.activity;
        let mut handed_over = NetCounters::default();
        act(
            &mut self.streams,
            &mut self.counters,
            &mut |flow, arrival| match arrival {
                Arrival::Message(_) if !core.admit(now, &flow) => Verdict::Keep,
                Arrival::Message(bytes) => {
                    let handled = core.handle_message(now, flow, bytes);
                    dispatch(handled, activity, outboxes, &mut handed_over, flow, bytes)
                }
                Arrival::Fault(error) => {
                    if core.admit(now, &flow)
                        && let Some((worker, head)) = core.handle_framing_error(now, flow, error)
                    {
                        let handled = Handled::HandOver(worker);
                        let _ = dispatch(handled, activity, outboxes, &mut handed_over, flow, &head);
                    }
                    Verdict::Close
                }
            },
        );
        self.counters.handed_over += handed_over.handed_over;
        self.counters.hand_over_drops += handed_over.hand_over_drops;
    }

    /// Takes everything that other threads have posted. Returns how many messages were handed over.
    pub(super) fn receive_mail(&mut self, now: Now) -> usize {
        let before = self.activity.enter(Component::HandOver);
        let mut inbox = mem::take(&mut self.inbox);
        let mut messages = 0;
        if self.mailbox.take(&mut inbox) {
            for block in &inbox.blocks {
                messages += self.receive_block(block, now);
            }
            for item in inbox.items.drain(..) {
                match item {
                    Item::Result { id, result } => self.core.handle_result(now, id, result),
                    Item::Control(control) => self.obey(control, now),
                }
            }
        }
        self.inbox = inbox;
        self.activity.enter(before);
        messages
    }

    /// Does what a block says. Returns how many messages were in it.
    fn receive_block(&mut self, block: &Block, now: Now) -> usize {
        let mut messages = 0;
        for (entry, bytes) in block.iter() {
            match &entry.task {
                Task::Handle => {
                    messages += 1;
                    let number = self.udp_of.get(usize::from(entry.flow.listener.0)).copied();
                    let udp = number.flatten().and_then(|number| self.udp.get_mut(number));
                    let new_work = udp.and_then(|udp| udp.new_work.as_mut());
                    if try_hold(&mut self.core, new_work, (now, entry.flow), true, bytes) {
                        self.counters.udp_cancels_held += 1;
                    } else {
                        self.handle_handed_over(now, entry.flow, bytes);
                    }
                }
                Task::Send { origin, way } => {
                    let outgoing = Outgoing {
                        to: entry.flow,
                        origin: *origin,
                        way: way.clone(),
                        message: bytes,
                    };
                    self.send_on_stream(outgoing, Reach::Own, now);
                }
                Task::Undelivered => self.core.handle_undelivered(now, entry.flow, bytes),
                Task::Closed => self.closed(&entry.flow, now),
                Task::HopFailed => self.core.handle_failed_hop(entry.flow.remote),
            }
        }
        messages
    }

    /// Handles a message that another worker received and admitted.
    pub(super) fn handle_handed_over(&mut self, now: Now, flow: Flow, bytes: &[u8]) {
        match self.core.handle_message(now, flow, bytes) {
            Handled::Here => {}
            // Its connection is not ours to close.
            Handled::Close => {}
            // If workers disagree on the owner of a call, they must not pass the message to and fro.
            Handled::HandOver(_) => self.counters.hand_over_drops += 1,
        }
    }

    fn obey(&mut self, control: Control, now: Now) {
        match control {
            Control::Reconfigure(config) => {
                self.streams.reconfigure(&config);
                self.core.reconfigure(&config);
            }
            Control::SourceLists(standing) => {
                self.streams.set_source_lists(&standing, &mut self.counters);
                self.core.set_source_lists(standing);
            }
            Control::EndFlow(conn) => {
                if !self.core.is_registered_over(now, conn) {
                    self.streams.end_unregistered(conn, &mut self.counters);
                }
            }
            Control::Drain { deadline_ms } => self.begin_drain(now, deadline_ms),
            Control::Stop => self.phase = Phase::Stopping,
            Control::Publish => self.publish_at = now.instant,
            Control::SplitCpu(on) => {
                self.meter.switch(on);
                self.publish_at = now.instant;
            }
        }
    }
}

/// The recent share of received datagrams that belong to other workers.
///
/// The share is nearly zero if the kernel steers by call ([`crate::udp`]). Looking for the owner before
/// reading each message would then be wasted. Otherwise the share is half or more.
#[derive(Debug, Default)]
pub(super) struct MisroutedRate {
    /// The share in units of 1/65,536; the last 64 or so datagrams count.
    share: u32,
}

impl MisroutedRate {
    const ALL: u32 = 1 << 16;

    /// Whether looking for the owner first is worth its cost: about a tenth of the reading that it saves.
    fn is_high(&self) -> bool {
        self.share > Self::ALL / 8
    }

    fn note(&mut self, is_stray: bool) {
        let now = if is_stray { Self::ALL } else { 0 };
        self.share = self.share - self.share / 64 + now / 64;
    }
}

/// Holds a CANCEL that may have overtaken its INVITE. `false`: the message is to be handled now.
fn try_hold(
    core: &mut impl Core,
    new_work: Option<&mut NewWork>,
    (now, flow): (Now, Flow),
    is_handed_over: bool,
    bytes: &[u8],
) -> bool {
    is_cancel(bytes)
        && new_work.is_some_and(|new_work| {
            !core.knows_invite_of(flow, bytes) && new_work.try_hold_cancel(now, flow, is_handed_over, bytes)
        })
}

/// Gives a datagram to the core, or finds the worker that it belongs to.
fn handle_datagram(
    core: &mut impl Core,
    strays: &mut MisroutedRate,
    activity: &Activity,
    (now, flow): (Now, Flow),
    bytes: &[u8],
) -> Handled {
    let owner = if strays.is_high() {
        let before = activity.enter(Component::HandOver);
        let owner = core.worker_of(bytes);
        activity.enter(before);
        owner
    } else {
        None
    };
    let handled = match owner {
        Some(owner) => Handled::HandOver(owner),
        None => core.handle_message(now, flow, bytes),
    };
    strays.note(matches!(handled, Handled::HandOver(_)));
    handled
}

/// Acts on the core's verdict about a message.
fn dispatch(
    handled: Handled,
    activity: &Activity,
    outboxes: &mut [Block],
    counters: &mut NetCounters,
    flow: Flow,
    bytes: &[u8],
) -> Verdict {
    match handled {
        Handled::Here => Verdict::Keep,
        Handled::Close => Verdict::Close,
        Handled::HandOver(worker) => {
            let before = activity.enter(Component::HandOver);
            if let Some(outbox) = outboxes.get_mut(usize::from(worker.0)) {
                outbox.push(Task::Handle, flow, bytes);
                counters.handed_over += 1;
            } else {
                counters.hand_over_drops += 1;
            }
            activity.enter(before);
            Verdict::Keep
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strays_are_looked_for_while_there_are_many() {
        let mut strays = MisroutedRate::default();
        for _ in 0..10_000 {
            strays.note(true);
        }
        assert!(strays.is_high() && strays.share <= MisroutedRate::ALL);
        for n in 0..10_000 {
            strays.note(n % 2 == 0);
        }
        assert!(strays.is_high());
        for n in 0..10_000 {
            strays.note(n % 50 == 0);
        }
        assert!(!strays.is_high());
    }
}

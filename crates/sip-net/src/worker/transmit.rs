//! Sending: datagrams, messages on connections, messages for other workers.

use std::mem;

use sip_core::activity::Component;
use sip_core::event::Event;
use sip_core::id::WorkerId;
use sip_core::time::Now;
use sip_core::transport::{Flow, Proof, Transport};

use super::core::{Core, EventSink, QuerySink};
use super::{Worker, is_stream, token};
use crate::epoll::Interest;
use crate::hub::Reach;
use crate::mailbox::{Block, ConnectionPolicy, Task};
use crate::tcp::Outgoing;
use crate::udp::SendReport;

/// Rounds of sending in one turn. More than one, because a message that cannot be sent makes the core send
/// others.
const ROUNDS: usize = 4;

/// Microseconds after which the failure of a next hop is announced again. A return in between may have no event if the
/// next hop fails and returns once more.
const ANNOUNCE_AGAIN_US: u64 = 1_000_000;

/// Most next hops whose failure is announced within that time. The return of a further one is an event only of the
/// worker that met the failure.
const MOST_FAILED_HOPS: usize = 64;

impl<C: Core, Q: QuerySink, E: EventSink> Worker<C, Q, E> {
    /// Sends all messages of the core, and returns those that could not be sent.
    pub(super) fn transmit(&mut self, now: Now) {
        let now_ms = now.instant.as_millis();
        for _ in 0..ROUNDS {
            let mut out = mem::take(&mut self.out);
            out.clear();
            let sent = self.core.poll_transmit(&mut out);
            for (item, index) in out.items().iter().zip(0u32..) {
                let udp = self
                    .udp_of
                    .get(usize::from(item.to.listener.0))
                    .copied()
                    .flatten();
                if is_stream(item.to.transport) {
                    let outgoing = Outgoing {
                        to: item.to,
                        origin: self.id,
                        way: ConnectionPolicy::of(item),
                        message: out.message(item),
                    };
                    self.send_on_stream(outgoing, Reach::AllWorkers, now);
                } else if let Some(udp) = udp.and_then(|number| self.udp.get_mut(number)) {
                    udp.outgoing.push(index);
                } else {
                    self.counters.udp_send_errors += 1;
                    self.failed.push(index);
                }
            }
            self.send_datagrams(&out);
            let mut failed = mem::take(&mut self.failed);
            for item in failed
                .drain(..)
                .filter_map(|index| out.items().get(index as usize))
            {
                self.core.handle_undelivered(now, item.to, out.message(item));
            }
            self.failed = failed;
            self.out = out;
            self.streams.flush(now_ms, &mut self.counters);
            self.return_lost(now);
            if !sent {
                return;
            }
        }
        self.again = true;
    }

    fn send_datagrams(&mut self, out: &sip_core::transport::TransmitBatch) {
        let items = out.items();
        for (udp, number) in self.udp.iter_mut().zip(0u64..) {
            if udp.outgoing.is_empty() {
                continue;
            }
            let (outgoing, failed) = (&udp.outgoing, &mut self.failed);
            let before = self.activity.enter(Component::Send);
            let report = self.sending.send(
                &udp.socket,
                &mut udp.backlog,
                outgoing.len(),
                |position| {
                    let item = outgoing
                        .get(position)
                        .and_then(|index| items.get(*index as usize));
                    item.map_or((crate::udp::NOWHERE, &[][..]), |item| {
                        (item.to.remote, out.message(item))
                    })
                },
                |position| failed.extend(outgoing.get(position)),
            );
            self.activity.enter(before);
            udp.outgoing.clear();
            count(&mut self.counters, report);
            if !udp.backlog.is_empty() && !udp.waits_for_room {
                let token = token::UDP | number;
                udp.waits_for_room = self.epoll.modify(&udp.socket, token, Interest::ReadWrite).is_ok();
            }
        }
    }

    /// Sends waiting datagrams, after the socket has room again.
    pub(super) fn flush_backlog(&mut self, number: usize, now: Now) {
        let Some(udp) = self.udp.get_mut(number) else {
            return;
        };
        let (core, listener) = (&mut self.core, udp.listener);
        let before = self.activity.enter(Component::Send);
        let report = self
            .sending
            .flush(&udp.socket, &mut udp.backlog, |remote, bytes| {
                core.handle_undelivered(
                    now,
                    Flow {
                        transport: Transport::Udp,
                        listener,
                        remote,
                        conn: None,
                        proof: Proof::None,
                    },
                    bytes,
                );
            });
        self.activity.enter(before);
        count(&mut self.counters, report);
        if udp.backlog.is_empty() && udp.waits_for_room {
            let token = token::UDP | number as u64;
            udp.waits_for_room = self.epoll.modify(&udp.socket, token, Interest::Read).is_err();
        }
    }

    /// Sends a message on a connection of ours, or gives it to the worker that owns the connection. If the
    /// connection is closed, or none is named, another to the same address is used, else a new one is opened
    /// (RFC 3261 §18.1.1, §18.2.2). A message that is pinned to its connection goes nowhere else.
    pub(super) fn send_on_stream(&mut self, mut outgoing: Outgoing<'_>, reach: Reach, now: Now) {
        let owner = match outgoing.to.conn {
            Some(id) if id.worker != self.id && id.worker.0 < self.hub.workers() => id.worker,
            Some(_) if outgoing.way.pinned || self.streams.has(&outgoing.to) => self.id,
            Some(_) | None => {
                outgoing.to.conn = None;
                let pinned = outgoing.way.pinned;
                if !pinned && self.streams.has_opened(&outgoing) {
                    self.id
                } else {
                    let (owner, conn) = self.hub.route(&outgoing.to, self.id, reach);
                    outgoing.to.conn = conn;
                    outgoing.way.found = conn.is_some();
                    // No connection is opened for a pinned message, so no other worker need try.
                    if pinned && conn.is_none() { self.id } else { owner }
                }
            }
        };
        if owner == self.id {
            self.streams
                .send(&outgoing, now.instant.as_millis(), &mut self.counters);
        } else if let Some(outbox) = self.outboxes.get_mut(usize::from(owner.0)) {
            let Outgoing {
                to,
                origin,
                way,
                message,
            } = outgoing;
            outbox.push(Task::Send { origin, way }, to, message);
            self.counters.forwarded_sends += 1;
        }
    }

    /// Returns undeliverable messages to the workers that made them.
    pub(super) fn return_lost(&mut self, now: Now) {
        let mut lost = mem::take(&mut self.lost);
        if self.streams.take_lost(&mut lost) {
            self.return_block(&lost, now);
            self.report_closed(&lost, now);
        }
        lost.clear();
        self.lost = lost;
    }

    /// Returns the undelivered messages of a block to their origins.
    fn return_block(&mut self, block: &Block, now: Now) {
        for (entry, bytes) in block.iter() {
            match &entry.task {
                Task::Send { origin, .. } if *origin == self.id => {
                    self.core.handle_undelivered(now, entry.flow, bytes);
                    self.again = true;
                }
                Task::Send { origin, .. } => {
                    if let Some(outbox) = self.outboxes.get_mut(usize::from(origin.0)) {
                        outbox.push(Task::Undelivered, entry.flow, bytes);
                    }
                }
                Task::Handle | Task::Undelivered | Task::Closed | Task::HopFailed => {}
            }
        }
    }

    /// Reports the closed connections of this block to all workers, since any of them may wait for a response
    /// on one.
    fn report_closed(&mut self, block: &Block, now: Now) {
        for (entry, _) in block.iter().filter(|(entry, _)| entry.task == Task::Closed) {
            self.closed(&entry.flow, now);
            self.again = true;
            self.tell_others(&Task::Closed, entry.flow);
        }
    }

    /// Announces failed next hops to the other workers: the first response after the failure may reach any
    /// worker. Registered contacts are left out: their return is no event. A next hop is announced once a
    /// second at most, since every call to it fails.
    pub(super) fn announce_failed_hops(&mut self, now: Now) {
        let now = now.instant;
        self.failed_hops
            .retain(|(_, at)| now.micros_since(*at) < ANNOUNCE_AGAIN_US);
        for at in 0..self.events.len() {
            if let Some(Event::NextHopFailed {
                destination,
                is_contact: false,
                ..
            }) = self.events.get(at)
                && self.failed_hops.iter().all(|(known, _)| known != destination)
                && self.failed_hops.len() < MOST_FAILED_HOPS
            {
                let destination = *destination;
                self.failed_hops.push((destination, now));
                self.tell_others(&Task::HopFailed, Flow::udp(destination));
            }
        }
    }

    /// Puts a task without a message into the mail for each other worker.
    fn tell_others(&mut self, task: &Task, flow: Flow) {
        for (outbox, worker) in self.outboxes.iter_mut().zip(0..) {
            if WorkerId(worker) != self.id {
                outbox.push(task.clone(), flow, &[]);
            }
        }
    }

    pub(super) fn closed(&mut self, flow: &Flow, now: Now) {
        if let Some(conn) = flow.conn {
            self.core.handle_flow_closed(now, conn);
        }
    }

    /// Posts this turn's messages for other workers. Messages that do not fit are dropped and counted; those
    /// to be sent are reported to the core as undelivered.
    pub(super) fn post_outboxes(&mut self, now: Now) {
        let before = self.activity.enter(Component::HandOver);
        let mut outboxes = mem::take(&mut self.outboxes);
        let mut refused = Vec::new();
        for (outbox, worker) in outboxes.iter_mut().zip(0..) {
            if outbox.is_empty() {
                continue;
            }
            let mailbox = self.hub.mailbox(WorkerId(worker));
            if mailbox.is_none_or(|mailbox| mailbox.post_block(outbox).is_err()) {
                self.counters.hand_over_drops += outbox.len() as u64;
                refused.push(mem::take(outbox));
            }
        }
        self.outboxes = outboxes;
        for block in refused {
            self.return_block(&block, now);
        }
        self.activity.enter(before);
    }
}

fn count(counters: &mut crate::counters::NetCounters, report: SendReport) {
    counters.udp_sent += report.sent;
    counters.udp_sent_bytes += report.bytes;
    counters.udp_send_errors += report.errors;
    counters.udp_delayed += report.delayed;
    counters.udp_send_drops += report.dropped;
}

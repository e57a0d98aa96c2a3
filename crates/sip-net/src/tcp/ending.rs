//! Deadlines, and the end of connections.

use std::mem;

use sip_core::activity::Component;
use sip_core::id::{ConnId, WorkerId};
use sip_core::transport::Flow;

use super::conn::{Conn, Overdue, State};
use super::event::CloseReason;
use super::layer::Farewell;
use super::peers::is_response;
use super::streams::{Streams, exchanged};
use super::wheel::NEVER;
use crate::accepted::Accepted;
use crate::counters::NetCounters;
use crate::mailbox::{Block, Task};

/// Overdue connections handled in one turn. Ending one costs as much as a few messages.
const ENDED_PER_TURN: usize = 64;

impl Streams {
    /// The time at which [`Streams::advance`] is due next, milliseconds.
    pub fn next_ms(&self) -> Option<u64> {
        if self.due.is_empty() {
            self.wheel.next_ms()
        } else {
            Some(0)
        }
    }

    /// Ends the overdue connections, a bounded number in each turn.
    pub fn advance(&mut self, now_ms: u64, counters: &mut NetCounters) {
        let mut due = mem::take(&mut self.due);
        self.wheel.advance(now_ms, &mut due);
        let now = due.len().min(ENDED_PER_TURN);
        for (id, tick) in due.drain(..now) {
            let Some(conn) = self.table.get_mut(id).filter(|conn| conn.placed == tick) else {
                continue;
            };
            conn.placed = NEVER;
            let (deadline, overdue) = conn.deadline(&self.settings);
            if deadline > now_ms {
                conn.placed = self.wheel.place(id, deadline, NEVER);
                continue;
            }
            let why = match overdue {
                Overdue::Connect => CloseReason::OpenFailed,
                Overdue::Handshake => CloseReason::Handshake,
                Overdue::Silent => CloseReason::Silent,
                Overdue::Ping => {
                    self.ping(id, now_ms);
                    continue;
                }
                Overdue::Unheard => {
                    self.forget_unheard(id);
                    continue;
                }
                Overdue::Write => CloseReason::Slow,
                Overdue::Message => CloseReason::Incomplete,
                Overdue::Idle => CloseReason::Idle,
                Overdue::Close => {
                    // The reason was counted when the end began.
                    self.remove(id, counters);
                    continue;
                }
            };
            if matches!(why, CloseReason::Idle | CloseReason::Silent) {
                // A TLS session that ends without `close_notify` may not be resumed.
                self.finish(id, (why, None), now_ms, counters);
            } else {
                self.close(id, why, counters);
            }
        }
        self.due = due;
    }

    /// Ends all open connections in order, so that peers connect elsewhere at once and do not take them for
    /// cut. If a socket has no room now, its peer gets no notice.
    pub fn part(&mut self, now_ms: u64, counters: &mut NetCounters) {
        for id in self.table.keys() {
            if self
                .table
                .get_mut(id)
                .is_some_and(|conn| conn.state == State::Open)
            {
                self.finish(id, (CloseReason::Stopping, None), now_ms, counters);
            }
        }
        self.flush(now_ms, counters);
    }

    /// Sends a ping, and sets the deadline for its pong.
    fn ping(&mut self, id: ConnId, now_ms: u64) {
        let mut frame = Vec::new();
        if let Some(conn) = self.table.get_mut(id) {
            conn.ping(&mut frame, now_ms);
            self.queue_unmarked(id, &frame, now_ms);
        }
        if let Some(conn) = self.table.get_mut(id) {
            let (deadline, _) = conn.deadline(&self.settings);
            conn.placed = self.wheel.place(id, deadline, NEVER);
        }
    }

    /// Drops the copy of sent messages: the peer had the time of a handshake to refuse our certificate, and
    /// did not.
    fn forget_unheard(&mut self, id: ConnId) {
        if let Some(conn) = self.table.get_mut(id) {
            let _ = conn.take_unheard();
            let (deadline, _) = conn.deadline(&self.settings);
            conn.placed = self.wheel.place(id, deadline, NEVER);
            self.recount(id);
        }
    }

    /// Ends a connection once what is queued has been sent.
    pub(super) fn finish(
        &mut self,
        id: ConnId,
        (why, farewell): (CloseReason, Option<Farewell>),
        now_ms: u64,
        counters: &mut NetCounters,
    ) {
        if why == CloseReason::Tls {
            self.return_unheard(id, why, counters);
        } else {
            self.return_stuck(id, counters);
        }
        let Some(conn) = self.table.get_mut(id) else {
            return;
        };
        conn.begin_end(why, farewell, now_ms);
        // From now on only responses to requests from this connection may use it.
        match &conn.opened_to {
            Some(peer) => self.peers.remove(peer, id),
            None => forget(&self.accepted, conn, id),
        }
        let (deadline, _) = conn.deadline(&self.settings);
        conn.placed = self.wheel.place(id, deadline, conn.placed);
        count(why, counters);
        self.mark_dirty(id);
    }

    /// Ends a connection now. Messages that were not wholly sent are returned as lost.
    pub(super) fn close(&mut self, id: ConnId, why: CloseReason, counters: &mut NetCounters) {
        if matches!(why, CloseReason::Error | CloseReason::Peer) {
            // A reset may have overtaken the alert that refused our certificate.
            self.return_unheard(id, why, counters);
        }
        if let Some(state) = self.remove(id, counters)
            && !matches!(state, State::Flushing | State::Parting | State::Shut)
        {
            count(why, counters);
        }
    }

    pub(super) fn remove(&mut self, id: ConnId, counters: &mut NetCounters) -> Option<State> {
        self.return_unsent(id, counters);
        self.holders.note(&mut self.table, id, 0, false);
        let conn = self.table.remove(id)?;
        debug_assert!(
            self.table.len() > 0 || (self.unsent, self.holders.total()) == (0, 0),
            "nobody holds {} or {}",
            self.unsent,
            self.holders.total()
        );
        match &conn.opened_to {
            Some(peer) => self.peers.remove(peer, id),
            None => {
                forget(&self.accepted, &conn, id);
                self.accepted_count = self.accepted_count.saturating_sub(1);
            }
        }
        let is_per_call = conn.opened_to.as_ref().is_some_and(|peer| peer.call.is_some());
        if self.settings.connections_per_address > 0 && !is_per_call {
            self.per_address.remove(conn.remote.ip());
        }
        if conn.has_spoken {
            self.lost.push(Task::Closed, conn.flow(id), &[]);
        }
        let before = self.activity.enter(Component::Connections);
        let state = conn.state;
        // Dropping the socket closes it, and takes it out of epoll.
        drop(conn);
        self.activity.enter(before);
        Some(state)
    }

    /// Returns the messages that were not wholly written.
    fn return_unsent(&mut self, id: ConnId, counters: &mut NetCounters) {
        let Some(conn) = self.table.get_mut(id) else {
            return;
        };
        let Some(out) = conn.out.take() else {
            return;
        };
        self.unsent = exchanged(self.unsent, out.len(), 0);
        for (to, origin, message) in out.unsent() {
            counters.stream_undelivered += 1;
            self.lost.push(Task::lost(origin), to, message);
        }
        self.recycle(out);
    }

    /// Returns all undelivered messages. If the peer never sent anything, these include the written ones.
    fn return_unheard(&mut self, id: ConnId, why: CloseReason, counters: &mut NetCounters) {
        let Some(conn) = self.table.get_mut(id) else {
            return;
        };
        let Some(unheard) = conn.take_unheard() else {
            return self.return_stuck(id, counters);
        };
        let queued = conn.out.as_ref().map_or(0, |out| out.unsent().count());
        let written = unheard.unsent().count().saturating_sub(queued);
        // A peer that has read a response or an ACK has nothing to reply, and may close. If TLS fails, it has
        // read nothing.
        let has_read = conn.tls.is_none() || why == CloseReason::Peer;
        let is_last = |message: &[u8]| is_response(message) || message.starts_with(b"ACK ");
        for (to, origin, message) in unheard.unsent().take(written) {
            if !(has_read && is_last(message)) {
                counters.stream_undelivered += 1;
                self.lost.push(Task::lost(origin), to, message);
            }
        }
        self.return_unsent(id, counters);
        self.recount(id);
    }

    /// Returns the messages that will never leave, so that their senders need not wait for the end. Records
    /// under way still leave, unless the connection is lost before.
    fn return_stuck(&mut self, id: ConnId, counters: &mut NetCounters) {
        let Some(conn) = self.table.get_mut(id) else {
            return;
        };
        let Some((keep, out)) = conn.last_bytes().zip(conn.out.as_mut()) else {
            return;
        };
        let before = out.len();
        out.cut(keep, |to, origin, message| {
            counters.stream_undelivered += 1;
            self.lost.push(Task::lost(origin), to, message);
        });
        self.unsent = exchanged(self.unsent, before, out.len());
    }

    pub(super) fn lose(&mut self, to: Flow, origin: WorkerId, message: &[u8], counters: &mut NetCounters) {
        counters.stream_undelivered += 1;
        self.lost.push(Task::lost(origin), to, message);
    }

    /// Bytes of messages that could not be delivered and have not been taken.
    pub fn lost_bytes(&self) -> usize {
        self.lost.bytes()
    }

    /// Exchanges the undeliverable messages and the closed connections for `empty`, which is to be an empty
    /// block. Each is a [`Task::Send`] to return to its origin, or a [`Task::Closed`]. Returns whether there
    /// are any.
    pub fn take_lost(&mut self, empty: &mut Block) -> bool {
        mem::swap(&mut self.lost, empty);
        !empty.is_empty()
    }
}

/// Unlists a connection, so that messages to the peer no longer find it.
fn forget(accepted: &Accepted, conn: &Conn, id: ConnId) {
    for address in [Some(conn.remote), conn.alias.as_deref().copied()]
        .into_iter()
        .flatten()
    {
        accepted.remove(conn.transport, address, id);
    }
}

fn count(why: CloseReason, counters: &mut NetCounters) {
    let counter = match why {
        CloseReason::Peer => &mut counters.tcp_closed_by_peer,
        CloseReason::Error => &mut counters.tcp_closed_error,
        CloseReason::OpenFailed => &mut counters.tcp_open_failed,
        CloseReason::Framing => &mut counters.tcp_closed_framing,
        CloseReason::Core => &mut counters.tcp_closed_by_core,
        CloseReason::Idle => &mut counters.tcp_closed_idle,
        CloseReason::Incomplete => &mut counters.tcp_closed_incomplete,
        CloseReason::Slow => &mut counters.tcp_closed_slow,
        CloseReason::Memory => &mut counters.tcp_closed_memory,
        CloseReason::Banned => &mut counters.tcp_closed_banned,
        CloseReason::Unregistered => &mut counters.tcp_closed_unregistered,
        CloseReason::Handshake => &mut counters.tcp_closed_handshake,
        CloseReason::Silent => &mut counters.tcp_closed_silent,
        CloseReason::Tls => &mut counters.tcp_closed_tls,
        CloseReason::Upgrade => &mut counters.tcp_closed_upgrade,
        CloseReason::Stopping => &mut counters.tcp_closed_stopping,
    };
    *counter += 1;
}

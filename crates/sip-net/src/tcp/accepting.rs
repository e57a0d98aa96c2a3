//! Connections that peers open.

use std::io;
use std::mem;
use std::net::{IpAddr, TcpStream};
use std::sync::Arc;

use sip_core::admission::{Source, SourceLists};
use sip_core::id::ConnId;
use sip_core::transport::{Flow, Proof};

use super::conn::{NewConnection, State};
use super::event::CloseReason;
use super::layer::{Decoder, Secured};
use super::service::is_secure;
use super::streams::Streams;
use crate::counters::NetCounters;

/// Divisor for the places kept for connections that we open: one of this many is kept.
const KEPT_SHARE: usize = 16;

impl Streams {
    /// Accepts the waiting connections of listener `index` (of those given to [`Streams::new`]), up to the
    /// bound of one turn. An error concerns the listener: the next connection would meet it too.
    pub fn accept(&mut self, index: usize, now_ms: u64, counters: &mut NetCounters) -> io::Result<()> {
        for _ in 0..self.settings.accepts_per_turn {
            let Some(listener) = self.listeners.get(index) else {
                return Ok(());
            };
            match listener.accept() {
                Ok(Some((socket, remote))) => {
                    let flow = Flow {
                        transport: listener.transport(),
                        listener: listener.id(),
                        remote,
                        conn: None,
                        proof: Proof::None,
                    };
                    self.accepted(socket, &flow, now_ms, counters);
                }
                Ok(None) => return Ok(()),
                Err(error) => match error.raw_os_error() {
                    // Errors of the accepted connection (accept(2)); more connections may wait.
                    Some(
                        libc::ECONNABORTED
                        | libc::EINTR
                        | libc::ENETDOWN
                        | libc::EPROTO
                        | libc::ENOPROTOOPT
                        | libc::EHOSTDOWN
                        | libc::ENONET
                        | libc::EHOSTUNREACH
                        | libc::EOPNOTSUPP
                        | libc::ENETUNREACH,
                    ) => {}
                    Some(libc::EMFILE | libc::ENFILE) => {
                        counters.tcp_refused_files += 1;
                        self.reserve = None;
                        // Accepted and closed at once.
                        drop(listener.accept());
                        self.reserve = std::fs::File::open("/dev/null").ok();
                    }
                    _ => return Err(error),
                },
            }
        }
        Ok(())
    }

    /// Replaces the source lists, and closes the accepted connections of newly banned sources. Sources that
    /// were banned before have no connections left, so the search skips them.
    pub fn set_source_lists(&mut self, standing: &Arc<SourceLists>, counters: &mut NetCounters) {
        let before = mem::replace(&mut self.standing, Arc::clone(standing));
        let mut fresh = standing.banned.iter().filter(|s| !before.banned.contains(*s));
        let limit = self.settings.connections_per_address;
        // Most banned sources have no connection. If one has, a single pass over all connections finds the
        // others too.
        if !fresh.any(|source| self.per_address.may_have(source.address(), limit)) {
            return;
        }
        for id in self.table.keys() {
            let conn = self.table.get_mut(id).filter(|conn| !conn.is_outbound());
            if conn
                .map(|conn| conn.remote.ip())
                .is_some_and(|ip| self.is_banned(ip))
            {
                self.close(id, CloseReason::Banned, counters);
            }
        }
    }

    /// Closes an accepted connection whose registration was removed.
    pub fn end_unregistered(&mut self, id: ConnId, counters: &mut NetCounters) {
        if self.table.get_mut(id).is_some_and(|conn| !conn.is_outbound()) {
            self.close(id, CloseReason::Unregistered, counters);
        }
    }

    /// Whether `ip` is banned. An address of the trust domain never is, although the same update may list a
    /// learnt address in both `banned` and `peers`.
    fn is_banned(&self, ip: IpAddr) -> bool {
        let source = Source::of(ip);
        self.standing.banned.contains(source) && !self.standing.peers.contains(source)
    }

    /// Closes the listeners.
    pub fn stop_accepting(&mut self) {
        self.listeners.clear();
    }

    fn accepted(&mut self, socket: TcpStream, flow: &Flow, now_ms: u64, counters: &mut NetCounters) {
        if self.is_banned(flow.remote.ip()) {
            counters.tcp_refused_banned += 1;
            return;
        }
        if self.is_full_of_accepted() && (!self.make_room(counters) || self.is_full_of_accepted()) {
            counters.tcp_refused_limit += 1;
            return;
        }
        let limit = self.settings.connections_per_address;
        if !self.per_address.add(flow.remote.ip(), limit) {
            counters.tcp_refused_address += 1;
            return;
        }
        let tls = match is_secure(flow.transport) {
            false => None,
            true => {
                let service = self.services.get(usize::from(flow.listener.0));
                let session = service.and_then(|service| service.server.as_ref()?.accept().ok());
                let Some(session) = session else {
                    counters.tcp_closed_tls += 1;
                    self.per_address.remove(flow.remote.ip());
                    return;
                };
                Some(Box::new(Secured::new(session, Vec::new())))
            }
        };
        let beginning = NewConnection {
            socket,
            flow: *flow,
            decoder: Decoder::new(flow.transport, &self.limits),
            tls,
            opened_to: None,
            is_for_response: false,
        };
        let Some(id) = self.add(beginning, now_ms, counters) else {
            self.per_address.remove(flow.remote.ip());
            return;
        };
        counters.tcp_accepted += 1;
        self.accepted_count += 1;
        if self
            .table
            .get_mut(id)
            .is_some_and(|conn| conn.state == State::Open)
        {
            self.accepted.insert(flow.transport, flow.remote, id);
        }
    }

    /// Whether the places for accepted connections are taken. Some places are kept for connections that we
    /// open; otherwise strangers could keep us from our next hops.
    fn is_full_of_accepted(&self) -> bool {
        let all = self.settings.connections;
        let kept = if all > 1 { (all / KEPT_SHARE).max(1) } else { 0 };
        self.table.is_full() || self.accepted_count >= all - kept
    }

    /// Notes an accepted connection that only waits for the peer to close its end.
    pub(super) fn note_shut(&mut self, id: ConnId) {
        while self.shut.front().is_some_and(|id| !self.table.has(*id)) {
            self.shut.pop_front();
        }
        self.shut.push_back(id);
    }

    /// Ends the connection that has waited longest for its peer to close. Returns whether there was one. At
    /// most our last message is lost, if the peer has not read it yet.
    pub(super) fn make_room(&mut self, counters: &mut NetCounters) -> bool {
        while let Some(id) = self.shut.pop_front() {
            if self.remove(id, counters).is_some() {
                return true;
            }
        }
        false
    }
}

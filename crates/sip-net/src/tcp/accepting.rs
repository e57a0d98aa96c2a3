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

/// Of so many places one is kept for connections that we open.
const KEPT_SHARE: usize = 16;

impl Streams {
    /// Accepts what waits at listener `index` (of those given to [`Streams::new`]), up to the
    /// bound of one turn. An error is the listener's: the next connection will fare no better.
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
                    // Errors of the connection that was accepted (accept(2)); there may be more.
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
                        // Closed at once.
                        drop(listener.accept());
                        self.reserve = std::fs::File::open("/dev/null").ok();
                    }
                    _ => return Err(error),
                },
            }
        }
        Ok(())
    }

    /// Replaces the source lists, and closes the connections that newly banned sources have opened. Sources
    /// that were banned before have none left, and are not looked for.
    pub fn set_source_lists(&mut self, standing: &Arc<SourceLists>, counters: &mut NetCounters) {
        let before = mem::replace(&mut self.standing, Arc::clone(standing));
        let mut fresh = standing.banned.iter().filter(|s| !before.banned.contains(*s));
        let limit = self.settings.connections_per_address;
        // Most have no connection, and of so many one look at each connection is enough.
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

    /// The trust domain is never banned; but what of it has been learnt may come with the ban.
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

    /// Whether one more from a peer is too many: some places are kept for connections that we open,
    /// or strangers could keep us from our next hops.
    fn is_full_of_accepted(&self) -> bool {
        let all = self.settings.connections;
        let kept = if all > 1 { (all / KEPT_SHARE).max(1) } else { 0 };
        self.table.is_full() || self.accepted_count >= all - kept
    }

    /// Notes that a connection which a peer opened has nothing left but to be closed by the peer.
    pub(super) fn note_shut(&mut self, id: ConnId) {
        while self.shut.front().is_some_and(|id| !self.table.has(*id)) {
            self.shut.pop_front();
        }
        self.shut.push_back(id);
    }

    /// Ends the connection that has waited longest for its peer to close it; whether there is one.
    /// Nothing is lost but perhaps our last message, on the way to a peer that has not read it yet.
    pub(super) fn make_room(&mut self, counters: &mut NetCounters) -> bool {
        while let Some(id) = self.shut.pop_front() {
            if self.remove(id, counters).is_some() {
                return true;
            }
        }
        false
    }
}

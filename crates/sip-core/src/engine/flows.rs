//! The use of connections that peers opened: registrations made over them, and client transactions with
//! requests sent there. When a connection closes, both must learn it in a time that depends on nothing else
//! (RFC 5626 §5.3: a failed flow leads nowhere).
//!
//! An entry exists as long as something uses the connection. If the connection has closed already, the entry
//! goes with its last transaction, since no second event reports the close.
//!
//! Removal never searches an entry. A transaction that has ended stays listed until the list is pruned. An
//! address-of-record that has left stays until it is checked as others come. Both are checked again when the
//! connection closes.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque, btree_map};
use core::mem;
use core::net::SocketAddr;

use sip_message::Method;
use smallvec::SmallVec;

use super::Engine;
use super::aors::Aors;
use crate::engine::request::Request;
use crate::engine::waiting::Parked;
use crate::id::ConnId;
use crate::location::AorRecord;
use crate::transaction::table::ClientKey;
use crate::transport::{Flow, Transport};

/// Transactions that one connection lists before those that have ended are removed.
const PRUNE_AT: usize = 8;

type ConnKey = (u16, u32, u32);

const fn conn_key(conn: ConnId) -> ConnKey {
    (conn.worker.0, conn.slot, conn.generation)
}

#[derive(Debug, Default)]
struct Entry {
    /// Addresses-of-record registered over the connection.
    aors: Aors,
    clients: SmallVec<[ClientKey; 1]>,
    /// The number of `clients` that have not ended.
    live: u32,
    /// The length of `clients` at which it is pruned.
    prune_at: u32,
    /// REGISTERs that came on the connection and wait for a back-end.
    waiting: u32,
}

impl Entry {
    fn is_empty(&self) -> bool {
        self.aors.is_empty() && self.live == 0 && self.waiting == 0
    }
}

/// The entries of all connections in use.
#[derive(Debug, Default)]
pub(crate) struct Flows {
    entries: BTreeMap<ConnKey, Entry>,
    /// Transactions that have yet to learn that their connection has closed.
    closed: VecDeque<(ClientKey, ConnId)>,
    /// Entries with addresses-of-record.
    registered: usize,
}

impl Flows {
    /// The number of connections in use.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The number of connections that registrations were made over.
    pub(crate) const fn registered(&self) -> usize {
        self.registered
    }

    /// Changes an entry, and removes it if nothing uses the connection any more.
    fn release(&mut self, conn: ConnId, change: impl FnOnce(&mut Entry)) {
        if let btree_map::Entry::Occupied(mut found) = self.entries.entry(conn_key(conn)) {
            change(found.get_mut());
            if found.get().is_empty() {
                found.remove();
            }
        }
    }
}

/// The most aliases that wait to be taken. A lost one comes again with the next request on its connection.
const MAX_ALIASES: usize = 256;

impl Engine {
    /// Notes an alias of an authenticated peer (RFC 5923 §8.1): requests to its address, at the port
    /// in its Via, are to come on this connection.
    #[cold]
    pub(crate) fn note_alias(&mut self, request: &Request<'_>) {
        let flow = request.flow;
        let (Transport::Tls, Some(conn)) = (flow.transport, flow.conn) else {
            return;
        };
        let via = &request.via;
        if !via.params.has(b"alias") {
            return;
        }
        if self.aliases.len() < MAX_ALIASES {
            let port = via.port.unwrap_or(Transport::Tls.default_port());
            self.aliases.push((conn, SocketAddr::new(flow.remote.ip(), port)));
        } else {
            self.counters.limited_aliases += 1;
        }
    }

    /// Notes that this address-of-record has a binding made over this flow.
    pub(crate) fn note_registration(&mut self, aor: &[u8], flow: &Flow) {
        // A worker learns the end of its own connections only. A REGISTER is handled by the worker
        // that owns its connection.
        let Some(conn) = flow.conn.filter(|conn| conn.worker == self.worker) else {
            return;
        };
        let limit = self.config.limits.registrations_per_connection;
        let known = self.flows.entries.get(&conn_key(conn));
        if known.is_some_and(|entry| entry.aors.contains(aor, &self.secrets)) {
            return;
        }
        let Some(entry) = self.flow_entry(conn) else {
            return;
        };
        let mut aors = mem::take(&mut entry.aors);
        self.flows.registered -= usize::from(!aors.is_empty());
        aors.make_room(limit, &self.secrets, |aor| self.is_registered_over(aor, conn));
        if aors.len() < limit {
            aors.push(Box::from(aor), &self.secrets);
        } else {
            self.counters.limited_flow_registrations += 1;
        }
        self.flows.registered += usize::from(!aors.is_empty());
        self.flows.release(conn, |entry| entry.aors = aors);
    }

    /// Whether any address-of-record has a binding made over this connection.
    pub(crate) fn has_registration(&self, conn: ConnId) -> bool {
        let entry = self.flows.entries.get(&conn_key(conn));
        let mut aors = entry.into_iter().flat_map(|entry| entry.aors.iter());
        aors.any(|aor| self.is_registered_over(aor, conn))
    }

    /// Whether this address-of-record still has a binding made over this connection.
    fn is_registered_over(&self, aor: &[u8], conn: ConnId) -> bool {
        let now = self.now.unix_s();
        let mut found = false;
        self.shared.read_bindings(aor, &mut |record| {
            let mut bindings = record.bindings().filter_map(Result::ok);
            found = bindings.any(|b| b.received.conn == Some(conn) && b.expires_unix_s > now);
        });
        found
    }

    /// The entry of this connection. A missing entry is made if there is room.
    fn flow_entry(&mut self, conn: ConnId) -> Option<&mut Entry> {
        let has_room = self.flows.entries.len() < self.config.limits.flows;
        match self.flows.entries.entry(conn_key(conn)) {
            btree_map::Entry::Occupied(found) => Some(found.into_mut()),
            btree_map::Entry::Vacant(place) if has_room => Some(place.insert(Entry::default())),
            btree_map::Entry::Vacant(_) => {
                self.counters.limited_flows += 1;
                None
            }
        }
    }

    /// Watches the flow of a REGISTER that is about to wait. Returns whether the flow is watched.
    pub(crate) fn watch_flow(&mut self, request: &Request<'_>) -> bool {
        let conn = request.flow.conn.filter(|conn| conn.worker == self.worker);
        let (Method::Register, Some(conn)) = (request.method, conn) else {
            return false;
        };
        self.flow_entry(conn).map(|entry| entry.waiting += 1).is_some()
    }

    /// Ends the watch of a request that has waited. If its flow has closed meanwhile, the request goes on
    /// without a connection: a later user of that connection would never learn its end.
    pub(crate) fn end_watch(&mut self, parked: &mut Parked) {
        let (Some(conn), true) = (parked.flow.conn, mem::take(&mut parked.watched)) else {
            return;
        };
        // The entry of a closed connection is gone, or made anew by a request that came to a gone flow.
        let mut stands = false;
        self.flows.release(conn, |entry| {
            stands = entry.waiting > 0;
            entry.waiting = entry.waiting.saturating_sub(1);
        });
        if !stands {
            parked.flow.conn = None;
        }
    }

    /// Notes that this client transaction's request goes on this flow.
    pub(crate) fn note_client(&mut self, key: ClientKey, flow: &Flow) {
        let Some(conn) = flow.conn else { return };
        let Some(entry) = self.flow_entry(conn) else {
            return;
        };
        entry.clients.push(key);
        entry.live += 1;
        if entry.clients.len() > PRUNE_AT.max(entry.prune_at as usize) {
            let mut clients = mem::take(&mut entry.clients);
            clients.retain(|key| self.table.client(*key).is_some());
            if let Some(entry) = self.flows.entries.get_mut(&conn_key(conn)) {
                entry.prune_at = clients.len() as u32 * 2;
                entry.clients = clients;
            }
        }
        if let Some(client) = self.table.client_mut(key) {
            client.user.listed = true;
        }
    }

    /// Notes that a client transaction, listed under this flow by [`Engine::note_client`], has ended or left
    /// the flow.
    pub(crate) fn unlist_client(&mut self, flow: &Flow) {
        let Some(conn) = flow.conn else { return };
        self.flows.release(conn, |entry| {
            entry.live = entry.live.saturating_sub(1);
            if entry.live == 0 {
                entry.clients = SmallVec::new();
                entry.prune_at = 0;
            }
        });
    }

    /// Notes that a connection has closed. Bindings made over the connection lose their flow, and its client
    /// transactions get no response any more.
    pub(crate) fn close_flow(&mut self, conn: ConnId) {
        let Some(entry) = self.flows.entries.remove(&conn_key(conn)) else {
            return;
        };
        self.flows.registered -= usize::from(!entry.aors.is_empty());
        let mut lost = 0;
        for aor in entry.aors.iter() {
            self.shared.update_bindings(aor, &mut |record: &mut AorRecord| {
                lost += record.forget_conn(conn)
            });
        }
        self.counters.flows_lost += lost;
        let clients = entry.clients.into_iter();
        self.flows.closed.extend(clients.map(|key| (key, conn)));
    }

    /// Whether some transactions have yet to learn that their connection has closed.
    pub(crate) fn has_closed(&self) -> bool {
        !self.flows.closed.is_empty()
    }

    /// The next of these transactions.
    pub(crate) fn next_closed(&mut self) -> Option<(ClientKey, ConnId)> {
        let next = self.flows.closed.pop_front();
        if self.flows.closed.is_empty() {
            self.flows.closed = VecDeque::new();
        }
        next
    }
}

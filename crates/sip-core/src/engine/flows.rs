//! What hangs on the connections that peers opened: registrations made over them, and client
//! transactions whose requests went there. When one closes, both must know, in a time that depends on
//! nothing else (RFC 5626 §5.3: a flow that has failed is no way to anybody).
//!
//! Entries cost nothing to take away: a transaction that has ended stays listed until the list is
//! pruned, and a binding that has moved to another connection until this one closes. Both are asked
//! again when it does.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use core::net::SocketAddr;

use smallvec::SmallVec;

use super::Engine;
use crate::engine::request::Request;
use crate::id::ConnId;
use crate::location::AorRecord;
use crate::transaction::table::Key;
use crate::transport::{Flow, Transport};

/// Transactions of one connection that are listed before those that have ended are taken out.
const PRUNE_AT: usize = 8;

type ConnKey = (u16, u32, u32);

const fn conn_key(conn: ConnId) -> ConnKey {
    (conn.worker.0, conn.slot, conn.generation)
}

#[derive(Debug, Default)]
struct Entry {
    /// Addresses-of-record registered over it.
    aors: SmallVec<[Box<[u8]>; 1]>,
    clients: SmallVec<[Key; 1]>,
    /// How long `clients` may become until it is pruned.
    prune_at: usize,
}

/// By connection.
#[derive(Debug, Default)]
pub(crate) struct Flows {
    entries: BTreeMap<ConnKey, Entry>,
}

/// Aliases that wait to be taken; the next request on the same connection says it again.
const MAX_ALIASES: usize = 256;

impl Engine {
    /// A peer that has proved who it is wants requests to come on this connection (RFC 5923 §8.1): to
    /// the address that it has, at the port that its Via names.
    #[cold]
    pub(crate) fn note_alias(&mut self, request: &Request<'_>) {
        let flow = request.flow;
        let (Transport::Tls, Some(conn)) = (flow.transport, flow.conn) else {
            return;
        };
        let via = &request.via;
        if via.params.has(b"alias") && self.aliases.len() < MAX_ALIASES {
            let port = via.port.unwrap_or(Transport::Tls.default_port());
            self.aliases.push((conn, SocketAddr::new(flow.remote.ip(), port)));
        }
    }

    /// This address-of-record has a binding made over this flow.
    pub(crate) fn note_registration(&mut self, aor: &[u8], flow: &Flow) {
        // Whoever handles a REGISTER owns its connection: nobody else hears of its end.
        let Some(conn) = flow.conn.filter(|conn| conn.worker == self.worker) else {
            return;
        };
        let limit = self.config.limits.registrations_per_connection;
        let entry = self.flows.entries.entry(conn_key(conn)).or_default();
        if entry.aors.iter().any(|known| **known == *aor) {
            return;
        }
        if entry.aors.len() < limit {
            entry.aors.push(Box::from(aor));
        } else {
            self.counters.limited_flow_registrations += 1;
        }
    }

    /// This client transaction's request goes on this flow.
    pub(crate) fn note_client(&mut self, key: Key, flow: &Flow) {
        let Some(conn) = flow.conn else { return };
        let entry = self.flows.entries.entry(conn_key(conn)).or_default();
        if entry.clients.len() >= entry.prune_at.max(PRUNE_AT) {
            entry.clients.retain(|key| self.table.client(*key).is_some());
            entry.prune_at = entry.clients.len() * 2;
        }
        entry.clients.push(key);
    }

    /// A connection has closed: the bindings made over it have no flow any more, and these client
    /// transactions have nobody to hear from.
    pub(crate) fn take_flow(&mut self, conn: ConnId) -> SmallVec<[Key; 1]> {
        let Some(entry) = self.flows.entries.remove(&conn_key(conn)) else {
            return SmallVec::new();
        };
        let mut lost = 0;
        for aor in &entry.aors {
            self.shared.update_bindings(aor, &mut |record: &mut AorRecord| {
                let of_it = |b: &&mut crate::location::Binding| b.received.conn == Some(conn);
                for binding in record.bindings.iter_mut().filter(of_it) {
                    // Neither a change of the registration nor of what is on disk: what is read from
                    // there has no connection either.
                    binding.received.conn = None;
                    lost += 1;
                }
            });
        }
        self.counters.flows_lost += lost;
        entry.clients
    }
}

//! The memory that the connections of a worker hold, and the choice of one to end if that is too much.
//!
//! A connection that holds the most is ended. Ending the newest instead would spare those that hold much and
//! send nothing, and would cut every peer that is sent a response.

use sip_core::id::ConnId;

use super::conn::Conn;
use super::event::CloseReason;
use super::streams::Streams;
use super::table::Table;
use crate::counters::NetCounters;

/// Bytes below which ending a connection frees too little: the size of a message and its response.
const SMALL: usize = 4 << 10;

/// Size classes, by powers of two.
const CLASSES: usize = usize::BITS as usize;

/// Connections that hold [`SMALL`] or more, by size. Smaller ones, which are the rule, are not listed.
#[derive(Debug)]
pub(super) struct Holders {
    total: usize,
    /// Accepted connections of each size class.
    accepted: [Vec<ConnId>; CLASSES],
    /// Connections of each size class that we opened, the last to be closed: a next hop serves many users.
    opened: [Vec<ConnId>; CLASSES],
}

impl Default for Holders {
    fn default() -> Self {
        Self {
            total: 0,
            accepted: [const { Vec::new() }; CLASSES],
            opened: [const { Vec::new() }; CLASSES],
        }
    }
}

/// The memory last noted for a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Holding {
    bytes: usize,
    /// Index in its list, if the connection is listed.
    place: u32,
    /// Listed in `accepted`, not in `opened`.
    as_accepted: bool,
}

impl Holders {
    /// Bytes that all connections hold.
    pub(super) fn total(&self) -> usize {
        self.total
    }

    /// The list for connections of this size; `None` below [`SMALL`].
    fn list(&mut self, holding: Holding) -> Option<&mut Vec<ConnId>> {
        let lists = if holding.as_accepted {
            &mut self.accepted
        } else {
            &mut self.opened
        };
        (holding.bytes >= SMALL).then(|| lists.get_mut(holding.bytes.ilog2() as usize))?
    }

    /// A connection of the largest size class in use, so within a factor of two of the largest. Connections
    /// that we opened come last.
    fn largest(&self) -> Option<ConnId> {
        let last = |lists: &[Vec<ConnId>]| lists.iter().rev().find_map(|list| list.last().copied());
        last(&self.accepted).or_else(|| last(&self.opened))
    }

    /// Notes that connection `id` now holds `bytes`. A next hop is `exempt`: it is ended last.
    pub(super) fn note(&mut self, table: &mut Table<Conn>, id: ConnId, bytes: usize, exempt: bool) {
        let Some(conn) = table.get_mut(id) else { return };
        let old = conn.holding;
        let mut new = Holding {
            bytes,
            place: old.place,
            as_accepted: !exempt,
        };
        self.total = (self.total + bytes).saturating_sub(old.bytes);
        let class =
            |holding: Holding| (holding.bytes >= SMALL).then(|| (holding.as_accepted, holding.bytes.ilog2()));
        if class(old) == class(new) {
            conn.holding = new;
            return;
        }
        if let Some(list) = self.list(new) {
            new.place = list.len() as u32;
            list.push(id);
        }
        conn.holding = new;
        if let Some(list) = self.list(old) {
            let place = old.place as usize;
            if place < list.len() {
                list.swap_remove(place);
            }
            if let Some(moved) = list.get(place).and_then(|id| table.get_mut(*id)) {
                moved.holding.place = old.place;
            }
        }
    }
}

impl Streams {
    /// Notes what a connection holds, after a change.
    pub(super) fn recount(&mut self, id: ConnId) {
        let limit = self.settings.write_queue_bytes;
        if let Some(conn) = self.table.get_mut(id) {
            let bytes = conn.memory();
            let exempt = conn.is_outbound() && bytes <= limit;
            self.holders.note(&mut self.table, id, bytes, exempt);
        }
    }

    /// Ends connections until their memory is within the bound. The largest end first, unless their sockets
    /// take bytes at this moment. If no connection holds much, `last` ends, which has just grown.
    pub(super) fn relieve(&mut self, last: ConnId, now_ms: u64, counters: &mut NetCounters) {
        while self.holders.total() > self.settings.stream_bytes {
            let id = self.holders.largest().unwrap_or(last);
            let Some(conn) = self.table.get_mut(id) else {
                return;
            };
            let before = conn.memory();
            // The connection may have been given much in this very turn, without a chance to send it.
            self.write_what_fits(id, now_ms, counters);
            let after = self.table.get_mut(id).map(|conn| conn.memory());
            if after.is_some_and(|after| after >= before) {
                self.close(id, CloseReason::Memory, counters);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use proptest::prelude::*;
    use sip_core::id::{ListenerId, WorkerId};
    use sip_core::limits::Limits;
    use sip_core::transport::{Flow, Proof, Transport};

    use super::super::conn::NewConnection;
    use super::super::layer::Decoder;
    use super::*;

    fn connections(count: usize) -> (Table<Conn>, Vec<ConnId>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let remote = listener.local_addr().unwrap();
        let flow = Flow {
            transport: Transport::Tcp,
            listener: ListenerId(0),
            remote,
            conn: None,
            proof: Proof::None,
        };
        let mut table = Table::new(WorkerId(0), count, 1);
        let ids = (0..count).map(|_| {
            let beginning = NewConnection {
                socket: TcpStream::connect(remote).unwrap(),
                flow,
                decoder: Decoder::new(Transport::Tcp, &Limits::default()),
                tls: None,
                opened_to: None,
                is_for_response: false,
            };
            table.insert(Conn::new(beginning, 0)).unwrap()
        });
        let ids = ids.collect();
        (table, ids)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// For any sequence of changes, the total is the sum of the holdings. The connection found is one of
        /// the largest; exempt ones are found last.
        #[test]
        fn the_largest_is_found(
            notes in prop::collection::vec((0usize..8, 0usize..200_000, any::<bool>()), 1..100),
        ) {
            let (mut table, ids) = connections(8);
            let mut holders = Holders::default();
            let mut held = [(0, false); 8];
            for (number, bytes, exempt) in notes {
                held[number] = (bytes, exempt);
                holders.note(&mut table, ids[number], bytes, exempt);
                prop_assert_eq!(holders.total(), held.iter().map(|(bytes, _)| bytes).sum::<usize>());
                let most = |exempt| {
                    let all = held.iter().filter(|(bytes, is)| *is == exempt && *bytes >= SMALL);
                    all.map(|(bytes, _)| *bytes).max().map(|bytes| (exempt, bytes.ilog2()))
                };
                let found = holders.largest().map(|id| {
                    let (bytes, exempt) = held[ids.iter().position(|own| *own == id).unwrap()];
                    (exempt, bytes.ilog2())
                });
                prop_assert_eq!(found, most(false).or(most(true)));
            }
        }
    }
}

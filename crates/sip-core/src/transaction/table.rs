//! The transactions of one worker: slots with generations, and the indexes by which messages
//! find them (RFC 3261 §17.1.3, §17.2.3).
//!
//! Keys are 128-bit keyed hashes of what the RFC says identifies a transaction, so a peer can
//! neither choose keys that collide nor guess one.

use alloc::boxed::Box;
use alloc::vec::Vec;

use hashbrown::HashTable;

use super::{InviteClient, InviteServer, NonInviteClient, NonInviteServer, Timer};
use crate::chunks::Chunks;
use crate::timer::wheel::TimerId;
use crate::transport::Flow;

/// Names a slot of a [`Slab`]; harmless once what it named is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// Index.
    pub slot: u32,
    /// Counts the slot's uses.
    pub generation: u32,
}

#[derive(Debug)]
enum Slot<T> {
    Free { next: u32, generation: u32 },
    Used { generation: u32, value: T },
}

const NIL: u32 = u32::MAX;

/// Values in slots that are used again; each use has its generation.
#[derive(Debug)]
pub struct Slab<T> {
    slots: Chunks<Slot<T>>,
    free: u32,
    len: usize,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self {
            slots: Chunks::default(),
            free: NIL,
            len: 0,
        }
    }
}

impl<T> Slab<T> {
    /// Values held.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Takes a value in.
    pub fn insert(&mut self, value: T) -> Key {
        self.len += 1;
        let at = self.free;
        if let Some(slot) = self.slots.get_mut(at as usize)
            && let Slot::Free { next, generation } = *slot
        {
            *slot = Slot::Used { generation, value };
            self.free = next;
            return Key { slot: at, generation };
        }
        let slot = self.slots.push(Slot::Used { generation: 1, value }) as u32;
        Key { slot, generation: 1 }
    }

    /// The value, if it is still there.
    pub fn get(&self, key: Key) -> Option<&T> {
        match self.slots.get(key.slot as usize) {
            Some(Slot::Used { generation, value }) if *generation == key.generation => Some(value),
            _ => None,
        }
    }

    /// The value, if it is still there.
    pub fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        match self.slots.get_mut(key.slot as usize) {
            Some(Slot::Used { generation, value }) if *generation == key.generation => Some(value),
            _ => None,
        }
    }

    /// Takes the value out.
    pub fn remove(&mut self, key: Key) -> Option<T> {
        let next = self.free;
        let slot = self.slots.get_mut(key.slot as usize)?;
        match slot {
            Slot::Used { generation, .. } if *generation == key.generation => {}
            Slot::Used { .. } | Slot::Free { .. } => return None,
        }
        let freed = Slot::Free {
            next,
            generation: key.generation.wrapping_add(1),
        };
        let Slot::Used { value, .. } = core::mem::replace(slot, freed) else {
            return None;
        };
        self.free = key.slot;
        self.len -= 1;
        Some(value)
    }

    fn at(&self, slot: u32) -> Option<(Key, &T)> {
        match self.slots.get(slot as usize) {
            Some(Slot::Used { generation, value }) => Some((
                Key {
                    slot,
                    generation: *generation,
                },
                value,
            )),
            _ => None,
        }
    }
}

/// One of the two server machines.
#[derive(Clone, Copy, Debug)]
pub enum ServerMachine {
    /// INVITE.
    Invite(InviteServer),
    /// Any other method.
    NonInvite(NonInviteServer),
}

/// One of the two client machines.
#[derive(Clone, Copy, Debug)]
pub enum ClientMachine {
    /// INVITE.
    Invite(InviteClient),
    /// Any other method.
    NonInvite(NonInviteClient),
}

/// A server transaction. `U` is what the transaction user keeps beside it.
#[derive(Debug)]
pub struct Server<U> {
    /// Index key.
    pub key: u128,
    /// Its machine.
    pub machine: ServerMachine,
    /// Where the request came from.
    pub source: Flow,
    /// Where responses go (RFC 3261 §18.2.2, RFC 3581 §4).
    pub reply_to: Flow,
    /// The request as received; empty once a final response was sent.
    pub request: Box<[u8]>,
    /// The last response, for retransmissions; empty where none is needed.
    pub response: Vec<u8>,
    /// The timer that retransmits, and the one that ends.
    pub timers: [Option<TimerId>; 2],
    /// The transaction user's.
    pub user: U,
}

/// A client transaction.
#[derive(Debug)]
pub struct Client<U> {
    /// Index key.
    pub key: u128,
    /// Its machine.
    pub machine: ClientMachine,
    /// Where the request went.
    pub to: Flow,
    /// The request as sent; after a 3xx to 6xx to an INVITE, its ACK.
    pub request: Box<[u8]>,
    /// The timer that retransmits, and the one that ends.
    pub timers: [Option<TimerId>; 2],
    /// The transaction user's.
    pub user: U,
}

/// Which of a transaction's two timer places a timer takes: those that can run together never
/// share one.
pub const fn timer_place(timer: Timer) -> usize {
    match timer {
        Timer::A | Timer::E | Timer::G | Timer::Trying => 0,
        Timer::B
        | Timer::C
        | Timer::D
        | Timer::F
        | Timer::H
        | Timer::I
        | Timer::J
        | Timer::K
        | Timer::L
        | Timer::M => 1,
    }
}

/// An index entry: the hash stands beside the slot, so that growing touches no transaction.
#[derive(Clone, Copy, Debug)]
struct Entry {
    hash: u64,
    slot: u32,
}

/// All transactions of one worker.
#[derive(Debug)]
pub struct Table<S, C> {
    servers: Slab<Server<S>>,
    clients: Slab<Client<C>>,
    server_index: HashTable<Entry>,
    client_index: HashTable<Entry>,
}

impl<S, C> Default for Table<S, C> {
    fn default() -> Self {
        Self {
            servers: Slab::default(),
            clients: Slab::default(),
            server_index: HashTable::new(),
            client_index: HashTable::new(),
        }
    }
}

/// Keys are keyed hashes already: half of one is a good table hash.
const fn table_hash(key: u128) -> u64 {
    key as u64
}

fn index(table: &mut HashTable<Entry>, hash: u64, slot: u32) {
    table.insert_unique(hash, Entry { hash, slot }, |entry| entry.hash);
}

fn unindex(table: &mut HashTable<Entry>, hash: u64, slot: u32) {
    if let Ok(entry) = table.find_entry(hash, |entry| entry.slot == slot) {
        entry.remove();
    }
}

impl<S, C> Table<S, C> {
    /// Server transactions held.
    pub fn servers(&self) -> usize {
        self.servers.len()
    }

    /// Client transactions held.
    pub fn clients(&self) -> usize {
        self.clients.len()
    }

    /// Finds a server transaction.
    pub fn find_server(&self, key: u128) -> Option<Key> {
        let same = |entry: &Entry| self.servers.at(entry.slot).is_some_and(|(_, s)| s.key == key);
        let entry = self.server_index.find(table_hash(key), same)?;
        self.servers.at(entry.slot).map(|(key, _)| key)
    }

    /// Finds a client transaction.
    pub fn find_client(&self, key: u128) -> Option<Key> {
        let same = |entry: &Entry| self.clients.at(entry.slot).is_some_and(|(_, c)| c.key == key);
        let entry = self.client_index.find(table_hash(key), same)?;
        self.clients.at(entry.slot).map(|(key, _)| key)
    }

    /// Takes a server transaction in.
    pub fn insert_server(&mut self, server: Server<S>) -> Key {
        let hash = table_hash(server.key);
        let key = self.servers.insert(server);
        index(&mut self.server_index, hash, key.slot);
        key
    }

    /// Takes a client transaction in.
    pub fn insert_client(&mut self, client: Client<C>) -> Key {
        let hash = table_hash(client.key);
        let key = self.clients.insert(client);
        index(&mut self.client_index, hash, key.slot);
        key
    }

    /// A server transaction.
    pub fn server(&self, key: Key) -> Option<&Server<S>> {
        self.servers.get(key)
    }

    /// A server transaction.
    pub fn server_mut(&mut self, key: Key) -> Option<&mut Server<S>> {
        self.servers.get_mut(key)
    }

    /// A client transaction.
    pub fn client(&self, key: Key) -> Option<&Client<C>> {
        self.clients.get(key)
    }

    /// A client transaction.
    pub fn client_mut(&mut self, key: Key) -> Option<&mut Client<C>> {
        self.clients.get_mut(key)
    }

    /// Takes a server transaction out.
    pub fn remove_server(&mut self, key: Key) -> Option<Server<S>> {
        let server = self.servers.remove(key)?;
        unindex(&mut self.server_index, table_hash(server.key), key.slot);
        Some(server)
    }

    /// Takes a client transaction out.
    pub fn remove_client(&mut self, key: Key) -> Option<Client<C>> {
        let client = self.clients.remove(key)?;
        unindex(&mut self.client_index, table_hash(client.key), key.slot);
        Some(client)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_outlives_its_value_harmlessly() {
        let mut slab = Slab::default();
        let a = slab.insert('a');
        assert_eq!(slab.remove(a), Some('a'));
        let b = slab.insert('b');
        assert_eq!(b.slot, a.slot);
        assert_eq!(slab.get(a), None);
        assert_eq!((slab.remove(a), slab.len()), (None, 1));
        assert_eq!(slab.get(b), Some(&'b'));
        assert_eq!(slab.insert('c').slot, 1);
    }

    #[test]
    fn timers_that_run_together_have_places_of_their_own() {
        for (a, b) in [(Timer::A, Timer::B), (Timer::E, Timer::F), (Timer::G, Timer::H)] {
            assert_ne!(timer_place(a), timer_place(b));
        }
    }
}

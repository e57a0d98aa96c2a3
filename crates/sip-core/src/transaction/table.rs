//! The transactions of one worker: slots with generations, and the indexes by which messages
//! find them (RFC 3261 §17.1.3, §17.2.3).
//!
//! A message finds its transaction by a 128-bit keyed hash of the fields that identify one by the RFC. So a
//! peer can neither choose hashes that collide nor guess one. Inside a worker a key names a transaction: its
//! slot and generation.

use alloc::boxed::Box;
use alloc::vec::Vec;

use hashbrown::HashTable;

use super::{InviteClient, InviteServer, NonInviteClient, NonInviteServer, Timer};
use super::{invite_client, invite_server, non_invite_client};
use crate::slab::{Key, Slab};
use crate::timer::wheel::TimerId;
use crate::transport::Flow;

/// Names a server transaction of one worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerKey(Key);

/// Names a client transaction of one worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientKey(Key);

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

/// A server transaction: the part that it needs until it ends, and beside it the part that it needs until its
/// final response. For each transaction without a final response there are a hundred that wait for
/// retransmissions.
#[derive(Debug)]
pub struct Server<U> {
    /// The hash by which messages find the transaction.
    hash: [u64; 2],
    /// The flow that responses go to (RFC 3261 §18.2.2, RFC 3581 §4).
    pub reply_to: Flow,
    /// The last response, for retransmissions; empty if none is needed ([`Table::keep_response`]).
    pub response: Box<[u8]>,
    /// Bytes of the request that are counted in [`Table::bytes`].
    request_bytes: u32,
    /// The timer that retransmits, and the one that ends.
    pub timers: [Option<TimerId>; 2],
    /// The part for the time until the final response; `None` once that was sent.
    pub live: Option<Box<Live<U>>>,
    /// The machine of the transaction.
    pub machine: ServerMachine,
    /// Whether the source is unverified: [`super::MachineContext::source_unverified`].
    pub source_unverified: bool,
}

/// The part of a server transaction that is needed until its final response. `U` is the state of the
/// transaction user.
#[derive(Debug)]
pub struct Live<U> {
    /// The flow that the request came by.
    pub source: Flow,
    /// The request as received.
    pub request: Vec<u8>,
    /// Bytes of targets and responses that the transaction user keeps for this request, counted in
    /// [`Table::bytes`] ([`Table::count_kept`]).
    pub(crate) kept_bytes: u32,
    /// The state of the transaction user.
    pub user: U,
}

impl<U> Server<U> {
    /// A server transaction with nothing sent yet.
    pub fn new(
        hash: u128,
        machine: ServerMachine,
        reply_to: Flow,
        live: Box<Live<U>>,
        source_unverified: bool,
    ) -> Self {
        Self {
            hash: halves(hash),
            reply_to,
            response: Box::default(),
            request_bytes: 0,
            timers: [None; 2],
            live: Some(live),
            machine,
            source_unverified,
        }
    }
}

impl ServerMachine {
    /// Whether the request is an INVITE.
    pub const fn is_invite(&self) -> bool {
        matches!(self, Self::Invite(_))
    }

    /// Whether the request is an INVITE that got a 2xx (RFC 6026 §7.1).
    pub const fn is_accepted(&self) -> bool {
        matches!(self, Self::Invite(machine) if matches!(machine.state(), invite_server::State::Accepted))
    }
}

impl ClientMachine {
    /// Whether the request is an INVITE.
    pub const fn is_invite(&self) -> bool {
        matches!(self, Self::Invite(_))
    }

    /// Whether no response has come.
    pub const fn has_no_response(&self) -> bool {
        match self {
            Self::Invite(machine) => matches!(machine.state(), invite_client::State::Calling),
            Self::NonInvite(machine) => matches!(machine.state(), non_invite_client::State::Trying),
        }
    }

    /// Whether the request is an INVITE with a provisional response and no final one.
    pub const fn is_ringing(&self) -> bool {
        matches!(self, Self::Invite(machine) if matches!(machine.state(), invite_client::State::Proceeding))
    }

    /// Whether a final response has come and its copies are awaited. For an INVITE a 2xx does not count.
    pub const fn is_completed(&self) -> bool {
        match self {
            Self::Invite(machine) => matches!(machine.state(), invite_client::State::Completed),
            Self::NonInvite(machine) => matches!(machine.state(), non_invite_client::State::Completed),
        }
    }

    /// Whether the transaction is over.
    pub const fn is_terminated(&self) -> bool {
        match self {
            Self::Invite(machine) => machine.is_terminated(),
            Self::NonInvite(machine) => machine.is_terminated(),
        }
    }
}

/// A hash in two halves, which need not be aligned like the whole.
const fn halves(hash: u128) -> [u64; 2] {
    [hash as u64, (hash >> 64) as u64]
}

/// A client transaction.
#[derive(Debug)]
pub struct Client<U> {
    /// The hash by which messages find the transaction.
    hash: [u64; 2],
    /// The machine of the transaction.
    pub machine: ClientMachine,
    /// The flow that the request went by.
    pub to: Flow,
    /// The request as sent; after a 3xx to 6xx to an INVITE, its ACK ([`Table::keep_request`]).
    pub request: Box<[u8]>,
    /// Bytes of the request that are counted in [`Table::bytes`]; the request itself may be taken out for a
    /// moment.
    request_bytes: u32,
    /// The timer that retransmits, and the one that ends.
    pub timers: [Option<TimerId>; 2],
    /// The state of the transaction user.
    pub user: U,
}

impl<U> Client<U> {
    /// A client transaction with nothing sent yet.
    pub fn new(hash: u128, machine: ClientMachine, to: Flow, request: Box<[u8]>, user: U) -> Self {
        Self {
            hash: halves(hash),
            machine,
            to,
            request,
            request_bytes: 0,
            timers: [None; 2],
            user,
        }
    }

    /// The hash by which messages find the transaction; for an INVITE the number in its branch.
    pub const fn hash(&self) -> u128 {
        self.hash[0] as u128 | (self.hash[1] as u128) << 64
    }
}

/// The place, of a transaction's two, that a timer takes: timers that can run together never share one.
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

/// An index entry: part of the hash stands beside the slot, so that a growing table touches no transaction.
#[derive(Clone, Copy, Debug)]
struct Entry {
    hash: u32,
    slot: u32,
}

impl Entry {
    fn table_hash(&self) -> u64 {
        spread(self.hash)
    }
}

/// The table's hash of the part that an entry keeps: the table needs random upper bits as well.
const fn spread(hash: u32) -> u64 {
    (hash as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// All transactions of one worker.
#[derive(Debug)]
pub struct Table<S, C> {
    servers: Slab<Server<S>>,
    clients: Slab<Client<C>>,
    server_index: HashTable<Entry>,
    client_index: HashTable<Entry>,
    /// Bytes of the messages that the transactions hold.
    bytes: usize,
}

/// The length of a message as it is counted.
fn counted(message: &[u8]) -> u32 {
    u32::try_from(message.len()).unwrap_or(u32::MAX)
}

impl<S, C> Default for Table<S, C> {
    fn default() -> Self {
        Self {
            servers: Slab::default(),
            clients: Slab::default(),
            server_index: HashTable::new(),
            client_index: HashTable::new(),
            bytes: 0,
        }
    }
}

/// The part of a hash that stands in an index: any part of a keyed hash is a good table hash.
const fn part(hash: [u64; 2]) -> u32 {
    hash[0] as u32
}

/// The factor by which an index may be too large before it is made anew.
const SPARSE: usize = 16;
/// The capacity up to which an index is never too large.
const SMALL: usize = 1 << 14;

fn index(table: &mut HashTable<Entry>, hash: [u64; 2], slot: u32) {
    let hash = part(hash);
    table.insert_unique(spread(hash), Entry { hash, slot }, Entry::table_hash);
}

fn unindex(table: &mut HashTable<Entry>, hash: [u64; 2], slot: u32) {
    if let Ok(entry) = table.find_entry(spread(part(hash)), |entry| entry.slot == slot) {
        entry.remove();
    }
    if table.capacity() > SMALL && table.len() < table.capacity() / SPARSE {
        table.shrink_to(table.len() * 2, Entry::table_hash);
    }
}

impl<S, C> Table<S, C> {
    /// The number of server transactions held.
    pub fn servers(&self) -> usize {
        self.servers.len()
    }

    /// The number of client transactions held.
    pub fn clients(&self) -> usize {
        self.clients.len()
    }

    /// Bytes of the messages that transactions hold: requests, and responses for retransmission.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Finds a server transaction.
    pub fn find_server(&self, hash: u128) -> Option<ServerKey> {
        let hash = halves(hash);
        let same = |entry: &Entry| self.servers.at(entry.slot).is_some_and(|(_, s)| s.hash == hash);
        let entry = self.server_index.find(spread(part(hash)), same)?;
        self.servers.at(entry.slot).map(|(key, _)| ServerKey(key))
    }

    /// Finds a client transaction.
    pub fn find_client(&self, hash: u128) -> Option<ClientKey> {
        let hash = halves(hash);
        let same = |entry: &Entry| self.clients.at(entry.slot).is_some_and(|(_, c)| c.hash == hash);
        let entry = self.client_index.find(spread(part(hash)), same)?;
        self.clients.at(entry.slot).map(|(key, _)| ClientKey(key))
    }

    /// Inserts a server transaction.
    pub fn insert_server(&mut self, mut server: Server<S>) -> ServerKey {
        let hash = server.hash;
        server.request_bytes = server.live.as_ref().map_or(0, |live| counted(&live.request));
        self.count(server.request_bytes as usize, 0);
        let key = self.servers.insert(server);
        index(&mut self.server_index, hash, key.slot);
        ServerKey(key)
    }

    /// Inserts a client transaction.
    pub fn insert_client(&mut self, mut client: Client<C>) -> ClientKey {
        let hash = client.hash;
        client.request_bytes = counted(&client.request);
        self.count(client.request_bytes as usize, 0);
        let key = self.clients.insert(client);
        index(&mut self.client_index, hash, key.slot);
        ClientKey(key)
    }

    fn count(&mut self, more: usize, less: usize) {
        debug_assert!(self.bytes + more >= less, "nothing leaves that was not counted");
        self.bytes = (self.bytes + more).saturating_sub(less);
    }

    /// Keeps a response for retransmission. If all messages would take more than `most` bytes with it, it is
    /// not kept, and `false` is returned.
    #[must_use]
    pub fn keep_response(&mut self, key: ServerKey, text: &[u8], most: usize) -> bool {
        let Some(server) = self.servers.get_mut(key.0) else {
            return true;
        };
        let before = server.response.len();
        if self.bytes - before + text.len() > most {
            return false;
        }
        server.response = Box::from(text);
        self.count(text.len(), before);
        true
    }

    /// Removes the part of a server transaction that was needed until its final response, and the response
    /// sent before.
    pub fn settle(&mut self, key: ServerKey) -> Option<(Box<Live<S>>, bool)> {
        let server = self.servers.get_mut(key.0)?;
        let mut live = server.live.take()?;
        let kept = core::mem::take(&mut live.kept_bytes) as usize;
        let response = core::mem::take(&mut server.response);
        let request = core::mem::take(&mut server.request_bytes) as usize;
        let is_invite = server.machine.is_invite();
        self.count(0, request + response.len() + kept);
        Some((live, is_invite))
    }

    /// Sets the number of bytes that the transaction user keeps for this request.
    pub(crate) fn count_kept(&mut self, key: ServerKey, bytes: usize) {
        if let Some(live) = self.live_mut(key) {
            let now = u32::try_from(bytes).unwrap_or(u32::MAX);
            let before = core::mem::replace(&mut live.kept_bytes, now);
            self.count(now as usize, before as usize);
        }
    }

    /// The bytes held, without those that the transaction user keeps for this request.
    pub(crate) fn bytes_beside_kept(&self, key: ServerKey) -> usize {
        let kept = self.live(key).map_or(0, |live| live.kept_bytes as usize);
        self.bytes.saturating_sub(kept)
    }

    /// Sets the message that a client transaction sends again from now on.
    pub fn keep_request(&mut self, key: ClientKey, request: Box<[u8]>) {
        if let Some(client) = self.clients.get_mut(key.0) {
            let now = counted(&request);
            client.request = request;
            let before = core::mem::replace(&mut client.request_bytes, now);
            self.count(now as usize, before as usize);
        }
    }

    /// Sets the message that a client transaction sends again, if there is room. If the message is longer and
    /// all would take more than `most` bytes with it, `before` stays in its place, and `false` is returned.
    #[must_use]
    pub fn keep_request_within(
        &mut self,
        key: ClientKey,
        request: &[u8],
        before: Box<[u8]>,
        most: usize,
    ) -> bool {
        let Some(client) = self.clients.get_mut(key.0) else {
            return true;
        };
        let held = client.request_bytes as usize;
        if request.len() > held && self.bytes - held + request.len() > most {
            client.request = before;
            return false;
        }
        self.keep_request(key, Box::from(request));
        true
    }

    /// The part of a server transaction that is needed until its final response.
    pub fn live(&self, key: ServerKey) -> Option<&Live<S>> {
        self.servers.get(key.0)?.live.as_deref()
    }

    /// The part of a server transaction that is needed until its final response.
    pub fn live_mut(&mut self, key: ServerKey) -> Option<&mut Live<S>> {
        self.servers.get_mut(key.0)?.live.as_deref_mut()
    }

    /// A server transaction.
    pub fn server(&self, key: ServerKey) -> Option<&Server<S>> {
        self.servers.get(key.0)
    }

    /// A server transaction.
    pub fn server_mut(&mut self, key: ServerKey) -> Option<&mut Server<S>> {
        self.servers.get_mut(key.0)
    }

    /// A client transaction.
    pub fn client(&self, key: ClientKey) -> Option<&Client<C>> {
        self.clients.get(key.0)
    }

    /// A client transaction.
    pub fn client_mut(&mut self, key: ClientKey) -> Option<&mut Client<C>> {
        self.clients.get_mut(key.0)
    }

    /// Removes a server transaction.
    pub fn remove_server(&mut self, key: ServerKey) -> Option<Server<S>> {
        let mut server = self.servers.remove(key.0)?;
        unindex(&mut self.server_index, server.hash, key.0.slot);
        let answer = server
            .live
            .as_mut()
            .map(|live| core::mem::take(&mut live.kept_bytes));
        let request = (server.request_bytes + answer.unwrap_or_default()) as usize;
        self.count(0, request + server.response.len());
        Some(server)
    }

    /// Removes a client transaction.
    pub fn remove_client(&mut self, key: ClientKey) -> Option<Client<C>> {
        let client = self.clients.remove(key.0)?;
        unindex(&mut self.client_index, client.hash, key.0.slot);
        self.count(0, client.request_bytes as usize);
        Some(client)
    }
}

#[cfg(test)]
impl ClientKey {
    /// A key that was not made by a table.
    pub(crate) fn made_up(slot: u32) -> Self {
        Self(Key {
            slot,
            generation: core::num::NonZeroU32::MIN,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_that_run_together_have_places_of_their_own() {
        for (a, b) in [(Timer::A, Timer::B), (Timer::E, Timer::F), (Timer::G, Timer::H)] {
            assert_ne!(timer_place(a), timer_place(b));
        }
    }
}

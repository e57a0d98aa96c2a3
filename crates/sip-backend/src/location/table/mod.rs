//! The table behind the journal: a seam for the simulator, which keeps it in memory.

pub(crate) mod sqlite;

use std::error::Error;
use std::fmt::Debug;

use sip_core::location::AorRecord;

use super::socket::Mapper;

/// Registrations as they were folded. What a method that changes it has returned from is on stable
/// storage as a whole; where one fails, nothing has changed.
pub trait Table: Debug {
    /// Why it cannot.
    type Error: Error + Send + Sync + 'static;
    /// A part of it that can be read.
    type Part: Part<Error = Self::Error>;
    /// Where a walk through it goes on.
    type Place: Debug;

    /// Calls `each` with the deletions noted lately, the oldest first: address-of-record, version, Unix second.
    ///
    /// # Errors
    /// Why it cannot be read.
    fn deletions(&self, each: &mut dyn FnMut(Box<[u8]>, u64, u64)) -> Result<(), Self::Error>;

    /// The whole of it in at least one part, and at most this many.
    ///
    /// # Errors
    /// Why it cannot be read.
    fn parts(&self, most: usize) -> Result<Vec<Self::Part>, Self::Error>;

    /// Writes each record unless a newer one is known; of each, whether it was written. One without
    /// bindings deletes, which is noted.
    ///
    /// # Errors
    /// Why it cannot be written.
    fn write(&mut self, records: &[Write<'_>]) -> Result<Vec<bool>, Self::Error>;

    /// One step of a walk: deletes, after this place, some bindings that ended before that Unix
    /// second. How many went, and where the next step goes on; `None`: the walk is over.
    ///
    /// # Errors
    /// Why it cannot be written.
    fn purge_step(
        &mut self,
        after: Option<&Self::Place>,
        ended_before: u64,
    ) -> Result<(u64, Option<Self::Place>), Self::Error>;

    /// Deletes deletions noted before that Unix second.
    ///
    /// # Errors
    /// Why it cannot be written.
    fn purge_deletions(&mut self, before: u64) -> Result<(), Self::Error>;

    /// The last call.
    ///
    /// # Errors
    /// Why it cannot be written; nothing is lost.
    fn finish(&mut self) -> Result<(), Self::Error>;
}

/// A part of a [`Table`].
pub trait Part: Send {
    /// Why it cannot be read.
    type Error;

    /// Hands over every address-of-record with at least one usable binding. `wanted(aor, version)`
    /// is asked before the bindings are built.
    ///
    /// # Errors
    /// Why it cannot be read.
    fn scan(
        &self,
        mapper: &mut Mapper<'_>,
        wanted: &mut dyn FnMut(&[u8], u64) -> bool,
        each: &mut dyn FnMut(Box<[u8]>, AorRecord),
    ) -> Result<Scan, Self::Error>;
}

/// One address-of-record as it is to be written.
#[derive(Debug)]
pub struct Write<'a> {
    /// `user@domain`, canonical.
    pub aor: &'a [u8],
    /// Its bindings; none: it is deleted.
    pub record: AorRecord,
    /// Of two writes the higher wins.
    pub version: u64,
    /// When it was saved.
    pub saved_unix_s: u64,
    /// Names of the sockets that the record's listener ids index.
    pub listeners: &'a [Box<[u8]>],
    /// Version at which this address-of-record was deleted before, if it was lately.
    pub deleted: Option<u64>,
}

/// What reading the table came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scan {
    /// Bindings without a listener here, or with a row that cannot be read.
    pub unmapped: u64,
    /// The latest end of these.
    pub unmapped_until: u64,
    /// Highest version seen.
    pub newest: u64,
}

impl Scan {
    /// Gives the bindings of a record the listeners of this start, by the `sockets` that their ids meant when
    /// it was written, and no connections. A binding leaves it if its listener is gone, and is counted.
    pub fn map_bindings(&mut self, record: &mut AorRecord, sockets: &[Box<[u8]>], mapper: &mut Mapper<'_>) {
        record.bindings.retain_mut(|binding| {
            let flow = &mut binding.received;
            flow.conn = None;
            let socket = sockets.get(usize::from(flow.listener.0));
            let Some(listener) = socket.and_then(|socket| mapper.listener(socket)) else {
                self.unmapped += 1;
                self.unmapped_until = self.unmapped_until.max(binding.expires_unix_s);
                return false;
            };
            flow.listener = listener;
            true
        });
    }
}

/// Splits `user@domain` at the last `@`; without one it is all domain.
pub(crate) fn split_aor(aor: &[u8]) -> (&[u8], &[u8]) {
    match aor.iter().rposition(|b| *b == b'@') {
        Some(at) => (
            aor.get(..at).unwrap_or_default(),
            aor.get(at + 1..).unwrap_or_default(),
        ),
        None => (&[], aor),
    }
}

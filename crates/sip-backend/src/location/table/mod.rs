//! The table behind the journal: a trait, so that the simulator can keep it in memory.

pub(crate) mod sqlite;

use std::error::Error;
use std::fmt::Debug;

use sip_core::location::AorRecord;

use super::socket::Mapper;

/// Folded registrations. A method that changes the table returns once the whole change is on stable storage.
/// If it fails, nothing has changed.
pub trait Table: Debug {
    /// Error of the table.
    type Error: Error + Send + Sync + 'static;
    /// A part of the table that can be read.
    type Part: Part<Error = Self::Error>;
    /// The place at which a walk through the table continues.
    type Place: Debug;

    /// Calls `each` with the recent deletions, the oldest first: address-of-record, version, Unix second.
    ///
    /// # Errors
    /// The table cannot be read.
    fn deletions(&self, each: &mut dyn FnMut(Box<[u8]>, u64, u64)) -> Result<(), Self::Error>;

    /// The whole table in at least one part, and at most `most`.
    ///
    /// # Errors
    /// The table cannot be read.
    fn parts(&self, most: usize) -> Result<Vec<Self::Part>, Self::Error>;

    /// Writes each record unless a newer one is known. Returns for each whether it was written. A record
    /// without bindings deletes the address-of-record, and the deletion is noted.
    ///
    /// # Errors
    /// The table cannot be written.
    fn write(&mut self, records: &[Write<'_>]) -> Result<Vec<bool>, Self::Error>;

    /// Does one step of a walk: deletes some bindings behind this place that expired before that Unix second.
    /// Returns their number, and where the next step continues (`None` at the end of the walk).
    ///
    /// # Errors
    /// The table cannot be written.
    fn purge_step(
        &mut self,
        after: Option<&Self::Place>,
        ended_before: u64,
    ) -> Result<(u64, Option<Self::Place>), Self::Error>;

    /// Deletes the notes of deletions before that Unix second.
    ///
    /// # Errors
    /// The table cannot be written.
    fn purge_deletions(&mut self, before: u64) -> Result<(), Self::Error>;

    /// Finishes writing. This is the last call.
    ///
    /// # Errors
    /// The table cannot be written; nothing is lost.
    fn finish(&mut self) -> Result<(), Self::Error>;
}

/// A part of a [`Table`].
pub trait Part: Send {
    /// Error of reading.
    type Error;

    /// Passes on every address-of-record with at least one usable binding. `wanted(aor, version)` is called
    /// before the bindings are built.
    ///
    /// # Errors
    /// The part cannot be read.
    fn scan(
        &self,
        mapper: &mut Mapper<'_>,
        wanted: &mut dyn FnMut(&[u8], u64) -> bool,
        each: &mut dyn FnMut(Box<[u8]>, AorRecord),
    ) -> Result<Scan, Self::Error>;
}

/// One address-of-record to be written.
#[derive(Debug)]
pub struct Write<'a> {
    /// `user@domain`, canonical.
    pub aor: &'a [u8],
    /// The record; without bindings, the address-of-record is deleted.
    pub record: AorRecord,
    /// Version of the record. Of two writes the higher one counts.
    pub version: u64,
    /// The time at which the record was saved, Unix seconds.
    pub saved_unix_s: u64,
    /// Names of the sockets that the record's listener ids index.
    pub listeners: &'a [Box<[u8]>],
    /// Version of a recent deletion of this address-of-record, if there was one.
    pub deleted: Option<u64>,
}

/// Counts of reading the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scan {
    /// Number of bindings without a present listener, or with an unreadable row.
    pub unmapped: u64,
    /// The latest expiry of these bindings.
    pub unmapped_until: u64,
    /// Highest version found.
    pub newest: u64,
}

impl Scan {
    /// Replaces the listeners of a record's bindings by the present ones. `sockets` are those that their ids
    /// meant when the record was written. Connections are dropped. A binding whose listener is gone is
    /// removed and counted.
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

/// Splits `user@domain` at the last `@`. Without an `@`, all of it is the domain.
pub(crate) fn split_aor(aor: &[u8]) -> (&[u8], &[u8]) {
    match aor.iter().rposition(|b| *b == b'@') {
        Some(at) => (
            aor.get(..at).unwrap_or_default(),
            aor.get(at + 1..).unwrap_or_default(),
        ),
        None => (&[], aor),
    }
}

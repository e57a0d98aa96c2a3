//! The table of registrations on a simulated disk. Transactions are atomic, and durable once they are
//! confirmed. No other property of an SQLite file is simulated.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;

use sip_backend::location::parts::{Mapper, Part, Scan, Table, Write};
use sip_core::location::AorRecord;

use super::SimDisk;

/// One address-of-record as written.
#[derive(Clone, Debug)]
struct Row {
    record: AorRecord,
    /// Names of the sockets that the record's listener ids index.
    listeners: Vec<Box<[u8]>>,
    version: u64,
}

#[derive(Clone, Debug, Default)]
struct Rows {
    rows: BTreeMap<Box<[u8]>, Row>,
    /// Version and Unix second of each deletion.
    deleted: BTreeMap<Box<[u8]>, (u64, u64)>,
}

/// The table; clones share it.
#[derive(Clone, Debug)]
pub struct SimTable {
    rows: Rc<RefCell<Rows>>,
    disk: SimDisk,
}

impl SimTable {
    /// An empty table on this disk.
    pub fn new(disk: SimDisk) -> Self {
        Self {
            rows: Rc::default(),
            disk,
        }
    }

    /// Does `work` as one transaction.
    fn transaction<R>(&self, work: impl FnOnce(&mut Rows) -> R) -> io::Result<R> {
        let mut rows = self.rows.borrow().clone();
        let result = work(&mut rows);
        let (done, said) = self.disk.transaction();
        if done {
            *self.rows.borrow_mut() = rows;
        }
        said.map(|()| result)
    }
}

impl Rows {
    fn write(&mut self, write: &Write<'_>) -> bool {
        let newest = self.rows.get(write.aor).map(|row| row.version);
        if newest.max(write.deleted) >= Some(write.version) {
            return false;
        }
        if write.record.bindings.is_empty() {
            self.rows.remove(write.aor);
            self.deleted
                .insert(write.aor.into(), (write.version, write.saved_unix_s));
        } else {
            let row = Row {
                record: write.record.clone(),
                listeners: write.listeners.to_vec(),
                version: write.version,
            };
            self.rows.insert(write.aor.into(), row);
            if write.deleted.is_some() {
                self.deleted.remove(write.aor);
            }
        }
        true
    }
}

impl Table for SimTable {
    type Error = io::Error;
    type Part = SimPart;
    type Place = ();

    fn deletions(&self, each: &mut dyn FnMut(Box<[u8]>, u64, u64)) -> io::Result<()> {
        let rows = self.rows.borrow();
        let mut deleted: Vec<_> = rows.deleted.iter().collect();
        deleted.sort_by_key(|(_, (_, at))| *at);
        for (aor, (version, at)) in deleted {
            each(aor.clone(), *version, *at);
        }
        Ok(())
    }

    fn parts(&self, _most: usize) -> io::Result<Vec<SimPart>> {
        let rows = self.rows.borrow().rows.clone();
        Ok(vec![SimPart { rows }])
    }

    fn write(&mut self, records: &[Write<'_>]) -> io::Result<Vec<bool>> {
        self.transaction(|rows| records.iter().map(|write| rows.write(write)).collect())
    }

    fn purge_step(&mut self, _after: Option<&()>, ended_before: u64) -> io::Result<(u64, Option<()>)> {
        self.transaction(|rows| {
            let mut removed = 0;
            rows.rows.retain(|_, row| {
                let before = row.record.bindings.len();
                row.record.bindings.retain(|b| b.expires_unix_s >= ended_before);
                removed += (before - row.record.bindings.len()) as u64;
                !row.record.bindings.is_empty()
            });
            (removed, None)
        })
    }

    fn purge_deletions(&mut self, before: u64) -> io::Result<()> {
        self.transaction(|rows| rows.deleted.retain(|_, (_, at)| *at >= before))
    }

    fn finish(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A copy of a [`SimTable`], as of the call.
#[derive(Debug)]
pub struct SimPart {
    rows: BTreeMap<Box<[u8]>, Row>,
}

impl Part for SimPart {
    type Error = io::Error;

    fn scan(
        &self,
        mapper: &mut Mapper<'_>,
        wanted: &mut dyn FnMut(&[u8], u64) -> bool,
        each: &mut dyn FnMut(Box<[u8]>, AorRecord),
    ) -> io::Result<Scan> {
        let mut scan = Scan::default();
        for (aor, row) in &self.rows {
            scan.newest = scan.newest.max(row.version);
            if !wanted(aor, row.version) {
                continue;
            }
            let mut record = row.record.clone();
            record.version = row.version;
            scan.map_bindings(&mut record, &row.listeners, mapper);
            if !record.bindings.is_empty() {
                each(aor.clone(), record);
            }
        }
        Ok(scan)
    }
}

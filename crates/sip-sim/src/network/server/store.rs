//! The store of registrations of a server: the real journal, on a disk that fails and loses power.
//!
//! Writing and folding take time, and have their effect at the end of it. If the process ends before, the
//! disk stops after some of the operations that it would have done.

use std::sync::Mutex;
use std::time::Duration;

use sip_backend::location::parts::{Answered, Folder, Writer, open};
use sip_backend::location::{Options, Save};
use sip_core::id::ListenerId;
use sip_core::location::AorRecord;
use sip_core::time::{Instant, Now};

use super::super::scenario::DiskFault;
use super::super::server_ip;
use super::config::LISTENERS;
use crate::clock::{MS, Micros};
use crate::disk::{Faults, SimDisk, SimTable};
use crate::rng::Rng;

/// Most saves that wait; a further one is refused.
const MOST_WAITING: usize = 256;
/// Most operations of the disk that a batch or a round of folding takes.
const MOST_OPERATIONS: u64 = 8;

/// Parts of the store that a start makes and an end removes.
#[derive(Debug)]
struct Running {
    writer: Writer<SimDisk>,
    folder: Folder<SimDisk, SimTable>,
    waiting: Vec<(Save, Instant)>,
    /// The batch under way, and when it is written.
    batch: Option<(Micros, Vec<(Save, Instant)>)>,
    /// When the round of folding under way is done.
    folding: Option<Micros>,
}

/// The disk, and the store on it while the process runs.
#[derive(Debug)]
pub(super) struct Store {
    disk: SimDisk,
    table: SimTable,
    options: Options,
    running: Option<Running>,
    /// When the fault of the disk ends.
    faulty_until: Option<Micros>,
    /// Addresses-of-record whose save was confirmed, but is not on disk.
    pub unsaved: Vec<Box<[u8]>>,
    rng: Rng,
}

/// A record found at a start.
pub(super) type Found = (Box<[u8]>, AorRecord);

impl Store {
    /// An empty store of this server.
    pub(super) fn new(server: usize, mut rng: Rng) -> Self {
        let disk = SimDisk::new(rng.fork());
        let listeners = LISTENERS.map(|(transport, port)| (transport, (server_ip(server), port).into()));
        Self {
            table: SimTable::new(disk.clone()),
            disk,
            options: Options {
                segment_bytes: 4_000,
                fold_every: Duration::from_secs(5),
                fold_bytes: 8_000,
                journal_bytes: 200_000,
                ..Options::new("/location.db", listeners.to_vec())
            },
            running: None,
            faulty_until: None,
            unsaved: Vec::new(),
            rng,
        }
    }

    /// Starts the store. Returns the records on disk, in the order of the addresses-of-record, and the newest
    /// version.
    ///
    /// # Errors
    /// Those of the disk.
    pub(super) fn start(&mut self, now: Now) -> Result<(Vec<Found>, u64), String> {
        self.heal(now.instant.as_micros());
        let found = Mutex::new(Vec::new());
        let load = |aor, record| {
            if let Ok(mut found) = found.lock() {
                found.push((aor, record));
            }
        };
        let listeners = &self.options.listeners;
        let find = |transport, address| {
            let at = listeners
                .iter()
                .position(|socket| *socket == (transport, address))?;
            Some(ListenerId(at as u16))
        };
        let (disk, table) = (self.disk.clone(), self.table.clone());
        let opened = open(now, disk, table, &self.options, &find, &load).map_err(|e| e.to_string())?;
        self.running = Some(Running {
            writer: opened.writer,
            folder: opened.folder,
            waiting: Vec::new(),
            batch: None,
            folding: None,
        });
        let mut found = found.into_inner().unwrap_or_default();
        found.sort_by(|(one, _): &Found, (other, _)| one.cmp(other));
        Ok((found, opened.loaded.newest_version))
    }

    /// Sets a fault of the disk until `until`.
    pub(super) fn fail(&mut self, fault: DiskFault, until: Micros) {
        let good = Faults::default();
        let faults = match fault {
            DiskFault::Full { room } => Faults {
                room: Some(room),
                ..good
            },
            DiskFault::Syncs { per_mille } => Faults {
                syncs: per_mille,
                ..good
            },
            DiskFault::Everything { per_mille } => Faults {
                syncs: per_mille,
                changes: per_mille,
                reads: per_mille,
                room: None,
            },
        };
        self.disk.set_faults(faults);
        self.faulty_until = Some(until);
    }

    /// Ends the fault, if its time has passed at `now`.
    pub(super) fn heal(&mut self, now: Micros) {
        if self.faulty_until.is_some_and(|until| until <= now) {
            self.disk.set_faults(Faults::default());
            self.faulty_until = None;
        }
    }

    /// Ends the fault at `at` at the latest.
    pub(super) fn heal_at(&mut self, at: Micros) {
        self.faulty_until = self.faulty_until.map(|until| until.min(at));
    }

    /// Takes a save; refuses it if too many wait.
    ///
    /// # Errors
    /// The save, if it is refused.
    pub(super) fn save(&mut self, now: Micros, takes: Micros, save: Save) -> Result<(), Save> {
        match &mut self.running {
            Some(running) if running.waiting.len() < MOST_WAITING => {
                running.waiting.push((save, Instant::from_micros(now)));
                running.begin(now, takes);
                Ok(())
            }
            Some(_) | None => Err(save),
        }
    }

    /// When the next task is due.
    pub(super) fn next_at(&self, now: Micros) -> Option<Micros> {
        let running = self.running.as_ref()?;
        let written = running.batch.as_ref().map(|(at, _)| *at);
        let writer = running.writer.poll_timeout().map(Instant::as_micros);
        // The writer is one thread.
        let writes = written.or(writer);
        let folds = running.folding.or_else(|| running.folds_at(now));
        writes.into_iter().chain(folds).min()
    }

    /// Does the tasks that are due. A batch that begins takes `takes`.
    pub(super) fn handle_timeout(&mut self, now: Now, takes: Micros) -> Vec<Answered> {
        let at = now.instant.as_micros();
        self.heal(at);
        let mut answered = Vec::new();
        let usual = self.usual();
        let Some(running) = &mut self.running else {
            return answered;
        };
        match &mut running.batch {
            Some((done_at, batch)) if *done_at <= at => {
                let saves: Vec<_> = batch.iter().map(|(save, _)| content(save)).collect();
                running.writer.commit(now, batch, &mut answered);
                for ((aor, bytes), answered) in saves.into_iter().zip(&answered) {
                    if answered.saved.is_ok() && !self.disk.keeps(&bytes) {
                        self.unsaved.push(aor);
                    }
                }
                running.writer.handle_timeout(now);
                running.batch = None;
                running.begin(at, takes);
            }
            Some(_) => {}
            None => {
                let due = running.writer.poll_timeout();
                if due.is_some_and(|due| due <= now.instant) {
                    running.writer.handle_timeout(now);
                }
            }
        }
        match running.folding {
            Some(done_at) if done_at <= at => {
                running.folder.handle_timeout(now);
                running.folding = None;
            }
            Some(_) => {}
            None => {
                let due = running.folder.poll_timeout(now.instant);
                running.folding = due.filter(|due| *due <= now.instant).map(|_| at + usual);
            }
        }
        answered
    }

    /// Ends the process in the middle of its work; with `power` the machine goes off.
    pub(super) fn crash(&mut self, now: Now, power: bool) {
        if let Some(mut running) = self.running.take() {
            let operations = self.rng.between(0, MOST_OPERATIONS) as u32;
            self.disk.stop_after(operations);
            let fold_first = self.rng.chance(500);
            let mut fold = || {
                if running.folding.is_some() {
                    running.folder.handle_timeout(now);
                }
            };
            if fold_first {
                fold();
            }
            if let Some((_, batch)) = &mut running.batch {
                running.writer.commit(now, batch, &mut Vec::new());
            }
            if !fold_first {
                fold();
            }
        }
        self.disk.crash(power);
    }

    /// Usual time of a write with its sync.
    pub(super) fn usual(&mut self) -> Micros {
        self.rng.between(MS / 10, 8 * MS)
    }
}

/// Content of a save that a segment must contain: address-of-record and record, which follow each other
/// there.
fn content(save: &Save) -> (Box<[u8]>, Vec<u8>) {
    (save.aor.clone(), [&*save.aor, &*save.record].concat())
}

impl Running {
    /// Begins to write the waiting saves, unless a batch is under way.
    fn begin(&mut self, now: Micros, takes: Micros) {
        if self.batch.is_none() && !self.waiting.is_empty() {
            self.batch = Some((now + takes, core::mem::take(&mut self.waiting)));
        }
    }

    /// When folding begins; `None` if no segment waits. The periodic work needs no wake-up of its own.
    fn folds_at(&self, now: Micros) -> Option<Micros> {
        if self.folder.is_idle() {
            return None;
        }
        let at = self.folder.poll_timeout(Instant::from_micros(now))?;
        Some(at.as_micros())
    }
}

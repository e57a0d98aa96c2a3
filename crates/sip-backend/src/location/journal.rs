//! The journal: numbered files ("segments") to which registrations are appended, each batch with one write
//! and one `fdatasync`. [`super::segment`] describes their content. A later process never appends to an
//! existing segment.

use std::io;
use std::path::{Path, PathBuf};

use sip_core::time::Instant;

use super::disk::{Disk, SegmentFile};
use super::segment;
use super::socket::LocalSocket;

const EXTENSION: &str = "segment";

/// A segment to which nothing is appended any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Closed {
    pub(crate) path: PathBuf,
    pub(crate) bytes: u64,
}

#[derive(Debug)]
struct Active<F> {
    file: F,
    path: PathBuf,
    bytes: u64,
    since: Instant,
}

/// The writing end of the journal.
#[derive(Debug)]
pub(crate) struct Journal<D: Disk> {
    dir: PathBuf,
    disk: D,
    header: Vec<u8>,
    next: u64,
    active: Option<Active<D::File>>,
    closed: Vec<Closed>,
    /// Segments that hold refused bytes, left by a failed call. These are cut off before anything else is
    /// written or folded; otherwise they would count at the next start.
    spoilt: Vec<Closed>,
}

impl<D: Disk> Journal<D> {
    /// A journal that numbers its segments from `next`.
    pub(crate) fn new(dir: &Path, disk: D, next: u64, listeners: &[LocalSocket]) -> Self {
        let header = segment::header(listeners);
        Self {
            dir: dir.to_owned(),
            disk,
            header,
            next,
            active: None,
            closed: Vec::new(),
            spoilt: Vec::new(),
        }
    }

    /// Puts whole entries on stable storage. After a failed write or sync the kernel may have dropped dirty
    /// pages and let the next sync succeed. So the segment is not trusted again: the same entries go to a new
    /// one, once.
    ///
    /// The bytes that a failed call leaves in files are cut off. Their versions were refused, and the cores
    /// have undone them with higher ones, which may never reach the disk. At the next start the refused
    /// versions would be the newest.
    pub(crate) fn append(&mut self, now: Instant, entries: &[u8]) -> io::Result<()> {
        self.mend()?;
        if let Some(active) = &mut self.active {
            match active.file.append(entries).and_then(|()| active.file.sync()) {
                Ok(()) => {
                    active.bytes += entries.len() as u64;
                    return Ok(());
                }
                Err(error) => {
                    tracing::warn!(
                        path = active.path.display().to_string(),
                        error = error.to_string(),
                        "location journal: segment abandoned after a failed write"
                    );
                    if let Some(active) = self.active.take() {
                        self.spoilt.push(Closed {
                            path: active.path,
                            bytes: active.bytes,
                        });
                    }
                }
            }
        }
        let started = self.start(now, entries);
        // If the cut fails now, it is tried again before the next entry.
        if let Err(error) = self.mend() {
            tracing::error!(
                error = error.to_string(),
                "location journal: refused entries cannot be cut off"
            );
        }
        started
    }

    /// Whether files hold refused bytes.
    pub(crate) fn is_spoilt(&self) -> bool {
        !self.spoilt.is_empty()
    }

    /// Cuts off refused bytes. Segments that then hold entries may be folded.
    pub(crate) fn mend(&mut self) -> io::Result<()> {
        while let Some(spoilt) = self.spoilt.last() {
            match self.disk.truncate(&spoilt.path, spoilt.bytes) {
                // A missing file needs no cut.
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                Ok(()) | Err(_) => {}
            }
            if let Some(mended) = self.spoilt.pop() {
                if mended.bytes > 0 {
                    self.closed.push(mended);
                } else {
                    // Removed only once the file is empty on stable storage, because a name can reappear
                    // after a loss of power. An empty segment does no harm if it stays.
                    let _ = self.disk.remove(&mended.path);
                }
            }
        }
        Ok(())
    }

    fn start(&mut self, now: Instant, entries: &[u8]) -> io::Result<()> {
        let path = segment_path(&self.dir, self.next);
        self.next += 1;
        let mut file = self.disk.create(&path)?;
        let written = self
            .disk
            .sync_dir(&self.dir)
            .and_then(|()| file.append(&self.header))
            .and_then(|()| file.append(entries))
            .and_then(|()| file.sync());
        if let Err(error) = written {
            self.spoilt.push(Closed { path, bytes: 0 });
            return Err(error);
        }
        let bytes = (self.header.len() + entries.len()) as u64;
        self.active = Some(Active {
            file,
            path,
            bytes,
            since: now,
        });
        Ok(())
    }

    /// Ends the active segment, if there is one.
    pub(crate) fn roll(&mut self) {
        if let Some(active) = self.active.take() {
            self.closed.push(Closed {
                path: active.path,
                bytes: active.bytes,
            });
        }
    }

    /// The segments ended since the last call.
    pub(crate) fn take_closed(&mut self) -> Vec<Closed> {
        std::mem::take(&mut self.closed)
    }

    /// Sets the sockets that listener ids mean from the next segment on.
    pub(crate) fn set_listeners(&mut self, listeners: &[LocalSocket]) {
        let header = segment::header(listeners);
        if header != self.header {
            self.roll();
            self.header = header;
        }
    }

    /// Bytes of the active segment, and its beginning.
    pub(crate) fn active(&self) -> Option<(u64, Instant)> {
        self.active.as_ref().map(|active| (active.bytes, active.since))
    }
}

pub(crate) fn segment_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{number:016}.{EXTENSION}"))
}

/// All segments of `dir` in order, and the number that the next one takes.
pub(crate) fn list<D: Disk>(disk: &D, dir: &Path) -> io::Result<(Vec<Closed>, u64)> {
    let mut found = Vec::new();
    for (name, bytes) in disk.list(dir)? {
        let stem = name
            .strip_suffix(EXTENSION)
            .and_then(|name| name.strip_suffix('.'));
        if let Some(number) = stem.and_then(|stem| stem.parse::<u64>().ok()) {
            let path = dir.join(name);
            found.push((number, Closed { path, bytes }));
        }
    }
    found.sort_unstable_by_key(|(number, _)| *number);
    let next = found.last().map_or(1, |(number, _)| number + 1);
    Ok((found.into_iter().map(|(_, closed)| closed).collect(), next))
}

#[cfg(test)]
mod tests {
    use super::super::disk::OsDisk;
    use super::super::segment::{Entry, Segment};
    use super::*;
    use std::fs;

    fn read(bytes: Vec<u8>) -> Option<(Vec<u64>, usize)> {
        let segment = Segment::from_bytes(bytes, &[])?;
        let mut entries = segment.entries();
        let versions = entries.by_ref().map(|entry| entry.version).collect();
        Some((versions, entries.rest().len()))
    }

    /// Failures of writes or syncs, ordered by a test.
    #[derive(Debug, Default, Clone)]
    pub(crate) struct Faults(std::sync::Arc<parking_lot::Mutex<Vec<&'static str>>>);

    #[derive(Debug)]
    pub(crate) struct FaultyFile(fs::File, Faults);

    impl Faults {
        fn due(&self, what: &'static str) -> io::Result<()> {
            let mut plan = self.0.lock();
            match plan.iter().position(|planned| *planned == what) {
                Some(at) => {
                    plan.remove(at);
                    Err(io::Error::from(io::ErrorKind::StorageFull))
                }
                None => Ok(()),
            }
        }
    }

    impl Disk for Faults {
        type File = FaultyFile;

        fn make_dir(&self, path: &Path) -> io::Result<()> {
            OsDisk.make_dir(path)
        }

        fn sync_dir(&self, path: &Path) -> io::Result<()> {
            OsDisk.sync_dir(path)
        }

        fn list(&self, dir: &Path) -> io::Result<Vec<(String, u64)>> {
            OsDisk.list(dir)
        }

        fn create(&self, path: &Path) -> io::Result<FaultyFile> {
            self.due("create")?;
            Ok(FaultyFile(OsDisk.create(path)?, self.clone()))
        }

        fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
            OsDisk.read(path)
        }

        fn sync(&self, path: &Path) -> io::Result<()> {
            OsDisk.sync(path)
        }

        fn truncate(&self, path: &Path, bytes: u64) -> io::Result<()> {
            self.due("cut")?;
            OsDisk.truncate(path, bytes)
        }

        fn remove(&self, path: &Path) -> io::Result<()> {
            OsDisk.remove(path)
        }
    }

    impl SegmentFile for FaultyFile {
        fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
            if let Err(error) = self.1.due("append") {
                self.0.append(&bytes[..bytes.len() / 2])?;
                return Err(error);
            }
            self.0.append(bytes)
        }

        fn sync(&mut self) -> io::Result<()> {
            self.1.due("sync")?;
            self.0.sync()
        }
    }

    fn entry(version: u64) -> Vec<u8> {
        let mut out = Vec::new();
        Entry {
            version,
            saved_unix_s: 1,
            aor: b"a@b",
            record: b"r",
        }
        .write(&mut out);
        out
    }

    fn versions(dir: &Path) -> Vec<Vec<u64>> {
        let (segments, _) = list(&OsDisk, dir).unwrap();
        segments
            .iter()
            .map(|s| read(fs::read(&s.path).unwrap()).unwrap().0)
            .collect()
    }

    #[test]
    fn a_failed_sync_moves_the_entries_to_a_new_segment() {
        let dir = tempfile::tempdir().unwrap();
        let faults = Faults::default();
        let mut journal = Journal::new(dir.path(), faults.clone(), 1, &[]);
        journal.append(Instant::ORIGIN, &entry(1)).unwrap();
        faults.0.lock().push("sync");
        journal.append(Instant::ORIGIN, &entry(2)).unwrap();
        assert_eq!(versions(dir.path()), [vec![1], vec![2]]);
        assert_eq!(
            journal.take_closed().len(),
            1,
            "the abandoned segment still holds version 1"
        );
        faults.0.lock().push("append");
        journal.append(Instant::ORIGIN, &entry(3)).unwrap();
        assert_eq!(versions(dir.path()), [vec![1], vec![2], vec![3]]);
    }

    /// A refused version must not be the newest at the next start.
    #[test]
    fn what_was_refused_is_cut_off_before_anything_else_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let faults = Faults::default();
        let mut journal = Journal::new(dir.path(), faults.clone(), 1, &[]);
        journal.append(Instant::ORIGIN, &entry(1)).unwrap();
        faults.0.lock().extend(["sync", "create"]);
        assert!(journal.append(Instant::ORIGIN, &entry(2)).is_err());
        assert_eq!(versions(dir.path()), [vec![1]]);

        journal.append(Instant::ORIGIN, &entry(3)).unwrap();
        faults.0.lock().extend(["sync", "create", "cut"]);
        assert!(journal.append(Instant::ORIGIN, &entry(4)).is_err());
        let held = journal.take_closed().len();
        faults.0.lock().push("cut");
        assert!(
            journal.append(Instant::ORIGIN, &entry(5)).is_err(),
            "the refused one is still there"
        );
        assert!(journal.take_closed().is_empty(), "nobody may fold it");
        journal.append(Instant::ORIGIN, &entry(6)).unwrap();
        assert_eq!(versions(dir.path()), [vec![1], vec![3], vec![6]]);
        assert_eq!((held, journal.take_closed().len()), (1, 1));
    }

    #[test]
    fn a_disk_that_stays_full_is_an_error_until_it_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let faults = Faults::default();
        let mut journal = Journal::new(dir.path(), faults.clone(), 1, &[]);
        journal.append(Instant::ORIGIN, &entry(1)).unwrap();
        faults.0.lock().extend(["append", "append"]);
        assert!(journal.append(Instant::ORIGIN, &entry(2)).is_err());
        faults.0.lock().push("create");
        assert!(journal.append(Instant::ORIGIN, &entry(3)).is_err());
        assert_eq!(versions(dir.path()), [vec![1]], "nothing half-written is left");
        journal.append(Instant::ORIGIN, &entry(4)).unwrap();
        assert_eq!(versions(dir.path()), [vec![1], vec![4]]);
        let (segments, next) = list(&OsDisk, dir.path()).unwrap();
        assert_eq!((segments.len(), next), (2, 5));
    }
}

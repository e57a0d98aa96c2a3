//! The journal: numbered files ("segments") to which registrations are appended, each batch with
//! one write and one `fdatasync`.
//!
//! ```text
//! segment = magic(8) length(4) crc(4) listeners entry*
//! entry   = length(4) crc(4) version(8) saved_unix_s(8) aor_length(2) aor record
//! ```
//!
//! Numbers are little-endian; each CRC-32 covers its length field and what that length counts.
//! `listeners` names the local sockets, one a line, that listener ids inside the records index.
//! A crash can leave an unfinished entry at the end of a segment; it was never answered, so it is
//! cut off. Segments are never appended to by a later process.

use std::fmt::Debug;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::socket::{self, LocalSocket};

const MAGIC: &[u8; 8] = b"TZLOC\x01\r\n";
const EXTENSION: &str = "segment";
/// Bytes before a segment's listener table.
const HEADER_FIXED: usize = 16;
/// Bytes of an entry before its address-of-record.
const ENTRY_FIXED: usize = 18;
/// Longest address-of-record.
pub(crate) const MAX_AOR: usize = u16::MAX as usize;
/// Longest record; longer ones are refused (ten contacts of a datagram's size fit three times).
pub(crate) const MAX_RECORD: usize = 2 * 1024 * 1024;

/// The file system as the journal uses it; tests put failures here.
pub(crate) trait Disk: Send + Debug {
    /// Makes a new file and sees to it that its name survives a power loss once
    /// [`SegmentFile::sync`] has returned.
    fn create(&self, path: &Path) -> io::Result<Box<dyn SegmentFile>>;
    /// Cuts a file off at this length, to last; a file that is not there is none to cut.
    fn cut(&self, path: &Path, bytes: u64) -> io::Result<()>;
}

/// One open segment.
pub(crate) trait SegmentFile: Send + Debug {
    /// Appends all of `bytes`.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Returns once everything appended is on stable storage.
    fn sync(&mut self) -> io::Result<()>;
}

/// The operating system's files.
#[derive(Debug)]
pub(crate) struct OsDisk;

impl Disk for OsDisk {
    fn create(&self, path: &Path) -> io::Result<Box<dyn SegmentFile>> {
        let file = OpenOptions::new()
            .append(true)
            .create_new(true)
            .mode(0o600)
            .open(path)?;
        if let Some(dir) = path.parent() {
            File::open(dir)?.sync_all()?;
        }
        Ok(Box::new(file))
    }

    fn cut(&self, path: &Path, bytes: u64) -> io::Result<()> {
        match OpenOptions::new().write(true).open(path) {
            Ok(file) => file.set_len(bytes).and_then(|()| file.sync_all()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }
}

impl SegmentFile for File {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_all(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sync_data()
    }
}

/// A segment that is not written any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Closed {
    pub(crate) path: PathBuf,
    pub(crate) bytes: u64,
}

#[derive(Debug)]
struct Active {
    file: Box<dyn SegmentFile>,
    path: PathBuf,
    bytes: u64,
    since: Instant,
}

/// The writing end.
#[derive(Debug)]
pub(crate) struct Journal {
    dir: PathBuf,
    disk: Box<dyn Disk>,
    header: Vec<u8>,
    next: u64,
    active: Option<Active>,
    closed: Vec<Closed>,
    /// Segments that hold more than was answered for: what a failed call had written is to be cut
    /// off before anything else is written or folded, or it would come back at the next start.
    spoilt: Vec<Closed>,
}

impl Journal {
    /// A journal whose next segment has number `next`.
    pub(crate) fn new(dir: &Path, disk: Box<dyn Disk>, next: u64, listeners: &[LocalSocket]) -> Self {
        let header = header(listeners);
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

    /// Puts whole entries on stable storage, or says why not. After a failed write or sync the
    /// kernel may have dropped what was dirty and call the next sync good, so the segment is not
    /// trusted again: the same entries go to a new one, once.
    ///
    /// What a failed call leaves in files is cut off again. Its versions were refused, and the
    /// cores have taken them back with higher ones, of which the disk need never hear: at the next
    /// start the refused would be the newest.
    pub(crate) fn append(&mut self, entries: &[u8]) -> io::Result<()> {
        self.mend()?;
        if let Some(active) = &mut self.active {
            match active.file.append(entries).and_then(|()| active.file.sync()) {
                Ok(()) => {
                    active.bytes += entries.len() as u64;
                    return Ok(());
                }
                Err(error) => {
                    tracing::warn!(path = %active.path.display(), %error, "location journal: segment abandoned after a failed write");
                    if let Some(active) = self.active.take() {
                        self.spoilt.push(Closed {
                            path: active.path,
                            bytes: active.bytes,
                        });
                    }
                }
            }
        }
        let started = self.start(entries);
        // What cannot be cut off now is tried again before the next entry.
        if let Err(error) = self.mend() {
            tracing::error!(%error, "location journal: refused entries cannot be cut off");
        }
        started
    }

    /// Cuts off what was refused. Segments that then hold something may be folded.
    fn mend(&mut self) -> io::Result<()> {
        while let Some(spoilt) = self.spoilt.last() {
            self.disk.cut(&spoilt.path, spoilt.bytes)?;
            if let Some(mended) = self.spoilt.pop()
                && mended.bytes > 0
            {
                self.closed.push(mended);
            }
        }
        Ok(())
    }

    fn start(&mut self, entries: &[u8]) -> io::Result<()> {
        let path = segment_path(&self.dir, self.next);
        self.next += 1;
        let mut file = self.disk.create(&path)?;
        let written = file
            .append(&self.header)
            .and_then(|()| file.append(entries))
            .and_then(|()| file.sync());
        if let Err(error) = written {
            drop(file);
            // Nothing in it is answered for; an empty disk is worth more than a whole file name.
            if fs::remove_file(&path).is_err() {
                self.spoilt.push(Closed { path, bytes: 0 });
            }
            return Err(error);
        }
        let bytes = (self.header.len() + entries.len()) as u64;
        self.active = Some(Active {
            file,
            path,
            bytes,
            since: Instant::now(),
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

    /// From the next segment on, listener ids mean these sockets.
    pub(crate) fn set_listeners(&mut self, listeners: &[LocalSocket]) {
        let header = header(listeners);
        if header != self.header {
            self.roll();
            self.header = header;
        }
    }

    /// Bytes of the active segment and when it was begun.
    pub(crate) fn active(&self) -> Option<(u64, Instant)> {
        self.active.as_ref().map(|active| (active.bytes, active.since))
    }
}

fn segment_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{number:016}.{EXTENSION}"))
}

/// All segments of `dir` in order, and the number that the next one takes.
pub(crate) fn list(dir: &Path) -> io::Result<(Vec<Closed>, u64)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let path = entry.path();
        let number = path
            .file_stem()
            .and_then(|stem| stem.to_str()?.parse::<u64>().ok());
        if let (Some(number), Some(true)) = (number, path.extension().map(|ext| ext == EXTENSION)) {
            found.push((
                number,
                Closed {
                    path,
                    bytes: entry.metadata()?.len(),
                },
            ));
        }
    }
    found.sort_unstable_by_key(|(number, _)| *number);
    let next = found.last().map_or(1, |(number, _)| number + 1);
    Ok((found.into_iter().map(|(_, closed)| closed).collect(), next))
}

fn header(listeners: &[LocalSocket]) -> Vec<u8> {
    let mut table = String::new();
    for listener in listeners {
        table.push_str(&socket::write(*listener));
        table.push('\n');
    }
    let mut out = MAGIC.to_vec();
    push_block(&mut out, |out| out.extend_from_slice(table.as_bytes()));
    out
}

/// Appends `length crc body`.
fn push_block(out: &mut Vec<u8>, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; 8]);
    body(out);
    let length = u32::try_from(out.len() - start - 8)
        .unwrap_or(u32::MAX)
        .to_le_bytes();
    let crc = checksum(length, out.get(start + 8..).unwrap_or_default());
    if let Some(fixed) = out.get_mut(start..start + 8) {
        fixed[..4].copy_from_slice(&length);
        fixed[4..].copy_from_slice(&crc.to_le_bytes());
    }
}

fn checksum(length: [u8; 4], body: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&length);
    hasher.update(body);
    hasher.finalize()
}

/// One saved address-of-record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Of two entries of one address-of-record the higher counts.
    pub version: u64,
    /// When it was written.
    pub saved_unix_s: u64,
    /// `user@domain`, canonical.
    pub aor: &'a [u8],
    /// In [`sip_core::location::codec`]'s encoding.
    pub record: &'a [u8],
}

impl Entry<'_> {
    /// Whether it may be written at all.
    pub(crate) fn fits(aor: &[u8], record: &[u8]) -> bool {
        aor.len() <= MAX_AOR && record.len() <= MAX_RECORD
    }

    /// Appends the entry to `out`. It must fit: what was read from a segment does.
    pub fn write(&self, out: &mut Vec<u8>) {
        push_block(out, |out| {
            out.extend_from_slice(&self.version.to_le_bytes());
            out.extend_from_slice(&self.saved_unix_s.to_le_bytes());
            out.extend_from_slice(&u16::try_from(self.aor.len()).unwrap_or(u16::MAX).to_le_bytes());
            out.extend_from_slice(self.aor);
            out.extend_from_slice(self.record);
        });
    }
}

/// A segment read back.
#[derive(Debug)]
pub struct Segment {
    bytes: Vec<u8>,
    start: usize,
    /// Names of the local sockets that listener ids index.
    pub listeners: Vec<Box<[u8]>>,
}

impl Segment {
    /// Reads a whole segment; `None` where not even its header is whole (so nothing in it was
    /// ever answered for).
    pub(crate) fn read(path: &Path) -> io::Result<Option<Self>> {
        Ok(Self::from_bytes(fs::read(path)?))
    }

    /// The same of bytes that were read elsewhere.
    pub fn from_bytes(bytes: Vec<u8>) -> Option<Self> {
        let after_magic = bytes.strip_prefix(MAGIC)?;
        let (table, _) = split_block(after_magic)?;
        let listeners = table
            .split(|b| *b == b'\n')
            .filter(|line| !line.is_empty())
            .map(Into::into)
            .collect();
        let start = HEADER_FIXED + table.len();
        Some(Self {
            bytes,
            start,
            listeners,
        })
    }

    /// How a segment begins.
    pub fn start(listeners: &[LocalSocket]) -> Vec<u8> {
        header(listeners)
    }

    /// The sockets that listener ids index; `None` where a name is not one of ours.
    pub fn sockets(&self) -> Vec<Option<LocalSocket>> {
        self.listeners.iter().map(|name| socket::parse(name)).collect()
    }

    /// The entries up to the first that is not whole.
    pub fn entries(&self) -> Entries<'_> {
        Entries {
            rest: self.bytes.get(self.start..).unwrap_or_default(),
        }
    }

    /// Bytes in the file.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }
}

/// Iterator over a segment's entries; afterwards [`Entries::rest`] is what could not be read.
#[derive(Debug)]
pub struct Entries<'a> {
    rest: &'a [u8],
}

impl<'a> Entries<'a> {
    /// Bytes not read yet; once the iterator ended, the torn tail.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = Entry<'a>;

    fn next(&mut self) -> Option<Entry<'a>> {
        let (body, rest) = split_block(self.rest)?;
        let (fixed, tail) = body.split_at_checked(ENTRY_FIXED)?;
        let version = u64::from_le_bytes(fixed.get(0..8)?.try_into().ok()?);
        let saved_unix_s = u64::from_le_bytes(fixed.get(8..16)?.try_into().ok()?);
        let aor_length = u16::from_le_bytes(fixed.get(16..18)?.try_into().ok()?);
        let (aor, record) = tail.split_at_checked(usize::from(aor_length))?;
        self.rest = rest;
        Some(Entry {
            version,
            saved_unix_s,
            aor,
            record,
        })
    }
}

/// Splits a block whose checksum is right off the front.
fn split_block(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    let (crc, rest) = rest.split_first_chunk::<4>()?;
    let (body, rest) = rest.split_at_checked(usize::try_from(u32::from_le_bytes(*length)).ok()?)?;
    (checksum(*length, body) == u32::from_le_bytes(*crc)).then_some((body, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn segment(entries: &[(u64, &[u8], &[u8])]) -> Vec<u8> {
        let mut out = header(&[("udp", "192.0.2.1:5060"), ("tcp", "[::1]:5060")].map(|(t, a)| {
            (
                sip_core::transport::Transport::parse(t.as_bytes()).unwrap(),
                a.parse().unwrap(),
            )
        }));
        for (version, aor, record) in entries {
            Entry {
                version: *version,
                saved_unix_s: 5,
                aor,
                record,
            }
            .write(&mut out);
        }
        out
    }

    fn read(bytes: Vec<u8>) -> Option<(Vec<u64>, usize)> {
        let segment = Segment::from_bytes(bytes)?;
        let mut entries = segment.entries();
        let versions = entries.by_ref().map(|entry| entry.version).collect();
        Some((versions, entries.rest().len()))
    }

    #[test]
    fn entries_come_back_in_order_with_their_listeners() {
        let bytes = segment(&[(7, b"alice@example.com", b"one"), (8, b"", b"")]);
        let segment = Segment::from_bytes(bytes).unwrap();
        assert_eq!(
            *segment.listeners,
            [Box::from(&b"udp:192.0.2.1:5060"[..]), (*b"tcp:[::1]:5060").into()]
        );
        let all: Vec<_> = segment.entries().collect();
        assert_eq!(
            all[0],
            Entry {
                version: 7,
                saved_unix_s: 5,
                aor: b"alice@example.com",
                record: b"one"
            }
        );
        assert_eq!(
            all[1],
            Entry {
                version: 8,
                saved_unix_s: 5,
                aor: b"",
                record: b""
            }
        );
    }

    #[test]
    fn any_cut_gives_the_whole_entries_before_it() {
        let bytes = segment(&[(1, b"a@b", b"x"), (2, b"c@d", b"yy"), (3, b"e@f", b"zzz")]);
        let first = segment(&[]).len();
        let ends: Vec<usize> = [1usize, 2, 3]
            .iter()
            .scan(first, |at, n| {
                *at += 8 + ENTRY_FIXED + 3 + n;
                Some(*at)
            })
            .collect();
        assert_eq!(*ends.last().unwrap(), bytes.len());
        for cut in 0..bytes.len() {
            let whole = ends.iter().filter(|end| **end <= cut).count() as u64;
            match read(bytes[..cut].to_vec()) {
                None => assert!(cut < first),
                Some((versions, rest)) => {
                    assert_eq!(versions, (1..=whole).collect::<Vec<_>>());
                    let good = ends
                        .iter()
                        .copied()
                        .filter(|end| *end <= cut)
                        .max()
                        .unwrap_or(first);
                    assert_eq!(rest, cut - good);
                }
            }
        }
    }

    #[test]
    fn zeros_after_the_last_entry_are_a_torn_tail() {
        let mut bytes = segment(&[(1, b"a@b", b"x")]);
        bytes.extend_from_slice(&[0; 4096]);
        assert_eq!(read(bytes), Some((vec![1], 4096)));
    }

    proptest! {
        #[test]
        fn any_bytes_and_any_flipped_bit_are_read_without_panic(
            noise in proptest::collection::vec(any::<u8>(), 0..200),
            at in any::<prop::sample::Index>(),
            bit in 0..8u32,
        ) {
            let _ = read(noise.clone());
            let mut bytes = segment(&[(1, b"a@b", &noise), (2, b"c@d", b"y")]);
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            if let Some((versions, _)) = read(bytes) {
                prop_assert!(versions.len() < 2, "a flipped bit went unnoticed");
            }
        }
    }

    /// Fails writes or syncs when told to.
    #[derive(Debug, Default, Clone)]
    pub(crate) struct Faults(std::sync::Arc<parking_lot::Mutex<Vec<&'static str>>>);

    #[derive(Debug)]
    struct FaultyFile(Box<dyn SegmentFile>, Faults);

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
        fn create(&self, path: &Path) -> io::Result<Box<dyn SegmentFile>> {
            self.due("create")?;
            Ok(Box::new(FaultyFile(OsDisk.create(path)?, self.clone())))
        }

        fn cut(&self, path: &Path, bytes: u64) -> io::Result<()> {
            self.due("cut")?;
            OsDisk.cut(path, bytes)
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
        let (segments, _) = list(dir).unwrap();
        segments
            .iter()
            .map(|s| read(fs::read(&s.path).unwrap()).unwrap().0)
            .collect()
    }

    #[test]
    fn a_failed_sync_moves_the_entries_to_a_new_segment() {
        let dir = tempfile::tempdir().unwrap();
        let faults = Faults::default();
        let mut journal = Journal::new(dir.path(), Box::new(faults.clone()), 1, &[]);
        journal.append(&entry(1)).unwrap();
        faults.0.lock().push("sync");
        journal.append(&entry(2)).unwrap();
        assert_eq!(versions(dir.path()), [vec![1], vec![2]]);
        assert_eq!(
            journal.take_closed().len(),
            1,
            "the abandoned segment still holds version 1"
        );
        faults.0.lock().push("append");
        journal.append(&entry(3)).unwrap();
        assert_eq!(versions(dir.path()), [vec![1], vec![2], vec![3]]);
    }

    /// A version that was refused must not be the newest at the next start.
    #[test]
    fn what_was_refused_is_cut_off_before_anything_else_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let faults = Faults::default();
        let mut journal = Journal::new(dir.path(), Box::new(faults.clone()), 1, &[]);
        journal.append(&entry(1)).unwrap();
        faults.0.lock().extend(["sync", "create"]);
        assert!(journal.append(&entry(2)).is_err());
        assert_eq!(versions(dir.path()), [vec![1]]);

        journal.append(&entry(3)).unwrap();
        faults.0.lock().extend(["sync", "create", "cut"]);
        assert!(journal.append(&entry(4)).is_err());
        let held = journal.take_closed().len();
        faults.0.lock().push("cut");
        assert!(
            journal.append(&entry(5)).is_err(),
            "the refused one is still there"
        );
        assert!(journal.take_closed().is_empty(), "nobody may fold it");
        journal.append(&entry(6)).unwrap();
        assert_eq!(versions(dir.path()), [vec![1], vec![3], vec![6]]);
        assert_eq!((held, journal.take_closed().len()), (1, 1));
    }

    #[test]
    fn a_disk_that_stays_full_is_an_error_until_it_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let faults = Faults::default();
        let mut journal = Journal::new(dir.path(), Box::new(faults.clone()), 1, &[]);
        journal.append(&entry(1)).unwrap();
        faults.0.lock().extend(["append", "append"]);
        assert!(journal.append(&entry(2)).is_err());
        faults.0.lock().push("create");
        assert!(journal.append(&entry(3)).is_err());
        assert_eq!(versions(dir.path()), [vec![1]], "nothing half-written is left");
        journal.append(&entry(4)).unwrap();
        assert_eq!(versions(dir.path()), [vec![1], vec![4]]);
        let (segments, next) = list(dir.path()).unwrap();
        assert_eq!((segments.len(), next), (2, 5));
    }
}

//! A disk that keeps what a real one promises, and no more. Contents are safe once their file was synced,
//! names once their directory was. A killed process loses nothing, because the page cache remains. A loss of
//! power takes a random part of everything else, in sectors.
//!
//! A sync that fails behaves as on Linux. Dirty pages are clean from then on, whether or not they reached the
//! platter. They can still be read, and the next sync succeeds.

mod table;

pub use self::table::SimTable;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;

use sip_backend::location::parts::{Disk, SegmentFile};

use crate::rng::Rng;

/// Bytes that are written as a whole or not at all.
const SECTOR: usize = 512;

/// Faults of a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Free bytes; `None`: unlimited.
    pub room: Option<u64>,
    /// Failing syncs, per thousand.
    pub syncs: u32,
    /// Other failing changes, per thousand.
    pub changes: u32,
    /// Failing reads, per thousand.
    pub reads: u32,
}

/// A change of a file's content.
#[derive(Clone, Debug)]
enum Change {
    Write(usize, Vec<u8>),
    Cut(usize),
}

#[derive(Clone, Debug, Default)]
struct Inode {
    /// Content on the platter.
    durable: Vec<u8>,
    /// Content that is read: the page cache.
    cache: Vec<u8>,
    /// Changes that no sync has covered yet.
    dirty: Vec<Change>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entry {
    File(u64),
    Dir(u64),
}

#[derive(Clone, Debug, Default)]
struct Dir {
    names: BTreeMap<String, Entry>,
    durable: BTreeMap<String, Entry>,
}

/// The root directory.
const ROOT: u64 = 0;

#[derive(Debug)]
struct State {
    files: BTreeMap<u64, Inode>,
    dirs: BTreeMap<u64, Dir>,
    next: u64,
    faults: Faults,
    /// Number of operations until everything stops.
    stops_in: Option<u32>,
    /// Number of truncations that failed.
    refused_cuts: u32,
    rng: Rng,
}

/// A disk; clones share it.
#[derive(Clone, Debug)]
pub struct SimDisk {
    state: Rc<RefCell<State>>,
}

/// An open file of a [`SimDisk`].
#[derive(Debug)]
pub struct SimFile {
    disk: SimDisk,
    file: u64,
}

fn eio() -> io::Error {
    io::Error::other("the simulated disk fails")
}

fn apply(content: &mut Vec<u8>, change: &Change) {
    match change {
        Change::Write(at, bytes) => {
            let end = at + bytes.len();
            if content.len() < end {
                content.resize(end, 0);
            }
            content[*at..end].copy_from_slice(bytes);
        }
        Change::Cut(len) => content.truncate(*len),
    }
}

impl Inode {
    fn change(&mut self, change: Change) {
        apply(&mut self.cache, &change);
        self.dirty.push(change);
    }

    fn sync(&mut self) {
        for change in self.dirty.drain(..) {
            apply(&mut self.durable, &change);
        }
    }

    /// Drops the dirty changes: some of their sectors reach the platter, and the rest never will.
    fn drop_dirty(&mut self, rng: &mut Rng) {
        let kept = rng.pick(&[0, 300, 700, 1_000]);
        for change in core::mem::take(&mut self.dirty) {
            let Change::Write(at, bytes) = change else {
                if rng.chance(kept) {
                    apply(&mut self.durable, &change);
                }
                continue;
            };
            let mut from = 0;
            while from < bytes.len() {
                let to = ((at + from) / SECTOR * SECTOR + SECTOR - at).min(bytes.len());
                if rng.chance(kept) {
                    let piece = bytes[from..to].to_vec();
                    apply(&mut self.durable, &Change::Write(at + from, piece));
                }
                from = to;
            }
        }
    }
}

impl State {
    /// Begins an operation. Fails if everything has stopped.
    fn begin(&mut self) -> io::Result<()> {
        match &mut self.stops_in {
            None => Ok(()),
            Some(0) => Err(eio()),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
        }
    }

    fn change(&mut self) -> io::Result<()> {
        self.begin()?;
        let fails = self.faults.changes;
        self.fail(fails)
    }

    fn fail(&mut self, per_mille: u32) -> io::Result<()> {
        if self.rng.chance(per_mille) {
            return Err(eio());
        }
        Ok(())
    }

    fn take_room(&mut self, wanted: usize) -> usize {
        let Some(room) = &mut self.faults.room else {
            return wanted;
        };
        let taken = (*room).min(wanted as u64);
        *room -= taken;
        taken as usize
    }

    fn give_room(&mut self, bytes: usize) {
        if let Some(room) = &mut self.faults.room {
            *room += bytes as u64;
        }
    }

    fn fresh(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// The directory of this path.
    fn dir(&self, path: &Path) -> io::Result<u64> {
        let mut at = ROOT;
        for part in path.components() {
            let Component::Normal(name) = part else { continue };
            let entry = name.to_str().and_then(|name| self.dirs[&at].names.get(name));
            let Some(Entry::Dir(next)) = entry else {
                return Err(io::ErrorKind::NotFound.into());
            };
            at = *next;
        }
        Ok(at)
    }

    /// The directory of a file, and the file's name there.
    fn place(&self, path: &Path) -> io::Result<(u64, String)> {
        let name = path.file_name().and_then(|name| name.to_str());
        let dir = self.dir(path.parent().unwrap_or(Path::new("/")))?;
        let name = name.ok_or(io::ErrorKind::InvalidInput)?;
        Ok((dir, name.to_owned()))
    }

    fn file(&self, path: &Path) -> io::Result<u64> {
        let (dir, name) = self.place(path)?;
        match self.dirs[&dir].names.get(&name) {
            Some(Entry::File(file)) => Ok(*file),
            Some(Entry::Dir(_)) | None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn inode(&mut self, file: u64) -> &mut Inode {
        self.files.entry(file).or_default()
    }

    fn sync(&mut self, file: u64) -> io::Result<()> {
        self.begin()?;
        let mut rng = self.rng.fork();
        let failed = self.rng.chance(self.faults.syncs);
        let inode = self.inode(file);
        if failed {
            inode.drop_dirty(&mut rng);
            return Err(eio());
        }
        inode.sync();
        Ok(())
    }

    fn append(&mut self, file: u64, bytes: &[u8]) -> io::Result<()> {
        let begun = self.change();
        // An operation that fails may have written a part.
        let part = match begun {
            Ok(()) => bytes.len(),
            Err(_) if self.stops_in == Some(0) => 0,
            Err(_) => self.rng.between(0, bytes.len() as u64) as usize,
        };
        let room = self.take_room(part);
        let inode = self.inode(file);
        inode.change(Change::Write(inode.cache.len(), bytes[..room].to_vec()));
        begun?;
        if room < bytes.len() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }

    fn lose_power(&mut self) {
        let mut rng = self.rng.fork();
        for inode in self.files.values_mut() {
            inode.drop_dirty(&mut rng);
            inode.cache.clone_from(&inode.durable);
        }
        let kept = rng.pick(&[0, 500, 1_000]);
        for dir in self.dirs.values_mut() {
            let names: Vec<String> = dir.names.keys().chain(dir.durable.keys()).cloned().collect();
            for name in names {
                let (now, before) = (dir.names.get(&name).copied(), dir.durable.get(&name).copied());
                if now != before && rng.chance(kept) {
                    match now {
                        Some(entry) => dir.durable.insert(name, entry),
                        None => dir.durable.remove(&name),
                    };
                }
            }
            dir.names.clone_from(&dir.durable);
        }
        self.forget();
    }

    /// Drops files without a name.
    fn forget(&mut self) {
        let dirs = self.dirs.values();
        let named: Vec<Entry> = dirs
            .flat_map(|dir| dir.names.values().chain(dir.durable.values()))
            .copied()
            .collect();
        self.files.retain(|file, _| named.contains(&Entry::File(*file)));
    }
}

impl SimDisk {
    /// An empty disk.
    pub fn new(rng: Rng) -> Self {
        let state = State {
            files: BTreeMap::new(),
            dirs: BTreeMap::from([(ROOT, Dir::default())]),
            next: ROOT,
            faults: Faults::default(),
            stops_in: None,
            refused_cuts: 0,
            rng,
        };
        Self {
            state: Rc::new(RefCell::new(state)),
        }
    }

    /// Sets the faults from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.state.borrow_mut().faults = faults;
    }

    /// The present faults.
    pub fn faults(&self) -> Faults {
        self.state.borrow().faults
    }

    /// Stops the process or the machine after this many more operations, in the middle of one. Everything
    /// then fails and changes nothing, until [`SimDisk::crash`].
    pub fn stop_after(&self, operations: u32) {
        self.state.borrow_mut().stops_in = Some(operations);
    }

    /// Ends the process, or, with `power`, switches the machine off.
    pub fn crash(&self, power: bool) {
        let mut state = self.state.borrow_mut();
        state.stops_in = None;
        if power {
            state.lose_power();
        }
    }

    /// Number of truncations that failed so far.
    pub fn refused_cuts(&self) -> u32 {
        self.state.borrow().refused_cuts
    }

    /// The directory's files, read without side effects.
    pub fn files(&self, dir: &Path) -> Vec<(PathBuf, usize)> {
        let state = self.state.borrow();
        let Ok(found) = state.dir(dir) else {
            return Vec::new();
        };
        let entries = state.dirs[&found].names.iter();
        entries
            .filter_map(|(name, entry)| match entry {
                Entry::File(file) => Some((dir.join(name), state.files.get(file)?.cache.len())),
                Entry::Dir(_) => None,
            })
            .collect()
    }

    /// Whether a file with these bytes, and its name, would survive a loss of power.
    pub fn keeps(&self, bytes: &[u8]) -> bool {
        let state = self.state.borrow();
        let named = state.dirs.values().flat_map(|dir| dir.durable.values());
        let has = |content: &[u8]| content.windows(bytes.len().max(1)).any(|part| part == bytes);
        named
            .filter_map(|entry| match entry {
                Entry::File(file) => state.files.get(file),
                Entry::Dir(_) => None,
            })
            .any(|inode| has(&inode.durable))
    }

    /// Flips a bit of a file, on the platter and in the cache.
    pub fn flip(&self, path: &Path, at: usize, bit: u32) {
        let mut state = self.state.borrow_mut();
        let Ok(file) = state.file(path) else { return };
        let inode = state.inode(file);
        for content in [&mut inode.durable, &mut inode.cache] {
            if let Some(byte) = content.get_mut(at) {
                *byte ^= 1 << (bit % 8);
            }
        }
    }

    /// A transaction of a database, which is done as a whole or not at all. Returns whether it is done, and
    /// the result for its owner. If everything stops meanwhile, the two may differ.
    fn transaction(&self) -> (bool, io::Result<()>) {
        let mut state = self.state.borrow_mut();
        if state.stops_in == Some(0) {
            return (false, Err(eio()));
        }
        let full = state.faults.room == Some(0);
        let result = state.change();
        if result.is_err() || full {
            return (false, Err(eio()));
        }
        let stops = state.stops_in == Some(0);
        let done = !stops || state.rng.chance(500);
        (done, if stops { Err(eio()) } else { Ok(()) })
    }
}

impl Disk for SimDisk {
    type File = SimFile;

    fn make_dir(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state.borrow_mut();
        state.begin()?;
        if state.dir(path).is_ok() {
            return Ok(());
        }
        let (parent, name) = state.place(path)?;
        let dir = state.fresh();
        state.dirs.insert(dir, Dir::default());
        let parent = state.dirs.entry(parent).or_default();
        parent.names.insert(name, Entry::Dir(dir));
        Ok(())
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state.borrow_mut();
        state.begin()?;
        let dir = state.dir(path)?;
        let fails = state.faults.syncs;
        state.fail(fails)?;
        let dir = state.dirs.entry(dir).or_default();
        dir.durable.clone_from(&dir.names);
        state.forget();
        Ok(())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<(String, u64)>> {
        let mut state = self.state.borrow_mut();
        let reads = state.faults.reads;
        state.fail(reads)?;
        let found = state.dir(dir)?;
        let mut listed = Vec::new();
        for (name, entry) in &state.dirs[&found].names {
            if let Entry::File(file) = entry {
                let bytes = state.files.get(file).map_or(0, |inode| inode.cache.len());
                listed.push((name.clone(), bytes as u64));
            }
        }
        Ok(listed)
    }

    fn create(&self, path: &Path) -> io::Result<SimFile> {
        let mut state = self.state.borrow_mut();
        state.change()?;
        if state.faults.room == Some(0) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let (dir, name) = state.place(path)?;
        let file = state.fresh();
        let dir = state.dirs.entry(dir).or_default();
        if dir.names.contains_key(&name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        dir.names.insert(name, Entry::File(file));
        state.files.insert(file, Inode::default());
        Ok(SimFile {
            disk: self.clone(),
            file,
        })
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let mut state = self.state.borrow_mut();
        let reads = state.faults.reads;
        state.fail(reads)?;
        let file = state.file(path)?;
        Ok(state.inode(file).cache.clone())
    }

    fn sync(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state.borrow_mut();
        let file = state.file(path)?;
        state.sync(file)
    }

    fn truncate(&self, path: &Path, bytes: u64) -> io::Result<()> {
        let mut state = self.state.borrow_mut();
        let file = state.file(path)?;
        let mut cut = || {
            state.change()?;
            let inode = state.inode(file);
            let before = inode.cache.len();
            inode.change(Change::Cut(bytes as usize));
            state.give_room(before.saturating_sub(bytes as usize));
            state.sync(file)
        };
        let result = cut();
        state.refused_cuts += u32::from(result.is_err());
        result
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state.borrow_mut();
        state.change()?;
        let file = state.file(path)?;
        let (dir, name) = state.place(path)?;
        state.dirs.entry(dir).or_default().names.remove(&name);
        let bytes = state.inode(file).cache.len();
        state.give_room(bytes);
        Ok(())
    }
}

impl SegmentFile for SimFile {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.disk.state.borrow_mut().append(self.file, bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.disk.state.borrow_mut().sync(self.file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIR: &str = "/j";

    fn path(name: &str) -> PathBuf {
        Path::new(DIR).join(name)
    }

    fn disk(seed: u64) -> SimDisk {
        let disk = SimDisk::new(Rng::new(seed));
        disk.make_dir(Path::new(DIR)).unwrap();
        disk.sync_dir(Path::new("/")).unwrap();
        disk
    }

    /// Contents of a file after a loss of power, over many seeds.
    fn after_power(write: impl Fn(&SimDisk)) -> std::collections::BTreeSet<Option<Vec<u8>>> {
        (0..60)
            .map(|seed| {
                let disk = disk(seed);
                write(&disk);
                disk.crash(true);
                disk.read(&path("a")).ok()
            })
            .collect()
    }

    #[test]
    fn only_what_is_synced_is_safe() {
        let both = after_power(|disk| {
            let mut file = disk.create(&path("a")).unwrap();
            file.append(&[1; 600]).unwrap();
            file.sync().unwrap();
            disk.sync_dir(Path::new(DIR)).unwrap();
        });
        assert_eq!(both.into_iter().collect::<Vec<_>>(), [Some(vec![1; 600])]);
        let no_name = after_power(|disk| {
            let mut file = disk.create(&path("a")).unwrap();
            file.append(&[1; 600]).unwrap();
            file.sync().unwrap();
        });
        assert_eq!(
            no_name.into_iter().collect::<Vec<_>>(),
            [None, Some(vec![1; 600])]
        );
        let no_content = after_power(|disk| {
            let mut file = disk.create(&path("a")).unwrap();
            disk.sync_dir(Path::new(DIR)).unwrap();
            file.append(&[1; 600]).unwrap();
        });
        let mut second = vec![0; 512];
        second.extend([1; 88]);
        for found in [vec![], vec![1; 512], vec![1; 600], second] {
            assert!(no_content.contains(&Some(found)), "{no_content:?}");
        }
    }

    #[test]
    fn a_kill_loses_nothing_and_a_failed_sync_lies_later() {
        let disk = disk(1);
        let mut file = disk.create(&path("a")).unwrap();
        disk.sync_dir(Path::new(DIR)).unwrap();
        file.append(&[1; 10]).unwrap();
        disk.crash(false);
        assert_eq!(disk.read(&path("a")).unwrap(), [1; 10]);
        let found: std::collections::BTreeSet<usize> = (0..40)
            .map(|seed| {
                let disk = self::disk(seed);
                let mut file = disk.create(&path("a")).unwrap();
                disk.sync_dir(Path::new(DIR)).unwrap();
                file.append(&[1; 10]).unwrap();
                let fails = Faults {
                    syncs: 1_000,
                    ..Faults::default()
                };
                disk.set_faults(fails);
                file.sync().unwrap_err();
                disk.set_faults(Faults::default());
                file.sync().unwrap();
                assert_eq!(disk.read(&path("a")).unwrap(), [1; 10], "the cache has it");
                disk.crash(true);
                disk.read(&path("a")).unwrap().len()
            })
            .collect();
        assert_eq!(found.into_iter().collect::<Vec<_>>(), [0, 10]);
    }

    #[test]
    fn a_full_disk_takes_a_part_and_removals_make_room() {
        let disk = disk(1);
        let mut file = disk.create(&path("a")).unwrap();
        let full = Faults {
            room: Some(7),
            ..Faults::default()
        };
        disk.set_faults(full);
        let error = file.append(&[1; 10]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert_eq!(disk.read(&path("a")).unwrap(), [1; 7]);
        assert!(disk.create(&path("b")).is_err());
        disk.truncate(&path("a"), 3).unwrap();
        file.append(&[2; 4]).unwrap();
        assert_eq!(disk.read(&path("a")).unwrap(), [1, 1, 1, 2, 2, 2, 2]);
        disk.remove(&path("a")).unwrap();
        disk.create(&path("b")).unwrap();
    }

    #[test]
    fn where_everything_stops_nothing_changes_any_more() {
        let disk = disk(1);
        disk.stop_after(2);
        let mut file = disk.create(&path("a")).unwrap();
        file.append(&[1]).unwrap();
        file.append(&[2]).unwrap_err();
        disk.remove(&path("a")).unwrap_err();
        disk.crash(false);
        assert_eq!(disk.read(&path("a")).unwrap(), [1]);
        file.append(&[2]).unwrap();
    }
}

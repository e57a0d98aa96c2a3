//! The file system as the journal uses it: a trait, so that the simulator can use a disk that loses power.

use std::fmt::Debug;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;

/// Files by path. The effect of a method survives a loss of power only if the method says so: contents once
/// they are synced, names once their directory is.
pub trait Disk: Debug {
    /// A file that is being appended to.
    type File: SegmentFile;

    /// Makes a directory for its owner only, and its missing parents. An existing directory is left as it is.
    ///
    /// # Errors
    /// Those of the file system.
    fn make_dir(&self, path: &Path) -> io::Result<()>;

    /// Returns once all names in this directory are on stable storage, as are removals.
    ///
    /// # Errors
    /// Those of the file system.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;

    /// Names of the files in a directory, in any order, and their sizes.
    ///
    /// # Errors
    /// Those of the file system.
    fn list(&self, dir: &Path) -> io::Result<Vec<(String, u64)>>;

    /// Makes a new file.
    ///
    /// # Errors
    /// Those of the file system, also if the file exists.
    fn create(&self, path: &Path) -> io::Result<Self::File>;

    /// The whole content of a file.
    ///
    /// # Errors
    /// Those of the file system.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;

    /// Returns once a file's content is on stable storage, also if another process wrote it.
    ///
    /// # Errors
    /// Those of the file system. The content may then be lost, although it can still be read, and the next
    /// sync may succeed without it.
    fn sync(&self, path: &Path) -> io::Result<()>;

    /// Cuts a file to this length, and syncs it.
    ///
    /// # Errors
    /// Those of the file system.
    fn truncate(&self, path: &Path, bytes: u64) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// Those of the file system.
    fn remove(&self, path: &Path) -> io::Result<()>;
}

/// One open file.
pub trait SegmentFile: Debug {
    /// Appends all of `bytes`.
    ///
    /// # Errors
    /// Those of the file system. Some of the bytes may then be in the file.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Returns once everything appended is on stable storage.
    ///
    /// # Errors
    /// Those of the file system. Bytes appended since the last sync may then be lost, and the next sync may
    /// succeed without them.
    fn sync(&mut self) -> io::Result<()>;
}

/// The operating system's files.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OsDisk;

impl Disk for OsDisk {
    type File = File;

    fn make_dir(&self, path: &Path) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<(String, u64)>> {
        let entries = fs::read_dir(dir)?.map(|entry| {
            let entry = entry?;
            // Names that are not text are not ours.
            let name = entry.file_name().into_string().unwrap_or_default();
            Ok((name, entry.metadata()?.len()))
        });
        entries.collect()
    }

    fn create(&self, path: &Path) -> io::Result<File> {
        OpenOptions::new()
            .append(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        fs::read(path)
    }

    fn sync(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn truncate(&self, path: &Path, bytes: u64) -> io::Result<()> {
        let file = OpenOptions::new().write(true).open(path)?;
        file.set_len(bytes)?;
        file.sync_all()
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
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

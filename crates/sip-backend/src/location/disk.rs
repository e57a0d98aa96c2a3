//! The file system as the journal uses it: a seam for the simulator's disk, which loses power.

use std::fmt::Debug;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;

/// Files by path. What a method does survives a loss of power only where it says so: contents once
/// they are synced, names once their directory is.
pub trait Disk: Debug {
    /// A file that is being appended to.
    type File: SegmentFile;

    /// Makes a directory for the owner's eyes, and what is missing above it; one that is there
    /// already does.
    ///
    /// # Errors
    /// What the file system says.
    fn make_dir(&self, path: &Path) -> io::Result<()>;

    /// Returns once all names in this directory are on stable storage, as are removals.
    ///
    /// # Errors
    /// What the file system says.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;

    /// Names of the files in a directory, in any order, and their sizes.
    ///
    /// # Errors
    /// What the file system says.
    fn list(&self, dir: &Path) -> io::Result<Vec<(String, u64)>>;

    /// Makes a new file.
    ///
    /// # Errors
    /// What the file system says, as where there is one.
    fn create(&self, path: &Path) -> io::Result<Self::File>;

    /// All of a file.
    ///
    /// # Errors
    /// What the file system says.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;

    /// Returns once a file's content is on stable storage, also if another process wrote it.
    ///
    /// # Errors
    /// What the file system says. The content may be lost then, though it can still be read, and
    /// the next sync may call it good.
    fn sync(&self, path: &Path) -> io::Result<()>;

    /// Cuts a file off at this length, to last.
    ///
    /// # Errors
    /// What the file system says.
    fn truncate(&self, path: &Path, bytes: u64) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// What the file system says.
    fn remove(&self, path: &Path) -> io::Result<()>;
}

/// One open file.
pub trait SegmentFile: Debug {
    /// Appends all of `bytes`.
    ///
    /// # Errors
    /// What the file system says. Some of the bytes may be in the file then.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Returns once everything appended is on stable storage.
    ///
    /// # Errors
    /// What the file system says. What was appended since the last sync may be lost then, and the
    /// next sync may call it good.
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
            // Names that are no text are not ours.
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

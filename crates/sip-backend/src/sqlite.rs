//! Functions for every SQLite file of ours.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};

/// Longest wait of a connection for the lock of another one.
const BUSY: Duration = Duration::from_secs(5);

/// Creates the file if it is absent, readable by its owner only. Hashes are as good as passwords in their
/// realm, and the addresses of users are private. SQLite gives the files that it makes beside it the same
/// mode.
pub(crate) fn create(path: &Path) -> io::Result<()> {
    OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(path)
        .map(drop)
}

/// Opens the file, which must exist, for one thread at a time.
pub(crate) fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_READ_WRITE;
    let db = Connection::open_with_flags(path, flags)?;
    db.busy_timeout(BUSY)?;
    Ok(db)
}

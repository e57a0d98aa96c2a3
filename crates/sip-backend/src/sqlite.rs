//! What every SQLite file of ours has in common.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};

/// How long a connection waits for another one's lock.
const BUSY: Duration = Duration::from_secs(5);

/// Creates the file if it is absent, for its owner's eyes only. Hashes are as good as passwords in their
/// realm, and where users are reachable is private. SQLite gives the files that it makes beside it the same
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

//! Data directories with nothing but the system tables in them, made once per machine.

use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::system::{self, Owner};

/// Part of each template's name: raise it when what goes into one changes.
const EDITION: u32 = 1;

/// The template that `key` (program and version) names. `make` makes one in the directory that
/// it is given, which does not exist yet; its parent belongs to `owner`.
pub(crate) fn template(key: &str, owner: Option<Owner>, make: impl FnOnce(&Path)) -> PathBuf {
    let shelf = shelf();
    let uid = owner.map_or_else(system::own_uid, |owner| owner.uid);
    let name = format!("{}-user{uid}-edition{EDITION}", plain(key));
    let template = shelf.join(&name);
    if template.exists() {
        return template;
    }
    // One process makes it; other processes that want it meanwhile wait here. Freed by the kernel if we die.
    let lock = File::create(shelf.join(format!("{name}.lock"))).expect("a lock file can be made");
    lock.lock().expect("a file of our own can be locked");
    if !template.exists() {
        let workshop = directory_in(&shelves(), "template", owner);
        let made = workshop.path().join("data");
        make(&made);
        // Whole or not at all.
        fs::rename(&made, &template).expect("the template can be moved to the directory beside it");
    }
    template
}

/// The directory of templates' directories. It outlives the run, as the temporary directory may not.
fn shelves() -> PathBuf {
    std::env::var_os("TRAPEZOID_TEST_TEMPLATES").map_or_else(std::env::temp_dir, PathBuf::from)
}

/// Where templates are kept.
fn shelf() -> PathBuf {
    let uid = system::own_uid();
    let shelf = shelves().join(format!("test-databases-{uid}"));
    let made = DirBuilder::new().mode(0o700).create(&shelf);
    let found =
        fs::symlink_metadata(&shelf).unwrap_or_else(|e| panic!("{}: {e} ({made:?})", shelf.display()));
    // Temporary directories are shared: another user may have been first, with bad intent.
    let ours = found.is_dir() && found.uid() == uid && found.mode() & 0o077 == 0;
    assert!(
        ours,
        "{} is not a directory of ours alone: remove it",
        shelf.display()
    );
    shelf
}

/// A new temporary directory that only `owner` (or this user) may enter.
pub(crate) fn directory(name: &str, owner: Option<Owner>) -> tempfile::TempDir {
    directory_in(&std::env::temp_dir(), name, owner)
}

fn directory_in(parent: &Path, name: &str, owner: Option<Owner>) -> tempfile::TempDir {
    let directory = tempfile::Builder::new()
        .prefix(&format!("test-{name}-"))
        .tempdir_in(parent)
        .expect("a temporary directory can be made");
    if let Some(Owner { uid, gid }) = owner {
        std::os::unix::fs::chown(directory.path(), Some(uid), Some(gid))
            .expect("root may give a directory away");
    }
    directory
}

/// Copies a template with its owners and permissions.
pub(crate) fn copy(template: &Path, to: &Path) {
    system::output(system::clean_command("cp").arg("-a").arg(template).arg(to));
}

/// A version message as a file's name.
fn plain(key: &str) -> String {
    let kept = |c: char| {
        if c.is_ascii_alphanumeric() || c == '.' {
            c
        } else {
            '-'
        }
    };
    key.trim().chars().map(kept).take(120).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn is_made_once_and_copied_whole() {
        // Numbers of processes come again, and a run that was killed leaves its template.
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
        let key = format!("unit test {} {}", std::process::id(), now.as_nanos());
        let made = AtomicU32::new(0);
        let ask = || {
            template(&key, None, |to| {
                made.fetch_add(1, Ordering::Relaxed);
                fs::create_dir(to).unwrap();
                fs::write(to.join("file"), "content").unwrap();
            })
        };
        let paths: Vec<_> = std::thread::scope(|scope| {
            let asking: Vec<_> = (0..8).map(|_| scope.spawn(ask)).collect();
            asking.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(made.load(Ordering::Relaxed), 1);
        let target = tempfile::tempdir().unwrap();
        copy(&paths[0], &target.path().join("copy"));
        assert_eq!(
            fs::read_to_string(target.path().join("copy/file")).unwrap(),
            "content"
        );
        fs::remove_dir_all(&paths[0]).unwrap();
        fs::remove_file(paths[0].with_file_name(format!(
            "{}.lock",
            paths[0].file_name().unwrap().to_str().unwrap()
        )))
        .unwrap();
    }
}

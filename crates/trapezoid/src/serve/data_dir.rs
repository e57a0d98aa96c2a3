//! The directory of the server's own files, and the keys in it.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use zeroize::Zeroizing;

use crate::cli::Failure;

/// Length of the domain key, bytes.
pub(crate) const KEY_BYTES: usize = 32;

/// Makes the directory, for its owner only, if it is absent.
pub(crate) fn create(path: &Path) -> Result<(), Failure> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|error| {
        let remedy = "make it, or name another one in [server] data_dir";
        Failure::Usage(format!(
            "cannot make the data directory {}: {error}; {remedy}",
            path.display()
        ))
    })
}

/// The key of the domain from `domain.key`, which the first start makes. Nodes that share it accept each
/// other's Record-Route marks.
pub(crate) fn domain_key(data_dir: &Path) -> Result<Zeroizing<[u8; KEY_BYTES]>, Failure> {
    let path = data_dir.join("domain.key");
    let failed = |error: io::Error| {
        let remedy = "the server must be able to read and write its data directory";
        Failure::Usage(format!("{}: {error}; {remedy}", path.display()))
    };
    match read_key(&path) {
        Ok(Some(key)) => Ok(key),
        Ok(None) => Err(Failure::Usage(format!(
            "{} has not {KEY_BYTES} bytes; put the right file there, or remove it to have a new one made (calls in \
             progress then lose their way)",
            path.display()
        ))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let key = random_key()?;
            write_once(&path, key.as_slice()).map_err(failed)?;
            // If two processes start at once, both must use the same key: the file's.
            read_key(&path).map_err(failed).map(|found| found.unwrap_or(key))
        }
        Err(error) => Err(failed(error)),
    }
}

/// What other users of this machine could do with the directory and its key, a sentence each. Only the
/// operator may change that: a group may be meant to read, but none to write.
pub(crate) fn exposed(data_dir: &Path) -> Vec<String> {
    let mode = |path: &Path| fs::metadata(path).map_or(0, |data| data.permissions().mode() & 0o777);
    let key = data_dir.join("domain.key");
    let mut found = Vec::new();
    if mode(data_dir) & 0o022 != 0 {
        found.push(format!(
            "{}: other users can write here, and so replace keys and registrations; chmod go-w",
            data_dir.display()
        ));
    }
    if mode(&key) & 0o077 != 0 {
        found.push(format!(
            "{}: other users can read or write it, and so forge what this server knows again; chmod go-rwx",
            key.display()
        ));
    }
    found
}

/// Fresh random bytes from the kernel.
pub(crate) fn random_key() -> Result<Zeroizing<[u8; KEY_BYTES]>, Failure> {
    let mut key = Zeroizing::new([0; KEY_BYTES]);
    getrandom::fill(key.as_mut_slice()).map_err(|error| Failure::failed("no random bytes", error))?;
    Ok(key)
}

/// The key; `None` if the file has another length.
fn read_key(path: &Path) -> io::Result<Option<Zeroizing<[u8; KEY_BYTES]>>> {
    let mut bytes = Zeroizing::new(Vec::with_capacity(KEY_BYTES + 1));
    fs::File::open(path)?
        .take(KEY_BYTES as u64 + 1)
        .read_to_end(&mut bytes)?;
    Ok(<[u8; KEY_BYTES]>::try_from(bytes.as_slice())
        .ok()
        .map(Zeroizing::new))
}

/// Makes the file of a secret, for its owner only. It is written under another name first, so that it is
/// whole or absent whenever the machine stops. If the file has appeared meanwhile, it stays.
pub(crate) fn write_once(path: &Path, secret: &[u8]) -> io::Result<()> {
    let mut draft = path.as_os_str().to_owned();
    draft.push(format!(".{}", std::process::id()));
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&draft)?;
    let written = file.write_all(secret).and_then(|()| file.sync_all());
    let linked = written.and_then(|()| match fs::hard_link(&draft, path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    });
    fs::remove_file(&draft)?;
    linked?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    fs::File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_is_made_once_for_its_owner_only() {
        let dir = tempfile::tempdir().expect("a directory");
        let data = dir.path().join("a/data");
        create(&data).expect("made");
        create(&data).expect("there already");
        let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
        assert_eq!(mode(&data), 0o700);
        let first = domain_key(&data).expect("a key");
        let second = domain_key(&data).expect("a key");
        assert_eq!(*first, *second);
        assert_eq!(mode(&data.join("domain.key")), 0o600);
        assert_eq!(
            fs::read_dir(&data).expect("readable").count(),
            1,
            "no draft is left"
        );

        let other = dir.path().join("b");
        create(&other).expect("made");
        assert_ne!(*domain_key(&other).expect("a key"), *first);
    }

    #[test]
    fn what_others_can_write_is_a_warning() {
        let dir = tempfile::tempdir().expect("a directory");
        let data = dir.path().join("data");
        create(&data).expect("made");
        domain_key(&data).expect("a key");
        assert_eq!(exposed(&data), Vec::<String>::new());
        let set = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("ours");
        };
        // A group is allowed to read the directory.
        for (directory, key, warnings) in [
            (0o750, 0o600, 0),
            (0o770, 0o600, 1),
            (0o700, 0o640, 1),
            (0o777, 0o666, 2),
        ] {
            set(&data, directory);
            set(&data.join("domain.key"), key);
            assert_eq!(exposed(&data).len(), warnings, "{directory:o} {key:o}");
        }
    }

    #[test]
    fn a_broken_key_is_refused_and_not_replaced() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("domain.key");
        for wrong in [&[1_u8; 31][..], &[1; 33], &[]] {
            fs::write(&path, wrong).expect("writable");
            let Err(Failure::Usage(text)) = domain_key(dir.path()) else {
                panic!("accepted {wrong:?}")
            };
            assert!(text.contains("has not 32 bytes"), "{text}");
            assert_eq!(fs::read(&path).expect("there"), wrong);
        }
    }
}

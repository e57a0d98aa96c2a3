//! The file for the result.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::Path;

use crate::cli::{Failure, print};

/// The output, opened before the load begins: if the result of a finished load could not be written, it would
/// be lost.
#[derive(Debug)]
pub(super) enum Output<'a> {
    Stdout,
    File {
        path: &'a Path,
        file: File,
        /// Whether the file is new.
        new: bool,
    },
}

impl<'a> Output<'a> {
    /// Opens the output. An existing content stays until there is a result.
    pub(super) fn open(path: &'a Path) -> Result<Self, Failure> {
        if path.as_os_str() == "-" {
            return Ok(Self::Stdout);
        }
        let made = OpenOptions::new().write(true).create_new(true).open(path);
        let (opened, new) = match made {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                (OpenOptions::new().write(true).open(path), false)
            }
            made => (made, true),
        };
        let file = opened.map_err(|error| cannot(path, error))?;
        Ok(Self::File { path, file, new })
    }

    pub(super) fn write(self, json: &str) -> Result<(), Failure> {
        match self {
            Self::Stdout => print(&format!("{json}\n")),
            Self::File { path, mut file, .. } => {
                let regular = file.metadata().is_ok_and(|known| known.is_file());
                let emptied = if regular { file.set_len(0) } else { Ok(()) };
                emptied
                    .and_then(|()| file.write_all(json.as_bytes()))
                    .map_err(|error| cannot(path, error))
            }
        }
    }

    /// Ends the output without a result.
    pub(super) fn discard(self) {
        if let Self::File { path, new: true, .. } = self {
            // If removal fails, the file stays empty, which shows that there was no result.
            let _ = std::fs::remove_file(path);
        }
    }
}

fn cannot(path: &Path, error: std::io::Error) -> Failure {
    Failure::failed(&format!("cannot write {}", path.display()), error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_there_for_a_result_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out.json");
        Output::open(&path).unwrap().discard();
        assert!(!path.exists());
        Output::open(&path).unwrap().write("{\"long\":1}").unwrap();
        Output::open(&path).unwrap().discard();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "{\"long\":1}");
        Output::open(&path).unwrap().write("{}").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "{}");
        let missing = dir.path().join("none").join("out.json");
        assert!(matches!(Output::open(&missing), Err(Failure::Failed(_))));
    }
}

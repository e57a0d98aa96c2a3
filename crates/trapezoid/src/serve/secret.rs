//! The secrets that the first start makes and shows once: passwords, and the token for `/api/v1/`.
//!
//! A terminal shows them. Any other reader of standard error keeps what it reads (systemd's journal, a container's
//! log). So without a terminal the secrets go into files that only their owner can read, and the log names the files.

use std::fs;
use std::io::{self, IsTerminal};
use std::path::Path;

use settings::{LogFormat, Shell};
use zeroize::Zeroizing;

use super::data_dir::write_once;
use crate::cli::{Failure, say};

/// File in `server.data_dir` for the passwords of the first start.
const FILE: &str = "first-start.txt";

/// Whether standard error shows secrets to a person, and does not store them.
pub(super) fn is_seen(shell: &Shell) -> bool {
    io::stderr().is_terminal() && shell.log.format == LogFormat::Text
}

/// Writes a text with passwords into a file, unless a terminal will show it.
pub(super) fn keep(shell: &Shell, is_seen: bool, welcome: &str) -> Result<(), Failure> {
    if is_seen {
        return Ok(());
    }
    let file = shell.data_dir.join(FILE);
    // The file of an earlier first start has other passwords.
    let written = match fs::remove_file(&file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => write_once(&file, welcome.as_bytes()),
    };
    written.map_err(|error| Failure::failed(&format!("cannot write {}", file.display()), error))
}

/// Shows the new secrets, or names the files that have them.
pub(super) fn show(
    shell: &Shell,
    is_seen: bool,
    welcome: Option<Zeroizing<String>>,
    token: Option<Zeroizing<String>>,
) {
    let place = shell.admin_token.display();
    match (welcome, is_seen) {
        (Some(text), true) => say(&text),
        (Some(_), false) => {
            let file = shell.data_dir.join(FILE);
            let file = file.display();
            tracing::info!(
                "first start: two subscribers were made; {file} has their passwords, remove it once read"
            );
        }
        (None, _) => {}
    }
    match (token, is_seen) {
        (Some(token), true) => say(&Zeroizing::new(shown(&shell.admin_token, &token))),
        (Some(_), false) => tracing::info!("first start: the token of /api/v1/ was made; {place} has it"),
        (None, _) => {}
    }
}

fn shown(place: &Path, token: &str) -> String {
    let place = place.display();
    format!(
        "First start: the token of /api/v1/ was made. It is shown this once, and kept in {place}.\n\n    {token}\n"
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use settings::{Machine, read_text};

    use super::*;

    #[test]
    fn what_keeps_standard_error_gets_no_secret() {
        let machine = Machine::default();
        let dir = tempfile::tempdir().expect("a directory");
        let text = format!("[server]\ndata_dir = {:?}\n", dir.path());
        let shell = read_text(&text, "f", None, &machine)
            .unwrap_or_else(|problems| panic!("{problems}"))
            .shell;
        let file = dir.path().join(FILE);
        assert!(keep(&shell, true, "passw0rds").is_ok());
        assert!(!file.exists(), "a terminal shows them");
        assert!(keep(&shell, false, "passw0rds").is_ok());
        assert_eq!(fs::read_to_string(&file).expect("written"), "passw0rds");
        // As if the subscribers had been removed and made again.
        assert!(keep(&shell, false, "others").is_ok());
        assert_eq!(fs::read_to_string(&file).expect("written"), "others");
        let mode = fs::metadata(&file).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        fs::remove_file(&file).expect("removed");
        fs::create_dir(&file).expect("in its place");
        assert!(keep(&shell, false, "passw0rds").is_err(), "not written");
    }
}

//! The secrets that the first start makes and shows once: passwords, and the token of `/api/v1/`.
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

/// File of the passwords of the first start, in `server.data_dir`.
const FILE: &str = "first-start.txt";

/// Shows the new secrets, or writes them into files. `welcome` is a text with the passwords.
pub(super) fn show(
    shell: &Shell,
    welcome: Option<Zeroizing<String>>,
    token: Option<Zeroizing<String>>,
) -> Result<(), Failure> {
    let is_seen = io::stderr().is_terminal() && shell.log.format == LogFormat::Text;
    let place = shell.admin_token.display();
    if is_seen {
        if let Some(text) = &welcome {
            say(text);
        }
        if let Some(token) = &token {
            say(&Zeroizing::new(shown(&shell.admin_token, token)));
        }
        return Ok(());
    }
    if let Some(text) = &welcome {
        let file = shell.data_dir.join(FILE);
        // A file of an earlier first start has other passwords.
        let written = match fs::remove_file(&file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => write_once(&file, text.as_bytes()),
        };
        written.map_err(|error| Failure::failed(&format!("cannot write {}", file.display()), error))?;
        let file = file.display();
        tracing::info!(
            "first start: two subscribers were made; {file} has their passwords, remove it once read"
        );
    }
    if token.is_some() {
        tracing::info!("first start: the token of /api/v1/ was made; {place} has it");
    }
    Ok(())
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

    /// The standard error of a test run is usually no terminal.
    #[test]
    fn what_keeps_standard_error_gets_no_secret() {
        let machine = Machine::default();
        let dir = tempfile::tempdir().expect("a directory");
        let text = format!("[server]\ndata_dir = {:?}\n", dir.path());
        let loaded = read_text(&text, "f", None, &machine).unwrap_or_else(|problems| panic!("{problems}"));
        let file = dir.path().join(FILE);
        let secret = |text: &str| Some(Zeroizing::new(text.to_owned()));
        if io::stderr().is_terminal() {
            return;
        }
        assert!(show(&loaded.shell, None, secret("t0ken")).is_ok());
        assert!(!file.exists());
        assert!(show(&loaded.shell, secret("passw0rds"), None).is_ok());
        assert_eq!(fs::read_to_string(&file).expect("written"), "passw0rds");
        // As if the subscribers had been removed and made again.
        assert!(show(&loaded.shell, secret("others"), None).is_ok());
        assert_eq!(fs::read_to_string(&file).expect("written"), "others");
        let mode = fs::metadata(&file).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}

//! The token for `/api/v1/`, and its file.

use std::fmt;
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use crate::cli::Failure;
use crate::serve::data_dir::{random_key, write_once};

/// Fewest characters of a token; a shorter one could be guessed.
const LEAST: usize = 16;
/// Most characters of a token.
const MOST: usize = 1024;

/// The token that admits an operator.
pub(crate) struct Token(Zeroizing<String>);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

impl Token {
    /// Whether `given` is the token. The time of the comparison does not depend on where the two differ.
    pub(crate) fn is(&self, given: &[u8]) -> bool {
        self.0.as_bytes().ct_eq(given).into()
    }

    /// The token's characters, to be shown once, at the first start.
    pub(crate) fn text(&self) -> &str {
        &self.0
    }

    #[cfg(test)]
    pub(crate) fn of(text: &str) -> Self {
        Self(Zeroizing::new(text.to_owned()))
    }
}

/// The token in `path`, and whether it was made now because the file was absent.
pub(crate) fn read_or_make(path: &Path) -> Result<(Token, bool), Failure> {
    match read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let key = random_key()?;
            let text: Zeroizing<String> =
                Zeroizing::new(key.iter().map(|byte| format!("{byte:02x}")).collect());
            let line = Zeroizing::new(format!("{}\n", text.as_str()));
            write_once(path, line.as_bytes()).map_err(|error| failed(path, &error))?;
            // If two processes start at once, both must use the same token: the file's.
            let kept = read(path).map_err(|error| failed(path, &error))?;
            let made = kept.as_ref().is_some_and(|kept| *kept == text);
            Ok((Token(kept.unwrap_or(text)), made))
        }
        Err(error) => Err(failed(path, &error)),
        Ok(None) => Err(Failure::Usage(format!(
            "{} has no token of {LEAST} to {MOST} visible ASCII characters in its first line; write one there, or \
             remove the file to have a new one made",
            path.display()
        ))),
        Ok(Some(text)) => {
            let mode = fs::metadata(path).map_or(0, |metadata| metadata.permissions().mode());
            if mode & 0o077 != 0 {
                tracing::warn!("others than its owner may use {}; chmod 600 it", path.display());
            }
            Ok((Token(text), false))
        }
    }
}

fn failed(path: &Path, error: &io::Error) -> Failure {
    let remedy = "name another file in [admin] token_file, or set listen = \"off\" there";
    Failure::Usage(format!("{}: {error}; {remedy}", path.display()))
}

/// The first line; `None` if it cannot be a token.
fn read(path: &Path) -> io::Result<Option<Zeroizing<String>>> {
    let mut bytes = Zeroizing::new(Vec::with_capacity(MOST + 2));
    fs::File::open(path)?
        .take(MOST as u64 + 2)
        .read_to_end(&mut bytes)?;
    let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = line.trim_ascii();
    let fits = (LEAST..=MOST).contains(&line.len()) && line.iter().all(u8::is_ascii_graphic);
    Ok(fits
        .then(|| std::str::from_utf8(line).ok())
        .flatten()
        .map(|text| Zeroizing::new(text.to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_made_once_for_its_owner_only() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("admin.token");
        let (first, made) = read_or_make(&path).expect("a token");
        assert!(made);
        assert_eq!(first.text().len(), 64);
        let mode = fs::metadata(&path).expect("there").permissions().mode() & 0o777;
        assert_eq!(mode, 0o600);
        let (second, made) = read_or_make(&path).expect("a token");
        assert!(!made);
        assert!(second.is(first.text().as_bytes()));
        assert!(!second.is(&first.text().as_bytes()[1..]) && !second.is(b""));
        assert_eq!(fs::read_dir(dir.path()).expect("readable").count(), 1);
        assert_eq!(format!("{second:?}"), "Token(..)");
    }

    #[test]
    fn files_without_one_are_refused_and_stay() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("t");
        for wrong in [
            "",
            "short",
            "\n0123456789abcdef\n",
            "0123456789 abcdef\n",
            "0123456789abcdé\n",
        ] {
            fs::write(&path, wrong).expect("writable");
            let Err(Failure::Usage(text)) = read_or_make(&path) else {
                panic!("accepted {wrong:?}")
            };
            assert!(text.contains("has no token of 16 to 1024"), "{text}");
            assert_eq!(fs::read_to_string(&path).expect("there"), wrong);
        }
        fs::write(&path, " 0123456789abcdef \r\nmore\n").expect("writable");
        let (token, made) = read_or_make(&path).expect("a token");
        assert!(!made && token.is(b"0123456789abcdef"));
        let Err(Failure::Usage(text)) = read_or_make(&dir.path().join("no/t")) else {
            panic!("no directory, no file")
        };
        assert!(text.contains("name another file in [admin] token_file"), "{text}");
    }
}

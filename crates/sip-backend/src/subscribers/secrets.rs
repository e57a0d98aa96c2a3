//! Conversion of a row into the secrets that digest needs.

use std::time::Duration;

use sip_core::auth::digest::{self, Hash};
use sip_core::config::Algorithm;
use sip_core::query::Secrets;
use zeroize::Zeroizing;

use crate::metrics::Counter;
use crate::throttle::LogThrottle;

/// A column that may hold a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field {
    Ha1,
    Ha1b,
    Sha256,
    Sha512t256,
    Password,
}

/// A row as the database returned it. A value is empty if the table has no such column, or the row has no
/// value.
#[derive(Clone, Copy, Default)]
pub(super) struct Row<'a> {
    pub(super) user: &'a [u8],
    pub(super) domain: &'a [u8],
    ha1: &'a [u8],
    ha1b: &'a [u8],
    sha256: &'a [u8],
    sha512t256: &'a [u8],
    password: &'a [u8],
}

impl<'a> Row<'a> {
    /// A row without secrets.
    pub(super) fn new(user: &'a [u8], domain: &'a [u8]) -> Self {
        Self {
            user,
            domain,
            ..Self::default()
        }
    }

    pub(super) fn set(&mut self, field: Field, value: &'a [u8]) {
        *match field {
            Field::Ha1 => &mut self.ha1,
            Field::Ha1b => &mut self.ha1b,
            Field::Sha256 => &mut self.sha256,
            Field::Sha512t256 => &mut self.sha512t256,
            Field::Password => &mut self.password,
        } = value;
    }
}

/// Reads secrets from rows.
#[derive(Debug)]
pub(super) struct Reader {
    calculate: bool,
    /// Number of values that are no hash of their algorithm.
    pub(super) broken: Counter,
    log: LogThrottle,
}

impl Reader {
    /// A reader. With `calculate`, rows hold plain passwords.
    pub(super) const fn new(calculate: bool) -> Self {
        Self {
            calculate,
            broken: Counter::new(),
            log: LogThrottle::new(Duration::from_secs(60)),
        }
    }

    /// The secrets of a row for `username` in `realm`. If the name includes its domain (`full`) and hashes
    /// are stored, only MD5 has a hash for it: there is one such column.
    pub(super) fn read(&self, row: &Row<'_>, username: &[u8], full: bool, realm: &[u8]) -> Secrets {
        if self.calculate {
            if row.password.is_empty() {
                return Secrets::default();
            }
            return digest::secrets(username, realm, row.password);
        }
        if full {
            return Secrets {
                ha1_md5: self.hash(row.ha1b, Algorithm::Md5),
                ..Secrets::default()
            };
        }
        Secrets {
            ha1_md5: self.hash(row.ha1, Algorithm::Md5),
            ha1_sha256: self.hash(row.sha256, Algorithm::Sha256),
            ha1_sha512_256: self.hash(row.sha512t256, Algorithm::Sha512_256),
            outdated: false,
        }
    }

    /// The value of a hash column. A value of another form counts as empty.
    fn hash<const N: usize>(&self, value: &[u8], algorithm: Algorithm) -> Option<Zeroizing<[u8; N]>> {
        // Columns of fixed length are padded with spaces.
        let digits = value.trim_ascii_end();
        if digits.is_empty() {
            return None;
        }
        let hash = Hash::from_hex(algorithm, digits);
        if hash.is_none() {
            self.broken.inc();
            if let Some(more) = self.log.allow() {
                let algorithm = algorithm.name();
                tracing::warn!(
                    algorithm,
                    more,
                    "subscriber table: a hash column does not hold a hash; ignored"
                );
            }
        }
        array(&hash?)
    }
}

fn array<const N: usize>(hash: &Hash) -> Option<Zeroizing<[u8; N]>> {
    let mut bytes = Zeroizing::new([0; N]);
    bytes.copy_from_slice(hash.as_bytes().get(..N)?);
    Some(bytes)
}

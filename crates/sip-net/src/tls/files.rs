//! Reading certificates and keys from files, with errors that say which file and what is wrong.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use aws_lc_rs::digest;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use x509_cert::Certificate;
use x509_cert::der::Decode;
use zeroize::Zeroizing;

use super::error::{TlsFileError, TlsWarning};

/// The largest accepted file, bytes. A bundle of all public authorities has 0.2 MB.
const FILE_MAX: u64 = 4 << 20;
/// Seconds before its expiry from which on a certificate is warned about.
const SOON: u64 = 14 * 86_400;

pub(super) fn read(path: &Path) -> Result<Zeroizing<Vec<u8>>, TlsFileError> {
    let failed = |source| TlsFileError::Read {
        path: path.to_owned(),
        source,
    };
    if fs::metadata(path).map_err(failed)?.len() > FILE_MAX {
        let source = io::Error::new(io::ErrorKind::FileTooLarge, format!("more than {FILE_MAX} bytes"));
        return Err(failed(source));
    }
    fs::read(path).map(Zeroizing::new).map_err(failed)
}

/// Warns if users beyond the owner's group can read a secret.
pub(super) fn check_private(path: &Path, warnings: &mut Vec<TlsWarning>) {
    if fs::metadata(path).is_ok_and(|found| found.permissions().mode() & 0o004 != 0) {
        warnings.push(TlsWarning::ReadableByOthers {
            path: path.to_owned(),
        });
    }
}

/// All certificates of a file; at least one.
pub(super) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsFileError> {
    let text = read(path)?;
    let mut found = Vec::new();
    for item in CertificateDer::pem_slice_iter(&text) {
        found.push(item.map_err(|error| pem_error(path, &error))?);
    }
    if found.is_empty() {
        return Err(TlsFileError::NoCertificate {
            path: path.to_owned(),
        });
    }
    Ok(found)
}

/// The first private key of a file.
pub(super) fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsFileError> {
    let text = read(path)?;
    PrivateKeyDer::from_pem_slice(&text).map_err(|error| {
        if matches!(error, pem::Error::NoItemsFound) {
            TlsFileError::NoKey {
                path: path.to_owned(),
            }
        } else {
            pem_error(path, &error)
        }
    })
}

pub(super) fn pem_error(path: &Path, error: &pem::Error) -> TlsFileError {
    TlsFileError::Pem {
        path: path.to_owned(),
        reason: error.to_string(),
    }
}

/// SHA-256 over pieces, each preceded by its length, so that no two lists give the same digest.
pub(super) fn sha256(pieces: &[&[u8]]) -> [u8; 32] {
    let mut context = digest::Context::new(&digest::SHA256);
    for piece in pieces {
        context.update(&(piece.len() as u64).to_be_bytes());
        context.update(piece);
    }
    let mut result = [0; 32];
    result.copy_from_slice(context.finish().as_ref());
    result
}

/// The validity of a certificate, from and until, seconds since 1970. `None` if it cannot be read.
pub(super) fn validity(certificate: &CertificateDer<'_>) -> Option<(u64, u64)> {
    let certificate = Certificate::from_der(certificate).ok()?;
    let validity = certificate.tbs_certificate().validity();
    Some((
        validity.not_before.to_unix_duration().as_secs(),
        validity.not_after.to_unix_duration().as_secs(),
    ))
}

/// Warns of a certificate that peers refuse now, or will refuse soon.
pub(super) fn check_validity(
    path: &Path,
    certificate: &CertificateDer<'_>,
    now: UnixTime,
    warnings: &mut Vec<TlsWarning>,
) {
    let Some((from, until)) = validity(certificate) else {
        return;
    };
    let now = now.as_secs();
    let path = path.to_owned();
    if now < from {
        warnings.push(TlsWarning::NotYetValid {
            path,
            in_s: from - now,
        });
    } else if now > until {
        warnings.push(TlsWarning::Expired {
            path,
            ago_s: now - until,
        });
    } else if until - now < SOON {
        warnings.push(TlsWarning::ExpiresSoon {
            path,
            in_s: until - now,
        });
    }
}

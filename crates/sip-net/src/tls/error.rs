//! Errors of TLS: in an operator's files, and with a peer.

use std::io;
use std::path::{Path, PathBuf};

use rustls::{AlertDescription, CertificateError, Error};

/// The reason why a session ended or cannot continue. If the protocol has an alert for the error, the failing
/// call has appended it to its output. That output must be sent before the connection is closed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// The peer's certificate is not valid: wrong name, unknown authority, expired.
    #[error("the peer's certificate is refused: {0}")]
    PeerCertificate(CertificateError),
    /// The session that the peer resumed began with a certificate that has expired since.
    #[error("the peer resumed a session although its certificate has expired since")]
    ResumedExpired,
    /// A certificate is required, and the peer presented none.
    #[error("the peer has no certificate")]
    NoPeerCertificate,
    /// The peer ended the session with this alert.
    #[error("the peer sent the alert {0:?}")]
    Alert(AlertDescription),
    /// Both sides have no version, suite, group or signature in common.
    #[error("nothing in common with the peer: {0}")]
    Incompatible(String),
    /// The received bytes are not TLS, or break its rules.
    #[error("the peer breaks the protocol: {0}")]
    Protocol(String),
    /// A record cannot be decrypted.
    #[error("a record does not decrypt")]
    Decrypt,
    /// A handshake message needs more memory than the session may take.
    #[error("an incomplete message of the peer exceeds {0} bytes")]
    TooLarge(usize),
    /// Data was to be written before the handshake was done.
    #[error("the handshake is not done")]
    NotEstablished,
    /// The session has failed earlier, or we have closed it.
    #[error("the session has ended")]
    Ended,
    /// A certificate cannot contain this name.
    #[error("{0:?} is neither a host name nor an address")]
    Name(String),
    /// An internal error: randomness, time, keys.
    #[error("{0}")]
    Internal(String),
}

impl TlsError {
    /// The cause in one word, for a counter's label; the set is small and fixed.
    pub fn cause(&self) -> &'static str {
        match self {
            Self::PeerCertificate(_) | Self::ResumedExpired => "peer-certificate",
            Self::NoPeerCertificate => "no-peer-certificate",
            Self::Alert(_) => "alert",
            Self::Incompatible(_) => "incompatible",
            Self::Protocol(_) | Self::Decrypt => "protocol",
            Self::TooLarge(_) => "too-large",
            Self::NotEstablished | Self::Ended | Self::Name(_) | Self::Internal(_) => "internal",
        }
    }
}

impl From<Error> for TlsError {
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "the library may add errors; whatever is not the peer's is ours"
    )]
    fn from(error: Error) -> Self {
        match error {
            Error::InvalidCertificate(why) => Self::PeerCertificate(why),
            Error::NoCertificatesPresented => Self::NoPeerCertificate,
            Error::AlertReceived(alert) => Self::Alert(alert),
            Error::PeerIncompatible(why) => Self::Incompatible(format!("{why:?}")),
            Error::DecryptError => Self::Decrypt,
            Error::InappropriateMessage { .. }
            | Error::InappropriateHandshakeMessage { .. }
            | Error::InvalidMessage(_)
            | Error::UnsupportedNameType
            | Error::PeerMisbehaved(_)
            | Error::PeerSentOversizedRecord => Self::Protocol(error.to_string()),
            _ => Self::Internal(error.to_string()),
        }
    }
}

/// An error of a file. The message names the file and says what would be right.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsFileError {
    /// The file cannot be read.
    #[error("{path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The file is not PEM.
    #[error("{path}: not PEM (text with `-----BEGIN …-----` and `-----END …-----` lines): {reason}")]
    Pem {
        /// The file.
        path: PathBuf,
        /// The reader's reason.
        reason: String,
    },
    /// The file holds no certificate.
    #[error("{path}: no certificate; expected `-----BEGIN CERTIFICATE-----`, the server's own first")]
    NoCertificate {
        /// The file.
        path: PathBuf,
    },
    /// The file holds no private key.
    #[error(
        "{path}: no private key; expected `-----BEGIN PRIVATE KEY-----` (or RSA, or EC) without a password"
    )]
    NoKey {
        /// The file.
        path: PathBuf,
    },
    /// A certificate of the file cannot be used.
    #[error("{path}: certificate {number} cannot be used: {reason}")]
    Certificate {
        /// The file.
        path: PathBuf,
        /// The certificate's number in the file, from 1.
        number: usize,
        /// The reason why the certificate cannot be used.
        reason: String,
    },
    /// The file holds no revocation list.
    #[error("{path}: no list of revoked certificates; expected `-----BEGIN X509 CRL-----`")]
    NoRevocationList {
        /// The file.
        path: PathBuf,
    },
    /// A revocation list of the file cannot be used.
    #[error("{path}: list {number} of revoked certificates cannot be used: {reason}")]
    RevocationList {
        /// The file.
        path: PathBuf,
        /// The list's number in the file, from 1.
        number: usize,
        /// The reason why the list cannot be used.
        reason: String,
    },
    /// The file's private key cannot be used.
    #[error(
        "{path}: the private key cannot be used ({reason}); RSA of 2048 bits or more, or ECDSA, is needed"
    )]
    Key {
        /// The file.
        path: PathBuf,
        /// The reason why the key cannot be used.
        reason: String,
    },
    /// The key does not belong to the certificate.
    #[error("{key}: not the private key of the first certificate in {certificate}")]
    KeyMismatch {
        /// The file with the certificate.
        certificate: PathBuf,
        /// The file with the key.
        key: PathBuf,
    },
    /// A listener without any certificate.
    #[error("a TLS listener needs a certificate and its key")]
    NoIdentity,
    /// The system has no certificates of authorities.
    #[error(
        "the system has no certificates of authorities; install them or name a file with the peers' authority"
    )]
    NoSystemRoots,
    /// A line of a file of ticket keys is wrong.
    #[error("{path}:{line}: {reason}; expected `SECONDS-SINCE-1970 BASE64-OF-48-BYTES`")]
    TicketKeys {
        /// The file.
        path: PathBuf,
        /// The line's number, from 1.
        line: usize,
        /// The fault.
        reason: String,
    },
    /// The files together do not make a configuration.
    #[error("{0}")]
    Config(String),
}

impl TlsFileError {
    /// The file of the error, if the error is about a file.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Read { path, .. }
            | Self::Pem { path, .. }
            | Self::NoCertificate { path }
            | Self::NoKey { path }
            | Self::Certificate { path, .. }
            | Self::NoRevocationList { path }
            | Self::RevocationList { path, .. }
            | Self::Key { path, .. }
            | Self::TicketKeys { path, .. } => Some(path),
            Self::KeyMismatch { key, .. } => Some(key),
            Self::NoIdentity | Self::NoSystemRoots | Self::Config(_) => None,
        }
    }
}

/// A finding that does not prevent use, but needs attention.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TlsWarning {
    /// The certificate has expired: peers that verify it will refuse it.
    #[error("{path}: the certificate expired {} ago; peers will refuse it", span(*ago_s))]
    Expired {
        /// The file.
        path: PathBuf,
        /// Seconds since it expired.
        ago_s: u64,
    },
    /// The certificate is not valid yet: peers that verify it will refuse it until then.
    #[error("{path}: the certificate is valid only in {}; peers will refuse it until then", span(*in_s))]
    NotYetValid {
        /// The file.
        path: PathBuf,
        /// Seconds until it is valid.
        in_s: u64,
    },
    /// The certificate expires within two weeks.
    #[error("{path}: the certificate expires in {}", span(*in_s))]
    ExpiresSoon {
        /// The file.
        path: PathBuf,
        /// Seconds until it expires.
        in_s: u64,
    },
    /// The certificate has no name that a SIP peer would accept (RFC 5922 §7.1).
    #[error(
        "{path}: the certificate names no SIP domain (subjectAltName URI sip:DOMAIN, or DNS without wildcard); SIP peers will refuse it"
    )]
    NoSipDomain {
        /// The file.
        path: PathBuf,
    },
    /// The file is a secret, and other users of the machine can read it.
    #[error("{path}: readable by others; it should have mode 0600")]
    ReadableByOthers {
        /// The file.
        path: PathBuf,
    },
    /// A revocation list whose next update is overdue. The list still counts.
    #[error("{path}: list {number} of revoked certificates is out of date for {}; it still counts", span(*ago_s))]
    RevocationListOutOfDate {
        /// The file.
        path: PathBuf,
        /// The list's number in the file, from 1.
        number: usize,
        /// Seconds since the promised time of the next list.
        ago_s: u64,
    },
    /// Some of the system's authorities could not be used.
    #[error("{count} of the system's certificates of authorities cannot be used")]
    SystemRootsSkipped {
        /// Number of skipped authorities.
        count: usize,
    },
}

/// A time in readable form, in the largest unit of which it has at least two.
fn span(seconds: u64) -> String {
    let units = [(86_400, "days"), (3_600, "hours"), (60, "minutes")];
    let unit = units.into_iter().find(|(unit, _)| seconds >= 2 * unit);
    unit.map_or_else(
        || format!("{seconds} s"),
        |(unit, name)| format!("{} {name}", seconds / unit),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_can_be_read() {
        for (seconds, text) in [
            (0, "0 s"),
            (119, "119 s"),
            (120, "2 minutes"),
            (7_199, "119 minutes"),
            (7_200, "2 hours"),
            (172_800, "2 days"),
            (185_958_006, "2152 days"),
        ] {
            assert_eq!(span(seconds), text);
        }
    }
}

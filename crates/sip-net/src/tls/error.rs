//! What goes wrong: in files that an operator writes, and with a peer.

use std::io;
use std::path::{Path, PathBuf};

use rustls::{AlertDescription, CertificateError, Error};

/// Why a session ended or cannot go on. Where the protocol has an alert for it, the alert is among
/// the bytes that the failing call has put out, and is to be sent before the connection is closed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// The peer's certificate does not hold: wrong name, unknown authority, expired.
    #[error("the peer's certificate is refused: {0}")]
    PeerCertificate(CertificateError),
    /// The session that the peer resumed began with a certificate which has expired since.
    #[error("the peer resumed a session although its certificate has expired since")]
    ResumedExpired,
    /// We ask for a certificate and the peer has none.
    #[error("the peer has no certificate")]
    NoPeerCertificate,
    /// The peer ended the session with this alert.
    #[error("the peer sent the alert {0:?}")]
    Alert(AlertDescription),
    /// No version, suite, group or signature that both know.
    #[error("nothing in common with the peer: {0}")]
    Incompatible(String),
    /// What arrived is no TLS, or breaks its rules.
    #[error("the peer breaks the protocol: {0}")]
    Protocol(String),
    /// A record does not decrypt.
    #[error("a record does not decrypt")]
    Decrypt,
    /// A handshake message needs more memory than the session may take.
    #[error("an incomplete message of the peer exceeds {0} bytes")]
    TooLarge(usize),
    /// Data was to be written before the handshake is done.
    #[error("the handshake is not done")]
    NotEstablished,
    /// The session has failed before, or we have closed it.
    #[error("the session has ended")]
    Ended,
    /// This name cannot stand in a certificate.
    #[error("{0:?} is neither a host name nor an address")]
    Name(String),
    /// Our own fault: randomness, time, keys.
    #[error("{0}")]
    Internal(String),
}

impl TlsError {
    /// One word for a counter's label; few and fixed.
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

/// What is wrong with a file. Says which file, and what would be right.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsFileError {
    /// It cannot be read.
    #[error("{path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is not PEM.
    #[error("{path}: not PEM (text with `-----BEGIN …-----` and `-----END …-----` lines): {reason}")]
    Pem {
        /// The file.
        path: PathBuf,
        /// What the reader stumbled over.
        reason: String,
    },
    /// It holds no certificate.
    #[error("{path}: no certificate; expected `-----BEGIN CERTIFICATE-----`, the server's own first")]
    NoCertificate {
        /// The file.
        path: PathBuf,
    },
    /// It holds no private key.
    #[error(
        "{path}: no private key; expected `-----BEGIN PRIVATE KEY-----` (or RSA, or EC) without a password"
    )]
    NoKey {
        /// The file.
        path: PathBuf,
    },
    /// Its certificate cannot be used.
    #[error("{path}: certificate {number} cannot be used: {reason}")]
    Certificate {
        /// The file.
        path: PathBuf,
        /// Which of the file, from 1.
        number: usize,
        /// Why.
        reason: String,
    },
    /// It holds no list of revoked certificates.
    #[error("{path}: no list of revoked certificates; expected `-----BEGIN X509 CRL-----`")]
    NoRevocationList {
        /// The file.
        path: PathBuf,
    },
    /// Its list of revoked certificates cannot be used.
    #[error("{path}: list {number} of revoked certificates cannot be used: {reason}")]
    RevocationList {
        /// The file.
        path: PathBuf,
        /// Which of the file, from 1.
        number: usize,
        /// Why.
        reason: String,
    },
    /// Its key cannot be used.
    #[error(
        "{path}: the private key cannot be used ({reason}); RSA of 2048 bits or more, or ECDSA, is needed"
    )]
    Key {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// Key and certificate do not belong together.
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
        /// From 1.
        line: usize,
        /// What is wrong.
        reason: String,
    },
    /// What the files say does not make a configuration.
    #[error("{0}")]
    Config(String),
}

impl TlsFileError {
    /// The file that it is about, if it is about one.
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

/// What works and yet should be looked at.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TlsWarning {
    /// Peers that verify will refuse it.
    #[error("{path}: the certificate expired {} ago; peers will refuse it", span(*ago_s))]
    Expired {
        /// The file.
        path: PathBuf,
        /// Seconds since it expired.
        ago_s: u64,
    },
    /// Peers that verify will refuse it as yet.
    #[error("{path}: the certificate is valid only in {}; peers will refuse it until then", span(*in_s))]
    NotYetValid {
        /// The file.
        path: PathBuf,
        /// Seconds until it is valid.
        in_s: u64,
    },
    /// It expires within two weeks.
    #[error("{path}: the certificate expires in {}", span(*in_s))]
    ExpiresSoon {
        /// The file.
        path: PathBuf,
        /// Seconds until it expires.
        in_s: u64,
    },
    /// No name in it is one that a SIP peer would accept (RFC 5922 §7.1).
    #[error(
        "{path}: the certificate names no SIP domain (subjectAltName URI sip:DOMAIN, or DNS without wildcard); SIP peers will refuse it"
    )]
    NoSipDomain {
        /// The file.
        path: PathBuf,
    },
    /// A secret that others on the machine can read.
    #[error("{path}: readable by others; it should have mode 0600")]
    ReadableByOthers {
        /// The file.
        path: PathBuf,
    },
    /// A list of revoked certificates for which there should be a newer one by now; it still counts.
    #[error("{path}: list {number} of revoked certificates is out of date for {}; it still counts", span(*ago_s))]
    RevocationListOutOfDate {
        /// The file.
        path: PathBuf,
        /// Which of the file, from 1.
        number: usize,
        /// Seconds since the next was promised.
        ago_s: u64,
    },
    /// Some of the system's authorities could not be used.
    #[error("{count} of the system's certificates of authorities cannot be used")]
    SystemRootsSkipped {
        /// How many.
        count: usize,
    },
}

/// A time that people can read: its largest unit of which there are two.
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

//! Authorities and revocation lists that verify peers' certificates.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, UnixTime};
use rustls::{CertificateError, Error, OtherError, RootCertStore};
use webpki::{
    CertRevocationList, EndEntityCert, ExpirationPolicy, KeyUsage, OwnedCertRevocationList,
    RevocationCheckDepth, RevocationOptions, RevocationOptionsBuilder, UnknownStatusPolicy,
};
use x509_cert::crl::CertificateList;
use x509_cert::der::Decode;

use super::error::{TlsFileError, TlsWarning};
use super::files::{certificates, pem_error, read, sha256};

/// `id-kp-sipDomain` (RFC 5924 §4): the certificate is for a SIP domain, at either end.
const SIP_DOMAIN: &[u8] = &[40 + 3, 6, 1, 5, 5, 7, 3, 20];

/// Role of the other end of a connection, for which its certificate must be valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The other end is a server to which we connect.
    Server,
    /// The other end is a client that connects to us.
    Client,
}

/// Authorities that verify peers, their revocation lists, and a digest that changes with any of these.
#[derive(Debug)]
pub(super) struct Trust {
    pub(super) roots: RootCertStore,
    revoked: Vec<CertRevocationList<'static>>,
    pub(super) digest: [u8; 32],
}

impl Trust {
    /// No authorities, and no lists.
    pub(super) fn none() -> Self {
        Self {
            roots: RootCertStore::empty(),
            revoked: Vec::new(),
            digest: [0; 32],
        }
    }

    /// The authorities of a file (`None`: those of the system), and the lists of another file.
    pub(super) fn load(
        ca: Option<&PathBuf>,
        crl: Option<&PathBuf>,
        now: UnixTime,
        warnings: &mut Vec<TlsWarning>,
    ) -> Result<Self, TlsFileError> {
        let (roots, ders) = match ca {
            Some(path) => of_file(path)?,
            None => of_system(warnings)?,
        };
        let (revoked, lists) = match crl {
            Some(path) => revocations(path, now, warnings)?,
            None => (Vec::new(), Vec::new()),
        };
        let lists = digest(lists.iter().map(AsRef::as_ref));
        Ok(Self {
            roots,
            revoked,
            digest: sha256(&[&digest(ders.iter().map(AsRef::as_ref)), &lists]),
        })
    }

    /// Verifies that a chain leads to one of the authorities and holds no revoked certificate. The
    /// certificate must be valid for the purpose, or be marked as one of a SIP domain (RFC 5924 §5).
    pub(super) fn verify(
        &self,
        purpose: Purpose,
        (end_entity, intermediates): (&CertificateDer<'_>, &[CertificateDer<'_>]),
        now: UnixTime,
        algorithms: WebPkiSupportedAlgorithms,
    ) -> Result<(), Error> {
        let certificate = EndEntityCert::try_from(end_entity).map_err(refused)?;
        let lists: Vec<_> = self.revoked.iter().collect();
        let good_for = |usage| {
            let revoked = revocation(&lists);
            certificate
                .verify_for_usage(
                    algorithms.all,
                    &self.roots.roots,
                    intermediates,
                    now,
                    usage,
                    revoked,
                    None,
                )
                .map(drop)
        };
        let usage = match purpose {
            Purpose::Server => KeyUsage::server_auth(),
            Purpose::Client => KeyUsage::client_auth(),
        };
        let chain = match good_for(usage) {
            Err(webpki::Error::RequiredEkuNotFoundContext(_)) => good_for(KeyUsage::required(SIP_DOMAIN)),
            chain => chain,
        };
        chain.map_err(refused)
    }
}

/// Options for revocation lists. A list that is out of date still counts. If its authority does not renew it,
/// that must not end signalling, and a certificate that it names stays revoked. An authority without a list
/// has revoked nothing.
fn revocation<'a>(lists: &'a [&'a CertRevocationList<'a>]) -> Option<RevocationOptions<'a>> {
    let options = RevocationOptionsBuilder::new(lists).ok()?;
    Some(
        options
            .with_depth(RevocationCheckDepth::Chain)
            .with_status_policy(UnknownStatusPolicy::Allow)
            .with_expiration_policy(ExpirationPolicy::Ignore)
            .build(),
    )
}

/// The TLS library's error for an error of the certificate library.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "what has no name of its own is reported as it is"
)]
fn refused(error: webpki::Error) -> Error {
    use webpki::Error as Pki;
    Error::InvalidCertificate(match error {
        Pki::BadDer | Pki::BadDerTime | Pki::TrailingData(_) => CertificateError::BadEncoding,
        Pki::CertNotValidYet { time, not_before } => {
            CertificateError::NotValidYetContext { time, not_before }
        }
        Pki::CertExpired { time, not_after } => CertificateError::ExpiredContext { time, not_after },
        Pki::UnknownIssuer => CertificateError::UnknownIssuer,
        Pki::CertRevoked => CertificateError::Revoked,
        Pki::InvalidSignatureForPublicKey => CertificateError::BadSignature,
        Pki::RequiredEkuNotFoundContext(_) => CertificateError::InvalidPurpose,
        other => CertificateError::Other(OtherError(Arc::new(other))),
    })
}

type Authorities = (RootCertStore, Vec<CertificateDer<'static>>);

fn of_file(path: &Path) -> Result<Authorities, TlsFileError> {
    let certificates = certificates(path)?;
    let mut store = RootCertStore::empty();
    for (certificate, number) in certificates.iter().zip(1..) {
        store
            .add(certificate.clone())
            .map_err(|error| TlsFileError::Certificate {
                path: path.to_owned(),
                number,
                reason: error.to_string(),
            })?;
    }
    Ok((store, certificates))
}

fn of_system(warnings: &mut Vec<TlsWarning>) -> Result<Authorities, TlsFileError> {
    let certificates = rustls_native_certs::load_native_certs().certs;
    let mut store = RootCertStore::empty();
    let (used, skipped) = store.add_parsable_certificates(certificates.iter().cloned());
    if used == 0 {
        return Err(TlsFileError::NoSystemRoots);
    }
    if skipped > 0 {
        warnings.push(TlsWarning::SystemRootsSkipped { count: skipped });
    }
    Ok((store, certificates))
}

type Lists = (
    Vec<CertRevocationList<'static>>,
    Vec<CertificateRevocationListDer<'static>>,
);

/// The revocation lists of a file, at least one. A list's authority and signature are checked when the list is
/// needed.
fn revocations(path: &Path, now: UnixTime, warnings: &mut Vec<TlsWarning>) -> Result<Lists, TlsFileError> {
    let text = read(path)?;
    let (mut lists, mut ders) = (Vec::new(), Vec::new());
    for (item, number) in CertificateRevocationListDer::pem_slice_iter(&text).zip(1..) {
        let der = item.map_err(|error| pem_error(path, &error))?;
        let list = OwnedCertRevocationList::from_der(&der).map_err(|error| TlsFileError::RevocationList {
            path: path.to_owned(),
            number,
            reason: error.to_string(),
        })?;
        if let Some(next) = next_update(&der)
            && next < now.as_secs()
        {
            warnings.push(TlsWarning::RevocationListOutOfDate {
                path: path.to_owned(),
                number,
                ago_s: now.as_secs() - next,
            });
        }
        lists.push(CertRevocationList::from(list));
        ders.push(der);
    }
    if lists.is_empty() {
        return Err(TlsFileError::NoRevocationList {
            path: path.to_owned(),
        });
    }
    Ok((lists, ders))
}

/// The promised time of the next list, seconds since 1970.
fn next_update(der: &[u8]) -> Option<u64> {
    let list: CertificateList = CertificateList::from_der(der).ok()?;
    Some(list.tbs_cert_list.next_update?.to_unix_duration().as_secs())
}

/// The digest of a set, independent of its order: two nodes with the same set must agree.
fn digest<'a>(ders: impl Iterator<Item = &'a [u8]>) -> [u8; 32] {
    let mut each: Vec<[u8; 32]> = ders.map(|der| sha256(&[der])).collect();
    each.sort_unstable();
    each.dedup();
    sha256(&each.iter().map(<[u8; 32]>::as_slice).collect::<Vec<_>>())
}

//! Our own certificates, and the choice of one by the name that a peer asks for.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::UnixTime;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{Error, SignatureScheme};

use super::error::{TlsFileError, TlsWarning};
use super::files;
use super::names::{SipIdentities, server_names};

/// The files of a certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct IdentityFiles {
    /// PEM: our certificate, then the chain from it to an authority.
    pub certificate: PathBuf,
    /// PEM: the certificate's private key, PKCS#8, PKCS#1 or SEC1, without a password.
    pub key: PathBuf,
}

/// Our certificates, by the names under which each is found. The value never changes: a reload makes a new
/// one.
pub struct Identities {
    /// Certificates by whole name. A name with an RSA and an ECDSA certificate has several.
    exact: HashMap<String, Vec<Arc<CertifiedKey>>>,
    /// Certificates by the name behind `*.`.
    wildcard: HashMap<String, Vec<Arc<CertifiedKey>>>,
    /// All certificates in the order of the configuration, for any other name and for none.
    all: Vec<Arc<CertifiedKey>>,
}

impl Identities {
    /// Reads and checks all files. If one is wrong, none is used.
    ///
    /// # Errors
    /// A file cannot be read or holds the wrong thing; a key does not fit its certificate; `files`
    /// is empty.
    pub fn load(
        files: &[IdentityFiles],
        provider: &CryptoProvider,
        now: UnixTime,
        warnings: &mut Vec<TlsWarning>,
    ) -> Result<Self, TlsFileError> {
        let mut identities = Self {
            exact: HashMap::new(),
            wildcard: HashMap::new(),
            all: Vec::new(),
        };
        for files in files {
            identities.add(load_key(files, provider, now, warnings)?);
        }
        if identities.all.is_empty() {
            return Err(TlsFileError::NoIdentity);
        }
        Ok(identities)
    }

    fn add(&mut self, key: Arc<CertifiedKey>) {
        for name in key.cert.first().map(server_names).unwrap_or_default() {
            let keys = match name.strip_prefix("*.") {
                Some(parent) => self.wildcard.entry(parent.to_owned()).or_default(),
                None => self.exact.entry(name).or_default(),
            };
            keys.push(Arc::clone(&key));
        }
        self.all.push(key);
    }

    /// The certificate for a name: by the whole name, else by `*.` and the rest behind the first label, else
    /// any. Of several candidates, the first whose signature the peer supports is chosen. If the peer
    /// supports none, the first of all is chosen, so that the handshake fails with a reason.
    pub fn choose(&self, name: Option<&str>, schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        let lower = name.map(|name| name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase());
        let exact = lower.as_ref().and_then(|name| self.exact.get(name));
        let wildcard = || {
            let (_, parent) = lower.as_ref()?.split_once('.')?;
            self.wildcard.get(parent)
        };
        let candidates = exact.or_else(wildcard).unwrap_or(&self.all);
        let usable = |key: &&Arc<CertifiedKey>| key.key.choose_scheme(schemes).is_some();
        candidates
            .iter()
            .find(usable)
            .or_else(|| candidates.first())
            .map(Arc::clone)
    }

    /// Number of certificates.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there is no certificate; never so after [`Identities::load`].
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The earliest expiry of the certificates, seconds since 1970.
    pub fn expires(&self) -> Option<u64> {
        self.all
            .iter()
            .filter_map(|key| files::validity(key.cert.first()?))
            .map(|(_, until)| until)
            .min()
    }
}

impl ResolvesServerCert for Identities {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.choose(hello.server_name(), hello.signature_schemes())
    }
}

impl fmt::Debug for Identities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identities")
            .field("exact", &self.exact.keys())
            .field("wildcard", &self.wildcard.keys())
            .field("certificates", &self.all.len())
            .finish()
    }
}

/// Reads one certificate with its key, and checks that they belong together.
pub(super) fn load_key(
    identity: &IdentityFiles,
    provider: &CryptoProvider,
    now: UnixTime,
    warnings: &mut Vec<TlsWarning>,
) -> Result<Arc<CertifiedKey>, TlsFileError> {
    let chain = files::certificates(&identity.certificate)?;
    for (index, certificate) in chain.iter().enumerate() {
        webpki::EndEntityCert::try_from(certificate).map_err(|error| TlsFileError::Certificate {
            path: identity.certificate.clone(),
            number: index + 1,
            reason: error.to_string(),
        })?;
        files::check_validity(&identity.certificate, certificate, now, warnings);
    }
    if chain
        .first()
        .is_some_and(|certificate| SipIdentities::of(certificate).is_empty())
    {
        warnings.push(TlsWarning::NoSipDomain {
            path: identity.certificate.clone(),
        });
    }
    let der = files::private_key(&identity.key)?;
    files::check_private(&identity.key, warnings);
    let key = provider
        .key_provider
        .load_private_key(der)
        .map_err(|error| TlsFileError::Key {
            path: identity.key.clone(),
            reason: error.to_string(),
        })?;
    let certified = CertifiedKey::new(chain, key);
    match certified.keys_match() {
        Ok(()) => Ok(Arc::new(certified)),
        Err(Error::InconsistentKeys(_)) => Err(TlsFileError::KeyMismatch {
            certificate: identity.certificate.clone(),
            key: identity.key.clone(),
        }),
        Err(error) => Err(TlsFileError::Key {
            path: identity.key.clone(),
            reason: error.to_string(),
        }),
    }
}

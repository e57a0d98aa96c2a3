//! An authority and what it vouches for, made for one experiment: the server, and the generator's ends.

use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_RSA_SHA256, RsaKeySize, SanType,
};

use super::fresh;
use crate::failure::{Failure, Outcome};
use crate::load::{DOMAIN, TlsFiles};
use crate::steps::Key;

/// Files of an authority, of the server's certificate for each [`Key`], and of the generator's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Certificates {
    directory: PathBuf,
}

impl Certificates {
    /// Those in a directory.
    pub(super) fn of(directory: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
        }
    }

    /// Makes them in a directory of their own.
    pub(crate) fn make(directory: &Path) -> Outcome<Self> {
        fresh(directory)?;
        let made = Self::of(directory);
        let failed = |error: rcgen::Error| Failure::failed("certificates", error);
        let mut authority = params("authority");
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().map_err(failed)?;
        let certificate = authority.self_signed(&key).map_err(failed)?;
        write(&made.authority(), &certificate.pem())?;
        let issuer = Issuer::new(authority, key);
        for (name, (file, key_file), kind) in [
            ("server", made.server(), Key::P256),
            ("server", made.identity(Key::Rsa2048), Key::Rsa2048),
            ("phone", made.phone(), Key::P256),
        ] {
            let mut of = params(name);
            // What callers ask for, and what the server does.
            let domain = DOMAIN.try_into().map_err(failed)?;
            of.subject_alt_names = vec![
                SanType::DnsName(domain),
                SanType::IpAddress(IpAddr::V4(Ipv4Addr::LOCALHOST)),
            ];
            of.extended_key_usages = vec![
                ExtendedKeyUsagePurpose::ServerAuth,
                ExtendedKeyUsagePurpose::ClientAuth,
            ];
            let key = match kind {
                Key::P256 => KeyPair::generate(),
                Key::Rsa2048 => KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048),
            };
            let key = key.map_err(failed)?;
            let certificate = of.signed_by(&key, &issuer).map_err(failed)?;
            write(&file, &certificate.pem())?;
            write(&key_file, &key.serialize_pem())?;
        }
        Ok(made)
    }

    /// The authority's certificate.
    pub(super) fn authority(&self) -> PathBuf {
        self.directory.join("authority.pem")
    }

    /// The server's certificate and its key, P-256.
    pub(super) fn server(&self) -> (PathBuf, PathBuf) {
        self.identity(Key::P256)
    }

    /// The server's certificate with this key, and the key.
    pub(super) fn identity(&self, key: Key) -> (PathBuf, PathBuf) {
        self.pair(key.file())
    }

    /// What the generator needs.
    pub(crate) fn generator(&self) -> TlsFiles {
        let (certificate, key) = self.phone();
        TlsFiles {
            authority: self.authority(),
            certificate,
            key,
        }
    }

    fn phone(&self) -> (PathBuf, PathBuf) {
        self.pair("phone")
    }

    fn pair(&self, name: &str) -> (PathBuf, PathBuf) {
        let file = |ending: &str| self.directory.join(format!("{name}.{ending}"));
        (file("pem"), file("key"))
    }
}

fn params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

/// A new file that others cannot read: the server refuses keys that they can.
fn write(path: &Path, text: &str) -> Outcome<()> {
    use std::io::Write;
    let mut options = std::fs::OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(path);
    file.and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(|error| Failure::failed(path.display(), error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_their_owners() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        // Made again in place of those of an earlier run.
        Certificates::make(&directory.path().join("certificates")).unwrap();
        let made = Certificates::make(&directory.path().join("certificates")).unwrap();
        let files = made.generator();
        let (certificate, key) = made.server();
        let (rsa_certificate, rsa_key) = made.identity(Key::Rsa2048);
        for path in [
            &files.authority,
            &files.certificate,
            &certificate,
            &rsa_certificate,
        ] {
            let text = std::fs::read_to_string(path).unwrap();
            assert!(text.starts_with("-----BEGIN CERTIFICATE-----"), "{text}");
        }
        for path in [&files.key, &key, &rsa_key] {
            let mode = std::fs::metadata(path).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        }
    }
}

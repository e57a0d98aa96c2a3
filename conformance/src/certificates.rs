//! Certificates for one test, made in its scene's directory.

use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData, SanType,
};
use sha2::{Digest, Sha256};

use crate::Scene;

/// An authority that signs certificates.
#[derive(Debug)]
pub struct Authority {
    dir: PathBuf,
    name: String,
    issuer: Issuer<'static, KeyPair>,
}

/// What a certificate speaks for (RFC 5922 §4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Name<'a> {
    /// A `dNSName`; with `*.` in front a wildcard, which SIP refuses (RFC 5922 §7.2).
    Dns(&'a str),
    /// A `uniformResourceIdentifier`, such as `sip:example.com`.
    Uri(&'a str),
    /// An `iPAddress`.
    Ip(IpAddr),
}

/// A certificate and its key, as PEM files.
#[derive(Debug, Clone)]
pub struct Identity {
    /// The certificate.
    pub certificate: PathBuf,
    /// Its key, readable by its owner only.
    pub key: PathBuf,
    spki_sha256: [u8; 32],
}

impl Authority {
    /// A new authority; its certificate is in a file of its own.
    ///
    /// # Panics
    /// When the file cannot be written.
    pub fn new(scene: &Scene, name: &str) -> Self {
        let mut params = params(name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("a certificate");
        let authority = Self {
            dir: scene.dir().to_owned(),
            name: name.to_owned(),
            issuer: Issuer::new(params, key),
        };
        std::fs::write(authority.file(), certificate.pem()).expect("writing a certificate");
        authority
    }

    /// Its own certificate.
    pub fn file(&self) -> PathBuf {
        self.dir.join(format!("{}.pem", self.name))
    }

    /// A certificate for these names, good for either end of a connection, in files `NAME.pem` and
    /// `NAME.key`.
    pub fn issue(&self, file: &str, names: &[Name<'_>]) -> Identity {
        self.sign(file, names, |_| ())
    }

    /// One that was good until the year 2020.
    pub fn issue_expired(&self, file: &str, names: &[Name<'_>]) -> Identity {
        self.sign(file, names, |params| {
            params.not_after = rcgen::date_time_ymd(2020, 1, 1);
        })
    }

    fn sign(&self, file: &str, names: &[Name<'_>], change: impl FnOnce(&mut CertificateParams)) -> Identity {
        let mut params = params(file);
        params.subject_alt_names = names.iter().map(Name::san).collect();
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        change(&mut params);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        let identity = Identity {
            certificate: self.dir.join(format!("{file}.pem")),
            key: self.dir.join(format!("{file}.key")),
            spki_sha256: Sha256::digest(key.subject_public_key_info()).into(),
        };
        std::fs::write(&identity.certificate, certificate.pem()).expect("writing a certificate");
        std::fs::write(&identity.key, key.serialize_pem()).expect("writing a key");
        let owner_only = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(&identity.key, owner_only).expect("guarding a key");
        identity
    }
}

impl Name<'_> {
    fn san(&self) -> SanType {
        match *self {
            Self::Dns(name) => SanType::DnsName(name.try_into().expect("ASCII")),
            Self::Uri(uri) => SanType::URI(uri.try_into().expect("ASCII")),
            Self::Ip(ip) => SanType::IpAddress(ip),
        }
    }
}

impl Identity {
    /// The hash of its public key, by which Chromium can be made to accept it.
    pub fn spki_hash(&self) -> String {
        base64(&self.spki_sha256)
    }

    /// The keys `certificate` and `key` of a TOML table.
    pub fn toml(&self) -> String {
        let quoted = |path: &Path| format!("\"{}\"", path.display());
        format!(
            "certificate = {}, key = {}",
            quoted(&self.certificate),
            quoted(&self.key)
        )
    }
}

fn params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let mut padded = [0; 4];
        padded[1..=group.len()].copy_from_slice(group);
        let number = u32::from_be_bytes(padded);
        for place in 0..4 {
            if place > group.len() {
                text.push('=');
            } else {
                let digit = number >> (18 - 6 * place) & 63;
                text.push(char::from(DIGITS[digit as usize]));
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_as_in_rfc_4648() {
        let cases: [(&[u8], &str); 4] = [
            (b"", ""),
            (b"f", "Zg=="),
            (b"fo", "Zm8="),
            (b"foobar", "Zm9vYmFy"),
        ];
        for (bytes, text) in cases {
            assert_eq!(base64(bytes), text);
        }
    }
}

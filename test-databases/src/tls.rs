//! Certificates for a server.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::{OpenOptionsExt, chown};
use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose, SanType};

use crate::system::Owner;

/// The files, in the server's directory.
#[derive(Debug)]
pub(crate) struct Files {
    pub(crate) authority: PathBuf,
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

impl Files {
    pub(crate) fn of(directory: &Path) -> Self {
        Self {
            authority: directory.join("ca.pem"),
            certificate: directory.join("server.pem"),
            key: directory.join("server.key"),
        }
    }

    /// Makes an authority and a certificate of the server's.
    pub(crate) fn write(&self, owner: Option<Owner>) {
        let mut params = named("authority of a test");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().expect("a key");
        let authority = params.self_signed(&key).expect("a certificate");
        let issuer = Issuer::new(params, key);

        let mut params = named("database of a test");
        params.subject_alt_names = vec![
            SanType::DnsName("localhost".try_into().expect("ASCII")),
            SanType::IpAddress(IpAddr::V4(Ipv4Addr::LOCALHOST)),
        ];
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &issuer).expect("a certificate");

        for (path, content) in [
            (&self.authority, authority.pem()),
            (&self.certificate, certificate.pem()),
            (&self.key, key.serialize_pem()),
        ] {
            // PostgreSQL refuses a key that others may read.
            let mut file = fs::OpenOptions::new();
            let file = file.write(true).create_new(true).mode(0o600).open(path);
            let mut file = file.expect("our own directory can be written");
            std::io::Write::write_all(&mut file, content.as_bytes()).expect("the disk has room");
            if let Some(Owner { uid, gid }) = owner {
                chown(path, Some(uid), Some(gid)).expect("root may give a file away");
            }
        }
    }
}

fn named(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

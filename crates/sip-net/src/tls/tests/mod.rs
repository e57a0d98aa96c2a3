//! Both ends in one process, with certificates made for each test.

mod handshake;
mod names;
mod reload;
mod revocation;
mod tickets;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use rustls::pki_types::UnixTime;
use rustls::time_provider::TimeProvider;
use tempfile::TempDir;

use super::*;

/// The day on which the tests take place: 2026-11-21.
const TODAY: u64 = 1_795_219_200;

/// A clock that a test sets.
#[derive(Debug)]
struct Clock(AtomicU64);

impl Clock {
    fn today() -> Arc<Self> {
        Arc::new(Self(AtomicU64::new(TODAY)))
    }

    fn advance(&self, seconds: u64) {
        self.0.fetch_add(seconds, Ordering::Relaxed);
    }
}

impl TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        let seconds = self.0.load(Ordering::Relaxed);
        Some(UnixTime::since_unix_epoch(std::time::Duration::from_secs(
            seconds,
        )))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    P256,
    Rsa,
}

impl Kind {
    #[track_caller]
    fn key(self) -> KeyPair {
        match self {
            Self::P256 => KeyPair::generate().unwrap(),
            Self::Rsa => {
                KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, rcgen::RsaKeySize::_2048).unwrap()
            }
        }
    }
}

/// An authority with a directory for its files.
struct Authority {
    directory: TempDir,
    issuer: Issuer<'static, KeyPair>,
    file: PathBuf,
}

impl Authority {
    #[track_caller]
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("ca.pem");
        fs::write(&file, certificate.pem()).unwrap();
        Self {
            directory,
            issuer: Issuer::new(params, key),
            file,
        }
    }

    /// A certificate for both ends, changed by `change`, in files named `name`.
    #[track_caller]
    fn issue(&self, name: &str, kind: Kind, change: impl FnOnce(&mut CertificateParams)) -> IdentityFiles {
        let key = kind.key();
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        change(&mut params);
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let files = IdentityFiles {
            certificate: self.directory.path().join(format!("{name}.pem")),
            key: self.directory.path().join(format!("{name}.key")),
        };
        fs::write(&files.certificate, certificate.pem()).unwrap();
        fs::write(&files.key, key.serialize_pem()).unwrap();
        fs::set_permissions(&files.key, fs::Permissions::from_mode(0o600)).unwrap();
        files
    }

    /// A certificate with one DNS name.
    fn for_domain(&self, domain: &str, kind: Kind) -> IdentityFiles {
        self.issue(domain, kind, |params| {
            params.subject_alt_names = vec![dns(domain)]
        })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

#[track_caller]
fn dns(name: &str) -> SanType {
    SanType::DnsName(name.try_into().unwrap())
}

#[track_caller]
fn uri(uri: &str) -> SanType {
    SanType::URI(uri.try_into().unwrap())
}

#[track_caller]
fn server_with(settings: ServerSettings, tickets: Option<&Arc<TicketKeys>>, clock: &Arc<Clock>) -> TlsServer {
    let clock = Arc::clone(clock) as Arc<_>;
    TlsServer::load(settings, tickets.map(Arc::clone), clock, &mut Vec::new()).unwrap()
}

fn server(identities: &[&IdentityFiles]) -> TlsServer {
    let settings = ServerSettings {
        name: "a listener".to_owned(),
        identities: identities.iter().map(|files| (*files).clone()).collect(),
        ..ServerSettings::default()
    };
    server_with(settings, None, &Clock::today())
}

#[track_caller]
fn client_with(settings: ClientSettings, clock: &Arc<Clock>) -> TlsClient {
    let clock = Arc::clone(clock) as Arc<_>;
    TlsClient::load(settings, clock, &mut Vec::new()).unwrap()
}

/// A client that trusts `ca`.
fn client(ca: &Path) -> TlsClient {
    client_with(trusting(ca), &Clock::today())
}

fn trusting(ca: &Path) -> ClientSettings {
    ClientSettings {
        ca: Some(ca.to_owned()),
        remembered_peers: 4,
        ..ClientSettings::default()
    }
}

/// Two ends, with the bytes on their way between them.
#[derive(Debug)]
struct Pair {
    client: TlsSession,
    server: TlsSession,
    to_server: Vec<u8>,
    to_client: Vec<u8>,
    /// Data received by the server.
    at_server: Vec<u8>,
    at_client: Vec<u8>,
    /// Bytes fed in one call.
    piece: usize,
}

impl Pair {
    #[track_caller]
    fn new(client: &TlsClient, domain: &str, server: &TlsServer) -> Self {
        let mut to_server = Vec::new();
        let client = client.connect(domain, &mut to_server).unwrap();
        Self {
            client,
            server: server.accept().unwrap(),
            to_server,
            to_client: Vec::new(),
            at_server: Vec::new(),
            at_client: Vec::new(),
            piece: usize::MAX,
        }
    }

    /// Carries bytes until none are left. Returns the first error of each end: client's, server's.
    fn run(&mut self) -> (Result<(), TlsError>, Result<(), TlsError>) {
        let (mut of_client, mut of_server) = (Ok(()), Ok(()));
        while !self.to_server.is_empty() || !self.to_client.is_empty() {
            for piece in std::mem::take(&mut self.to_server).chunks_mut(self.piece) {
                let data = |bytes: &[u8]| self.at_server.extend_from_slice(bytes);
                if let Err(error) = self.server.feed(piece, &mut self.to_client, data) {
                    of_server = of_server.and(Err(error));
                }
            }
            for piece in std::mem::take(&mut self.to_client).chunks_mut(self.piece) {
                let data = |bytes: &[u8]| self.at_client.extend_from_slice(bytes);
                if let Err(error) = self.client.feed(piece, &mut self.to_server, data) {
                    of_client = of_client.and(Err(error));
                }
            }
        }
        (of_client, of_server)
    }

    /// Carries bytes; nothing may fail.
    #[track_caller]
    fn good(&mut self) {
        let ends = self.run();
        assert_eq!(ends, (Ok(()), Ok(())));
    }

    #[track_caller]
    fn resumed(&self) -> bool {
        assert_eq!(self.client.resumed(), self.server.resumed());
        assert!(!self.client.is_handshaking() && !self.server.is_handshaking());
        self.server.resumed().unwrap()
    }
}

/// Does a full handshake in which nothing fails. Returns whether it was a resumption.
fn connect(client: &TlsClient, domain: &str, server: &TlsServer) -> bool {
    let mut pair = Pair::new(client, domain, server);
    pair.good();
    pair.resumed()
}

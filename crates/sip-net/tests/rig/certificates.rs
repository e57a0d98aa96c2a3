//! Certificates made for one test, and ends of TLS that use them.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use sip_net::tcp::{Sharing, StreamService};
use sip_net::tls::rustls::pki_types::ServerName;
use sip_net::tls::rustls::{ClientConnection, ServerConnection, StreamOwned};
use sip_net::tls::{
    ClientAuth, ClientSettings, IdentityFiles, ServerSettings, TicketKeys, TicketSettings, TlsClient,
    TlsClients, TlsServer, Versions, system_clock,
};
use tempfile::TempDir;

use super::{connect, own_ip};

/// The client's end of a connection.
pub type TlsStream = StreamOwned<ClientConnection, Pieces>;
/// The server's end of a connection, for those that the workers open.
pub type TlsPeer = StreamOwned<ServerConnection, TcpStream>;

/// An authority with a directory for its files.
pub struct Authority {
    directory: TempDir,
    issuer: Issuer<'static, KeyPair>,
    pub file: PathBuf,
}

impl Authority {
    #[track_caller]
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let directory = tempfile::tempdir().unwrap();
        // No two have one name.
        let name = directory.path().to_string_lossy().into_owned();
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        let file = directory.path().join("ca.pem");
        fs::write(&file, certificate.pem()).unwrap();
        Self {
            directory,
            issuer: Issuer::new(params, key),
            file,
        }
    }

    /// A certificate for both ends, for one DNS name and perhaps an address, in files named by it.
    #[track_caller]
    pub fn issue(&self, name: &str, address: Option<IpAddr>) -> IdentityFiles {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        params.subject_alt_names = vec![SanType::DnsName(name.try_into().unwrap())];
        params.subject_alt_names.extend(address.map(SanType::IpAddress));
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
}

/// The certificates that both ends of a test's connections need.
pub struct Kit {
    pub authority: Authority,
    /// For `server.example` and the test's own address.
    pub identity: IdentityFiles,
}

impl Kit {
    pub fn new() -> Self {
        let authority = Authority::new();
        let identity = authority.issue("server.example", Some(own_ip()));
        Self { authority, identity }
    }

    pub fn server(&self, client_auth: ClientAuth, tickets: Option<Arc<TicketKeys>>) -> Arc<TlsServer> {
        self.server_as(&self.identity, client_auth, tickets)
    }

    #[track_caller]
    pub fn server_as(
        &self,
        identity: &IdentityFiles,
        client_auth: ClientAuth,
        tickets: Option<Arc<TicketKeys>>,
    ) -> Arc<TlsServer> {
        let settings = ServerSettings {
            name: "a listener".to_owned(),
            identities: vec![identity.clone()],
            client_auth,
            client_names: Vec::new(),
            client_ca: Some(self.authority.file.clone()),
            client_crl: None,
            versions: Versions::Both,
        };
        Arc::new(TlsServer::load(settings, tickets, system_clock(), &mut Vec::new()).unwrap())
    }

    pub fn client(&self, versions: Versions) -> Arc<TlsClient> {
        self.client_as(None, versions)
    }

    #[track_caller]
    pub fn client_as(&self, identity: Option<IdentityFiles>, versions: Versions) -> Arc<TlsClient> {
        let settings = ClientSettings {
            identity,
            ca: Some(self.authority.file.clone()),
            crl: None,
            remembered_peers: 8,
            versions,
        };
        Arc::new(TlsClient::load(settings, system_clock(), &mut Vec::new()).unwrap())
    }

    /// Every listener with a certificate, and the same authority for the peers that we connect to.
    pub fn service(&self) -> StreamService {
        StreamService {
            server: Some(self.server(ClientAuth::None, None)),
            clients: Some(Arc::new(TlsClients::new(self.client(Versions::Both), []))),
            sharing: Sharing::PerPeer,
            ..StreamService::default()
        }
    }

    /// Connects, and speaks TLS once something is written or read.
    pub fn connect(&self, address: SocketAddr) -> TlsStream {
        connect_with(&self.client(Versions::Both), address, usize::MAX)
    }

    /// Our end of a connection that was accepted.
    pub fn peer(&self, socket: TcpStream) -> TlsPeer {
        peer_with(&self.server(ClientAuth::None, None), socket)
    }
}

#[track_caller]
pub fn peer_with(server: &TlsServer, socket: TcpStream) -> TlsPeer {
    StreamOwned::new(ServerConnection::new(server.config()).unwrap(), socket)
}

/// A client whose bytes leave in pieces of this length.
#[track_caller]
pub fn connect_with(client: &TlsClient, address: SocketAddr, piece: usize) -> TlsStream {
    let name = ServerName::from(address.ip());
    let connection = ClientConnection::new(client.config(), name).unwrap();
    let socket = connect(address);
    StreamOwned::new(connection, Pieces { socket, piece })
}

/// Says that no more is sent, and leaves the connection as it is.
#[track_caller]
pub fn close_notify(stream: &mut TlsStream) {
    stream.conn.send_close_notify();
    while stream.conn.wants_write() {
        stream.conn.write_tls(&mut stream.sock).unwrap();
    }
}

#[track_caller]
pub fn ticket_keys() -> Arc<TicketKeys> {
    Arc::new(TicketKeys::generate(TicketSettings::default(), system_clock()).unwrap())
}

/// A socket that writes in small pieces.
pub struct Pieces {
    pub socket: TcpStream,
    pub piece: usize,
}

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.socket.read(buffer)
    }
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.write(&bytes[..bytes.len().min(self.piece)])
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}

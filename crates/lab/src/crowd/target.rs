//! Where clients go, from where they come, and what they know of TLS.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{
    ClientSessionStore, Resumption, Tls12ClientSessionValue, Tls12Resumption, Tls13ClientSessionValue,
};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CipherSuite, ClientConfig, DigitallySignedStruct, Error, NamedGroup, SignatureScheme,
    SupportedCipherSuite,
};
use sip_net::tls::{ClientSettings, TlsClient, Versions, provider, system_clock};
use socket2::{Domain, Protocol, Socket, Type};

use super::Outcome;
use super::arguments::Arguments;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Tcp,
    Tls,
    Ws,
    Wss,
}

impl Transport {
    pub(crate) fn is_secure(self) -> bool {
        matches!(self, Self::Tls | Self::Wss)
    }

    pub(crate) fn is_websocket(self) -> bool {
        matches!(self, Self::Ws | Self::Wss)
    }

    /// As in Via.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Tls => "TLS",
            Self::Ws => "WS",
            Self::Wss => "WSS",
        }
    }
}

/// Where clients go.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) transport: Transport,
    pub(crate) address: SocketAddr,
    pub(crate) name: String,
    pub(crate) tls: Arc<ClientConfig>,
    sources: usize,
}

impl Target {
    pub(crate) fn new(arguments: &Arguments) -> Outcome<Self> {
        let transport = match arguments.text("transport").unwrap_or("tcp") {
            "tcp" => Transport::Tcp,
            "tls" => Transport::Tls,
            "ws" => Transport::Ws,
            "wss" => Transport::Wss,
            other => return Err(format!("no transport {other:?}; there are tcp, tls, ws, wss").into()),
        };
        let address = arguments
            .text("target")
            .ok_or("--target ADDRESS:PORT is needed")?;
        let address = address
            .parse()
            .map_err(|_| format!("{address:?} is no address with a port"))?;
        let versions = if arguments.has("tls12") {
            Versions::Tls12
        } else {
            Versions::Both
        };
        Ok(Self {
            transport,
            address,
            name: arguments.get("name", "bench".to_owned())?,
            tls: Arc::new(client_config(arguments.text("ca"), versions)?),
            sources: arguments.get("sources", 16)?.clamp(1, 250),
        })
    }

    /// The server's name as TLS has it.
    pub(crate) fn server_name(&self) -> Outcome<ServerName<'static>> {
        let name = ServerName::try_from(self.name.as_str());
        Ok(name
            .map_err(|_| format!("{:?} is no name", self.name))?
            .to_owned())
    }

    /// A socket for client `number`, bound to the address that it comes from.
    pub(crate) fn socket(&self, number: usize) -> std::io::Result<Socket> {
        let socket = Socket::new(
            Domain::for_address(self.address),
            Type::STREAM,
            Some(Protocol::TCP),
        )?;
        if self.address.ip().is_loopback() && self.address.is_ipv4() {
            // A kernel without the option refuses, and then ports are used up sooner.
            drop(sip_net::tcp::choose_port_late(socket.as_fd()));
            let last = 1 + (number % self.sources) as u8;
            socket.bind(&SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, 0, 1, last)), 0).into())?;
        }
        socket.set_tcp_nodelay(true)?;
        Ok(socket)
    }
}

/// What clients know of TLS. With an authority it is the product's own; without, nothing is
/// verified, and AES-128-GCM is all that is offered, so that every server uses the same.
fn client_config(ca: Option<&str>, versions: Versions) -> Outcome<ClientConfig> {
    if let Some(ca) = ca {
        let settings = ClientSettings {
            ca: Some(ca.into()),
            versions,
            ..ClientSettings::default()
        };
        let client = TlsClient::load(settings, system_clock(), &mut Vec::new())?;
        return Ok(ClientConfig::clone(&client.config()));
    }
    let aes_128 = |suite: &SupportedCipherSuite| {
        [
            CipherSuite::TLS13_AES_128_GCM_SHA256,
            CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
            CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
        ]
        .contains(&suite.suite())
    };
    let ours = provider();
    let provider = CryptoProvider {
        cipher_suites: ours.cipher_suites.iter().copied().filter(aes_128).collect(),
        ..CryptoProvider::clone(&ours)
    };
    let versions: &[_] = match versions {
        Versions::Tls12 => &[&rustls::version::TLS12],
        Versions::Tls13 => &[&rustls::version::TLS13],
        Versions::Both => &[&rustls::version::TLS13, &rustls::version::TLS12],
    };
    let mut config = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(versions)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Trusting))
        .with_no_client_auth();
    config.resumption = Resumption::disabled();
    Ok(config)
}

/// The same for one client that keeps tickets of its own, as every phone does.
pub(crate) fn with_own_tickets(config: &ClientConfig) -> (Arc<ClientConfig>, Arc<Tickets>) {
    let tickets = Arc::new(Tickets::default());
    let mut config = config.clone();
    config.resumption = Resumption::store(Arc::clone(&tickets) as Arc<_>)
        .tls12_resumption(Tls12Resumption::SessionIdOrTickets);
    (Arc::new(config), tickets)
}

/// The sessions of one client with one server.
#[derive(Debug, Default)]
pub(crate) struct Tickets(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    group: Option<NamedGroup>,
    tls12: Option<Tls12ClientSessionValue>,
    tls13: Vec<Tls13ClientSessionValue>,
}

impl Tickets {
    fn with<T>(&self, what: impl FnOnce(&mut Kept) -> T) -> T {
        what(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether the next connection can resume.
    pub(crate) fn are_there(&self) -> bool {
        self.with(|kept| kept.tls12.is_some() || !kept.tls13.is_empty())
    }
}

impl ClientSessionStore for Tickets {
    fn set_kx_hint(&self, _: ServerName<'static>, group: NamedGroup) {
        self.with(|kept| kept.group = Some(group));
    }

    fn kx_hint(&self, _: &ServerName<'_>) -> Option<NamedGroup> {
        self.with(|kept| kept.group)
    }

    fn set_tls12_session(&self, _: ServerName<'static>, value: Tls12ClientSessionValue) {
        self.with(|kept| kept.tls12 = Some(value));
    }

    fn tls12_session(&self, _: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        self.with(|kept| kept.tls12.clone())
    }

    fn remove_tls12_session(&self, _: &ServerName<'static>) {
        self.with(|kept| kept.tls12 = None);
    }

    fn insert_tls13_ticket(&self, _: ServerName<'static>, value: Tls13ClientSessionValue) {
        self.with(|kept| {
            kept.tls13.truncate(1); // the latest, and the one before it
            kept.tls13.insert(0, value);
        });
    }

    fn take_tls13_ticket(&self, _: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.with(|kept| (!kept.tls13.is_empty()).then(|| kept.tls13.remove(0)))
    }
}

/// Verifies nothing: the client's CPU time is to go into more handshakes.
#[derive(Debug)]
struct Trusting;

impl ServerCertVerifier for Trusting {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}

//! One way to a server: datagrams, a connection, and what may lie upon it.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::client::Resumption;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use socket2::{Domain, Socket, Type};
use tungstenite::client::ClientRequestBuilder;
use tungstenite::{Message, WebSocket};

use crate::{Authority, Identity, PATIENCE, Scene, Transport};

/// The least time that a socket takes for a time-out.
const LEAST: Duration = Duration::from_millis(1);

type Tls = StreamOwned<ClientConnection, TcpStream>;

/// The identities of a TLS client: the authority it trusts, the server it expects, and its own.
#[derive(Debug, Clone)]
pub struct TlsPeer {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl TlsPeer {
    /// A client without a certificate that expects one for `name` from this authority.
    pub fn trusting(authority: &Authority, name: &str) -> Self {
        Self::new(authority, name, None)
    }

    /// A client that shows a certificate of its own.
    pub fn presenting(authority: &Authority, name: &str, identity: &Identity) -> Self {
        Self::new(authority, name, Some(identity))
    }

    fn new(authority: &Authority, name: &str, identity: Option<&Identity>) -> Self {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&authority.file()) {
            roots.add(certificate).expect("an authority");
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions of TLS")
            .with_root_certificates(roots);
        let mut config = match identity {
            None => builder.with_no_client_auth(),
            Some(identity) => {
                let key = PrivateKeyDer::from_pem_file(&identity.key).expect("a key");
                let chain = certificates(&identity.certificate);
                builder.with_client_auth_cert(chain, key).expect("a certificate")
            }
        };
        // Each connection is to look at the certificate.
        config.resumption = Resumption::disabled();
        Self {
            config: Arc::new(config),
            name: ServerName::try_from(name).expect("a name").to_owned(),
        }
    }

    /// The handshake, to its end.
    fn connect(&self, mut socket: TcpStream) -> io::Result<Tls> {
        let connection = ClientConnection::new(Arc::clone(&self.config), self.name.clone());
        let mut connection = connection.map_err(io::Error::other)?;
        while connection.is_handshaking() {
            connection.complete_io(&mut socket)?;
        }
        Ok(StreamOwned::new(connection, socket))
    }
}

#[track_caller]
fn certificates(file: &Path) -> Vec<CertificateDer<'static>> {
    let found = CertificateDer::pem_file_iter(file).expect("a file of certificates");
    found.map(|one| one.expect("a certificate")).collect()
}

/// An open way to a server.
#[derive(Debug)]
pub struct Link {
    transport: Transport,
    local: SocketAddr,
    way: Way,
}

#[derive(Debug)]
enum Way {
    Udp(UdpSocket),
    Tcp(TcpStream),
    Tls(Box<Tls>),
    Ws(Box<WebSocket<TcpStream>>),
    Wss(Box<WebSocket<Tls>>),
}

/// What reading brought.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reading {
    /// A datagram, what a WebSocket message held, or some bytes of a stream.
    Bytes(Vec<u8>),
    /// Nothing is there (yet).
    Nothing,
    /// The server has closed the connection, or it broke.
    Closed,
}

impl Link {
    /// From any port of the scene to the server's for this transport.
    ///
    /// # Errors
    /// As [`Link::open`].
    pub fn to_server(scene: &Scene, transport: Transport, tls: &TlsPeer) -> io::Result<Self> {
        Self::open(transport, scene.at(0), scene.at(transport.port()), Some(tls))
    }

    /// From this address (port 0: any port) to `to`. TLS needs `tls`.
    ///
    /// # Errors
    /// The server refuses the connection, or one of the handshakes fails.
    #[track_caller]
    pub fn open(
        transport: Transport,
        from: SocketAddr,
        to: SocketAddr,
        tls: Option<&TlsPeer>,
    ) -> io::Result<Self> {
        if transport == Transport::Udp {
            let socket = UdpSocket::bind(from)?;
            socket.connect(to)?;
            return Ok(Self {
                transport,
                local: socket.local_addr()?,
                way: Way::Udp(socket),
            });
        }
        let socket = connect(from, to)?;
        let local = socket.local_addr()?;
        let secure = |socket| tls.expect("whom to trust").connect(socket);
        let way = match transport {
            Transport::Udp | Transport::Tcp => Way::Tcp(socket),
            Transport::Tls => Way::Tls(Box::new(secure(socket)?)),
            Transport::Ws => Way::Ws(Box::new(upgrade("ws", to, socket)?)),
            Transport::Wss => Way::Wss(Box::new(upgrade("wss", to, secure(socket)?)?)),
        };
        Ok(Self {
            transport,
            local,
            way,
        })
    }

    /// A connection that a peer opened to us.
    ///
    /// # Panics
    /// When it has no address.
    #[track_caller]
    pub fn accepted(socket: TcpStream) -> Self {
        Self {
            transport: Transport::Tcp,
            local: socket.local_addr().expect("an address"),
            way: Way::Tcp(socket),
        }
    }

    /// Which transport it is.
    pub fn transport(&self) -> Transport {
        self.transport
    }

    /// The address of this end.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// From now on [`Self::read`] returns at once.
    ///
    /// # Panics
    /// When the system refuses.
    #[track_caller]
    pub fn set_nonblocking(&self) {
        let set = match self.way.stream() {
            Ok(stream) => stream.set_nonblocking(true),
            Err(socket) => socket.set_nonblocking(true),
        };
        set.expect("a setting of a socket");
    }

    /// Sends these bytes; over WebSocket as one message: text where they are UTF-8, as browsers
    /// send it, else binary (RFC 7118 §4.2).
    ///
    /// # Errors
    /// The connection is gone.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let message = || match str::from_utf8(bytes) {
            Ok(text) => Message::text(text),
            Err(_) => Message::binary(bytes.to_vec()),
        };
        match &mut self.way {
            Way::Udp(socket) => match socket.send(bytes) {
                // The error is that of an earlier datagram, and this one was not sent.
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => socket.send(bytes).map(|_| ()),
                sent => sent.map(|_| ()),
            },
            Way::Tcp(stream) => stream.write_all(bytes),
            Way::Tls(stream) => stream.write_all(bytes).and_then(|()| stream.flush()),
            Way::Ws(socket) => socket.send(message()).map_err(io::Error::other),
            Way::Wss(socket) => socket.send(message()).map_err(io::Error::other),
        }
    }

    /// What is there; waits for [`PATIENCE`], or not at all ([`Self::set_nonblocking`]).
    pub fn read(&mut self) -> Reading {
        self.read_until(Instant::now() + PATIENCE)
    }

    /// What is there; waits for it until then, or not at all ([`Self::set_nonblocking`]).
    ///
    /// # Panics
    /// When the system refuses.
    #[track_caller]
    pub fn read_until(&mut self, until: Instant) -> Reading {
        let left = Some(until.saturating_duration_since(Instant::now()).max(LEAST));
        let set = match self.way.stream() {
            Ok(stream) => stream.set_read_timeout(left),
            Err(socket) => socket.set_read_timeout(left),
        };
        set.expect("a setting of a socket");
        self.read_once()
    }

    fn read_once(&mut self) -> Reading {
        let mut buffer = vec![0; 65_536];
        let read = match &mut self.way {
            Way::Udp(socket) => socket.recv(&mut buffer),
            Way::Tcp(stream) => stream.read(&mut buffer),
            Way::Tls(stream) => stream.read(&mut buffer),
            Way::Ws(socket) => return unwrap_message(socket.read()),
            Way::Wss(socket) => return unwrap_message(socket.read()),
        };
        match read {
            Ok(0) if self.transport != Transport::Udp => Reading::Closed,
            Ok(length) => {
                buffer.truncate(length);
                Reading::Bytes(buffer)
            }
            // A datagram found no listener: over UDP that is no end.
            Err(error)
                if self.transport == Transport::Udp && error.kind() == ErrorKind::ConnectionRefused =>
            {
                Reading::Nothing
            }
            Err(error) => nothing_or_closed(&error),
        }
    }
}

impl Way {
    /// The connection below; `Err`: there is none.
    fn stream(&self) -> Result<&TcpStream, &UdpSocket> {
        match self {
            Self::Udp(socket) => Err(socket),
            Self::Tcp(stream) => Ok(stream),
            Self::Tls(stream) => Ok(&stream.sock),
            Self::Ws(socket) => Ok(socket.get_ref()),
            Self::Wss(socket) => Ok(&socket.get_ref().sock),
        }
    }
}

fn connect(from: SocketAddr, to: SocketAddr) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
    socket.bind(&from.into())?;
    socket.connect_timeout(&to.into(), PATIENCE)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.set_write_timeout(Some(PATIENCE))?;
    socket.set_tcp_nodelay(true)?;
    Ok(socket.into())
}

/// The opening handshake; it fails where the server does not choose the sub-protocol `sip`
/// (RFC 7118 §4.1).
fn upgrade<S: Read + Write>(scheme: &str, to: SocketAddr, stream: S) -> io::Result<WebSocket<S>> {
    let uri = format!("{scheme}://{to}/").parse().map_err(io::Error::other)?;
    let request = ClientRequestBuilder::new(uri).with_sub_protocol("sip");
    match tungstenite::client(request, stream) {
        Ok((socket, _)) => Ok(socket),
        Err(error) => Err(io::Error::other(error.to_string())),
    }
}

fn unwrap_message(read: tungstenite::Result<Message>) -> Reading {
    match read {
        Ok(Message::Text(text)) => Reading::Bytes(text.as_bytes().to_vec()),
        Ok(Message::Binary(bytes)) => Reading::Bytes(bytes.to_vec()),
        // A ping is answered by the next reading or writing.
        Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_)) => Reading::Nothing,
        Ok(Message::Close(_)) => Reading::Closed,
        Err(tungstenite::Error::Io(error)) => nothing_or_closed(&error),
        Err(_) => Reading::Closed,
    }
}

fn nothing_or_closed(error: &io::Error) -> Reading {
    let later = [ErrorKind::WouldBlock, ErrorKind::TimedOut, ErrorKind::Interrupted];
    if later.contains(&error.kind()) {
        Reading::Nothing
    } else {
        Reading::Closed
    }
}

//! Loopback addresses of a test's own, and plain sockets there.
//!
//! At an address that another test has, too, a port that this test gives back may be that one's next: its
//! messages would come here, or ours go there.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

/// Long enough for anything that should happen.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The port whose listener marks an address as taken, for this process and for others.
const CLAIM: u16 = 4999;

/// An address of 127/8 that no other test has.
pub struct Claim {
    pub ip: Ipv4Addr,
    _listener: TcpListener,
}

impl Claim {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        for _ in 0..10_000 {
            // Spreads processes apart: 61 addresses each, then into the next one's, which is no harm.
            let number = std::process::id()
                .wrapping_mul(61)
                .wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
            let [_, a, b, c] = number.to_be_bytes();
            let ip = Ipv4Addr::new(127, a | 1, b, c.clamp(1, 254));
            if let Ok(listener) = TcpListener::bind((ip, CLAIM)) {
                return Self {
                    ip,
                    _listener: listener,
                };
            }
        }
        panic!("no loopback address is free");
    }
}

thread_local! {
    static OWN: Claim = Claim::new();
}

/// The address of this thread's test.
pub fn own_ip() -> IpAddr {
    OWN.with(|claim| claim.ip.into())
}

/// Any port of it.
pub fn any_port() -> SocketAddr {
    (own_ip(), 0).into()
}

/// Connects from the address that it connects to.
pub fn connect(address: SocketAddr) -> TcpStream {
    connect_from(address.ip(), address)
}

pub fn connect_from(from: IpAddr, to: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::new(from, 0).into()).unwrap();
    socket.connect(&to.into()).unwrap();
    patient(socket.into())
}

/// The next connection to a listener of the test.
pub fn accept(listener: &TcpListener) -> TcpStream {
    listener.set_nonblocking(true).unwrap();
    let end = Instant::now() + PATIENCE;
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false).unwrap();
                return patient(stream);
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => panic!("{error}"),
        }
        assert!(Instant::now() < end, "nobody connects");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn patient(stream: TcpStream) -> TcpStream {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// A listener of the test.
pub fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind(any_port()).unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// A port at which connections are refused, as long as the socket that holds it is kept.
pub fn closed() -> (Socket, SocketAddr) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&any_port().into()).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    (socket, address)
}

/// A port at which datagrams are refused, as long as the socket that holds it is kept: it is connected, and
/// hears its peer alone, which is not there.
pub fn closed_to_datagrams(ip: IpAddr) -> (UdpSocket, SocketAddr) {
    let socket = UdpSocket::bind((ip, 0)).unwrap();
    socket.connect((ip, 1)).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

/// Returns when the datagrams that this thread has sent to sockets of this machine are there. Mostly they
/// are once they have been sent; but the kernel may leave the rest to a thread of its own.
pub fn wait_for_delivery() {
    let [from, to] = [(), ()].map(|()| udp_client());
    from.send_to(b"last", to.local_addr().unwrap()).unwrap();
    assert_eq!(receive(&to), "last");
}

pub fn udp_client() -> UdpSocket {
    let socket = UdpSocket::bind(any_port()).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

pub fn receive(socket: &UdpSocket) -> String {
    let mut buffer = [0; 2000];
    let (len, _) = socket.recv_from(&mut buffer).unwrap();
    String::from_utf8_lossy(&buffer[..len]).into_owned()
}

/// Reads exactly as many bytes as `expected` has, and compares.
pub fn expect(stream: &mut impl Read, expected: &[u8]) {
    let mut buffer = vec![0; expected.len()];
    stream.read_exact(&mut buffer).unwrap();
    assert_eq!(
        String::from_utf8_lossy(&buffer),
        String::from_utf8_lossy(expected)
    );
}

/// Whether the peer ends the connection; the bytes before that.
pub fn read_to_end(stream: &mut impl Read) -> Vec<u8> {
    let mut buffer = Vec::new();
    match stream.read_to_end(&mut buffer) {
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
        Err(error) => panic!("{error}"),
    }
    buffer
}

pub fn write(stream: &mut impl Write, bytes: &[u8]) {
    stream.write_all(bytes).unwrap();
    stream.flush().unwrap();
}

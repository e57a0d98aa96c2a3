//! Plain sockets at a loopback address of the test's own.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};
use test_address::Place;

/// Long enough for anything that should happen.
pub const PATIENCE: Duration = Duration::from_secs(30);

thread_local! {
    static OWN: Place = Place::claim();
}

/// The address of this thread's test.
pub fn own_ip() -> IpAddr {
    OWN.with(Place::ip)
}

/// Any port of it.
pub fn any_port() -> SocketAddr {
    (own_ip(), 0).into()
}

/// Connects from the address that it connects to.
pub fn connect(address: SocketAddr) -> TcpStream {
    connect_from(address.ip(), address)
}

#[track_caller]
pub fn connect_from(from: IpAddr, to: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::new(from, 0).into()).unwrap();
    socket.connect(&to.into()).unwrap();
    patient(socket.into())
}

/// The next connection to a listener of the test.
#[track_caller]
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

#[track_caller]
fn patient(stream: TcpStream) -> TcpStream {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// A listener of the test.
#[track_caller]
pub fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind(any_port()).unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// A port at which connections are refused, as long as the socket that holds it is kept.
#[track_caller]
pub fn closed() -> (Socket, SocketAddr) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&any_port().into()).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    (socket, address)
}

/// A port at which datagrams are refused, as long as the socket that holds it is kept: it is connected, and
/// hears its peer alone, which is not there.
#[track_caller]
pub fn closed_to_datagrams(ip: IpAddr) -> (UdpSocket, SocketAddr) {
    let socket = UdpSocket::bind((ip, 0)).unwrap();
    socket.connect((ip, 1)).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

/// Returns when the datagrams that this thread has sent to sockets of this machine are there. Mostly they
/// are once they have been sent; but the kernel may leave the rest to a thread of its own.
#[track_caller]
pub fn wait_for_delivery() {
    let [from, to] = [(), ()].map(|()| udp_client());
    from.send_to(b"last", to.local_addr().unwrap()).unwrap();
    assert_eq!(receive(&to), "last");
}

#[track_caller]
pub fn udp_client() -> UdpSocket {
    let socket = UdpSocket::bind(any_port()).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

#[track_caller]
pub fn receive(socket: &UdpSocket) -> String {
    let mut buffer = [0; 2000];
    let (len, _) = socket.recv_from(&mut buffer).unwrap();
    String::from_utf8_lossy(&buffer[..len]).into_owned()
}

/// Reads exactly as many bytes as `expected` has, and compares.
#[track_caller]
pub fn expect(stream: &mut impl Read, expected: &[u8]) {
    let mut buffer = vec![0; expected.len()];
    stream.read_exact(&mut buffer).unwrap();
    assert_eq!(
        String::from_utf8_lossy(&buffer),
        String::from_utf8_lossy(expected)
    );
}

/// Whether the peer ends the connection; the bytes before that.
#[track_caller]
pub fn read_to_end(stream: &mut impl Read) -> Vec<u8> {
    let mut buffer = Vec::new();
    match stream.read_to_end(&mut buffer) {
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
        Err(error) => panic!("{error}"),
    }
    buffer
}

#[track_caller]
pub fn write(stream: &mut impl Write, bytes: &[u8]) {
    stream.write_all(bytes).unwrap();
    stream.flush().unwrap();
}

/// A framed message with the start line `text`.
pub fn framed(text: &str, body: usize) -> Vec<u8> {
    let mut message = format!("{text}\r\nContent-Length: {body}\r\n\r\n").into_bytes();
    message.resize(message.len() + body, b'x');
    message
}

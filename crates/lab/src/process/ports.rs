//! Ports on 127.0.0.1: which are free, and which have a socket.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::time::Duration;

use crate::failure::{Failure, Outcome};
use crate::load::Transport;

/// Below the ports that Linux takes for outgoing connections (32768 and up).
const PORTS: std::ops::Range<u16> = 20_000..32_000;

/// An address of this machine.
pub(crate) fn local(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

/// Ports that are in use now neither for UDP nor for TCP, all different.
pub(crate) fn free<const N: usize>() -> Outcome<[u16; N]> {
    let mut ports = [0; N];
    let mut held = Vec::new();
    for port in &mut ports {
        let (found, sockets) =
            one().ok_or_else(|| Failure::Failed("no port is free on 127.0.0.1".to_owned()))?;
        *port = found;
        held.push(sockets);
    }
    Ok(ports)
}

fn one() -> Option<(u16, (TcpListener, UdpSocket))> {
    let span = u64::from(PORTS.end - PORTS.start);
    (0..1000).find_map(|_| {
        let random = RandomState::new().build_hasher().finish() % span;
        let port = PORTS.start + u16::try_from(random).ok()?;
        let tcp = TcpListener::bind(local(port)).ok()?;
        let udp = UdpSocket::bind(local(port)).ok()?;
        Some((port, (tcp, udp)))
    })
}

/// Whether a socket waits at a port, rather than what is left of an old connection.
pub(crate) fn is_bound(transport: Transport, port: u16) -> bool {
    // TCP_LISTEN and, for a datagram socket, TCP_CLOSE (net/tcp_states.h).
    let (table, state) = match transport {
        Transport::Udp => ("/proc/net/udp", "07"),
        Transport::Tcp | Transport::Tls => ("/proc/net/tcp", "0A"),
    };
    let text = std::fs::read_to_string(table).unwrap_or_default();
    rows(&text).any(|row| row.port == port && row.state == state)
}

/// Datagrams that the kernel dropped at a port since it was bound, because its buffer was full.
pub(crate) fn drops(port: u16) -> u64 {
    let text = std::fs::read_to_string("/proc/net/udp").unwrap_or_default();
    rows(&text)
        .filter(|row| row.port == port)
        .filter_map(|row| row.last.parse::<u64>().ok())
        .sum()
}

struct Row<'a> {
    port: u16,
    state: &'a str,
    last: &'a str,
}

/// `sl local_address rem_address st …`, addresses as `0100007F:3B9A`.
fn rows(text: &str) -> impl Iterator<Item = Row<'_>> {
    text.lines().skip(1).filter_map(|line| {
        let mut words = line.split_whitespace();
        let (_, port) = words.nth(1)?.rsplit_once(':')?;
        Some(Row {
            port: u16::from_str_radix(port, 16).ok()?,
            state: words.nth(1)?,
            last: words.next_back()?,
        })
    })
}

/// Whether the port answers as a SIP server: by UDP an OPTIONS is answered, however; by TCP connections are taken.
pub(crate) fn answers(transport: Transport, port: u16) -> bool {
    match transport {
        Transport::Tcp | Transport::Tls => is_bound(transport, port),
        Transport::Udp => options(port).unwrap_or(false),
    }
}

fn options(port: u16) -> std::io::Result<bool> {
    let socket = UdpSocket::bind(local(0))?;
    socket.set_read_timeout(Some(Duration::from_millis(300)))?;
    let own = socket.local_addr()?.port();
    let text = format!(
        "OPTIONS sip:127.0.0.1:{port} SIP/2.0\r\n\
         Via: SIP/2.0/UDP 127.0.0.1:{own};rport;branch=z9hG4bKlab{own}\r\n\
         Max-Forwards: 0\r\nFrom: <sip:lab@bench>;tag=1\r\nTo: <sip:127.0.0.1:{port}>\r\n\
         Call-ID: lab{own}\r\nCSeq: 1 OPTIONS\r\nContent-Length: 0\r\n\r\n"
    );
    socket.send_to(text.as_bytes(), local(port))?;
    let mut answer = [0; 2048];
    let (length, _) = socket.recv_from(&mut answer)?;
    Ok(length > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_ports_are_different_and_bound_ones_are_seen() {
        let [a, b, c] = free::<3>().unwrap();
        assert!(a != b && b != c && a != c);
        // Of these each keeps one socket, so that no other process takes the port meanwhile.
        let ((by_udp, (tcp, _udp)), (by_tcp, (_tcp, udp))) = (one().unwrap(), one().unwrap());
        drop((tcp, udp));
        // A reading of the kernel's table may miss a row while sockets come and go.
        let is_seen = |look: &dyn Fn() -> bool| (0..100).any(|_| look());
        assert!(is_seen(&|| is_bound(Transport::Udp, by_udp)));
        assert!(is_seen(&|| is_bound(Transport::Tcp, by_tcp)));
        assert!(is_seen(&|| answers(Transport::Tcp, by_tcp)));
        assert!(!is_bound(Transport::Tcp, by_udp) && !is_bound(Transport::Udp, by_tcp));
        assert_eq!(drops(by_udp), 0);
        assert!(!answers(Transport::Udp, by_udp), "it says nothing");
    }

    #[test]
    fn a_server_that_answers_options_is_ready() {
        let server = UdpSocket::bind(local(0)).unwrap();
        server.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let port = server.local_addr().unwrap().port();
        // As the lab does it: an answer may be later than one look waits for it.
        let asking = std::thread::spawn(move || {
            let deadline = std::time::Instant::now() + Duration::from_secs(30);
            while !answers(Transport::Udp, port) {
                assert!(std::time::Instant::now() < deadline, "no answer is seen");
            }
        });
        let mut heard = String::new();
        while !asking.is_finished() {
            let mut text = [0; 2048];
            if let Ok((length, from)) = server.recv_from(&mut text) {
                heard = String::from_utf8_lossy(&text[..length]).into_owned();
                server
                    .send_to(b"SIP/2.0 483 Too Many Hops\r\n\r\n", from)
                    .unwrap();
            }
        }
        asking.join().unwrap();
        assert!(heard.contains("Max-Forwards: 0\r\n"), "{heard}");
    }

    #[test]
    fn rows_of_the_kernel() {
        let text = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops\n\
                    \x20 100: 0100007F:3B9A 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 1 2 0 17\n";
        let row = rows(text).next().unwrap();
        assert_eq!((row.port, row.state, row.last), (0x3b9a, "07", "17"));
    }
}

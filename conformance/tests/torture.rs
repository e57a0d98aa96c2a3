//! Every torture message of RFC 4475 and RFC 5118, sent to the real server: over UDP, over TCP, TLS
//! and WebSocket on a connection of its own, and those with IPv6 from `[::1]` too. What is to become
//! of each says the table in `conformance::torture`. Skipped, with a notice, where the messages are
//! not there.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::thread::sleep;
use std::time::{Duration, Instant};

use conformance::torture::{self, Outcome, RFC4475, RFC5118, Row};
use conformance::{
    Authority, Config, Link, Name, PATIENCE, Reading, Scene, Server, TlsPeer, Transport, port, wait_until,
};

/// Between looks at sockets.
const PAUSE: Duration = Duration::from_micros(200);

/// Sockets that are looked at in turn. UDP: as many as answers may go to. Else: a connection, or,
/// for TCP, a listener with what it accepted.
#[derive(Default)]
struct Ears {
    datagrams: Vec<UdpSocket>,
    listener: Option<TcpListener>,
    streams: Vec<Stream>,
}

struct Stream {
    link: Link,
    pending: Vec<u8>,
    closed: bool,
}

/// What came.
struct Heard {
    bytes: Vec<u8>,
    /// Our own port that it came to.
    port: u16,
    from: Back,
}

/// The way back.
enum Back {
    Datagram(usize, SocketAddr),
    Stream(usize),
}

impl Ears {
    fn datagrams(addresses: &[SocketAddr]) -> std::io::Result<Self> {
        let mut ears = Self::default();
        for address in addresses {
            let socket = UdpSocket::bind(address)?;
            socket.set_nonblocking(true)?;
            ears.datagrams.push(socket);
        }
        Ok(ears)
    }

    fn listener(address: SocketAddr) -> Self {
        let listener = TcpListener::bind(address).expect("listening");
        listener.set_nonblocking(true).expect("non-blocking");
        Self {
            listener: Some(listener),
            ..Self::default()
        }
    }

    /// From an address of its own, at any port.
    fn connection(transport: Transport, from: IpAddr, to: SocketAddr, tls: &TlsPeer) -> Self {
        let from = SocketAddr::new(from, 0);
        let mut ears = Self::default();
        ears.add(Link::open(transport, from, to, Some(tls)).expect("connecting"));
        ears
    }

    fn add(&mut self, link: Link) {
        link.set_nonblocking();
        self.streams.push(Stream {
            link,
            pending: Vec::new(),
            closed: false,
        });
    }

    /// Looks once.
    fn look(&mut self) -> Option<Heard> {
        let mut buffer = vec![0; 65_536];
        for (index, socket) in self.datagrams.iter().enumerate() {
            if let Ok((length, from)) = socket.recv_from(&mut buffer) {
                return Some(Heard {
                    bytes: buffer[..length].to_vec(),
                    port: socket.local_addr().expect("an address").port(),
                    from: Back::Datagram(index, from),
                });
            }
        }
        while let Some(Ok((socket, _))) = self.listener.as_ref().map(TcpListener::accept) {
            self.add(Link::accepted(socket));
        }
        for (index, stream) in self.streams.iter_mut().enumerate() {
            stream.read();
            let Some(length) = torture::framed(&stream.pending) else {
                continue;
            };
            return Some(Heard {
                bytes: stream.pending.drain(..length).collect(),
                port: stream.link.local().port(),
                from: Back::Stream(index),
            });
        }
        None
    }

    /// The next message, 100s left out.
    #[track_caller]
    fn hear(&mut self, what: &str) -> Heard {
        let end = Instant::now() + PATIENCE;
        loop {
            match self.look() {
                Some(heard) if heard.bytes.starts_with(b"SIP/2.0 100") => {}
                Some(heard) => return heard,
                None => assert!(Instant::now() < end, "{what} does not come"),
            }
            sleep(PAUSE);
        }
    }

    fn answer(&mut self, back: &Back, bytes: &[u8]) {
        match back {
            Back::Datagram(index, to) => {
                self.datagrams[*index].send_to(bytes, to).expect("answering");
            }
            Back::Stream(index) => self.streams[*index].write(bytes),
        }
    }
}

impl Stream {
    fn read(&mut self) {
        loop {
            match self.link.read() {
                Reading::Bytes(bytes) => self.pending.extend_from_slice(&bytes),
                Reading::Nothing => return,
                Reading::Closed => {
                    self.closed = true;
                    return;
                }
            }
        }
    }

    /// All messages here are far shorter than a socket's buffer.
    fn write(&mut self, bytes: &[u8]) {
        self.link.send(bytes).expect("sending");
    }
}

/// A server, its callee, and the sender's sockets.
struct Stage {
    server: Server,
    /// Its address for the transport that is tested, and for UDP and TCP.
    at: SocketAddr,
    plain: SocketAddr,
    transport: Transport,
    tls: TlsPeer,
    callee: Ears,
    /// How many Record-Routes a request gets: two where it leaves over another transport
    /// (RFC 5658 §5).
    record_routes: usize,
    /// Where the sender's answers come to over UDP, its first socket being that from which it
    /// sends; over TCP, where connections come to that the server opens (RFC 3261 §18.2.2).
    sender: Ears,
    source: SocketAddr,
    /// Send OPTIONS over UDP, TCP, and what else is tested.
    probes: Vec<Ears>,
    status_line: Vec<u8>,
    /// Of the last probe.
    number: u32,
    _ports: Option<Ports>,
    _scenes: [Scene; 2],
}

/// Ports on the sender's address: 5060, and those of sent-by in the messages.
const PORTS: [u16; 4] = [5060, 5050, 6050, 19_823];

/// The transport to the callee: the server opens no WebSockets, and the callee takes no TLS.
fn towards_callee(transport: Transport) -> Transport {
    match transport {
        Transport::Udp | Transport::Ws | Transport::Wss => Transport::Udp,
        Transport::Tcp | Transport::Tls => Transport::Tcp,
    }
}

/// With a T1 for which no test stalls: what comes twice was sent twice.
fn configuration(scene: &Scene, at: SocketAddr, callee: &str, more: &str) -> String {
    let aliases = torture::ALIASES.map(|name| format!("\"{name}\"")).join(", ");
    let mut text = format!(
        "[server]\nworkers = 2\ndata_dir = \"data\"\ndrain_s = 1\n\n\
         [[listen]]\ntransport = \"udp\"\naddress = \"{at}\"\n\n\
         [[listen]]\ntransport = \"tcp\"\naddress = \"{at}\"\n\n{more}\
         [[listen]]\ntransport = \"udp\"\naddress = \"{other}\"\nadvertise = \"{own_route}\"\n\n\
         [subscribers]\nurl = \"sqlite:subscribers.db\"\n\n[location]\nurl = \"memory:\"\n\n\
         [[domain]]\nname = \"example.com\"\naliases = [{aliases}]\n[domain.auth]\nmethods = []\n\n\
         [admin]\nlisten = \"{admin}\"\n\n\
         [timers]\nt1_ms = 5000\nt2_ms = 5000\n\n",
        other = scene.at(torture::OTHER_PORT),
        own_route = torture::OWN_ROUTE,
        admin = scene.at(port::ADMIN),
    );
    let mut rule = |when: &str| {
        let written = writeln!(
            text,
            "[[route]]\nwhen = {{ {when} }}\ndo = {{ relay = \"{callee}\" }}\n"
        );
        assert!(written.is_ok(), "writing to a string");
    };
    for domain in std::iter::once("example.com").chain(torture::RELAYED) {
        rule(&format!("domain = \"{domain}\""));
    }
    rule(&format!("uri = '{}'", torture::RELAYED_PATTERN));
    text
}

/// Two ports of an address that all tests share, and the listener that keeps other tests off them.
struct Ports {
    _claim: TcpListener,
    server: SocketAddr,
    callee: SocketAddr,
}

impl Ports {
    /// Below those that Linux gives out by itself (32768 and up), so that no other program gets one meanwhile.
    const RANGE: std::ops::Range<u16> = 20_000..32_000;

    /// # Panics
    /// When no ports are free.
    fn claim(ip: IpAddr) -> Self {
        let is_free =
            |address: &SocketAddr| UdpSocket::bind(address).is_ok() && TcpListener::bind(address).is_ok();
        // Three each: the first is the claim.
        let (first, count) = (Self::RANGE.start, Self::RANGE.len() as u32 / 3);
        (0..count)
            .find_map(|n| {
                let number = (std::process::id().wrapping_add(n) % count) as u16;
                let [claim, server, callee] =
                    [0, 1, 2].map(|port| SocketAddr::new(ip, first + 3 * number + port));
                let claim = TcpListener::bind(claim).ok()?;
                [&server, &callee].into_iter().all(is_free).then_some(Self {
                    _claim: claim,
                    server,
                    callee,
                })
            })
            .expect("free ports")
    }
}

/// Where the answers of a sender over this transport may come to but the way that its requests
/// take. `None`: the ports are taken, which is said.
fn ears_of_sender(transport: Transport, from: IpAddr, listens: bool) -> Option<Ears> {
    match transport {
        Transport::Udp => match Ears::datagrams(&PORTS.map(|port| SocketAddr::new(from, port))) {
            Ok(sender) => Some(sender),
            Err(error) => {
                eprintln!("SKIPPED: the ports {PORTS:?} of {from}: {error}");
                None
            }
        },
        Transport::Tcp if listens => Some(Ears::listener(SocketAddr::new(from, PORTS[0]))),
        Transport::Tcp | Transport::Tls | Transport::Ws | Transport::Wss => Some(Ears::default()),
    }
}

impl Stage {
    /// `None`: the sender's ports are taken, which is said.
    fn new(transport: Transport, ip: Option<Ipv6Addr>, status_line: Vec<u8>) -> Option<Self> {
        let scenes = [Scene::new(), Scene::new()];
        let authority = Authority::new(&scenes[0], "authority");
        let tls = TlsPeer::trusting(&authority, "example.com");
        let ports = ip.map(|ip| Ports::claim(ip.into()));
        let (plain, from, callee) = match (&ports, ip) {
            (Some(ports), Some(ip)) => (ports.server, ip.into(), ports.callee),
            _ => (
                scenes[0].at(port::SERVER),
                scenes[1].ip(),
                scenes[0].at(port::CALLER),
            ),
        };
        let (at, more) = match transport {
            Transport::Udp | Transport::Tcp => (plain, String::new()),
            Transport::Tls | Transport::Ws | Transport::Wss => {
                let identity = authority.issue("server", &[Name::Dns("example.com")]);
                let listen = Config::listen_keys(&scenes[0], transport, &identity, "");
                (scenes[0].at(transport.port()), format!("[[listen]]\n{listen}\n"))
            }
        };
        // Only a test of its own address takes connections there.
        let sender = ears_of_sender(transport, from, ip.is_none())?;
        let next = towards_callee(transport);
        let ears = match next {
            Transport::Udp => Ears::datagrams(&[callee]).expect("binding"),
            Transport::Tcp | Transport::Tls | Transport::Ws | Transport::Wss => Ears::listener(callee),
        };
        let uri = format!("sip:{callee};transport={}", next.name());
        let text = configuration(&scenes[0], plain, &uri, &more);
        std::fs::write(scenes[0].path("trapezoid.toml"), text).expect("writing the configuration");
        let server = Server::start_again(&scenes[0]);
        let mut probes = vec![
            Ears::datagrams(&[SocketAddr::new(from, 0)]).expect("binding"),
            Ears::connection(Transport::Tcp, from, plain, &tls),
        ];
        if at != plain {
            probes.push(Ears::connection(transport, from, at, &tls));
        }
        Some(Self {
            server,
            at,
            transport,
            tls,
            callee: ears,
            record_routes: if next == transport { 1 } else { 2 },
            sender,
            source: SocketAddr::new(from, PORTS[0]),
            probes,
            plain,
            status_line,
            number: 0,
            _ports: ports,
            _scenes: scenes,
        })
    }

    /// OPTIONS to the server is answered, on these sockets.
    fn probe(number: u32, at: SocketAddr, ears: &mut Ears) {
        let (name, local) = match ears.datagrams.first() {
            Some(socket) => ("UDP", socket.local_addr()),
            None => {
                let link = &ears.streams[0].link;
                (link.transport().via(), Ok(link.local()))
            }
        };
        let options = format!(
            "OPTIONS sip:{at} SIP/2.0\r\nVia: SIP/2.0/{name} {};rport;branch=z9hG4bKprobe{number}{name}\r\n\
             Max-Forwards: 70\r\nFrom: <sip:probe@another.example>;tag=p\r\nTo: <sip:{at}>\r\n\
             Call-ID: probe-{number}-{name}\r\nCSeq: 1 OPTIONS\r\nContent-Length: 0\r\n\r\n",
            local.expect("an address"),
        );
        match ears.datagrams.first() {
            Some(socket) => {
                socket.send_to(options.as_bytes(), at).expect("sending");
            }
            None => ears.streams[0].write(options.as_bytes()),
        }
        let heard = ears.hear("an answer to OPTIONS");
        let text = String::from_utf8_lossy(&heard.bytes);
        assert!(text.starts_with("SIP/2.0 200 OK\r\n"), "{text}");
        assert!(
            text.contains(&format!("\r\nCall-ID: probe-{number}-{name}\r\n")),
            "{text}"
        );
    }

    /// The server lives, on both transports.
    fn assert_alive(&mut self) {
        self.number += 1;
        for ears in &mut self.probes {
            Self::probe(self.number, self.plain, ears);
        }
    }

    fn dropped(&self, cause: &str) -> f64 {
        let label = format!("cause=\"{cause}\"");
        self.server.metric("trapezoid_dropped_total", &label)
    }

    /// Waits until `cause` was counted once more than `before`.
    fn assert_dropped(&self, cause: &str, before: f64) {
        wait_until(&format!("dropped: {cause}"), || {
            self.dropped(cause) >= before + 1.0
        });
        assert!(
            (self.dropped(cause) - before - 1.0).abs() < 0.5,
            "dropped: {cause}"
        );
    }

    /// Sends a row's message and checks its outcome.
    fn perform(&mut self, row: &Row, bytes: &[u8]) {
        match self.transport {
            Transport::Udp => {
                let before = dropped_before(self, row.datagram);
                self.sender.datagrams[0].send_to(bytes, self.at).expect("sending");
                self.check(row.datagram, bytes, None, before);
            }
            Transport::Tcp | Transport::Tls => self.perform_on_connection(row.on_stream(), bytes),
            Transport::Ws | Transport::Wss => self.perform_on_connection(row.on_websocket(), bytes),
        }
        self.assert_alive();
        assert!(self.callee.look().is_none(), "more at the callee");
        assert!(self.sender.look().is_none(), "more at the sender");
    }

    fn perform_on_connection(&mut self, (outcomes, closes): (Vec<Outcome>, bool), bytes: &[u8]) {
        let mut connection = Ears::connection(self.transport, self.source.ip(), self.at, &self.tls);
        let before = dropped_before(self, outcomes[0]);
        let source = connection.streams[0].link.local();
        connection.streams[0].write(bytes);
        for (number, sent) in torture::split(bytes, outcomes.len()).into_iter().enumerate() {
            // The connection is gone before the answer to the last of several messages is there:
            // it comes on one to the sender's address and the port of sent-by.
            let last = number + 1 == outcomes.len();
            let elsewhere = closes && matches!(outcomes[number], Outcome::Forwarded(_));
            assert!(!elsewhere || last);
            let answers = if elsewhere {
                None
            } else {
                Some((&mut connection, source))
            };
            self.check_from(outcomes[number], sent, answers, before, source);
        }
        let stream = &mut connection.streams[0];
        if closes {
            wait_until("the end of the connection", || {
                stream.read();
                stream.closed
            });
            return;
        }
        if outcomes.contains(&Outcome::Incomplete) {
            // It is half a message that the server holds, once it has read it.
            self.server
                .wait_for_metric("trapezoid_connection_bytes", "", |bytes| bytes > 0.0);
        } else {
            self.number += 1;
            Self::probe(self.number, self.plain, &mut connection);
        }
        assert!(connection.look().is_none(), "more on the connection");
        assert!(!connection.streams[0].closed, "the connection was closed");
    }

    fn check(
        &mut self,
        expected: Outcome,
        sent: &[u8],
        answers: Option<(&mut Ears, SocketAddr)>,
        before: f64,
    ) {
        let source = self.source;
        self.check_from(expected, sent, answers, before, source);
    }

    /// One message that came from `source`; its answers come on `answers`, else to the sender.
    fn check_from(
        &mut self,
        expected: Outcome,
        sent: &[u8],
        mut answers: Option<(&mut Ears, SocketAddr)>,
        before: f64,
        source: SocketAddr,
    ) {
        match expected {
            Outcome::Forwarded(values) => {
                let arrived = self.callee.hear("the request at the callee");
                torture::assert_forwarded_by(sent, &arrived.bytes, source, values, self.record_routes);
                let answer = torture::answer_of_callee(&arrived.bytes, &self.status_line);
                self.callee.answer(&arrived.from, &answer);
                if answers.is_none() && self.transport == Transport::Tls {
                    // Its connection is closed, and nothing at its address takes another of TLS.
                    return;
                }
                let relayed = self.hear_answer(sent, answers.as_mut());
                torture::assert_relayed(&answer, &relayed);
            }
            Outcome::Answered(..) | Outcome::Registered(_) => {
                let answer = self.hear_answer(sent, answers.as_mut());
                torture::assert_answer(sent, &answer, source);
                torture::assert_own(expected, &answer);
            }
            Outcome::Dropped(cause) => {
                // Counted where it is dropped: an answer would have been sent before.
                self.assert_dropped(cause, before);
                let ears = answers.map_or(&mut self.sender, |(ears, _)| ears);
                assert!(ears.look().is_none(), "an answer to what is dropped");
                assert!(self.callee.look().is_none(), "what is dropped reaches the callee");
            }
            Outcome::Incomplete => {}
        }
    }

    /// The answer to `sent`, at the port where it must come.
    fn hear_answer(&mut self, sent: &[u8], answers: Option<&mut (&mut Ears, SocketAddr)>) -> Vec<u8> {
        let (heard, port) = match answers {
            Some((ears, local)) => (ears.hear("an answer"), Some(local.port())),
            None => (
                self.sender.hear("an answer"),
                torture::answer_port(sent, self.source),
            ),
        };
        assert_eq!(Some(heard.port), port, "the answer's port");
        heard.bytes
    }
}

/// What `trapezoid_dropped` says before a message that is to raise it.
fn dropped_before(stage: &Stage, outcome: Outcome) -> f64 {
    if let Outcome::Dropped(cause) = outcome {
        stage.dropped(cause)
    } else {
        0.0
    }
}

fn run<'r>(transport: Transport, ip: Option<Ipv6Addr>, rows: impl Iterator<Item = &'r Row>) {
    let Some(folder) = torture::folder() else { return };
    let Some(mut stage) = Stage::new(transport, ip, torture::status_line(&folder)) else {
        return;
    };
    stage.assert_alive();
    for row in rows {
        eprintln!("{} ({}): {}", row.file, row.section, row.says);
        stage.perform(row, &torture::read(&folder, row));
    }
}

#[test]
fn every_message_over_udp() {
    run(Transport::Udp, None, RFC4475.iter().chain(&RFC5118));
}

#[test]
fn every_message_over_tcp() {
    run(Transport::Tcp, None, RFC4475.iter().chain(&RFC5118));
}

#[test]
fn every_message_over_tls() {
    run(Transport::Tls, None, RFC4475.iter().chain(&RFC5118));
}

#[test]
fn every_message_over_websocket() {
    run(Transport::Ws, None, RFC4475.iter().chain(&RFC5118));
}

#[test]
fn every_message_over_secured_websocket() {
    run(Transport::Wss, None, RFC4475.iter().chain(&RFC5118));
}

/// The rows of RFC 5118 that count on bindings of RFC 4475's come after these.
fn of_rfc_5118() -> impl Iterator<Item = &'static Row> {
    let before = RFC4475.iter().filter(|row| row.section == "3.3.14");
    before.chain(&RFC5118)
}

/// Whether this machine has `[::1]`; said where it has not.
fn loopback() -> Option<Ipv6Addr> {
    let bound = UdpSocket::bind((Ipv6Addr::LOCALHOST, 0));
    if bound.is_err() {
        eprintln!("SKIPPED: this machine has no [::1]");
    }
    bound.ok().map(|_| Ipv6Addr::LOCALHOST)
}

#[test]
fn ipv6_messages_over_udp_from_ipv6() {
    if let Some(ip) = loopback() {
        run(Transport::Udp, Some(ip), of_rfc_5118());
    }
}

#[test]
fn ipv6_messages_over_tcp_from_ipv6() {
    if let Some(ip) = loopback() {
        run(Transport::Tcp, Some(ip), of_rfc_5118());
    }
}

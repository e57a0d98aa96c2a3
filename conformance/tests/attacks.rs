//! Known attacks on the real server: rows of `docs/attacks.md` that need its sockets, or its memory.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use conformance::digest::md5;
use conformance::{Authority, Config, DOMAIN, Name, PATIENCE, Scene, Server, Transport, port, wait_until};

/// How long a flood may take, and what it leaves behind. It is a bound for what is stuck.
const LONG: Duration = Duration::from_secs(120);

/// A request with this in its Via, and these header lines.
fn request(method: &str, uri: &str, number: usize, via: &str, lines: &str) -> String {
    format!(
        "{method} {uri} SIP/2.0\r\nVia: SIP/2.0/{via};branch=z9hG4bK{number}\r\nMax-Forwards: 70\r\n\
         From: <sip:mallory@elsewhere.example>;tag={number}\r\nTo: <{uri}>\r\nCall-ID: attack-{number}\r\n\
         CSeq: 1 {method}\r\n{lines}Content-Length: 0\r\n\r\n"
    )
}

/// Asks the server itself over UDP, as a client that has nothing to do with it all: again every 500 ms
/// (RFC 3261 §17.1.2.2), for after a flood a datagram may have found no room.
#[track_caller]
fn assert_answers(scene: &Scene) {
    /// Beyond the requests of any flood.
    static NUMBER: AtomicUsize = AtomicUsize::new(10_000_000);
    let socket = UdpSocket::bind((scene.ip(), 0)).expect("a socket");
    socket
        .set_read_timeout(Some(Duration::from_millis(500)))
        .expect("a time-out");
    let at = scene.at(port::SERVER);
    let here = socket.local_addr().expect("its address");
    let text = request(
        "OPTIONS",
        &format!("sip:{at}"),
        NUMBER.fetch_add(1, Ordering::Relaxed),
        &format!("UDP {here}"),
        "",
    );
    let mut answer = [0; 4096];
    let begin = Instant::now();
    let length = loop {
        socket.send_to(text.as_bytes(), at).expect("sending");
        if let Ok(length) = socket.recv(&mut answer) {
            break length;
        }
        assert!(begin.elapsed() < PATIENCE, "no answer");
    };
    assert!(
        answer[..length].starts_with(b"SIP/2.0 200 OK"),
        "{:?}",
        String::from_utf8_lossy(&answer[..length])
    );
}

/// A callee that takes whatever comes and says nothing, so that each call is held.
#[track_caller]
fn silent_callee(scene: &Scene) -> UdpSocket {
    UdpSocket::bind(scene.at(port::CALLEE)).expect("the callee's port")
}

/// Where the burst says to come from: connections to it are counted, and closed.
#[track_caller]
fn sent_by(scene: &Scene) -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((scene.ip(), 0)).expect("a listener");
    listener.set_nonblocking(true).expect("not blocking");
    let at = listener.local_addr().expect("its address");
    (listener, at)
}

/// Whether the kernel has this connection as open at both ends, by its local address.
#[track_caller]
fn is_established(local: SocketAddr) -> bool {
    let SocketAddr::V4(local) = local else {
        panic!("a scene is at 127/8");
    };
    let ip = u32::from_ne_bytes(local.ip().octets());
    let local = format!("{ip:08X}:{:04X}", local.port());
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap_or_default();
    // Number, local address, remote address, state: 01 is ESTABLISHED.
    table.lines().any(|line| {
        let mut words = line.split_whitespace().skip(1);
        words.next() == Some(local.as_str()) && words.nth(1) == Some("01")
    })
}

#[test]
fn bursts_that_close_leave_nothing_behind() {
    let scene = Scene::new();
    let authority = Authority::new(&scene, "authority");
    let identity = authority.issue("server", &[Name::Dns(DOMAIN)]);
    let config = Config::new()
        .invites_to(&format!("sip:{}", scene.at(port::CALLEE)), "auth = false")
        .listen(&scene, Transport::Ws, &identity, "")
        .table("[timers]", "t1_ms = 100")
        .table(
            "[limits]",
            "transactions = 300\nheld_transactions = 1000\nconnections_per_address = 20",
        );
    let server = Server::start(&scene, &config);
    let _callee = silent_callee(&scene);
    let (listener, victim) = sent_by(&scene);
    let mut sent = 0_u32;
    for round in 0..5 {
        let mut stream = TcpStream::connect(scene.at(port::SERVER)).expect("connecting");
        let here = stream.local_addr().expect("its address");
        let mut burst = String::new();
        for number in 0..400 {
            sent += 1;
            let number = round * 1000 + number;
            burst += &request(
                "INVITE",
                &format!("sip:u{number}@{DOMAIN}"),
                number,
                &format!("TCP {victim}"),
                "",
            );
        }
        // The server may close it first.
        let _ = stream.write_all(burst.as_bytes());
        // What is unread when we go would be reset away.
        wait_until("the burst is read", || {
            let read = server.metric("trapezoid_requests_received_total", "method=\"INVITE\"");
            read >= f64::from(sent) || !is_established(here)
        });
        drop(stream);
        assert_answers(&scene);
    }
    server.wait_for_metric("trapezoid_connections", "", |open| open <= 20.0);
    let mut connected = 0;
    while listener.accept().is_ok() {
        connected += 1;
    }
    // Responses go to the address of sent-by (RFC 3261 §18.2.2): by a few connections that all of them share.
    assert!(connected <= 40, "{connected} connections for 2,000 requests");
    let opened = server.metric("trapezoid_net_connections_total", "opened_by=\"server\"");
    assert!(opened <= 40.0, "{opened} connections opened");
    // Of both workers; the branches of one request that was let in may come beside it.
    let held = server.metric("trapezoid_server_transactions", "")
        + server.metric("trapezoid_client_transactions", "");
    assert!(held <= 2.0 * 1002.0, "{held}");
    server.wait_for_metric("trapezoid_limit_reached_total", "limit=\"transactions\"", |n| {
        n > 0.0
    });
    drop(listener);
    // Timer B and those behind it: what has no answer is given up after 64 times T1, and held for 32 s at most.
    let begin = Instant::now();
    while server.metric("trapezoid_client_transactions", "") > 0.0 {
        assert!(begin.elapsed() < LONG, "transactions stay");
        std::thread::sleep(Duration::from_millis(500));
    }
    server.wait_for_metric("trapezoid_connections", "", |open| open == 0.0);
    assert_answers(&scene);
}

/// That of RFC 6455 §1.3.
const HANDSHAKE: &str = "GET / HTTP/1.1\r\nHost: example.com\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
     Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: sip\r\n\
     Sec-WebSocket-Version: 13\r\n\r\n";

/// A connection for a WebSocket.
#[track_caller]
fn connected(scene: &Scene) -> TcpStream {
    let stream = TcpStream::connect(scene.at(Transport::Ws.port())).expect("connecting");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    stream
}

/// With the handshake done.
#[track_caller]
fn upgraded(scene: &Scene) -> TcpStream {
    let mut stream = connected(scene);
    stream.write_all(HANDSHAKE.as_bytes()).expect("sending");
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("an answer");
        answer.push(byte[0]);
    }
    assert!(
        answer.starts_with(b"HTTP/1.1 101 "),
        "{:?}",
        String::from_utf8_lossy(&answer)
    );
    stream
}

/// RFC 6455 §7.4.1.
const PROTOCOL_ERROR: u16 = 1002;
const INVALID_PAYLOAD: u16 = 1007;
const TOO_BIG: u16 = 1009;

/// What is wrong, the bytes, and the code with which they are answered. A message has room for 1,024 bytes.
fn malformed_frames() -> [(&'static str, Vec<u8>, u16); 13] {
    let mut long_control = vec![0x89, 0xfe, 0x01, 0x00, 0, 0, 0, 0];
    long_control.extend([0; 256]);
    let fragment = |first: u8| [&[first, 0xe4, 0, 0, 0, 0][..], &[b'a'; 100]].concat();
    let endless = [vec![fragment(0x01)], vec![fragment(0x00); 10]].concat().concat();
    let length = |eight: [u8; 8]| [&[0x82, 0xff][..], &eight, &[0; 4]].concat();
    [
        ("no mask", vec![0x81, 0x02, b'h', b'i'], PROTOCOL_ERROR),
        ("a reserved bit", vec![0xc1, 0x80, 0, 0, 0, 0], PROTOCOL_ERROR),
        ("a reserved opcode", vec![0x83, 0x80, 0, 0, 0, 0], PROTOCOL_ERROR),
        (
            "a reserved control opcode",
            vec![0x8b, 0x80, 0, 0, 0, 0],
            PROTOCOL_ERROR,
        ),
        ("a fragmented Ping", vec![0x09, 0x80, 0, 0, 0, 0], PROTOCOL_ERROR),
        ("a long Ping", long_control, PROTOCOL_ERROR),
        (
            "a continuation of nothing",
            vec![0x80, 0x80, 0, 0, 0, 0],
            PROTOCOL_ERROR,
        ),
        (
            "a length of 2^63",
            length([0x80, 0, 0, 0, 0, 0, 0, 0]),
            PROTOCOL_ERROR,
        ),
        ("a length of 2^62", length([0x40, 0, 0, 0, 0, 0, 0, 0]), TOO_BIG),
        (
            "a length that is too long for what it is",
            vec![0x82, 0xfe, 0x00, 0x01, 0, 0, 0, 0, 0],
            PROTOCOL_ERROR,
        ),
        ("endless fragments", endless, TOO_BIG),
        (
            "text that is none",
            vec![0x81, 0x82, 0, 0, 0, 0, 0xff, 0xff],
            INVALID_PAYLOAD,
        ),
        (
            "a Close of one byte",
            vec![0x88, 0x81, 0, 0, 0, 0, 0x03],
            PROTOCOL_ERROR,
        ),
    ]
}

/// What the server says until it ends the connection, which it does without being asked to, within [`PATIENCE`].
#[track_caller]
fn until_its_end(stream: &mut TcpStream, what: &str) -> Vec<u8> {
    let mut said = Vec::new();
    stream
        .read_to_end(&mut said)
        .unwrap_or_else(|e| panic!("{what}: {e} after {said:02x?}"));
    said
}

#[test]
fn malformed_frames_end_their_connection_only() {
    let scene = Scene::new();
    let authority = Authority::new(&scene, "authority");
    let identity = authority.issue("server", &[Name::Dns(DOMAIN)]);
    let config = Config::new()
        .listen(&scene, Transport::Ws, &identity, "")
        .table("[transport]", "max_header_bytes = 1024\nmax_body_bytes = 0");
    let server = Server::start(&scene, &config);
    let mut bystander = upgraded(&scene);
    for (what, frame, code) in &malformed_frames() {
        let mut stream = upgraded(&scene);
        stream.write_all(frame).expect("sending");
        let [high, low] = code.to_be_bytes();
        // A Close with its status code, and nothing else.
        assert_eq!(until_its_end(&mut stream, what), [0x88, 2, high, low], "{what}");
    }
    // Half a frame, and then nothing: it is the client's to end.
    for (_, frame, _) in &malformed_frames() {
        let mut stream = upgraded(&scene);
        stream.write_all(&frame[..1]).expect("sending");
    }
    server.wait_for_metric("trapezoid_connections", "", |open| open <= 1.0);
    bystander.write_all(&[0x89, 0x80, 0, 0, 0, 0]).expect("sending");
    let mut pong = [0; 2];
    bystander.read_exact(&mut pong).expect("a Pong");
    assert_eq!(pong, [0x8a, 0]);
    assert_answers(&scene);
}

#[test]
fn malformed_handshakes_end_their_connection() {
    let scene = Scene::new();
    let authority = Authority::new(&scene, "authority");
    let identity = authority.issue("server", &[Name::Dns(DOMAIN)]);
    let config = Config::new().listen(&scene, Transport::Ws, &identity, "");
    let _server = Server::start(&scene, &config);
    for (from, to, status) in [
        ("GET / HTTP/1.1", "GET / HTTP/1.0", 505),
        ("GET / HTTP/1.1", "POST / HTTP/1.1", 405),
        ("GET / HTTP/1.1", "INVITE sip:bob@example.com SIP/2.0", 400),
        ("Host: example.com\r\n", "", 400),
        ("Host: example.com", "Host : example.com", 400),
        ("Host: example.com", "Host: example.com\r\nHost: example.com", 400),
        ("Host: example.com", "Host: example.com\nX: y", 400),
        ("Upgrade: websocket", "Upgrade: h2c", 426),
        ("Version: 13", "Version: 12", 426),
        ("dGhlIHNhbXBsZSBub25jZQ==", "dGhlIHNhbXBsZQ==", 400),
        ("Protocol: sip", "Protocol: chat", 400),
        ("Version: 13", "Version: 13\r\nContent-Length: 5", 400),
    ] {
        assert!(HANDSHAKE.contains(from), "{from}");
        let mut stream = connected(&scene);
        let text = HANDSHAKE.replace(from, to);
        stream.write_all(text.as_bytes()).expect("sending");
        let said = until_its_end(&mut stream, to);
        let said = String::from_utf8_lossy(&said);
        assert!(
            said.starts_with(&format!("HTTP/1.1 {status} ")),
            "{to:?}: {said:?}"
        );
    }
    assert_answers(&scene);
}

/// Starts a server whose allocator returns to the system at once what the server has freed. It would keep that for a while,
/// some MiB more or less from run to run, and what is resident would not say what the server holds.
fn start_returning(scene: &Scene, config: &Config) -> Server {
    let mut launcher = Command::new("env");
    launcher.arg("MIMALLOC_PURGE_DELAY=0");
    Server::start_by(scene, config, launcher)
}

/// Resident memory of the server, bytes.
fn resident(server: &Server) -> f64 {
    server.metric("process_resident_memory_bytes", "")
}

/// A client that floods from one address. Each request with credentials has a nonce of its own: of the
/// responses.
struct Flooder {
    socket: UdpSocket,
    here: SocketAddr,
    server: SocketAddr,
    long: String,
    nonces: VecDeque<String>,
}

impl Flooder {
    #[track_caller]
    fn new(scene: &Scene) -> Self {
        let socket = UdpSocket::bind((scene.ip(), 0)).expect("a socket");
        socket.set_nonblocking(true).expect("not blocking");
        Self {
            here: socket.local_addr().expect("its address"),
            socket,
            server: scene.at(port::SERVER),
            long: format!("X-Long: {}\r\n", "x".repeat(16_000)),
            nonces: VecDeque::new(),
        }
    }

    /// Takes what was answered.
    fn hear(&mut self) {
        let mut answer = [0; 65_536];
        while let Ok(length) = self.socket.recv(&mut answer) {
            let text = String::from_utf8_lossy(&answer[..length]);
            let nonce = text
                .split_once("nonce=\"")
                .and_then(|(_, rest)| rest.split_once('"'));
            self.nonces.extend(nonce.map(|(nonce, _)| nonce.to_owned()));
        }
    }

    /// The credentials of this user; none while there is no nonce for them, which asks for one.
    fn credentials(&mut self, method: &str, uri: &str, user: &str) -> String {
        let Some(nonce) = self.nonces.pop_front() else {
            return String::new();
        };
        let header = match method {
            "REGISTER" => "Authorization",
            _ => "Proxy-Authorization",
        };
        let secret = md5(&format!("{user}:{DOMAIN}:{PASSWORD}"));
        let request = md5(&format!("{method}:{uri}"));
        let response = md5(&format!("{secret}:{nonce}:00000001:c0ffee:auth:{request}"));
        format!(
            "{header}: Digest username=\"{user}\", realm=\"{DOMAIN}\", nonce=\"{nonce}\", uri=\"{uri}\", \
             response=\"{response}\", algorithm=MD5, qop=auth, nc=00000001, cnonce=\"c0ffee\"\r\n"
        )
    }

    /// One request of the flood: calls with large headers and without; registrations and messages, in turn of
    /// unknown users, each another, and of users with an account.
    #[track_caller]
    fn send(&mut self, number: usize) {
        let here = self.here;
        let via = format!("UDP {here};rport");
        let user = match number % 6 {
            4 | 5 => format!("account{}", number % ACCOUNTS),
            _ => format!("u{number}"),
        };
        let (aor, registrar) = (format!("sip:{user}@{DOMAIN}"), format!("sip:{DOMAIN}"));
        let text = match number % 6 {
            0 => request("INVITE", &aor, number, &via, &self.long),
            3 => request("INVITE", &aor, number, &via, ""),
            1 | 4 => {
                let lines = self.credentials("REGISTER", &registrar, &user)
                    + &format!("Contact: <sip:m{number}@{here}>\r\n");
                request("REGISTER", &registrar, number, &via, &lines)
                    .replace(&format!("To: <{registrar}>"), &format!("To: <{aor}>"))
            }
            _ => {
                let lines = self.credentials("MESSAGE", &aor, &user) + &self.long;
                request("MESSAGE", &aor, number, &via, &lines).replace("sip:mallory@elsewhere.example", &aor)
            }
        };
        self.socket
            .send_to(text.as_bytes(), self.server)
            .expect("sending");
    }
}

const MIB: usize = 1 << 20;
const PASSWORD: &str = "secret";
/// So many users exist, and each may have ten contacts (`location.max_contacts`).
const ACCOUNTS: usize = 4;
const CONTACTS: usize = ACCOUNTS * 10;

/// Limits of [`memory_stays_below_the_limits_in_a_flood`].
mod small {
    use super::MIB;

    pub(super) const WORKERS: usize = 2;
    pub(super) const TRANSACTION_BYTES: usize = 24 * MIB;
    pub(super) const PARKED_BYTES: usize = 2 * MIB;
    pub(super) const QUEUED_BYTES: usize = 2 * MIB;
    pub(super) const HELD: usize = 10_000;
    pub(super) const NONCES: usize = 1024;
    pub(super) const CACHED: usize = 1024;

    /// What all of that may take. A transaction without its messages takes less than a kilobyte, both of its
    /// sides and their timers (cargo run --release -p sip-core --example memory); so does a registration, and what
    /// is known of a user or a nonce.
    pub(super) const MOST: usize = WORKERS
        * (TRANSACTION_BYTES + PARKED_BYTES + 3 * QUEUED_BYTES + HELD * 1024)
        + (NONCES + CACHED + super::CONTACTS) * 1024;
}

fn small_server(scene: &Scene) -> Server {
    use small::{CACHED, HELD, NONCES, PARKED_BYTES, QUEUED_BYTES, TRANSACTION_BYTES, WORKERS};
    let limits = format!(
        "transactions = {HELD}\nheld_transactions = {HELD}\ntransaction_bytes = {TRANSACTION_BYTES}\n\
         parked_requests = 500\nparked_bytes = {PARKED_BYTES}\nnonces = {NONCES}\nevents = 1000"
    );
    let queues = format!(
        "udp_backlog_bytes = {QUEUED_BYTES}\nhandover_bytes = {QUEUED_BYTES}\nconnection_bytes = {QUEUED_BYTES}"
    );
    let config = Config::new()
        .workers(WORKERS as u16)
        .auth(&["MESSAGE", "REGISTER"])
        .invites_to(&format!("sip:{}", scene.at(port::CALLEE)), "auth = false")
        .table("[limits]", &limits)
        .table("[transport]", &queues)
        .table("[credentials]", &format!("cache_entries = {CACHED}"));
    let config = (0..ACCOUNTS).fold(config, |config, n| config.user(&format!("account{n}"), PASSWORD));
    start_returning(scene, &config)
}

/// What the process holds under the flood of [`memory_stays_below_the_limits_in_a_flood`], each with the most of it.
const HELD: [(&str, usize); 4] = [
    ("transaction_bytes", small::WORKERS * small::TRANSACTION_BYTES),
    // With a space: no other that begins so.
    ("nonces ", small::NONCES),
    ("credential_cache_entries", small::CACHED),
    ("location_bindings", CONTACTS),
];

/// What counts that these limits were reached.
const REACHED: [(&str, &str); 4] = [
    ("limit_reached_total", "limit=\"transactions\""),
    ("nonces_evicted_total", ""),
    ("credential_cache_evictions_total", ""),
    ("registrations_total", "result=\"refused\""),
];

/// Whether the flood was large enough to reach each limit.
fn has_reached_all(server: &Server) -> bool {
    let is_counted = |name: &str, label: &str| server.metric(&format!("trapezoid_{name}"), label) > 0.0;
    HELD.iter().all(|(name, _)| is_counted(name, ""))
        && REACHED.iter().all(|(name, label)| is_counted(name, label))
}

/// Small limits, and floods of all that is bounded: unique branches with large headers, unique users, unique
/// registrations. What the process holds stays below what it held before and the sum of its limits.
#[test]
fn memory_stays_below_the_limits_in_a_flood() {
    const FLOOD: usize = 40_000;
    let scene = Scene::new();
    let server = small_server(&scene);
    let _callee = silent_callee(&scene);
    assert_answers(&scene);
    let before = resident(&server);
    // The allocator holds some pages more than are used.
    let cap = before + small::MOST as f64 * 1.25;
    let mut flooders: Vec<Flooder> = (0..4).map(|_| Flooder::new(&scene)).collect();
    let mut peak = before;
    let begin = Instant::now();
    let mut number = 0;
    // On a machine that is slow the flood is shorter, as long as it reaches every limit.
    let is_long = |number| number >= FLOOD || begin.elapsed() >= Duration::from_secs(15);
    while !is_long(number) || !has_reached_all(&server) {
        assert!(
            begin.elapsed() < LONG,
            "{number} requests do not reach every limit"
        );
        for _ in 0..500 {
            for flooder in &mut flooders {
                flooder.send(number);
                flooder.hear();
                number += 1;
            }
        }
        peak = peak.max(resident(&server));
        assert!(peak <= cap, "{peak} of {cap} bytes after {number} requests");
    }
    eprintln!(
        "{number} requests; resident {:.0} MiB before, {:.0} at most, bound {:.0}",
        before / MIB as f64,
        peak / MIB as f64,
        cap / MIB as f64
    );
    for (what, most) in HELD {
        let held = server.metric(&format!("trapezoid_{what}"), "");
        eprintln!("{what}: {held} of {most}");
        assert!(held > 0.0 && held <= most as f64, "{what}: {held} of {most}");
    }
    assert_answers(&scene);
}

/// Where no caller is asked for credentials, a flood of registrations, each of another user and as long as may be.
#[test]
fn registrations_stay_below_their_limit_in_a_flood() {
    const LOCATION_BYTES: usize = 8 * MIB;
    const PARKED_BYTES: usize = 2 * MIB;
    /// Of the store: SQLite's pages (32 MiB), the journal's buffers (8 MiB), and what waits for it.
    const STORE_BYTES: usize = 64 * MIB;
    let scene = Scene::new();
    let limits = format!("location_bytes = {LOCATION_BYTES}\nparked_bytes = {PARKED_BYTES}");
    let config = Config::new().workers(2).auth(&[]).table("[limits]", &limits);
    let server = start_returning(&scene, &config);
    assert_answers(&scene);
    let before = resident(&server);
    let mut flooder = Flooder::new(&scene);
    let (here, registrar) = (flooder.here, format!("sip:{DOMAIN}"));
    let full = |server: &Server| server.metric("trapezoid_limit_reached_total", "limit=\"location-bytes\"");
    // The allocator holds some pages more than are used.
    let cap = before + (LOCATION_BYTES + 2 * PARKED_BYTES) as f64 * 1.25 + STORE_BYTES as f64;
    let (begin, mut peak) = (Instant::now(), before);
    let mut number = 0;
    while full(&server) < 1_000.0 {
        assert!(
            begin.elapsed() < LONG,
            "{number} registrations, {} refused",
            full(&server)
        );
        for _ in 0..500 {
            let lines = format!("Contact: <sip:u@{here};x={}>\r\n", "x".repeat(1_900));
            let text = request(
                "REGISTER",
                &registrar,
                number,
                &format!("UDP {here};rport"),
                &lines,
            )
            .replace(
                &format!("To: <{registrar}>"),
                &format!("To: <sip:u{number}@{DOMAIN}>"),
            );
            flooder
                .socket
                .send_to(text.as_bytes(), flooder.server)
                .expect("sending");
            flooder.hear();
            number += 1;
        }
        peak = peak.max(resident(&server));
        assert!(peak <= cap, "{peak} of {cap} bytes after {number} registrations");
    }
    let held = server.metric("trapezoid_location_bytes", "");
    eprintln!(
        "{number} registrations; {held} bytes of them held; resident {:.0} MiB before, {:.0} at most",
        before / MIB as f64,
        peak / MIB as f64
    );
    let most = LOCATION_BYTES as f64;
    assert!((most..most + 100_000.0).contains(&held), "{held}");
    assert_answers(&scene);
}

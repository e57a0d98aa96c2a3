//! Known attacks on the real server: rows of `docs/attacks.md` that need its sockets, or its memory.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use conformance::{Authority, Config, DOMAIN, Name, Scene, Server, Transport, port};

const PATIENCE: Duration = Duration::from_secs(20);

/// A request with this in its Via, and these header lines.
fn request(method: &str, uri: &str, number: usize, via: &str, lines: &str) -> String {
    format!(
        "{method} {uri} SIP/2.0\r\nVia: SIP/2.0/{via};branch=z9hG4bK{number}\r\nMax-Forwards: 70\r\n\
         From: <sip:mallory@elsewhere.example>;tag={number}\r\nTo: <{uri}>\r\nCall-ID: attack-{number}\r\n\
         CSeq: 1 {method}\r\n{lines}Content-Length: 0\r\n\r\n"
    )
}

/// Waits until a metric is as wanted.
fn settles(server: &Server, name: &str, wanted: impl Fn(f64) -> bool) {
    let begin = Instant::now();
    loop {
        let value = server.metric(name, "");
        if wanted(value) {
            return;
        }
        assert!(begin.elapsed() < PATIENCE, "{name} stays at {value}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Asks the server itself over UDP, as somebody who has nothing to do with it all: again every 500 ms
/// (RFC 3261 §17.1.2.2), for after a flood a datagram may have found no room.
fn assert_answers(scene: &Scene) {
    let socket = UdpSocket::bind((scene.ip(), 0)).expect("a socket");
    socket
        .set_read_timeout(Some(Duration::from_millis(500)))
        .expect("a time-out");
    let at = scene.at(port::SERVER);
    let here = socket.local_addr().expect("its address");
    let text = request(
        "OPTIONS",
        &format!("sip:{at}"),
        999_999,
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
fn silent_callee(scene: &Scene) -> UdpSocket {
    UdpSocket::bind(scene.at(port::CALLEE)).expect("the callee's port")
}

/// Where the burst says to come from: connections to it are counted, and closed.
fn sent_by(scene: &Scene) -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((scene.ip(), 0)).expect("a listener");
    listener.set_nonblocking(true).expect("not blocking");
    let at = listener.local_addr().expect("its address");
    (listener, at)
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
        .table("[limits]", "transactions = 300\nconnections_per_address = 20");
    let server = Server::start(&scene, &config);
    let _callee = silent_callee(&scene);
    let (listener, victim) = sent_by(&scene);
    for round in 0..5 {
        let mut stream = TcpStream::connect(scene.at(port::SERVER)).expect("connecting");
        let mut burst = String::new();
        for number in 0..400 {
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
        // What is unread when we go would be reset away: it has the time to read.
        std::thread::sleep(Duration::from_millis(300));
        drop(stream);
        assert_answers(&scene);
    }
    settles(&server, "trapezoid_connections", |open| open <= 20.0);
    let mut connected = 0;
    while listener.accept().is_ok() {
        connected += 1;
    }
    // Answers go to who sent-by says (RFC 3261 §18.2.2): by a few connections that all of them share.
    assert!(connected <= 40, "{connected} connections for 2,000 requests");
    let opened = server.metric("trapezoid_net_connections_total", "opened_by=\"server\"");
    assert!(opened <= 40.0, "{opened} connections opened");
    let held = server.metric("trapezoid_server_transactions", "");
    assert!(held <= 2.0 * 300.0 + 2000.0, "{held}");
    assert!(server.metric("trapezoid_limit_reached_total", "limit=\"transactions\"") > 0.0);
    drop(listener);
    // Timer B and those behind it: what nobody answers is given up after 64 times T1, and held for 32 s at most.
    let begin = Instant::now();
    while server.metric("trapezoid_client_transactions", "") > 0.0 {
        assert!(begin.elapsed() < Duration::from_secs(90), "transactions stay");
        std::thread::sleep(Duration::from_millis(500));
    }
    settles(&server, "trapezoid_connections", |open| open == 0.0);
    assert_answers(&scene);
}

/// The handshake of RFC 6455 §1.3.
fn upgraded(scene: &Scene) -> TcpStream {
    let mut stream = TcpStream::connect(scene.at(Transport::Ws.port())).expect("connecting");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    stream
        .write_all(
            b"GET / HTTP/1.1\r\nHost: example.com\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
              Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: sip\r\n\
              Sec-WebSocket-Version: 13\r\n\r\n",
        )
        .expect("sending");
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

#[test]
fn malformed_frames_end_their_connection_only() {
    let scene = Scene::new();
    let authority = Authority::new(&scene, "authority");
    let identity = authority.issue("server", &[Name::Dns(DOMAIN)]);
    let server = Server::start(
        &scene,
        &Config::new().listen(&scene, Transport::Ws, &identity, ""),
    );
    let mut bystander = upgraded(&scene);
    let mut long_control = vec![0x89, 0xfe, 0x01, 0x00, 0, 0, 0, 0];
    long_control.extend([0; 256]);
    let frames: [(&str, Vec<u8>); 12] = [
        ("no mask", vec![0x81, 0x02, b'h', b'i']),
        ("a reserved bit", vec![0xc1, 0x80, 0, 0, 0, 0]),
        ("a reserved opcode", vec![0x83, 0x80, 0, 0, 0, 0]),
        ("a reserved control opcode", vec![0x8b, 0x80, 0, 0, 0, 0]),
        ("a fragmented Ping", vec![0x09, 0x80, 0, 0, 0, 0]),
        ("a long Ping", long_control),
        ("a continuation of nothing", vec![0x80, 0x80, 0, 0, 0, 0]),
        (
            "a length of 2^63",
            vec![0x82, 0xff, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        ),
        (
            "a length of 2^62",
            vec![0x82, 0xff, 0x40, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        ),
        (
            "a length that is too long for what it is",
            vec![0x82, 0xfe, 0x00, 0x01, 0, 0, 0, 0, 0],
        ),
        ("text that is none", vec![0x81, 0x82, 0, 0, 0, 0, 0xff, 0xff]),
        ("a Close of one byte", vec![0x88, 0x81, 0, 0, 0, 0, 0x03]),
    ];
    for (what, frame) in &frames {
        let mut stream = upgraded(&scene);
        stream.write_all(frame).expect("sending");
        let mut rest = Vec::new();
        // A reset is an end too.
        let _ = stream.read_to_end(&mut rest);
        assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0, "{what}");
        // A Close with its status code, and nothing else.
        assert!(rest.is_empty() || rest[0] == 0x88, "{what}: {rest:?}");
    }
    // Half a frame, and then nothing: it is the client's to end.
    for (_, frame) in &frames {
        let mut stream = upgraded(&scene);
        stream.write_all(&frame[..1]).expect("sending");
    }
    settles(&server, "trapezoid_connections", |open| open <= 1.0);
    bystander.write_all(&[0x89, 0x80, 0, 0, 0, 0]).expect("sending");
    let mut pong = [0; 2];
    bystander.read_exact(&mut pong).expect("a Pong");
    assert_eq!(pong, [0x8a, 0]);
    assert_answers(&scene);
}

/// Resident memory of the server, bytes.
fn resident(server: &Server) -> f64 {
    server.metric("process_resident_memory_bytes", "")
}

/// One request of a flood: calls with large headers and without, registrations, and what needs credentials.
fn of_the_flood(number: usize, from: SocketAddr, long: &str) -> String {
    let via = format!("UDP {from};rport");
    let user = format!("sip:u{number}@{DOMAIN}");
    match number % 4 {
        0 => request("INVITE", &user, number, &via, long),
        1 => {
            let contact = format!("Contact: <sip:m{number}@{from}>\r\n");
            let text = request("REGISTER", &format!("sip:{DOMAIN}"), number, &via, &contact);
            text.replace(&format!("To: <sip:{DOMAIN}>"), &format!("To: <{user}>"))
        }
        2 => request("MESSAGE", &user, number, &via, long),
        _ => request("INVITE", &user, number, &via, ""),
    }
}

/// Small limits, and floods of all that is bounded: unique branches with large headers, unique users, unique
/// registrations. What the process holds stays below what it held before and the sum of its limits.
#[test]
fn memory_stays_below_the_limits_in_a_flood() {
    const WORKERS: usize = 2;
    const MIB: usize = 1 << 20;
    const TRANSACTION_BYTES: usize = 24 * MIB;
    const PARKED_BYTES: usize = 2 * MIB;
    const QUEUED_BYTES: usize = 2 * MIB;
    const HELD: usize = 10_000;
    const FLOOD: usize = 40_000;
    let scene = Scene::new();
    let mut limits = String::new();
    writeln!(
        limits,
        "transactions = {HELD}\nheld_transactions = {HELD}\ntransaction_bytes = {TRANSACTION_BYTES}\n\
         parked_requests = 500\nparked_bytes = {PARKED_BYTES}\nnonces = 1000\nevents = 1000"
    )
    .expect("writing to a string");
    let queues = format!(
        "udp_backlog_bytes = {QUEUED_BYTES}\nhandover_bytes = {QUEUED_BYTES}\nconnection_bytes = {QUEUED_BYTES}"
    );
    let config = Config::new()
        .workers(WORKERS as u16)
        .auth(&["MESSAGE"])
        .invites_to(&format!("sip:{}", scene.at(port::CALLEE)), "auth = false")
        .table("[limits]", &limits)
        .table("[transport]", &queues)
        .table("[credentials]", "cache_entries = 1000");
    let server = Server::start(&scene, &config);
    let _callee = silent_callee(&scene);
    assert_answers(&scene);
    let before = resident(&server);
    // A transaction without its messages takes less than a kilobyte, both of its sides and their timers
    // (cargo run --release -p sip-core --example memory). The allocator holds some pages more than are used.
    // A registration as much again: anybody may have one here, so there are as many as are asked for.
    let workers = WORKERS * (TRANSACTION_BYTES + PARKED_BYTES + 3 * QUEUED_BYTES + HELD * 1024);
    let most = workers + FLOOD / 4 * 1024;
    let cap = before + most as f64 * 1.25;
    let sockets: Vec<UdpSocket> = (0..4)
        .map(|_| UdpSocket::bind((scene.ip(), 0)).expect("a socket"))
        .collect();
    let long = format!("X-Long: {}\r\n", "x".repeat(16_000));
    let at = scene.at(port::SERVER);
    let mut peak = before;
    let begin = Instant::now();
    let mut number = 0;
    while number < FLOOD && begin.elapsed() < Duration::from_secs(15) {
        for socket in &sockets {
            let here = socket.local_addr().expect("its address");
            let text = of_the_flood(number, here, &long);
            socket.send_to(text.as_bytes(), at).expect("sending");
            number += 1;
        }
        if number % 2000 == 0 {
            peak = peak.max(resident(&server));
            assert!(peak <= cap, "{peak} of {cap} bytes after {number} requests");
        }
    }
    peak = peak.max(resident(&server));
    let refused = server.metric("trapezoid_limit_reached_total", "limit=\"transactions\"");
    let held = server.metric("trapezoid_transaction_bytes", "");
    eprintln!(
        "{number} requests, {refused} refused; resident {:.0} MiB before, {:.0} at most, bound {:.0}; {held} bytes held",
        before / MIB as f64,
        peak / MIB as f64,
        cap / MIB as f64
    );
    assert!(peak <= cap, "{peak} of {cap} bytes");
    assert!(held <= (WORKERS * TRANSACTION_BYTES) as f64, "{held}");
    assert!(refused > 0.0, "the flood was large enough to reach a limit");
    assert_answers(&scene);
}

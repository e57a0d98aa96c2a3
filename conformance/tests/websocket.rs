//! WebSocket itself, at the real server: which handshakes open one, fragments, pings, keep-alives,
//! the Close, and what ends a connection (RFC 6455, RFC 7118).

use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};

use conformance::{Authority, Config, DOMAIN, Name, PATIENCE, Scene, Server, Transport};
use tungstenite::client::ClientRequestBuilder;
use tungstenite::protocol::frame::Frame;
use tungstenite::protocol::frame::coding::{CloseCode, Data, OpCode};
use tungstenite::{Message, WebSocket};

/// The handshake of RFC 6455 §1.3, with the sub-protocol of SIP.
const REQUEST: &str = "GET / HTTP/1.1\r\nHost: example.com\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                       Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nOrigin: http://example.com\r\n\
                       Sec-WebSocket-Protocol: chat, sip\r\nSec-WebSocket-Version: 13\r\n\r\n";

struct Stage {
    _server: Server,
    scene: Scene,
}

impl Stage {
    fn new() -> Self {
        Self::with(Config::new())
    }

    fn with(config: Config) -> Self {
        let scene = Scene::new();
        let authority = Authority::new(&scene, "authority");
        let identity = authority.issue("server", &[Name::Dns(DOMAIN)]);
        let config = config.listen(&scene, Transport::Ws, &identity, "");
        Self {
            _server: Server::start(&scene, &config),
            scene,
        }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.scene.at(Transport::Ws.port())).expect("connecting");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
        stream
    }

    fn open(&self) -> WebSocket<TcpStream> {
        let uri = format!("ws://{}/", self.scene.at(Transport::Ws.port()));
        let uri = uri.parse().expect("a URI");
        let request = ClientRequestBuilder::new(uri).with_sub_protocol("sip");
        let (socket, _) = tungstenite::client(request, self.connect()).expect("a WebSocket");
        socket
    }

    /// Sends OPTIONS as these messages or frames, and reads until its answer.
    fn expect_answer(&self, socket: &mut WebSocket<TcpStream>, call: &str, messages: Vec<Message>) {
        for message in messages {
            socket.send(message).expect("sending");
        }
        let answer = next_text(socket);
        assert!(answer.starts_with("SIP/2.0 200 OK\r\n"), "{answer}");
        assert!(answer.contains(&format!("\r\nCall-ID: {call}\r\n")), "{answer}");
    }

    fn options(&self, call: &str) -> String {
        let at = self.scene.at(Transport::Ws.port());
        format!(
            "OPTIONS sip:{at} SIP/2.0\r\nVia: SIP/2.0/WS client.invalid;branch=z9hG4bK{call}\r\n\
             Max-Forwards: 70\r\nFrom: <sip:alice@{DOMAIN}>;tag=1\r\nTo: <sip:{at}>\r\n\
             Call-ID: {call}\r\nCSeq: 1 OPTIONS\r\n\r\n"
        )
    }
}

/// The next message that is no Pong.
fn next_text(socket: &mut WebSocket<TcpStream>) -> String {
    loop {
        match socket.read().expect("a message") {
            Message::Text(text) => return text.to_string(),
            Message::Pong(_) => {}
            other @ (Message::Binary(_) | Message::Ping(_) | Message::Close(_) | Message::Frame(_)) => {
                panic!("{other:?}")
            }
        }
    }
}

/// What comes until the server closes the connection.
fn read_to_end(mut stream: TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).expect("the end of the connection");
    bytes
}

#[test]
fn a_handshake_is_answered_as_the_rfc_says() {
    let stage = Stage::new();
    let mut stream = stage.connect();
    // Byte by byte, as no client would.
    for byte in REQUEST.as_bytes() {
        stream.write_all(&[*byte]).expect("sending");
    }
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("an answer");
        answer.push(byte[0]);
    }
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.starts_with("HTTP/1.1 101 "), "{answer}");
    let lines: Vec<String> = answer.lines().map(str::to_ascii_lowercase).collect();
    for line in [
        "sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo=",
        "sec-websocket-protocol: sip",
        "upgrade: websocket",
    ] {
        assert!(lines.iter().any(|l| l == line), "{line} in {answer}");
    }
}

/// Each with its status, after which the connection is closed.
#[test]
fn handshakes_that_open_no_websocket() {
    let stage = Stage::new();
    let without = |line: &str| {
        let lines = REQUEST.split_inclusive("\r\n");
        lines.filter(|l| !l.starts_with(line)).collect::<String>()
    };
    let long = format!("X-Long: {}\r\n\r\n", "x".repeat(100_000));
    let cases = [
        ("no sub-protocol", without("Sec-WebSocket-Protocol"), 400),
        ("another sub-protocol", REQUEST.replace("chat, sip", "chat"), 400),
        ("no key", without("Sec-WebSocket-Key"), 400),
        ("no version", without("Sec-WebSocket-Version"), 426),
        (
            "an older version",
            REQUEST.replace("Version: 13", "Version: 8"),
            426,
        ),
        (
            "a page wanted",
            "GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(),
            426,
        ),
        ("no GET", REQUEST.replace("GET /", "POST /"), 405),
        ("HTTP/1.0", REQUEST.replace("HTTP/1.1", "HTTP/1.0"), 505),
        (
            "a long head",
            REQUEST.replace("\r\n\r\n", &format!("\r\n{long}")),
            431,
        ),
        ("no HTTP", stage.options("no-http"), 400),
    ];
    for (what, request, status) in cases {
        let mut stream = stage.connect();
        // What is too long may be refused before all of it was sent.
        let _ = stream.write_all(request.as_bytes());
        let mut answer = vec![0; 12];
        stream
            .read_exact(&mut answer)
            .unwrap_or_else(|e| panic!("{what}: {e}"));
        let answer = String::from_utf8_lossy(&answer).into_owned();
        if what != "no HTTP" {
            assert_eq!(answer, format!("HTTP/1.1 {status}"), "{what}");
        }
        let mut rest = Vec::new();
        // A reset is an end too: what we sent may not all have been read.
        let _ = stream.read_to_end(&mut rest);
        assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0, "{what}");
    }
}

#[test]
fn messages_come_as_text_as_binary_and_in_fragments() {
    let stage = Stage::new();
    let mut socket = stage.open();
    let text = stage.options("text");
    stage.expect_answer(&mut socket, "text", vec![Message::text(text)]);
    let binary = stage.options("binary").into_bytes();
    stage.expect_answer(&mut socket, "binary", vec![Message::binary(binary)]);
    let parts = stage.options("fragments").into_bytes();
    let count = parts.len();
    let frames = parts.iter().enumerate().map(|(number, byte)| {
        let kind = if number == 0 { Data::Text } else { Data::Continue };
        let last = number + 1 == count;
        Message::Frame(Frame::message(vec![*byte], OpCode::Data(kind), last))
    });
    let mut frames: Vec<Message> = frames.collect();
    // Control frames may lie between the fragments (RFC 6455 §5.4).
    frames.insert(count / 2, Message::Ping("between".into()));
    for frame in frames.drain(..=count / 2) {
        socket.send(frame).expect("sending");
    }
    let pong = socket.read().expect("a Pong");
    assert_eq!(pong, Message::Pong("between".into()));
    stage.expect_answer(&mut socket, "fragments", frames);
}

/// Without state an answer finds the connection of its request by what Via says, and a browser does
/// not ask for rport (RFC 7118 §5; RFC 3581 §4 is of datagrams).
#[test]
fn an_answer_comes_back_without_state() {
    let callee = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    callee.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    let uri = format!("sip:{}", callee.local_addr().expect("its address"));
    let stage = Stage::with(Config::new().stateless().invites_to(&uri, ""));
    let mut socket = stage.open();
    let invite = stage.options("stateless").replace("OPTIONS", "INVITE").replace(
        &format!("sip:{}", stage.scene.at(Transport::Ws.port())),
        &format!("sip:bob@{DOMAIN}"),
    );
    socket.send(Message::text(invite)).expect("sending");
    let mut bytes = [0; 4096];
    let (length, server) = callee.recv_from(&mut bytes).expect("the INVITE");
    let invite = String::from_utf8_lossy(&bytes[..length]).into_owned();
    let copied = invite.lines().filter(|line| {
        ["Via:", "From:", "To:", "Call-ID:", "CSeq:"]
            .iter()
            .any(|name| line.starts_with(name))
    });
    let answer: Vec<&str> = ["SIP/2.0 486 Busy Here"].into_iter().chain(copied).collect();
    callee
        .send_to(
            format!("{}\r\nContent-Length: 0\r\n\r\n", answer.join("\r\n")).as_bytes(),
            server,
        )
        .expect("sending");
    let told = next_text(&mut socket);
    assert!(told.starts_with("SIP/2.0 486 Busy Here\r\n"), "{told}");
}

/// RFC 7118 §6, RFC 5626 §3.5.1: two line ends are answered by one.
#[test]
fn keep_alives_are_answered() {
    let stage = Stage::new();
    let mut socket = stage.open();
    socket.send(Message::text("\r\n\r\n")).expect("sending");
    assert_eq!(next_text(&mut socket), "\r\n");
    socket.send(Message::Ping("alive".into())).expect("sending");
    let pong = socket.read().expect("a Pong");
    assert_eq!(pong, Message::Pong("alive".into()));
}

/// The server answers a Close with its own, and ends the connection.
#[test]
fn a_close_is_answered() {
    let stage = Stage::new();
    let mut socket = stage.open();
    let frame = tungstenite::protocol::CloseFrame {
        code: CloseCode::Normal,
        reason: "bye".into(),
    };
    socket.close(Some(frame)).expect("sending");
    let Ok(Message::Close(Some(answer))) = socket.read() else {
        panic!("no Close");
    };
    assert_eq!(answer.code, CloseCode::Normal);
    assert!(matches!(socket.read(), Err(tungstenite::Error::ConnectionClosed)));
}

/// Frames that end the connection, each with the code of the Close before that.
#[test]
fn faults_end_the_connection() {
    let stage = Stage::new();
    // A masking key of zeros leaves the payload as it is.
    let masked = |first: u8, payload: &[u8]| {
        let length = 0x80 | u8::try_from(payload.len()).expect("a short one");
        [&[first, length, 0, 0, 0, 0], payload].concat()
    };
    let too_long = [0x81, 0xff, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0];
    let cases: [(&str, Vec<u8>, u16); 7] = [
        ("not masked", vec![0x81, 2, b'h', b'i'], 1002),
        ("a reserved bit", masked(0xc1, b"hi"), 1002),
        ("a reserved opcode", masked(0x83, b"hi"), 1002),
        ("a continuation of nothing", masked(0x80, b"hi"), 1002),
        ("a fragment of a Ping", masked(0x09, b"hi"), 1002),
        ("text that is not UTF-8", masked(0x81, &[0xff, 0xfe]), 1007),
        ("too long a message", too_long.to_vec(), 1009),
    ];
    for (what, frame, code) in cases {
        let mut socket = stage.open();
        socket.get_mut().write_all(&frame).expect("sending");
        let stream = socket.get_ref().try_clone().expect("a socket");
        let end = read_to_end(stream);
        let [high, low] = code.to_be_bytes();
        assert_eq!(end, [0x88, 2, high, low], "{what}");
    }
    // All that was nothing to the others.
    let mut socket = stage.open();
    let text = stage.options("after");
    stage.expect_answer(&mut socket, "after", vec![Message::text(text)]);
}

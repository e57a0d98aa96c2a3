//! WebSocket (RFC 7118), with TLS and without.

#![allow(
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "a test that cannot go on fails"
)]

use crate::rig;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use rig::certificates::Kit;
use rig::websocket::{BINARY, CLOSE, PING, PONG, TEXT, UPGRADE, WebSocket, masked, read_head};
use rig::{Report, Rig, connect, read_to_end, settings, unless_late, write};
use sip_core::transport::Transport;
use sip_core::transport::websocket::AllowedOrigins;
use sip_net::settings::Settings;
use sip_net::tcp::StreamService;

/// 1001, 1002, 1008, 1009.
const GOING_AWAY: &[u8] = &[3, 0xe9];
const PROTOCOL_ERROR: &[u8] = &[3, 0xea];
const POLICY_VIOLATION: &[u8] = &[3, 0xf0];
const TOO_BIG: &[u8] = &[3, 0xf1];

/// The same conversation with TLS and without.
fn converse<S: Read + Write>(mut socket: WebSocket<S>) {
    socket.echo("hello");
    // Without Content-Length; any number in one write.
    let frame = masked(TEXT, b"ECHO many");
    write(&mut socket.0, &frame.repeat(50));
    for _ in 0..50 {
        socket.expect(TEXT, b"ECHO many");
    }
    // A message in three fragments, and a ping between them.
    socket.send(0x01, b"ECH");
    socket.send(PING, b"still there?");
    socket.expect(PONG, b"still there?");
    socket.send(0x00, b"O in");
    socket.send(0x80, b" fragments");
    socket.expect(TEXT, b"ECHO in fragments");
    // RFC 5626 §3.5.1: in a message of its own.
    socket.text(b"\r\n\r\n");
    socket.expect(TEXT, b"\r\n");
    socket.send(BINARY, b"ECHO binary");
    socket.expect(TEXT, b"ECHO binary");
    socket.send(BINARY, b"WHOLE \xff\xfe");
    socket.expect(BINARY, b"WHOLE \xff\xfe");
    // Longer than a record, a read, and 16 bits of length.
    let mut long = b"WHOLE long\r\n\r\n".to_vec();
    long.resize(150_000, b'x');
    for _ in 0..10 {
        socket.text(&long);
        socket.expect(TEXT, &long);
    }
    socket.send(PONG, b"unasked");
    socket.echo("after all");
    // The client closes; the code comes back, and the end.
    socket.send(CLOSE, &[3, 0xe8, b'b', b'y', b'e']);
    socket.expect(CLOSE, &[3, 0xe8]);
    assert_eq!(socket.frame(), None);
}

#[test]
fn a_conversation_with_and_without_tls() {
    let kit = Kit::new();
    let rig = Rig::secure(1, settings(), kit.service());
    converse(WebSocket::open(connect(rig.ws)));
    let got = rig.next();
    let Report::Message { flow, .. } = got else {
        panic!("{got:?}")
    };
    assert_eq!((flow.transport, flow.listener.0), (Transport::Ws, 3));
    converse(WebSocket::open(kit.connect(rig.wss)));
    assert_eq!(rig.counter(2, |c| c.ws_opened), 2);
    assert_eq!(rig.counter(2, |c| c.tcp_closed_by_peer), 2);
    assert_eq!(rig.counter(4, |c| c.stream_pings), 4);
    rig.end_empty();
}

#[test]
fn frames_may_come_with_the_upgrade_and_byte_by_byte() {
    let rig = Rig::secure(1, settings(), Kit::new().service());
    let mut stream = connect(rig.ws);
    let all = [UPGRADE, &masked(TEXT, b"ECHO one"), &masked(PING, b"x")].concat();
    write(&mut stream, &all);
    assert!(read_head(&mut stream).starts_with("HTTP/1.1 101 "));
    let mut socket = WebSocket(stream);
    let two = |socket: &mut WebSocket<TcpStream>| {
        let mut frames = [socket.frame().unwrap(), socket.frame().unwrap()];
        frames.sort();
        assert_eq!(frames, [(TEXT, b"ECHO one".to_vec()), (PONG, b"x".to_vec())]);
    };
    two(&mut socket);
    let mut stream = connect(rig.ws);
    for byte in &all {
        write(&mut stream, &[*byte]);
    }
    assert!(read_head(&mut stream).starts_with("HTTP/1.1 101 "));
    let mut slow = WebSocket(stream);
    two(&mut slow);
    drop((socket, slow));
    rig.end_empty();
}

#[test]
fn a_bad_upgrade_is_answered_and_ended() {
    let service = StreamService {
        origins: AllowedOrigins::only(["https://phone.example.com"]).unwrap(),
        ..Kit::new().service()
    };
    let rig = Rig::secure(1, settings(), service);
    let upgrade = String::from_utf8(UPGRADE.to_vec()).unwrap();
    let with_origin = |origin: &str| upgrade.replace("\r\n\r\n", &format!("\r\nOrigin: {origin}\r\n\r\n"));
    for (number, (request, status)) in [
        ("OPTIONS sip:a SIP/2.0\r\n\r\n".to_owned(), "400 "),
        ("GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(), "426 "),
        (upgrade.replace("HTTP/1.1", "HTTP/1.0"), "505 "),
        (upgrade.replace("Protocol: sip", "Protocol: mqtt"), "400 "),
        (upgrade.replace("GET", "POST"), "405 "),
        (with_origin("https://elsewhere.example.com"), "403 "),
        (format!("GET / HTTP/1.1\r\nHost: {}", "a".repeat(70_000)), "431 "),
        ("\x16\x03\x01".to_owned(), "400 "),
    ]
    .into_iter()
    .enumerate()
    {
        let mut stream = connect(rig.ws);
        // Frames after it are not read.
        let _ = stream.write_all(&[request.as_bytes(), &masked(TEXT, b"ECHO x")].concat());
        let answer = String::from_utf8(read_to_end(&mut stream)).unwrap();
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}")),
            "{request}: {answer}"
        );
        let count = number as u64 + 1;
        assert_eq!(rig.counter(count, |c| c.tcp_closed_upgrade), count);
    }
    let mut stream = connect(rig.ws);
    write(&mut stream, with_origin("https://phone.example.com").as_bytes());
    assert!(read_head(&mut stream).starts_with("HTTP/1.1 101 "));
    drop(stream);
    assert_eq!(rig.counter(1, |c| c.ws_opened), 1);
    assert_eq!(rig.counter(0, |c| c.stream_received), 0);
    rig.end_empty();
}

#[test]
fn what_is_not_sent_comes_back_without_its_frame() {
    const MADE: usize = 15_000;
    let settings = Settings {
        write_queue_bytes: 64 << 10,
        ..settings()
    };
    let kit = Kit::new();
    let rig = Rig::secure(1, settings, kit.service());
    let flood = format!("FLOOD {MADE}");
    let check = |transport, all: usize, taken_before: usize| {
        let all = all as u64;
        assert_eq!(rig.counter(all, |c| c.stream_sent + c.stream_undelivered), all);
        let undelivered = rig.all_undelivered(transport, taken_before);
        for text in &undelivered {
            assert!(
                text.len() == 1000 && text.as_bytes()[0].is_ascii_digit(),
                "{text:?}"
            );
        }
        assert!(undelivered.len() >= 60, "{}", undelivered.len());
        undelivered.len()
    };
    let mut plain = WebSocket::open(connect(rig.ws));
    plain.text(flood.as_bytes());
    let taken = check(Transport::Ws, MADE, 0);
    let mut secure = WebSocket::open(kit.connect(rig.wss));
    secure.text(flood.as_bytes());
    // With the answer to the upgrade, which is no message.
    check(Transport::Wss, 2 * MADE, taken);
    assert_eq!(rig.counter(2, |c| c.tcp_closed_slow), 2);
    rig.end_empty();
}

#[test]
fn nothing_is_sent_before_the_upgrade() {
    let kit = Kit::new();
    let rig = Rig::secure(1, settings(), kit.service());
    let mut stream = connect(rig.ws);
    let address = stream.local_addr().unwrap();
    rig.until(|(connections, ..)| connections == 1);
    // By its address, and by its number.
    rig.tell(&format!("VIA 3 {address} by address"));
    assert_eq!(rig.next_undelivered(), "by address");
    rig.tell(&format!("GUESS 3 {address} by number"));
    assert_eq!(rig.next_undelivered(), "by number");
    write(&mut stream, &UPGRADE[..100]);
    rig.tell(&format!("GUESS 3 {address} in the midst"));
    assert_eq!(rig.next_undelivered(), "in the midst");
    write(&mut stream, &UPGRADE[100..]);
    assert!(read_head(&mut stream).starts_with("HTTP/1.1 101 "));
    let mut socket = WebSocket(stream);
    rig.tell(&format!("VIA 3 {address} by address"));
    socket.expect(TEXT, b"by address");
    rig.tell(&format!("GUESS 3 {address} by number"));
    socket.expect(TEXT, b"by number");
    socket.send(CLOSE, &[]);
    socket.expect(CLOSE, &[]);
    rig.tell(&format!("VIA 3 {address} too late"));
    assert_eq!(rig.next_undelivered(), "too late");
    drop(socket);
    // We open no WebSocket.
    rig.tell(&format!("VIA 4 {address} nobody"));
    assert_eq!(rig.next_undelivered(), "nobody");
    rig.end_empty();
}

#[test]
fn a_silent_websocket_is_asked_and_one_that_does_not_answer_is_ended() {
    const PING_AFTER: Duration = Duration::from_secs(1);
    let kit = Kit::new();
    // A ping, and as long again for the answer.
    unless_late(2 * PING_AFTER, |window| {
        let settings = Settings {
            ws_ping_ms: PING_AFTER.as_millis() as u32,
            ..settings()
        };
        let rig = Rig::secure(1, settings, kit.service());
        let mut dead = WebSocket::open(connect(rig.ws));
        window.open();
        let mut alive = WebSocket::open(kit.connect(rig.wss));
        // Before its upgrade no connection is pinged.
        let mut early = connect(rig.ws);
        for _ in 0..2 {
            alive.expect(PING, b"");
            window.act(|| alive.send(PONG, b""));
        }
        dead.expect(PING, b"");
        dead.expect(CLOSE, GOING_AWAY);
        assert_eq!(dead.frame(), None, "one ping alone");
        assert_eq!(rig.counter(1, |c| c.tcp_closed_idle), 1);
        alive.expect(PING, b"");
        window.act(|| alive.send(PONG, b""));
        alive.send(CLOSE, &[]);
        window.close();
        while alive.frame().is_some() {}
        write(&mut early, b"x");
        drop((dead, alive, early));
        rig.end_empty();
    });
}

#[test]
fn a_websocket_that_asks_and_does_not_read_is_cut() {
    let settings = Settings {
        write_queue_bytes: 64 << 10,
        ..settings()
    };
    let kit = Kit::new();
    let rig = Rig::secure(1, settings, kit.service());
    let mut socket = WebSocket::open(kit.connect(rig.wss));
    let pings = masked(TEXT, b"\r\n\r\n").repeat(1000);
    let mut written = 0;
    while socket.0.write_all(&pings).is_ok() {
        written += 1;
        assert!(written < 20_000, "its answers pile up");
    }
    assert_eq!(rig.counter(1, |c| c.tcp_closed_slow), 1);
    drop(socket);
    rig.end_empty();
}

#[test]
fn answers_go_before_the_last_frame_and_nothing_after_it() {
    let kit = Kit::new();
    let rig = Rig::secure(1, settings(), kit.service());
    let too_long = {
        let mut frame = vec![TEXT, 0x80 | 127];
        frame.extend(300_000u64.to_be_bytes());
        frame.extend([0; 4]);
        frame
    };
    for (last, reply) in [
        (masked(CLOSE, &[]), &[][..]),
        (masked(CLOSE, &[3, 0xe9]), GOING_AWAY),
        (vec![0xff, 0xff], PROTOCOL_ERROR),
        (vec![TEXT, 5], PROTOCOL_ERROR),
        (too_long, TOO_BIG),
        (masked(TEXT, b"CLOSE"), POLICY_VIOLATION),
    ] {
        let bye = last == masked(TEXT, b"CLOSE");
        let all = [
            masked(PING, b"p"),
            masked(TEXT, b"ECHO one"),
            masked(TEXT, b"ECHO two"),
            last,
            masked(TEXT, b"ECHO never"),
        ]
        .concat();
        let check = |frames: Vec<(u8, Vec<u8>)>| {
            let of = |first| {
                frames
                    .iter()
                    .filter(move |(f, _)| *f == first)
                    .map(|(_, p)| p.as_slice())
            };
            assert_eq!(frames.last(), Some(&(CLOSE, reply.to_vec())), "{frames:?}");
            assert_eq!((of(CLOSE).count(), of(PONG).count()), (1, 1), "{frames:?}");
            let texts: Vec<_> = of(TEXT).collect();
            let expected: &[&[u8]] = &[b"ECHO one", b"ECHO two", b"BYE"];
            assert_eq!(texts, expected[..if bye { 3 } else { 2 }], "{frames:?}");
        };
        let mut plain = WebSocket::open(connect(rig.ws));
        write(&mut plain.0, &all);
        check(std::iter::from_fn(|| plain.frame()).collect());
        let mut secure = WebSocket::open(kit.connect(rig.wss));
        write(&mut secure.0, &all);
        check(std::iter::from_fn(|| secure.frame()).collect());
    }
    assert_eq!(rig.counter(4, |c| c.tcp_closed_by_peer), 4);
    assert_eq!(rig.counter(6, |c| c.tcp_closed_framing), 6);
    assert_eq!(rig.counter(2, |c| c.tcp_closed_by_core), 2);
    rig.end_empty();
}

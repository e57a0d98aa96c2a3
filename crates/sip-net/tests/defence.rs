//! Bounds: what a peer that means ill, or too many at once, can cost the others.

#![allow(
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "a test that cannot go on fails"
)]

use crate::rig;

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rig::certificates::{Kit, TlsStream, connect_with};
use rig::websocket::{CLOSE, TEXT, UPGRADE, WebSocket, masked};
use rig::{PATIENCE, Rig, connect, expect, framed, read_to_end, settings, unless_late, write};
use sip_net::settings::Settings;
use sip_net::tls::Versions;

/// A client that does not read its responses is not read from: it costs neither work nor memory.
#[test]
fn a_peer_that_does_not_read_is_not_heard_until_it_does() {
    const WHOLE_IN: Duration = Duration::from_secs(2);
    const QUESTIONS: usize = 400;
    let kit = Kit::new();
    unless_late(WHOLE_IN, |window| {
        let settings = Settings {
            message_timeout_ms: WHOLE_IN.as_millis() as u32,
            ..settings()
        };
        let rig = Rig::secure(1, settings, kit.service());
        // Each is answered by as much as it has.
        let question = framed("WHOLE", 20_000);
        let mut deaf = rig.connect();
        let mut asks = deaf.try_clone().unwrap();
        // While the client is heard, each of its messages must come in time.
        window.open();
        let asking = std::thread::spawn(move || write(&mut asks, &framed("WHOLE", 20_000).repeat(QUESTIONS)));
        rig.until(|_| rig.counter(0, |c| c.stream_pauses) >= 1 || window.is_late());
        window.close();
        // Longer than a begun message may take: the rest of the client's message cannot come.
        let mut other = incomplete(&rig, 1_000);
        assert!(read_to_end(&mut other).is_empty());
        assert_eq!(rig.counter(1, |c| c.tcp_closed_incomplete), 1);
        let taken = rig.counter(1, |c| c.stream_received);
        assert!(taken < QUESTIONS as u64, "all {QUESTIONS} were taken");
        let (_, bytes, _) = rig.load();
        assert!(bytes < 500_000, "{bytes} bytes wait for him");
        // The client reads after all, and gets every response.
        window.open();
        for _ in 0..QUESTIONS {
            expect(&mut deaf, &question);
        }
        asking.join().unwrap();
        window.close();
        let all = QUESTIONS as u64;
        assert_eq!(rig.counter(all, |c| c.stream_received), all);
        drop((deaf, other));
        rig.end_empty();
    });
}

/// The first bytes of a ClientHello, and no more.
fn hello(kit: &Kit, address: SocketAddr, count: usize) -> TcpStream {
    let mut stream = connect_with(&kit.client(Versions::Tls13), address, usize::MAX);
    let mut flight = Vec::new();
    stream.conn.write_tls(&mut flight).unwrap();
    let count = count.min(flight.len());
    write(&mut stream.sock, &flight[..count]);
    stream.into_parts().1.socket
}

/// Sends a byte of `bytes` each 50 ms, again and again, until the connection is ended.
fn dribble(stream: &mut TcpStream, bytes: &[u8]) {
    let begin = Instant::now();
    stream.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    for byte in bytes.iter().cycle() {
        assert!(begin.elapsed() < PATIENCE, "is it ever ended?");
        if stream.write_all(&[*byte]).is_err() {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
        match std::io::Read::read(stream, &mut [0; 1000]) {
            Ok(0) => break,
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => break,
        }
    }
}

#[test]
fn handshakes_that_do_not_end_are_ended() {
    const PATIENT: Duration = Duration::from_millis(1_500);
    let kit = Kit::new();
    unless_late(PATIENT, |window| {
        let settings = Settings {
            handshake_timeout_ms: PATIENT.as_millis() as u32,
            ..settings()
        };
        let rig = Rig::secure(1, settings, kit.service());
        let begin = Instant::now();
        window.open();
        let mut standing = unfinished(&kit, &rig);
        // Bytes one by one do not prolong it.
        let slow = [
            (connect(rig.ws), &UPGRADE[..60]),
            (hello(&kit, rig.tls, 10), &b"\0"[..]),
        ];
        window.close();
        let slow = slow.map(|(mut stream, bytes)| {
            std::thread::spawn(move || {
                dribble(&mut stream, bytes);
                begin.elapsed()
            })
        });
        for stream in &mut standing {
            read_to_end(stream);
        }
        for thread in slow {
            let took = thread.join().unwrap();
            assert!(took >= PATIENT, "{took:?}");
        }
        assert_eq!(rig.counter(9, |c| c.tcp_closed_handshake), 9);
        drop(standing);
        rig.end_empty();
    });
}

/// Nothing at all, a part of a ClientHello, one without the rest of the handshake; the same of an upgrade.
fn unfinished(kit: &Kit, rig: &Rig) -> Vec<TcpStream> {
    let mut half = connect(rig.ws);
    write(&mut half, &UPGRADE[..60]);
    // TLS done, and then nothing.
    let mut secure = kit.connect(rig.wss);
    secure.conn.complete_io(&mut secure.sock).unwrap();
    vec![
        connect(rig.tls),
        hello(kit, rig.tls, 40),
        hello(kit, rig.tls, usize::MAX),
        connect(rig.ws),
        connect(rig.wss),
        half,
        secure.into_parts().1.socket,
    ]
}

/// A client that has said hello and was answered: its socket, and what it would say next.
fn half_way(kit: &Kit, address: SocketAddr, versions: Versions) -> (TcpStream, Vec<u8>) {
    let mut stream = connect_with(&kit.client(versions), address, usize::MAX);
    stream.conn.write_tls(&mut stream.sock).unwrap();
    let mut rest = Vec::new();
    // More than the ChangeCipherSpec, which TLS 1.3 lets go first (RFC 8446 §D.4).
    while rest.len() <= 6 {
        assert!(stream.conn.read_tls(&mut stream.sock).unwrap() > 0, "it is ended");
        stream.conn.process_new_packets().unwrap();
        while stream.conn.wants_write() {
            stream.conn.write_tls(&mut rest).unwrap();
        }
    }
    (stream.into_parts().1.socket, rest)
}

#[test]
fn half_a_handshake_is_ended_whatever_dribbles_in_and_others_are_served() {
    const PATIENT: Duration = Duration::from_millis(2_000);
    let kit = Kit::new();
    unless_late(PATIENT, |window| {
        let settings = Settings {
            handshake_timeout_ms: PATIENT.as_millis() as u32,
            ..settings()
        };
        let rig = Rig::secure(1, settings, kit.service());
        window.open();
        let mut established = kit.connect(rig.tls);
        let mut serve = || {
            write(&mut established, &framed("ECHO", 0));
            expect(&mut established, b"ECHO");
        };
        serve();
        let begin = Instant::now();
        let mut slow = Vec::new();
        for (versions, endless) in [
            (Versions::Tls12, false),
            (Versions::Tls13, false),
            // A record that never ends.
            (Versions::Tls13, true),
        ] {
            let (mut stream, rest) = half_way(&kit, rig.tls, versions);
            let rest = if endless { vec![0x17, 3, 3, 0x40, 0] } else { rest };
            slow.push(std::thread::spawn(move || {
                dribble(&mut stream, &rest);
                begin.elapsed()
            }));
            // Beside those that dribble by now, and below beside all three: each waits for its response.
            serve();
        }
        window.close();
        while !slow.iter().any(std::thread::JoinHandle::is_finished) {
            serve();
            std::thread::sleep(Duration::from_millis(10));
        }
        for thread in slow {
            let took = thread.join().unwrap();
            assert!(took >= PATIENT, "{took:?}");
        }
        // Neither was the handshake done, nor anything found wrong with it.
        assert_eq!(rig.counter(3, |c| c.tcp_closed_handshake), 3);
        assert_eq!(rig.counter(1, |c| c.tls_accepted_full), 1);
        assert_eq!(rig.counter(0, |c| c.tcp_closed_tls), 0);
        serve();
        drop(established);
        rig.end_empty();
    });
}

#[test]
fn a_silent_connection_is_ended() {
    const PATIENT: Duration = Duration::from_millis(1_500);
    let kit = Kit::new();
    unless_late(PATIENT, |window| {
        let settings = Settings {
            first_message_timeout_ms: PATIENT.as_millis() as u32,
            ..settings()
        };
        let rig = Rig::secure(1, settings, kit.service());
        window.open();
        let mut spoke = rig.connect();
        write(&mut spoke, &framed("ECHO", 0));
        expect(&mut spoke, b"ECHO");
        let mut silent = rig.connect();
        let mut secure = kit.connect(rig.tls);
        secure.conn.complete_io(&mut secure.sock).unwrap();
        let mut socket = WebSocket::open(connect(rig.ws));
        window.close();
        // Keep-alives are no messages.
        let mut pinging = rig.connect();
        let pinging = std::thread::spawn(move || dribble(&mut pinging, b"\r\n"));
        assert!(read_to_end(&mut silent).is_empty());
        // An error, were it not for the alert by which TLS says that it was not cut off.
        assert!(read_to_end(&mut secure).is_empty());
        socket.expect(CLOSE, &[3, 0xe9]);
        assert_eq!(socket.frame(), None);
        pinging.join().unwrap();
        // The peers' ends are awaited for a while.
        drop((silent, secure, socket));
        assert_eq!(rig.counter(4, |c| c.tcp_closed_silent), 4);
        write(&mut spoke, &framed("ECHO", 0));
        expect(&mut spoke, b"ECHO");
        drop(spoke);
        rig.end_empty();
    });
}

#[test]
fn a_message_sent_slowly_must_still_end_in_time() {
    const PATIENT: Duration = Duration::from_millis(600);
    let settings = Settings {
        message_timeout_ms: PATIENT.as_millis() as u32,
        ..settings()
    };
    let kit = Kit::new();
    let rig = Rig::secure(1, settings, kit.service());
    let threads: Vec<_> = (0..4)
        .map(|kind| {
            let (tls, ws) = (kit.connect(rig.tls), rig.ws);
            let mut plain = rig.connect();
            std::thread::spawn(move || match kind {
                0 => {
                    let begin = Instant::now();
                    dribble(&mut plain, b"X-Header: a\r\n");
                    begin.elapsed()
                }
                1 => {
                    // Each byte in a record of its own.
                    let mut tls: TlsStream = tls;
                    write(&mut tls, &framed("ECHO", 0));
                    expect(&mut tls, b"ECHO");
                    let begin = Instant::now();
                    while begin.elapsed() < PATIENCE && tls.write_all(b"x").is_ok() {
                        std::thread::sleep(Duration::from_millis(50));
                    }
                    begin.elapsed()
                }
                2 => {
                    // A record that never ends.
                    let mut tls = tls;
                    tls.conn.complete_io(&mut tls.sock).unwrap();
                    let begin = Instant::now();
                    write(&mut tls.sock, &[0x17, 3, 3, 0x40, 0]);
                    dribble(&mut tls.sock.socket, b"x");
                    begin.elapsed()
                }
                _ => {
                    let mut socket = WebSocket::open(connect(ws));
                    let begin = Instant::now();
                    socket.send(0x01, b"fragments");
                    // Neither fragments nor pings between them prolong it.
                    let fragment = [masked(0x00, b"x"), masked(0x89, b"")].concat();
                    while begin.elapsed() < PATIENCE && socket.0.write_all(&fragment).is_ok() {
                        std::thread::sleep(Duration::from_millis(50));
                    }
                    begin.elapsed()
                }
            })
        })
        .collect();
    for thread in threads {
        let took = thread.join().unwrap();
        assert!(took >= PATIENT && took < PATIENCE, "{took:?}");
    }
    assert_eq!(rig.counter(4, |c| c.tcp_closed_incomplete), 4);
    rig.end_empty();
}

#[test]
fn an_address_has_so_many_connections_and_gets_them_back() {
    let settings = Settings {
        connections_per_address: 3,
        ..settings()
    };
    let kit = Kit::new();
    let rig = Rig::secure(1, settings, kit.service());
    for round in 1..=3 {
        let mut tls = kit.connect(rig.tls);
        write(&mut tls, &framed("ECHO", 0));
        expect(&mut tls, b"ECHO");
        let mut ws = WebSocket::open(connect(rig.ws));
        ws.echo("x");
        let mut plain = rig.connect();
        write(&mut plain, &framed("ECHO", 0));
        expect(&mut plain, b"ECHO");
        // Whatever its transport.
        for address in [rig.tcp, rig.tls, rig.ws, rig.wss] {
            assert!(read_to_end(&mut connect(address)).is_empty());
        }
        assert_eq!(rig.counter(4 * round, |c| c.tcp_refused_address), 4 * round);
        drop((plain, tls, ws));
        rig.until(|(connections, ..)| connections == 0);
        // Those that failed are given back, too.
        for _ in 0..3 {
            let mut garbage = connect(rig.tls);
            write(&mut garbage, b"garbage, garbage");
            read_to_end(&mut garbage);
        }
        rig.until(|(connections, ..)| connections == 0);
    }
    assert_eq!(rig.counter(12, |c| c.tcp_refused_address), 12);
    rig.end_empty();
}

/// Without a handshake that must succeed: the time for it is short.
#[test]
fn an_address_gets_connections_back_that_were_late_with_their_handshakes() {
    let settings = Settings {
        connections_per_address: 3,
        handshake_timeout_ms: 300,
        ..settings()
    };
    let kit = Kit::new();
    let rig = Rig::secure(1, settings, kit.service());
    for round in 1..=3 {
        for mut late in [connect(rig.tls), connect(rig.ws), connect(rig.wss)] {
            read_to_end(&mut late);
        }
        rig.until(|(connections, ..)| connections == 0);
        let mut all = [(); 3].map(|()| rig.connect());
        for plain in &mut all {
            write(plain, &framed("ECHO", 0));
            expect(plain, b"ECHO");
        }
        assert!(read_to_end(&mut rig.connect()).is_empty());
        assert_eq!(rig.counter(round, |c| c.tcp_refused_address), round);
        drop(all);
        rig.until(|(connections, ..)| connections == 0);
    }
    assert_eq!(rig.counter(9, |c| c.tcp_closed_handshake), 9);
    rig.end_empty();
}

#[test]
fn all_clients_at_once_are_served_and_established_traffic_beside_them() {
    const CLIENTS: usize = 100;
    let settings = Settings {
        handshakes_per_turn: 1,
        ..settings()
    };
    let kit = Kit::new();
    let rig = Rig::secure(1, settings, kit.service());
    let client = kit.client(Versions::Tls13);
    let mut established = kit.connect(rig.tls);
    write(&mut established, &framed("ECHO", 0));
    expect(&mut established, b"ECHO");
    // Each has its ClientHello on the way before any is answered.
    rig.hold();
    let mut clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let mut stream = connect_with(&client, rig.tls, usize::MAX);
            stream.conn.write_tls(&mut stream.sock).unwrap();
            stream
        })
        .collect();
    write(&mut established, &framed("ECHO beside", 0));
    rig.release();
    expect(&mut established, b"ECHO beside");
    // Each write takes a handshake to its end.
    for (stream, number) in clients.iter_mut().zip(0..) {
        write(stream, &framed("ECHO x", 0));
        if number % 10 == 0 {
            write(&mut established, &framed("ECHO", 0));
            expect(&mut established, b"ECHO");
        }
    }
    for stream in &mut clients {
        expect(stream, b"ECHO x");
    }
    let all = CLIENTS as u64 + 1;
    assert_eq!(rig.counter(all, |c| c.tls_accepted_full), all);
    assert!(rig.counter(1, |c| c.tls_parked) > 0);
    drop((clients, established));
    rig.end_empty();
}

#[test]
fn clients_that_give_up_while_they_wait_cost_no_handshake() {
    const CLIENTS: usize = 200;
    let settings = Settings {
        handshakes_per_turn: 1,
        ..settings()
    };
    let kit = Kit::new();
    let rig = Rig::secure(1, settings, kit.service());
    let hellos: Vec<_> = (0..CLIENTS).map(|_| hello(&kit, rig.tls, usize::MAX)).collect();
    drop(hellos);
    let mut last = kit.connect(rig.tls);
    write(&mut last, &framed("ECHO", 0));
    expect(&mut last, b"ECHO");
    assert_eq!(rig.counter(1, |c| c.tls_accepted_full), 1);
    drop(last);
    // The worker comes to rest: nothing that has gone keeps it turning.
    rig.until(|load| load == (0, 0, 0));
    let turns = rig.counter(1, |c| c.turns);
    std::thread::sleep(Duration::from_millis(300));
    assert!(rig.counter(1, |c| c.turns) < turns + 50);
    rig.end_empty();
}

#[test]
fn what_all_connections_hold_is_bounded_and_given_back() {
    const BOUND: usize = 200_000;
    let settings = Settings {
        stream_bytes: BOUND,
        ..settings()
    };
    let kit = Kit::new();
    for kind in 0..4 {
        let rig = Rig::secure(1, settings.clone(), kit.service());
        let mut good = rig.connect();
        let mut held: Vec<Box<dyn Write>> = Vec::new();
        for _ in 0..40 {
            // 10,000 bytes of something that does not end.
            let mut partial: Box<dyn Write> = match kind {
                0 => {
                    let mut stream = rig.connect();
                    write(&mut stream, &framed("ECHO", 100_000)[..10_000]);
                    Box::new(stream)
                }
                1 => {
                    let mut stream = kit.connect(rig.tls);
                    stream.conn.complete_io(&mut stream.sock).unwrap();
                    let record = [&[0x17, 3, 3, 0x40, 0][..], &[0; 9_995]].concat();
                    write(&mut stream.sock, &record);
                    Box::new(stream)
                }
                2 => {
                    let mut socket = WebSocket::open(connect(rig.ws));
                    write(&mut socket.0, &masked(TEXT, &[b'x'; 100_000])[..10_014]);
                    Box::new(socket.0)
                }
                _ => {
                    let mut socket = WebSocket::open(kit.connect(rig.wss));
                    write(&mut socket.0, &masked(0x01, &[b'x'; 10_000]));
                    Box::new(socket.0)
                }
            };
            let _ = partial.flush();
            held.push(partial);
            // Others are served, and the bound holds.
            write(&mut good, &framed("ECHO", 0));
            expect(&mut good, b"ECHO");
            assert!(rig.load().1 <= BOUND as u64);
        }
        let last = rig.settled()[0];
        let (cut, gauges) = (last.net.tcp_closed_memory, last.net_gauges);
        assert!(cut >= 10, "{kind}: {cut}");
        assert!(gauges.stream_bytes >= BOUND as u64 / 4);
        assert_eq!(gauges.connections + cut, 41, "the others are spared");
        drop((held, good));
        rig.end_empty();
    }
}

#[test]
fn records_for_readers_that_do_not_read_count_towards_the_bound() {
    const BOUND: u64 = 1_000_000;
    let settings = Settings {
        stream_bytes: BOUND as usize,
        write_queue_bytes: 64 << 20,
        ..settings()
    };
    let kit = Kit::new();
    let rig = Rig::secure(1, settings, kit.service());
    let mut good = rig.connect();
    let mut readers = Vec::new();
    for _ in 0..12 {
        let mut reader = kit.connect(rig.tls);
        // Its socket is nearly full afterwards; what remains goes into records and waits.
        write(&mut reader, &framed("FLOOD 8000", 0));
        readers.push(reader);
        write(&mut good, &framed("ECHO", 0));
        expect(&mut good, b"ECHO");
        let (_, held, _) = rig.load();
        assert!(held <= BOUND, "{held}");
    }
    assert!(rig.counter(1, |c| c.tcp_closed_memory) > 0);
    drop((readers, good));
    rig.end_empty();
}

/// A message of which all but the last bytes have come, unless it is cut before.
fn incomplete(rig: &Rig, bytes: usize) -> TcpStream {
    let mut stream = rig.connect();
    let _ = stream.write_all(&framed("ECHO", bytes)[..bytes]);
    stream
}

#[test]
fn the_largest_holder_is_cut_and_not_the_latest() {
    let settings = Settings {
        stream_bytes: 2_000_000,
        ..settings()
    };
    let rig = Rig::secure(1, settings, Kit::new().service());
    let idle: Vec<_> = (0..100).map(|_| rig.connect()).collect();
    let hoarders: Vec<_> = (0..12).map(|_| incomplete(&rig, 150_000)).collect();
    rig.until(|(connections, bytes, _)| connections == 112 && bytes >= 1_800_000);
    // It comes to hold more than many do, and is far from what those hold.
    let mut busy = rig.connect();
    for _ in 0..10 {
        write(&mut busy, &framed("ECHO", 60_000));
        expect(&mut busy, b"ECHO");
    }
    assert_eq!(rig.counter(0, |c| c.tcp_closed_memory), 0);
    let mut half = incomplete(&rig, 60_000);
    let other = incomplete(&rig, 140_000);
    assert!(rig.counter(1, |c| c.tcp_closed_memory) >= 1);
    rig.until(|(_, bytes, _)| bytes <= 2_000_000);
    write(&mut half, &framed("ECHO", 60_000)[60_000..]);
    expect(&mut half, b"ECHO");
    drop((idle, hoarders, half, busy, other));
    rig.end_empty();
}

#[test]
fn what_waits_for_a_next_hop_is_not_given_up_for_strangers() {
    const TEXT: usize = 30_000;
    let settings = Settings {
        stream_bytes: 800_000,
        ..settings()
    };
    let kit = Kit::new();
    let rig = Rig::secure(1, settings, kit.service());
    let (listener, address) = rig::listen();
    // It waits for the handshake.
    let text = "x".repeat(TEXT);
    for _ in 0..6 {
        rig.order(&format!("VIA 2 {address} {text}"));
    }
    let strangers: Vec<_> = (0..12).map(|_| incomplete(&rig, 100_000)).collect();
    assert!(rig.counter(4, |c| c.tcp_closed_memory) >= 4);
    rig.until(|(_, bytes, _)| bytes <= 800_000);
    let mut peer = kit.peer(rig::accept(&listener));
    expect(&mut peer, text.repeat(6).as_bytes());
    drop((strangers, peer));
    rig.end_empty();
}

//! TLS on connections that peers open, and on those that we open.

#![allow(
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "a test that cannot go on fails"
)]

use crate::rig;

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rig::certificates::{Authority, Kit, TlsStream, close_notify, connect_with, peer_with, ticket_keys};
use rig::{
    PATIENCE, Report, Rig, accept, connect, expect, framed, listen, read_to_end, settings, unless_late, write,
};
use sip_core::transport::Transport;
use sip_net::settings::Settings;
use sip_net::tcp::{Sharing, StreamService};
use sip_net::tls::rustls::{CertificateError, ProtocolVersion};
use sip_net::tls::{ClientAuth, TlsError, Versions};

/// A message that is echoed whole: so long that it fills several records and reads.
fn long(number: usize) -> Vec<u8> {
    let mut message = framed(&format!("WHOLE {number}"), 150_000);
    for (byte, place) in message.iter_mut().rev().take(150_000).zip(number..) {
        *byte = b'a' + (place % 23) as u8;
    }
    message
}

#[test]
fn messages_are_read_however_the_stream_is_cut() {
    let kit = Kit::new();
    let rig = Rig::secure(1, settings(), kit.service());
    for (versions, agreed) in [
        (Versions::Tls12, ProtocolVersion::TLSv1_2),
        (Versions::Tls13, ProtocolVersion::TLSv1_3),
    ] {
        let client = kit.client(versions);
        for piece in [1, 7, usize::MAX] {
            let mut stream = connect_with(&client, rig.tls, piece);
            write(&mut stream, &framed("ECHO one", 20));
            expect(&mut stream, b"ECHO one");
            assert_eq!(stream.conn.protocol_version(), Some(agreed));
            // Each byte of the message a record.
            for byte in framed("ECHO two", 3) {
                write(&mut stream, &[byte]);
            }
            expect(&mut stream, b"ECHO two");
            // Several in one record, and one that begins in it.
            let mut many = framed("ECHO", 30).repeat(20);
            let rest = many.split_off(many.len() - 17);
            write(&mut stream, &many);
            expect(&mut stream, &b"ECHO".repeat(19));
            write(&mut stream, &rest);
            expect(&mut stream, b"ECHO");
            write(&mut stream, b"\r\n\r\n");
            expect(&mut stream, b"\r\n");
        }
        let mut stream = connect_with(&client, rig.tls, 50_001);
        for number in 0..5 {
            let message = long(number);
            write(&mut stream, &message);
            expect(&mut stream, &message);
        }
    }
    let got = rig.next();
    let Report::Message { flow, .. } = got else {
        panic!("{got:?}")
    };
    assert_eq!((flow.transport, flow.listener.0), (Transport::Tls, 2));
    assert!(rig.counter(7, |c| c.tls_accepted_full) >= 7);
    rig.end_empty();
}

#[test]
fn megabytes_go_both_ways_at_once() {
    let kit = Kit::new();
    let settings = Settings {
        write_queue_bytes: 64 << 20,
        ..settings()
    };
    let rig = Rig::secure(1, settings, kit.service());
    for versions in [Versions::Tls12, Versions::Tls13] {
        // What is written is read by another thread: neither end waits for the other.
        let mut stream = connect_with(&kit.client(versions), rig.tls, usize::MAX);
        write(&mut stream, &framed("ECHO hello", 0));
        expect(&mut stream, b"ECHO hello");
        let all: Vec<u8> = (0..40).flat_map(long).collect();
        let (mut sent, mut got) = (0, vec![0; all.len()]);
        let mut filled = 0;
        stream.sock.socket.set_nonblocking(true).unwrap();
        let mut moved = Instant::now();
        while filled < got.len() {
            assert!(moved.elapsed() < PATIENCE, "{sent} sent, {filled} echoed");
            let piece = &all[sent..(sent + 65_536).min(all.len())];
            let wrote = if piece.is_empty() {
                0
            } else {
                stream.write(piece).unwrap_or(0)
            };
            let read = stream.read(&mut got[filled..]).unwrap_or(0);
            (sent, filled) = (sent + wrote, filled + read);
            if wrote + read == 0 {
                std::thread::sleep(Duration::from_micros(200));
            } else {
                moved = Instant::now();
            }
        }
        assert!(got == all);
    }
    rig.end_empty();
}

#[test]
fn sessions_go_on_at_another_connection_and_at_another_node() {
    let kit = Kit::new();
    let keys = ticket_keys();
    let service = || StreamService {
        server: Some(kit.server(ClientAuth::None, Some(Arc::clone(&keys)))),
        ..kit.service()
    };
    let here = Rig::secure(1, settings(), service());
    let there = Rig::secure(2, settings(), service());
    for (round, versions) in [(1, Versions::Tls12), (2, Versions::Tls13)] {
        let client = kit.client(versions);
        for rig in [&here, &here, &there] {
            let mut stream = connect_with(&client, rig.tls, usize::MAX);
            write(&mut stream, &framed("ECHO x", 0));
            expect(&mut stream, b"ECHO x");
        }
        assert_eq!(here.counter(round, |c| c.tls_accepted_full), round);
        assert_eq!(here.counter(round, |c| c.tls_accepted_resumed), round);
        assert_eq!(there.counter(round, |c| c.tls_accepted_resumed), round);
        assert_eq!(there.counter(0, |c| c.tls_accepted_full), 0);
    }
    here.end_empty();
    there.end_empty();
}

#[test]
fn a_peer_that_says_it_sends_no_more_gets_its_answers_first() {
    let kit = Kit::new();
    let rig = Rig::secure(1, settings(), kit.service());
    let mut stream = kit.connect(rig.tls);
    write(&mut stream, &framed("ECHO one", 0));
    expect(&mut stream, b"ECHO one");
    // Message and close in one write.
    stream.conn.writer().write_all(&framed("ECHO last", 0)).unwrap();
    close_notify(&mut stream);
    // Our own close_notify is there, else this is an error.
    assert_eq!(read_to_end(&mut stream), b"ECHO last");
    assert_eq!(rig.counter(1, |c| c.tcp_closed_by_peer), 1);
    drop(stream);
    rig.end_empty();
}

#[test]
fn the_core_closes_after_its_last_message() {
    let kit = Kit::new();
    let rig = Rig::secure(1, settings(), kit.service());
    let mut stream = kit.connect(rig.tls);
    write(
        &mut stream,
        &[framed("CLOSE", 0), framed("ECHO never", 0)].concat(),
    );
    assert_eq!(read_to_end(&mut stream), b"BYE");
    assert_eq!(rig.counter(1, |c| c.tcp_closed_by_core), 1);
    drop(stream);
    rig.end_empty();
}

#[test]
fn what_is_no_tls_is_logged_and_ended() {
    let kit = Kit::new();
    let rig = Rig::secure(1, settings(), kit.service());
    for (number, garbage) in [
        &b"OPTIONS sip:a SIP/2.0\r\n\r\n"[..],
        &[0x16, 3, 1, 0, 5, 9, 9, 9, 9, 9],
    ]
    .into_iter()
    .enumerate()
    {
        let mut stream = connect(rig.tls);
        write(&mut stream, garbage);
        let alert = read_to_end(&mut stream);
        assert!(
            matches!(alert[..], [] | [0x15, 3, _, 0, 2, 2, _]),
            "at most an alert: {alert:?}"
        );
        let (outbound, error) = rig.next_failure();
        assert!(!outbound && matches!(error, TlsError::Protocol(_)), "{error}");
        let count = number as u64 + 1;
        assert_eq!(rig.counter(count, |c| c.tcp_closed_tls), count);
    }
    assert_eq!(rig.counter(0, |c| c.stream_received), 0);
    rig.end_empty();
}

#[test]
fn a_client_without_a_good_certificate_is_not_served_where_one_is_required() {
    let kit = Kit::new();
    let service = StreamService {
        server: Some(kit.server(ClientAuth::Required, None)),
        ..kit.service()
    };
    let rig = Rig::secure(1, settings(), service);
    let good = kit.authority.issue("client.example", None);
    let stranger = Authority::new();
    let bad = stranger.issue("stranger.example", None);
    for versions in [Versions::Tls12, Versions::Tls13] {
        let attempt = |identity| {
            let client = kit.client_as(identity, versions);
            let mut stream = connect_with(&client, rig.tls, usize::MAX);
            // With TLS 1.3 the client hears only afterwards.
            let _ = stream.write_all(&framed("ECHO x", 0));
            let mut echo = [0; 6];
            stream.read_exact(&mut echo).map(|()| echo)
        };
        assert_eq!(attempt(Some(good.clone())).unwrap(), *b"ECHO x");
        assert!(attempt(None).is_err());
        let failure = rig.next_failure();
        assert_eq!(failure, (false, TlsError::NoPeerCertificate));
        assert!(attempt(Some(bad.clone())).is_err());
        let (_, error) = rig.next_failure();
        assert!(matches!(error, TlsError::PeerCertificate(_)), "{error}");
    }
    assert_eq!(rig.counter(4, |c| c.tcp_closed_tls), 4);
    assert_eq!(rig.counter(2, |c| c.tls_accepted_full), 2);
    assert_eq!(rig.counter(2, |c| c.stream_received), 2);
    rig.end_empty();
}

/// Reads messages of 1,000 bytes up to the end, however it comes.
fn receive_all(stream: &mut TlsStream) -> BTreeSet<String> {
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    // What came together with an alert.
    let _ = stream.conn.reader().read_to_end(&mut bytes);
    thousands(&bytes)
}

fn thousands(bytes: &[u8]) -> BTreeSet<String> {
    let texts = bytes.chunks_exact(1000);
    texts
        .map(|text| String::from_utf8_lossy(text).into_owned())
        .collect()
}

/// All messages that came back since `taken_before` were taken, each once, and whole.
fn came_back(rig: &Rig, taken_before: usize) -> BTreeSet<String> {
    let undelivered = rig.all_undelivered(Transport::Tls, taken_before);
    assert!(undelivered.iter().all(|text| text.len() == 1000));
    undelivered
}

#[test]
fn a_reader_that_does_not_read_is_cut_and_what_waited_comes_back_in_plaintext() {
    const MADE: usize = 15_000;
    let kit = Kit::new();
    let settings = Settings {
        write_queue_bytes: 64 << 10,
        ..settings()
    };
    let rig = Rig::secure(1, settings, kit.service());
    let mut taken = 0;
    for round in 1..=3 {
        let mut stream = kit.connect(rig.tls);
        write(&mut stream, &framed(&format!("FLOOD {MADE}"), 0));
        assert_eq!(rig.counter(round, |c| c.tcp_closed_slow), round);
        let all = round * MADE as u64;
        assert_eq!(rig.counter(all, |c| c.stream_sent + c.stream_undelivered), all);
        let undelivered = came_back(&rig, taken);
        taken += undelivered.len();
        assert!(undelivered.len() >= 64, "all that waited: {}", undelivered.len());
        let received = receive_all(&mut stream);
        assert_eq!(received.intersection(&undelivered).count(), 0, "not both");
        assert_eq!(received.len() + undelivered.len(), MADE, "what left has arrived");
    }
    rig.end_empty();
}

/// Sends a record that does not decrypt while much waits at the other end, of which nothing was read
/// yet. What can never leave comes back although the connection has not come to its end.
fn break_while_much_waits(rig: &Rig, socket: &mut impl Write) -> BTreeSet<String> {
    // More than goes into the buffers of both ends.
    rig.until(|(_, bytes, _)| bytes > 100_000);
    socket.write_all(&[0x17, 3, 3, 0, 3, 1, 2, 3]).unwrap();
    assert_eq!(rig.counter(1, |c| c.tcp_closed_tls), 1);
    let undelivered = came_back(rig, 0);
    assert!(undelivered.len() >= 50, "{}", undelivered.len());
    assert_eq!(rig.load().0, 1);
    undelivered
}

#[test]
fn a_message_is_delivered_or_comes_back_and_never_both() {
    let kit = Kit::new();
    let settings = Settings {
        write_queue_bytes: 16 << 20,
        // A client that does not read must still be read from when it breaks the protocol.
        pause_reading_bytes: usize::MAX,
        close_timeout_ms: 60_000,
        ..settings()
    };
    for outbound in [false, true] {
        let rig = Rig::secure(1, settings.clone(), kit.service());
        let (received, mut undelivered) = if outbound {
            let (listener, address) = listen();
            rig.tell(&format!("VIA 2 {address} first"));
            let mut peer = kit.peer(accept(&listener));
            expect(&mut peer, b"first");
            write(&mut peer, &framed("FLOOD 9000", 0));
            let undelivered = break_while_much_waits(&rig, &mut peer.sock);
            let mut bytes = Vec::new();
            let _ = peer.read_to_end(&mut bytes);
            let _ = peer.conn.reader().read_to_end(&mut bytes);
            (thousands(&bytes), undelivered)
        } else {
            let mut stream = kit.connect(rig.tls);
            write(&mut stream, &framed("FLOOD 9000", 0));
            let undelivered = break_while_much_waits(&rig, &mut stream.sock);
            (receive_all(&mut stream), undelivered)
        };
        rig.until(|(connections, ..)| connections == 0);
        for text in came_back(&rig, undelivered.len()) {
            assert!(undelivered.insert(text), "once");
        }
        assert_eq!(received.intersection(&undelivered).count(), 0);
        assert_eq!(
            received.len() + undelivered.len(),
            9000,
            "all that was sent was read"
        );
        rig.end_empty();
    }
}

#[test]
fn what_waited_for_the_handshake_is_sent_and_one_connection_serves_a_peer() {
    let kit = Kit::new();
    let rig = Rig::secure(3, settings(), kit.service());
    let (listener, address) = listen();
    let texts: Vec<_> = (10..40).map(|number| format!("for the peer {number}")).collect();
    for text in &texts {
        rig.tell(&format!("VIA 2 {address} {text}"));
    }
    let socket = accept(&listener);
    // Everything is queued before the handshake goes on: made, and then given to the worker that sends it.
    for _ in &texts {
        assert!(matches!(rig.next(), Report::Message { .. }));
    }
    rig.settled();
    rig.settled();
    let mut peer = kit.peer(socket);
    let mut got = vec![0; texts.concat().len()];
    peer.read_exact(&mut got).unwrap();
    let got: BTreeSet<_> = got
        .chunks(texts[0].len())
        .map(|text| String::from_utf8_lossy(text).into_owned())
        .collect();
    assert_eq!(got, texts.into_iter().collect());
    assert_eq!(rig.counter(1, |c| c.tls_opened_full), 1);
    assert_eq!(rig.counter(1, |c| c.tcp_opened), 1);
    // What the peer sends on it is read, and answered there.
    write(&mut peer, &framed("ECHO back", 0));
    expect(&mut peer, b"ECHO back");
    assert!(listener.accept().is_err(), "no second connection");
    drop(peer);
    rig.end_empty();
}

#[test]
fn a_second_connection_to_a_peer_resumes() {
    let kit = Kit::new();
    let rig = Rig::secure(1, settings(), kit.service());
    let server = kit.server(ClientAuth::None, Some(ticket_keys()));
    let (listener, address) = listen();
    for round in 0..2 {
        rig.tell(&format!("VIA 2 {address} hello"));
        let mut peer = peer_with(&server, accept(&listener));
        expect(&mut peer, b"hello");
        // The tickets have come once this is answered.
        write(&mut peer, &framed("ECHO x", 0));
        expect(&mut peer, b"ECHO x");
        drop(peer);
        assert_eq!(
            rig.counter(round + 1, |c| c.tls_opened_full + c.tls_opened_resumed),
            round + 1
        );
        rig.until(|(connections, ..)| connections == 0);
    }
    assert_eq!(rig.counter(1, |c| c.tls_opened_resumed), 1);
    rig.end_empty();
}

#[test]
fn a_peer_with_a_wrong_name_gets_nothing() {
    let kit = Kit::new();
    let rig = Rig::secure(1, settings(), kit.service());
    let elsewhere = kit
        .authority
        .issue("elsewhere.example", Some([192, 0, 2, 1].into()));
    let stranger = Kit::new();
    let wrong_name = kit.server_as(&elsewhere, ClientAuth::None, None);
    let unknown = stranger.server(ClientAuth::None, None);
    for (number, server) in [wrong_name, unknown].iter().enumerate() {
        let (listener, address) = listen();
        for text in ["one", "two", "three"] {
            // Taken before the handshake goes on.
            rig.order(&format!("VIA 2 {address} {text}"));
        }
        let mut peer = peer_with(server, accept(&listener));
        let error = peer.read(&mut [0; 100]).unwrap_err();
        assert!(error.to_string().contains("received fatal alert"), "{error}");
        let mut came_back = BTreeSet::new();
        let mut failure = None;
        while came_back.len() < 3 || failure.is_none() {
            match rig.next() {
                Report::Undelivered { to, text, .. } => {
                    assert_eq!(to.remote, address);
                    assert!(came_back.insert(text), "each once");
                }
                Report::TlsFailed {
                    flow,
                    outbound,
                    error,
                } => {
                    assert_eq!((flow.remote, outbound), (address, true));
                    failure = Some(error);
                }
                Report::Message { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        match (number, failure.unwrap()) {
            (0, TlsError::PeerCertificate(CertificateError::NotValidForNameContext { .. })) => {}
            (1, TlsError::PeerCertificate(CertificateError::UnknownIssuer)) => {}
            other => panic!("{other:?}"),
        }
        assert_eq!(came_back, ["one", "two", "three"].map(str::to_owned).into());
        // What is sent after that opens another connection, and does not wait for the end of this.
        rig.tell(&format!("VIA 2 {address} four"));
        let mut again = peer_with(server, accept(&listener));
        assert!(again.read(&mut [0; 100]).is_err());
        assert_eq!(rig.next_undelivered(), "four");
        assert!(rig.next_failure().0);
    }
    assert_eq!(rig.counter(4, |c| c.tcp_closed_tls), 4);
    assert_eq!(rig.counter(0, |c| c.tls_opened_full), 0);
    rig.end_empty();
}

/// In TLS 1.3 we have sent before the peer has looked at our certificate, or missed it.
#[test]
fn a_peer_that_refuses_us_gives_back_what_it_never_read() {
    let kit = Kit::new();
    let rig = Rig::secure(1, settings(), kit.service());
    let server = kit.server(ClientAuth::Required, None);
    let (listener, address) = listen();
    rig.order(&format!("VIA 2 {address} one"));
    rig.order(&format!("VIA 2 {address} two"));
    let mut peer = peer_with(&server, accept(&listener));
    assert!(peer.read(&mut [0; 100]).is_err(), "no certificate");
    let mut came_back = Vec::new();
    while came_back.len() < 2 {
        match rig.next() {
            Report::Undelivered { text, .. } => came_back.push(text),
            Report::TlsFailed { outbound, error, .. } => {
                assert!(outbound && matches!(error, TlsError::Alert(_)), "{error}");
            }
            Report::Message { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(came_back, ["one", "two"]);
    assert_eq!(rig.counter(1, |c| c.tls_opened_full), 1, "we were done");
    drop(peer);
    rig.end_empty();
}

/// The reset takes the place of the alert where the peer closes with our messages unread.
#[test]
fn a_peer_that_resets_at_once_gives_back_what_it_never_read() {
    let kit = Kit::new();
    let rig = Rig::secure(1, settings(), kit.service());
    let (listener, address) = listen();
    rig.order(&format!("VIA 2 {address} one"));
    let mut peer = kit.peer(accept(&listener));
    peer.conn.complete_io(&mut peer.sock).unwrap();
    assert_eq!(rig.counter(1, |c| c.stream_sent), 1);
    socket2::SockRef::from(&peer.sock)
        .set_linger(Some(Duration::ZERO))
        .unwrap();
    drop(peer);
    assert_eq!(rig.next_undelivered(), "one");
    rig.end_empty();
}

#[test]
fn what_was_sent_is_not_kept_for_ever_for_a_peer_that_never_answers() {
    const KEPT: Duration = Duration::from_secs(2);
    let kit = Kit::new();
    let server = kit.server(ClientAuth::None, None);
    unless_late(KEPT, |window| {
        let settings = Settings {
            handshake_timeout_ms: KEPT.as_millis() as u32,
            ..settings()
        };
        let rig = Rig::secure(1, settings, kit.service());
        let (listener, address) = listen();
        window.open();
        rig.order(&format!("VIA 2 {address} one"));
        let mut peer = peer_with(&server, accept(&listener));
        expect(&mut peer, b"one");
        rig.until(|(connections, bytes, _)| (connections == 1 && bytes > 0) || window.is_late());
        window.close();
        rig.until(|(_, bytes, _)| bytes == 0);
        rig.order(&format!("VIA 2 {address} two"));
        expect(&mut peer, b"two");
        assert_eq!(rig.load(), (1, 0, 0));
        drop(peer);
        rig.end_empty();
    });
}

#[test]
fn a_peer_that_does_not_answer_the_hello_gives_back_what_waited() {
    let kit = Kit::new();
    let settings = Settings {
        handshake_timeout_ms: 300,
        ..settings()
    };
    let rig = Rig::secure(1, settings, kit.service());
    let (listener, address) = listen();
    rig.tell(&format!("VIA 2 {address} hello"));
    let mut silent = accept(&listener);
    assert_eq!(rig.next_undelivered(), "hello");
    assert_eq!(rig.counter(1, |c| c.tcp_closed_handshake), 1);
    assert_eq!(read_to_end(&mut silent)[0], 0x16, "a ClientHello, and the end");
    // Nor does one that goes away.
    rig.tell(&format!("VIA 2 {address} again"));
    drop(accept(&listener));
    assert_eq!(rig.next_undelivered(), "again");
    rig.end_empty();
}

#[test]
fn without_authorities_nothing_is_opened() {
    let kit = Kit::new();
    let service = StreamService {
        clients: None,
        ..kit.service()
    };
    let rig = Rig::secure(1, settings(), service);
    let (_listener, address) = listen();
    rig.tell(&format!("VIA 2 {address} hello"));
    assert_eq!(rig.next_undelivered(), "hello");
    assert!(rig.next_failure().0);
    assert_eq!(rig.counter(1, |c| c.tcp_open_failed), 1);
    rig.end_empty();
}

#[test]
fn each_call_has_a_connection_of_its_own_where_asked_for_and_it_ends_soon() {
    const IDLE: Duration = Duration::from_secs(2);
    let kit = Kit::new();
    let server = kit.server(ClientAuth::None, None);
    unless_late(IDLE, |window| {
        let settings = Settings {
            per_call_idle_ms: IDLE.as_millis() as u32,
            ..settings()
        };
        let service = StreamService {
            sharing: Sharing::PerCall,
            ..kit.service()
        };
        let rig = Rig::secure(2, settings, service);
        let (listener, address) = listen();
        let mut peers = Vec::new();
        // Of both calls: from before the first message to the second.
        window.open();
        for call in ["a@x", "b@x"] {
            rig.tell(&format!("CALL 2 {call} {address} first"));
            let mut peer = peer_with(&server, accept(&listener));
            let message = format!("first\r\nCall-ID: {call}\r\nContent-Length: 0\r\n\r\n");
            expect(&mut peer, message.as_bytes());
            peers.push((call, peer));
        }
        for (call, peer) in peers.iter_mut().rev() {
            rig.tell(&format!("CALL 2 {call} {address} second"));
            let message = format!("second\r\nCall-ID: {call}\r\nContent-Length: 0\r\n\r\n");
            expect(peer, message.as_bytes());
        }
        window.close();
        assert_eq!(rig.counter(2, |c| c.tcp_opened), 2);
        assert_eq!(rig.counter(2, |c| c.tcp_closed_idle), 2);
        drop(peers);
        // The next message of a call opens another.
        rig.tell(&format!("CALL 2 a@x {address} third"));
        let mut peer = peer_with(&server, accept(&listener));
        expect(&mut peer, b"third");
        assert_eq!(rig.counter(3, |c| c.tcp_opened), 3);
        drop(peer);
        rig.end_empty();
    });
}

#[test]
fn what_connections_hold_is_counted_from_their_beginning() {
    let kit = Kit::new();
    let rig = Rig::secure(1, settings(), kit.service());
    let mut partial = kit.connect(rig.tls);
    write(&mut partial, b"ECHO begun\r\nContent-Length: 20\r\n");
    rig.until(|(_, bytes, _)| bytes >= 32);
    let (_, held, _) = rig.load();
    // A connection that we open, come to rest.
    let (listener, address) = listen();
    rig.tell(&format!("VIA 2 {address} hello"));
    let mut peer = kit.peer(accept(&listener));
    expect(&mut peer, b"hello");
    // What we have sent is kept until the peer says anything.
    rig.until(|(_, bytes, _)| bytes <= held + 1000);
    write(&mut peer, b"\r\n\r\n");
    rig.until(|(_, bytes, _)| bytes <= held);
    assert_eq!(rig.load(), (2, held, 0));
    drop(peer);
    rig.until(|(connections, ..)| connections == 1);
    assert_eq!(rig.load(), (1, held, 0));
    drop(partial);
    rig.end_empty();
}

#[test]
fn an_unverified_address_gets_responses_and_no_requests() {
    let kit = Kit::new();
    let service = StreamService {
        server: Some(kit.server(ClientAuth::Optional, None)),
        ..kit.service()
    };
    let rig = Rig::secure(3, settings(), service);
    let guest = kit.authority.issue("guest.example", None);
    let connect_as = |identity| {
        let mut stream = connect_with(&kit.client_as(identity, Versions::Both), rig.tls, usize::MAX);
        write(&mut stream, &framed("ECHO x", 0));
        expect(&mut stream, b"ECHO x");
        let address = stream.sock.socket.local_addr().unwrap();
        (stream, address)
    };
    for identity in [None, Some(guest)] {
        let (mut stranger, address) = connect_as(identity);
        // Nothing listens there.
        rig.tell(&format!("VIA 2 {address} request"));
        assert_eq!(rig.next_undelivered(), "request");
        rig.tell(&format!("VIA 2 {address} SIP/2.0 200 OK"));
        expect(&mut stranger, b"SIP/2.0 200 OK");
    }
    // The certificate is for the client's address.
    let (mut neighbour, address) = connect_as(Some(kit.identity.clone()));
    for _ in 0..10 {
        rig.tell(&format!("VIA 2 {address} request"));
        expect(&mut neighbour, b"request");
    }
    drop(neighbour);
    rig.end_empty();
}

#[test]
fn a_peer_that_closes_is_not_used_for_what_is_new() {
    let kit = Kit::new();
    let rig = Rig::secure(1, settings(), kit.service());
    let (listener, address) = listen();
    rig.tell(&format!("VIA 2 {address} first"));
    let mut peer = kit.peer(accept(&listener));
    expect(&mut peer, b"first");
    // In one piece: something that makes the core send a request here, and the end.
    let order = [
        framed(&format!("VIA 2 {address} second"), 0),
        framed("ECHO answer", 0),
    ];
    peer.conn.writer().write_all(&order.concat()).unwrap();
    peer.conn.send_close_notify();
    let mut records = Vec::new();
    while peer.conn.wants_write() {
        peer.conn.write_tls(&mut records).unwrap();
    }
    write(&mut peer.sock, &records);
    let mut another = kit.peer(accept(&listener));
    expect(&mut another, b"second");
    assert_eq!(read_to_end(&mut peer), b"ECHO answer");
    drop((peer, another));
    rig.end_empty();
}

//! Connections: framing, bounds, time-outs, owners, what comes back.

#![allow(
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "a test that cannot go on fails"
)]

use crate::rig;

use std::collections::BTreeSet;
use std::io::Read;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use rig::{
    PATIENCE, Report, Rig, accept, any_port, closed, expect, framed, listen, own_ip, read_to_end, settings,
    unless_late, write,
};
use sip_core::id::ConnId;
use sip_core::transport::Transport;
use sip_core::transport::framing::FramingFault;
use sip_net::mailbox::{Control, Item};
use sip_net::settings::Settings;
use socket2::{Domain, Socket, Type};

#[test]
fn messages_are_framed_however_they_are_cut() {
    let rig = Rig::start(1, settings());
    let mut stream = rig.connect();
    // Byte by byte.
    for byte in framed("ECHO one", 20) {
        write(&mut stream, &[byte]);
    }
    expect(&mut stream, b"ECHO one");
    // Three in one write, the third cut.
    let mut bytes = [
        framed("ECHO two", 0),
        framed("ECHO three", 5),
        framed("ECHO four", 100),
    ]
    .concat();
    let rest = bytes.split_off(bytes.len() - 50);
    write(&mut stream, &bytes);
    expect(&mut stream, b"ECHO twoECHO three");
    write(&mut stream, &rest);
    expect(&mut stream, b"ECHO four");
    // Longer than what is read at once.
    let big = framed("ECHO big", 9_000);
    write(&mut stream, &big.repeat(40));
    expect(&mut stream, &b"ECHO big".repeat(40));
    assert_eq!(rig.counter(44, |c| c.stream_received), 44);
    let got = rig.next();
    let Report::Message { flow, .. } = got else {
        panic!("{got:?}")
    };
    assert_eq!((flow.transport, flow.listener.0), (Transport::Tcp, 1));
    assert_eq!(flow.remote, stream.local_addr().unwrap());
    assert!(flow.conn.is_some());
    rig.end(Control::Stop);
}

/// A removed registration ends the connection that it had come by.
#[test]
fn a_connection_ends_with_its_last_registration() {
    let rig = Rig::start(1, settings());
    let mut stream = rig.connect();
    write(&mut stream, &framed("ECHO x", 0));
    expect(&mut stream, b"ECHO x");
    let got = rig.next();
    let Report::Message { flow, .. } = got else {
        panic!("{got:?}")
    };
    let conn = flow.conn.unwrap();
    let order = |conn| {
        let item = Item::Control(Control::EndFlow(conn));
        rig.hub.mailbox(conn.worker).unwrap().post(item).unwrap();
        rig.settled();
    };
    // Another connection had this place before.
    order(ConnId {
        generation: conn.generation.wrapping_sub(1),
        ..conn
    });
    write(&mut stream, &framed("ECHO y", 0));
    expect(&mut stream, b"ECHO y");
    order(conn);
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    assert_eq!(rig.counter(1, |c| c.tcp_closed_unregistered), 1);
    rig.end(Control::Stop);
}

#[test]
fn a_ping_is_answered() {
    let rig = Rig::start(1, settings());
    let mut stream = rig.connect();
    write(&mut stream, b"\r\n\r\n");
    expect(&mut stream, b"\r\n");
    write(
        &mut stream,
        &[b"\r\n\r\n".repeat(3), framed("ECHO x", 0)].concat(),
    );
    expect(&mut stream, b"\r\n\r\n\r\nECHO x");
    assert_eq!(rig.counter(4, |c| c.stream_pings), 4);
    rig.end(Control::Stop);
}

#[test]
fn a_connection_that_the_core_closes_sends_its_last_message_first() {
    let rig = Rig::start(1, settings());
    let mut stream = rig.connect();
    // What comes after is not read as messages any more.
    write(
        &mut stream,
        &[framed("CLOSE", 0), framed("ECHO never", 0)].concat(),
    );
    assert_eq!(read_to_end(&mut stream), b"BYE");
    drop(stream);
    assert_eq!(rig.counter(1, |c| c.tcp_closed_by_core), 1);
    assert_eq!(rig.counter(1, |c| c.stream_received), 1);
    rig.end(Control::Stop);
}

#[test]
fn a_stream_that_cannot_be_followed_is_closed() {
    let rig = Rig::start(1, settings());
    let mut stream = rig.connect();
    write(&mut stream, b"ECHO x\r\nContent-Length: 10001\r\n\r\n");
    assert_eq!(
        rig.next(),
        Report::Fault {
            worker: 0,
            fault: FramingFault::BodyTooLarge
        }
    );
    assert!(read_to_end(&mut stream).is_empty());
    assert_eq!(rig.counter(1, |c| c.tcp_closed_framing), 1);
    rig.end(Control::Stop);
}

#[test]
fn a_slow_reader_is_cut_at_the_bound_and_the_core_hears_of_what_it_missed() {
    // More than goes into the buffers of both ends.
    const MADE: usize = 15_000;
    let rig = Rig::start(
        1,
        Settings {
            write_queue_bytes: 64 << 10,
            ..settings()
        },
    );
    let mut stream = rig.connect();
    write(&mut stream, &framed(&format!("FLOOD {MADE}"), 0));
    assert_eq!(rig.counter(1, |c| c.tcp_closed_slow), 1);
    let all = MADE as u64;
    assert_eq!(rig.counter(all, |c| c.stream_sent + c.stream_undelivered), all);
    let mut undelivered = BTreeSet::new();
    for _ in 0..rig.counter(0, |c| c.stream_undelivered) {
        let (to, text) = loop {
            match rig.next() {
                Report::Message { .. } => {}
                Report::Undelivered { to, text, .. } => break (to, text),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(to.remote, stream.local_addr().unwrap());
        assert!(undelivered.insert(text), "once");
    }
    assert!(
        undelivered.len() >= 64,
        "all that waited came back: {}",
        undelivered.len()
    );
    rig.end(Control::Stop);
}

#[test]
fn a_reader_that_is_only_late_gets_everything() {
    let rig = Rig::start(
        1,
        Settings {
            write_queue_bytes: 64 << 20,
            ..settings()
        },
    );
    let mut stream = rig.connect();
    write(&mut stream, &framed("FLOOD 20000", 0));
    rig.next();
    let expected: Vec<u8> = (0..20_000)
        .flat_map(|number| format!("{number:-<1000}").into_bytes())
        .collect();
    let mut got = vec![0; expected.len()];
    stream.read_exact(&mut got).unwrap();
    assert!(got == expected);
    assert_eq!(rig.counter(20_000, |c| c.stream_sent), 20_000);
    assert_eq!(rig.published[0].get().net_gauges.stream_bytes, 0);
    rig.end(Control::Stop);
}

#[test]
fn silence_ends_a_connection_and_traffic_keeps_it() {
    const IDLE: Duration = Duration::from_secs(2);
    unless_late(IDLE, |window| {
        let rig = Rig::start(
            1,
            Settings {
                idle_timeout_ms: IDLE.as_millis() as u32,
                ..settings()
            },
        );
        window.open();
        // The one that is kept began first.
        let mut lively = rig.connect();
        let mut silent = rig.connect();
        std::thread::scope(|scope| {
            let silence = scope.spawn(|| read_to_end(&mut silent));
            while !silence.is_finished() {
                window.act(|| write(&mut lively, b"\r\n\r\n"));
                expect(&mut lively, b"\r\n");
                std::thread::sleep(Duration::from_millis(50));
            }
            assert!(silence.join().unwrap().is_empty());
        });
        window.act(|| write(&mut lively, b"\r\n\r\n"));
        expect(&mut lively, b"\r\n");
        assert_eq!(rig.counter(1, |c| c.tcp_closed_idle), 1);
        drop(silent);
        rig.until(|(connections, _, _)| connections <= 1);
        assert_eq!(rig.load().0, 1);
        rig.end(Control::Stop);
    });
}

#[test]
fn a_message_that_does_not_end_ends_the_connection() {
    let rig = Rig::start(
        1,
        Settings {
            message_timeout_ms: 200,
            ..settings()
        },
    );
    let mut stream = rig.connect();
    write(&mut stream, b"ECHO x\r\nContent-Le");
    assert!(read_to_end(&mut stream).is_empty());
    assert_eq!(rig.counter(1, |c| c.tcp_closed_incomplete), 1);
    rig.end(Control::Stop);
}

#[test]
fn one_connection_too_many_is_refused() {
    let rig = Rig::start(
        1,
        Settings {
            connections: 3,
            ..settings()
        },
    );
    let mut standing: Vec<_> = (0..2).map(|_| rig.connect()).collect();
    for stream in &mut standing {
        write(stream, &framed("ECHO", 0));
        expect(stream, b"ECHO");
    }
    assert!(read_to_end(&mut rig.connect()).is_empty());
    assert_eq!(rig.counter(1, |c| c.tcp_refused_limit), 1);
    // The last is for one that we open; the next of those is too many.
    let listeners = [(); 2].map(|()| listen());
    for (_, address) in &listeners {
        rig.tell(&format!("SEND {address} hello"));
    }
    let mut opened = accept(&listeners[0].0);
    expect(&mut opened, b"hello");
    let undelivered =
        std::iter::from_fn(|| Some(rig.next())).find(|t| matches!(t, Report::Undelivered { .. }));
    let Some(Report::Undelivered { to, text, .. }) = undelivered else {
        panic!("{undelivered:?}")
    };
    assert_eq!((to.remote, text.as_str()), (listeners[1].1, "hello"));
    drop(standing.pop());
    assert_eq!(rig.counter(1, |c| c.tcp_closed_by_peer), 1);
    write(&mut standing[0], &framed("ECHO", 0));
    expect(&mut standing[0], b"ECHO");
    rig.end(Control::Stop);
}

#[test]
fn connections_that_wait_for_their_end_take_no_places() {
    let settings = Settings {
        connections: 3,
        close_timeout_ms: 60_000,
        ..settings()
    };
    let rig = Rig::start(1, settings);
    let mut ended: Vec<_> = (0..2).map(|_| rig.connect()).collect();
    for stream in &mut ended {
        write(stream, &framed("CLOSE", 0));
        assert_eq!(read_to_end(stream), b"BYE");
    }
    rig.until(|(connections, ..)| connections == 2);
    let mut fresh: Vec<_> = (0..2).map(|_| rig.connect()).collect();
    for stream in &mut fresh {
        write(stream, &framed("ECHO", 0));
        expect(stream, b"ECHO");
    }
    assert_eq!(rig.load().0, 2, "the others made room");
    drop((ended, fresh));
    rig.end_empty();
}

#[test]
fn a_connection_that_waits_for_its_end_makes_room_for_one_that_we_open() {
    let settings = Settings {
        connections: 3,
        close_timeout_ms: 60_000,
        ..settings()
    };
    let rig = Rig::start(1, settings);
    let (mut ended, mut standing) = (rig.connect(), rig.connect());
    write(&mut standing, &framed("ECHO", 0));
    expect(&mut standing, b"ECHO");
    write(&mut ended, &framed("CLOSE", 0));
    assert_eq!(read_to_end(&mut ended), b"BYE");
    // The first takes the last place, the second that of the one which only its peer has yet to close.
    let mut opened = Vec::new();
    for _ in 0..2 {
        let (listener, address) = listen();
        rig.tell(&format!("SEND {address} hello"));
        let mut peer = accept(&listener);
        expect(&mut peer, b"hello");
        opened.push(peer);
        assert_eq!(rig.load().0, 3);
    }
    // No connection gives way to a third: it is not opened.
    let (_listener, address) = listen();
    rig.tell(&format!("SEND {address} never"));
    assert_eq!(rig.next_undelivered(), "never");
    assert_eq!(rig.counter(1, |c| c.tcp_refused_limit), 1);
    for stream in opened.iter_mut().chain([&mut standing]) {
        write(stream, &framed("ECHO", 0));
        expect(stream, b"ECHO");
    }
    drop((ended, standing, opened));
    rig.end_empty();
}

#[test]
fn what_cannot_be_delivered_comes_back_to_the_worker_that_made_it() {
    let rig = Rig::start(2, settings());
    // Different peers, so that either worker owns some of the connections.
    let (_held, peers): (Vec<_>, Vec<_>) = (0..16).map(|_| closed()).unzip();
    let mut made_by = std::collections::BTreeMap::new();
    let mut came_back = std::collections::BTreeMap::new();
    for peer in &peers {
        rig.tell(&format!("SEND {peer} for-{peer}"));
    }
    while came_back.len() < peers.len() {
        match rig.next() {
            Report::Message { worker, text, .. } => {
                made_by.insert(text.split(' ').nth(2).unwrap().to_owned(), worker);
            }
            Report::Undelivered { worker, to, text } => {
                assert_eq!(text, format!("for-{}", to.remote));
                assert_eq!(came_back.insert(text, worker), None);
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(came_back, made_by);
    assert_eq!(rig.counter(16, |c| c.tcp_open_failed), 16);
    assert_eq!(rig.counter(16, |c| c.stream_undelivered), 16);
    rig.end(Control::Stop);
}

#[test]
fn a_process_has_one_connection_to_each_peer() {
    let rig = Rig::start(3, settings());
    let (peer, address) = listen();
    for number in 10..40 {
        // Each from a port of its own, so that all workers get some.
        rig.tell(&format!("SEND {address} {number}"));
    }
    let mut stream = accept(&peer);
    assert_eq!(stream.peer_addr().unwrap().ip(), own_ip());
    let mut got = [0; 60];
    stream.read_exact(&mut got).unwrap();
    let got: BTreeSet<_> = got
        .chunks(2)
        .map(|n| String::from_utf8_lossy(n).into_owned())
        .collect();
    assert_eq!(got.len(), 30);
    let workers: BTreeSet<_> = (0..30)
        .map(|_| match rig.next() {
            Report::Message { worker, .. } => worker,
            other => panic!("{other:?}"),
        })
        .collect();
    assert!(workers.len() > 1);
    assert_eq!(rig.counter(1, |c| c.tcp_opened), 1);
    assert!(peer.accept().is_err(), "no second connection");
    // What the peer sends on it is read, and answered there.
    write(&mut stream, &framed("ECHO back", 0));
    expect(&mut stream, b"ECHO back");
    rig.end(Control::Stop);
}

#[test]
fn an_answer_made_by_another_worker_returns_on_the_requests_connection() {
    let rig = Rig::start(2, settings());
    let mut stream = rig.connect();
    for number in 0..20 {
        write(
            &mut stream,
            &framed(&format!("OWNER {} n{:02}", number % 2, number), 0),
        );
        expect(&mut stream, format!("{} n{:02}", number % 2, number).as_bytes());
    }
    assert_eq!(rig.counter(10, |c| c.handed_over), 10);
    assert_eq!(rig.counter(10, |c| c.forwarded_sends), 10);
    rig.end(Control::Stop);
}

#[test]
fn where_the_connection_has_gone_a_new_one_is_opened() {
    let rig = Rig::start(2, settings());
    for _ in 0..4 {
        let (peer, address) = listen();
        rig.tell(&format!("STALE {address} answer"));
        expect(&mut accept(&peer), b"answer");
    }
    rig.end(Control::Stop);
}

/// A socket with an address that others may have, too, until one of them listens.
fn reusable(address: SocketAddr) -> Socket {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None).unwrap();
    socket.set_reuse_address(true).unwrap();
    socket.bind(&address.into()).unwrap();
    socket
}

#[test]
fn a_peers_connection_is_found_by_its_address_from_every_worker() {
    let rig = Rig::start(2, settings());
    // Enough that, all but certainly, either worker accepts some.
    for number in 0..12 {
        // The peer's listener will have this port, and no other socket in between.
        let client = reusable(any_port());
        let address = client.local_addr().unwrap().as_socket().unwrap();
        let listener = reusable(address);
        client.connect(&rig.tcp.into()).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut stream = TcpStream::from(client);
        write(&mut stream, &framed("hello", 0));
        assert!(matches!(rig.next(), Report::Message { text, .. } if text == "hello"));
        for worker in 0..2 {
            let order = format!("AT {worker} SEND {address} request-{worker}");
            assert_eq!(rig.order(&order), worker);
            expect(&mut stream, format!("request-{worker}").as_bytes());
        }
        // It ends at once, and leaves the port to the peer's listener.
        socket2::SockRef::from(&stream)
            .set_linger(Some(Duration::ZERO))
            .unwrap();
        drop(stream);
        assert_eq!(rig.counter(number + 1, |c| c.tcp_closed_error), number + 1);
        assert_eq!(rig.counter(number, |c| c.tcp_opened), number);
        listener.listen(1).unwrap();
        let peer = TcpListener::from(listener);
        for worker in 0..2 {
            rig.order(&format!("AT {worker} SEND {address} again"));
        }
        let mut stream = accept(&peer);
        expect(&mut stream, b"againagain");
        // A peer that has sent something has received what was sent to it.
        write(&mut stream, b"\r\n");
        assert_eq!(rig.counter(number + 1, |c| c.tcp_opened), number + 1);
    }
    assert_eq!(rig.counter(0, |c| c.tcp_open_failed), 0);
    rig.end(Control::Stop);
}

#[test]
fn a_connection_that_is_being_ended_is_no_way_to_its_peer() {
    let rig = Rig::start(2, settings());
    let mut stream = rig.connect();
    let address = stream.local_addr().unwrap();
    write(&mut stream, &framed("CLOSE", 0));
    expect(&mut stream, b"BYE");
    assert!(matches!(rig.next(), Report::Message { .. }));
    for worker in 0..2 {
        rig.order(&format!("AT {worker} SEND {address} late"));
        // The peer does not listen there.
        let got = rig.next();
        let Report::Undelivered {
            worker: told, text, ..
        } = got
        else {
            panic!("{got:?}")
        };
        assert_eq!((told, text.as_str()), (worker, "late"));
    }
    assert!(read_to_end(&mut stream).is_empty());
    rig.end(Control::Stop);
}

#[test]
fn what_waits_for_a_connection_that_never_stands_comes_back() {
    let rig = Rig::start(
        1,
        Settings {
            connect_timeout_ms: 200,
            ..settings()
        },
    );
    // A listener with a full queue: the kernel ignores further attempts.
    let (listener, address) = closed();
    listener.listen(0).unwrap();
    let mut fill = Vec::new();
    while let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_millis(300)) {
        fill.push(stream);
        assert!(fill.len() < 10);
    }
    rig.tell(&format!("SEND {address} hello"));
    assert!(matches!(rig.next(), Report::Message { .. }));
    assert!(matches!(rig.next(), Report::Undelivered { to, .. } if to.remote == address));
    assert_eq!(rig.counter(1, |c| c.tcp_open_failed), 1);
    rig.end(Control::Stop);
}

#[test]
fn all_workers_hear_that_a_connection_is_closed() {
    let rig = Rig::start(2, settings());
    for worker in 0..2 {
        rig.tell(&format!("AT {worker} WATCH"));
        assert!(matches!(rig.next(), Report::Message { .. }));
    }
    // A client that never sent a message is not missed.
    drop(rig.connect());
    let mut stream = rig.connect();
    write(&mut stream, &framed("ECHO x", 0));
    expect(&mut stream, b"ECHO x");
    let got = rig.next();
    let Report::Message { flow, .. } = got else {
        panic!("{got:?}")
    };
    drop(stream);
    let mut told = BTreeSet::new();
    for _ in 0..2 {
        match rig.next() {
            Report::Closed { worker, conn } => {
                assert_eq!(Some(conn), flow.conn);
                told.insert(worker);
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(told, BTreeSet::from([0, 1]));
    rig.end(Control::Stop);
}

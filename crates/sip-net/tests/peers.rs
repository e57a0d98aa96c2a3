//! Peers that vanish, go without a word, flood, or make us connect to them.

#![allow(
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "a test that cannot go on fails"
)]

use crate::rig;

use std::net::TcpStream;
use std::time::Duration;

use rig::{Report, Rig, accept, connect, expect, framed, listen, settings, unless_late, write};
use sip_net::mailbox::Control;
use sip_net::settings::Settings;

/// A balancer without a server behind it accepts, reads, and closes. The next hop's alternatives are tried at
/// once, and not when a transaction times out.
#[test]
fn requests_to_a_peer_that_goes_without_a_word_come_back() {
    let rig = Rig::start(1, settings());
    let (listener, address) = listen();
    for is_reset in [false, true] {
        for text in ["INVITE one", "ACK two", "SIP/2.0 three", "BYE four"] {
            rig.order(&format!("AT 0 SEND {address} {text}"));
        }
        let mut peer = accept(&listener);
        expect(&mut peer, b"INVITE oneACK twoSIP/2.0 threeBYE four");
        if is_reset {
            socket2::SockRef::from(&peer)
                .set_linger(Some(Duration::ZERO))
                .unwrap();
        }
        drop(peer);
        // An ACK has no answer that could be missing, nor has an answer.
        assert_eq!(
            [rig.next_undelivered(), rig.next_undelivered()],
            ["INVITE one", "BYE four"]
        );
    }
    // Once the peer has said something, what is missing is missing from the peer itself.
    rig.order(&format!("AT 0 SEND {address} INVITE five"));
    let mut peer = accept(&listener);
    write(&mut peer, &framed("SIP/2.0 100 Trying", 0));
    assert!(matches!(rig.next(), Report::Message { text, .. } if text.starts_with("SIP/2.0 100")));
    drop(peer);
    assert_eq!(rig.counter(3, |c| c.tcp_closed_by_peer + c.tcp_closed_error), 3);
    assert_eq!(rig.counter(4, |c| c.stream_undelivered), 4);
    rig.end_empty();
}

/// Its network is gone, and it cannot say so: no answer to anything, not even of its system.
fn vanish(stream: &TcpStream) {
    let drop_all = [socket2::SockFilter::new(6, 0, 0, 0)];
    socket2::SockRef::from(stream).attach_filter(&drop_all).unwrap();
}

/// The kernel takes what is sent to it for a quarter of an hour.
#[test]
fn a_peer_that_vanishes_is_noticed() {
    let settings = Settings {
        write_timeout_ms: 1_500,
        peer_timeout_ms: 600,
        ..settings()
    };
    let rig = Rig::start(1, settings);
    let mut phone = rig.connect();
    let address = phone.local_addr().unwrap();
    write(&mut phone, &framed("hello", 0));
    rig.next();
    vanish(&phone);
    rig.order(&format!("AT 0 SEND {address} INVITE one"));
    assert_eq!(rig.counter(1, |c| c.tcp_closed_error), 1);
    // One that we opened, while calls go there.
    let (listener, address) = listen();
    rig.order(&format!("AT 0 SEND {address} INVITE two"));
    let peer = accept(&listener);
    vanish(&peer);
    rig.order(&format!("AT 0 SEND {address} INVITE three"));
    assert_eq!(rig.counter(2, |c| c.tcp_closed_error), 2);
    assert_eq!(
        [rig.next_undelivered(), rig.next_undelivered()],
        ["INVITE two", "INVITE three"]
    );
    // An idle connection, too.
    rig.order(&format!("AT 0 SEND {address} INVITE four"));
    let mut idle = accept(&listener);
    expect(&mut idle, b"INVITE four");
    write(&mut idle, &framed("SIP/2.0 200 OK", 0));
    assert!(matches!(rig.next(), Report::Message { .. }));
    vanish(&idle);
    assert_eq!(rig.counter(3, |c| c.tcp_closed_error), 3);
    rig.end_empty();
}

/// A request that names another address for its responses makes us connect there: as often as a peer there
/// could connect itself, and not for long.
#[test]
fn what_we_are_made_to_open_is_bounded() {
    const IDLE: Duration = Duration::from_secs(2);
    let settings = Settings {
        connections: 8,
        connections_per_address: 3,
        per_call_idle_ms: IDLE.as_millis() as u32,
        ..settings()
    };
    unless_late(IDLE, |window| {
        let rig = Rig::start(1, settings.clone());
        let (listeners, addresses): (Vec<_>, Vec<_>) = (0..4).map(|_| listen()).unzip();
        // All of them before the first connection is given up.
        window.open();
        for address in &addresses {
            rig.order(&format!("AT 0 SEND {address} SIP/2.0 200 OK"));
        }
        rig.settled();
        window.close();
        assert_eq!(rig.next_undelivered(), "SIP/2.0 200 OK");
        assert_eq!(rig.counter(1, |c| c.tcp_refused_address), 1);
        let open: Vec<_> = listeners.iter().take(3).map(accept).collect();
        // They end idle.
        assert_eq!(rig.counter(3, |c| c.tcp_closed_idle), 3);
        drop((open, listeners));
        rig.end_empty();
    });

    // All connections that we open leave half of the places to peers that connect.
    let settings = Settings {
        connections_per_address: 0,
        per_call_idle_ms: 60_000,
        ..settings
    };
    let rig = Rig::start(1, settings);
    let (listeners, addresses): (Vec<_>, Vec<_>) = (0..5).map(|_| listen()).unzip();
    for address in &addresses {
        rig.order(&format!("AT 0 SEND {address} INVITE"));
    }
    assert_eq!(rig.next_undelivered(), "INVITE");
    assert_eq!(rig.counter(1, |c| c.tcp_refused_limit), 1);
    let _open: Vec<_> = listeners.iter().take(4).map(accept).collect();
    let mut phone = rig.connect();
    write(&mut phone, &framed("ECHO in", 0));
    expect(&mut phone, b"ECHO in");
    rig.end(Control::Stop);
}

/// The kernel names those that are ready in the same order each time.
#[test]
fn the_busiest_peer_is_not_served_alone() {
    let settings = Settings {
        stream_messages_per_turn: 16,
        read_bytes: 1024,
        ..settings()
    };
    const FLOODS: usize = 4;
    let flood = framed("x", 0).repeat(2_000);
    let mut streams = Vec::new();
    // All of it is there before the worker reads anything; the other client comes last.
    let rig = Rig::looked_at(1, settings, |sockets| {
        let address = sockets[0].listening()[0].local_address();
        for _ in 0..FLOODS {
            let mut stream = connect(address);
            write(&mut stream, &flood);
            streams.push(stream);
        }
        let mut other = connect(address);
        write(&mut other, &framed("ECHO me too", 0));
        streams.push(other);
    });
    let mut before = 0;
    while !matches!(rig.next(), Report::Message { text, .. } if text == "ECHO me too") {
        before += 1;
    }
    // Each has had a few reads of some 40 messages, of the 2,000 that it has sent.
    assert!(before < 1_000, "served after {before} messages of others");
    assert!(rig.counter(100, |c| c.stream_reads_put_off) >= 100);
    expect(&mut streams[FLOODS], b"ECHO me too");
    rig.end(Control::Stop);
}

/// Of thousands that are overdue at once some end in each turn, and all of them do.
#[test]
fn many_that_fall_silent_together_all_end() {
    let settings = Settings {
        idle_timeout_ms: 300,
        close_timeout_ms: 300,
        ..settings()
    };
    let rig = Rig::start(1, settings);
    const COUNT: u64 = 300;
    let all: Vec<_> = (0..COUNT).map(|_| rig.connect()).collect();
    assert_eq!(rig.counter(COUNT, |c| c.tcp_closed_idle), COUNT);
    // None of them closes: they are ended once more, when that has taken too long.
    rig.until(|(connections, ..)| connections == 0);
    drop(all);
    rig.end_empty();
}

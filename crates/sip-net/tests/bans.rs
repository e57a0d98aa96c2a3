//! Banned sources at the sockets: datagrams unread, connections refused and closed.
#![allow(
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "helpers of tests"
)]

use crate::rig;

use std::io::{ErrorKind, Read};
use std::net::{IpAddr, TcpStream, UdpSocket};
use std::sync::Arc;

use rig::{Report, Rig, connect_from, expect, framed, settings, write};
use sip_core::admission::{Source, SourceLists};
use sip_net::mailbox::Control;
use sip_net::settings::Settings;
use test_address::Place;

/// Addresses of two sources.
fn sources() -> [Place; 2] {
    [Place::claim(), Place::claim()]
}

fn stand(rig: &Rig, banned: &[IpAddr], peers: &[IpAddr]) {
    let sources = |list: &[IpAddr]| list.iter().map(|ip| Source::of(*ip)).collect();
    let standing = SourceLists {
        banned: sources(banned),
        peers: sources(peers),
    };
    assert_eq!(rig.hub.order(&Control::SourceLists(Arc::new(standing))), 1);
    // What comes together with the order is taken before it is obeyed.
    rig.settled();
}

fn is_closed(stream: &mut TcpStream) -> bool {
    match stream.read(&mut [0]) {
        Ok(count) => count == 0,
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    }
}

#[test]
fn connections_of_the_banned_are_closed_and_refused_until_the_ban_is_lifted() {
    for limit in [0, 2000] {
        let settings = Settings {
            connections_per_address: limit,
            ..settings()
        };
        let rig = Rig::start(1, settings);
        let places = sources();
        let [from, other] = [0, 1].map(|source| places[source].ip());
        let mut bad = connect_from(from, rig.tcp);
        let mut good = connect_from(other, rig.tcp);
        for stream in [&mut bad, &mut good] {
            write(stream, &framed("ECHO", 0));
            expect(stream, b"ECHO");
        }
        stand(&rig, &[from], &[]);
        assert!(is_closed(&mut bad));
        assert_eq!(rig.counter(1, |c| c.tcp_closed_banned), 1);
        let mut again = connect_from(from, rig.tcp);
        assert!(is_closed(&mut again));
        assert_eq!(rig.counter(1, |c| c.tcp_refused_banned), 1);
        write(&mut good, &framed("ECHO", 0));
        expect(&mut good, b"ECHO");
        // It turns out to be one of ours.
        stand(&rig, &[from], &[from]);
        let mut again = connect_from(from, rig.tcp);
        drop(connect_from(from, rig.tcp));
        stand(&rig, &[], &[]);
        write(&mut again, &framed("ECHO", 0));
        expect(&mut again, b"ECHO");
        drop((bad, good, again));
        rig.end_empty();
    }
}

#[test]
fn datagrams_of_the_banned_are_not_read() {
    let rig = Rig::start(1, settings());
    let places = sources();
    let [bad, good] = [0, 1].map(|source| UdpSocket::bind(places[source].any()).unwrap());
    stand(&rig, &[places[0].ip()], &[]);
    bad.send_to(b"NOTHING of the banned", rig.udp).unwrap();
    good.send_to(b"NOTHING of another", rig.udp).unwrap();
    match rig.next() {
        Report::Message { flow, .. } => assert_eq!(flow.remote, good.local_addr().unwrap()),
        other => panic!("{other:?}"),
    }
    rig.end_empty();
}

//! Banned sources at the sockets: datagrams unread, connections refused and closed.
#![allow(
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "helpers of tests"
)]

mod rig;

use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;

use rig::{Rig, Told, expect, framed, write};
use sip_core::admission::Standing;
use sip_net::mailbox::Control;
use sip_net::settings::Settings;
use socket2::{Domain, Socket, Type};

/// A connection from `from`.
fn connect_from(from: &str, to: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let from: SocketAddr = format!("{from}:0").parse().unwrap();
    socket.bind(&from.into()).unwrap();
    socket.connect(&to.into()).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(rig::PATIENCE)).unwrap();
    stream
}

fn stand(rig: &Rig, banned: &[&str], peers: &[&str]) {
    let sources = |list: &[&str]| list.iter().map(|ip| ip.parse().unwrap()).collect();
    let standing = Standing {
        banned: sources(banned),
        peers: sources(peers),
    };
    assert_eq!(rig.hub.order(&Control::Standing(Arc::new(standing))), 1);
    // What comes together with the order is taken before it is obeyed.
    std::thread::sleep(std::time::Duration::from_millis(50));
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
            ..Settings::default()
        };
        let rig = Rig::start(1, settings);
        let mut bad = connect_from("127.0.0.2", rig.tcp);
        let mut good = connect_from("127.0.0.3", rig.tcp);
        for stream in [&mut bad, &mut good] {
            write(stream, &framed("ECHO", 0));
            expect(stream, b"ECHO");
        }
        stand(&rig, &["127.0.0.2"], &[]);
        assert!(is_closed(&mut bad));
        assert_eq!(rig.counter(1, |c| c.tcp_closed_banned), 1);
        let mut again = connect_from("127.0.0.2", rig.tcp);
        assert!(is_closed(&mut again));
        assert_eq!(rig.counter(1, |c| c.tcp_refused_banned), 1);
        write(&mut good, &framed("ECHO", 0));
        expect(&mut good, b"ECHO");
        // It turns out to be one of ours.
        stand(&rig, &["127.0.0.2"], &["127.0.0.2"]);
        let mut again = connect_from("127.0.0.2", rig.tcp);
        drop(connect_from("127.0.0.2", rig.tcp));
        stand(&rig, &[], &[]);
        write(&mut again, &framed("ECHO", 0));
        expect(&mut again, b"ECHO");
        drop((bad, good, again));
        rig.end_empty();
    }
}

#[test]
fn datagrams_of_the_banned_are_not_read() {
    let rig = Rig::start(1, Settings::default());
    let bad = UdpSocket::bind("127.0.0.2:0").unwrap();
    let good = UdpSocket::bind("127.0.0.3:0").unwrap();
    stand(&rig, &["127.0.0.2"], &[]);
    bad.send_to(b"NOTHING of the banned", rig.udp).unwrap();
    good.send_to(b"NOTHING of another", rig.udp).unwrap();
    match rig.next() {
        Told::Message { flow, .. } => assert_eq!(flow.remote, good.local_addr().unwrap()),
        other => panic!("{other:?}"),
    }
    rig.end_empty();
}

//! What the program that keeps new work apart costs the sender of a datagram on loopback, and what a datagram costs that
//! the kernel drops: as docs/spikes/second-queue.md has it of the prototype.
//!
//! `cargo run --release -p sip-net --example new_work [ROUNDS]`: some seconds. Loopback charges delivery to the
//! sender, so the time of the sending thread is what is compared: pin it (`taskset -c 1`) on a machine without other load.

#![expect(clippy::print_stdout, reason = "a program for a terminal")]
#![allow(clippy::unwrap_used, reason = "a measurement that cannot go on ends")]

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use sip_net::udp::{RecvBatch, UdpOptions, UdpSocket as Receiver};

const DATAGRAMS: usize = 20_000;
/// Datagrams sent before they are read.
const BURST: usize = 64;

fn message(method: &str, route: &str, number: usize) -> String {
    let body = "v=0\r\no=alice 2890844526 2890844526 IN IP4 192.0.2.1\r\ns=-\r\nc=IN IP4 192.0.2.1\r\nt=0 0\r\n\
                m=audio 49172 RTP/AVP 0 8 101\r\na=rtpmap:0 PCMU/8000\r\na=rtpmap:8 PCMA/8000\r\n\
                a=rtpmap:101 telephone-event/8000\r\n";
    let body = if method == "INVITE" { body } else { "" };
    format!(
        "{method} sip:bob@example.com SIP/2.0\r\nVia: SIP/2.0/UDP 192.0.2.1:5060;branch=z9hG4bK776asdhds{number}\r\n\
         {route}Max-Forwards: 70\r\nFrom: <sip:alice@example.com>;tag=1928301774\r\nTo: <sip:bob@example.com>\r\n\
         Call-ID: a84b4c76e66710{number}@pc33.example.com\r\nCSeq: 314159 {method}\r\n\
         Contact: <sip:alice@192.0.2.1:5060>\r\nContent-Type: application/sdp\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// The sockets of a listener, and how the kernel chooses among them.
struct Case {
    name: &'static str,
    sockets: Vec<Receiver>,
}

impl Case {
    fn new(name: &'static str, workers: u16, new_work: Option<bool>) -> Self {
        let bind = |address: SocketAddr| {
            let options = UdpOptions {
                receive_buffer: 4 << 20,
                send_buffer: 1 << 20,
                share: true,
            };
            Receiver::bind(address, options).unwrap()
        };
        let first = bind("127.0.0.1:0".parse().unwrap());
        let count = if new_work == Some(true) {
            3 * workers
        } else {
            workers
        };
        let address = first.local_address();
        let mut sockets = vec![first];
        sockets.extend((1..count).map(|_| bind(address)));
        if let Some(new_work) = new_work {
            sip_net::udp::steer_for_measuring(&sockets[0], workers, new_work).unwrap();
        }
        Self { name, sockets }
    }

    /// Nanoseconds of the sender for a datagram of these.
    fn cost(&self, client: &UdpSocket, texts: &[String], is_read: bool) -> f64 {
        let to = self.sockets[0].local_address();
        let mut batch = RecvBatch::new(BURST);
        let mut took = 0;
        for burst in texts.chunks(BURST) {
            let before = Instant::now();
            for text in burst {
                client.send_to(text.as_bytes(), to).unwrap();
            }
            took += before.elapsed().as_nanos() as u64;
            for socket in self.sockets.iter().filter(|_| is_read) {
                while batch.receive(socket).unwrap() > 0 {}
            }
        }
        took as f64 / texts.len() as f64
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let rounds = std::env::args().nth(1).map_or(15, |text| text.parse().unwrap());
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.set_write_timeout(Some(Duration::from_secs(5))).unwrap();
    let route = "Route: <sip:192.0.2.5;lr;tz=0123456789abcdef0123456789abcdef>\r\n";
    let kinds = [
        ("INVITE", message("INVITE", "", 0)),
        (
            "INVITE with a foreign Route",
            message("INVITE", "Route: <sip:192.0.2.5;lr>\r\n", 0),
        ),
        ("INVITE in a dialog", message("INVITE", route, 0)),
        ("REGISTER", message("REGISTER", "", 0)),
        ("BYE", message("BYE", route, 0)),
    ];
    let cases = [
        Case::new("one worker, no program", 1, None),
        Case::new("one worker, queues of new work", 1, Some(true)),
        Case::new("two workers, no such queues", 2, Some(false)),
        Case::new("two workers, queues of new work", 2, Some(true)),
    ];
    for (kind, text) in &kinds {
        println!("{kind}, {} bytes, ns for the sender:", text.len());
        let texts = vec![text.clone(); DATAGRAMS];
        let mut found = vec![Vec::new(); cases.len()];
        for _ in 0..rounds {
            for (case, found) in cases.iter().zip(&mut found) {
                found.push(case.cost(&client, &texts, true));
            }
        }
        for (case, found) in cases.iter().zip(&mut found) {
            println!("  {:32} {:7.0}", case.name, median(found));
        }
    }
    let full = Case::new("", 1, Some(true));
    let texts = vec![kinds[0].1.clone(); DATAGRAMS];
    full.cost(&client, &texts, false);
    let mut dropped: Vec<f64> = (0..rounds).map(|_| full.cost(&client, &texts, false)).collect();
    println!("INVITE that finds its queue full: {:7.0}", median(&mut dropped));
}

//! The empty event loop, measured beside a bare relay in C: relays datagrams between the loopback
//! ports 6001 and 6002 through port 5060, by the parts that the worker's loop is made of.
//!
//! `relay [wait|skip|try] [BATCH]`: `wait` waits before every receive; `skip` does not wait when
//! the last receive filled its batch; `try` waits only when a receive found nothing.
//! See `docs/spikes/event-loop.md`.

use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Instant;

use sip_net::clock::Clock;
use sip_net::epoll::{Epoll, EventList, Interest};
use sip_net::udp::{Backlog, IcmpErrors, RecvBatch, SendBatch, UdpOptions, UdpSocket};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let mode = args.next().unwrap_or_else(|| "wait".to_owned());
    let batch: usize = args.next().map_or(Ok(64), |text| text.parse())?;
    let local = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let (a, b) = (local(6001), local(6002));
    let options = UdpOptions {
        receive_buffer: 4 << 20,
        send_buffer: 4 << 20,
        share: true,
    };
    let socket = UdpSocket::bind(local(5060), options)?;
    let epoll = Epoll::new()?;
    epoll.add(&socket, 0, Interest::Read)?;
    let mut events = EventList::new(64);
    let mut clock = Clock::new(Instant::now());
    let mut received = RecvBatch::new(batch);
    let mut send = SendBatch::new(batch);
    let mut backlog = Backlog::new(1 << 20);
    let mut out = sip_core::transport::TransmitBatch::new();
    let mut icmp = IcmpErrors::new();
    let mut wait = true;
    loop {
        if wait {
            epoll.wait(&mut events, None)?;
            if events.get(0).is_some_and(|event| event.error) {
                icmp.drain(&socket, 64, |_, _| {})?;
            }
        }
        // An ICMP error of the generator's end is no reason to stop.
        let _ = received.receive(&socket);
        wait = match mode.as_str() {
            "skip" => !received.is_full(),
            "try" => received.is_empty(),
            _ => true,
        };
        let now = clock.read();
        std::hint::black_box(now);
        out.clear();
        for index in 0..received.len() {
            if let Some(datagram) = received.datagram(index) {
                let remote = if datagram.source.port() == a.port() { b } else { a };
                let flow = sip_core::transport::Flow {
                    transport: sip_core::transport::Transport::Udp,
                    listener: sip_core::id::ListenerId(0),
                    remote,
                    conn: None,
                    proof: sip_core::transport::Proof::None,
                };
                out.push(flow, datagram.bytes);
            }
        }
        let items = out.items();
        send.send(
            &socket,
            &mut backlog,
            items.len(),
            |index| {
                items
                    .get(index)
                    .map_or((a, &[][..]), |item| (item.to.remote, out.message(item)))
            },
            |_| {},
        );
        if !backlog.is_empty() {
            send.flush(&socket, &mut backlog, |_, _| {});
        }
    }
}

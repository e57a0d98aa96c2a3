//! Datagrams over loopback: batches, sizes, errors.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::net::{SocketAddr, UdpSocket as StdSocket};
use std::time::{Duration, Instant};

use sip_net::epoll::{Epoll, EventList, Interest};
use sip_net::udp::{Backlog, IcmpErrors, RecvBatch, SendBatch, UdpOptions, UdpSocket};

fn bind(address: &str) -> UdpSocket {
    let options = UdpOptions {
        receive_buffer: 4 << 20,
        send_buffer: 4 << 20,
        share: false,
    };
    UdpSocket::bind(address.parse().unwrap(), options).unwrap()
}

/// An address at which nobody listens.
fn closed(ip: &str) -> SocketAddr {
    StdSocket::bind(format!("{ip}:0")).unwrap().local_addr().unwrap()
}

fn has_ipv6() -> bool {
    StdSocket::bind("[::1]:0").is_ok()
}

fn send_all(socket: &UdpSocket, messages: &[(SocketAddr, Vec<u8>)]) -> (Vec<usize>, u64) {
    let mut failed = Vec::new();
    let report = SendBatch::new(16).send(
        socket,
        &mut Backlog::new(0),
        messages.len(),
        |index| (messages[index].0, &messages[index].1),
        |index| failed.push(index),
    );
    (failed, report.sent)
}

#[test]
fn batches_keep_order_content_and_source() {
    for ip in ["127.0.0.1:0", "[::1]:0"] {
        if ip.starts_with('[') && !has_ipv6() {
            continue;
        }
        let (from, to) = (bind(ip), bind(ip));
        let messages: Vec<_> = (0..200usize)
            .map(|number| (to.local_address(), vec![number as u8; number * 11]))
            .collect();
        assert_eq!(send_all(&from, &messages), (vec![], 200));
        let mut batch = RecvBatch::new(64);
        let (mut got, mut sizes) = (Vec::new(), Vec::new());
        while batch.receive(&to).unwrap() > 0 {
            sizes.push(batch.len());
            assert_eq!(batch.is_full(), batch.len() == 64);
            for index in 0..batch.len() {
                let datagram = batch.datagram(index).unwrap();
                assert_eq!(datagram.source, from.local_address());
                got.push(datagram.bytes.to_vec());
            }
        }
        assert_eq!(sizes, [64, 64, 64, 8]);
        assert!(got.iter().eq(messages.iter().map(|(_, bytes)| bytes)));
    }
}

#[test]
fn the_largest_datagrams_arrive_whole_and_a_batch_of_them_does_not_mix() {
    let (from, to) = (bind("127.0.0.1:0"), bind("127.0.0.1:0"));
    let messages: Vec<_> = [65_507usize, 2_111, 2_112, 2_113, 40_000, 0, 65_507]
        .iter()
        .map(|len| {
            (
                to.local_address(),
                (0..*len).map(|at| (at * 31 + len) as u8).collect::<Vec<_>>(),
            )
        })
        .collect();
    assert_eq!(send_all(&from, &messages), (vec![], 7));
    let mut batch = RecvBatch::new(8);
    assert_eq!(batch.receive(&to).unwrap(), 7);
    for (index, (_, bytes)) in messages.iter().enumerate() {
        assert!(batch.datagram(index).unwrap().bytes == bytes, "datagram {index}");
    }
    assert_eq!(batch.truncated(), 0);
    assert_eq!(batch.datagram(7), None);
}

#[test]
fn a_datagram_longer_than_its_slot_is_dropped_and_counted() {
    let (from, to) = (bind("127.0.0.1:0"), bind("127.0.0.1:0"));
    let messages: Vec<_> = [3_000usize, 3_001, 5]
        .iter()
        .map(|len| (to.local_address(), vec![7; *len]))
        .collect();
    send_all(&from, &messages);
    let mut batch = RecvBatch::with_largest(4, 3_000);
    assert_eq!(batch.receive(&to).unwrap(), 3);
    assert_eq!(batch.datagram(0).unwrap().bytes.len(), 3_000);
    assert_eq!(batch.datagram(1), None);
    assert_eq!(batch.datagram(2).unwrap().bytes.len(), 5);
    assert_eq!(batch.truncated(), 1);
}

#[test]
fn one_bad_message_does_not_hold_up_the_rest() {
    let (from, to) = (bind("127.0.0.1:0"), bind("127.0.0.1:0"));
    let good = to.local_address();
    let dead = closed("127.0.0.1");
    let v6: SocketAddr = "[::1]:9".parse().unwrap();
    let mut messages = vec![
        (good, b"first".to_vec()),
        (good, vec![0; 70_000]),
        (v6, b"wrong family".to_vec()),
    ];
    // Each of these makes the kernel report an ICMP error to the next call.
    for _ in 0..40 {
        messages.push((dead, b"to nobody".to_vec()));
        messages.push((good, b"after it".to_vec()));
    }
    let (failed, sent) = send_all(&from, &messages);
    assert_eq!(failed, [1, 2]);
    assert_eq!(sent, 81);
    let mut batch = RecvBatch::new(64);
    assert_eq!(batch.receive(&to).unwrap(), 41);
}

#[test]
fn an_icmp_error_comes_with_destination_and_payload() {
    for (ip, local) in [("127.0.0.1", "127.0.0.1:0"), ("[::1]", "[::1]:0")] {
        if local.starts_with('[') && !has_ipv6() {
            continue;
        }
        let socket = bind(local);
        let epoll = Epoll::new().unwrap();
        epoll.add(&socket, 5, Interest::Read).unwrap();
        let dead = closed(ip);
        let message = b"OPTIONS sip:nobody@127.0.0.1 SIP/2.0\r\n".repeat(10);
        send_all(&socket, &[(dead, message.clone())]);
        let mut events = EventList::new(4);
        let mut errors = IcmpErrors::new();
        let mut lost = Vec::new();
        let end = Instant::now() + Duration::from_secs(10);
        while lost.is_empty() && Instant::now() < end {
            epoll.wait(&mut events, Some(1_000_000)).unwrap();
            assert!(events.get(0).is_none_or(|event| event.error));
            errors
                .drain(&socket, 8, |to, bytes| lost.push((to, bytes.to_vec())))
                .unwrap();
        }
        assert_eq!(lost.len(), 1);
        assert_eq!(lost[0].0, dead);
        assert!(
            message.starts_with(&lost[0].1) && lost[0].1.len() >= 300,
            "{} bytes",
            lost[0].1.len()
        );
        // What the error left at the socket does not spoil the next call.
        assert_eq!(RecvBatch::new(1).receive(&socket).unwrap(), 0);
        epoll.wait(&mut events, Some(0)).unwrap();
        assert!(events.is_empty());
    }
}

#[test]
fn the_kernels_drops_are_counted() {
    let from = bind("127.0.0.1:0");
    let options = UdpOptions {
        receive_buffer: 4096,
        send_buffer: 1 << 20,
        share: false,
    };
    let to = UdpSocket::bind("127.0.0.1:0".parse().unwrap(), options).unwrap();
    assert_eq!(to.receive_drops().unwrap(), 0);
    let messages: Vec<_> = (0..100).map(|_| (to.local_address(), vec![0; 1000])).collect();
    send_all(&from, &messages);
    let mut batch = RecvBatch::new(128);
    let received = batch.receive(&to).unwrap();
    assert!(received < 100);
    assert_eq!(to.receive_drops().unwrap() as usize, 100 - received);
}

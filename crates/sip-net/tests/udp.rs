//! Datagrams over loopback: batches, sizes, errors.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use crate::rig;

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket as StdSocket};
use std::time::Instant;

use rig::{PATIENCE, any_port, closed_to_datagrams, own_ip, wait_for_delivery};
use sip_net::epoll::{Epoll, EventList, Interest};
use sip_net::udp::{Backlog, IcmpErrors, RecvBatch, SendBatch, UdpOptions, UdpSocket};

fn bind(address: SocketAddr) -> UdpSocket {
    let options = UdpOptions {
        receive_buffer: 4 << 20,
        send_buffer: 4 << 20,
        share: false,
    };
    UdpSocket::bind(address, options).unwrap()
}

/// The test's own address, and the loopback address of IPv6 where there is one.
fn addresses() -> Vec<IpAddr> {
    let v6 = IpAddr::from(Ipv6Addr::LOCALHOST);
    let has_v6 = StdSocket::bind((v6, 0)).is_ok();
    [own_ip()].into_iter().chain(has_v6.then_some(v6)).collect()
}

/// Sends these, and returns when they are there.
fn send_all(socket: &UdpSocket, messages: &[(SocketAddr, Vec<u8>)]) -> (Vec<usize>, u64) {
    let mut failed = Vec::new();
    let report = SendBatch::new(16).send(
        socket,
        &mut Backlog::new(0),
        messages.len(),
        |index| (messages[index].0, &messages[index].1),
        |index| failed.push(index),
    );
    wait_for_delivery();
    (failed, report.sent)
}

#[test]
fn batches_keep_order_content_and_source() {
    for ip in addresses() {
        let (from, to) = (bind((ip, 0).into()), bind((ip, 0).into()));
        // Few long ones: all of them together go into the buffer that a system has by default.
        let length = |number: usize| {
            if number.is_multiple_of(5) {
                number * 11
            } else {
                number
            }
        };
        let messages: Vec<_> = (0..200usize)
            .map(|number| (to.local_address(), vec![number as u8; length(number)]))
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
    let (from, to) = (bind(any_port()), bind(any_port()));
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
    let (from, to) = (bind(any_port()), bind(any_port()));
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
    let (from, to) = (bind(any_port()), bind(any_port()));
    let good = to.local_address();
    let (_held, dead) = closed_to_datagrams(own_ip());
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
    for ip in addresses() {
        let socket = bind((ip, 0).into());
        let epoll = Epoll::new().unwrap();
        epoll.add(&socket, 5, Interest::Read).unwrap();
        let (_held, dead) = closed_to_datagrams(ip);
        let message = b"OPTIONS sip:nobody@127.0.0.1 SIP/2.0\r\n".repeat(10);
        send_all(&socket, &[(dead, message.clone())]);
        let mut events = EventList::new(4);
        let mut errors = IcmpErrors::new();
        let mut lost = Vec::new();
        let end = Instant::now() + PATIENCE;
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
    let from = bind(any_port());
    let options = UdpOptions {
        receive_buffer: 4096,
        send_buffer: 1 << 20,
        share: false,
    };
    let to = UdpSocket::bind(any_port(), options).unwrap();
    assert_eq!(to.receive_drops().unwrap(), 0);
    let messages: Vec<_> = (0..100).map(|_| (to.local_address(), vec![0; 1000])).collect();
    send_all(&from, &messages);
    let mut batch = RecvBatch::new(128);
    let received = batch.receive(&to).unwrap();
    assert!(received < 100);
    assert_eq!(to.receive_drops().unwrap() as usize, 100 - received);
}

/// Among the ports that may be shared it would choose one that is in use.
#[test]
fn no_two_sockets_get_one_port_from_the_kernel() {
    // So many that two would have the same.
    let sockets: Vec<_> = (0..600)
        .map(|_| {
            let options = UdpOptions {
                receive_buffer: 4096,
                send_buffer: 4096,
                share: true,
            };
            UdpSocket::bind(any_port(), options).unwrap()
        })
        .collect();
    let ports: BTreeSet<_> = sockets
        .iter()
        .map(|socket| socket.local_address().port())
        .collect();
    assert_eq!(ports.len(), sockets.len());
}

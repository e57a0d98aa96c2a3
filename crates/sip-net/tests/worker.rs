//! The worker's loop: datagrams, hand-over, the mailbox, timers, the end.

#![allow(
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "a test that cannot go on fails"
)]

use crate::rig;

use std::net::{Shutdown, UdpSocket};
use std::os::fd::AsFd;
use std::time::Duration;

use rig::certificates::Kit;
use rig::websocket::{CLOSE, WebSocket};
use rig::{
    PATIENCE, Report, Rig, any_port, closed_to_datagrams, config, connect, expect, framed, own_ip,
    read_to_end, receive, settings, udp_client, write,
};
use sip_core::activity::Component;
use sip_core::id::{QueryId, WorkerId};
use sip_core::query::QueryResult;
use sip_core::transport::Transport;
use sip_net::bind::bind_all;
use sip_net::mailbox::{Control, Item};
use sip_net::settings::Settings;
use sip_net::worker::Ended;
use socket2::Socket;

#[test]
fn datagrams_are_answered_where_they_came_from() {
    let rig = Rig::start(1, settings());
    let client = udp_client();
    for number in 0..100 {
        client
            .send_to(format!("ECHO {number}").as_bytes(), rig.udp)
            .unwrap();
    }
    for number in 0..100 {
        assert_eq!(receive(&client), format!("ECHO {number}"));
    }
    let got = rig.next();
    let Report::Message { flow, .. } = got else {
        panic!("{got:?}")
    };
    assert_eq!(
        (flow.transport, flow.remote, flow.conn),
        (Transport::Udp, client.local_addr().unwrap(), None)
    );
    assert_eq!(rig.counter(100, |c| c.udp_received), 100);
    assert_eq!(rig.counter(100, |c| c.udp_sent), 100);
    assert_eq!(rig.end(Control::Stop), [Ended::Stopped]);
}

#[test]
fn the_other_workers_hear_that_a_next_hop_failed_but_not_that_a_contact_did() {
    let rig = Rig::start(3, settings());
    rig.tell("AT 1 FAIL-CONTACT 192.0.2.20:5061");
    assert!(matches!(rig.next(), Report::Message { worker: 1, .. }));
    rig.tell("AT 1 FAIL 192.0.2.20:5060");
    assert!(matches!(rig.next(), Report::Message { worker: 1, .. }));
    let mut heard = [rig.next(), rig.next()].map(|report| match report {
        Report::HopFailed { worker, destination } => (worker, destination.to_string()),
        other => panic!("{other:?}"),
    });
    heard.sort();
    assert_eq!(heard, [0, 2].map(|worker| (worker, "192.0.2.20:5060".to_owned())));
    // Once of both failures.
    for worker in [0, 2] {
        rig.tell(&format!("AT {worker} x"));
        let got = rig.next();
        assert!(matches!(got, Report::Message { .. }), "{got:?}");
    }
    rig.end(Control::Stop);
}

#[test]
fn one_source_port_is_served_by_all_workers() {
    let rig = Rig::start(2, settings());
    let client = udp_client();
    // As many as fit into the client's receive buffer.
    const COUNT: usize = 200;
    for number in 0..COUNT {
        client
            .send_to(format!("OWNER {} {number}", number % 2).as_bytes(), rig.udp)
            .unwrap();
    }
    let mut next = [0, 1];
    for _ in 0..COUNT {
        let answer = receive(&client);
        let (worker, number) = answer.split_once(' ').unwrap();
        let worker: usize = worker.parse().unwrap();
        assert_eq!(
            number,
            next[worker].to_string(),
            "each worker answers its own, in order"
        );
        next[worker] += 2;
    }
    let half = COUNT as u64 / 2;
    let handed_over = rig.counter(half, |c| c.handed_over);
    assert_eq!(handed_over, half, "half came to the wrong one");
    assert_eq!(rig.counter(0, |c| c.hand_over_drops), 0);
    rig.end(Control::Stop);
}

#[test]
fn a_full_mailbox_drops_and_counts() {
    let rig = Rig::start(
        2,
        Settings {
            mailbox_messages: 0,
            ..settings()
        },
    );
    let client = udp_client();
    for number in 0..20 {
        client
            .send_to(format!("OWNER {} x", number % 2).as_bytes(), rig.udp)
            .unwrap();
    }
    assert_eq!(rig.counter(10, |c| c.hand_over_drops), 10);
    rig.end(Control::Stop);
}

#[test]
fn an_icmp_error_reaches_every_worker() {
    let rig = Rig::start(2, settings());
    let (_held, address) = closed_to_datagrams(own_ip());
    rig.tell(&format!("DATAGRAM {address} to nobody"));
    let mut workers = Vec::new();
    while workers.len() < 2 {
        match rig.next() {
            Report::Undelivered { worker, to, text } => {
                assert_eq!((to.remote, to.transport), (address, Transport::Udp));
                assert_eq!(text, "to nobody");
                workers.push(worker);
            }
            Report::Message { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    workers.sort_unstable();
    assert_eq!(workers, [0, 1]);
    assert_eq!(rig.counter(1, |c| c.icmp_errors), 1);
    rig.end(Control::Stop);
}

#[test]
fn questions_go_out_and_answers_come_back_to_the_same_worker() {
    let rig = Rig::start(2, settings());
    rig.tell("ASK");
    let got = rig.next();
    let Report::Message { worker, .. } = got else {
        panic!("{got:?}")
    };
    let (asked_by, query) = rig.asked.recv_timeout(PATIENCE).unwrap();
    assert_eq!(asked_by, WorkerId(worker));
    let id = query.id.unwrap();
    let item = Item::Result {
        id,
        result: QueryResult::Saved(Ok(())),
    };
    rig.hub.mailbox(asked_by).unwrap().post(item).unwrap();
    assert_eq!(
        rig.next(),
        Report::Answer {
            worker,
            id: QueryId {
                slot: 0,
                generation: 9
            }
        }
    );
    rig.end(Control::Stop);
}

#[test]
fn a_timer_wakes_a_sleeping_worker() {
    let rig = Rig::start(1, settings());
    rig.tell("TIMER 30");
    assert!(matches!(rig.next(), Report::Message { .. }));
    assert_eq!(rig.next(), Report::Timeout { worker: 0 });
    rig.end(Control::Stop);
}

#[test]
fn counters_are_published_without_being_asked_for_and_then_the_worker_sleeps() {
    let rig = Rig::start(
        1,
        Settings {
            publish_interval_ms: 10,
            ..settings()
        },
    );
    rig.tell("hello");
    rig.next();
    let end = std::time::Instant::now() + PATIENCE;
    while rig.published[0].get().net.udp_received == 0 {
        assert!(std::time::Instant::now() < end);
        std::thread::sleep(Duration::from_millis(1));
    }
    // A worker that kept publishing, or turned round and round, would take many turns.
    std::thread::sleep(Duration::from_millis(100));
    let turns = rig.counter(1, |c| c.turns);
    assert!(turns < 20, "{turns} turns");
    rig.end(Control::Stop);
}

#[test]
fn a_new_configuration_reaches_the_engine() {
    let rig = Rig::start(1, settings());
    rig.hub.order(&Control::Reconfigure(rig.config.clone()));
    assert_eq!(rig.next(), Report::Reconfigured { worker: 0 });
    rig.end(Control::Stop);
}

#[test]
fn draining_ends_when_work_ends_or_at_the_deadline() {
    let rig = Rig::start(1, settings());
    assert_eq!(rig.end(Control::Drain { deadline_ms: 60_000 }), [Ended::Drained]);

    let rig = Rig::start(1, settings());
    rig.order("BUSY");
    assert_eq!(rig.end(Control::Drain { deadline_ms: 50 }), [Ended::Deadline]);

    let rig = Rig::start(1, settings());
    let client = udp_client();
    client.send_to(b"BUSY", rig.udp).unwrap();
    rig.next();
    rig.hub.order(&Control::Drain { deadline_ms: 60_000 });
    assert_eq!(rig.next(), Report::Drained { worker: 0 });
    assert!(
        std::net::TcpStream::connect(rig.tcp).is_err(),
        "no new connections"
    );
    client.send_to(b"ECHO still served", rig.udp).unwrap();
    assert_eq!(receive(&client), "ECHO still served");
    client.send_to(b"QUIET", rig.udp).unwrap();
    for thread in rig.threads {
        assert_eq!(thread.join().unwrap(), Ended::Drained);
    }
}

/// A listener from which nothing can be accepted is reported as ready for ever.
#[test]
fn a_listener_that_cannot_accept_is_left_alone_for_a_moment() {
    let mut listener = None;
    let rig = Rig::looked_at(1, settings(), |sockets| {
        listener = Some(sockets[0].listening()[0].as_fd().try_clone_to_owned().unwrap());
    });
    let listener = Socket::from(listener.unwrap());
    // What accept(2) then says is an error of the listener.
    listener.shutdown(Shutdown::Both).unwrap();
    let turns = rig.counter(0, |c| c.turns);
    let pauses = rig.counter(3, |c| c.tcp_accept_pauses);
    let turns = rig.counter(0, |c| c.turns) - turns;
    assert!(turns < 200 * (pauses + 1), "{turns} turns in {pauses} pauses");
    // Once it can accept again it does. (It has lost its port, which it had not asked for.)
    listener.listen(16).unwrap();
    let mut client = connect(listener.local_addr().unwrap().as_socket().unwrap());
    write(&mut client, &framed("ECHO at last", 0));
    expect(&mut client, b"ECHO at last");
    drop(listener);
    assert_eq!(rig.end(Control::Stop), [Ended::Stopped]);
}

/// No client is cut off without a word.
#[test]
fn the_end_is_said_on_every_connection() {
    let kit = Kit::new();
    let rig = Rig::secure(1, settings(), kit.service());
    let mut tcp = rig.connect();
    let mut tls = kit.connect(rig.tls);
    let mut ws = WebSocket::open(connect(rig.ws));
    write(&mut tcp, &framed("ECHO one", 0));
    expect(&mut tcp, b"ECHO one");
    write(&mut tls, &framed("ECHO two", 0));
    expect(&mut tls, b"ECHO two");
    ws.echo("three");
    let published = rig.published[0].clone();
    assert_eq!(rig.end(Control::Drain { deadline_ms: 60_000 }), [Ended::Drained]);
    assert_eq!(read_to_end(&mut tcp), b"");
    // An error, were it not for the alert by which TLS says that it was not cut off.
    assert_eq!(read_to_end(&mut tls), b"");
    ws.expect(CLOSE, &[3, 0xe9]);
    assert_eq!(published.get().net.tcp_closed_stopping, 3);
}

#[test]
fn a_worker_without_work_waits_for_those_that_may_still_need_it() {
    let rig = Rig::start(2, settings());
    let client = udp_client();
    client.send_to(b"BUSY", rig.udp).unwrap();
    let got = rig.next();
    let Report::Message { worker: busy, .. } = got else {
        panic!("{got:?}")
    };
    rig.hub.order(&Control::Drain { deadline_ms: 60_000 });
    let drained: Vec<_> = (0..2).map(|_| rig.next()).collect();
    assert!(drained.contains(&Report::Drained { worker: 1 - busy }));
    rig.settled();
    for number in 0..4 {
        client
            .send_to(format!("OWNER {} x", number % 2).as_bytes(), rig.udp)
            .unwrap();
        assert_eq!(receive(&client), format!("{} x", number % 2));
    }
    client.send_to(b"QUIET", rig.udp).unwrap();
    for thread in rig.threads {
        assert_eq!(thread.join().unwrap(), Ended::Drained);
    }
}

#[test]
fn an_address_in_use_is_reported_with_its_listener() {
    let taken = UdpSocket::bind(any_port()).unwrap();
    let mut config = config(2);
    config.listeners[0].address = taken.local_addr().unwrap();
    let error = bind_all(&config, &Settings::default(), 2).unwrap_err();
    assert_eq!(error.listener.0, 0);
    let text = error.to_string();
    assert!(text.contains(&taken.local_addr().unwrap().to_string()), "{text}");
    assert!(text.contains("another process listens there"), "{text}");
}

#[test]
fn an_address_that_another_instance_shares_is_in_use_too() {
    let settings = Settings::default();
    let mut config = config(1);
    let first = bind_all(&config, &settings, 1).unwrap();
    for listener in 0..2 {
        config.listeners[listener].address = first[0].addresses()[listener];
        let error = bind_all(&config, &settings, 1).unwrap_err();
        assert_eq!(usize::from(error.listener.0), listener);
        config.listeners[listener].address.set_port(0);
    }
    config.listeners[0].address = first[0].addresses()[0];
    let shared = Settings {
        exclusive: false,
        ..settings
    };
    assert!(bind_all(&config, &shared, 1).is_ok());
}

#[test]
fn workers_share_a_port_that_the_kernel_chose() {
    let all = bind_all(&config(3), &Settings::default(), 3).unwrap();
    assert_eq!(all.len(), 3);
    assert!(all[0].addresses().iter().all(|address| address.port() != 0));
    assert!(
        all.iter()
            .all(|sockets| sockets.addresses() == all[0].addresses())
    );
    assert!(all[0].receive_buffer().unwrap() > 0);
}

/// The split shows where most of the time goes: to the engine's computations.
#[test]
fn cpu_time_is_split_by_what_the_worker_does() {
    let rig = Rig::start(1, settings());
    let client = udp_client();
    let spin = || {
        client.send_to(b"SPIN 200", rig.udp).unwrap();
        assert_eq!(receive(&client), "SPIN 200");
    };
    let split = || {
        rig.load();
        rig.published[0].get().cpu
    };
    spin();
    assert_eq!(
        (split().on, split().total()),
        (false, 0),
        "off unless it is asked for"
    );

    rig.hub.order(&Control::SplitCpu(true));
    // A turn in 16 is measured, and so many are enough to divide by. Each works so long that what else runs on
    // the machine meanwhile makes no other component look as large: the test's client, woken by the
    // datagram, takes the core during the send for some milliseconds.
    while split().turns < 16 {
        (0..16).for_each(|_| spin());
    }
    rig.hub.order(&Control::SplitCpu(false));
    let done = split();
    assert!(!done.on);
    let auth = done.of(Component::Auth);
    assert!(auth > done.total() / 2, "{done:?}");
    for component in [
        Component::Receive,
        Component::Send,
        Component::Wait,
        Component::Other,
    ] {
        let ns = done.of(component);
        assert!(ns > 0 && ns < auth, "{component:?} {done:?}");
    }
    for component in [Component::Tls, Component::Parse, Component::Location] {
        assert_eq!(done.of(component), 0, "{component:?} {done:?}");
    }

    (0..64).for_each(|_| spin());
    assert_eq!(split(), done, "nothing is counted any more");
    rig.hub.order(&Control::SplitCpu(true));
    let again = split();
    assert!(
        again.on && again.total() < done.total(),
        "it begins anew: {again:?}"
    );
    assert_eq!(rig.end(Control::Stop), [Ended::Stopped]);
}

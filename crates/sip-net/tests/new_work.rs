//! The queues of new work: what waits there displaces nothing, and nothing overtakes what it belongs to.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use crate::rig;

use std::net::{SocketAddr, UdpSocket};
use std::time::Instant;

use rig::{PATIENCE, Report, Rig, settings, udp_client, wait_for_delivery};
use sip_core::affinity::worker_of;
use sip_core::id::WorkerId;
use sip_net::bind::{NewWorkError, WorkerSockets};
use sip_net::mailbox::Control;
use sip_net::settings::Settings;
use sip_net::worker::Ended;

/// A request as a phone sends it, to the user `number`.
fn request(method: &str, number: usize, route: &str) -> String {
    format!(
        "{method} sip:{number}@example.com SIP/2.0\r\nVia: SIP/2.0/UDP 192.0.2.1;branch=z9hG4bK{number}\r\n{route}\
         From: <sip:alice@example.com>;tag=1\r\nTo: <sip:bob@example.com>\r\nCall-ID: {number}@example.com\r\n\
         CSeq: 1 {method}\r\nContact: <sip:alice@192.0.2.1>\r\nContent-Length: 0\r\n\r\n"
    )
}

fn requests(method: &str, numbers: impl IntoIterator<Item = usize>) -> impl Iterator<Item = String> {
    numbers.into_iter().map(move |number| request(method, number, ""))
}

const ROUTE: &str = "Route: <sip:192.0.2.5;lr;tz=0123456789abcdef0123456789abcdef>\r\n";

/// A response, or a request in a dialog.
fn other(number: usize) -> String {
    match number % 4 {
        0 => request("BYE", number, ROUTE),
        1 => request("ACK", number, ""),
        2 => request("INVITE", number, ROUTE),
        _ => {
            let invite = format!("INVITE sip:{number}@example.com SIP/2.0");
            request("INVITE", number, "").replace(&invite, &format!("SIP/2.0 200 OK sip:{number}@"))
        }
    }
}

/// Whether new work has its own queues. The kernel may take no program only where it says so: before Linux 6.8, or
/// where none is permitted.
fn has_queues(sockets: &[WorkerSockets]) -> bool {
    let error = match sockets[0].new_work_error() {
        None => return true,
        Some(NewWorkError::Program(error)) => error,
        Some(error) => panic!("{error}"),
    };
    let most = std::fs::read_to_string("/proc/sys/net/core/optmem_max").map_or(0, |text| {
        let bytes: usize = text.trim().parse().unwrap();
        bytes
    });
    let is_small = error.raw_os_error() == Some(libc::ENOMEM) && most < 131_072;
    assert!(is_small || error.raw_os_error() == Some(libc::EPERM), "{error}");
    eprintln!("not tested: {error}");
    false
}

/// A worker that is held, with queues of new work. `None`: this kernel does not take the program.
fn held(settings: Settings) -> Option<Rig> {
    held_of(rig::config(1), settings)
}

fn held_of(config: sip_core::config::Config, settings: Settings) -> Option<Rig> {
    let mut is_tested = true;
    let wants = settings.new_work_buffer > 0;
    let rig = Rig::of(config, settings, |sockets| {
        is_tested = !wants || has_queues(sockets)
    });
    if !is_tested {
        rig.end(Control::Stop);
        return None;
    }
    // From now on it reads new work only if some has come.
    rig.settled();
    rig.hold();
    Some(rig)
}

fn send_to(client: &UdpSocket, to: SocketAddr, texts: impl IntoIterator<Item = String>) {
    for text in texts {
        client.send_to(text.as_bytes(), to).unwrap();
    }
    wait_for_delivery();
}

fn send(client: &UdpSocket, rig: &Rig, texts: impl IntoIterator<Item = String>) {
    send_to(client, rig.udp, texts);
}

/// What the engine gets, by the first word and the user in the start line, until it has got `count` messages.
fn got(rig: &Rig, count: usize) -> Vec<(String, usize)> {
    let one = |_| {
        let Report::Message { text, .. } = rig.next() else {
            panic!("a message")
        };
        let word = text.split(' ').next().unwrap().to_owned();
        let (_, user) = text.split_once(" sip:").unwrap();
        (word, user.split('@').next().unwrap().parse().unwrap())
    };
    (0..count).map(one).collect()
}

/// The first words, with how often each came in a row.
fn runs(got: &[(String, usize)]) -> Vec<(&str, usize)> {
    let of_same = got.chunk_by(|one, next| one.0 == next.0);
    of_same.map(|same| (same[0].0.as_str(), same.len())).collect()
}

#[test]
fn a_flood_of_new_work_displaces_nothing_else() {
    let small = Settings {
        new_work_buffer: 64 << 10,
        ..settings()
    };
    let Some(rig) = held(small) else { return };
    let client = udp_client();
    const OTHERS: usize = 200;
    const FLOOD: usize = 9_600;
    for number in 0..OTHERS {
        let numbers = (0..FLOOD / OTHERS / 2).map(|n| OTHERS + number * 100 + n);
        let flood = requests("INVITE", numbers.clone()).chain(requests("REGISTER", numbers));
        send(&client, &rig, flood.chain([other(number)]));
    }
    rig.release();
    // New work comes in between, and what does not is counted.
    let mut numbers = Vec::new();
    while numbers.len() < OTHERS {
        let (_, number) = got(&rig, 1).remove(0);
        if number < OTHERS {
            numbers.push(number);
        }
    }
    assert!(
        numbers.iter().copied().eq(0..OTHERS),
        "all, in order: {numbers:?}"
    );
    for (dropped, received) in [
        (
            rig.counter(1, |c| c.udp_calls_dropped),
            rig.counter(0, |c| c.udp_calls_read),
        ),
        (
            rig.counter(1, |c| c.udp_requests_dropped),
            rig.counter(0, |c| c.udp_requests_read),
        ),
    ] {
        let half = FLOOD as u64 / 2;
        assert!(dropped > half * 9 / 10, "{dropped} of {half} dropped");
        assert!(received > 0 && received + dropped <= half);
    }
    let taken = FLOOD as u64 - rig.counter(1, |c| c.udp_calls_dropped + c.udp_requests_dropped);
    let received = rig.counter(taken, |c| c.udp_calls_read + c.udp_requests_read);
    assert_eq!(received, taken);
    assert_eq!(rig.counter(0, |c| c.udp_kernel_drops), 0);
    rig.end(Control::Stop);
}

/// Calls come before registrations and the like, and what is no new work before both.
#[test]
fn new_work_waits_for_everything_else() {
    let small = Settings {
        udp_batch: 4,
        ..settings()
    };
    let Some(rig) = held(small) else { return };
    let client = udp_client();
    send(&client, &rig, requests("REGISTER", 0..8));
    send(&client, &rig, requests("INVITE", 8..16));
    send(
        &client,
        &rig,
        (16..116).map(|number| request("BYE", number, ROUTE)),
    );
    rig.release();
    let got = got(&rig, 116);
    assert_eq!(runs(&got), [("BYE", 100), ("INVITE", 8), ("REGISTER", 8)]);
    rig.end(Control::Stop);
}

/// No queue waits for ever: of 33 messages, one is a call, and of 33 others, one a request.
#[test]
fn each_queue_has_its_share() {
    let Some(rig) = held(settings()) else { return };
    let client = udp_client();
    send(&client, &rig, requests("REGISTER", 0..16));
    send(&client, &rig, requests("INVITE", 16..32));
    // Ten full batches: each new queue has its share after four of them.
    send(
        &client,
        &rig,
        (32..672).map(|number| request("BYE", number, ROUTE)),
    );
    rig.release();
    let got = got(&rig, 672);
    let share = [("BYE", 256), ("INVITE", 8), ("REGISTER", 8)];
    let expected = [share.as_slice(), &share, &[("BYE", 128)]].concat();
    assert_eq!(runs(&got), expected);
    rig.end(Control::Stop);
}

/// Everything else is that of all listeners.
#[test]
fn new_work_of_one_listener_waits_for_another_one() {
    let small = Settings {
        udp_batch: 4,
        ..settings()
    };
    let mut config = rig::config(1);
    config.listeners.push(config.listeners[0].clone());
    let Some(rig) = held_of(config, small) else { return };
    let (client, second) = (udp_client(), rig.tls);
    send_to(&client, second, requests("INVITE", 0..4));
    send(&client, &rig, (4..44).map(|number| request("BYE", number, ROUTE)));
    send_to(&client, second, [request("BYE", 44, ROUTE)]);
    rig.release();
    let got = got(&rig, 45);
    assert_eq!(runs(&got), [("BYE", 41), ("INVITE", 4)]);
    rig.end(Control::Stop);
}

/// Connections whose turn it was not, too.
#[test]
fn new_work_waits_for_connections() {
    let one_each = Settings {
        stream_messages_per_turn: 1,
        ..settings()
    };
    let Some(rig) = held(one_each) else { return };
    rig.release();
    let mut connections: Vec<_> = (0..4).map(|_| rig.connect()).collect();
    for (connection, number) in connections.iter_mut().zip(0..) {
        rig::write(connection, request("BYE", number, ROUTE).as_bytes());
        assert_eq!(got(&rig, 1), [("BYE".to_owned(), number)], "it is open");
    }
    rig.hold();
    let client = udp_client();
    send(&client, &rig, requests("INVITE", 10..14));
    for (connection, number) in connections.iter_mut().zip(4..) {
        rig::write(connection, request("BYE", number, ROUTE).as_bytes());
    }
    rig.release();
    let got = got(&rig, 8);
    assert_eq!(runs(&got), [("BYE", 4), ("INVITE", 4)]);
    rig.end(Control::Stop);
}

/// At a port of the configuration the program comes before the sockets, elsewhere after them.
#[test]
fn new_work_comes_to_its_queue_at_a_fixed_port() {
    for workers in [1, 2] {
        let mut config = rig::config(workers);
        let free = UdpSocket::bind(config.listeners[0].address).unwrap();
        config.listeners[0].address = free.local_addr().unwrap();
        drop(free);
        let mut is_tested = true;
        let rig = Rig::of(config, settings(), |sockets| is_tested = has_queues(sockets));
        if is_tested {
            let client = udp_client();
            send(&client, &rig, requests("INVITE", 0..20));
            send(&client, &rig, requests("BYE", 20..30));
            send(&client, &rig, requests("OPTIONS", 30..60));
            assert_eq!(got(&rig, 60).len(), 60);
            assert_eq!(rig.counter(20, |c| c.udp_calls_read), 20);
            assert_eq!(rig.counter(30, |c| c.udp_requests_read), 30);
        }
        rig.end(Control::Stop);
    }
}

#[test]
fn a_cancel_waits_for_the_invite_before_it() {
    let Some(rig) = held(settings()) else { return };
    let client = udp_client();
    send(&client, &rig, requests("INVITE", 0..200));
    let known = request("CANCEL", 201, "").replacen("example.com SIP", "example.com;known SIP", 1);
    let others = [request("CANCEL", 199, ""), request("BYE", 200, ROUTE), known];
    send(&client, &rig, others);
    rig.release();
    let got = got(&rig, 203);
    assert_eq!(got[..2], [("BYE".to_owned(), 200), ("CANCEL".to_owned(), 201)]);
    assert_eq!(got[202], ("CANCEL".to_owned(), 199));
    assert_eq!(rig.counter(1, |c| c.udp_cancels_held), 1);
    // Without new work it waits for nothing.
    send(&client, &rig, [request("CANCEL", 300, "")]);
    assert_eq!(self::got(&rig, 1), [("CANCEL".to_owned(), 300)]);
    rig.end(Control::Stop);
}

/// While there is much else, the time of a CANCEL that waits is bounded. (Here by no time at all.)
#[test]
fn a_cancel_waits_for_calls_that_are_not_read_for_a_time_only() {
    let impatient = Settings {
        udp_batch: 4,
        cancel_wait_ms: 0,
        ..settings()
    };
    let Some(rig) = held(impatient) else { return };
    let client = udp_client();
    send(&client, &rig, requests("INVITE", 0..4));
    send(&client, &rig, [request("CANCEL", 0, "")]);
    send(&client, &rig, (4..14).map(|number| request("BYE", number, ROUTE)));
    rig.release();
    let got = got(&rig, 15);
    assert_eq!(runs(&got), [("BYE", 3), ("CANCEL", 1), ("BYE", 7), ("INVITE", 4)]);
    rig.end(Control::Stop);
}

/// A full batch may have emptied the queue: no event tells that, and the CANCEL does not wait for one.
#[test]
fn a_cancel_waits_for_no_event() {
    let quiet = Settings {
        publish_interval_ms: 600_000,
        ..settings()
    };
    let batch = quiet.udp_batch;
    let Some(rig) = held(quiet) else { return };
    let client = udp_client();
    send(&client, &rig, requests("INVITE", 0..batch));
    send(&client, &rig, [request("CANCEL", 0, "")]);
    rig.release();
    let got = got(&rig, batch + 1);
    assert_eq!(got[batch], ("CANCEL".to_owned(), 0));
    rig.end(Control::Stop);
}

/// CANCELs that wait are bounded in number and bytes, and each in its length. Others are handled at once.
#[test]
fn many_cancels_do_not_wait() {
    let long = |number: usize, bytes: usize| {
        request("CANCEL", number, &format!("Subject: {}\r\n", "x".repeat(bytes)))
    };
    let short = |number: usize| format!("CANCEL sip:{number}@a SIP/2.0\r\n\r\n");
    let cases: [(Vec<String>, usize); 3] = [
        ((1_000..1_520).map(short).collect(), 512),
        (
            (10..80).map(|number| long(number, 2_000)).collect(),
            (128 << 10) / long(10, 2_000).len(),
        ),
        ((10..13).map(|number| long(number, 4_096)).collect(), 0),
    ];
    for (cancels, fit) in cases {
        let Some(rig) = held(settings()) else { return };
        let (client, count) = (udp_client(), cancels.len());
        send(&client, &rig, requests("INVITE", 0..10));
        send(&client, &rig, cancels);
        rig.release();
        let got = got(&rig, 10 + count);
        // So many that calls have their share meanwhile are in no order that could be foretold.
        if count < 256 {
            let expected = [("CANCEL", count - fit), ("INVITE", 10), ("CANCEL", fit)];
            let expected: Vec<_> = expected.into_iter().filter(|(_, count)| *count > 0).collect();
            assert_eq!(runs(&got), expected);
        }
        assert_eq!(rig.counter(fit as u64, |c| c.udp_cancels_held), fit as u64);
        rig.end(Control::Stop);
    }
}

/// What waits is handled before a worker that drains ends.
#[test]
fn a_worker_that_drains_handles_the_cancels_that_wait() {
    let Some(rig) = held(settings()) else { return };
    let client = udp_client();
    // The engine has work up to the turn in which the CANCEL comes.
    rig.release();
    rig.order("BUSY");
    rig.hold();
    send(&client, &rig, requests("INVITE", 0..200));
    send(&client, &rig, [request("CANCEL", 199, ""), "QUIET".to_owned()]);
    rig.hub.order(&Control::Drain { deadline_ms: 600_000 });
    rig.release();
    let mut words = Vec::new();
    while words.len() < 202 {
        if let Report::Message { text, .. } = rig.next() {
            words.push(text.split(' ').next().unwrap().to_owned());
        }
    }
    assert_eq!((&*words[0], &*words[201]), ("QUIET", "CANCEL"));
    assert_eq!(rig.end(Control::Publish), [Ended::Drained]);
}

#[test]
fn without_a_queue_of_its_own_new_work_keeps_its_place() {
    let one = Settings {
        new_work_buffer: 0,
        ..settings()
    };
    let Some(rig) = held(one) else { return };
    let client = udp_client();
    let methods = ["INVITE", "BYE", "INVITE", "CANCEL", "REGISTER"];
    let texts = methods.iter().zip(0..);
    send(
        &client,
        &rig,
        texts.map(|(method, number)| request(method, number, "")),
    );
    rig.release();
    let got = got(&rig, 5);
    assert!(
        got.iter().zip(0..).all(|(got, number)| got.1 == number),
        "{got:?}"
    );
    assert_eq!(rig.counter(0, |c| c.udp_calls_read + c.udp_requests_read), 0);
    rig.end(Control::Stop);
}

/// With several workers each new call comes to the queue of its worker.
#[test]
fn new_work_comes_to_the_worker_of_its_call() {
    let mut is_tested = true;
    let rig = Rig::looked_at(3, settings(), |sockets| is_tested = has_queues(sockets));
    if !is_tested {
        rig.end(Control::Stop);
        return;
    }
    let client = udp_client();
    for method in ["INVITE", "REGISTER"] {
        send(&client, &rig, requests(method, 0..90));
        let mut of_worker = [0; 3];
        for _ in 0..90 {
            let Report::Message { worker, text, .. } = rig.next() else {
                panic!("a message")
            };
            let user = text.split([':', '@']).nth(1).unwrap();
            let call_id = format!("{user}@example.com");
            assert_eq!(worker_of(call_id.as_bytes(), 3), WorkerId(worker));
            of_worker[usize::from(worker)] += 1;
        }
        assert!(of_worker.iter().all(|count| *count > 10), "{of_worker:?}");
    }
    assert_eq!(rig.counter(90, |c| c.udp_calls_read), 90);
    assert_eq!(rig.counter(90, |c| c.udp_requests_read), 90);
    assert_eq!(rig.counter(0, |c| c.handed_over), 0);
    rig.end(Control::Stop);
}

/// A CANCEL that came to another worker waits at that of its call as well.
#[test]
fn a_cancel_that_is_handed_over_waits_for_the_invite_before_it() {
    let mut is_tested = true;
    let rig = Rig::looked_at(2, settings(), |sockets| is_tested = has_queues(sockets));
    if !is_tested {
        rig.end(Control::Stop);
        return;
    }
    rig.settled();
    rig.hold_worker(1);
    let of_worker = |wanted: u16| {
        (0..).filter(move |number: &usize| {
            worker_of(format!("{number}@example.com").as_bytes(), 2) == WorkerId(wanted)
        })
    };
    let client = udp_client();
    send(&client, &rig, requests("INVITE", of_worker(1).take(100)));
    let stray = of_worker(0).next().unwrap();
    let cancel = request("CANCEL", stray, "").replacen("CANCEL sip:", "CANCEL of=1 sip:", 1);
    send(&client, &rig, [cancel]);
    let end = Instant::now() + PATIENCE;
    // It is held there, and as no call is, it is handed over in the same turn.
    while rig.published[0].get().net.udp_cancels_held == 0 {
        assert!(Instant::now() < end, "it is held");
        rig.hub.order(&Control::Publish);
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    rig.release();
    let got = got(&rig, 101);
    assert_eq!(runs(&got), [("INVITE", 100), ("CANCEL", 1)]);
    assert_eq!(rig.counter(2, |c| c.udp_cancels_held), 2, "once at each worker");
    rig.end(Control::Stop);
}

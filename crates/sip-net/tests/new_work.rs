//! The queue of new work: what waits there displaces nothing, and nothing overtakes what it belongs to.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use crate::rig;

use std::net::UdpSocket;

use rig::{Report, Rig, settings, udp_client, wait_for_delivery};
use sip_net::mailbox::Control;
use sip_net::settings::Settings;

/// A request as a phone sends it, to the user `number`.
fn request(method: &str, number: usize, route: &str) -> String {
    format!(
        "{method} sip:{number}@example.com SIP/2.0\r\nVia: SIP/2.0/UDP 192.0.2.1;branch=z9hG4bK{number}\r\n{route}\
         From: <sip:alice@example.com>;tag=1\r\nTo: <sip:bob@example.com>\r\nCall-ID: {number}@example.com\r\n\
         CSeq: 1 {method}\r\nContact: <sip:alice@192.0.2.1>\r\nContent-Length: 0\r\n\r\n"
    )
}

const ROUTE: &str = "Route: <sip:192.0.2.5;lr>\r\n";

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

/// A worker that is held, with a second queue. `None`: this kernel does not take the program.
fn held(settings: Settings) -> Option<Rig> {
    let mut has_queue = true;
    let rig = Rig::looked_at(1, settings, |sockets| {
        has_queue = sockets[0].new_work_error().is_none()
    });
    if !has_queue {
        rig.end(Control::Stop);
        return None;
    }
    // From now on it reads new work only if some has come.
    rig.settled();
    rig.hold();
    Some(rig)
}

fn send(client: &UdpSocket, rig: &Rig, texts: impl IntoIterator<Item = String>) {
    for text in texts {
        client.send_to(text.as_bytes(), rig.udp).unwrap();
    }
    wait_for_delivery();
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

#[test]
fn a_flood_of_new_work_displaces_nothing_else() {
    let small = Settings {
        new_work_buffer: 64 << 10,
        ..settings()
    };
    let Some(rig) = held(small) else { return };
    let client = udp_client();
    const OTHERS: usize = 400;
    const FLOOD: usize = 4_800;
    for number in 0..OTHERS {
        let flood = (0..FLOOD / OTHERS).map(|n| request("INVITE", OTHERS + number * 100 + n, ""));
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
    let dropped = rig.counter(1, |c| c.new_work_drops);
    assert!(dropped as usize > FLOOD / 2, "{dropped} of {FLOOD} dropped");
    let taken = FLOOD as u64 - dropped;
    assert_eq!(rig.counter(taken, |c| c.new_work_received), taken);
    assert_eq!(rig.counter(0, |c| c.udp_kernel_drops), 0);
    rig.end(Control::Stop);
}

#[test]
fn new_work_waits_for_everything_else_but_not_for_ever() {
    let small = Settings {
        udp_batch: 4,
        ..settings()
    };
    let Some(rig) = held(small) else { return };
    let client = udp_client();
    send(&client, &rig, (0..8).map(|number| request("INVITE", number, "")));
    send(
        &client,
        &rig,
        (8..108).map(|number| request("BYE", number, ROUTE)),
    );
    rig.release();
    let got = got(&rig, 108);
    let places: Vec<usize> = (0..got.len()).filter(|place| got[*place].0 == "INVITE").collect();
    // Turns begin with four BYEs each. A fifth turn in which all four slots were filled takes new work as well.
    assert_eq!(places, [20, 21, 22, 23, 44, 45, 46, 47], "{got:?}");
    rig.end(Control::Stop);
}

#[test]
fn a_cancel_waits_for_the_invite_before_it() {
    let Some(rig) = held(settings()) else { return };
    let client = udp_client();
    send(
        &client,
        &rig,
        (0..200).map(|number| request("INVITE", number, "")),
    );
    send(
        &client,
        &rig,
        [request("CANCEL", 199, ""), request("BYE", 200, ROUTE)],
    );
    rig.release();
    let got = got(&rig, 202);
    assert_eq!(got[0], ("BYE".to_owned(), 200));
    assert_eq!(got[201], ("CANCEL".to_owned(), 199));
    assert_eq!(rig.counter(1, |c| c.cancels_put_aside), 1);
    // Without new work it waits for nothing.
    send(&client, &rig, [request("CANCEL", 300, "")]);
    assert_eq!(self::got(&rig, 1), [("CANCEL".to_owned(), 300)]);
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
    send(
        &client,
        &rig,
        (0..batch).map(|number| request("INVITE", number, "")),
    );
    send(&client, &rig, [request("CANCEL", 0, "")]);
    rig.release();
    let got = got(&rig, batch + 1);
    assert_eq!(got[batch], ("CANCEL".to_owned(), 0));
    rig.end(Control::Stop);
}

/// CANCELs that wait are bounded: those beyond 64 KiB do not wait.
#[test]
fn many_cancels_do_not_wait() {
    let Some(rig) = held(settings()) else { return };
    let client = udp_client();
    let long = format!("Subject: {}\r\n", "x".repeat(1_000));
    let cancel = |number| request("CANCEL", number, &long);
    let fit = (64 << 10) / cancel(10).len();
    send(&client, &rig, (0..10).map(|number| request("INVITE", number, "")));
    send(&client, &rig, (10..80).map(cancel));
    rig.release();
    let got = got(&rig, 80);
    let first_invite = got.iter().position(|(word, _)| word == "INVITE").unwrap();
    assert_eq!(first_invite, 70 - fit, "{got:?}");
    assert_eq!(rig.counter(fit as u64, |c| c.cancels_put_aside), fit as u64);
    rig.end(Control::Stop);
}

#[test]
fn without_a_queue_of_its_own_new_work_keeps_its_place() {
    let one = Settings {
        new_work_buffer: 0,
        ..settings()
    };
    let Some(rig) = held(one) else { return };
    let client = udp_client();
    let methods = ["INVITE", "BYE", "INVITE", "CANCEL"];
    send(
        &client,
        &rig,
        methods
            .iter()
            .zip(0..)
            .map(|(method, number)| request(method, number, "")),
    );
    rig.release();
    let got = got(&rig, 4);
    assert!(
        got.iter().zip(0..).all(|(got, number)| got.1 == number),
        "{got:?}"
    );
    assert_eq!(rig.counter(0, |c| c.new_work_received), 0);
    rig.end(Control::Stop);
}

/// With several workers each new call comes to the queue of its worker, and a CANCEL waits there.
#[test]
fn new_work_comes_to_the_worker_of_its_call() {
    let mut has_queue = true;
    let rig = Rig::looked_at(3, settings(), |sockets| {
        has_queue = sockets[0].new_work_error().is_none()
    });
    if !has_queue {
        rig.end(Control::Stop);
        return;
    }
    let client = udp_client();
    send(&client, &rig, (0..90).map(|number| request("INVITE", number, "")));
    let mut of_worker = [0; 3];
    for _ in 0..90 {
        let Report::Message { worker, .. } = rig.next() else {
            panic!("a message")
        };
        of_worker[usize::from(worker)] += 1;
    }
    assert!(of_worker.iter().all(|count| *count > 10), "{of_worker:?}");
    assert_eq!(rig.counter(90, |c| c.new_work_received), 90);
    assert_eq!(rig.counter(0, |c| c.handed_over), 0);
    rig.end(Control::Stop);
}

//! One user, several phones: all at once, one after the other, and which answer the caller gets
//! (RFC 3261 §16.6, §16.7).

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use conformance::{Client, Config, Part, Phone, Scene, Server, Transport, in_time, over_udp_and_tcp, port};

over_udp_and_tcp!(
    all_ring_and_one_answers,
    phones_of_lower_q_ring_afterwards,
    the_best_of_several_refusals_goes_to_the_caller,
    a_6xx_ends_it_for_all,
    a_caller_who_gives_up_stops_all_phones,
    a_phone_that_does_not_answer_in_time_is_followed_by_the_next,
);

const NOW: Duration = Duration::ZERO;

/// A server, and phones of bob with their q.
fn scene_with(config: Config, transport: Transport, parts: &[(Part, &str)]) -> (Scene, Server, Vec<Phone>) {
    let scene = Scene::new();
    let server = Server::start(&scene, &config);
    let mut phones = Vec::new();
    for ((part, q), number) in parts.iter().zip(port::CALLEE..) {
        let phone = Phone::start(&scene, transport, number, part.clone());
        phone.register("bob", q);
        phones.push(phone);
    }
    (scene, server, phones)
}

fn caller(scene: &Scene, transport: Transport) -> Client {
    Client::new(scene, transport, port::CALLER, scene.at(port::SERVER))
}

/// Calls bob; the status of the final answer.
fn call(scene: &Scene, transport: Transport) -> u16 {
    let answers = caller(scene, transport).call("bob", "call");
    answers.last().map_or(0, conformance::Message::status)
}

fn all_ring_and_one_answers(transport: Transport) {
    let parts = [(Part::Ring, "1"), (Part::AnswerOnCue, "1"), (Part::Ring, "1.0")];
    let (scene, _server, phones) = scene_with(Config::new(), transport, &parts);
    let mut caller = caller(&scene, transport);
    caller.invite("bob", "call");
    // They ring at once: all of them before one answers.
    let mut ringing = BTreeSet::new();
    while ringing.len() < phones.len() {
        let answer = caller.receive();
        match answer.status() {
            100 => {}
            180 => assert!(ringing.insert(answer.header("to").to_owned()), "{answer:?}"),
            _ => panic!("{answer:?}, while {ringing:?} ring"),
        }
    }
    phones[1].cue();
    let answered = caller.receive();
    assert_eq!(answered.status(), 200, "{answered:?}");
    caller.acknowledge("bob", "call", &answered);
    for phone in [&phones[0], &phones[2]] {
        phone.wait_for("CANCEL");
        phone.wait_for("ACK");
        assert_eq!(phone.count("INVITE"), 1);
    }
    phones[1].wait_for("ACK");
    for phone in &phones {
        let line = phone.requests("INVITE").remove(0).message.first_line;
        assert_eq!(line, format!("INVITE {} SIP/2.0", phone.uri("bob")));
    }
    caller.in_dialog("BYE", 2, "call", &answered);
    assert_eq!(caller.final_response().status(), 200);
    assert_eq!((phones[1].count("BYE"), phones[0].count("BYE")), (1, 0));
    assert_eq!(phones[1].count("CANCEL"), 0);
}

fn phones_of_lower_q_ring_afterwards(transport: Transport) {
    let refuses = |ms| Part::Refuse(486, Duration::from_millis(ms));
    let parts = [
        (Part::Answer(NOW), "0.2"),
        (refuses(300), "0.9"),
        (refuses(100), "0.5"),
    ];
    let (scene, _server, phones) = scene_with(Config::new(), transport, &parts);
    assert_eq!(call(&scene, transport), 200);
    let at: Vec<_> = phones
        .iter()
        .map(|phone| phone.requests("INVITE").remove(0).at)
        .collect();
    assert!(at[2] - at[1] >= Duration::from_millis(290), "{:?}", at[2] - at[1]);
    assert!(at[0] - at[2] >= Duration::from_millis(90), "{:?}", at[0] - at[2]);
    for phone in &phones {
        phone.wait_for("ACK");
        assert_eq!((phone.count("INVITE"), phone.count("CANCEL")), (1, 0));
    }
}

fn the_best_of_several_refusals_goes_to_the_caller(transport: Transport) {
    for (first, second, best) in [
        (486, 408, 486),
        (408, 486, 486),
        (486, 500, 486),
        (503, 404, 404),
        (503, 503, 500),
    ] {
        let after = Duration::from_millis(50);
        let parts = [
            (Part::Refuse(first, NOW), "1"),
            (Part::Refuse(second, after), "1"),
        ];
        let (scene, _server, phones) = scene_with(Config::new(), transport, &parts);
        assert_eq!(call(&scene, transport), best, "of {first} and {second}");
        for phone in &phones {
            phone.wait_for("ACK");
        }
    }
}

fn a_6xx_ends_it_for_all(transport: Transport) {
    let declines = Part::Refuse(603, Duration::from_millis(200));
    let parts = [(Part::Ring, "1"), (declines, "1"), (Part::Answer(NOW), "0.5")];
    let (scene, _server, phones) = scene_with(Config::new(), transport, &parts);
    assert_eq!(call(&scene, transport), 603);
    phones[0].wait_for("CANCEL");
    assert_eq!(phones[2].count("INVITE"), 0, "nobody else is asked");
}

fn a_caller_who_gives_up_stops_all_phones(transport: Transport) {
    let parts = [(Part::Ring, "1"), (Part::Ring, "1"), (Part::Answer(NOW), "0.5")];
    let (scene, _server, phones) = scene_with(Config::new(), transport, &parts);
    let mut caller = caller(&scene, transport);
    caller.invite("bob", "call");
    phones[0].wait_for("INVITE");
    phones[1].wait_for("INVITE");
    // RFC 3261 §9.1: not before something came.
    while caller.receive().status() < 180 {}
    caller.cancel("bob", "call");
    let mut finals = Vec::new();
    while finals.len() < 2 {
        let answer = caller.final_response();
        finals.push((answer.header("cseq").to_owned(), answer.status()));
        if answer.header("cseq") == "1 INVITE" {
            caller.acknowledge("bob", "call", &answer);
        }
    }
    finals.sort();
    assert_eq!(
        finals,
        [("1 CANCEL".to_owned(), 200), ("1 INVITE".to_owned(), 487)]
    );
    for phone in &phones[..2] {
        phone.wait_for("CANCEL");
        phone.wait_for("ACK");
    }
    assert_eq!(phones[2].count("INVITE"), 0, "nobody else is asked");
}

/// Timer C (RFC 3261 §16.8), shortened: the phone that rings is cancelled, the next gets its turn.
fn a_phone_that_does_not_answer_in_time_is_followed_by_the_next(transport: Transport) {
    const TIMER_C: Duration = Duration::from_secs(2);
    in_time(|| {
        let parts = [(Part::Ring, "1"), (Part::Answer(NOW), "0.5")];
        // For the phone that answers it is the time to do so.
        let config = Config::new().table("[timers]", &format!("c_s = {}", TIMER_C.as_secs()));
        let (scene, _server, phones) = scene_with(config, transport, &parts);
        let began = Instant::now();
        let status = call(&scene, transport);
        // Its time began when that of the first was over, at the earliest.
        if status != 200 && began.elapsed() >= 2 * TIMER_C {
            return None;
        }
        assert_eq!(status, 200);
        assert!(phones[0].wait_for("CANCEL").at - began >= TIMER_C);
        assert_eq!(phones[1].count("INVITE"), 1);
        Some(())
    });
}

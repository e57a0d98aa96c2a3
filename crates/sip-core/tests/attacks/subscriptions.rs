//! Marks of subscriptions. A NOTIFY may make its dialog, so it carries the mark of the side that receives it.

use sip_core::config::StateMode;
use sip_core::transport::Transport;

use crate::common::{Bench, CALLER, Sent, all_transports, config, one, over, request, response};
use crate::forks::{phone, phone_flow, register};
use crate::marks::{PHONE, exchanged};

/// The route set of the side that received this request.
fn as_called(request: &Sent) -> String {
    let values = request.headers("Record-Route").into_iter();
    values.map(|value| format!("Route: {value}\n")).collect()
}

/// The callee of a subscription may have both marks, since a NOTIFY carries the caller's. Neither is good for calls.
#[test]
fn the_marks_of_a_subscription_make_no_calls() {
    let mut config = config();
    config.routes.clear();
    let mut bench = Bench::new(&config);
    register(&bench, "bob@example.com", &[phone(1)]);
    let subscribe = request("SUBSCRIBE", "sip:bob@example.com", "a1", "Event: presence\n");
    let sent = bench.udp(CALLER, &subscribe);
    let arrived = sent.iter().find(|s| s.address() == PHONE).expect("it goes on");
    let of_callee = as_called(arrived);
    let notify = exchanged(
        &request("NOTIFY", &format!("sip:me@{PHONE}"), "n1", &of_callee)
            .replace("To: <sip:bob@example.com>", "To: <sip:bob@example.com>;tag=t1"),
    );
    let sent = bench.receive(phone_flow(1), &notify);
    let back = sent
        .iter()
        .find(|s| s.first_line().starts_with("NOTIFY"))
        .expect("it goes on");
    let of_caller = as_called(back);
    assert!(of_caller.contains(";tz=") && of_caller != of_callee);
    for (route, is_caller) in [(&of_caller, true), (&of_callee, false)] {
        for (number, method) in ["INVITE", "MESSAGE", "REFER", "KDMQ"].into_iter().enumerate() {
            let text = request(
                method,
                "sip:x@203.0.113.9",
                &format!("m{is_caller}{number}"),
                route,
            )
            .replace("To: <sip:bob@example.com>", "To: <sip:bob@example.com>;tag=t1");
            let text = if is_caller { text } else { exchanged(&text) };
            let sent = bench.receive(phone_flow(1), &text);
            let went = sent.iter().any(|s| s.address().starts_with("203.0.113.9"));
            assert!(!went, "{method}, {is_caller}: {sent:?}");
        }
    }
}

/// RFC 6665 §4.4.1: a NOTIFY before the response to its SUBSCRIBE, or of a second fork, makes the
/// dialog.
#[test]
fn a_notify_makes_its_dialog() {
    const CONTACT: &str = "sip:x7@df7jal23ls0d.invalid;transport=ws";
    for state in [StateMode::Stateless, StateMode::Transaction] {
        let mut config = all_transports();
        config.routes.clear();
        config.state = state;
        let mut bench = Bench::new(&config);
        let browser = over(Transport::Wss, "192.0.2.30:40000", 4);
        let contact = format!("Contact: <{CONTACT}>\n");
        bench.receive(browser, &request("REGISTER", "sip:example.com", "r1", &contact));
        let subscriber = over(Transport::Ws, "192.0.2.33:40001", 5);
        let own = "sip:y8@aaaa.invalid;transport=ws";
        let subscribe = request(
            "SUBSCRIBE",
            "sip:bob@example.com",
            "a1",
            &format!("Event: presence\nContact: <{own}>\n"),
        );
        let subscribe = subscribe.replace("UDP 192.0.2.10:5060", "WS aaaa.invalid");
        let sent = bench.receive(subscriber, &subscribe);
        let arrived = sent.iter().find(|s| s.to == browser).expect("it goes on");
        let route = as_called(arrived);
        for tag in ["n1", "n2"] {
            let notify = request(
                "NOTIFY",
                own,
                &format!("n{tag}"),
                &format!("{route}Event: presence\n{contact}"),
            )
            .replace("UDP 192.0.2.10:5060", "WSS df7jal23ls0d.invalid")
            .replace(
                "From: <sip:alice@example.com>;tag=f1",
                &format!("From: <sip:bob@example.com>;tag={tag}"),
            )
            .replace("To: <sip:bob@example.com>", "To: <sip:alice@example.com>;tag=f1");
            let sent = bench.receive(browser, &notify);
            let notify = sent.iter().find(|s| s.to == subscriber).expect("it goes on");
            // The mark in it is the subscriber's, and must not go back to the notifier.
            let answer = response(notify, "200 OK", "");
            assert!(answer.contains(";tz="));
            let answered = one(bench.receive(subscriber, &answer));
            assert_eq!(answered.to.conn, browser.conn);
            assert!(!answered.text.contains(";tz="), "{}", answered.text);
            let back = as_called(notify);
            // The subscriber takes its route set from the NOTIFY.
            for (to_tag, passes) in [(tag, true), ("other", false)] {
                let refresh = request(
                    "SUBSCRIBE",
                    CONTACT,
                    &format!("s{tag}{to_tag}"),
                    &format!("{back}Event: presence\n"),
                )
                .replace("UDP 192.0.2.10:5060", "WS aaaa.invalid")
                .replace(
                    "To: <sip:bob@example.com>",
                    &format!("To: <sip:bob@example.com>;tag={to_tag}"),
                );
                let sent = bench.receive(subscriber, &refresh);
                assert_eq!(
                    sent.iter().any(|s| s.to == browser),
                    passes,
                    "{state:?} {tag} {to_tag}: {sent:?}"
                );
            }
        }
    }
}

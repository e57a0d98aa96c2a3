//! Requests that are too long for a datagram leave by TCP (RFC 3261 §18.1.1).

use crate::common;

use common::*;
use sip_core::config::{Action, Config, Relay, RelayTarget, StateMode};
use sip_core::transport::Transport;

const BOB: &str = "sip:bob@example.com";

fn with(state: StateMode) -> Config {
    Config { state, ..config() }
}

fn long(method: &str, branch: &str) -> String {
    request(method, BOB, branch, &format!("Subject: {}\n", "x".repeat(1_200)))
}

/// The request of `sent`; responses of ours left out.
#[track_caller]
fn forwarded(sent: Vec<Sent>) -> Sent {
    let mut requests = sent
        .into_iter()
        .filter(|s| !s.first_line().starts_with("SIP/2.0"));
    let first = requests.next().expect("a request");
    assert!(requests.next().is_none());
    first
}

#[test]
fn a_long_request_leaves_by_tcp_and_says_so() {
    let short = forwarded(Bench::new(&config()).udp(CALLER, &request("INVITE", BOB, "a1", "")));
    assert_eq!(short.to.transport, Transport::Udp);
    let mut b = Bench::new(&config());
    let sent = forwarded(b.udp(CALLER, &long("INVITE", "a1")));
    assert_eq!(
        (sent.to.transport, sent.address().as_str()),
        (Transport::Tcp, CALLEE)
    );
    assert_eq!(sent.to.listener.0, 1);
    let via = sent.headers("Via");
    assert!(via[0].starts_with("SIP/2.0/TCP 192.0.2.1:5060;branch=z9hG4bK") && !via[0].contains("rport"));
    // RFC 5658: the transport changes on the way.
    let marks = sent.headers("Record-Route");
    assert!(
        marks.len() == 2 && marks[0].contains(";transport=tcp;lr;r2=on;") && !marks[1].contains("transport"),
        "{marks:?}"
    );
    assert_eq!((b.counters().switched_to_tcp, b.counters().switched_back), (1, 0));
    // No retransmission over a stream, and responses find the branch.
    assert!(b.pass(3_000).is_empty());
    let flow = tcp_flow(CALLEE, 5);
    let ringing = one(b.receive(flow, &response(&sent, "180 Ringing", "")));
    assert_eq!(
        (ringing.address().as_str(), ringing.to.transport),
        (CALLER, Transport::Udp)
    );
    // CANCEL and ACK follow their INVITE.
    let out = b.udp(CALLER, &request("CANCEL", BOB, "a1", ""));
    let cancel = forwarded(out);
    assert_eq!(
        (cancel.to.transport, cancel.header("Via")),
        (Transport::Tcp, via[0])
    );
    let out = b.receive(flow, &response(&sent, "487 Request Terminated", ""));
    let ack = forwarded(out);
    assert!(ack.first_line().starts_with("ACK ") && ack.to.transport == Transport::Tcp);
}

#[test]
fn the_limit_is_the_length_as_it_leaves() {
    for state in [StateMode::Stateless, StateMode::Transaction] {
        let filled =
            |count: usize| request("MESSAGE", BOB, "a1", &format!("Subject: {}\n", "x".repeat(count)));
        let sent = |config: &Config, count| forwarded(Bench::new(config).udp(CALLER, &filled(count)));
        let grown = sent(&with(state), 10).text.len() - 10;
        let exact = sent(&with(state), 1300 - grown);
        assert_eq!((exact.text.len(), exact.to.transport), (1300, Transport::Udp));
        assert_eq!(sent(&with(state), 1301 - grown).to.transport, Transport::Tcp);
        for (mtu, transport) in [
            (0, Transport::Udp),
            (3_000, Transport::Udp),
            (500, Transport::Tcp),
        ] {
            let mut config = with(state);
            config.limits.udp_mtu = mtu;
            assert_eq!(sent(&config, 1_200).to.transport, transport, "{mtu}");
        }
    }
}

#[test]
fn a_uri_that_names_udp_gets_udp_and_without_a_listener_nothing_changes() {
    for state in [StateMode::Stateless, StateMode::Transaction] {
        let mut named = with(state);
        named.routes = vec![relay("sip:192.0.2.20:5060;transport=udp")];
        let mut only_udp = with(state);
        only_udp.listeners.pop();
        for config in [named, only_udp] {
            let sent = forwarded(Bench::new(&config).udp(CALLER, &long("MESSAGE", "a1")));
            assert_eq!(
                (sent.to.transport, sent.address().as_str()),
                (Transport::Udp, CALLEE)
            );
            assert!(sent.header("Via").starts_with("SIP/2.0/UDP "));
        }
    }
}

#[test]
fn the_flow_of_a_registration_is_kept() {
    let mut config = config();
    config.routes.clear();
    let mut b = Bench::new(&config);
    let register = request(
        "REGISTER",
        "sip:example.com",
        "r1",
        "Contact: <sip:bob@10.0.0.9:5062>\n",
    )
    .replace("From: <sip:alice@", "From: <sip:bob@");
    assert_eq!(b.udp(CALLEE, &register)[0].first_line(), "SIP/2.0 200 OK");
    let sent = forwarded(b.udp(CALLER, &long("INVITE", "a1")));
    assert_eq!(
        (sent.to.transport, sent.address().as_str()),
        (Transport::Udp, CALLEE)
    );
}

#[test]
fn where_tcp_is_refused_it_goes_by_udp_in_the_same_transaction() {
    for method in ["INVITE", "MESSAGE"] {
        let mut b = Bench::new(&config());
        let tcp = forwarded(b.udp(CALLER, &long(method, "a1")));
        let udp = one(b.undelivered(&tcp));
        assert_eq!(
            (udp.to.transport, udp.address().as_str()),
            (Transport::Udp, CALLEE)
        );
        assert_eq!(udp.to.listener.0, 0);
        let branch = |sent: &Sent| sent.header("Via").split([';', '=']).nth(2).map(String::from);
        assert_eq!(branch(&udp), branch(&tcp));
        assert!(udp.header("Via").starts_with("SIP/2.0/UDP 192.0.2.1:5060;"));
        assert!(udp.header("Via").ends_with(";rport"));
        if method == "INVITE" {
            let marks = udp.headers("Record-Route");
            assert!(marks.len() == 1 && !marks[0].contains("transport"), "{marks:?}");
        }
        let c = b.counters();
        assert_eq!(
            (c.switched_back, c.transactions_unreachable, c.failovers),
            (1, 0, 0)
        );
        assert!(b.endpoint.poll_event().is_none());
        // A late word of the connection harms nothing; timers are those of UDP.
        assert!(b.undelivered(&tcp).is_empty());
        let again = one(b.pass(600));
        assert_eq!((&again.text, again.to), (&udp.text, udp.to));
        let out = one(b.udp(CALLEE, &response(&udp, "200 OK", "")));
        assert_eq!(lines(&[out]), [format!("{CALLER} SIP/2.0 200 OK")]);
        assert_eq!(b.counters().transactions_unreachable, 0);
        b.pass(64_000);
        b.assert_idle();
    }
}

#[test]
fn what_was_cancelled_is_not_sent_again() {
    let mut b = Bench::new(&config());
    let tcp = forwarded(b.udp(CALLER, &long("INVITE", "a1")));
    let ok = one(b.udp(CALLER, &request("CANCEL", BOB, "a1", "")));
    assert_eq!(ok.first_line(), "SIP/2.0 200 OK");
    let out = one(b.undelivered(&tcp));
    assert_eq!(out.first_line(), "SIP/2.0 487 Request Terminated");
    assert_eq!(b.counters().switched_back, 0);
}

#[test]
fn what_udp_cannot_deliver_either_has_failed() {
    let mut b = Bench::new(&config());
    let tcp = forwarded(b.udp(CALLER, &long("MESSAGE", "a1")));
    let udp = one(b.undelivered(&tcp));
    let out = one(b.undelivered(&udp));
    assert_eq!(out.first_line(), "SIP/2.0 500 Server Internal Error");
    assert_eq!(b.counters().transactions_unreachable, 1);
}

#[test]
fn what_was_heard_of_is_not_sent_twice() {
    let mut b = Bench::new(&config());
    let tcp = forwarded(b.udp(CALLER, &long("INVITE", "a1")));
    let _ = b.receive(tcp_flow(CALLEE, 5), &response(&tcp, "180 Ringing", ""));
    let out = b.undelivered(&tcp);
    assert!(
        out.iter().all(|s| s.first_line().starts_with("SIP/2.0")),
        "{:?}",
        lines(&out)
    );
    assert_eq!(b.counters().switched_back, 0);
}

#[test]
fn without_state_the_record_route_goes_back_too() {
    let mut b = Bench::new(&with(StateMode::Stateless));
    let tcp = one(b.udp(CALLER, &long("SUBSCRIBE", "a1")));
    assert_eq!(tcp.headers("Record-Route").len(), 2);
    let udp = one(b.undelivered(&tcp));
    let marks = udp.headers("Record-Route");
    assert!(marks.len() == 1 && !marks[0].contains("transport"), "{marks:?}");
}

/// What makes the caller's mark goes with the branch, which another transport changes.
#[test]
fn without_state_the_callers_mark_is_good_by_either_transport() {
    for back_by_udp in [false, true] {
        let mut b = Bench::new(&with(StateMode::Stateless));
        let tcp = one(b.udp(CALLER, &long("SUBSCRIBE", "a1")));
        let (sent, flow) = match back_by_udp {
            true => (one(b.undelivered(&tcp)), udp_flow(CALLEE)),
            false => (tcp, tcp_flow(CALLEE, 5)),
        };
        let route = route_of_caller(&mut b, flow, &sent).join(", ");
        let again = request(
            "SUBSCRIBE",
            "sip:bob@203.0.113.9",
            "a2",
            &format!("Route: {route}\n"),
        )
        .replace("To: <sip:bob@example.com>", "To: <sip:bob@example.com>;tag=t1");
        assert_eq!(one(b.udp(CALLER, &again)).address(), "203.0.113.9:5060");
    }
}

#[test]
fn without_state_copies_take_the_same_way_and_an_invite_stays() {
    let mut b = Bench::new(&with(StateMode::Stateless));
    // Its CANCEL and the ACK to its failure could not follow.
    for method in ["INVITE", "ACK", "CANCEL"] {
        let sent = one(b.udp(CALLER, &long(method, "a1")));
        assert_eq!(sent.to.transport, Transport::Udp, "{method}");
    }
    let sent = one(b.udp(CALLER, &long("MESSAGE", "a2")));
    assert_eq!(sent.to.transport, Transport::Tcp);
    assert_eq!(one(b.udp(CALLER, &long("MESSAGE", "a2"))), sent);
    assert!(sent.header("Via").ends_with(";tz=0"), "{}", sent.header("Via"));
    let ok = response(&sent, "200 OK", "");
    assert_eq!(one(b.receive(tcp_flow(CALLEE, 3), &ok)).to, udp_flow(CALLER));
    // Refused: by UDP, and the response finds its way all the same.
    let udp = one(b.undelivered(&sent));
    assert_eq!(
        (udp.to.transport, udp.address().as_str()),
        (Transport::Udp, CALLEE)
    );
    assert_eq!(
        one(b.udp(CALLEE, &response(&udp, "200 OK", ""))).to,
        udp_flow(CALLER)
    );
    assert!(b.undelivered(&udp).is_empty());
}

/// Everything goes where its Request-URI says.
fn by_request_uri(state: StateMode) -> Config {
    let mut config = with(state);
    config.routes[0].action = Action::Relay(Relay::to(RelayTarget::RequestUri));
    config
}

/// How a long request to this port of the callee leaves.
#[track_caller]
fn to_port(b: &mut Bench, port: u32, branch: &str) -> Sent {
    let text = long("MESSAGE", branch).replace(BOB, &format!("sip:bob@192.0.2.20:{port}"));
    let sent = forwarded(b.udp(CALLER, &text));
    assert_eq!(sent.address(), format!("192.0.2.20:{port}"));
    sent
}

const BOTH: [StateMode; 2] = [StateMode::Stateless, StateMode::Transaction];

/// A firewall that swallows SYNs costs the time-out of one connection, not that of each request.
#[test]
fn where_tcp_failed_the_next_goes_by_udp_at_once() {
    for state in BOTH {
        let mut b = Bench::new(&by_request_uri(state));
        let tcp = to_port(&mut b, 5060, "a1");
        assert_eq!(tcp.to.transport, Transport::Tcp);
        let back = one(b.undelivered(&tcp));
        let sent = to_port(&mut b, 5060, "a2");
        assert_eq!((sent.to, sent.to.transport), (back.to, Transport::Udp));
        assert!(sent.header("Via").starts_with("SIP/2.0/UDP 192.0.2.1:5060;"));
        let ok = one(b.udp(CALLEE, &response(&sent, "200 OK", "")));
        assert_eq!(lines(&[ok]), [format!("{CALLER} SIP/2.0 200 OK")]);
        let c = b.counters();
        assert_eq!((c.switched_to_tcp, c.switched_back, c.kept_on_udp), (1, 1, 1));
        // Another port is another matter, and so is what is short.
        assert_eq!(to_port(&mut b, 5070, "a3").to.transport, Transport::Tcp);
        b.udp(CALLER, &request("MESSAGE", BOB, "a4", ""));
        assert_eq!(b.counters().kept_on_udp, 1);
        // Another worker has to learn it for itself.
        let mut other = Bench::new(&by_request_uri(state));
        assert_eq!(to_port(&mut other, 5060, "a5").to.transport, Transport::Tcp);
    }
}

/// Without state no transaction absorbs copies: whichever way they go, they are known as such.
#[test]
fn copies_that_go_by_udp_at_once_are_copies() {
    let mut b = Bench::new(&with(StateMode::Stateless));
    let tcp = one(b.udp(CALLER, &long("SUBSCRIBE", "a1")));
    let udp = one(b.undelivered(&tcp));
    assert_eq!(one(b.udp(CALLER, &long("SUBSCRIBE", "a1"))), udp);
    assert_eq!(b.counters().kept_on_udp, 1);
    // What is refused by UDP as well has failed.
    assert!(b.undelivered(&udp).is_empty());
}

#[test]
fn after_five_minutes_tcp_is_tried_again() {
    for state in BOTH {
        let mut b = Bench::new(&by_request_uri(state));
        let tcp = to_port(&mut b, 5060, "a1");
        b.undelivered(&tcp);
        b.pass(299_999);
        assert_eq!(to_port(&mut b, 5060, "a2").to.transport, Transport::Udp);
        // What went by UDP proves nothing either way.
        b.pass(1);
        let tcp = to_port(&mut b, 5060, "a3");
        assert_eq!(tcp.to.transport, Transport::Tcp);
        b.undelivered(&tcp);
        b.pass(200_000);
        assert_eq!(to_port(&mut b, 5060, "a4").to.transport, Transport::Udp);
    }
}

#[test]
fn an_answer_by_tcp_ends_what_is_remembered() {
    for state in BOTH {
        let mut b = Bench::new(&by_request_uri(state));
        let sent: Vec<Sent> = ["a1", "a2", "a3"].map(|a| to_port(&mut b, 5060, a)).into();
        b.undelivered(&sent[0]);
        // Neither what comes by UDP nor what comes by a connection that they opened.
        b.udp(CALLEE, &response(&sent[1], "200 OK", ""));
        let theirs = tcp_flow("192.0.2.20:40000", 5);
        b.receive(theirs, &response(&sent[2], "100 Trying", ""));
        assert_eq!(
            to_port(&mut b, 5060, "a4").to.transport,
            Transport::Udp,
            "{state:?}"
        );
        // Nor a stranger's word.
        let forged = response(&sent[2], "200 OK", "").replace("z9hG4bK", "z9hG4bKx");
        b.receive(tcp_flow(CALLEE, 6), &forged);
        assert_eq!(
            to_port(&mut b, 5060, "a5").to.transport,
            Transport::Udp,
            "{state:?}"
        );
        b.receive(tcp_flow(CALLEE, 6), &response(&sent[2], "200 OK", ""));
        assert_eq!(
            to_port(&mut b, 5060, "a6").to.transport,
            Transport::Tcp,
            "{state:?}"
        );
    }
}

/// What was cancelled is not sent again, but TCP has failed there all the same.
#[test]
fn what_was_cancelled_is_remembered_too() {
    let mut b = Bench::new(&config());
    let tcp = forwarded(b.udp(CALLER, &long("INVITE", "a1")));
    b.udp(CALLER, &request("CANCEL", BOB, "a1", ""));
    b.undelivered(&tcp);
    assert_eq!(
        forwarded(b.udp(CALLER, &long("INVITE", "a2"))).to.transport,
        Transport::Udp
    );
}

#[test]
fn so_many_addresses_are_remembered_and_no_more() {
    let mut b = Bench::new(&by_request_uri(StateMode::Stateless));
    for port in 0..256 {
        let tcp = to_port(&mut b, 6000 + port, "a1");
        b.undelivered(&tcp);
    }
    let tcp = to_port(&mut b, 7000, "a1");
    b.undelivered(&tcp);
    let of = |b: &mut Bench, port| to_port(b, port, "a3").to.transport;
    assert_eq!(of(&mut b, 6000), Transport::Tcp, "the oldest has left");
    for port in [6001, 6255, 7000] {
        assert_eq!(of(&mut b, port), Transport::Udp, "{port}");
    }
}

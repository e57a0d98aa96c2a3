//! Requests find back by flows (RFC 5626 §5.2, §5.3; RFC 7118 §5): tokens in Record-Route, registrations
//! that are flows, and what is said where a flow has gone.

use crate::common;

use common::*;
use sip_core::config::{Config, StateMode};
use sip_core::id::ConnId;
use sip_core::shared::SharedState;
use sip_core::transport::{Flow, Proof, Transport};

const BROWSER: &str = "192.0.2.30:40000";
const INVALID: &str = "sip:x7@df7jal23ls0d.invalid;transport=ws";

fn location(state: StateMode) -> Config {
    let mut config = all_transports();
    config.routes.clear();
    config.state = state;
    config
}

fn browser(slot: u32) -> Flow {
    over(Transport::Wss, BROWSER, slot)
}

/// bob registers by this flow.
#[track_caller]
fn register(b: &mut Bench, flow: Flow, contact: &str) {
    let register = registration("r1", contact);
    assert_eq!(b.receive(flow, &register)[0].first_line(), "SIP/2.0 200 OK");
}

fn registration(branch: &str, contact: &str) -> String {
    let contact = format!("Contact: {contact}\n");
    request("REGISTER", "sip:example.com", branch, &contact).replace("From: <sip:alice@", "From: <sip:bob@")
}

/// The Contact of one flow of bob's instance.
fn contact_of(reg_id: u32) -> String {
    format!("<{INVALID}>;reg-id={reg_id};+sip.instance=\"<urn:uuid:1>\"")
}

/// alice calls bob; what is sent but 100.
fn call(b: &mut Bench, branch: &str) -> Vec<Sent> {
    without_100(b.udp(CALLER, &request("INVITE", "sip:bob@example.com", branch, "")))
}

/// A call from UDP to a browser and back: nothing of it asks name service.
#[test]
fn a_browser_is_reached_by_its_flow_all_through_the_dialog() {
    for state in [StateMode::Stateless, StateMode::Transaction] {
        let mut b = Bench::new(&location(state));
        register(&mut b, browser(4), &format!("<{INVALID}>"));
        let invite = one(call(&mut b, "a1"));
        assert_eq!((invite.to, invite.pinned), (browser(4), true));
        assert!(
            invite
                .header("Via")
                .starts_with("SIP/2.0/WSS 192.0.2.1:5067;branch=")
        );
        let marks = invite.headers("Record-Route");
        assert_eq!(marks.len(), 2);
        assert!(
            marks[0].contains("@192.0.2.1:5067;transport=ws;lr;r2=on;tz="),
            "{marks:?}"
        );
        assert!(!marks[1].contains('@'), "{marks:?}");
        let back = route_of_caller(&mut b, browser(4), &invite);
        for method in ["ACK", "INFO", "BYE"] {
            let text = in_dialog(method, INVALID, true, &back);
            let sent = one(without_100(b.udp(CALLER, &text)));
            assert_eq!((sent.to, sent.pinned), (browser(4), true), "{method}");
            assert!(sent.first_line().starts_with(&format!("{method} {INVALID} ")));
            assert!(sent.headers("Route").is_empty());
        }
        // The other way: by the contact of a user agent that has an address.
        let text = in_dialog("BYE", "sip:alice@192.0.2.10", false, &marks);
        let sent = one(without_100(b.receive(browser(4), &text)));
        assert_eq!((sent.to, sent.pinned), (udp_flow(CALLER), false));
        b.no_query();
    }
}

/// Both sides are browsers on the same listener: each finds the other's token behind its own.
#[test]
fn two_browsers_on_one_listener() {
    let mut b = Bench::new(&location(StateMode::Transaction));
    register(&mut b, browser(4), &format!("<{INVALID}>"));
    let caller = over(Transport::Wss, "192.0.2.31:40001", 5);
    let own = "sip:y8@aaaa.invalid;transport=ws";
    let text = request(
        "INVITE",
        "sip:bob@example.com",
        "a1",
        &format!("Contact: <{own}>\n"),
    )
    .replace("UDP 192.0.2.10:5060", "WSS aaaa.invalid");
    let invite = one(without_100(b.receive(caller, &text)));
    let marks = invite.headers("Record-Route");
    assert!(
        marks.len() == 2
            && marks
                .iter()
                .all(|m| m.contains("@192.0.2.1:5067;transport=ws;lr;")),
        "{marks:?}"
    );
    let back = route_of_caller(&mut b, browser(4), &invite);
    let bye = in_dialog("BYE", INVALID, true, &back);
    assert_eq!(one(without_100(b.receive(caller, &bye))).to, browser(4));
    let bye = in_dialog("INFO", own, false, &marks);
    assert_eq!(one(without_100(b.receive(browser(4), &bye))).to, caller);
    // From another connection of the same caller as well.
    let info = in_dialog("MESSAGE", INVALID, true, &back);
    assert_eq!(
        one(without_100(
            b.receive(over(Transport::Wss, "192.0.2.31:40009", 9), &info)
        ))
        .to,
        browser(4)
    );
}

/// §5.3.1: "430 (Flow Failed)" where the flow has gone, 403 where the token is none.
#[test]
fn tokens_of_flows_that_have_gone_and_forged_ones() {
    let mut b = Bench::new(&location(StateMode::Transaction));
    register(&mut b, browser(4), &format!("<{INVALID}>"));
    let invite = one(call(&mut b, "a1"));
    let back = route_of_caller(&mut b, browser(4), &invite);
    let marks: Vec<&str> = back.iter().rev().map(String::as_str).collect();
    let info = one(without_100(
        b.udp(CALLER, &in_dialog("INFO", INVALID, true, &back)),
    ));
    assert_eq!(one(b.undelivered(&info)).first_line(), "SIP/2.0 430 Flow Failed");
    // Anything else than what we wrote.
    let at = marks[0].find('@').unwrap();
    let mut bytes = marks[0].as_bytes().to_vec();
    bytes[10] = if bytes[10] == b'A' { b'B' } else { b'A' };
    let changed = String::from_utf8(bytes).unwrap();
    let none = format!("<sip:bob{}", &marks[0][at..]);
    for forged in [&changed, &none] {
        let out = one(b.udp(CALLER, &in_dialog("MESSAGE", INVALID, true, &[marks[1], forged])));
        assert_eq!(out.first_line(), "SIP/2.0 403 Forbidden", "{forged}");
    }
    // The token of one dialog with the mark of another.
    let other = request("INVITE", "sip:bob@example.com", "a2", "").replace("c1@", "c2@");
    let other = one(without_100(b.udp(CALLER, &other)));
    let other = route_of_caller(&mut b, browser(4), &other);
    let mixed = marks[0][..at].to_string() + &other[1][at..];
    let text = in_dialog("MESSAGE", INVALID, true, &[&mixed]).replace("c1@", "c2@");
    assert_eq!(one(b.udp(CALLER, &text)).first_line(), "SIP/2.0 403 Forbidden");
    // Another node of the domain.
    let mut config = location(StateMode::Transaction);
    config.node_id = 2;
    let out = one(Bench::new(&config).udp(CALLER, &in_dialog("INFO", INVALID, true, &back)));
    assert_eq!(out.first_line(), "SIP/2.0 430 Flow Failed");
}

/// A registration by outbound, or by WebSocket, is a flow: nothing is behind it, and the caller
/// learns that the callee is unavailable.
#[test]
fn a_registration_that_is_a_flow_is_tried_there_only() {
    let instance = "<sip:bob@192.0.2.30:5062;transport=tcp>;reg-id=1;+sip.instance=\"<urn:uuid:1>\"";
    let tcp = over(Transport::Tcp, BROWSER, 6);
    for (flow, contact) in [(browser(4), format!("<{INVALID}>")), (tcp, instance.to_string())] {
        let mut b = Bench::new(&location(StateMode::Transaction));
        register(&mut b, flow, &contact);
        let invite = one(call(&mut b, "a1"));
        assert_eq!((invite.to, invite.pinned), (flow, true));
        let out = one(b.undelivered(&invite));
        assert_eq!(out.first_line(), "SIP/2.0 480 Temporarily Unavailable");
        b.pass(64_000);
    }
}

/// §5.3: one flow of an instance after the other, and 480 at their end.
#[test]
fn the_next_flow_of_the_instance_is_tried() {
    let mut b = Bench::new(&location(StateMode::Transaction));
    register(&mut b, browser(4), &contact_of(1));
    let second = over(Transport::Wss, "192.0.2.30:40001", 5);
    let text = registration("r2", &contact_of(2)).replace("c1@", "c2@");
    assert_eq!(b.receive(second, &text)[0].first_line(), "SIP/2.0 200 OK");
    let invite = one(call(&mut b, "a1"));
    assert_eq!((invite.to, invite.pinned), (second, true));
    let invite = one(b.undelivered(&invite));
    assert_eq!((invite.to, invite.pinned), (browser(4), true));
    let out = one(b.undelivered(&invite));
    assert_eq!(out.first_line(), "SIP/2.0 480 Temporarily Unavailable");
}

/// A phone on a stream behind a NAT, without outbound: its flow first, then what its Contact says.
#[test]
fn behind_a_nat_the_flow_comes_before_the_contact() {
    let mut b = Bench::new(&location(StateMode::Transaction));
    let phone = over(Transport::Tls, BROWSER, 4);
    let uri = "sip:bob@10.0.0.9:5061;transport=tls";
    register(&mut b, phone, &format!("<{uri}>"));
    let invite = one(call(&mut b, "a1"));
    assert_eq!((invite.to, invite.pinned), (phone, true));
    let back = route_of_caller(&mut b, phone, &invite);
    let bye = one(without_100(b.udp(CALLER, &in_dialog("BYE", uri, true, &back))));
    assert_eq!((bye.to, bye.pinned), (phone, true));
    let again = one(b.undelivered(&bye));
    assert_eq!(
        (again.to.transport, again.address(), again.to.conn, again.pinned),
        (Transport::Tls, "10.0.0.9:5061".to_string(), None, false)
    );
    // Where the Contact is the far end's address, it is what counts, as for UDP.
    let mut b = Bench::new(&location(StateMode::Transaction));
    register(
        &mut b,
        over(Transport::Tcp, BROWSER, 4),
        "<sip:bob@192.0.2.30:5060;transport=tcp>",
    );
    let invite = one(call(&mut b, "a1"));
    assert!(invite.headers("Record-Route").iter().all(|m| !m.contains('@')));
}

/// The far end of a flow that has gone is a port of a NAT, and by now perhaps another's: nothing is ever
/// sent there by a connection of ours, whatever the request and however it was to go.
#[test]
fn nothing_is_opened_to_the_far_end_of_a_flow() {
    let phone = over(Transport::Tcp, BROWSER, 4);
    let uri = "sip:bob@10.0.0.9:5060;transport=tcp";
    for state in [StateMode::Stateless, StateMode::Transaction] {
        let mut b = Bench::new(&location(state));
        register(&mut b, phone, &format!("<{uri}>"));
        let invite = one(call(&mut b, "a1"));
        assert_eq!((invite.to, invite.pinned), (phone, true), "{state:?}");
        let back = route_of_caller(&mut b, phone, &invite);
        for method in ["ACK", "INVITE", "INFO", "BYE"] {
            let text = in_dialog(method, uri, true, &back);
            let sent = one(without_100(b.udp(CALLER, &text)));
            assert_eq!((sent.to, sent.pinned), (phone, true), "{method}, {state:?}");
            let next = without_100(b.undelivered(&sent));
            // Without state it is not known what else there is.
            if state == StateMode::Stateless || method == "ACK" {
                assert!(next.is_empty(), "{:?}", lines(&next));
                continue;
            }
            let next = one(next);
            assert_eq!(
                (next.address().as_str(), next.to.conn, next.pinned),
                ("10.0.0.9:5060", None, false)
            );
            assert!(next.first_line().starts_with(&format!("{method} {uri} ")));
        }
    }
    // What belongs to a request that went there goes there too.
    let mut b = Bench::new(&location(StateMode::Transaction));
    register(&mut b, phone, &format!("<{uri}>"));
    let invite = one(call(&mut b, "a1"));
    b.receive(phone, &response(&invite, "180 Ringing", ""));
    let mut out = b.udp(CALLER, &request("CANCEL", "sip:bob@example.com", "a1", ""));
    out.retain(|sent| sent.first_line().starts_with("CANCEL "));
    let cancel = one(out);
    assert_eq!((cancel.to, cancel.pinned), (phone, true));
    let mut out = b.receive(phone, &response(&invite, "487 Request Terminated", ""));
    out.retain(|sent| sent.first_line().starts_with("ACK "));
    let ack = one(out);
    assert_eq!((ack.to, ack.pinned), (phone, true));
}

/// Several contacts: each by its own flow or its own Contact, none by a new connection to where a flow
/// ended.
#[test]
fn of_a_fork_the_flow_that_has_gone_gives_way_to_its_contact() {
    let mut b = Bench::new(&location(StateMode::Transaction));
    let phone = over(Transport::Tcp, BROWSER, 4);
    register(&mut b, phone, "<sip:bob@10.0.0.9:5060;transport=tcp>");
    let udp = registration("r0", "<sip:bob@10.0.0.8>").replace("c1@", "c0@");
    b.udp(CALLEE, &udp);
    let sent = call(&mut b, "a1");
    let by_flow = sent.iter().find(|s| s.to == phone).expect("the phone's branch");
    let by_udp = sent.iter().find(|s| s.to.transport == Transport::Udp);
    assert!(by_flow.pinned && !by_udp.expect("the other's").pinned);
    let next = one(b.undelivered(by_flow));
    assert_eq!(
        (next.address().as_str(), next.to.conn, next.pinned),
        ("10.0.0.9:5060", None, false)
    );
}

/// A user agent that responds by the flow has got the request. Its Contact leads to no other host,
/// and would bring it the request a second time (§5.3). So it is of a fork, and of a call to one
/// phone.
#[test]
fn a_phone_that_answers_503_by_its_flow_is_not_asked_again() {
    for forks in [true, false] {
        let mut b = Bench::new(&location(StateMode::Transaction));
        let phone = over(Transport::Tcp, BROWSER, 4);
        register(&mut b, phone, "<sip:bob@10.0.0.9:5060;transport=tcp>");
        if forks {
            let udp = registration("r0", "<sip:bob@10.0.0.8>").replace("c1@", "c0@");
            b.udp(CALLEE, &udp);
        }
        let sent = call(&mut b, "a1");
        let by_flow = sent.iter().find(|s| s.to == phone).expect("the phone's branch");
        let sent = b.receive(phone, &response(by_flow, "503 Service Unavailable", ""));
        let requests: Vec<_> = sent
            .iter()
            .filter(|s| s.to != udp_flow(CALLER))
            .map(|s| s.first_line())
            .collect();
        assert!(
            matches!(&requests[..], [ack] if ack.starts_with("ACK ")),
            "{requests:?}"
        );
    }
}

/// A peer that listens at its source address is reached there by its Contact if its connection has
/// gone.
#[test]
fn a_contact_that_is_the_far_end_is_connected_to() {
    let mut b = Bench::new(&location(StateMode::Transaction));
    let peer = over(Transport::Tcp, "192.0.2.30:5060", 4);
    register(&mut b, peer, "<sip:bob@192.0.2.30:5060;transport=tcp>");
    let invite = one(call(&mut b, "a1"));
    assert_eq!((invite.to, invite.pinned), (peer, true));
    let next = one(b.undelivered(&invite));
    assert_eq!(
        (next.address().as_str(), next.to.conn, next.pinned),
        ("192.0.2.30:5060", None, false)
    );
}

/// §5.3: a user agent on UDP that does outbound gets in its dialogs what comes, where it came from; one
/// behind another proxy gets it there.
#[test]
fn outbound_over_udp_and_behind_another_proxy() {
    let mut b = Bench::new(&all_transports());
    let contact = "Contact: <sip:alice@10.0.0.7;ob>\n";
    let via = "SIP/2.0/UDP 192.0.2.10:5060;branch=z9hG4bKa1";
    for method in ["INVITE", "SUBSCRIBE", "REFER"] {
        let text = request(method, "sip:bob@example.com", method, contact);
        let sent = one(without_100(b.udp("192.0.2.77:3456", &text)));
        let marks = sent.headers("Record-Route");
        assert!(marks.len() == 1 && marks[0].contains('@'), "{marks:?}");
        // The phone's own requests go on as ever.
        let own = in_dialog("INFO", "sip:bob@192.0.2.20", true, &marks).replace("dINFO", method);
        let sent = one(without_100(b.udp("192.0.2.77:3456", &own)));
        assert_eq!(sent.address(), CALLEE);
        let back = in_dialog("NOTIFY", "sip:alice@10.0.0.7;ob", false, &marks);
        let sent = one(without_100(b.udp(CALLEE, &back.replace("dNOTIFY", method))));
        assert_eq!(sent.address(), "192.0.2.77:3456");
    }
    let text = request("INVITE", "sip:bob@example.com", "a1", contact);
    let text = text.replace(via, &format!("{via},SIP/2.0/UDP 10.0.0.7;branch=z9hG4bKx"));
    let sent = one(without_100(b.udp(CALLER, &text)));
    assert!(sent.headers("Record-Route").iter().all(|m| !m.contains('@')));
}

/// The shell says that a connection has closed.
#[track_caller]
fn closed(b: &mut Bench, flow: Flow) -> Vec<Sent> {
    let now = b.now();
    b.endpoint
        .handle_flow_closed(now, flow.conn.expect("a connection"));
    b.drain()
}

/// A removal by the operator ends a connection only if that leaves no registration on it.
#[test]
fn a_connection_is_in_use_while_a_binding_was_made_over_it() {
    let mut b = Bench::new(&location(StateMode::Transaction));
    register(&mut b, browser(4), &format!("<{INVALID}>"));
    let [conn, other] = [4, 3].map(|slot| browser(slot).conn.unwrap());
    let now = b.now();
    assert!(b.endpoint.is_registered_over(now, conn));
    assert!(!b.endpoint.is_registered_over(now, other));
    b.shared.update_bindings(b"bob@example.com", &mut |record| {
        assert!(record.unregister(None, |_| true, now.unix_ms).is_some());
    });
    assert!(!b.endpoint.is_registered_over(now, conn));
}

/// No request waits for a phone with a closed connection: the caller gets its response at once, the
/// next flow of the instance is tried, and other contacts are not kept from ringing.
#[test]
fn a_binding_whose_connection_has_closed_is_no_target() {
    let mut b = Bench::new(&location(StateMode::Transaction));
    register(&mut b, browser(4), &format!("<{INVALID}>"));
    // Again, and over another connection: only what the last was made over counts.
    register(&mut b, browser(4), &format!("<{INVALID}>"));
    assert!(closed(&mut b, browser(3)).is_empty());
    assert_eq!(one(call(&mut b, "a1")).to, browser(4));
    let out = one(closed(&mut b, browser(4)));
    assert_eq!(out.first_line(), "SIP/2.0 480 Temporarily Unavailable");
    assert_eq!(
        (b.counters().flows_lost, b.counters().transactions_unreachable),
        (1, 1)
    );
    assert_eq!(
        one(call(&mut b, "a2")).first_line(),
        "SIP/2.0 480 Temporarily Unavailable"
    );
    // It is registered still, and reachable again as soon as it comes back.
    let again = request(
        "REGISTER",
        "sip:example.com",
        "r9",
        &format!("Contact: <{INVALID}>\n"),
    )
    .replace("From: <sip:alice@", "From: <sip:bob@")
    .replace("CSeq: 1 ", "CSeq: 2 ");
    assert_eq!(b.receive(browser(8), &again)[0].headers("Contact").len(), 1);
    assert_eq!(one(call(&mut b, "a3")).to, browser(8));
    assert!(closed(&mut b, browser(4)).is_empty(), "it hangs on the new one");
    assert_eq!(one(call(&mut b, "a4")).to, browser(8));
    b.pass(500_000);
    b.assert_idle();
}

#[test]
fn of_two_phones_the_one_that_is_there_rings() {
    let mut b = Bench::new(&location(StateMode::Transaction));
    let udp = request(
        "REGISTER",
        "sip:example.com",
        "r0",
        "Contact: <sip:bob@192.0.2.20>\n",
    )
    .replace("From: <sip:alice@", "From: <sip:bob@")
    .replace("c1@", "c0@");
    b.udp(CALLEE, &udp);
    register(&mut b, browser(4), &format!("<{INVALID}>"));
    assert_eq!(call(&mut b, "a1").len(), 2);
    assert!(closed(&mut b, browser(4)).is_empty());
    assert_eq!(one(call(&mut b, "a2")).address(), CALLEE);
}

/// A phone that listens is behind its connection: its own address is tried.
#[test]
fn a_phone_that_listens_is_called_at_its_contact() {
    let mut b = Bench::new(&location(StateMode::Transaction));
    let tcp = over(Transport::Tcp, BROWSER, 6);
    register(&mut b, tcp, "<sip:bob@192.0.2.30:5062;transport=tcp>");
    assert_eq!(one(call(&mut b, "a1")).to, tcp);
    assert_eq!(one(closed(&mut b, tcp)).address(), "192.0.2.30:5062");
    let sent = one(call(&mut b, "a2"));
    assert_eq!((sent.address().as_str(), sent.to.conn), ("192.0.2.30:5062", None));
}

/// What rings at a browser has ended with its connection; a phone may respond on a new one.
#[test]
fn what_rings_when_its_connection_closes() {
    for (transport, ends) in [(Transport::Wss, true), (Transport::Tls, false)] {
        let mut b = Bench::new(&location(StateMode::Transaction));
        let flow = over(transport, BROWSER, 6);
        let contact = "<sip:bob@192.0.2.30:5061;transport=tls>;reg-id=1;+sip.instance=\"<urn:uuid:1>\"";
        register(&mut b, flow, contact);
        let invite = one(call(&mut b, "a1"));
        b.receive(flow, &response(&invite, "180 Ringing", ""));
        let out = closed(&mut b, flow);
        if ends {
            assert_eq!(one(out).first_line(), "SIP/2.0 480 Temporarily Unavailable");
        } else {
            assert!(out.is_empty());
            let late = over(transport, "192.0.2.30:40009", 9);
            let out = one(b.receive(late, &response(&invite, "200 OK", "")));
            assert_eq!(out.first_line(), "SIP/2.0 200 OK");
        }
        b.pass(500_000);
        b.assert_idle();
    }
}

/// Each worker fails its own transactions, wherever the connection lives.
#[test]
fn a_connection_of_another_worker() {
    let mut config = location(StateMode::Transaction);
    config.workers = 2;
    let mut owner = Bench::new(&config);
    register(&mut owner, browser(4), &format!("<{INVALID}>"));
    let mut other = Bench::worker(&config, 1, owner.shared.clone());
    let invite = request("INVITE", "sip:bob@example.com", "a1", "");
    // A Call-ID that belongs to the other worker.
    let texts = (0..64).map(|n| invite.replace("c1@", &format!("k{n}@")));
    let text = texts
        .into_iter()
        .find(|text| owner.endpoint.worker_of(text.as_bytes()).is_some());
    let sent = one(without_100(other.udp(CALLER, &text.unwrap())));
    assert_eq!(sent.to, browser(4));
    assert!(closed(&mut owner, browser(4)).is_empty());
    let out = one(closed(&mut other, browser(4)));
    assert_eq!(out.first_line(), "SIP/2.0 480 Temporarily Unavailable");
}

#[test]
fn registrations_of_a_connection_are_bounded() {
    let mut config = location(StateMode::Transaction);
    config.limits.registrations_per_connection = 2;
    let mut b = Bench::new(&config);
    for user in ["u1", "u2", "u3", "u1"] {
        register_user(&mut b, browser(4), user, 1, 3600);
    }
    assert_eq!(b.counters().limited_flow_registrations, 1);
    closed(&mut b, browser(4));
    assert_eq!(b.counters().flows_lost, 2);
}

/// This user registers over this flow for so many seconds, as an SBC does for many.
#[track_caller]
fn register_user(b: &mut Bench, flow: Flow, user: &str, cseq: u32, expires_s: u32) {
    let text = request(
        "REGISTER",
        "sip:example.com",
        &format!("{user}x{cseq}"),
        &format!("Contact: <{INVALID}>;expires={expires_s}\n"),
    )
    .replace("sip:alice@", &format!("sip:{user}@"))
    .replace("sip:bob@", &format!("sip:{user}@"))
    .replace("c1@", &format!("{user}@"))
    .replace("CSeq: 1 ", &format!("CSeq: {cseq} "));
    assert_eq!(one(b.receive(flow, &text)).first_line(), "SIP/2.0 200 OK");
}

/// Over which connections this user is registered, as the location service knows it.
#[track_caller]
fn connections_of(b: &Bench, user: &str) -> Vec<Option<ConnId>> {
    let mut found = vec![];
    let aor = format!("{user}@example.com");
    b.shared.read_bindings(aor.as_bytes(), &mut |record| {
        found.extend(
            record
                .bindings()
                .map(|binding| binding.expect("a binding").received.conn),
        );
    });
    found
}

/// The bound is one of registrations that there are, not of all that a lasting connection ever had.
#[test]
fn registrations_that_have_left_a_connection_are_forgotten() {
    for limit in [2, 100, 1024] {
        let mut config = location(StateMode::Transaction);
        config.limits.registrations_per_connection = limit;
        let mut b = Bench::new(&config);
        register_user(&mut b, browser(4), "first", 1, 7200);
        for n in 0..3 * limit {
            // Some unregister, some move to another connection, some end.
            let user = format!("u{n}");
            register_user(&mut b, browser(4), &user, 1, if n % 3 == 0 { 60 } else { 3600 });
            match n % 3 {
                0 if n < 60 => b.now_us += 61_000_000,
                0 | 1 => register_user(&mut b, browser(4), &user, 2, 0),
                _ => register_user(&mut b, browser(5), &user, 2, 60),
            }
        }
        register_user(&mut b, browser(4), "last", 1, 3600);
        let counters = b.counters();
        assert_eq!(counters.limited_flow_registrations, 0, "{limit}");
        assert_eq!(connections_of(&b, "last"), [browser(4).conn]);
        closed(&mut b, browser(4));
        for user in ["first", "last"] {
            assert_eq!(connections_of(&b, user), [None], "{limit}: {user}");
        }
    }
}

/// At the bound all are living: none of them is forgotten for another, which is refused and counted
/// until one leaves.
#[test]
fn registrations_that_are_there_stay_known_at_the_bound() {
    let mut config = location(StateMode::Transaction);
    config.limits.registrations_per_connection = 40;
    let mut b = Bench::new(&config);
    for n in 0..50 {
        register_user(&mut b, browser(4), &format!("u{n}"), 1, 3600);
    }
    assert_eq!(b.counters().limited_flow_registrations, 10);
    register_user(&mut b, browser(4), "u7", 2, 0);
    register_user(&mut b, browser(4), "u49", 2, 3600);
    register_user(&mut b, browser(4), "u48", 2, 3600);
    assert_eq!(b.counters().limited_flow_registrations, 11);
    closed(&mut b, browser(4));
    assert_eq!(b.counters().flows_lost, 40);
}

/// Many transactions on one connection: those that have ended are forgotten as others come.
#[test]
fn transactions_of_a_connection_come_and_go() {
    let mut b = Bench::new(&location(StateMode::Transaction));
    register(&mut b, browser(4), &format!("<{INVALID}>"));
    for n in 0..200 {
        let text = request("MESSAGE", "sip:bob@example.com", &format!("m{n}"), "")
            .replace("CSeq: 1 ", &format!("CSeq: {n} "));
        let sent = one(b.udp(CALLER, &text));
        if n % 50 != 0 {
            b.receive(browser(4), &response(&sent, "200 OK", ""));
        }
    }
    let out = closed(&mut b, browser(4));
    assert_eq!(out.len(), 4);
    assert!(
        out.iter()
            .all(|s| s.first_line() == "SIP/2.0 480 Temporarily Unavailable")
    );
}

/// Requests along flows that have gone leave nothing behind: no second event says that they have
/// closed.
#[test]
fn requests_to_flows_that_have_gone_are_forgotten() {
    let mut b = Bench::new(&location(StateMode::Transaction));
    register(&mut b, browser(4), &format!("<{INVALID}>"));
    let invite = one(call(&mut b, "a1"));
    let back = route_of_caller(&mut b, browser(4), &invite);
    b.pass(40_000);
    closed(&mut b, browser(4));
    assert_eq!((b.endpoint.gauges().flows, b.counters().flows_lost), (0, 1));
    let info = in_dialog("INFO", INVALID, true, &back);
    for n in 0..10_000 {
        let text = info.replace("dINFO", &format!("d{n}"));
        let sent = one(b.udp(CALLER, &text));
        assert_eq!((sent.to, sent.pinned), (browser(4), true));
        assert_eq!(one(b.undelivered(&sent)).first_line(), "SIP/2.0 430 Flow Failed");
    }
    let gauges = b.endpoint.gauges();
    assert_eq!((gauges.flows, gauges.flows_registered), (0, 0));
    b.pass(100_000);
    b.assert_idle();
}

/// A flow is known as long as something hangs on it, registered or not.
#[test]
fn flows_are_known_as_long_as_something_hangs_on_them() {
    let mut b = Bench::new(&location(StateMode::Transaction));
    let known = |b: &Bench| {
        let gauges = b.endpoint.gauges();
        (gauges.flows, gauges.flows_registered)
    };
    register(&mut b, browser(4), &format!("<{INVALID}>"));
    let invite = one(call(&mut b, "a1"));
    assert_eq!(known(&b), (1, 1));
    b.receive(browser(4), &response(&invite, "486 Busy Here", ""));
    b.pass(100_000);
    assert_eq!(known(&b), (1, 1));
    b.assert_idle();
    closed(&mut b, browser(4));
    assert_eq!(known(&b), (0, 0));
}

#[test]
fn the_flows_that_are_known_are_bounded() {
    let mut config = location(StateMode::Transaction);
    config.limits.flows = 1;
    let mut b = Bench::new(&config);
    register(&mut b, browser(4), &contact_of(1));
    let text = registration("r2", &contact_of(2)).replace("CSeq: 1 ", "CSeq: 2 ");
    b.receive(browser(5), &text);
    assert_eq!(b.counters().limited_flows, 1);
    // No transaction is informed of its end, and its own ends without disturbing what is known of
    // another.
    let invite = one(call(&mut b, "a1"));
    assert_eq!(invite.to, browser(5));
    assert!(closed(&mut b, browser(5)).is_empty());
    let invite = one(b.undelivered(&invite));
    assert_eq!(invite.to, browser(4));
    assert_eq!(
        one(closed(&mut b, browser(4))).first_line(),
        "SIP/2.0 480 Temporarily Unavailable"
    );
    assert_eq!(b.endpoint.gauges().flows, 0);
}

/// §8 with RFC 5389: a phone that keeps its flow alive by STUN on the SIP port.
#[test]
fn a_stun_ping_is_answered_with_its_source() {
    let mut b = Bench::new(&all_transports());
    let mut ping = vec![0, 1, 0, 0, 0x21, 0x12, 0xa4, 0x42];
    ping.extend_from_slice(b"abcdefghijkl");
    let now = b.now();
    let mut batch = sip_core::transport::TransmitBatch::new();
    let _ = b.endpoint.handle_message(now, udp_flow(CALLER), &ping);
    assert!(b.endpoint.poll_transmit(&mut batch));
    let item = &batch.items()[0];
    assert_eq!((item.to, batch.message(item).len()), (udp_flow(CALLER), 32));
    assert_eq!(&batch.message(item)[..4], [1, 1, 0, 12]);
    // Neither a response, nor half a request, nor anything on a stream.
    ping[0] = 1;
    let _ = b.endpoint.handle_message(now, udp_flow(CALLER), &ping);
    let _ = b.endpoint.handle_message(now, udp_flow(CALLER), &ping[..19]);
    ping[0] = 0;
    let _ = b.endpoint.handle_message(now, tcp_flow(CALLER, 1), &ping);
    assert!(b.drain().is_empty());
    let c = b.counters();
    assert_eq!((c.stun_responses, c.dropped_stun, c.dropped_not_sip), (1, 2, 1));
}

/// A connection to the Contact could not verify the user agent, although it is where it came from.
#[test]
fn a_phone_by_tls_without_a_certificate_is_reached_by_its_flow() {
    for (proof, has_token) in [(Proof::None, true), (Proof::Certificate, false)] {
        let mut b = Bench::new(&location(StateMode::Transaction));
        register(&mut b, browser(4), &format!("<{INVALID}>"));
        let phone = Flow {
            proof,
            ..over(Transport::Tls, "192.0.2.77:40000", 5)
        };
        let contact = "Contact: <sip:alice@192.0.2.77:40000;transport=tls>\n";
        let invite = request("INVITE", "sip:bob@example.com", "a1", contact)
            .replace("UDP 192.0.2.10:5060", "TLS 192.0.2.77:40000");
        let mut out = b.receive(phone, &invite);
        out.retain(|sent| sent.first_line().starts_with("INVITE "));
        let out = one(out);
        let routes = out.headers("Record-Route");
        assert_eq!(routes.last().unwrap().contains('@'), has_token, "{}", out.text);
    }
}

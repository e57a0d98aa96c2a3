//! Marks of dialogs: where each side gets with its own, and where neither does. A mark lasts for days, also when the
//! account that began the dialog is gone; so it must not be a way to what costs money.

use sip_core::config::{Action, Config, Network, Relay, RelayTarget, Route, StateMode, When};
use sip_core::dispatcher::Distribution;
use sip_core::transport::{Flow, Transport};

use crate::agent::{login, nonce_of};
use crate::common::{
    Bench, CALLER, Sent, address, all_transports, config, one, over, relay, request, response,
    route_of_caller, udp_flow,
};
use crate::forks::{group, phone, phone_flow, register};

const GATEWAY: &str = "192.0.2.50:5060";
pub(crate) const PHONE: &str = "192.0.2.31:5060";
/// What may begin something at its target, and what goes on with what is there.
const COSTLY: [&str; 5] = ["INVITE", "REFER", "SUBSCRIBE", "MESSAGE", "KDMQ"];
const FREE: [&str; 7] = ["BYE", "INFO", "UPDATE", "PRACK", "NOTIFY", "OPTIONS", "ACK"];

/// Users of ours by location; calls to the gateway by a rule that asks for credentials.
fn guarded(state: StateMode) -> Config {
    let mut config = config();
    config.state = state;
    let gateway = |domain: &str| Route {
        when: When {
            domain: Some(domain.as_bytes().into()),
            ..When::default()
        },
        auth: Some(true),
        ..relay("sip:192.0.2.50:5060")
    };
    config.routes = vec![gateway("192.0.2.50")];
    config
}

/// The two sides of a call, with their routes.
struct Call {
    caller: String,
    callee: String,
    of_callee: Flow,
}

impl Call {
    /// alice calls bob, and is answered from `of_callee`.
    fn new(bench: &mut Bench, of_callee: Flow, text: &str) -> Self {
        let sent = bench.udp(CALLER, text);
        let invite = sent.iter().find(|s| s.to.remote == of_callee.remote);
        let invite = invite.unwrap_or_else(|| panic!("it goes on: {sent:?}"));
        let callee = invite.headers("Record-Route").join(", ");
        let caller = route_of_caller(bench, of_callee, invite).join(", ");
        Self {
            caller,
            callee,
            of_callee,
        }
    }

    /// bob is registered at [`PHONE`].
    fn to_phone(bench: &mut Bench) -> Self {
        register(bench, "bob@example.com", &[phone(1)]);
        Self::new(
            bench,
            phone_flow(1),
            &request("INVITE", "sip:bob@example.com", "a1", ""),
        )
    }

    /// A request from one side; `more` stands behind our Route.
    fn request(&self, from_caller: bool, method: &str, uri: &str, branch: &str, more: &str) -> String {
        let route = if from_caller { &self.caller } else { &self.callee };
        let text = request(method, uri, branch, &format!("Route: {route}{more}\n"))
            .replace("To: <sip:bob@example.com>", "To: <sip:bob@example.com>;tag=t1");
        match from_caller {
            true => text,
            false => exchanged(&text),
        }
    }

    fn send(&self, bench: &mut Bench, from_caller: bool, text: &str) -> Vec<Sent> {
        let from = if from_caller {
            udp_flow(CALLER)
        } else {
            self.of_callee
        };
        let sent = bench.receive(from, text).into_iter();
        sent.filter(|s| !s.first_line().contains(" 100 ")).collect()
    }
}

/// With From and To exchanged.
pub(crate) fn exchanged(text: &str) -> String {
    text.replace("From: <sip:alice@example.com>;tag=f1", "From: <X>")
        .replace(
            "To: <sip:bob@example.com>;tag=t1",
            "To: <sip:alice@example.com>;tag=f1",
        )
        .replace("From: <X>", "From: <sip:bob@example.com>;tag=t1")
}

/// Status of the answer, or `None` where it goes to `there`.
#[track_caller]
fn outcome(sent: Vec<Sent>, there: &str) -> Option<String> {
    let sent = one(sent);
    let line = sent.first_line();
    if !line.starts_with("SIP/2.0 ") {
        assert_eq!(sent.address(), there, "{line}");
        return None;
    }
    Some(line.split(' ').nth(1).unwrap_or_default().to_owned())
}

#[test]
fn no_side_reaches_a_gateway_that_it_did_not_call() {
    for state in [StateMode::Stateless, StateMode::Transaction] {
        let mut bench = Bench::new(&guarded(state));
        let call = Call::to_phone(&mut bench);
        for from_caller in [true, false] {
            let mut try_it = |method: &str, uri: &str, more: &str, there: &str| {
                let branch = format!("{method}{from_caller}{}{}", uri.len(), more.len());
                let text = call.request(from_caller, method, uri, &branch, more);
                let sent = call.send(&mut bench, from_caller, &text);
                outcome(sent, there)
            };
            for method in COSTLY {
                for uri in [
                    "sip:+1900@192.0.2.50",
                    "sip:192.0.2.50:5060",
                    "sip:x@192.0.2.50;lr",
                ] {
                    assert_eq!(
                        try_it(method, uri, "", GATEWAY).as_deref(),
                        Some("407"),
                        "{method} {uri}"
                    );
                }
                // Another port of it, and by other parts of the message.
                for (uri, more) in [
                    ("sip:+1900@192.0.2.50:5061;transport=tcp", ""),
                    ("sip:+1900@203.0.113.1;maddr=192.0.2.50", ""),
                    ("sip:+1900@203.0.113.1", ", <sip:192.0.2.50;lr>"),
                    ("sip:+1900@203.0.113.1", ", <sip:192.0.2.50>"),
                    ("sip:+1900@203.0.113.1", ", <sip:203.0.113.1;maddr=192.0.2.50;lr>"),
                ] {
                    let there = if uri.contains("5061") {
                        "192.0.2.50:5061"
                    } else {
                        GATEWAY
                    };
                    let status = try_it(method, uri, more, there);
                    assert!(
                        matches!(status.as_deref(), Some("403" | "407")),
                        "{method} {uri}{more}: {status:?}"
                    );
                }
                // A target may move to where no calls cost.
                assert_eq!(
                    try_it(method, "sip:x@203.0.113.9", "", "203.0.113.9:5060"),
                    None,
                    "{method}"
                );
            }
            for method in FREE {
                assert_eq!(try_it(method, "sip:x@192.0.2.50", "", GATEWAY), None, "{method}");
            }
        }
    }
}

/// The initiator has its own mark only: as the callee, whom fewer questions are asked, it counts for nothing.
#[test]
fn no_side_speaks_as_the_other() {
    let mut bench = Bench::new(&guarded(StateMode::Transaction));
    let call = Call::to_phone(&mut bench);
    for method in ["BYE", "INVITE", "INFO"] {
        for from_caller in [true, false] {
            let text = call.request(
                from_caller,
                method,
                "sip:x@203.0.113.9",
                &format!("s{method}{from_caller}"),
                "",
            );
            let text = match from_caller {
                true => exchanged(&text),
                false => text
                    .replace("tag=f1", "tag=X")
                    .replace("tag=t1", "tag=f1")
                    .replace("tag=X", "tag=t1"),
            };
            let sent = call.send(&mut bench, from_caller, &text);
            assert_eq!(
                outcome(sent, "203.0.113.9:5060").as_deref(),
                Some("403"),
                "{method} {from_caller}"
            );
        }
    }
}

/// What names a user of ours, or this server, goes by the rules: a call that was let in is no way past them.
#[test]
fn a_dialog_reaches_no_other_user_past_the_rules() {
    let mut config = guarded(StateMode::Transaction);
    let mut bench = Bench::new(&config);
    let call = Call::to_phone(&mut bench);
    let mut reject = relay("sip:192.0.2.50:5060");
    reject.action = Action::Reject {
        status: 488,
        reason: b"Not You"[..].into(),
    };
    config.routes.push(reject);
    bench.endpoint.reconfigure(&config);
    for from_caller in [true, false] {
        for uri in [
            "sip:carol@example.com",
            "sip:x@192.0.2.1",
            "sip:x@proxy.example.com",
        ] {
            let text = call.request(
                from_caller,
                "INVITE",
                uri,
                &format!("u{from_caller}{}", uri.len()),
                "",
            );
            let sent = call.send(&mut bench, from_caller, &text);
            assert_eq!(outcome(sent, PHONE).as_deref(), Some("488"), "{uri}");
        }
    }
}

/// The mark of a call by a group leads to all of its members and to no other group.
#[test]
fn a_call_by_a_group_stays_with_the_group() {
    for state in [StateMode::Stateless, StateMode::Transaction] {
        let mut config = crate::forks::grouped(group(Distribution::RoundRobin, 2));
        config.state = state;
        // Its domain asks, also in dialogs; the call itself is let in.
        config.domains[0].auth.methods = vec![b"INVITE"[..].into()];
        config.routes[0].auth = Some(false);
        config.routes[0].when.source = vec![Network {
            address: "192.0.2.10".parse().expect("an address"),
            prefix_len: 32,
        }];
        config.routes.push(relay("sip:192.0.2.50:5060"));
        let mut bench = Bench::new(&config);
        let carrier = udp_flow("198.51.100.1:5060");
        let call = Call::new(
            &mut bench,
            carrier,
            &request("INVITE", "sip:bob@example.com", "a1", ""),
        );
        for (uri, there) in [
            ("sip:bob@198.51.100.1", "198.51.100.1:5060"),
            ("sip:bob@198.51.100.2", "198.51.100.2:5060"),
            ("sip:bob@203.0.113.9", "203.0.113.9:5060"),
        ] {
            let text = call
                .request(true, "INVITE", uri, &format!("g{}", there.len()), "")
                .replace("CSeq: 1", "CSeq: 2");
            let text = text.replace(
                "branch=z9hG4bKg",
                &format!("branch=z9hG4bKg{there}").replace(':', ""),
            );
            assert_eq!(outcome(call.send(&mut bench, true, &text), there), None, "{uri}");
        }
        // Not to the other place: it goes by the rules, of which the first takes it.
        let text = call.request(true, "INVITE", "sip:+1900@192.0.2.50", "h1", "");
        let sent = call.send(&mut bench, true, &text);
        assert!(sent.iter().all(|s| s.address() != GATEWAY), "{sent:?}");
        // A carrier has no account here, whatever its From says.
        let text = call.request(false, "INVITE", "sip:alice@192.0.2.10", "c1", "");
        assert_eq!(outcome(call.send(&mut bench, false, &text), CALLER), None);
    }
}

/// A carrier that called is called back at any address of its group.
#[test]
fn what_came_from_a_group_goes_back_there() {
    let mut config = crate::forks::grouped(group(Distribution::RoundRobin, 2));
    config.routes[0].when.domain = Some(b"numbers.example"[..].into());
    // A rule for one of them alone takes nothing from the group.
    let mut direct = relay("sip:198.51.100.1");
    direct.when.domain = Some(b"direct.example"[..].into());
    let mut other = relay("sip:192.0.2.50:5060");
    other.when.domain = Some(b"other.example"[..].into());
    config.routes.extend([direct, other]);
    let mut bench = Bench::new(&config);
    register(&bench, "bob@example.com", &[phone(1)]);
    let carrier = "198.51.100.1:5060";
    let text = request("INVITE", "sip:bob@example.com", "a1", "").replace("192.0.2.10", "198.51.100.1");
    let sent = bench.udp(carrier, &text);
    let invite = sent.iter().find(|s| s.address() == PHONE).expect("it goes on");
    let route = invite.header("Record-Route").to_owned();
    for (host, passes) in [
        ("198.51.100.1", true),
        ("198.51.100.2", true),
        ("192.0.2.50", false),
    ] {
        let text = request(
            "INVITE",
            &format!("sip:c@{host}"),
            host,
            &format!("Route: {route}\n"),
        )
        .replace("To: <sip:bob@example.com>", "To: <sip:bob@example.com>;tag=t1")
        .replace("c1@192.0.2.10", "c1@198.51.100.1");
        let sent = bench.receive(phone_flow(1), &exchanged(&text));
        let went = sent.iter().any(|s| s.to.remote.ip().to_string() == host);
        assert_eq!(went, passes, "{host}: {sent:?}");
    }
}

/// The callee is asked where it is registered: any account will do, since what it is called the caller chose.
#[test]
fn the_called_side_is_asked_where_it_is_registered() {
    for from in ["bob@example.com", "0800@elsewhere.example"] {
        let mut config = guarded(StateMode::Transaction);
        config.routes.clear();
        // The call itself is let in.
        config.domains[0].auth.methods = vec![b"MESSAGE"[..].into()];
        let mut bench = Bench::new(&config);
        let call = Call::to_phone(&mut bench);
        config.domains[0].auth.methods = vec![b"INVITE"[..].into()];
        bench.endpoint.reconfigure(&config);
        let invite = |branch: &str| {
            let text = call.request(false, "INVITE", "sip:alice@192.0.2.10", branch, "");
            text.replace("From: <sip:bob@example.com>", &format!("From: <sip:{from}>"))
        };
        let asked = one(call.send(&mut bench, false, &invite("b1")));
        assert_eq!(
            asked.first_line(),
            "SIP/2.0 407 Proxy Authentication Required",
            "{from}"
        );
        for (password, passes) in [("wrong", false), (crate::agent::PASSWORD, true)] {
            let mut alice = login("INVITE", "sip:alice@192.0.2.10");
            alice.password = password.into();
            let line = alice.line(&nonce_of(&asked)).replace('\n', "\r\n");
            let text =
                invite(&format!("b{passes}")).replace("Content-Length", &format!("{line}Content-Length"));
            let _ = call.send(&mut bench, false, &text);
            let query = bench.query();
            let secrets =
                sip_core::auth::digest::secrets(b"alice", b"example.com", crate::agent::PASSWORD.as_bytes());
            let sent = bench.answer(&query, sip_core::query::Answer::Credentials(Ok(Some(secrets))));
            let went = sent
                .iter()
                .any(|s| s.address() == CALLER && s.text.starts_with("INVITE"));
            assert_eq!(went, passes, "{from}: {sent:?}");
        }
        // What no phone answers is not asked for.
        let bye = call.request(false, "BYE", "sip:alice@192.0.2.10", "b9", "");
        assert_eq!(outcome(call.send(&mut bench, false, &bye), CALLER), None);
    }
}

/// A caller with an account is asked in dialogs as it was before, whatever its From says by now.
#[test]
fn a_caller_of_ours_stays_one() {
    let mut config = guarded(StateMode::Transaction);
    config.routes.clear();
    config.domains[0].auth.methods = vec![b"MESSAGE"[..].into()];
    // A domain of ours that asks for no credentials is no way round.
    let mut free = config.domains[0].clone();
    free.name = b"free.example"[..].into();
    free.auth.methods.clear();
    config.domains.push(free);
    let mut bench = Bench::new(&config);
    let call = Call::to_phone(&mut bench);
    for (from, expected) in [
        ("alice@example.com", Some("407")),
        ("alice@elsewhere.example", Some("407")),
        ("alice@free.example", Some("407")),
    ] {
        let text = call.request(true, "MESSAGE", "sip:x@203.0.113.9", &from.replace('@', ""), "");
        let text = text.replace("alice@example.com", from);
        let sent = call.send(&mut bench, true, &text);
        assert_eq!(outcome(sent, "203.0.113.9:5060").as_deref(), expected, "{from}");
    }
    // A stranger that called has no account.
    let stranger = |text: String| {
        text.replace("alice@example.com", "mallory@elsewhere.example")
            .replace("c1@", "c2@")
    };
    let invite = stranger(request("INVITE", "sip:bob@example.com", "s1", ""));
    let call = Call::new(&mut bench, phone_flow(1), &invite);
    let text = stranger(call.request(true, "MESSAGE", "sip:x@203.0.113.9", "s2", ""));
    assert_eq!(
        outcome(call.send(&mut bench, true, &text), "203.0.113.9:5060"),
        None
    );
}

/// A callee is asked by the domain in which it is registered, and by no other: there it has an account.
#[test]
fn a_callee_of_a_domain_that_does_not_ask_is_not_asked() {
    let mut config = guarded(StateMode::Transaction);
    config.routes.clear();
    config.domains[0].auth.methods = vec![b"INVITE"[..].into()];
    let mut free = config.domains[0].clone();
    free.name = b"free.example"[..].into();
    free.auth.methods = vec![b"REGISTER"[..].into()];
    config.domains.push(free);
    let mut bench = Bench::new(&config);
    register(&bench, "bob@free.example", &[phone(1)]);
    let to_free = |text: String| {
        text.replace("bob@example.com", "bob@free.example")
            .replace("alice@example.com", "alice@elsewhere.example")
    };
    let invite = to_free(request("INVITE", "sip:bob@example.com", "a1", ""));
    let call = Call::new(&mut bench, phone_flow(1), &invite);
    for from in ["bob@free.example", "0800@elsewhere.example"] {
        let text = call.request(false, "INVITE", "sip:alice@192.0.2.10", &from[..3], "");
        let text = to_free(text).replace("<sip:bob@free.example>", &format!("<sip:{from}>"));
        assert_eq!(
            outcome(call.send(&mut bench, false, &text), CALLER),
            None,
            "{from}"
        );
    }
}

/// A domain that a rule refuses, or asks for, is a guarded place as a gateway is.
#[test]
fn a_dialog_reaches_no_domain_that_a_rule_denies() {
    for refuses in [true, false] {
        let mut config = guarded(StateMode::Transaction);
        let mut denied = config.routes[0].clone();
        denied.when.domain = Some(b"203.0.113.50"[..].into());
        denied.auth = (!refuses).then_some(true);
        denied.action = match refuses {
            true => Action::Reject {
                status: 488,
                reason: b"Not There"[..].into(),
            },
            false => Action::Relay(Relay::to(RelayTarget::RequestUri)),
        };
        config.routes = vec![denied];
        let mut bench = Bench::new(&config);
        let call = Call::to_phone(&mut bench);
        for from_caller in [true, false] {
            let branch = format!("d{from_caller}");
            let text = call.request(from_caller, "INVITE", "sip:x@203.0.113.50", &branch, "");
            let expected = if refuses { "488" } else { "407" };
            let sent = call.send(&mut bench, from_caller, &text);
            assert_eq!(outcome(sent, "203.0.113.50:5060").as_deref(), Some(expected));
        }
    }
}

/// What is tried behind a flow that has gone is looked at as what is tried first is.
#[test]
fn a_lost_flow_leads_to_no_gateway() {
    let mut config = all_transports();
    config.routes = guarded(StateMode::Transaction).routes;
    let mut bench = Bench::new(&config);
    let phone = over(Transport::Tls, "192.0.2.30:40000", 4);
    let contact = "Contact: <sip:bob@10.0.0.9:5061;transport=tls>\n";
    bench.receive(phone, &request("REGISTER", "sip:example.com", "r1", contact));
    let call = Call::new(
        &mut bench,
        phone,
        &request("INVITE", "sip:bob@example.com", "a1", ""),
    );
    for (uri, passes) in [
        ("sip:+1900@alias.example", false),
        ("sip:+1900@other.example", true),
    ] {
        let text = call.request(true, "INVITE", uri, &uri[11..14], "");
        let sent = call.send(&mut bench, true, &text);
        let lost = sent.iter().find(|s| s.to == phone).expect("by its flow");
        let mut sent = bench.undelivered(lost);
        let zone = [
            ("alias.example A", vec![address("192.0.2.50")]),
            ("other.example A", vec![address("203.0.113.9")]),
        ];
        sent.extend(bench.serve(&zone).1);
        let gateway = sent.iter().any(|s| s.to.remote.ip().to_string() == "192.0.2.50");
        let other = sent.iter().any(|s| s.to.remote.ip().to_string() == "203.0.113.9");
        assert_eq!((gateway, other), (false, passes), "{sent:?}");
    }
}

/// A peer may write white space in a parameter (RFC 3261 §25.1, EQUAL), share a line, and put parameters behind ours.
#[test]
fn marks_are_turned_however_a_peer_writes_them() {
    let edits: [fn(String) -> String; 4] = [
        |text| text.replace(";tag=t1", ";tag= t1"),
        |text| text.replace(";tag=t1", " ; tag=t1;x=\"a;tag=b\""),
        |text| {
            text.replace(";lr;tz=", ";tz=")
                .replace(">\r\nFrom", ";lr;x=y>\r\nFrom")
        },
        |text| text.replace("Record-Route: ", "Record-Route: <sip:203.0.113.1;lr>, "),
    ];
    for (number, edit) in edits.into_iter().enumerate() {
        for status in ["200 OK", "486 Busy Here"] {
            let mut bench = Bench::new(&guarded(StateMode::Transaction));
            register(&bench, "bob@example.com", &[phone(1)]);
            let sent = bench.udp(CALLER, &request("INVITE", "sip:bob@example.com", "a1", ""));
            let invite = sent.iter().find(|s| s.address() == PHONE).expect("it goes on");
            let answer = edit(response(invite, status, ""));
            let back = bench.udp(PHONE, &answer);
            let back = back.iter().find(|s| s.address() == CALLER).expect("it goes on");
            let route = back
                .header("Record-Route")
                .rsplit(", ")
                .next()
                .unwrap_or_default();
            let bye = request("BYE", "sip:x@203.0.113.9", "a2", &format!("Route: {route}\n"))
                .replace("To: <sip:bob@example.com>", "To: <sip:bob@example.com>;tag=t1");
            assert_eq!(
                outcome(bench.udp(CALLER, &bye), "203.0.113.9:5060"),
                None,
                "{number} {status}: {answer}"
            );
        }
    }
}

/// Each early dialog has its own mark, and so has each copy of a 2xx from another fork.
#[test]
fn each_early_dialog_has_its_own_mark() {
    for state in [StateMode::Stateless, StateMode::Transaction] {
        let mut bench = Bench::new(&guarded(state));
        register(&bench, "bob@example.com", &[phone(1)]);
        let sent = bench.udp(CALLER, &request("INVITE", "sip:bob@example.com", "a1", ""));
        let invite = sent
            .iter()
            .find(|s| s.address() == PHONE)
            .expect("it goes on")
            .clone();
        let mut answer = |status: &str, tag: &str| {
            let text = response(&invite, status, "").replace("tag=t1", &format!("tag={tag}"));
            one(bench.udp(PHONE, &text)).header("Record-Route").to_owned()
        };
        let early = [answer("183 Progress", "t1"), answer("180 Ringing", "t2")];
        let late = [
            answer("200 OK", "t2"),
            answer("200 OK", "t3"),
            answer("200 OK", "t1"),
        ];
        assert_eq!((&late[0], &late[2]), (&early[1], &early[0]), "it does not change");
        let of = [("t1", &early[0]), ("t2", &late[0]), ("t3", &late[1])];
        for (number, (tag, _)) in of.iter().enumerate() {
            for (other, route) in &of {
                let text = request(
                    "PRACK",
                    "sip:x@203.0.113.9",
                    &format!("p{tag}{other}"),
                    &format!("Route: {route}\n"),
                )
                .replace(
                    "To: <sip:bob@example.com>",
                    &format!("To: <sip:bob@example.com>;tag={tag}"),
                )
                .replace("CSeq: 1", &format!("CSeq: {}", number + 2));
                let expected = (tag != other).then(|| "403".to_owned());
                let sent = bench.udp(CALLER, &text);
                assert_eq!(outcome(sent, "203.0.113.9:5060"), expected, "{tag} {other}");
            }
        }
    }
}

/// In a call the dialog exists before a NOTIFY comes. If that carried the caller's mark, the callee would have both.
#[test]
fn a_notify_in_a_call_gives_no_mark_away() {
    for state in [StateMode::Stateless, StateMode::Transaction] {
        let mut config = guarded(state);
        config.routes.clear();
        let mut bench = Bench::new(&config);
        let call = Call::to_phone(&mut bench);
        for (branch, target) in [
            ("n1", format!("sip:me@{PHONE}")),
            ("n2", "sip:alice@192.0.2.10".to_owned()),
        ] {
            let text = call.request(false, "NOTIFY", &target, branch, "\nEvent: refer");
            let sent = one(call.send(&mut bench, false, &text));
            assert!(sent.first_line().starts_with("NOTIFY"), "{}", sent.text);
            assert!(sent.headers("Record-Route").is_empty(), "{}", sent.text);
        }
    }
}

/// A callee that calls itself with the Call-ID and tags of a call from a gateway gets no caller's mark of that one: a
/// response turns what its own request was given, also where a Via of ours is made up of two.
#[test]
fn a_response_turns_the_marks_of_its_own_request_only() {
    for state in [StateMode::Stateless, StateMode::Transaction] {
        let mut bench = Bench::new(&guarded(state));
        register(&bench, "bob@example.com", &[phone(1)]);
        let invite = |branch: &str| {
            request("INVITE", "sip:bob@example.com", branch, "")
                .replace("alice@example.com", "x@carrier.example")
        };
        let mut to_phone = |source: &str, branch: &str| {
            let sent = bench.udp(source, &invite(branch));
            sent.into_iter()
                .find(|s| s.address() == PHONE)
                .expect("it goes on")
        };
        let (theirs, own) = (to_phone(GATEWAY, "a1"), to_phone(CALLER, "a2"));
        let [stolen, given] = [&theirs, &own].map(|sent| sent.header("Record-Route").to_owned());
        assert_ne!(stolen, given);
        let seed = |sent: &Sent| {
            sent.header("Via")
                .split_once(";tz=")
                .map(|(_, token)| token.to_owned())
        };
        let answer = response(&own, "180 Ringing", "").replace(&given, &stolen);
        let mixed = match (seed(&own), seed(&theirs)) {
            (Some(own), Some(theirs)) => answer.replacen(&own, &theirs, 1),
            _ => answer.clone(),
        };
        for answer in [answer, mixed] {
            let back = one(bench.udp(PHONE, &answer));
            assert_eq!(back.header("Record-Route"), stolen, "{state:?}");
        }
        let both = response(&own, "200 OK", "").replace(&given, &format!("{stolen}, {given}"));
        let back = one(bench.udp(PHONE, &both));
        let routes: Vec<&str> = back.header("Record-Route").split(", ").collect();
        assert_eq!((routes.len(), routes[0]), (2, stolen.as_str()));
        for (number, (route, expected)) in [(stolen.as_str(), Some("403")), (routes[1], None)]
            .into_iter()
            .enumerate()
        {
            let bye = request(
                "BYE",
                "sip:x@203.0.113.9",
                &format!("b{number}"),
                &format!("Route: {route}\n"),
            )
            .replace("alice@example.com", "x@carrier.example")
            .replace("To: <sip:bob@example.com>", "To: <sip:bob@example.com>;tag=t1");
            let sent = bench.udp(CALLER, &bye);
            assert_eq!(
                outcome(sent, "203.0.113.9:5060").as_deref(),
                expected,
                "{state:?} {route}"
            );
        }
    }
}

/// A request that passes here twice has two values of ours: each time that a response passes back, that of the
/// request at hand becomes the caller's, and what is the caller's stays so.
#[test]
fn in_a_spiral_all_marks_are_turned_once() {
    for state in [StateMode::Stateless, StateMode::Transaction] {
        let mut config = guarded(state);
        config.routes = vec![relay("sip:192.0.2.20:5060")];
        let mut bench = Bench::new(&config);
        let callee = "192.0.2.20:5060";
        let onward = |sent: Vec<Sent>| {
            sent.into_iter()
                .find(|s| s.text.starts_with("INVITE"))
                .expect("it goes on")
        };
        let first = onward(bench.udp(CALLER, &request("INVITE", "sip:bob@example.com", "a1", "")));
        let via = "Via: SIP/2.0/UDP 192.0.2.20:5060;branch=z9hG4bKspiral\r\n";
        let again = first.text.replace("INVITE sip:bob@", "INVITE sip:carol@");
        let second = onward(bench.udp(callee, &again.replacen("Via:", &format!("{via}Via:"), 1)));
        let answer = one(bench.udp(callee, &response(&second, "200 OK", "")));
        let back = one(bench.udp(callee, &answer.text.replace(via, "")));
        assert_eq!(back.address(), CALLER);
        let marks = back.headers("Record-Route");
        let before = second.headers("Record-Route");
        assert_eq!(marks.len(), 2);
        assert_eq!(answer.headers("Record-Route"), [marks[0], before[1]]);
        assert!(marks[0] != before[0] && marks[1] != before[1]);
        // By either alone, so that none is left as it was.
        for (number, mark) in marks.iter().enumerate() {
            let bye = request(
                "BYE",
                "sip:x@203.0.113.9",
                &format!("b{number}"),
                &format!("Route: {mark}\n"),
            )
            .replace("To: <sip:bob@example.com>", "To: <sip:bob@example.com>;tag=t1");
            assert_eq!(
                outcome(bench.udp(CALLER, &bye), "203.0.113.9:5060"),
                None,
                "{mark}"
            );
        }
    }
}

/// In a row of our nodes each knows its own mark again; those of another domain's nodes stay as they are.
#[test]
fn in_a_row_of_nodes_each_knows_its_own() {
    let mut first = guarded(StateMode::Stateless);
    first.routes = vec![relay("sip:192.0.2.2:5060")];
    let mut second = guarded(StateMode::Transaction);
    second.listeners = vec![crate::common::listener(Transport::Udp, "192.0.2.2:5060")];
    second.own_hosts.clear();
    second.routes = vec![relay("sip:192.0.2.20:5060")];
    second.node_id = 2;
    let (mut first, mut second) = (Bench::new(&first), Bench::new(&second));
    let a = one(first.udp(CALLER, &request("INVITE", "sip:bob@example.com", "a1", "")));
    let b = second.udp("192.0.2.1:5060", &a.text);
    let b = b
        .iter()
        .find(|s| s.address() == "192.0.2.20:5060")
        .expect("it goes on");
    let foreign = "<sip:203.0.113.1;lr;tz=4cdb000123456789abcdef0123456789>";
    let text = response(b, "200 OK", "").replacen(
        "Record-Route",
        &format!("Record-Route: {foreign}\r\nRecord-Route"),
        1,
    );
    let back = one(second.udp("192.0.2.20:5060", &text));
    let back = one(first.udp("192.0.2.2:5060", &back.text));
    let lines = back.headers("Record-Route");
    assert_eq!((lines.len(), lines[0]), (3, foreign));
    let route = format!("Route: {}, {}\n", lines[2], lines[1]);
    let bye = request("BYE", "sip:bob@203.0.113.9", "a2", &route)
        .replace("To: <sip:bob@example.com>", "To: <sip:bob@example.com>;tag=t1");
    let bye = one(first.udp(CALLER, &bye));
    assert_eq!(bye.address(), "192.0.2.2:5060");
    let bye = one(second.udp("192.0.2.1:5060", &bye.text));
    assert_eq!(bye.address(), "203.0.113.9:5060");
}

/// A gateway that the configuration names is guarded at the address at which it was found, and under other names.
#[test]
fn a_gateway_with_a_name_is_guarded_at_its_address() {
    let mut config = guarded(StateMode::Transaction);
    config.routes[0].action = relay("sip:gateway.example").action;
    config.routes[0].when.domain = Some(b"gateway.example"[..].into());
    let mut bench = Bench::new(&config);
    let call = Call::to_phone(&mut bench);
    let zone = [
        ("gateway.example A", vec![address("192.0.2.50")]),
        ("alias.example A", vec![address("192.0.2.50")]),
        ("elsewhere.example A", vec![address("203.0.113.9")]),
    ];
    let text = call.request(true, "INVITE", "sip:x@gateway.example", "d0", "");
    assert_eq!(
        outcome(call.send(&mut bench, true, &text), GATEWAY).as_deref(),
        Some("407"),
        "by its name"
    );
    // A call that is allowed teaches where it is.
    config.routes[0].auth = Some(false);
    bench.endpoint.reconfigure(&config);
    let text = request("INVITE", "sip:1@gateway.example", "g1", "").replace("c1@", "c2@");
    bench.udp(CALLER, &text);
    let _ = bench.serve(&zone);
    // A reload reads the configuration anew.
    config.routes[0].action = relay("sip:gateway.example").action;
    bench.endpoint.reconfigure(&config);
    for (uri, there, status) in [
        ("sip:x@192.0.2.50", GATEWAY, Some("403")),
        ("sip:x@alias.example", GATEWAY, Some("403")),
        ("sip:x@elsewhere.example", "203.0.113.9:5060", None),
    ] {
        let text = call.request(true, "INVITE", uri, &format!("d{}", uri.len()), "");
        let mut sent = call.send(&mut bench, true, &text);
        sent.extend(bench.serve(&zone).1);
        sent.retain(|s| !s.first_line().contains(" 100 "));
        assert_eq!(outcome(sent, there).as_deref(), status, "{uri}");
    }
}

//! Marks of dialogs: where each side gets with its own, and where neither does. A mark lasts for days, also when the
//! account that began the dialog is gone; so it must not be a way to what costs money.

use sip_core::config::{Action, Config, Network, Relay, RelayTarget, Route, StateMode, When};
use sip_core::dispatcher::Distribution;
use sip_core::transport::{Flow, Transport};

use crate::agent::{login, nonce_of};
use crate::common::{
    Bench, CALLER, Sent, address, all_transports, config, one, over, relay, request, route_of_caller,
    udp_flow,
};
use crate::forks::{group, phone, phone_flow, register};

pub(crate) const GATEWAY: &str = "192.0.2.50:5060";
pub(crate) const PHONE: &str = "192.0.2.31:5060";
/// What may begin something at its target, and what goes on with what is there.
const COSTLY: [&str; 6] = ["INVITE", "REFER", "SUBSCRIBE", "MESSAGE", "PUBLISH", "KDMQ"];
const FREE: [&str; 7] = ["BYE", "INFO", "UPDATE", "PRACK", "NOTIFY", "OPTIONS", "ACK"];

/// Users of ours by location; calls to the gateway by a rule that asks for credentials.
pub(crate) fn guarded(state: StateMode) -> Config {
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
pub(crate) struct Call {
    pub(crate) caller: String,
    pub(crate) callee: String,
    of_callee: Flow,
}

impl Call {
    /// alice calls bob, and gets her response from `of_callee`.
    #[track_caller]
    pub(crate) fn new(bench: &mut Bench, of_callee: Flow, text: &str) -> Self {
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
    pub(crate) fn to_phone(bench: &mut Bench) -> Self {
        register(bench, "bob@example.com", &[phone(1)]);
        Self::new(
            bench,
            phone_flow(1),
            &request("INVITE", "sip:bob@example.com", "a1", ""),
        )
    }

    /// A request from one side; `more` stands behind our Route.
    pub(crate) fn request(
        &self,
        from_caller: bool,
        method: &str,
        uri: &str,
        branch: &str,
        more: &str,
    ) -> String {
        let route = if from_caller { &self.caller } else { &self.callee };
        let text = request(method, uri, branch, &format!("Route: {route}{more}\n"))
            .replace("To: <sip:bob@example.com>", "To: <sip:bob@example.com>;tag=t1");
        match from_caller {
            true => text,
            false => exchanged(&text),
        }
    }

    pub(crate) fn send(&self, bench: &mut Bench, from_caller: bool, text: &str) -> Vec<Sent> {
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

/// Status of the response, or `None` where it goes to `there`.
#[track_caller]
pub(crate) fn outcome(sent: Vec<Sent>, there: &str) -> Option<String> {
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

/// The initiator has its own mark only: as the callee, which is challenged less, it counts for
/// nothing.
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
            let sent = bench.answer(
                &query,
                sip_core::query::QueryResult::Credentials(Ok(Some(secrets))),
            );
            let went = sent
                .iter()
                .any(|s| s.address() == CALLER && s.text.starts_with("INVITE"));
            assert_eq!(went, passes, "{from}: {sent:?}");
        }
        // It is called what the caller chose, and yet prefers no identity but its own.
        let mut alice = login("INVITE", "sip:alice@192.0.2.10");
        alice.count = 2;
        let line = alice.line(&nonce_of(&asked)).replace('\n', "\r\n");
        let line = format!("P-Preferred-Identity: <sip:president@example.com>\r\n{line}");
        let text = invite("b7").replace("Content-Length", &format!("{line}Content-Length"));
        let mut sent = call.send(&mut bench, false, &text);
        if let Some(query) = bench.endpoint.poll_query() {
            let secrets =
                sip_core::auth::digest::secrets(b"alice", b"example.com", crate::agent::PASSWORD.as_bytes());
            sent = bench.answer(
                &query,
                sip_core::query::QueryResult::Credentials(Ok(Some(secrets))),
            );
        }
        assert_eq!(outcome(sent, CALLER).as_deref(), Some("403"), "{from}");
        // A method for which no phone takes a challenge is not challenged.
        let bye = call.request(false, "BYE", "sip:alice@192.0.2.10", "b9", "");
        assert_eq!(outcome(call.send(&mut bench, false, &bye), CALLER), None);
    }
}

/// A contact, or a 3xx, may lead to a user of another domain of ours: that one's accounts are asked, since its phone has
/// no other.
#[test]
fn the_called_side_is_asked_in_the_domain_that_was_reached() {
    for by_redirect in [false, true] {
        let mut config = crate::forks::location_with(|relay| relay.recurse = true);
        config.domains[0].auth.methods = vec![b"MESSAGE"[..].into()];
        let mut other = config.domains[0].clone();
        (other.name, other.auth.realm) = (b"other.example"[..].into(), b"other.example"[..].into());
        config.domains.push(other);
        let mut bench = Bench::new(&config);
        register(&bench, "bob@other.example", &[phone(1)]);
        let leads = crate::loops::lost(2, "sip:bob@other.example");
        register(
            &bench,
            "bob@example.com",
            &[if by_redirect { phone(2) } else { leads }],
        );
        let mut sent = bench.udp(CALLER, &request("INVITE", "sip:bob@example.com", "a1", ""));
        if by_redirect {
            let first = sent
                .iter()
                .find(|s| s.to == phone_flow(2))
                .expect("the first phone");
            let moved = crate::common::response(first, "302 Moved", "Contact: <sip:bob@other.example>\n");
            sent = bench.receive(phone_flow(2), &moved);
        }
        let invite = sent
            .iter()
            .find(|s| s.to == phone_flow(1) && s.text.starts_with("INVITE"));
        let invite = invite.unwrap_or_else(|| panic!("{by_redirect}: {sent:?}"));
        let call = Call {
            callee: invite.headers("Record-Route").join(", "),
            caller: route_of_caller(&mut bench, phone_flow(1), invite).join(", "),
            of_callee: phone_flow(1),
        };
        for domain in &mut config.domains {
            domain.auth.methods = vec![b"INVITE"[..].into()];
        }
        bench.endpoint.reconfigure(&config);
        let text = call.request(false, "INVITE", "sip:alice@192.0.2.10", "b1", "");
        let asked = one(call.send(&mut bench, false, &text));
        let realm = asked.header("Proxy-Authenticate");
        assert!(
            realm.contains("realm=\"other.example\""),
            "{by_redirect}: {asked:?}"
        );
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

/// An account that is deleted ends what the caller's mark gives: its right password is none any more.
#[test]
fn a_deleted_account_ends_the_callers_mark() {
    let mut config = guarded(StateMode::Transaction);
    config.routes.clear();
    config.domains[0].auth.methods = vec![b"MESSAGE"[..].into()];
    let mut bench = Bench::new(&config);
    let call = Call::to_phone(&mut bench);
    let uri = "sip:x@203.0.113.9";
    let secrets =
        || sip_core::auth::digest::secrets(b"alice", b"example.com", crate::agent::PASSWORD.as_bytes());
    for (branch, account, passes) in [("b1", Some(secrets()), true), ("b2", None, false)] {
        let text = call.request(true, "MESSAGE", uri, branch, "");
        let asked = one(call.send(&mut bench, true, &text));
        let line = login("MESSAGE", uri)
            .line(&nonce_of(&asked))
            .replace('\n', "\r\n");
        let text = call.request(true, "MESSAGE", uri, &format!("{branch}x"), "");
        let text = text.replace("Content-Length", &format!("{line}Content-Length"));
        let _ = call.send(&mut bench, true, &text);
        let query = bench.query();
        let sent = bench.answer(&query, sip_core::query::QueryResult::Credentials(Ok(account)));
        let went = sent.iter().any(|s| s.address() == "203.0.113.9:5060");
        assert_eq!(went, passes, "{branch}: {sent:?}");
    }
}

/// A mark says in few bits which domain its holder has an account in, so two domains may share them. From of one that asks
/// for no credentials is no way round the other, whatever their names.
#[test]
fn no_two_domains_hide_each_other() {
    let open = |number: u32| format!("open{number}.example");
    let mut config = guarded(StateMode::Transaction);
    config.routes.clear();
    config.domains[0].auth.methods = vec![b"MESSAGE"[..].into()];
    for number in 0..120 {
        let mut free = config.domains[0].clone();
        free.name = open(number).into_bytes().into();
        free.auth.methods = match number % 3 {
            0 => vec![],
            1 => vec![b"*"[..].into()],
            _ => vec![b"INVITE"[..].into()],
        };
        config.domains.push(free);
    }
    let mut bench = Bench::new(&config);
    let call = Call::to_phone(&mut bench);
    for number in 0..120 {
        for from_caller in [true, false] {
            let branch = format!("{number}{from_caller}");
            let text = call.request(from_caller, "MESSAGE", "sip:x@203.0.113.9", &branch, "");
            let own = if from_caller { "alice" } else { "bob" };
            let text = text.replace(
                &format!("From: <sip:{own}@example.com>"),
                &format!("From: <sip:{own}@{}>", open(number)),
            );
            let sent = call.send(&mut bench, from_caller, &text);
            assert_eq!(
                outcome(sent, "203.0.113.9:5060").as_deref(),
                Some("407"),
                "{} {from_caller}",
                open(number)
            );
        }
    }
}

/// A domain that begins to ask for credentials asks in dialogs that are up, too, whatever other domains there are.
#[test]
fn a_domain_that_begins_to_ask_asks_in_its_dialogs() {
    let mut config = guarded(StateMode::Transaction);
    config.routes.clear();
    config.domains[0].auth.methods.clear();
    for number in 0..40 {
        let mut free = config.domains[0].clone();
        free.name = format!("open{number}.example").into_bytes().into();
        config.domains.push(free);
    }
    // Marks say which side has an account where some domain asks for credentials.
    config.domains[1].auth.methods = vec![b"OPTIONS"[..].into()];
    let mut bench = Bench::new(&config);
    let call = Call::to_phone(&mut bench);
    config.domains[0].auth.methods = vec![b"MESSAGE"[..].into()];
    bench.endpoint.reconfigure(&config);
    for from_caller in [true, false] {
        let text = call.request(
            from_caller,
            "MESSAGE",
            "sip:x@203.0.113.9",
            &format!("b{from_caller}"),
            "",
        );
        let sent = call.send(&mut bench, from_caller, &text);
        assert_eq!(
            outcome(sent, "203.0.113.9:5060").as_deref(),
            Some("407"),
            "{from_caller}"
        );
    }
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

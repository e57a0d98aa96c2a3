//! Relaying through this server, and speaking for other users, without the right to do so.

use sip_core::auth::digest;
use sip_core::config::{Action, Network, Relay, RelayTarget, Route, When};
use sip_core::transport::{Proof, Transport};

use crate::agent::{PASSWORD, login, nonce_of};
use crate::common::{
    Bench, CALLEE, CALLER, Sent, all_transports, config, one, over, relay, request, route_of_caller, udp_flow,
};

/// One domain with the default methods that need credentials, and its users by location.
fn guarded() -> sip_core::config::Config {
    let mut config = config();
    config.domains[0].auth.methods = [
        "REGISTER",
        "INVITE",
        "MESSAGE",
        "SUBSCRIBE",
        "PUBLISH",
        "REFER",
        "*",
    ]
    .iter()
    .map(|method| method.as_bytes().into())
    .collect();
    config.routes.clear();
    config
}

/// A stranger's request, and the first line of the only response.
fn answer(config: &sip_core::config::Config, text: &str) -> String {
    let mut bench = Bench::new(config);
    let sent = one(bench.udp(CALLER, text));
    assert_eq!(sent.address(), CALLER, "{}", sent.text);
    bench.pass(600_000);
    bench.assert_idle();
    sent.first_line().to_owned()
}

#[test]
fn nothing_is_relayed_without_credentials() {
    let methods = [
        "INVITE",
        "MESSAGE",
        "SUBSCRIBE",
        "PUBLISH",
        "REFER",
        "INFO",
        "NOTIFY",
        "OPTIONS",
        "UPDATE",
        "PRACK",
        "BYE",
        "KDMQ",
        "invite",
    ];
    // With a tag it is in a dialog for the callee's phone, but not for this server, which issued no
    // Route.
    for to_tag in ["", ";tag=t1"] {
        for from in ["alice@example.com", "mallory@foreign.example"] {
            for method in methods {
                let text = request(
                    method,
                    "sip:bob@example.com",
                    "a",
                    "Contact: <sip:a@192.0.2.10>\nEvent: presence\n",
                )
                .replace("alice@example.com", from)
                .replace(
                    "To: <sip:bob@example.com>",
                    &format!("To: <sip:bob@example.com>{to_tag}"),
                );
                assert_eq!(
                    answer(&guarded(), &text),
                    "SIP/2.0 407 Proxy Authentication Required",
                    "{method} from {from}"
                );
            }
        }
    }
}

/// The meaning of `*`: nothing within a dialog, where a phone would not take a challenge.
#[test]
fn a_dialog_goes_on_without_more_credentials() {
    let mut config = guarded();
    config.routes = vec![relay("sip:192.0.2.20:5060")];
    config.routes[0].auth = Some(false);
    let mut bench = Bench::new(&config);
    let invite = bench.udp(
        CALLER,
        &request(
            "INVITE",
            "sip:bob@example.com",
            "a",
            "Contact: <sip:a@192.0.2.10>\n",
        ),
    );
    let invite = invite.iter().find(|s| s.address() == CALLEE);
    let invite = invite.expect("it goes on");
    let route = route_of_caller(&mut bench, udp_flow(CALLEE), invite).remove(0);
    config.routes.clear();
    bench.endpoint.reconfigure(&config);
    for (method, passes) in [("BYE", true), ("INFO", true), ("PRACK", true), ("REFER", false)] {
        let text = request(method, "sip:bob@192.0.2.20", method, &format!("Route: {route}\n"))
            .replace("To: <sip:bob@example.com>", "To: <sip:bob@example.com>;tag=t1");
        let sent = bench.udp(CALLER, &text);
        assert_eq!(
            sent.iter().any(|s| s.address() == CALLEE),
            passes,
            "{method}: {sent:?}"
        );
    }
}

/// Neither the caller's domain nor the callee's is ours.
#[test]
fn a_stranger_reaches_no_stranger() {
    for method in [
        "INVITE",
        "MESSAGE",
        "OPTIONS",
        "SUBSCRIBE",
        "NOTIFY",
        "INFO",
        "PING",
    ] {
        let text = request(
            method,
            "sip:victim@elsewhere.example",
            "a",
            "Contact: <sip:a@192.0.2.10>\nEvent: x\n",
        )
        .replace("alice@example.com", "mallory@foreign.example")
        .replace("bob@example.com", "victim@elsewhere.example");
        assert_eq!(answer(&guarded(), &text), "SIP/2.0 403 Forbidden", "{method}");
    }
}

/// A rule for everything that names no `auth` is no open relay.
#[test]
fn a_rule_without_auth_lets_no_stranger_through() {
    let mut config = guarded();
    config.routes = vec![relay("sip:192.0.2.20:5060")];
    let text = request(
        "INVITE",
        "sip:+12015550123@gateway.example",
        "a",
        "Contact: <sip:a@192.0.2.10>\n",
    )
    .replace("alice@example.com", "mallory@foreign.example")
    .replace("bob@example.com", "+12015550123@gateway.example");
    assert_eq!(answer(&config, &text), "SIP/2.0 403 Forbidden");
    // If the rule says so, or the caller is trusted, it may.
    let mut open = config.clone();
    open.routes[0].auth = Some(false);
    assert!(
        Bench::new(&open)
            .udp(CALLER, &text)
            .iter()
            .any(|s| s.address() == CALLEE)
    );
    config.trust = vec![Network {
        address: [192, 0, 2, 10].into(),
        prefix_len: 32,
    }];
    assert!(
        Bench::new(&config)
            .udp(CALLER, &text)
            .iter()
            .any(|s| s.address() == CALLEE)
    );
}

/// Routes that lead on to another, and that we never issued.
const FOREIGN: [&str; 8] = [
    "<sip:192.0.2.66;lr>",
    "<sip:192.0.2.1:5060;lr>, <sip:192.0.2.66;lr>",
    "<sip:proxy.example.com;lr;tz=0123456789abcdef>, <sip:192.0.2.66;lr>",
    "<sip:192.0.2.1:5060;lr;tz=>, <sip:192.0.2.66;lr>",
    "<sip:192.0.2.1:5060;lr;tz=zzzzzzzzzzzzzzzz>, <sip:192.0.2.66;lr>",
    "<sip:AAAAAAAAAAAAAAAAAAAAAAAAAAAA@192.0.2.1:5060;lr;tz=0123456789abcdef>, <sip:192.0.2.66;lr>",
    "<sips:192.0.2.1:5061;lr>, <sip:192.0.2.66;lr>",
    "<sip:192.0.2.66>",
];

/// Of us alone, without a mark or with a forged one.
const OURS: [&str; 5] = [
    "<sip:192.0.2.1:5060;lr>",
    "<sip:proxy.example.com;lr;tz=0123456789abcdef>",
    "<sip:192.0.2.1:5060;lr;tz=zzzzzzzzzzzzzzzz>",
    "<sip:AAAAAAAAAAAAAAAAAAAAAAAAAAAA@192.0.2.1:5060;lr;tz=0123456789abcdef>",
    "<sip:192.0.2.1:5060;lr>, <sip:proxy.example.com;lr;tz=0123456789abcdef>",
];

/// The sender of a request.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Asker {
    Stranger,
    /// With good credentials.
    Alice,
    /// No sender is asked for any.
    Anybody,
}

/// The messages sent for a request with this Route.
fn routed(asker: Asker, method: &str, uri: &str, route: &str, to_tag: &str) -> Vec<Sent> {
    let mut config = guarded();
    if asker == Asker::Anybody {
        config.domains[0].auth.methods.clear();
        config.routes = vec![relay("sip:192.0.2.20:5060")];
        config.routes[0].auth = Some(false);
    }
    let mut bench = Bench::new(&config);
    let secrets = digest::secrets(b"alice", b"example.com", PASSWORD.as_bytes());
    let key = (b"alice".to_vec(), b"example.com".to_vec());
    bench.shared.cached.lock().unwrap().insert(key, Some(secrets));
    let text = |branch: &str, more: &str| {
        let lines = format!("Contact: <sip:a@b>\n{more}");
        request(method, uri, branch, &lines).replace(
            "To: <sip:bob@example.com>",
            &format!("To: <sip:bob@example.com>{to_tag}"),
        )
    };
    let mut lines = format!("Route: {route}\n");
    if asker == Asker::Alice && method != "ACK" {
        let nonce = nonce_of(&one(bench.udp(CALLER, &text("first", ""))));
        assert!(!nonce.is_empty(), "{method}");
        lines += &login(method, uri).line(&nonce);
    }
    bench.udp(CALLER, &text("second", &lines))
}

/// Loose routing with a Route that we never issued (RFC 3261 §16.4, §26.1.2): refused for any caller,
/// before it is challenged.
#[test]
fn a_route_that_was_never_issued_leads_nowhere() {
    for asker in [Asker::Stranger, Asker::Alice, Asker::Anybody] {
        for to_tag in ["", ";tag=stolen"] {
            for method in ["INVITE", "BYE", "MESSAGE", "REFER", "ACK"] {
                for route in FOREIGN {
                    let sent = routed(asker, method, "sip:victim@192.0.2.66", route, to_tag);
                    let what = format!("{asker:?}: {method} by {route}");
                    if method == "ACK" {
                        assert!(sent.is_empty(), "{what}: {sent:?}");
                    } else {
                        let sent = one(sent);
                        let told = (sent.address(), sent.first_line());
                        assert_eq!(told, (CALLER.to_owned(), "SIP/2.0 403 Forbidden"), "{what}");
                    }
                }
            }
        }
    }
}

/// What is ours comes off, and the request goes by the rules as without it.
#[test]
fn a_route_of_ours_without_its_mark_is_none() {
    for to_tag in ["", ";tag=stolen"] {
        for method in ["INVITE", "BYE", "MESSAGE", "REFER", "ACK"] {
            for route in OURS {
                let by = |asker| routed(asker, method, "sip:bob@example.com", route, to_tag);
                let what = format!("{method} by {route}");
                let last = |sent: Vec<Sent>| sent.last().map(|s| (s.address(), s.first_line().to_owned()));
                let told = |line: &str| Some((CALLER.to_owned(), line.to_owned()));
                if method == "ACK" {
                    assert_eq!(last(by(Asker::Stranger)), None, "{what}");
                    assert_eq!(last(by(Asker::Alice)), None, "{what}");
                    continue;
                }
                let asked = told("SIP/2.0 407 Proxy Authentication Required");
                assert_eq!(last(by(Asker::Stranger)), asked, "{what}");
                let absent = told("SIP/2.0 480 Temporarily Unavailable");
                assert_eq!(last(by(Asker::Alice)), absent, "{what}");
                let sent = by(Asker::Anybody);
                let relayed = sent.last().expect("it goes by the rule");
                assert_eq!(relayed.address(), CALLEE, "{what}");
                assert_eq!(relayed.headers("Route"), [""; 0], "{what}");
            }
        }
    }
}

/// An ACK has no response and no challenge: outside a dialog it goes nowhere.
#[test]
fn an_ack_outside_a_dialog_goes_nowhere() {
    let mut config = guarded();
    config.routes = vec![Route {
        when: When::default(),
        action: Action::Relay(Relay::to(RelayTarget::Uri(crate::common::hop(
            "sip:192.0.2.20:5060",
        )))),
        ..relay("sip:192.0.2.20:5060")
    }];
    for tag in ["", ";tag=any"] {
        let text = request("ACK", "sip:bob@example.com", "a", "").replace(
            "To: <sip:bob@example.com>",
            &format!("To: <sip:bob@example.com>{tag}"),
        );
        assert!(Bench::new(&config).udp(CALLER, &text).is_empty(), "{tag}");
    }
}

/// A contact that leads back here: the request is then sent by this server itself. A rule or the
/// trust domain may hold the server's address, but the request is a stranger's all the same.
#[test]
fn the_server_does_not_believe_itself() {
    use crate::common::PROXY;
    let own = Network {
        address: "192.0.2.1".parse().expect("an address"),
        prefix_len: 32,
    };
    let mut by_source = guarded();
    let mut rule = relay("sip:192.0.2.66");
    rule.auth = Some(false);
    rule.when.source = vec![own];
    by_source.routes = vec![rule, relay("sip:192.0.2.20:5060")];
    let mut by_trust = guarded();
    by_trust.routes = vec![relay("sip:192.0.2.66")];
    by_trust.trust = vec![own];
    // A call that went on: its Via is what this server writes.
    let mut bench = Bench::new(&config());
    let sent = bench.udp(CALLER, &request("INVITE", "sip:bob@example.com", "a", ""));
    let foreign = |text: &str| {
        text.replace("sip:bob@example.com", "sip:bob@elsewhere.example")
            .replace("alice@example.com", "mallory@foreign.example")
    };
    let text = sent[1]
        .text
        .replace("sip:bob@example.com SIP", "sip:0019005550100@192.0.2.1 SIP");
    let other = "192.0.2.66:5060";
    for (config, text) in [(by_source, text), (by_trust, foreign(&sent[1].text))] {
        let mut bench = Bench::new(&config);
        let back = bench.udp(PROXY, &text);
        assert!(back.iter().all(|s| s.address() != other), "{back:?}");
        // Another program on this machine, which has a Via of its own, is what its address says.
        let program = text
            .replacen("branch=z9hG4bK", "branch=z9hG4bKx", 1)
            .replace("c1@", "c2@");
        let passed = bench.udp(PROXY, &program);
        assert!(passed.iter().any(|s| s.address() == other), "{passed:?}");
    }
}

/// A web page uses the address of its browser, and its client certificate. So a WebSocket that any page may open counts
/// as from no network and from no peer.
#[test]
fn a_page_in_a_trusted_network_is_a_stranger() {
    let network = Network {
        address: "192.0.2.0".parse().expect("an address"),
        prefix_len: 24,
    };
    let flow = over(Transport::Ws, "192.0.2.10:40000", 3);
    let text = request("INVITE", "sip:bob@example.com", "a", "").replace("SIP/2.0/UDP", "SIP/2.0/WS");
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum By {
        Source,
        Network,
        Certificate,
        /// A certificate of no peer, from the network.
        CertificateAndNetwork,
    }
    let cases = [
        By::Source,
        By::Network,
        By::Certificate,
        By::CertificateAndNetwork,
    ]
    .map(|by| [(true, by), (false, by)]);
    for (any_page, by) in cases.into_iter().flatten() {
        let mut config = all_transports();
        config.domains[0].auth.methods = vec![b"*"[..].into()];
        let mut rule = relay("sip:192.0.2.66");
        let mut text = text.clone();
        let mut flow = flow;
        if by == By::Source {
            rule.auth = Some(false);
            rule.when.source = vec![network];
        } else {
            match by {
                By::Certificate => flow.proof = Proof::Trusted,
                By::Source | By::Network => config.trust = vec![network],
                By::CertificateAndNetwork => {
                    flow.proof = Proof::Certificate;
                    config.trust = vec![network];
                }
            }
            text = text
                .replace("sip:bob@example.com", "sip:bob@elsewhere.example")
                .replace("alice@example.com", "mallory@foreign.example");
        }
        config.routes = vec![rule];
        for listener in &mut config.listeners {
            listener.any_page = any_page && listener.transport == Transport::Ws;
        }
        let mut bench = Bench::new(&config);
        let sent = bench.receive(flow, &text);
        let reached = sent.iter().any(|s| s.address() == "192.0.2.66:5060");
        assert_eq!(reached, !any_page, "{by:?}: {sent:?}");
    }
}

/// A web server on this machine forwards the WebSockets of any client. Their address, the loopback or another
/// one of this machine, says nothing, even if only pages of one origin may open them.
#[test]
fn a_websocket_behind_a_web_server_of_this_machine_is_a_stranger() {
    let network = |address: &str, prefix_len| Network {
        address: address.parse().expect("an address"),
        prefix_len,
    };
    let loopback = (network("127.0.0.0", 8), "127.0.0.1:40000");
    // A listener of the configuration has this address.
    let listener = (network("192.0.2.0", 26), "192.0.2.1:40000");
    let other = (network("192.0.2.0", 26), "192.0.2.9:40000");
    for trusts in [false, true] {
        for (transport, name, (network, source), passes) in [
            (Transport::Ws, "WS", loopback, false),
            (Transport::Wss, "WSS", loopback, false),
            (Transport::Tcp, "TCP", loopback, true),
            (Transport::Ws, "WS", listener, false),
            (Transport::Wss, "WSS", listener, false),
            (Transport::Tcp, "TCP", listener, true),
            (Transport::Ws, "WS", other, true),
        ] {
            let mut config = all_transports();
            config.domains[0].auth.methods = vec![b"*"[..].into()];
            let mut rule = relay("sip:192.0.2.66");
            match trusts {
                true => config.trust = vec![network],
                false => {
                    rule.auth = Some(false);
                    rule.when.source = vec![network];
                }
            }
            config.routes = vec![rule];
            let text = request("INVITE", "sip:bob@elsewhere.example", "a", "")
                .replace("SIP/2.0/UDP", &format!("SIP/2.0/{name}"))
                .replace("alice@example.com", "mallory@foreign.example");
            let mut bench = Bench::new(&config);
            let sent = bench.receive(over(transport, source, 3), &text);
            let reached = sent.iter().any(|s| s.address() == "192.0.2.66:5060");
            assert_eq!(reached, passes, "{name} {source} {trusts}: {sent:?}");
            // A web server forwards no certificate.
            let mut proved = over(transport, "192.0.2.1:40001", 4);
            proved.proof = Proof::Certificate;
            if network.prefix_len == 26 {
                let sent = bench.receive(proved, &text.replace("z9hG4bKa", "z9hG4bKproved"));
                assert!(
                    sent.iter().any(|s| s.address() == "192.0.2.66:5060"),
                    "{name} {trusts}: {sent:?}"
                );
            }
        }
    }
}

/// Before its other rules, this one rejects a network with 603.
fn refusing(address: &str, prefix_len: u8) -> sip_core::config::Config {
    let mut reject = relay("sip:192.0.2.20:5060");
    reject.when.source = vec![Network {
        address: address.parse().expect("an address"),
        prefix_len,
    }];
    reject.action = Action::Reject {
        status: 603,
        reason: b"Not You"[..].into(),
    };
    let mut config = config();
    config.routes.insert(0, reject);
    config
}

/// A Via of ours does not circumvent a rule that denies.
#[test]
fn a_via_of_ours_is_no_way_round_a_rule() {
    let config = refusing("198.51.100.0", 24);
    for via in [
        "192.0.2.10:5060;branch=z9hG4bKa",
        "192.0.2.1:5060;branch=z9hG4bK000000000000000000",
    ] {
        let text = request("INVITE", "sip:bob@example.com", "a", "")
            .replace("192.0.2.10:5060;branch=z9hG4bKa", &format!("{via};rport"));
        let sent = one(Bench::new(&config).udp("198.51.100.7:5060", &text));
        assert_eq!(sent.first_line(), "SIP/2.0 603 Not You", "{via}");
    }
}

/// And such a rule holds for what this server has sent itself.
#[test]
fn a_rule_that_denies_holds_for_ourselves() {
    use crate::common::PROXY;
    let mut bench = Bench::new(&config());
    let sent = bench.udp(CALLER, &request("INVITE", "sip:bob@example.com", "a", ""));
    let config = refusing("192.0.2.1", 32);
    let sent = one(Bench::new(&config).udp(PROXY, &sent[1].text));
    assert_eq!(sent.first_line(), "SIP/2.0 603 Not You");
}

/// Two domains of ours, of which one asks for no credentials: From is the caller's to write.
#[test]
fn the_stricter_domain_decides() {
    let mut config = guarded();
    let mut open = config.domains[0].clone();
    open.name = b"open.example"[..].into();
    open.auth.realm = b"open.example"[..].into();
    open.auth.methods.clear();
    config.domains.push(open);
    for (from, to, asked) in [
        ("open.example", "example.com", true),
        ("example.com", "open.example", true),
        ("foreign.example", "example.com", true),
        ("open.example", "open.example", false),
    ] {
        let text = request("INVITE", &format!("sip:bob@{to}"), "a", "")
            .replace("alice@example.com", &format!("alice@{from}"));
        let expected = match asked {
            true => "SIP/2.0 407 Proxy Authentication Required",
            false => "SIP/2.0 480 Temporarily Unavailable",
        };
        let sent = one(Bench::new(&config).udp(CALLER, &text));
        assert_eq!(sent.first_line(), expected, "{from} to {to}");
    }
}

/// A domain that asks for no credentials, in From or in the Request-URI, opens no relay to numbers and to gateways. It
/// does if the rule has `auth = false`, names the callers' network in `source`, or names that domain.
#[test]
fn from_of_an_open_domain_opens_no_gateway() {
    let mut config = guarded();
    let mut open = config.domains[0].clone();
    open.name = b"open.example"[..].into();
    open.auth.methods.clear();
    config.domains.push(open);
    config.routes = vec![relay("sip:192.0.2.20:5060")];
    let asked = |config: &sip_core::config::Config, from: &str, uri: &str| {
        let text = request("INVITE", uri, "a", "").replace("alice@example.com", &format!("alice@{from}"));
        let sent = Bench::new(config).udp(CALLER, &text);
        sent.iter().all(|sent| sent.address() == CALLER)
    };
    let uris = [
        "tel:+19005550100",
        "sip:+1900@192.0.2.20",
        "sip:+1900@192.0.2.1",
        "sip:+1900@gw.example",
        // A host of ours is in the way of no rule.
        "sip:+1900@open.example",
        "sip:+1900@open.example;maddr=192.0.2.20",
    ];
    for uri in uris {
        for from in ["open.example", "example.com", "foreign.example"] {
            assert!(asked(&config, from, uri), "{from} to {uri}");
        }
    }
    let mut named = config.clone();
    named.routes[0].when.domain = Some(b"open.example"[..].into());
    assert!(!asked(&named, "foreign.example", "sip:+1900@open.example"));
    // A rule that names the gateway sees it in `maddr`, too.
    named.routes[0].when.domain = Some(b"192.0.2.20"[..].into());
    for from in ["open.example", "foreign.example"] {
        assert!(
            asked(&named, from, "sip:+1900@open.example;maddr=192.0.2.20"),
            "{from}"
        );
    }
    let mut users = config.clone();
    let Action::Relay(to) = &mut users.routes[0].action else {
        panic!("it relays")
    };
    to.target = RelayTarget::Location;
    let text =
        request("INVITE", "sip:bob@open.example", "a", "").replace("alice@example.com", "a@foreign.example");
    let sent = one(Bench::new(&users).udp(CALLER, &text));
    assert_eq!(sent.first_line(), "SIP/2.0 480 Temporarily Unavailable");
    let mut said = config.clone();
    said.routes[0].auth = Some(false);
    let mut of_network = config;
    of_network.routes[0].when.source = vec![Network {
        address: "192.0.2.0".parse().expect("an address"),
        prefix_len: 24,
    }];
    for (config, from) in [(&said, "foreign.example"), (&of_network, "open.example")] {
        for uri in uris {
            assert!(!asked(config, from, uri), "{from} to {uri}");
        }
    }
    assert!(!asked(&of_network, "open.example", "sip:bob@open.example"));
}

/// A rule that bars a host bars every spelling of it, and a `maddr` that leads to it.
#[test]
fn a_rule_bars_a_host_in_every_spelling() {
    let barring = |host: &str| {
        let mut config = config();
        let mut barred = relay("sip:192.0.2.66");
        barred.action = Action::Reject {
            status: 403,
            reason: b"Barred"[..].into(),
        };
        barred.when.domain = Some(host.as_bytes().into());
        config.routes.insert(0, barred);
        config
    };
    for (host, uris) in [
        (
            "192.0.2.9",
            &[
                "192.0.2.9",
                "192.0.2.009",
                "192.0.2.9:5080",
                "x.test;maddr=192.0.2.9",
                "example.com;maddr=192.0.2.9",
            ][..],
        ),
        (
            "[2001:db8::9]",
            &[
                "[2001:db8::9]",
                "[2001:DB8:0::0009]",
                "x.test;maddr=[2001:db8::9]",
            ],
        ),
        (
            "bad.example",
            &[
                "bad.example",
                "BAD.example",
                "bad.example.",
                "x.test;maddr=bad.example",
            ],
        ),
    ] {
        for uri in uris {
            let text = request("INVITE", &format!("sip:x@{uri}"), "a", "");
            assert_eq!(
                answer(&barring(host), &text),
                "SIP/2.0 403 Barred",
                "{host}: {uri}"
            );
        }
        let other = request("INVITE", "sip:x@good.example;maddr=192.0.2.8", "a", "");
        let sent = Bench::new(&barring(host)).udp(CALLER, &other);
        assert!(
            sent.iter().all(|s| s.first_line() != "SIP/2.0 403 Barred"),
            "{host}: {sent:?}"
        );
    }
}

/// Each party of a call knows its mark; it is no pass for ever.
#[test]
fn a_mark_ends_with_its_days() {
    const DAY: u64 = 86_400_000;
    let mut bench = Bench::new(&config());
    let invite = bench.udp(CALLER, &request("INVITE", "sip:bob@example.com", "a", ""));
    let route = route_of_caller(&mut bench, udp_flow(CALLEE), &invite[1]).remove(0);
    let elsewhere = |branch: &str| {
        let text = request("BYE", "sip:bob@203.0.113.7", branch, &format!("Route: {route}\n"));
        text.replace("To: <sip:bob@example.com>", "To: <sip:bob@example.com>;tag=t1")
    };
    for (days, passes) in [(0, true), (31, true), (2, false), (300, false)] {
        bench.pass(days * DAY);
        let sent = bench.udp(CALLER, &elsewhere(&format!("b{days}")));
        let went = sent.iter().any(|s| s.address() == "203.0.113.7:5060");
        assert_eq!(went, passes, "after {days} more days: {}", sent[0].text);
    }
}

/// A rule that bars a number bars it however it is written, and what is not escaped for nothing stays so.
#[test]
fn a_rule_bars_a_number_in_every_spelling() {
    let mut config = config();
    let mut barred = relay("sip:192.0.2.66");
    barred.action = Action::Reject {
        status: 403,
        reason: b"Barred"[..].into(),
    };
    barred.when.uri = Some(regex::bytes::Regex::new("^(sips?|tel):(00|\\+)19").expect("a pattern"));
    config.routes.insert(0, barred);
    for uri in [
        "sip:0019@example.com",
        "SIP:0019@example.com",
        "sip:%30%3019@example.com",
        "sip:0-0.19@example.com",
        "sip:%2b19@example.com",
        "sip:+1-9(00)@example.com",
        "tel:+1-900",
        "TEL:00-19",
    ] {
        assert_eq!(
            answer(&config, &request("INVITE", uri, "a", "")),
            "SIP/2.0 403 Barred",
            "{uri}"
        );
    }
    let mut bench = Bench::new(&config);
    let sent = bench.udp(CALLER, &request("MESSAGE", "sip:1%30-0@Example.com", "a", ""));
    assert_eq!(
        one(sent).first_line(),
        "MESSAGE sip:1%30-0@Example.com SIP/2.0",
        "it goes on as it came"
    );
}

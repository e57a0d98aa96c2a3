//! Loose and strict routing, our marks in it, and the rules for new requests (RFC 3261 §16.4 to
//! §16.6, RFC 5658).
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use crate::common;

use common::*;
use sip_core::config::{
    Action, AuthPolicy, Config, Domain, Network, Relay, RelayTarget, Route, StateMode, When,
};

const FORBIDDEN: &str = "SIP/2.0 403 Forbidden";

/// A proxy for its own domain only: what is new and not for it is refused.
fn closed() -> Config {
    let mut config = config();
    config.state = StateMode::Stateless;
    config.routes[0].when.domain = Some(b"example.com"[..].into());
    config
}

/// The routes of the caller and of the callee after an INVITE through `b`: of each its only value.
fn routes(b: &mut Bench) -> [String; 2] {
    let out = b.udp(CALLER, &request("INVITE", "sip:bob@example.com", "a0", ""));
    let invite = out.last().unwrap();
    let of_callee = invite.header("Record-Route").to_string();
    [route_of_caller(b, udp_flow(CALLEE), invite).remove(0), of_callee]
}

/// A request within the dialog of [`routes`].
fn within(method: &str, uri: &str, branch: &str, route: &str) -> String {
    request(method, uri, branch, route).replace("bob@example.com>", "bob@example.com>;tag=t1")
}

/// The same from the other side.
fn from_callee(text: &str) -> String {
    text.replace(
        "From: <sip:alice@example.com>;tag=f1",
        "From: <sip:bob@example.com>;tag=t1",
    )
    .replace(
        "To: <sip:bob@example.com>;tag=t1",
        "To: <sip:alice@example.com>;tag=f1",
    )
}

#[test]
fn a_mark_admits_both_sides_of_its_dialog_and_no_other() {
    let mut b = Bench::new(&closed());
    let [route, of_callee] = routes(&mut b);
    let bye = within(
        "BYE",
        "sip:bob@203.0.113.7:5062",
        "a1",
        &format!("Route: {route}\n"),
    );
    let there = "203.0.113.7:5062 BYE sip:bob@203.0.113.7:5062 SIP/2.0";
    let out = one(b.udp(CALLER, &bye));
    assert_eq!(lines(std::slice::from_ref(&out)), [there]);
    assert!(out.headers("Route").is_empty());
    let back = from_callee(&bye).replace(&route, &of_callee);
    assert_eq!(lines(&b.udp(CALLEE, &back)), [there]);
    let mark = route
        .split(";tz=")
        .nth(1)
        .unwrap()
        .trim_end_matches('>')
        .to_string();
    let zeros = "0".repeat(32);
    for (what, text) in [
        ("no mark", bye.replace(&format!(";tz={mark}"), "")),
        ("forged", bye.replace(&mark, &zeros)),
        ("cut", bye.replace(&mark, &mark[..31])),
        ("upper case", bye.replace(&mark, &mark.to_uppercase())),
        ("another call's", bye.replace("c1@", "c2@")),
        ("another initiator's", bye.replace("tag=f1", "tag=f2")),
        ("another callee's", bye.replace("tag=t1", "tag=t2")),
        ("the callee's", bye.replace(&route, &of_callee)),
        ("with its tags exchanged", from_callee(&bye)),
        (
            "another host's",
            bye.replace("<sip:192.0.2.1:5060;lr", "<sip:192.0.2.2:5060;lr"),
        ),
        ("no Route", bye.replace(&format!("Route: {route}\r\n"), "")),
    ] {
        assert_ne!(text, bye, "{what}");
        // (Hexadecimal digits may happen to have no letters.)
        if text.contains(&mark) && what == "upper case" {
            continue;
        }
        let out = one(b.udp(CALLER, &text));
        assert_eq!(
            (out.first_line(), out.address().as_str()),
            (FORBIDDEN, CALLER),
            "{what}"
        );
        // To a user of ours it is routed as any new request.
        let out = one(b.udp(
            CALLER,
            &text.replace("BYE sip:bob@203.0.113.7:5062", "BYE sip:bob@example.com"),
        ));
        let expected = match what {
            "another host's" => format!("{CALLER} {FORBIDDEN}"),
            _ => format!("{CALLEE} BYE sip:bob@example.com SIP/2.0"),
        };
        assert_eq!(lines(&[out]), [expected], "{what}");
    }
    // Without a valid mark an ACK goes nowhere, and gets no response.
    assert!(
        b.udp(CALLER, &bye.replace(&mark, &zeros).replace("BYE", "ACK"))
            .is_empty()
    );
}

#[test]
fn ours_come_off_wherever_they_stand_on_the_line() {
    let mut b = Bench::new(&closed());
    let [ours, _] = routes(&mut b);
    let plain = "<sip:proxy.example.com;lr>";
    let (x, y) = ("<sip:198.51.100.7;lr>", "\"Y, z\" <sip:198.51.100.8;lr>");
    for (lines_in, lines_out) in [
        (vec![ours.clone()], vec![]),
        (vec![format!("{ours}, {x}")], vec![x.to_string()]),
        (vec![format!("{ours},{x} , {y}")], vec![format!("{x} , {y}")]),
        (vec![format!("{ours}, {plain}, {x}")], vec![x.to_string()]),
        (vec![format!("{plain} ,{ours}")], vec![]),
        (
            vec![format!("{plain}, {ours}"), x.to_string()],
            vec![x.to_string()],
        ),
        (
            vec![ours.clone(), ours.clone(), format!("{x},{y}")],
            vec![format!("{x},{y}")],
        ),
        (
            vec![ours.clone(), format!("{plain}, {x}"), y.to_string()],
            vec![x.to_string(), y.to_string()],
        ),
        (vec![format!(", {ours},, {x}")], vec![format!(", {x}")]),
        // Ours after another's is that one's to send back.
        (
            vec![ours.clone(), format!("{x}, {ours}")],
            vec![format!("{x}, {ours}")],
        ),
    ] {
        let text: String = lines_in.iter().map(|l| format!("Route: {l}\n")).collect();
        let out = one(b.udp(CALLER, &within("BYE", "sip:bob@203.0.113.7", "a1", &text)));
        assert_eq!(out.headers("Route"), lines_out, "{lines_in:?}");
        let to = if lines_out.is_empty() {
            "203.0.113.7:5060"
        } else {
            "198.51.100.7:5060"
        };
        assert_eq!(
            lines(&[out]),
            [format!("{to} BYE sip:bob@203.0.113.7 SIP/2.0")],
            "{lines_in:?}"
        );
    }
}

/// RFC 3261 §16.4: a strict router before us put us into the Request-URI.
#[test]
fn what_a_strict_router_did_is_undone() {
    let mut b = Bench::new(&closed());
    let [ours, _] = routes(&mut b);
    let uri = ours.trim_matches(['<', '>']);
    let (x, bob) = ("<sip:198.51.100.7;lr>", "<sip:bob@203.0.113.7;x=y>");
    for (lines_in, lines_out, to) in [
        (vec![bob.to_string()], vec![], "203.0.113.7:5060"),
        (
            vec![format!("{x}, {bob}")],
            vec![x.to_string()],
            "198.51.100.7:5060",
        ),
        (
            vec![x.to_string(), bob.to_string()],
            vec![x.to_string()],
            "198.51.100.7:5060",
        ),
        (vec![format!("{ours}, {bob}")], vec![], "203.0.113.7:5060"),
        (
            vec![format!("{ours}, {x},{bob}")],
            vec![x.to_string()],
            "198.51.100.7:5060",
        ),
        (
            vec![ours.clone(), format!("{x} , {bob}")],
            vec![x.to_string()],
            "198.51.100.7:5060",
        ),
    ] {
        let text: String = lines_in.iter().map(|l| format!("Route: {l}\n")).collect();
        let out = one(b.udp(CALLER, &within("BYE", uri, "a1", &text)));
        assert_eq!(out.headers("Route"), lines_out, "{lines_in:?}");
        assert_eq!(
            lines(&[out]),
            [format!("{to} BYE sip:bob@203.0.113.7;x=y SIP/2.0")],
            "{lines_in:?}"
        );
    }
    // Without a Route there is nothing to put back: it is for us.
    let out = one(b.udp(CALLER, &within("BYE", uri, "a1", "")));
    assert_eq!(out.first_line(), "SIP/2.0 481 Call/Transaction Does Not Exist");
    // A mark that is not valid here undoes nothing.
    let out = one(b.udp(
        CALLER,
        &within(
            "BYE",
            &uri.replace("tz=", "tz=0"),
            "a1",
            &format!("Route: {bob}\n"),
        ),
    ));
    assert_eq!(out.first_line(), FORBIDDEN);
}

/// RFC 3261 §16.6 step 6: the next hop is a strict router.
#[test]
fn a_strict_router_gets_itself_as_request_uri() {
    let mut b = Bench::new(&closed());
    let [ours, _] = routes(&mut b);
    let (strict, x) = ("sip:198.51.100.7", "<sip:198.51.100.8;lr>");
    for (lines_in, lines_out) in [
        (
            vec![format!("{ours}, <{strict}>")],
            vec!["<sip:bob@203.0.113.7;x=y>".to_string()],
        ),
        (
            vec![ours.clone(), format!("<{strict}>, {x}")],
            vec![x.to_string(), "<sip:bob@203.0.113.7;x=y>".to_string()],
        ),
        (
            vec![format!("{ours}, <{strict}>"), x.to_string()],
            vec![x.to_string(), "<sip:bob@203.0.113.7;x=y>".to_string()],
        ),
    ] {
        let text: String = lines_in.iter().map(|l| format!("Route: {l}\n")).collect();
        let out = one(b.udp(CALLER, &within("BYE", "sip:bob@203.0.113.7;x=y", "a1", &text)));
        assert_eq!(out.headers("Route"), lines_out, "{lines_in:?}");
        assert_eq!(lines(&[out]), [format!("198.51.100.7:5060 BYE {strict} SIP/2.0")]);
    }
    // Strict routers on both sides.
    let uri = ours.trim_matches(['<', '>']);
    let out = one(b.udp(
        CALLER,
        &within(
            "BYE",
            uri,
            "a1",
            &format!("Route: <{strict}>, <sip:bob@203.0.113.7>\n"),
        ),
    ));
    assert_eq!(out.headers("Route"), ["<sip:bob@203.0.113.7>"]);
    assert_eq!(lines(&[out]), [format!("198.51.100.7:5060 BYE {strict} SIP/2.0")]);
}

#[test]
fn preloaded_routes_are_for_trusted_sources_where_the_listener_takes_them() {
    let text = request(
        "INVITE",
        "sip:bob@elsewhere.example",
        "a1",
        "Route: <sip:proxy.example.com;lr>, <sip:198.51.100.7;lr>\n",
    );
    let trusted = Network {
        address: "192.0.2.10".parse().unwrap(),
        prefix_len: 32,
    };
    for (preloaded, trust, taken) in [(false, true, false), (true, false, false), (true, true, true)] {
        let mut config = closed();
        config.listeners[0].preloaded_route = preloaded;
        config.trust = if trust { vec![trusted] } else { vec![] };
        let out = one(Bench::new(&config).udp(CALLER, &text));
        let expected = match taken {
            true => "198.51.100.7:5060 INVITE sip:bob@elsewhere.example SIP/2.0".to_string(),
            false => format!("{CALLER} {FORBIDDEN}"),
        };
        assert_eq!(lines(&[out]), [expected], "{preloaded} {trust}");
    }
    // One that names only us is no route: popped, and the request goes by the rules.
    let text = request(
        "INVITE",
        "sip:bob@example.com",
        "a1",
        "Route: <sip:192.0.2.1;lr>\n",
    );
    let out = one(Bench::new(&closed()).udp(CALLER, &text));
    assert_eq!(
        (out.headers("Route").len(), lines(&[out])),
        (0, vec![format!("{CALLEE} INVITE sip:bob@example.com SIP/2.0")])
    );
}

fn rule(when: When, to: &str) -> Route {
    Route { when, ..relay(to) }
}

#[test]
fn each_condition_and_the_first_rule_that_matches() {
    let regex = |text: &str| Some(regex::bytes::Regex::new(text).unwrap());
    let net = |ip: &str, prefix_len| Network {
        address: ip.parse().unwrap(),
        prefix_len,
    };
    let mut config = closed();
    config.domains[0].aliases = vec![b"alias.example"[..].into()];
    let hop = |n: u8| format!("sip:198.51.100.{n}");
    config.routes = vec![
        rule(
            When {
                methods: vec![b"MESSAGE"[..].into(), b"INFO"[..].into()],
                ..When::default()
            },
            &hop(1),
        ),
        rule(
            When {
                uri: regex("^sip:\\+?[0-9]+@"),
                ..When::default()
            },
            &hop(2),
        ),
        rule(
            When {
                domain: Some(b"other.example"[..].into()),
                ..When::default()
            },
            &hop(3),
        ),
        rule(
            When {
                domain: Some(b"alias.example"[..].into()),
                methods: vec![b"OPTIONS"[..].into()],
                ..When::default()
            },
            &hop(4),
        ),
        rule(
            When {
                source: vec![net("203.0.113.0", 24), net("2001:db8::", 32)],
                ..When::default()
            },
            &hop(5),
        ),
        rule(
            When {
                headers: vec![
                    (b"x-trunk"[..].into(), b"a"[..].into()),
                    (b"subject"[..].into(), b"b"[..].into()),
                ],
                ..When::default()
            },
            &hop(6),
        ),
        rule(
            When {
                methods: vec![b"PUBLISH"[..].into()],
                ..When::default()
            },
            &hop(7),
        ),
        rule(
            When {
                methods: vec![b"PUBLISH"[..].into()],
                ..When::default()
            },
            &hop(8),
        ),
    ];
    for (n, method, uri, source, extra) in [
        (1, "MESSAGE", "sip:x@nowhere.example", CALLER, ""),
        (1, "INFO", "sip:+123@nowhere.example", CALLER, ""),
        (2, "INVITE", "sip:+123@nowhere.example", CALLER, ""),
        (3, "INVITE", "sip:x@OTHER.example:5099", CALLER, ""),
        (4, "OPTIONS", "sip:x@example.com", CALLER, ""),
        (4, "OPTIONS", "sip:x@Alias.Example", CALLER, ""),
        (5, "BYE", "sip:x@nowhere.example", "203.0.113.9:5060", ""),
        (6, "BYE", "sip:x@nowhere.example", CALLER, "X-TRUNK:  a \ns: b\n"),
        (7, "PUBLISH", "sip:x@nowhere.example", CALLER, ""),
        (0, "BYE", "sip:x@nowhere.example", CALLER, "X-Trunk: a\n"),
        (
            0,
            "BYE",
            "sip:x@nowhere.example",
            CALLER,
            "X-Trunk: A\nSubject: b\n",
        ),
        (0, "BYE", "sip:x@nowhere.example", "203.0.114.9:5060", ""),
        (0, "publish", "sip:x@nowhere.example", CALLER, ""),
        // No rule, and a user of ours: location.
        (9, "INVITE", "sip:x@alias.example", CALLER, ""),
    ] {
        let mut b = Bench::new(&config);
        let text = request(method, uri, "a1", extra).replace("UDP 192.0.2.10:5060", &format!("UDP {source}"));
        let expected = match n {
            0 => format!("{source} {FORBIDDEN}"),
            9 => format!("{source} SIP/2.0 480 Temporarily Unavailable"),
            n => format!("198.51.100.{n}:5060 {method} {uri} SIP/2.0"),
        };
        assert_eq!(
            lines(&b.udp(source, &text)),
            [expected],
            "{method} {uri} {source} {extra}"
        );
        b.assert_idle();
    }
}

#[test]
fn what_a_rule_does_to_the_request_uri() {
    let action = |target: RelayTarget, strip, prefix: &str, rewrite_host| {
        Action::Relay(Relay {
            strip,
            prefix: prefix.as_bytes().into(),
            rewrite_host,
            ..Relay::to(target)
        })
    };
    let gw = || RelayTarget::Uri(hop("sip:198.51.100.7:5070;transport=udp"));
    for (action, uri, to, becomes) in [
        (
            action(gw(), 0, "", false),
            "sip:+49123@example.com;user=phone",
            "198.51.100.7:5070",
            "sip:+49123@example.com;user=phone",
        ),
        (
            action(gw(), 1, "00", false),
            "sip:+49123@example.com;user=phone",
            "198.51.100.7:5070",
            "sip:0049123@example.com;user=phone",
        ),
        (
            action(gw(), 99, "0", false),
            "sip:123:pw@example.com",
            "198.51.100.7:5070",
            "sip:0:pw@example.com",
        ),
        (
            action(gw(), 0, "9", false),
            "tel:+49123;phone-context=x",
            "198.51.100.7:5070",
            "tel:9+49123;phone-context=x",
        ),
        (
            action(gw(), 0, "", true),
            "sip:1@example.com:5062;user=phone;x",
            "198.51.100.7:5070",
            "sip:1@198.51.100.7:5070;user=phone;x",
        ),
        (
            action(gw(), 1, "2", true),
            "sip:1@[2001:db8::1]",
            "198.51.100.7:5070",
            "sip:2@198.51.100.7:5070",
        ),
        (
            action(RelayTarget::RequestUri, 1, "5", false),
            "sip:1@203.0.113.9:5080",
            "203.0.113.9:5080",
            "sip:5@203.0.113.9:5080",
        ),
        (
            action(RelayTarget::RequestUri, 0, "", false),
            "sip:a@h.example;maddr=203.0.113.8",
            "203.0.113.8:5060",
            "sip:a@h.example;maddr=203.0.113.8",
        ),
    ] {
        let mut config = closed();
        config.routes = vec![Route {
            action,
            ..relay("sip:x")
        }];
        let mut b = Bench::new(&config);
        for method in ["INVITE", "ACK", "CANCEL"] {
            let out = b.udp(CALLER, &request(method, uri, "a1", ""));
            assert_eq!(lines(&out), [format!("{to} {method} {becomes} SIP/2.0")]);
        }
    }
    let refused = Route {
        action: action(RelayTarget::RequestUri, 0, "", false),
        ..relay("sip:x")
    };
    let mut config = closed();
    config.routes = vec![refused];
    assert_eq!(
        one(Bench::new(&config).udp(CALLER, &request("INVITE", "tel:+1", "a1", ""))).first_line(),
        "SIP/2.0 416 Unsupported URI Scheme"
    );
}

#[test]
fn reject_answers_with_its_own_words() {
    let mut config = closed();
    config.routes[0].action = Action::Reject {
        status: 603,
        reason: b"Not\r\n Now"[..].into(),
    };
    let mut b = Bench::new(&config);
    assert_eq!(
        one(b.udp(CALLER, &request("INVITE", "sip:bob@example.com", "a1", ""))).first_line(),
        "SIP/2.0 603 Not Now"
    );
    assert!(
        b.udp(CALLER, &request("ACK", "sip:bob@example.com", "a2", ""))
            .is_empty()
    );
    assert_eq!(
        one(b.udp(CALLER, &request("CANCEL", "sip:bob@example.com", "a3", ""))).first_line(),
        "SIP/2.0 481 Call/Transaction Does Not Exist"
    );
}

#[test]
fn a_rule_may_say_which_state_and_whether_to_record() {
    let mut config = closed();
    config.routes[0].state = Some(StateMode::Transaction);
    config.routes[0].record_route = false;
    config.routes.push(rule(
        When {
            domain: Some(b"other.example"[..].into()),
            ..When::default()
        },
        "sip:198.51.100.7",
    ));
    let mut b = Bench::new(&config);
    let out = b.udp(CALLER, &request("INVITE", "sip:bob@example.com", "a1", ""));
    assert_eq!(out.len(), 2);
    assert!(out[1].headers("Record-Route").is_empty());
    assert_eq!(b.endpoint.gauges().server_transactions, 1);
    let out = one(b.udp(CALLER, &request("INVITE", "sip:bob@other.example", "a2", "")));
    assert_eq!(out.headers("Record-Route").len(), 1);
    assert_eq!(b.endpoint.gauges().server_transactions, 1);
    // A CANCEL that matches nothing: where state would be kept there is nothing to cancel (§9.2),
    // elsewhere it follows its INVITE.
    assert_eq!(
        one(b.udp(CALLER, &request("CANCEL", "sip:bob@example.com", "a3", ""))).first_line(),
        "SIP/2.0 481 Call/Transaction Does Not Exist"
    );
    assert_eq!(
        lines(&b.udp(CALLER, &request("CANCEL", "sip:bob@other.example", "a2", ""))),
        ["198.51.100.7:5060 CANCEL sip:bob@other.example SIP/2.0"]
    );
}

#[test]
fn stateless_ack_and_cancel_take_the_branch_of_their_invite() {
    let mut config = closed();
    config.routes = vec![
        rule(
            When {
                methods: vec![b"INVITE"[..].into()],
                ..When::default()
            },
            "sip:198.51.100.7",
        ),
        rule(When::default(), "sip:198.51.100.8"),
    ];
    let mut b = Bench::new(&config);
    for via in [
        "SIP/2.0/UDP 192.0.2.10:5060;branch=z9hG4bKa1",
        "SIP/2.0/UDP 192.0.2.10:5060",
        "SIP/2.0/UDP 192.0.2.10:5060;branch=1",
    ] {
        let make = |method: &str| {
            request(method, "sip:bob@x.example", "a1", "")
                .replace("SIP/2.0/UDP 192.0.2.10:5060;branch=z9hG4bKa1", via)
        };
        let invite = one(b.udp(CALLER, &make("INVITE")));
        for method in ["ACK", "CANCEL"] {
            let out = one(b.udp(CALLER, &make(method)));
            assert_eq!(
                (out.to, via_without_seed(&out)),
                (invite.to, via_without_seed(&invite)),
                "{via} {method}"
            );
        }
        let out = one(b.udp(CALLER, &make("OPTIONS")));
        assert_eq!(out.address(), "198.51.100.8:5060");
        // What differs in anything that a transaction is known by gets another branch.
        for (from, to) in [
            ("c1@", "c2@"),
            ("tag=f1", "tag=f2"),
            ("CSeq: 1", "CSeq: 2"),
            ("192.0.2.10:5060", "192.0.2.10:5061"),
        ] {
            let text = make("INVITE").replace(from, to);
            assert_ne!(
                one(b.udp(CALLER, &text)).header("Via"),
                invite.header("Via"),
                "{from}"
            );
        }
        assert_ne!(
            one(b.udp("192.0.2.11:5060", &make("INVITE"))).header("Via"),
            invite.header("Via")
        );
    }
}

/// `auth = true` asks where the domain would not, `auth = false` spares where it would.
#[test]
fn a_rule_overrides_the_domains_authentication() {
    for (auth, methods, challenged) in [
        (None, vec![], false),
        (None, vec![b"INVITE"[..].into()], true),
        (Some(true), vec![], true),
        (Some(false), vec![b"INVITE"[..].into()], false),
    ] {
        let mut config = closed();
        config.routes[0].auth = auth;
        let policy = AuthPolicy {
            methods,
            ..config.domains[0].auth.clone()
        };
        config.domains[0] = Domain {
            auth: policy,
            ..config.domains[0].clone()
        };
        let mut b = Bench::new(&config);
        let out = one(b.udp(CALLER, &request("INVITE", "sip:bob@example.com", "a1", "")));
        let expected = if challenged {
            "SIP/2.0 407 Proxy Authentication Required"
        } else {
            "INVITE sip:bob@example.com SIP/2.0"
        };
        assert_eq!(out.first_line(), expected, "{auth:?}");
        // Neither ACK nor CANCEL is ever asked (§22.1). But an ACK outside of a dialog goes nowhere
        // that its INVITE would have been asked for: it carries a body like any other request.
        for method in ["ACK", "CANCEL"] {
            let out = b.udp(CALLER, &request(method, "sip:bob@example.com", "a2", ""));
            let passed = vec![format!("{CALLEE} {method} sip:bob@example.com SIP/2.0")];
            let passes = method == "CANCEL" || !challenged;
            assert_eq!(lines(&out), if passes { passed } else { vec![] });
        }
    }
    // No domain asks for credentials.
    let mut config = closed();
    config.routes = vec![Route {
        auth: Some(true),
        ..relay("sip:192.0.2.20")
    }];
    let text =
        request("INVITE", "sip:bob@x.example", "a1", "").replace("alice@example.com", "alice@y.example");
    assert_eq!(
        one(Bench::new(&config).udp(CALLER, &text)).first_line(),
        FORBIDDEN
    );
}

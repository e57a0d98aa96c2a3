//! Flow tokens and dialog marks that are not as this server wrote them (RFC 5626 §5.2): a callee
//! learns its own, and no other.

use sip_core::config::{Config, StateMode};
use sip_core::transport::{Flow, Transport};

use crate::common::{Bench, CALLER, all_transports, one, over, request, route_of_caller};

const BROWSER: &str = "192.0.2.30:40000";
const CONTACT: &str = "sip:x7@df7jal23ls0d.invalid;transport=ws";

pub(crate) fn located() -> Config {
    let mut config = all_transports();
    config.routes.clear();
    config.state = StateMode::Transaction;
    config
}

fn browser() -> Flow {
    over(Transport::Wss, BROWSER, 4)
}

/// A call to bob's browser is established; the Route values of its caller, the nearest first.
pub(crate) fn established(bench: &mut Bench) -> Vec<String> {
    let register = request(
        "REGISTER",
        "sip:example.com",
        "r1",
        &format!("Contact: <{CONTACT}>\n"),
    );
    let told = bench.receive(browser(), &register);
    assert_eq!(told[0].first_line(), "SIP/2.0 200 OK");
    let sent = bench.udp(CALLER, &request("INVITE", "sip:bob@example.com", "a1", ""));
    let invite = sent
        .into_iter()
        .find(|s| s.first_line().starts_with("INVITE"))
        .expect("it is called");
    route_of_caller(bench, browser(), &invite)
}

pub(crate) fn within(call: &str, branch: &str, route: &str) -> String {
    request("MESSAGE", CONTACT, branch, &format!("Route: {route}\n"))
        .replace("To: <sip:bob@example.com>", "To: <sip:bob@example.com>;tag=t1")
        .replace("c1@", call)
}

fn reaches_the_browser(bench: &mut Bench, text: &str) -> bool {
    let sent = bench.udp(CALLER, text);
    assert!(
        sent.iter()
            .all(|s| s.address() == CALLER || s.address() == BROWSER),
        "{sent:?}"
    );
    sent.iter().any(|s| s.address() == BROWSER)
}

/// The response to its sender; no other host gets anything.
#[track_caller]
fn refusal(bench: &mut Bench, text: &str) -> String {
    let sent = one(bench.udp(CALLER, text));
    assert_eq!(sent.address(), CALLER, "{}", sent.text);
    sent.first_line().to_owned()
}

#[test]
fn a_token_with_any_character_changed_leads_nowhere() {
    let mut bench = Bench::new(&located());
    let routes = established(&mut bench);
    let route = routes.join(", ");
    assert!(reaches_the_browser(&mut bench, &within("c1@", "good", &route)));
    let (from, to) = (
        route.rfind("sip:").unwrap() + 4,
        route.rfind('@').expect("a token"),
    );
    assert!(to - from > 20, "{route}");
    for at in from..to {
        for with in ["A", "B", "-", "_", "%41", ""] {
            if route.get(at..=at) == Some(with) {
                continue;
            }
            let forged = format!("{}{with}{}", &route[..at], &route[at + 1..]);
            let text = within("c1@", &format!("f{at}{}", with.len()), &forged);
            assert_eq!(refusal(&mut bench, &text), "SIP/2.0 403 Forbidden", "{forged}");
        }
    }
    // Cut, doubled, and none at all.
    for token in [
        "",
        "A",
        &route[from..from + 8],
        &format!("{0}{0}", &route[from..to]),
    ] {
        let forged = format!("{}{token}{}", &route[..from], &route[to..]);
        assert!(
            !reaches_the_browser(&mut bench, &within("c1@", "cut", &forged)),
            "{forged}"
        );
    }
}

/// Bound to its dialog: Call-ID and the initiator's tag.
#[test]
fn a_token_leads_nowhere_in_another_dialog() {
    let mut bench = Bench::new(&located());
    let route = established(&mut bench).join(", ");
    assert!(!reaches_the_browser(&mut bench, &within("c2@", "b1", &route)));
    let other_tag = within("c1@", "b2", &route).replace("tag=f1", "tag=f2");
    assert!(!reaches_the_browser(&mut bench, &other_tag));
    let outside = within("c1@", "b3", &route).replace(";tag=t1", "");
    assert!(!reaches_the_browser(&mut bench, &outside));
}

/// After a restart the connection that a token names belongs to no peer, or to another (generations
/// are drawn anew). The request leaves for that connection only, and for that peer only.
#[test]
fn a_token_from_before_a_restart_is_pinned_to_what_is_gone() {
    let mut bench = Bench::new(&located());
    let route = established(&mut bench).join(", ");
    let mut again = Bench::new(&located());
    let sent = again.udp(CALLER, &within("c1@", "b1", &route));
    let sent = sent
        .iter()
        .find(|s| s.address() == BROWSER)
        .expect("keys outlive a restart");
    assert!(sent.pinned && sent.to.conn == browser().conn, "{sent:?}");
    let told = again.undelivered(sent);
    assert!(told.iter().all(|s| s.address() == CALLER), "{told:?}");
    assert!(told.iter().any(|s| s.first_line() == "SIP/2.0 430 Flow Failed"));
}

/// The token of a phone behind a NAT: in its own dialog it reaches the address that it names. In another dialog, or with
/// a character changed, it is refused.
#[test]
fn a_token_by_udp_leads_to_its_phone_only() {
    const PHONE: &str = "203.0.113.7:40001";
    let mut config = located();
    config.routes.clear();
    let called = |bench: &mut Bench| {
        let register = request(
            "REGISTER",
            "sip:example.com",
            "r1",
            "Contact: <sip:bob@192.168.1.2>\n",
        );
        assert_eq!(bench.udp(PHONE, &register)[0].first_line(), "SIP/2.0 200 OK");
        let sent = bench.udp(CALLER, &request("INVITE", "sip:bob@example.com", "a1", ""));
        let invite = sent.into_iter().find(|s| s.first_line().starts_with("INVITE"));
        let invite = invite.expect("it is called");
        route_of_caller(
            bench,
            sip_core::transport::Flow::udp(PHONE.parse().unwrap()),
            &invite,
        )
        .join(", ")
    };
    let mut bench = Bench::new(&config);
    let route = called(&mut bench);
    assert!(route.contains('@'), "{route}");
    let text = |call: &str, branch: &str, route: &str| {
        within(call, branch, route).replacen(CONTACT, "sip:bob@192.168.1.2", 1)
    };
    let reached = |bench: &mut Bench, text: &str| {
        let sent = bench.udp(CALLER, text);
        sent.iter().map(crate::common::Sent::address).collect::<Vec<_>>()
    };
    assert!(reached(&mut bench, &text("c1@", "b1", &route)).contains(&PHONE.to_owned()));
    let other_call = text("c2@", "b2", &route);
    let other_tag = text("c1@", "b3", &route).replace("tag=f1", "tag=f2");
    let forged = {
        let at = route.find("sip:").unwrap() + 8;
        let other = if &route[at..=at] == "A" { "B" } else { "A" };
        text(
            "c1@",
            "b4",
            &format!("{}{other}{}", &route[..at], &route[at + 1..]),
        )
    };
    for text in [other_call, other_tag, forged] {
        let refused = refusal(&mut bench, &text);
        assert!(refused.starts_with("SIP/2.0 403 "), "{refused}: {text}");
    }
}

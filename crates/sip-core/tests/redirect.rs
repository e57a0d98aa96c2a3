//! Redirection (RFC 3261 §8.3), and 3xx responses that are followed here (§16.7 step 4).
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use crate::common;
use crate::forks;

use common::*;
use forks::*;
use sip_core::config::{Config, Network, Redirect, StateMode};
use sip_core::dispatcher::Distribution;
use sip_core::location::Binding;
use sip_core::transport::Transport;

fn contacts(sent: &Sent) -> Vec<&str> {
    sent.headers("Contact")
}

#[test]
fn all_contacts_stand_in_the_302_with_q_and_expires() {
    for (state, is_trusted) in [
        (StateMode::Transaction, true),
        (StateMode::Transaction, false),
        (StateMode::Stateless, true),
    ] {
        let mut config = redirect(Redirect::Location);
        config.state = state;
        if is_trusted {
            config.trust = vec![Network {
                address: CALLER.parse::<std::net::SocketAddr>().unwrap().ip(),
                prefix_len: 32,
            }];
        }
        let phones = [
            phone(1),
            with_q(2, 500),
            Binding {
                expires_unix_s: 1_700_000_061,
                ..with_q(3, 7)
            },
            Binding {
                expires_unix_s: 1_700_000_000,
                ..with_q(4, 0)
            },
        ];
        let mut b = registered(&config, &phones);
        let mut out = b.udp(CALLER, &invite());
        let answer = out.pop().unwrap();
        assert_eq!(answer.first_line(), "SIP/2.0 302 Moved Temporarily");
        assert_eq!(
            contacts(&answer),
            [
                "<sip:bob@192.0.2.31>;expires=3599",
                "<sip:bob@192.0.2.32>;q=0.500;expires=3599",
                "<sip:bob@192.0.2.33>;q=0.007;expires=60",
            ]
        );
        // To an address that may be forged nothing is sent again.
        let kept = state == StateMode::Transaction && is_trusted;
        assert_eq!(brief(&out), if kept { vec!["caller 100"] } else { vec![] });
        // A copy gets the same; a CANCEL 200, whether its INVITE was kept or not (§8.3); the ACK ends here.
        let again = b.udp(CALLER, &invite()).pop().unwrap();
        assert_eq!(again.text, answer.text);
        assert_eq!(brief(&b.udp(CALLER, &cancel())), ["caller 200"]);
        if kept {
            assert_eq!(brief(&b.pass(510)), ["caller 302"]);
        }
        ack(&mut b, &answer);
        assert!(end(&mut b).is_empty());
        // Nor does it matter that what was kept has gone.
        assert_eq!(brief(&b.udp(CALLER, &cancel())), ["caller 200"]);
    }
}

/// A Route of another server comes before the rule that redirects: nothing of that CANCEL is known here (§9.2).
#[test]
fn a_cancel_with_a_route_of_another_is_not_redirected() {
    let mut config = redirect(Redirect::Location);
    config.listeners[0].preloaded_route = true;
    config.trust = vec![Network {
        address: "192.0.2.10".parse().unwrap(),
        prefix_len: 32,
    }];
    let mut b = Bench::new(&config);
    let cancel = request("CANCEL", BOB, "a1", "Route: <sip:198.51.100.7;lr>\n");
    assert_eq!(brief(&b.udp(CALLER, &cancel)), ["caller 481"]);
    b.assert_idle();
}

#[test]
fn a_stream_gets_its_302_once() {
    let mut b = registered(&redirect(Redirect::Location), &[phone(1)]);
    let flow = tcp_flow("192.0.2.10:40000", 3);
    let out = b.receive(flow, &invite().replace("SIP/2.0/UDP", "SIP/2.0/TCP"));
    assert_eq!(out[1].first_line(), "SIP/2.0 302 Moved Temporarily");
    assert_eq!(out[1].to.conn, flow.conn);
    assert!(b.pass(5_000).is_empty());
    end(&mut b);
}

#[test]
fn other_requests_are_redirected_as_well() {
    let mut b = registered(&redirect(Redirect::Location), &[phone(1)]);
    let out = one(b.udp(CALLER, &request("MESSAGE", BOB, "a1", "")));
    assert_eq!(
        (out.first_line(), contacts(&out).len()),
        ("SIP/2.0 302 Moved Temporarily", 1)
    );
    assert_eq!(
        b.udp(CALLER, &request("MESSAGE", BOB, "a1", ""))[0].text,
        out.text
    );
    end(&mut b);
}

#[test]
fn a_user_without_contacts_is_unavailable() {
    let mut b = registered(&redirect(Redirect::Location), &[]);
    let out = b.udp(CALLER, &invite());
    assert_eq!(
        lines(&out[out.len() - 1..]),
        [format!("{CALLER} SIP/2.0 480 Temporarily Unavailable")]
    );
    end(&mut b);
}

#[test]
fn a_uri_takes_over_the_user() {
    let told = |uri: &str, called: &str| {
        let mut b = Bench::new(&redirect(Redirect::Uri(uri.as_bytes().into())));
        let out = b.udp(CALLER, &request("INVITE", called, "a1", ""));
        contacts(out.last().unwrap()).join(" ")
    };
    assert_eq!(told("sip:new.example.net", BOB), "<sip:bob@new.example.net>");
    assert_eq!(
        told("sips:new.example.net:5070;x=1", BOB),
        "<sips:bob@new.example.net:5070;x=1>"
    );
    assert_eq!(
        told("sip:desk@new.example.net", BOB),
        "<sip:desk@new.example.net>"
    );
    assert_eq!(
        told("sip:new.example.net", "tel:+4930123"),
        "<sip:+4930123@new.example.net>"
    );
}

/// Bob's one phone responds with 302 and these contacts; what leaves then.
#[track_caller]
fn followed(contacts: &str) -> (Bench, Vec<Sent>) {
    let mut b = registered(&location_with(|r| r.recurse = true), &[phone(1)]);
    let sent = call(&mut b);
    assert_eq!(brief(&sent), ["1 INVITE"]);
    let out = answer_with(&mut b, &sent[0], "302 Moved Temporarily", contacts);
    assert_eq!(brief(&out)[0], "1 ACK");
    (b, out[1..].to_vec())
}

fn at(n: u8, params: &str) -> String {
    format!("Contact: <sip:x@192.0.2.3{n}>{params}\n")
}

/// §16.7 step 4: by q, in the same way as contacts of the location service.
#[test]
fn contacts_of_a_302_are_tried_by_q() {
    let (mut b, out) = followed(&(at(2, ";q=0.5") + &at(3, "") + &at(4, ";q=1.0") + &at(5, ";q=0.1")));
    assert_eq!(brief(&out), ["3 INVITE", "4 INVITE"]);
    assert_eq!(out[0].first_line(), "INVITE sip:x@192.0.2.33 SIP/2.0");
    assert_eq!(b.counters().recursions, 1);
    answer(&mut b, &out[0], "486 Busy Here");
    let next = answer(&mut b, &out[1], "486 Busy Here");
    assert_eq!(brief(&next), ["4 ACK", "2 INVITE"]);
    let next = answer(&mut b, &next[1], "404 Not Found");
    assert_eq!(brief(&next), ["2 ACK", "5 INVITE"]);
    let next = answer(&mut b, &next[1], "480 Temporarily Unavailable");
    assert_eq!(brief(&next), ["5 ACK", "caller 486"]);
    ack(&mut b, &next[1]);
    end(&mut b);
}

#[test]
fn a_recursion_may_recurse() {
    let (mut b, out) = followed(&at(2, ""));
    let out = answer_with(&mut b, &out[0], "301 Moved Permanently", &at(3, ""));
    assert_eq!(brief(&out), ["2 ACK", "3 INVITE"]);
    assert_eq!(brief(&answer(&mut b, &out[1], "200 OK")), ["caller 200"]);
    end(&mut b);
}

/// §16.5: "a given URI ... only once"; compared as URIs are (§19.1.4).
#[test]
fn no_uri_is_tried_twice() {
    let same = "Contact: <sip:x@192.0.2.32>, <sip:x@192.0.2.32:5060>, <SIP:%78@192.0.2.32>, \
                <sip:bob@EXAMPLE.com>, <sip:bob@192.0.2.31>\n";
    let (mut b, out) = followed(same);
    assert_eq!(
        brief(&out),
        ["2 INVITE", "2 INVITE"],
        "with and without a port they differ"
    );
    answer(&mut b, &out[1], "404 Not Found");
    // It sends back to where the call came from.
    let out = answer_with(
        &mut b,
        &out[0],
        "302 Moved Temporarily",
        "Contact: <sip:bob@example.com>\n",
    );
    assert_eq!(brief(&out), ["2 ACK", "caller 302"]);
    ack(&mut b, &out[1]);
    end(&mut b);
}

/// What a rule made of the Request-URI counts as tried.
#[test]
fn what_the_rule_made_is_not_tried_again() {
    let mut config = routed(sip_core::config::Action::Relay(sip_core::config::Relay {
        rewrite_host: true,
        recurse: true,
        ..sip_core::config::Relay::to(sip_core::config::RelayTarget::Uri(hop("sip:192.0.2.31")))
    }));
    config.routes[0].record_route = false;
    let mut b = Bench::new(&config);
    let sent = call(&mut b);
    assert_eq!(sent[0].first_line(), "INVITE sip:bob@192.0.2.31 SIP/2.0");
    let back = "Contact: <sip:bob@192.0.2.31>\n";
    let out = answer_with(&mut b, &sent[0], "302 Moved Temporarily", back);
    assert_eq!(brief(&out), ["1 ACK", "caller 302"]);
    ack(&mut b, &out[1]);
    end(&mut b);
}

/// Step 4: what is not tried here stays in the response that goes on.
#[test]
fn other_schemes_stay_in_the_response() {
    let (mut b, out) =
        followed(&("Contact: <tel:+4930123>, <mailto:bob@example.com>;q=0.3\n".to_string() + &at(2, "")));
    assert_eq!(brief(&out), ["2 INVITE"]);
    let out = answer(&mut b, &out[0], "404 Not Found");
    assert_eq!(brief(&out), ["2 ACK", "caller 302"]);
    assert_eq!(
        contacts(&out[1]),
        ["<tel:+4930123>", "<mailto:bob@example.com>;q=0.3"]
    );
    ack(&mut b, &out[1]);
    end(&mut b);
    // Nothing to try here: as it came.
    let (mut b, out) = followed("Contact: <tel:+4930123>\n");
    assert_eq!(brief(&out), ["caller 302"]);
    ack(&mut b, &out[0]);
    end(&mut b);
}

/// §16.7 step 4: "a proxy MUST NOT recurse to a non-SIPS URI if the Request-URI ... was a SIPS".
#[test]
fn sips_never_becomes_sip() {
    let mut config = location_with(|r| r.recurse = true);
    config.listeners.push(listener(Transport::Tls, "192.0.2.1:5061"));
    let mut b = registered(&config, &[with_contact(1, "sips:bob@192.0.2.31")]);
    let tls = sip_core::transport::Flow {
        transport: Transport::Tls,
        listener: sip_core::id::ListenerId(2),
        ..tcp_flow(CALLER, 3)
    };
    let sent = b.receive(tls, &request("INVITE", "sips:bob@example.com", "a1", ""));
    let sent = to(&sent, "192.0.2.31:5061");
    assert_eq!(sent.to.transport, Transport::Tls);
    let out = b.receive(sent.to, &response(&sent, "302 Moved Temporarily", &at(2, "")));
    assert_eq!(brief(&out), ["192.0.2.31:5061 ACK", "caller 302"]);
    assert_eq!(contacts(&out[1]), ["<sip:x@192.0.2.32>"]);
}

#[test]
fn the_limit_of_branches_bounds_recursion() {
    let mut config = location_with(|r| r.recurse = true);
    config.limits.branches = 3;
    let mut b = registered(&config, &[phone(1)]);
    let sent = call(&mut b);
    let many: String = (2..8).map(|n| at(n, "")).collect();
    let out = answer_with(&mut b, &sent[0], "302 Moved Temporarily", &many);
    assert_eq!(brief(&out), ["1 ACK", "2 INVITE", "3 INVITE"]);
    answer(&mut b, &out[1], "404 Not Found");
    let out = answer(&mut b, &out[2], "404 Not Found");
    // The caller gets the contacts that there was no room for.
    assert_eq!(brief(&out), ["3 ACK", "caller 302"]);
    assert_eq!(contacts(&out[1]).len(), 4);
    ack(&mut b, &out[1]);
    end(&mut b);
}

fn not_followed(config: &Config, uri: &str) {
    let mut b = registered(config, &[phone(1)]);
    let sent = b.udp(CALLER, &request("INVITE", uri, "a1", ""));
    let sent = sent
        .into_iter()
        .find(|s| s.first_line().starts_with("INVITE"))
        .unwrap();
    let out = answer_with(&mut b, &sent, "302 Moved Temporarily", &at(2, ""));
    assert_eq!(brief(&out).last().unwrap(), "caller 302", "{uri}");
    assert_eq!(contacts(out.last().unwrap()), ["<sip:x@192.0.2.32>"]);
}

#[test]
fn a_302_is_followed_only_where_the_rule_says_so_and_the_domain_is_ours() {
    not_followed(&location(), BOB);
    // §16.5: no targets are added for another's domain.
    let mut config = config();
    config.routes = vec![relay("sip:192.0.2.31")];
    if let sip_core::config::Action::Relay(relay) = &mut config.routes[0].action {
        relay.recurse = true;
    }
    not_followed(&config, "sip:bob@elsewhere.example");
    // 305 names a proxy, no target (§21.3.4).
    let (mut b, sent) = {
        let mut b = registered(&location_with(|r| r.recurse = true), &[phone(1)]);
        let sent = call(&mut b);
        (b, sent)
    };
    let out = answer_with(&mut b, &sent[0], "305 Use Proxy", &at(2, ""));
    assert_eq!(brief(&out), ["1 ACK", "caller 305"]);
}

#[test]
fn a_fork_recurses_behind_its_other_targets() {
    let mut b = registered(
        &location_with(|r| r.recurse = true),
        &[phone(1), phone(2), with_q(3, 500)],
    );
    let sent = call(&mut b);
    let out = answer_with(&mut b, &sent[0], "302 Moved Temporarily", &at(5, ""));
    assert_eq!(brief(&out), ["1 ACK"]);
    let out = answer(&mut b, &sent[1], "404 Not Found");
    assert_eq!(brief(&out), ["2 ACK", "3 INVITE"]);
    let out = answer(&mut b, &out[1], "404 Not Found");
    assert_eq!(brief(&out), ["3 ACK", "5 INVITE"]);
    assert_eq!(out[1].header("Max-Breadth"), "60");
    let out = answer(&mut b, &out[1], "404 Not Found");
    assert_eq!(brief(&out), ["5 ACK", "caller 404"]);
    ack(&mut b, &out[1]);
    end(&mut b);
}

/// RFC 5393: following a 302 to several places forks as well.
#[test]
fn a_recursion_to_several_shares_the_breadth_and_is_marked() {
    let config = location_with(|r| r.recurse = true);
    let follow = |received: &str| {
        let mut b = registered(&config, &[phone(1)]);
        let sent = call_with(&mut b, &request("INVITE", BOB, "a1", received));
        let contacts = at(2, "") + &at(3, "");
        let out = answer_with(&mut b, &sent[0], "302 Moved Temporarily", &contacts);
        (b, out[1..].to_vec())
    };
    let (mut b, out) = follow("Max-Breadth: 5\n");
    let breadths: Vec<&str> = out.iter().map(|s| s.header("Max-Breadth")).collect();
    assert_eq!((brief(&out).len(), breadths), (2, vec!["3", "2"]));
    // What comes back unchanged is a loop.
    let back = out[0]
        .text
        .replace("sip:x@192.0.2.32 SIP", "sip:bob@example.com SIP");
    let out = one(b.udp("192.0.2.32:5060", &back));
    assert_eq!(out.first_line(), "SIP/2.0 482 Loop Detected");
    let (_, out) = follow("Max-Breadth: 1\n");
    assert_eq!(brief(&out), ["2 INVITE"]);
}

#[test]
fn a_cancel_ends_recursion() {
    let (mut b, out) = followed(&(at(2, "") + &at(3, ";q=0.1")));
    answer(&mut b, &out[0], "180 Ringing");
    assert_eq!(sorted(&b.udp(CALLER, &cancel())), ["2 CANCEL", "caller 200"]);
    let out = answer_with(&mut b, &out[0], "302 Moved Temporarily", &at(4, ""));
    assert_eq!(brief(&out), ["2 ACK", "caller 302"]);
    ack(&mut b, &out[1]);
    end(&mut b);
}

#[test]
fn targets_of_a_302_are_located_by_name() {
    let (mut b, out) = followed("Contact: <sip:x@new.example.net:5060>\n");
    assert!(out.is_empty());
    let (_, out) = b.serve(&[("new.example.net A", vec![address("192.0.2.37")])]);
    assert_eq!(brief(&out), ["7 INVITE"]);
    assert_eq!(brief(&answer(&mut b, &out[0], "200 OK")), ["caller 200"]);
    end(&mut b);
}

/// A gateway that redirects: its contacts, and no other member.
#[test]
fn a_302_of_a_member_is_followed() {
    let config = grouped_with(group(Distribution::RoundRobin, 2), |r| r.recurse = true);
    let mut b = Bench::new(&config);
    let sent = call(&mut b);
    assert_eq!(brief(&sent), ["g1 INVITE"]);
    let out = answer_with(&mut b, &sent[0], "302 Moved Temporarily", &at(5, ""));
    assert_eq!(brief(&out), ["g1 ACK", "5 INVITE"]);
    // It is no member: its silence lasts as long as timer B.
    assert!(!brief(&b.pass(3_000)).iter().any(|s| s.starts_with("caller")));
    let out = answer(&mut b, &out[1], "486 Busy Here");
    assert_eq!(brief(&out), ["5 ACK", "caller 486"]);
    ack(&mut b, &out[1]);
    end(&mut b);
}

#[test]
fn a_message_may_recurse() {
    let mut b = registered(&location_with(|r| r.recurse = true), &[phone(1)]);
    let sent = b.udp(CALLER, &request("MESSAGE", BOB, "a1", ""));
    let out = answer_with(
        &mut b,
        &sent[0],
        "302 Moved Temporarily",
        &(at(2, "") + &at(3, "")),
    );
    assert_eq!(brief(&out), ["2 MESSAGE", "3 MESSAGE"]);
    assert_eq!(brief(&answer(&mut b, &out[1], "200 OK")), ["caller 200"]);
    end(&mut b);
}

#[test]
fn a_302_of_a_member_is_not_followed_after_a_cancel() {
    let config = grouped_with(group(Distribution::RoundRobin, 2), |r| r.recurse = true);
    let mut b = Bench::new(&config);
    let sent = call(&mut b);
    answer(&mut b, &sent[0], "180 Ringing");
    b.udp(CALLER, &cancel());
    let out = answer_with(&mut b, &sent[0], "302 Moved Temporarily", &at(5, ""));
    assert_eq!(brief(&out), ["g1 ACK", "caller 302"]);
    ack(&mut b, &out[1]);
    end(&mut b);
}

/// Its datagrams' source is all there is to try: its Contact leads to the same phone, for which a second INVITE
/// would be another call.
#[test]
fn a_phone_that_says_nothing_gets_one_invite() {
    for recurse in [true, false] {
        let config = location_with(|r| (r.recurse, r.timeout_s) = (recurse, Some(4)));
        let mut b = registered(&config, &[phone(1)]);
        let sent = call(&mut b);
        assert_eq!(brief(&sent), ["1 INVITE"]);
        let out = b.pass(6_000);
        let others = out.iter().filter(|s| s.text != sent[0].text);
        let others: Vec<Sent> = others.cloned().collect();
        assert_eq!(brief(&others)[0], "caller 480", "{recurse}");
        assert!(brief(&others).iter().all(|s| s.starts_with("caller")));
    }
}

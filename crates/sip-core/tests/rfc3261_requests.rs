//! Rules of RFC 3261 for requests, paragraph by paragraph: the server's own responses (§8.2, §11.2),
//! the registrar (§10.3), validation and targets (§16.3 to §16.6), URIs (§19.1) and header fields
//! (§20), where no other file of tests has them.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use crate::agent;
use crate::common;

use agent::*;
use common::*;
use sip_core::config::{Action, Config, Network, Relay, RelayTarget, Route, StateMode, When};
use sip_core::query::{QueryResult, Secrets};
use sip_core::transport::Transport;

const BOB: &str = "sip:bob@example.com";
const PHONE: &str = "192.0.2.30:5060";

fn stateless() -> Config {
    let mut config = config();
    config.state = StateMode::Stateless;
    config.routes[0].record_route = false;
    config
}

/// Nothing but the location decides.
fn registrar() -> Config {
    let mut config = stateless();
    config.routes.clear();
    config
}

fn to_request_uri() -> Config {
    let mut config = stateless();
    config.routes = vec![Route {
        when: When::default(),
        action: Action::Relay(Relay::to(RelayTarget::RequestUri)),
        auth: None,
        state: None,
        record_route: false,
    }];
    config
}

fn register(n: u32, contact: &str, extra: &str) -> String {
    request(
        "REGISTER",
        "sip:example.com",
        &format!("r{n}"),
        &format!("Contact: {contact}\n{extra}"),
    )
    .replace("From: <sip:alice@", "From: <sip:bob@")
    .replace("CSeq: 1 ", &format!("CSeq: {n} "))
}

fn first_line(config: &Config, text: &str) -> String {
    one(Bench::new(config).udp(CALLER, text)).first_line().to_string()
}

/// §11.2: Accept, Accept-Encoding, Accept-Language and Supported SHOULD be there; a proxy's response
/// has no Allow and no body.
#[test]
fn options_to_this_server_tell_what_it_can() {
    let out = one(Bench::new(&config()).udp(CALLER, &request("OPTIONS", "sip:192.0.2.1", "a1", "")));
    assert_eq!(out.first_line(), "SIP/2.0 200 OK");
    for (name, value) in [
        ("Accept", "*/*"),
        ("Accept-Encoding", "identity"),
        ("Accept-Language", "en"),
        ("Supported", "path"),
        ("Content-Length", "0"),
    ] {
        assert_eq!(out.headers(name), [value], "{name}");
    }
    assert!(out.headers("Allow").is_empty());
    assert!(out.text.ends_with("\r\n\r\n"));
}

/// §8.2.1: 405 with Allow for a method that is known; §21.5.2: 501 for one that is not; §20.5: all
/// that are taken here are named, ACK and CANCEL too. A proxy sends them on (§16.3 step 1).
#[test]
fn methods_to_the_server_itself_are_405_or_501() {
    for (method, answer) in [
        ("INVITE", "405 Method Not Allowed"),
        ("MESSAGE", "405 Method Not Allowed"),
        ("NEWMETHOD", "501 Not Implemented"),
        // Methods are case-sensitive (§7.1).
        ("options", "501 Not Implemented"),
    ] {
        let mut b = Bench::new(&config());
        let out = one(b.udp(CALLER, &request(method, "sip:192.0.2.1", "a1", "")));
        assert_eq!(out.first_line(), format!("SIP/2.0 {answer}"));
        assert_eq!(
            out.headers("Allow"),
            ["OPTIONS, REGISTER, ACK, CANCEL"],
            "{method}"
        );
    }
    for method in ["NEWMETHOD", "options", "a.b-c!%*_+`'~"] {
        assert_eq!(
            first_line(&config(), &request(method, BOB, "a1", "")),
            format!("{method} {BOB} SIP/2.0")
        );
    }
}

/// §8.2.2.3, §20.32, §20.40: each tag that is not known is named, however they are joined, and
/// those of Proxy-Require first of all.
#[test]
fn every_option_tag_that_is_not_known_is_named() {
    for (extra, unsupported) in [
        ("Require: foo, path\nRequire: PATH ,bar\n", vec!["foo, bar"]),
        ("Require:\n foo\n", vec!["foo"]),
        ("Require: foo\nProxy-Require: sec-agree\n", vec!["sec-agree"]),
        ("Require: path\nSupported: foo\nUnsupported: bar\n", vec![]),
    ] {
        let mut b = Bench::new(&config());
        let out = one(b.udp(CALLER, &request("OPTIONS", "sip:192.0.2.1", "a1", extra)));
        let status = if unsupported.is_empty() {
            "200 OK"
        } else {
            "420 Bad Extension"
        };
        assert_eq!(out.first_line(), format!("SIP/2.0 {status}"), "{extra}");
        assert_eq!(out.headers("Unsupported"), unsupported, "{extra}");
    }
}

/// §8.2.2.3: Require and Proxy-Require in CANCEL, and in the ACK to a failure, are ignored.
#[test]
fn require_in_ack_and_cancel_is_ignored() {
    let demands = "Require: foo\nProxy-Require: bar\n";
    let mut b = Bench::new(&config());
    let sent = b.udp(CALLER, &request("INVITE", BOB, "a1", "")).remove(1);
    let out = b.udp(CALLER, &request("CANCEL", BOB, "a1", demands));
    assert_eq!(lines(&out), [format!("{CALLER} SIP/2.0 200 OK")]);
    let out = b.udp(CALLEE, &response(&sent, "486 Busy Here", "")).remove(1);
    let ack = request("ACK", BOB, "a1", demands).replace("bob@example.com>", "bob@example.com>;tag=t1");
    assert_eq!(out.first_line(), "SIP/2.0 486 Busy Here");
    assert!(b.udp(CALLER, &ack).is_empty());
    // It was taken for what it is: the failure is not sent again.
    assert!(b.pass(4_000).is_empty());
    // Here, too, where there is nothing to cancel.
    let mut b = Bench::new(&config());
    let out = one(b.udp(CALLER, &request("CANCEL", "sip:192.0.2.1", "a1", demands)));
    assert_eq!(out.first_line(), "SIP/2.0 481 Call/Transaction Does Not Exist");
    assert!(
        b.udp(CALLER, &request("ACK", "sip:192.0.2.1", "a1", demands))
            .is_empty()
    );
}

/// §8.2.6.1: the Timestamp goes back in the 100, with the seconds that it took where it took any.
#[test]
fn a_100_has_the_timestamp_of_its_request() {
    let mut b = Bench::new(&config());
    let invite = request("INVITE", BOB, "a1", "Timestamp: 54.25 1\n");
    let out = b.udp(CALLER, &invite);
    assert_eq!(
        (out[0].first_line(), out[0].header("Timestamp")),
        ("SIP/2.0 100 Trying", "54.25 1")
    );
    // §17.2.1: no To tag in a 100, and none of the other headers.
    assert_eq!(out[0].header("To"), "<sip:bob@example.com>");
    b.pass(400);
    assert_eq!(one(b.udp(CALLER, &invite)).text, out[0].text);
    // A 100 to a non-INVITE is late (RFC 4320 §4.1).
    let mut b = Bench::new(&config());
    b.udp(CALLER, &request("MESSAGE", BOB, "a1", "Timestamp: 54.25 1\n"));
    let late = b.pass(3_600);
    let trying = late
        .iter()
        .find(|s| s.first_line() == "SIP/2.0 100 Trying")
        .unwrap();
    let (time, delay) = trying.header("Timestamp").split_once(' ').unwrap();
    assert_eq!(time, "54.25");
    let delay: f64 = delay.parse().unwrap();
    assert!((3.5..3.6).contains(&delay), "{delay}");
    // None where there was none.
    let mut b = Bench::new(&config());
    let out = b.udp(CALLER, &request("INVITE", BOB, "a1", ""));
    assert!(out[0].headers("Timestamp").is_empty());
}

/// RFC 4475 §3.1.2.1: a Via of which only sent-by can be read still says where a 400 goes; the
/// response has it as it came.
#[test]
fn a_broken_via_shows_the_way_by_its_host() {
    for (rest, to) in [
        (";;,;,,", "192.0.2.10:5060"),
        (":5070;;branch=z9hG4bKa1", "192.0.2.10:5070"),
        (" ;=,x", "192.0.2.10:5060"),
    ] {
        let via = format!("Via: SIP/2.0/UDP 192.0.2.99{rest}");
        for method in ["MESSAGE", "INVITE", "ACK"] {
            let text = request(method, BOB, "a1", "")
                .replace("Via: SIP/2.0/UDP 192.0.2.10:5060;branch=z9hG4bKa1", &via);
            let mut b = Bench::new(&config());
            let out = b.udp("192.0.2.10:40000", &text);
            if method == "ACK" {
                assert!(out.is_empty());
                continue;
            }
            let out = one(out);
            assert_eq!(
                (out.first_line(), out.address().as_str()),
                ("SIP/2.0 400 Missing Or Malformed Via", to)
            );
            assert!(out.text.contains(&format!("\r\n{via}\r\n")), "{}", out.text);
            for name in ["From", "Call-ID", "CSeq"] {
                assert!(
                    text.contains(&format!("{name}: {}\r\n", out.header(name))),
                    "{name}"
                );
            }
            b.assert_idle();
        }
    }
}

/// §16.3: "MUST NOT treat merged requests as an error condition".
#[test]
fn merged_requests_go_on() {
    let mut b = Bench::new(&config());
    for branch in ["a1", "a2"] {
        let out = b.udp(CALLER, &request("INVITE", BOB, branch, ""));
        assert_eq!(
            out[1].first_line(),
            "INVITE sip:bob@example.com SIP/2.0",
            "{branch}"
        );
    }
    assert_eq!(b.endpoint.gauges().server_transactions, 2);
}

/// §16.3 step 1: what a proxy does not need may be malformed or unknown; it stays as it is.
#[test]
fn what_a_proxy_does_not_need_may_be_malformed() {
    let odd = "Date: yesterday\nExpires: soon\nContact: <sip:x\nRecord-Route: ??\nContent-Type: /\nq: ?\n\
               Warning: 999\nTimestamp: x\nMin-Expires: -1\nRetry-After: (\nAccept: ;\nMIME-Version: a\n";
    for method in ["MESSAGE", "INVITE", "NEW"] {
        let out = one(Bench::new(&stateless()).udp(CALLER, &request(method, BOB, "a1", odd)));
        assert_eq!(out.first_line(), format!("{method} {BOB} SIP/2.0"));
        assert!(out.text.contains(&crlf(odd)), "{}", out.text);
    }
}

/// §16.3 step 3: 0 is not forwarded, whatever the method. For OPTIONS, which MAY get a response of
/// its own, RFC 4475 §3.3.11 wants 483, too. An ACK ends silently.
#[test]
fn max_forwards_0_ends_here() {
    for method in ["INVITE", "OPTIONS", "NEWMETHOD", "BYE"] {
        let text = request(method, BOB, "a1", "").replace("Max-Forwards: 70", "Max-Forwards: 0");
        assert_eq!(
            first_line(&config(), &text),
            "SIP/2.0 483 Too Many Hops",
            "{method}"
        );
    }
    let text = request("ACK", BOB, "a1", "").replace("Max-Forwards: 70", "Max-Forwards: 0");
    assert!(Bench::new(&config()).udp(CALLER, &text).is_empty());
}

/// §16.4: `maddr` of ours goes, with port and transport, where the request came by just these.
#[test]
fn a_maddr_of_ours_goes() {
    let config = to_request_uri();
    let cases = [
        // Of ours: stripped; the rest stays.
        (
            "sip:bob@198.51.100.9;maddr=192.0.2.1",
            "sip:bob@198.51.100.9",
            "198.51.100.9:5060",
        ),
        (
            "sip:bob@198.51.100.9:5060;user=phone;MADDR=proxy.example.com;transport=UDP;x",
            "sip:bob@198.51.100.9;user=phone;x",
            "198.51.100.9:5060",
        ),
        (
            "sip:bob@198.51.100.9;transport=udp;maddr=example.com",
            "sip:bob@198.51.100.9",
            "198.51.100.9:5060",
        ),
        // It did not come that way.
        (
            "sip:bob@198.51.100.9;transport=tcp;maddr=192.0.2.1",
            "sip:bob@198.51.100.9;transport=tcp;maddr=192.0.2.1",
            "192.0.2.1:5060",
        ),
        (
            "sip:bob@198.51.100.9:5099;maddr=192.0.2.1",
            "sip:bob@198.51.100.9:5099;maddr=192.0.2.1",
            "192.0.2.1:5099",
        ),
        // Another's.
        (
            "sip:bob@198.51.100.9;maddr=192.0.2.77",
            "sip:bob@198.51.100.9;maddr=192.0.2.77",
            "192.0.2.77:5060",
        ),
    ];
    for (uri, becomes, to) in cases {
        let out = one(Bench::new(&config).udp(CALLER, &request("MESSAGE", uri, "a1", "")));
        assert_eq!(lines(&[out]), [format!("{to} MESSAGE {becomes} SIP/2.0")]);
    }
}

/// §16.5: with another host's `maddr` the Request-URI is the only target, even in a domain of ours.
/// Without a rule for it, no caller may send here what is meant for another server.
#[test]
fn a_maddr_of_another_is_the_only_target() {
    let mut b = Bench::new(&registrar());
    b.udp(PHONE, &register(1, "<sip:bob@192.0.2.30>", ""));
    for (maddr, line) in [
        ("", "INVITE sip:bob@192.0.2.30 SIP/2.0"),
        (";maddr=192.0.2.1", "INVITE sip:bob@192.0.2.30 SIP/2.0"),
        (";maddr=192.0.2.77", "SIP/2.0 403 Forbidden"),
    ] {
        let out = one(b.udp(CALLER, &request("INVITE", &format!("{BOB}{maddr}"), "a1", "")));
        assert_eq!(out.first_line(), line, "{maddr}");
    }
    let out = one(Bench::new(&to_request_uri()).udp(
        CALLER,
        &request("MESSAGE", "sip:bob@example.com;maddr=192.0.2.77", "a1", ""),
    ));
    assert_eq!(out.address(), "192.0.2.77:5060");
    // In a dialog the remote target is followed as it is.
    let mut config = config();
    config.routes = vec![relay("sip:192.0.2.20:5060")];
    let mut b = Bench::new(&config);
    let out = b.udp(CALLER, &request("INVITE", BOB, "a1", ""));
    let route = route_of_caller(&mut b, udp_flow(CALLEE), &out[1]).remove(0);
    let route = format!("Route: {route}\n");
    let bye = request("BYE", "sip:bob@example.com;maddr=192.0.2.77", "a2", &route)
        .replace("bob@example.com>", "bob@example.com>;tag=t1");
    assert_eq!(one(b.udp(CALLER, &bye)).address(), "192.0.2.77:5060");
}

/// RFC 3263 §4: TARGET is `maddr` where there is one, an address or a name.
#[test]
fn maddr_is_the_target_that_is_located() {
    let config = to_request_uri();
    let mut b = Bench::new(&config);
    let uri = "sip:bob@gw.example:5070;maddr=192.0.2.77;transport=tcp";
    let out = one(b.udp(CALLER, &request("MESSAGE", uri, "a1", "")));
    assert_eq!(
        (out.address().as_str(), out.to.transport),
        ("192.0.2.77:5070", Transport::Tcp)
    );
    b.no_query();
    b.udp(
        CALLER,
        &request("MESSAGE", "sip:bob@gw.example:5070;maddr=m.example", "a2", ""),
    );
    let (asked, sent) = b.serve(&[("m.example A", vec![address("192.0.2.78")])]);
    assert_eq!(asked, ["m.example A"]);
    assert_eq!(one(sent).address(), "192.0.2.78:5070");
}

/// §16.6 step 1: no field is removed, reordered or joined, and the body is as it was; §19.1.5:
/// unknown parameters of the Request-URI pass.
#[test]
fn order_fields_and_body_stay() {
    let extra = "A: 1\nB: 2\nA: 3, 4\nContact: <sip:a@b>,<sip:c@d>\na: 5\n";
    let uri = "sip:bob;x=y@example.com;foo;transport=udp;lr;Bar=%41";
    let text =
        request("MESSAGE", uri, "a1", extra).replace("Content-Length: 0", "Content-Length: 3") + "\0\r\n";
    let out = one(Bench::new(&stateless()).udp(CALLER, &text));
    assert!(
        out.text
            .contains(&format!("\r\n{}Content-Length: 3\r\n\r\n\0\r\n", crlf(extra)))
    );
    assert_eq!(out.first_line(), format!("MESSAGE {uri} SIP/2.0"));
}

/// §16.6 step 4: the URI of a Record-Route is a SIP URI with `lr` which leads here, and says no
/// transport that the next hop was not reached by.
#[test]
fn a_record_route_leads_here() {
    for (to, transport) in [
        ("sip:192.0.2.20:5060", ""),
        ("sip:192.0.2.20:5060;transport=tcp", ";transport=tcp"),
    ] {
        let mut config = config();
        config.routes = vec![relay(to)];
        let mut b = Bench::new(&config);
        let sent = b.udp(CALLER, &request("INVITE", BOB, "a1", "")).remove(1);
        let top = sent.header("Record-Route");
        let start = format!("<sip:192.0.2.1:5060{transport};lr;");
        assert!(top.starts_with(&start) && top.ends_with('>'), "{top}");
    }
}

/// §17.1.1.3, §9.1, §8.2.2.3: what is made of an INVITE on its way has its route and none of its
/// demands, extensions and bodies.
#[test]
fn ack_and_cancel_have_the_route_and_not_the_demands() {
    let mut config = config();
    config.listeners[0].preloaded_route = true;
    config.trust = vec![Network {
        address: "192.0.2.10".parse().unwrap(),
        prefix_len: 32,
    }];
    let extra = "Route: <sip:192.0.2.1;lr>, <sip:192.0.2.21;lr>, <sip:b.example;lr>\nRequire: 100rel\nProxy-Require: path\n\
                 Supported: x\nContact: <sip:a@b>\nContent-Type: text/plain\n";
    let text = request("INVITE", BOB, "a1", extra).replace("Length: 0", "Length: 4") + "body";
    let mut b = Bench::new(&config);
    let sent = b.udp(CALLER, &text).remove(1);
    assert_eq!(
        (sent.address().as_str(), sent.headers("Require")),
        ("192.0.2.21:5060", vec!["100rel"])
    );
    let hop = "192.0.2.21:5060";
    b.udp(hop, &response(&sent, "180 Ringing", ""));
    let cancel = b.udp(CALLER, &request("CANCEL", BOB, "a1", "")).remove(1);
    let ack = b
        .udp(hop, &response(&sent, "487 Request Terminated", ""))
        .remove(0);
    for (derived, method, to) in [
        (&cancel, "CANCEL", "<sip:bob@example.com>"),
        (&ack, "ACK", "<sip:bob@example.com>;tag=t1"),
    ] {
        assert_eq!(derived.to, sent.to, "{method}");
        let expected = format!(
            "{method} {BOB} SIP/2.0\nVia: {}\nMax-Forwards: 70\nRoute: <sip:192.0.2.21;lr>, <sip:b.example;lr>\n\
             From: <sip:alice@example.com>;tag=f1\nTo: {to}\nCall-ID: c1@192.0.2.10\nCSeq: 1 {method}\nContent-Length: 0\n\n",
            sent.header("Via")
        );
        assert_eq!(derived.text, crlf(&expected));
    }
}

/// §9.2: a CANCEL has no effect on anything but an INVITE.
#[test]
fn a_cancel_of_another_method_has_no_effect() {
    let mut b = Bench::new(&config());
    let sent = one(b.udp(CALLER, &request("MESSAGE", BOB, "a1", "")));
    let out = b.udp(CALLER, &request("CANCEL", BOB, "a1", ""));
    assert_eq!(
        lines(&out),
        [format!("{CALLER} SIP/2.0 481 Call/Transaction Does Not Exist")]
    );
    let out = b.udp(CALLEE, &response(&sent, "200 OK", ""));
    assert_eq!(lines(&out), [format!("{CALLER} SIP/2.0 200 OK")]);
}

/// §10.3: Record-Route in a REGISTER is ignored, and there is none in the response; nor does a
/// binding get one.
#[test]
fn record_route_of_a_register_is_ignored() {
    let mut b = Bench::new(&registrar());
    let out = one(b.udp(
        PHONE,
        &register(1, "<sip:bob@192.0.2.30>", "Record-Route: <sip:192.0.2.9;lr>\n"),
    ));
    assert_eq!(out.first_line(), "SIP/2.0 200 OK");
    assert!(out.headers("Record-Route").is_empty() && out.headers("Route").is_empty());
    // §10.3 step 8, §20.17.
    assert_eq!(out.header("Date"), "Tue, 14 Nov 2023 22:13:21 GMT");
    let out = one(b.udp(CALLER, &request("MESSAGE", BOB, "a1", "")));
    assert_eq!((out.address().as_str(), out.headers("Route").len()), (PHONE, 0));
}

/// §10.3 steps 6, 7: Call-IDs are compared by bytes (§20.8): another one is of another client, and
/// its CSeq says nothing.
#[test]
fn another_call_id_may_begin_anew() {
    let mut b = Bench::new(&registrar());
    b.udp(PHONE, &register(7, "<sip:bob@192.0.2.30>", ""));
    let older = register(6, "<sip:bob@192.0.2.30>;expires=0", "");
    assert_eq!(
        one(b.udp(PHONE, &older)).first_line(),
        "SIP/2.0 500 CSeq Out Of Order"
    );
    let out = one(b.udp(PHONE, &older.replace("Call-ID: c1", "Call-ID: C1")));
    assert_eq!(
        (out.first_line(), out.headers("Contact").len()),
        ("SIP/2.0 200 OK", 0)
    );
}

/// RFC 3327 §4: a Path value is a loose route.
#[test]
fn a_path_without_lr_is_refused() {
    for (path, line) in [
        ("<sip:192.0.2.10>", "SIP/2.0 400 Malformed Path"),
        ("<sip:192.0.2.10;lr>", "SIP/2.0 200 OK"),
        (
            "<sip:192.0.2.10;lr=on>, <sip:192.0.2.8>",
            "SIP/2.0 400 Malformed Path",
        ),
    ] {
        let text = register(1, "<sip:bob@192.0.2.30>", &format!("Path: {path}\n"));
        assert_eq!(first_line(&registrar(), &text), line, "{path}");
    }
}

/// §8.2.4, RFC 3327 §5.3: no extension is applied for a client that does not say that it supports it.
#[test]
fn an_extension_is_used_only_if_supported() {
    for (supported, path) in [
        ("", vec![]),
        ("Supported: x, PATH\n", vec!["<sip:192.0.2.30;lr>"]),
    ] {
        let text = register(
            1,
            "<sip:bob@192.0.2.30>",
            &format!("Path: <sip:192.0.2.30;lr>\n{supported}"),
        );
        let out = one(Bench::new(&registrar()).udp(PHONE, &text));
        assert_eq!(out.headers("Path"), path, "{supported}");
        assert!(out.headers("Require").is_empty());
    }
}

/// RFC 7616 §3.4.4: `userhash` is not offered; no user has a hashed name.
#[test]
fn a_hashed_user_name_is_nobodys() {
    let mut config = config();
    config.domains[0].auth.methods = vec![b"MESSAGE"[..].into()];
    let mut b = Bench::new(&config);
    let out = one(b.udp(CALLER, &request("MESSAGE", BOB, "a1", "")));
    assert!(!out.header("Proxy-Authenticate").contains("userhash"));
    let mut login = login("MESSAGE", BOB);
    login.user = "0123456789abcdef0123456789abcdef".into();
    let credentials = login.answer(&nonce_of(&out)) + ", userhash=true";
    b.udp(
        CALLER,
        &request(
            "MESSAGE",
            BOB,
            "a2",
            &format!("Proxy-Authorization: {credentials}\n"),
        ),
    );
    let query = b.query();
    let out = b.answer(&query, QueryResult::Credentials(Ok(None::<Secrets>)));
    assert_eq!(one(out).first_line(), "SIP/2.0 407 Proxy Authentication Required");
}

/// §22.1: neither ACK nor CANCEL is challenged, with or without state.
#[test]
fn ack_and_cancel_are_not_challenged() {
    for state in [StateMode::Stateless, StateMode::Transaction] {
        let mut config = config();
        config.state = state;
        config.domains[0].auth.methods = ["INVITE", "ACK", "CANCEL"].map(|m| m.as_bytes().into()).into();
        for method in ["ACK", "CANCEL"] {
            let out = Bench::new(&config).udp(CALLER, &request(method, BOB, "a1", ""));
            assert!(
                out.iter().all(|s| !s.first_line().contains(" 40")),
                "{:?}",
                lines(&out)
            );
        }
    }
}

/// §20.16: 2**31 - 1 is the highest CSeq; §20.22: 255 hops are the most.
#[test]
fn numbers_at_their_bounds() {
    for (from, to, ok) in [
        ("CSeq: 1 ", "CSeq: 2147483647 ", true),
        ("CSeq: 1 ", "CSeq: 2147483648 ", false),
        ("CSeq: 1 ", "CSeq: 0 ", true),
        ("Max-Forwards: 70", "Max-Forwards: 255", true),
        ("Max-Forwards: 70", "Max-Forwards: 256", false),
    ] {
        let text = request("MESSAGE", BOB, "a1", "").replace(from, to);
        assert_eq!(first_line(&stateless(), &text).starts_with("MESSAGE"), ok, "{to}");
    }
}

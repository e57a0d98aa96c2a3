//! Messages that are broken on purpose: numbers that do not fit, quotes that never end, headers that
//! are longer than any host needs. Each is refused or dropped, and nothing is held of it.

use crate::common::{Bench, CALLEE, CALLER, Sent, config, listener};
use sip_core::transport::Transport;

/// An INVITE in which `from` stands as `to`.
fn changed(from: &str, to: &str) -> String {
    let text = "INVITE sip:bob@example.com SIP/2.0\r\nVia: SIP/2.0/UDP 192.0.2.10:5060;branch=z9hG4bKa\r\n\
         Max-Forwards: 70\r\nFrom: \"Alice\" <sip:alice@example.com>;tag=f1\r\nTo: <sip:bob@example.com>\r\n\
         Call-ID: c1\r\nCSeq: 1 INVITE\r\nContact: <sip:alice@192.0.2.10>\r\nContent-Length: 0\r\n\r\n";
    assert!(text.contains(from), "{from}");
    text.replace(from, to)
}

/// The response to the sender, if any; nothing is relayed, and nothing is held afterwards.
#[track_caller]
fn refusal(text: &str) -> Option<String> {
    let mut bench = Bench::new(&config());
    let sent = bench.udp(CALLER, text);
    assert!(sent.iter().all(|s| s.address() != CALLEE), "relayed: {text:?}");
    let told = sent.last().map(|s| s.first_line().to_owned());
    bench.pass(40_000);
    bench.assert_idle();
    told
}

const BAD: Option<&str> = Some("SIP/2.0 400");
const DROPPED: Option<&str> = None;

/// Asserts the status of the response to this message, or that there is no response.
#[track_caller]
fn assert_told(from: &str, to: &str, status: Option<&str>) {
    let told = refusal(&changed(from, to));
    let told = told.as_ref().map(|line| &line[..11]);
    assert_eq!(told, status, "{to:?}");
}

#[test]
fn numbers_that_do_not_fit_are_refused() {
    for cseq in [
        "2147483648",
        "4294967296",
        "18446744073709551616",
        "-1",
        "1e3",
        "0x1",
        "+1",
        "",
    ] {
        assert_told("CSeq: 1 INVITE", &format!("CSeq: {cseq} INVITE"), BAD);
    }
    for hops in ["256", "99999999999", "-1", "a"] {
        assert_told("Max-Forwards: 70", &format!("Max-Forwards: {hops}"), BAD);
    }
    // Where Via is broken, no response can be sent.
    for port in ["65536", "99999999999999999999", "-5", "0"] {
        assert_told("192.0.2.10:5060;", &format!("192.0.2.10:{port};"), DROPPED);
    }
}

/// Dropped where a response has nothing to copy, or nowhere to go.
#[test]
fn what_never_ends_is_refused() {
    for (from, to, status) in [
        ("\"Alice\" <", "\"Alice <", BAD),
        ("\"Alice\" <", "\"Ali\\\" <", BAD),
        ("<sip:alice@example.com>;tag", "<sip:alice@example.com;tag", BAD),
        ("To: <sip:bob@example.com>", "To: <sip:bob@example.com", BAD),
        ("To: <sip:bob@example.com>", "To: \"<sip:bob@example.com>", BAD),
        ("To: <sip:bob@example.com>", "To: ", DROPPED),
        ("To: <sip:bob@example.com>", "To: <>", BAD),
        ("Via: SIP/2.0/UDP", "Via: SIP/2.0/", DROPPED),
        ("Via: SIP/2.0/UDP", "Via: ", DROPPED),
        (";branch=z9hG4bKa", ";branch=\"z9hG4bKa", BAD),
        ("Call-ID: c1", "Call-ID: ", DROPPED),
        ("CSeq: 1 INVITE", "CSeq: 1", BAD),
        ("CSeq: 1 INVITE", "CSeq: 1 BYE", BAD),
        ("INVITE sip:bob@example.com SIP", "INVITE sip:bob@[::1 SIP", BAD),
        ("INVITE sip:bob@example.com SIP", "INVITE sip: SIP", BAD),
        (
            "INVITE sip:bob@example.com SIP",
            "INVITE  sip:bob@example.com SIP",
            BAD,
        ),
        ("SIP/2.0\r\nVia", "SIP/7.0\r\nVia", Some("SIP/2.0 505")),
    ] {
        assert_told(from, to, status);
    }
}

/// A datagram holds 64 kB; a tag, a branch or a Call-ID of that size is carried or refused, and let
/// go in time.
#[test]
fn very_long_tags_are_let_go() {
    let long = "x".repeat(60_000);
    for (from, to) in [
        ("tag=f1", format!("tag={long}")),
        ("z9hG4bKa", format!("z9hG4bK{long}")),
        ("Call-ID: c1", format!("Call-ID: {long}")),
        ("sip:alice@example.com", format!("sip:{long}@example.com")),
        ("Content-Length: 0", format!("X: {long}\r\nContent-Length: 0")),
        ("Content-Length: 0", format!("{long}: x\r\nContent-Length: 0")),
        ("INVITE sip:bob@", format!("INVITE sip:{long}@")),
    ] {
        let mut bench = Bench::new(&config());
        let sent = bench.udp(CALLER, &changed(from, &to));
        let told = |s: &Sent| s.address() == CALLEE || s.first_line().starts_with("SIP/2.0 4");
        assert!(sent.iter().any(told), "{from}");
        bench.pass(600_000);
        bench.assert_idle();
    }
}

/// More of a kind than the limits allow.
#[test]
fn too_many_of_a_kind_are_refused() {
    for (line, count) in [
        ("X: y\r\n", 300),
        ("Via: SIP/2.0/UDP h;branch=z9hG4bKx\r\n", 100),
        ("Route: <sip:a;lr>\r\n", 100),
        ("Record-Route: <sip:a;lr>\r\n", 300),
    ] {
        let lines = line.repeat(count);
        assert_told("Content-Length", &format!("{lines}Content-Length"), BAD);
    }
    let params = ";a".repeat(100);
    assert_told("tag=f1", &format!("tag=f1{params}"), BAD);
    let branch = format!(";branch=z9hG4bKa{params}");
    assert_told(";branch=z9hG4bKa", &branch, BAD);
}

/// Whatever came before, a well-formed call goes through.
#[test]
fn a_call_goes_through_afterwards() {
    let mut config = config();
    config
        .listeners
        .push(listener(Transport::Udp, "[2001:db8::1]:5060"));
    let mut bench = Bench::new(&config);
    for junk in [
        "\r\n\r\n",
        "\0\0\0\0",
        "INVITE",
        "SIP/2.0 200 OK\r\n\r\n",
        "GET / HTTP/1.1\r\n\r\n",
    ] {
        assert!(bench.udp(CALLER, junk).is_empty(), "{junk:?}");
    }
    let sent = bench.udp(CALLER, &changed("c1", "c1"));
    assert!(sent.iter().any(|s| s.address() == CALLEE), "{sent:?}");
}

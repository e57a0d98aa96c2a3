//! An edge before the registrar of far.example, and bob's phone behind a NAT before it.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use sip_core::config::{Config, Route, When};
use sip_core::location::Binding;
use sip_core::shared::SharedState as _;
use sip_core::transport::Flow;

use super::common::*;

pub const REGISTRAR: &str = "198.51.100.5:5060";
/// Where the requests of bob's phone come from.
pub const PHONE: &str = "203.0.113.7:40001";
/// What bob's phone takes for its address.
pub const CONTACT: &str = "sip:bob@192.168.1.2:5060";
pub const STRANGER: &str = "203.0.113.99:5060";

pub fn for_methods(methods: &[&str], domain: &str, to: &str) -> Route {
    Route {
        when: When {
            methods: methods.iter().map(|method| method.as_bytes().into()).collect(),
            domain: Some(domain.as_bytes().into()),
            ..When::default()
        },
        auth: if methods.is_empty() { Some(false) } else { None },
        ..relay(to)
    }
}

/// All requests to far.example go to its registrar; example.com is served here.
pub fn edge() -> Config {
    let mut config = all_transports();
    config.routes = vec![
        for_methods(&["REGISTER"], "far.example", "sip:198.51.100.5"),
        for_methods(&[], "far.example", "sip:198.51.100.5"),
    ];
    config
}

/// A REGISTER of bob's phone; CSeq number `n`.
pub fn register(n: u32, contact: &str, extra: &str) -> String {
    crlf(&format!(
        "REGISTER sip:far.example SIP/2.0\nVia: SIP/2.0/UDP 192.168.1.2:5060;branch=z9hG4bKr{n};rport\n\
         Max-Forwards: 70\nFrom: <sip:bob@far.example>;tag=r1\nTo: <sip:bob@FAR.example>\nCall-ID: r1@192.168.1.2\n\
         CSeq: {n} REGISTER\nContact: {contact}\n{extra}Content-Length: 0\n\n"
    ))
}

pub fn plain(n: u32) -> String {
    register(n, &format!("<{CONTACT}>"), "")
}

/// The REGISTER as the registrar gets it.
#[track_caller]
pub fn relayed(b: &mut Bench, flow: Flow, text: &str) -> Sent {
    let sent = one(b.receive(flow, text));
    assert_eq!(sent.address(), REGISTRAR, "{}", sent.text);
    assert_eq!(sent.first_line(), "REGISTER sip:far.example SIP/2.0");
    sent
}

/// The phone registers with this Contact, and the registrar accepts with these header lines. Returns the REGISTER as
/// relayed, and the 200 as the phone gets it.
#[track_caller]
pub fn accepted(b: &mut Bench, text: &str, extra: &str) -> (Sent, Sent) {
    let at_registrar = relayed(b, udp_flow(PHONE), text);
    let ok = one(b.udp(REGISTRAR, &response(&at_registrar, "200 OK", extra)));
    assert_eq!(
        (ok.address().as_str(), ok.first_line()),
        (PHONE, "SIP/2.0 200 OK")
    );
    (at_registrar, ok)
}

/// The Path that the registrar has of the phone.
#[track_caller]
pub fn path(b: &mut Bench) -> String {
    let path = relayed(b, udp_flow(PHONE), &plain(1)).header("Path").to_owned();
    assert!(path.contains("@192.0.2.1:5060;lr>"), "{path}");
    path
}

/// A request of the registrar, for alice, to bob's phone; `to_tag` with `;tag=`.
pub fn from_registrar(method: &str, branch: &str, to_tag: &str, route: &str) -> String {
    crlf(&format!(
        "{method} {CONTACT} SIP/2.0\nVia: SIP/2.0/UDP {REGISTRAR};branch=z9hG4bK{branch};rport\n\
         Via: SIP/2.0/UDP 192.0.2.10;branch=z9hG4bKc{branch}\nRecord-Route: <sip:198.51.100.5;lr>\nRoute: {route}\n\
         Max-Forwards: 69\nFrom: <sip:alice@far.example>;tag=f1\nTo: <sip:bob@far.example>{to_tag}\n\
         Call-ID: c1@192.0.2.10\nCSeq: 1 {method}\nContact: <sip:alice@192.0.2.10>\nContent-Length: 0\n\n"
    ))
}

pub fn bindings(b: &Bench) -> Vec<Binding> {
    let mut found = vec![];
    b.shared.read_bindings(b"bob@far.example", &mut |record| {
        found = record
            .bindings()
            .filter_map(Result::ok)
            .map(|b| b.to_owned())
            .collect();
    });
    found
}

/// The contact and the seconds that are left of it.
pub fn held(b: &Bench) -> Vec<(String, u64)> {
    let now = b.now().unix_ms / 1000;
    let one = |binding: &Binding| {
        let contact = String::from_utf8_lossy(&binding.contact).into_owned();
        (contact, binding.expires_unix_s - now)
    };
    bindings(b).iter().map(one).collect()
}

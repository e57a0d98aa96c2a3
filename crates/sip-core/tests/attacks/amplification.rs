//! Spoofed datagrams. A source that cannot show that it receives what we send gets no more than one
//! datagram for each of its own, and three times its bytes.

use proptest::prelude::*;
use sip_core::config::{Action, Algorithm, Config, Redirect, StateMode};
use sip_core::dispatcher::Distribution;

use crate::agent::nonce_of;
use crate::common::{Bench, CALLEE, CALLER, Sent, config, one, relay, request, response};
use crate::forks::{group, location, member, registered};
use crate::replay::{credentials, guarded};
use crate::{loops, refused, tokens};

pub(crate) const URI: &str = "sip:bob@example.com";
/// Somebody whose address the attacker writes.
const VICTIM: &str = "198.51.100.7:5060";

/// The bytes that came from an address and those that went there.
#[derive(Default)]
pub(crate) struct Tally {
    came: (usize, usize),
    went: (usize, usize),
    /// The first line of the last that went.
    last: String,
}

impl Tally {
    pub(crate) fn count(&mut self, sent: &[Sent]) {
        for sent in sent.iter().filter(|s| s.address() == VICTIM) {
            self.went.0 += 1;
            self.went.1 += sent.text.len();
            sent.first_line().clone_into(&mut self.last);
        }
    }

    pub(crate) fn forge(&mut self, bench: &mut Bench, text: &str) -> Vec<Sent> {
        self.came.0 += 1;
        self.came.1 += text.len();
        let sent = bench.udp(VICTIM, text);
        self.count(&sent);
        sent
    }

    fn pass(&mut self, bench: &mut Bench, ms: u64) {
        let sent = bench.pass(ms);
        self.count(&sent);
    }

    #[track_caller]
    fn assert_bounded(&self) {
        assert!(
            self.went.0 <= self.came.0,
            "{:?} for {:?} datagrams",
            self.went,
            self.came
        );
        assert!(
            self.went.1 <= 3 * self.came.1,
            "{:?} for {:?} bytes",
            self.went,
            self.came
        );
    }
}

fn text_of(method: &str, branch: &str, extra: &str) -> String {
    request(method, URI, branch, extra)
}

/// Whatever a stranger asks for, it gets one response, which is not repeated without an ACK.
#[test]
fn a_stranger_gets_one_datagram_for_one() {
    for method in [
        "INVITE",
        "REGISTER",
        "OPTIONS",
        "MESSAGE",
        "SUBSCRIBE",
        "BYE",
        "CANCEL",
        "ACK",
        "INFO",
        "PING",
    ] {
        for extra in [
            "",
            "Require: nothing\n",
            "Proxy-Require: nothing\n",
            "Route: <sip:192.0.2.1;lr>, <sip:elsewhere.example;lr>\n",
            "Proxy-Authorization: Digest username=\"alice\"\n",
            "Max-Forwards: 0\n",
            "Content-Length: 5\n",
        ] {
            let mut bench = guarded();
            let mut tally = Tally::default();
            tally.forge(&mut bench, &text_of(method, "a", extra));
            tally.pass(&mut bench, 600_000);
            tally.assert_bounded();
            bench.assert_idle();
        }
    }
}

/// A request with as few bytes as make one, since its length is what bounds the answer's.
pub(crate) fn short(method: &str, uri: &str, extra: &str) -> String {
    let to = if method == "REGISTER" { URI } else { uri };
    format!(
        "{method} {uri} SIP/2.0\nVia: SIP/2.0/UDP a;branch=z9hG4bKa\nFrom: <sip:a@b>;tag=f\nTo: <{to}>\nCall-ID: c\n\
         CSeq: 1 {method}\n{extra}\n"
    )
    .replace('\n', "\r\n")
}

type Edit = fn(&mut Config);
type Refused = (u16, Edit, &'static str, &'static str, &'static str);

/// All that refuses a stranger, with its shortest request.
pub(crate) const REFUSED: [Refused; 24] = [
    (400, |_| {}, "INVITE", URI, "Max-Forwards: x\n"),
    (400, |_| {}, "MESSAGE", URI, "no colon\n"),
    (401, |_| {}, "REGISTER", "sip:example.com", ""),
    (403, |_| {}, "INVITE", "sip:x@elsewhere.example", ""),
    (403, |_| {}, "MESSAGE", "tel:+1", ""),
    (403, |_| {}, "MESSAGE", URI, "Route: <sip:elsewhere.example;lr>\n"),
    (405, |_| {}, "INVITE", "sip:192.0.2.1", ""),
    (407, |_| {}, "INVITE", URI, ""),
    (407, |_| {}, "X", URI, ""),
    (416, |_| {}, "INVITE", "urn:x", ""),
    (
        420,
        |_| {},
        "MESSAGE",
        URI,
        "Proxy-Require: a,b,c,d,e,f,g,h,i,j\n",
    ),
    (
        420,
        open,
        "REGISTER",
        "sip:example.com",
        "Require: a,b,c,d,e,f,g,h,i,j\n",
    ),
    (
        423,
        open,
        "REGISTER",
        "sip:example.com",
        "Contact: <sip:a@b>;expires=1\n",
    ),
    (480, open, "INVITE", URI, ""),
    (480, open, "MESSAGE", URI, ""),
    (481, open, "CANCEL", URI, ""),
    (483, |_| {}, "INVITE", URI, "Max-Forwards: 0\n"),
    (501, |_| {}, "X", "sip:192.0.2.1", ""),
    (503, full, "MESSAGE", URI, ""),
    (505, |_| {}, "INVITE", URI, ""),
    (603, rejecting, "INVITE", URI, ""),
    (603, rejecting, "MESSAGE", URI, ""),
    (302, redirecting, "INVITE", URI, ""),
    (200, |_| {}, "OPTIONS", "sip:192.0.2.1", ""),
];

const fn untouched(_: &mut Config) {}

pub(crate) fn open(config: &mut Config) {
    config.domains[0].auth.methods.clear();
    config.routes.clear();
}

/// With a next hop, and no room for a transaction.
fn full(config: &mut Config) {
    open(config);
    config.routes = vec![relay("sip:192.0.2.20")];
    config.limits.transactions = 0;
}

/// With a next hop, and no state.
fn stateless(config: &mut Config) {
    open(config);
    config.routes = vec![relay("sip:192.0.2.20")];
    config.state = StateMode::Stateless;
}

fn rejecting(config: &mut Config) {
    let mut rule = relay("sip:192.0.2.20");
    rule.action = Action::Reject {
        status: 603,
        reason: b"Declined"[..].into(),
    };
    rule.auth = Some(false);
    config.routes = vec![rule];
}

fn redirecting(config: &mut Config) {
    let mut rule = relay("sip:192.0.2.20");
    rule.action = Action::Redirect(Redirect::Uri(b"sip:gw.example"[..].into()));
    rule.auth = Some(false);
    config.routes = vec![rule];
}

/// The status line that one of [`REFUSED`] gets, and all that was sent for it.
pub(crate) fn refuse((status, edit, method, uri, extra): Refused) -> (String, Tally) {
    let mut config = config();
    config.domains[0].auth.methods = vec![b"REGISTER"[..].into(), b"*"[..].into()];
    config.routes.clear();
    edit(&mut config);
    let mut text = short(method, uri, extra);
    if status == 505 {
        text = text.replacen("SIP/2.0\r\n", "SIP/3.0\r\n", 1);
    }
    let mut bench = Bench::new(&config);
    let mut tally = Tally::default();
    let sent = tally.forge(&mut bench, &text);
    let last = sent.last().map(|sent| sent.first_line().to_owned());
    tally.pass(&mut bench, 60_000);
    (last.unwrap_or_default(), tally)
}

#[test]
fn each_refusal_is_bounded_by_its_shortest_request() {
    for entry in REFUSED {
        let (status, _, method, uri, extra) = entry;
        let (line, tally) = refuse(entry);
        assert!(
            line.starts_with(&format!("SIP/2.0 {status} ")),
            "{line}: {method} {uri} {extra}"
        );
        tally.assert_bounded();
    }
}

/// A challenge does not depend on its request, whose sender may leave out what no phone leaves out.
#[test]
fn a_request_too_short_for_a_challenge_gets_none() {
    let mut challenged = [0, 0];
    for (algorithm, realm) in [
        (Algorithm::Md5, 3),
        (Algorithm::Sha512_256, 3),
        (Algorithm::Md5, 100),
        (Algorithm::Sha512_256, 100),
    ] {
        for (method, uri) in [
            ("A", "sip:b@example.com"),
            ("REGISTER", "sip:example.com"),
            ("INVITE", "sip:b@example.com"),
        ] {
            for (from, pad) in [("a:b", 0), ("a:b;tag=1", 0), ("<sip:a@b>;tag=1", 0), ("a:b", 400)] {
                let mut config = config();
                config.domains[0].auth.methods = vec![b"*"[..].into()];
                config.domains[0].auth.algorithms = vec![algorithm];
                config.domains[0].auth.realm = "r".repeat(realm).into_bytes().into();
                let mut bench = Bench::new(&config);
                let mut tally = Tally::default();
                let text = format!(
                    "{method} {uri} SIP/2.0\r\nv:SIP/2.0/UDP a\r\nf:{from}\r\nt:sip:a@example.com\r\ni:1\r\n\
                     CSeq:1 {method}\r\nx:{}\r\n\r\n",
                    "x".repeat(pad)
                );
                let sent = tally.forge(&mut bench, &text);
                tally.assert_bounded();
                let line = one(sent).first_line().to_owned();
                let is_challenge = line.contains(" 401 ") || line.contains(" 407 ");
                challenged[usize::from(is_challenge)] += 1;
                assert!(is_challenge || line == "SIP/2.0 400 Too Short", "{line}");
                assert!(is_challenge || pad == 0, "{line}");
            }
        }
    }
    assert!(challenged.iter().all(|count| *count > 5), "{challenged:?}");
}

type Scene = fn(&mut Tally) -> Bench;

/// Responses that refuse an untrusted source after more than one message, or depend on more than the
/// configuration: how each is begun, and how it ends within a minute.
///
/// Not here: what [`refused`] gives a reason for. 413 is the answer to a stream, whose peer has shown that it receives.
/// A rule that asks no caller sends its responses to INVITEs again (timer G).
pub(crate) const REFUSED_LATER: [(&str, Scene); 23] = [
    ("SIP/2.0 403 Destination Denied", refused::destination),
    ("SIP/2.0 403 Path Not Trusted", refused::path),
    ("SIP/2.0 403 Source Not Proved", unproved),
    ("SIP/2.0 403 Too Many Contacts", many_contacts),
    ("SIP/2.0 403 Too Many New Addresses", refused::new_addresses),
    ("SIP/2.0 404 Not Found", refused::not_found),
    ("SIP/2.0 408 Request Timeout", |tally| {
        within_a_call(tally, "INVITE").0
    }),
    ("SIP/2.0 430 Flow Failed", flow_gone),
    ("SIP/2.0 439 First Hop Lacks Outbound Support", refused::first_hop),
    ("SIP/2.0 440 Max-Breadth Exceeded", |tally| {
        located(
            tally,
            "INVITE",
            &["sip:x@192.0.2.77", "sip:x@192.0.2.78"],
            "Max-Breadth: 0\n",
        )
    }),
    ("SIP/2.0 480 Contact Denied", |tally| {
        located(tally, "INVITE", &["sip:x@127.0.0.1:8080"], "")
    }),
    ("SIP/2.0 480 Temporarily Unavailable", |tally| {
        let mut bench = located(tally, "MESSAGE", &["sip:x@a.example"], "");
        tally.count(&bench.serve(&[]).1);
        bench
    }),
    ("SIP/2.0 480 Temporarily Unavailable", refused::sips),
    ("SIP/2.0 482 Loop Detected", brought_back),
    ("SIP/2.0 487 Request Terminated", cancelled),
    ("SIP/2.0 500 CSeq Out Of Order", refused::out_of_order),
    ("SIP/2.0 500 Next Hop Not Found", refused::next_hop),
    (
        "SIP/2.0 500 No Listener Reaches The Next Hop",
        refused::no_listener,
    ),
    ("SIP/2.0 500 No Member Of The Group Is Up", refused::no_member),
    ("SIP/2.0 500 Server Internal Error", |tally| {
        undelivered(tally, "INVITE")
    }),
    ("SIP/2.0 500 Server Internal Error", |tally| {
        undelivered(tally, "MESSAGE")
    }),
    ("SIP/2.0 502 Bad Gateway", |tally| {
        let (mut bench, invite) = within_a_call(tally, "INVITE");
        let flawed = response(&invite, "486 Busy Here", "Call-ID: another\n");
        tally.count(&bench.udp(CALLER, &flawed));
        bench
    }),
    ("SIP/2.0 503 Service Unavailable", refused::full),
];

/// A call of the attacker's own, with the Record-Route that its callee got. The mark in there lets a request in from any
/// address, and proves none.
pub(crate) fn own_call() -> (Bench, String) {
    let mut bench = guarded();
    let nonce = nonce_of(&one(bench.udp(CALLER, &text_of("INVITE", "a", ""))));
    let invite = text_of("INVITE", "b", &credentials(&nonce, "INVITE", 1));
    let sent = bench.udp(CALLER, &invite);
    let route = sent[1].header("Record-Route").to_owned();
    bench.pass(40_000);
    (bench, route)
}

/// A request from the forged address in a call of the attacker's own, and how it goes on.
fn within_a_call(tally: &mut Tally, method: &str) -> (Bench, Sent) {
    let (mut bench, route) = own_call();
    let forwarded = one(tally.forge(&mut bench, &callees(method, "x", &route)));
    assert_eq!(forwarded.address(), CALLER, "{}", forwarded.text);
    (bench, forwarded)
}

/// A request of the called side.
pub(crate) fn callees(method: &str, branch: &str, route: &str) -> String {
    let route = format!("Route: {route}\n");
    request(method, "sip:alice@192.0.2.10", branch, &route)
        .replace(
            "From: <sip:alice@example.com>;tag=f1",
            "From: <sip:bob@example.com>;tag=t1",
        )
        .replace("To: <sip:bob@example.com>", "To: <sip:alice@example.com>;tag=f1")
}

/// No message of the other side's leaves this machine.
fn undelivered(tally: &mut Tally, method: &str) -> Bench {
    let (mut bench, sent) = within_a_call(tally, method);
    tally.count(&bench.undelivered(&sent));
    bench
}

fn cancelled(tally: &mut Tally) -> Bench {
    let (mut bench, invite) = within_a_call(tally, "INVITE");
    let route = format!("Route: {}\n", invite.header("Record-Route"));
    tally.forge(&mut bench, &callees("CANCEL", "x", &route));
    let sent = bench.udp(CALLER, &response(&invite, "180 Ringing", ""));
    assert!(
        sent.iter().any(|sent| sent.first_line().starts_with("CANCEL")),
        "{sent:?}"
    );
    tally.count(&sent);
    tally.count(&bench.udp(CALLER, &response(&invite, "487 Request Terminated", "")));
    bench
}

/// A call to a user with these registered contacts.
fn located(tally: &mut Tally, method: &str, contacts: &[&str], extra: &str) -> Bench {
    let phones: Vec<_> = (1..)
        .zip(contacts)
        .map(|(n, contact)| loops::lost(n, contact))
        .collect();
    let mut bench = registered(&location(), &phones);
    tally.forge(&mut bench, &short(method, URI, extra));
    bench
}

/// Through another proxy, which brings it back from the forged address.
fn brought_back(tally: &mut Tally) -> Bench {
    let contacts = [7, 8].map(|n| loops::lost(n, &format!("sip:bob@192.0.2.7{n}")));
    let mut bench = registered(&location(), &contacts);
    let sent = bench.udp(CALLER, &short("INVITE", URI, ""));
    let onward = &sent
        .iter()
        .find(|sent| sent.address() == "192.0.2.77:5060")
        .unwrap()
        .text;
    let back = onward.replacen("sip:bob@192.0.2.77", URI, 1).replacen(
        "Via: ",
        "Via: SIP/2.0/UDP a;branch=z9hG4bKo\r\nVia: ",
        1,
    );
    tally.forge(&mut bench, &back);
    bench
}

/// The forged address is a gateway's.
fn unproved(tally: &mut Tally) -> Bench {
    let mut config = config();
    open(&mut config);
    let mut gateways = group(Distribution::RoundRobin, 1);
    gateways.members = vec![member("sip:198.51.100.7")];
    config.groups = vec![gateways];
    let mut bench = Bench::new(&config);
    let text = short("REGISTER", "sip:example.com", "Contact: <sip:a@b>\n");
    tally.forge(&mut bench, &text);
    bench
}

fn many_contacts(tally: &mut Tally) -> Bench {
    let mut config = config();
    open(&mut config);
    config.limits.contacts_per_aor = 0;
    let mut bench = Bench::new(&config);
    let text = short("REGISTER", "sip:example.com", "Contact: <sip:a@b>\n");
    tally.forge(&mut bench, &text);
    bench
}

/// A call of the attacker's own, in which the other side's connection is gone.
fn flow_gone(tally: &mut Tally) -> Bench {
    let mut before = Bench::new(&tokens::located());
    let route = tokens::established(&mut before).join(", ");
    let mut bench = Bench::new(&tokens::located());
    let sent = tally.forge(&mut bench, &tokens::within("c1@", "b1", &route));
    tally.count(&bench.undelivered(&sent[0]));
    bench
}

#[test]
fn each_refusal_that_comes_later_is_bounded_too() {
    for (expected, scene) in REFUSED_LATER {
        let mut tally = Tally::default();
        let mut bench = scene(&mut tally);
        tally.pass(&mut bench, 600_000);
        assert_eq!(tally.last, expected);
        tally.assert_bounded();
        bench.assert_idle();
    }
}

proptest! {
    /// Whatever a datagram of a stranger asks for, and however often, all responses to it are three
    /// times as long as it is at most.
    #[test]
    fn no_refusal_is_much_longer_than_its_request(
        method in prop::sample::select(vec!["INVITE", "REGISTER", "OPTIONS", "MESSAGE", "BYE", "X"]),
        uri in prop::sample::select(vec![
            URI, "sip:example.com", "sip:x@elsewhere.example", "tel:+1", "urn:x", "sips:bob@example.com", "sip:@",
        ]),
        algorithms in 1usize..4,
        lines in prop::collection::vec((0usize..12, 1usize..200), 0..4),
        cut in prop::option::of(0usize..400),
        edit in prop::sample::select(vec![untouched as Edit, open, full, rejecting, redirecting, stateless]),
    ) {
        let mut config = config();
        config.domains[0].auth.methods = vec![b"*"[..].into()];
        edit(&mut config);
        config.domains[0].auth.algorithms =
            [Algorithm::Sha512_256, Algorithm::Sha256, Algorithm::Md5][..algorithms].to_vec();
        let extra: String = lines.iter().map(|(kind, count)| match kind {
            0 => format!("Proxy-Require: {}\n", vec!["a"; *count].join(",")),
            1 => format!(
                "Proxy-Require: {}\n",
                (0..*count).map(|n| n.to_string()).collect::<Vec<_>>().join(",")
            ),
            2 => format!("Require: {}\n", vec!["a"; *count].join(",")),
            3 => "Route: <sip:elsewhere.example;lr>\n".to_owned(),
            4 => format!("Via: {}\n", vec!["SIP/2.0/UDP a"; *count].join(",")),
            5 => "Timestamp: 1\n".to_owned(),
            6 => "Max-Forwards: 0\n".to_owned(),
            7 => "Content-Length: 7\n".to_owned(),
            8 => "Proxy-Authorization: Digest username=\"alice\"\n".to_owned(),
            9 => "Contact: *\n".to_owned(),
            10 => "no colon\n".to_owned(),
            _ => "Expires: 1\n".to_owned(),
        }).collect();
        let mut text = request(method, uri, "a", &extra);
        // Each of these stands once.
        for (name, usual) in [("Max-Forwards: 0", "Max-Forwards: 70"), ("Content-Length: 7", "Content-Length: 0")] {
            if text.contains(&format!("{name}\r\n")) {
                text = text.replace(&format!("{usual}\r\n"), "");
            }
        }
        if let Some(cut) = cut {
            text.truncate(cut);
        }
        let mut bench = Bench::new(&config);
        let mut tally = Tally::default();
        tally.forge(&mut bench, &text);
        tally.pass(&mut bench, 60_000);
        tally.assert_bounded();
    }
}

/// A nonce that went elsewhere shows nothing of this address, though its owner has an account.
#[test]
fn credentials_obtained_elsewhere_prove_nothing() {
    for cached in [true, false] {
        let mut bench = guarded();
        let nonce = nonce_of(&one(bench.udp(CALLER, &text_of("INVITE", "a", ""))));
        if !cached {
            bench.shared.cached.lock().unwrap().clear();
        }
        let mut tally = Tally::default();
        let good = credentials(&nonce, "INVITE", 1);
        let answer = one(tally.forge(&mut bench, &text_of("INVITE", "b", &good)));
        assert_eq!(answer.first_line(), "SIP/2.0 407 Proxy Authentication Required");
        assert!(
            answer.header("Proxy-Authenticate").ends_with(", stale=true"),
            "{}",
            answer.text
        );
        bench.no_query();
        tally.pass(&mut bench, 40_000);
        tally.assert_bounded();
        // A client that has moved uses the new challenge.
        let moved = nonce_of(&answer);
        let again = credentials(&moved, "INVITE", 1);
        let sent = bench.udp(VICTIM, &text_of("INVITE", "c", &again));
        assert_eq!(sent.iter().any(|s| s.address() == CALLEE), cached);
    }
}

/// A call of the attacker's own, in which it then forges the other side's address: the mark in Route
/// admits a request of the dialog, and proves no address.
#[test]
fn a_request_in_a_dialog_is_answered_once() {
    for (status, repeated) in [("486 Busy Here", false), ("200 OK", true)] {
        let mut bench = guarded();
        let nonce = nonce_of(&one(bench.udp(CALLER, &text_of("INVITE", "a", ""))));
        let invite = text_of("INVITE", "b", &credentials(&nonce, "INVITE", 1));
        let sent = bench.udp(CALLER, &invite);
        // The caller is verified, and gets its 100 at once (§17.2.1).
        assert_eq!(sent[0].first_line(), "SIP/2.0 100 Trying");
        let route = sent[1].header("Record-Route").to_owned();
        let within = callees("INVITE", "x", &route);
        let mut tally = Tally::default();
        let forwarded = one(tally.forge(&mut bench, &within));
        assert_eq!(forwarded.address(), CALLER, "{}", forwarded.text);
        for status in ["180 Ringing", status] {
            let sent = bench.udp(CALLER, &response(&forwarded, status, ""));
            tally.count(&sent);
        }
        assert_eq!(tally.went.0, 1, "the final answer");
        for _ in 0..10 {
            tally.pass(&mut bench, 500);
            if repeated {
                let sent = bench.udp(CALLER, &response(&forwarded, status, ""));
                tally.count(&sent);
            }
        }
        assert_eq!(tally.went.0, 1, "{status}");
        // A copy of the request has it sent again: nothing is lost for a client that is really there.
        tally.forge(&mut bench, &within);
        if repeated {
            let sent = bench.udp(CALLER, &response(&forwarded, status, ""));
            tally.count(&sent);
        }
        assert_eq!(tally.went.0, 2, "{status}");
        tally.assert_bounded();
        bench.pass(600_000);
        bench.assert_idle();
    }
}

/// The responses to a verified caller, and to one that the configuration exempts: timer G (§17.2.1).
#[test]
fn a_proved_source_gets_copies_until_it_acknowledges() {
    let mut bench = guarded();
    let nonce = nonce_of(&one(bench.udp(CALLER, &text_of("INVITE", "a", ""))));
    let invite = text_of("INVITE", "b", &credentials(&nonce, "INVITE", 1));
    let forwarded = bench.udp(CALLER, &invite).remove(1);
    let first = bench.udp(CALLEE, &response(&forwarded, "486 Busy Here", ""));
    assert!(first.iter().any(|s| s.address() == CALLER));
    let repeated = bench.pass(32_000);
    assert_eq!(repeated.iter().filter(|s| s.address() == CALLER).count(), 10);
}

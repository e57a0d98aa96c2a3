//! Callers without a network: the tests read their requests, and write the responses.

use std::time::Duration;

use sip_message::{HeaderIndex, parse};

use super::*;
use crate::plan::{Connections, TlsPlan, Users};
use crate::schedule::Offered;

const SECOND: Micros = 1_000_000;

pub(crate) fn plan(kind: Kind, transport: Transport) -> Plan {
    Plan {
        kind,
        transport,
        target: ([192, 0, 2, 1], 5060).into(),
        local: None,
        domain: "example.com".into(),
        server: "example.com".into(),
        users: Users::Numbered {
            prefix: "u".into(),
            count: 3,
            password: "p{n}".into(),
        },
        digest: false,
        reuse_nonce: false,
        offered: Offered {
            rate: 1.0,
            ramp: None,
            poisson: false,
            seed: 1,
        },
        warmup: Duration::ZERO,
        duration: Duration::from_secs(1000),
        drain: None,
        hold: Duration::ZERO,
        t1: Duration::from_millis(500),
        answer_within: Duration::from_secs(60),
        connections: Connections::Shared(1),
        text_len: 10,
        contact: None,
        outbound: false,
        expires_s: 60,
        callee: None,
        max_calls: 2,
        tls: TlsPlan::default(),
        path: "/".into(),
        run: 0xabcd_1234,
    }
}

struct Bench {
    uac: Uac,
    now: Micros,
    out: Outbox,
    stats: Stats,
    link: To,
}

impl Bench {
    fn new(plan: Plan) -> Self {
        let link = match plan.transport {
            Transport::Udp => To::Address(plan.target),
            Transport::Tcp | Transport::Tls | Transport::Ws | Transport::Wss => To::Connection(7),
        };
        Self {
            uac: Uac::new(Arc::new(plan), "198.51.100.1:5090"),
            now: 0,
            out: Outbox::default(),
            stats: Stats::new(0..1000 * SECOND),
            link,
        }
    }

    #[track_caller]
    fn with<T>(&mut self, act: impl FnOnce(&mut Uac, &mut Turn<'_>) -> T) -> (T, Vec<String>) {
        let mut turn = Turn {
            now: self.now,
            out: &mut self.out,
            stats: &mut self.stats,
        };
        let result = act(&mut self.uac, &mut turn);
        let sent = (0..self.out.len()).filter_map(|i| self.out.get(i));
        let sent = sent
            .map(|(_, bytes)| String::from_utf8(bytes.to_vec()).unwrap())
            .collect();
        self.out.clear();
        (result, sent)
    }

    /// Begins a call. Returns its request.
    #[track_caller]
    fn start(&mut self) -> String {
        let (now, link) = (self.now, self.link);
        let (begun, mut sent) = self.with(|uac, turn| uac.start(turn, now, link));
        assert!(begun && sent.len() == 1);
        sent.remove(0)
    }

    #[track_caller]
    fn get(&mut self, response: &str) -> Vec<String> {
        let mut index = HeaderIndex::new();
        let message = parse(response.as_bytes(), &mut index, 64).unwrap();
        let link = self.link;
        self.with(|uac, turn| uac.receive(turn, link, &message)).1
    }

    /// Lets time pass. Returns the messages sent, with their times.
    fn pass(&mut self, until: Micros) -> Vec<(Micros, String)> {
        let mut all = Vec::new();
        while let Some(at) = self.uac.next().filter(|at| *at <= until) {
            self.now = at;
            let (_, sent) = self.with(|uac, turn| uac.wake(turn));
            all.extend(sent.into_iter().map(|text| (at, text)));
        }
        self.now = until;
        all
    }

    fn failed(&self) -> Vec<String> {
        self.stats.failures.keys().map(|cause| cause.name()).collect()
    }
}

#[track_caller]
fn field<'a>(message: &'a str, name: &str) -> &'a str {
    let line = message
        .lines()
        .find_map(|line| line.strip_prefix(&format!("{name}: ")));
    line.unwrap_or_else(|| panic!("no {name} in {message}"))
}

/// A response to `request`, with more fields.
fn answer(request: &str, status: u16, more: &str) -> String {
    let copied =
        ["Via", "From", "Call-ID", "CSeq"].map(|name| format!("{name}: {}\r\n", field(request, name)));
    let tag = if status == 100 || field(request, "To").contains("tag=") {
        ""
    } else {
        ";tag=t"
    };
    let to = field(request, "To");
    format!(
        "SIP/2.0 {status} X\r\n{}To: {to}{tag}\r\n{more}Content-Length: 0\r\n\r\n",
        copied.concat()
    )
}

const CONTACT: &str = "Contact: <sip:uas@203.0.113.9:5070>\r\nRecord-Route: <sip:a;lr>, <sip:b;lr>\r\n";

#[track_caller]
fn method(message: &str) -> &str {
    message.split(' ').next().unwrap()
}

#[test]
fn a_call_from_invite_to_the_end_of_its_bye() {
    let mut b = Bench::new(plan(Kind::Call, Transport::Udp));
    let invite = b.start();
    assert!(invite.starts_with(
        "INVITE sip:u00001@example.com SIP/2.0\r\nVia: SIP/2.0/UDP 198.51.100.1:5090;branch=z9hG4bK"
    ));
    assert!(b.get(&answer(&invite, 100, "")).is_empty());
    b.now = 20_000;
    assert!(b.get(&answer(&invite, 180, "")).is_empty());
    b.now = 30_000;
    let sent = b.get(&answer(&invite, 200, CONTACT));
    let [ack, bye] = &sent[..] else { panic!("{sent:?}") };
    for (request, name) in [(ack, "ACK"), (bye, "BYE")] {
        assert!(
            request.starts_with(&format!("{name} sip:uas@203.0.113.9:5070 SIP/2.0\r\n")),
            "{request}"
        );
        assert!(
            request.contains("Route: <sip:b;lr>\r\nRoute: <sip:a;lr>\r\n"),
            "reversed (§12.1.2): {request}"
        );
        assert!(field(request, "To").ends_with(";tag=t"));
    }
    assert_eq!((field(ack, "CSeq"), field(bye, "CSeq")), ("1 ACK", "2 BYE"));
    assert_ne!(
        field(ack, "Via"),
        field(&invite, "Via"),
        "a transaction of its own (§13.2.2.4)"
    );
    assert_ne!(field(ack, "Via"), field(bye, "Via"));
    // The 200 is repeated, and so is the ACK.
    assert_eq!(b.get(&answer(&invite, 200, CONTACT)), std::slice::from_ref(ack));
    assert!(b.get(&answer(bye, 200, "")).is_empty());
    assert_eq!((b.stats.succeeded, b.uac.under_way()), (1, 0));
    // The ACK follows even if the slot has another call.
    b.start();
    let late = b.get(&answer(&invite, 200, CONTACT));
    assert!(
        late[0].starts_with("ACK sip:uas@203.0.113.9:5070 SIP/2.0\r\n")
            && late[0].contains("Route: <sip:b;lr>\r\nRoute: <sip:a;lr>")
    );
    assert_eq!(
        (late.len(), field(&late[0], "CSeq"), field(&late[0], "Call-ID")),
        (1, "1 ACK", field(&invite, "Call-ID"))
    );
    b.with(|uac, turn| uac.stop(turn));
    // No timer has an effect any more, and a late response is ignored.
    assert!(b.pass(200 * SECOND).is_empty());
    assert!(b.get(&answer(bye, 200, "")).is_empty());
    assert_eq!(b.stats.succeeded, 1);
}

/// §17.1.1.2 for INVITE, §17.1.2.2 for all others: times of retransmissions, and of the end.
#[test]
fn requests_are_sent_again_and_given_up_at_their_times() {
    let halves = |times: &[Micros]| times.iter().map(|n| n * SECOND / 2).collect::<Vec<_>>();
    let invite = halves(&[1, 3, 7, 15, 31, 63]);
    let others = halves(&[1, 3, 7, 15, 23, 31, 39, 47, 55, 63]);
    for (kind, expected) in [
        (Kind::Call, &invite),
        (Kind::Register, &others),
        (Kind::Options, &others),
        (Kind::Message, &others),
    ] {
        let mut b = Bench::new(plan(kind, Transport::Udp));
        let request = b.start();
        let sent = b.pass(31_999_999);
        assert!(sent.iter().all(|(_, text)| *text == request));
        assert_eq!(
            &sent.iter().map(|(at, _)| *at).collect::<Vec<_>>(),
            expected,
            "{kind:?}"
        );
        assert_eq!(b.failed(), [""; 0]);
        assert!(b.pass(32 * SECOND).is_empty());
        assert_eq!((b.failed(), b.uac.under_way()), (vec!["timeout".to_owned()], 0));
        // Over a reliable transport nothing is retransmitted, and the end is the same.
        let mut b = Bench::new(plan(kind, Transport::Tcp));
        b.start();
        assert!(b.pass(31_999_999).is_empty() && b.failed().is_empty());
        b.pass(32 * SECOND);
        assert_eq!(b.failed(), ["timeout"]);
    }
}

#[test]
fn a_phone_that_rings_too_long_is_cancelled() {
    let mut b = Bench::new(plan(Kind::Call, Transport::Udp));
    let invite = b.start();
    b.get(&answer(&invite, 180, ""));
    assert!(
        b.pass(60 * SECOND - 1).is_empty(),
        "no more INVITEs once it rings"
    );
    let sent = b.pass(60 * SECOND);
    let [(_, cancel)] = &sent[..] else {
        panic!("{sent:?}")
    };
    assert_eq!(method(cancel), "CANCEL");
    for name in ["Via", "From", "To", "Call-ID"] {
        assert_eq!(field(cancel, name), field(&invite, name), "§9.1");
    }
    assert_eq!(field(cancel, "CSeq"), "1 CANCEL");
    assert!(b.get(&answer(cancel, 200, "")).is_empty());
    let ack = b.get(&answer(&invite, 487, ""));
    assert_eq!(method(&ack[0]), "ACK");
    assert_eq!(
        (b.failed(), b.uac.under_way()),
        (vec!["no final answer".to_owned()], 0)
    );
    // If the 487 never comes, the call ends all the same.
    let mut b = Bench::new(plan(Kind::Call, Transport::Tcp));
    let invite = b.start();
    b.get(&answer(&invite, 183, ""));
    b.pass(60 * SECOND + 32 * SECOND);
    assert_eq!(b.failed(), ["no final answer"]);
    // An answer that crosses the CANCEL makes a call.
    let mut b = Bench::new(plan(Kind::Call, Transport::Udp));
    let invite = b.start();
    b.get(&answer(&invite, 180, ""));
    b.pass(60 * SECOND);
    let bye = b.get(&answer(&invite, 200, CONTACT)).remove(1);
    b.get(&answer(&bye, 200, ""));
    assert_eq!(b.stats.succeeded, 1);
}

#[test]
fn refusals_are_acknowledged_and_counted_by_their_status() {
    let mut b = Bench::new(plan(Kind::Call, Transport::Udp));
    let invite = b.start();
    for _ in 0..2 {
        let sent = b.get(&answer(&invite, 503, ""));
        let [ack] = &sent[..] else { panic!("{sent:?}") };
        assert!(ack.starts_with("ACK sip:u00001@example.com SIP/2.0\r\n"));
        for name in ["Via", "From", "Call-ID"] {
            assert_eq!(field(ack, name), field(&invite, name), "§17.1.1.3");
        }
        assert_eq!(
            (field(ack, "To"), field(ack, "CSeq")),
            ("<sip:u00001@example.com>;tag=t", "1 ACK")
        );
    }
    assert_eq!(b.failed(), ["status 503"]);
    // If a call is set up, it is the BYE that failed.
    let invite = b.start();
    let bye = b.get(&answer(&invite, 200, CONTACT)).remove(1);
    b.get(&answer(&bye, 481, ""));
    let invite = b.start();
    b.get(&answer(&invite, 200, CONTACT));
    b.pass(b.now + 32 * SECOND);
    assert_eq!(b.failed(), ["status 503", "bye timeout", "bye status 481"]);
    // A redirection is a failure of [`Kind::Call`], and the aim of [`Kind::Redirect`].
    let mut b = Bench::new(plan(Kind::Redirect, Transport::Udp));
    let invite = b.start();
    assert_eq!(method(&b.get(&answer(&invite, 302, ""))[0]), "ACK");
    let invite = b.start();
    b.get(&answer(&invite, 200, CONTACT));
    assert_eq!(
        (b.stats.succeeded, b.failed()),
        (1, vec!["status 200".to_owned()])
    );
}

const CHALLENGE: &str = "WWW-Authenticate: Digest realm=\"example.com\", nonce=\"n1\", qop=\"auth\"\r\n";

#[test]
fn a_challenge_is_answered_once() {
    let with_digest = |kind| Plan {
        digest: true,
        ..plan(kind, Transport::Udp)
    };
    let mut b = Bench::new(with_digest(Kind::Call));
    let invite = b.start();
    let sent = b.get(&answer(&invite, 401, CHALLENGE));
    let [ack, again] = &sent[..] else {
        panic!("{sent:?}")
    };
    assert_eq!(
        (method(ack), method(again), field(again, "CSeq")),
        ("ACK", "INVITE", "2 INVITE")
    );
    assert_eq!(field(again, "Call-ID"), field(&invite, "Call-ID"));
    assert!(field(again, "Authorization").starts_with(
        "Digest username=\"u00000\", realm=\"example.com\", nonce=\"n1\", uri=\"sip:u00001@example.com\""
    ));
    let bye = b.get(&answer(again, 200, CONTACT)).remove(1);
    let challenge = CHALLENGE.replace("WWW", "Proxy").replace("n1", "n2");
    let sent = b.get(&answer(&bye, 407, &challenge));
    assert!(
        field(&sent[0], "Proxy-Authorization").contains("nonce=\"n2\", uri=\"sip:uas@203.0.113.9:5070\"")
    );
    assert_eq!(field(&sent[0], "CSeq"), "4 BYE");
    b.get(&answer(&sent[0], 200, ""));
    assert_eq!(b.stats.succeeded, 1);
    // Challenged again, or without a password.
    let mut b = Bench::new(with_digest(Kind::Register));
    let register = b.start();
    let again = b.get(&answer(&register, 401, CHALLENGE)).remove(0);
    assert!(b.get(&answer(&again, 401, CHALLENGE)).is_empty());
    assert_eq!(b.failed(), ["credentials refused"]);
    let mut b = Bench::new(plan(Kind::Register, Transport::Udp));
    let register = b.start();
    b.get(&answer(&register, 401, CHALLENGE));
    assert_eq!(b.failed(), ["status 401"]);
}

#[test]
fn a_nonce_that_is_kept_is_counted_until_it_is_refused() {
    let kept = Plan {
        digest: true,
        reuse_nonce: true,
        max_calls: 9,
        ..plan(Kind::Register, Transport::Udp)
    };
    let mut b = Bench::new(kept);
    for _ in 0..3 {
        let register = b.start();
        let again = b.get(&answer(&register, 401, CHALLENGE)).remove(0);
        b.get(&answer(&again, 200, ""));
    }
    // The first user again.
    let register = b.start();
    assert!(field(&register, "Authorization").contains("nonce=\"n1\"") && register.contains("nc=00000002"));
    assert_eq!(field(&register, "CSeq"), "3 REGISTER");
    let again = b
        .get(&answer(&register, 401, &CHALLENGE.replace("n1", "n3")))
        .remove(0);
    assert!(field(&again, "Authorization").contains("nonce=\"n3\"") && again.contains("nc=00000001"));
    b.get(&answer(&again, 401, CHALLENGE));
    assert_eq!(
        (b.stats.succeeded, b.failed()),
        (3, vec!["credentials refused".to_owned()])
    );
}

#[test]
fn what_is_no_answer_to_the_request_is_ignored_and_remembered() {
    for kind in [Kind::Call, Kind::Options] {
        let spoil: [fn(&str) -> String; 4] = [
            |good| good.replace(";tag=t", ""),
            |good| good.replace("CSeq: 1 ", "CSeq: 9 "),
            |good| {
                good.replace("CSeq: 1 INVITE", "CSeq: 1 BYE")
                    .replace("CSeq: 1 OPTIONS", "CSeq: 1 INVITE")
            },
            |good| good.replace("Content-Length: 0", "Content-Length: 7"),
        ];
        for (n, spoil) in spoil.iter().enumerate() {
            let mut b = Bench::new(plan(kind, Transport::Udp));
            let request = b.start();
            let good = answer(&request, 200, CONTACT);
            assert!(b.get(&spoil(&good)).is_empty(), "{n}");
            assert_eq!((b.uac.under_way(), b.stats.succeeded), (1, 0), "{n}");
            b.pass(32 * SECOND);
            assert_eq!(b.failed(), ["bad response"], "{n}");
        }
        // A good response may still come.
        let mut b = Bench::new(plan(kind, Transport::Udp));
        let request = b.start();
        let good = answer(&request, 200, CONTACT);
        b.get(&spoil[0](&good));
        let sent = b.get(&good);
        if kind == Kind::Call {
            b.get(&answer(&sent[1], 200, ""));
        }
        assert_eq!(b.stats.succeeded, 1);
    }
    // A 200 from which no dialog can be made.
    let mut b = Bench::new(plan(Kind::Call, Transport::Udp));
    let invite = b.start();
    b.get(&answer(&invite, 200, ""));
    assert_eq!(b.failed(), ["bad response"]);
    // A response of another run.
    let mut b = Bench::new(plan(Kind::Call, Transport::Udp));
    let invite = b.start();
    assert!(
        b.get(&answer(&invite, 503, "").replace("abcd1234", "abcd1235"))
            .is_empty()
    );
    assert_eq!(b.uac.under_way(), 1);
}

#[test]
fn calls_are_bounded_and_slots_are_used_again() {
    let mut b = Bench::new(plan(Kind::Options, Transport::Udp));
    let first = b.start();
    b.start();
    let link = b.link;
    assert!(!b.with(|uac, turn| uac.start(turn, 0, link)).0);
    assert_eq!(b.failed(), ["generator full"]);
    b.get(&answer(&first, 200, ""));
    let third = b.start();
    // A response to the slot's old request does not count for the new one.
    b.get(&answer(&first, 200, ""));
    assert_eq!((b.uac.under_way(), b.stats.succeeded), (2, 1));
    b.get(&answer(&third, 200, ""));
    assert_eq!(b.stats.succeeded, 2);
    b.with(|uac, turn| uac.stop(turn));
    assert_eq!(
        (b.uac.under_way(), b.failed()),
        (0, vec!["unfinished".to_owned(), "generator full".to_owned()])
    );
    assert_eq!(
        b.stats.offered,
        b.stats.succeeded + b.stats.failures.values().sum::<u64>()
    );
}

#[test]
fn a_lost_connection_ends_the_calls_that_wait_on_it() {
    let mut b = Bench::new(Plan {
        hold: Duration::from_secs(5),
        ..plan(Kind::Call, Transport::Tcp)
    });
    let invite = b.start();
    b.start();
    // A call that is talking does not wait for a response.
    b.get(&answer(&invite, 200, CONTACT));
    b.with(|uac, turn| uac.lost(turn, 8, Cause::ConnectionLost));
    assert_eq!(b.uac.under_way(), 2);
    b.with(|uac, turn| uac.lost(turn, 7, Cause::ConnectionLost));
    assert_eq!(
        (b.uac.under_way(), b.failed()),
        (1, vec!["connection lost".to_owned()])
    );
    let sent = b.pass(5 * SECOND);
    b.get(&answer(&sent[0].1, 200, ""));
    assert_eq!(b.stats.succeeded, 1);
    // A request that the kernel refused to send.
    let mut b = Bench::new(plan(Kind::Options, Transport::Udp));
    let options = b.start();
    b.with(|uac, turn| uac.undelivered(turn, &options.as_bytes()[..150], Cause::SendFailed));
    assert_eq!(b.failed(), ["send failed"]);
}

/// The INVITE is sent within the measured time, and the BYE is due after its end.
#[test]
fn a_bye_that_is_due_after_the_time_that_counts_is_not_timed() {
    for (ends, timed) in [(6, 1), (5, 0)] {
        let mut b = Bench::new(Plan {
            hold: Duration::from_secs(5),
            ..plan(Kind::Call, Transport::Udp)
        });
        b.stats.window = 0..ends * SECOND;
        let invite = b.start();
        b.get(&answer(&invite, 200, CONTACT));
        b.now += 5 * SECOND;
        let bye = b.with(|uac, turn| uac.wake(turn)).1.remove(0);
        assert_eq!(method(&bye), "BYE");
        b.get(&answer(&bye, 200, ""));
        assert_eq!(b.stats.times_of(Timed::Invite).len(), 1);
        assert_eq!(b.stats.times_of(Timed::Bye).len(), timed, "the end at {ends} s");
    }
}

#[test]
fn a_held_call_ends_after_its_time_and_is_timed_from_then() {
    let mut b = Bench::new(Plan {
        hold: Duration::from_secs(5),
        ..plan(Kind::Call, Transport::Udp)
    });
    let invite = b.start();
    let sent = b.get(&answer(&invite, 200, CONTACT));
    assert_eq!(sent.len(), 1, "the ACK alone");
    // The generator sends the BYE half a second late, and its response takes a tenth.
    b.now = 5 * SECOND + SECOND / 2;
    let bye = b.with(|uac, turn| uac.wake(turn)).1.remove(0);
    assert_eq!(method(&bye), "BYE");
    b.now += SECOND / 10;
    b.get(&answer(&bye, 200, ""));
    let times = b.stats.times_of(Timed::Bye);
    assert!(
        (600_000..601_000).contains(&times.max()) && times.len() == 1,
        "{}",
        times.max()
    );
    // If nothing is late, the BYE is sent at its time.
    let invite = b.start();
    b.get(&answer(&invite, 200, CONTACT));
    let at = b.now + 5 * SECOND;
    let sent = b.pass(at);
    assert_eq!((sent[0].0, method(&sent[0].1)), (at, "BYE"));
}

/// §9.1, §17.1.2.2.
#[test]
fn a_cancel_is_sent_again_until_it_is_answered() {
    let halves: Vec<u64> = vec![0, 1, 3, 7, 15, 23, 31, 39, 47, 55, 63];
    let ringing = |transport| {
        let mut b = Bench::new(plan(Kind::Call, transport));
        let invite = b.start();
        b.get(&answer(&invite, 180, ""));
        (b, invite)
    };
    let (mut b, _) = ringing(Transport::Udp);
    let sent = b.pass(60 * SECOND + 32 * SECOND);
    assert!(
        sent.iter()
            .all(|(_, text)| *text == sent[0].1 && method(text) == "CANCEL")
    );
    let at: Vec<_> = sent
        .iter()
        .map(|(at, _)| (at - 60 * SECOND) * 2 / SECOND)
        .collect();
    assert_eq!(at, halves);
    assert_eq!(
        (
            b.stats.sent.count_of(b"CANCEL", 0),
            b.stats.resent.count_of(b"CANCEL", 0)
        ),
        (1, 10)
    );
    assert_eq!(b.failed(), ["no final answer"]);
    // The CANCEL's own response ends its retransmission, and so does the INVITE's.
    for status in [200, 481] {
        let (mut b, _) = ringing(Transport::Udp);
        let cancel = b.pass(61 * SECOND).remove(0).1;
        b.get(&answer(&cancel, status, ""));
        assert!(b.pass(200 * SECOND).is_empty());
    }
    let (mut b, invite) = ringing(Transport::Udp);
    b.pass(60 * SECOND);
    b.get(&answer(&invite, 487, ""));
    assert!(b.pass(200 * SECOND).is_empty());
    let (mut b, _) = ringing(Transport::Tcp);
    assert_eq!(b.pass(200 * SECOND).len(), 1);
}

/// §13.2.2.4, §15: the called end must not be left with a dialog.
#[test]
fn a_call_that_is_answered_after_it_was_given_up_is_ended() {
    let mut b = Bench::new(plan(Kind::Call, Transport::Udp));
    let (first, second) = (b.start(), b.start());
    b.pass(32 * SECOND);
    assert_eq!((b.failed(), b.uac.under_way()), (vec!["timeout".to_owned()], 0));
    // One slot is free, the other has another call.
    let third = b.start();
    for invite in [&first, &second] {
        let sent = b.get(&answer(invite, 200, CONTACT));
        let [ack, bye] = &sent[..] else { panic!("{sent:?}") };
        assert_eq!((method(ack), field(ack, "CSeq")), ("ACK", "1 ACK"));
        assert!(
            bye.starts_with("BYE sip:uas@203.0.113.9:5070 SIP/2.0\r\n"),
            "{bye}"
        );
        assert_eq!(
            (field(bye, "CSeq"), field(bye, "Call-ID")),
            ("2 BYE", field(invite, "Call-ID"))
        );
        assert_ne!(field(ack, "Via"), field(bye, "Via"));
        // The 200 is repeated: one BYE is enough.
        assert_eq!(b.get(&answer(invite, 200, CONTACT)), std::slice::from_ref(ack));
        assert!(b.get(&answer(bye, 200, "")).is_empty());
    }
    assert!(b.stats.ignored.is_empty(), "{:?}", b.stats.ignored);
    assert_eq!((b.stats.succeeded, b.uac.under_way()), (0, 1));
    // A refused call was not given up: a late 200 gets its ACK, and no BYE.
    b.get(&answer(&third, 486, ""));
    assert_eq!(method(&b.get(&answer(&third, 200, CONTACT))[0]), "ACK");
    assert_eq!(
        b.get(&answer(&third, 200, CONTACT)).len(),
        1,
        "it was refused, not given up"
    );
}

#[test]
fn a_lost_connection_of_one_call_ends_that_call() {
    let mut b = Bench::new(Plan {
        connections: Connections::PerCall,
        ..plan(Kind::Call, Transport::Tcp)
    });
    b.link = To::Connection(900);
    b.start();
    b.link = To::Connection(3);
    b.start();
    for (connection, left) in [(7, 2), (901, 2), (900, 1), (900, 1), (3, 0)] {
        b.with(|uac, turn| uac.lost(turn, connection, Cause::ConnectionLost));
        assert_eq!(b.uac.under_way(), left, "{connection}");
    }
}

#[test]
fn a_user_registers_once_at_a_time() {
    let mut b = Bench::new(Plan {
        max_calls: 9,
        ..plan(Kind::Register, Transport::Udp)
    });
    let requests: Vec<_> = (0..3).map(|_| b.start()).collect();
    let link = b.link;
    assert!(!b.with(|uac, turn| uac.start(turn, 0, link)).0);
    assert_eq!((b.failed(), b.uac.under_way()), (vec!["user busy".to_owned()], 3));
    b.get(&answer(&requests[1], 200, ""));
    let again = b.start();
    assert_eq!(field(&again, "Call-ID"), field(&requests[1], "Call-ID"), "§10.2");
    assert_eq!(
        (field(&requests[1], "CSeq"), field(&again, "CSeq")),
        ("1 REGISTER", "2 REGISTER")
    );
}

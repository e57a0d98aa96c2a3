//! A server that drops, delays and answers wrongly on purpose: each failure under its cause, and
//! counted as often as it was made.

use std::collections::BTreeMap;
use std::io::Read;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sip_core::transport::Transport;
use sip_load::plan::{Connections, Kind, Plan, TlsPlan, Users};
use sip_load::{Offered, Progress, Report, run};
use socket2::{Domain, Socket, Type};
use test_address::Place;

/// What the server makes of a request: what to send, and when.
type Act = fn(&Request<'_>) -> Vec<(Duration, String)>;

struct Request<'a> {
    text: &'a str,
    /// How often it came before.
    before: u32,
}

impl Request<'_> {
    fn field(&self, name: &str) -> &str {
        let named = |line: &&str| line.starts_with(name) && line[name.len()..].starts_with(": ");
        let line = self
            .text
            .lines()
            .find(named)
            .unwrap_or_else(|| panic!("{name}: {}", self.text));
        &line[name.len() + 2..]
    }

    fn method(&self) -> &str {
        self.text.split(' ').next().expect("a method")
    }

    fn answer(&self, status: u16, more: &str) -> String {
        let [via, from, call, cseq, to] =
            ["Via", "From", "Call-ID", "CSeq", "To"].map(|name| self.field(name));
        let tag = if to.contains(";tag=") || status == 100 {
            ""
        } else {
            ";tag=server"
        };
        format!(
            "SIP/2.0 {status} Whatever\r\nVia: {via}\r\nFrom: {from}\r\nTo: {to}{tag}\r\nCall-ID: {call}\r\n\
             CSeq: {cseq}\r\n{more}Content-Length: 0\r\n\r\n"
        )
    }
}

fn at_once(text: String) -> Vec<(Duration, String)> {
    vec![(Duration::ZERO, text)]
}

/// The same, to a request that comes for the first time: however late that is, there is one answer.
fn once(request: &Request<'_>, text: String) -> Vec<(Duration, String)> {
    if request.before == 0 {
        at_once(text)
    } else {
        Vec::new()
    }
}

/// Does with each user's requests what is written for it, user n by entry n mod their number.
struct Server {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    _place: Place,
}

impl Server {
    fn start(acts: &'static [Act]) -> Self {
        let place = Place::claim();
        let socket = UdpSocket::bind(place.any()).expect("a socket");
        socket
            .set_read_timeout(Some(Duration::from_millis(2)))
            .expect("a timeout");
        let (address, stop) = (
            socket.local_addr().expect("bound"),
            Arc::new(AtomicBool::new(false)),
        );
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || serve(&socket, acts, &stopped));
        Self {
            address,
            stop,
            thread: Some(thread),
            _place: place,
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(
            std::thread::panicking() || matches!(ended, Some(Ok(()))),
            "the server failed"
        );
    }
}

fn serve(socket: &UdpSocket, acts: &[Act], stop: &AtomicBool) {
    let mut seen: BTreeMap<String, u32> = BTreeMap::new();
    let mut later: Vec<(Instant, SocketAddr, String)> = Vec::new();
    let mut buffer = [0; 4096];
    while !stop.load(Ordering::Relaxed) {
        let now = Instant::now();
        for (_, to, text) in later.extract_if(.., |(at, _, _)| *at <= now) {
            socket.send_to(text.as_bytes(), to).expect("sent");
        }
        let Ok((count, from)) = socket.recv_from(&mut buffer) else {
            continue;
        };
        let came = Instant::now();
        let text = std::str::from_utf8(&buffer[..count]).expect("text").to_owned();
        let mut request = Request {
            text: &text,
            before: 0,
        };
        let key = format!("{}{}", request.field("Via"), request.method());
        let times = seen.entry(key).or_default();
        request.before = *times;
        *times += 1;
        let digits = request.field("From").split("u000").nth(1).expect("a user");
        let user: usize = digits[..2].parse().expect("a number");
        for (delay, text) in acts[user % acts.len()](&request) {
            later.push((came + delay, from, text));
        }
    }
}

/// One call of each of `users`, a hundred a second; times are a twentieth of the RFC's.
fn plan(target: SocketAddr, kind: Kind, users: u32, calls: u32) -> Plan {
    Plan {
        kind,
        transport: Transport::Udp,
        target,
        local: Some(SocketAddr::new(target.ip(), 0)),
        domain: "example.com".into(),
        server: "example.com".into(),
        users: Users::Numbered {
            prefix: "u".into(),
            count: users,
            password: "secret".into(),
        },
        digest: true,
        reuse_nonce: false,
        offered: Offered {
            rate: 100.0,
            ramp: None,
            poisson: false,
            seed: 1,
        },
        warmup: Duration::ZERO,
        // The calls are in the middle of their intervals of 10 ms.
        duration: Duration::from_millis(u64::from(calls) * 10 - 5),
        drain: None,
        hold: Duration::ZERO,
        t1: Duration::from_millis(25),
        answer_within: Duration::from_secs(1),
        connections: Connections::Shared(1),
        text_len: 10,
        contact: None,
        outbound: false,
        expires_s: 60,
        callee: None,
        max_calls: 1000,
        tls: TlsPlan::default(),
        path: "/".into(),
        run: 7,
    }
}

fn play(target: SocketAddr, kind: Kind, users: u32, calls: u32) -> Report {
    played(plan(target, kind, users, calls), calls)
}

fn played(plan: Plan, calls: u32) -> Report {
    let mut last = None;
    let report = run(plan, &AtomicBool::new(false), |progress| last = Some(progress)).expect("it runs");
    assert_eq!(report.offered, u64::from(calls));
    assert_eq!(report.offered, report.succeeded + report.failed);
    let last = last.expect("progress");
    assert_eq!(
        (last.begun, last.succeeded, last.failed),
        (report.offered, report.succeeded, report.failed)
    );
    report
}

fn failures(report: &Report) -> Vec<(&str, u64)> {
    report
        .failures
        .iter()
        .map(|(cause, n)| (cause.as_str(), *n))
        .collect()
}

const CHALLENGE: &str = "WWW-Authenticate: Digest realm=\"r\", nonce=\"n\", algorithm=MD5, qop=\"auth\"\r\n";

/// The server's act for each user's request.
const ACTS: [Act; 9] = [
    |r| once(r, r.answer(200, "")),
    |_| Vec::new(),
    |r| once(r, r.answer(503, "")),
    // Late, and yet before the request is given up.
    |r| {
        if r.before == 0 {
            vec![(Duration::from_millis(100), r.answer(200, ""))]
        } else {
            Vec::new()
        }
    },
    |r| at_once(r.answer(200, "").replace("CSeq: ", "CSeq: 1")),
    |r| once(r, r.answer(401, CHALLENGE)),
    // The first is lost.
    |r| {
        if r.before == 1 {
            at_once(r.answer(200, ""))
        } else {
            Vec::new()
        }
    },
    |_| at_once("HTTP/1.1 200 OK\r\n\r\n".to_owned()),
    // Twice the answer of another.
    |r| {
        if r.before > 0 {
            return Vec::new();
        }
        let other = r.answer(200, "").replace("z9hG4bK00000007", "z9hG4bK00000008");
        let good = r.answer(200, "");
        vec![
            (Duration::ZERO, other),
            (Duration::ZERO, good.clone()),
            (Duration::from_millis(5), good),
        ]
    },
];

#[test]
fn requests_without_a_dialog() {
    let server = Server::start(&ACTS);
    let report = play(server.address, Kind::Options, 9, 90);
    let expected = [
        ("bad response", 10),
        ("credentials refused", 10),
        ("status 503", 10),
        ("timeout", 20),
    ];
    assert_eq!(failures(&report), expected);
    assert_eq!(report.succeeded, 40);
    let ignored: Vec<_> = report.ignored.iter().map(|(why, n)| (*why, *n)).collect();
    // Of each that is not answered well, the first and some more (timer E): 10 at least of user 4 and of user 7.
    let [bad, late, not_sip, unknown] = ignored[..] else {
        panic!("{ignored:?}")
    };
    assert!(
        bad.0 == "bad response"
            && late.0 == "late response"
            && not_sip.0 == "not SIP"
            && unknown.0 == "unknown response"
    );
    assert_eq!(unknown.1, 10);
    // Late responses: the second one to each request of user 8, and those to user 4 after the request was given up.
    assert!(late.1 >= 10 && bad.1 >= 10 && not_sip.1 >= 10, "{ignored:?}");
    // User 6 sends each request again once at least, and an unanswered user six times, if not too late.
    assert!(
        report.retransmissions["OPTIONS"] >= 10 + 3 * 10 * 5,
        "{:?}",
        report.retransmissions
    );
    let times = &report.response_ms["OPTIONS 200"];
    assert_eq!(times.count, 40);
    assert!(times.max >= 100.0 && times.p90 >= 100.0, "{times:?}");
    assert_eq!(report.response_ms["challenge"].count, 10);
}

const CONTACT: &str = "Contact: <sip:uas@127.0.0.1>\r\nRecord-Route: <sip:here;lr>\r\n";

/// INVITE as `invite` says, BYE with 200, nothing else.
fn well(r: &Request<'_>, invite: impl Fn() -> Vec<(Duration, String)>) -> Vec<(Duration, String)> {
    match r.method() {
        "INVITE" => invite(),
        "BYE" => at_once(r.answer(200, "")),
        "CANCEL" => at_once(r.answer(200, "")),
        _ => Vec::new(),
    }
}

/// Of each caller one request is never answered.
const UNANSWERED: [Act; 2] = [
    // It rings, and the CANCEL does not help.
    |r| well(r, || at_once(r.answer(180, ""))),
    |r| {
        if r.method() == "BYE" {
            Vec::new()
        } else {
            well(r, || at_once(r.answer(200, CONTACT)))
        }
    },
];

/// The server's act for each caller, if all its requests are answered.
const ANSWERED: [Act; 6] = [
    |r| well(r, || at_once(r.answer(200, CONTACT))),
    |r| well(r, || at_once(r.answer(486, ""))),
    |r| well(r, || at_once(r.answer(200, ""))),
    |r| {
        if r.method() == "BYE" {
            at_once(r.answer(481, ""))
        } else {
            well(r, || at_once(r.answer(200, CONTACT)))
        }
    },
    // Challenged once; the answer is sent three times.
    |r| {
        well(r, || {
            if r.text.contains("Authorization: ") {
                let ok = r.answer(200, CONTACT);
                vec![
                    (Duration::ZERO, ok.clone()),
                    (Duration::from_millis(20), ok.clone()),
                    (Duration::from_millis(40), ok),
                ]
            } else {
                at_once(r.answer(401, CHALLENGE))
            }
        })
    },
    |r| {
        well(r, || {
            vec![
                (Duration::ZERO, r.answer(100, "")),
                (Duration::from_millis(50), r.answer(302, "")),
            ]
        })
    },
];

#[test]
fn calls_with_a_request_that_is_never_answered() {
    let server = Server::start(&UNANSWERED);
    let report = play(server.address, Kind::Call, 2, 20);
    assert_eq!(failures(&report), [("bye timeout", 10), ("no final answer", 10)]);
    assert_eq!(report.succeeded, 0);
    assert_eq!(report.messages["sent"]["CANCEL"], 10);
    assert_eq!(
        report.response_ms["INVITE 200"].count, 10,
        "of those whose BYE fails, too"
    );
    assert!(!report.response_ms.contains_key("BYE 200"));
}

/// The time for an answer is long: on a busy machine one may come late.
#[test]
fn calls_whose_requests_are_answered() {
    let server = Server::start(&ANSWERED);
    let plan = Plan {
        t1: Duration::from_millis(500),
        answer_within: Duration::from_secs(30),
        ..plan(server.address, Kind::Call, 6, 60)
    };
    let report = played(plan, 60);
    let expected = [
        ("bad response", 10),
        ("bye status 481", 10),
        ("status 302", 10),
        ("status 486", 10),
    ];
    assert_eq!(failures(&report), expected);
    assert_eq!(report.succeeded, 20);
    assert!(!report.messages["sent"].contains_key("CANCEL"));
    assert_eq!(
        report.response_ms["INVITE 200"].count, 30,
        "of those whose BYE fails, too"
    );
    // A BYE that is due after the measured time is sent but not timed. That may be so for the last calls, if they
    // are answered late. Another test, without a clock, shows which BYEs are timed.
    let timed = report.response_ms.get("BYE 200").map_or(0, |times| times.count);
    assert!(timed <= 20, "only those that are answered: {timed}");
    // The repeated 200s of user 4 are acknowledged each time, also after the BYE.
    assert!(
        report.retransmissions["ACK"] >= 20,
        "{:?}",
        report.retransmissions
    );
}

/// Nothing listens: the kernel says so, and no call waits for its time-out.
#[test]
fn a_closed_port_is_a_cause_of_its_own() {
    let place = Place::claim();
    // It holds the port, and hears its peer alone, which is not there.
    let held = UdpSocket::bind(place.any()).expect("a socket");
    held.connect((place.ip(), 1)).expect("a peer");
    let target = held.local_addr().expect("bound");
    // Requests of one length that leave in one turn leave as one, and the kernel reports that once. So few
    // calls have all failed before the last of their retransmissions.
    let report = play(target, Kind::Options, 3, 5);
    assert_eq!(failures(&report), [("send failed", 5)]);
}

/// No connection is ever made, and all calls say so, also those between two attempts.
#[test]
fn a_closed_port_is_a_cause_of_its_own_for_connections() {
    let place = Place::claim();
    // It holds the port, and does not listen.
    let held = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    held.bind(&place.any().into()).expect("a port");
    let target = held.local_addr().expect("bound").as_socket();
    let target = target.expect("of the internet");
    for connections in [Connections::Shared(2), Connections::PerCall] {
        let plan = Plan {
            transport: Transport::Tcp,
            connections,
            ..plan(target, Kind::Options, 3, 50)
        };
        let report = played(plan, 50);
        assert_eq!(failures(&report), [("connect failed", 50)]);
        assert!(
            !report
                .generator
                .why
                .is_some_and(|why| why.contains("connections"))
        );
    }
}

/// A server accepts and then sends nothing: in 64 × T1 that is given up, and tried again.
#[test]
fn a_connection_that_never_comes_up() {
    const CALLS: u32 = 150;
    let place = Place::claim();
    let listener = TcpListener::bind(place.any()).expect("a port");
    let plan = Plan {
        transport: Transport::Ws,
        t1: Duration::from_millis(2),
        ..plan(listener.local_addr().expect("bound"), Kind::Options, 3, CALLS)
    };
    let report = played(plan, CALLS);
    assert_eq!(failures(&report), [("connect timeout", u64::from(CALLS))]);
    listener.set_nonblocking(true).expect("a listener");
    let tried = std::iter::from_fn(|| listener.accept().ok()).count();
    assert!(tried > 1, "{tried}");
}

/// The address that was asked for is the one that is seen, and the one in Via.
#[test]
fn connections_come_from_the_address_that_was_given() {
    let (place, own) = (Place::claim(), Place::claim());
    let listener = TcpListener::bind(place.any()).expect("a port");
    let target = listener.local_addr().expect("bound");
    let server = std::thread::spawn(move || {
        let (mut socket, from) = listener.accept().expect("a connection");
        let (mut request, mut piece) = (Vec::new(), [0; 4096]);
        while !request.ends_with(b"\r\n\r\n") {
            let count = socket.read(&mut piece).expect("a request");
            assert!(count > 0, "{}", String::from_utf8_lossy(&request));
            request.extend_from_slice(&piece[..count]);
        }
        (from.ip(), String::from_utf8_lossy(&request).into_owned())
    });
    let plan = Plan {
        transport: Transport::Tcp,
        local: Some(own.any()),
        ..plan(target, Kind::Options, 1, 1)
    };
    let report = played(plan, 1);
    assert_eq!(failures(&report), [("connection lost", 1)]);
    let (from, request) = server.join().expect("no panic");
    assert_eq!(from, own.ip());
    let via = format!("\r\nVia: SIP/2.0/TCP {}:5060;", own.ip());
    assert!(request.contains(&via), "{request}");
}

/// What was reached of the time is what rates are rates of.
#[test]
fn a_run_that_is_stopped() {
    let server = Server::start(&[|r| at_once(r.answer(200, ""))]);
    let stop = AtomicBool::new(false);
    let plan = Plan {
        duration: Duration::from_secs(3600),
        warmup: Duration::from_millis(100),
        ..plan(server.address, Kind::Options, 1, 1)
    };
    let mut last = Progress::default();
    let stop_later = |progress: Progress| {
        stop.fetch_or(progress.seconds > 0.5, Ordering::Relaxed);
        last = progress;
    };
    let report = run(plan.clone(), &stop, stop_later).expect("it runs");
    assert!(
        (0.3..3599.0).contains(&report.duration_s),
        "{}",
        report.duration_s
    );
    // What succeeded in that time: the calls that were meant for it, and some that were meant for the warm-up.
    let completed = (report.goodput * report.duration_s).round() as u64;
    assert!(
        (report.succeeded..=last.succeeded).contains(&completed),
        "{completed} {last:?}"
    );
    assert!(report.generator.utilization >= report.generator.cpu_s / 3599.0);
    // Before anything counted.
    let plan = Plan {
        warmup: Duration::from_secs(60),
        ..plan
    };
    let report = run(plan, &AtomicBool::new(true), |_| ()).expect("it runs");
    assert_eq!(
        (report.duration_s, report.goodput, report.generator.utilization),
        (0.0, 0.0, 0.0)
    );
}

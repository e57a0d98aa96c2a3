//! Name resolution against a name server of our own, on loopback.

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use hickory_resolver::proto::op::{Message, OpCode, ResponseCode};
use hickory_resolver::proto::rr::rdata::{A, AAAA, CNAME, NAPTR, SOA, SRV};
use hickory_resolver::proto::rr::{Name, RData, Record as DnsRecord, RecordType};
use parking_lot::Mutex;
use sip_backend::ResultSink;
use sip_backend::dns::{Dns, DnsOptions};
use sip_backend::metrics::Value;
use sip_core::id::QueryId;
use sip_core::query::{QueryResult, Record, RecordKind, Records, Unavailable};
use sip_core::resolve::{Cache, Candidate, HostRef, Located, Question};
use sip_core::time::Instant;
use sip_core::transport::Transport;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;

use crate::battery::PATIENCE;

#[derive(Clone)]
enum Reply {
    Records(Vec<DnsRecord>),
    /// Not before they can be locked.
    Held(Arc<Mutex<Vec<DnsRecord>>>),
    /// No such name, or no such records; with the SOA's TTL and minimum.
    Negative(ResponseCode, Option<(u32, u32)>),
    Failure,
    Silence,
    /// Truncated over UDP, whole over TCP.
    Large(Vec<DnsRecord>),
}

type Zone = Arc<Mutex<HashMap<(String, RecordType), Reply>>>;

#[track_caller]
fn name(text: &str) -> Name {
    Name::from_ascii(text).unwrap()
}

fn record(owner: &str, ttl: u32, data: RData) -> DnsRecord {
    DnsRecord::from_rdata(name(owner), ttl, data)
}

fn respond(zone: &Zone, request: &[u8], udp: bool) -> Option<Vec<u8>> {
    let request = Message::from_vec(request).ok()?;
    let query = request.queries.first()?.clone();
    let key = (query.name().to_ascii().to_ascii_lowercase(), query.query_type());
    let mut response = Message::response(request.metadata.id, OpCode::Query);
    response.add_query(query);
    let reply = zone.lock().get(&key).cloned();
    match reply.unwrap_or(Reply::Negative(ResponseCode::NXDomain, None)) {
        Reply::Records(records) => response.answers = records,
        Reply::Held(records) => response.answers = records.lock().clone(),
        Reply::Negative(code, soa) => {
            response.metadata.response_code = code;
            if let Some((ttl, minimum)) = soa {
                let soa = SOA::new(name("ns.test."), name("admin.test."), 1, 1, 1, 1, minimum);
                response.add_authority(record("test.", ttl, RData::SOA(soa)));
            }
        }
        Reply::Failure => response.metadata.response_code = ResponseCode::ServFail,
        Reply::Silence => return None,
        Reply::Large(_) if udp => response.metadata.truncation = true,
        Reply::Large(records) => response.answers = records,
    }
    response.to_vec().ok()
}

/// Serves `zone` over UDP and TCP until the test program ends.
fn serve(zone: Zone) -> SocketAddr {
    let (udp, tcp) = loop {
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        if let Ok(tcp) = TcpListener::bind(udp.local_addr().unwrap()) {
            break (udp, tcp);
        }
    };
    let address = udp.local_addr().unwrap();
    let over_tcp = zone.clone();
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok((length, peer)) = udp.recv_from(&mut buffer) {
            if let Some(response) = respond(&zone, &buffer[..length], true) {
                udp.send_to(&response, peer).unwrap();
            }
        }
    });
    std::thread::spawn(move || {
        for stream in tcp.incoming() {
            let (zone, stream) = (over_tcp.clone(), stream.unwrap());
            // The resolver may keep one connection open beside another.
            std::thread::spawn(move || serve_stream(&zone, stream));
        }
    });
    address
}

/// Answers until the other side ends the connection.
fn serve_stream(zone: &Zone, mut stream: TcpStream) -> std::io::Result<()> {
    loop {
        let mut length = [0; 2];
        stream.read_exact(&mut length)?;
        let mut request = vec![0; usize::from(u16::from_be_bytes(length))];
        stream.read_exact(&mut request)?;
        if let Some(response) = respond(zone, &request, false) {
            let length = u16::try_from(response.len()).unwrap();
            stream.write_all(&length.to_be_bytes())?;
            stream.write_all(&response)?;
        }
    }
}

struct Channel(mpsc::UnboundedSender<(u16, QueryId, Result<Records, Unavailable>)>);

impl ResultSink for Channel {
    fn deliver(&self, origin: u16, id: QueryId, result: QueryResult) {
        let QueryResult::Resolved(result) = result else {
            panic!("{result:?}")
        };
        self.0.send((origin, id, result)).unwrap();
    }
}

struct Lab {
    zone: Zone,
    dns: Dns,
    answers: mpsc::UnboundedReceiver<(u16, QueryId, Result<Records, Unavailable>)>,
    runtime: Runtime,
}

#[track_caller]
fn lab(change: impl FnOnce(&mut DnsOptions)) -> Lab {
    let zone = Zone::default();
    let mut options = DnsOptions {
        servers: vec![serve(zone.clone())],
        ..DnsOptions::default()
    };
    change(&mut options);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let (sender, answers) = mpsc::unbounded_channel();
    let dns = Dns::new(runtime.handle().clone(), options, Arc::new(Channel(sender))).unwrap();
    Lab {
        zone,
        dns,
        answers,
        runtime,
    }
}

impl Lab {
    fn put(&self, owner: &str, kind: RecordType, reply: Reply) {
        self.zone.lock().insert((owner.to_owned(), kind), reply);
    }

    fn ask(&self, slot: u32, name: &str, kind: RecordKind) {
        let id = QueryId { slot, generation: 5 };
        self.dns.resolve(4, Some(id), name.as_bytes().into(), kind);
    }

    #[track_caller]
    fn next(&mut self) -> (u32, Result<Records, Unavailable>) {
        let waiting = async { tokio::time::timeout(PATIENCE, self.answers.recv()).await };
        let (origin, id, result) = self.runtime.block_on(waiting).unwrap().unwrap();
        assert_eq!((origin, id.generation), (4, 5));
        (id.slot, result)
    }

    fn resolve(&mut self, name: &str, kind: RecordKind) -> Result<Records, Unavailable> {
        self.ask(0, name, kind);
        self.next().1
    }

    /// Asks again until there is an answer: with a short time-out one may come too late.
    #[track_caller]
    fn found(&mut self, name: &str, kind: RecordKind) -> Records {
        let deadline = std::time::Instant::now() + PATIENCE;
        loop {
            match self.resolve(name, kind) {
                Ok(records) => return records,
                Err(Unavailable) => assert!(std::time::Instant::now() < deadline, "{name} is never found"),
            }
        }
    }

    #[track_caller]
    fn count(&self, label: &str) -> u64 {
        let sample = self
            .dns
            .metrics()
            .into_iter()
            .find(|s| s.labels == format!("result=\"{label}\""))
            .unwrap();
        let Value::Counter(count) = sample.value else {
            panic!("{sample:?}")
        };
        count
    }
}

#[track_caller]
fn address(text: &str) -> Record {
    Record::Address(text.parse::<IpAddr>().unwrap())
}

#[test]
fn addresses_come_with_the_shortest_time_to_live() {
    let mut lab = lab(|_| {});
    lab.put(
        "gw.test.",
        RecordType::A,
        Reply::Records(vec![
            record("gw.test.", 300, RData::A(A::new(192, 0, 2, 1))),
            record("gw.test.", 120, RData::A(A::new(192, 0, 2, 2))),
        ]),
    );
    let v6 = AAAA("2001:db8::1".parse().unwrap());
    lab.put(
        "gw.test.",
        RecordType::AAAA,
        Reply::Records(vec![record("gw.test.", 1_000_000, RData::AAAA(v6))]),
    );
    let found = lab.resolve("gw.test", RecordKind::A).unwrap();
    assert_eq!(found.ttl_s, 120);
    assert_eq!(found.values.len(), 2);
    assert!(found.values.contains(&address("192.0.2.1")) && found.values.contains(&address("192.0.2.2")));
    let found = lab.resolve("GW.test", RecordKind::Aaaa).unwrap();
    assert_eq!(
        found,
        Records {
            ttl_s: 86_400,
            values: vec![address("2001:db8::1")]
        }
    );
    assert_eq!(lab.count("found"), 2);
}

#[test]
fn a_changed_answer_and_its_ttl_are_seen_at_once() {
    let mut lab = lab(|_| {});
    for (ttl, last) in [(3600, 1), (5, 2), (0, 3), (60, 4)] {
        let answer = record("gw.test.", ttl, RData::A(A::new(192, 0, 2, last)));
        lab.put("gw.test.", RecordType::A, Reply::Records(vec![answer]));
        let found = lab.resolve("gw.test", RecordKind::A).unwrap();
        assert_eq!(
            found,
            Records {
                ttl_s: ttl,
                values: vec![address(&format!("192.0.2.{last}"))]
            }
        );
    }
}

#[test]
fn services_come_with_priority_weight_port_and_target() {
    let mut lab = lab(|_| {});
    let owner = "_sip._udp.example.test.";
    let service = |priority, weight, port, target: &str| {
        record(
            owner,
            60,
            RData::SRV(SRV::new(priority, weight, port, name(target))),
        )
    };
    let answers = vec![
        service(10, 60, 5060, "GW1.example.test."),
        service(20, 0, 5070, "."),
    ];
    lab.put(owner, RecordType::SRV, Reply::Records(answers));
    let mut found = lab.resolve("_sip._udp.example.test", RecordKind::Srv).unwrap();
    found.values.sort_by_key(|record| match record {
        Record::Service { priority, .. } => *priority,
        Record::Address(_) | Record::Naptr { .. } => 0,
    });
    let expected = |priority, weight, port, target: &[u8]| Record::Service {
        priority,
        weight,
        port,
        target: target.into(),
    };
    assert_eq!(found.ttl_s, 60);
    assert_eq!(
        found.values,
        [
            expected(10, 60, 5060, b"gw1.example.test"),
            expected(20, 0, 5070, b"")
        ]
    );
}

fn pointer(order: u16, preference: u16, flags: &str, service: &str, regexp: &str, to: &str) -> RData {
    let bytes = |text: &str| text.as_bytes().into();
    RData::NAPTR(NAPTR::new(
        order,
        preference,
        bytes(flags),
        bytes(service),
        bytes(regexp),
        name(to),
    ))
}

/// Each field as it was sent (RFC 3403 §4.1), the name as the core wants it. What is of use is the
/// core's to say: ENUM, other flags and expressions come through.
#[test]
fn pointers_come_with_all_their_fields() {
    let mut lab = lab(|_| {});
    let data = [
        pointer(50, 50, "s", "SIPS+D2T", "", "_SIPS._tcp.Example.test."),
        pointer(90, 65_535, "S", "sip+d2u", "", "_sip._udp.school.test."),
        pointer(100, 10, "u", "E2U+sip", "!^.*$!sip:info@example.test!", "."),
        pointer(100, 20, "", "", "", "example.test."),
    ];
    let answers = data.map(|data| record("example.test.", 90, data)).to_vec();
    lab.put("example.test.", RecordType::NAPTR, Reply::Records(answers));
    let mut found = lab.resolve("example.test", RecordKind::Naptr).unwrap();
    found.values.sort_by_key(|record| match record {
        Record::Naptr {
            order, preference, ..
        } => (*order, *preference),
        Record::Address(_) | Record::Service { .. } => (0, 0),
    });
    let expected =
        |order, preference, flags: &[u8], service: &[u8], regexp: &[u8], replacement: &[u8]| Record::Naptr {
            order,
            preference,
            flags: flags.into(),
            service: service.into(),
            regexp: regexp.into(),
            replacement: replacement.into(),
        };
    assert_eq!(found.ttl_s, 90);
    assert_eq!(
        found.values,
        [
            expected(50, 50, b"s", b"SIPS+D2T", b"", b"_sips._tcp.example.test"),
            expected(90, 65_535, b"S", b"sip+d2u", b"", b"_sip._udp.school.test"),
            expected(100, 10, b"u", b"E2U+sip", b"!^.*$!sip:info@example.test!", b""),
            expected(100, 20, b"", b"", b"", b"example.test"),
        ]
    );
}

/// Flags that are none (RFC 3403 §4.1: letters and digits) spoil an answer; they spoil nothing else.
#[test]
fn an_answer_that_cannot_be_read_is_none_and_the_next_is_there() {
    let mut lab = lab(|options| options.timeout = Duration::from_millis(600));
    let spoilt = record("example.test.", 60, pointer(1, 1, "!", "SIP+D2U", "", "a.test."));
    lab.put("example.test.", RecordType::NAPTR, Reply::Records(vec![spoilt]));
    let host = record("example.test.", 60, RData::A(A::new(192, 0, 2, 1)));
    lab.put("example.test.", RecordType::A, Reply::Records(vec![host]));
    let deadline = std::time::Instant::now() + PATIENCE;
    let beside = loop {
        lab.ask(1, "example.test", RecordKind::Naptr);
        lab.ask(2, "example.test", RecordKind::A);
        let mut answers = [lab.next(), lab.next()];
        answers.sort_by_key(|(slot, _)| *slot);
        let [spoilt, beside] = answers;
        assert_eq!(spoilt, (1, Err(Unavailable)));
        match beside.1 {
            Ok(records) => break records,
            // On a busy machine an answer may be later than the time-out.
            Err(Unavailable) => assert!(std::time::Instant::now() < deadline, "it spoils another answer"),
        }
    };
    assert_eq!(beside.values, [address("192.0.2.1")]);
    let good = record("example.test.", 60, pointer(1, 1, "s", "SIP+D2U", "", "a.test."));
    lab.put("example.test.", RecordType::NAPTR, Reply::Records(vec![good]));
    assert_eq!(lab.found("example.test", RecordKind::Naptr).values.len(), 1);
}

/// A thousand pointers come over TCP; the most preferred of them go on.
#[test]
fn too_many_pointers_are_bounded_and_the_best_are_kept() {
    let mut lab = lab(|_| {});
    let many = (0..1_000u16)
        .rev()
        .map(|n| {
            record(
                "many.test.",
                60,
                pointer(n, 0, "s", "SIP+D2U", "", "_sip._udp.many.test."),
            )
        })
        .collect();
    lab.put("many.test.", RecordType::NAPTR, Reply::Large(many));
    let found = lab.resolve("many.test", RecordKind::Naptr).unwrap();
    assert_eq!(found.values.len(), 256);
    let highest = found.values.iter().map(|record| match record {
        Record::Naptr { order, .. } => *order,
        Record::Address(_) | Record::Service { .. } => u16::MAX,
    });
    assert_eq!(highest.max(), Some(255));
}

/// Aliases that lead to each other, and a replacement that is the name itself, end.
#[test]
fn circles_end() {
    let mut lab = lab(|options| options.timeout = Duration::from_secs(2));
    for (from, to) in [("a.test.", "b.test."), ("b.test.", "a.test.")] {
        for kind in [RecordType::NAPTR, RecordType::A] {
            let alias = record(from, 60, RData::CNAME(CNAME(name(to))));
            lab.put(from, kind, Reply::Records(vec![alias]));
        }
    }
    for kind in [RecordKind::Naptr, RecordKind::A] {
        let found = lab.resolve("a.test", kind);
        assert!(found.is_err() || found.unwrap().values.is_empty(), "{kind:?}");
    }
    let own = record("self.test.", 60, pointer(1, 1, "s", "SIP+D2U", "", "self.test."));
    lab.put("self.test.", RecordType::NAPTR, Reply::Records(vec![own]));
    assert_eq!(lab.found("self.test", RecordKind::Naptr).values.len(), 1);
    assert!(lab.found("self.test", RecordKind::Srv).values.is_empty());
}

/// A domain that offers UDP and TCP on one host.
fn domain(lab: &Lab, tcp_order: u16, last: u8) {
    let pointers = [
        pointer(50, 1, "s", "SIP+D2U", "", "_sip._udp.example.test."),
        pointer(tcp_order, 1, "s", "SIP+D2T", "", "_sip._tcp.example.test."),
    ];
    let pointers = pointers.map(|data| record("example.test.", 60, data)).to_vec();
    lab.put("example.test.", RecordType::NAPTR, Reply::Records(pointers));
    for (owner, port) in [
        ("_sip._udp.example.test.", 5061),
        ("_sip._tcp.example.test.", 5062),
    ] {
        let service = RData::SRV(SRV::new(1, 1, port, name("GW.example.test.")));
        lab.put(
            owner,
            RecordType::SRV,
            Reply::Records(vec![record(owner, 60, service)]),
        );
    }
    let host = record("gw.example.test.", 60, RData::A(A::new(192, 0, 2, last)));
    lab.put("gw.example.test.", RecordType::A, Reply::Records(vec![host]));
}

/// From the wire through the core's machine: what a domain publishes, what is asked for, where the
/// request goes; and, when the domain changes, where the next one goes.
#[test]
fn a_domain_is_located_and_its_changes_are_followed() {
    let mut lab = lab(|_| {});
    let question = Question {
        host: HostRef::Name(b"Example.test"),
        port: None,
        transport: None,
        secure: false,
        transports: [Transport::Udp, Transport::Tcp].into_iter().collect(),
        ipv4: true,
        ipv6: false,
        dice: 7,
        stateless: false,
    };
    let mut cache = Cache::new(100);
    let mut locate = |lab: &mut Lab, seconds: u64| loop {
        let now = Instant::from_micros(seconds * 1_000_000);
        let located = cache.locate(now, &question);
        let mut asked = match &located {
            Located::Ask { name, kind } => Some((name.clone(), *kind)),
            Located::Done(_) | Located::Unavailable => None,
        };
        while let Some((name, kind)) = asked.take().or_else(|| cache.poll_refresh()) {
            let answer = lab.resolve(std::str::from_utf8(&name).unwrap(), kind);
            cache.store(now, &name, kind, answer);
        }
        if let Located::Done(candidates) = located {
            let text = |c: &Candidate| format!("{} {}", c.transport, c.address);
            break candidates.iter().map(text).collect::<Vec<_>>();
        }
    };
    domain(&lab, 10, 1);
    let before = ["TCP 192.0.2.1:5062", "UDP 192.0.2.1:5061"];
    assert_eq!(locate(&mut lab, 0), before);
    domain(&lab, 90, 2);
    assert_eq!(locate(&mut lab, 59), before, "as long as its records live");
    assert_eq!(locate(&mut lab, 61), before, "and once more");
    let after = ["UDP 192.0.2.2:5061", "TCP 192.0.2.2:5062"];
    assert_eq!(locate(&mut lab, 61), after);
    // A name service that fails takes nothing away.
    for (owner, kind) in [
        ("example.test.", RecordType::NAPTR),
        ("_sip._udp.example.test.", RecordType::SRV),
        ("_sip._tcp.example.test.", RecordType::SRV),
        ("gw.example.test.", RecordType::A),
    ] {
        lab.put(owner, kind, Reply::Failure);
    }
    for seconds in [130, 180, 230, 280] {
        assert_eq!(locate(&mut lab, seconds), after);
    }
}

#[test]
fn an_alias_is_followed_and_bounds_the_time_to_live() {
    let mut lab = lab(|_| {});
    lab.put(
        "alias.test.",
        RecordType::A,
        Reply::Records(vec![
            record("alias.test.", 30, RData::CNAME(CNAME(name("gw.test.")))),
            record("gw.test.", 300, RData::A(A::new(192, 0, 2, 1))),
        ]),
    );
    let found = lab.resolve("alias.test", RecordKind::A).unwrap();
    assert_eq!(
        found,
        Records {
            ttl_s: 30,
            values: vec![address("192.0.2.1")]
        }
    );
}

#[test]
fn negative_answers_are_kept_for_a_bounded_time() {
    let mut lab = lab(|_| {});
    let cases = [
        ("nxdomain.test.", ResponseCode::NXDomain, Some((90, 3600)), 90),
        ("minimum.test.", ResponseCode::NXDomain, Some((3600, 45)), 45),
        ("nodata.test.", ResponseCode::NoError, Some((120, 120)), 120),
        ("long.test.", ResponseCode::NXDomain, Some((86_400, 86_400)), 300),
        ("zero.test.", ResponseCode::NXDomain, Some((0, 0)), 1),
        ("nosoa.test.", ResponseCode::NXDomain, None, 30),
    ];
    for (owner, code, soa, ttl_s) in cases {
        lab.put(owner, RecordType::A, Reply::Negative(code, soa));
        let found = lab.resolve(owner.trim_end_matches('.'), RecordKind::A).unwrap();
        assert_eq!(
            found,
            Records {
                ttl_s,
                values: vec![]
            },
            "{owner}"
        );
    }
    assert_eq!(lab.count("negative"), cases.len() as u64);
}

#[test]
fn what_is_no_name_has_no_records() {
    let mut lab = lab(|_| {});
    for bad in ["", ".", &"a".repeat(64), "a..b", "\u{fffd}"] {
        let found = lab.resolve(bad, RecordKind::A).unwrap();
        assert!(found.values.is_empty(), "{bad}");
    }
    let long = format!("{}test", "label.".repeat(60));
    assert!(lab.resolve(&long, RecordKind::Srv).unwrap().values.is_empty());
    lab.dns.resolve(
        4,
        Some(QueryId {
            slot: 1,
            generation: 5,
        }),
        b"\xff\xfe"[..].into(),
        RecordKind::A,
    );
    assert!(lab.next().1.unwrap().values.is_empty());
}

#[test]
fn failures_and_silence_are_unavailable() {
    let mut lab = lab(|options| options.timeout = Duration::from_millis(600));
    lab.put("broken.test.", RecordType::A, Reply::Failure);
    lab.put("silent.test.", RecordType::A, Reply::Silence);
    assert_eq!(lab.resolve("broken.test", RecordKind::A), Err(Unavailable));
    let failed = lab.count("failed");
    assert_eq!(failed + lab.count("timed-out"), 1, "late on a busy machine");
    assert_eq!(lab.resolve("silent.test", RecordKind::A), Err(Unavailable));
    assert_eq!(
        (lab.count("failed"), lab.count("timed-out")),
        (failed, 2 - failed)
    );
    // And then it works again.
    let answer = record("silent.test.", 60, RData::A(A::new(192, 0, 2, 9)));
    lab.put("silent.test.", RecordType::A, Reply::Records(vec![answer]));
    assert_eq!(
        lab.found("silent.test", RecordKind::A).values,
        [address("192.0.2.9")]
    );
}

/// The time of the last attempt and that of the whole look-up are over in the same turn of a busy thread.
#[test]
fn silence_that_two_clocks_notice_is_a_time_out() {
    const TIME: Duration = Duration::from_millis(600);
    let mut lab = lab(|options| options.timeout = TIME);
    lab.put("silent.test.", RecordType::A, Reply::Silence);
    lab.ask(0, "silent.test", RecordKind::A);
    lab.runtime.spawn(async {
        // In the midst of the third attempt.
        tokio::time::sleep(TIME * 5 / 6).await;
        std::thread::sleep(TIME / 3);
    });
    assert_eq!(lab.next(), (0, Err(Unavailable)));
    assert_eq!((lab.count("failed"), lab.count("timed-out")), (0, 1));
}

#[test]
fn one_question_too_many_is_refused_at_once_and_the_rest_go_on() {
    let mut lab = lab(|options| {
        options.in_flight = 3;
        options.timeout = PATIENCE;
    });
    let answer = record("held.test.", 60, RData::A(A::new(192, 0, 2, 8)));
    let held = Arc::new(Mutex::new(vec![answer]));
    lab.put("held.test.", RecordType::A, Reply::Held(held.clone()));
    let lock = held.lock();
    for slot in 0..5 {
        lab.ask(slot, "held.test", RecordKind::A);
    }
    let first: Vec<_> = (0..2).map(|_| lab.next()).collect();
    assert_eq!(first, [(3, Err(Unavailable)), (4, Err(Unavailable))]);
    assert_eq!(lab.count("too-many"), 2);
    drop(lock);
    let mut rest: Vec<_> = (0..3).map(|_| lab.next().0).collect();
    rest.sort_unstable();
    assert_eq!(rest, [0, 1, 2]);
    let answer = record("gw.test.", 60, RData::A(A::new(192, 0, 2, 9)));
    lab.put("gw.test.", RecordType::A, Reply::Records(vec![answer]));
    assert!(lab.resolve("gw.test", RecordKind::A).is_ok(), "permits come back");
}

#[test]
fn an_answer_too_long_for_a_datagram_is_fetched_over_tcp() {
    let mut lab = lab(|_| {});
    let many = (1..=200)
        .map(|n| record("many.test.", 60, RData::A(A::new(192, 0, 2, n))))
        .collect();
    lab.put("many.test.", RecordType::A, Reply::Large(many));
    assert_eq!(lab.resolve("many.test", RecordKind::A).unwrap().values.len(), 200);
}

#[test]
fn the_hosts_file_comes_first_where_it_is_wanted() {
    let Ok(hosts) = std::fs::read_to_string("/etc/hosts") else {
        return;
    };
    // A name of this machine, other than the one that has a meaning of its own (RFC 6761 §6.3).
    let entry = hosts.lines().find_map(|line| {
        let mut words = line.split('#').next()?.split_whitespace();
        let address: IpAddr = words.next()?.parse().ok().filter(IpAddr::is_ipv4)?;
        let name = words.find(|word| !word.contains("localhost"))?;
        Some((address, name.to_ascii_lowercase()))
    });
    let Some((listed, host)) = entry else { return };
    let mut with = lab(|_| {});
    assert!(
        with.resolve(&host, RecordKind::A)
            .unwrap()
            .values
            .contains(&Record::Address(listed))
    );
    let mut without = lab(|options| options.hosts_file = false);
    let answer = record(&format!("{host}."), 60, RData::A(A::new(192, 0, 2, 77)));
    without.put(&format!("{host}."), RecordType::A, Reply::Records(vec![answer]));
    assert_eq!(
        without.resolve(&host, RecordKind::A).unwrap().values,
        [address("192.0.2.77")]
    );
}

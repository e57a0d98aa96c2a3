//! The load generator beside SIPp, and over every transport.

use std::time::{Duration, Instant};

use conformance::generator::{load, target, total};
use conformance::{
    Authority, Config, Name, PATIENCE, Scene, Server, Sipp, Transport, over_udp_and_tcp, port,
};

over_udp_and_tcp!(
    as_many_of_each_as_sipp,
    as_many_failures_as_sipp,
    as_many_cancelled_as_sipp
);

const CALLS: u32 = 200;
const RATE: u32 = 200;

/// T1 of all three. A machine that stalls for less than this makes none of them send anything again, and what they
/// count is how many there are of each.
const SERVERS_T1: &str = "t1_ms = 4000";
const GENERATORS_T1: &str = "4s";
const SIPPS_T1: &str = "4000";

/// What the server counts, once that has grown by this much since `before`, and does not change any more: each
/// worker publishes its counters a few times a second.
fn counted(server: &Server, before: &[(String, f64)], least: &[(&str, u32)]) -> Vec<(String, f64)> {
    let growth = |now: &[(String, f64)], label: &str| -> f64 {
        let quoted = format!("\"{label}\"");
        let pairs = now
            .iter()
            .zip(before)
            .filter(|((name, _), _)| name.contains(&quoted));
        pairs.map(|((_, now), (_, then))| now - then).sum()
    };
    let mut last = Vec::new();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let now = counted_now(server);
        let is_enough = |(label, least): &(&str, u32)| growth(&now, label) >= f64::from(*least);
        if now == last && least.iter().all(is_enough) {
            return now;
        }
        assert!(
            Instant::now() < deadline,
            "{least:?} more than {before:?}: {now:?}"
        );
        last = now;
        std::thread::sleep(Duration::from_millis(300));
    }
}

/// Messages in, by kind, and the answers that it made.
fn counted_now(server: &Server) -> Vec<(String, f64)> {
    let methods = ["INVITE", "ACK", "BYE", "CANCEL"];
    let requests = methods.map(|m| ("trapezoid_requests_received_total", format!("method=\"{m}\"")));
    let classes = ["1xx", "2xx", "3xx", "4xx", "5xx", "6xx"];
    let responses = classes.map(|c| ("trapezoid_responses_received_total", format!("class=\"{c}\"")));
    let made = classes.map(|c| ("trapezoid_responses_made_total", format!("class=\"{c}\"")));
    let all = requests.into_iter().chain(responses).chain(made);
    all.map(|(name, label)| (format!("{name} {label}"), server.metric(name, &label)))
        .collect()
}

/// How much each has grown by. `calls` says how often each of these labels is counted for a call, in hundredths.
fn grown(server: &Server, before: &[(String, f64)], calls: &[(&'static str, u32)]) -> Vec<(String, f64)> {
    // Within one percent, as below.
    let least: Vec<(&str, u32)> = calls
        .iter()
        .map(|(label, hundredths)| (*label, CALLS * hundredths / 100 * 99 / 100))
        .collect();
    let after = counted(server, before, &least).into_iter().zip(before);
    after.map(|((name, now), (_, then))| (name, now - then)).collect()
}

/// Metrics that count whatever a comparison is about are named in `some`: a server that does not
/// count them, or not under that name, agrees with itself about nothing.
fn within_one_percent(ours: &[(String, f64)], sipps: &[(String, f64)], some: &[&str]) -> Result<(), String> {
    for label in some {
        let quoted = format!("\"{label}\"");
        let counted = |all: &[(String, f64)]| {
            let mut named = all.iter().filter(|(name, _)| name.contains(&quoted));
            named.any(|(_, count)| *count > 0.0)
        };
        assert!(
            counted(ours) && counted(sipps),
            "nothing of {label}: {ours:?}, {sipps:?}"
        );
    }
    let far = |a: f64, b: f64| (a - b).abs() > 0.01 * a.max(b);
    let mut pairs = ours.iter().zip(sipps);
    match pairs.find(|((_, a), (_, b))| far(*a, *b)) {
        Some(((name, a), (_, b))) => Err(format!("{name}: {a}, and {b} with SIPp")),
        None => Ok(()),
    }
}

/// On a machine that stalls for long, either of the two sends messages again: then once more, twice at most.
fn unless_stalled(compare: impl Fn() -> Result<(), String>) {
    let differences: Vec<String> = (0..3).map_while(|_| compare().err()).collect();
    assert!(differences.len() < 3, "{differences:#?}");
}

/// Calls at `RATE` for as long as `CALLS` take.
fn calls(scene: &Scene, transport: Transport, users: &str, more: &[&str]) -> conformance::generator::Report {
    let seconds = format!("{}s", CALLS / RATE);
    let (rate, uas) = (RATE.to_string(), scene.at(port::CALLEE + 1).to_string());
    let words = [
        "call",
        "--target",
        &target(scene, transport),
        "--transport",
        word(transport),
        "--domain",
        "example.com",
        "--rate",
        &rate,
        "--duration",
        &seconds,
        "--users",
        users,
        "--uas",
        &uas,
        "--t1",
        GENERATORS_T1,
    ];
    load(scene, &[&words, more].concat())
}

/// The word for it on the command line.
fn word(transport: Transport) -> &'static str {
    match transport {
        Transport::Wss => "wss",
        Transport::Udp | Transport::Tcp | Transport::Tls | Transport::Ws => transport.name(),
    }
}

/// Where SIPp's callee is, and ours.
fn callee(scene: &Scene, transport: Transport, more: u16) -> String {
    format!(
        "sip:{};transport={}",
        scene.at(port::CALLEE + more),
        transport.name()
    )
}

/// SIPp, with as many calls.
fn sipp_caller(scene: &Scene, transport: Transport) -> Sipp<'_> {
    let server = scene.at(port::SERVER);
    Sipp::client(scene, "uac_call", transport, port::CALLER, server)
        .calls(CALLS, RATE)
        .set("retrans", SIPPS_T1)
}

/// What a call makes the server count, in hundredths: all of its messages but for the provisional responses,
/// of which some may be spared.
const A_CALL: [(&str, u32); 5] = [
    ("INVITE", 100),
    ("ACK", 100),
    ("BYE", 100),
    ("1xx", 100),
    ("2xx", 200),
];

/// The same where every other call is refused.
const HALF_A_CALL: [(&str, u32); 6] = [
    ("INVITE", 100),
    ("ACK", 100),
    ("BYE", 50),
    ("1xx", 50),
    ("2xx", 100),
    ("4xx", 50),
];

/// The same where each is cancelled.
const CANCELLED: [(&str, u32); 6] = [
    ("INVITE", 100),
    ("ACK", 100),
    ("CANCEL", 100),
    ("1xx", 100),
    ("2xx", 200),
    ("4xx", 100),
];

fn as_many_of_each_as_sipp(transport: Transport) {
    unless_stalled(|| each_beside_sipp(transport));
}

fn each_beside_sipp(transport: Transport) -> Result<(), String> {
    let scene = Scene::new();
    let route = |uri: &str, to: String| {
        format!("when = {{ method = [\"INVITE\"], uri = \"{uri}\" }}\ndo = {{ relay = \"{to}\" }}")
    };
    let config = Config::new()
        .route(&route("^sip:bob@", callee(&scene, transport, 0)))
        .route(&route("^sip:user", callee(&scene, transport, 1)))
        .table("[timers]", SERVERS_T1);
    let server = Server::start(&scene, &config);
    let before = counted_now(&server);
    let report = calls(&scene, transport, "user:1000", &[]);
    let ours = grown(&server, &before, &A_CALL);
    assert_eq!(report["succeeded"].as_u64(), Some(u64::from(CALLS)), "{report}");
    assert_eq!(report["failed"].as_u64(), Some(0), "{report}");
    let Some(phone) = Sipp::server(&scene, "uas_call", transport, port::CALLEE)
        .calls(CALLS, RATE)
        .set("retrans", SIPPS_T1)
        .start()
    else {
        return Ok(());
    };
    let before = counted_now(&server);
    sipp_caller(&scene, transport)
        .start()
        .expect("SIPp, as above")
        .succeed(CALLS);
    phone.succeed(CALLS);
    let some = ["INVITE", "ACK", "BYE", "1xx", "2xx"];
    within_one_percent(&ours, &grown(&server, &before, &A_CALL), &some)?;
    // And what the generator says that it sent and got is what the server got and sent.
    let sent = |name: &str| report["messages"]["sent"][name].as_u64().unwrap_or(0) as f64;
    let resent = total(&report["retransmissions"]) as f64;
    let requests: f64 = ours
        .iter()
        .filter(|(name, _)| name.contains("requests"))
        .map(|(_, n)| n)
        .sum();
    assert_eq!(
        sent("INVITE") + sent("ACK") + sent("BYE"),
        3.0 * f64::from(CALLS),
        "{report}"
    );
    if (requests - 3.0 * f64::from(CALLS)).abs() > resent {
        return Err(format!("{requests} requests, {report}"));
    }
    let got = &report["messages"]["received"];
    for name in ["180 INVITE", "200 INVITE", "200 BYE", "INVITE", "ACK", "BYE"] {
        let count = got[name].as_u64().unwrap_or(0);
        if !(u64::from(CALLS)..=u64::from(CALLS) + resent as u64).contains(&count) {
            return Err(format!("{name}: {report}"));
        }
    }
    Ok(())
}

/// Every other call is refused: SIPp counts as many failures.
fn as_many_failures_as_sipp(transport: Transport) {
    unless_stalled(|| failures_beside_sipp(transport));
}

fn failures_beside_sipp(transport: Transport) -> Result<(), String> {
    let scene = Scene::new();
    let config = Config::new()
        .route("when = { method = [\"INVITE\"], uri = \"^sip:[a-z]*[0-9]*[13579]@\" }\ndo = { reject = 488 }")
        .invites_to(&callee(&scene, transport, 1), "")
        .table("[timers]", SERVERS_T1);
    let server = Server::start(&scene, &config);
    let before = counted_now(&server);
    let report = calls(&scene, transport, "user:10", &[]);
    let ours = grown(&server, &before, &HALF_A_CALL);
    let half = u64::from(CALLS / 2);
    assert_eq!(
        (report["succeeded"].as_u64(), report["failed"].as_u64()),
        (Some(half), Some(half)),
        "{report}"
    );
    assert_eq!(report["failures"], serde_json::json!({ "status 488": half }));
    let Some(phone) = Sipp::server(&scene, "uas_call", transport, port::CALLEE + 1)
        .calls(CALLS / 2, RATE)
        .set("retrans", SIPPS_T1)
        .start()
    else {
        return Ok(());
    };
    let before = counted_now(&server);
    let caller = sipp_caller(&scene, transport).set("uri", "sip:u[call_number]@example.com");
    let (_, stats) = caller.start().expect("SIPp, as above").end();
    phone.succeed(CALLS / 2);
    assert!(stats.successful().abs_diff(half) <= half / 100, "{stats:?}");
    assert!(stats.failed().abs_diff(half) <= half / 100, "{stats:?}");
    let some = ["INVITE", "ACK", "BYE", "1xx", "2xx", "4xx"];
    within_one_percent(&ours, &grown(&server, &before, &HALF_A_CALL), &some)
}

/// No callee picks up, and the callers cancel: the messages of that are as many, too.
fn as_many_cancelled_as_sipp(transport: Transport) {
    unless_stalled(|| cancelled_beside_sipp(transport));
}

fn cancelled_beside_sipp(transport: Transport) -> Result<(), String> {
    let scene = Scene::new();
    let config = Config::new()
        .invites_to(&callee(&scene, transport, 1), "")
        .table("[timers]", SERVERS_T1);
    let server = Server::start(&scene, &config);
    let before = counted_now(&server);
    let rings = ["--ring", "60s", "--answer-within", "50ms"];
    let report = calls(&scene, transport, "user:1000", &rings);
    let ours = grown(&server, &before, &CANCELLED);
    assert_eq!(
        report["failures"],
        serde_json::json!({ "no final answer": CALLS })
    );
    assert_eq!(
        report["messages"]["sent"]["CANCEL"].as_u64(),
        Some(u64::from(CALLS)),
        "{report}"
    );
    let Some(phone) = Sipp::server(&scene, "uas_cancelled", transport, port::CALLEE + 1)
        .calls(CALLS, RATE)
        .set("retrans", SIPPS_T1)
        .start()
    else {
        return Ok(());
    };
    let before = counted_now(&server);
    let caller = Sipp::client(
        &scene,
        "uac_cancel",
        transport,
        port::CALLER,
        scene.at(port::SERVER),
    );
    let caller = caller.calls(CALLS, RATE).set("retrans", SIPPS_T1);
    caller.start().expect("SIPp, as above").succeed(CALLS);
    phone.succeed(CALLS);
    let some = ["INVITE", "ACK", "CANCEL", "1xx", "2xx", "4xx"];
    within_one_percent(&ours, &grown(&server, &before, &CANCELLED), &some)
}

/// A limit of the generator's own is reported as such, and no other cause with it.
#[test]
fn calls_without_descriptors_left_have_their_cause() {
    let scene = Scene::new();
    let silent = std::net::TcpListener::bind(scene.at(port::SERVER)).expect("a port");
    let target = silent.local_addr().expect("bound").to_string();
    let output = std::process::Command::new("sh")
        .args(["-c", "ulimit -n 24 && exec \"$0\" \"$@\""])
        .arg(conformance::binary())
        .args(["load", "options", "--target", &target, "--transport", "tcp"])
        .args(["--connections", "per-call", "--rate", "100", "--duration", "1s"])
        .args(["--t1", "100ms", "--drain", "0s", "--json", "-"])
        .output()
        .expect("a shell");
    assert!(output.status.success(), "{output:?}");
    let report: conformance::generator::Report = serde_json::from_slice(&output.stdout).expect("JSON");
    let failures = report["failures"].as_object().expect("a map");
    let known = |cause: &str| cause == "no descriptor or port" || cause == "unfinished";
    assert!(failures.keys().all(|cause| known(cause)), "{report}");
    assert!(failures["no descriptor or port"].as_u64() > Some(50), "{report}");
    assert_eq!(report["generator"]["saturated"], true, "{report}");
    let why = report["generator"]["why"].as_str().expect("a reason");
    assert!(why.contains("Too many open files"), "{why}");
}

mod every_transport {
    use conformance::Transport;

    #[test]
    fn udp() {
        super::over_each_kind_of_connection(Transport::Udp);
    }

    #[test]
    fn tcp() {
        super::over_each_kind_of_connection(Transport::Tcp);
    }

    #[test]
    fn tls() {
        super::over_each_kind_of_connection(Transport::Tls);
    }

    #[test]
    fn websocket() {
        super::over_each_kind_of_connection(Transport::Ws);
    }

    #[test]
    fn secured_websocket() {
        super::over_each_kind_of_connection(Transport::Wss);
    }
}

/// Operations of each kind, and users. Of one user no two REGISTERs are under way.
const COUNT: u64 = 20;

/// Checks that all operations of a run succeeded over as many connections as it was to open; how many those are.
fn all_succeeded(
    report: &conformance::generator::Report,
    transport: Transport,
    connections: &str,
) -> Option<u64> {
    assert_eq!(
        report["succeeded"].as_u64(),
        Some(COUNT),
        "{connections}: {report}"
    );
    assert_eq!(report["failed"].as_u64(), Some(0), "{report}");
    let connects = report["response_ms"]["connect"]["count"].as_u64();
    let (least, expected) = match (transport, connections) {
        (Transport::Udp, _) => (None, None),
        // The generator counts those that it began in the time of its load: of the last it may come too late.
        (_, "per-call") => (Some(1), Some(COUNT)),
        (_, shared) => (shared.parse().ok(), shared.parse().ok()),
    };
    assert!(
        least <= connects && connects <= expected,
        "{connections}: {connects:?} in {report}"
    );
    expected
}

/// Calls, registrations, OPTIONS and messages over a transport, by one connection, by several and by one for each
/// call.
fn over_each_kind_of_connection(transport: Transport) {
    let scene = Scene::new();
    let authority = Authority::new(&scene, "Test");
    let identity = authority.issue("server", &[Name::Dns("example.com")]);
    let mut config = Config::new().workers(2).auth(&["REGISTER", "INVITE", "MESSAGE"]);
    if !matches!(transport, Transport::Udp | Transport::Tcp) {
        config = config.listen(&scene, transport, &identity, "");
    }
    for user in 0..COUNT {
        config = config.user(&format!("user{user:05}"), "secret");
    }
    let callee = callee(&scene, Transport::Udp, 1);
    let server = Server::start(
        &scene,
        &config.invites_to(&callee, "").route(&format!(
            "when = {{ method = [\"MESSAGE\"] }}\ndo = {{ relay = \"{callee}\" }}"
        )),
    );
    let (uas, ca) = (scene.at(port::CALLEE + 1).to_string(), authority.file());
    let users = format!("user:{COUNT}");
    let mut opened = 0;
    for kind in ["call", "register", "options", "message"] {
        for connections in ["1", "3", "per-call"] {
            let words = [
                kind,
                "--target",
                &target(&scene, transport),
                "--transport",
                word(transport),
                "--rate",
                "200",
                "--duration",
                "100ms",
                "--domain",
                "example.com",
                "--auth",
                "digest",
                "--users",
                &users,
                "--password",
                "secret",
                "--uas",
                &uas,
                "--uas-transport",
                "udp",
                "--tls-ca",
                ca.to_str().expect("a path"),
                "--connections",
                connections,
            ];
            let report = load(&scene, &words);
            opened += all_succeeded(&report, transport, connections).unwrap_or(0);
            let peers = server.wait_for_metric("trapezoid_net_connections_total", "\"peer\"", |n| {
                n >= opened as f64
            });
            assert_eq!(peers, opened as f64, "{kind} {connections}");
        }
    }
}

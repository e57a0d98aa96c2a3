//! The split of CPU time, as the running server reports it under real traffic.

use std::time::{Duration, Instant};

use conformance::{
    Agent, Authority, Config, DOMAIN, Link, Name, Scene, Server, TlsPeer, Transport, wait_until,
};
use serde_json::Value;

/// How long it may take until every part was seen, for what is stuck: of 16 turns one is measured.
const LONG: Duration = Duration::from_secs(120);

/// REGISTERs of [`cpu_time_is_split_while_that_is_wanted`] that nothing measures: 25 times a challenge and an
/// answer to it, for a registration and for its end.
const UNMEASURED: f64 = 100.0;

const PAGE: &str = "/api/v1/cpu-split";
const SERIES: &str = "trapezoid_cpu_seconds_total";

/// What a REGISTER with credentials over UDP and TLS makes a worker do.
const PARTS: [&str; 12] = [
    "wait",
    "receive",
    "send",
    "connections",
    "tls",
    "framing",
    "parse",
    "auth",
    "location",
    "build",
    "store",
    "other",
];

fn shares(split: &Value) -> Vec<(String, f64)> {
    let components = split["components"].as_array().expect("a list");
    let share = |part: &Value| {
        let name = part["component"].as_str().expect("a name").to_owned();
        (name, part["share_percent"].as_f64().expect("a number"))
    };
    components.iter().map(share).collect()
}

#[test]
fn cpu_time_is_split_while_that_is_wanted() {
    let scene = Scene::new();
    let authority = Authority::new(&scene, "authority");
    let identity = authority.issue("server", &[Name::Dns(DOMAIN)]);
    let config = Config::new()
        .workers(1)
        .auth(&["REGISTER"])
        .user("alice", "wonderland")
        .listen(&scene, Transport::Tls, &identity, "");
    let server = Server::start(&scene, &config);
    let tls = TlsPeer::trusting(&authority, DOMAIN);
    let register = |transport| {
        let link = Link::to_server(&scene, transport, &tls).expect("connecting");
        let agent = Agent::new(link, "alice", "wonderland");
        let mut agent = if transport == Transport::Tls {
            agent.outbound()
        } else {
            agent
        };
        agent.register(600);
        agent.register(0);
    };
    let get = || server.api(&format!("GET {PAGE}"), "");
    // 503 says that not every worker has obeyed in time.
    let put = |on| server.api_when_ready(&format!("PUT {PAGE}"), &format!("{{\"on\": {on}}}"));
    let registers = || server.metric("trapezoid_requests_received_total", "method=\"REGISTER\"");
    let counted = |component: &str| server.metric(SERIES, &format!("component=\"{component}\""));

    register(Transport::Udp);
    assert_eq!(get()["on"], false);
    assert_eq!(get()["workers_cpu_seconds"], 0.0, "nothing is measured unasked");
    assert_eq!(counted("parse") + counted("control"), 0.0);

    assert_eq!(put(true)["on"], true);
    let until = Instant::now() + LONG;
    loop {
        (0..4).for_each(|_| register(Transport::Udp));
        register(Transport::Tls);
        let shares = shares(&get());
        let has = |part: &&str| shares.iter().any(|(name, share)| name == part && *share > 0.0);
        if PARTS.iter().all(has) {
            let sum: f64 = shares.iter().map(|(_, share)| share).sum();
            assert!((sum - 100.0).abs() < 0.1, "{sum}: {shares:?}");
            break;
        }
        assert!(Instant::now() < until, "{shares:?}");
    }
    for part in ["parse", "receive", "send", "auth", "tls"] {
        assert!(counted(part) > 0.0, "{part}");
    }
    assert!(counted("control") > 0.0, "the threads of HTTP worked too");

    let ended = put(false);
    assert!(
        ended["workers_cpu_seconds"].as_f64() > Some(0.0),
        "what was counted stays"
    );
    let before = registers();
    (0..25).for_each(|_| register(Transport::Udp));
    // What the worker counts of its CPU time is published with this.
    wait_until("the REGISTERs are counted", || registers() >= before + UNMEASURED);
    assert_eq!(get(), ended, "and nothing comes to it");
    assert_eq!(server.metric(SERIES, ""), 0.0);
    assert!(put(true)["workers_cpu_seconds"].as_f64() < ended["workers_cpu_seconds"].as_f64());
}

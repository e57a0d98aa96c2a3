//! The running server, through the built binary, on a loopback address of its own.

use crate::common;

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use common::{PATIENCE, Place, Server, ask, check, get};

fn configuration(sip: SocketAddr, admin: SocketAddr, more: &str) -> String {
    format!(
        "[server]\nworkers = 2\ndrain_s = 1\n[[listen]]\ntransport = \"udp\"\naddress = \"{sip}\"\n\
         [[listen]]\ntransport = \"tcp\"\naddress = \"{sip}\"\n[admin]\nlisten = \"{admin}\"\n{more}"
    )
}

/// Sends OPTIONS to the server itself; the answer's first line.
pub(crate) fn options(server: SocketAddr, branch: &str) -> String {
    let socket = UdpSocket::bind(SocketAddr::new(server.ip(), 0)).expect("binds");
    socket.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    let own = socket.local_addr().expect("an address");
    let request = format!(
        "OPTIONS sip:{server} SIP/2.0\r\nVia: SIP/2.0/UDP {own};branch=z9hG4bK{branch}\r\nMax-Forwards: 70\r\n\
         To: <sip:{server}>\r\nFrom: <sip:test@{own}>;tag=1\r\nCall-ID: {branch}\r\nCSeq: 1 OPTIONS\r\n\
         Content-Length: 0\r\n\r\n"
    );
    socket.send_to(request.as_bytes(), server).expect("sends");
    let mut answer = [0; 2000];
    let length = socket.recv(&mut answer).expect("an answer");
    String::from_utf8_lossy(&answer[..length])
        .lines()
        .next()
        .unwrap_or_default()
        .to_owned()
}

#[test]
fn a_server_serves_reloads_and_drains() {
    let dir = tempfile::tempdir().expect("a directory");
    let place = Place::claim();
    let (sip, admin) = (place.at(5060), place.at(8080));
    let write = |text: &str| std::fs::write(dir.path().join("t.toml"), text).expect("writable");
    write(&configuration(sip, admin, ""));
    let mut server = Server::start(dir.path());
    let ready = server.wait_for("is ready");
    assert!(ready.contains(&format!("udp+tcp {sip}")), "{ready}");
    server.wait_for(&format!("metrics at http://{admin}/metrics"));
    assert_eq!(
        get(admin, "/health/ready"),
        (200, "{\"status\":\"ready\"}\n".to_owned())
    );
    assert_eq!(options(sip, "first"), "SIP/2.0 200 OK");

    // A second one on the same address says so, with a remedy, and touches nothing.
    let mut second = Server::start(dir.path());
    let line = second.wait_for("cannot listen at");
    assert!(
        line.contains("end it, or name other addresses in [[listen]]"),
        "{line}"
    );
    assert_eq!(second.exit_code(), Some(2));

    // Counters are published a few times a second.
    let counted = || {
        get(admin, "/metrics").1.lines().any(|line| {
            line.starts_with("trapezoid_requests_received_total{method=\"OPTIONS\"") && line.ends_with(" 1")
        })
    };
    let until = Instant::now() + PATIENCE;
    while !counted() {
        assert!(Instant::now() < until, "{}", get(admin, "/metrics").1);
        std::thread::sleep(Duration::from_millis(20));
    }

    // A wrong file changes nothing and is reported with its lines.
    write("[server]\nworkrs = 3\n");
    server.signal("HUP");
    let line = server.wait_for("the old one stays");
    assert!(line.contains("t.toml:2: server.workrs: unknown key"), "{line}");
    assert_eq!(options(sip, "second"), "SIP/2.0 200 OK");

    // What can change does; what cannot is named.
    write(&configuration(
        sip,
        admin,
        "[dns]\ntimeout_ms = 100\n[[domain]]\nname = \"example.com\"\n",
    ));
    server.signal("HUP");
    let line = server.wait_for("after a restart only");
    assert!(line.contains("keys=\"dns\""), "{line}");
    server.wait_for("configuration reloaded");
    assert_eq!(options(sip, "third"), "SIP/2.0 200 OK");

    server.signal("TERM");
    server.wait_for("draining");
    assert_eq!(server.exit_code(), Some(0));
}

#[test]
fn a_drain_outlives_a_reload_and_the_token_is_in_no_log() {
    let dir = tempfile::tempdir().expect("a directory");
    let place = Place::claim();
    let (sip, admin) = (place.at(5060), place.at(8080));
    // Nothing is sent to members here.
    let [first, second, third] = ["192.0.2.2", "192.0.2.3", "192.0.2.4"];
    let group = |members: &str| {
        let more = format!(
            "[[group]]\nname = \"carriers\"\nprobe_s = 0\nmembers = [{members}]\n\
             [[route]]\ndo = {{ relay = \"group:carriers\" }}\n"
        );
        std::fs::write(dir.path().join("t.toml"), configuration(sip, admin, &more)).expect("writable");
    };
    group(&format!(
        "{{ uri = \"sip:{first}\" }}, {{ uri = \"sip:{second}\" }}"
    ));
    let mut server = Server::start(dir.path());
    server.wait_for("is ready");
    let line = server.wait_for("the token of /api/v1/ was made");
    assert!(line.contains("data/admin.token has it"), "{line}");
    let token = std::fs::read_to_string(dir.path().join("data/admin.token")).expect("made");
    let token = token.trim();
    let headers = format!("Authorization: Bearer {token}\r\n");
    let states = || {
        let (status, body) = ask(admin, "GET /api/v1/groups", &headers);
        let body: serde_json::Value = serde_json::from_str(&body).expect("JSON");
        let members = body["groups"][0]["members"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let states: Vec<String> = members
            .iter()
            .map(|member| member["state"].as_str().expect("a state").to_owned())
            .collect();
        (status, states)
    };
    assert_eq!(get(admin, "/api/v1/groups").0, 401);
    assert_eq!(states(), (200, vec!["up".to_owned(), "up".to_owned()]));
    let drain = format!("POST /api/v1/groups/carriers/drain?member=sip:{second}");
    assert_eq!(ask(admin, &drain, &headers).0, 200);
    server.wait_for("member drained by the operator");

    group(&format!(
        "{{ uri = \"sip:{second}\" }}, {{ uri = \"sip:{third}\" }}, {{ uri = \"sip:{first}\" }}"
    ));
    server.signal("HUP");
    server.wait_for("configuration reloaded");
    let expected = ["drained", "up", "up"].map(str::to_owned).to_vec();
    assert_eq!(states(), (200, expected));
    let page = get(admin, "/metrics").1;
    let up = format!("trapezoid_group_member_up{{group=\"carriers\",member=\"sip:{second}\"}} 0");
    assert!(page.contains(&up), "{page}");
    server.signal("TERM");
    assert_eq!(server.exit_code(), Some(0));
    let with_token = |lines: Vec<String>| -> Vec<String> {
        lines.into_iter().filter(|line| line.contains(token)).collect()
    };
    let told = with_token(server.all_lines());
    assert!(told.is_empty(), "not where it is kept for good: {told:?}");

    let mut again = Server::start(dir.path());
    again.wait_for("is ready");
    assert_eq!(states().0, 200, "the same token");
    again.signal("TERM");
    assert_eq!(again.exit_code(), Some(0));
    let told = with_token(again.all_lines());
    assert!(told.is_empty(), "shown again: {told:?}");
}

/// A balancer asks every few seconds whether the server is ready, and sends requests until the answer is no.
#[test]
fn requests_are_served_while_a_balancer_takes_the_server_out() {
    let dir = tempfile::tempdir().expect("a directory");
    let place = Place::claim();
    let (sip, admin) = (place.at(5060), place.at(8080));
    let text = configuration(sip, admin, "").replace("drain_s = 1", "drain_s = 1\ndrain_min_s = 600");
    std::fs::write(dir.path().join("t.toml"), text).expect("writable");
    let mut server = Server::start(dir.path());
    server.wait_for("is ready");
    server.signal("TERM");
    server.wait_for("ready no more");
    let (status, body) = get(admin, "/health/ready");
    assert_eq!(status, 503, "{body}");
    assert!(body.contains("draining"), "{body}");
    assert_eq!(get(admin, "/health/live").0, 200);
    assert_eq!(options(sip, "late"), "SIP/2.0 200 OK");
    server.signal("HUP");
    server.wait_for("the configuration is not read again");
    // A second signal ends the wait, unless it comes so soon that it may be the first one, delivered twice. By the line
    // above the wait has begun.
    std::thread::sleep(Duration::from_millis(1_100));
    server.signal("TERM");
    server.wait_for("draining; a second signal");
    assert_eq!(server.exit_code(), Some(0));
}

#[test]
fn data_in_use_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let places = [(); 3].map(|()| Place::claim());
    let start = |place: &Place| {
        let text = configuration(place.at(5060), place.at(8080), "");
        std::fs::write(dir.path().join("t.toml"), text).expect("writable");
        Server::start(dir.path())
    };
    let mut first = start(&places[0]);
    first.wait_for("is ready");
    let mut second = start(&places[1]);
    let line = second.wait_for("is in use by another process");
    assert!(line.contains("name another [location] url or data_dir"), "{line}");
    assert_eq!(second.exit_code(), Some(2));
    first.signal("INT");
    assert_eq!(first.exit_code(), Some(0));
    // What the first left is free again.
    let mut third = start(&places[2]);
    third.wait_for("is ready");
    third.signal("TERM");
    assert_eq!(third.exit_code(), Some(0));
}

#[test]
fn the_error_of_an_unavailable_address_has_a_remedy() {
    let dir = tempfile::tempdir().expect("a directory");
    let fails = |text: &str| {
        std::fs::write(dir.path().join("t.toml"), text).expect("writable");
        let mut server = Server::start(dir.path());
        let line = server.wait_for("cannot listen at");
        assert_eq!(server.exit_code(), Some(2));
        line
    };
    let line = fails("[[listen]]\ntransport = \"udp\"\naddress = \"192.0.2.200:5060\"\n");
    assert!(
        line.contains("no interface of this machine has that address"),
        "{line}"
    );
    let place = Place::claim();
    let _taken = std::net::TcpListener::bind(place.at(8080)).expect("binds");
    let line = fails(&configuration(place.at(5060), place.at(8080), ""));
    assert!(
        line.contains("name another address in [admin] listen, or \"off\""),
        "{line}"
    );
    assert!(!dir.path().join("data").exists(), "nothing was made");
}

#[test]
fn cpu_time_is_split_as_the_file_says() {
    let dir = tempfile::tempdir().expect("a directory");
    let place = Place::claim();
    let (sip, admin) = (place.at(5060), place.at(8080));
    let write = |more: &str| {
        let text = configuration(sip, admin, more);
        std::fs::write(dir.path().join("t.toml"), text).expect("writable");
    };
    let is_told = || {
        get(admin, "/metrics")
            .1
            .contains("\ntrapezoid_cpu_seconds_total{thread=\"worker-1\"")
    };
    write("cpu_split = true\n");
    assert_eq!(check(dir.path(), "t.toml").0, 0);
    let mut server = Server::start(dir.path());
    server.wait_for("is ready");
    assert!(is_told());
    for (more, told) in [
        ("cpu_split = false\n", false),
        ("cpu_split = true\n", true),
        ("", false),
    ] {
        write(more);
        server.signal("HUP");
        server.wait_for("configuration reloaded");
        assert_eq!(is_told(), told, "{more}");
    }
    server.signal("TERM");
    assert_eq!(server.exit_code(), Some(0));
}

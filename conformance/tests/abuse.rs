//! Abuse control of a real server: guessing, bans that outlive a restart, floods, scanners.

use std::io::{ErrorKind, Read};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use conformance::digest::credentials;
use conformance::generator::{load, target};
use conformance::{
    Client, Config, DOMAIN, Message, PATIENCE, Scene, Server, Transport, command, port, wait_until,
};
use serde_json::json;

/// How often a request without an answer is sent again (RFC 3261 §17.1.2.2).
const AGAIN: Duration = Duration::from_millis(500);

pub(crate) fn register(user: &str, call: &str, cseq: u32, more: &str) -> String {
    format!(
        "REGISTER sip:{DOMAIN} SIP/2.0\nMax-Forwards: 70\nFrom: <sip:{user}@{DOMAIN}>;tag=1\nTo: <sip:{user}@{DOMAIN}>\n\
         Call-ID: {call}\nCSeq: {cseq} REGISTER\nContact: <sip:{user}@192.0.2.9>\n{more}"
    )
}

/// Registers with a password, as far as sending it.
#[track_caller]
fn guess(client: &mut Client, user: &str, password: &str, call: &str) {
    client.send(&register(user, call, 1, ""), &format!("{call}a"));
    let challenge = client.final_response();
    assert_eq!(challenge.status(), 401, "{challenge:?}");
    let uri = format!("sip:{DOMAIN}");
    let line = credentials("REGISTER", &uri, &challenge, user, password);
    let text = register(user, call, 2, &format!("Authorization: {line}\n"));
    client.send(&text, &format!("{call}b"));
}

/// The same; the final answer.
pub(crate) fn log_in(client: &mut Client, user: &str, password: &str, call: &str) -> Message {
    guess(client, user, password, call);
    client.final_response()
}

fn guarded(scene: &Scene, workers: u16) -> Server {
    let config = Config::new()
        .workers(workers)
        .auth(&["REGISTER"])
        .user("alice", "wonderland")
        .user("bob", "builder")
        .table("[abuse]", "failures = 3\nban_s = 600\nexempt = []");
    Server::start(scene, &config)
}

pub(crate) fn client(scene: &Scene, transport: Transport, port: u16) -> Client {
    Client::new(scene, transport, port, scene.at(port::SERVER))
}

/// The banned sources, as the server lists them.
#[track_caller]
fn banned(server: &Server) -> Vec<String> {
    let answer = server.api("GET /api/v1/bans", "");
    let bans = answer["bans"].as_array().expect("a list").iter();
    bans.filter_map(|ban| ban["source"].as_str().map(str::to_owned))
        .collect()
}

/// Asks the server by OPTIONS over UDP, each time with another Call-ID, from some ports in turn: where the
/// kernel spreads datagrams by their source, all workers get some as well.
struct Stranger {
    sockets: Vec<UdpSocket>,
    server: SocketAddr,
    /// Of its last request.
    number: u32,
}

impl Stranger {
    #[track_caller]
    fn at(ip: IpAddr, server: SocketAddr) -> Self {
        let bind = |_| {
            let socket = UdpSocket::bind((ip, 0)).expect("a socket");
            socket.set_nonblocking(true).expect("not to block");
            socket
        };
        Self {
            sockets: (0..16).map(bind).collect(),
            server,
            number: 0,
        }
    }

    fn new(scene: &Scene) -> Self {
        Self::at(scene.ip(), scene.at(port::SERVER))
    }

    /// Sends the request of this number.
    #[track_caller]
    fn send(&self, number: u32) {
        let socket = &self.sockets[number as usize % self.sockets.len()];
        let (at, to) = (socket.local_addr().expect("an address"), self.server);
        let text = format!(
            "OPTIONS sip:{to} SIP/2.0\nVia: SIP/2.0/UDP {at};branch=z9hG4bKstranger{number};rport\nMax-Forwards: 70\n\
             From: <sip:a@{DOMAIN}>;tag=1\nTo: <sip:{to}>\nCall-ID: stranger-{number}\nCSeq: 1 OPTIONS\n\
             Content-Length: 0\n\n"
        );
        let sent = socket.send_to(text.replace('\n', "\r\n").as_bytes(), to);
        sent.expect("sent");
    }

    /// Sends a new one; its number.
    fn ask(&mut self) -> u32 {
        // Of all strangers.
        static NUMBER: AtomicU32 = AtomicU32::new(1);
        self.number = NUMBER.fetch_add(1, Ordering::Relaxed);
        self.send(self.number);
        self.number
    }

    /// Whether a request from this number on has been answered.
    fn was_heard(&self, from: u32) -> bool {
        let mut buffer = [0; 2048];
        for socket in &self.sockets {
            while let Ok(length) = socket.recv(&mut buffer) {
                let text = String::from_utf8_lossy(&buffer[..length]);
                let number = text.split("\r\nCall-ID: stranger-").nth(1);
                let number = number.and_then(|rest| rest.split("\r\n").next()?.parse::<u32>().ok());
                if number.is_some_and(|number| number >= from) {
                    return true;
                }
            }
        }
        false
    }

    /// A request is answered, sooner or later.
    #[track_caller]
    fn expect_answer(&mut self) {
        let number = self.ask();
        let mut sent = Instant::now();
        wait_until("an answer to a stranger", || {
            if sent.elapsed() >= AGAIN {
                sent = Instant::now();
                self.send(number);
            }
            self.was_heard(number)
        });
    }

    /// Each of both workers drops a request, as they count.
    #[track_caller]
    fn expect_ban(&mut self, server: &Server) {
        self.ask_both(server, "trapezoid_dropped_total", "cause=\"banned\"");
    }

    /// Each of both workers takes a request, and one is answered.
    #[track_caller]
    fn expect_no_ban(&mut self, server: &Server) {
        self.ask_both(server, "trapezoid_requests_received_total", "method=\"OPTIONS\"");
        self.expect_answer();
    }

    /// Asks until both workers have counted one more of these.
    #[track_caller]
    fn ask_both(&mut self, server: &Server, name: &str, label: &str) {
        let count = |worker: u16| server.metric(name, &format!("{label},worker=\"{worker}\""));
        let before = [0, 1].map(count);
        wait_until(&format!("{name} {label} of both workers"), || {
            self.ask();
            count(0) > before[0] && count(1) > before[1]
        });
    }
}

/// Runs `trapezoid bans`; whether it did, and what it printed.
fn bans_command(scene: &Scene, arguments: &[&str]) -> (bool, String) {
    let (code, text) = command(scene, &[&["bans"], arguments].concat());
    (code == Some(0), text)
}

#[test]
fn guessing_ends_in_a_ban_that_outlives_a_restart_and_is_lifted() {
    let scene = Scene::new();
    let server = guarded(&scene, 2);
    let ip = scene.at(0).ip().to_string();
    // A copy of a guess would be another guess.
    let mut guesser = client(&scene, Transport::Udp, port::CALLER).sending_once();
    for (number, user) in ["alice", "bob", "carol"].iter().enumerate() {
        let answer = log_in(&mut guesser, user, "guess", &format!("guess{number}"));
        assert_eq!(answer.status(), 401);
    }
    wait_until("the ban", || banned(&server) == [ip.as_str()]);
    let mut stranger = Stranger::new(&scene);
    stranger.expect_ban(&server);
    // A connection is closed as soon as it is accepted.
    let stream = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a socket");
    stream.bind(&scene.at(0).into()).expect("bound");
    stream
        .connect(&scene.at(port::SERVER).into())
        .expect("the kernel takes it");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    let end = std::net::TcpStream::from(stream).read(&mut [0]);
    let is_closed = end
        .as_ref()
        .map_or_else(|e| e.kind() == ErrorKind::ConnectionReset, |n| *n == 0);
    assert!(is_closed, "{end:?}");
    assert!(server.metric("trapezoid_bans_in_force", "") >= 1.0);
    server.wait_for_log("source banned");

    // Nothing was left to do at its end.
    server.kill();
    let server = Server::start_again(&scene);
    assert_eq!(banned(&server), [ip.as_str()]);
    // A worker that has begun to work has heard of the bans.
    for worker in ["worker=\"0\"", "worker=\"1\""] {
        server.wait_for_metric("trapezoid_net_turns_total", worker, |turns| turns > 0.0);
    }
    let first = stranger.number + 1;
    stranger.expect_ban(&server);
    assert!(!stranger.was_heard(first), "a banned source is heard");
    let (done, text) = bans_command(&scene, &["list"]);
    assert!(done && text.starts_with(&format!("{ip} for ")), "{text}");

    let (done, text) = bans_command(&scene, &["lift", &ip]);
    assert!(done, "{text}");
    stranger.expect_no_ban(&server);
    assert!(banned(&server).is_empty());
    let answer = log_in(&mut guesser, "alice", "wonderland", "right");
    assert_eq!(answer.status(), 200);
    let (done, text) = bans_command(&scene, &["lift", &ip]);
    assert!(!done && text.contains("is not banned"), "{text}");
}

#[test]
fn an_office_is_not_banned_for_one_wrong_password() {
    let scene = Scene::new();
    // With one worker: what comes later is judged later.
    let server = guarded(&scene, 1);
    let mut office = client(&scene, Transport::Tcp, port::CALLER);
    assert_eq!(log_in(&mut office, "alice", "wonderland", "good").status(), 200);
    for number in 0..12 {
        let answer = log_in(&mut office, "bob", "forgotten", &format!("bad{number}"));
        assert_eq!(answer.status(), 401);
    }
    // Three that fail are no mistake. The last of them may hear no more of it.
    let answer = log_in(&mut office, "carol", "guess", "other");
    assert_eq!(answer.status(), 401);
    assert_eq!(server.metric("trapezoid_bans_made_total", ""), 0.0);
    guess(&mut office, "dave", "guess", "last");
    wait_until("the ban", || banned(&server).len() == 1);
}

#[test]
fn trusted_sources_are_never_banned() {
    let scene = Scene::new();
    let ip = scene.at(0).ip().to_string();
    let config = Config::new()
        .auth(&["REGISTER"])
        .user("alice", "wonderland")
        .table("[abuse]", "failures = 2\nrate = 1\nburst = 1\nexempt = []")
        .table("[abuse.scanners]", "user_agent = ['friendly-scanner']")
        .table("[trust]", &format!("peers = [\"{ip}\"]"));
    let server = Server::start(&scene, &config);
    let mut peer = client(&scene, Transport::Udp, port::CALLER);
    for number in 0..10 {
        let answer = log_in(&mut peer, "alice", "guess", &format!("guess{number}"));
        assert_eq!(answer.status(), 401);
    }
    assert!(banned(&server).is_empty());
    let (done, text) = bans_command(&scene, &["add", &ip]);
    assert!(!done && text.contains("never banned"), "{text}");
    server.wait_for_metric("trapezoid_requests_received_total", "REGISTER", |n| n >= 20.0);
    assert_eq!(server.metric("trapezoid_dropped_total", "rate"), 0.0);
}

#[test]
fn scanners_get_no_answer_and_are_banned_where_they_are_certain() {
    let scene = Scene::new();
    let config = Config::new()
        .workers(1)
        .table("[abuse]", "failures = 3\nexempt = []")
        .table(
            "[abuse.scanners]",
            "user_agent = ['friendly-scanner']\nfrom_user = ['^sipvicious$']",
        );
    let server = Server::start(&scene, &config);
    let scan = |client: &mut Client, number: u32| {
        let uri = format!("sip:100@{}", scene.at(port::SERVER));
        let text = format!(
            "OPTIONS {uri} SIP/2.0\nMax-Forwards: 70\nFrom: \"sipvicious\" <sip:100@1.1.1.1>;tag=1\nTo: <{uri}>\n\
             Call-ID: scan{number}\nCSeq: 1 OPTIONS\nUser-Agent: friendly-scanner\n"
        );
        client.send(&text, &format!("scan{number}"));
    };
    let mut by_udp = client(&scene, Transport::Udp, port::CALLER);
    (0..5).for_each(|number| scan(&mut by_udp, number));
    server.wait_for_metric("trapezoid_dropped_total", "scanner", |n| n >= 5.0);
    // Their source address may be spoofed.
    assert!(banned(&server).is_empty());
    Stranger::new(&scene).expect_answer();
    let mut by_tcp = client(&scene, Transport::Tcp, port::CALLER);
    (5..8).for_each(|number| scan(&mut by_tcp, number));
    wait_until("the ban", || banned(&server).len() == 1);
    // This line comes after those of the requests.
    let log = server.wait_for_log("source banned");
    let logged = log.matches("requests of a scanner were dropped").count();
    assert_eq!(logged, 1, "one line, not one for each");
}

#[test]
fn a_flood_is_limited_and_another_is_served() {
    let scene = Scene::new();
    let config = Config::new()
        .workers(1)
        .table("[abuse]", "rate = 20\nburst = 20\nexempt = []");
    let server = Server::start(&scene, &config);
    let flooder = UdpSocket::bind(scene.at(port::CALLER)).expect("a socket");
    let to = scene.at(port::SERVER);
    let mut number = 0;
    wait_until("1,500 are dropped", || {
        for _ in 0..200 {
            number += 1;
            let text = format!("OPTIONS sip:{to} SIP/2.0\r\nCall-ID: flood{number}\r\n\r\n");
            flooder.send_to(text.as_bytes(), to).expect("sent");
        }
        server.metric("trapezoid_dropped_total", "rate") >= 1_500.0
    });
    // From another address of the loopback network.
    let mut other = Stranger::at(Ipv4Addr::LOCALHOST.into(), to);
    for _ in 0..10 {
        other.expect_answer();
    }
    let log = server.wait_for_log("sends more than it may");
    let logged = log.matches("sends more than it may").count();
    assert_eq!(logged, 1, "one line, not one for each");
    // It is limited, not banned.
    Stranger::new(&scene).expect_answer();
}

/// REGISTERs of an office at its worst (docs/abuse.md, Sizing): two for each registration, of which the first is challenged.
const OFFICE: u64 = 3_500;

/// With some accounts, challenged. One worker gets all messages, and no source is exempt.
fn limited(abuse: &str) -> Config {
    let config = Config::new()
        .workers(1)
        .auth(&["REGISTER"])
        .table("[abuse]", &format!("{abuse}exempt = []"));
    (0..10).fold(config, |config, n| config.user(&format!("phone{n}"), "secret"))
}

/// All phones of an office register at once. A datagram is sent again after five seconds only, so that a slow machine
/// makes no more of them.
#[track_caller]
fn office(scene: &Scene, server: &Server) {
    let lines: Vec<String> = (0..OFFICE / 2)
        .map(|line| format!("phone{} secret\n", line % 10))
        .collect();
    std::fs::write(scene.path("users"), lines.concat()).expect("writable");
    let to = target(scene, Transport::Udp);
    let report = load(
        scene,
        &[
            &["register", "--target", &to, "--domain", DOMAIN][..],
            &["--users", "users", "--auth", "digest", "--t1", "5s"],
            &["--rate", "3500", "--duration", "500ms", "--drain", "30s"],
        ]
        .concat(),
    );
    let challenged = report["messages"]["received"]["401 REGISTER"].as_u64();
    assert!(challenged >= Some(OFFICE / 2), "{report}");
    server.wait_for_metric("trapezoid_requests_received_total", "REGISTER", |n| {
        n >= OFFICE as f64
    });
    assert_nothing_dropped(server);
}

#[track_caller]
fn assert_nothing_dropped(server: &Server) {
    assert_eq!(server.metric("trapezoid_dropped_total", "rate"), 0.0);
    assert!(banned(server).is_empty());
}

/// A flood from the address of the load meets the limit.
#[track_caller]
fn assert_limited(scene: &Scene, server: &Server) {
    let flooder = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let to = scene.at(port::SERVER);
    let mut number = 0;
    wait_until("some are dropped", || {
        for _ in 0..10_000 {
            number += 1;
            let text = format!("OPTIONS sip:{to} SIP/2.0\r\nCall-ID: flood{number}\r\n\r\n");
            flooder.send_to(text.as_bytes(), to).expect("sent");
        }
        server.metric("trapezoid_dropped_total", "rate") > 0.0
    });
}

/// With next to no `rate`, however long the machine takes.
#[test]
fn an_office_needs_no_more_than_the_default_burst() {
    let scene = Scene::new();
    let server = Server::start(&scene, &limited("rate = 1\n"));
    office(&scene, &server);
    assert_limited(&scene, &server);
}

/// The office uses up a burst of 35 messages for each of a hundred phones. Then comes as much as a trunk of 150 calls a
/// second sends: 1,050 messages a second, on one connection. Only `rate` lets these pass. A machine that stalls only
/// gives the bucket more time to fill.
#[test]
fn an_office_and_a_trunk_meet_no_limit() {
    let scene = Scene::new();
    // The callee has an address of its own: it is a next hop, and so exempt.
    let far = Scene::new();
    let callee = far.at(port::CALLEE).to_string();
    let config =
        limited(&format!("burst = {OFFICE}\n")).invites_to(&format!("sip:{callee};transport=tcp"), "");
    let server = Server::start(&scene, &config);
    office(&scene, &server);
    let to = target(&scene, Transport::Tcp);
    // INVITE, ACK and BYE of each call.
    let report = load(
        &scene,
        &[
            &["call", "--target", &to, "--transport", Transport::Tcp.name()][..],
            &["--domain", DOMAIN, "--uas", &callee],
            &["--rate", "350", "--duration", "2s"],
        ]
        .concat(),
    );
    let succeeded = report["succeeded"].as_u64();
    assert!(
        succeeded >= Some(700) && report["failures"] == json!({}),
        "{report}"
    );
    server.wait_for_metric("trapezoid_requests_received_total", "BYE", |n| n >= 700.0);
    assert_nothing_dropped(&server);
    assert_limited(&scene, &server);
}

#[test]
fn a_damaged_file_of_bans_is_set_aside() {
    let scene = Scene::new();
    let server = Server::start(&scene, &Config::new());
    let (done, text) = bans_command(
        &scene,
        &["add", "2001:db8::66", "--for", "1h", "--reason", "noise"],
    );
    let left = text.split("banned 2001:db8::/64 for ").nth(1);
    let left = left.and_then(|rest| rest.split(' ').next()?.parse::<u32>().ok());
    // An hour, and what has passed of it.
    let is_an_hour = left.is_some_and(|left| (3_500..=3_600).contains(&left));
    assert!(done && is_an_hour, "{text}");
    let file = scene.path("data/bans");
    drop(server);
    let whole = std::fs::read(&file).expect("the file");
    std::fs::write(&file, &whole[..whole.len() / 2]).expect("writable");
    let server = Server::start_again(&scene);
    assert!(banned(&server).is_empty());
    server.wait_for_log("no source is banned now");
    assert!(Path::new(&scene.path("data/bans.damaged")).exists());
    let (done, text) = bans_command(&scene, &["add", "192.0.2.66"]);
    assert!(done, "{text}");
    drop(server);
    let server = Server::start_again(&scene);
    assert_eq!(banned(&server), ["192.0.2.66"]);
}

#[test]
fn bans_that_cannot_be_written_hold_and_are_written_later() {
    let scene = Scene::new();
    let server = Server::start(&scene, &Config::new());
    // A directory lies where the next draft of the file is written.
    let draft = scene.path("data/bans.new");
    std::fs::create_dir(&draft).expect("a directory");
    let (_, text) = bans_command(&scene, &["add", "192.0.2.66"]);
    server.wait_for_log("bans hold but cannot be written");
    assert_eq!(banned(&server), ["192.0.2.66"], "{text}");
    std::fs::remove_dir(&draft).expect("it was empty");
    server.wait_for_log("bans are written again");
    drop(server);
    let server = Server::start_again(&scene);
    assert_eq!(banned(&server), ["192.0.2.66"]);
}

/// There are more lines than `[log]` lets through of one cause. The failures of one source hide none of another.
#[test]
fn each_refused_request_and_each_wrong_password_is_a_line() {
    const EACH: usize = 15;
    let scene = Scene::new();
    let config = Config::new().auth(&["REGISTER"]).user("alice", "wonderland");
    let server = Server::start(&scene, &config);
    let mut client = client(&scene, Transport::Tcp, port::CALLER);
    for number in 0..EACH {
        let refused = log_in(&mut client, "alice", "looking-glass", &format!("wrong{number}"));
        assert_eq!(refused.status(), 401, "{refused:?}");
        let text = format!(
            "INVITE sip:x@elsewhere.example SIP/2.0\nMax-Forwards: 70\nFrom: <sip:x@elsewhere.example>;tag=1\n\
             To: <sip:x@elsewhere.example>\nCall-ID: refused{number}\nCSeq: 1 INVITE\nContact: <sip:x@192.0.2.9>\n"
        );
        client.send(&text, &format!("refused{number}"));
        assert_eq!(client.final_response().status(), 403);
    }
    for number in 0..EACH {
        for (line, call) in [("authentication failed", "wrong"), ("request refused", "refused")] {
            let call = format!("call_id=\"{call}{number}\"");
            let log = server.wait_for_log(&call);
            let found = log.lines().find(|text| text.contains(&call));
            let found = found.unwrap_or_default();
            assert!(found.contains(line) && found.contains("source=127."), "{found}");
        }
    }
}

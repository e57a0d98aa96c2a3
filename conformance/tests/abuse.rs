//! Abuse control of a real server: guessing, bans that outlive a restart, floods, scanners.

use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use conformance::digest::credentials;
use conformance::{Client, Config, DOMAIN, Message, Scene, Server, Transport, binary, port};

const PATIENCE: Duration = Duration::from_secs(10);

fn register(user: &str, call: &str, cseq: u32, more: &str) -> String {
    format!(
        "REGISTER sip:{DOMAIN} SIP/2.0\nMax-Forwards: 70\nFrom: <sip:{user}@{DOMAIN}>;tag=1\nTo: <sip:{user}@{DOMAIN}>\n\
         Call-ID: {call}\nCSeq: {cseq} REGISTER\nContact: <sip:{user}@192.0.2.9>\n{more}"
    )
}

/// Registers with a password, as far as sending it.
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
fn log_in(client: &mut Client, user: &str, password: &str, call: &str) -> Message {
    guess(client, user, password, call);
    client.final_response()
}

fn guarded(scene: &Scene, more: &str) -> Server {
    let config = Config::new()
        .auth(&["REGISTER"])
        .user("alice", "wonderland")
        .user("bob", "builder")
        .table("[abuse]", &format!("failures = 3\nban_s = 600\n{more}"));
    Server::start(scene, &config)
}

fn client(scene: &Scene, transport: Transport, port: u16) -> Client {
    Client::new(scene, transport, port, scene.at(port::SERVER))
}

/// The banned sources, as the server lists them.
fn banned(server: &Server) -> Vec<String> {
    let answer = server.api("GET /api/v1/bans", "");
    let bans = answer["bans"].as_array().expect("a list").iter();
    bans.filter_map(|ban| ban["source"].as_str().map(str::to_owned))
        .collect()
}

fn until(what: &str, mut is: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is() {
        assert!(began.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Whether a datagram is answered.
fn is_heard(from: &UdpSocket, to: SocketAddr, call: &str) -> bool {
    let at = from.local_addr().expect("an address");
    let text = format!(
        "OPTIONS sip:{to} SIP/2.0\nVia: SIP/2.0/UDP {at};branch=z9hG4bK{call};rport\nMax-Forwards: 70\n\
         From: <sip:a@{DOMAIN}>;tag=1\nTo: <sip:{to}>\nCall-ID: {call}\nCSeq: 1 OPTIONS\nContent-Length: 0\n\n"
    );
    from.set_read_timeout(Some(Duration::from_millis(500)))
        .expect("a time-out");
    from.send_to(text.replace('\n', "\r\n").as_bytes(), to)
        .expect("sent");
    from.recv(&mut [0; 2048]).is_ok()
}

/// Runs `trapezoid bans`; whether it did, and what it printed.
fn bans_command(scene: &Scene, arguments: &[&str]) -> (bool, String) {
    let config = scene.path("trapezoid.toml");
    let out = Command::new(binary())
        .arg("bans")
        .args(arguments)
        .arg("--config")
        .arg(&config)
        .current_dir(scene.dir())
        .output()
        .expect("the command runs");
    let all = [out.stdout, out.stderr].concat();
    (out.status.success(), String::from_utf8_lossy(&all).into_owned())
}

#[test]
fn guessing_ends_in_a_ban_that_outlives_a_restart_and_is_lifted() {
    let scene = Scene::new();
    let server = guarded(&scene, "");
    let ip = scene.at(0).ip().to_string();
    let mut guesser = client(&scene, Transport::Udp, port::CALLER);
    for (number, user) in ["alice", "bob", "carol"].iter().enumerate() {
        let answer = log_in(&mut guesser, user, "guess", &format!("guess{number}"));
        assert_eq!(answer.status(), 401);
    }
    until("the ban", || banned(&server) == [ip.as_str()]);
    let socket = UdpSocket::bind(scene.at(port::NEXT_HOP)).expect("a socket");
    until("the workers know", || {
        !is_heard(&socket, scene.at(port::SERVER), "x")
    });
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
    assert!(server.log().contains("source banned"), "{}", server.log());

    // Nothing was left to do at its end.
    server.kill();
    let server = Server::start_again(&scene);
    assert_eq!(banned(&server), [ip.as_str()]);
    assert!(!is_heard(&socket, scene.at(port::SERVER), "y"));
    assert!(server.metric("trapezoid_dropped_total", "banned") >= 1.0);
    let (done, text) = bans_command(&scene, &["list"]);
    assert!(done && text.starts_with(&format!("{ip} for ")), "{text}");

    let (done, text) = bans_command(&scene, &["lift", &ip]);
    assert!(done, "{text}");
    until("heard again", || is_heard(&socket, scene.at(port::SERVER), "z"));
    assert!(banned(&server).is_empty());
    let answer = log_in(&mut guesser, "alice", "wonderland", "right");
    assert_eq!(answer.status(), 200);
    let (done, text) = bans_command(&scene, &["lift", &ip]);
    assert!(!done && text.contains("is not banned"), "{text}");
}

#[test]
fn an_office_is_not_banned_for_one_wrong_password() {
    let scene = Scene::new();
    let server = guarded(&scene, "");
    let mut office = client(&scene, Transport::Tcp, port::CALLER);
    assert_eq!(log_in(&mut office, "alice", "wonderland", "good").status(), 200);
    for number in 0..12 {
        let answer = log_in(&mut office, "bob", "forgotten", &format!("bad{number}"));
        assert_eq!(answer.status(), 401);
    }
    assert_eq!(server.metric("trapezoid_bans_made_total", ""), 0.0);
    // Three that fail are no mistake. The last of them may hear no more of it.
    let answer = log_in(&mut office, "carol", "guess", "other");
    assert_eq!(answer.status(), 401);
    guess(&mut office, "dave", "guess", "last");
    until("the ban", || banned(&server).len() == 1);
}

#[test]
fn who_is_trusted_is_never_banned() {
    let scene = Scene::new();
    let ip = scene.at(0).ip().to_string();
    let config = Config::new()
        .auth(&["REGISTER"])
        .user("alice", "wonderland")
        .table("[abuse]", "failures = 2\nrate = 1\nburst = 1")
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
    assert_eq!(server.metric("trapezoid_dropped_total", "rate"), 0.0);
}

#[test]
fn scanners_get_no_answer_and_are_banned_where_they_are_certain() {
    let scene = Scene::new();
    let config = Config::new().workers(1).table("[abuse]", "failures = 3").table(
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
    until("five are dropped", || {
        server.metric("trapezoid_dropped_total", "scanner") >= 5.0
    });
    // Nobody knows who sent them.
    assert!(banned(&server).is_empty());
    let socket = UdpSocket::bind(scene.at(port::NEXT_HOP)).expect("a socket");
    assert!(is_heard(&socket, scene.at(port::SERVER), "other"));
    let mut by_tcp = client(&scene, Transport::Tcp, port::CALLER);
    (5..8).for_each(|number| scan(&mut by_tcp, number));
    until("the ban", || banned(&server).len() == 1);
    let logged = server.log().matches("requests of a scanner were dropped").count();
    assert_eq!(logged, 1, "one line, not one for each");
}

#[test]
fn a_flood_is_limited_and_another_is_served() {
    let scene = Scene::new();
    let config = Config::new().workers(1).table("[abuse]", "rate = 20\nburst = 20");
    let server = Server::start(&scene, &config);
    let flooder = UdpSocket::bind(scene.at(port::CALLER)).expect("a socket");
    let to = scene.at(port::SERVER);
    for number in 0..2_000 {
        let text = format!("OPTIONS sip:{to} SIP/2.0\r\nCall-ID: flood{number}\r\n\r\n");
        flooder.send_to(text.as_bytes(), to).expect("sent");
    }
    until("most are dropped", || {
        server.metric("trapezoid_dropped_total", "rate") >= 1_500.0
    });
    // From another address of the loopback network.
    let other = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    for number in 0..10 {
        assert!(is_heard(&other, to, &format!("other{number}")));
    }
    let logged = server.log().matches("sends more than it may").count();
    assert_eq!(logged, 1, "one line, not one for each");
    // It is limited, not banned.
    std::thread::sleep(Duration::from_millis(500));
    assert!(is_heard(&flooder, to, "again"));
}

#[test]
fn a_damaged_file_of_bans_is_set_aside() {
    let scene = Scene::new();
    let server = Server::start(&scene, &Config::new());
    let (done, text) = bans_command(
        &scene,
        &["add", "2001:db8::66", "--for", "1h", "--reason", "noise"],
    );
    assert!(done && text.contains("banned 2001:db8::/64 for 36"), "{text}");
    let file = scene.path("data/bans");
    drop(server);
    let whole = std::fs::read(&file).expect("the file");
    std::fs::write(&file, &whole[..whole.len() / 2]).expect("writable");
    let server = Server::start_again(&scene);
    assert!(banned(&server).is_empty());
    assert!(server.log().contains("nobody is banned now"), "{}", server.log());
    assert!(Path::new(&scene.path("data/bans.damaged")).exists());
    let (done, text) = bans_command(&scene, &["add", "192.0.2.66"]);
    assert!(done, "{text}");
    drop(server);
    let server = Server::start_again(&scene);
    assert_eq!(banned(&server), ["192.0.2.66"]);
}
